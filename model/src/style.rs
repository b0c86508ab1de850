//! In what models differ: the words in which a family says how it computes, and by which names it is published.

use std::ops::Range;

use waggle_mpcache::HeadShape;

use crate::config::{Activation, Common, RopeConfig};
use crate::image::{CHANNELS, ImageShape};
use crate::tensor::TensorSpec;

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
    /// Which norms they are.
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
    /// The name of the sinks of a layer's heads, if there are some: logits without a token in the sum of the softmax.
    pub(crate) sinks: Option<&'static str>,
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

/// RMS norms of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QkNorm {
    None,
    /// Of every head, whose gains are shared.
    Head,
    /// Of all queries of a token, and of all its keys.
    Whole,
}

/// The values of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Values {
    /// Products with a matrix of their own.
    Own,
    /// The same, of which every head is RMS-normalised without a gain; beside [`QkNorm::Head`].
    Normalised,
    /// The keys, normalised, before their gain and their turn. There is no matrix of values.
    Keys,
    /// Those of this earlier layer, which has keys and values of its own, with its keys. So it is in all layers
    /// behind the first such one.
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

/// The use of a published tensor of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Query,
    Key,
    Value,
    /// All three, one after another.
    Qkv,
    /// All three of the first head, then all of the second.
    QkvByHead,
    /// The output of attention.
    Output,
    Gate,
    Up,
    /// Gate and up, one after another.
    GateUp,
    Down,
    QueryNorm,
    KeyNorm,
    BeforeAttention,
    AfterAttention,
    BeforeMlp,
    AfterMlp,
    /// Of the state, to what [`ByLayer`] vectors are multiplied by.
    LayerGate,
    /// Of these products, to the state.
    LayerProjection,
    /// The norm after that.
    AfterLayer,
    /// A number by which the layer multiplies its sum; beside [`Norms::Both`]. Its name is whole.
    Scale,
}

/// Something stored beside the weights that changes nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stored {
    /// Ones on and below the diagonal.
    CausalMask,
    /// A masked score.
    MaskedBias,
    /// Frequencies of the first rotary embedding.
    Frequencies,
    /// A head that is tied to the embedding.
    TiedHead,
    /// A second name of the bias of a masked word's head.
    TiedBias,
    /// Positions and segments as integers, and what only other programs read, such as heads of another training.
    Unused,
}

/// Published names, without `.weight` and `.bias`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    /// Some files leave this out at the beginning of the names of `buffers`.
    pub(crate) root: &'static str,
    pub(crate) embedding: &'static str,
    /// The table of learned positions; of a model of images its whole name.
    pub(crate) positions: &'static str,
    /// The beginning of the names of layers, before their number.
    pub(crate) layers: &'static str,
    /// The tensors of a layer, in the order in which they are listed.
    pub(crate) layer: &'static [(Role, &'static str)],
    /// Norms of a layer that are listed behind these.
    pub(crate) norms: &'static [(Role, &'static str)],
    /// The matrices of a layer are published as (inputs, outputs).
    pub(crate) conv1d: bool,
    /// The name that this program gives the one matrix for query, key and value.
    pub(crate) qkv: &'static str,
    /// The name that this program gives the one matrix for gate and up, or for up alone.
    pub(crate) up: &'static str,
    /// The row in front of an image's, whose name is whole.
    pub(crate) first: &'static str,
    /// The embeddings of segments.
    pub(crate) segments: &'static str,
    /// The last norm; with [`Norms::Around`] the one of the embedding.
    pub(crate) norm: &'static str,
    /// The matrix before the head of an encoder.
    pub(crate) pooler: &'static str,
    pub(crate) head: &'static str,
    /// Tensors that older programs stored beside the weights; `{}` stands for the number of a layer.
    pub(crate) buffers: &'static [(&'static str, Stored)],
}

