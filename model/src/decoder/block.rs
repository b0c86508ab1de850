//! The computation of a layer.

use waggle_engine::{Engine, Gelu, Tensor};
use waggle_mpcache::{HeadShape, KvCache};

use super::layer::Layer;
use crate::config::Activation;
use crate::rope::{Angles, turn};
use crate::style::{Mlp, Norms, QkNorm, Role, Style, Values};

/// A layer during a pass.
pub(super) struct Block<'a, W, T> {
    pub(super) style: &'a Style,
    pub(super) layer: &'a Layer<W>,
    pub(super) index: usize,
    /// The angles of the new positions, if queries and keys have a rotary embedding.
    pub(super) angles: Option<&'a Angles<T>>,
}

impl<W, T: Tensor> Block<'_, W, T> {
    /// Whether the layer shares its keys and values with another layer.
    pub(super) fn shares(&self) -> bool {
        let Style { values, .. } = self.style;
        matches!(values[self.index], Values::Shared(_)) || self.style.shared().any(|layer| layer == self.index)
    }

    /// The class of the layer. Layers of one class make the same calls and cost the same, except that the last layer
    /// may compute fewer rows.
    pub(super) fn class<E: Engine<Weight = W>>(&self, cache: &KvCache<E>, is_last: bool) -> usize {
        4 * cache.layer_class(self.index) + 2 * usize::from(is_last) + usize::from(self.angles.is_none())
    }

    /// The outputs (wanted, width) of the layer for its inputs (count, width). They are those of the last `wanted`
    /// tokens of each text, or in an encoder of the first ones. `None` if no token is wanted. `own` holds the tokens'
    /// embeddings for this layer, if the model has embeddings by layer. With [`Norms::Around`], inputs and outputs
    /// are normalised, but the gains and shifts of the norms are not applied.
    pub(super) fn forward<E: Engine<Weight = W, Tensor = T>>(
        &self,
        engine: &mut E,
        cache: &mut KvCache<E>,
        x: &E::Tensor,
        own: Option<&E::Tensor>,
        wanted: usize,
    ) -> Result<Option<E::Tensor>, waggle_engine::Error> {
        let Block { style, layer, angles, .. } = *self;
        let HeadShape { heads, kv_heads, .. } = style.heads[self.index];
        let (n, texts, (_, kv)) = (x.shape()[0], cache.texts(), style.widths(self.index));
        let (attended, beside) = engine.scope("attention", |engine| {
            let qkv = self.project(engine, cache, x)?;
            let end = style.outputs_of(self.index, &Role::QKV);
            let beside = layer
                .base(Role::Up)
                .is_none()
                .then(|| qkv.slice(1, end..end + style.outputs_of(self.index, &Role::UP)));
            // Queries and keys are heads of one tensor, which are turned together.
            let (mut qk, v) = self.heads(engine, &qkv.slice(1, 0..end))?;
            if let Some(angles) = angles {
                qk = turn(engine, &qk, angles)?;
            }
            let kv = v.map(|v| [qk.slice(1, heads..heads + kv_heads).reshape(&[n, kv]), v]);
            let mixed = self.attend(engine, cache, &qk.slice(1, 0..heads), kv.as_ref(), wanted)?;
            let Some(mixed) = mixed else { return Ok((None, beside)) };
            if style.norms == Norms::Around {
                let kept = style.rows(x, texts, wanted);
                return Ok((Some(self.around(engine, "output", &[&mixed, &kept], Role::Output)?), beside));
            }
            let out = engine.scope("output", |s| layer.times(s, Role::Output, &mixed))?;
            let out = self.norm_after(engine, out, Role::AfterAttention)?;
            let out = if beside.is_some() { out } else { engine.add(&style.rows(x, texts, wanted), &out)? };
            Ok((Some(out), beside))
        })?;
        let Some(attended) = attended else { return Ok(None) };
        let out = engine.scope("mlp", |engine| {
            let (gated, f) = (style.mlp == Mlp::Gated, style.intermediate[self.index]);
            let up = match &beside {
                Some(up) => style.rows(up, texts, wanted),
                None => {
                    let normed = self.norm_before(engine, &attended)?;
                    let name = if gated { "gate_up" } else { "up" };
                    engine.scope(name, |s| layer.times(s, Role::Up, normed.as_ref().unwrap_or(&attended)))?
                }
            };
            let activated = |s: &mut E, x: &E::Tensor| s.scope("activation", |s| activate(s, style.activation, x));
            let h = if gated {
                let gate = activated(engine, &up.slice(1, 0..f))?;
                engine.scope("gate", |s| s.gated(&gate, &up.slice(1, f..2 * f)))?
            } else {
                activated(engine, &up)?
            };
            if style.norms == Norms::Around {
                return self.around(engine, "down", &[&h, &attended], Role::Down);
            }
            let out = engine.scope("down", |s| layer.times(s, Role::Down, &h))?;
            if style.names.of(Role::Scale).is_some() && own.is_none() {
                return self.scaled_sum(engine, &attended, &out, Role::AfterMlp);
            }
            let out = self.norm_after(engine, out, Role::AfterMlp)?;
            let x = if beside.is_some() { engine.add(&style.rows(x, texts, wanted), &attended)? } else { attended };
            engine.add(&x, &out)
        })?;
        let Some(own) = own else { return Ok(Some(out)) };
        let added = engine.scope("by layer", |engine| {
            let gate = engine.scope("gate", |s| layer.times(s, Role::LayerGate, &out))?;
            let gate = engine.scope("activation", |s| activate(s, style.activation, &gate))?;
            let h = engine.scope("product", |s| s.gated(&gate, &style.rows(own, texts, wanted)))?;
            let added = engine.scope("projection", |s| layer.times(s, Role::LayerProjection, &h))?;
            self.scaled_sum(engine, &out, &added, Role::AfterLayer)
        })?;
        Ok(Some(added))
    }

    /// Query, key and value of `x` (count, width), and the outputs of the MLP's first matrix if the MLP is in
    /// parallel, side by side: (count, outputs). If there is a scoring head, tells the cache its scores.
    fn project<E: Engine<Weight = W>>(
        &self,
        engine: &mut E,
        cache: &mut KvCache<E>,
        x: &E::Tensor,
    ) -> Result<E::Tensor, waggle_engine::Error> {
        let (layer, n) = (self.layer, x.shape()[0]);
        let name = if layer.base(Role::Up).is_some() { "qkv" } else { "qkv_up" };
        let mut normed = self.norm_before(engine, x)?;
        let unnormed = normed.is_none() && layer.scores;
        if unnormed {
            // A scoring head reads a normalised state, but this layer has no norm here. So each token is multiplied
            // both normalised and as it is.
            let h = engine.scope("norm", |s| s.rms_norm(x, self.style.eps))?;
            normed = Some(E::Tensor::concat(0, &[x, &h]));
        }
        let mut out = engine.scope(name, |s| layer.times(s, Role::Qkv, normed.as_ref().unwrap_or(x)))?;
        if let Some(qkv) = layer.base(Role::Qkv).filter(|_| layer.scores) {
            let (rows, outputs) = (out.shape()[0], out.shape()[1]);
            let scores =
                out.slice(0, rows - n..rows).slice(1, outputs - self.style.heads[self.index].kv_heads..outputs);
            cache.score(self.index, &scores, engine.linear_ceiling(qkv));
        }
        if unnormed {
            out = out.slice(0, 0..n);
        }
        Ok(out)
    }

    /// The queries and keys of `qkv` (count, outputs) as heads, (count, heads, head_dim), and its values (count,
    /// kv_heads * head_dim), normalised if the style says so. If the keys and values are another layer's, only the
    /// queries are returned.
    fn heads<E: Engine<Weight = W>>(
        &self,
        engine: &mut E,
        qkv: &E::Tensor,
    ) -> Result<(E::Tensor, Option<E::Tensor>), waggle_engine::Error> {
        let (HeadShape { head_dim, .. }, values) = (self.style.heads[self.index], self.style.values[self.index]);
        let (own, eps) = (!matches!(values, Values::Shared(_)), self.style.eps);
        let (q, kv) = self.style.widths(self.index);
        let kv = if own { kv } else { 0 };
        let by_head = |x: &E::Tensor| x.reshape(&[x.shape()[0], x.shape()[1] / head_dim, head_dim]);
        // The values are the last columns, also if they are made of the keys.
        let split = |x: &E::Tensor| {
            let width = x.shape()[1];
            (x.slice(1, 0..q + kv), own.then(|| x.slice(1, width - kv..width)))
        };
        let (qk, v) = split(qkv);
        let Some(gains) = self.layer.base(Role::QueryNorm) else { return Ok((by_head(&qk), v)) };
        let (normed, v) = engine.scope("qk norm", |s| {
            let (normed, v) = match (self.style.qk_norm, values) {
                (QkNorm::Whole, _) => {
                    let mut parts = vec![s.rms_norm(&qk.slice(1, 0..q), eps)?];
                    if own {
                        parts.push(s.rms_norm(&qk.slice(1, q..q + kv), eps)?);
                    }
                    (E::Tensor::concat(1, &parts.iter().collect::<Vec<_>>()), v)
                }
                (_, Values::Own | Values::Shared(_)) => (s.rms_norm(&by_head(&qk), eps)?.reshape(&qk.shape()), v),
                (_, Values::Normalised | Values::Keys) => {
                    split(&s.rms_norm(&by_head(qkv), eps)?.reshape(&qkv.shape()))
                }
            };
            Ok((gain(s, &normed, gains)?, v))
        })?;
        Ok((by_head(&normed), v))
    }

    /// The norm before attention or MLP, if there is one. Its gain is folded into the matrix that follows.
    fn norm_before<E: Engine<Weight = W>>(
        &self,
        engine: &mut E,
        x: &E::Tensor,
    ) -> Result<Option<E::Tensor>, waggle_engine::Error> {
        match self.style.norms {
            Norms::After | Norms::Around => Ok(None),
            _ => engine.scope("norm", |s| s.rms_norm(x, self.style.eps)).map(Some),
        }
    }

    /// norm(f(x) + g x), where f is attention or the MLP, x is normalised, and g is the gain of the norm of x.
    /// `parts` are the input of the last matrix of f, and x. `matrix` multiplies both of them side by side.
    fn around<E: Engine<Weight = W>>(
        &self,
        engine: &mut E,
        name: &str,
        parts: &[&E::Tensor],
        matrix: Role,
    ) -> Result<E::Tensor, waggle_engine::Error> {
        let sum = engine.scope(name, |s| self.layer.times(s, matrix, &E::Tensor::concat(1, parts)))?;
        engine.scope("norm", |s| s.rms_norm(&sum, self.style.eps))
    }

    /// The outputs (wanted, heads * head_dim) of attention for the last `wanted` of n new tokens. `q` holds the
    /// queries (n, heads, head_dim) of these n tokens. `kv` holds their keys and values, each (n, kv_heads *
    /// head_dim), or is `None` if these are an earlier layer's. The result is `None` if no token is wanted. The
    /// policy may see more queries than are wanted. The rows of several texts come text by text, `wanted` of each.
    fn attend<E: Engine<Weight = W>>(
        &self,
        engine: &mut E,
        cache: &mut KvCache<E>,
        q: &E::Tensor,
        kv: Option<&[E::Tensor; 2]>,
        wanted: usize,
    ) -> Result<Option<E::Tensor>, waggle_engine::Error> {
        let style = self.style;
        let (layer, texts, HeadShape { heads, head_dim, .. }) =
            (self.index, cache.texts(), self.style.heads[self.index]);
        let window = cache.observation_window(layer, q.shape()[0] / texts).max(wanted);
        if window == 0 {
            if let Some([k, v]) = kv {
                cache.append(engine, layer, k, v)?;
            }
            return Ok(None);
        }
        let q = style.rows(q, texts, window).reshape(&[texts, window, heads, head_dim]).permute(&[0, 2, 1, 3]);
        if let Some(sinks) = self.layer.base(Role::Sinks) {
            cache.sinks(layer, &engine.rows(sinks, 0, 1)?);
        }
        let q = q.reshape(&[texts * heads, window, head_dim]);
        let mixed = match kv {
            Some([k, v]) => cache.attend(engine, layer, &q, k, v)?,
            None => cache.attend_again(engine, layer, &q)?,
        };
        Ok((wanted > 0).then(|| style.rows(&mixed, texts, wanted)))
    }

    /// The norm of the output of attention or MLP before it is added to the residual stream, if there is one.
    fn norm_after<E: Engine<Weight = W>>(
        &self,
        engine: &mut E,
        x: E::Tensor,
        gains: Role,
    ) -> Result<E::Tensor, waggle_engine::Error> {
        let Some(gains) = self.layer.base(gains) else { return Ok(x) };
        let name = if self.style.norms == Norms::Both { "norm after" } else { "norm" };
        engine.scope(name, |s| {
            let normed = s.rms_norm(&x, self.style.eps)?;
            gain(s, &normed, gains)
        })
    }

    /// s (x + g norm(out)), where s is the factor of the layer and g the gain of the norm. It is computed as one
    /// product: norm(out) and x, side by side, times s g and s.
    fn scaled_sum<E: Engine<Weight = W>>(
        &self,
        engine: &mut E,
        x: &E::Tensor,
        out: &E::Tensor,
        gains: Role,
    ) -> Result<E::Tensor, waggle_engine::Error> {
        let h = self.style.hidden;
        let both = engine.scope("norm after", |s| {
            let normed = s.rms_norm(out, self.style.eps)?;
            let gains = self.layer.base(gains).expect("norms stand before and after");
            gain(s, &E::Tensor::concat(1, &[&normed, x]), gains)
        })?;
        engine.add(&both.slice(1, 0..h), &both.slice(1, h..2 * h))
    }
}

