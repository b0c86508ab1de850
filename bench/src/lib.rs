//! What the benchmarks of two-party operations have in common: both parties in two threads, every answer checked.
//!
//! The benchmarks themselves are in `benches/`; the README lists them.
#![deny(missing_docs)]

use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Throughput};
use ndarray::ArrayD;
use net::{Phase, Role};
use protocols::local::Pair;
use protocols::{Error, FRAC, Options, TwoParty};
use rand::Rng;

/// A vector split into fresh random shares modulo 2^64: the client's, the server's.
pub fn share(values: &ArrayD<u64>) -> [ArrayD<u64>; 2] {
    let mut rng = rand::rng();
    let client = values.mapv(|_| rng.next_u64());
    let mut server = values.clone();
    server.zip_mut_with(&client, |v, c| *v = v.wrapping_sub(*c));
    [client, server]
}

/// The words that two shares stand for.
pub fn open([client, server]: &[ArrayD<u64>; 2]) -> ArrayD<u64> {
    let mut words = client.clone();
    words.zip_mut_with(server, |c, s| *c = c.wrapping_add(*s));
    words
}

/// Numbers as words at [`FRAC`] fractional bits, rounded to nearest.
pub fn to_fixed(x: &ArrayD<f64>) -> ArrayD<u64> {
    x.mapv(|x| (x * f64::from(1u32 << FRAC)).round() as i64 as u64)
}

/// The numbers that words at [`FRAC`] fractional bits stand for.
pub fn to_real(words: &ArrayD<u64>) -> ArrayD<f64> {
    words.mapv(|word| word as i64 as f64 / f64::from(1u32 << FRAC))
}

/// Benchmarks `protocol` on `elements` elements under `id`. Both parties run in threads over memory, with real OTs;
/// making them is part of the time. `check` sees both parties' results after every run, outside the time, and panics
/// if they are wrong. Prints the bytes and flows of the first run in a fresh session, without set-up and keys.
pub fn two_party<T: Send>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    id: &str,
    elements: usize,
    protocol: impl Fn(&mut TwoParty) -> Result<T, Error> + Sync,
    check: impl Fn(&[T; 2]),
) {
    let mut pair = Pair::new(Options::default()).expect("set-up");
    let mut timed = || {
        let start = Instant::now();
        let results = pair.run(|abb| {
            abb.session().channel().ledger_mut().set_phase(Phase::Decode);
            protocol(abb)
        });
        let time = start.elapsed();
        check(&results.expect("both parties are honest"));
        (time, [Phase::Decode, Phase::Offline].map(|phase| pair.ledger().phase_total(phase)))
    };
    let (_, [online, offline]) = timed();
    eprintln!(
        "{id}: {} bytes online ({:.1} an element), {} flows; {} bytes to make OTs",
        online.bytes(),
        online.bytes() as f64 / elements as f64,
        online.flows,
        offline.bytes()
    );
    group.throughput(Throughput::Elements(elements as u64));
    group.bench_function(id, |bench| {
        bench.iter_custom(|samples| (0..samples).map(|_| timed().0).sum::<Duration>());
    });
}

/// This party's part of `shares`.
pub fn own<'a, V>(abb: &mut TwoParty, shares: &'a [V; 2]) -> &'a V {
    match abb.session().role() {
        Role::Client => &shares[0],
        Role::Server => &shares[1],
    }
}
