//! The layers. Down to groups of 64 coefficients a pass takes two or three of them on four or eight vectors. The last
//! six are three passes of two layers over a few blocks at a time: results are far from their use, as the chain of a
//! product is longer than what a processor looks ahead.

use super::*;
use crate::ntt::driver::parts;

/// Coefficients of a block: its last six layers are taken together.
const BLOCK: usize = 64;
/// How a pass takes what it loads: as it is; as words below p; centred; both.
const PLAIN: u8 = 0;
const WORDS: u8 = 1;
const CENTRED: u8 = 2;

/// Layers of the passes before the blocks.
fn passes(n: usize) -> &'static [u32] {
    const PASSES: [&[u32]; 9] = [&[], &[1], &[2], &[3], &[2, 2], &[2, 3], &[3, 3], &[2, 2, 3], &[2, 3, 3]];
    PASSES[(n / BLOCK).trailing_zeros() as usize]
}

/// A value as a pass takes it.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn take<const HOW: u8>(prime: Prime, words: &Quad) -> __m256d {
    let mut x = load(words);
    if HOW & WORDS != 0 {
        x = from_words(x);
    }
    if HOW & CENTRED != 0 { centre(prime, x) } else { x }
}

/// Products of two values by roots of their own, written in turn.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn multiply2(prime: Prime, v: [__m256d; 2], w: Root, x: Root) -> [__m256d; 2] {
    let q = [rounded_product(prime, v[0], w[1]), rounded_product(prime, v[1], x[1])];
    let h = [_mm256_mul_pd(v[0], w[0]), _mm256_mul_pd(v[1], x[0])];
    let l = [_mm256_fmsub_pd(v[0], w[0], h[0]), _mm256_fmsub_pd(v[1], x[0], h[1])];
    let r = [_mm256_fnmadd_pd(q[0], prime.p, h[0]), _mm256_fnmadd_pd(q[1], prime.p, h[1])];
    [_mm256_add_pd(r[0], l[0]), _mm256_add_pd(r[1], l[1])]
}

/// `(u + v w, u - v w)`, twice.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn forward2(prime: Prime, u: [__m256d; 2], v: [__m256d; 2], w: Root, x: Root) -> [[__m256d; 2]; 2] {
    let r = multiply2(prime, v, w, x);
    let sums = [_mm256_add_pd(u[0], r[0]), _mm256_add_pd(u[1], r[1])];
    [sums, [_mm256_sub_pd(u[0], r[0]), _mm256_sub_pd(u[1], r[1])]]
}

/// `(u + v, (u - v) w)`, twice.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn inverse2(prime: Prime, u: [__m256d; 2], v: [__m256d; 2], w: Root, x: Root) -> [[__m256d; 2]; 2] {
    let sums = [_mm256_add_pd(u[0], v[0]), _mm256_add_pd(u[1], v[1])];
    [sums, multiply2(prime, [_mm256_sub_pd(u[0], v[0]), _mm256_sub_pd(u[1], v[1])], w, x)]
}

/// Two forward layers over four vectors.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn forward4(prime: Prime, [v0, v1, v2, v3]: [__m256d; 4], [w0, w1, w2]: [Root; 3]) -> [__m256d; 4] {
    let [[v0, v1], [v2, v3]] = forward2(prime, [v0, v1], [v2, v3], w0, w0);
    let [[v0, v2], [v1, v3]] = forward2(prime, [v0, v2], [v1, v3], w1, w2);
    [v0, v1, v2, v3]
}

/// Two inverse layers over four vectors; the first is only added up.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn inverse4(prime: Prime, [v0, v1, v2, v3]: [__m256d; 4], [w0, w1, w2]: [Root; 3]) -> [__m256d; 4] {
    let [[v0, v2], [v1, v3]] = inverse2(prime, [v0, v2], [v1, v3], w1, w2);
    let [[v0, v1], [v2, v3]] = inverse2(prime, [v0, v1], [v2, v3], w0, w0);
    [v0, v1, v2, v3]
}

