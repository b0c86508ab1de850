//! The computations of this crate on secrets, one by one, for the command that looks for traces of the secrets in
//! times and addresses (`cargo run --release -p waggle-bench --example secrets`). Nothing else uses this module.

use std::hint::black_box;

use rand::SeedableRng;
use rand::rngs::StdRng;
use subtle::Choice;
use waggle_bits::probe::{Probe, shared, words};
use waggle_net::Role;

use crate::base::{self, BaseSender, COUNT, Domain};
use crate::check::Check;
use crate::dpf::{DpfShape, Expander, Lane};
use crate::ggm::full;
use crate::hash::CrHash;
use crate::kernels::{BATCH, LeafRows, Permutation, Simd, TABLE, all, combine, combine_odd, transpose};
use crate::softspoken::{SoftSpokenReceiver, SoftSpokenSender};
use crate::{Bits, Block, ChosenKeys, CotShape, Kernels, LookupShape, SenderKeys, SoftSpoken};

/// Every computation with every set of kernels of this processor.
pub fn probes() -> Vec<Probe> {
    let mut probes = Probes { kernels: String::new(), all: Vec::new() };
    for simd in all() {
        probes.kernels = format!(" ({})", simd.map_or("portable", Simd::name));
        hashes(simd, &mut probes);
        trees(simd, &mut probes);
        extension(simd, &mut probes);
        transfers(simd, &mut probes);
    }
    probes.kernels.clear();
    set_up(&mut probes);
    probes.all
}

/// The computations collected so far.
struct Probes {
    kernels: String,
    all: Vec<Probe>,
}

impl Probes {
    fn add<F: FnMut() + 'static>(&mut self, name: &str, secret_bytes: usize, prepare: impl Fn(&[u8]) -> F + 'static) {
        self.all.push(Probe::new(format!("ot: {name}{}", self.kernels), secret_bytes, prepare));
    }
}

/// An inner loop, to be timed.
pub struct Loop {
    /// Name of the computation and of its unit.
    pub name: &'static str,
    /// Number of units of one run.
    pub units: usize,
    /// Runs the loop once.
    pub run: Box<dyn FnMut()>,
}

/// The inner loops on `kernels`: a half tree, a transposition, and point functions over 128 leaves of four words.
/// These are generated (all levels, without messages) and expanded.
pub fn loops(kernels: Kernels) -> Vec<Loop> {
    let (simd, mix) = (kernels.simd(), |i: u64| Block([i.wrapping_mul(0x9E37_79B9_7F4A_7C15), !i]));
    let pi = move || Permutation::new(simd, mix(1));
    let shape = DpfShape::new(7, 4, 32).expect("a shape in range");
    let (levels, top) = (shape.depth() - shape.top(), 1 << shape.top());
    let tree = {
        let (mut sums, mut nodes, pi) = ([Block::ZERO; DEPTH], vec![Block::ZERO; 1 << DEPTH], pi());
        move || pi.grow(mix(2), mix(3), &mut sums, black_box(&mut nodes))
    };
    let words = {
        let (pi, mut nodes) = (pi(), vec![mix(4); 1 << DEPTH]);
        let table: Box<[Block; TABLE]> = (0..TABLE as u64).map(mix).collect::<Vec<_>>().try_into().expect("as many");
        move || pi.add_code_words(7, &table, black_box(&mut nodes))
    };
    let transposed = {
        let mut rows: Box<[Block; BATCH]> = vec![mix(5); BATCH].try_into().expect("as many blocks");
        move || transpose(simd, black_box(&mut rows))
    };
    let made = {
        let (pi, mut nodes) = (pi(), vec![mix(6); KEYS << (shape.depth() - 1)]);
        let corrections: Vec<Block> = (0..KEYS as u64).map(mix).collect();
        let [mut sums, mut set] = std::array::from_fn(|_| vec![Block::ZERO; KEYS]);
        move || {
            for level in 0..levels - 1 {
                pi.grow_rows(black_box(&mut nodes), top << level, &corrections, black_box(&mut sums));
            }
            let mut sums = LeafRows { words: &mut sums, set: &mut set, pads: &mut [] };
            pi.leaf_rows(black_box(&nodes), &corrections, shape.words(), black_box(&mut sums));
        }
    };
    let expanded = {
        let mut keys: Vec<u64> = (0..(KEYS * shape.key_words()) as u64).map(|i| mix(i).0[0]).collect();
        keys.chunks_exact_mut(shape.key_words()).for_each(|key| key[..2].copy_from_slice(&mix(1).0));
        let mut expander = Expander::by(shape, Role::Client, simd, mix(1));
        let mut out = vec![0u32; shape.values()];
        move || {
            for key in keys.chunks_exact(shape.key_words()) {
                expander.expand(black_box(key), black_box(&mut out));
            }
        }
    };
    let entry = |name, units, run| Loop { name, units, run };
    vec![
        entry("half tree, leaf", 1 << DEPTH, Box::new(tree)),
        entry("ten entries, output", 1 << DEPTH, Box::new(words)),
        entry("transposition, OT", BATCH, Box::new(transposed)),
        entry("DPF made, key", KEYS, Box::new(made)),
        entry("DPF expanded, key", KEYS, Box::new(expanded)),
    ]
}

