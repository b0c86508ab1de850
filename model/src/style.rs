//! The points in which models differ: how a family computes, and under which names it is published.

mod published;

use std::ops::Range;

use waggle_mpcache::HeadShape;

pub(crate) use self::published::{LayerMatrix, Names, Role, Stored};
use crate::config::{Activation, Common, RopeConfig};
use crate::image::ImageShape;

/// The description of a decoder or an encoder: its sizes, its names and its choices.
#[derive(Clone, Debug)]
pub(crate) struct Style {
    pub(crate) names: Names,
    /// The heads of the attention of each layer.
    pub(crate) heads: Vec<HeadShape>,
    /// How the values of each layer's attention are made.
    pub(crate) values: Vec<Values>,
    /// The length of a vector of the residual stream.
    pub(crate) hidden: usize,
    /// The length of the MLP's hidden vector in each layer.
    pub(crate) intermediate: Vec<usize>,
    /// The number of token ids.
    pub(crate) vocabulary: usize,
    /// The largest number of positions.
    pub(crate) max_positions: usize,
    /// Where norms stand.
    pub(crate) norms: Norms,
    /// The kind of all norms.
    pub(crate) norm: Norm,
    /// The number that a norm adds to the mean square under its root.
    pub(crate) eps: f32,
    /// Norms of queries and keys.
    pub(crate) qk_norm: QkNorm,
    pub(crate) positions: Positions,
    /// For each layer, the index of the rotary embedding by which queries and keys turn, if they turn.
    pub(crate) turns: Vec<Option<usize>>,
    /// For each layer, the factor by which scores are multiplied.
    pub(crate) scales: Vec<f32>,
    /// For each layer, how many tokens a query sees, its own included; `None` for all tokens.
    pub(crate) windows: Vec<Option<usize>>,
    /// The soft cap of scores, if they have one.
    pub(crate) score_cap: Option<f32>,
    /// The soft cap c of logits, if they have one. A logit x then becomes c tanh(x / c).
    pub(crate) logit_cap: Option<f32>,
    pub(crate) mlp: Mlp,
    pub(crate) activation: Activation,
    /// Whether queries, keys and values have biases.
    pub(crate) qkv_bias: bool,
    /// Whether the output of attention has a bias.
    pub(crate) output_bias: bool,
    /// Whether the matrices of the MLP have biases.
    pub(crate) mlp_bias: bool,
    /// Whether the head has a bias.
    pub(crate) head_bias: bool,
    /// Whether the head is the embedding.
    pub(crate) tied: bool,
    /// The factor by which embeddings are multiplied, if there is one.
    pub(crate) embedding_scale: Option<f32>,
    /// The factor by which everything that attention and MLP add to the residual stream is multiplied.
    pub(crate) residual_scale: f32,
    /// The factor by which logits are multiplied.
    pub(crate) logit_scale: f32,
    /// Whether matrices are stored as integers of 8 bits with scales.
    pub(crate) quantized: bool,
    /// The embeddings by layer, if the model has some. They need [`Norms::Both`].
    pub(crate) by_layer: Option<ByLayer>,
    /// The ids that end a text.
    pub(crate) eos: Vec<u32>,
    /// The settings of an encoder, if the model is one. In an encoder all tokens see one another, and one of them
    /// gives the outputs.
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

/// Embeddings by layer: each token has a vector for every layer, made of its id and of its embedding. After its MLP,
/// a layer multiplies its vector by factors that it computes from the token's state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByLayer {
    /// The length of the vector of one layer.
    pub(crate) width: usize,
    /// The name of the table with a row for each id, which has the vectors of all layers side by side.
    pub(crate) table: &'static str,
    /// The name of the matrix that turns an embedding into vectors for all layers.
    pub(crate) projection: &'static str,
    /// The name of the norm of each vector that this matrix gives.
    pub(crate) norm: &'static str,
}

/// How an encoder begins and ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Encoder {
    /// The number of segments that a text may have, each with an embedding of its own; 0 if there are no segments.
    pub(crate) segments: usize,
    /// The function between the two matrices that turn the chosen token's state into outputs, if there are two.
    pub(crate) pooled: Option<Pooled>,
    /// The shape of the images that the model reads in place of texts, if it reads images.
    pub(crate) image: Option<ImageShape>,
    /// The names of the classes whose logits the model gives. Empty if it gives the logits of a masked word.
    pub(crate) labels: Vec<String>,
    /// Whether each class is decided independently of the others.
    pub(crate) multi_label: bool,
}

/// A function of the state of the chosen token, which is the first token or the mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pooled {
    Tanh,
    Relu,
    /// The function of the mask's state; a norm and the embedding follow.
    Masked(Masked),
}

/// The head of a model that fills a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Masked {
    pub(crate) activation: Activation,
    /// The name of the norm after the activation.
    pub(crate) norm: &'static str,
    /// The full name of the bias of the words' logits. The embedding itself has no bias.
    pub(crate) bias: &'static str,
}