/// The roots of two layers from group `at` of the first on.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn roots4(tree: &[[f64; 2]], at: usize) -> [Root; 3] {
    [splat(tree[at]), splat(tree[2 * at]), splat(tree[2 * at + 1])]
}

/// A layer on the group at index `at`.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn forward_pass1<const HOW: u8>(prime: Prime, tree: &[[f64; 2]], group: &mut [u64], at: usize) {
    let w = splat(tree[at]);
    let [p0, p1] = parts(group);
    for i in (0..p0.len() & !1).step_by(2) {
        let u = [take::<HOW>(prime, &p0[i]), take::<HOW>(prime, &p0[i + 1])];
        let v = [take::<HOW>(prime, &p1[i]), take::<HOW>(prime, &p1[i + 1])];
        let [u, v] = forward2(prime, u, v, w, w);
        store(&mut p0[i], u[0]);
        store(&mut p0[i + 1], u[1]);
        store(&mut p1[i], v[0]);
        store(&mut p1[i + 1], v[1]);
    }
}

/// Two layers on the group at index `at`.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn forward_pass2<const HOW: u8>(prime: Prime, tree: &[[f64; 2]], group: &mut [u64], at: usize) {
    let w = roots4(tree, at);
    let [p0, p1, p2, p3] = parts(group);
    for (((p0, p1), p2), p3) in p0.iter_mut().zip(p1).zip(p2).zip(p3) {
        let (v0, v1) = (take::<HOW>(prime, p0), take::<HOW>(prime, p1));
        let (v2, v3) = (take::<HOW>(prime, p2), take::<HOW>(prime, p3));
        let [v0, v1, v2, v3] = forward4(prime, [v0, v1, v2, v3], w);
        store(p0, v0);
        store(p1, v1);
        store(p2, v2);
        store(p3, v3);
    }
}

/// Three layers on the group at index `at`. Roots are loaded where they are used: sixteen registers hold no more.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn forward_pass3<const HOW: u8>(prime: Prime, tree: &[[f64; 2]], group: &mut [u64], at: usize) {
    let (top, middle, bottom) = (&tree[at], &tree[2 * at..2 * at + 2], &tree[4 * at..4 * at + 4]);
    let [p0, p1, p2, p3, p4, p5, p6, p7] = parts(group);
    for i in 0..p0.len() {
        let (v0, v1) = (take::<HOW>(prime, &p0[i]), take::<HOW>(prime, &p1[i]));
        let (v2, v3) = (take::<HOW>(prime, &p2[i]), take::<HOW>(prime, &p3[i]));
        let (v4, v5) = (take::<HOW>(prime, &p4[i]), take::<HOW>(prime, &p5[i]));
        let (v6, v7) = (take::<HOW>(prime, &p6[i]), take::<HOW>(prime, &p7[i]));
        let w = splat(*top);
        let [[v0, v1], [v4, v5]] = forward2(prime, [v0, v1], [v4, v5], w, w);
        let [[v2, v3], [v6, v7]] = forward2(prime, [v2, v3], [v6, v7], w, w);
        let w = splat(middle[0]);
        let [[v0, v1], [v2, v3]] = forward2(prime, [v0, v1], [v2, v3], w, w);
        let w = splat(middle[1]);
        let [[v4, v5], [v6, v7]] = forward2(prime, [v4, v5], [v6, v7], w, w);
        let [[v0, v2], [v1, v3]] = forward2(prime, [v0, v2], [v1, v3], splat(bottom[0]), splat(bottom[1]));
        let [[v4, v6], [v5, v7]] = forward2(prime, [v4, v6], [v5, v7], splat(bottom[2]), splat(bottom[3]));
        store(&mut p0[i], v0);
        store(&mut p1[i], v1);
        store(&mut p2[i], v2);
        store(&mut p3[i], v3);
        store(&mut p4[i], v4);
        store(&mut p5[i], v5);
        store(&mut p6[i], v6);
        store(&mut p7[i], v7);
    }
}

