//! Hostile peers make no oblivious transfer panic. CONTRIBUTING, "Fuzzing".

use rand::SeedableRng;
use rand::rngs::StdRng;
use waggle_fuzz::link::{Recorded, Watch, frames, pair};
use waggle_fuzz::{Corpus, memory};
use waggle_net::{Channel, NetError, Role};
use waggle_ot::dpf::{DpfShape, Expander, Generation, Room, level_bytes};
use waggle_ot::index::HiddenIndices;
use waggle_ot::{Bits, ChosenKeys, CotKind, CotShape, LookupShape, OtError, SenderKeys, SoftSpoken, dealer, setup};

fn dir(name: &str) -> String {
    format!("{}/tests/corpus/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn rng(role: Role) -> StdRng {
    StdRng::seed_from_u64(role as u64 + 1)
}

/// Runs the set-up, `ots` OTs in both directions, and a transfer of each kind on these OTs.
fn session(ch: &mut Channel, kind: CotKind, ots: usize) -> Result<(), OtError> {
    let role = ch.role();
    let (mut sender, mut receiver) = setup(ch, kind, &mut rng(role))?;
    let (correlation, lookup) = (CotShape::new(37, 2, &[64, 3])?, LookupShape::new(9, 4, &[5, 60])?);
    for turn in [Role::Client, Role::Server] {
        if role == turn {
            sender.ensure(ch, ots)?;
            let corrections = ch.recv("corrections", (37 + 36usize).div_ceil(8))?;
            let mut keys = sender.accept(37 + 36, &corrections)?;
            let tables = keys.split_off(37);
            let (message, share) = keys.correlate(&correlation, &[7; 74])?;
            assert_eq!(share.len(), 74);
            ch.send("products", &message)?;
            ch.send("tables", &tables.lookup(&lookup, |item, row| row.fill(item as u64))?)?;
        } else {
            receiver.ensure(ch, ots)?;
            let (corrections, mut keys) = receiver.choose(&Bits::from_fn(37 + 36, |i| i % 3 == 1))?;
            ch.send("corrections", &corrections)?;
            let indices = keys.split_off(37);
            let message = ch.recv("products", correlation.message_bytes())?;
            assert_eq!(keys.decorrelate(&correlation, &message)?.len(), 74);
            let message = ch.recv("tables", lookup.message_bytes())?;
            assert_eq!(indices.lookup(&lookup, &message)?.len(), 18);
        }
    }
    Ok(ch.flush("end")?)
}

/// The messages of both parties of an honest session.
fn record(kind: CotKind, ots: usize) -> Watch {
    let (client, server, watch) = pair(None);
    let server = std::thread::spawn(move || session(&mut Channel::new(Role::Server, server), kind, ots));
    session(&mut Channel::new(Role::Client, client), kind, ots).expect("client");
    server.join().expect("the server ends").expect("server");
    watch
}

/// Errors that a peer can cause.
fn typed<T>(outcome: Result<T, OtError>) -> Option<T> {
    match outcome {
        Ok(value) => Some(value),
        Err(OtError::Length { .. } | OtError::Deviates { .. }) => None,
        Err(OtError::Net(
            NetError::Closed { .. }
            | NetError::Length { .. }
            | NetError::Unexpected { .. }
            | NetError::Malformed { .. },
        )) => None,
        Err(other) => panic!("not an error of a message: {other:?}"),
    }
}

#[test]
fn fuzz_session() {
    let kind = CotKind::SoftSpoken(SoftSpoken::K8);
    let honest = record(kind, 100);
    for role in [Role::Client, Role::Server] {
        let peer = honest.sent(role.peer());
        // Two whole frames change places, too.
        let mut swapped = frames(&peer);
        let last = swapped.len() - 1;
        swapped.swap(1, last);
        let whole = [("whole".to_owned(), peer), ("swapped".to_owned(), swapped.concat())];
        waggle_fuzz::target!(Corpus::open(dir("setup")).and(whole), |bytes: &[u8]| {
            let link = Recorded::new(bytes);
            let (outcome, memory) = memory::peak(|| session(&mut Channel::new(role, link), kind, 100));
            assert!(memory < 4 << 20, "{memory} bytes");
            typed(outcome);
        });
    }
}

#[test]
fn other_bytes_of_the_right_length_are_noticed() {
    // One OT more than a pool makes before the first round.
    let ots = (1 << 17) + 1;
    let honest = record(CotKind::Silent, ots);
    let peer = frames(&honest.sent(Role::Client));
    // A frame of the set-up, one of the trees of a round, and one of the reserve before a round.
    let [trees, round, reserve] = [8 + 4128, 8 + 64 * 9 * 16, 8 + 31 * (1 << 13)]
        .map(|len| peer.iter().position(|frame| frame.len() == len).expect("a frame of this length"));
    for (frame, step) in [(trees, "ot/trees"), (round, "ot/silent"), (reserve, "ot/softspoken")] {
        for case in 0..4 {
            let mut sent = peer.clone();
            match case {
                0 => sent[frame][8..].fill(0),
                1 => sent[frame][8..].fill(0xff),
                // In the set-up this byte belongs to the digest. A byte of a sum might not be used.
                2 => *sent[frame].iter_mut().rev().nth(20).expect("a byte") ^= 4,
                _ => drop(sent[frame].pop()),
            }
            let link = Recorded::new(sent.concat());
            let outcome = session(&mut Channel::new(Role::Server, link), CotKind::Silent, ots);
            match outcome.expect_err("it is noticed") {
                OtError::Deviates { step: found, party: Role::Client } => assert_eq!(found, step),
                error => assert!(case == 3 && typed::<()>(Err(error)).is_none(), "{step}"),
            }
        }
    }
}

/// The client's keys of `n` random OTs in each direction: as sender, then as receiver.
fn dealt(n: usize) -> (SenderKeys, ChosenKeys) {
    let mut channel = Channel::new(Role::Client, Recorded::new([]));
    let (mut sender, mut receiver) = dealer::setup(Role::Client, 3);
    sender.ensure(&mut channel, n).expect("dealt");
    receiver.ensure(&mut channel, n).expect("dealt");
    (sender.random(n).expect("dealt"), receiver.random(n).expect("dealt").1)
}

#[test]
fn fuzz_transfers() {
    waggle_fuzz::target!(Corpus::open(dir("transfers")), |bytes: &[u8]| {
        let Some((&which, message)) = bytes.split_first() else { return };
        let ((), memory) = memory::peak(|| match which % 3 {
            0 => {
                let mut channel = Channel::new(Role::Client, Recorded::new([]));
                let (mut sender, _) = dealer::setup(Role::Client, 3);
                sender.ensure(&mut channel, 37).expect("dealt");
                if let Some(keys) = typed(sender.accept(37, message)) {
                    assert!(keys.len() == 37 && message.len() == 5 && message[4] >> 5 == 0);
                }
            }
            1 => {
                let shape = CotShape::new(37, 2, &[64, 3]).expect("a shape");
                if let Some(share) = typed(dealt(37).1.decorrelate(&shape, message)) {
                    assert!(message.len() == shape.message_bytes() && share.len() == 74);
                    assert!(share.chunks(4).all(|ots| ots.get(2).is_none_or(|x| *x < 8)), "shares are reduced");
                }
            }
            _ => {
                let shape = LookupShape::new(9, 4, &[5, 60]).expect("a shape");
                if let Some(words) = typed(dealt(36).1.lookup(&shape, message)) {
                    assert!(message.len() == shape.message_bytes() && words.len() == 18);
                    assert!(words.chunks(2).all(|words| words[0] < 1 << 5 && words[1] < 1 << 60));
                }
            }
        });
        assert!(memory < 1 << 20, "{memory} bytes");
    });
}

#[test]
fn fuzz_bits() {
    waggle_fuzz::target!(Corpus::open(dir("bits")), |bytes: &[u8]| {
        // The first two bytes say how many bits the step prescribes.
        let Some((len, message)) = bytes.split_first_chunk::<2>() else { return };
        let len = usize::from(u16::from_le_bytes(*len));
        let (outcome, memory) = memory::peak(|| Bits::from_bytes("bits", message, len));
        assert!(memory < 2 * len + 1000, "{memory} bytes");
        if let Some(bits) = typed(outcome.map_err(OtError::from)) {
            assert_eq!((bits.len(), &bits.to_bytes()[..]), (len, message), "one vector, two messages");
            assert!(bits.words().len() == len.div_ceil(64));
        }
    });
}

#[test]
fn fuzz_point_functions() {
    const TREES: usize = 3;
    waggle_fuzz::target!(Corpus::open(dir("dpf")), |bytes: &[u8]| {
        // The input is the depth, the words of a leaf, then the messages of the levels and the final corrections.
        let Some((&[depth, words], mut rest)) = bytes.split_first_chunk::<2>() else { return };
        let (depth, words) = (1 + u32::from(depth) % 8, 2 + 2 * usize::from(words % 2));
        let shape = DpfShape::new(depth, words, 128 / words as u32).expect("a shape");
        let weights: Vec<u32> = (0..depth).rev().collect();
        let (bits, top) = (dealt(TREES * depth as usize), dealt(TREES * shape.top_ots()));
        let indices = HiddenIndices::new(Role::Client, &weights, bits).expect("indices");
        let mut trees = Generation::new(shape, Role::Client, &indices, top, Room::default()).expect("trees");
        while !trees.is_grown() {
            let mut offered = Vec::new();
            trees.offer(&indices, &mut offered);
            assert_eq!(offered.len(), level_bytes(TREES));
            let message = rest.split_off(..level_bytes(TREES).min(rest.len())).expect("within the length");
            if typed(trees.grow(message)).is_none() {
                return assert!(message.len() < level_bytes(TREES));
            }
        }
        let corrections: Vec<u64> = rest.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let Some((entries, _)) = typed(trees.finish(&[0; TREES], &corrections, &[])) else {
            return assert_ne!(corrections.len(), TREES * words);
        };
        let mut expander = Expander::new(shape, Role::Client);
        for entry in entries.chunks_exact(1 + shape.key_words()) {
            match words {
                2 => expander.expand(&entry[1..], &mut vec![0u64; shape.values()]),
                _ => expander.expand(&entry[1..], &mut vec![0u32; shape.values()]),
            }
        }
    });
}

/// Writes the corpora of this file: `cargo test -p waggle-ot --test fuzz -- --ignored write`.
#[test]
#[ignore = "writes files of the repository"]
fn write_corpora() {
    let kind = CotKind::SoftSpoken(SoftSpoken::K8);
    let honest = record(kind, 100);
    let setup = |role| frames(&honest.sent(role))[..3].concat();
    let mut identity = setup(Role::Client);
    identity[8 + 32..8 + 64].fill(0);
    let mut off = setup(Role::Client);
    off[8 + 64 + 8 + 5 * 32..][..32].fill(0xff);
    let cut = setup(Role::Server)[..1000].to_vec();
    let named = [
        ("client", setup(Role::Client)),
        ("server", setup(Role::Server)),
        ("identity", identity),
        ("off-the-group", off),
        ("cut", cut),
    ];
    Corpus::write(dir("setup"), named.map(|(name, bytes)| (name.to_owned(), bytes)));
    // Messages of the server, which is the receiver first and then the sender.
    let sent = frames(&honest.sent(Role::Server));
    let [.., corrections, products, tables] = &sent[..] else { panic!("{} frames", sent.len()) };
    let tagged = |tag: u8, message: &[u8]| [&[tag], message].concat();
    let named = [
        ("corrections", tagged(0, &[0x5a, 1, 2, 3, 0x1f])),
        ("corrections-and-more", tagged(0, &corrections[8..])),
        ("padding", tagged(0, &[0, 0, 0, 0, 0x20])),
        ("products", tagged(1, &products[8..])),
        ("tables", tagged(2, &tables[8..])),
        ("nothing", tagged(1, &[])),
    ];
    Corpus::write(dir("transfers"), named.map(|(name, bytes)| (name.to_owned(), bytes)));
    let named = [
        ("none", vec![0, 0]),
        ("thirteen", vec![13, 0, 0xff, 0x1f]),
        ("padding", vec![13, 0, 0xff, 0x3f]),
        ("sixty-four", [&[64, 0][..], &[0xa5; 8]].concat()),
        ("sixty-five", [&[65, 0][..], &[0xa5; 8], &[1]].concat()),
        ("short", vec![0xff, 0xff, 1]),
    ];
    Corpus::write(dir("bits"), named.map(|(name, bytes)| (name.to_owned(), bytes)));
    let key = |depth: u8, words: u8, levels: usize| {
        let body = 16 * 3 * levels + 8 * 3 * (2 + 2 * usize::from(words));
        [vec![depth, words], (0..body).map(|i| (i * 37) as u8).collect()].concat()
    };
    let named = [
        ("no-level", key(0, 0, 0)),
        ("top-only", key(2, 1, 0)),
        ("deep", key(7, 0, 5)),
        ("deep-wide", key(7, 1, 5)),
        ("one-level-short", key(7, 0, 4)),
    ];
    Corpus::write(dir("dpf"), named.map(|(name, bytes)| (name.to_owned(), bytes)));
}
