//! The layers. A pass goes over a group once and computes one, two or three layers of it. The last six layers, those
//! of blocks of 64 coefficients, are three passes of two over a few blocks at a time, because the chain of a product
//! is longer than what a processor looks ahead.
//!
//! ```text
//! a pass of two layers, parts p0..p3 of a group          the last two layers of 16 coefficients
//!
//! p0  o---o-------o---o  x0    one vector of each        o o o o      a row a vector; transposed, a layer
//! p1  o---|-o---o-|---o  x1    part at a time            o o o o      is between vectors again,
//! p2  o---o-|---|-o---o  x2                              o o o o      with a root for every lane
//! p3  o-----o---o-----o  x3                              o o o o
//!      first     second
//! ```
//!
//! Forward, the passes of [`passes`] come first and the blocks last; inverse, the other way round.

use super::*;
use crate::ntt::driver::parts;

/// Coefficients of a block: its six layers are taken together.
const BLOCK: usize = 64;

/// For each pass before the blocks, the number of its layers.
fn passes(n: usize) -> &'static [u32] {
    const PASSES: [&[u32]; 9] = [&[], &[1], &[2], &[3], &[2, 2], &[2, 3], &[3, 3], &[2, 2, 3], &[2, 3, 3]];
    PASSES[(n / BLOCK).trailing_zeros() as usize]
}

/// The last operation of a pass on its results.
enum End {
    /// Results stay as they are.
    Keep,
    /// The first result, which inverse layers only add up, is centred.
    CentreFirst,
    /// Results are centred, which makes them factors.
    Centre,
    /// Results become residues of a narrow modulus.
    Floor,
    /// Results become residues of a wide modulus.
    Reduce,
    /// Results are multiplied by the inverse of N and become residues.
    Scale,
}

/// In what form a pass loads and stores numbers. They are unchanged doubles, unless the constants say otherwise.
trait Pass {
    /// Whether the pass loads words below p.
    const WORDS: bool = false;
    /// Whether the pass centres what it loads.
    const CENTRED: bool = false;
    const END: End = End::Keep;
}

/// The passes for narrow and for wide moduli. Forward, there are four kinds of passes: the first one, which loads
/// words; those between; the first one of blocks; and the last one, which stores residues. Inverse, there are three:
/// the first one, which loads words; those between; and the last one.
macro_rules! kinds {
    ($($name:ident { $($constant:ident = $value:expr),* })*) => {$(
        struct $name;
        impl Pass for $name { $(const $constant: kinds!(@$constant) = $value;)* }
    )*};
    (@END) => { End };
    (@$flag:ident) => { bool };
}

kinds! {
    Plain {}
    Centred { CENTRED = true }
    Factors { END = End::Centre }
    NarrowWords { WORDS = true }
    NarrowResidues { END = End::Floor }
    NarrowLowest { WORDS = true, END = End::CentreFirst }
    NarrowInverse { END = End::CentreFirst }
    NarrowLast { END = End::Scale }
    WideWords { WORDS = true, CENTRED = true }
    WideResidues { END = End::Reduce }
    WideLast { CENTRED = true, END = End::Scale }
}

/// Brings a loaded value into the form in which a pass computes.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn take<P: Pass>(prime: Prime, mut x: __m256d) -> __m256d {
    if P::WORDS {
        x = from_words(x);
    }
    if P::CENTRED { centre(prime, x) } else { x }
}

/// Two products at once: `v[0]` by the root w and `v[1]` by the root x. Their instructions are interleaved.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn multiply2(prime: Prime, v: [__m256d; 2], w: Root, x: Root) -> [__m256d; 2] {
    let q = [rounded_product(prime, v[0], w[1]), rounded_product(prime, v[1], x[1])];
    let h = [_mm256_mul_pd(v[0], w[0]), _mm256_mul_pd(v[1], x[0])];
    let l = [_mm256_fmsub_pd(v[0], w[0], h[0]), _mm256_fmsub_pd(v[1], x[0], h[1])];
    let r = [_mm256_fnmadd_pd(q[0], prime.p, h[0]), _mm256_fnmadd_pd(q[1], prime.p, h[1])];
    [_mm256_add_pd(r[0], l[0]), _mm256_add_pd(r[1], l[1])]
}

