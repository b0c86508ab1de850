//! Whole sessions in which one message is spoiled on its way: every message of either party, every policy, every mode.

mod support;
#[path = "support/hostile.rs"]
mod hostile;

use std::time::Instant;

use fuzzing::link::{Mutation, Spoil};
use hostile::{Mode, policies, run};
use net::Role;

#[test]
fn measure() {
    for mode in [Mode::Plain, Mode::Prepared, Mode::Fill, Mode::Spend] {
        for policy in policies() {
            let dir = tempfile::tempdir().unwrap();
            if mode == Mode::Spend {
                let s = run(Mode::Fill, &policy, None, dir.path());
                s.client.unwrap();
                s.server.unwrap();
            }
            let start = Instant::now();
            let s = run(mode, &policy, None, dir.path());
            let c = s.client.unwrap();
            s.server.unwrap();
            println!(
                "{mode:?} {policy}: {:?}, {} + {} messages, {:?}",
                start.elapsed(),
                s.watch.messages(Role::Client),
                s.watch.messages(Role::Server),
                c.generation.tokens
            );
            let start = Instant::now();
            let s = run(mode, &policy, Some(Spoil { from: Role::Client, message: 30, mutation: Mutation::Drop }), dir.path());
            println!("  dropped 30: {:?} {:?} {:?}", start.elapsed(), s.client.err().map(|e| e.to_string()), s.server.err().map(|e| e.to_string()));
        }
    }
}
