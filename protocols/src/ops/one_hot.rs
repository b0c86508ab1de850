//! A shared index as a shared unit vector.
//!
//! **Functionality.** Shares of x modulo 2^b and a public m <= 2^b -> XOR shares of the m bits [x = j], 0 <= j < m.
//!
//! **Source.** An oblivious barrel shifter. The unit vector of x = x_s + x_c is that of the client's x_c, which the
//! client knows, rotated by the server's x_s:
//!
//! ```text
//! vector = the unit vector of x_c on the client, zeros on the server
//! for i = b - 1, .., 0:
//!     vector ^= (bit i of x_s) (vector ^ (vector moved by 2^i))
//!     keep the positions on which the m results depend: m plus the moves still to come
//! ```
//!
//! A stage is one correlated OT per item (Asharov et al., eprint 2013/552, section 5), chosen by the server's bit.
//! The client's share of a stage's result follows from its own pads, so it answers for all stages at once. The
//! largest move comes first, so that later stages keep few positions. Together the stages send about b m + 2^b bits.
//! A 1-of-2^b OT of the rotated vector would send 2^b m, for the same b OTs.
//!
//! **Range.** Any x; 1 <= b <= [`MOST_BITS`]. **Error.** None.
//!
//! **What each party sees.** The client sees choice bits masked by random choice bits. The server sees answers under
//! pads, of which it knows one per OT. **Revealed.** Nothing.

use waggle_ot::{Bits, CotShape};

use crate::operation::prelude::*;
use crate::ops::{batch_items, batched_cost};

/// Most bits of an index: one for each of 131072 tokens.
pub const MOST_BITS: u32 = 17;

/// (...) -> (..., count): [x = j] for j < `count` and words x modulo 2^`bits`.
#[derive(Clone, Copy, Debug)]
pub struct OneHot {
    /// Bits of x, 1..=[`MOST_BITS`].
    pub bits: u32,
    /// Number of entries of a unit vector, 1..=2^bits.
    pub count: usize,
}

impl Operation for OneHot {
    type Input<'a, F: Form> = &'a F::Words;
    type Output<F: Form> = F::Bits;
    type Size = Vec<usize>;

    fn size<F: Form>(&self, x: &&F::Words) -> Vec<usize> {
        let OneHot { bits, count } = *self;
        let fits = (1..=MOST_BITS).contains(&bits) && (1..=1 << bits).contains(&count);
        assert!(fits, "{count} entries of a unit vector of 2^{bits}");
        x.shape()
    }

    fn cost(&self, shape: &Vec<usize>, _: bool, _: &mut Plans) -> Result<Cost, Error> {
        let OneHot { bits, count } = *self;
        Ok(batched_cost(shape.iter().product(), batch(bits), |n| {
            let ots = n * bits as usize;
            let stages = stages(n, bits, count);
            let answer = stages.iter().map(|stage| stage.transfers.message_bytes()).sum();
            let cost = Cost::free().cots(Role::Client, ots).message(Role::Server, ots.div_ceil(8));
            let cost = stages.iter().fold(cost, |cost, stage| cost.supplies(Role::Client, &stage.transfers));
            let cost = cost.message(Role::Client, answer);
            stages.iter().fold(cost, |cost, stage| cost.chooses(Role::Server, &stage.transfers))
        }))
    }

    fn run(&self, s: &mut Session, x: &ArrayD<u64>, _: Option<&[u64]>) -> Result<ArrayD<u8>, Error> {
        let (OneHot { bits, count }, words) = (*self, flat(x));
        let mut out = Vec::with_capacity(words.len() * count);
        for words in words.chunks(batch(bits)) {
            let stages = stages(words.len(), bits, count);
            s.reserve(Role::Client, words.len() * bits as usize)?;
            out.extend(match s.role() {
                Role::Client => client(s, &stages, words, bits)?,
                Role::Server => server(s, &stages, words, bits)?,
            });
        }
        Ok(shaped(&appended(x.shape(), count), out))
    }

    fn reference(&self, _: &mut Reference, x: &ArrayD<u64>) -> Result<ArrayD<u8>, Error> {
        let OneHot { bits, count } = *self;
        let unit = |&v: &u64| (0..count as u64).map(move |j| u8::from(v & mask(bits) == j));
        Ok(shaped(&appended(x.shape(), count), x.iter().flat_map(unit).collect()))
    }

    fn planned(&self, shape: Vec<usize>) -> Shape {
        Shape(appended(&shape, self.count))
    }
}

const CHOICES: &str = "one hot/choices";
const ANSWER: &str = "one hot/answer";

