//! A generation held against the plaintext engine.

use engine::{Float, FloatWeight};
use ndarray::ArrayView1;
use serde::{Deserialize, Serialize};

use crate::generate::{GenerateOptions, Generation, Next, NoHooks, Reveal, generate};
use crate::sampling::argmax;
use crate::{Error, Input, Model};

/// The distance of a generation from the plaintext engine's on the same text.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// Largest difference of a logit; absent if the client did not learn logits.
    pub max_abs_logit_error: Option<f32>,
    /// Share of the generated tokens that the plaintext engine finds most probable too, given the same text before.
    pub token_agreement: f64,
    /// The plaintext engine's lead for its own token (its top-1 margin in logits) at the clearest disagreement;
    /// absent if there is none.
    pub largest_margin_missed: Option<f32>,
    /// Choices of the policy that the plaintext engine made, but rounding may make otherwise
    /// ([`Float::close_choices`]): what follows them may differ.
    #[serde(default)]
    pub close_choices: u64,
}

/// Runs the plaintext model over `prompt` and the tokens of `generation`, which came from `options`, and compares.
///
/// Where logits were revealed, their most probable token is compared, so that sampling does not count as an error.
pub fn check(
    model: &Model<FloatWeight>,
    prompt: Input,
    options: &GenerateOptions,
    generation: &Generation,
) -> Result<Check, Error> {
    let tokens = generation.tokens.len() / prompt.texts;
    let options = GenerateOptions { reveal: Reveal::Logits, tokens, ..options.clone() };
    let forced = Next::Forced(&generation.tokens);
    let mut engine = Float::default();
    let truth = generate(&mut engine, model, prompt, &options, forced, &mut NoHooks)?;
    Ok(Check { close_choices: engine.close_choices(), ..compare(&truth, generation)? })
}

/// Compares `generation` with `truth`, the plaintext engine's on the same text, which was forced to take the same
/// tokens.
pub fn compare(truth: &Generation, generation: &Generation) -> Result<Check, Error> {
    let Some(truth) = &truth.logits else { return Err(Error::Nothing) };
    let found = generation.logits.as_ref().filter(|logits| logits.dim() == truth.dim());
    let max_abs_logit_error =
        found.map(|logits| logits.iter().zip(truth).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max));
    // With the prompt's rows in front, the last rows belong to the generated tokens.
    let first = truth.nrows() - generation.tokens.len();
    let (mut agreed, mut missed) = (0, None::<f32>);
    for (i, token) in generation.tokens.iter().enumerate() {
        let row = truth.row(first + i);
        let token = found.map_or(*token as usize, |logits| argmax(logits.row(first + i)));
        if argmax(row) == token {
            agreed += 1;
        } else {
            missed = Some(missed.unwrap_or(0.0).max(margin(row)));
        }
    }
    let token_agreement = f64::from(agreed) / generation.tokens.len() as f64;
    Ok(Check { max_abs_logit_error, token_agreement, largest_margin_missed: missed, close_choices: 0 })
}

/// Distance of the largest entry to the second largest; infinite for a single entry.
fn margin(logits: ArrayView1<f32>) -> f32 {
    let best = argmax(logits);
    let second =
        logits.iter().enumerate().filter(|(i, _)| *i != best).map(|(_, v)| *v).fold(f32::NEG_INFINITY, f32::max);
    logits[best] - second
}
