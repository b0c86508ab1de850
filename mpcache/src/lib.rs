#![doc = include_str!("../README.md")]
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod attention;
mod budget;
mod cache;
mod catalogue;
mod error;
pub mod eviction;
mod family;
mod granularity;
mod heads;
mod layered;
mod layers;
mod options;
mod padding;
mod part;
mod pattern;
mod piece;
pub mod policies;
mod policy;
mod prefix;
mod recorded;
mod registry;
mod schedule;
mod shed;
mod spec;
mod store;
mod window;

pub use budget::{Budget, budget};
pub use cache::{Expected, Held, KvCache, Shedding};
pub use catalogue::{Listed, ListedOption, catalogue};
pub use error::{PolicyError, UnknownValue};
pub use family::{Facts, NamedPolicy, PolicyFamily, PolicyHelp, Setting};
pub use granularity::Granularity;
pub use heads::{HeadShape, fold_heads, unfold_heads};
pub use layered::{ByLayer, LayerSet, Light};
pub use layers::Layers;
pub use options::PolicyOptions;
pub use padding::Padding;
pub use part::{Merged, Part};
pub use pattern::HeadPattern;
pub use piece::Piece;
pub use policies::HEAD_MAGNITUDE;
pub use policy::{Policy, ScoreSource};
pub use prefix::{Prefix, PrefixRows};
pub use registry::{RegisterError, Registration};
pub use schedule::{DEFAULT_BUDGET, Eviction, Later, Schedule};
pub use shed::{PublishedShed, RESIDUAL_MAGNITUDE, Shed, ShedPositions, Step};
pub use spec::PolicySpec;
pub use store::{KV_MAGNITUDE, Store};
