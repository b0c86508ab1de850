//! Gemma 4 without experts: layers that see all tokens have longer heads than those with a window, and their values
//! may be their keys. Values are normalised, and a layer multiplies its output by a number. E2B and E4B have
//! embeddings by layer, and their last layers read the keys and values of earlier ones.
//!
//! Weights by the names of `Gemma4ForCausalLM` in [`modeling_gemma4.py`]. Only the text model is read.
//!
//! [`modeling_gemma4.py`]: https://github.com/huggingface/transformers/tree/main/src/transformers/models/gemma4

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use waggle_mpcache::HeadShape;

use super::Family;
use super::gemma2::{self, Gemma};
use crate::config::{
    Common, ConfigError, Defaults, Keys, MAX_WIDTH, RopeConfig, RopeDefaults, RopeScaling, Windows, experts, size,
    unsupported,
};
use crate::style::{ByLayer, Names, Norm, Positions, QkNorm, Role, Style, Values};

/// `config.json` of a Gemma 4; fields have their published names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Hugging Face's")]
pub struct Gemma4Config {
    /// The common keys. The heads are those of layers with a window, and the rotary embedding is that of layers that
    /// see all tokens.
    #[serde(flatten)]
    pub common: Common,
    /// The rotary embedding of layers with a window.
    pub sliding_rope: RopeConfig,
    pub global_head_dim: usize,
    pub num_global_key_value_heads: usize,
    pub attention_k_eq_v: bool,
    /// The length of a layer's vector in the embeddings by layer; 0 if there are none.
    pub hidden_size_per_layer_input: usize,
    pub num_kv_shared_layers: usize,
    pub use_double_wide_mlp: bool,
    #[serde(flatten)]
    pub gemma: Gemma,
}

const NAMES: Names = Names {
    layer: &[
        (Role::Query, "self_attn.q_proj"),
        (Role::Key, "self_attn.k_proj"),
        (Role::Value, "self_attn.v_proj"),
        (Role::Output, "self_attn.o_proj"),
        (Role::QueryNorm, "self_attn.q_norm"),
        (Role::KeyNorm, "self_attn.k_norm"),
        (Role::Gate, "mlp.gate_proj"),
        (Role::Up, "mlp.up_proj"),
        (Role::Down, "mlp.down_proj"),
        (Role::LayerGate, "per_layer_input_gate"),
        (Role::LayerProjection, "per_layer_projection"),
        (Role::AfterLayer, "post_per_layer_input_norm"),
        (Role::Scale, "layer_scalar"),
    ],
    ..gemma2::NAMES
};

const BY_LAYER: ByLayer = ByLayer {
    width: 0,
    table: "model.embed_tokens_per_layer",
    projection: "model.per_layer_model_projection",
    norm: "model.per_layer_projection_norm",
};

/// Values that `transformers` takes for missing keys.
const DEFAULTS: Defaults =
    Defaults { vocab_size: 262144, max_position_embeddings: 131072, num_hidden_layers: 30, ..gemma2::DEFAULTS };

impl Gemma4Config {
    /// The heads of layers that see all tokens.
    fn global(&self) -> HeadShape {
        let kv_heads = self.num_global_key_value_heads;
        HeadShape { heads: self.common.num_attention_heads, kv_heads, head_dim: self.global_head_dim }
    }
}

