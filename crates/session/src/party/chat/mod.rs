//! A session of several turns: the private cache stays, and only new words go through the model.
//!
//! After the request of a chat and its verdict ([`super`]) base OTs follow.
//! From then on the client sends commands, and the server answers each before both carry it out. All of them are
//! booked under `chat`, commands and answers in phase `setup`:
//!
//! | message | from | bytes |
//! |---|---|---|
//! | bounds: positions of a conversation, milliseconds of silence and of a session that the server allows (`Bounds` in `chat/messages.rs`) | server | 24 |
//! | command: to end, a turn, to prepare, to begin a new conversation, to stay (`Command` there) | client | 24 |
//! | answer: empty, or why the command is refused | server | up to [`MAX_REASON_BYTES`](super::MAX_REASON_BYTES) |
//!
//! - **A turn** has the number of its new tokens and of the tokens that may be generated. It is a generation whose
//!   cache holds the turns before it ([`generate_with`](waggle_model::generate_with)). The last token of an answer
//!   was not read, so it begins the next turn. With `stop_at_eos` the client says in a byte after each pass whether
//!   the answer ends. Where answers are padded, it does so only after the passes that fill a
//!   [`bucket`](waggle_model::bucket). The parties compare their transcripts after every turn.
//! - **To prepare** makes one of several equal [slices] of what the longest turn needs, in a session of two phases. A
//!   client does so while its user types. When the turn comes, its lengths are known. What it needs beyond the
//!   prepared slices is made then, in large batches, with the masks of keys and values, which fit one length alone.
//!   What a turn leaves serves the next one.
//! - **To begin a new conversation** drops the caches of both parties.
//! - **To stay** shows that the client is there while nothing happens. The client does so several times within the
//!   silence that the server allows.
//!
//! A refused command leaves everything as it was. A turn is refused if it does not fit the positions of a
//! conversation, and in two phases also if its planning exceeds what a session may plan. A turn is planned after the
//! turns before it. The needs of the longest turn of an empty conversation are planned once.
//!
//! Bounds and commands have the form of `postcard`, followed by zeros, so their lengths tell nothing.
//!
//! The server learns the numbers above and when each command comes, and nothing else: see `SECURITY.md`.

mod client;
mod conversation;
mod messages;
mod rehearsal;
mod server;

pub use client::ChatSession;
pub(super) use conversation::check_talk;
pub use conversation::{Positions, TurnCost};
pub(super) use server::talk;

use waggle_model::{Generation, Lengths, Model};
use waggle_protocols::FixedWeight;

use super::{PublicModel, Request, Terms};

/// What a chat is about, the same at both parties.
pub(super) struct Setting<'a> {
    /// The public facts of the model.
    pub(super) public: &'a PublicModel,
    /// The model: with its weights on the server, as shapes on the client.
    pub(super) model: &'a Model<FixedWeight>,
    /// The terms that the parties agree on.
    pub(super) terms: &'a Terms,
    /// The longest turn, and whether an answer ends at an end-of-text token.
    pub(super) bound: &'a Request,
}

/// The scope under which the ledger books commands, and the time in which nothing happens.
const SCOPE: &str = "chat";
const BOUNDS: &str = "chat/bounds";
const COMMAND: &str = "chat/command";
const ANSWER: &str = "chat/answer";

/// The number of tokens of a turn that one slice of preparation serves. With a smaller number a user waits less, but
/// the parties send more bytes.
const SLICE: usize = 16;

/// The progress of a preparation in slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slices {
    /// Slices that are prepared.
    pub ready: usize,
    /// Slices that the longest turn needs.
    pub of: usize,
}

/// The number of slices in the preparation of turns up to the lengths `turn`.
pub fn slices(turn: Lengths) -> usize {
    turn.prompt.saturating_add(turn.tokens).div_ceil(SLICE).max(1)
}

/// One party's results of a turn.
#[derive(Clone, Debug)]
pub struct Turn {
    /// Tokens that were read: the new ones, and the last token of the answer before.
    pub prompt_tokens: usize,
    /// Tokens and logits on the client; the number of tokens on both parties.
    pub generation: Generation,
    /// The cost of the turn.
    pub cost: TurnCost,
}
