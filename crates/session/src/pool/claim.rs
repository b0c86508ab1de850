//! Claims of pools: the words of all parts are taken out together, once, or none are.

use std::fs;
use std::path::{Path, PathBuf};

use waggle_protocols::Stock;
use zeroize::Zeroizing;

use super::file::{PIECE_WORDS, Pool, beside, lock, or_gone, read_header, same_file, sync_directory};
use super::{PoolError, Purpose};

/// The ending of a claimed file's name.
pub(super) const CLAIMED: &str = ".claimed";

impl Pool {
    /// Takes all words out of the file and removes it. [`Pool::check`] must have accepted `purpose` for this file. If
    /// several processes try, at most one succeeds. Once the file has been renamed it is never read again, whatever
    /// happens.
    ///
    /// # Errors
    /// [`PoolError::Gone`] if another process claimed the file first, [`PoolError::Replaced`] if another file took
    /// its place, [`PoolError::Lost`] if the file was damaged or cannot be read: then it is gone.
    pub fn claim(self, purpose: &Purpose) -> Result<Stock, PoolError> {
        claim_all(vec![self], std::slice::from_ref(purpose)).map_err(|(_, error)| error)
    }

    /// Removes the file, because the peer has lost its counterpart.
    pub(super) fn discard(&self) -> Result<(), PoolError> {
        match self.where_it_is(|path| fs::remove_file(path).map_err(or_gone)) {
            Err(PoolError::Gone) => Ok(()),
            other => other.and_then(|()| Ok(sync_directory(&self.path)?)),
        }
    }

    /// Calls `act` with the name that the file has now.
    fn where_it_is<T>(&self, act: impl Fn(&Path) -> Result<T, PoolError>) -> Result<T, PoolError> {
        // The file may move from its alias to its name between two looks, but not back.
        for path in [Some(&self.path), self.alias.as_ref(), Some(&self.path)].into_iter().flatten() {
            let done = match same_file(&self.source.file, path) {
                Ok(true) => act(path),
                Ok(false) => Err(self.replaced(path)),
                Err(error) => Err(error),
            };
            match done {
                Err(PoolError::Gone) => {}
                other => return other,
            }
        }
        Err(PoolError::Gone)
    }

    /// Gives the file a name that no program reads. From here on it belongs to this process.
    fn rename(&self) -> Result<Claimed, PoolError> {
        self.where_it_is(|path| {
            let name = beside(path, CLAIMED);
            fs::rename(path, &name).map(|()| Claimed(name)).map_err(or_gone)
        })
    }

    /// The error for a claim that finds another file at `path`.
    fn replaced(&self, path: &Path) -> PoolError {
        match read_header(path) {
            Ok((header, _)) => PoolError::Replaced { expected: self.header.id, found: header.id },
            Err(error) => error,
        }
    }

    /// Adds all words of the file to `stock`.
    fn read_into(&mut self, stock: &mut Stock, purpose: &Purpose) -> Result<(), PoolError> {
        let mut bytes = Zeroizing::new(vec![0; 8 * PIECE_WORDS]);
        let source = &mut self.source;
        stock.add(&purpose.needs, self.header.role, |words| {
            words.chunks_mut(PIECE_WORDS).try_for_each(|piece| {
                let bytes = &mut bytes[..8 * piece.len()];
                source.read(bytes)?;
                let (chunks, _) = bytes.as_chunks();
                piece.iter_mut().zip(chunks).for_each(|(word, chunk)| *word = u64::from_le_bytes(*chunk));
                Ok::<_, PoolError>(())
            })
        })?;
        source.read_hash("words")
    }
}

/// Takes all words out of the files of `parts`, and removes the files. [`Pool::check`] must have accepted the purpose
/// of each part, which has the same index in `purposes`. No file is renamed unless all are there and no other process
/// works on any of them. Whatever happens after a file was renamed, it will not be read again.
///
/// # Errors
/// As [`Pool::claim`], with the number of the part, from 0.
pub(super) fn claim_all(mut parts: Vec<Pool>, purposes: &[Purpose]) -> Result<Stock, (usize, PoolError)> {
    // The locks tell `pools rm --stale` that claimed files are in use, and refuse processes that opened the files
    // before. Whoever has all locks claims alone, so of two processes that want the same parts neither gets a few of
    // them.
    each(&parts, |pool| if lock(&pool.source.file)? { Ok(()) } else { Err(PoolError::Gone) })?;
    each(&parts, |pool| pool.where_it_is(|_| Ok(())))?;
    let claimed = each(&parts, Pool::rename)?;
    let pairs: Vec<(&Pool, &Claimed)> = parts.iter().zip(&claimed).collect();
    each(&pairs, |(pool, claimed)| {
        sync_directory(&claimed.0)?;
        if same_file(&pool.source.file, &claimed.0)? { Ok(()) } else { Err(pool.replaced(&claimed.0)) }
    })?;
    let mut stock = Stock::default();
    for (at, (pool, purpose)) in parts.iter_mut().zip(purposes).enumerate() {
        pool.read_into(&mut stock, purpose).map_err(|error| (at, error.lost()))?;
    }
    for (at, claimed) in claimed.into_iter().enumerate() {
        claimed.remove().map_err(|error| (at, error.lost()))?;
    }
    Ok(stock)
}

/// Calls `act` for each item in order; an error comes with the item's index.
fn each<I, T>(items: &[I], act: impl Fn(&I) -> Result<T, PoolError>) -> Result<Vec<T>, (usize, PoolError)> {
    items.iter().enumerate().map(|(at, item)| act(item).map_err(|error| (at, error))).collect()
}

/// A file that was renamed as claimed. Dropping this removes the file.
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
        // A failure leaves a file under a name that no program reads.
        let _ = fs::remove_file(&self.0);
    }
}
