//! The types that the library's functions take and return can be named by their callers.

use std::path::Path;

use waggle::{
    Chat, Client, Fill, Filled, Findings, Machines, Outcome, Parts, Phases, Prepared, Profile, Server, ServerConfig,
    Terms, TurnCost, TurnReport,
};

fn served(server: Server) -> Result<Option<Outcome>, waggle::Error> {
    server.run_once(None)
}

fn opening(chat: &Chat) -> &Phases {
    chat.opening()
}

fn cost(turn: &TurnReport) -> &TurnCost {
    &turn.cost
}

fn filled(prepared: &Prepared) -> Option<&Filled> {
    prepared.filled.as_ref()
}

fn measured(machines: &Machines) -> &Profile {
    &machines.client
}

#[test]
fn every_type_of_an_answer_has_a_name() {
    // The test is that these functions compile.
    let _ = (served, opening, cost, filled, measured);
    let parts: Parts = "embedding,head".parse().unwrap();
    let config = ServerConfig::default().public(parts.clone()).terms(Terms::default().found(None::<Findings>));
    assert_eq!(config.public, parts);
    let fill = Fill { pool: Path::new("pool").into(), ..Fill::default() };
    assert!(Client::new("example.org").terms.found.is_none() && fill.pool.ends_with("pool"));
}
