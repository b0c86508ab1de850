//! The recipe of a layer: which weights the layer has, and how each is made of published tensors.

use waggle_mpcache::HeadShape;

use crate::style::{LayerMatrix, Norms, QkNorm, Role, Style};

/// How one weight is made.
pub(super) struct Recipe {
    /// [`Role::Qkv`] stands for query, key and value, however they are published, together with the scoring head, and
    /// with the MLP's first matrix if the MLP is in parallel. [`Role::Up`] stands for the MLP's first matrix if it is
    /// a weight of its own. [`Role::QueryNorm`] stands for the gains of queries and keys.
    pub(super) role: Role,
    /// The full name of the weight, for messages.
    pub(super) name: String,
    /// Inputs and outputs; a vector has one input.
    pub(super) shape: (usize, usize),
    pub(super) made: Made,
}

/// What a weight is made of.
pub(super) enum Made {
    Product(Product),
    /// Gains of norms, one after another.
    Gains {
        /// The name of each norm, how often its gains are repeated, and the factor by which they are multiplied.
        norms: Vec<(String, usize, f32)>,
        /// The name of the factor s of the layer, if it has one. The weight then holds the gains times s, followed by
        /// s for every coordinate.
        sum: Option<String>,
    },
    /// The published vector of this name.
    Vector,
}

/// Published matrices side by side, with what is folded into them.
pub(super) struct Product {
    /// The matrices, each with the name of the norm whose gain and shift are folded into it.
    pub(super) matrices: Vec<(LayerMatrix, Option<String>)>,
    /// The number of first outputs that are multiplied by a factor, and the factor.
    pub(super) scaled: (usize, f32),
    /// Whether the outputs are added to the residual stream.
    pub(super) residual: bool,
    /// The name of a norm, if the weight has further inputs. These are the output of this norm before its gain and
    /// shift. They are multiplied by its gain and added to the outputs.
    pub(super) added: Option<String>,
}

/// A product of matrices without further settings.
impl From<Vec<(LayerMatrix, Option<String>)>> for Product {
    fn from(matrices: Vec<(LayerMatrix, Option<String>)>) -> Self {
        Product { matrices, scaled: (0, 1.0), residual: false, added: None }
    }
}

impl Style {
    /// The weights of layer `i`, in the order in which both parties prepare them.
    pub(super) fn recipe(&self, i: usize) -> Vec<Recipe> {
        let layer = InLayer { style: self, i };
        // Norms around sums are folded into the weights that read them: attention, then the MLP.
        let read = self.norm_before(i);
        let between = layer.name(Role::AfterAttention).filter(|_| self.norms == Norms::Around);
        let before_mlp = layer.before(&[Role::BeforeMlp, Role::BeforeAttention]).or_else(|| between.clone());
        let up = layer.matrices(&Role::UP, before_mlp);
        let (beside, up) = if self.norms == Norms::Parallel { (up, Vec::new()) } else { (Vec::new(), up) };
        let (qkv, qk_gains) = (layer.qkv(read.clone(), beside), layer.qk_gains());
        let gate = self.names.of(Role::LayerGate).unwrap_or_default();
        let first = if self.norms == Norms::Before { [qk_gains, qkv] } else { [qkv, qk_gains] };
        let rest = [
            layer.sinks(),
            layer.residual(Role::Output, read),
            layer.gains_after(Role::AfterAttention),
            layer.product(Role::Up, self.names.up, up.into()),
            layer.residual(Role::Down, between),
            layer.gains_after(Role::AfterMlp),
            layer.product(Role::LayerGate, gate, layer.matrices(&[Role::LayerGate], None).into()),
            layer.residual(Role::LayerProjection, None),
            layer.gains_after(Role::AfterLayer),
        ];
        first.into_iter().chain(rest).flatten().collect()
    }
}

/// A style in the layer `i`. The methods return `None` for weights that the layer does not have.
struct InLayer<'a> {
    style: &'a Style,
    i: usize,
}