impl Names {
    /// Those of LLaMA.
    pub(crate) const LLAMA: Names = Names {
        root: "model.",
        embedding: "model.embed_tokens",
        positions: "",
        layers: "model.layers",
        layer: &[
            (Role::Query, "self_attn.q_proj"),
            (Role::Key, "self_attn.k_proj"),
            (Role::Value, "self_attn.v_proj"),
            (Role::Output, "self_attn.o_proj"),
            (Role::QueryNorm, "self_attn.q_norm"),
            (Role::KeyNorm, "self_attn.k_norm"),
            (Role::Gate, "mlp.gate_proj"),
            (Role::Up, "mlp.up_proj"),
            (Role::Down, "mlp.down_proj"),
        ],
        norms: &[(Role::BeforeAttention, "input_layernorm"), (Role::BeforeMlp, "post_attention_layernorm")],
        conv1d: false,
        qkv: "self_attn.{q,k,v}_proj",
        up: "mlp.{gate,up}_proj",
        first: "",
        segments: "",
        norm: "model.norm",
        pooler: "",
        head: "lm_head",
        buffers: &[
            ("layers.{}.self_attn.rotary_emb.inv_freq", Stored::Frequencies),
            ("rotary_emb.inv_freq", Stored::Frequencies),
        ],
    };

    /// The name of the tensor with this role in a layer, if there is one.
    pub(crate) fn of(&self, role: Role) -> Option<&'static str> {
        self.of_layer().find(|(of, _)| *of == role).map(|(_, name)| name)
    }

    /// All tensors of a layer, in the order in which they are listed.
    fn of_layer(&self) -> impl Iterator<Item = (Role, &'static str)> {
        self.layer.iter().chain(self.norms).copied()
    }
}

impl Style {
    /// LLaMA's, without biases, from which a family says in what it departs.
    pub(crate) fn llama(common: &Common) -> Self {
        let layers = common.num_hidden_layers;
        Style {
            names: Names::LLAMA,
            heads: vec![common.heads(); layers],
            values: vec![Values::Own; layers],
            hidden: common.hidden_size,
            intermediate: vec![common.intermediate_size; layers],
            vocabulary: common.vocab_size,
            max_positions: common.rope.rope_scaling.positions(common.max_position_embeddings),
            norms: Norms::Before,
            norm: Norm::Rms,
            eps: common.norm_eps,
            qk_norm: QkNorm::None,
            positions: Positions::Rotary(vec![common.rope.clone()]),
            turns: vec![Some(0); layers],
            scales: vec![(common.head_dim as f32).sqrt().recip(); layers],
            windows: vec![None; layers],
            score_cap: None,
            logit_cap: None,
            mlp: Mlp::Gated,
            activation: common.hidden_act,
            qkv_bias: false,
            output_bias: false,
            mlp_bias: false,
            head_bias: false,
            tied: common.tie_word_embeddings,
            sinks: None,
            embedding_scale: None,
            residual_scale: 1.0,
            logit_scale: 1.0,
            quantized: common.quantization_config.is_some(),
            by_layer: None,
            eos: common.eos_token_id.clone(),
            encoder: None,
        }
    }

