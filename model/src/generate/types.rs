//! What a generation is asked for, and what it gives.

use std::num::NonZeroUsize;

use ndarray::Array2;
use serde::{Deserialize, Serialize};
use waggle_engine::{Engine, LogitBits};
use waggle_mpcache::{Padding, PolicySpec};

use crate::draft::{Drafts, Guess, filled};
use crate::{Error, Sampler};

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
    /// A source for each of several texts. Any other source serves all texts in turn.
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

impl<'n> Next<'n> {
    /// The source of the text `at`.
    pub(super) fn of(&mut self, at: usize) -> &mut Next<'n> {
        match self {
            Next::Each(all) => &mut all[at],
            one => one,
        }
    }

    /// What picks its tokens; `None` if nothing does, or something else for each text.
    pub(super) fn sampler(&mut self) -> Option<&mut Sampler> {
        match self {
            Next::Pick(sampler) | Next::Drafted { sampler, .. } => Some(sampler),
            Next::Forced(_) | Next::Each(_) => None,
        }
    }

    pub(super) fn choose(&mut self, index: usize, pick: &dyn Fn(&mut Sampler) -> u32) -> u32 {
        match self {
            Next::Pick(sampler) | Next::Drafted { sampler, .. } => pick(sampler),
            Next::Forced(tokens) => tokens.get(index).copied().unwrap_or_else(|| pick(&mut Sampler::greedy())),
            Next::Each(_) => pick(&mut Sampler::greedy()),
        }
    }

    /// Exactly `count` guesses after `text`.
    pub(super) fn guess(&mut self, text: &[u32], count: usize) -> Result<Vec<u32>, Error> {
        match self {
            Next::Drafted { guess, .. } => filled(Some(&mut **guess), text, count),
            Next::Pick(_) | Next::Forced(_) | Next::Each(_) => filled(None, text, count),
        }
    }
}
