#![doc = include_str!("../README.md")]
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod attention;
mod budget;
mod cache;
mod error;
mod eviction;
mod family;
mod heads;
mod help;
mod layers;
mod options;
mod padding;
mod piece;
pub mod policies;
mod policy;
mod positions;
mod recorded;
mod schedule;
mod select;
mod spec;
mod store;
mod window;

pub use budget::{Budget, budget};
pub use cache::KvCache;
pub use error::{PolicyError, UnknownValue};
pub use family::{NamedPolicy, PolicyFamily, Setting};
pub use heads::{HeadShape, fold_heads, unfold_heads};
pub use help::PolicyHelp;
pub use layers::Layers;
pub use options::PolicyOptions;
pub use padding::Padding;
pub use piece::Piece;
pub use policy::Policy;
pub use schedule::Schedule;
pub use select::Select;
pub use spec::PolicySpec;
pub use store::Store;
