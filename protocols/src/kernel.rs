//! Local products of words with integers and words, near the speed of memory.
//!
//! Results are exact modulo 2^64, so every path agrees bit for bit; tests check it.
//!
//! A word x is split as x = l + 2^32 h with l in [-2^31, 2^31). Then x w = l w + 2^32 h w modulo 2^64 takes one
//! product of 32 by 32 bits, signed, and the low half of another; few processors have vectors of products of 64 bits.

use std::sync::{Arc, LazyLock};

use bits::cpu::{Cpu, Level};
use engine::Order;
use rayon::prelude::*;

use crate::Error;
use crate::matrix::FixedMatrix;

#[cfg(target_arch = "x86_64")]
mod x86_64;

/// Columns of a task, where a line is a row: at least, and at most, so that their sums stay near the processor.
const STRIP: (usize, usize) = (512, 4096);

/// Entries of a line that are read at a time, where it is a column.
const PIECE: usize = 2048;

/// Lines that are read at a time, where the entries of a line belong to different sums.
const DEPTH: usize = 8;

/// Columns of a task, where a line is a column.
const COLUMNS: usize = 64;

impl FixedMatrix {
    /// X W for row-major X (m x inputs), modulo 2^64: taken by this process, or by all that share the matrix.
    ///
    /// # Errors
    /// [`Error::Spread`] if another process cannot answer.
    pub fn times(&self, x: &[u64]) -> Result<Vec<u64>, Error> {
        let Some((spread, number)) = self.spread() else { return Ok(self.times_here(x)) };
        let own = self.columns(spread.columns(self.shape().1));
        spread.times(number, self.shape(), Arc::new(move |x| own.times_here(x)), x)
    }

    /// [`FixedMatrix::times`] by this process alone, with all columns.
    pub fn times_here(&self, x: &[u64]) -> Vec<u64> {
        times_matrix_on(family(), x, self)
    }
}

/// X Y for row-major X (m x `inputs`) and Y (`inputs` x `outputs`), modulo 2^64.
pub(crate) fn times_words(x: &[u64], y: &[u64], inputs: usize, outputs: usize) -> Vec<u64> {
    times_words_on(family(), x, y, inputs, outputs)
}

/// `$body`, compiled for the vector registers of each level, at `$level`, which must be one of this processor's:
/// [`family`] is, and tests ask for no other.
macro_rules! at_level {
    ($level:expr, |$($argument:ident: $type:ty),*| -> $result:ty $body:block) => {{
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx512f,avx512dq")]
            fn avx512($($argument: $type),*) -> $result $body
            #[target_feature(enable = "avx2")]
            fn avx2($($argument: $type),*) -> $result $body
            match $level {
                // SAFETY: the processor has the instructions of the level.
                Level::Avx512 | Level::Ifma => return unsafe { avx512($($argument),*) },
                // SAFETY: the same.
                Level::Avx2 => return unsafe { avx2($($argument),*) },
                Level::Portable => {}
            }
        }
        let _: Level = $level;
        $body
    }};
}
pub(crate) use at_level;

/// The kernels to use.
pub(crate) fn family() -> Level {
    // The kernels of AVX-512 do already what those of IFMA would do. Inner products ask for each word.
    static FAMILY: LazyLock<Level> = LazyLock::new(|| Cpu::get().level().min(Level::Avx512));
    *FAMILY
}

/// The halves of words: x = low + 2^32 high.
struct Halves {
    low: Vec<i32>,
    high: Vec<u32>,
}

impl Halves {
    fn new(x: &[u64]) -> Self {
        let low: Vec<i32> = x.iter().map(|&x| x as i32).collect();
        let high = x.iter().map(|&x| (x.wrapping_sub(x as i32 as u64) >> 32) as u32).collect();
        Halves { low, high }
    }
}

