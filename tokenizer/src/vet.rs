//! The parts that a `tokenizer.json` may ask for.
//!
//! The format can ask a program for padding to 10^12 tokens, text that doubles with every stage, or templates with
//! tokens that do not exist. The library that runs it then panics, hangs or runs out of memory. A file is therefore
//! first read into the types below, which know the parts that tokenizers of GPT-2, LLaMA and BERT models use and
//! nothing else. The parts that were understood are written anew, and only that text reaches the library. So no key
//! exists in it that two readers take differently.
//!
//! | part | kinds |
//! |---|---|
//! | model | BPE without dropout, prefixes and suffixes; WordPiece; WordLevel |
//! | normalizer | Prepend, Replace, NFC, NFD, NFKC, NFKD, Strip, Lowercase, BertNormalizer |
//! | pre-tokenizer | ByteLevel, Split, Digits, Metaspace, Whitespace, WhitespaceSplit, BertPreTokenizer |
//! | post-processor | ByteLevel, TemplateProcessing, BertProcessing, RobertaProcessing |
//! | decoder | ByteLevel, Replace, ByteFallback, Fuse, Strip from the left, Metaspace, WordPiece |
//!
//! Each may be a Sequence of up to [`MAX_STAGES`] of its kinds, but not of further Sequences.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::error::{TokenizerError, at_most};
use super::regex::check_regex;

/// Longest `tokenizer.json`, in bytes.
pub const MAX_TOKENIZER_BYTES: usize = 64 << 20;
/// Most stages of a Sequence.
const MAX_STAGES: usize = 8;
/// Most tokens of a vocabulary.
const MAX_TOKENS: usize = 1 << 20;
/// Longest word that a WordPiece divides, in characters.
const MAX_WORD_CHARS: usize = 100;
/// Most merges of a BPE.
const MAX_MERGES: usize = 1 << 21;
/// Longest token, in bytes.
const MAX_TOKEN_BYTES: usize = 1024;
/// Most tokens that are matched before everything else.
const MAX_ADDED: usize = 1 << 14;
/// Most pieces of a template, and most ids of one of its tokens.
const MAX_PIECES: usize = 16;
/// Longest text that a stage puts into another, in bytes.
const MAX_CONTENT_BYTES: usize = 64;
/// The most by which all stages together may lengthen a text.
pub(super) const MAX_GROWTH: usize = 64;
/// Ids beyond every published vocabulary.
const MAX_ID: u32 = 1 << 24;

/// A file that may be handed to the library.
pub(super) struct Vetted {
    /// The parts of the file that were understood, written anew.
    pub(super) json: Vec<u8>,
    /// By how much encoding may lengthen a text, in bytes.
    pub(super) growth: usize,
    /// Whether two texts stand one after the other, each once.
    pub(super) pairs: bool,
}

