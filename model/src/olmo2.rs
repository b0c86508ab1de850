//! OLMo 2: norms after attention and after the MLP instead of before them, and norms of all queries and of all keys.
//!
//! OLMo team, arXiv 2501.00656; weights by the names of `Olmo2ForCausalLM` in [`modeling_olmo2.py`]. As in
//! [`llama`](crate::llama), query, key and value are one matrix, and gate and up another. No matrix follows any of
//! the norms but the last, so their gains are products of their own; the factor 1/sqrt(head_dim) is in the queries'
//! gains.
//!
//! [`modeling_olmo2.py`]: https://github.com/huggingface/transformers/tree/main/src/transformers/models/olmo2

use engine::{Engine, Tensor};
use mpcache::{HeadShape, KvCache};
use serde::{Deserialize, Serialize};

use crate::config::{Activation, ConfigError, Keys, RopeConfig};
use crate::decoder::{Decoder, Defaults};
use crate::family::{Buffer, Dimensions, Family};
use crate::gated::{GATE_UP, QKV};
use crate::layers::{self, At, Input, Rows, activate, attend, gain, last, through};
use crate::rope::{self, Angles, Rope, turn};
use crate::weights::{Builder, Published};
use crate::{Error, TensorSpec};

/// `config.json` of an OLMo 2; fields have their published names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Hugging Face's")]
pub struct Olmo2Config {
    #[serde(flatten)]
    pub decoder: Decoder,
    #[serde(flatten)]
    pub rope: RopeConfig,
    pub attention_bias: bool,
}

/// An OLMo 2 whose matrices are prepared for an engine with weights `W`.
pub struct Olmo2<W> {
    config: Olmo2Config,
    rope: Rope,
    embed_tokens: W,
    layers: Vec<Layer<W>>,
    lm_head: W,
}

struct Layer<W> {
    qkv_proj: W,
    qk_norm: W,
    o_proj: W,
    attention_norm: W,
    gate_up_proj: W,
    down_proj: W,
    mlp_norm: W,
}

impl Family for Olmo2Config {
    const CLASSES: &'static [&'static str] = &["Olmo2ForCausalLM", "Olmo2Model"];

    fn parse(keys: &Keys) -> Result<Self, ConfigError> {
        let decoder = Decoder::read(
            keys,
            &Defaults {
                vocab_size: 50304,
                max_position_embeddings: 2048,
                hidden_size: 4096,
                intermediate_size: 11008,
                num_hidden_layers: 32,
                num_attention_heads: 32,
                num_key_value_heads: None,
                head_dim: None,
                activation: ("hidden_act", Activation::Silu),
                eps: ("rms_norm_eps", 1e-5),
                tie_word_embeddings: false,
                eos: &[50279],
            },
        )?;
        let rope = RopeConfig::read(keys, decoder.max_position_embeddings, None, (10000.0, 1.0))?;
        Ok(Olmo2Config { decoder, rope, attention_bias: keys.flag("attention_bias")?.unwrap_or(false) })
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.decoder.check()?;
        self.rope.check(self.decoder.head_dim)
    }

    fn dimensions(&self) -> Dimensions<'_> {
        self.decoder.dimensions(self.rope.rope_scaling.positions(self.decoder.max_position_embeddings))
    }

    fn tensors(&self) -> Vec<TensorSpec> {
        let &Decoder { hidden_size: h, intermediate_size: f, .. } = &self.decoder;
        let (q, kv) = self.decoder.widths();
        self.decoder.layout(|layer| {
            for (name, outputs) in QKV.iter().zip([q, kv, kv]) {
                layer.linear(name, h, outputs, self.attention_bias);
            }
            layer.linear("self_attn.o_proj", q, h, self.attention_bias);
            layer.rms_norm("self_attn.q_norm", q);
            layer.rms_norm("self_attn.k_norm", kv);
            GATE_UP.iter().for_each(|name| layer.linear(name, h, f, false));
            layer.linear("mlp.down_proj", f, h, false);
            layer.rms_norm("post_attention_layernorm", h);
            layer.rms_norm("post_feedforward_layernorm", h);
        })
    }

    fn buffer(&self, name: &str) -> Option<Buffer> {
        rope::buffer_of(name, &self.decoder, &self.rope)
    }
}

