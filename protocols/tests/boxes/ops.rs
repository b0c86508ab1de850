//! Every operation against its naive twin, over its stated range with the edges, by both parties' real messages.
//! `secure` also compares the plan's ledger with both parties'.

use ndarray::{ArrayD, IxDyn};
use net::Role;
use proptest::prelude::*;
use protocols::functions::embed;
use protocols::ops::b2a::B2a;
use protocols::ops::compare::AtLeast;
use protocols::ops::evaluate::{Evaluate, Function};
use protocols::ops::extend::ExtendColumns;
use protocols::ops::linear::Linear;
use protocols::ops::lookup::Table;
use protocols::ops::matmul::Matmul;
use protocols::ops::matmul::multiply;
use protocols::ops::mul::Mul;
use protocols::ops::mul::MulRows;
use protocols::ops::mux::Mux;
use protocols::ops::mux_all;
use protocols::ops::reveal::Reveal;
use protocols::ops::row_max::RowMax;
use protocols::ops::sum_squares::SumSquares;
use protocols::ops::truncate::Truncation;
use protocols::words::{mask, signed};
use protocols::{
    Abb, Clear, EMBED_FRAC, EMBED_WIDTH, FixedMatrix, FixedValues, FixedWeight, LINEAR_WIDTH, Lengths, Masks,
    Options, Tensor, WeightSpec, Words,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::{BOTH, DEALER, TWO_PHASES, run, secure, share};

/// Signed values of the open range (-2^bits, 2^bits): random ones and the edges.
fn values(bits: u32, count: usize, seed: u64) -> Vec<u64> {
    let top = (1i64 << bits) - 1;
    let mut rng = StdRng::seed_from_u64(seed);
    let edges = [0, 1, -1, top, -top, top / 2, -top / 2, top - 1];
    let random = std::iter::repeat_with(|| {
        (rng.next_u64() >> (64 - bits)) as i64 * if rng.next_u64() & 1 == 1 { 1 } else { -1 }
    });
    edges.into_iter().chain(random).take(count).map(|v| v as u64).collect()
}

fn distance(got: u64, want: u64, width: u32) -> u64 {
    signed(got.wrapping_sub(want) & mask(width), width).unsigned_abs()
}

#[test]
fn truncation_is_floor_or_ceiling_in_every_ring() {
    for (width, shift, out) in
        [(64, 18, 64), (64, 0, 64), (56, 16, 64), (44, 22, 41), (36, 18, 18), (30, 2, 64), (32, 12, 8), (3, 1, 64)]
    {
        let x = values(width - 2, 300, u64::from(shift));
        let how = Truncation { width, shift, out };
        let got = secure(DEALER, &[(&x, &[x.len()])], function!([how: Truncation] |abb, x| abb.apply(*how, &x[0])));
        for (x, got) in x.iter().zip(got) {
            let floor = (*x as i64 >> shift) as u64;
            let error = got.wrapping_sub(floor) & mask(out);
            assert!(error == 0 || shift > 0 && error == 1, "{how:?}: {} gives {got:x}", *x as i64);
        }
    }
}

/// Six standard deviations of 40000 roundings are 0.015.
#[test]
fn truncation_is_right_on_average() {
    const COUNT: usize = 40_000;
    for (width, shift, out) in [(64, 3, 44), (44, 15, 64)] {
        let how = Truncation { width, shift, out };
        for eighth in -9i64..9 {
            let x = vec![(eighth << (shift - 3)) as u64; COUNT];
            let got = secure(DEALER, &[(&x, &[COUNT])], function!([how: Truncation] |abb, x| abb.apply(*how, &x[0])));
            let mean = got.iter().map(|&y| signed(y, out) as f64).sum::<f64>() / COUNT as f64;
            let want = eighth as f64 / 8.0;
            assert!((mean - want).abs() < 0.015, "{how:?}: {want} becomes {mean}");
            assert!(eighth % 8 != 0 || got.iter().all(|&y| signed(y, out) == eighth / 8), "{how:?}: {want} is exact");
        }
    }
}

#[test]
fn comparison_is_exact_at_every_width() {
    for width in [2, 3, 5, 6, 7, 8, 9, 13, 15, 16, 17, 18, 21, 25, 29, 33, 38, 53, 64] {
        let x = values(width - 1, 60, u64::from(width));
        let edge = (1i64 << (width - 1).min(62)) / 2;
        let thresholds: Vec<i64> = [0, 1, -1, edge, -edge, edge / 3].into_iter().take(width as usize).collect();
        // x - c must stay a signed value of the width.
        let fits = |x: i64, c: i64| x.checked_sub(c).is_some_and(|v| signed(v as u64, width) == v);
        for &c in &thresholds {
            let x: Vec<u64> = x.iter().copied().filter(|&x| fits(x as i64, c)).collect();
            let bits = compare(&x, &[c], width);
            for (x, bit) in x.iter().zip(bits) {
                assert_eq!(bit == 1, *x as i64 >= c, "width {width}: {} >= {c}", *x as i64);
            }
        }
        let x: Vec<u64> = x.into_iter().filter(|&x| thresholds.iter().all(|&c| fits(x as i64, c))).collect();
        let bits = compare(&x, &thresholds, width);
        for (x, bits) in x.iter().zip(bits.chunks(thresholds.len())) {
            for (&c, &bit) in thresholds.iter().zip(bits) {
                assert_eq!(bit == 1, *x as i64 >= c, "width {width}: {} >= {c}", *x as i64);
            }
        }
    }
}

/// Comparison bits as words, by a multiplexer of ones.
fn compare(x: &[u64], thresholds: &[i64], width: u32) -> Vec<u64> {
    let thresholds = thresholds.to_vec();
    let [one_phase, two_phases] = BOTH.map(|options| {
        let thresholds = thresholds.clone();
        let got = secure(
            options,
            &[(x, &[x.len()])],
            function!([thresholds: Vec<i64>, width: u32] |abb, x| {
                let bits = abb.apply(AtLeast { thresholds, width: *width }, &x[0])?;
                let ones = abb.constant(&Tensor::shape(&bits), 1);
                abb.apply(Mux { width: 3 }, (&bits, &ones))
            }),
        );
        got.into_iter().map(|bit| bit & 7).collect::<Vec<_>>()
    });
    assert_eq!(one_phase, two_phases, "width {width}");
    two_phases
}

#[test]
fn equality_and_bits_as_words_are_exact() {
    for width in [1, 2, 17, 64] {
        let x: Vec<u64> = (-40i64..40).map(|x| x as u64).collect();
        let n = x.len();
        let values = [-40, -1, 0, 7, 39];
        let got = secure(
            DEALER,
            &[(&x, &[n])],
            function!([values: [i64; 5], width: u32] |abb, x| {
                let bits = protocols::functions::equal::equal(abb, &x[0], values, 8)?;
                abb.apply(B2a { width: *width }, &bits)
            }),
        );
        for (i, got) in got.iter().enumerate() {
            let want = u64::from(x[i / 5] as i64 == values[i % 5]);
            assert_eq!((got ^ want) & mask(width), 0, "width {width}: {} = {}", x[i / 5] as i64, values[i % 5]);
        }
    }
}

#[test]
fn selection_is_exact() {
    for width in [1, 7, 41, 64] {
        let x = values(62, 70, 3);
        let condition: Vec<u64> = x.iter().map(|x| x ^ 0x5555).collect();
        let n = x.len();
        let got = secure(
            DEALER,
            &[(&x, &[n]), (&condition, &[n])],
            function!([width: u32, n: usize] |abb, x| {
                let bits = abb.apply(AtLeast { thresholds: &[0], width: 64 }, &x[1])?.reshape(&[*n]);
                let not = abb.not(&bits);
                let both = abb.xor(&bits, &not);
                assert_eq!(Tensor::len(&both), *n);
                abb.apply(Mux { width: *width }, (&not, &x[0]))
            }),
        );
        for ((x, c), got) in x.iter().zip(&condition).zip(got) {
            let want = if (*c as i64) < 0 { *x } else { 0 };
            assert_eq!((got ^ want) & mask(width), 0, "width {width}");
        }
    }
}

#[test]
fn selection_by_several_bits_is_exact() {
    for (k, width) in (1..=mux_all::MOST_BITS).zip([13, 1, 64, 7, 41, 13, 2, 30]) {
        // Every value of the bits several times.
        let n = 3 << k;
        let (x, bits) = (values(62, n, 3), (0..n).flat_map(|i| (0..k).map(move |bit| (i >> bit & 1) as u64)));
        let shares = [share(&x, 1), share(&bits.collect::<Vec<_>>(), 2)];
        let [(client, ledger), (server, other)] = run(DEALER, |abb| {
            let s = abb.session();
            let [x, bits] = [0, 1].map(|i| shares[i][s.role() as usize].clone());
            let bits: Vec<u8> = bits.into_iter().map(|bit| (bit & 1) as u8).collect();
            mux_all::mux_all(s, &bits, &x, width)
        });
        for (i, x) in x.iter().enumerate() {
            let want = if i as u64 & mask(k as u32) == mask(k as u32) { *x } else { 0 };
            assert_eq!((client[i].wrapping_add(server[i]) ^ want) & mask(width), 0, "{k} bits, width {width}");
        }
        assert_eq!(ledger, other);
        let cost = mux_all::cost(n, k, width);
        assert_eq!(ledger.iter().map(|entry| entry.traffic.bytes()).sum::<u64>(), cost.total_bytes());
        assert_eq!(ledger.iter().map(|entry| entry.traffic.flows).sum::<u64>(), cost.flows());
    }
}

#[test]
fn maxima_of_rows_are_exact_over_every_link() {
    let many: Vec<usize> = (1..40).collect();
    let rows =
        [(vec![1, 1], 13), (vec![2, 5, 1, 3], 2), (vec![129], 13), (vec![300, 7], 40), (vec![8; 9], 64), (many, 16)];
    for ((lengths, width), (_, link)) in rows.iter().flat_map(|rows| net::Shape::PRESETS.map(|link| (rows, link))) {
        // Few different values, so that ties occur; their differences just fit.
        let top = (1i64 << (width - 2)) - 1;
        let steps = [-top - 1, -top, -1, 0, 1, top, 7].map(|step: i64| step.clamp(-top - 1, top));
        let mut rng = StdRng::seed_from_u64(u64::from(*width));
        let n = lengths.iter().sum();
        let rows = Lengths::from(&lengths[..]);
        let x: Vec<u64> = (0..n).map(|_| steps[rng.next_u64() as usize % steps.len()] as u64).collect();
        let clear = ArrayD::from_shape_vec(IxDyn(&[n]), x.clone()).unwrap();
        let want = Clear::new().apply(RowMax { lengths: &rows, width: *width }, &clear).unwrap();
        let mut rest = &x[..];
        for (&n, want) in lengths.iter().zip(&want) {
            let (row, others) = rest.split_at(n);
            rest = others;
            assert_eq!(row.iter().map(|&x| x as i64).max(), Some(*want as i64));
        }
        for options in BOTH.map(|options| Options { link, ..options }) {
            let (rows, width) = (rows.clone(), *width);
            let got = secure(
                options,
                &[(&x, &[n])],
                function!([rows: Lengths, width: u32] |abb, x| abb.apply(RowMax { lengths: rows, width: *width }, &x[0])),
            );
            for (got, want) in got.iter().zip(&want) {
                assert_eq!((got ^ want) & mask(width), 0, "{lengths:?}, {width} bits, {link}");
            }
        }
    }
}

#[test]
fn products_are_exact_by_ot_and_off_by_one_by_ole() {
    // 70 values go by OT, 9000 by OLE.
    for (n, width) in [(70, 64), (70, 37), (70, 2), (9000, 40)] {
        let (x, y) = (values(62, n, 5), values(61, n, 6));
        for options in BOTH {
            let got = secure(
                options,
                &[(&x, &[n]), (&y, &[n])],
                function!([width: u32] |abb, x| abb.apply(Mul { width: *width }, (&x[0], &x[1]))),
            );
            for ((x, y), got) in x.iter().zip(&y).zip(got) {
                let error = distance(got, x.wrapping_mul(*y), width);
                assert!(error <= u64::from(n > 70), "width {width}: off by {error}");
            }
        }
    }
}

#[test]
fn rows_times_words_are_right() {
    let shapes = [(1, 1, 64), (5, 33, 41), (3, 128, 50), (7, 1, 3)];
    for ((rows, n, width), options) in shapes.into_iter().flat_map(|shape| BOTH.map(|options| (shape, options))) {
        let (x, y) = (values(62, rows * n, 8), values(60, rows, 9));
        let got = secure(
            options,
            &[(&x, &[rows, n]), (&y, &[rows])],
            function!([width: u32] |abb, x| abb.apply(MulRows { width: *width }, (&x[0], &x[1]))),
        );
        for (i, got) in got.iter().enumerate() {
            let error = distance(*got, x[i].wrapping_mul(y[i / n]), width);
            // Long rows come from encrypted products.
            assert!(error <= if n > 1 { 16 } else { 0 }, "{rows} x {n}: off by {error}");
        }
    }
}

#[test]
fn sums_of_squares_are_exact_by_ot() {
    let shapes = [(1, 48, 64), (4, 9, 40), (2, 4000, 64)];
    for ((rows, n, width), options) in shapes.into_iter().flat_map(|shape| BOTH.map(|options| (shape, options))) {
        let x = values(26, rows * n, 10);
        let got = secure(
            options,
            &[(&x, &[rows, n])],
            function!([width: u32] |abb, x| abb.apply(SumSquares { width: *width }, &x[0])),
        );
        for (row, got) in x.chunks(n).zip(got) {
            let want = row.iter().fold(0u64, |sum, x| sum.wrapping_add(x.wrapping_mul(*x)));
            assert!(distance(got, want, width) <= n as u64);
        }
    }
}

/// x^2 in integers, by expansion around the sender's low part.
struct Square;

impl Table for Square {
    fn index_bits(&self) -> u32 {
        4
    }
    fn low_bits(&self) -> u32 {
        6
    }
    fn out_width(&self) -> u32 {
        31
    }
    fn has_constant(&self) -> bool {
        true
    }
    fn factor_bits(&self) -> Vec<u32> {
        vec![6, 12]
    }
    fn factors(&self, low: u64, out: &mut [u64]) {
        out.copy_from_slice(&[low, low * low]);
    }
    fn coefficients(&self, window: i64, low: u64, out: &mut [u64]) {
        let x = window * 64 + low as i64;
        out.copy_from_slice(&[(x * x) as u64, (2 * x) as u64, 1]);
    }
}

#[test]
fn tabulated_functions_are_exact_over_their_whole_range() {
    // Many times, to get other splits into shares and more than one batch of OTs.
    let x: Vec<u64> = (0..50_000).map(|x| x % (15 * 64)).collect();
    let got = secure(
        DEALER,
        &[(&x, &[x.len()])],
        function!([] | abb, x | abb.apply(Evaluate { function: &Function::lookup(Square, 0) }, &x[0])),
    );
    for (x, got) in x.iter().zip(got) {
        assert_eq!(distance(got, x * x, 31), 0, "{x}");
    }
}

#[test]
fn shared_matrices_multiply_within_a_few_units() {
    let shapes = [(1, 1, 7, 5, 64), (3, 2, 16, 9, 50), (2, 9, 4, 1, 40)];
    for ((batch, m, k, n, width), options) in shapes.into_iter().flat_map(|s| BOTH.map(|options| (s, options))) {
        let (a, b) = (values(20, batch * m * k, 1), values(19, batch * k * n, 2));
        let got = secure(
            options,
            &[(&a, &[batch, m, k]), (&b, &[batch, k, n])],
            function!([width: u32] |abb, x| abb.apply(Matmul { width: *width }, (&x[0], &x[1]))),
        );
        let want = multiply(he::MatmulShape { batch, m, k, n }, &a, &b);
        for (got, want) in got.iter().zip(want) {
            assert!(distance(*got, want, width) <= 16);
        }
    }
}

fn weight(inputs: usize, outputs: usize, seed: u64, known: bool) -> FixedWeight {
    let spec = WeightSpec { name: "w".into(), inputs, outputs };
    let matrix = values(20, inputs * outputs, seed).into_iter().map(|v| v as i32).collect();
    let matrix = FixedMatrix::integers(inputs, outputs, matrix);
    let bias = values(50, outputs, seed + 1).into_iter().map(|v| v as i64).collect();
    FixedWeight { spec, frac: 16, values: known.then_some(FixedValues { matrix, bias }) }
}

#[test]
fn private_weights_multiply_within_a_few_units() {
    let shapes = [(1, 12, 7), (5, 33, 20)];
    let [one, two] = BOTH;
    let sent = Options { masks: Masks::Sent, ..two };
    for ((rows, inputs, outputs), options) in shapes.into_iter().flat_map(|s| [one, two, sent].map(|o| (s, o))) {
        let x = values(26, rows * inputs, 3);
        let w = weight(inputs, outputs, 4, true);
        let got = secure(
            options,
            &[(&x, &[rows, inputs])],
            function!([w: FixedWeight] |abb, x| abb.apply(Linear { weight: w }, &x[0])),
        );
        let values = w_values(inputs, outputs);
        let matrix: Vec<u64> = values.matrix.to_integers().iter().map(|w| i64::from(*w) as u64).collect();
        let want = multiply(he::MatmulShape { batch: 1, m: rows, k: inputs, n: outputs }, &x, &matrix);
        for (i, (got, want)) in got.iter().zip(want).enumerate() {
            let want = want.wrapping_add(values.bias[i % outputs] as u64);
            assert!(distance(*got, want, LINEAR_WIDTH) <= 8);
        }
    }
}

fn w_values(inputs: usize, outputs: usize) -> FixedValues {
    weight(inputs, outputs, 4, true).values.expect("known")
}

#[test]
fn embedding_is_private_to_the_client_and_right() {
    let ids = [3u32, 0, 16, 3];
    for options in BOTH {
        embedding_is_right(options, &ids);
    }
    // An id beyond the table is the client's error, before anything is sent.
    let session = protocols::Session::with_pools(
        net::Channel::new(Role::Client, net::memory_pair(std::time::Duration::from_secs(1)).0),
        DEALER,
        ot::dealer::setup(Role::Client, 1).0,
        ot::dealer::setup(Role::Client, 1).1,
        rand::make_rng(),
    );
    let refused = embed(&mut protocols::TwoParty::new(session), &weight(17, 9, 4, false), Some(&[17]), 1);
    assert!(matches!(refused, Err(protocols::Error::Engine(engine::Error::Token { id: 17, vocabulary: 17 }))));
}

fn embedding_is_right(options: Options, ids: &[u32]) {
    let [(client, ledger), (server, _)] = run(options, |abb| {
        let server = abb.session().role() == Role::Server;
        embed(abb, &weight(17, 9, 4, server), (!server).then_some(ids), ids.len())
    });
    let table = w_values(17, 9);
    for (i, (c, s)) in client.iter().zip(&server).enumerate() {
        let want = i64::from(table.matrix.entry(ids[i / 9] as usize, i % 9)) << (EMBED_FRAC - 16);
        assert!(distance(c.wrapping_add(*s), want as u64, EMBED_WIDTH) <= 8);
    }
    let mut planner = crate::planner(options);
    embed(&mut planner, &weight(17, 9, 4, false), None, ids.len()).expect("plan");
    assert_eq!(planner.ledger().untimed(), ledger);
}

#[test]
fn only_the_named_party_learns_a_revealed_word() {
    for to in [Role::Client, Role::Server] {
        let x = values(62, 33, 1);
        let shares = crate::share(&x, 2);
        let outcomes = run(DEALER, |abb| {
            let words = crate::own(abb, &shares, &[33]);
            abb.apply(Reveal { width: 23, to }, &words)
        });
        for (outcome, role) in outcomes.iter().zip([Role::Client, Role::Server]) {
            let want = (role == to).then(|| x.iter().map(|x| x & mask(23)).collect::<Vec<_>>());
            assert_eq!(outcome.0.as_ref().map(|o| o.iter().copied().collect::<Vec<_>>()), want);
        }
        let mut planner = crate::planner(DEALER);
        planner.apply(Reveal { width: 23, to }, &protocols::Shape(vec![33])).expect("plan");
        assert_eq!(planner.ledger().untimed(), outcomes[0].1);
    }
}

#[test]
fn real_transfers_give_the_same_and_cost_what_the_plan_says() {
    let x = values(28, 100, 1);
    let chain = || {
        function!(
            [] | abb,
            x | {
                let bits = abb.apply(AtLeast { thresholds: &[5], width: 30 }, &x[0])?.reshape(&[100]);
                let kept = abb.apply(Mux { width: 60 }, (&bits, &x[0]))?;
                let square = abb.apply(Mul { width: 60 }, (&kept, &kept))?;
                abb.apply(Truncation { width: 60, shift: 20, out: 64 }, &square)
            }
        )
    };
    for options in [DEALER, Options::default(), Options { preprocess: true, ..Options::default() }] {
        let got = secure(options, &[(&x, &[100])], chain());
        for (x, got) in x.iter().zip(got) {
            let x = *x as i64;
            let want = if x >= 5 { (x * x) >> 20 } else { 0 };
            assert!(distance(got, want as u64, 64) <= 1);
        }
    }
}

#[test]
fn empty_tensors_cost_nothing() {
    let none: [u64; 0] = [];
    let got = secure(
        DEALER,
        &[(&none, &[0])],
        function!(
            [] | abb,
            x | {
                let y = abb.apply(Truncation { width: 64, shift: 18, out: 64 }, &x[0])?;
                let bits = abb.apply(AtLeast { thresholds: &[0], width: 30 }, &y)?.reshape(&[0]);
                let y = abb.apply(Mux { width: 64 }, (&bits, &y))?;
                let y = abb.apply(Mul { width: 64 }, (&y, &y))?;
                abb.apply(Evaluate { function: &Function::lookup(Square, 0) }, &y)
            }
        ),
    );
    assert!(got.is_empty());
}

#[test]
fn the_box_in_the_clear_names_what_leaves_a_range() {
    let unit = 1u64 << protocols::FRAC;
    let words = |x: u64| ArrayD::from_elem(IxDyn(&[1, 1]), x);
    let mut clear = protocols::Clear::new();
    let refused = |result: Result<ArrayD<u64>, protocols::Error>, operation: &str| match result {
        Err(protocols::Error::Engine(engine::Error::Range { path, .. })) => {
            assert!(path.contains(operation), "{path} for {operation}");
        }
        other => panic!("{operation}: {other:?}"),
    };
    refused(
        clear.scope("layer 3", |b| protocols::functions::gelu(b, &words(2100 * unit), protocols::Gelu::Tanh)),
        "layer 3/gelu",
    );
    refused(protocols::functions::silu(&mut clear, &words((-2100i64 as u64).wrapping_mul(unit))), "silu");
    refused(protocols::functions::argmax(&mut clear, &words(1 << 40)), "argmax");
    refused(clear.apply(Truncation { width: 56, shift: 16, out: 64 }, &words(1 << 54)), "truncate");
    refused(clear.apply(Mul { width: 56 }, (&words(1 << 30), &words(1 << 30))), "mul");
    let wide = Tensor::reshape(&words(1 << 30), &[1, 1, 1]);
    refused(clear.apply(Matmul { width: 44 }, (&wide, &wide)), "matmul");
    // The same values inside the range pass.
    assert!(clear.apply(Truncation { width: 56, shift: 16, out: 64 }, &words((1 << 54) - 1)).is_ok());
    assert!(protocols::functions::silu(&mut clear, &words(1000 * unit)).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn local_words_are_linear(x in prop::collection::vec(any::<u64>(), 12), factor in any::<u64>()) {
        let x = ArrayD::from_shape_vec(IxDyn(&[3, 4]), x).expect("shape");
        let twice = x.plus(&x);
        prop_assert_eq!(twice.minus(&x), x.clone());
        prop_assert_eq!(x.times(factor).plus(&x.times(factor)), twice.times(factor));
        prop_assert_eq!(x.sum_last().plus(&x.sum_last()), twice.sum_last());
        prop_assert_eq!(x.repeat_last(3).sum_last(), x.times(3));
    }
}

#[test]
fn extensions_keep_the_value_and_cost_what_is_planned() {
    let values = |width: u32| {
        let bound = (1i64 << (width - 2)) - 1;
        [-bound, bound, 0, 1, -1, bound / 3, -bound / 5].into_iter().cycle()
    };
    for widths in [vec![24, 30], vec![3], vec![63, 5, 44]] {
        let n = 50;
        let mut columns: Vec<_> = widths.iter().map(|&width| values(width)).collect();
        let x: Vec<u64> =
            (0..n * widths.len()).map(|i| columns[i % widths.len()].next().unwrap_or(0) as u64).collect();
        let shape = [n, widths.len()];
        let twin =
            Clear::new().apply(ExtendColumns { widths: &widths }, &protocols::operation::shaped(&shape, x.clone()));
        let twin = twin.expect("in range");
        let extend = function!([widths: Vec<u32>] |b, inputs| b.apply(ExtendColumns { widths }, &inputs[0]));
        assert_eq!(secure(TWO_PHASES, &[(&x, &shape)], extend), x);
        assert_eq!(twin.into_raw_vec_and_offset().0, x);
    }
    let out = protocols::operation::shaped(&[1, 1], vec![1u64 << 22]);
    assert!(Clear::new().apply(ExtendColumns { widths: &[24] }, &out).is_err(), "a word out of range");
    assert_eq!(signed(1 << 23, 24), -(1 << 23));
}
