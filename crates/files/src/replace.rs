//! Files that appear whole or not at all.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rand::Rng;

/// A file that takes its place, perhaps that of an older file, when it is complete: it is written under a temporary
/// name in the same folder and renamed. If it is dropped before [`Replacement::commit`], it is removed, and an older
/// file is untouched. A link is followed. What is no regular file (a terminal, a pipe) is written directly.
#[derive(Debug)]
pub struct Replacement {
    out: BufWriter<File>,
    /// The temporary and the final name; `None` once renamed, and for a path that is written directly.
    names: Option<(PathBuf, PathBuf)>,
}

/// Temporary names of this process, for [`Replacement::abandon_all`].
static UNFINISHED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn unfinished() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Replacement {
    /// Begins a file that will be at `path`, with the permissions of the file that it replaces.
    ///
    /// # Errors
    /// If no file can be made there, or the file there must not be written.
    pub fn create(path: &Path) -> io::Result<Self> {
        Replacement::begin(path, false)
    }

    /// Begins a file at `path` that only its owner can read and write (Unix), even if others could read the file that
    /// it replaces.
    ///
    /// # Errors
    /// As [`Replacement::create`].
    pub fn private(path: &Path) -> io::Result<Self> {
        Replacement::begin(path, true)
    }

    fn begin(path: &Path, private: bool) -> io::Result<Self> {
        // Where a link leads to nothing, the link is replaced.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.into());
        let old = fs::metadata(&path).ok();
        if let Some(old) = &old {
            let file = OpenOptions::new().append(true).open(&path)?;
            if !old.is_file() {
                return Ok(Replacement { out: BufWriter::with_capacity(1 << 18, file), names: None });
            }
        }
        let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?.to_string_lossy();
        let random = rand::make_rng::<rand::rngs::StdRng>().next_u64();
        let temporary = path.with_file_name(format!(".{name}.{random:016x}.tmp"));
        let mut options = if private { crate::private() } else { OpenOptions::new() };
        let file = {
            let mut unfinished = unfinished();
            let file = options.write(true).create_new(true).open(&temporary)?;
            unfinished.insert(temporary.clone());
            file
        };
        let replacement =
            Replacement { out: BufWriter::with_capacity(1 << 18, file), names: Some((temporary, path)) };
        if let (Some(old), false) = (old, private) {
            replacement.out.get_ref().set_permissions(old.permissions())?;
        }
        Ok(replacement)
    }

    /// Checks that [`Replacement::create`] would succeed, as far as that can be tried without a trace.
    ///
    /// # Errors
    /// As [`Replacement::create`].
    pub fn check(path: &Path) -> io::Result<()> {
        // The reader of a pipe would take a closed pipe for the end of the data.
        #[cfg(unix)]
        if fs::metadata(path).is_ok_and(|old| std::os::unix::fs::FileTypeExt::is_fifo(&old.file_type())) {
            return Ok(());
        }
        Replacement::create(path).map(drop)
    }

    /// Removes the temporary files of this process, which is about to end, so that no unfinished file takes its
    /// place. From then on no thread can begin or end a file.
    pub fn abandon_all() {
        let unfinished = unfinished();
        for temporary in &*unfinished {
            // Nothing else can be done about it.
            let _ = fs::remove_file(temporary);
        }
        std::mem::forget(unfinished);
    }

    /// Puts the file in its place.
    ///
    /// # Errors
    /// If the file could not be written whole, or cannot be renamed. Then it is removed.
    pub fn commit(mut self) -> io::Result<()> {
        self.out.flush()?;
        if let Some((temporary, path)) = &self.names {
            self.out.get_ref().sync_all()?;
            let mut unfinished = unfinished();
            fs::rename(temporary, path)?;
            unfinished.remove(temporary);
            drop(unfinished);
            self.names = None;
        }
        Ok(())
    }
}

impl Write for Replacement {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if let Some((temporary, _)) = &self.names {
            let mut unfinished = unfinished();
            // Nothing else can be done about it.
            let _ = fs::remove_file(temporary);
            unfinished.remove(temporary);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> usize {
        fs::read_dir(dir).unwrap().count()
    }

    #[test]
    fn a_file_is_replaced_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.json");
        Replacement::check(&path).unwrap();
        assert_eq!(names(dir.path()), 0, "trying leaves nothing");
        let write = |text: &str| {
            let mut new = Replacement::create(&path).unwrap();
            new.write_all(text.as_bytes()).unwrap();
            new
        };
        drop(write("unfinished"));
        assert_eq!(names(dir.path()), 0);
        write("old").commit().unwrap();
        drop(write("unfinished"));
        assert_eq!((fs::read_to_string(&path).unwrap(), names(dir.path())), ("old".into(), 1));
        write("new").commit().unwrap();
        assert_eq!((fs::read_to_string(&path).unwrap(), names(dir.path())), ("new".into(), 1));
        assert!(Replacement::create(dir.path()).is_err(), "a directory");
        assert!(Replacement::check(&dir.path().join("none/report.json")).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_and_modes_stay() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("report.json"), dir.path().join("link"));
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        symlink(&path, &link).unwrap();
        let mut new = Replacement::create(&link).unwrap();
        new.write_all(b"new").unwrap();
        new.commit().unwrap();
        assert!(link.is_symlink() && fs::read_to_string(&path).unwrap() == "new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        Replacement::private(&link).unwrap().commit().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        // A path that is no regular file is written directly.
        let full = Path::new("/dev/full");
        if full.exists() {
            let mut new = Replacement::create(full).unwrap();
            new.write_all(b"anything").unwrap();
            assert_eq!(new.commit().unwrap_err().kind(), io::ErrorKind::StorageFull);
        }
    }
}
