//! The weights of a layer, from its published tensors.

use ndarray::Array1;
use waggle_mpcache::HeadShape;

use super::matrix::{Group, Matrix, Wanted};
use crate::style::{Norm, Norms, QkNorm, Role, Style, Values};
use crate::weights::{Builder, Published};
use crate::{Checkpoint, CheckpointError, Error};

/// The matrices side by side in the weight for query, key and value.
const QKV: [Role; 5] = [Role::Query, Role::Key, Role::Value, Role::Qkv, Role::QkvByHead];
/// The same where values are keys.
const QK: [Role; 2] = [Role::Query, Role::Key];
/// The same where keys and values are another layer's.
const Q: [Role; 1] = [Role::Query];
/// The matrices side by side in the first weight of the MLP.
const UP: [Role; 3] = [Role::Gate, Role::Up, Role::GateUp];

/// The weights of a layer.
pub(super) struct Layer<W> {
    /// Gains of queries and keys, where they are normalised.
    pub(super) qk_gains: Option<W>,
    /// These gains were prepared before `qkv`.
    gains_first: bool,
    /// Query, key and value, then the MLP's first matrix if it is in parallel, then the scoring head.
    pub(super) qkv: Matrix<W>,
    /// There is a scoring head.
    pub(super) scores: bool,
    /// The sink of each head, (1, heads).
    pub(super) sinks: Option<W>,
    pub(super) output: Matrix<W>,
    pub(super) attention_gains: Option<W>,
    /// The MLP's first matrix, where it has one of its own.
    pub(super) up: Option<Matrix<W>>,
    pub(super) down: Matrix<W>,
    /// Of the norm after the MLP; where a number multiplies the layer's sum, times it, and it for each coordinate.
    /// With embeddings by layer that is so of their gains.
    pub(super) mlp_gains: Option<W>,
    pub(super) by_layer: Option<ByLayer<W>>,
}

/// The weights behind the MLP, where there are embeddings by layer.
pub(super) struct ByLayer<W> {
    pub(super) gate: Matrix<W>,
    pub(super) projection: Matrix<W>,
    pub(super) gains: Option<W>,
}

