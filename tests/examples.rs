//! The examples that a program copies run against each other.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::support::{home, text};

/// An example's program; `cargo test --release` builds all of them, and one test program alone does not.
fn example(name: &str) -> Command {
    let file = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    let path: PathBuf = Path::new(env!("CARGO_BIN_EXE_waggle")).with_file_name("examples").join(file);
    assert!(path.is_file(), "there is no {}: cargo build --release --example {name}", path.display());
    let mut command = Command::new(path);
    command.env("WAGGLE_HOME", home());
    command
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
