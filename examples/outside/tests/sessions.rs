//! The client and the server of this crate talk to each other.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

#[test]
fn a_client_of_thirty_lines_talks_to_a_server_of_thirty_lines() {
    let home = tempfile::tempdir().unwrap();
    let mut server = Command::new(env!("CARGO_BIN_EXE_server"))
        .env("WAGGLE_HOME", home.path())
        .args(["shakespeare-gpt2", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    let ["serving", _, "on", address, "with", "the", "key", key] = words[..] else { panic!("{line}") };
    let mut client = Command::new(env!("CARGO_BIN_EXE_client"));
    let output = client.env("WAGGLE_HOME", home.path()).args([address, key, "ROMEO:\n"]).output().unwrap();
    // A second signal would end it at once.
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).unwrap();
    let (written, cost) = said.rsplit_once('\n').and_then(|(said, _)| said.rsplit_once('\n')).unwrap();
    assert!(written.starts_with("I will") && cost.contains(" bytes to the server, "), "{said}");
}
