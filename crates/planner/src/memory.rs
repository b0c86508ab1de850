//! The memory of both processes, estimated from what they hold.

use waggle_net::Role;
use waggle_protocols::Needs;

/// Bytes of a share.
const WORD: u64 = 8;

/// Bytes that a queue of prepared words keeps in memory: one chunk at each end.
const QUEUE_BYTES: u64 = 2 << 18;

/// An estimate of the most bytes that a session holds, beyond an idle process and mapped weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Bytes at the client.
    pub client: u64,
    /// Bytes at the server.
    pub server: u64,
}

impl Footprint {
    /// The footprint of a session that prepares `needs`. Its caches of keys and values grow to `cached` words, and
    /// its pools and operations hold up to `room` bytes ([`Planner::room`](crate::Planner::room)).
    pub fn of(cached: u64, needs: &Needs, room: [u64; 2]) -> Self {
        let queues = |role: Role| -> u64 {
            let kinds = needs.units.iter().map(|(kind, &units)| (units * kind.words(role)) as u64 * WORD);
            let operands = needs.operands.len() as u64 * QUEUE_BYTES;
            kinds.map(|bytes| bytes.min(QUEUE_BYTES)).sum::<u64>() + operands
        };
        let of = |role: Role| room[role as usize] + Self::cache(cached, needs) + queues(role);
        Footprint { client: of(Role::Client), server: of(Role::Server) }
    }

    /// Bytes that either party holds of `cached` words of keys and values, in a session that prepares `needs`.
    pub fn cache(cached: u64, needs: &Needs) -> u64 {
        // Prepared operands also keep a mask and an opened word for each share.
        let copies = if needs.operands.is_empty() { 1 } else { 3 };
        copies * cached * WORD
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_grows_with_the_session_and_the_rest_stays() {
        let of = |cached, room| Footprint::of(cached, &Needs::default(), room);
        assert_eq!(of(10, [0, 0]), Footprint { client: 80, server: 80 });
        assert_eq!(of(20, [5, 7]), Footprint { client: 165, server: 167 });
    }
}
