//! The names and shapes under which the tensors of a model are published.

use waggle_engine::Order;

use super::{ByLayer, Encoder, Norm, Pooled, Positions, QkNorm, Style, Values};
use crate::image::{CHANNELS, ImageShape};
use crate::tensor::TensorSpec;

/// The use of a published tensor in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Query,
    Key,
    Value,
    /// Queries, keys and values, one after another.
    Qkv,
    /// Queries, keys and values of the first head, then those of the second, and so on.
    QkvByHead,
    /// The output of attention.
    Output,
    Gate,
    Up,
    /// The matrices gate and up of the MLP, one after another.
    GateUp,
    Down,
    QueryNorm,
    KeyNorm,
    BeforeAttention,
    AfterAttention,
    BeforeMlp,
    AfterMlp,
    /// The matrix that turns the state into the factors of [`ByLayer`] vectors.
    LayerGate,
    /// The matrix that turns the products of factors and vectors into a part of the state.
    LayerProjection,
    /// The norm after [`Role::LayerProjection`].
    AfterLayer,
    /// The number by which the layer multiplies its output. It needs [`Norms::Both`](super::Norms::Both). The
    /// tensor's name is the full name, without `.weight`.
    Scale,
    /// The sinks of the heads. A sink is a further score in the sum of the softmax, which belongs to no token. The
    /// tensor's name is the full name, without `.weight`.
    Sinks,
}

impl Role {
    /// The matrices side by side in the weight for query, key and value.
    pub(crate) const QKV: [Role; 5] = [Role::Query, Role::Key, Role::Value, Role::Qkv, Role::QkvByHead];
    /// The matrices side by side in the first weight of the MLP.
    pub(crate) const UP: [Role; 3] = [Role::Gate, Role::Up, Role::GateUp];
}

/// The kind of a tensor that is stored beside the weights and changes nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stored {
    /// The causal mask: ones on and below the diagonal, zeros above.
    CausalMask,
    /// The number that stands for a masked score.
    MaskedBias,
    /// Frequencies of the first rotary embedding.
    Frequencies,
    /// A head that is tied to the embedding, stored a second time.
    TiedHead,
    /// The bias of a masked word's head under a second name.
    TiedBias,
    /// Positions and segments as integers, and tensors that only other programs read, such as heads of another
    /// training.
    Unused,
}

/// Published names, without `.weight` and `.bias`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    /// A prefix that some files leave out at the beginning of the names of `buffers`.
    pub(crate) root: &'static str,
    pub(crate) embedding: &'static str,
    /// The name of the table of learned positions. For a model of images it is the full name.
    pub(crate) positions: &'static str,
    /// The beginning of the names of tensors in layers, before the number of the layer.
    pub(crate) layers: &'static str,
    /// The names of the tensors of a layer, in the order in which they are listed.
    pub(crate) layer: &'static [(Role, &'static str)],
    /// The names of vectors of a layer, which are listed after the other tensors.
    pub(crate) norms: &'static [(Role, &'static str)],
    /// The order of the matrices of a layer: published as (inputs, outputs), or as (outputs, inputs).
    pub(crate) order: Order,
    /// The name that this program gives the one matrix for query, key and value.
    pub(crate) qkv: &'static str,
    /// The name that this program gives the one matrix for gate and up, or for up alone.
    pub(crate) up: &'static str,
    /// The full name of the row that stands before the rows of an image's patches.
    pub(crate) first: &'static str,
    /// The embeddings of segments.
    pub(crate) segments: &'static str,
    /// The last norm; with [`Norms::Around`](super::Norms::Around) the norm of the embedding.
    pub(crate) norm: &'static str,
    /// The matrix before the head of an encoder.
    pub(crate) pooler: &'static str,
    pub(crate) head: &'static str,
    /// Tensors that older programs stored beside the weights; `{}` stands for the number of a layer.
    pub(crate) buffers: &'static [(&'static str, Stored)],
}

impl Names {
    /// LLaMA's names.
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
        order: Order::Columns,
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

    /// The full name of the tensor that is called `name` in layer `i`.
    pub(crate) fn in_layer(&self, i: usize, name: &str) -> String {
        format!("{}.{i}.{name}", self.layers)
    }
}

