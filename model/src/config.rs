//! Public shape of a model, read from a Hugging Face `config.json`.
//!
//! Missing keys take the defaults of `transformers`. A key is refused by name and value if its value changes the
//! computation in a way that is not implemented here; this includes keys of other architectures ([`foreign`]). All
//! remaining keys are ignored.

use mpcache::HeadShape;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

mod foreign;
mod keys;

pub use keys::ConfigError;
use keys::{Keys, unsupported};

/// Entrywise non-linearity of the MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `gelu_new`, `gelu_pytorch_tanh`.
    GeluTanh,
    /// `gelu`.
    GeluErf,
    /// `silu`, `swish`.
    Silu,
}

/// How rotary frequencies are stretched for contexts longer than the training's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeScaling {
    /// As trained.
    None,
    /// All frequencies divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3.1: low frequencies divided by `factor`, high ones kept, a ramp between.
    Llama3 {
        /// The divisor of low frequencies.
        factor: f64,
        /// Wavelengths above original context / this are low frequencies.
        low_freq_factor: f64,
        /// Wavelengths below original context / this are high frequencies.
        high_freq_factor: f64,
        /// Context of the training before stretching.
        original_max_position_embeddings: f64,
    },
}

/// `config.json` of a GPT-2; fields have their published names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Hugging Face's")]
pub struct Gpt2Config {
    pub vocab_size: usize,
    pub n_positions: usize,
    pub n_embd: usize,
    pub n_layer: usize,
    pub n_head: usize,
    pub n_inner: usize,
    pub activation_function: Activation,
    pub layer_norm_epsilon: f32,
    pub scale_attn_weights: bool,
    pub scale_attn_by_inverse_layer_idx: bool,
    pub tie_word_embeddings: bool,
    pub eos_token_id: Vec<u32>,
}

/// `config.json` of a LLaMA; fields have their published names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Hugging Face's")]
pub struct LlamaConfig {
    pub vocab_size: usize,
    pub max_position_embeddings: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    pub head_dim: usize,
    pub hidden_act: Activation,
    pub rms_norm_eps: f32,
    pub rope_theta: f64,
    pub rope_scaling: RopeScaling,
    pub attention_bias: bool,
    pub mlp_bias: bool,
    pub tie_word_embeddings: bool,
    pub eos_token_id: Vec<u32>,
}

/// Architecture and shape of a model: public, everything that both parties must agree on to compute it.
///
/// Deserialising checks it, so a specification that came from a peer has sizes that are safe to multiply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "model_type", rename_all = "lowercase", try_from = "Unchecked")]
pub enum ModelSpec {
    /// Radford et al. 2019.
    Gpt2(Gpt2Config),
    /// Touvron et al. 2023.
    Llama(LlamaConfig),
}

#[derive(Deserialize)]
#[serde(tag = "model_type", rename_all = "lowercase")]
enum Unchecked {
    Gpt2(Gpt2Config),
    Llama(LlamaConfig),
}

impl TryFrom<Unchecked> for ModelSpec {
    type Error = ConfigError;

    fn try_from(spec: Unchecked) -> Result<Self, ConfigError> {
        match spec {
            Unchecked::Gpt2(c) => ModelSpec::Gpt2(c).checked(),
            Unchecked::Llama(c) => ModelSpec::Llama(c).checked(),
        }
    }
}

impl ModelSpec {
    /// Parses the text of a `config.json`.
    pub fn from_config_json(text: &[u8]) -> Result<Self, ConfigError> {
        let value: Value = serde_json::from_slice(text).map_err(|e| ConfigError::Json(e.to_string()))?;
        let Value::Object(map) = value else { return Err(ConfigError::Json("not an object".into())) };
        let keys = Keys(&map);
        let architecture = keys.architecture()?;
        let kind = match (keys.text("model_type")?, architecture) {
            (Some(kind @ ("gpt2" | "llama")), Some((name, of))) if kind != of => {
                return Err(unsupported("architectures", name, format!("model_type says {kind}")));
            }
            (Some(kind), _) | (None, Some((_, kind))) => kind,
            (None, None) => return Err(unsupported("model_type", "missing", ARCHITECTURES)),
        };
        foreign::check(&keys)?;
        match kind {
            "gpt2" => ModelSpec::Gpt2(Gpt2Config::parse(&keys)?).checked(),
            "llama" => ModelSpec::Llama(LlamaConfig::parse(&keys)?).checked(),
            other => Err(unsupported("model_type", other, ARCHITECTURES)),
        }
    }

