//! Parts of a pool together hold what the whole would hold. Either all of them are claimed or none, and nothing else
//! passes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use waggle_model::Lengths;
use waggle_net::Role;
use waggle_protocols::{Part, Stock};

use super::tests::{BOUND, names, purpose, request, words};
use super::{Pool, PoolError, PoolId, PoolSet, Pools, Purpose, UnfinishedPool, count, find, part_path};
use crate::Error;

const OF: u32 = 4;

fn part(number: u32) -> Part {
    Part::new(number, OF).unwrap()
}

/// A stock for `purpose`, whose words count up from `first`.
fn stock(purpose: &Purpose, role: Role, first: u64) -> Stock {
    let mut next = first..;
    Stock::refill(purpose.needs(), role, |words| {
        words.iter_mut().zip(&mut next).for_each(|(to, word)| *to = word);
        Ok::<_, PoolError>(())
    })
    .unwrap()
}

/// The first word in the stock of `part`.
fn first_word(part: Part) -> u64 {
    u64::from(part.number()) << 32
}

/// Writes `part` of the client's pool for the purpose `whole` into the file `path`. Returns the id of the file.
fn write_as(path: &Path, whole: &Purpose, part: Part) -> PoolId {
    let (id, purpose) = (PoolId::random(), whole.part(part).unwrap());
    let unfinished = UnfinishedPool::create(path).unwrap();
    let stock = stock(&purpose, Role::Client, first_word(part));
    unfinished.write(id, Role::Client, &purpose, stock).unwrap().publish().unwrap();
    id
}

fn write(pool: &Path, part: Part) -> PoolId {
    write_as(&part_path(pool, part), &purpose("full"), part)
}

fn write_all(pool: &Path) -> Vec<PoolId> {
    part(1).all().map(|part| write(pool, part)).collect()
}

fn open(pool: &Path) -> Result<PoolSet, Error> {
    PoolSet::open(pool, Role::Client)
}

/// Checks and claims a set, as a session does.
fn spend(set: PoolSet) -> Result<Stock, Error> {
    let purposes = purpose("full").parts(set.last())?;
    set.check(&purposes, &request(8, 3))?;
    set.claim(&purposes)
}

/// The error about a pool in a failed `result`, without the path.
fn cause(result: Result<impl Sized, Error>) -> PoolError {
    match result.err() {
        Some(Error::PoolFile { source, .. } | Error::Pool(source)) => source,
        other => panic!("{other:?}"),
    }
}

#[test]
fn all_parts_make_the_stock_of_the_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.pool");
    let ids = write_all(&path);
    let set = open(&path).unwrap();
    assert_eq!((set.ids(), set.bound(), set.last()), (ids, BOUND, part(OF)));
    let got = words(spend(set).unwrap(), Role::Client);
    // The queue of a kind holds the words of the parts in order.
    let whole = purpose("full");
    let mut kinds: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    let mut operands = BTreeMap::new();
    for (purpose, part) in whole.parts(part(1)).unwrap().iter().zip(part(1).all()) {
        let mut next = first_word(part)..;
        for (kind, units) in &purpose.needs().units {
            let words = next.by_ref().take(units * kind.words(Role::Client));
            kinds.entry(format!("{kind:?}")).or_default().extend(words);
        }
        for (id, events) in &purpose.needs().operands {
            let count = waggle_protocols::Needs { operands: [(*id, events.clone())].into(), ..Default::default() };
            operands.insert(*id, next.by_ref().take(count.words(Role::Client) as usize).collect::<Vec<_>>());
        }
    }
    let expected = whole.needs().units.keys().flat_map(|kind| kinds.remove(&format!("{kind:?}")).unwrap());
    let expected: Vec<u64> = expected.chain(operands.into_values().flatten()).collect();
    assert_eq!(got, expected);
    assert!(names(dir.path()).is_empty(), "nothing is left");
    assert!(matches!(cause(open(&path)), PoolError::Gone));
}

