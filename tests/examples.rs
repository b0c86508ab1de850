//! The examples that a program copies run against each other.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::support::{home, succeed, text};

/// An example's program. `cargo test --release` builds all of them, and `--test all` alone does not:
/// `cargo build --release --examples`.
pub(crate) fn example(name: &str) -> Command {
    let name = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    let path: PathBuf = Path::new(env!("CARGO_BIN_EXE_waggle")).with_file_name("examples").join(name);
    assert!(path.is_file(), "there is no {}: cargo build --release --examples", path.display());
    let mut command = Command::new(path);
    command.env("WAGGLE_HOME", home());
    command
}

/// `.ci/run outside` builds the copy and runs its tests, which takes minutes.
#[test]
fn the_crate_outside_finds_all_it_names_wherever_it_is_copied() {
    let (root, folder) = (Path::new(env!("CARGO_MANIFEST_DIR")), tempfile::tempdir().unwrap());
    let manifest = folder.path().join("Cargo.toml");
    let outside = std::fs::read_to_string(root.join("examples/outside/Cargo.toml")).unwrap();
    std::fs::write(&manifest, outside.replace("\"../..", &format!("\"{}", root.display()))).unwrap();
    std::fs::copy(root.join("Cargo.lock"), folder.path().join("Cargo.lock")).unwrap();
    std::fs::create_dir_all(folder.path().join("src/bin")).unwrap();
    for entry in std::fs::read_dir(root.join("examples/outside/src/bin")).unwrap().map(Result::unwrap) {
        std::fs::copy(entry.path(), folder.path().join("src/bin").join(entry.file_name())).unwrap();
    }
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let found = succeed(cargo.args(["tree", "--offline", "--prefix", "none", "--manifest-path"]).arg(&manifest));
    for (name, folder) in [("waggle", ""), ("waggle-mpcache", "/mpcache"), ("waggle-model", "/model")] {
        let line = format!("{name} v{} ({}{folder})", env!("CARGO_PKG_VERSION"), root.display());
        assert!(found.lines().any(|found| found.starts_with(&line)), "{line}: {found}");
    }
}

#[test]
fn a_client_of_thirty_lines_talks_to_a_server_of_thirty_lines() {
    let (mut server, mut client) = (example("server"), example("client"));
    let mut server = server
        .args(["shakespeare-gpt2", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    let ["serving", _, "on", address, "with", "the", "key", key] = words[..] else { panic!("{line}") };
    let output = client.args([address, key, "ROMEO:\n"]).output().unwrap();
    // A second signal would end it at once.
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    let (written, cost) = said.rsplit_once('\n').and_then(|(said, _)| said.rsplit_once('\n')).unwrap();
    assert!(written.starts_with("I will") && cost.contains(" bytes to the server, "), "{said}");
}
