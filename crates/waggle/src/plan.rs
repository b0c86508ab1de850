//! The traffic of a session, computed without one.

use std::path::PathBuf;

use waggle_model::{Lengths, Parts};
use waggle_mpcache::PolicySpec;
use waggle_net::LinkShape;
use waggle_planner::{Deployment, Footprint, Profile};
use waggle_protocols::Cores;
use waggle_report::{PeakMemory, Seconds};
use waggle_session::PublicPrefix;
use waggle_session::party::{self, Planned, PublicModel, SessionPlan, Watch, nobody};

use crate::models::{Stated, mapped_bytes, public_model};
use crate::options::options;
use crate::public::named;
use crate::request::Draft;
use crate::summary::{Chosen, report};
use crate::terms::ASSUMED_CORES;
use crate::{Error, Network, Report, Terms};

options! {
    /// A session to plan: `Plan::of("gpt2").prompt(512).network("wan".parse()?)`. A plan's report has exactly the
    /// bytes, messages and flows of the session's report.
    Plan {
        /// The model: a directory, a `config.json`, a bundled name or a published shape.
        model: String as impl Into<String> = crate::DEFAULT_MODEL.into(),
        /// Tokens of the prompt.
        prompt: usize = 32,
        /// Public tokens before the prompt.
        public_len: usize = 0,
        /// The policy by which the server prunes what its model keeps of public tokens.
        prefix_policy: PolicySpec = PolicySpec::default(),
        /// Texts of `prompt` tokens each that the model reads side by side.
        texts: usize = 1,
        /// Tokens to generate. `None` stands for 32, or for 1 with an encoder.
        tokens: Option<usize> as impl Into<Option<usize>> = None,
        /// Plan only one decoding step after this many cached tokens, with its preparation and without the pass over
        /// the prompt.
        cached: Option<usize> as impl Into<Option<usize>> = None,
        /// Count the byte that the client sends after each token to say whether it goes on.
        stop_at_eos: bool = false,
        /// Count the byte of `stop_at_eos` only after 16, 32, 64... tokens.
        pad_answer: bool = false,
        /// Whether the prompt is padded. `prompt` is then the padded length.
        pad_prompt: bool = false,
        /// Parts of the model that both parties have: `"embedding,layers=0-3".parse()?`.
        public: Parts = Parts::default(),
        /// Rank of an assumed adapter: the server adds a product of two thin matrices of this rank to every matrix of
        /// the layers.
        rank: usize = 0,
        /// Directory of an adapter that the server adds to the matrices of the layers.
        adapter: Option<PathBuf> as impl Into<Option<PathBuf>> = None,
        /// The tokens that the client guesses, so that a pass checks several.
        draft: Option<Draft> as impl Into<Option<Draft>> = None,
        /// Terms that both parties would state.
        terms: Terms = Terms::default(),
        /// The network of the session.
        network: Network = LAN,
        /// Measurements of the parties' machines, from which seconds and memory are predicted. Without measurements,
        /// seconds are the network's alone.
        machines: Option<Machines> as impl Into<Option<Machines>> = None,
    }
}

/// Tokens to generate in a plan that states no number.
const DEFAULT_TOKENS: usize = 32;

/// The network of a plan that states none.
pub const LAN: Network = Network::Imitated(LinkShape::PRESETS[0].1);

/// Measurements of the parties' machines.
#[derive(Clone, Debug)]
pub struct Machines {
    /// Measurements of the client's machine.
    pub client: Profile,
    /// Measurements of the server's machine.
    pub server: Profile,
    /// Whether both parties run on one machine and share its cores.
    pub together: bool,
}

impl Machines {
    /// The cores that were measured.
    pub fn cores(&self) -> Cores {
        Cores { client: self.client.cores, server: self.server.cores }
    }

    /// The planner's setting for parties with `cores` over `link`. `None` if `cores` are not the measured ones: the
    /// plan would pack products for one machine and take its seconds from another.
    pub fn setting(&self, cores: Cores, link: Option<LinkShape>) -> Option<Deployment> {
        let Machines { client, server, together } = self;
        (cores == self.cores()).then(|| Deployment {
            machines: [client.machine(), server.machine()],
            together: *together,
            link,
            imitated: *together && link.is_some(),
            wake: (client.wake_nanoseconds + server.wake_nanoseconds) / 2e9,
        })
    }
}

impl Plan {
    /// Plans sessions of `model`.
    pub fn of(model: impl Into<String>) -> Self {
        Plan::default().model(model)
    }

    /// Predicts the session.
    ///
    /// # Errors
    /// If there is no such model, or no session can run under these options.
    pub fn run(&self) -> Result<Report, Error> {
        self.run_with(&mut nobody)
    }

    /// [`Plan::run`], watched.
    ///
    /// # Errors
    /// As [`Plan::run`].
    pub fn run_with(&self, watch: &mut Watch) -> Result<Report, Error> {
        let assumed = self.machines.as_ref().map_or(ASSUMED_CORES, Machines::cores);
        let mut terms = self.terms.clone().cores(self.terms.cores.unwrap_or(assumed)).over(self.network)?;
        terms.prefix = self.prefix();
        let stated = Stated { parts: self.public.clone(), rank: self.rank, adapter: self.adapter.as_deref() };
        let model = public_model(&self.model, &terms.policy, &stated)?;
        // Where there are no weights to map, two bytes are assumed for each.
        let mapped = || mapped_bytes(&self.model).unwrap_or(2 * model.spec.parameters() as u64);
        self.run_for(&model, &terms, mapped, watch)
    }

