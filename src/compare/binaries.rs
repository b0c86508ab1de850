//! Compares two programs in one run: after a warm-up they run in turn, several times.

use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};
use waggle_files::{at, load, write_json};
use waggle_report::provenance::Provenance;
use waggle_report::table::{Cell, Document, Table};
use waggle_report::{Cost, Phases};

use super::{CompareArgs, ratio};
use crate::Error;
use crate::machine::provenance;
use crate::progress::passes;
use crate::together::{self, Folder, clean_up_on_signals};

/// Version of the record's schema. It is raised when a field changes its meaning or is removed.
const COMPARISON_VERSION: u32 = 1;

/// Times below this number of seconds are mostly noise, and have no ratio.
const LEAST_SECONDS: f64 = 0.001;

#[derive(Serialize)]
struct Comparison {
    version: u32,
    provenance: Option<Provenance>,
    /// Runs of each program that are not among the samples.
    warm_up: u16,
    sides: [Side; 2],
}

/// One program and its runs, in order.
#[derive(Serialize)]
struct Side {
    /// The output of `--version`.
    program: String,
    samples: Vec<Phases>,
}

/// The part of a report that is compared. Reports of older programs have it too.
#[derive(Deserialize)]
struct Sample {
    phases: Phases,
}

/// Runs `programs` in turn and shows their costs.
pub(super) fn run(programs: [&Path; 2], args: &CompareArgs) -> Result<(), Error> {
    clean_up_on_signals()?;
    let mut sides = [side(programs[0])?, side(programs[1])?];
    let turns = usize::from(args.warm_up) + usize::from(args.repeat);
    let bar = passes(2 * turns);
    for turn in 0..turns {
        // The first program alternates, so that neither always runs on the warmer processor.
        let order = if turn % 2 == 0 { [0, 1] } else { [1, 0] };
        for i in order {
            let phases = sample(programs[i], &args.command)?;
            if turn >= usize::from(args.warm_up) {
                sides[i].samples.push(phases);
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let comparison =
        Comparison { version: COMPARISON_VERSION, provenance: provenance(), warm_up: args.warm_up, sides };
    if let Some(path) = &args.json {
        write_json(path, &comparison)?;
    }
    args.format.show(document(&comparison, args))
}

fn side(program: &Path) -> Result<Side, Error> {
    let said = together::said(Command::new(program).arg("--version")).map_err(|what| failure(program, what))?;
    Ok(Side { program: said.trim().to_owned(), samples: Vec::new() })
}

/// The costs that a run of `program` reports, by phase.
fn sample(program: &Path, command: &[String]) -> Result<Phases, Error> {
    let dir = Folder::new().map_err(at(&std::env::temp_dir()))?;
    let path = dir.path().join("report.json");
    let run = together::said(Command::new(program).args(command).arg("--json").arg(&path));
    run.map_err(|what| failure(program, what))?;
    let sample = serde_json::from_slice(&load(&path)?);
    let unread = |e: serde_json::Error| failure(program, format!("it wrote no report of a run: {e}"));
    sample.map(|Sample { phases }| phases).map_err(unread)
}

fn failure(program: &Path, what: String) -> Error {
    Error::Compared { program: program.display().to_string(), what }
}

/// The median, the least and the largest of `values`, of which there is at least one.
fn median(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    let middle = (values[(n - 1) / 2] + values[n / 2]) / 2.0;
    [middle, values[0], values[n - 1]]
}

type Quantity = (&'static str, fn(&Phases) -> f64);

/// The quantities whose times are compared.
const QUANTITIES: [Quantity; 7] = [
    ("setup", |p| p.setup.seconds),
    ("offline", |p| p.offline.seconds),
    ("prefill", |p| p.prefill.seconds),
    ("decode", |p| p.decode.total.seconds),
    ("all phases", |p| p.total().seconds),
    ("client CPU", |p| p.total().cpu_seconds),
    ("server CPU", |p| p.total().peer_cpu_seconds.unwrap_or(0.0)),
];

fn document(comparison: &Comparison, args: &CompareArgs) -> Document {
    let [old, new] = &comparison.sides;
    let mut document = Document::default();
    let repeats = args.repeat;
    document.note(format!("{repeats} runs of each in turn after {} of warm-up, old and new:", comparison.warm_up));
    if old.program == new.program {
        document.note(format!("both are {}", old.program));
    } else {
        document.note(format!("old is {}, new is {}", old.program, new.program));
    }
    document.table("traffic", traffic(old, new));
    document.table("times", times(old, new));
    document
}

/// A table of bytes and flows of all phases, and their ratio: medians, since some policies send random counts.
fn traffic(old: &Side, new: &Side) -> Table {
    let mut table = Table::new(1, [("all phases", ""), ("old", ""), ("new", ""), ("new / old", "")]);
    for (what, of) in [("bytes", Cost::bytes as fn(&Cost) -> u64), ("flows", |cost| cost.flows)] {
        let counts = |side: &Side| side.samples.iter().map(|phases| of(&phases.total()) as f64).collect();
        let [a, b] = [old, new].map(|side| median(counts(side))[0]);
        let count = |n: f64| Cell::number(n, n.to_string());
        table.add([Cell::text(what), count(a), count(b), ratio(a, b)]);
    }
    table
}

/// A table of medians in seconds, with the least and the largest, and of the ratios of consecutive runs.
fn times(old: &Side, new: &Side) -> Table {
    let of = |side: &str| ["median", "least", "largest"].map(|what| format!("{side}, {what}"));
    let ratios = ["new / old, median", "least", "largest"].map(str::to_owned);
    let titles = std::iter::once("measured seconds of".to_owned()).chain(of("old")).chain(of("new")).chain(ratios);
    let mut table = Table::new(1, titles.map(|title| (title, "")));
    for (name, of) in QUANTITIES {
        let [a, b] = [old, new].map(|side| side.samples.iter().map(of).collect::<Vec<f64>>());
        if a.iter().chain(&b).all(|seconds| *seconds < LEAST_SECONDS) {
            continue;
        }
        let ratios: Option<Vec<f64>> = a.iter().zip(&b).map(|(a, b)| (*a >= LEAST_SECONDS).then(|| b / a)).collect();
        let seconds = |values: Vec<f64>| median(values).map(Cell::seconds);
        let ratio = match ratios.map(median) {
            Some(ratios) => ratios.map(Cell::times),
            None => [(); 3].map(|()| Cell::absent()),
        };
        table.add([Cell::text(name)].into_iter().chain(seconds(a)).chain(seconds(b)).chain(ratio));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_stand_between_the_least_and_the_largest() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), [2.0, 1.0, 3.0]);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), [2.5, 1.0, 4.0]);
        assert_eq!(median(vec![7.0]), [7.0; 3]);
    }

    #[test]
    fn a_ratio_is_that_of_runs_that_followed_each_other() {
        let run = |seconds| {
            let decode = waggle_report::DecodeCost { total: Cost { seconds, ..Cost::default() }, per_token: vec![] };
            Phases { decode, ..Phases::default() }
        };
        let side = |seconds: [f64; 3]| Side { program: String::new(), samples: seconds.map(run).to_vec() };
        let json = times(&side([1.0, 2.0, 4.0]), &side([2.0, 2.0, 12.0])).json();
        assert_eq!((&json[0]["measured_seconds_of"], &json[0]["old_median"]), (&"decode".into(), &2.0.into()));
        assert_eq!(
            (&json[0]["new_old_median"], &json[0]["least"], &json[0]["largest"]),
            (&2.0.into(), &1.0.into(), &3.0.into())
        );
        assert_eq!(json.as_array().unwrap().len(), 2, "nothing else took any time: {json}");
        let sent = |bytes| {
            let setup = Cost { bytes_client_to_server: bytes, ..Cost::default() };
            Side { program: String::new(), samples: vec![Phases { setup, ..Phases::default() }; 3] }
        };
        let json = traffic(&sent(200), &sent(300)).json();
        assert_eq!((&json[0]["new"], &json[0]["new_old"]), (&300.0.into(), &1.5.into()));
        assert_eq!(json[1]["new_old"], serde_json::Value::Null, "no flows at all");
    }
}