/// Reads the bytes of a `tokenizer.json` and writes down what may be used of it.
pub(super) fn vet(bytes: &[u8]) -> Result<Vetted, TokenizerError> {
    at_most("bytes of tokenizer.json", bytes.len(), MAX_TOKENIZER_BYTES)?;
    // Checks the kind first; otherwise the vocabulary of another kind would be refused for its form.
    let Outline { model: Kind { kind, merges } } = serde_json::from_slice(bytes).map_err(TokenizerError::format)?;
    let kind = match (kind.as_deref(), merges) {
        (Some("BPE"), _) | (None, Some(_)) => ModelKind::Bpe,
        (Some("WordLevel"), _) => ModelKind::WordLevel,
        (Some("WordPiece"), _) => ModelKind::WordPiece,
        (Some(other), _) => {
            return Err(TokenizerError::refused(
                "model",
                format!("its type is {other}, not BPE, WordPiece or WordLevel"),
            ));
        }
        (None, None) => return Err(TokenizerError::refused("model", "it has no type")),
    };
    let file: File = serde_json::from_slice(bytes).map_err(TokenizerError::format)?;
    for (part, found) in [("truncation", &file.truncation), ("padding", &file.padding)] {
        if found.is_some() {
            return Err(TokenizerError::refused(part, "a prompt goes through a model as it is; it must be null"));
        }
    }
    if file.version.as_deref().is_some_and(|version| version != "1.0") {
        return Err(TokenizerError::refused("version", "only 1.0 is known"));
    }
    let model = file.model.vet(kind)?;
    let added = file.added_tokens.unwrap_or_default();
    vet_added(&added)?;
    let ids: HashSet<u32> = model.vocab.values().copied().chain(added.iter().map(|token| token.id)).collect();

    let normalizer = Chain::<Normalizer>::read("normalizer", "normalizers", file.normalizer)?;
    let pre_tokenizer = Chain::<PreTokenizer>::read("pre_tokenizer", "pretokenizers", file.pre_tokenizer)?;
    let post_processor = Chain::<PostProcessor>::read("post_processor", "processors", file.post_processor)?;
    let decoder = Chain::<Decoder>::read("decoder", "decoders", file.decoder)?;
    let before = normalizer.stages.iter().map(Normalizer::growth);
    let growth = bounded_growth("normalizer", before.chain(pre_tokenizer.stages.iter().map(PreTokenizer::growth)))?;
    bounded_growth("decoder", decoder.stages.iter().map(Decoder::growth))?;
    let pairs = vet_templates(&post_processor.stages, &ids)?;

    let out = Out {
        version: "1.0",
        truncation: None,
        padding: None,
        added_tokens: &added,
        normalizer: normalizer.written()?,
        pre_tokenizer: pre_tokenizer.written()?,
        post_processor: post_processor.written()?,
        decoder: decoder.written()?,
        model: &model,
    };
    Ok(Vetted { json: serde_json::to_vec(&out).map_err(TokenizerError::format)?, growth, pairs })
}

#[derive(Deserialize)]
struct Outline {
    model: Kind,
}

#[derive(Deserialize)]
struct Kind {
    #[serde(rename = "type")]
    kind: Option<String>,
    merges: Option<IgnoredAny>,
}

#[derive(Clone, Copy)]
enum ModelKind {
    Bpe,
    WordLevel,
    WordPiece,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: Option<String>,
    truncation: Option<IgnoredAny>,
    padding: Option<IgnoredAny>,
    added_tokens: Option<Vec<AddedToken>>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    model: Model,
}

#[derive(Serialize)]
struct Out<'a> {
    version: &'static str,
    truncation: Option<()>,
    padding: Option<()>,
    added_tokens: &'a [AddedToken],
    normalizer: Value,
    pre_tokenizer: Value,
    post_processor: Value,
    decoder: Value,
    model: &'a Model,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct AddedToken {
    id: u32,
    content: String,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

fn vet_added(tokens: &[AddedToken]) -> Result<(), TokenizerError> {
    at_most("added tokens", tokens.len(), MAX_ADDED)?;
    for AddedToken { id, content, .. } in tokens {
        if content.is_empty() {
            return Err(TokenizerError::refused("added_tokens", format!("token {id} is empty")));
        }
        at_most("bytes of an added token", content.len(), MAX_TOKEN_BYTES)?;
        check_id(*id)?;
    }
    Ok(())
}

fn check_id(id: u32) -> Result<(), TokenizerError> {
    at_most("the id of a token", id as usize, MAX_ID as usize)
}

/// BPE, WordPiece or WordLevel; fields have their published names.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Model {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dropout: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unk_token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    continuing_subword_prefix: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end_of_word_suffix: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fuse_unk: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    byte_fallback: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ignore_merges: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_input_chars_per_word: Option<usize>,
    vocab: HashMap<String, u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    merges: Option<Vec<Merge>>,
}

/// A merge in its older form, with a space between, or in its newer.
#[derive(Deserialize, Serialize)]
#[serde(untagged)]
enum Merge {
    Pair(String, String),
    Text(String),
}

