//! Correlated OT modulo powers of two: a sender's vector times a receiver's bit, as additive shares.
//!
//! For OT i with choice `b_i` and keys `k_0, k_1`, and slot t of width w, the sender takes the share
//! `-H(k_0)_t mod 2^w` and sends `m_t = H(k_0)_t + H(k_1)_t + corr_t`; the receiver takes `H(k_0)_t` for `b_i = 0` and
//! `m_t - H(k_1)_t` for `b_i = 1` (Asharov et al., <https://eprint.iacr.org/2013/552>, section 5, over Z_{2^w}).

use std::ops::Range;

use rayon::prelude::*;
use zeroize::Zeroize;

use crate::bits::{BitReader, byte_writer, low_mask, packed_bytes};
use crate::{Block, ChosenKeys, OtError, SenderKeys};

const STEP: &str = "ot/correlated";

/// Blocks of pad per task of the thread pool.
const TASK_BLOCKS: usize = 1 << 12;

/// Blocks of pad hashed at once; they stay in the first-level cache.
const RUN_BLOCKS: usize = 128;

/// The shape of a batch of correlated OTs: `count` OTs, each with `slots` values of one width. The widths repeat with
/// a period, for example bits - 1, .., 0 for the OTs that multiply the bits of an integer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Correlation {
    count: usize,
    slots: usize,
    widths: Vec<u32>,
}

impl Correlation {
    /// `count` OTs of `slots >= 1` values; OT i has width `widths[i % widths.len()]`, each in 1..=64. Errors: a
    /// parameter out of range, no widths, or more values than memory can address.
    pub fn new(count: usize, slots: usize, widths: &[u32]) -> Result<Self, OtError> {
        check_widths(widths)?;
        if slots == 0 || slots.checked_mul(64 * widths.len()).is_none() || count.checked_mul(64 * slots).is_none() {
            return Err(OtError::Parameter { what: "number of slots", allowed: "1.. within memory", got: slots });
        }
        Ok(Correlation { count, slots, widths: widths.to_vec() })
    }

    /// Number of OTs.
    pub fn ots(&self) -> usize {
        self.count
    }

    /// Values on either side: OTs times slots, OT by OT.
    pub fn values(&self) -> usize {
        self.count * self.slots
    }

    /// Bytes of the sender's message, without framing: all values back to back, rounded up once.
    pub fn message_bytes(&self) -> usize {
        packed_bytes(self.bits(self.count))
    }

    /// Bits of the first `ots` OTs.
    fn bits(&self, ots: usize) -> u128 {
        let period = self.widths.len();
        let sum = |widths: &[u32]| widths.iter().map(|&w| u128::from(w)).sum::<u128>();
        let per_slot = (ots / period) as u128 * sum(&self.widths) + sum(&self.widths[..ots % period]);
        per_slot * self.slots as u128
    }

    /// OTs per task: whole periods, and whole bytes of the message.
    fn task(&self) -> usize {
        let unit = 8 * self.widths.len();
        unit * (TASK_BLOCKS / (unit * self.slots.div_ceil(2))).max(1)
    }

    /// Bytes of the message per task.
    fn task_bytes(&self) -> usize {
        packed_bytes(self.bits(self.task()))
    }

    fn width(&self, ot: usize) -> u32 {
        self.widths[ot % self.widths.len()]
    }

    /// Pad blocks of one key for values of width `w`: each block serves as many whole values as fit.
    fn pad_blocks(&self, w: u32) -> usize {
        self.slots.div_ceil(values_per_block(w))
    }

    /// The OTs `range` in runs of equal need: calls `run(first, end, pad blocks per key)`.
    fn for_runs(&self, range: Range<usize>, mut run: impl FnMut(Range<usize>, usize)) {
        let mut first = range.start;
        while first < range.end {
            let per = self.pad_blocks(self.width(first));
            let longest = range.end.min(first + (RUN_BLOCKS / per).max(1));
            let end = (first + 1..longest).find(|&ot| self.pad_blocks(self.width(ot)) != per).unwrap_or(longest);
            run(first..end, per);
            first = end;
        }
    }
}

/// Values of width `w` that one pad block serves: at least 2.
#[inline]
fn values_per_block(w: u32) -> usize {
    (128 / w) as usize
}

