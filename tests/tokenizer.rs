//! A server's tokenizer may be anything. It is refused or survived, in the process that the program starts for it.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use waggle_model::{bundled, bundled_names};
use waggle_testing::asset;
use waggle_tokenizer::{ChatTemplate, Message, Tokenizer, TokenizerError, WorkerCommand};

#[cfg(target_os = "linux")]
use crate::support::{Process, waggle};

/// The program under test as a worker.
fn command() -> WorkerCommand {
    let program = env!("CARGO_BIN_EXE_waggle").into();
    WorkerCommand { program, arguments: vec!["tokenizer-worker".into()], time_out: WorkerCommand::TIME_OUT }
}

fn foreign(file: &Value) -> Result<Tokenizer, TokenizerError> {
    Tokenizer::foreign(file.to_string().as_bytes(), &command())
}

/// A small BPE with byte fallback, as LLaMA's are.
fn good() -> Value {
    let mut vocab: serde_json::Map<String, Value> = ["<unk>", "<s>", "\u{2581}", "a", "b", "ab"]
        .iter()
        .zip(0..)
        .map(|(t, i)| (t.to_string(), json!(i)))
        .collect();
    for byte in 0..=255 {
        vocab.insert(format!("<0x{byte:02X}>"), json!(6 + byte));
    }
    let special = |id, content| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [special(0, "<unk>"), special(1, "<s>")],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u{2581}"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"}]},
        "pre_tokenizer": null,
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": vocab, "merges": ["a b"]},
    })
}

/// Without bytes to fall back on, characters are dropped, or read as one that is unknown.
#[test]
fn characters_without_a_token_are_found() {
    let unread = |file: &Value| {
        Tokenizer::from_bytes(file.to_string().as_bytes()).unwrap().unread("ab \u{e9}b-\n\u{e9}").unwrap()
    };
    assert_eq!(unread(&good()), []);
    let unknown = with("/model/byte_fallback", json!(false));
    assert_eq!(unread(&unknown), ['\u{e9}', '-']);
    let mut dropped = unknown;
    dropped["model"]["unk_token"] = Value::Null;
    assert_eq!(unread(&dropped), ['\u{e9}', '-']);
}

/// `good` with `value` at the JSON pointer `at`.
fn with(at: &str, value: Value) -> Value {
    let mut file = good();
    match file.pointer_mut(at) {
        Some(place) => *place = value,
        None => {
            let (parent, key) = at.rsplit_once('/').unwrap();
            file.pointer_mut(parent).unwrap()[key] = value;
        }
    }
    file
}

