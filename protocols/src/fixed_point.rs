//! The engines in fixed point: one program over the arithmetic black box, run by three boxes.

use std::any::Any;

use ndarray::{Array2, ArrayD, ArrayViewD};
use waggle_engine::{
    Ceiling, Engine, Error as EngineError, Extrema, Gelu, Layer, LogitBits, OperandId, OperandKind, Origin,
    Precision, Product, Ranking, Right, Select, Tensor, Visible, mix_by_probabilities,
};
use waggle_net::{Channel, Role};

use crate::abb::Abb;
use crate::cached::{CachedMatmul, CachedProduct, Operand};
use crate::error::of_words;
use crate::functions::extrema::EXTREMA_WIDTH;
use crate::functions::max::MAX_WIDTH;
use crate::functions::mix::{self, MixSize};
use crate::functions::selection::{self, payload_rounding};
use crate::functions::softmax;
use crate::functions::top_k::Selection;
use crate::functions::{self, argmax};
use crate::ops::truncate;
use crate::ops::{Linear, Matmul, Reveal, RevealRounded, SumSquares, Truncation};
use crate::preparation::Made;
use crate::session::Session;
use crate::stock::Needs;
use crate::weight::{FixedWeight, MIN_WEIGHT_FRAC};
use crate::words::{Words, signed};
use crate::{Clear, EMBED_FRAC, EMBED_WIDTH, Error, Evaluation, FRAC, Options, TwoParty};

/// Bits of the ring of sums of squares: they are below 2^(SQUARES_WIDTH - 2 - 2 FRAC) = 2^20.
const SQUARES_WIDTH: u32 = 58;

/// The truncation that brings a sum of squares back to an activation.
const SQUARES_ROUNDING: Truncation = Truncation { width: SQUARES_WIDTH, shift: FRAC, out: 64 };

/// Bits of the ring of products of shared matrices: entries are below 2^(MATMUL_WIDTH - 2 - FRAC - NARROW_FRAC) = 512
/// in magnitude. At 44 bits a product fits the smaller HE parameters (N = 4096), which halves its bytes and seconds.
const MATMUL_WIDTH: u32 = 44;

/// Fractional bits to which the left factor of a product of shared matrices is rounded. The rounding is free: see
/// `truncate`.
const NARROW_FRAC: u32 = 15;

/// The truncation that brings a product of matrices back to an activation.
const MATMUL_ROUNDING: Truncation = Truncation { width: MATMUL_WIDTH, shift: NARROW_FRAC, out: 64 };

/// [`MATMUL_ROUNDING`] for scores. The result keeps only the bits of its ring that are left after the shift, so
/// nothing is sent. A softmax looks at no other bits.
const SCORES_ROUNDING: Truncation = Truncation { out: MATMUL_WIDTH - NARROW_FRAC, ..MATMUL_ROUNDING };

const _: () = assert!(SCORES_ROUNDING.out >= MAX_WIDTH, "a softmax looks at so many bits");

/// Bits of a revealed activation: magnitudes below 2^(REVEAL_WIDTH - 1 - FRAC) = 2^25.
const REVEAL_WIDTH: u32 = 44;

/// Fractional bits of the public factor of [`Engine::scale`].
const SCALE_FRAC: u32 = 16;

const _: () = assert!(LogitBits::MAX <= FRAC + MIN_WEIGHT_FRAC, "products have as many fractional bits");
/// A bound on the words that the operation `origin` returns, in units of the last place. It holds for inputs out of
/// range, too, because it follows from the ring of the truncation that made them.
///
/// # Errors
/// [`Error::Width`] for a magnitude that gathering does not support.
pub(crate) fn ceiling(origin: Origin) -> Result<Ceiling, Error> {
    let how = match origin {
        Origin::Product => MATMUL_ROUNDING,
        Origin::Squares => SQUARES_ROUNDING,
        Origin::Probability => softmax::rounding(softmax::MAX_SOFTMAX_COLUMNS),
        Origin::Moved { magnitude } => payload_rounding(magnitude)?,
    };
    Ok(Ceiling::of_units(truncate::ceiling(how)))
}

/// The word that stands for an activation.
fn units(x: f32) -> u64 {
    (f64::from(x) * f64::from(1u32 << FRAC)).round() as i64 as u64
}

