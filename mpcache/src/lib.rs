#![doc = include_str!("../README.md")]
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod attention;
mod cache;
mod error;
mod eviction;
mod family;
mod heads;
mod help;
mod options;
mod padding;
mod piece;
pub mod policies;
mod policy;
mod positions;
mod recorded;
mod select;
mod spec;
mod store;

pub use cache::KvCache;
pub use error::{PolicyError, UnknownValue};
pub use family::{NamedPolicy, PolicyFamily, Setting};
pub use heads::{HeadShape, fold_heads, unfold_heads};
pub use help::PolicyHelp;
pub use options::PolicyOptions;
pub use padding::Padding;
pub use piece::Piece;
pub use policy::Policy;
pub use select::Select;
pub use spec::PolicySpec;
pub use store::Store;

/// How many of `tokens` tokens the share `share` stands for: rounded, at least 1.
pub fn budget(share: f64, tokens: usize) -> usize {
    ((share * tokens as f64).round() as usize).clamp(1, tokens.max(1))
}
