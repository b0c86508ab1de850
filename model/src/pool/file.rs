//! One party's file: written whole or not at all, read once.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use blake3::Hasher;
use net::Role;
use protocols::Stock;
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

use super::{Bound, Difference, PoolError, PoolId, Purpose, hex};
use crate::party::Request;

/// Longest header.
pub const MAX_HEADER_BYTES: usize = 64 << 10;

const MAGIC: [u8; 8] = *b"WGLPOOL\0";
const FORMAT: u32 = 1;
/// Magic, format and length of the header.
const PREFIX_BYTES: usize = 16;
const HASH_BYTES: usize = 32;
/// Words that are written or read at once.
const PIECE_WORDS: usize = 1 << 13;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    id: PoolId,
    role: Role,
    /// The longest generation.
    bound: Bound,
    facts: BTreeMap<String, String>,
    /// BLAKE3 of the two before.
    fingerprint: String,
    words: u64,
}

impl Header {
    /// Bytes of a file whose header takes `len` bytes.
    fn file_bytes(&self, len: usize) -> Option<u64> {
        self.words.checked_mul(8)?.checked_add((PREFIX_BYTES + len + 2 * HASH_BYTES) as u64)
    }
}

/// A file that is written, but does not count yet. Dropped, it is gone.
#[derive(Debug)]
pub struct Draft {
    /// Where it is until it counts; `None` once it does.
    draft: Option<PathBuf>,
    path: PathBuf,
}

impl Draft {
    /// Writes what `role` prepared for `purpose` beside `path`, which must be free, to the disk. The stock is zeroized as
    /// it goes. Under Unix the file can be read by its owner alone.
    ///
    /// # Errors
    /// [`PoolError::Exists`], or [`PoolError::Io`]; nothing is left behind then.
    ///
    /// # Panics
    /// If the stock is not what the purpose needs.
    pub fn write(path: &Path, id: PoolId, role: Role, purpose: &Purpose, stock: Stock) -> Result<Self, PoolError> {
        check_absent(path)?;
        let header = Header {
            id,
            role,
            bound: purpose.bound,
            facts: purpose.facts.clone(),
            fingerprint: purpose.fingerprint(),
            words: purpose.needs.words(role),
        };
        let text = serde_json::to_vec(&header).map_err(|e| PoolError::Header { what: e.to_string() })?;
        let len = u32::try_from(text.len()).ok().filter(|len| *len as usize <= MAX_HEADER_BYTES);
        let len = len.ok_or_else(|| PoolError::Header { what: format!("{} bytes are too many", text.len()) })?;
        let temporary = beside(path, &format!(".{id}.tmp"));
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(&temporary)?;
        let draft = Draft { draft: Some(temporary), path: path.into() };
        let mut out = Hashed { file, hasher: Hasher::new() };
        out.write(&[&MAGIC[..], &FORMAT.to_le_bytes(), &len.to_le_bytes(), &text].concat())?;
        out.write_hash()?;
        let mut bytes = Zeroizing::new(Vec::with_capacity(8 * PIECE_WORDS));
        stock.drain(&purpose.needs, role, |words| {
            words.chunks(PIECE_WORDS).try_for_each(|piece| {
                bytes.clear();
                bytes.extend(piece.iter().flat_map(|word| word.to_le_bytes()));
                Ok::<_, PoolError>(out.write(&bytes)?)
            })
        })?;
        out.write_hash()?;
        out.file.sync_all()?;
        Ok(draft)
    }

    /// Gives the file its name.
    pub fn publish(mut self) -> Result<(), PoolError> {
        check_absent(&self.path)?;
        if let Some(draft) = &self.draft {
            fs::rename(draft, &self.path)?;
            self.draft = None;
            sync_directory(&self.path)?;
        }
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some(draft) = self.draft.take() {
            // Nothing else can be done about it; what is left has a name that nobody reads.
            let _ = fs::remove_file(draft);
        }
    }
}

/// Refuses a path where something stands already.
pub fn check_absent(path: &Path) -> Result<(), PoolError> {
    if path.symlink_metadata().is_ok() { Err(PoolError::Exists) } else { Ok(()) }
}

/// A file whose header is good, and which nobody has claimed so far.
#[derive(Debug)]
pub struct Pool {
    path: PathBuf,
    header: Header,
}

impl Pool {
    /// Reads the header of the pool of `role` at `path`; nothing is consumed.
    ///
    /// # Errors
    /// [`PoolError`] if there is no file, or one that is something else, of another format, length or role, or whose
    /// header is corrupted.
    pub fn open(path: &Path, role: Role) -> Result<Self, PoolError> {
        let (header, _) = read_header(path)?;
        if header.role != role {
            return Err(PoolError::Role { expected: role, found: header.role });
        }
        Ok(Pool { path: path.into(), header })
    }

