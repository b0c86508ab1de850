//! A pool in parts: any two processes of the parties make the parts in any order, and spend them as a pool made
//! whole.

use std::fs;
use std::path::{Path, PathBuf};

use waggle_model::{Lengths, Next, Sampler, bundled};
use waggle_net::{Entry, Phase, Role};
use waggle_protocols::Part;
use waggle_session::Error;
use waggle_session::party::{ModelServer, Outcome, Peer, SessionPlan, nobody};
use waggle_session::pool::{Found, PoolError, PoolSet, Pools, State, find, part_path};

use crate::outcome::untimed;
use crate::pools::{NEVER, both, cut, session, session_as, states, terms};
use crate::support::{greedy, load};

const MODEL: &str = "shakespeare-llama";
const PROMPT: [u32; 4] = [30, 27, 25, 17];
const BOUND: Lengths = Lengths { prompt: 4, tokens: 3 };

fn part(number: u32, of: u32) -> Part {
    Part::new(number, of).unwrap()
}

/// A separate server process, perhaps on another host. Other servers may share its directory `kept`.
fn server(kept: &Path) -> ModelServer {
    ModelServer::builder().load(bundled(MODEL).unwrap()).unwrap().with_pools(Pools::open(kept, 4).unwrap())
}

fn fill(hosted: &ModelServer, pool: &Path, part: Part) -> [Result<Outcome, Error>; 2] {
    let path = part_path(pool, part);
    session(hosted, |opened| opened.fill_part(BOUND, part, &path, &mut nobody))
}

fn fill_all(hosted: &ModelServer, pool: &Path, of: u32) {
    part(1, of).all().for_each(|part| drop(both(fill(hosted, pool, part))));
}

fn spend(hosted: &ModelServer, pool: &Path, prompt: &[u32], tokens: usize) -> [Result<Outcome, Error>; 2] {
    session(hosted, |opened| {
        let pool = PoolSet::open(pool, Role::Client)?;
        opened.spend(pool, prompt, tokens, Next::Pick(&mut Sampler::greedy()), &mut nobody)
    })
}

fn files(dir: &Path) -> Vec<PathBuf> {
    find(dir).unwrap().iter().map(|found| found.path().to_owned()).collect()
}

/// The server's file of `part`.
fn kept_part(kept: &Path, part: Part) -> PathBuf {
    let found = find(kept).unwrap();
    found.iter().find(|found| found.part() == Some(part)).expect("it is there").path().to_owned()
}

#[test]
fn a_pool_in_parts_equals_one_made_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (kept, pool) = (dir.path().join("server"), dir.path().join("client.pool"));
    // Two processes of the same party, over one directory.
    let hosted = [server(&kept), server(&kept)];
    let truth = |prompt: &[u32], tokens| greedy(&load(bundled(MODEL).unwrap()), prompt, tokens).tokens;
    let terms = terms();
    let plan = |lengths| SessionPlan::new(hosted[0].public(), &terms).request(lengths);
    let planned = |plan: SessionPlan| untimed(&plan.run(&mut nobody).unwrap().outcome);
    // The longest generation of the pool, then a shorter one.
    for (prompt, tokens) in [(&PROMPT[..], 3), (&PROMPT[..3], 2)] {
        let [made, other] = both(fill(&hosted[0], &pool, Part::WHOLE));
        assert!(made.filled.is_some() && made.filled == other.filled && untimed(&made) == untimed(&other));
        assert_eq!(untimed(&made), planned(plan(BOUND).filling(Part::WHOLE)));
        let left = made.entries.iter().filter(|e| e.phase == Phase::Offline && e.path.starts_with("preprocess"));
        assert_eq!(left.map(|e| e.traffic.bytes()).sum::<u64>(), 0, "a pool is for something");
        let [whole, other] = both(spend(&hosted[1], &pool, prompt, tokens));
        let lengths = Lengths { prompt: prompt.len(), tokens };
        assert_eq!(untimed(&whole), untimed(&other));
        assert_eq!(untimed(&whole), planned(plan(lengths).spending(BOUND, Part::WHOLE)));
        if prompt.len() == BOUND.prompt {
            let [ots] = &whole.kinds[..] else { panic!("made ahead: {:#?}", whole.kinds) };
            assert_eq!((&ots.path[..], ots.traffic.bytes()), ("OTs", offline(&whole)), "nothing is made on the spot");
            assert!(offline(&whole) * 3 < offline(&made), "{} of {}", offline(&whole), offline(&made));
        }
        for of in [4, 7] {
            let mut sum = 0;
            for part in part(1, of).all().collect::<Vec<_>>().into_iter().rev() {
                let [client, server] = both(fill(&hosted[part.index() % 2], &pool, part));
                let filled = client.filled.unwrap();
                assert!(server.filled == Some(filled) && filled.part == part);
                assert_eq!(untimed(&client), untimed(&server));
                assert_eq!(untimed(&client), planned(plan(BOUND).filling(part)), "part {part}");
                sum += offline(&client);
            }
            // Every part sets up its own OTs, but makes only its own correlations.
            assert!(sum >= offline(&made) / 2, "{sum} bytes, {} at once", offline(&made));
            let [client, server] = both(spend(&hosted[0], &pool, prompt, tokens));
            assert_eq!(client.generation.tokens, truth(prompt, tokens));
            assert_eq!(client.generation.tokens, whole.generation.tokens);
            assert_eq!(untimed(&client), untimed(&server));
            assert_eq!(untimed(&client), planned(plan(lengths).spending(BOUND, part(1, of))));
            // The request names every part; nothing else tells it from a pool made whole.
            assert_eq!(without_names(untimed(&client), of), untimed(&whole));
            assert!(files(&kept).is_empty() && files(dir.path()).is_empty(), "all files are gone");
        }
    }
}

