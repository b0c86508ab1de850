//! Vectors of words whose widths repeat with a period, as messages carry them.

use crate::stream::{Bytes, Reader, Writer, bytes_for};
use crate::{Error, mask};

/// Bytes of `count` packed words, whose widths repeat `widths`. Saturates.
pub fn packed_bytes(count: usize, widths: &[u32]) -> usize {
    let sum = |widths: &[u32]| widths.iter().map(|&width| u128::from(width)).sum::<u128>();
    let period = widths.len().max(1);
    bytes_for((count / period) as u128 * sum(widths) + sum(&widths[..(count % period).min(widths.len())]))
}

/// Packs the low bits of the words back to back. Word i has width `widths[i % widths.len()]`; widths are 1 to 64
/// bits. The last byte is padded with zeros.
pub fn pack(words: &[u64], widths: &[u32]) -> Vec<u8> {
    let mut out = vec![0; packed_bytes(words.len(), widths)];
    let mut writer = Writer::new(Bytes::new(&mut out));
    match widths {
        // With a single width, the loop need not look it up.
        &[width] => words.iter().for_each(|word| writer.push(word & mask(width), width)),
        _ => {
            words.iter().zip(widths.iter().cycle()).for_each(|(word, &width)| writer.push(word & mask(width), width))
        }
    }
    writer.finish();
    out
}

/// Reads the `count` words of a message that [`pack`] made. Errors, which name `what`: a wrong length, or padding
/// bits that are set.
pub fn unpack(what: &'static str, message: &[u8], count: usize, widths: &[u32]) -> Result<Vec<u64>, Error> {
    let expected = packed_bytes(count, widths);
    if message.len() != expected {
        return Err(Error::Length { what, expected, got: message.len() });
    }
    let mut reader = Reader::new(message);
    let words = match widths {
        &[width] => (0..count).map(|_| reader.take(width)).collect(),
        _ => widths.iter().cycle().take(count).map(|&width| reader.take(width)).collect(),
    };
    reader.finish(what)?;
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn words_come_back(
            widths in prop::collection::vec(1u32..=64, 1..5),
            words in prop::collection::vec(any::<u64>(), 0..40),
        ) {
            let message = pack(&words, &widths);
            let bits: usize = widths.iter().cycle().take(words.len()).map(|&width| width as usize).sum();
            prop_assert_eq!((message.len(), packed_bytes(words.len(), &widths)), (bits.div_ceil(8), bits.div_ceil(8)));
            let got = unpack("test", &message, words.len(), &widths).unwrap();
            for ((got, want), &width) in got.iter().zip(&words).zip(widths.iter().cycle()) {
                prop_assert_eq!(*got, want & mask(width));
            }
        }
    }

    #[test]
    fn other_lengths_and_padding_are_refused() {
        let message = pack(&[1, 2, 3], &[5]);
        for wrong in [&message[..1], &[&message[..], &[0]].concat()] {
            let error = unpack("words", wrong, 3, &[5]).unwrap_err();
            assert_eq!(error, Error::Length { what: "words", expected: 2, got: wrong.len() });
        }
        let padded = [message[0], message[1] | 0x80];
        assert_eq!(unpack("words", &padded, 3, &[5]), Err(Error::Padding { what: "words" }));
        assert_eq!(unpack("words", &[], 0, &[]), Ok(vec![]));
    }
}
