//! A stream of bits: values back to back, least significant bit first.

use crate::{Error, mask};

/// The number of bytes that hold `bits` bits. It saturates, so that the length of an absurd shape fails a check
/// instead of wrapping around.
pub const fn bytes_for(bits: u128) -> usize {
    let bytes = bits.div_ceil(8);
    if bytes > usize::MAX as u128 { usize::MAX } else { bytes as usize }
}

/// Takes the words that a [`Writer`] has filled.
pub trait Sink {
    /// Takes a full word.
    fn word(&mut self, word: u64);

    /// Takes the last word, of which only the low `bytes` bytes (1 to 8) belong to the stream. The rest is zero.
    fn tail(&mut self, word: u64, bytes: usize);
}

/// Appends to a vector of bytes.
impl Sink for &mut Vec<u8> {
    #[inline(always)]
    fn word(&mut self, word: u64) {
        self.extend_from_slice(&word.to_le_bytes());
    }

    fn tail(&mut self, word: u64, bytes: usize) {
        self.extend_from_slice(&word.to_le_bytes()[..bytes]);
    }
}

/// Fills a slice of bytes. Words that do not fit are dropped; debug builds panic.
pub struct Bytes<'a>(std::slice::ChunksMut<'a, u8>);

impl<'a> Bytes<'a> {
    /// A sink that fills `out` from its first byte.
    pub fn new(out: &'a mut [u8]) -> Self {
        Bytes(out.chunks_mut(8))
    }
}

impl Sink for Bytes<'_> {
    #[inline(always)]
    fn word(&mut self, word: u64) {
        let bytes = word.to_le_bytes();
        match self.0.next() {
            Some(chunk) if chunk.len() == 8 => chunk.copy_from_slice(&bytes),
            Some(chunk) => chunk.iter_mut().zip(bytes).for_each(|(to, from)| *to = from),
            None => debug_assert!(false, "wrote more bits than the slice holds"),
        }
    }

    fn tail(&mut self, word: u64, _: usize) {
        self.word(word);
    }
}

/// Fills the words of an iterator. Words that do not fit are dropped.
pub struct Words<I>(I);

impl<'a, I: Iterator<Item = &'a mut u64>> Words<I> {
    /// A sink that fills the words that `words` yields, in that order.
    pub fn new(words: I) -> Self {
        Words(words)
    }
}

impl<'a, I: Iterator<Item = &'a mut u64>> Sink for Words<I> {
    #[inline(always)]
    fn word(&mut self, word: u64) {
        if let Some(to) = self.0.next() {
            *to = word;
        }
    }

    fn tail(&mut self, word: u64, _: usize) {
        self.word(word);
    }
}

/// Writes values back to back. Call [`Self::finish`] at the end: bits of an unfinished word are lost otherwise.
pub struct Writer<S> {
    sink: S,
    word: u64,
    /// Number of bits in `word`, below 64.
    filled: u32,
}

impl<S: Sink> Writer<S> {
    /// A writer whose first bit is the lowest bit of the sink's first word.
    pub fn new(sink: S) -> Self {
        Writer { sink, word: 0, filled: 0 }
    }

    /// Appends `value`, which must be below `2^width`, for a width of 0 to 64.
    #[inline(always)]
    pub fn push(&mut self, value: u64, width: u32) {
        debug_assert!(width <= 64 && value & !mask(width) == 0);
        self.word |= value << self.filled;
        let end = self.filled + width;
        if end < 64 {
            self.filled = end;
            return;
        }
        self.sink.word(self.word);
        // The bits of the value that did not fit: none if it began at bit 0.
        self.word = if self.filled == 0 { 0 } else { value >> (64 - self.filled) };
        self.filled = end - 64;
    }

    /// As [`Self::push`], for a width of 0 to 128.
    #[inline(always)]
    pub fn push_wide(&mut self, value: u128, width: u32) {
        if width <= 64 {
            self.push(value as u64, width);
        } else {
            self.push(value as u64, 64);
            self.push((value >> 64) as u64, width - 64);
        }
    }

    /// Writes the last word if it is only partly filled.
    pub fn finish(mut self) {
        if self.filled > 0 {
            self.sink.tail(self.word, self.filled.div_ceil(8) as usize);
        }
    }
}

/// Reads values back to back from bytes. Beyond the last byte it reads zeros, so the caller must check lengths.
pub struct Reader<'a> {
    rest: &'a [u8],
    word: u64,
    /// Number of bits left in `word`, below 64. The other bits of `word` are zero.
    left: u32,
}

