//! A run in the clear before a model is served.
//!
//! Operations on shares have ranges, and a value outside one is invisible between two parties: the text is spoilt and
//! nobody knows. Activations of most models stay inside by far, but some published ones have residual streams beyond
//! the range of the norms. [`Fixed`] computes in the clear what the parties compute in two phases, where ranges are
//! narrower, and notices. It cannot see every prompt, so a model that passes may still leave a range on another one;
//! large residuals appear at the first positions of any text, which is why a short text finds them.

use ndarray::Array2;
use waggle_model::{
    GenerateOptions, ImageShape, Input, Model, ModelSpec, Next, NoHooks, Padding, Reveal, Sampler, generate,
};
use waggle_protocols::{Evaluation, Fixed, FixedWeight};
use waggle_tokenizer::{Tokenizer, TokenizerError};

use crate::Error;

/// Most tokens of the text that goes through the model.
pub const RANGE_CHECK_TOKENS: usize = 32;

/// Most multiplications of the check: a large model gets fewer tokens, so that a server starts within seconds.
const MULTIPLICATIONS: usize = 1 << 36;

/// The fewest tokens of the check, however large the model. The padded prompt has at most this many.
const FEWEST_TOKENS: usize = 6;

/// Tokens of padding in the padded prompt.
const PADDING: usize = 2;

/// Tokens that are generated after each prompt, one by one.
const GENERATED: usize = 2;

/// Words, numbers, names, code and another script: unlike tokens lead to unlike activations.
const TEXT: &str = "The quick brown fox, 1984: \"To be, or not to be?\"\nfor (int i = 0; i < n; i++) { x += 3.14; }\n\
                    \u{c9}t\u{e9} \u{2014} \u{4f60}\u{597d}, JULIET and ROMEO walked to Verona.";

/// The extent of a range check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeCheck {
    /// Tokens that went through the model.
    pub tokens: usize,
}

/// Puts a few dozen tokens through `model` in fixed point, in the clear: a fixed text by the model's `tokenizer`, or
/// ids from all over the vocabulary where it has none, then the beginning of the same text beside padding. A model
/// that reads images gets an image. Costs about as many multiplications a token as the model has parameters, so
/// models of more than two billion get fewer tokens.
///
/// # Errors
/// [`Error::Ranges`] with the operation and layer whose range a value left; [`Error::Tokenizer`] with the fault of
/// the tokenizer, which clients will refuse, too.
pub fn check_ranges(model: &Model<FixedWeight>, tokenizer: Option<&[u8]>) -> Result<RangeCheck, Error> {
    let spec = model.spec();
    if let Some(image) = spec.image() {
        let patches = waves(image);
        return run(model, Input::image(&patches), 1, None);
    }
    let mut ids = match tokenizer {
        Some(bytes) => Tokenizer::from_bytes(bytes)?.encode(TEXT)?,
        None => spread(&spec),
    };
    if let Some(&id) = ids.iter().find(|id| **id as usize >= spec.vocabulary()) {
        let why = format!("it gives id {id}, the model has {} tokens", spec.vocabulary());
        return Err(TokenizerError::Refused { part: "model.vocab".into(), why }.into());
    }
    let room = (spec.max_positions() + 1).saturating_sub(GENERATED);
    let affordable = (MULTIPLICATIONS / spec.parameters().max(1)).clamp(FEWEST_TOKENS, RANGE_CHECK_TOKENS);
    ids.truncate((affordable - GENERATED + 1).min(room.max(1)));
    if ids.is_empty() {
        ids = spread(&spec).into_iter().take(1).collect();
    }
    let tokens = if room == 0 || spec.is_encoder() { 1 } else { GENERATED };
    let masks: &[usize] = if spec.fills_mask() { &[0] } else { &[] };
    let checked = run(model, Input { masks, ..Input::known(&ids) }, tokens, None)?;
    // Scores of padding are hidden, so the scores of the text have another range.
    let text = ids.len().min(FEWEST_TOKENS.min(room) - PADDING.min(room));
    if text > 0 {
        let (text, padding) = (&ids[..text], &vec![ids[0]; PADDING][..]);
        // An encoder has the padding last.
        let padded = if spec.is_encoder() { [text, padding] } else { [padding, text] }.concat();
        run(model, Input { masks, ..Input::known(&padded) }, tokens, Some(Padding::of(PADDING)))?;
    }
    Ok(checked)
}

/// Generates `tokens` tokens after `input` in the clear.
fn run(
    model: &Model<FixedWeight>,
    input: Input,
    tokens: usize,
    padding: Option<Padding>,
) -> Result<RangeCheck, Error> {
    // The comparisons of logits have the smaller range.
    let options = GenerateOptions { tokens, padding, reveal: Reveal::Token, ..GenerateOptions::default() };
    let mut sampler = Sampler::greedy();
    let mut engine = Fixed::evaluating(Evaluation::Masked);
    match generate(&mut engine, model, input, &options, Next::Pick(&mut sampler), &mut NoHooks) {
        Ok(_) => Ok(RangeCheck { tokens: input.count + tokens - 1 }),
        Err(waggle_model::Error::Engine(source @ waggle_engine::Error::Range { .. })) => {
            Err(Error::Ranges { tokens: input.count, source })
        }
        Err(other) => Err(other.into()),
    }
}

/// An image with patches from flat to busy, whose numbers are as large as those of normalised pixels.
fn waves(image: ImageShape) -> Array2<f32> {
    let shape = (image.rows() - 1, image.values());
    Array2::from_shape_fn(shape, |(patch, value)| {
        2.5 * (patch as f32 * 0.7 + value as f32 * patch as f32 / 300.0).sin()
    })
}

/// Ids at equal distances, an end of text first: many models have their largest activations there.
fn spread(spec: &ModelSpec) -> Vec<u32> {
    let vocabulary = spec.vocabulary();
    let first = spec.eos().into_iter().filter(|id| (*id as usize) < vocabulary).take(1);
    let steps = RANGE_CHECK_TOKENS.min(vocabulary);
    let all = first.chain((0..steps).map(|i| (i * vocabulary / steps) as u32));
    all.filter(|id| Some(*id) != spec.uncounted()).collect()
}
