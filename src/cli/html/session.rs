//! The page of a session.

use model::Check;
use report::{Cost, Report, Wire, bytes};
use serde_json::Value;

use super::entries;
use super::page::{Block, Page, Rows, Section};
use crate::cli::plot;

/// Operations in the open table; all of them are in the folded one.
const OPERATIONS: usize = 15;

pub(super) fn page(name: &str, report: &Report, json: &Value) -> Page {
    let scenes = plot::of_session(report);
    let drawings = |start: &'static str| {
        scenes.iter().filter(move |(name, _)| name.starts_with(start)).map(|(_, scene)| Block::drawing(scene))
    };
    let policy = report.options.get("policy").and_then(Value::as_str).unwrap_or("full");
    let title = format!("{} · {policy}", report.model.name);
    let sections = [
        Section::new("Timeline", drawings("timeline")),
        Section::new("Phases", [Block::Text(PHASES.into()), Block::Table(Rows::from(&report.phase_table()))]),
        Section::new(
            "Operations",
            drawings("operations").chain([Block::Table(Rows::from(&report.operation_table(OPERATIONS)))]).chain([
                Block::Folded {
                    name: format!("All {} operations, layer by layer", report.operations.len()),
                    table: operations(report),
                },
            ]),
        ),
        Section::new("Preparation by kind of correlation", kinds(report)),
        Section::new("Tokens", tokens(report).into_iter().chain(drawings("tokens")).chain(token_table(report))),
        Section::new("Text", report.text.iter().map(|text| Block::Quote(text.clone()))),
        Section::new("Against the plaintext model", checks(report)),
        Section::new("Guesses", guesses(report)),
        Section::new("Bytes on the wire and memory", resources(report)),
        Section::new("What ran", ran(report, json)),
    ];
    Page {
        kind: if report.predicted { "Waggle: plan of a session" } else { "Waggle: report of a session" },
        title,
        lead: format!("{name}: prompt of {} tokens, {}", report.prompt_tokens, generated(report)),
        cards: cards(report),
        sections: sections.into_iter().flatten().collect(),
        footer: format!(
            "Schema {} of reports. Bytes and flows are the same at both parties; seconds and CPU seconds are those of the \
             party that wrote the report.",
            report.version
        ),
    }
}

const PHASES: &str = "Setup: handshake, keys, base OTs. Offline: what does not depend on the words. Prefill: the prompt \
                      and the first token. Decode: all further tokens.";

const KINDS: &str = "A second view of what was made ahead. Batches of one kind serve many operations; the operations above \
                     have it by what it is for, divided in proportion to what each takes.";

fn generated(report: &Report) -> String {
    match report.phases.decode.per_token.len() {
        0 if report.predicted => "planned".into(),
        n => format!("{} generated", n + 1),
    }
}

fn cards(report: &Report) -> Vec<(String, String)> {
    let phases = &report.phases;
    let all = [&phases.setup, &phases.offline, &phases.prefill, &phases.decode.total];
    let sum = |of: fn(&Cost) -> u64| all.iter().map(|cost| of(cost)).sum::<u64>();
    let seconds: f64 = all.iter().map(|cost| cost.seconds).sum();
    let clock = report.seconds().name();
    let mut cards = vec![
        ("client to server".to_owned(), bytes(sum(|cost| cost.bytes_client_to_server))),
        ("server to client".to_owned(), bytes(sum(|cost| cost.bytes_server_to_client))),
        ("flows".to_owned(), sum(|cost| cost.flows).to_string()),
    ];
    if seconds > 0.0 {
        cards.push((format!("in all, {clock}"), time(seconds)));
    }
    let decoded = phases.decode.per_token.len();
    if decoded > 0 {
        let n = decoded as f64;
        let total = &phases.decode.total;
        let both = total.bytes_client_to_server + total.bytes_server_to_client;
        cards.push(("a decoded token, online".into(), bytes((both as f64 / n) as u64)));
        if total.seconds > 0.0 {
            cards.push((format!("a decoded token, online, {clock}"), time(total.seconds / n)));
        }
    }
    if let Some(check) = &report.check {
        cards.push(("tokens agree with plaintext".into(), format!("{:.1} %", check.token_agreement * 100.0)));
    }
    cards
}

/// A time with three digits.
fn time(seconds: f64) -> String {
    match seconds {
        s if s < 0.9995e-3 => format!("{:.0} µs", s * 1e6),
        s if s < 0.9995 => format!("{:.0} ms", s * 1e3),
        s if s < 99.95 => format!("{s:.2} s"),
        s => format!("{s:.0} s"),
    }
}

fn kinds(report: &Report) -> Vec<Block> {
    let Some(table) = report.preparation_table() else { return Vec::new() };
    vec![Block::Text(KINDS.into()), Block::Table(Rows::from(&table))]
}

