//! The two phases as two sessions: the text of one, and ledgers that the plans know to the byte.

mod support;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use model::party::{
    Caller, ClientOptions, ClientSession, Limits, ModelServer, Outcome, Request, Silent, Terms, plan_filling,
    plan_spending,
};
use model::pool::{Found, Pool, PoolError, Pools, State, find};
use model::{Error, Lengths, ModelFiles, Next, Sampler, bundled};
use net::{Channel, Entry, Link, Phase, Role, memory_pair};
use support::{greedy, load};

const MODEL: &str = "shakespeare-gpt2";
const PROMPT: [u32; 4] = [30, 27, 25, 17];
const BOUND: Lengths = Lengths { prompt: 4, tokens: 3 };

fn terms() -> Terms {
    let mut terms = Terms::default();
    terms.protocol.preprocess = true;
    terms
}

fn untimed(outcome: &Outcome) -> Vec<Entry> {
    let mut entries = outcome.entries.clone();
    entries.retain(|entry| entry.traffic.messages > 0);
    entries.iter_mut().for_each(|entry| entry.traffic = entry.traffic.untimed());
    entries
}

fn offline(outcome: &Outcome) -> u64 {
    outcome.entries.iter().filter(|entry| entry.phase == Phase::Offline).map(|entry| entry.traffic.bytes()).sum()
}

/// One session of `client` with `hosted`.
fn session(
    hosted: &ModelServer,
    client: impl FnOnce(ClientSession) -> Result<Outcome, Error>,
) -> [Result<Outcome, Error>; 2] {
    let (here, there) = memory_pair(Duration::from_secs(60));
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            hosted.serve(
                Channel::new(Role::Server, there),
                &Caller::default(),
                &terms(),
                &Limits::default(),
                &mut Silent,
            )
        });
        let opened = ClientSession::open(
            Channel::new(Role::Client, here),
            &Caller::default(),
            &terms(),
            &ClientOptions::default(),
        );
        [opened.and_then(client), server.join().unwrap()]
    })
}

fn both(results: [Result<Outcome, Error>; 2]) -> [Outcome; 2] {
    results.map(|result| result.unwrap())
}

fn fill(hosted: &ModelServer, path: &Path) -> [Outcome; 2] {
    both(session(hosted, |opened| opened.fill(BOUND, path, &mut Silent)))
}

fn spend(hosted: &ModelServer, path: &Path, prompt: &[u32], tokens: usize) -> [Result<Outcome, Error>; 2] {
    session(hosted, |opened| {
        let pool = Pool::open(path, Role::Client).map_err(|e| e.at(path))?;
        opened.spend(pool, prompt, tokens, false, Next::Pick(&mut Sampler::greedy()), &mut Silent)
    })
}

#[test]
fn two_sessions_do_the_work_of_one() {
    let dir = tempfile::tempdir().unwrap();
    let kept = dir.path().join("server");
    let path = dir.path().join("client.pool");
    let hosted = ModelServer::load(bundled(MODEL).unwrap()).unwrap().with_pools(Pools::open(&kept, 2).unwrap());
    let truth = |prompt: &[u32], tokens| greedy(&load(bundled(MODEL).unwrap()), prompt, tokens).tokens;
    // As long as it may be, then shorter.
    for (prompt, tokens) in [(&PROMPT[..], 3), (&PROMPT[..3], 2)] {
        let [client, server] = fill(&hosted, &path);
        assert!(client.filled.is_some() && client.filled == server.filled);
        assert_eq!(untimed(&client), untimed(&server));
        let planned = plan_filling(hosted.public(), &terms(), &ClientOptions::default(), BOUND).unwrap();
        assert_eq!(untimed(&client), untimed(&planned));

        let [used, other] = both(spend(&hosted, &path, prompt, tokens));
        assert_eq!(used.generation.tokens, truth(prompt, tokens));
        assert_eq!(untimed(&used), untimed(&other));
        let request = Request::from(Lengths { prompt: prompt.len(), tokens });
        let planned =
            plan_spending(hosted.public(), &terms(), &ClientOptions::default(), BOUND, &request, &mut Silent)
                .unwrap();
        assert_eq!(untimed(&used), untimed(&planned));
        if prompt.len() == BOUND.prompt {
            let late: Vec<&Entry> = used
                .entries
                .iter()
                .filter(|e| e.phase == Phase::Offline && e.traffic.messages > 0 && e.path != "preprocess/OTs")
                .collect();
            assert!(late.is_empty(), "made on the spot: {late:#?}");
            assert!(offline(&used) * 3 < offline(&client), "{} of {}", offline(&used), offline(&client));
        }
        assert!(!path.exists() && std::fs::read_dir(&kept).unwrap().next().is_none(), "both files are gone");
    }
}

