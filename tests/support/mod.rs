//! Tools that the tests of the command line share: processes, models, deadlines.
#![allow(dead_code, reason = "every test program uses a part")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Keys of the tests' user: a server and a client of one user trust each other.
pub(crate) fn home() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("waggle-home")
}

/// The keys of a server and a helper that are not the user's own, as both parties and their helper need them.
pub(crate) struct Keys {
    /// Options of the server and of the helper.
    pub(crate) server: String,
    pub(crate) helper: String,
    /// The keys that they prove.
    pub(crate) of_server: String,
    pub(crate) of_helper: String,
    /// The list of the user and the server.
    pub(crate) allowed: String,
}

impl Keys {
    /// In `dir`, for the user whose key is in `home`.
    pub(crate) fn new(dir: &Path, home: &Path) -> Self {
        let file = |name: &str| dir.join(name).display().to_string();
        let key = |arguments: &str| {
            let line = format!("keygen {arguments}");
            succeed(&mut of(waggle(&line), home)).trim().to_owned()
        };
        let identity = |name: &str| format!("--identity {}", file(name));
        let [of_server, of_helper] = ["server.key", "helper.key"].map(|name| key(&identity(name)));
        let user = key("");
        std::fs::write(dir.join("allowed"), format!("{user}\n{of_server}\n")).expect("a list");
        let allowed = format!("--allow {}", file("allowed"));
        Keys { server: identity("server.key"), helper: identity("helper.key"), of_server, of_helper, allowed }
    }
}

