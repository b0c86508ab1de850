//! Hidden indices: numbers whose bits two parties share by the choices of random OTs, and the vectors that they
//! select.
//!
//! **Functionality.** A bit of an index is the exclusive-or of the choices of two random OTs, one in each direction.
//! From these OTs alone the parties get, without further ones,
//! - additive shares of the index ([`HiddenIndices::sums`]), from one message;
//! - shares by exclusive-or of the unit vector of some of its bits ([`UnitVectors`]), in one exchange per bit;
//! - additive shares of some words at the place that bits say, and zeros elsewhere ([`PlacedWords`]), likewise.
//!
//! **Source.** A unit vector doubles with the next bit: its upper half is the vector of fewer bits times that bit,
//! its lower half is what is left of that vector. This is a barrel shifter. The product of a shared bit with shared
//! words takes a correlated OT in each direction (CrypTFlow2, eprint 2020/1002, section 3.1). The choices of these
//! OTs are the bit's shares.
//!
//! **One OT, several messages.** A correlated OT of several values may send each of them in a message of its own, as
//! soon as the sender knows it: value t is masked by bits t of the pads `H(q)` and `H(q ^ Delta)`, which no other
//! value uses, so its message looks random to the receiver whatever the messages before it were. The OTs of an index
//! bit serve like this. In the first block of a pad (counter 0 of the hash of pads) the low word masks the product
//! for the additive shares, and the high word a step of a unit vector. A step of more than 64 bits, or of words, is
//! masked by blocks of its own (counters from 1 on). Each bit takes part in one vector at most, which is checked.
//! Point functions ([`crate::dpf`]) use the blocks of the same OTs; their documentation says why pads stay as good.
//!
//! **What each party sees.** Messages under pads. The choices are random and never sent. **Revealed.** Nothing.
//!
//! **Layout.** Indices go in groups of [`GROUP`]. An index has a random OT in each direction for each *place*, a bit.
//! The OTs of a group go place by place, so that a place of the whole group is a row of blocks and one word of
//! choices.

use std::ops::Range;

use rayon::prelude::*;
use waggle_bits::cpu::wide;
use waggle_bits::{Bits, Bytes, Reader, Words, Writer, bytes_for, mask};
use waggle_net::Role;
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::block::spread;
use crate::dpf::GROUP;
use crate::{Block, ChosenKeys, OtError, SenderKeys};

const STEP: &str = "ot/index";

/// Number of bits of a step that the first block of a pad can mask.
const NARROW: usize = 64;

/// Largest number of index bits of a unit vector. The vector then has 2^8 entries.
pub const MOST_UNIT_BITS: usize = 8;

/// A batch of hidden indices of one party.
#[derive(ZeroizeOnDrop)]
pub struct HiddenIndices {
    #[zeroize(skip)]
    role: Role,
    #[zeroize(skip)]
    count: usize,
    /// log2 of the weight of the bit at each place.
    #[zeroize(skip)]
    weights: Vec<u32>,
    pub(crate) sender: SenderKeys,
    pub(crate) chosen: ChosenKeys,
    /// `hide` has, for every OT, the pad under which this party sends a step's message. `share` has this party's
    /// share of the step's product before the peer's message.
    hide: Vec<u64>,
    share: Vec<u64>,
    /// For every OT, the client's pad of the products for the additive shares. It is kept until the server's message
    /// arrives.
    low: Vec<u64>,
    /// The server's message for the additive shares.
    #[zeroize(skip)]
    message: Vec<u8>,
    sums: Vec<u64>,
    /// Mask with a bit for each place, which is set if a vector has taken the place.
    #[zeroize(skip)]
    taken: u64,
}

/// A group of a batch.
#[derive(Clone, Copy)]
pub(crate) struct Group {
    /// First index of the group.
    pub(crate) first: usize,
    /// Number of indices of the group.
    pub(crate) len: usize,
}

impl Group {
    /// The groups of `count` indices.
    pub(crate) fn all(count: usize) -> impl IndexedParallelIterator<Item = Group> {
        (0..count.div_ceil(GROUP)).into_par_iter().map(move |group| {
            let first = group * GROUP;
            Group { first, len: GROUP.min(count - first) }
        })
    }

    /// The OTs of this group for the place `place` of `places`.
    pub(crate) fn row(self, places: usize, place: usize) -> Range<usize> {
        let start = self.first * places + place * self.len;
        start..start + self.len
    }
}