#[test]
fn a_server_refuses_what_it_does_not_have() {
    let dir = tempfile::tempdir().unwrap();
    let kept = dir.path().join("server");
    let (path, copy) = (dir.path().join("client.pool"), dir.path().join("copy.pool"));
    let hosted = ModelServer::load(bundled(MODEL).unwrap()).unwrap();
    let [client, server] = session(&hosted, |opened| opened.fill(BOUND, &path, &mut Silent));
    assert!(matches!(client, Err(Error::Refused { reason }) if reason == "this server keeps no pools"));
    assert!(matches!(server, Err(Error::Pool(PoolError::NoPools))) && !path.exists());

    let hosted = hosted.with_pools(Pools::open(&kept, 1).unwrap());
    fill(&hosted, &path);
    let [client, server] = session(&hosted, |opened| opened.fill(BOUND, &copy, &mut Silent));
    assert!(matches!(client, Err(Error::Refused { reason }) if reason.contains("1 pools already")));
    assert!(matches!(server, Err(Error::Pool(PoolError::Full { limit: 1 }))) && !copy.exists());

    // More than the pool was made for: the client sees it, nothing is used up.
    let [client, _] = spend(&hosted, &path, &PROMPT, 4);
    assert!(matches!(client, Err(Error::PoolFile { source: PoolError::Bound { got: 4, limit: 3, .. }, .. })));

    // The client's copy from a backup meets a server whose file is used.
    std::fs::copy(&path, &copy).unwrap();
    both(spend(&hosted, &path, &PROMPT, 1));
    let [client, server] = spend(&hosted, &copy, &PROMPT, 1);
    assert!(matches!(client, Err(Error::Refused { reason }) if reason.contains("used already")));
    assert!(matches!(server, Err(Error::Pool(PoolError::Unknown { .. }))));

    // A server's file that is damaged is refused without a word of where it is.
    fill(&hosted, &path);
    let file = std::fs::read_dir(&kept).unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let [client, server] = spend(&hosted, &path, &PROMPT, 1);
    assert!(matches!(client, Err(Error::Refused { reason }) if reason == "its pool is corrupted in its words"));
    assert!(matches!(server, Err(Error::PoolFile { source: PoolError::Checksum { .. }, .. })));

    // Other weights of the same shape are another model.
    std::fs::remove_file(&file).ok();
    let changed = dir.path().join("model");
    std::fs::create_dir(&changed).unwrap();
    for name in ["config.json", "model.safetensors"] {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets").join(MODEL).join(name);
        let mut bytes = std::fs::read(source).unwrap();
        if name.starts_with("model") {
            // A bit of the fraction of each of the last numbers, be they of two or four bytes.
            bytes.iter_mut().rev().skip(1).step_by(4).take(100).for_each(|byte| *byte ^= 0x40);
        }
        std::fs::write(changed.join(name), bytes).unwrap();
    }
    let other = dir.path().join("other.pool");
    fill(&hosted, &other);
    let hosted = ModelServer::load(ModelFiles::open(&changed).unwrap()).unwrap();
    let hosted = hosted.with_pools(Pools::open(&kept, 1).unwrap());
    let [client, server] = spend(&hosted, &other, &PROMPT, 1);
    assert!(matches!(client, Err(Error::Refused { reason }) if reason.ends_with("these differ: weights")));
    assert!(matches!(server, Err(Error::PoolFile { source: PoolError::Mismatch { .. }, .. })));
}

/// A link that dies, both ways, when it is to send more than `left` messages.
struct Dying<L> {
    link: L,
    left: usize,
    dead: bool,
    sent: Arc<AtomicUsize>,
}

