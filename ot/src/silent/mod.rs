//! Silent OT: Ferret (Yang, Weng, Lan, Zhang and Wang, <https://eprint.iacr.org/2020/924>), with regular noise and
//! half trees.
//!
//! A round stretches k + t d correlated OTs into N = t 2^d. Here k is the size of a table, and t is the number of
//! trees, each of d levels:
//! 1. Per tree, d of them carry the sums of a [half tree](crate::ggm::half) of the sender to the receiver, who learns
//!    all leaves but one. The sides that the receiver needs are its choice bits as they are, which are uniform, so
//!    nothing has to be derandomised and all trees together are one flow. Leaves are correlated OTs whose choice bits
//!    are 0 but for one at a random place per tree: regular noise e.
//! 2. The other k are a table; to every leaf both parties add the same ten entries of it ([`lpn`]). The choice bits
//!    become u A + e for the table's choice bits u: pseudorandom by LPN.
//!
//! Trees do not depend on each other, and a tree takes its code words while it is in a cache. The first outputs of a
//! round are kept back for the next; the first round takes SoftSpoken OTs. While few OTs are needed, SoftSpoken
//! serves the pool alone: a round pays for [`lpn::Lpn::made`] OTs at once.
//!
//! **Check** (figure 7, against a sender whose sums fit no tree, so that leaves depend on the places of the noise).
//! The receiver sends nothing in a round, and its choice bits were checked when SoftSpoken OT made them. With v the
//! sender's leaves and w the receiver's, `w = v ^ e Delta`. Each message of trees gets coefficients
//! ([`crate::check`]), one for a leaf of any tree times one for the tree. Over all rounds of an extension, V and W
//! are the combinations of v and w, and P that of e, so `W = V ^ P Delta`. [`MASKS`] OTs of the reserve that the
//! extension began with are added, with the powers of X as coefficients, and make P uniform. The receiver opens P;
//! the sender answers with a digest of `V ^ P Delta`, which must be that of W.
//!
//! If the leaves differ by x(e) from those of some tree, the answer fits only for e with one value of the combination
//! of x(e). So a sender that guesses c bits of the places passes with probability `2^-c`, and then the OTs are right
//! for all places that it guessed; for two x to have one combination has probability `2^-127`. Each bit that the
//! sender so learns takes at most one off the 193 bits of the noise ([`lpn`]); after 40 of them, with probability
//! `2^-40`, 153 are left. A receiver that opens another P gets a digest of W plus a multiple of Delta that it does
//! not know.

mod lpn;

use rayon::prelude::*;
use waggle_net::{Channel, HEADER_BYTES};
use zeroize::{Zeroize, Zeroizing};

use crate::check::{Challenge, Check, MASKS, POWERS};
use crate::hash::first_half;
use crate::kernels::{Permutation, Simd, TABLE, combine, combine_odd};
use crate::softspoken::{self, SoftSpoken, SoftSpokenReceiver, SoftSpokenSender};
use crate::source::{CotSource, ExtendWork, Run, Wire};
use crate::{Block, OtError};
use lpn::LPN;

const STEP: &str = "ot/silent";
const CHECK: &str = "ot/silent check";

/// Bytes of the two messages of a check: a combination of choice bits, and a digest.
const CHECK_BYTES: [usize; 2] = [16, 32];

/// The extension that serves small needs and the first round.
pub(crate) const BOOTSTRAP: SoftSpoken = SoftSpoken::K4;

/// Most OTs that a pool makes by SoftSpoken OT alone. These OTs take about as many bytes as a first round.
const MOST_DIRECT: usize = 1 << 17;

/// Number of trees per message, so that the receiver works while the sender prepares the next message. The sender
/// combines the leaves of a message after sending it. They are then in its second-level cache, beside the table.
const MESSAGE_TREES: usize = 64;

const LEAVES: usize = LPN.leaves();
const DEPTH: usize = LPN.depth;

/// OTs that a round keeps back for the next round. They are whole trees, so the next round spends a few less.
const KEPT: usize = LPN.kept_trees() * LEAVES;

