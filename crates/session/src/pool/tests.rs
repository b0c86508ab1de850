//! A file gives back what was written, once, or an error that says why not.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use waggle_model::Lengths;
use waggle_net::{LinkShape, Role};
use waggle_protocols::cached::{Event, Events, OperandForm};
use waggle_protocols::ops::private::MaskedRow;
use waggle_protocols::ops::sum_squares::Squares;
use waggle_protocols::{Axis, CorrelationKind, Needs, OperandId, OperandKind, Part, Stock};

use super::{PENDING_AGE, Pool, PoolError, PoolId, Pools, Purpose, State, UnfinishedPool, Written, find};
use crate::request::Request;

pub(super) const BOUND: Lengths = Lengths { prompt: 8, tokens: 3 };

pub(super) fn purpose(policy: &str) -> Purpose {
    let linear = MaskedRow { weight: "w".into(), inputs: 30, outputs: 7, width: 56, bits: 20, blocks: 1 };
    let units = BTreeMap::from([
        (CorrelationKind::new(linear), 300),
        (CorrelationKind::new(Squares { n: 5, width: 40 }), 11),
    ]);
    let list = vec![Event { m: 8, tokens: 8 }, Event { m: 1, tokens: 9 }];
    let operand = |kind, axis| {
        let events = Events { form: OperandForm { batch: 2, d: 4, axis, width: 40 }, list: list.clone() };
        (OperandId { layer: 0, kind, generation: 0, part: 0 }, events)
    };
    let operands =
        [operand(OperandKind::Keys, Axis::Columns), operand(OperandKind::Values, Axis::Rows)].into_iter().collect();
    let facts = [("policy", policy), ("model", "a shape")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    let needs = Needs { units, operands, ..Needs::default() };
    Purpose { bound: BOUND, facts: facts.into(), link: LinkShape::MEMORY, needs }
}

/// Word number i of every stock in these tests.
fn word(i: usize) -> u64 {
    (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn stock(role: Role) -> Stock {
    let mut words = (0..).map(word);
    Stock::refill(&purpose("full").needs, role, |part| {
        part.iter_mut().zip(&mut words).for_each(|(to, word)| *to = word);
        Ok::<_, PoolError>(())
    })
    .unwrap()
}

pub(super) fn words(stock: Stock, role: Role) -> Vec<u64> {
    let mut words = Vec::new();
    stock
        .drain(&purpose("full").needs, role, |part| {
            words.extend_from_slice(part);
            Ok::<_, PoolError>(())
        })
        .unwrap();
    words
}

fn written(path: &Path, id: PoolId, role: Role) -> Result<Written, PoolError> {
    UnfinishedPool::create(path)?.write(id, role, &purpose("full"), stock(role))
}

fn write(path: &Path, role: Role) -> PoolId {
    let id = PoolId::random();
    written(path, id, role).unwrap().publish().unwrap();
    id
}

pub(super) fn request(prompt: usize, tokens: usize) -> Request {
    Request { stop_at_eos: true, ..Lengths { prompt, tokens }.into() }
}

/// Opens, checks and claims a file, as a session does.
fn spend(path: &Path, role: Role) -> Result<Stock, PoolError> {
    let pool = Pool::open(path, role)?;
    pool.check(&purpose("full"), &request(8, 3))?;
    pool.claim(&purpose("full"))
}

pub(super) fn names(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn what_was_written_comes_back_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    for role in [Role::Client, Role::Server] {
        let id = write(&path, role);
        #[cfg(unix)]
        {
            let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions());
            assert_eq!(mode & 0o777, 0o600);
        }
        let (first, second) = (Pool::open(&path, role).unwrap(), Pool::open(&path, role).unwrap());
        assert_eq!((first.id(), first.bound()), (id, BOUND));
        let got = words(first.claim(&purpose("full")).unwrap(), role);
        assert_eq!(got.len() as u64, purpose("full").needs.words(role));
        assert!(got.iter().enumerate().all(|(i, got)| *got == word(i)));
        assert!(names(dir.path()).is_empty(), "nothing is left");
        assert!(matches!(second.claim(&purpose("full")), Err(PoolError::Gone)));
        assert!(matches!(spend(&path, role), Err(PoolError::Gone)));
    }
}

#[test]
fn a_crash_leaves_nothing_that_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let mine = |path: &Path| written(path, PoolId::random(), Role::Client);
    let unpublished = mine(&path).unwrap();
    assert!(matches!(Pool::open(&path, Role::Client), Err(PoolError::Gone)), "it has no name yet");
    drop(unpublished);
    assert!(names(dir.path()).is_empty());
    // The file of a process that died after its claim.
    write(&path, Role::Client);
    fs::rename(&path, dir.path().join("pool.claimed")).unwrap();
    assert!(matches!(spend(&path, Role::Client), Err(PoolError::Gone)));
    // An existing file is not overwritten.
    let late = mine(&path).unwrap();
    write(&path, Role::Client);
    assert!(matches!(mine(&path), Err(PoolError::Exists)));
    assert!(matches!(late.publish(), Err(PoolError::Exists)));
    assert!(spend(&path, Role::Client).is_ok());
}

#[test]
fn damaged_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    write(&path, Role::Client);
    let whole = fs::read(&path).unwrap();
    let words = 8 * purpose("full").needs.words(Role::Client) as usize;
    let header = whole.len() - words - 32;
    for len in [8, 15, 16, 17, header - 33, header - 1, header, header + 1, header + words, whole.len() - 1] {
        fs::write(&path, &whole[..len]).unwrap();
        match spend(&path, Role::Client) {
            Err(PoolError::Length { expected, found }) => assert!(found == len as u64 && expected > found, "{len}"),
            other => panic!("{len} bytes: {other:?}"),
        }
    }
    for len in [0, 1, 7] {
        fs::write(&path, &whole[..len]).unwrap();
        assert!(
            matches!(spend(&path, Role::Client), Err(PoolError::NotAPool { found, .. }) if found == whole[..len])
        );
    }
    fs::write(&path, [&whole[..], b"\n"].concat()).unwrap();
    assert!(matches!(spend(&path, Role::Client), Err(PoolError::Length { .. })));
    let step = 1 + whole.len() / 300;
    for at in (0..64).chain((64..whole.len()).step_by(step)).chain(whole.len() - 32..whole.len()) {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        let _ = fs::remove_file(&path);
        waggle_files::write_new(&path, &bytes).unwrap();
        match spend(&path, Role::Client).expect_err("a bit is wrong") {
            PoolError::NotAPool { .. } => assert!(at < 8, "{at}"),
            PoolError::Format { found, .. } => assert!((8..12).contains(&at) && found != 1, "{at}"),
            PoolError::Header { .. } | PoolError::Length { .. } => assert!((12..16).contains(&at), "{at}"),
            PoolError::Checksum { part: "header", .. } => assert!((12..header).contains(&at), "{at}"),
            PoolError::Lost { source } => {
                let words =
                    matches!(&*source, PoolError::Checksum { part: "words", expected, found } if expected != found);
                assert!(at >= header && words, "{at}");
                assert!(names(dir.path()).is_empty(), "it was claimed and will not be read again");
            }
            other => panic!("byte {at}: {other:?}"),
        }
    }
}

