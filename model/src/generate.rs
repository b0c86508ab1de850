//! Prompt in, tokens out: one loop for both parties and every engine.

mod run;

use std::num::NonZeroUsize;

use ndarray::Array2;
use serde::{Deserialize, Serialize};
use waggle_engine::{Engine, LogitBits, Select};
use waggle_mpcache::{KvCache, Padding, PolicySpec};

use crate::draft::{Drafts, Guess};
use crate::image::{ImageShape, MAX_IMAGE_VALUE};
use crate::{Error, Input, Lengths, Model, ModelSpec, Sampler};
use run::Run;

/// The outputs that the client learns of each position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reveal {
    /// All logits; the client picks the token.
    #[default]
    Logits,
    /// One token: the most probable one, or one that was drawn by noise of the client's ([`Sampler::noise`]).
    Token,
}

/// The choices that both parties agree on before a generation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GenerateOptions {
    /// Number of tokens to generate; at most this many with `stop_at_eos`.
    pub tokens: usize,
    /// The outputs that the client learns.
    pub reveal: Reveal,
    /// Fractional bits of the logits that it learns.
    pub logit_bits: LogitBits,
    /// End after an end-of-text token; the server then learns how many tokens there are.
    pub stop_at_eos: bool,
    /// End at the first [`bucket`](crate::bucket) of tokens behind an end-of-text token. The tokens in between stand
    /// for nothing and are seen by nobody; later turns do not attend to them. The server learns the bucket alone.
    pub pad_answer: bool,
    /// Reveal the logits of every position of the prompt too, not only of its last: for evaluation.
    pub all_positions: bool,
    /// Which part of the cache a token looks at.
    pub policy: PolicySpec,
    /// Tokens of the prompt that go through the model together; `None` lets memory decide. The result is the same,
    /// the messages are not.
    pub prefill_chunk: Option<NonZeroUsize>,
    /// The first tokens of the prompt are padding, or of an encoder's texts the last; the client alone passes their
    /// numbers. Only with the policy `full`.
    pub padding: Option<Padding>,
    /// Guesses that each pass checks; see [`Drafts`]. Only with policies that can take tokens back.
    pub draft: Option<Drafts>,
}

