//! The interface: what a transformer computes with.

use std::ops::Range;

use ndarray::{Array2, ArrayD, ArrayViewD};

use crate::ceiling::Ceiling;
use crate::error::Error;
use crate::layer::Layer;
use crate::logit_bits::LogitBits;
use crate::operand::CachedOperand;
use crate::tensor::Tensor;

/// The score that [`Engine::hide`] gives to a hidden column, whatever its score was.
pub const HIDDEN_SCORE: f32 = -510.0;

/// The smallest and the largest cap of [`Engine::soft_cap`].
pub const SOFT_CAPS: [f32; 2] = [1.0, 128.0];

/// Bound on the magnitudes of the scores that [`Engine::hide`] does not hide. Such scores exceed [`HIDDEN_SCORE`] by
/// 30 or more, so every engine gives a hidden column the probability 0.
pub const MAX_SHOWN_SCORE: f32 = 480.0;

const _: () = assert!(HIDDEN_SCORE + MAX_SHOWN_SCORE <= -30.0, "what MAX_SHOWN_SCORE says");

/// Which form of x Phi(x) a model was trained with. Phi is the distribution function of the standard normal
/// distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gelu {
    /// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), `gelu_new` of Hugging Face.
    Tanh,
    /// 0.5 x (1 + erf(x / sqrt 2)), `gelu` of Hugging Face.
    Erf,
}

/// The right factor of a product, or the entries that [`gather`](crate::Select::gather) chooses from.
#[derive(Debug)]
pub enum Right<'a, E: Engine + ?Sized> {
    /// A tensor that the engine has not seen before.
    Fresh(&'a E::Tensor),
    /// A cached operand. It begins with the tokens that it had in the previous product with `operand`, unchanged,
    /// though the last of them may have been [taken back](CachedOperand::roll_back). New tokens may follow. An engine
    /// that prepares its products opens only what is new.
    Cached {
        /// The operand's current tensor. Its tokens stand along the [axis](crate::OperandKind::axis) of the operand's
        /// kind.
        tensor: &'a E::Tensor,
        /// The engine's memory of the operand.
        operand: &'a mut E::Operand,
    },
}

impl<'a, E: Engine + ?Sized> Right<'a, E> {
    /// The tensor, cached or not.
    pub fn tensor(&self) -> &'a E::Tensor {
        match self {
            Right::Fresh(tensor) | Right::Cached { tensor, .. } => tensor,
        }
    }
}

/// The two factors of a product of matrices: (batch, m, k) x (batch, k, n).
pub struct Product<'a, E: Engine + ?Sized> {
    /// The left factor.
    pub left: &'a E::Tensor,
    /// The right factor.
    pub right: Right<'a, E>,
}

/// How many bits of a product are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// All bits of an activation.
    Full,
    /// Only the bits that a softmax sees. Such products lie in the range of a softmax and of [`Engine::hide`], and no
    /// other operation takes them.
    Softmax,
}

/// Input of a softmax: scores, and which of them count.
#[derive(Clone, Copy, Debug)]
pub struct Visible<'a, T> {
    /// The scores, (..., rows, columns).
    pub scores: &'a T,
    /// The columns that each row sees: a public range that is not empty. All other columns get probability 0.
    pub seen: &'a [Range<usize>],
    /// Whether the last column is an attention sink. Every row sees it too, and the ranges of `seen` end before it.
    pub sink: bool,
    /// Whether columns may be [hidden](Engine::hide).
    pub hidden: bool,
}

impl<T: Tensor> Visible<'_, T> {
    /// The columns of `x`, which is shaped like the scores, that stand for values: all but the sink's.
    pub fn without_sink(&self, x: &T) -> T {
        let shape = x.shape();
        let (columns, axis) = (shape[shape.len() - 1], shape.len() - 1);
        if self.sink { x.slice(axis, 0..columns - 1) } else { x.clone() }
    }
}