/// For each place, the width of the product of both parties' bits. The product counts twice the weight of the bit,
/// and only bits below the index's modulus matter.
fn product_widths(weights: &[u32]) -> impl Iterator<Item = u32> {
    weights.iter().map(|weight| weights.len() as u32 - 1 - weight)
}

/// Bytes of the server's message for the additive shares of `count` indices.
pub fn sum_bytes(count: usize, weights: &[u32]) -> usize {
    bytes_for(count as u128 * product_widths(weights).map(u128::from).sum::<u128>())
}

/// Bytes of a message of step `step` of the unit vectors of `count` indices.
pub fn unit_bytes(count: usize, step: usize) -> usize {
    (count << step).div_ceil(8)
}

/// Bytes of a message of step `step` of placing `words` words of `width` bits by `count` indices.
pub fn placed_bytes(count: usize, step: usize, words: usize, width: u32) -> usize {
    bytes_for(((count * words) as u128 * u128::from(width)) << step)
}

impl HiddenIndices {
    /// Makes indices from random OTs in both directions. `weights` holds log2 of the weight of the bit at each place:
    /// the numbers from 0 on in any order. Each index takes one OT in each direction for each place, laid out as the
    /// module says. Errors: different numbers of OTs in the two directions, a number that gives no whole indices, or
    /// invalid weights.
    pub fn new(role: Role, weights: &[u32], ots: (SenderKeys, ChosenKeys)) -> Result<Self, OtError> {
        let ((sender, chosen), places) = (ots, weights.len());
        let all = weights.iter().fold(0u64, |all, weight| all | 1u64.checked_shl(*weight).unwrap_or(0));
        if !(1..64).contains(&places) || all != mask(places as u32) {
            return Err(OtError::Parameter { what: "weights of bits", allowed: "0.. in any order", got: places });
        }
        OtError::expect(STEP, "OTs", sender.len(), chosen.len())?;
        if !sender.len().is_multiple_of(places) {
            return Err(OtError::Length { step: STEP, unit: "OTs of an index", expected: places, got: sender.len() });
        }
        let (count, ots) = (sender.len() / places, sender.len());
        let server = role == Role::Server;
        let sum = product_widths(weights).sum::<u32>() as usize;
        let mut indices = HiddenIndices {
            role,
            count,
            weights: weights.to_vec(),
            sender,
            chosen,
            hide: vec![0; ots],
            share: vec![0; ots],
            low: vec![0; if server { 0 } else { ots }],
            message: Vec::new(),
            sums: vec![0; count],
            taken: 0,
        };
        let HiddenIndices { sender, chosen, hide, share, low, message, sums, .. } = &mut indices;
        let per = GROUP * places;
        let rows = hide.par_chunks_mut(per).zip(share.par_chunks_mut(per)).zip(sums.par_chunks_mut(GROUP));
        if server {
            let messages: Vec<Vec<u8>> = rows
                .zip(Group::all(count))
                .map(|(((hide, share), sums), group)| {
                    let pads = pads(sender, chosen, group, places, hide, share);
                    let mut message = Vec::with_capacity(8 * sum);
                    let mut writer = Writer::new(&mut message);
                    for (place, width) in product_widths(weights).enumerate() {
                        let (row, choices) = (place * group.len, choices(chosen, group, places, place));
                        let keys = pads[0][row..].iter().zip(&pads[1][row..]);
                        for (e, (sum, (p0, p1))) in sums.iter_mut().zip(keys).enumerate() {
                            let bit = choices >> e & 1;
                            writer.push(p0.0[0].wrapping_add(p1.0[0]).wrapping_add(bit) & mask(width), width);
                            add_bit(sum, bit, p0.0[0].wrapping_neg() & mask(width), weights[place]);
                        }
                    }
                    writer.finish();
                    message
                })
                .collect();
            *message = messages.concat();
        } else {
            rows.zip(Group::all(count)).zip(low.par_chunks_mut(per)).for_each(
                |((((hide, share), _), group), low)| {
                    let pads = pads(sender, chosen, group, places, hide, share);
                    low.iter_mut().zip(&pads[2]).for_each(|(low, pad)| *low = pad.0[0]);
                },
            );
        }
        Ok(indices)
    }

    /// Number of indices.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are no indices.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Number of bits of an index.
    pub fn places(&self) -> usize {
        self.weights.len()
    }

