//! Who may ask a proxy and sees what, and what a proxy outlives.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use super::{Answer, JSON, LIMIT, MODEL, Proxy, answer, keys, mode, request, said, talk, words};
#[cfg(target_os = "linux")]
use crate::support::{children, signal};
use crate::support::{fails, text, until, waggle};

/// Whoever guesses what another key has said reads it as if nobody had, and sees no numbers of the session they
/// share.
#[test]
fn a_conversation_is_its_keys_own() {
    let dir = tempfile::tempdir().unwrap();
    let (file, [owner, other]) = keys(dir.path());
    let (_server, proxy) =
        Proxy::start(&format!("--model {MODEL}"), &format!("--tokens 8 --api-key-file {}", file.display()));
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

#[cfg(target_os = "linux")]
#[test]
fn a_proxy_outlives_its_tokenizers_process() {
    let (_server, proxy) = Proxy::start(&format!("--model {MODEL}"), "");
    let pid = proxy.0.child.id();
    let asked = json!({"prompt": "ROMEO:", "max_tokens": 24, "temperature": 0, "stream": true});
    let mut before = children(pid);
    for _ in 0..2 {
        assert!(!before.is_empty());
        let mut stream = proxy.connect();
        stream.write_all(&request("/v1/completions", JSON, &asked.to_string())).unwrap();
        let mut bytes = vec![0; 512];
        stream.read_exact(&mut bytes).unwrap();
        assert!(text(&bytes).contains("data: "), "the text has begun: {}", text(&bytes));
        for child in before.keys() {
            signal(*child, "KILL");
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
        proxy.post("/v1/completions", &json!({"prompt": "the fox ".repeat(480_000)}).to_string()),
        proxy.post(
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
    let (server, proxy) =
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
        let mut stream = proxy.connect();
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
        let line = format!("proxy --connect {} --listen 127.0.0.1:0 {long}", server.address);
        fails(&mut waggle(&line), 1, ["--turn-tokens", "positions"]);
    }
    let page = proxy.get("/");
    assert!(page.head.contains("content-security-policy: default-src 'none'; script-src 'nonce-"), "{}", page.head);
    assert!(!text(&page.body).contains("{{nonce}}"));

    // With keys the page and the health are open, and nothing else is; the first key alone sees what all took.
    let line = format!("proxy --connect {} --connect-timeout 1 --api-key-file {}", server.address, file.display());
    let more = format!("--connect-timeout 1 --api-key-file {} --allow-origin http://name.example:80", file.display());
    let keyed = Proxy::of(&server, &more);
    let ask = |host: &str, path: &str, key: &str| {
        let key = if key.is_empty() { String::new() } else { format!("Authorization: bearer {key}\r\n") };
        let head = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{key}Connection: close\r\n\r\n");
        keyed.raw(head.as_bytes()).unwrap()
    };
    let get = |path: &str, key: &str| ask("localhost", path, key).code;
    for (path, others) in [("/v1/models", 200), ("/metrics", 403), ("/v1/models/shakespeare-gpt2", 200)] {
        assert_eq!(["", &owner[1..], owner, other].map(|key| get(path, key)), [401, 401, 200, others], "{path}");
    }
    assert_eq!((get("/", ""), get("/health", "")), (200, 200));
    let hosts = ["name.example:80", "10.0.0.7:8080", "any", "evil.example"];
    assert_eq!(hosts.map(|host| ask(host, "/health", "").code), [200, 200, 403, 403]);
    fails(&mut waggle(&format!("proxy --connect {} --listen 0.0.0.0:0", server.address)), 1, ["--api-key-file"]);
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
    let address = server.address.clone();
    drop(server);
    let headers = format!("{JSON}Authorization: Bearer {other}\r\n");
    assert_eq!(keyed.raw(&request("/v1/completions", &headers, &good)).unwrap().code, 502);
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
    keyed.0.signal("TERM");
    assert_eq!(keyed.0.end(LIMIT).code, Some(0));
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
    let (server, proxy) = Proxy::start("--model shakespeare-gpt2", "");
    let honest = json!({"prompt": "ROMEO:", "max_tokens": 2, "temperature": 0});
    let truth = proxy.complete(&honest)["choices"][0]["text"].clone();
    let body = honest.to_string();
    let whole = request("/v1/completions", JSON, &body);
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
                let mut stream = proxy.connect();
                let _ = stream.write_all(&spoiled);
                let _ = stream.shutdown(Shutdown::Write);
                let _ = stream.read_to_end(&mut Vec::new());
            }
            // A connection that is cut, in the request or in the answer.
            2 => {
                let mut stream = proxy.connect();
                let _ = stream.write_all(&whole[..rng.random_range(0..=whole.len())]);
            }
            3 => {
                let asked = json!({"prompt": "A", "max_tokens": 8, "stream": true}).to_string();
                let mut stream = proxy.connect();
                stream.write_all(&request("/v1/completions", JSON, &asked)).unwrap();
                let _ = stream.read(&mut [0; 64]);
            }
            4 if standing.len() < 40 => {
                let mut stream = proxy.connect();
                let sent = if rng.random() { whole.len() } else { rng.random_range(1..whole.len()) };
                let _ = stream.write_all(&whole[..sent]);
                standing.push(stream);
            }
            // Stops of a hundred thousand characters.
            5 => {
                let stop = "ab".repeat(50_000);
                let answer = proxy
                    .post("/v1/completions", &json!({"prompt": "A", "max_tokens": 4, "stop": [stop]}).to_string());
                assert_eq!(answer.code, 200);
            }
            6 => {
                let deep = "[".repeat(rng.random_range(1..200_000));
                assert_eq!(proxy.post("/v1/completions", &deep).code, 400);
            }
            // A body that does not end.
            7 => {
                let endless = format!(
                    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{JSON}Content-Length: 99999999999\r\n\r\n"
                );
                let mut stream = proxy.connect();
                let _ = stream.write_all(endless.as_bytes());
                while stream.write_all(&[b' '; 1 << 16]).is_ok() {}
            }
            8 => {
                let foreign = format!("{JSON}Origin: http://evil{seed}.example\r\n");
                assert_eq!(proxy.raw(&request("/v1/chat/completions", &foreign, &body)).unwrap().code, 403);
            }
            _ => assert_eq!(proxy.complete(&honest)["choices"][0]["text"], truth),
        }
    }
    assert_eq!(proxy.complete(&honest)["choices"][0]["text"], truth);
    drop(standing);
    for log in [proxy.0.stop(), server.stop()] {
        assert!(!log.contains("panic"), "{log}");
    }
}
