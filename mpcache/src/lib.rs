//! The key/value cache of a generation, and the policies that decide what of it a token looks at.
//!
//! A [`KvCache`] holds one [`Store`] per layer; keys and values grow in place. What a query attends to is the
//! business of a [`Policy`], chosen by name ([`PolicySpec`]). Everything here is written over
//! [`Engine`](protocols::Engine), so the same policy runs in the clear, in secret and on shapes.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod cache;
mod full;
mod policy;
mod spec;

pub use cache::{KvCache, Store};
pub use full::Full;
pub use policy::{HeadShape, Policy, fold_heads, unfold_heads};
pub use spec::{PolicyError, PolicySpec};