impl InLayer<'_> {
    fn name(&self, role: Role) -> Option<String> {
        let names = &self.style.names;
        names.of(role).map(|name| names.in_layer(self.i, name))
    }

    /// The name of the first norm with one of these roles. `None` if norms stand only after attention and MLP.
    /// Nothing is then folded into the matrices.
    fn before(&self, roles: &[Role]) -> Option<String> {
        roles.iter().find_map(|role| self.name(*role)).filter(|_| self.style.norms != Norms::After)
    }

    /// The matrices with these roles, each after `norm`.
    fn matrices(&self, roles: &[Role], norm: Option<String>) -> Vec<(LayerMatrix, Option<String>)> {
        self.style.matrices(self.i, roles).into_iter().map(|matrix| (matrix, norm.clone())).collect()
    }

    fn product(&self, role: Role, name: &str, product: Product) -> Option<Recipe> {
        let added = product.added.as_ref().map_or(0, |_| self.style.hidden);
        let inputs = product.matrices.first()?.0.inputs + added;
        let outputs = product.matrices.iter().map(|(matrix, _)| matrix.outputs).sum();
        let name = format!("{}.weight", self.style.names.in_layer(self.i, name));
        Some(Recipe { role, name, shape: (inputs, outputs), made: Made::Product(product) })
    }

    fn qkv(&self, read: Option<String>, beside: Vec<(LayerMatrix, Option<String>)>) -> Option<Recipe> {
        let style = self.style;
        let mut matrices = self.matrices(&Role::QKV, self.before(&[Role::BeforeAttention]).or(read));
        matrices.extend(beside);
        // If queries have gains, the scale of scores is in these.
        let queries = if style.qk_norm == QkNorm::None { style.widths(self.i).0 } else { 0 };
        let scaled = (queries, style.scales[self.i]);
        self.product(Role::Qkv, style.names.qkv, Product { scaled, ..matrices.into() })
    }

    fn residual(&self, role: Role, added: Option<String>) -> Option<Recipe> {
        let scaled = (self.style.hidden, self.style.residual_scale);
        let product = Product { scaled, residual: true, added, ..self.matrices(&[role], None).into() };
        self.product(role, self.style.names.of(role)?, product)
    }

    /// The gains of the norms of queries and keys. They are a weight of their own, because no matrix follows these
    /// norms.
    fn qk_gains(&self) -> Option<Recipe> {
        let Style { heads, qk_norm, scales, names, .. } = self.style;
        let HeadShape { heads, kv_heads, .. } = heads[self.i];
        let times = |heads: usize| if *qk_norm == QkNorm::Head { heads } else { 1 };
        let parts = [(Role::QueryNorm, times(heads), scales[self.i]), (Role::KeyNorm, times(kv_heads), 1.0)];
        self.gains(Role::QueryNorm, names.in_layer(self.i, "self_attn.qk_norm"), &parts, None)
    }

    fn gains_after(&self, role: Role) -> Option<Recipe> {
        let norm = self.name(role).filter(|_| self.style.norms != Norms::Around)?;
        let last = if self.style.by_layer.is_some() { Role::AfterLayer } else { Role::AfterMlp };
        let sum = self.name(Role::Scale).filter(|_| role == last);
        self.gains(role, format!("{norm}.weight"), &[(role, 1, 1.0)], sum)
    }

    fn gains(&self, role: Role, name: String, parts: &[(Role, usize, f32)], sum: Option<String>) -> Option<Recipe> {
        let part = |&(role, times, factor): &(Role, usize, f32)| {
            let width = times * self.style.gains(self.i, role)?;
            Some(((self.name(role)?, times, factor), width))
        };
        let (norms, widths): (Vec<_>, Vec<usize>) = parts.iter().filter_map(part).unzip();
        let width = widths.iter().sum::<usize>() + sum.as_ref().map_or(0, |_| self.style.hidden);
        (!norms.is_empty()).then_some(Recipe { role, name, shape: (1, width), made: Made::Gains { norms, sum } })
    }

    fn sinks(&self) -> Option<Recipe> {
        let shape = (1, self.style.heads[self.i].heads);
        self.name(Role::Sinks).map(|name| Recipe { role: Role::Sinks, name, shape, made: Made::Vector })
    }
}
