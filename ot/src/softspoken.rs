//! SoftSpoken OT extension (Roy, <https://eprint.iacr.org/2022/192>).
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
//!
//! **Check** (section 4, against a receiver that sends `d_j ^ e_j` and so gets `q = t ^ e_j Delta_j`). H combines the
//! blocks of a plane ([`crate::check`]). The receiver sends `H(u_0)` and a digest of its other `H(v_{j,b})`, and the
//! sender compares the digest with that of `H(w_{j,b}) ^ Delta_{j,b} H(u_0)`. Because H is linear, it fits only if
//! `Delta_{j,b} (H(u_0 ^ e_j) ^ x)` is what the receiver expects, for the x that it sends as `H(u_0)`. So all blocks
//! j for which `H(u_0 ^ e_j)` is not x have to be guessed, k bits each. The blocks for which it is x have the same
//! `u_0 ^ e_j`, unless H collides among the at most 64 blocks, which has probability below `2^-116`. Then these are
//! the choice bits, and the receiver knows what the other blocks add. So a deviation in one block passes with
//! probability `2^-k` and in c / k blocks with `2^-c`; the receiver then knows c bits of Delta and is bound to its
//! choices.
//!
//! The last tile of an extension, [`MASKS`] OTs with the coefficient 1, hides the choice bits in `H(u_0)` and is
//! dropped.

use rayon::prelude::*;
use waggle_net::{Channel, HEADER_BYTES};
use zeroize::{ZeroizeOnDrop, Zeroizing};

use crate::base::COUNT;
use crate::check::{Challenge, Check, MASKS};
use crate::kernels::{self, BATCH, Prgs, Shape, TILES};
use crate::source::{CotSource, Run, Wire};
use crate::{Block, OtError};

const STEP: &str = "ot/softspoken";
const CHECK: &str = "ot/softspoken check";

/// Bytes of a check: a combination, and a digest of the other combinations.
const CHECK_BYTES: usize = 16 + 32;

/// OTs per message. Large extensions are cut into messages so that the sender works while the receiver prepares the
/// next one. The planes of a message are still in the receiver's second-level cache when it combines them afterwards.
const MESSAGE_OTS: usize = 1 << 16;

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

    /// The traffic of an extension by `n` OTs, a result of [`extend_amount`]: one flow.
    pub(crate) fn extend_wire(self, n: usize) -> Wire {
        let n = n + MASKS;
        let messages = n.div_ceil(MESSAGE_OTS) as u64 + 1;
        let payload = n / BATCH * self.batch_bytes() + CHECK_BYTES;
        let to_sender = Run { bytes: payload as u64 + messages * HEADER_BYTES as u64, messages };
        Wire { flows: [to_sender, Run::default(), Run::default(), Run::default()] }
    }

    /// Leaves that an extension by `n` OTs expands: 2^k / k for each OT.
    pub(crate) fn leaves(self, n: usize) -> u64 {
        (((n + MASKS) << self.k()) / self.k()) as u64
    }

    /// Bytes of the `d_j` of one batch.
    fn batch_bytes(self) -> usize {
        (COUNT / self.k() - 1) * TILES * 16
    }
}

/// OTs that an extension makes when `n` are needed: whole batches less the masks of the check.
pub(crate) const fn extend_amount(n: usize) -> usize {
    (n + MASKS).next_multiple_of(BATCH) - MASKS
}

/// The planes of a batch. They are turned into its OTs in place.
type Rows = [Block; BATCH];

/// The combinations of the 128 planes.
type Sums = [Block; COUNT];

/// An extension by `out.len()` OTs. The last batch is kept apart, because it also makes the masks.
struct Extension<'a> {
    whole: &'a mut [Rows],
    rest: &'a mut [Block],
    last: Zeroizing<Vec<Block>>,
    sums: Zeroizing<Sums>,
}

impl<'a> Extension<'a> {
    fn new(out: &'a mut [Block]) -> Self {
        let (whole, rest) = out.as_chunks_mut();
        debug_assert_eq!(rest.len(), BATCH - MASKS);
        let (last, sums) = (Zeroizing::new(vec![Block::ZERO; BATCH]), Zeroizing::new([Block::ZERO; COUNT]));
        Extension { whole, rest, last, sums }
    }

