//! What a run did and what it cost: one JSON document, from which all tables and plots are made.

use std::collections::BTreeMap;

use comfy_table::{CellAlignment, Table, presets};
use net::{Entry, Phase, Traffic};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Check, ModelSpec};

/// Version of the report's schema; raised when a field changes its meaning or goes.
pub const REPORT_VERSION: u32 = 1;

/// The report of one generation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`REPORT_VERSION`].
    pub version: u32,
    /// Whether the costs were computed from shapes instead of measured.
    pub predicted: bool,
    /// Fields whose numbers are estimates, by name (for example `seconds`); all others are exact.
    pub estimated: Vec<String>,
    /// The model.
    pub model: ModelInfo,
    /// Everything that was chosen for the run, by name.
    pub options: BTreeMap<String, Value>,
    /// Number of prompt tokens.
    pub prompt_tokens: usize,
    /// Generated ids.
    pub tokens: Vec<u32>,
    /// Their text, if there is a tokenizer.
    pub text: Option<String>,
    /// Cost by phase.
    pub phases: Phases,
    /// Cost by phase and operation path.
    pub operations: Vec<Operation>,
    /// Largest resident memory of each party's process.
    pub peak_memory_bytes: PeakMemory,
    /// Comparison with the plaintext engine, if it was asked for: its fields stand at the top level.
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub check: Option<Check>,
}

/// The model of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelInfo {
    /// Name of its directory, or its bundled name.
    pub name: String,
    /// Number of parameters.
    pub parameters: usize,
    /// Its public shape.
    pub config: ModelSpec,
}

impl ModelInfo {
    /// Name and shape of a model.
    pub fn new(name: &str, config: &ModelSpec) -> Self {
        ModelInfo { name: name.into(), parameters: config.parameters(), config: config.clone() }
    }
}

/// What something cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Bytes from client to server, framing included.
    pub bytes_client_to_server: u64,
    /// Bytes from server to client, framing included.
    pub bytes_server_to_client: u64,
    /// Changes of direction.
    pub flows: u64,
    /// Wall-clock time.
    pub seconds: f64,
    /// CPU time of this party's process.
    pub cpu_seconds: f64,
}

impl From<Traffic> for Cost {
    fn from(t: Traffic) -> Self {
        Cost {
            bytes_client_to_server: t.bytes_client_to_server,
            bytes_server_to_client: t.bytes_server_to_client,
            flows: t.flows,
            seconds: t.time.as_secs_f64(),
            cpu_seconds: t.cpu.as_secs_f64(),
        }
    }
}

/// Cost by phase.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phases {
    /// Handshake, keys, base OTs.
    pub setup: Cost,
    /// Correlations that do not depend on the data.
    pub offline: Cost,
    /// The prompt and the first token.
    pub prefill: Cost,
    /// All tokens after the first.
    pub decode: DecodeCost,
}

/// Cost of the tokens after the first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DecodeCost {
    /// Their sum.
    #[serde(flatten)]
    pub total: Cost,
    /// Each of them, without what was booked under `offline` meanwhile.
    pub per_token: Vec<Cost>,
}

/// Cost of one operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    /// Phase in which it was needed.
    pub phase: Phase,
    /// Path of scopes, for example `layer 3/attention/softmax`.
    pub path: String,
    /// Bytes from client to server, framing included.
    pub bytes_client_to_server: u64,
    /// Bytes from server to client, framing included.
    pub bytes_server_to_client: u64,
    /// Changes of direction.
    pub flows: u64,
    /// Wall-clock time in this scope, inner scopes excluded.
    pub seconds: f64,
}

impl From<Entry> for Operation {
    fn from(Entry { phase, path, traffic }: Entry) -> Self {
        Operation {
            phase,
            path,
            bytes_client_to_server: traffic.bytes_client_to_server,
            bytes_server_to_client: traffic.bytes_server_to_client,
            flows: traffic.flows,
            seconds: traffic.time.as_secs_f64(),
        }
    }
}

/// Largest resident memory, where the system tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeakMemory {
    /// The client's process.
    pub client: Option<u64>,
    /// The server's process.
    pub server: Option<u64>,
}

/// Splits the decode phase into tokens.
#[derive(Clone, Debug, Default)]
pub struct TokenMeter {
    before: Traffic,
    costs: Vec<Cost>,
}

