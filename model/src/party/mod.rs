//! The two parties of a session, from the first byte to the last token.
//!
//! A server prepares a model once ([`ModelServer::load`]) and runs one session per client ([`ModelServer::serve`]). A
//! client opens a session ([`ClientSession::open`]), learns what is public about the model, and generates
//! ([`ClientSession::generate`]). [`plan`] predicts the same session from shapes: bytes and flows of every account
//! are equal.
//!
//! A session begins with these messages, booked in phase `setup` under `handshake`:
//!
//! | message | from | bytes |
//! |---|---|---|
//! | handshake ([`net::handshake`]): version and [`Terms`], which must be equal but for [`preprocess`](protocols::Options::preprocess), which the client chooses; shape and name of the model | both | up to [`net::handshake::MAX_BYTES`] |
//! | shape: a [`ModelSpec`] as JSON | server | up to [`MAX_SHAPE_BYTES`] |
//! | scales: fractional bits of each weight, in the order of [`Model::load`](crate::Model::load) | server | 1 per weight |
//! | tokenizer: the text of `tokenizer.json`; empty unless there is one and the client wants it | server | up to [`MAX_TOKENIZER_BYTES`] |
//! | request: tokens of the prompt, tokens to generate (u32, little endian), a byte that adds 1 to stop at the end of a text and 2 if the prompt may be padded; 0 to generate, 1 to fill a pool, 2 to generate from the pool whose id follows | client | 26 |
//! | verdict: empty, or why the request is refused | server | up to [`MAX_REASON_BYTES`] |
//! | id of the pool to be filled, if that is the request | server | 16 |
//!
//! Then come base OTs, in a two-phase session ([`protocols::Options::preprocess`]) the correlations that [`needs`]
//! lists, and the generation. With `stop_at_eos` the client sends one more byte after each token.
//!
//! At the end both parties compare what they saw of the session ([`net::Channel::confirm_transcript`]); results are
//! final only then.
//!
//! The two phases may be two sessions with any time between them. [`ClientSession::fill`] makes the correlations,
//! without the OTs, and ends when each party has its own in a file: the client says `pool/ready` (empty, or what went
//! wrong), the server answers alike, the client publishes its file and says `pool/kept`, the server publishes its
//! own. [`ClientSession::spend`] checks the client's [`Pool`](crate::pool::Pool), the server (one [with
//! pools](ModelServer::with_pools)) that of the same id before its verdict; then the client and after it the server
//! claim their parts and say `pool/claimed`, and both reserve the OTs that the generation needs. What each party has
//! after a crash is in [`crate::pool`]. A generation may be shorter than what the pool was made for. Rows of masks
//! serve any lengths; those of keys and values serve the prompt of the pool's own length and any number of tokens
//! after it. What does not fit a shorter prompt is made on the spot, booked as `offline`.
//!
//! Neither party believes the other's numbers: lengths are bounded before anything is allocated, the shape is checked
//! as one from a file would be, and a request is held against the model's positions and the server's [`Limits`].

mod client;
mod correlations;
mod opening;
mod plan;
mod prompt;
mod recorder;
mod server;

use mpcache::{Padding, PolicySpec};
use net::Entry;
use protocols::functions::softmax::MAX_SOFTMAX_COLUMNS;

pub use client::{ClientOptions, ClientSession};
pub use opening::{MAX_REASON_BYTES, MAX_SHAPE_BYTES};
pub(crate) use plan::needs_watched;
pub use plan::{needs, plan, plan_filling, plan_spending};
pub use prompt::Prompt;
pub use server::ModelServer;

pub use crate::MAX_TOKENIZER_BYTES;
use crate::generate::{check_lengths, check_padding};
use crate::pool::PoolId;
use crate::report::{Cost, Wire};
use crate::{Error, GenerateOptions, Generation, Lengths, ModelSpec, Reveal, Step};

/// What both parties state before a session and must state alike. The client alone chooses the number of phases
/// ([`protocols::Options::preprocess`]); the server adopts it or refuses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Choices of the protocols.
    pub protocol: protocols::Options,
    /// What the client learns of each position.
    pub reveal: Reveal,
    /// Which of the cache a token looks at.
    pub policy: PolicySpec,
}

