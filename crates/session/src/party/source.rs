//! Where the correlations of a session come from.

use waggle_protocols::Stock;
use waggle_protocols::halves::HalvesOwner;

use super::{Peer, ToHelper};

/// Where the correlations come from.
pub(super) struct Source<'a> {
    /// A pool's.
    pub(super) stock: Option<Stock>,
    /// The party with which they are made.
    pub(super) peer: &'a Peer,
    /// The way to the helper, if there is one.
    pub(super) to_helper: Option<&'a ToHelper>,
    /// The server's secret of the halves of the weights that the peer uses; `None` on a client.
    pub(super) halves: Option<HalvesOwner>,
}
