//! `waggle chat`: a conversation with a server's model.
//!
//! | part | what it does |
//! |---|---|
//! | [`input`] | lines of a person, a pipe or a file, read by a thread of its own |
//! | [`script`] | the text of each turn, by the model's chat template or raw |
//! | [`answer`] | an answer as it comes |
//! | [`clear`] | the same conversation with a plaintext model |
//! | [`transcript`] | what was said, and where it is kept |
//! | [`costs`] | what it took |
//!
//! The thread of the session takes a line when there is one. Until then it prepares correlations for the next turn,
//! slice by slice, and then shows the server from time to time that it is there.

mod answer;
mod clear;
mod costs;
mod input;
mod script;
mod transcript;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use model::party::{ChatSession, Outcome, Silent};
use model::{Error as ModelError, Lengths, Next, Sampler, Tokenizer};

use self::answer::Answer;
use self::clear::Clear;
use self::costs::Costs;
use self::input::{Input, Lines};
use self::script::{Script, Step};
use self::transcript::{Role, Transcript};
use super::connect::ConnectArgs;
use super::error::describe;
use super::files::{check_writable, read, write_json};
use super::options::{SamplingArgs, TermsArgs};
use super::{Error, out, tokenizer_worker};

/// How often a client that waits shows that it is there. A server gives up on silence after `--timeout`.
const STAY: Duration = Duration::from_secs(10);

const HELP: &str = "\
/reset       begin another conversation in the same session
/save FILE   write the conversation: as text if the name ends in .txt or .md, as JSON lines otherwise
/cost        bytes each way, flows and seconds of the last turn and of all
/help        this list
/quit        end the session, as the end of input does
A line that begins with // is a turn that begins with /.";

/// Talks with the model of a server, which learns neither the words nor the answers.
///
/// Each line of standard input is a turn; its words alone go through the model, on a private cache that both parties
/// keep. For every turn the server learns how many tokens are new, how many are generated, and when. Answers go to
/// standard output as they come, all else to standard error. Lines that begin with / are commands; /help lists them.
#[derive(Args, Debug)]
pub(super) struct ChatArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    /// Most tokens of an answer.
    #[arg(long, value_name = "N", default_value_t = 64)]
    tokens: usize,
    /// Most tokens that a turn adds to the conversation before its answer, the marks of the chat template included.
    /// With --preprocess so much is prepared while you read and type.
    #[arg(long, value_name = "N", default_value_t = 64)]
    turn_tokens: usize,
    /// Take the turns from this file, one a line, instead of standard input.
    #[arg(long, value_name = "FILE")]
    turns: Option<PathBuf>,
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
    /// Write the report here: that of the whole session, with a list of the turns and what each took.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    terms: TermsArgs,
}

pub(super) fn run(args: ChatArgs) -> Result<(), Error> {
    check_writable(args.json.as_deref())?;
    let terms = args.terms.terms(args.connect.link)?;
    let sampler = args.sampling.sampler(&terms)?;
    if args.sampling.stop_at_eos && args.no_stop_at_eos {
        return Err(Error::StopAndNot);
    }
    let lines = Lines::read(args.turns.as_deref())?;
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
    let session = opened.chat(bound, stop, &mut Silent)?;
    let template = session.template().filter(|_| !args.no_template).cloned();
    let costs = Costs::new(session.opening());
    let script = Script::new(template, args.system.clone());
    let chat = Chat { longest, session, tokenizer: &tokenizer, script, sampler, transcript, costs, clear, lines };
    let (outcome, costs, clear) = chat.run()?;
    if let Some(clear) = &clear {
        out::note(clear.verdict());
    }
    if let Some(path) = &args.json {
        let chosen = [
            ("link", args.connect.link.to_string().into()),
            ("tokens", args.tokens.into()),
            ("turn_tokens", args.turn_tokens.into()),
        ];
        let sampling = args.sampling.reported().into_iter().map(|(name, value)| match name {
            "stop_at_eos" => (name, stop.into()),
            _ => (name, value),
        });
        let chosen = sampling.chain(chosen);
        let report = costs.report(&model, &tokenizer, &outcome, &terms, chosen, clear.as_ref())?;
        write_json(path, &report)?;
    }
    Ok(())
}

/// A session with what surrounds it.
struct Chat<'a> {
    longest: Lengths,
    session: ChatSession,
    tokenizer: &'a Tokenizer,
    script: Script,
    sampler: Sampler,
    transcript: Transcript,
    costs: Costs,
    clear: Option<Clear>,
    lines: Lines,
}

/// Whether the conversation goes on.
enum After {
    Goes,
    Ends,
}

