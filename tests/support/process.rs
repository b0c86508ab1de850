//! Processes of the tests: how one is started, what it says, and how it ends.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::text;

/// The longest time in which a process ends, on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Keys of the tests' user: a server and a client of one user trust each other.
pub(crate) fn home() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("waggle-home")
}

/// The program at `path` in the environment of the tests, whose output they read.
pub(crate) fn program(path: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(path);
    // Options of whoever runs the tests are none of theirs; the family of kernels is the machine's.
    let others = std::env::vars_os().map(|(name, _)| name);
    let others = others.filter(|name| name != "WAGGLE_CPU" && name.to_string_lossy().starts_with("WAGGLE_"));
    for name in others {
        command.env_remove(name);
    }
    command.env("WAGGLE_HOME", home());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The program under test, with arguments split at spaces.
pub(crate) fn waggle(line: &str) -> Command {
    let mut command = program(env!("CARGO_BIN_EXE_waggle"));
    command.args(line.split_whitespace());
    command
}

/// The program under test, in a shell that sets `limits` before.
pub(crate) fn limited(limits: &str, line: &str) -> Command {
    let mut command = program("sh");
    command.args(["-c", &format!("{limits}; exec {} {line}", env!("CARGO_BIN_EXE_waggle"))]);
    command
}

/// The command of the user whose keys lie in `home`.
pub(crate) fn of(mut command: Command, home: &Path) -> Command {
    command.env("WAGGLE_HOME", home);
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

/// The key of the user whose keys lie in `home`.
pub(crate) fn key(home: &Path) -> String {
    succeed(&mut of(waggle("keygen"), home)).trim().to_owned()
}

/// Sends the process `id` a signal, unless it has just ended.
pub(crate) fn signal(id: u32, name: &str) {
    Command::new("kill").args([&format!("-{name}"), "--", &id.to_string()]).stderr(Stdio::null()).status().unwrap();
}

/// The processes that `id` has started and that live, and their processor time in ticks.
#[cfg(target_os = "linux")]
pub(crate) fn children(id: u32) -> BTreeMap<u32, u64> {
    let all = std::fs::read_dir("/proc").unwrap();
    let child = |entry: std::fs::DirEntry| {
        let child: u32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
        let lives = fields[0] != "Z" && fields[1].parse() == Ok(id);
        lives.then(|| (child, [11, 12].iter().map(|at| fields[*at].parse::<u64>().unwrap()).sum()))
    };
    all.filter_map(|entry| child(entry.ok()?)).collect()
}

/// How `child` ends by itself within `limit`.
pub(crate) fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let start = Instant::now();
    loop {
        match child.try_wait().unwrap() {
            None if start.elapsed() < limit => std::thread::sleep(Duration::from_millis(5)),
            status => return status,
        }
    }
}

/// Repeats `look` until it finds something, which must happen within some seconds.
pub(crate) fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < LIMIT, "it never came");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A process that runs; killed when dropped. What it writes to standard error is read as it comes.
pub(crate) struct Process {
    pub(crate) child: Child,
    errors: Arc<Mutex<String>>,
    reading: Option<JoinHandle<()>>,
}

/// A process that has ended: its code, and what it wrote to standard output and to standard error.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) text: String,
    pub(crate) errors: String,
    /// Whether it had to be killed.
    pub(crate) hung: bool,
}

impl Process {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap();
        let errors = Arc::new(Mutex::new(String::new()));
        let written = errors.clone();
        let reading = child.stderr.take().map(|stderr| {
            std::thread::spawn(move || {
                let mut lines = BufReader::new(stderr);
                let mut line = Vec::new();
                while lines.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
                    written.lock().unwrap().push_str(&text(&line));
                    line.clear();
                }
            })
        });
        Process { child, errors, reading }
    }

    /// A process that reads `input` and nothing behind it.
    pub(crate) fn fed(command: &mut Command, input: &[u8]) -> Self {
        let mut process = Process::start(command.stdin(Stdio::piped()));
        // One that refuses does not read.
        let _ = process.child.stdin.take().unwrap().write_all(input);
        process
    }

    /// What it wrote to standard error so far.
    pub(crate) fn log(&self) -> String {
        self.errors.lock().unwrap().clone()
    }

    /// Waits for these words on standard error, which must come within some seconds; returns all so far.
    pub(crate) fn wait_for(&self, words: &str) -> String {
        until(|| Some(self.log()).filter(|log| log.contains(words)))
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    pub(crate) fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// The end, to which it must come by itself within `limit`.
    pub(crate) fn end(self, limit: Duration) -> Ended {
        let ended = self.end_or_kill(limit);
        assert!(!ended.hung, "still running after {limit:?}; it wrote: {}", ended.errors);
        ended
    }

    /// The end, to which it is brought after `limit`.
    pub(crate) fn end_or_kill(mut self, limit: Duration) -> Ended {
        drop(self.child.stdin.take());
        let status = wait(&mut self.child, limit);
        let _ = self.child.kill();
        let mut written = Vec::new();
        if let Some(mut stdout) = self.child.stdout.take() {
            stdout.read_to_end(&mut written).unwrap();
        }
        let (code, hung) = (status.and_then(|status| status.code()), status.is_none());
        Ended { code, text: text(&written), errors: self.stop(), hung }
    }

    /// Kills it, and returns what it wrote to standard error.
    pub(crate) fn stop(mut self) -> String {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reading) = self.reading.take() {
            reading.join().unwrap();
        }
        self.log()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process that listens.
pub(crate) struct Server {
    process: Process,
    pub(crate) address: String,
}

impl Server {
    /// Starts `waggle serve` on a free port and waits until it listens.
    pub(crate) fn start(arguments: &str) -> Self {
        Server::run(&mut waggle(&format!("serve --listen 127.0.0.1:0 {arguments}")))
    }

    /// [`Server::start`] by the user whose keys lie in `home`.
    pub(crate) fn start_of(home: &Path, arguments: &str) -> Self {
        Server::run(&mut of(waggle(&format!("serve --listen 127.0.0.1:0 {arguments}")), home))
    }

    /// [`Server::start`] of this command.
    pub(crate) fn run(command: &mut Command) -> Self {
        let mut process = Process::start(command);
        let mut line = String::new();
        BufReader::with_capacity(1, process.child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line.split(|c: char| c.is_whitespace() || c == '/').find(|word| word.starts_with("127.0.0.1:"));
        let address = address.unwrap_or_else(|| panic!("no address: {line}")).to_owned();
        Server { process, address }
    }

    pub(crate) fn client(&self, arguments: &str) -> Command {
        waggle(&format!("generate --connect {} {arguments}", self.address))
    }

    pub(crate) fn end(self, limit: Duration) -> Ended {
        self.process.end(limit)
    }

    pub(crate) fn stop(self) -> String {
        self.process.stop()
    }
}

impl Deref for Server {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for Server {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}
