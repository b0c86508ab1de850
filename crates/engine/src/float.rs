//! The reference: the model in f32, as its authors run it.

use std::ops::Range;

use ndarray::linalg::general_mat_mul;
use ndarray::{
    Array1, Array2, Array3, ArrayD, ArrayView1, ArrayView2, ArrayViewD, ArrayViewMut2, Axis, Ix2, Ix3, IxDyn, Slice,
};
use rayon::prelude::*;

use crate::ceiling::{Ceiling, Origin};
use crate::engine::{Engine, Gelu, Precision, Product, Right, Visible};
use crate::error::Error;
use crate::select::{Extrema, Select};
use crate::top_k::Ranking;
use crate::weight::{WeightData, WeightLoader, WeightSpec};

/// Products with fewer multiplications of numbers than this stay on one thread.
const PARALLEL_MACS: usize = 1 << 18;

/// If the left factor of a product has at most this many rows, the product streams through the right factor once,
/// instead of packing it for a blocked product.
const STREAMED_ROWS: usize = 4;

/// Computes in the clear with f32; sums that a norm or a softmax depends on are kept in f64.
///
/// One process is client and server at once. So this engine needs every weight and every token id, and reveals all
/// results.
#[derive(Debug, Default)]
pub struct Float {
    /// The states since the last [`Float::take_states`], if they are kept.
    states: Option<States>,
    /// Number of selections that another engine's rounding may change.
    close: u64,
}

impl Float {
    /// An engine that keeps the [`States`] of a model.
    pub fn keeping_states() -> Self {
        Float { states: Some(States::default()), ..Float::default() }
    }

    /// The number of close selections, which may come out otherwise in an engine that rounds. A selection is close if
    /// a chosen entry and one that was not chosen could change places when each is off by [`Ranking::noise`].
    pub fn close_choices(&self) -> u64 {
        self.close
    }

    /// The states since the last call.
    pub fn take_states(&mut self) -> States {
        self.states.as_mut().map(std::mem::take).unwrap_or_default()
    }
}

/// Hidden states, for studies of a model.
#[derive(Clone, Debug, Default)]
pub struct States {
    /// Results of the root-mean-square norms, in the order in which they ran.
    pub norms: Vec<ArrayD<f32>>,
    /// The residual stream: the left operand of the first sum of matrices, then the result of every sum of matrices.
    pub residual: Vec<Array2<f32>>,
}

/// For every row, the positions that were chosen of its `n` positions.
#[derive(Clone, Debug)]
pub struct FloatSelection {
    n: usize,
    rows: Vec<Vec<usize>>,
}

/// A weight in the clear.
#[derive(Debug)]
pub struct FloatWeight {
    name: String,
    matrix: Array2<f32>,
    bias: Option<Array1<f32>>,
}

/// Keeps weights as they are published. Refuses weights without values.
#[derive(Clone, Copy, Debug, Default)]
pub struct FloatLoader;

impl WeightLoader for FloatLoader {
    type Weight = FloatWeight;

    fn load(&mut self, spec: &WeightSpec, data: Option<WeightData>) -> Result<FloatWeight, Error> {
        let data = data.ok_or_else(|| Error::NoValues { tensor: spec.name.clone() })?;
        data.check(spec)?;
        Ok(FloatWeight { name: spec.name.clone(), matrix: data.array(), bias: data.bias })
    }
}

type T = ArrayD<f32>;

impl Engine for Float {
    type Tensor = T;
    type Weight = FloatWeight;
    type Operand = ();

    const CLEAR: bool = true;

    fn enter(&mut self, _name: &str) {}

    fn leave(&mut self) {}

    fn embed(&mut self, table: &FloatWeight, ids: Option<&[u32]>, count: usize) -> Result<T, Error> {
        let ids = ids.filter(|ids| ids.len() == count).ok_or_else(|| Error::Shape {
            tensor: format!("token ids for `{}`", table.name),
            expected: vec![count],
            got: ids.iter().map(|ids| ids.len()).collect(),
        })?;
        let vocabulary = table.matrix.nrows();
        let mut out = Array2::zeros((count, table.matrix.ncols()));
        for (mut row, &id) in out.rows_mut().into_iter().zip(ids) {
            if id as usize >= vocabulary {
                return Err(Error::Token { id, vocabulary });
            }
            row.assign(&table.matrix.row(id as usize));
        }
        Ok(out.into_dyn())
    }

