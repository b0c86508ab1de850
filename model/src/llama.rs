//! LLaMA: rotary positions, RMSNorm, gated MLP, query heads that share key/value heads.
//!
//! Touvron et al., arXiv 2302.13971; weights by the names of
//! `LlamaForCausalLM` in [`modeling_llama.py`].
//! The program differs from that one in what is done once, when the weights are loaded: the gain of every norm is
//! folded into the matrix after it, the factor 1/sqrt(head_dim) into the query matrix (a rotation keeps it), query,
//! key and value become one matrix, gate and up another.
//!
//! [`modeling_llama.py`]: https://github.com/huggingface/transformers/tree/main/src/transformers/models/llama

use engine::{Engine, Layer, Tensor};
use mpcache::{HeadShape, KvCache};

use crate::Error;
use crate::checkpoint::TensorSpec;
pub use crate::config::LlamaConfig;
use crate::config::{ConfigError, Keys};
use crate::family::{Buffer, Dimensions, Family};
use crate::layers::{Input, Rows, activate, attend, class, learned};
use crate::rope::{self, Angles, Rope};
use crate::weights::{Builder, Published};

/// A LLaMA whose matrices are prepared for an engine with weights `W`.
pub struct Llama<W> {
    config: LlamaConfig,
    rope: Rope,
    embed_tokens: W,
    layers: Vec<Block<W>>,
    lm_head: W,
    learned: bool,
}

struct Block<W> {
    qkv_proj: W,
    o_proj: W,
    gate_up_proj: W,
    down_proj: W,
}

impl LlamaConfig {
    fn heads(&self) -> HeadShape {
        HeadShape { heads: self.num_attention_heads, kv_heads: self.num_key_value_heads, head_dim: self.head_dim }
    }

    /// Lengths of all queries, and of all keys, of one token.
    fn widths(&self) -> (usize, usize) {
        (self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim)
    }
}

/// Published tensors of a LLaMA. Linear layers are (outputs, inputs).
fn layout(config: &LlamaConfig) -> Vec<TensorSpec> {
    let &LlamaConfig { vocab_size, hidden_size: h, intermediate_size: f, .. } = config;
    let (q, kv) = config.widths();
    let mut out = vec![TensorSpec::new("model.embed_tokens.weight", [vocab_size, h])];
    for i in 0..config.num_hidden_layers {
        let mut add = |name: &str, shape: &[usize]| {
            out.push(TensorSpec::new(format!("model.layers.{i}.{name}"), shape));
        };
        let mut linear = |name: &str, inputs, outputs, biased| {
            add(&format!("{name}.weight"), &[outputs, inputs]);
            if biased {
                add(&format!("{name}.bias"), &[outputs]);
            }
        };
        linear("self_attn.q_proj", h, q, config.attention_bias);
        linear("self_attn.k_proj", h, kv, config.attention_bias);
        linear("self_attn.v_proj", h, kv, config.attention_bias);
        linear("self_attn.o_proj", q, h, config.attention_bias);
        linear("mlp.gate_proj", h, f, config.mlp_bias);
        linear("mlp.up_proj", h, f, config.mlp_bias);
        linear("mlp.down_proj", f, h, config.mlp_bias);
        add("input_layernorm.weight", &[h]);
        add("post_attention_layernorm.weight", &[h]);
    }
    out.push(TensorSpec::new("model.norm.weight", [h]));
    if !config.tie_word_embeddings {
        out.push(TensorSpec::new("lm_head.weight", [vocab_size, h]));
    }
    out
}

impl<W> Llama<W> {
    /// Builds all weights, in the order in which they are used.
    pub(crate) fn load(config: &LlamaConfig, b: &mut Builder<W>) -> Result<Self, Error> {
        let &LlamaConfig { vocab_size, hidden_size, .. } = config;
        let embed_tokens = b.table("model.embed_tokens.weight", (vocab_size, hidden_size))?;
        let layers = (0..config.num_hidden_layers).map(|i| Block::load(config, i, b)).collect::<Result<_, _>>()?;
        let name = if config.tie_word_embeddings { "model.embed_tokens" } else { "lm_head" };
        // A tied head is a copy of its own, with a name of its own, as the final norm is folded into it.
        let shape = (hidden_size, vocab_size);
        let lm_head = b.weight("lm_head.weight", shape, |c| {
            let head = Published::linear(c, &[name.to_owned()], false)?;
            Ok(head.after_norm(c.vector("model.norm.weight")?, None))
        })?;
        Ok(Llama {
            config: config.clone(),
            rope: Rope::new(config.head_dim, config.rope_theta, &config.rope_scaling),
            embed_tokens,
            layers,
            lm_head,
            learned: b.columns.count(1) > 0,
        })
    }