/// The program under test, with arguments split at spaces.
pub(crate) fn waggle(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waggle"));
    // Options of whoever runs the tests are none of theirs.
    let others = std::env::vars_os().map(|(name, _)| name);
    let others = others.filter(|name| name != "WAGGLE_CPU" && name.to_string_lossy().starts_with("WAGGLE_"));
    for name in others {
        command.env_remove(name);
    }
    command.env("WAGGLE_HOME", home());
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

/// Runs a command that must fail with code `code` and say these words on standard error.
pub(crate) fn fails<const N: usize>(command: &mut Command, code: i32, words: [&str; N]) {
    let errors = fail(command, code);
    assert!(words.iter().all(|words| errors.contains(words)), "{command:?}: {errors}");
}

/// The command of the user whose keys lie in `home`.
pub(crate) fn of(mut command: Command, home: &Path) -> Command {
    command.env("WAGGLE_HOME", home);
    command
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The JSON that a command writes with `--json`.
pub(crate) fn json(command: &mut Command) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("report.json");
    succeed(command.arg("--json").arg(&file));
    read_json(&file)
}

/// The JSON document in `file`.
pub(crate) fn read_json(file: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

/// Bytes both ways of a cost in a report.
pub(crate) fn bytes(cost: &Value) -> u64 {
    cost["bytes_client_to_server"].as_u64().unwrap() + cost["bytes_server_to_client"].as_u64().unwrap()
}

/// Copies the bundled model `name` into the directory `to`, which is made.
pub(crate) fn copy_model(name: &str, to: &Path) {
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("model/assets").join(name);
    std::fs::create_dir_all(to).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(assets.join(file), to.join(file)).unwrap();
    }
}

/// A model in `dir` with random weights and the shape `config`.
pub(crate) fn synthesise(dir: &Path, name: &str, config: &str) -> String {
    let (file, out) = (dir.join(format!("{name}.json")), dir.join(name));
    std::fs::write(&file, config).unwrap();
    succeed(&mut waggle(&format!("synth --config {} --out {}", file.display(), out.display())));
    out.display().to_string()
}

/// A file in `dir` with words of the bundled models' characters, so often.
pub(crate) fn play(dir: &Path, times: usize) -> String {
    let words = "ROMEO:\nWhat say you to the king? My lord, I come to speak of love and of the night.\n";
    let file = dir.join("text.txt");
    std::fs::write(&file, words.repeat(times)).unwrap();
    file.display().to_string()
}

/// The number in an environment variable, if it is set.
pub(crate) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Sends a process a signal.
pub(crate) fn signal(process: &Child, name: &str) {
    let id = process.id().to_string();
    assert!(Command::new("kill").args([&format!("-{name}"), &id]).status().unwrap().success());
}

pub(crate) fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

/// Ids for a command line.
pub(crate) fn join(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// Waits until a server listens; returns its address.
fn listening(server: &mut Child) -> String {
    let mut line = String::new();
    BufReader::with_capacity(1, server.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let address = line.split(|c: char| c.is_whitespace() || c == '/').find(|word| word.starts_with("127.0.0.1:"));
    address.unwrap_or_else(|| panic!("no address: {line}")).to_owned()
}

/// A server process; killed when dropped.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) address: String,
    log: Log,
}

/// The standard error of a process, as it comes.
pub(crate) struct Log {
    text: Arc<Mutex<String>>,
    reading: JoinHandle<()>,
}

impl Log {
    pub(crate) fn of(stderr: ChildStderr) -> Self {
        let text = Arc::new(Mutex::new(String::new()));
        let written = text.clone();
        let reading = std::thread::spawn(move || {
            let mut lines = BufReader::new(stderr);
            let mut line = String::new();
            while lines.read_line(&mut line).is_ok_and(|n| n > 0) {
                written.lock().unwrap().push_str(&line);
                line.clear();
            }
        });
        Log { text, reading }
    }

    fn none() -> Self {
        Log { text: Arc::default(), reading: std::thread::spawn(|| ()) }
    }

    pub(crate) fn so_far(&self) -> String {
        self.text.lock().unwrap().clone()
    }

    /// Waits for a line with these words, which must come within some seconds; returns all so far.
    pub(crate) fn wait_for(&self, words: &str) -> String {
        until(|| Some(self.so_far()).filter(|text| text.contains(words)))
    }

    /// Everything, once the process has ended.
    pub(crate) fn into_text(self) -> String {
        self.reading.join().unwrap();
        self.text.lock().unwrap().clone()
    }
}

impl Server {
    /// Starts `waggle serve` on a free port and waits until it listens.
    pub(crate) fn start(arguments: &str) -> Self {
        Server::run(&mut waggle(&format!("serve --listen 127.0.0.1:0 {arguments}")))
    }

    /// [`Server::start`] of this command.
    pub(crate) fn run(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap();
        let address = listening(&mut child);
        let log = Log::of(child.stderr.take().unwrap());
        Server { child, address, log }
    }

    /// [`Server::run`], whose output nobody reads once it listens.
    pub(crate) fn with_closed_output(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap();
        drop(child.stderr.take());
        let address = listening(&mut child);
        drop(child.stdout.take());
        Server { child, address, log: Log::none() }
    }

    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    /// Waits until it ends by itself; returns its code and what it wrote to standard error.
    pub(crate) fn end(mut self, limit: Duration) -> (Option<i32>, String) {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(start.elapsed() < limit, "the server hangs: {}", self.log.so_far());
            std::thread::sleep(Duration::from_millis(10));
        };
        (status.code(), self.stop())
    }

    pub(crate) fn client(&self, arguments: &str) -> Command {
        waggle(&format!("generate --connect {} {arguments}", self.address))
    }

    /// Ends the server and returns what it wrote to standard error.
    pub(crate) fn stop(mut self) -> String {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // The log moves out of something that is dropped.
        std::mem::replace(&mut self.log, Log::none()).into_text()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for a process to end by itself; one that does not within `limit` is killed. Its output, and whether it was
/// killed.
pub(crate) fn ended_or_killed(mut child: Child, limit: Duration) -> (Output, bool) {
    let start = Instant::now();
    let mut killed = false;
    while child.try_wait().unwrap().is_none() {
        if !killed && start.elapsed() > limit {
            let _ = child.kill();
            killed = true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    (child.wait_with_output().unwrap(), killed)
}

/// The output of a process that must end by itself within `limit`.
pub(crate) fn ended(child: Child, limit: Duration) -> Output {
    let (output, killed) = ended_or_killed(child, limit);
    assert!(!killed, "still running after {limit:?}; it wrote: {}", text(&output.stderr));
    output
}

/// Repeats `look` until it finds something, which must happen within some seconds.
pub(crate) fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "it never came");
        std::thread::sleep(Duration::from_millis(10));
    }
}
