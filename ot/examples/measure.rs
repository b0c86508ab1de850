//! CPU time of extension and transfers, one party after the other on one thread (Linux: the kernel's account of the
//! thread, so that a loaded machine measures the same; elsewhere wall-clock time).

use std::time::{Duration, Instant};

use net::{Channel, Role, memory_pair};
use ot::{Bits, ChosenKeys, Correlation, CotKind, Lookup, OtReceiver, OtSender, SenderKeys, SoftSpoken};
use rand::Rng;

/// OTs per refill.
const N: usize = 1 << 18;

/// Repetitions, summed up: the kernel counts in ticks of 4 ms.
const ROUNDS: usize = 32;

struct Pair {
    client: Channel,
    server: Channel,
    sender: OtSender,
    receiver: OtReceiver,
}

/// A stop-watch for the calling thread.
struct Clock {
    wall: Instant,
    cpu: Option<Duration>,
}

impl Clock {
    fn start() -> Self {
        Clock { wall: Instant::now(), cpu: Self::cpu() }
    }

    fn elapsed(&self) -> Duration {
        match (self.cpu, Self::cpu()) {
            (Some(start), Some(now)) => now - start,
            _ => self.wall.elapsed(),
        }
    }

    fn cpu() -> Option<Duration> {
        let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        Some(Duration::from_nanos(stat.split_whitespace().next()?.parse().ok()?))
    }
}

/// Runs `f` and adds its time to `total`.
fn timed<T>(total: &mut Duration, f: impl FnOnce() -> T) -> T {
    let clock = Clock::start();
    let result = f();
    *total += clock.elapsed();
    result
}

fn main() {
    // Everything inside a pool of one: the parallel loops then stay on this thread.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a thread");
    pool.install(measure);
}

fn measure() {
    for kind in [SoftSpoken::K2, SoftSpoken::K4, SoftSpoken::K8] {
        let mut pair = set_up(CotKind::SoftSpoken(kind));
        let (mut receive, mut send) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..ROUNDS {
            refill(&mut pair, N, &mut receive, &mut send);
            pair.receiver.random(N).expect("filled");
            pair.sender.random(N).expect("filled");
        }
        let mots = |t: Duration| (N * ROUNDS) as f64 / t.as_secs_f64() * 1e-6;
        println!("  extend k = {}: receiver {:6.1}, sender {:6.1} MOT/s", kind.k(), mots(receive), mots(send));
    }
    let mut pair = set_up(CotKind::default());
    let mut rng = rand::rng();
    let falling: Vec<u32> = (1..=64).rev().collect();
    for (slots, widths) in [(1, &[64_u32][..]), (1, &[32]), (1, &[1]), (1, &falling), (16, &[37]), (64, &[64])] {
        let count = N / slots;
        let shape = Correlation::new(count, slots, widths).expect("valid shape");
        let corr: Vec<u64> = (0..shape.values()).map(|_| rng.next_u64()).collect();
        let label = format!("correlated, {slots} slots, widths {}..={}", widths[0], widths[widths.len() - 1]);
        let send = |keys: SenderKeys| keys.correlate(&shape, &corr).expect("fits").0;
        transfer(&mut pair, count, shape.values(), &label, send, |keys, message| {
            keys.decorrelate(&shape, message).expect("fits");
        });
    }
    for (bits, widths) in [(1, &[64_u32][..]), (4, &[1]), (4, &[2]), (4, &[16]), (8, &[1]), (8, &[16])] {
        let count = (1 << 18) >> bits;
        let shape = Lookup::new(count, bits, widths).expect("valid shape");
        let table: Vec<u64> = (0..shape.entries()).map(|_| rng.next_u64()).collect();
        let label = format!("1-of-{}, {} bits", shape.entries(), widths[0]);
        let send = |keys: SenderKeys| keys.lookup(&shape, |_, row| row.copy_from_slice(&table)).expect("fits");
        transfer(&mut pair, shape.ots(), count, &label, send, |keys, message| {
            keys.lookup(&shape, message).expect("fits");
        });
    }
}

fn set_up(kind: CotKind) -> Pair {
    let (c, s) = memory_pair(Duration::from_secs(60));
    let (mut client, mut server) = (Channel::new(Role::Client, c), Channel::new(Role::Server, s));
    let mut time = Duration::ZERO;
    let (sender, receiver) = std::thread::scope(|scope| {
        let peer = scope.spawn(|| ot::setup(&mut server, kind, &mut rand::rng()).expect("set-up").1);
        let sender = timed(&mut time, || ot::setup(&mut client, kind, &mut rand::rng()).expect("set-up").0);
        (sender, peer.join().expect("no panic"))
    });
    println!("set-up {kind:?}: {:.0} ms per party, {} bytes each way", time.as_secs_f64() * 1e3, kind.setup_bytes());
    Pair { client, server, sender, receiver }
}

/// Fills both pools to `level`; the receiver first, whose messages wait in the link.
fn refill(pair: &mut Pair, level: usize, receive: &mut Duration, send: &mut Duration) {
    timed(receive, || pair.receiver.ensure(&mut pair.server, level)).expect("extension");
    timed(send, || pair.sender.ensure(&mut pair.client, level)).expect("extension");
}

fn transfer(
    pair: &mut Pair,
    ots: usize,
    values: usize,
    label: &str,
    send: impl Fn(SenderKeys) -> Vec<u8>,
    receive: impl Fn(ChosenKeys, &[u8]),
) {
    let choices = Bits::from_fn(ots, |i| i % 3 == 0);
    let [mut t0, mut t1, mut t2, mut t3] = [Duration::ZERO; 4];
    for _ in 0..ROUNDS {
        let (mut receiving, mut sending) = Default::default();
        refill(pair, ots, &mut receiving, &mut sending);
        let (corrections, chosen) = timed(&mut t0, || pair.receiver.choose(&choices)).expect("filled");
        let keys = timed(&mut t1, || pair.sender.accept(ots, &corrections)).expect("filled");
        let message = timed(&mut t2, || send(keys));
        timed(&mut t3, || receive(chosen, &message));
    }
    let ns = |t: Duration, n: usize| t.as_secs_f64() * 1e9 / (n * ROUNDS) as f64;
    println!(
        "{label}: choose {:.1}, accept {:.1} ns/OT; send {:.1}, receive {:.1} ns per value ({values} values)",
        ns(t0, ots),
        ns(t1, ots),
        ns(t2, values),
        ns(t3, values)
    );
}
