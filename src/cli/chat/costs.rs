//! Costs of a chat so far, in lines.

use report::{Cost, Phases, bytes};

use crate::{Chat, TurnReport};

/// The last turn and all of the session, in three lines at most. Seconds are those in which a user waited, and
/// apart from these those in which correlations were made ahead.
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
            let both = ahead.bytes_client_to_server + ahead.bytes_server_to_client;
            line += &format!("; ahead of it {} in {:.1} s", bytes(both), ahead.seconds);
        }
        line
    };
    let mut lines = Vec::new();
    if let Some(turn) = turns.last() {
        lines.push(line("last turn", total(&turn.cost.phases), turn.tokens.len(), ahead(turn)));
    }
    let all = turns.iter().map(|turn| total(&turn.cost.phases)).fold(total(chat.opening()), plus);
    let before = turns.iter().map(ahead).fold(Cost::default(), plus);
    let tokens = turns.iter().map(|turn| turn.tokens.len()).sum();
    let number = match turns.len() {
        1 => "a turn".to_owned(),
        turns => format!("{turns} turns"),
    };
    lines.push(line(&format!("opening and {number}"), all, tokens, before));
    lines.join("\n")
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
