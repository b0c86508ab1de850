//! SoftSpoken OT extension (Roy, <https://eprint.iacr.org/2022/192>), semi-honest.
//!
//! The 128 bits of `Delta` are cut into `128 / k` elements `Delta_j` of F_{2^k}. A punctured PRF per element
//! ([`crate::pprf`]) gives a vector OLE over the small field without further communication (section 3, figure 2):
//! with `r_x = PRG(leaf x)`, the receiver computes
//!
//! `u_j = sum_x r_x` and the k bit planes `v_{j,b} = sum_{x: x_b = 1} r_x`,
//!
//! and the sender, whose leaves are stored at `y = x ^ Delta_j`,
//!
//! `w_{j,b} = sum_{y: y_b = 1} r_y = v_{j,b} ^ Delta_{j,b} u_j`.
//!
//! The receiver sends `d_j = u_j ^ u_0` for j > 0, one flow and `128 / k - 1` bits per OT, which makes `u_0` the choice
//! bits of all. The 128 planes, transposed, are the blocks of the correlated OTs.
//!
//! The PRG is AES-128 in counter mode keyed with the leaf, so pseudorandomness rests on AES alone.

use aes::Aes128Enc;
use aes::cipher::{Array, BlockCipherEncrypt, KeyInit};
use net::{Channel, HEADER_BYTES};
use rayon::prelude::*;
use zeroize::Zeroizing;

use crate::base::COUNT;
use crate::simd::{Cpu, Key};
use crate::transpose::{BATCH, TILES, transpose};
use crate::{Block, CotSource, OtError, Run, Wire};

const STEP: &str = "ot/softspoken";

/// OTs per message: large extensions are cut so that the sender works while the receiver prepares the next message.
const MESSAGE_OTS: usize = 1 << 20;

/// Extensions below this size stay on the calling thread.
const PARALLEL_OTS: usize = 1 << 14;

/// The field of the vector OLE, F_{2^k}: a larger k sends less and computes more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SoftSpoken {
    /// k = 2: 63 bits and 2 AES calls per OT.
    K2,
    /// k = 4: 31 bits and 4 AES calls per OT.
    #[default]
    K4,
    /// k = 8: 15 bits and 32 AES calls per OT.
    K8,
}

impl SoftSpoken {
    /// The variant with this k. Errors: k is not 2, 4 or 8.
    pub fn from_k(k: usize) -> Result<Self, OtError> {
        match k {
            2 => Ok(SoftSpoken::K2),
            4 => Ok(SoftSpoken::K4),
            8 => Ok(SoftSpoken::K8),
            _ => Err(OtError::Parameter { what: "k of SoftSpoken OT", allowed: "2, 4, 8", got: k }),
        }
    }

    /// Bits of the small field.
    pub fn k(self) -> usize {
        match self {
            SoftSpoken::K2 => 2,
            SoftSpoken::K4 => 4,
            SoftSpoken::K8 => 8,
        }
    }

    /// An extension makes a multiple of this many OTs.
    pub fn granularity(self) -> usize {
        BATCH
    }

    /// What an extension by `n` OTs (a multiple of the granularity) sends: one flow.
    pub fn extend_wire(self, n: usize) -> Wire {
        let messages = n.div_ceil(MESSAGE_OTS) as u64;
        let payload = (n / BATCH) as u64 * self.batch_bytes() as u64;
        let to_sender = Run { bytes: payload + messages * HEADER_BYTES as u64, messages };
        Wire { to_sender, to_receiver: Run::default() }
    }

    /// Bytes of the `d_j` of one batch.
    fn batch_bytes(self) -> usize {
        (COUNT / self.k() - 1) * TILES * 16
    }
}

/// What a batch needs to know of the leaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    kind: SoftSpoken,
    /// Whether leaf 0 of every run is the unknown one.
    punctured: bool,
}

/// The PRGs of all leaves, one run of `2^k` per sub-VOLE.
enum Prgs {
    Portable(Vec<Aes128Enc>),
    Simd(Cpu, Zeroizing<Vec<Key>>),
}

struct Leaves {
    shape: Shape,
    prgs: Prgs,
    /// Tiles made so far.
    tiles: u64,
}

impl Leaves {
    fn new(kind: SoftSpoken, seeds: &[Block], punctured: bool, cpu: Option<Cpu>) -> Self {
        debug_assert_eq!(seeds.len(), (COUNT / kind.k()) << kind.k());
        let prgs = match cpu {
            Some(cpu) => Prgs::Simd(cpu, Zeroizing::new(seeds.iter().map(|&s| Key::new(cpu, s)).collect())),
            None => Prgs::Portable(seeds.iter().map(|s| Aes128Enc::new(&Array::from(s.to_bytes()))).collect()),
        };
        Leaves { shape: Shape { kind, punctured }, prgs, tiles: 0 }
    }

