//! Connections that have not proved a key yet. Their number is bounded in all and for each address. A peer that only
//! connects therefore neither keeps others out nor keeps the server busy.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};

use tracing::{debug, warn};

/// Limits on connections that have not proved a key: in all, and from one address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Idle {
    pub(super) all: usize,
    pub(super) per_address: usize,
}

/// The connections that have not proved a key, which are called idle here.
pub(super) struct Door {
    limits: Idle,
    /// Number of idle connections from each address; no entry is 0.
    idle: Mutex<HashMap<IpAddr, usize>>,
}

/// Counts one idle connection, until this value is dropped.
pub(super) struct Place {
    door: Arc<Door>,
    address: IpAddr,
}

impl Door {
    pub(super) fn new(limits: Idle) -> Arc<Self> {
        Arc::new(Door { limits, idle: Mutex::default() })
    }

    fn idle(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a connection from `address` in; `None` if it is one too many.
    pub(super) fn enter(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        let address = network_of(address);
        let mut idle = self.idle();
        let here = idle.get(&address).copied().unwrap_or_default();
        if here >= self.limits.per_address || idle.values().sum::<usize>() >= self.limits.all {
            return None;
        }
        idle.insert(address, here + 1);
        Some(Place { door: self.clone(), address })
    }

    /// Accepts connections until `over` returns true, and runs `visit` in a thread for each one that is let in.
    /// `dropped` is called for each of the others. With `once` the server has one session, so an error that lasts is
    /// returned.
    ///
    /// # Errors
    /// With `once`, an error that concerns all later connections.
    pub(super) fn accept(
        self: &Arc<Self>,
        listener: &TcpListener,
        once: bool,
        over: impl Fn() -> bool,
        dropped: impl Fn(),
        visit: impl Fn(TcpStream, SocketAddr, Place) + Clone + Send + 'static,
    ) -> io::Result<()> {
        let mut pause = Pause::default();
        loop {
            let accepted = listener.accept();
            if over() {
                return Ok(());
            }
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) if once && !concerns_one(&error) => return Err(error),
                Err(error) => {
                    pause.failed(&error);
                    continue;
                }
            };
            pause.accepted();
            let Some(place) = self.enter(peer.ip()) else {
                dropped();
                debug!(%peer, "dropped: too many connections that have proved no key");
                continue;
            };
            let visit = visit.clone();
            let session = thread::Builder::new().name("waggle-session".into());
            if let Err(error) = session.spawn(move || visit(stream, peer, place)) {
                dropped();
                warn!(%peer, %error, "dropped: no thread for the connection");
            }
        }
    }
}

/// The unit that counts as one address. An IPv6 host can use many addresses of its network, so the whole network
/// counts.
pub fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        address => address,
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut idle = self.door.idle();
        if let Some(count) = idle.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                idle.remove(&self.address);
            }
        }
    }
}

/// The pause after a connection that cannot be accepted. It grows each time, because a listener that has run out of
/// descriptors fails again at once. The first failure is logged, later ones once a minute.
#[derive(Default)]
struct Pause {
    wait: Duration,
    /// Time of the last logged failure, and the number of failures since.
    told: Option<(Instant, u64)>,
}

impl Pause {
    const LEAST: Duration = Duration::from_millis(10);
    const MOST: Duration = Duration::from_secs(1);
    const TELLING: Duration = Duration::from_secs(60);

    fn accepted(&mut self) {
        self.wait = Duration::ZERO;
    }

    fn failed(&mut self, error: &io::Error) {
        if let Some(times) = self.news(Instant::now()) {
            warn!(%error, times, "cannot accept a connection");
        }
        thread::sleep(self.wait);
    }

    /// Counts a failure. If it is to be logged, returns the number of failures since the last logged one, this one
    /// included.
    fn news(&mut self, now: Instant) -> Option<u64> {
        self.wait = (2 * self.wait).clamp(Pause::LEAST, Pause::MOST);
        match &mut self.told {
            Some((when, times)) if now.duration_since(*when) < Pause::TELLING => {
                *times += 1;
                None
            }
            told => {
                let times = 1 + told.map_or(0, |(_, times)| times);
                *told = Some((now, 0));
                Some(times)
            }
        }
    }
}

/// Whether the error concerns one connection only, and not all later ones.
fn concerns_one(error: &io::Error) -> bool {
    [io::ErrorKind::ConnectionAborted, io::ErrorKind::ConnectionReset, io::ErrorKind::Interrupted]
        .contains(&error.kind())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_that_fails_is_told_once_a_minute_and_tried_less_often() {
        let (mut pause, start) = (Pause::default(), Instant::now());
        let mut waits = Vec::new();
        let told: Vec<_> = (0..150)
            .map(|second| {
                let news = pause.news(start + Duration::from_secs(second));
                waits.push(pause.wait);
                news
            })
            .collect();
        assert_eq!(told.iter().flatten().collect::<Vec<_>>(), [&1, &60, &60]);
        assert_eq!((waits[0], waits[1], waits[149]), (Pause::LEAST, 2 * Pause::LEAST, Pause::MOST));
        pause.accepted();
        assert_eq!(pause.news(start + Duration::from_secs(150)), None);
        assert_eq!(pause.wait, Pause::LEAST);
    }

    #[test]
    fn one_address_leaves_room_for_others() {
        let door = Door::new(Idle { all: 3, per_address: 2 });
        let enter = |address: &str| door.enter(address.parse().unwrap());
        let first = [enter("10.0.0.1"), enter("10.0.0.1")];
        assert!(first.iter().all(Option::is_some));
        assert!(enter("10.0.0.1").is_none());
        // A host counts once over both protocols, and an IPv6 network counts once.
        assert!(enter("::ffff:10.0.0.1").is_none());
        let other = enter("2001:db8::1");
        assert!(other.is_some());
        assert!(enter("10.0.0.2").is_none(), "three in all");
        drop(first);
        let same = enter("2001:db8::2");
        assert!(same.is_some() && enter("2001:db8::3").is_none());
        drop((other, same));
        assert!(door.idle().is_empty());
    }
}
