//! Decides which parts of a `tokenizer.json` reach the tokenizer library.
//!
//! The format can ask for padding to 10^12 tokens, text that doubles with every stage, or patterns that backtrack for
//! ever. A foreign file runs in a process that harms nobody, but a user's own file runs in this one, and an unknown
//! key may change the ids of a text. So a file may have only the kinds and keys of [`STAGES`], within bounds. The
//! library gets a file that is written anew, in which no key is ambiguous. The types of values are left to the
//! library to check.

use std::slice;

use serde_json::{Map, Value, json};

use super::error::{TokenizerError, at_most};
use super::regex::check_regex;

/// Longest `tokenizer.json`, in bytes.
pub const MAX_TOKENIZER_BYTES: usize = 64 << 20;
/// The largest number of stages in a `Sequence`.
const MAX_STAGES: usize = 8;
/// The largest number of tokens in a vocabulary.
const MAX_TOKENS: usize = 1 << 20;
/// The longest word that a `WordPiece` model divides, in characters. It takes time quadratic in this length.
const MAX_WORD_CHARS: u64 = 100;
/// The largest number of merges in a `BPE` model.
const MAX_MERGES: usize = 1 << 21;
/// Longest token, in bytes.
const MAX_TOKEN_BYTES: usize = 1024;
/// The largest number of added tokens. They are matched before everything else.
const MAX_ADDED: usize = 1 << 14;
/// The largest number of pieces in a template, of its tokens, and of ids in one of them.
const MAX_PIECES: usize = 16;
/// The longest text that a stage contains, for example to insert it, in bytes.
const MAX_CONTENT_BYTES: usize = 64;
/// Largest factor by which all stages together may lengthen a text.
const MAX_GROWTH: usize = 64;
/// The largest id. It is beyond every published vocabulary.
const MAX_ID: u64 = 1 << 24;

const ADDED: &[&str] = &["id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"];
const BYTE_LEVEL: &[&str] = &["add_prefix_space", "trim_offsets", "use_regex"];
const METASPACE: &[&str] = &["replacement", "prepend_scheme", "add_prefix_space", "split", "str_rep"];

