//! The memory of both processes, from what they hold.

use model::ModelSpec;
use mpcache::HeadShape;
use net::Role;
use protocols::Needs;

use crate::terms::Request;

/// Bytes of a share.
const WORD: u64 = 8;

/// Bytes that a queue of prepared words keeps in memory: a chunk at either end.
const QUEUE_BYTES: u64 = 2 << 18;

/// Bytes that a session holds at the most, besides what a process has before it and besides mapped weights. All of it
/// is estimated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// At the client.
    pub client: u64,
    /// At the server.
    pub server: u64,
}

/// The footprint of a session of `spec` that prepares `needs` and whose pools and operations hold up to `room` bytes.
/// Shares of keys and values stay; prepared ones have a mask and an opened word each as well.
pub fn footprint(spec: &ModelSpec, request: &Request, needs: &Needs, room: [u64; 2]) -> Footprint {
    let HeadShape { kv_heads, head_dim, .. } = spec.heads();
    let positions = (request.lengths.prompt + request.lengths.tokens) as u64;
    let cached = 2 * (spec.layers() * kv_heads * head_dim) as u64 * positions * WORD;
    let copies = if needs.operands.is_empty() { 1 } else { 3 };
    let queues = |role: Role| -> u64 {
        let kinds = needs.units.iter().map(|(kind, &units)| (units * kind.words(role)) as u64 * WORD);
        let operands = needs.operands.len() as u64 * QUEUE_BYTES;
        kinds.map(|bytes| bytes.min(QUEUE_BYTES)).sum::<u64>() + operands
    };
    let of = |role: Role| room[role as usize] + copies * cached + queues(role);
    Footprint { client: of(Role::Client), server: of(Role::Server) }
}

#[cfg(test)]
mod tests {
    use model::Lengths;

    use super::*;
    use crate::terms::tests::llama;

    #[test]
    fn the_cache_grows_with_the_session_and_the_rest_stays() {
        let spec = llama(2);
        let of = |prompt, room| {
            let request = Request::from(Lengths { prompt, tokens: 1 });
            footprint(&spec, &request, &Needs::default(), room)
        };
        let HeadShape { kv_heads, head_dim, .. } = spec.heads();
        let each = (2 * spec.layers() * kv_heads * head_dim) as u64 * WORD;
        assert_eq!(of(9, [0, 0]), Footprint { client: 10 * each, server: 10 * each });
        assert_eq!(of(19, [5, 7]), Footprint { client: 20 * each + 5, server: 20 * each + 7 });
    }
}
