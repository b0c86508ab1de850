//! Requests of a client: the prompt, and how the text after it is picked.

use std::fmt;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;

use rand::SeedableRng;
use rand::rngs::StdRng;
use waggle_files::load;
use waggle_model::{DEFAULT_RATE, Drafts, Guess, MAX_DRAFTED, ModelSpec, PromptLookup, Sampler, SmallModel, bucket};
use waggle_session::party;
use waggle_tokenizer::Tokenizer;

use crate::Error;
use crate::error::{OptionsError, PromptError};
use crate::models::{open_model, read_tokenizer};
use crate::options::options;
use crate::prompt::{Prompt, each};
use crate::public::Public;
use crate::reader::Reader;
use crate::summary::Chosen;

options! {
    /// A client's request: `Request::after("Once upon a time").tokens(64)`.
    Request {
        /// The prompt.
        prompt: Prompt as impl Into<Prompt> = Prompt::Text(String::new()),
        /// Public tokens before the prompt, which the server reads in the clear; without them those that the server
        /// offers, unless [`Client::offers`](crate::Client::offers) is off.
        public: Option<Public> as impl Into<Option<Public>> = None,
        /// Tokens to generate.
        tokens: usize = 32,
        /// Texts to generate after each prompt, side by side. They differ only if tokens are sampled.
        samples: usize = 1,
        /// The rule by which tokens are picked.
        sampling: Sampling = Sampling::default(),
        /// End after an end-of-text token. The server then learns the number of tokens.
        stop_at_eos: bool = false,
        /// Pad the prompt to one of these lengths, so that the server learns only the padded length. Needs the policy
        /// `full`.
        pad_prompt: Option<Pads> as impl Into<Option<Pads>> = None,
        /// If the text ends early, go on unseen up to a number of tokens that is a power of two, at least 16. The
        /// server learns that number alone.
        pad_answer: bool = false,
        /// Guess tokens, so that one pass through the model checks several.
        draft: Option<Draft> as impl Into<Option<Draft>> = None,
        /// Use up the correlations in this file of [`Client::preprocess`](crate::Client::preprocess), or in all its
        /// parts.
        pool: Option<PathBuf> as impl Into<Option<PathBuf>> = None,
        /// The origin of the tokenizer, or for an image of the `preprocessor_config.json`.
        tokenizer: TokenizerOf = TokenizerOf::Server,
        /// Whether the request asks for a class, a score or the word of a mask. A model that writes texts is then
        /// refused.
        class: bool = false,
        /// Inputs of later sessions. They are checked before this session begins. Errors number them after the inputs
        /// of this session.
        later: Vec<Prompt> = Vec::new(),
    }
}

impl<P: Into<Prompt>> From<P> for Request {
    fn from(prompt: P) -> Self {
        Request::after(prompt)
    }
}

impl From<&Request> for Request {
    fn from(request: &Request) -> Self {
        request.clone()
    }
}

impl Request {
    /// A request for the text after `prompt`.
    pub fn after(prompt: impl Into<Prompt>) -> Self {
        Request::default().prompt(prompt)
    }

    /// Splits `inputs` into sessions of `batch` inputs, which an encoder reads side by side. Returns one request for
    /// each session; the first one checks the inputs of all sessions.
    ///
    /// # Errors
    /// If there are several sessions and a pool, as a pool serves one session.
    pub fn batches(&self, inputs: &[Prompt], batch: NonZeroUsize) -> Result<Vec<Request>, Error> {
        let batches = inputs.chunks(batch.get()).map(|batch| self.clone().prompt(Prompt::Several(batch.to_vec())));
        let mut batches: Vec<Request> = batches.map(|asked| asked.class(true)).collect();
        if let (Some(_), sessions @ 2..) = (&self.pool, batches.len()) {
            return Err(PromptError::Batches { option: "a pool", sessions, inputs: inputs.len() }.into());
        }
        if let Some(first) = batches.first_mut() {
            first.later = inputs.iter().skip(batch.get()).cloned().collect();
        }
        Ok(batches)
    }

    /// The number of texts.
    pub fn texts(&self) -> usize {
        let prompts = if let Prompt::Several(all) = &self.prompt { all.len() } else { 1 };
        prompts.saturating_mul(self.samples)
    }

    /// This request with its files read, as far as they need no server. Bad settings are reported before a server is
    /// asked.
    pub(crate) fn read(&self, terms: &party::Terms) -> Result<Self, Error> {
        if self.pool.is_some() && self.draft.is_some() {
            return Err(waggle_session::Error::DraftPool.into());
        }
        self.sampling.sampler(terms)?;
        self.draft.as_ref().map(Draft::drafts).transpose()?;
        let prompt = self.prompt.clone().read()?;
        let first = if let Prompt::Several(own) = &prompt { 1 + own.len() } else { 2 };
        each(first, self.later.iter().cloned(), |later| later.read().map(drop))?;
        Ok(Request { prompt, ..self.clone() })
    }

