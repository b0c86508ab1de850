//! Files of the repository and programs in its root.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;

/// Root of the repository.
pub(crate) fn root() -> PathBuf {
    // This crate is a folder of the root.
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_path_buf)
}

/// The text of `path`.
pub(crate) fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|source| Error::File { path: path.into(), source })
}

/// Replaces the text of `path`.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(|source| Error::File { path: path.into(), source })
}

/// `path` as seen from the root.
pub(crate) fn short(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// Writes a line to standard output; nobody need read it.
pub(crate) fn say(line: impl std::fmt::Display) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// What a command line looks like.
fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Shows a command and runs it to its end.
pub(crate) fn succeed(command: &mut Command) -> Result<(), Error> {
    let line = line(command);
    eprintln!("$ {line}");
    let status = command.status().map_err(|source| Error::Start { line: line.clone(), source })?;
    if status.success() { Ok(()) } else { Err(Error::Failed { line }) }
}

/// What a command writes to standard output.
pub(crate) fn output(command: &mut Command) -> Result<String, Error> {
    let line = line(command);
    let output = command.output().map_err(|source| Error::Start { line: line.clone(), source })?;
    if !output.status.success() {
        return Err(Error::Failed { line });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Source files of the repository under `under` (all, if it is empty): those git knows, and new ones that it does not
/// ignore.
pub(crate) fn sources(under: &[PathBuf]) -> Result<Vec<PathBuf>, Error> {
    let root = root();
    let mut git = Command::new("git");
    git.current_dir(&root).args(["ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate", "*.rs"]);
    let all = output(&mut git)?;
    let wanted = |path: &Path| under.is_empty() || under.iter().any(|under| path.starts_with(under));
    Ok(all.lines().map(Path::new).filter(|p| wanted(p)).map(|p| root.join(p)).filter(|p| p.is_file()).collect())
}
