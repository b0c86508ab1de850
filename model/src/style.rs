//! In what models differ: the words in which a family says how it computes, and by which names it is published.

mod published;

use std::ops::Range;

use waggle_mpcache::HeadShape;

pub(crate) use self::published::{LayerMatrix, Names, Role, Stored};
use crate::config::{Activation, Common, RopeConfig};
use crate::image::ImageShape;

/// A decoder or an encoder: its sizes, its names and its choices.
#[derive(Clone, Debug)]
pub(crate) struct Style {
    pub(crate) names: Names,
    /// By layer the heads of its attention.
    pub(crate) heads: Vec<HeadShape>,
    /// By layer what its values are.
    pub(crate) values: Vec<Values>,
    /// Length of a residual vector.
    pub(crate) hidden: usize,
    /// By layer the length of the MLP's hidden vector.
    pub(crate) intermediate: Vec<usize>,
    /// Number of token ids.
    pub(crate) vocabulary: usize,
    /// Most positions.
    pub(crate) max_positions: usize,
    /// Where norms stand.
    pub(crate) norms: Norms,
    /// The kind of all norms.
    pub(crate) norm: Norm,
    /// A norm adds this to the mean square under its root.
    pub(crate) eps: f32,
    /// Norms of queries and keys.
    pub(crate) qk_norm: QkNorm,
    pub(crate) positions: Positions,
    /// By layer the rotary embedding by which its queries and keys turn, if they do.
    pub(crate) turns: Vec<Option<usize>>,
    /// By layer what scores are multiplied by.
    pub(crate) scales: Vec<f32>,
    /// By layer how many tokens a query sees, its own included; `None` for all.
    pub(crate) windows: Vec<Option<usize>>,
    /// The soft cap of scores, if they have one.
    pub(crate) score_cap: Option<f32>,
    /// The soft cap c of logits, if they have one: they are c tanh(x / c).
    pub(crate) logit_cap: Option<f32>,
    pub(crate) mlp: Mlp,
    pub(crate) activation: Activation,
    /// Queries, keys and values have biases.
    pub(crate) qkv_bias: bool,
    /// The output of attention has a bias.
    pub(crate) output_bias: bool,
    /// The matrices of the MLP have biases.
    pub(crate) mlp_bias: bool,
    /// The head has a bias.
    pub(crate) head_bias: bool,
    /// The head is the embedding.
    pub(crate) tied: bool,
    /// A factor of embeddings, if they have one.
    pub(crate) embedding_scale: Option<f32>,
    /// A factor of what attention and MLP add to the residual stream.
    pub(crate) residual_scale: f32,
    /// A factor of logits.
    pub(crate) logit_scale: f32,
    /// Matrices are stored as integers of 8 bits with scales.
    pub(crate) quantized: bool,
    /// What every layer adds besides, if it does; beside [`Norms::Both`].
    pub(crate) by_layer: Option<ByLayer>,
    /// Ids that end a text.
    pub(crate) eos: Vec<u32>,
    /// What makes it an encoder, if it is one: all tokens see one another, and the first one gives the outputs.
    pub(crate) encoder: Option<Encoder>,
}

/// The sizes of a model whose layers are alike.
pub(crate) struct Sizes {
    pub(crate) heads: HeadShape,
    pub(crate) layers: usize,
    pub(crate) hidden: usize,
    pub(crate) intermediate: usize,
    pub(crate) vocabulary: usize,
    pub(crate) max_positions: usize,
    pub(crate) eps: f32,
    pub(crate) activation: Activation,
}

/// Embeddings by layer: of a token's id and of its embedding, for every layer a vector. Behind the MLP a layer
/// multiplies it with a product of its state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByLayer {
    /// Length of a layer's vector.
    pub(crate) width: usize,
    /// The table of ids, with the vectors of all layers side by side.
    pub(crate) table: &'static str,
    /// The matrix that makes as many of an embedding.
    pub(crate) projection: &'static str,
    /// The norm of each of these.
    pub(crate) norm: &'static str,
}

