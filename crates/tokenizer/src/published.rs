//! Reads the tokenizer of a published model: merges all its files in the model's directory into one `tokenizer.json`.
//!
//! These files were written for `AutoTokenizer` of transformers 5, so they are read in its order of precedence. In
//! each row of this table, the first source that states a value counts.
//!
//! | what | where |
//! |---|---|
//! | vocabulary, merges | `tokenizer.json`; `vocab.json` and `merges.txt`, or `vocab.txt` |
//! | class | `tokenizer_class` of `tokenizer_config.json`, of `config.json`; the model's type |
//! | normalizer, pre-tokenizer, decoder | the class, if it has its own ([`Class`]); `tokenizer.json` |
//! | tokens before and after a text | the class; `tokenizer.json`; `add_bos_token` and `add_eos_token` |
//! | named tokens (`bos_token`, ...) | `special_tokens_map.json`; `tokenizer_config.json`; the class |
//!
//! If `tokenizer_config.json` has `added_tokens_decoder`, then neither `special_tokens_map.json` nor
//! `added_tokens.json` is read. Added tokens have this order: those of `tokenizer.json`, unless the class has its own
//! stages; then those of `added_tokens_decoder` or `added_tokens.json`; then named tokens; then extra special tokens.
//!
//! Truncation and padding in a file are ignored, because a prompt goes through a model as it is. The library assigns
//! the ids of added tokens. A token that is in the vocabulary keeps its id, and any other gets the next free id.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::TokenizerError;
use super::classes::Class;
use super::settings::{Added, Settings, beside, bytes, object, parsed};
use super::vet::MAX_TOKENIZER_BYTES;

/// Names of files with vocabularies in formats that Waggle does not read.
const OTHERS: [&str; 5] =
    ["tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tekken.json", "tiktoken.model"];

/// The tokenizer of a model's directory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Published {
    /// The bytes of one `tokenizer.json` into which all files are merged; `None` if there is no tokenizer. If the
    /// other files change nothing, these are the bytes of the directory's own `tokenizer.json`.
    pub json: Option<Vec<u8>>,
    /// Notes on contradictions between files, and on settings that were ignored.
    pub notes: Vec<String>,
}

