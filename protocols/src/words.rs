//! Local arithmetic on words modulo 2^64 and on bare shapes.

use ndarray::{ArrayD, Axis, Dimension, IxDyn, Zip};
pub use waggle_bits::{equal, mask, signed};

use crate::indices::Indices;
use crate::{Shape, Tensor};

/// Local arithmetic on words. It is linear, so it is the same on shares as on values, and nothing is sent.
pub trait Words: Tensor {
    /// Entrywise sum, shapes equal.
    fn plus(&self, other: &Self) -> Self;
    /// Entrywise difference, shapes equal.
    fn minus(&self, other: &Self) -> Self;
    /// Every entry times the public `factor` (modulo 2^64; cast a signed factor).
    fn times(&self, factor: u64) -> Self;
    /// Every entry times a public factor, which is `factor` of the entry's index.
    fn times_each(&self, factor: impl Fn(&[usize]) -> u64) -> Self;
    /// (..., n) -> (...): sums over the last axis.
    fn sum_last(&self) -> Self;
    /// For every entry, the sum of the entries before it along the last axis.
    fn sums_before(&self) -> Self;
    /// (...) -> (..., n): every entry n times.
    fn repeat_last(&self, n: usize) -> Self;
    /// The entries of a vector at the positions `index`, as a vector of length `index.len()`.
    fn pick(&self, index: &Indices<'_>) -> Self;
    /// The reverse of `pick`: a vector of `len` zeros, with entry i of `self` at the i-th of the positions `index`.
    fn place(&self, index: &Indices<'_>, len: usize) -> Self;
    /// Drops the low `bits` of words modulo 2^`width`. The result is floor(x / 2^bits) modulo 2^(width - bits). On
    /// shares it may be one less, because the carry between their low parts is lost.
    fn drop_low(&self, bits: u32, width: u32) -> Self;
}

/// Number of bits that an index below `n` takes, at least 1.
pub(crate) fn index_bits(n: usize) -> u32 {
    n.max(2).next_power_of_two().ilog2()
}

impl Words for ArrayD<u64> {
    fn plus(&self, other: &Self) -> Self {
        assert_eq!(self.shape(), other.shape(), "shapes of a sum");
        Zip::from(self).and(other).map_collect(|a, b| a.wrapping_add(*b))
    }

    fn minus(&self, other: &Self) -> Self {
        assert_eq!(self.shape(), other.shape(), "shapes of a difference");
        Zip::from(self).and(other).map_collect(|a, b| a.wrapping_sub(*b))
    }

    fn times(&self, factor: u64) -> Self {
        self.mapv(|a| a.wrapping_mul(factor))
    }

    fn times_each(&self, factor: impl Fn(&[usize]) -> u64) -> Self {
        let mut out = self.clone();
        out.indexed_iter_mut().for_each(|(at, x)| *x = x.wrapping_mul(factor(at.slice())));
        out
    }

    fn sum_last(&self) -> Self {
        let last = Axis(self.ndim() - 1);
        self.fold_axis(last, 0u64, |sum, x| sum.wrapping_add(*x))
    }

    fn sums_before(&self) -> Self {
        let mut out = self.clone();
        for mut row in out.rows_mut() {
            let mut sum = 0u64;
            row.iter_mut().for_each(|x| sum = sum.wrapping_add(std::mem::replace(x, sum)));
        }
        out
    }

    fn repeat_last(&self, n: usize) -> Self {
        let mut shape = self.shape().to_vec();
        shape.push(n);
        let wide = self.view().insert_axis(Axis(self.ndim()));
        wide.broadcast(IxDyn(&shape)).expect("the last axis has length 1").to_owned()
    }

    fn pick(&self, index: &Indices<'_>) -> Self {
        let flat = self.as_standard_layout();
        let (flat, index) = (flat.as_slice().expect("standard layout"), index.list());
        ArrayD::from_shape_fn(IxDyn(&[index.len()]), |i| flat[index[i[0]]])
    }

    fn place(&self, index: &Indices<'_>, len: usize) -> Self {
        assert_eq!(Tensor::len(self), index.len(), "one position for every entry");
        let mut out = ArrayD::zeros(IxDyn(&[len]));
        self.iter().zip(index.list()).for_each(|(x, &i)| out[i] = *x);
        out
    }

    fn drop_low(&self, bits: u32, width: u32) -> Self {
        debug_assert!(bits < width && width <= 64);
        let keep = mask(width);
        self.mapv(|a| (a & keep) >> bits)
    }
}

impl Words for Shape {
    fn plus(&self, other: &Self) -> Self {
        assert_eq!(self, other, "shapes of a sum");
        self.clone()
    }

    fn minus(&self, other: &Self) -> Self {
        self.plus(other)
    }

    fn times(&self, _: u64) -> Self {
        self.clone()
    }

    fn times_each(&self, _: impl Fn(&[usize]) -> u64) -> Self {
        self.clone()
    }

    fn sum_last(&self) -> Self {
        Shape(self.0[..self.0.len() - 1].to_vec())
    }

    fn sums_before(&self) -> Self {
        self.clone()
    }

    fn repeat_last(&self, n: usize) -> Self {
        let mut shape = self.0.clone();
        shape.push(n);
        Shape(shape)
    }

    fn pick(&self, index: &Indices<'_>) -> Self {
        Shape(vec![index.len()])
    }

    fn place(&self, index: &Indices<'_>, len: usize) -> Self {
        assert_eq!(self.len(), index.len(), "one position for every entry");
        Shape(vec![len])
    }

    fn drop_low(&self, _: u32, _: u32) -> Self {
        self.clone()
    }
}