/// An engine on activations with [`FRAC`] fractional bits in words of the box `B`.
pub struct FixedPoint<B> {
    abb: B,
}

/// The model between two parties: additive shares, every operation a protocol with the peer.
pub type Secure = FixedPoint<TwoParty>;

/// The model in fixed point but in the clear: it makes all approximations and roundings of [`Secure`], without
/// cryptography. It refuses values outside the range of an operation and names the operation.
pub type Fixed = FixedPoint<Clear>;

impl Secure {
    /// Sets up a session with the peer over `channel`; both pass equal `options`.
    pub fn new(channel: Channel, options: Options) -> Result<Self, Error> {
        Ok(FixedPoint::over(TwoParty::new(Session::new(channel, options)?)))
    }

    /// The channel, to book phases and to send messages that do not belong to the engine.
    pub fn channel(&mut self) -> &mut Channel {
        self.abb.session().channel()
    }

    /// The offline phase: makes all correlations of `needs`, which a plan of the same run lists. The server passes
    /// all its weights, whose names must differ. `progress` is called with what is done so far.
    pub fn prepare(
        &mut self,
        needs: &Needs,
        weights: &[&FixedWeight],
        progress: &mut dyn FnMut(Made),
    ) -> Result<(), Error> {
        let weight = |name: &str| weights.iter().find(|weight| weight.spec.name == name);
        let matrix = |name: &str| weight(name).and_then(|weight| weight.values.as_ref()).map(|v| &v.matrix);
        self.abb.prepare(needs, matrix, progress)
    }

    /// Prepares the continuation of a run, as [`Secure::prepare`] prepares a run. `needs` list what the continuation
    /// takes in addition to the stock. `operands` are the operands of the run's caches. Masks for further products
    /// with these operands are made, too, and replace their masks that are left.
    ///
    /// Both parties call it with equal `needs`, after the same run.
    pub fn prepare_more<'a>(
        &mut self,
        needs: &Needs,
        operands: impl IntoIterator<Item = &'a mut Operand>,
        weights: &[&FixedWeight],
        progress: &mut dyn FnMut(Made),
    ) -> Result<(), Error> {
        let mut operands: Vec<&mut Operand> = operands.into_iter().collect();
        let begun = |id: &OperandId| operands.iter().any(|operand| operand.has_begun() && operand.id() == *id);
        let role = self.channel().role();
        let mut missing = self.abb.stock().missing(needs, role);
        missing.operands.retain(|id, _| !begun(id));
        self.prepare(&missing, weights, progress)?;
        self.abb.prepare_more(needs, operands.iter_mut().map(|operand| &mut **operand))
    }
}

impl Fixed {
    /// A fresh engine.
    #[allow(clippy::new_without_default, reason = "the three engines are made alike")]
    pub fn new() -> Self {
        FixedPoint::over(Clear::new())
    }

    /// An engine in the clear that makes the same approximations as engines whose options say `evaluation`.
    pub fn evaluating(evaluation: Evaluation) -> Self {
        FixedPoint::over(Clear::evaluating(evaluation))
    }
}

impl<B: Abb> FixedPoint<B> {
    /// An engine over the box `abb`.
    pub fn over(abb: B) -> Self {
        FixedPoint { abb }
    }

    /// The box, for operations beyond [`Engine`].
    pub fn abb(&mut self) -> &mut B {
        &mut self.abb
    }

    /// Returns the box without the engine.
    pub fn into_abb(self) -> B {
        self.abb
    }

    /// Words modulo 2^EXTREMA_WIDTH as activations.
    fn widen(&mut self, x: &B::Words) -> Result<B::Words, Error> {
        self.abb.apply(Truncation { width: EXTREMA_WIDTH, shift: 0, out: 64 }, x)
    }

    /// Truncates all `parts`, which are products of matrices, by `how`, with their messages sent together.
    fn rounded(&mut self, parts: Vec<B::Words>, how: Truncation) -> Result<Vec<B::Words>, Error> {
        if let [one] = &parts[..] {
            return Ok(vec![self.abb.apply(how, one).map_err(of_words(FRAC + NARROW_FRAC))?]);
        }
        let flat: Vec<B::Words> = parts.iter().map(|part| part.reshape(&[part.len()])).collect();
        let all = self.abb.apply(how, &B::Words::concat(0, &flat.iter().collect::<Vec<_>>()));
        let all = all.map_err(of_words(FRAC + NARROW_FRAC))?;
        let mut start = 0;
        let pieces = parts.iter().map(|part| {
            let end = start + part.len();
            let piece = all.slice(0, start..end).reshape(&part.shape());
            start = end;
            piece
        });
        Ok(pieces.collect())
    }

