//! A tokenizer in a process of its own.
//!
//! The parent starts a program that calls [`run_worker`], and talks to it over the program's standard input and
//! output. A request is a line of JSON, and the response to it is another. The raw bytes of the file follow the line
//! of the request `load`.
//!
//! | request | response |
//! |---|---|
//! | none: the process has started | `{"ready":null}`, or why there is no sandbox |
//! | `{"load":N}`, N bytes of `tokenizer.json` | `{"loaded":{"vocabulary":V,"longest":B}}` |
//! | `{"encode":"text"}` | `{"ids":[1,2]}` |
//! | `{"encode_more":"text"}` | `{"ids":[1,2]}`, without the tokens that begin a text |
//! | `{"encode_pair":["a","b"]}` | `{"pair":[[1,2],1]}`: ids, and where the second text begins, or null |
//! | `{"decode":[1,2]}` | `{"text":"text"}` |
//! | `{"render":{"template":…,"messages":[…],"generate":true,"now":"…"}}` | `{"text":"text"}` |
//! | any | `{"failed":…}` with a [`TokenizerError`] |
//!
//! The worker gets only the environment variables by which its program is found, and enters a sandbox before it reads
//! anything (see the module `sandbox`). The parent does not trust the worker: a line has a maximal length, and if an
//! answer takes longer than a time-out, the process is killed. If a request finds that the process has ended, or if
//! the process dies during the request, another process is started once with the same file. So a process that ended
//! earlier, perhaps because of the limit of processor time, harms no later request.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::error::{MAX_QUOTE_BYTES, at_most, printable};
use super::template::{ChatTemplate, Message};
use super::vet::MAX_TOKENIZER_BYTES;
use super::{Local, TokenizerError};

/// The longest text that a process encodes, in bytes, measured after the tokenizer's stages have lengthened it. Also
/// the longest text that a process decodes.
pub const MAX_TEXT_BYTES: usize = 16 << 20;
/// The largest number of ids of one text that a process encodes or decodes.
pub const MAX_TEXT_IDS: usize = 1 << 20;

/// The longest line, in bytes. It has room for a text whose characters are all escaped (`\u0000`), and a little more.
const MAX_LINE_BYTES: usize = 6 * MAX_TEXT_BYTES + 1024;
/// How long to wait for the end of a process that has closed its output.
const DEATH: Duration = Duration::from_millis(200);
/// The environment variables by which a program, or the interpreter that runs it, is found. The worker gets no other
/// variable.
const VARIABLES: [&str; 5] = ["DYLD_LIBRARY_PATH", "LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH", "PYTHONUSERBASE"];

/// A command that starts a program that calls [`run_worker`], with a time-out for the program's answers.
#[derive(Clone, Debug)]
pub struct WorkerCommand {
    /// The program.
    pub program: PathBuf,
    /// The program's arguments.
    pub arguments: Vec<OsString>,
    /// The longest time that one answer may take. Loading a large file takes about a second.
    pub time_out: Duration,
}

impl WorkerCommand {
    /// The default of [`time_out`](Self::time_out).
    pub const TIME_OUT: Duration = Duration::from_secs(20);
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Request {
    Load(usize),
    Encode(String),
    EncodeMore(String),
    EncodePair(String, String),
    Decode(Vec<u32>),
    Render(Rendering),
}

/// A request to render a conversation by a template.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Rendering {
    template: ChatTemplate,
    messages: Vec<Message>,
    generate: bool,
    now: String,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Response {
    Ready(Option<String>),
    Loaded(Loaded),
    Ids(Vec<u32>),
    Pair(Vec<u32>, Option<usize>),
    Text(String),
    Failed(TokenizerError),
}

/// What the parent knows about a tokenizer that its process has loaded.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Loaded {
    vocabulary: usize,
    longest: usize,
}

impl Request {
    /// What the request asks for, in words for errors.
    fn step(&self) -> &'static str {
        match self {
            Request::Load(_) => "read tokenizer.json",
            Request::Encode(_) | Request::EncodeMore(_) | Request::EncodePair(..) => "encode a text",
            Request::Decode(_) => "decode ids",
            Request::Render(_) => "apply a chat template",
        }
    }
}

/// A tokenizer in another process, as the parent sees it.
pub(super) struct Worker {
    command: WorkerCommand,
    file: Vec<u8>,
    /// The process; `None` after it has ended and before another is started.
    process: Mutex<Option<Process>>,
    loaded: Loaded,
    /// Why the process has limits but no sandbox; `None` if it has one, or if the system has limits alone.
    pub(super) no_sandbox: Option<String>,
}

