//! Every failure ends with an error that says so, and a server goes on.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::support::{Ended, LIMIT, Process, Server, copy_model, fail, fails, limited, succeed, synthesise, waggle};
#[cfg(target_os = "linux")]
use crate::support::{children, signal, until};

/// Read time-out of the parties under test.
const TIMEOUT: f64 = 3.0;

const LONG: &str = "--prompt-ids 30,27,25 --tokens 200";

/// Starts both parties on a long generation.
fn parties() -> (Server, Process) {
    let server = Server::start(&format!("--model shakespeare-gpt2 --once --timeout {TIMEOUT}"));
    let mut client = server.client(&format!("{LONG} --timeout {TIMEOUT} --connect-timeout {TIMEOUT}"));
    (server, Process::start(&mut client))
}

fn assert_names_the_step(errors: &str) {
    let lines: Vec<&str> = errors.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(lines.len(), 1, "one line: {errors}");
    let told = ["closed the connection during `", "s during `"].iter().any(|words| lines[0].contains(words));
    assert!(told, "{errors}");
    assert!(!errors.contains("panicked"), "{errors}");
}

/// Moments in set-up, prefill and decode.
const MOMENTS: [u64; 4] = [5, 120, 600, 2500];

#[test]
fn a_client_ends_when_its_server_dies() {
    for moment in MOMENTS {
        let (server, client) = parties();
        std::thread::sleep(Duration::from_millis(moment));
        drop(server);
        let Ended { code, errors, .. } = client.end(LIMIT);
        assert_eq!(code, Some(1), "after {moment} ms");
        // The earliest death may precede the connection.
        if !errors.contains("cannot connect") {
            assert_names_the_step(&errors);
        }
    }
}

#[test]
fn a_server_ends_when_its_client_dies() {
    for moment in MOMENTS {
        let (server, client) = parties();
        // A client that leaves earlier had no session, and the server waits for another.
        server.wait_for("session begins");
        std::thread::sleep(Duration::from_millis(moment));
        drop(client);
        let Ended { code, errors, .. } = server.end(LIMIT);
        assert_eq!(code, Some(1), "after {moment} ms");
        // Between two steps a server looks whether its client has left, and then names none.
        if !errors.contains("outcome=\"left\"") {
            assert_names_the_step(&errors);
        }
        assert!(errors.contains("session with 127.0.0.1:"), "{errors}");
    }
}

#[test]
fn a_client_says_that_nobody_answers_yet() {
    let mut client = waggle("generate --connect 127.0.0.1:1 --prompt-ids 3 --tokens 1 --connect-timeout 4");
    fails(&mut client, 1, ["nobody answers at 127.0.0.1:1 yet: is `waggle serve` running", "cannot connect"]);
}

#[cfg(unix)]
#[test]
fn a_silent_peer_is_given_up() {
    let (server, client) = parties();
    std::thread::sleep(Duration::from_millis(800));
    server.signal("STOP");
    let start = Instant::now();
    let output = client.end(LIMIT);
    assert!(start.elapsed() > Duration::from_secs_f64(TIMEOUT - 1.0), "a stopped process closes nothing");
    assert_eq!(output.code, Some(1));
    assert_names_the_step(&output.errors);
}

/// Only Linux tells the children of a process.
#[cfg(target_os = "linux")]
#[test]
fn a_demo_ends_when_its_server_dies() {
    let client = Process::start(&mut waggle(&format!("demo {LONG} --timeout {TIMEOUT}")));
    std::thread::sleep(Duration::from_millis(1500));
    let (server, _) = children(client.child.id()).pop_first().expect("the demo has a child");
    signal(server, "KILL");
    let output = client.end(LIMIT);
    assert_eq!(output.code, Some(1));
    assert!(output.errors.contains("the server's process failed"), "{}", output.errors);
}