impl<L: Link> Link for Dying<L> {
    fn send(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        if self.left == 0 {
            self.dead = true;
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.left -= 1;
        self.sent.fetch_add(1, Ordering::Relaxed);
        self.link.send(bytes)
    }

    fn recv(&mut self, buf: &mut [u8]) -> io::Result<()> {
        if self.dead { Err(io::ErrorKind::UnexpectedEof.into()) } else { self.link.recv(buf) }
    }

    fn timeout(&self) -> Duration {
        self.link.timeout()
    }
}

/// What each party has after a session whose links die after `client` and `server` messages, and how many were sent.
fn cut(
    hosted: &ModelServer,
    [client, server]: [usize; 2],
    run: impl FnOnce(ClientSession) -> Result<Outcome, Error>,
) -> ([bool; 2], [usize; 2]) {
    let (here, there) = memory_pair(Duration::from_secs(20));
    let sent: [Arc<AtomicUsize>; 2] = Default::default();
    let here = Dying { link: here, left: client, dead: false, sent: sent[0].clone() };
    let there = Dying { link: there, left: server, dead: false, sent: sent[1].clone() };
    let well = thread::scope(|scope| {
        let server = scope.spawn(|| {
            hosted.serve(
                Channel::new(Role::Server, there),
                &Caller::default(),
                &terms(),
                &Limits::default(),
                &mut Silent,
            )
        });
        let opened = ClientSession::open(
            Channel::new(Role::Client, here),
            &Caller::default(),
            &terms(),
            &ClientOptions::default(),
        );
        let client = opened.and_then(run).is_ok();
        [client, server.join().unwrap().is_ok()]
    });
    (well, sent.map(|sent| sent.load(Ordering::Relaxed)))
}

const NEVER: [usize; 2] = [usize::MAX; 2];

/// States of the pools' files in a directory, by name.
fn states(dir: &Path) -> Vec<State> {
    let mut states: Vec<State> = find(dir).unwrap().iter().map(Found::state).collect();
    states.sort_by_key(|state| format!("{state:?}"));
    states
}

#[test]
fn no_message_that_is_lost_leaves_an_orphan() {
    let dir = tempfile::tempdir().unwrap();
    let (here, there) = (dir.path().join("client"), dir.path().join("server"));
    std::fs::create_dir(&here).unwrap();
    let hosted = ModelServer::load(bundled(MODEL).unwrap()).unwrap().with_pools(Pools::open(&there, 8).unwrap());
    let fill = |name: &str, limits| {
        let path = here.join(name);
        cut(&hosted, limits, move |opened| opened.fill(BOUND, &path, &mut Silent))
    };
    let spend = |name: &str, limits| {
        let path = here.join(name);
        cut(&hosted, limits, move |opened| {
            let pool = Pool::open(&path, Role::Client).map_err(|e| e.at(&path))?;
            opened.spend(pool, &PROMPT, 1, false, Next::Pick(&mut Sampler::greedy()), &mut Silent)
        })
    };
    let (well, [client, server]) = fill("whole", NEVER);
    assert_eq!((well, states(&here), states(&there)), ([true; 2], vec![State::Pool], vec![State::Pool]));
    // The client's last words are `ready` and `kept`, the server's is its own `ready`.
    let (well, _) = fill("ready", [client - 2, usize::MAX]);
    assert_eq!((well, states(&here).len(), states(&there).len()), ([false; 2], 1, 1));
    let (well, _) = fill("answer", [usize::MAX, server - 1]);
    assert_eq!((well, states(&here).len()), ([false; 2], 1));
    assert_eq!(states(&there), [State::Pending, State::Pool], "the client might have had it");
    let (well, _) = fill("kept", [client - 1, usize::MAX]);
    assert_eq!((well, states(&here), states(&there).len()), ([true, false], vec![State::Pool; 2], 3));
    // That pool is as good as any.
    let (well, [client, _]) = spend("kept", NEVER);
    assert_eq!((well, states(&here).len(), states(&there).len()), ([true; 2], 1, 2));
    // A spending session that dies before the client's word leaves both parts, or the server's to wait.
    let mut left = Vec::new();
    for messages in 0..client {
        let (well, _) = spend("whole", [messages, usize::MAX]);
        left.push((states(&here), states(&there)));
        assert!(!well[0] && !well[1], "{messages} of {client}");
        if states(&here).is_empty() {
            break;
        }
    }
    assert_eq!(left.pop().unwrap(), (vec![], vec![State::Pending; 2]), "its claim was not told");
    assert!(
        left.iter().all(|(here, there)| (&here[..], &there[..]) == (&[State::Pool], &[State::Pending, State::Pool]))
    );
}
