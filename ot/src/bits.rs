//! Packed vectors of bits, and streams of integers of any width.

use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::OtError;

/// A vector of bits, 64 to a word, least significant first. Bits beyond the length are zero.
#[derive(Clone, Default, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct Bits {
    words: Vec<u64>,
    len: usize,
}

impl Bits {
    /// `len` zero bits.
    pub fn zeros(len: usize) -> Self {
        Bits { words: vec![0; len.div_ceil(64)], len }
    }

    /// The first `len` bits of `words`; missing words count as zero, further bits are cleared.
    pub fn from_words(mut words: Vec<u64>, len: usize) -> Self {
        words.resize(len.div_ceil(64), 0);
        let mut bits = Bits { words, len };
        bits.clear_tail();
        bits
    }

    /// Bit `i` is `bit(i)`.
    pub fn from_fn(len: usize, mut bit: impl FnMut(usize) -> bool) -> Self {
        let mut bits = Bits::zeros(len);
        for i in 0..len {
            bits.words[i / 64] |= u64::from(bit(i)) << (i % 64);
        }
        bits
    }

    /// The `width` low bits of every value, least significant first, one value after the other.
    pub fn from_values(values: &[u64], width: u32) -> Self {
        let mut bytes = vec![0; packed_bytes(values.len() as u128 * u128::from(width))];
        let mut writer = byte_writer(&mut bytes);
        for &v in values {
            writer.push(v & low_mask(width), width);
        }
        writer.finish();
        let bits = Bits::from_padded_bytes(&bytes, values.len() * width as usize);
        bytes.zeroize();
        bits
    }

    /// Reads `len` bits from `ceil(len / 8)` bytes. Errors: another number of bytes, or padding bits that are set.
    pub fn from_bytes(step: &'static str, bytes: &[u8], len: usize) -> Result<Self, OtError> {
        OtError::expect(step, "bytes", len.div_ceil(8), bytes.len())?;
        let bits = Bits::from_padded_bytes(bytes, len);
        match bytes.last() {
            Some(last) if !len.is_multiple_of(8) && last >> (len % 8) != 0 => {
                Err(OtError::malformed(step, "padding bits are set"))
            }
            _ => Ok(bits),
        }
    }

    fn from_padded_bytes(bytes: &[u8], len: usize) -> Self {
        let mut words = vec![0; len.div_ceil(64)];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks(8)) {
            let mut le = [0; 8];
            le[..chunk.len()].copy_from_slice(chunk);
            *word = u64::from_le_bytes(le);
        }
        Bits::from_words(words, len)
    }

    /// `ceil(len / 8)` bytes, least significant bit first.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.words.iter().flat_map(|w| w.to_le_bytes()).collect();
        bytes.truncate(self.len.div_ceil(8));
        bytes
    }

    /// Number of bits.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The words; bits beyond the length are zero.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Bit `i` as 0 or 1. Panics if `i` is not below the length.
    #[inline]
    pub fn get(&self, i: usize) -> u64 {
        assert!(i < self.len, "bit {i} of {}", self.len);
        self.words[i / 64] >> (i % 64) & 1
    }

    /// XORs `other` into this vector. Panics if the lengths differ.
    pub fn xor_assign(&mut self, other: &Bits) {
        assert_eq!(self.len, other.len, "lengths of XORed bits");
        for (a, b) in self.words.iter_mut().zip(&other.words) {
            *a ^= b;
        }
    }

    /// Splits after `at` bits; this vector keeps the first part. Panics if `at` exceeds the length.
    pub fn split_off(&mut self, at: usize) -> Bits {
        assert!(at <= self.len, "split at {at} of {}", self.len);
        let tail = Bits::from_fn(self.len - at, |i| self.get(at + i) == 1);
        self.words.truncate(at.div_ceil(64));
        self.len = at;
        self.clear_tail();
        tail
    }

    fn clear_tail(&mut self) {
        if !self.len.is_multiple_of(64)
            && let Some(last) = self.words.last_mut()
        {
            *last &= low_mask((self.len % 64) as u32);
        }
    }
}

impl std::fmt::Debug for Bits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bits({} bits)", self.len)
    }
}

