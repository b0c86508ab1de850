//! Bytes that an attacker changes between two processes, and hostile clients of a server, harm nobody: no wrong text,
//! no panic, no hang.
//!
//! `cargo test` runs a few. The long runs, which print what came of them (some ten minutes):
//! `cargo test --release --test all fuzz_processes:: -- --ignored --nocapture --test-threads 1`.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::hostile::{Damage, Proxy, Spoil, Wire, serve, waggle};
use crate::support::{Ended, Process};

/// Seconds that a party waits for the other.
pub(crate) const TIMEOUT: f64 = 2.0;
/// The most time of a client in all: its own work, its time-out, a busy machine. A client that takes longer hangs.
pub(crate) const HANG: Duration = Duration::from_secs(60);
/// Sessions that run at once.
const WORKERS: usize = 4;
pub(crate) const PROMPT: &str = "--prompt-ids 3,1,4,1,5 --tokens 3";

/// A directory with the keys of one user and the tiny model.
pub(crate) fn home() -> tempfile::TempDir {
    let home = tempfile::tempdir().expect("a directory");
    let model = home.path().join("model");
    std::fs::create_dir(&model).expect("a directory");
    crate::tiny::write_tiny(&model);
    home
}

impl Ended {
    /// What came of a session whose text is `honest` if nobody harms it; an error if it ended as none may.
    pub(crate) fn judge(&self, honest: &str, harmed: bool) -> Result<&'static str, String> {
        let lines = self.errors.lines().filter(|line| line.starts_with("error: ")).count();
        let context = format!("{:?} {}", self.code, self.errors.trim());
        match self.code {
            _ if self.hung => Err(format!("a hang: {context}")),
            _ if self.errors.contains("panicked") => Err(format!("a panic: {context}")),
            Some(0) if self.text != honest => Err(format!("a wrong text: {context}: {}", self.text)),
            Some(0) if harmed => Ok("the right text all the same"),
            Some(0) => Ok("the place was not reached"),
            Some(1) if lines == 1 => Ok("an error of one line"),
            _ => Err(format!("another end: {context}")),
        }
    }
}

/// Starts a client.
pub(crate) fn start(home: &Path, address: SocketAddr, arguments: &str, wire: Wire, timeout: f64) -> Process {
    let line = format!("generate --connect {address} {PROMPT} {arguments} --timeout {timeout} --connect-timeout 30");
    Process::start(&mut waggle(home, &line, wire))
}

fn client(home: &Path, address: SocketAddr, arguments: &str, wire: Wire, timeout: f64, limit: Duration) -> Ended {
    start(home, address, arguments, wire, timeout).end_or_kill(limit)
}

/// Damage at a place that the numbers choose, of a session whose parties send so many bytes.
pub(crate) fn damage(rng: &mut StdRng, sizes: [usize; 2]) -> Spoil {
    let upwards: bool = rng.random();
    let size = sizes[usize::from(!upwards)];
    // Half of all places lie where sessions begin: key exchange, admission, handshake, base OTs.
    let end = if rng.random() { size.min(12_000) } else { size };
    let offset = rng.random_range(0..end);
    let n = rng.random_range(1..=1400);
    let damage = match rng.random_range(0..5) {
        0 => Damage::Flip(rng.random_range(0..8)),
        1 => Damage::Drop(n),
        2 => Damage::Duplicate(n),
        3 => Damage::Reorder(n),
        _ => Damage::Replay(n),
    };
    Spoil { upwards, offset, damage }
}

