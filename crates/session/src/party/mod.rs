//! The two parties of a session, from the first byte to the last token.
//!
//! A server prepares a model once ([`ServerBuilder::load`]) and runs one session per client ([`ModelServer::serve`]).
//! A client opens a session ([`ClientSession::open`]), learns what is public about the model, and generates
//! ([`ClientSession::generate`]). [`SessionPlan`] predicts the same session from shapes, with equal bytes and flows
//! in every account.
//!
//! A session begins with these messages, booked in phase `setup` under `handshake`:
//!
//! | message | from | bytes |
//! |---|---|---|
//! | handshake ([`waggle_net::handshake`]): version and [`Terms`], which must be equal but for [`preprocess`](waggle_protocols::Options::preprocess), which the client chooses; shape and name of the model; its public parts with their digests, and a client's digests of its own, where there are any; the cores, the family of kernels, and the cores and link that were given to each party | both | up to [`waggle_net::handshake::MAX_BYTES`] |
//! | measurement of the link ([`waggle_net::measure`]), under `link`, if neither was given it | both | up to 2.4 MB each |
//! | shape: a [`ModelSpec`](waggle_model::ModelSpec) as JSON | server | up to [`MAX_SHAPE_BYTES`] |
//! | scales: fractional bits of each weight, in the order of [`Model::load`](waggle_model::Model::load) | server | 1 per weight |
//! | tokenizer: the text of `tokenizer.json`; empty unless there is one and the client wants it | server | up to [`MAX_TOKENIZER_BYTES`] |
//! | chat template: a [`ChatTemplate`](waggle_tokenizer::ChatTemplate) as JSON, empty if there is none; no message unless the client wants it | server | up to [`MAX_TEMPLATE_BYTES`](waggle_tokenizer::MAX_TEMPLATE_BYTES) |
//! | public tokens that the server offers: four bytes each, and the policy that prunes them, as `postcard` writes them; no message unless it offers some, whose digest it states in the handshake | server | up to 525 kB |
//! | request: a [`Request`] and the purpose of the session, as `postcard` writes a structure (`Message` in `party/opening.rs`). The purpose is to generate, perhaps with the logits of the prompt, to fill a part of a pool, to generate from the pool whose parts have the ids that follow, or a chat, whose turns have at most these lengths | client | 13, and what draft, part and ids take: 16 for each id of a part, or of a pool that the client has; 4 for each of the client's own public tokens |
//! | verdict: empty, or why the request is refused | server | up to [`MAX_REASON_BYTES`] |
//! | scales of public tokens, if the texts stand behind some: fractional bits of the matrices of their keys and values, layer by layer | server | 2 for each layer |
//! | id of the pool to be filled, if that is the request | server | 16 |
//!
//! Then come base OTs, and the generation follows. In a two-phase session ([`waggle_protocols::Options::preprocess`])
//! the correlations that the session takes from its stock are made in between. With `stop_at_eos` the client sends
//! one more byte after each pass; where answers are padded ([`Request::pad_answer`]) it does so only after the passes
//! that fill a [`bucket`](waggle_model::bucket). With a draft ([`Request::draft`]) it sends how many tokens a pass
//! keeps, a byte, after each pass that may keep several; the server refuses a number that no such pass keeps.
//!
//! At the end both parties compare their transcripts of the session ([`waggle_net::Channel::confirm_transcript`]).
//! Results are final only then.
//!
//! The two phases may be two sessions with any time between them.
//!
//! - [`ClientSession::fill`] makes the correlations, without the OTs, and ends when each party has its own in a file.
//!   The client says `pool/ready` (empty, or what went wrong), and the server answers alike. The client publishes its
//!   file and says `pool/kept`; the server publishes its own.
//! - [`ClientSession::spend`] checks the client's [`PoolSet`](crate::pool::PoolSet), and a server [with
//!   pools](ModelServer::with_pools) checks that of the same id before its verdict. Then the client and after it the
//!   server claim their parts and say `pool/claimed`, and both reserve the OTs that the generation needs.
//!
//! A client that claims a damaged file says that its part is lost, and the server removes its own part. For parts
//! that were lost otherwise, a client that fills a pool says which parts it has, and the server removes this key's
//! other parts ([`ClientSession::having_only`]).
//!
//! A pool may be made in parts, each in a session of its own, between any two processes of the same two parties
//! ([`ClientSession::fill_part`]). They are spent together ([`PoolSet`](crate::pool::PoolSet)): both parties check
//! all parts before the verdict and claim all of them at once.
//!
//! A session may have several turns: see [`chat`]. A server older than this feature rejects the request of a chat by
//! name.
//!
//! The files that each party has after a crash are described in [`crate::pool`]. A generation may be shorter than the
//! one that the pool was made for. Rows of masks serve any lengths. Masks of keys and values serve the prompt of the
//! pool's own length and any number of tokens after it. What does not fit a shorter prompt is made on the spot,
//! booked as `offline`.
//!
//! Neither party trusts the other's numbers: lengths are bounded before anything is allocated, the shape is checked
//! like one from a file, and a request is compared with the model's positions and the server's [`Limits`].

