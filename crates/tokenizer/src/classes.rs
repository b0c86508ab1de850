//! The tokenizer classes of transformers 5 that make the stages of a tokenizer themselves.
//!
//! `AutoTokenizer` chooses a class by `tokenizer_config.json` and by the type of the model. Most classes take a
//! `tokenizer.json` as it is. The classes here take only its vocabulary, and make the stages from the settings in
//! `tokenizer_config.json`. So `do_lower_case`, for example, overrides what `tokenizer.json` says.

use serde_json::{Map, Value, json};

/// The contents of `tokenizer_config.json`.
type Config = Map<String, Value>;

fn set(config: &Config, key: &str, default: bool) -> bool {
    config.get(key).and_then(Value::as_bool).unwrap_or(default)
}

/// A class that makes its own stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Bert,
    CodeGen,
    Gemma,
    Gpt2,
    GptNeoX,
    Llama,
    Qwen2,
    Roberta,
}

use Class::{Bert, CodeGen, Gemma, Gpt2, GptNeoX, Llama, Qwen2, Roberta};

/// The names of classes that make their own stages, without `Fast` at the end. All other classes take the file as it
/// is.
const NAMES: [(&str, Class); 17] = [
    ("BertTokenizer", Bert),
    ("DistilBertTokenizer", Bert),
    ("ElectraTokenizer", Bert),
    ("LayoutLMTokenizer", Bert),
    ("MobileBertTokenizer", Bert),
    ("SqueezeBertTokenizer", Bert),
    ("CodeGenTokenizer", CodeGen),
    ("GemmaTokenizer", Gemma),
    ("GPT2Tokenizer", Gpt2),
    ("GPTNeoXTokenizer", GptNeoX),
    ("LlamaTokenizer", Llama),
    ("Phi3Tokenizer", Llama),
    ("Qwen2Tokenizer", Qwen2),
    ("BartTokenizer", Roberta),
    ("LEDTokenizer", Roberta),
    ("LongformerTokenizer", Roberta),
    ("RobertaTokenizer", Roberta),
];

/// The class that `AutoTokenizer` assigns to each type of model; `None` if this class takes the file as it is.
const OF_TYPES: [(&str, Option<Class>); 18] = [
    ("bert", Some(Bert)),
    ("distilbert", Some(Bert)),
    ("roberta", Some(Roberta)),
    ("gpt2", Some(Gpt2)),
    ("gpt_neox", Some(GptNeoX)),
    ("gemma", Some(Gemma)),
    ("gemma2", Some(Gemma)),
    ("gemma3", Some(Gemma)),
    ("gemma3_text", Some(Gemma)),
    ("opt", Some(Gpt2)),
    ("phi", Some(Gpt2)),
    ("qwen2", Some(Qwen2)),
    ("qwen3", Some(Qwen2)),
    // These types take the file as it is.
    ("granite", None),
    ("mistral", None),
    ("olmo2", None),
    ("olmo3", None),
    ("phi3", None),
];

/// Types of models whose published files name the wrong class.
const MISNAMED: [&str; 2] = ["phi3", "qwen2"];

/// The pattern that splits Qwen2's texts into pieces, as its authors published it.
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

impl Class {
    /// The class that `AutoTokenizer` chooses for a model of the type `kind` whose files name the class `named`.
    /// `None` if this class does not make its own stages. `byte_level` says whether a stage of the model's
    /// `tokenizer.json` turns bytes into characters.
    pub(super) fn of(named: Option<&str>, kind: &str, byte_level: bool) -> Option<Class> {
        let known = |name: &str| NAMES.iter().find(|(known, _)| *known == name).map(|(_, class)| *class);
        let own = OF_TYPES.iter().find(|(known, _)| *known == kind).map(|(_, class)| *class);
        let Some(named) = named.map(|name| name.strip_suffix("Fast").unwrap_or(name)) else { return own.flatten() };
        if named == "LlamaTokenizer" && byte_level && !MISNAMED.contains(&kind) {
            return None;
        }
        match own {
            // A type that takes the file as it is ignores a named class.
            Some(None) => None,
            Some(own) if MISNAMED.contains(&kind) => own,
            _ => known(named),
        }
    }

