//! The planned cost of a piece of work, as a whole or for each operation. The work is a decoded token, whose cost is
//! the mean over several tokens after a prompt, or a pass over a whole input. Sweeps, comparisons with papers and
//! studies take their numbers from here.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use waggle_model::Lengths;
use waggle_net::{Entry, LinkShape, Phase, Traffic};
use waggle_planner::Deployment;
use waggle_protocols::HelperDeals;
use waggle_report::any_layer;
use waggle_session::Error;
use waggle_session::party::{self, Outcome, Planned, PublicModel, Request, SessionPlan, nobody};

/// The scope in a path that marks the correlations that a helper deals.
const DEALT: &str = "dealt";

/// The unit of work to which a cost refers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Work {
    /// A decoded token.
    Token,
    /// A pass over a whole input. A decoder's pass gives one token.
    Pass,
}

impl Work {
    /// The work in words.
    pub fn name(self) -> &'static str {
        match self {
            Work::Token => "a token",
            Work::Pass => "a pass",
        }
    }
}

/// The work that sessions are planned for.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// The unit of work. Of several texts it is the same for each.
    pub work: Work,
    /// Texts that are read side by side.
    pub texts: usize,
    /// Tokens of each prompt, or of each input of a pass.
    pub length: usize,
    /// Decoded tokens of each text, over which the mean is taken.
    pub tokens: usize,
}

/// When a session's correlations are made, and by whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phases {
    /// On the spot, by the two parties.
    One,
    /// In advance, by the two parties.
    Two,
    /// In advance, by a helper, except those of products with weights.
    Dealt,
    /// In advance, all by a helper.
    #[serde(rename = "dealt weights")]
    DealtWeights,
    /// Right before each pass, by the third of three parties.
    #[serde(rename = "three parties")]
    Three,
}

impl Phases {
    /// All values by their names in options.
    pub const NAMES: [(&'static str, Phases); 5] = [
        ("one", Phases::One),
        ("two", Phases::Two),
        ("dealt", Phases::Dealt),
        ("dealt-weights", Phases::DealtWeights),
        ("three-parties", Phases::Three),
    ];

    /// The phases in words.
    pub fn name(self) -> &'static str {
        match self {
            Phases::One => "one",
            Phases::Two => "two",
            Phases::Dealt => "two, dealt",
            Phases::DealtWeights => "two, dealt with weights",
            Phases::Three => "three parties",
        }
    }

    /// Whether correlations are made before the input is known.
    pub fn prepares(self) -> bool {
        self != Phases::One
    }

    /// The correlations that the helper of a session with these phases deals; nothing if there is no helper.
    pub fn deals(self) -> HelperDeals {
        match self {
            Phases::One | Phases::Two => HelperDeals::Nothing,
            Phases::Dealt => HelperDeals::Words,
            Phases::DealtWeights => HelperDeals::Weights,
            Phases::Three => HelperDeals::Passes,
        }
    }
}

/// Bytes and flows, and the seconds that they take. Numbers have fractions if they are means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Bytes from the client to the server.
    pub bytes_client_to_server: f64,
    /// Bytes from the server to the client.
    pub bytes_server_to_client: f64,
    /// Flows: one-way messages that wait for each other.
    pub flows: f64,
    /// Seconds that the link alone takes, without computation.
    pub network_seconds: f64,
    /// Seconds of the link and of computation, as a calibration of the machines predicts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_seconds: Option<f64>,
    /// Processor seconds of all cores of both parties, as the same calibration predicts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core_seconds: Option<f64>,
}

impl Cost {
    /// Bytes in both directions.
    pub fn bytes(&self) -> f64 {
        self.bytes_client_to_server + self.bytes_server_to_client
    }

    /// This cost plus `factor` times `other`.
    pub fn plus(self, factor: f64, other: Cost) -> Self {
        let times = |ours: f64, theirs: f64| ours + factor * theirs;
        Cost {
            bytes_client_to_server: times(self.bytes_client_to_server, other.bytes_client_to_server),
            bytes_server_to_client: times(self.bytes_server_to_client, other.bytes_server_to_client),
            flows: times(self.flows, other.flows),
            network_seconds: times(self.network_seconds, other.network_seconds),
            predicted_seconds: self.predicted_seconds.zip(other.predicted_seconds).map(|(a, b)| times(a, b)),
            core_seconds: self.core_seconds.zip(other.core_seconds).map(|(a, b)| times(a, b)),
        }
    }

