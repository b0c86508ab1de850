//! Keys of other architectures, which are refused where they change the computation.

use serde_json::Value;

use super::experts;
use super::keys::{ConfigError, Keys, unsupported};

/// Refuses keys that only models of other architectures use, except for those that the model's own program `reads`.
pub(crate) fn check(keys: &Keys, reads: &[&str]) -> Result<(), ConfigError> {
    FOREIGN
        .into_iter()
        .filter(|(key, _)| !reads.contains(key))
        .try_for_each(|(key, neutral)| neutral.check(keys, key))
}

/// The values at which a key of another architecture changes nothing. Null or a missing key never changes anything.
#[derive(Clone, Copy)]
enum Neutral {
    /// `false`.
    Off,
    /// `true`.
    On,
    /// The number 1.
    One,
    /// A count of 0 or 1.
    AtMostOne,
    /// A list in which all entries are this text.
    All(&'static str),
    /// One of these texts.
    AnyOf(&'static [&'static str]),
    /// Every value changes something.
    Never,
    /// Any value if `use_sliding_window` is `false`, otherwise none.
    Window,
}

/// Keys of Mistral, Qwen, Gemma, Granite, MiniCPM, Cohere, OLMo, Mixtral, Falcon, GPT-NeoX, GPT-OSS and Llama 4, each
/// with the values at which it changes nothing. A model may bear a name that is known here, and yet be computed as
/// these keys say.
const FOREIGN: [(&str, Neutral); 51] = [
    ("is_causal", Neutral::On),
    ("transformers_weights", Neutral::Never),
    ("per_layer_config", Neutral::Never),
    ("dual_chunk_attention_config", Neutral::Never),
    ("use_mrope", Neutral::Off),
    ("num_experts_per_tok", Neutral::AtMostOne),
    ("moe_intermediate_size", Neutral::Never),
    ("linear_num_value_heads", Neutral::Never),
    ("full_attention_interval", Neutral::Never),
    ("swiglu_limit", Neutral::Never),
    ("use_bidirectional_attention", Neutral::Off),
    ("sliding_window_pattern", Neutral::Never),
    ("rope_local_base_freq", Neutral::Never),
    ("no_rope_layer_interval", Neutral::Never),
    ("add_cross_attention", Neutral::Off),
    ("is_encoder_decoder", Neutral::Off),
    ("sliding_window", Neutral::Window),
    ("use_sliding_window", Neutral::Off),
    ("layer_types", Neutral::All("full_attention")),
    ("attention_chunk_size", Neutral::Never),
    ("attn_logit_softcapping", Neutral::Never),
    ("final_logit_softcapping", Neutral::Never),
    ("query_pre_attn_scalar", Neutral::Never),
    ("qk_norm", Neutral::Off),
    ("use_qk_norm", Neutral::Off),
    ("qk_layernorm", Neutral::Off),
    ("qkv_bias", Neutral::Off),
    ("use_bias", Neutral::Off),
    ("clip_qkv", Neutral::Never),
    ("embedding_multiplier", Neutral::One),
    ("residual_multiplier", Neutral::One),
    ("attention_multiplier", Neutral::Never),
    ("logits_scaling", Neutral::One),
    ("logit_scale", Neutral::One),
    ("scale_emb", Neutral::One),
    ("scale_depth", Neutral::Never),
    ("dim_model_base", Neutral::Never),
    ("num_experts", Neutral::AtMostOne),
    ("num_local_experts", Neutral::AtMostOne),
    ("n_routed_experts", Neutral::AtMostOne),
    ("alibi", Neutral::Off),
    ("use_alibi", Neutral::Off),
    ("parallel_attn", Neutral::Off),
    ("use_parallel_residual", Neutral::Off),
    ("no_rope_layers", Neutral::Never),
    ("layer_rope_theta", Neutral::Never),
    ("nope_layer_interval", Neutral::Never),
    ("rotary_pct", Neutral::One),
    ("rope_interleaved", Neutral::Off),
    ("position_embedding_type", Neutral::AnyOf(&["absolute", "rope", "rotary"])),
    ("norm_type", Neutral::AnyOf(&["rms_norm", "rmsnorm", "layer_norm", "layernorm"])),
];

impl Neutral {
    fn check(self, keys: &Keys, key: &str) -> Result<(), ConfigError> {
        let Some(value) = keys.get(key) else { return Ok(()) };
        let (changes_nothing, why) = match self {
            Neutral::Off => (value == &Value::Bool(false), "only false".to_owned()),
            Neutral::On => (value == &Value::Bool(true), "only true".to_owned()),
            Neutral::One => (value.as_f64() == Some(1.0), "only 1".to_owned()),
            Neutral::AtMostOne => (value.as_f64().is_some_and(|n| n <= 1.0), experts::refused(keys)),
            Neutral::All(text) => {
                let all = value.as_array().is_some_and(|list| list.iter().all(|entry| entry == text));
                (all, format!("all must be {text}"))
            }
            Neutral::AnyOf(texts) => (texts.iter().any(|text| value == text), texts.join(", ")),
            Neutral::Never => (false, "only null".to_owned()),
            Neutral::Window => {
                (keys.flag("use_sliding_window")? == Some(false), "attention sees all tokens".to_owned())
            }
        };
        if changes_nothing { Ok(()) } else { Err(unsupported(key, value, why)) }
    }
}
