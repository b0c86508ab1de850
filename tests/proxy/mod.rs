//! Programs that speak the interface of OpenAI, against a proxy and a server in processes of their own.

mod answers;
mod strangers;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use waggle_engine::Float;
use waggle_model::{GenerateOptions, Input, Model, Next, NoHooks, Sampler, generate};
use waggle_tokenizer::Tokenizer;

use crate::support::{Server, text, waggle};

const MODEL: &str = "shakespeare-llama";
const LIMIT: Duration = Duration::from_secs(600);

/// A proxy that is killed when dropped.
struct Proxy(Server);

/// An answer of HTTP.
struct Answer {
    code: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", text(&self.body)))
    }

    /// The data of the events of a stream.
    fn events(&self) -> Vec<Value> {
        let body = text(&self.body);
        let data: Vec<&str> =
            body.split_terminator("\n\n").map(|line| line.strip_prefix("data: ").unwrap()).collect();
        assert_eq!(data.last(), Some(&"[DONE]"));
        data[..data.len() - 1].iter().map(|data| serde_json::from_str(data).unwrap()).collect()
    }
}

impl Proxy {
    /// A server, and a proxy of it.
    fn start(server: &str, arguments: &str) -> (Server, Self) {
        let server = Server::start(server);
        let proxy = Proxy::of(&server, arguments);
        (server, proxy)
    }

    fn of(server: &Server, arguments: &str) -> Self {
        let line = format!("proxy --connect {} --listen 127.0.0.1:0 {arguments}", server.address);
        Proxy(Server::run(&mut waggle(&line)))
    }

    fn address(&self) -> &str {
        &self.0.address
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address()).unwrap()
    }

    /// The answer to the bytes `request`; none if the connection ends without one.
    fn raw(&self, request: &[u8]) -> Option<Answer> {
        let mut stream = self.connect();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        // A proxy that has refused a request may close before all of it is there.
        let _ = stream.write_all(request);
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        answer(&bytes)
    }

    fn get(&self, path: &str) -> Answer {
        self.raw(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes()).unwrap()
    }

    fn post(&self, path: &str, body: &str) -> Answer {
        self.raw(&request(path, JSON, body)).expect("an answer")
    }

    fn complete(&self, body: &Value) -> Value {
        let answer = self.post("/v1/completions", &body.to_string());
        assert_eq!(answer.code, 200, "{}", text(&answer.body));
        answer.json()
    }

    /// The answer to `messages`, which take turns.
    fn talk(&self, messages: &[&str], more: &Value) -> Value {
        let answer = self.post("/v1/chat/completions", &talk(messages, more).to_string());
        assert_eq!(answer.code, 200, "{}", text(&answer.body));
        answer.json()
    }
}

fn talk(messages: &[&str], more: &Value) -> Value {
    let role = |at: usize| ["user", "assistant"][at % 2];
    talk_of(messages.iter().enumerate().map(|(at, text)| (role(at), *text)), more)
}

fn talk_of<'a>(messages: impl IntoIterator<Item = (&'a str, &'a str)>, more: &Value) -> Value {
    let message = |(role, text): (&str, &str)| json!({"role": role, "content": text});
    let messages: Vec<Value> = messages.into_iter().map(message).collect();
    let mut body = json!({"messages": messages, "temperature": 0});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// What an answer says.
fn said(answer: &Value) -> String {
    answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

/// The answer that these bytes are.
fn answer(bytes: &[u8]) -> Option<Answer> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = text(&bytes[..end]);
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok())?;
    let mut rest = &bytes[end + 4..];
    let mut body = Vec::new();
    if !head.to_lowercase().contains("transfer-encoding: chunked") {
        body.extend(rest);
    } else {
        while let Some(line) = rest.windows(2).position(|two| two == b"\r\n") {
            let size = usize::from_str_radix(&text(&rest[..line]), 16).ok()?;
            body.extend(rest.get(line + 2..line + 2 + size)?);
            rest = rest.get(line + 4 + size..)?;
        }
    }
    Some(Answer { code, head, body })
}

fn request(path: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}Content-Length: {length}\r\n\r\n{body}")
        .into_bytes()
}

const JSON: &str = "Content-Type: application/json\r\n";

/// The tokens after `prompt` by the engine in the clear, with logits of all positions, and the tokenizer.
fn clear(prompt: &str, tokens: usize) -> (Vec<u32>, waggle_model::Generation, Tokenizer) {
    let files = waggle_model::bundled(MODEL).unwrap();
    let tokenizer = Tokenizer::from_bytes(files.tokenizer.as_deref().unwrap()).unwrap();
    let clear = Model::load(&mut waggle_engine::FloatLoader, &files.spec, Some(&files.checkpoint)).unwrap();
    let ids = tokenizer.encode(prompt).unwrap();
    let options = GenerateOptions { tokens, all_positions: true, ..GenerateOptions::default() };
    let next = Next::Pick(&mut Sampler::greedy());
    let truth = generate(&mut Float::default(), &clear, Input::known(&ids), &options, next, &mut NoHooks).unwrap();
    (ids, truth, tokenizer)
}

fn words(prompt: &str, tokens: usize) -> String {
    let (ids, truth, tokenizer) = clear(prompt, tokens);
    let mut stream = tokenizer.stream(&ids);
    truth.tokens.iter().map(|id| stream.push(*id).unwrap()).collect::<String>() + &stream.finish().unwrap()
}

/// The keys of two programs, the owner's first, in a file that its owner alone may read.
fn keys(dir: &Path) -> (PathBuf, [&'static str; 2]) {
    let (file, keys) = (dir.join("keys"), ["the-key-of-the-owner", "the-key-of-another"]);
    std::fs::write(&file, keys.join("\n")).unwrap();
    mode(&file, 0o600);
    (file, keys)
}

fn mode(file: &Path, mode: u32) {
    #[cfg(unix)]
    std::fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    #[cfg(not(unix))]
    let _ = (file, mode);
}
