//! The settings of a tokenizer that are in the files beside its vocabulary.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::TokenizerError;
use super::classes::Class;

/// The largest size, in bytes, of a file that lies beside `tokenizer.json`.
const MAX_BESIDE_BYTES: u64 = 16 << 20;

/// The names of the tokens that every tokenizer may name.
const NAMED: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// An added token, which is matched before the vocabulary's tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Added {
    pub(super) content: String,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    pub(super) special: bool,
}

impl Added {
    /// Reads a token from a JSON text or object. `special` is used if there is no field `special`.
    pub(super) fn read(value: &Value, special: bool) -> Option<Self> {
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

    pub(super) fn new(content: &str, special: bool) -> Self {
        let [single_word, lstrip, rstrip] = [false; 3];
        Added { content: content.to_owned(), single_word, lstrip, rstrip, normalized: !special, special }
    }

    pub(super) fn json(&self, id: u64) -> Value {
        json!({"id": id, "content": self.content, "single_word": self.single_word, "lstrip": self.lstrip,
               "rstrip": self.rstrip, "normalized": self.normalized, "special": self.special})
    }
}

/// The settings of a tokenizer that are in the files beside its vocabulary.
pub(super) struct Settings {
    /// The contents of `tokenizer_config.json`. They are merged with `special_tokens_map.json` where that file takes
    /// effect.
    pub(super) config: Map<String, Value>,
    pub(super) class: Option<Class>,
    /// The named tokens with their names. Those of [`NAMED`] come first, in that order.
    pub(super) named: Vec<(String, Added)>,
    pub(super) extra: Vec<Added>,
    /// The added tokens by the id that the files state.
    pub(super) added: BTreeMap<u64, Added>,
}

impl Settings {
    pub(super) fn open(dir: &Path, file: Option<&Map<String, Value>>) -> Result<Self, TokenizerError> {
        let mut config = object(dir, "tokenizer_config.json")?.unwrap_or_default();
        // The second key is the older name. It is read if the first key is absent.
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
            // If the token is an added token, its settings from there take effect.
            let known = added.values().find(|known: &&Added| known.content == token.content).cloned();
            Some((name, known.unwrap_or(token)))
        });
        let own = config.get(extra).and_then(Value::as_object).into_iter().flatten();
        let own = own.filter_map(|(name, token)| Some((name.clone(), Added::read(token, true)?)));
        let named = named.chain(own).collect();
        Ok(Settings { class, named, extra: extra_tokens, added, config })
    }

    /// The text of the named token `name`, for example `bos_token`.
    pub(super) fn token(&self, name: &str) -> Option<&str> {
        self.named.iter().find(|(known, _)| known == name).map(|(_, token)| &token.content[..])
    }

    /// The text of the token for words that are not in the vocabulary; empty if there is none.
    pub(super) fn unknown(&self) -> &str {
        self.token("unk_token").unwrap_or_default()
    }

    /// The tokens `cls_token` and `sep_token`, which begin and end a text for an encoder, each with the id that the
    /// function `id` returns for it.
    pub(super) fn ends(&self, id: impl Fn(&str) -> Option<u64>) -> [Option<(&str, u64)>; 2] {
        ["cls_token", "sep_token"].map(|name| {
            let token = self.token(name)?;
            Some((token, id(token)?))
        })
    }
}

/// Whether a stage of the `tokenizer.json` in `file` turns bytes into characters.
pub(super) fn byte_level(file: &Map<String, Value>) -> bool {
    let has = |value: &Value| value["type"] == "ByteLevel";
    ["pre_tokenizer", "decoder"].iter().filter_map(|part| file.get(*part)).any(|part| {
        has(part)
            || ["pretokenizers", "decoders"]
                .iter()
                .any(|list| part[list].as_array().is_some_and(|l| l.iter().any(has)))
    })
}

pub(super) fn beside(file: &str, what: String) -> TokenizerError {
    TokenizerError::Beside { file: file.into(), what }
}

/// The bytes of the file `name` in the directory `dir`; `None` if there is no such file. A file of more than `limit`
/// bytes is an error.
pub(super) fn bytes(dir: &Path, name: &str, limit: u64) -> Result<Option<Vec<u8>>, TokenizerError> {
    let path = dir.join(name);
    let found = path.exists().then(|| waggle_files::read(&path, limit));
    found.transpose().map_err(|e| beside(name, e.to_string()))
}

pub(super) fn parsed(name: &str, bytes: &[u8]) -> Result<Map<String, Value>, TokenizerError> {
    serde_json::from_slice(bytes).map_err(|e| beside(name, e.to_string()))
}

/// The JSON object in the file `name` of the directory `dir`; `None` if there is no such file.
pub(super) fn object(dir: &Path, name: &str) -> Result<Option<Map<String, Value>>, TokenizerError> {
    bytes(dir, name, MAX_BESIDE_BYTES)?.map(|bytes| parsed(name, &bytes)).transpose()
}
