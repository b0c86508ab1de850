//! The bounds of a conversation, which the server states.

use std::time::Duration;

use crate::party::Limits;

/// Bytes of the message.
pub(super) const BOUNDS_BYTES: usize = 12;

/// Bounds on length and time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    /// Positions of a conversation.
    pub(super) positions: usize,
    /// Silence of the client.
    pub(super) silence: Duration,
    /// The whole session.
    pub(super) session: Option<Duration>,
}

impl Bounds {
    /// Those of a server with these limits that gives up after `silence`.
    pub(super) fn of(limits: &Limits, silence: Duration) -> Self {
        Bounds { positions: limits.conversation.unwrap_or(0), silence, session: limits.session }
    }

    /// As bytes. Numbers beyond 32 bits become the largest, which bounds nothing.
    pub(super) fn encode(self) -> [u8; BOUNDS_BYTES] {
        let milliseconds = |time: Duration| time.as_millis();
        let session = self.session.map_or(u128::MAX, milliseconds);
        let numbers = [self.positions as u128, milliseconds(self.silence), session];
        let mut bytes = [0; BOUNDS_BYTES];
        for (bytes, number) in bytes.chunks_exact_mut(4).zip(numbers) {
            bytes.copy_from_slice(&u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
        }
        bytes
    }

    /// Reads the bytes of [`Bounds::encode`].
    pub(super) fn decode(bytes: [u8; BOUNDS_BYTES]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = bytes;
        let [positions, silence, session] = [[a, b, c, d], [e, f, g, h], [i, j, k, l]].map(u32::from_le_bytes);
        let milliseconds = |number: u32| Duration::from_millis(number.into());
        Bounds {
            positions: positions as usize,
            silence: milliseconds(silence),
            session: (session < u32::MAX).then(|| milliseconds(session)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_come_back() {
        let seconds = Duration::from_secs;
        for session in [None, Some(seconds(3600))] {
            let bounds = Bounds { positions: 2048, silence: seconds(3), session };
            assert_eq!(Bounds::decode(bounds.encode()), bounds);
        }
        let none = Bounds { positions: usize::MAX, silence: seconds(120), session: None };
        assert_eq!(Bounds::decode(none.encode()).positions, u32::MAX as usize);
    }
}
