//! The server's bounds and the client's commands.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use waggle_model::Lengths;

use crate::party::Limits;

/// Bytes of [`Bounds`] and of a [`Command`], whatever their values.
pub(super) const MESSAGE_BYTES: usize = 24;

/// The bounds of a conversation. A number beyond 32 bits becomes the largest one, which bounds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Bounds {
    /// Most positions of a conversation.
    pub(super) positions: u32,
    /// Longest silence of the client in milliseconds.
    silence_ms: u32,
    /// Longest time of the whole session in milliseconds.
    session_ms: Option<u32>,
}

impl Bounds {
    /// The bounds of a server that has these `limits` and gives up after `silence`.
    pub(super) fn of(limits: &Limits, silence: Duration) -> Self {
        let milliseconds = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        Bounds {
            positions: limits.conversation.unwrap_or(0).try_into().unwrap_or(u32::MAX),
            silence_ms: milliseconds(silence),
            session_ms: limits.session.map(milliseconds),
        }
    }

    pub(super) fn silence(&self) -> Duration {
        Duration::from_millis(self.silence_ms.into())
    }

    pub(super) fn session(&self) -> Option<Duration> {
        self.session_ms.map(|milliseconds| Duration::from_millis(milliseconds.into()))
    }
}

/// A client's command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Command {
    /// Ends the session.
    End,
    /// A turn: the number of its new tokens, and the most tokens that it generates.
    Turn(Lengths),
    /// Prepares what a turn needs, up to this number of slices in all.
    Prepare(usize),
    /// Begins another conversation.
    Reset,
    /// Shows that the client is there.
    Stay,
}

#[cfg(test)]
mod tests {
    use super::super::super::wire::{decode, encode};
    use super::*;

    #[test]
    fn messages_are_equally_long() {
        let seconds = Duration::from_secs;
        for (conversation, session) in [(Some(2048), None), (Some(usize::MAX), Some(seconds(u64::MAX)))] {
            let bounds = Bounds::of(&Limits { conversation, session, ..Limits::NONE }, seconds(120));
            let bytes = encode("bounds", &bounds, MESSAGE_BYTES).unwrap();
            assert_eq!(bytes.len(), MESSAGE_BYTES);
            assert_eq!(decode::<Bounds>("bounds", &bytes, MESSAGE_BYTES).unwrap(), bounds);
            assert_eq!((bounds.silence(), bounds.session().is_some()), (seconds(120), session.is_some()));
        }
        let turns = [Lengths { prompt: 1, tokens: 1 }, Lengths::MAX].map(Command::Turn);
        let others = [Command::End, Command::Prepare(usize::MAX), Command::Reset, Command::Stay];
        for command in turns.into_iter().chain(others) {
            let bytes = encode("command", &command, MESSAGE_BYTES).unwrap();
            assert_eq!(bytes.len(), MESSAGE_BYTES, "{command:?}");
            assert_eq!(decode::<Command>("command", &bytes, MESSAGE_BYTES).unwrap(), command);
        }
    }
}
