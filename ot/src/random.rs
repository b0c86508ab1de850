//! Random OT: the pads themselves as outputs, without any message.
//!
//! With random choices ([`OtReceiver::random`](crate::OtReceiver::random)) one OT of one bit is half an AND triple:
//! the sender holds `a = r_0 ^ r_1` and the share `r_0`, the receiver `b` and the share `r_b = r_0 ^ a b`.

use bits::mask;
use rayon::prelude::*;
use zeroize::Zeroize;

use crate::correlate::check_widths;
use crate::hash::CrHash;
use crate::{Bits, Block, ChosenKeys, OtError, SenderKeys};

/// OTs per task of the thread pool.
const TASK_OTS: usize = 1 << 13;

/// OTs hashed at once.
const RUN: usize = 128;

/// The low words of `H(blocks[i] ^ offset, (first + i, 0))`.
fn pads(hash: &CrHash, first: u64, blocks: &[Block], offset: Block) -> Vec<u64> {
    let mut words = vec![0; blocks.len()];
    let task = |(i, (words, blocks)): (usize, (&mut [u64], &[Block]))| {
        let first = first + (i * TASK_OTS) as u64;
        let mut hash = hash.expander(1);
        let mut hashed = [Block::ZERO; RUN];
        for (r, (words, blocks)) in words.chunks_mut(RUN).zip(blocks.chunks(RUN)).enumerate() {
            let hashed = &mut hashed[..blocks.len()];
            hash.expand(first + (r * RUN) as u64, blocks, offset, 1, hashed);
            for (word, block) in words.iter_mut().zip(hashed) {
                *word = block.0[0];
            }
        }
    };
    if blocks.len() <= TASK_OTS {
        task((0, (&mut words, blocks)));
    } else {
        words.par_chunks_mut(TASK_OTS).zip(blocks.par_chunks(TASK_OTS)).enumerate().for_each(task);
    }
    words
}

/// For every OT one word of each of `widths`, cut from as many blocks of pad as it takes, two words to a block.
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

fn masked(mut words: Vec<u64>, width: u32) -> Result<Vec<u64>, OtError> {
    check_widths(&[width])?;
    words.iter_mut().for_each(|word| *word &= mask(width));
    Ok(words)
}

fn to_bits(words: &[u64]) -> Bits {
    let word = |chunk: &[u64]| chunk.iter().enumerate().fold(0, |acc, (i, w)| acc | (w & 1) << i);
    Bits::from_words(words.chunks(64).map(word).collect(), words.len())
}

impl SenderKeys {
    /// Spends the keys on random words of `width` bits (1..=64): the pairs `r_0`, `r_1`. Errors: the width is out of
    /// range.
    pub fn into_words(self, width: u32) -> Result<[Vec<u64>; 2], OtError> {
        let words = |offset| masked(pads(&self.hash, self.first, &self.blocks, offset), width);
        Ok([words(Block::ZERO)?, words(self.delta)?])
    }

    /// Spends the keys on rows of random words, one of each of `widths` (1..=64) per OT: the pairs `r_0`, `r_1`, OT
    /// by OT. Errors: a width out of range, or none.
    pub fn into_rows(self, widths: &[u32]) -> Result<[Vec<u64>; 2], OtError> {
        let words = |offset| rows(&self.hash, self.first, &self.blocks, offset, widths);
        Ok([words(Block::ZERO)?, words(self.delta)?])
    }

    /// Spends the keys on random bits: the pairs `r_0`, `r_1`.
    pub fn into_bits(self) -> [Bits; 2] {
        [Block::ZERO, self.delta].map(|offset| to_bits(&pads(&self.hash, self.first, &self.blocks, offset)))
    }
}

impl ChosenKeys {
    /// Spends the keys on random words of `width` bits (1..=64): `r_b`. Errors: the width is out of range.
    pub fn into_words(self, width: u32) -> Result<Vec<u64>, OtError> {
        masked(pads(&self.hash, self.first, &self.blocks, Block::ZERO), width)
    }

    /// Spends the keys on rows of random words, one of each of `widths` (1..=64) per OT: `r_b`, OT by OT. Errors: a
    /// width out of range, or none.
    pub fn into_rows(self, widths: &[u32]) -> Result<Vec<u64>, OtError> {
        rows(&self.hash, self.first, &self.blocks, Block::ZERO, widths)
    }

    /// Spends the keys on random bits: `r_b`.
    pub fn into_bits(self) -> Bits {
        to_bits(&pads(&self.hash, self.first, &self.blocks, Block::ZERO))
    }
}
