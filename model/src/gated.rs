//! The program of LLaMA's nearest relatives: pre-norm blocks with rotary positions and a gated MLP.
//!
//! Mistral, Qwen2, Qwen3, SmolLM3 and Phi-3 compute this, and differ in what [`Style`] says. As in
//! [`llama`](crate::llama), the gain of every norm before a matrix is folded into that matrix, the factor
//! 1/sqrt(head_dim) into the query matrix, query, key and value are one matrix, and gate and up another. Where
//! queries and keys are normalised (Qwen3), their gains stand between the norm and the rotation, which no matrix
//! follows: they are a product of their own, with that factor in the queries' gains.

use engine::{Engine, Tensor};
use mpcache::{HeadShape, KvCache};
use ndarray::Array1;

use crate::Error;
use crate::decoder::Decoder;
use crate::family::Family;
use crate::layers::{self, At, Input, Rows, activate, attend, gain, last, through};
use crate::rope::{Rope, turn};
use crate::weights::{Builder, Published};

/// A configuration of which this is the program.
pub(crate) trait GatedConfig: Family + Clone {
    /// Its sizes.
    fn decoder(&self) -> &Decoder;

    /// What it departs in.
    fn style(&self) -> Style;
}

/// In what such models differ.
pub(crate) struct Style {
    /// Published matrices whose outputs are queries, keys and values, in this order.
    pub(crate) qkv: &'static [&'static str],
    /// Published matrices whose outputs are the gate and what it gates, in this order.
    pub(crate) gate_up: &'static [&'static str],
    /// Whether queries, keys and values have biases.
    pub(crate) qkv_bias: bool,
    /// Whether the output of attention has one.
    pub(crate) o_bias: bool,
    /// Whether the MLP's matrices have them.
    pub(crate) mlp_bias: bool,
    /// Whether every head of queries and keys goes through an RMS norm.
    pub(crate) qk_norm: bool,
    /// Angles of positions.
    pub(crate) rope: Rope,
    /// Whether queries and keys of a layer turn by them.
    pub(crate) turns: Vec<bool>,
}

/// The matrices of LLaMA.
pub(crate) const QKV: &[&str] = &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"];
/// The matrices of LLaMA.
pub(crate) const GATE_UP: &[&str] = &["mlp.gate_proj", "mlp.up_proj"];

/// A model of configuration `C` whose matrices are prepared for an engine with weights `W`.
pub struct Gated<W, C> {
    config: C,
    rope: Rope,
    embed_tokens: W,
    layers: Vec<Layer<W>>,
    lm_head: W,
}

struct Layer<W> {
    /// Gains of queries and keys, where they are normalised.
    qk_norm: Option<W>,
    qkv_proj: W,
    o_proj: W,
    gate_up_proj: W,
    down_proj: W,
    turns: bool,
}

#[expect(private_bounds, reason = "nobody outside makes a family")]
impl<W, C: GatedConfig> Gated<W, C> {
    /// Builds all weights, in the order in which they are used.
    pub(crate) fn load(config: &C, b: &mut Builder<W>) -> Result<Self, Error> {
        let style = config.style();
        let &Decoder { vocab_size, hidden_size, tie_word_embeddings, .. } = config.decoder();
        let embed_tokens = b.table("model.embed_tokens.weight", (vocab_size, hidden_size))?;
        let layers = style.turns.iter().enumerate();
        let layers = layers.map(|(i, turns)| Layer::load(config.decoder(), &style, i, *turns, b));
        let layers = layers.collect::<Result<_, _>>()?;
        let name = if tie_word_embeddings { "model.embed_tokens" } else { "lm_head" };
        // A tied head is a copy of its own, with a name of its own, as the final norm is folded into it.
        let lm_head = b.weight("lm_head.weight", (hidden_size, vocab_size), |c| {
            Ok(Published::linear(c, &[name.to_owned()], false)?.after_norm(c.vector("model.norm.weight")?, None))
        })?;
        Ok(Gated { config: config.clone(), rope: style.rope, embed_tokens, layers, lm_head })
    }

