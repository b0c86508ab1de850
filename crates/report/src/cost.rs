//! Costs by phase, by operation and by token.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use serde::{Deserialize, Serialize};
use waggle_net::{Entry, Phase, Traffic};

/// The cost of a step, a phase or a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Bytes from client to server, framing included.
    pub bytes_client_to_server: u64,
    /// Bytes from server to client, framing included.
    pub bytes_server_to_client: u64,
    /// Flows: maximal runs of messages in the same direction.
    pub flows: u64,
    /// Wall-clock seconds.
    pub seconds: f64,
    /// CPU seconds of this party's process. They are 0 for operations in reports older than the field.
    #[serde(default)]
    pub cpu_seconds: f64,
    /// CPU seconds of the other party's process, if they are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_cpu_seconds: Option<f64>,
}

impl Cost {
    /// Bytes both ways.
    pub fn bytes(&self) -> u64 {
        self.bytes_client_to_server + self.bytes_server_to_client
    }

    /// This cost divided by `n`. Bytes and flows are rounded down.
    pub(crate) fn over(&self, n: f64) -> Cost {
        let whole = |sum: u64| (sum as f64 / n) as u64;
        Cost {
            bytes_client_to_server: whole(self.bytes_client_to_server),
            bytes_server_to_client: whole(self.bytes_server_to_client),
            flows: whole(self.flows),
            seconds: self.seconds / n,
            cpu_seconds: self.cpu_seconds / n,
            peer_cpu_seconds: self.peer_cpu_seconds.map(|seconds| seconds / n),
        }
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        self.bytes_client_to_server += other.bytes_client_to_server;
        self.bytes_server_to_client += other.bytes_server_to_client;
        self.flows += other.flows;
        self.seconds += other.seconds;
        self.cpu_seconds += other.cpu_seconds;
        if let Some(seconds) = other.peer_cpu_seconds {
            *self.peer_cpu_seconds.get_or_insert(0.0) += seconds;
        }
    }
}

impl From<Traffic> for Cost {
    fn from(t: Traffic) -> Self {
        Cost {
            bytes_client_to_server: t.bytes_client_to_server,
            bytes_server_to_client: t.bytes_server_to_client,
            flows: t.flows,
            seconds: t.time.as_secs_f64(),
            cpu_seconds: t.cpu.as_secs_f64(),
            // In accounts, only plans know the other party's processor time.
            peer_cpu_seconds: (!t.peer_cpu.is_zero()).then_some(t.peer_cpu.as_secs_f64()),
        }
    }
}

/// The cost of each phase.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phases {
    /// The cost of the handshake, keys and base OTs.
    pub setup: Cost,
    /// The cost of correlations that do not depend on the data.
    pub offline: Cost,
    /// The cost of the prompt and the first token.
    pub prefill: Cost,
    /// The cost of all tokens after the first.
    pub decode: DecodeCost,
}

/// Cost of the tokens after the first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DecodeCost {
    /// The sum of the costs of all these tokens.
    #[serde(flatten)]
    pub total: Cost,
    /// The cost of each of these tokens. It does not contain costs that were booked under `offline` in the meantime.
    /// If one pass gives several tokens, the first of them has the whole cost of the pass.
    pub per_token: Vec<Cost>,
}

impl Phases {
    /// Sums the entries of a ledger (or of a plan) by phase. `per_token` are the costs of the tokens after the first.
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