impl Merge {
    fn parts(&self) -> Option<(&str, &str)> {
        match self {
            Merge::Pair(a, b) => Some((a, b)),
            Merge::Text(text) => text.split_once(' '),
        }
    }
}

impl Model {
    fn vet(mut self, kind: ModelKind) -> Result<Self, TokenizerError> {
        at_most("tokens of the vocabulary", self.vocab.len(), MAX_TOKENS)?;
        for (token, &id) in &self.vocab {
            at_most("bytes of a token", token.len(), MAX_TOKEN_BYTES)?;
            check_id(id)?;
        }
        if let Some(unknown) = self.unk_token.as_ref().filter(|token| !self.vocab.contains_key(*token)) {
            return Err(TokenizerError::refused("model.unk_token", format!("`{unknown}` is not in the vocabulary")));
        }
        let prefix = match kind {
            ModelKind::WordPiece => self.continuing_subword_prefix.take(),
            ModelKind::Bpe | ModelKind::WordLevel => None,
        };
        for (part, text) in [
            ("model.continuing_subword_prefix", &mut self.continuing_subword_prefix),
            ("model.end_of_word_suffix", &mut self.end_of_word_suffix),
        ] {
            if text.take().is_some_and(|text| !text.is_empty()) {
                return Err(TokenizerError::refused(part, "only an empty one is supported"));
            }
        }
        if self.dropout.take().is_some_and(|dropout| dropout != 0.0) {
            return Err(TokenizerError::refused("model.dropout", "a text must have one encoding"));
        }
        let longest = self.max_input_chars_per_word;
        if longest.is_some() && !matches!(kind, ModelKind::WordPiece) {
            return Err(TokenizerError::refused("model.max_input_chars_per_word", "only a WordPiece has it"));
        }
        match kind {
            ModelKind::Bpe => {
                self.kind = Some("BPE".into());
                self.vet_merges()?;
            }
            ModelKind::WordLevel | ModelKind::WordPiece => {
                let Model { unk_token, fuse_unk, byte_fallback, ignore_merges, merges, .. } = &self;
                if unk_token.is_none() {
                    return Err(TokenizerError::refused("model.unk_token", "a list of words needs one"));
                }
                if merges.is_some() || [fuse_unk, byte_fallback, ignore_merges].iter().any(|flag| flag.is_some()) {
                    return Err(TokenizerError::refused("model", "a list of words has no keys of a BPE"));
                }
            }
        }
        if matches!(kind, ModelKind::WordPiece) {
            let prefix = prefix.unwrap_or_else(|| "##".into());
            at_most("bytes of a prefix", prefix.len(), MAX_CONTENT_BYTES)?;
            self.continuing_subword_prefix = Some(prefix);
            // A word takes the square of its length.
            let longest = longest.unwrap_or(MAX_WORD_CHARS);
            at_most("characters of a word", longest, MAX_WORD_CHARS)?;
            self.max_input_chars_per_word = Some(longest);
        }
        Ok(self)
    }

    /// Both parts of every merge and their concatenation must be tokens; the library relies on it.
    fn vet_merges(&self) -> Result<(), TokenizerError> {
        let merges = self.merges.as_deref().unwrap_or_default();
        at_most("merges", merges.len(), MAX_MERGES)?;
        let mut merged = String::new();
        for merge in merges {
            let Some((a, b)) = merge.parts() else {
                return Err(TokenizerError::refused("model.merges", "an entry has not two parts"));
            };
            merged.clear();
            merged.extend([a, b]);
            if let Some(unknown) = [a, b, &merged].into_iter().find(|token| !self.vocab.contains_key(*token)) {
                return Err(TokenizerError::refused("model.merges", format!("`{unknown}` is not in the vocabulary")));
            }
        }
        Ok(())
    }
}

/// Stages one after another; none if the file has no such part.
struct Chain<T> {
    /// The key of the list if the file calls it a Sequence. An empty Sequence of decoders is not the same as no
    /// decoder.
    sequence: Option<&'static str>,
    stages: Vec<T>,
}

