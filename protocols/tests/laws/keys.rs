//! Evaluation by FSS keys is held to the laws, for every kind of table.

use waggle_protocols::ops::fss::counts::VALUES;
use waggle_protocols::ops::fss::ladder::{Ladder, LadderSpec};
use waggle_protocols::ops::fss::table::{CurveSpec, FssTable};
use waggle_protocols::ops::fss::tails::{TailedTable, near};
use waggle_protocols::ops::{B2a, CountAtLeast, Evaluate, EvaluateNear, Function as Tabulated, MuxColumns, NonZero};
use waggle_protocols::words::mask;
use waggle_protocols::{Lengths, Options, Tensor};
use waggle_testing::{Laws, TWO_PHASES, function, signed_values};

fn spec(index_bits: u32, low_bits: u32, out_frac: u32, out_width: u32) -> CurveSpec {
    let step = (-f64::from(index_bits + low_bits)).exp2();
    CurveSpec { index_bits, low_bits, base: -0.25, step, out_frac, out_width }
}

/// All inputs of a table, or inputs from all over its range, with both ends.
fn inputs(index_bits: u32, low_bits: u32) -> Vec<u64> {
    let end = (mask(index_bits) - 1) << low_bits;
    let step = end.div_ceil(700).max(1);
    // The inputs of the lowest window reach windows below it.
    let lowest = (0..60).map(|i| (i << low_bits) / 60);
    (0..end).step_by(step as usize).chain([1, end - 1, end / 2]).chain(lowest).collect()
}

#[test]
fn evaluate_on_masked_inputs() {
    let (index_bits, low_bits, out_frac, out_width) = (5, 4, 20, 30);
    // All inputs but those of the two last windows.
    let x: Vec<u64> = (0..30 << low_bits).collect();
    let n = x.len();

    // Lines with slopes in whole units are exact, however the input is split.
    let exact = CurveSpec { base: 0.0, step: 1.0, ..spec(index_bits, low_bits, 0, out_width) };
    let exact = Tabulated::masked(FssTable::lines(exact, |x| 3.0 * x + 7.0), 0);
    Laws::of(Evaluate { function: &exact }).words(&[n], x.clone()).ring(out_width).hold();

    // Other curves depend on the split, and the reference draws another one than the parties. Each is off by the
    // error of interpolation over a triple window, f'' (3 window)^2 / 16, by half a unit of the slope at up to one
    // and a half windows from the middle, and by half a unit of the constant.
    let step = (-f64::from(index_bits + low_bits)).exp2();
    let (second_derivative, window) = (2.0, f64::from(1u32 << low_bits));
    let interpolation = second_derivative * (3.0 * window * step).powi(2) / 16.0 * f64::from(1u32 << out_frac);
    let error = 2.0 * (interpolation + 0.5 * 1.5 * window + 0.5);
    let curve = FssTable::lines(spec(index_bits, low_bits, out_frac, out_width), |x| x * x - 0.5);
    let curve = Tabulated::masked(curve, out_frac);
    Laws::of(Evaluate { function: &curve }).words(&[n], x).ring(out_width).error(error as u64).hold();
}

/// Tables with narrow and wide rings, one and two windows a leaf, the smallest and one that takes several batches,
/// whose results are compared by their definition in `protocols/src/tests/masked.rs`.
#[test]
fn every_kind_of_table() {
    let lines = |i, l, f, w| FssTable::lines(spec(i, l, f, w), |x| x * x - 0.5);
    let parabolas = |i, l, f, w| FssTable::parabolas(spec(i, l, f, w), |x| x * x * x - 0.5);
    let real = Options { ot: waggle_ot::CotKind::default(), ..TWO_PHASES };
    for (table, count, options) in [
        (lines(2, 3, 10, 14), None, TWO_PHASES),
        (lines(7, 4, 50, 64), None, TWO_PHASES),
        (lines(6, 5, 20, 40), Some(33), real),
        (parabolas(5, 1, 20, 32), None, TWO_PHASES),
        (parabolas(13, 2, 20, 30), Some(1030), TWO_PHASES),
        (parabolas(3, 5, 20, 30), Some(0), TWO_PHASES),
        (FssTable::decay(5, 18, 0.5, 17, [20, 25], 48), Some(90), TWO_PHASES),
        (FssTable::decay(7, 6, 0.5, 9, [20, 22], 64), None, TWO_PHASES),
    ] {
        let shape = table.shape();
        let x = inputs(shape.index_bits, shape.low_bits);
        let x: Vec<u64> = x.iter().cycle().take(count.unwrap_or(x.len())).copied().collect();
        let function = Tabulated::masked(table, 0);
        // Far less than the error of a wrong window, for functions that vary by 1.
        let error = mask(shape.width.min(60)) / 4;
        Laws::of(Evaluate { function: &function })
            .words(&[x.len()], x)
            .ring(shape.width)
            .error(error)
            .over(&[options])
            .hold();
    }
}

