//! Prompt in, tokens out: one loop for both parties and every engine.

use std::num::NonZeroUsize;

use engine::{Engine, LogitBits, Select, Tensor};
use mpcache::{KvCache, Padding, PolicySpec, ScoreSource};
use ndarray::{Array2, Axis, Ix2, Slice};
use serde::{Deserialize, Serialize};

use crate::chunks::{chunk_size, read};
use crate::draft::{Drafts, Guess, accepted, filled};
use crate::lengths::bucket;
use crate::surprisal::Surprisal;
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
    /// The first tokens of the prompt are padding; the client alone passes their number. Only with the policy `full`.
    pub padding: Option<Padding>,
    /// Guesses that each pass checks; see [`Drafts`]. Only with policies that can take tokens back.
    pub draft: Option<Drafts>,
}

/// Where the next token comes from, on the party that knows it.
pub enum Next<'a> {
    /// From the logits or from the engine's argmax.
    Pick(&'a mut Sampler),
    /// The same, and `guess` says what it may be.
    Drafted {
        /// Picks each token.
        sampler: &'a mut Sampler,
        /// Guesses the next ones, for a generation with [`GenerateOptions::draft`].
        guess: &'a mut dyn Guess,
    },
    /// From this continuation, to compare engines on one text; tokens beyond its end are picked greedily.
    Forced(&'a [u32]),
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

    /// A pass with guesses is over and keeps a number of its tokens: from 1, up to all `most`. The client passes its
    /// own count and tells the server; the server passes `None` and learns it. A plan decides. Without a message, as
    /// here, it suits an engine that sees the tokens alone.
    fn agree_to_keep(&mut self, engine: &mut E, most: usize, kept: Option<usize>) -> Result<usize, engine::Error> {
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
    /// Number of tokens generated; public. With `pad_answer` the client has fewer.
    pub count: usize,
    /// Their ids; empty on the server and in a plan.
    pub tokens: Vec<u32>,
    /// Logits (positions, vocabulary) of the positions whose successor was generated, on the party that learns
    /// them; with `all_positions` of every position that went through the model, prompt first. Guesses that were
    /// wrong are left out.
    pub logits: Option<Array2<f32>>,
    /// How many tokens each pass after the first one gave; public.
    pub passes: Vec<usize>,
}

/// Generates `options.tokens` tokens after `prompt`.
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
    check(&spec, prompt, options, cache)?;
    if cache.tokens() == 0 {
        cache.expect_text(Lengths { prompt: prompt.count, tokens: options.tokens }.positions());
        if options.draft.is_some() {
            cache.expect_cuts();
        }
    }
    check_draft(options.draft, &options.policy, cache.can_cut())?;
    if let Some(padding) = options.padding {
        cache.pad(padding);
    }
    if cache.tokens() == 0 {
        cache.expect_prompt(prompt.count);
    }
    if cache.wants_scores() == Some(ScoreSource::ScoringHead) && !model.learned() {
        return Err(Error::NotLearned);
    }
    let mut surprisal = Surprisal::default();
    let most = options.draft.map_or(0, Drafts::tokens);
    let mut steady = options.draft.and_then(Drafts::schedule);
    let ends = |token: u32| options.stop_at_eos && spec.eos().contains(&token);
    let mut out = Generation::default();
    let mut rows = Vec::new();
    // What the client knows: its words without padding, and then what was picked, which may be more than was kept.
    let padding = options.padding.and_then(|padding| padding.tokens).unwrap_or(0);
    let mut text: Vec<u32> = prompt.ids.map(|ids| ids[padding..].to_vec()).unwrap_or_default();
    let words = text.len();
    let mut fed: Option<Vec<u32>> = prompt.ids.map(<[u32]>::to_vec);
    // Whether the text is over, and goes on so that nobody sees it.
    let mut over = false;
    let (mut count, mut drafted) = (prompt.count, 0);
    let mut chunk = chunk_size(&spec, cache.tokens() + count, options.prefill_chunk);
    while out.count < options.tokens {
        let index = out.count;
        let step = if index == 0 { Step::Prefill } else { Step::Decode { index, drafted } };
        hooks.go_on()?;
        hooks.begin(engine, step);
        let all = options.all_positions || drafted > 0 || cache.wants_scores() == Some(ScoreSource::Surprisal);
        let wanted = if all { Rows::All } else { Rows::Last };
        let input = Input { ids: fed.as_deref(), count };
        let progress = &mut |done, all| hooks.layer(done, all);
        let hidden = read(engine, model, input, cache, wanted, chunk, progress)?;
        let Some(hidden) = hidden else { return Err(Error::Nothing) };
        // The last token that is known, and the guesses after it.
        let first = hidden.shape()[0] - 1 - drafted;
        let guesses = fed.as_deref().map_or(&[][..], |fed| &fed[count - drafted..]);
        // A token that was picked in an earlier pass stays what it is.
        let mut pick = |i: usize, pick: &dyn Fn(&mut Sampler) -> u32| {
            let at = words + index + i;
            if at == text.len() {
                text.push(next.choose(index + i, pick));
            }
            text[at]
        };
        let (picked, mut logits) = match options.reveal {
            Reveal::Logits => {
                let logits = model.reveal_logits(engine, &hidden, options.logit_bits)?;
                let logits = logits
                    .map(|logits| logits.into_dimensionality::<Ix2>().expect("logits are (positions, vocabulary)"));
                surprisal.tell(engine, cache, fed.as_deref(), logits.as_ref())?;
                let picked = logits.as_ref().map(|logits| {
                    accepted(guesses, ends, |i| pick(i, &|sampler| sampler.pick(logits.row(first + i))))
                });
                (picked, logits)
            }
            Reveal::Token => {
                surprisal.tell(engine, cache, fed.as_deref(), None)?;
                let logits = model.logits(engine, &hidden)?.slice(0, first..first + 1 + drafted);
                let best = engine.scope("argmax", |e| e.argmax(&logits))?;
                (best.map(|best| accepted(guesses, ends, |i| pick(i, &|_| best[i] as u32))), None)
            }
        };
        let kept = match drafted {
            0 => 1,
            _ => {
                let all = 1 + drafted;
                let most = steady.as_mut().map_or(all, |steady| steady.next(all));
                let right = picked.as_ref().map(|picked| match picked.len() {
                    right if steady.is_some() && right < most => 1,
                    right => right.min(most),
                });
                let kept = hooks.agree_to_keep(engine, most, right)?;
                let possible = (1..=right.unwrap_or(most)).contains(&kept);
                if !possible || (steady.is_some() && ![1, most].contains(&kept)) {
                    return Err(Error::DraftKept { got: kept, most });
                }
                kept
            }
        };
        cache.cut(1 + drafted - kept);
        if index > 0 {
            out.passes.push(kept);
        }
        if let Some(logits) = logits.as_mut().filter(|_| !over) {
            let start = if options.all_positions { 0 } else { first };
            logits.slice_axis_inplace(Axis(0), Slice::from(start..first + kept));
            rows.push(std::mem::take(logits));
        }
        for i in 0..kept {
            let token = picked.as_ref().and_then(|picked| picked.get(i)).copied().filter(|_| !over);
            out.count += 1;
            out.tokens.extend(token);
            hooks.token(engine, step, token);
        }
        over |= options.pad_answer && out.tokens.last().is_some_and(|token| ends(*token));
        let left = options.tokens - out.count;
        let asked = options.stop_at_eos && (!options.pad_answer || bucket(out.count) == out.count);
        if asked && left > 0 {
            let ended = picked.and_then(|_| out.tokens.last().map(|token| over || ends(*token)));
            if hooks.agree_to_stop(engine, ended)? {
                break;
            }
        }
        // No position is read beyond the one that gives the last token.
        drafted = most.min(left.saturating_sub(1));
        count = 1 + drafted;
        chunk = count;
        fed = match fed {
            Some(_) if left > 0 => {
                let known = words + out.count;
                let guesses = next.guess(&text, drafted.saturating_sub(text.len() - known))?;
                spec.check_ids(&guesses)?;
                let fed = text[known - 1..].iter().copied().chain(guesses);
                Some(fed.take(count).collect())
            }
            _ => None,
        };
    }
    if options.pad_answer {
        cache.bury(prompt.ids.map(|_| out.count - out.tokens.len()));
    }
    if !rows.is_empty() {
        let views: Vec<_> = rows.iter().map(|r: &Array2<f32>| r.view()).collect();
        out.logits = Some(ndarray::concatenate(Axis(0), &views).expect("all rows have the vocabulary's length"));
    }
    Ok(out)
}

impl Next<'_> {
    fn choose(&mut self, index: usize, pick: &dyn Fn(&mut Sampler) -> u32) -> u32 {
        match self {
            Next::Pick(sampler) | Next::Drafted { sampler, .. } => pick(sampler),
            Next::Forced(tokens) => tokens.get(index).copied().unwrap_or_else(|| pick(&mut Sampler::greedy())),
        }
    }

    /// Exactly `count` guesses after `text`.
    fn guess(&mut self, text: &[u32], count: usize) -> Result<Vec<u32>, Error> {
        match self {
            Next::Drafted { guess, .. } => filled(Some(&mut **guess), text, count),
            Next::Pick(_) | Next::Forced(_) => filled(None, text, count),
        }
    }
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
        return Err(Error::PaddedPolicy { policy: policy.to_string() });
    }
    Ok(())
}

/// Refuses drafts under `policy` unless it `can_cut`.
pub fn check_draft(draft: Option<Drafts>, policy: &PolicySpec, can_cut: bool) -> Result<(), Error> {
    if draft.is_some() && !can_cut {
        return Err(Error::DraftPolicy { policy: policy.to_string() });
    }
    Ok(())
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
    let positions = spec.max_positions_of(cache.text().filter(|_| before > 0));
    check_lengths(lengths, positions.saturating_sub(before))?;
    // What stands for nothing comes last in a generation, and before other words in the next turn.
    check_padding(options.padding.is_some() || (options.pad_answer && before > 0), &options.policy)?;
    let hidden = options.padding.and_then(|padding| padding.tokens);
    if let Some(tokens) = hidden.filter(|tokens| *tokens >= prompt.count) {
        return Err(Error::AllPadding { tokens, prompt: prompt.count });
    }
    spec.check_ids(prompt.ids.unwrap_or_default())
}