    /// The configuration.
    pub fn config(&self) -> &LlamaConfig {
        &self.config
    }

    /// Whether it gives learned scores.
    pub(crate) fn learned(&self) -> bool {
        self.learned
    }

    /// All weights, in the order of [`load`](Llama::load).
    pub(crate) fn weights(&self) -> Vec<&W> {
        let layers = self.layers.iter().flat_map(Block::weights);
        [&self.embed_tokens].into_iter().chain(layers).chain([&self.lm_head]).collect()
    }

    /// The last hidden state, normalised, (rows, width) of the new tokens `input`, which follow those in `cache`;
    /// nothing if no rows are wanted.
    pub(crate) fn forward<E: Engine<Weight = W>>(
        &self,
        engine: &mut E,
        input: Input,
        cache: &mut KvCache<E>,
        rows: Rows,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Option<E::Tensor>, engine::Error> {
        let angles = self.rope.of(cache, input.count);
        let mut x = engine.scope("embedding", |e| e.embed(&self.embed_tokens, input.ids, input.count))?;
        for (i, layer) in self.layers.iter().enumerate() {
            // Beyond the last layer's keys and values only the wanted rows matter.
            let last = i + 1 == self.layers.len();
            let wanted = if last { rows.of(input.count) } else { input.count };
            let weights = layer.weights();
            let like = Layer { index: i, class: class(cache, i, last), weights: &weights };
            let out = engine.scope(&format!("layer {i}"), |e| {
                e.layer(&like, |e| layer.forward(e, &self.config, &angles, i, &x, cache, wanted))
            })?;
            progress(i + 1);
            let Some(out) = out else { return Ok(None) };
            x = out;
        }
        engine.scope("head", |e| e.scope("norm", |e| e.rms_norm(&x, self.config.rms_norm_eps))).map(Some)
    }

    /// The matrix from the last hidden state to logits.
    pub(crate) fn head(&self) -> &W {
        &self.lm_head
    }
}

impl<W> Block<W> {
    fn load(config: &LlamaConfig, i: usize, b: &mut Builder<W>) -> Result<Self, Error> {
        let &LlamaConfig { hidden_size: h, intermediate_size: f, head_dim, attention_bias, mlp_bias, .. } = config;
        let (q, kv) = config.widths();
        let p = format!("model.layers.{i}");
        let (columns, further) = (b.columns.of(i), b.columns.count(config.num_key_value_heads));
        let linear = |b: &mut Builder<W>, name: &str, parts: &[&str], shape, biased, norm: Option<&str>, scaled| {
            b.weight(&format!("{p}.{name}.weight"), shape, |c| {
                let names: Vec<_> = parts.iter().map(|part| format!("{p}.{part}")).collect();
                let mut weight = Published::linear(c, &names, biased)?;
                if let Some(norm) = norm {
                    weight = weight.after_norm(c.vector(&format!("{p}.{norm}.weight"))?, None);
                }
                // Queries are scaled, and what comes beside them is learned.
                let further = columns.clone().filter(|_| scaled > 0);
                Ok(weight.scale_outputs(scaled, (head_dim as f32).sqrt().recip()).widened(further))
            })
        };
        let qkv = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"];
        let gate_up = ["mlp.gate_proj", "mlp.up_proj"];
        let (before, after) = (Some("input_layernorm"), Some("post_attention_layernorm"));
        Ok(Block {
            qkv_proj: linear(
                b,
                "self_attn.{q,k,v}_proj",
                &qkv,
                (h, q + 2 * kv + further),
                attention_bias,
                before,
                q,
            )?,
            o_proj: linear(b, "self_attn.o_proj", &["self_attn.o_proj"], (q, h), attention_bias, None, 0)?,
            gate_up_proj: linear(b, "mlp.{gate,up}_proj", &gate_up, (h, 2 * f), mlp_bias, after, 0)?,
            down_proj: linear(b, "mlp.down_proj", &["mlp.down_proj"], (f, h), mlp_bias, None, 0)?,
        })
    }

