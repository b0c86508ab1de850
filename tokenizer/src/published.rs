//! The tokenizer of a published model: what all files of its directory say, as one `tokenizer.json`.
//!
//! `AutoTokenizer` of transformers 5 is what these files were written with, so its order of precedence holds. Of the
//! files that a line names, the first that says something counts.
//!
//! | what | where |
//! |---|---|
//! | vocabulary, merges | `tokenizer.json`; `vocab.json` and `merges.txt`, or `vocab.txt` |
//! | class | `tokenizer_class` of `tokenizer_config.json`, of `config.json`; the model's type |
//! | normalizer, pre-tokenizer, decoder | the class, if it has its own ([`Class`]); `tokenizer.json` |
//! | tokens before and after a text | the class; `tokenizer.json`; `add_bos_token` and `add_eos_token` |
//! | named tokens (`bos_token`, ...) | `special_tokens_map.json` unless there is `added_tokens_decoder`; `tokenizer_config.json`; the class |
//! | added tokens | those of `tokenizer.json` unless the class has its own stages; then `added_tokens_decoder`, or without it `added_tokens.json`; named tokens; extra special tokens |
//!
//! Truncation and padding that a file was saved with are left off: a prompt goes through a model as it is. Ids of
//! added tokens are what the library gives them: the next free ones, unless the vocabulary has the token.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::TokenizerError;
use super::classes::Class;
use super::template::named;
use super::vet::MAX_TOKENIZER_BYTES;

/// Longest of the files beside `tokenizer.json`.
const MAX_BESIDE_BYTES: u64 = 16 << 20;

/// The named tokens of every tokenizer.
const NAMED: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Files with vocabularies of other formats.
const OTHERS: [&str; 5] =
    ["tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tekken.json", "tiktoken.model"];

/// The tokenizer of a directory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Published {
    /// One `tokenizer.json` that says what all files say; `None` if there is no tokenizer. Where the other files
    /// change nothing it has the bytes of the file.
    pub json: Option<Vec<u8>>,
    /// Where two files disagree, and what was left off.
    pub notes: Vec<String>,
}

impl Published {
    /// Reads the directory `dir`.
    ///
    /// # Errors
    /// [`TokenizerError::Beside`] for a file that cannot be read or has another form.
    pub fn open(dir: &Path) -> Result<Self, TokenizerError> {
        let bytes = bytes(dir, "tokenizer.json", MAX_TOKENIZER_BYTES as u64)?;
        let mut notes = Vec::new();
        let original: Option<Map<String, Value>> =
            bytes.as_deref().map(|bytes| parsed("tokenizer.json", bytes)).transpose()?;
        let settings = Settings::open(dir, original.as_ref())?;
        if dir.join("chat_template.json").is_file() && named(dir)?.is_empty() {
            notes.push("chat_template.json belongs to a processor and is no chat template of the tokenizer".into());
        }
        let file = match &original {
            Some(file) => Some(from_file(file, &settings, &mut notes)),
            None => from_vocabulary(dir, &settings, &mut notes)?,
        };
        let Some(mut file) = file else {
            let found: Vec<_> = OTHERS.iter().filter(|name| dir.join(name).is_file()).copied().collect();
            if !found.is_empty() {
                notes.push(format!(
                    "{} is not read: `AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)` of transformers writes \
                     a tokenizer.json of it",
                    found.join(", ")
                ));
            }
            return Ok(Published { json: None, notes });
        };
        settings.add_tokens(&mut file, &mut notes);
        settings.add_template(&mut file, original.is_some(), &mut notes);
        if settings.config.get("split_special_tokens") == Some(&json!(true)) {
            let what = "split_special_tokens = true is not supported".into();
            return Err(TokenizerError::Beside { file: "tokenizer_config.json".into(), what });
        }
        let json = match bytes.filter(|_| original.as_ref() == Some(&file)) {
            Some(bytes) => bytes,
            None => serde_json::to_vec(&file).map_err(TokenizerError::format)?,
        };
        Ok(Published { json: Some(json), notes })
    }