    /// The ring of products with the cached `tensor`. In two phases it is the same for all products with the operand,
    /// so that all of them find their masks.
    fn ring_of(&mut self, tensor: &B::Words, operand: &Operand) -> Result<u32, Error> {
        let mixes = operand.id().kind == OperandKind::Values && self.abb.options().preprocess;
        let (Some(tokens), None) = (operand.expected().filter(|_| mixes), operand.ring()) else {
            return Ok(operand.ring().unwrap_or(MATMUL_WIDTH));
        };
        let shape = tensor.shape();
        let [text, few] = MixSize::of_text(tokens, shape[0], shape[2]);
        let (ring, later) = (text.ring(&mut self.abb, MATMUL_WIDTH)?, few.ring(&mut self.abb, MATMUL_WIDTH)?);
        Ok(ring.and(later).unwrap_or(MATMUL_WIDTH))
    }

    /// The ring in which `parts` mix `values` before they are divided, if that costs less than dividing first.
    fn mix_ring(&mut self, parts: &[Visible<B::Words>], values: &[Right<Self>]) -> Result<Option<u32>, Error> {
        let cached = values.iter().map(|right| match right {
            Right::Fresh(_) => None,
            Right::Cached { tensor, operand } => Some((*tensor, &**operand)),
        });
        let Some(cached) = cached.collect::<Option<Vec<_>>>() else { return Ok(None) };
        let Some(&(tensor, operand)) = cached.first() else { return Ok(None) };
        let lengths = softmax::lengths(parts);
        let batch = cached.iter().map(|(tensor, _)| tensor.shape()[0]).sum();
        let (rows, entries, columns) = (lengths.rows(), lengths.total(), lengths.counts().longest());
        let size = MixSize { batch, rows, entries, columns, head_dim: tensor.shape()[2] };
        if !self.abb.options().preprocess {
            // In one phase the products of parts are protocols of their own, which the size of all does not price.
            return if parts.len() > 1 { Ok(None) } else { size.ring(&mut self.abb, MATMUL_WIDTH) };
        }
        let ring = self.ring_of(tensor, operand)?;
        Ok(size.pays(ring).then_some(ring))
    }

    /// x W + b for the matrix W and the bias b of `weight`, with the fractional bits and in the ring of its products.
    fn product(&mut self, x: &B::Words, weight: &FixedWeight) -> Result<B::Words, Error> {
        let (shift, out) = (FRAC - weight.input_frac(), weight.width());
        let product = if shift == 0 {
            self.abb.apply(Linear { weight }, x)
        } else {
            let x = self.abb.apply(Truncation { width: 64, shift, out }, x).map_err(of_words(FRAC))?;
            self.abb.apply(Linear { weight }, &x)
        };
        product.map_err(of_words(weight.product_frac()))
    }

    /// Brings a product with `frac` fractional bits modulo 2^`width` back to an activation.
    fn round(&mut self, x: &B::Words, frac: u32, width: u32) -> Result<B::Words, Error> {
        self.abb.apply(Truncation { width, shift: frac - FRAC, out: 64 }, x).map_err(of_words(frac))
    }
}

/// Methods of the engine that only call a function of its box.
macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty = $function:path;)*) => {$(
        fn $name(&mut self, $($argument: $type),*) -> Result<$result, EngineError> {
            Ok($function(&mut self.abb, $($argument),*)?)
        }
    )*};
}

impl<B: Abb> Engine for FixedPoint<B> {
    type Tensor = B::Words;
    type Weight = FixedWeight;
    type Operand = Operand;

    const CLEAR: bool = B::CLEAR;

