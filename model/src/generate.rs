//! Prompt in, tokens out: one loop for both parties and every engine.

use std::num::NonZeroUsize;

use engine::{Engine, Tensor};
use mpcache::{KvCache, Padding, PolicySpec};
use ndarray::{Array2, Axis, Ix2};
use serde::{Deserialize, Serialize};

use crate::chunks::{chunk_size, read};
use crate::lengths::Excess;
use crate::{Error, Input, Lengths, Model, ModelSpec, Rows, Sampler};

/// What the client learns of each position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reveal {
    /// All logits; the client picks the token.
    #[default]
    Logits,
    /// The most probable token only.
    Token,
}

/// What both parties agree on before a generation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GenerateOptions {
    /// Number of tokens to generate; at most this many with `stop_at_eos`.
    pub tokens: usize,
    /// What the client learns.
    pub reveal: Reveal,
    /// End after an end-of-text token; the server then learns how many tokens there are.
    pub stop_at_eos: bool,
    /// Reveal the logits of every position of the prompt too, not only of its last: for evaluation.
    pub all_positions: bool,
    /// Which part of the cache a token looks at.
    pub policy: PolicySpec,
    /// Tokens of the prompt that go through the model together; `None` lets memory decide. The result is the same,
    /// the messages are not.
    pub prefill_chunk: Option<NonZeroUsize>,
    /// The first tokens of the prompt are padding; the client alone passes their number. Only with the policy `full`.
    pub padding: Option<Padding>,
}

/// Where the next token comes from, on the party that knows it.
pub enum Next<'a> {
    /// From the logits or from the engine's argmax.
    Pick(&'a mut Sampler),
    /// From this continuation, to compare engines on one text; tokens beyond its end are picked greedily.
    Forced(&'a [u32]),
}

/// A part of the generation, for the ledger and for progress bars.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The prompt goes through the model and the first token comes out.
    Prefill,
    /// Token number `index` >= 1 comes out of the cached model.
    Decode {
        /// Index of the token that this step produces.
        index: usize,
    },
}

/// What the caller sees and decides while tokens are generated. Every method has a default.
pub trait Hooks<E: Engine> {
    /// `step` begins: the place to switch the phase of a ledger.
    fn begin(&mut self, engine: &mut E, step: Step) {
        let _ = (engine, step);
    }

