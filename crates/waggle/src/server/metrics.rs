//! The server's counters, and the page from which Prometheus reads them.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use waggle_net::{Phase, WireBytes};
use waggle_session::party::Outcome;

/// Most time for a reader of the page, and most bytes of a reader's request.
const READER: Duration = Duration::from_secs(2);
const REQUEST_BYTES: usize = 8 << 10;
/// Most readers at once. A further one takes the place of the oldest.
const READERS: usize = 64;

type Label = [(&'static str, &'static str); 1];
type Counts = Family<Label, Counter>;
type Seconds = Family<Label, Counter<f64, AtomicU64>>;

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The session generated a text.
    Generated,
    /// The session filled a pool.
    Filled,
    /// The client proved no key: it did not speak TLS, or was too slow.
    Unproved,
    /// The client was refused: a stranger, a full queue, a quota, or a request beyond the limits.
    Refused,
    /// The client left while it waited.
    Left,
    /// The session took longer than it may.
    Expired,
    /// Any other error.
    Failed,
}

impl End {
    const ALL: [End; 7] =
        [End::Generated, End::Filled, End::Unproved, End::Refused, End::Left, End::Expired, End::Failed];

    pub(super) fn name(self) -> &'static str {
        match self {
            End::Generated => "generated",
            End::Filled => "filled",
            End::Unproved => "unproved",
            End::Refused => "refused",
            End::Left => "left",
            End::Expired => "expired",
            End::Failed => "failed",
        }
    }
}

const TO_SERVER: Label = [("direction", "client_to_server")];
const TO_CLIENT: Label = [("direction", "server_to_client")];
const PHASES: [(Phase, &str); 4] =
    [(Phase::Setup, "setup"), (Phase::Offline, "offline"), (Phase::Prefill, "prefill"), (Phase::Decode, "decode")];

/// All counters. Costs of a session are counted at its end.
pub(super) struct Metrics {
    registry: Registry,
    sessions: Counts,
    dropped: Counter,
    running: Gauge,
    waiting: Gauge,
    pools: Gauge,
    bytes: Counts,
    wire_bytes: Counts,
    seconds: Seconds,
    tokens: Counter,
}

impl Metrics {
    pub(super) fn new() -> Self {
        let mut metrics = Metrics {
            registry: Registry::with_prefix("waggle"),
            sessions: Family::default(),
            dropped: Counter::default(),
            running: Gauge::default(),
            waiting: Gauge::default(),
            pools: Gauge::default(),
            bytes: Family::default(),
            wire_bytes: Family::default(),
            seconds: Family::default(),
            tokens: Counter::default(),
        };
        // Prometheus has a rate only of a counter that exists from the start.
        End::ALL.iter().for_each(|end| drop(metrics.sessions.get_or_create(&[("outcome", end.name())])));
        for family in [&metrics.bytes, &metrics.wire_bytes] {
            [TO_SERVER, TO_CLIENT].iter().for_each(|label| drop(family.get_or_create(label)));
        }
        PHASES.iter().for_each(|(_, name)| drop(metrics.seconds.get_or_create(&[("phase", *name)])));
        let registry = &mut metrics.registry;
        registry.register("sessions", "Connections that ended, by outcome", metrics.sessions.clone());
        registry.register(
            "connections_dropped",
            "Connections beyond the limits on idle ones",
            metrics.dropped.clone(),
        );
        registry.register("sessions_running", "Sessions under way", metrics.running.clone());
        registry.register("clients_waiting", "Clients in the queue", metrics.waiting.clone());
        registry.register("pools", "Pools in the directory", metrics.pools.clone());
        let (bytes, wire) = (metrics.bytes.clone(), metrics.wire_bytes.clone());
        registry.register_with_unit("protocol", "Bytes of the protocol in finished sessions", Unit::Bytes, bytes);
        registry.register_with_unit("wire", "Bytes that links really took and gave", Unit::Bytes, wire);
        let seconds = metrics.seconds.clone();
        registry.register_with_unit("phase", "Wall-clock time of finished sessions by phase", Unit::Seconds, seconds);
        registry.register("tokens", "Tokens generated", metrics.tokens.clone());
        metrics
    }

    /// Counts a connection that ended in this way.
    pub(super) fn ended(&self, end: End) {
        self.sessions.get_or_create(&[("outcome", end.name())]).inc();
    }

    pub(super) fn dropped(&self) {
        self.dropped.inc();
    }

    /// Counts the costs of a finished session.
    pub(super) fn finished(&self, outcome: &Outcome) {
        for entry in &outcome.entries {
            self.bytes.get_or_create(&TO_SERVER).inc_by(entry.traffic.bytes_client_to_server);
            self.bytes.get_or_create(&TO_CLIENT).inc_by(entry.traffic.bytes_server_to_client);
            if let Some((_, name)) = PHASES.iter().find(|(phase, _)| *phase == entry.phase) {
                self.seconds.get_or_create(&[("phase", *name)]).inc_by(entry.traffic.time.as_secs_f64());
            }
        }
        self.tokens.inc_by(outcome.generation.count as u64);
    }

