//! Decides which clients are served, wait, or are sent away.
//!
//! A fixed number of sessions run at once. Later clients wait in order of arrival, up to the length of the queue. A
//! [`Seat`] is a place at the server or in the queue. Dropping it, however the session ends, gives the place to the
//! next client.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::Full;

/// Limits on the numbers of clients that are served and that wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    pub(super) sessions: usize,
    pub(super) queue: usize,
    /// Most sessions of one key at once, waiting ones included.
    pub(super) per_key: Option<usize>,
}

#[derive(Default)]
struct State {
    running: usize,
    /// Tickets in order of arrival.
    waiting: VecDeque<u64>,
    next: u64,
    ending: bool,
    by_key: HashMap<String, usize>,
}

pub(super) struct Desk {
    places: Places,
    state: Mutex<State>,
    changed: Condvar,
}

/// A place in the queue or at the server.
pub(super) struct Seat {
    desk: Arc<Desk>,
    /// The client's ticket in the queue; `None` once it is served.
    ticket: Option<u64>,
    key: Option<String>,
}

impl Desk {
    pub(super) fn new(places: Places) -> Arc<Self> {
        Arc::new(Desk { places, state: Mutex::default(), changed: Condvar::new() })
    }

    /// Locks the state. Its counts are correct even after a panic, because every change is one step.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for a client with this key. [`Seat::wait`] returns when the client is served. A client is
    /// refused if the queue is full, its key has too many sessions, or the server ends.
    pub(super) fn enter(self: &Arc<Self>, key: Option<&str>) -> Result<Seat, Full> {
        let mut state = self.state();
        if state.ending {
            return Err(Full::Ending);
        }
        if let (Some(limit), Some(key)) = (self.places.per_key, key)
            && state.by_key.get(key).is_some_and(|&count| count >= limit)
        {
            return Err(Full::Key(limit));
        }
        let Places { sessions, queue, .. } = self.places;
        if state.running + state.waiting.len() >= sessions.saturating_add(queue) {
            return Err(Full::Queue(state.waiting.len()));
        }
        // If nobody waits and a place is free, the client has the place at once and never enters the queue.
        let ticket = if state.running < sessions && state.waiting.is_empty() {
            state.running += 1;
            None
        } else {
            let ticket = state.next;
            state.next += 1;
            state.waiting.push_back(ticket);
            Some(ticket)
        };
        if let Some(key) = key {
            *state.by_key.entry(key.to_owned()).or_default() += 1;
        }
        Ok(Seat { desk: self.clone(), ticket, key: key.map(str::to_owned) })
    }

    /// Lets nobody in any more, and sends waiting clients away.
    pub(super) fn end(&self) {
        self.state().ending = true;
        self.changed.notify_all();
    }