    /// Runs `work(this, first counter, batch of out, its part of message)` on all batches, in parallel where it pays.
    fn for_batches<'a, M: Send + 'a>(
        &mut self,
        out: &'a mut [Block],
        message: impl Iterator<Item = M>,
        work: impl Fn(&Self, u64, &mut [Block; BATCH], M) + Sync,
    ) {
        let (batches, rest) = out.as_chunks_mut::<BATCH>();
        debug_assert!(rest.is_empty());
        let (made, parallel) = ((batches.len() * TILES) as u64, batches.len() * BATCH >= PARALLEL_OTS);
        let this = &*self;
        let run = |(i, (out, message))| work(this, this.tiles + (i * TILES) as u64, out, message);
        let jobs = batches.iter_mut().zip(message).enumerate();
        if parallel {
            let jobs: Vec<_> = jobs.collect();
            jobs.into_par_iter().with_min_len(4).for_each(run);
        } else {
            jobs.for_each(run);
        }
        self.tiles += made;
    }
}

/// Leaf `leaf` of `ciphers` at the counters `first, first + 1, ..`.
fn expand(ciphers: &[Aes128Enc], leaf: usize, first: u64, out: &mut [Block; TILES]) {
    let mut blocks = std::array::from_fn::<_, TILES, _>(|t| Array::from(u128::from(first + t as u64).to_le_bytes()));
    ciphers[leaf].encrypt_blocks(&mut blocks);
    *out = blocks.map(|block| Block::from_bytes(block.into()));
}

/// The receiver's planes of one batch into `rows` (row `j k + b` is plane b of sub-VOLE j) and the `d_j` into
/// `message`; `expand(leaf, out)` is the PRG.
#[inline(always)]
pub(crate) fn receive_batch(
    shape: &Shape,
    expand: impl Fn(usize, &mut [Block; TILES]),
    rows: &mut [Block; BATCH],
    message: &mut [u8],
) {
    let mut u0 = [Block::ZERO; TILES];
    planes(shape, expand, rows, |j, u, _| match j.checked_sub(1) {
        None => u0 = *u,
        Some(j) => {
            let d = &mut message[j * TILES * 16..(j + 1) * TILES * 16];
            for (d, (u, u0)) in d.as_chunks_mut::<16>().0.iter_mut().zip(u.iter().zip(&u0)) {
                *d = (*u ^ *u0).to_bytes();
            }
        }
    });
    // Both parties XOR w_{0,0} = v_{0,0} ^ u_0 (Delta has bit 0) into plane 0: the choice lands in the LSB.
    rows[..TILES].copy_from_slice(&u0);
}

/// The sender's planes of one batch into `rows`, from the receiver's `message`.
#[inline(always)]
pub(crate) fn send_batch(
    shape: &Shape,
    expand: impl Fn(usize, &mut [Block; TILES]),
    delta: Block,
    rows: &mut [Block; BATCH],
    message: &[u8],
) {
    let k = shape.kind.k();
    planes(shape, expand, rows, |j, _, planes| {
        let Some(d) = j.checked_sub(1).map(|j| &message[j * TILES * 16..(j + 1) * TILES * 16]) else {
            return;
        };
        let (d, _) = d.as_chunks::<16>();
        for (b, plane) in planes.iter_mut().enumerate() {
            let bit = j * k + b;
            let bit = delta.0[bit / 64] >> (bit % 64) & 1;
            for (w, &d) in plane.iter_mut().zip(d) {
                *w ^= Block::from_bytes(d).times(bit);
            }
        }
    });
    // Plane 0 after the XOR of w_{0,0}; see the receiver.
    rows[..TILES].fill(Block::ZERO);
}

/// The bit planes of one batch; `each(j, u_j, planes of j)` may adjust them.
#[inline(always)]
fn planes(
    shape: &Shape,
    expand: impl Fn(usize, &mut [Block; TILES]),
    rows: &mut [Block; BATCH],
    mut each: impl FnMut(usize, &[Block; TILES], &mut [[Block; TILES]]),
) {
    let k = shape.kind.k();
    let (rows, _) = rows.as_chunks_mut::<TILES>();
    let mut scratch = [[Block::ZERO; TILES]; 16];
    for (j, planes) in rows.chunks_exact_mut(k).enumerate() {
        let expand = |i: usize, out: &mut [Block; TILES]| match shape.punctured && i == 0 {
            true => *out = [Block::ZERO; TILES],
            false => expand((j << k) + i, out),
        };
        let u = match shape.kind {
            SoftSpoken::K2 => fold::<4>(1, expand, &mut scratch, planes),
            SoftSpoken::K4 => fold::<16>(1, expand, &mut scratch, planes),
            SoftSpoken::K8 => fold::<16>(16, expand, &mut scratch, planes),
        };
        each(j, &u, planes);
    }
}

