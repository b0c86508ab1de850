//! The cost of an answer, and the numbers that the server saw of it.

use serde::Serialize;
use serde_json::{Value, json};
use waggle_report::Phases;
use waggle_session::party::Outcome;
use waggle_session::party::chat::TurnCost;

/// The kind of session in which a text was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ReadIn {
    /// In a session for the texts of its request alone.
    Own,
    /// In a session with texts of other requests, or after turns of other keys. Its cost is not told, because it
    /// would tell of those.
    Shared,
    /// In a session that was opened for this text and stays open.
    New,
    /// In a session that was open already.
    Kept,
}

/// A session that ends with its texts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Own {
    /// A random number that tells sessions apart.
    pub(super) number: u64,
    session: ReadIn,
    /// Tokens of each prompt, padding included.
    prompt_tokens: usize,
}

impl Own {
    /// A session with prompts of `prompt_tokens` tokens. `shared` says whether they belong to several requests.
    pub(super) fn new(shared: bool, prompt_tokens: usize) -> Self {
        Own { number: rand::random(), session: if shared { ReadIn::Shared } else { ReadIn::Own }, prompt_tokens }
    }
}

/// The cost of a pass or of a turn, in the form in which programs get it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Spent {
    /// Bytes in both directions from the request to the end of the answer, including those that opened the session.
    /// `flows` and `seconds` count from the same beginning to the same end.
    pub(super) bytes: u64,
    pub(super) flows: u64,
    pub(super) seconds: f64,
    /// Bytes for correlations that were made while nobody waited.
    pub(super) prepared_bytes: u64,
    pub(super) session: ReadIn,
    pub(super) server_saw: Saw,
    /// The random number of the session, which all its texts share. A text that ended earlier than another has
    /// smaller costs.
    #[serde(skip)]
    pub(super) number: u64,
}

/// The numbers that the server learns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Saw {
    /// Whether the turn continues earlier turns, which were not read again.
    pub(super) continues: bool,
    /// Number of texts that are read side by side.
    pub(super) texts: usize,
    /// Tokens of each prompt, padding included.
    pub(super) prompt_tokens: usize,
    /// Tokens that were generated for each text, including unseen ones.
    pub(super) tokens: usize,
    /// Seconds in which the prompt was read. `token_seconds` is the average for a token after the first.
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

    /// The cost of the finished session `own` with `places` texts.
    pub(super) fn of_pass(own: Own, outcome: &Outcome, places: usize) -> Self {
        let phases = Phases::new(&outcome.entries, outcome.per_token.clone());
        Spent::so_far(own, &phases, places, outcome.generation.count)
    }

    /// The cost of the session `own` with `places` texts up to now, after `passes` passes through the model.
    pub(super) fn so_far(own: Own, phases: &Phases, places: usize, passes: usize) -> Self {
        let Own { number, session, prompt_tokens } = own;
        Spent { number, ..Spent::new(&[phases], 0, session, false, [places, prompt_tokens, passes]) }
    }

    /// The cost of a turn in which `read` tokens were read and `tokens` generated. `opening` is the cost of opening
    /// the session, if it was opened for this turn. `shared` says that the session had turns of other keys.
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

    /// The costs that a program is told.
    pub(super) fn told(&self) -> Value {
        match self.session {
            ReadIn::Shared => json!({ "session": self.session }),
            ReadIn::Own | ReadIn::New | ReadIn::Kept => json!(self),
        }
    }
}
