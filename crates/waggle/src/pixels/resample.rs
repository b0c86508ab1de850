//! Resizes images to the same bytes as Pillow (its `Resample.c`): a filter over columns, rounded to bytes, then one
//! over rows.

use std::f64::consts::PI;

use super::Pixels;

/// Fractional bits of a filter's weights.
const BITS: u32 = 32 - 8 - 2;

/// The function by which the old pixels around a new pixel are weighed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filter {
    /// Lanczos's filter of three lobes.
    Lanczos,
    Bilinear,
    /// The cubic filter with a = -1/2.
    Bicubic,
}

impl Filter {
    /// The distance from the middle of the filter, in pixels, from which on weights are zero.
    fn support(self) -> f64 {
        match self {
            Filter::Lanczos => 3.0,
            Filter::Bilinear => 1.0,
            Filter::Bicubic => 2.0,
        }
    }

    /// The weight of a pixel at the distance `x`.
    fn weight(self, x: f64) -> f64 {
        let sinc = |x: f64| if x == 0.0 { 1.0 } else { (PI * x).sin() / (PI * x) };
        let x = x.abs();
        match self {
            _ if x >= self.support() => 0.0,
            Filter::Lanczos => sinc(x) * sinc(x / 3.0),
            Filter::Bilinear => 1.0 - x,
            Filter::Bicubic if x < 1.0 => (1.5 * x - 2.5) * x * x + 1.0,
            Filter::Bicubic => ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0,
        }
    }

    /// For each of `to` new pixels: the index of the first of the `from` old pixels that count for it, and the
    /// weights of the old pixels from there on, as fixed-point numbers.
    fn weights(self, from: u32, to: u32) -> Vec<(usize, Vec<i64>)> {
        let scale = f64::from(from) / f64::from(to);
        let wide = scale.max(1.0);
        let support = self.support() * wide;
        let of = |pixel: u32| {
            let centre = (f64::from(pixel) + 0.5) * scale;
            let first = (centre - support + 0.5).max(0.0) as u32;
            let end = ((centre + support + 0.5) as u32).min(from);
            let weight = |at: u32| self.weight((f64::from(at) - centre + 0.5) / wide);
            let weights: Vec<f64> = (first..end).map(weight).collect();
            let sum: f64 = weights.iter().sum();
            let fixed = |weight: &f64| (weight / sum * f64::from(1 << BITS)).round() as i64;
            (first as usize, weights.iter().map(fixed).collect())
        };
        (0..to).map(of).collect()
    }
}

/// `image`, resized to `width` columns and `height` rows.
pub(super) fn resize(image: &Pixels, width: u32, height: u32, filter: Filter) -> Pixels {
    let byte = |sum: i64| ((sum + (1 << (BITS - 1))) >> BITS).clamp(0, 255) as u8;
    let mut wide = Pixels { width, height: image.height, bytes: Vec::new() };
    let columns = filter.weights(image.width, width);
    for row in image.bytes.chunks_exact(3 * image.width as usize) {
        for (first, weights) in &columns {
            wide.bytes.extend((0..3).map(|channel| {
                let pixels = row[3 * first + channel..].iter().step_by(3);
                byte(weights.iter().zip(pixels).map(|(weight, pixel)| weight * i64::from(*pixel)).sum())
            }));
        }
    }
    let line = 3 * width as usize;
    let mut all = Pixels { width, height, bytes: Vec::new() };
    for (first, weights) in filter.weights(image.height, height) {
        all.bytes.extend((0..line).map(|at| {
            let pixels = wide.bytes[first * line + at..].iter().step_by(line);
            byte(weights.iter().zip(pixels).map(|(weight, pixel)| weight * i64::from(*pixel)).sum())
        }));
    }
    all
}
