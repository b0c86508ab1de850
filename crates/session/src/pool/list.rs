//! Lists the pools in a directory, of both roles, without using any of them up.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::Serialize;
use waggle_model::Lengths;
use waggle_net::Role;
use waggle_protocols::Part;

use super::claim::CLAIMED;
use super::file::{Header, MAGIC, lock, or_gone, read_header, sync_directory};
use super::unfinished::DRAFT;
use super::{PoolError, PoolId};

/// How long a server's file waits for the client's word that the client has its part. The time counts from the last
/// session that concerned the file.
pub const PENDING_AGE: Duration = Duration::from_secs(7 * 24 * 3600);

/// The ending of the name of a file that waits.
pub(super) const PENDING: &str = "pending";
/// The state of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// A pool that can be spent.
    Pool,
    /// A server's file that waits for the client's word; the client can spend it.
    Pending,
    /// A file that is being written, or that a crash left unfinished.
    Draft,
    /// A file that is being read, or was when a crash came. Nothing reads it again.
    Claimed,
}

/// A file of a pool, in whatever state.
#[derive(Debug)]
pub struct Found {
    path: PathBuf,
    state: State,
    bytes: u64,
    modified: Option<SystemTime>,
    in_use: bool,
    header: Result<Header, PoolError>,
}

impl Found {
    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The state of the file.
    pub fn state(&self) -> State {
        self.state
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Time since the file was written; for a file that waits, since the last session that concerned it.
    pub fn age(&self) -> Duration {
        self.modified.and_then(|then| SystemTime::now().duration_since(then).ok()).unwrap_or_default()
    }

    /// Whether the last session that concerned the file was before `then`.
    pub(super) fn is_older_than(&self, then: SystemTime) -> bool {
        self.modified.is_some_and(|modified| modified < then)
    }

    /// Whether a process works on the file now.
    pub fn in_use(&self) -> bool {
        self.in_use
    }

    /// The id of the file; `None` if the header is not whole.
    pub fn id(&self) -> Option<PoolId> {
        Some(self.header.as_ref().ok()?.id)
    }

    /// The party whose file it is.
    pub fn role(&self) -> Option<Role> {
        Some(self.header.as_ref().ok()?.role)
    }

    /// The longest generation that the pool serves.
    pub fn bound(&self) -> Option<Lengths> {
        Some(self.header.as_ref().ok()?.bound)
    }

    /// The part of a pool that the file is.
    pub fn part(&self) -> Option<Part> {
        self.header.as_ref().ok()?.part().ok()
    }

    /// The peer's key.
    pub fn peer(&self) -> Option<&str> {
        self.header.as_ref().ok()?.peer()
    }

    /// The fault of the header, or of the way in which the file is reached, if there is one.
    pub fn problem(&self) -> Option<&PoolError> {
        self.header.as_ref().err()
    }

    /// Whether a crash left the file: an unfinished or a claimed file that no process works on, or a file that has
    /// waited longer than [`PENDING_AGE`].
    pub fn is_stale(&self) -> bool {
        match self.state {
            State::Pool => false,
            State::Pending => self.age() > PENDING_AGE,
            State::Draft | State::Claimed => !self.in_use,
        }
    }

    /// Removes the file.
    ///
    /// # Errors
    /// [`PoolError::InUse`], or [`PoolError::Io`].
    pub fn remove(&self) -> Result<(), PoolError> {
        if self.in_use {
            return Err(PoolError::InUse);
        }
        match fs::remove_file(&self.path).map_err(or_gone) {
            // Another process used or removed the file meanwhile, so it is gone as wanted.
            Err(PoolError::Gone) => Ok(()),
            other => other.and_then(|()| Ok(sync_directory(&self.path)?)),
        }
    }
}

/// The files of pools at `path`, a directory or one file, ordered by path. Other files are left out.
///
/// # Errors
/// If `path` cannot be read.
pub fn find(path: &Path) -> io::Result<Vec<Found>> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(look_at(path)?.into_iter().collect());
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(path)? {
        found.extend(look_at(&entry?.path())?);
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// The file `path` if it belongs to a pool; `None` also if the file vanishes meanwhile.
fn look_at(path: &Path) -> io::Result<Option<Found>> {
    let gone = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => Ok(None),
        _ => Err(error),
    };
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) => return gone(error),
    };
    if !metadata.is_file() {
        return Ok(None);
    }
    // Network file systems lock only files that are open for writing. Nothing is written.
    let to_lock = OpenOptions::new().read(true).write(true).open(path);
    let mut file = match to_lock.or_else(|_| File::open(path)) {
        Ok(file) => file,
        Err(error) => return gone(error),
    };
    let state = state(path);
    let mut magic = Vec::new();
    file.by_ref().take(MAGIC.len() as u64).read_to_end(&mut magic)?;
    // An unfinished file may be empty so far.
    if magic != MAGIC && !(state == State::Draft && MAGIC.starts_with(&magic)) {
        return Ok(None);
    }
    // This process holds the lock for a moment; a process that works on the file holds it all the time.
    let in_use = matches!(state, State::Draft | State::Claimed) && !lock(&file).unwrap_or(false);
    drop(file);
    let header = match read_header(path) {
        Err(PoolError::Gone) => return Ok(None),
        other => other.map(|(header, _)| header),
    };
    let modified = metadata.modified().ok();
    Ok(Some(Found { path: path.into(), state, bytes: metadata.len(), modified, in_use, header }))
}

/// The state that a file's name tells.
fn state(path: &Path) -> State {
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    if name.ends_with(CLAIMED) {
        State::Claimed
    } else if name.ends_with(DRAFT) {
        State::Draft
    } else if path.extension().is_some_and(|ending| ending == PENDING) {
        State::Pending
    } else {
        State::Pool
    }
}