    /// The named tokens of the directory `dir`: what a chat template may name.
    ///
    /// # Errors
    /// Those of [`Published::open`].
    pub fn named_tokens(dir: &Path) -> Result<BTreeMap<String, String>, TokenizerError> {
        let settings = match bytes(dir, "tokenizer.json", MAX_TOKENIZER_BYTES as u64)? {
            Some(bytes) => Settings::open(dir, Some(&parsed("tokenizer.json", &bytes)?))?,
            None => Settings::open(dir, None)?,
        };
        Ok(settings.named.into_iter().map(|(name, token)| (name, token.content)).collect())
    }
}

/// A token that is matched before everything else.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Added {
    content: String,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

impl Added {
    /// From a text or an object. What is not said of `special` is what the caller says.
    fn read(value: &Value, special: bool) -> Option<Self> {
        let object = match value {
            Value::String(content) => return Some(Added::new(content, special)),
            value => value.as_object()?,
        };
        let flag = |key: &str| object.get(key).and_then(Value::as_bool);
        let special = flag("special").unwrap_or(special);
        Some(Added {
            content: object.get("content")?.as_str()?.to_owned(),
            single_word: flag("single_word").unwrap_or(false),
            lstrip: flag("lstrip").unwrap_or(false),
            rstrip: flag("rstrip").unwrap_or(false),
            normalized: flag("normalized").unwrap_or(!special),
            special,
        })
    }

    fn new(content: &str, special: bool) -> Self {
        let [single_word, lstrip, rstrip] = [false; 3];
        Added { content: content.to_owned(), single_word, lstrip, rstrip, normalized: !special, special }
    }

    fn json(&self, id: u64) -> Value {
        json!({"id": id, "content": self.content, "single_word": self.single_word, "lstrip": self.lstrip,
               "rstrip": self.rstrip, "normalized": self.normalized, "special": self.special})
    }
}

/// What the files beside a vocabulary say.
pub(super) struct Settings {
    /// `tokenizer_config.json`, with `special_tokens_map.json` where that counts.
    pub(super) config: Map<String, Value>,
    class: Option<Class>,
    /// By name, in the order of [`NAMED`], then others.
    named: Vec<(String, Added)>,
    extra: Vec<Added>,
    /// By id.
    added: BTreeMap<u64, Added>,
}

