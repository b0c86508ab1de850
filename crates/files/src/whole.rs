//! Files that a user names: read within a bound, written whole, and errors that name the file.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use thiserror::Error;

use crate::Replacement;

/// Most bytes of a report, a text or a file of settings that [`load`] reads.
pub const MAX_FILE_BYTES: u64 = 1 << 30;

/// Why a file or a folder cannot be read or written.
#[derive(Debug, Error)]
#[error("{}: {source}", path.display())]
pub struct FileError {
    /// The file or the folder.
    pub path: PathBuf,
    /// The cause.
    pub source: io::Error,
}

/// Makes the error for the file or folder at `path` out of its cause.
pub fn at(path: &Path) -> impl Fn(io::Error) -> FileError {
    move |source| FileError { path: path.into(), source }
}

/// The bytes of the regular file `path`. The file may have up to [`MAX_FILE_BYTES`] bytes.
///
/// # Errors
/// Errors of [`read`](crate::read).
pub fn load(path: &Path) -> Result<Vec<u8>, FileError> {
    crate::read(path, MAX_FILE_BYTES).map_err(at(path))
}

/// Makes sure that `path`, if given, can be written, before long work is done for it. An older file stays as it is
/// until [`write()`] or [`write_json`] replaces it, so a command that fails leaves the older file, and no empty one.
///
/// # Errors
/// Errors of [`Replacement::check`].
pub fn check_writable(path: Option<&Path>) -> Result<(), FileError> {
    let Some(path) = path else { return Ok(()) };
    Replacement::check(path).map_err(at(path))
}

/// Replaces `path` by `bytes`. They must hold no private text, because others may be able to read the file.
///
/// # Errors
/// Errors of the operating system.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    replace(path, Replacement::create(path), |out| out.write_all(bytes))
}

/// Replaces `path` by `bytes` in a file that only its owner can read.
///
/// # Errors
/// Errors of the operating system.
pub fn write_private(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    replace(path, Replacement::private(path), |out| out.write_all(bytes))
}

/// Replaces `path` by `value` as JSON. A report may hold a private text, so only the owner of the file can read it.
///
/// # Errors
/// Errors of the operating system.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<(), FileError> {
    replace(path, Replacement::private(path), |out| {
        serde_json::to_writer(&mut *out, value)?;
        out.write_all(b"\n")
    })
}

fn replace(
    path: &Path,
    new: io::Result<Replacement>,
    fill: impl FnOnce(&mut Replacement) -> io::Result<()>,
) -> Result<(), FileError> {
    let replaced = new.and_then(|mut out| {
        fill(&mut out)?;
        out.commit()
    });
    replaced.map_err(at(path))
}