impl Style {
    /// Published tensors.
    pub(crate) fn tensors(&self) -> Vec<TensorSpec> {
        let (names, h) = (&self.names, self.hidden);
        let mut out = Vec::new();
        if self.image().is_some() {
            // These are parameters by themselves, so their names are full names.
            out.push(TensorSpec::new(names.first, [1, 1, h]));
            out.push(TensorSpec::new(names.positions, [1, self.max_positions, h]));
        }
        for i in 0..self.layers() {
            let whole = |(role, name)| match self.published(role, i)? {
                Kind::Whole(length) => Some(TensorSpec::new(names.in_layer(i, name), [length])),
                _ => None,
            };
            out.extend(names.of_layer().filter_map(whole));
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
        for i in 0..self.layers() {
            for (role, name) in names.of_layer() {
                let name = names.in_layer(i, name);
                match self.published(role, i) {
                    Some(Kind::Matrix(LayerMatrix { inputs, outputs, biased, .. })) => {
                        let shape = if names.order == Order::Rows { [inputs, outputs] } else { [outputs, inputs] };
                        add(&name, &shape, biased.then_some(outputs));
                    }
                    Some(Kind::Norm { length, shifted }) => add(&name, &[length], shifted.then_some(length)),
                    Some(Kind::Whole(_)) | None => {}
                }
            }
        }
        add(names.norm, &[h], (self.norm == Norm::Layer).then_some(h));
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

    /// The published matrices that layer `i` has.
    pub(crate) fn layer_matrices(&self, i: usize) -> Vec<LayerMatrix> {
        self.names.of_layer().filter_map(|(role, _)| self.matrix(i, role)).collect()
    }

    /// The matrices of layer `i` with these roles, in the order of the roles.
    pub(crate) fn matrices(&self, i: usize, roles: &[Role]) -> Vec<LayerMatrix> {
        roles.iter().filter_map(|role| self.matrix(i, *role)).collect()
    }

    /// The outputs of all matrices of layer `i` with these roles.
    pub(crate) fn outputs_of(&self, i: usize, roles: &[Role]) -> usize {
        self.matrices(i, roles).iter().map(|matrix| matrix.outputs).sum()
    }

    fn matrix(&self, i: usize, role: Role) -> Option<LayerMatrix> {
        match self.published(role, i)? {
            Kind::Matrix(matrix) => Some(matrix),
            Kind::Norm { .. } | Kind::Whole(_) => None,
        }
    }

    /// The number of gains of the norm with this role in layer `i`, if there is one.
    pub(crate) fn gains(&self, i: usize, role: Role) -> Option<usize> {
        match self.published(role, i)? {
            Kind::Norm { length, .. } => Some(length),
            Kind::Matrix(_) | Kind::Whole(_) => None,
        }
    }

    /// The layer and the matrix in it that have the full name `name`.
    pub(crate) fn module(&self, name: &str) -> Option<(usize, LayerMatrix)> {
        let (number, rest) = name.strip_prefix(self.names.layers)?.strip_prefix('.')?.split_once('.')?;
        let layer = number.parse().ok().filter(|layer| *layer < self.layers())?;
        Some((layer, self.layer_matrices(layer).into_iter().find(|matrix| matrix.name == rest)?))
    }

    /// The tensors with this role in layer `i`, if there are any.
    fn published(&self, role: Role, i: usize) -> Option<Kind> {
        let name = self.names.of(role)?;
        let (h, f, (q, kv)) = (self.hidden, self.intermediate[i], self.widths(i));
        let shared = matches!(self.values[i], Values::Shared(_));
        let by_layer = self.by_layer.map(|by_layer| by_layer.width);
        let norm = Kind::Norm { length: h, shifted: self.norm == Norm::Layer };
        let of_norm = |whole| match self.qk_norm {
            QkNorm::None => None,
            QkNorm::Head => Some(Kind::Norm { length: self.heads[i].head_dim, shifted: false }),
            QkNorm::Whole => Some(Kind::Norm { length: whole, shifted: false }),
        };
        let (inputs, outputs, biased) = match role {
            Role::Query => (h, q, self.qkv_bias),
            Role::Value if self.values[i] == Values::Keys => return None,
            Role::Key | Role::Value | Role::KeyNorm if shared => return None,
            Role::LayerGate => (h, by_layer?, false),
            Role::LayerProjection => (by_layer?, h, false),
            Role::AfterLayer => return by_layer.map(|_| norm),
            Role::Key | Role::Value => (h, kv, self.qkv_bias),
            Role::Qkv | Role::QkvByHead => (h, q + 2 * kv, self.qkv_bias),
            Role::Output => (q, h, self.output_bias),
            Role::Gate | Role::Up => (h, f, self.mlp_bias),
            Role::GateUp => (h, 2 * f, self.mlp_bias),
            Role::Down => (f, h, self.mlp_bias),
            Role::QueryNorm => return of_norm(q),
            Role::KeyNorm => return of_norm(kv),
            Role::Scale => return Some(Kind::Whole(1)),
            Role::Sinks => return Some(Kind::Whole(self.heads[i].heads)),
            Role::BeforeAttention | Role::AfterAttention | Role::BeforeMlp | Role::AfterMlp => return Some(norm),
        };
        Some(Kind::Matrix(LayerMatrix { role, name, inputs, outputs, biased }))
    }

    /// Whether the tensor `name` belongs to the keys or values of a layer that reads those of another layer.
    fn is_shared(&self, name: &str) -> bool {
        let of_layer = |layer: usize| {
            let unread = |role| matches!(role, Role::Key | Role::Value | Role::KeyNorm);
            let names = self.names.of_layer().filter(move |(role, _)| unread(*role)).map(|(_, name)| name);
            names.map(move |name| format!("{}.weight", self.names.in_layer(layer, name)))
        };
        (self.own_layers()..self.layers()).flat_map(of_layer).any(|unread| unread == name)
    }

    /// The kind of the tensor `name`, if it is one that is not read because it is known to change nothing.
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
            // The pattern covers all names that begin with it.
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
    /// The name of the matrix in a layer, without `.weight`.
    pub(crate) name: &'static str,
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    pub(crate) biased: bool,
}

/// A published tensor of a layer, or two tensors: a weight and its bias.
enum Kind {
    /// A linear layer.
    Matrix(LayerMatrix),
    /// A norm of vectors of this length.
    Norm { length: usize, shifted: bool },
    /// A vector of this length under its full name, without `.weight`.
    Whole(usize),
}
