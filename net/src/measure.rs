//! The measurement of a link, at the beginning of a session.
//!
//! The server sends bytes, the client sends them back, and the server reads the clock. The fastest return of a single
//! byte is the round trip. Bursts take two transfers longer; they grow only while they are quick, so that a slow link
//! waits for a second or two. The server then states both numbers by their places in a coarse grid. Noise thus seldom
//! moves a plan, and nobody can make a party plan with a rate or a delay that no network has.
//!
//! | message | from | bytes |
//! |---|---|---|
//! | ping, four times; not where the server knows the link | server, and back | 1 |
//! | burst: 16, 64, 256 KiB and twice 1 MiB, until one is slow; not where the server knows the link | server, and back | as many |
//! | places of rate and delay | server | 2 |
//!
//! All of it is booked under `link`. Its bytes are a function of [`Measured::bursts`].

use std::time::{Duration, Instant};

use crate::{Channel, LinkShape, NetError, Role};

/// Step and scope of the messages.
const STEP: &str = "link";
const PINGS: usize = 4;
/// Bytes of the bursts. A connection that was idle may need the first of a megabyte to become fast.
const BURSTS: [usize; 5] = [16 << 10, 64 << 10, 256 << 10, 1 << 20, 1 << 20];
/// Bytes of the server's statement.
const RESULT: usize = 2;
/// A burst that takes no longer, beside [`QUICK_TRIPS`] round trips, is followed by a larger one.
const QUICK: Duration = Duration::from_millis(25);
/// Round trips for which a new connection may hold a burst back.
const QUICK_TRIPS: u32 = 4;

/// The grid's rates in Mbit/s. Those of the presets lie far from the middle between two.
const RATES: [u64; 11] = [1, 3, 10, 30, 100, 400, 1000, 3000, 10_000, 32_000, 100_000];
/// The grid's round trips in microseconds.
const TRIPS: [u64; 8] = [50, 400, 1500, 5000, 20_000, 80_000, 300_000, 1_000_000];

/// A link as the parties found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Rate and delay, on the grid.
    pub shape: LinkShape,
    /// The number of bursts; 0 where the server knew the link.
    pub bursts: usize,
}

/// Measures the link between the parties, both of which call this. The server does not measure what it knows:
/// [`Link::shape`](crate::Link::shape), or, in a rehearsal, `known`, with as many bursts as that says.
///
/// # Errors
/// [`NetError::Malformed`] for a message that is not in the table, and those of the channel.
pub fn measure(channel: &mut Channel, known: Option<Measured>) -> Result<Measured, NetError> {
    let depth = channel.ledger().depth();
    channel.ledger_mut().enter(STEP);
    let measured = match channel.role() {
        Role::Client => answer(channel),
        Role::Server => ask(channel, known),
    };
    channel.ledger_mut().leave_to(depth);
    measured
}

fn ask(channel: &mut Channel, known: Option<Measured>) -> Result<Measured, NetError> {
    let known = known.or_else(|| channel.shape().map(|shape| Measured { shape, bursts: 0 }));
    let mut bursts = 0;
    let mut found = LinkShape::MEMORY;
    if known.is_none_or(|known| known.bursts > 0) {
        // Bytes that no tunnel compresses.
        let mut bytes = vec![0; BURSTS[BURSTS.len() - 1]];
        blake3::Hasher::new().finalize_xof().fill(&mut bytes);
        let echo = |channel: &mut Channel, size: usize| {
            let start = Instant::now();
            channel.send(STEP, &bytes[..size])?;
            channel.recv(STEP, size)?;
            Ok::<_, NetError>(start.elapsed())
        };
        let mut trip = Duration::MAX;
        for _ in 0..PINGS {
            trip = trip.min(echo(channel, 1)?);
        }
        // Size and time of the best burst so far, a larger one before a faster one.
        let mut best = (0, Duration::ZERO);
        for size in BURSTS {
            let took = echo(channel, size)?.saturating_sub(trip).max(Duration::from_nanos(1));
            bursts += 1;
            best = if best.0 == size { (size, took.min(best.1)) } else { (size, took) };
            let quick = took < QUICK + QUICK_TRIPS * trip;
            if !known.map_or(quick, |known| bursts < known.bursts) {
                break;
            }
        }
        let bytes_per_second = (2.0 * best.0 as f64 / best.1.as_secs_f64()) as u64;
        found = LinkShape { bytes_per_second, round_trip: trip };
    }
    let places = known.map_or(found, |known| known.shape).places();
    channel.send(STEP, &places)?;
    channel.flush(STEP)?;
    Ok(Measured { shape: shape_at(places)?, bursts })
}

fn answer(channel: &mut Channel) -> Result<Measured, NetError> {
    let mut sizes = std::iter::repeat_n(1, PINGS).chain(BURSTS);
    for answered in 0.. {
        let size = sizes.next().unwrap_or(RESULT);
        let bytes = channel.recv_up_to(STEP, size.max(RESULT))?;
        if let [rate, trip] = bytes[..] {
            let bursts = if answered == 0 { Some(0) } else { usize::checked_sub(answered, PINGS + 1).map(|n| n + 1) };
            let bursts = bursts.ok_or_else(|| malformed(format!("a result after {answered} pings")))?;
            return Ok(Measured { shape: shape_at([rate, trip])?, bursts });
        }
        if bytes.len() != size {
            return Err(malformed(format!("{} bytes where {size} or a result are due", bytes.len())));
        }
        channel.send_owned(STEP, bytes)?;
        channel.flush(STEP)?;
    }
    Err(malformed("no result"))
}

impl LinkShape {
    /// Two ends in one machine: 32 Gbit/s and 50 us, on the grid.
    pub const MEMORY: LinkShape =
        LinkShape { bytes_per_second: 4_000_000_000, round_trip: Duration::from_micros(50) };

    /// The nearest point of the grid of measured links, by the ratio.
    pub fn rounded(self) -> LinkShape {
        let [rate, trip] = self.places().map(usize::from);
        at(RATES[rate], TRIPS[trip])
    }

    /// The place in the grid of the nearest rate and of the nearest round trip.
    fn places(self) -> [u8; 2] {
        let nearest = |grid: &[u64], value: f64| {
            let off = |point: u64| (point as f64 / value.max(1e-9)).ln().abs();
            (0..grid.len() as u8).min_by(|a, b| off(grid[*a as usize]).total_cmp(&off(grid[*b as usize])))
        };
        let (rate, trip) = (self.bytes_per_second as f64 * 8e-6, self.round_trip.as_secs_f64() * 1e6);
        [nearest(&RATES, rate), nearest(&TRIPS, trip)].map(Option::unwrap_or_default)
    }
}

fn shape_at([rate, trip]: [u8; RESULT]) -> Result<LinkShape, NetError> {
    match (RATES.get(usize::from(rate)), TRIPS.get(usize::from(trip))) {
        (Some(rate), Some(trip)) => Ok(at(*rate, *trip)),
        _ => Err(malformed(format!("no link has rate {rate} and delay {trip} of the grid"))),
    }
}

/// A rate in Mbit/s and a round trip in microseconds.
fn at(rate: u64, trip: u64) -> LinkShape {
    LinkShape { bytes_per_second: rate * 125_000, round_trip: Duration::from_micros(trip) }
}

fn malformed(what: impl Into<String>) -> NetError {
    NetError::Malformed { step: STEP, what: what.into() }
}