impl Style {
    /// For each of `texts` texts, the rows of its `wanted` tokens. The rows of `x` stand text by text.
    pub(super) fn rows<T: Tensor>(&self, x: &T, texts: usize, wanted: usize) -> T {
        let mut shape = x.shape();
        let n = shape[0] / texts;
        if wanted == n {
            return x.clone();
        }
        let by_text = [&[texts, n], &shape[1..]].concat();
        shape[0] = texts * wanted;
        x.reshape(&by_text).slice(1, self.wanted(n, wanted)).reshape(&shape)
    }
}

pub(super) fn activate<E: Engine>(
    engine: &mut E,
    function: Activation,
    x: &E::Tensor,
) -> Result<E::Tensor, waggle_engine::Error> {
    match function {
        Activation::GeluTanh => engine.gelu(x, Gelu::Tanh),
        Activation::GeluErf => engine.gelu(x, Gelu::Erf),
        Activation::Silu => engine.silu(x),
        Activation::Relu => engine.relu(x),
        Activation::Registered(function) => function.apply(engine, x),
    }
}

/// `x` (n, width) times the gains (1, width) of a norm, entry by entry. Only norms that no matrix follows directly
/// need this.
pub(super) fn gain<E: Engine>(
    engine: &mut E,
    x: &E::Tensor,
    gains: &E::Weight,
) -> Result<E::Tensor, waggle_engine::Error> {
    engine.scope("gain", |e| {
        let row = e.rows(gains, 0, 1)?;
        let rows = E::Tensor::concat(0, &vec![&row; x.shape()[0]]);
        e.mul(x, &rows)
    })
}