/// The party at the other end of a session, as far as the link has proved it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// The text of its public key; `None` on a link that proves none.
    pub key: Option<String>,
}

/// What a client asks for: public.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Lengths of prompt and text; the text may be shorter with `stop_at_eos`.
    pub lengths: Lengths,
    /// End after an end-of-text token; the server then learns how many tokens there are.
    pub stop_at_eos: bool,
    /// The first tokens of the prompt may be padding, see [`Prompt::padded`].
    pub padded: bool,
}

/// The most that a server does for one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest prompt and longest text.
    pub lengths: Lengths,
    /// Whether sessions have two phases ([`protocols::Options::preprocess`]); `None` leaves it to the client.
    pub preprocess: Option<bool>,
}

impl Default for Limits {
    /// A thousand of each, in as many phases as the client likes.
    fn default() -> Self {
        Limits { lengths: Lengths { prompt: 1024, tokens: 1024 }, preprocess: None }
    }
}

/// What a client may know about a model.
#[derive(Clone, Debug, PartialEq)]
pub struct PublicModel {
    /// Name, for reports.
    pub name: String,
    /// Architecture and shape.
    pub spec: ModelSpec,
    /// Fractional bits of each weight in the order of [`Model::load`](crate::Model::load): about the logarithm of its
    /// largest entry.
    pub frac_bits: Vec<u32>,
    /// Text of `tokenizer.json`, if there is one and the client asked for it.
    pub tokenizer: Option<Vec<u8>>,
}

/// What one party has of a session that is over.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens and logits, on the client; their number on both.
    pub generation: Generation,
    /// All accounts of the ledger.
    pub entries: Vec<Entry>,
    /// Cost of each token after the first. The stop byte that follows a token counts for the next one.
    pub per_token: Vec<Cost>,
    /// The pool that this session filled, instead of generating.
    pub filled: Option<PoolId>,
    /// Whether the session had two phases.
    pub preprocess: bool,
    /// How the bytes travelled; `None` where there is no wire.
    pub wire: Option<Wire>,
}

/// Watches a session, and may end it. Every method has a default that does nothing.
pub trait Observer {
    /// On the server: a client asks for a session in which it learns the logits of `positions` positions. Called
    /// before anything is planned or claimed for it; an error is the server's verdict.
    fn ask(&mut self, positions: u64) -> Result<(), Error> {
        let _ = positions;
        Ok(())
    }

    /// The parties agree on what they run and set up base OTs.
    fn setup(&mut self) {}

    /// The offline phase of a two-phase session: `done` of `total` bytes have been exchanged.
    fn prepare(&mut self, done: u64, total: u64) {
        let _ = (done, total);
    }

    /// `step` begins.
    fn begin(&mut self, step: Step) {
        let _ = step;
    }

    /// `done` of `layers` layers of the current step are done.
    fn layer(&mut self, done: usize, layers: usize) {
        let _ = (done, layers);
    }

    /// The current step is over. `token` is known to the client only.
    fn token(&mut self, token: Option<u32>) {
        let _ = token;
    }

    /// Whether nobody wants the rest; asked before each step. The session then ends with [`Error::Abandoned`].
    fn abandoned(&self) -> bool {
        false
    }
}

/// Most steps of planning ([`Request::planning_steps`]) for a session in two phases: half a minute or so, and more
/// than a GPT-2 XL needs for all its positions. Either party refuses what is beyond, however honest: a model or a
/// request may be made up to keep it busy.
pub const MAX_PLANNING_STEPS: usize = 1 << 16;

/// Watches nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {}

impl Limits {
    /// No limits but the model's own.
    pub const NONE: Limits = Limits { lengths: Lengths::MAX, preprocess: None };

    /// Refuses a number of phases that the server does not offer.
    fn check_phases(&self, terms: &Terms) -> Result<(), Error> {
        let got = terms.protocol.preprocess;
        match self.preprocess {
            Some(expected) if expected != got => Err(Error::Phases { expected, got }),
            _ => Ok(()),
        }
    }
}

