//! Inputs in files.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;

/// The inputs of a target, by name.
#[derive(Clone, Debug)]
pub struct Corpus {
    entries: Vec<(String, Vec<u8>)>,
}

impl Corpus {
    /// A corpus of the files in `dir`.
    ///
    /// # Panics
    /// If there are no files, or one cannot be read: a target without its corpus would test nothing.
    pub fn open(dir: impl AsRef<Path>) -> Self {
        let dir = dir.as_ref();
        let listed = std::fs::read_dir(dir).unwrap_or_else(|e| panic!("corpus {}: {e}", dir.display()));
        let mut paths: Vec<_> = listed.map(|entry| entry.expect("an entry of the corpus").path()).collect();
        paths.sort();
        let read = |path: &std::path::PathBuf| {
            let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            (path.display().to_string(), bytes)
        };
        Corpus::new(paths.iter().map(read))
    }

    /// A corpus of inputs that the test itself makes, because they are too large for files.
    ///
    /// # Panics
    /// If there are no entries.
    pub fn new(entries: impl IntoIterator<Item = (String, Vec<u8>)>) -> Self {
        let entries: Vec<_> = entries.into_iter().collect();
        assert!(!entries.is_empty(), "an empty corpus");
        Corpus { entries }
    }

    /// Adds `entries` to the corpus.
    pub fn and(mut self, entries: impl IntoIterator<Item = (String, Vec<u8>)>) -> Self {
        self.entries.extend(entries);
        self
    }

    /// The inputs.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = (&str, &[u8])> {
        self.entries.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice()))
    }

    /// The input at `index` modulo the number of inputs.
    pub(crate) fn pick(&self, index: usize) -> &[u8] {
        &self.entries[index % self.entries.len()].1
    }

    /// Runs `check` on every input. If it panics, prints the name of the input.
    pub fn each(&self, check: impl Fn(&[u8])) {
        for (name, bytes) in self.entries() {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(bytes))) {
                eprintln!("the input is {name}, {} bytes", bytes.len());
                resume_unwind(panic);
            }
        }
    }

    /// Writes `entries` as files of `dir`, beside the files that are there. This makes a corpus from real sessions.
    ///
    /// # Panics
    /// If a file cannot be written.
    pub fn write(dir: impl AsRef<Path>, entries: impl IntoIterator<Item = (String, Vec<u8>)>) {
        let dir = dir.as_ref();
        std::fs::create_dir_all(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
        for (name, bytes) in entries {
            let path = dir.join(name);
            std::fs::write(&path, bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        }
    }
}