/// Number of OTs that SoftSpoken OT makes before the first round.
const FIRST: usize = softspoken::extend_amount(KEPT);

/// OTs that an extension makes when `made` were made before and `n` are needed: a few by SoftSpoken, or whole rounds.
pub(crate) fn extend_amount(made: u64, n: usize) -> usize {
    let direct = softspoken::extend_amount(n);
    if made + direct as u64 <= MOST_DIRECT as u64 { direct } else { n.next_multiple_of(LPN.made()) }
}

/// Whether an extension by `n` OTs, a result of [`extend_amount`], is by SoftSpoken alone.
fn is_direct(made: u64, n: usize) -> bool {
    made + n as u64 <= MOST_DIRECT as u64
}

/// Whether all extensions after `made` OTs are alike: they are made in rounds, and the first round is over.
pub(crate) fn is_steady(made: u64) -> bool {
    made > MOST_DIRECT as u64
}

/// The traffic of an extension by `n` OTs, a result of [`extend_amount`].
pub(crate) fn extend_wire(made: u64, n: usize) -> Wire {
    if is_direct(made, n) {
        return BOOTSTRAP.extend_wire(n);
    }
    let first = made <= MOST_DIRECT as u64;
    let reserve = if first { BOOTSTRAP.extend_wire(FIRST).flows[0] } else { Run::default() };
    let rounds = (n / LPN.made()) as u64;
    let messages = rounds * LPN.trees.div_ceil(MESSAGE_TREES) as u64;
    let bytes = rounds * (LPN.trees * DEPTH * 16) as u64 + messages * HEADER_BYTES as u64;
    let [opened, answer] = CHECK_BYTES.map(|bytes| Run { bytes: (bytes + HEADER_BYTES) as u64, messages: 1 });
    Wire { flows: [reserve, Run { bytes, messages }, opened, answer] }
}

/// The work of an extension by `n` OTs, a result of [`extend_amount`].
pub(crate) fn extend_work(made: u64, n: usize) -> ExtendWork {
    if is_direct(made, n) {
        return ExtendWork { silent: 0, softspoken: BOOTSTRAP.leaves(n) };
    }
    let first = made <= MOST_DIRECT as u64;
    ExtendWork { silent: n as u64, softspoken: if first { BOOTSTRAP.leaves(FIRST) } else { 0 } }
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
    /// The public keys derived from a key that binds session and direction and has no other use.
    pub(crate) fn new(key: &[u8; 32], simd: Option<Simd>) -> Self {
        let derive =
            |label: &[u8]| Permutation::new(simd, Block::from_bytes(first_half(blake3::keyed_hash(key, label))));
        Public { trees: derive(b"trees"), code: derive(b"code"), simd }
    }

    /// The permutation of a tree. Every tree has its own, so that a precomputed table helps against one tree only.
    fn tree(&self, place: u64) -> Permutation {
        Permutation::new(self.simd, self.trees.encrypt(Block([0, place])))
    }
}

/// The number of a tree among all trees of its direction.
fn place(round: u64, tree: usize) -> u64 {
    round << 16 | tree as u64
}

/// The correlated OTs that a round spends, and room for those that the next round spends.
struct Kept {
    /// The table, one block per level of every tree, and the masks. Empty before the first round.
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

