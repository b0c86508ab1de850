//! The layers of a transform for any vector of eight lanes.
//!
//! Forward, a layer of m groups maps the halves u, v of every group to `u + v w` and `u - v w`, w being the root of
//! the group; inverse, to `u + v` and `(u - v) w`. The driver takes three layers in one pass over memory, as long as
//! a group has more than 64 coefficients. One or two single layers come before those passes, if `log2(N / 64)` is no
//! multiple of three. The last six layers, those within blocks of 64, stay in registers: three of them between eight
//! vectors, a transposition, and three more.
//!
//! A [`Kernel`] supplies the vectors and the two butterflies, and decides how values are held between layers: its
//! *working form*. The driver tells it where values may be brought back into range ([`Kernel::settle`],
//! [`Kernel::tame`]), and the kernel proves its own bounds.
//!
//! Functions here are compiled into those that [`backend`] makes and that enable the kernel's instructions. So all of
//! them are always inlined, and none touches a vector but by the kernel's methods.

use super::backend::{LANES, Lanes, MIN_POINTS, NttBackend};
use super::portable::TfheNtt;
use super::twiddles::{self, BLOCK, RADIX8, Twiddles};
use crate::modulus::Modulus;
use std::fmt::Debug;

/// Largest degree for which kernels prove their bounds.
pub(super) const MAX_DEGREE: usize = 16384;

/// The operations of a vector type on coefficients modulo one prime p. A value holds the prime's constants and proves
/// that the processor has the instructions of the type.
pub(super) trait Kernel: Copy {
    /// Eight coefficients.
    type Vector: Copy;
    /// A number in the tables of roots.
    type Word: Copy + Debug + Send + Sync;

    /// Whether [`Self::read`] and [`Self::factor`] change residues.
    const CONVERTS: bool;

    /// Loads eight words of a polynomial without a change.
    fn load(self, from: &Lanes) -> Self::Vector;
    /// The reverse of [`Self::load`].
    fn store(self, to: &mut Lanes, x: Self::Vector);
    /// One number of the tables in every lane.
    fn splat(self, x: Self::Word) -> Self::Vector;
    /// Loads eight numbers of the tables.
    fn table(self, from: &[Self::Word; LANES]) -> Self::Vector;
    /// Transposes eight vectors: rows become columns.
    fn transpose(self, v: [Self::Vector; 8]) -> [Self::Vector; 8];

    /// Brings residues in `[0, p)`, as loaded, into the working form.
    fn read(self, x: Self::Vector) -> Self::Vector {
        x
    }
    /// Brings numbers in `(-p, p)` into the working form, as settled values.
    fn signed(self, from: &[i64; LANES]) -> Self::Vector;
    /// Brings values from the working form into words in `[0, p)`, after the last forward layer.
    fn finish(self, x: Self::Vector) -> Self::Vector;
    /// Brings values from the working form into the form of [`NttBackend::factor`], after the last forward layer.
    fn factor(self, x: Self::Vector) -> Self::Vector;
    /// Stores results of [`Self::factor`], one for each tile, in the form that [`NttBackend::matmul`] takes.
    fn place(self, to: &mut [u64], x: Self::Vector);

    /// A constant that is added to every value before the first forward layer of a transform of `2^layers`
    /// coefficients. `None` if the kernel needs none.
    fn offset(self, _layers: u32) -> Option<Self::Vector> {
        None
    }
    /// `x + y`, unreduced.
    fn add(self, x: Self::Vector, y: Self::Vector) -> Self::Vector;
    /// Brings a value into the range that layers begin with. It is called before blocks and before inverse layers.
    fn settle(self, x: Self::Vector) -> Self::Vector {
        x
    }
    /// Brings a value back into range after three inverse layers. It is called for the one value of eight that these
    /// layers never multiply.
    fn tame(self, x: Self::Vector) -> Self::Vector {
        x
    }