    /// This party's shares of the indices, bit by bit.
    pub fn shares(&self) -> Vec<u64> {
        let mut shares = vec![0; self.count];
        shares.par_chunks_mut(GROUP).zip(Group::all(self.count)).for_each(|(shares, group)| {
            for (place, weight) in self.weights.iter().enumerate() {
                let choices = self.choices(group, place);
                shares.iter_mut().enumerate().for_each(|(e, share)| *share |= (choices >> e & 1) << weight);
            }
        });
        shares
    }

    /// Bytes of the server's message for the additive shares.
    pub fn sum_bytes(&self) -> usize {
        sum_bytes(self.count, &self.weights)
    }

    /// This party's share of the bit at `place` of every index of a group.
    pub(crate) fn choices(&self, group: Group, place: usize) -> u64 {
        choices(&self.chosen, group, self.places(), place)
    }

    /// Takes the server's message for the additive shares. It is empty at the client.
    pub fn offer_sums(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.message)
    }

    /// Reads the server's message at the client. Errors: a wrong length or padding.
    pub fn accept_sums(&mut self, message: &[u8]) -> Result<(), OtError> {
        let places = self.places();
        OtError::expect(STEP, "bytes", self.sum_bytes(), message.len())?;
        let (weights, chosen, count) = (&self.weights, &self.chosen, self.count);
        let sum = product_widths(weights).sum::<u32>() as usize;
        let rows = self.sums.par_chunks_mut(GROUP).zip(self.low.par_chunks(GROUP * places));
        rows.zip(Group::all(count)).enumerate().try_for_each(|(i, ((sums, low), group))| {
            let mut reader = Reader::new(&message[8 * sum * i..message.len().min(8 * sum * (i + 1))]);
            for (place, width) in product_widths(weights).enumerate() {
                let choices = choices(chosen, group, places, place);
                for (e, (sum, low)) in sums.iter_mut().zip(&low[place * group.len..]).enumerate() {
                    let (bit, m) = (choices >> e & 1, reader.take(width));
                    // The pad for choice 0, m less the pad for choice 1.
                    let product = low.wrapping_add(spread(bit) & m.wrapping_sub(*low).wrapping_sub(*low));
                    add_bit(sum, bit, product & mask(width), weights[place]);
                }
            }
            reader.finish(STEP).map_err(OtError::from)
        })?;
        self.low.zeroize();
        self.low = Vec::new();
        Ok(())
    }

    /// This party's additive shares of the indices modulo 2^places. The client must have accepted the server's
    /// message.
    pub fn sums(&self) -> impl Iterator<Item = u64> {
        self.sums.iter().map(|sum| sum & mask(self.weights.len() as u32))
    }

    /// Starts the unit vectors of the bits at `places` of every index, where the first place is the highest bit.
    /// Panics if one of the places was taken before, or if there are more than [`MOST_UNIT_BITS`].
    pub fn unit(&mut self, places: Range<usize>) -> UnitVectors {
        assert!(places.len() <= MOST_UNIT_BITS, "unit vectors of {places:?}");
        let stride = (1usize << places.len()).div_ceil(NARROW);
        let mut words = vec![0; self.count * stride];
        words.iter_mut().step_by(stride).for_each(|word| *word = u64::from(self.role == Role::Server));
        self.take(places.clone());
        UnitVectors { places, step: 0, stride, words, wide: Vec::new() }
    }

    /// Starts to place `words` by the bits at `places`. `words` are additive shares modulo 2^`width`, the same number
    /// for every index, one index after the other. Panics if one of the places was taken before, or if indices have
    /// different numbers of words.
    pub fn place(&mut self, places: Range<usize>, words: Vec<u64>, width: u32) -> PlacedWords {
        assert!(self.count == 0 || words.len().is_multiple_of(self.count), "as many words for every index");
        self.take(places.clone());
        let per = words.len() / self.count.max(1);
        PlacedWords { places, step: 0, per, width, words, kept: Vec::new() }
    }

    fn take(&mut self, places: Range<usize>) {
        for place in places {
            assert!(place < self.places() && self.taken >> place & 1 == 0, "place {place} serves one vector");
            self.taken |= 1 << place;
        }
    }

    /// Pads of the OTs `row` under the counters from 1 on, `per` blocks for each OT. The first two are those of this
    /// party's messages, under both of its keys, and the third is under the key that it chose.
    fn further_pads(&self, row: Range<usize>, per: usize) -> [Vec<Block>; 3] {
        let mut pads: [Vec<Block>; 3] = std::array::from_fn(|_| vec![Block::ZERO; row.len() * per]);
        let [p0, p1, p] = &mut pads;
        let (sender, chosen) = (&self.sender, &self.chosen);
        let (index, blocks) = (sender.first + row.start as u64, &sender.blocks[row.clone()]);
        let mut hash = sender.hash.expander(1 + per);
        hash.expand_from(index, blocks, Block::ZERO, per, |_| 1, p0);
        hash.expand_from(index, blocks, sender.delta, per, |_| 1, p1);
        let (index, blocks) = (chosen.first + row.start as u64, &chosen.blocks[row]);
        chosen.hash.expander(1 + per).expand_from(index, blocks, Block::ZERO, per, |_| 1, p);
        pads
    }
}

