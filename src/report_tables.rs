//! Tables and lines of a report.

use std::path::Path;

use serde_json::json;
use waggle::{Generated, OptionsError};
use waggle_files::write_json;
use waggle_model::Check;
use waggle_report::table::{Document, Format, Table};
use waggle_report::{Cost, PeakMemory, Price, Report, bytes};

use super::options::OperationsArgs;
use super::{Error, out};

/// The cost of a session, in one line.
pub(super) fn cost_line(generated: &Generated) -> String {
    let phases = &generated.report.phases;
    let Cost { bytes_client_to_server, bytes_server_to_client, flows, seconds, .. } = phases.total();
    let [up, down] = [bytes_client_to_server, bytes_server_to_client].map(bytes);
    let online = phases.prefill.seconds + phases.decode.total.seconds;
    let tokens = generated.count();
    let blind = generated.report.options.get("reveal").is_some_and(|reveal| reveal == "token");
    let revealed = if blind { ", no logits" } else { "" };
    let rate = tokens as f64 / online.max(1e-9);
    format!(
        "{up} to the server, {down} back, {flows} flows, {seconds:.1} s; {tokens} tokens in {online:.1} s online, \
         {rate:.2} tokens/s{revealed}"
    )
}

/// Writes the logits that a client learned, with the tokens that were picked.
pub(super) fn write_logits(path: Option<&Path>, generated: &Generated) -> Result<(), Error> {
    let Some(path) = path else { return Ok(()) };
    let logits = generated.logits().ok_or(waggle::Error::from(OptionsError::NoLogits))?;
    Ok(write_json(path, &json!({ "tokens": generated.report.tokens, "logits": logits }))?)
}

/// Phases and the costliest `operations`, as text.
pub(super) fn tables(report: &Report, operations: &OperationsArgs, price: &Price) -> String {
    document(report, operations, price, &[]).render(Format::Terminal, out::error_width())
}

/// The tables of a report by name. With all operations, preparation by kind of correlation is shown too.
fn costs(report: &Report, operations: &OperationsArgs, price: &Price) -> Vec<(&'static str, Table)> {
    let kinds = report.preparation_table(price).filter(|_| operations.all());
    let phases = ("phases", report.phase_table(price));
    let mut tables = vec![phases, ("operations", report.operation_table(operations.rows, price))];
    tables.extend(kinds.map(|table| ("preparation by kind", table)));
    tables
}

/// The lines before the tables of a report.
fn about(report: &Report) -> String {
    let run = report.draft.as_ref().filter(|_| !report.predicted);
    let guessed = run.map_or_else(String::new, |draft| guesses(&draft.passes) + "\n");
    format!("{}{guessed}{}flows: one-way messages; two flows = one round trip\n", memory(report), dealt(report))
}

/// A line on the helper's traffic for decoded tokens. The table of phases has rows for the helper's links.
fn dealt(report: &Report) -> String {
    let links = report.helper.iter().flat_map(|links| [links.client, links.server]).flatten();
    match links.map(|link| link.bytes_decoding).sum() {
        0 => String::new(),
        all => format!("of the helper's bytes {} are for decoded tokens\n", bytes(all)),
    }
}

/// A report as tables, with `notes` before them.
pub(super) fn document(report: &Report, operations: &OperationsArgs, price: &Price, notes: &[String]) -> Document {
    let mut document = Document::default();
    for note in notes {
        document.note(note);
    }
    about(report).lines().for_each(|line| document.note(line));
    costs(report, operations, price).into_iter().for_each(|(name, table)| document.table(name, table));
    document
}

pub(super) fn guesses(passes: &[usize]) -> String {
    let kept: usize = passes.iter().sum();
    let mean = kept as f64 / passes.len().max(1) as f64;
    format!("with guesses: {kept} tokens in {} passes, {mean:.2} a pass", passes.len())
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

/// A line on each comparison with the plaintext engine; `None` if there was no comparison.
pub(super) fn verdict(report: &Report) -> Option<String> {
    let Some(full) = &report.against_full_cache else {
        return report.check.as_ref().map(|check| compared("plaintext engine", check));
    };
    let same = report.check.as_ref().map(|check| compared("plaintext engine, same policy", check));
    let lines = same.into_iter().chain([compared("plaintext engine, full cache", full)]);
    Some(lines.collect::<Vec<_>>().join("\n"))
}

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
