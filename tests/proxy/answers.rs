//! What a proxy answers is what the model in the clear says, in whatever session its text is read.

use std::io::{Read, Write};

use serde_json::{Value, json};

use super::{JSON, MODEL, Proxy, clear, request, said, talk, talk_of, words};
use crate::support::{Server, copy_model, text, until, waggle};

/// Noise stands in for logits: the same seed gives the same text.
#[test]
fn a_server_that_reveals_tokens_alone_samples() {
    let (_server, proxy) = Proxy::start("--model shakespeare-gpt2 --reveal token", "");
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

/// Behind public text the answers are those of the joined text, in all kinds of sessions, and only private tokens are
/// counted.
#[test]
fn public_text_stands_before_what_programs_ask() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("public");
    std::fs::write(&file, "ROMEO:\n").unwrap();
    let (_server, proxy) = Proxy::start(&format!("--model {MODEL}"), &format!("--public-prefix {}", file.display()));
    let asked = |prompt: Value| proxy.complete(&json!({"prompt": prompt, "max_tokens": 6, "temperature": 0}));
    let one = asked(json!("What"));
    assert_eq!(
        (&one["choices"][0]["text"], &one["usage"]["prompt_tokens"]),
        (&json!(words("ROMEO:\nWhat", 6)), &json!(4))
    );
    let both = asked(json!(["What", "I will"]));
    let texts = ["ROMEO:\nWhat", "ROMEO:\nI will"].map(|text| json!(words(text, 6)));
    assert_eq!([&both["choices"][0]["text"], &both["choices"][1]["text"]], [&texts[0], &texts[1]]);

    // Conversations with the public system message begin behind it; all others are private.
    let proxies =
        ["", "--public-system --system play"].map(|arguments| Proxy::start(&format!("--model {MODEL}"), arguments));
    let [private, public] = proxies.each_ref().map(|(_, proxy)| proxy);
    let conversations = [
        &[("system", "play"), ("user", "O")][..],
        &[("system", "play"), ("user", "O"), ("assistant", "no"), ("user", "I")],
        &[("system", "other"), ("user", "O")],
        &[("user", "O")],
    ];
    for (at, messages) in conversations.into_iter().enumerate() {
        let body = talk_of(messages.iter().copied(), &json!({"max_tokens": 4})).to_string();
        let [all, rest] = [private, public].map(|proxy| proxy.post("/v1/chat/completions", &body).json());
        assert_eq!(said(&all), said(&rest), "{at}");
        let read = |answer: &Value| answer["usage"]["prompt_tokens"].as_u64().unwrap();
        assert_eq!(read(&all) - read(&rest), if at < 2 { 5 } else { 0 }, "{at}");
    }
    let private = public.complete(&json!({"prompt": "What", "max_tokens": 2, "temperature": 0}));
    assert_eq!(private["choices"][0]["text"], words("What", 2));
}

#[test]
fn completions_are_those_of_the_clear_model() {
    let (_server, proxy) = Proxy::start(&format!("--model {MODEL}"), "");
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
    let (_server, proxy) = Proxy::start(&format!("--model {MODEL}"), "--preprocess");
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
    let (server, proxy) = Proxy::start(&format!("--model {MODEL}"), "--tokens 8 --turn-tokens 24 --preprocess");
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
    let address = server.address.clone();
    drop(server);
    let server = Server::run(&mut waggle(&format!("serve --listen {address} --model {MODEL}")));
    let after = proxy.talk(&messages, &json!({}));
    assert_eq!(said(&after), said(&second));
    drop(server);
    let gone = proxy.post("/v1/chat/completions", &talk(&messages, &json!({})).to_string());
    assert_eq!((gone.code, &gone.json()["error"]["type"]), (502, &json!("server_error")));
    assert_eq!(proxy.get("/health").code, 503);
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
        let proxy = Proxy::of(&server, &format!("--tokens 8 {more}"));
        // An answer that ends in a space, of a model whose tokens are characters.
        let answer = said(&proxy.talk(&["What of the king"], &json!({"max_tokens": 24})));
        let most = answer.find(' ').unwrap() + 1;
        let first = said(&proxy.talk(&["What of the king"], &json!({"max_tokens": most})));
        assert!(first.ends_with(' '), "{first:?}");
        let messages = ["What of the king", &first, "\nSpeak again"];
        let kept = proxy.talk(&messages, &json!({}));
        assert_eq!(kept["usage"]["waggle"]["passes"][0]["server_saw"]["continues"], true);
        proxy.talk(&["A"], &json!({"max_tokens": 1}));
        let again = proxy.talk(&messages, &json!({}));
        assert_eq!(again["usage"]["waggle"]["passes"][0]["server_saw"]["continues"], false);
        assert_eq!(said(&again), said(&kept), "{more}");
    }
    let proxy = Proxy::of(&server, "");
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
    let (_server, proxy) = &Proxy::start(&format!("--model {MODEL}"), "--texts 4");
    let names = ["ROMEO", "JULIET", "NURSE", "MERCUTIO", "TYBALT", "PARIS"];
    let prompts = names.map(|name| format!("{name}:\n"));
    // The proxy has something to do until six others wait.
    let long = json!({"prompt": "A", "max_tokens": 200, "stream": true}).to_string();
    let mut busy = proxy.connect();
    busy.write_all(&request("/v1/completions", JSON, &long)).unwrap();
    busy.read_exact(&mut [0; 16]).unwrap();
    let answers: Vec<Value> = std::thread::scope(|scope| {
        let ask = |prompt: &String| {
            let body = json!({"prompt": prompt, "max_tokens": 12, "temperature": 0}).to_string();
            scope.spawn(move || proxy.post("/v1/completions", &body).json())
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
        let ask = |messages: &[&str]| proxy.post("/v1/chat/completions", &talk(messages, &json!({})).to_string());
        let first = ask(&["ROMEO:"]).json();
        let said = first["choices"][0]["message"]["content"].as_str().unwrap();
        // Whoever asks again is refused again.
        for _ in 0..2 {
            let second = ask(&["ROMEO:", said, "My lord"]);
            assert_eq!(second.code, code, "{}", text(&second.body));
            assert_eq!(text(&second.body).contains("would show how long the answers were"), code == 400);
        }
    }
}
