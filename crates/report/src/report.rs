//! The report of a run: its results and its costs. It is one JSON document, from which all tables and plots are made.
//!
//! One party writes a report. Bytes and flows are the same at both parties; `seconds` and `cpu_seconds` are the
//! writer's own. `peer_cpu_seconds` are the CPU seconds of the other party's process, if the writer started that
//! process itself (`waggle demo` over TCP). Otherwise compare both parties' reports, phase by phase and path by path.
//! If both parties are in one process, `cpu_seconds` is their sum.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use waggle_net::{Entry, Phase};

use crate::Price;
use crate::conditions::{CONDITIONS, conditions};
use crate::cost::{Cost, Operation, Phases, add_peer_cpu, by_operation, phase_name};
use crate::provenance::Provenance;
pub use crate::table::bytes;
use waggle_model::{Check, ModelSpec};

use crate::table::{Cell, Table};

/// Version of the report's schema. It is raised when a field is removed or its meaning changes.
pub const REPORT_VERSION: u32 = 1;

/// The report of one generation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`REPORT_VERSION`].
    pub version: u32,
    /// The origin of the report. Reports that are older than the field have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Provenance>,
    /// Whether the costs were computed from shapes instead of measured.
    pub predicted: bool,
    /// Fields whose numbers are estimates, by name (for example `seconds`); all others are exact.
    pub estimated: Vec<String>,
    /// The kind of time in all `seconds`. Reports that are older than the field have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_are: Option<Seconds>,
    /// The model.
    pub model: ModelInfo,
    /// Every option of the run, by name.
    pub options: BTreeMap<String, Value>,
    /// Number of prompt tokens.
    pub prompt_tokens: usize,
    /// Ids of the generated tokens.
    pub tokens: Vec<u32>,
    /// Text of the tokens, if there is a tokenizer.
    pub text: Option<String>,
    /// The texts, if a decoder generated several side by side. Then there is no `text`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub texts: Option<Vec<String>>,
    /// The cost of each phase.
    pub phases: Phases,
    /// The cost of each operation, by phase and path.
    pub operations: Vec<Operation>,
    /// The costs of preparation by kind of correlation; here `path` is the kind. `operations` contain the same costs,
    /// divided among the operations by [`waggle_net::Ledger::divide`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub preparation_kinds: Vec<Operation>,
    /// The outcome of the client's guesses, if it guessed tokens ahead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft: Option<DraftReport>,
    /// The links to the helper, if the session had one. Their costs are not part of `phases`, which are the two
    /// parties' own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub helper: Option<HelperLinks>,
    /// The bytes that the session sent and received on the socket. All other bytes in a report are those of the
    /// protocol's messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wire: Option<Wire>,
    /// The family of kernels that this party's process used, and its instructions for AES: see `waggle_bits::cpu`.
    /// Absent if nothing was computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernels: Option<String>,
    /// The largest resident memory of each party's process.
    pub peak_memory_bytes: PeakMemory,
    /// The comparison with the plaintext engine under the same policy, if it was asked for. It shows what the
    /// protocol changed. Its fields are at the report's top level.
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub check: Option<Check>,
    /// The comparison with the plaintext engine and the full cache, if the policy prunes. It shows what the protocol
    /// and pruning changed together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against_full_cache: Option<Check>,
}

/// What a number of seconds measures. Tables name the kind wherever they show seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Seconds {
    /// Wall-clock time of a run.
    Measured,
    /// Wall-clock time that a calibration of the machines predicts for a run.
    Predicted,
    /// Time that the link alone takes for bytes and flows, without computation.
    Network,
}

impl Seconds {
    /// The name of the kind, with which a column's title begins.
    pub fn name(self) -> &'static str {
        match self {
            Seconds::Measured => "measured",
            Seconds::Predicted => "predicted",
            Seconds::Network => "network",
        }
    }
}