#[test]
fn files_for_something_else_are_refused_and_stay() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let id = write(&path, Role::Client);
    assert!(matches!(
        Pool::open(&path, Role::Server),
        Err(PoolError::Role { expected: Role::Server, found: Role::Client })
    ));
    let pool = Pool::open(&path, Role::Client).unwrap();
    match pool.check(&purpose("streaming"), &request(1, 1)) {
        Err(error @ PoolError::Mismatch { .. }) => {
            assert!(error.to_string().ends_with("policy is `full`, expected `streaming`"), "{error}");
            assert!(!error.for_peer().contains("streaming") && error.for_peer().ends_with(": policy"));
        }
        other => panic!("{other:?}"),
    }
    let mut wider = purpose("full");
    wider.bound.tokens += 1;
    assert!(matches!(pool.check(&wider, &request(8, 3)), Err(PoolError::Mismatch { differences })
        if differences.len() == 1 && differences[0].name == "fingerprint"));
    for (prompt, tokens, limit) in [(9, 1, 8), (1, 4, 3)] {
        let error = pool.check(&purpose("full"), &request(prompt, tokens)).expect_err("too much");
        assert!(matches!(error, PoolError::Bound { limit: l, got, .. } if (l, got) == (limit, limit + 1)), "{error}");
    }
    assert!(pool.check(&purpose("full"), &request(1, 1)).is_ok());
    // Another pool takes its place between opening and claiming.
    fs::remove_file(&path).unwrap();
    let other = write(&path, Role::Client);
    assert!(matches!(pool.claim(&purpose("full")),
        Err(PoolError::Replaced { expected, found }) if (expected, found) == (id, other)));
}

