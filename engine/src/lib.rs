#![doc = include_str!("../README.md")]
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod ceiling;
mod engine;
mod error;
mod float;
mod layer;
mod logit_bits;
mod matrix;
mod operand;
mod tensor;
mod top_k;
mod weight;

pub use ceiling::{Ceiling, Origin};
pub use engine::{Engine, Extrema, Gelu, HIDE, MAX_HIDDEN_SCORE, Right, SOFT_CAPS};
pub use error::Error;
pub use float::{Float, FloatLoader, FloatSelection, FloatWeight};
pub use layer::Layer;
pub use logit_bits::{LogitBits, LogitBitsError};
pub use matrix::{ColumnRange, MatrixSource, Order, largest};
pub use operand::{Axis, OperandId, OperandKind};
pub use tensor::{Shape, Tensor};
pub use top_k::{GRID_NOISE, Ranking, TopK, UnknownTopK};
pub use weight::{WeightData, WeightLoader, WeightSpec};