/// The outcome of the guesses of a run. In a plan the outcome is assumed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DraftReport {
    /// Number of guesses in a pass. At the end of a text there may be fewer.
    pub guesses: usize,
    /// Number of tokens that a pass was expected to keep on average. Correlations were prepared for this number.
    pub rate: f64,
    /// For each pass after the first one, the number of tokens that it kept.
    pub passes: Vec<usize>,
    /// Mean of `passes`. In a plan it is assumed.
    pub tokens_per_pass: f64,
}

/// The model of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelInfo {
    /// Name of the model's directory, or its bundled name.
    pub name: String,
    /// Number of parameters.
    pub parameters: usize,
    /// The public shape of the model.
    pub config: ModelSpec,
}

impl ModelInfo {
    /// The entry of a model with the shape `config`, under this name.
    pub fn new(name: &str, config: &ModelSpec) -> Self {
        ModelInfo { name: name.into(), parameters: config.parameters(), config: config.clone() }
    }
}

/// The bytes that this party sent and received on the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wire {
    /// Whether the link was encrypted.
    pub encrypted: bool,
    /// Bytes sent on the socket. They include TLS records, but not the headers of TCP and IP.
    pub bytes_sent: u64,
    /// Bytes received on the socket, counted in the same way.
    pub bytes_received: u64,
}

/// The links of the parties to the helper. The report of one party has only that party's link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HelperLinks {
    /// The client's link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<HelperLink>,
    /// The server's link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<HelperLink>,
}

impl HelperLinks {
    /// The links that are known, each after its party's name.
    fn named(&self) -> impl Iterator<Item = (&'static str, &HelperLink)> {
        [("client", &self.client), ("server", &self.server)]
            .into_iter()
            .filter_map(|(name, link)| Some((name, link.as_ref()?)))
    }
}

/// The traffic of one party's link to the helper.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HelperLink {
    /// Bytes from the party to the helper.
    pub bytes_to_helper: u64,
    /// Bytes from the helper to the party.
    pub bytes_from_helper: u64,
    /// Bytes in both directions before the helper deals anything: demands for correlations, and halves of weights.
    #[serde(default)]
    pub bytes_setup: u64,
    /// Bytes in both directions during the passes over generated tokens, if the helper deals for each pass.
    #[serde(default)]
    pub bytes_decoding: u64,
    /// Seconds in which the party received dealt correlations. In a plan, the seconds that the bytes take on the
    /// link.
    pub seconds: f64,
}

impl HelperLink {
    /// The link's bytes and seconds as a cost. The party takes the place of the client, and the helper that of the
    /// server.
    fn cost(&self) -> Cost {
        Cost {
            bytes_client_to_server: self.bytes_to_helper,
            bytes_server_to_client: self.bytes_from_helper,
            seconds: self.seconds,
            ..Cost::default()
        }
    }

    /// Sums the ledger entries of a link. In these entries the party takes the place of the client.
    pub fn of(entries: &[Entry]) -> Self {
        let sum = |part: fn(&Entry) -> u64| entries.iter().map(part).sum();
        let of = |phase| entries.iter().filter(|entry| entry.phase == phase).map(|entry| entry.traffic.bytes()).sum();
        HelperLink {
            bytes_to_helper: sum(|entry| entry.traffic.bytes_client_to_server),
            bytes_from_helper: sum(|entry| entry.traffic.bytes_server_to_client),
            bytes_setup: of(Phase::Setup),
            bytes_decoding: of(Phase::Decode),
            // Only scopes in which something is dealt count. Outside of them a party does other work.
            seconds: entries
                .iter()
                .filter(|entry| !entry.path.is_empty())
                .map(|e| e.traffic.time.as_secs_f64())
                .sum(),
        }
    }
}

/// The largest resident memory of each process, in bytes, if the system knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeakMemory {
    /// The client's process.
    pub client: Option<u64>,
    /// The server's process, mapped weights included.
    pub server: Option<u64>,
    /// The part of the server's memory that is mapped weights. Only plans know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mapped: Option<u64>,
}

