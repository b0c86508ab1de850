//! Phi-1.5 and Phi-2: attention and MLP in parallel from one layer norm, partial rotary positions, biases throughout.
//!
//! Li et al., arXiv 2309.05463; weights by the names of `PhiForCausalLM` in [`modeling_phi.py`]. The program is that
//! of [`parallel`](crate::parallel).
//!
//! [`modeling_phi.py`]: https://github.com/huggingface/transformers/tree/main/src/transformers/models/phi

use serde::{Deserialize, Serialize};

use crate::config::{Activation, ConfigError, Keys, RopeConfig, unsupported};
use crate::decoder::{Decoder, Defaults, Layout};
use crate::family::{Buffer, Dimensions, Family};
use crate::parallel::{Names, Parallel, ParallelConfig};
use crate::rope;
use crate::weights::{Published, norm};
use crate::{Checkpoint, CheckpointError, TensorSpec};

/// A Phi.
pub type Phi<W> = Parallel<W, PhiConfig>;

/// `config.json` of a Phi; fields have their published names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Hugging Face's")]
pub struct PhiConfig {
    #[serde(flatten)]
    pub decoder: Decoder,
    #[serde(flatten)]
    pub rope: RopeConfig,
}

/// Queries, keys, values and the MLP's first layer.
const FUSED: [&str; 4] = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.fc1"];

impl Family for PhiConfig {
    const CLASSES: &'static [&'static str] = &["PhiForCausalLM", "PhiModel"];

    fn parse(keys: &Keys) -> Result<Self, ConfigError> {
        let decoder = Decoder::read(
            keys,
            &Defaults {
                vocab_size: 51200,
                max_position_embeddings: 2048,
                hidden_size: 2048,
                intermediate_size: 8192,
                num_hidden_layers: 24,
                num_attention_heads: 32,
                num_key_value_heads: None,
                head_dim: None,
                activation: ("hidden_act", Activation::GeluTanh),
                eps: ("layer_norm_eps", 1e-5),
                tie_word_embeddings: false,
                eos: &[2],
            },
        )?;
        let rope = RopeConfig::read(keys, decoder.max_position_embeddings, None, (10000.0, 0.5))?;
        Ok(PhiConfig { decoder, rope })
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.decoder.check()?;
        if self.decoder.tie_word_embeddings {
            return Err(unsupported("tie_word_embeddings", true, "a Phi has a head of its own"));
        }
        self.rope.check(self.decoder.head_dim)
    }

    fn dimensions(&self) -> Dimensions<'_> {
        self.decoder.dimensions(self.rope.rope_scaling.positions(self.decoder.max_position_embeddings))
    }

    fn tensors(&self) -> Vec<TensorSpec> {
        let &Decoder { vocab_size, hidden_size: h, intermediate_size: f, .. } = &self.decoder;
        let (q, kv) = self.decoder.widths();
        let mut out = vec![TensorSpec::new("model.embed_tokens.weight", [vocab_size, h])];
        for i in 0..self.decoder.num_hidden_layers {
            let mut layer = Layout { prefix: format!("model.layers.{i}"), out: &mut out };
            layer.layer_norm("input_layernorm", h);
            for (name, outputs) in FUSED.into_iter().zip([q, kv, kv, f]) {
                layer.linear(name, h, outputs, true);
            }
            layer.linear("self_attn.dense", q, h, true);
            layer.linear("mlp.fc2", f, h, true);
        }
        Layout { prefix: "model".into(), out: &mut out }.layer_norm("final_layernorm", h);
        out.push(TensorSpec::new("lm_head.weight", [vocab_size, h]));
        out.push(TensorSpec::new("lm_head.bias", [vocab_size]));
        out
    }

    fn buffer(&self, name: &str) -> Option<Buffer> {
        rope::buffer_of(name, &self.decoder, &self.rope)
    }
}

impl ParallelConfig for PhiConfig {
    const NAMES: Names = Names {
        embedding: "model.embed_tokens",
        layers: "model.layers",
        attention_out: "self_attn.dense",
        mlp_out: "mlp.fc2",
        norm: "model.final_layernorm",
        head: "lm_head",
    };

    fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    fn rope(&self) -> &RopeConfig {
        &self.rope
    }

    fn fused(&self, c: &Checkpoint, p: &str) -> Result<Published, CheckpointError> {
        let (gain, shift) = norm(c, &format!("{p}.input_layernorm"))?;
        Ok(Published::linear(c, &FUSED.map(|name| format!("{p}.{name}")), true)?.after_norm(gain, Some(&shift)))
    }

    fn head_bias(&self) -> bool {
        true
    }
}
