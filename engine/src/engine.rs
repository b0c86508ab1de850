//! The interface: what a transformer and its cache policies compute with.

use std::ops::Range;

use ndarray::{Array2, ArrayD};

use crate::ceiling::{Ceiling, Origin};
use crate::error::Error;
use crate::layer::Layer;
use crate::logit_bits::LogitBits;
use crate::operand::OperandId;
use crate::tensor::Tensor;
use crate::top_k::Ranking;

/// By how much [`Engine::hide`] lowers a score.
///
/// A score is above -[`MAX_HIDDEN_SCORE`] and a lowered one below [`MAX_HIDDEN_SCORE`] - `HIDE`. They differ by 64 or
/// more, so that every engine gives the lowered one the probability 0.
pub const HIDE: f32 = 320.0;

/// Caps of [`Engine::soft_cap`], from the first to the second.
pub const SOFT_CAPS: [f32; 2] = [1.0, 128.0];

/// Bound on the scores that [`Engine::hide`] takes.
pub const MAX_HIDDEN_SCORE: f32 = 128.0;

const _: () = assert!(HIDE - 2.0 * MAX_HIDDEN_SCORE >= 64.0, "what HIDE says");

/// Which approximation of x Phi(x) a model was trained with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gelu {
    /// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), `gelu_new` of Hugging Face.
    Tanh,
    /// 0.5 x (1 + erf(x / sqrt 2)), `gelu` of Hugging Face.
    Erf,
}

/// The largest and the smallest entries along an axis, of one shape.
#[derive(Clone, Debug)]
pub struct Extrema<T> {
    /// The largest.
    pub max: T,
    /// The smallest.
    pub min: T,
}

