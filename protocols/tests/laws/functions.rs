//! Functions of several operations give two parties what they give in the clear, and a naive reading agrees.

use ndarray::{Array2, ArrayD, IxDyn};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use waggle_engine::Visible;
use waggle_protocols::functions::argmax::ARGMAX_WIDTH;
use waggle_protocols::functions::compact::compact;
use waggle_protocols::functions::extrema::{self, EXTREMA_WIDTH, UNIT};
use waggle_protocols::functions::mix::{MAX_MIX_TERM_ERROR, mix_each};
use waggle_protocols::functions::top_k::{self, Scores, Selection};
use waggle_protocols::functions::{argmax, gated, gelu, relu, rms_norm, rope, silu, soft_cap, softmax, softmax_each};
use waggle_protocols::{Clear, Error, FRAC, Gelu, Operand, OperandId, OperandKind, Options, Tensor};
use waggle_testing::{DEALER, Function, Laws, TWO_PHASES, function, signed_values, to_fixed};

/// Checks `function` on random numbers of [-`range`, `range`]: two parties are within `within` of the box in the
/// clear.
fn close<F: Function + Clone>(within: f64, range: f64, shape: &[usize], function: F) {
    close_over(&[DEALER, TWO_PHASES], within, range, shape, function);
}

/// [`close`] under these options alone.
fn close_over<F: Function + Clone>(usages: &[Options], within: f64, range: f64, shape: &[usize], function: F) {
    let mut rng = StdRng::seed_from_u64(11);
    let x = ArrayD::from_shape_simple_fn(IxDyn(shape), || rng.random_range(-range..range));
    let units = within * f64::from(1u32 << FRAC);
    Laws::of(function).words(shape, to_fixed(&x).into_iter().collect()).error(units as u64).over(usages).hold();
}

#[test]
fn activations() {
    close(1e-3, 500.0, &[300], function!(Words, [], |b, x, _| gelu(b, &x[0], Gelu::Tanh)));
    close(3e-4, 5.0, &[300], function!(Words, [], |b, x, _| gelu(b, &x[0], Gelu::Erf)));
    close(3e-4, 16.0, &[300], function!(Words, [], |b, x, _| silu(b, &x[0])));
    for range in [2.0, 1000.0] {
        close(2e-4, range, &[300], function!(Words, [], |b, x, _| relu(b, &x[0])));
    }
    for (range, cap) in [(120.0, 30.0f32), (1000.0, 50.0)] {
        // Both boxes may be off by 5e-5 of the cap, and by two units.
        close(
            1e-4 * f64::from(cap) + 2e-5,
            range,
            &[300],
            function!(Words, [cap: f32], |b, x, _| soft_cap(b, &x[0], *cap)),
        );
    }
}

/// Either factor is rounded by up to 2^-15. There are so many that their products come from OLE.
#[test]
fn gated_products() {
    let product = function!(Words, [], |b, x, _| gated(b, &x[0].slice(0, 0..1), &x[0].slice(0, 1..2)));
    for range in [3.0, 500.0] {
        close(2.0 * range / 32768.0 + 2e-5, range, &[2, 9000], product.clone());
    }
}