    functions! {
        rows(table: &FixedWeight, start: usize, count: usize) -> B::Words = functions::rows;
        softmax_each(parts: &[Visible<B::Words>]) -> Vec<B::Words> = functions::softmax_each;
        mul(a: &B::Words, b: &B::Words) -> B::Words = functions::mul;
        gated(gate: &B::Words, up: &B::Words) -> B::Words = functions::gated;
        hide(x: &B::Words, hidden: Option<&Array2<bool>>) -> B::Words = functions::hide;
        soft_cap(x: &B::Words, cap: f32) -> B::Words = functions::soft_cap;
        gelu(x: &B::Words, form: Gelu) -> B::Words = functions::gelu;
        relu(x: &B::Words) -> B::Words = functions::relu;
        silu(x: &B::Words) -> B::Words = functions::silu;
        rms_norm(x: &B::Words, eps: f32) -> B::Words = functions::rms_norm;
        rope(x: &B::Words, cos: &Array2<f32>, sin: &Array2<f32>) -> B::Words = functions::rope;
    }

    fn enter(&mut self, name: &str) {
        self.abb.enter(name);
    }

    fn leave(&mut self) {
        self.abb.leave();
    }

    fn layer<T: Clone + Send + 'static>(
        &mut self,
        layer: &Layer<FixedWeight>,
        run: impl FnOnce(&mut Self) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        if !B::PLAN {
            return run(self);
        }
        if let Some(output) = self.abb.begin_layer(layer)?.and_then(<dyn Any>::downcast_ref::<T>) {
            return Ok(output.clone());
        }
        let output = run(self)?;
        self.abb.end_layer(Box::new(output.clone()));
        Ok(output)
    }

    fn embed(&mut self, table: &FixedWeight, ids: Option<&[u32]>, count: usize) -> Result<B::Words, EngineError> {
        if table.spec.public {
            return Ok(functions::own_rows(&mut self.abb, table, ids, count)?);
        }
        let rows = functions::embed(&mut self.abb, table, ids, count)?;
        Ok(self.round(&rows, EMBED_FRAC, EMBED_WIDTH)?)
    }

    fn input(&mut self, shape: &[usize], values: Option<ArrayViewD<f32>>) -> Result<B::Words, EngineError> {
        let words = values.map(|values| values.mapv(units));
        Ok(self.abb.input(Role::Client, shape, words.as_ref())?)
    }

    fn linear(&mut self, x: &B::Words, weight: &FixedWeight) -> Result<B::Words, EngineError> {
        let y = self.product(x, weight)?;
        Ok(self.round(&y, weight.product_frac(), weight.width())?)
    }

    /// The result keeps only the bits that are left after the shift, so nothing is sent to round it.
    fn linear_scores(&mut self, x: &B::Words, weight: &FixedWeight) -> Result<B::Words, EngineError> {
        let (y, frac, width) = (self.product(x, weight)?, weight.product_frac(), weight.width());
        let shift = frac - FRAC;
        self.abb.expect_below(&y, 1 << (SCORES_ROUNDING.out - 2 + shift), frac)?;
        let how = Truncation { width, shift, out: (width - shift).min(SCORES_ROUNDING.out) };
        Ok(self.abb.apply(how, &y).map_err(of_words(frac))?)
    }

    /// Products in one ring are brought to the fractional bits of the product that has most, and rounded together.
    ///
    /// Range: each product, and their sum, is below 2^(width - 2) with these fractional bits, which is 2^20 or more.
    fn linear_sum(&mut self, parts: &[(&B::Words, &FixedWeight)]) -> Result<B::Words, EngineError> {
        let (&(_, first), rest) = parts.split_first().expect("at least one product");
        let width = first.width();
        if rest.iter().any(|(_, weight)| weight.width() != width) {
            let products = parts.iter().map(|(x, weight)| self.linear(x, weight)).collect::<Result<Vec<_>, _>>()?;
            return Ok(products.into_iter().reduce(|sum, y| sum.plus(&y)).expect("at least one product"));
        }
        let frac = parts.iter().map(|(_, weight)| weight.product_frac()).fold(0, u32::max);
        let mut sum: Option<B::Words> = None;
        for &(x, weight) in parts {
            let (y, up) = (self.product(x, weight)?, frac - weight.product_frac());
            self.abb.expect_below(&y, 1 << (width - 2 - up), weight.product_frac())?;
            let y = y.times(1 << up);
            sum = Some(sum.map_or_else(|| y.clone(), |sum| sum.plus(&y)));
        }
        Ok(self.round(&sum.expect("at least one product"), frac, width)?)
    }

    fn add(&mut self, a: &B::Words, b: &B::Words) -> Result<B::Words, EngineError> {
        Ok(a.plus(b))
    }

    fn scale(&mut self, x: &B::Words, by: f32) -> Result<B::Words, EngineError> {
        let factor = (f64::from(by) * f64::from(1u32 << SCALE_FRAC)).round() as i64;
        Ok(self.round(&x.times(factor as u64), FRAC + SCALE_FRAC, 64)?)
    }

    fn linear_ceiling(&self, weight: &FixedWeight) -> Ceiling {
        let how = Truncation { width: weight.width(), shift: weight.product_frac() - FRAC, out: 64 };
        Ceiling::of_units(truncate::ceiling(how))
    }

    fn public(&mut self, values: &ArrayD<f32>) -> B::Words {
        self.abb.public(values.shape(), |at| units(values[at]))
    }

    /// Products have [`FRAC`] + `NARROW_FRAC` fractional bits modulo 2^`MATMUL_WIDTH` until they are rounded.
    /// Products with cached operands go together.
    fn matmul_each(
        &mut self,
        products: Vec<Product<Self>>,
        precision: Precision,
    ) -> Result<Vec<B::Words>, EngineError> {
        let narrow = Truncation { width: 64, shift: FRAC - NARROW_FRAC, out: MATMUL_WIDTH };
        let left = products.iter().map(|product| self.abb.apply(narrow, product.left)).collect::<Result<Vec<_>, _>>();
        let left = left.map_err(of_words(FRAC))?;
        let mut out: Vec<Option<B::Words>> = left.iter().map(|_| None).collect();
        let (mut cached, mut places) = (Vec::new(), Vec::new());
        for (i, Product { right, .. }) in products.into_iter().enumerate() {
            match right {
                Right::Fresh(b) => {
                    let product = self.abb.apply(Matmul { width: MATMUL_WIDTH }, (&left[i], b));
                    out[i] = Some(product.map_err(of_words(FRAC + NARROW_FRAC))?);
                }
                Right::Cached { tensor, operand } => {
                    let axis = operand.id().kind.axis();
                    cached.push(CachedProduct { a: &left[i], b: tensor, axis, operand });
                    places.push(i);
                }
            }
        }
        if let Some(CachedProduct { b, operand, .. }) = cached.first() {
            // A product modulo a larger power of two is one modulo 2^MATMUL_WIDTH, too.
            let width = self.ring_of(b, operand)?;
            let products = self.abb.apply(CachedMatmul { width }, cached);
            let products = products.map_err(of_words(FRAC + NARROW_FRAC))?;
            places.into_iter().zip(products).for_each(|(place, product)| out[place] = Some(product));
        }
        let products: Vec<B::Words> = out.into_iter().flatten().collect();
        if precision == Precision::Full {
            return Ok(self.rounded(products, MATMUL_ROUNDING)?);
        }
        for product in &products {
            self.abb.expect_below(product, 1 << (SCORES_ROUNDING.width - 2), FRAC + NARROW_FRAC)?;
        }
        Ok(self.rounded(products, SCORES_ROUNDING)?)
    }

    fn mix_each(
        &mut self,
        parts: &[Visible<B::Words>],
        values: Vec<Right<Self>>,
    ) -> Result<Vec<B::Words>, EngineError> {
        let Some(ring) = self.mix_ring(parts, &values)? else { return mix_by_probabilities(self, parts, values) };
        let cached = values.into_iter().filter_map(|right| match right {
            Right::Fresh(_) => None,
            Right::Cached { tensor, operand } => Some((tensor, operand)),
        });
        Ok(mix::mix_each(&mut self.abb, parts, cached.collect(), ring)?)
    }

    fn reveal(&mut self, x: &B::Words) -> Result<Option<ArrayD<f32>>, EngineError> {
        let scale = f64::from(1u32 << FRAC);
        let opened = self.abb.apply(Reveal { width: REVEAL_WIDTH, to: Role::Client }, x)?;
        Ok(opened.map(|words| words.mapv(|word| (signed(word, REVEAL_WIDTH) as f64 / scale) as f32)))
    }

    fn reveal_linear(
        &mut self,
        x: &B::Words,
        weight: &FixedWeight,
        bits: LogitBits,
    ) -> Result<Option<ArrayD<f32>>, EngineError> {
        let y = self.product(x, weight)?;
        let frac = weight.product_frac();
        let scale = (frac as f64).exp2();
        let opened = self.scope("reveal", |e| {
            e.abb
                .apply(RevealRounded { width: weight.width(), drop: frac - bits.get(), to: Role::Client }, &y)
                .map_err(EngineError::from)
        })?;
        Ok(opened.map(|words| words.mapv(|word| (signed(word, weight.width()) as f64 / scale) as f32)))
    }

    fn argmax(&mut self, x: &B::Words) -> Result<Option<Vec<usize>>, EngineError> {
        let len = x.shape()[1];
        let indices = functions::argmax(&mut self.abb, x)?;
        let opened = self.abb.apply(Reveal { width: argmax::ARGMAX_WIDTH, to: Role::Client }, &indices)?;
        let checked = |&index: &u64| match usize::try_from(index) {
            Ok(at) if at < len => Ok(at),
            _ => Err(Error::Index { index, len }.into()),
        };
        opened.map(|indices| indices.iter().map(checked).collect()).transpose()
    }
}

