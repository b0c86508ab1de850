//! Puncturable PRFs from full trees, the set-up of SoftSpoken OT.
//!
//! Tree `j` has `2^k` leaves. The extension's receiver knows all of them; the extension's sender knows all but the
//! one at its secret position `alpha_j`, the k bits `j k .. (j + 1) k` of its `Delta` (Roy,
//! <https://eprint.iacr.org/2022/192>, section 6). Level l of tree j spends the base
//! OT `j k + l`: with the receiver's sums `K_c` of all children on side c, the sender learns the sum of the side that
//! leaves its path.
//!
//! **Check** (section 6, against a receiver whose sums fit no tree, so that the leaves depend on Delta). Every leaf
//! has a tag, a hash of 32 bytes. The receiver also sends the sum of the tags of each tree, which gives the sender
//! the tag of its hole, and a digest of all tags in their order. If the digest fits, all leaves are those of the
//! receiver. A wrong sum stays unnoticed only if the sender does not use it, so a receiver learns c bits of Delta
//! with probability `2^-c`, and is caught otherwise.
//!
//! The sender stores leaf x at position `y = x ^ alpha_j`, so the hole is always at 0 and no address depends on a
//! secret: the only secret-dependent step is a conditional swap of two siblings.

use subtle::{Choice, ConditionallySelectable};
use waggle_net::Role;
use zeroize::{DefaultIsZeroes, Zeroizing};

use super::levels;
use crate::base::COUNT;
use crate::block::spread;
use crate::{Block, OtError};

/// Bytes of a tag, and of the digest of all tags.
const TAG_BYTES: usize = 32;

/// Bytes of the corrections: both sums for every level but the first, as the sums of that one are the base keys
/// themselves; the sum of the tags of every tree; the digest. The number of trees does not matter.
pub(crate) const CORRECTION_BYTES: usize = COUNT * 32 + TAG_BYTES;

/// The tag of a leaf.
#[derive(Clone, Copy, Default)]
struct Tag([Block; 2]);

impl DefaultIsZeroes for Tag {}

impl Tag {
    /// The tag of `leaf`. It is hashed in a domain that no level uses.
    fn new(key: &[u8; 32], tree: usize, leaf: Block) -> Self {
        Tag(children(key, tree, usize::from(u8::MAX), leaf))
    }

    fn add(&mut self, other: Tag) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, half)| *sum ^= half);
    }

    fn to_bytes(self) -> [u8; TAG_BYTES] {
        let mut bytes = [0; TAG_BYTES];
        bytes.as_chunks_mut().0.iter_mut().zip(self.0).for_each(|(to, half)| *to = half.to_bytes());
        bytes
    }

    /// Swaps two tags if `choice`. The same choice holds for many pairs, but the compiler must make no branch around
    /// their loop.
    fn swap_if(a: &mut Tag, b: &mut Tag, choice: Choice) {
        let mask = spread(choice.unwrap_u8().into());
        for (a, b) in a.0.iter_mut().zip(&mut b.0) {
            for (a, b) in a.0.iter_mut().zip(&mut b.0) {
                let differs = (*a ^ *b) & mask;
                *a ^= differs;
                *b ^= differs;
            }
        }
    }
}

/// The hash of all tags, in their order.
fn digest(key: &[u8; 32]) -> blake3::Hasher {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(b"tags");
    hasher
}

/// The two children of `node`, which belongs to level `level` of tree `tree`.
fn children(key: &[u8; 32], tree: usize, level: usize, node: Block) -> [Block; 2] {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(&node.to_bytes()).update(&[tree as u8, level as u8]);
    let digest = hasher.finalize();
    let (halves, _) = digest.as_bytes().as_chunks();
    [halves[0], halves[1]].map(Block::from_bytes)
}

fn sum(blocks: &[Block]) -> Block {
    blocks.iter().fold(Block::ZERO, |acc, &b| acc ^ b)
}

