//! Key-value retrieval: a list of pairs, and at the end a question for the value of one key.
//!
//! The list goes through the model at once. The key follows token by token, after the policy has made its choice.
//! With a tokenizer a pair is a line of two words, `KEY is VALUE.`; without one it is two tokens.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use waggle_tokenizer::Tokenizer;

use super::words::{BEGIN, KNOWN, pairs, words};
use super::{Task, TaskInput, common, encode};
use crate::eval::{EvalError, Sequence};

pub(super) const TASK: Task = Task {
    name: "key-value",
    about: "the value of one key in a list of pairs, in a bounded context",
    version: 1,
    metrics: &["exact_match", "perplexity"],
    takes: &["context", "sequences", "seed"],
    sequences,
};

/// Default number of sequences.
const SEQUENCES: usize = 16;

/// Most pairs in a sequence. All keys and values are different words, so keys and values get half of the words each.
const PAIRS: usize = KNOWN / 2;

fn sequences(input: &TaskInput) -> Result<Vec<Sequence>, EvalError> {
    let length = input.context.unwrap_or_else(|| input.spec.max_positions());
    let count = input.sequences.unwrap_or(SEQUENCES);
    if count == 0 {
        return Err(EvalError::TooFew { got: 0, wanted: 1 });
    }
    let mut rng = StdRng::seed_from_u64(input.seed);
    let one = |_| match &input.tokenizer {
        Some(tokenizer) => of_words(tokenizer, length, &mut rng),
        None => of_pairs(input, length, &mut rng),
    };
    (0..count).map(one).collect()
}

fn of_words(tokenizer: &Tokenizer, length: usize, rng: &mut StdRng) -> Result<Sequence, EvalError> {
    let drawn = words(rng, 2 * PAIRS);
    let pairs: Vec<(&str, &str)> = drawn[..PAIRS].iter().copied().zip(drawn[PAIRS..].iter().copied()).collect();
    let list =
        |count: usize| pairs[..count].iter().map(|(key, value)| format!("{key} is {value}.\n")).collect::<String>();
    let place = rng.random_range(0.0..1.0);
    let asked = |count: usize| ((place * count as f64) as usize).min(count - 1);
    let question = |count: usize| format!("{}{} is", list(count), pairs[asked(count)].0);
    let whole = |count: usize| encode(tokenizer, &format!("{} {}", question(count), pairs[asked(count)].1));
    let mut count = PAIRS;
    while count > 2 && whole(count)?.len() > length {
        count -= 1;
    }
    let (question, whole, asked) = (question(count), whole(count)?, asked(count));
    if whole.len() > length {
        return Err(EvalError::TaskLength { task: TASK.name, length, least: whole.len() });
    }
    let prompt = common(&encode(tokenizer, &list(count))?, &whole);
    let answer = whole.len() - common(&encode(tokenizer, &question)?, &whole);
    Ok(tagged(Sequence::of_answer(whole, prompt, answer)?, asked, count))
}

fn of_pairs(input: &TaskInput, length: usize, rng: &mut StdRng) -> Result<Sequence, EvalError> {
    let most = length.saturating_sub(3) / 2;
    if most < 2 {
        return Err(EvalError::TaskLength { task: TASK.name, length, least: 7 });
    }
    let pairs = pairs(input, TASK.name, rng, most.min(PAIRS))?;
    let asked = rng.random_range(0..pairs.len());
    let mut ids = vec![BEGIN];
    ids.extend(pairs.iter().flatten());
    let prompt = ids.len();
    ids.extend(pairs[asked]);
    Ok(tagged(Sequence::of_answer(ids, prompt, 1)?, asked, pairs.len()))
}

fn tagged(sequence: Sequence, asked: usize, pairs: usize) -> Sequence {
    sequence.with_tag("pairs", pairs).with_tag("asked", asked + 1)
}
