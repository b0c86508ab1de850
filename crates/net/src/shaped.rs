//! A link slowed to the rate and the delay of a named network, in real time.
//!
//! Each party shapes what it sends: a thread hands the bytes to the inner link once they would have left a wire of
//! the given rate, half a round trip later. When both parties wrap their ends, both directions are shaped. The
//! bytes counted are those of the link, framing included, as in the [`Ledger`](crate::Ledger); packet headers of a
//! real network are not modelled.

use std::fmt;
use std::io::{self, ErrorKind};
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::Link;
use crate::link::SendHalf;
use crate::papers::PAPERS;
use crate::stream::QUEUE_BYTES;

/// A large buffer is delivered in pieces of this size, as a wire would.
const PIECE_BYTES: usize = 64 << 10;

/// The time for which a `send` that waits for room lets the inner link read before it looks for room again.
const WAIT: Duration = Duration::from_millis(2);

/// The length of the last part of a wait, in which the thread yields instead of sleeping, because sleeping overshoots
/// by about 60 us.
const SLEEP_OVERSHOOT: Duration = Duration::from_micros(80);

/// Rate and delay of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkShape {
    /// Rate of each direction in bytes per second; zero is taken as one.
    pub bytes_per_second: u64,
    /// Time for an empty message to the peer and back.
    pub round_trip: Duration,
}

impl LinkShape {
    /// The presets by name: the LAN of the MPCache paper (appendix), a plain gigabit LAN, the 400 Mbit/s WAN
    /// customary in papers on two-party inference, and a distant peer. Networks of other papers are in [`PAPERS`].
    pub const PRESETS: [(&'static str, LinkShape); 4] = [
        ("lan", LinkShape { bytes_per_second: 377_000_000, round_trip: Duration::from_micros(300) }),
        ("lan-1g", LinkShape { bytes_per_second: 125_000_000, round_trip: Duration::from_micros(500) }),
        ("wan", LinkShape { bytes_per_second: 50_000_000, round_trip: Duration::from_millis(4) }),
        ("wan-far", LinkShape { bytes_per_second: 12_500_000, round_trip: Duration::from_millis(80) }),
    ];

    /// Two parties in one machine.
    pub const MEMORY: LinkShape =
        LinkShape { bytes_per_second: 4_000_000_000, round_trip: Duration::from_micros(50) };

    /// The least time for messages that the parties send in turns: `bytes_each_way` at the rate, and half a round
    /// trip for each of `flows` changes of direction.
    pub fn predict(&self, bytes_each_way: [u64; 2], flows: u64) -> Duration {
        let [to_server, to_client] = bytes_each_way;
        let delays = nanoseconds((self.round_trip / 2).as_nanos().saturating_mul(u128::from(flows)));
        self.transfer(to_server).saturating_add(self.transfer(to_client)).saturating_add(delays)
    }

    /// Rate and delay in words.
    pub fn numbers(&self) -> String {
        let [megabits, milliseconds] = self.units();
        format!("{megabits} Mbit/s and {milliseconds} ms a round trip")
    }

    /// The rate in Mbit/s, and the round trip in milliseconds.
    pub fn units(&self) -> [f64; 2] {
        [self.bytes_per_second as f64 / 125_000.0, self.round_trip.as_secs_f64() * 1e3]
    }

    /// Time on the wire, rounded up to nanoseconds: parts of a transfer never take less than the whole.
    fn transfer(&self, bytes: u64) -> Duration {
        nanoseconds((u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(self.bytes_per_second.max(1))))
    }
}

fn nanoseconds(n: u128) -> Duration {
    let seconds = u64::try_from(n / 1_000_000_000).unwrap_or(u64::MAX);
    Duration::new(seconds, (n % 1_000_000_000) as u32)
}

impl fmt::Display for LinkShape {
    /// The name of a preset, otherwise `RATEmbit,DELAYms`. Names of papers are not shown, because papers share
    /// networks.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((name, _)) = LinkShape::PRESETS.iter().find(|(_, shape)| shape == self) {
            return f.write_str(name);
        }
        let [megabits, milliseconds] = self.units();
        write!(f, "{megabits}mbit,{milliseconds}ms")
    }
}

/// The error for a text that names no network.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "`{text}` is no network: give lan, lan-1g, wan, wan-far, that of a paper such as bolt-wan, or a rate and a round \
     trip such as `100mbit,80ms`"
)]
pub struct ParseShapeError {
    /// The text.
    pub text: String,
}

impl FromStr for LinkShape {
    type Err = ParseShapeError;

    /// Reads the name of a preset or of a paper's network, or `RATEmbit,DELAYms`, or a rate in `gbit`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let custom = || {
            let (rate, delay) = text.split_once(',')?;
            let number = |unit: &str| rate.trim().strip_suffix(unit)?.trim_end().parse::<f64>().ok();
            let megabits = number("mbit").or_else(|| Some(1e3 * number("gbit")?))?;
            let milliseconds: f64 = delay.trim().strip_suffix("ms")?.trim_end().parse().ok()?;
            let bytes = (megabits * 125_000.0).round();
            // A rate or a delay outside this range is a typing error. NaN is outside as well.
            if !(1.0..=1e15).contains(&bytes) || !(0.0..=1e6).contains(&milliseconds) {
                return None;
            }
            let round_trip = Duration::from_nanos((milliseconds * 1e6).round() as u64);
            Some(LinkShape { bytes_per_second: bytes as u64, round_trip })
        };
        let papers = PAPERS.map(|paper| (paper.name, paper.shape));
        let preset =
            LinkShape::PRESETS.into_iter().chain(papers).find(|(name, _)| *name == text).map(|(_, shape)| shape);
        preset.or_else(custom).ok_or_else(|| ParseShapeError { text: text.into() })
    }
}