/// A kind of stage: its name, the largest factor by which it lengthens a text in UTF-8, and its keys. The factor does
/// not include what a `pattern` inserts.
type Kind = (&'static str, usize, &'static [&'static str]);

/// For each part of a file, the kinds of stages that it may have.
const STAGES: [(&str, &[Kind]); 4] = [
    (
        "normalizer",
        &[
            ("Prepend", 1, &["prepend"]),
            ("Replace", 1, &["pattern", "content"]),
            ("Strip", 1, &["strip_left", "strip_right"]),
            // U+0130 has two bytes, and its lower case three.
            ("Lowercase", 2, &[]),
            // Largest factors, as in the Unicode consortium's FAQ on normalization.
            ("NFC", 3, &[]),
            ("NFD", 3, &[]),
            ("NFKC", 11, &[]),
            ("NFKD", 11, &[]),
            ("StripAccents", 1, &[]),
            ("Nmt", 1, &[]),
            // Each byte becomes a character of one or two bytes.
            ("ByteLevel", 2, &[]),
            // The factors are for spaces around a character of three bytes, NFD without split-off accents, and lower
            // case.
            ("BertNormalizer", 2 * 3 * 2, &["clean_text", "handle_chinese_chars", "strip_accents", "lowercase"]),
        ],
    ),
    (
        "pre_tokenizer",
        &[
            // Each byte becomes a character of one or two bytes.
            ("ByteLevel", 2, BYTE_LEVEL),
            ("Split", 1, &["pattern", "behavior", "invert"]),
            ("Digits", 1, &["individual_digits"]),
            ("Punctuation", 1, &["behavior"]),
            ("CharDelimiterSplit", 1, &["delimiter"]),
            ("UnicodeScripts", 1, &[]),
            ("Metaspace", 4, METASPACE),
            ("Whitespace", 1, &[]),
            ("WhitespaceSplit", 1, &[]),
            ("BertPreTokenizer", 1, &[]),
        ],
    ),
    (
        "post_processor",
        &[
            ("ByteLevel", 1, BYTE_LEVEL),
            ("TemplateProcessing", 1, &["single", "pair", "special_tokens"]),
            ("BertProcessing", 1, &["sep", "cls"]),
            ("RobertaProcessing", 1, &["sep", "cls", "trim_offsets", "add_prefix_space"]),
        ],
    ),
    (
        "decoder",
        &[
            // Bytes that are not UTF-8 become replacement characters of three bytes.
            ("ByteLevel", 3, BYTE_LEVEL),
            ("ByteFallback", 3, &[]),
            ("Replace", 1, &["pattern", "content"]),
            ("Metaspace", 1, METASPACE),
            ("Fuse", 1, &[]),
            ("Strip", 1, &["content", "start", "stop"]),
            // A space may come before a token.
            ("WordPiece", 2, &["prefix", "cleanup"]),
        ],
    ),
];

/// The kinds of models, each with its keys.
const MODELS: [(&str, &[&str]); 3] = [
    (
        "BPE",
        &[
            "dropout",
            "unk_token",
            "continuing_subword_prefix",
            "end_of_word_suffix",
            "fuse_unk",
            "byte_fallback",
            "ignore_merges",
            "vocab",
            "merges",
        ],
    ),
    ("WordPiece", &["unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"]),
    ("WordLevel", &["unk_token", "vocab"]),
];

/// A vetted file, which may be given to the library.
pub(super) struct Vetted {
    /// The bytes of the file, written anew.
    pub(super) json: Vec<u8>,
    /// The largest factor by which encoding may lengthen a text, in bytes, before it is divided into tokens.
    pub(super) growth: usize,
    /// Whether the file's template puts two texts one after the other, each once.
    pub(super) pairs: bool,
    /// The length in bytes of the longest token, as the file writes it.
    pub(super) longest: usize,
}

/// Checks the bytes of a `tokenizer.json`, and writes the file anew with the parts that may be used.
pub(super) fn vet(bytes: &[u8]) -> Result<Vetted, TokenizerError> {
    at_most("bytes of tokenizer.json", bytes.len(), MAX_TOKENIZER_BYTES)?;
    let mut file: Map<String, Value> = serde_json::from_slice(bytes).map_err(TokenizerError::format)?;
    file.retain(|_, value| !value.is_null());
    // These parts are dropped, as a prompt goes through a model as it is.
    file.retain(|part, _| !["truncation", "padding"].contains(&part.as_str()));
    let parts = STAGES.map(|(part, _)| part);
    only("tokenizer.json", &file, &[&["version", "added_tokens", "model"], &parts[..]].concat())?;
    if file.get("version").is_some_and(|version| version != "1.0") {
        return Err(TokenizerError::refused("version", "only 1.0 is known"));
    }
    file.insert("version".into(), json!("1.0"));
    let model = file.get_mut("model").and_then(Value::as_object_mut);
    let model = model.ok_or_else(|| TokenizerError::refused("model", "there is none"))?;
    let longest = vet_model(model)?.max(vet_added(file.get("added_tokens"))?);
    let lists = ["normalizers", "pretokenizers", "processors", "decoders"];
    let mut growths = [1; 4];
    for ((growth, list), (part, kinds)) in growths.iter_mut().zip(lists).zip(&STAGES) {
        for stage in stages(part, list, file.get(*part))? {
            *growth = usize::saturating_mul(*growth, vet_stage(part, kinds, stage)?);
        }
    }
    // The first two parts work on a text before it is encoded, the last one after ids are decoded.
    let growth = growths[0].saturating_mul(growths[1]);
    for (part, growth) in [("normalizer", growth), ("decoder", growths[3])] {
        if growth > MAX_GROWTH {
            let why = format!("its stages may lengthen a text {growth} times, more than {MAX_GROWTH} times");
            return Err(TokenizerError::refused(part, why));
        }
    }
    let pairs = vet_templates(stages("post_processor", "processors", file.get("post_processor"))?)?;
    Ok(Vetted { json: serde_json::to_vec(&file).map_err(TokenizerError::format)?, growth, pairs, longest })
}

/// Refuses an `object` that has keys other than `type` and those in `keys`.
fn only(part: &str, object: &Map<String, Value>, keys: &[&str]) -> Result<(), TokenizerError> {
    match object.keys().find(|key| *key != "type" && !keys.contains(&&***key)) {
        Some(other) => {
            Err(TokenizerError::refused(part, format!("`{other}` is none of its keys ({})", keys.join(", "))))
        }
        None => Ok(()),
    }
}

fn check_id(id: &Value) -> Result<(), TokenizerError> {
    match id.as_u64() {
        Some(id) => at_most("the id of a token", id as usize, MAX_ID as usize),
        None => Err(TokenizerError::refused("id", format!("{id} is no id of a token"))),
    }
}

/// Checks the added tokens, and returns the length in bytes of the longest one.
fn vet_added(tokens: Option<&Value>) -> Result<usize, TokenizerError> {
    let Some(tokens) = tokens else { return Ok(0) };
    let tokens = tokens.as_array().ok_or_else(|| TokenizerError::refused("added_tokens", "it must be a list"))?;
    at_most("added tokens", tokens.len(), MAX_ADDED)?;
    let mut longest = 0;
    for token in tokens {
        let (id, text) = (&token["id"], token["content"].as_str().unwrap_or_default());
        check_id(id)?;
        only("added_tokens", token.as_object().unwrap_or(&Map::new()), ADDED)?;
        if text.is_empty() {
            return Err(TokenizerError::refused("added_tokens", format!("token {id} is empty")));
        }
        at_most("bytes of an added token", text.len(), MAX_TOKEN_BYTES)?;
        longest = longest.max(text.len());
    }
    Ok(longest)
}

/// Checks the type and the keys of `model`, and returns the length in bytes of its longest token.
fn vet_model(model: &mut Map<String, Value>) -> Result<usize, TokenizerError> {
    model.retain(|_, value| !value.is_null());
    let kind = model.get("type").and_then(Value::as_str).or_else(|| model.get("merges").map(|_| "BPE"));
    let kind = kind.ok_or_else(|| TokenizerError::refused("model", "it has no type"))?;
    let Some((kind, keys)) = MODELS.iter().find(|(known, _)| *known == kind) else {
        let why = format!("its type is {kind}, not BPE, WordPiece or WordLevel");
        return Err(TokenizerError::refused("model", why));
    };
    only(&format!("model of type {kind}"), model, keys)?;
    model.insert("type".into(), json!(kind));
    if *kind == "BPE" {
        for key in ["continuing_subword_prefix", "end_of_word_suffix", "dropout"] {
            if model.remove(key).is_some_and(|value| value != "" && value.as_f64() != Some(0.0)) {
                return Err(TokenizerError::refused(format!("model.{key}"), "it must be null"));
            }
        }
    }
    if let Some(merges) = model.get("merges").and_then(Value::as_array) {
        at_most("merges", merges.len(), MAX_MERGES)?;
    }
    if let Some(most) = model.get("max_input_chars_per_word").filter(|most| most.as_u64() > Some(MAX_WORD_CHARS)) {
        return Err(TokenizerError::refused(
            "model",
            format!("words of {most} characters, more than {MAX_WORD_CHARS}"),
        ));
    }
    let vocab = model.get("vocab").and_then(Value::as_object);
    let vocab = vocab.ok_or_else(|| TokenizerError::refused("model.vocab", "it must be an object"))?;
    at_most("tokens of the vocabulary", vocab.len(), MAX_TOKENS)?;
    let mut longest = 0;
    for (token, id) in vocab {
        at_most("bytes of a token", token.len(), MAX_TOKEN_BYTES)?;
        check_id(id)?;
        longest = longest.max(token.len());
    }
    match model.get("unk_token").and_then(Value::as_str) {
        Some(unknown) if !vocab.contains_key(unknown) => {
            Err(TokenizerError::refused("model.unk_token", format!("`{unknown}` is not in the vocabulary")))
        }
        None if *kind != "BPE" => Err(TokenizerError::refused("model.unk_token", "a list of words needs one")),
        _ => Ok(longest),
    }
}

/// The stages in `value`, the part of a file that is called `part`. A `Sequence` has them as a list under the key
/// `list`. It may not be a stage of another `Sequence`.
fn stages<'a>(part: &str, list: &str, value: Option<&'a Value>) -> Result<&'a [Value], TokenizerError> {
    let Some(value) = value else { return Ok(&[]) };
    if value["type"] != "Sequence" {
        return Ok(slice::from_ref(value));
    }
    let (keys, stages) = (value.as_object().map_or(0, Map::len), value[list].as_array());
    let stages = stages.filter(|_| keys == 2);
    let stages = stages
        .ok_or_else(|| TokenizerError::refused(part, format!("a Sequence has a list `{list}` and nothing else")))?;
    at_most(&format!("stages of the {part}"), stages.len(), MAX_STAGES)?;
    Ok(stages)
}