fn operations(report: &Report) -> Rows {
    let clock = report.seconds().name();
    let head =
        ["phase", "operation", "client to server", "server to client", "flows", &format!("{clock} s"), "CPU seconds"];
    let rows = report.operations.iter().map(|op| {
        vec![
            format!("{:?}", op.phase).to_lowercase(),
            op.path.clone(),
            bytes(op.bytes_client_to_server),
            bytes(op.bytes_server_to_client),
            op.flows.to_string(),
            format!("{:.4}", op.seconds),
            format!("{:.4}", op.cpu_seconds),
        ]
    });
    Rows { head: head.map(String::from).to_vec(), rows: rows.collect() }
}

fn tokens(report: &Report) -> Vec<Block> {
    let costs = &report.phases.decode.per_token;
    if costs.is_empty() || report.predicted {
        return Vec::new();
    }
    let mut seconds: Vec<f64> = costs.iter().map(|cost| cost.seconds).collect();
    seconds.sort_by(f64::total_cmp);
    let (least, most) = (seconds[0], seconds[seconds.len() - 1]);
    let median = seconds[seconds.len() / 2];
    let line = format!("{} decoded tokens: median {}, {} to {}.", costs.len(), time(median), time(least), time(most));
    vec![Block::Text(line)]
}

fn token_table(report: &Report) -> Option<Block> {
    let costs = &report.phases.decode.per_token;
    let clock = report.seconds().name();
    let head = ["token", "client to server", "server to client", "flows", &format!("{clock} s"), "CPU seconds"];
    let row = |(i, cost): (usize, &Cost)| {
        vec![
            (i + 2).to_string(),
            bytes(cost.bytes_client_to_server),
            bytes(cost.bytes_server_to_client),
            cost.flows.to_string(),
            format!("{:.4}", cost.seconds),
            format!("{:.4}", cost.cpu_seconds),
        ]
    };
    let rows: Vec<Vec<String>> = costs.iter().enumerate().map(row).collect();
    let table = Rows { head: head.map(String::from).to_vec(), rows };
    (!costs.is_empty()).then(|| Block::Folded { name: "Every token".into(), table })
}

fn checks(report: &Report) -> Vec<Block> {
    let compared = |name: &str, check: &Check| {
        let number = |value: Option<f32>| value.map_or_else(|| "–".into(), |value| format!("{value:.5}"));
        vec![
            name.to_owned(),
            format!("{:.1} %", check.token_agreement * 100.0),
            number(check.max_abs_logit_error),
            number(check.largest_margin_missed),
        ]
    };
    let same =
        report.check.as_ref().map(|check| compared("under the same policy: what the protocols changed", check));
    let full = report.against_full_cache.as_ref();
    let full = full.map(|check| compared("with the full cache: what pruning changed as well", check));
    let rows: Vec<Vec<String>> = same.into_iter().chain(full).collect();
    if rows.is_empty() {
        return Vec::new();
    }
    let head = ["plaintext model", "tokens agree", "largest logit error", "clearest disagreement (margin)"];
    vec![Block::Table(Rows { head: head.map(String::from).to_vec(), rows })]
}

fn guesses(report: &Report) -> Vec<Block> {
    let Some(draft) = &report.draft else { return Vec::new() };
    let assumed = if report.predicted { " (assumed)" } else { "" };
    let mut pairs = vec![
        ("guesses of a pass".to_owned(), draft.guesses.to_string()),
        ("tokens a pass".to_owned(), format!("{:.2}{assumed}", draft.tokens_per_pass)),
        ("tokens a pass, prepared for".to_owned(), format!("{:.2}", draft.rate)),
    ];
    let passes: Vec<String> = draft.passes.iter().map(usize::to_string).collect();
    pairs.extend((!passes.is_empty()).then(|| ("kept by each pass".to_owned(), passes.join(" "))));
    vec![Block::Pairs(pairs)]
}

fn resources(report: &Report) -> Vec<Block> {
    let mut pairs = Vec::new();
    if let Some(Wire { encrypted, bytes_sent, bytes_received }) = report.wire {
        pairs.push(("link".to_owned(), if encrypted { "encrypted (TLS 1.3)" } else { "not encrypted" }.to_owned()));
        pairs.push(("sent by the writer of the report".into(), bytes(bytes_sent)));
        pairs.push(("received".into(), bytes(bytes_received)));
    }
    let memory = &report.peak_memory_bytes;
    let peaks = [
        ("peak memory of the client", memory.client),
        ("peak memory of the server", memory.server),
        ("of these, mapped weights", memory.mapped),
    ];
    pairs.extend(peaks.into_iter().filter_map(|(name, peak)| Some((name.to_owned(), bytes(peak?)))));
    if pairs.is_empty() { Vec::new() } else { vec![Block::Pairs(pairs)] }
}

fn ran(report: &Report, json: &Value) -> Vec<Block> {
    let mut pairs = vec![
        ("model".to_owned(), report.model.name.clone()),
        ("parameters".to_owned(), report.model.parameters.to_string()),
    ];
    pairs.extend(report.kernels.iter().map(|kernels| ("kernels".to_owned(), kernels.clone())));
    pairs.extend(entries(json.get("options")));
    if !report.estimated.is_empty() {
        pairs.push(("estimated fields".into(), report.estimated.join(", ")));
    }
    pairs.extend(entries(json.get("provenance")));
    vec![Block::Pairs(pairs)]
}
