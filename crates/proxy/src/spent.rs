//! What an answer took, and what the server saw of it.

use serde::Serialize;
use serde_json::{Value, json};
use waggle_report::Phases;
use waggle_session::party::Outcome;
use waggle_session::party::chat::TurnCost;

/// Where a text was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ReadIn {
    /// In a session of its own or of its pass.
    Own,
    /// In a session with texts of other requests, or after turns of other keys: what it took would tell of them.
    Shared,
    /// In a session that was opened for it and stays open.
    New,
    /// In a session that was open.
    Kept,
}

/// A session that ends with its texts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Own {
    /// Every session has another one.
    pub(super) number: u64,
    session: ReadIn,
    /// Tokens that were read of each prompt, with those of padding.
    prompt_tokens: usize,
}

impl Own {
    /// A session with prompts of `prompt_tokens` tokens, of several requests if it is `shared`.
    pub(super) fn new(shared: bool, prompt_tokens: usize) -> Self {
        Own { number: rand::random(), session: if shared { ReadIn::Shared } else { ReadIn::Own }, prompt_tokens }
    }
}

/// The cost of a pass or of a turn, in the form in which programs get it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Spent {
    /// Bytes and flows from the request to the end of the answer, both ways, with what opened the session.
    pub(super) bytes: u64,
    pub(super) flows: u64,
    pub(super) seconds: f64,
    /// Bytes that were sent while nobody waited, for correlations.
    pub(super) prepared_bytes: u64,
    pub(super) session: ReadIn,
    pub(super) server_saw: Saw,
    /// The session, of which a text that ended earlier knows less.
    #[serde(skip)]
    pub(super) number: u64,
}

/// The numbers that the server learns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Saw {
    /// Whether it goes on after earlier turns, which were not read again.
    pub(super) continues: bool,
    /// Places for texts that are read side by side.
    pub(super) texts: usize,
    /// Tokens that were read of each, with those of padding.
    pub(super) prompt_tokens: usize,
    /// Tokens that were generated of each, with unseen ones.
    pub(super) tokens: usize,
    /// Seconds of the prompt, and on average of a token after the first.
    pub(super) prompt_seconds: f64,
    pub(super) token_seconds: f64,
}

impl Spent {
    fn new(phases: &[&Phases], prepared_bytes: u64, session: ReadIn, continues: bool, saw: [usize; 3]) -> Self {
        let costs = || phases.iter().flat_map(|phases| phases.named()).map(|(_, cost)| cost);
        let [texts, prompt_tokens, tokens] = saw;
        let seconds = |of: fn(&Phases) -> f64| phases.iter().map(|phases| of(phases)).sum::<f64>();
        let decode = seconds(|phases| phases.decode.total.seconds);
        Spent {
            bytes: costs().map(waggle_report::Cost::bytes).sum(),
            flows: costs().map(|cost| cost.flows).sum(),
            seconds: costs().map(|cost| cost.seconds).sum(),
            prepared_bytes,
            session,
            number: rand::random(),
            server_saw: Saw {
                continues,
                texts,
                prompt_tokens,
                tokens,
                prompt_seconds: seconds(|phases| phases.prefill.seconds),
                token_seconds: decode / tokens.saturating_sub(1).max(1) as f64,
            },
        }
    }

    /// What the session `own` with so many places took, when it is over.
    pub(super) fn of_pass(own: Own, outcome: &Outcome, places: usize) -> Self {
        let phases = Phases::new(&outcome.entries, outcome.per_token.clone());
        Spent::so_far(own, &phases, places, outcome.generation.count)
    }

    /// What the session `own` took up to so many passes, of which there may be more.
    pub(super) fn so_far(own: Own, phases: &Phases, places: usize, passes: usize) -> Self {
        let Own { number, session, prompt_tokens } = own;
        Spent { number, ..Spent::new(&[phases], 0, session, false, [places, prompt_tokens, passes]) }
    }

    /// What a turn took in which `read` tokens were read and `tokens` generated; `opening` is what a session took
    /// that was opened for it. The session is `shared` if it had turns of other keys.
    pub(super) fn of_turn(
        cost: &TurnCost,
        [read, tokens]: [usize; 2],
        continues: bool,
        opening: Option<&Phases>,
        shared: bool,
    ) -> Self {
        let session = match opening {
            _ if shared => ReadIn::Shared,
            Some(_) => ReadIn::New,
            None => ReadIn::Kept,
        };
        let phases: Vec<&Phases> = opening.into_iter().chain([&cost.phases]).collect();
        Spent::new(&phases, cost.before.offline.bytes(), session, continues, [1, read, tokens])
    }

    /// What a program is told of it.
    pub(super) fn told(&self) -> Value {
        match self.session {
            ReadIn::Shared => json!({ "session": self.session }),
            ReadIn::Own | ReadIn::New | ReadIn::Kept => json!(self),
        }
    }
}
