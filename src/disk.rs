//! Files that are read with a limit and replaced in one step.

use std::io::{self, Write};
use std::path::Path;

use waggle_files::Replacement;

use crate::Error;

/// Longest report, text or file of settings that is read.
pub(crate) const MAX_FILE_BYTES: u64 = 1 << 30;

/// The error of the file or folder at `path`.
pub(crate) fn at(path: &Path) -> impl Fn(io::Error) -> Error {
    move |source| Error::File { path: path.into(), source }
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, Error> {
    waggle_files::read(path, MAX_FILE_BYTES).map_err(at(path))
}

/// Makes sure that `path`, if given, can be written, before long work is done for it. An older file stays as it is
/// until [`write()`] or [`write_json`] replaces it, so a command that fails leaves it and no empty one.
pub(crate) fn check_writable(path: Option<&Path>) -> Result<(), Error> {
    let Some(path) = path else { return Ok(()) };
    Replacement::check(path).map_err(at(path))
}

/// Replaces `path` by `bytes` that hold nobody's words.
#[cfg(feature = "cli")]
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    replace(path, Replacement::create(path), |out| out.write_all(bytes))
}

/// Replaces `path` by `bytes` for its owner alone to read.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    replace(path, Replacement::private(path), |out| out.write_all(bytes))
}

/// Replaces `path` by `value` as JSON. A report may hold a text, so its owner alone may read it.
#[cfg(feature = "server")]
pub(crate) fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<(), Error> {
    replace(path, Replacement::private(path), |out| {
        serde_json::to_writer(&mut *out, value)?;
        out.write_all(b"\n")
    })
}

fn replace(
    path: &Path,
    new: io::Result<Replacement>,
    fill: impl FnOnce(&mut Replacement) -> io::Result<()>,
) -> Result<(), Error> {
    let replaced = new.and_then(|mut out| {
        fill(&mut out)?;
        out.commit()
    });
    replaced.map_err(at(path))
}