impl Published {
    /// Reads the tokenizer of the directory `dir`.
    ///
    /// # Errors
    /// [`TokenizerError::Beside`] for a file that cannot be read or has another form.
    pub fn open(dir: &Path) -> Result<Self, TokenizerError> {
        let bytes = bytes(dir, "tokenizer.json", MAX_TOKENIZER_BYTES as u64)?;
        let mut notes = Vec::new();
        let original: Option<Map<String, Value>> =
            bytes.as_deref().map(|bytes| parsed("tokenizer.json", bytes)).transpose()?;
        let settings = Settings::open(dir, original.as_ref())?;
        let other = settings.config.contains_key("chat_template") || dir.join("chat_template.jinja").is_file();
        if dir.join("chat_template.json").is_file() && !other {
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
        add_tokens(&settings, &mut file, &mut notes);
        add_template(&settings, &mut file, original.is_some(), &mut notes);
        if settings.config.get("split_special_tokens") == Some(&json!(true)) {
            return Err(beside("tokenizer_config.json", "split_special_tokens = true is not supported".into()));
        }
        let json = match bytes.filter(|_| original.as_ref() == Some(&file)) {
            Some(bytes) => bytes,
            None => serde_json::to_vec(&file).map_err(TokenizerError::format)?,
        };
        Ok(Published { json: Some(json), notes })
    }

    /// The texts of the named tokens of the directory `dir`, by name. A chat template may use them.
    ///
    /// # Errors
    /// As [`Published::open`].
    pub fn named_tokens(dir: &Path) -> Result<BTreeMap<String, String>, TokenizerError> {
        let settings = match bytes(dir, "tokenizer.json", MAX_TOKENIZER_BYTES as u64)? {
            Some(bytes) => Settings::open(dir, Some(&parsed("tokenizer.json", &bytes)?))?,
            None => Settings::open(dir, None)?,
        };
        Ok(settings.named.into_iter().map(|(name, token)| (name, token.content)).collect())
    }
}

/// Adds the tokens of `settings` that `file` lacks. Notes new ids that no file states, and ids that differ from the
/// stated ones.
fn add_tokens(settings: &Settings, file: &mut Map<String, Value>, notes: &mut Vec<String>) {
    let mut vocabulary = Vocabulary::of(file);
    let (mut stated, mut wanted) = (BTreeMap::new(), Vec::new());
    for (id, token) in settings.added.iter().filter(|(_, token)| !vocabulary.has(token)) {
        stated.insert(&token.content, *id);
        wanted.push(token.clone());
    }
    let listed = |token: &Added| vocabulary.added.iter().any(|(_, known)| known.content == token.content);
    let more = settings.named.iter().map(|(_, token)| token).chain(&settings.extra);
    let more: Vec<_> = more.filter(|token| !listed(token) && !stated.contains_key(&token.content)).cloned().collect();
    wanted.extend(more);
    for mut token in wanted {
        token.special |= settings.named.iter().any(|(_, named)| named.content == token.content);
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
    if settings.class == Some(Class::Qwen2) {
        for (_, token) in settings.named.iter() {
            vocabulary.add(Added::new(&token.content, true));
        }
    }
    let all = vocabulary.added.iter().map(|(id, token)| token.json(*id)).collect::<Vec<_>>();
    if !all.is_empty() || file.contains_key("added_tokens") {
        file.insert("added_tokens".into(), all.into());
    }
}

/// Adds the template of the class to `file` or, if neither the class nor a `tokenizer.json` (`from_file`) has one, a
/// template with the tokens that `settings` ask for before and after a text. Notes tokens that are asked for but that
/// the template of `tokenizer.json` lacks.
fn add_template(settings: &Settings, file: &mut Map<String, Value>, from_file: bool, notes: &mut Vec<String>) {
    let vocabulary = Vocabulary::of(file);
    let id = |token: &str| vocabulary.id(token);
    if let Some(own) = settings.class.and_then(|class| class.template(&settings.config, settings.ends(id))) {
        file.insert("post_processor".into(), own);
        return;
    }
    let flag = |key: &str| settings.config.get(key) == Some(&json!(true));
    let adds = [("add_bos_token", "bos_token"), ("add_eos_token", "eos_token")].map(|(flag_name, name)| {
        flag(flag_name).then(|| settings.token(name)).flatten().and_then(|token| Some((token, id(token)?)))
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
    let template = json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens});
    file.insert("post_processor".into(), template);
}

/// The ids of all tokens of a file, as the library assigns them.
struct Vocabulary<'a> {
    words: Option<&'a Map<String, Value>>,
    added: Vec<(u64, Added)>,
}

impl<'a> Vocabulary<'a> {
    /// The vocabulary of `file`. Its added tokens get ids as the library assigns them, whatever ids the file states.
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

    /// Adds `token`. Returns its id, and whether the token is new.
    fn add(&mut self, token: Added) -> (u64, bool) {
        if let Some((id, known)) = self.added.iter_mut().find(|(_, known)| known.content == token.content) {
            // A token that was special stays special.
            let special = known.special | token.special;
            *known = token;
            known.special = special;
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

/// The parts of a `tokenizer.json` that take effect. A class with its own stages keeps only the vocabulary and the
/// post-processor. Notes parts that are dropped, and stages on which the file and the class disagree.
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
    let made = class.stages(&part("model"), &settings.config, settings.unknown(), part("post_processor"));
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

/// Whether two stages agree in all keys that both have, their type among them.
fn agree(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => a.iter().all(|(key, a)| b.get(key).is_none_or(|b| agree(a, b))),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| agree(a, b)),
        _ => a == b,
    }
}

/// Makes a `tokenizer.json` for a directory that has a vocabulary but no `tokenizer.json`. `None` if there is no
/// vocabulary, or if the class is not known.
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
    Ok(settings.class.map(|class| class.stages(&model, &settings.config, settings.unknown(), Value::Null)))
}
