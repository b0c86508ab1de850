//! The loops of AES over blocks, for any vector of them.
//!
//! A round of AES takes some 4 cycles and one or two can begin in each, so every loop keeps several vectors in
//! flight. It takes eight vectors at a time, then two, then one. The last vector may be filled in part. [`Wide`]
//! brings the vectors.
//!
//! Functions here are compiled into the functions of [`kernels`], which enable the instructions. So all of them are
//! always inlined, and none touches a vector but by methods of [`Wide`].

use super::super::field;
use super::super::transpose::TILES;
use super::Key;
use super::lanes::{Wide, encrypt, load, store};
use crate::Block;

/// `pi(x) ^ x`.
#[inline(always)]
fn feed_forward<W: Wide, const N: usize>(w: W, pi: &Key, x: [W::Vector; N]) -> [W::Vector; N] {
    let mut y = encrypt(w, pi, x);
    for i in 0..N {
        y[i] = w.xor(x[i], y[i]);
    }
    y
}

/// The blocks `(first, high), (first + 1, high), ..`, encrypted under `key`: N vectors of them.
#[inline(always)]
pub(super) fn stream<W: Wide, const N: usize>(w: W, key: &Key, first: u64, high: u64) -> [W::Vector; N] {
    let start = w.count(first, high);
    let mut x = [start; N];
    for i in 0..N {
        x[i] = w.add(start, w.low((i * W::BLOCKS) as u64));
    }
    encrypt(w, key, x)
}

/// The output of the PRG `key` at the counters `first, first + 1, ..`, made N vectors at a time.
#[inline(always)]
pub(super) fn counters<W: Wide, const N: usize>(w: W, key: &Key, first: u64, out: &mut [Block; TILES]) {
    for (i, out) in out.chunks_exact_mut(N * W::BLOCKS).enumerate() {
        let first = first.wrapping_add((i * N * W::BLOCKS) as u64);
        store::<W, N>(w, out, stream(w, key, first, 0));
    }
}

/// `x = pi(x) ^ x` for every block.
#[inline(always)]
pub(super) fn davies_meyer<W: Wide>(w: W, pi: &Key, blocks: &mut [Block]) {
    let mut rest = blocks;
    rest = davies_meyer_run::<W, 8>(w, pi, rest);
    rest = davies_meyer_run::<W, 2>(w, pi, rest);
    for some in rest.chunks_mut(W::BLOCKS) {
        let [y] = feed_forward(w, pi, [w.load_some(some)]);
        w.store_some(some, y);
    }
}

/// Processes the blocks in groups of N whole vectors. Returns the blocks that are left.
#[inline(always)]
fn davies_meyer_run<'a, W: Wide, const N: usize>(w: W, pi: &Key, blocks: &'a mut [Block]) -> &'a mut [Block] {
    let whole = blocks.len() - blocks.len() % (N * W::BLOCKS);
    let (chunks, rest) = blocks.split_at_mut(whole);
    for chunk in chunks.chunks_exact_mut(N * W::BLOCKS) {
        store::<W, N>(w, chunk, feed_forward(w, pi, load(w, chunk)));
    }
    rest
}

/// The hash of [`crate::hash`] of `blocks[i] ^ offset` at OT `first + i`, counter 0.
#[inline(always)]
pub(super) fn hash<W: Wide>(w: W, pi: &Key, first: u64, offset: Block, blocks: &[Block], out: &mut [Block]) {
    let (offset, step, mut tweak) = (w.splat(&offset), w.high(W::BLOCKS as u64), w.tweaks(first));
    let input = |x| {
        let input = w.xor(w.sigma(w.xor(x, offset)), tweak);
        tweak = w.add(tweak, step);
        input
    };
    feed_forward_all(w, pi, input, blocks, out);
}

/// The hash of [`crate::ggm::half`] of every node.
#[inline(always)]
pub(super) fn tree_hash<W: Wide>(w: W, pi: &Key, nodes: &[Block], out: &mut [Block]) {
    feed_forward_all(w, pi, |x| w.sigma(x), nodes, out);
}

