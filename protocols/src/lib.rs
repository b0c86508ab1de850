//! Secure two-party operations on additive shares, each with its cost, and the engines that run a model on them.
#![deny(missing_docs)]

pub mod abb;
mod clear;
pub mod cost;
mod engine;
mod error;
pub mod functions;
mod tensor;
pub mod weight;
mod words;

pub use abb::Abb;
pub use clear::Clear;
pub use engine::{Engine, Float, Gelu, WeightData, WeightSpec};
pub use error::Error;
pub use tensor::{Shape, Tensor};

/// Fractional bits of activations.
pub const FRAC: u32 = 18;

/// Ring of the products with weights: |y| < 2^(LINEAR_WIDTH - 2) at the scale of activation times weight.
pub const LINEAR_WIDTH: u32 = 56;