impl<W> Layer<W> {
    /// Builds the weights of layer `i`, in the order in which they are used.
    pub(super) fn load(style: &Style, i: usize, b: &mut Builder<W>) -> Result<Self, Error> {
        let &Style { names, hidden: h, norms, qk_norm, by_layer, .. } = style;
        let (f, shared) = (style.intermediate[i], matches!(style.values[i], Values::Shared(_)));
        let HeadShape { heads, kv_heads, .. } = style.heads[i];
        let ((q, kv), scale, p) = (style.widths(i), style.scales[i], format!("{}.{i}", names.layers));
        let gains_of = |c: &Checkpoint, role: Role| match names.of(role) {
            Some(name) => style.gain(c, &format!("{p}.{name}")),
            None => Err(CheckpointError::missing(format!("{p}: {role:?}"))),
        };
        let qk_gains = |b: &mut Builder<W>| {
            let (queries, keys) = match qk_norm {
                QkNorm::None => return Ok(None),
                QkNorm::Head => (heads, kv_heads),
                QkNorm::Whole => (1, 1),
            };
            let width = if shared { q } else { q + kv };
            let gains = b.gains(&format!("{p}.self_attn.qk_norm"), width, |c| {
                let queries = (gains_of(c, Role::QueryNorm)? * scale).to_vec().repeat(queries);
                if shared {
                    return Ok(queries.into());
                }
                let keys = gains_of(c, Role::KeyNorm)?.to_vec().repeat(keys);
                Ok(queries.into_iter().chain(keys).collect())
            });
            gains.map(Some)
        };
        let last = if by_layer.is_some() { Role::AfterLayer } else { Role::AfterMlp };
        let gains_after = |b: &mut Builder<W>, role: Role| match names.of(role).filter(|_| norms != Norms::Around) {
            Some(name) => {
                let scale = names.of(Role::Scale).filter(|_| role == last);
                let width = if scale.is_some() { 2 * h } else { h };
                let gains = b.gains(&format!("{p}.{name}.weight"), width, |c| {
                    let gains = gains_of(c, role)?;
                    let Some(scale) = scale else { return Ok(gains) };
                    let scale = c.vector(&format!("{p}.{scale}"))?[0];
                    Ok((gains * scale).into_iter().chain(vec![scale; h]).collect())
                });
                gains.map(Some)
            }
            None => Ok(None),
        };
        // What attention and the MLP read, where norms stand around them.
        let read = style.norm_before(i);
        let between = read.as_ref().map(|_| format!("{p}.{}", names.of(Role::AfterAttention).unwrap_or_default()));
        // In parallel the MLP may read what attention reads.
        let before_mlp = names.of(Role::BeforeMlp).map_or(Role::BeforeAttention, |_| Role::BeforeMlp);
        let up = |c: &Checkpoint| {
            let up = style.matrices(c, &p, &UP, style.mlp_bias, Some(before_mlp))?;
            style.after(c, between.as_deref(), up)
        };
        // The norm that is folded into a matrix: the one before it, or the one around what it reads.
        let folded = |before: Role, around: &Option<String>| {
            let before = names.of(before).filter(|_| norms != Norms::After).map(|norm| format!("{p}.{norm}"));
            before.or_else(|| around.clone())
        };
        let up_group = || Group { roles: &UP, norm: folded(before_mlp, &between) };
        // Both parties prepare weights in this order.
        let gains_first = norms == Norms::Before;
        let mut gains = if gains_first { qk_gains(b)? } else { None };
        let (columns, further) = (b.columns.of(i), b.columns.count(kv_heads));
        let beside = if norms == Norms::Parallel { style.up_width(i) } else { 0 };
        let scaled = if qk_norm == QkNorm::None { q } else { 0 };
        let roles = match style.values[i] {
            Values::Own | Values::Normalised => &QKV[..],
            Values::Keys => &QK,
            Values::Shared(_) => &Q,
        };
        let mut groups = vec![Group { roles, norm: folded(Role::BeforeAttention, &read) }];
        groups.extend((norms == Norms::Parallel).then(up_group));
        let wanted = Wanted {
            layer: i,
            name: format!("{p}.{}.weight", names.qkv),
            shape: (h, style.qkv_width(i) + beside + further),
            groups: &groups,
            scaled: (scaled, scale),
            residual: false,
        };
        let qkv = Matrix::load(style, b, &wanted, |c| {
            let mut qkv = style.matrices(c, &p, roles, style.qkv_bias, Some(Role::BeforeAttention))?;
            if norms == Norms::Parallel {
                qkv = qkv.beside(up(c)?);
            }
            Ok(style.after(c, read.as_deref(), qkv)?.scale_outputs(scaled, scale).widened(columns))
        })?;
        if !gains_first {
            gains = qk_gains(b)?;
        }
        let residual = |b: &mut Builder<W>, role: Role, inputs, biased, added: Option<&str>| {
            let name = names.of(role).unwrap_or_default();
            let inputs = inputs + added.map_or(0, |_| h);
            let wanted = Wanted {
                layer: i,
                name: format!("{p}.{name}.weight"),
                shape: (inputs, h),
                groups: &[Group { roles: &[role], norm: None }],
                scaled: (h, style.residual_scale),
                residual: true,
            };
            Matrix::load(style, b, &wanted, |c| {
                let weight = style.matrices(c, &p, &[role], biased, None)?;
                let mut weight = weight.scale_outputs(h, style.residual_scale);
                if let Some(norm) = added {
                    weight = weight.adding(style.gain(c, norm)?, style.shift(c, norm)?.as_ref());
                }
                Ok(style.residual(weight))
            })
        };
        Ok(Layer {
            qk_gains: gains,
            gains_first,
            qkv,
            scores: further > 0,
            sinks: match style.sinks.map(|name| format!("{p}.{name}")) {
                Some(name) => Some(b.gains(&name, heads, |c| c.vector(&name))?),
                None => None,
            },
            output: residual(b, Role::Output, q, style.output_bias, read.as_deref())?,
            attention_gains: gains_after(b, Role::AfterAttention)?,
            up: match norms {
                Norms::Parallel => None,
                _ => {
                    let wanted = Wanted {
                        layer: i,
                        name: format!("{p}.{}.weight", names.up),
                        shape: (h, style.up_width(i)),
                        groups: &[up_group()],
                        scaled: (0, 1.0),
                        residual: false,
                    };
                    Some(Matrix::load(style, b, &wanted, up)?)
                }
            },
            down: residual(b, Role::Down, f, style.mlp_bias, between.as_deref())?,
            mlp_gains: gains_after(b, Role::AfterMlp)?,
            by_layer: match by_layer {
                None => None,
                Some(of) => {
                    let roles = &[Role::LayerGate];
                    let wanted = Wanted {
                        layer: i,
                        name: format!("{p}.{}.weight", names.of(Role::LayerGate).unwrap_or_default()),
                        shape: (h, of.width),
                        groups: &[Group { roles, norm: None }],
                        scaled: (0, 1.0),
                        residual: false,
                    };
                    Some(ByLayer {
                        gate: Matrix::load(style, b, &wanted, |c| style.matrices(c, &p, roles, false, None))?,
                        projection: residual(b, Role::LayerProjection, of.width, false, None)?,
                        gains: gains_after(b, Role::AfterLayer)?,
                    })
                }
            },
        })
    }

