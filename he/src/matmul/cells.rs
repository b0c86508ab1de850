//! The cells of `Z_q`: how a seeded request splits a random value into an entry of the ring and a correction.
//!
//! The multiples `lift(r) = round(q r / 2^l)` cut `Z_q` into `2^l` intervals of `D = floor(q / 2^l)` or D + 1 values.
//! Each is cut further, from its beginning, into `floor(D / 2^k)` cells of `2^k` values. So all but the last values
//! of an interval, at most `2^k` of them, are `lift(r) + d 2^k + f` in exactly one way, with r below `2^l`, d below
//! `floor(D / 2^k)` and f below `2^k`. A value that is uniform apart from the others has r, d and f that are uniform
//! and independent of each other.

use crate::modulus::Shoup;
use crate::params::{Lift, Params};
use crate::set::ParamSet;

/// The most that dropped bits may add to the error of a product, in LSB, where the error is taken at the tail bound.
/// The standard deviation of this part is then at most 0.03 LSB. Rounding c0, which seeded responses do not do, has a
/// standard deviation of 0.036 LSB.
const SHARE_OF_ERROR: f64 = 1.0 / 4.0;
/// Bits of the largest interval length D for which cells are made.
const MAX_INTERVAL_BITS: u32 = 120;

/// How the intervals of a layout are cut into cells.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Cells {
    /// The k of the module documentation: bits that a correction drops.
    pub(super) dropped: u32,
    /// Number of cells in an interval, which is the number of legal corrections.
    pub(super) count: u128,
}

impl Cells {
    /// Makes as few cells as the error allows. `per_unit` is the error of a product at the tail bound, for each unit
    /// of the dropped part. `None` if q is so small that about every other ciphertext would hold a value outside all
    /// cells, or so large that corrections do not fit.
    pub(super) fn of(set: ParamSet, width: u32, per_unit: f64) -> Option<Self> {
        if !(width + 1..=width + MAX_INTERVAL_BITS).contains(&set.log_q()) {
            return None;
        }
        let interval = set.quotient(width);
        // N (2^k + 1) values out of D must be no more than half.
        let most = interval.checked_ilog2()?.checked_sub(set.degree().ilog2() + 2)?;
        let wanted = (SHARE_OF_ERROR * interval as f64 / per_unit).log2().max(0.0) as u32;
        let dropped = wanted.min(most);
        Some(Self { dropped, count: interval >> dropped })
    }

    /// Number of bits of a correction.
    pub(super) fn bits(&self) -> u32 {
        128 - (self.count - 1).leading_zeros()
    }

    /// Half the length of a cell: the middle of the values that a dropped part may have.
    pub(super) fn half(&self) -> u128 {
        (1u128 << self.dropped) >> 1
    }

    /// Variance of the dropped part about [`Self::half`].
    pub(super) fn variance(&self) -> f64 {
        // (4^k - 1) / 12, and 1/4 as half a cell is not quite the middle.
        if self.dropped == 0 { 0.0 } else { f64::from(2 * self.dropped).exp2() / 12.0 + 1.0 / 6.0 }
    }
}

/// A value of `Z_q`, split into an entry and a correction.
pub(super) struct Cell {
    /// The entry r.
    pub(super) entry: u64,
    /// The correction d.
    pub(super) cell: u128,
    /// Whether the value lies in a cell.
    pub(super) inside: bool,
}

/// Splits values, without branches on them.
pub(super) struct Splitter<'a> {
    params: &'a Params,
    cells: Cells,
    width: u32,
    lift: Lift,
    /// The D of the module documentation: the length of a short interval.
    interval: u128,
    /// Per limb the product of the primes before it, and the inverse of that product modulo the limb's prime.
    radices: Vec<(u128, Shoup)>,
}

impl<'a> Splitter<'a> {
    /// A splitter for entries of `width` bits under `set`, whose tables are `params`.
    pub(super) fn new(params: &'a Params, set: ParamSet, width: u32, cells: &Cells) -> Self {
        let limbs = params.limbs();
        let radix = |i: usize| {
            let (before, p) = (&limbs[..i], limbs[i].modulus());
            let residue = before.iter().fold(1, |product, l| p.mul(product, p.reduce(l.modulus().value())));
            let radix = before.iter().fold(1u128, |product, l| product.wrapping_mul(u128::from(l.modulus().value())));
            (radix, p.shoup(p.inverse(residue)))
        };
        let radices = (0..limbs.len()).map(radix).collect();
        let interval = set.quotient(width);
        Self { params, cells: *cells, width, lift: params.lift(width), interval, radices }
    }

    /// The ring of the values.
    pub(super) fn params(&self) -> &'a Params {
        self.params
    }

    /// Splits the value with these residues, one per limb.
    #[inline(always)]
    pub(super) fn split(&self, residue: impl Fn(usize) -> u64) -> Cell {
        // The fraction is a little too small: the entry found is right, or one too small.
        let fraction = self.params.torus((0..self.radices.len()).map(&residue));
        let entry = (fraction >> (128 - self.width)) as u64;
        let remainder = self.lift.remainder(u128::from(entry));
        let offset = self.small(|i| {
            let p = self.params.limbs()[i].modulus();
            p.sub(residue(i), self.lift.residue(i, p, remainder))
        });
        let length = self.interval + self.lift.long_step(remainder);
        let (beyond, within) = offset.overflowing_sub(length);
        let offset = beyond ^ ((beyond ^ offset) & u128::from(within).wrapping_neg());
        let entry = entry.wrapping_add(u64::from(!within)) & waggle_bits::mask(self.width);
        let cell = offset >> self.cells.dropped;
        Cell { entry, cell, inside: cell < self.cells.count }
    }

    /// The number below `2^127` with these residues, computed in mixed radix.
    #[inline(always)]
    fn small(&self, residue: impl Fn(usize) -> u64) -> u128 {
        let mut value = residue(0).into();
        for (i, (radix, inverse)) in self.radices.iter().enumerate().skip(1) {
            // Digits beyond 2^127 are zero, so nothing is lost where a radix wraps.
            let p = self.params.limbs()[i].modulus();
            let digit = p.mul_shoup(p.sub(residue(i), p.reduce_wide(value)), *inverse);
            value = value.wrapping_add(radix.wrapping_mul(u128::from(digit)));
        }
        value
    }
}
