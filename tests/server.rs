//! One server and many clients: who is served, who waits, who is sent away, and how it ends.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::{Ended, LIMIT, Process, Server, fail, fails, json, of, succeed, until, waggle};
use serde_json::Value;

const MODEL: &str = "--model shakespeare-gpt2";
const SHORT: &str = "--prompt-ids 30,27,25 --tokens 2";
const LONG: &str = "--prompt-ids 30,27,25 --tokens 200";

/// A client that runs.
fn client(server: &Server, arguments: &str) -> Process {
    Process::start(&mut server.client(arguments))
}

#[test]
fn one_server_takes_plain_and_prepared_sessions() {
    let dir = tempfile::tempdir().unwrap();
    let with_pools = format!("{MODEL} --pools {}", dir.path().join("kept").display());
    for arguments in [MODEL, &with_pools] {
        let server = Server::start(arguments);
        let plain = json(&mut server.client(SHORT));
        let prepared = json(&mut server.client(&format!("{SHORT} --preprocess")));
        assert_eq!(plain["tokens"], prepared["tokens"]);
        let offline = |report: &Value| report["phases"]["offline"]["bytes_client_to_server"].as_u64().unwrap();
        assert!(offline(&prepared) > 2 * offline(&plain), "{arguments}");
    }
    // A server that is told decides.
    let server = Server::start(&format!("{MODEL} --preprocess true"));
    let refused = fail(&mut server.client(SHORT), 1);
    assert!(
        refused.contains("the server refuses: this server runs sessions with `preprocess` true only"),
        "{refused}"
    );
}

#[test]
fn clients_wait_their_turn_and_leave_the_queue_at_once() {
    let server = Server::start(&format!("{MODEL} --sessions 1 --queue 2"));
    let first = client(&server, LONG);
    server.wait_for("session begins");
    let second = client(&server, SHORT);
    second.wait_for("this client waits");
    // Its time-out is shorter than the wait, but begins only when it is served.
    let third = client(&server, &format!("{SHORT} --timeout 8"));
    // How many wait is the server's to know.
    let told = third.wait_for("the server is busy: this client waits");
    assert!(!told.contains("number"), "{told}");
    let refused = fail(&mut server.client(SHORT), 1);
    assert!(refused.contains("this server is busy: 2 clients wait already"), "{refused}");
    drop(second);
    server.wait_for("the client left the queue");
    std::thread::sleep(Duration::from_secs(9));
    // A client that leaves during its session frees its place as well.
    drop(first);
    let served = third.end(LIMIT);
    assert_eq!((served.code, served.text.len()), (Some(0), "Xy\n".len()), "{}", served.errors);
    // The client is done before the server has written about it.
    server.wait_for("2 tokens generated");
    let log = server.stop();
    for words in ["the client left the queue", "outcome=\"refused\""] {
        assert!(log.contains(words), "{words} in\n{log}");
    }
}

#[test]
fn a_session_has_a_limit_and_so_has_a_key() {
    let server =
        Server::start(&format!("{MODEL} --link wan --session-limit 20 --sessions 2 --max-sessions-per-key 1"));
    let long = client(&server, &format!("{LONG} --link wan"));
    server.wait_for("session begins");
    fails(&mut server.client(&format!("{SHORT} --link wan")), 1, ["this key has 1 sessions here already"]);
    assert_eq!(long.end(LIMIT).code, Some(1));
    server.wait_for("the session took longer than 20 s");
}

/// Whether the server closes the connection within this time.
fn closed_within(mut stream: &TcpStream, limit: Duration) -> bool {
    stream.set_read_timeout(Some(limit)).unwrap();
    // An alert of TLS that the server sends before does not matter.
    let start = Instant::now();
    loop {
        match stream.read(&mut [0; 64]) {
            Ok(0) => return true,
            Ok(_) if start.elapsed() < limit => {}
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => return true,
            _ => return false,
        }
    }
}

