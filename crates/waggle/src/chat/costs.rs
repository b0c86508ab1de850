//! The costs of a chat, turn by turn.

use serde::Serialize;
use waggle_model::Check;
use waggle_report::{Phases, Report};
use waggle_session::party::chat::{Turn, TurnCost};
use waggle_session::party::{Outcome, PublicModel};
use waggle_tokenizer::Tokenizer;

use super::clear::Clear;
use crate::Error;
use crate::summary::{Chosen, report};

/// A turn of a conversation and its costs, in a report.
#[derive(Clone, Debug, Serialize)]
pub struct TurnReport {
    /// Number of its conversation in the session, from 0.
    pub conversation: usize,
    /// Tokens that the model read: the new ones, and the last token of the previous answer.
    pub prompt_tokens: usize,
    /// Ids of the generated tokens.
    pub tokens: Vec<u32>,
    /// The text of the answer.
    pub text: String,
    /// The cost of the turn.
    #[serde(flatten)]
    pub cost: TurnCost,
    /// Comparison with the plaintext engine, if it was asked for.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub check: Option<Check>,
}

/// The report of a session, and its turns.
#[derive(Debug, Serialize)]
pub struct ChatReport {
    /// The report of the whole session.
    #[serde(flatten)]
    pub report: Report,
    /// The turns of all its conversations.
    pub turns: Vec<TurnReport>,
}

/// The costs of a session so far.
pub(crate) struct Costs {
    pub(super) opening: Phases,
    pub(super) turns: Vec<TurnReport>,
    conversation: usize,
}

impl Costs {
    pub(crate) fn new(opening: &Phases) -> Self {
        Costs { opening: opening.clone(), turns: Vec::new(), conversation: 0 }
    }

    pub(crate) fn reset(&mut self) {
        self.conversation += 1;
    }

    /// Adds a finished turn with the answer `text` to the session's costs, and returns the report of the turn.
    pub(crate) fn turn(&mut self, turn: Turn, text: String, check: Option<Check>) -> TurnReport {
        let Turn { prompt_tokens, generation, cost } = turn;
        let conversation = self.conversation;
        let turn = TurnReport { conversation, prompt_tokens, tokens: generation.tokens, text, cost, check };
        self.turns.push(turn.clone());
        turn
    }

    /// The report of the session with this `outcome`.
    pub(crate) fn report(
        self,
        model: &PublicModel,
        tokenizer: &Tokenizer,
        outcome: &Outcome,
        options: impl IntoIterator<Item = Chosen>,
        clear: Option<&Clear>,
    ) -> Result<ChatReport, Error> {
        let mut report = report(model, Some(tokenizer), outcome.prompt_tokens, outcome, options)?;
        report.peak_memory_bytes.client = waggle_net::peak_memory_bytes();
        report.check = clear.and_then(Clear::all);
        Ok(ChatReport { report, turns: self.turns })
    }
}
