//! The interface: what a transformer computes with.

use std::ops::Range;

use ndarray::{Array2, ArrayD, ArrayViewD};

use crate::ceiling::Ceiling;
use crate::error::Error;
use crate::layer::Layer;
use crate::logit_bits::LogitBits;
use crate::operand::CachedOperand;
use crate::tensor::Tensor;

/// The score that [`Engine::hide`] gives to a hidden column, whatever it was.
pub const HIDDEN_SCORE: f32 = -510.0;

/// Caps of [`Engine::soft_cap`], from the first to the second.
pub const SOFT_CAPS: [f32; 2] = [1.0, 128.0];

/// Bound on the scores that [`Engine::hide`] leaves. They lie above [`HIDDEN_SCORE`] by 30 or more, so that every
/// engine gives a hidden column the probability 0.
pub const MAX_SHOWN_SCORE: f32 = 480.0;

const _: () = assert!(HIDDEN_SCORE + MAX_SHOWN_SCORE <= -30.0, "what MAX_SHOWN_SCORE says");

/// Which approximation of x Phi(x) a model was trained with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gelu {
    /// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), `gelu_new` of Hugging Face.
    Tanh,
    /// 0.5 x (1 + erf(x / sqrt 2)), `gelu` of Hugging Face.
    Erf,
}

/// The right factor of a product, or the entries that are gathered from.
#[derive(Debug)]
pub enum Right<'a, E: Engine + ?Sized> {
    /// A tensor that the engine has not seen before.
    Fresh(&'a E::Tensor),
    /// A cached operand: it holds the tokens of the product with `operand` before, unchanged, less those that were
    /// [taken back](CachedOperand::roll_back), and new ones after them. An engine that prepares its products opens
    /// less for it.
    Cached {
        /// Its tensor now. The tokens stand along the [axis](crate::OperandKind::axis) that the operand's kind says.
        tensor: &'a E::Tensor,
        /// The engine's memory of it.
        operand: &'a mut E::Operand,
    },
}

impl<'a, E: Engine + ?Sized> Right<'a, E> {
    /// Its tensor, cached or not.
    pub fn tensor(&self) -> &'a E::Tensor {
        match self {
            Right::Fresh(tensor) | Right::Cached { tensor, .. } => tensor,
        }
    }
}

/// Factors of a product of matrices: (batch, m, k) x (batch, k, n).
pub struct Product<'a, E: Engine + ?Sized> {
    /// The left one.
    pub left: &'a E::Tensor,
    /// The right one.
    pub right: Right<'a, E>,
}

/// The bits of products that are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// All of an activation.
    Full,
    /// As many as a softmax sees: only [`Engine::hide`] and the softmax look at the products, whose range they have.
    Softmax,
}

/// Scores before a softmax.
#[derive(Clone, Copy, Debug)]
pub struct Visible<'a, T> {
    /// (..., rows, columns).
    pub scores: &'a T,
    /// The columns that each of the rows sees, public and not empty. The others get probability 0.
    pub seen: &'a [Range<usize>],
    /// The last column is that of a sink: every row sees it besides, and `seen` ends before it.
    pub sink: bool,
    /// Columns may be [hidden](Engine::hide).
    pub hidden: bool,
}

