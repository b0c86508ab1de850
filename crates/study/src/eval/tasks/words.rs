//! Words and pairs of tokens from which tasks make questions.

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

use super::TaskInput;
use crate::eval::EvalError;

/// Common words of plain letters, which every tokenizer of English knows.
const WORDS: [&str; 64] = [
    "amber", "anchor", "apple", "arrow", "basket", "beacon", "bridge", "butter", "candle", "castle", "cherry",
    "clover", "copper", "cotton", "dragon", "eagle", "ember", "falcon", "feather", "forest", "garden", "ginger",
    "hammer", "harbor", "honey", "island", "ivory", "jacket", "jungle", "kettle", "ladder", "lantern", "lemon",
    "marble", "meadow", "mirror", "monkey", "needle", "nickel", "ocean", "olive", "orange", "pepper", "pigeon",
    "pillow", "planet", "pocket", "prince", "rabbit", "ribbon", "river", "saddle", "silver", "spider", "summer",
    "temple", "thunder", "timber", "tunnel", "valley", "velvet", "violet", "willow", "window",
];

/// `count` different random words of [`WORDS`].
pub(super) fn words(rng: &mut StdRng, count: usize) -> Vec<&'static str> {
    let mut words = WORDS.to_vec();
    words.shuffle(rng);
    words.truncate(count);
    words
}

/// The number of words in [`WORDS`].
pub(super) const KNOWN: usize = WORDS.len();

/// The token that stands before the pairs of a sequence.
pub(super) const BEGIN: u32 = 0;

/// Up to `most` pairs of a key and a value, each a single token. Keys are different and in random order; values are
/// random. A model without a tokenizer is assumed to be trained for recall. In its vocabulary, id 0 stands before a
/// text; then come all keys, then as many values.
pub(super) fn pairs(
    input: &TaskInput,
    task: &'static str,
    rng: &mut StdRng,
    most: usize,
) -> Result<Vec<[u32; 2]>, EvalError> {
    let keys = (input.spec.vocabulary().saturating_sub(1) / 2) as u32;
    if keys < 2 {
        return Err(EvalError::TaskNeeds { task, what: "a tokenizer, or a vocabulary of keys and values" });
    }
    let mut all: Vec<u32> = (1..=keys).collect();
    all.shuffle(rng);
    all.truncate(most);
    Ok(all.into_iter().map(|key| [key, rng.random_range(keys + 1..=2 * keys)]).collect())
}
