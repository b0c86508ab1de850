//! Where the correlations of a session come from.

use waggle_protocols::Stock;
use waggle_protocols::halves::HalvesOwner;

use super::{Peer, ToHelper};

/// The source of the correlations.
pub(super) struct Source<'a> {
    /// The stock of a pool, if the session spends one.
    pub(super) stock: Option<Stock>,
    /// The party with which correlations are made.
    pub(super) peer: &'a Peer,
    /// The way to the helper, if there is one.
    pub(super) to_helper: Option<&'a ToHelper>,
    /// The server's secret behind the halves of the weights that the peer uses; `None` on a client.
    pub(super) halves: Option<HalvesOwner>,
}
