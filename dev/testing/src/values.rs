//! Sample values, and how far results are from them.

use ndarray::ArrayD;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use waggle_protocols::FRAC;
use waggle_protocols::words::{mask, signed};

/// Numbers as words at [`FRAC`] fractional bits, rounded to nearest.
pub fn to_fixed(x: &ArrayD<f64>) -> ArrayD<u64> {
    x.mapv(|x| (x * f64::from(1u32 << FRAC)).round() as i64 as u64)
}

/// The numbers that words at [`FRAC`] fractional bits stand for.
pub fn to_real(words: &ArrayD<u64>) -> ArrayD<f64> {
    words.mapv(|word| word as i64 as f64 / f64::from(1u32 << FRAC))
}

/// The largest difference between an entry of `a` and the entry of `b` with the same index.
///
/// # Panics
/// If the shapes differ.
pub fn largest_difference(a: &ArrayD<f64>, b: &ArrayD<f64>) -> f64 {
    assert_eq!(a.shape(), b.shape(), "shapes of what is compared");
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

/// `count` signed values of the open range (-2^bits, 2^bits), 1 <= bits <= 63: the edges first, then random ones.
/// Equal seeds give equal values.
pub fn signed_values(bits: u32, count: usize, seed: u64) -> Vec<u64> {
    let top = ((1u64 << bits) - 1) as i64;
    let mut rng = StdRng::seed_from_u64(seed);
    let edges = [0, 1, -1, top, -top, top / 2, -top / 2, top - 1];
    let random = std::iter::repeat_with(|| {
        let magnitude = (rng.next_u64() >> (64 - bits)) as i64;
        if rng.next_u64() & 1 == 1 { magnitude } else { -magnitude }
    });
    edges.into_iter().chain(random).take(count).map(|value| value as u64).collect()
}

/// The distance of `got` from `want` modulo 2^`width`, in the shorter direction.
pub fn distance(got: u64, want: u64, width: u32) -> u64 {
    signed(got.wrapping_sub(want) & mask(width), width).unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::arr1;

    #[test]
    fn numbers_survive_the_way_to_words_and_back() {
        let x = arr1(&[0.0, 1.5, -2.25, 1000.0]).into_dyn();
        assert_eq!(to_real(&to_fixed(&x)), x);
    }

    #[test]
    fn values_stay_in_their_range_and_reach_its_edges() {
        for bits in [1, 2, 20, 63] {
            let top = ((1u64 << bits) - 1) as i64;
            let values = signed_values(bits, 100, 3);
            assert!(values.iter().all(|&x| (-top..=top).contains(&(x as i64))), "{bits} bits");
            assert!(values.contains(&(top as u64)) && values.contains(&(-top as u64)), "{bits} bits");
            assert_eq!(values, signed_values(bits, 100, 3));
        }
    }

    #[test]
    fn distances_wrap_around() {
        assert_eq!(distance(0, mask(10), 10), 1);
        assert_eq!(distance(mask(10), 0, 10), 1);
        assert_eq!(distance(5 | 1 << 40, 5, 10), 0);
    }
}
