//! A conversation with a server's model.
//!
//! | part | what it does |
//! |---|---|
//! | [`script`] | the text of each turn, by the model's chat template or raw |
//! | [`transcript`] | what was said, and where it is kept |
//! | [`costs`] | the costs of its turns |
//! | [`clear`] | the same conversation with a plaintext model |
//! | [`background`] | a thread that keeps the session between turns |

mod background;
mod clear;
mod costs;
mod script;
mod transcript;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use waggle_model::{Lengths, Next, Sampler};
use waggle_mpcache::PolicySpec;
use waggle_report::Phases;
use waggle_session::PublicPrefix;
use waggle_session::party::chat::{Slices, slices};
use waggle_session::party::{
    ChatSession, ClientOptions, Event, PublicModel, Terms as Agreed, Watch, chat::Turn, nobody,
};
use waggle_tokenizer::{ChatTemplate, Tokenizer};

pub use self::background::BackgroundChat;
use self::clear::Clear;
use self::costs::Costs;
pub use self::costs::{ChatReport, TurnReport};
pub use self::script::Words;
use self::script::{Script, Step};
pub use self::transcript::{Role, Said, Transcript};
use crate::error::{ChatError, PromptError, Refusal};
use crate::generated::check_comparable;
use crate::heard::Heard;
use crate::models::read_tokenizer;
use crate::options::options;
use crate::public::named;
use crate::reader::{harmless, log_unread};
use crate::request::Sampling;
use crate::{Client, Error, Public, worker};

/// Longest time for which a client sends nothing to a server that gives up after `silence`: a third of `silence`, but
/// at least 10 ms and at most 10 s.
fn rest(silence: Duration) -> Duration {
    (silence / 3).clamp(Duration::from_millis(10), Duration::from_secs(10))
}

/// The source of the chat template that writes a conversation in the model's form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Template {
    /// The chat template of the server.
    #[default]
    Server,
    /// No template: words go to the model as they are, each message on a line of its own.
    Raw,
    /// The chat template in this directory of a model, or in this file.
    File(PathBuf),
}

options! {
    /// Options of a conversation.
    ChatOptions {
        /// Most tokens of an answer.
        tokens: usize = 64,
        /// Most tokens that a turn adds to the conversation before its answer, the marks of the chat template
        /// included. In two phases, correlations for this number of tokens are prepared between turns.
        turn_tokens: usize = 64,
        /// A message that stands before the first turn.
        system: Option<String> as impl Into<Option<String>> = None,
        /// Public tokens before all conversations; without them those that the server offers, unless
        /// [`Client::offers`] is off.
        public: Option<Public> as impl Into<Option<Public>> = None,
        /// Whether the text before the first words of the user is public: the `system` message, and what the chat
        /// template writes there. It stands behind `public`, and the server prunes all by one policy.
        public_system: bool = false,
        /// The policy by which the server prunes a beginning that `public_system` alone makes public.
        prefix_policy: PolicySpec = PolicySpec::default(),
        /// The chat template that writes the conversation.
        template: Template = Template::Server,
        /// Whether an answer ends where the model ends it. Otherwise every answer has its full length, which tells
        /// the server nothing.
        stop_at_eos: bool = true,
        /// Whether an answer that the model ends goes on, unseen, until its number of tokens is a power of two, at
        /// least 16. By default it does so under the policy `full`.
        pad_answer: Option<bool> as impl Into<Option<bool>> = None,
        /// Keep the conversation in this file, from the first turn on. Each line is a JSON object with `role` and
        /// `text`.
        transcript: Option<PathBuf> as impl Into<Option<PathBuf>> = None,
        /// Compare every answer with the answer of this model in the clear, a directory or a bundled name.
        check: Option<String> as impl Into<Option<String>> = None,
        /// Use the tokenizer of this directory, or this `tokenizer.json`, instead of the server's.
        tokenizer: Option<PathBuf> as impl Into<Option<PathBuf>> = None,
        /// The rule by which tokens are picked.
        sampling: Sampling = Sampling::default(),
    }
}

/// A conversation with a server's model, in a session of its own.
pub struct Chat {
    options: ChatOptions,
    network: String,
    pads: bool,
    longest: Lengths,
    session: ChatSession,
    model: PublicModel,
    tokenizer: Tokenizer,
    script: Script,
    sampler: Sampler,
    transcript: Transcript,
    costs: Costs,
    clear: Option<Clear>,
    /// The slices in which the correlations of the next turn are made.
    slices: Slices,
    /// Time at which the server last heard from this client.
    heard: Instant,
}

/// Tokens of the next turn for which correlations are ready, and for which they will be made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// Tokens for which correlations are ready.
    pub tokens: usize,
    /// Tokens for which correlations will be made; 0 in a session of one phase.
    pub of: usize,
}

