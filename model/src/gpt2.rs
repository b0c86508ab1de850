//! GPT-2: learned positions, pre-norm blocks, one matrix for query, key and value.
//!
//! Radford et al., "Language models are unsupervised multitask learners", 2019; weights by the names of
//! `GPT2LMHeadModel` in [`modeling_gpt2.py`]. The program differs from that one in what is done once, when the
//! weights are loaded: gain and bias of every norm are folded into the matrix after it, the factor 1/sqrt(head_dim)
//! into the query columns. What is added to the residual stream (embeddings, outputs of attention and MLP) has its
//! mean taken away. So the stream has none, and its layer norms, which would take it away, are root-mean-square
//! norms.
//!
//! [`modeling_gpt2.py`]: https://github.com/huggingface/transformers/tree/main/src/transformers/models/gpt2

use engine::{Engine, Layer, Tensor};
use mpcache::{HeadShape, KvCache};

use crate::Error;
use crate::checkpoint::TensorSpec;
pub use crate::config::Gpt2Config;
use crate::config::{ConfigError, Keys};
use crate::family::{Buffer, Dimensions, Family, layer_index};
use crate::layers::{Input, Rows, activate, attend, class, learned};
use crate::weights::{Builder, Published, norm};

/// A GPT-2 whose matrices are prepared for an engine with weights `W`.
pub struct Gpt2<W> {
    config: Gpt2Config,
    wte: W,
    wpe: W,
    h: Vec<Block<W>>,
    lm_head: W,
    learned: bool,
}

struct Block<W> {
    attn_c_attn: W,
    attn_c_proj: W,
    mlp_c_fc: W,
    mlp_c_proj: W,
}

/// Published tensors of a GPT-2. Linear layers are `Conv1D`: (inputs, outputs).
fn layout(config: &Gpt2Config) -> Vec<TensorSpec> {
    let &Gpt2Config { vocab_size, n_positions, n_embd: e, n_inner, .. } = config;
    let mut out = vec![
        TensorSpec::new("transformer.wte.weight", [vocab_size, e]),
        TensorSpec::new("transformer.wpe.weight", [n_positions, e]),
    ];
    for i in 0..config.n_layer {
        let mut add = |name: &str, shape: &[usize]| {
            out.push(TensorSpec::new(format!("transformer.h.{i}.{name}"), shape));
        };
        add("ln_1.weight", &[e]);
        add("ln_1.bias", &[e]);
        for (name, inputs, outputs) in [("attn.c_attn", e, 3 * e), ("attn.c_proj", e, e)] {
            add(&format!("{name}.weight"), &[inputs, outputs]);
            add(&format!("{name}.bias"), &[outputs]);
        }
        add("ln_2.weight", &[e]);
        add("ln_2.bias", &[e]);
        for (name, inputs, outputs) in [("mlp.c_fc", e, n_inner), ("mlp.c_proj", n_inner, e)] {
            add(&format!("{name}.weight"), &[inputs, outputs]);
            add(&format!("{name}.bias"), &[outputs]);
        }
    }
    out.push(TensorSpec::new("transformer.ln_f.weight", [e]));
    out.push(TensorSpec::new("transformer.ln_f.bias", [e]));
    if !config.tie_word_embeddings {
        out.push(TensorSpec::new("lm_head.weight", [vocab_size, e]));
    }
    out
}

impl<W> Gpt2<W> {
    /// Builds all weights, in the order in which they are used.
    pub(crate) fn load(config: &Gpt2Config, b: &mut Builder<W>) -> Result<Self, Error> {
        let &Gpt2Config { vocab_size, n_positions, n_embd, .. } = config;
        let wte = b.centred_table("transformer.wte.weight", (vocab_size, n_embd))?;
        let wpe = b.centred_table("transformer.wpe.weight", (n_positions, n_embd))?;
        let h = (0..config.n_layer).map(|i| Block::load(config, i, b)).collect::<Result<_, _>>()?;
        let name = if config.tie_word_embeddings { "transformer.wte" } else { "lm_head" };
        let shape = (n_embd, vocab_size);
        // A tied head is a copy of its own, with a name of its own, as the final norm is folded into it.
        let lm_head = b.weight("lm_head.weight", shape, |c| {
            let head = Published::linear(c, &[name.to_owned()], false)?;
            let (gain, shift) = norm(c, "transformer.ln_f")?;
            Ok(head.after_norm(gain, Some(&shift)))
        })?;
        Ok(Gpt2 { config: config.clone(), wte, wpe, h, lm_head, learned: b.columns.count(1) > 0 })
    }

