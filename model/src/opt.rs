//! OPT: learned positions that begin at 2, pre-norm blocks, ReLU.
//!
//! Zhang et al., arXiv 2205.01068; weights by the names of `OPTForCausalLM` in [`modeling_opt.py`]. What is done
//! once, when the weights are loaded, is as in [`gpt2`](crate::gpt2): gain and bias of every norm are folded into the
//! matrix after it, the factor 1/sqrt(head_dim) into the queries, and what is added to the residual stream has its
//! mean taken away, so that layer norms are root-mean-square norms.
//!
//! [`modeling_opt.py`]: https://github.com/huggingface/transformers/tree/main/src/transformers/models/opt

use engine::{Engine, Tensor};
use mpcache::KvCache;
use serde::{Deserialize, Serialize};

use crate::config::{
    Activation, ConfigError, Keys, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, MAX_WIDTH, size, unsupported,
};
use crate::decoder::Layout;
use crate::family::{Buffer, Dimensions, Family};
use crate::layers::{self, At, Input, Rows, activate, attend, last, through};
use crate::weights::{Builder, Published, norm};
use crate::{Error, TensorSpec};

/// The row of the first position: the rows before it are of no use.
const OFFSET: usize = 2;

/// PyTorch's default, which no configuration changes.
const EPS: f32 = 1e-5;

/// `config.json` of an OPT; fields have their published names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Hugging Face's")]
pub struct OptConfig {
    pub vocab_size: usize,
    pub max_position_embeddings: usize,
    pub hidden_size: usize,
    pub ffn_dim: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub activation_function: Activation,
    pub tie_word_embeddings: bool,
    pub eos_token_id: Vec<u32>,
}

/// An OPT whose matrices are prepared for an engine with weights `W`.
pub struct Opt<W> {
    config: OptConfig,
    embed_tokens: W,
    embed_positions: W,
    layers: Vec<Layer<W>>,
    lm_head: W,
}

struct Layer<W> {
    qkv_proj: W,
    out_proj: W,
    fc1: W,
    fc2: W,
}

impl Family for OptConfig {
    const CLASSES: &'static [&'static str] = &["OPTForCausalLM", "OPTModel"];

    fn parse(keys: &Keys) -> Result<Self, ConfigError> {
        let or = |key: &str, default| Ok(keys.size(&[key])?.unwrap_or(default));
        // OPT-350m normalises after its blocks; nobody has published the other variants.
        for (key, only) in [
            ("do_layer_norm_before", true),
            ("enable_bias", true),
            ("layer_norm_elementwise_affine", true),
            ("_remove_final_layer_norm", false),
        ] {
            if let Some(value) = keys.flag(key)?.filter(|value| *value != only) {
                return Err(unsupported(key, value, format!("only {only}")));
            }
        }
        let hidden_size = or("hidden_size", 768)?;
        if let Some(width) = keys.size(&["word_embed_proj_dim"])?.filter(|width| *width != hidden_size) {
            return Err(unsupported("word_embed_proj_dim", width, format!("only hidden_size = {hidden_size}")));
        }
        Ok(OptConfig {
            vocab_size: or("vocab_size", 50272)?,
            max_position_embeddings: or("max_position_embeddings", 2048)?,
            hidden_size,
            ffn_dim: or("ffn_dim", 3072)?,
            num_hidden_layers: or("num_hidden_layers", 12)?,
            num_attention_heads: or("num_attention_heads", 12)?,
            activation_function: keys.activation("activation_function", Activation::Relu)?,
            tie_word_embeddings: keys.flag("tie_word_embeddings")?.unwrap_or(true),
            eos_token_id: keys.ids("eos_token_id")?.unwrap_or(vec![2]),
        })
    }

    fn check(&self) -> Result<(), ConfigError> {
        size("vocab_size", self.vocab_size, MAX_VOCABULARY)?;
        size("max_position_embeddings", self.max_position_embeddings, MAX_POSITIONS)?;
        size("hidden_size", self.hidden_size, MAX_WIDTH)?;
        size("ffn_dim", self.ffn_dim, MAX_WIDTH)?;
        size("num_hidden_layers", self.num_hidden_layers, MAX_LAYERS)?;
        size("num_attention_heads", self.num_attention_heads, self.hidden_size)?;
        if !self.hidden_size.is_multiple_of(self.num_attention_heads) {
            let why = format!("must divide hidden_size = {}", self.hidden_size);
            return Err(unsupported("num_attention_heads", self.num_attention_heads, why));
        }
        Ok(())
    }

    fn dimensions(&self) -> Dimensions<'_> {
        let heads = self.num_attention_heads;
        Dimensions {
            heads: mpcache::HeadShape { heads, kv_heads: heads, head_dim: self.hidden_size / heads },
            layers: self.num_hidden_layers,
            hidden: self.hidden_size,
            vocabulary: self.vocab_size,
            max_positions: self.max_position_embeddings,
            eos: &self.eos_token_id,
        }
    }

    fn tensors(&self) -> Vec<TensorSpec> {
        let &OptConfig { vocab_size, hidden_size: h, ffn_dim, max_position_embeddings, .. } = self;
        let mut out = vec![
            TensorSpec::new("model.decoder.embed_tokens.weight", [vocab_size, h]),
            TensorSpec::new("model.decoder.embed_positions.weight", [max_position_embeddings + OFFSET, h]),
        ];
        for i in 0..self.num_hidden_layers {
            let mut layer = Layout { prefix: format!("model.decoder.layers.{i}"), out: &mut out };
            for name in ["k_proj", "v_proj", "q_proj", "out_proj"] {
                layer.linear(&format!("self_attn.{name}"), h, h, true);
            }
            layer.layer_norm("self_attn_layer_norm", h);
            layer.linear("fc1", h, ffn_dim, true);
            layer.linear("fc2", ffn_dim, h, true);
            layer.layer_norm("final_layer_norm", h);
        }
        Layout { prefix: "model.decoder".into(), out: &mut out }.layer_norm("final_layer_norm", h);
        if !self.tie_word_embeddings {
            out.push(TensorSpec::new("lm_head.weight", [vocab_size, h]));
        }
        out
    }

    fn buffer(&self, name: &str) -> Option<Buffer> {
        (name == "lm_head.weight").then_some(Buffer::TiedHead("model.decoder.embed_tokens.weight"))
    }
}