    /// Its weights, in the order in which they were prepared.
    fn weights(&self) -> [&W; 4] {
        [&self.qkv_proj, &self.o_proj, &self.gate_up_proj, &self.down_proj]
    }

    /// (count, hidden_size) -> (wanted, hidden_size) for the last `wanted` tokens; nothing if none is wanted.
    #[expect(clippy::too_many_arguments, reason = "one call site; a struct would hide what a layer depends on")]
    fn forward<E: Engine<Weight = W>>(
        &self,
        engine: &mut E,
        config: &LlamaConfig,
        angles: &Angles,
        i: usize,
        x: &E::Tensor,
        cache: &mut KvCache<E>,
        wanted: usize,
    ) -> Result<Option<E::Tensor>, engine::Error> {
        let HeadShape { heads, kv_heads, head_dim } = config.heads();
        let (n, (q, kv), f) = (x.shape()[0], config.widths(), config.intermediate_size);
        let x = engine.scope("attention", |engine| {
            let h = engine.scope("norm", |s| s.rms_norm(x, config.rms_norm_eps))?;
            let qkv = engine.scope("qkv", |s| s.linear(&h, &self.qkv_proj))?;
            learned(engine, cache, i, &qkv, q + 2 * kv, &self.qkv_proj);
            let v = qkv.slice(1, q + kv..q + 2 * kv);
            // Queries and keys are heads of one tensor and turn together.
            let qk = qkv.slice(1, 0..q + kv).reshape(&[n, heads + kv_heads, head_dim]);
            let qk = engine.scope("rope", |s| s.rope(&qk, &angles.cos, &angles.sin))?;
            let k = qk.slice(1, heads..heads + kv_heads).reshape(&[n, kv]);
            let mixed = attend(engine, cache, i, &qk.slice(1, 0..heads), &k, &v, wanted)?;
            let Some(mixed) = mixed else { return Ok(None) };
            let out = engine.scope("output", |s| s.linear(&mixed, &self.o_proj))?;
            engine.add(&x.slice(0, n - wanted..n), &out).map(Some)
        })?;
        let Some(x) = x else { return Ok(None) };
        engine.scope("mlp", |engine| {
            let h = engine.scope("norm", |s| s.rms_norm(&x, config.rms_norm_eps))?;
            let gate_up = engine.scope("gate_up", |s| s.linear(&h, &self.gate_up_proj))?;
            let gate = engine.scope("activation", |s| activate(s, config.hidden_act, &gate_up.slice(1, 0..f)))?;
            let h = engine.scope("gate", |s| s.mul(&gate, &gate_up.slice(1, f..2 * f)))?;
            let out = engine.scope("down", |s| s.linear(&h, &self.down_proj))?;
            engine.add(&x, &out).map(Some)
        })
    }
}

impl Family for LlamaConfig {
    const CLASSES: &'static [&'static str] = &["LlamaForCausalLM", "LLaMAForCausalLM", "LlamaModel"];

    fn parse(keys: &Keys) -> Result<Self, ConfigError> {
        LlamaConfig::parse(keys)
    }

    fn check(&self) -> Result<(), ConfigError> {
        LlamaConfig::check(self)
    }

    fn dimensions(&self) -> Dimensions<'_> {
        Dimensions {
            heads: self.heads(),
            layers: self.num_hidden_layers,
            hidden: self.hidden_size,
            vocabulary: self.vocab_size,
            max_positions: self.rope_scaling.positions(self.max_position_embeddings),
            eos: &self.eos_token_id,
        }
    }

    fn tensors(&self) -> Vec<TensorSpec> {
        layout(self)
    }

    fn buffer(&self, name: &str) -> Option<Buffer> {
        let tied = self.tie_word_embeddings;
        rope::buffer(name, tied, self.num_hidden_layers, self.head_dim, self.rope_theta, &self.rope_scaling)
    }
}