/// Writes `pi(y) ^ y` with `y = input(x)` to `out`, for all vectors x of `blocks` in their order.
#[inline(always)]
fn feed_forward_all<W: Wide>(
    w: W,
    pi: &Key,
    mut input: impl FnMut(W::Vector) -> W::Vector,
    blocks: &[Block],
    out: &mut [Block],
) {
    debug_assert_eq!(blocks.len(), out.len());
    let (blocks, out) = feed_forward_run::<W, 8>(w, pi, &mut input, blocks, out);
    let (blocks, out) = feed_forward_run::<W, 2>(w, pi, &mut input, blocks, out);
    for (some, out) in blocks.chunks(W::BLOCKS).zip(out.chunks_mut(W::BLOCKS)) {
        let [y] = feed_forward(w, pi, [input(w.load_some(some))]);
        w.store_some(out, y);
    }
}

/// Processes the blocks in groups of N whole vectors. Returns the blocks that are left, and their places in `out`.
#[inline(always)]
fn feed_forward_run<'a, W: Wide, const N: usize>(
    w: W,
    pi: &Key,
    input: &mut impl FnMut(W::Vector) -> W::Vector,
    blocks: &'a [Block],
    out: &'a mut [Block],
) -> (&'a [Block], &'a mut [Block]) {
    let whole = blocks.len() - blocks.len() % (N * W::BLOCKS);
    let ((chunks, rest), (out_chunks, out_rest)) = (blocks.split_at(whole), out.split_at_mut(whole));
    let out_chunks = out_chunks.chunks_exact_mut(N * W::BLOCKS);
    for (chunk, out) in chunks.chunks_exact(N * W::BLOCKS).zip(out_chunks) {
        let mut x = load::<W, N>(w, chunk);
        for i in 0..N {
            x[i] = input(x[i]);
        }
        store(w, out, feed_forward(w, pi, x));
    }
    (rest, out_rest)
}

/// One level of [`crate::ggm::half::grow`]: the first half of `nodes` holds the parents, and afterwards all of it
/// holds their children. Returns the sum of the left children.
#[inline(always)]
pub(super) fn double<W: Wide>(w: W, pi: &Key, mask: Block, nodes: &mut [Block]) -> Block {
    let (left, right) = nodes.split_at_mut(nodes.len() / 2);
    let (mask, sum) = (w.splat(&mask), w.zero());
    let (left, right, sum) = double_run::<W, 8>(w, pi, mask, left, right, sum);
    let (left, right, mut sum) = double_run::<W, 2>(w, pi, mask, left, right, sum);
    for (left, right) in left.chunks_mut(W::BLOCKS).zip(right.chunks_mut(W::BLOCKS)) {
        let ([lefts], [rights]) = children(w, pi, mask, [w.load_some(left)]);
        w.store_some(left, lefts);
        w.store_some(right, rights);
        sum = w.xor_some(sum, lefts, left.len());
    }
    w.sum(sum)
}

/// Processes the parents in groups of N whole vectors and adds the left children to `sum`. Returns what is left.
#[inline(always)]
fn double_run<'a, W: Wide, const N: usize>(
    w: W,
    pi: &Key,
    mask: W::Vector,
    left: &'a mut [Block],
    right: &'a mut [Block],
    mut sum: W::Vector,
) -> (&'a mut [Block], &'a mut [Block], W::Vector) {
    let whole = left.len() - left.len() % (N * W::BLOCKS);
    let ((left, left_rest), (right, right_rest)) = (left.split_at_mut(whole), right.split_at_mut(whole));
    let rights = right.chunks_exact_mut(N * W::BLOCKS);
    for (left, right) in left.chunks_exact_mut(N * W::BLOCKS).zip(rights) {
        let (lefts, rights) = children::<W, N>(w, pi, mask, load(w, left));
        store(w, left, lefts);
        store(w, right, rights);
        for i in 0..N {
            sum = w.xor(sum, lefts[i]);
        }
    }
    (left_rest, right_rest, sum)
}

/// The children of N vectors of nodes: left `H(x)`, right `x ^ H(x)`, both under `mask`.
#[inline(always)]
fn children<W: Wide, const N: usize>(
    w: W,
    pi: &Key,
    mask: W::Vector,
    nodes: [W::Vector; N],
) -> ([W::Vector; N], [W::Vector; N]) {
    let mut s = nodes;
    for i in 0..N {
        s[i] = w.sigma(nodes[i]);
    }
    let (mut left, mut right) = (encrypt(w, pi, s), nodes);
    for i in 0..N {
        left[i] = w.cut(left[i], s[i], mask);
        right[i] = w.cut(left[i], nodes[i], mask);
    }
    (left, right)
}