/// Number of keys of a loop over point functions: as many as share a cipher key.
const KEYS: usize = crate::dpf::GROUP;

/// Whole blocks of a secret.
fn blocks(secret: &[u8]) -> Vec<Block> {
    secret.as_chunks::<16>().0.iter().map(|&bytes| Block::from_bytes(bytes)).collect()
}

/// A Delta made from `block`: its lowest bit is set to 1.
fn delta(block: Block) -> Block {
    Block([block.0[0] | 1, block.0[1]])
}

/// Number of blocks that are hashed at once.
const HASHED: usize = 64;

fn hashes(simd: Option<Simd>, probes: &mut Probes) {
    let hash = shared(CrHash::new(&[1; 32], b"probe", simd));
    probes.add("hash of 64 blocks", 16 * (HASHED + 1), move |secret| {
        let (x, mut out) = (blocks(secret), vec![Block::ZERO; HASHED]);
        move || hash.expander(1).expand(0, &x[..HASHED], x[HASHED], 1, black_box(&mut out))
    });
    probes.add("hash with secret counters", 24 * HASHED, move |secret| {
        let x = blocks(&secret[..16 * HASHED]);
        let counters: Vec<u64> = words(&secret[16 * HASHED..]).iter().map(|word| word & 0xff).collect();
        let mut out = vec![Block::ZERO; 2 * HASHED];
        move || hash.expander(256).expand_from(0, &x, Block::ZERO, 2, |i| counters[i], black_box(&mut out))
    });
    probes.add("hash of 64 nodes", 16 * HASHED, move |secret| {
        let (x, hash) = (blocks(secret), Permutation::new(simd, Block([3, 4])));
        let mut out = vec![Block::ZERO; HASHED];
        move || hash.tree_hash(&x, black_box(&mut out))
    });
}

/// Number of levels of the trees of silent OT.
const DEPTH: usize = 9;

fn trees(simd: Option<Simd>, probes: &mut Probes) {
    probes.add("GGM tree of the sender", 32, move |secret| {
        let x = blocks(secret);
        let (mut sums, mut nodes) = ([Block::ZERO; DEPTH], vec![Block::ZERO; 1 << DEPTH]);
        move || {
            let (sums, nodes) = black_box((&mut sums, &mut nodes));
            Permutation::new(simd, Block([5, 6])).grow(x[0], x[1], sums, nodes);
        }
    });
    probes.add("GGM tree of the receiver, secret path", 8 + 16 * DEPTH, move |secret| {
        let (away, sums) = (words(&secret[..8])[0] & ((1 << DEPTH) - 1), blocks(&secret[8..]));
        let mut nodes = vec![Block::ZERO; 1 << DEPTH];
        move || Permutation::new(simd, Block([5, 6])).regrow(away, &sums, black_box(&mut nodes))
    });
    functions::<u64>(simd, 64, probes);
    functions::<u32>(simd, 32, probes);
}

/// Point functions of 64 leaves.
fn functions<L: Lane>(simd: Option<Simd>, width: u32, probes: &mut Probes) {
    let shape = DpfShape::new(6, L::WORDS, width).expect("a shape in range");
    let name = format!("point function, {} words of {width} bits", L::WORDS);
    probes.add(&name, 8 * shape.key_words(), move |secret| {
        let mut key = words(secret);
        // The key of the cipher is public.
        key[..2].fill(7);
        let mut expander = Expander::by(shape, Role::Client, simd, Block([7; 2]));
        let mut out = vec![L::default(); shape.values()];
        move || expander.expand(&key, black_box(&mut out))
    });
}

fn extension(simd: Option<Simd>, probes: &mut Probes) {
    probes.add("transposition", 16 * BATCH, move |secret| {
        let mut rows: Box<[Block; BATCH]> = blocks(secret).try_into().expect("as many blocks");
        move || transpose(simd, black_box(&mut rows))
    });
    let kind = SoftSpoken::K4;
    let leaves = (COUNT / kind.k()) << kind.k();
    let check = move || Check::new([7; 32], simd);
    let rows = || -> Box<[Block; BATCH]> { vec![Block::ZERO; BATCH].try_into().expect("as many blocks") };
    probes.add("SoftSpoken OT, receiver", 16 * leaves, move |secret| {
        let mut receiver = SoftSpokenReceiver::new(kind, &blocks(secret), check());
        let (mut out, challenge) = (rows(), check().challenge(&[8; 32]));
        move || {
            drop(black_box(receiver.produce(&mut [black_box(&mut out)])));
            receiver.combine(&challenge, &mut [&mut out], true, black_box(&mut [Block::ZERO; COUNT]));
        }
    });
    probes.add("SoftSpoken OT, sender's Delta", 16 * (leaves + 1), move |secret| {
        let seeds = blocks(secret);
        let mut sender = SoftSpokenSender::new(kind, &seeds[..leaves], delta(seeds[leaves]), check());
        let (mut out, challenge) = (rows(), check().challenge(&[8; 32]));
        let message = vec![0x5a; (COUNT / kind.k() - 1) * BATCH / 8];
        move || {
            let (out, mut sums) = (&mut [black_box(&mut *out)], [Block::ZERO; COUNT]);
            sender.consume(&message, &challenge, out, true, &mut sums).expect("the length of a batch");
            black_box(sender.fits(&[0x33; 48], black_box(&sums)));
        }
    });
    probes.add("combination of 64 blocks", 16 * HASHED, move |secret| {
        let (data, mut sum) = (blocks(secret), [Block::ZERO]);
        let coefficients: Vec<Block> = (1..=HASHED as u64).map(|i| Block([i * 0x9E37_79B9_7F4A_7C15, !i])).collect();
        move || combine(simd, &coefficients, &data, black_box(&mut sum))
    });
    probes.add("combination of leaves, place of the odd one", 16 * HASHED, move |secret| {
        let (data, coefficients) = (blocks(secret), [Block([5, 6]); HASHED]);
        move || _ = black_box(combine_odd(simd, &coefficients, black_box(&data)))
    });
}