fn times_matrix_on(level: Level, x: &[u64], w: &FixedMatrix) -> Vec<u64> {
    let (inputs, outputs) = w.shape();
    let rows = x.len().checked_div(inputs).unwrap_or(0);
    let halves = Halves::new(x);
    match w.order() {
        Order::Rows => strips(rows, outputs, strip(rows, outputs), |start, columns, out| {
            let mut lines = vec![0; DEPTH * columns];
            let mut high = vec![0u32; rows * columns];
            for first in (0..inputs).step_by(DEPTH) {
                let depth = DEPTH.min(inputs - first);
                for (i, line) in lines.chunks_exact_mut(columns).take(depth).enumerate() {
                    w.read(first + i, start, line);
                }
                lines[depth * columns..].fill(0);
                let sums = out.chunks_exact_mut(columns).zip(high.chunks_exact_mut(columns));
                for (row, (low_sums, high_sums)) in sums.enumerate() {
                    let at = row * inputs + first;
                    let mut low = [0i32; DEPTH];
                    low[..depth].copy_from_slice(&halves.low[at..at + depth]);
                    let mut high = [0u32; DEPTH];
                    high[..depth].copy_from_slice(&halves.high[at..at + depth]);
                    scale_lines(level, &low, &high, &lines, low_sums, high_sums);
                }
            }
            out.iter_mut().zip(&high).for_each(|(out, &h)| *out = out.wrapping_add(u64::from(h) << 32));
        }),
        Order::Columns => strips(rows, outputs, COLUMNS, |start, columns, sums| {
            let mut line = [0; PIECE];
            let count = |from: usize| PIECE.min(inputs - from);
            let pieces = || (0..inputs).step_by(PIECE).flat_map(|i| (0..columns).map(move |c| (i, c)));
            let mut ahead = pieces().skip(1);
            for (from, column) in pieces() {
                let line = &mut line[..count(from)];
                // The next piece comes from memory while this one is multiplied.
                if let Some((from, column)) = ahead.next() {
                    w.fetch(start + column, from, count(from));
                }
                w.read(start + column, from, line);
                for row in 0..rows {
                    let part = row * inputs + from..row * inputs + from + line.len();
                    let (low, high) = (&halves.low[part.clone()], &halves.high[part]);
                    let sum = &mut sums[row * columns + column];
                    *sum = sum.wrapping_add(inner(level, low, high, line));
                }
            }
        }),
    }
}

fn times_words_on(level: Level, x: &[u64], y: &[u64], inputs: usize, outputs: usize) -> Vec<u64> {
    assert_eq!(y.len(), inputs * outputs, "entries of the right factor");
    let rows = x.len().checked_div(inputs).unwrap_or(0);
    strips(rows, outputs, strip(rows, outputs), |start, columns, out| {
        // All rows of x use a block of the matrix while it is in the cache.
        for first in (0..inputs).step_by(64) {
            let block = first..inputs.min(first + 64);
            for (x, out) in x.chunks_exact(inputs).zip(out.chunks_exact_mut(columns)) {
                scale_words(level, &x[block.clone()], y, first * outputs + start, outputs, out);
            }
        }
    })
}

/// Columns of a task. Long pieces of rows are read fastest, but every thread needs some.
fn strip(rows: usize, outputs: usize) -> usize {
    let (least, most) = STRIP;
    let width = outputs.div_ceil(rayon::current_num_threads()).next_multiple_of(64);
    width.clamp(least, least.max(most / rows.max(1)))
}

/// Rows of `outputs` sums from tasks of `width` columns each: `fill` gets the first, their number and the sums.
fn strips(rows: usize, outputs: usize, width: usize, fill: impl Fn(usize, usize, &mut [u64]) + Sync) -> Vec<u64> {
    let columns = |start: usize| width.min(outputs - start);
    let filled = (0..outputs).into_par_iter().step_by(width).map(|start| {
        let mut out = vec![0; rows * columns(start)];
        fill(start, columns(start), &mut out);
        out
    });
    let strips: Vec<Vec<u64>> = filled.collect();
    let mut out = vec![0; rows * outputs];
    for (strip, start) in strips.iter().zip((0..outputs).step_by(width)) {
        for (out, strip) in out.chunks_exact_mut(outputs).zip(strip.chunks_exact(columns(start))) {
            out[start..start + strip.len()].copy_from_slice(strip);
        }
    }
    out
}

/// Adds `low[i] lines[i]` to `low_sums` and `high[i] lines[i]` to `high_sums`, modulo 2^32, for every line.
fn scale_lines(
    level: Level,
    low: &[i32; DEPTH],
    high: &[u32; DEPTH],
    lines: &[i32],
    low_sums: &mut [u64],
    high_sums: &mut [u32],
) {
    let columns = low_sums.len();
    let lines: [&[i32]; DEPTH] = std::array::from_fn(|i| &lines[i * columns..(i + 1) * columns]);
    let high_sums = &mut high_sums[..columns];
    let (_, done): (Level, _) = (level, 0);
    #[cfg(target_arch = "x86_64")]
    let done = match level {
        // SAFETY: `family` is a level of this processor, and tests ask for no other.
        Level::Avx2 | Level::Avx512 | Level::Ifma => unsafe {
            x86_64::scale_lines_avx2(low, high, &lines, low_sums, high_sums)
        },
        Level::Portable => done,
    };
    for c in done..columns {
        for (line, (low, high)) in lines.iter().zip(low.iter().zip(high)) {
            let w = line[c];
            low_sums[c] = low_sums[c].wrapping_add((i64::from(*low) * i64::from(w)) as u64);
            high_sums[c] = high_sums[c].wrapping_add(high.wrapping_mul(w as u32));
        }
    }
}

