//! Common parts of the benchmarks of two-party operations: both parties in two threads, every answer checked.
//!
//! The benchmarks themselves are in `benches/`; the README lists them.
#![deny(missing_docs)]

use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Throughput};
use waggle_net::Phase;
use waggle_protocols::local::Pair;
use waggle_protocols::{Error, Options, TwoParty};

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