impl Settings {
    fn open(dir: &Path, file: Option<&Map<String, Value>>) -> Result<Self, TokenizerError> {
        let mut config = object(dir, "tokenizer_config.json")?.unwrap_or_default();
        // The second is the older name, and stands for the first where that says nothing.
        let [extra, older] = ["extra_special_tokens", "additional_special_tokens"];
        let empty = |value: &Value| value.is_null() || value == &json!([]) || value == &json!({});
        if config.get(extra).is_none_or(empty)
            && let Some(value) = config.remove(older)
        {
            config.insert(extra.into(), value);
        }
        let decoder = config.get("added_tokens_decoder").and_then(Value::as_object).cloned();
        if decoder.is_none() {
            for (key, mut value) in object(dir, "special_tokens_map.json")?.unwrap_or_default() {
                if key == extra && value.is_array() {
                    let mut all = config.get(&key).and_then(Value::as_array).cloned().unwrap_or_default();
                    all.extend(value.as_array_mut().into_iter().flat_map(std::mem::take));
                    value = all.into();
                } else if let Some(token) = value.as_object_mut() {
                    token.insert("special".into(), true.into());
                }
                config.insert(key, value);
            }
        }
        let model = object(dir, "config.json")?.unwrap_or_default();
        let word = |object: &Map<String, Value>, key| object.get(key).and_then(Value::as_str).map(str::to_owned);
        let class_name = word(&config, "tokenizer_class").or_else(|| word(&model, "tokenizer_class"));
        let kind = word(&model, "model_type").unwrap_or_default();
        let byte_level = file.is_some_and(byte_level);
        let class = Class::of(class_name.as_deref(), &kind, byte_level);
        let class = match file.map(|file| file.get("model").unwrap_or(&Value::Null)) {
            Some(model) => class.filter(|class| class.fits(model, byte_level)),
            None => class,
        };
        let tokens = |value: Option<&Value>| -> Vec<Added> {
            let listed = value.and_then(Value::as_array).into_iter().flatten();
            listed.filter_map(|token| Added::read(token, true)).collect()
        };
        let listed = tokens(config.get(extra));
        let extra_tokens = match config.get(extra) {
            Some(Value::Array(_)) => listed.clone(),
            _ => tokens(config.get(older)),
        };
        let mut added = BTreeMap::new();
        match decoder {
            Some(decoder) => {
                for (id, token) in decoder {
                    let id = id.parse().ok().zip(Added::read(&token, false));
                    let what = || "added_tokens_decoder has an entry that is no token".to_owned();
                    let (id, token) = id.ok_or_else(|| beside("tokenizer_config.json", what()))?;
                    added.insert(id, token);
                }
            }
            None => {
                let named = NAMED.iter().filter_map(|name| Added::read(config.get(*name)?, true));
                let special: Vec<_> = named.chain(listed).map(|token| token.content).collect();
                for (token, id) in object(dir, "added_tokens.json")?.unwrap_or_default() {
                    let id = id.as_u64().ok_or_else(|| beside("added_tokens.json", format!("{id} is no id")))?;
                    added.insert(id, Added::new(&token, special.contains(&token)));
                }
                for token in file.and_then(|file| file.get("added_tokens")?.as_array()).into_iter().flatten() {
                    if let (Some(id), Some(token)) = (token["id"].as_u64(), Added::read(token, false)) {
                        added.insert(id, token);
                    }
                }
            }
        }
        let defaults = class.map_or(&[][..], Class::tokens);
        let others = config.keys().filter(|key| key.ends_with("_token") && !NAMED.contains(&key.as_str()));
        let named = NAMED.iter().map(|name| (*name).to_owned()).chain(others.cloned()).filter_map(|name| {
            let token = match config.get(&name) {
                Some(token) => Added::read(token, true)?,
                None => Added::new(defaults.iter().find(|(known, _)| *known == name)?.1, true),
            };
            // What is known of it as an added token counts.
            let known = added.values().find(|known: &&Added| known.content == token.content).cloned();
            Some((name, known.unwrap_or(token)))
        });
        let own = config.get(extra).and_then(Value::as_object).into_iter().flatten();
        let own = own.filter_map(|(name, token)| Some((name.clone(), Added::read(token, true)?)));
        let named = named.chain(own).collect();
        Ok(Settings { class, named, extra: extra_tokens, added, config })
    }

    /// The text of the token called `name`.
    pub(super) fn token(&self, name: &str) -> Option<&str> {
        self.named.iter().find(|(known, _)| known == name).map(|(_, token)| &token.content[..])
    }

    /// Puts the tokens that `file` does not have into it.
    fn add_tokens(&self, file: &mut Map<String, Value>, notes: &mut Vec<String>) {
        let mut vocabulary = Vocabulary::of(file);
        let (mut stated, mut wanted) = (BTreeMap::new(), Vec::new());
        for (id, token) in self.added.iter().filter(|(_, token)| !vocabulary.has(token)) {
            stated.insert(&token.content, *id);
            wanted.push(token.clone());
        }
        let listed = |token: &Added| vocabulary.added.iter().any(|(_, known)| known.content == token.content);
        let more = self.named.iter().map(|(_, token)| token).chain(&self.extra);
        let more: Vec<_> =
            more.filter(|token| !listed(token) && !stated.contains_key(&token.content)).cloned().collect();
        wanted.extend(more);
        for mut token in wanted {
            token.special |= self.named.iter().any(|(_, named)| named.content == token.content);
            let (id, is_new) = vocabulary.add(token.clone());
            match stated.get(&token.content) {
                Some(stated) if *stated != id => {
                    notes.push(format!("the added token {:?} has the id {id}, and not {stated}", token.content));
                }
                None if is_new => {
                    notes.push(format!("{:?} is not in the vocabulary and becomes the id {id}", token.content));
                }
                _ => {}
            }
        }
        if self.class == Some(Class::Qwen2) {
            for (_, token) in self.named.iter() {
                vocabulary.add(Added::new(&token.content, true));
            }
        }
        let all = vocabulary.added.iter().map(|(id, token)| token.json(*id)).collect::<Vec<_>>();
        if !all.is_empty() || file.contains_key("added_tokens") {
            file.insert("added_tokens".into(), all.into());
        }
    }

