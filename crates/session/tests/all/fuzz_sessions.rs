//! Whole sessions in which one message is spoiled on its way: every policy, every mode, every message of either
//! party, every mutation. Such a session may give no text, and no party may panic or wait for ever.
//!
//! `cargo test` takes a sample with a fixed stride. This runs all of them, which takes hours:
//! `WAGGLE_FUZZ_STRIDE=1 cargo test --release -p waggle-session --test all fuzz_sessions -- --nocapture`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::hostile::{Mode, PARTS, Session, policies, run};
use waggle_fuzz::link::{Mutation, Spoil, frame, frames};
use waggle_mpcache::PolicySpec;
use waggle_net::Role;
use waggle_session::Error;
use waggle_session::party::Outcome;

/// `cargo test` runs one in this many of all spoiled sessions. The number is a prime, so that all messages, parties
/// and mutations occur.
const STRIDE: usize = 3001;

fn stride() -> usize {
    let given = std::env::var("WAGGLE_FUZZ_STRIDE").ok();
    given.map_or(STRIDE, |text| text.parse().expect("WAGGLE_FUZZ_STRIDE is a number from 1 on"))
}

/// An honest session with the number of messages of each party and its text.
struct Honest {
    mode: Mode,
    policy: PolicySpec,
    messages: [usize; 2],
    tokens: Vec<u32>,
}

impl Honest {
    fn new(mode: Mode, policy: &PolicySpec) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let Session { client, server, watch } = in_place(mode, policy, None, dir.path());
        let context = format!("{mode:?}, {policy}");
        server.unwrap_or_else(|e| panic!("{context}: server: {e}"));
        let outcome = client.unwrap_or_else(|e| panic!("{context}: client: {e}"));
        let messages = [Role::Client, Role::Server].map(|role| watch.messages(role));
        Honest { mode, policy: policy.clone(), messages, tokens: outcome.generation.tokens }
    }

    /// Every mutation of every message.
    fn spoils(&self) -> impl Iterator<Item = Spoil> {
        let messages = [Role::Client, Role::Server].into_iter().zip(self.messages);
        messages.flat_map(|(from, count)| {
            (0..count).flat_map(move |message| {
                Mutation::all(message as u64).map(|mutation| Spoil { from, message, mutation })
            })
        })
    }

    /// Runs a spoiled session. Returns how it ended, or what is wrong with this end.
    fn check(&self, spoil: Spoil) -> Result<String, String> {
        let dir = tempfile::tempdir().unwrap();
        let Session { client, server, watch } = in_place(self.mode, &self.policy, Some(spoil), dir.path());
        let context = format!("{:?}, {}, {spoil:?}", self.mode, self.policy);
        if !watch.spoiled() && !self.policy.random_traffic() {
            return Err(format!("{context}: the message never came"));
        }
        let told = |outcome: &Result<Outcome, Error>| match outcome {
            Ok(_) => "success".to_owned(),
            Err(error) => kind(error),
        };
        let ended = format!("client: {}, server: {}", told(&client), told(&server));
        if watch.unchanged() {
            return Ok(format!("unchanged: {ended}"));
        }
        // The receiver alone can tell that the very last message is bad, and nobody reads what comes after it.
        let unread = matches!(spoil.mutation, Mutation::Duplicate | Mutation::Swap);
        let [sender, receiver] = match spoil.from {
            Role::Client => [&client, &server],
            Role::Server => [&server, &client],
        };
        let last = |message| watch.messages(spoil.from) <= message + 1;
        if receiver.is_ok() && !(last(spoil.message) && unread) {
            return Err(format!("{context}: the receiver is content; {ended}"));
        }
        // The second copy of a message that comes twice is read instead of the next message.
        let read = spoil.message + usize::from(matches!(spoil.mutation, Mutation::Duplicate));
        if sender.is_ok() && !last(read) {
            return Err(format!("{context}: the sender is content; {ended}"));
        }
        match &client {
            Ok(outcome) if outcome.generation.tokens != self.tokens => {
                Err(format!("{context}: another text, {:?}", outcome.generation.tokens))
            }
            _ => Ok(ended),
        }
    }
}