/// A layer between the vectors u and v, for two pairs of them: `(u + v w, u - v w)`, or `(u + v, (u - v) w)` if
/// INVERSE.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn layer<const INVERSE: bool>(prime: Prime, u: [__m256d; 2], v: [__m256d; 2], w: Root, x: Root) -> [[__m256d; 2]; 2] {
    let r = if INVERSE { v } else { multiply2(prime, v, w, x) };
    let sums = [_mm256_add_pd(u[0], r[0]), _mm256_add_pd(u[1], r[1])];
    let differences = [_mm256_sub_pd(u[0], r[0]), _mm256_sub_pd(u[1], r[1])];
    [sums, if INVERSE { multiply2(prime, differences, w, x) } else { differences }]
}

/// Two layers over four vectors.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn layers4<const INVERSE: bool>(prime: Prime, v: [__m256d; 4], [w0, w1, w2]: [Root; 3]) -> [__m256d; 4] {
    let wide = |[v0, v1, v2, v3]: [__m256d; 4]| {
        let [[v0, v1], [v2, v3]] = layer::<INVERSE>(prime, [v0, v1], [v2, v3], w0, w0);
        [v0, v1, v2, v3]
    };
    let near = |[v0, v1, v2, v3]: [__m256d; 4]| {
        let [[v0, v2], [v1, v3]] = layer::<INVERSE>(prime, [v0, v2], [v1, v3], w1, w2);
        [v0, v1, v2, v3]
    };
    if INVERSE { wide(near(v)) } else { near(wide(v)) }
}

/// Three layers over eight vectors. The root of the first layer is at index `at` of `tree`. Roots are loaded only
/// where they are used, because the sixteen registers hold no more.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn layers8<const INVERSE: bool>(prime: Prime, v: [__m256d; 8], tree: &[[f64; 2]], at: usize) -> [__m256d; 8] {
    let (middle, bottom) = (&tree[2 * at..2 * at + 2], &tree[4 * at..4 * at + 4]);
    let wide = |[v0, v1, v2, v3, v4, v5, v6, v7]: [__m256d; 8]| {
        let w = splat(tree[at]);
        let [[v0, v1], [v4, v5]] = layer::<INVERSE>(prime, [v0, v1], [v4, v5], w, w);
        let [[v2, v3], [v6, v7]] = layer::<INVERSE>(prime, [v2, v3], [v6, v7], w, w);
        [v0, v1, v2, v3, v4, v5, v6, v7]
    };
    let within = |[v0, v1, v2, v3, v4, v5, v6, v7]: [__m256d; 8]| {
        let (w, x) = (splat(middle[0]), splat(middle[1]));
        let [[v0, v1], [v2, v3]] = layer::<INVERSE>(prime, [v0, v1], [v2, v3], w, w);
        let [[v4, v5], [v6, v7]] = layer::<INVERSE>(prime, [v4, v5], [v6, v7], x, x);
        [v0, v1, v2, v3, v4, v5, v6, v7]
    };
    let near = |[v0, v1, v2, v3, v4, v5, v6, v7]: [__m256d; 8]| {
        let [[v0, v2], [v1, v3]] = layer::<INVERSE>(prime, [v0, v2], [v1, v3], splat(bottom[0]), splat(bottom[1]));
        let [[v4, v6], [v5, v7]] = layer::<INVERSE>(prime, [v4, v6], [v5, v7], splat(bottom[2]), splat(bottom[3]));
        [v0, v1, v2, v3, v4, v5, v6, v7]
    };
    if INVERSE { wide(within(near(v))) } else { near(within(wide(v))) }
}

/// Applies a function of one vector to several.
macro_rules! each {
    ($function:expr, $prime:expr, $v:expr) => {{
        let mut v = $v;
        for x in &mut v {
            *x = $function($prime, *x);
        }
        v
    }};
}

/// Brings the results of a pass into the form that it stores.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn leave<P: Pass, const V: usize>(prime: Prime, mut v: [__m256d; V], scale: Root) -> [__m256d; V] {
    match P::END {
        End::Keep => v,
        End::CentreFirst => {
            v[0] = centre(prime, v[0]);
            v
        }
        End::Centre => each!(centre, prime, v),
        End::Floor => each!(floored, prime, v),
        End::Reduce => each!(canonical, prime, v),
        End::Scale => {
            for pair in v.as_chunks_mut().0 {
                *pair = multiply2(prime, *pair, scale, scale);
            }
            each!(lifted, prime, v)
        }
    }
}