    fn over(self, n: f64) -> Self {
        let [predicted_seconds, core_seconds] =
            [self.predicted_seconds, self.core_seconds].map(|known| known.map(|_| 0.0));
        Cost { predicted_seconds, core_seconds, ..Cost::default() }.plus(1.0 / n, self)
    }
}

/// The cost of work, or of one operation of it. A token's cost is the mean of several tokens after a prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkCost {
    /// The cost of the work itself, without its preparation.
    pub online: Cost,
    /// The cost of the work's preparation. For a token it is what each token after the first adds to the preparation.
    /// If a single token is planned, it is that token's own preparation. In one phase, the preparation takes place
    /// during the work.
    pub prepared: Cost,
    /// The cost of the pass over the prompt before a token. `None` for a pass, or if a single token is planned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<Cost>,
    /// The cost of the preparation that does not depend on the number of tokens. `None` for a pass, or if a single
    /// token is planned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepared_prompt: Option<Cost>,
    /// The cost of set-up: keys and base OTs, once in a session, and the halves of weights that a helper needs, once
    /// in a server's life.
    pub setup: Cost,
}

impl WorkCost {
    /// The sum of the costs of the work and of its preparation.
    pub fn total(&self) -> Cost {
        self.online.plus(1.0, self.prepared)
    }

    /// The sum of the costs of the pass over the prompt and of its preparation, if both are known.
    pub fn whole_prompt(&self) -> Option<Cost> {
        Some(self.prompt?.plus(1.0, self.prepared_prompt?))
    }
}

/// The cost of one operation, summed over all layers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OperationCost {
    /// The operation's path of scopes without the layer, for example `attention/softmax`.
    pub operation: String,
    /// The cost of the operation.
    #[serde(flatten)]
    pub cost: WorkCost,
}

/// The planned sessions from which the cost of work is computed.
pub struct Sessions {
    work: Work,
    link: Option<LinkShape>,
    predicted: bool,
    tokens: f64,
    /// The session with all decoded tokens, or with the pass. If only one decoded token is planned, the session does
    /// not contain the pass over the prompt.
    long: Outcome,
    /// The same session with only one decoded token; `None` unless `long` decodes several.
    short: Option<Outcome>,
    cache_bytes: u64,
}

impl Sessions {
    /// Plans the decoded tokens of `piece` after its prompts, or the pass over its inputs. Without `link`, the
    /// network takes no time. If one token is decoded, it is planned with its own preparation and without the pass
    /// over the prompt.
    ///
    /// # Errors
    /// If a session cannot be planned.
    pub fn plan(
        model: &PublicModel,
        terms: &party::Terms,
        link: Option<LinkShape>,
        setting: Option<&Deployment>,
        piece: Piece,
    ) -> Result<Self, Error> {
        let Piece { work, texts, length, tokens } = piece;
        // The pass over the prompt makes the first token, and the others are decoded.
        let session = |decoded: usize| {
            let request = Request { texts, ..Lengths { prompt: length, tokens: decoded + 1 }.into() };
            SessionPlan::new(model, terms).request(request).timed(setting.cloned())
        };
        let outcome = |plan: SessionPlan| {
            let Planned { mut outcome, cache_bytes, .. } = plan.run(&mut nobody)?;
            let dealt: Vec<Entry> = outcome.helper.iter_mut().filter_map(Option::take).flatten().map(dealt).collect();
            outcome.entries.extend(dealt);
            Ok::<_, Error>((outcome, cache_bytes))
        };
        let ((long, cache_bytes), short) = match (work, tokens) {
            (Work::Pass, _) => (outcome(session(0))?, None),
            (Work::Token, 0 | 1) => (outcome(session(1).step())?, None),
            (Work::Token, n) => (outcome(session(n))?, Some(outcome(session(1))?.0)),
        };
        Ok(Sessions { work, link, predicted: setting.is_some(), tokens: tokens as f64, long, short, cache_bytes })
    }

    /// Bytes that either party holds of the keys and values of all texts after the work.
    pub fn cache_bytes(&self) -> u64 {
        self.cache_bytes
    }

    /// The cost of the whole work.
    pub fn whole(&self) -> WorkCost {
        self.cost(|_| true)
    }

