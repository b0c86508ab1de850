//! What was made in earlier runs of the same revision.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use model::provenance::Provenance;
use serde::{Deserialize, Serialize};

use super::PagesError;

/// A folder of outputs of commands. A program with changes keeps and finds nothing, as its commit does not say what
/// it does.
pub(crate) struct Store {
    folder: Option<PathBuf>,
}

/// The output of a command.
#[derive(Serialize, Deserialize)]
struct Kept {
    command: String,
    output: String,
    seconds: f64,
}

impl Store {
    /// What the program of `provenance` keeps under `dir`.
    pub(crate) fn new(dir: &Path, provenance: &Provenance) -> Self {
        let revision = provenance.revision.as_ref().filter(|_| provenance.is_clean());
        Store { folder: revision.map(|revision| dir.join(revision)) }
    }

    fn file(&self, command: &str) -> Option<PathBuf> {
        let digest = blake3::hash(command.as_bytes()).to_hex();
        self.folder.as_ref().map(|folder| folder.join(format!("{}.json", &digest[..16])))
    }

    /// Output and seconds of `command`. A file that was cut off counts as none.
    pub(crate) fn find(&self, command: &str) -> Result<Option<(String, f64)>, PagesError> {
        let Some(path) = self.file(command) else { return Ok(None) };
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(PagesError::Store { path, source }),
        };
        let kept = serde_json::from_slice(&bytes).ok().filter(|kept: &Kept| kept.command == command);
        Ok(kept.map(|Kept { output, seconds, .. }| (output, seconds)))
    }

    /// Keeps what `command` wrote.
    pub(crate) fn keep(&self, command: &str, output: &str, seconds: f64) -> Result<(), PagesError> {
        let Some(path) = self.file(command) else { return Ok(()) };
        let kept = Kept { command: command.into(), output: output.into(), seconds };
        let write = || {
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::write(&path, serde_json::to_vec(&kept)?)
        };
        write().map_err(|source| PagesError::Store { path: path.clone(), source })
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
        // Cut off by a full disk or a signal.
        let file = of("abc").file("sweep --models x").unwrap();
        fs::write(&file, "{\"command").unwrap();
        assert_eq!(of("abc").find("sweep --models x").unwrap(), None);
        of("abc-dirty").keep("sweep", "", 1.0).unwrap();
        assert_eq!(of("abc-dirty").find("sweep").unwrap(), None);
    }
}
