//! One party's file of a pool: opened, and compared with the purpose that it was made for.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::ErrorKind::NotFound;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use blake3::Hasher;
use serde::{Deserialize, Serialize};
use waggle_files::{Forbidden, others_may};
use waggle_model::Lengths;
use waggle_net::{LinkShape, Role};
use waggle_protocols::Part;
use zeroize::Zeroize;

use super::{Difference, PART, PEER, PREFIX_SCALES, PoolError, PoolId, Purpose, check_bound, hex};
use crate::request::Request;

/// Most bytes of a header.
pub const MAX_HEADER_BYTES: usize = 64 << 10;

pub(super) const MAGIC: [u8; 8] = *b"WGLPOOL\0";
pub(super) const FORMAT: u32 = 1;
/// Bytes before the header: magic, format and length of the header.
const PREFIX_BYTES: usize = 16;
const HASH_BYTES: usize = 32;
/// The number of words that are written or read at once.
pub(super) const PIECE_WORDS: usize = 1 << 13;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Header {
    pub(super) id: PoolId,
    pub(super) role: Role,
    /// The longest generation that the pool serves.
    pub(super) bound: Lengths,
    pub(super) facts: BTreeMap<String, String>,
    /// BLAKE3 of `bound` and `facts`.
    pub(super) fingerprint: String,
    pub(super) words: u64,
    /// The link that the pool was planned for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) link: Option<String>,
}

impl Header {
    /// The peer's key.
    pub(super) fn peer(&self) -> Option<&str> {
        self.facts.get(PEER).map(String::as_str)
    }

    /// Fractional bits of the matrices of public tokens; none if the pool was made without such tokens.
    pub(super) fn prefix_scales(&self) -> Vec<u32> {
        let scales =
            self.facts.get(PREFIX_SCALES).map(|scales| scales.split(' ').filter_map(|bits| bits.parse().ok()));
        scales.into_iter().flatten().collect()
    }

    /// Which part of a pool the file is.
    pub(super) fn part(&self) -> Result<Part, PoolError> {
        let part = self.facts.get(PART).map_or(Ok(Part::WHOLE), |text| text.parse());
        part.map_err(|e| PoolError::Header { what: e.to_string() })
    }

    /// The bytes of the file, if its header takes `len` of them; `None` beyond 64 bits.
    fn file_bytes(&self, len: usize) -> Option<u64> {
        self.words.checked_mul(8)?.checked_add((PREFIX_BYTES + len + 2 * HASH_BYTES) as u64)
    }
}

/// A file whose header is good, and which nobody has claimed so far. It stays open, so the file that is claimed is
/// the one whose header was read.
#[derive(Debug)]
pub struct Pool {
    pub(super) path: PathBuf,
    /// The name under which another session of this party may have put the same file meanwhile.
    pub(super) alias: Option<PathBuf>,
    pub(super) header: Header,
    part: Part,
    /// The file, read up to the first word.
    pub(super) source: Hashed,
}

impl Pool {
    /// Reads the header of the pool of `role` at `path`, without using the pool up.
    ///
    /// # Errors
    /// [`PoolError`] if there is no file, if it is reached through a link, is something else, has another format,
    /// length or role, is open to others, or if its header is corrupted.
    pub fn open(path: &Path, role: Role) -> Result<Self, PoolError> {
        let (header, source) = read_header(path)?;
        if header.role != role {
            return Err(PoolError::Role { expected: role, found: header.role });
        }
        check_closed(&source.file)?;
        let part = header.part()?;
        Ok(Pool { path: path.into(), alias: None, header, part, source })
    }

    /// This pool, whose file may also be found at `alias`.
    pub(super) fn known_as(self, alias: PathBuf) -> Self {
        Pool { alias: Some(alias), ..self }
    }

    /// Moves the file to `path` and sets its time to now. Its first name stays known as an alias.
    pub(super) fn move_to(mut self, path: PathBuf) -> Result<Self, PoolError> {
        self.source.file.set_modified(SystemTime::now())?;
        fs::rename(&self.path, &path).map_err(or_gone)?;
        sync_directory(&path)?;
        self.alias = Some(std::mem::replace(&mut self.path, path));
        Ok(self)
    }