    /// The configuration.
    pub(crate) fn config(&self) -> &C {
        &self.config
    }

    /// All weights, in the order of [`load`](Gated::load).
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
        let config = self.config.decoder();
        let angles = self.rope.of(cache, input.count);
        let x = engine.scope("embedding", |e| e.embed(&self.embed_tokens, input.ids, input.count))?;
        let blocks: Vec<_> =
            self.layers.iter().map(|layer| Block { layer, config, angles: layer.turns.then_some(&angles) }).collect();
        let Some(x) = through(engine, cache, &blocks, x, rows, progress)? else { return Ok(None) };
        engine.scope("head", |e| e.scope("norm", |e| e.rms_norm(&x, config.norm_eps))).map(Some)
    }

    /// The matrix from the last hidden state to logits.
    pub(crate) fn head(&self) -> &W {
        &self.lm_head
    }
}

impl<W> Layer<W> {
    fn load(config: &Decoder, style: &Style, i: usize, turns: bool, b: &mut Builder<W>) -> Result<Self, Error> {
        let &Decoder { hidden_size: h, intermediate_size: f, .. } = config;
        let HeadShape { heads, kv_heads, head_dim } = config.heads();
        let (q, kv) = config.widths();
        let p = format!("model.layers.{i}");
        let scale = (head_dim as f32).sqrt().recip();
        let linear = |b: &mut Builder<W>, parts: &[&str], shape, biased, norm: Option<&str>, scaled| {
            b.weight(&format!("{p}.{}.weight", parts.join("+")), shape, |c| {
                let names: Vec<_> = parts.iter().map(|part| format!("{p}.{part}")).collect();
                let mut weight = Published::linear(c, &names, biased)?;
                if let Some(norm) = norm {
                    weight = weight.after_norm(c.vector(&format!("{p}.{norm}.weight"))?, None);
                }
                Ok(weight.scale_outputs(scaled, scale))
            })
        };
        let gains = |b: &mut Builder<W>| {
            b.gains(&format!("{p}.self_attn.qk_norm"), q + kv, |c| {
                let repeated = |name: &str, times: usize, by: f32| -> Result<Vec<f32>, _> {
                    let gain = c.vector(&format!("{p}.self_attn.{name}.weight"))?;
                    Ok(gain.iter().map(|g| g * by).collect::<Vec<_>>().repeat(times))
                };
                Ok(Array1::from([repeated("q_norm", heads, scale)?, repeated("k_norm", kv_heads, 1.0)?].concat()))
            })
        };
        let qk_norm = style.qk_norm.then(|| gains(b)).transpose()?;
        let (before, after) = (Some("input_layernorm"), Some("post_attention_layernorm"));
        let scaled = if style.qk_norm { 0 } else { q };
        Ok(Layer {
            qk_norm,
            qkv_proj: linear(b, style.qkv, (h, q + 2 * kv), style.qkv_bias, before, scaled)?,
            o_proj: linear(b, &["self_attn.o_proj"], (q, h), style.o_bias, None, 0)?,
            gate_up_proj: linear(b, style.gate_up, (h, 2 * f), style.mlp_bias, after, 0)?,
            down_proj: linear(b, &["mlp.down_proj"], (f, h), style.mlp_bias, None, 0)?,
            turns,
        })
    }

    fn weights(&self) -> Vec<&W> {
        let Layer { qk_norm, qkv_proj, o_proj, gate_up_proj, down_proj, .. } = self;
        qk_norm.iter().chain([qkv_proj, o_proj, gate_up_proj, down_proj]).collect()
    }
}

/// A layer in a pass.
struct Block<'a, W> {
    layer: &'a Layer<W>,
    config: &'a Decoder,
    /// The angles of the new positions, if queries and keys turn.
    angles: Option<&'a crate::rope::Angles>,
}