impl Report {
    /// The report of a run of `model`, without any results yet.
    pub fn new(model: ModelInfo) -> Self {
        Report {
            version: REPORT_VERSION,
            provenance: None,
            predicted: false,
            estimated: Vec::new(),
            seconds_are: Some(Seconds::Measured),
            model,
            options: BTreeMap::new(),
            prompt_tokens: 0,
            tokens: Vec::new(),
            text: None,
            texts: None,
            phases: Phases::default(),
            operations: Vec::new(),
            preparation_kinds: Vec::new(),
            draft: None,
            helper: None,
            wire: None,
            kernels: Some(waggle_bits::cpu::Cpu::get().to_string()),
            peak_memory_bytes: PeakMemory::default(),
            check: None,
            against_full_cache: None,
        }
    }

    /// The kind of the report's seconds. A plan older than the field `seconds_are` has predicted seconds if it has
    /// processor time, and otherwise the link's.
    pub fn seconds(&self) -> Seconds {
        let computed = self.phases.costs().any(|cost| cost.cpu_seconds > 0.0);
        self.seconds_are.unwrap_or(match (self.predicted, computed) {
            (false, _) => Seconds::Measured,
            (true, true) => Seconds::Predicted,
            (true, false) => Seconds::Network,
        })
    }

    /// Fills in phases and operations from `entries`, which are those of a ledger or a plan. Fills in preparation by
    /// kind of correlation from `kinds`.
    pub fn set_costs(&mut self, entries: Vec<Entry>, kinds: Vec<Entry>, per_token: Vec<Cost>) {
        self.phases = Phases::new(&entries, per_token);
        [self.operations, self.preparation_kinds] =
            [entries, kinds].map(|entries| entries.into_iter().map(Operation::from).collect());
    }

    /// The costs of phases, tokens, operations and kinds of correlations, to be changed.
    pub fn costs_mut(&mut self) -> impl Iterator<Item = &mut Cost> {
        let operations = self.operations.iter_mut().chain(&mut self.preparation_kinds);
        self.phases.costs_mut().chain(operations.map(|operation| &mut operation.cost))
    }

    /// Adds the other party's CPU time to all costs. `entries`, `kinds` and `per_token` are that party's own. An
    /// entry that only the other party has, because it sent nothing, becomes an operation of its own.
    pub fn set_peer_cpu(&mut self, entries: &[Entry], kinds: &[Entry], per_token: &[Cost]) {
        let phases = Phases::new(entries, per_token.to_vec());
        for (mine, theirs) in self.phases.costs_mut().zip(phases.costs()) {
            mine.peer_cpu_seconds = Some(theirs.cpu_seconds);
        }
        add_peer_cpu(&mut self.operations, entries);
        add_peer_cpu(&mut self.preparation_kinds, kinds);
    }

    /// Bytes of all phases, both ways.
    pub fn bytes(&self) -> u64 {
        self.phases.total().bytes()
    }

    /// A table of the costs of each phase, of a decoded token, of the links to the helper, and of everything
    /// together. `price` adds columns of price and energy.
    pub fn phase_table(&self, price: &Price) -> Table {
        let decode = &self.phases.decode;
        let mut rows = self.phases.named().map(|(name, cost)| (name.to_owned(), *cost)).to_vec();
        match &self.draft {
            Some(draft) if !draft.passes.is_empty() => {
                let passes = draft.passes.len() as f64;
                let kept = draft.tokens_per_pass;
                let assumed = if self.predicted { " (assumed)" } else { "" };
                rows.push(("per pass".to_owned(), decode.total.over(passes)));
                let name = format!("per decoded token, {kept:.2} a pass{assumed}");
                rows.push((name, decode.total.over(passes * kept)));
            }
            _ if !decode.per_token.is_empty() => {
                rows.push(("per decoded token".to_owned(), decode.total.over(decode.per_token.len() as f64)));
            }
            _ => {}
        }
        let mut total = self.phases.total();
        for (party, link) in self.helper.iter().flat_map(HelperLinks::named) {
            let row = link.cost();
            // The phases of a run include the seconds of receiving dealt correlations. The phases of a plan do not.
            total += if self.predicted { row } else { Cost { seconds: 0.0, ..row } };
            rows.push((format!("{party} to helper, and back"), row));
        }
        rows.push(("total".to_owned(), total));
        self.cost_table("phase", price, rows.into_iter())
    }

