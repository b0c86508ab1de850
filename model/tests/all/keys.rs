//! Keys of `config.json` that transformers reads, as `references/keys.py` recorded them: each key is used here, known
//! to change nothing, or refused.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use waggle_model::{ConfigError, ModelSpec};

/// Keys that do not change what is computed here: they concern the training, other heads than the one that is read,
/// the form of results, rounding, or the files.
const INERT: &[&str] = &[
    "_commit_hash",
    "attention_dropout",
    "attention_probs_dropout_prob",
    "attn_implementation",
    "attn_pdrop",
    "bos_token_id",
    "chunk_size_feed_forward",
    "classifier_dropout",
    "dropout",
    "dtype",
    "embd_pdrop",
    "embedding_size",
    "encoder_stride",
    "experts_implementation",
    "hidden_dropout",
    "hidden_dropout_prob",
    "init_std",
    "initializer_range",
    "label2id",
    "layerdrop",
    "output_attentions",
    "output_hidden_states",
    "pooler_act",
    "pooler_output_size",
    "pretraining_tp",
    "qa_dropout",
    "reorder_and_upcast_attn",
    "resid_pdrop",
    "return_dict",
    "seq_classif_dropout",
    "sinusoidal_pos_embds",
    "summary_activation",
    "summary_first_dropout",
    "summary_last_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "torch_dtype",
    "transformers_version",
    "use_cache",
];

/// Keys that change nothing except in the families listed, which read them.
const INERT_THERE: &[(&str, &[&str])] = &[
    // The id of padding has a row like other ids. It matters only if positions begin after it.
    ("pad_token_id", &["roberta"]),
    // The logits of a decoder are those of tokens, not of classes.
    ("id2label", &["bert", "roberta", "distilbert", "vit"]),
    ("num_labels", &["bert", "roberta", "distilbert", "vit"]),
    ("problem_type", &["bert", "roberta", "distilbert", "vit"]),
];

/// Keys that one family accepts without reading them.
const INERT_OF: &[(&str, &[&str])] = &[
    ("gpt2", &["rope_parameters", "rope_scaling", "rope_theta"]),
    ("opt", &["rope_parameters", "rope_scaling", "rope_theta"]),
    // GPT-NeoX is always causal.
    ("gpt_neox", &["is_decoder"]),
    // Keys of experts matter only with `enable_moe_block`.
    ("gemma4_text", &["top_k_experts"]),
    ("bert", ENCODERS),
    ("roberta", ENCODERS),
    ("distilbert", ENCODERS),
    ("vit", ENCODERS),
];

/// Keys that do not apply to encoders: their texts have no end-of-text token, no direction and no rotary embedding,
/// and the head of a classifier is not tied.
const ENCODERS: &[&str] =
    &["eos_token_id", "is_causal", "rope_parameters", "rope_scaling", "rope_theta", "tie_word_embeddings"];

/// Keys of rotary embeddings of types that are refused.
const INERT_OF_ROPE: [&str; 6] = ["beta_fast", "beta_slow", "mrope_section", "mscale", "mscale_all_dim", "truncate"];

fn recorded() -> Value {
    serde_json::from_str(include_str!("../data/keys.json")).unwrap()
}

fn parse(config: &Value) -> Result<ModelSpec, ConfigError> {
    ModelSpec::from_config_json(config.to_string().as_bytes())
}

fn with(config: &Value, key: &str, value: Value) -> Value {
    let mut config = config.clone();
    config[key] = value;
    config
}

/// Configurations of a family. At least one of them uses each key that the family uses.
fn bases(kind: &str) -> Vec<Value> {
    let of = |more: Value| {
        let mut all = json!({"model_type": kind});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all
    };
    let factors = vec![1.5; 48];
    let more = match kind {
        "qwen2" | "qwen3" => json!({"use_sliding_window": true}),
        "smollm3" => json!({"use_sliding_window": true, "sliding_window": 8}),
        "gemma4_text" => json!({"attention_k_eq_v": true, "rope_theta": 5.0, "rope_parameters":
            {"full_attention": {"rope_type": "proportional"}, "sliding_attention": {"rope_type": "default"}}}),
        "phi3" => json!({"rope_scaling": {"type": "longrope", "short_factor": factors, "long_factor": factors}}),
        _ => json!({"rope_scaling":
            {"rope_type": "llama3", "factor": 2, "low_freq_factor": 1, "high_freq_factor": 4}}),
    };
    [of(json!({})), of(more)].into_iter().filter(|config| parse(config).is_ok()).collect()
}

