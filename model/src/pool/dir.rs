//! A server's files.

use std::fs;
use std::path::{Path, PathBuf};

use super::{PoolError, PoolId};
use crate::Error;

/// A directory with one file per pool, `ID.pool`.
#[derive(Clone, Debug)]
pub struct Pools {
    dir: PathBuf,
    max: usize,
}

impl Pools {
    /// The directory `dir`, made if it is missing, under Unix for its owner alone; at most `max` pools are kept in it.
    pub fn open(dir: &Path, max: usize) -> Result<Self, Error> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(dir).map_err(|source| Error::File { path: dir.into(), source })?;
        Ok(Pools { dir: dir.into(), max })
    }

    /// The file of `id`; its name holds hexadecimal digits alone, whatever a client says.
    pub(crate) fn path(&self, id: PoolId) -> PathBuf {
        self.dir.join(format!("{id}.pool"))
    }

    /// Refuses to keep one more than the limit.
    pub(crate) fn room(&self) -> Result<(), PoolError> {
        let mut kept = 0;
        for entry in fs::read_dir(&self.dir)? {
            kept += usize::from(entry?.path().extension().is_some_and(|ending| ending == "pool"));
        }
        if kept < self.max { Ok(()) } else { Err(PoolError::Full { limit: self.max }) }
    }
}