    /// Heads of every attention layer.
    pub fn heads(&self) -> HeadShape {
        match self {
            ModelSpec::Gpt2(c) => HeadShape { heads: c.n_head, kv_heads: c.n_head, head_dim: c.n_embd / c.n_head },
            ModelSpec::Llama(c) => {
                HeadShape { heads: c.num_attention_heads, kv_heads: c.num_key_value_heads, head_dim: c.head_dim }
            }
        }
    }

    /// Number of layers.
    pub fn layers(&self) -> usize {
        match self {
            ModelSpec::Gpt2(c) => c.n_layer,
            ModelSpec::Llama(c) => c.num_hidden_layers,
        }
    }

    /// Length of a residual vector.
    pub fn hidden(&self) -> usize {
        match self {
            ModelSpec::Gpt2(c) => c.n_embd,
            ModelSpec::Llama(c) => c.hidden_size,
        }
    }

    /// Number of token ids.
    pub fn vocabulary(&self) -> usize {
        match self {
            ModelSpec::Gpt2(c) => c.vocab_size,
            ModelSpec::Llama(c) => c.vocab_size,
        }
    }

    /// Most positions that can go through the model: GPT-2 has a table of them. Rotary embeddings have no end, but
    /// beyond the length that the configuration states a model was never trained to tell distances.
    pub fn max_positions(&self) -> usize {
        match self {
            ModelSpec::Gpt2(c) => c.n_positions,
            ModelSpec::Llama(c) => c.max_positions(),
        }
    }

    /// Ids that end a text.
    pub fn eos(&self) -> &[u32] {
        match self {
            ModelSpec::Gpt2(c) => &c.eos_token_id,
            ModelSpec::Llama(c) => &c.eos_token_id,
        }
    }

    fn checked(self) -> Result<Self, ConfigError> {
        match &self {
            ModelSpec::Gpt2(c) => c.check()?,
            ModelSpec::Llama(c) => c.check()?,
        }
        Ok(self)
    }
}

const ARCHITECTURES: &str = "the architectures are gpt2 and llama";

/// Sizes beyond every published model, so that sums and products of a few of them stay far from overflow.
fn size(key: &str, value: usize, max: usize) -> Result<(), ConfigError> {
    if value == 0 || value > max { Err(unsupported(key, value, format!("1 to {max}"))) } else { Ok(()) }
}

const MAX_LAYERS: usize = 1 << 12;
const MAX_WIDTH: usize = 1 << 16;
const MAX_VOCABULARY: usize = 1 << 24;
const MAX_POSITIONS: usize = 1 << 28;

impl Gpt2Config {
    fn parse(keys: &Keys) -> Result<Self, ConfigError> {
        let n_embd = keys.size(&["n_embd", "hidden_size"])?.unwrap_or(768);
        Ok(Gpt2Config {
            vocab_size: keys.size(&["vocab_size"])?.unwrap_or(50257),
            n_positions: keys.size(&["n_positions", "max_position_embeddings"])?.unwrap_or(1024),
            n_embd,
            n_layer: keys.size(&["n_layer", "num_hidden_layers"])?.unwrap_or(12),
            n_head: keys.size(&["n_head", "num_attention_heads"])?.unwrap_or(12),
            n_inner: keys.size(&["n_inner"])?.unwrap_or(n_embd.saturating_mul(4)),
            activation_function: keys.activation("activation_function", Activation::GeluTanh)?,
            layer_norm_epsilon: keys.number("layer_norm_epsilon")?.unwrap_or(1e-5) as f32,
            scale_attn_weights: keys.flag("scale_attn_weights")?.unwrap_or(true),
            scale_attn_by_inverse_layer_idx: keys.flag("scale_attn_by_inverse_layer_idx")?.unwrap_or(false),
            tie_word_embeddings: keys.flag("tie_word_embeddings")?.unwrap_or(true),
            eos_token_id: keys.ids("eos_token_id")?.unwrap_or(vec![50256]),
        })
    }