/// Values of a key that differ from its `default`.
fn others(default: &Value) -> Vec<Value> {
    match default {
        Value::Bool(_) => vec![json!(true), json!(false)],
        Value::Number(number) => {
            let number = number.as_f64().unwrap();
            vec![json!(number + 1.0), json!(number as u64 + 1), json!(number as u64 * 2), json!(number / 2.0)]
        }
        Value::String(_) => vec![json!("something else")],
        _ => vec![json!(true), json!(false), json!(3), json!(0.5), json!("something"), json!([1]), json!({"0": "a"})],
    }
}

fn is_inert(kind: &str, key: &str) -> bool {
    let there = INERT_THERE.iter().find(|(known, _)| *known == key);
    let own = INERT_OF.iter().find(|(family, _)| *family == kind).is_some_and(|(_, keys)| keys.contains(&key));
    INERT.contains(&key) || own || there.is_some_and(|(_, readers)| !readers.contains(&kind))
}

/// A family in the record.
struct Family {
    kind: String,
    defaults: Map<String, Value>,
    /// All keys of the family, with their defaults.
    keys: Vec<(String, Value)>,
}

fn families() -> Vec<Family> {
    let recorded = recorded();
    let families = recorded["families"].as_object().unwrap();
    assert!(
        families.keys().map(String::as_str).collect::<BTreeSet<_>>() == ModelSpec::TYPES.iter().copied().collect()
    );
    let family = |(kind, family): (&String, &Value)| {
        let defaults = family["defaults"].as_object().unwrap().clone();
        let others = family["others"].as_array().unwrap().iter().map(|key| (key.as_str().unwrap(), Value::Null));
        let all = defaults.iter().map(|(key, value)| (key.as_str(), value.clone())).chain(others);
        let keys = all.map(|(key, value)| (key.to_owned(), value)).collect();
        Family { kind: kind.clone(), keys, defaults }
    };
    families.iter().map(family).collect()
}

#[test]
fn every_key_is_used_or_changes_nothing_or_is_refused() {
    let mut wrong = Vec::new();
    for Family { kind, keys, .. } in families() {
        for (key, default) in keys {
            let changes = bases(&kind).iter().any(|base| {
                let plain = parse(base).unwrap();
                let differs = |value: Value| parse(&with(base, &key, value)).ok().is_none_or(|spec| spec != plain);
                others(&default).into_iter().any(differs)
            });
            if changes == is_inert(&kind, &key) {
                wrong.push(format!("{kind}: {key} {}", if changes { "is used" } else { "is not read" }));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn missing_keys_have_the_defaults_of_transformers() {
    for Family { kind, defaults, .. } in families() {
        let plain = json!({"model_type": kind});
        let mut stated = defaults;
        stated.insert("model_type".into(), kind.clone().into());
        assert_eq!(parse(&stated.into()).unwrap(), parse(&plain).unwrap(), "{kind}");
    }
}

#[test]
fn every_key_of_a_rotary_embedding_is_used_or_is_of_another_type() {
    let factors = vec![1.5; 48];
    let ropes = [
        ("llama", json!({"rope_type": "linear", "factor": 2.0})),
        ("llama", json!({"rope_type": "llama3", "factor": 2, "low_freq_factor": 1, "high_freq_factor": 4})),
        ("phi3", json!({"rope_type": "longrope", "short_factor": factors, "long_factor": factors})),
    ];
    for key in recorded()["rope"].as_array().unwrap().iter().map(|key| key.as_str().unwrap()) {
        let used = ropes.iter().any(|(kind, rope)| {
            let of = |rope: &Value| parse(&json!({"model_type": kind, "rope_parameters": rope}));
            let plain = of(rope).unwrap();
            let differs = |value| of(&with(rope, key, value)).ok().is_none_or(|spec| spec != plain);
            others(&rope[key]).into_iter().filter(|value| !value.is_object()).any(differs)
        });
        assert_ne!(used, INERT_OF_ROPE.contains(&key), "{key}");
    }
    for kind in ["yarn", "dynamic", "axial", "mrope"] {
        let error = parse(&json!({"model_type": "llama", "rope_parameters": {"rope_type": kind, "factor": 2}}));
        assert!(error.unwrap_err().to_string().contains("rope_type"), "{kind}");
    }
}