    /// A table of the `limit` operations with the largest shares of bytes or CPU time. An operation is summed over
    /// all layers.
    pub fn operation_table(&self, limit: usize, price: &Price) -> Table {
        self.summed("operation", price, &self.operations, limit)
    }

    /// A table of the costs of preparation by kind of correlation, if there was preparation.
    pub fn preparation_table(&self, price: &Price) -> Option<Table> {
        let kinds = &self.preparation_kinds;
        (!kinds.is_empty()).then(|| self.summed("kind of correlation", price, kinds, usize::MAX))
    }

    /// A table of the `limit` largest of `operations`, each summed over all layers. Their size is their share of
    /// bytes or of CPU time, whichever is larger.
    fn summed(&self, title: &str, price: &Price, operations: &[Operation], limit: usize) -> Table {
        let sums = by_operation(operations);
        let bytes = |c: &Cost| c.bytes() as f64;
        let cpu = |c: &Cost| c.cpu_seconds + c.peer_cpu_seconds.unwrap_or(0.0);
        let total = |of: &dyn Fn(&Cost) -> f64| sums.values().map(of).sum::<f64>().max(f64::MIN_POSITIVE);
        let (all_bytes, all_cpu) = (total(&bytes), total(&cpu));
        let share = |c: &Cost| (bytes(c) / all_bytes).max(cpu(c) / all_cpu);
        let mut rows: Vec<_> = sums.iter().filter(|(_, cost)| share(cost) > 0.0).collect();
        rows.sort_by(|(_, a), (_, b)| share(b).total_cmp(&share(a)));
        let rows = rows.into_iter().take(limit);
        let named = rows.map(|((phase, path), cost)| (format!("{} {path}", phase_name(*phase)), *cost));
        self.cost_table(title, price, named)
    }

    /// A table of costs, with one of `rows` in each row and the title `first` above the names of the rows. Unknown
    /// numbers have no columns: a plan has processor time only if it was estimated, and seconds only if a link was
    /// given.
    fn cost_table(&self, first: &str, price: &Price, rows: impl Iterator<Item = (String, Cost)>) -> Table {
        let mut columns: Vec<Column> = vec![
            ("client to server", "bytes", Box::new(|c| Cell::bytes(c.bytes_client_to_server))),
            ("server to client", "bytes", Box::new(|c| Cell::bytes(c.bytes_server_to_client))),
            ("flows", "", Box::new(|c| Cell::count(c.flows))),
        ];
        if !self.predicted || self.phases.costs().any(|cost| cost.seconds > 0.0) {
            columns.push((self.seconds().name(), "seconds", Box::new(|c| Cell::seconds(c.seconds))));
        }
        if !self.predicted || self.phases.costs().any(|cost| cost.cpu_seconds > 0.0) {
            columns.push(("cpu seconds", "", Box::new(|c| Cell::seconds(c.cpu_seconds))));
        }
        if self.phases.setup.peer_cpu_seconds.is_some() {
            columns.push(("peer cpu seconds", "", Box::new(|c| Cell::seconds(c.peer_cpu_seconds.unwrap_or(0.0)))));
        }
        if price.is_given() {
            let cents = |c: &Cost| price.cents(c.bytes() as f64, self.core_seconds(c));
            columns.push(("price", "cents", Box::new(move |c| Cell::maybe(cents(c), Cell::cents))));
        }
        if price.watts.is_some() {
            let joules = |c: &Cost| price.joules(self.core_seconds(c));
            columns.push(("energy", "joules", Box::new(move |c| Cell::maybe(joules(c), Cell::joules))));
        }
        let header = std::iter::once((first, "")).chain(columns.iter().map(|(title, unit, _)| (*title, *unit)));
        let mut table = Table::new(1, header);
        for (name, cost) in rows {
            table.add(std::iter::once(Cell::text(name)).chain(columns.iter().map(|(_, _, of)| of(&cost))));
        }
        table.settle(self.settings());
        table
    }