    fn rows(&mut self, table: &FloatWeight, start: usize, count: usize) -> Result<T, Error> {
        Ok(table.matrix.slice_axis(Axis(0), Slice::from(start..start + count)).to_owned().into_dyn())
    }

    fn input(&mut self, shape: &[usize], values: Option<ArrayViewD<f32>>) -> Result<T, Error> {
        let got = values.as_ref().map(|values| values.shape().to_vec()).unwrap_or_default();
        values.filter(|values| values.shape() == shape).map(|values| values.to_owned()).ok_or_else(|| Error::Shape {
            tensor: "input".into(),
            expected: shape.to_vec(),
            got,
        })
    }

    fn linear(&mut self, x: &T, weight: &FloatWeight) -> Result<T, Error> {
        let (inputs, outputs) = weight.matrix.dim();
        let rows = x.len() / inputs;
        let x2 = x.view().into_shape_with_order((rows, inputs)).expect("activations are row-major");
        let mut out = Array2::zeros((rows, outputs));
        if let Some(bias) = &weight.bias {
            out += bias;
        }
        multiply_into(x2, weight.matrix.view(), out.view_mut());
        let mut shape = x.shape().to_vec();
        *shape.last_mut().expect("at least one axis") = outputs;
        Ok(out.into_shape_with_order(IxDyn(&shape)).expect("as many entries").into_dyn())
    }

    fn add(&mut self, a: &T, b: &T) -> Result<T, Error> {
        assert_eq!(a.shape(), b.shape());
        let sum = a + b;
        if let Some(States { residual, .. }) = &mut self.states
            && let Ok(matrix) = sum.view().into_dimensionality::<Ix2>()
        {
            if residual.is_empty() {
                residual.extend(a.clone().into_dimensionality::<Ix2>());
            }
            residual.push(matrix.to_owned());
        }
        Ok(sum)
    }

    fn mul(&mut self, a: &T, b: &T) -> Result<T, Error> {
        assert_eq!(a.shape(), b.shape());
        Ok(a * b)
    }

    fn scale(&mut self, x: &T, by: f32) -> Result<T, Error> {
        Ok(x * by)
    }

    fn linear_ceiling(&self, _: &FloatWeight) -> Ceiling {
        Ceiling::NONE
    }

    fn public(&mut self, values: &T) -> T {
        values.clone()
    }

    fn matmul_each(&mut self, products: Vec<Product<Self>>, _: Precision) -> Result<Vec<T>, Error> {
        Ok(products.into_iter().map(|Product { left, right }| product(left, right.tensor())).collect())
    }

    fn softmax_each(&mut self, parts: &[Visible<T>]) -> Result<Vec<T>, Error> {
        Ok(parts.iter().map(softmax).collect())
    }

    fn gelu(&mut self, x: &T, form: Gelu) -> Result<T, Error> {
        Ok(match form {
            Gelu::Tanh => x.mapv(gelu_tanh),
            Gelu::Erf => x.mapv(gelu_erf),
        })
    }

    fn soft_cap(&mut self, x: &T, cap: f32) -> Result<T, Error> {
        Ok(x.mapv(|v| cap * (v / cap).tanh()))
    }

    fn relu(&mut self, x: &T) -> Result<T, Error> {
        Ok(x.mapv(|v| v.max(0.0)))
    }

    fn silu(&mut self, x: &T) -> Result<T, Error> {
        Ok(x.mapv(|v| v / (1.0 + (-v).exp())))
    }

    fn rms_norm(&mut self, x: &T, eps: f32) -> Result<T, Error> {
        let mut out = x.clone();
        for mut row in out.rows_mut() {
            let mean = row.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / row.len() as f64;
            let inverse = (mean + f64::from(eps)).sqrt().recip();
            row.mapv_inplace(|v| (f64::from(v) * inverse) as f32);
        }
        if let Some(states) = &mut self.states {
            states.norms.push(out.clone());
        }
        Ok(out)
    }