/// Expands one run of leaves and folds it: plane b of `planes` becomes the sum of all leaves with bit b set, the sum
/// of all leaves is returned. Groups of `G` leaves are halved level by level; higher bits select whole groups.
///
/// The sums over a punctured run are right for the planes (leaf 0 is in none), not for the total.
#[inline(always)]
fn fold<const G: usize>(
    groups: usize,
    expand: impl Fn(usize, &mut [Block; TILES]),
    x: &mut [[Block; TILES]; 16],
    planes: &mut [[Block; TILES]],
) -> [Block; TILES] {
    let mut total = [Block::ZERO; TILES];
    let (low, high) = planes.split_at_mut(G.trailing_zeros() as usize);
    high.fill([Block::ZERO; TILES]);
    for g in 0..groups {
        for (i, leaf) in x.iter_mut().enumerate().take(G) {
            expand(g * G + i, leaf);
        }
        // x[i] is a leaf, then the sum of a subtree, halved level by level in place.
        let mut n = G;
        for plane in low.iter_mut() {
            n /= 2;
            let mut sum = if g == 0 { [Block::ZERO; TILES] } else { *plane };
            for i in 0..n {
                let (even, odd) = (x[2 * i], x[2 * i + 1]);
                for t in 0..TILES {
                    sum[t] ^= odd[t];
                    x[i][t] = even[t] ^ odd[t];
                }
            }
            *plane = sum;
        }
        for (b, plane) in high.iter_mut().enumerate() {
            if g >> b & 1 == 1 {
                xor(plane, &x[0]);
            }
        }
        xor(&mut total, &x[0]);
    }
    total
}

#[inline(always)]
fn xor(a: &mut [Block; TILES], b: &[Block; TILES]) {
    for (a, b) in a.iter_mut().zip(b) {
        *a ^= *b;
    }
}

/// The receiver's half: knows every leaf.
pub(crate) struct SoftSpokenReceiver {
    leaves: Leaves,
}

impl SoftSpokenReceiver {
    /// From the leaves of [`crate::pprf::build`].
    pub(crate) fn new(kind: SoftSpoken, leaves: &[Block], cpu: Option<Cpu>) -> Self {
        SoftSpokenReceiver { leaves: Leaves::new(kind, leaves, false, cpu) }
    }

    /// Makes `out.len()` OTs and the message for the sender.
    pub(crate) fn produce(&mut self, out: &mut [Block]) -> Vec<u8> {
        let batch_bytes = self.leaves.shape.kind.batch_bytes();
        let mut message = vec![0; out.len() / BATCH * batch_bytes];
        self.leaves.for_batches(out, message.chunks_exact_mut(batch_bytes), |leaves, first, rows, message| {
            match &leaves.prgs {
                Prgs::Portable(ciphers) => {
                    receive_batch(&leaves.shape, |leaf, out| expand(ciphers, leaf, first, out), rows, message);
                    transpose(rows);
                }
                Prgs::Simd(cpu, keys) => {
                    cpu.receive_batch(&leaves.shape, keys, first, rows, message);
                    cpu.transpose(rows);
                }
            }
        });
        message
    }
}

impl CotSource for SoftSpokenReceiver {
    fn extend(&mut self, ch: &mut Channel, out: &mut [Block]) -> Result<(), OtError> {
        for out in out.chunks_mut(MESSAGE_OTS) {
            let message = self.produce(out);
            ch.send_owned(STEP, message)?;
            ch.flush(STEP)?;
        }
        Ok(())
    }
}

/// The sender's half: knows all leaves but those at `Delta`.
pub(crate) struct SoftSpokenSender {
    leaves: Leaves,
    delta: Block,
}

impl SoftSpokenSender {
    /// From the leaves of [`crate::pprf::open`] and their holes. Bit 0 of `delta` must be set.
    pub(crate) fn new(kind: SoftSpoken, leaves: &[Block], delta: Block, cpu: Option<Cpu>) -> Self {
        debug_assert_eq!(delta.lsb(), 1);
        SoftSpokenSender { leaves: Leaves::new(kind, leaves, true, cpu), delta }
    }

