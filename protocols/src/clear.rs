//! The arithmetic black box in the clear: one process, exact integers, every range checked.
//!
//! [`Clear`] is the naive twin that the protocols are tested against, and the oracle that tells where a model leaves
//! the ranges of its functions: between two parties an overflow is invisible, here it is an [`engine::Error::Range`] with the
//! operation's path.

use ndarray::{Array2, Array3, ArrayD, Axis, Ix1, Ix2, Ix3, IxDyn, Zip, s};
use net::Role;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rayon::prelude::*;

use crate::abb::{Abb, Table, Tabulated, Truncation};
use crate::ops::masked::table::{MaskedShape, MaskedTable};
use crate::ops::quickselect::random_orders;
use crate::two_party::{keys_shape, shuffle_widths, table_rows};
use crate::weight::{FixedValues, FixedWeight};
use crate::words::{mask, signed};
use crate::{EMBED_FRAC, EMBED_WIDTH, Error, Evaluate, LINEAR_WIDTH, Tensor, WeightSpec};

/// Exact operations on visible values.
///
/// A word is the value itself, sign-extended to 64 bits from the width of the operation that made it. Multiplications
/// compute over the integers and refuse a result that is not a signed `width`-bit value; truncations and comparisons
/// refuse inputs outside their ranges. Truncation rounds to nearest.
#[derive(Debug, Default)]
pub struct Clear {
    path: Vec<String>,
    /// Permutations drawn so far: the seed of the next, so that runs are repeatable.
    drawn: u64,
    evaluate: Evaluate,
}

type W = ArrayD<u64>;

/// Permutations of the items of several rows.
#[derive(Clone)]
pub struct Orders {
    n: usize,
    /// Output j of a row is its input `sources[row][j]`.
    sources: Vec<Vec<usize>>,
}

impl Clear {
    /// A box at the root of the operation path.
    pub fn new() -> Self {
        Self::default()
    }

    /// The twin of boxes that evaluate functions by `evaluate`.
    pub fn evaluating(evaluate: Evaluate) -> Self {
        Clear { evaluate, ..Self::default() }
    }

    /// The function of `table` of a word at position `i`; `None` outside the range. The split of the word is mixed from
    /// both, so that every window and every split is exercised.
    fn looked_up(table: &impl Table, v: u64, i: usize) -> Option<u64> {
        let (index_bits, low_bits) = (table.index_bits(), table.low_bits());
        let constant = usize::from(table.has_constant());
        let factor_bits = table.factor_bits();
        let mut factors = vec![0; factor_bits.len()];
        let mut coefficients = vec![0; factor_bits.len() + constant];
        let v = v & mask(index_bits + low_bits);
        let (high, low) = (v >> low_bits, v & mask(low_bits));
        if high == mask(index_bits) {
            return None;
        }
        let receiver = mixed(v, i) & mask(low_bits);
        let sender = low.wrapping_sub(receiver) & mask(low_bits);
        let carry = (sender + receiver) >> low_bits;
        table.factors(receiver, &mut factors);
        table.coefficients(high as i64 - carry as i64, sender, &mut coefficients);
        debug_assert!(factors.iter().zip(&factor_bits).all(|(f, &b)| *f <= mask(b)), "factors exceed their size");
        let sum = if constant == 1 { coefficients[0] } else { 0 };
        let terms = coefficients[constant..].iter().zip(&factors);
        Some(terms.fold(sum, |sum, (c, p)| sum.wrapping_add(c.wrapping_mul(*p))))
    }

    /// The same for a table on masked words.
    fn masked(table: &MaskedTable, v: u64, i: usize) -> Option<u64> {
        let MaskedShape { index_bits, low_bits, .. } = table.shape();
        let v = v & mask(index_bits + low_bits);
        if v >> low_bits >= mask(index_bits) - 1 {
            return None;
        }
        let rho = [mixed(v, i), mixed(!v, i)].map(|mixed| mixed & mask(low_bits));
        let rest = v.wrapping_sub(rho[0]).wrapping_sub(rho[1]);
        Some(table.value(rest >> low_bits, rest & mask(low_bits), rho))
    }

    fn out_of_range(&self, step: &str, value: i128, low: i128, high: i128) -> Error {
        let path = self.path.iter().map(String::as_str).chain([step]).collect::<Vec<_>>().join("/");
        engine::Error::Range { path, value: value as f64, low: low as f64, high: high as f64 }.into()
    }

