//! Words of different widths back to back, as messages carry them.

use ot::Bits;

use crate::Error;
use crate::words::mask;

/// Bytes of `count` words whose widths repeat `widths`; `count` is a multiple of their number.
pub(crate) fn bytes(count: usize, widths: &[u32]) -> usize {
    bits(count, widths).div_ceil(8)
}

fn bits(count: usize, widths: &[u32]) -> usize {
    count / widths.len().max(1) * widths.iter().map(|&w| w as usize).sum::<usize>()
}

/// The low bits of the words, least significant first.
pub(crate) fn pack(words: &[u64], widths: &[u32]) -> Vec<u8> {
    let (mut out, mut pending, mut filled) = (Vec::with_capacity(bytes(words.len(), widths) + 16), 0u128, 0);
    for (word, &width) in words.iter().zip(widths.iter().cycle()) {
        pending |= u128::from(word & mask(width)) << filled;
        filled += width;
        if filled >= 64 {
            out.extend((pending as u64).to_le_bytes());
            pending >>= 64;
            filled -= 64;
        }
    }
    out.extend((pending as u64).to_le_bytes());
    out.truncate(bytes(words.len(), widths));
    out
}

/// The reverse of [`pack`]. Errors: another length, or padding bits that are set.
pub(crate) fn unpack(step: &'static str, message: &[u8], count: usize, widths: &[u32]) -> Result<Vec<u64>, Error> {
    let bits = Bits::from_bytes(step, message, bits(count, widths))?;
    let word = |i: usize| u128::from(bits.words().get(i).copied().unwrap_or(0));
    let mut at = 0;
    let cut = |&width: &u32| {
        let pair = word(at / 64) | word(at / 64 + 1) << 64;
        let value = (pair >> (at % 64)) as u64 & mask(width);
        at += width as usize;
        value
    };
    Ok(widths.iter().cycle().take(count).map(cut).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn words_come_back(
            widths in prop::collection::vec(1u32..=64, 1..5),
            seed in prop::collection::vec(any::<u64>(), 0..40),
        ) {
            let count = seed.len() / widths.len() * widths.len();
            let message = pack(&seed[..count], &widths);
            prop_assert_eq!(message.len(), bytes(count, &widths));
            let got = unpack("test", &message, count, &widths).unwrap();
            for ((got, want), &width) in got.iter().zip(&seed).zip(widths.iter().cycle()) {
                prop_assert_eq!(*got, want & mask(width));
            }
        }
    }
}
