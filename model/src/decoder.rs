//! The program of every family: a decoder in a [`Style`].
//!
//! It differs from the programs of the models' authors in work that is done once, when the weights are loaded:
//!
//! - Query, key and value become one matrix, gate and up another. Attention and MLP in parallel, which read one
//!   normalised input, share one matrix: two norms of one input differ in gains and shifts alone.
//! - The gain and shift of a norm before a matrix are folded into it, and the scale of scores into the queries. No
//!   matrix follows norms of queries and keys, nor norms after attention and MLP: their gains are products of their
//!   own, with the scale in the queries' gains.
//! - With layer norms, all that is added to the residual stream (embeddings, outputs of attention and MLP) has its
//!   mean taken away. The stream then has none, and its layer norms, which would take it away, are root-mean-square
//!   norms.

use engine::{Engine, Tensor};
use mpcache::{HeadShape, KvCache};
use ndarray::Array1;

use crate::layers::{Input, Rows, activate, attend, gain, last};
use crate::rope::{Angles, Rope, turn};
use crate::style::{Mlp, Names, Norm, Norms, Positions, QkNorm, Role, Style};
use crate::weights::{Builder, Published};
use crate::{Checkpoint, CheckpointError, Error};

/// A decoder whose matrices are prepared for an engine with weights `W`.
pub(crate) struct Decoder<W> {
    pub(crate) style: Style,
    ropes: Vec<Rope>,
    embedding: W,
    positions: Option<W>,
    layers: Vec<Layer<W>>,
    head: W,
}

/// The weights of a layer.
struct Layer<W> {
    /// Gains of queries and keys, where they are normalised, and whether they were prepared before `qkv`.
    qk_gains: Option<W>,
    gains_first: bool,
    /// Query, key and value, then the MLP's first matrix if it is in parallel, then the scoring head.
    qkv: W,
    /// Whether there is a scoring head.
    scores: bool,
    output: W,
    attention_gains: Option<W>,
    /// The MLP's first matrix, where it has one of its own.
    up: Option<W>,
    down: W,
    mlp_gains: Option<W>,
}

impl<W> Decoder<W> {
    /// Builds all weights, in the order in which they are used.
    pub(crate) fn load(style: Style, b: &mut Builder<W>) -> Result<Self, Error> {
        let Names { embedding, positions, norm, head: head_name, .. } = style.names;
        let (h, vocabulary) = (style.hidden, style.vocabulary);
        let embedding_name = format!("{embedding}.weight");
        let embed = b.weight(&embedding_name, (vocabulary, h), |c| {
            let table = Published::stored(c, &embedding_name, None)?;
            Ok(style.residual(match style.embedding_scale {
                Some(scale) => table.scale_outputs(h, scale),
                None => table,
            }))
        })?;
        let mut learned = |offset: usize| {
            let name = format!("{positions}.weight");
            let shape = (style.max_positions + offset, h);
            b.weight(&name, shape, |c| Ok(style.residual(Published::stored(c, &name, None)?)))
        };
        let (ropes, positions) = match &style.positions {
            Positions::Rotary(ropes) => {
                (ropes.iter().map(|rope| Rope::new(rope, style.heads.head_dim)).collect(), None)
            }
            Positions::Learned { offset } => (Vec::new(), Some(learned(*offset)?)),
        };
        let layers = (0..style.layers()).map(|i| Layer::load(&style, i, b)).collect::<Result<_, _>>()?;
        // A tied head is a copy of its own, with a name of its own, as the final norm is folded into it.
        let name = if style.tied { embedding } else { head_name };
        let head = b.weight(&format!("{head_name}.weight"), (h, vocabulary), |c| {
            style.after_norm(c, norm, Published::linear(c, &[name.to_owned()], style.head_bias)?)
        })?;
        Ok(Decoder { ropes, embedding: embed, positions, layers, head, style })
    }