/// The tables of the transforms in one direction.
struct Layers<'a, const INVERSE: bool> {
    prime: Prime,
    roots: &'a Roots,
    /// The inverse of N.
    scale: Root,
}

type Forward<'a> = Layers<'a, false>;
type Inverse<'a> = Layers<'a, true>;

impl<'a, const INVERSE: bool> Layers<'a, INVERSE> {
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn new(ntt: &Float256Ntt, roots: &'a Roots) -> Self {
        Layers { prime: ntt.prime(), roots, scale: splat(ntt.n_inverse) }
    }

    /// A pass over `group`, which is cut into V parts. `layers` computes the layers on one vector of each part.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn over<P: Pass, const V: usize>(&self, group: &mut [u64], layers: impl Fn([__m256d; V]) -> [__m256d; V]) {
        let mut parts: [&mut [Quad]; V] = parts(group);
        for i in 0..parts[0].len() {
            let mut v = [_mm256_setzero_pd(); V];
            for (v, part) in v.iter_mut().zip(&parts) {
                *v = take::<P>(self.prime, load(&part[i]));
            }
            let v = leave::<P, V>(self.prime, layers(v), self.scale);
            for (part, v) in parts.iter_mut().zip(v) {
                store(&mut part[i], v);
            }
        }
    }

    /// A pass of `layers` layers over one group. The root of its first layer is at index `at` of the tree.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn pass<P: Pass>(&self, group: &mut [u64], at: usize, layers: u32) {
        let (prime, tree) = (self.prime, &self.roots.tree[..]);
        match layers {
            1 => {
                let w = splat(tree[at]);
                // A vector twice: only transforms of 128 coefficients have this pass.
                self.over::<P, 2>(group, |[u, v]| layer::<INVERSE>(prime, [u; 2], [v; 2], w, w).map(|[x, _]| x));
            }
            2 => {
                let w = [splat(tree[at]), splat(tree[2 * at]), splat(tree[2 * at + 1])];
                self.over::<P, 4>(group, |v| layers4::<INVERSE>(prime, v, w));
            }
            _ => self.over::<P, 8>(group, |v| layers8::<INVERSE>(prime, v, tree, at)),
        }
    }

    /// The last two layers, within every 16 coefficients of blocks. The root of the first block is at index
    /// `at` of the tree.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn lanes<P: Pass>(&self, data: &mut [u64], at: usize) {
        let groups = data.as_chunks_mut().0.as_chunks_mut::<4>().0;
        for (group, w) in groups.iter_mut().zip(&self.roots.lanes[4 * at..]) {
            let v = transpose([load(&group[0]), load(&group[1]), load(&group[2]), load(&group[3])]);
            let v = each!(take::<P>, self.prime, v);
            let w = [
                [doubles(&w[0][0]), doubles(&w[0][1])],
                [doubles(&w[1][0]), doubles(&w[1][1])],
                [doubles(&w[2][0]), doubles(&w[2][1])],
            ];
            let v = leave::<P, 4>(self.prime, layers4::<INVERSE>(self.prime, v, w), self.scale);
            for (words, v) in group.iter_mut().zip(transpose(v)) {
                store(words, v);
            }
        }
    }

    /// Two layers of all groups of `size` coefficients in blocks. The root of the first block is at index `at` of the
    /// tree.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn groups<P: Pass>(&self, data: &mut [u64], size: usize, at: usize) {
        for (i, group) in data.chunks_exact_mut(size).enumerate() {
            self.pass::<P>(group, at * BLOCK / size + i, 2);
        }
    }
}