impl<W> Opt<W> {
    /// Builds all weights, in the order in which they are used.
    pub(crate) fn load(config: &OptConfig, b: &mut Builder<W>) -> Result<Self, Error> {
        let &OptConfig { vocab_size, hidden_size: h, max_position_embeddings, .. } = config;
        let embed_tokens = b.centred_table("model.decoder.embed_tokens.weight", (vocab_size, h))?;
        let positions = (max_position_embeddings + OFFSET, h);
        let embed_positions = b.centred_table("model.decoder.embed_positions.weight", positions)?;
        let layers = (0..config.num_hidden_layers).map(|i| Layer::load(config, i, b)).collect::<Result<_, _>>()?;
        let name = if config.tie_word_embeddings { "model.decoder.embed_tokens" } else { "lm_head" };
        // A tied head is a copy of its own, with a name of its own, as the final norm is folded into it.
        let lm_head = b.weight("lm_head.weight", (h, vocab_size), |c| {
            let (gain, shift) = norm(c, "model.decoder.final_layer_norm")?;
            Ok(Published::linear(c, &[name.to_owned()], false)?.after_norm(gain, Some(&shift)))
        })?;
        Ok(Opt { config: config.clone(), embed_tokens, embed_positions, layers, lm_head })
    }

    /// The configuration.
    pub(crate) fn config(&self) -> &OptConfig {
        &self.config
    }

    /// All weights, in the order of [`load`](Opt::load).
    pub(crate) fn weights(&self) -> Vec<&W> {
        let layers = self.layers.iter().flat_map(Layer::weights);
        [&self.embed_tokens, &self.embed_positions].into_iter().chain(layers).chain([&self.lm_head]).collect()
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
        let x = engine.scope("embedding", |e| {
            let tokens = e.embed(&self.embed_tokens, input.ids, input.count)?;
            let positions = match cache.padding() {
                None => e.rows(&self.embed_positions, position + OFFSET, input.count)?,
                // Where the text begins is the client's secret, so it looks positions up as it does words.
                Some(padding) => {
                    let ids = padding.positions(position, input.count);
                    let ids: Option<Vec<u32>> = ids.map(|ids| ids.iter().map(|id| id + OFFSET as u32).collect());
                    e.scope("positions", |e| e.embed(&self.embed_positions, ids.as_deref(), input.count))?
                }
            };
            e.add(&tokens, &positions)
        })?;
        let blocks: Vec<_> = self.layers.iter().map(|layer| Block { layer, config: &self.config }).collect();
        let Some(x) = through(engine, cache, &blocks, x, rows, progress)? else { return Ok(None) };
        engine.scope("head", |e| e.scope("norm", |e| e.rms_norm(&x, EPS))).map(Some)
    }

