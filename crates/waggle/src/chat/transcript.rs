//! The words of a conversation, and the file where they are kept.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use serde::Serialize;
use waggle_files::{at, check_writable, write_private};

use crate::Error;
use crate::error::{ChatError, describe};
use crate::reader::harmless;

/// The speaker of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The user.
    User,
    /// The model.
    Assistant,
}

/// A message of the user or the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Said {
    /// The speaker.
    pub role: Role,
    /// The words.
    pub text: String,
}

impl Said {
    fn new(role: Role, text: &str) -> Self {
        Said { role, text: text.to_owned() }
    }
}

/// The words of a conversation. They can be read after the session and from other threads.
#[derive(Clone)]
pub struct Transcript(Arc<Mutex<Inner>>);

struct Inner {
    said: Vec<Said>,
    /// The turn under way: the user's words, and the part of the answer heard so far.
    turn: Option<(String, String)>,
    /// The lines of earlier conversations.
    before: String,
    /// The file to which all lines are written after every turn.
    file: Option<PathBuf>,
}

impl Transcript {
    /// An empty conversation, which is kept in `file` if there is one.
    pub(crate) fn open(file: Option<PathBuf>) -> Result<Self, Error> {
        check_writable(file.as_deref())?;
        let inner = Inner { said: Vec::new(), turn: None, before: String::new(), file };
        Ok(Transcript(Arc::new(Mutex::new(inner))))
    }

    /// Locks the words. They are consistent even if a thread panicked while it held the lock.
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(&self, words: &str) {
        self.inner().turn = Some((words.to_owned(), String::new()));
    }

    /// Appends `text` to the answer.
    pub(crate) fn hear(&self, text: &str) {
        if let Some((_, answer)) = &mut self.inner().turn {
            answer.push_str(text);
        }
    }

    /// Removes the words of a refused turn.
    pub(crate) fn take_back(&self) {
        self.inner().turn = None;
    }

    /// Ends the answer and returns it.
    pub(crate) fn end(&self) -> Result<String, Error> {
        let mut inner = self.inner();
        let (words, answer) = inner.turn.take().unwrap_or_default();
        inner.said.extend([Said::new(Role::User, &words), Said::new(Role::Assistant, &answer)]);
        inner.keep()?;
        Ok(answer)
    }

    /// Keeps an unfinished answer as it is, and ends the turn.
    pub(crate) fn break_off(&self) -> Result<(), Error> {
        let mut inner = self.inner();
        inner.said = inner.all();
        inner.turn = None;
        inner.keep()
    }

    /// Begins another conversation, after an empty line in the file.
    pub(crate) fn reset(&self) -> Result<(), Error> {
        let mut inner = self.inner();
        if !inner.said.is_empty() {
            inner.before = inner.before.clone() + &lines(&inner.said) + "\n";
            inner.said.clear();
        }
        inner.keep()
    }

    /// This conversation, with the words so far of a turn under way.
    pub fn said(&self) -> Vec<Said> {
        self.inner().all()
    }

    /// Writes this conversation into a new file: as text for a person if the name ends in .txt or .md, as JSON lines
    /// otherwise.
    ///
    /// # Errors
    /// If the file exists already, or cannot be written.
    pub fn save(&self, file: &Path) -> Result<(), Error> {
        if file.symlink_metadata().is_ok() {
            return Err(at(file)(std::io::ErrorKind::AlreadyExists.into()).into());
        }
        let readable = file.extension().is_some_and(|end| end == "txt" || end == "md");
        let said = &self.inner().said;
        Ok(write_private(file, if readable { text(said) } else { lines(said) }.as_bytes())?)
    }

    /// Writes all words to a file after `error` has ended the session: to the conversation's file or, without one, to
    /// a new file `waggle-chat-TIME.jsonl`. Returns an error that names the file, or `error` itself if nothing was
    /// said.
    pub fn keep_after(&self, error: Error) -> Error {
        let inner = self.inner();
        let said = inner.all();
        if said.is_empty() && inner.before.is_empty() {
            return error;
        }
        let file = inner.file.clone().unwrap_or_else(|| {
            let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
            format!("waggle-chat-{}.jsonl", now.replace(['-', ':', 'Z'], "").replace('T', "-")).into()
        });
        let source = Box::new(error);
        match write_private(&file, (inner.before.clone() + &lines(&said)).as_bytes()) {
            Ok(()) => ChatError::Broken { source, file }.into(),
            Err(lost) => ChatError::Lost { source, what: describe(&lost) }.into(),
        }
    }
}

impl Inner {
    fn all(&self) -> Vec<Said> {
        let mut said = self.said.clone();
        if let Some((words, answer)) = &self.turn {
            said.push(Said::new(Role::User, words));
            if !answer.is_empty() {
                said.push(Said::new(Role::Assistant, answer));
            }
        }
        said
    }

    fn keep(&self) -> Result<(), Error> {
        match &self.file {
            Some(file) => Ok(write_private(file, (self.before.clone() + &lines(&self.said)).as_bytes())?),
            None => Ok(()),
        }
    }
}

/// The conversation as a text for readers: the user's words after a mark, the answers as they are.
fn text(said: &[Said]) -> String {
    let part = |said: &Said| match said.role {
        Role::User => format!("> {}\n\n", harmless(&said.text).replace('\n', "\n> ")),
        Role::Assistant => format!("{}\n\n", harmless(said.text.trim_end_matches('\n'))),
    };
    said.iter().map(part).collect()
}

/// The messages as JSON objects, one on each line.
fn lines(said: &[Said]) -> String {
    let line = |said: &Said| {
        let role = if said.role == Role::User { "user" } else { "assistant" };
        format!("{}\n", serde_json::json!({"role": role, "text": said.text}))
    };
    said.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_is_kept_and_saved() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("kept.jsonl");
        let transcript = Transcript::open(Some(file.clone())).unwrap();
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
        let error = transcript.keep_after(Error::Panicked).to_string();
        assert!(error.contains("kept.jsonl"), "{error}");
    }
}
