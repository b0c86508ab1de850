//! Keys and values of the heads of a layer that hold the same tokens.

use ndarray::ArrayD;
use waggle_engine::{CachedOperand, Engine, OperandId, OperandKind, Tensor};

use crate::HeadShape;
use crate::heads::take;

/// Keys and values of the key/value heads of a layer that hold the same tokens: all heads, or a part of them.
pub struct Part<E: Engine> {
    heads: Vec<usize>,
    shape: HeadShape,
    /// Keys and values, (tokens, heads * head_dim) each; `None` in an empty part.
    kv: Option<(E::Tensor, E::Tensor)>,
    /// What the engine remembers of the rows as operands, as long as rows are only appended.
    pub(crate) operands: Operands<E>,
    merged: Option<Merged>,
    pub(crate) guarded: Guarded,
}

/// The tokens at both ends of the prompt that no eviction takes. They are the first rows of a part.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Guarded {
    /// The number of tokens at each end, once an eviction has asked for it.
    pub(crate) each: Option<usize>,
    /// The ends of the prompt whose tokens are the first rows.
    pub(crate) ends: usize,
}

impl Guarded {
    /// The number of guarded rows.
    pub(crate) fn rows(self) -> usize {
        self.each.unwrap_or(0) * self.ends
    }
}

/// A row that stands for several tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merged {
    /// The index of the row.
    pub row: usize,
    /// The number of tokens that it stands for.
    pub tokens: usize,
}

impl Merged {
    /// What to add to scores of the shape `shape` (..., rows): ln n in the column of the row that stands for n
    /// tokens, because softmax counts n equal tokens as one with a score that is larger by ln n.
    pub(crate) fn weights(self, shape: &[usize]) -> ArrayD<f32> {
        let weight = (self.tokens as f64).ln() as f32;
        ArrayD::from_shape_fn(shape, |at| if at[shape.len() - 1] == self.row { weight } else { 0.0 })
    }
}

/// A matrix, and what the engine remembers of it as an operand.
pub(crate) struct CachedMatrix<'a, E: Engine> {
    pub(crate) tensor: E::Tensor,
    pub(crate) operand: &'a mut E::Operand,
}

/// What the engine remembers of keys and of values, an operand for each.
///
/// Rewritten rows belong to the next generation of operands, which has fresh masks: a reused mask would reveal
/// whether a row changed, and by how much. A policy that evicts one hidden token per step therefore rewrites all
/// rows: if it rewrote only one, that would give away which token went.
pub(crate) struct Operands<E: Engine> {
    layer: usize,
    part: usize,
    generation: usize,
    /// The number of tokens that operands of every generation may have, if it is known.
    expected: Option<usize>,
    pub(crate) keys: E::Operand,
    pub(crate) values: E::Operand,
    pub(crate) clusters: E::Operand,
}

impl<E: Engine> Operands<E> {
    fn new(layer: usize, part: usize, generation: usize, expected: Option<usize>) -> Self {
        let operand = |kind| {
            let mut operand = E::Operand::new(OperandId { layer, kind, generation, part });
            expected.iter().for_each(|tokens| operand.expect(*tokens));
            operand
        };
        Operands {
            layer,
            part,
            generation,
            expected,
            keys: operand(OperandKind::Keys),
            values: operand(OperandKind::Values),
            clusters: operand(OperandKind::Clusters),
        }
    }

    fn fork(&self) -> Option<Self> {
        let Operands { keys, values, clusters, .. } = self;
        Some(Operands { keys: keys.fork()?, values: values.fork()?, clusters: clusters.fork()?, ..*self })
    }
}

impl<E: Engine> Part<E> {
    /// The empty part `index` of layer `layer`, with the key/value heads `heads` of the layer.
    pub(crate) fn new(layer: usize, index: usize, heads: Vec<usize>, shape: HeadShape) -> Self {
        let operands = Operands::new(layer, index, 0, None);
        Part { heads, shape, kv: None, operands, merged: None, guarded: Guarded::default() }
    }

    pub(crate) fn fork(&self) -> Option<Self> {
        let operands = self.operands.fork()?;
        Some(Part { heads: self.heads.clone(), kv: self.kv.clone(), operands, ..*self })
    }

    /// The key/value heads of the part.
    pub fn heads(&self) -> &[usize] {
        &self.heads
    }

