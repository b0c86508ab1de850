//! Piecewise polynomials as tables for look-up.
//!
//! A window of index n serves the inputs [n, n + 2) in units of windows, because the carry of the low parts is not
//! computed (see [`Table`]). On each double window the function is interpolated at the Chebyshev nodes, near the best
//! polynomial. With low_0, low_1 in units of windows, the polynomial q of a window is expanded around low_0:
//!
//! q(low_0 + low_1) = sum_k q^(k)(low_0) / k! low_1^k.
//!
//! The sender's coefficients are thus Taylor coefficients, and the receiver's factors are powers.

use crate::functions::grid::{Grid, MAX_DEGREE, Scale};
use crate::ops::lookup::{Table, TableShape};

/// A spline over equal windows.
#[derive(Clone, Debug)]
pub struct Spline {
    grid: Grid,
    out_width: u32,
    degree: usize,
    /// Bits of the factors p_2, p_3, ... The factor p_1 is low_1 itself.
    power_bits: [u32; MAX_DEGREE - 1],
    /// The polynomials of the windows -1, 0, ..., whose argument is in units of windows.
    polynomials: Vec<[f64; MAX_DEGREE + 1]>,
    /// The scale 2^(out_frac - bits of p_k) for every k.
    scales: [f64; MAX_DEGREE + 1],
}

impl Spline {
    /// Fits `f` on every double window by polynomials of `degree`, 1..=[`MAX_DEGREE`].
    pub fn fit(
        grid: Grid,
        scale: Scale,
        degree: usize,
        power_bits: [u32; MAX_DEGREE - 1],
        f: impl Fn(f64) -> f64,
    ) -> Self {
        assert!((1..=MAX_DEGREE).contains(&degree), "degree {degree}");
        let Scale { base, step, out_frac, out_width } = scale;
        let width = step * (1u64 << grid.low_bits) as f64;
        let polynomials = (-1..(1i64 << grid.index_bits) - 1)
            .map(|n| interpolate(degree, |z| f(base + width * (n as f64 + z))))
            .collect();
        let mut scales = [(out_frac as f64).exp2(); MAX_DEGREE + 1];
        for (k, scale) in scales.iter_mut().enumerate().skip(1) {
            let bits = if k == 1 { grid.low_bits } else { power_bits[k - 2] };
            *scale = (f64::from(out_frac) - f64::from(bits)).exp2();
        }
        Self { grid, out_width, degree, power_bits, polynomials, scales }
    }
}

/// The polynomial of degree `degree` that agrees with `f` at the Chebyshev nodes of [0, 2], as coefficients.
fn interpolate(degree: usize, f: impl Fn(f64) -> f64) -> [f64; MAX_DEGREE + 1] {
    let nodes: Vec<f64> =
        (0..=degree).map(|i| 1.0 - (std::f64::consts::PI * (i as f64 + 0.5) / (degree as f64 + 1.0)).cos()).collect();
    // Newton's divided differences, then Horner's scheme over the nodes from the last to the first.
    let mut differences: Vec<f64> = nodes.iter().map(|&z| f(z)).collect();
    for order in 1..=degree {
        for i in (order..=degree).rev() {
            differences[i] = (differences[i] - differences[i - 1]) / (nodes[i] - nodes[i - order]);
        }
    }
    let mut polynomial = [0.0; MAX_DEGREE + 1];
    for i in (0..=degree).rev() {
        for k in (0..=degree).rev() {
            let shifted = if k == 0 { 0.0 } else { polynomial[k - 1] };
            polynomial[k] = shifted - nodes[i] * polynomial[k];
        }
        polynomial[0] += differences[i];
    }
    polynomial
}

impl Table for Spline {
    fn shape(&self) -> TableShape {
        let Grid { index_bits, low_bits, .. } = self.grid;
        let powers = self.power_bits.iter().take(self.degree - 1);
        let factor_bits = std::iter::once(&low_bits).chain(powers).copied().collect();
        TableShape { index_bits, low_bits, out_width: self.out_width, constant: true, factor_bits }
    }

    /// The factors p_k = floor(z^k 2^bits), where z = low / 2^low_bits and bits is the number of bits of p_k.
    fn factors(&self, low: u64, out: &mut [u64]) {
        out[0] = low;
        let z = low as f64 / (1u64 << self.grid.low_bits) as f64;
        let mut power = z;
        for (p, &bits) in out[1..].iter_mut().zip(&self.power_bits) {
            power *= z;
            *p = (power * (1u64 << bits) as f64) as u64;
        }
    }

    fn coefficients(&self, window: i64, low: u64, out: &mut [u64]) {
        let degree = self.degree;
        let mut c = self.polynomials[(window + 1) as usize];
        let z = low as f64 / (1u64 << self.grid.low_bits) as f64;
        // Taylor shift by repeated Horner steps.
        for k in 0..degree {
            for i in (k..degree).rev() {
                c[i] += z * c[i + 1];
            }
        }
        for ((out, c), scale) in out.iter_mut().zip(&c[..=degree]).zip(&self.scales) {
            *out = (c * scale).round() as i64 as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::functions::grid::Pieces;

    #[test]
    fn interpolation_reproduces_polynomials() {
        let f = |z: f64| 2.0 - z + 3.0 * z * z * z;
        for degree in 3..=MAX_DEGREE {
            let got = interpolate(degree, f);
            for (got, want) in got.iter().zip([2.0, -1.0, 0.0, 3.0, 0.0, 0.0]) {
                assert!((got - want).abs() < 1e-9, "degree {degree}: {got} for {want}");
            }
        }
    }

    #[test]
    fn both_parts_of_any_split_give_the_function() {
        let power_bits = [16, 16, 16, 0];
        let grid = Grid { index_bits: 3, low_bits: 8, pieces: Pieces::Powers { degree: 4, power_bits } };
        let scale = Scale { base: -1.0, step: 1.0 / 1024.0, out_frac: 34, out_width: 44 };
        let spline = Spline::fit(grid, scale, 4, power_bits, f64::sin);
        let (mut p, mut c) = ([0; 4], [0; 5]);
        assert_eq!(spline.shape().factor_bits, [8, 16, 16, 16]);
        for window in -1..7 {
            for (low0, low1) in [(0, 0), (0, 255), (255, 0), (255, 255), (17, 200), (128, 128)] {
                spline.factors(low1, &mut p);
                spline.coefficients(window, low0, &mut c);
                let sum = c[1..].iter().zip(&p).fold(c[0], |s, (c, p)| s.wrapping_add(c.wrapping_mul(*p)));
                let got = sum as i64 as f64 / (1u64 << 34) as f64;
                let x = -1.0 + (window * 256 + (low0 + low1) as i64) as f64 / 1024.0;
                assert!((got - x.sin()).abs() < 2e-5, "{window} {low0} {low1}: {got} for {}", x.sin());
            }
        }
    }
}