#[test]
fn ids_are_hexadecimal_and_directories_have_a_limit() {
    let id = PoolId(std::array::from_fn(|i| 17 * i as u8));
    assert_eq!(id.to_string(), "00112233445566778899aabbccddeeff");
    assert_eq!(PoolId::try_from(id.to_string()), Ok(id));
    for text in ["", "0", "../../etc/passwd", "00112233445566778899AABBCCDDEEFF", "00112233445566778899aabbccddeeff0"]
    {
        assert!(PoolId::try_from(text.to_owned()).is_err(), "{text}");
    }
    assert_ne!(PoolId::random(), PoolId::random());
    let dir = tempfile::tempdir().unwrap();
    let pools = Pools::open(&dir.path().join("a/b"), 1).unwrap();
    assert!(pools.reserve(PoolId::random(), None, BOUND, Part::WHOLE).is_ok());
    write(&pools.path(id), Role::Server);
    assert!(matches!(pools.reserve(PoolId::random(), None, BOUND, Part::WHOLE), Err(PoolError::Full { limit: 1 })));
}

#[cfg(unix)]
#[test]
fn a_file_with_two_ways_to_it_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (path, other) = (dir.path().join("pool"), dir.path().join("other"));
    write(&path, Role::Client);
    std::os::unix::fs::symlink(&path, &other).unwrap();
    assert!(matches!(spend(&other, Role::Client), Err(PoolError::Link)));
    fs::remove_file(&other).unwrap();
    fs::hard_link(&path, &other).unwrap();
    for name in [&path, &other] {
        assert!(matches!(spend(name, Role::Client), Err(PoolError::Names { count: 2 })));
    }
    fs::remove_file(&other).unwrap();
    assert!(matches!(spend(dir.path(), Role::Client), Err(PoolError::NotAFile)));
    // A link takes the place of the file after the file was opened.
    let (pool, kept) = (Pool::open(&path, Role::Client).unwrap(), dir.path().join("kept"));
    fs::rename(&path, &kept).unwrap();
    std::os::unix::fs::symlink(&kept, &path).unwrap();
    assert!(matches!(pool.claim(&purpose("full")), Err(PoolError::Link)));
    assert!(spend(&kept, Role::Client).is_ok(), "it was not used");
}

#[test]
fn a_pool_belongs_to_the_pair_that_filled_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let of = |key: &str| {
        let mut purpose = purpose("full");
        purpose.facts.insert(super::PEER.into(), key.into());
        purpose
    };
    let made =
        UnfinishedPool::create(&path).unwrap().write(PoolId::random(), Role::Server, &of("a"), stock(Role::Server));
    made.unwrap().publish().unwrap();
    let pool = Pool::open(&path, Role::Server).unwrap();
    assert_eq!(pool.peer(), Some("a"));
    for stranger in [of("b"), purpose("full")] {
        assert!(matches!(pool.check(&stranger, &request(1, 1)), Err(PoolError::Mismatch { differences })
            if differences.len() == 1 && differences[0].name == "peer"));
    }
    assert!(pool.check(&of("a"), &request(1, 1)).is_ok());
}

/// Fills a pool with `peer` in `pools`, up to the file that waits.
fn fill(pools: &Pools, id: PoolId, peer: &str) -> super::Pending {
    let mut purpose = purpose("full");
    purpose.facts.insert(super::PEER.into(), peer.into());
    let (unfinished, waiting) = pools.reserve(id, Some(peer), BOUND, Part::WHOLE).unwrap().split();
    waiting.begin(unfinished.write(id, Role::Server, &purpose, stock(Role::Server)).unwrap()).unwrap()
}