#[test]
fn connections_without_a_key_are_few_and_short() {
    let server = Server::start(&format!("{MODEL} --handshake-timeout 20 --max-idle-per-address 2"));
    let connect = || TcpStream::connect(&server.address).unwrap();
    let start = Instant::now();
    let (silent, mut slow) = (connect(), connect());
    let third = connect();
    assert!(closed_within(&third, Duration::from_secs(15)), "a third one is dropped at once");
    // Bytes that trickle do not extend the limit.
    std::thread::spawn(move || {
        let record = [0x16, 3, 1, 0, 200];
        while start.elapsed() < LIMIT && slow.write_all(&record[..1]).is_ok() {
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    assert!(closed_within(&silent, LIMIT));
    assert!(start.elapsed() > Duration::from_secs(19), "not before its time");
    let log = server.wait_for("within 20.0 s during `tls`");
    assert!(!log.contains("panicked"), "{log}");
    until(|| succeed(&mut server.client(SHORT)).contains('\n').then_some(()));
}

#[cfg(unix)]
#[test]
fn sigterm_finishes_what_runs() {
    let server = Server::start(&format!("{MODEL} --sessions 1"));
    let running = client(&server, "--prompt-ids 30,27,25 --tokens 30");
    server.wait_for("session begins");
    let waiting = client(&server, SHORT);
    waiting.wait_for("this client waits");
    server.signal("TERM");
    server.wait_for("SIGTERM: what runs is finished");
    let sent_away = waiting.end(LIMIT);
    assert!(sent_away.code == Some(1) && sent_away.errors.contains("this server is ending"), "{}", sent_away.errors);
    fails(&mut server.client(SHORT), 1, ["this server is ending"]);
    let finished = running.end(LIMIT);
    assert_eq!((finished.code, finished.text.trim_end_matches('\n').chars().count()), (Some(0), 30));
    let Ended { code, errors: log, .. } = server.end(LIMIT);
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("30 tokens generated") && log.trim_end().ends_with("the end"), "{log}");
}

#[cfg(unix)]
#[test]
fn a_second_signal_ends_at_once() {
    let server = Server::start(MODEL);
    let running = client(&server, LONG);
    server.wait_for("session begins");
    server.signal("INT");
    server.wait_for("SIGINT: what runs is finished");
    server.signal("TERM");
    assert_eq!(server.end(LIMIT).code, Some(128 + 15));
    assert_eq!(running.end(LIMIT).code, Some(1));
}

#[test]
fn nothing_that_happens_to_its_output_ends_a_server() {
    let (reader, closed) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = waggle(&format!("serve --listen 127.0.0.1:0 {MODEL}"));
    let mut server = Server::run(command.stderr(closed));
    drop(server.child.stdout.take());
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: bees\r\n\r\n").unwrap();
    assert!(closed_within(&stream, LIMIT));
    succeed(&mut server.client(SHORT));
    assert!(server.runs());
}

#[test]
fn the_log_is_json_on_request() {
    let server = Server::start(&format!("{MODEL} --once --log debug --log-format json"));
    succeed(&mut server.client(SHORT));
    let Ended { code, errors: log, .. } = server.end(LIMIT);
    assert_eq!(code, Some(0), "{log}");
    let events: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let done = events.iter().find(|event| event["message"] == "2 tokens generated").expect(&log);
    assert_eq!((&done["level"], &done["tokens"]), (&"INFO".into(), &2.into()));
    assert!(done["span"]["key"].as_str().unwrap().starts_with("ed25519:"), "{done}");
    assert!(events.iter().any(|event| event["level"] == "DEBUG"));
}

/// Bytes that a session sent this way.
fn sent(report: &Value, way: &str) -> u64 {
    let of = |phase| report["phases"][phase][format!("bytes_{way}")].as_u64().unwrap();
    ["setup", "offline", "prefill", "decode"].map(of).into_iter().sum()
}

#[test]
fn the_metrics_count_sessions_and_bytes() {
    // A session that is refused counts on the wire alone, where it measures the link, too.
    let server = Server::start(&format!("{MODEL} --metrics 127.0.0.1:0 --max-tokens 2 --plan-for lan"));
    let log = server.wait_for("metrics at http://");
    let address = log.split("http://").nth(1).unwrap().split('/').next().unwrap().to_owned();
    let connect = || TcpStream::connect(&address).unwrap();
    let page = || {
        let mut stream = connect();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: bees\r\n\r\n").unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        page
    };
    let number = |page: &str, name: &str| -> f64 {
        let line = page.lines().find_map(|line| line.strip_prefix(name)).expect(page);
        line.trim().parse().unwrap()
    };
    // Silent readers, more than there are places, hold up no others.
    let silent: Vec<_> = (0..100).map(|_| connect()).collect();
    assert_eq!(number(&page(), "waggle_sessions_running"), 0.0);
    drop(silent);
    let report = json(&mut server.client(SHORT));
    fail(&mut server.client("--prompt-ids 1 --tokens 3"), 1);
    server.wait_for("more than the 2");
    let page = until(|| Some(page()).filter(|page| page.contains("outcome=\"refused\"} 1")));
    assert_eq!(number(&page, "waggle_sessions_total{outcome=\"generated\"}"), 1.0);
    assert_eq!(number(&page, "waggle_tokens_total"), 2.0);
    assert_eq!(number(&page, "waggle_clients_waiting"), 0.0);
    for way in ["client_to_server", "server_to_client"] {
        let sum = sent(&report, way);
        let booked = number(&page, &format!("waggle_protocol_bytes_total{{direction=\"{way}\"}}"));
        assert_eq!(booked, sum as f64, "{way}");
        let wire = number(&page, &format!("waggle_wire_bytes_total{{direction=\"{way}\"}}"));
        assert!(wire > booked && wire < 1.02 * booked + 50_000.0, "{wire} on the wire, {booked} booked");
    }
    assert!(number(&page, "waggle_phase_seconds_total{phase=\"prefill\"}") > 0.0);
}

#[test]
fn strangers_are_told_how_to_be_trusted() {
    let dir = tempfile::tempdir().unwrap();
    let (home, allow) = (dir.path().join("home"), dir.path().join("allowed"));
    let server = Server::start(&format!("{MODEL} --allow {}", allow.display()));
    let client = |arguments: &str| of(server.client(arguments), &home);

    let unknown = fail(&mut client(SHORT), 1);
    let key = unknown.split("--server-key ").nth(1).expect(&unknown).trim().to_owned();
    let trusting = format!("{SHORT} --server-key {key}");
    let stranger = fail(&mut client(&trusting), 1);
    let own = succeed(&mut of(waggle("keygen"), &home));
    assert!(stranger.contains(&format!("adds the line: {}", own.trim())), "{stranger}");
    let log = server.wait_for("client with unknown key refused");
    let advice = format!("add the line {} to {}", own.trim(), allow.display());
    assert!(log.contains(&advice), "{log}");
    // The list is read for every client.
    std::fs::write(&allow, format!("{} a friend\n", own.trim())).unwrap();
    succeed(&mut client(&trusting));
    succeed(&mut client(SHORT));
    assert_eq!(log.lines().filter(|line| line.contains(&advice)).count(), 1, "one line: {log}");
}

#[test]
fn pools_belong_to_a_key_and_are_counted_by_it() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let server = Server::start(&format!("{MODEL} --allow-any --max-pools 1 --pools {}", at("kept").display()));
    let log = server.wait_for("with the key ed25519:");
    let key = log.split("with the key ").nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
    let fill = |pool: &Path| {
        waggle(&format!(
            "preprocess --connect {} --server-key {key} --prompt-len 3 --tokens 2 --pool {}",
            server.address,
            pool.display()
        ))
    };
    let spend = |pool: &Path| server.client(&format!("{SHORT} --server-key {key} --pool {}", pool.display()));
    succeed(&mut fill(&at("a")));
    let full = fail(&mut fill(&at("b")), 1);
    assert!(full.contains("the server refuses") && !at("b").exists(), "{full}");
    // Another key has room of its own, and cannot use what is not its own.
    let home = at("home");
    succeed(&mut of(fill(&at("c")), &home));
    let refused = fail(&mut of(spend(&at("a")), &home), 1);
    assert!(refused.contains("refuse") || refused.contains("made for another session"), "{refused}");
    let plain = succeed(&mut server.client(&format!("{SHORT} --server-key {key}")));
    assert_eq!(succeed(&mut spend(&at("a"))), plain, "its owner still can");
    succeed(&mut fill(&at("b")));
}

/// Five positions: the last of the prompt gives the first token.
#[test]
fn a_key_has_positions_up_to_its_limit() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    let start =
        || Server::run(&mut of(waggle(&format!("serve --listen 127.0.0.1:0 {MODEL} --max-reveals 9")), &home));
    let client = |server: &Server, more: &str| of(server.client(&format!("--prompt-ids 30,27,25 {more}")), &home);
    let server = start();
    succeed(&mut client(&server, "--tokens 3 --reveal token"));
    let refused = fail(&mut client(&server, "--tokens 3"), 1);
    let words = "5 more positions would exceed the 9 that this key may have in all; it has had 5";
    assert!(refused.contains(words), "{refused}");
    drop(server);
    // A new process remembers.
    let server = start();
    assert!(fail(&mut client(&server, "--tokens 3"), 1).contains(words));
    succeed(&mut client(&server, "--tokens 2"));
    assert!(fail(&mut client(&server, "--tokens 1"), 1).contains("it has had 9"));
}