#[test]
fn a_set_without_a_part_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.pool");
    write_all(&path);
    let away = |number| dir.path().join(format!("away{number}"));
    for number in [2, 3] {
        fs::rename(part_path(&path, part(number)), away(number)).unwrap();
    }
    let error = open(&path).unwrap_err();
    assert!(error.to_string().ends_with("a.pool: parts 2/4, 3/4 of the pool are missing"), "{error}");
    assert!(matches!(cause(Err::<(), _>(error)), PoolError::PartsMissing { parts } if parts == [part(2), part(3)]));
    fs::rename(away(2), part_path(&path, part(2))).unwrap();
    let error = open(&path).unwrap_err();
    assert!(error.to_string().ends_with("a.pool: part 3/4 of the pool is missing"), "{error}");
    // Only the lost part is made again.
    write(&path, part(3));
    assert!(spend(open(&path).unwrap()).is_ok());
}

#[test]
fn nothing_but_all_parts_of_one_pool_is_a_set() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.pool");
    write_all(&path);
    let pools = |paths: &[PathBuf]| paths.iter().map(|path| Pool::open(path, Role::Client).unwrap()).collect();
    let at = |number| part_path(&path, part(number));
    let mine: Vec<PathBuf> = (1..=OF).map(at).collect();
    let other = dir.path().join("other");
    let instead = |at: usize| {
        let mut paths = mine.clone();
        paths[at] = other.clone();
        PoolSet::new(pools(&paths)).map_err(Error::from)
    };

    write_as(&other, &purpose("full"), part(2));
    assert!(matches!(cause(instead(2)), PoolError::PartTwice { part: twice } if twice == part(2)));
    assert!(instead(1).is_ok(), "any second part of a pool for the same will do");
    let twice = || PoolSet::new(pools(&[&mine[..], std::slice::from_ref(&other)].concat())).map_err(Error::from);
    assert!(matches!(cause(twice()), PoolError::PartTwice { .. }));

    fs::remove_file(&other).unwrap();
    let half = Part::new(2, 2).unwrap();
    write_as(&other, &purpose("full"), half);
    assert!(matches!(cause(instead(1)), PoolError::Division { parts } if parts.contains(&half)));
    fs::copy(&other, part_path(&path, half)).unwrap();
    assert!(matches!(cause(open(&path)), PoolError::Division { .. }));
    fs::remove_file(part_path(&path, half)).unwrap();

    fs::remove_file(&other).unwrap();
    write_as(&other, &purpose("streaming"), part(2));
    let error = cause(instead(1));
    assert!(error.to_string().ends_with("policy is `streaming`, expected `full`"), "{error}");
    let mut shorter = purpose("full");
    shorter.bound.tokens -= 1;
    fs::remove_file(&other).unwrap();
    write_as(&other, &shorter, part(2));
    let error = cause(instead(1));
    assert!(error.to_string().ends_with("bound is `8+2`, expected `8+3`"), "{error}");

    // The name of a file does not decide which part it is.
    fs::rename(at(1), &other).unwrap_or_default();
    fs::rename(at(3), at(1)).unwrap();
    fs::rename(&other, at(3)).unwrap();
    assert!(matches!(cause(open(&path)), PoolError::OtherPart { expected, found }
        if (expected, found) == (part(1), part(3))));
    // A whole pool is not a part either.
    fs::remove_file(at(1)).unwrap();
    write_as(&at(1), &purpose("full"), Part::WHOLE);
    assert!(matches!(cause(open(&path)), PoolError::OtherPart { found: Part::WHOLE, .. }));
}

