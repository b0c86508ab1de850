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

mod block;
mod layer;

use engine::Engine;
use mpcache::KvCache;

use self::block::Block;
use self::layer::Layer;
use crate::Error;
use crate::layers::{Input, Rows};
use crate::rope::{Angles, Rope};
use crate::style::{Names, Positions, Style};
use crate::weights::{Builder, Published};

/// A decoder whose matrices are prepared for an engine with weights `W`.
pub(crate) struct Decoder<W> {
    pub(crate) style: Style,
    ropes: Vec<Rope>,
    embedding: W,
    positions: Option<W>,
    layers: Vec<Layer<W>>,
    head: W,
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

    /// Says whether layers have a scoring head.
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
