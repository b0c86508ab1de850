//! Tabulated functions on masked inputs: their correlations, made and spent.
//! `cargo bench -p waggle-bench --bench functions`
//!
//! Time is the process's on all cores, of both parties together, an entry: OTs and all. Every run's result is opened
//! and compared with the exact one.

use std::fmt::Display;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, SamplingMode, criterion_group, criterion_main};
use ndarray::{ArrayD, IxDyn};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use waggle_net::process_cpu_time;
use waggle_protocols::form::Values;
use waggle_protocols::local::Pair;
use waggle_protocols::ops::compare::AtLeast;
use waggle_protocols::ops::fss::ladder::{Ladder, LadderSpec};
use waggle_protocols::ops::fss::table::{CurveSpec, FssTable};
use waggle_protocols::ops::fss::tails::TailedTable;
use waggle_protocols::ops::{CountAtLeast, Evaluate, EvaluateNear, Function};
use waggle_protocols::{FRAC, Lengths, Operation, Options, Pipeline};

/// Entries of a run.
const COUNT: usize = 1 << 14;

/// Processor time of `runs` calls of `work`, divided by the `units` that a call makes or spends.
fn spent(runs: u64, units: usize, mut work: impl FnMut()) -> Duration {
    let now = || process_cpu_time().expect("the system tells");
    let start = now();
    (0..runs).for_each(|_| work());
    (now() - start).div_f64(units as f64)
}

type Group<'c> = BenchmarkGroup<'c, WallTime>;

/// Times the correlations of `operation` and what spends them, on `x` as the client's share of words. `open` makes
/// one vector of both parties' results, and `check` says whether it is right.
fn function<O>(
    group: &mut Group<'_>,
    id: impl Display,
    (operation, size, options): (O, O::Size, Options),
    x: &ArrayD<u64>,
    check: impl Fn([O::Output<Values>; 2]),
) where
    O: for<'a> Operation<Input<'a, Values> = &'a ArrayD<u64>> + Sync,
    O::Output<Values>: Send,
{
    let need = operation.correlations(&size, &options).expect("an operation with keys");
    let mut pair = Pair::new(options).expect("set-up");
    let shares = [x.clone(), ArrayD::zeros(x.raw_dim())];
    let mut made = None;
    group.bench_function(format!("{id}/made"), |bench| {
        bench.iter_custom(|runs| {
            spent(runs, need.units, || {
                let run = pair.run(|abb| need.kind.make(abb.session(), need.units, &mut Pipeline::default()));
                made = Some(run.expect("both parties are honest"));
            })
        });
    });
    // Keys are spent again and again here, on one input. A session spends each once.
    let made = made.unwrap_or_else(|| {
        pair.run(|abb| need.kind.make(abb.session(), need.units, &mut Pipeline::default()))
            .expect("both parties are honest")
    });
    group.bench_function(format!("{id}/spent"), |bench| {
        bench.iter_custom(|runs| {
            spent(runs, need.units, || {
                let results = pair.run(|abb| {
                    let own = abb.session().role() as usize;
                    operation.run(abb.session(), &shares[own], Some(&made[own]))
                });
                check(results.expect("both parties are honest"));
            })
        });
    });
}

fn two_phases() -> Options {
    Options { preprocess: true, ..Options::default() }
}

/// Words below `bound`.
fn words(bound: u64) -> ArrayD<u64> {
    let mut rng = StdRng::seed_from_u64(1);
    ArrayD::from_shape_fn(IxDyn(&[COUNT]), |_| rng.random_range(0..bound))
}

/// The sums of shares modulo 2^width, signed.
fn opened([client, server]: &[ArrayD<u64>; 2], width: u32) -> Vec<f64> {
    let sum = |(a, b): (&u64, &u64)| (a.wrapping_add(*b) << (64 - width)) as i64 >> (64 - width);
    client.iter().zip(server).map(sum).map(|sum| sum as f64).collect()
}

fn near(got: &[f64], want: impl Iterator<Item = f64>, error: f64) {
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() <= error, "entry {i}: {got} instead of {want}");
    }
}

