//! One model, four engines.
//!
//! A transformer, its generation loop and every cache policy are written once over [`Engine`]. [`Float`] computes in
//! f32 and is the truth; the ring engines compute in Z_2^64 with the approximations of the secure protocols: in one
//! process (`Fixed`), between two parties (`Secure`), or on shapes alone to predict the cost (`Plan`).

mod ceiling;
mod float;
mod ring;
mod top_k;

use ndarray::{Array1, Array2, ArrayD};
use net::Role;

pub use ceiling::Ceiling;
pub use float::Float;
pub use ring::{Fixed, Plan, REVEAL_FRAC, Ring, Secure};
pub use top_k::{Ranking, TopK, UnknownTopK};

use crate::ops::cached::{Axis, Operand};
use crate::{Error, Tensor};

/// By how much [`Engine::hide`] lowers a score. A score is above -[`MAX_HIDDEN_SCORE`] and a lowered one below
/// [`MAX_HIDDEN_SCORE`] - `HIDE`: they differ by more than the [`CUT`](crate::functions::softmax::CUT) from which on a
/// probability is 0, and both stay in the range of softmax.
pub const HIDE: f32 = 320.0;

/// Bound on the scores that [`Engine::hide`] takes.
pub const MAX_HIDDEN_SCORE: f32 = 128.0;

const _: () = assert!(HIDE as f64 - 2.0 * MAX_HIDDEN_SCORE as f64 > crate::functions::softmax::CUT);
const _: () = assert!(HIDE + MAX_HIDDEN_SCORE < 511.0, "softmax takes scores from -2^9 on");

/// Which approximation of x Phi(x) a model was trained with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gelu {
    /// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), `gelu_new` of Hugging Face.
    Tanh,
    /// 0.5 x (1 + erf(x / sqrt 2)), `gelu` of Hugging Face.
    Erf,
}

/// Name and shape of a weight, public; both parties have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightSpec {
    /// Published name, for messages.
    pub name: String,
    /// Length of the input vectors (rows); for a table the number of rows.
    pub inputs: usize,
    /// Length of the output vectors (columns).
    pub outputs: usize,
}

/// Values of a weight: y = x W + b with W of shape (inputs, outputs). Only the server has them.
#[derive(Clone, Debug)]
pub struct WeightData {
    /// W, row-major (inputs, outputs).
    pub matrix: Array2<f32>,
    /// b of length `outputs`; `None` stands for zeros.
    pub bias: Option<Array1<f32>>,
}