    /// Calls `message(batches, last, sums)` for the batches of every message. `last` tells whether the last batch is
    /// among them.
    fn for_messages(
        &mut self,
        mut message: impl FnMut(&mut [&mut Rows], bool, &mut Sums) -> Result<(), OtError>,
    ) -> Result<(), OtError> {
        let mut batches: Vec<_> = self.whole.iter_mut().chain(self.last.as_chunks_mut().0).collect();
        let mut messages = batches.chunks_mut(MESSAGE_OTS / BATCH).peekable();
        while let Some(batches) = messages.next() {
            message(batches, messages.peek().is_none(), &mut self.sums)?;
        }
        Ok(())
    }

    /// Writes out the OTs of the last batch, without those of the tile that masked the check.
    fn finish(self) {
        let (tiled, _) = self.last.as_chunks::<TILES>();
        for (to, from) in self.rest.chunks_exact_mut(TILES - 1).zip(tiled) {
            to.copy_from_slice(&from[..TILES - 1]);
        }
    }
}

/// The PRGs of all leaves: one run of `2^k` leaves per element of `Delta`.
struct Leaves {
    kind: SoftSpoken,
    shape: Shape,
    prgs: Prgs,
    check: Check,
    /// Number of tiles made so far.
    tiles: u64,
}

impl Leaves {
    fn new(kind: SoftSpoken, seeds: &[Block], punctured: bool, check: Check) -> Self {
        debug_assert_eq!(seeds.len(), (COUNT / kind.k()) << kind.k());
        let prgs = Prgs::new(check.simd, seeds);
        Leaves { kind, shape: Shape { k: kind.k(), punctured }, prgs, check, tiles: 0 }
    }

    /// The first counter of the `i`-th batch from now on. Batch 0 is the next one that is made.
    fn first(&self, i: usize) -> u64 {
        self.tiles + (i * TILES) as u64
    }

    /// Adds the combinations of the planes of batch `i` of a message to `sums` and turns the planes into OTs. The
    /// last tile of the last batch serves as masks.
    fn combine(&self, challenge: &Challenge, i: usize, last: bool, rows: &mut Rows, sums: &mut Sums) {
        let mut coefficients = [Block::ZERO; TILES];
        challenge.coefficients((i * TILES) as u64, &mut coefficients);
        if last {
            coefficients[TILES - 1] = Block([1, 0]);
        }
        kernels::combine(self.check.simd, &coefficients, rows, sums);
        kernels::transpose(self.check.simd, rows);
    }
}

/// Runs `work(number of the batch, batch, its part of the message, sums)` on all batches. They run in parallel if
/// they are large enough.
fn for_batches<M: Send>(
    batches: &mut [&mut Rows],
    parts: impl Iterator<Item = M>,
    sums: &mut Sums,
    work: impl Fn(usize, &mut Rows, M, &mut Sums) + Sync,
) {
    let parallel = batches.len() * BATCH >= PARALLEL_OTS;
    let jobs = batches.iter_mut().zip(parts).enumerate();
    if !parallel {
        return jobs.for_each(|(i, (rows, part))| work(i, rows, part, sums));
    }
    let jobs: Vec<_> = jobs.collect();
    let add = |mut sums: Sums, more: Sums| {
        sums.iter_mut().zip(more).for_each(|(sum, more)| *sum ^= more);
        sums
    };
    let run = |mut sums: Sums, (i, (rows, part)): (usize, (&mut &mut Rows, M))| {
        work(i, rows, part, &mut sums);
        sums
    };
    let none = || [Block::ZERO; COUNT];
    *sums = add(*sums, jobs.into_par_iter().with_min_len(4).fold(none, run).reduce(none, add));
}

/// The receiver's half of the extension. It knows every leaf.
pub(crate) struct SoftSpokenReceiver {
    leaves: Leaves,
}

impl SoftSpokenReceiver {
    /// A receiver that knows the leaves of [`crate::ggm::full::build`].
    pub(crate) fn new(kind: SoftSpoken, leaves: &[Block], check: Check) -> Self {
        SoftSpokenReceiver { leaves: Leaves::new(kind, leaves, false, check) }
    }

