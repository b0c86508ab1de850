//! `waggle chat`: a conversation with a server's model.
//!
//! | part | what it does |
//! |---|---|
//! | [`interrupts`] | Ctrl-C |
//! | [`input`] | lines of a person, a pipe or a file, read by a thread of its own |
//! | [`costs`] | the costs so far |
//!
//! The thread of the session takes a line when there is one. Until then it prepares correlations for the next turn,
//! slice by slice. When all are prepared, it sends the server a sign of life from time to time.

mod costs;
mod input;
mod interrupts;

use std::fmt::Display;
use std::path::PathBuf;

use clap::Args;
use waggle::program::harmless;
use waggle::{Chat, ChatError, ChatOptions, Event, Flow, Readiness, Refusal, Template};
use waggle_files::{check_writable, write_json};

use self::input::{Input, Lines};
use self::interrupts::Interrupts;
use super::connect::{ConnectArgs, note};
use super::options::{SamplingArgs, TermsArgs, set};
use super::prompt::{OfferArgs, PublicArgs};
use super::report_tables::compared;
use super::{Error, out};
use crate::advice::{told_of, told_of_refusal};

const HELP: &str = "\
/reset       begin another conversation in the same session
/save FILE   write the conversation into a new file: as text if the name ends in .txt or .md, as JSON lines otherwise
/cost        bytes each way, flows and seconds of the last turn and of all
/help        this list
/quit        end the session, as the end of input does
Ctrl-C       stop the answer; once more, end the session and keep the conversation in a file
A line that begins with // is a turn that begins with /.";

/// Talks with the model of a server, which learns neither the words nor the answers.
///
/// Each line of standard input is a turn; its words alone go through the model, on a private cache that both parties
/// keep. For every turn the server learns how many tokens are new, how many are generated (rounded up, see
/// --pad-answer), and when. Answers go to
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
    /// A message that stands before the first turn.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// What stands before the first words of a conversation is no secret: the text of --system, and what the chat
    /// template writes there. The server reads it in the clear, once for all sessions that begin so.
    #[arg(long, group = "public text")]
    public_system: bool,
    #[command(flatten)]
    public: PublicArgs,
    #[command(flatten)]
    offer: OfferArgs,
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
    /// Use the tokenizer of this directory, or this `tokenizer.json` alone, instead of the server's.
    #[arg(long, value_name = "DIR")]
    tokenizer: Option<PathBuf>,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    terms: TermsArgs,
    /// Take the turns from this file, one a line, instead of standard input.
    #[arg(long, value_name = "FILE")]
    turns: Option<PathBuf>,
    /// Write the report here: that of the whole session, with a list of the turns and what each took.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl ChatArgs {
    fn options(&self) -> Result<ChatOptions, Error> {
        if self.sampling.stop_at_eos && self.no_stop_at_eos {
            return Err(Error::StopAndNot);
        }
        let template = match &self.template {
            _ if self.no_template => Template::Raw,
            Some(file) => Template::File(file.clone()),
            None => Template::Server,
        };
        let pad_answer = match (self.pad_answer, self.no_pad_answer) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        };
        let options = ChatOptions::default().template(template).stop_at_eos(!self.no_stop_at_eos);
        let options = options.pad_answer(pad_answer).sampling(self.sampling.sampling());
        let options = options.public(self.public.read()?).prefix_policy(self.public.prefix_policy.clone());
        Ok(set!(options, self => tokens, turn_tokens, system, public_system, transcript, check, tokenizer))
    }
}

pub(super) fn run(args: ChatArgs) -> Result<(), Error> {
    check_writable(args.json.as_deref())?;
    let lines = Lines::read(args.turns.as_deref())?;
    let interrupts = Interrupts::default();
    let mut printed = Printed { within: false, failed: None, interrupts: interrupts.clone() };
    let client = args.connect.client(args.terms.terms()?).offers(!args.offer.no_public_prefix);
    let chat = client.chat_with(args.options()?, &mut |event| printed.hear(event))?;
    if lines.is_terminal() {
        out::note("/help lists commands, /quit ends");
    }
    let transcript = chat.transcript().clone();
    let said = transcript.clone();
    let end = move || {
        let _ = out::fail(&said.keep_after(ChatError::Interrupted.into()).into());
    };
    interrupts
        .take(lines.is_terminal(), lines.interrupter(), end)
        .map_err(|source| waggle::Error::System { what: "wait for signals", source })?;
    let mut talk = Talk { chat, lines, interrupts, taken: 0, refused: 0 };
    let report = match talk.take_turns() {
        Ok(()) => talk.chat.finish(),
        Err(Error::Library(error)) => Err(error),
        // A lost reader of standard output does not mean that the session is broken.
        Err(error) => return Err(error),
    };
    let report = report.map_err(|error| transcript.keep_after(error))?;
    if args.check.is_some() {
        let name = "plaintext engine on the whole conversation, same policy";
        let check = report.report.check.as_ref();
        out::note(check.map_or_else(|| "nothing to compare".into(), |check| compared(name, check)));
    }
    if let Some(path) = &args.json {
        write_json(path, &report)?;
    }
    let Talk { taken, refused, .. } = talk;
    if refused > 0 && taken == 0 { Err(Error::AllRefused { refused }) } else { Ok(()) }
}