impl<B: Abb> Select for FixedPoint<B> {
    type Selection = Selection<B::Words>;

    functions! {
        top_k(x: &B::Words, how: &Ranking) -> Self::Selection = selection::choose;
        in_order(chosen: &Self::Selection) -> Self::Selection = selection::in_order;
        scatter(chosen: &Self::Selection, x: &B::Words, magnitude: u32) -> B::Words = selection::scatter;
    }

    fn sum_last(&mut self, x: &B::Words) -> Result<B::Words, EngineError> {
        Ok(x.sum_last())
    }

    fn negate(&mut self, x: &B::Words) -> Result<B::Words, EngineError> {
        Ok(x.times(u64::MAX))
    }

    fn sum_squares(&mut self, x: &B::Words) -> Result<B::Words, EngineError> {
        let squares = self.abb.apply(SumSquares { width: SQUARES_WIDTH }, x).map_err(of_words(2 * FRAC))?;
        Ok(self.abb.apply(SQUARES_ROUNDING, &squares).map_err(of_words(2 * FRAC))?)
    }

    fn abs(&mut self, x: &B::Words) -> Result<B::Words, EngineError> {
        let magnitude = functions::abs(&mut self.abb, x)?;
        Ok(self.widen(&magnitude)?)
    }

    fn extrema(&mut self, x: &B::Words) -> Result<Extrema<B::Words>, EngineError> {
        let shape = x.shape();
        let (&n, leading) = shape.split_last().expect("at least one axis");
        let rows = leading.iter().product();
        let (max, min) = functions::extrema(&mut self.abb, &x.reshape(&[rows, n]))?;
        let both = self.widen(&B::Words::concat(0, &[&max, &min]))?;
        let part = |from: usize| both.slice(0, from..from + rows).reshape(leading);
        Ok(Extrema { max: part(0), min: part(rows) })
    }