/// Checks a stage of the part `part`, and returns the largest factor by which the stage lengthens a text.
fn vet_stage(part: &str, kinds: &[Kind], stage: &Value) -> Result<usize, TokenizerError> {
    let refused = |why: String| Err(TokenizerError::refused(part, why));
    let (Some(object), Some(kind)) = (stage.as_object(), stage["type"].as_str()) else {
        return refused("a stage is an object with a type".into());
    };
    let Some((_, growth, keys)) = kinds.iter().find(|(known, ..)| *known == kind) else {
        let known: Vec<_> = kinds.iter().map(|(known, ..)| *known).collect();
        return refused(format!("`{kind}` is none of {}", known.join(", ")));
    };
    only(&format!("{part}.{kind}"), object, keys)?;
    for text in object.values().filter_map(Value::as_str) {
        at_most("bytes of a stage's text", text.len(), MAX_CONTENT_BYTES)?;
    }
    // The library panics if a token is shorter than `stop`.
    if let Some(stop) = object.get("stop").filter(|stop| **stop != 0) {
        return refused(format!("Strip with stop = {stop}; only 0 is supported"));
    }
    let Some(pattern) = object.get("pattern") else { return Ok(*growth) };
    let content = stage["content"].as_str().unwrap_or_default();
    match (pattern["String"].as_str(), pattern["Regex"].as_str()) {
        (Some(""), _) => refused("an empty pattern is everywhere".into()),
        (Some(text), None) => {
            at_most("bytes of a pattern", text.len(), MAX_CONTENT_BYTES)?;
            Ok(content.len().div_ceil(text.len()).max(*growth))
        }
        // The pattern may match the empty text before every byte.
        (None, Some(regex)) => check_regex(part, regex).map(|()| content.len() + growth),
        _ => refused("a pattern is a String or a Regex".into()),
    }
}