/// Builds all trees from both keys of every base OT. Returns `128 / k` runs of `2^k` leaves and the corrections.
pub(crate) fn build(key: &[u8; 32], k: usize, base: &[[Block; 2]]) -> (Vec<Block>, Vec<u8>) {
    debug_assert_eq!(base.len(), COUNT);
    let mut leaves = Vec::with_capacity((COUNT / k) << k);
    let mut corrections = Vec::with_capacity(CORRECTION_BYTES);
    let mut digest = digest(key);
    for (tree, base) in base.chunks_exact(k).enumerate() {
        let mut nodes = Zeroizing::new(vec![Block::ZERO; 1 << k]);
        nodes[..2].copy_from_slice(&base[0]);
        levels(&mut nodes, |level, nodes| {
            let (lefts, rights) = nodes.split_at_mut(1 << level);
            for (left, right) in lefts.iter_mut().zip(rights.iter_mut()) {
                [*left, *right] = children(key, tree, level, *left);
            }
            for (side, pad) in [lefts, rights].into_iter().zip(base[level]) {
                corrections.extend_from_slice(&(sum(side) ^ pad).to_bytes());
            }
        });
        let mut sum = Tag::default();
        for leaf in nodes.iter() {
            let tag = Tag::new(key, tree, *leaf);
            digest.update(&tag.to_bytes());
            sum.add(tag);
        }
        corrections.extend_from_slice(&sum.to_bytes());
        leaves.extend_from_slice(&nodes);
    }
    corrections.extend_from_slice(digest.finalize().as_bytes());
    (leaves, corrections)
}