struct Talk {
    chat: Chat,
    lines: Lines,
    interrupts: Interrupts,
    /// Number of turns that were taken. `refused` is the number of refused ones.
    taken: usize,
    refused: usize,
}

enum After {
    Goes,
    Ends,
}

impl Talk {
    fn take_turns(&mut self) -> Result<(), Error> {
        loop {
            let after = match self.wait()? {
                Input::End => After::Ends,
                Input::Failed(error) => return Err(error),
                Input::Interrupted => {
                    out::note("\n(Ctrl-C again, Ctrl-D or /quit ends the session)");
                    continue;
                }
                Input::Bad => {
                    self.refuse("refused: the line is not UTF-8");
                    After::Goes
                }
                Input::Line(line) => self.line(&line)?,
            };
            self.interrupts.line();
            if let After::Ends = after {
                return Ok(());
            }
        }
    }

    /// Waits for the next line, and makes correlations until it comes.
    fn wait(&mut self) -> Result<Input, Error> {
        let Talk { chat, lines, .. } = self;
        lines.ask();
        // Input that was typed during an answer was not shown, so it is shown now.
        if lines.is_terminal()
            && let Some(input) = lines.look()
        {
            lines.echo(&input);
            return Ok(input);
        }
        let mut shown = None;
        let found = chat.prepare_until(
            || lines.look(),
            |Readiness { tokens, of }| {
                let line = format!("prepared: {tokens} of {of} tokens");
                lines.show(&line);
                shown = Some(line);
            },
        )?;
        if let Some(line) = shown.filter(|_| !lines.is_terminal()) {
            out::note(line);
        }
        match found {
            Some(input) => Ok(input),
            None => Ok(chat.stay_until(|limit| lines.wait(limit))?),
        }
    }

    /// Carries out a line: a command or a turn.
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
            ("cost", "") => out::note(costs::table(&self.chat)),
            ("reset", "") => {
                self.chat.reset()?;
                out::note("another conversation");
            }
            ("save", file) if !file.is_empty() => match self.chat.transcript().save(file.as_ref()) {
                Ok(()) => out::note(format_args!("saved in {file}")),
                Err(error) => out::note(format_args!("not saved: {}", told_of(&error))),
            },
            ("save", _) => out::note("/save needs the name of a file"),
            _ => {
                let command: String = harmless(command).chars().take(40).collect();
                out::note(format_args!("there is no command /{command}; /help lists those that there are"))
            }
        }
        Ok(After::Goes)
    }

    /// Takes a turn of the user. If the turn is refused before it begins, the user is told, and the conversation goes
    /// on.
    fn turn(&mut self, words: &str) -> Result<(), Error> {
        let mut printed = Printed { within: false, failed: None, interrupts: self.interrupts.clone() };
        let answering = self.interrupts.answering(self.lines.is_terminal());
        let taken = self.chat.turn_with(words, &mut |event| printed.hear(event));
        drop(answering);
        // An error of standard output comes first, because it ended the session.
        if let Some(error) = printed.failed {
            return Err(error);
        }
        let refusal = match taken {
            Ok(_) => {
                self.taken += 1;
                return Ok(());
            }
            Err(waggle::Error::Chat(ChatError::Refused(refusal))) => *refusal,
            Err(error) => return Err(error.into()),
        };
        match refusal {
            Refusal::Full(_) => self.refuse(format_args!("{refusal}: /reset begins another conversation")),
            Refusal::Long { .. } => self.refuse(told_of_refusal(&refusal)),
            refusal => self.refuse(format_args!("refused: {}", told_of_refusal(&refusal))),
        }
        Ok(())
    }

    /// Tells the user why a turn was refused.
    fn refuse(&mut self, why: impl Display) {
        self.refused += 1;
        out::note(why);
    }
}

struct Printed {
    /// Whether the output is in the middle of a line.
    within: bool,
    failed: Option<Error>,
    interrupts: Interrupts,
}

impl Printed {
    fn print(&mut self, text: &str) {
        if self.failed.is_none() {
            self.failed = out::print(text).err();
        }
    }
}

impl Printed {
    fn hear(&mut self, event: Event<'_>) -> Flow {
        match event {
            Event::GoesOn if self.failed.is_some() => return Flow::Abandon,
            Event::Token(_) if self.interrupts.stops() => return Flow::EndText,
            Event::Text(text) => {
                self.print(text);
                self.within = !text.ends_with('\n');
            }
            Event::TextOver if self.within => self.print("\n"),
            event => note(&event),
        }
        Flow::GoOn
    }
}
