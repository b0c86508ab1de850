//! A conversation without a terminal: what the command has in common with programs in other languages.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use model::party::{ChatSession, Observer, Outcome, PublicModel, Silent, Terms};
use model::{Error as ModelError, Lengths, Next, Sampler, Tokenizer};
use thiserror::Error;

use super::answer::{Answer, Listener};
use super::clear::Clear;
use super::costs::{ChatReport, Costs, TurnReport};
use super::script::{Script, Step};
use super::transcript::Transcript;
use crate::cli::connect::ConnectArgs;
use crate::cli::files::read;
use crate::cli::options::{SamplingArgs, TermsArgs};
use crate::cli::{Error, tokenizer_worker};

/// How often a client that waits shows that it is there. A server gives up on silence after `--timeout`.
const STAY: Duration = Duration::from_secs(10);

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
    /// Let every answer have all of its tokens, though the model ends it earlier. Without this the server learns how
    /// many tokens an answer has.
    #[arg(long)]
    no_stop_at_eos: bool,
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
    Full(ModelError),
    /// More new tokens than a turn may have.
    #[error(
        "a turn of {got} tokens is longer than --turn-tokens {limit} allows: say it in parts, or begin with more"
    )]
    Long {
        /// Tokens of the turn.
        got: usize,
        /// The most.
        limit: usize,
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
    /// Whether an answer ends where the model says so.
    stop: bool,
    longest: Lengths,
    session: ChatSession,
    model: PublicModel,
    tokenizer: Tokenizer,
    script: Script,
    sampler: Sampler,
    transcript: Transcript,
    costs: Costs,
    clear: Option<Clear>,
    /// Slices of the next turn that are there, and all of them.
    slices: (usize, usize),
}

impl Talk {
    /// Opens a session with the server.
    pub(in crate::cli) fn open(args: TalkArgs, observer: &mut dyn Observer) -> Result<Self, Error> {
        let terms = args.terms.terms(args.connect.link)?;
        let sampler = args.sampling.sampler(&terms)?;
        if args.sampling.stop_at_eos && args.no_stop_at_eos {
            return Err(Error::StopAndNot);
        }
        let transcript = Transcript::open(args.transcript.clone())?;
        let own = args.tokenizer.as_deref().map(read).transpose()?;
        let opened = args.connect.open(&terms, own.is_none())?;
        let model = opened.model().clone();
        let bytes = own.or_else(|| model.tokenizer.clone()).ok_or(Error::ChatNeedsTokenizer)?;
        // The template is the server's, so it runs where a foreign tokenizer does.
        let tokenizer = tokenizer_worker::foreign(&bytes)?;
        let clear = args.check.as_deref().map(|name| Clear::open(name, &model.spec, &terms)).transpose()?;
        let stop = !args.no_stop_at_eos && !model.spec.eos().is_empty();
        let longest = Lengths { prompt: args.turn_tokens, tokens: args.tokens };
        // A turn begins with the last token of the answer before it.
        let bound = Lengths { prompt: longest.prompt.saturating_add(1), ..longest };
        let slices = (0, if terms.protocol.preprocess { model::party::chat::slices(bound) } else { 0 });
        let session = opened.chat(bound, stop, observer)?;
        let template = session.template().filter(|_| !args.no_template).cloned();
        let costs = Costs::new(session.opening());
        let script = Script::new(template, args.system.clone());
        Ok(Talk {
            args,
            terms,
            stop,
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
        })
    }

    /// What was said.
    pub(in crate::cli) fn transcript(&self) -> &Transcript {
        &self.transcript
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
        loop {
            if let Some(item) = incoming.look() {
                return Ok(Some(item));
            }
            match self.session.prepare(&mut Silent)? {
                Some(slices) => {
                    self.slices = slices;
                    shown(self.prepared());
                }
                None => return Ok(None),
            }
        }
    }

    /// Keeps the session until something comes.
    pub(in crate::cli) fn stay_until<I: Incoming>(&mut self, incoming: &I) -> Result<I::Item, Error> {
        loop {
            match incoming.wait(STAY) {
                Some(item) => return Ok(item),
                None => self.session.stay()?,
            }
        }
    }

    /// Begins another conversation in the same session.
    pub(in crate::cli) fn reset(&mut self) -> Result<(), Error> {
        self.reread()?;
        self.script.reset();
        self.costs.reset();
        self.transcript.reset()
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
        if step.rewrites {
            listener.rereads();
            self.reread()?;
        }
        let ids = self.ids(&step)?;
        let before = self.session.last();
        let read: Vec<u32> = before.into_iter().chain(ids.iter().copied()).collect();
        self.transcript.begin(words);
        let mut answer = Answer::new(&self.tokenizer, &read, &mut self.transcript, listener);
        let next = Next::Pick(&mut self.sampler);
        let taken = self.session.turn(&ids, self.longest.tokens, next, &mut answer);
        answer.finish();
        let turn = match taken {
            Ok(turn) => turn,
            Err(error) if self.session.is_open() => {
                self.transcript.take_back();
                if step.rewrites {
                    self.script.reset();
                }
                return Ok(Err(self.refusal(error)));
            }
            Err(error) => {
                self.transcript.break_off()?;
                return Err(error.into());
            }
        };
        self.slices.0 = 0;
        let text = self.transcript.end()?;
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

    fn refusal(&self, error: ModelError) -> Refusal {
        match error {
            ModelError::Full { .. } => Refusal::Full(error),
            ModelError::Limit { what: "tokens of a prompt", got, .. } => {
                Refusal::Long { got, limit: self.longest.prompt }
            }
            error => Refusal::Other(error.into()),
        }
    }

    /// Ends the session. What was said is there even if this fails.
    pub(in crate::cli) fn finish(self) -> (Transcript, Result<Ended, Error>) {
        let Talk { args, terms, stop, session, model, tokenizer, transcript, costs, clear, .. } = self;
        let ended = session.finish().map_err(Error::from);
        let ended = ended.map(|outcome| Ended { args, terms, stop, model, tokenizer, costs, clear, outcome });
        (transcript, ended)
    }
}

/// What a session leaves.
pub(in crate::cli) struct Ended {
    args: TalkArgs,
    terms: Terms,
    stop: bool,
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