    fn rope(&mut self, x: &T, cos: &Array2<f32>, sin: &Array2<f32>) -> Result<T, Error> {
        let mut out = x.clone().into_dimensionality::<Ix3>().expect("three axes");
        let (count, _, d) = out.dim();
        let half = d / 2;
        assert_eq!(cos.dim(), (count, half));
        assert_eq!(sin.dim(), (count, half));
        for ((mut token, cos), sin) in out.outer_iter_mut().zip(cos.rows()).zip(sin.rows()) {
            for mut head in token.rows_mut() {
                for i in 0..half {
                    let (x1, x2) = (head[i], head[half + i]);
                    head[i] = x1 * cos[i] - x2 * sin[i];
                    head[half + i] = x2 * cos[i] + x1 * sin[i];
                }
            }
        }
        Ok(out.into_dyn())
    }

    fn hide(&mut self, x: &T, hidden: Option<&Array2<bool>>) -> Result<T, Error> {
        let shape = x.shape();
        let expected = vec![shape[0], shape[2]];
        let hidden = hidden.filter(|hidden| hidden.shape() == expected).ok_or_else(|| Error::Shape {
            tensor: "hidden columns".into(),
            expected,
            got: hidden.map_or_else(Vec::new, |hidden| hidden.shape().to_vec()),
        })?;
        // No score is below `f32::MIN`, whatever the range of the shown ones.
        let shown = |at: IxDyn| if hidden[[at[0], at[2]]] { f32::MIN } else { x[&at] };
        Ok(ArrayD::from_shape_fn(shape, shown))
    }

    fn reveal(&mut self, x: &T) -> Result<Option<ArrayD<f32>>, Error> {
        Ok(Some(x.clone()))
    }

    fn argmax(&mut self, x: &T) -> Result<Option<Vec<usize>>, Error> {
        let best = |row: ArrayView1<f32>| {
            let larger = |best: (usize, f32), (i, &v): (usize, &f32)| if v > best.1 { (i, v) } else { best };
            row.iter().enumerate().fold((0, f32::NEG_INFINITY), larger).0
        };
        Ok(Some(x.lanes(Axis(1)).into_iter().map(best).collect()))
    }
}

impl Select for Float {
    type Selection = FloatSelection;

    fn sum_last(&mut self, x: &T) -> Result<T, Error> {
        Ok(x.sum_axis(Axis(x.ndim() - 1)))
    }

    fn negate(&mut self, x: &T) -> Result<T, Error> {
        Ok(x.mapv(|x| -x))
    }

    fn sum_squares(&mut self, x: &T) -> Result<T, Error> {
        Ok(x.mapv(|x| x * x).sum_axis(Axis(x.ndim() - 1)))
    }

    fn abs(&mut self, x: &T) -> Result<T, Error> {
        Ok(x.mapv(f32::abs))
    }

    fn extrema(&mut self, x: &T) -> Result<Extrema<T>, Error> {
        let last = Axis(x.ndim() - 1);
        assert!(x.len_of(last) > 0, "extrema of nothing");
        Ok(Extrema {
            max: x.fold_axis(last, f32::NEG_INFINITY, |m, &v| m.max(v)),
            min: x.fold_axis(last, f32::INFINITY, |m, &v| m.min(v)),
        })
    }

    fn ceiling(&self, _: Origin) -> Result<Ceiling, Error> {
        Ok(Ceiling::NONE)
    }

