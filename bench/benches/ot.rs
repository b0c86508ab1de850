//! Random correlated OTs a second, both parties in threads. `cargo bench -p waggle-bench --bench ot`
//!
//! A sample is one extension: the receiver's message and both parties' work on it. After each, outside the time, the
//! OTs are spent and checked: the receiver holds the word of the pair that its random choice bit names.

use std::time::{Duration, Instant};

use criterion::{Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use waggle_net::{Channel, Role, memory_pair};
use waggle_ot::{CotKind, OtReceiver, OtSender, SoftSpoken};

/// OTs per extension; a round of silent OT.
const COUNT: usize = 964_096;

/// A direction: the client receives what the server sends.
struct Direction {
    receiver: (Channel, OtReceiver),
    sender: (Channel, OtSender),
}

impl Direction {
    fn new(kind: CotKind) -> Self {
        let (client, server) = memory_pair(Duration::from_secs(60));
        let mut channels = [Channel::new(Role::Client, client), Channel::new(Role::Server, server)];
        let [client, server] = &mut channels;
        let (receiver, sender) = std::thread::scope(|scope| {
            let other = scope.spawn(|| waggle_ot::setup(server, kind, &mut rand::rng()).expect("set-up").0);
            let receiver = waggle_ot::setup(client, kind, &mut rand::rng()).expect("set-up").1;
            (receiver, other.join().expect("set-up"))
        });
        let [client, server] = channels;
        Direction { receiver: (client, receiver), sender: (server, sender) }
    }

    /// Time for both parties to make [`COUNT`] OTs, rounded up.
    fn extend(&mut self) -> Duration {
        let Direction { receiver: (client, receiver), sender: (server, sender) } = self;
        let start = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| sender.ensure(server, COUNT).expect("extension"));
            receiver.ensure(client, COUNT).expect("extension");
        });
        start.elapsed()
    }

    /// Spends all OTs and checks every one.
    fn check(&mut self) {
        let count = self.receiver.1.available();
        assert_eq!(self.sender.1.available(), count);
        let (choices, chosen) = self.receiver.1.random(count).expect("filled");
        let chosen = chosen.into_rows(&[64]).expect("a width that fits");
        let pairs = self.sender.1.random(count).expect("filled").into_rows(&[64]).expect("a width that fits");
        for (i, chosen) in chosen.into_iter().enumerate() {
            assert_eq!(chosen, pairs[choices.get(i) as usize][i]);
            assert_ne!(chosen, pairs[1 - choices.get(i) as usize][i]);
        }
    }
}

fn extension(c: &mut Criterion) {
    let mut group = c.benchmark_group("cot");
    group.sample_size(10).sampling_mode(SamplingMode::Flat).throughput(Throughput::Elements(COUNT as u64));
    let softspoken = [SoftSpoken::K2, SoftSpoken::K4, SoftSpoken::K8].map(CotKind::SoftSpoken);
    for kind in softspoken.into_iter().chain([CotKind::Silent]) {
        let name = match kind {
            CotKind::SoftSpoken(softspoken) => format!("softspoken{}", softspoken.k()),
            _ => "silent".into(),
        };
        let mut direction = Direction::new(kind);
        // The first extension of silent OT costs more.
        direction.extend();
        direction.check();
        let before = direction.receiver.0.ledger().total();
        direction.extend();
        direction.check();
        let sent = direction.receiver.0.ledger().total().since(&before);
        eprintln!(
            "{name}: {} bytes for {COUNT} OTs ({:.2} bits each), {} flows; set-up {} bytes each way",
            sent.bytes(),
            8.0 * sent.bytes() as f64 / COUNT as f64,
            sent.flows,
            kind.setup_bytes()
        );
        group.bench_function(format!("{name}/{COUNT}"), |bench| {
            bench.iter_custom(|samples| {
                let mut time = Duration::ZERO;
                for _ in 0..samples {
                    time += direction.extend();
                    direction.check();
                }
                time
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(3));
    targets = extension
}
criterion_main!(benches);