impl<E: Engine> layers::Block<E> for Block<'_, E::Weight> {
    fn weights(&self) -> Vec<&E::Weight> {
        self.layer.weights()
    }

    fn kind(&self) -> usize {
        usize::from(self.angles.is_none())
    }

    fn forward(&self, at: At<E>, x: &E::Tensor) -> Result<Option<E::Tensor>, engine::Error> {
        let (Block { layer, config, angles }, At { engine, cache, layer: i, wanted }) = (self, at);
        let HeadShape { heads, kv_heads, head_dim } = config.heads();
        let (n, (q, kv), f) = (x.shape()[0], config.widths(), config.intermediate_size);
        let x = engine.scope("attention", |engine| {
            let h = engine.scope("norm", |s| s.rms_norm(x, config.norm_eps))?;
            let qkv = engine.scope("qkv", |s| s.linear(&h, &layer.qkv_proj))?;
            let v = qkv.slice(1, q + kv..q + 2 * kv);
            // Queries and keys are heads of one tensor.
            let mut qk = qkv.slice(1, 0..q + kv).reshape(&[n, heads + kv_heads, head_dim]);
            if let Some(gains) = &layer.qk_norm {
                let normed = engine.scope("qk norm", |s| {
                    let normed = s.rms_norm(&qk, config.norm_eps)?;
                    gain(s, &normed.reshape(&[n, q + kv]), gains)
                })?;
                qk = normed.reshape(&[n, heads + kv_heads, head_dim]);
            }
            if let Some(angles) = angles {
                qk = turn(engine, &qk, angles)?;
            }
            let k = qk.slice(1, heads..heads + kv_heads).reshape(&[n, kv]);
            let mixed = attend(engine, cache, i, &qk.slice(1, 0..heads), &k, &v, wanted)?;
            let Some(mixed) = mixed else { return Ok(None) };
            let out = engine.scope("output", |s| s.linear(&mixed, &layer.o_proj))?;
            engine.add(&last(x, wanted), &out).map(Some)
        })?;
        let Some(x) = x else { return Ok(None) };
        engine.scope("mlp", |engine| {
            let h = engine.scope("norm", |s| s.rms_norm(&x, config.norm_eps))?;
            let gate_up = engine.scope("gate_up", |s| s.linear(&h, &layer.gate_up_proj))?;
            let gate = engine.scope("activation", |s| activate(s, config.hidden_act, &gate_up.slice(1, 0..f)))?;
            let h = engine.scope("gate", |s| s.mul(&gate, &gate_up.slice(1, f..2 * f)))?;
            let out = engine.scope("down", |s| s.linear(&h, &layer.down_proj))?;
            engine.add(&x, &out).map(Some)
        })
    }
}

/// Published tensors of a model with the names of LLaMA in this style.
pub(crate) fn layout(config: &Decoder, style: &Style) -> Vec<crate::TensorSpec> {
    let &Decoder { hidden_size: h, intermediate_size: f, head_dim, .. } = config;
    let (q, kv) = config.widths();
    config.layout(|layer| {
        match style.qkv {
            [q_proj, k_proj, v_proj] => {
                layer.linear(q_proj, h, q, style.qkv_bias);
                layer.linear(k_proj, h, kv, style.qkv_bias);
                layer.linear(v_proj, h, kv, style.qkv_bias);
            }
            fused => fused.iter().for_each(|name| layer.linear(name, h, q + 2 * kv, style.qkv_bias)),
        }
        layer.linear("self_attn.o_proj", q, h, style.o_bias);
        if style.qk_norm {
            layer.rms_norm("self_attn.q_norm", head_dim);
            layer.rms_norm("self_attn.k_norm", head_dim);
        }
        for name in style.gate_up {
            layer.linear(name, h, 2 * f / style.gate_up.len(), style.mlp_bias);
        }
        layer.linear("mlp.down_proj", f, h, style.mlp_bias);
        layer.rms_norm("input_layernorm", h);
        layer.rms_norm("post_attention_layernorm", h);
    })
}
