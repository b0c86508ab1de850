//! Models and data that tests alone need.

use std::path::{Path, PathBuf};

/// The file or folder `path` of this crate's `assets`.
pub fn asset(path: impl AsRef<Path>) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("assets").join(path)
}

/// The file or folder `path` under `$WAGGLE_ASSETS`, which holds what is too large for the repository. A test that
/// uses it is marked as ignored.
///
/// # Panics
/// If the variable is not set.
pub fn large(path: impl AsRef<Path>) -> PathBuf {
    let folder = std::env::var_os("WAGGLE_ASSETS");
    PathBuf::from(folder.expect("WAGGLE_ASSETS names the folder of models that are not in the repository")).join(path)
}