    /// Makes `out.len()` OTs over `ch`, by `direct` or in rounds. `direct` also makes the OTs that the first round
    /// spends. A round takes its trees a message at a time and calls `part(ch, round, reserve, trees)` for each
    /// message. Returns the masks for the check of the rounds, or `None` if there were no rounds.
    fn extend(
        &mut self,
        ch: &mut Channel,
        out: &mut [Block],
        direct: &mut dyn CotSource,
        mut part: impl FnMut(&mut Channel, u64, Reserve<'_>, Vec<Tree<'_>>) -> Result<(), OtError>,
    ) -> Result<Option<Zeroizing<[Block; MASKS]>>, OtError> {
        let count = out.len() as u64;
        if is_direct(self.made, out.len()) {
            direct.extend(ch, out)?;
            self.made += count;
            return Ok(None);
        }
        if self.now.is_empty() {
            // The reserve is put in place only when it is whole: a round on a failed reserve would mask nothing.
            let mut first = Zeroizing::new(vec![Block::ZERO; FIRST]);
            direct.extend(ch, &mut first)?;
            (self.now, self.next) = (Zeroizing::new(first[..KEPT].to_vec()), Zeroizing::new(vec![Block::ZERO; KEPT]));
        }
        let masks = Zeroizing::new(*Reserve::new(&self.now).masks);
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
        Ok(Some(masks))
    }
}

/// The correlated OTs that a round spends.
#[derive(Clone, Copy)]
struct Reserve<'a> {
    table: &'a [Block; TABLE],
    levels: &'a [[Block; DEPTH]],
    masks: &'a [Block; MASKS],
}

impl<'a> Reserve<'a> {
    fn new(blocks: &'a [Block]) -> Self {
        let (table, levels) = blocks.split_first_chunk().expect("the reserve holds the table");
        let (levels, rest) = levels.split_at(LPN.trees * DEPTH);
        let masks = rest.first_chunk().expect("the reserve holds the masks");
        Reserve { table, levels: levels.as_chunks().0, masks }
    }
}

/// A tree of a round: its number, and the blocks where its outputs go.
struct Tree<'a> {
    number: usize,
    leaves: &'a mut [Block],
}

/// The coefficients of the check for a message of trees: one for every leaf position, which all trees share, and one
/// for every tree.
struct Coefficients {
    leaves: [Block; LEAVES],
    trees: Vec<Block>,
}

impl Coefficients {
    fn new(challenge: &Challenge, trees: usize) -> Self {
        let (mut leaves, mut of_trees) = ([Block::ZERO; LEAVES], vec![Block::ZERO; trees]);
        challenge.coefficients(0, &mut leaves);
        challenge.coefficients(LEAVES as u64, &mut of_trees);
        Coefficients { leaves, trees: of_trees }
    }

    /// The combination of the leaves of a tree, with a coefficient for each leaf position.
    fn tree(&self, simd: Option<Simd>, leaves: &[Block]) -> Block {
        let mut sum = [Block::ZERO];
        combine(simd, &self.leaves, leaves, &mut sum);
        sum[0]
    }

    /// Adds the combination of `of_trees`, one block for every tree, to `sum`.
    fn add(&self, simd: Option<Simd>, of_trees: &[Block], sum: &mut Block) {
        combine(simd, &self.trees, of_trees, std::slice::from_mut(sum));
    }
}

/// The sender's half.
pub(crate) struct SilentSender {
    direct: SoftSpokenSender,
    public: Public,
    check: Check,
    /// The PRG of the roots.
    roots: Permutation,
    delta: Block,
    kept: Kept,
}

impl SilentSender {
    /// A sender over `direct`, whose correlation is `delta`. `seed` must be fresh and secret.
    pub(crate) fn new(
        direct: SoftSpokenSender,
        public: Public,
        check: Check,
        delta: Block,
        seed: Zeroizing<[u8; 16]>,
    ) -> Self {
        let roots = Permutation::new(public.simd, Block::from_bytes(*seed));
        SilentSender { direct, public, check, roots, delta, kept: Kept::new() }
    }
}

