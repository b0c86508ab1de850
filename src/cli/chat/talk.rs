//! A conversation without a terminal: what the command has in common with programs in other languages.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use clap::Args;
use model::{Lengths, Next, Sampler};
use mpcache::PolicySpec;
use session::Error as SessionError;
use session::party::{ChatSession, ClientOptions, Observer, Outcome, PublicModel, Silent, Terms};
use thiserror::Error;
use tokenizer::{ChatTemplate, Tokenizer};

use super::answer::{Answer, Listener};
use super::clear::Clear;
use super::costs::{ChatReport, Costs, TurnReport};
use super::script::{Script, Step};
use super::transcript::{Transcript, lock};
use crate::cli::connect::ConnectArgs;
use crate::cli::files::read;
use crate::cli::options::{SamplingArgs, TermsArgs};
use crate::cli::{Error, tokenizer_worker};

/// How long a client may say nothing to a server that gives up after `silence`: a third of that, within bounds.
fn rest(silence: Duration) -> Duration {
    (silence / 3).clamp(Duration::from_millis(10), Duration::from_secs(10))
}

/// A conversation and its server.
#[derive(Args, Clone, Debug)]
pub(in crate::cli) struct TalkArgs {
    #[command(flatten)]
    pub(super) connect: ConnectArgs,
    /// Most tokens of an answer.
    #[arg(long, value_name = "N", default_value_t = 64)]
    tokens: usize,
    /// Most tokens that a turn adds to the conversation before its answer, the marks of the chat template included.
    /// With --preprocess so much is prepared while you read and type.
    #[arg(long, value_name = "N", default_value_t = 64)]
    turn_tokens: usize,
    /// A message that stands before the first turn.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Do not use the model's chat template: what you type goes to the model as it is, with the end of its line.
    #[arg(long)]
    no_template: bool,
    /// Use this chat template: the directory of a model, or a file with the template's text, whose tokens are those
    /// of a `tokenizer_config.json` beside it, if there is one. That of the server is then neither used nor compared.
    #[arg(long, value_name = "FILE", conflicts_with = "no_template")]
    template: Option<PathBuf>,
    /// Let every answer have all of its tokens, though the model or Ctrl-C ends it earlier. Then its length tells the
    /// server nothing.
    #[arg(long)]
    no_stop_at_eos: bool,
    /// Let an answer that the model ends go on, unseen, to the next power of two of tokens from 16 on or to --tokens:
    /// the server learns that number in the place of the answer's length. This is the default under the policy
    /// `full`; under other policies it is refused.
    #[arg(long, conflicts_with_all = ["no_pad_answer", "no_stop_at_eos"])]
    pad_answer: bool,
    /// Let the server learn how many tokens an answer has: answers end where the model ends them.
    #[arg(long)]
    no_pad_answer: bool,
    /// Keep the conversation in this file, from the first turn on: one JSON object with `role` and `text` on a line.
    /// Without it a conversation that breaks is kept in `waggle-chat-` and the time, in the current directory.
    #[arg(long, value_name = "FILE")]
    transcript: Option<PathBuf>,
    /// Compare every answer with that of this model in the clear, on the same conversation: a Hugging Face directory,
    /// or the name of a bundled model. For tests: it tells nothing to the server.
    #[arg(long, value_name = "DIR")]
    check: Option<String>,
    /// Use this `tokenizer.json` instead of the server's.
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    terms: TermsArgs,
}

/// Why a turn did not begin. Nothing has happened, and the conversation goes on.
#[derive(Debug, Error)]
pub(in crate::cli) enum Refusal {
    /// The model has too few positions left.
    #[error(transparent)]
    Full(SessionError),
    /// More new tokens than a turn may have.
    #[error("a turn of {got} tokens is longer than --turn-tokens {limit} allows: {}", match system {
        Some(tokens) => format!("the text of --system, which stands before it, has {tokens} tokens"),
        None => "say it in parts, or begin with more".into(),
    })]
    Long {
        /// Tokens of the turn.
        got: usize,
        /// The most.
        limit: usize,
        /// Those of the system text, if the turn has it.
        system: Option<usize>,
    },
    /// Everything else.
    #[error(transparent)]
    Other(Error),
}

/// Where what happens next in a conversation comes from.
pub(in crate::cli) trait Incoming {
    /// What comes.
    type Item;

    /// What is there.
    fn look(&self) -> Option<Self::Item>;

    /// What comes within `limit`.
    fn wait(&self, limit: Duration) -> Option<Self::Item>;
}

/// A session with what surrounds it.
pub(in crate::cli) struct Talk {
    args: TalkArgs,
    terms: Terms,
    /// Whether an answer may end early, and whether it is padded then.
    stop: bool,
    pads: bool,
    longest: Lengths,
    session: ChatSession,
    model: PublicModel,
    tokenizer: Tokenizer,
    script: Script,
    sampler: Sampler,
    transcript: Arc<Mutex<Transcript>>,
    costs: Costs,
    clear: Option<Clear>,
    /// Slices of the next turn that are there, and all of them.
    slices: (usize, usize),
    /// When the server last heard from this client.
    heard: Instant,
}

