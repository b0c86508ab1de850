//! The truth: the model in f32, as its authors run it.

use ndarray::{Array2, ArrayD};

/// Computes in the clear with f32.
#[derive(Debug, Default)]
pub struct Float {}

/// A weight in the clear.
#[derive(Debug)]
pub struct FloatWeight {
    _matrix: Array2<f32>,
}

#[allow(dead_code)]
type T = ArrayD<f32>;