    /// This style with layer norms, a plain MLP and biases, as before LLaMA.
    pub(crate) fn with_layer_norms(self) -> Self {
        let norm = Norm::Layer;
        Style { norm, mlp: Mlp::Plain, qkv_bias: true, output_bias: true, mlp_bias: true, ..self }
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
            Some(before) => format!("{}.{before}.{after}", self.names.layers),
            None => self.names.norm.to_owned(),
        })
    }

    /// Lengths of all queries, and of all keys, of one token in layer `i`.
    pub(crate) fn widths(&self, i: usize) -> (usize, usize) {
        let HeadShape { heads, kv_heads, head_dim } = self.heads[i];
        (heads * head_dim, kv_heads * head_dim)
    }

    /// Outputs of the matrix for query, key and value of layer `i`.
    pub(crate) fn qkv_width(&self, i: usize) -> usize {
        let (q, kv) = self.widths(i);
        match self.values[i] {
            Values::Own | Values::Normalised => q + 2 * kv,
            Values::Keys => q + kv,
            Values::Shared(_) => q,
        }
    }

    /// Length of the heads that turn by the rotary embedding `rope`.
    pub(crate) fn turned_dim(&self, rope: usize) -> usize {
        let layer = self.turns.iter().position(|turns| *turns == Some(rope));
        self.heads[layer.unwrap_or_default()].head_dim
    }

    /// Whether a layer multiplies its sum by a number.
    pub(crate) fn scales_sums(&self) -> bool {
        self.names.of(Role::Scale).is_some()
    }

    /// Outputs of the first matrix of layer `i`'s MLP.
    pub(crate) fn up_width(&self, i: usize) -> usize {
        if self.mlp == Mlp::Gated { 2 * self.intermediate[i] } else { self.intermediate[i] }
    }

    /// The context of the training, where longer texts, of which it is public that they are, have another embedding
    /// of positions from the first token on.
    pub(crate) fn short_text(&self) -> Option<usize> {
        match &self.positions {
            Positions::Rotary(ropes) => ropes.first().and_then(RopeConfig::short_text),
            Positions::Learned { .. } => None,
        }
    }

    /// Published tensors.
    pub(crate) fn tensors(&self) -> Vec<TensorSpec> {
        let (names, h) = (&self.names, self.hidden);
        let mut out = Vec::new();
        if self.image().is_some() {
            // Parameters of their own, whose names are whole.
            out.push(TensorSpec::new(names.first, [1, 1, h]));
            out.push(TensorSpec::new(names.positions, [1, self.max_positions, h]));
        }
        if let Some(sinks) = self.sinks {
            let of_layer = |i: usize| TensorSpec::new(format!("{}.{i}.{sinks}", names.layers), [self.heads[i].heads]);
            out.extend((0..self.layers()).map(of_layer));
        }
        if let Some(scale) = names.of(Role::Scale) {
            let number = |i| TensorSpec::new(format!("{}.{i}.{scale}", names.layers), [1]);
            out.extend((0..self.layers()).map(number));
        }
        let mut add = |name: &str, shape: &[usize], bias: Option<usize>| {
            out.push(TensorSpec::new(format!("{name}.weight"), shape));
            out.extend(bias.map(|outputs| TensorSpec::new(format!("{name}.bias"), [outputs])));
        };
        match (self.image(), &self.positions) {
            (Some(ImageShape { patch, .. }), _) => add(names.embedding, &[h, CHANNELS, patch, patch], Some(h)),
            (None, positions) => {
                add(names.embedding, &[self.vocabulary, h], None);
                if let Positions::Learned { offset } = positions {
                    add(names.positions, &[self.max_positions + offset, h], None);
                }
            }
        }
        if let Some(ByLayer { width, table, projection, norm }) = self.by_layer {
            let all = self.layers() * width;
            add(table, &[self.vocabulary, all], None);
            add(projection, &[all, h], None);
            add(norm, &[width], None);
        }
        let shifts = (self.norm == Norm::Layer).then_some(h);
        for i in 0..self.layers() {
            for (role, name) in names.of_layer() {
                let name = format!("{}.{i}.{name}", names.layers);
                match self.published(role, i) {
                    Some(Shape::Matrix { inputs, outputs, biased }) => {
                        let shape = if names.conv1d { [inputs, outputs] } else { [outputs, inputs] };
                        add(&name, &shape, biased.then_some(outputs));
                    }
                    Some(Shape::Gains(width)) => add(&name, &[width], None),
                    Some(Shape::Norm) => add(&name, &[h], shifts),
                    None => {}
                }
            }
        }
        add(names.norm, &[h], shifts);
        if let Some(&Encoder { segments, pooled, .. }) = self.encoder.as_ref() {
            if segments > 0 {
                add(names.segments, &[segments, h], None);
            }
            if pooled.is_some() {
                add(names.pooler, &[h, h], Some(h));
            }
            if let Some(Pooled::Masked(masked)) = pooled {
                add(masked.norm, &[h], Some(h));
                out.push(TensorSpec::new(masked.bias, [self.vocabulary]));
                return out;
            }
        }
        if !self.tied {
            let outputs = self.outputs();
            add(names.head, &[outputs, h], self.head_bias.then_some(outputs));
        }
        out
    }

    /// The published matrices of layer `i`.
    pub(crate) fn layer_matrices(&self, i: usize) -> Vec<LayerMatrix> {
        let of = |(role, name)| match self.published(role, i) {
            Some(Shape::Matrix { inputs, outputs, .. }) => Some(LayerMatrix { role, name, inputs, outputs }),
            _ => None,
        };
        self.names.of_layer().filter_map(of).collect()
    }

    /// The layer and the matrix that is called `name` with its layer's number.
    pub(crate) fn module(&self, name: &str) -> Option<(usize, LayerMatrix)> {
        let (number, rest) = name.strip_prefix(self.names.layers)?.strip_prefix('.')?.split_once('.')?;
        let layer = number.parse().ok().filter(|layer| *layer < self.layers())?;
        Some((layer, self.layer_matrices(layer).into_iter().find(|matrix| matrix.name == rest)?))
    }

    /// The outputs of [`Role::QkvByHead`], in the order of queries, keys and values.
    pub(crate) fn by_head(&self) -> impl Iterator<Item = Range<usize>> {
        let HeadShape { heads, head_dim: d, .. } = self.heads[0];
        (0..3).flat_map(move |part| (0..heads).map(move |head| (3 * head + part) * d..(3 * head + part + 1) * d))
    }

    /// Whether what is added to the residual stream has its mean taken away.
    pub(crate) fn centres(&self) -> bool {
        self.norm == Norm::Layer
    }

    /// The shape of what has this role in layer `i`, if there is anything.
    fn published(&self, role: Role, i: usize) -> Option<Shape> {
        let (h, f, (q, kv)) = (self.hidden, self.intermediate[i], self.widths(i));
        let shared = matches!(self.values[i], Values::Shared(_));
        let by_layer = self.by_layer.map(|by_layer| by_layer.width);
        let of_norm = |whole| match self.qk_norm {
            QkNorm::None => None,
            QkNorm::Head => Some(Shape::Gains(self.heads[i].head_dim)),
            QkNorm::Whole => Some(Shape::Gains(whole)),
        };
        let (inputs, outputs, biased) = match role {
            Role::Query => (h, q, self.qkv_bias),
            Role::Value if self.values[i] == Values::Keys => return None,
            Role::Key | Role::Value | Role::KeyNorm if shared => return None,
            Role::LayerGate => (h, by_layer?, false),
            Role::LayerProjection => (by_layer?, h, false),
            Role::AfterLayer => return by_layer.map(|_| Shape::Norm),
            Role::Key | Role::Value => (h, kv, self.qkv_bias),
            Role::Qkv | Role::QkvByHead => (h, q + 2 * kv, self.qkv_bias),
            Role::Output => (q, h, self.output_bias),
            Role::Gate | Role::Up => (h, f, self.mlp_bias),
            Role::GateUp => (h, 2 * f, self.mlp_bias),
            Role::Down => (f, h, self.mlp_bias),
            Role::QueryNorm => return of_norm(q),
            Role::KeyNorm => return of_norm(kv),
            Role::Scale => return None,
            Role::BeforeAttention | Role::AfterAttention | Role::BeforeMlp | Role::AfterMlp => {
                return Some(Shape::Norm);
            }
        };
        Some(Shape::Matrix { inputs, outputs, biased })
    }

    /// Whether the tensor `name` is of the keys or values of a layer that reads those of another.
    fn is_shared(&self, name: &str) -> bool {
        let of_layer = |layer: usize| {
            let unread = |role| matches!(role, Role::Key | Role::Value | Role::KeyNorm);
            let names = self.names.of_layer().filter(move |(role, _)| unread(*role)).map(|(_, name)| name);
            names.map(move |name| format!("{}.{layer}.{name}.weight", self.names.layers))
        };
        (self.own_layers()..self.layers()).flat_map(of_layer).any(|unread| unread == name)
    }

    /// Describes the tensor `name`, which the program does not read but knows to change nothing.
    pub(crate) fn buffer(&self, name: &str) -> Option<Stored> {
        let Names { root, head, buffers, .. } = self.names;
        if self.tied && name.strip_suffix(".weight") == Some(head) {
            return Some(Stored::TiedHead);
        }
        if self.is_shared(name) {
            return Some(Stored::Unused);
        }
        let bare = name.strip_prefix(root).unwrap_or(name);
        let is = |pattern: &str| match pattern.split_once("{}") {
            Some((before, after)) => {
                let number = bare.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
                number.and_then(|number| number.parse().ok()).is_some_and(|i: usize| i < self.layers())
            }
            // All names that begin so.
            None if pattern.ends_with('.') => bare.starts_with(pattern),
            None => bare == pattern,
        };
        buffers.iter().find(|(pattern, _)| is(pattern)).map(|(_, stored)| *stored)
    }
}

/// A published matrix of a layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerMatrix {
    pub(crate) role: Role,
    /// Its name in a layer, without `.weight`.
    pub(crate) name: &'static str,
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
}

/// The shape of a published tensor.
enum Shape {
    /// A linear layer.
    Matrix { inputs: usize, outputs: usize, biased: bool },
    /// Gains of queries or keys.
    Gains(usize),
    /// Of residual vectors.
    Norm,
}
