//! Ridge regression: a linear function by least squares, with a penalty on large coefficients.

use ndarray::{Array1, Array2, ArrayView1, ArrayView2, Axis, s};

/// The penalty, as a fraction of the mean variance of the inputs.
const PENALTY: f64 = 1e-3;

/// Sums over samples, from which the coefficients follow. They take about the memory of one matrix (inputs, inputs).
pub(super) struct Samples {
    count: f64,
    sum_x: Array1<f64>,
    sum_y: Array1<f64>,
    /// Sums of products of two inputs, (inputs, inputs).
    xx: Array2<f64>,
    /// Sums of products of an input and an output, (inputs, outputs).
    xy: Array2<f64>,
}

impl Samples {
    pub(super) fn new(inputs: usize, outputs: usize) -> Self {
        Samples {
            count: 0.0,
            sum_x: Array1::zeros(inputs),
            sum_y: Array1::zeros(outputs),
            xx: Array2::zeros((inputs, inputs)),
            xy: Array2::zeros((inputs, outputs)),
        }
    }

    /// Adds samples. Each is a row of `x` (samples, inputs) with the same row of `y` (samples, outputs).
    pub(super) fn add(&mut self, x: ArrayView2<f32>, y: ArrayView2<f32>) {
        let (x, y) = (x.mapv(f64::from), y.mapv(f64::from));
        self.count += x.nrows() as f64;
        self.sum_x += &x.sum_axis(Axis(0));
        self.sum_y += &y.sum_axis(Axis(0));
        self.xx += &x.t().dot(&x);
        self.xy += &x.t().dot(&y);
    }

    /// The coefficients (inputs, outputs), without the constant; `None` if the inputs do not vary.
    pub(super) fn solve(&self) -> Option<Array2<f64>> {
        let n = self.count;
        let outer =
            |a: &Array1<f64>, b: &Array1<f64>| Array2::from_shape_fn((a.len(), b.len()), |(i, j)| a[i] * b[j] / n);
        let mut covariance = &self.xx - &outer(&self.sum_x, &self.sum_x);
        let products = &self.xy - &outer(&self.sum_x, &self.sum_y);
        let variance = covariance.diag().sum() / covariance.nrows() as f64;
        covariance.diag_mut().iter_mut().for_each(|v| *v += PENALTY * variance);
        cholesky(covariance).map(|lower| {
            let mut out = products;
            for mut column in out.columns_mut() {
                let solved = substitute(&lower, column.view());
                column.assign(&solved);
            }
            out
        })
    }
}

/// The lower triangular matrix whose product with its transpose is `a`; `None` if `a` is not positive definite.
fn cholesky(mut a: Array2<f64>) -> Option<Array2<f64>> {
    let n = a.nrows();
    for j in 0..n {
        let row = a.row(j).slice(s![..j]).to_owned();
        let pivot = a[[j, j]] - row.dot(&row);
        if !(pivot > 0.0 && pivot.is_finite()) {
            return None;
        }
        let root = pivot.sqrt();
        a[[j, j]] = root;
        for i in j + 1..n {
            let known = a.row(i).slice(s![..j]).dot(&row);
            a[[i, j]] = (a[[i, j]] - known) / root;
        }
    }
    Some(a)
}

/// Solves L L^T x = b for x, where L is `lower`.
fn substitute(lower: &Array2<f64>, b: ArrayView1<f64>) -> Array1<f64> {
    let n = b.len();
    let mut x = b.to_owned();
    for i in 0..n {
        let known = lower.row(i).slice(s![..i]).dot(&x.slice(s![..i]));
        x[i] = (x[i] - known) / lower[[i, i]];
    }
    for i in (0..n).rev() {
        let known = lower.column(i).slice(s![i + 1..]).dot(&x.slice(s![i + 1..]));
        x[i] = (x[i] - known) / lower[[i, i]];
    }
    x
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    #[test]
    fn a_linear_function_is_found_whatever_its_constant() {
        let truth = Array2::from_shape_fn((5, 2), |(i, j)| (i as f32 - 2.0) * if j == 0 { 1.0 } else { -0.3 });
        let mut rng = StdRng::seed_from_u64(1);
        let mut samples = Samples::new(5, 2);
        for _ in 0..4 {
            let x = Array2::from_shape_simple_fn((100, 5), || rng.random_range(-1.0..2.0f32));
            let y = x.dot(&truth) + 7.0;
            samples.add(x.view(), y.view());
        }
        let found = samples.solve().expect("inputs that vary");
        for (found, truth) in found.iter().zip(&truth) {
            assert!((found - f64::from(*truth)).abs() < 0.01, "{found} for {truth}");
        }
    }

    #[test]
    fn inputs_that_do_not_vary_tell_nothing() {
        let mut samples = Samples::new(3, 1);
        samples.add(Array2::zeros((9, 3)).view(), Array2::ones((9, 1)).view());
        assert!(samples.solve().is_none());
    }
}
