//! Models of texts and pictures. Only the text model in them is read.
//!
//! The `config.json` of such a model has the configuration of the text model under `text_config`. The text model's
//! tensors have their names behind a prefix: `language_model.model.` and `language_model.lm_head.`, or, from
//! transformers 4.52 on, `model.language_model.`. The other tensors turn pictures into embeddings. They are left out,
//! as texts have no pictures.

use serde_json::{Map, Value};

use super::{ConfigError, unsupported};

/// A kind of model that contains a text model.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Wrapper {
    /// The `model_type` of this kind.
    kind: &'static str,
    /// The class that the weights belong to.
    class: &'static str,
    /// The `model_type` of a text model that does not state its own.
    text: &'static str,
    /// The beginnings of the names of the tensors that are left out, without `model.`.
    outside: &'static [&'static str],
}

/// Beginnings of the names of tensors that turn pictures into embeddings.
const PICTURES: &[&str] = &["vision_tower.", "multi_modal_projector."];

/// Beginnings of the names of tensors that turn pictures and sounds into embeddings.
const PICTURES_AND_SOUNDS: &[&str] = &["vision_tower.", "audio_tower.", "embed_vision.", "embed_audio."];

/// All kinds whose text models are read.
const WRAPPERS: &[Wrapper] = &[
    Wrapper { kind: "gemma3", class: "Gemma3ForConditionalGeneration", text: "gemma3_text", outside: PICTURES },
    Wrapper {
        kind: "gemma4",
        class: "Gemma4ForConditionalGeneration",
        text: "gemma4_text",
        outside: PICTURES_AND_SOUNDS,
    },
    Wrapper { kind: "mistral3", class: "Mistral3ForConditionalGeneration", text: "mistral", outside: PICTURES },
    Wrapper { kind: "llava", class: "LlavaForConditionalGeneration", text: "llama", outside: PICTURES },
];

/// Keys that stand beside `text_config` and apply to the text model as well.
const SHARED: [&str; 4] = ["eos_token_id", "tie_word_embeddings", "quantization_config", "compression_config"];

/// The part of a model that a tensor belongs to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Place<'n> {
    /// The text model, in which the tensor has this name.
    Text(String),
    /// A part that is left out, with the beginning of the names of its tensors.
    Outside(&'n str),
}

impl Wrapper {
    /// The part that the tensor `name` belongs to. An unknown name stays as it is, in the text model.
    pub(crate) fn place<'n>(&self, name: &'n str) -> Place<'n> {
        let bare = name.strip_prefix("model.").unwrap_or(name);
        if let Some(prefix) = self.outside.iter().find(|prefix| bare.starts_with(**prefix)) {
            return Place::Outside(&name[..name.len() - bare.len() + prefix.len()]);
        }
        let text = match (bare.strip_prefix("language_model."), bare.len() == name.len()) {
            (Some(text), true) => text.to_owned(),
            (Some(text), false) => format!("model.{text}"),
            (None, _) => name.to_owned(),
        };
        Place::Text(text)
    }
}

/// The keys of the text model, and the kind of model that contains it, if one does.
pub(crate) fn text_model(
    mut keys: Map<String, Value>,
) -> Result<(Map<String, Value>, Option<&'static Wrapper>), ConfigError> {
    let kind = keys.get("model_type").and_then(Value::as_str);
    let class = keys.get("architectures").and_then(|names| names.get(0)).and_then(Value::as_str);
    let is = |wrapper: &&Wrapper| match kind {
        Some(kind) => wrapper.kind == kind,
        None => Some(wrapper.class) == class,
    };
    let Some(wrapper) = WRAPPERS.iter().find(is) else { return Ok((keys, None)) };
    if let Some(class) = class.filter(|class| *class != wrapper.class) {
        return Err(unsupported("architectures", class, format!("model_type says {}", wrapper.kind)));
    }
    let mut text = match keys.remove("text_config") {
        Some(Value::Object(text)) => text,
        other => {
            let found = other.map_or_else(|| "missing".to_owned(), |value| value.to_string());
            return Err(unsupported("text_config", found, "the configuration of the text model"));
        }
    };
    text.entry("model_type").or_insert_with(|| wrapper.text.into());
    for key in SHARED {
        if let Some(value) = keys.remove(key) {
            text.insert(key.into(), value);
        }
    }
    Ok((text, Some(wrapper)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_name_has_its_place() {
        let text = |name: &str| Place::Text(name.to_owned());
        for (name, place) in [
            ("language_model.model.norm.weight", text("model.norm.weight")),
            ("language_model.lm_head.weight", text("lm_head.weight")),
            ("model.language_model.norm.weight", text("model.norm.weight")),
            ("lm_head.weight", text("lm_head.weight")),
            ("vision_tower.vision_model.a", Place::Outside("vision_tower.")),
            ("model.vision_tower.a", Place::Outside("model.vision_tower.")),
            ("model.multi_modal_projector.b", Place::Outside("model.multi_modal_projector.")),
            ("audio_tower.a", text("audio_tower.a")),
            ("model.", text("model.")),
            ("", text("")),
        ] {
            assert_eq!(WRAPPERS[0].place(name), place, "{name}");
        }
    }

    #[test]
    fn a_text_model_has_its_own_keys_and_the_shared_ones() {
        let parse = |value: Value| match value {
            Value::Object(keys) => text_model(keys),
            other => panic!("{other}"),
        };
        let config = json!({"architectures": ["Gemma3ForConditionalGeneration"], "eos_token_id": [1, 106],
            "hidden_size": 7, "text_config": {"hidden_size": 8, "eos_token_id": 1}});
        let (keys, wrapper) = parse(config).unwrap();
        let want = json!({"model_type": "gemma3_text", "hidden_size": 8, "eos_token_id": [1, 106]});
        assert_eq!(Value::Object(keys), want);
        assert_eq!(wrapper.map(|wrapper| wrapper.kind), Some("gemma3"));
        let plain = json!({"model_type": "llama", "text_config": {}});
        assert_eq!(
            parse(plain.clone()).map(|(keys, wrapper)| (Value::Object(keys), wrapper)).unwrap(),
            (plain, None)
        );
        for (config, word) in [
            (json!({"model_type": "gemma3"}), "text_config"),
            (json!({"model_type": "gemma3", "text_config": [1]}), "[1]"),
            (json!({"model_type": "gemma3", "architectures": ["LlamaForCausalLM"]}), "LlamaForCausalLM"),
        ] {
            assert!(parse(config).unwrap_err().to_string().contains(word), "{word}");
        }
    }
}