impl Family for Gemma4Config {
    const CLASSES: &'static [&'static str] = &["Gemma4ForCausalLM", "Gemma4TextModel"];
    const READS: &'static [&'static str] = &[
        "sliding_window",
        "layer_types",
        "final_logit_softcapping",
        "use_bidirectional_attention",
        "per_layer_config",
    ];

    fn parse(keys: &Keys) -> Result<Self, ConfigError> {
        refuse(keys)?;
        let [global_rope, sliding_rope] = ropes(keys)?;
        let common = Common::with_rope(keys, &DEFAULTS, global_rope)?;
        let layers = common.num_hidden_layers;
        let mut windows = Windows::read(keys, layers, Some(512), |layer| !(layer + 1).is_multiple_of(6))?;
        // The last layer sees all tokens, whatever the list says.
        windows.window_layers.last_mut().into_iter().for_each(|windowed| *windowed = false);
        let attention_k_eq_v = keys.flag("attention_k_eq_v")?.unwrap_or(false);
        let kv = keys.size(&["num_global_key_value_heads"])?.filter(|_| attention_k_eq_v);
        let stated = (keys.size(&["global_head_dim"])?.unwrap_or(512), kv.unwrap_or(common.num_key_value_heads));
        let (global_head_dim, num_global_key_value_heads) =
            by_layer(keys, &common, &windows.window_layers)?.unwrap_or(stated);
        let hidden_size_per_layer_input = keys.size(&["hidden_size_per_layer_input"])?.unwrap_or(256);
        let ids = keys.size(&["vocab_size_per_layer_input"])?.unwrap_or(262144);
        if hidden_size_per_layer_input > 0 && ids != common.vocab_size {
            let why = format!("vocab_size = {}, as every id is looked up in both tables", common.vocab_size);
            return Err(unsupported("vocab_size_per_layer_input", ids, why));
        }
        let gemma = Gemma {
            attention_bias: false,
            query_pre_attn_scalar: 1.0,
            windows,
            attn_logit_softcapping: None,
            final_logit_softcapping: keys.number("final_logit_softcapping")?.map(|cap| cap as f32),
        };
        Ok(Gemma4Config {
            common,
            sliding_rope,
            global_head_dim,
            num_global_key_value_heads,
            attention_k_eq_v,
            hidden_size_per_layer_input,
            num_kv_shared_layers: keys.size(&["num_kv_shared_layers"])?.unwrap_or(0),
            use_double_wide_mlp: keys.flag("use_double_wide_mlp")?.unwrap_or(false),
            gemma,
        })
    }

    fn check(&self) -> Result<(), ConfigError> {
        let HeadShape { kv_heads, head_dim, .. } = self.global();
        let (kv_key, dim_key) = ("num_global_key_value_heads", "global_head_dim");
        let global = Common { num_key_value_heads: kv_heads, head_dim, ..self.common.clone() };
        global.check().map_err(|error| match error {
            ConfigError::Unsupported { key, value, why } if key == "num_key_value_heads" => {
                unsupported(kv_key, value, why)
            }
            ConfigError::Unsupported { key, value, why } if key == "head_dim" => unsupported(dim_key, value, why),
            other => other,
        })?;
        // A layer with a window of all positions would differ from one that sees all tokens only in its heads.
        let (window, most) = (self.gemma.windows.sliding_window, self.common.max_position_embeddings);
        if let Some(window) = window.filter(|window| *window >= most) {
            return Err(unsupported("sliding_window", window, format!("below max_position_embeddings = {most}")));
        }
        Common { rope: self.sliding_rope.clone(), ..self.common.clone() }.check()?;
        let layers = self.common.num_hidden_layers;
        if self.hidden_size_per_layer_input > 0 {
            size("hidden_size_per_layer_input", self.hidden_size_per_layer_input, MAX_WIDTH / layers)?;
        }
        self.gemma.check(layers)?;
        let windowed = &self.gemma.windows.window_layers;
        let shared = self.num_kv_shared_layers;
        if shared > 0 && (0..layers).any(|layer| shared >= layers || source(windowed, shared, layer).is_none()) {
            let why = "fewer than there are layers, behind a layer with a window and one that sees all tokens";
            return Err(unsupported("num_kv_shared_layers", shared, why));
        }
        if self.use_double_wide_mlp {
            size("intermediate_size", self.common.intermediate_size, MAX_WIDTH / 2)?;
        }
        Ok(())
    }

    fn style(&self) -> Style {
        let windowed = &self.gemma.windows.window_layers;
        let own = |windowed: &bool| if *windowed { self.common.heads() } else { self.global() };
        let layers = windowed.len();
        let is_shared = |layer: usize| layer + self.num_kv_shared_layers >= layers;
        let values = |(layer, own): (usize, &bool)| match source(windowed, self.num_kv_shared_layers, layer) {
            Some(of) if is_shared(layer) => Values::Shared(of),
            _ if self.attention_k_eq_v && !own => Values::Keys,
            _ => Values::Normalised,
        };
        let wide = |layer| if self.use_double_wide_mlp && is_shared(layer) { 2 } else { 1 };
        let by_layer = ByLayer { width: self.hidden_size_per_layer_input, ..BY_LAYER };
        Style {
            names: NAMES,
            heads: windowed.iter().map(own).collect(),
            values: windowed.iter().enumerate().map(values).collect(),
            intermediate: (0..layers).map(|layer| wide(layer) * self.common.intermediate_size).collect(),
            by_layer: Some(by_layer).filter(|by_layer| by_layer.width > 0),
            norm: Norm::Rms,
            qk_norm: QkNorm::Head,
            positions: Positions::Rotary(vec![self.common.rope.clone(), self.sliding_rope.clone()]),
            turns: windowed.iter().map(|windowed| Some(usize::from(*windowed))).collect(),
            ..self.gemma.style(&self.common)
        }
    }
}

