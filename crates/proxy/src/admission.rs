//! Admits requests by the host that they name, by their origin and by their key. Bounds idle connections.
//!
//! A page of any origin in a browser can send requests to this machine. Three rules keep such pages out. A request
//! with a foreign `Origin` is refused. So is a request whose `Host` is not a name of this machine, but for example a
//! name that an attacker points here. A body must be JSON, which a browser sends to another origin only after asking
//! it.
//!
//! If there are keys, the first one is the owner's. Only the owner sees counters and errors, as they tell of all
//! requests.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use hyper::header::{self, HeaderName};
use hyper::{Method, Request};
use tokio::sync::Notify;

use crate::refusal::Refusal;

/// Most idle connections of an address, that is, connections on which no answer is being made.
const IDLE: usize = 128;
/// After this number of wrong keys from one address, each less than `WRONG_TIME` after the one before, no key of the
/// address is checked until `WRONG_TIME` has passed since the last wrong one. At most `WRONG_ADDRESSES` addresses are
/// remembered.
const WRONG_KEYS: u32 = 10;
const WRONG_TIME: Duration = Duration::from_secs(10);
const WRONG_ADDRESSES: usize = 4096;
/// The index of the owner's key among the proxy's keys.
pub(super) const OWNER: usize = 0;

/// The programs and pages that the proxy admits: programs by their keys, pages by their origins.
pub(super) struct Admission {
    keys: Vec<blake3::Hash>,
    wrong: Mutex<Wrong>,
    origins: Vec<String>,
}

/// For each address, the time of its last wrong key and the number of its wrong keys.
#[derive(Default)]
struct Wrong(HashMap<IpAddr, (Instant, u32)>);

impl Wrong {
    /// Whether `address` has sent so many wrong keys that its keys are not checked any more.
    fn are_many(&mut self, address: IpAddr) -> bool {
        self.0.retain(|_, (last, _)| last.elapsed() < WRONG_TIME);
        self.0.get(&address).is_some_and(|(_, count)| *count >= WRONG_KEYS)
    }

    fn add(&mut self, address: IpAddr) {
        if self.0.len() >= WRONG_ADDRESSES {
            self.0.clear();
        }
        let count = self.0.get(&address).map_or(0, |(_, count)| *count);
        self.0.insert(address, (Instant::now(), count + 1));
    }
}

/// A connection. Its `address` is the unit that counts as one address: of an IPv6 address, the network alone.
pub(super) struct Connection {
    pub(super) address: IpAddr,
    pub(super) close: Notify,
}

/// The idle connections of each address, the one that has been idle for longest first. If an address has too many,
/// its first one is closed, so that programs that send half a request keep nobody out.
#[derive(Default)]
pub(super) struct Idle(Mutex<HashMap<IpAddr, VecDeque<Arc<Connection>>>>);

impl Idle {
    pub(super) fn enter(&self, connection: &Arc<Connection>) {
        self.leave(connection);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = all.entry(connection.address).or_default();
        own.push_back(Arc::clone(connection));
        if own.len() > IDLE
            && let Some(oldest) = own.pop_front()
        {
            oldest.close.notify_one();
        }
    }

    pub(super) fn leave(&self, connection: &Arc<Connection>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = all.get_mut(&connection.address) {
            own.retain(|other| !Arc::ptr_eq(other, connection));
            if own.is_empty() {
                all.remove(&connection.address);
            }
        }
    }

    /// Closes the longest idle connection of the address that has the most idle connections.
    pub(super) fn make_room(&self) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(oldest) = all.values_mut().max_by_key(|own| own.len()).and_then(VecDeque::pop_front) {
            oldest.close.notify_one();
        }
    }
}

impl Admission {
    pub(super) fn new(keys: Vec<blake3::Hash>, origins: &[String]) -> Self {
        Admission { keys, wrong: Mutex::default(), origins: origins.iter().map(|origin| plain(origin)).collect() }
    }

    /// Returns the index of the request's key. It is `None` if the request has no known key, but asks for something
    /// that is open to all. Every other request is refused, as are requests for a foreign host or from a foreign
    /// origin.
    pub(super) fn admitted(&self, request: &Request<Incoming>, peer: IpAddr) -> Result<Option<usize>, Refusal> {
        let host = single(request, header::HOST)?.unwrap_or_default();
        let host = request.uri().authority().map_or(host, |named| named.as_str()).to_ascii_lowercase();
        let named = |origin: &String| {
            origin.split_once("://").is_some_and(|(scheme, _)| *origin == plain(&format!("{scheme}://{host}")))
        };
        if !is_here(&host, !self.keys.is_empty()) && !self.origins.iter().any(named) {
            return Err(Refusal::new(
                403,
                "foreign_host",
                "this name is not one of this machine; the owner of the proxy may allow it",
            ));
        }
        if let Some(origin) = single(request, header::ORIGIN)?
            && plain(origin) != plain(&format!("http://{host}"))
            && !self.knows(origin)
        {
            return Err(Refusal::new(
                403,
                "foreign_origin",
                "pages of this origin may not ask; the owner of the proxy may allow it",
            ));
        }
        let open = matches!(places(request.uri().path())[..], [] | ["health"]) || request.method() == Method::OPTIONS;
        let who = self.who(single(request, header::AUTHORIZATION)?, peer)?;
        if who.is_none() && !open {
            return Err(stranger());
        }
        Ok(who)
    }

