//! What was said, and where it is kept.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::cli::Error;
use crate::cli::error::describe;
use crate::cli::files::{check_writable, write};
use crate::cli::progress::harmless;

/// Whose words they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Role {
    /// The person.
    User,
    /// The model.
    Assistant,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Said {
    role: Role,
    text: String,
}

/// A conversation.
pub(super) struct Transcript {
    said: Vec<Said>,
    /// What was said in conversations before this one, as lines.
    before: String,
    /// All of it is kept there after every turn.
    file: Option<PathBuf>,
}

impl Transcript {
    /// An empty conversation, which is kept in `file` if there is one.
    pub(super) fn open(file: Option<PathBuf>) -> Result<Self, Error> {
        check_writable(file.as_deref())?;
        Ok(Transcript { said: Vec::new(), before: String::new(), file })
    }

    /// `role` says `text`.
    pub(super) fn say(&mut self, role: Role, text: &str) -> Result<(), Error> {
        self.said.push(Said { role, text: text.to_owned() });
        self.keep()
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
            Some(file) => write(file, (self.before.clone() + &self.lines()).as_bytes()),
            None => Ok(()),
        }
    }

    /// Writes this conversation: as text for a person if the name ends so, as JSON lines otherwise.
    pub(super) fn save(&self, file: &Path) -> Result<(), Error> {
        let readable = file.extension().is_some_and(|end| end == "txt" || end == "md");
        write(file, if readable { self.text() } else { self.lines() }.as_bytes())
    }

    /// Keeps everything because `error` ended the session; the error that says where.
    pub(super) fn keep_after(&self, error: Error) -> Error {
        if self.said.is_empty() && self.before.is_empty() {
            return error;
        }
        let file = self.file.clone().unwrap_or_else(|| {
            let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
            format!("waggle-chat-{}.jsonl", stamp(seconds)).into()
        });
        let source = Box::new(error);
        match write(&file, (self.before.clone() + &self.lines()).as_bytes()) {
            Ok(()) => Error::ChatBroken { source, file },
            Err(lost) => Error::ChatLost { source, what: describe(&lost) },
        }
    }

    /// One JSON object a line.
    fn lines(&self) -> String {
        let line = |said: &Said| {
            let role = if said.role == Role::User { "user" } else { "assistant" };
            format!("{}\n", serde_json::json!({"role": role, "text": said.text}))
        };
        self.said.iter().map(line).collect()
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
        transcript.say(Role::User, "a \"b\"").unwrap();
        transcript.say(Role::Assistant, "c\nd\n").unwrap();
        let lines = "{\"role\":\"user\",\"text\":\"a \\\"b\\\"\"}\n{\"role\":\"assistant\",\"text\":\"c\\nd\\n\"}\n";
        assert_eq!(std::fs::read_to_string(&file).unwrap(), lines);
        let [text, json] = ["saved.txt", "saved"].map(|name| dir.path().join(name));
        transcript.save(&text).unwrap();
        transcript.save(&json).unwrap();
        assert_eq!(std::fs::read_to_string(text).unwrap(), "> a \"b\"\n\nc\nd\n\n");
        assert_eq!(std::fs::read_to_string(json).unwrap(), lines);
        transcript.reset().unwrap();
        transcript.say(Role::User, "e").unwrap();
        let both = format!("{lines}\n{{\"role\":\"user\",\"text\":\"e\"}}\n");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), both);
        let error = transcript.keep_after(Error::ClientLeft).to_string();
        assert!(error.contains("kept.jsonl"), "{error}");
    }
}