struct Process {
    child: Child,
    time_out: Duration,
    requests: Sender<Vec<u8>>,
    lines: Receiver<Vec<u8>>,
}

impl Worker {
    pub(super) fn start(bytes: &[u8], command: &WorkerCommand) -> Result<Self, TokenizerError> {
        at_most("bytes of tokenizer.json", bytes.len(), MAX_TOKENIZER_BYTES)?;
        let (process, loaded, no_sandbox) = Process::start(bytes, command)?;
        let (command, file, process) = (command.clone(), bytes.to_vec(), Mutex::new(Some(process)));
        Ok(Worker { command, file, process, loaded, no_sandbox })
    }

    pub(super) fn vocabulary(&self) -> usize {
        self.loaded.vocabulary
    }

    pub(super) fn longest(&self) -> usize {
        self.loaded.longest
    }

    pub(super) fn render(
        &self,
        template: &ChatTemplate,
        messages: &[Message],
        generate: bool,
        now: &str,
    ) -> Result<String, TokenizerError> {
        let (messages, now) = (messages.to_vec(), now.to_owned());
        let rendering = Rendering { template: template.clone(), messages, generate, now };
        self.ask(&Request::Render(rendering), |response| match response {
            Response::Text(text) if text.len() <= MAX_TEXT_BYTES => Some(text),
            _ => None,
        })
    }

    /// The ids of `text`. `begins` has the same meaning as in [`Local::encode`].
    pub(super) fn encode(&self, text: &str, begins: bool) -> Result<Vec<u32>, TokenizerError> {
        let request = if begins { Request::Encode } else { Request::EncodeMore };
        self.ask(&request(text.to_owned()), |response| match response {
            Response::Ids(ids) if ids.len() <= MAX_TEXT_IDS => Some(ids),
            _ => None,
        })
    }

    pub(super) fn encode_pair(&self, first: &str, second: &str) -> Result<(Vec<u32>, Option<usize>), TokenizerError> {
        let request = Request::EncodePair(first.to_owned(), second.to_owned());
        self.ask(&request, |response| match response {
            Response::Pair(ids, begins)
                if ids.len() <= MAX_TEXT_IDS && begins.is_none_or(|at| (1..ids.len()).contains(&at)) =>
            {
                Some((ids, begins))
            }
            _ => None,
        })
    }

    pub(super) fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        at_most("ids of a text", ids.len(), MAX_TEXT_IDS)?;
        let request = Request::Decode(ids.to_vec());
        self.ask(&request, |response| match response {
            Response::Text(text) => Some(text),
            _ => None,
        })
    }

    fn ask<T>(&self, request: &Request, wanted: impl Fn(Response) -> Option<T>) -> Result<T, TokenizerError> {
        let mut place = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        let mut again = true;
        loop {
            let mut process = match place.take() {
                Some(process) => process,
                None => {
                    let (process, loaded, _) = Process::start(&self.file, &self.command)?;
                    if loaded != self.loaded {
                        return Err(nonsense(Request::Load(0).step()));
                    }
                    process
                }
            };
            // A process that fails is dropped, and the next request starts another.
            match process.ask(request, &[]) {
                Ok(Response::Failed(error)) => {
                    *place = Some(process);
                    return Err(error.sanitized());
                }
                Ok(response) => {
                    let answer = wanted(response).ok_or_else(|| nonsense(request.step()))?;
                    *place = Some(process);
                    return Ok(answer);
                }
                Err(TokenizerError::Died { .. }) if again => again = false,
                Err(error) => return Err(error),
            }
        }
    }
}

fn nonsense(step: &str) -> TokenizerError {
    TokenizerError::Nonsense { step: step.into() }
}

impl Process {
    /// Starts a process and lets it read `file`. Also returns what is known about the tokenizer, and the reason why
    /// there is no sandbox, if there is none.
    fn start(file: &[u8], command: &WorkerCommand) -> Result<(Self, Loaded, Option<String>), TokenizerError> {
        let mut process = Process::spawn(command)?;
        let Response::Ready(no_sandbox) = process.answer("start")? else { return Err(nonsense("start")) };
        let no_sandbox = no_sandbox.map(|why| printable(&why, MAX_QUOTE_BYTES));
        let request = Request::Load(file.len());
        match process.ask(&request, file)? {
            Response::Loaded(loaded) => Ok((process, loaded, no_sandbox)),
            Response::Failed(error) => Err(error.sanitized()),
            _ => Err(nonsense(request.step())),
        }
    }