/// The passes of `layers` layers on all groups of `group` coefficients, the first at index `at`.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn forward_groups<const HOW: u8>(
    prime: Prime,
    tree: &[[f64; 2]],
    data: &mut [u64],
    group: usize,
    at: usize,
    layers: u32,
) {
    for (i, group) in data.chunks_exact_mut(group).enumerate() {
        match layers {
            1 => forward_pass1::<HOW>(prime, tree, group, at + i),
            2 => forward_pass2::<HOW>(prime, tree, group, at + i),
            _ => forward_pass3::<HOW>(prime, tree, group, at + i),
        }
    }
}

/// The last six layers of blocks, the first at index `at`; as factors or as words.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn forward_blocks<const HOW: u8, const FACTOR: bool>(prime: Prime, roots: &Roots, data: &mut [u64], at: usize) {
    for (i, block) in data.chunks_exact_mut(BLOCK).enumerate() {
        forward_pass2::<HOW>(prime, &roots.tree, block, at + i);
    }
    for (i, group) in data.as_chunks_mut().0.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let v = [load(&group[0]), load(&group[1]), load(&group[2]), load(&group[3])];
        let [v0, v1, v2, v3] = forward4(prime, v, roots4(&roots.tree, 4 * at + i));
        store(&mut group[0], v0);
        store(&mut group[1], v1);
        store(&mut group[2], v2);
        store(&mut group[3], v3);
    }
    for (group, w) in data.as_chunks_mut().0.as_chunks_mut::<4>().0.iter_mut().zip(&roots.lanes[4 * at..]) {
        let [v0, v1, v2, v3] = transpose([load(&group[0]), load(&group[1]), load(&group[2]), load(&group[3])]);
        let w = [
            [doubles(&w[0][0]), doubles(&w[0][1])],
            [doubles(&w[1][0]), doubles(&w[1][1])],
            [doubles(&w[2][0]), doubles(&w[2][1])],
        ];
        let [v0, v1, v2, v3] = forward4(prime, [v0, v1, v2, v3], w);
        let v = if FACTOR {
            [centre(prime, v0), centre(prime, v1), centre(prime, v2), centre(prime, v3)]
        } else if HOW & CENTRED == 0 {
            [floored(prime, v0), floored(prime, v1), floored(prime, v2), floored(prime, v3)]
        } else {
            [canonical(prime, v0), canonical(prime, v1), canonical(prime, v2), canonical(prime, v3)]
        };
        let [v0, v1, v2, v3] = transpose(v);
        store(&mut group[0], v0);
        store(&mut group[1], v1);
        store(&mut group[2], v2);
        store(&mut group[3], v3);
    }
}

/// An inverse pass of one layer, the last of a transform: values are multiplied by `last` and lifted.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn inverse_pass1<const HOW: u8>(prime: Prime, tree: &[[f64; 2]], group: &mut [u64], at: usize, last: Root) {
    let w = splat(tree[at]);
    let [p0, p1] = parts(group);
    for i in (0..p0.len() & !1).step_by(2) {
        let u = [take::<HOW>(prime, &p0[i]), take::<HOW>(prime, &p0[i + 1])];
        let v = [take::<HOW>(prime, &p1[i]), take::<HOW>(prime, &p1[i + 1])];
        let [u, v] = inverse2(prime, u, v, w, w);
        let (u, v) = (multiply2(prime, u, last, last), multiply2(prime, v, last, last));
        store(&mut p0[i], lifted(prime, u[0]));
        store(&mut p0[i + 1], lifted(prime, u[1]));
        store(&mut p1[i], lifted(prime, v[0]));
        store(&mut p1[i + 1], lifted(prime, v[1]));
    }
}