    /// The client's own reader of its input; `None` if the request takes the server's tokenizer.
    pub(crate) fn reader(&self) -> Result<Option<Reader>, Error> {
        Ok(match &self.tokenizer {
            TokenizerOf::Server => None,
            TokenizerOf::File(path) if self.prompt.is_image() => Some(Reader::images(Some(&load(path)?))?),
            TokenizerOf::File(path) => Some(Reader::Texts(Some(Tokenizer::from_bytes(&read_tokenizer(path)?)?))),
            TokenizerOf::Model(name) => Some(Reader::of(&open_model(name)?)?),
        })
    }
}

/// The origin of a client's tokenizer, or for an image of its `preprocessor_config.json`.
#[derive(Clone, Debug, Default)]
pub enum TokenizerOf {
    /// The server. Its tokenizer runs in a process of its own: see [`init`](crate::init).
    #[default]
    Server,
    /// This file, or this directory, all files of which are considered.
    File(PathBuf),
    /// This model on the client's machine, a directory or a bundled name. If it has no tokenizer, the client has
    /// none.
    Model(String),
}

options! {
    /// The client's choice of tokens.
    #[derive(Copy)]
    Sampling {
        /// Sample from softmax(logits / T); 0 takes the most probable token.
        temperature: f32 = 0.0,
        /// Sample among the most probable tokens that together reach this probability, where the client learns
        /// logits.
        top_p: f32 = 1.0,
        /// Seed of the sampled choices: the same seed repeats a text. Cryptographic randomness always comes from the
        /// operating system.
        seed: Option<u64> as impl Into<Option<u64>> = None,
    }
}

impl Sampling {
    /// The sampler under `terms` for text number `at` of several texts, from 0. Its seed is the seed of these options
    /// plus `at`.
    pub fn sampler_of(&self, at: usize, terms: &party::Terms) -> Result<Sampler, Error> {
        Sampling { seed: self.seed.map(|seed| seed.wrapping_add(at as u64)), ..*self }.sampler(terms)
    }

    /// The sampler, checked against what `terms` reveal.
    pub fn sampler(&self, terms: &party::Terms) -> Result<Sampler, Error> {
        if self.temperature == 0.0 && (self.top_p != 1.0 || self.seed.is_some()) {
            return Err(OptionsError::NothingToSample.into());
        }
        let rng = self.seed.map_or_else(rand::make_rng, StdRng::seed_from_u64);
        let sampler = Sampler::random(self.temperature, self.top_p, rng)?;
        sampler.check(terms.reveal, false)?;
        Ok(sampler)
    }

    /// The settings that a report names.
    pub(crate) fn chosen(&self) -> [Chosen; 3] {
        [("temperature", self.temperature.into()), ("top_p", self.top_p.into()), ("seed", self.seed.into())]
    }
}

/// The lengths to which prompts are padded. They are public.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pads {
    /// Powers of two from 16 on.
    Auto,
    /// These lengths, ascending.
    List(Vec<usize>),
}

impl FromStr for Pads {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Pads::Auto);
        }
        let lengths: Result<Vec<usize>, _> = text.split(',').map(str::parse).collect();
        let mut lengths = lengths.map_err(|_| "give `auto` or lengths, for example 32,128,512".to_owned())?;
        lengths.sort_unstable();
        Ok(Pads::List(lengths))
    }
}

impl Pads {
    /// The padded length of a prompt of `tokens` tokens, where the model has room for prompts of `room` tokens. It is
    /// an error if all lengths are too short.
    pub fn of(&self, tokens: usize, room: usize) -> Result<usize, PromptError> {
        let (next, longest) = match self {
            // The model's room is public too.
            Pads::Auto => (Some(bucket(tokens).min(room.max(tokens))), room),
            Pads::List(lengths) => {
                let next = lengths.iter().copied().find(|length| *length >= tokens);
                (next, lengths.last().copied().unwrap_or_default())
            }
        };
        next.ok_or(PromptError::NoLength { tokens, longest })
    }
}

/// Default number of tokens that are guessed for each pass.
const DEFAULT_GUESSES: usize = 4;

const _: () = assert!(DEFAULT_GUESSES <= MAX_DRAFTED);