    /// x / 2^shift, rounded to nearest, of the signed `width`-bit values x, if |x| < 2^(width - 2) for each.
    fn rounded(&self, step: &str, x: &W, width: u32, shift: u32) -> Result<ArrayD<i64>, Error> {
        let bound = 1i64 << (width - 2);
        if let Some(v) = x.iter().map(|&v| signed(v, width)).find(|&v| v >= bound || v <= -bound) {
            return Err(self.out_of_range(step, v.into(), (1 - bound).into(), (bound - 1).into()));
        }
        // |v| < 2^(width - 2) <= 2^62, so that adding half a unit does not overflow.
        let half = if shift == 0 { 0 } else { 1i64 << (shift - 1) };
        Ok(x.mapv(|v| (signed(v, width) + half) >> shift))
    }

    /// The exact values as words, if each is a signed `width`-bit value.
    fn fitted(&self, step: &str, exact: ArrayD<i128>, width: u32) -> Result<W, Error> {
        let high = (1i128 << (width - 1)) - 1;
        match exact.iter().find(|&&v| v > high || v < -high - 1) {
            Some(&v) => Err(self.out_of_range(step, v, -high - 1, high)),
            None => Ok(exact.mapv(|v| v as u64)),
        }
    }

    /// Exact (m, k) x (k, n) products over a batch, fitted into `width` bits.
    fn products(&self, step: &str, a: &Array3<i64>, b: &Array3<i64>, width: u32) -> Result<W, Error> {
        let (batch, m, k) = a.dim();
        let n = b.dim().2;
        let largest = |x: &Array3<i64>| x.iter().fold(0, |l, v| l.max(v.unsigned_abs()));
        let bound = (u128::from(largest(a)) * u128::from(largest(b))).saturating_mul(k as u128);
        let mut out = Array3::<i128>::zeros((batch, m, n));
        for ((a, b), mut out) in a.outer_iter().zip(b.outer_iter()).zip(out.outer_iter_mut()) {
            let block = n.div_ceil(rayon::current_num_threads()).max(1);
            let blocks: Vec<_> = out.axis_chunks_iter_mut(Axis(1), block).collect();
            blocks.into_par_iter().enumerate().for_each(|(j, mut out)| {
                let b = b.slice(ndarray::s![.., j * block..(j * block + out.ncols())]);
                for (a, mut out) in a.rows().into_iter().zip(out.rows_mut()) {
                    if bound < 1 << 63 {
                        let mut sums = vec![0i64; out.len()];
                        for (&a, b) in a.iter().zip(b.rows()) {
                            sums.iter_mut().zip(b).for_each(|(s, &b)| *s += a * b);
                        }
                        out.iter_mut().zip(sums).for_each(|(o, s)| *o = i128::from(s));
                    } else {
                        for (&a, b) in a.iter().zip(b.rows()) {
                            out.iter_mut().zip(b).for_each(|(o, &b)| *o += i128::from(a) * i128::from(b));
                        }
                    }
                }
            });
        }
        self.fitted(step, out.into_dyn(), width)
    }

    /// The integers of a weight, which a box in the clear always has.
    fn values<'a>(&self, weight: &'a FixedWeight) -> Result<&'a FixedValues, Error> {
        weight.values.as_ref().ok_or_else(|| engine::Error::NoValues { tensor: weight.spec.name.clone() }.into())
    }
}

fn integers(x: &W, width: u32) -> ArrayD<i64> {
    x.mapv(|v| signed(v, width))
}

/// A well mixed function of x and i: shares of the same value differ from entry to entry, runs are repeatable.
fn mixed(x: u64, i: usize) -> u64 {
    let z = (x ^ (i as u64).rotate_left(32)).wrapping_add(0x9E37_79B9_7F4A_7C15).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (z ^ (z >> 29)).wrapping_mul(0x94D0_49BB_1331_11EB) >> 20
}

impl Abb for Clear {
    type Words = W;
    type Bits = ArrayD<u8>;
    const CLEAR: bool = true;
    type Selector = ArrayD<u8>;
    type Permutations = Orders;

    fn enter(&mut self, name: &str) {
        self.path.push(name.to_owned());
    }

    fn leave(&mut self) {
        self.path.pop();
    }

    fn public(&mut self, values: &ArrayD<u64>) -> W {
        values.clone()
    }

    fn constant(&mut self, shape: &[usize], value: u64) -> W {
        ArrayD::from_elem(IxDyn(shape), value)
    }

    fn add_public(&mut self, x: &W, value: u64) -> W {
        x.mapv(|v| v.wrapping_add(value))
    }