impl TokenMeter {
    /// A token is done and the account of the decode phase now stands at `decode`.
    pub fn token(&mut self, decode: Traffic) {
        self.costs.push(decode.since(&self.before).into());
        self.before = decode;
    }

    /// One cost per token.
    pub fn into_costs(self) -> Vec<Cost> {
        self.costs
    }
}

impl Phases {
    /// Sums the accounts of a ledger (or of a plan) by phase.
    pub fn new(entries: &[Entry], per_token: Vec<Cost>) -> Self {
        let total = |phase: Phase| {
            let mut sum = Traffic::default();
            entries.iter().filter(|e| e.phase == phase).for_each(|e| sum.add(&e.traffic));
            Cost::from(sum)
        };
        Phases {
            setup: total(Phase::Setup),
            offline: total(Phase::Offline),
            prefill: total(Phase::Prefill),
            decode: DecodeCost { total: total(Phase::Decode), per_token },
        }
    }
}

impl Report {
    /// An empty report of a run of `model`.
    pub fn new(model: ModelInfo) -> Self {
        Report {
            version: REPORT_VERSION,
            predicted: false,
            estimated: Vec::new(),
            model,
            options: BTreeMap::new(),
            prompt_tokens: 0,
            tokens: Vec::new(),
            text: None,
            phases: Phases::default(),
            operations: Vec::new(),
            peak_memory_bytes: PeakMemory::default(),
            check: None,
        }
    }

    /// Fills phases and operations from the accounts of a ledger or a plan.
    pub fn set_costs(&mut self, entries: Vec<Entry>, per_token: Vec<Cost>) {
        self.phases = Phases::new(&entries, per_token);
        self.operations = entries.into_iter().map(Operation::from).collect();
    }

    /// The cost by phase, for a terminal.
    pub fn phase_table(&self) -> Table {
        let mut table = table(&["phase", "client to server", "server to client", "flows", "seconds", "cpu seconds"]);
        let Phases { setup, offline, prefill, decode } = &self.phases;
        for (name, cost) in [("setup", setup), ("offline", offline), ("prefill", prefill), ("decode", &decode.total)]
        {
            table.add_row(cost_row(name.into(), cost));
        }
        if !decode.per_token.is_empty() {
            let n = decode.per_token.len() as u64;
            let mean = Cost {
                bytes_client_to_server: decode.total.bytes_client_to_server / n,
                bytes_server_to_client: decode.total.bytes_server_to_client / n,
                flows: decode.total.flows / n,
                seconds: decode.total.seconds / n as f64,
                cpu_seconds: decode.total.cpu_seconds / n as f64,
            };
            table.add_row(cost_row("per decoded token".into(), &mean));
        }
        right_align(table)
    }

    /// The `limit` operations that moved the most bytes, all layers together, for a terminal.
    pub fn operation_table(&self, limit: usize) -> Table {
        let mut sums: BTreeMap<(Phase, String), Cost> = BTreeMap::new();
        for op in &self.operations {
            let sum = sums.entry((op.phase, any_layer(&op.path))).or_default();
            sum.bytes_client_to_server += op.bytes_client_to_server;
            sum.bytes_server_to_client += op.bytes_server_to_client;
            sum.flows += op.flows;
            sum.seconds += op.seconds;
        }
        let mut rows: Vec<_> = sums.into_iter().filter(|(_, cost)| cost.flows > 0).collect();
        rows.sort_by_key(|(_, c)| std::cmp::Reverse(c.bytes_client_to_server + c.bytes_server_to_client));
        let mut table = table(&["operation", "client to server", "server to client", "flows", "seconds"]);
        for ((phase, path), cost) in rows.into_iter().take(limit) {
            let mut row = cost_row(format!("{} {path}", name(phase)), &cost);
            row.pop();
            table.add_row(row);
        }
        right_align(table)
    }
}

/// `layer 3/attention` -> `layer */attention`.
fn any_layer(path: &str) -> String {
    let parts = path.split('/').map(|part| match part.strip_prefix("layer ") {
        Some(number) if number.bytes().all(|b| b.is_ascii_digit()) => "layer *",
        _ => part,
    });
    parts.collect::<Vec<_>>().join("/")
}

