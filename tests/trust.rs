//! No process trusts another unless it is told to: changed keys, wrong keys and a party in plaintext are refused.

use std::fs;
use std::path::Path;

use crate::support::*;

const SHORT: &str = "--prompt-ids 1,2 --tokens 1 --timeout 60";

/// A server of `home` that lets nobody in but itself.
fn serve(home: &Path, arguments: &str) -> Server {
    Server::start_of(home, &format!("--model shakespeare-gpt2 {arguments}"))
}

#[test]
fn a_changed_key_is_refused_until_it_is_given() {
    let dir = tempfile::tempdir().unwrap();
    let [host, client] = ["host", "client"].map(|name| dir.path().join(name));
    let (server, now) = (serve(&host, ""), key(&host));
    assert_eq!(key(&host), now, "keygen makes a key once");
    let old = format!("ed25519:{}", "0d".repeat(32));
    fs::create_dir(&client).unwrap();
    let known = client.join("known_servers");
    fs::write(&known, format!("# mine\n{} {old} pin\n", server.address)).unwrap();

    let error = fail(&mut of(server.client(SHORT), &client), 1);
    assert!(error.contains("HAS CHANGED") && error.contains(&old), "{error}");
    assert!(error.contains(&format!("--server-key {now}")) && error.lines().count() == 1, "{error}");
    assert!(fs::read_to_string(&known).unwrap().contains(&old), "nothing is remembered of a refused key");

    // The user gives it: it is remembered, without the pin of the other one. The server then refuses the stranger.
    fails(&mut of(server.client(&format!("{SHORT} --server-key {now}")), &client), 1, ["the server refused"]);
    assert_eq!(fs::read_to_string(&known).unwrap(), format!("# mine\n{} {now}\n", server.address));
    fails(&mut of(server.client(SHORT), &client), 1, ["the server refused"]);
}

#[test]
fn another_key_than_the_given_one_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let [host, client] = ["host", "client"].map(|name| dir.path().join(name));
    let server = serve(&host, "");
    // Not even the key known for the address counts, nor the client's own.
    let error = fail(&mut of(server.client(&format!("{SHORT} --server-key {}", key(&client))), &host), 1);
    assert!(error.contains(&key(&host)) && error.contains("--server-key"), "{error}");
    assert!(!host.join("known_servers").exists(), "a key that was not proved is remembered");
}

#[test]
fn nobody_falls_back_to_plaintext() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    let encrypted = serve(&home, "");
    fails(&mut of(encrypted.client(&format!("{SHORT} --insecure-plaintext")), &home), 1, ["the peer encrypts"]);
    let plain = serve(&home, "--insecure-plaintext");
    let error = fail(&mut of(plain.client(SHORT), &home), 1);
    let told = "the peer closed the connection during `tls`; perhaps the server runs in plaintext";
    assert!(error.contains("is one party run in plaintext?") || error.contains(told), "{error}");
}

/// A word that is neither true nor false must not open a server; a variable says what an option says.
#[test]
fn a_variable_that_says_no_turns_no_protection_off() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    for (variable, value) in [("WAGGLE_ALLOW_ANY", "off"), ("WAGGLE_INSECURE_PLAINTEXT", "no")] {
        let command = waggle("serve --listen 127.0.0.1:0 --model shakespeare-gpt2 --once");
        let ended = Process::start(of(command, &home).env(variable, value)).end(LIMIT);
        let error = ended.errors;
        assert_eq!(ended.code, Some(2), "{error}");
        let option = format!("--{}'", variable.trim_start_matches("WAGGLE_").replace('_', "-").to_lowercase());
        assert!(error.contains(&format!("invalid value '{value}' for '{option}")), "{error}");
    }
}

#[test]
fn a_server_says_what_protection_is_off() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    for (option, words) in [
        ("--allow-any", "every client that proves any key is let in"),
        ("--insecure-plaintext", "nothing is encrypted, and everybody is let in"),
    ] {
        let log = serve(&home, option).wait_for("serving");
        assert!(log.lines().any(|line| line.contains(" WARN ") && line.ends_with(words)), "{log}");
        let log = serve(&home, &format!("{option} --log-format json")).wait_for("serving");
        let warned = |line: &str| {
            let event: serde_json::Value = serde_json::from_str(line).unwrap();
            event["level"] == "WARN" && event["message"] == words
        };
        assert!(log.lines().any(warned), "{log}");
    }
    let log = serve(&home, "").wait_for("serving");
    assert!(!log.contains("WARN"), "{log}");
}

/// Whoever may add a line to a list of keys decides who is trusted.
#[cfg(unix)]
#[test]
fn lists_that_others_may_write_are_refused() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let [home, allow] = ["home", "allow"].map(|name| dir.path().join(name));
    fs::write(&allow, "").unwrap();
    let server = serve(&home, &format!("--allow {}", allow.display()));
    let (known, own) = (home.join("known_servers"), key(&home));
    let generate = || of(server.client(&format!("{SHORT} --server-key {own}")), &home);
    succeed(&mut generate());
    let mode = |path: &Path, mode: u32| fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    for (path, open, closed) in [(&known, 0o666, 0o600), (&known, 0o620, 0o600), (&home, 0o777, 0o700)] {
        mode(path, open);
        fails(&mut generate(), 1, [&format!("{}: others may write here", path.display())]);
        mode(path, closed);
    }
    // A server looks at its list for every client, and when it starts.
    mode(&allow, 0o666);
    fails(&mut generate(), 1, ["the server refused: it cannot tell who may come in"]);
    server.wait_for(&format!("{}: others may write here", allow.display()));
    let line = format!("serve --listen 127.0.0.1:0 --model shakespeare-gpt2 --once --allow {}", allow.display());
    let errors = Process::start(&mut of(waggle(&line), &home)).end(LIMIT).errors;
    assert!(errors.contains("others may write here"), "{errors}");
    mode(&allow, 0o644);
    succeed(&mut generate());
}

/// Text over a plaintext link is compared at its end, so a reader of standard output must hear it before the text.
#[test]
fn text_of_a_plaintext_link_is_declared_unverified() {
    let home = tempfile::tempdir().unwrap();
    let warning = "--insecure-plaintext: nothing is encrypted, and the text is unverified until it has ended\n";
    for option in ["", "--insecure-plaintext"] {
        let server = serve(home.path(), option);
        fs::write(home.path().join("lines"), "ROMEO:\n").unwrap();
        for line in [
            format!("generate --connect {} --prompt-ids 30,27,25 --tokens 2 {option}", server.address),
            format!("chat --connect {} --turns lines --tokens 2 {option}", server.address),
            format!("demo --prompt-ids 30,27,25 --tokens 2 {option}"),
        ] {
            // One pipe for both, so that the order shows.
            let (reader, writer) = std::io::pipe().unwrap();
            let mut command = of(waggle(&line), home.path());
            command.current_dir(home.path());
            let mut child = command.stdout(writer.try_clone().unwrap()).stderr(writer).spawn().unwrap();
            drop(command);
            let written = std::io::read_to_string(reader).unwrap();
            assert!(child.wait().unwrap().success(), "{line}: {written}");
            assert_eq!(written.contains(warning), !option.is_empty(), "{line}: {written}");
            assert_eq!(written.starts_with(warning), !option.is_empty(), "{line}: {written}");
        }
    }
}
