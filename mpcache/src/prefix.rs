//! Public tokens before a text, whose keys and values the server computes in the clear.
//!
//! Both parties know the tokens of the prefix, so nothing about them is a secret of the client. Their keys and values
//! follow from them and the weights, and are as much the server's secret as the weights are. To the engine they are
//! two more matrices of a layer. Each has a block for every key/value head on its diagonal, and zeros elsewhere,
//! which nobody multiplies ([`WeightSpec::blocks`]):
//!
//! ```text
//! keys   (kv_heads * head_dim, kv_heads * tokens)      queries beside one another -> scores
//! values (kv_heads * tokens, kv_heads * head_dim)      weights beside one another -> their part of the mix
//! ```
//!
//! A private query attends to the prefix and to the private tokens by one softmax. Tokens of the prefix are never
//! evicted, and policies do not see them. **Revealed.** What a product with a weight reveals: nothing.

use std::sync::Arc;

use ndarray::{Array2, Axis, Slice};
use waggle_engine::{Error, MatrixSource, Order, WeightData, WeightLoader, WeightSpec};

use crate::HeadShape;

/// Keys and values of public tokens before a text, as matrices for an engine with weights `W`.
pub struct Prefix<W> {
    pub(crate) tokens: usize,
    /// For each store of a cache, what it holds of the prefix.
    pub(crate) layers: Vec<Arc<PrefixLayer<W>>>,
}

/// The matrices of one layer.
pub(crate) struct PrefixLayer<W> {
    /// The number of tokens that the layer holds.
    pub(crate) held: usize,
    pub(crate) keys: W,
    pub(crate) values: W,
}

/// What a layer holds of the prefix, before an engine computes with it.
#[derive(Clone, Debug)]
pub struct PrefixRows {
    /// Heads of the layer.
    pub heads: HeadShape,
    /// The number of tokens that the layer holds. Public.
    pub held: usize,
    /// Keys and values, (held, kv_heads * head_dim) each. `None` except on the server.
    pub rows: Option<[Array2<f32>; 2]>,
}

impl<W> Prefix<W> {
    /// Makes `loader` prepare the matrices of a prefix of `tokens` tokens, layer by layer, keys before values. `name`
    /// tells prefixes apart where weights are named.
    ///
    /// # Errors
    /// Those of [`WeightLoader::load`].
    pub fn load(
        name: &str,
        tokens: usize,
        layers: &[PrefixRows],
        loader: &mut dyn WeightLoader<Weight = W>,
    ) -> Result<Self, Error> {
        let load = |(layer, PrefixRows { heads, held, rows }): (usize, &PrefixRows)| {
            let HeadShape { kv_heads, head_dim, .. } = *heads;
            let (states, columns) = (kv_heads * head_dim, kv_heads * held);
            let mut matrix = |what: &str, inputs, outputs, of: usize, transposed| {
                let name = format!("prefix {name}, {what} of layer {layer}");
                let spec = WeightSpec { blocks: kv_heads, ..WeightSpec::new(name, inputs, outputs) };
                let blocks = rows.as_ref().map(|rows| Blocks::new(&rows[of], kv_heads, transposed));
                loader.load(&spec, blocks.map(|blocks| WeightData { matrix: Arc::new(blocks), bias: None }))
            };
            let (keys, values) =
                (matrix("keys", states, columns, 0, true)?, matrix("values", columns, states, 1, false)?);
            Ok(Arc::new(PrefixLayer { held: *held, keys, values }))
        };
        let layers = layers.iter().enumerate().map(load).collect::<Result<_, Error>>()?;
        Ok(Prefix { tokens, layers })
    }

    /// The number of tokens of the prefix, which is the position of the first token after it.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// The matrices, in the order in which they were prepared.
    pub fn weights(&self) -> impl Iterator<Item = &W> {
        (0..self.layers.len()).flat_map(|layer| self.weights_of(layer))
    }

    /// The matrices of the store `layer`. None if the layer reads that of another one.
    pub fn weights_of(&self, layer: usize) -> impl Iterator<Item = &W> {
        self.layers.get(layer).into_iter().flat_map(|layer| [&layer.keys, &layer.values])
    }
}

/// A matrix with equal blocks on its diagonal, one for each head.
#[derive(Debug)]
struct Blocks(Vec<Array2<f32>>);

impl Blocks {
    /// The blocks of `rows` (tokens, heads * head_dim): (tokens, head_dim) for each head, or its transpose.
    fn new(rows: &Array2<f32>, heads: usize, transposed: bool) -> Self {
        let width = rows.ncols() / heads;
        let block = |head: usize| {
            let block = rows.slice_axis(Axis(1), Slice::from(head * width..(head + 1) * width));
            if transposed { block.t().as_standard_layout().into_owned() } else { block.to_owned() }
        };
        Blocks((0..heads).map(block).collect())
    }
}

impl MatrixSource for Blocks {
    fn shape(&self) -> (usize, usize) {
        let (rows, columns) = self.0[0].dim();
        (self.0.len() * rows, self.0.len() * columns)
    }

    fn order(&self) -> Order {
        Order::Rows
    }

    fn read(&self, line: usize, from: usize, out: &mut [f32]) {
        let (rows, columns) = self.0[0].dim();
        let (block, first) = (line / rows, line / rows * columns);
        let (start, end) = (from.max(first), (from + out.len()).min(first + columns));
        out.fill(0.0);
        if start < end {
            let own = self.0[block].row(line % rows);
            let own = own.iter().skip(start - first);
            out[start - from..end - from].iter_mut().zip(own).for_each(|(out, x)| *out = *x);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(blocks: Blocks) -> Array2<f32> {
        WeightData { matrix: Arc::new(blocks), bias: None }.array()
    }

    #[test]
    fn each_head_has_a_block() {
        let rows = Array2::from_shape_fn((2, 6), |(t, i)| (10 * t + i + 1) as f32);
        let values = array(Blocks::new(&rows, 3, false));
        let keys = array(Blocks::new(&rows, 3, true));
        assert_eq!((values.dim(), keys.dim()), ((6, 6), (6, 6)));
        for head in 0..3 {
            for ((t, i), x) in rows.indexed_iter().filter(|((_, i), _)| i / 2 == head) {
                assert_eq!((values[[2 * head + t, i]], keys[[i, 2 * head + t]]), (*x, *x));
            }
        }
        assert_eq!(values.iter().chain(&keys).filter(|x| **x == 0.0).count(), 2 * (36 - 12));
        // Pieces of a line begin and end anywhere.
        let mut piece = [9.0; 3];
        Blocks::new(&rows, 3, false).read(2, 1, &mut piece);
        assert_eq!(piece, [0.0, 3.0, 4.0]);
        Blocks::new(&rows, 3, false).read(0, 3, &mut piece);
        assert_eq!(piece, [0.0; 3]);
    }
}
