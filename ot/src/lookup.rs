//! 1-of-N OT of short messages, N = 2^b, from b 1-of-2 OTs each; b = 1 is chosen 1-of-2 OT.
//!
//! The N entries of an item, W bits each, form one string; bit i of an entry's number j chooses between the two keys
//! of OT i. Entry j is masked with the slice at its own place of `pad_j = XOR_i slice_j(H(k_i^{j_i}))` (Naor and
//! Pinkas, STOC 1999, with every key hashed once to a whole string), so the sender XORs, for every i, the two strings
//! of OT i cut along the mask of bit i. For `j != index` at least one key is unknown to the receiver, and no two
//! entries share a slice.
//!
//! The receiver hashes only the blocks that its entry touches. The number of these blocks is public. Their counters
//! are secret, so they are data of the cipher and never an address.

use rayon::prelude::*;
use waggle_bits::{Bytes, Reader, Words, Writer, bytes_for, equal, mask};
use zeroize::Zeroize;

use crate::correlate::check_widths;
use crate::hash::CALLS_PER_KEY;
use crate::{Block, ChosenKeys, OtError, SenderKeys};

const STEP: &str = "ot/lookup";

/// Pad blocks per key and task of the thread pool.
const TASK_BLOCKS: usize = 1 << 12;

/// Pad blocks hashed at once per key. They stay in the first-level cache.
const RUN_BLOCKS: usize = 128;

/// Bits of the longest table. The receiver's counters are secret, so all of them must be hashed under one key.
const TABLE_BITS: usize = 128 * CALLS_PER_KEY;

/// The shape of a batch of 1-of-N OTs: `count` items of `2^bits` entries. An entry is a row of words of the given
/// widths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupShape {
    count: usize,
    bits: u32,
    widths: Vec<u32>,
    /// Bits of an entry.
    entry: usize,
}

impl LookupShape {
    /// A shape of `count` items of `2^bits` entries (`bits` in 1..=8) of `widths.len()` words (1 to 64 bits each).
    /// The table of an item has at most 2^17 bits, so that one key of the hash covers it. Errors: a parameter out of
    /// range, or more bits than memory can address.
    pub fn new(count: usize, bits: u32, widths: &[u32]) -> Result<Self, OtError> {
        check_widths(widths)?;
        let entry: usize = widths.iter().map(|&w| w as usize).sum();
        if !(1..=8).contains(&bits) {
            return Err(OtError::Parameter { what: "index bits", allowed: "1..=8", got: bits as usize });
        }
        if entry > TABLE_BITS >> bits {
            return Err(OtError::Parameter { what: "bits of a table", allowed: "up to 2^17", got: entry << bits });
        }
        if count.checked_mul((entry << bits).max(64 * widths.len())).is_none() {
            return Err(OtError::Parameter { what: "number of items", allowed: "within memory", got: count });
        }
        Ok(LookupShape { count, bits, widths: widths.to_vec(), entry })
    }

    /// Number of items.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Entries per item, N.
    pub fn entries(&self) -> usize {
        1 << self.bits
    }

    /// Words per entry.
    pub fn words(&self) -> usize {
        self.widths.len()
    }

    /// OTs that the batch consumes: `bits` per item. OT `item * bits + i` belongs to bit i of the item's index.
    pub fn ots(&self) -> usize {
        self.count * self.bits as usize
    }

    /// Bytes of the sender's message, without framing. All items lie back to back, and only the whole is rounded up
    /// to bytes.
    pub fn message_bytes(&self) -> usize {
        bytes_for(self.count as u128 * self.item_bits() as u128)
    }

    /// Bits of the table of an item.
    pub fn item_bits(&self) -> usize {
        self.entry << self.bits
    }

    /// Number of pad blocks that the receiver hashes: for each of its entries, the blocks that the entry may touch.
    pub fn window_pads(&self) -> usize {
        self.ots() * self.window_blocks()
    }

    /// Number of pad blocks for one key of every OT. The sender hashes twice as many, as it has two keys.
    pub fn pad_blocks(&self) -> usize {
        self.ots() * self.item_blocks()
    }

    /// Number of pad blocks that cover an item.
    fn item_blocks(&self) -> usize {
        self.item_bits().div_ceil(128)
    }

    /// Largest number of pad blocks that an entry touches, wherever it lies.
    fn window_blocks(&self) -> usize {
        if self.item_blocks() == 1 || 128 % self.entry == 0 {
            1
        } else if self.entry.is_multiple_of(128) {
            self.entry / 128
        } else {
            (self.entry + 127).div_ceil(128)
        }
    }

    /// Items per task: a multiple of 8, so that tasks begin at whole bytes.
    fn task(&self) -> usize {
        (TASK_BLOCKS / (self.item_blocks() * self.bits as usize)).next_multiple_of(8).max(8)
    }

    fn task_bytes(&self) -> usize {
        self.task() / 8 * self.item_bits()
    }

