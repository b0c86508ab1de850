//! What hidden tensors are made of: operands of an operation are generic over it.

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

/// Shapes alone, for plans.
pub enum Shapes {}

impl Form for Shapes {
    type Words = Shape;
    type Bits = Shape;
}