#[test]
fn a_hostile_file_is_refused_by_its_part() {
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let template =
        |pieces: Value| json!({"type": "TemplateProcessing", "single": pieces, "pair": [], "special_tokens": {}});
    let unknown = json!({"SpecialToken": {"id": "[X]", "type_id": 0}});
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let split =
        |regex: &str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
    let sequence = |of: &str, part: &Value, times: usize| json!({"type": "Sequence", of: vec![part; times]});
    let nested = (0..60).fold(byte_level.clone(), |inner, _| sequence("pretokenizers", &inner, 1));
    let ctc = json!({"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": true});
    let word_piece = |vocab: Value, longest: u64| {
        json!({"type": "WordPiece", "unk_token": "u", "continuing_subword_prefix": "##",
               "max_input_chars_per_word": longest, "vocab": vocab})
    };
    let bert = json!({"type": "BertProcessing", "sep": ["s", 40_000_000], "cls": ["c", 0]});
    let token = &good()["added_tokens"][0];
    let cases = [
        ("/post_processor", template(json!([unknown, text])), "[X]"),
        ("/pre_tokenizer", json!({"type": "FixedLength", "length": 0}), "FixedLength"),
        ("/normalizer", json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"}), "Precompiled"),
        ("/pre_tokenizer", nested, "pre_tokenizer"),
        ("/pre_tokenizer", sequence("pretokenizers", &byte_level, 40), "pre_tokenizer"),
        ("/pre_tokenizer", sequence("pretokenizers", &byte_level, 8), "lengthen a text"),
        ("/normalizer", sequence("normalizers", &replace("a", "aa"), 40), "normalizer"),
        ("/normalizer", sequence("normalizers", &replace("a", "aa"), 8), "lengthen a text"),
        ("/normalizer", replace("", "x"), "empty pattern"),
        ("/normalizer", replace(" ", &"x".repeat(1 << 20)), "1048576"),
        ("/pre_tokenizer", split("(a+)+(?!b)"), "look-around"),
        ("/pre_tokenizer", split("(a+)+\\s+(?!\\S)"), "without end"),
        ("/pre_tokenizer", split("(?:\\p{L}{900}){900}"), "too often"),
        ("/decoder", json!({"type": "Strip", "content": " ", "start": 0, "stop": 5}), "stop = 5"),
        ("/decoder", ctc, "CTC"),
        ("/post_processor", template(json!([])), "text A once"),
        ("/post_processor", template(json!(vec![&text; 16])), "text A once"),
        ("/post_processor/special_tokens/<s>/ids", json!([4_000_000_000_u32]), "4000000000"),
        ("/model/merges", json!(["ab a"]), "aba"),
        ("/model/dropout", json!(0.5), "dropout"),
        ("/model/continuing_subword_prefix", json!("##########"), "continuing_subword_prefix"),
        ("/model/unk_token", json!("missing"), "missing"),
        ("/model", json!({"type": "Unigram", "unk_id": 7, "vocab": []}), "Unigram"),
        ("/model", word_piece(json!({}), 100), "`u` is not in the vocabulary"),
        ("/model", word_piece(json!({"u": 0}), 1 << 40), "more than 100"),
        ("/model/max_input_chars_per_word", json!(9), "max_input_chars_per_word"),
        ("/post_processor", bert, "40000000"),
        ("/added_tokens/0/content", json!(""), "token 0 is empty"),
        ("/added_tokens", json!(vec![token; 20_000]), "20000"),
        ("/from_the_future", json!(1), "from_the_future"),
        ("/version", json!("2.0"), "version"),
        ("", json!({}), "model"),
        ("", json!([]), "tokenizer.json"),
    ];
    for (at, value, part) in cases {
        let file = with(at, value);
        let refused = |place: &str, result: Result<Tokenizer, TokenizerError>| match result {
            Err(error) if !error.of_process() => {
                let message = error.to_string();
                assert!(message.contains(part), "{place}, {part}: {message}");
                assert!(message.lines().count() == 1 && message.len() < 600, "{message}");
            }
            Err(other) => panic!("{place}, {part}: {other}"),
            Ok(_) => panic!("{place}, {part} was taken"),
        };
        refused("worker", foreign(&file));
        refused("here", Tokenizer::from_bytes(file.to_string().as_bytes()));
    }
    let deep = "[".repeat(1 << 20);
    assert!(Tokenizer::foreign(deep.as_bytes(), &command()).is_err());
    // Words of the file do not reach a terminal as they are.
    let message = foreign(&with("/normalizer", json!({"type": "\u{1b}[2J"}))).err().unwrap().to_string();
    assert!(message.contains("normalizer") && !message.contains('\u{1b}'), "{message:?}");
}

#[test]
fn a_good_file_gives_the_same_in_either_place() {
    same_in_either_place("a small BPE", good().to_string().as_bytes());
    same_in_either_place("GPT-2", &std::fs::read(asset("tokenizers/gpt2/tokenizer.json")).unwrap());
    let bundled = bundled_names().filter_map(|name| Some((name, bundled(name).unwrap().tokenizer?)));
    assert!(bundled.inspect(|(name, file)| same_in_either_place(name, file)).count() > 2);
    // A BERT's divides words and puts marks around them.
    let words = ["[UNK]", "[CLS]", "[SEP]", "ro", "##me", "##o", ":", "what", "."];
    let vocab: Value = words.iter().zip(0..).map(|(word, id)| ((*word).to_owned(), json!(id))).collect();
    let bert = json!({
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": null, "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 2], "cls": ["[CLS]", 1]},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab},
    });
    same_in_either_place("BERT", bert.to_string().as_bytes());
}

fn same_in_either_place(name: &str, bytes: &[u8]) {
    let texts = ["", "ab  ba\n", "a b\u{e9}\u{4f60} <s> \u{0}", "ROMEO:\nO, she doth teach 12 torches"];
    // The library alone, without what Waggle does to the file.
    let library = tokenizers::Tokenizer::from_bytes(bytes).unwrap();
    let places = [Tokenizer::from_bytes(bytes).unwrap(), Tokenizer::foreign(bytes, &command()).unwrap()];
    assert_eq!(places[1].no_sandbox(), None);
    for tokenizer in &places {
        assert_eq!(tokenizer.vocabulary(), library.get_vocab_size(true), "{name}");
        for text in texts {
            let ids = library.encode(text, true).unwrap().get_ids().to_vec();
            assert_eq!(tokenizer.encode(text).unwrap(), ids, "{name}: {text:?}");
            assert_eq!(tokenizer.decode(&ids).unwrap(), library.decode(&ids, true).unwrap(), "{name}: {text:?}");
        }
    }
    let streamed = places.map(|tokenizer| {
        let mut stream = tokenizer.stream(&[]);
        let ids = tokenizer.encode("Soft! what light? \u{e9}").unwrap();
        let text: String = ids.iter().map(|id| stream.push(*id).unwrap()).collect();
        text + &stream.finish().unwrap()
    });
    assert_eq!(streamed[0], streamed[1], "{name}");
}