    fn top_k(&mut self, x: &T, how: &Ranking) -> Result<FloatSelection, Error> {
        let [_, n] = x.shape()[..] else { panic!("ranking of {:?}", x.shape()) };
        assert!((1..=n).contains(&how.k), "{} of {n}", how.k);
        let units = f64::from(how.frac).exp2();
        let mut largest = |row: ArrayView1<f32>| {
            let seen = |i: usize, off: f64| {
                let x = f64::from(row[i]) * units + off;
                if how.rounded { (x + 0.5).floor() } else { x }
            };
            // The larger entry comes first, and of equal entries the one at the lower position.
            let by = |(a, i): &(f64, usize), (b, j): &(f64, usize)| b.total_cmp(a).then(i.cmp(j));
            let mut order: Vec<(f64, usize)> = (0..n).map(|i| (seen(i, 0.0), i)).collect();
            order.sort_by(by);
            let (chosen, others) = order.split_at(how.k);
            let least = chosen.iter().map(|(_, i)| (seen(*i, -how.noise()), *i)).max_by(by);
            let most = others.iter().map(|(_, i)| (seen(*i, how.noise()), *i)).min_by(by);
            let close = least.zip(most).is_some_and(|(least, most)| by(&least, &most).is_gt());
            self.close += u64::from(close);
            chosen.iter().map(|(_, i)| *i).collect()
        };
        Ok(FloatSelection { n, rows: x.rows().into_iter().map(&mut largest).collect() })
    }

    fn one_hot(&mut self, selection: &FloatSelection) -> Result<FloatSelection, Error> {
        Ok(selection.clone())
    }

    fn compose(
        &mut self,
        first: &FloatSelection,
        fan_out: usize,
        second: &FloatSelection,
    ) -> Result<FloatSelection, Error> {
        let part = |first: &Vec<usize>, &i: &usize| first[i / fan_out] * fan_out + i % fan_out;
        let rows = first.rows.iter().zip(&second.rows).map(|(f, s)| s.iter().map(|i| part(f, i)).collect());
        Ok(FloatSelection { n: first.n * fan_out, rows: rows.collect() })
    }

    fn gather(&mut self, selection: &FloatSelection, from: Right<Self>, _: u32) -> Result<T, Error> {
        let x = from.tensor().view().into_dimensionality::<Ix3>().expect("three axes");
        let (shared, n, w) = x.dim();
        let rows = selection.rows.len();
        assert!(n == selection.n && rows.is_multiple_of(shared), "{:?} by a selection of {}", x.dim(), selection.n);
        let mut out = Array3::zeros((rows, selection.rows.first().map_or(0, Vec::len), w));
        for (r, chosen) in selection.rows.iter().enumerate() {
            for (j, &i) in chosen.iter().enumerate() {
                out.index_axis_mut(Axis(0), r).row_mut(j).assign(&x.index_axis(Axis(0), r / (rows / shared)).row(i));
            }
        }
        Ok(out.into_dyn())
    }

    fn scatter(&mut self, selection: &FloatSelection, x: &T, _: u32) -> Result<T, Error> {
        let x = x.view().into_dimensionality::<Ix3>().expect("three axes");
        let mut out = Array3::zeros((selection.rows.len(), selection.n, x.dim().2));
        for (r, chosen) in selection.rows.iter().enumerate() {
            for (j, &i) in chosen.iter().enumerate() {
                out.index_axis_mut(Axis(0), r).row_mut(i).assign(&x.index_axis(Axis(0), r).row(j));
            }
        }
        Ok(out.into_dyn())
    }

    fn in_order(&mut self, selection: &FloatSelection) -> Result<FloatSelection, Error> {
        let mut ordered = selection.clone();
        ordered.rows.iter_mut().for_each(|row| row.sort_unstable());
        Ok(ordered)
    }

    fn chosen(&self, selection: &FloatSelection) -> Option<Vec<Vec<usize>>> {
        Some(selection.rows.clone())
    }
}

/// The matrix product of each batch entry: (batch, m, k) x (batch, k, n) -> (batch, m, n).
fn product(a: &T, b: &T) -> T {
    let a = a.view().into_dimensionality::<Ix3>().expect("three axes");
    let b = b.view().into_dimensionality::<Ix3>().expect("three axes");
    let ((batch, m, k), (batch_b, k_b, n)) = (a.dim(), b.dim());
    assert_eq!((batch, k), (batch_b, k_b), "matmul of {:?} and {:?}", a.shape(), b.shape());
    let mut out = Array3::zeros((batch, m, n));
    for ((a, b), o) in a.outer_iter().zip(b.outer_iter()).zip(out.outer_iter_mut()) {
        multiply_into(a, b, o);
    }
    out.into_dyn()
}