/// Where the next token comes from, on the party that knows it.
pub enum Next<'a> {
    /// From the logits or from the engine's argmax.
    Pick(&'a mut Sampler),
    /// From the logits or the engine's argmax as well; `guess` says what it may be.
    Drafted {
        /// Picks each token.
        sampler: &'a mut Sampler,
        /// Guesses the next ones, for a generation with [`GenerateOptions::draft`].
        guess: &'a mut dyn Guess,
    },
    /// From this continuation, to compare engines on one text; tokens beyond its end are picked greedily.
    Forced(&'a [u32]),
    /// Of several texts, each from a source of its own. Any other source serves all of them in turn.
    Each(Vec<Next<'a>>),
}

/// A part of the generation, for the ledger and for progress bars.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The prompt goes through the model and the first token comes out.
    Prefill,
    /// Token number `index` >= 1 comes out of the cached model, and further ones if guesses after it are right.
    Decode {
        /// Index of the first token that this step produces.
        index: usize,
        /// Guesses that this step checks.
        drafted: usize,
    },
}

/// Watches and steers a generation, for its caller. Every method has a default.
pub trait Hooks<E: Engine> {
    /// `step` begins: the place to switch the phase of a ledger, and to prepare what the step takes.
    fn begin(&mut self, engine: &mut E, step: Step) -> Result<(), waggle_engine::Error> {
        let _ = (engine, step);
        Ok(())
    }

    /// Fails if no further step is wanted; asked before each.
    fn go_on(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// `done` of `layers` layers of the current step are done; those of a prompt count once for each of its chunks.
    fn layer(&mut self, done: usize, layers: usize) {
        let _ = (done, layers);
    }

    /// A pass with guesses is over and keeps a number of its tokens: from 1, up to all `most`. The client passes its
    /// own count and tells the server; the server passes `None` and learns it. A plan decides. Without a message, as
    /// here, it suits an engine that sees the tokens alone.
    fn agree_to_keep(
        &mut self,
        engine: &mut E,
        most: usize,
        kept: Option<usize>,
    ) -> Result<usize, waggle_engine::Error> {
        let _ = (engine, most);
        Ok(kept.unwrap_or(1))
    }

    /// The current step is over, or has given one of several tokens. `token` is known to the client only, and not
    /// there behind the end of a text. The place to stream text and settle accounts.
    fn token(&mut self, engine: &mut E, step: Step, token: Option<u32>) {
        let _ = (engine, step, token);
    }

    /// Whether to end here; called after each step but the last, with `stop_at_eos` only, and with `pad_answer` only
    /// where a bucket is full. The client passes its own decision and tells the server; the server passes `None` and
    /// learns it.
    fn agree_to_stop(&mut self, engine: &mut E, stop: Option<bool>) -> Result<bool, waggle_engine::Error> {
        let _ = engine;
        Ok(stop.unwrap_or(false))
    }
}

/// Hooks that do nothing.
pub struct NoHooks;

impl<E: Engine> Hooks<E> for NoHooks {}

/// The result of a generation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Generation {
    /// Number of tokens generated of each text; public. With `pad_answer` the client has fewer.
    pub count: usize,
    /// Their ids, text by text; empty on the server and in a plan.
    pub tokens: Vec<u32>,
    /// How many of the ids each text has: a text may end before others do.
    pub lengths: Vec<usize>,
    /// Logits (positions, vocabulary) of the positions whose successor was generated, on the party that learns
    /// them, text by text; with `all_positions` of every position that went through the model, prompt first. Guesses
    /// that were wrong are left out.
    pub logits: Option<Array2<f32>>,
    /// Tokens that each pass after the first one gave; public.
    pub passes: Vec<usize>,
}

impl Generation {
    /// The tokens of each text.
    pub fn texts(&self) -> impl Iterator<Item = &[u32]> {
        let mut before = 0;
        self.lengths.iter().map(move |length| {
            before += length;
            &self.tokens[before - length..before]
        })
    }
}

/// Generates `options.tokens` tokens after `prompt`, of several texts after each.
///
/// Both parties call it with equal options; only the client passes ids. N tokens take one pass over the prompt and
/// N - 1 passes over one token each; with a draft fewer, over several tokens each. Fails before the first message if
/// the positions do not fit the model.
pub fn generate<E: Select>(
    engine: &mut E,
    model: &Model<E::Weight>,
    prompt: Input,
    options: &GenerateOptions,
    next: Next,
    hooks: &mut dyn Hooks<E>,
) -> Result<Generation, Error> {
    model.spec().check_policy(&options.policy)?;
    let mut cache = model.cache_of(prompt.texts.max(1), &options.policy);
    generate_with(engine, model, &mut cache, prompt, options, next, hooks)
}

/// [`generate`] on a `cache` of the caller's, whose policy stands in for `options.policy`. A cache that holds tokens
/// gets `prompt` after them, and goes on from there: the last token of a generation was not read, so it begins the
/// next prompt. Policies then see later prompts as several tokens that come together.
pub fn generate_with<E: Engine>(
    engine: &mut E,
    model: &Model<E::Weight>,
    cache: &mut KvCache<E>,
    prompt: Input,
    options: &GenerateOptions,
    next: Next,
    hooks: &mut dyn Hooks<E>,
) -> Result<Generation, Error> {
    let mut run = Run::prepare(engine, model, cache, prompt, options, next, hooks)?;
    while run.step()? {}
    Ok(run.finish())
}

/// Refuses a generation of nothing ([`Error::Nothing`]) or over more than `limit` positions ([`Error::TooLong`]).
pub fn check_lengths(lengths: Lengths, limit: usize) -> Result<(), Error> {
    if lengths.prompt == 0 || lengths.tokens == 0 {
        return Err(Error::Nothing);
    }
    let positions = lengths.positions();
    if positions > limit { Err(Error::TooLong { positions, limit }) } else { Ok(()) }
}

/// Refuses padding, of a prompt or of the answers of a conversation, under a policy that would choose among it.
pub fn check_padding(padded: bool, policy: &PolicySpec) -> Result<(), Error> {
    if padded && *policy != PolicySpec::default() {
        return Err(Error::PaddedPolicy(policy.to_string()));
    }
    Ok(())
}

/// Refuses drafts under `policy` unless it `can_roll_back`.
pub fn check_draft(draft: Option<Drafts>, policy: &PolicySpec, can_roll_back: bool) -> Result<(), Error> {
    if draft.is_some() && !can_roll_back {
        return Err(Error::DraftPolicy { policy: policy.to_string() });
    }
    Ok(())
}

/// Refuses samplers that need logits where the client learns tokens alone.
///
/// # Errors
/// [`Error::NeedsLogits`].
pub fn check_next(spec: &ModelSpec, reveal: Reveal, next: &Next) -> Result<(), Error> {
    match next {
        Next::Pick(sampler) | Next::Drafted { sampler, .. } => {
            sampler.check(reveal, spec.style().logit_cap.is_some())
        }
        Next::Forced(_) => Ok(()),
        Next::Each(all) => all.iter().try_for_each(|next| check_next(spec, reveal, next)),
    }
}

/// Refuses what an encoder cannot do.
pub fn check_encoder(spec: &ModelSpec, options: &GenerateOptions) -> Result<(), Error> {
    let GenerateOptions { tokens, stop_at_eos, pad_answer, ref policy, prefill_chunk, ref padding, draft, .. } =
        *options;
    let asked = [
        (tokens > 1, "more than one token"),
        (stop_at_eos, "an end that the text finds"),
        (pad_answer, "a padded answer"),
        (padding.is_some() && spec.image().is_some(), "a padded image"),
        (*policy != PolicySpec::default(), "a cache policy"),
        (prefill_chunk.is_some(), "a prompt in chunks"),
        (draft.is_some(), "a draft"),
    ];
    match asked.into_iter().find(|(asked, _)| *asked && spec.is_encoder()) {
        Some((_, what)) => Err(Error::Encoder { what }),
        None => Ok(()),
    }
}

/// Refuses no text, and several texts with a draft or under a policy that is made for one.
pub fn check_texts(texts: usize, policy: &PolicySpec, draft: Option<Drafts>) -> Result<(), Error> {
    match texts {
        0 => Err(Error::Nothing),
        1 => Ok(()),
        texts if draft.is_some() => Err(Error::Texts { texts, what: "a draft".into() }),
        texts if !policy.side_by_side() => Err(Error::Texts { texts, what: format!("the policy `{policy}`") }),
        _ => Ok(()),
    }
}

/// Refuses a `prompt` of another number of tokens than an image has, for a model that reads images.
pub fn check_image(spec: &ModelSpec, prompt: usize) -> Result<(), Error> {
    match spec.image().map(ImageShape::rows) {
        Some(expected) if prompt != expected => Err(Error::ImageRows { expected, got: prompt }),
        _ => Ok(()),
    }
}

/// Refuses an image for a model of texts, the reverse, pixels that no engine takes, and token ids that the model does
/// not have.
pub fn check_input(spec: &ModelSpec, prompt: Input) -> Result<(), Error> {
    match (spec.image(), prompt.patches) {
        (None, Some(_)) => Err(Error::NoImages),
        (Some(_), _) if prompt.ids.is_some() || prompt.seconds.iter().any(Option::is_some) => Err(Error::NoTexts),
        (Some(_), Some(patches)) => match patches.iter().find(|x| x.is_nan() || x.abs() > MAX_IMAGE_VALUE) {
            Some(&value) => Err(Error::ImageValue { value }),
            None => check_image(spec, prompt.count),
        },
        (Some(_), None) => check_image(spec, prompt.count),
        (None, None) => spec.check_ids(prompt.ids.unwrap_or_default()),
    }
}

/// Refuses what does not fit the model after the tokens in `cache`.
fn check<E: Engine>(
    spec: &ModelSpec,
    prompt: Input,
    options: &GenerateOptions,
    cache: &KvCache<E>,
) -> Result<(), Error> {
    let lengths = Lengths { prompt: prompt.count, tokens: options.tokens };
    let before = cache.tokens();
    check_encoder(spec, options)?;
    check_input(spec, prompt)?;
    check_texts(prompt.texts, &options.policy, options.draft)?;
    for at in prompt.seconds.iter().copied().flatten() {
        if !spec.is_encoder() {
            return Err(Error::Second { at: None, tokens: prompt.count });
        }
        if at == 0 || at >= prompt.count {
            return Err(Error::Second { at: Some(at), tokens: prompt.count });
        }
    }
    let fits = match prompt.masks {
        [] => !spec.fills_mask() || prompt.ids.is_none(),
        masks => spec.fills_mask() && masks.len() == prompt.texts && masks.iter().all(|at| *at < prompt.count),
    };
    if !fits {
        return Err(Error::Mask { at: prompt.masks.first().copied(), tokens: prompt.count });
    }
    if before > 0 && spec.is_encoder() {
        return Err(Error::Encoder { what: "a text after another" });
    }
    let positions = spec.max_positions_of(cache.text().filter(|_| before > 0));
    check_lengths(lengths, positions.saturating_sub(before))?;
    // Padding of an answer comes last in a generation, and before other words in the next turn.
    check_padding(options.padding.is_some() || (options.pad_answer && before > 0), &options.policy)?;
    let hidden = options.padding.as_ref().and_then(|padding| padding.tokens.as_ref());
    if let Some(&tokens) = hidden.into_iter().flatten().find(|tokens| **tokens >= prompt.count) {
        return Err(Error::AllPadding { tokens, prompt: prompt.count });
    }
    // Positions are public, and such tokens have none.
    for (text, ids) in prompt.ids.unwrap_or_default().chunks(prompt.count.max(1)).enumerate() {
        let padding = hidden.and_then(|hidden| hidden.get(text)).copied().unwrap_or_default();
        let own = &ids[..ids.len() - padding.min(ids.len())];
        if let Some(at) = own.iter().position(|id| Some(*id) == spec.uncounted()) {
            return Err(Error::PaddingId { id: own[at], at });
        }
    }
    Ok(())
}