    /// The matrix from the last hidden state to logits.
    pub(crate) fn head(&self) -> &W {
        &self.lm_head
    }
}

impl<W> Layer<W> {
    fn load(config: &OptConfig, i: usize, b: &mut Builder<W>) -> Result<Self, Error> {
        let &OptConfig { hidden_size: h, ffn_dim, num_attention_heads, .. } = config;
        let p = format!("model.decoder.layers.{i}");
        let scale = ((h / num_attention_heads) as f32).sqrt().recip();
        let linear = |b: &mut Builder<W>, parts: &[&str], shape, ln: Option<&str>, scaled| {
            b.weight(&format!("{p}.{}.weight", parts.join("+")), shape, |c| {
                let names: Vec<_> = parts.iter().map(|part| format!("{p}.{part}")).collect();
                let weight = Published::linear(c, &names, true)?;
                // What no norm comes before writes to the residual stream.
                let Some(ln) = ln else { return Ok(weight.centred()) };
                let (gain, shift) = norm(c, &format!("{p}.{ln}"))?;
                Ok(weight.after_norm(gain, Some(&shift)).scale_outputs(scaled, scale))
            })
        };
        let qkv = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"];
        Ok(Layer {
            qkv_proj: linear(b, &qkv, (h, 3 * h), Some("self_attn_layer_norm"), h)?,
            out_proj: linear(b, &["self_attn.out_proj"], (h, h), None, 0)?,
            fc1: linear(b, &["fc1"], (h, ffn_dim), Some("final_layer_norm"), 0)?,
            fc2: linear(b, &["fc2"], (ffn_dim, h), None, 0)?,
        })
    }

    fn weights(&self) -> [&W; 4] {
        [&self.qkv_proj, &self.out_proj, &self.fc1, &self.fc2]
    }
}

/// A layer in a pass.
struct Block<'a, W> {
    layer: &'a Layer<W>,
    config: &'a OptConfig,
}

impl<E: Engine> layers::Block<E> for Block<'_, E::Weight> {
    fn weights(&self) -> Vec<&E::Weight> {
        self.layer.weights().to_vec()
    }

    fn forward(&self, at: At<E>, x: &E::Tensor) -> Result<Option<E::Tensor>, engine::Error> {
        let (Block { layer, config }, At { engine, cache, layer: i, wanted }) = (self, at);
        let (n, h, heads) = (x.shape()[0], config.hidden_size, config.num_attention_heads);
        let x = engine.scope("attention", |engine| {
            let normed = engine.scope("norm", |s| s.rms_norm(x, EPS))?;
            let qkv = engine.scope("qkv", |s| s.linear(&normed, &layer.qkv_proj))?;
            let q = qkv.slice(1, 0..h).reshape(&[n, heads, h / heads]);
            let (k, v) = (qkv.slice(1, h..2 * h), qkv.slice(1, 2 * h..3 * h));
            let Some(mixed) = attend(engine, cache, i, &q, &k, &v, wanted)? else { return Ok(None) };
            let out = engine.scope("output", |s| s.linear(&mixed, &layer.out_proj))?;
            engine.add(&last(x, wanted), &out).map(Some)
        })?;
        let Some(x) = x else { return Ok(None) };
        engine.scope("mlp", |engine| {
            let h = engine.scope("norm", |s| s.rms_norm(&x, EPS))?;
            let h = engine.scope("up", |s| s.linear(&h, &layer.fc1))?;
            let h = engine.scope("activation", |s| activate(s, config.activation_function, &h))?;
            let out = engine.scope("down", |s| s.linear(&h, &layer.fc2))?;
            engine.add(&x, &out).map(Some)
        })
    }
}
