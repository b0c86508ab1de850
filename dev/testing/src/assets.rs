//! Models and data that are not in the repository.

use std::io::Write;
use std::path::{Path, PathBuf};

/// The file or folder `path` of the assets: under `$WAGGLE_ASSETS`, or in a folder `shared` beside the repository or
/// one above. If there is none, says so on the terminal; the test that asks is to return at once.
pub fn asset(path: impl AsRef<Path>) -> Option<PathBuf> {
    let path = path.as_ref();
    let found = find(path);
    if found.is_none() {
        let path = path.display();
        let note = format!("\n*** SKIPPED: {path} is neither under $WAGGLE_ASSETS nor under ../shared ***\n\n");
        // Straight to the stream: the test harness would swallow the output of a test that passes. A closed stream
        // is no reason to fail.
        let _ = std::io::stderr().write_all(note.as_bytes());
    }
    found
}

fn find(path: &Path) -> Option<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let named = std::env::var_os("WAGGLE_ASSETS").map(PathBuf::from);
    let beside = ["../../../shared", "../../../../shared"].map(|up| here.join(up));
    named.into_iter().chain(beside).map(|root| root.join(path)).find(|path| path.exists())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::find;

    #[test]
    fn what_is_nowhere_is_not_found() {
        assert_eq!(find(Path::new("no such asset, for the test of the finder")), None);
    }
}
