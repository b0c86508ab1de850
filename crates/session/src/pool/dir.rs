//! A server's directory of pools.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use waggle_model::Lengths;
use waggle_net::Role;
use waggle_protocols::Part;

use super::file::Pool;
use super::list::{Found, PENDING, State, find};
use super::set::PoolSet;
use super::unfinished::{Pending, UnfinishedPool, Written};
use super::{PoolError, PoolId};
use crate::Error;

/// The ending of a pool's name.
const POOL: &str = "pool";

/// A directory with one file per pool: `ID.pool`, or `ID.pending` while it is uncertain whether the client has its
/// part.
#[derive(Clone, Debug)]
pub struct Pools {
    dir: PathBuf,
    max: usize,
    max_per_peer: usize,
    /// The pools that sessions of this process are filling now.
    filling: Arc<Mutex<Vec<Entry>>>,
}

impl Pools {
    /// Opens the directory `dir` for at most `max` pools. A missing directory is made, under Unix for its owner
    /// alone. What crashes left there is removed: unfinished and claimed files, and files that have waited for
    /// [`PENDING_AGE`](super::PENDING_AGE).
    ///
    /// # Errors
    /// [`waggle_model::Error::File`] if the directory cannot be made or read.
    pub fn open(dir: &Path, max: usize) -> Result<Self, Error> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        let failed = |source| Error::Model(waggle_model::Error::File { path: dir.into(), source });
        builder.create(dir).map_err(failed)?;
        let pools = Pools { dir: dir.into(), max, max_per_peer: max, filling: Arc::default() };
        for stale in pools.files().map_err(failed)?.into_iter().filter(Found::is_stale) {
            stale.remove().map_err(|e| e.at(stale.path()))?;
        }
        Ok(pools)
    }

    /// Lets one peer have at most `max` of the pools.
    pub fn with_max_per_peer(self, max: usize) -> Self {
        Pools { max_per_peer: max, ..self }
    }

    /// Makes the file of a new pool of `peer`'s, or of a part of one, for generations up to `bound`. From now on the
    /// file counts as a pool.
    ///
    /// # Errors
    /// [`PoolError::Full`], [`PoolError::FullForPeer`], [`PoolError::Waiting`] if there are too many pools, counting
    /// those that other sessions are about to fill; [`PoolError::Io`] if no file can be made.
    pub(crate) fn reserve(
        &self,
        id: PoolId,
        peer: Option<&str>,
        bound: Lengths,
        part: Part,
    ) -> Result<Place, PoolError> {
        let mut filling = self.filling.lock().unwrap_or_else(PoisonError::into_inner);
        let files = self.files()?;
        for stale in files.iter().filter(|file| file.state() == State::Pending && file.is_stale()) {
            stale.remove()?;
        }
        let (max, max_per_peer) = (self.max, self.max_per_peer.min(self.max));
        let new = Entry { peer: peer.map(str::to_owned), bound: Some(bound), part };
        let with_new = |mut others: Vec<Entry>| {
            others.push(new.clone());
            others
        };
        let mine = |mut entries: Vec<Entry>| {
            entries.retain(|entry| entry.peer == new.peer);
            entries
        };
        let mut kept = with_new(entries(&files, State::Pool));
        kept.extend(filling.iter().cloned());
        if pools(&kept) > max {
            return Err(PoolError::Full { limit: max });
        }
        if pools(&mine(kept)) > max_per_peer {
            return Err(PoolError::FullForPeer { limit: max_per_peer });
        }
        // Waiting files count for no quota, but must not fill the disk.
        if pools(&mine(with_new(entries(&files, State::Pending)))) > max_per_peer {
            return Err(PoolError::Waiting { limit: max_per_peer });
        }
        let unfinished = UnfinishedPool::create(&self.path(id))?;
        filling.push(new.clone());
        Ok(Place {
            unfinished,
            pending: self.pending(id),
            quota: Quota { filling: self.filling.clone(), entry: new },
        })
    }

    /// Removes `peer`'s files except those in `kept`: the client says that it has the partner of no other file. A
    /// file that another session has worked on since `then` stays, because the client may not have seen its partner
    /// yet.
    pub(crate) fn forget(&self, peer: Option<&str>, kept: &[PoolId], then: SystemTime) -> Result<(), PoolError> {
        let lost = |file: &&Found| {
            matches!(file.state(), State::Pool | State::Pending)
                && file.is_older_than(then)
                && file.id().is_some_and(|id| file.peer() == peer && !kept.contains(&id))
        };
        self.files()?.iter().filter(lost).try_for_each(Found::remove)
    }

    /// The pool `id`, whether published or waiting. The client names it, which proves that the client has its part.
    pub(super) fn get(&self, id: PoolId) -> Result<Pool, PoolError> {
        let (path, pending) = (self.path(id), self.pending(id));
        let mut found = Err(PoolError::Gone);
        // The file may move between two looks; a third look sees it.
        for (name, alias) in [(&path, &pending), (&pending, &path), (&path, &pending)] {
            found = Pool::open(name, Role::Server).map(|pool| pool.known_as(alias.clone()));
            if !matches!(found, Err(PoolError::Gone)) {
                break;
            }
        }
        let pool = found?;
        if pool.id() == id { Ok(pool) } else { Err(PoolError::Replaced { expected: id, found: pool.id() }) }
    }

    /// The pool of the parts `ids`, which the client names in order.
    ///
    /// # Errors
    /// [`PoolError::Unknown`] if a part is not here, errors of [`PoolSet::new`], and [`PoolError::OtherPart`] if the
    /// parts are in another order.
    pub(crate) fn set(&self, ids: &[PoolId]) -> Result<PoolSet, Error> {
        let mut parts = Vec::with_capacity(ids.len());
        for (at, &id) in ids.iter().enumerate() {
            let expected = Part::new(at as u32 + 1, ids.len() as u32).unwrap_or(Part::WHOLE);
            let found = self.get(id).and_then(|pool| match pool.part() {
                part if part.of() == expected.of() && part != expected => {
                    Err(PoolError::OtherPart { expected, found: part })
                }
                _ => Ok(pool),
            });
            parts.push(found.map_err(|error| match error {
                PoolError::Gone => PoolError::Unknown { id, part: expected }.into(),
                other => other.at(&self.path(id)),
            })?);
        }
        Ok(PoolSet::new(parts)?)
    }

    /// Makes all parts of `set` wait until the client has claimed its own parts.
    pub(crate) fn set_aside(&self, set: PoolSet) -> Result<PoolSet, Error> {
        set.moved(|pool| {
            let pending = self.pending(pool.id());
            pool.move_to(pending)
        })
    }

    /// The path of the file of a published pool. Its name holds the hexadecimal digits of `id` alone, whatever a
    /// client says.
    pub(crate) fn path(&self, id: PoolId) -> PathBuf {
        self.dir.join(format!("{id}.{POOL}"))
    }

    fn pending(&self, id: PoolId) -> PathBuf {
        self.dir.join(format!("{id}.{PENDING}"))
    }

    fn files(&self) -> std::io::Result<Vec<Found>> {
        find(&self.dir)
    }
}

