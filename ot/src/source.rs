//! Where correlated OTs come from.

use net::Channel;

use crate::{Block, OtError};

/// Messages in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Bytes, framing included.
    pub bytes: u64,
    /// Messages.
    pub messages: u64,
}

/// The traffic of one refill, by the roles of the OT (not of the session): first one flow to the sender, then one to
/// the receiver. Either may be empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wire {
    /// From the OT receiver to the OT sender.
    pub to_sender: Run,
    /// From the OT sender to the OT receiver.
    pub to_receiver: Run,
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
        self.to_sender.bytes + self.to_receiver.bytes
    }

    /// Messages in both directions.
    pub fn messages(&self) -> u64 {
        self.to_sender.messages + self.to_receiver.messages
    }
}

/// One party's half of a generator of random correlated OTs.
///
/// The two halves of one generator hold, after every [`extend`](CotSource::extend), blocks `q_i` (sender) and `t_i`
/// (receiver) with `q_i ^ t_i = c_i Delta`, where `c_i = LSB(t_i)` is uniform and `LSB(Delta) = 1`.
pub trait CotSource: Send {
    /// Fills `out` with fresh blocks. Its length must be one that
    /// [`CotKind::extend_amount`](crate::CotKind::extend_amount) gives. Errors: the channel fails, or the peer's
    /// message has the wrong length.
    fn extend(&mut self, ch: &mut Channel, out: &mut [Block]) -> Result<(), OtError>;
}
