//! The crates of `examples` find all that they name, wherever they are copied.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::support::{program, succeed};

/// An example's program. `cargo test --release` builds all of them, and `--test all` alone does not:
/// `cargo build --release --examples`.
pub(crate) fn example(name: &str) -> Command {
    let name = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    let path: PathBuf = Path::new(env!("CARGO_BIN_EXE_waggle")).with_file_name("examples").join(name);
    assert!(path.is_file(), "there is no {}: cargo build --release --examples", path.display());
    program(path)
}

/// `.ci/run outside` builds the copies and runs their tests, which takes minutes.
#[test]
fn the_crates_outside_find_all_they_name_wherever_they_are_copied() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (example, names) in [
        ("outside", &[("waggle", "/crates/waggle"), ("waggle-cli", "")][..]),
        ("operation", &[("waggle-protocols", "/protocols"), ("waggle-testing", "/dev/testing")]),
    ] {
        let (folder, from) = (tempfile::tempdir().unwrap(), root.join("examples").join(example));
        let manifest = folder.path().join("Cargo.toml");
        let outside = std::fs::read_to_string(from.join("Cargo.toml")).unwrap();
        std::fs::write(&manifest, outside.replace("\"../..", &format!("\"{}", root.display()))).unwrap();
        std::fs::copy(root.join("Cargo.lock"), folder.path().join("Cargo.lock")).unwrap();
        for sources in ["src", "src/bin", "tests"].map(Path::new).into_iter().filter(|dir| from.join(dir).is_dir()) {
            std::fs::create_dir_all(folder.path().join(sources)).unwrap();
            let entries = std::fs::read_dir(from.join(sources)).unwrap().map(Result::unwrap);
            for entry in entries.filter(|entry| entry.path().is_file()) {
                std::fs::copy(entry.path(), folder.path().join(sources).join(entry.file_name())).unwrap();
            }
        }
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        let found = succeed(cargo.args(["tree", "--offline", "--prefix", "none", "--manifest-path"]).arg(&manifest));
        for (name, folder) in names {
            let line = format!("{name} v{} ({}{folder})", env!("CARGO_PKG_VERSION"), root.display());
            assert!(found.lines().any(|found| found.starts_with(&line)), "{line}: {found}");
        }
    }
}