/// Whether the template in `stages` puts two texts one after the other, each once. Refuses more than one template.
/// Also refuses a template that does not contain a single text exactly once, or that names an undefined token,
/// because the library relies on both.
fn vet_templates(stages: &[Value]) -> Result<bool, TokenizerError> {
    let refused = |why: String| TokenizerError::refused("post_processor", why);
    let mut templates = stages.iter().filter(|stage| stage["type"] != "ByteLevel");
    let Some(template) = templates.next() else { return Ok(false) };
    if templates.next().is_some() {
        return Err(refused("there may be one template".into()));
    }
    for end in ["sep", "cls"].iter().filter_map(|end| template.get(end)) {
        check_id(&end[1])?;
    }
    if template["type"] != "TemplateProcessing" {
        return Ok(true);
    }
    let none = Map::new();
    let tokens = template["special_tokens"].as_object().unwrap_or(&none);
    at_most("tokens of a template", tokens.len(), MAX_PIECES)?;
    for (name, token) in tokens {
        let [ids, texts] = ["ids", "tokens"].map(|key| token[key].as_array().map_or(&[][..], Vec::as_slice));
        at_most("ids of a template's token", ids.len(), MAX_PIECES)?;
        if ids.len() != texts.len() {
            return Err(refused(format!("`{name}` has {} ids and {} tokens", ids.len(), texts.len())));
        }
        ids.iter().try_for_each(check_id)?;
    }
    // The texts in a template.
    let texts = |key: &str| {
        let pieces = template[key].as_array().map_or(&[][..], Vec::as_slice);
        at_most("pieces of a template", pieces.len(), MAX_PIECES)?;
        let named = pieces.iter().filter_map(|piece| piece["SpecialToken"]["id"].as_str());
        if let Some(unknown) = named.into_iter().find(|name| !tokens.contains_key(*name)) {
            return Err(refused(format!("its template has the unknown token `{unknown}`")));
        }
        Ok(pieces.iter().filter_map(|piece| piece["Sequence"]["id"].as_str()).collect::<Vec<_>>())
    };
    if texts("single")? != ["A"] {
        return Err(refused("its template must hold the text A once".into()));
    }
    Ok(texts("pair")? == ["A", "B"])
}