/// The right factor of a product, or the entries that are gathered from.
#[derive(Debug)]
pub enum Right<'a, E: Engine + ?Sized> {
    /// A tensor that the engine has not seen before.
    Fresh(&'a E::Tensor),
    /// A cached operand: it holds the tokens of the product with `operand` before, unchanged, less those that were
    /// [cut](Engine::cut) off, and new ones after them. An engine that prepares its products opens less for it.
    Cached {
        /// Its tensor now. The tokens stand along the [axis](crate::OperandKind::axis) that the operand's kind says.
        tensor: &'a E::Tensor,
        /// What the engine remembers of it.
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

/// What a transformer needs, over tensors that only the engine can look into.
///
/// Shapes are row-major; `...` stands for any leading axes. Operations that talk to a peer can fail; all are recorded
/// under the current scope. Shape mismatches are bugs of the caller and panic.
pub trait Engine: 'static {
    /// An activation.
    type Tensor: Tensor + 'static;
    /// A matrix that only the server knows, as a [`WeightLoader`](crate::WeightLoader) makes it for this engine.
    type Weight: Send + Sync;
    /// Which k of the n entries of each row, in an order of their own, where the engine knows them: (rows, k, n).
    type Selection: Clone + Send + Sync + 'static;
    /// What the engine remembers of a cached operand between products. It cannot be copied: a mask that served two
    /// matrices would show how they differ.
    type Operand: Send;

    /// Whether the engine sees its values: [`chosen`](Engine::chosen) then tells a selection. For accuracy studies.
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

    /// x W + b: (..., inputs) -> (..., outputs).
    fn linear(&mut self, x: &Self::Tensor, weight: &Self::Weight) -> Result<Self::Tensor, Error>;

    /// Entrywise sum of tensors of one shape.
    fn add(&mut self, a: &Self::Tensor, b: &Self::Tensor) -> Result<Self::Tensor, Error>;

    /// Entrywise product of tensors of one shape.
    fn mul(&mut self, a: &Self::Tensor, b: &Self::Tensor) -> Result<Self::Tensor, Error>;

    /// Product with a public number.
    fn scale(&mut self, x: &Self::Tensor, by: f32) -> Result<Self::Tensor, Error>;

    /// A cached operand without products so far. Matrices whose rows change take one of the next
    /// [generation](OperandId::generation).
    fn operand(id: OperandId) -> Self::Operand;

    /// The matrix of `operand` has lost its last tokens and has `tokens` or fewer: others may come in their places.
    /// Both parties know how many are left.
    fn cut(operand: &mut Self::Operand, tokens: usize);

    /// The same operand for a plan that goes on in another way; `None` if it holds anything but sizes.
    fn fork(operand: &Self::Operand) -> Option<Self::Operand>;

    /// Batched matrix product: (batch, m, k) x (batch, k, n) -> (batch, m, n).
    fn matmul(&mut self, a: &Self::Tensor, b: Right<Self>) -> Result<Self::Tensor, Error>;

    /// [`Engine::matmul`] for a product that only [`Engine::hide`] and [`Engine::softmax`] look at, whose range its
    /// entries have. Engines that know it may compute no more bits than a softmax sees.
    fn scores(&mut self, queries: &Self::Tensor, keys: Right<Self>) -> Result<Self::Tensor, Error> {
        self.matmul(queries, keys)
    }

    /// A bound on the entries of [`linear`](Engine::linear) by `weight`, whatever it was given: for
    /// [`Ranking::ceiling`].
    fn linear_ceiling(&self, weight: &Self::Weight) -> Ceiling;

    /// x plus public numbers of its shape. Free.
    fn shift(&mut self, x: &Self::Tensor, by: &ArrayD<f32>) -> Result<Self::Tensor, Error>;
    /// Several [`matmul`](Engine::matmul)s, none of which needs the result of another. Between two parties, products
    /// with cached operands that are prepared take the flows of one.
    fn matmul_each(&mut self, products: Vec<(&Self::Tensor, Right<Self>)>) -> Result<Vec<Self::Tensor>, Error> {
        products.into_iter().map(|(a, b)| self.matmul(a, b)).collect()
    }

    /// Several [`scores`](Engine::scores), as [`matmul_each`](Engine::matmul_each) takes several products.
    fn scores_each(&mut self, products: Vec<(&Self::Tensor, Right<Self>)>) -> Result<Vec<Self::Tensor>, Error> {
        products.into_iter().map(|(queries, keys)| self.scores(queries, keys)).collect()
    }

    /// Softmax over the last axis of (..., rows, columns), where row i of `rows` sees only the first `visible[i]`
    /// columns (public, >= 1); the others get probability 0. `visible.len() == rows`.
    fn softmax(&mut self, x: &Self::Tensor, visible: &[usize]) -> Result<Self::Tensor, Error> {
        self.softmax_within(x, &visible.iter().map(|end| 0..*end).collect::<Vec<_>>())
    }

    /// The same, where row i sees only the columns `seen[i]` (public, not empty).
    fn softmax_within(&mut self, x: &Self::Tensor, seen: &[Range<usize>]) -> Result<Self::Tensor, Error>;

    /// c tanh(x / c), entrywise, for a public `cap` c: a score that cannot exceed c.
    ///
    /// Range: |x| < 2^10, and caps from 1 to 128.
    fn soft_cap(&mut self, x: &Self::Tensor, cap: f32) -> Result<Self::Tensor, Error>;

    /// The [`softmax`](Engine::softmax) of several tensors, each with what its rows see. Between two parties it takes
    /// the flows of one.
    fn softmax_each(&mut self, parts: &[(&Self::Tensor, &[usize])]) -> Result<Vec<Self::Tensor>, Error> {
        parts.iter().map(|(x, visible)| self.softmax(x, visible)).collect()
    }

    /// Adds to every column of `x` (..., columns) its entry of `by`. Both parties know these numbers. Free.
    fn add_to_columns(&mut self, x: &Self::Tensor, by: &[f32]) -> Result<Self::Tensor, Error>;

    /// Scores (..., columns) with those of the `hidden` columns lowered by [`HIDE`], so that softmax gives them 0
    /// wherever another is visible. Which columns are hidden the client alone knows and passes as `Some`. Free.
    ///
    /// Range: |x| < [`MAX_HIDDEN_SCORE`], which leaves room for the lowered ones.
    fn hide(&mut self, x: &Self::Tensor, hidden: Option<&[bool]>) -> Result<Self::Tensor, Error>;

    /// GELU, entrywise.
    fn gelu(&mut self, x: &Self::Tensor, form: Gelu) -> Result<Self::Tensor, Error>;

    /// x where it is positive, and 0 elsewhere, entrywise.
    fn relu(&mut self, x: &Self::Tensor) -> Result<Self::Tensor, Error>;

    /// x sigmoid(x), entrywise.
    fn silu(&mut self, x: &Self::Tensor) -> Result<Self::Tensor, Error>;

    /// (x - mean) / sqrt(var + eps) over the last axis. Gain and bias belong to the next weight.
    fn layer_norm(&mut self, x: &Self::Tensor, eps: f32) -> Result<Self::Tensor, Error>;

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
    fn argmax(&mut self, x: &Self::Tensor) -> Result<Option<Vec<usize>>, Error>;

    /// (..., n) -> (...): sums over the last axis. Free.
    fn sum_last(&mut self, x: &Self::Tensor) -> Result<Self::Tensor, Error>;

    /// -x. Free.
    fn negate(&mut self, x: &Self::Tensor) -> Result<Self::Tensor, Error>;

    /// (..., n) -> (...): sums of squares over the last axis, which stay below 2^20.
    fn sum_squares(&mut self, x: &Self::Tensor) -> Result<Self::Tensor, Error>;

    /// |x| entrywise.
    fn abs(&mut self, x: &Self::Tensor) -> Result<Self::Tensor, Error>;

    /// (..., n) -> (...): maximum and minimum over the last axis.
    fn extrema(&mut self, x: &Self::Tensor) -> Result<Extrema<Self::Tensor>, Error>;

    /// A bound on the entries that the operation `origin` returns, whatever it was given: for [`Ranking::ceiling`].
    ///
    /// # Errors
    /// If the engine does not support such an operation, for its magnitude.
    fn ceiling(&self, origin: Origin) -> Result<Ceiling, Error>;

    /// The `how.k` largest entries of each row of (rows, n). What it reveals depends on `how.method`.
    fn top_k(&mut self, x: &Self::Tensor, how: &Ranking) -> Result<Self::Selection, Error>;

    /// The same selection as one-hot rows that no party knows, so that gathering is a matrix product.
    fn one_hot(&mut self, selection: &Self::Selection) -> Result<Self::Selection, Error>;

    /// `second` chooses among the `fan_out` parts of each entry that `first` chose, (rows, k1, n) and
    /// (rows, k2, k1 fan_out): the selection of parts of all entries, (rows, k2, n fan_out).
    fn compose(
        &mut self,
        first: &Self::Selection,
        fan_out: usize,
        second: &Self::Selection,
    ) -> Result<Self::Selection, Error>;

    /// The chosen entries of `from`, (shared rows, n, w): (rows, k, w). Each row of `from` serves rows / shared rows
    /// consecutive rows of the selection. Entries are below 2^`magnitude`, at most 2^24: fewer bits cost less; an
    /// engine in floating point does not need it. The entries of a cached operand are its tokens.
    fn gather(
        &mut self,
        selection: &Self::Selection,
        from: Right<Self>,
        magnitude: u32,
    ) -> Result<Self::Tensor, Error>;

    /// The entries (rows, k, w), |x| < 2^`magnitude`, back where they were chosen: (rows, n, w), zeros elsewhere.
    fn scatter(
        &mut self,
        selection: &Self::Selection,
        x: &Self::Tensor,
        magnitude: u32,
    ) -> Result<Self::Tensor, Error>;

    /// The same choice in the order in which the chosen entries stand: gathering by it is a stable compaction. No
    /// index is revealed.
    fn in_order(&mut self, selection: &Self::Selection) -> Result<Self::Selection, Error>;

    /// The chosen positions of each row, where the engine [sees them](Engine::CLEAR).
    fn chosen(&self, selection: &Self::Selection) -> Option<Vec<Vec<usize>>>;
}