impl<W> Olmo2<W> {
    /// Builds all weights, in the order in which they are used.
    pub(crate) fn load(config: &Olmo2Config, b: &mut Builder<W>) -> Result<Self, Error> {
        let decoder = &config.decoder;
        let &Decoder { vocab_size, hidden_size, tie_word_embeddings, num_hidden_layers, .. } = decoder;
        let embed_tokens = b.table("model.embed_tokens.weight", (vocab_size, hidden_size))?;
        let layers = (0..num_hidden_layers).map(|i| Layer::load(config, i, b)).collect::<Result<_, _>>()?;
        let name = if tie_word_embeddings { "model.embed_tokens" } else { "lm_head" };
        // A tied head is a copy of its own, with a name of its own, as the final norm is folded into it.
        let lm_head = b.weight("lm_head.weight", (hidden_size, vocab_size), |c| {
            Ok(Published::linear(c, &[name.to_owned()], false)?.after_norm(c.vector("model.norm.weight")?, None))
        })?;
        let rope = Rope::of_config(&config.rope, decoder.head_dim);
        Ok(Olmo2 { config: config.clone(), rope, embed_tokens, layers, lm_head })
    }

    /// The configuration.
    pub(crate) fn config(&self) -> &Olmo2Config {
        &self.config
    }

    /// All weights, in the order of [`load`](Olmo2::load).
    pub(crate) fn weights(&self) -> Vec<&W> {
        let layers = self.layers.iter().flat_map(Layer::weights);
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
        let config = &self.config.decoder;
        let angles = &self.rope.of(cache, input.count);
        let x = engine.scope("embedding", |e| e.embed(&self.embed_tokens, input.ids, input.count))?;
        let blocks: Vec<_> = self.layers.iter().map(|layer| Block { layer, config, angles }).collect();
        let Some(x) = through(engine, cache, &blocks, x, rows, progress)? else { return Ok(None) };
        engine.scope("head", |e| e.scope("norm", |e| e.rms_norm(&x, config.norm_eps))).map(Some)
    }

    /// The matrix from the last hidden state to logits.
    pub(crate) fn head(&self) -> &W {
        &self.lm_head
    }
}

impl<W> Layer<W> {
    fn load(config: &Olmo2Config, i: usize, b: &mut Builder<W>) -> Result<Self, Error> {
        let &Decoder { hidden_size: h, intermediate_size: f, head_dim, .. } = &config.decoder;
        let (q, kv) = config.decoder.widths();
        let p = format!("model.layers.{i}");
        let linear = |b: &mut Builder<W>, parts: &[&str], shape, biased| {
            b.weight(&format!("{p}.{}.weight", parts.join("+")), shape, |c| {
                let names: Vec<_> = parts.iter().map(|part| format!("{p}.{part}")).collect();
                Published::linear(c, &names, biased)
            })
        };
        let norm = |b: &mut Builder<W>, name: &str| {
            let name = format!("{p}.{name}.weight");
            b.gains(&name, h, |c| c.vector(&name))
        };
        let biased = config.attention_bias;
        let qkv_proj = linear(b, QKV, (h, q + 2 * kv), biased)?;
        let qk_norm = b.gains(&format!("{p}.self_attn.qk_norm"), q + kv, |c| {
            let queries = c.vector(&format!("{p}.self_attn.q_norm.weight"))? * (head_dim as f32).sqrt().recip();
            Ok(queries.into_iter().chain(c.vector(&format!("{p}.self_attn.k_norm.weight"))?).collect())
        })?;
        Ok(Layer {
            qkv_proj,
            qk_norm,
            o_proj: linear(b, &["self_attn.o_proj"], (q, h), biased)?,
            attention_norm: norm(b, "post_attention_layernorm")?,
            gate_up_proj: linear(b, GATE_UP, (h, 2 * f), false)?,
            down_proj: linear(b, &["mlp.down_proj"], (f, h), false)?,
            mlp_norm: norm(b, "post_feedforward_layernorm")?,
        })
    }