/// Rebuilds all trees except the leaves at the positions that `delta` gives, their holes. `chosen` are the base keys
/// for the *negated* bits of `delta`. Leaf x of tree j is at position `x ^ alpha_j` of run j. Position 0, the hole,
/// holds zero. Errors: a wrong number of bytes, or `party`, who sent them, deviates. Only whether the check failed
/// may depend on `delta`.
pub(crate) fn open(
    (step, party): (&'static str, Role),
    key: &[u8; 32],
    k: usize,
    chosen: &[Block],
    delta: &[Choice; COUNT],
    corrections: &[u8],
) -> Result<Vec<Block>, OtError> {
    let (leaves, tags) = rebuild(step, key, k, chosen, delta, corrections)?;
    // This comparison takes constant time.
    match tags == corrections[CORRECTION_BYTES - TAG_BYTES..] {
        true => Ok(leaves),
        false => Err(OtError::Deviates { step, party }),
    }
}

/// Rebuilds the leaves as [`open`] does, but returns the digest of all tags unchecked. Errors: a wrong number of
/// bytes.
pub(crate) fn rebuild(
    step: &'static str,
    key: &[u8; 32],
    k: usize,
    chosen: &[Block],
    delta: &[Choice; COUNT],
    corrections: &[u8],
) -> Result<(Vec<Block>, blake3::Hash), OtError> {
    OtError::expect(step, "bytes", CORRECTION_BYTES, corrections.len())?;
    debug_assert_eq!(chosen.len(), COUNT);
    let mut digest = digest(key);
    let mut leaves = Vec::with_capacity((COUNT / k) << k);
    let mut corrections = corrections.as_chunks::<16>().0.iter().map(|&b| Block::from_bytes(b));
    let mut next = || corrections.next().unwrap_or_default();
    for (tree, (chosen, delta)) in chosen.chunks_exact(k).zip(delta.chunks_exact(k)).enumerate() {
        let mut nodes = Zeroizing::new(vec![Block::ZERO; 1 << k]);
        nodes[1] = chosen[0];
        levels(&mut nodes, |level, nodes| {
            let (lefts, rights) = nodes.split_at_mut(1 << level);
            for (y, z) in lefts.iter_mut().zip(rights.iter_mut()).skip(1) {
                let [left, right] = children(key, tree, level, *y).map(u128::from);
                *y = u128::conditional_select(&left, &right, delta[level]).into();
                *z = u128::conditional_select(&right, &left, delta[level]).into();
            }
            // The side that leaves the path is 1 - alpha; all of its children but the hole's are known.
            let (left, right) = (u128::from(next()), u128::from(next()));
            let side = u128::conditional_select(&right, &left, delta[level]);
            rights[0] = Block::from(side) ^ chosen[level] ^ sum(&rights[1..]);
        });
        let mut hole = Tag([next(), next()]);
        let mut tags = Zeroizing::new(vec![hole; 1 << k]);
        for (to, leaf) in tags.iter_mut().zip(nodes.iter()).skip(1) {
            *to = Tag::new(key, tree, *leaf);
            hole.add(*to);
        }
        tags[0] = hole;
        // From position y to x = y ^ alpha.
        for (level, swap) in delta.iter().enumerate() {
            for pairs in tags.chunks_exact_mut(2 << level) {
                let (a, b) = pairs.split_at_mut(1 << level);
                a.iter_mut().zip(b).for_each(|(a, b)| Tag::swap_if(a, b, *swap));
            }
        }
        for tag in tags.iter() {
            digest.update(&tag.to_bytes());
        }
        leaves.extend_from_slice(&nodes);
    }
    Ok((leaves, digest.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    const KEY: [u8; 32] = [9; 32];
    const FROM: (&str, Role) = ("t", Role::Client);

    fn bits(delta: Block) -> [Choice; COUNT] {
        std::array::from_fn(|i| Choice::from((delta.0[i / 64] >> (i % 64) & 1) as u8))
    }

    /// The keys that a receiver learns from the base OTs if its choices are the negated bits of `delta`.
    fn chosen(base: &[[Block; 2]], delta: Block) -> Vec<Block> {
        base.iter().zip(bits(delta)).map(|(pair, bit)| pair[1 - usize::from(bit.unwrap_u8())]).collect()
    }

    #[test]
    fn all_leaves_agree_but_the_hole() {
        let mut rng = StdRng::seed_from_u64(5);
        let mut block = || Block([rng.next_u64(), rng.next_u64()]);
        let base: Vec<[Block; 2]> = (0..COUNT).map(|_| [block(), block()]).collect();
        let random = block();
        for (delta, k) in
            [random, Block::ZERO, Block([u64::MAX; 2])].into_iter().flat_map(|d| [(d, 2), (d, 4), (d, 8)])
        {
            let (all, corrections) = build(&KEY, k, &base);
            assert_eq!(corrections.len(), CORRECTION_BYTES);
            let opened = open(FROM, &KEY, k, &chosen(&base, delta), &bits(delta), &corrections).unwrap();
            for (j, (all, opened)) in all.chunks(1 << k).zip(opened.chunks(1 << k)).enumerate() {
                let alpha = (0..k).fold(0, |a, l| a | usize::from(bits(delta)[j * k + l].unwrap_u8()) << l);
                assert!(opened[0] == Block::ZERO);
                assert!((1..1 << k).all(|y| opened[y] == all[y ^ alpha]), "k = {k}, tree {j}");
            }
            assert!(open(FROM, &KEY, k, &chosen(&base, delta), &bits(delta), &corrections[1..]).is_err());
        }
    }

    /// Every single sum, wrong by a bit, is noticed by the Delta that uses it and by no other: a guess of one bit.
    #[test]
    fn a_receiver_with_a_wrong_sum_is_caught_unless_it_guessed_the_bit() {
        let mut rng = StdRng::seed_from_u64(6);
        let mut block = || Block([rng.next_u64(), rng.next_u64()]);
        let base: Vec<[Block; 2]> = (0..COUNT).map(|_| [block(), block()]).collect();
        let delta = block();
        let caught =
            |k, corrections: &[u8]| match open(FROM, &KEY, k, &chosen(&base, delta), &bits(delta), corrections) {
                Ok(_) => false,
                Err(OtError::Deviates { step: "t", party: Role::Client }) => true,
                Err(other) => panic!("{other}"),
            };
        for k in [2, 4, 8] {
            let (_, honest) = build(&KEY, k, &base);
            let tree_bytes = 32 * k;
            for (tree, level, side) in
                (0..COUNT / k).flat_map(|j| (1..k).flat_map(move |l| [(j, l, 0), (j, l, 1)])).step_by(3)
            {
                let mut corrections = honest.clone();
                corrections[tree * tree_bytes + 32 * (level - 1) + 16 * side + 5] ^= 4;
                let used = 1 - usize::from(bits(delta)[tree * k + level].unwrap_u8());
                assert_eq!(caught(k, &corrections), used == side, "k = {k}, tree {tree}, level {level}, side {side}");
            }
            for at in [tree_bytes - 1, CORRECTION_BYTES - TAG_BYTES - 32, CORRECTION_BYTES - 1] {
                let mut corrections = honest.clone();
                corrections[at] ^= 1;
                assert!(caught(k, &corrections), "k = {k}: a tag or the digest, byte {at}");
            }
        }
    }
}