    /// Makes the planes of all batches and the message for the sender.
    pub(crate) fn produce(&mut self, batches: &mut [&mut Rows]) -> Vec<u8> {
        let (leaves, batch_bytes) = (&self.leaves, self.leaves.kind.batch_bytes());
        let mut message = vec![0; batches.len() * batch_bytes];
        let parts = message.chunks_exact_mut(batch_bytes);
        for_batches(batches, parts, &mut [Block::ZERO; COUNT], |i, rows, part, _| {
            leaves.prgs.receive_batch(&leaves.shape, leaves.first(i), rows, part);
        });
        self.leaves.tiles = leaves.first(batches.len());
        message
    }

    /// Turns the planes into OTs and adds the planes' combinations to `sums`.
    pub(crate) fn combine(&self, challenge: &Challenge, batches: &mut [&mut Rows], last: bool, sums: &mut Sums) {
        let masks = last.then_some(batches.len() - 1);
        for_batches(batches, std::iter::repeat(()), sums, |i, rows, (), sums| {
            self.leaves.combine(challenge, i, masks == Some(i), rows, sums);
        });
    }

    /// The check's message: the combination of the choice bits, which are plane 0, and the digest of the others.
    fn answer(&self, [choices, others @ ..]: &Sums) -> Vec<u8> {
        [&choices.to_bytes()[..], self.leaves.check.digest(others).as_bytes()].concat()
    }
}

impl CotSource for SoftSpokenReceiver {
    fn extend(&mut self, ch: &mut Channel, out: &mut [Block]) -> Result<(), OtError> {
        let mut extension = Extension::new(out);
        extension.for_messages(|batches, last, sums| {
            let message = self.produce(batches);
            ch.send_owned(STEP, message)?;
            ch.flush(STEP)?;
            let challenge = self.leaves.check.challenge(&ch.sent_digest());
            self.combine(&challenge, batches, last, sums);
            Ok(())
        })?;
        ch.send(CHECK, &self.answer(&extension.sums))?;
        ch.flush(CHECK)?;
        extension.finish();
        Ok(())
    }
}

/// The sender's half of the extension. It knows all leaves but those at `Delta`.
#[derive(ZeroizeOnDrop)]
pub(crate) struct SoftSpokenSender {
    #[zeroize(skip)]
    leaves: Leaves,
    delta: Block,
}

impl SoftSpokenSender {
    /// A sender that knows the leaves of [`crate::ggm::full::open`], with holes at `delta`. Bit 0 of `delta` must be
    /// set.
    pub(crate) fn new(kind: SoftSpoken, leaves: &[Block], delta: Block, check: Check) -> Self {
        debug_assert_eq!(delta.lsb(), 1);
        SoftSpokenSender { leaves: Leaves::new(kind, leaves, true, check), delta }
    }

    /// Makes the OTs of all batches from the receiver's message, and adds the combinations of their planes to `sums`.
    pub(crate) fn consume(
        &mut self,
        message: &[u8],
        challenge: &Challenge,
        batches: &mut [&mut Rows],
        last: bool,
        sums: &mut Sums,
    ) -> Result<(), OtError> {
        let (leaves, batch_bytes, delta) = (&self.leaves, self.leaves.kind.batch_bytes(), self.delta);
        OtError::expect(STEP, "bytes", batches.len() * batch_bytes, message.len())?;
        let masks = last.then_some(batches.len() - 1);
        for_batches(batches, message.chunks_exact(batch_bytes), sums, |i, rows, part, sums| {
            leaves.prgs.send_batch(&leaves.shape, leaves.first(i), delta, rows, part);
            leaves.combine(challenge, i, masks == Some(i), rows, sums);
        });
        self.leaves.tiles = leaves.first(batches.len());
        Ok(())
    }

    /// Whether the receiver's combinations, whose digest is in `answer`, are those of `sums`.
    pub(crate) fn fits(&self, answer: &[u8], sums: &Sums) -> bool {
        let Some((choices, digest)) = answer.split_first_chunk() else { return false };
        let choices = Block::from_bytes(*choices);
        let others: Zeroizing<Vec<Block>> = Zeroizing::new(
            (1..COUNT).map(|p| sums[p] ^ choices.times(self.delta.0[p / 64] >> (p % 64) & 1)).collect(),
        );
        // This comparison takes constant time.
        self.leaves.check.digest(&others) == *digest
    }
}

