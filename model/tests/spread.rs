//! A server whose products are taken by several ranks: its sessions are those of one process.

mod support;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use model::party::{Caller, ClientOptions, ClientSession, Limits, ModelServer, Outcome, Silent, Terms};
use model::{Error, ModelFiles, Next, Sampler, bundled, own_columns};
use net::{Channel, Entry, Role, memory_pair};
use spread::{Ranks, threads};
use support::{greedy, load};

const PROMPT: [u32; 4] = [30, 27, 25, 17];
const TOKENS: usize = 3;
/// Messages are never cut.
const MOST_WORDS: usize = 1 << 28;

/// What the client has of a session in two phases.
fn session(hosted: &ModelServer) -> Outcome {
    let mut terms = Terms::default();
    terms.protocol.preprocess = true;
    let (client, server) = memory_pair(Duration::from_secs(60));
    let (client, server) = (Channel::new(Role::Client, client), Channel::new(Role::Server, server));
    thread::scope(|scope| {
        let limits = Limits::default();
        let caller = Caller::default();
        let served = scope.spawn(|| hosted.serve(server, &caller, &terms, &limits, &mut Silent).unwrap());
        let session = ClientSession::open(client, &Caller::default(), &terms, &ClientOptions::default()).unwrap();
        let mut sampler = Sampler::greedy();
        let outcome = session.generate(&PROMPT, TOKENS, false, Next::Pick(&mut sampler), &mut Silent).unwrap();
        served.join().unwrap();
        outcome
    })
}

fn untimed(outcome: &Outcome) -> Vec<Entry> {
    let mut entries = outcome.entries.clone();
    entries.iter_mut().for_each(|entry| entry.traffic = entry.traffic.untimed());
    entries
}

/// Rank 0's work while the others multiply for it; what it returns, and the products that each of the others took
/// part in.
fn with_helpers<T>(ranks: usize, name: &str, work: impl FnOnce(&Ranks) -> T) -> (T, Vec<Result<u64, Error>>) {
    let mut ranks = threads::ranks(ranks, MOST_WORDS).unwrap();
    let first = ranks.remove(0);
    thread::scope(|scope| {
        let helpers: Vec<_> = ranks
            .into_iter()
            .map(|ranks| {
                scope.spawn(move || {
                    let columns = own_columns(&bundled(name).unwrap(), Arc::new(ranks.clone()));
                    let done = columns.map(|columns| ranks.work(columns).unwrap());
                    ranks.end();
                    done
                })
            })
            .collect();
        let done = work(&first);
        first.end();
        (done, helpers.into_iter().map(|helper| helper.join().unwrap()).collect())
    })
}

#[test]
fn sessions_are_those_of_one_process() {
    for name in ["shakespeare-gpt2", "shakespeare-llama"] {
        let alone = ModelServer::load(bundled(name).unwrap()).unwrap();
        let one = session(&alone);
        assert_eq!(one.generation.tokens, greedy(&load(bundled(name).unwrap()), &PROMPT, TOKENS).tokens);
        let (many, helpers) = with_helpers(3, name, |ranks| {
            let files = bundled(name).unwrap();
            let hosted = ModelServer::load_spread(files, 0, Some(Arc::new(ranks.clone()))).unwrap();
            assert_eq!(hosted.public(), alone.public(), "fractional bits are found together");
            hosted.calibrate().unwrap();
            session(&hosted)
        });
        assert_eq!(one.generation.tokens, many.generation.tokens);
        assert_eq!(untimed(&one), untimed(&many));
        // Each pass goes through all matrices: at least two a layer, and the run in the clear comes before.
        let products = [alone.public().spec.layers() as u64 * 2 * TOKENS as u64; 2];
        assert!(helpers.iter().zip(products).all(|(done, least)| *done.as_ref().unwrap() > least), "{helpers:?}");
    }
}

#[test]
fn a_server_that_cannot_load_ends_its_helpers() {
    let name = "shakespeare-llama";
    let ((), helpers) = with_helpers(2, name, |ranks| {
        let files = bundled(name).unwrap();
        let wrong = ModelFiles { spec: bundled("shakespeare-gpt2").unwrap().spec, ..files };
        assert!(ModelServer::load_spread(wrong, 0, Some(Arc::new(ranks.clone()))).is_err());
    });
    let told = helpers.into_iter().map(|done| done.unwrap_err().to_string()).collect::<Vec<_>>();
    assert_eq!(told, ["rank 0 has ended"]);
}