fn offline(outcome: &Outcome) -> u64 {
    let entries = outcome.entries.iter().filter(|entry| entry.phase == Phase::Offline);
    entries.map(|entry| entry.traffic.bytes()).sum()
}

/// The accounts without the ids of all parts but one.
fn without_names(mut entries: Vec<Entry>, of: u32) -> Vec<Entry> {
    let opening = entries.iter_mut().find(|entry| entry.path == "handshake").expect("an opening");
    opening.traffic.bytes_client_to_server -= 16 * u64::from(of - 1);
    entries
}

#[test]
fn a_part_that_failed_is_made_again_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (kept, mine) = (dir.path().join("server"), dir.path().join("mine"));
    fs::create_dir(&mine).unwrap();
    let pool = mine.join("client.pool");
    let hosted = server(&kept);
    for number in [1, 3] {
        both(fill(&hosted, &pool, part(number, 3)));
    }
    let path = part_path(&pool, part(2, 3));
    let (well, _) = cut(&hosted, [9, usize::MAX], |opened| opened.fill_part(BOUND, part(2, 3), &path, &mut nobody));
    assert_eq!((well, states(&mine), states(&kept)), ([false; 2], vec![State::Pool; 2], vec![State::Pool; 2]));
    let missing = |error: &Error| match error {
        Error::PoolFile { source: PoolError::PartsMissing { parts }, .. } => parts.clone(),
        other => panic!("{other:?}"),
    };
    let [client, _] = spend(&hosted, &pool, &PROMPT, 1);
    assert_eq!(missing(&client.unwrap_err()), [part(2, 3)]);
    both(fill(&hosted, &pool, part(2, 3)));

    // A part that the server lost is named, nothing is used up, and the client makes it again.
    fs::remove_file(kept_part(&kept, part(3, 3))).unwrap();
    let [client, server] = spend(&hosted, &pool, &PROMPT, 1);
    assert!(matches!(client, Err(Error::Refused { reason }) if reason.contains("(part 3/3) here: it was used")));
    assert!(matches!(server, Err(Error::Pool(PoolError::Unknown { part: lost, .. })) if lost == part(3, 3)));
    assert_eq!((states(&mine), states(&kept)), (vec![State::Pool; 3], vec![State::Pool; 2]));
    let lost = part_path(&pool, part(3, 3));
    let backup = dir.path().join("backup");
    fs::rename(&lost, &backup).unwrap();
    both(fill(&hosted, &pool, part(3, 3)));
    let copy = dir.path().join("copy");
    fs::copy(part_path(&pool, part(1, 3)), &copy).unwrap();
    both(spend(&hosted, &pool, &PROMPT, 2));
    assert!(states(&mine).is_empty() && states(&kept).is_empty());

    // A part that was spent does not serve in another set.
    for number in [2, 3] {
        both(fill(&hosted, &pool, part(number, 3)));
    }
    fs::rename(&copy, part_path(&pool, part(1, 3))).unwrap();
    let [client, _] = spend(&hosted, &pool, &PROMPT, 1);
    assert!(matches!(client, Err(Error::Refused { reason }) if reason.contains("(part 1/3) here: it was used")));
    assert_eq!((states(&mine), states(&kept)), (vec![State::Pool; 3], vec![State::Pool; 2]));
}

