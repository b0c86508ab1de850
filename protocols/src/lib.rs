//! Secure two-party operations on additive shares, each with its cost, and the engines that run a model on them.
#![deny(missing_docs)]

mod engine;
mod error;
mod tensor;

pub use engine::{Engine, Float, Gelu, WeightData, WeightSpec};
pub use error::Error;
pub use tensor::{Shape, Tensor};