    fn check(&self) -> Result<(), ConfigError> {
        size("vocab_size", self.vocab_size, MAX_VOCABULARY)?;
        size("n_positions", self.n_positions, MAX_POSITIONS)?;
        size("n_embd", self.n_embd, MAX_WIDTH)?;
        size("n_layer", self.n_layer, MAX_LAYERS)?;
        size("n_inner", self.n_inner, MAX_WIDTH)?;
        size("n_head", self.n_head, self.n_embd)?;
        if !self.n_embd.is_multiple_of(self.n_head) {
            return Err(unsupported("n_head", self.n_head, format!("must divide n_embd = {}", self.n_embd)));
        }
        epsilon("layer_norm_epsilon", self.layer_norm_epsilon)
    }
}

impl LlamaConfig {
    fn parse(keys: &Keys) -> Result<Self, ConfigError> {
        let hidden_size = keys.size(&["hidden_size"])?.unwrap_or(4096);
        let num_attention_heads = keys.size(&["num_attention_heads"])?.unwrap_or(32);
        let max_position_embeddings = keys.size(&["max_position_embeddings"])?.unwrap_or(2048);
        let (rope_theta, rope_scaling) = rope(keys, max_position_embeddings)?;
        Ok(LlamaConfig {
            vocab_size: keys.size(&["vocab_size"])?.unwrap_or(32000),
            max_position_embeddings,
            hidden_size,
            intermediate_size: keys.size(&["intermediate_size"])?.unwrap_or(11008),
            num_hidden_layers: keys.size(&["num_hidden_layers"])?.unwrap_or(32),
            num_attention_heads,
            num_key_value_heads: keys.size(&["num_key_value_heads"])?.unwrap_or(num_attention_heads),
            head_dim: keys
                .size(&["head_dim"])?
                .unwrap_or_else(|| hidden_size.checked_div(num_attention_heads).unwrap_or(0)),
            hidden_act: keys.activation("hidden_act", Activation::Silu)?,
            rms_norm_eps: keys.number("rms_norm_eps")?.unwrap_or(1e-6) as f32,
            rope_theta,
            rope_scaling,
            attention_bias: keys.flag("attention_bias")?.unwrap_or(false),
            mlp_bias: keys.flag("mlp_bias")?.unwrap_or(false),
            tie_word_embeddings: keys.flag("tie_word_embeddings")?.unwrap_or(false),
            eos_token_id: keys.ids("eos_token_id")?.unwrap_or(vec![2]),
        })
    }

    /// `max_position_embeddings` is the length before a linear scaling, and that after one of Llama 3.1.
    fn max_positions(&self) -> usize {
        let stretched = match self.rope_scaling {
            RopeScaling::Linear { factor } => (self.max_position_embeddings as f64 * factor) as usize,
            RopeScaling::None | RopeScaling::Llama3 { .. } => self.max_position_embeddings,
        };
        stretched.min(MAX_POSITIONS).max(self.max_position_embeddings)
    }

    fn check(&self) -> Result<(), ConfigError> {
        size("vocab_size", self.vocab_size, MAX_VOCABULARY)?;
        size("max_position_embeddings", self.max_position_embeddings, MAX_POSITIONS)?;
        size("hidden_size", self.hidden_size, MAX_WIDTH)?;
        size("intermediate_size", self.intermediate_size, MAX_WIDTH)?;
        size("num_hidden_layers", self.num_hidden_layers, MAX_LAYERS)?;
        size("num_attention_heads", self.num_attention_heads, MAX_WIDTH)?;
        size("num_key_value_heads", self.num_key_value_heads, self.num_attention_heads)?;
        size("head_dim", self.head_dim, MAX_WIDTH / self.num_attention_heads)?;
        if !self.num_attention_heads.is_multiple_of(self.num_key_value_heads) {
            let why = format!("must divide num_attention_heads = {}", self.num_attention_heads);
            return Err(unsupported("num_key_value_heads", self.num_key_value_heads, why));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(unsupported("head_dim", self.head_dim, "rotary embeddings need an even one"));
        }
        positive("rope_theta", self.rope_theta)?;
        match self.rope_scaling {
            RopeScaling::None => {}
            RopeScaling::Linear { factor } => positive("rope_scaling.factor", factor)?,
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings } => {
                positive("rope_scaling.factor", factor)?;
                positive("rope_scaling.low_freq_factor", low_freq_factor)?;
                positive("rope_scaling.original_max_position_embeddings", original_max_position_embeddings)?;
                positive("rope_scaling.high_freq_factor", high_freq_factor)?;
                if high_freq_factor <= low_freq_factor {
                    let why = format!("must exceed low_freq_factor = {low_freq_factor}");
                    return Err(unsupported("rope_scaling.high_freq_factor", high_freq_factor, why));
                }
            }
        }
        epsilon("rms_norm_eps", self.rms_norm_eps)
    }
}