/// The operations of a transformer, on tensors that only the engine can look into. Policies that choose among tokens
/// also need [`Select`](crate::Select).
///
/// Shapes are row-major; `...` stands for any leading axes. Operations that talk to a peer can fail. Every operation
/// is recorded under the current scope. A shape mismatch is a bug of the caller and panics.
pub trait Engine: 'static {
    /// An activation.
    type Tensor: Tensor + 'static;
    /// A weight as a [`WeightLoader`](crate::WeightLoader) makes it for this engine. Only the server knows its
    /// values, unless it is [public](crate::WeightSpec::public).
    type Weight: Send + Sync;
    /// The engine's memory of a cached operand between products.
    type Operand: CachedOperand;

    /// Whether the engine sees the values of its tensors, as accuracy studies need.
    const CLEAR: bool;

    /// Opens the scope `name`. The names of the open scopes are the operation path, which reports and errors quote.
    fn enter(&mut self, name: &str);

    /// Closes the innermost scope.
    fn leave(&mut self);

    /// Runs `steps` inside the scope `name`, which is closed on failure too.
    fn scope<T>(&mut self, name: &str, steps: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error>
    where
        Self: Sized,
    {
        self.enter(name);
        let result = steps(self);
        self.leave();
        result
    }

    /// Runs `layer` of a model. An engine that only counts costs may skip `run` if another layer of the same class
    /// ran in this pass. It then counts the costs of that layer once more, and returns its result.
    fn layer<T: Clone + Send + 'static>(
        &mut self,
        layer: &Layer<Self::Weight>,
        run: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error>
    where
        Self: Sized,
    {
        let _ = layer;
        run(self)
    }

    /// The rows `ids` of `table`: shape (count, outputs). The table has [`inputs`](crate::WeightSpec::inputs) rows.
    /// Only the client knows the ids and passes `Some`. `count` is public.
    fn embed(&mut self, table: &Self::Weight, ids: Option<&[u32]>, count: usize) -> Result<Self::Tensor, Error>;

    /// Rows `start..start + count` of `table`: shape (count, outputs). The indices are public.
    fn rows(&mut self, table: &Self::Weight, start: usize, count: usize) -> Result<Self::Tensor, Error>;

    /// Numbers that only the client knows and passes as `Some`. Their `shape` is public. Costs nothing.
    ///
    /// Range: |x| < 2^10.
    fn input(&mut self, shape: &[usize], values: Option<ArrayViewD<f32>>) -> Result<Self::Tensor, Error>;

    /// x W + b, where `weight` has the matrix W and the bias b: (..., inputs) -> (..., outputs).
    fn linear(&mut self, x: &Self::Tensor, weight: &Self::Weight) -> Result<Self::Tensor, Error>;

    /// The sum of the results of [`linear`](Engine::linear) for pairs of an input and its weight. All outputs have
    /// the same shape. Engines in fixed point round the sum once where they can, instead of each term.
    ///
    /// # Panics
    /// If there are no pairs.
    fn linear_sum(&mut self, parts: &[(&Self::Tensor, &Self::Weight)]) -> Result<Self::Tensor, Error> {
        let (&(x, weight), rest) = parts.split_first().expect("at least one product");
        let first = self.linear(x, weight)?;
        rest.iter().try_fold(first, |sum, &(x, weight)| {
            let y = self.linear(x, weight)?;
            self.add(&sum, &y)
        })
    }

    /// [`linear`](Engine::linear) by a weight that holds keys, for a softmax: see [`Precision::Softmax`].
    fn linear_scores(&mut self, x: &Self::Tensor, weight: &Self::Weight) -> Result<Self::Tensor, Error> {
        self.linear(x, weight)
    }

    /// Entrywise sum of two tensors of the same shape.
    fn add(&mut self, a: &Self::Tensor, b: &Self::Tensor) -> Result<Self::Tensor, Error>;

    /// Entrywise product of two tensors of the same shape.
    fn mul(&mut self, a: &Self::Tensor, b: &Self::Tensor) -> Result<Self::Tensor, Error>;

    /// Entrywise product of an activated `gate` with `up`, for a product with a matrix. Engines in fixed point may
    /// keep fewer fractional bits of either factor than [`mul`](Engine::mul) does.
    fn gated(&mut self, gate: &Self::Tensor, up: &Self::Tensor) -> Result<Self::Tensor, Error> {
        self.mul(gate, up)
    }

    /// Product with a public number.
    fn scale(&mut self, x: &Self::Tensor, by: f32) -> Result<Self::Tensor, Error>;

    /// Public numbers as a tensor. Costs nothing, and neither does adding the tensor.
    fn public(&mut self, values: &ArrayD<f32>) -> Self::Tensor;

    /// Several products of matrices, none of which needs the result of another. Between two parties, all products
    /// with prepared cached operands together take as many flows as a single one.
    fn matmul_each(&mut self, products: Vec<Product<Self>>, precision: Precision)
    -> Result<Vec<Self::Tensor>, Error>;

    /// Batched matrix product: (batch, m, k) x (batch, k, n) -> (batch, m, n).
    fn matmul(&mut self, left: &Self::Tensor, right: Right<Self>) -> Result<Self::Tensor, Error> {
        Ok(self.matmul_each(vec![Product { left, right }], Precision::Full)?.remove(0))
    }

    /// A bound on the entries that [`linear`](Engine::linear) by `weight` returns for any input. It serves
    /// [`Ranking::ceiling`](crate::Ranking::ceiling).
    fn linear_ceiling(&self, weight: &Self::Weight) -> Ceiling;

    /// Softmax over the last axis of several tensors. Between two parties, all together take as many flows as one.
    fn softmax_each(&mut self, parts: &[Visible<Self::Tensor>]) -> Result<Vec<Self::Tensor>, Error>;

    /// Softmax over the last axis of `scores` (..., rows, columns). Row i sees the columns `seen[i]`.
    fn softmax(&mut self, scores: &Self::Tensor, seen: &[Range<usize>]) -> Result<Self::Tensor, Error> {
        Ok(self.softmax_each(&[Visible { scores, seen, sink: false, hidden: false }])?.remove(0))
    }

    /// For each part, the mix of its `values` (batch, columns, n) by the softmax of its scores (batch, rows, columns):
    /// (batch, rows, n). A sink counts in the softmax and has no row in `values`. Between two parties, all parts
    /// together take as many flows as one. An engine may mix first and divide by the sums of the softmax afterwards.
    fn mix_each(
        &mut self,
        parts: &[Visible<Self::Tensor>],
        values: Vec<Right<Self>>,
    ) -> Result<Vec<Self::Tensor>, Error>
    where
        Self: Sized,
    {
        mix_by_probabilities(self, parts, values)
    }

    /// c tanh(x / c), entrywise, for a public `cap` c: a score that cannot exceed c.
    ///
    /// Range: |x| < 2^10, and caps from 1 to 128.
    fn soft_cap(&mut self, x: &Self::Tensor, cap: f32) -> Result<Self::Tensor, Error>;

    /// The scores `x` (batch, rows, columns) with [`HIDDEN_SCORE`] in the `hidden` columns (batch, columns). A
    /// softmax gives these columns 0 wherever another column is visible. Only the client knows which columns are
    /// hidden and passes `Some`.
    ///
    /// Range: |x| < [`MAX_SHOWN_SCORE`] in the other columns. Hidden columns may hold anything.
    fn hide(&mut self, x: &Self::Tensor, hidden: Option<&Array2<bool>>) -> Result<Self::Tensor, Error>;

    /// GELU, entrywise.
    fn gelu(&mut self, x: &Self::Tensor, form: Gelu) -> Result<Self::Tensor, Error>;

    /// x where it is positive, and 0 elsewhere, entrywise.
    fn relu(&mut self, x: &Self::Tensor) -> Result<Self::Tensor, Error>;

    /// x sigmoid(x), entrywise.
    fn silu(&mut self, x: &Self::Tensor) -> Result<Self::Tensor, Error>;

    /// x / sqrt(mean(x^2) + eps) over the last axis. The gain belongs to the next weight.
    fn rms_norm(&mut self, x: &Self::Tensor, eps: f32) -> Result<Self::Tensor, Error>;

    /// Rotary embedding in the "rotate half" convention of Hugging Face: (x1 cos - x2 sin, x2 cos + x1 sin) for the
    /// halves x1, x2 of the last axis. `x` is (count, heads, d); `cos` and `sin` are (count, d/2) and public.
    fn rope(&mut self, x: &Self::Tensor, cos: &Array2<f32>, sin: &Array2<f32>) -> Result<Self::Tensor, Error>;

    /// Opens `x` to the client, which gets `Some`. The server and a plan get `None`.
    fn reveal(&mut self, x: &Self::Tensor) -> Result<Option<ArrayD<f32>>, Error>;

    /// The result of [`linear`](Engine::linear), opened to the client as [`reveal`](Engine::reveal) does. Engines in
    /// fixed point round it to `bits` fractional bits, because the lower bits would tell about the weights. Two
    /// parties round at random.
    fn reveal_linear(
        &mut self,
        x: &Self::Tensor,
        weight: &Self::Weight,
        bits: LogitBits,
    ) -> Result<Option<ArrayD<f32>>, Error> {
        let _ = bits;
        let y = self.linear(x, weight)?;
        self.reveal(&y)
    }

    /// Index of the largest entry of each row of `x` (rows, n), opened to the client alone. Of equal entries, either
    /// may win.
    ///
    /// Range: |x| < 2^11.
    fn argmax(&mut self, x: &Self::Tensor) -> Result<Option<Vec<usize>>, Error>;
}

/// [`Engine::mix_each`] in two steps: the probabilities of all parts, and then their products with the values.
pub fn mix_by_probabilities<E: Engine>(
    engine: &mut E,
    parts: &[Visible<E::Tensor>],
    values: Vec<Right<E>>,
) -> Result<Vec<E::Tensor>, Error> {
    let p = engine.scope("softmax", |e| e.softmax_each(parts))?;
    let p: Vec<_> = p.iter().zip(parts).map(|(p, part)| part.without_sink(p)).collect();
    let products = p.iter().zip(values).map(|(left, right)| Product { left, right }).collect();
    engine.scope("values", |e| e.matmul_each(products, Precision::Full))
}
