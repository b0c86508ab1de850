//! Hostile chat templates are refused or rendered, without a panic: see "Fuzzing" in CONTRIBUTING.

use waggle_fuzz::Corpus;
use waggle_tokenizer::{ChatTemplate, MAX_TEMPLATE_BYTES};

const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus/chat-template");

/// A chat template that a server sends is bounded and has one encoding. Its running is bounded by the process in
/// which it runs.
#[test]
fn fuzz_chat_template() {
    waggle_fuzz::target!(Corpus::open(CORPUS), |bytes: &[u8]| {
        if let Ok(template) = ChatTemplate::from_bytes(bytes) {
            let again = template.to_bytes().and_then(|bytes| ChatTemplate::from_bytes(&bytes));
            // Escapes may be longer than the characters that they stand for.
            assert!(again.is_err() || again.as_ref() == Ok(&template));
            assert!(bytes.len() <= MAX_TEMPLATE_BYTES);
        }
    });
}

/// Writes the corpus: `cargo test -p waggle-tokenizer --test fuzz -- --ignored write`.
#[test]
#[ignore = "writes files of the repository"]
fn write_corpus() {
    let entries = [
        ("plain", r#"{"template":"{{ messages[0].content }}","tokens":{"bos_token":"<s>"}}"#),
        ("without-tokens", r#"{"template":""}"#),
        ("unknown-field", r#"{"template":"","file":"/etc/passwd"}"#),
        ("no-template", "{}"),
    ];
    Corpus::write(CORPUS, entries.map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec())));
}