    /// Whether there is a scoring head.
    pub(crate) fn scores(&self) -> bool {
        self.layers.iter().any(|layer| layer.scores)
    }

    /// All weights, in the order of [`load`](Decoder::load).
    pub(crate) fn weights(&self) -> Vec<&W> {
        let layers = self.layers.iter().flat_map(Layer::weights);
        [&self.embedding].into_iter().chain(&self.positions).chain(layers).chain([&self.head]).collect()
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
        let style = &self.style;
        let angles: Vec<Angles> = self.ropes.iter().map(|rope| rope.of(cache, input.count)).collect();
        let mut x = engine.scope("embedding", |e| self.embed(e, input, cache))?;
        for (index, layer) in self.layers.iter().enumerate() {
            let block = Block { style, layer, index, angles: style.turns[index].map(|rope| &angles[rope]) };
            // Beyond the last layer's keys and values only the wanted rows matter.
            let is_last = index + 1 == self.layers.len();
            let wanted = if is_last { rows.of(input.count) } else { input.count };
            let weights = layer.weights();
            let like = engine::Layer { index, class: block.class(cache, is_last), weights: &weights };
            let out = engine
                .scope(&format!("layer {index}"), |e| e.layer(&like, |e| block.forward(e, cache, &x, wanted)))?;
            progress(index + 1);
            let Some(out) = out else { return Ok(None) };
            x = out;
        }
        engine.scope("head", |e| e.scope("norm", |e| e.rms_norm(&x, style.eps))).map(Some)
    }

    /// (count, width).
    fn embed<E: Engine<Weight = W>>(
        &self,
        engine: &mut E,
        input: Input,
        cache: &KvCache<E>,
    ) -> Result<E::Tensor, engine::Error> {
        let tokens = engine.embed(&self.embedding, input.ids, input.count)?;
        let (Some(table), Positions::Learned { offset }) = (&self.positions, &self.style.positions) else {
            return Ok(tokens);
        };
        let position = cache.tokens();
        let positions = match cache.padding() {
            None => engine.rows(table, position + offset, input.count)?,
            // Where the text begins is the client's secret, so it looks positions up as it does words.
            Some(padding) => {
                let ids = padding.positions(position, input.count);
                let ids: Option<Vec<u32>> = ids.map(|ids| ids.iter().map(|id| id + *offset as u32).collect());
                engine.scope("positions", |e| e.embed(table, ids.as_deref(), input.count))?
            }
        };
        engine.add(&tokens, &positions)
    }

    /// The matrix from the last hidden state to logits.
    pub(crate) fn head(&self) -> &W {
        &self.head
    }
}

/// From published tensors to weights.
impl Style {
    /// The gain of the norm `name`.
    fn gain(&self, c: &Checkpoint, name: &str) -> Result<Array1<f32>, CheckpointError> {
        let gain = c.vector(&format!("{name}.weight"))?;
        Ok(if self.norm == Norm::RmsLessOne { gain + 1.0 } else { gain })
    }

    /// `weight` after the norm `name`, whose gain and shift are folded into it.
    fn after_norm(&self, c: &Checkpoint, name: &str, weight: Published) -> Result<Published, CheckpointError> {
        let shift = (self.norm == Norm::Layer).then(|| c.vector(&format!("{name}.bias"))).transpose()?;
        Ok(weight.after_norm(self.gain(c, name)?, shift.as_ref()))
    }

    /// `weight`, whose outputs are added to the residual stream.
    fn residual(&self, weight: Published) -> Published {
        if self.norm == Norm::Layer { weight.centred() } else { weight }
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
                let HeadShape { heads, head_dim: d, .. } = self.heads;
                let of = |part| (0..heads).map(move |head| (3 * head + part) * d..(3 * head + part + 1) * d);
                Published::reordered(c, name, (0..3).flat_map(of))?
            }
            names => Published::linear(c, names, biased)?,
        };
        match norm.filter(|_| self.norms != Norms::After).and_then(|norm| self.names.of(norm)) {
            Some(norm) => self.after_norm(c, &format!("{p}.{norm}"), weight),
            None => Ok(weight),
        }
    }
}