/// Adds a bit that the parties share by exclusive-or to a sum: their two bits less twice the product of these.
#[inline]
fn add_bit(sum: &mut u64, bit: u64, product: u64, weight: u32) {
    *sum = sum.wrapping_add(bit.wrapping_sub(product << 1) << weight);
}

fn choices(chosen: &ChosenKeys, group: Group, places: usize, place: usize) -> u64 {
    chosen.choices.word(group.row(places, place).start, group.len)
}

/// The first blocks of the pads of a group. The first two results are under both keys of this party's OTs as the
/// sender, and the third is under the key that it chose. The high words go to `hide` and `share`, where steps of unit
/// vectors find them.
fn pads(
    sender: &SenderKeys,
    chosen: &ChosenKeys,
    group: Group,
    places: usize,
    hide: &mut [u64],
    share: &mut [u64],
) -> [Vec<Block>; 3] {
    let range = group.row(places, 0).start..group.row(places, places).start;
    let mut pads: [Vec<Block>; 3] = std::array::from_fn(|_| vec![Block::ZERO; range.len()]);
    let [p0, p1, p] = &mut pads;
    let (index, blocks) = (sender.first + range.start as u64, &sender.blocks[range.clone()]);
    let mut hash = sender.hash.expander(1);
    hash.expand(index, blocks, Block::ZERO, 1, p0);
    hash.expand(index, blocks, sender.delta, 1, p1);
    let (index, blocks) = (chosen.first + range.start as u64, &chosen.blocks[range]);
    chosen.hash.expander(1).expand(index, blocks, Block::ZERO, 1, p);
    wide(|| {
        for (((hide, share), p0), (p1, p)) in hide.iter_mut().zip(share).zip(&*p0).zip(p1.iter().zip(&*p)) {
            *hide = p0.0[1] ^ p1.0[1];
            *share = p0.0[1] ^ p.0[1];
        }
    });
    pads
}

/// A party's shares of unit vectors under construction. Each step is an exchange that adds one index bit, the lowest
/// first, and doubles the vectors.
#[derive(ZeroizeOnDrop)]
pub struct UnitVectors {
    #[zeroize(skip)]
    places: Range<usize>,
    step: usize,
    /// Number of words of a vector.
    stride: usize,
    words: Vec<u64>,
    /// This party's share of the product in a wide step, before the peer's message: two words for each vector.
    wide: Vec<u64>,
}

impl UnitVectors {
    /// Whether all steps are done.
    pub fn is_done(&self) -> bool {
        self.step == self.places.len()
    }

    /// The finished vectors. A vector takes whole words of 64 bits, and its entry i is bit i.
    pub fn words(&self) -> &[u64] {
        debug_assert!(self.is_done(), "all bits are in");
        &self.words
    }

    /// The entries `entries` of all vectors as choices of OTs. The outermost index first: group, entry, vector of the
    /// group.
    pub fn rows(&self, entries: Range<usize>) -> Bits {
        debug_assert!(self.is_done(), "all bits are in");
        let len = self.words.len() / self.stride * entries.len();
        let mut words = vec![0; len.div_ceil(64)];
        let mut writer = Writer::new(Words::new(words.iter_mut()));
        for vectors in self.words.chunks(GROUP * self.stride) {
            for entry in entries.clone() {
                let bits = vectors[entry / 64..].iter().step_by(self.stride).map(|word| word >> (entry % 64) & 1);
                writer.push(
                    (0..).zip(bits).fold(0, |row, (e, bit)| row | bit << e),
                    vectors.len() as u32 / self.stride as u32,
                );
            }
        }
        writer.finish();
        Bits::from_words(words, len)
    }

    /// Bytes of a message of the next step.
    pub fn bytes(&self, indices: &HiddenIndices) -> usize {
        unit_bytes(indices.count, self.step)
    }

    fn place(&self) -> usize {
        self.places.end - 1 - self.step
    }