#[test]
fn quotas_count_pools_and_those_being_filled() {
    let dir = tempfile::tempdir().unwrap();
    let pools = Pools::open(dir.path(), 4).unwrap().with_max_per_peer(2);
    let ids: [PoolId; 4] = std::array::from_fn(|_| PoolId::random());
    // Two sessions at once both count, although neither has a pool.
    let first = pools.reserve(ids[0], Some("a"), BOUND, Part::WHOLE).unwrap();
    let second = pools.clone().reserve(ids[1], Some("a"), BOUND, Part::WHOLE).unwrap();
    assert!(matches!(pools.reserve(ids[2], Some("a"), BOUND, Part::WHOLE), Err(PoolError::FullForPeer { limit: 2 })));
    drop((first, second));
    assert!(names(dir.path()).is_empty());
    for id in &ids[..2] {
        fill(&pools, *id, "a").publish().unwrap();
    }
    assert!(matches!(pools.reserve(ids[2], Some("a"), BOUND, Part::WHOLE), Err(PoolError::FullForPeer { limit: 2 })));
    for id in &ids[2..] {
        drop(fill(&pools, *id, "b"));
    }
    // A file that waits is no pool, and has a limit of its own.
    assert!(matches!(
        pools.reserve(PoolId::random(), Some("b"), BOUND, Part::WHOLE),
        Err(PoolError::Waiting { limit: 2 })
    ));
    assert!(pools.reserve(PoolId::random(), Some("c"), BOUND, Part::WHOLE).is_ok());
    let one_more = Pools::open(dir.path(), 2).unwrap();
    assert!(matches!(
        one_more.reserve(PoolId::random(), Some("c"), BOUND, Part::WHOLE),
        Err(PoolError::Full { limit: 2 })
    ));
}

#[test]
fn what_waits_is_found_and_ends_by_age() {
    let dir = tempfile::tempdir().unwrap();
    let pools = Pools::open(dir.path(), 4).unwrap();
    let id = PoolId::random();
    let pending = fill(&pools, id, "a");
    let state = || find(dir.path()).unwrap().into_iter().map(|found| (found.id(), found.state())).collect::<Vec<_>>();
    assert_eq!(state(), [(Some(id), State::Pending)]);
    // The client spends the pool while the session that filled it still waits for the client's word.
    let spending = pools.get(id).unwrap();
    pending.publish().unwrap();
    assert_eq!(state(), [(Some(id), State::Pool)]);
    let mut made_for = purpose("full");
    made_for.facts.insert(super::PEER.into(), "a".into());
    assert!(spending.claim(&made_for).is_ok());
    assert!(names(dir.path()).is_empty() && matches!(pools.get(id), Err(PoolError::Gone)));
    // The client's word comes late: there is nothing to publish.
    let pending = fill(&pools, id, "a");
    pools.get(id).unwrap().claim(&made_for).unwrap();
    pending.publish().unwrap();
    // A pool that was set aside and never claimed waits, and a new server still has it.
    fill(&pools, id, "a").publish().unwrap();
    let old = fs::File::options().write(true).open(pools.path(id)).unwrap();
    let long_ago = std::time::SystemTime::now() - 2 * PENDING_AGE;
    old.set_modified(long_ago).unwrap();
    drop(pools.set_aside(pools.set(&[id]).unwrap()).unwrap());
    let pools = Pools::open(dir.path(), 4).unwrap();
    assert_eq!(state(), [(Some(id), State::Pending)], "its age begins when it is set aside");
    old.set_modified(long_ago).unwrap();
    assert!(pools.get(id).is_ok());
    Pools::open(dir.path(), 4).unwrap();
    assert!(state().is_empty(), "a week is over");
}

#[test]
fn what_a_crash_leaves_is_told_from_what_is_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let living = UnfinishedPool::create(&path).unwrap();
    write(&path, Role::Client);
    fs::copy(&path, dir.path().join("other.0123.draft")).unwrap();
    fs::write(dir.path().join("empty.0123.draft"), b"").unwrap();
    fs::copy(&path, dir.path().join("other.claimed")).unwrap();
    fs::write(dir.path().join("a letter"), b"something else").unwrap();
    let found = find(dir.path()).unwrap();
    let stale: Vec<&Path> = found.iter().filter(|file| file.is_stale()).map(|file| file.path()).collect();
    let expected = ["empty.0123.draft", "other.0123.draft", "other.claimed"].map(|name| dir.path().join(name));
    assert_eq!((found.len(), stale), (5, expected.iter().map(PathBuf::as_path).collect()));
    let in_use: Vec<_> = found.iter().filter(|file| file.in_use()).collect();
    assert!(in_use.len() == 1 && matches!(in_use[0].remove(), Err(PoolError::InUse)));
    Pools::open(dir.path(), 1).unwrap();
    assert_eq!(names(dir.path()).len(), 3, "an unfinished file in use, a pool and a letter");
    drop(living);
}
