//! Guesses by looking up earlier places, because texts repeat themselves.

use super::Guess;
use crate::Error;

/// The largest number of last tokens that are looked up.
const LONGEST: usize = 3;

/// Prompt lookup decoding (Saxena, 2023): finds the latest earlier place where the last three tokens stand, or else
/// the last two, or else the last one. It guesses that the text goes on as it did there. If the guess reaches the end
/// of the text, it goes on with its own tokens: a text that repeats itself is guessed to do so for ever.
#[derive(Clone, Copy, Debug, Default)]
pub struct PromptLookup;

impl Guess for PromptLookup {
    fn guess(&mut self, text: &[u32], count: usize) -> Result<Vec<u32>, Error> {
        let Some(mut next) = (1..=LONGEST).rev().find_map(|length| after_earlier(text, length)) else {
            return Ok(Vec::new());
        };
        let mut guesses: Vec<u32> = Vec::with_capacity(count);
        for _ in 0..count {
            guesses.push(text.get(next).copied().unwrap_or_else(|| guesses[next - text.len()]));
            next += 1;
        }
        Ok(guesses)
    }
}

/// The place at which the text goes on after the latest earlier occurrence of its last `length` tokens.
fn after_earlier(text: &[u32], length: usize) -> Option<usize> {
    let from = text.len().checked_sub(length)?;
    let tail = &text[from..];
    (0..from).rev().find(|&at| text[at..at + length] == *tail).map(|at| at + length)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn guess(text: &[u32], count: usize) -> Vec<u32> {
        PromptLookup.guess(text, count).unwrap()
    }

    #[test]
    fn the_longest_run_at_its_latest_place_decides() {
        // A place of three tokens beats a later place of two.
        assert_eq!(guess(&[1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3], 2), [4, 9]);
        // Of two places of three tokens the later one counts.
        assert_eq!(guess(&[1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], 2), [5, 1]);
        assert_eq!(guess(&[7, 8, 6, 7], 3), [8, 6, 7]);
        assert_eq!(guess(&[5, 5], 3), [5, 5, 5]);
        assert_eq!(guess(&[1, 2, 1, 2], 5), [1, 2, 1, 2, 1]);
        assert_eq!(guess(&[1, 2, 3], 4), [0u32; 0]);
        assert_eq!(guess(&[1], 4), [0u32; 0]);
        assert_eq!(guess(&[], 4), [0u32; 0]);
    }

    proptest! {
        #[test]
        fn a_guess_continues_an_earlier_place(text in prop::collection::vec(0u32..4, 0..24), count in 0usize..10) {
            let got = guess(&text, count);
            // By the definition: all places of all lengths, the longest first, and of these the latest first.
            let places = (1..=3usize).rev().flat_map(|length| {
                (0..text.len()).rev().map(move |at| (length, at))
            });
            let mut fitting = places.filter(|&(length, at)| {
                at + length < text.len() && text[at..at + length] == text[text.len() - length..]
            });
            match fitting.next() {
                None => prop_assert!(got.is_empty()),
                Some((length, at)) => {
                    prop_assert_eq!(got.len(), count);
                    let whole: Vec<u32> = text.iter().chain(&got).copied().collect();
                    let period = text.len() - (at + length);
                    for i in text.len()..whole.len() {
                        prop_assert_eq!(whole[i], whole[i - period], "token {} of {:?}", i, whole);
                    }
                }
            }
        }
    }
}