impl Chat<'_> {
    /// Takes turns until the input ends. A failure of the session keeps what was said.
    fn run(mut self) -> Result<(Outcome, Costs, Option<Clear>), Error> {
        if self.lines.is_terminal() {
            out::note("/help lists commands, /quit ends");
        }
        let talked = self.take_turns();
        let ended = match talked {
            Ok(()) => self.session.finish().map_err(Error::from),
            Err(error) => Err(error),
        };
        match ended {
            Ok(outcome) => Ok((outcome, self.costs, self.clear)),
            // A reader that has gone did not break the session.
            Err(error @ Error::Output { .. }) => Err(error),
            Err(error) => Err(self.transcript.keep_after(error)),
        }
    }

    fn take_turns(&mut self) -> Result<(), Error> {
        loop {
            let after = match self.wait()? {
                Input::End => After::Ends,
                Input::Failed(error) => return Err(error),
                Input::Line(line) => self.line(&line)?,
            };
            if let After::Ends = after {
                return Ok(());
            }
        }
    }

    /// The next line. Until it comes, correlations are made.
    fn wait(&mut self) -> Result<Input, Error> {
        self.lines.ask();
        let mut shown = None;
        let per_slice = |done: usize, all: usize, longest: Lengths| {
            let tokens = longest.prompt + longest.tokens;
            format!("prepared: {} of {tokens} tokens", (tokens * done).div_ceil(all))
        };
        let found = loop {
            if let Some(input) = self.lines.look() {
                break Some(input);
            }
            match self.session.prepare(&mut Silent)? {
                Some((done, all)) => {
                    let line = per_slice(done, all, self.longest);
                    self.lines.show(&line);
                    shown = Some(line);
                }
                None => break None,
            }
        };
        if let Some(line) = shown.filter(|_| !self.lines.is_terminal()) {
            out::note(line);
        }
        if let Some(input) = found {
            return Ok(input);
        }
        loop {
            match self.lines.wait(STAY) {
                Some(input) => return Ok(input),
                None => self.session.stay()?,
            }
        }
    }

    /// Does what a line says.
    fn line(&mut self, line: &str) -> Result<After, Error> {
        let line = line.trim_end_matches(['\n', '\r']);
        let command = line.strip_prefix('/').filter(|rest| !rest.starts_with('/'));
        let Some(command) = command else {
            let words = line.strip_prefix('/').unwrap_or(line);
            if !words.trim().is_empty() {
                self.turn(words)?;
            }
            return Ok(After::Goes);
        };
        let (name, argument) = command.split_once(' ').map_or((command, ""), |(name, rest)| (name, rest.trim()));
        match (name, argument) {
            ("quit", "") => return Ok(After::Ends),
            ("help", "") => out::note(HELP),
            ("cost", "") => out::note(self.costs.table()),
            ("reset", "") => {
                self.reset()?;
                out::note("another conversation");
            }
            ("save", file) if !file.is_empty() => match self.transcript.save(file.as_ref()) {
                Ok(()) => out::note(format_args!("saved in {file}")),
                Err(error) => out::note(format_args!("not saved: {}", describe(&error))),
            },
            ("save", _) => out::note("/save needs the name of a file"),
            _ => {
                out::note(format_args!("there is no command /{}; /help lists those that there are", shorter(command)))
            }
        }
        Ok(After::Goes)
    }

    fn reset(&mut self) -> Result<(), Error> {
        self.session.reset()?;
        self.script.reset();
        self.costs.reset();
        self.transcript.reset()?;
        self.clear.iter_mut().for_each(Clear::reset);
        Ok(())
    }

    /// A turn of the user. What is refused before it begins is told, and the conversation goes on.
    fn turn(&mut self, words: &str) -> Result<(), Error> {
        let step = match self.script.next(self.tokenizer, words) {
            Ok(step) => step,
            Err(error) => {
                out::note(format_args!("refused: {}", describe(&error)));
                return Ok(());
            }
        };
        if step.rewrites {
            out::note(
                "the chat template changes what was said before: the model reads the conversation from its beginning",
            );
            self.session.reset()?;
            self.clear.iter_mut().for_each(Clear::reset);
        }
        let ids = self.ids(&step)?;
        let before = self.session.last();
        let mut answer = Answer::new(self.tokenizer, before.into_iter().chain(ids.iter().copied()).collect());
        let next = Next::Pick(&mut self.sampler);
        let taken = self.session.turn(&ids, self.longest.tokens, next, &mut answer);
        let (text, printed) = answer.finish();
        let turn = match taken {
            Ok(turn) => turn,
            Err(error) if self.session.is_open() => {
                self.refused(&error);
                if step.rewrites {
                    self.script.reset();
                }
                return Ok(());
            }
            Err(error) => {
                self.transcript.say(Role::User, words)?;
                if !text.is_empty() {
                    self.transcript.say(Role::Assistant, &text)?;
                }
                // What standard output says comes first, because it ended the session.
                printed?;
                return Err(error.into());
            }
        };
        printed?;
        self.transcript.say(Role::User, words)?;
        self.transcript.say(Role::Assistant, &text)?;
        self.script.answered(step, &text);
        let read: Vec<u32> = before.into_iter().chain(ids).collect();
        let check = self.clear.as_mut().map(|clear| clear.turn(&read, &turn.generation)).transpose()?;
        self.costs.turn(turn, text, check);
        Ok(())
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

    fn refused(&self, error: &ModelError) {
        match error {
            ModelError::Full { .. } => {
                out::note(format_args!("{error}: /reset begins another conversation"));
            }
            ModelError::Limit { what: "tokens of a prompt", got, .. } => out::note(format_args!(
                "a turn of {got} tokens is longer than --turn-tokens {} allows: say it in parts, or begin with more",
                self.longest.prompt
            )),
            error => out::note(format_args!("refused: {error}")),
        }
    }
}

/// What an error quotes of a line.
fn shorter(text: &str) -> String {
    super::progress::harmless(text).chars().take(40).collect()
}
