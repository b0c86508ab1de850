//! Silent OT: Ferret (Yang, Weng, Lan, Zhang and Wang, <https://eprint.iacr.org/2020/924>), semi-honest, with regular
//! noise and half trees.
//!
//! A round stretches k + t d correlated OTs into N = t 2^d:
//! 1. Per tree, d of them carry the sums of a [half tree](crate::ggm::half) of the sender to the receiver, who learns
//!    all leaves but one. The sides that the receiver needs are its choice bits as they are, which are uniform, so
//!    nothing has to be derandomised and all trees together are one flow. Leaves are correlated OTs whose choice bits
//!    are 0 but for one at a random place per tree: regular noise e.
//! 2. The other k are a table; to every leaf both parties add the same ten entries of it ([`lpn`]). The choice bits
//!    become u A + e for the table's choice bits u: pseudorandom by LPN.
//!
//! Trees do not depend on each other, and a tree takes its code words while it is in the first-level cache. The first
//! outputs of a round are kept back for the next; the first round takes SoftSpoken OTs. While few OTs are needed,
//! SoftSpoken serves the pool alone: a round pays for [`lpn::Lpn::made`] OTs at once.

mod lpn;

use net::{Channel, HEADER_BYTES};
use rayon::prelude::*;
use zeroize::{Zeroize, Zeroizing};

use crate::hash::first_half;
use crate::kernels::{Permutation, Simd, TABLE};
use crate::softspoken::{SoftSpoken, SoftSpokenReceiver, SoftSpokenSender};
use crate::source::{CotSource, ExtendWork, Run, Wire};
use crate::{Block, OtError};
use lpn::LPN;

const STEP: &str = "ot/silent";

/// The extension that serves small needs and the first round.
pub(crate) const BOOTSTRAP: SoftSpoken = SoftSpoken::K4;

/// Most OTs that a pool makes by SoftSpoken alone; about as many cost the bytes of a first round.
const MOST_DIRECT: usize = 1 << 17;

/// Trees per message, so that the receiver works while the sender prepares the next message.
const MESSAGE_TREES: usize = 512;

const LEAVES: usize = LPN.leaves();
const DEPTH: usize = LPN.depth;

const _: () = assert!(LPN.spent() == LPN.kept_trees() * LEAVES && LPN.spent().is_multiple_of(2048));

/// OTs of an extension when `made` were made before and `n` are needed: a few by SoftSpoken, or whole rounds.
pub(crate) fn extend_amount(made: u64, n: usize) -> usize {
    let direct = n.next_multiple_of(BOOTSTRAP.granularity());
    if made + direct as u64 <= MOST_DIRECT as u64 { direct } else { n.next_multiple_of(LPN.made()) }
}

/// Whether an extension by `n` OTs, a result of [`extend_amount`], is by SoftSpoken alone.
fn is_direct(made: u64, n: usize) -> bool {
    made + n as u64 <= MOST_DIRECT as u64
}

/// Whether extensions after `made` OTs are all alike: by LPN, and not the first.
pub(crate) fn is_steady(made: u64) -> bool {
    made > MOST_DIRECT as u64
}

/// The traffic of an extension by `n` OTs, a result of [`extend_amount`].
pub(crate) fn extend_wire(made: u64, n: usize) -> Wire {
    if is_direct(made, n) {
        return BOOTSTRAP.extend_wire(n);
    }
    let first = made <= MOST_DIRECT as u64;
    let to_sender = if first { BOOTSTRAP.extend_wire(LPN.spent()).to_sender } else { Run::default() };
    let rounds = (n / LPN.made()) as u64;
    let messages = rounds * LPN.trees.div_ceil(MESSAGE_TREES) as u64;
    let bytes = rounds * (LPN.trees * DEPTH * 16) as u64 + messages * HEADER_BYTES as u64;
    Wire { to_sender, to_receiver: Run { bytes, messages } }
}