#[test]
fn no_header_names_a_part_that_cannot_be() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.pool");
    for text in ["", "5/4", "0/4", "1/1000", "1", "1/4 "] {
        let mut purpose = purpose("full");
        purpose.facts.insert(super::PART.into(), text.into());
        let stock = stock(&purpose, Role::Client, 0);
        UnfinishedPool::create(&path)
            .unwrap()
            .write(PoolId::random(), Role::Client, &purpose, stock)
            .unwrap()
            .publish()
            .unwrap();
        assert!(matches!(Pool::open(&path, Role::Client), Err(PoolError::Header { .. })), "{text}");
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn all_parts_are_claimed_or_none() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.pool");
    write_all(&path);
    let checked = || {
        let set = open(&path).unwrap();
        let purposes = purpose("full").parts(set.last()).unwrap();
        set.check(&purposes, &request(8, 3)).unwrap();
        (set, purposes)
    };
    // Another process holds the last part.
    let held = fs::File::options().write(true).open(part_path(&path, part(OF))).unwrap();
    held.lock().unwrap();
    let (set, purposes) = checked();
    assert!(matches!(cause(set.claim(&purposes)), PoolError::Gone));
    assert_eq!(names(dir.path()).len(), OF as usize);
    drop(held);
    // A part is moved away, and another file takes its place.
    let away = dir.path().join("away");
    let (set, purposes) = checked();
    fs::rename(part_path(&path, part(3)), &away).unwrap();
    assert!(matches!(cause(set.claim(&purposes)), PoolError::Gone));
    fs::rename(&away, part_path(&path, part(3))).unwrap();
    let (set, purposes) = checked();
    let old = set.ids()[1];
    fs::remove_file(part_path(&path, part(2))).unwrap();
    let new = write(&path, part(2));
    assert!(matches!(cause(set.claim(&purposes)), PoolError::Replaced { expected, found }
        if (expected, found) == (old, new)));
    assert_eq!(names(dir.path()).len(), OF as usize);
    // Of many threads that want the same parts, one gets all of them.
    let opened: Vec<_> = (0..8).map(|_| checked()).collect();
    let results = std::thread::scope(|scope| {
        let threads = opened.into_iter().map(|(set, purposes)| scope.spawn(move || set.claim(&purposes)));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    let won = results.into_iter().filter(|result| match result {
        Ok(_) => true,
        Err(Error::PoolFile { source: PoolError::Gone, .. }) => false,
        other => panic!("{other:?}"),
    });
    assert!(won.count() == 1 && names(dir.path()).is_empty());
}

#[test]
fn a_damaged_part_spoils_the_set_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.pool");
    write_all(&path);
    let damaged = part_path(&path, part(2));
    let mut bytes = fs::read(&damaged).unwrap();
    let last = bytes.len() - 40;
    bytes[last] ^= 1;
    fs::write(&damaged, bytes).unwrap();
    match spend(open(&path).unwrap()) {
        Err(Error::PoolFile { path, source: PoolError::Lost { .. } }) => assert_eq!(path, damaged),
        other => panic!("{other:?}"),
    }
    assert!(names(dir.path()).is_empty(), "what was read will not be read again");
}

#[test]
fn parts_count_as_one_pool_together() {
    let dir = tempfile::tempdir().unwrap();
    let pools = Pools::open(dir.path(), 9).unwrap().with_max_per_peer(2);
    let mut whole = purpose("full");
    whole.facts.insert(super::PEER.into(), "a".into());
    let fill = |part: Part| {
        let (id, purpose) = (PoolId::random(), whole.part(part).unwrap());
        let (unfinished, waiting) = pools.reserve(id, Some("a"), BOUND, part)?.split();
        let stock = stock(&purpose, Role::Server, 0);
        waiting.begin(unfinished.write(id, Role::Server, &purpose, stock)?)?.publish()
    };
    let kept = || count(&find(dir.path()).unwrap());
    // The parts count as one pool, from the first part to the last.
    for part in Part::new(1, 3).unwrap().all() {
        fill(part).unwrap();
        assert_eq!(kept(), 1);
    }
    let place = pools.reserve(PoolId::random(), Some("a"), BOUND, part(1)).unwrap();
    assert!(matches!(fill(Part::WHOLE), Err(PoolError::FullForPeer { limit: 2 })), "the second is being filled");
    fill(part(2)).unwrap();
    drop(place);
    // A second copy of a part belongs to another pool.
    assert!(matches!(fill(part(2)), Err(PoolError::FullForPeer { limit: 2 })));
    assert!(matches!(fill(Part::new(3, 3).unwrap()), Err(PoolError::FullForPeer { limit: 2 })));
    for number in [1, 3, OF] {
        fill(part(number)).unwrap();
    }
    assert_eq!(kept(), 2);
    assert!(matches!(fill(Part::WHOLE), Err(PoolError::FullForPeer { limit: 2 })));
    // Parts for other lengths are of another pool, and so are those of another peer.
    let longer = Lengths { tokens: BOUND.tokens + 1, ..BOUND };
    let refused = pools.reserve(PoolId::random(), Some("a"), longer, part(1));
    assert!(matches!(refused, Err(PoolError::FullForPeer { limit: 2 })));
    assert!(pools.reserve(PoolId::random(), Some("b"), BOUND, part(1)).is_ok());
}

#[test]
fn a_file_has_the_name_of_its_part() {
    let path = Path::new("dir/a.pool");
    assert_eq!(part_path(path, Part::WHOLE), path);
    assert_eq!(part_path(path, part(2)), Path::new("dir/a.pool.2-of-4"));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.pool");
    // None of these names is that of a part.
    for name in
        ["a.pool.0-of-4", "a.pool.5-of-4", "a.pool.1-of-4.claimed", "b.pool.1-of-4", "a.pool.1-of-1", "a.pool."]
    {
        fs::write(dir.path().join(name), b"").unwrap();
    }
    assert!(matches!(cause(open(&path)), PoolError::Gone));
    // A whole pool at the place itself comes first.
    write_all(&path);
    let whole = write_as(&path, &purpose("full"), Part::WHOLE);
    assert_eq!(open(&path).unwrap().ids(), [whole]);
    let bound = Lengths { tokens: BOUND.tokens + 1, ..BOUND };
    assert!(bound != open(&path).unwrap().bound());
}

#[test]
fn a_server_has_the_parts_in_the_order_of_the_ids() {
    let dir = tempfile::tempdir().unwrap();
    let pools = Pools::open(dir.path(), 9).unwrap();
    let fill = |part: Part| {
        let (id, purpose) = (PoolId::random(), purpose("full").part(part).unwrap());
        let (unfinished, waiting) = pools.reserve(id, None, BOUND, part).unwrap().split();
        let stock = stock(&purpose, Role::Server, 0);
        let written = unfinished.write(id, Role::Server, &purpose, stock).unwrap();
        waiting.begin(written).unwrap().publish().unwrap();
        id
    };
    let [one, two] = [1, 2].map(|number| fill(Part::new(number, 2).unwrap()));
    let set = |ids: &[PoolId]| pools.set(ids);
    assert!(matches!(cause(set(&[two, one])), PoolError::OtherPart { expected, found }
        if expected.number() == 1 && found.number() == 2));
    assert!(matches!(cause(set(&[one, one])), PoolError::OtherPart { .. }));
    // Half of the parts are no pool, and neither are too many.
    assert!(matches!(cause(set(&[one])), PoolError::PartsMissing { parts } if parts == [Part::new(2, 2).unwrap()]));
    assert!(matches!(cause(set(&[one, two, one])), PoolError::PartTwice { .. }));
    let absent = PoolId::random();
    assert!(matches!(cause(set(&[one, absent])), PoolError::Unknown { id, part }
        if id == absent && part.number() == 2));
    assert!(matches!(cause(set(&[])), PoolError::Gone));
    assert_eq!(set(&[one, two]).unwrap().ids(), [one, two]);
}