    /// Each phase's name and cost, in the order of the phases.
    pub fn named(&self) -> [(&'static str, &Cost); 4] {
        let Phases { setup, offline, prefill, decode } = self;
        [("setup", setup), ("offline", offline), ("prefill", prefill), ("decode", &decode.total)]
    }

    /// The cost of `phase`.
    pub fn of(&self, phase: Phase) -> &Cost {
        match phase {
            Phase::Setup => &self.setup,
            Phase::Offline => &self.offline,
            Phase::Prefill => &self.prefill,
            Phase::Decode => &self.decode.total,
        }
    }

    /// The sum of the costs of all phases.
    pub fn total(&self) -> Cost {
        let mut total = Cost::default();
        self.named().iter().for_each(|(_, cost)| total += **cost);
        total
    }

    /// The costs of the phases in order, then the costs of the tokens after the first.
    pub(crate) fn costs(&self) -> impl Iterator<Item = &Cost> {
        self.named().into_iter().map(|(_, cost)| cost).chain(&self.decode.per_token)
    }

    /// All costs in the same order, to be changed.
    pub(crate) fn costs_mut(&mut self) -> impl Iterator<Item = &mut Cost> {
        let Phases { setup, offline, prefill, decode } = self;
        [setup, offline, prefill, &mut decode.total].into_iter().chain(&mut decode.per_token)
    }
}

/// Cost of one operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    /// The phase in which the operation was needed.
    pub phase: Phase,
    /// The operation's path of scopes, for example `layer 3/attention/softmax`.
    pub path: String,
    /// The cost of the operation, without the operations inside it. The costs of a phase's operations add up to the
    /// phase's cost.
    #[serde(flatten)]
    pub cost: Cost,
}

impl From<Entry> for Operation {
    fn from(Entry { phase, path, traffic }: Entry) -> Self {
        Operation { phase, path, cost: traffic.into() }
    }
}

/// The costs of `operations` by phase and name, summed over all layers.
pub fn by_operation(operations: &[Operation]) -> BTreeMap<(Phase, String), Cost> {
    let mut sums: BTreeMap<(Phase, String), Cost> = BTreeMap::new();
    for op in operations {
        *sums.entry((op.phase, any_layer(&op.path))).or_default() += op.cost;
    }
    sums
}

/// Adds the other party's CPU time to `operations`. It is taken from the ledger `entries` of that party. An entry
/// without a counterpart in `operations` becomes an operation of its own.
pub(crate) fn add_peer_cpu(operations: &mut Vec<Operation>, entries: &[Entry]) {
    let mut times: BTreeMap<(Phase, String), f64> =
        entries.iter().map(|e| ((e.phase, e.path.clone()), e.traffic.cpu.as_secs_f64())).collect();
    for op in &mut *operations {
        op.cost.peer_cpu_seconds = Some(times.remove(&(op.phase, op.path.clone())).unwrap_or(0.0));
    }
    operations.extend(times.into_iter().map(|((phase, path), seconds)| Operation {
        phase,
        path,
        cost: Cost { peer_cpu_seconds: Some(seconds), ..Cost::default() },
    }));
    operations.sort_by(|a, b| (a.phase, &a.path).cmp(&(b.phase, &b.path)));
}

/// Divides the cost of the decode phase among tokens.
#[derive(Clone, Debug, Default)]
pub struct TokenMeter {
    before: Traffic,
    costs: Vec<Cost>,
}

impl TokenMeter {
    /// Notes that a token is done. `decode` is the whole traffic of the decode phase up to now.
    pub fn token(&mut self, decode: Traffic) {
        self.costs.push(decode.since(&self.before).into());
        self.before = decode;
    }

    /// The cost of each token that is done.
    pub fn costs(&self) -> &[Cost] {
        &self.costs
    }

    /// The cost of each token, in order.
    pub fn into_costs(self) -> Vec<Cost> {
        self.costs
    }
}

/// An operation's path with `*` in place of the layer's number: `layer 3/attention` becomes `layer */attention`.
pub fn any_layer(path: &str) -> String {
    let parts = path.split('/').map(|part| match part.strip_prefix("layer ") {
        Some(number) if number.bytes().all(|b| b.is_ascii_digit()) => "layer *",
        _ => part,
    });
    parts.collect::<Vec<_>>().join("/")
}

/// The name of a phase.
pub fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Setup => "setup",
        Phase::Offline => "offline",
        Phase::Prefill => "prefill",
        Phase::Decode => "decode",
    }
}
