//! What the tests of the command line share: processes, models, deadlines.
#![allow(dead_code, reason = "every test program uses a part")]

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// The program under test, with arguments split at spaces.
pub(crate) fn waggle(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waggle"));
    command.args(line.split_whitespace());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a command to its end, which must be a success; returns standard output.
pub(crate) fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}\n{}", text(&output.stderr));
    text(&output.stdout)
}

/// Runs a command that must fail with code `code`; returns standard error.
pub(crate) fn fail(command: &mut Command, code: i32) -> String {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{command:?}\n{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stderr)
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The JSON that a command writes with `--json`.
pub(crate) fn json(command: &mut Command) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("report.json");
    succeed(command.arg("--json").arg(&file));
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

/// A list of ids.
pub(crate) fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

/// Ids for a command line.
pub(crate) fn join(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// A model that is not in the repository: `$WAGGLE_ASSETS` or `../shared` beside it. Says aloud when there is none.
pub(crate) fn asset(path: &str) -> Option<PathBuf> {
    let root = std::env::var_os("WAGGLE_ASSETS").map(PathBuf::from);
    let mut roots: Vec<PathBuf> = root.into_iter().collect();
    roots.extend(["../shared", "../../shared"].map(|up| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(up)));
    let found = roots.iter().map(|root| root.join(path)).find(|p| p.exists());
    if found.is_none() {
        // Straight to the stream: the test harness would swallow the output of a test that passes.
        let note = format!("\n*** SKIPPED: {path} is neither under $WAGGLE_ASSETS nor under ../shared ***\n\n");
        std::io::stderr().write_all(note.as_bytes()).unwrap();
    }
    found
}

/// A server process; killed when dropped.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) address: String,
}

impl Server {
    /// Starts `waggle serve` on a free port and waits until it listens.
    pub(crate) fn start(arguments: &str) -> Self {
        let mut child = waggle(&format!("serve --listen 127.0.0.1:0 {arguments}")).spawn().unwrap();
        let mut line = String::new();
        BufReader::with_capacity(1, child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().rsplit(' ').next().unwrap().to_owned();
        assert!(address.starts_with("127.0.0.1:"), "{line}");
        Server { child, address }
    }

    /// A client of this server.
    pub(crate) fn client(&self, arguments: &str) -> Command {
        waggle(&format!("generate --connect {} {arguments}", self.address))
    }

    /// Ends the server and returns what it wrote to standard error.
    pub(crate) fn stop(mut self) -> String {
        self.child.kill().unwrap();
        let mut errors = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        errors
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for a process to end by itself; one that does not within `limit` is killed, and the test fails.
pub(crate) fn ended(mut child: Child, limit: Duration) -> Output {
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > limit {
            child.kill().unwrap();
            let output = child.wait_with_output().unwrap();
            panic!("still running after {limit:?}; it wrote: {}", text(&output.stderr));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

/// What `look` finds, which must be within some seconds.
pub(crate) fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "it never came");
        std::thread::sleep(Duration::from_millis(10));
    }
}