#[test]
fn evaluate_by_ladders() {
    for (rungs, start) in [(1u32, 2000u64), (2, 2047), (3, 3000), (5, 2500)] {
        let range = [start, (start << (3 * rungs - 1)) - 1];
        let spec =
            LadderSpec { index_bits: 9, low_bits: 5, octaves: 3, range, in_width: 40, out_frac: 40, out_width: 52 };
        let ladder = Ladder::fit(spec, |x| 1000.0 / x);
        assert!(ladder.shape().rungs == rungs as usize && ladder.contains(start) && !ladder.contains(start - 1));
        let function = Tabulated::ladder(ladder, 40);
        // Rung by rung, as the error is relative: twice 9e-4.
        for octave in (0..3 * rungs - 1).step_by(2) {
            let first = start << octave;
            let x = (0..60).map(|i| first + i * first / 60).chain([first + 1, 2 * first - 1]).collect();
            let error = 2.0 * 9e-4 * 1000.0 / first as f64 * 40f64.exp2();
            Laws::of(Evaluate { function: &function })
                .words(&[62], x)
                .ring(52)
                .error(error as u64)
                .over(&[TWO_PHASES])
                .hold();
        }
    }
}

/// sin over the cell of the table, which is an interval of length 2: selected where it is near, with both bits.
#[test]
fn evaluate_near() {
    for (index_bits, low_bits, cell_bits) in [(2, 3, 7), (3, 5, 8), (8, 6, 7), (7, 6, 8)] {
        let step = 2.0 / f64::from(1u32 << (index_bits + low_bits));
        let base = -f64::from(1u32 << cell_bits);
        let spec = CurveSpec { index_bits, low_bits, base, step, out_frac: 25, out_width: 30 };
        let table: &'static TailedTable = Box::leak(Box::new(TailedTable::fit(spec, cell_bits, f64::sin)));
        let (cell, window) = (1u64 << (index_bits + low_bits), 1u64 << low_bits);
        let near = near(table.shape()) * cell;
        // Keeps clear of the first two windows of a cell, where either side may count.
        let all = (0..(1 << cell_bits) * cell - 2 * window).step_by((cell as usize / 3).max(1));
        let inside = (near..near + cell).step_by((cell / 300).max(1) as usize);
        let x: Vec<u64> = all.chain(inside).filter(|x| x % cell > 3 * window).collect();
        let n = x.len();
        let ends = vec![mask(table.shape().input_bits()); n];
        // f''' (3 window)^3 / 192 and the roundings of squares, for both boxes.
        let bound = 2.0 * ((3.0 * 2.0 / f64::from(1 << index_bits)).powi(3) / 192.0 + 1e-4);
        let selected = function!(Words, [table: &'static TailedTable, n: usize], |b, x, _| {
            let (y, side) = b.apply(EvaluateNear { table }, &x[0])?;
            let near = side.slice(1, 0..1);
            let y = b.apply(MuxColumns { widths: &[30], words: 1 }, (&near, &y.reshape(&[*n, 1])))?;
            let side = b.apply(B2a { width: 30 }, &side)?;
            // A wrong bit is an error of many units.
            let side = waggle_protocols::Words::times(&side, 1 << 28).reshape(&[2 * n]);
            Ok(Tensor::concat(0, &[&y.reshape(&[*n]), &side]))
        });
        Laws::of(selected)
            .words(&[n], x)
            .ring(30)
            .error((bound * 25f64.exp2()) as u64)
            .refuses(&[ends])
            .over(&[TWO_PHASES])
            .hold();
    }
}

#[test]
fn count_at_least() {
    // Rows with all values, with one value alone, and with both ends.
    let last = VALUES as u64 - 1;
    let scattered = (0..300u64).map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 54).collect();
    let rows = [vec![5], vec![last; 40], vec![0; 3], vec![0, last, 512, 511, 512], scattered];
    let lengths = Lengths::from(&rows.iter().map(Vec::len).collect::<Vec<_>>()[..]);
    for width in [9, 10, 17, 32] {
        let x = rows.concat();
        Laws::of(CountAtLeast { lengths: &lengths, width }).words(&[x.len()], x).ring(width).hold();
    }
}

#[test]
fn non_zero() {
    for width in 8..=15 {
        let x = signed_values(width - 1, 252, 4).into_iter().chain([0, 1, 1 << (width - 1), mask(width)]);
        Laws::of(NonZero { width }).words(&[256], x.map(|x| x & mask(width)).collect()).hold();
    }
}