    // ANCHOR: butterflies
    /// A forward butterfly: `(u + v w, u - v w)`.
    fn forward(self, u: Self::Vector, v: Self::Vector, w: [Self::Vector; 2]) -> [Self::Vector; 2];
    /// The bound `2^log p` in the form that [`Self::inverse`] takes. Kernels that need no bound ignore it.
    fn bound(self, log: u32) -> Self::Vector;
    /// An inverse butterfly: `(u + v, (u - v) w)`. Kernels that need a bound rely on u and v being below `bound`.
    fn inverse(
        self,
        bound: Self::Vector,
        u: Self::Vector,
        v: Self::Vector,
        w: [Self::Vector; 2],
    ) -> [Self::Vector; 2];
    // ANCHOR_END: butterflies
    /// `x w` as words in `[0, p)`.
    fn scale(self, x: Self::Vector, w: [Self::Vector; 2]) -> Self::Vector;

    /// `a b`, both in working form or factors. [`Self::product`] or [`Self::sums`] must finish the result.
    fn multiply(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// A result of [`Self::multiply`] as words in `[0, p)`.
    fn product(self, x: Self::Vector) -> Self::Vector {
        x
    }
    /// `u + r` and `u - r` as words in `[0, p)`, for `u` as read and `r` a result of [`Self::multiply`].
    fn sums(self, u: Self::Vector, r: Self::Vector) -> [Self::Vector; 2];
}

/// The roots of unity for one prime and degree, as numbers of a kernel.
#[derive(Debug)]
pub(super) struct Tables<W> {
    pub(super) modulus: Modulus,
    pub(super) n: usize,
    forward: Twiddles<W>,
    inverse: Twiddles<W>,
    n_inverse: [W; 2],
}

impl<W: Copy> Tables<W> {
    /// `None` if the degree is not a power of two in `64..=16384`. The modulus and the order of coefficients are
    /// those of `reference`. `factor` returns a root and the number that the kernel uses beside it.
    pub(super) fn new(n: usize, reference: &TfheNtt, factor: impl Fn(u64) -> [W; 2]) -> Option<Self> {
        if !(MIN_POINTS..=MAX_DEGREE).contains(&n) || !n.is_power_of_two() {
            return None;
        }
        let modulus = *reference.modulus();
        let roots = reference.roots();
        Some(Self {
            modulus,
            n,
            forward: Twiddles::new(&roots, &factor),
            inverse: Twiddles::new(&twiddles::inverses(&modulus, &roots), &factor),
            n_inverse: factor(modulus.inverse(n as u64)),
        })
    }
}

/// One root in all lanes.
#[inline(always)]
fn root<K: Kernel>(k: K, [w, quotient]: [K::Word; 2]) -> [K::Vector; 2] {
    [k.splat(w), k.splat(quotient)]
}

/// The roots of three merged layers for group i of the first of these layers, which has m groups. They are looked up
/// one by one, because from slices the compiler would load several at once and shuffle them apart.
#[inline(always)]
fn roots<K: Kernel>(k: K, table: &Twiddles<K::Word>, m: usize, i: usize) -> [[K::Vector; 2]; RADIX8] {
    let (tree, at) = (&table.tree, m + i);
    let w0 = root(k, tree[at]);
    let (w1, w2) = (root(k, tree[2 * at]), root(k, tree[2 * at + 1]));
    let (w3, w4) = (root(k, tree[4 * at]), root(k, tree[4 * at + 1]));
    [w0, w1, w2, w3, w4, root(k, tree[4 * at + 2]), root(k, tree[4 * at + 3])]
}

/// One root per lane.
#[inline(always)]
fn lane_roots<K: Kernel>(k: K, [w, quotient]: &[[K::Word; LANES]; 2]) -> [K::Vector; 2] {
    [k.table(w), k.table(quotient)]
}

/// The roots of the last three layers for the eight groups of the block at index b.
#[inline(always)]
fn block_roots<K: Kernel>(k: K, table: &Twiddles<K::Word>, b: usize) -> [[K::Vector; 2]; RADIX8] {
    let [w0, w1, w2, w3, w4, w5, w6] = &table.lanes[b];
    let [w0, w1, w2] = [lane_roots(k, w0), lane_roots(k, w1), lane_roots(k, w2)];
    [w0, w1, w2, lane_roots(k, w3), lane_roots(k, w4), lane_roots(k, w5), lane_roots(k, w6)]
}

/// Cuts `data` into N parts with equal numbers of vectors of L words. Loops over the vectors' indices need no bounds
/// check.
#[inline(always)]
pub(super) fn parts<const N: usize, const L: usize>(data: &mut [u64]) -> [&mut [[u64; L]]; N] {
    let mut rest = data.as_chunks_mut().0;
    let count = rest.len() / N;
    std::array::from_fn(|_| {
        let (part, others) = std::mem::take(&mut rest).split_at_mut(count);
        rest = others;
        part
    })
}

/// The vectors at index i of the eight parts.
#[inline(always)]
fn load8<K: Kernel>(k: K, parts: &[&mut [Lanes]; 8], i: usize) -> [K::Vector; 8] {
    let mut v = [k.load(&parts[0][i]); 8];
    for (v, part) in v.iter_mut().zip(parts) {
        *v = k.load(&part[i]);
    }
    v
}

/// The reverse of [`load8`].
#[inline(always)]
fn store8<K: Kernel>(k: K, parts: &mut [&mut [Lanes]; 8], i: usize, v: [K::Vector; 8]) {
    for (part, v) in parts.iter_mut().zip(v) {
        k.store(&mut part[i], v);
    }
}

/// The eight vectors of a block.
#[inline(always)]
fn load_block<K: Kernel>(k: K, block: &[Lanes; 8]) -> [K::Vector; 8] {
    let mut v = [k.load(&block[0]); 8];
    for (v, lanes) in v.iter_mut().zip(block) {
        *v = k.load(lanes);
    }
    v
}

/// The reverse of [`load_block`].
#[inline(always)]
fn store_block<K: Kernel>(k: K, block: &mut [Lanes; 8], v: [K::Vector; 8]) {
    for (lanes, v) in block.iter_mut().zip(v) {
        k.store(lanes, v);
    }
}

/// The blocks of a polynomial.
#[inline(always)]
fn blocks(data: &mut [u64]) -> &mut [[Lanes; 8]] {
    data.as_chunks_mut().0.as_chunks_mut().0
}

/// Calls a method of the kernel on each of eight vectors. It is a macro, because closures would not take on the
/// kernel's instructions.
macro_rules! each8 {
    ($k:expr, $method:ident, $v:expr $(, $arg:expr)*) => {{
        let mut v = $v;
        for x in &mut v {
            *x = $k.$method(*x $(, $arg)*);
        }
        v
    }};
}

/// Adds the offset, if there is one, to eight vectors.
#[inline(always)]
fn raised<K: Kernel>(k: K, offset: Option<K::Vector>, v: [K::Vector; 8]) -> [K::Vector; 8] {
    match offset {
        Some(offset) => each8!(k, add, v, offset),
        None => v,
    }
}

/// Three forward layers over eight vectors. They are written out so that the vectors stay in registers.
#[inline(always)]
#[rustfmt::skip]
fn forward8<K: Kernel>(k: K, v: [K::Vector; 8], w: &[[K::Vector; 2]; RADIX8]) -> [K::Vector; 8] {
    let [v0, v1, v2, v3, v4, v5, v6, v7] = v;
    let [v0, v4] = k.forward(v0, v4, w[0]);
    let [v1, v5] = k.forward(v1, v5, w[0]);
    let [v2, v6] = k.forward(v2, v6, w[0]);
    let [v3, v7] = k.forward(v3, v7, w[0]);
    let [v0, v2] = k.forward(v0, v2, w[1]);
    let [v1, v3] = k.forward(v1, v3, w[1]);
    let [v4, v6] = k.forward(v4, v6, w[2]);
    let [v5, v7] = k.forward(v5, v7, w[2]);
    let [v0, v1] = k.forward(v0, v1, w[3]);
    let [v2, v3] = k.forward(v2, v3, w[4]);
    let [v4, v5] = k.forward(v4, v5, w[5]);
    let [v6, v7] = k.forward(v6, v7, w[6]);
    [v0, v1, v2, v3, v4, v5, v6, v7]
}

/// Three inverse layers over eight vectors. For kernels that rely on bounds, values are below 8 p
    /// before and after.
#[inline(always)]
#[rustfmt::skip]
fn inverse8<K: Kernel>(k: K, v: [K::Vector; 8], w: &[[K::Vector; 2]; RADIX8]) -> [K::Vector; 8] {
    let [v0, v1, v2, v3, v4, v5, v6, v7] = each8!(k, settle, v);
    let (b8, b16, b32) = (k.bound(3), k.bound(4), k.bound(5));
    let [v0, v1] = k.inverse(b8, v0, v1, w[3]);
    let [v2, v3] = k.inverse(b8, v2, v3, w[4]);
    let [v4, v5] = k.inverse(b8, v4, v5, w[5]);
    let [v6, v7] = k.inverse(b8, v6, v7, w[6]);
    let [v0, v2] = k.inverse(b16, v0, v2, w[1]);
    let [v1, v3] = k.inverse(b16, v1, v3, w[1]);
    let [v4, v6] = k.inverse(b16, v4, v6, w[2]);
    let [v5, v7] = k.inverse(b16, v5, v7, w[2]);
    let [v0, v4] = k.inverse(b32, v0, v4, w[0]);
    let [v1, v5] = k.inverse(b32, v1, v5, w[0]);
    let [v2, v6] = k.inverse(b32, v2, v6, w[0]);
    let [v3, v7] = k.inverse(b32, v3, v7, w[0]);
    [k.tame(v0), v1, v2, v3, v4, v5, v6, v7]
}

/// [`NttBackend::fwd`].
#[inline(always)]
pub(super) fn forward<K: Kernel>(k: K, tables: &Tables<K::Word>, poly: &mut [u64]) {
    assert_eq!(poly.len(), tables.n);
    if K::CONVERTS {
        for lanes in poly.as_chunks_mut().0 {
            k.store(lanes, k.settle(k.read(k.load(lanes))));
        }
    }
    layers::<K, false>(k, tables, poly, 1);
}

/// [`NttBackend::factor`].
#[inline(always)]
pub(super) fn factor<K: Kernel>(k: K, tables: &Tables<K::Word>, poly: &mut [u64]) {
    assert_eq!(poly.len(), tables.n);
    if K::CONVERTS {
        for lanes in poly.as_chunks_mut().0 {
            k.store(lanes, k.factor(k.read(k.load(lanes))));
        }
    }
}

/// [`NttBackend::fwd_signed`].
#[inline(always)]
pub(super) fn forward_signed<K: Kernel>(k: K, tables: &Tables<K::Word>, out: &mut [u64], signed: &[i64]) {
    assert_eq!(out.len(), tables.n);
    forward_given::<K, false>(k, tables, out, signed);
}

/// [`NttBackend::fwd_factor`].
#[inline(always)]
pub(super) fn forward_factor<K: Kernel>(k: K, tables: &Tables<K::Word>, out: &mut [u64], signed: &[i64]) {
    forward_given::<K, true>(k, tables, out, signed);
}

/// The transform of the given coefficients in the subring whose degree is the length of `out`, as a factor or as
/// residues.
#[inline(always)]
fn forward_given<K: Kernel, const FACTOR: bool>(k: K, tables: &Tables<K::Word>, out: &mut [u64], signed: &[i64]) {
    let n = out.len();
    assert!(n.is_power_of_two() && (BLOCK..=tables.n).contains(&n));
    assert!(signed.len() <= n && signed.len().is_multiple_of(LANES));
    for (out, lanes) in out.as_chunks_mut().0.iter_mut().zip(signed.as_chunks().0) {
        k.store(out, k.signed(lanes));
    }
    let start = twiddles::first_layer(n, signed.len());
    repeat(out, signed.len(), start);
    layers::<K, FACTOR>(k, tables, out, start);
}

/// Copies the first of `groups` groups over all others. Only the first `given` words of that group are given, and its
/// other words become zero.
#[inline(always)]
fn repeat(data: &mut [u64], given: usize, groups: usize) {
    let group = data.len() / groups;
    // The word zero is the number zero in every working form.
    data[given.min(group)..group].fill(0);
    for copy in 1..groups {
        data.copy_within(..group, copy * group);
    }
}

/// [`NttBackend::weigh`]. Each tile is a lane, so all layers are between vectors and results need no transposition.
#[inline(always)]
pub(super) fn weigh<K: Kernel>(
    k: K,
    tables: &Tables<K::Word>,
    signed: &[i64],
    scratch: &mut [u64],
    out: &mut [u64],
    pitch: usize,
) {
    let (n, table) = (scratch.len() / LANES, &tables.forward);
    assert!(scratch.len() == n * LANES && n.is_power_of_two() && (BLOCK..=tables.n).contains(&n));
    assert!(signed.len() <= scratch.len() && signed.len().is_multiple_of(BLOCK * LANES));
    for (word, lanes) in scratch.as_chunks_mut().0.iter_mut().zip(signed.as_chunks().0) {
        k.store(word, k.signed(lanes));
    }
    let start = twiddles::first_layer(n, signed.len() / LANES);
    repeat(scratch, signed.len(), start);
    let offset = upper_layers(k, table, n, scratch, start);
    for (b, block) in scratch.chunks_exact_mut(BLOCK * LANES).enumerate() {
        let w = roots(k, table, n / BLOCK, b);
        let mut parts = parts(block);
        for at in 0..parts[0].len() {
            let v = each8!(k, settle, raised(k, offset, load8(k, &parts, at)));
            store8(k, &mut parts, at, forward8(k, v, &w));
        }
        for (i, group) in blocks(block).iter().enumerate() {
            let group_index = b * LANES + i;
            let v = forward8(k, load_block(k, group), &roots(k, table, n / LANES, group_index));
            for (j, x) in each8!(k, factor, v).into_iter().enumerate() {
                k.place(&mut out[(group_index * LANES + j) * pitch..], x);
            }
        }
    }
}

/// The forward layers from the one with `start` groups on, over settled values. The length of `data` is the degree of
/// the subring.
#[inline(always)]
fn layers<K: Kernel, const FACTOR: bool>(k: K, tables: &Tables<K::Word>, data: &mut [u64], start: usize) {
    let (n, table) = (data.len(), &tables.forward);
    let offset = upper_layers(k, table, n, data, start);
    for (b, block) in blocks(data).iter_mut().enumerate() {
        let v = each8!(k, settle, raised(k, offset, load_block(k, block)));
        let v = k.transpose(forward8(k, v, &roots(k, table, n / BLOCK, b)));
        let v = k.transpose(forward8(k, v, &block_roots(k, table, n / BLOCK + b)));
        let v = if FACTOR { each8!(k, factor, v) } else { each8!(k, finish, v) };
        store_block(k, block, v);
    }
}

/// The layers before the blocks, in a transform of n entries over `data`. An entry is a word or a vector. Returns the
/// offset if it still has to be added.
#[inline(always)]
fn upper_layers<K: Kernel>(
    k: K,
    table: &Twiddles<K::Word>,
    n: usize,
    data: &mut [u64],
    start: usize,
) -> Option<K::Vector> {
    let len = data.len();
    // The first pass adds the offset.
    let mut offset = k.offset(n.trailing_zeros());
    let (first, passes) = twiddles::passes(n);
    let mut m = start;
    while m < first {
        for (i, group) in data.chunks_exact_mut(len / m).enumerate() {
            let w = root(k, table.tree[m + i]);
            let [top, bottom] = parts(group);
            for (top, bottom) in top.iter_mut().zip(bottom) {
                let (mut u, mut v) = (k.load(top), k.load(bottom));
                if let Some(offset) = offset {
                    (u, v) = (k.add(u, offset), k.add(v, offset));
                }
                let [u, v] = k.forward(u, v, w);
                k.store(top, u);
                k.store(bottom, v);
            }
        }
        offset = None;
        m *= 2;
    }
    for m in passes.filter(|&m| m >= start) {
        for (i, group) in data.chunks_exact_mut(len / m).enumerate() {
            let w = roots(k, table, m, i);
            let mut parts = parts(group);
            for at in 0..parts[0].len() {
                let v = raised(k, offset, load8(k, &parts, at));
                store8(k, &mut parts, at, forward8(k, v, &w));
            }
        }
        offset = None;
    }
    offset
}

/// [`NttBackend::inv`]. The last pass divides by N.
#[inline(always)]
pub(super) fn inverse<K: Kernel>(k: K, tables: &Tables<K::Word>, data: &mut [u64]) {
    assert_eq!(data.len(), tables.n);
    let (n, table) = (tables.n, &tables.inverse);
    let n_inverse = root(k, tables.n_inverse);
    let (first, passes) = twiddles::passes(n);
    let last = n == BLOCK;
    for (b, block) in blocks(data).iter_mut().enumerate() {
        let v = k.transpose(each8!(k, read, load_block(k, block)));
        let v = k.transpose(inverse8(k, v, &block_roots(k, table, n / BLOCK + b)));
        let v = inverse8(k, v, &roots(k, table, n / BLOCK, b));
        store_block(k, block, if last { each8!(k, scale, v, n_inverse) } else { v });
    }
    for m in passes.rev() {
        for (i, group) in data.chunks_exact_mut(n / m).enumerate() {
            let w = roots(k, table, m, i);
            let mut parts = parts(group);
            for at in 0..parts[0].len() {
                let v = inverse8(k, load8(k, &parts, at), &w);
                store8(k, &mut parts, at, if m == 1 { each8!(k, scale, v, n_inverse) } else { v });
            }
        }
    }
    // At most two layers are left: values double from 8 p to 32 p.
    let (mut m, mut log_bound) = (first, 3);
    while m > 1 {
        m /= 2;
        let bound = k.bound(log_bound);
        for (i, group) in data.chunks_exact_mut(n / m).enumerate() {
            let w = root(k, table.tree[m + i]);
            let [top, bottom] = parts(group);
            for (top, bottom) in top.iter_mut().zip(bottom) {
                let [mut u, mut v] = k.inverse(bound, k.settle(k.load(top)), k.settle(k.load(bottom)), w);
                if m == 1 {
                    [u, v] = [k.scale(u, n_inverse), k.scale(v, n_inverse)];
                }
                k.store(top, u);
                k.store(bottom, v);
            }
        }
        log_bound += 1;
    }
}

/// [`NttBackend::add_signed`].
#[inline(always)]
pub(super) fn add_signed<K: Kernel>(k: K, tables: &Tables<K::Word>, x: &mut [u64], e: &[i64]) {
    assert!(x.len() == tables.n && e.len() == tables.n);
    for (x, e) in x.as_chunks_mut().0.iter_mut().zip(e.as_chunks().0) {
        k.store(x, k.finish(k.add(k.read(k.load(x)), k.signed(e))));
    }
}

/// [`NttBackend::pointwise`].
#[inline(always)]
pub(super) fn pointwise<K: Kernel>(k: K, tables: &Tables<K::Word>, a: &mut [u64], b: &[u64]) {
    assert!(a.len() == tables.n && b.len() == tables.n);
    for (a, b) in a.as_chunks_mut().0.iter_mut().zip(b.as_chunks().0) {
        k.store(a, k.product(k.multiply(k.read(k.load(a)), k.read(k.load(b)))));
    }
}

/// [`NttBackend::scale`]. Here `factor` is c with the second number by which the kernel multiplies.
#[inline(always)]
pub(super) fn scale<K: Kernel>(k: K, tables: &Tables<K::Word>, a: &mut [u64], factor: [K::Word; 2]) {
    assert_eq!(a.len(), tables.n);
    let factor = root(k, factor);
    for a in a.as_chunks_mut().0 {
        k.store(a, k.scale(k.read(k.load(a)), factor));
    }
}

/// [`NttBackend::butterfly`].
#[inline(always)]
pub(super) fn butterfly<K: Kernel>(k: K, tables: &Tables<K::Word>, x: &mut [u64], y: &mut [u64], m: &[u64]) {
    assert!(x.len() == tables.n && y.len() == tables.n && m.len() == tables.n);
    for ((x, y), m) in x.as_chunks_mut().0.iter_mut().zip(y.as_chunks_mut().0).zip(m.as_chunks().0) {
        let r = k.multiply(k.read(k.load(y)), k.load(m));
        let [sum, difference] = k.sums(k.read(k.load(x)), r);
        k.store(x, sum);
        k.store(y, difference);
    }
}

/// Implements methods of a [`Kernel`] by expressions that may call functions of its instruction set.
macro_rules! methods {
    ($($(#[$doc:meta])* fn $name:ident($self:ident $(, $arg:ident: $ty:ty)*) -> $out:ty $body:block)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        fn $name($self, $($arg: $ty),*) -> $out {
            // SAFETY: a kernel is made by a function that enables its instructions, hence only where they exist.
            unsafe { $body }
        }
    )*};
}
pub(super) use methods;

/// Implements [`NttBackend`] for `$name`, a type with `tables` that its `new` makes only where the processor has
/// `$features`. `$with!(this, k => body)` evaluates the body with a kernel k, inside of a function that enables them.
/// The type has methods `sum_of_products` and `tiles` that need them too, and takes `$weight_words` words per weight.
/// `tiles::<T, V>` adds the products with T columns of weights, V vectors at a time.
macro_rules! backend {
    ($name:ident, $title:literal, $features:literal, $with:ident, $weight_words:expr) => {
        impl $crate::ntt::NttBackend for $name {
            fn name(&self) -> &'static str {
                $title
            }

            fn modulus(&self) -> &$crate::modulus::Modulus {
                &self.tables.modulus
            }

            fn weight_words(&self) -> usize {
                $weight_words
            }

            fn scale(&self, a: &mut [u64], c: u64) {
                #[target_feature(enable = $features)]
                fn run(this: &$name, a: &mut [u64], c: u64) {
                    let p = this.tables.modulus.value();
                    assert!(c < p);
                    $with!(this, k => driver::scale(k, &this.tables, a, factor(p, c)))
                }
                // SAFETY: `new` found the features.
                unsafe { run(self, a, c) }
            }

            driver::backend! {@driver $name $features $with;
                fn fwd(poly: &mut [u64]) = driver::forward;
                fn fwd_signed(out: &mut [u64], signed: &[i64]) = driver::forward_signed;
                fn fwd_factor(out: &mut [u64], signed: &[i64]) = driver::forward_factor;
                fn weigh(signed: &[i64], scratch: &mut [u64], out: &mut [u64], pitch: usize) = driver::weigh;
                fn add_signed(x: &mut [u64], e: &[i64]) = driver::add_signed;
                fn inv(poly: &mut [u64]) = driver::inverse;
                fn factor(poly: &mut [u64]) = driver::factor;
                fn butterfly(x: &mut [u64], y: &mut [u64], m: &[u64]) = driver::butterfly;
                fn pointwise(a: &mut [u64], b: &[u64]) = driver::pointwise;
            }

            fn dot(&self, sum: &mut [u64], a: &[&[u64]], b: &[&[u64]]) {
                // SAFETY: `new` found the features.
                unsafe { self.sum_of_products(sum, a, b) }
            }

            fn matmul(&self, a: &[u64], products: &mut [$crate::ntt::Product<'_>]) {
                for $crate::ntt::Product { sums, weights } in products {
                    let lanes = a.len() / (weights.len() / ($weight_words * $crate::ntt::TILES));
                    // A few vectors share the reading of weights where tiles are few.
                    // SAFETY: `new` found the features.
                    unsafe {
                        match sums.len() / lanes {
                            1 => self.tiles::<1, 2>(sums, a, weights),
                            2 => self.tiles::<2, 2>(sums, a, weights),
                            3 => self.tiles::<3, 2>(sums, a, weights),
                            4 => self.tiles::<4, 2>(sums, a, weights),
                            5 => self.tiles::<5, 1>(sums, a, weights),
                            6 => self.tiles::<6, 1>(sums, a, weights),
                            7 => self.tiles::<7, 1>(sums, a, weights),
                            _ => self.tiles::<8, 1>(sums, a, weights),
                        }
                    }
                }
            }
        }
    };
    (@driver $name:ident $features:literal $with:ident;
     $(fn $method:ident($($arg:ident: $ty:ty),*) = $driver:expr;)*) => {$(
        fn $method(&self, $($arg: $ty),*) {
            #[target_feature(enable = $features)]
            fn run(this: &$name, $($arg: $ty),*) {
                $with!(this, k => $driver(k, &this.tables, $($arg),*))
            }
            // SAFETY: `new` found the features.
            unsafe { run(self, $($arg),*) }
        }
    )*};
}
pub(super) use backend;