impl From<Lengths> for Request {
    /// A generation of these lengths to the end, without padding.
    fn from(lengths: Lengths) -> Self {
        Request { lengths, stop_at_eos: false, padded: false }
    }
}

impl Request {
    /// What it costs to plan two phases for this, from public numbers alone: about half a millisecond each. The
    /// planner goes through all layers once a token; reading the shape of a layer costs as much as eight tokens.
    pub fn planning_steps(&self, spec: &ModelSpec) -> usize {
        spec.layers().saturating_mul(self.lengths.tokens.saturating_add(8))
    }

    /// Refuses what would take too long to plan.
    fn check_planning(&self, spec: &ModelSpec, terms: &Terms) -> Result<(), Error> {
        let (steps, limit) = (self.planning_steps(spec), MAX_PLANNING_STEPS);
        if terms.protocol.preprocess && steps > limit {
            return Err(Error::Planning { tokens: self.lengths.tokens, layers: spec.layers(), steps, limit });
        }
        Ok(())
    }

    /// Refuses padding under a policy that would choose among it.
    fn check_padding(&self, terms: &Terms) -> Result<(), Error> {
        check_padding(self.padded, &terms.policy)
    }

    /// The options of the generation under `terms`, as far as both parties know them.
    fn options(&self, terms: &Terms) -> GenerateOptions {
        GenerateOptions {
            tokens: self.lengths.tokens,
            reveal: terms.reveal,
            stop_at_eos: self.stop_at_eos,
            all_positions: false,
            policy: terms.policy.clone(),
            padding: self.padded.then_some(Padding { tokens: None }),
        }
    }

    /// Refuses a request that the model `spec` or the server's `limits` do not allow.
    pub fn check(&self, spec: &ModelSpec, limits: &Limits) -> Result<(), Error> {
        // The softmax of the engines in fixed point has a limit of its own.
        let limit = spec.max_positions().unwrap_or(usize::MAX).min(MAX_SOFTMAX_COLUMNS);
        check_lengths(self.lengths, limits.lengths, limit)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn llama(layers: usize) -> ModelSpec {
        let config = format!(
            r#"{{"model_type": "llama", "num_hidden_layers": {layers}, "hidden_size": 8, "intermediate_size": 8,
                 "num_attention_heads": 2, "vocab_size": 11}}"#
        );
        ModelSpec::from_config_json(config.as_bytes()).unwrap()
    }

    fn two_phases() -> Terms {
        let mut terms = Terms::default();
        terms.protocol.preprocess = true;
        terms
    }

    #[test]
    fn what_would_take_minutes_to_plan_is_refused_before() {
        let request = |tokens| Request::from(Lengths { prompt: 1024, tokens });
        let check = |layers, tokens| request(tokens).check_planning(&llama(layers), &two_phases());
        check(48, 1024).unwrap();
        check(80, 512).unwrap();
        for (layers, tokens) in [(4096, 32), (126, 1024), (4, 1 << 20)] {
            let refused = check(layers, tokens).unwrap_err();
            assert!(matches!(refused, Error::Planning { limit: MAX_PLANNING_STEPS, .. }), "{refused}");
        }
        // One phase plans nothing.
        request(1024).check_planning(&llama(4096), &Terms::default()).unwrap();
    }

    /// Gives up when it is asked for the third time.
    #[derive(Default)]
    struct Impatient(Cell<usize>);

    impl Observer for Impatient {
        fn abandoned(&self) -> bool {
            self.0.set(self.0.get() + 1);
            self.0.get() >= 3
        }
    }

    #[test]
    fn planning_ends_when_nobody_wants_it() {
        let spec = llama(1);
        let frac_bits = vec![protocols::DEFAULT_WEIGHT_FRAC; spec.weight_specs().len()];
        let request = Request::from(Lengths { prompt: 2, tokens: 1000 });
        let observer = Impatient::default();
        let planned = needs_watched(&spec, &frac_bits, &two_phases(), &request, &observer);
        assert!(matches!(planned, Err(Error::Abandoned)));
        assert_eq!(observer.0.get(), 3);
    }
}