    /// The entries of this part's heads along `axis` of `x`, which has one entry for each head of the layer.
    pub fn own<T: Tensor>(&self, x: &T, axis: usize) -> T {
        if self.heads.len() == self.shape.kv_heads { x.clone() } else { take(x, axis, &self.heads) }
    }

    /// States, before the first token, that the part will hold up to `tokens` tokens.
    pub(crate) fn expect(&mut self, tokens: usize) {
        let Operands { layer, part, generation, .. } = self.operands;
        self.operands = Operands::new(layer, part, generation, Some(tokens));
    }

    /// Appends this part's columns of the rows of new tokens, (new tokens, kv_heads * head_dim) each.
    pub(crate) fn append(&mut self, k: &E::Tensor, v: &E::Tensor) {
        let HeadShape { kv_heads, head_dim, .. } = self.shape;
        let own = |x: &E::Tensor| {
            if self.heads.len() == kv_heads {
                return x.clone();
            }
            let new = x.shape()[0];
            let own = take(&x.reshape(&[new, kv_heads, head_dim]), 1, &self.heads);
            own.reshape(&[new, self.heads.len() * head_dim])
        };
        let (k, v) = (own(k), own(v));
        match &mut self.kv {
            Some((keys, values)) => {
                keys.append(&k);
                values.append(&v);
            }
            None => self.kv = Some((k, v)),
        }
    }

    /// Replaces all rows by `keys` and `values`. The row `merged`, if there is one, stands for several tokens.
    pub(crate) fn replace(&mut self, keys: E::Tensor, values: E::Tensor, merged: Option<Merged>) {
        assert_eq!(keys.shape(), values.shape());
        self.kv = Some((keys, values));
        let Operands { layer, part, generation, expected, .. } = self.operands;
        self.operands = Operands::new(layer, part, generation + 1, expected);
        self.merged = merged;
    }

    /// The row that stands for several tokens, if there is one.
    pub fn merged(&self) -> Option<Merged> {
        self.merged
    }

    /// Takes back the last `dropped` tokens. Nothing happens in a part without tokens.
    pub(crate) fn roll_back(&mut self, dropped: usize) {
        let Some((keys, values)) = &mut self.kv else { return };
        let kept = keys.shape()[0] - dropped;
        (*keys, *values) = (keys.slice(0, 0..kept), values.slice(0, 0..kept));
        self.operands.keys.roll_back(kept);
        self.operands.values.roll_back(kept);
    }

    /// The keys, (rows, heads * head_dim). Panics on an empty part.
    pub fn keys(&self) -> &E::Tensor {
        &self.kv.as_ref().expect("a store is read after its first tokens").0
    }

    /// The values, (rows, heads * head_dim). Panics on an empty part.
    pub fn values(&self) -> &E::Tensor {
        &self.kv.as_ref().expect("a store is read after its first tokens").1
    }

    /// The right operand of the scores: keys by head and transposed, (heads, head_dim, rows).
    pub(crate) fn cached_keys(&mut self) -> CachedMatrix<'_, E> {
        let tensor = by_head(self.keys(), self.heads.len(), self.shape.head_dim).permute(&[0, 2, 1]);
        CachedMatrix { tensor, operand: &mut self.operands.keys }
    }

    /// The right operand of the mixes: values by head, see [`Part::values_by_head`].
    pub(crate) fn cached_values(&mut self) -> CachedMatrix<'_, E> {
        CachedMatrix { tensor: self.values_by_head(), operand: &mut self.operands.values }
    }

    /// Values by head, (heads, rows, head_dim).
    pub fn values_by_head(&self) -> E::Tensor {
        by_head(self.values(), self.heads.len(), self.shape.head_dim)
    }

    /// The number of rows: one for each kept token, and one that stands for several tokens if there is such a row.
    pub fn len(&self) -> usize {
        self.kv.as_ref().map_or(0, |(k, _)| k.shape()[0])
    }

    /// Whether the part has no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Divides rows into heads: (tokens, heads * head_dim) -> (heads, tokens, head_dim).
pub(crate) fn by_head<T: Tensor>(x: &T, heads: usize, head_dim: usize) -> T {
    x.reshape(&[x.shape()[0], heads, head_dim]).permute(&[1, 0, 2])
}