fn name(phase: Phase) -> &'static str {
    match phase {
        Phase::Setup => "setup",
        Phase::Offline => "offline",
        Phase::Prefill => "prefill",
        Phase::Decode => "decode",
    }
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY).set_header(header);
    table
}

fn right_align(mut table: Table) -> Table {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn cost_row(name: String, cost: &Cost) -> Vec<String> {
    vec![
        name,
        bytes(cost.bytes_client_to_server),
        bytes(cost.bytes_server_to_client),
        cost.flows.to_string(),
        format!("{:.3}", cost.seconds),
        format!("{:.3}", cost.cpu_seconds),
    ]
}

/// Bytes in decimal units, as networks count.
fn bytes(n: u64) -> String {
    match n {
        0..1_000 => format!("{n} B"),
        1_000..1_000_000 => format!("{:.2} kB", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} MB", n as f64 / 1e6),
        _ => format!("{:.2} GB", n as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use net::{Direction, Ledger};
    use serde_json::json;

    /// Two decode steps over two layers, 100 bytes there and 7 back each.
    fn report() -> Report {
        let mut ledger = Ledger::default();
        let mut meter = TokenMeter::default();
        ledger.book(Direction::ClientToServer, 5);
        for phase in [Phase::Prefill, Phase::Decode, Phase::Decode] {
            ledger.set_phase(phase);
            for layer in ["layer 0", "layer 1"] {
                ledger.enter(layer);
                ledger.enter("softmax");
                ledger.book(Direction::ClientToServer, 100);
                ledger.book(Direction::ServerToClient, 7);
                ledger.leave();
                ledger.leave();
            }
            if phase == Phase::Decode {
                ledger.checkpoint();
                meter.token(ledger.phase_total(Phase::Decode));
            }
        }
        let spec = ModelSpec::from_config_json(br#"{"model_type": "gpt2"}"#).unwrap();
        let mut report = Report::new(ModelInfo::new("small", &spec));
        report.set_costs(ledger.entries(), meter.into_costs());
        report
    }

    #[test]
    fn json_has_the_promised_fields_and_comes_back_equal() {
        let mut report = report();
        report.check =
            Some(Check { max_abs_logit_error: Some(0.25), token_agreement: 1.0, largest_margin_missed: None });
        let json = serde_json::to_value(&report).unwrap();
        for key in [
            "prompt_tokens",
            "tokens",
            "text",
            "model",
            "options",
            "operations",
            "max_abs_logit_error",
            "token_agreement",
        ] {
            assert!(json.get(key).is_some(), "{key}");
        }
        let five = ["bytes_client_to_server", "bytes_server_to_client", "flows", "seconds", "cpu_seconds"];
        for phase in ["setup", "offline", "prefill", "decode"] {
            assert!(five.iter().all(|key| json["phases"][phase][key].is_number()), "{phase}");
        }
        assert_eq!(json["phases"]["prefill"]["bytes_client_to_server"], 200);
        assert_eq!(json["phases"]["setup"]["bytes_client_to_server"], 5);
        let per_token = json["phases"]["decode"]["per_token"].as_array().unwrap();
        assert_eq!(per_token.len(), 2);
        for token in per_token {
            assert!(five.iter().all(|key| token[key].is_number()));
            assert_eq!(
                (&token["bytes_client_to_server"], &token["bytes_server_to_client"]),
                (&json!(200), &json!(14))
            );
            assert_eq!(token["flows"], 4);
        }
        assert!(json["peak_memory_bytes"].get("client").is_some());
        // GPT-2 small as counted by its authors, without the tied head.
        assert_eq!(json["model"]["parameters"], 124_439_808);
        assert_eq!(serde_json::from_value::<Report>(json).unwrap(), report);
        let without = Report { check: None, ..report };
        let json = serde_json::to_value(&without).unwrap();
        assert!(json.get("token_agreement").is_none());
        assert_eq!(serde_json::from_value::<Report>(json).unwrap(), without);
    }

    #[test]
    fn tables_sum_over_layers() {
        let report = report();
        let phases = report.phase_table().to_string();
        assert!(phases.contains("per decoded token") && phases.contains("400 B"), "{phases}");
        let operations = report.operation_table(10).to_string();
        assert!(operations.contains("decode layer */softmax") && !operations.contains("layer 1"), "{operations}");
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(37_000_000), "37.00 MB");
    }
}
