//! Products of words with words and with matrices that are read as they are multiplied.

use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;
use waggle_bits::cpu::Family;
use waggle_engine::Order;

use crate::Error;
use crate::kernel::{BESIDE, DEPTH, REST, family, inner, inner_portable, inner_stored, scale_lines, scale_words};
use crate::matrix::FixedMatrix;

/// If a line is a row: the fewest and the most columns of a task. With more columns, the sums would not stay near the
/// processor.
const STRIP: (usize, usize) = (512, 4096);

/// If a line is a column: entries of a line that are read at a time.
const PIECE: usize = 2048;

/// If a line is a column: columns of a task.
const COLUMNS: usize = 64;

impl FixedMatrix {
    /// X W for row-major X (m x inputs), modulo 2^64, computed by this process or by all that share the matrix.
    ///
    /// # Errors
    /// [`Error::Spread`] if another process cannot answer.
    pub fn times(&self, x: &[u64]) -> Result<Vec<u64>, Error> {
        let Some((spread, number)) = self.spread() else { return Ok(self.times_here(x)) };
        let own = self.columns(spread.columns(self.shape().1));
        spread.times(number, self.shape(), Arc::new(move |x| own.times_here(x)), x)
    }

    /// [`FixedMatrix::times`] where the matrix is zero beside `blocks` equal blocks on its diagonal.
    ///
    /// # Errors
    /// As [`FixedMatrix::times`].
    pub(crate) fn times_blocks(&self, x: &[u64], blocks: usize) -> Result<Vec<u64>, Error> {
        if blocks == 1 || self.order() == Order::Columns || self.spread().is_some() {
            return self.times(x);
        }
        let (inputs, outputs) = self.shape();
        let (k, n) = (inputs / blocks, outputs / blocks);
        let products = swapped(x, [x.len() / inputs, blocks, k]);
        let products = products.chunks_exact((x.len() / blocks).max(1)).enumerate().flat_map(|(block, x)| {
            times_rows_on(family(), x, self, block * k..(block + 1) * k, block * n..(block + 1) * n)
        });
        Ok(swapped(&products.collect::<Vec<u64>>(), [blocks, x.len() / inputs, n]))
    }

    /// [`FixedMatrix::times`] by this process alone, with all columns.
    pub fn times_here(&self, x: &[u64]) -> Vec<u64> {
        times_matrix_on(family(), x, self)
    }
}

/// `x` (a, b, n) as (b, a, n).
pub(crate) fn swapped(x: &[u64], [a, b, n]: [usize; 3]) -> Vec<u64> {
    let pieces = (0..b).flat_map(|j| (0..a).map(move |i| (i * b + j) * n));
    pieces.flat_map(|at| &x[at..at + n]).copied().collect()
}

