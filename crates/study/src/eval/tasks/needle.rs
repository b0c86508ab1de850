//! A needle in a haystack: one fact at a given depth of a long text, and at the end a question for this fact.
//!
//! The haystack with the needle goes through the model at once. The question follows token by token, after the policy
//! has made its choice without knowing it. The answer is scored: its probability (`perplexity`), its tokens
//! (`accuracy`), and whether greedy generation gives it (`exact_match`).
//!
//! With a tokenizer the haystack consists of sentences, from `--text` or four built-in ones, and the fact is a word.
//! A model without a tokenizer gets pairs of a key and a value, each one token. The needle's key occurs once, and the
//! other keys repeat.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use waggle_tokenizer::Tokenizer;

use super::words::{BEGIN, pairs, words};
use super::{Task, TaskInput, common, encode};
use crate::eval::{EvalError, Sequence};

pub(super) const TASK: Task = Task {
    name: "needle",
    about: "a fact in a long text, for every length and depth",
    version: 1,
    metrics: &["exact_match", "perplexity"],
    takes: &["text", "context", "sequences", "lengths", "depths", "seed"],
    sequences,
};

/// Default depths of the needle, from 0 (at the beginning) to 1.
const DEPTHS: [f64; 5] = [0.0, 0.25, 0.5, 0.75, 1.0];

/// Most pairs in a haystack of pairs, not counting the needle.
const PAIRS: usize = 40;

/// The sentences of the haystack if no text is given.
const SENTENCES: [&str; 4] = [
    "The road goes past the mill and down to the water.",
    "In the morning there is mist on the fields and nobody is about.",
    "An old man sits by the door and mends a net.",
    "Later the children come home and the lamps are lit.",
];

fn sequences(input: &TaskInput) -> Result<Vec<Sequence>, EvalError> {
    let most = input.context.unwrap_or_else(|| input.spec.max_positions());
    let default = [most / 4, most / 2, most];
    let lengths = input.lengths.unwrap_or(&default);
    let depths = input.depths.unwrap_or(&DEPTHS);
    if let Some(depth) = depths.iter().find(|depth| !(0.0..=1.0).contains(*depth)) {
        return Err(EvalError::Depth(*depth));
    }
    let mut sequences = Vec::new();
    for &length in lengths {
        for &depth in depths {
            for sample in 0..input.sequences.unwrap_or(1) {
                // The needle is the same at every depth, so that depths are compared on the same facts.
                let mut rng = StdRng::seed_from_u64(input.seed ^ ((length as u64) << 20) ^ sample as u64);
                let sequence = match &input.tokenizer {
                    Some(tokenizer) => of_words(input, tokenizer, length, depth, &mut rng)?,
                    None => of_pairs(input, length, depth, &mut rng)?,
                };
                sequences.push(sequence.with_tag("length", length).with_tag("depth", depth));
            }
        }
    }
    if sequences.is_empty() {
        return Err(EvalError::TooFew { got: 0, wanted: 1 });
    }
    Ok(sequences)
}

/// The sentences of `texts`, or the built-in ones.
fn sentences(texts: Option<&[String]>) -> Vec<String> {
    let whole =
        |text: &String| text.split_inclusive(['.', '!', '?']).map(|s| s.trim().to_owned()).collect::<Vec<_>>();
    let given: Vec<String> = texts.unwrap_or_default().iter().flat_map(whole).filter(|s| !s.is_empty()).collect();
    if given.is_empty() { SENTENCES.map(String::from).to_vec() } else { given }
}

fn of_words(
    input: &TaskInput,
    tokenizer: &Tokenizer,
    length: usize,
    depth: f64,
    rng: &mut StdRng,
) -> Result<Sequence, EvalError> {
    let [place, secret] = words(rng, 2)[..] else { unreachable!("there are words") };
    let question = format!("\nThe secret word of the {place} is");
    let (fact, answer) = (format!("The secret word of the {place} is {secret}."), format!(" {secret}"));
    let filler = sentences(input.texts);
    let start = rng.random_range(0..filler.len());
    let haystack = |count: usize| {
        let before = (depth * count as f64).round() as usize;
        let sentence = |i: usize| filler[(start + i) % filler.len()].as_str();
        let mut parts: Vec<&str> = (0..count).map(sentence).collect();
        parts.insert(before.min(count), &fact);
        parts.join(" ")
    };
    let tokens = |count: usize| encode(tokenizer, &format!("{}{question}{answer}", haystack(count)));
    let least = tokens(0)?.len();
    if least > length {
        return Err(EvalError::TaskLength { task: TASK.name, length, least });
    }
    // Finds the largest number of sentences that fits: doubles it until it does not fit, then searches by bisection.
    let (mut fits, mut beyond) = (0, 1);
    while tokens(beyond)?.len() <= length {
        (fits, beyond) = (beyond, beyond * 2);
    }
    while beyond - fits > 1 {
        let middle = (fits + beyond) / 2;
        if tokens(middle)?.len() <= length { fits = middle } else { beyond = middle }
    }
    let whole = tokens(fits)?;
    let prompt = common(&encode(tokenizer, &haystack(fits))?, &whole);
    let asked = common(&encode(tokenizer, &format!("{}{question}", haystack(fits)))?, &whole);
    let answer = whole.len() - asked;
    Sequence::of_answer(whole, prompt, answer)
}

fn of_pairs(input: &TaskInput, length: usize, depth: f64, rng: &mut StdRng) -> Result<Sequence, EvalError> {
    // One token comes before the pairs, and the query and its answer after them.
    let slots = length.saturating_sub(3) / 2;
    if slots < 2 {
        return Err(EvalError::TaskLength { task: TASK.name, length, least: 7 });
    }
    let drawn = pairs(input, TASK.name, rng, 1 + PAIRS.min(slots - 1))?;
    let (needle, others) = (drawn[0], &drawn[1..]);
    let at = (depth * (slots - 1) as f64).round() as usize;
    // Every other pair occurs once before any of them repeats.
    let mut hay =
        (0..slots - 1).map(|i| if i < others.len() { others[i] } else { others[rng.random_range(0..others.len())] });
    let mut ids = vec![BEGIN];
    for slot in 0..slots {
        ids.extend(if slot == at { needle } else { hay.next().unwrap_or(others[0]) });
    }
    let prompt = ids.len();
    ids.extend(needle);
    Sequence::of_answer(ids, prompt, 1)
}