    /// Counts the bytes that the server sent and received on a link.
    pub(super) fn wire(&self, bytes: WireBytes) {
        self.wire_bytes.get_or_create(&TO_CLIENT).inc_by(bytes.sent);
        self.wire_bytes.get_or_create(&TO_SERVER).inc_by(bytes.received);
    }

    /// The text of the page, with the current numbers `now`.
    fn page(&self, now: Now) -> String {
        // Numbers of threads and files fit into an `i64`.
        self.running.set(now.running as i64);
        self.waiting.set(now.waiting as i64);
        self.pools.set(now.pools as i64);
        let mut page = String::new();
        match encode(&mut page, &self.registry) {
            Ok(()) => page,
            Err(error) => format!("# {error}\n"),
        }
    }
}

/// Numbers that are looked up each time the page is read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Now {
    /// Sessions under way.
    pub(super) running: usize,
    /// Clients in the queue.
    pub(super) waiting: usize,
    /// Pools in the server's directory.
    pub(super) pools: usize,
}

/// Serves the page on `listener` in a thread that lives as long as the process, and in one for each reader.
pub(super) fn publish(
    metrics: Arc<Metrics>,
    listener: TcpListener,
    now: impl Fn() -> Now + Send + Sync + 'static,
) -> io::Result<()> {
    let page = Arc::new(move || metrics.page(now()));
    let named = || thread::Builder::new().name("waggle-metrics".into());
    named().spawn(move || {
        let mut readers: VecDeque<Weak<TcpStream>> = VecDeque::new();
        loop {
            let answering = listener.accept().and_then(|(stream, peer)| {
                readers.retain(|reader| reader.strong_count() > 0);
                if readers.len() >= READERS
                    && let Some(first) = readers.pop_front().and_then(|reader| reader.upgrade())
                {
                    // The thread of that connection notices and ends. It may have ended already.
                    let _ = first.shutdown(Shutdown::Both);
                }
                let (stream, page) = (Arc::new(stream), page.clone());
                readers.push_back(Arc::downgrade(&stream));
                named().spawn(move || {
                    if let Err(error) = answer(&stream, || page()) {
                        tracing::debug!(%peer, %error, "a reader of the metrics failed");
                    }
                })
            });
            if let Err(error) = answering {
                tracing::warn!(%error, "cannot take a reader of the metrics");
                // The next `accept` may fail again at once.
                thread::sleep(Duration::from_millis(100));
            }
        }
    })?;
    Ok(())
}

/// Answers one request within [`READER`].
fn answer(mut stream: &TcpStream, page: impl FnOnce() -> String) -> io::Result<()> {
    let deadline = Instant::now() + READER;
    let left = || match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::Error::from(io::ErrorKind::TimedOut)),
        left => Ok(left),
    };
    let mut request = Vec::new();
    let mut part = [0; 1 << 10];
    while !request.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
        stream.set_read_timeout(Some(left()?))?;
        let n = stream.read(&mut part)?;
        if n == 0 || request.len() + n > REQUEST_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        request.extend_from_slice(&part[..n]);
    }
    let wanted = [&b"GET /metrics "[..], b"GET / "].iter().any(|line| request.starts_with(line));
    let (status, kind, body) = if wanted {
        ("200 OK", "application/openmetrics-text; version=1.0.0; charset=utf-8", page())
    } else {
        ("404 Not Found", "text/plain; charset=utf-8", "the page is /metrics\n".into())
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    // The answer fits the socket's buffer unless the buffer is full already, so one time-out bounds the write.
    stream.set_write_timeout(Some(left()?))?;
    stream.write_all((head + &body).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(request: &[u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let metrics = Arc::new(Metrics::new());
        metrics.ended(End::Filled);
        publish(metrics, listener, || Now { running: 2, waiting: 3, pools: 4 }).unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request).unwrap();
        let mut text = String::new();
        // The server may reset the connection of a refused request.
        let _ = stream.read_to_string(&mut text);
        text
    }

    #[test]
    fn the_page_says_what_is_so_now() {
        let text = get(b"GET /metrics HTTP/1.1\r\nHost: bees\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        for line in [
            "waggle_sessions_total{outcome=\"filled\"} 1",
            "waggle_sessions_total{outcome=\"failed\"} 0",
            "waggle_sessions_running 2",
            "waggle_clients_waiting 3",
            "waggle_pools 4",
            "waggle_protocol_bytes_total{direction=\"client_to_server\"} 0",
            "waggle_wire_bytes_total{direction=\"server_to_client\"} 0",
            "waggle_phase_seconds_total{phase=\"prefill\"} 0",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
    }

    #[test]
    fn another_page_is_not_found_and_a_long_request_not_read() {
        assert!(get(b"GET /else HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
        assert_eq!(get(&[b'x'; 2 * REQUEST_BYTES]), "");
    }
}