    /// Its weights, in the order in which they were prepared.
    pub(super) fn weights(&self) -> Vec<&W> {
        let qk_gains = |first: bool| self.qk_gains.iter().filter(move |_| self.gains_first == first);
        let attention = qk_gains(true).chain(self.qkv.weights()).chain(qk_gains(false));
        let attention = attention.chain(&self.sinks).chain(self.output.weights());
        let mlp = self.up.iter().flat_map(Matrix::weights).chain(self.down.weights());
        let by_layer = self.by_layer.iter().flat_map(|of| {
            let matrices = of.gate.weights().chain(of.projection.weights());
            matrices.chain(&of.gains)
        });
        attention.chain(&self.attention_gains).chain(mlp).chain(&self.mlp_gains).chain(by_layer).collect()
    }
}

/// Folds published tensors into weights.
impl Style {
    /// The gain of the norm `name`.
    pub(super) fn gain(&self, c: &Checkpoint, name: &str) -> Result<Array1<f32>, CheckpointError> {
        let gain = c.vector(&format!("{name}.weight"))?;
        Ok(if self.norm == Norm::RmsLessOne { gain + 1.0 } else { gain })
    }

    /// `weight` after the norm `name`, whose gain and shift are folded into it.
    pub(super) fn after_norm(
        &self,
        c: &Checkpoint,
        name: &str,
        weight: Published,
    ) -> Result<Published, CheckpointError> {
        Ok(weight.after_norm(self.gain(c, name)?, self.shift(c, name)?.as_ref()))
    }

    /// [`after_norm`](Style::after_norm) if there is a norm.
    fn after(&self, c: &Checkpoint, name: Option<&str>, weight: Published) -> Result<Published, CheckpointError> {
        match name {
            Some(name) => self.after_norm(c, name, weight),
            None => Ok(weight),
        }
    }

    /// The shift of the norm `name`, if it is one that has a shift.
    pub(super) fn shift(&self, c: &Checkpoint, name: &str) -> Result<Option<Array1<f32>>, CheckpointError> {
        (self.norm == Norm::Layer).then(|| c.vector(&format!("{name}.bias"))).transpose()
    }

    /// `weight`, whose outputs are added to the residual stream.
    pub(super) fn residual(&self, weight: Published) -> Published {
        if self.centres() { weight.centred() } else { weight }
    }

    /// The matrices with these roles in the layer with the names `p`, side by side, after the norm before them.
    fn matrices(
        &self,
        c: &Checkpoint,
        p: &str,
        roles: &[Role],
        biased: bool,
        norm: Option<Role>,
    ) -> Result<Published, CheckpointError> {
        let names: Vec<_> =
            roles.iter().filter_map(|role| self.names.of(*role)).map(|name| format!("{p}.{name}")).collect();
        let weight = match &names[..] {
            [name] if self.names.conv1d => {
                let bias = biased.then(|| c.vector(&format!("{name}.bias"))).transpose()?;
                Published::stored(c, &format!("{name}.weight"), bias)?
            }
            [name] if roles.contains(&Role::QkvByHead) && self.names.of(Role::QkvByHead).is_some() => {
                Published::reordered(c, name, self.by_head())?
            }
            names => Published::linear(c, names, biased)?,
        };
        match norm.filter(|_| self.norms != Norms::After).and_then(|norm| self.names.of(norm)) {
            Some(norm) => self.after_norm(c, &format!("{p}.{norm}"), weight),
            None => Ok(weight),
        }
    }
}