impl Forward<'_> {
    /// All layers of blocks. The root of the first block is at index `at` of the tree. F is the first pass, E the
    /// last.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn blocks<F: Pass, E: Pass>(&self, data: &mut [u64], at: usize) {
        self.groups::<F>(data, BLOCK, at);
        self.groups::<Plain>(data, BLOCK / 4, at);
        self.lanes::<E>(data, at);
    }

    /// The layers from the one with `start` groups on. F is the first pass, B the first pass of blocks, E the last
    /// pass. The length of `data` is the degree of the subring.
    #[target_feature(enable = "avx2,fma")]
    fn run<F: Pass, B: Pass, E: Pass>(&self, data: &mut [u64], start: usize) {
        let n = data.len();
        let Some((&last, before)) = passes(n).split_last() else { return self.blocks::<F, E>(data, 1) };
        let (mut at, mut first) = (1, true);
        for &layers in before {
            for (i, group) in data.chunks_exact_mut(n / at).enumerate().filter(|_| at >= start) {
                match first {
                    true => self.pass::<F>(group, at + i, layers),
                    false => self.pass::<Plain>(group, at + i, layers),
                }
            }
            first &= at < start;
            at <<= layers;
        }
        // The last pass and its blocks are taken group by group, while the group is in a cache.
        for (i, group) in data.chunks_exact_mut(n / at).enumerate() {
            match (at >= start, first) {
                (true, true) => self.pass::<F>(group, at + i, last),
                (true, false) => self.pass::<Plain>(group, at + i, last),
                (false, _) => (),
            }
            self.blocks::<B, E>(group, (at + i) << last);
        }
    }
}

impl Inverse<'_> {
    /// All layers. F is the first pass, M the passes between, L the last pass.
    #[target_feature(enable = "avx2,fma")]
    fn run<F: Pass, M: Pass, L: Pass>(&self, data: &mut [u64]) {
        let n = data.len();
        let Some((&inner, outer)) = passes(n).split_last() else {
            self.lanes::<F>(data, 1);
            self.groups::<M>(data, BLOCK / 4, 1);
            return self.groups::<L>(data, BLOCK, 1);
        };
        let mut group = BLOCK << inner;
        for (i, part) in data.chunks_exact_mut(group).enumerate() {
            let at = n / group + i;
            self.lanes::<F>(part, at << inner);
            self.groups::<M>(part, BLOCK / 4, at << inner);
            self.groups::<M>(part, BLOCK, at << inner);
            match outer.is_empty() {
                true => self.pass::<L>(part, at, inner),
                false => self.pass::<M>(part, at, inner),
            }
        }
        for &layers in outer.iter().rev() {
            group <<= layers;
            for (i, part) in data.chunks_exact_mut(group).enumerate() {
                match group == n {
                    true => self.pass::<L>(part, 1, layers),
                    false => self.pass::<M>(part, n / group + i, layers),
                }
            }
        }
    }
}

impl Float256Ntt {
    /// [`NttBackend::fwd`].
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn forward(&self, poly: &mut [u64]) {
        assert_eq!(poly.len(), self.n);
        let layers = Forward::new(self, &self.forward);
        match self.wide {
            false => layers.run::<NarrowWords, Plain, NarrowResidues>(poly, 1),
            true => layers.run::<WideWords, Centred, WideResidues>(poly, 1),
        }
    }

    /// [`NttBackend::fwd_signed`].
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn forward_signed(&self, out: &mut [u64], signed: &[i64]) {
        assert_eq!(out.len(), self.n);
        let (start, layers) = (self.spread(out, signed), Forward::new(self, &self.forward));
        match self.wide {
            false => layers.run::<Plain, Plain, NarrowResidues>(out, start),
            true => layers.run::<Plain, Centred, WideResidues>(out, start),
        }
    }

    /// [`NttBackend::fwd_factor`].
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn forward_factor(&self, out: &mut [u64], signed: &[i64]) {
        let (start, layers) = (self.spread(out, signed), Forward::new(self, &self.forward));
        match self.wide {
            false => layers.run::<Plain, Plain, Factors>(out, start),
            true => layers.run::<Plain, Centred, Factors>(out, start),
        }
    }

    /// Centres the given coefficients and writes them as if the layers that only copy had been computed. Returns the
    /// number of groups of the next layer.
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

    /// [`NttBackend::inv`].
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn backward(&self, poly: &mut [u64]) {
        assert_eq!(poly.len(), self.n);
        let layers = Inverse::new(self, &self.inverse);
        match self.wide {
            false => layers.run::<NarrowLowest, NarrowInverse, NarrowLast>(poly),
            true => layers.run::<WideWords, Centred, WideLast>(poly),
        }
    }
}