impl CotSource for SilentSender {
    fn extend(&mut self, ch: &mut Channel, out: &mut [Block]) -> Result<(), OtError> {
        let SilentSender { direct, public, check, roots, delta, kept } = self;
        let (simd, mut sum) = (check.simd, Block::ZERO);
        let masks = kept.extend(ch, out, direct, |ch, round, reserve, mut trees| {
            let mut message = vec![0; trees.len() * DEPTH * 16];
            let jobs = trees.par_iter_mut().zip(message.par_chunks_exact_mut(DEPTH * 16));
            jobs.with_min_len(8).for_each(|(Tree { number, leaves }, message)| {
                let place = place(round, *number);
                let root = roots.encrypt(Block([0, place]));
                let mut sums = [Block::ZERO; DEPTH];
                public.tree(place).grow(root, *delta, &mut sums, leaves);
                for (to, (sum, level)) in
                    message.as_chunks_mut().0.iter_mut().zip(sums.iter().zip(&reserve.levels[*number]))
                {
                    *to = (*sum ^ *level).to_bytes();
                }
            });
            ch.send_owned(STEP, message)?;
            ch.flush(STEP)?;
            let coefficients = Coefficients::new(&check.challenge(&ch.sent_digest()), trees.len());
            let jobs = trees.into_par_iter().with_min_len(8).map(|Tree { number, leaves }| {
                let combined = coefficients.tree(simd, leaves);
                public.code.add_code_words(place(round, number), reserve.table, leaves);
                combined
            });
            coefficients.add(simd, &jobs.collect::<Vec<_>>(), &mut sum);
            Ok(())
        })?;
        masks.map_or(Ok(()), |masks| answer(ch, check, sum, &masks, *delta))
    }
}

/// Answers the check of rounds. `sum` is the combination of their leaves.
fn answer(
    ch: &mut Channel,
    check: &Check,
    mut sum: Block,
    masks: &[Block; MASKS],
    delta: Block,
) -> Result<(), OtError> {
    let opened = ch.recv(CHECK, CHECK_BYTES[0])?;
    let opened: Vec<_> = opened.as_chunks().0.iter().map(|bytes| Block::from_bytes(*bytes)).collect();
    combine(check.simd, &POWERS, masks, std::slice::from_mut(&mut sum));
    combine(check.simd, &opened, &[delta], std::slice::from_mut(&mut sum));
    ch.send(CHECK, check.digest(&[sum]).as_bytes())?;
    Ok(ch.flush(CHECK)?)
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
    check: Check,
    kept: Kept,
}

impl SilentReceiver {
    /// A receiver over `direct`.
    pub(crate) fn new(direct: SoftSpokenReceiver, public: Public, check: Check) -> Self {
        SilentReceiver { direct, public, check, kept: Kept::new() }
    }
}