/// The layer whose keys and values `layer` reads, if `layer` is one of the last `shared` layers, which have none of
/// their own. It is the last one before the `shared` layers that has a window if `layer` has one, and has none
/// otherwise.
fn source(windowed: &[bool], shared: usize, layer: usize) -> Option<usize> {
    windowed[..windowed.len().saturating_sub(shared)].iter().rposition(|own| *own == windowed[layer])
}

/// Refuses the settings of models of this type that are computed differently.
fn refuse(keys: &Keys) -> Result<(), ConfigError> {
    if keys.flag("enable_moe_block")? == Some(true) {
        return Err(unsupported("enable_moe_block", true, experts::refused(keys)));
    }
    if keys.flag("attention_bias")? == Some(true) {
        return Err(unsupported("attention_bias", true, "only false"));
    }
    if let Some(scaling) = keys.get("rope_scaling") {
        return Err(unsupported("rope_scaling", scaling, "only null: rope_parameters by type of layer"));
    }
    // This setting lets pictures see tokens after them; a text has no pictures.
    match keys.get("use_bidirectional_attention") {
        Some(value) if value != "vision" => {
            Err(unsupported("use_bidirectional_attention", value, "only null and vision"))
        }
        _ => Ok(()),
    }
}

/// The rotary embeddings of layers that see all tokens and of layers with a window, in this order.
fn ropes(keys: &Keys) -> Result<[RopeConfig; 2], ConfigError> {
    let kinds = &["default", "proportional"];
    let defaults = RopeDefaults { kinds, rope_theta: None, partial_rotary_factor: Some(1.0), ..DEFAULTS.rope(keys)? };
    if keys.get("rope_parameters").is_none() {
        let of = |rope_scaling, rope_theta, partial_rotary_factor| RopeConfig {
            rope_theta,
            rope_scaling,
            partial_rotary_factor,
        };
        return Ok([of(RopeScaling::Proportional { factor: 1.0 }, 1e6, 0.25), of(RopeScaling::None, 1e4, 1.0)]);
    }
    let mut ropes = RopeConfig::by_layer(keys, &[defaults.beside(keys, "rope_theta")?; 2])?;
    // The authors' program reads the share of turning coordinates only for the kind `proportional`.
    for rope in ropes.iter_mut().filter(|rope| rope.rope_scaling == RopeScaling::None) {
        rope.partial_rotary_factor = 1.0;
    }
    Ok(ropes)
}

/// The length and the number of the key/value heads of layers that see all tokens, from `per_layer_config`, which
/// transformers 5 writes in place of `global_head_dim` and `num_global_key_value_heads`.
fn by_layer(keys: &Keys, common: &Common, windowed: &[bool]) -> Result<Option<(usize, usize)>, ConfigError> {
    let key = "per_layer_config";
    let Some(all) = keys.read(key, "an object", Value::as_object)? else { return Ok(None) };
    let (own, empty) = ((common.head_dim, common.num_key_value_heads), Map::new());
    let mut global = None;
    for (layer, windowed) in windowed.iter().enumerate() {
        let map = all.get(&layer.to_string()).and_then(Value::as_object).unwrap_or(&empty);
        let of = Keys(map);
        let heads = (of.size(&["head_dim"])?.unwrap_or(own.0), of.size(&["num_key_value_heads"])?.unwrap_or(own.1));
        let known = map.keys().all(|key| ["head_dim", "num_key_value_heads"].contains(&key.as_str()));
        if !known || heads != if *windowed { own } else { *global.get_or_insert(heads) } {
            let why = "head_dim and num_key_value_heads, the same in all layers that see all tokens";
            return Err(unsupported(&format!("{key}.{layer}"), Value::Object(map.clone()), why));
        }
    }
    Ok(global)
}
