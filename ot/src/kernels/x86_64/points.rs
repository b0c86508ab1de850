//! The loops of point functions over blocks, for any vector of them: a level is hashed, corrected and interleaved in
//! one pass over registers.
//!
//! As in [`driver`](super::driver), everything is inlined into functions that enable the instructions. A key is
//! expanded by levels of at least [`LEAST`] nodes, a power of two. Keys are made a group at a time, in rows that are
//! whole runs of S vectors.

use super::super::leaves::{LeafRows, Words};
use super::Key;
use super::lanes::{Wide, encrypt, load, store};
use crate::Block;
use crate::dpf::{GROUP, tweak};

/// Fewest nodes of a level that these loops take.
pub(super) const LEAST: usize = 8;

/// The hashes of N vectors of nodes, and these nodes.
#[inline(always)]
fn hashes<W: Wide, const N: usize>(w: W, pi: &Key, nodes: &[Block]) -> ([W::Vector; N], [W::Vector; N]) {
    let mut s = load::<W, N>(w, nodes);
    for i in 0..N {
        s[i] = w.sigma(s[i]);
    }
    let mut hashes = encrypt(w, pi, s);
    let nodes = load::<W, N>(w, nodes);
    for i in 0..N {
        hashes[i] = w.xor(hashes[i], w.sigma(nodes[i]));
    }
    (hashes, nodes)
}

/// The children of N vectors of nodes, side by side. The `correction` is added to the hash where a node's lowest bit,
/// its control bit, is set.
#[inline(always)]
fn children<W: Wide, const N: usize>(w: W, pi: &Key, nodes: &[Block], correction: W::Vector) -> [[W::Vector; 2]; N] {
    let (hashes, nodes) = hashes::<W, N>(w, pi, nodes);
    let mut out = [[w.zero(); 2]; N];
    for i in 0..N {
        let left = w.xor_where(hashes[i], w.control(nodes[i]), correction);
        out[i] = w.zip(left, w.xor(left, nodes[i]));
    }
    out
}

/// [`super::super::leaves::expand`] on two buffers `nodes`. The first buffer holds the `size` nodes to begin with.
#[inline(always)]
pub(super) fn expand<W: Wide>(
    w: W,
    pi: &Key,
    nodes: [&mut [Block]; 2],
    mut size: usize,
    corrections: &[u64],
    last: Block,
    out: Words<'_>,
) {
    let [mut here, mut next] = nodes;
    for &correction in corrections.as_chunks::<2>().0 {
        let correction = w.splat(&Block(correction));
        let (from, to) = (&here[..size], &mut next[..2 * size]);
        let (from, to) = level::<W, 8>(w, pi, from, correction, to);
        let (from, to) = level::<W, 4>(w, pi, from, correction, to);
        level::<W, 2>(w, pi, from, correction, to);
        std::mem::swap(&mut here, &mut next);
        size *= 2;
    }
    let (nodes, last) = (&here[..size], w.splat(&last));
    match out {
        Words::Two(out, sign) => {
            let sign = w.splat(&Block([sign; 2]));
            let add = |x, y| w.sub(w.xor(w.add(x, y), sign), sign);
            leaves(w, pi, nodes, super::bytes(out), |pad, mask| add(pad, w.xor_where(w.zero(), mask, last)));
        }
        Words::Four(out, sign) => {
            let sign = w.splat(&Block([sign; 2]));
            let add = |x, y| w.sub32(w.xor(w.add32(x, y), sign), sign);
            leaves(w, pi, nodes, super::bytes32(out), |pad, mask| add(pad, w.xor_where(w.zero(), mask, last)));
        }
        Words::Xor(out) => leaves(w, pi, nodes, super::bytes(out), |pad, mask| w.xor_where(pad, mask, last)),
    }
}

/// Processes the nodes of a level in groups of N whole vectors. Returns what is left.
#[inline(always)]
fn level<'a, W: Wide, const N: usize>(
    w: W,
    pi: &Key,
    nodes: &'a [Block],
    correction: W::Vector,
    out: &'a mut [Block],
) -> (&'a [Block], &'a mut [Block]) {
    let whole = nodes.len() - nodes.len() % (N * W::BLOCKS);
    let ((nodes, rest), (out, out_rest)) = (nodes.split_at(whole), out.split_at_mut(2 * whole));
    for (nodes, out) in nodes.chunks_exact(N * W::BLOCKS).zip(out.chunks_exact_mut(2 * N * W::BLOCKS)) {
        let children = children::<W, N>(w, pi, nodes, correction);
        for i in 0..N {
            store::<W, 2>(w, &mut out[2 * i * W::BLOCKS..], children[i]);
        }
    }
    (rest, out_rest)
}