/// A [`Link`] that delays and paces what it sends.
///
/// Dropping it waits until everything queued has been delivered, which takes as long as the shape says. At most 64
/// MiB wait for their turn on the wire, besides what the inner link holds. Beyond that, `send` waits for room and
/// meanwhile lets the inner link read ahead. With a peer that does not read, the inner link finally fills up and
/// fails.
pub struct Shaped {
    /// The inner link, which receives; its sending side is in the thread.
    inner: Box<dyn Link>,
    shape: LinkShape,
    /// `None` once closed.
    queue: Option<Sender<Delivery>>,
    thread: Option<JoinHandle<io::Result<()>>>,
    /// The time at which the wire will have sent everything queued so far.
    wire_free: Instant,
    failure: Arc<OnceLock<ErrorKind>>,
    /// Bytes in the queue and in the buffer that is being delivered.
    held: Arc<AtomicUsize>,
}

/// A buffer, and the time at which its first byte enters the wire.
struct Delivery {
    bytes: Vec<u8>,
    start: Instant,
}

impl Shaped {
    /// Shapes what is sent on `inner`. Errors: `Unsupported` if `inner` cannot give up its sending side.
    pub fn new(mut inner: impl Link + 'static, shape: LinkShape) -> io::Result<Self> {
        let sender = inner.take_sender()?;
        let (queue, deliveries) = mpsc::channel();
        let failure = Arc::new(OnceLock::new());
        let held = Arc::new(AtomicUsize::new(0));
        let thread = thread::Builder::new().name("waggle-shape".into()).spawn({
            let (failure, held) = (failure.clone(), held.clone());
            move || {
                deliver(sender, deliveries, shape, &held).inspect_err(|e| {
                    let _ = failure.set(e.kind());
                })
            }
        })?;
        let (queue, thread) = (Some(queue), Some(thread));
        Ok(Shaped { inner: Box::new(inner), shape, queue, thread, wire_free: Instant::now(), failure, held })
    }
}

/// Sends every piece at the time at which its last byte would have left the wire, plus half a round trip.
fn deliver(
    mut sender: Box<dyn SendHalf>,
    deliveries: Receiver<Delivery>,
    shape: LinkShape,
    held: &AtomicUsize,
) -> io::Result<()> {
    let crossing = shape.round_trip / 2;
    for Delivery { bytes, start } in deliveries {
        let len = bytes.len();
        let mut sent = 0;
        while bytes.len() - sent > PIECE_BYTES {
            let piece = &bytes[sent..sent + PIECE_BYTES];
            sent += PIECE_BYTES;
            thread::sleep((start + shape.transfer(sent as u64) + crossing).saturating_duration_since(Instant::now()));
            sender.send(piece.to_vec())?;
        }
        let rest = if sent == 0 { bytes } else { bytes[sent..].to_vec() };
        sleep_until(start + shape.transfer((sent + rest.len()) as u64) + crossing);
        sender.send(rest)?;
        held.fetch_sub(len, Ordering::Release);
    }
    sender.close()
}

/// Returns at `deadline` or, when the machine is busy, later.
fn sleep_until(deadline: Instant) {
    thread::sleep(deadline.saturating_duration_since(Instant::now()).saturating_sub(SLEEP_OVERSHOOT));
    while Instant::now() < deadline {
        thread::yield_now();
    }
}

impl Link for Shaped {
    fn send(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        loop {
            let held = self.held.load(Ordering::Acquire);
            let ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
            if ended || held == 0 || held.saturating_add(bytes.len()) <= QUEUE_BYTES {
                break;
            }
            match self.inner.read_ahead(WAIT) {
                Ok(()) => {}
                // The peer may still read.
                Err(e) if e.kind() == ErrorKind::UnexpectedEof => thread::sleep(WAIT),
                Err(e) => return Err(e),
            }
        }
        self.held.fetch_add(bytes.len(), Ordering::AcqRel);
        let start = self.wire_free.max(Instant::now());
        self.wire_free = start + self.shape.transfer(bytes.len() as u64);
        let queue = self.queue.as_ref().ok_or(ErrorKind::BrokenPipe)?;
        let unsent = queue.send(Delivery { bytes, start }).is_err();
        match self.failure.get() {
            Some(kind) => Err((*kind).into()),
            None if unsent => Err(ErrorKind::BrokenPipe.into()),
            None => Ok(()),
        }
    }

    crate::forward_link!(self => self.inner; recv timeout read_ahead exporter wire_bytes);

    fn close(&mut self) -> io::Result<()> {
        self.queue = None;
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(io::Error::other("the shaping thread panicked")),
        }
    }
}

impl Drop for Shaped {
    fn drop(&mut self) {
        // A drop cannot report errors; `close` can.
        let _ = self.close();
    }
}