    /// Whether pages of `origin` may send requests.
    pub(super) fn knows(&self, origin: &str) -> bool {
        self.origins.contains(&plain(origin))
    }

    /// The index of the key in the header value `given`; `None` if it has no known key. If the proxy has no keys,
    /// everybody is the owner. A wrong key is counted for the address `peer`; an address with too many of them is
    /// refused.
    fn who(&self, given: Option<&str>, peer: IpAddr) -> Result<Option<usize>, Refusal> {
        if self.keys.is_empty() {
            return Ok(Some(OWNER));
        }
        let given = given.and_then(|given| given.split_once(' '));
        let Some((_, given)) = given.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("Bearer")) else {
            return Ok(None);
        };
        let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        if wrong.are_many(peer) {
            return Err(Refusal::new(429, "too_many_wrong_keys", "too many keys were wrong; try again later"));
        }
        // Digests are compared in constant time.
        let given = blake3::hash(given.trim().as_bytes());
        let who = self.keys.iter().position(|key| *key == given);
        if who.is_none() {
            wrong.add(peer);
        }
        Ok(who)
    }
}

/// The refusal of a program whose key is missing or unknown.
pub(super) fn stranger() -> Refusal {
    Refusal::new(401, "invalid_api_key", "the key is missing or wrong")
}

/// The value of a header. A request that has the header more than once is refused, because two readers could take
/// different values.
fn single(request: &Request<Incoming>, name: HeaderName) -> Result<Option<&str>, Refusal> {
    let mut all = request.headers().get_all(&name).iter();
    let value = all.next().map(|value| value.to_str().unwrap_or_default());
    match all.next() {
        Some(_) => Err(Refusal::new(400, "repeated_header", format!("the request has `{name}` more than once"))),
        None => Ok(value),
    }
}

/// The parts of `path`, however many slashes are between and after them.
pub(super) fn places(path: &str) -> Vec<&str> {
    path.split('/').filter(|place| !place.is_empty()).collect()
}

/// An origin as browsers write it: in lower case, without the default port of its scheme.
fn plain(origin: &str) -> String {
    let origin = origin.trim_end_matches('/').to_ascii_lowercase();
    let port = if origin.starts_with("https:") { ":443" } else { ":80" };
    origin.strip_suffix(port).unwrap_or(&origin).to_owned()
}

/// Whether `host`, with or without a port, is a name of this machine or, with `addresses`, any numeric address. A
/// foreign name is neither, even if it leads to this machine.
fn is_here(host: &str, addresses: bool) -> bool {
    let port = |text: &str| !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
    let name = host.rsplit_once(':').filter(|(_, end)| port(end)).map_or(host, |(name, _)| name);
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name == "localhost" || address.parse::<IpAddr>().is_ok_and(|address| addresses || address.is_loopback())
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Context;

    use super::*;

    #[test]
    fn names_of_this_machine_are_known() {
        for here in ["localhost", "localhost:8080", "127.0.0.1:1", "127.1.2.3", "[::1]:8080", "[::1]"] {
            assert!(is_here(here, false) && is_here(here, true), "{here}");
        }
        for foreign in ["", "evil.example", "evil.example:8080", "localhost.evil.example", "10.0.0.1", "127.0.0.1.x"]
        {
            assert!(!is_here(foreign, false), "{foreign}");
        }
        assert!(is_here("10.0.0.1:8080", true) && is_here("[2001:db8::1]", true));
        assert!(!is_here("evil.example", true) && !is_here("10.0.0.1.evil.example:8080", true));
    }

    #[test]
    fn origins_are_written_in_several_ways() {
        for origin in ["http://a.example", "HTTP://A.example:80", "http://a.example/"] {
            assert_eq!(plain(origin), "http://a.example");
        }
        assert_eq!(plain("https://[::1]:443"), "https://[::1]");
        assert_eq!(plain("http://localhost:443"), "http://localhost:443");
    }

    /// Idle connections are closed to make room, first for others of their own address, then for those of any
    /// address.
    #[test]
    fn connections_that_ask_for_nothing_make_room() {
        let idle = Idle::default();
        let closed = |connection: &Arc<Connection>| {
            let waits = pin!(connection.close.notified());
            waits.poll(&mut Context::from_waker(std::task::Waker::noop())).is_ready()
        };
        let enter = |address: [u8; 4]| {
            let connection = Arc::new(Connection { address: address.into(), close: Notify::new() });
            idle.enter(&connection);
            connection
        };
        let other = enter([10, 0, 0, 2]);
        let all: Vec<_> = (0..IDLE).map(|_| enter([10, 0, 0, 1])).collect();
        idle.enter(&all[0]);
        idle.leave(&all[1]);
        let more = [(); 2].map(|()| enter([10, 0, 0, 1]));
        assert!(closed(&all[2]) && !all.iter().chain(&more).any(closed), "the oldest that waits");
        idle.make_room();
        assert!(closed(&all[3]) && !all.iter().chain([&other]).any(closed), "one of the most");
    }
}
