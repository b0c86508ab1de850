//! What a decoded token costs, by plan: the mean of the tokens after a prompt, and what the prompt itself prepares.

use model::Lengths;
use net::{Phase, Shape, Traffic};
use planner::Setting;
use serde::{Deserialize, Serialize};
use session::party::{ClientOptions, Outcome, PublicModel, Request, Silent, Terms, plan, plan_step, plan_timed};

use super::Error;

/// What is sent, and how long that takes; fractions come from means.
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
}

impl Cost {
    pub(super) fn bytes(&self) -> f64 {
        self.bytes_client_to_server + self.bytes_server_to_client
    }

    /// This and `factor` times `other`.
    pub(super) fn plus(self, factor: f64, other: Cost) -> Self {
        let times = |ours: f64, theirs: f64| ours + factor * theirs;
        Cost {
            bytes_client_to_server: times(self.bytes_client_to_server, other.bytes_client_to_server),
            bytes_server_to_client: times(self.bytes_server_to_client, other.bytes_server_to_client),
            flows: times(self.flows, other.flows),
            network_seconds: times(self.network_seconds, other.network_seconds),
            predicted_seconds: self.predicted_seconds.zip(other.predicted_seconds).map(|(a, b)| times(a, b)),
        }
    }

    fn over(self, n: f64) -> Self {
        Cost { predicted_seconds: self.predicted_seconds.map(|_| 0.0), ..Cost::default() }.plus(1.0 / n, self)
    }
}

/// The mean of the tokens after a prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct MeanToken {
    pub(super) online: Cost,
    /// Preparation that a further token takes; in one phase what is made on the spot.
    pub(super) prepared_token: Cost,
    /// Set-up and preparation that do not depend on how many tokens follow; not known of a single token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) prepared_prompt: Option<Cost>,
}

/// Plans the `tokens` tokens that are decoded after a prompt of `prompt`, over `link` if that takes time. One token
/// is planned alone, with its own preparation and without the pass over the prompt.
pub(super) fn mean_token(
    model: &PublicModel,
    terms: &Terms,
    link: Option<Shape>,
    setting: Option<&Setting>,
    prompt: usize,
    tokens: usize,
) -> Result<MeanToken, Error> {
    let options = ClientOptions::default();
    let cost = |outcome: &Outcome, phases: &[Phase]| {
        let mut sum = Traffic::default();
        outcome.entries.iter().filter(|e| phases.contains(&e.phase)).for_each(|e| sum.add(&e.traffic));
        let Traffic { bytes_client_to_server: up, bytes_server_to_client: down, flows, time, .. } = sum;
        Cost {
            bytes_client_to_server: up as f64,
            bytes_server_to_client: down as f64,
            flows: flows as f64,
            network_seconds: link.map_or(0.0, |link| link.predict([up, down], flows).as_secs_f64()),
            predicted_seconds: setting.map(|_| time.as_secs_f64()),
        }
    };
    if tokens <= 1 {
        let (step, _) = plan_step(model, terms, &options, prompt, None, setting, &mut Silent)?;
        let [online, prepared_token] = [Phase::Decode, Phase::Offline].map(|phase| cost(&step, &[phase]));
        return Ok(MeanToken { online, prepared_token, prepared_prompt: None });
    }
    // The pass over the prompt makes the first token, and the others are decoded.
    let session = |decoded: usize| {
        let request = Request::from(Lengths { prompt, tokens: decoded + 1 });
        Ok::<_, Error>(match setting {
            Some(setting) => plan_timed(model, terms, &options, &request, setting, &mut Silent)?.0,
            None => plan(model, terms, &options, &request, &mut Silent)?,
        })
    };
    let (long, short) = (session(tokens)?, session(1)?);
    // A session with one token prepares all that the prompt needs, masks of its cache and its eviction included.
    let before = [Phase::Setup, Phase::Offline];
    let prepared = cost(&long, &before);
    let n = tokens as f64;
    let prepared_token = prepared.plus(-1.0, cost(&short, &before)).over(n - 1.0);
    let prepared_prompt = Some(prepared.plus(-n, prepared_token));
    Ok(MeanToken { online: cost(&long, &[Phase::Decode]).over(n), prepared_token, prepared_prompt })
}
