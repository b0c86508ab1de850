//! From an outcome to a report and its tables.

use model::{Check, Drafts};
use net::Shape;
use planner::Footprint;
use report::table::{Document, Format, Table};
use report::{Cost, DraftReport, ModelInfo, PeakMemory, Phases, Report, Seconds, bytes};
use serde_json::Value;
use session::party::{Outcome, PublicModel, Terms};
use tokenizer::Tokenizer;

use super::machine::provenance;
use super::options::{OperationsArgs, reported};
use super::{Error, out};

/// The report of a run of `model` under `terms`; `options` are what else was chosen.
pub(super) fn report<'a>(
    model: &PublicModel,
    tokenizer: Option<&Tokenizer>,
    prompt_tokens: usize,
    outcome: &Outcome,
    terms: &Terms,
    options: impl IntoIterator<Item = (&'a str, Value)>,
) -> Result<Report, Error> {
    let mut report = Report::new(ModelInfo::new(&model.name, &model.spec));
    report.provenance = provenance();
    report.options = options.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    report.options.extend(reported(terms));
    report.prompt_tokens = prompt_tokens;
    report.tokens = outcome.generation.tokens.clone();
    report.text = tokenizer.map(|tokenizer| tokenizer.decode(&report.tokens)).transpose()?;
    report.wire = outcome.wire;
    report.draft = outcome.draft.map(|draft| drafted(draft, outcome.generation.passes.clone()));
    report.set_costs(outcome.entries.clone(), outcome.kinds.clone(), outcome.per_token.clone());
    Ok(report)
}

/// What `draft` did in `passes`.
fn drafted(draft: Drafts, passes: Vec<usize>) -> DraftReport {
    let tokens_per_pass = passes.iter().sum::<usize>() as f64 / passes.len().max(1) as f64;
    DraftReport { guesses: draft.tokens(), rate: draft.rate(), passes, tokens_per_pass }
}

/// Puts the time that `shape` alone would take in the place of the seconds: bytes at its rate, half a round trip for
/// every flow.
pub(super) fn predict_seconds(report: &mut Report, shape: Option<Shape>) {
    let time = |to_server: u64, to_client: u64, flows: u64| {
        shape.map_or(0.0, |shape| shape.predict([to_server, to_client], flows).as_secs_f64())
    };
    report.seconds_are = Some(Seconds::Network);
    for cost in report.phases.costs_mut() {
        cost.seconds = time(cost.bytes_client_to_server, cost.bytes_server_to_client, cost.flows);
    }
    for op in report.operations_mut() {
        op.seconds = time(op.bytes_client_to_server, op.bytes_server_to_client, op.flows);
    }
}

/// Puts in what a calibration says: the times of the plan as they are, the memory of both processes, and the mark of
/// an estimate. `base` are bytes of a process without a model, `mapped` those of the weights.
pub(super) fn set_estimates(report: &mut Report, footprint: Footprint, base: [u64; 2], mapped: u64) {
    for name in ["seconds", "cpu_seconds", "peer_cpu_seconds", "peak_memory_bytes"].map(String::from) {
        if !report.estimated.contains(&name) {
            report.estimated.push(name);
        }
    }
    report.seconds_are = Some(Seconds::Predicted);
    for cost in report.phases.costs_mut() {
        cost.peer_cpu_seconds.get_or_insert(0.0);
    }
    for operation in report.operations_mut() {
        operation.peer_cpu_seconds.get_or_insert(0.0);
    }
    let [client, server] = base;
    report.peak_memory_bytes = PeakMemory {
        client: Some(client + footprint.client),
        server: Some(server + footprint.server + mapped),
        mapped: Some(mapped),
    };
}