/// Number of OTs of a transfer.
const OTS: usize = 64;

fn transfers(simd: Option<Simd>, probes: &mut Probes) {
    let hash = shared(CrHash::new(&[2; 32], b"probe", simd));
    let sender = move |x: &[Block]| SenderKeys::new(x[1..=OTS].to_vec(), delta(x[0]), hash.clone(), 0);
    let chosen = move |secret: &[u8]| {
        let choices = Bits::from_words(words(&secret[..8]), OTS);
        ChosenKeys::new(blocks(&secret[8..8 + 16 * OTS]), choices, hash.clone(), 0)
    };
    let shape = shared(CotShape::new(OTS, 3, &[44]).expect("a shape in range"));
    probes.add("correlated transfer, sender", 16 * (OTS + 1) + 8 * shape.values(), move |secret| {
        let (x, words) = (blocks(&secret[..16 * (OTS + 1)]), words(&secret[16 * (OTS + 1)..]));
        move || drop(black_box(sender(&x).correlate(shape, &words).expect("fitting lengths")))
    });
    probes.add("correlated transfer, receiver's choices", 8 + 16 * OTS, move |secret| {
        let (secret, message) = (secret.to_vec(), vec![0xa5; shape.message_bytes()]);
        move || drop(black_box(chosen(&secret).decorrelate(shape, &message).expect("fitting lengths")))
    });
    let shape = shared(LookupShape::new(OTS / 4, 4, &[13, 44]).expect("a shape in range"));
    let entries = shape.entries() * shape.words();
    probes.add("1-of-16 transfer, sender's table", 16 * (OTS + 1) + 8 * entries, move |secret| {
        let (x, table) = (blocks(&secret[..16 * (OTS + 1)]), words(&secret[16 * (OTS + 1)..]));
        let fill = move |_, row: &mut [u64]| row.copy_from_slice(&table);
        move || drop(black_box(sender(&x).lookup(shape, &fill).expect("fitting lengths")))
    });
    probes.add("1-of-16 transfer, receiver's choices", 8 + 16 * OTS, move |secret| {
        let (secret, message) = (secret.to_vec(), vec![0xa5; shape.message_bytes()]);
        move || drop(black_box(chosen(&secret).lookup(shape, &message).expect("fitting lengths")))
    });
}

/// Bits of a secret as choices.
fn choices(secret: &[u8]) -> [Choice; COUNT] {
    std::array::from_fn(|i| Choice::from(secret[i / 8] >> (i % 8) & 1))
}

fn set_up(probes: &mut Probes) {
    let rng = || StdRng::seed_from_u64(1);
    let domain = shared(Domain::new(&[3; 32], b"probe"));
    probes.add("base OT, receiver's choices", COUNT / 8, move |secret| {
        let (choices, message) = (choices(secret), BaseSender::new(&mut rng()).message());
        move || drop(black_box(base::receive(domain, "probe", &message, &choices, &mut rng()).expect("a point")))
    });
    probes.add("base OT, sender's scalar", 64, move |secret| {
        let secret: [u8; 64] = secret.try_into().expect("as many bytes");
        let message = BaseSender::new(&mut rng()).message();
        let none = [Choice::from(0); COUNT];
        let (points, _) = base::receive(domain, "probe", &message, &none, &mut rng()).expect("a point of ours");
        move || {
            let sender = BaseSender::from_bytes(&secret);
            black_box(sender.keys(domain, "probe", &points).expect("points of ours"));
        }
    });
    let k = 4;
    probes.add("punctured PRF, Delta", COUNT / 8 + 16 * COUNT, move |secret| {
        let (delta, chosen) = (choices(&secret[..COUNT / 8]), blocks(&secret[COUNT / 8..]));
        let corrections = vec![0x3c; full::CORRECTION_BYTES];
        move || {
            black_box(full::rebuild("probe", &[9; 32], k, &chosen, &delta, &corrections).expect("as many bytes"));
        }
    });
}