fn positive(key: &str, value: f64) -> Result<(), ConfigError> {
    if value.is_finite() && value > 0.0 { Ok(()) } else { Err(unsupported(key, value, "a positive number")) }
}

fn epsilon(key: &str, value: f32) -> Result<(), ConfigError> {
    if (0.0..1.0).contains(&value) { Ok(()) } else { Err(unsupported(key, value, "0 to 1")) }
}

/// Base and scaling from `rope_theta` and `rope_scaling`, or from `rope_parameters` that hold both (transformers 5).
fn rope(keys: &Keys, context: usize) -> Result<(f64, RopeScaling), ConfigError> {
    let empty = Map::new();
    let object = |key: &str| match keys.0.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(map)) => Ok(Some(map)),
        Some(other) => Err(unsupported(key, other, "an object or null")),
    };
    // A `rope_scaling` of null beside `rope_parameters` is how newer configurations are read by older programs.
    let (name, map) = match (object("rope_parameters")?, object("rope_scaling")?) {
        (Some(map), _) => ("rope_parameters", map),
        (None, Some(map)) => ("rope_scaling", map),
        (None, None) => ("rope_scaling", &empty),
    };
    let inner = Keys(map);
    let theta = match inner.number("rope_theta")? {
        Some(theta) => theta,
        None => keys.number("rope_theta")?.unwrap_or(10000.0),
    };
    for partial in [inner.number("partial_rotary_factor")?, keys.number("partial_rotary_factor")?] {
        if let Some(part) = partial.filter(|p| *p != 1.0) {
            return Err(unsupported("partial_rotary_factor", part, "1"));
        }
    }
    let need = |key: &str| {
        inner.number(key)?.ok_or_else(|| unsupported(&format!("{name}.{key}"), "missing", "a positive number"))
    };
    let kind = match inner.text("rope_type")? {
        Some(kind) => kind,
        None => inner.text("type")?.unwrap_or("default"),
    };
    let scaling = match kind {
        "default" | "none" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: need("factor")? },
        "llama3" => RopeScaling::Llama3 {
            factor: need("factor")?,
            low_freq_factor: need("low_freq_factor")?,
            high_freq_factor: need("high_freq_factor")?,
            original_max_position_embeddings: inner
                .number("original_max_position_embeddings")?
                .unwrap_or(context as f64),
        },
        other => return Err(unsupported(&format!("{name}.rope_type"), other, "default, linear and llama3")),
    };
    Ok((theta, scaling))
}