/// What a session took, in one line.
pub(super) fn cost_line(outcome: &Outcome) -> String {
    let phases = Phases::new(&outcome.entries, Vec::new());
    let [setup, offline, prefill, decode] = [phases.setup, phases.offline, phases.prefill, phases.decode.total];
    let all = [setup, offline, prefill, decode];
    let sum = |of: fn(&Cost) -> u64| all.iter().map(of).sum::<u64>();
    let [up, down] = [sum(|cost| cost.bytes_client_to_server), sum(|cost| cost.bytes_server_to_client)].map(bytes);
    let (flows, seconds) = (sum(|cost| cost.flows), all.iter().map(|cost| cost.seconds).sum::<f64>());
    let online = prefill.seconds + decode.seconds;
    let tokens = outcome.generation.count;
    let rate = tokens as f64 / online.max(1e-9);
    format!(
        "{up} to the server, {down} back, {flows} flows, {seconds:.1} s; {tokens} tokens in {online:.1} s online, \
         {rate:.2} tokens/s"
    )
}

/// Phases and the costliest `operations`, as text.
pub(super) fn tables(report: &Report, operations: &OperationsArgs) -> String {
    let tables = costs(report, operations).into_iter();
    let tables: Vec<_> = tables.map(|(_, table)| table.render(Format::Terminal, out::error_width())).collect();
    about(report) + &tables.join("\n")
}

/// The tables of a report by name. Whoever asks for all operations also sees what was prepared, by kind.
fn costs(report: &Report, operations: &OperationsArgs) -> Vec<(&'static str, Table)> {
    let kinds = report.preparation_table().filter(|_| operations.all());
    let mut tables = vec![("phases", report.phase_table()), ("operations", report.operation_table(operations.rows))];
    tables.extend(kinds.map(|table| ("preparation by kind", table)));
    tables
}

/// What stands before the tables of a report.
fn about(report: &Report) -> String {
    memory(report) + &guessed(report)
}

/// A plan in `format` for standard output; `notes` stand before its tables.
pub(super) fn planned(report: &Report, operations: &OperationsArgs, notes: &[String], format: Format) -> String {
    let mut document = Document::default();
    for note in notes {
        document.note(note);
    }
    about(report).lines().for_each(|line| document.note(line));
    costs(report, operations).into_iter().for_each(|(name, table)| document.table(name, table));
    document.render(format, out::width())
}

/// One line on what guesses did in `passes`.
pub(super) fn guesses(passes: &[usize]) -> String {
    let kept: usize = passes.iter().sum();
    let mean = kept as f64 / passes.len().max(1) as f64;
    format!("with guesses: {kept} tokens in {} passes, {mean:.2} a pass", passes.len())
}

/// The same of a run, if there were guesses.
fn guessed(report: &Report) -> String {
    let run = report.draft.as_ref().filter(|_| !report.predicted);
    run.map_or_else(String::new, |draft| guesses(&draft.passes) + "\n")
}

/// One line on the memory that a plan expects.
fn memory(report: &Report) -> String {
    match report.peak_memory_bytes {
        PeakMemory { client: Some(client), server: Some(server), mapped: Some(mapped) } => {
            let own = server.saturating_sub(mapped);
            let [client, own, mapped] = [client, own, mapped].map(bytes);
            format!("memory at the most: client {client}, server {own} and {mapped} of mapped weights\n")
        }
        _ => String::new(),
    }
}

/// A line on each comparison with the plaintext engine, if there was one.
pub(super) fn verdict(report: &Report) -> Option<String> {
    let Some(full) = &report.against_full_cache else {
        return report.check.as_ref().map(|check| compared("plaintext engine", check));
    };
    let same = report.check.as_ref().map(|check| compared("plaintext engine, same policy", check));
    let lines = same.into_iter().chain([compared("plaintext engine, full cache", full)]);
    Some(lines.collect::<Vec<_>>().join("\n"))
}

/// A line on `check`.
pub(super) fn compared(with: &str, check: &Check) -> String {
    let mut line = format!("{with}: {:.1} % of the tokens agree", check.token_agreement * 100.0);
    if let Some(error) = check.max_abs_logit_error {
        line += &format!(", largest logit error {error:.5}");
    }
    if let Some(margin) = check.largest_margin_missed {
        line += &format!(", clearest disagreement at a margin of {margin:.5}");
    }
    if check.close_choices > 0 {
        line += &format!("; choices of the policy within rounding noise: {}", check.close_choices);
    }
    line
}
