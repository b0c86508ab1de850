//! `waggle chat`: a conversation with a server's model.
//!
//! | part | what it does |
//! |---|---|
//! | [`talk`] | the conversation, without a terminal: shared with programs in other languages |
//! | [`interrupts`] | Ctrl-C |
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
mod interrupts;
mod script;
mod talk;
mod transcript;

use std::fmt::Display;
use std::path::PathBuf;

use clap::Args;
use session::party::Silent;

pub use self::answer::Listener;
pub use self::costs::{ChatReport, TurnReport};
use self::input::{Input, Lines};
use self::interrupts::Interrupts;
pub(super) use self::talk::{Incoming, Refusal, Talk, TalkArgs};
use self::transcript::lock;
pub use self::transcript::{Role, Said};
use super::connect::warn_of_plaintext;
use super::error::describe;
use super::files::{check_writable, write_json};
use super::progress::harmless;
use super::{Error, out};

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
    talk: TalkArgs,
    /// Take the turns from this file, one a line, instead of standard input.
    #[arg(long, value_name = "FILE")]
    turns: Option<PathBuf>,
    /// Write the report here: that of the whole session, with a list of the turns and what each took.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(super) fn run(args: ChatArgs) -> Result<(), Error> {
    check_writable(args.json.as_deref())?;
    let lines = Lines::read(args.turns.as_deref())?;
    warn_of_plaintext(args.talk.connect.is_plaintext());
    let talk = Talk::open(args.talk, &mut Silent)?;
    if lines.is_terminal() {
        out::note("/help lists commands, /quit ends");
    }
    let (interrupts, said) = (Interrupts::default(), talk.shared());
    let end = move || {
        let _ = out::fail(&lock(&said).keep_after(Error::Interrupted));
    };
    interrupts
        .take(lines.is_terminal(), lines.interrupter(), end)
        .map_err(|source| Error::Serve { what: "wait for signals", source })?;
    let mut chat = Chat { talk, lines, interrupts, taken: 0, refused: 0 };
    let talked = chat.take_turns();
    let Chat { talk, taken, refused, .. } = chat;
    let (transcript, ended) = match talked {
        Ok(()) => talk.finish(),
        // A reader that has gone did not break the session.
        Err(error @ Error::Output { .. }) => return Err(error),
        Err(error) => return Err(talk.transcript().keep_after(error)),
    };
    let ended = ended.map_err(|error| lock(&transcript).keep_after(error))?;
    if let Some(verdict) = ended.verdict() {
        out::note(verdict);
    }
    if let Some(path) = &args.json {
        write_json(path, &ended.report()?)?;
    }
    if refused > 0 && taken == 0 { Err(Error::AllRefused { refused }) } else { Ok(()) }
}

/// A conversation with lines.
struct Chat {
    talk: Talk,
    lines: Lines,
    interrupts: Interrupts,
    /// Turns that were taken, and those that were refused.
    taken: usize,
    refused: usize,
}

/// Whether the conversation goes on.
enum After {
    Goes,
    Ends,
}

impl Chat {
    /// Takes turns until the input ends.
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

    /// The next line. Until it comes, correlations are made.
    fn wait(&mut self) -> Result<Input, Error> {
        let Chat { talk, lines, .. } = self;
        lines.ask();
        // What was typed while an answer came was not shown.
        if lines.is_terminal()
            && let Some(input) = lines.look()
        {
            lines.echo(&input);
            return Ok(input);
        }
        let mut shown = None;
        let found = talk.prepare_until(lines, |(done, all)| {
            let line = format!("prepared: {done} of {all} tokens");
            lines.show(&line);
            shown = Some(line);
        })?;
        if let Some(line) = shown.filter(|_| !lines.is_terminal()) {
            out::note(line);
        }
        match found {
            Some(input) => Ok(input),
            None => talk.stay_until(lines),
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
            ("cost", "") => out::note(self.talk.costs().table()),
            ("reset", "") => {
                self.talk.reset()?;
                out::note("another conversation");
            }
            ("save", file) if !file.is_empty() => match self.talk.transcript().save(file.as_ref()) {
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

    /// A turn of the user. What is refused before it begins is told, and the conversation goes on.
    fn turn(&mut self, words: &str) -> Result<(), Error> {
        let mut printed = Printed { within: false, failed: None, interrupts: self.interrupts.clone() };
        let answering = self.interrupts.answering(self.lines.is_terminal());
        let taken = self.talk.turn(words, &mut printed);
        drop(answering);
        // What standard output says comes first, because it ended the session.
        if let Some(error) = printed.failed {
            return Err(error);
        }
        match taken? {
            Ok(_) => self.taken += 1,
            Err(full @ Refusal::Full(_)) => self.refuse(format_args!("{full}: /reset begins another conversation")),
            Err(long @ Refusal::Long { .. }) => self.refuse(long),
            Err(other @ Refusal::Other(_)) => self.refuse(format_args!("refused: {}", describe(&other))),
        }
        Ok(())
    }

    /// Says why there is no turn.
    fn refuse(&mut self, why: impl Display) {
        self.refused += 1;
        out::note(why);
    }
}

/// Prints an answer as it comes.
struct Printed {
    /// Whether it stands in the middle of a line.
    within: bool,
    /// Why standard output took no more.
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

impl Listener for Printed {
    fn text(&mut self, text: &str) {
        self.print(&harmless(text));
        self.within = !text.ends_with('\n');
    }

    fn rereads(&mut self) {
        out::note(
            "the chat template changes what was said before: the model reads the conversation from its beginning",
        );
    }

    fn end(&mut self) {
        if self.within {
            self.print("\n");
        }
    }

    fn stops(&self) -> bool {
        self.interrupts.stops()
    }

    fn abandoned(&self) -> bool {
        self.failed.is_some()
    }
}

/// What an error quotes of a line.
fn shorter(text: &str) -> String {
    harmless(text).chars().take(40).collect()
}
