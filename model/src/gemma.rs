//! The program of Gemma 2 and Gemma 3: norms before and after attention and MLP, windows in most layers.
//!
//! x + norm(attention(norm(x))), and the same for the MLP. A norm publishes its gain less 1. The gains of norms
//! before a matrix are folded into it, as in [`llama`](crate::llama). No matrix follows the norms after attention and
//! MLP, nor those of queries and keys: their gains are products of their own. Embeddings come times
//! sqrt(hidden_size), which is folded into the table. The factor 1/sqrt(query_pre_attn_scalar) is in the query
//! matrix, or in the queries' gains.

use engine::{Engine, Tensor};
use mpcache::{HeadShape, KvCache};
use ndarray::Array1;

use crate::config::RopeConfig;
use crate::decoder::Decoder;
use crate::family::Family;
use crate::gated::{GATE_UP, QKV};
use crate::layers::{self, At, Input, Rows, activate, attend, gain, last, through};
use crate::rope::{Angles, Rope, turn};
use crate::weights::{Builder, Published};
use crate::{Checkpoint, CheckpointError, Error, TensorSpec};

/// A configuration of which this is the program.
pub(crate) trait GemmaConfig: Family + Clone {
    /// Its sizes.
    fn decoder(&self) -> &Decoder;

    /// Scores are divided by the root of it.
    fn query_pre_attn_scalar(&self) -> f32;

    /// Whether queries, keys, values and the output of attention have biases.
    fn attention_bias(&self) -> bool;

    /// Whether every head of queries and keys goes through an RMS norm.
    fn qk_norm(&self) -> bool;

    /// Rotary embeddings of layers that see all tokens, and of those with a window.
    fn ropes(&self) -> [RopeConfig; 2];
}

/// A model of configuration `C` whose matrices are prepared for an engine with weights `W`.
pub struct Gemma<W, C> {
    config: C,
    /// Of layers that see all tokens, and of those with a window.
    ropes: [Rope; 2],
    embed_tokens: W,
    layers: Vec<Layer<W>>,
    lm_head: W,
}

struct Layer<W> {
    qkv_proj: W,
    /// Gains of queries and keys, where they are normalised.
    qk_norm: Option<W>,
    o_proj: W,
    attention_norm: W,
    gate_up_proj: W,
    down_proj: W,
    mlp_norm: W,
    windowed: bool,
}

/// Gains of the norm `name`.
fn gains(c: &Checkpoint, name: &str) -> Result<Array1<f32>, CheckpointError> {
    Ok(c.vector(&format!("{name}.weight"))? + 1.0)
}

#[expect(private_bounds, reason = "nobody outside makes a family")]
impl<W, C: GemmaConfig> Gemma<W, C> {
    /// Builds all weights, in the order in which they are used.
    pub(crate) fn load(config: &C, b: &mut Builder<W>) -> Result<Self, Error> {
        let &Decoder { vocab_size, hidden_size: h, tie_word_embeddings, head_dim, .. } = config.decoder();
        let embedding = "model.embed_tokens.weight";
        let embed_tokens = b.weight(embedding, (vocab_size, h), |c| {
            Ok(Published::stored(c, embedding, None)?.scale_outputs(h, (h as f32).sqrt()))
        })?;
        let layers = config.windows().into_iter().enumerate();
        let layers = layers.map(|(i, window)| Layer::load(config, i, window.is_some(), b));
        let layers = layers.collect::<Result<_, _>>()?;
        let name = if tie_word_embeddings { "model.embed_tokens" } else { "lm_head" };
        // A tied head is a copy of its own, with a name of its own, as the final norm is folded into it.
        let lm_head = b.weight("lm_head.weight", (h, vocab_size), |c| {
            Ok(Published::linear(c, &[name.to_owned()], false)?.after_norm(gains(c, "model.norm")?, None))
        })?;
        let ropes = config.ropes().map(|rope| Rope::of_config(&rope, head_dim));
        Ok(Gemma { config: config.clone(), ropes, embed_tokens, layers, lm_head })
    }

    /// The configuration.
    pub(crate) fn config(&self) -> &C {
        &self.config
    }

    /// All weights, in the order of [`load`](Gemma::load).
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
        let angles = [self.ropes[0].of(cache, input.count), self.ropes[1].of(cache, input.count)];
        let x = engine.scope("embedding", |e| e.embed(&self.embed_tokens, input.ids, input.count))?;
        let block = |layer| Block { layer, config, angles: &angles };
        let blocks: Vec<_> = self.layers.iter().map(block).collect();
        let Some(x) = through(engine, cache, &blocks, x, rows, progress)? else { return Ok(None) };
        engine.scope("head", |e| e.scope("norm", |e| e.rms_norm(&x, config.norm_eps))).map(Some)
    }

    /// The matrix from the last hidden state to logits.
    pub(crate) fn head(&self) -> &W {
        &self.lm_head
    }
}