#[test]
fn softmax_and_norms() {
    let within = function!(Words, [], |b, x, _| {
        Ok(softmax_each(b, &[Visible { scores: &x[0], seen: &[0..1, 3..20, 9..21], sink: false, hidden: false }])?
            .remove(0))
    });
    close(1e-4, 4.0, &[2, 3, 21], within);
    let beside = function!(Words, [], |b, x, _| {
        Ok(softmax_each(b, &[Visible { scores: &x[0], seen: &[0..1, 3..20, 9..20], sink: true, hidden: false }])?
            .remove(0))
    });
    close(1e-4, 4.0, &[2, 3, 21], beside);
    close(1e-4, 4.0, &[2, 3, 21], function!(Words, [], |b, x, _| softmax(b, &x[0], &[1, 20, 21])));
    // Two tensors of other shapes, from one.
    let parts = function!(Words, [], |b, x, _| {
        let [a, c] = [x[0].slice(0, 0..1), x[0].slice(0, 1..2).reshape(&[9, 1, 7])];
        let parts = softmax_each(
            b,
            &[
                Visible { scores: &a, seen: &[0..1, 0..20, 0..21], sink: false, hidden: false },
                Visible { scores: &c, seen: std::slice::from_ref(&(0..7)), sink: false, hidden: false },
            ],
        )?;
        let flat: Vec<_> = parts.iter().map(|part| part.reshape(&[63])).collect();
        Ok(Tensor::concat(0, &flat.iter().collect::<Vec<_>>()))
    });
    close(1e-4, 4.0, &[2, 3, 21], parts);
    // Prepared tables end at differences of 2^9, which is half as far.
    let far = function!(Words, [], |b, x, _| softmax(b, &x[0], &[30]));
    close(1e-4, 250.0, &[4, 1, 33], far.clone());
    close_over(&[DEALER], 1e-4, 500.0, &[4, 1, 33], far);
    close(2e-5, 4.0, &[1, 2, 6000], function!(Words, [], |b, x, _| softmax(b, &x[0], &[4097, 6000])));
    close(4e-4, 700.0, &[3, 96], function!(Words, [], |b, x, _| rms_norm(b, &x[0], 1e-6)));
}

/// Two parts with windows, one of them with a sink, mixed before they are divided. Spreads of scores lie within the
/// windows of a clipped table and beyond them.
#[test]
fn mixes_of_values() {
    let mixed = function!(Words, [], |b, x, _| {
        let (scores, values) = (x[0].slice(2, 0..70), x[1].clone());
        let seen = [0..1, 3..70, 0..70, 0..70, 69..70];
        let parts = [
            Visible { scores: &scores, seen: &seen, sink: false, hidden: false },
            Visible { scores: &x[0], seen: &seen, sink: true, hidden: false },
        ];
        let id = |part| OperandId { layer: 0, kind: OperandKind::Values, generation: 0, part };
        let (mut first, mut second) = (Operand::new(id(0)), Operand::new(id(1)));
        let mixed = mix_each(b, &parts, vec![(&values, &mut first), (&values, &mut second)], 60)?;
        Ok(Tensor::concat(0, &[&mixed[0], &mixed[1]]))
    });
    let mut rng = StdRng::seed_from_u64(12);
    for spread in [4.0, 200.0] {
        let mut numbers = |shape: &[usize], range: f64| {
            let x = ArrayD::from_shape_simple_fn(IxDyn(shape), || rng.random_range(-range..range));
            to_fixed(&x).into_iter().collect::<Vec<_>>()
        };
        let (scores, values) = (numbers(&[2, 5, 71], spread), numbers(&[2, 70, 3], 2.0));
        // Every one of 71 terms may be off by a unit of 2^-17 between two parties.
        let units = 2.0 * 71.0 * 2.0 * MAX_MIX_TERM_ERROR * f64::from(1u32 << FRAC) + 200.0;
        Laws::of(mixed.clone()).words(&[2, 5, 71], scores).words(&[2, 70, 3], values).error(units as u64).hold();
    }
}

#[test]
fn argmax_of_distinct_entries() {
    let most = (1i64 << (ARGMAX_WIDTH - 2)) - 1;
    for (rows, n) in [(1, 1), (1, 2), (1, 3), (1, 33), (1, 100), (5, 1), (3, 33)] {
        // Entries are distinct, as ties go to either. For each length they come in another order, from one end of the
        // range to the other.
        let place = |i: usize| ((7 * i + n / 3) % n) as i64;
        let value = |i: usize| if place(i) + 1 == n as i64 { most } else { 2 * most / n as i64 * place(i) - most };
        let x: Vec<u64> = (0..rows * n).map(|i| value((i + i / n) % n) as u64).collect();
        let wide = vec![1 << (ARGMAX_WIDTH - 2); rows * n];
        let largest = function!(Words, [], |b, x, _| argmax(b, &x[0]));
        Laws::of(largest).words(&[rows, n], x).ring(ARGMAX_WIDTH).refuses(&[wide]).hold();
    }
}

