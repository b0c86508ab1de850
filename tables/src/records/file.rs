//! Files of records.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use super::Record;

/// A file of records that cannot be used.
#[derive(Debug, Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("cannot read {path}: {source}", path = .path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It cannot be written.
    #[error("cannot write {path}: {source}", path = .path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A line is no record of the table.
    #[error("line {line} is no record: {source}")]
    Line {
        /// Its number from one.
        line: usize,
        /// Why.
        source: serde_json::Error,
    },
}

/// Records while they are made. Each is in the file, if there is one, before the next is measured, so a run that
/// fails late loses nothing.
pub(crate) struct Book<C> {
    records: Vec<Record<C>>,
    file: Option<Open>,
}

struct Open {
    path: PathBuf,
    file: File,
}

impl<C: Serialize> Book<C> {
    /// An empty one, which writes to `path`.
    pub(crate) fn create(path: Option<&Path>) -> Result<Self, FileError> {
        let open = |path: &Path| match File::create(path) {
            Ok(file) => Ok(Open { path: path.to_owned(), file }),
            Err(source) => Err(FileError::Write { path: path.to_owned(), source }),
        };
        Ok(Book { records: Vec::new(), file: path.map(open).transpose()? })
    }

    /// Adds what was measured together.
    pub(crate) fn add(&mut self, records: Vec<Record<C>>) -> Result<(), FileError> {
        if let Some(Open { path, file }) = &mut self.file {
            let write = |source| FileError::Write { path: path.clone(), source };
            file.write_all(lines(&records).map_err(|error| write(error.into()))?.as_bytes()).map_err(write)?;
        }
        self.records.extend(records);
        Ok(())
    }

    /// All of them.
    pub(crate) fn records(&self) -> &[Record<C>] {
        &self.records
    }
}

/// The text of a file of `records`.
fn lines<C: Serialize>(records: &[Record<C>]) -> Result<String, serde_json::Error> {
    records.iter().map(|record| Ok(serde_json::to_string(record)? + "\n")).collect()
}

/// Longest file of records.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// The text of the file at `path`.
pub(crate) fn read(path: &Path) -> Result<String, FileError> {
    files::read_text(path, MAX_FILE_BYTES).map_err(|source| FileError::Read { path: path.to_owned(), source })
}

/// The lines of a file as values, one each; empty lines are left out.
pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> Result<Vec<T>, FileError> {
    let numbered = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    numbered
        .map(|(at, line)| serde_json::from_str(line).map_err(|source| FileError::Line { line: at + 1, source }))
        .collect()
}

#[cfg(test)]
mod tests {
    use report::provenance::Provenance;

    use super::*;
    use crate::records::{Table, Unit};

    fn record(value: f64, commit: Option<&str>) -> Record<String> {
        Record {
            table: Table::Ablation,
            configuration: "one \"quoted\"\nname".into(),
            metric: "step/online/flows".into(),
            value,
            unit: Unit::Flows,
            estimated: true,
            run: Provenance {
                revision: commit.map(str::to_owned),
                command: "make it".into(),
                cores: 2,
                ..Provenance::default()
            },
        }
    }

    #[test]
    fn records_come_back_to_the_last_bit() -> Result<(), Box<dyn std::error::Error>> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("records.jsonl");
        let mut book = Book::create(Some(&path))?;
        book.add(vec![record(0.1 + 0.2, Some("abc")), record(1.0 / 3.0, None)])?;
        let half = parse::<Record<String>>(&read(&path)?)?;
        assert_eq!(half, book.records(), "written before the next is measured");
        book.add(vec![record(5e-324, None)])?;
        let text = read(&path)?;
        assert_eq!(text.lines().count(), 3);
        assert_eq!(parse::<Record<String>>(&text)?, book.records());
        Ok(())
    }

    #[test]
    fn a_wrong_line_is_named() {
        let text = format!("{}\n\n{{}}\n", serde_json::to_string(&record(1.0, None)).expect("a record"));
        let error = parse::<Record<String>>(&text).expect_err("an empty object is no record");
        assert!(error.to_string().starts_with("line 3 is no record: missing field"), "{error}");
    }
}