/// The files under `dir`.
#[cfg(target_os = "linux")]
fn files(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let Ok(found) = std::fs::read_dir(dir) else { return Vec::new() };
    let paths = found.flatten().map(|file| file.path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Weights of a large model are made in a child, and written under a temporary name.
#[cfg(target_os = "linux")]
#[test]
fn what_a_command_began_ends_with_it() {
    for name in ["TERM", "INT", "KILL"] {
        let temporary = tempfile::tempdir().unwrap();
        let run = Process::start(waggle("reproduce bumblebee 1 --run").env("TMPDIR", temporary.path()));
        let begun = || !files(temporary.path()).is_empty();
        let child = until(|| children(run.child.id()).into_keys().next().filter(|_| begun()));
        run.signal(name);
        let code = run.end(LIMIT).code;
        let stat = format!("/proc/{child}/stat");
        until(|| std::fs::read_to_string(&stat).map_or(Some(()), |stat| stat.contains(") Z ").then_some(())));
        if name != "KILL" {
            assert_eq!(code, Some(if name == "TERM" { 143 } else { 130 }));
            assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0, "{:?}", files(temporary.path()));
        }
        let out = temporary.path().join("model");
        let synth = Process::start(&mut waggle(&format!("synth --config llama-2-7b --out {}", out.display())));
        let unfinished = || files(&out).into_iter().find(|file| file.extension().is_some_and(|end| end == "tmp"));
        until(unfinished);
        if name != "KILL" {
            synth.signal(name);
            synth.end(LIMIT);
            assert_eq!(unfinished(), None);
        }
    }
}

/// The server's process has no descriptor for a connection, and does not wait until it has one.
#[cfg(unix)]
#[test]
fn a_demo_without_descriptors_ends_at_once() {
    let line = "demo --model shakespeare-gpt2 --prompt-ids 1 --tokens 1 --timeout 3600";
    let output = Process::start(&mut limited("ulimit -n 6", line)).end(LIMIT);
    assert_eq!(output.code, Some(1), "{}", output.errors);
    assert!(output.errors.contains("Too many open files"), "{}", output.errors);
}

/// `demo` finds what `serve` finds, over a link and in memory.
#[test]
fn a_demo_checks_ranges_as_a_server_does() {
    let dir = tempfile::tempdir().unwrap();
    copy_model("shakespeare-gpt2", dir.path());
    let path = dir.path().join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..end]).unwrap();
    let (_, bias) =
        header.as_object().unwrap().iter().find(|(name, _)| name.ends_with("h.0.attn.c_attn.bias")).unwrap();
    let [from, to] = [0, 1].map(|i| end + bias["data_offsets"][i].as_u64().unwrap() as usize);
    // 1024 in each of the types: queries and keys whose scores are far above 2048.
    let value: &[u8] = match bias["dtype"].as_str().unwrap() {
        "F32" => &[0, 0, 0x80, 0x44],
        "F16" => &[0, 0x64],
        other => panic!("{other}"),
    };
    bytes[from..to].chunks_exact_mut(value.len()).for_each(|place| place.copy_from_slice(value));
    std::fs::write(&path, bytes).unwrap();
    let model = dir.path().display();
    let why = "leaves the range of an operation";
    fails(&mut waggle(&format!("serve --listen 127.0.0.1:0 --model {model}")), 1, [why, "layer 0"]);
    for link in ["loopback", "memory"] {
        let line = format!("demo --model {model} --prompt-ids 1 --tokens 1 --link {link}");
        fails(&mut waggle(&line), 1, [why, "layer 0"]);
        succeed(&mut waggle(&format!("{line} --skip-range-check")));
    }
}

/// A pipe that nobody writes to, and a device without an end.
#[cfg(unix)]
#[test]
fn what_is_no_regular_file_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for special in [&pipe, std::path::Path::new("/dev/zero")] {
        let model = tempfile::tempdir_in(dir.path()).unwrap();
        std::os::unix::fs::symlink(special, model.path().join("config.json")).unwrap();
        let (special, out) = (special.display(), dir.path().join("out"));
        for line in [
            format!("keygen --identity {special}"),
            format!("serve --listen 127.0.0.1:0 --model shakespeare-gpt2 --allow {special}"),
            format!("float --prompt-ids 1 --tokens 1 --model {}", model.path().display()),
            format!("float --tokens 1 --prompt-file {special}"),
            format!("generate --connect 127.0.0.1:1 --tokenizer {special}"),
            format!("generate --connect 127.0.0.1:1 --expect {}", model.path().display()),
            format!("synth --config {special} --out {}", out.display()),
            format!("report {special}"),
            format!("compare {special} {special}"),
            format!("plot {special} --out {}", out.display()),
            format!("eval --text {special}"),
            format!("plan --calibration {special}"),
        ] {
            let Ended { code, errors: error, .. } = Process::start(&mut waggle(&line)).end(LIMIT);
            assert_eq!(code, Some(1), "{line}: {error}");
            assert!(error.contains("not a regular file"), "{line}: {error}");
        }
    }
}

