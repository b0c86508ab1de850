//! A generation compared with that of the plaintext engine.

use ndarray::ArrayView1;
use serde::{Deserialize, Serialize};
use waggle_engine::{Float, FloatWeight};

use crate::generate::{GenerateOptions, Generation, Next, NoHooks, Reveal, generate};
use crate::sampling::argmax;
use crate::{Error, Input, Model};

/// The difference between a generation and that of the plaintext engine on the same text.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// Largest difference of a logit; absent if the client did not learn logits.
    pub max_abs_logit_error: Option<f32>,
    /// Share of the generated tokens that are also the most probable ones for the plaintext engine after the same
    /// text.
    pub token_agreement: f64,
    /// The clearest disagreement: among the tokens on which the engines disagree, the largest margin in logits by
    /// which the plaintext engine prefers its own token to its second choice. Absent if they never disagree.
    pub largest_margin_missed: Option<f32>,
    /// The number of the policy's choices in the plaintext engine that rounding may decide differently
    /// ([`Float::close_choices`]). The text may differ after such a choice.
    #[serde(default)]
    pub close_choices: u64,
}

/// Runs the plaintext model over `prompt` and the tokens of `generation`, which was made with `options`, and compares
/// the results.
///
/// Where logits were revealed, the most probable token by these logits is compared, not the generated one, so that
/// sampling does not count as an error.
pub fn check(
    model: &Model<FloatWeight>,
    prompt: Input,
    options: &GenerateOptions,
    generation: &Generation,
) -> Result<Check, Error> {
    let tokens = generation.lengths.iter().copied().max().unwrap_or(0);
    // A text that has ended goes on greedily while other texts go on.
    let options = GenerateOptions { reveal: Reveal::Logits, tokens, stop_at_eos: false, ..options.clone() };
    let forced = generation.texts().map(Next::Forced).collect();
    let mut engine = Float::default();
    let truth = generate(&mut engine, model, prompt, &options, Next::Each(forced), &mut NoHooks)?;
    Ok(Check { close_choices: engine.close_choices(), ..compare(&truth, generation)? })
}

/// Compares `generation` with `truth`: the plaintext engine's generation on the same texts, with the same tokens
/// forced on it, which goes on where one of several texts ends.
///
/// # Errors
/// [`Error::Nothing`] if `truth` has no logits.
pub fn compare(truth: &Generation, generation: &Generation) -> Result<Check, Error> {
    let Some(expected) = &truth.logits else { return Err(Error::Nothing) };
    let (texts, all) = (generation.lengths.len().max(1), generation.tokens.len());
    // The rows of a text's prompt may come before those of its generated tokens.
    let rows = expected.nrows() / texts;
    let prompt = rows - truth.lengths.first().copied().unwrap_or(0);
    let found = generation.logits.as_ref().filter(|logits| logits.dim() == (all + texts * prompt, expected.ncols()));
    let (mut agreed, mut missed, mut largest, mut before) = (0, None::<f32>, 0f32, 0);
    for (text, tokens) in generation.texts().enumerate() {
        for row in 0..prompt + tokens.len() {
            let expected = expected.row(text * rows + row);
            let found = found.map(|found| found.row(before + row));
            if let Some(found) = found {
                largest = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(largest, f32::max);
            }
            let Some(token) = row.checked_sub(prompt).map(|i| tokens[i]) else { continue };
            if argmax(expected) == found.map_or(token as usize, argmax) {
                agreed += 1;
            } else {
                missed = Some(missed.unwrap_or(0.0).max(margin(expected)));
            }
        }
        before += prompt + tokens.len();
    }
    let token_agreement = f64::from(agreed) / all as f64;
    let max_abs_logit_error = found.map(|_| largest);
    Ok(Check { max_abs_logit_error, token_agreement, largest_margin_missed: missed, close_choices: 0 })
}

/// The difference between the largest entry and the second largest; infinite for a single entry.
fn margin(logits: ArrayView1<f32>) -> f32 {
    let best = argmax(logits);
    let second =
        logits.iter().enumerate().filter(|(i, _)| *i != best).map(|(_, v)| *v).fold(f32::NEG_INFINITY, f32::max);
    logits[best] - second
}
