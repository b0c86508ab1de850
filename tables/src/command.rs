//! What made a number: the program at a commit, its command line, the machine.

use std::process::Command;

use serde::{Deserialize, Serialize};

/// The run of the program that made a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Run {
    /// The commit of the working tree, with `-dirty` if it had changes; absent where git does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) commit: Option<String>,
    /// A command line that makes the record again.
    pub(crate) command: String,
    /// Processors that the program could use.
    pub(crate) cores: usize,
}

impl Run {
    /// This run.
    pub(crate) fn current() -> Self {
        let arguments: Vec<String> = std::env::args().skip(1).map(|argument| quoted(&argument)).collect();
        Run {
            commit: commit(),
            command: format!("cargo run --release -p waggle-tables -- {}", arguments.join(" ")),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

/// The commit of the sources that this program was built from.
fn commit() -> Option<String> {
    let mut git = Command::new("git");
    git.args(["-C", env!("CARGO_MANIFEST_DIR"), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]);
    let output = git.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

/// An argument as a shell takes it.
fn quoted(argument: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=.,/:+@%".contains(c);
    if !argument.is_empty() && argument.chars().all(plain) {
        argument.to_owned()
    } else {
        format!("'{}'", argument.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_quoted_where_a_shell_would_split_them() {
        assert_eq!(quoted("--only"), "--only");
        assert_eq!(quoted("lan,100mbit"), "lan,100mbit");
        assert_eq!(quoted("static only"), "'static only'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