    /// For every index bit i, a string as long as an item. Its bits are 1 in the entries j with `j_i = 1`.
    fn masks(&self) -> Vec<Block> {
        let blocks = self.item_blocks();
        let mut masks = vec![Block::ZERO; self.bits as usize * blocks];
        for (i, ones) in masks.chunks_exact_mut(blocks).enumerate() {
            for j in (0..self.entries()).filter(|j| j >> i & 1 == 1) {
                for bit in j * self.entry..(j + 1) * self.entry {
                    ones[bit / 128].0[bit / 64 % 2] |= 1 << (bit % 64);
                }
            }
        }
        masks
    }
}

impl SenderKeys {
    /// Spends the keys on the tables that `fill` writes: `fill(item, row)` sets all words of an item, entry by entry
    /// (`row[entry * words + word]`; only the word's width of low bits matters). Returns the message for
    /// [`ChosenKeys::lookup`]. Errors: the number of keys is not the shape's.
    pub fn lookup(self, shape: &LookupShape, fill: impl Fn(usize, &mut [u64]) + Sync) -> Result<Vec<u8>, OtError> {
        let row = || vec![0; shape.entries() * shape.words()];
        self.lookup_strings(shape, |item, string, scratch: &mut Option<Vec<u64>>| {
            let row = scratch.get_or_insert_with(row);
            fill(item, row);
            let mut writer = Writer::new(Words::new(string.iter_mut().flat_map(|block| &mut block.0)));
            for entry in row.chunks_exact(shape.words()) {
                for (&value, &w) in entry.iter().zip(&shape.widths) {
                    writer.push(value & mask(w), w);
                }
            }
            writer.finish();
        })
    }

    /// As [`lookup`](Self::lookup), for tables of at most 128 bits, which `table(item)` returns as a string with
    /// entry j at bit `j W`. Bits beyond the table are ignored. Errors: the number of keys is not the shape's, or
    /// tables are longer.
    pub fn lookup_short(self, shape: &LookupShape, table: impl Fn(usize) -> u128 + Sync) -> Result<Vec<u8>, OtError> {
        if shape.item_bits() > 128 {
            return Err(OtError::Parameter { what: "bits of a table", allowed: "up to 128", got: shape.item_bits() });
        }
        self.lookup_strings(shape, |item, string, _| string[0] = Block::from(table(item)))
    }

    /// Looks up in the tables that `string(item, blocks, scratch)` writes to `blocks` as strings of bits. Bits beyond
    /// a table are ignored.
    fn lookup_strings(
        self,
        shape: &LookupShape,
        string: impl Fn(usize, &mut [Block], &mut Option<Vec<u64>>) + Sync,
    ) -> Result<Vec<u8>, OtError> {
        OtError::expect(STEP, "OTs", shape.ots(), self.len())?;
        let mut message = vec![0; shape.message_bytes()];
        let masks = shape.masks();
        let task = shape.task();
        if shape.count <= task {
            self.lookup_task(shape, &masks, 0..shape.count, &string, &mut message);
            return Ok(message);
        }
        message.par_chunks_mut(shape.task_bytes()).enumerate().for_each(|(i, message)| {
            let items = i * task..shape.count.min((i + 1) * task);
            self.lookup_task(shape, &masks, items, &string, message);
        });
        Ok(message)
    }

    fn lookup_task(
        &self,
        shape: &LookupShape,
        masks: &[Block],
        items: std::ops::Range<usize>,
        fill: &(impl Fn(usize, &mut [Block], &mut Option<Vec<u64>>) + Sync),
        message: &mut [u8],
    ) {
        let (bits, per) = (shape.bits as usize, shape.item_blocks());
        let run = (RUN_BLOCKS / (bits * per)).max(1);
        let mut hash = self.hash.expander(shape.item_blocks());
        let mut writer = Writer::new(Bytes::new(message));
        let mut scratch = None;
        let mut string = vec![Block::ZERO; per];
        let (mut pads0, mut pads1) = (Vec::new(), Vec::new());
        let mut first = items.start;
        while first < items.end {
            let end = items.end.min(first + run);
            let ots = first * bits..end * bits;
            pads0.resize(ots.len() * per, Block::ZERO);
            pads1.resize(ots.len() * per, Block::ZERO);
            let (index, blocks) = (self.first + ots.start as u64, &self.blocks[ots]);
            hash.expand(index, blocks, Block::ZERO, per, &mut pads0);
            hash.expand(index, blocks, self.delta, per, &mut pads1);
            let pads = pads0.chunks_exact(bits * per).zip(pads1.chunks_exact(bits * per));
            for (item, (pads0, pads1)) in (first..end).zip(pads) {
                string.fill(Block::ZERO);
                fill(item, &mut string, &mut scratch);
                for i in 0..bits {
                    let row = i * per..(i + 1) * per;
                    let pads = pads0[row.clone()].iter().zip(&pads1[row.clone()]);
                    for ((s, (&p0, &p1)), m) in string.iter_mut().zip(pads).zip(&masks[row]) {
                        let cut = p0 ^ p1;
                        *s ^= p0 ^ Block([cut.0[0] & m.0[0], cut.0[1] & m.0[1]]);
                    }
                }
                let mut left = shape.item_bits();
                for block in &string {
                    for word in block.0 {
                        let w = left.min(64) as u32;
                        writer.push(word & mask(w), w);
                        left -= w as usize;
                    }
                }
            }
            first = end;
        }
        writer.finish();
        pads0.zeroize();
        pads1.zeroize();
        string.zeroize();
        scratch.zeroize();
    }
}