/// `sums[c] ^= sum_i coefficients[i] data[c n + i]` for n coefficients.
#[inline(always)]
pub(super) fn combine<W: Wide>(w: W, coefficients: &[Block], data: &[Block], sums: &mut [Block]) {
    for (data, sum) in data.chunks_exact(coefficients.len()).zip(sums) {
        *sum ^= combine_some::<W, false>(w, coefficients, data)[0];
    }
}

/// The sum of `coefficients[i] data[i]` and, if `ODD`, the sum of the coefficients whose data are odd.
#[inline(always)]
pub(super) fn combine_some<W: Wide, const ODD: bool>(w: W, coefficients: &[Block], data: &[Block]) -> [Block; 2] {
    let (mut total, mut odd) = ([w.zero(); 3], w.zero());
    for (x, y) in data.chunks(W::BLOCKS).zip(coefficients.chunks(W::BLOCKS)) {
        let (x, y) = match x.len() == W::BLOCKS {
            true => (w.load(x), w.load(y)),
            false => (w.load_some(x), w.load_some(y)),
        };
        let product = w.product(x, y);
        for i in 0..3 {
            total[i] = w.xor(total[i], product[i]);
        }
        if ODD {
            odd = w.xor_where(odd, w.control(x), y);
        }
    }
    [field::reduce([w.sum(total[0]), w.sum(total[1]), w.sum(total[2])]), w.sum(odd)]
}

/// Implements methods of [`Wide`] by expressions that may call functions of its instruction set.
macro_rules! methods {
    ($(fn $name:ident($self:ident $(, $arg:ident: $ty:ty)*) -> $out:ty $body:block)*) => {$(
        #[inline(always)]
        fn $name($self, $($arg: $ty),*) -> $out {
            // SAFETY: a vector type is made by a function that enables its instructions, hence only where they exist.
            unsafe { $body }
        }
    )*};
}
pub(super) use methods;