impl Chat {
    /// Opens a session with the server of `client`.
    pub fn open(client: &Client, options: ChatOptions, watch: &mut Watch) -> Result<Self, Error> {
        let terms = client.terms.over(client.network)?;
        options.sampling.sampler(&terms)?;
        let transcript = Transcript::open(options.transcript.clone())?;
        let own = options.tokenizer.as_deref().map(read_tokenizer).transpose()?;
        let own_template = match &options.template {
            Template::File(path) => Some(ChatTemplate::read(path)?),
            Template::Server | Template::Raw => None,
        };
        let template = options.template == Template::Server;
        let without_offer = options.public.is_some();
        let wanted = ClientOptions { tokenizer: own.is_none(), template, without_offer, ..ClientOptions::default() };
        let opened = client.open(&terms, wanted, watch)?;
        let (model, terms) = (opened.model().clone(), opened.terms().clone());
        let sampler = options.sampling.sampler(&terms)?;
        if options.check.is_some() {
            check_comparable(&terms, options.sampling.temperature > 0.0)?;
        }
        if model.spec.image().is_some() {
            return Err(waggle_model::Error::NoTexts.into());
        }
        let template = own_template.map_or_else(|| model.chat_template(), |own| Ok(Some(own)))?;
        let bytes = own.or_else(|| model.tokenizer.clone()).ok_or(ChatError::NoTokenizer)?;
        // The template may be the server's, so it runs in the process of a foreign tokenizer, even if the tokenizer
        // is the client's own.
        let tokenizer = worker::foreign(&bytes)?;
        if let Some(why) = tokenizer.no_sandbox() {
            watch(Event::NoSandbox(why));
        }
        let by_default = terms.policy.keeps_all() && !model.spec.eos().is_empty();
        let pads = options.stop_at_eos && options.pad_answer.unwrap_or(by_default);
        let longest = Lengths { prompt: options.turn_tokens, tokens: options.tokens };
        // A turn begins with the last token of the answer before it.
        let bound = Lengths { prompt: longest.prompt.saturating_add(1), ..longest };
        let of = if terms.protocol.preprocess { slices(bound) } else { 0 };
        let opened = if pads { opened.padding_answers() } else { opened };
        let opened = if options.stop_at_eos { opened.stopping_at_eos() } else { opened };
        let mut script = Script::new(template, options.system.clone());
        if script.looks(&tokenizer) {
            watch(Event::Looks);
        }
        let mut prefix = Public::before(options.public.as_ref(), &model, Some(&tokenizer), watch)?;
        if prefix.is_some() {
            script.goes_behind();
        }
        if options.public_system {
            let head = script.publish(&tokenizer)?;
            let (before, policy) = match &prefix {
                Some(prefix) => (prefix.ids(), prefix.policy()),
                None => (&[][..], &options.prefix_policy),
            };
            prefix = Some(PublicPrefix::new([before, &head].concat(), policy.clone()));
        }
        let terms = Agreed { prefix: prefix.clone(), ..terms };
        let clear = options.check.as_deref().map(|name| Clear::open(name, &model.spec, &terms, pads)).transpose()?;
        let opened = opened.behind(prefix);
        let session = opened.chat(bound, watch)?;
        let tokenizer = tokenizer.within(session.positions().limit);
        Ok(Chat {
            network: client.network.to_string(),
            script,
            costs: Costs::new(session.opening()),
            heard: Instant::now(),
            options,
            pads,
            longest,
            session,
            model,
            tokenizer,
            sampler,
            transcript,
            clear,
            slices: Slices { ready: 0, of },
        })
    }

    /// The conversation so far.
    pub fn transcript(&self) -> &Transcript {
        &self.transcript
    }

    /// The public part of the model.
    pub fn model(&self) -> &PublicModel {
        &self.model
    }

    /// The terms on which the parties agreed.
    pub fn terms(&self) -> &waggle_session::party::Terms {
        self.session.terms()
    }

    /// The number of public tokens before each conversation.
    pub fn public_tokens(&self) -> usize {
        self.terms().prefix.as_ref().map_or(0, |prefix| prefix.ids().len())
    }

    /// The cost of opening the session.
    pub fn opening(&self) -> &Phases {
        &self.costs.opening
    }

    /// The turns of all conversations of the session.
    pub fn turns(&self) -> &[TurnReport] {
        &self.costs.turns
    }

    /// Tokens of the next turn for which correlations are ready, and for which they will be made.
    pub fn prepared(&self) -> Readiness {
        let of = self.longest.prompt + self.longest.tokens;
        match self.slices {
            Slices { of: 0, .. } => Readiness::default(),
            slices => Readiness { tokens: (of * slices.ready).div_ceil(slices.of), of },
        }
    }