    /// Puts what stands before and after a text into `file`.
    fn add_template(&self, file: &mut Map<String, Value>, from_file: bool, notes: &mut Vec<String>) {
        let vocabulary = Vocabulary::of(file);
        let id = |token: &str| vocabulary.id(token);
        if let Some(own) = self.class.and_then(|class| class.template(self, id)) {
            file.insert("post_processor".into(), own);
            return;
        }
        let flag = |key: &str| self.config.get(key) == Some(&json!(true));
        let adds = [("add_bos_token", "bos_token"), ("add_eos_token", "eos_token")].map(|(flag_name, name)| {
            flag(flag_name).then(|| self.token(name)).flatten().and_then(|token| Some((token, id(token)?)))
        });
        if from_file {
            let written = file.get("post_processor").filter(|value| !value.is_null()).map(Value::to_string);
            for (token, _) in adds.iter().flatten() {
                if !written.as_ref().is_some_and(|written| written.contains(&json!(token).to_string())) {
                    notes.push(format!(
                        "tokenizer_config.json asks for {token:?} around a text, and tokenizer.json, which counts, has \
                         none"
                    ));
                }
            }
            return;
        }
        if adds.iter().all(Option::is_none) {
            return;
        }
        let piece = |token: &str, segment| json!({"SpecialToken": {"id": token, "type_id": segment}});
        let around = |text: &str, segment| {
            let [begin, end] = adds.map(|token| token.map(|(token, _)| piece(token, segment)));
            let text = json!({"Sequence": {"id": text, "type_id": segment}});
            [begin, Some(text), end].into_iter().flatten().collect::<Vec<_>>()
        };
        let tokens: Map<String, Value> = adds
            .iter()
            .flatten()
            .map(|(token, id)| ((*token).to_owned(), json!({"id": token, "ids": [id], "tokens": [token]})))
            .collect();
        let (single, pair) = (around("A", 0), [around("A", 0), around("B", 1)].concat());
        let template =
            json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens});
        file.insert("post_processor".into(), template);
    }
}

/// The ids of a file's tokens, as the library gives them.
struct Vocabulary<'a> {
    words: Option<&'a Map<String, Value>>,
    added: Vec<(u64, Added)>,
}

impl<'a> Vocabulary<'a> {
    /// Those of `file`, whose added tokens get their ids again.
    fn of(file: &'a Map<String, Value>) -> Self {
        let words = file.get("model").and_then(|model| model["vocab"].as_object());
        let mut vocabulary = Vocabulary { words, added: Vec::new() };
        for token in file.get("added_tokens").and_then(Value::as_array).into_iter().flatten() {
            if let Some(token) = Added::read(token, false) {
                vocabulary.add(token);
            }
        }
        vocabulary
    }

    fn has(&self, token: &Added) -> bool {
        self.added.iter().any(|(_, known)| known == token)
    }

    fn id(&self, token: &str) -> Option<u64> {
        let added = self.added.iter().find(|(_, known)| known.content == token).map(|(id, _)| *id);
        added.or_else(|| self.words?.get(token)?.as_u64())
    }

    /// The id of `token`, and whether it is a new one.
    fn add(&mut self, token: Added) -> (u64, bool) {
        if let Some((id, known)) = self.added.iter_mut().find(|(_, known)| known.content == token.content) {
            // What was special stays so.
            *known = Added { special: known.special | token.special, ..token };
            return (*id, false);
        }
        let known = self.id(&token.content);
        let size = self.words.map_or(0, Map::len) as u64;
        let next = self.added.iter().map(|(id, _)| id + 1).max().filter(|next| *next > size).unwrap_or(size);
        let id = known.unwrap_or(next);
        self.added.push((id, token));
        (id, known.is_none())
    }
}

/// Whether bytes become characters in a stage of `file`.
fn byte_level(file: &Map<String, Value>) -> bool {
    let has = |value: &Value| value["type"] == "ByteLevel";
    ["pre_tokenizer", "decoder"].iter().filter_map(|part| file.get(*part)).any(|part| {
        has(part)
            || ["pretokenizers", "decoders"]
                .iter()
                .any(|list| part[list].as_array().is_some_and(|l| l.iter().any(has)))
    })
}