/// The kernels of a set: functions that enable `$features` and run the loops on `$wide`. Indices of code words are
/// drawn for `$group` outputs at a time, as `$drawn` vectors; leaves are expanded by `$counters` vectors at a time.
/// Rows of trees are worked on `$many` vectors at a time, or `$few` if they are too short.
macro_rules! kernels {
    ($wide:ident, $features:literal, counters: $counters:literal, group: $group:literal, drawn: $drawn:literal, rows: [$many:literal, $few:literal]) => {
        use super::super::code::{CODE_WEIGHT, TABLE};
        use super::super::leaves::{self, LeafRows, Words};
        use super::super::planes::{self, Shape};
        use super::super::transpose::{BATCH, TILES};
        use super::{Key, lanes, points};
        use crate::ggm::half;

        #[target_feature(enable = $features)]
        pub(super) fn receive_batch(
            shape: &Shape,
            keys: &[Key],
            first: u64,
            rows: &mut [Block; BATCH],
            message: &mut [u8],
        ) {
            planes::receive_batch(shape, |leaf, out| counters(&keys[leaf], first, out), rows, message);
        }

        #[target_feature(enable = $features)]
        pub(super) fn send_batch(
            shape: &Shape,
            keys: &[Key],
            first: u64,
            delta: Block,
            rows: &mut [Block; BATCH],
            message: &[u8],
        ) {
            planes::send_batch(shape, |leaf, out| counters(&keys[leaf], first, out), delta, rows, message);
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn counters(key: &Key, first: u64, out: &mut [Block; TILES]) {
            driver::counters::<$wide, $counters>($wide::new(), key, first, out);
        }

        #[target_feature(enable = $features)]
        pub(super) fn combine(coefficients: &[Block], data: &[Block], sums: &mut [Block]) {
            driver::combine($wide::new(), coefficients, data, sums);
        }

        #[target_feature(enable = $features)]
        pub(super) fn combine_odd(coefficients: &[Block], data: &[Block]) -> [Block; 2] {
            driver::combine_some::<$wide, true>($wide::new(), coefficients, data)
        }

        #[target_feature(enable = $features)]
        pub(super) fn davies_meyer(pi: &Key, blocks: &mut [Block]) {
            driver::davies_meyer($wide::new(), pi, blocks);
        }

        #[target_feature(enable = $features)]
        pub(super) fn hash(pi: &Key, first: u64, offset: Block, blocks: &[Block], out: &mut [Block]) {
            driver::hash($wide::new(), pi, first, offset, blocks, out);
        }

        #[target_feature(enable = $features)]
        pub(super) fn tree_hash(pi: &Key, nodes: &[Block], out: &mut [Block]) {
            driver::tree_hash($wide::new(), pi, nodes, out);
        }

        #[target_feature(enable = $features)]
        pub(super) fn expand(
            pi: &Key,
            nodes: [&mut [Block]; 2],
            size: usize,
            corrections: &[u64],
            last: Block,
            out: Words<'_>,
        ) {
            if size < points::LEAST {
                return leaves::expand(nodes, size, corrections, last, out, |x, out| tree_hash(pi, x, out));
            }
            points::expand($wide::new(), pi, nodes, size, corrections, last, out);
        }

        #[target_feature(enable = $features)]
        pub(super) fn grow_rows(
            pi: &Key,
            nodes: &mut [Block],
            size: usize,
            corrections: &[Block],
            sums: &mut [Block],
        ) {
            match corrections.len().is_multiple_of($many * $wide::BLOCKS) {
                true => points::grow_rows::<_, $many>($wide::new(), pi, nodes, size, corrections, sums),
                false => points::grow_rows::<_, $few>($wide::new(), pi, nodes, size, corrections, sums),
            }
        }

        #[target_feature(enable = $features)]
        pub(super) fn leaf_rows(
            pi: &Key,
            nodes: &[Block],
            corrections: &[Block],
            lanes: usize,
            sums: &mut LeafRows<'_>,
        ) {
            match sums.set.len().is_multiple_of($many * $wide::BLOCKS) {
                true => points::leaf_rows::<_, $many>($wide::new(), pi, nodes, corrections, lanes, sums),
                false => points::leaf_rows::<_, $few>($wide::new(), pi, nodes, corrections, lanes, sums),
            }
        }

        #[target_feature(enable = $features)]
        pub(super) fn bit_sums(
            pi: &Key,
            tweak: Block,
            correction: Block,
            nodes: &[Block],
            split: usize,
        ) -> [Block; 2] {
            if nodes.len() < points::LEAST {
                return leaves::bit_sums(tweak, correction, nodes, split, |x, out| tree_hash(pi, x, out));
            }
            points::bit_sums($wide::new(), pi, tweak, correction, nodes, split)
        }

        #[target_feature(enable = $features)]
        fn double(pi: &Key, mask: Block, nodes: &mut [Block]) -> Block {
            driver::double($wide::new(), pi, mask, nodes)
        }

        #[target_feature(enable = $features)]
        pub(super) fn grow(pi: &Key, root: Block, delta: Block, sums: &mut [Block], nodes: &mut [Block]) {
            half::grow(root, delta, sums, nodes, |mask, nodes| double(pi, mask, nodes));
        }

        #[target_feature(enable = $features)]
        pub(super) fn regrow(pi: &Key, away: u64, sums: &[Block], nodes: &mut [Block]) {
            half::regrow(
                encrypt(pi, Block::ZERO),
                away,
                sums,
                nodes,
                |mask, nodes| double(pi, mask, nodes),
                |nodes, at, by| add_at(nodes, at, by),
            );
        }

        /// The indices of one group of outputs, 16 bits each.
        #[repr(C, align(64))]
        struct Indices([Block; $group * CODE_WEIGHT / 8]);

        #[target_feature(enable = $features)]
        pub(super) fn add_code_words(prg: &Key, place: u64, table: &[Block; TABLE], out: &mut [Block]) {
            let (groups, rest) = out.as_chunks_mut::<$group>();
            debug_assert!(rest.is_empty());
            let mut indices = Indices([Block::ZERO; $group * CODE_WEIGHT / 8]);
            for (g, out) in groups.iter_mut().enumerate() {
                draw(prg, place, (g * $group * CODE_WEIGHT / 8) as u64, &mut indices);
                for (out, i) in out.iter_mut().zip(super::indices(&indices.0)) {
                    add_code_word(table, i, out);
                }
            }
        }

        /// Draws the blocks `first, first + 1, ..` of the stream at `place`. The function is not inlined, so that
        /// indices go through memory: the compiler would take them out of vector registers one by one, on the
        /// cipher's own port.
        #[inline(never)]
        #[target_feature(enable = $features)]
        fn draw(prg: &Key, place: u64, first: u64, out: &mut Indices) {
            lanes::store::<$wide, $drawn>($wide::new(), &mut out.0, driver::stream($wide::new(), prg, first, place));
        }
    };
}
pub(super) use kernels;
