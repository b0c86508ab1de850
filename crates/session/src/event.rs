//! What happens in a session, told to one closure.

use waggle_model::Step;
use waggle_protocols::Made;
use waggle_report::Phases;
use waggle_tokenizer::ChatTemplate;

use crate::{Error, PublicPrefix};

/// A closure that hears of every event in order, and says how the session goes on.
pub type Watch<'a> = dyn FnMut(Event<'_>) -> Flow + 'a;

/// Watches nothing.
pub fn nobody(_: Event<'_>) -> Flow {
    Flow::GoOn
}

/// Something that happens in a session, before it or after it. A session itself tells of the first variants, its
/// server of the next ones, and whoever runs a client or a study tells of the last ones.
#[non_exhaustive]
pub enum Event<'a> {
    /// Asks whether the session goes on, before each step and while a plan is made: [`Flow::Abandon`] ends it with
    /// [`waggle_model::Error::Abandoned`].
    GoesOn,
    /// The parties agree on what they run, and set up base OTs.
    Setup,
    /// The offline phase begins: this party's correlations will take at most this many bytes of a temporary file.
    Room(u64),
    /// The progress of the offline phase of a two-phase session.
    Prepared(Made),
    /// A step begins.
    Begins(Step),
    /// A layer of the current step is done.
    Layer {
        /// Layers that are done.
        done: usize,
        /// All layers.
        of: usize,
    },
    /// A token was generated, which the client alone knows. [`Flow::EndText`] ends a text that may end early
    /// ([`Request::stop_at_eos`](crate::party::Request::stop_at_eos)).
    Token(Option<u32>),
    /// A pass is over, and another one follows. The function returns the costs of the session so far.
    Passed(&'a mut dyn FnMut() -> Phases),

    /// A client asks for a session in which this many positions, guesses included, go through the model. Nothing was
    /// planned or claimed for it yet; [`Flow::Refuse`] is the server's verdict.
    Asked(u64),
    /// The number of positions, out of those that were asked for, that go through the model in the step that begins.
    Shown(u64),
    /// Whether the server of a conversation is idle: true when it begins to wait for a command, false when one has
    /// come.
    Idle(bool),
    /// The client of a conversation shows that it is there, although it has no command for the server.
    Stays,
    /// The helper lacks halves of weights and gets them now: this many bytes.
    Halves(u64),

    /// Nobody answers at this address yet, and the client goes on trying.
    Unreachable(&'a str),
    /// The server is busy, and the client waits.
    Waits,
    /// The server at an address has a chat template that was not met before. A template adds words to the
    /// conversation, so it influences how long answers are.
    Template(&'a str, &'a ChatTemplate),
    /// The server offers public tokens, and this party's texts are about to stand behind them. With them comes their
    /// text, without control characters but line ends and tabs; it is empty where there is no tokenizer.
    Offer(&'a PublicPrefix, &'a str),
    /// The server's tokenizer runs under limits alone, because a sandbox is missing here, for this reason.
    NoSandbox(&'a str),
    /// The text goes on with these words, which have no control characters but line ends and tabs.
    Text(&'a str),
    /// The text is over.
    TextOver,
    /// The chat template changes what was said before: the model reads the conversation from its beginning.
    Rereads,
    /// The chat template would format some words by what they look like, not by who said them.
    Looks,
    /// A study has run a model once more.
    Studied {
        /// The number of runs of the whole study.
        of: usize,
    },
}

/// How a session goes on after an [`Event`].
#[derive(Debug, Default)]
pub enum Flow {
    /// The session goes on as if nobody watched.
    #[default]
    GoOn,
    /// The text ends with the token of [`Event::Token`].
    EndText,
    /// The session ends, because nobody wants the rest: heeded at [`Event::GoesOn`].
    Abandon,
    /// The server refuses the session that was [`Asked`](Event::Asked) for, with this error.
    Refuse(Box<Error>),
}

/// Asks the watcher whether the session goes on. Fails if nobody wants the rest of it.
pub(crate) fn go_on(watch: &mut Watch<'_>) -> Result<(), waggle_model::Error> {
    match watch(Event::GoesOn) {
        Flow::Abandon => Err(waggle_model::Error::Abandoned),
        _ => Ok(()),
    }
}

/// Asks the watcher about a session of `positions` positions. Fails if the watcher refuses it.
pub(crate) fn ask(watch: &mut Watch<'_>, positions: u64) -> Result<(), Error> {
    match watch(Event::Asked(positions)) {
        Flow::Refuse(error) => Err(*error),
        _ => Ok(()),
    }
}
