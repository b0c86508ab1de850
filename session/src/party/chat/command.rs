//! Commands of a client.

use model::Lengths;
use net::NetError;

use super::COMMAND;

/// Bytes of a command.
pub(super) const COMMAND_BYTES: usize = 9;

/// A client's command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// The session ends.
    End,
    /// A turn of so many new tokens and at most so many generated ones.
    Turn(Lengths),
    /// The first so many slices of what a turn needs shall be there.
    Prepare(usize),
    /// Another conversation begins.
    Reset,
    /// The client is there.
    Stay,
}

impl Command {
    /// As bytes. Numbers beyond 32 bits, which no server takes, become the largest.
    pub(super) fn encode(self) -> [u8; COMMAND_BYTES] {
        let (kind, numbers) = match self {
            Command::End => (0, [0; 2]),
            Command::Turn(Lengths { prompt, tokens }) => (1, [prompt, tokens]),
            Command::Prepare(slices) => (2, [slices, 0]),
            Command::Reset => (3, [0; 2]),
            Command::Stay => (4, [0; 2]),
        };
        let [a, b] = numbers.map(|number| u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
        let mut bytes = [kind; COMMAND_BYTES];
        bytes[1..5].copy_from_slice(&a);
        bytes[5..].copy_from_slice(&b);
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, NetError> {
        let malformed = |what: &str| Err(NetError::Malformed { step: COMMAND, what: what.into() });
        let &[kind, a0, a1, a2, a3, b0, b1, b2, b3] = bytes else { return malformed("it has another length") };
        let [a, b] = [[a0, a1, a2, a3], [b0, b1, b2, b3]].map(|bytes| u32::from_le_bytes(bytes) as usize);
        match (kind, a, b) {
            (0, 0, 0) => Ok(Command::End),
            (1, prompt, tokens) => Ok(Command::Turn(Lengths { prompt, tokens })),
            (2, slices, 0) => Ok(Command::Prepare(slices)),
            (3, 0, 0) => Ok(Command::Reset),
            (4, 0, 0) => Ok(Command::Stay),
            (0 | 2..=4, ..) => malformed("the numbers do not belong to the command"),
            _ => malformed("there is no such command"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_one_encoding() {
        let turn = Command::Turn(Lengths { prompt: 7, tokens: 300 });
        for command in [Command::End, turn, Command::Prepare(70_000), Command::Reset, Command::Stay] {
            assert_eq!(Command::decode(&command.encode()).unwrap(), command);
        }
        let end = Command::End.encode();
        let mut bad = vec![end[..8].to_vec(), [&end[..], &[0]].concat(), Vec::new()];
        for (at, value) in [(0, 5), (0, 255), (1, 1), (5, 1)] {
            let mut bytes = end.to_vec();
            bytes[at] = value;
            bad.push(bytes);
        }
        let mut prepare = Command::Prepare(1).encode();
        prepare[8] = 1;
        bad.push(prepare.to_vec());
        for bytes in bad {
            assert!(matches!(Command::decode(&bytes), Err(NetError::Malformed { step: COMMAND, .. })), "{bytes:?}");
        }
    }
}