impl CotSource for SoftSpokenSender {
    fn extend(&mut self, ch: &mut Channel, out: &mut [Block]) -> Result<(), OtError> {
        let batch_bytes = self.leaves.kind.batch_bytes();
        let mut extension = Extension::new(out);
        extension.for_messages(|batches, last, sums| {
            let message = ch.recv(STEP, batches.len() * batch_bytes)?;
            let challenge = self.leaves.check.challenge(&ch.received_digest());
            self.consume(&message, &challenge, batches, last, sums)
        })?;
        let answer = ch.recv(CHECK, CHECK_BYTES)?;
        if !self.fits(&answer, &extension.sums) {
            return Err(OtError::Deviates { step: STEP, party: ch.role().peer() });
        }
        extension.finish();
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::Kernels;
    use crate::ggm::full;
    use crate::kernels::Simd;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use std::time::Duration;
    use waggle_net::{Role, memory_pair};

    const KINDS: [SoftSpoken; 3] = [SoftSpoken::K2, SoftSpoken::K4, SoftSpoken::K8];

    /// Both halves over ideal base OTs.
    pub(crate) fn halves(
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
        let from = ("test", Role::Client);
        let opened = full::open(from, &[1; 32], kind.k(), &chosen, &bits, &corrections).unwrap();
        let [sender, receiver] = simd.map(|simd| Check::new([2; 32], simd));
        (SoftSpokenSender::new(kind, &opened, delta, sender), SoftSpokenReceiver::new(kind, &all, receiver))
    }

    /// Runs the client as the sender of OTs and the server as the receiver. Returns the sender's outcome, the
    /// receiver's, and the bytes that the sender sent.
    pub(crate) fn run<A: Send, B>(
        sender: impl FnOnce(&mut Channel) -> A + Send,
        receiver: impl FnOnce(&mut Channel) -> B,
    ) -> (A, B, u64) {
        let (c, s) = memory_pair(Duration::from_secs(60));
        let (mut c, mut s) = (Channel::new(Role::Client, c), Channel::new(Role::Server, s));
        let (a, b) = std::thread::scope(|scope| {
            // The channel ends with its party, so that the other party does not wait.
            let a = scope.spawn(move || (sender(&mut c), c.ledger().total().bytes_client_to_server));
            let b = receiver(&mut s);
            drop(s);
            (a.join().unwrap(), b)
        });
        (a.0, b, a.1)
    }

    /// `n` OTs of both parties.
    fn extend((sender, receiver): &mut (SoftSpokenSender, SoftSpokenReceiver), n: usize) -> (Vec<Block>, Vec<Block>) {
        let (mut q, mut t) = (vec![Block::ZERO; n], vec![Block::ZERO; n]);
        run(|ch| sender.extend(ch, &mut q).unwrap(), |ch| receiver.extend(ch, &mut t).unwrap());
        (q, t)
    }

    #[test]
    fn every_output_is_correlated() {
        let mut rng = StdRng::seed_from_u64(6);
        let random = Block([rng.next_u64() | 1, rng.next_u64()]);
        for kind in KINDS {
            for delta in [random, Block([1, 0]), Block([u64::MAX; 2]), Block([1, 1 << 63])] {
                let mut halves = halves(kind, delta, &mut rng, [Kernels::Detected.simd(); 2]);
                let (mut ones, mut total, mut seen) = (0, 0_u64, Vec::new());
                // The second size is above the threshold of the thread pool, the third above a message.
                for n in [1, 17 * BATCH, MESSAGE_OTS + 1].map(extend_amount) {
                    let (q, t) = extend(&mut halves, n);
                    for (i, (&q, &t)) in q.iter().zip(&t).enumerate() {
                        assert!(q ^ t == delta.times(t.lsb()), "{kind:?}: OT {i} of {n}");
                        ones += t.lsb();
                        seen.push(u128::from(t) >> 1);
                    }
                    total += n as u64;
                }
                // Within six standard deviations of a fair coin. No block comes twice.
                assert!(ones.abs_diff(total / 2) < 3 * total.isqrt(), "{ones} of {total}");
                seen.sort_unstable();
                seen.dedup();
                assert_eq!(seen.len() as u64, total);
            }
        }
    }

    #[test]
    fn kernels_agree() {
        for kind in KINDS {
            let mut results = kernels::all().map(|simd| {
                let mut rng = StdRng::seed_from_u64(7);
                let delta = Block([rng.next_u64() | 1, rng.next_u64()]);
                extend(&mut halves(kind, delta, &mut rng, [simd, None]), extend_amount(BATCH))
            });
            let first = results.next().unwrap();
            assert!(results.all(|other| other == first), "{kind:?}");
        }
    }

    /// A receiver that sends `d_j ^ e` in message `at` for every block j of `guesses`, and answers the check as it
    /// has to if Delta_j is the guess. A guess of 0 stands for a receiver that ignores the check.
    pub(crate) fn deviate(
        receiver: &mut SoftSpokenReceiver,
        ch: &mut Channel,
        out: &mut [Block],
        at: usize,
        guesses: &[(usize, u64)],
    ) -> Result<(), OtError> {
        let (k, simd, e, tile) = (receiver.leaves.kind.k(), receiver.leaves.check.simd, Block([0x10, 1 << 40]), 3);
        let (mut extension, mut number) = (Extension::new(out), 0);
        extension.for_messages(|batches, last, sums| {
            let mut message = receiver.produce(batches);
            for (j, _) in guesses.iter().filter(|_| number == at) {
                let place = ((j - 1) * TILES + tile) * 16;
                message[place..][..16].iter_mut().zip(e.to_bytes()).for_each(|(d, e)| *d ^= e);
            }
            ch.send_owned(STEP, message)?;
            let challenge = receiver.leaves.check.challenge(&ch.sent_digest());
            receiver.combine(&challenge, batches, last, sums);
            let mut coefficient = [Block::ZERO];
            challenge.coefficients(tile as u64, &mut coefficient);
            for (j, guess) in guesses.iter().filter(|_| number == at) {
                for b in (0..k).filter(|b| guess >> b & 1 == 1) {
                    kernels::combine(simd, &coefficient, &[e], &mut sums[j * k + b..][..1]);
                }
            }
            number += 1;
            Ok(())
        })?;
        ch.send(CHECK, &receiver.answer(&extension.sums))?;
        ch.flush(CHECK)?;
        extension.finish();
        Ok(())
    }

    /// A receiver that deviates in one block of Delta, or in two, passes for exactly one value of these blocks, in
    /// the first extension and in later ones. So a guess of k bits passes with probability `2^-k`.
    #[test]
    fn a_receiver_that_deviates_is_caught_unless_it_guessed_the_blocks() {
        let mut rng = StdRng::seed_from_u64(8);
        let random = Block([rng.next_u64() | 1, rng.next_u64()]);
        let caught = |outcome: Result<(), OtError>| match outcome {
            Ok(()) => false,
            Err(OtError::Deviates { step: "ot/softspoken", party: Role::Server }) => true,
            Err(other) => panic!("{other}"),
        };
        for kind in KINDS {
            let k = kind.k();
            let block = |j: usize| (u128::from(random) >> (j * k)) as u64 & ((1 << k) - 1);
            let (j, other) = (1, COUNT / k - 1);
            let single = (0..1 << k).map(|guess| vec![(j, guess)]);
            let double = [(0, 0), (0, 1), (1, 0)].map(|(x, y)| vec![(j, block(j) ^ x), (other, block(other) ^ y)]);
            let in_first = single.chain(double).map(|guesses| (guesses, 0, 1, 0));
            // After that, a deviation after an honest extension, and one in the second message of an extension.
            let later = [(1, 1, 0), (0, MESSAGE_OTS + 1, 1)].into_iter().flat_map(|(before, n, at)| {
                [0, 1].map(|off| (vec![(j, block(j) ^ off), (other, block(other))], before, n, at))
            });
            for (guesses, before, n, at) in in_first.chain(later) {
                let (mut sender, mut receiver) = halves(kind, random, &mut rng, [Kernels::Detected.simd(); 2]);
                let right = guesses.iter().all(|(j, guess)| *guess == block(*j));
                let (first, n) = (before * extend_amount(1), extend_amount(n));
                let (outcome, ..) = run(
                    |ch| {
                        if before > 0 {
                            sender.extend(ch, &mut vec![Block::ZERO; first]).unwrap();
                        }
                        sender.extend(ch, &mut vec![Block::ZERO; n])
                    },
                    |ch| {
                        if before > 0 {
                            receiver.extend(ch, &mut vec![Block::ZERO; first]).unwrap();
                        }
                        deviate(&mut receiver, ch, &mut vec![Block::ZERO; n], at, &guesses).unwrap();
                    },
                );
                assert_eq!(caught(outcome), !right, "{kind:?}, {guesses:?}, message {at}");
            }
        }
    }
}
