//! Cost of encryption: a link over loopback with and without TLS, large messages and ping-pong.
//!
//! `cargo run --release -p waggle-bench --example link_costs`. Both parties are threads of this process, so CPU
//! seconds are those of both together.

use std::thread;
use std::time::{Duration, Instant};

use waggle_net::tcp::{self, ConnectOptions, TcpLink, listen};
use waggle_net::{Channel, Identity, Link, NetError, Role, process_cpu_time, tls};

const TIMEOUT: Duration = Duration::from_secs(60);
const RUNS: usize = 5;

/// The ends of client and server.
type Pair = (Box<dyn Link>, Box<dyn Link>);

fn pair(encrypted: bool) -> Result<Pair, NetError> {
    let listener = listen("127.0.0.1:0", TIMEOUT)?;
    let addr = listener.local_addr()?;
    let options = ConnectOptions { connect_timeout: TIMEOUT, read_timeout: TIMEOUT };
    let identities = (Identity::generate()?, Identity::generate()?);
    thread::scope(|scope| {
        let (client, server) = &identities;
        let connecting = scope.spawn(move || -> Result<Box<dyn Link>, NetError> {
            if encrypted {
                return Ok(Box::new(tls::connect(addr, client, |_| true, options)?));
            }
            Ok(Box::new(tcp::connect(addr, options)?))
        });
        let stream = listener.accept_stream(Some(TIMEOUT))?;
        let accepted: Box<dyn Link> = if encrypted {
            Box::new(tls::accept(stream, server, TIMEOUT, TIMEOUT)?)
        } else {
            Box::new(TcpLink::new(stream, TIMEOUT).map_err(|e| NetError::from_io("accept", e, TIMEOUT))?)
        };
        Ok((connecting.join().expect("the client's thread does not panic")?, accepted))
    })
}

/// Seconds and CPU seconds of `count` messages of `len` bytes from the client, each answered by `reply` bytes.
fn run(encrypted: bool, len: usize, count: usize, reply: usize) -> Result<(f64, f64), NetError> {
    let (client, server) = pair(encrypted)?;
    let mut client = Channel::new(Role::Client, client);
    let mut server = Channel::new(Role::Server, server);
    let (start, cpu) = (Instant::now(), process_cpu_time());
    thread::scope(|scope| {
        let answering = scope.spawn(move || -> Result<(), NetError> {
            for _ in 0..count {
                server.recv("message", len)?;
                server.send("reply", &vec![2; reply])?;
            }
            server.flush("reply")
        });
        for _ in 0..count {
            client.send_owned("message", vec![1; len])?;
            client.recv("reply", reply)?;
        }
        answering.join().expect("the server's thread does not panic")
    })?;
    let spent = process_cpu_time().zip(cpu).map(|(now, before)| (now - before).as_secs_f64());
    Ok((start.elapsed().as_secs_f64(), spent.unwrap_or_default()))
}

fn main() -> Result<(), NetError> {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown processor");
    let cores = thread::available_parallelism().map_or(1, usize::from);
    println!("{}, {cores} cores; medians of {RUNS} runs", model.trim_start_matches(['\t', ':', ' ']));
    println!("{:36}{:>12}{:>12}{:>14}{:>14}", "messages", "tcp ms", "tls ms", "tcp CPU ms", "tls CPU ms");
    // 256 MB in one direction; a decoded token of GPT-2 small, 8 MB in 600 flows; short questions and answers.
    for (name, len, count, reply) in [
        ("64 x 4 MB one way", 4_000_000, 64, 0),
        ("token: 300 x 13.5 kB each way", 13_500, 300, 13_500),
        ("2000 x 100 bytes each way", 100, 2_000, 100),
    ] {
        // In turn, so that a busy machine slows both.
        let mut samples = [Vec::new(), Vec::new()];
        for _ in 0..RUNS {
            for (samples, encrypted) in samples.iter_mut().zip([false, true]) {
                samples.push(run(encrypted, len, count, reply)?);
            }
        }
        let [tcp, tls] = samples.map(median);
        println!("{name:36}{:>12.1}{:>12.1}{:>14.1}{:>14.1}", tcp.0, tls.0, tcp.1, tls.1);
    }
    Ok(())
}

/// Medians of both columns, in milliseconds.
fn median(samples: Vec<(f64, f64)>) -> (f64, f64) {
    let middle = |mut column: Vec<f64>| {
        column.sort_by(f64::total_cmp);
        1e3 * column[column.len() / 2]
    };
    (middle(samples.iter().map(|s| s.0).collect()), middle(samples.iter().map(|s| s.1).collect()))
}