    /// The id of the file.
    pub fn id(&self) -> PoolId {
        self.header.id
    }

    /// The longest generation that the pool serves.
    pub fn bound(&self) -> Lengths {
        self.header.bound
    }

    /// The key of the peer that filled the pool together with this party; `None` on a link without keys.
    pub fn peer(&self) -> Option<&str> {
        self.header.peer()
    }

    /// The part of a pool that the file is.
    pub fn part(&self) -> Part {
        self.part
    }

    /// The link that the pool was planned for, if the file says so.
    pub fn link(&self) -> Option<LinkShape> {
        self.header.link.as_ref()?.parse().ok()
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Refuses this pool if it was not made for `purpose`, or if it was made for less than `request`. `purpose` must
    /// have the pool's own bound.
    pub fn check(&self, purpose: &Purpose, request: &Request) -> Result<(), PoolError> {
        check_bound(self.bound(), request)?;
        let mut differences = differences(&purpose.facts, &self.header.facts);
        let fingerprint = purpose.fingerprint();
        if differences.is_empty() && self.header.fingerprint != fingerprint {
            let found = self.header.fingerprint.clone();
            differences.push(Difference { name: "fingerprint".into(), expected: fingerprint, found });
        }
        if !differences.is_empty() {
            return Err(PoolError::Mismatch { differences });
        }
        let (expected, found) = (purpose.needs.words(self.header.role), self.header.words);
        if expected != found {
            return Err(PoolError::Header { what: format!("{found} words, expected {expected}") });
        }
        Ok(())
    }
}

/// The facts in which `expected` and `found` differ.
pub(super) fn differences(expected: &BTreeMap<String, String>, found: &BTreeMap<String, String>) -> Vec<Difference> {
    let names = expected.keys().chain(found.keys().filter(|name| !expected.contains_key(*name)));
    let value = |of: &BTreeMap<String, String>, name| of.get(name).cloned().unwrap_or_default();
    names
        .map(|name| Difference { name: name.clone(), expected: value(expected, name), found: value(found, name) })
        .filter(|difference| difference.expected != difference.found)
        .collect()
}

/// A file with the hash of what was read or written.
#[derive(Debug)]
pub(super) struct Hashed {
    pub(super) file: File,
    hasher: Hasher,
}

impl Hashed {
    pub(super) fn new(file: File) -> Self {
        Hashed { file, hasher: Hasher::new() }
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.file.write_all(bytes)
    }

    /// Writes the hash of all bytes so far, which the next hash covers too.
    pub(super) fn write_hash(&mut self) -> io::Result<()> {
        let hash = self.hasher.finalize();
        self.write(hash.as_bytes())
    }

    pub(super) fn read(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact(bytes)?;
        self.hasher.update(bytes);
        Ok(())
    }

    /// Reads a hash, and compares it with that of all bytes so far. A difference is reported as a fault of `part`.
    pub(super) fn read_hash(&mut self, part: &'static str) -> Result<(), PoolError> {
        let computed = self.hasher.finalize();
        let mut written = [0; HASH_BYTES];
        self.read(&mut written)?;
        if computed == written {
            return Ok(());
        }
        Err(PoolError::Checksum { part, expected: hex(&written), found: computed.to_hex().to_string() })
    }
}

impl Drop for Hashed {
    fn drop(&mut self) {
        // The hasher holds up to a block of what was hashed.
        self.hasher.zeroize();
    }
}

/// Opens the file of a pool. It must be the only name of a regular file: a file that is reached in two ways could be
/// used twice.
fn open_only_name(path: &Path) -> Result<File, PoolError> {
    let open = |write: bool| {
        let mut options = OpenOptions::new();
        options.read(true).write(write);
        #[cfg(unix)]
        {
            use rustix::fs::OFlags;
            // A pipe must not be waited for.
            let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
            std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, flags.bits().cast_signed());
        }
        options.open(path)
    };
    // Network file systems lock only files that are open for writing. Nothing is written.
    let file = match open(true).or_else(|error| if error.kind() == NotFound { Err(error) } else { open(false) }) {
        // Systems differ in the error for a link that they did not follow.
        Err(_) if path.is_symlink() => return Err(PoolError::Link),
        opened => opened.map_err(or_gone)?,
    };
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(PoolError::NotAFile);
    }
    #[cfg(unix)]
    match std::os::unix::fs::MetadataExt::nlink(&metadata) {
        0 => return Err(PoolError::Gone),
        1 => {}
        count => return Err(PoolError::Names { count }),
    }
    #[cfg(not(unix))]
    if path.is_symlink() {
        return Err(PoolError::Link);
    }
    Ok(file)
}