    fn input(&mut self, owner: Role, shape: &[usize], values: Option<&W>) -> Result<W, Error> {
        let error = |got: &[usize]| engine::Error::Shape {
            tensor: format!("input of the {owner:?}"),
            expected: shape.to_vec(),
            got: got.to_vec(),
        };
        match values {
            Some(values) if values.shape() == shape => Ok(values.clone()),
            Some(values) => Err(error(values.shape()).into()),
            None => Err(error(&[]).into()),
        }
    }

    fn not(&mut self, bits: &ArrayD<u8>) -> ArrayD<u8> {
        bits.mapv(|b| b ^ 1)
    }

    fn xor(&mut self, a: &ArrayD<u8>, b: &ArrayD<u8>) -> ArrayD<u8> {
        assert_eq!(a.shape(), b.shape(), "shapes of an exclusive or");
        Zip::from(a).and(b).map_collect(|a, b| a ^ b)
    }

    fn expect_below(&mut self, x: &W, bits: u32) -> Result<(), Error> {
        let bound = 1i128 << bits;
        match x.iter().map(|&x| i128::from(x as i64)).find(|v| v.abs() >= bound) {
            Some(v) => Err(self.out_of_range("range", v, 1 - bound, bound - 1)),
            None => Ok(()),
        }
    }

    fn visible(&self, x: &W) -> Option<W> {
        Some(x.clone())
    }

    fn truncate(&mut self, x: &W, how: Truncation) -> Result<W, Error> {
        let Truncation { width, shift, out } = how;
        assert!((3..=64).contains(&width) && shift < width - 1 && (1..=64).contains(&out), "{how:?}");
        let rounded = self.rounded("truncate", x, width, shift)?;
        Ok(rounded.mapv(|v| signed(v as u64, out) as u64))
    }

    fn at_least(&mut self, x: &W, thresholds: &[i64], width: u32) -> Result<ArrayD<u8>, Error> {
        assert!((2..=64).contains(&width) && (1..=32).contains(&thresholds.len()), "at_least of width {width}");
        let high = (1i128 << (width - 1)) - 1;
        let (least, most) = (thresholds.iter().min(), thresholds.iter().max());
        let least = i128::from(least.copied().unwrap_or(0).min(0));
        let most = i128::from(most.copied().unwrap_or(0).max(0));
        let inside = |v: i128| v - least <= high && v - most >= -high - 1;
        if let Some(v) = x.iter().map(|&v| i128::from(signed(v, width))).find(|&v| !inside(v)) {
            return Err(self.out_of_range("at_least", v, most - high - 1, high + least));
        }
        let mut shape = Tensor::shape(x);
        shape.push(thresholds.len());
        let bits = x.iter().flat_map(|&v| thresholds.iter().map(move |&t| u8::from(signed(v, width) >= t))).collect();
        Ok(ArrayD::from_shape_vec(IxDyn(&shape), bits).expect("one bit for every entry and threshold"))
    }

    fn row_max(&mut self, x: &W, lengths: &[usize], width: u32) -> Result<W, Error> {
        let mut values = x.iter().map(|&v| signed(v, width));
        let span = (1i128 << (width - 1)) - 1;
        let mut maxima = Vec::with_capacity(lengths.len());
        for &n in lengths {
            let row = values.by_ref().take(n);
            let (least, most) = row.fold((i64::MAX, i64::MIN), |(least, most), v| (least.min(v), most.max(v)));
            let difference = i128::from(most) - i128::from(least);
            if difference > span {
                return Err(self.out_of_range("row_max", difference, 0, span));
            }
            maxima.push(most as u64);
        }
        Ok(ArrayD::from_shape_vec(IxDyn(&[lengths.len()]), maxima).expect("one entry for every row"))
    }

    fn selectors<const N: usize>(&mut self, bits: &ArrayD<u8>) -> Result<[ArrayD<u8>; N], Error> {
        Ok(std::array::from_fn(|_| bits.clone()))
    }

    fn select(&mut self, selector: ArrayD<u8>, x: &W, width: u32) -> Result<W, Error> {
        self.mux(&selector, x, width)
    }

    fn mux(&mut self, bits: &ArrayD<u8>, x: &W, width: u32) -> Result<W, Error> {
        assert_eq!(bits.shape(), x.shape(), "shapes of a mux");
        Ok(Zip::from(bits).and(x).map_collect(|&b, &v| if b == 1 { signed(v, width) as u64 } else { 0 }))
    }

    fn bit_to_word(&mut self, bits: &ArrayD<u8>, _: u32) -> Result<W, Error> {
        Ok(bits.mapv(u64::from))
    }