    fn spawn(command: &WorkerCommand) -> Result<Self, TokenizerError> {
        let failed =
            |source: io::Error| TokenizerError::Spawn { what: format!("{}: {source}", command.program.display()) };
        let mut program = Command::new(&command.program);
        // Ctrl-C at a terminal must reach this process alone. The worker ends when its input does.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut program, 0);
        let kept = VARIABLES.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
        let mut child = program
            .args(&command.arguments)
            // The environment may contain keys and passwords.
            .env_clear()
            .envs(kept)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // The worker sends its errors as responses. The message of a panic would appear within the user's text.
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let (Some(mut to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed(io::Error::other("it has no input or output")));
        };
        let (requests, queue) = channel::<Vec<u8>>();
        // Reading and writing have threads of their own, so that a process that does neither blocks nobody. Both
        // threads end with the process, or when this value is dropped.
        thread::spawn(move || {
            for request in queue {
                if to.write_all(&request).and_then(|()| to.flush()).is_err() {
                    return;
                }
            }
        });
        let (send, lines) = sync_channel(1);
        thread::spawn(move || {
            let mut from = BufReader::new(from);
            while let Ok(Some(line)) = read_line(&mut from) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Process { child, time_out: command.time_out, requests, lines })
    }

    /// Sends `request` and then the bytes in `after`, and waits for the answer. After an error the process must be
    /// dropped.
    fn ask(&mut self, request: &Request, after: &[u8]) -> Result<Response, TokenizerError> {
        let mut message = serde_json::to_vec(request).map_err(TokenizerError::failed)?;
        message.push(b'\n');
        message.extend(after);
        // If nothing reads the queue, the process is gone. Waiting for the answer shows the same.
        let _ = self.requests.send(message);
        self.answer(request.step())
    }

    fn answer(&mut self, step: &str) -> Result<Response, TokenizerError> {
        match self.lines.recv_timeout(self.time_out) {
            Ok(line) => serde_json::from_slice(&line).map_err(|_| nonsense(step)),
            Err(RecvTimeoutError::Timeout) => {
                let seconds = format!("{:.1}", self.time_out.as_secs_f64());
                Err(TokenizerError::TimedOut { step: step.into(), seconds })
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.end().map_or_else(|| "killed".into(), |status| status.to_string());
                Err(TokenizerError::Died { step: step.into(), status })
            }
        }
    }

    /// Waits a moment for the process to end by itself, then kills it.
    fn end(&mut self) -> Option<ExitStatus> {
        let start = Instant::now();
        let ended = || matches!(self.lines.try_recv(), Err(TryRecvError::Disconnected));
        while ended() && start.elapsed() < DEATH {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            thread::sleep(Duration::from_millis(2));
        }
        // Both calls fail only if the process has ended.
        let _ = self.child.kill();
        self.child.wait().ok()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads the next line, and returns it without its line end; `None` at the end of the input. A line of more than
/// [`MAX_LINE_BYTES`], or without an end, is an error.
fn read_line(from: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    from.by_ref().take(MAX_LINE_BYTES as u64 + 1).read_until(b'\n', &mut line)?;
    match line.pop() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(line)),
        Some(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "a line is too long or has no end")),
    }
}

/// Runs this process as the worker of a [`WorkerCommand`]: shuts it into its sandbox, then answers the parent's
/// requests until standard input ends.
///
/// # Errors
/// If the limits cannot be set, or input or output fail. Errors of the tokenizer are sent as responses.
pub fn run_worker() -> io::Result<()> {
    let ready = Response::Ready(shut_in()?);
    let mut output = io::stdout().lock();
    respond(&mut output, &ready)?;
    serve(io::stdin().lock(), output)
}

#[cfg(unix)]
use super::sandbox::enter as shut_in;

/// Does nothing. Other systems have only the time-out and the bounds on lengths.
#[cfg(not(unix))]
fn shut_in() -> io::Result<Option<String>> {
    Ok(None)
}

fn respond(output: &mut impl Write, response: &Response) -> io::Result<()> {
    serde_json::to_writer(&mut *output, response)?;
    output.write_all(b"\n")?;
    output.flush()
}

