//! A pool that does not fit is refused, and no lost message leaves a party's file without its partner.

use std::path::Path;

use waggle_model::{Lengths, ModelFiles, Next, Sampler, bundled};
use waggle_net::Role;
use waggle_session::Error;
use waggle_session::party::{ModelServer, Open, Outcome, Terms, nobody};
use waggle_session::pool::{PoolError, PoolSet, Pools, State};

use crate::pools::{NEVER, both, cut, session, session_under, states, terms};

const MODEL: &str = "shakespeare-gpt2";
const PROMPT: [u32; 4] = [30, 27, 25, 17];
const BOUND: Lengths = Lengths { prompt: 4, tokens: 3 };

fn fill(hosted: &ModelServer, path: &Path) -> [Outcome; 2] {
    both(session(hosted, |opened| opened.fill(BOUND, path, &mut nobody)))
}

fn spend(hosted: &ModelServer, path: &Path, prompt: &[u32], tokens: usize) -> [Result<Outcome, Error>; 2] {
    session(hosted, |opened| {
        let pool = PoolSet::open(path, Role::Client)?;
        opened.spend(pool, prompt, tokens, Next::Pick(&mut Sampler::greedy()), &mut nobody)
    })
}

/// A pool is planned for the link over which it was filled. A later measurement with another result does not refuse
/// it.
#[test]
fn a_pool_brings_its_link() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("client.pool");
    let hosted = ModelServer::builder().load(bundled(MODEL).unwrap()).unwrap();
    let hosted = hosted.with_pools(Pools::open(&dir.path().join("server"), 2).unwrap());
    // A party that is given no link plans for parties in one memory.
    let open = Terms { open: Open { cores: true, link: true, reveal: false }, ..terms() };
    let mut far = terms();
    far.protocol.link = "wan-far".parse().unwrap();
    both(session_under(&hosted, [&far, &open], |opened| opened.fill(BOUND, &path, &mut nobody)));
    let spend = |terms: &Terms| {
        let pool = PoolSet::open(&path, Role::Client).unwrap();
        session_under(&hosted, [terms, &open], |opened| {
            opened.spend(pool, &PROMPT, 2, Next::Pick(&mut Sampler::greedy()), &mut nobody)
        })
    };
    assert_eq!(PoolSet::open(&path, Role::Client).unwrap().link(), Some(far.protocol.link));
    // The forms of operations depend on the link.
    let [client, _] = spend(&open);
    assert!(matches!(client, Err(Error::PoolFile { source: PoolError::Mismatch { .. }, .. })), "{client:?}");
    for Outcome { terms, generation, .. } in both(spend(&far)) {
        assert_eq!((terms.protocol.link, terms.found.unwrap().bursts), (far.protocol.link, None));
        assert_eq!(generation.count, 2);
    }
}

#[test]
fn a_server_refuses_what_it_does_not_have() {
    let dir = tempfile::tempdir().unwrap();
    let kept = dir.path().join("server");
    let (path, copy) = (dir.path().join("client.pool"), dir.path().join("copy.pool"));
    let hosted = ModelServer::builder().load(bundled(MODEL).unwrap()).unwrap();
    let [client, server] = session(&hosted, |opened| opened.fill(BOUND, &path, &mut nobody));
    assert!(matches!(client, Err(Error::Refused { reason }) if reason == "this server keeps no pools"));
    assert!(matches!(server, Err(Error::Pool(PoolError::NoPools))) && !path.exists());

    let hosted = hosted.with_pools(Pools::open(&kept, 1).unwrap());
    fill(&hosted, &path);
    let [client, server] = session(&hosted, |opened| opened.fill(BOUND, &copy, &mut nobody));
    assert!(matches!(client, Err(Error::Refused { reason }) if reason.contains("1 pool already")));
    assert!(matches!(server, Err(Error::Pool(PoolError::Full { limit: 1 }))) && !copy.exists());

    // The client itself refuses more than the pool was made for, and nothing is used up.
    let [client, _] = spend(&hosted, &path, &PROMPT, 4);
    assert!(matches!(client, Err(Error::PoolFile { source: PoolError::Bound { got: 4, limit: 3, .. }, .. })));

    // The client's copy from a backup meets a server whose file is used.
    std::fs::copy(&path, &copy).unwrap();
    both(spend(&hosted, &path, &PROMPT, 1));
    let [client, server] = spend(&hosted, &copy, &PROMPT, 1);
    assert!(matches!(client, Err(Error::Refused { reason }) if reason.contains("used already")));
    assert!(matches!(server, Err(Error::Pool(PoolError::Unknown { .. }))));

    // A damaged file of the server's is refused without naming its path.
    fill(&hosted, &path);
    let file = std::fs::read_dir(&kept).unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let [client, server] = spend(&hosted, &path, &PROMPT, 1);
    assert!(
        matches!(client, Err(Error::Refused { reason }) if reason == "its part is lost: its pool is corrupted in its words")
    );
    assert!(matches!(server, Err(Error::PoolFile { source: PoolError::Lost { .. }, .. })));

    // Other weights of the same shape are another model.
    std::fs::remove_file(&file).ok();
    let changed = dir.path().join("model");
    std::fs::create_dir(&changed).unwrap();
    for name in ["config.json", "model.safetensors"] {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../model/assets").join(MODEL).join(name);
        let mut bytes = std::fs::read(source).unwrap();
        if name.starts_with("model") {
            // Changes a bit in the fraction of the last numbers, whether they have two or four bytes.
            bytes.iter_mut().rev().skip(1).step_by(4).take(100).for_each(|byte| *byte ^= 0x40);
        }
        std::fs::write(changed.join(name), bytes).unwrap();
    }
    let other = dir.path().join("other.pool");
    fill(&hosted, &other);
    let hosted = ModelServer::builder().load(ModelFiles::open(&changed).unwrap()).unwrap();
    let hosted = hosted.with_pools(Pools::open(&kept, 1).unwrap());
    let [client, server] = spend(&hosted, &other, &PROMPT, 1);
    assert!(matches!(client, Err(Error::Refused { reason }) if reason.ends_with("these differ: weights")));
    assert!(matches!(server, Err(Error::PoolFile { source: PoolError::Mismatch { .. }, .. })));
}

#[test]
fn no_message_that_is_lost_leaves_an_orphan() {
    let dir = tempfile::tempdir().unwrap();
    let (here, there) = (dir.path().join("client"), dir.path().join("server"));
    std::fs::create_dir(&here).unwrap();
    let hosted =
        ModelServer::builder().load(bundled(MODEL).unwrap()).unwrap().with_pools(Pools::open(&there, 8).unwrap());
    let fill = |name: &str, limits| {
        let path = here.join(name);
        cut(&hosted, limits, move |opened| opened.fill(BOUND, &path, &mut nobody))
    };
    let spend = |name: &str, limits| {
        let path = here.join(name);
        cut(&hosted, limits, move |opened| {
            let pool = PoolSet::open(&path, Role::Client)?;
            opened.spend(pool, &PROMPT, 1, Next::Pick(&mut Sampler::greedy()), &mut nobody)
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
    // The pool is as good as any other.
    let (well, [client, _]) = spend("kept", NEVER);
    assert_eq!((well, states(&here).len(), states(&there).len()), ([true; 2], 1, 2));
    // A spending session that dies before the client's word leaves both parties' parts, and the server's may wait.
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
