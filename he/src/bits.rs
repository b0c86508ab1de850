//! Dense bit packing, least significant bit first. Every packed vector starts and ends on a byte.

use crate::error::HeError;

/// Bytes of `count` values of `bits` bits.
pub(crate) const fn packed_len(count: usize, bits: u32) -> usize {
    (count * bits as usize).div_ceil(8)
}

/// Appends values to a byte vector; [`Self::finish`] pads the last byte with zeros.
pub(crate) struct BitWriter<'a> {
    out: &'a mut Vec<u8>,
    buffer: u128,
    filled: u32,
}

impl<'a> BitWriter<'a> {
    pub(crate) fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out, buffer: 0, filled: 0 }
    }

    /// `value < 2^bits`, `bits <= 64`.
    #[inline(always)]
    pub(crate) fn push(&mut self, value: u64, bits: u32) {
        debug_assert!(bits <= 64 && u128::from(value) >> bits == 0);
        // filled < 64 here, so filled + bits < 128.
        self.buffer |= u128::from(value) << self.filled;
        self.filled += bits;
        if self.filled >= 64 {
            self.out.extend_from_slice(&(self.buffer as u64).to_le_bytes());
            self.buffer >>= 64;
            self.filled -= 64;
        }
    }

    /// `value < 2^bits`, `bits <= 128`.
    #[inline(always)]
    pub(crate) fn push_wide(&mut self, value: u128, bits: u32) {
        if bits <= 64 {
            self.push(value as u64, bits);
        } else {
            self.push(value as u64, 64);
            self.push((value >> 64) as u64, bits - 64);
        }
    }

    pub(crate) fn finish(self) {
        let bytes = self.filled.div_ceil(8) as usize;
        self.out.extend_from_slice(&self.buffer.to_le_bytes()[..bytes]);
    }
}

/// Reads values back. The caller has checked the length: reading past the end yields zeros.
pub(crate) struct BitReader<'a> {
    rest: &'a [u8],
    buffer: u128,
    filled: u32,
}

impl<'a> BitReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, buffer: 0, filled: 0 }
    }

    #[inline(always)]
    pub(crate) fn take(&mut self, bits: u32) -> u64 {
        debug_assert!((1..=64).contains(&bits));
        if self.filled < bits {
            let word = match self.rest.split_first_chunk::<8>() {
                Some((word, rest)) => {
                    self.rest = rest;
                    u64::from_le_bytes(*word)
                }
                None => {
                    let mut word = [0; 8];
                    word[..self.rest.len()].copy_from_slice(self.rest);
                    self.rest = &[];
                    u64::from_le_bytes(word)
                }
            };
            // filled < 64, so the new word fits in 128 bits.
            self.buffer |= u128::from(word) << self.filled;
            self.filled += 64;
        }
        let value = (self.buffer as u64) & (u64::MAX >> (64 - bits));
        self.buffer >>= bits;
        self.filled -= bits;
        value
    }

    #[inline(always)]
    pub(crate) fn take_wide(&mut self, bits: u32) -> u128 {
        if bits <= 64 {
            u128::from(self.take(bits))
        } else {
            let low = u128::from(self.take(64));
            low | u128::from(self.take(bits - 64)) << 64
        }
    }

    /// Checks that nothing but zero padding is left.
    pub(crate) fn finish(self, message: &'static str) -> Result<(), HeError> {
        if self.buffer == 0 && self.rest.is_empty() { Ok(()) } else { Err(HeError::Padding { message }) }
    }
}

/// Fails unless `bytes` has exactly the expected length.
pub(crate) fn check_len(message: &'static str, bytes: &[u8], expected: usize) -> Result<(), HeError> {
    if bytes.len() == expected { Ok(()) } else { Err(HeError::Length { message, expected, got: bytes.len() }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn packing_round_trips(values in prop::collection::vec((any::<u128>(), 1u32..=128), 0..200)) {
            let mut bytes = vec![7];
            let mut writer = BitWriter::new(&mut bytes);
            let mask = |v: u128, b: u32| v & (u128::MAX >> (128 - b));
            values.iter().for_each(|&(v, b)| writer.push_wide(mask(v, b), b));
            writer.finish();
            let total: u32 = values.iter().map(|v| v.1).sum();
            prop_assert_eq!(bytes.len(), 1 + total.div_ceil(8) as usize);
            let mut reader = BitReader::new(&bytes[1..]);
            for &(v, b) in &values {
                prop_assert_eq!(reader.take_wide(b), mask(v, b));
            }
            prop_assert!(reader.finish("test").is_ok());
        }
    }

    #[test]
    fn padding_must_be_zero() {
        let mut reader = BitReader::new(&[0b1000_0001]);
        assert_eq!(reader.take(7), 1);
        assert_eq!(reader.finish("x"), Err(HeError::Padding { message: "x" }));
    }
}