    /// Waits until nobody is served or waits.
    pub(super) fn drained(&self) {
        let idle = |state: &mut State| state.running > 0 || !state.waiting.is_empty();
        drop(self.changed.wait_while(self.state(), idle).unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn counts(&self) -> (usize, usize) {
        let state = self.state();
        (state.running, state.waiting.len())
    }
}

impl Seat {
    /// Waits until this client is served. At least every `tick`, `waiting` gets the client's position in the queue,
    /// from 1, which only the server knows. An error of `waiting` or [`Full::Ending`] ends the wait.
    pub(super) fn wait<E: From<Full>>(
        &mut self,
        tick: Duration,
        mut waiting: impl FnMut(u32) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(ticket) = self.ticket else { return Ok(()) };
        loop {
            let mut state = self.desk.state();
            if state.ending {
                return Err(Full::Ending.into());
            }
            let position = state.waiting.iter().position(|&other| other == ticket).unwrap_or_default();
            if position == 0 && state.running < self.desk.places.sessions {
                state.waiting.pop_front();
                state.running += 1;
                drop(state);
                self.ticket = None;
                // The next client in the queue has a new position, and perhaps a place.
                self.desk.changed.notify_all();
                return Ok(());
            }
            // `waiting` may take a moment, and nobody else must wait for it.
            drop(state);
            waiting(u32::try_from(position + 1).unwrap_or(u32::MAX))?;
            let state = self.desk.state();
            let blocked = |state: &mut State| {
                !state.ending
                    && (state.waiting.front() != Some(&ticket) || state.running >= self.desk.places.sessions)
            };
            drop(self.desk.changed.wait_timeout_while(state, tick, blocked).unwrap_or_else(PoisonError::into_inner));
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut state = self.desk.state();
        match self.ticket {
            Some(ticket) => state.waiting.retain(|&other| other != ticket),
            None => state.running -= 1,
        }
        if let Some(key) = &self.key
            && let Some(count) = state.by_key.get_mut(key)
        {
            *count -= 1;
            if *count == 0 {
                state.by_key.remove(key);
            }
        }
        drop(state);
        self.desk.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn desk(sessions: usize, queue: usize, per_key: Option<usize>) -> Arc<Desk> {
        Desk::new(Places { sessions, queue, per_key })
    }

    /// The position in the queue that `wait` states first; `None` if the client is served at once.
    fn look(seat: &mut Seat) -> Option<u32> {
        let mut told = None;
        // An error ends the wait at once.
        let served = seat.wait(Duration::ZERO, |position| {
            told = Some(position);
            Err(Full::Ending)
        });
        assert_eq!(served.is_ok(), told.is_none());
        told
    }

    /// Clients get free places although earlier ones have not called `wait` yet.
    #[test]
    fn all_places_are_given_without_a_queue() {
        let desk = desk(2, 0, None);
        let both = [desk.enter(None).unwrap(), desk.enter(None).unwrap()];
        assert_eq!((desk.enter(None).err(), desk.counts()), (Some(Full::Queue(0)), (2, 0)));
        drop(both);
        assert_eq!(desk.counts(), (0, 0));
    }

    #[test]
    fn places_go_in_order_of_arrival() {
        let desk = desk(1, 2, None);
        let mut first = desk.enter(None).unwrap();
        assert_eq!(look(&mut first), None);
        let mut second = desk.enter(None).unwrap();
        let mut third = desk.enter(None).unwrap();
        assert_eq!((look(&mut second), look(&mut third)), (Some(1), Some(2)));
        assert_eq!(desk.enter(None).err(), Some(Full::Queue(2)));
        // A client that leaves the queue makes room in it.
        drop(second);
        assert_eq!(look(&mut third), Some(1));
        drop(first);
        assert_eq!(look(&mut third), None);
        assert_eq!(desk.counts(), (1, 0));
        drop(third);
        assert_eq!(desk.counts(), (0, 0));
    }

    #[test]
    fn a_free_place_needs_no_queue() {
        let desk = desk(2, 0, None);
        let mut seats = [desk.enter(None).unwrap()];
        assert_eq!(look(&mut seats[0]), None);
        let mut other = desk.enter(None).unwrap();
        assert_eq!(look(&mut other), None);
        assert_eq!(desk.enter(None).err(), Some(Full::Queue(0)));
    }

    #[test]
    fn a_key_has_its_own_limit() {
        let desk = desk(4, 4, Some(1));
        let seat = desk.enter(Some("a")).unwrap();
        assert_eq!(desk.enter(Some("a")).err(), Some(Full::Key(1)));
        let _other = desk.enter(Some("b")).unwrap();
        drop(seat);
        let _again = desk.enter(Some("a")).unwrap();
    }

    #[test]
    fn the_end_wakes_who_waits_and_waits_for_who_is_served() {
        let desk = desk(1, 1, None);
        let mut served = desk.enter(None).unwrap();
        served.wait::<Full>(Duration::ZERO, |_| Ok(())).unwrap();
        let mut waiting = desk.enter(None).unwrap();
        let waits = std::thread::spawn(move || waiting.wait::<Full>(Duration::from_secs(60), |_| Ok(())));
        desk.end();
        assert_eq!(waits.join().unwrap(), Err(Full::Ending));
        assert_eq!(desk.enter(None).err(), Some(Full::Ending));
        let ends = std::thread::spawn({
            let desk = desk.clone();
            move || desk.drained()
        });
        drop(served);
        ends.join().unwrap();
    }
}
