#![doc = include_str!("../README.md")]
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod replace;
mod whole;

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;

pub use replace::Replacement;
use serde::de::DeserializeOwned;
pub use whole::{FileError, MAX_FILE_BYTES, at, check_writable, load, write, write_json, write_private};

/// Opens the regular file `path` for reading.
///
/// Errors: those of the operating system; [`ErrorKind::InvalidInput`] for a directory, a pipe or a device, whose
/// bytes may never come or never end. Opening never waits for a pipe.
pub fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(
        &mut options,
        (rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY).bits().cast_signed(),
    );
    let file = options.open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file"))
    }
}

/// The bytes of the regular file `path`. The file may have up to `limit` bytes.
///
/// Errors: those of [`open`], and [`ErrorKind::FileTooLarge`].
pub fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    contents(open(path)?, limit)
}

/// [`read`] for a file that is open already.
///
/// Errors: those of [`read`].
pub fn contents(file: File, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // The length is checked before anything is read, and again after it, because the file may grow meanwhile.
    if file.metadata()?.len() <= limit {
        file.take(limit + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 <= limit {
            return Ok(bytes);
        }
    }
    Err(io::Error::new(ErrorKind::FileTooLarge, format!("more than the {limit} bytes that are read")))
}

/// [`read`] for a file that holds a text.
///
/// Errors: those of [`read`], and of [`text`].
pub fn read_text(path: &Path, limit: u64) -> io::Result<String> {
    text(read(path, limit)?)
}

/// `bytes` as a text in UTF-8.
///
/// Errors: [`ErrorKind::InvalidData`] for bytes that are no UTF-8.
pub fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|error| io::Error::new(ErrorKind::InvalidData, error.utf8_error()))
}

/// The JSON objects of `text`, one on each line, each with its line number, counted from one. A line that is no such
/// object gives the reason as an error. A byte-order mark and empty lines are skipped.
pub fn json_lines<T: DeserializeOwned>(text: &str) -> impl Iterator<Item = (usize, Result<T, String>)> {
    let lines = (1..).zip(text.trim_start_matches('\u{feff}').lines()).filter(|(_, line)| !line.trim().is_empty());
    lines.map(|(number, line)| {
        // Serde would take the elements of an array for the fields.
        if line.trim_start().starts_with('[') {
            return (
                number,
                Err("an array, not a JSON object: `jq -c '.[]' FILE` makes a line of each of its own".into()),
            );
        }
        (number, serde_json::from_str(line).map_err(|e| e.to_string().replace(" at line 1 column ", " at column ")))
    })
}

/// Options for writing a file. If the file is made, only its owner can read and write it (Unix).
pub fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Writes a new [`private`] file and syncs it.
///
/// Errors: [`ErrorKind::AlreadyExists`], and those of the system.
pub fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = private().create_new(true).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// An act on a file or a directory that others than its owner may not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forbidden {
    /// Changing it.
    Writing,
    /// Reading or changing it.
    ReadingAndWriting,
}

/// Whether the permissions in `metadata` let others do what is `forbidden` with the file or directory (Unix). The
/// owner's group counts as others.
pub fn others_may(metadata: &Metadata, forbidden: Forbidden) -> bool {
    #[cfg(unix)]
    {
        let mode = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions());
        let bits = match forbidden {
            Forbidden::Writing => 0o022,
            Forbidden::ReadingAndWriting => 0o077,
        };
        mode & bits != 0
    }
    #[cfg(not(unix))]
    {
        let _ = (metadata, forbidden);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_within_the_limit_is_read_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let kind = |read: io::Result<Vec<u8>>| read.unwrap_err().kind();
        assert_eq!(kind(read(&path, 4)), ErrorKind::NotFound);
        std::fs::write(&path, "four").unwrap();
        assert_eq!(read(&path, 4).unwrap(), b"four");
        assert_eq!(kind(read(&path, 3)), ErrorKind::FileTooLarge);
        // Nothing is read of a file that is too long.
        File::options().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(kind(read(&path, 3)), ErrorKind::FileTooLarge);
        assert_eq!(kind(read(dir.path(), 4)), ErrorKind::InvalidInput);
        std::fs::write(&path, [0xff]).unwrap();
        assert_eq!(read_text(&path, 4).unwrap_err().kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn lines_of_json_have_their_numbers() {
        type Read = Vec<(usize, Result<std::collections::BTreeMap<String, u8>, String>)>;
        let read: Read = json_lines("\u{feff}{\"a\": 1}\r\n\n  \n{\"b\": 2}").collect();
        assert_eq!(read, [(1, Ok([("a".into(), 1)].into())), (4, Ok([("b".into(), 2)].into()))]);
        let why = |text: &str| json_lines::<[u8; 1]>(text).map(|(line, read)| (line, read.unwrap_err())).next();
        let (line, array) = why("\n[1]").unwrap();
        assert!(line == 2 && array.contains("an array"), "{array}");
        assert_eq!(why("\u{feff}x"), Some((1, "expected value at column 1".into())));
        assert_eq!(why(" \n"), None);
    }

    #[cfg(unix)]
    #[test]
    fn pipes_and_devices_are_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in [&pipe, Path::new("/dev/zero"), Path::new("/dev/null")] {
            assert_eq!(read(path, 4).unwrap_err().kind(), ErrorKind::InvalidInput, "{}", path.display());
        }
    }
}
