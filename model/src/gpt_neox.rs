//! GPT-NeoX, and Pythia with it: attention and MLP in parallel, partial rotary positions, an untied head.
//!
//! Black et al., arXiv 2204.06745, and Biderman et al., arXiv 2304.01373; weights by the names of
//! `GPTNeoXForCausalLM` in [`modeling_gpt_neox.py`]. The program is that of [`parallel`](crate::parallel). Queries,
//! keys and values are published as one matrix in which those of a head lie together; they are read in another order.
//!
//! [`modeling_gpt_neox.py`]: https://github.com/huggingface/transformers/tree/main/src/transformers/models/gpt_neox

use serde::{Deserialize, Serialize};

use crate::config::{Activation, ConfigError, Keys, RopeConfig, unsupported};
use crate::decoder::{Decoder, Defaults, Layout};
use crate::family::{Buffer, Dimensions, Family, layer_index};
use crate::parallel::{Names, Parallel, ParallelConfig};
use crate::rope;
use crate::weights::{Published, norm};
use crate::{Checkpoint, CheckpointError, TensorSpec};

/// A GPT-NeoX.
pub type GptNeoX<W> = Parallel<W, GptNeoXConfig>;

/// `config.json` of a GPT-NeoX; fields have their published names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Hugging Face's")]
pub struct GptNeoXConfig {
    #[serde(flatten)]
    pub decoder: Decoder,
    #[serde(flatten)]
    pub rope: RopeConfig,
}

impl Family for GptNeoXConfig {
    const CLASSES: &'static [&'static str] = &["GPTNeoXForCausalLM"];
    const READS: &'static [&'static str] = &["rotary_pct", "use_parallel_residual"];

    fn parse(keys: &Keys) -> Result<Self, ConfigError> {
        let decoder = Decoder::read(
            keys,
            &Defaults {
                vocab_size: 50432,
                max_position_embeddings: 2048,
                hidden_size: 6144,
                intermediate_size: 24576,
                num_hidden_layers: 44,
                num_attention_heads: 64,
                num_key_value_heads: None,
                head_dim: None,
                activation: ("hidden_act", Activation::GeluErf),
                eps: ("layer_norm_eps", 1e-5),
                tie_word_embeddings: false,
                eos: &[2],
            },
        )?;
        for key in ["use_parallel_residual", "attention_bias"] {
            if keys.flag(key)? == Some(false) {
                return Err(unsupported(key, false, "only true"));
            }
        }
        // Newer programs write the share and the base by their common names, too.
        let theta = keys.number("rotary_emb_base")?.unwrap_or(10000.0);
        let turned = keys.number("rotary_pct")?.unwrap_or(0.25);
        let rope = RopeConfig::read(keys, decoder.max_position_embeddings, None, (theta, turned))?;
        Ok(GptNeoXConfig { decoder, rope })
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.decoder.check()?;
        let Decoder { num_attention_heads, num_key_value_heads, .. } = self.decoder;
        if num_key_value_heads != num_attention_heads {
            return Err(unsupported("num_key_value_heads", num_key_value_heads, "as many as there are heads"));
        }
        self.rope.check(self.decoder.head_dim)
    }

    fn dimensions(&self) -> Dimensions<'_> {
        self.decoder.dimensions(self.rope.rope_scaling.positions(self.decoder.max_position_embeddings))
    }

    fn tensors(&self) -> Vec<TensorSpec> {
        let &Decoder { vocab_size, hidden_size: h, intermediate_size: f, .. } = &self.decoder;
        let (q, _) = self.decoder.widths();
        let mut out = vec![TensorSpec::new("gpt_neox.embed_in.weight", [vocab_size, h])];
        for i in 0..self.decoder.num_hidden_layers {
            let mut layer = Layout { prefix: format!("gpt_neox.layers.{i}"), out: &mut out };
            layer.layer_norm("input_layernorm", h);
            layer.layer_norm("post_attention_layernorm", h);
            layer.linear("attention.query_key_value", h, 3 * q, true);
            layer.linear("attention.dense", q, h, true);
            layer.linear("mlp.dense_h_to_4h", h, f, true);
            layer.linear("mlp.dense_4h_to_h", f, h, true);
        }
        Layout { prefix: "gpt_neox".into(), out: &mut out }.layer_norm("final_layer_norm", h);
        if !self.decoder.tie_word_embeddings {
            out.push(TensorSpec::new("embed_out.weight", [vocab_size, h]));
        }
        out
    }

    fn buffer(&self, name: &str) -> Option<Buffer> {
        let of_a_layer =
            |after| layer_index(name, "gpt_neox.layers.", after, self.decoder.num_hidden_layers).is_some();
        match name {
            "embed_out.weight" => Some(Buffer::TiedHead("gpt_neox.embed_in.weight")),
            _ if of_a_layer(".attention.bias") => Some(Buffer::CausalMask),
            _ if of_a_layer(".attention.masked_bias") => Some(Buffer::MaskedBias),
            _ if of_a_layer(".attention.rotary_emb.inv_freq") => Some(rope::stored(
                self.rope.turned(self.decoder.head_dim),
                self.rope.rope_theta,
                &self.rope.rope_scaling,
            )),
            _ => None,
        }
    }
}

impl ParallelConfig for GptNeoXConfig {
    const NAMES: Names = Names {
        embedding: "gpt_neox.embed_in",
        layers: "gpt_neox.layers",
        attention_out: "attention.dense",
        mlp_out: "mlp.dense_4h_to_h",
        norm: "gpt_neox.final_layer_norm",
        head: "embed_out",
    };

    fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    fn rope(&self) -> &RopeConfig {
        &self.rope
    }

    fn fused(&self, c: &Checkpoint, p: &str) -> Result<Published, CheckpointError> {
        let &Decoder { num_attention_heads: heads, head_dim: d, .. } = &self.decoder;
        // Query, key and value of a head lie together; here all queries come first.
        let ranges =
            (0..3).flat_map(|part| (0..heads).map(move |head| (3 * head + part) * d..(3 * head + part + 1) * d));
        let qkv = Published::reordered(c, &format!("{p}.attention.query_key_value"), ranges)?;
        let up = Published::linear(c, &[format!("{p}.mlp.dense_h_to_4h")], true)?;
        let (gain, shift) = norm(c, &format!("{p}.input_layernorm"))?;
        let (up_gain, up_shift) = norm(c, &format!("{p}.post_attention_layernorm"))?;
        Ok(qkv.after_norm(gain, Some(&shift)).beside(up.after_norm(up_gain, Some(&up_shift))))
    }

    fn head_bias(&self) -> bool {
        false
    }
}