/// Writes `correct(hash, control)` of every node to `out`. Here control is the node's control bit, copied to all bits
/// of a block.
#[inline(always)]
fn leaves<W: Wide>(
    w: W,
    pi: &Key,
    nodes: &[Block],
    out: &mut [[u8; 16]],
    correct: impl Fn(W::Vector, W::Vector) -> W::Vector + Copy,
) {
    let (nodes, out) = leaves_run::<W, 8>(w, pi, nodes, out, correct);
    let (nodes, out) = leaves_run::<W, 4>(w, pi, nodes, out, correct);
    leaves_run::<W, 2>(w, pi, nodes, out, correct);
}

/// Processes the nodes in groups of N whole vectors. Returns what is left.
#[inline(always)]
fn leaves_run<'a, W: Wide, const N: usize>(
    w: W,
    pi: &Key,
    nodes: &'a [Block],
    out: &'a mut [[u8; 16]],
    correct: impl Fn(W::Vector, W::Vector) -> W::Vector,
) -> (&'a [Block], &'a mut [[u8; 16]]) {
    let whole = nodes.len() - nodes.len() % (N * W::BLOCKS);
    let ((nodes, rest), (out, out_rest)) = (nodes.split_at(whole), out.split_at_mut(whole));
    for (nodes, out) in nodes.chunks_exact(N * W::BLOCKS).zip(out.chunks_exact_mut(N * W::BLOCKS)) {
        let (hashes, nodes) = hashes::<W, N>(w, pi, nodes);
        for i in 0..N {
            let leaf = correct(hashes[i], w.control(nodes[i]));
            w.store_bytes(&mut out[i * W::BLOCKS..(i + 1) * W::BLOCKS], leaf);
        }
    }
    (rest, out_rest)
}

/// [`super::super::leaves::grow_rows`].
#[inline(always)]
pub(super) fn grow_rows<W: Wide, const S: usize>(
    w: W,
    pi: &Key,
    nodes: &mut [Block],
    size: usize,
    corrections: &[Block],
    sums: &mut [Block],
) {
    let row = corrections.len();
    let mut first = [Block::ZERO; GROUP];
    first[..row].copy_from_slice(&nodes[..row]);
    sums.fill(Block::ZERO);
    // From the end, so that children take no place of a parent that is still needed. Only the first row is in the
    // place of its own child.
    for parent in (0..size).rev() {
        let (before, children) = nodes.split_at_mut(2 * parent * row);
        let parents = if parent == 0 { &first[..row] } else { &before[parent * row..][..row] };
        let children = &mut children[..2 * row];
        family::<W, S>(w, pi, parents, corrections, children);
        for children in children.chunks_exact(row) {
            for at in (0..row).step_by(S * W::BLOCKS) {
                let (hashes, _) = hashes::<W, S>(w, pi, &children[at..]);
                let mut x = load::<W, S>(w, &sums[at..]);
                for i in 0..S {
                    x[i] = w.xor(x[i], hashes[i]);
                }
                store(w, &mut sums[at..], x);
            }
        }
    }
}

/// [`super::super::leaves::leaf_rows`].
#[inline(always)]
pub(super) fn leaf_rows<W: Wide, const S: usize>(
    w: W,
    pi: &Key,
    nodes: &[Block],
    corrections: &[Block],
    lanes: usize,
    sums: &mut LeafRows<'_>,
) {
    let row = sums.set.len();
    let mut leaves = [Block::ZERO; 2 * GROUP];
    for nodes in nodes.chunks_exact(row) {
        if corrections.is_empty() {
            add_leaves::<W, S>(w, pi, nodes, lanes, sums);
            continue;
        }
        let leaves = &mut leaves[..2 * row];
        family::<W, S>(w, pi, nodes, corrections, leaves);
        leaves.chunks_exact(row).for_each(|leaves| add_leaves::<W, S>(w, pi, leaves, lanes, sums));
    }
}

/// The left children of a row of nodes, then the right ones. Each tree has its own correction.
#[inline(always)]
fn family<W: Wide, const S: usize>(w: W, pi: &Key, nodes: &[Block], corrections: &[Block], children: &mut [Block]) {
    let (left, right) = children.split_at_mut(nodes.len());
    for at in (0..nodes.len()).step_by(S * W::BLOCKS) {
        let (mut hashes, nodes) = hashes::<W, S>(w, pi, &nodes[at..]);
        let (corrections, mut others) = (load::<W, S>(w, &corrections[at..]), nodes);
        for i in 0..S {
            hashes[i] = w.xor_where(hashes[i], w.control(nodes[i]), corrections[i]);
            others[i] = w.xor(hashes[i], nodes[i]);
        }
        store(w, &mut left[at..], hashes);
        store(w, &mut right[at..], others);
    }
}