/// The inner product of the words (low, high) and of `line`.
fn inner(level: Level, low: &[i32], high: &[u32], line: &[i32]) -> u64 {
    let (_, done): (Level, _) = (level, (0, (0u64, 0u32)));
    #[cfg(target_arch = "x86_64")]
    let done = match level {
        // SAFETY: `family` is a level of this processor, and tests ask for no other.
        Level::Avx512 | Level::Ifma => (line.len() / 16 * 16, unsafe { x86_64::inner_avx512(low, high, line) }),
        // SAFETY: the same.
        Level::Avx2 => (line.len() / 8 * 8, unsafe { x86_64::inner_avx2(low, high, line) }),
        Level::Portable => done,
    };
    let (done, (sum, top)) = done;
    let rest = low[done..].iter().zip(&high[done..]).zip(&line[done..]);
    let (sum, top) = rest.fold((sum, top), |(sum, top), ((low, high), w)| {
        let product = (i64::from(*low) * i64::from(*w)) as u64;
        (sum.wrapping_add(product), top.wrapping_add(high.wrapping_mul(*w as u32)))
    });
    sum.wrapping_add(u64::from(top) << 32)
}

/// Adds `x Y` for rows of `y` that lie `pitch` words apart, the first at `at`. AVX-512 has products of 64 bits.
fn scale_words(level: Level, x: &[u64], y: &[u64], at: usize, pitch: usize, out: &mut [u64]) {
    at_level!(level, |x: &[u64], y: &[u64], at: usize, pitch: usize, out: &mut [u64]| -> () {
        const ROWS: usize = 4;
        let columns = out.len();
        let row = |i: usize| &y[at + i * pitch..][..columns];
        let mut groups = x.chunks_exact(ROWS);
        let mut i = 0;
        for group in &mut groups {
            let rows: [&[u64]; ROWS] = std::array::from_fn(|j| row(i + j));
            for (c, out) in out.iter_mut().enumerate() {
                let sum = (0..ROWS).fold(0u64, |sum, j| sum.wrapping_add(group[j].wrapping_mul(rows[j][c])));
                *out = out.wrapping_add(sum);
            }
            i += ROWS;
        }
        for &x in groups.remainder() {
            out.iter_mut().zip(row(i)).for_each(|(out, y)| *out = out.wrapping_add(x.wrapping_mul(*y)));
            i += 1;
        }
    })
}

/// The levels of this processor.
#[cfg(test)]
pub(crate) fn levels() -> impl Iterator<Item = Level> {
    Level::ALL.into_iter().filter(|level| *level <= family())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::matrix::WEIGHT_BITS;
    use proptest::prelude::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};
    use testing::Columns;

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
            let extreme = [0, u64::MAX, 1 << 63, 1 << 31, (1 << 31) - 1, 1 << 32];
            let word = |i: usize, random: u64| if i.is_multiple_of(5) { extreme[i % 6] } else { random };
            let x: Vec<u64> = (0..rows * inputs).map(|i| word(i, rng.next_u64())).collect();
            let most = (1 << WEIGHT_BITS) - 1;
            let w: Vec<i32> = (0..inputs * outputs)
                .map(|i| if i % 7 == 0 { -most } else { rng.next_u64() as i32 >> (31 - WEIGHT_BITS) }.min(most).max(-most))
                .collect();
            let words: Vec<u64> = w.iter().map(|&w| w as i64 as u64).collect();
            let want = naive(&x, &words, inputs, outputs);
            let column = |j: usize| w[j..].iter().step_by(outputs).map(|w| *w as f32 / 16.0);
            let entries = (0..outputs).flat_map(column).collect();
            let by_columns = FixedMatrix::rounded(Arc::new(Columns { inputs, entries }), 4);
            let by_rows = FixedMatrix::integers(inputs, outputs, w);
            for level in levels() {
                prop_assert_eq!(&times_matrix_on(level, &x, &by_rows), &want, "{:?}", level);
                prop_assert_eq!(&times_matrix_on(level, &x, &by_columns), &want, "{:?}", level);
                prop_assert_eq!(&times_words_on(level, &x, &words, inputs, outputs), &want, "{:?}", level);
            }
        }
    }
}