/// The mask of the `width` low bits, `width` in 0..=64.
#[inline]
pub(crate) fn low_mask(width: u32) -> u64 {
    debug_assert!(width <= 64);
    if width == 0 { 0 } else { u64::MAX >> (64 - width) }
}

/// 1 if `a == b`, else 0, without a branch; both below 2^63.
#[inline]
pub(crate) fn is_equal(a: u64, b: u64) -> u64 {
    (a ^ b).wrapping_sub(1) >> 63
}

/// Bytes that hold `bits` bits. Saturates, so an absurd shape meets a length check instead of an overflow.
pub(crate) fn packed_bytes(bits: u128) -> usize {
    usize::try_from(bits.div_ceil(8)).unwrap_or(usize::MAX)
}

/// Writes integers of 0 to 64 bits back to back, least significant bit first, into a store of 64-bit words.
pub(crate) struct BitWriter<F> {
    store: F,
    acc: u64,
    /// Bits in `acc`, below 64.
    filled: u32,
}

/// A writer into `out`, which must hold all that is pushed.
pub(crate) fn byte_writer(out: &mut [u8]) -> BitWriter<impl FnMut(u64)> {
    let mut chunks = out.chunks_mut(8);
    BitWriter::new(move |word: u64| {
        let bytes = word.to_le_bytes();
        match chunks.next() {
            Some(chunk) if chunk.len() == 8 => chunk.copy_from_slice(&bytes),
            Some(chunk) => chunk.iter_mut().zip(bytes).for_each(|(to, from)| *to = from),
            None => debug_assert!(false, "pushed more bits than the buffer holds"),
        }
    })
}

impl<F: FnMut(u64)> BitWriter<F> {
    /// A writer that hands every full word to `store`.
    pub(crate) fn new(store: F) -> Self {
        BitWriter { store, acc: 0, filled: 0 }
    }

    /// Appends `v`, which must be below `2^width`.
    #[inline]
    pub(crate) fn push(&mut self, v: u64, width: u32) {
        debug_assert!(width <= 64 && v & !low_mask(width) == 0);
        self.acc |= v << self.filled;
        let end = self.filled + width;
        if end >= 64 {
            (self.store)(self.acc);
            // The bits of v that did not fit; none if it started at bit 0.
            self.acc = if self.filled == 0 { 0 } else { v >> (64 - self.filled) };
            self.filled = end - 64;
        } else {
            self.filled = end;
        }
    }

    /// Writes the bits that do not fill a word.
    pub(crate) fn finish(mut self) {
        if self.filled > 0 {
            (self.store)(self.acc);
        }
    }
}

/// Reads integers of 0 to 64 bits back to back from bytes, least significant bit first; zeros follow the end.
pub(crate) struct BitReader<'a> {
    input: std::slice::Chunks<'a, u8>,
    acc: u64,
    /// Bits left in `acc`, below 64.
    left: u32,
}

impl<'a> BitReader<'a> {
    /// A reader over `input` from its first bit.
    pub(crate) fn new(input: &'a [u8]) -> Self {
        BitReader { input: input.chunks(8), acc: 0, left: 0 }
    }

    /// The next `width` bits.
    #[inline]
    pub(crate) fn pull(&mut self, width: u32) -> u64 {
        debug_assert!(width <= 64);
        if width <= self.left {
            let v = self.acc & low_mask(width);
            self.acc >>= width;
            self.left -= width;
            return v;
        }
        // acc holds `left` < width bits, the other 1..=64 come from the next word.
        let word = self.load();
        let v = (self.acc | word << self.left) & low_mask(width);
        let used = width - self.left;
        self.acc = if used == 64 { 0 } else { word >> used };
        self.left = 64 - used;
        v
    }

    #[inline]
    fn load(&mut self) -> u64 {
        match self.input.next() {
            Some(chunk) => match <[u8; 8]>::try_from(chunk) {
                Ok(bytes) => u64::from_le_bytes(bytes),
                Err(_) => chunk.iter().rev().fold(0, |acc, &b| acc << 8 | u64::from(b)),
            },
            None => 0,
        }
    }
}
