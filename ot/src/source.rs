//! Where correlated OTs come from.

use waggle_net::Channel;

use crate::{Block, OtError};

/// Messages in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Bytes, framing included.
    pub bytes: u64,
    /// Messages.
    pub messages: u64,
}

/// The traffic of one refill, by the roles of the OT (not of the session).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wire {
    /// Flows in order: the first and third to the OT sender, the second and fourth to the OT receiver. The first is
    /// SoftSpoken OT with its check, the others are silent OT: trees, then the two messages of their check. These
    /// three are there together or not at all.
    pub flows: [Run; 4],
}

/// The work of an extension.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtendWork {
    /// OTs made in rounds of silent OT.
    pub silent: u64,
    /// Leaves that SoftSpoken OTs take: 2^k / k for each OT.
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
    /// Fills `out` with fresh blocks. Its length must be one that
    /// [`CotKind::extend_amount`](crate::CotKind::extend_amount) gives. Errors: the channel fails, the peer's
    /// message has the wrong length, or the peer deviates; what is in `out` then must not be used.
    fn extend(&mut self, ch: &mut Channel, out: &mut [Block]) -> Result<(), OtError>;
}