impl<W> Layer<W> {
    fn load<C: GemmaConfig>(config: &C, i: usize, windowed: bool, b: &mut Builder<W>) -> Result<Self, Error> {
        let &Decoder { hidden_size: h, intermediate_size: f, .. } = config.decoder();
        let HeadShape { heads, kv_heads, .. } = config.decoder().heads();
        let (q, kv) = config.decoder().widths();
        let p = format!("model.layers.{i}");
        let scale = config.query_pre_attn_scalar().sqrt().recip();
        let linear = |b: &mut Builder<W>, parts: &[&str], shape, biased, norm: Option<&str>, scaled| {
            b.weight(&format!("{p}.{}.weight", parts.join("+")), shape, |c| {
                let names: Vec<_> = parts.iter().map(|part| format!("{p}.{part}")).collect();
                let mut weight = Published::linear(c, &names, biased)?;
                if let Some(norm) = norm {
                    weight = weight.after_norm(gains(c, &format!("{p}.{norm}"))?, None);
                }
                Ok(weight.scale_outputs(scaled, scale))
            })
        };
        let norm = |b: &mut Builder<W>, name: &str| {
            let name = format!("{p}.{name}");
            b.gains(&name, h, |c| gains(c, &name))
        };
        let qk_norm = |b: &mut Builder<W>| {
            b.gains(&format!("{p}.self_attn.qk_norm"), q + kv, |c| {
                let queries = (gains(c, &format!("{p}.self_attn.q_norm"))? * scale).to_vec().repeat(heads);
                let keys = gains(c, &format!("{p}.self_attn.k_norm"))?.to_vec().repeat(kv_heads);
                Ok(queries.into_iter().chain(keys).collect())
            })
        };
        let (biased, scaled) = (config.attention_bias(), if config.qk_norm() { 0 } else { q });
        let (before, before_mlp) = (Some("input_layernorm"), Some("pre_feedforward_layernorm"));
        Ok(Layer {
            qkv_proj: linear(b, QKV, (h, q + 2 * kv), biased, before, scaled)?,
            qk_norm: config.qk_norm().then(|| qk_norm(b)).transpose()?,
            o_proj: linear(b, &["self_attn.o_proj"], (q, h), biased, None, 0)?,
            attention_norm: norm(b, "post_attention_layernorm")?,
            gate_up_proj: linear(b, GATE_UP, (h, 2 * f), false, before_mlp, 0)?,
            down_proj: linear(b, &["mlp.down_proj"], (f, h), false, None, 0)?,
            mlp_norm: norm(b, "post_feedforward_layernorm")?,
            windowed,
        })
    }

    fn weights(&self) -> Vec<&W> {
        let Layer { qkv_proj, qk_norm, o_proj, attention_norm, gate_up_proj, down_proj, mlp_norm, .. } = self;
        let rest = [o_proj, attention_norm, gate_up_proj, down_proj, mlp_norm];
        [qkv_proj].into_iter().chain(qk_norm).chain(rest).collect()
    }
}

/// A layer in a pass.
struct Block<'a, W> {
    layer: &'a Layer<W>,
    config: &'a Decoder,
    angles: &'a [Angles; 2],
}

impl<E: Engine> layers::Block<E> for Block<'_, E::Weight> {
    fn weights(&self) -> Vec<&E::Weight> {
        self.layer.weights()
    }

    fn forward(&self, at: At<E>, x: &E::Tensor) -> Result<Option<E::Tensor>, engine::Error> {
        let (Block { layer, config, angles }, At { engine, cache, layer: i, wanted }) = (self, at);
        let HeadShape { heads, kv_heads, head_dim } = config.heads();
        let (n, (q, kv), f) = (x.shape()[0], config.widths(), config.intermediate_size);
        let normed = |engine: &mut E, x: &E::Tensor, gains: &E::Weight| {
            engine.scope("norm after", |s| {
                let normed = s.rms_norm(x, config.norm_eps)?;
                gain(s, &normed, gains)
            })
        };
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
            let qk = turn(engine, &qk, &angles[usize::from(layer.windowed)])?;
            let k = qk.slice(1, heads..heads + kv_heads).reshape(&[n, kv]);
            let mixed = attend(engine, cache, i, &qk.slice(1, 0..heads), &k, &v, wanted)?;
            let Some(mixed) = mixed else { return Ok(None) };
            let out = engine.scope("output", |s| s.linear(&mixed, &layer.o_proj))?;
            let out = normed(engine, &out, &layer.attention_norm)?;
            engine.add(&last(x, wanted), &out).map(Some)
        })?;
        let Some(x) = x else { return Ok(None) };
        engine.scope("mlp", |engine| {
            let h = engine.scope("norm", |s| s.rms_norm(&x, config.norm_eps))?;
            let gate_up = engine.scope("gate_up", |s| s.linear(&h, &layer.gate_up_proj))?;
            let gate = engine.scope("activation", |s| activate(s, config.hidden_act, &gate_up.slice(1, 0..f)))?;
            let h = engine.scope("gate", |s| s.mul(&gate, &gate_up.slice(1, f..2 * f)))?;
            let out = engine.scope("down", |s| s.linear(&h, &layer.down_proj))?;
            let out = normed(engine, &out, &layer.mlp_norm)?;
            engine.add(&x, &out).map(Some)
        })
    }
}

/// Published tensors.
pub(crate) fn layout<C: GemmaConfig>(config: &C) -> Vec<TensorSpec> {
    let &Decoder { hidden_size: h, intermediate_size: f, head_dim, .. } = config.decoder();
    let (q, kv) = config.decoder().widths();
    config.decoder().layout(|layer| {
        for (name, outputs) in QKV.iter().zip([q, kv, kv]) {
            layer.linear(name, h, outputs, config.attention_bias());
        }
        layer.linear("self_attn.o_proj", q, h, config.attention_bias());
        if config.qk_norm() {
            layer.rms_norm("self_attn.q_norm", head_dim);
            layer.rms_norm("self_attn.k_norm", head_dim);
        }
        GATE_UP.iter().for_each(|name| layer.linear(name, h, f, false));
        layer.linear("mlp.down_proj", f, h, false);
        for name in
            ["input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"]
        {
            layer.rms_norm(name, h);
        }
    })
}