    /// Its id.
    pub fn id(&self) -> PoolId {
        self.header.id
    }

    /// The longest generation that it serves.
    pub fn bound(&self) -> Bound {
        self.header.bound
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Refuses a pool that was not made for `purpose`, which has the pool's own bound, or not for as much as `request`.
    pub fn check(&self, purpose: &Purpose, request: &Request) -> Result<(), PoolError> {
        self.bound().check(request)?;
        let found = &self.header.facts;
        let names = purpose.facts.keys().chain(found.keys().filter(|name| !purpose.facts.contains_key(*name)));
        let value = |of: &BTreeMap<String, String>, name| of.get(name).cloned().unwrap_or_default();
        let mut differences: Vec<Difference> = names
            .map(|name| Difference {
                name: name.clone(),
                expected: value(&purpose.facts, name),
                found: value(found, name),
            })
            .filter(|difference| difference.expected != difference.found)
            .collect();
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

    /// Takes all words out of the file, for which [`Pool::check`] passed `purpose`, and removes it: of several processes
    /// one succeeds, once. Whatever happens after the file was renamed, it will not be read again.
    ///
    /// # Errors
    /// [`PoolError::Gone`] if somebody was faster, [`PoolError::Length`], [`PoolError::Checksum`] if the file is damaged,
    /// [`PoolError::Replaced`] if another file took its place.
    pub fn claim(self, purpose: &Purpose) -> Result<Stock, PoolError> {
        let name = beside(&self.path, ".claimed");
        fs::rename(&self.path, &name).map_err(or_gone)?;
        // From here on it is this process's business.
        let claimed = Claimed(name);
        sync_directory(&claimed.0)?;
        let (header, mut source) = read_header(&claimed.0)?;
        if header != self.header {
            return Err(PoolError::Replaced { expected: self.header.id, found: header.id });
        }
        let mut bytes = Zeroizing::new(vec![0; 8 * PIECE_WORDS]);
        let stock = Stock::refill(&purpose.needs, header.role, |words| {
            words.chunks_mut(PIECE_WORDS).try_for_each(|piece| {
                let bytes = &mut bytes[..8 * piece.len()];
                source.read(bytes)?;
                let (chunks, _) = bytes.as_chunks();
                piece.iter_mut().zip(chunks).for_each(|(word, chunk)| *word = u64::from_le_bytes(*chunk));
                Ok::<_, PoolError>(())
            })
        })?;
        source.read_hash("words")?;
        // Under some systems an open file cannot be removed.
        drop(source);
        claimed.remove()?;
        Ok(stock)
    }
}

/// A file that was renamed; removed when dropped.
struct Claimed(PathBuf);

impl Claimed {
    fn remove(mut self) -> Result<(), PoolError> {
        let path = std::mem::take(&mut self.0);
        fs::remove_file(&path)?;
        Ok(sync_directory(&path)?)
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        // Nothing else can be done about it: no program reads this name.
        let _ = fs::remove_file(&self.0);
    }
}

/// A file with the hash of what went through it.
struct Hashed {
    file: File,
    hasher: Hasher,
}

impl Hashed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.file.write_all(bytes)
    }

    /// Writes the hash of all so far, which becomes part of what follows.
    fn write_hash(&mut self) -> io::Result<()> {
        let hash = self.hasher.finalize();
        self.write(hash.as_bytes())
    }

    fn read(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact(bytes)?;
        self.hasher.update(bytes);
        Ok(())
    }

    /// Reads a hash, which must be that of all so far.
    fn read_hash(&mut self, part: &'static str) -> Result<(), PoolError> {
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
        // It holds up to a block of what was hashed.
        self.hasher.zeroize();
    }
}

/// The header of `path`, and the rest to be read.
fn read_header(path: &Path) -> Result<(Header, Hashed), PoolError> {
    let file = File::open(path).map_err(or_gone)?;
    let found = file.metadata()?.len();
    let mut source = Hashed { file, hasher: Hasher::new() };
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
    let expected = header.file_bytes(len).unwrap_or(u64::MAX);
    if found != expected {
        return Err(PoolError::Length { expected, found });
    }
    Ok((header, source))
}

fn or_gone(error: io::Error) -> PoolError {
    if error.kind() == io::ErrorKind::NotFound { PoolError::Gone } else { error.into() }
}

/// `path` with `ending` after its name.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Makes the renaming or removal of `path` last.
fn sync_directory(path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(parent.unwrap_or(Path::new(".")))?.sync_all()?;
    }
    #[cfg(not(unix))]
    let _ = path;
    Ok(())
}