#[test]
fn rope_of_the_whole_range() {
    let (count, heads, d) = (5, 3, 8);
    let n = count * heads * d;
    let angles = Array2::from_shape_fn((count, d / 2), |(t, i)| t as f32 * 0.7f32.powi(i as i32));
    let (cos, sin) = (angles.mapv(f32::cos), angles.mapv(f32::sin));
    Laws::of(function!(Words, [cos: Array2<f32>, sin: Array2<f32>], |b, x, _| rope(b, &x[0], cos, sin)))
        .words(&[count, heads, d], signed_values(FRAC + 12, n, 7))
        // The products with public angles are local and exact.
        .error(crate::TRUNCATION)
        .refuses(&[vec![1 << (FRAC + 13); n]])
        .hold();
}

#[test]
fn extrema_and_magnitudes() {
    for (rows, n) in [(1, 1), (2, 2), (3, 3), (2, 5), (4, 8), (3, 33)] {
        let mut rng = StdRng::seed_from_u64(n as u64);
        let number = |i: usize| match (i % 7, i % 11) {
            (0, _) => 511.9,
            (_, 3) => -511.9,
            _ => rng.random_range(-3.0..3.0),
        };
        let x: Vec<f64> = (0..rows * n).map(number).collect();
        let x: Vec<u64> = to_fixed(&ArrayD::from_shape_vec(vec![rows * n], x).unwrap()).into_iter().collect();
        let unit = (UNIT * f64::from(1u32 << FRAC)) as u64;
        // A round may be off by a unit.
        let rounds = n.next_power_of_two().ilog2();
        let both = function!(Words, [], |b, x, _| {
            let (max, min) = extrema::extrema(b, &x[0])?;
            Ok(Tensor::concat(0, &[&max, &min]))
        });
        Laws::of(both).words(&[rows, n], x.clone()).ring(EXTREMA_WIDTH).error(u64::from(rounds) * unit).hold();
        let magnitudes = function!(Words, [], |b, x, _| extrema::abs(b, &x[0]));
        Laws::of(magnitudes).words(&[rows, n], x).ring(EXTREMA_WIDTH).error(2 * unit).hold();
    }
}

const SIZES: [(usize, usize, usize); 10] = [
    (1, 1, 1),
    (1, 1, 0),
    (2, 2, 1),
    (3, 3, 2),
    (2, 5, 5),
    (2, 5, 1),
    (4, 8, 3),
    (2, 33, 8),
    (1, 33, 33),
    (3, 20, 0),
];

/// The unit vectors of a selection that has them.
fn vectors<W>(chosen: Selection<W>) -> W {
    match chosen {
        Selection::OneHot(words) => words,
        Selection::Shuffled(_) => unreachable!("a method with unit vectors"),
    }
}

/// The unit vectors of the largest by rank and by sorting.
fn ranked(rounded: bool, k: usize) -> impl Function + Clone {
    function!(Words, [rounded: bool, k: usize], |b, x, _| {
        let scores = Scores::below(5, 10).rounding(*rounded);
        let by_rank = vectors(top_k::rank(b, &x[0], *k, scores, 8)?);
        let by_sorting = vectors(top_k::sort(b, &x[0], *k, scores, 8)?);
        Ok(Tensor::concat(0, &[&by_rank, &by_sorting]))
    })
}

