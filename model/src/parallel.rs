//! The program of GPT-NeoX and Phi: attention and MLP side by side, both reading one normalised input.
//!
//! x + attention(norm(x)) + mlp(norm'(x)). GPT-NeoX has two layer norms and Phi has one. Two layer norms of one
//! input differ in gains and shifts alone, which are folded into the matrices after them. So there is one norm, and
//! one matrix for queries, keys, values and the MLP's first layer: a pass takes fewer flows than where one part waits
//! for the other.
//!
//! As in [`gpt2`](crate::gpt2), whatever is added to the residual stream has its mean taken away when the weights are
//! loaded, so that layer norms are root-mean-square norms; and the factor 1/sqrt(head_dim) is in the queries.

use engine::{Engine, Tensor};
use mpcache::{HeadShape, KvCache};

use crate::config::RopeConfig;
use crate::decoder::Decoder;
use crate::family::Family;
use crate::layers::{self, At, Input, Rows, activate, attend, last, through};
use crate::rope::{Angles, Rope, turn};
use crate::weights::{Builder, Published, norm};
use crate::{Checkpoint, CheckpointError, Error};

/// A configuration of which this is the program.
pub(crate) trait ParallelConfig: Family + Clone {
    /// Published names.
    const NAMES: Names;

    /// Its sizes.
    fn decoder(&self) -> &Decoder;

    /// Its rotary embedding.
    fn rope(&self) -> &RopeConfig;

    /// The matrix from the normalised input of the layer with tensors `p` to queries, which are not scaled yet, keys,
    /// values and the MLP's hidden layer, in this order. Gains and shifts of norms are folded in.
    fn fused(&self, c: &Checkpoint, p: &str) -> Result<Published, CheckpointError>;

    /// Whether the head has a bias.
    fn head_bias(&self) -> bool;
}

/// Published names.
pub(crate) struct Names {
    /// The embedding.
    pub(crate) embedding: &'static str,
    /// What the names of layers begin with.
    pub(crate) layers: &'static str,
    /// The output of attention.
    pub(crate) attention_out: &'static str,
    /// The output of the MLP.
    pub(crate) mlp_out: &'static str,
    /// The last norm.
    pub(crate) norm: &'static str,
    /// The head.
    pub(crate) head: &'static str,
}

/// A model of configuration `C` whose matrices are prepared for an engine with weights `W`.
pub struct Parallel<W, C> {
    config: C,
    rope: Rope,
    embed: W,
    layers: Vec<Layer<W>>,
    head: W,
}

struct Layer<W> {
    qkv_up: W,
    attention_out: W,
    mlp_out: W,
}

#[expect(private_bounds, reason = "nobody outside makes a family")]
impl<W, C: ParallelConfig> Parallel<W, C> {
    /// Builds all weights, in the order in which they are used.
    pub(crate) fn load(config: &C, b: &mut Builder<W>) -> Result<Self, Error> {
        let &Decoder { vocab_size, hidden_size: h, tie_word_embeddings, num_hidden_layers, .. } = config.decoder();
        let Names { embedding, norm: last_norm, head: head_name, .. } = C::NAMES;
        let embed = b.centred_table(&format!("{embedding}.weight"), (vocab_size, h))?;
        let layers = (0..num_hidden_layers).map(|i| Layer::load(config, i, b)).collect::<Result<_, _>>()?;
        let name = if tie_word_embeddings { embedding } else { head_name };
        // A tied head is a copy of its own, with a name of its own, as the final norm is folded into it.
        let head = b.weight(&format!("{head_name}.weight"), (h, vocab_size), |c| {
            let (gain, shift) = norm(c, last_norm)?;
            Ok(Published::linear(c, &[name.to_owned()], config.head_bias())?.after_norm(gain, Some(&shift)))
        })?;
        let rope = Rope::of_config(config.rope(), config.decoder().head_dim);
        Ok(Parallel { config: config.clone(), rope, embed, layers, head })
    }

    /// The configuration.
    pub(crate) fn config(&self) -> &C {
        &self.config
    }

    /// All weights, in the order of [`load`](Parallel::load).
    pub(crate) fn weights(&self) -> Vec<&W> {
        let layers = self.layers.iter().flat_map(Layer::weights);
        [&self.embed].into_iter().chain(layers).chain([&self.head]).collect()
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
        let angles = &self.rope.of(cache, input.count);
        let x = engine.scope("embedding", |e| e.embed(&self.embed, input.ids, input.count))?;
        let blocks: Vec<_> = self.layers.iter().map(|layer| Block { layer, config, angles }).collect();
        let Some(x) = through(engine, cache, &blocks, x, rows, progress)? else { return Ok(None) };
        engine.scope("head", |e| e.scope("norm", |e| e.rms_norm(&x, config.norm_eps))).map(Some)
    }

    /// The matrix from the last hidden state to logits.
    pub(crate) fn head(&self) -> &W {
        &self.head
    }
}

impl<W> Layer<W> {
    fn load<C: ParallelConfig>(config: &C, i: usize, b: &mut Builder<W>) -> Result<Self, Error> {
        let Names { layers, attention_out, mlp_out, .. } = C::NAMES;
        let decoder = config.decoder();
        let &Decoder { hidden_size: h, intermediate_size: f, head_dim, .. } = decoder;
        let (q, kv) = decoder.widths();
        let p = format!("{layers}.{i}");
        let qkv_up = b.weight(&format!("{p}.qkv_up.weight"), (h, q + 2 * kv + f), |c| {
            Ok(config.fused(c, &p)?.scale_outputs(q, (head_dim as f32).sqrt().recip()))
        })?;
        let residual = |b: &mut Builder<W>, name: &str, inputs| {
            b.weight(&format!("{p}.{name}.weight"), (inputs, h), |c| {
                Ok(Published::linear(c, &[format!("{p}.{name}")], true)?.centred())
            })
        };
        let attention_out = residual(b, attention_out, q)?;
        Ok(Layer { qkv_up, attention_out, mlp_out: residual(b, mlp_out, f)? })
    }

    fn weights(&self) -> [&W; 3] {
        [&self.qkv_up, &self.attention_out, &self.mlp_out]
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
        let (attended, up) = engine.scope("attention", |engine| {
            let h = engine.scope("norm", |s| s.rms_norm(x, config.norm_eps))?;
            let fused = engine.scope("qkv_up", |s| s.linear(&h, &layer.qkv_up))?;
            let (v, up) = (fused.slice(1, q + kv..q + 2 * kv), fused.slice(1, q + 2 * kv..q + 2 * kv + f));
            // Queries and keys are heads of one tensor and turn together.
            let qk = turn(engine, &fused.slice(1, 0..q + kv).reshape(&[n, heads + kv_heads, head_dim]), angles)?;
            let k = qk.slice(1, heads..heads + kv_heads).reshape(&[n, kv]);
            let mixed = attend(engine, cache, i, &qk.slice(1, 0..heads), &k, &v, wanted)?;
            let Some(mixed) = mixed else { return Ok((None, up)) };
            Ok((Some(engine.scope("output", |s| s.linear(&mixed, &layer.attention_out))?), up))
        })?;
        let Some(attended) = attended else { return Ok(None) };
        engine.scope("mlp", |engine| {
            let h = engine.scope("activation", |s| activate(s, config.hidden_act, &last(&up, wanted)))?;
            let out = engine.scope("down", |s| s.linear(&h, &layer.mlp_out))?;
            let x = engine.add(&last(x, wanted), &attended)?;
            engine.add(&x, &out).map(Some)
        })
    }
}