impl<W> Layer<W> {
    fn load(style: &Style, i: usize, b: &mut Builder<W>) -> Result<Self, Error> {
        let &Style { names, hidden: h, intermediate: f, norms, qk_norm, .. } = style;
        let HeadShape { heads, kv_heads, .. } = style.heads;
        let ((q, kv), scale, p) = (style.widths(), style.scales[i], format!("{}.{i}", names.layers));
        let gains_of = |c: &Checkpoint, role: Role| match names.of(role) {
            Some(name) => style.gain(c, &format!("{p}.{name}")),
            None => Err(CheckpointError::Missing { tensor: format!("{p}: {role:?}") }),
        };
        let qk_gains = |b: &mut Builder<W>| {
            let (queries, keys) = match qk_norm {
                QkNorm::None => return Ok(None),
                QkNorm::Head => (heads, kv_heads),
                QkNorm::Whole => (1, 1),
            };
            let gains = b.gains(&format!("{p}.self_attn.qk_norm"), q + kv, |c| {
                let queries = (gains_of(c, Role::QueryNorm)? * scale).to_vec().repeat(queries);
                let keys = gains_of(c, Role::KeyNorm)?.to_vec().repeat(keys);
                Ok(queries.into_iter().chain(keys).collect())
            });
            gains.map(Some)
        };
        let gains_after = |b: &mut Builder<W>, role: Role| match names.of(role) {
            Some(name) => b.gains(&format!("{p}.{name}.weight"), h, |c| gains_of(c, role)).map(Some),
            None => Ok(None),
        };
        let up = |c: &Checkpoint| {
            // In parallel the MLP may read what attention reads.
            let norm = names.of(Role::BeforeMlp).map_or(Role::BeforeAttention, |_| Role::BeforeMlp);
            style.matrices(c, &p, &[Role::Gate, Role::Up, Role::GateUp], style.mlp_bias, Some(norm))
        };
        let gains_first = norms == Norms::Before;
        let mut gains = if gains_first { qk_gains(b)? } else { None };
        let (columns, further) = (b.columns.of(i), b.columns.count(kv_heads));
        let beside = if norms == Norms::Parallel { style.up_width() } else { 0 };
        let qkv = b.weight(&format!("{p}.{}.weight", names.qkv), (h, q + 2 * kv + beside + further), |c| {
            let roles = [Role::Query, Role::Key, Role::Value, Role::Qkv, Role::QkvByHead];
            let mut qkv = style.matrices(c, &p, &roles, style.qkv_bias, Some(Role::BeforeAttention))?;
            if norms == Norms::Parallel {
                qkv = qkv.beside(up(c)?);
            }
            let scaled = if qk_norm == QkNorm::None { q } else { 0 };
            Ok(qkv.scale_outputs(scaled, scale).widened(columns))
        })?;
        if !gains_first {
            gains = qk_gains(b)?;
        }
        let residual = |b: &mut Builder<W>, role: Role, inputs, biased| {
            let name = names.of(role).unwrap_or_default();
            b.weight(&format!("{p}.{name}.weight"), (inputs, h), |c| {
                Ok(style.residual(style.matrices(c, &p, &[role], biased, None)?))
            })
        };
        Ok(Layer {
            qk_gains: gains,
            gains_first,
            qkv,
            scores: further > 0,
            output: residual(b, Role::Output, q, style.output_bias)?,
            attention_gains: gains_after(b, Role::AfterAttention)?,
            up: match norms {
                Norms::Parallel => None,
                _ => Some(b.weight(&format!("{p}.{}.weight", names.up), (h, style.up_width()), up)?),
            },
            down: residual(b, Role::Down, f, style.mlp_bias)?,
            mlp_gains: gains_after(b, Role::AfterMlp)?,
        })
    }