/// What the limits on pools consider of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    peer: Option<String>,
    /// `None` if the header is not whole.
    bound: Option<Lengths>,
    part: Part,
}

/// The files in `state`.
fn entries(files: &[Found], state: State) -> Vec<Entry> {
    let of_state = files.iter().filter(|file| file.state() == state);
    let entry = |file: &Found| Entry {
        peer: file.peer().map(str::to_owned),
        bound: file.bound(),
        part: file.part().unwrap_or(Part::WHOLE),
    };
    of_state.map(entry).collect()
}

/// The number of pools that the files form. One peer's parts for the same lengths count as one pool, even before all
/// are there. Two copies of a part count as two pools, because parts differ in size and many copies of the largest
/// must not pass for one pool.
fn pools(entries: &[Entry]) -> usize {
    let mut copies: BTreeMap<_, BTreeMap<Part, usize>> = BTreeMap::new();
    for Entry { peer, bound, part } in entries {
        let pool = (peer, bound.map(|bound| (bound.prompt, bound.tokens)), part.of());
        *copies.entry(pool).or_default().entry(*part).or_default() += 1;
    }
    copies.values().filter_map(|parts| parts.values().max()).sum()
}

/// The number of pools among `files` that can be spent now, or once their other parts are there.
pub fn count(files: &[Found]) -> usize {
    pools(&entries(files, State::Pool))
}

/// A pool that is being filled: its unfinished file, and the path at which the file will wait. It counts as a pool.
#[derive(Debug)]
pub(crate) struct Place {
    unfinished: UnfinishedPool,
    pending: PathBuf,
    quota: Quota,
}

impl Place {
    /// The unfinished file, and the path at which it will wait.
    pub(crate) fn split(self) -> (UnfinishedPool, Waiting) {
        (self.unfinished, Waiting { pending: self.pending, _quota: self.quota })
    }
}

/// The path at which an unfinished file will wait. Until this is dropped, the pool counts among those that are being
/// filled.
#[derive(Debug)]
pub(crate) struct Waiting {
    pending: PathBuf,
    _quota: Quota,
}

impl Waiting {
    /// Puts the file at its waiting place.
    pub(crate) fn begin(&self, written: Written) -> Result<Pending, PoolError> {
        written.wait_at(self.pending.clone())
    }
}

/// One entry in the list of pools that sessions are filling; removed when dropped.
#[derive(Debug)]
struct Quota {
    filling: Arc<Mutex<Vec<Entry>>>,
    entry: Entry,
}

impl Drop for Quota {
    fn drop(&mut self) {
        let mut filling = self.filling.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = filling.iter().position(|entry| *entry == self.entry) {
            filling.swap_remove(at);
        }
    }
}

/// Whether others than the owner may put files into the directory of `path`, or into `path` itself if it is a
/// directory. They could bring an old pool back. False where the sticky bit protects the owner's files from them.
pub fn writable_by_others(path: &Path) -> bool {
    #[cfg(unix)]
    {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let dir = if path.is_dir() { path } else { parent };
        use waggle_files::{Forbidden, others_may};
        let sticky = |m: &fs::Metadata| std::os::unix::fs::PermissionsExt::mode(&m.permissions()) & 0o1000 != 0;
        fs::metadata(dir).is_ok_and(|dir| others_may(&dir, Forbidden::Writing) && !sticky(&dir))
    }
    #[cfg(not(unix))]
    {
        let _ = path;
        false
    }
}