    /// Makes correlations for the next turn, slice by slice, until `look` finds something. Returns `None` when all
    /// correlations are made. `shown` is called after each slice with the value of [`Chat::prepared`].
    ///
    /// # Errors
    /// The error that ends the session.
    pub fn prepare_until<T>(
        &mut self,
        look: impl Fn() -> Option<T>,
        mut shown: impl FnMut(Readiness),
    ) -> Result<Option<T>, Error> {
        // Refused turns send nothing, so after many of them the server may not have heard from this client for long.
        if self.heard.elapsed() > rest(self.session.silence()) {
            self.stay()?;
        }
        loop {
            if let Some(item) = look() {
                return Ok(Some(item));
            }
            match self.session.prepare(&mut nobody)? {
                Some(slices) => {
                    (self.slices, self.heard) = (slices, Instant::now());
                    shown(self.prepared());
                }
                None => return Ok(None),
            }
        }
    }

    /// Keeps the session alive until `wait` returns something. `wait` must return within the time that it is given.
    ///
    /// # Errors
    /// The error that ends the session.
    pub fn stay_until<T>(&mut self, wait: impl Fn(Duration) -> Option<T>) -> Result<T, Error> {
        loop {
            match wait(rest(self.session.silence()).saturating_sub(self.heard.elapsed())) {
                Some(item) => return Ok(item),
                None => self.stay()?,
            }
        }
    }

    /// Sends a sign of life to the server.
    fn stay(&mut self) -> Result<(), Error> {
        self.session.stay()?;
        self.heard = Instant::now();
        Ok(())
    }

    /// Begins another conversation in the same session.
    ///
    /// # Errors
    /// The error that ends the session.
    pub fn reset(&mut self) -> Result<(), Error> {
        self.reread()?;
        self.script.reset();
        self.costs.reset();
        self.transcript.reset()
    }

    /// Begins another conversation in the same session, unless nothing was said in this one.
    pub fn begin(&mut self) -> Result<(), Error> {
        if self.session.positions().used > self.public_tokens() { self.reset() } else { Ok(()) }
    }

    /// Generates up to `tokens` tokens after the prompt `ids`, in a conversation of its own.
    pub fn complete(
        &mut self,
        ids: &[u32],
        tokens: usize,
        sampler: &mut Sampler,
        watch: &mut Watch,
    ) -> Result<Turn, Error> {
        self.begin()?;
        let turn = self.session.turn(ids, tokens, Next::Pick(sampler), watch)?;
        (self.slices.ready, self.heard) = (0, Instant::now());
        Ok(turn)
    }

    /// Whether the session is still open.
    pub fn is_open(&self) -> bool {
        self.session.is_open()
    }

    /// Lets both parties drop their caches.
    fn reread(&mut self) -> Result<(), Error> {
        self.session.reset()?;
        self.slices.ready = 0;
        self.clear.iter_mut().for_each(Clear::reset);
        Ok(())
    }

    /// Says `words` in a turn of the user, and returns the answer.
    ///
    /// # Errors
    /// [`ChatError::Refused`] for a turn that did not begin. After every other error the session is over.
    pub fn turn(&mut self, words: &str) -> Result<TurnReport, Error> {
        self.turn_with(words, &mut nobody)
    }

    /// [`Chat::turn`], watched.
    ///
    /// # Errors
    /// As [`Chat::turn`].
    pub fn turn_with(&mut self, words: &str, watch: &mut Watch) -> Result<TurnReport, Error> {
        let mut sampler = std::mem::take(&mut self.sampler);
        let new = [("user", words.to_owned())];
        let turn = self.turn_of(&new, self.longest.tokens, &mut sampler, watch);
        self.sampler = sampler;
        turn
    }

    /// A turn with the new messages `new`, and an answer of up to `tokens` tokens, which `sampler` picks.
    pub fn turn_of(
        &mut self,
        new: &[Words],
        tokens: usize,
        sampler: &mut Sampler,
        watch: &mut Watch,
    ) -> Result<TurnReport, Error> {
        if !self.script.reads(new) {
            return Err(refused(Refusal::Other(PromptError::Empty.into())));
        }
        let step = self.script.next(&self.tokenizer, new).map_err(|error| refused(Refusal::Other(error)))?;
        // The number of tokens that are read again would tell how long the answers were.
        if step.rewrites && self.pads {
            return Err(refused(Refusal::Rereads));
        }
        let before = self.session.last().filter(|_| !step.rewrites);
        let ids = self.ids(&step, before).map_err(|error| refused(Refusal::Other(error)))?;
        if step.rewrites {
            watch(Event::Rereads);
            self.reread()?;
        }
        let read: Vec<u32> = before.into_iter().chain(ids.iter().copied()).collect();
        self.transcript.begin(new.last().map_or("", |(_, words)| words));
        let mut answer = Heard::new(None, Some(&self.tokenizer), &read, watch).kept_by({
            let transcript = self.transcript.clone();
            move |text| transcript.hear(text)
        });
        let taken = self.session.turn(&ids, tokens, Next::Pick(sampler), &mut |event| answer.hear(event));
        let turn = match answer.finish(taken) {
            Ok(turn) => turn,
            Err(Error::Session(error)) if self.session.is_open() => {
                self.transcript.take_back();
                if step.rewrites {
                    self.script.reset();
                }
                return Err(refused(self.refusal(error)?));
            }
            Err(error) => {
                self.transcript.break_off()?;
                return Err(error);
            }
        };
        (self.slices.ready, self.heard) = (0, Instant::now());
        let text = self.transcript.end()?;
        self.script.answered(step, &text);
        let check = self.clear.as_mut().map(|clear| clear.turn(&read, &turn.generation)).transpose()?;
        Ok(self.costs.turn(turn, text, check))
    }

