//! Costs of a chat so far, in lines.

use waggle::{Chat, TurnReport};
use waggle_report::{Cost, bytes};

/// The costs of the last turn and of the whole session, and what of it is public, in at most three lines. Seconds in
/// which the user waited are stated apart from seconds in which correlations were prepared.
pub(super) fn table(chat: &Chat) -> String {
    let turns = chat.turns();
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
            line += &format!("; ahead of it {} in {:.1} s", bytes(ahead.bytes()), ahead.seconds);
        }
        line
    };
    let mut lines = Vec::new();
    if let Some(turn) = turns.last() {
        lines.push(line("last turn", turn.cost.phases.total(), turn.tokens.len(), ahead(turn)));
    }
    let (mut all, mut before) = (chat.opening().total(), Cost::default());
    for turn in turns {
        all += turn.cost.phases.total();
        before += ahead(turn);
    }
    let tokens = turns.iter().map(|turn| turn.tokens.len()).sum();
    let number = match turns.len() {
        1 => "a turn".to_owned(),
        turns => format!("{turns} turns"),
    };
    lines.push(line(&format!("opening and {number}"), all, tokens, before));
    lines.extend(chat.terms().prefix.iter().map(|prefix| format!("public: {prefix}")));
    lines.join("\n")
}