/// How an encoder begins and ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Encoder {
    /// Segments that a text may have, each with an embedding of its own; 0 for none.
    pub(crate) segments: usize,
    /// The function between the two matrices that make outputs of the chosen token, where there are two.
    pub(crate) pooled: Option<Pooled>,
    /// What it reads in place of a text, if it reads images.
    pub(crate) image: Option<ImageShape>,
    /// Names of the classes, of which it gives the logits; none where it gives those of the masked word.
    pub(crate) labels: Vec<String>,
    /// Each class is found or not by itself.
    pub(crate) multi_label: bool,
}

/// A function of the chosen token's state: the first one's, or the mask's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pooled {
    Tanh,
    Relu,
    /// The mask's, before a norm and the embedding.
    Masked(Masked),
}

/// The head of a model that fills a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Masked {
    pub(crate) activation: Activation,
    /// The name of the norm behind the activation.
    pub(crate) norm: &'static str,
    /// The whole name of the bias of the words, which the embedding has none of.
    pub(crate) bias: &'static str,
}

/// Where the norms of a layer stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Norms {
    /// x + f(norm(x)), for attention and then for the MLP.
    Before,
    /// x + norm(f(x)).
    After,
    /// x + norm(f(norm(x))).
    Both,
    /// norm(x + f(x)), as in the first transformers. The embedding has a norm as well.
    Around,
    /// x + attention(norm(x)) + mlp(norm'(x)), where the two norms may be one.
    Parallel,
}

/// A norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Norm {
    /// Root mean square, with a gain.
    Rms,
    /// Root mean square, with a gain that is published less 1.
    RmsLessOne,
    /// With mean, gain and shift.
    Layer,
}

impl Norm {
    /// Whether what is added to the residual stream has its mean taken away.
    pub(crate) fn centres(self) -> bool {
        self == Norm::Layer
    }
}

/// RMS norms of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QkNorm {
    None,
    /// A norm of each head; the heads share its gains.
    Head,
    /// A norm of all queries of a token together, and another of all its keys.
    Whole,
}

/// The values of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Values {
    /// Products with a matrix of their own.
    Own,
    /// Products with a matrix, of which each head is RMS-normalised without a gain; beside [`QkNorm::Head`].
    Normalised,
    /// The keys, normalised, before their gain and their turn. There is no matrix of values.
    Keys,
    /// The values of this earlier layer, read with its keys. Every layer behind the first shared one is shared, too.
    Shared(usize),
}

/// Embeddings of positions.
#[derive(Clone, Debug)]
pub(crate) enum Positions {
    /// Queries and keys turn, by one of these embeddings.
    Rotary(Vec<RopeConfig>),
    /// A table is added to the embedding, in which the first position has the row `offset`.
    Learned { offset: usize },
}

/// The MLP of every layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mlp {
    /// down(activation(gate(x)) up(x)).
    Gated,
    /// down(activation(up(x))).
    Plain,
}

impl Style {
    /// The first transformers' after their norms had moved: layer norms before a plain MLP and attention with biases,
    /// and learned positions. A family says in what it departs.
    pub(crate) fn new(names: Names, sizes: Sizes) -> Self {
        let Sizes { heads, layers, hidden, intermediate, vocabulary, max_positions, eps, activation } = sizes;
        Style {
            names,
            heads: vec![heads; layers],
            values: vec![Values::Own; layers],
            hidden,
            intermediate: vec![intermediate; layers],
            vocabulary,
            max_positions,
            norms: Norms::Before,
            norm: Norm::Layer,
            eps,
            qk_norm: QkNorm::None,
            positions: Positions::Learned { offset: 0 },
            turns: vec![None; layers],
            scales: vec![(heads.head_dim as f32).sqrt().recip(); layers],
            windows: vec![None; layers],
            score_cap: None,
            logit_cap: None,
            mlp: Mlp::Plain,
            activation,
            qkv_bias: true,
            output_bias: true,
            mlp_bias: true,
            head_bias: false,
            tied: false,
            embedding_scale: None,
            residual_scale: 1.0,
            logit_scale: 1.0,
            quantized: false,
            by_layer: None,
            eos: Vec::new(),
            encoder: None,
        }
    }

