//! The arithmetic black box: what every composite function is written over.
//!
//! A box holds words of Z_2^64 and bits that the caller cannot see, and offers a few operations on them. Composite
//! functions ([`crate::functions`]) and the ring engine are written once over [`Abb`]; three boxes run them:
//! `Clear` (one process, exact operations: the naive twin of every protocol), `TwoParty` (additive and XOR shares, the
//! product) and `Planner` (shapes only, adds up costs).
//!
//! # Words and widths
//! A word is always stored modulo 2^64. An operation that takes a `width` w looks only at the low w bits of each
//! share: narrowing is free. Its result is defined modulo 2^w (the bits above are arbitrary) unless it says otherwise.
//! "Signed w-bit value" is the representative in [-2^(w-1), 2^(w-1)).

use ndarray::ArrayD;
use net::Role;

use crate::ops::growing::{Axis, Operand};
use crate::ops::masked::table::MaskedTable;
use crate::weight::FixedWeight;
use crate::{Error, Evaluate, Tensor};

/// Local arithmetic on words: linear, so the same on shares as on values; nothing is sent.
pub trait Words: Tensor {
    /// Entrywise sum, shapes equal.
    fn plus(&self, other: &Self) -> Self;
    /// Entrywise difference, shapes equal.
    fn minus(&self, other: &Self) -> Self;
    /// Every entry times the public `factor` (modulo 2^64; cast a signed factor).
    fn times(&self, factor: u64) -> Self;
    /// Entrywise product with public factors of the same shape.
    fn times_each(&self, factors: &ArrayD<u64>) -> Self;
    /// (..., n) -> (...): sums over the last axis.
    fn sum_last(&self) -> Self;
    /// (...) -> (..., n): every entry n times.
    fn repeat_last(&self, n: usize) -> Self;
    /// Entries at the flat positions `index` of a vector: result of length `index.len()`.
    fn pick(&self, index: &[usize]) -> Self;
    /// The reverse of `pick`: a vector of `len` zeros, with entry i of `self` at position `index[i]`.
    fn place(&self, index: &[usize], len: usize) -> Self;
    /// Drops the low `bits` of words modulo 2^`width`: the result is floor(x / 2^bits) modulo 2^(width - bits), or one
    /// less on shares, whose low halves may carry.
    fn drop_low(&self, bits: u32, width: u32) -> Self;
}

/// A signed truncation with change of ring: from words modulo 2^`width` to words modulo 2^`out`.
///
/// Range: |x| < 2^(width-2). Result: x / 2^shift rounded to one of the two neighbouring integers (the floor or the
/// ceiling; exact when `shift` is 0), modulo 2^`out`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truncation {
    /// Ring of the input, 3..=64.
    pub width: u32,
    /// Bits dropped, less than `width - 1`.
    pub shift: u32,
    /// Ring of the result, 1..=64.
    pub out: u32,
}

/// A function of one variable, tabulated for evaluation on shares by look-up.
///
/// The input is a word modulo 2^(index_bits + low_bits), with shares x0 (OT sender, the server) and x1 (receiver, the
/// client). Write x_i = high_i 2^low_bits + low_i and n = high_0 + high_1 mod 2^index_bits, read as a number of
/// [-1, 2^index_bits - 1). Then x = n 2^low_bits + (low_0 + low_1), with no carry to pay for, and
///
/// f(x) = sum_k c_k(n, low_0) p_k(low_1), with p_0 = 1,
///
/// for polynomials (expand around low_0) and for exponentials (a product of powers). The sender knows low_0 and can
/// tabulate the c_k over n; the receiver knows the p_k. Inputs must lie in [0, 2^(index_bits + low_bits) - 2^low_bits);
/// other inputs give garbage, which the caller muxes away.
pub trait Table: Sync {
    /// log2 of the number of windows, 1..=8.
    fn index_bits(&self) -> u32;
    /// Bits of an input below the window index.
    fn low_bits(&self) -> u32;
    /// Ring of coefficients and result: the result is the sum modulo 2^out_width.
    fn out_width(&self) -> u32;
    /// Whether there is a constant term (k = 0).
    fn has_constant(&self) -> bool;
    /// Sizes in bits of the public-range factors p_k, k >= 1: p_k < 2^bits.
    fn factor_bits(&self) -> Vec<u32>;
    /// The factors p_k(low), k >= 1, for `low < 2^low_bits`.
    fn factors(&self, low: u64, out: &mut [u64]);
    /// The coefficients: c_0 first if there is a constant term, then c_k; for the window that begins at
    /// `window` 2^low_bits (`window` in [-1, 2^index_bits - 1)) and the sender's `low < 2^low_bits`.
    fn coefficients(&self, window: i64, low: u64, out: &mut [u64]);
}