#[test]
fn a_server_refuses_what_is_no_set() {
    let dir = tempfile::tempdir().unwrap();
    let (kept, mine) = (dir.path().join("server"), dir.path().join("mine"));
    fs::create_dir(&mine).unwrap();
    let pool = mine.join("client.pool");
    let hosted = server(&kept);
    fill_all(&hosted, &pool, 2);
    let refused = |reason: &str, check: &dyn Fn(PoolError) -> bool| {
        let [client, server] = spend(&hosted, &pool, &PROMPT, 1);
        match client {
            Err(Error::Refused { reason: said }) => assert!(said.contains(reason), "{said}"),
            other => panic!("{other:?}"),
        }
        match server {
            Err(Error::Pool(source) | Error::PoolFile { source, .. }) => assert!(check(source), "{reason}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(states(&mine), vec![State::Pool; 2], "nothing is used up");
    };
    // The server's files are exchanged: their ids are not those that the parties agreed on.
    let [one, two] = [1, 2].map(|number| kept_part(&kept, part(number, 2)));
    let aside = dir.path().join("aside");
    fs::rename(&one, &aside).unwrap();
    fs::rename(&two, &one).unwrap();
    refused("the file was replaced", &|error| matches!(error, PoolError::Replaced { .. }));
    fs::rename(&one, &two).unwrap();
    // A part that another client filled.
    let stranger = Peer { key: Some("ed25519:stranger".into()) };
    let foreign = dir.path().join("foreign");
    let filled = session_as(&hosted, &stranger, |opened| opened.fill_part(BOUND, part(1, 2), &foreign, &mut nobody));
    let id = filled[1].as_ref().unwrap().filled.unwrap().id;
    assert!(one.file_name().is_some_and(|name| name.to_string_lossy() != format!("{id}.pool")));
    let [client, _] = session(&hosted, |opened| {
        fs::rename(part_path(&pool, part(1, 2)), dir.path().join("away")).unwrap();
        fs::copy(&foreign, part_path(&pool, part(1, 2))).unwrap();
        let set = PoolSet::open(&pool, Role::Client)?;
        opened.spend(set, &PROMPT, 1, Next::Pick(&mut Sampler::greedy()), &mut nobody)
    });
    assert!(matches!(client, Err(Error::PoolFile { source: PoolError::Mismatch { differences }, .. })
        if differences.iter().any(|difference| difference.name == "peer")));
    fs::rename(dir.path().join("away"), part_path(&pool, part(1, 2))).unwrap();
    fs::rename(&aside, &one).unwrap();
    // A server that may keep only one pool refuses parts of a second one.
    let small =
        ModelServer::builder().load(bundled(MODEL).unwrap()).unwrap().with_pools(Pools::open(&kept, 1).unwrap());
    let [client, _] = fill(&small, &mine.join("other"), part(1, 256));
    assert!(matches!(client, Err(Error::Refused { reason }) if reason == "this server keeps 1 pool already"));
    both(spend(&hosted, &pool, &PROMPT, 1));
}

#[test]
fn a_spending_that_is_cut_leaves_all_parts_or_none() {
    let dir = tempfile::tempdir().unwrap();
    let (kept, mine) = (dir.path().join("server"), dir.path().join("mine"));
    fs::create_dir(&mine).unwrap();
    let pool = mine.join("client.pool");
    let hosted = server(&kept);
    fill_all(&hosted, &pool, 3);
    let spend = |limits| {
        let pool = pool.clone();
        cut(&hosted, limits, move |opened| {
            let pool = PoolSet::open(&pool, Role::Client)?;
            opened.spend(pool, &PROMPT, 1, Next::Pick(&mut Sampler::greedy()), &mut nobody)
        })
    };
    let mut left = Vec::new();
    for messages in 0.. {
        let (well, _) = spend([messages, usize::MAX]);
        assert_eq!(well, [false; 2], "{messages}");
        left.push((states(&mine), states(&kept)));
        if states(&mine).is_empty() {
            break;
        }
    }
    let told = left.pop().unwrap();
    assert_eq!(told, (vec![], vec![State::Pending; 3]), "its claim was not told");
    let before = |(here, there): &(Vec<State>, Vec<State>)| {
        here[..] == [State::Pool; 3] && (there[..] == [State::Pool; 3] || there[..] == [State::Pending; 3])
    };
    assert!(left.iter().all(before), "{left:?}");
    assert!(left.iter().any(|(_, there)| there[0] == State::Pool), "before the request nothing waits");
    // A client that still has its parts can spend them although the server's parts wait.
    for found in find(&kept).unwrap() {
        found.remove().unwrap();
    }
    fill_all(&hosted, &pool, 3);
    let (well, [client, server]) = spend(NEVER);
    assert_eq!(well, [true; 2]);
    assert!(client > 3 && server > 3);
    assert!(find(dir.path()).unwrap().iter().map(Found::path).next().is_none());
}
