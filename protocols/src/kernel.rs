//! Local products of words with integers and words, near the speed of memory.
//!
//! Results are exact modulo 2^64, so the vector and the portable path agree bit for bit; a test checks it. The vector
//! path is the same loop compiled for AVX-512, which has the 64-bit multiplication that the portable build lacks.

use bits::cpu::{Cpu, Feature};
use rayon::prelude::*;

/// Columns that one task works on: a strip of the result stays in the first-level cache.
const STRIP: usize = 512;

/// Rows of the matrix that are read at once for one pass over a strip.
const DEPTH: usize = 4;

/// An element of the right factor.
trait Entry: Copy + Send + Sync {
    fn word(self) -> u64;
}

impl Entry for i32 {
    #[inline(always)]
    fn word(self) -> u64 {
        self as i64 as u64
    }
}

impl Entry for u64 {
    #[inline(always)]
    fn word(self) -> u64 {
        self
    }
}

/// X W for row-major X (m x `inputs`) and W (`inputs` x `outputs`), modulo 2^64.
pub(crate) fn times_matrix(x: &[u64], w: &[i32], inputs: usize, outputs: usize) -> Vec<u64> {
    product(x, w, inputs, outputs)
}

/// X Y for row-major X (m x `inputs`) and Y (`inputs` x `outputs`), modulo 2^64.
pub(crate) fn times_words(x: &[u64], y: &[u64], inputs: usize, outputs: usize) -> Vec<u64> {
    product(x, y, inputs, outputs)
}

fn product<T: Entry>(x: &[u64], w: &[T], inputs: usize, outputs: usize) -> Vec<u64> {
    assert_eq!(w.len(), inputs * outputs, "entries of the right factor");
    let rows = x.len().checked_div(inputs).unwrap_or(0);
    let vector = vector_path();
    let strips: Vec<Vec<u64>> = (0..outputs)
        .into_par_iter()
        .step_by(STRIP)
        .map(|start| {
            let columns = STRIP.min(outputs - start);
            let mut out = vec![0; rows * columns];
            // All rows of x use a block of the matrix while it is in the cache.
            for first in (0..inputs).step_by(64) {
                let block = first..inputs.min(first + 64);
                for (x, out) in x.chunks_exact(inputs).zip(out.chunks_exact_mut(columns)) {
                    let strip = Strip { w, outputs, start, first };
                    accumulate(vector, &x[block.clone()], strip, out);
                }
            }
            out
        })
        .collect();
    let mut out = vec![0; rows * outputs];
    for (strip, start) in strips.iter().zip((0..outputs).step_by(STRIP)) {
        let columns = STRIP.min(outputs - start);
        for (out, strip) in out.chunks_exact_mut(outputs).zip(strip.chunks_exact(columns)) {
            out[start..start + columns].copy_from_slice(strip);
        }
    }
    out
}

/// The columns from `start` of the rows from `first` of a matrix with `outputs` columns.
#[derive(Clone, Copy)]
struct Strip<'a, T> {
    w: &'a [T],
    outputs: usize,
    start: usize,
    first: usize,
}

impl<'a, T> Strip<'a, T> {
    #[inline(always)]
    fn row(&self, i: usize, columns: usize) -> &'a [T] {
        let at = (self.first + i) * self.outputs + self.start;
        &self.w[at..at + columns]
    }
}

/// out += x W for the rows and columns of a strip.
#[inline(always)]
fn accumulate_rows<T: Entry>(x: &[u64], strip: Strip<'_, T>, out: &mut [u64]) {
    let columns = out.len();
    let mut groups = x.chunks_exact(DEPTH);
    let mut i = 0;
    for group in &mut groups {
        let rows: [&[T]; DEPTH] = std::array::from_fn(|j| strip.row(i + j, columns));
        for (c, out) in out.iter_mut().enumerate() {
            let sum = (0..DEPTH).fold(0u64, |sum, j| sum.wrapping_add(group[j].wrapping_mul(rows[j][c].word())));
            *out = out.wrapping_add(sum);
        }
        i += DEPTH;
    }
    for &x in groups.remainder() {
        let row = strip.row(i, columns);
        out.iter_mut().zip(row).for_each(|(out, w)| *out = out.wrapping_add(x.wrapping_mul(w.word())));
        i += 1;
    }
}

/// Whether [`accumulate_wide`] may run.
fn vector_path() -> bool {
    Cpu::get().has(Feature::Avx512)
}

/// [`accumulate_rows`], compiled for 512-bit vectors with a 64-bit multiplication.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq")]
fn accumulate_wide<T: Entry>(x: &[u64], strip: Strip<'_, T>, out: &mut [u64]) {
    accumulate_rows(x, strip, out);
}

#[inline(always)]
fn accumulate<T: Entry>(vector: bool, x: &[u64], strip: Strip<'_, T>, out: &mut [u64]) {
    #[cfg(target_arch = "x86_64")]
    if vector {
        // SAFETY: `vector` is the answer of `vector_path`: the processor has AVX-512 F and DQ.
        unsafe { accumulate_wide(x, strip, out) };
        return;
    }
    let _ = vector;
    accumulate_rows(x, strip, out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    fn naive(x: &[u64], w: &[u64], inputs: usize, outputs: usize) -> Vec<u64> {
        let mut out = vec![0u64; x.len() / inputs * outputs];
        for (i, out) in out.iter_mut().enumerate() {
            for j in 0..inputs {
                let product = x[i / outputs * inputs + j].wrapping_mul(w[j * outputs + i % outputs]);
                *out = out.wrapping_add(product);
            }
        }
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn products_equal_the_naive_ones(rows in 1usize..4, inputs in 1usize..140, outputs in 1usize..1100, seed: u64) {
            let mut rng = StdRng::seed_from_u64(seed);
            let x: Vec<u64> = (0..rows * inputs).map(|_| rng.next_u64()).collect();
            let w: Vec<i32> = (0..inputs * outputs).map(|_| rng.next_u64() as i32).collect();
            let words: Vec<u64> = w.iter().map(|&w| w as i64 as u64).collect();
            let want = naive(&x, &words, inputs, outputs);
            prop_assert_eq!(times_matrix(&x, &w, inputs, outputs), want.clone());
            prop_assert_eq!(times_words(&x, &words, inputs, outputs), want);
        }
    }

    #[test]
    fn both_paths_give_the_same_words() {
        let mut rng = StdRng::seed_from_u64(1);
        let (inputs, outputs) = (67, 519);
        let x: Vec<u64> = (0..inputs).map(|_| rng.next_u64()).collect();
        let w: Vec<i32> = [i32::MIN, i32::MAX, -1].into_iter().cycle().take(inputs * outputs).collect();
        let run = |vector| {
            let mut out = vec![7; outputs];
            accumulate(vector, &x, Strip { w: &w, outputs, start: 0, first: 0 }, &mut out);
            out
        };
        assert_eq!(run(false), run(vector_path()));
    }
}