impl<'a> Reader<'a> {
    /// A reader of `bytes` that begins at the lowest bit of the first byte.
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes, word: 0, left: 0 }
    }

    /// The next value, for a width of 0 to 64.
    #[inline(always)]
    pub fn take(&mut self, width: u32) -> u64 {
        debug_assert!(width <= 64);
        if width <= self.left {
            let value = self.word & mask(width);
            self.word >>= width;
            self.left -= width;
            return value;
        }
        // The word holds `left` bits of the value. The other 1 to 64 bits come from the next word.
        let next = self.next();
        let value = (self.word | next << self.left) & mask(width);
        let used = width - self.left;
        self.word = if used == 64 { 0 } else { next >> used };
        self.left = 64 - used;
        value
    }

    /// As [`Self::take`], for a width of 0 to 128.
    #[inline(always)]
    pub fn take_wide(&mut self, width: u32) -> u128 {
        if width <= 64 {
            return u128::from(self.take(width));
        }
        let low = u128::from(self.take(64));
        low | u128::from(self.take(width - 64)) << 64
    }

    /// Checks that only the padding of the last byte is left and that it is zero. Errors: [`Error::Padding`], which
    /// names `what`.
    pub fn finish(self, what: &'static str) -> Result<(), Error> {
        if self.word == 0 && self.rest.is_empty() { Ok(()) } else { Err(Error::Padding { what }) }
    }

    #[inline(always)]
    fn next(&mut self) -> u64 {
        match self.rest.split_first_chunk::<8>() {
            Some((word, rest)) => {
                self.rest = rest;
                u64::from_le_bytes(*word)
            }
            None => {
                let last = std::mem::take(&mut self.rest);
                last.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Writes the stream by its definition, one bit after the other.
    fn naive(values: &[(u128, u32)]) -> Vec<u8> {
        let bits: Vec<bool> = values.iter().flat_map(|&(v, w)| (0..w).map(move |i| v >> i & 1 == 1)).collect();
        bits.chunks(8).map(|byte| byte.iter().rev().fold(0, |byte, &bit| byte << 1 | u8::from(bit))).collect()
    }

    proptest! {
        #[test]
        fn every_sink_gets_the_stream_and_the_reader_gives_it_back(
            values in prop::collection::vec((any::<u128>(), 0u32..=128), 0..200)
        ) {
            let cut = |v: u128, w: u32| if w == 0 { 0 } else { v & u128::MAX >> (128 - w) };
            let values: Vec<(u128, u32)> = values.into_iter().map(|(v, w)| (cut(v, w), w)).collect();
            let want = naive(&values);
            let total: u128 = values.iter().map(|v| u128::from(v.1)).sum();
            prop_assert_eq!(want.len(), bytes_for(total));

            let mut appended = vec![7];
            let (mut filled, mut words) = (vec![0; want.len()], vec![0; want.len().div_ceil(8)]);
            let mut first = Writer::new(&mut appended);
            let mut second = Writer::new(Bytes::new(&mut filled));
            let mut third = Writer::new(Words::new(words.iter_mut()));
            for &(v, w) in &values {
                first.push_wide(v, w);
                second.push_wide(v, w);
                third.push_wide(v, w);
            }
            first.finish();
            second.finish();
            third.finish();
            prop_assert_eq!(&appended[1..], &want[..]);
            prop_assert_eq!(&filled, &want);
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            prop_assert!(bytes.starts_with(&want) && bytes[want.len()..].iter().all(|&byte| byte == 0));

            let mut reader = Reader::new(&want);
            for &(v, w) in &values {
                prop_assert_eq!(reader.take_wide(w), v);
            }
            prop_assert!(reader.finish("test").is_ok());
        }
    }

    #[test]
    fn padding_must_be_zero_and_the_end_reads_as_zeros() {
        let mut reader = Reader::new(&[0b1000_0001]);
        assert_eq!(reader.take(7), 1);
        assert_eq!(reader.finish("x"), Err(Error::Padding { what: "x" }));
        assert_eq!(Reader::new(&[0; 9]).finish("x"), Err(Error::Padding { what: "x" }));
        let mut reader = Reader::new(&[3]);
        assert_eq!((reader.take(64), reader.take(64), reader.take(5)), (3, 0, 0));
    }

    #[test]
    fn absurd_lengths_saturate() {
        assert_eq!((bytes_for(0), bytes_for(1), bytes_for(8), bytes_for(u128::MAX)), (0, 1, 1, usize::MAX));
    }
}