/// The parts of `file` that count.
fn from_file(file: &Map<String, Value>, settings: &Settings, notes: &mut Vec<String>) -> Map<String, Value> {
    let mut file = file.clone();
    for part in ["truncation", "padding"] {
        if file.remove(part).is_some_and(|value| !value.is_null()) {
            notes.push(format!("{part} of tokenizer.json is left off"));
        } else {
            file.insert(part.into(), Value::Null);
        }
    }
    let Some(class) = settings.class else { return file };
    let mut part = |name: &str| file.remove(name).unwrap_or_default();
    let (normalizer, pre_tokenizer) = (part("normalizer"), part("pre_tokenizer"));
    let made = class.stages(&part("model"), settings, part("post_processor"));
    for (name, old) in [("normalizer", normalizer), ("pre_tokenizer", pre_tokenizer)] {
        if !agree(&old, &made[name]) {
            notes.push(format!(
                "tokenizer_config.json, for a tokenizer of the class {class:?}, and tokenizer.json disagree on the {name}: \
                 the former counts"
            ));
        }
    }
    made
}

/// Whether two stages are of one type and agree in the keys that both have.
fn agree(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => a.iter().all(|(key, a)| b.get(key).is_none_or(|b| agree(a, b))),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| agree(a, b)),
        _ => a == b,
    }
}

/// The tokenizer of a directory without a `tokenizer.json`.
fn from_vocabulary(
    dir: &Path,
    settings: &Settings,
    notes: &mut Vec<String>,
) -> Result<Option<Map<String, Value>>, TokenizerError> {
    let lines = |name: &str| -> Result<Option<Vec<String>>, TokenizerError> {
        let Some(bytes) = bytes(dir, name, MAX_TOKENIZER_BYTES as u64)? else { return Ok(None) };
        let text = String::from_utf8(bytes).map_err(|e| beside(name, e.to_string()))?;
        Ok(Some(text.lines().map(str::to_owned).collect()))
    };
    let (model, what) = match settings.class {
        Some(Class::Bert) => {
            let Some(words) = lines("vocab.txt")? else { return Ok(None) };
            let words: Map<_, _> =
                (0..).zip(words).map(|(id, word)| (word.trim_end().to_owned(), json!(id))).collect();
            (json!({"vocab": words}), "vocab.txt")
        }
        Some(Class::Gemma | Class::Llama) | None => {
            if dir.join("vocab.json").is_file() || dir.join("vocab.txt").is_file() {
                notes.push(
                    "the vocabulary beside config.json belongs to no tokenizer class that is known here".into(),
                );
            }
            return Ok(None);
        }
        Some(_) => {
            let (Some(words), Some(merges)) = (object(dir, "vocab.json")?, lines("merges.txt")?) else {
                return Ok(None);
            };
            let merges: Vec<_> =
                merges.into_iter().filter(|line| !line.starts_with("#version") && !line.is_empty()).collect();
            (json!({"vocab": words, "merges": merges}), "vocab.json and merges.txt")
        }
    };
    notes.push(format!("the tokenizer is made of {what}"));
    Ok(settings.class.map(|class| class.stages(&model, settings, Value::Null)))
}

fn beside(file: &str, what: String) -> TokenizerError {
    TokenizerError::Beside { file: file.into(), what }
}

/// The bytes of the file `name` in `dir`, if there is one.
pub(super) fn bytes(dir: &Path, name: &str, limit: u64) -> Result<Option<Vec<u8>>, TokenizerError> {
    let path = dir.join(name);
    let found = path.exists().then(|| files::read(&path, limit));
    found.transpose().map_err(|e| beside(name, e.to_string()))
}

fn parsed(name: &str, bytes: &[u8]) -> Result<Map<String, Value>, TokenizerError> {
    serde_json::from_slice(bytes).map_err(|e| beside(name, e.to_string()))
}

/// The object in the file `name` of `dir`, if there is one.
pub(super) fn object(dir: &Path, name: &str) -> Result<Option<Map<String, Value>>, TokenizerError> {
    bytes(dir, name, MAX_BESIDE_BYTES)?.map(|bytes| parsed(name, &bytes)).transpose()
}