    /// The configuration.
    pub fn config(&self) -> &Gpt2Config {
        &self.config
    }

    /// Whether it gives learned scores.
    pub(crate) fn learned(&self) -> bool {
        self.learned
    }

    /// All weights, in the order of [`load`](Gpt2::load).
    pub(crate) fn weights(&self) -> Vec<&W> {
        let blocks = self.h.iter().flat_map(Block::weights);
        [&self.wte, &self.wpe].into_iter().chain(blocks).chain([&self.lm_head]).collect()
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
        let position = cache.tokens();
        let mut x = engine.scope("embedding", |e| {
            let tokens = e.embed(&self.wte, input.ids, input.count)?;
            let positions = match cache.padding() {
                None => e.rows(&self.wpe, position, input.count)?,
                // Where the text begins is the client's secret, so it looks positions up as it does words.
                Some(padding) => {
                    let ids = padding.positions(position, input.count);
                    e.scope("positions", |e| e.embed(&self.wpe, ids.as_deref(), input.count))?
                }
            };
            e.add(&tokens, &positions)
        })?;
        for (i, block) in self.h.iter().enumerate() {
            // Beyond the last layer's keys and values only the wanted rows matter.
            let last = i + 1 == self.h.len();
            let wanted = if last { rows.of(input.count) } else { input.count };
            let weights = block.weights();
            let like = Layer { index: i, class: class(cache, i, last), weights: &weights };
            let out = engine.scope(&format!("layer {i}"), |e| {
                e.layer(&like, |e| block.forward(e, &self.config, i, &x, cache, wanted))
            })?;
            progress(i + 1);
            let Some(out) = out else { return Ok(None) };
            x = out;
        }
        engine.scope("head", |e| e.scope("norm", |e| e.rms_norm(&x, self.config.layer_norm_epsilon))).map(Some)
    }

    /// The matrix from the last hidden state to logits.
    pub(crate) fn head(&self) -> &W {
        &self.lm_head
    }
}

impl<W> Block<W> {
    fn load(config: &Gpt2Config, i: usize, b: &mut Builder<W>) -> Result<Self, Error> {
        let &Gpt2Config { n_embd: e, n_inner, n_head, .. } = config;
        let p = format!("transformer.h.{i}");
        let mut scale = 1.0;
        if config.scale_attn_weights {
            scale /= ((e / n_head) as f32).sqrt();
        }
        if config.scale_attn_by_inverse_layer_idx {
            scale /= (i + 1) as f32;
        }
        let (columns, further) = (b.columns.of(i), b.columns.count(n_head));
        let linear = |b: &mut Builder<W>, name: &str, shape, ln: Option<&str>, query_scale: Option<f32>| {
            b.weight(&format!("{p}.{name}.weight"), shape, |c| {
                let bias = c.vector(&format!("{p}.{name}.bias"))?;
                let mut weight = Published::stored(c, &format!("{p}.{name}.weight"), Some(bias))?;
                if let Some(ln) = ln {
                    let (gain, shift) = norm(c, &format!("{p}.{ln}"))?;
                    weight = weight.after_norm(gain, Some(&shift));
                }
                if let Some(factor) = query_scale {
                    weight = weight.scale_outputs(e, factor).widened(columns.clone());
                }
                // What no norm comes before writes to the residual stream.
                Ok(if ln.is_none() { weight.centred() } else { weight })
            })
        };
        Ok(Block {
            attn_c_attn: linear(b, "attn.c_attn", (e, 3 * e + further), Some("ln_1"), Some(scale))?,
            attn_c_proj: linear(b, "attn.c_proj", (e, e), None, None)?,
            mlp_c_fc: linear(b, "mlp.c_fc", (e, n_inner), Some("ln_2"), None)?,
            mlp_c_proj: linear(b, "mlp.c_proj", (n_inner, e), None, None)?,
        })
    }