/// A function of one variable, as a box evaluates it: which of the two follows from [`Abb::evaluation`].
#[derive(Clone, Copy, Debug)]
pub enum Tabulated<'a, T> {
    /// For look-up.
    Lookup(&'a T),
    /// For masked inputs.
    Masked(&'a MaskedTable),
}

/// Operations on hidden words and bits. Every implementation of a function over this trait runs in the clear, between
/// two parties and as a plan.
pub trait Abb: 'static {
    /// Hidden words.
    type Words: Words + 'static;
    /// Hidden bits.
    type Bits: Tensor + 'static;

    /// Whether [`visible`](Abb::visible) shows the values.
    const CLEAR: bool = false;
    /// Hidden bits about to select words once.
    type Selector;
    /// Secret permutations of the items of several rows.
    type Permutations: Clone + Send + Sync + 'static;

    /// Opens the scope `name` of the operation path.
    fn enter(&mut self, name: &str);

    /// Closes the innermost scope.
    fn leave(&mut self);

    /// Runs `steps` inside the scope `name`, which is closed on failure too.
    fn scope<T>(&mut self, name: &str, steps: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error>
    where
        Self: Sized,
    {
        self.enter(name);
        let result = steps(self);
        self.leave();
        result
    }

    /// Words with public values.
    fn public(&mut self, values: &ArrayD<u64>) -> Self::Words;

    /// Words of one public value.
    fn constant(&mut self, shape: &[usize], value: u64) -> Self::Words;

    /// x + `value` in every entry.
    fn add_public(&mut self, x: &Self::Words, value: u64) -> Self::Words;

    /// Words that `owner` knows and passes as `Some`; the other party passes `None`. Free: the owner's share is the value.
    fn input(&mut self, owner: Role, shape: &[usize], values: Option<&ArrayD<u64>>) -> Result<Self::Words, Error>;

    /// Complement of bits, free.
    fn not(&mut self, bits: &Self::Bits) -> Self::Bits;

    /// Exclusive or of bits of one shape, free.
    fn xor(&mut self, a: &Self::Bits, b: &Self::Bits) -> Self::Bits;

    /// States that |x| < 2^`bits` for words modulo 2^64. A box that sees its values checks it; the others cannot.
    fn expect_below(&mut self, x: &Self::Words, bits: u32) -> Result<(), Error> {
        let _ = (x, bits);
        Ok(())
    }

    /// The words, if the box sees its values: for studies in the clear.
    fn visible(&self, x: &Self::Words) -> Option<ArrayD<u64>> {
        let _ = x;
        None
    }

    /// Signed truncation with change of ring, see [`Truncation`].
    fn truncate(&mut self, x: &Self::Words, how: Truncation) -> Result<Self::Words, Error>;

    /// (...) -> (..., thresholds): whether the signed `width`-bit value x >= threshold, exactly, for each of up to 32
    /// public thresholds. Range: x and x - threshold are signed `width`-bit values; 2 <= width <= 64.
    fn at_least(&mut self, x: &Self::Words, thresholds: &[i64], width: u32) -> Result<Self::Bits, Error>;

    /// The largest entry of every row, exactly: rows of `lengths` (each >= 1) one after another in the vector `x` -> (rows),
    /// modulo 2^width. Range: entries, and differences of entries of a row, are signed `width`-bit values; 2 <= width <= 64.
    fn row_max(&mut self, x: &Self::Words, lengths: &[usize], width: u32) -> Result<Self::Words, Error>;

    /// Prepares `N` selections by the same bits in an exchange that waits for the bits alone; each takes one more. A
    /// [`mux`](Abb::mux) is both in a row, so this costs nothing and is shorter where other steps lie between bits and words.
    fn selectors<const N: usize>(&mut self, bits: &Self::Bits) -> Result<[Self::Selector; N], Error>;

    /// [`mux`](Abb::mux) by bits for which there is a selector.
    fn select(&mut self, selector: Self::Selector, x: &Self::Words, width: u32) -> Result<Self::Words, Error>;

    /// b ? x : 0 modulo 2^width, entrywise; shapes equal.
    fn mux(&mut self, bits: &Self::Bits, x: &Self::Words, width: u32) -> Result<Self::Words, Error>;

    /// The bits as words 0 or 1 modulo 2^width.
    fn bit_to_word(&mut self, bits: &Self::Bits, width: u32) -> Result<Self::Words, Error>;

    /// Entrywise product modulo 2^width. Error: at most 1 in the last place (see `TwoParty`).
    fn mul(&mut self, x: &Self::Words, y: &Self::Words, width: u32) -> Result<Self::Words, Error>;

    /// (rows, n) times (rows): every row times its own word, modulo 2^width. Error: a few units in the last place
    /// (see `TwoParty`).
    fn mul_rows(&mut self, x: &Self::Words, y: &Self::Words, width: u32) -> Result<Self::Words, Error>;

    /// (rows, n) -> (rows): sums of squares over the last axis modulo 2^width. Error: at most n in the last place.
    fn sum_squares(&mut self, x: &Self::Words, width: u32) -> Result<Self::Words, Error>;

    /// How functions are to be tabulated for [`Abb::evaluate`].
    fn evaluation(&self) -> Evaluate;

    /// The tabulated function of every entry, modulo the ring of its result, see [`Table`] and [`MaskedTable`].
    fn evaluate(&mut self, table: Tabulated<'_, impl Table>, x: &Self::Words) -> Result<Self::Words, Error>;

    /// Batched product (batch, m, k) x (batch, k, n) -> (batch, m, n) modulo 2^width; each word is a signed
    /// `width`-bit value. Error: a few units in the last place (see `TwoParty`).
    fn matmul(&mut self, a: &Self::Words, b: &Self::Words, width: u32) -> Result<Self::Words, Error>;

    /// [`matmul`](Abb::matmul) by a matrix whose tokens, along `axis`, are those of the product with `operand` before and
    /// new ones after them: keys or values of a cache. In a two-phase session each token is opened under its mask once.
    fn matmul_growing(
        &mut self,
        a: &Self::Words,
        b: &Self::Words,
        width: u32,
        axis: Axis,
        operand: &mut Operand,
    ) -> Result<Self::Words, Error> {
        let _ = (axis, operand);
        self.matmul(a, b, width)
    }

    /// x W + b with the server's W: (..., inputs) -> (..., outputs) modulo 2^[`LINEAR_WIDTH`](crate::LINEAR_WIDTH), at
    /// the scale of x plus that of the weight. Error: a few units in the last place.
    fn linear(&mut self, x: &Self::Words, weight: &FixedWeight) -> Result<Self::Words, Error>;

    /// Rows `ids` (known to the client) of the table W: (count, outputs), modulo 2^[`EMBED_WIDTH`](crate::EMBED_WIDTH),
    /// with [`EMBED_FRAC`](crate::EMBED_FRAC) fractional bits. Error: a few units in the last place.
    fn embed(&mut self, table: &FixedWeight, ids: Option<&[u32]>, count: usize) -> Result<Self::Words, Error>;

    /// Rows `start..start + count` of the table W as words modulo 2^64 with [`FRAC`](crate::FRAC) fractional bits. Free.
    fn rows(&mut self, table: &FixedWeight, start: usize, count: usize) -> Result<Self::Words, Error>;

    /// Opens words modulo 2^width to `to`, which gets `Some` (reduced modulo 2^width); a plan gives `None`.
    fn reveal(&mut self, x: &Self::Words, width: u32, to: Role) -> Result<Option<ArrayD<u64>>, Error>;

    /// Opens words modulo 2^width to `to`, rounded to multiples of 2^drop; between two parties at random, on a grid of the
    /// receiver's share. Range: |x| < 2^(width - 2), drop < width - 1. Error: below 2^drop.
    fn reveal_rounded(
        &mut self,
        x: &Self::Words,
        width: u32,
        drop: u32,
        to: Role,
    ) -> Result<Option<ArrayD<u64>>, Error>;

    /// Opens words modulo 2^width to both parties, reduced modulo 2^width; a plan gives `None`.
    fn open(&mut self, x: &Self::Words, width: u32) -> Result<Option<ArrayD<u64>>, Error>;

    /// The lowest bit of every word, free: shares modulo 2 are XOR shares.
    fn low_bit(&mut self, x: &Self::Words) -> Self::Bits;

    /// (...) -> (..., count): [x = j] for j < count and words x modulo 2^bits; 1 <= count <= 2^bits, bits <= 16.
    fn one_hot(&mut self, x: &Self::Words, bits: u32, count: usize) -> Result<Self::Bits, Error>;

    /// Fresh uniformly random permutations of `n` items for each of `rows` rows, which no party knows. Free.
    fn permutations(&mut self, rows: usize, n: usize) -> Self::Permutations;

    /// (rows, n, w) -> (rows, n, w): the n items of every row in the order of its permutation, or, `inverse`, back in the
    /// order before. Column t of an item is a word modulo 2^widths[t]; a single width stands for all columns.
    fn shuffle(
        &mut self,
        permutations: &Self::Permutations,
        x: &Self::Words,
        widths: &[u32],
        inverse: bool,
    ) -> Result<Self::Words, Error>;

    /// (rows, n) keys, shuffled by permutations used for no other opening and distinct in every row -> to both parties the
    /// positions of the k largest of every row, ascending. Key differences are signed `width`-bit values. Opens
    /// comparisons of shuffled keys, see [`quickselect`](crate::ops::quickselect); a plan books the mean run and returns
    /// the positions 0..k.
    fn quickselect(&mut self, keys: &Self::Words, k: usize, width: u32) -> Result<Vec<Vec<usize>>, Error>;
}