    fn mul(&mut self, x: &W, y: &W, width: u32) -> Result<W, Error> {
        assert_eq!(x.shape(), y.shape(), "shapes of a product");
        let exact =
            Zip::from(x).and(y).map_collect(|&x, &y| i128::from(signed(x, width)) * i128::from(signed(y, width)));
        self.fitted("mul", exact, width)
    }

    fn mul_rows(&mut self, x: &W, y: &W, width: u32) -> Result<W, Error> {
        let x = x.view().into_dimensionality::<Ix2>().expect("(rows, n)");
        let y = y.view().into_dimensionality::<Ix1>().expect("(rows)");
        assert_eq!(x.nrows(), y.len(), "one word for every row");
        let exact = Array2::from_shape_fn(x.dim(), |(i, j)| {
            i128::from(signed(x[[i, j]], width)) * i128::from(signed(y[i], width))
        });
        self.fitted("mul_rows", exact.into_dyn(), width)
    }

    fn sum_squares(&mut self, x: &W, width: u32) -> Result<W, Error> {
        let squares = x.mapv(|v| i128::from(signed(v, width)).pow(2));
        let exact = squares.fold_axis(Axis(x.ndim() - 1), 0i128, |sum, v| sum.saturating_add(*v));
        self.fitted("sum_squares", exact, width)
    }

    fn evaluation(&self) -> Evaluate {
        self.evaluate
    }

    /// An input outside the table's range, which only garbage can stand for, gives the largest value that a truncation of
    /// the result still takes: wrong enough to be noticed where it is not muxed away.
    fn evaluate(&mut self, table: Tabulated<'_, impl Table>, x: &W) -> Result<W, Error> {
        let width = match &table {
            Tabulated::Lookup(table) => table.out_width(),
            Tabulated::Masked(table) => table.shape().width,
        };
        let garbage = (1u64 << (width - 2)) - 1;
        let value = |(i, &v)| match &table {
            Tabulated::Lookup(table) => Clear::looked_up(*table, v, i),
            Tabulated::Masked(table) => Clear::masked(table, v, i),
        };
        let values = x.iter().enumerate().map(|at| value(at).map_or(garbage, |v| signed(v, width) as u64));
        Ok(ArrayD::from_shape_vec(x.raw_dim(), values.collect()).expect("one value for every entry"))
    }

    fn matmul(&mut self, a: &W, b: &W, width: u32) -> Result<W, Error> {
        let a = integers(a, width).into_dimensionality::<Ix3>().expect("(batch, m, k)");
        let b = integers(b, width).into_dimensionality::<Ix3>().expect("(batch, k, n)");
        assert_eq!((a.dim().0, a.dim().2), (b.dim().0, b.dim().1), "matmul of {:?} and {:?}", a.dim(), b.dim());
        self.products("matmul", &a, &b, width)
    }

    fn linear(&mut self, x: &W, weight: &FixedWeight) -> Result<W, Error> {
        let WeightSpec { inputs, outputs, .. } = weight.spec;
        let values = self.values(weight)?;
        let rows = Tensor::len(x) / inputs.max(1);
        let mut shape = Tensor::shape(x);
        assert_eq!(shape.last(), Some(&inputs), "inputs of `{}`", weight.spec.name);
        *shape.last_mut().expect("at least one axis") = outputs;
        let a =
            integers(x, LINEAR_WIDTH).into_shape_with_order((1, rows, inputs)).expect("activations are row-major");
        let w = values.matrix.iter().map(|&v| i64::from(v)).collect();
        let w = Array3::from_shape_vec((1, inputs, outputs), w).expect("a row-major matrix");
        let y = self.products("linear", &a, &w, LINEAR_WIDTH)?;
        let y = y.into_shape_with_order((rows, outputs)).expect("as many entries");
        let bias = ndarray::ArrayView1::from(&values.bias);
        let sums =
            Array2::from_shape_fn((rows, outputs), |(i, j)| i128::from(y[[i, j]] as i64) + i128::from(bias[j]));
        self.fitted("linear", sums.into_shape_with_order(IxDyn(&shape)).expect("as many entries"), LINEAR_WIDTH)
    }

