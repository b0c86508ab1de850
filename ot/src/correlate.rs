//! Correlated OT modulo powers of two: a sender's vector times a receiver's bit, as additive shares.
//!
//! For OT i with choice `b_i` and keys `k_0, k_1`, and slot t of width w, the sender takes the share
//! `-H(k_0)_t mod 2^w` and sends `m_t = H(k_0)_t + H(k_1)_t + corr_t`; the receiver takes `H(k_0)_t` for `b_i = 0`
//! and `m_t - H(k_1)_t` for `b_i = 1` (Asharov et al., <https://eprint.iacr.org/2013/552>, section 5, over Z_{2^w}).

use std::iter::Cycle;
use std::ops::Range;
use std::slice::Iter;

use rayon::prelude::*;
use waggle_bits::{Bytes, Reader, Writer, bytes_for, mask};
use zeroize::Zeroize;

use crate::block::spread;
use crate::{Block, ChosenKeys, OtError, SenderKeys};

const STEP: &str = "ot/correlated";

/// Blocks of pad per task of the thread pool.
const TASK_BLOCKS: usize = 1 << 12;

/// Blocks of pad hashed at once. They stay in the first-level cache.
const RUN_BLOCKS: usize = 128;

/// The shape of a batch of correlated OTs: `count` OTs, each with `slots` values of one width. The widths repeat with
/// a period, for example bits - 1, .., 0 for the OTs that multiply the bits of an integer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CotShape {
    count: usize,
    slots: usize,
    widths: Vec<u32>,
}

impl CotShape {
    /// A shape of `count` OTs of `slots >= 1` values each. The values of OT i have width `widths[i % widths.len()]`,
    /// in 1..=64. Errors: a parameter out of range, no widths, or more values than memory can address.
    pub fn new(count: usize, slots: usize, widths: &[u32]) -> Result<Self, OtError> {
        check_widths(widths)?;
        if slots == 0 || slots.checked_mul(64 * widths.len()).is_none() || count.checked_mul(64 * slots).is_none() {
            return Err(OtError::Parameter { what: "number of slots", allowed: "1.. within memory", got: slots });
        }
        Ok(CotShape { count, slots, widths: widths.to_vec() })
    }

    /// Number of OTs.
    pub fn ots(&self) -> usize {
        self.count
    }

    /// Number of values of either party: OTs times slots. They are ordered OT by OT.
    pub fn values(&self) -> usize {
        self.count * self.slots
    }

    /// Bytes of the sender's message, without framing. All values lie back to back, and only the whole is rounded up
    /// to bytes.
    pub fn message_bytes(&self) -> usize {
        bytes_for(self.bits(self.count))
    }

    /// Number of pad blocks for one key of every OT. The receiver hashes these. The sender hashes twice as many, as
    /// it has two keys.
    pub fn pad_blocks(&self) -> usize {
        let period = self.widths.len();
        let needs = self.needs();
        let sum = |needs: &[Need]| needs.iter().map(|need| need.blocks).sum::<usize>();
        self.count / period * sum(&needs) + sum(&needs[..self.count % period])
    }

    /// Bits of the message for the first `ots` OTs.
    fn bits(&self, ots: usize) -> u128 {
        let period = self.widths.len();
        let sum = |widths: &[u32]| widths.iter().map(|&w| u128::from(w)).sum::<u128>();
        let per_slot = (ots / period) as u128 * sum(&self.widths) + sum(&self.widths[..ots % period]);
        per_slot * self.slots as u128
    }

    /// OTs per task. These are whole periods of widths and take whole bytes of the message.
    fn task(&self) -> usize {
        let unit = 8 * self.widths.len();
        unit * (TASK_BLOCKS / (unit * self.slots.div_ceil(2))).max(1)
    }

    /// Bytes of the message per task.
    fn task_bytes(&self) -> usize {
        bytes_for(self.bits(self.task()))
    }

    /// What every OT of a period needs. It is computed once, because divisions are expensive.
    fn needs(&self) -> Vec<Need> {
        let need = |&width: &u32| {
            let per_block = (128 / width) as usize;
            Need { width, mask: mask(width), per_block, blocks: self.slots.div_ceil(per_block) }
        };
        self.widths.iter().map(need).collect()
    }

