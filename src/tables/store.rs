//! Keeps outputs of commands for later runs of the same revision.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use waggle::Error;
use waggle_files::at;
use waggle_report::provenance::Provenance;

use crate::machine::digest;

/// A folder of outputs of commands. A program whose sources have uncommitted changes keeps nothing, as its commit
/// does not identify it.
pub(super) struct Store {
    folder: Option<PathBuf>,
}

#[derive(Serialize, Deserialize)]
struct Kept {
    command: String,
    output: String,
    seconds: f64,
}

impl Store {
    /// The outputs that the program of `provenance` keeps under `dir`.
    pub(super) fn new(dir: &Path, provenance: &Provenance) -> Self {
        let revision = provenance.revision.as_ref().filter(|_| provenance.is_clean());
        Store { folder: revision.map(|revision| dir.join(revision)) }
    }

    fn file(&self, command: &str) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join(format!("{}.json", digest(command.as_bytes()))))
    }

    /// Output and seconds of `command`. A truncated file counts as missing.
    pub(super) fn find(&self, command: &str) -> Result<Option<(String, f64)>, Error> {
        let Some(path) = self.file(command) else { return Ok(None) };
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(at(&path)(source).into()),
        };
        let kept = serde_json::from_slice(&bytes).ok().filter(|kept: &Kept| kept.command == command);
        Ok(kept.map(|Kept { output, seconds, .. }| (output, seconds)))
    }

    pub(super) fn keep(&self, command: &str, output: &str, seconds: f64) -> Result<(), Error> {
        let Some(path) = self.file(command) else { return Ok(()) };
        let kept = Kept { command: command.into(), output: output.into(), seconds };
        let write = || {
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::write(&path, serde_json::to_vec(&kept)?)
        };
        Ok(write().map_err(at(&path))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_found_by_command_and_revision() {
        let dir = tempfile::tempdir().unwrap();
        let of = |revision: &str| {
            Store::new(dir.path(), &Provenance { revision: Some(revision.into()), ..Provenance::default() })
        };
        of("abc").keep("sweep --models x", "| 1 |\n", 2.5).unwrap();
        assert_eq!(of("abc").find("sweep --models x").unwrap(), Some(("| 1 |\n".into(), 2.5)));
        assert_eq!(of("abc").find("sweep --models y").unwrap(), None);
        assert_eq!(of("abd").find("sweep --models x").unwrap(), None);
        // A full disk or a signal may truncate a file.
        let file = of("abc").file("sweep --models x").unwrap();
        fs::write(&file, "{\"command").unwrap();
        assert_eq!(of("abc").find("sweep --models x").unwrap(), None);
        of("abc-dirty").keep("sweep", "", 1.0).unwrap();
        assert_eq!(of("abc-dirty").find("sweep").unwrap(), None);
    }
}