/// Where the norms of a layer stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Norms {
    /// x + f(norm(x)), where f is attention and then the MLP.
    Before,
    /// x + norm(f(x)), where f is attention and then the MLP.
    After,
    /// x + norm(f(norm(x))), where f is attention and then the MLP.
    Both,
    /// norm(x + f(x)), where f is attention and then the MLP, as in the first transformers. The embedding has a norm
    /// as well.
    Around,
    /// x + attention(norm(x)) + mlp(norm'(x)), where the two norms may be one.
    Parallel,
}

/// A norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Norm {
    /// Root mean square, with a gain.
    Rms,
    /// Root mean square, with a gain. The published number is the gain minus 1.
    RmsLessOne,
    /// A layer norm, which subtracts the mean, with gain and shift.
    Layer,
}

impl Norm {
    /// Whether the mean is subtracted from everything that is added to the residual stream.
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

/// How the values of a layer's attention are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Values {
    /// Products of the input with a matrix of their own.
    Own,
    /// Products with a matrix of their own, then an RMS norm of each head, without a gain. They need
    /// [`QkNorm::Head`].
    Normalised,
    /// The normalised keys, before their gain and their rotary embedding. There is no matrix of values.
    Keys,
    /// The keys and the values of this earlier layer. All layers behind the first such layer are of this kind, too.
    Shared(usize),
}

/// Embeddings of positions.
#[derive(Clone, Debug)]
pub(crate) enum Positions {
    /// Queries and keys turn, in each layer by one of these rotary embeddings.
    Rotary(Vec<RopeConfig>),
    /// A row of a table is added to the embedding. The first position has the row `offset`.
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
    /// The style of a transformer like GPT-2: layer norms before attention and before a plain MLP, both with biases,
    /// and learned positions. A family changes the points in which it differs.
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

    /// The style of LLaMA, but with layer norms, a plain MLP and biases.
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

    /// The style of LLaMA, without biases.
    pub(crate) fn llama(common: &Common) -> Self {
        let (norm, mlp) = (Norm::Rms, Mlp::Gated);
        Style { norm, mlp, qkv_bias: false, output_bias: false, mlp_bias: false, ..Style::rotary(common) }
    }

    /// The number of layers.
    pub(crate) fn layers(&self) -> usize {
        self.windows.len()
    }

    /// The number of layers with keys and values of their own, which come first.
    pub(crate) fn own_layers(&self) -> usize {
        self.values.iter().take_while(|values| !matches!(values, Values::Shared(_))).count()
    }

    /// For each layer without keys and values of its own, the layer whose keys and values it reads.
    pub(crate) fn shared(&self) -> impl Iterator<Item = usize> {
        self.values.iter().filter_map(|values| match values {
            Values::Shared(layer) => Some(*layer),
            Values::Own | Values::Normalised | Values::Keys => None,
        })
    }

    /// The number of logits: classes, or token ids.
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

    /// The shape of the images that the model reads, if it reads any.
    pub(crate) fn image(&self) -> Option<ImageShape> {
        self.encoder.as_ref().and_then(|encoder| encoder.image)
    }

    /// The places of the `wanted` tokens among `count` new ones: the last places, or in an encoder the first ones.
    pub(crate) fn wanted(&self, count: usize, wanted: usize) -> Range<usize> {
        if self.encoder.is_some() { 0..wanted } else { count - wanted..count }
    }

    /// With [`Norms::Around`], and only then, the name of the norm whose output layer `i` reads. For `i` behind the
    /// last layer, the norm whose output the head reads.
    pub(crate) fn norm_before(&self, i: usize) -> Option<String> {
        let after = self.names.of(Role::AfterMlp).filter(|_| self.norms == Norms::Around)?;
        Some(match i.checked_sub(1) {
            Some(before) => self.names.in_layer(before, after),
            None => self.names.norm.to_owned(),
        })
    }

    /// The length of all queries of one token in layer `i`, and the length of all its keys.
    pub(crate) fn widths(&self, i: usize) -> (usize, usize) {
        let HeadShape { heads, kv_heads, head_dim } = self.heads[i];
        (heads * head_dim, kv_heads * head_dim)
    }

    /// The length of the heads that turn by the rotary embedding `rope`.
    pub(crate) fn turned_dim(&self, rope: usize) -> usize {
        let layer = self.turns.iter().position(|turns| *turns == Some(rope));
        self.heads[layer.unwrap_or_default()].head_dim
    }

    /// The length of the texts in training, if longer texts have another embedding of positions from the first token
    /// on. It is public whether a text is longer.
    pub(crate) fn short_text(&self) -> Option<usize> {
        match &self.positions {
            Positions::Rotary(ropes) => ropes.first().and_then(RopeConfig::short_text),
            Positions::Learned { .. } => None,
        }
    }

    /// The ranges of outputs of a matrix of the kind [`Role::QkvByHead`], in the order that puts all queries first,
    /// then all keys, then all values.
    pub(crate) fn by_head(&self) -> impl Iterator<Item = Range<usize>> {
        let HeadShape { heads, head_dim: d, .. } = self.heads[0];
        (0..3).flat_map(move |part| (0..heads).map(move |head| (3 * head + part) * d..(3 * head + part + 1) * d))
    }
}