/// Texts side by side count each.
#[test]
fn every_text_counts_towards_what_a_key_has() {
    let home = tempfile::tempdir().unwrap();
    let serve = format!("serve --listen 127.0.0.1:0 {MODEL} --max-reveals 11");
    let server = Server::run(&mut of(waggle(&serve), home.path()));
    let client = |samples: usize| {
        let asked = format!("--prompt-ids 30,27,25 --tokens 2 --samples {samples}");
        of(server.client(&asked), home.path())
    };
    succeed(&mut client(2));
    let refused = fail(&mut client(1), 1);
    assert!(refused.contains("4 more positions would exceed the 11"), "{refused}");
    assert!(refused.contains("it has had 8"), "{refused}");
}

/// A stranger may have 5 % of the positions that give the model away, those of earlier releases among them.
#[test]
fn the_quota_of_a_stranger_follows_from_the_model() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [theirs, ours] = dirs.each_ref().map(|dir| dir.path());
    let [key, stranger] = [theirs, ours].map(|home| succeed(&mut of(waggle("keygen"), home)).trim().to_owned());
    let accounts = format!(r#"{{"{key}": {{"revealed": 314}}, "{stranger}": {{"revealed": 310}}}}"#);
    std::fs::write(theirs.join("accounts.json"), accounts).unwrap();
    let serve = |more: &str| {
        Server::run(&mut of(waggle(&format!("serve --allow-any --listen 127.0.0.1:0 {MODEL} {more}")), theirs))
    };
    let client = |server: &Server, home: &Path| of(server.client(&format!("{SHORT} --server-key {key}")), home);
    let server = serve("");
    // 4 layers of 128 -> 384, 128 -> 128, 128 -> 512 and 512 -> 128, and a head of 128 inputs.
    let log = server.wait_for("positions, read or generated");
    assert!(log.contains("own may have 314 positions") && log.contains("of the 6272 whose logits"), "{log}");
    succeed(&mut client(&server, ours));
    fails(&mut client(&server, ours), 1, ["4 more positions would exceed the 314", "it has had 314"]);
    succeed(&mut client(&server, theirs));
    drop(server);
    succeed(&mut client(&serve("--max-reveals unlimited"), ours));
}