/// However large.
#[test]
fn padding_and_truncation_of_a_file_are_left_off() {
    let padding = json!({"strategy": {"Fixed": 1_000_000_000_000_u64}, "direction": "Right", "pad_to_multiple_of": 1_u64 << 63,
                         "pad_id": 0, "pad_type_id": 0, "pad_token": "<unk>"});
    let truncation = json!({"max_length": 0, "strategy": "LongestFirst", "stride": 1, "direction": "Left"});
    for file in [with("/padding", padding), with("/truncation", truncation)] {
        assert_eq!(foreign(&file).unwrap().encode("ab").unwrap(), foreign(&good()).unwrap().encode("ab").unwrap());
    }
}

#[test]
fn what_no_model_takes_is_refused_before_it_is_encoded() {
    let tokenizer = foreign(&good()).unwrap();
    assert!(matches!(tokenizer.encode(&"a".repeat(20 << 20)), Err(TokenizerError::TooMuch { .. })));
    // 32 positions have at most 128 bytes each.
    for tokenizer in [foreign(&good()), Tokenizer::from_bytes(good().to_string().as_bytes())] {
        let tokenizer = tokenizer.unwrap().within(32);
        assert_eq!(tokenizer.encode(&"a".repeat(4096)).unwrap().len(), 4098);
        let long = "a".repeat(4097);
        let message = [Message::new("user", &long)];
        let template = ChatTemplate { template: String::new(), tokens: Default::default() };
        for refused in [
            tokenizer.encode(&long).err(),
            tokenizer.encode_more(&long).err(),
            tokenizer.encode_pair(&long, "").err(),
            tokenizer.render(&template, &message, true, "").err(),
        ] {
            assert!(matches!(refused, Some(TokenizerError::TooMuch { limit: 4096, .. })), "{refused:?}");
        }
    }
    assert!(matches!(tokenizer.decode(&vec![3; (1 << 20) + 1]), Err(TokenizerError::TooMuch { .. })));
    assert_eq!(tokenizer.encode("ab").unwrap(), [1, 2, 5], "it goes on");
    // An id that nothing stands for has no text.
    assert_eq!(tokenizer.decode(&[3, u32::MAX]).unwrap(), "a");
}

#[test]
fn a_worker_that_is_killed_is_an_error_and_the_program_goes_on() {
    let mut command = command();
    command.time_out = Duration::from_millis(300);
    // It answers once and stops then.
    let loaded = "echo '{\"ready\":null}'; read line; echo '{\"loaded\":{\"vocabulary\":1,\"longest\":1}}'";
    command.arguments = vec!["-c".into(), format!("{loaded}; kill -STOP $$").into()];
    command.program = "sh".into();
    let tokenizer = Tokenizer::foreign(b"{}", &command).unwrap();
    let error = tokenizer.encode("a").unwrap_err();
    assert!(matches!(error, TokenizerError::TimedOut { .. }), "{error}");
    assert_eq!(tokenizer.encode("a").unwrap_err(), error);
}

#[cfg(target_os = "linux")]
#[test]
fn a_worker_gives_away_what_it_does_not_need() {
    let Process { child, .. } = &mut Process::start(waggle("tokenizer-worker").stdin(Stdio::piped()));
    let mut to = child.stdin.take().unwrap();
    // It says so before it reads anything.
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "{\"ready\":null}\n");
    let told = |file: &str| std::fs::read_to_string(format!("/proc/{}/{file}", child.id())).unwrap();
    let (status, limits) = (told("status"), told("limits"));
    assert!(status.contains("NoNewPrivs:\t1\n") && status.contains("Seccomp:\t2\n"), "{status}");
    to.write_all(b"{\"encode\":\"\"}\n").unwrap();
    for (name, most) in [
        ("Max cpu time", 60),
        ("Max address space", 2 << 30),
        ("Max core file size", 0),
        ("Max file size", 0),
        ("Max open files", 0),
        ("Max processes", 0),
    ] {
        let line = limits.lines().find(|line| line.starts_with(name)).unwrap();
        let numbers: Vec<u64> = line[name.len()..].split_whitespace().filter_map(|n| n.parse().ok()).collect();
        assert!(numbers.len() == 2 && numbers.iter().all(|n| *n <= most), "{line}");
    }
    drop(to);
    assert!(child.wait().unwrap().success(), "it ends with its input");
}