    fn weights(&self) -> [&W; 7] {
        let Layer { qkv_proj, qk_norm, o_proj, attention_norm, gate_up_proj, down_proj, mlp_norm } = self;
        [qkv_proj, qk_norm, o_proj, attention_norm, gate_up_proj, down_proj, mlp_norm]
    }
}

/// A layer in a pass.
struct Block<'a, W> {
    layer: &'a Layer<W>,
    config: &'a Decoder,
    angles: &'a Angles,
}

impl<E: Engine> layers::Block<E> for Block<'_, E::Weight> {
    fn weights(&self) -> Vec<&E::Weight> {
        self.layer.weights().to_vec()
    }

    fn forward(&self, at: At<E>, x: &E::Tensor) -> Result<Option<E::Tensor>, engine::Error> {
        let (Block { layer, config, angles }, At { engine, cache, layer: i, wanted }) = (self, at);
        let HeadShape { heads, kv_heads, head_dim } = config.heads();
        let (n, (q, kv), f) = (x.shape()[0], config.widths(), config.intermediate_size);
        let x = engine.scope("attention", |engine| {
            let qkv = engine.scope("qkv", |s| s.linear(x, &layer.qkv_proj))?;
            let v = qkv.slice(1, q + kv..q + 2 * kv);
            let qk = engine.scope("qk norm", |s| {
                let queries = s.rms_norm(&qkv.slice(1, 0..q), config.norm_eps)?;
                let keys = s.rms_norm(&qkv.slice(1, q..q + kv), config.norm_eps)?;
                gain(s, &E::Tensor::concat(1, &[&queries, &keys]), &layer.qk_norm)
            })?;
            // Queries and keys are heads of one tensor and turn together.
            let qk = turn(engine, &qk.reshape(&[n, heads + kv_heads, head_dim]), angles)?;
            let k = qk.slice(1, heads..heads + kv_heads).reshape(&[n, kv]);
            let mixed = attend(engine, cache, i, &qk.slice(1, 0..heads), &k, &v, wanted)?;
            let Some(mixed) = mixed else { return Ok(None) };
            let out = engine.scope("output", |s| s.linear(&mixed, &layer.o_proj))?;
            let out = normed(engine, &out, config.norm_eps, &layer.attention_norm)?;
            engine.add(&last(x, wanted), &out).map(Some)
        })?;
        let Some(x) = x else { return Ok(None) };
        engine.scope("mlp", |engine| {
            let gate_up = engine.scope("gate_up", |s| s.linear(&x, &layer.gate_up_proj))?;
            let gate = engine.scope("activation", |s| activate(s, config.hidden_act, &gate_up.slice(1, 0..f)))?;
            let h = engine.scope("gate", |s| s.mul(&gate, &gate_up.slice(1, f..2 * f)))?;
            let out = engine.scope("down", |s| s.linear(&h, &layer.down_proj))?;
            let out = normed(engine, &out, config.norm_eps, &layer.mlp_norm)?;
            engine.add(&x, &out).map(Some)
        })
    }
}

/// The RMS norm of what a block adds to the residual stream, with its gains.
fn normed<E: Engine>(engine: &mut E, x: &E::Tensor, eps: f32, gains: &E::Weight) -> Result<E::Tensor, engine::Error> {
    engine.scope("norm", |s| {
        let normed = s.rms_norm(x, eps)?;
        gain(s, &normed, gains)
    })
}
