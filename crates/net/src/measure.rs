//! The measurement of a link, at the beginning of a session.
//!
//! The server sends bytes, the client sends them back, and the server reads the clock. The fastest return of a single
//! byte is the round trip. A burst takes longer by two transfers. Bursts grow only while they are quick, so that a
//! slow link takes a second or two. The server then states rate and delay by their places in a coarse grid. Noise
//! thus seldom moves a plan, and nobody can make a party plan with a rate or a delay that no network has. Where there
//! is no wire the server states [`LinkShape::MEMORY`] at once.
//!
//! | message | from | bytes |
//! |---|---|---|
//! | ping, four times | server, and back | 1 |
//! | burst: 16, 64, 256 KiB and twice 1 MiB, until one is slow | server, and back | as many |
//! | places of rate and delay | server | 2 |
//!
//! All messages are booked under `link`. Their bytes are a function of [`Measured::bursts`], and no peer can make
//! them more: a longer message is refused before it is received, and each has the time-outs of the link.

use std::time::{Duration, Instant};

use crate::{Channel, LinkShape, NetError, Role};

/// Step and scope of the messages.
const STEP: &str = "link";
const PINGS: usize = 4;
/// Bytes of the bursts. A connection that was idle may need the first burst of a megabyte to become fast.
const BURSTS: [usize; 5] = [16 << 10, 64 << 10, 256 << 10, 1 << 20, 1 << 20];
/// A burst is quick if it takes less than this time plus four round trips. A new connection may hold a burst back for
/// as long as four round trips.
const QUICK: Duration = Duration::from_millis(25);
/// The grid's rates in Mbit/s, and after them its round trips in microseconds. The presets lie far from the middle
/// between two places.
const RATES: [u64; 11] = [1, 3, 10, 30, 100, 400, 1000, 3000, 10_000, 32_000, 100_000];
const TRIPS: [u64; 8] = [50, 400, 1500, 5000, 20_000, 80_000, 300_000, 1_000_000];

/// A link as the parties found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Rate and delay, on the grid.
    pub shape: LinkShape,
    /// The number of bursts; 0 without a wire.
    pub bursts: usize,
}

/// Measures the link between the parties, both of which call this. A server with `known` states the shape in `known`
/// in place of the measured one, and sends as many bursts: for rehearsals.
///
/// # Errors
/// [`NetError::Malformed`] for a message that is not in the table, and errors of the channel.
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
    let mut found = Measured { shape: LinkShape::MEMORY, bursts: 0 };
    let known = known.or(channel.wire_bytes().is_none().then_some(found));
    if known.is_none_or(|known| known.bursts > 0) {
        // Bytes that no tunnel compresses.
        let mut bytes = vec![0; 1 << 20];
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
        // The largest burst counts, and of two equal ones the faster.
        let mut best = (0, Duration::MAX);
        for size in BURSTS {
            let took = echo(channel, size)?.saturating_sub(trip).max(Duration::from_nanos(1));
            best = (size, if best.0 == size { took.min(best.1) } else { took });
            found.bursts += 1;
            if !known.map_or(took < QUICK + 4 * trip, |known| found.bursts < known.bursts) {
                break;
            }
        }
        let bytes_per_second = (2.0 * best.0 as f64 / best.1.as_secs_f64()) as u64;
        found.shape = LinkShape { bytes_per_second, round_trip: trip };
    }
    let places = places(known.map_or(found.shape, |known| known.shape));
    channel.send(STEP, &places)?;
    channel.flush(STEP)?;
    Ok(Measured { shape: shape(places)?, ..found })
}

fn answer(channel: &mut Channel) -> Result<Measured, NetError> {
    let mut sizes = [1; PINGS].into_iter().chain(BURSTS);
    let mut answered: usize = 0;
    loop {
        // The only other message that may come is the result.
        let due = sizes.next().unwrap_or(2);
        let bytes = channel.recv_up_to(STEP, due.max(2))?;
        if let [rate, trip] = bytes[..] {
            if (1..=PINGS).contains(&answered) {
                return Err(malformed(format!("a result after {answered} pings")));
            }
            return Ok(Measured { shape: shape([rate, trip])?, bursts: answered.saturating_sub(PINGS) });
        }
        if bytes.len() != due {
            return Err(malformed(format!("{} bytes, where {due} or a result are due", bytes.len())));
        }
        channel.send_owned(STEP, bytes)?;
        answered += 1;
    }
}

/// The places of the rate and the round trip in the grid that are nearest to `link` by ratio.
fn places(link: LinkShape) -> [u8; 2] {
    let nearest = |grid: &[u64], value: f64| {
        let off = |at: u8| (grid[usize::from(at)] as f64 / value.max(1e-9)).ln().abs();
        (0..grid.len() as u8).min_by(|a, b| off(*a).total_cmp(&off(*b))).unwrap_or_default()
    };
    let (rate, trip) = (link.bytes_per_second as f64 * 8e-6, link.round_trip.as_secs_f64() * 1e6);
    [nearest(&RATES, rate), nearest(&TRIPS, trip)]
}

fn shape([rate, trip]: [u8; 2]) -> Result<LinkShape, NetError> {
    let (Some(rate), Some(trip)) = (RATES.get(usize::from(rate)), TRIPS.get(usize::from(trip))) else {
        return Err(malformed(format!("the grid has no rate {rate} or no delay {trip}")));
    };
    Ok(LinkShape { bytes_per_second: rate * 125_000, round_trip: Duration::from_micros(*trip) })
}

fn malformed(what: String) -> NetError {
    NetError::Malformed { step: STEP, what }
}
