//! Findings as records, and back.
//!
//! A metric reads `PART/PHASE/QUANTITY`, such as `step/online/flows`; the part of an operation is `operation/PATH`. A
//! phase in which a part costs nothing has no records.

use std::collections::BTreeMap;

use report::provenance::Provenance;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::cost::{Cost, Split};
use super::findings::{Attention, Check, Findings, Measured, MeasuredRest, Operation, Paper, Rest, Row, Setting};
use crate::records::{self, Table, Unit};

const STEP: &str = "step";
const EVICTION: &str = "eviction";
const DIGESTS: &str = "digests";
const OPERATION: &str = "operation/";
const ONLINE: &str = "online";
const OFFLINE: &str = "offline";
const TO_SERVER: &str = "bytes to server";
const TO_CLIENT: &str = "bytes to client";
const FLOWS: &str = "flows";
const SECONDS: &str = "seconds";
const PAPER_FASTER: &str = "paper/faster";
const PAPER_LESS: &str = "paper/less";
const ERROR_SAME: &str = "answers/error, equal choices";
const ERROR_LARGEST: &str = "answers/error, all";
const TIED: &str = "answers/other choice";
const LOGIT_ERROR: &str = "answers/logit error";

/// A record of the ablation.
pub(crate) type Record = records::Record<Choice>;

/// What was chosen for a number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Choice {
    /// For the whole table.
    #[serde(flatten)]
    setting: Setting,
    /// For its row; absent for the rest of the step, which does not depend on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    attention: Option<Attention>,
}

/// Records that do not make a table.
#[derive(Debug, Error)]
pub enum RecordsError {
    /// A number is not there.
    #[error("{row}: no record of {metric}")]
    Missing {
        /// Which row.
        row: String,
        /// What.
        metric: String,
    },
    /// Records of different tables.
    #[error("the records differ in what was chosen for the whole table: {first}, {other}")]
    Mixed {
        /// What the first record says.
        first: String,
        /// What another says.
        other: String,
    },
}

/// Writes the records of one row, or of the rest of the step.
struct Writer<'a> {
    choice: Choice,
    run: &'a Provenance,
    records: Vec<Record>,
}

impl<'a> Writer<'a> {
    fn new(setting: &Setting, attention: Option<&Attention>, run: &'a Provenance) -> Self {
        let choice = Choice { setting: setting.clone(), attention: attention.cloned() };
        Writer { choice, run, records: Vec::new() }
    }

    fn add(&mut self, metric: impl Into<String>, value: f64, unit: Unit, estimated: bool) {
        let (configuration, run) = (self.choice.clone(), self.run.clone());
        let metric = metric.into();
        self.records.push(Record { table: Table::Ablation, configuration, metric, value, unit, estimated, run });
    }

    /// What `part` costs. A plan has no times.
    fn split(&mut self, part: &str, split: Split, estimated: bool) {
        for (phase, cost) in [(ONLINE, split.online), (OFFLINE, split.offline)] {
            if cost == Cost::default() {
                continue;
            }
            let metric = |quantity| format!("{part}/{phase}/{quantity}");
            self.add(metric(TO_SERVER), cost.bytes_client_to_server, Unit::Bytes, estimated);
            self.add(metric(TO_CLIENT), cost.bytes_server_to_client, Unit::Bytes, estimated);
            self.add(metric(FLOWS), cost.flows, Unit::Flows, estimated);
            if !estimated {
                self.add(metric(SECONDS), cost.seconds, Unit::Seconds, estimated);
            }
        }
    }
}

/// The records of the rest of a step.
pub(crate) fn of_rest(rest: &Rest, setting: &Setting, run: &Provenance) -> Vec<Record> {
    let mut writer = Writer::new(setting, None, run);
    writer.split(STEP, rest.planned, true);
    if let Some(MeasuredRest { step, logit_error }) = rest.measured {
        writer.split(STEP, step, false);
        writer.add(LOGIT_ERROR, logit_error, Unit::Difference, false);
    }
    writer.records
}

/// The records of a row.
pub(crate) fn of_row(row: &Row, setting: &Setting, run: &Provenance) -> Vec<Record> {
    let mut writer = Writer::new(setting, Some(&row.attention), run);
    if let Some(Paper { faster, less }) = row.paper {
        writer.add(PAPER_FASTER, faster, Unit::Times, false);
        writer.add(PAPER_LESS, less, Unit::Times, false);
    }
    writer.split(STEP, row.planned, true);
    for Operation { path, step } in &row.operations {
        writer.split(&format!("{OPERATION}{path}"), *step, true);
    }
    writer.split(EVICTION, row.eviction, true);
    writer.split(DIGESTS, row.digests, true);
    if let Some(Measured { step, check }) = row.measured {
        writer.split(STEP, step, false);
        writer.add(ERROR_SAME, check.same, Unit::Difference, false);
        writer.add(ERROR_LARGEST, check.largest, Unit::Difference, false);
        writer.add(TIED, check.tied, Unit::Share, false);
    }
    writer.records
}

/// The numbers of one row, or of the rest of the step.
#[derive(Default)]
struct Cells<'a> {
    /// What the row is called in errors.
    row: String,
    planned: BTreeMap<&'a str, f64>,
    measured: BTreeMap<&'a str, f64>,
    /// Paths of operations in the order of their records.
    operations: Vec<&'a str>,
}

impl<'a> Cells<'a> {
    fn new(row: String) -> Self {
        Cells { row, ..Cells::default() }
    }

