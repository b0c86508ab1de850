//! One connection, from the first byte to its end, in a thread of its own.

use std::net::{SocketAddr, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tracing::{debug, info, warn};
use waggle_files::write_json;
use waggle_model::Step;
use waggle_net::{Admission, Channel, Link, NetError, PublicKey, Role, await_client, send_admission};
use waggle_session::Error as SessionError;
use waggle_session::party::{Event, Flow, Outcome, Peer};

use super::desk::Seat;
use super::door::Place;
use super::host::{Accepted, Host};
use super::metrics::{End, Metrics};
use super::service::{Happened, Service};
use super::watch::Idle;
use crate::Error;
use crate::error::{Full, ServeError, describe};
use crate::summary::report;

/// Interval at which a waiting client is told that the server is busy.
const BUSY: Duration = Duration::from_secs(1);
/// Interval at which the server checks whether a waiting client has left.
const LOOK: Duration = Duration::from_millis(50);

/// Runs the session on `stream` and counts how it ended. A panic in it does not end the server.
pub(super) fn visit(server: &Arc<Service>, stream: TcpStream, peer: SocketAddr, place: Place) {
    let span = tracing::info_span!("session", %peer, key = tracing::field::Empty);
    let _entered = span.enter();
    let mut stage = Stage::Unproved;
    // The seat is held until everything is counted, because an ending server waits only for seats.
    let mut seat = None;
    let visited = catch_unwind(AssertUnwindSafe(|| attend(server, &stream, place, &mut stage, &mut seat)));
    let outcome = visited.unwrap_or(Err(Error::Panicked));
    let end = match &outcome {
        Ok(outcome) if outcome.filled.is_some() => End::Filled,
        Ok(_) => End::Generated,
        Err(error) => end_of(error, stage),
    };
    server.metrics.ended(end);
    match &outcome {
        Ok(outcome) => {
            server.metrics.finished(outcome);
            match outcome.filled {
                Some(filled) => info!("{filled}"),
                None => info!(tokens = outcome.generation.count, "{} tokens generated", outcome.generation.count),
            }
        }
        Err(error) => match end {
            End::Failed | End::Expired => warn!(outcome = end.name(), "{}", describe(error)),
            _ => info!(outcome = end.name(), "{}", describe(error)),
        },
    }
    if stage == Stage::Served {
        let outcome =
            outcome.map_err(|source| ServeError::Session { peer: peer.to_string(), source: Box::new(source) }.into());
        server.tell(Happened::Ended(Box::new(outcome)));
    }
}

/// The stage that a connection reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The client has not proved a key yet.
    Unproved,
    /// The client is not served yet.
    Waiting,
    Served,
}

fn end_of(error: &Error, stage: Stage) -> End {
    match error {
        Error::Serve(ServeError::Stranger { .. } | ServeError::Full(_)) => End::Refused,
        Error::Serve(ServeError::Left) | Error::Session(SessionError::Model(waggle_model::Error::Abandoned)) => {
            End::Left
        }
        Error::Serve(ServeError::TooLong(_)) => End::Expired,
        Error::Session(
            SessionError::Limit { .. }
            | SessionError::Phases { .. }
            | SessionError::Quota { .. }
            | SessionError::TokensAlone
            | SessionError::Planning { .. }
            | SessionError::NoChats
            | SessionError::TooWide { .. }
            | SessionError::TalkPolicy { .. }
            | SessionError::Pool(_)
            | SessionError::PoolFile { .. }
            | SessionError::Model(
                waggle_model::Error::TooLong { .. }
                | waggle_model::Error::Nothing
                | waggle_model::Error::DraftPolicy { .. },
            ),
        ) => End::Refused,
        _ if stage == Stage::Unproved => End::Unproved,
        _ => End::Failed,
    }
}

