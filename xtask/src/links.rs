//! Links from a document to a file of the repository.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;
use crate::files::{output, read, root, say, short};

/// Refuses links in Markdown files whose files are not there.
pub(crate) fn check() -> Result<(), Error> {
    let mut git = Command::new("git");
    git.current_dir(root()).args(["ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate", "*.md"]);
    let mut count = 0;
    for path in output(&mut git)?.lines().map(|line| root().join(line)).filter(|path| path.is_file()) {
        for target in broken(&path, &read(&path)?) {
            say(format_args!("{}: no {target}", short(&path)));
            count += 1;
        }
    }
    if count == 0 { Ok(()) } else { Err(Error::Found(format!("{count} links to files that are not there"))) }
}

/// Targets in `text`, which stands in the file `path`, that are not there.
fn broken(path: &Path, text: &str) -> Vec<String> {
    let folder = path.parent().map_or_else(PathBuf::new, Path::to_path_buf);
    targets(text).filter(|target| !folder.join(target).exists()).map(String::from).collect()
}

/// Files that a text links to, relative to its own; addresses and places within the text are none.
fn targets(text: &str) -> impl Iterator<Item = &str> {
    let links = text.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(target, _)| target));
    let files = links.map(|link| link.split('#').next().unwrap_or(link));
    files.filter(|link| !link.is_empty() && !link.contains("://") && !link.contains(char::is_whitespace))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_files_without_places_and_addresses() {
        let text = "[a](src/a.rs), [b](https://example.org/b), [c](#c) and [`d`](../d.md#e): `x](y z)`";
        assert_eq!(targets(text).collect::<Vec<_>>(), ["src/a.rs", "../d.md"]);
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
        assert_eq!(broken(&here, "[a](src/main.rs) [b](src/none.rs) [c](src)"), ["src/none.rs"]);
    }
}
