//! A file that is no pool yet, and how it becomes one: alone, or in two steps with the peer's file.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rand::Rng;
use waggle_net::Role;
use waggle_protocols::Stock;
use zeroize::Zeroizing;

use super::file::{FORMAT, Hashed, Header, MAGIC, PIECE_WORDS, beside, check_closed, or_gone, sync_directory};
use super::{MAX_HEADER_BYTES, PoolError, PoolId, Purpose, hex};

/// The ending of an unfinished file's name.
pub(super) const DRAFT: &str = ".draft";

/// An empty file beside the place of a pool. Dropping it removes the file.
#[derive(Debug)]
pub struct UnfinishedPool {
    /// The path of the file while it is unfinished; `None` from then on.
    draft: Option<PathBuf>,
    path: PathBuf,
    /// The file, locked as long as this process works on it.
    file: File,
}

impl UnfinishedPool {
    /// Makes the file beside `path`, at which nothing may stand yet. Under Unix it can be read by its owner alone.
    ///
    /// # Errors
    /// [`PoolError::Exists`], [`PoolError::Io`] if no file can be made there, [`PoolError::Exposed`] if the file
    /// system cannot close a file to others.
    pub fn create(path: &Path) -> Result<Self, PoolError> {
        check_absent(path)?;
        let mut random = [0; 8];
        rand::make_rng::<rand::rngs::StdRng>().fill_bytes(&mut random);
        let draft = beside(path, &format!(".{}{DRAFT}", hex(&random)));
        let file = waggle_files::private().create_new(true).open(&draft)?;
        let unfinished = UnfinishedPool { draft: Some(draft), path: path.into(), file };
        // Where the file system keeps no permissions, no pool would be opened again.
        check_closed(&unfinished.file)?;
        // A process that lists the directory may hold the lock for a moment.
        match unfinished.file.lock() {
            Err(error) if error.kind() != io::ErrorKind::Unsupported => Err(error.into()),
            _ => Ok(unfinished),
        }
    }

    /// Writes what `role` prepared for `purpose` to the disk. The stock is zeroized as it is written.
    ///
    /// # Errors
    /// [`PoolError::Io`]: then nothing is left behind.
    ///
    /// # Panics
    /// If the stock is not what the purpose needs.
    pub fn write(self, id: PoolId, role: Role, purpose: &Purpose, stock: Stock) -> Result<Written, PoolError> {
        let header = Header {
            id,
            role,
            bound: purpose.bound,
            facts: purpose.facts.clone(),
            fingerprint: purpose.fingerprint(),
            words: purpose.needs.words(role),
            link: Some(purpose.link.to_string()),
        };
        let text = serde_json::to_vec(&header).map_err(|e| PoolError::Header { what: e.to_string() })?;
        let len = u32::try_from(text.len()).ok().filter(|len| *len as usize <= MAX_HEADER_BYTES);
        let len = len.ok_or_else(|| PoolError::Header { what: format!("{} bytes are too many", text.len()) })?;
        // The clone shares the lock.
        let mut out = Hashed::new(self.file.try_clone()?);
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
        Ok(Written(self))
    }

    /// Moves the file to `to`, at which nothing may stand yet.
    fn rename(&mut self, to: &Path) -> Result<(), PoolError> {
        if let Some(draft) = &self.draft {
            rename_to_free(draft, to)?;
            self.draft = None;
            sync_directory(to)?;
        }
        Ok(())
    }
}

impl Drop for UnfinishedPool {
    fn drop(&mut self) {
        if let Some(draft) = self.draft.take() {
            // A failure leaves a file under a name that nobody reads.
            let _ = fs::remove_file(draft);
        }
    }
}

/// An unfinished file that is whole and on the disk. Dropping it removes the file.
#[derive(Debug)]
pub struct Written(UnfinishedPool);

impl Written {
    /// Gives the file its name, which makes it a pool.
    ///
    /// # Errors
    /// [`PoolError::Exists`] if something stands there by now; the unfinished file is gone then.
    pub fn publish(mut self) -> Result<(), PoolError> {
        let path = self.0.path.clone();
        self.0.rename(&path)
    }

    /// Gives the file the name `pending`, under which it waits for the peer's word.
    pub(super) fn wait_at(mut self, pending: PathBuf) -> Result<Pending, PoolError> {
        self.0.file.set_modified(SystemTime::now())?;
        self.0.rename(&pending)?;
        Ok(Pending { path: self.0.path.clone(), pending })
    }
}

/// A file that waits for the peer's word; see the table of [the module](super). Dropping it leaves the file waiting.
#[derive(Debug)]
pub struct Pending {
    path: PathBuf,
    pending: PathBuf,
}

impl Pending {
    /// Makes the file a pool, because the peer keeps its part.
    ///
    /// # Errors
    /// [`PoolError::Io`]: then the file still waits.
    pub fn publish(self) -> Result<(), PoolError> {
        match rename_to_free(&self.pending, &self.path) {
            // A session of the client's has taken it already.
            Err(PoolError::Gone) => Ok(()),
            other => other.and_then(|()| Ok(sync_directory(&self.path)?)),
        }
    }

    /// Removes the file, because the peer does not keep its part.
    ///
    /// # Errors
    /// [`PoolError::Io`].
    pub fn discard(self) -> Result<(), PoolError> {
        fs::remove_file(&self.pending).map_err(or_gone)?;
        Ok(sync_directory(&self.pending)?)
    }
}

/// Refuses a path where something stands already.
pub fn check_absent(path: &Path) -> Result<(), PoolError> {
    if path.symlink_metadata().is_ok() { Err(PoolError::Exists) } else { Ok(()) }
}

/// Renames a file without replacing what stands at `to`.
fn rename_to_free(from: &Path, to: &Path) -> Result<(), PoolError> {
    check_absent(to)?;
    #[cfg(any(target_os = "linux", target_os = "macos"))]
    {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        use rustix::io::Errno;
        match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            // Old kernels and some file systems cannot do it. Then a moment lies between the check above and the
            // renaming.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {}
            Err(Errno::EXIST) => return Err(PoolError::Exists),
            other => return other.map_err(|error| or_gone(io::Error::from(error))),
        }
    }
    fs::rename(from, to).map_err(or_gone)
}