impl SenderKeys {
    /// Spends the keys on the products `b_i corr[i][t] mod 2^{w_i}` (`corr` OT by OT, only the `w_i` low bits matter).
    /// Returns the message for [`ChosenKeys::decorrelate`] and this party's shares, reduced. Errors: the number of
    /// keys or values is not the shape's.
    pub fn correlate(self, shape: &Correlation, corr: &[u64]) -> Result<(Vec<u8>, Vec<u64>), OtError> {
        OtError::expect(STEP, "OTs", shape.ots(), self.len())?;
        OtError::expect(STEP, "values", shape.values(), corr.len())?;
        let mut message = vec![0; shape.message_bytes()];
        let mut shares = vec![0; shape.values()];
        let (task, slots) = (shape.task(), shape.slots);
        message
            .par_chunks_mut(shape.task_bytes())
            .zip(shares.par_chunks_mut(task * slots))
            .zip(corr.par_chunks(task * slots))
            .enumerate()
            .for_each(|(i, ((message, shares), corr))| self.correlate_task(shape, i * task, message, shares, corr));
        Ok((message, shares))
    }

    fn correlate_task(
        &self,
        shape: &Correlation,
        first: usize,
        message: &mut [u8],
        shares: &mut [u64],
        corr: &[u64],
    ) {
        let slots = shape.slots;
        let mut hash = self.hash.expander();
        let mut writer = byte_writer(message);
        let (mut pads0, mut pads1) = (Vec::new(), Vec::new());
        let mut values = shares.chunks_exact_mut(slots).zip(corr.chunks_exact(slots));
        shape.for_runs(first..first + corr.len() / slots, |ots, per| {
            pads0.resize(ots.len() * per, Block::ZERO);
            pads1.resize(ots.len() * per, Block::ZERO);
            let (index, blocks) = (self.first + ots.start as u64, &self.blocks[ots.clone()]);
            hash.expand(index, blocks, Block::ZERO, per, &mut pads0);
            hash.expand(index, blocks, self.delta, per, &mut pads1);
            let pads = pads0.chunks_exact(per).zip(pads1.chunks_exact(per));
            for ((ot, pads), (shares, corr)) in ots.zip(pads).zip(values.by_ref()) {
                let w = shape.width(ot);
                let (n, mask) = (values_per_block(w), low_mask(w));
                let values = shares.chunks_mut(n).zip(corr.chunks(n));
                for ((&p0, &p1), (shares, corr)) in pads.0.iter().zip(pads.1).zip(values) {
                    let (mut p0, mut p1) = (u128::from(p0), u128::from(p1));
                    for (share, &corr) in shares.iter_mut().zip(corr) {
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
    /// Spends the keys on the sender's `message`. Returns shares that add up with the sender's to `b_i corr[i][t]
    /// mod 2^{w_i}`, reduced, OT by OT. Errors: the number of keys or bytes is not the shape's.
    pub fn decorrelate(self, shape: &Correlation, message: &[u8]) -> Result<Vec<u64>, OtError> {
        OtError::expect(STEP, "OTs", shape.ots(), self.len())?;
        OtError::expect(STEP, "bytes", shape.message_bytes(), message.len())?;
        let mut shares = vec![0; shape.values()];
        let (task, slots) = (shape.task(), shape.slots);
        shares
            .par_chunks_mut(task * slots)
            .zip(message.par_chunks(shape.task_bytes()))
            .enumerate()
            .for_each(|(i, (shares, message))| self.decorrelate_task(shape, i * task, message, shares));
        Ok(shares)
    }

    fn decorrelate_task(&self, shape: &Correlation, first: usize, message: &[u8], shares: &mut [u64]) {
        let slots = shape.slots;
        let mut hash = self.hash.expander();
        let mut reader = BitReader::new(message);
        let mut pads = Vec::new();
        let count = shares.len() / slots;
        let mut values = shares.chunks_exact_mut(slots);
        shape.for_runs(first..first + count, |ots, per| {
            pads.resize(ots.len() * per, Block::ZERO);
            let (index, blocks) = (self.first + ots.start as u64, &self.blocks[ots.clone()]);
            hash.expand(index, blocks, Block::ZERO, per, &mut pads);
            for ((ot, pads), shares) in ots.zip(pads.chunks_exact(per)).zip(values.by_ref()) {
                let w = shape.width(ot);
                let mask = low_mask(w);
                let chosen = self.choices.get(ot).wrapping_neg();
                for (&pad, shares) in pads.iter().zip(shares.chunks_mut(values_per_block(w))) {
                    let mut p = u128::from(pad);
                    for share in shares {
                        // p for choice 0, m - p for choice 1.
                        let pad = p as u64;
                        let m = reader.pull(w);
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