impl ChosenKeys {
    /// Spends the keys on the sender's `message`. The choices of an item's OTs are the bits of its index, least
    /// significant first. Returns the words of the chosen entries, item by item. Errors: the number of keys or bytes
    /// is not the shape's.
    pub fn lookup(self, shape: &LookupShape, message: &[u8]) -> Result<Vec<u64>, OtError> {
        OtError::expect(STEP, "OTs", shape.ots(), self.len())?;
        OtError::expect(STEP, "bytes", shape.message_bytes(), message.len())?;
        let mut values = vec![0; shape.count * shape.words()];
        let task = shape.task();
        if shape.count <= task {
            self.lookup_task(shape, 0, message, &mut values);
            return Ok(values);
        }
        values
            .par_chunks_mut(task * shape.words())
            .zip(message.par_chunks(shape.task_bytes()))
            .enumerate()
            .for_each(|(i, (values, message))| self.lookup_task(shape, i * task, message, values));
        Ok(values)
    }

    fn lookup_task(&self, shape: &LookupShape, start: usize, message: &[u8], values: &mut [u64]) {
        let (bits, window) = (shape.bits as usize, shape.window_blocks());
        let run = (RUN_BLOCKS / (bits * window)).max(1);
        let mut hash = self.hash.expander(shape.item_blocks());
        let mut reader = Reader::new(message);
        let (mut pads, mut offsets, mut starts) = (Vec::new(), Vec::new(), Vec::new());
        let mut chosen = vec![Block::ZERO; window];
        let index = |item: usize| (0..bits).fold(0, |j, i| j | self.choices.get(item * bits + i) << i);
        for (r, values) in values.chunks_mut(run * shape.words()).enumerate() {
            let first = start + r * run;
            let end = first + values.len() / shape.words();
            let ots = first * bits..end * bits;
            pads.resize(ots.len() * window, Block::ZERO);
            offsets.clear();
            offsets.extend((first..end).map(|item| index(item) * shape.entry as u64));
            starts.clear();
            starts.extend(offsets.iter().flat_map(|offset| std::iter::repeat_n(offset >> 7, bits)));
            let (number, blocks) = (self.first + ots.start as u64, &self.blocks[ots]);
            hash.expand_from(number, blocks, Block::ZERO, window, |ot| starts[ot], &mut pads);
            let items =
                offsets.iter().zip(pads.chunks_exact(bits * window)).zip(values.chunks_exact_mut(shape.words()));
            for ((&offset, pads), values) in items {
                select(&mut reader, shape.item_bits(), offset >> 7, &mut chosen);
                for i in 0..bits {
                    for (c, &p) in chosen.iter_mut().zip(&pads[i * window..(i + 1) * window]) {
                        *c ^= p;
                    }
                }
                shift_down(&mut chosen, (offset & 127) as u32);
                unpack(&chosen, &shape.widths, values);
            }
        }
        pads.zeroize();
        offsets.zeroize();
        starts.zeroize();
        chosen.zeroize();
    }
}

/// Reads a string of `bits` bits and keeps its blocks `start, start + 1, ..` in `out`. All blocks are touched alike,
/// because `start` is secret.
fn select(reader: &mut Reader<'_>, bits: usize, start: u64, out: &mut [Block]) {
    out.fill(Block::ZERO);
    let mut left = bits;
    for c in 0..bits.div_ceil(128) as u64 {
        let low = left.min(64);
        let high = (left - low).min(64);
        left -= low + high;
        let block = Block([reader.take(low as u32), reader.take(high as u32)]);
        for (i, out) in (0..).zip(out.iter_mut()) {
            *out ^= block.times(equal(c, start + i));
        }
    }
}

/// Shifts a string of blocks down by `s < 128` bits.
fn shift_down(blocks: &mut [Block], s: u32) {
    let mut high = 0;
    for block in blocks.iter_mut().rev() {
        let low = u128::from(*block);
        // Two shifts, because one by 128 - s would overflow for s = 0.
        *block = Block::from(low >> s | (high << 1) << (127 - s));
        high = low;
    }
}

/// Cuts the words of one entry from the string `blocks`.
fn unpack(blocks: &[Block], widths: &[u32], values: &mut [u64]) {
    let mut bit = 0;
    for (value, &w) in values.iter_mut().zip(widths) {
        let (at, s) = (bit / 64, bit % 64);
        let word = |i: usize| blocks.get(i / 2).map_or(0, |b| b.0[i % 2]);
        *value = (word(at) >> s | (word(at + 1) << 1) << (63 - s)) & mask(w);
        bit += w as usize;
    }
}
