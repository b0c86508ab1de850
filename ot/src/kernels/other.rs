//! Processors without kernels of their own: nothing here can ever be called.

use super::Shape;
use super::code::TABLE;
use super::leaves::{Sums, Words};
use super::transpose::BATCH;
use crate::Block;

/// No value of this type exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Simd {}

impl Simd {
    /// Always none.
    pub(crate) fn detect() -> Option<Self> {
        None
    }

    /// None.
    pub(crate) fn all() -> Vec<Self> {
        Vec::new()
    }

    pub(crate) fn name(self) -> &'static str {
        match self {}
    }

    pub(crate) fn encrypt(self, _: &Key, _: Block) -> Block {
        match self {}
    }

    pub(crate) fn transpose(self, _: &mut [Block; BATCH]) {
        match self {}
    }

    pub(crate) fn receive_batch(self, _: &Shape, _: &[Key], _: u64, _: &mut [Block; BATCH], _: &mut [u8]) {
        match self {}
    }

    pub(crate) fn send_batch(self, _: &Shape, _: &[Key], _: u64, _: Block, _: &mut [Block; BATCH], _: &[u8]) {
        match self {}
    }

    pub(crate) fn davies_meyer(self, _: &Key, _: &mut [Block]) {
        match self {}
    }

    #[cfg(any(test, feature = "probe"))]
    pub(crate) fn tree_hash(self, _: &Key, _: &[Block], _: &mut [Block]) {
        match self {}
    }

    pub(crate) fn expand(self, _: &Key, _: [&mut [Block]; 2], _: usize, _: &[u64], _: Block, _: Words<'_>) {
        match self {}
    }

    pub(crate) fn sums(self, _: &Key, _: &[Block], _: usize) -> Sums {
        match self {}
    }

    pub(crate) fn grow_level(self, _: &Key, _: &mut [Block], _: usize, _: Block, _: usize) -> Sums {
        match self {}
    }

    pub(crate) fn hash(self, _: &Key, _: u64, _: Block, _: &[Block], _: &mut [Block]) {
        match self {}
    }

    pub(crate) fn grow(self, _: &Key, _: Block, _: Block, _: &mut [Block], _: &mut [Block]) {
        match self {}
    }

    pub(crate) fn regrow(self, _: &Key, _: u64, _: &[Block], _: &mut [Block]) {
        match self {}
    }

    pub(crate) fn add_code_words(self, _: &Key, _: u64, _: &[Block; TABLE], _: &mut [Block]) {
        match self {}
    }
}

/// Round keys that nothing uses.
#[derive(Clone, zeroize::Zeroize)]
pub(crate) struct Key;

impl Key {
    pub(crate) fn new(simd: Simd, _: Block) -> Self {
        match simd {}
    }
}
