//! Where correlated OTs come from.

use waggle_net::Channel;

use crate::{Block, OtError};

/// How many messages go in one direction, and their size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Bytes of the messages, including framing.
    pub bytes: u64,
    /// Number of messages.
    pub messages: u64,
}

/// The traffic of one refill, by the roles of the OT (not of the session).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wire {
    /// The four flows in order: the first and third go to the OT sender, the second and fourth to the OT receiver.
    /// The first is SoftSpoken OT with its check. The others are silent OT: its trees, then the two messages of their
    /// check. Either all three of these are sent or none.
    pub flows: [Run; 4],
}

/// The work of an extension.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtendWork {
    /// OTs made in rounds of silent OT.
    pub silent: u64,
    /// Leaves that SoftSpoken OT expands: 2^k / k for each OT.
    pub softspoken: u64,
}

impl Wire {
    /// Bytes in both directions.
    pub fn bytes(&self) -> u64 {
        self.flows.iter().map(|run| run.bytes).sum()
    }

    /// Messages in both directions.
    pub fn messages(&self) -> u64 {
        self.flows.iter().map(|run| run.messages).sum()
    }
}

/// One party's half of a generator of random correlated OTs.
///
/// The two halves of one generator hold, after every [`extend`](CotSource::extend), blocks `q_i` (sender) and `t_i`
/// (receiver) with `q_i ^ t_i = c_i Delta`, where `c_i = LSB(t_i)` is uniform and `LSB(Delta) = 1`.
pub trait CotSource: Send {
    /// Fills `out` with fresh blocks. The length of `out` must be a result of
    /// [`CotKind::extend_amount`](crate::CotKind::extend_amount). Errors: the channel fails, the peer's message has
    /// the wrong length, or the peer deviates. After an error, the contents of `out` must not be used.
    fn extend(&mut self, ch: &mut Channel, out: &mut [Block]) -> Result<(), OtError>;
}