    /// Columns that describe the session to which the costs belong.
    fn settings(&self) -> impl Iterator<Item = (&'static str, &'static str, Cell)> + use<> {
        let option = |name: &str| self.options.get(name).and_then(Value::as_str).map(str::to_owned);
        let number = |name: &str| Cell::maybe(self.options.get(name).and_then(Value::as_u64), Cell::count);
        let cached = self.options.contains_key("cached");
        let conditions = conditions(option("plan-for").as_deref(), option("cores").as_deref());
        let conditions = CONDITIONS.into_iter().zip(conditions);
        let [prompt, tokens] = match cached {
            true => [Cell::absent(), Cell::absent()],
            false => [Cell::count(self.prompt_tokens as u64), number("tokens")],
        };
        [
            ("model", "", Cell::text(self.model.name.clone())),
            ("prompt", "tokens", prompt),
            ("text", "tokens", tokens),
            ("after", "tokens", number("cached")),
            ("policy", "", Cell::maybe(option("policy"), Cell::text)),
            ("phases", "", Cell::text(self.phases_of_session())),
            ("link", "", Cell::maybe(option("link"), Cell::text)),
        ]
        .into_iter()
        .chain(conditions.map(|((title, unit), cell)| (title, unit, cell)))
    }

    /// In words, the session's number of phases, and what its helper deals.
    pub fn phases_of_session(&self) -> &'static str {
        let option = |name: &str| self.options.get(name).and_then(Value::as_str).unwrap_or_default();
        match (option("helper-deals"), option("preprocess")) {
            ("passes", _) => "three parties",
            ("words", _) => "two, dealt",
            ("weights", _) => "two, dealt with weights",
            (_, "true") => "two",
            _ => "one",
        }
    }

    /// CPU seconds of both parties together; `None` unless both parties' are known.
    fn core_seconds(&self, cost: &Cost) -> Option<f64> {
        let together = self.options.get("processes").and_then(Value::as_u64) == Some(1);
        let peer = self.phases.setup.peer_cpu_seconds.map(|_| cost.peer_cpu_seconds.unwrap_or(0.0));
        let known = self.seconds() != Seconds::Network;
        peer.or(together.then_some(0.0)).filter(|_| known).map(|peer| cost.cpu_seconds + peer)
    }
}

