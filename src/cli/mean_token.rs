//! The cost of a decoded token, by plan: the mean of the tokens after a prompt, and the cost of the prompt itself, of
//! whole steps and of their operations.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use model::Lengths;
use net::{Entry, LinkShape, Phase, Traffic};
use planner::Deployment;
use report::any_layer;
use serde::{Deserialize, Serialize};
use session::party::{Outcome, PublicModel, SessionPlan, Silent, Terms};

use super::Error;

/// Scope of what a helper deals.
const DEALT: &str = "dealt";

/// Bytes and flows, and the seconds that they take; fractions come from means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Cost {
    pub(super) bytes_client_to_server: f64,
    pub(super) bytes_server_to_client: f64,
    pub(super) flows: f64,
    /// Of the link alone.
    pub(super) network_seconds: f64,
    /// With computation, by a calibration of the machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) predicted_seconds: Option<f64>,
    /// Of the cores of both parties, by that calibration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) core_seconds: Option<f64>,
}

impl Cost {
    pub(super) fn bytes(&self) -> f64 {
        self.bytes_client_to_server + self.bytes_server_to_client
    }

    pub(super) fn plus(self, factor: f64, other: Cost) -> Self {
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

/// The mean of the tokens after a prompt, of whole steps or of one operation of theirs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct MeanToken {
    pub(super) online: Cost,
    /// Preparation that a further token takes; in one phase what is made on the spot.
    pub(super) prepared_token: Cost,
    /// The pass over the prompt; not known of a single token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) prompt: Option<Cost>,
    /// Set-up and preparation that do not depend on how many tokens follow; not known of a single token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) prepared_prompt: Option<Cost>,
}

impl MeanToken {
    pub(super) fn total(&self) -> Cost {
        self.online.plus(1.0, self.prepared_token)
    }
}

/// One operation of a decoding step, in all layers together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Operation {
    /// Its scopes, for example `attention/softmax`.
    pub(super) operation: String,
    #[serde(flatten)]
    pub(super) mean: MeanToken,
}

/// The planned sessions that a mean is made of.
pub(super) struct Sessions {
    link: Option<LinkShape>,
    predicted: bool,
    tokens: f64,
    /// All tokens; one alone is without the pass over the prompt.
    long: Outcome,
    /// One decoded token, if there are several.
    short: Option<Outcome>,
}

impl Sessions {
    /// Plans the `tokens` tokens that are decoded after a prompt of `prompt`, over `link` if that takes time. One
    /// token is planned alone, with its own preparation and without the pass over the prompt.
    pub(super) fn plan(
        model: &PublicModel,
        terms: &Terms,
        link: Option<LinkShape>,
        setting: Option<&Deployment>,
        prompt: usize,
        tokens: usize,
    ) -> Result<Self, Error> {
        // The pass over the prompt makes the first token, and the others are decoded.
        let session = |decoded: usize| {
            let request = Lengths { prompt, tokens: decoded + 1 };
            SessionPlan::new(model, terms).request(request).timed(setting.cloned())
        };
        let outcome = |plan: SessionPlan| {
            let mut outcome = plan.run(&mut Silent)?.outcome;
            let dealt: Vec<Entry> = outcome.helper.iter_mut().filter_map(Option::take).flatten().map(dealt).collect();
            outcome.entries.extend(dealt);
            Ok::<_, Error>(outcome)
        };
        let (long, short) = match tokens {
            0 | 1 => (outcome(session(1).step())?, None),
            n => (outcome(session(n))?, Some(outcome(session(1))?)),
        };
        Ok(Sessions { link, predicted: setting.is_some(), tokens: tokens as f64, long, short })
    }

    /// The mean of whole steps.
    pub(super) fn whole(&self) -> MeanToken {
        self.mean(|_| true)
    }

    /// The mean of each operation, the one with the most bytes first. Set-up belongs to none.
    pub(super) fn operations(&self) -> Vec<Operation> {
        let entries = self.long.entries.iter().filter(|entry| entry.phase != Phase::Setup);
        let names: BTreeSet<String> = entries.map(|entry| operation(&entry.path)).collect();
        let of = |name: String| Operation { mean: self.mean(|path| operation(path) == name), operation: name };
        let mut operations: Vec<Operation> = names.into_iter().map(of).collect();
        let bytes = |operation: &Operation| {
            [Some(operation.mean.total()), operation.mean.prompt].map(|cost| cost.map_or(0.0, |cost| cost.bytes()))
        };
        operations.sort_by(|a, b| bytes(b).partial_cmp(&bytes(a)).unwrap_or(Ordering::Equal));
        operations
    }

    /// The mean of what is booked to paths that are `counted`.
    fn mean(&self, counted: impl Fn(&str) -> bool) -> MeanToken {
        let cost = |outcome: &Outcome, phases: &[Phase]| {
            let mut sum = Traffic::default();
            let entries = outcome.entries.iter().filter(|e| phases.contains(&e.phase) && counted(&e.path));
            entries.for_each(|e| sum.add(&e.traffic));
            let Traffic { bytes_client_to_server: up, bytes_server_to_client: down, flows, time, .. } = sum;
            Cost {
                bytes_client_to_server: up as f64,
                bytes_server_to_client: down as f64,
                flows: flows as f64,
                network_seconds: self.link.map_or(0.0, |link| link.predict([up, down], flows).as_secs_f64()),
                predicted_seconds: self.predicted.then_some(time.as_secs_f64()),
                core_seconds: self.predicted.then_some((sum.cpu + sum.peer_cpu).as_secs_f64()),
            }
        };
        let Some(short) = &self.short else {
            let [online, prepared_token] = [Phase::Decode, Phase::Offline].map(|phase| cost(&self.long, &[phase]));
            return MeanToken { online, prepared_token, prompt: None, prepared_prompt: None };
        };
        // A session with one token prepares all that the prompt needs, masks of its cache and its eviction included.
        let before = [Phase::Setup, Phase::Offline];
        let prepared = cost(&self.long, &before);
        let prepared_token = prepared.plus(-1.0, cost(short, &before)).over(self.tokens - 1.0);
        MeanToken {
            online: cost(&self.long, &[Phase::Decode]).over(self.tokens),
            prepared_token,
            prompt: Some(cost(&self.long, &[Phase::Prefill])),
            prepared_prompt: Some(prepared.plus(-self.tokens, prepared_token)),
        }
    }
}

/// What crosses a link to the helper, whose flows wait for no other link's.
fn dealt(Entry { phase, path, traffic }: Entry) -> Entry {
    Entry { phase, path: format!("{DEALT}/{path}"), traffic: Traffic { flows: 0, ..traffic } }
}

/// The operation that a path of scopes belongs to: its first two scopes, within whatever layer.
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