/// Bytes of a frame of `len` bytes for `step`, as `net` writes them.
fn frame_header(len: u32, step: &str) -> Vec<u8> {
    let tag = step.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    [len.to_le_bytes(), tag.to_le_bytes()].concat()
}

#[test]
fn a_server_outlives_clients_that_misbehave() {
    let server = Server::start(
        "--model shakespeare-gpt2 --timeout 1 --handshake-timeout 1 --max-prompt 8 --max-tokens 4 --sessions 1",
    );
    let connect = || TcpStream::connect(&server.address).unwrap();
    let send = |bytes: &[u8]| {
        let mut stream = connect();
        // The server may have left already.
        let _ = stream.write_all(bytes);
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    };
    drop(connect());
    send(b"GET / HTTP/1.1\r\nHost: bees\r\n\r\n");
    send(&frame_header(u32::MAX, "handshake"));
    let mut nonsense = frame_header(72, "handshake");
    nonsense.extend(b"WAGGLE\x01\x00");
    nonsense.extend([0xff; 64]);
    send(&nonsense);
    let mut truncated = frame_header(5000, "handshake");
    truncated.extend(b"WAGGLE\x01\x00\xff\xff");
    send(&truncated);
    // Says nothing at all, until the server has had enough.
    let silent = connect();

    let honest = || server.client("--prompt-ids 30,27,25 --tokens 2");
    assert_eq!(succeed(&mut honest()).len(), "Xy\n".len());
    server.wait_for("within 1.0 s during `tls`");
    drop(silent);

    let error = fail(&mut server.client("--prompt-ids 30,27,25 --tokens 5"), 1);
    assert!(error.contains("the server refuses: 5 tokens to generate are more than the 4"), "{error}");
    let error = fail(&mut server.client("--prompt-ids 1,1,1,1,1,1,1,1,1 --tokens 1"), 1);
    assert!(error.contains("9 tokens of a prompt are more than the 8"), "{error}");
    let killed = Process::start(&mut server.client("--prompt-ids 30,27,25 --tokens 4"));
    std::thread::sleep(Duration::from_millis(300));
    drop(killed);
    succeed(&mut honest());

    let errors = server.stop();
    for words in ["begins with `GET / HT`", "does not speak TLS"] {
        assert!(errors.contains(words), "{words} in\n{errors}");
    }
    assert!(!errors.contains("panicked"), "{errors}");
}

#[test]
fn parties_that_differ_both_say_where() {
    let server = Server::start("--model shakespeare-gpt2 --masks sent --reveal token");
    let lines = ["ot: client says softspoken8, server says silent", "masks: client says seeded, server says sent"];
    let client = fail(&mut server.client("--ot softspoken8 --prompt-ids 1 --tokens 1"), 1);
    let alone = fail(&mut server.client("--masks sent --reveal logits --prompt-ids 1 --tokens 1"), 1);
    assert!(alone.contains("the server reveals tokens alone to this key"), "{alone}");
    let error = fail(&mut server.client("--masks sent --expect shakespeare-llama --prompt-ids 1 --tokens 1"), 1);
    assert!(error.contains("model: client says {\"model_type\":\"llama\""), "{error}");
    succeed(&mut server.client("--masks sent --expect shakespeare-gpt2 --prompt-ids 1 --tokens 1"));
    let server = server.wait_for("model: client says");
    for line in lines {
        assert!(client.contains(line) && server.contains(line), "{line} in\n{client}\nand\n{server}");
    }
    assert!(server.contains("model: client says {\"model_type\":\"llama\""), "{server}");
}

