//! Tests of evaluation by FSS keys as both parties run it: correlations and results are compared with their
//! definitions.

use waggle_net::Role;
use waggle_ot::dpf::Lane;

use super::{both, share};
use crate::ops::fss::table::{CurveSpec, FACTOR_FRAC, FssShape, FssTable, Payload, factor};
use crate::ops::fss::{Square, expanded, prepare, run};
use crate::options::TWO_PHASES;
use crate::words::mask;

fn spec(index_bits: u32, low_bits: u32, out_frac: u32, out_width: u32) -> CurveSpec {
    let step = (-f64::from(index_bits + low_bits)).exp2();
    CurveSpec { index_bits, low_bits, base: -0.25, step, out_frac, out_width }
}

fn lines(index_bits: u32, low_bits: u32, out_frac: u32, out_width: u32) -> FssTable {
    FssTable::lines(spec(index_bits, low_bits, out_frac, out_width), |x| x * x - 0.5)
}

fn parabolas(index_bits: u32, low_bits: u32, out_frac: u32, out_width: u32) -> FssTable {
    FssTable::parabolas(spec(index_bits, low_bits, out_frac, out_width), |x| x * x * x - 0.5)
}

fn power(index_bits: u32, unit: u32) -> FssTable {
    FssTable::decay(index_bits, unit, 0.5, (1 << index_bits) - 3, [20, 25], 48)
}

fn decay(index_bits: u32, unit: u32, end: u32) -> FssTable {
    FssTable::decay(index_bits, unit, 0.5, end, [20, 22], 64)
}

/// Tables over narrow and wide rings, with one and two windows in a leaf, small and large.
fn tables() -> Vec<FssTable> {
    vec![lines(2, 3, 10, 14), lines(9, 9, 25, 30), lines(5, 1, 20, 32), lines(4, 7, 30, 33), lines(7, 4, 50, 64)]
        .into_iter()
        .chain([parabolas(2, 3, 10, 14), parabolas(7, 11, 27, 32), parabolas(9, 8, 20, 31), parabolas(5, 1, 20, 32)])
        .chain([power(2, 3), power(5, 18), power(4, 24)])
        .chain([decay(6, 4, 17), decay(10, 18, 17), decay(5, 3, 2)])
        .collect()
}

/// The mask of an input: the window index and both low parts.
struct Mask {
    index: u64,
    low: [u64; 2],
}

fn masks(shape: &FssShape, correlations: &[Vec<u64>; 2]) -> Vec<Mask> {
    let size = shape.correlation_words();
    let [client, server] = [&correlations[0], &correlations[1]].map(|party| party.chunks_exact(size).map(|e| e[0]));
    let split = |(c, s): (u64, u64)| Mask {
        index: ((c >> shape.low_bits) + (s >> shape.low_bits)) & mask(shape.index_bits),
        low: [s & mask(shape.low_bits), c & mask(shape.low_bits)],
    };
    client.zip(server).map(split).collect()
}

/// The words whose shares a correlation must have at its index. A power may be off by one unit.
fn payload(shape: &FssShape, low: [u64; 2]) -> Vec<u64> {
    match shape.payload {
        Payload::One => vec![1],
        Payload::Line => vec![1, low[0] + low[1]],
        Payload::Parabola => vec![1, low[0] + low[1], Square::new(shape.low_bits).value(low)],
        Payload::Power { unit, frac } => {
            vec![(factor(low[0], unit) * factor(low[1], unit)) >> (2 * FACTOR_FRAC - frac)]
        }
    }
}

