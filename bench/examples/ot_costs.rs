//! CPU time of set-up, extension and transfers, one party after the other on one thread; of extension and set-up the
//! least of several repetitions, because other processes slow down a shared cache. First a table with a column for
//! every family of kernels that the processor has. An argument (`silent`, `softspoken4`, ..) restricts all to the
//! extension and set-up of that kind, `loops` to the inner loops, `transfers` to what follows them.

use std::time::Duration;

use aes::Aes128Enc;
use aes::cipher::{BlockCipherEncrypt, KeyInit};
use rand::Rng;
use waggle_net::{Channel, Role, memory_pair};
use waggle_ot::{
    Bits, ChosenKeys, CotKind, CotShape, Kernels, LookupShape, OtReceiver, OtSender, SenderKeys, SoftSpoken,
};

/// OTs per refill.
const N: usize = 1 << 18;

/// Repetitions.
const ROUNDS: usize = 32;

struct Pair {
    client: Channel,
    server: Channel,
    sender: OtSender,
    receiver: OtReceiver,
}

/// CPU time of the process: of the one thread that runs, where parties take turns.
fn cpu_time() -> Duration {
    waggle_net::process_cpu_time().expect("a system that tells CPU time")
}

/// Runs `f` and adds its time to `total`.
fn timed<T>(total: &mut Duration, f: impl FnOnce() -> T) -> T {
    let start = cpu_time();
    let result = f();
    *total += cpu_time() - start;
    result
}

fn main() {
    // Everything inside a pool of one: the parallel loops then stay on this thread.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a thread");
    pool.install(measure);
}

fn measure() {
    let softspoken = [SoftSpoken::K2, SoftSpoken::K4, SoftSpoken::K8].map(CotKind::SoftSpoken);
    let kinds = softspoken.into_iter().chain([CotKind::Silent]);
    let only = std::env::args().nth(1);
    let chosen = |name: &str| only.as_ref().is_none_or(|only| name == only);
    let families = Kernels::families();
    let row = |name: &str, unit: &str, cells: &[String]| {
        let cells: String = cells.iter().map(|cell| format!(" {cell:>18} |")).collect();
        println!("| {name:26} | {unit:4} |{cells}");
    };
    row("least times of one thread", "", &families.iter().map(|kernels| kernels.name().into()).collect::<Vec<_>>());
    row("---", "---", &vec!["---".into(); families.len()]);
    let aes: Vec<f64> = families.iter().map(|_| aes_floor()).collect();
    row("AES, crate `aes`, block", "ns", &aes.iter().map(|time| format!("{time:.2}")).collect::<Vec<_>>());
    for kind in kinds.clone().filter(|kind| chosen(&name(*kind))) {
        let times: Vec<[f64; 2]> = families.iter().map(|&kernels| extension(kind, kernels)).collect();
        for (party, label) in ["receiver", "sender"].into_iter().enumerate() {
            let cells: Vec<String> =
                times.iter().map(|times| format!("{:.2} ({:.0} M/s)", times[party], 1e3 / times[party])).collect();
            row(&format!("{}, {label}, OT", name(kind)), "ns", &cells);
        }
    }
    if chosen("loops") {
        loops(&families, row);
    }
    for kind in kinds.clone().filter(|kind| chosen(&name(*kind))) {
        set_ups(kind);
    }
    if !chosen("transfers") {
        return;
    }
    let mut pair = set_up(CotKind::default(), Kernels::default());
    let mut rng = rand::rng();
    let falling: Vec<u32> = (1..=64).rev().collect();
    for (slots, widths) in [(1, &[64_u32][..]), (1, &[32]), (1, &[1]), (1, &falling), (16, &[37]), (64, &[64])] {
        let count = N / slots;
        let shape = CotShape::new(count, slots, widths).expect("valid shape");
        let corr: Vec<u64> = (0..shape.values()).map(|_| rng.next_u64()).collect();
        let label = format!("correlated, {slots} slots, widths {}..={}", widths[0], widths[widths.len() - 1]);
        let send = |keys: SenderKeys| keys.correlate(&shape, &corr).expect("fits").0;
        transfer(&mut pair, count, shape.values(), &label, send, |keys, message| {
            keys.decorrelate(&shape, message).expect("fits");
        });
    }
    for (bits, widths) in [(1, &[64_u32][..]), (4, &[1]), (4, &[2]), (4, &[16]), (8, &[1]), (8, &[16])] {
        let count = (1 << 18) >> bits;
        let shape = LookupShape::new(count, bits, widths).expect("valid shape");
        let table: Vec<u64> = (0..shape.entries()).map(|_| rng.next_u64()).collect();
        let label = format!("1-of-{}, {} bits", shape.entries(), widths[0]);
        let send = |keys: SenderKeys| keys.lookup(&shape, |_, row| row.copy_from_slice(&table)).expect("fits");
        transfer(&mut pair, shape.ots(), count, &label, send, |keys, message| {
            keys.lookup(&shape, message).expect("fits");
        });
    }
}

