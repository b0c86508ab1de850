//! Compares predictions with the reports of runs, in one table.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;
use waggle::{Network, OptionsError, Plan, Terms};
use waggle_files::load;
use waggle_model::Disclosed;
use waggle_report::{Cost, Phases, Report, bytes};
use waggle_session::party::{PublicModel, nobody};

use crate::machine::Calibrated;
use crate::record::RecordError;
use crate::{Error, out};

type OfPhase = (&'static str, fn(&Phases) -> &Cost);

type OfCost = (&'static str, fn(&Cost) -> f64);

/// The shortest time that is compared, in seconds. Shorter times of a phase are mostly noise.
const LEAST_SECONDS: f64 = 0.05;

/// Plans the sessions of `reports` again, and writes a table of their measured and predicted costs.
pub(super) fn run(reports: &[PathBuf], calibrated: &Calibrated) -> Result<(), Error> {
    out::line("| run | | measured | predicted | ratio |\n|---|---|---|---|---|")?;
    for path in reports {
        let unread = |what: String| RecordError::NotReport { path: path.clone(), what };
        let measured: Report = serde_json::from_slice(&load(path)?).map_err(|e| unread(e.to_string()))?;
        let planned = plan_again(&measured, calibrated).map_err(|e| unread(e.to_string()))?;
        let name = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy();
        for (what, [measured, predicted], text) in rows(&measured, &planned) {
            let ratio = predicted / measured;
            out::line(format_args!("| {name} | {what} | {} | {} | {ratio:.2} |", text(measured), text(predicted)))?;
        }
    }
    Ok(())
}

/// A row: the title, the measured and the predicted value, and the function that writes a value.
type Row = (String, [f64; 2], fn(f64) -> String);

/// The numbers that both reports have. Seconds are left out if they are too short to be compared.
fn rows(measured: &Report, planned: &Report) -> Vec<Row> {
    let seconds: fn(f64) -> String = |x| format!("{x:.2} s");
    let memory: fn(f64) -> String = |x| bytes(x as u64);
    let phases: [OfPhase; 3] =
        [("offline", |p| &p.offline), ("prefill", |p| &p.prefill), ("decode", |p| &p.decode.total)];
    let kinds: [OfCost; 3] = [
        ("wall", |c| c.seconds),
        ("client CPU", |c| c.cpu_seconds),
        ("server CPU", |c| c.peer_cpu_seconds.unwrap_or(0.0)),
    ];
    let mut rows: Vec<Row> = Vec::new();
    for (phase, cost) in phases {
        for (kind, of) in kinds {
            let pair = [measured, planned].map(|report| of(cost(&report.phases)));
            if pair[0] >= LEAST_SECONDS {
                rows.push((format!("{phase}, {kind}"), pair, seconds));
            }
        }
    }
    for (kind, of) in kinds {
        let all = |report: &Report| phases.iter().map(|(_, cost)| of(cost(&report.phases))).sum();
        let pair = [measured, planned].map(all);
        if pair[0] >= LEAST_SECONDS {
            rows.push((format!("all, {kind}"), pair, seconds));
        }
    }
    let peak = [measured, planned].map(|report| report.peak_memory_bytes);
    for (party, of) in [("client", peak.map(|p| p.client)), ("server", peak.map(|p| p.server))] {
        if let [Some(measured), Some(planned)] = of {
            rows.push((format!("{party} memory"), [measured as f64, planned as f64], memory));
        }
    }
    rows
}

/// The plan of the session that `measured` reports.
fn plan_again(measured: &Report, calibrated: &Calibrated) -> Result<Report, waggle::Error> {
    let unknown = OptionsError::Unplannable;
    let option = |name: &str| measured.options.get(name);
    let count = |name: &str| option(name).and_then(Value::as_u64).map(|count| count as usize);
    let flag = |name: &str| option(name).and_then(Value::as_bool).unwrap_or(false);
    let link = option("link").and_then(Value::as_str).and_then(|link| link.parse::<Network>().ok());
    let link = link.ok_or(unknown("link"))?;
    // The number of tokens that each pass kept is a fact of the run and not a prediction.
    if measured.draft.is_some() {
        return Err(unknown("draft").into());
    }
    let disclosed = match option("public") {
        Some(disclosed) => Disclosed::deserialize(disclosed).map_err(|_| unknown("public"))?,
        None => Disclosed::default(),
    };
    let model = PublicModel::of_shape(measured.model.name.clone(), measured.model.config.clone(), disclosed)?;
    let terms = Terms::of_report(measured)?.over(link)?;
    if terms.protocol.cores != calibrated.machines.cores() {
        return Err(unknown("cores, which are not those of the calibration").into());
    }
    Plan::default()
        .prompt(count("padded_prompt").unwrap_or(measured.prompt_tokens))
        .texts(count("texts").unwrap_or(1))
        .tokens(count("tokens").ok_or(unknown("tokens"))?)
        .stop_at_eos(flag("stop_at_eos"))
        .pad_answer(flag("pad_answer"))
        .pad_prompt(option("padded_prompt").is_some_and(|length| !length.is_null()))
        .network(link)
        .machines(calibrated.machines.clone())
        .run_for(&model, &terms, || 2 * measured.model.parameters as u64, &mut nobody)
}