/// Adds a row of leaves to the sums.
#[inline(always)]
fn add_leaves<W: Wide, const S: usize>(w: W, pi: &Key, leaves: &[Block], lanes: usize, sums: &mut LeafRows<'_>) {
    let row = leaves.len();
    for at in (0..row).step_by(S * W::BLOCKS) {
        let (hashes, nodes) = hashes::<W, S>(w, pi, &leaves[at..]);
        let (mut words, mut set) = (load::<W, S>(w, &sums.words[at..]), load::<W, S>(w, &sums.set[at..]));
        for i in 0..S {
            words[i] = match lanes {
                2 => w.add(words[i], hashes[i]),
                4 => w.add32(words[i], hashes[i]),
                _ => w.xor(words[i], hashes[i]),
            };
            set[i] = w.add(set[i], w.xor_where(w.zero(), nodes[i], w.low(1)));
        }
        store(w, &mut sums.words[at..], words);
        store(w, &mut sums.set[at..], set);
        for (block, pads) in sums.pads.chunks_exact_mut(row).enumerate() {
            let tweak = w.splat(&tweak(block));
            let mut nodes = load::<W, S>(w, &leaves[at..]);
            for i in 0..S {
                nodes[i] = w.sigma(w.xor(nodes[i], tweak));
            }
            let (hashes, mut pad) = (encrypt(w, pi, nodes), load::<W, S>(w, &pads[at..]));
            let nodes = load::<W, S>(w, &leaves[at..]);
            for i in 0..S {
                let input = w.sigma(w.xor(nodes[i], tweak));
                pad[i] = w.xor(pad[i], w.xor(hashes[i], input));
            }
            store(w, &mut pads[at..], pad);
        }
    }
}

/// [`super::super::leaves::bit_sums`].
#[inline(always)]
pub(super) fn bit_sums<W: Wide>(
    w: W,
    pi: &Key,
    tweak: Block,
    correction: Block,
    nodes: &[Block],
    split: usize,
) -> [Block; 2] {
    let mut sums = BitSums { tweak: w.splat(&tweak), split, at: 0, first: [w.zero(); 2], all: [w.zero(); 2] };
    let rest = sums.add::<W, 8>(w, pi, nodes);
    let rest = sums.add::<W, 4>(w, pi, rest);
    sums.add::<W, 2>(w, pi, rest);
    let [first, all] = [sums.first, sums.all].map(|[pads, nodes]| w.sum(pads) ^ correction.times(w.sum(nodes).lsb()));
    [first, first ^ all]
}

/// Sums of pads, and sums of nodes. The lowest bit of a sum of nodes tells whether the number of set control bits is
/// odd.
struct BitSums<V> {
    tweak: V,
    split: usize,
    /// Number of leaves that were added.
    at: usize,
    /// The sums over the leaves before `split`.
    first: [V; 2],
    all: [V; 2],
}

impl<V: Copy> BitSums<V> {
    /// Adds the nodes in groups of N whole vectors. Returns the nodes that are left.
    #[inline(always)]
    fn add<'a, W: Wide<Vector = V>, const N: usize>(&mut self, w: W, pi: &Key, nodes: &'a [Block]) -> &'a [Block] {
        let (runs, rest) = nodes.split_at(nodes.len() - nodes.len() % (N * W::BLOCKS));
        for run in runs.chunks_exact(N * W::BLOCKS) {
            let mut pads = load::<W, N>(w, run);
            for i in 0..N {
                pads[i] = w.sigma(w.xor(pads[i], self.tweak));
            }
            pads = encrypt(w, pi, pads);
            let nodes = load::<W, N>(w, run);
            for i in 0..N {
                pads[i] = w.xor(pads[i], w.sigma(w.xor(nodes[i], self.tweak)));
                self.all = [w.xor(self.all[0], pads[i]), w.xor(self.all[1], nodes[i])];
                let before = self.split.saturating_sub(self.at + i * W::BLOCKS);
                if before >= W::BLOCKS {
                    self.first = [w.xor(self.first[0], pads[i]), w.xor(self.first[1], nodes[i])];
                } else if before > 0 {
                    let some = |sum, x| w.xor_some(sum, x, before);
                    self.first = [some(self.first[0], pads[i]), some(self.first[1], nodes[i])];
                }
            }
            self.at += N * W::BLOCKS;
        }
        rest
    }
}