/// Runs a session, after the honest sessions that fill its pool, if it takes one.
fn in_place(mode: Mode, policy: &PolicySpec, spoil: Option<Spoil>, dir: &std::path::Path) -> Session {
    for before in mode.before() {
        let filled = run(before, policy, None, dir);
        filled.client.and(filled.server).expect("a pool");
    }
    run(mode, policy, spoil, dir)
}

/// The innermost variant of an error.
fn kind(error: &Error) -> String {
    let text = format!("{error:?}");
    let variant = text.split([' ', '{', ')']).next().unwrap_or_default();
    variant.rsplit('(').next().unwrap_or_default().to_owned()
}

#[test]
fn no_spoiled_session_passes() {
    let every = stride();
    let modes = [Mode::Plain, Mode::Prepared, Mode::Fill, Mode::Spend, Mode::FillPart(PARTS), Mode::SpendParts];
    let honest: Vec<Honest> =
        modes.iter().flat_map(|mode| policies().into_iter().map(|policy| Honest::new(*mode, &policy))).collect();
    let all: Vec<(&Honest, Spoil)> = honest.iter().flat_map(|h| h.spoils().map(move |spoil| (h, spoil))).collect();
    let chosen: Vec<_> = all.iter().step_by(every).collect();
    let next = AtomicUsize::new(0);
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    let results: Vec<Result<String, String>> = std::thread::scope(|scope| {
        let work = || {
            let mine = std::iter::from_fn(|| chosen.get(next.fetch_add(1, Ordering::Relaxed)));
            mine.map(|(honest, spoil)| honest.check(*spoil)).collect::<Vec<_>>()
        };
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a worker")).collect()
    });
    let mut endings: BTreeMap<&str, usize> = BTreeMap::new();
    results.iter().flatten().for_each(|ended| *endings.entry(ended).or_default() += 1);
    println!("{} of {} spoiled sessions:", chosen.len(), all.len());
    endings.iter().for_each(|(ended, count)| println!("{count:6}  {ended}"));
    let wrong: Vec<&String> = results.iter().filter_map(|result| result.as_ref().err()).collect();
    assert!(wrong.is_empty(), "{} of {}:\n{wrong:#?}", wrong.len(), chosen.len());
}

/// A bit of a party's message for making OTs changes. The peer notices before it goes on, and names the step.
#[test]
fn a_changed_message_of_oblivious_transfers_is_noticed_at_its_step() {
    let dir = tempfile::tempdir().unwrap();
    let policy = PolicySpec::default();
    let honest = run(Mode::Plain, &policy, None, dir.path()).watch;
    let mut noticed = 0;
    for from in [Role::Client, Role::Server] {
        let sent = frames(&honest.sent(from));
        for step in ["ot/trees", "ot/softspoken"] {
            let tag = &frame(step, &[])[4..];
            // A session need not make OTs in both directions, but it sets both up.
            let Some(message) = sent.iter().position(|frame| &frame[4..8] == tag) else { continue };
            noticed += 1;
            // In messages of trees this bit lies in the digest, because some of the sums may not be used.
            let spoil = Spoil { from, message, mutation: Mutation::Flip(8 * (sent[message].len() as u64 - 20)) };
            let Session { client, server, watch } = run(Mode::Plain, &policy, Some(spoil), dir.path());
            let [sender, receiver] = if from == Role::Client { [client, server] } else { [server, client] };
            let error = receiver.map(drop).expect_err("a changed message");
            let found = format!("{error:?}");
            assert!(found.contains(&format!("Deviates {{ step: {step:?}, party: {from:?} }}")), "{found}");
            // The sender hears of the step, not only that the link is gone.
            let heard = format!("{:?}", sender.map(drop).expect_err("its peer is gone"));
            assert!(heard.contains(&format!("theirs: {step:?}")), "{step}: {heard}");
            assert!(watch.messages(from.peer()) < honest.messages(from.peer()), "the session ended early");
        }
    }
    assert!(noticed >= 3, "trees of both parties, and OTs");
}