/// What a transformer needs, over tensors that only the engine can look into.
///
/// Shapes are row-major; `...` stands for any leading axes. Operations that talk to a peer can fail; all are recorded
/// under the current scope. Shape mismatches are bugs of the caller and panic.
pub trait Engine: 'static {
    /// An activation.
    type Tensor: Tensor + 'static;
    /// A matrix that only the server knows, prepared for this engine.
    type Weight: Send + Sync;
    /// Which k of the n entries of each row, in an order of their own, where the engine knows them: (rows, k, n).
    type Selection: Clone + Send + Sync + 'static;

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

    /// Prepares a weight. `data` is `None` where the weights are not known (the client, a plan).
    /// Refuses values that are not finite or do not fit the fixed point, by name.
    fn weight(&mut self, spec: &WeightSpec, data: Option<WeightData>) -> Result<Self::Weight, Error>;

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

    /// Batched matrix product: (batch, m, k) x (batch, k, n) -> (batch, m, n).
    fn matmul(&mut self, a: &Self::Tensor, b: &Self::Tensor) -> Result<Self::Tensor, Error>;

    /// [`matmul`](Engine::matmul) by keys or values: along `axis` the tokens of the product with `operand` before, and new
    /// ones after them. An engine that prepares its products opens less for it.
    fn matmul_growing(
        &mut self,
        a: &Self::Tensor,
        b: &Self::Tensor,
        axis: Axis,
        operand: &mut Operand,
    ) -> Result<Self::Tensor, Error> {
        let _ = (axis, operand);
        self.matmul(a, b)
    }

    /// Softmax over the last axis of (..., rows, columns), where row i of `rows` sees only the first `visible[i]`
    /// columns (public, >= 1); the others get probability 0. `visible.len() == rows`.
    fn softmax(&mut self, x: &Self::Tensor, visible: &[usize]) -> Result<Self::Tensor, Error>;

    /// Scores (..., columns) with those of the `hidden` columns lowered by [`HIDE`], so that softmax gives them 0 wherever
    /// another is visible. Which columns are hidden the client alone knows and passes as `Some`. Free.
    ///
    /// Range: |x| < [`MAX_HIDDEN_SCORE`], which leaves room for the lowered ones.
    fn hide(&mut self, x: &Self::Tensor, hidden: Option<&[bool]>) -> Result<Self::Tensor, Error>;

    /// GELU, entrywise.
    fn gelu(&mut self, x: &Self::Tensor, form: Gelu) -> Result<Self::Tensor, Error>;

    /// x sigmoid(x), entrywise.
    fn silu(&mut self, x: &Self::Tensor) -> Result<Self::Tensor, Error>;

    /// (x - mean) / sqrt(var + eps) over the last axis. Gain and bias belong to the next weight.
    fn layer_norm(&mut self, x: &Self::Tensor, eps: f32) -> Result<Self::Tensor, Error>;

    /// x / sqrt(mean(x^2) + eps) over the last axis. The gain belongs to the next weight.
    fn rms_norm(&mut self, x: &Self::Tensor, eps: f32) -> Result<Self::Tensor, Error>;

    /// Rotary embedding in the "rotate half" convention of Hugging Face: x is (count, heads, d), `cos` and `sin` are
    /// public (count, d/2): out = (x1 cos - x2 sin, x2 cos + x1 sin) for the halves x1, x2 of the last axis.
    fn rope(&mut self, x: &Self::Tensor, cos: &Array2<f32>, sin: &Array2<f32>) -> Result<Self::Tensor, Error>;

    /// Opens `x` to the party `to`, which gets `Some`. A plan gives `None` to both.
    fn reveal(&mut self, x: &Self::Tensor, to: Role) -> Result<Option<ArrayD<f32>>, Error>;

    /// x W + b, opened to the party `to` as [`reveal`](Engine::reveal) opens it. Between two parties it is rounded to
    /// [`REVEAL_FRAC`] fractional bits, at random: the bits below would tell about weights.
    fn reveal_linear(
        &mut self,
        x: &Self::Tensor,
        weight: &Self::Weight,
        to: Role,
    ) -> Result<Option<ArrayD<f32>>, Error> {
        let y = self.linear(x, weight)?;
        self.reveal(&y, to)
    }

    /// Index of the largest entry of the vector `x`, opened to the client and to nobody else; ties go to either.
    fn argmax(&mut self, x: &Self::Tensor) -> Result<Option<usize>, Error>;

    /// (..., n) -> (...): sums over the last axis. Free.
    fn sum_last(&mut self, x: &Self::Tensor) -> Result<Self::Tensor, Error>;

    /// |x| entrywise.
    fn abs(&mut self, x: &Self::Tensor) -> Result<Self::Tensor, Error>;

    /// (..., n) -> (...): maximum and minimum over the last axis.
    fn extrema(&mut self, x: &Self::Tensor) -> Result<(Self::Tensor, Self::Tensor), Error>;

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

    /// The chosen entries of (x rows, n, w): (rows, k, w). Each row of x serves rows / x rows consecutive rows of the
    /// selection. |x| < 2^`magnitude`, at most 2^24: fewer bits cost less; a clear engine does not need it.
    fn gather(
        &mut self,
        selection: &Self::Selection,
        x: &Self::Tensor,
        magnitude: u32,
    ) -> Result<Self::Tensor, Error>;

    /// [`gather`](Engine::gather) from entries that are those of the gathering with `operand` before, and new ones after
    /// them. An engine that prepares its products opens less for it.
    fn gather_growing(
        &mut self,
        selection: &Self::Selection,
        x: &Self::Tensor,
        magnitude: u32,
        operand: &mut Operand,
    ) -> Result<Self::Tensor, Error> {
        let _ = operand;
        self.gather(selection, x, magnitude)
    }

    /// The entries (rows, k, w), |x| < 2^`magnitude`, back where they were chosen: (rows, n, w), zeros elsewhere.
    fn scatter(
        &mut self,
        selection: &Self::Selection,
        x: &Self::Tensor,
        magnitude: u32,
    ) -> Result<Self::Tensor, Error>;

    /// The same choice in the order in which the chosen entries stand: gathering by it is a stable compaction. No index
    /// is revealed.
    fn in_order(&mut self, selection: &Self::Selection) -> Result<Self::Selection, Error>;

    /// The chosen positions of each row, where the engine [sees them](Engine::CLEAR).
    fn chosen(&self, selection: &Self::Selection) -> Option<Vec<Vec<usize>>>;
}