options! {
    /// How the client guesses the next tokens, and how many: `"lookup:4".parse()?`.
    #[derive(PartialEq)]
    Draft {
        /// The source of the guesses.
        guesser: Guesser = Guesser::Lookup,
        /// Tokens that are guessed for each pass.
        guesses: usize = DEFAULT_GUESSES,
        /// Tokens that a pass is expected to keep on average, from 1 to `guesses` + 1.
        rate: f64 = DEFAULT_RATE,
        /// Let every pass keep either 1 token or `rate` tokens, so that the server learns less.
        steady: bool = false,
    }
}

/// The source of guessed tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guesser {
    /// The text itself: how it went on after the same words before.
    Lookup,
    /// The model in this directory, or of this bundled name.
    Model(String),
}

impl FromStr for Draft {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            let tokens = text.parse().ok().filter(|tokens| (1..=MAX_DRAFTED).contains(tokens));
            tokens.ok_or_else(|| format!("a draft has 1 to {MAX_DRAFTED} tokens, not `{text}`"))
        };
        let (kind, rest) = text.split_once(':').map_or((text, None), |(kind, rest)| (kind, Some(rest)));
        let (guesser, guesses) = match (kind, rest) {
            ("lookup", None) => (Guesser::Lookup, DEFAULT_GUESSES),
            ("lookup", Some(tokens)) => (Guesser::Lookup, number(tokens)?),
            ("model", Some(rest)) if !rest.is_empty() => match rest.rsplit_once(':') {
                // A directory may have a colon in its name; a number after the last one is not part of it.
                Some((dir, tokens)) if !dir.is_empty() && tokens.bytes().all(|b| b.is_ascii_digit()) => {
                    (Guesser::Model(dir.to_owned()), number(tokens)?)
                }
                _ => (Guesser::Model(rest.to_owned()), DEFAULT_GUESSES),
            },
            _ => return Err("give `lookup`, `lookup:K`, `model:DIR` or `model:DIR:K`".into()),
        };
        Ok(Draft { guesser, guesses, ..Draft::default() })
    }
}

impl fmt::Display for Draft {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match &self.guesser {
            Guesser::Lookup => write!(f, "lookup:{}", self.guesses),
            Guesser::Model(dir) => write!(f, "model:{dir}:{}", self.guesses),
        }
    }
}

impl Draft {
    /// The drafts that the parties agree on.
    pub fn drafts(&self) -> Result<Drafts, Error> {
        let drafts = Drafts::new(self.guesses, self.rate)?;
        Ok(if self.steady { drafts.steady() } else { drafts })
    }

    /// The guesser for a model of the shape `target`.
    pub fn guess(&self, target: &ModelSpec) -> Result<Box<dyn Guess>, Error> {
        Ok(match &self.guesser {
            Guesser::Lookup => Box::new(PromptLookup),
            Guesser::Model(name) => Box::new(SmallModel::new(&open_model(name)?, target)?),
        })
    }

    /// The settings that a report names.
    pub(crate) fn chosen(&self) -> impl Iterator<Item = Chosen> {
        let steady = self.steady.then(|| ("draft_steady", true.into()));
        [("draft", self.to_string().into()), ("draft_rate", self.rate.into())].into_iter().chain(steady)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_has_one_text() {
        let lookup = |guesses| Draft::default().guesses(guesses);
        let model = |dir: &str, guesses| lookup(guesses).guesser(Guesser::Model(dir.into()));
        for (text, draft) in [
            ("lookup", lookup(4)),
            ("lookup:8", lookup(8)),
            ("model:a/b", model("a/b", 4)),
            ("model:a/b:2", model("a/b", 2)),
            ("model:c:/dir", model("c:/dir", 4)),
            ("model:x:y:64", model("x:y", 64)),
        ] {
            assert_eq!(text.parse(), Ok(draft.clone()), "{text}");
            assert_eq!(draft.to_string().parse(), Ok(draft));
        }
        for text in ["", "look", "lookup:", "lookup:0", "lookup:65", "lookup:x", "model", "model:", "model:a:0"] {
            assert!(text.parse::<Draft>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_padded_length_tells_no_more_than_its_list() {
        let of = |text: &str, tokens, room| text.parse::<Pads>().unwrap().of(tokens, room).ok();
        assert_eq!([1, 16, 17, 100].map(|tokens| of("auto", tokens, 1000)), [16, 16, 32, 128].map(Some));
        assert_eq!([of("auto", 90, 100), of("auto", 5, 100)], [Some(100), Some(16)]);
        assert_eq!([1, 8, 9, 40].map(|tokens| of("40,8", tokens, 1000)), [8, 8, 40, 40].map(Some));
        assert_eq!(of("40,8", 41, 1000), None);
        assert!("8,x".parse::<Pads>().is_err());
    }
}
