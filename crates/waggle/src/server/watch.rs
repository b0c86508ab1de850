//! Closes connections while their sessions wait: each at its deadline and, when the server ends, the idle ones.

use std::collections::{BTreeMap, HashMap};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};

/// A connection, and the flag that is set when its time is up.
type Open = (TcpStream, Arc<AtomicBool>);

#[derive(Default)]
struct State {
    /// Connections by deadline. The number tells connections with the same deadline apart.
    open: BTreeMap<(Instant, u64), Open>,
    idle: HashMap<u64, TcpStream>,
    ending: bool,
    next: u64,
}

/// The connections that have a deadline, and the connections that are idle.
#[derive(Default)]
pub(super) struct Watch {
    state: Mutex<State>,
    changed: Condvar,
}

/// A deadline of a connection, until this value is dropped.
pub(super) struct Limit {
    watch: Arc<Watch>,
    key: (Instant, u64),
    expired: Arc<AtomicBool>,
}

/// The mark of a connection on which nothing runs, until this value is dropped.
pub(super) struct Idle {
    watch: Arc<Watch>,
    key: u64,
}

impl Watch {
    /// Starts the thread that watches. It lives as long as the process.
    pub(super) fn start() -> io::Result<Arc<Self>> {
        let watch = Arc::new(Watch::default());
        let watching = watch.clone();
        thread::Builder::new().name("waggle-watch".into()).spawn(move || watching.run())?;
        Ok(watch)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut state = self.state();
        loop {
            let now = Instant::now();
            while let Some(entry) = state.open.first_entry()
                && entry.key().0 <= now
            {
                let (stream, expired) = entry.remove();
                expired.store(true, Ordering::Release);
                // An error means that the connection is closed already.
                let _ = stream.shutdown(Shutdown::Both);
            }
            let next = state.open.first_key_value().map(|((deadline, _), _)| *deadline);
            state = match next {
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(now);
                    self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    pub(super) fn limit(self: &Arc<Self>, stream: &TcpStream, limit: Duration) -> io::Result<Limit> {
        let stream = stream.try_clone()?;
        let expired = Arc::new(AtomicBool::new(false));
        let mut state = self.state();
        let key = (Instant::now() + limit, state.next);
        state.next += 1;
        state.open.insert(key, (stream, expired.clone()));
        drop(state);
        self.changed.notify_one();
        Ok(Limit { watch: self.clone(), key, expired })
    }

    /// Marks `stream` as idle until the returned value is dropped. If the server ends meanwhile or is ending already,
    /// the connection is closed.
    pub(super) fn idle(self: &Arc<Self>, stream: &TcpStream) -> io::Result<Idle> {
        let stream = stream.try_clone()?;
        let mut state = self.state();
        if state.ending {
            let _ = stream.shutdown(Shutdown::Both);
        }
        let key = state.next;
        state.next += 1;
        state.idle.insert(key, stream);
        Ok(Idle { watch: self.clone(), key })
    }

    /// Closes all idle connections, and from now on each that becomes idle.
    pub(super) fn end(&self) {
        let mut state = self.state();
        state.ending = true;
        for stream in state.idle.values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Whether [`Watch::end`] was called.
    pub(super) fn ending(&self) -> bool {
        self.state().ending
    }
}

impl Limit {
    /// Whether the deadline has passed and the connection was closed.
    pub(super) fn expired(&self) -> bool {
        self.expired.load(Ordering::Acquire)
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        self.watch.state().open.remove(&self.key);
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        self.watch.state().idle.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_connection_ends_at_its_deadline_and_not_after_its_limit() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connect = || TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let watch = Watch::start().unwrap();
        let (mut late, free) = (connect(), connect());
        let limit = watch.limit(&late, Duration::from_millis(20)).unwrap();
        let lifted = watch.limit(&free, Duration::from_millis(20)).unwrap();
        drop(lifted);
        assert_eq!(late.read(&mut [0]).unwrap(), 0);
        assert!(limit.expired());
        free.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        assert!((&free).read(&mut [0]).is_err(), "it is still open");
        assert!(watch.state().open.is_empty());
    }

    #[test]
    fn an_end_closes_what_is_idle_and_nothing_that_runs() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connect = || TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let watch = Watch::start().unwrap();
        let (mut idle, mut later, runs) = (connect(), connect(), connect());
        let silent = watch.idle(&idle).unwrap();
        drop(watch.idle(&runs).unwrap());
        watch.end();
        assert_eq!(idle.read(&mut [0]).unwrap(), 0);
        let late = watch.idle(&later).unwrap();
        assert_eq!(later.read(&mut [0]).unwrap(), 0);
        runs.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        assert!((&runs).read(&mut [0]).is_err(), "it is still open");
        drop((silent, late));
        assert!(watch.state().idle.is_empty());
    }
}
