//! The public choices of a session, from which both parties derive the same protocols.

use std::time::Duration;

use he::Packing;
use net::{LinkShape, Role};
use ot::CotKind;

use crate::cost::Cost;

/// Evaluation of tabulated functions on shares, see [`Options::evaluation`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Evaluation {
    /// By transfers of table rows ([`crate::ops::lookup`]): no preparation, and the fewest rounds in total.
    #[default]
    Lookup,
    /// By look-up, but for activations of so many entries that FSS keys take less time on the link
    /// ([`Options::wire_time`]): half the bytes, and some twenty flows more.
    Activations,
    /// By FSS keys on masked inputs ([`crate::ops::fss`]): a long preparation, then one masked word a value.
    Masked,
}

/// The plans that make correlations of private matrices: he's [`SeededPlan`](he::SeededPlan) or
/// [`MatmulPlan`](he::MatmulPlan).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Masks {
    /// The client's masks and the server's shares are what public seeds make of them.
    #[default]
    Seeded,
    /// Both draw theirs and send ciphertexts of them: more than twice the bytes over slow links, less computation.
    Sent,
}

/// The time that a leaf of a key takes online, in nanoseconds, its product with a table included. It only decides
/// between forms of a protocol, so it need not be exact; both parties must have the same.
const LEAF_NANOSECONDS: u64 = 5;

/// Public choices of a session. Both parties state the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Source of correlated OTs.
    pub ot: CotKind,
    /// Whether the session has two phases. Online operations then consume correlations, which do not depend on the
    /// data and are or could have been made before it is known, and send masked words only. See [`crate::stock`].
    pub preprocess: bool,
    /// Rate and delay of the link, by which operations weigh messages and flows against computation.
    pub link: LinkShape,
    /// Whether matrix products pack their responses.
    pub packing: Packing,
    /// Cores that each party is taken to have in plans under encryption: fewer send more and compute less.
    pub cores: u32,
    /// Preparation of products with private matrices, if the session has two phases.
    pub masks: Masks,
}

/// Assumed of an unknown link: 1 Gbit/s, half a millisecond there and back.
pub const DEFAULT_LINK: LinkShape =
    LinkShape { bytes_per_second: 125_000_000, round_trip: Duration::from_micros(500) };

impl Default for Options {
    fn default() -> Self {
        Options::DEFAULT
    }
}

impl Options {
    /// One phase over a link of which nothing is known.
    pub const DEFAULT: Options = Options {
        ot: CotKind::Silent,
        preprocess: false,
        link: DEFAULT_LINK,
        packing: Packing::Auto,
        cores: he::DEFAULT_CORES,
        masks: Masks::Seeded,
    };

    /// Evaluation of functions: in two phases by FSS keys, in one phase by look-up or keys.
    pub fn evaluation(&self) -> Evaluation {
        if self.preprocess { Evaluation::Masked } else { Evaluation::Activations }
    }

    /// The time that `cost` takes on the link: its bytes, those by which its OTs are made, and its flows.
    pub fn wire_time(&self, cost: &Cost) -> Duration {
        let ots = cost.cots_used(Role::Client) + cost.cots_used(Role::Server);
        let making = ots * self.ot.bits_per_ot() as u64 / 8;
        self.link.predict([cost.total_bytes(), making], cost.flows())
    }

    /// Whether a two-phase session evaluates so that it takes `flows` fewer and expands `leaves` leaves of keys more.
    pub fn flows_cost_more(&self, flows: u32, leaves: u64) -> bool {
        let flows_take = u128::from(flows) * (self.link.round_trip / 2).as_nanos();
        self.preprocess && u128::from(LEAF_NANOSECONDS.saturating_mul(leaves)) < flows_take
    }

    /// Whether the link is slower than 1 Gbit/s. Flows and online bytes then outweigh other costs.
    pub fn slow_link(&self) -> bool {
        self.link.bytes_per_second < DEFAULT_LINK.bytes_per_second
    }
}
