//! A pipe that nobody reads and a full disk end a command as they should, and what it writes is whole or not there.
#![cfg(unix)]

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::support::{LIMIT, Server, fail, fails, limited, of, play, succeed, synthesise, text, waggle};

const IDS: &str = "--prompt-ids 30,27,25 --tokens 2";
const CONFIG: &str =
    r#"{"model_type": "gpt2", "vocab_size": 16, "n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2}"#;

/// Standard output that takes nothing; not every system has such a file.
fn full() -> Option<Stdio> {
    cfg!(target_os = "linux").then(|| File::options().write(true).open("/dev/full").unwrap().into())
}

/// Standard output whose reader has gone.
fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

/// Holds `command`, made anew for each run, to what a full and a closed standard output must come to.
fn assert_survives(command: impl Fn() -> Command) {
    // The server's process of a demo may say that it was left.
    let errors = |output: &Output| -> Vec<String> {
        let all = text(&output.stderr);
        assert!(!all.contains("panicked"), "{:?}: {all}", command());
        all.lines()
            .filter(|line| line.starts_with("error: ") && !line.contains("session with"))
            .map(Into::into)
            .collect()
    };
    if let Some(full) = full() {
        let output = command().stdout(full).output().unwrap();
        let told = errors(&output);
        assert_eq!(output.status.code(), Some(1), "{:?}: {told:?}", command());
        assert_eq!(told, ["error: standard output: No space left on device (os error 28)"], "{:?}", command());
    }
    let output = command().stdout(closed()).output().unwrap();
    assert_eq!((output.status.code(), errors(&output)), (Some(141), vec![]), "{:?}", command());
}

#[test]
fn a_full_disk_is_an_error_and_a_closed_pipe_an_end() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.json");
    fs::write(&config, CONFIG).unwrap();
    let (story, out) = (play(dir.path(), 2), dir.path().join("out"));
    let (config, out) = (config.display(), out.display());
    for line in [
        format!("float {IDS}"),
        format!("plan --model {config} --prompt-len 2 --tokens 2"),
        format!("synth --config {config} --out {out}"),
        format!("eval --text {story} --context 16 --sequences 1"),
        format!("demo --link memory {IDS}"),
        format!("demo {IDS}"),
        format!("pools list {}", dir.path().display()),
        "keygen".into(),
        "sweep --models shakespeare-gpt2 --contexts 16".into(),
        format!("tables list --pages {}", dir.path().display()),
    ] {
        assert_survives(|| waggle(&line));
    }
}

#[test]
fn both_parties_take_a_reader_that_leaves() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start("--model shakespeare-gpt2");
    assert_survives(|| server.client("--prompt-ids 30,27,25 --tokens 4"));
    let kept = dir.path().join("kept");
    let server = Server::start(&format!("--model shakespeare-gpt2 --pools {}", kept.display()));
    let pool = dir.path().join("a.pool");
    assert_survives(|| {
        // Made all the same: what cannot be said is that it was.
        let _ = fs::remove_file(&pool);
        let preprocess = format!("preprocess --connect {} --prompt-len 1 --tokens 1 --pool", server.address);
        let mut command = waggle(&preprocess);
        command.arg(&pool);
        command
    });
    assert!(pool.is_file());
}

#[test]
fn nothing_that_happens_to_standard_error_is_a_panic() {
    for stderr in [full(), Some(closed())].into_iter().flatten() {
        let status = waggle("float --model no-such-model").stderr(stderr).status().unwrap();
        assert_eq!(status.code(), Some(1));
    }
    let demo = || waggle(&format!("demo --link memory {IDS}"));
    let usual = succeed(&mut demo());
    for stderr in [full(), Some(closed())].into_iter().flatten() {
        let output = demo().stderr(stderr).output().unwrap();
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), usual.clone()));
    }
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn a_command_that_fails_leaves_no_report_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report.json");
    let lost = "--connect 127.0.0.1:1 --connect-timeout 0.1";
    let failing = [
        format!("generate {lost} {IDS} --json"),
        format!("preprocess {lost} --pool {} --prompt-len 1 --json", dir.path().join("a.pool").display()),
        "float --model no-such-model --json".into(),
        "plan --model no-such-model --json".into(),
        "demo --tokens 100000 --json".into(),
        "eval --text no-such-file --json".into(),
        format!("eval --text no-such-file --out {} --json", dir.path().display()),
    ];
    for line in &failing {
        fail(waggle(line).arg(&report), 1);
        assert!(names(dir.path()).is_empty(), "{line}: {:?}", names(dir.path()));
    }
    // An older report stays, with its time.
    fs::write(&report, "old").unwrap();
    let time = || fs::metadata(&report).unwrap().modified().unwrap();
    let before = time();
    for line in &failing {
        fail(waggle(line).arg(&report), 1);
        assert_eq!((names(dir.path()), time()), (vec!["report.json".into()], before), "{line}");
        assert_eq!(fs::read_to_string(&report).unwrap(), "old");
    }
    let error = fail(waggle("float --json").arg(dir.path().join("none/report.json")), 1);
    assert!(error.contains("none/report.json: No such file or directory"), "{error}");
}