/// Runs `count` spoiled sessions; prints how they ended; panics if one ended as none may.
fn spoiled_sessions(wire: Wire, count: usize) {
    let home = home();
    let path = home.path();
    let mut host = serve(path, &format!("--sessions {WORKERS} --timeout {TIMEOUT} --handshake-timeout 5"), wire);
    let modes = ["", "--preprocess"].map(|mode| {
        let proxy = Proxy::start(host.socket(), None);
        let ended = client(path, proxy.address, mode, wire, 60.0, HANG);
        assert_eq!(ended.code, Some(0), "an honest session: {}\n{}", ended.errors, host.log());
        (mode, ended.text, proxy.passed(|passed| [passed.streams[0].len(), passed.streams[1].len()]))
    });
    let (next, address) = (AtomicUsize::new(0), host.socket());
    let one = |index: usize| -> Result<&'static str, String> {
        let (mode, honest, sizes) = &modes[index % modes.len()];
        let spoil = damage(&mut StdRng::seed_from_u64(index as u64), *sizes);
        let proxy = Proxy::start(address, Some(spoil));
        let ended = client(path, proxy.address, mode, wire, TIMEOUT, HANG);
        let harmed = proxy.passed(|passed| passed.spoiled);
        ended.judge(honest, harmed).map_err(|why| format!("session {index}, {wire:?} {mode} {spoil:?}: {why}"))
    };
    let start = Instant::now();
    let results: Vec<_> = thread::scope(|scope| {
        let work = || -> Vec<_> {
            let mine = std::iter::from_fn(|| Some(next.fetch_add(1, Ordering::Relaxed)).filter(|i| *i < count));
            mine.map(one).collect()
        };
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a worker")).collect()
    });
    let mut endings: BTreeMap<&str, usize> = BTreeMap::new();
    results.iter().flatten().for_each(|ended| *endings.entry(ended).or_default() += 1);
    println!("{count} spoiled sessions over {wire:?} in {:.0} s: {endings:?}", start.elapsed().as_secs_f64());
    let wrong: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
    assert!(wrong.is_empty(), "{wrong:#?}\n{}", host.log());
    host.assert_sound();
    let after = client(path, host.socket(), "", wire, 60.0, HANG);
    assert_eq!((after.code, &after.text), (Some(0), &modes[0].1), "{}", after.errors);
}

#[test]
fn a_few_spoiled_sessions() {
    spoiled_sessions(Wire::Plaintext, 12);
    spoiled_sessions(Wire::Tls, 8);
}

#[test]
#[ignore = "minutes"]
fn five_hundred_spoiled_sessions() {
    spoiled_sessions(Wire::Plaintext, 250);
    spoiled_sessions(Wire::Tls, 250);
}

#[derive(Clone, Copy, Debug)]
enum Hostile {
    /// Connects and says nothing.
    Idle,
    /// Says a byte now and then.
    Trickling,
    /// Says all that an honest client says and never reads.
    NeverReading,
    /// Says anything.
    Garbage,
    /// Says what an honest client said, and reads.
    Replaying,
}

const HOSTILE: [Hostile; 5] =
    [Hostile::Idle, Hostile::Trickling, Hostile::NeverReading, Hostile::Garbage, Hostile::Replaying];

