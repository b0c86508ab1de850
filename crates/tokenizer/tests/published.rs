//! Directories of published tokenizers encode texts as transformers does.

use std::collections::BTreeMap;

use serde::Deserialize;
use waggle_tokenizer::{Published, Tokenizer, TokenizerError};

/// A directory, and the ids that transformers makes of texts with it. Made by `crates/tokenizer/references/make.py`.
#[derive(Deserialize)]
struct Case {
    name: String,
    files: BTreeMap<String, String>,
    answers: Vec<Answer>,
}

#[derive(Deserialize)]
struct Answer {
    text: String,
    ids: Vec<u32>,
    decoded: String,
}

#[derive(Deserialize)]
struct Recorded {
    directories: Vec<Case>,
}

fn cases() -> Vec<Case> {
    serde_json::from_str::<Recorded>(include_str!("data/published.json")).unwrap().directories
}

fn directory<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    files.into_iter().for_each(|(name, text)| std::fs::write(dir.path().join(name), text).unwrap());
    dir
}

fn opened(files: &BTreeMap<String, String>) -> Published {
    let dir = directory(files.iter().map(|(name, text)| (&name[..], &text[..])));
    Published::open(dir.path()).unwrap()
}

#[test]
fn a_tokenizer_is_all_of_its_files() {
    let cases = cases();
    assert!(cases.len() >= 28);
    for Case { name, files, answers } in cases {
        let tokenizer =
            Tokenizer::from_bytes(&opened(&files).json.expect(&name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        for Answer { text, ids, decoded } in answers {
            assert_eq!(tokenizer.encode(&text).unwrap(), ids, "{name}: {text}");
            assert_eq!(tokenizer.decode(&ids).unwrap(), decoded, "{name}: {text}");
        }
    }
}

#[test]
fn what_is_left_off_and_where_files_disagree_is_noted() {
    let notes = |name: &str| {
        let case = cases().into_iter().find(|case| case.name == name).unwrap();
        opened(&case.files).notes.join("; ")
    };
    for (name, want) in [
        ("lower case by the configuration", "disagree on the normalizer"),
        ("a space before a text", "disagree on the pre_tokenizer"),
        ("ends asked for in vain", "asks for \"hi\" around a text"),
        ("words as they are", "made of vocab.txt"),
        ("vocabulary and merges", "made of vocab.json and merges.txt"),
        ("marks of the configuration", "has the id 261, and not 270"),
        ("a text that was cut", "truncation of tokenizer.json is left off; padding"),
    ] {
        assert!(notes(name).contains(want), "{name}: {}", notes(name));
    }
    for name in ["the file of no class", "a class that is wrong", "stages of published files"] {
        assert_eq!(notes(name), "", "{name}");
    }
    let other = directory([("config.json", r#"{"model_type": "llama"}"#), ("tokenizer.model", "x")]);
    let Published { json, notes } = Published::open(other.path()).unwrap();
    assert!(json.is_none() && notes[0].contains("save_pretrained"), "{notes:?}");
}

/// If no other file says anything, the bytes of `tokenizer.json` are kept, as a client's fingerprint covers them.
#[test]
fn a_file_alone_stays_as_it_is() {
    let case = cases().into_iter().find(|case| case.name == "a class that is wrong").unwrap();
    let text = &case.files["tokenizer.json"];
    let alone = directory([("tokenizer.json", &text[..])]);
    assert_eq!(
        Published::open(alone.path()).unwrap(),
        Published { json: Some(text.clone().into_bytes()), notes: vec![] }
    );
    assert_eq!(Published::open(directory([]).path()).unwrap(), Published::default());
}

#[test]
fn files_that_are_none_are_refused_by_name() {
    let good = r#"{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}"#;
    for (name, text) in [
        ("tokenizer.json", "[]"),
        ("tokenizer_config.json", "{"),
        ("tokenizer_config.json", r#"{"added_tokens_decoder": {"x": {"content": "a"}}}"#),
        ("tokenizer_config.json", r#"{"added_tokens_decoder": {"1": 7}}"#),
        ("tokenizer_config.json", r#"{"split_special_tokens": true}"#),
        ("special_tokens_map.json", "7"),
        ("added_tokens.json", r#"{"a": "b"}"#),
        ("config.json", "nothing"),
    ] {
        let files = BTreeMap::from([("tokenizer.json", good), (name, text)]);
        match Published::open(directory(files).path()) {
            Err(TokenizerError::Beside { file, .. }) => assert_eq!(file, name, "{text}"),
            other => panic!("{name}: {text}: {other:?}"),
        }
    }
}