    /// Public tokens of the planned number.
    pub(crate) fn prefix(&self) -> Option<PublicPrefix> {
        PublicPrefix::planned(self.public_len, &self.prefix_policy)
    }

    /// [`Plan::run_with`] for a `model` that is read already. `mapped` returns the bytes of weights that the server
    /// maps into memory.
    pub fn run_for(
        &self,
        model: &PublicModel,
        terms: &party::Terms,
        mapped: impl FnOnce() -> u64,
        watch: &mut Watch,
    ) -> Result<Report, Error> {
        let Plan { stop_at_eos, pad_answer, .. } = *self;
        let drafts = self.draft.as_ref().map(Draft::drafts).transpose()?;
        // The step after a prompt makes the second token.
        let tokens = self.tokens.unwrap_or(if model.spec.is_encoder() { 1 } else { DEFAULT_TOKENS });
        let (prompt, tokens) = self.cached.map_or((self.prompt, tokens), |cached| (cached, 2));
        let lengths = Lengths { prompt, tokens };
        let (padded, texts) = (self.pad_prompt, self.texts);
        let request = party::Request { stop_at_eos, pad_answer, padded, texts, draft: drafts, ..lengths.into() };
        let link = self.network.shape();
        let machines = self.machines.as_ref().filter(|machines| machines.cores() == terms.protocol.cores);
        let setting = machines.and_then(|machines| machines.setting(terms.protocol.cores, link));
        let plan = SessionPlan::new(model, terms).request(request).timed(setting);
        let plan = if self.cached.is_some() { plan.step() } else { plan };
        let Planned { outcome, footprint, .. } = plan.run(watch)?;
        let mut report = report(model, None, prompt, &outcome, self.chosen(tokens))?;
        report.predicted = true;
        report.kernels = None;
        report.estimated = ["seconds", "cpu_seconds"].map(String::from).to_vec();
        if let Some(draft) = &mut report.draft {
            // No plan knows how many guesses are right.
            draft.tokens_per_pass = draft.rate;
            report.estimated.push("tokens_per_pass".into());
        }
        if terms.policy.random_traffic() {
            // Quickselect's traffic depends on random coins. The plan states the mean.
            report.estimated.extend(["bytes", "messages", "flows"].map(String::from));
        }
        match machines {
            Some(machines) => set_estimates(&mut report, footprint, machines, mapped()),
            None => predict_seconds(&mut report, link),
        }
        for helper in report.helper.iter_mut().flat_map(|links| [&mut links.client, &mut links.server]).flatten() {
            let bytes = [helper.bytes_to_helper, helper.bytes_from_helper];
            helper.seconds = link.map_or(0.0, |link| link.predict(bytes, 0).as_secs_f64());
        }
        Ok(report)
    }

    fn chosen(&self, tokens: usize) -> impl Iterator<Item = Chosen> {
        let chosen = [
            ("link", self.network.to_string().into()),
            ("tokens", tokens.into()),
            ("stop_at_eos", self.stop_at_eos.into()),
            ("pad_prompt", self.pad_prompt.into()),
        ];
        let chosen = chosen.into_iter().chain((self.texts != 1).then_some(("texts", self.texts.into())));
        let chosen = chosen.chain(self.prefix().map(|prefix| named(&prefix)).into_iter().flatten());
        let chosen = chosen.chain(self.cached.map(|cached| ("cached", cached.into())));
        let chosen = chosen.chain(self.draft.iter().flat_map(Draft::chosen));
        chosen.chain(self.pad_answer.then_some(("pad_answer", true.into())))
    }
}

/// Sets all seconds to the time that the network `shape` alone would take: bytes at its rate, and half a round trip
/// for every flow.
fn predict_seconds(report: &mut Report, shape: Option<LinkShape>) {
    report.seconds_are = Some(Seconds::Network);
    for cost in report.costs_mut() {
        let bytes = [cost.bytes_client_to_server, cost.bytes_server_to_client];
        cost.seconds = shape.map_or(0.0, |shape| shape.predict(bytes, cost.flows).as_secs_f64());
    }
}

/// Marks the times as predicted by a calibration, adds the memory of both processes, and marks all of them as
/// estimates. `mapped` are the bytes of the weights.
fn set_estimates(report: &mut Report, footprint: Footprint, machines: &Machines, mapped: u64) {
    for name in ["seconds", "cpu_seconds", "peer_cpu_seconds", "peak_memory_bytes"].map(String::from) {
        if !report.estimated.contains(&name) {
            report.estimated.push(name);
        }
    }
    report.seconds_are = Some(Seconds::Predicted);
    for cost in report.costs_mut() {
        cost.peer_cpu_seconds.get_or_insert(0.0);
    }
    // `base_bytes` is the measured memory of a client and of a server that have no model yet.
    report.peak_memory_bytes = PeakMemory {
        client: Some(machines.client.base_bytes[0] + footprint.client),
        server: Some(machines.server.base_bytes[1] + footprint.server + mapped),
        mapped: Some(mapped),
    };
}