    fn add(&mut self, record: &'a Record) {
        let values = if record.estimated { &mut self.planned } else { &mut self.measured };
        values.insert(&record.metric, record.value);
        if let Some(path) = operation(&record.metric)
            && !self.operations.contains(&path)
        {
            self.operations.push(path);
        }
    }

    fn missing(&self, metric: String) -> RecordsError {
        RecordsError::Missing { row: self.row.clone(), metric }
    }

    /// A number that must be there.
    fn value(&self, values: &BTreeMap<&str, f64>, metric: &str) -> Result<f64, RecordsError> {
        values.get(metric).copied().ok_or_else(|| self.missing(metric.into()))
    }

    /// What `part` costs by `values`; nothing if there is no record of it.
    fn split(&self, values: &BTreeMap<&str, f64>, part: &str) -> Result<Split, RecordsError> {
        let timed = std::ptr::eq(values, &self.measured);
        let cost = |phase: &str| {
            let metric = |quantity: &str| format!("{part}/{phase}/{quantity}");
            if [TO_SERVER, TO_CLIENT, FLOWS, SECONDS].iter().all(|q| !values.contains_key(metric(q).as_str())) {
                return Ok(Cost::default());
            }
            let value = |quantity: &str| self.value(values, &metric(quantity));
            Ok(Cost {
                bytes_client_to_server: value(TO_SERVER)?,
                bytes_server_to_client: value(TO_CLIENT)?,
                flows: value(FLOWS)?,
                seconds: if timed { value(SECONDS)? } else { 0.0 },
            })
        };
        Ok(Split { online: cost(ONLINE)?, offline: cost(OFFLINE)? })
    }

    /// The planned step, which every row has.
    fn planned_step(&self) -> Result<Split, RecordsError> {
        let step = self.split(&self.planned, STEP)?;
        if step == Split::default() { Err(self.missing(STEP.into())) } else { Ok(step) }
    }

    /// The step between two parties, if it was run.
    fn measured_step(&self) -> Result<Option<Split>, RecordsError> {
        Ok(Some(self.split(&self.measured, STEP)?).filter(|step| *step != Split::default()))
    }

    fn rest(&self) -> Result<Rest, RecordsError> {
        let measured = match self.measured_step()? {
            None => None,
            Some(step) => Some(MeasuredRest { step, logit_error: self.value(&self.measured, LOGIT_ERROR)? }),
        };
        Ok(Rest { planned: self.planned_step()?, measured })
    }

    fn row(&self, attention: Attention) -> Result<Row, RecordsError> {
        let observed = |metric| self.value(&self.measured, metric);
        let paper = if self.measured.contains_key(PAPER_FASTER) {
            Some(Paper { faster: observed(PAPER_FASTER)?, less: observed(PAPER_LESS)? })
        } else {
            None
        };
        let operation = |path: &&str| {
            let step = self.split(&self.planned, &format!("{OPERATION}{path}"))?;
            Ok(Operation { path: (*path).to_owned(), step })
        };
        let measured = match self.measured_step()? {
            None => None,
            Some(step) => {
                let (same, largest) = (observed(ERROR_SAME)?, observed(ERROR_LARGEST)?);
                Some(Measured { step, check: Check { same, largest, tied: observed(TIED)? } })
            }
        };
        Ok(Row {
            attention,
            paper,
            planned: self.planned_step()?,
            operations: self.operations.iter().map(operation).collect::<Result<_, _>>()?,
            eviction: self.split(&self.planned, EVICTION)?,
            digests: self.split(&self.planned, DIGESTS)?,
            measured,
        })
    }
}

/// The path of the operation that a metric is about.
fn operation(metric: &str) -> Option<&str> {
    let rest = metric.strip_prefix(OPERATION)?;
    let (rest, _quantity) = rest.rsplit_once('/')?;
    let (path, _phase) = rest.rsplit_once('/')?;
    Some(path)
}

/// The findings that `records` hold. Rows come in the order of their first records.
pub(crate) fn findings(records: &[Record]) -> Result<Findings, RecordsError> {
    struct Group<'a> {
        attention: &'a Attention,
        cells: Cells<'a>,
    }
    let mut rest = Cells::new("the rest of the step".into());
    let mut groups: Vec<Group<'_>> = Vec::new();
    let mut runs: Vec<Provenance> = Vec::new();
    let mut setting: Option<&Setting> = None;
    for record in records {
        let Choice { setting: other, attention } = &record.configuration;
        let first = *setting.get_or_insert(other);
        if first != other {
            return Err(RecordsError::Mixed { first: format!("{first:?}"), other: format!("{other:?}") });
        }
        if !runs.contains(&record.run) {
            runs.push(record.run.clone());
        }
        let Some(attention) = attention else {
            rest.add(record);
            continue;
        };
        // Records of a row stand together, so the search begins at the end.
        match groups.iter_mut().rev().find(|group| group.attention == attention) {
            Some(group) => group.cells.add(record),
            None => {
                let mut cells = Cells::new(format!("{} at {} tokens", attention.name, attention.cache));
                cells.add(record);
                groups.push(Group { attention, cells });
            }
        }
    }
    let Some(setting) = setting.cloned() else { return Err(rest.missing(STEP.into())) };
    let rows = groups.iter().map(|group| group.cells.row(group.attention.clone()));
    Ok(Findings { runs, setting, rest: rest.rest()?, rows: rows.collect::<Result<_, _>>()? })
}