/// X Y for row-major X (m x `inputs`) and Y (`inputs` x `outputs`), modulo 2^64.
pub(crate) fn times_words(x: &[u64], y: &[u64], inputs: usize, outputs: usize) -> Vec<u64> {
    times_words_on(family(), x, y, inputs, outputs)
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

fn times_matrix_on(family: Family, x: &[u64], w: &FixedMatrix) -> Vec<u64> {
    let (inputs, outputs) = w.shape();
    let rows = x.len().checked_div(inputs).unwrap_or(0);
    let halves = Halves::new(x);
    match w.order() {
        Order::Rows => times_rows_on(family, x, w, 0..inputs, 0..outputs),
        Order::Columns => strips(rows, outputs, COLUMNS, |start, columns, sums| {
            if rows == 1 {
                let products = (start..start + columns).map(|line| line_product(family, &halves, w, line));
                if let Some(products) = products.collect::<Option<Vec<u64>>>() {
                    return sums.copy_from_slice(&products);
                }
            }
            let mut lines = [[0; PIECE]; BESIDE];
            let count = |from: usize| PIECE.min(inputs - from);
            let pieces = || (0..inputs).step_by(PIECE).flat_map(|i| (0..columns).map(move |c| (i, c)));
            let mut ahead = pieces().skip(BESIDE);
            for (from, column) in pieces().filter(|(_, column)| column.is_multiple_of(BESIDE)) {
                let length = count(from);
                for (line, column) in lines.iter_mut().zip(column..columns) {
                    // Later pieces come from memory while these are multiplied.
                    if let Some((from, column)) = ahead.next() {
                        w.fetch(start + column, from, count(from));
                    }
                    w.read(start + column, from, &mut line[..length]);
                }
                let lines = lines.each_ref().map(|line| &line[..length]);
                for (row, sums) in sums.chunks_exact_mut(columns).enumerate() {
                    let part = row * inputs + from..row * inputs + from + length;
                    let products = inner(family, &halves.low[part.clone()], &halves.high[part], lines);
                    let sums = sums[column..].iter_mut().zip(products);
                    sums.for_each(|(sum, product)| *sum = sum.wrapping_add(product));
                }
            }
        }),
    }
}

/// The product of `x` with the entries of `w` in the rows `lines` and in `columns`. A line of `w` is a row.
fn times_rows_on(family: Family, x: &[u64], w: &FixedMatrix, lines: Range<usize>, columns: Range<usize>) -> Vec<u64> {
    let ((top, inputs), (left, outputs)) = ((lines.start, lines.len()), (columns.start, columns.len()));
    let rows = x.len().checked_div(inputs).unwrap_or(0);
    let halves = Halves::new(x);
    strips(rows, outputs, strip(rows, outputs), |start, columns, out| {
        let mut lines = vec![0; DEPTH * columns];
        let mut high = vec![0u32; rows * columns];
        for first in (0..inputs).step_by(DEPTH) {
            let depth = DEPTH.min(inputs - first);
            for (i, line) in lines.chunks_exact_mut(columns).take(depth).enumerate() {
                // Later lines come from memory while these are multiplied.
                if first + DEPTH + i < inputs {
                    w.fetch(top + first + DEPTH + i, left + start, columns);
                }
                w.read(top + first + i, left + start, line);
            }
            lines[depth * columns..].fill(0);
            let sums = out.chunks_exact_mut(columns).zip(high.chunks_exact_mut(columns));
            for (row, (low_sums, high_sums)) in sums.enumerate() {
                let at = row * inputs + first;
                let mut low = [0i32; DEPTH];
                low[..depth].copy_from_slice(&halves.low[at..at + depth]);
                let mut high = [0u32; DEPTH];
                high[..depth].copy_from_slice(&halves.high[at..at + depth]);
                scale_lines(family, &low, &high, &lines, low_sums, high_sums);
            }
        }
        out.iter_mut().zip(&high).for_each(|(out, &h)| *out = out.wrapping_add(u64::from(h) << 32));
    })
}

/// The product of the row `x` with line number `line` of `w`, which is read, rounded and multiplied at once. `None`
/// if no kernel reads the form in which the line is stored.
fn line_product(family: Family, x: &Halves, w: &FixedMatrix, line: usize) -> Option<u64> {
    let (low, high) = (&x.low[..], &x.high[..]);
    let stored = w.stored(line, 0, low.len())?;
    let (done, sum) = inner_stored(family, low, high, &stored)?;
    let mut rest = [0; REST];
    let rest = &mut rest[..low.len() - done];
    w.read(line, done, rest);
    Some(sum.wrapping_add(inner_portable(&low[done..], &high[done..], rest)))
}

fn times_words_on(family: Family, x: &[u64], y: &[u64], inputs: usize, outputs: usize) -> Vec<u64> {
    assert_eq!(y.len(), inputs * outputs, "entries of the right factor");
    let rows = x.len().checked_div(inputs).unwrap_or(0);
    strips(rows, outputs, strip(rows, outputs), |start, columns, out| {
        // All rows of x use a block of the matrix while it is in the cache.
        for first in (0..inputs).step_by(64) {
            let block = first..inputs.min(first + 64);
            for (x, out) in x.chunks_exact(inputs).zip(out.chunks_exact_mut(columns)) {
                scale_words(family, &x[block.clone()], y, first * outputs + start, outputs, out);
            }
        }
    })
}

/// Number of columns of a task. Long pieces of rows are read fastest, but every thread needs a task.
fn strip(rows: usize, outputs: usize) -> usize {
    let (least, most) = STRIP;
    let width = outputs.div_ceil(rayon::current_num_threads()).next_multiple_of(64);
    width.clamp(least, least.max(most / rows.max(1)))
}

/// A matrix of `rows` rows of `outputs` sums each, made by tasks of `width` columns. `fill` gets a task's first
/// column, its number of columns and its sums.
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use waggle_bits::cpu::Level;
    use waggle_engine::Stored;

    use crate::kernel::{families, round_stored};
    use crate::matrix::WEIGHT_BITS;
    use half::f16;
    use proptest::prelude::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};
    use waggle_engine::Narrow;
    use waggle_testing::Columns;

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
            for family in families() {
                prop_assert_eq!(&times_matrix_on(family, &x, &by_rows), &want, "{:?}", family);
                prop_assert_eq!(&times_matrix_on(family, &x, &by_columns), &want, "{:?}", family);
                prop_assert_eq!(&times_words_on(family, &x, &words, inputs, outputs), &want, "{:?}", family);
            }
        }
    }

    proptest! {
        /// Products with a line as it is stored are equal to products with the entries read from it, for any bits:
        /// tiny numbers, large ones, infinities and NaN.
        #[test]
        fn a_line_as_it_is_stored_is_as_it_is_read(
            bits in prop::collection::vec(any::<u16>(), 1..140),
            (kind, gained) in (0..3, any::<bool>()),
            (frac, seed) in (4u32..=16, any::<u64>()),
        ) {
            let mut rng = StdRng::seed_from_u64(seed);
            let gain = |i: usize| if i.is_multiple_of(3) { f32::from_bits(rng.next_u32()) } else { rng.next_u32() as f32 / 1.0e9 };
            let gains: Option<Vec<f32>> = gained.then(|| (0..bits.len()).map(gain).collect());
            let factor = [1.0, 0.3, -7.0, 1.0e-30, 1.0e20][bits.len() % 5];
            let scale = f32::from_bits(rng.next_u32());
            let wide = |bits: u16| match kind {
                0 => f16::from_bits(bits).into(),
                1 => f32::from_bits(u32::from(bits) << 16),
                _ => f32::from(bits as i8) * scale,
            };
            let entry = |(i, bits)| wide(bits) * gains.as_ref().map_or(1.0, |gains| gains[i]) * factor;
            let entries = bits.iter().copied().enumerate().map(entry).collect();
            let want = FixedMatrix::rounded(Arc::new(Columns { inputs: bits.len(), entries }), frac).to_integers();
            let numbers: Vec<[u8; 2]> = bits.iter().map(|bits| bits.to_le_bytes()).collect();
            let bytes: Vec<[u8; 1]> = bits.iter().map(|bits| [*bits as u8]).collect();
            let x: Vec<u64> = bits.iter().map(|_| rng.next_u64()).collect();
            for (family, from) in families().flat_map(|family| (0..bits.len().min(17)).map(move |from| (family, from))) {
                let numbers = match kind {
                    0 => Narrow::F16(&numbers[from..]),
                    1 => Narrow::Bf16(&numbers[from..]),
                    _ => Narrow::I8(&bytes[from..], scale),
                };
                let gains = gains.as_ref().map(|gains| &gains[from..]);
                let stored = Stored { numbers, gains, factor: factor * (1u32 << frac) as f32 };
                let mut got = vec![0; bits.len() - from];
                let done = round_stored(family, &stored, &mut got);
                prop_assert!(family.level() == Level::Portable || got.len() - done < REST);
                prop_assert_eq!(&got[..done], &want[from..from + done], "{:?}", family);
                let halves = Halves::new(&x[from..]);
                let sum = inner_portable(&halves.low[..done], &halves.high[..done], &got);
                let product = inner_stored(family, &halves.low, &halves.high, &stored);
                prop_assert_eq!(product, (family.level() != Level::Portable).then_some((done, sum)), "{:?}", family);
            }
        }
    }
}