    /// The ids that `step` adds. `last` is the last token of the previous answer, which the model has not read yet.
    /// If `last` ends a text and the template writes it once more, the second one is left out.
    fn ids(&self, step: &Step, last: Option<u32>) -> Result<Vec<u32>, Error> {
        let mut ids =
            if step.begins { self.tokenizer.encode(&step.text)? } else { self.tokenizer.encode_more(&step.text)? };
        log_unread(&self.tokenizer, &step.text)?;
        // The model reads the token that ended the answer as the turn's first token. The template writes it once
        // more, so one of the two goes.
        let ended = last.filter(|last| self.session.model().spec.eos().contains(last));
        if step.marked && ended.is_some() && ended == ids.first().copied() {
            ids.remove(0);
        }
        Ok(ids)
    }

    fn refusal(&self, error: waggle_session::Error) -> Result<Refusal, Error> {
        Ok(match error {
            waggle_session::Error::Full { .. } => Refusal::Full(error),
            waggle_session::Error::Limit { what: "tokens of a prompt", got, .. } => {
                let system = self.script.system().map(|text| self.tokenizer.encode_more(text)).transpose()?;
                Refusal::Long { got, limit: self.longest.prompt, system: system.map(|ids| ids.len()) }
            }
            error => Refusal::Other(error.into()),
        })
    }

    /// Ends the session, and reports on it.
    ///
    /// # Errors
    /// If the parties do not agree at the end of the session.
    pub fn finish(self) -> Result<ChatReport, Error> {
        let Chat { options, network, pads, session, model, tokenizer, script, costs, clear, .. } = self;
        let public: Vec<_> = session.terms().prefix.iter().flat_map(named).collect();
        let outcome = session.finish()?;
        let chosen = [
            ("link", network.into()),
            ("tokens", options.tokens.into()),
            ("turn_tokens", options.turn_tokens.into()),
            ("stop_at_eos", options.stop_at_eos.into()),
            ("pad_answer", pads.into()),
        ];
        let clock = script.clock().map(|now| ("clock", now.into()));
        let chosen = options.sampling.chosen().into_iter().chain(chosen).chain(clock).chain(public);
        costs.report(&model, &tokenizer, &outcome, chosen, clear.as_ref())
    }
}

fn refused(refusal: Refusal) -> Error {
    ChatError::Refused(Box::new(refusal)).into()
}

/// The note to a user whose chat template would write words differently depending on what they are.
pub const LOOKS: &str = "the chat template looks into words, to leave out the thoughts of earlier answers perhaps; it \
                         sees placeholders here, so all words stay as they are";

/// Most characters of a template that are shown, most characters of a named token, and most named tokens.
const SHOWN_TEMPLATE: usize = 8192;
const SHOWN_TOKEN: usize = 80;
const SHOWN_TOKENS: usize = 16;

/// The note to a user on the chat template of the server at `address`. Its length is bounded, and line ends and tabs
/// are its only control characters.
pub fn template_note(address: &str, template: &ChatTemplate) -> String {
    let ChatTemplate { template, tokens } = template;
    let cut = |text: &str, most: usize| match text.chars().count().checked_sub(most) {
        None | Some(0) => harmless(text),
        Some(more) => {
            let start: String = text.chars().take(most).collect();
            format!("{} ... and {more} characters more", harmless(&start))
        }
    };
    let token =
        |(name, token): (&String, &String)| format!("{}: {}\n", cut(name, SHOWN_TOKEN), cut(token, SHOWN_TOKEN));
    let tokens: String = tokens.iter().take(SHOWN_TOKENS).map(token).collect();
    let template = cut(template, SHOWN_TEMPLATE);
    format!("the server at {address} has its chat template put these words around yours:\n{tokens}{template}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_of_life_come_before_the_server_gives_up() {
        let seconds = Duration::from_secs;
        assert_eq!([3, 9, 120].map(|silence| rest(seconds(silence))), [1, 3, 10].map(seconds));
    }
}