fn serve(input: impl Read, mut output: impl Write) -> io::Result<()> {
    let mut input = BufReader::new(input);
    let mut tokenizer = None;
    while let Some(line) = read_line(&mut input)? {
        let response = match serde_json::from_slice(&line).map_err(TokenizerError::format) {
            Ok(Request::Load(length)) => {
                let mut bytes = Vec::new();
                input.by_ref().take(length.min(MAX_TOKENIZER_BYTES) as u64).read_to_end(&mut bytes)?;
                Local::from_bytes(&bytes).map(|local| {
                    let local = tokenizer.insert(local);
                    Response::Loaded(Loaded { vocabulary: local.vocabulary(), longest: local.longest })
                })
            }
            Ok(Request::Encode(text)) => loaded(&tokenizer).and_then(|local| encode(local, &text, true)),
            Ok(Request::EncodeMore(text)) => loaded(&tokenizer).and_then(|local| encode(local, &text, false)),
            Ok(Request::EncodePair(first, second)) => {
                loaded(&tokenizer).and_then(|local| encode_pair(local, &first, &second))
            }
            Ok(Request::Render(Rendering { template, messages, generate, now })) => {
                template.render(&messages, generate, &now).and_then(text)
            }
            Ok(Request::Decode(ids)) => loaded(&tokenizer).and_then(|local| local.decode(&ids)).and_then(text),
            Err(error) => Err(error),
        };
        respond(&mut output, &response.unwrap_or_else(Response::Failed))?;
    }
    Ok(())
}

fn loaded(tokenizer: &Option<Local>) -> Result<&Local, TokenizerError> {
    tokenizer.as_ref().ok_or_else(|| TokenizerError::failed("no tokenizer was loaded"))
}

fn encode(local: &Local, text: &str, begins: bool) -> Result<Response, TokenizerError> {
    at_most("bytes of text", text.len(), MAX_TEXT_BYTES / local.growth.max(1))?;
    let ids = local.encode(text, begins)?;
    at_most("ids of a text", ids.len(), MAX_TEXT_IDS)?;
    Ok(Response::Ids(ids))
}

fn encode_pair(local: &Local, first: &str, second: &str) -> Result<Response, TokenizerError> {
    at_most("bytes of text", first.len() + second.len(), MAX_TEXT_BYTES / local.growth.max(1))?;
    let (ids, begins) = local.encode_pair(first, second)?;
    at_most("ids of a text", ids.len(), MAX_TEXT_IDS)?;
    Ok(Response::Pair(ids, begins))
}