impl<T: DeserializeOwned + Serialize> Chain<T> {
    fn read(part: &str, key: &'static str, value: Value) -> Result<Self, TokenizerError> {
        let refused = |e: serde_json::Error| TokenizerError::refused(part, e);
        let mut object = match value {
            Value::Null => return Ok(Chain { sequence: None, stages: Vec::new() }),
            Value::Object(object) => object,
            _ => return Err(TokenizerError::refused(part, "it must be an object or null")),
        };
        if object.get("type").and_then(Value::as_str) != Some("Sequence") {
            let stage = serde_json::from_value(Value::Object(object)).map_err(refused)?;
            return Ok(Chain { sequence: None, stages: vec![stage] });
        }
        let Some(Value::Array(stages)) = object.remove(key).filter(|_| object.len() == 1) else {
            return Err(TokenizerError::refused(part, format!("a Sequence has a list `{key}` and nothing else")));
        };
        at_most(&format!("stages of the {part}"), stages.len(), MAX_STAGES)?;
        let stages = stages.into_iter().map(|stage| serde_json::from_value(stage).map_err(refused));
        Ok(Chain { sequence: Some(key), stages: stages.collect::<Result<_, _>>()? })
    }

    fn written(&self) -> Result<Value, TokenizerError> {
        let stages = serde_json::to_value(&self.stages).map_err(TokenizerError::format)?;
        Ok(match (self.sequence, stages) {
            (Some(key), stages) => json!({"type": "Sequence", key: stages}),
            (None, Value::Array(mut stages)) => stages.pop().unwrap_or_default(),
            (None, _) => Value::Null,
        })
    }
}

/// By how much stages may lengthen a text, the product of their factors. Refuses more than [`MAX_GROWTH`].
fn bounded_growth(
    part: &str,
    factors: impl Iterator<Item = Result<usize, TokenizerError>>,
) -> Result<usize, TokenizerError> {
    let mut growth = 1usize;
    for factor in factors {
        growth = growth.saturating_mul(factor?);
    }
    if growth > MAX_GROWTH {
        let why = format!("its stages may lengthen a text {growth} times, more than {MAX_GROWTH} times");
        return Err(TokenizerError::refused(part, why));
    }
    Ok(growth)
}

/// The pattern that is looked for in a text.
#[derive(Deserialize, Serialize)]
enum Pattern {
    String(String),
    Regex(String),
}

impl Pattern {
    fn check(&self, part: &str) -> Result<(), TokenizerError> {
        match self {
            Pattern::String(text) if text.is_empty() => {
                Err(TokenizerError::refused(part, "an empty pattern is everywhere"))
            }
            Pattern::String(text) => at_most("bytes of a pattern", text.len(), MAX_CONTENT_BYTES),
            Pattern::Regex(regex) => check_regex(part, regex),
        }
    }

    /// By how much a text may grow if `content` takes the place of every match. A regular expression may match
    /// nothing, before every byte.
    fn growth(&self, part: &str, content: &str) -> Result<usize, TokenizerError> {
        self.check(part)?;
        at_most("bytes that replace others", content.len(), MAX_CONTENT_BYTES)?;
        Ok(match self {
            Pattern::String(text) => content.len().div_ceil(text.len()).max(1),
            Pattern::Regex(_) => content.len() + 1,
        })
    }
}

#[derive(Deserialize, Serialize)]
#[serde(tag = "type", deny_unknown_fields)]
enum Normalizer {
    Prepend {
        prepend: String,
    },
    Replace {
        pattern: Pattern,
        content: String,
    },
    Strip {
        strip_left: bool,
        strip_right: bool,
    },
    Lowercase,
    #[serde(rename = "NFC")]
    Nfc,
    #[serde(rename = "NFD")]
    Nfd,
    #[serde(rename = "NFKC")]
    Nfkc,
    #[serde(rename = "NFKD")]
    Nfkd,
    #[serde(rename = "BertNormalizer")]
    Bert {
        clean_text: bool,
        handle_chinese_chars: bool,
        strip_accents: Option<bool>,
        lowercase: bool,
    },
}