    fn embed(&mut self, table: &FixedWeight, ids: Option<&[u32]>, count: usize) -> Result<W, Error> {
        let ids = ids.filter(|ids| ids.len() == count).ok_or_else(|| engine::Error::Shape {
            tensor: format!("token ids for `{}`", table.spec.name),
            expected: vec![count],
            got: ids.iter().map(|ids| ids.len()).collect(),
        })?;
        let WeightSpec { inputs: vocabulary, outputs, .. } = table.spec;
        if let Some(&id) = ids.iter().find(|&&id| id as usize >= vocabulary) {
            return Err(engine::Error::Token { id, vocabulary }.into());
        }
        let matrix = &self.values(table)?.matrix;
        let exact = ArrayD::from_shape_fn(IxDyn(&[count, outputs]), |at| {
            i128::from(matrix[ids[at[0]] as usize * outputs + at[1]]) << (EMBED_FRAC - table.frac)
        });
        self.fitted("embed", exact, EMBED_WIDTH)
    }

    fn rows(&mut self, table: &FixedWeight, start: usize, count: usize) -> Result<W, Error> {
        let words = table_rows(table, &self.values(table)?.matrix, start, count);
        Ok(ArrayD::from_shape_vec(IxDyn(&[count, table.spec.outputs]), words).expect("as many entries"))
    }

    fn reveal(&mut self, x: &W, width: u32, _: Role) -> Result<Option<ArrayD<u64>>, Error> {
        Ok(Some(x.mapv(|v| v & mask(width))))
    }

    fn reveal_rounded(&mut self, x: &W, width: u32, drop: u32, _: Role) -> Result<Option<ArrayD<u64>>, Error> {
        let rounded = self.rounded("reveal", x, width, drop)?;
        Ok(Some(rounded.mapv(|v| (v << drop) as u64 & mask(width))))
    }

    fn open(&mut self, x: &W, width: u32) -> Result<Option<ArrayD<u64>>, Error> {
        Ok(Some(x.mapv(|v| v & mask(width))))
    }

    fn low_bit(&mut self, x: &W) -> ArrayD<u8> {
        x.mapv(|v| (v & 1) as u8)
    }

    fn one_hot(&mut self, x: &W, bits: u32, count: usize) -> Result<ArrayD<u8>, Error> {
        assert!(
            (1..=16).contains(&bits) && (1..=1 << bits).contains(&count),
            "{count} unit vector entries of 2^{bits}"
        );
        let mut shape = Tensor::shape(x);
        shape.push(count);
        let bits = x.iter().flat_map(|&v| (0..count as u64).map(move |j| u8::from(v & mask(bits) == j))).collect();
        Ok(ArrayD::from_shape_vec(IxDyn(&shape), bits).expect("one bit for every entry and position"))
    }

    fn permutations(&mut self, rows: usize, n: usize) -> Orders {
        self.drawn += 1;
        Orders { n, sources: random_orders(&mut StdRng::seed_from_u64(self.drawn), rows, n) }
    }

    /// Words stay as they are; one that fits its width neither signed nor unsigned is refused.
    fn shuffle(&mut self, permutations: &Orders, x: &W, widths: &[u32], inverse: bool) -> Result<W, Error> {
        let shape = Tensor::shape(x);
        let widths = shuffle_widths(&shape, [permutations.sources.len(), permutations.n], widths);
        for (&v, &width) in x.iter().zip(widths.iter().cycle()) {
            if v != v & mask(width) && v != signed(v, width) as u64 {
                let high = i128::from(mask(width));
                return Err(self.out_of_range("shuffle", (v as i64).into(), -(high + 1) / 2, high));
            }
        }
        let mut out = x.clone();
        for (row, sources) in permutations.sources.iter().enumerate() {
            for (j, &i) in sources.iter().enumerate() {
                let (from, to) = if inverse { (j, i) } else { (i, j) };
                out.slice_mut(s![row, to, ..]).assign(&x.view().slice(s![row, from, ..]));
            }
        }
        Ok(out)
    }

    fn quickselect(&mut self, keys: &W, k: usize, width: u32) -> Result<Vec<Vec<usize>>, Error> {
        let [_, n] = keys_shape(ndarray::ArrayBase::shape(keys), k);
        let limit = 1i128 << (width - 1);
        let mut largest = Vec::new();
        for row in keys.rows() {
            let mut order: Vec<usize> = (0..n).collect();
            order.sort_by_key(|&i| std::cmp::Reverse(signed(row[i], width)));
            let value = |i: usize| i128::from(signed(row[order[i]], width));
            assert!((1..n).all(|i| value(i) != value(i - 1)), "keys of a selection must be distinct");
            if n > 0 && value(0) - value(n - 1) >= limit {
                return Err(self.out_of_range("quickselect", value(0) - value(n - 1), -limit, limit - 1));
            }
            order.truncate(k);
            order.sort_unstable();
            largest.push(order);
        }
        Ok(largest)
    }
}
