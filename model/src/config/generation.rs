//! What `generation_config.json` says of a text: where it ends, and what changes it.
//!
//! `generate` of transformers 5 takes the tokens that end a text only from this file, if it exists. It states them as
//! one id or as a list of ids. The other keys that change the text of greedy decoding are not applied here, but
//! noted.

use serde_json::{Map, Value, json};

use super::{ConfigError, object};

/// Keys that change a greedy text, and the values besides null with which they change nothing.
const CHANGING: [(&str, &[f64]); 24] = [
    ("bad_words_ids", &[]),
    ("begin_suppress_tokens", &[]),
    ("constraints", &[]),
    ("diversity_penalty", &[0.0]),
    ("dola_layers", &[]),
    ("encoder_no_repeat_ngram_size", &[0.0]),
    ("encoder_repetition_penalty", &[1.0]),
    ("exponential_decay_length_penalty", &[]),
    ("force_words_ids", &[]),
    ("forced_bos_token_id", &[]),
    ("forced_decoder_ids", &[]),
    ("forced_eos_token_id", &[]),
    ("guidance_scale", &[1.0]),
    ("min_length", &[0.0]),
    ("min_new_tokens", &[0.0]),
    ("no_repeat_ngram_size", &[0.0]),
    ("num_beams", &[1.0]),
    ("penalty_alpha", &[0.0]),
    ("prefill_logits_bias", &[]),
    ("repetition_penalty", &[1.0]),
    ("sequence_bias", &[]),
    ("stop_strings", &[]),
    ("suppress_tokens", &[]),
    ("watermarking_config", &[]),
];

/// The configuration `config` with the end tokens of the file `generation`, and notes on the settings that are not
/// applied.
pub(crate) fn with_ends(config: &[u8], generation: &[u8]) -> Result<(Vec<u8>, Vec<String>), ConfigError> {
    let (mut keys, generation) = (object(config)?, object(generation)?);
    let nothing = |value: &Value| value.is_null() || value == &json!([]) || value == &json!({});
    let changes = |key: &str, neutral: &[f64]| {
        let value = generation.get(key).filter(|value| !nothing(value))?;
        let same = value.as_f64().is_some_and(|value| neutral.contains(&value));
        (!same && value != &json!(false)).then(|| format!("{key} = {value}"))
    };
    let changed: Vec<_> = CHANGING.iter().filter_map(|(key, neutral)| changes(key, neutral)).collect();
    let mut notes = Vec::new();
    if !changed.is_empty() {
        notes.push(format!("generation_config.json: {} is not applied to texts", changed.join(", ")));
    }
    let ends = generation.get("eos_token_id").cloned().unwrap_or_default();
    let (old, new) = (listed(&keys), list(&ends));
    if old == new {
        return Ok((config.to_vec(), notes));
    }
    if old.is_some() {
        notes.push(format!("a text ends by eos_token_id of generation_config.json, {ends}, and not by config.json"));
    }
    keys.insert("eos_token_id".into(), ends);
    let json = serde_json::to_vec_pretty(&keys).map_err(|e| ConfigError::Json(e.to_string()))?;
    Ok((json, notes))
}

/// The end tokens of a configuration; `None` if it names none.
fn listed(keys: &Map<String, Value>) -> Option<Vec<Value>> {
    let inner = keys.get("text_config").and_then(|text| text.get("eos_token_id"));
    keys.get("eos_token_id").or(inner).and_then(list)
}

fn list(ends: &Value) -> Option<Vec<Value>> {
    match ends {
        Value::Null => None,
        Value::Array(all) => Some(all.clone()),
        one => Some(vec![one.clone()]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(config: Value, generation: Value) -> (Value, String) {
        let (config, notes) = with_ends(config.to_string().as_bytes(), generation.to_string().as_bytes()).unwrap();
        (object(&config).unwrap().get("eos_token_id").cloned().unwrap_or_default(), notes.join("; "))
    }

    #[test]
    fn the_file_of_generation_ends_a_text() {
        for (config, generation, want) in [
            (json!({"eos_token_id": 2}), json!({"eos_token_id": [2, 18]}), json!([2, 18])),
            (json!({"eos_token_id": [2, 3]}), json!({"eos_token_id": 7}), json!(7)),
            (json!({}), json!({"eos_token_id": 7}), json!(7)),
            // As in transformers, the text then has no end token.
            (json!({"eos_token_id": 2}), json!({"do_sample": true}), json!(null)),
            (json!({"text_config": {"eos_token_id": 2}}), json!({"eos_token_id": [1, 2]}), json!([1, 2])),
            // A list of one token stands for this token.
            (json!({"eos_token_id": 2}), json!({"eos_token_id": [2]}), json!(2)),
        ] {
            assert_eq!(ends(config.clone(), generation.clone()).0, want, "{config} {generation}");
        }
        let (_, notes) = ends(json!({"eos_token_id": 2}), json!({"eos_token_id": 3, "repetition_penalty": 1.05}));
        assert!(
            notes.contains("repetition_penalty = 1.05") && notes.contains("3, and not by config.json"),
            "{notes}"
        );
        let neutral = json!({"eos_token_id": 2, "num_beams": 1, "repetition_penalty": 1.0, "min_length": 0, "suppress_tokens": [],
                             "temperature": 0.6, "top_p": 0.9, "do_sample": true, "max_length": 4096});
        assert_eq!(ends(json!({"eos_token_id": 2}), neutral), (json!(2), String::new()));
        assert!(with_ends(b"{}", b"[]").is_err());
    }
}