fn softmax(&Visible { scores, seen, sink, .. }: &Visible<T>) -> T {
    let mut out = scores.clone();
    let rows = scores.shape()[scores.ndim() - 2];
    assert_eq!(rows, seen.len());
    for (i, row) in out.rows_mut().into_iter().enumerate() {
        let Range { start, end } = seen[i % rows];
        assert!(start < end, "a row sees something");
        let tokens = row.len() - usize::from(sink);
        let (row, sink) = row.split_at(Axis(0), tokens);
        let (row, mut after) = row.split_at(Axis(0), end);
        let (mut before, row) = row.split_at(Axis(0), start);
        before.fill(0.0);
        after.fill(0.0);
        let mut shown = [row, sink];
        let max = shown.iter().fold(f32::NEG_INFINITY, |m, part| part.fold(m, |m, &v| m.max(v)));
        shown.iter_mut().for_each(|part| part.mapv_inplace(|v| (v - max).exp()));
        let sum: f64 = shown.iter().flatten().map(|&v| f64::from(v)).sum();
        shown.iter_mut().for_each(|part| part.mapv_inplace(|v| (f64::from(v) / sum) as f32));
    }
    out
}

fn gelu_tanh(x: f32) -> f32 {
    let sqrt_2_over_pi = std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::FRAC_1_SQRT_2;
    0.5 * x * (1.0 + (sqrt_2_over_pi * (x + 0.044715 * x * x * x)).tanh())
}

fn gelu_erf(x: f32) -> f32 {
    let x = f64::from(x);
    (0.5 * x * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2))) as f32
}

/// out += a b, over as many threads as the work is worth.
fn multiply_into(a: ArrayView2<f32>, b: ArrayView2<f32>, mut out: ArrayViewMut2<f32>) {
    let (m, k) = a.dim();
    let n = b.ncols();
    let threads = if m * k * n < PARALLEL_MACS { 1 } else { rayon::current_num_threads() };
    // Blocks of columns give every thread its own part of b, which is the large operand.
    let block = n.div_ceil(threads).max(1);
    let columns = |j: usize, mut out: ArrayViewMut2<f32>| {
        let b = b.slice_axis(Axis(1), Slice::from(j * block..n.min((j + 1) * block)));
        if m <= STREAMED_ROWS && b.row(0).as_slice().is_some() {
            for (x, mut y) in a.rows().into_iter().zip(out.rows_mut()) {
                stream_row(x, b, y.as_slice_mut().expect("a block of a row-major matrix"));
            }
        } else {
            general_mat_mul(1.0, &a, &b, 1.0, &mut out);
        }
    };
    if k == 0 {
        return;
    }
    if threads == 1 {
        columns(0, out);
    } else {
        let blocks: Vec<_> = out.axis_chunks_iter_mut(Axis(1), block).collect();
        blocks.into_par_iter().enumerate().for_each(|(j, out)| columns(j, out));
    }
}