impl CotSource for SilentReceiver {
    fn extend(&mut self, ch: &mut Channel, out: &mut [Block]) -> Result<(), OtError> {
        let SilentReceiver { direct, public, check, kept } = self;
        let (simd, mut sum, mut opened) = (check.simd, Block::ZERO, Block::ZERO);
        let masks = kept.extend(ch, out, direct, |ch, round, reserve, trees| {
            let message = ch.recv(STEP, trees.len() * DEPTH * 16)?;
            let coefficients = Coefficients::new(&check.challenge(&ch.received_digest()), trees.len());
            let jobs = trees.into_par_iter().zip(message.par_chunks_exact(DEPTH * 16)).with_min_len(8);
            let jobs = jobs.map(|(Tree { number, leaves }, message)| {
                let (place, levels) = (place(round, number), &reserve.levels[number]);
                // q ^ K ^ t = K ^ c Delta is the sum of side c, where K is the sum of the left side.
                let mut sums = *levels;
                for (sum, &bytes) in sums.iter_mut().zip(message.as_chunks().0) {
                    *sum ^= Block::from_bytes(bytes);
                }
                let away = (0..).zip(levels).fold(0, |away, (l, level)| away | level.lsb() << l);
                public.tree(place).regrow(away, &sums, leaves);
                // The leaf with the noise is the odd one.
                let combined = combine_odd(simd, &coefficients.leaves, leaves);
                public.code.add_code_words(place, reserve.table, leaves);
                combined
            });
            let (leaves, noise): (Vec<_>, Vec<_>) = jobs.collect::<Vec<_>>().into_iter().map(<[_; 2]>::into).unzip();
            coefficients.add(simd, &leaves, &mut sum);
            coefficients.add(simd, &noise, &mut opened);
            Ok(())
        })?;
        let Some(masks) = masks else { return Ok(()) };
        combine(simd, &POWERS, &*masks, std::slice::from_mut(&mut sum));
        for (mask, power) in masks.iter().zip(&POWERS) {
            opened ^= power.times(mask.lsb());
        }
        ch.send(CHECK, &opened.to_bytes())?;
        // This comparison takes constant time.
        match check.digest(&[sum]) == *ch.recv(CHECK, CHECK_BYTES[1])? {
            true => Ok(()),
            false => Err(OtError::Deviates { step: STEP, party: ch.role().peer() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kernels;
    use crate::softspoken::tests::{deviate, halves, run};
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use waggle_net::Role;

    const ROUND: usize = LPN.made();

    /// What a sender that deviates adds to a sum.
    const ERROR: Block = Block([0x40, 1 << 50]);

    fn parties(seed: u64) -> (SilentSender, SilentReceiver) {
        let mut rng = StdRng::seed_from_u64(seed);
        let (simd, delta) = (Kernels::Detected.simd(), Block([rng.next_u64() | 1, rng.next_u64()]));
        let (sender, receiver) = halves(BOOTSTRAP, delta, &mut rng, [simd; 2]);
        let (public, check) = (|| Public::new(&[3; 32], simd), Check::new([4; 32], simd));
        let sender = SilentSender::new(sender, public(), check.clone(), delta, Zeroizing::new([5; 16]));
        (sender, SilentReceiver::new(receiver, public(), check))
    }

    /// Which sum a sender gets wrong, and whether it guesses.
    #[derive(Clone, Copy, Debug)]
    struct Wrong {
        round: u64,
        tree: usize,
        level: usize,
        /// `Some` if the sender answers as it would have to if the noise were at this leaf or its sibling. The level
        /// is then the last one.
        guess: Option<usize>,
    }

    /// [`SilentSender::extend`] of a sender that gets one sum wrong.
    fn extend_wrongly(
        sender: &mut SilentSender,
        ch: &mut Channel,
        out: &mut [Block],
        wrong: Wrong,
    ) -> Result<(), OtError> {
        let SilentSender { direct, public, check, roots, delta, kept } = sender;
        let (simd, mut sum) = (check.simd, Block::ZERO);
        let masks = kept.extend(ch, out, direct, |ch, round, reserve, mut trees| {
            let is_wrong = |tree: usize| (round, tree) == (wrong.round, wrong.tree);
            let mut message = Vec::new();
            for Tree { number, leaves } in &mut trees {
                let (place, mut sums) = (place(round, *number), [Block::ZERO; DEPTH]);
                public.tree(place).grow(roots.encrypt(Block([0, place])), *delta, &mut sums, leaves);
                if is_wrong(*number) {
                    sums[wrong.level] ^= ERROR;
                }
                let masked = sums.iter().zip(&reserve.levels[*number]);
                message.extend(masked.flat_map(|(sum, level)| (*sum ^ *level).to_bytes()));
            }
            ch.send_owned(STEP, message)?;
            ch.flush(STEP)?;
            let coefficients = Coefficients::new(&check.challenge(&ch.sent_digest()), trees.len());
            let combined = trees.into_iter().map(|Tree { number, leaves }| {
                if let Some(leaf) = wrong.guess.filter(|_| is_wrong(number)) {
                    leaves[leaf] ^= ERROR;
                    leaves[leaf ^ (LEAVES / 2)] ^= ERROR;
                }
                let combined = coefficients.tree(simd, leaves);
                public.code.add_code_words(place(round, number), reserve.table, leaves);
                combined
            });
            coefficients.add(simd, &combined.collect::<Vec<_>>(), &mut sum);
            Ok(())
        })?;
        answer(ch, check, sum, &masks.expect("rounds"), *delta)
    }

    /// The outcome at the receiver of `honest` rounds and then an extension by `rounds` rounds, in which the sender
    /// gets one sum wrong. Checks that the OTs that the receiver accepts are right.
    fn outcome(
        seed: u64,
        honest: usize,
        rounds: usize,
        wrong: impl Fn(&SilentReceiver) -> Wrong,
    ) -> Result<(), OtError> {
        let (mut sender, mut receiver) = parties(seed);
        if honest > 0 {
            let mut room = [vec![Block::ZERO; honest * ROUND], vec![Block::ZERO; honest * ROUND]];
            let [q, t] = &mut room;
            run(|ch| sender.extend(ch, q).unwrap(), |ch| receiver.extend(ch, t).unwrap());
        }
        let wrong = wrong(&receiver);
        let (mut q, mut t) = (vec![Block::ZERO; rounds * ROUND], vec![Block::ZERO; rounds * ROUND]);
        let (sent, received, _) =
            run(|ch| extend_wrongly(&mut sender, ch, &mut q, wrong), |ch| receiver.extend(ch, &mut t));
        sent.unwrap();
        received?;
        assert!(q.iter().zip(&t).all(|(q, t)| *q ^ *t == sender.delta.times(t.lsb())), "{wrong:?}");
        Ok(())
    }

    fn caught(outcome: Result<(), OtError>) -> bool {
        match outcome {
            Ok(()) => false,
            Err(OtError::Deviates { step: "ot/silent", party: Role::Client }) => true,
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn a_sender_with_a_wrong_sum_is_caught_at_once() {
        // Deviations in the first round, whose first trees are kept for the next round, and in later rounds, alone in
        // an extension or not.
        for (honest, rounds, round, tree, level) in [
            (0, 1, 0, 0, 0),
            (0, 1, 0, 2047, 8),
            (0, 2, 0, 5, 4),
            (0, 2, 1, 1000, 8),
            (1, 1, 1, 164, 1),
            (1, 2, 1, 3, 8),
            (2, 1, 2, 700, 7),
        ] {
            let wrong = Wrong { round, tree, level, guess: None };
            assert!(caught(outcome(round + tree as u64, honest, rounds, |_| wrong)), "{wrong:?}");
        }
    }

    /// A sender that gets the last sum of a tree wrong passes exactly if it guessed eight bits of the place of the
    /// noise right.
    #[test]
    fn a_sender_passes_with_the_right_guess_alone() {
        for (case, off) in [0, LEAVES / 2, 1, 2, 128, 255].into_iter().enumerate() {
            let tree = 300 * case + 7;
            let wrong = |receiver: &SilentReceiver| {
                let levels = &Reserve::new(&receiver.kept.now).levels[tree];
                let noise = (0..).zip(levels).fold(0, |place, (l, level)| place | (1 - level.lsb() as usize) << l);
                Wrong { round: 1, tree, level: DEPTH - 1, guess: Some(noise ^ off) }
            };
            assert_eq!(caught(outcome(case as u64, 1, 1, wrong)), off % (LEAVES / 2) != 0, "off by {off}");
        }
    }

    /// A receiver that deviates in the reserve of the first round, or in OTs before it, is caught before the sender
    /// has sent a byte: trees would be masked by what was made.
    #[test]
    fn a_receiver_that_deviates_in_the_reserve_gets_no_trees() {
        for (n, made) in [(FIRST, ROUND), (softspoken::extend_amount(1), softspoken::extend_amount(1))] {
            for j in [1, 17, 31] {
                let (mut sender, mut receiver) = parties(j as u64);
                let wrong = (u128::from(sender.delta) >> (4 * j)) as u64 & 15 ^ 9;
                let (outcome, _, sent) = run(
                    |ch| sender.extend(ch, &mut vec![Block::ZERO; made]),
                    |ch| deviate(&mut receiver.direct, ch, &mut vec![Block::ZERO; n], 0, &[(j, wrong)]).unwrap(),
                );
                assert!(matches!(outcome, Err(OtError::Deviates { step: "ot/softspoken", party: Role::Server })));
                assert_eq!(sent, 0);
            }
        }
    }
}
