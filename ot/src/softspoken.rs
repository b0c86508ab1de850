//! SoftSpoken OT extension (Roy, <https://eprint.iacr.org/2022/192>), semi-honest.
//!
//! The 128 bits of `Delta` are cut into `128 / k` elements `Delta_j` of F_{2^k}. A punctured PRF per element
//! ([`crate::ggm::full`]) gives a vector OLE over the small field without further communication (section 3, figure
//! 2): with `r_x = PRG(leaf x)`, the receiver computes
//!
//! `u_j = sum_x r_x` and the k bit planes `v_{j,b} = sum_{x: x_b = 1} r_x`,
//!
//! and the sender, whose leaves are stored at `y = x ^ Delta_j`,
//!
//! `w_{j,b} = sum_{y: y_b = 1} r_y = v_{j,b} ^ Delta_{j,b} u_j`.
//!
//! The receiver sends `d_j = u_j ^ u_0` for j > 0, one flow and `128 / k - 1` bits per OT, which makes `u_0` the
//! choice bits of all. The 128 planes, transposed, are the blocks of the correlated OTs.
//!
//! The PRG is AES-128 in counter mode keyed with the leaf, so pseudorandomness rests on AES alone.

use net::{Channel, HEADER_BYTES};
use rayon::prelude::*;
use zeroize::ZeroizeOnDrop;

use crate::base::COUNT;
use crate::kernels::{BATCH, Prgs, Shape, Simd, TILES};
use crate::source::{CotSource, Run, Wire};
use crate::{Block, OtError};

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

    /// The traffic of an extension by `n` OTs (a multiple of the granularity): one flow.
    pub fn extend_wire(self, n: usize) -> Wire {
        let messages = n.div_ceil(MESSAGE_OTS) as u64;
        let payload = (n / BATCH) as u64 * self.batch_bytes() as u64;
        let to_sender = Run { bytes: payload + messages * HEADER_BYTES as u64, messages };
        Wire { to_sender, to_receiver: Run::default() }
    }

    /// Leaves that an extension by `n` OTs takes: 2^k / k for each of them.
    pub(crate) fn leaves(self, n: usize) -> u64 {
        ((n << self.k()) / self.k()) as u64
    }

    /// Bytes of the `d_j` of one batch.
    fn batch_bytes(self) -> usize {
        (COUNT / self.k() - 1) * TILES * 16
    }
}

/// The PRGs of all leaves, one run of `2^k` per element of `Delta`.
struct Leaves {
    kind: SoftSpoken,
    shape: Shape,
    prgs: Prgs,
    /// Tiles made so far.
    tiles: u64,
}

impl Leaves {
    fn new(kind: SoftSpoken, seeds: &[Block], punctured: bool, simd: Option<Simd>) -> Self {
        debug_assert_eq!(seeds.len(), (COUNT / kind.k()) << kind.k());
        Leaves { kind, shape: Shape { k: kind.k(), punctured }, prgs: Prgs::new(simd, seeds), tiles: 0 }
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

/// The receiver's half: knows every leaf.
pub(crate) struct SoftSpokenReceiver {
    leaves: Leaves,
}

impl SoftSpokenReceiver {
    /// From the leaves of [`crate::ggm::full::build`].
    pub(crate) fn new(kind: SoftSpoken, leaves: &[Block], simd: Option<Simd>) -> Self {
        SoftSpokenReceiver { leaves: Leaves::new(kind, leaves, false, simd) }
    }

    /// Makes `out.len()` OTs and the message for the sender.
    pub(crate) fn produce(&mut self, out: &mut [Block]) -> Vec<u8> {
        let batch_bytes = self.leaves.kind.batch_bytes();
        let mut message = vec![0; out.len() / BATCH * batch_bytes];
        self.leaves.for_batches(out, message.chunks_exact_mut(batch_bytes), |leaves, first, rows, message| {
            leaves.prgs.receive_batch(&leaves.shape, first, rows, message);
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
#[derive(ZeroizeOnDrop)]
pub(crate) struct SoftSpokenSender {
    #[zeroize(skip)]
    leaves: Leaves,
    delta: Block,
}

impl SoftSpokenSender {
    /// From the leaves of [`crate::ggm::full::open`] and their holes. Bit 0 of `delta` must be set.
    pub(crate) fn new(kind: SoftSpoken, leaves: &[Block], delta: Block, simd: Option<Simd>) -> Self {
        debug_assert_eq!(delta.lsb(), 1);
        SoftSpokenSender { leaves: Leaves::new(kind, leaves, true, simd), delta }
    }

    /// Makes `out.len()` OTs from the receiver's message.
    pub(crate) fn consume(&mut self, message: &[u8], out: &mut [Block]) -> Result<(), OtError> {
        let (batch_bytes, delta) = (self.leaves.kind.batch_bytes(), self.delta);
        OtError::expect(STEP, "bytes", out.len() / BATCH * batch_bytes, message.len())?;
        self.leaves.for_batches(out, message.chunks_exact(batch_bytes), |leaves, first, rows, message| {
            leaves.prgs.send_batch(&leaves.shape, first, delta, rows, message);
        });
        Ok(())
    }
}

impl CotSource for SoftSpokenSender {
    fn extend(&mut self, ch: &mut Channel, out: &mut [Block]) -> Result<(), OtError> {
        let batch_bytes = self.leaves.kind.batch_bytes();
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
    use crate::Kernels;
    use crate::ggm::full;
    use crate::kernels;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    /// Both halves over ideal base OTs.
    fn halves(
        kind: SoftSpoken,
        delta: Block,
        rng: &mut StdRng,
        simd: [Option<Simd>; 2],
    ) -> (SoftSpokenSender, SoftSpokenReceiver) {
        let mut block = || Block([rng.next_u64(), rng.next_u64()]);
        let base: Vec<[Block; 2]> = (0..COUNT).map(|_| [block(), block()]).collect();
        let bit = |i: usize| (delta.0[i / 64] >> (i % 64)) & 1;
        let chosen: Vec<Block> = (0..COUNT).map(|i| base[i][1 - bit(i) as usize]).collect();
        let bits = std::array::from_fn(|i| subtle::Choice::from(bit(i) as u8));
        let (all, corrections) = full::build(&[1; 32], kind.k(), &base);
        let opened = full::open("test", &[1; 32], kind.k(), &chosen, &bits, &corrections).unwrap();
        (SoftSpokenSender::new(kind, &opened, delta, simd[0]), SoftSpokenReceiver::new(kind, &all, simd[1]))
    }

    #[test]
    fn every_output_is_correlated() {
        let mut rng = StdRng::seed_from_u64(6);
        let random = Block([rng.next_u64() | 1, rng.next_u64()]);
        for kind in [SoftSpoken::K2, SoftSpoken::K4, SoftSpoken::K8] {
            for delta in [random, Block([1, 0]), Block([u64::MAX; 2]), Block([1, 1 << 63])] {
                let (mut sender, mut receiver) = halves(kind, delta, &mut rng, [Kernels::Detected.simd(); 2]);
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
            let mut results = kernels::all().map(|simd| {
                let mut rng = StdRng::seed_from_u64(7);
                let delta = Block([rng.next_u64() | 1, rng.next_u64()]);
                let (mut sender, mut receiver) = halves(kind, delta, &mut rng, [simd; 2]);
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
