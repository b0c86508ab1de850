//! Random OT: the pads themselves as outputs, without any message.
//!
//! With random choices ([`OtReceiver::random`](crate::OtReceiver::random)) one OT of one bit is half an AND triple:
//! the sender holds `a = r_0 ^ r_1` and the share `r_0`, the receiver `b` and the share `r_b = r_0 ^ a b`.

use rayon::prelude::*;
use waggle_bits::mask;
use zeroize::Zeroize;

use crate::correlate::check_widths;
use crate::hash::CrHash;
use crate::{Block, ChosenKeys, OtError, SenderKeys};

/// Number of blocks of pad that are hashed at once.
const RUN: usize = 128;

/// A row of words for every OT, one word of each of `widths`. A row is cut from the pad of its OT, with up to two
/// words from each block.
fn rows(hash: &CrHash, first: u64, blocks: &[Block], offset: Block, widths: &[u32]) -> Result<Vec<u64>, OtError> {
    check_widths(widths)?;
    let per = widths.len().div_ceil(2);
    let run = (RUN / per).max(1);
    let mut words = vec![0; blocks.len() * widths.len()];
    let task = |(i, (words, blocks)): (usize, (&mut [u64], &[Block]))| {
        let mut hash = hash.expander(per);
        let mut hashed = vec![Block::ZERO; blocks.len() * per];
        hash.expand(first + (i * run) as u64, blocks, offset, per, &mut hashed);
        for (words, pads) in words.chunks_exact_mut(widths.len()).zip(hashed.chunks_exact(per)) {
            for (t, (word, &width)) in words.iter_mut().zip(widths).enumerate() {
                *word = pads[t / 2].0[t % 2] & mask(width);
            }
        }
        hashed.zeroize();
    };
    words.par_chunks_mut(run * widths.len()).zip(blocks.par_chunks(run)).enumerate().for_each(task);
    Ok(words)
}

impl SenderKeys {
    /// Spends the keys on rows of random words, one word of each of `widths` (1..=64) per OT. Returns the rows `r_0`
    /// of all OTs and the rows `r_1` of all OTs. Errors: a width out of range, or no widths.
    pub fn into_rows(self, widths: &[u32]) -> Result<[Vec<u64>; 2], OtError> {
        let words = |offset| rows(&self.hash, self.first, &self.blocks, offset, widths);
        Ok([words(Block::ZERO)?, words(self.delta)?])
    }
}

impl ChosenKeys {
    /// Spends the keys on rows of random words, one word of each of `widths` (1..=64) per OT. Returns the rows `r_b`
    /// of all OTs. Errors: a width out of range, or no widths.
    pub fn into_rows(self, widths: &[u32]) -> Result<Vec<u64>, OtError> {
        rows(&self.hash, self.first, &self.blocks, Block::ZERO, widths)
    }
}