mod admission;
pub mod chat;
mod client;
mod correlations;
mod helper;
mod kept;
mod local;
mod meeting;
mod opening;
mod pairing;
mod plan;
mod prompt;
mod recorder;
mod server;
mod source;
mod wire;

use waggle_net::Entry;
use waggle_protocols::Part;

pub use chat::ChatSession;
pub use client::ClientSession;
pub use helper::ToHelper;
pub use local::in_one_process;
pub use opening::{MAX_REASON_BYTES, MAX_SHAPE_BYTES, PROTOCOL};
pub use pairing::{DealtSession, Pairing};
pub use plan::{Planned, SessionPlan};
pub use prompt::Prompt;
pub use server::{ModelServer, ServerBuilder};

pub use crate::event::{Event, Flow, Watch, nobody};
use crate::pool::PoolId;
pub use crate::public_model::PublicModel;
pub use crate::request::{Limits, MAX_PLANNING_STEPS, Request};
pub use crate::terms::{ClientOptions, Findings, Open, Peer, Terms};
use waggle_model::{Drafts, Generation};
use waggle_report::{Cost, Wire};
pub use waggle_tokenizer::MAX_TOKENIZER_BYTES;

/// The pair of files, one at each party, that a session filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filled {
    /// The id of both files.
    pub id: PoolId,
    /// The part of a pool that the files hold.
    pub part: Part,
}

impl std::fmt::Display for Filled {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let Filled { id, part } = self;
        if part.is_whole() { write!(f, "pool {id} filled") } else { write!(f, "pool {id} filled (part {part})") }
    }
}

/// One party's results of a session that is over.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens and logits on the client; the number of tokens on both parties.
    pub generation: Generation,
    /// All accounts of the ledger.
    pub entries: Vec<Entry>,
    /// Costs of the correlations made ahead, by kind: [`waggle_net::Ledger::divided`].
    pub kinds: Vec<Entry>,
    /// Cost of each token after the first. The stop byte that follows a token counts for the next one. Where a pass
    /// gives several tokens, the first has the whole cost of the pass.
    pub per_token: Vec<Cost>,
    /// The pool, or part of a pool, that this session filled instead of generating.
    pub filled: Option<Filled>,
    /// The terms of the session.
    pub terms: Terms,
    /// The settings of the draft; `None` if the session has no draft, so that no pass checks guesses.
    pub draft: Option<Drafts>,
    /// The accounts of the client's link to the helper and of the server's, in this order; `None` where this party
    /// does not know them.
    pub helper: [Option<Vec<Entry>>; 2],
    /// The bytes that crossed the wire, and whether the link was encrypted; `None` where there is no wire.
    pub wire: Option<Wire>,
}