    fn ceiling(&self, origin: Origin) -> Result<Ceiling, EngineError> {
        Ok(ceiling(origin)?)
    }

    fn one_hot(&mut self, chosen: &Self::Selection) -> Result<Self::Selection, EngineError> {
        Ok(Selection::OneHot(selection::one_hot(&mut self.abb, chosen)?))
    }

    fn compose(
        &mut self,
        first: &Self::Selection,
        fan_out: usize,
        second: &Self::Selection,
    ) -> Result<Self::Selection, EngineError> {
        let first = selection::one_hot(&mut self.abb, first)?;
        let second = selection::one_hot(&mut self.abb, second)?;
        Ok(Selection::OneHot(selection::compose(&mut self.abb, &first, fan_out, &second)?))
    }

    fn gather(
        &mut self,
        chosen: &Self::Selection,
        from: Right<Self>,
        magnitude: u32,
    ) -> Result<B::Words, EngineError> {
        Ok(match from {
            Right::Fresh(x) => selection::gather(&mut self.abb, chosen, x, magnitude)?,
            Right::Cached { tensor, operand } => {
                selection::gather_cached(&mut self.abb, chosen, tensor, magnitude, operand)?
            }
        })
    }

    fn chosen(&self, chosen: &Self::Selection) -> Option<Vec<Vec<usize>>> {
        selection::chosen(&self.abb, chosen)
    }
}
