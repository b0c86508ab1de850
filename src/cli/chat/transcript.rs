//! What was said, and where it is kept.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::cli::Error;
use crate::cli::error::describe;
use crate::cli::files::{check_writable, write_private};
use crate::cli::progress::harmless;

/// Whose words they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The person.
    User,
    /// The model.
    Assistant,
}

/// Words of one side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Said {
    /// Whose they are.
    pub role: Role,
    /// The words.
    pub text: String,
}

impl Said {
    fn new(role: Role, text: &str) -> Self {
        Said { role, text: text.to_owned() }
    }
}

/// A conversation.
pub(in crate::cli) struct Transcript {
    said: Vec<Said>,
    /// A turn that is not over: the user's words, and what was heard of the answer.
    turn: Option<(String, String)>,
    /// What was said in conversations before this one, as lines.
    before: String,
    /// All of it is kept there after every turn.
    file: Option<PathBuf>,
}

/// The conversation, for one thread at a time. One that panicked leaves it whole.
pub(super) fn lock(transcript: &Mutex<Transcript>) -> MutexGuard<'_, Transcript> {
    transcript.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Transcript {
    /// An empty conversation, which is kept in `file` if there is one.
    pub(super) fn open(file: Option<PathBuf>) -> Result<Self, Error> {
        check_writable(file.as_deref())?;
        Ok(Transcript { said: Vec::new(), turn: None, before: String::new(), file })
    }

    /// The user says `words`.
    pub(super) fn begin(&mut self, words: &str) {
        self.turn = Some((words.to_owned(), String::new()));
    }

    /// The answer goes on with `text`.
    pub(super) fn hear(&mut self, text: &str) {
        if let Some((_, answer)) = &mut self.turn {
            answer.push_str(text);
        }
    }

    /// The words were refused: nobody said them.
    pub(super) fn take_back(&mut self) {
        self.turn = None;
    }

    /// The answer is over; returns it.
    pub(super) fn end(&mut self) -> Result<String, Error> {
        let (words, answer) = self.turn.take().unwrap_or_default();
        self.said.extend([Said::new(Role::User, &words), Said::new(Role::Assistant, &answer)]);
        self.keep()?;
        Ok(answer)
    }

    /// The answer ends before its end.
    pub(super) fn break_off(&mut self) -> Result<(), Error> {
        self.said = self.said();
        self.turn = None;
        self.keep()
    }

    /// All of this conversation, with what there is of a turn that is not over.
    pub(in crate::cli) fn said(&self) -> Vec<Said> {
        let mut said = self.said.clone();
        if let Some((words, answer)) = &self.turn {
            said.push(Said::new(Role::User, words));
            if !answer.is_empty() {
                said.push(Said::new(Role::Assistant, answer));
            }
        }
        said
    }

    /// Another conversation begins, after an empty line.
    pub(super) fn reset(&mut self) -> Result<(), Error> {
        if !self.said.is_empty() {
            self.before = self.before.clone() + &self.lines() + "\n";
            self.said.clear();
        }
        self.keep()
    }

    fn keep(&self) -> Result<(), Error> {
        match &self.file {
            Some(file) => write_private(file, (self.before.clone() + &self.lines()).as_bytes()),
            None => Ok(()),
        }
    }

    /// Writes this conversation into a new file: as text for a person if the name ends so, as JSON lines otherwise.
    pub(super) fn save(&self, file: &Path) -> Result<(), Error> {
        if file.symlink_metadata().is_ok() {
            let source = std::io::ErrorKind::AlreadyExists.into();
            return Err(Error::File { path: file.into(), source });
        }
        let readable = file.extension().is_some_and(|end| end == "txt" || end == "md");
        write_private(file, if readable { self.text() } else { self.lines() }.as_bytes())
    }

    /// Keeps everything because `error` ended the session; the error that says where.
    pub(super) fn keep_after(&self, error: Error) -> Error {
        let said = self.said();
        if said.is_empty() && self.before.is_empty() {
            return error;
        }
        let file = self.file.clone().unwrap_or_else(|| {
            let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
            format!("waggle-chat-{}.jsonl", stamp(seconds)).into()
        });
        let source = Box::new(error);
        match write_private(&file, (self.before.clone() + &lines(&said)).as_bytes()) {
            Ok(()) => Error::ChatBroken { source, file },
            Err(lost) => Error::ChatLost { source, what: describe(&lost) },
        }
    }

    fn lines(&self) -> String {
        lines(&self.said)
    }

    /// What a person reads: the user's words behind a mark, the answers as they are.
    fn text(&self) -> String {
        let part = |said: &Said| match said.role {
            Role::User => format!("> {}\n\n", harmless(&said.text).replace('\n', "\n> ")),
            Role::Assistant => format!("{}\n\n", harmless(said.text.trim_end_matches('\n'))),
        };
        self.said.iter().map(part).collect()
    }
}

/// One JSON object a line.
fn lines(said: &[Said]) -> String {
    let line = |said: &Said| {
        let role = if said.role == Role::User { "user" } else { "assistant" };
        format!("{}\n", serde_json::json!({"role": role, "text": said.text}))
    };
    said.iter().map(line).collect()
}

/// The time `seconds` after 1970 began, in UTC, as a part of a name: 20260131-235959.
fn stamp(seconds: u64) -> String {
    // The days of a year that begins in March follow a pattern of five months: H. Fliegel and T. Van Flandern, CACM
    // 11 (1968), 657, with eras of 400 years.
    let (day, time) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let date = of_year - (153 * month + 2) / 5 + 1;
    let (year, month) = if month < 10 { (year, month + 3) } else { (year + 1, month - 9) };
    let year = era * 400 + year;
    format!("{year:04}{month:02}{date:02}-{:02}{:02}{:02}", time / 3600, time / 60 % 60, time % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_names() {
        assert_eq!(stamp(0), "19700101-000000");
        assert_eq!(stamp(951_782_400 + 86_399), "20000229-235959");
        assert_eq!(stamp(1_798_761_599), "20261231-235959");
        assert_eq!(stamp(4_107_542_400), "21000301-000000");
    }

    #[test]
    fn a_conversation_is_kept_and_saved() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("kept.jsonl");
        let mut transcript = Transcript::open(Some(file.clone())).unwrap();
        transcript.begin("a \"b\"");
        transcript.hear("c\n");
        transcript.hear("d\n");
        assert_eq!(transcript.end().unwrap(), "c\nd\n");
        let lines = "{\"role\":\"user\",\"text\":\"a \\\"b\\\"\"}\n{\"role\":\"assistant\",\"text\":\"c\\nd\\n\"}\n";
        assert_eq!(std::fs::read_to_string(&file).unwrap(), lines);
        let [text, json] = ["saved.txt", "saved"].map(|name| dir.path().join(name));
        transcript.save(&text).unwrap();
        transcript.save(&json).unwrap();
        assert_eq!(std::fs::read_to_string(text).unwrap(), "> a \"b\"\n\nc\nd\n\n");
        assert_eq!(std::fs::read_to_string(json).unwrap(), lines);
        transcript.reset().unwrap();
        transcript.begin("never said");
        transcript.take_back();
        transcript.begin("e");
        assert_eq!(transcript.said(), [Said::new(Role::User, "e")]);
        transcript.break_off().unwrap();
        let both = format!("{lines}\n{{\"role\":\"user\",\"text\":\"e\"}}\n");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), both);
        let error = transcript.keep_after(Error::ClientLeft).to_string();
        assert!(error.contains("kept.jsonl"), "{error}");
    }
}
