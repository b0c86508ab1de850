//! What a chat took, turn by turn.

use model::Check;
use report::{Cost, Phases, Report, bytes};
use serde::Serialize;
use serde_json::Value;
use session::party::chat::{Turn, TurnCost};
use session::party::{Outcome, PublicModel, Terms};
use tokenizer::Tokenizer;

use super::clear::Clear;
use crate::cli::Error;
use crate::cli::report::report;

/// A turn in a report.
#[derive(Clone, Debug, Serialize)]
pub struct TurnReport {
    /// Which conversation of the session it belongs to, from 0.
    pub conversation: usize,
    /// Tokens that were read: the new ones, and the last one of the answer before.
    pub prompt_tokens: usize,
    /// Generated ids.
    pub tokens: Vec<u32>,
    /// Their text.
    pub text: String,
    /// What it took.
    #[serde(flatten)]
    pub cost: TurnCost,
    /// Comparison with the plaintext engine, if it was asked for.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub check: Option<Check>,
}

/// The report of a session, and its turns.
#[derive(Debug, Serialize)]
pub struct ChatReport {
    /// All of the session.
    #[serde(flatten)]
    pub report: Report,
    /// The turns of all its conversations.
    pub turns: Vec<TurnReport>,
}

/// What a session took so far.
pub(in crate::cli) struct Costs {
    opening: Phases,
    turns: Vec<TurnReport>,
    conversation: usize,
}

impl Costs {
    /// A session that was opened at this cost.
    pub(super) fn new(opening: &Phases) -> Self {
        Costs { opening: opening.clone(), turns: Vec::new(), conversation: 0 }
    }

    /// Another conversation begins.
    pub(super) fn reset(&mut self) {
        self.conversation += 1;
    }

    /// A turn with the answer `text` is over.
    pub(super) fn turn(&mut self, turn: Turn, text: String, check: Option<Check>) -> TurnReport {
        let Turn { prompt_tokens, generation, cost } = turn;
        let conversation = self.conversation;
        let turn = TurnReport { conversation, prompt_tokens, tokens: generation.tokens, text, cost, check };
        self.turns.push(turn.clone());
        turn
    }

    /// The last turn and all of the session, in three lines at most. Seconds are those in which a user waited, and
    /// apart from these those in which correlations were made ahead.
    pub(super) fn table(&self) -> String {
        let ahead = |turn: &TurnReport| turn.cost.before.offline;
        let line = |name: &str, of: Cost, tokens: usize, ahead: Cost| {
            let mut line = format!(
                "{name}: {} to the server, {} back, {} flows, {:.1} s for {tokens} tokens",
                bytes(of.bytes_client_to_server),
                bytes(of.bytes_server_to_client),
                of.flows,
                of.seconds
            );
            if ahead.flows > 0 {
                let both = ahead.bytes_client_to_server + ahead.bytes_server_to_client;
                line += &format!("; ahead of it {} in {:.1} s", bytes(both), ahead.seconds);
            }
            line
        };
        let mut lines = Vec::new();
        if let Some(turn) = self.turns.last() {
            lines.push(line("last turn", total(&turn.cost.phases), turn.tokens.len(), ahead(turn)));
        }
        let turns = self.turns.iter().map(|turn| total(&turn.cost.phases));
        let all = turns.fold(total(&self.opening), plus);
        let before = self.turns.iter().map(ahead).fold(Cost::default(), plus);
        let tokens = self.turns.iter().map(|turn| turn.tokens.len()).sum();
        let turns = match self.turns.len() {
            1 => "a turn".to_owned(),
            turns => format!("{turns} turns"),
        };
        lines.push(line(&format!("opening and {turns}"), all, tokens, before));
        lines.join("\n")
    }

    /// The report of the session that `outcome` is of.
    pub(super) fn report<'a>(
        self,
        model: &PublicModel,
        tokenizer: &Tokenizer,
        outcome: &Outcome,
        terms: &Terms,
        options: impl IntoIterator<Item = (&'a str, Value)>,
        clear: Option<&Clear>,
    ) -> Result<ChatReport, Error> {
        let mut report = report(model, Some(tokenizer), outcome.prompt_tokens, outcome, terms, options)?;
        report.peak_memory_bytes.client = net::peak_memory_bytes();
        report.check = clear.and_then(Clear::all);
        Ok(ChatReport { report, turns: self.turns })
    }
}

/// All phases together.
fn total(phases: &Phases) -> Cost {
    let Phases { setup, offline, prefill, decode } = phases;
    [*setup, *offline, *prefill, decode.total].into_iter().fold(Cost::default(), plus)
}

fn plus(a: Cost, b: Cost) -> Cost {
    Cost {
        bytes_client_to_server: a.bytes_client_to_server + b.bytes_client_to_server,
        bytes_server_to_client: a.bytes_server_to_client + b.bytes_server_to_client,
        flows: a.flows + b.flows,
        seconds: a.seconds + b.seconds,
        cpu_seconds: a.cpu_seconds + b.cpu_seconds,
        peer_cpu_seconds: None,
    }
}
