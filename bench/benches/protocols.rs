//! Operations and functions between two parties. `cargo bench -p waggle-bench --bench protocols`
//!
//! Both parties run in threads of this process and share its cores; nothing delays their messages. The time includes
//! making the OTs. Every run's result is opened and compared with the exact one.

use std::time::Duration;
use waggle_protocols::ops::compare::AtLeast;

use criterion::{Criterion, SamplingMode, criterion_group, criterion_main};
use ndarray::{ArrayD, Axis, IxDyn};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use waggle_bench::two_party;
use waggle_protocols::functions::activation::MAX_GELU_ERROR;
use waggle_protocols::functions::softmax::{MAX_SOFTMAX_ERROR, MAX_TERM_ERROR};
use waggle_protocols::functions::{gelu, softmax};
use waggle_protocols::{Abb, Gelu};
use waggle_testing::{largest_difference, open, own, share, to_fixed, to_real};

fn comparison(c: &mut Criterion) {
    let mut group = c.benchmark_group("compare");
    group.sample_size(10).sampling_mode(SamplingMode::Flat);
    for (count, width) in [(1 << 14, 29), (1 << 14, 64), (768, 29)] {
        let mut rng = StdRng::seed_from_u64(1);
        let bound = 1i64 << (width - 1).min(62);
        let x = ArrayD::from_shape_fn(IxDyn(&[count]), |_| rng.random_range(-bound..bound) as u64);
        let shares = share(&x);
        two_party(
            &mut group,
            &format!("at-least/{count}/w{width}"),
            count,
            |abb| {
                let x = own(abb, &shares);
                abb.apply(AtLeast { thresholds: &[0], width }, x)
            },
            |[client, server]| {
                assert_eq!(client.shape(), [count, 1]);
                for (x, (c, s)) in x.iter().zip(client.iter().zip(server)) {
                    assert_eq!((c ^ s) == 1, *x as i64 >= 0);
                }
            },
        );
    }
    group.finish();
}

/// Random numbers of [-bound, bound).
fn numbers(shape: &[usize], bound: f64) -> ArrayD<f64> {
    let mut rng = StdRng::seed_from_u64(2);
    ArrayD::from_shape_fn(IxDyn(shape), |_| rng.random_range(-bound..bound))
}

fn activation(c: &mut Criterion) {
    let mut group = c.benchmark_group("gelu");
    group.sample_size(10).sampling_mode(SamplingMode::Flat);
    for shape in [[1, 3072], [8, 3072]] {
        let x = to_fixed(&numbers(&shape, 8.0));
        let want = to_real(&x).mapv(|x| {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        });
        let shares = share(&x);
        two_party(
            &mut group,
            &format!("tanh/{}x{}/f18", shape[0], shape[1]),
            x.len(),
            |abb| {
                let x = own(abb, &shares);
                gelu(abb, x, Gelu::Tanh)
            },
            |results| {
                let error = largest_difference(&to_real(&open(results)), &want);
                assert!(error <= MAX_GELU_ERROR, "error {error}");
            },
        );
    }
    group.finish();
}

fn attention(c: &mut Criterion) {
    let mut group = c.benchmark_group("softmax");
    group.sample_size(10).sampling_mode(SamplingMode::Flat);
    for (name, shape, visible) in [
        ("decode/12x1x128", [12, 1, 128], vec![128]),
        // Causal: row i sees i + 1 columns.
        ("prefill/12x128x128", [12, 128, 128], (1..=128).collect::<Vec<_>>()),
    ] {
        let x = to_fixed(&numbers(&shape, 6.0));
        let mut want = to_real(&x);
        for (row, mut terms) in want.lanes_mut(Axis(2)).into_iter().enumerate() {
            let seen = visible[row % visible.len()];
            terms.iter_mut().enumerate().for_each(|(j, t)| *t = if j < seen { t.exp() } else { 0.0 });
            let sum = terms.sum();
            terms.mapv_inplace(|t| t / sum);
        }
        let shares = share(&x);
        two_party(
            &mut group,
            &format!("{name}/f18"),
            shape[0] * visible.iter().sum::<usize>(),
            |abb| {
                let x = own(abb, &shares);
                softmax(abb, x, &visible)
            },
            |results| {
                let got = to_real(&open(results));
                assert_eq!(got.shape(), want.shape());
                for (row, (got, want)) in got.rows().into_iter().zip(want.rows()).enumerate() {
                    // Two parties round each term by up to a whole unit in the last place.
                    let limit = MAX_SOFTMAX_ERROR + 2.0 * MAX_TERM_ERROR * visible[row % visible.len()] as f64;
                    for (got, want) in got.iter().zip(want) {
                        assert!((got - want).abs() <= limit, "row {row}: {got} instead of {want}");
                    }
                }
            },
        );
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(2));
    targets = comparison, activation, attention
}
criterion_main!(benches);