    /// Appends this party's message for the next step.
    pub fn offer(&mut self, indices: &HiddenIndices, out: &mut Vec<u8>) {
        let (place, places, size, stride) = (self.place(), indices.places(), 1usize << self.step, self.stride);
        let start = out.len();
        out.resize(start + self.bytes(indices), 0);
        let message = out[start..].par_chunks_mut(8 * size);
        let groups = Group::all(indices.count).zip(self.words.par_chunks(GROUP * stride)).zip(message);
        if size <= NARROW {
            return groups.for_each(|((group, words), message)| {
                let mut writer = Writer::new(Bytes::new(message));
                for (hide, words) in indices.hide[group.row(places, place)].iter().zip(words.chunks_exact(stride)) {
                    writer.push((words[0] ^ hide) & mask(size as u32), size as u32);
                }
                writer.finish();
            });
        }
        self.wide = vec![0; 2 * indices.count];
        groups.zip(self.wide.par_chunks_mut(2 * GROUP)).for_each(|(((group, words), message), share)| {
            let mut pads = indices.further_pads(group.row(places, place), 1);
            let [p0, p1, p] = &pads;
            let rows = p0.iter().zip(p1).zip(p).zip(words.chunks_exact(stride));
            let out = message.as_chunks_mut::<16>().0.iter_mut().zip(share.as_chunks_mut::<2>().0);
            for ((message, share), (((p0, p1), p), words)) in out.zip(rows) {
                *message = (*p0 ^ *p1 ^ Block([words[0], words[1]])).to_bytes();
                *share = (*p0 ^ *p).0;
            }
            pads.zeroize();
        });
    }

    /// Doubles the vectors by the peer's message `theirs`. Errors: a wrong length or padding.
    pub fn accept(&mut self, indices: &HiddenIndices, theirs: &[u8]) -> Result<(), OtError> {
        let (place, places, size, stride) = (self.place(), indices.places(), 1usize << self.step, self.stride);
        OtError::expect(STEP, "bytes", self.bytes(indices), theirs.len())?;
        let groups = Group::all(indices.count).zip(self.words.par_chunks_mut(GROUP * stride));
        let groups = groups.zip(theirs.par_chunks(8 * size));
        if size <= NARROW {
            groups.try_for_each(|((group, words), message)| {
                let (choices, mut reader) = (indices.choices(group, place), Reader::new(message));
                let rows = indices.share[group.row(places, place)].iter().zip(words.chunks_exact_mut(stride));
                for (e, (share, words)) in rows.enumerate() {
                    let bit = (choices >> e & 1).wrapping_neg();
                    let product = ((words[0] ^ reader.take(size as u32)) & bit ^ share) & mask(size as u32);
                    words[0] ^= product;
                    match size == NARROW {
                        true => words[1] = product,
                        false => words[0] |= product << size,
                    }
                }
                reader.finish(STEP).map_err(OtError::from)
            })?;
        } else {
            groups.zip(self.wide.par_chunks(2 * GROUP)).for_each(|(((group, words), message), share)| {
                let choices = indices.choices(group, place);
                let rows = words.chunks_exact_mut(stride).zip(share.as_chunks::<2>().0);
                for (e, ((words, share), m)) in rows.zip(message.as_chunks::<16>().0).enumerate() {
                    let (m, bit) = (Block::from_bytes(*m), (choices >> e & 1).wrapping_neg());
                    for i in 0..2 {
                        let product = (words[i] ^ m.0[i]) & bit ^ share[i];
                        words[i] ^= product;
                        words[2 + i] = product;
                    }
                }
            });
        }
        self.wide.zeroize();
        self.step += 1;
        Ok(())
    }
}

/// A party's shares of words that are being placed. Each step is an exchange that adds one index bit, the lowest
/// first, and doubles the places.
#[derive(ZeroizeOnDrop)]
pub struct PlacedWords {
    #[zeroize(skip)]
    places: Range<usize>,
    step: usize,
    /// Number of words of an index before the first step.
    per: usize,
    width: u32,
    words: Vec<u64>,
    /// For each word in a step, this party's share of the product without the part from the peer's message, and the
    /// pad of that message.
    kept: Vec<[u64; 2]>,
}

impl PlacedWords {
    /// Whether all steps are done.
    pub fn is_done(&self) -> bool {
        self.step == self.places.len()
    }