    /// The texts that named tokens, such as `unk_token`, have in this class by default.
    pub(super) fn tokens(self) -> &'static [(&'static str, &'static str)] {
        const END: &str = "<|endoftext|>";
        match self {
            Bert => &[
                ("unk_token", "[UNK]"),
                ("sep_token", "[SEP]"),
                ("pad_token", "[PAD]"),
                ("cls_token", "[CLS]"),
                ("mask_token", "[MASK]"),
            ],
            CodeGen | Gpt2 => &[("bos_token", END), ("eos_token", END), ("unk_token", END)],
            Gemma => &[
                ("bos_token", "<bos>"),
                ("eos_token", "<eos>"),
                ("unk_token", "<unk>"),
                ("pad_token", "<pad>"),
                ("mask_token", "<mask>"),
            ],
            GptNeoX => &[("bos_token", END), ("eos_token", END), ("unk_token", END), ("pad_token", "<|padding|>")],
            Llama => &[("bos_token", "<s>"), ("eos_token", "</s>"), ("unk_token", "<unk>")],
            Qwen2 => &[("eos_token", END), ("unk_token", END), ("pad_token", END)],
            Roberta => &[
                ("bos_token", "<s>"),
                ("eos_token", "</s>"),
                ("unk_token", "<unk>"),
                ("sep_token", "</s>"),
                ("pad_token", "<pad>"),
                ("cls_token", "<s>"),
                ("mask_token", "<mask>"),
            ],
        }
    }

    /// Whether the vocabulary in `model`, a part of a `tokenizer.json`, fits this class. `byte_level` says whether a
    /// stage of that file turns bytes into characters. Except for [`Class::Bert`], the class's own stages must do the
    /// same.
    pub(super) fn fits(self, model: &Value, byte_level: bool) -> bool {
        match self {
            Bert => model["vocab"].is_object() && model.get("merges").is_none(),
            Gemma | Llama => model.get("merges").is_some() && !byte_level,
            CodeGen | Gpt2 | GptNeoX | Qwen2 | Roberta => model.get("merges").is_some() && byte_level,
        }
    }

    /// A `tokenizer.json` with the stages of this class and the vocabulary of `model`, without added tokens.
    /// `unknown` is the token for unknown words. `post_processor` is the one of the model's own file. The file still
    /// lacks [`Class::template`], which is added after the tokens.
    pub(super) fn stages(
        self,
        model: &Value,
        config: &Config,
        unknown: &str,
        post_processor: Value,
    ) -> Map<String, Value> {
        let set = |key: &str, default: bool| set(config, key, default);
        let bytes = |use_regex: bool| {
            json!({"type": "ByteLevel", "add_prefix_space": set("add_prefix_space", false), "trim_offsets": true,
                   "use_regex": use_regex})
        };
        let decoded = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
        let spaces = |prefixed: bool| {
            let mut all = vec![
                json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
                json!({"type": "ByteFallback"}),
                json!({"type": "Fuse"}),
            ];
            all.extend(prefixed.then(|| json!({"type": "Strip", "content": " ", "start": 1, "stop": 0})));
            json!({"type": "Sequence", "decoders": all})
        };
        let nothing = Value::Null;
        let (normalizer, pre_tokenizer, decoder) = match self {
            Bert => (
                json!({"type": "BertNormalizer", "clean_text": true,
                       "handle_chinese_chars": set("tokenize_chinese_chars", true),
                       "strip_accents": config.get("strip_accents").and_then(Value::as_bool),
                       "lowercase": set("do_lower_case", true)}),
                json!({"type": "BertPreTokenizer"}),
                json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
            ),
            CodeGen | Gpt2 | Roberta => (nothing, bytes(true), decoded),
            GptNeoX => (json!({"type": "NFC"}), bytes(true), decoded),
            Qwen2 => {
                let split =
                    json!({"type": "Split", "pattern": {"Regex": QWEN2}, "behavior": "Isolated", "invert": false});
                let both = json!({"type": "Sequence", "pretokenizers": [split, bytes(false)]});
                (json!({"type": "NFC"}), both, decoded)
            }
            Llama => {
                let prefixed = set("add_prefix_space", true);
                let scheme = match (prefixed, set("legacy", false)) {
                    (false, _) => "never",
                    (true, true) => "always",
                    (true, false) => "first",
                };
                let pieces =
                    json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false});
                (nothing, pieces, spaces(prefixed))
            }
            Gemma => {
                let split = json!({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
                                   "invert": false});
                let replaced = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
                (replaced, split, spaces(false))
            }
        };
        let vocabulary = &model["vocab"];
        let words = match self {
            Bert => json!({"type": "WordPiece", "unk_token": unknown, "continuing_subword_prefix": "##",
                           "max_input_chars_per_word": 100, "vocab": vocabulary}),
            _ => json!({"type": "BPE", "dropout": null, "unk_token": (self == Gemma).then_some(unknown),
                        "continuing_subword_prefix": null, "end_of_word_suffix": null,
                        "fuse_unk": matches!(self, Gemma | Llama), "byte_fallback": matches!(self, Gemma | Llama),
                        "vocab": vocabulary, "merges": model["merges"]}),
        };
        let own = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true});
        let post_processor = match self {
            CodeGen if post_processor.is_null() => own,
            GptNeoX => Value::Null,
            _ => post_processor,
        };
        let parts = [
            ("version", json!("1.0")),
            ("added_tokens", json!([])),
            ("normalizer", normalizer),
            ("pre_tokenizer", pre_tokenizer),
            ("post_processor", post_processor),
            ("decoder", decoder),
            ("model", words),
        ];
        parts.into_iter().map(|(part, value)| (part.to_owned(), value)).collect()
    }

    /// The template of the class, which replaces that of the file; `None` if the class has none. It puts the tokens
    /// `cls` and `sep`, which are given with their ids, around a text.
    pub(super) fn template(self, config: &Config, [cls, sep]: [Option<(&str, u64)>; 2]) -> Option<Value> {
        match self {
            Bert => {
                // Defaults of the class, with the ids that it assumes.
                let ((cls, begin), (sep, end)) = (cls.unwrap_or(("[CLS]", 2)), sep.unwrap_or(("[SEP]", 3)));
                let token = |token: &str, id| json!({"id": token, "ids": [id], "tokens": [token]});
                let piece = |token: &str, segment| json!({"SpecialToken": {"id": token, "type_id": segment}});
                let text = |text: &str, segment| json!({"Sequence": {"id": text, "type_id": segment}});
                let single = [piece(cls, 0), text("A", 0), piece(sep, 0)];
                let pair = [&single[..], &[text("B", 1), piece(sep, 1)]].concat();
                Some(json!({"type": "TemplateProcessing", "single": single, "pair": pair,
                            "special_tokens": {cls: token(cls, begin), sep: token(sep, end)}}))
            }
            Roberta => {
                let ((cls, begin), (sep, end)) = (cls?, sep?);
                Some(json!({"type": "RobertaProcessing", "sep": [sep, end], "cls": [cls, begin],
                            "trim_offsets": set(config, "trim_offsets", true),
                            "add_prefix_space": set(config, "add_prefix_space", false)}))
            }
            _ => None,
        }
    }
}