fn text(text: String) -> Result<Response, TokenizerError> {
    at_most("bytes of text", text.len(), MAX_TEXT_BYTES)?;
    Ok(Response::Text(text))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answers(input: &[u8]) -> Vec<String> {
        let mut output = Vec::new();
        serve(input, &mut output).unwrap();
        String::from_utf8(output).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_worker_answers_every_line() {
        let letters = json!({"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": false});
        let words = json!({"type": "WordLevel", "vocab": {"?": 0, "H": 1, "i": 2}, "unk_token": "?"});
        let file = json!({"pre_tokenizer": letters, "decoder": {"type": "Fuse"}, "model": words}).to_string();
        let file = file.as_bytes();
        let mut input = format!("{{\"load\":{}}}\n", file.len()).into_bytes();
        input.extend(file);
        input.extend(b"{\"encode\":\"Hi\"}\n{\"decode\":[1,2]}\nwhat?\n");
        let answers = answers(&input);
        assert_eq!(
            answers[..3],
            ["{\"loaded\":{\"vocabulary\":3,\"longest\":1}}", "{\"ids\":[1,2]}", "{\"text\":\"Hi\"}"]
        );
        assert!(answers[3].contains("failed"), "{answers:?}");
        let early = super::tests::answers(b"{\"encode\":\"Hi\"}\n");
        assert!(early[0].contains("no tokenizer"), "{early:?}");
    }

    /// Starts a worker that says that it is ready, reads the first line, and then runs the shell script `script`.
    #[cfg(unix)]
    fn shell(script: &str, time_out: Duration) -> Result<Worker, TokenizerError> {
        let script = format!("echo '{{\"ready\":null}}'; read line; {script}");
        let arguments = ["-c", &script].map(OsString::from).to_vec();
        Worker::start(b"{}", &WorkerCommand { program: "sh".into(), arguments, time_out })
    }

    #[cfg(unix)]
    const LOADED: &str = "echo '{\"loaded\":{\"vocabulary\":7,\"longest\":3}}'; read line";

    #[cfg(unix)]
    #[test]
    fn whatever_happens_to_the_process_is_an_error() {
        let soon = Duration::from_millis(200);
        let died = |script: &str| match shell(script, WorkerCommand::TIME_OUT) {
            Err(TokenizerError::Died { step, status }) => format!("{step}: {status}"),
            other => panic!("{script}: {:?}", other.err()),
        };
        assert!(died("kill -ABRT $$").contains("signal: 6"), "{}", died("kill -ABRT $$"));
        assert!(died("exit 3").contains("exit status: 3"));
        // An endless line is cut off instead of collected.
        assert!(died("head -c 200000000 /dev/zero").contains("read tokenizer.json"));
        // A process that neither reads nor writes.
        assert!(matches!(shell("exec sleep 100", soon), Err(TokenizerError::TimedOut { .. })));
        // A process that writes unasked lines.
        for script in ["echo hello", "echo '{\"ids\":[1]}'", "yes"] {
            assert!(
                matches!(shell(script, WorkerCommand::TIME_OUT), Err(TokenizerError::Nonsense { .. })),
                "{script}"
            );
        }
        let program = tempfile::tempdir().unwrap().path().join("missing");
        let missing = WorkerCommand { program, arguments: Vec::new(), time_out: soon };
        assert!(matches!(Worker::start(b"{}", &missing), Err(TokenizerError::Spawn { .. })));
    }

    /// Starts a worker that runs the shell script `script`. In it, `$lives` is the number of processes that were
    /// started before. Also returns a function that counts all processes that were started.
    #[cfg(unix)]
    fn counted(script: &str) -> (Result<Worker, TokenizerError>, impl Fn() -> usize + use<>) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("lives");
        std::fs::write(&file, "").unwrap();
        let path = file.display();
        let worker = shell(&format!("lives=$(wc -l < {path}); echo >> {path}; {script}"), WorkerCommand::TIME_OUT);
        let count = move || {
            let _ = &dir;
            std::fs::read_to_string(&file).unwrap().lines().count()
        };
        (worker, count)
    }

    #[cfg(unix)]
    #[test]
    fn a_process_that_is_gone_is_started_again() {
        // Each process answers once, except the first, which does not answer.
        let (worker, lives) = counted(&format!("{LOADED}; [ $lives -eq 0 ] || echo '{{\"ids\":[1]}}'"));
        let worker = worker.unwrap();
        for count in 2..4 {
            assert_eq!(worker.encode("a", true).unwrap(), [1]);
            assert_eq!(lives(), count);
        }
        // A request that kills two processes gets an error, and so does the next request.
        let (worker, lives) = counted(LOADED);
        let worker = worker.unwrap();
        for count in [2, 4] {
            assert!(matches!(worker.decode(&[1]), Err(TokenizerError::Died { .. })));
            assert_eq!(lives(), count);
        }
        // A request that gets nonsense is not sent again.
        let (worker, lives) = counted(&format!("{LOADED}; [ $lives -eq 0 ] || echo '{{\"ids\":[1]}}'; echo bye"));
        let worker = worker.unwrap();
        assert!(matches!(worker.encode("a", true), Err(TokenizerError::Nonsense { .. })));
        assert_eq!((worker.encode("a", true).unwrap(), lives()), (vec![1], 2));
        // Every process must report the same of a file.
        let (worker, _) = counted("echo \"{\\\"loaded\\\":{\\\"vocabulary\\\":$lives,\\\"longest\\\":3}}\"");
        assert!(matches!(worker.unwrap().encode("a", true), Err(TokenizerError::Nonsense { .. })));
    }

    #[cfg(unix)]
    #[test]
    fn a_process_without_a_sandbox_says_so() {
        let script = format!("echo '{{\"ready\":\"no\\u001b seccomp\"}}'; read line; {LOADED}");
        let arguments = ["-c", &script].map(OsString::from).to_vec();
        let command = WorkerCommand { program: "sh".into(), arguments, time_out: WorkerCommand::TIME_OUT };
        assert_eq!(Worker::start(b"{}", &command).unwrap().no_sandbox.as_deref(), Some("no  seccomp"));
        assert_eq!(shell(LOADED, WorkerCommand::TIME_OUT).unwrap().no_sandbox, None);
    }

    #[cfg(unix)]
    #[test]
    fn a_process_gets_no_variable_that_it_does_not_need() {
        assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some(), "cargo runs this test");
        let worker =
            shell(&format!("[ -z \"$CARGO_MANIFEST_DIR$HOME\" ] || exit 3; {LOADED}"), WorkerCommand::TIME_OUT);
        assert_eq!((worker.as_ref().map(Worker::vocabulary), worker.as_ref().map(Worker::longest)), (Ok(7), Ok(3)));
    }
}