/// `line` where no file grows beyond `blocks` of 512 or 1024 bytes.
fn short_of_room(blocks: usize, line: &str) -> Command {
    limited(&format!("trap '' XFSZ; ulimit -f {blocks}"), line)
}

#[test]
fn a_file_that_cannot_be_written_whole_is_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report.json");
    fs::write(&report, "old").unwrap();
    fails(
        &mut short_of_room(1, &format!("float {IDS} --json {}", report.display())),
        1,
        ["report.json: File too large"],
    );
    assert_eq!((fs::read_to_string(&report).unwrap(), names(dir.path()).len()), ("old".into(), 1));

    let (config, out) = (dir.path().join("config.json"), dir.path().join("model"));
    fs::write(&config, r#"{"model_type": "gpt2", "n_layer": 1, "n_embd": 32, "n_head": 2}"#).unwrap();
    let synth = format!("synth --config {} --out {}", config.display(), out.display());
    fail(&mut short_of_room(8, &synth), 1);
    assert!(names(&out).is_empty(), "{:?}", names(&out));
}

#[test]
fn a_client_without_room_leaves_nothing_at_its_server() {
    let dir = tempfile::tempdir().unwrap();
    let (kept, mine) = (dir.path().join("kept"), dir.path().join("mine"));
    fs::create_dir(&mine).unwrap();
    // So small a model that all fits into memory but the pool.
    let model = synthesise(dir.path(), "model", CONFIG);
    let server = Server::start(&format!("--model {model} --once --pools {}", kept.display()));
    let preprocess =
        format!("preprocess --connect {} --prompt-len 1 --tokens 1 --pool {}/a.pool", server.address, mine.display());
    let error = fail(&mut short_of_room(2, &preprocess), 1);
    assert!(error.contains("a.pool: pool: File too large") && error.lines().count() == 1, "{error}");
    assert!(names(&mine).is_empty());
    let error = server.end(LIMIT).errors;
    assert!(names(&kept).is_empty(), "{:?}", names(&kept));
    assert!(error.contains("the client gives up: its pool: file too large"), "{error}");
}

#[test]
fn a_place_for_the_pool_is_tried_before_anybody_is_asked() {
    let dir = tempfile::tempdir().unwrap();
    let lost = "preprocess --connect 127.0.0.1:1 --connect-timeout 0.1 --prompt-len 1 --pool";
    fails(waggle(lost).arg(dir.path().join("none/a.pool")), 1, ["none/a.pool: pool: No such file or directory"]);
    let error = fail(waggle(lost).arg(dir.path().join("a.pool")), 1);
    assert!(error.contains("127.0.0.1:1") && error.lines().count() == 1, "the address is named: {error}");
    assert!(names(dir.path()).is_empty());
}

/// Conversations, reports and what the program keeps by itself, also in the place of a file that others could read.
#[test]
fn what_holds_words_is_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    let of = |line: &str| {
        let mut command = of(waggle(line), &home);
        command.current_dir(dir.path());
        command
    };
    for name in ["talk.jsonl", "demo.json"] {
        fs::write(dir.path().join(name), "old").unwrap();
        fs::set_permissions(dir.path().join(name), fs::Permissions::from_mode(0o644)).unwrap();
    }
    fs::write(dir.path().join("lines"), "ROMEO:\n/save saved.txt\n").unwrap();
    let key = succeed(&mut of("keygen"));
    let server = Server::run(&mut of("serve --listen 127.0.0.1:0 --model shakespeare-gpt2 --max-reveals 9999"));
    let connect = format!("--connect {} --server-key {}", server.address, key.trim());
    let talk = "--tokens 2 --turns lines --transcript talk.jsonl --json chat.json";
    succeed(&mut of(&format!("chat {connect} {talk}")));
    succeed(&mut of(&format!("generate {connect} {IDS} --json generate.json")));
    succeed(&mut of(&format!("demo --link memory {IDS} --json demo.json")));
    succeed(&mut of("report demo.json --html page.html"));
    let files =
        "talk.jsonl saved.txt chat.json generate.json demo.json page.html home/accounts.json home/known_servers";
    for name in files.split(' ').chain(["home/identity"]) {
        let mode = fs::metadata(dir.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}