/// Refuses a file that others may read or write (Unix): what they did with it cannot be known.
pub(super) fn check_closed(file: &File) -> Result<(), PoolError> {
    if others_may(&file.metadata()?, Forbidden::ReadingAndWriting) { Err(PoolError::Exposed) } else { Ok(()) }
}

/// Whether `path` is a name of the open `file`.
pub(super) fn same_file(file: &File, path: &Path) -> Result<bool, PoolError> {
    let there = path.symlink_metadata().map_err(or_gone)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let here = file.metadata()?;
        Ok((here.dev(), here.ino()) == (there.dev(), there.ino()))
    }
    #[cfg(not(unix))]
    {
        let here = file.metadata()?;
        Ok(here.created().ok() == there.created().ok() && here.len() == there.len())
    }
}

/// Takes the lock that tells a file in use from one that a crash left. Returns false if another process has the lock.
/// The lock ends with the process. Where a file system has no locks, the file is assumed to be ours.
pub(super) fn lock(file: &File) -> Result<bool, PoolError> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => Ok(true),
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}

/// The header of the file at `path`, and the file, read up to the end of the header.
pub(super) fn read_header(path: &Path) -> Result<(Header, Hashed), PoolError> {
    let file = open_only_name(path)?;
    let found = file.metadata()?.len();
    let mut source = Hashed::new(file);
    let mut magic = vec![0; MAGIC.len().min(found as usize)];
    source.read(&mut magic)?;
    if magic != MAGIC {
        return Err(PoolError::NotAPool { expected: MAGIC, found: magic });
    }
    let at_least = |bytes: usize| {
        let expected = bytes as u64;
        if found < expected { Err(PoolError::Length { expected, found }) } else { Ok(()) }
    };
    at_least(PREFIX_BYTES)?;
    let mut number = || {
        let mut bytes = [0; 4];
        source.read(&mut bytes).map(|()| u32::from_le_bytes(bytes))
    };
    let (format, len) = (number()?, number()? as usize);
    if format != FORMAT {
        return Err(PoolError::Format { expected: FORMAT, found: format });
    }
    if len > MAX_HEADER_BYTES {
        return Err(PoolError::Header { what: format!("{len} bytes, at most {MAX_HEADER_BYTES} are supported") });
    }
    at_least(PREFIX_BYTES + len + HASH_BYTES)?;
    let mut text = vec![0; len];
    source.read(&mut text)?;
    source.read_hash("header")?;
    let header: Header = serde_json::from_slice(&text).map_err(|e| PoolError::Header { what: e.to_string() })?;
    header.part()?;
    let expected = header.file_bytes(len).unwrap_or(u64::MAX);
    if found != expected {
        return Err(PoolError::Length { expected, found });
    }
    Ok((header, source))
}

pub(super) fn or_gone(error: io::Error) -> PoolError {
    if error.kind() == NotFound { PoolError::Gone } else { error.into() }
}

/// `path` with `ending` after its name.
pub(super) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Makes the renaming or removal of `path` permanent.
pub(super) fn sync_directory(path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(parent.unwrap_or(Path::new(".")))?.sync_all()?;
    }
    #[cfg(not(unix))]
    let _ = path;
    Ok(())
}
