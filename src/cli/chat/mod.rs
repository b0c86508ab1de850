//! `waggle chat`: a conversation with a server's model.
//!
//! | part | what it does |
//! |---|---|
//! | [`talk`] | the conversation, without a terminal: shared with programs in other languages |
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
mod talk;
mod transcript;

use std::path::PathBuf;

use clap::Args;
use model::party::Silent;

pub use self::answer::Listener;
pub use self::costs::{ChatReport, TurnReport};
use self::input::{Input, Lines};
pub(super) use self::talk::{Incoming, Refusal, Talk, TalkArgs};
pub use self::transcript::{Role, Said};
use super::connect::warn_of_plaintext;
use super::error::describe;
use super::files::{check_writable, write_json};
use super::progress::harmless;
use super::{Error, out};

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
    let mut chat = Chat { talk, lines };
    let talked = chat.take_turns();
    let (transcript, ended) = match talked {
        Ok(()) => chat.talk.finish(),
        // A reader that has gone did not break the session.
        Err(error @ Error::Output { .. }) => return Err(error),
        Err(error) => return Err(chat.talk.transcript().keep_after(error)),
    };
    let ended = ended.map_err(|error| transcript.keep_after(error))?;
    if let Some(verdict) = ended.verdict() {
        out::note(verdict);
    }
    match &args.json {
        Some(path) => write_json(path, &ended.report()?),
        None => Ok(()),
    }
}

/// A conversation with lines.
struct Chat {
    talk: Talk,
    lines: Lines,
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
                Input::Line(line) => self.line(&line)?,
            };
            if let After::Ends = after {
                return Ok(());
            }
        }
    }

    /// The next line. Until it comes, correlations are made.
    fn wait(&mut self) -> Result<Input, Error> {
        let Chat { talk, lines } = self;
        lines.ask();
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
        let mut printed = Printed::default();
        let taken = self.talk.turn(words, &mut printed);
        // What standard output says comes first, because it ended the session.
        if let Some(error) = printed.failed {
            return Err(error);
        }
        match taken? {
            Ok(_) => {}
            Err(full @ Refusal::Full(_)) => out::note(format_args!("{full}: /reset begins another conversation")),
            Err(long @ Refusal::Long { .. }) => out::note(long),
            Err(other @ Refusal::Other(_)) => out::note(format_args!("refused: {}", describe(&other))),
        }
        Ok(())
    }
}

/// Prints an answer as it comes.
#[derive(Default)]
struct Printed {
    /// Whether it stands in the middle of a line.
    within: bool,
    /// Why standard output took no more.
    failed: Option<Error>,
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

    fn abandoned(&self) -> bool {
        self.failed.is_some()
    }
}

/// What an error quotes of a line.
fn shorter(text: &str) -> String {
    harmless(text).chars().take(40).collect()
}