#[test]
fn a_stranger_learns_tokens_unless_the_owner_permits_logits() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [theirs, ours] = dirs.each_ref().map(|dir| dir.path());
    let key = succeed(&mut of(waggle("keygen"), theirs));
    let serve = |more: &str| {
        Server::run(&mut of(waggle(&format!("serve --allow-any --listen 127.0.0.1:0 {MODEL} {more}")), theirs))
    };
    let client = |server: &Server, home: &Path, more: &str| {
        of(server.client(&format!("{SHORT} --server-key {} {more}", key.trim())), home)
    };
    let revealed = |command: &mut Command| json(command)["options"]["reveal"].as_str().unwrap().to_owned();
    let server = serve("");
    assert_eq!(revealed(&mut client(&server, ours, "")), "token");
    assert_eq!(revealed(&mut client(&server, ours, "--preprocess --temperature 0.8 --seed 1")), "token");
    assert_eq!(revealed(&mut client(&server, theirs, "")), "logits");
    assert_eq!(revealed(&mut client(&server, theirs, "--reveal token")), "token");
    for (more, words) in [
        ("--reveal logits", "the server reveals tokens alone to this key"),
        ("--temperature 0.8 --top-p 0.5", "top-p needs a session that reveals logits"),
        ("--temperature 17", "a temperature above 16 needs"),
    ] {
        fails(&mut client(&server, ours, more), 1, [words]);
    }
    let server = serve("--reveal logits");
    assert_eq!(revealed(&mut client(&server, ours, "--temperature 0.8 --top-p 0.5")), "logits");
    assert_eq!(revealed(&mut client(&server, ours, "--reveal token")), "token");
    let server = serve("--reveal token");
    fails(&mut client(&server, theirs, "--reveal logits"), 1, ["tokens alone"]);
    // Nobody proves a key without encryption.
    let server =
        Server::run(&mut of(waggle(&format!("serve --listen 127.0.0.1:0 {MODEL} --insecure-plaintext")), theirs));
    assert_eq!(revealed(&mut of(server.client(&format!("{SHORT} --insecure-plaintext")), ours)), "logits");
}

#[test]
fn a_report_says_what_the_link_sent() {
    for (option, encrypted) in [("", true), (" --insecure-plaintext", false)] {
        let report = json(&mut waggle(&format!("demo {SHORT}{option}")));
        let sent = sent(&report, "client_to_server");
        let wire = &report["wire"];
        assert_eq!(wire["encrypted"], encrypted);
        let on_the_wire = wire["bytes_sent"].as_u64().unwrap();
        // The last message may still be on its way.
        assert!(on_the_wire + 100 > sent && on_the_wire < sent + sent / 50 + 50_000, "{on_the_wire} of {sent}");
    }
    let memory = json(&mut waggle(&format!("demo --link memory {SHORT}")));
    assert!(memory.get("wire").is_none());
}