/// Equal entries go by their index. Entries of a cell are equal wherever they lie in it. Entries of different cells
/// are apart by twice the unit of the comparison, as closer ones may come in either order.
#[test]
fn unit_vectors_of_the_largest() {
    let half = 1i64 << (FRAC - 11);
    for (rows, n, k) in SIZES {
        for distinct in [1, 5, 60_000] {
            let mut rng = StdRng::seed_from_u64(7);
            let mut cell = || ((rng.next_u64() % distinct) as i64 - distinct as i64 / 2) << (FRAC - 10);
            let cells: Vec<i64> = (0..rows * n).map(|_| cell()).collect();
            let mut rng = StdRng::seed_from_u64(distinct);
            let x = cells.iter().map(|cell| (cell + rng.random_range(-half..half)) as u64).collect();
            Laws::of(ranked(true, k)).words(&[rows, n], x).ring(8).hold();

            let words = ArrayD::from_shape_vec(vec![rows, n], cells.iter().map(|x| *x as u64).collect()).unwrap();
            let mut want = Vec::new();
            for row in cells.chunks(n) {
                let mut order: Vec<usize> = (0..n).collect();
                order.sort_by_key(|&i| (std::cmp::Reverse(row[i]), i));
                order[..k].iter().for_each(|&i| want.extend((0..n).map(|j| u64::from(i == j))));
            }
            let scores = Scores::below(5, 10);
            let by_rank = vectors(top_k::rank(&mut Clear::new(), &words, k, scores, 8).unwrap());
            let by_sorting = vectors(top_k::sort(&mut Clear::new(), &words, k, scores, 8).unwrap());
            for got in [by_rank, by_sorting] {
                assert_eq!(got.into_iter().collect::<Vec<_>>(), want);
            }
        }
        let apart = |i: usize| (((7 * (i % n) + i / n) % n) as u64) << (FRAC - 8);
        Laws::of(ranked(false, k)).words(&[rows, n], (0..rows * n).map(apart).collect()).ring(8).hold();
    }
}

#[test]
fn kept_items_stay_in_order() {
    for (rows, n, k, w, width) in [
        (1, 1, 0, 1, 64),
        (1, 1, 1, 2, 9),
        (2, 2, 1, 1, 64),
        (3, 3, 2, 5, 13),
        (2, 8, 8, 1, 3),
        (2, 5, 0, 1, 7),
        (4, 33, 9, 3, 64),
    ] {
        let mut rng = StdRng::seed_from_u64(n as u64);
        let mut kept = vec![0u64; rows * n];
        for row in kept.chunks_mut(n) {
            row[..k].fill(1);
            (1..n).rev().for_each(|i| row.swap(i, rng.random_range(0..=i)));
        }
        let payload: Vec<u64> = (0..rows * n * w).map(|_| rng.next_u64() >> (64 - width)).collect();
        let items = payload.chunks(w).zip(&kept).filter(|(_, kept)| **kept == 1);
        let want: Vec<u64> = items.flat_map(|(item, _)| item.to_vec()).collect();
        let words = |x: &[u64], shape: &[usize]| ArrayD::from_shape_vec(shape, x.to_vec()).unwrap();
        let clear = compact(&mut Clear::new(), &words(&kept, &[rows, n]), &words(&payload, &[rows, n, w]), k, width);
        assert_eq!(clear.unwrap().into_iter().collect::<Vec<_>>(), want);
        let compacted = function!(Words, [k: usize, width: u32], |b, x, _| compact(b, &x[0], &x[1], *k, *width));
        Laws::of(compacted)
            .words(&[rows, n], kept)
            .words(&[rows, n, w], payload)
            .ring(width)
            .over(&[DEALER, TWO_PHASES])
            .hold();
    }
    let words = |x: &[u64], shape: &[usize]| ArrayD::from_shape_vec(shape, x.to_vec()).unwrap();
    let refused = compact(&mut Clear::new(), &words(&[1, 1, 0], &[1, 3]), &words(&[5, 6, 7], &[1, 3, 1]), 1, 8);
    assert!(matches!(refused, Err(Error::Destinations { row: 0, len: 3 })), "{refused:?}");
}