impl Talk {
    /// Opens a session with the server.
    pub(in crate::cli) fn open(args: TalkArgs, observer: &mut dyn Observer) -> Result<Self, Error> {
        let terms = args.terms.terms(args.connect.link)?;
        let sampler = args.sampling.sampler(&terms)?;
        if args.sampling.stop_at_eos && args.no_stop_at_eos {
            return Err(Error::StopAndNot);
        }
        let transcript = Arc::new(Mutex::new(Transcript::open(args.transcript.clone())?));
        let own = args.tokenizer.as_deref().map(read).transpose()?;
        let own_template = args.template.as_deref().map(ChatTemplate::read).transpose()?;
        let wanted = ClientOptions {
            tokenizer: own.is_none(),
            template: own_template.is_none() && !args.no_template,
            expected: None,
        };
        let opened = args.connect.open(&terms, wanted)?;
        let model = opened.model().clone();
        let template = own_template.map_or_else(|| model.chat_template(), |own| Ok(Some(own)))?;
        let bytes = own.or_else(|| model.tokenizer.clone()).ok_or(Error::ChatNeedsTokenizer)?;
        // The template may be the server's, so it runs where a foreign tokenizer does.
        let tokenizer = tokenizer_worker::foreign(&bytes)?;
        let stop = !args.no_stop_at_eos;
        let by_default = terms.policy == PolicySpec::default() && !model.spec.eos().is_empty();
        let pads = stop && !args.no_pad_answer && (args.pad_answer || by_default);
        let clear = args.check.as_deref().map(|name| Clear::open(name, &model.spec, &terms, pads)).transpose()?;
        let longest = Lengths { prompt: args.turn_tokens, tokens: args.tokens };
        // A turn begins with the last token of the answer before it.
        let bound = Lengths { prompt: longest.prompt.saturating_add(1), ..longest };
        let slices = (0, if terms.protocol.preprocess { session::party::chat::slices(bound) } else { 0 });
        let opened = if pads { opened.padding_answers() } else { opened };
        let session = opened.chat(bound, stop, observer)?;
        let costs = Costs::new(session.opening());
        let script = Script::new(template, args.system.clone());
        Ok(Talk {
            args,
            terms,
            stop,
            pads,
            longest,
            session,
            model,
            tokenizer,
            script,
            sampler,
            transcript,
            costs,
            clear,
            slices,
            heard: Instant::now(),
        })
    }