/// An activation with tails: of 2^`index_bits` windows in one of 2^`cell_bits` cells.
fn tailed(group: &mut Group<'_>, id: &str, index_bits: u32, cell_bits: u32) {
    let (low_bits, scale) = (11, f64::from(1 << 26));
    let middle = (1u64 << (cell_bits + index_bits + low_bits)) / 2;
    let step = 1.0 / f64::from(1 << 15);
    let spec = CurveSpec { index_bits, low_bits, base: -(middle as f64) * step, step, out_frac: 26, out_width: 32 };
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let table = TailedTable::fit(spec, cell_bits, sigmoid);
    // The table's cell but for its first two windows and its last.
    let offset = words((1 << (index_bits + low_bits)) - (3 << low_bits)) + (2 << low_bits);
    let x = offset.mapv(|x| x + middle);
    function(group, id, (EvaluateNear { table: &table }, COUNT, two_phases()), &x, |[client, server]| {
        let got = opened(&[client.0, server.0], 32);
        near(&got, offset.iter().map(|x| scale * sigmoid(*x as f64 * step)), 2e-4 * scale);
    });
}

/// A function without tails; `want` is its value in units of the result.
fn evaluated(group: &mut Group<'_>, id: &str, function_: &Function, x: &ArrayD<u64>, want: impl Fn(f64) -> f64) {
    let operation = (Evaluate { function: function_ }, vec![COUNT], two_phases());
    function(group, id, operation, x, |results| {
        let got = opened(&results, function_.out_width());
        let largest = x.iter().map(|x| want(*x as f64).abs()).fold(0.0, f64::max);
        near(&got, x.iter().map(|x| want(*x as f64)), 2e-3 * largest);
    });
}

fn functions(c: &mut Criterion) {
    let mut group = c.benchmark_group("functions");
    group.sample_size(10).sampling_mode(SamplingMode::Flat);
    tailed(&mut group, "GELU", 7, 7);
    tailed(&mut group, "SiLU", 8, 7);

    // Of differences of scores that were clipped, see `exp_to_zero`.
    let exponential = FssTable::decay(5, FRAC, 0.5, 17, [17, 22], 43);
    evaluated(&mut group, "exponential", &Function::masked(exponential, 39), &words(29 << FRAC), |x| {
        (0.5 - x / f64::from(1 << FRAC) + 39.0 * std::f64::consts::LN_2).exp()
    });

    // Of all differences of scores, see `exp_to_zero`.
    let decay = FssTable::decay(10, FRAC, 0.5, 17, [17, 22], 43);
    evaluated(&mut group, "decay", &Function::masked(decay, 39), &words(1000 << FRAC), |x| {
        (0.5 - x / f64::from(1 << FRAC) + 39.0 * std::f64::consts::LN_2).exp()
    });

    let lengths = Lengths::equal(128, COUNT / 128);
    let x = words(1 << 10);
    let counts = (CountAtLeast { lengths: &lengths, width: 9 }, (), two_phases());
    function(&mut group, "count", counts, &x, |results| {
        let rows = x.as_slice().expect("in order").chunks(128);
        let want = rows.flat_map(|row| (0..1 << 10).map(move |v| row.iter().filter(|x| **x >= v).count() as f64));
        near(&opened(&results, 9), want, 0.0);
    });

    // Keys serve comparisons over slow links.
    let slow = Options { link: "wan".parse().expect("a preset"), ..two_phases() };
    let x = words(1 << 15);
    let compared = (AtLeast { thresholds: &[-33], width: 15 }, vec![COUNT], slow);
    function(&mut group, "threshold", compared, &x, |[client, server]| {
        for ((client, server), x) in client.iter().zip(&server).zip(&x) {
            assert_eq!(client ^ server, u8::from((*x << 49) as i64 >> 49 >= -33), "of {x}");
        }
    });

    let spec = LadderSpec {
        index_bits: 10,
        low_bits: 11,
        octaves: 5,
        range: [1 << 18, 1 << 30],
        in_width: 64,
        out_frac: 30,
        out_width: 50,
    };
    let ladder = Function::ladder(Ladder::fit(spec, |x| f64::from(1 << 18) / x), 30);
    evaluated(&mut group, "ladder", &ladder, &(words(1 << 29) + (1 << 18)), |x| 2f64.powi(48) / x);
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2));
    targets = functions
}
criterion_main!(benches);