impl Keys<'_> {
    /// The class that the weights belong to, and its architecture.
    fn architecture(&self) -> Result<Option<(&str, &'static str)>, ConfigError> {
        let names = self.read("architectures", "a list of names", Value::as_array)?;
        let Some(name) = names.and_then(|names| names.first()) else { return Ok(None) };
        match name.as_str() {
            Some(name @ ("GPT2LMHeadModel" | "GPT2Model")) => Ok(Some((name, "gpt2"))),
            Some(name @ ("LlamaForCausalLM" | "LLaMAForCausalLM" | "LlamaModel")) => Ok(Some((name, "llama"))),
            _ => Err(unsupported("architectures", name, ARCHITECTURES)),
        }
    }

    fn activation(&self, key: &str, default: Activation) -> Result<Activation, ConfigError> {
        match self.text(key)? {
            None => Ok(default),
            Some("gelu_new" | "gelu_pytorch_tanh") => Ok(Activation::GeluTanh),
            Some("gelu") => Ok(Activation::GeluErf),
            Some("silu" | "swish") => Ok(Activation::Silu),
            Some(other) => Err(unsupported(key, other, "gelu_new, gelu_pytorch_tanh, gelu and silu")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn parse(value: Value) -> Result<ModelSpec, ConfigError> {
        ModelSpec::from_config_json(value.to_string().as_bytes())
    }

    fn llama(extra: Value) -> Result<LlamaConfig, ConfigError> {
        let mut base = json!({"model_type": "llama"});
        for (key, value) in extra.as_object().unwrap() {
            base[key] = value.clone();
        }
        parse(base).map(|spec| match spec {
            ModelSpec::Llama(c) => c,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn missing_keys_take_the_defaults_of_transformers() {
        let ModelSpec::Gpt2(c) = parse(json!({"model_type": "gpt2", "from_the_future": [1]})).unwrap() else {
            panic!("not a GPT-2")
        };
        assert_eq!(
            (c.vocab_size, c.n_positions, c.n_embd, c.n_layer, c.n_head, c.n_inner),
            (50257, 1024, 768, 12, 12, 3072)
        );
        assert!(c.tie_word_embeddings && c.scale_attn_weights && !c.scale_attn_by_inverse_layer_idx);
        assert_eq!((c.activation_function, c.layer_norm_epsilon), (Activation::GeluTanh, 1e-5));
        let c = llama(json!({})).unwrap();
        assert_eq!((c.vocab_size, c.hidden_size, c.intermediate_size, c.head_dim), (32000, 4096, 11008, 128));
        assert_eq!((c.num_key_value_heads, c.rms_norm_eps, c.rope_theta), (32, 1e-6, 10000.0));
        assert!(!c.tie_word_embeddings && !c.attention_bias && !c.mlp_bias);
        let spec = parse(json!({"architectures": ["LlamaForCausalLM"], "eos_token_id": [7, 9]})).unwrap();
        assert_eq!(spec.eos(), [7, 9]);
        assert!(llama(json!({"eos_token_id": null})).unwrap().eos_token_id.is_empty());
        // Keys of other architectures at the values where they change nothing.
        let neutral = json!({"sliding_window": 8, "use_sliding_window": false, "logit_scale": 1.0, "alibi": false,
            "layer_types": ["full_attention"], "num_experts": 0, "clip_qkv": null, "architectures": ["LlamaForCausalLM"]});
        assert_eq!(llama(neutral).unwrap(), llama(json!({})).unwrap());
    }

    #[test]
    fn rope_is_read_in_old_and_new_style() {
        let old = llama(json!({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 8.0}})).unwrap();
        assert_eq!((old.rope_theta, old.rope_scaling), (5e5, RopeScaling::Linear { factor: 8.0 }));
        let new = llama(json!({"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 8}})).unwrap();
        assert_eq!((new.rope_theta, new.rope_scaling), (old.rope_theta, old.rope_scaling));
        let scaling = json!({"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0});
        let c = llama(json!({"rope_scaling": scaling, "max_position_embeddings": 8192})).unwrap();
        let original_max_position_embeddings = 8192.0;
        let (factor, low_freq_factor, high_freq_factor) = (32.0, 1.0, 4.0);
        let want =
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings };
        assert_eq!(c.rope_scaling, want);
        assert_eq!(
            llama(json!({"rope_parameters": {"rope_type": "default"}})).unwrap().rope_scaling,
            RopeScaling::None
        );
    }

    #[test]
    fn unsupported_values_are_refused_by_name_and_value() {
        for (config, key, value) in [
            (json!({"model_type": "mamba"}), "model_type", "mamba"),
            (json!({"architectures": ["BertModel"]}), "architectures", "BertModel"),
            (json!({}), "model_type", "missing"),
            (json!({"model_type": "gpt2", "activation_function": "relu"}), "activation_function", "relu"),
            (json!({"model_type": "gpt2", "n_head": 7}), "n_head", "7"),
            (json!({"model_type": "gpt2", "n_layer": 0}), "n_layer", "0"),
            (json!({"model_type": "gpt2", "n_embd": u64::MAX}), "n_embd", "18446744073709551615"),
            (json!({"model_type": "gpt2", "n_inner": -3}), "n_inner", "-3"),
            (json!({"model_type": "gpt2", "add_cross_attention": true}), "add_cross_attention", "true"),
            (json!({"model_type": "llama", "rope_scaling": {"type": "yarn", "factor": 2}}), "rope_type", "yarn"),
            (json!({"model_type": "llama", "rope_scaling": {"type": "linear"}}), "factor", "missing"),
            (json!({"model_type": "llama", "rope_theta": -1}), "rope_theta", "-1"),
            (json!({"model_type": "llama", "num_attention_heads": 0}), "num_attention_heads", "0"),
            (json!({"model_type": "llama", "num_key_value_heads": 5}), "num_key_value_heads", "5"),
            (json!({"model_type": "llama", "head_dim": 33}), "head_dim", "33"),
            (json!({"model_type": "llama", "head_dim": 1 << 19}), "head_dim", "524288"),
            (json!({"model_type": "llama", "mlp_bias": "yes"}), "mlp_bias", "yes"),
            (json!({"model_type": "llama", "partial_rotary_factor": 0.5}), "partial_rotary_factor", "0.5"),
            (
                json!({"model_type": "llama", "architectures": ["Qwen2ForCausalLM"]}),
                "architectures",
                "Qwen2ForCausalLM",
            ),
            (json!({"model_type": "gpt2", "architectures": ["LlamaForCausalLM"]}), "architectures", "gpt2"),
            (json!({"model_type": "llama", "architectures": "LlamaForCausalLM"}), "architectures", "a list"),
            (json!({"model_type": "llama", "sliding_window": 4096}), "sliding_window", "4096"),
            (json!({"model_type": "llama", "sliding_window": 8, "use_sliding_window": true}), "sliding_window", "8"),
            (
                json!({"model_type": "llama", "layer_types": ["full_attention", "sliding_attention"]}),
                "layer_types",
                "sliding",
            ),
            (json!({"model_type": "llama", "final_logit_softcapping": 30.0}), "final_logit_softcapping", "30"),
            (json!({"model_type": "llama", "num_local_experts": 8}), "num_local_experts", "8"),
            (json!({"model_type": "llama", "logits_scaling": 8}), "logits_scaling", "8"),
            (json!({"model_type": "llama", "use_qk_norm": true}), "use_qk_norm", "true"),
            (json!({"model_type": "gpt2", "position_embedding_type": "alibi"}), "position_embedding_type", "alibi"),
            (json!({"model_type": "gpt2", "is_encoder_decoder": true}), "is_encoder_decoder", "true"),
        ] {
            let message = parse(config.clone()).expect_err(&config.to_string()).to_string();
            assert!(message.contains(key) && message.contains(value), "{config} gave: {message}");
        }
    }

    #[test]
    fn a_peer_cannot_slip_in_what_a_file_cannot() {
        let spec = parse(json!({"model_type": "llama"})).unwrap();
        let mut sent = serde_json::to_value(&spec).unwrap();
        assert_eq!(serde_json::from_value::<ModelSpec>(sent.clone()).unwrap(), spec);
        sent["num_hidden_layers"] = json!(u32::MAX);
        assert!(serde_json::from_value::<ModelSpec>(sent).is_err());
    }

    proptest! {
        #[test]
        fn any_sizes_parse_to_themselves_or_are_refused(
            heads in 0usize..70, kv in 0usize..70, dim in 0usize..300, layers in 0usize..6000,
            theta in -1e6f64..1e7, factor in -2.0f64..40.0, eps in -0.5f64..1.5,
        ) {
            let config = json!({
                "model_type": "llama", "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": dim,
                "num_hidden_layers": layers, "rope_theta": theta, "rms_norm_eps": eps,
                "rope_scaling": {"rope_type": "linear", "factor": factor},
            });
            let valid = heads > 0 && kv > 0 && heads % kv == 0 && dim > 0 && dim % 2 == 0 && layers > 0
                && layers <= MAX_LAYERS && theta > 0.0 && factor > 0.0 && (0.0..1.0).contains(&(eps as f32));
            match parse(config) {
                Ok(spec) => {
                    prop_assert!(valid);
                    prop_assert_eq!(spec.heads(), HeadShape { heads, kv_heads: kv, head_dim: dim });
                    prop_assert_eq!(spec.layers(), layers);
                    let sent = serde_json::to_vec(&spec).unwrap();
                    prop_assert_eq!(serde_json::from_slice::<ModelSpec>(&sent).unwrap(), spec);
                }
                Err(_) => prop_assert!(!valid),
            }
        }

        #[test]
        fn junk_never_panics(text in ".{0,200}", key in "[a-z_]{1,12}", value in any::<i64>()) {
            let _ = ModelSpec::from_config_json(text.as_bytes());
            for kind in ["gpt2", "llama"] {
                let _ = parse(json!({"model_type": kind, key.as_str(): value}));
                for known in ["n_embd", "hidden_size", "head_dim", "num_attention_heads", "rope_scaling", "n_inner"] {
                    let _ = parse(json!({"model_type": kind, known: value}));
                }
            }
        }
    }
}
