//! Processors without kernels of their own: nothing here can ever be called.

use super::Shape;
use super::code::TABLE;
use super::leaves::{LeafRows, Words};
use super::transpose::BATCH;
use crate::Block;

/// No value of this type exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Simd {}

/// Methods of a type without values. None of them can be called.
macro_rules! absent {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),*) $(-> $out:ty)?;)*) => {
        $($(#[$doc])*
        #[allow(unused_variables, clippy::too_many_arguments, reason = "of kernels that others have")]
        pub(crate) fn $name(self, $($arg: $ty),*) $(-> $out)? {
            match self {}
        })*
    };
}

impl Simd {
    /// Always `None`.
    pub(crate) fn detect() -> Option<Self> {
        None
    }

    /// An empty list.
    pub(crate) fn all() -> Vec<Self> {
        Vec::new()
    }

    pub(crate) fn name(self) -> &'static str {
        match self {}
    }

    keyed_kernels!(absent);
    other_kernels!(absent);
}

/// Round keys that nothing uses.
#[derive(Clone, zeroize::Zeroize)]
pub(crate) struct Key;
