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
use crate::{Error, Network, Public, Terms};

options! {
    /// Settings of a server: `Server::of("shakespeare-gpt2").listen("127.0.0.1:7411").bind()?.run()`.
    ServerConfig {
        /// Hugging Face directory, or the name of a bundled model.
        model: String as impl Into<String> = crate::DEFAULT_MODEL.into(),
        /// Public parts of the model, which clients have themselves: `"embedding,layers=0-3".parse()?`. All other
        /// parts are secret.
        public: Parts = Parts::default(),
        /// Directory of a LoRA in PEFT's form that is added to the model's matrices.
        adapter: Option<PathBuf> as impl Into<Option<PathBuf>> = None,
        /// Address to listen on. Port 0 stands for any free port.
        listen: String as impl Into<String> = "127.0.0.1:7411".into(),
        /// Terms that both parties must state alike. If they state a number of phases, the server refuses clients
        /// with the other number.
        terms: Terms = Terms::default(),
        /// Policies that clients may choose besides the policy of the terms. All must need the same learned columns
        /// of the model.
        policies: Vec<PolicySpec> = Vec::new(),
        /// Slow this party's messages down to those of a network; the client must do the same.
        network: Network = Network::Loopback,
        /// Most tokens of a prompt.
        max_prompt: usize = Limits::default().lengths.prompt,
        /// Most public tokens that a client may have read before its texts.
        max_public: usize = Limits::default().public,
        /// Public tokens that the server offers: clients that name none of their own put them before their texts.
        offer: Option<Public> as impl Into<Option<Public>> = None,
        /// Most tokens to generate for a client.
        max_tokens: usize = Limits::default().lengths.tokens,
        /// Whether clients may hold conversations.
        conversations: bool = true,
        /// Most positions of a conversation; by default `max_prompt` and `max_tokens` together.
        max_positions: Option<usize> as impl Into<Option<usize>> = None,
        /// Most guesses in a pass of a client that drafts; 0 refuses drafting.
        max_draft: usize = Limits::default().drafted,
        /// Bytes of transformed weights that stay in memory.
        weight_cache: usize = 0,
        /// Keep the server's halves of the clients' pools in this directory. The files are as secret as the weights.
        /// Never copy or restore them.
        pools: Option<PathBuf> as impl Into<Option<PathBuf>> = None,
        /// Most pools of one key in `pools`.
        max_pools: usize = 64,
        /// Most pools of all keys together in `pools`.
        max_pools_total: usize = 1024,
        /// Most positions that a key may read or generate, in all and across restarts. They are bounded because each
        /// position tells about the weights.
        max_reveals: Reveals as impl Into<Reveals> = Reveals::OfModel,
        /// Whether a helper keeps separate halves of the weights for each client, 8 bytes a weight. One client and
        /// the helper then cannot use what another client has.
        halves_by_client: bool = false,
        /// Most sessions at once; by default one for every two cores.
        sessions: Option<usize> as impl Into<Option<usize>> = None,
        /// Most clients that wait in the queue.
        queue: usize = 64,
        /// Most sessions of one key at once, waiting ones included.
        max_sessions_per_key: Option<usize> as impl Into<Option<usize>> = None,
        /// Whether the model first reads a text in the clear. This finds models whose values leave the ranges of
        /// operations.
        range_check: bool = true,
        /// Give up on a client that is silent for this time.
        timeout: Duration = Duration::from_secs(120),
        /// End a session after this time.
        session_limit: Duration = Duration::from_secs(3600),
        /// Give up on a client that has not proved its key after this time.
        handshake_timeout: Duration = Duration::from_secs(10),
        /// Most connections at once that have not proved a key.
        max_idle: usize = 256,
        /// Most connections from one address that have not proved a key. In IPv6, a network of 64 bits counts as one
        /// address.
        max_idle_per_address: usize = 32,
        /// Write the report of each session to this file. The last one stays.
        report: Option<PathBuf> as impl Into<Option<PathBuf>> = None,
        /// Address ADDR at which counters are shown as http://ADDR/metrics, in Prometheus' text format. Everybody who
        /// reaches the address sees them.
        metrics: Option<String> as impl Into<Option<String>> = None,
        /// Clients that the server lets in, beside those with its own key.
        allow: Allow = Allow::Known,
        /// The key pair by which the server proves who it is.
        proof: Proof = Proof::User,
    }
}

/// Most positions that a key may have read or generated in all, padding and guesses included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reveals {
    /// The number of positions that give the model's secret weights away
    /// ([`telling_positions`](waggle_model::ModelSpec::telling_positions)), divided by
    /// [`QUOTA_SHARE`](waggle_model::QUOTA_SHARE). The server's own key has no limit.
    #[default]
    OfModel,
    /// This number, for every key.
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
    /// The limit for `model`. Logs the number and its meaning.
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
    /// The limits on a client's requests.
    pub(super) fn limits(&self) -> Limits {
        let both = self.max_prompt.saturating_add(self.max_tokens);
        Limits {
            lengths: Lengths { prompt: self.max_prompt, tokens: self.max_tokens },
            conversation: self.conversations.then(|| self.max_positions.unwrap_or(both)),
            session: Some(self.session_limit),
            preprocess: self.terms.preprocess,
            drafted: self.max_draft,
            public: self.max_public,
        }
    }
}