/// y += x b by rows of b, so that b is read once from front to back.
fn stream_row(x: ArrayView1<f32>, b: ArrayView2<f32>, y: &mut [f32]) {
    for (&x, row) in x.iter().zip(b.rows()) {
        let row = row.as_slice().expect("row-major");
        for (y, &w) in y.iter_mut().zip(row) {
            *y += x * w;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Tensor;
    use crate::top_k::TopK;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    fn random(shape: &[usize], rng: &mut StdRng) -> T {
        ArrayD::from_shape_simple_fn(IxDyn(shape), || rng.random_range(-2.0..2.0))
    }

    fn close(a: &T, b: &T, within: f32) {
        assert_eq!(a.shape(), b.shape());
        for (i, (x, y)) in a.iter().zip(b).enumerate() {
            assert!((x - y).abs() <= within, "entry {i}: {x} against {y}");
        }
    }

    fn weight(name: &str, matrix: Array2<f32>, bias: Option<Array1<f32>>) -> Result<FloatWeight, Error> {
        let spec = WeightSpec::new(name, matrix.nrows(), matrix.ncols());
        FloatLoader.load(&spec, Some(WeightData::new(matrix, bias)))
    }

    #[test]
    fn products_equal_the_triple_loop() {
        let mut rng = StdRng::seed_from_u64(1);
        for (batch, m, k, n) in
            [(1, 1, 1, 1), (3, 1, 5, 7), (2, 4, 33, 9), (2, 5, 17, 3), (1, 1, 700, 801), (1, 9, 200, 333)]
        {
            let (a, b) = (random(&[batch, m, k], &mut rng), random(&[batch, k, n], &mut rng));
            let naive = ArrayD::from_shape_fn(IxDyn(&[batch, m, n]), |i| {
                (0..k).map(|l| f64::from(a[[i[0], i[1], l]]) * f64::from(b[[i[0], l, i[2]]])).sum::<f64>() as f32
            });
            close(&Float::default().matmul(&a, Right::Fresh(&b)).unwrap(), &naive, 1e-3);
            // A transposed right operand, which is not row-major, gives the same product.
            let c = b.permute(&[0, 2, 1]);
            close(&Float::default().matmul(&a, Right::Fresh(&c.permute(&[0, 2, 1]))).unwrap(), &naive, 1e-3);
            if batch == 1 {
                let w = b.clone().into_shape_with_order((k, n)).unwrap();
                let bias = Array1::from_shape_simple_fn(n, || rng.random_range(-1.0..1.0));
                let linear = weight("w", w, Some(bias.clone())).unwrap();
                close(&Float::default().linear(&a, &linear).unwrap(), &(&naive + &bias), 1e-3);
            }
        }
    }

    #[test]
    fn softmax_sees_what_is_visible() {
        let mut rng = StdRng::seed_from_u64(2);
        let x = random(&[2, 3, 5], &mut rng) * 50.0;
        for seen in [[0..1, 0..3, 0..5], [1..3, 0..1, 4..5]] {
            let p = Float::default().softmax(&x, &seen).unwrap();
            for (at, p) in p.indexed_iter() {
                let e = |j: usize| f64::from(x[[at[0], at[1], j]]).exp();
                let seen = seen[at[1]].clone();
                let want = if seen.contains(&at[2]) { e(at[2]) / seen.map(e).sum::<f64>() } else { 0.0 };
                assert!((f64::from(*p) - want).abs() < 1e-5);
            }
        }
        // Scores as large as real models produce do not overflow.
        let p = Float::default().softmax(&ArrayD::from_elem(IxDyn(&[1, 4]), 1e30), &[0..4]).unwrap();
        close(&p, &ArrayD::from_elem(IxDyn(&[1, 4]), 0.25), 1e-6);
    }

    #[test]
    fn activations_equal_tables() {
        // Phi(1) = 0.8413447461, Phi(-2) = 0.0227501319 from any table of the normal distribution.
        assert!((gelu_erf(1.0) - 0.841_344_8).abs() < 1e-6);
        assert!((gelu_erf(-2.0) + 2.0 * 0.022_750_132).abs() < 1e-6);
        for i in -80..=80 {
            let x = i as f32 / 10.0;
            assert!((gelu_tanh(x) - gelu_erf(x)).abs() < 5e-4, "the tanh form stays within 5e-4 at {x}");
            let silu = Float::default().silu(&ArrayD::from_elem(IxDyn(&[1]), x)).unwrap()[[0]];
            assert!((f64::from(silu) - f64::from(x) / (1.0 + f64::from(-x).exp())).abs() < 1e-5);
        }
        assert_eq!((gelu_tanh(40.0), gelu_tanh(-40.0)), (40.0, 0.0));
        let x = ArrayD::from_shape_vec(IxDyn(&[4]), vec![-3.0, -0.0, 0.25, 700.0]).unwrap();
        assert_eq!(Float::default().relu(&x).unwrap().into_raw_vec_and_offset().0, [0.0, 0.0, 0.25, 700.0]);
        // tanh(1) = 0.7615941559 from any table.
        let capped = Float::default().soft_cap(&(x / -3.0), 1.0).unwrap();
        assert!((capped[[0]] - 0.761_594_2).abs() < 1e-6 && capped[[3]] == -1.0, "{capped}");
        let far = Float::default().silu(&ArrayD::from_elem(IxDyn(&[1]), -200.0)).unwrap()[[0]];
        assert_eq!(far, 0.0);
    }

    #[test]
    fn a_norm_has_its_moment() {
        let mut rng = StdRng::seed_from_u64(3);
        let x = random(&[3, 40], &mut rng) + 7.0;
        for row in Float::default().rms_norm(&x, 0.0).unwrap().rows() {
            assert!((row.mapv(|v| v * v).sum() / 40.0 - 1.0).abs() < 1e-5);
        }
    }

    #[test]
    fn entries_of_a_cell_go_by_position_and_close_choices_are_counted() {
        let x = |row: [f32; 5]| ArrayD::from_shape_vec(IxDyn(&[1, 5]), row.to_vec()).unwrap();
        let mut float = Float::default();
        let mut chosen = |row, rounded| {
            let how = Ranking { k: 2, method: TopK::Rank, magnitude: 4, ceiling: Ceiling::NONE, frac: 2, rounded };
            (float.top_k(&x(row), &how).unwrap().rows[0].clone(), float.close_choices())
        };
        // Multiples of 1/4 have cells of that width around them. 0 and 1 lie in the middle of their cells.
        assert_eq!(chosen([0.9, 0.01, -0.02, 0.0, 0.1], true), (vec![0, 1], 0));
        assert_eq!(chosen([0.9, 0.01, -0.02, 0.0, 0.13], true), (vec![0, 4], 1));
        assert_eq!(chosen([0.9, 1.1, 0.02, 0.1, -3.0], true), (vec![0, 1], 1));
        assert_eq!(chosen([0.9, -4.0, -3.0, -1.0, 2.0], false), (vec![4, 0], 1));
        assert_eq!(chosen([0.9, -4.0, 0.8, -1.0, 2.0], false), (vec![4, 0], 2));
    }

    #[test]
    fn rope_is_a_rotation_of_pairs() {
        let mut rng = StdRng::seed_from_u64(4);
        let x = random(&[3, 2, 6], &mut rng);
        let angle = Array2::from_shape_fn((3, 3), |(t, i)| t as f32 * 0.7f32.powi(i as i32));
        let (cos, sin) = (angle.mapv(f32::cos), angle.mapv(f32::sin));
        let y = Float::default().rope(&x, &cos, &sin).unwrap();
        for t in 0..3 {
            for h in 0..2 {
                for i in 0..3 {
                    let (a, b) = (x[[t, h, i]], x[[t, h, 3 + i]]);
                    let (norm, turn) = (a.hypot(b), b.atan2(a) + angle[[t, i]]);
                    assert!((y[[t, h, i]] - norm * turn.cos()).abs() < 1e-5);
                    assert!((y[[t, h, 3 + i]] - norm * turn.sin()).abs() < 1e-5);
                }
            }
        }
    }

    #[test]
    fn bad_weights_and_tokens_are_refused_by_name() {
        let mut bad = Array2::zeros((2, 3));
        bad[[1, 2]] = f32::NAN;
        match weight("h.0.bad", bad, None) {
            Err(Error::NotFinite { tensor, position: 5, .. }) => assert_eq!(tensor, "h.0.bad"),
            other => panic!("{other:?}"),
        }
        let short = weight("h.0.short", Array2::zeros((2, 3)), Some(Array1::zeros(2)));
        assert!(matches!(short, Err(Error::Shape { .. })));
        let spec = WeightSpec::new("h.0.blank", 2, 3);
        assert!(matches!(FloatLoader.load(&spec, None), Err(Error::NoValues { tensor }) if tensor == "h.0.blank"));
        let table = weight("wte", Array2::zeros((4, 3)), None).unwrap();
        let mut float = Float::default();
        assert!(matches!(float.embed(&table, Some(&[4]), 1), Err(Error::Token { id: 4, vocabulary: 4 })));
        assert!(matches!(float.embed(&table, None, 1), Err(Error::Shape { .. })));
    }
}