fn attend(
    server: &Arc<Service>,
    stream: &TcpStream,
    place: Place,
    stage: &mut Stage,
    seat: &mut Option<Seat>,
) -> Result<Outcome, Error> {
    let io = |source| NetError::Io { step: "accept", source };
    let own = stream.try_clone().map_err(io)?;
    let Accepted { mut link, key } =
        server.host.accept(own, server.config.handshake_timeout, server.config.timeout)?;
    // A link without encryption has only the session's long time-out so far. The first message must come sooner.
    let hurry = server.watch.limit(stream, server.config.handshake_timeout).map_err(io)?;
    await_client(&mut link).map_err(|error| match hurry.expired() {
        true => NetError::TimedOut { step: "admission", seconds: server.config.handshake_timeout.as_secs_f64() },
        false => error,
    })?;
    drop(hurry);
    if let Some(key) = key {
        tracing::Span::current().record("key", tracing::field::display(key));
    }
    let peer = Peer { key: key.map(|key| key.to_string()) };
    let mut link = Tallied { link, metrics: server.metrics.clone() };
    *stage = Stage::Waiting;
    // The connection is no longer idle; other limits apply from here on.
    drop(place);

    let seat = match let_in(server, key) {
        Ok(taken) => seat.insert(taken),
        Err(error) => return Err(turn_away(link, error)),
    };
    let mut told = Duration::ZERO;
    let mut waits = false;
    let waited = seat.wait(LOOK, |position| {
        if left(stream) {
            return Err(ServeError::Left.into());
        }
        // The times of these messages are fixed too, so that they tell nothing of other clients in the queue.
        if !waits || told >= BUSY {
            if !waits {
                info!(position, "the client waits");
            }
            (waits, told) = (true, Duration::ZERO);
            send_admission(&mut link, &Admission::Busy).map_err(|_| ServeError::Left)?;
        }
        told += LOOK;
        Ok(())
    });
    if let Err(error) = waited {
        return Err(turn_away(link, error));
    }
    *stage = Stage::Served;
    server.tell(Happened::Begun);
    info!("session begins");
    let limit = server
        .watch
        .limit(stream, server.config.session_limit)
        .map_err(|source| NetError::Io { step: "accept", source })?;
    let served = serve(server, stream, link, &peer);
    match served {
        Err(_) if limit.expired() => Err(ServeError::TooLong(server.config.session_limit.as_secs_f64()).into()),
        served => served,
    }
}

/// A place for the client with `key`, if it may come in.
fn let_in(server: &Service, key: Option<PublicKey>) -> Result<Seat, Error> {
    if let (false, Some(key)) = (server.host.admits(key)?, key) {
        return Err(ServeError::Stranger { key, advice: server.host.advice(key) }.into());
    }
    Ok(server.desk.enter(key.map(|key| key.to_string()).as_deref())?)
}

/// Tells the client why it is not served, and returns `error`.
fn turn_away(mut link: Tallied, error: Error) -> Error {
    let reason = match &error {
        Error::Serve(ServeError::Stranger { key, .. }) => Host::refusal(*key),
        Error::Serve(ServeError::Full(full)) => full.to_string(),
        Error::Serve(ServeError::Left) => return error,
        _ => "it cannot tell who may come in".into(),
    };
    // The client may be gone.
    let _ = send_admission(&mut link, &Admission::Refused { reason });
    error
}

fn serve(server: &Arc<Service>, stream: &TcpStream, mut link: Tallied, peer: &Peer) -> Result<Outcome, Error> {
    send_admission(&mut link, &Admission::Granted)?;
    let channel = Channel::new(Role::Server, server.config.network.wrap(link)?);
    let mut watcher = Watcher { server, stream, peer, idle: None, charged: 0, shown: 0, tokens: 0 };
    let served =
        server.hosted.serve(channel, peer, &server.terms_for(peer), &server.limits, &mut |event| watcher.hear(event));
    watcher.settle();
    let outcome = match served {
        Err(_) if watcher.idle.is_some() && server.watch.ending() => return Err(Full::Ending.into()),
        served => served?,
    };
    if let Some(path) = &server.config.report {
        let chosen = [("link", server.config.network.to_string().into())];
        let mut report = report(server.hosted.public(), None, outcome.prompt_tokens, &outcome, chosen)?;
        report.peak_memory_bytes.server = waggle_net::peak_memory_bytes();
        // One session after another.
        static TURN: Mutex<()> = Mutex::new(());
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        write_json(path, &report)?;
    }
    Ok(outcome)
}