/// The operations of a transformer, over tensors that only the engine can look into. Policies that choose among
/// tokens need [`Select`](crate::Select).
///
/// Shapes are row-major; `...` stands for any leading axes. Operations that talk to a peer can fail; all are recorded
/// under the current scope. Shape mismatches are bugs of the caller and panic.
pub trait Engine: 'static {
    /// An activation.
    type Tensor: Tensor + 'static;
    /// A matrix that only the server knows, or one that is [public](crate::WeightSpec::public), as a
    /// [`WeightLoader`](crate::WeightLoader) makes it for this engine.
    type Weight: Send + Sync;
    /// The engine's memory of a cached operand between products.
    type Operand: CachedOperand;

    /// Whether the engine sees its values, for accuracy studies.
    const CLEAR: bool;

    /// Opens the scope `name` of the operation path, for reports and errors.
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

    /// Runs `layer` of a model. An engine that only counts may do so by what the first layer of its class took in
    /// this pass, and return what that one returned; `run` is then not called.
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

    /// Rows `ids` of the table `table` (inputs = number of rows): shape (count, outputs). Only the client knows the
    /// ids and passes `Some`; `count` is public.
    fn embed(&mut self, table: &Self::Weight, ids: Option<&[u32]>, count: usize) -> Result<Self::Tensor, Error>;

    /// Rows `start..start + count` of the table, public indices: shape (count, outputs).
    fn rows(&mut self, table: &Self::Weight, start: usize, count: usize) -> Result<Self::Tensor, Error>;

    /// Numbers that only the client knows and passes as `Some`; their `shape` is public. Free.
    ///
    /// Range: |x| < 2^10.
    fn input(&mut self, shape: &[usize], values: Option<ArrayViewD<f32>>) -> Result<Self::Tensor, Error>;

    /// x W + b: (..., inputs) -> (..., outputs).
    fn linear(&mut self, x: &Self::Tensor, weight: &Self::Weight) -> Result<Self::Tensor, Error>;

    /// The sum of [`linear`](Engine::linear) over pairs of an input and its weight, of one shape of outputs. Engines
    /// in fixed point round it once, if they can.
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

    /// Entrywise sum of tensors of one shape.
    fn add(&mut self, a: &Self::Tensor, b: &Self::Tensor) -> Result<Self::Tensor, Error>;

    /// Entrywise product of tensors of one shape.
    fn mul(&mut self, a: &Self::Tensor, b: &Self::Tensor) -> Result<Self::Tensor, Error>;

    /// Product with a public number.
    fn scale(&mut self, x: &Self::Tensor, by: f32) -> Result<Self::Tensor, Error>;

    /// Public numbers as a tensor. Free, as is adding them.
    fn public(&mut self, values: &ArrayD<f32>) -> Self::Tensor;

    /// Several products of matrices, none of which needs the result of another. Between two parties, products with
    /// cached operands that are prepared take the flows of one.
    fn matmul_each(&mut self, products: Vec<Product<Self>>, precision: Precision)
    -> Result<Vec<Self::Tensor>, Error>;

    /// Batched matrix product: (batch, m, k) x (batch, k, n) -> (batch, m, n).
    fn matmul(&mut self, left: &Self::Tensor, right: Right<Self>) -> Result<Self::Tensor, Error> {
        Ok(self.matmul_each(vec![Product { left, right }], Precision::Full)?.remove(0))
    }

    /// A bound on the entries of [`linear`](Engine::linear) by `weight`, whatever it was given: for
    /// [`Ranking::ceiling`](crate::Ranking::ceiling).
    fn linear_ceiling(&self, weight: &Self::Weight) -> Ceiling;

    /// Softmax over the last axis of several tensors. Between two parties it takes the flows of one.
    fn softmax_each(&mut self, parts: &[Visible<Self::Tensor>]) -> Result<Vec<Self::Tensor>, Error>;

    /// Softmax over the last axis of `scores` (..., rows, columns), of which row i sees the columns `seen[i]`.
    fn softmax(&mut self, scores: &Self::Tensor, seen: &[Range<usize>]) -> Result<Self::Tensor, Error> {
        Ok(self.softmax_each(&[Visible { scores, seen, sink: false, hidden: false }])?.remove(0))
    }

    /// c tanh(x / c), entrywise, for a public `cap` c: a score that cannot exceed c.
    ///
    /// Range: |x| < 2^10, and caps from 1 to 128.
    fn soft_cap(&mut self, x: &Self::Tensor, cap: f32) -> Result<Self::Tensor, Error>;

    /// Scores (batch, rows, columns) with [`HIDDEN_SCORE`] in the `hidden` columns (batch, columns), so that softmax
    /// gives them 0 wherever another is visible. Which columns are hidden the client alone knows and passes as
    /// `Some`.
    ///
    /// Range: |x| < [`MAX_SHOWN_SCORE`] in the other columns. Those that are hidden may hold anything.
    fn hide(&mut self, x: &Self::Tensor, hidden: Option<&Array2<bool>>) -> Result<Self::Tensor, Error>;

    /// GELU, entrywise.
    fn gelu(&mut self, x: &Self::Tensor, form: Gelu) -> Result<Self::Tensor, Error>;

    /// x where it is positive, and 0 elsewhere, entrywise.
    fn relu(&mut self, x: &Self::Tensor) -> Result<Self::Tensor, Error>;

    /// x sigmoid(x), entrywise.
    fn silu(&mut self, x: &Self::Tensor) -> Result<Self::Tensor, Error>;

    /// x / sqrt(mean(x^2) + eps) over the last axis. The gain belongs to the next weight.
    fn rms_norm(&mut self, x: &Self::Tensor, eps: f32) -> Result<Self::Tensor, Error>;

    /// Rotary embedding in the "rotate half" convention of Hugging Face: x is (count, heads, d), `cos` and `sin` are
    /// public (count, d/2): out = (x1 cos - x2 sin, x2 cos + x1 sin) for the halves x1, x2 of the last axis.
    fn rope(&mut self, x: &Self::Tensor, cos: &Array2<f32>, sin: &Array2<f32>) -> Result<Self::Tensor, Error>;

    /// Opens `x` to the client, which gets `Some`. A plan gives `None`.
    fn reveal(&mut self, x: &Self::Tensor) -> Result<Option<ArrayD<f32>>, Error>;

    /// x W + b, opened to the client as [`reveal`](Engine::reveal) opens it. Engines in fixed point round it to
    /// `bits` fractional bits, two parties at random: its lowest bits would tell about weights.
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

    /// Index of the largest entry of each row of `x` (rows, n), opened to the client and to nobody else; ties go to
    /// either.
    ///
    /// Range: |x| < 2^11.
    fn argmax(&mut self, x: &Self::Tensor) -> Result<Option<Vec<usize>>, Error>;
}
