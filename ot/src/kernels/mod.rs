//! The inner loops over blocks: portable code, and kernels for AVX2 or AVX-512 with AES-NI or VAES that give the same
//! bytes.
//!
//! The layers above reach both through [`Permutation`] (AES under one key) and [`Prgs`] (AES under many), which hold
//! the choice. Kernels are the methods of [`Simd`], a proof that the processor runs them; the portable reference of
//! each stands in the other files of this module, and tests hold the two together.

/// Passes the signatures of the kernels of AES under one key to the macro `$implement`, which turns them into
/// methods.
macro_rules! keyed_kernels {
    ($implement:ident) => {
        $implement! {
            /// AES of one block.
            encrypt(pi: &Key, block: Block) -> Block;
            /// `x = pi(x) ^ x` for every block.
            davies_meyer(pi: &Key, blocks: &mut [Block]);
            /// `out[i] = H(blocks[i] ^ offset, (first + i, 0))`, the hash of [`crate::hash`].
            hash(pi: &Key, first: u64, offset: Block, blocks: &[Block], out: &mut [Block]);
            /// `out[i] = H(nodes[i])`, the hash of [`crate::ggm::half`], for as many nodes.
            tree_hash(pi: &Key, nodes: &[Block], out: &mut [Block]);
            /// The words of all leaves of a point function. The first of the two buffers `nodes` holds the `size`
            /// nodes to begin with. Each of the `corrections`, two words long, is that of one further level, and
            /// `last` corrects the leaves. Both buffers have room for every leaf.
            expand(
                pi: &Key, nodes: [&mut [Block]; 2], size: usize, corrections: &[u64], last: Block, out: Words<'_>
            );
            /// Grows the first `size` rows of `nodes` to the next level of a group of point functions, in place, and
            /// returns the exclusive-or of the children's hashes in `sums`. Rows are whole runs of [`RUN`] blocks.
            grow_rows(pi: &Key, nodes: &mut [Block], size: usize, corrections: &[Block], sums: &mut [Block]);
            /// Adds the leaves of a group of point functions to `sums`: the children of the rows `nodes`, or these
            /// rows if there are no corrections. Hashes have `lanes` words, 2 or 4, or are bits if it is 0.
            leaf_rows(pi: &Key, nodes: &[Block], corrections: &[Block], lanes: usize, sums: &mut LeafRows<'_>);
            /// The exclusive-or of one block of the leaves' bits, over the leaves before `split` and over the others.
            /// `tweak` says which block: a leaf's bits are the hash of `node ^ tweak`, with `correction` added where
            /// the control bit is set.
            bit_sums(pi: &Key, tweak: Block, correction: Block, nodes: &[Block], split: usize) -> [Block; 2];
            /// [`crate::ggm::half::grow`] with the hash under this key.
            grow(pi: &Key, root: Block, delta: Block, sums: &mut [Block], nodes: &mut [Block]);
            /// [`crate::ggm::half::regrow`] with the hash under this key.
            regrow(pi: &Key, away: u64, sums: &[Block], nodes: &mut [Block]);
            /// Adds to every block of `out` its entries of `table`. The stream of this PRG at `place` selects the
            /// entries.
            add_code_words(pi: &Key, place: u64, table: &[Block; TABLE], out: &mut [Block]);
        }
    };
}

/// Passes the signatures of the other kernels to `$implement` in the same way.
macro_rules! other_kernels {
    ($implement:ident) => {
        $implement! {
            /// The key schedule of AES.
            expand_key(key: Block) -> Key;
            /// `sums[c] ^= sum_i coefficients[i] data[c n + i]` in the field of [`field`], for n coefficients. The
            /// coefficients are public, the data may be secret.
            combine(coefficients: &[Block], data: &[Block], sums: &mut [Block]);
            /// The sum of `coefficients[i] data[i]` in that field, and the sum of the coefficients whose data are
            /// odd. The data are secret, and so is which of them are odd.
            combine_odd(coefficients: &[Block], data: &[Block]) -> [Block; 2];
            /// `transpose::transpose`.
            transpose(rows: &mut [Block; BATCH]);
            /// `planes::receive_batch` with the PRGs `keys` from the counter `first` on.
            receive_batch(shape: &Shape, keys: &[Key], first: u64, rows: &mut [Block; BATCH], message: &mut [u8]);
            /// `planes::send_batch` with the PRGs `keys` from the counter `first` on.
            send_batch(
                shape: &Shape, keys: &[Key], first: u64, delta: Block, rows: &mut [Block; BATCH], message: &[u8]
            );
        }
    };
}

use crate::Block;

mod code;
mod field;
mod leaves;
mod permutation;
mod planes;
mod portable;
mod transpose;

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{Key, Simd};

#[cfg(not(target_arch = "x86_64"))]
mod other;
#[cfg(not(target_arch = "x86_64"))]
pub(crate) use other::{Key, Simd};

pub(crate) use code::TABLE;
pub use leaves::Lane;
pub(crate) use leaves::{LeafRows, Words};

/// Number of blocks of the shortest run of a row, see [`Permutation::grow_rows`].
pub(crate) const RUN: usize = 8;

pub(crate) use permutation::{Permutation, Prgs};
pub(crate) use planes::Shape;
pub(crate) use portable::sigma;
pub(crate) use transpose::{BATCH, TILES};

/// The kernel `combine`, or its reference.
pub(crate) fn combine(simd: Option<Simd>, coefficients: &[Block], data: &[Block], sums: &mut [Block]) {
    debug_assert_eq!(data.len(), coefficients.len() * sums.len());
    match simd {
        Some(simd) => simd.combine(coefficients, data, sums),
        None => field::combine(coefficients, data, sums),
    }
}

/// The kernel `combine_odd`, or its reference.
pub(crate) fn combine_odd(simd: Option<Simd>, coefficients: &[Block], data: &[Block]) -> [Block; 2] {
    debug_assert_eq!(data.len(), coefficients.len());
    match simd {
        Some(simd) => simd.combine_odd(coefficients, data),
        None => field::combine_odd(coefficients, data),
    }
}

/// The kernel `transpose`, or its reference.
pub(crate) fn transpose(simd: Option<Simd>, rows: &mut [Block; BATCH]) {
    match simd {
        Some(simd) => simd.transpose(rows),
        None => transpose::transpose(rows),
    }
}

/// The code that computes. All of it gives the same results to the bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kernels {
    /// The fastest kernels that [`waggle_bits::cpu::Cpu::get`] allows.
    #[default]
    Detected,
    /// Portable code only; the `aes` crate may still use instructions for AES.
    Portable,
    /// One of [`Kernels::families`].
    Family(Family),
}

/// A set of kernels that this processor runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family(Simd);

impl Kernels {
    /// The portable code and every set of kernels that [`waggle_bits::cpu::Cpu::get`] allows, the fastest last.
    pub fn families() -> Vec<Kernels> {
        let sets = Simd::all().into_iter().map(|simd| Kernels::Family(Family(simd)));
        std::iter::once(Kernels::Portable).chain(sets).collect()
    }

    /// The permission to run kernels, if there are any to run.
    pub(crate) fn simd(self) -> Option<Simd> {
        match self {
            Kernels::Detected => Simd::detect(),
            Kernels::Portable => None,
            Kernels::Family(Family(simd)) => Some(simd),
        }
    }

    /// The kernels that run here, by name.
    pub fn name(self) -> &'static str {
        self.simd().map_or("portable", Simd::name)
    }
}

/// `Some` for every set of kernels that this processor runs, and `None` for the portable code.
#[cfg(any(test, feature = "probe"))]
pub(crate) fn all() -> impl Iterator<Item = Option<Simd>> {
    Simd::all().into_iter().map(Some).chain([None])
}