impl Hostile {
    /// Comes again and again until `done`; how often it did.
    fn run(self, server: SocketAddr, recorded: &[u8], pause: Duration, done: &AtomicBool) -> usize {
        let mut visits = 0;
        while !done.load(Ordering::Relaxed) {
            let Ok(mut stream) = TcpStream::connect(server) else {
                thread::sleep(Duration::from_millis(20));
                continue;
            };
            visits += 1;
            let _ = stream.set_read_timeout(Some(Duration::from_millis(100)));
            let _ = stream.set_write_timeout(Some(Duration::from_millis(500)));
            let mut rng = StdRng::seed_from_u64(visits as u64);
            let alive = |stream: &mut TcpStream| {
                let ended = |kind: std::io::ErrorKind| {
                    !matches!(kind, std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
                };
                match stream.read(&mut [0; 1 << 16]) {
                    Ok(n) => n > 0,
                    Err(error) => !ended(error.kind()),
                }
            };
            match self {
                Hostile::Idle => while alive(&mut stream) && !done.load(Ordering::Relaxed) {},
                Hostile::Trickling => {
                    for byte in recorded {
                        let until = Instant::now() + pause;
                        while Instant::now() < until && alive(&mut stream) && !done.load(Ordering::Relaxed) {}
                        if done.load(Ordering::Relaxed) || stream.write_all(&[*byte]).is_err() {
                            break;
                        }
                    }
                }
                Hostile::NeverReading => {
                    let _ = stream.write_all(recorded);
                    // Goes on until the server gives up, which makes a write fail.
                    while !done.load(Ordering::Relaxed) && stream.write_all(&[0]).is_ok() {
                        thread::sleep(Duration::from_millis(100));
                    }
                }
                Hostile::Garbage => {
                    let mut garbage = [0; 1000];
                    while !done.load(Ordering::Relaxed) {
                        rng.fill(&mut garbage);
                        if stream.write_all(&garbage).is_err() || !alive(&mut stream) {
                            break;
                        }
                    }
                }
                Hostile::Replaying => {
                    let _ = stream.write_all(recorded);
                    while alive(&mut stream) && !done.load(Ordering::Relaxed) {}
                }
            }
        }
        visits
    }
}

/// The most memory that the server of the tiny model may take, whatever its clients do: four sessions of it, and what
/// the links of all clients may queue.
const MEMORY: u64 = 1 << 30;

/// Lets `honest` clients and the five hostile ones come to one server of four sessions at once.
fn crowd(wire: Wire, honest: usize, pause: Duration, limit: Duration) {
    let home = home();
    let path = home.path();
    let limits = "--sessions 4 --queue 32 --timeout 10 --handshake-timeout 5 --session-limit 60";
    let mut host = serve(path, limits, wire);
    let address = host.socket();
    // An honest session, to be replayed; the text that all others must have.
    let proxy = Proxy::start(address, None);
    let first = client(path, proxy.address, "", wire, 60.0, limit);
    assert_eq!(first.code, Some(0), "{}", first.errors);
    let recorded = Arc::new(proxy.passed(|passed| passed.streams[0].clone()));
    let calm = host.peak_memory();
    let done = AtomicBool::new(false);
    let start = Instant::now();
    let (served, visits) = thread::scope(|scope| {
        let hostile = HOSTILE.map(|kind| {
            let (recorded, done) = (recorded.clone(), &done);
            scope.spawn(move || kind.run(address, &recorded, pause, done))
        });
        thread::sleep(Duration::from_millis(300));
        let honest: Vec<_> = (0..honest)
            .map(|_| scope.spawn(|| client(path, address, "", wire, limit.as_secs_f64(), limit)))
            .collect();
        let served: Vec<Ended> = honest.into_iter().map(|client| client.join().expect("a client")).collect();
        done.store(true, Ordering::Relaxed);
        (served, hostile.map(|hostile| hostile.join().expect("a hostile client")))
    });
    let memory = host.peak_memory();
    let mib = |bytes: Option<u64>| bytes.map_or("unknown".into(), |bytes| format!("{} MiB", bytes >> 20));
    println!(
        "{} honest and 5 hostile clients over {wire:?}: all served in {:.1} s; hostile visits {HOSTILE:?} {visits:?}; \
         the server's peak memory {} (after one session {})",
        served.len(),
        start.elapsed().as_secs_f64(),
        mib(memory),
        mib(calm)
    );
    for ended in &served {
        assert!(!ended.hung && ended.code == Some(0), "{:?} {}\n{}", ended.code, ended.errors, host.log());
        assert_eq!(ended.text, first.text);
    }
    host.assert_sound();
    assert!(memory.is_none_or(|bytes| bytes < MEMORY), "{}", mib(memory));
}

#[test]
fn a_small_crowd_is_served() {
    crowd(Wire::Plaintext, 4, Duration::from_millis(500), Duration::from_secs(60));
}

#[test]
#[ignore = "minutes"]
fn fifteen_of_twenty_are_served() {
    for wire in [Wire::Plaintext, Wire::Tls] {
        crowd(wire, 15, Duration::from_secs(5), Duration::from_secs(300));
    }
}