    /// LLaMA's with layer norms, a plain MLP and biases.
    pub(crate) fn rotary(common: &Common) -> Self {
        let sizes = Sizes {
            heads: common.heads(),
            layers: common.num_hidden_layers,
            hidden: common.hidden_size,
            intermediate: common.intermediate_size,
            vocabulary: common.vocab_size,
            max_positions: common.rope.rope_scaling.positions(common.max_position_embeddings),
            eps: common.norm_eps,
            activation: common.hidden_act,
        };
        Style {
            positions: Positions::Rotary(vec![common.rope.clone()]),
            turns: vec![Some(0); common.num_hidden_layers],
            tied: common.tie_word_embeddings,
            quantized: common.quantization_config.is_some(),
            eos: common.eos_token_id.clone(),
            ..Style::new(Names::LLAMA, sizes)
        }
    }

    /// LLaMA's, without biases.
    pub(crate) fn llama(common: &Common) -> Self {
        let (norm, mlp) = (Norm::Rms, Mlp::Gated);
        Style { norm, mlp, qkv_bias: false, output_bias: false, mlp_bias: false, ..Style::rotary(common) }
    }

    /// Number of layers.
    pub(crate) fn layers(&self) -> usize {
        self.windows.len()
    }

    /// Number of layers with keys and values of their own, which come first.
    pub(crate) fn own_layers(&self) -> usize {
        self.values.iter().take_while(|values| !matches!(values, Values::Shared(_))).count()
    }

    /// The layers whose keys and values those behind them read.
    pub(crate) fn shared(&self) -> impl Iterator<Item = usize> {
        self.values.iter().filter_map(|values| match values {
            Values::Shared(layer) => Some(*layer),
            Values::Own | Values::Normalised | Values::Keys => None,
        })
    }

    /// Number of logits: classes, or token ids.
    pub(crate) fn outputs(&self) -> usize {
        let labels = self.encoder.as_ref().filter(|_| self.masked().is_none()).map(|encoder| encoder.labels.len());
        labels.unwrap_or(self.vocabulary)
    }

    /// The head of a masked word, if it has one.
    pub(crate) fn masked(&self) -> Option<Masked> {
        match self.encoder.as_ref()?.pooled? {
            Pooled::Masked(masked) => Some(masked),
            Pooled::Tanh | Pooled::Relu => None,
        }
    }

    /// The images that it reads, if it reads any.
    pub(crate) fn image(&self) -> Option<ImageShape> {
        self.encoder.as_ref().and_then(|encoder| encoder.image)
    }

    /// The `wanted` ones of `count` new tokens: the last, or the first of an encoder.
    pub(crate) fn wanted(&self, count: usize, wanted: usize) -> Range<usize> {
        if self.encoder.is_some() { 0..wanted } else { count - wanted..count }
    }

    /// With [`Norms::Around`], the name of the norm whose output layer `i` reads. After the last layer it is the head
    /// that reads it.
    pub(crate) fn norm_before(&self, i: usize) -> Option<String> {
        let after = self.names.of(Role::AfterMlp).filter(|_| self.norms == Norms::Around)?;
        Some(match i.checked_sub(1) {
            Some(before) => self.names.in_layer(before, after),
            None => self.names.norm.to_owned(),
        })
    }

    /// Lengths of all queries, and of all keys, of one token in layer `i`.
    pub(crate) fn widths(&self, i: usize) -> (usize, usize) {
        let HeadShape { heads, kv_heads, head_dim } = self.heads[i];
        (heads * head_dim, kv_heads * head_dim)
    }

    /// Length of the heads that turn by the rotary embedding `rope`.
    pub(crate) fn turned_dim(&self, rope: usize) -> usize {
        let layer = self.turns.iter().position(|turns| *turns == Some(rope));
        self.heads[layer.unwrap_or_default()].head_dim
    }

    /// The context of the training, where longer texts, of which it is public that they are, have another embedding
    /// of positions from the first token on.
    pub(crate) fn short_text(&self) -> Option<usize> {
        match &self.positions {
            Positions::Rotary(ropes) => ropes.first().and_then(RopeConfig::short_text),
            Positions::Learned { .. } => None,
        }
    }

    /// The outputs of [`Role::QkvByHead`], in the order of queries, keys and values.
    pub(crate) fn by_head(&self) -> impl Iterator<Item = Range<usize>> {
        let HeadShape { heads, head_dim: d, .. } = self.heads[0];
        (0..3).flat_map(move |part| (0..heads).map(move |head| (3 * head + part) * d..(3 * head + part + 1) * d))
    }
}