/// The title of a column of costs, its unit, and the function that makes its cells.
type Column<'a> = (&'static str, &'static str, Box<dyn Fn(&Cost) -> Cell + 'a>);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TokenMeter;
    use serde_json::json;
    use waggle_net::{Direction, Ledger, Phase, Traffic};

    /// A report of two decoded tokens in a model of two layers. In each layer, a token sends 100 bytes to the server
    /// and 7 back.
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
        report.set_costs(ledger.entries(), ledger.divided(), meter.into_costs());
        report
    }

    #[test]
    fn json_has_the_promised_fields_and_comes_back_equal() {
        let mut report = report();
        report.check = Some(Check {
            max_abs_logit_error: Some(0.25),
            token_agreement: 1.0,
            largest_margin_missed: None,
            close_choices: 0,
        });
        let json = serde_json::to_value(&report).unwrap();
        let keys = "prompt_tokens tokens text model options operations max_abs_logit_error \
            token_agreement";
        for key in keys.split(' ') {
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
        for op in json["operations"].as_array().unwrap() {
            assert!(op["cpu_seconds"].is_number() && op.get("peer_cpu_seconds").is_none(), "{op}");
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

    fn entry(phase: Phase, path: &str, bytes: u64, cpu_ms: u64) -> Entry {
        let cpu = std::time::Duration::from_millis(cpu_ms);
        let traffic =
            Traffic { bytes_client_to_server: bytes, flows: u64::from(bytes > 0), cpu, ..Traffic::default() };
        Entry { phase, path: path.into(), traffic }
    }

    #[test]
    fn both_parties_times_stand_side_by_side() {
        use Phase::{Decode, Setup};
        let mut report = report();
        let costs = |ms: [u64; 2]| ms.map(|ms| Cost::from(entry(Decode, "", 0, ms).traffic)).to_vec();
        let mine = [entry(Setup, "keys", 8, 3), entry(Decode, "layer 0/softmax", 7, 40), entry(Decode, "stop", 1, 2)];
        report.set_costs(mine.to_vec(), Vec::new(), costs([30, 12]));
        let theirs = [
            entry(Setup, "keys", 8, 5),
            entry(Decode, "layer 0/softmax", 7, 1000),
            entry(Decode, "layer 1/reshape", 0, 2000),
        ];
        report.set_peer_cpu(&theirs, &[], &costs([100, 2900]));
        let times = |op: &Operation| (op.path.clone(), op.cost.cpu_seconds, op.cost.peer_cpu_seconds);
        let expected = [
            ("keys", 0.003, 0.005),
            ("layer 0/softmax", 0.04, 1.0),
            ("layer 1/reshape", 0.0, 2.0),
            ("stop", 0.002, 0.0),
        ];
        let expected = expected.map(|(path, mine, theirs)| (path.to_owned(), mine, Some(theirs)));
        assert_eq!(report.operations.iter().map(times).collect::<Vec<_>>(), expected);
        let decode = &report.phases.decode;
        assert_eq!((decode.total.cpu_seconds, decode.total.peer_cpu_seconds), (0.042, Some(3.0)));
        let tokens: Vec<_> = decode.per_token.iter().map(|c| (c.cpu_seconds, c.peer_cpu_seconds)).collect();
        assert_eq!(tokens, [(0.03, Some(0.1)), (0.012, Some(2.9))]);
        assert!(report.phase_table(&Price::default()).to_string().contains("peer cpu seconds"));
        // An operation that sends nothing but takes long comes first.
        let operations = report.operation_table(1, &Price::default()).to_string();
        assert!(operations.contains("decode layer */reshape") && operations.contains("2.000"), "{operations}");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(serde_json::from_value::<Report>(json).unwrap(), report);
    }

    #[test]
    fn plans_have_no_column_of_zeros() {
        let mut report = report();
        report.predicted = true;
        let untimed = |cost: &mut Cost| (cost.seconds, cost.cpu_seconds, cost.peer_cpu_seconds) = (0.0, 0.0, None);
        report.phases.costs_mut().for_each(untimed);
        assert!(!report.phase_table(&Price::default()).to_string().contains(" s "));
        report.phases.decode.total.seconds = 1.5;
        report.seconds_are = Some(Seconds::Network);
        let phases = report.phase_table(&Price::default()).to_string();
        assert!(phases.contains("network s") && phases.contains("1.500"), "{phases}");
        assert!(!phases.contains("cpu seconds"), "{phases}");
        // Older plans did not state the kind of their seconds.
        report.seconds_are = None;
        assert_eq!(report.seconds(), Seconds::Network);
        report.phases.decode.total.cpu_seconds = 1.0;
        assert_eq!(report.seconds(), Seconds::Predicted);
    }

    #[test]
    fn reports_without_cpu_time_by_operation_are_read() {
        let mut report = report();
        let mut json = serde_json::to_value(&report).unwrap();
        for op in json["operations"].as_array_mut().unwrap() {
            op.as_object_mut().unwrap().remove("cpu_seconds").expect("a report of today has it");
        }
        report.operations.iter_mut().for_each(|op| op.cost.cpu_seconds = 0.0);
        assert_eq!(serde_json::from_value::<Report>(json).unwrap(), report);
    }

    #[test]
    fn tables_sum_over_layers() {
        let report = report();
        let phases = report.phase_table(&Price::default()).to_string();
        assert!(phases.contains("per decoded token") && phases.contains("400 B"), "{phases}");
        let operations = report.operation_table(10, &Price::default()).to_string();
        assert!(operations.contains("decode layer */softmax") && !operations.contains("layer 1"), "{operations}");
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(37_000_000), "37.00 MB");
    }
}
