//! Where correlated OTs come from.

use net::Channel;

use crate::{Block, OtError};

/// Bytes and messages of one refill, by the roles of the OT (not of the session).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wire {
    /// Bytes from the OT receiver to the OT sender, framing included.
    pub to_sender: u64,
    /// Bytes from the OT sender to the OT receiver, framing included.
    pub to_receiver: u64,
    /// Messages in both directions.
    pub messages: u64,
}

/// One party's half of a generator of random correlated OTs.
///
/// The two halves of one generator hold, after every [`extend`](CotSource::extend), blocks `q_i` (sender) and `t_i`
/// (receiver) with `q_i ^ t_i = c_i Delta`, where `c_i = LSB(t_i)` is uniform and `LSB(Delta) = 1`.
pub trait CotSource: Send {
    /// Fills `out` with fresh blocks. Its length must be a multiple of the kind's granularity.
    fn extend(&mut self, ch: &mut Channel, out: &mut [Block]) -> Result<(), OtError>;
}