#[test]
fn arguments_that_make_no_sense_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().display();
    let quantized = dir.path().join("quantized.json");
    let config = r#"{"model_type": "llama", "quantization_config": {"quant_method": "hqq", "bits": 4}}"#;
    std::fs::write(&quantized, config).unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    for (line, words) in [
        ("float --model nowhere", "neither a directory nor a bundled model (shakespeare-gpt2, "),
        (&*format!("float --model {empty}"), "config.json"),
        ("float --model meta-llama/Llama-3.1-8B", "a name of a model hub is not looked up"),
        (&*format!("plan --model {}", quantized.display()), "`waggle quantize` makes one of 8 bits"),
        (&*format!("serve --listen {address} --model shakespeare-gpt2"), "port 0 any that is free"),
        ("float --prompt-ids 512", "token id 512 is outside the vocabulary of 512"),
        ("float --prompt-ids 1 --tokens 0", "at least one"),
        ("demo --prompt-ids 512", "token id 512 is outside the vocabulary of 512"),
        ("demo --prompt-ids 1 --tokens 513", "513 positions would go through a model that has 512"),
        ("demo --prompt-ids 1 --tokens 0", "at least one"),
        ("demo --prompt-ids 1 --tokens 1 --pad-prompt 99999999999", "99999999999 positions would go through a model"),
        ("demo --prompt-ids 1 --tokens 1 --samples 99999999999", "99999999999 texts with 99999999999 positions"),
        (
            "plan --model shakespeare-gpt2 --tokens 2 --texts 1000000000",
            "1000000000 texts with 33000000000 positions",
        ),
        ("plan --model shakespeare-gpt2 --tokens 2 --texts 9223372036854775808", "9223372036854775808 texts"),
        (
            "generate --connect 127.0.0.1:1 --prompt-ids 1 --helper 127.0.0.1:1",
            "--helper-key, which the helper prints",
        ),
        ("demo --pad-prompt --policy h2o --prompt-ids 1 --tokens 1", "padding needs cache policy `full`"),
        ("plan --pad-prompt --policy h2o", "padding needs cache policy `full`"),
        ("demo --reveal token --temperature 1 --top-p 0.5", "top-p needs a session that reveals logits"),
        (
            "demo --reveal token --temperature 1 --check --prompt-ids 1 --tokens 1",
            "a comparison of sampled text needs",
        ),
        ("demo --temperature=-1", "temperature = -1 is outside 0 or more"),
        ("plan --prompt-len 506 --tokens 8", "513 positions would go through a model that has 512"),
        ("plan --prompt-len 0", "at least one"),
        ("generate --connect 127.0.0.1:1 --connect-timeout 0.1 --prompt-ids 1", "cannot connect to 127.0.0.1:1"),
        (&*format!("synth --config {empty}/none.json --out {empty}/x"), "none.json"),
        (&*format!("demo --prompt-ids 1 --tokens 1 --json {empty}/no/such/dir.json"), "no/such/dir.json"),
    ] {
        let errors = fail(&mut waggle(line), 1);
        let told = errors.lines().filter(|line| line.starts_with("error: ")).collect::<Vec<_>>();
        assert!(told.len() == 1 && told[0].contains(words), "`{line}` gave: {errors}");
    }
    for line in [
        "demo --link carrier-pigeon",
        "demo --policy best",
        "demo --ot deafening",
        "generate --connect http://127.0.0.1:1 --prompt-ids 1",
        "demo --prompt a --prompt-ids 1",
        "demo --prompt-ids 1,x",
        "demo --tokens -1",
        "serve",
        "serve --model x --timeout 0",
        "dance",
    ] {
        let errors = fail(&mut waggle(line), 2);
        assert!(errors.starts_with("error: "), "`{line}` gave: {errors}");
    }
}

#[test]
fn a_model_without_a_tokenizer_takes_ids() {
    let dir = tempfile::tempdir().unwrap();
    let config =
        r#"{"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 11, "n_positions": 8}"#;
    let model = synthesise(dir.path(), "model", config);
    fails(&mut waggle(&format!("demo --model {model} --prompt bee --tokens 2")), 1, ["--prompt-ids"]);
    // After these words no two logits are so near to each other that rounding decides between them.
    let ids = succeed(&mut waggle(&format!("demo --model {model} --prompt-ids 4,9 --tokens 2")));
    assert_eq!(ids.trim().split(',').map(|id| id.parse::<u32>().unwrap()).filter(|id| *id < 11).count(), 2, "{ids}");
    let server = Server::start(&format!("--model {model}"));
    fails(&mut server.client("--prompt bee --tokens 2"), 1, ["--prompt-ids"]);
    assert_eq!(succeed(&mut server.client("--prompt-ids 4,9 --tokens 2")), ids);
}
