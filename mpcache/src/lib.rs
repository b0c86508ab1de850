//! The key/value cache of a generation, and the policies that decide what of it a token looks at.
//!
//! A [`KvCache`] holds one [`Store`] per layer; keys and values grow in place. What a query attends to is the
//! business of a [`Policy`], chosen by name ([`PolicySpec`]). Everything here is written over
//! [`Engine`](engine::Engine), so the same policy runs in the clear, in secret and on shapes.
//!
//! | file | policies |
//! |---|---|
//! | [`Full`] | `full` |
//! | [`Clustered`] | `mpcache`, `mpcache-2pc`, `quest`, `arkvale`, `infllm`, `longcache`, `oracle` |
//! | [`Rolling`] | `h2o`, `tova` |
//! | [`SnapKv`] | `snapkv` |
//! | [`Streaming`], [`Random`] | `streaming`, `random` |
//!
//! All are given a budget: the share of all tokens seen so far that a decoding step looks at. The prompt always sees
//! itself whole.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod attention;
mod cache;
mod clustered;
mod digest;
mod eviction;
mod full;
mod padding;
mod policy;
mod positions;
mod public;
mod rolling;
mod scope;
mod snapkv;
mod spec;
mod store;

pub use cache::KvCache;
pub use clustered::{Clustered, Clusters, Gather};
pub use digest::{Similarity, Sizes};
pub use full::Full;
pub use padding::Padding;
pub use policy::{HeadShape, Policy, fold_heads, unfold_heads};
pub use public::{Random, Streaming};
pub use rolling::{Judge, Rolling};
pub use scope::Select;
pub use snapkv::SnapKv;
pub use spec::{PolicyError, PolicySpec};
pub use store::Store;

/// Tokens that the share `share` of `tokens` stands for: rounded, at least 1.
fn budget(share: f64, tokens: usize) -> usize {
    ((share * tokens as f64).round() as usize).clamp(1, tokens.max(1))
}