/// Two inverse layers; in the last pass the results are multiplied by `last` and lifted.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn inverse_pass2<const HOW: u8, const LAST: bool>(
    prime: Prime,
    tree: &[[f64; 2]],
    group: &mut [u64],
    at: usize,
    last: Root,
) {
    let w = roots4(tree, at);
    let [p0, p1, p2, p3] = parts(group);
    for (((p0, p1), p2), p3) in p0.iter_mut().zip(p1).zip(p2).zip(p3) {
        let (v0, v1) = (take::<HOW>(prime, p0), take::<HOW>(prime, p1));
        let (v2, v3) = (take::<HOW>(prime, p2), take::<HOW>(prime, p3));
        let [v0, v1, v2, v3] = inverse4(prime, [v0, v1, v2, v3], w);
        if LAST {
            let ([v0, v1], [v2, v3]) =
                (multiply2(prime, [v0, v1], last, last), multiply2(prime, [v2, v3], last, last));
            store(p0, lifted(prime, v0));
            store(p1, lifted(prime, v1));
            store(p2, lifted(prime, v2));
            store(p3, lifted(prime, v3));
        } else {
            store(p0, if HOW == PLAIN { centre(prime, v0) } else { v0 });
            store(p1, v1);
            store(p2, v2);
            store(p3, v3);
        }
    }
}

/// Three inverse layers; in the last pass the results are multiplied by `last` and lifted.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn inverse_pass3<const HOW: u8, const LAST: bool>(
    prime: Prime,
    tree: &[[f64; 2]],
    group: &mut [u64],
    at: usize,
    last: Root,
) {
    let (top, middle, bottom) = (&tree[at], &tree[2 * at..2 * at + 2], &tree[4 * at..4 * at + 4]);
    let [p0, p1, p2, p3, p4, p5, p6, p7] = parts(group);
    for i in 0..p0.len() {
        let (v0, v1) = (take::<HOW>(prime, &p0[i]), take::<HOW>(prime, &p1[i]));
        let (v2, v3) = (take::<HOW>(prime, &p2[i]), take::<HOW>(prime, &p3[i]));
        let (v4, v5) = (take::<HOW>(prime, &p4[i]), take::<HOW>(prime, &p5[i]));
        let (v6, v7) = (take::<HOW>(prime, &p6[i]), take::<HOW>(prime, &p7[i]));
        let [[v0, v2], [v1, v3]] = inverse2(prime, [v0, v2], [v1, v3], splat(bottom[0]), splat(bottom[1]));
        let [[v4, v6], [v5, v7]] = inverse2(prime, [v4, v6], [v5, v7], splat(bottom[2]), splat(bottom[3]));
        let w = splat(middle[0]);
        let [[v0, v1], [v2, v3]] = inverse2(prime, [v0, v1], [v2, v3], w, w);
        let w = splat(middle[1]);
        let [[v4, v5], [v6, v7]] = inverse2(prime, [v4, v5], [v6, v7], w, w);
        let w = splat(*top);
        let [[v0, v1], [v4, v5]] = inverse2(prime, [v0, v1], [v4, v5], w, w);
        let [[v2, v3], [v6, v7]] = inverse2(prime, [v2, v3], [v6, v7], w, w);
        if LAST {
            let ([v0, v1], [v2, v3]) =
                (multiply2(prime, [v0, v1], last, last), multiply2(prime, [v2, v3], last, last));
            let ([v4, v5], [v6, v7]) =
                (multiply2(prime, [v4, v5], last, last), multiply2(prime, [v6, v7], last, last));
            store(&mut p0[i], lifted(prime, v0));
            store(&mut p1[i], lifted(prime, v1));
            store(&mut p2[i], lifted(prime, v2));
            store(&mut p3[i], lifted(prime, v3));
            store(&mut p4[i], lifted(prime, v4));
            store(&mut p5[i], lifted(prime, v5));
            store(&mut p6[i], lifted(prime, v6));
            store(&mut p7[i], lifted(prime, v7));
        } else {
            store(&mut p0[i], if HOW == PLAIN { centre(prime, v0) } else { v0 });
            store(&mut p1[i], v1);
            store(&mut p2[i], v2);
            store(&mut p3[i], v3);
            store(&mut p4[i], v4);
            store(&mut p5[i], v5);
            store(&mut p6[i], v6);
            store(&mut p7[i], v7);
        }
    }
}

