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
mod select;
mod tensor;
mod top_k;
mod weight;

pub use ceiling::{Ceiling, Origin};
pub use engine::{
    Engine, Gelu, HIDDEN_SCORE, MAX_SHOWN_SCORE, Precision, Product, Right, SOFT_CAPS, Visible, mix_by_probabilities,
};
pub use error::Error;
pub use float::{Float, FloatLoader, FloatSelection, FloatWeight, States};
pub use layer::Layer;
pub use logit_bits::{LogitBits, LogitBitsError};
pub use matrix::{ColumnRange, MatrixSource, Narrow, Order, Stored, largest};
pub use operand::{Axis, CachedOperand, OperandId, OperandKind};
pub use select::{Extrema, Select};
pub use tensor::{Shape, Tensor};
pub use top_k::{GRID_NOISE, Ranking, TopK, UnknownTopK};
pub use weight::{WeightData, WeightLoader, WeightSpec};