    /// Fails if no further step is wanted; asked before each.
    fn go_on(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// `done` of `layers` layers of the current step are done; those of a prompt count once for each of its chunks.
    fn layer(&mut self, done: usize, layers: usize) {
        let _ = (done, layers);
    }

    /// The current step is over. `token` is known to the client only. The place to stream text and settle accounts.
    fn token(&mut self, engine: &mut E, step: Step, token: Option<u32>) {
        let _ = (engine, step, token);
    }

    /// Whether to end here; called after each token but the last, with `stop_at_eos` only. The client passes its own
    /// decision and tells the server; the server passes `None` and learns it.
    fn agree_to_stop(&mut self, engine: &mut E, stop: Option<bool>) -> Result<bool, engine::Error> {
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
    /// Number of tokens generated; public.
    pub count: usize,
    /// Their ids; empty on the server and in a plan.
    pub tokens: Vec<u32>,
    /// Logits (positions, vocabulary) of the positions whose successor was generated, on the party that learns
    /// them; with `all_positions` of every position that went through the model, prompt first.
    pub logits: Option<Array2<f32>>,
}

/// Generates `options.tokens` tokens after `prompt`.
///
/// Both parties call it with equal options; only the client passes ids. N tokens take one pass over the prompt and
/// N - 1 passes over one token each. Fails before the first message if the positions do not fit the model.
pub fn generate<E: Engine>(
    engine: &mut E,
    model: &Model<E::Weight>,
    prompt: Input,
    options: &GenerateOptions,
    next: Next,
    hooks: &mut dyn Hooks<E>,
) -> Result<Generation, Error> {
    generate_with(engine, model, &mut model.cache(&options.policy), prompt, options, next, hooks)
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
    mut next: Next,
    hooks: &mut dyn Hooks<E>,
) -> Result<Generation, Error> {
    let spec = model.spec();
    check(&spec, prompt, options, cache.tokens())?;
    if let Some(padding) = options.padding {
        cache.pad(padding);
    }
    if cache.tokens() == 0 {
        cache.expect_prompt(prompt.count);
    }
    let chunk = chunk_size(&spec, cache.tokens() + prompt.count, options.prefill_chunk);
    let mut out = Generation::default();
    let mut rows = Vec::new();
    let mut fed: Option<Vec<u32>> = prompt.ids.map(<[u32]>::to_vec);
    let mut count = prompt.count;
    for index in 0..options.tokens {
        let step = if index == 0 { Step::Prefill } else { Step::Decode { index } };
        hooks.go_on()?;
        hooks.begin(engine, step);
        let wanted = if options.all_positions { Rows::All } else { Rows::Last };
        let input = Input { ids: fed.as_deref(), count };
        let progress = &mut |done, all| hooks.layer(done, all);
        let hidden = read(engine, model, input, cache, wanted, chunk, progress)?;
        let Some(hidden) = hidden else { return Err(Error::Nothing) };
        let token = match options.reveal {
            Reveal::Logits => model.reveal_logits(engine, &hidden)?.map(|logits| {
                let logits = logits.into_dimensionality::<Ix2>().expect("logits are (positions, vocabulary)");
                let picked = next.choose(index, |sampler| sampler.pick(logits.row(logits.nrows() - 1)));
                rows.push(logits);
                picked
            }),
            Reveal::Token => {
                let logits = model.logits(engine, &hidden)?;
                let last = logits.shape()[0] - 1;
                let vector = logits.slice(0, last..last + 1).reshape(&[spec.vocabulary()]);
                let best = engine.scope("argmax", |e| e.argmax(&vector))?;
                best.map(|best| next.choose(index, |_| best as u32))
            }
        };
        out.count += 1;
        out.tokens.extend(token);
        fed = token.map(|token| vec![token]);
        count = 1;
        hooks.token(engine, step, token);
        if options.stop_at_eos && index + 1 < options.tokens {
            let ended = token.map(|token| spec.eos().contains(&token));
            if hooks.agree_to_stop(engine, ended)? {
                break;
            }
        }
    }
    if !rows.is_empty() {
        let views: Vec<_> = rows.iter().map(|r: &Array2<f32>| r.view()).collect();
        out.logits = Some(ndarray::concatenate(Axis(0), &views).expect("all rows have the vocabulary's length"));
    }
    Ok(out)
}

impl Next<'_> {
    fn choose(&mut self, index: usize, pick: impl FnOnce(&mut Sampler) -> u32) -> u32 {
        match self {
            Next::Pick(sampler) => pick(sampler),
            Next::Forced(tokens) => tokens.get(index).copied().unwrap_or_else(|| pick(&mut Sampler::greedy())),
        }
    }
}

/// Refuses a generation of nothing ([`Error::Nothing`]), beyond `bound` ([`Error::Limit`]) or over more than `limit`
/// positions ([`Error::TooLong`]).
pub(crate) fn check_lengths(lengths: Lengths, bound: Lengths, limit: usize) -> Result<(), Error> {
    if lengths.prompt == 0 || lengths.tokens == 0 {
        return Err(Error::Nothing);
    }
    if let Some(Excess { what, got, limit }) = lengths.beyond(bound) {
        return Err(Error::Limit { what, got, limit });
    }
    let positions = lengths.positions();
    if positions > limit { Err(Error::TooLong { positions, limit }) } else { Ok(()) }
}

/// Refuses padding under a policy that would choose among it.
pub(crate) fn check_padding(padded: bool, policy: &PolicySpec) -> Result<(), Error> {
    if padded && *policy != PolicySpec::default() {
        return Err(Error::PaddedPolicy { policy: policy.to_string() });
    }
    Ok(())
}

/// Refuses what does not fit the model after `before` tokens.
fn check(spec: &ModelSpec, prompt: Input, options: &GenerateOptions, before: usize) -> Result<(), Error> {
    let lengths = Lengths { prompt: prompt.count, tokens: options.tokens };
    check_lengths(lengths, Lengths::MAX, spec.max_positions().saturating_sub(before))?;
    check_padding(options.padding.is_some(), &options.policy)?;
    let hidden = options.padding.and_then(|padding| padding.tokens);
    if let Some(tokens) = hidden.filter(|tokens| *tokens >= prompt.count) {
        return Err(Error::AllPadding { tokens, prompt: prompt.count });
    }
    spec.check_ids(prompt.ids.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_length_has_its_own_bound_and_both_share_the_positions() {
        let bound = Lengths { prompt: 8, tokens: 4 };
        let check = |prompt, tokens| check_lengths(Lengths { prompt, tokens }, bound, 10);
        assert_eq!(Lengths { prompt: 8, tokens: 3 }.positions(), 10);
        check(8, 3).unwrap();
        check(7, 4).unwrap();
        assert!(matches!(check(0, 4), Err(Error::Nothing)));
        assert!(matches!(check(8, 0), Err(Error::Nothing)));
        assert!(matches!(check(9, 5), Err(Error::Limit { what: "tokens of a prompt", got: 9, limit: 8 })));
        assert!(matches!(check(8, 5), Err(Error::Limit { what: "tokens to generate", got: 5, limit: 4 })));
        assert!(matches!(check(8, 4), Err(Error::TooLong { positions: 11, limit: 10 })));
        assert_eq!(Lengths::MAX.positions(), usize::MAX);
    }
}