    /// Its weights, in the order in which they were prepared.
    fn weights(&self) -> Vec<&W> {
        let qk_gains = |first: bool| self.qk_gains.iter().filter(move |_| self.gains_first == first);
        let attention = qk_gains(true).chain([&self.qkv]).chain(qk_gains(false)).chain([&self.output]);
        attention.chain(&self.attention_gains).chain(&self.up).chain([&self.down]).chain(&self.mlp_gains).collect()
    }
}

/// A layer in a pass.
struct Block<'a, W> {
    style: &'a Style,
    layer: &'a Layer<W>,
    index: usize,
    /// The angles of the new positions, if queries and keys turn.
    angles: Option<&'a Angles>,
}

impl<W> Block<'_, W> {
    /// Layers of one class make the same calls, and cost the same. The last layer may compute fewer rows.
    fn class<E: Engine<Weight = W>>(&self, cache: &KvCache<E>, is_last: bool) -> usize {
        4 * cache.layer_class(self.index) + 2 * usize::from(is_last) + usize::from(self.angles.is_none())
    }

    /// (count, width) -> (wanted, width) for the last `wanted` tokens; nothing if none is wanted.
    fn forward<E: Engine<Weight = W>>(
        &self,
        engine: &mut E,
        cache: &mut KvCache<E>,
        x: &E::Tensor,
        wanted: usize,
    ) -> Result<Option<E::Tensor>, engine::Error> {
        let Block { style, layer, index, angles } = *self;
        let HeadShape { heads, kv_heads, .. } = style.heads;
        let (n, (q, kv)) = (x.shape()[0], style.widths());
        let (attended, beside) = engine.scope("attention", |engine| {
            let qkv = self.project(engine, cache, x)?;
            let beside = layer.up.is_none().then(|| qkv.slice(1, q + 2 * kv..q + 2 * kv + style.up_width()));
            let v = qkv.slice(1, q + kv..q + 2 * kv);
            // Queries and keys are heads of one tensor and turn together.
            let mut qk = self.heads(engine, &qkv.slice(1, 0..q + kv))?;
            if let Some(angles) = angles {
                qk = turn(engine, &qk, angles)?;
            }
            let k = qk.slice(1, heads..heads + kv_heads).reshape(&[n, kv]);
            let mixed = attend(engine, cache, index, &qk.slice(1, 0..heads), &k, &v, wanted)?;
            let Some(mixed) = mixed else { return Ok((None, beside)) };
            let out = engine.scope("output", |s| s.linear(&mixed, &layer.output))?;
            let out = self.norm_after(engine, out, layer.attention_gains.as_ref())?;
            Ok((Some(if beside.is_some() { out } else { engine.add(&last(x, wanted), &out)? }), beside))
        })?;
        let Some(attended) = attended else { return Ok(None) };
        engine.scope("mlp", |engine| {
            let (gated, f) = (style.mlp == Mlp::Gated, style.intermediate);
            let up = match (&layer.up, &beside) {
                (Some(matrix), _) => {
                    let normed = self.norm_before(engine, &attended)?;
                    let name = if gated { "gate_up" } else { "up" };
                    engine.scope(name, |s| s.linear(normed.as_ref().unwrap_or(&attended), matrix))?
                }
                (None, Some(up)) => last(up, wanted),
                (None, None) => unreachable!("the MLP's first matrix stands alone or beside query, key and value"),
            };
            let activated = |s: &mut E, x: &E::Tensor| s.scope("activation", |s| activate(s, style.activation, x));
            let h = if gated {
                let gate = activated(engine, &up.slice(1, 0..f))?;
                engine.scope("gate", |s| s.mul(&gate, &up.slice(1, f..2 * f)))?
            } else {
                activated(engine, &up)?
            };
            let out = engine.scope("down", |s| s.linear(&h, &layer.down))?;
            let out = self.norm_after(engine, out, layer.mlp_gains.as_ref())?;
            let x = if beside.is_some() { engine.add(&last(x, wanted), &attended)? } else { attended };
            engine.add(&x, &out).map(Some)
        })
    }

    /// Query, key and value of `x` (count, width), and the MLP's first outputs if it is in parallel, side by side:
    /// (count, outputs). The cache is told the scores of a scoring head.
    fn project<E: Engine<Weight = W>>(
        &self,
        engine: &mut E,
        cache: &mut KvCache<E>,
        x: &E::Tensor,
    ) -> Result<E::Tensor, engine::Error> {
        let (layer, n) = (self.layer, x.shape()[0]);
        let name = if layer.up.is_some() { "qkv" } else { "qkv_up" };
        let mut normed = self.norm_before(engine, x)?;
        let unnormed = normed.is_none() && layer.scores;
        if unnormed {
            // A scoring head reads a normalised state, which no norm gives here: each token comes as both.
            let h = engine.scope("norm", |s| s.rms_norm(x, self.style.eps))?;
            normed = Some(E::Tensor::concat(0, &[x, &h]));
        }
        let mut out = engine.scope(name, |s| s.linear(normed.as_ref().unwrap_or(x), &layer.qkv))?;
        if layer.scores {
            let (rows, outputs) = (out.shape()[0], out.shape()[1]);
            let scores = out.slice(0, rows - n..rows).slice(1, outputs - self.style.heads.kv_heads..outputs);
            cache.score(self.index, &scores, engine.linear_ceiling(&layer.qkv));
        }
        if unnormed {
            out = out.slice(0, 0..n);
        }
        Ok(out)
    }

    /// `qk` (count, all queries and keys) as heads, (count, heads, head_dim), normalised if the style says so.
    fn heads<E: Engine<Weight = W>>(&self, engine: &mut E, qk: &E::Tensor) -> Result<E::Tensor, engine::Error> {
        let HeadShape { heads, kv_heads, head_dim } = self.style.heads;
        let (n, (q, kv), eps) = (qk.shape()[0], self.style.widths(), self.style.eps);
        let by_head = qk.reshape(&[n, heads + kv_heads, head_dim]);
        let Some(gains) = &self.layer.qk_gains else { return Ok(by_head) };
        let normed = engine.scope("qk norm", |s| {
            let normed = match self.style.qk_norm {
                QkNorm::Whole => {
                    let queries = s.rms_norm(&qk.slice(1, 0..q), eps)?;
                    let keys = s.rms_norm(&qk.slice(1, q..q + kv), eps)?;
                    E::Tensor::concat(1, &[&queries, &keys])
                }
                QkNorm::Head | QkNorm::None => s.rms_norm(&by_head, eps)?.reshape(&[n, q + kv]),
            };
            gain(s, &normed, gains)
        })?;
        Ok(normed.reshape(&[n, heads + kv_heads, head_dim]))
    }

    /// The norm before attention or MLP, whose gain is in the matrix that follows, if there is one.
    fn norm_before<E: Engine<Weight = W>>(
        &self,
        engine: &mut E,
        x: &E::Tensor,
    ) -> Result<Option<E::Tensor>, engine::Error> {
        match self.style.norms {
            Norms::After => Ok(None),
            _ => engine.scope("norm", |s| s.rms_norm(x, self.style.eps)).map(Some),
        }
    }

    /// The norm of what attention or MLP adds to the residual stream, if it has one.
    fn norm_after<E: Engine<Weight = W>>(
        &self,
        engine: &mut E,
        x: E::Tensor,
        gains: Option<&W>,
    ) -> Result<E::Tensor, engine::Error> {
        let Some(gains) = gains else { return Ok(x) };
        let name = if self.style.norms == Norms::Both { "norm after" } else { "norm" };
        engine.scope(name, |s| {
            let normed = s.rms_norm(&x, self.style.eps)?;
            gain(s, &normed, gains)
        })
    }
}