/// Whether the client has closed the connection, even if unread bytes are left. If the system cannot tell, the next
/// message to the client fails.
fn left(stream: &TcpStream) -> bool {
    #[cfg(unix)]
    {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        #[cfg(target_os = "linux")]
        let closed = PollFlags::HUP | PollFlags::ERR | PollFlags::RDHUP;
        #[cfg(not(target_os = "linux"))]
        let closed = PollFlags::HUP | PollFlags::ERR;
        let mut looked = [PollFd::new(stream, closed)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut looked, Some(&at_once)).is_ok() && looked[0].revents().intersects(closed)
    }
    #[cfg(not(unix))]
    {
        let _ = stream;
        false
    }
}

/// Watches a session for the server: charges positions, and notes when nothing runs.
struct Watcher<'a> {
    server: &'a Service,
    stream: &'a TcpStream,
    peer: &'a Peer,
    /// The mark of an idle connection, while nothing runs on it.
    idle: Option<Idle>,
    /// Positions that were charged for this session. `shown` is the number of positions that have gone through the
    /// model.
    charged: u64,
    shown: u64,
    /// Tokens that are generated so far.
    tokens: u64,
}

impl Watcher<'_> {
    /// Credits the positions that were charged but not used.
    fn settle(&mut self) {
        let Some(accounts) = self.server.accounts_of(self.peer) else { return };
        let unused = self.charged.saturating_sub(self.shown);
        self.charged = 0;
        if let Err(error) = accounts.credit(self.peer.key.as_deref(), unused) {
            warn!("{}", describe(&error));
        }
    }
}

impl Watcher<'_> {
    fn hear(&mut self, event: Event<'_>) -> Flow {
        match event {
            Event::GoesOn if left(self.stream) => return Flow::Abandon,
            Event::Asked(positions) => {
                if let Some(accounts) = self.server.accounts_of(self.peer)
                    && positions > 0
                {
                    if let Err(error) = accounts.charge(self.peer.key.as_deref(), positions) {
                        return Flow::Refuse(error.into());
                    }
                    self.charged += positions;
                }
            }
            // If no second descriptor is free, the connection merely stays open until its client leaves.
            Event::Idle(idle) => self.idle = idle.then(|| self.server.watch.idle(self.stream).ok()).flatten(),
            Event::Stays => debug!("the client is there"),
            Event::Shown(positions) => self.shown += positions,
            Event::Begins(Step::Prefill) => debug!("prefill"),
            Event::Room(bytes) => info!(bytes, "preparing correlations"),
            Event::Halves(bytes) => info!(bytes, "sending the helper its halves of the weights"),
            Event::Prepared(made) if made.bytes == 0 && made.work == 0.0 => {
                debug!(bytes = made.all_bytes, "preprocessing");
            }
            Event::Token(_) => {
                self.tokens += 1;
                debug!(tokens = self.tokens, "a token is done");
            }
            _ => (),
        }
        Flow::GoOn
    }
}

/// A link that adds its bytes to the counters when it is dropped, however the session ends.
struct Tallied {
    link: Box<dyn Link>,
    metrics: Arc<Metrics>,
}

impl Drop for Tallied {
    fn drop(&mut self) {
        if let Some(bytes) = self.link.wire_bytes() {
            self.metrics.wire(bytes);
        }
    }
}

impl Link for Tallied {
    waggle_net::forward_link!(self => self.link; send recv timeout take_sender close read_ahead exporter wire_bytes);
}
