//! Programs that speak the interface of OpenAI, against a proxy and a server in processes of their own.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use waggle_engine::Float;
use waggle_model::{GenerateOptions, Input, Model, Next, NoHooks, Sampler, generate};
use waggle_tokenizer::Tokenizer;

use crate::support::{Server, copy_model, fails, signal, text, until, waggle};

const MODEL: &str = "shakespeare-llama";
const LIMIT: Duration = Duration::from_secs(600);

/// A proxy that is killed when dropped, and its server.
struct Proxy {
    server: Server,
    own: Server,
}

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
    fn start(server: &str, arguments: &str) -> Self {
        let server = Server::start(server);
        let own = Proxy::of(&server, arguments);
        Proxy { server, own }
    }

    fn of(server: &Server, arguments: &str) -> Server {
        Server::run(&mut waggle(&format!("proxy --connect {} --listen 127.0.0.1:0 {arguments}", server.address)))
    }

    fn raw(&self, request: &[u8]) -> Option<Answer> {
        raw(&self.own.address, request)
    }

    fn get(&self, path: &str) -> Answer {
        self.raw(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes()).unwrap()
    }

    fn post(&self, path: &str, body: &str) -> Answer {
        post(&self.own.address, path, body)
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

/// The answer to the bytes `request`; none if the connection ends without one.
fn raw(address: &str, request: &[u8]) -> Option<Answer> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    // A proxy that has refused a request may close before all of it is there.
    let _ = stream.write_all(request);
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    answer(&bytes)
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

fn post(address: &str, path: &str, body: &str) -> Answer {
    raw(address, &request(path, JSON, body)).expect("an answer")
}

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

/// Noise stands in for logits: the same seed gives the same text.
#[test]
fn a_server_that_reveals_tokens_alone_samples() {
    let proxy = Proxy::start("--model shakespeare-gpt2 --reveal token", "");
    let asked = |more: &str| {
        let body = format!(r#"{{"prompt":"ROMEO:","max_tokens":8,"seed":5,{more}}}"#);
        let answer = proxy.post("/v1/completions", &body);
        (answer.code, answer.json())
    };
    let [one, same, hot] = [0.8, 0.8, 2.0].map(|temperature| {
        let (code, answer) = asked(&format!(r#""temperature":{temperature}"#));
        assert_eq!(code, 200, "{answer}");
        answer["choices"][0]["text"].as_str().unwrap().to_owned()
    });
    assert!(one == same && one != hot, "{one}, {same}, {hot}");
    for (more, param) in [(r#""top_p":0.5"#, "top_p"), (r#""top_k":5"#, "top_k"), (r#""logprobs":1"#, "logprobs")] {
        let (code, answer) = asked(more);
        assert_eq!((code, &answer["error"]["param"]), (400, &json!(param)), "{answer}");
    }
}

#[test]
fn completions_are_those_of_the_clear_model() {
    let proxy = Proxy::start(&format!("--model {MODEL}"), "");
    let prompts = ["ROMEO:\nWhat", "JULIET:\nGood night, good night"];
    let truth = prompts.map(|prompt| words(prompt, 8));
    let one = proxy.complete(&json!({"model": MODEL, "prompt": prompts[0], "max_tokens": 8, "temperature": 0}));
    assert_eq!(
        (&one["choices"][0]["text"], &one["choices"][0]["finish_reason"]),
        (&json!(truth[0]), &json!("length"))
    );
    assert_eq!(one["usage"]["completion_tokens"], 8);
    let pass = &one["usage"]["waggle"]["passes"][0];
    assert!(pass["bytes"].as_u64().unwrap() > 100_000 && pass["session"] == "new", "{pass}");
    // The next one finds the session open, and an empty cache.
    let two = proxy.complete(&json!({"prompt": prompts[1], "max_tokens": 8, "temperature": 0}));
    assert_eq!(two["choices"][0]["text"], truth[1]);
    assert_eq!(two["usage"]["waggle"]["passes"][0]["session"], "kept");
    assert_eq!(two["usage"]["waggle"]["passes"][0]["server_saw"]["prompt_tokens"], two["usage"]["prompt_tokens"]);

    // Two prompts, two samples of each, in one pass; the shorter prompt is padded.
    let both = proxy.complete(&json!({"prompt": prompts, "n": 2, "max_tokens": 8, "temperature": 0}));
    let texts: Vec<&Value> = both["choices"].as_array().unwrap().iter().map(|choice| &choice["text"]).collect();
    assert_eq!(texts, [&truth[0], &truth[0], &truth[1], &truth[1]]);
    let passes = both["usage"]["waggle"]["passes"].as_array().unwrap();
    assert_eq!((passes.len(), &passes[0]["server_saw"]["texts"]), (1, &json!(4)));
    let seeded = json!({"prompt": prompts[0], "n": 3, "max_tokens": 6, "seed": 7});
    let [first, again] = [(); 2].map(|()| proxy.complete(&seeded)["choices"].clone());
    assert_eq!(first, again);

    // Streams are the text in pieces, each with the number of its choice.
    let asked = json!({"prompt": prompts, "max_tokens": 8, "temperature": 0, "stream": true,
        "stream_options": {"include_usage": true}});
    let answer = proxy.post("/v1/completions", &asked.to_string());
    assert!(answer.head.contains("text/event-stream"));
    let events = answer.events();
    for (index, truth) in truth.iter().enumerate() {
        let own = events.iter().flat_map(|event| event["choices"].as_array().unwrap());
        let own: Vec<&Value> = own.filter(|choice| choice["index"] == index).collect();
        let text: String = own.iter().map(|choice| choice["text"].as_str().unwrap()).collect();
        assert_eq!((&text, &own[own.len() - 1]["finish_reason"]), (truth, &json!("length")));
        assert!(own.len() > 4, "{own:?}");
    }
    assert_eq!(events[events.len() - 1]["usage"]["completion_tokens"], 16);

    // A text ends before its stop, and the answer says so.
    let stop = truth[0].char_indices().nth(3).map(|(at, c)| truth[0][at..at + c.len_utf8()].to_owned()).unwrap();
    let cut = proxy.complete(
        &json!({"prompt": prompts[0], "max_tokens": 8, "temperature": 0, "stop": [stop, "\u{0}"], "logprobs": 1}),
    );
    let expected = truth[0].split(&stop).next().unwrap();
    assert_eq!((&cut["choices"][0]["text"], &cut["choices"][0]["finish_reason"]), (&json!(expected), &json!("stop")));
    assert!(cut["usage"]["completion_tokens"].as_u64().unwrap() < 8);
    let listed = cut["choices"][0]["logprobs"]["tokens"].as_array().unwrap();
    assert_eq!(listed.iter().map(|token| token.as_str().unwrap()).collect::<String>(), expected);
    assert_eq!(proxy.get("/health").code, 200);
    let page = text(&proxy.get("/metrics").body);
    assert!(page.contains("waggle_proxy_passes_total{session=\"kept\"}"), "{page}");
}

/// What evaluations need: the logarithms of probabilities of a text that is given.
#[test]
fn a_prompt_is_scored_as_the_clear_model_scores_it() {
    let proxy = Proxy::start(&format!("--model {MODEL}"), "--preprocess");
    let prompts = ["ROMEO:\nWhat say you to", "JULIET:\nGo"];
    for tokens in [0, 1] {
        let asked = json!({"prompt": prompts, "max_tokens": tokens, "temperature": 0, "echo": true, "logprobs": 2, "seed": 1234});
        let scored = proxy.complete(&asked);
        for (choice, prompt) in scored["choices"].as_array().unwrap().iter().zip(prompts) {
            let (ids, truth, _) = clear(prompt, 1);
            let logits = truth.logits.unwrap();
            let all = [&ids[..], &truth.tokens[..tokens]].concat();
            let found = &choice["logprobs"];
            let worth = found["token_logprobs"].as_array().unwrap();
            assert_eq!((worth.len(), &worth[0]), (all.len(), &Value::Null));
            for at in 1..all.len() {
                let row = logits.row(at - 1);
                let most = row.iter().fold(f32::MIN, |a, b| a.max(*b));
                let sum: f32 = row.iter().map(|x| (x - most).exp()).sum();
                let expected = row[all[at] as usize] - most - sum.ln();
                let got = worth[at].as_f64().unwrap() as f32;
                assert!((got - expected).abs() < 0.03, "{prompt} {at}: {got} {expected}");
                let top = found["top_logprobs"][at].as_object().unwrap();
                let own = found["tokens"][at].as_str().unwrap();
                assert!((2..=3).contains(&top.len()) && top[own].as_f64() == worth[at].as_f64(), "{top:?}");
            }
            let echoed = if tokens == 0 { prompt.to_owned() } else { prompt.to_owned() + &words(prompt, 1) };
            assert_eq!(choice["text"], echoed);
        }
        assert_eq!(scored["usage"]["waggle"]["passes"].as_array().unwrap().len(), 1);
    }
    // Nothing is asked of the server for nothing.
    let echo = proxy.complete(&json!({"prompt": prompts[0], "max_tokens": 0, "echo": true}));
    assert_eq!((&echo["choices"][0]["text"], &echo["usage"]["waggle"]["passes"]), (&json!(prompts[0]), &json!([])));
}

#[test]
fn a_conversation_that_goes_on_finds_its_cache() {
    let proxy = Proxy::start(&format!("--model {MODEL}"), "--tokens 8 --turn-tokens 24 --preprocess");
    let saw = |answer: &Value| answer["usage"]["waggle"]["passes"][0]["server_saw"].clone();
    let first = proxy.talk(&["ROMEO:"], &json!({}));
    assert_eq!(saw(&first)["continues"], false);
    let messages = ["ROMEO:", &said(&first), "What says my lady"];
    let second = proxy.talk(&messages, &json!({}));
    assert_eq!(
        (&saw(&second)["continues"], &second["usage"]["waggle"]["passes"][0]["session"]),
        (&json!(true), &json!("kept"))
    );
    let new = saw(&second)["prompt_tokens"].as_u64().unwrap();
    // The same turn without the cache reads everything again and says the same.
    let other = proxy.talk(&["JULIET:"], &json!({}));
    assert_eq!(saw(&other)["continues"], false);
    let again = proxy.talk(&messages, &json!({}));
    assert_eq!(said(&again), said(&second));
    assert!(saw(&again)["prompt_tokens"].as_u64().unwrap() > new);
    // What a stop has cut is not what the cache holds.
    let stop = said(&second).chars().nth(2).unwrap().to_string();
    let cut = proxy.talk(&messages, &json!({"stop": stop}));
    assert_eq!(said(&cut), said(&second).split(&stop).next().unwrap());
    let cut = said(&cut);
    let after = proxy.talk(&[messages[0], messages[1], messages[2], &cut, "JULIET:"], &json!({}));
    assert_eq!(saw(&after)["continues"], false);
    // A turn and an answer longer than the session allows open another one, which streams as well.
    let long = "O, ".repeat(30);
    let asked = talk(&[&long], &json!({"stream": true, "max_tokens": 12}));
    let events = proxy.post("/v1/chat/completions", &asked.to_string()).events();
    let text: String = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    let whole = proxy.talk(&[&long], &json!({"max_tokens": 12}));
    assert_eq!((&text, &whole["usage"]["completion_tokens"]), (&said(&whole), &json!(12)));
    // An answer has a role, once, also if it is empty.
    let stop = text.chars().next().unwrap().to_string();
    let asked = talk(&[&long], &json!({"stream": true, "max_tokens": 12, "stop": stop}));
    for events in [events, proxy.post("/v1/chat/completions", &asked.to_string()).events()] {
        let deltas: Vec<&Value> = events.iter().map(|event| &event["choices"][0]["delta"]).collect();
        assert_eq!(deltas[0], &json!({"role": "assistant", "content": ""}));
        assert!(deltas[1..].iter().all(|delta| delta["role"].is_null()), "{deltas:?}");
    }
    // Correlations are made while nobody asks.
    let proxied = until(|| {
        let answer = proxy.talk(&["ROMEO:"], &json!({}));
        answer["usage"]["waggle"]["passes"][0]["prepared_bytes"].as_u64().filter(|bytes| *bytes > 0)
    });
    assert!(proxied > 0);
    // A server that was started again is found again, and the conversation read again.
    let Proxy { server, own } = proxy;
    let address = server.address.clone();
    drop(server);
    let server = Server::run(&mut waggle(&format!("serve --listen {address} --model {MODEL}")));
    let proxy = Proxy { server, own };
    let after = proxy.talk(&messages, &json!({}));
    assert_eq!(said(&after), said(&second));
    drop(proxy.server);
    let gone = post(&proxy.own.address, "/v1/chat/completions", &talk(&messages, &json!({})).to_string());
    assert_eq!((gone.code, &gone.json()["error"]["type"]), (502, &json!("server_error")));
    let health = raw(&proxy.own.address, b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert_eq!(health.unwrap().code, 503);
}

/// Messages have one form, whether the cache holds them or they are read again; the template says which may follow
/// which.
#[test]
fn a_conversation_says_the_same_kept_and_read_again() {
    let dir = tempfile::tempdir().unwrap();
    copy_model(MODEL, dir.path());
    let template = "{% for m in messages %}{{ m.content }}\n{% if m.role == 'system' and not loop.first %}\
        {{ raise_exception('it stands first') }}{% endif %}{% endfor %}";
    std::fs::write(dir.path().join("chat_template.jinja"), template).unwrap();
    let server = Server::start(&format!("--skip-range-check --model {}", dir.path().display()));
    for more in ["", "--no-template"] {
        let own = Proxy::of(&server, &format!("--tokens 8 {more}"));
        let ask = |messages: &[&str], more: &Value| {
            let answer = post(&own.address, "/v1/chat/completions", &talk(messages, more).to_string());
            assert_eq!(answer.code, 200, "{}", text(&answer.body));
            answer.json()
        };
        // An answer that ends in a space, of a model whose tokens are characters.
        let answer = said(&ask(&["What of the king"], &json!({"max_tokens": 24})));
        let most = answer.find(' ').unwrap() + 1;
        let first = said(&ask(&["What of the king"], &json!({"max_tokens": most})));
        assert!(first.ends_with(' '), "{first:?}");
        let messages = ["What of the king", &first, "\nSpeak again"];
        let kept = ask(&messages, &json!({}));
        assert_eq!(kept["usage"]["waggle"]["passes"][0]["server_saw"]["continues"], true);
        ask(&["A"], &json!({"max_tokens": 1}));
        let again = ask(&messages, &json!({}));
        assert_eq!(again["usage"]["waggle"]["passes"][0]["server_saw"]["continues"], false);
        assert_eq!(said(&again), said(&kept), "{more}");
    }
    let own = Proxy::of(&server, "");
    let proxy = Proxy { server, own };
    let ask = |messages: &[(&str, &str)]| {
        proxy.post("/v1/chat/completions", &talk_of(messages.iter().copied(), &json!({"max_tokens": 2})).to_string())
    };
    for messages in [
        &[("user", "A"), ("user", "B")][..],
        &[("assistant", "A"), ("user", "B"), ("assistant", "C")],
        &[("system", "A"), ("user", "")],
        &[("user", "")],
    ] {
        let answer = ask(messages);
        assert_eq!(answer.code, 200, "{messages:?} {}", text(&answer.body));
    }
    let refused = ask(&[("user", "A"), ("system", "B"), ("user", "C")]);
    let error = &refused.json()["error"];
    assert_eq!((refused.code, &error["param"]), (400, &json!("messages")));
    assert!(error["message"].as_str().unwrap().contains("it stands first"), "{error}");
}

/// Requests that wait go through the model together, whoever asks; each program gets its own text.
#[test]
fn requests_that_wait_share_a_pass() {
    let proxy = Proxy::start(&format!("--model {MODEL}"), "--texts 4");
    let names = ["ROMEO", "JULIET", "NURSE", "MERCUTIO", "TYBALT", "PARIS"];
    let prompts = names.map(|name| format!("{name}:\n"));
    let address = &proxy.own.address;
    // The proxy has something to do until six others wait.
    let long = json!({"prompt": "A", "max_tokens": 200, "stream": true}).to_string();
    let mut busy = TcpStream::connect(address).unwrap();
    busy.write_all(&request("/v1/completions", JSON, &long)).unwrap();
    busy.read_exact(&mut [0; 16]).unwrap();
    let answers: Vec<Value> = std::thread::scope(|scope| {
        let ask = |prompt: &String| {
            let body = json!({"prompt": prompt, "max_tokens": 12, "temperature": 0}).to_string();
            scope.spawn(move || post(address, "/v1/completions", &body).json())
        };
        let asked: Vec<_> = prompts.iter().map(ask).collect();
        until(|| text(&proxy.get("/metrics").body).contains("requests_waiting 6\n").then_some(()));
        drop(busy);
        asked.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    let page = text(&proxy.get("/metrics").body);
    assert!(page.contains("waggle_proxy_passes_total{session=\"shared\"} 2\n"), "{page}");
    for (prompt, answer) in prompts.iter().zip(&answers) {
        assert_eq!(answer["choices"][0]["text"], words(prompt, 12), "{prompt}");
        // Nothing that tells of the others: how many they are, the longest of them, what all took.
        let own = clear(prompt, 1).0.len();
        let usage = json!({"prompt_tokens": own, "completion_tokens": 12, "total_tokens": own + 12,
            "waggle": {"passes": [{"session": "shared"}]}});
        assert_eq!(answer["usage"], usage, "{prompt}");
    }
}

/// The keys of two programs, the owner's first, in a file that its owner alone may read.
fn keys(dir: &std::path::Path) -> (std::path::PathBuf, [&'static str; 2]) {
    let (file, keys) = (dir.join("keys"), ["the-key-of-the-owner", "the-key-of-another"]);
    std::fs::write(&file, keys.join("\n")).unwrap();
    mode(&file, 0o600);
    (file, keys)
}

fn mode(file: &std::path::Path, mode: u32) {
    #[cfg(unix)]
    std::fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    #[cfg(not(unix))]
    let _ = (file, mode);
}

/// Whoever guesses what another key has said reads it as if nobody had, and sees no numbers of the session they
/// share.
#[test]
fn a_conversation_is_its_keys_own() {
    let dir = tempfile::tempdir().unwrap();
    let (file, [owner, other]) = keys(dir.path());
    let proxy = Proxy::start(&format!("--model {MODEL}"), &format!("--tokens 8 --api-key-file {}", file.display()));
    let say = |key: &str, messages: &[&str]| {
        let headers = format!("{JSON}Authorization: Bearer {key}\r\n");
        let body = talk(messages, &json!({})).to_string();
        let answer = proxy.raw(&request("/v1/chat/completions", &headers, &body)).unwrap();
        assert_eq!(answer.code, 200, "{}", text(&answer.body));
        answer.json()
    };
    let first = say(owner, &["ROMEO:"]);
    let messages = ["ROMEO:", &said(&first), "What says my lady"];
    let second = say(owner, &messages);
    assert_eq!(second["usage"]["waggle"]["passes"][0]["server_saw"]["continues"], true);
    let answer = said(&second);
    let third = [&messages[..], &[&*answer, "Nay"]].concat();
    let guessed = say(other, &third);
    let seen = &guessed["usage"]["waggle"]["passes"];
    assert_eq!(seen, &json!([{"session": "shared"}]));
    let read = |answer: &Value| answer["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(read(&guessed) > read(&first) + read(&second), "all of it was read: {guessed}");
    // The owner's conversation has no cache any more, and says the same.
    let again = say(owner, &third);
    assert_eq!((said(&again), read(&again)), (said(&guessed), read(&guessed)));
    assert_eq!(&again["usage"]["waggle"]["passes"], seen);
}

/// Were it read again, its length would tell that of the answers that are padded.
#[test]
fn a_template_that_rewrites_is_refused_where_answers_are_padded() {
    let dir = tempfile::tempdir().unwrap();
    copy_model(MODEL, dir.path());
    let config = dir.path().join("config.json");
    let ends = std::fs::read_to_string(&config).unwrap().replace("\"eos_token_id\": null", "\"eos_token_id\": 1");
    std::fs::write(config, ends).unwrap();
    std::fs::write(dir.path().join("chat_template.jinja"), "{{ messages | length }}{{ messages[-1].content }}")
        .unwrap();
    let server = Server::start(&format!("--skip-range-check --model {}", dir.path().display()));
    for (more, code) in [("", 400), ("--pad-answer false", 200)] {
        let proxy = Proxy::of(&server, &format!("--tokens 4 {more}"));
        let ask = |messages: &[&str]| {
            let body = talk(messages, &json!({})).to_string();
            post(&proxy.address, "/v1/chat/completions", &body)
        };
        let first = ask(&["ROMEO:"]).json();
        let said = first["choices"][0]["message"]["content"].as_str().unwrap();
        // Whoever asks again is refused again.
        for _ in 0..2 {
            let second = ask(&["ROMEO:", said, "My lord"]);
            assert_eq!(second.code, code, "{}", text(&second.body));
            assert_eq!(text(&second.body).contains("would show how long the answers were"), code == 400);
        }
        drop(proxy);
    }
}

/// The processes that `pid` has started and that live, and their processor time, in ticks.
#[cfg(target_os = "linux")]
fn children(pid: u32) -> std::collections::BTreeMap<u32, u64> {
    let mut found = std::collections::BTreeMap::new();
    for process in
        std::fs::read_dir("/proc").unwrap().filter_map(|process| process.ok()?.file_name().into_string().ok())
    {
        let Ok(child) = process.parse() else { continue };
        // One that has ended since is none.
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        if let [state, parent, ..] = fields[..]
            && state != "Z"
            && parent.parse() == Ok(pid)
        {
            found.insert(child, [11, 12].iter().map(|at| fields[*at].parse::<u64>().unwrap()).sum());
        }
    }
    found
}

#[cfg(target_os = "linux")]
#[test]
fn a_proxy_outlives_its_tokenizers_process() {
    let proxy = Proxy::start(&format!("--model {MODEL}"), "");
    let pid = proxy.own.child.id();
    let asked = json!({"prompt": "ROMEO:", "max_tokens": 24, "temperature": 0, "stream": true});
    let mut before = children(pid);
    for _ in 0..2 {
        assert!(!before.is_empty());
        let mut stream = TcpStream::connect(&proxy.own.address).unwrap();
        stream.write_all(&request("/v1/completions", JSON, &asked.to_string())).unwrap();
        let mut bytes = vec![0; 512];
        stream.read_exact(&mut bytes).unwrap();
        assert!(text(&bytes).contains("data: "), "the text has begun: {}", text(&bytes));
        for child in before.keys() {
            let killed = std::process::Command::new("kill").args(["-KILL", &child.to_string()]).status();
            assert!(killed.unwrap().success());
        }
        // The text goes on, and so does the proxy.
        stream.read_to_end(&mut bytes).unwrap();
        let events = answer(&bytes).unwrap().events();
        let text: String = events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
        assert_eq!(text, words("ROMEO:", 24));
        let next = proxy.complete(&json!({"prompt": "JULIET:", "max_tokens": 2, "temperature": 0}));
        assert_eq!(next["choices"][0]["text"], words("JULIET:", 2));
        let after = children(pid);
        assert!(after.keys().all(|child| !before.contains_key(child)), "{before:?} {after:?}");
        before = after;
    }
    // What no model can read costs the process nothing.
    for body in [
        post(&proxy.own.address, "/v1/completions", &json!({"prompt": "the fox ".repeat(480_000)}).to_string()),
        post(
            &proxy.own.address,
            "/v1/chat/completions",
            &talk(&[&"the fox ".repeat(480_000)], &json!({"max_tokens": 8})).to_string(),
        ),
    ] {
        let error = &body.json()["error"];
        assert_eq!((body.code, &error["code"]), (400, &json!("context_length_exceeded")), "{error}");
        let after = children(pid);
        assert!(before.iter().all(|(child, ticks)| after.get(child) == Some(ticks)), "{before:?} {after:?}");
    }
    assert_eq!(proxy.get("/health").code, 200);
}

#[test]
fn whoever_may_not_come_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (file, [owner, other]) = keys(dir.path());
    let proxy =
        Proxy::start("--model shakespeare-gpt2 --sessions 2", "--allow-origin https://known.example --queue 1");
    let good = json!({"prompt": "A", "max_tokens": 1, "temperature": 0}).to_string();
    let asked = |headers: &str| proxy.raw(&request("/v1/completions", headers, &good)).unwrap();
    let code =
        |answer: &Answer| (answer.code, answer.json()["error"]["code"].as_str().unwrap_or_default().to_owned());
    assert_eq!(code(&asked(&format!("{JSON}Origin: https://evil.example\r\n"))), (403, "foreign_origin".into()));
    assert_eq!(code(&asked(&format!("{JSON}Origin: null\r\n"))), (403, "foreign_origin".into()));
    let known = asked(&format!("{JSON}Origin: https://known.example\r\n"));
    assert!(known.code == 200 && known.head.contains("access-control-allow-origin: https://known.example"));
    assert_eq!(asked(&format!("{JSON}Origin: http://localhost\r\n")).code, 200);
    assert_eq!(code(&asked("Content-Type: text/plain\r\n")), (415, "not_json".into()));
    let rebound = b"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    assert_eq!(code(&proxy.raw(rebound).unwrap()), (403, "foreign_host".into()));
    for (path, body, expected) in [
        ("/v1/nothing", "{}", 404),
        ("/v1/models", "{}", 405),
        ("/v1/completions", "{", 400),
        ("/v1/completions", r#"{"prompt":"A","model":"gpt-4"}"#, 404),
        ("/v1/completions", r#"{"prompt":[99999999]}"#, 400),
        ("/v1/completions", r#"{"prompt":""}"#, 400),
        ("/v1/completions", r#"{"prompt":"A","max_tokens":1000000}"#, 400),
        ("/v1/chat/completions", r#"{"messages":[]}"#, 400),
    ] {
        let answer = proxy.post(path, body);
        let error = &answer.json()["error"];
        assert_eq!((answer.code, error["message"].is_string()), (expected, true), "{path} {body}");
        assert!(error["param"].is_string() || body.len() < 3, "{path} {body}: {error}");
        let long = error["message"].as_str().unwrap().contains("maximum context length is 256 tokens");
        assert_eq!(long, error["code"] == "context_length_exceeded", "{error}");
    }
    assert_eq!(proxy.post("/v1/completions", &" ".repeat(5 << 20)).code, 413);
    // Names and paths are written in several ways, and two names are none.
    let head = |line: &str, headers: &str| {
        proxy.raw(format!("{line} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n").as_bytes()).unwrap()
    };
    for path in ["/", "/health", "/metrics", "/v1/models", "/v1/models/", "//v1/models/shakespeare%2Dgpt2"] {
        let answers = ["GET", "HEAD"].map(|method| head(&format!("{method} {path}"), "Host: LOCALHOST:80\r\n"));
        assert!(answers.iter().all(|answer| answer.code == 200) && answers[1].body.is_empty(), "{path}");
    }
    assert_eq!(head("GET /v1/models/other", "Host: localhost\r\n").code, 404);
    assert_eq!(head("GET /health", "Host: localhost\r\nHost: localhost\r\n").code, 400);
    assert_eq!(head("GET http://evil.example/health", "Host: localhost\r\n").code, 403);
    // A browser asks whether a page may send what its program says of itself.
    let preflight = "Host: localhost\r\nAccess-Control-Request-Method: POST\r\n\
        Access-Control-Request-Headers: authorization,content-type,x-stainless-os\r\nOrigin: https://";
    let allowed = head("OPTIONS /v1/chat/completions/", &format!("{preflight}Known.example\r\n"));
    assert!(allowed.head.contains("access-control-allow-headers: authorization,content-type,x-stainless-os"));
    assert!(allowed.code == 200 && allowed.head.contains("access-control-allow-methods: POST"), "{}", allowed.head);
    assert_eq!(head("OPTIONS /v1/models", &format!("{preflight}evil.example\r\n")).code, 403);
    // Whoever sends half a request makes room for others.
    let half = |_| {
        let mut stream = TcpStream::connect(&proxy.own.address).unwrap();
        stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n").unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    };
    let mut halves: Vec<TcpStream> = (0..300).map(half).collect();
    assert_eq!(proxy.get("/health").code, 200);
    let mut rest = Vec::new();
    let _ = halves[0].read_to_end(&mut rest);
    assert!(rest.is_empty(), "{}", text(&rest));
    let mut last = halves.pop().unwrap();
    last.write_all(b"Connection: close\r\n\r\n").unwrap();
    last.read_to_end(&mut rest).unwrap();
    assert_eq!(answer(&rest).unwrap().code, 200);
    drop(halves);
    // Nobody could talk to such a proxy.
    for long in ["--turn-tokens 100000", "--tokens 100000", "--turn-tokens 200 --tokens 200"] {
        let line = format!("proxy --connect {} --listen 127.0.0.1:0 {long}", proxy.server.address);
        fails(&mut waggle(&line), 1, ["--turn-tokens", "positions"]);
    }
    let page = proxy.get("/");
    assert!(page.head.contains("content-security-policy: default-src 'none'; script-src 'nonce-"), "{}", page.head);
    assert!(!text(&page.body).contains("{{nonce}}"));

    // With keys the page and the health are open, and nothing else is; the first key alone sees what all took.
    let line =
        format!("proxy --connect {} --connect-timeout 1 --api-key-file {}", proxy.server.address, file.display());
    let keyed =
        Server::run(&mut waggle(&format!("{line} --listen 127.0.0.1:0 --allow-origin http://name.example:80")));
    let ask = |host: &str, path: &str, key: &str| {
        let key = if key.is_empty() { String::new() } else { format!("Authorization: bearer {key}\r\n") };
        let head = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{key}Connection: close\r\n\r\n");
        raw(&keyed.address, head.as_bytes()).unwrap()
    };
    let get = |path: &str, key: &str| ask("localhost", path, key).code;
    for (path, others) in [("/v1/models", 200), ("/metrics", 403), ("/v1/models/shakespeare-gpt2", 200)] {
        assert_eq!(["", &owner[1..], owner, other].map(|key| get(path, key)), [401, 401, 200, others], "{path}");
    }
    assert_eq!((get("/", ""), get("/health", "")), (200, 200));
    let hosts = ["name.example:80", "10.0.0.7:8080", "any", "evil.example"];
    assert_eq!(hosts.map(|host| ask(host, "/health", "").code), [200, 200, 403, 403]);
    fails(
        &mut waggle(&format!("proxy --connect {} --listen 0.0.0.0:0", proxy.server.address)),
        1,
        ["--api-key-file"],
    );
    #[cfg(unix)]
    for open in [0o640, 0o604] {
        mode(&file, open);
        fails(&mut waggle(&line), 1, ["others may read this secret key"]);
    }
    mode(&file, 0o600);
    let long = "a".repeat(5000);
    for (held, error) in [
        ("\n", "holds no key"),
        ("sixteen-bytes-ok\nfifteen-are-not\n", "has 15 bytes"),
        (&long, "the key in line 1"),
        ("sixteen-bytes-ok\nsixteen-\u{e9}-not-ok\n", "the key in line 2"),
        (&"sixteen-bytes-ok\n".repeat(1 << 17), "more than 1048576 bytes"),
    ] {
        std::fs::write(&file, held).unwrap();
        fails(&mut waggle(&line), 1, [error]);
    }
    // Why nobody is served is the owner's to know.
    let Proxy { server, own: _own } = proxy;
    let address = server.address.clone();
    drop(server);
    let headers = format!("{JSON}Authorization: Bearer {other}\r\n");
    assert_eq!(raw(&keyed.address, &request("/v1/completions", &headers, &good)).unwrap().code, 502);
    let [told, strangers, others] = [owner, "", other].map(|key| ask("localhost", "/health", key));
    assert!(told.code == 503 && told.json()["error"].as_str().is_some_and(|error| error.contains(&address)));
    for answer in [strangers, others] {
        assert_eq!((answer.code, answer.json()), (503, json!({"status": "error"})));
    }
    // Whoever tries keys is not listened to for a while.
    until(|| (get("/v1/models", "a-key-that-is-wrong") == 429).then_some(()));
    assert_eq!(get("/health", ""), 503);
    until(|| (get("/v1/models", owner) == 200).then_some(()));
    // It ends when it is told to, and so does its session.
    signal(&keyed.child, "TERM");
    assert_eq!(keyed.end(LIMIT).0, Some(0));
}

/// Spoiled requests, cut connections and slow readers, between honest requests whose answers stay right.
#[test]
fn a_proxy_outlives_programs_that_misbehave() {
    misbehave(60);
}

#[test]
#[ignore = "minutes"]
fn a_proxy_outlives_two_thousand_requests() {
    misbehave(2000);
}

fn misbehave(requests: u64) {
    let proxy = Proxy::start("--model shakespeare-gpt2", "");
    let honest = json!({"prompt": "ROMEO:", "max_tokens": 2, "temperature": 0});
    let truth = proxy.complete(&honest)["choices"][0]["text"].clone();
    let body = honest.to_string();
    let whole = request("/v1/completions", JSON, &body);
    let address = proxy.own.address.as_str();
    // Readers that never read, and senders that never finish, to the end of the test.
    let mut standing = Vec::new();
    for seed in 0..requests {
        let mut rng = StdRng::seed_from_u64(seed);
        match seed % 10 {
            // Bytes changed at random.
            0 | 1 => {
                let mut spoiled = whole.clone();
                for _ in 0..rng.random_range(1..6) {
                    let at = rng.random_range(0..spoiled.len());
                    spoiled[at] = rng.random();
                }
                let mut stream = TcpStream::connect(address).unwrap();
                let _ = stream.write_all(&spoiled);
                let _ = stream.shutdown(Shutdown::Write);
                let _ = stream.read_to_end(&mut Vec::new());
            }
            // A connection that is cut, in the request or in the answer.
            2 => {
                let mut stream = TcpStream::connect(address).unwrap();
                let _ = stream.write_all(&whole[..rng.random_range(0..=whole.len())]);
            }
            3 => {
                let asked = json!({"prompt": "A", "max_tokens": 8, "stream": true}).to_string();
                let mut stream = TcpStream::connect(address).unwrap();
                stream.write_all(&request("/v1/completions", JSON, &asked)).unwrap();
                let _ = stream.read(&mut [0; 64]);
            }
            4 if standing.len() < 40 => {
                let mut stream = TcpStream::connect(address).unwrap();
                let sent = if rng.random() { whole.len() } else { rng.random_range(1..whole.len()) };
                let _ = stream.write_all(&whole[..sent]);
                standing.push(stream);
            }
            // Stops of a hundred thousand characters.
            5 => {
                let stop = "ab".repeat(50_000);
                let answer = post(
                    address,
                    "/v1/completions",
                    &json!({"prompt": "A", "max_tokens": 4, "stop": [stop]}).to_string(),
                );
                assert_eq!(answer.code, 200);
            }
            6 => {
                let deep = "[".repeat(rng.random_range(1..200_000));
                assert_eq!(post(address, "/v1/completions", &deep).code, 400);
            }
            // A body that does not end.
            7 => {
                let endless = format!(
                    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{JSON}Content-Length: 99999999999\r\n\r\n"
                );
                let mut stream = TcpStream::connect(address).unwrap();
                let _ = stream.write_all(endless.as_bytes());
                while stream.write_all(&[b' '; 1 << 16]).is_ok() {}
            }
            8 => {
                let foreign = format!("{JSON}Origin: http://evil{seed}.example\r\n");
                assert_eq!(raw(address, &request("/v1/chat/completions", &foreign, &body)).unwrap().code, 403);
            }
            _ => assert_eq!(proxy.complete(&honest)["choices"][0]["text"], truth),
        }
    }
    assert_eq!(proxy.complete(&honest)["choices"][0]["text"], truth);
    drop(standing);
    let Proxy { server, own } = proxy;
    for log in [own.stop(), server.stop()] {
        assert!(!log.contains("panic"), "{log}");
    }
}