/// One stage of the shifter. It moves the vector by `by` positions or leaves it.
struct Stage {
    by: usize,
    /// Number of positions of the result that the stage keeps. They are -`below`..`count`, modulo 2^b, or all 2^b
    /// positions.
    kept: usize,
    below: usize,
    transfers: CotShape,
}

/// The stages for `n` items, the largest move first.
fn stages(n: usize, bits: u32, count: usize) -> Vec<Stage> {
    let size = 1usize << bits;
    let stage = |i: u32| {
        let by = 1usize << i;
        // Moves still to come: by/2 + .. + 1.
        let kept = size.min(count + by - 1);
        let transfers = CotShape::new(n, kept, &[1]).expect("one bit each");
        Stage { by, kept, below: kept - count, transfers }
    };
    (0..bits).rev().map(stage).collect()
}

/// Number of items in a batch. Vectors take a word of memory for each bit.
fn batch(bits: u32) -> usize {
    batch_items(bits as usize * (1usize << bits).div_ceil(16))
}

/// A party's share of the vectors. Entry t of an item is the vector's position t - `below`, modulo 2^b.
struct Vectors {
    entries: Vec<u64>,
    kept: usize,
    below: usize,
}

impl Vectors {
    /// The vectors at the positions that a stage keeps, and the exclusive-or of these with the same vectors moved.
    fn before(&self, stage: &Stage, bits: u32) -> (Vec<u64>, Vec<u64>) {
        let size = 1 << bits;
        let at = |t: usize, by: usize| (t + self.below + size - stage.below - by) & (size - 1);
        let items = || self.entries.chunks_exact(self.kept);
        let here = items().flat_map(|item| (0..stage.kept).map(move |t| item[at(t, 0)])).collect();
        let change =
            items().flat_map(|item| (0..stage.kept).map(move |t| item[at(t, 0)] ^ item[at(t, stage.by)])).collect();
        (here, change)
    }
}

fn client(s: &mut Session, stages: &[Stage], x: &[u64], bits: u32) -> Result<Vec<u8>, Error> {
    let ots = x.len() * bits as usize;
    let choices = s.channel().recv(CHOICES, ots.div_ceil(8))?;
    let mut keys = s.sender().accept(ots, &choices)?;
    let size = 1u64 << bits;
    // [x = j] without a branch or an address that depends on x.
    let unit = |x: u64| (0..size).map(move |j| ((x ^ j) & mask(bits)).wrapping_sub(1) >> 63);
    let entries = x.iter().flat_map(|&x| unit(x)).collect();
    let mut vectors = Vectors { entries, kept: size as usize, below: 0 };
    let mut answer = Vec::new();
    for stage in stages {
        let rest = keys.split_off(x.len());
        let (mut entries, change) = vectors.before(stage, bits);
        let (message, shares) = keys.correlate(&stage.transfers, &change)?;
        keys = rest;
        answer.extend(message);
        entries.iter_mut().zip(shares).for_each(|(entry, share)| *entry ^= share);
        vectors = Vectors { entries, kept: stage.kept, below: stage.below };
    }
    s.deliver(ANSWER, answer)?;
    Ok(vectors.entries.into_iter().map(|bit| bit as u8).collect())
}

fn server(s: &mut Session, stages: &[Stage], x: &[u64], bits: u32) -> Result<Vec<u8>, Error> {
    let n = x.len();
    // OTs stage by stage, the highest bit first.
    let chosen = Bits::from_fn(n * stages.len(), |i| x[i % n] >> (bits as usize - 1 - i / n) & 1 == 1);
    let (message, mut keys) = s.receiver().choose(&chosen)?;
    s.deliver(CHOICES, message)?;
    let bytes = stages.iter().map(|stage| stage.transfers.message_bytes()).sum();
    let answer = s.channel().recv(ANSWER, bytes)?;
    let mut answer = &answer[..];
    let mut vectors = Vectors { entries: vec![0; n << bits], kept: 1 << bits, below: 0 };
    for stage in stages {
        let rest = keys.split_off(n);
        let (message, others) = answer.split_at(stage.transfers.message_bytes());
        answer = others;
        let moved = keys.choices().clone();
        let shares = keys.decorrelate(&stage.transfers, message)?;
        keys = rest;
        let (mut entries, change) = vectors.before(stage, bits);
        for (i, entry) in entries.iter_mut().enumerate() {
            *entry ^= shares[i] ^ (moved.get(i / stage.kept) & change[i]);
        }
        vectors = Vectors { entries, kept: stage.kept, below: stage.below };
    }
    Ok(vectors.entries.into_iter().map(|bit| bit as u8).collect())
}
