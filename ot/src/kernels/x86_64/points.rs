//! The loops of point functions over blocks, for any vector of them: hash, correction and interleaving of a level in
//! one pass over registers.
//!
//! As in [`driver`](super::driver), everything is inlined into functions that enable the instructions. Levels have at
//! least [`LEAST`] nodes, a power of two.

use super::super::leaves::{Sums, Words};
use super::Key;
use super::driver::{Wide, encrypt, load, store};
use crate::Block;

/// Fewest nodes of a level that these loops take.
pub(super) const LEAST: usize = 8;

/// Most children in flight: eight vectors of four.
const MOST: usize = 32;

/// Hashes of N vectors of nodes, and the nodes.
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

/// The children of N vectors of nodes, side by side; `correction` is added to the hash where a node's lowest bit, its
/// control bit, is set.
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

/// [`super::super::leaves::expand`] on the buffers `nodes`, of which the first holds the `size` nodes to begin with.
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

/// The whole runs of N vectors of a level; returns the rest.
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

/// `correct(hash, control bit everywhere)` of every node, to `out`.
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

/// The whole runs of N vectors; returns the rest.
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

/// Sums over a level, in vectors.
#[derive(Clone, Copy)]
struct Running<V> {
    hashes: V,
    words: V,
    set: V,
}

impl<V: Copy> Running<V> {
    #[inline(always)]
    fn new<W: Wide<Vector = V>>(w: W) -> Self {
        Running { hashes: w.zero(), words: w.zero(), set: w.zero() }
    }

    #[inline(always)]
    fn add<W: Wide<Vector = V>>(&mut self, w: W, node: V, hash: V, lanes: usize) {
        self.hashes = w.xor(self.hashes, hash);
        self.words = if lanes == 2 { w.add(self.words, hash) } else { w.add32(self.words, hash) };
        self.set = w.add(self.set, w.xor_where(w.zero(), node, w.low(1)));
    }

    #[inline(always)]
    fn total<W: Wide<Vector = V>>(self, w: W, lanes: usize) -> Sums {
        let mut total = Sums { hashes: w.sum(self.hashes), ..Sums::default() };
        let mut parts = [[Block::ZERO; 4]; 2];
        for (parts, x) in parts.iter_mut().zip([self.words, self.set]) {
            w.store(&mut parts[..W::BLOCKS], x);
        }
        for i in 0..W::BLOCKS {
            total.add_words(parts[0][i], lanes);
            total.set += parts[1][i].0[0];
        }
        total
    }
}

/// [`super::super::leaves::sums`].
#[inline(always)]
pub(super) fn sums<W: Wide>(w: W, pi: &Key, nodes: &[Block], lanes: usize) -> Sums {
    let mut sums = Running::new(w);
    for nodes in nodes.chunks_exact(2 * W::BLOCKS) {
        let (hashes, nodes) = hashes::<W, 2>(w, pi, nodes);
        for i in 0..2 {
            sums.add(w, nodes[i], hashes[i], lanes);
        }
    }
    sums.total(w, lanes)
}

/// [`super::super::leaves::grow`].
#[inline(always)]
pub(super) fn grow<W: Wide>(
    w: W,
    pi: &Key,
    nodes: &mut [Block],
    size: usize,
    correction: Block,
    lanes: usize,
) -> Sums {
    let correction = w.splat(&correction);
    match size / W::BLOCKS {
        2 => grow_run::<W, 2, 4>(w, pi, nodes, size, correction, lanes),
        _ => grow_run::<W, 4, 8>(w, pi, nodes, size, correction, lanes),
    }
}

/// N vectors of parents and M = 2 N of children at a time, from the end: children take no place of a parent to come.
#[inline(always)]
fn grow_run<W: Wide, const N: usize, const M: usize>(
    w: W,
    pi: &Key,
    nodes: &mut [Block],
    size: usize,
    correction: W::Vector,
    lanes: usize,
) -> Sums {
    debug_assert!(M == 2 * N && size.is_multiple_of(N * W::BLOCKS));
    let (mut sums, keep) = (Running::new(w), nodes.len() >= 2 * size);
    // Through memory, where there is room for leaves, too: registers are few.
    let mut leaves = [Block::ZERO; MOST];
    for at in (0..size).step_by(N * W::BLOCKS).rev() {
        let pairs = children::<W, N>(w, pi, &nodes[at..at + N * W::BLOCKS], correction);
        let next = match keep {
            true => &mut nodes[2 * at..2 * at + M * W::BLOCKS],
            false => &mut leaves[..M * W::BLOCKS],
        };
        for i in 0..N {
            store::<W, 2>(w, &mut next[2 * i * W::BLOCKS..], pairs[i]);
        }
        let (hashes, next) = hashes::<W, M>(w, pi, next);
        for i in 0..M {
            sums.add(w, next[i], hashes[i], lanes);
        }
    }
    sums.total(w, lanes)
}
