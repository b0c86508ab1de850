//! Settings of a server.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use tracing::info;
use waggle_model::{Lengths, Parts, QUOTA_SHARE};
use waggle_mpcache::PolicySpec;
use waggle_session::party::{Limits, PublicModel};

use super::host::Allow;
use crate::keys::Proof;
use crate::options::options;
use crate::{Error, Network, Terms};

options! {
    /// Settings of a server: `Server::of("shakespeare-gpt2").listen("127.0.0.1:7411").bind()?.run()`.
    ServerConfig {
        /// Hugging Face directory, or the name of a bundled model.
        model: String as impl Into<String> = crate::DEFAULT_MODEL.into(),
        /// Parts of the model that clients have themselves: `"embedding,layers=0-3".parse()?`. No other is public.
        public: Parts = Parts::default(),
        /// A LoRA in PEFT's form that is added to the model's matrices, a directory.
        adapter: Option<PathBuf> as impl Into<Option<PathBuf>> = None,
        /// Address to listen on; port 0 takes a free one.
        listen: String as impl Into<String> = "127.0.0.1:7411".into(),
        /// Terms that both parties must state alike. A server that is given a number of phases refuses the other one.
        terms: Terms = Terms::default(),
        /// Policies that clients may choose besides that of the terms. All of them need the same columns of the
        /// model.
        policies: Vec<PolicySpec> = Vec::new(),
        /// Slow this party's messages down to those of a network; the client must do the same.
        network: Network = Network::Loopback,
        /// Most tokens of a prompt.
        max_prompt: usize = Limits::default().lengths.prompt,
        /// Most tokens to generate for a client.
        max_tokens: usize = Limits::default().lengths.tokens,
        /// Whether there are conversations.
        conversations: bool = true,
        /// Most positions of a conversation; those of prompt and text together unless told otherwise.
        max_positions: Option<usize> as impl Into<Option<usize>> = None,
        /// Most guesses in a pass of a client that drafts; 0 refuses drafts.
        max_draft: usize = Limits::default().drafted,
        /// Bytes of transformed weights that stay in memory.
        weight_cache: usize = 0,
        /// Keep this party's part of the pools that clients fill and spend in this directory. They are as secret as
        /// the weights: never copy or restore them.
        pools: Option<PathBuf> as impl Into<Option<PathBuf>> = None,
        /// Most pools of one key in the directory.
        max_pools: usize = 64,
        /// Most pools of all keys together.
        max_pools_total: usize = 1024,
        /// Most positions that a key may have, in all and across restarts, because each tells about the weights.
        max_reveals: Reveals as impl Into<Reveals> = Reveals::OfModel,
        /// Whether the halves that a helper keeps of the weights are each client's own: one client and the helper
        /// cannot use what another has, and the helper keeps 8 bytes a weight for each.
        halves_by_client: bool = false,
        /// Most sessions at once; one for every two cores unless told otherwise.
        sessions: Option<usize> as impl Into<Option<usize>> = None,
        /// Most clients that wait for a session.
        queue: usize = 64,
        /// Most sessions of one key at once, those that wait included.
        max_sessions_per_key: Option<usize> as impl Into<Option<usize>> = None,
        /// Run the model on a text in the clear first, which finds models that leave the ranges of operations.
        range_check: bool = true,
        /// Give up on a client that is silent for so long.
        timeout: Duration = Duration::from_secs(120),
        /// End a session after so long.
        session_limit: Duration = Duration::from_secs(3600),
        /// Give up on a client that has not proved its key after so long.
        handshake_timeout: Duration = Duration::from_secs(10),
        /// Most connections at once that have not proved a key.
        max_idle: usize = 256,
        /// Most such connections from one address (IPv6: one network).
        max_idle_per_address: usize = 32,
        /// Write the report of the last session here.
        report: Option<PathBuf> as impl Into<Option<PathBuf>> = None,
        /// Show counters in Prometheus' text format at http://ADDR/metrics, to everybody who reaches the address.
        metrics: Option<String> as impl Into<Option<String>> = None,
        /// Whom it lets in, beside itself.
        allow: Allow = Allow::Known,
        /// Who this party is.
        proof: Proof = Proof::User,
    }
}

/// Most positions that a key may have in all: those that it has read or generated, padding and guesses included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reveals {
    /// One in [`QUOTA_SHARE`](waggle_model::QUOTA_SHARE) of those that give the model's secret weights away
    /// ([`telling_positions`](waggle_model::ModelSpec::telling_positions)), for every key but the server's own.
    #[default]
    OfModel,
    /// So many, for every key.
    Most(u64),
    /// Any number.
    Unlimited,
}

impl From<u64> for Reveals {
    fn from(positions: u64) -> Self {
        Reveals::Most(positions)
    }
}

impl FromStr for Reveals {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "unlimited" => Ok(Reveals::Unlimited),
            _ => text.parse().map(Reveals::Most).map_err(|_| "give a number, or `unlimited`".to_owned()),
        }
    }
}

impl Reveals {
    /// The limit for `model`; says what it stands for.
    pub(super) fn limit(self, model: &PublicModel) -> Result<Option<u64>, Error> {
        let telling = match self {
            Reveals::Unlimited => return Ok(None),
            Reveals::Most(limit) => return Ok(Some(limit)),
            Reveals::OfModel => model.spec.telling_positions(&model.disclosure.disclosed)?,
        };
        let limit = telling.map(|telling| telling.div_ceil(QUOTA_SHARE));
        if let (Some(telling), Some(limit)) = (telling, limit) {
            info!(
                "each key but this server's own may have {limit} positions, read or generated: 1 in {QUOTA_SHARE} of \
                 the {telling} whose logits give the secret weights away"
            );
        }
        Ok(limit)
    }
}

impl ServerConfig {
    /// What a client may ask for.
    pub(super) fn limits(&self) -> Limits {
        let both = self.max_prompt.saturating_add(self.max_tokens);
        Limits {
            lengths: Lengths { prompt: self.max_prompt, tokens: self.max_tokens },
            conversation: self.conversations.then(|| self.max_positions.unwrap_or(both)),
            session: Some(self.session_limit),
            preprocess: self.terms.preprocess,
            drafted: self.max_draft,
        }
    }
}