    /// The cost of each operation, the one with the most bytes first. Set-up belongs to no operation.
    pub fn operations(&self) -> Vec<OperationCost> {
        let entries = self.long.entries.iter().filter(|entry| entry.phase != Phase::Setup);
        let names: BTreeSet<String> = entries.map(|entry| operation(&entry.path)).collect();
        let of = |name: String| OperationCost { cost: self.cost(|path| operation(path) == name), operation: name };
        let mut operations: Vec<OperationCost> = names.into_iter().map(of).collect();
        let bytes = |operation: &OperationCost| {
            [Some(operation.cost.total()), operation.cost.prompt].map(|cost| cost.map_or(0.0, |cost| cost.bytes()))
        };
        operations.sort_by(|a, b| bytes(b).partial_cmp(&bytes(a)).unwrap_or(Ordering::Equal));
        operations
    }

    /// The summed cost of the ledger entries that `counted` accepts by their paths.
    fn cost(&self, counted: impl Fn(&str) -> bool) -> WorkCost {
        let of = |outcome: &Outcome, phases: &[Phase]| {
            let (mut sum, mut dealt) = (Traffic::default(), [0; 2]);
            for entry in outcome.entries.iter().filter(|e| phases.contains(&e.phase) && counted(&e.path)) {
                sum.add(&entry.traffic);
                if is_dealt(&entry.path) {
                    dealt[0] += entry.traffic.bytes_client_to_server;
                    dealt[1] += entry.traffic.bytes_server_to_client;
                }
            }
            let Traffic { bytes_client_to_server: up, bytes_server_to_client: down, flows, time, .. } = sum;
            let network = |bytes, flows| self.link.map_or(0.0, |link| link.predict(bytes, flows).as_secs_f64());
            Cost {
                bytes_client_to_server: up as f64,
                bytes_server_to_client: down as f64,
                flows: flows as f64,
                network_seconds: network([up, down], flows),
                // A plan's times are those between the two parties, without the helper's link.
                predicted_seconds: self.predicted.then(|| time.as_secs_f64() + network(dealt, 0)),
                core_seconds: self.predicted.then_some((sum.cpu + sum.peer_cpu).as_secs_f64()),
            }
        };
        let setup = of(&self.long, &[Phase::Setup]);
        let Some(short) = &self.short else {
            // A pass decodes nothing, but three parties book their end to the decode phase.
            let online =
                if self.work == Work::Pass { &[Phase::Prefill, Phase::Decode][..] } else { &[Phase::Decode] };
            let [online, prepared] = [online, &[Phase::Offline]].map(|phases| of(&self.long, phases));
            return WorkCost { online, prepared, prompt: None, prepared_prompt: None, setup };
        };
        // A session with one token makes all preparation of the prompt, including masks of its cache and its
        // eviction.
        let all = of(&self.long, &[Phase::Offline]);
        let prepared = all.plus(-1.0, of(short, &[Phase::Offline])).over(self.tokens - 1.0);
        WorkCost {
            online: of(&self.long, &[Phase::Decode]).over(self.tokens),
            prepared,
            prompt: Some(of(&self.long, &[Phase::Prefill])),
            prepared_prompt: Some(all.plus(-self.tokens, prepared)),
            setup,
        }
    }
}

/// Marks a ledger entry of a link to the helper with the scope [`DEALT`]. Its flows become 0, because they
/// and the flows of other links do not wait for each other.
fn dealt(Entry { phase, path, traffic }: Entry) -> Entry {
    Entry { phase, path: format!("{DEALT}/{path}"), traffic: Traffic { flows: 0, ..traffic } }
}

fn is_dealt(path: &str) -> bool {
    path.strip_prefix(DEALT).is_some_and(|rest| rest.starts_with('/'))
}

/// The operation to which a path of scopes belongs: the path's first two scopes, not counting the layer.
fn operation(path: &str) -> String {
    let any = any_layer(path);
    let inner = any.strip_prefix("layer */").unwrap_or(&any);
    let end = inner.match_indices('/').nth(1).map_or(inner.len(), |(at, _)| at);
    inner[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_is_two_scopes_of_any_layer() {
        for (path, name) in [
            ("layer 3/attention/softmax/softmax/exp", "attention/softmax"),
            ("layer 11/mlp/up", "mlp/up"),
            ("head/norm/rms norm", "head/norm"),
            ("embedding", "embedding"),
        ] {
            assert_eq!(operation(path), name);
        }
    }
}