    /// Makes `out.len()` OTs from the receiver's message.
    pub(crate) fn consume(&mut self, message: &[u8], out: &mut [Block]) -> Result<(), OtError> {
        let (batch_bytes, delta) = (self.leaves.shape.kind.batch_bytes(), self.delta);
        OtError::expect(STEP, "bytes", out.len() / BATCH * batch_bytes, message.len())?;
        self.leaves.for_batches(out, message.chunks_exact(batch_bytes), |leaves, first, rows, message| match &leaves
            .prgs
        {
            Prgs::Portable(ciphers) => {
                send_batch(&leaves.shape, |leaf, out| expand(ciphers, leaf, first, out), delta, rows, message);
                transpose(rows);
            }
            Prgs::Simd(cpu, keys) => {
                cpu.send_batch(&leaves.shape, keys, first, delta, rows, message);
                cpu.transpose(rows);
            }
        });
        Ok(())
    }
}

impl Drop for SoftSpokenSender {
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.delta);
    }
}

impl CotSource for SoftSpokenSender {
    fn extend(&mut self, ch: &mut Channel, out: &mut [Block]) -> Result<(), OtError> {
        let batch_bytes = self.leaves.shape.kind.batch_bytes();
        for out in out.chunks_mut(MESSAGE_OTS) {
            let message = ch.recv(STEP, out.len() / BATCH * batch_bytes)?;
            self.consume(&message, out)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pprf;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    /// Both halves over ideal base OTs.
    fn halves(
        kind: SoftSpoken,
        delta: Block,
        rng: &mut StdRng,
        cpus: [Option<Cpu>; 2],
    ) -> (SoftSpokenSender, SoftSpokenReceiver) {
        let mut block = || Block([rng.next_u64(), rng.next_u64()]);
        let base: Vec<[Block; 2]> = (0..COUNT).map(|_| [block(), block()]).collect();
        let bit = |i: usize| (delta.0[i / 64] >> (i % 64)) & 1;
        let chosen: Vec<Block> = (0..COUNT).map(|i| base[i][1 - bit(i) as usize]).collect();
        let bits = std::array::from_fn(|i| subtle::Choice::from(bit(i) as u8));
        let (all, corrections) = pprf::build(&[1; 32], kind.k(), &base);
        let opened = pprf::open("test", &[1; 32], kind.k(), &chosen, &bits, &corrections).unwrap();
        (SoftSpokenSender::new(kind, &opened, delta, cpus[0]), SoftSpokenReceiver::new(kind, &all, cpus[1]))
    }

    #[test]
    fn every_output_is_correlated() {
        let mut rng = StdRng::seed_from_u64(6);
        let random = Block([rng.next_u64() | 1, rng.next_u64()]);
        for kind in [SoftSpoken::K2, SoftSpoken::K4, SoftSpoken::K8] {
            for delta in [random, Block([1, 0]), Block([u64::MAX; 2]), Block([1, 1 << 63])] {
                let (mut sender, mut receiver) = halves(kind, delta, &mut rng, [crate::Kernels::Detected.cpu(); 2]);
                let (mut ones, mut total, mut seen) = (0, 0_u64, Vec::new());
                // The second size is above the threshold of the thread pool.
                for n in [BATCH, 17 * BATCH, 3 * BATCH] {
                    let (mut q, mut t) = (vec![Block::ZERO; n], vec![Block::ZERO; n]);
                    let message = receiver.produce(&mut t);
                    assert_eq!(message.len() * 8, n * (128 / kind.k() - 1));
                    assert!(sender.consume(&message[1..], &mut q).is_err());
                    sender.consume(&message, &mut q).unwrap();
                    for (i, (&q, &t)) in q.iter().zip(&t).enumerate() {
                        assert!(q ^ t == delta.times(t.lsb()), "{kind:?}: OT {i} of {n}");
                        ones += t.lsb();
                        seen.push(u128::from(t) >> 1);
                    }
                    total += n as u64;
                }
                // Six standard deviations of a fair coin; and no block comes twice.
                assert!(ones.abs_diff(total / 2) < 3 * total.isqrt(), "{ones} of {total}");
                seen.sort_unstable();
                seen.dedup();
                assert_eq!(seen.len() as u64, total);
            }
        }
    }

    #[test]
    fn kernels_agree() {
        for kind in [SoftSpoken::K2, SoftSpoken::K4, SoftSpoken::K8] {
            let mut results = crate::simd::all().map(|cpu| {
                let mut rng = StdRng::seed_from_u64(7);
                let delta = Block([rng.next_u64() | 1, rng.next_u64()]);
                let (mut sender, mut receiver) = halves(kind, delta, &mut rng, [cpu; 2]);
                let (mut q, mut t) = (vec![Block::ZERO; 2 * BATCH], vec![Block::ZERO; 2 * BATCH]);
                let message = receiver.produce(&mut t);
                sender.consume(&message, &mut q).unwrap();
                (message, q, t)
            });
            let first = results.next().unwrap();
            assert!(results.all(|other| other == first), "{kind:?}");
        }
    }
}