/// Nanoseconds for a block of AES, the least of many repetitions.
fn aes_floor() -> f64 {
    let cipher = Aes128Enc::new(&[7; 16].into());
    let mut blocks = [aes::Block::default(); 64];
    let best = (0..200).map(|_| {
        let mut time = Duration::ZERO;
        timed(&mut time, || (0..100).for_each(|_| cipher.encrypt_blocks(std::hint::black_box(&mut blocks))));
        time
    });
    best.min().unwrap_or_default().as_secs_f64() * 1e9 / 6400.0
}

fn name(kind: CotKind) -> String {
    match kind {
        CotKind::SoftSpoken(kind) => format!("softspoken{}", kind.k()),
        _ => "silent".into(),
    }
}

/// The rows of the inner loops, by [`waggle_ot::probe::loops`].
fn loops(families: &[Kernels], row: impl Fn(&str, &str, &[String])) {
    let mut loops: Vec<_> = families.iter().map(|&kernels| waggle_ot::probe::loops(kernels)).collect();
    for i in 0..loops[0].len() {
        let cells = loops.iter_mut().map(|loops| {
            let least = (0..400).map(|_| {
                let mut time = Duration::ZERO;
                timed(&mut time, || (0..LOOPS).for_each(|_| (loops[i].run)()));
                time
            });
            let ns = least.min().unwrap_or_default().as_secs_f64() * 1e9;
            format!("{:.2}", ns / (LOOPS * loops[i].units) as f64)
        });
        let cells: Vec<String> = cells.collect();
        row(loops[0][i].name, "ns", &cells);
    }
}

/// Runs of an inner loop between two looks at the clock.
const LOOPS: usize = 20;

/// Nanoseconds of the receiver and the sender for an OT: the least time of several refills, so that other processes
/// count less.
fn extension(kind: CotKind, kernels: Kernels) -> [f64; 2] {
    let mut pair = set_up(kind, kernels);
    let (mut receive, mut send, mut made) = (Duration::MAX, Duration::MAX, 0);
    // Silent OT first leaves its small beginnings behind.
    let n = if kind == CotKind::Silent { 1 << 19 } else { N };
    for round in 0..ROUNDS / 2 {
        let before = pair.receiver.made();
        let [receiving, sending] = refill(&mut pair, n);
        if round > 0 {
            (receive, send) = (receive.min(receiving), send.min(sending));
        }
        made = pair.receiver.made() - before;
        let all = pair.receiver.available();
        assert_eq!(pair.sender.available(), all);
        pair.receiver.random(all).expect("filled");
        pair.sender.random(all).expect("filled");
    }
    let ns = |t: Duration| t.as_secs_f64() * 1e9 / made as f64;
    [ns(receive), ns(send)]
}

fn set_up(kind: CotKind, kernels: Kernels) -> Pair {
    let (c, s) = memory_pair(Duration::from_secs(60));
    let (mut client, mut server) = (Channel::new(Role::Client, c), Channel::new(Role::Server, s));
    let (sender, receiver) = std::thread::scope(|scope| {
        let peer =
            scope.spawn(|| waggle_ot::setup_with(&mut server, kind, kernels, &mut rand::rng()).expect("set-up").1);
        let sender = waggle_ot::setup_with(&mut client, kind, kernels, &mut rand::rng()).expect("set-up").0;
        (sender, peer.join().expect("no panic"))
    });
    Pair { client, server, sender, receiver }
}

/// Prints the cost of set-ups: both parties do the same.
fn set_ups(kind: CotKind) {
    let times = (0..20).map(|_| {
        let mut time = Duration::ZERO;
        timed(&mut time, || set_up(kind, Kernels::default()));
        time / 2
    });
    let best = times.min().unwrap_or_default().as_secs_f64() * 1e3;
    println!("set-up {}: {best:.1} ms per party, {} bytes each way", name(kind), kind.setup_bytes());
}

/// Fills both pools to `level`, each party on a thread of its own. Returns the receiver's and the sender's CPU time.
fn refill(pair: &mut Pair, level: usize) -> [Duration; 2] {
    let Pair { client, server, sender, receiver } = pair;
    std::thread::scope(|scope| {
        let receiving = scope.spawn(|| alone(|| receiver.ensure(server, level).expect("extension")));
        let sending = alone(|| sender.ensure(client, level).expect("extension"));
        [receiving.join().expect("no panic"), sending]
    })
}

/// The CPU time of `work` in a pool of one thread.
fn alone(work: impl FnOnce() + Send) -> Duration {
    let time = || {
        let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(spent.tv_sec as u64, spent.tv_nsec as u32)
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a thread");
    pool.install(|| {
        let start = time();
        work();
        time() - start
    })
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
        refill(pair, ots);
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
