//! Representations of hidden tensors. The operands of an operation are generic over them.

use ndarray::ArrayD;

use crate::words::Words;
use crate::{Shape, Tensor};

/// Representation of hidden words and bits.
pub trait Form: 'static {
    /// Hidden words.
    type Words: Words + 'static;
    /// Hidden bits.
    type Bits: Tensor + 'static;
}

/// One array for each tensor: values in the clear, or one party's shares. A bit takes a byte.
pub enum Values {}

impl Form for Values {
    type Words = ArrayD<u64>;
    type Bits = ArrayD<u8>;
}

/// Only shapes, for plans.
pub enum Shapes {}

impl Form for Shapes {
    type Words = Shape;
    type Bits = Shape;
}