/// The first six inverse layers of blocks of words, the first at index `at`. HOW is that of later passes.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn inverse_blocks<const HOW: u8, const LAST: bool>(
    prime: Prime,
    roots: &Roots,
    data: &mut [u64],
    at: usize,
    last: Root,
) {
    for (group, w) in data.as_chunks_mut().0.as_chunks_mut::<4>().0.iter_mut().zip(&roots.lanes[4 * at..]) {
        let [v0, v1, v2, v3] = transpose([load(&group[0]), load(&group[1]), load(&group[2]), load(&group[3])]);
        let mut v = [from_words(v0), from_words(v1), from_words(v2), from_words(v3)];
        if HOW & CENTRED != 0 {
            v = [centre(prime, v[0]), centre(prime, v[1]), centre(prime, v[2]), centre(prime, v[3])];
        }
        let w = [
            [doubles(&w[0][0]), doubles(&w[0][1])],
            [doubles(&w[1][0]), doubles(&w[1][1])],
            [doubles(&w[2][0]), doubles(&w[2][1])],
        ];
        let [v0, v1, v2, v3] = inverse4(prime, v, w);
        let v0 = if HOW == PLAIN { centre(prime, v0) } else { v0 };
        let [v0, v1, v2, v3] = transpose([v0, v1, v2, v3]);
        store(&mut group[0], v0);
        store(&mut group[1], v1);
        store(&mut group[2], v2);
        store(&mut group[3], v3);
    }
    for (i, group) in data.as_chunks_mut().0.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let v = [take::<HOW>(prime, &group[0]), take::<HOW>(prime, &group[1])];
        let v = [v[0], v[1], take::<HOW>(prime, &group[2]), take::<HOW>(prime, &group[3])];
        let [v0, v1, v2, v3] = inverse4(prime, v, roots4(&roots.tree, 4 * at + i));
        store(&mut group[0], if HOW == PLAIN { centre(prime, v0) } else { v0 });
        store(&mut group[1], v1);
        store(&mut group[2], v2);
        store(&mut group[3], v3);
    }
    for (i, block) in data.chunks_exact_mut(BLOCK).enumerate() {
        inverse_pass2::<HOW, LAST>(prime, &roots.tree, block, at + i, last);
    }
}

/// The passes of `layers` inverse layers on all groups of `group` coefficients, the first at index `at`.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn inverse_groups<const HOW: u8, const LAST: bool>(
    prime: Prime,
    tree: &[[f64; 2]],
    data: &mut [u64],
    group: usize,
    layers: u32,
    last: Root,
) {
    let at = data.len() / group;
    for (i, group) in data.chunks_exact_mut(group).enumerate() {
        match layers {
            1 => inverse_pass1::<HOW>(prime, tree, group, at + i, last),
            2 => inverse_pass2::<HOW, LAST>(prime, tree, group, at + i, last),
            _ => inverse_pass3::<HOW, LAST>(prime, tree, group, at + i, last),
        }
    }
}

impl Float256Ntt {
    /// [`NttBackend::fwd`].
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn forward(&self, poly: &mut [u64]) {
        assert_eq!(poly.len(), self.n);
        match self.wide {
            false => self.layers::<WORDS, PLAIN, false>(poly, 1),
            true => self.layers::<{ WORDS | CENTRED }, CENTRED, false>(poly, 1),
        }
    }

    /// [`NttBackend::fwd_signed`].
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn forward_signed(&self, out: &mut [u64], signed: &[i64]) {
        assert_eq!(out.len(), self.n);
        let start = self.spread(out, signed);
        match self.wide {
            false => self.layers::<PLAIN, PLAIN, false>(out, start),
            true => self.layers::<PLAIN, CENTRED, false>(out, start),
        }
    }

    /// [`NttBackend::fwd_factor`].
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn forward_factor(&self, out: &mut [u64], signed: &[i64]) {
        let start = self.spread(out, signed);
        match self.wide {
            false => self.layers::<PLAIN, PLAIN, true>(out, start),
            true => self.layers::<PLAIN, CENTRED, true>(out, start),
        }
    }