    /// Goes through the OTs `range` in runs whose OTs need the same number of pad blocks. `range` must begin with a
    /// period. Calls `run(OTs, pad blocks per key, needs)`, which must take one of the needs for every OT.
    fn for_runs<'a>(
        needs: &'a [Need],
        range: Range<usize>,
        mut run: impl FnMut(Range<usize>, usize, &mut Cycle<Iter<'a, Need>>),
    ) {
        let mut cycle = needs.iter().cycle();
        let same = needs.iter().all(|need| need.blocks == needs[0].blocks);
        let mut first = range.start;
        while first < range.end {
            let mut upcoming = cycle.clone();
            let Some(blocks) = upcoming.next().map(|need| need.blocks) else { return };
            let longest = (range.end - first).min((RUN_BLOCKS / blocks).max(1));
            let len = if same {
                longest
            } else {
                1 + upcoming.take(longest - 1).take_while(|n| n.blocks == blocks).count()
            };
            run(first..first + len, blocks, &mut cycle);
            first += len;
        }
    }
}

/// How an OT's values are cut from its pad.
struct Need {
    width: u32,
    mask: u64,
    /// Whole values that one pad block serves: at least 2.
    per_block: usize,
    /// Pad blocks per key.
    blocks: usize,
}

impl Need {
    /// The largest number of pad blocks per key among `needs`.
    fn most(needs: &[Need]) -> usize {
        needs.iter().map(|need| need.blocks).max().unwrap_or(0)
    }
}

impl SenderKeys {
    /// Spends the keys on the products `b_i corr[i][t] mod 2^{w_i}`. `corr` is ordered OT by OT, and only its `w_i`
    /// low bits matter. Returns the message for [`ChosenKeys::decorrelate`] and this party's shares, reduced. Errors:
    /// the number of keys or values is not the shape's.
    pub fn correlate(self, shape: &CotShape, corr: &[u64]) -> Result<(Vec<u8>, Vec<u64>), OtError> {
        OtError::expect(STEP, "OTs", shape.ots(), self.len())?;
        OtError::expect(STEP, "values", shape.values(), corr.len())?;
        let mut message = vec![0; shape.message_bytes()];
        let mut shares = vec![0; shape.values()];
        let (task, slots) = (shape.task(), shape.slots);
        if shape.count <= task {
            self.correlate_task(shape, 0, &mut message, &mut shares, corr);
            return Ok((message, shares));
        }
        message
            .par_chunks_mut(shape.task_bytes())
            .zip(shares.par_chunks_mut(task * slots))
            .zip(corr.par_chunks(task * slots))
            .enumerate()
            .for_each(|(i, ((message, shares), corr))| self.correlate_task(shape, i * task, message, shares, corr));
        Ok((message, shares))
    }

    fn correlate_task(&self, shape: &CotShape, first: usize, message: &mut [u8], shares: &mut [u64], corr: &[u64]) {
        let slots = shape.slots;
        let needs = shape.needs();
        let mut hash = self.hash.expander(Need::most(&needs));
        let mut writer = Writer::new(Bytes::new(message));
        let (mut pads0, mut pads1) = (Vec::new(), Vec::new());
        let mut values = shares.chunks_exact_mut(slots).zip(corr.chunks_exact(slots));
        CotShape::for_runs(&needs, first..first + corr.len() / slots, |ots, per, needs| {
            pads0.resize(ots.len() * per, Block::ZERO);
            pads1.resize(ots.len() * per, Block::ZERO);
            let (index, blocks) = (self.first + ots.start as u64, &self.blocks[ots.clone()]);
            hash.expand(index, blocks, Block::ZERO, per, &mut pads0);
            hash.expand(index, blocks, self.delta, per, &mut pads1);
            if slots == 1 {
                for (((p0, p1), need), (shares, corr)) in pads0.iter().zip(&pads1).zip(needs).zip(values.by_ref()) {
                    let (p0, p1) = (p0.0[0], p1.0[0]);
                    shares[0] = p0.wrapping_neg() & need.mask;
                    writer.push(p0.wrapping_add(p1).wrapping_add(corr[0]) & need.mask, need.width);
                }
                return;
            }
            let pads = pads0.chunks_exact(per).zip(pads1.chunks_exact(per));
            for (((p0, p1), need), (shares, corr)) in pads.zip(needs).zip(values.by_ref()) {
                let (w, mask) = (need.width, need.mask);
                let mut values = shares.iter_mut().zip(corr);
                for (&p0, &p1) in p0.iter().zip(p1) {
                    let (mut p0, mut p1) = (u128::from(p0), u128::from(p1));
                    for (share, &corr) in values.by_ref().take(need.per_block) {
                        *share = (p0 as u64).wrapping_neg() & mask;
                        writer.push((p0 as u64).wrapping_add(p1 as u64).wrapping_add(corr) & mask, w);
                        p0 >>= w;
                        p1 >>= w;
                    }
                }
            }
        });
        writer.finish();
        pads0.zeroize();
        pads1.zeroize();
    }
}