    /// What was said.
    pub(in crate::cli) fn transcript(&self) -> MutexGuard<'_, Transcript> {
        lock(&self.transcript)
    }

    /// The same for another thread.
    pub(super) fn shared(&self) -> Arc<Mutex<Transcript>> {
        self.transcript.clone()
    }

    /// What it took so far.
    pub(in crate::cli) fn costs(&self) -> &Costs {
        &self.costs
    }

    /// For how many tokens of the next turn correlations are there, and for how many there will be; none in a session
    /// of one phase.
    pub(in crate::cli) fn prepared(&self) -> (usize, usize) {
        let tokens = self.longest.prompt + self.longest.tokens;
        match self.slices {
            (_, 0) => (0, 0),
            (done, all) => ((tokens * done).div_ceil(all), tokens),
        }
    }

    /// Makes correlations for the next turn, slice by slice, until something comes (`None`: until all are there).
    /// `shown` is called after each slice with [`Talk::prepared`].
    pub(in crate::cli) fn prepare_until<I: Incoming>(
        &mut self,
        incoming: &I,
        mut shown: impl FnMut((usize, usize)),
    ) -> Result<Option<I::Item>, Error> {
        // A long run of refused turns says nothing to the server.
        if self.heard.elapsed() > rest(self.session.silence()) {
            self.stay()?;
        }
        loop {
            if let Some(item) = incoming.look() {
                return Ok(Some(item));
            }
            match self.session.prepare(&mut Silent)? {
                Some(slices) => {
                    (self.slices, self.heard) = (slices, Instant::now());
                    shown(self.prepared());
                }
                None => return Ok(None),
            }
        }
    }

    /// Keeps the session until something comes.
    pub(in crate::cli) fn stay_until<I: Incoming>(&mut self, incoming: &I) -> Result<I::Item, Error> {
        loop {
            match incoming.wait(rest(self.session.silence()).saturating_sub(self.heard.elapsed())) {
                Some(item) => return Ok(item),
                None => self.stay()?,
            }
        }
    }

    /// Shows the server that this client is there.
    fn stay(&mut self) -> Result<(), Error> {
        self.session.stay()?;
        self.heard = Instant::now();
        Ok(())
    }

    /// Begins another conversation in the same session.
    pub(in crate::cli) fn reset(&mut self) -> Result<(), Error> {
        self.reread()?;
        self.script.reset();
        self.costs.reset();
        self.transcript().reset()
    }

    /// The parties drop their caches.
    fn reread(&mut self) -> Result<(), Error> {
        self.session.reset()?;
        self.slices.0 = 0;
        self.clear.iter_mut().for_each(Clear::reset);
        Ok(())
    }

    /// A turn of the user. After an error the session is over.
    pub(in crate::cli) fn turn(
        &mut self,
        words: &str,
        listener: &mut dyn Listener,
    ) -> Result<Result<TurnReport, Refusal>, Error> {
        if words.trim().is_empty() {
            return Ok(Err(Refusal::Other(Error::EmptyPrompt)));
        }
        let step = match self.script.next(&self.tokenizer, words) {
            Ok(step) => step,
            Err(error) => return Ok(Err(Refusal::Other(error))),
        };
        // How many tokens are read again would tell how long the answers were.
        if step.rewrites && self.pads {
            return Ok(Err(Refusal::Other(Error::Rereads)));
        }
        if step.rewrites {
            listener.rereads();
            self.reread()?;
        }
        let ids = self.ids(&step)?;
        let before = self.session.last();
        let read: Vec<u32> = before.into_iter().chain(ids.iter().copied()).collect();
        self.transcript().begin(words);
        let mut answer = Answer::new(&self.tokenizer, &read, &self.transcript, listener);
        let next = Next::Pick(&mut self.sampler);
        let taken = self.session.turn(&ids, self.longest.tokens, next, &mut answer);
        answer.finish();
        let turn = match taken {
            Ok(turn) => turn,
            Err(error) if self.session.is_open() => {
                self.transcript().take_back();
                if step.rewrites {
                    self.script.reset();
                }
                return Ok(Err(self.refusal(error)?));
            }
            Err(error) => {
                self.transcript().break_off()?;
                return Err(error.into());
            }
        };
        (self.slices.0, self.heard) = (0, Instant::now());
        let text = self.transcript().end()?;
        self.script.answered(step, &text);
        let check = self.clear.as_mut().map(|clear| clear.turn(&read, &turn.generation)).transpose()?;
        Ok(Ok(self.costs.turn(turn, text, check)))
    }

    /// The new ids of a turn.
    fn ids(&self, step: &Step) -> Result<Vec<u32>, Error> {
        let mut ids =
            if step.begins { self.tokenizer.encode(&step.text)? } else { self.tokenizer.encode_more(&step.text)? };
        // A mark that ended the answer is read as the first token of the turn; the template writes it again.
        let ended = self.session.last().filter(|last| self.session.model().spec.eos().contains(last));
        if step.marked && ended.is_some() && ended == ids.first().copied() {
            ids.remove(0);
        }
        Ok(ids)
    }

    fn refusal(&self, error: SessionError) -> Result<Refusal, Error> {
        Ok(match error {
            SessionError::Full { .. } => Refusal::Full(error),
            SessionError::Limit { what: "tokens of a prompt", got, .. } => {
                let system = self.script.system().map(|text| self.tokenizer.encode_more(text)).transpose()?;
                Refusal::Long { got, limit: self.longest.prompt, system: system.map(|ids| ids.len()) }
            }
            error => Refusal::Other(error.into()),
        })
    }

    /// Ends the session. What was said is there even if this fails.
    pub(in crate::cli) fn finish(self) -> (Arc<Mutex<Transcript>>, Result<Ended, Error>) {
        let Talk { args, terms, stop, pads, session, model, tokenizer, transcript, costs, clear, .. } = self;
        let ended = session.finish().map_err(Error::from);
        let ended = ended.map(|outcome| Ended { args, terms, stop, pads, model, tokenizer, costs, clear, outcome });
        (transcript, ended)
    }
}

/// What a session leaves.
pub(in crate::cli) struct Ended {
    args: TalkArgs,
    terms: Terms,
    stop: bool,
    pads: bool,
    model: PublicModel,
    tokenizer: Tokenizer,
    costs: Costs,
    clear: Option<Clear>,
    outcome: Outcome,
}

impl Ended {
    /// What the plaintext model says to all of it, if it was asked.
    pub(in crate::cli) fn verdict(&self) -> Option<String> {
        self.clear.as_ref().map(Clear::verdict)
    }

    /// The report.
    pub(in crate::cli) fn report(self) -> Result<ChatReport, Error> {
        let chosen = [
            ("link", self.args.connect.link.to_string().into()),
            ("tokens", self.args.tokens.into()),
            ("turn_tokens", self.args.turn_tokens.into()),
            ("pad_answer", self.pads.into()),
        ];
        let stop = self.stop;
        let sampling = self.args.sampling.reported().into_iter().map(|(name, value)| match name {
            "stop_at_eos" => (name, stop.into()),
            _ => (name, value),
        });
        let chosen = sampling.chain(chosen);
        self.costs.report(&self.model, &self.tokenizer, &self.outcome, &self.terms, chosen, self.clear.as_ref())
    }
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