fn check_correlations<L: Lane + Into<u64>>(shape: FssShape, correlations: &[Vec<u64>; 2]) {
    let words = shape.payload.words();
    let size = shape.correlation_words();
    let mut seen = vec![false; 1 << shape.index_bits];
    let masks = masks(&shape, correlations);
    for (i, pad) in masks.iter().enumerate() {
        let entry = |role: Role| &correlations[role as usize][i * size..(i + 1) * size];
        let client = expanded::<L>(Role::Client, &shape, entry(Role::Client));
        let server = expanded::<L>(Role::Server, &shape, entry(Role::Server));
        let want = payload(&shape, pad.low);
        // A parabola's leaf has a fourth word, which means nothing.
        let words_in_leaf = words.next_power_of_two();
        for (at, (c, s)) in client.into_iter().zip(server).enumerate().filter(|(at, _)| at % words_in_leaf < words) {
            let (c, s): (u64, u64) = (c.into(), s.into());
            let here = at / words_in_leaf == pad.index as usize;
            let word = if here { want[at % words_in_leaf] } else { 0 };
            let error = c.wrapping_add(s).wrapping_sub(word) & mask(shape.width);
            let allowed = u64::from(here && matches!(shape.payload, Payload::Power { .. }));
            assert!(error <= allowed, "{shape:?}, item {i}, word {at}: off by {error}");
        }
        seen[pad.index as usize] = true;
    }
    assert!(masks.len() < 40 << shape.index_bits || seen.iter().all(|seen| *seen), "every index comes up");
}

#[test]
fn correlations_share_the_payload_at_the_index_and_zero_elsewhere() {
    for table in tables() {
        let shape = table.shape();
        let correlations = both(TWO_PHASES, |abb| prepare(abb.session(), &shape, 170));
        assert_eq!(correlations[0].len(), 170 * shape.correlation_words());
        if shape.payload == Payload::Parabola {
            check_correlations::<u32>(shape, &correlations);
        } else {
            check_correlations::<u64>(shape, &correlations);
        }
    }
}

/// All inputs of a table, or about `most` inputs from all over its range, with both ends.
fn inputs(shape: &FssShape, most: u64) -> Vec<u64> {
    let end = (mask(shape.index_bits) - 1) << shape.low_bits;
    let step = end.div_ceil(most).max(1);
    // The inputs of the lowest window reach windows below it.
    let lowest = (0..60).map(|i| (i << shape.low_bits) / 60);
    (0..end).step_by(step as usize).chain([1, end - 1, end / 2]).chain(lowest).collect()
}

#[test]
fn results_are_the_tables_over_the_whole_range() {
    for table in tables() {
        let shape = table.shape();
        let x = inputs(&shape, 700);
        let shares = share(&x, 3);
        let [(client, c), (server, s)] = both(TWO_PHASES, |abb| {
            let s = abb.session();
            let correlations = prepare(s, &shape, x.len())?;
            // Correlations are spent in two pieces, the second one first.
            let (cut, size) = (x.len() / 3, shape.correlation_words());
            let own = &shares[s.role() as usize];
            let mut back = run(s, &table, &correlations[cut * size..], &own[cut..])?;
            let mut out = run(s, &table, &correlations[..cut * size], &own[..cut])?;
            out.append(&mut back);
            Ok((out, correlations))
        });
        let masks = masks(&shape, &[c, s]);
        let mut windows = std::collections::HashSet::new();
        for (i, (x, r)) in x.iter().zip(masks).enumerate() {
            let z = x.wrapping_sub(r.low[0] + r.low[1]).wrapping_sub(r.index << shape.low_bits);
            let (high, low) = (z >> shape.low_bits, z & mask(shape.low_bits));
            let n = high.wrapping_add(r.index) & mask(shape.index_bits);
            let start = (n.wrapping_add(2) & mask(shape.index_bits)) as i64 - 2;
            assert_eq!((start << shape.low_bits) + (low + r.low[0] + r.low[1]) as i64, *x as i64, "the split of {x}");
            windows.insert(start);
            let want = table.value(n, low, r.low);
            let got = client[i].wrapping_add(server[i]);
            let error = got.wrapping_sub(want) & mask(shape.width);
            // A power is shared to a unit, and its coefficient, below e^3 at 20 fractional bits, multiplies it.
            let allowed = if matches!(shape.payload, Payload::Power { .. }) { 21 << 20 } else { 0 };
            assert!(error <= allowed, "{shape:?}: {x} gives {got}, off by {error}");
        }
        // With one low bit, three low parts stay below two windows.
        assert!(windows.contains(&if shape.low_bits > 1 { -2 } else { -1 }), "{shape:?}: windows below 0 occur");
    }
}