impl ChosenKeys {
    /// Spends the keys on the sender's `message`. Returns reduced shares, OT by OT, which add up with the sender's to
    /// `b_i corr[i][t] mod 2^{w_i}`. Errors: the number of keys or bytes is not the shape's.
    pub fn decorrelate(self, shape: &CotShape, message: &[u8]) -> Result<Vec<u64>, OtError> {
        OtError::expect(STEP, "OTs", shape.ots(), self.len())?;
        OtError::expect(STEP, "bytes", shape.message_bytes(), message.len())?;
        let mut shares = vec![0; shape.values()];
        let (task, slots) = (shape.task(), shape.slots);
        if shape.count <= task {
            self.decorrelate_task(shape, 0, message, &mut shares);
            return Ok(shares);
        }
        shares
            .par_chunks_mut(task * slots)
            .zip(message.par_chunks(shape.task_bytes()))
            .enumerate()
            .for_each(|(i, (shares, message))| self.decorrelate_task(shape, i * task, message, shares));
        Ok(shares)
    }

    fn decorrelate_task(&self, shape: &CotShape, first: usize, message: &[u8], shares: &mut [u64]) {
        let slots = shape.slots;
        let needs = shape.needs();
        let mut hash = self.hash.expander(Need::most(&needs));
        let mut reader = Reader::new(message);
        let mut pads = Vec::new();
        let count = shares.len() / slots;
        let mut values = shares.chunks_exact_mut(slots);
        CotShape::for_runs(&needs, first..first + count, |ots, per, needs| {
            pads.resize(ots.len() * per, Block::ZERO);
            let (index, blocks) = (self.first + ots.start as u64, &self.blocks[ots.clone()]);
            hash.expand(index, blocks, Block::ZERO, per, &mut pads);
            if slots == 1 {
                for (((ot, pad), need), shares) in ots.zip(&pads).zip(needs).zip(values.by_ref()) {
                    let (pad, chosen) = (pad.0[0], spread(self.choices.get(ot)));
                    let m = reader.take(need.width);
                    shares[0] = pad.wrapping_add(chosen & m.wrapping_sub(pad).wrapping_sub(pad)) & need.mask;
                }
                return;
            }
            for (((ot, pads), need), shares) in ots.zip(pads.chunks_exact(per)).zip(needs).zip(values.by_ref()) {
                let (w, mask) = (need.width, need.mask);
                let chosen = spread(self.choices.get(ot));
                let mut shares = shares.iter_mut();
                for &pad in pads {
                    let mut p = u128::from(pad);
                    for share in shares.by_ref().take(need.per_block) {
                        // The share is p for choice 0 and m - p for choice 1.
                        let pad = p as u64;
                        let m = reader.take(w);
                        *share = pad.wrapping_add(chosen & m.wrapping_sub(pad).wrapping_sub(pad)) & mask;
                        p >>= w;
                    }
                }
            }
        });
        pads.zeroize();
    }
}

pub(crate) fn check_widths(widths: &[u32]) -> Result<(), OtError> {
    let allowed = "1..=64, at least one";
    match widths.iter().find(|&&w| w == 0 || w > 64) {
        Some(&w) => Err(OtError::Parameter { what: "width", allowed, got: w as usize }),
        None if widths.is_empty() => Err(OtError::Parameter { what: "number of widths", allowed, got: 0 }),
        None => Ok(()),
    }
}