    /// The placed words, index by index and within an index place by place.
    pub fn into_words(mut self) -> Vec<u64> {
        debug_assert!(self.is_done(), "all bits are in");
        std::mem::take(&mut self.words)
    }

    /// Bytes of a message of the next step.
    pub fn bytes(&self, indices: &HiddenIndices) -> usize {
        placed_bytes(indices.count, self.step, self.per, self.width)
    }

    fn place(&self) -> usize {
        self.places.end - 1 - self.step
    }

    /// Number of words of an index in the current step, and number of blocks of their pad.
    fn size(&self) -> (usize, usize) {
        let size = self.per << self.step;
        (size, size.div_ceil((128 / self.width) as usize))
    }

    /// Appends this party's message for the next step.
    pub fn offer(&mut self, indices: &HiddenIndices, out: &mut Vec<u8>) {
        let (place, places, width) = (self.place(), indices.places(), self.width);
        let ((size, blocks), start) = (self.size(), out.len());
        out.resize(start + self.bytes(indices), 0);
        self.kept = vec![[0; 2]; self.words.len()];
        if size == 0 {
            return;
        }
        let message = out[start..].par_chunks_mut(8 * size * width as usize);
        let words = self.words.par_chunks(GROUP * size).zip(self.kept.par_chunks_mut(GROUP * size));
        Group::all(indices.count).zip(words).zip(message).for_each(|((group, (words, kept)), message)| {
            let (choices, mut writer) = (indices.choices(group, place), Writer::new(Bytes::new(message)));
            let mut pads = indices.further_pads(group.row(places, place), blocks);
            let rows = words.chunks_exact(size).zip(kept.chunks_exact_mut(size));
            for (e, (words, kept)) in rows.enumerate() {
                let bit = choices >> e & 1;
                let value = |pads: &[Block], t: usize| {
                    let per_block = (128 / width) as usize;
                    (u128::from(pads[e * blocks + t / per_block]) >> (width as usize * (t % per_block))) as u64
                };
                for (t, (x, kept)) in words.iter().zip(kept).enumerate() {
                    let [p0, p1, p] = pads.each_ref().map(|pads| value(pads, t));
                    // The product is (b + b' - 2 b b') x, where b' is the peer's bit. The message is for b' times (1
                    // - 2 b) x.
                    let turned = x & bit.wrapping_neg();
                    let sent = x.wrapping_sub(turned << 1).wrapping_add(p0).wrapping_add(p1);
                    writer.push(sent & mask(width), width);
                    *kept = [turned.wrapping_sub(p0), p];
                }
            }
            writer.finish();
            pads.zeroize();
        });
    }

    /// Doubles the places by the peer's message `theirs`. Errors: a wrong length or padding.
    pub fn accept(&mut self, indices: &HiddenIndices, theirs: &[u8]) -> Result<(), OtError> {
        let (place, width, (size, _)) = (self.place(), self.width, self.size());
        OtError::expect(STEP, "bytes", self.bytes(indices), theirs.len())?;
        self.step += 1;
        if size == 0 {
            return Ok(());
        }
        let mut doubled = vec![0; 2 * self.words.len()];
        let words = self.words.par_chunks(GROUP * size).zip(self.kept.par_chunks(GROUP * size));
        let groups = Group::all(indices.count).zip(words).zip(theirs.par_chunks(8 * size * width as usize));
        doubled.par_chunks_mut(2 * GROUP * size).zip(groups).try_for_each(
            |(doubled, ((group, (words, kept)), message))| {
                let (choices, mut reader) = (indices.choices(group, place), Reader::new(message));
                let rows = words.chunks_exact(size).zip(kept.chunks_exact(size));
                for (e, (doubled, (words, kept))) in doubled.chunks_exact_mut(2 * size).zip(rows).enumerate() {
                    let chosen = (choices >> e & 1).wrapping_neg();
                    let (low, high) = doubled.split_at_mut(size);
                    for ((low, high), (x, [kept, pad])) in low.iter_mut().zip(high).zip(words.iter().zip(kept)) {
                        let m = reader.take(width);
                        // The pad for choice 0, m less the pad for choice 1.
                        let got = pad.wrapping_add(chosen & m.wrapping_sub(*pad).wrapping_sub(*pad));
                        *high = kept.wrapping_add(got) & mask(width);
                        *low = x.wrapping_sub(*high) & mask(width);
                    }
                }
                reader.finish(STEP).map_err(OtError::from)
            },
        )?;
        self.words.zeroize();
        self.kept.zeroize();
        self.words = doubled;
        Ok(())
    }
}
