//! The options, the sources of tokens, the hooks and the result of a generation.

use std::num::NonZeroUsize;

use ndarray::Array2;
use serde::{Deserialize, Serialize};
use waggle_engine::{Engine, LogitBits};
use waggle_mpcache::{Padding, PolicySpec};

use crate::draft::{Drafts, Guess, filled};
use crate::{Error, Sampler};

/// The outputs that the client learns at each position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reveal {
    /// All logits; the client picks the token.
    #[default]
    Logits,
    /// One token: the most probable one, or one that was drawn with the client's noise ([`Sampler::noise`]).
    Token,
}

/// The choices that both parties agree on before a generation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GenerateOptions {
    /// The number of tokens to generate. With `stop_at_eos` there may be fewer.
    pub tokens: usize,
    /// The outputs that the client learns.
    pub reveal: Reveal,
    /// Fractional bits of the logits that the client learns.
    pub logit_bits: LogitBits,
    /// Whether to end after an end-of-text token. The server then learns how many tokens there are.
    pub stop_at_eos: bool,
    /// Whether to end only where, after an end-of-text token, the number of tokens reaches the next
    /// [`bucket`](crate::bucket). The tokens in between stand for nothing, and nobody sees them. Later turns do not
    /// attend to them. The server learns only the bucket.
    pub pad_answer: bool,
    /// Whether to reveal the logits of every position of the prompt, not only of its last one. For evaluation.
    pub all_positions: bool,
    /// The cache policy, which decides which part of the cache a token looks at.
    pub policy: PolicySpec,
    /// The number of tokens of the prompt that go through the model together; `None` lets memory decide. It changes
    /// the messages, but not the result.
    pub prefill_chunk: Option<NonZeroUsize>,
    /// Padding: the first tokens of the prompt, or in an encoder the last tokens of its texts. Only the client states
    /// how many there are. Padding is possible only with the policy `full`.
    pub padding: Option<Padding>,
    /// Guesses that each pass checks; see [`Drafts`]. Drafts are possible only with policies that can take tokens
    /// back.
    pub draft: Option<Drafts>,
}

/// Where the next token comes from, on the party that knows it.
pub enum Next<'a> {
    /// The token that this sampler picks from the logits, or the engine's argmax.
    Pick(&'a mut Sampler),
    /// The token that `sampler` picks from the logits, or the engine's argmax. `guess` guesses the tokens after it.
    Drafted {
        /// Picks each token.
        sampler: &'a mut Sampler,
        /// Guesses the next tokens, for a generation with [`GenerateOptions::draft`].
        guess: &'a mut dyn Guess,
    },
    /// From this continuation, to compare engines on one text. Tokens beyond its end are picked greedily.
    Forced(&'a [u32]),
    /// A source for each of several texts. Any other source serves all texts in turn.
    Each(Vec<Next<'a>>),
}

/// A step of a generation, for the ledger and for progress bars.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The prompt goes through the model and the first token comes out.
    Prefill,
    /// Token number `index` >= 1 comes out of the model with its cache, and further tokens if the guesses after it
    /// are right.
    Decode {
        /// The index of the first token that this step produces.
        index: usize,
        /// The number of guesses that this step checks.
        drafted: usize,
    },
}

/// Watches and steers a generation, for its caller. Every method has a default.
pub trait Hooks<E: Engine> {
    /// Called when `step` begins: the place to switch the phase of a ledger, and to prepare what the step needs.
    fn begin(&mut self, engine: &mut E, step: Step) -> Result<(), waggle_engine::Error> {
        let _ = (engine, step);
        Ok(())
    }

    /// Called before each step. Fails if no further step is wanted.
    fn go_on(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Called when `done` of `layers` layers of the current step are done. The layers of a prompt count once for each
    /// of its chunks.
    fn layer(&mut self, done: usize, layers: usize) {
        let _ = (done, layers);
    }

    /// Called after a pass with guesses. Returns how many of its tokens are kept, from 1 to `most`. The client passes
    /// its own number and tells it to the server. The server passes `None` and learns the number. A plan decides the
    /// number itself. The default sends no message, which is enough for an engine that runs alone and sees the
    /// tokens.
    fn agree_to_keep(
        &mut self,
        engine: &mut E,
        most: usize,
        kept: Option<usize>,
    ) -> Result<usize, waggle_engine::Error> {
        let _ = (engine, most);
        Ok(kept.unwrap_or(1))
    }

    /// Called for each token that the current step has given: the place to stream text and settle accounts. Only the
    /// client knows `token`. It is `None` on the server, and after the end of a text.
    fn token(&mut self, engine: &mut E, step: Step, token: Option<u32>) {
        let _ = (engine, step, token);
    }

    /// Returns whether to end here. With `stop_at_eos`, this is called after each step but the last; with
    /// `pad_answer` as well, only after steps that fill a bucket. The client passes its own decision and tells it to
    /// the server. The server passes `None` and learns the decision.
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
    /// The number of tokens generated for each text. Public. With `pad_answer` the client may have fewer ids.
    pub count: usize,
    /// The ids of these tokens, text by text. Empty on the server and in a plan.
    pub tokens: Vec<u32>,
    /// For each text, the number of ids that it has in `tokens`: a text may end before other texts do.
    pub lengths: Vec<usize>,
    /// The logits (positions, vocabulary), text by text, on the party that learns them. There are logits for each
    /// position whose next token was generated, or with `all_positions` for each position that went through the
    /// model, prompt first. Wrong guesses are left out.
    pub logits: Option<Array2<f32>>,
    /// The number of tokens that each pass after the first one gave. Public.
    pub passes: Vec<usize>,
    /// The number of words of keys and values that the cache holds at the end. Public.
    pub cached: usize,
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
    /// The source of tokens for the text with the index `at`.
    pub(super) fn of(&mut self, at: usize) -> &mut Next<'n> {
        match self {
            Next::Each(all) => &mut all[at],
            one => one,
        }
    }

    /// The sampler of this source; `None` if it has none, or one for each text.
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