/// The work of the same extension.
pub(crate) fn extend_work(made: u64, n: usize) -> ExtendWork {
    if is_direct(made, n) {
        return ExtendWork { silent: 0, softspoken: BOOTSTRAP.leaves(n) };
    }
    let first = made <= MOST_DIRECT as u64;
    ExtendWork { silent: n as u64, softspoken: if first { BOOTSTRAP.leaves(LPN.spent()) } else { 0 } }
}

/// The public keys of a session and direction; both parties know them.
pub(crate) struct Public {
    /// Makes the keys of the trees.
    trees: Permutation,
    /// The PRG of the code.
    code: Permutation,
    simd: Option<Simd>,
}

impl Public {
    /// From a key that binds session and direction, and has no other use.
    pub(crate) fn new(key: &[u8; 32], simd: Option<Simd>) -> Self {
        let derive =
            |label: &[u8]| Permutation::new(simd, Block::from_bytes(first_half(blake3::keyed_hash(key, label))));
        Public { trees: derive(b"trees"), code: derive(b"code"), simd }
    }

    /// The permutation of a tree. Every tree has its own, so that a table of one helps against one tree only.
    fn tree(&self, place: u64) -> Permutation {
        Permutation::new(self.simd, self.trees.encrypt(Block([0, place])))
    }
}

/// The number of a tree among all of its direction.
fn place(round: u64, tree: usize) -> u64 {
    round << 16 | tree as u64
}

/// The correlated OTs that a round spends, and room for those of the next.
struct Kept {
    /// The table, then one block per level of every tree; empty before the first round.
    now: Zeroizing<Vec<Block>>,
    next: Zeroizing<Vec<Block>>,
    /// Rounds done.
    rounds: u64,
    /// OTs made for use, by SoftSpoken and in rounds.
    made: u64,
}

impl Kept {
    fn new() -> Self {
        Kept { now: Zeroizing::new(Vec::new()), next: Zeroizing::new(Vec::new()), rounds: 0, made: 0 }
    }

    /// Makes `out.len()` OTs over `ch`, by `direct` (which also fills the first reserve) or in rounds, in each of
    /// which `part(ch, round, reserve, trees)` serves some trees after the other.
    fn extend(
        &mut self,
        ch: &mut Channel,
        out: &mut [Block],
        direct: &mut dyn CotSource,
        part: impl Fn(&mut Channel, u64, Reserve<'_>, Vec<Tree<'_>>) -> Result<(), OtError>,
    ) -> Result<(), OtError> {
        let count = out.len() as u64;
        if is_direct(self.made, out.len()) {
            direct.extend(ch, out)?;
            self.made += count;
            return Ok(());
        }
        if self.now.is_empty() {
            // In place only when it is whole: a round on a reserve that failed would mask nothing.
            let mut first = Zeroizing::new(vec![Block::ZERO; LPN.spent()]);
            direct.extend(ch, &mut first)?;
            (self.now, self.next) = (first, Zeroizing::new(vec![Block::ZERO; LPN.spent()]));
        }
        let (rounds, rest) = out.as_chunks_mut::<{ LPN.made() }>();
        debug_assert!(rest.is_empty());
        for out in rounds {
            let reserve = Reserve::new(&self.now);
            let mut trees = self.next.chunks_exact_mut(LEAVES).chain(out.chunks_exact_mut(LEAVES)).enumerate();
            for _ in 0..LPN.trees.div_ceil(MESSAGE_TREES) {
                let trees = trees.by_ref().take(MESSAGE_TREES).map(|(number, leaves)| Tree { number, leaves });
                part(ch, self.rounds, reserve, trees.collect())?;
            }
            std::mem::swap(&mut self.now, &mut self.next);
            self.rounds += 1;
        }
        self.made += count;
        Ok(())
    }
}

/// The correlated OTs that a round spends.
#[derive(Clone, Copy)]
struct Reserve<'a> {
    table: &'a [Block; TABLE],
    levels: &'a [[Block; DEPTH]],
}