impl Normalizer {
    fn growth(&self) -> Result<usize, TokenizerError> {
        match self {
            Normalizer::Prepend { prepend } => {
                at_most("bytes that are prepended", prepend.len(), MAX_CONTENT_BYTES)?;
                Ok(1)
            }
            Normalizer::Replace { pattern, content } => pattern.growth("normalizer", content),
            Normalizer::Strip { .. } => Ok(1),
            // U+0130 has two bytes, and its lower case three.
            Normalizer::Lowercase => Ok(2),
            // The largest factors in UTF-8, by the Unicode consortium's answers on normalization.
            Normalizer::Nfc | Normalizer::Nfd => Ok(3),
            Normalizer::Nfkc | Normalizer::Nfkd => Ok(11),
            // Spaces around a character of three bytes, NFD without what it splits off, and lower case.
            Normalizer::Bert { .. } => Ok(2 * 3 * 2),
        }
    }
}

#[derive(Deserialize, Serialize)]
enum Behavior {
    Removed,
    Isolated,
    MergedWithPrevious,
    MergedWithNext,
    Contiguous,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum PrependScheme {
    First,
    Never,
    Always,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct ByteLevel {
    add_prefix_space: bool,
    trim_offsets: bool,
    #[serde(default = "yes")]
    use_regex: bool,
}

fn yes() -> bool {
    true
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Metaspace {
    replacement: char,
    #[serde(skip_serializing_if = "Option::is_none")]
    prepend_scheme: Option<PrependScheme>,
    #[serde(skip_serializing_if = "Option::is_none")]
    add_prefix_space: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    split: Option<bool>,
    #[serde(skip_serializing)]
    #[expect(dead_code, reason = "older files have it; the library ignores it")]
    str_rep: Option<String>,
}

#[derive(Deserialize, Serialize)]
#[serde(tag = "type", deny_unknown_fields)]
enum PreTokenizer {
    ByteLevel(ByteLevel),
    Split {
        pattern: Pattern,
        behavior: Behavior,
        invert: bool,
    },
    Digits {
        individual_digits: bool,
    },
    Metaspace(Metaspace),
    Whitespace,
    WhitespaceSplit,
    #[serde(rename = "BertPreTokenizer")]
    Bert,
}

impl PreTokenizer {
    fn growth(&self) -> Result<usize, TokenizerError> {
        match self {
            // Each byte becomes a character of one or two bytes.
            PreTokenizer::ByteLevel(_) => Ok(2),
            PreTokenizer::Split { pattern, .. } => {
                pattern.check("pre_tokenizer")?;
                Ok(1)
            }
            PreTokenizer::Metaspace(metaspace) => Ok(metaspace.replacement.len_utf8()),
            PreTokenizer::Digits { .. }
            | PreTokenizer::Whitespace
            | PreTokenizer::WhitespaceSplit
            | PreTokenizer::Bert => Ok(1),
        }
    }
}

#[derive(Deserialize, Serialize)]
#[serde(tag = "type", deny_unknown_fields)]
enum Decoder {
    ByteLevel(ByteLevel),
    Replace { pattern: Pattern, content: String },
    Metaspace(Metaspace),
    ByteFallback,
    Fuse,
    Strip { content: char, start: usize, stop: usize },
    WordPiece { prefix: String, cleanup: bool },
}

impl Decoder {
    fn growth(&self) -> Result<usize, TokenizerError> {
        match self {
            // Bytes that are no text become replacement characters of three bytes.
            Decoder::ByteLevel(_) | Decoder::ByteFallback => Ok(3),
            Decoder::Replace { pattern, content } => pattern.growth("decoder", content),
            Decoder::Metaspace(_) | Decoder::Fuse => Ok(1),
            // A space before a token.
            Decoder::WordPiece { prefix, .. } => {
                at_most("bytes of a prefix", prefix.len(), MAX_CONTENT_BYTES)?;
                Ok(2)
            }
            // The library panics at a token that is shorter than `stop`.
            Decoder::Strip { stop, .. } if *stop != 0 => {
                Err(TokenizerError::refused("decoder", format!("Strip with stop = {stop}; only 0 is supported")))
            }
            Decoder::Strip { start, .. } => {
                at_most("characters that are stripped", *start, MAX_PIECES)?;
                Ok(1)
            }
        }
    }
}

#[derive(Deserialize, Serialize)]
#[serde(tag = "type", deny_unknown_fields)]
enum PostProcessor {
    ByteLevel(ByteLevel),
    TemplateProcessing {
        single: Vec<Piece>,
        /// Of two texts.
        pair: Vec<Piece>,
        special_tokens: BTreeMap<String, SpecialToken>,
    },
    BertProcessing {
        sep: (String, u32),
        cls: (String, u32),
    },
    RobertaProcessing {
        sep: (String, u32),
        cls: (String, u32),
        trim_offsets: bool,
        add_prefix_space: bool,
    },
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
enum Piece {
    Sequence { id: TextId, type_id: u32 },
    SpecialToken { id: String, type_id: u32 },
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
enum TextId {
    A,
    B,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct SpecialToken {
    id: String,
    ids: Vec<u32>,
    tokens: Vec<String>,
}

/// A text stands in a template once, and every token of it is known; `ids` are those of the tokenizer. Whether two
/// texts stand in theirs one after the other.
fn vet_templates(stages: &[PostProcessor], ids: &HashSet<u32>) -> Result<bool, TokenizerError> {
    let refused = |why: String| Err(TokenizerError::refused("post_processor", why));
    let mut pairs = false;
    let templates = stages.iter().filter(|stage| !matches!(stage, PostProcessor::ByteLevel(_))).count();
    if templates > 1 {
        return refused(format!("{templates} templates; there may be one"));
    }
    for stage in stages {
        let (single, pair, special_tokens) = match stage {
            PostProcessor::ByteLevel(_) => continue,
            PostProcessor::BertProcessing { sep, cls } | PostProcessor::RobertaProcessing { sep, cls, .. } => {
                match [sep, cls].into_iter().find(|(_, id)| !ids.contains(id)) {
                    Some((name, id)) => {
                        return refused(format!("`{name}` has id {id}, which is not in the vocabulary"));
                    }
                    None => {
                        pairs = true;
                        continue;
                    }
                }
            }
            PostProcessor::TemplateProcessing { single, pair, special_tokens } => (single, pair, special_tokens),
        };
        at_most("tokens of a template", special_tokens.len(), MAX_PIECES)?;
        for (name, token) in special_tokens {
            at_most("ids of a template's token", token.ids.len(), MAX_PIECES)?;
            if token.ids.len() != token.tokens.len() || token.id != *name {
                return refused(format!("`{name}` has {} ids and {} tokens", token.ids.len(), token.tokens.len()));
            }
            if let Some(id) = token.ids.iter().find(|id| !ids.contains(id)) {
                return refused(format!("`{name}` has id {id}, which is not in the vocabulary"));
            }
        }
        for template in [single, pair] {
            at_most("pieces of a template", template.len(), MAX_PIECES)?;
            for piece in template {
                if let Piece::SpecialToken { id, .. } = piece
                    && !special_tokens.contains_key(id)
                {
                    return refused(format!("its template has the unknown token `{id}`"));
                }
            }
        }
        let texts = |template: &[Piece]| -> Vec<TextId> {
            let text = |piece: &Piece| match piece {
                Piece::Sequence { id, .. } => Some(*id),
                Piece::SpecialToken { .. } => None,
            };
            template.iter().filter_map(text).collect()
        };
        if texts(single) != [TextId::A] {
            return refused("its template must hold the text A once".into());
        }
        pairs = texts(pair) == [TextId::A, TextId::B];
    }
    Ok(pairs)
}