    /// Its weights, in the order in which they were prepared.
    fn weights(&self) -> [&W; 4] {
        [&self.attn_c_attn, &self.attn_c_proj, &self.mlp_c_fc, &self.mlp_c_proj]
    }

    /// (count, n_embd) -> (wanted, n_embd) for the last `wanted` tokens; nothing if none is wanted.
    fn forward<E: Engine<Weight = W>>(
        &self,
        engine: &mut E,
        config: &Gpt2Config,
        i: usize,
        x: &E::Tensor,
        cache: &mut KvCache<E>,
        wanted: usize,
    ) -> Result<Option<E::Tensor>, engine::Error> {
        let (n, e) = (x.shape()[0], config.n_embd);
        let x = engine.scope("attention", |engine| {
            let h = engine.scope("norm", |s| s.rms_norm(x, config.layer_norm_epsilon))?;
            let qkv = engine.scope("qkv", |s| s.linear(&h, &self.attn_c_attn))?;
            learned(engine, cache, i, &qkv, 3 * e, &self.attn_c_attn);
            let q = qkv.slice(1, 0..e).reshape(&[n, config.n_head, e / config.n_head]);
            let (k, v) = (qkv.slice(1, e..2 * e), qkv.slice(1, 2 * e..3 * e));
            let Some(mixed) = attend(engine, cache, i, &q, &k, &v, wanted)? else { return Ok(None) };
            let out = engine.scope("output", |s| s.linear(&mixed, &self.attn_c_proj))?;
            engine.add(&x.slice(0, n - wanted..n), &out).map(Some)
        })?;
        let Some(x) = x else { return Ok(None) };
        engine.scope("mlp", |engine| {
            let h = engine.scope("norm", |s| s.rms_norm(&x, config.layer_norm_epsilon))?;
            let h = engine.scope("up", |s| s.linear(&h, &self.mlp_c_fc))?;
            let h = engine.scope("activation", |s| activate(s, config.activation_function, &h))?;
            let out = engine.scope("down", |s| s.linear(&h, &self.mlp_c_proj))?;
            engine.add(&x, &out).map(Some)
        })
    }
}

impl Family for Gpt2Config {
    const CLASSES: &'static [&'static str] = &["GPT2LMHeadModel", "GPT2Model"];

    fn parse(keys: &Keys) -> Result<Self, ConfigError> {
        Gpt2Config::parse(keys)
    }

    fn check(&self) -> Result<(), ConfigError> {
        Gpt2Config::check(self)
    }

    fn dimensions(&self) -> Dimensions<'_> {
        Dimensions {
            heads: HeadShape { heads: self.n_head, kv_heads: self.n_head, head_dim: self.n_embd / self.n_head },
            layers: self.n_layer,
            hidden: self.n_embd,
            vocabulary: self.vocab_size,
            max_positions: self.n_positions,
            eos: &self.eos_token_id,
        }
    }

    fn tensors(&self) -> Vec<TensorSpec> {
        layout(self)
    }

    fn buffer(&self, name: &str) -> Option<Buffer> {
        if name == "lm_head.weight" && self.tie_word_embeddings {
            return Some(Buffer::TiedHead("transformer.wte.weight"));
        }
        let bare = name.strip_prefix("transformer.").unwrap_or(name);
        let of_a_layer = |after| layer_index(bare, "h.", after, self.n_layer).is_some();
        match () {
            () if of_a_layer(".attn.bias") => Some(Buffer::CausalMask),
            () if of_a_layer(".attn.masked_bias") => Some(Buffer::MaskedBias),
            () => None,
        }
    }
}
