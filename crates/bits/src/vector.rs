//! Vectors of bits.

use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::stream::{Words, Writer};
use crate::{Error, mask};

/// A vector of bits, 64 to a word, least significant first. Bits beyond the length are zero. Wiped when dropped.
#[derive(Clone, Default, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct Bits {
    words: Vec<u64>,
    len: usize,
}

impl Bits {
    /// A vector of `len` zero bits.
    pub fn zeros(len: usize) -> Self {
        Bits { words: vec![0; len.div_ceil(64)], len }
    }

    /// The first `len` bits of `words`. Missing words count as zero, and bits from `len` on are cleared.
    pub fn from_words(mut words: Vec<u64>, len: usize) -> Self {
        words.resize(len.div_ceil(64), 0);
        let mut bits = Bits { words, len };
        bits.clear_tail();
        bits
    }

    /// A vector of `len` bits whose bit i is `bit(i)`.
    pub fn from_fn(len: usize, mut bit: impl FnMut(usize) -> bool) -> Self {
        let mut bits = Bits::zeros(len);
        for i in 0..len {
            bits.words[i / 64] |= u64::from(bit(i)) << (i % 64);
        }
        bits
    }

    /// The `width` low bits of every value, least significant first, one value after the other, for a width of 0 to
    /// 64.
    pub fn from_values(values: &[u64], width: u32) -> Self {
        let mut bits = Bits::zeros(values.len() * width as usize);
        let mut writer = Writer::new(Words::new(bits.words.iter_mut()));
        for &value in values {
            writer.push(value & mask(width), width);
        }
        writer.finish();
        bits
    }

    /// Reads `len` bits from `ceil(len / 8)` bytes. Errors, which name `what`: a wrong number of bytes, or padding
    /// bits that are set.
    pub fn from_bytes(what: &'static str, bytes: &[u8], len: usize) -> Result<Self, Error> {
        let expected = len.div_ceil(8);
        if bytes.len() != expected {
            return Err(Error::Length { what, expected, got: bytes.len() });
        }
        if bytes.last().is_some_and(|last| !len.is_multiple_of(8) && last >> (len % 8) != 0) {
            return Err(Error::Padding { what });
        }
        let mut words = vec![0; len.div_ceil(64)];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks(8)) {
            let mut le = [0; 8];
            le[..chunk.len()].copy_from_slice(chunk);
            *word = u64::from_le_bytes(le);
        }
        Ok(Bits { words, len })
    }

    /// The bits as `ceil(len / 8)` bytes, least significant bit first.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.words.iter().flat_map(|word| word.to_le_bytes()).collect();
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

    /// The words that hold the bits. Bits beyond the length are zero.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Bit `i` as 0 or 1. Panics if `i` is not below the length.
    #[inline]
    pub fn get(&self, i: usize) -> u64 {
        assert!(i < self.len, "bit {i} of {}", self.len);
        self.words[i / 64] >> (i % 64) & 1
    }

    /// The `len` bits from bit `at` on as one word, for a `len` of at most 64. Panics if the vector does not have all
    /// of them.
    #[inline]
    pub fn word(&self, at: usize, len: usize) -> u64 {
        assert!(len <= 64 && at + len <= self.len, "{len} bits from {at} on of {}", self.len);
        let (word, shift) = (at / 64, at % 64);
        let low = self.words.get(word).map_or(0, |low| low >> shift);
        let high = if shift == 0 { 0 } else { self.words.get(word + 1).map_or(0, |high| high << (64 - shift)) };
        (low | high) & mask(len as u32)
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
            *last &= mask((self.len % 64) as u32);
        }
    }
}

/// Bits are secret more often than not, so their values never reach a log.
impl std::fmt::Debug for Bits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bits({} bits)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bits_survive_bytes_and_cuts(words in prop::collection::vec(any::<u64>(), 0..5), cut: u64, spare in 0usize..64) {
            let len = (64 * words.len()).saturating_sub(spare);
            let bits = Bits::from_words(words, len);
            prop_assert_eq!(&Bits::from_bytes("test", &bits.to_bytes(), len).unwrap(), &bits);
            prop_assert_eq!(&Bits::from_fn(len, |i| bits.get(i) == 1), &bits);
            let at = cut as usize % (len + 1);
            let mut head = bits.clone();
            let tail = head.split_off(at);
            prop_assert_eq!((head.len(), tail.len()), (at, len - at));
            let split = |i| if i < at { head.get(i) } else { tail.get(i - at) };
            prop_assert!((0..len).all(|i| bits.get(i) == split(i)));
            for (at, len) in [(at, (len - at).min(64)), (at / 2, (at / 3).min(64))] {
                let word = (0..len).fold(0, |word, i| word | bits.get(at + i) << i);
                prop_assert_eq!(bits.word(at, len), word);
            }
            let mut zero = bits.clone();
            zero.xor_assign(&bits);
            prop_assert_eq!(zero, Bits::zeros(len));
        }

        #[test]
        fn values_lie_back_to_back(values in prop::collection::vec(any::<u64>(), 0..40), width in 0u32..=64) {
            let bits = Bits::from_values(&values, width);
            prop_assert_eq!(bits.len(), values.len() * width as usize);
            for (i, value) in values.iter().enumerate() {
                for j in 0..width as usize {
                    prop_assert_eq!(bits.get(i * width as usize + j), value >> j & 1);
                }
            }
        }
    }

    #[test]
    fn other_lengths_and_padding_are_refused() {
        let length = |got| Err(Error::Length { what: "bits", expected: 2, got });
        assert_eq!(Bits::from_bytes("bits", &[0], 13), length(1));
        assert_eq!(Bits::from_bytes("bits", &[0; 3], 13), length(3));
        assert_eq!(Bits::from_bytes("bits", &[0xff, 0x3f], 13), Err(Error::Padding { what: "bits" }));
        assert_eq!(Bits::from_bytes("bits", &[0xff, 0x1f], 13).unwrap(), Bits::from_fn(13, |_| true));
    }
}