    /// The coefficients given, centred, after the layers that only copy; the number of groups of the next one.
    #[target_feature(enable = "avx2,fma")]
    fn spread(&self, out: &mut [u64], signed: &[i64]) -> usize {
        let (n, prime) = (out.len(), self.prime());
        assert!(n.is_power_of_two() && (BLOCK..=self.n).contains(&n));
        assert!(signed.len() <= n && signed.len().is_multiple_of(QUAD));
        for (out, signed) in out.as_chunks_mut().0.iter_mut().zip(signed.as_chunks().0) {
            store(out, centre(prime, from_signed(prime, signed)));
        }
        // A layer maps (u, 0) to (u, u).
        let (mut start, mut at) = (1, 1);
        for layers in passes(n) {
            at <<= layers;
            if n / at >= signed.len() {
                start = at;
            }
        }
        let group = n / start;
        out[signed.len().min(group)..group].fill(0);
        for copy in 1..start {
            out.copy_within(..group, copy * group);
        }
        start
    }

    /// The forward layers from that of `start` groups on, which takes its values in the way FIRST; blocks take them
    /// in the way BLOCKS. The length of `data` names the subring.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn layers<const FIRST: u8, const BLOCKS: u8, const FACTOR: bool>(&self, data: &mut [u64], start: usize) {
        let (n, prime, roots) = (data.len(), self.prime(), &self.forward);
        let (mut at, mut first) = (1, true);
        let passes = passes(n);
        let Some((&last, before)) = passes.split_last() else {
            return match FIRST {
                PLAIN => forward_blocks::<BLOCKS, FACTOR>(prime, roots, data, 1),
                _ => forward_blocks::<FIRST, FACTOR>(prime, roots, data, 1),
            };
        };
        for &layers in before {
            if at >= start {
                match first {
                    true => forward_groups::<FIRST>(prime, &roots.tree, data, n / at, at, layers),
                    false => forward_groups::<PLAIN>(prime, &roots.tree, data, n / at, at, layers),
                }
                first = false;
            }
            at <<= layers;
        }
        // The last pass and the blocks within it while they are near.
        for (i, group) in data.chunks_exact_mut(n / at).enumerate() {
            if at >= start {
                match first {
                    true => forward_groups::<FIRST>(prime, &roots.tree, group, n / at, at + i, last),
                    false => forward_groups::<PLAIN>(prime, &roots.tree, group, n / at, at + i, last),
                }
            }
            forward_blocks::<BLOCKS, FACTOR>(prime, roots, group, (at + i) << last);
        }
    }

    /// [`NttBackend::inv`].
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn backward(&self, poly: &mut [u64]) {
        assert_eq!(poly.len(), self.n);
        match self.wide {
            false => self.inverse_layers::<PLAIN>(poly),
            true => self.inverse_layers::<CENTRED>(poly),
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn inverse_layers<const HOW: u8>(&self, data: &mut [u64]) {
        let (n, prime, roots, scale) = (self.n, self.prime(), &self.inverse, splat(self.n_inverse));
        let Some((&inner, outer)) = passes(n).split_last() else {
            return inverse_blocks::<HOW, true>(prime, roots, data, 1, scale);
        };
        let mut group = BLOCK << inner;
        for (i, part) in data.chunks_exact_mut(group).enumerate() {
            let at = n / group + i;
            inverse_blocks::<HOW, false>(prime, roots, part, at << inner, scale);
            match (inner, outer.is_empty()) {
                (1, _) => inverse_pass1::<HOW>(prime, &roots.tree, part, at, scale),
                (2, true) => inverse_pass2::<HOW, true>(prime, &roots.tree, part, at, scale),
                (2, false) => inverse_pass2::<HOW, false>(prime, &roots.tree, part, at, scale),
                (_, true) => inverse_pass3::<HOW, true>(prime, &roots.tree, part, at, scale),
                (_, false) => inverse_pass3::<HOW, false>(prime, &roots.tree, part, at, scale),
            }
        }
        for &layers in outer.iter().rev() {
            group <<= layers;
            match group == n {
                true => inverse_groups::<HOW, true>(prime, &roots.tree, data, group, layers, scale),
                false => inverse_groups::<HOW, false>(prime, &roots.tree, data, group, layers, scale),
            }
        }
    }
}