impl<'a> Reserve<'a> {
    fn new(blocks: &'a [Block]) -> Self {
        let (table, levels) = blocks.split_first_chunk().expect("the reserve holds the table");
        Reserve { table, levels: levels.as_chunks().0 }
    }
}

/// A tree of a round, and the place of its outputs.
struct Tree<'a> {
    number: usize,
    leaves: &'a mut [Block],
}

/// The sender's half.
pub(crate) struct SilentSender {
    direct: SoftSpokenSender,
    public: Public,
    /// The PRG of the roots.
    roots: Permutation,
    delta: Block,
    kept: Kept,
}

impl SilentSender {
    /// Over `direct`, whose correlation is `delta`; `seed` is fresh and secret.
    pub(crate) fn new(direct: SoftSpokenSender, public: Public, delta: Block, seed: Zeroizing<[u8; 16]>) -> Self {
        let roots = Permutation::new(public.simd, Block::from_bytes(*seed));
        SilentSender { direct, public, roots, delta, kept: Kept::new() }
    }
}

impl CotSource for SilentSender {
    fn extend(&mut self, ch: &mut Channel, out: &mut [Block]) -> Result<(), OtError> {
        let SilentSender { direct, public, roots, delta, kept } = self;
        kept.extend(ch, out, direct, |ch, round, reserve, trees| {
            let mut message = vec![0; trees.len() * DEPTH * 16];
            let jobs = trees.into_par_iter().zip(message.par_chunks_exact_mut(DEPTH * 16));
            jobs.with_min_len(8).for_each(|(Tree { number, leaves }, message)| {
                let place = place(round, number);
                let root = roots.encrypt(Block([0, place]));
                let mut sums = [Block::ZERO; DEPTH];
                public.tree(place).grow(root, *delta, &mut sums, leaves);
                for (to, (sum, level)) in
                    message.as_chunks_mut().0.iter_mut().zip(sums.iter().zip(&reserve.levels[number]))
                {
                    *to = (*sum ^ *level).to_bytes();
                }
                public.code.add_code_words(place, reserve.table, leaves);
            });
            ch.send_owned(STEP, message)?;
            Ok(ch.flush(STEP)?)
        })
    }
}

impl Drop for SilentSender {
    fn drop(&mut self) {
        self.roots.wipe();
        self.delta.zeroize();
    }
}

/// The receiver's half.
pub(crate) struct SilentReceiver {
    direct: SoftSpokenReceiver,
    public: Public,
    kept: Kept,
}

impl SilentReceiver {
    /// Over `direct`.
    pub(crate) fn new(direct: SoftSpokenReceiver, public: Public) -> Self {
        SilentReceiver { direct, public, kept: Kept::new() }
    }
}

impl CotSource for SilentReceiver {
    fn extend(&mut self, ch: &mut Channel, out: &mut [Block]) -> Result<(), OtError> {
        let SilentReceiver { direct, public, kept } = self;
        kept.extend(ch, out, direct, |ch, round, reserve, trees| {
            let message = ch.recv(STEP, trees.len() * DEPTH * 16)?;
            let jobs = trees.into_par_iter().zip(message.par_chunks_exact(DEPTH * 16));
            jobs.with_min_len(8).for_each(|(Tree { number, leaves }, message)| {
                let (place, levels) = (place(round, number), &reserve.levels[number]);
                // q ^ K ^ t = K ^ c Delta: the sum of side c, where the left one is K.
                let mut sums = *levels;
                for (sum, &bytes) in sums.iter_mut().zip(message.as_chunks().0) {
                    *sum ^= Block::from_bytes(bytes);
                }
                let away = (0..).zip(levels).fold(0, |away, (l, level)| away | level.lsb() << l);
                public.tree(place).regrow(away, &sums, leaves);
                public.code.add_code_words(place, reserve.table, leaves);
            });
            Ok(())
        })
    }
}
