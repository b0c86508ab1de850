//! The public choices of a session, from which both parties derive the same protocols.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;
use waggle_he::Packing;
use waggle_net::{LinkShape, Role};
use waggle_ot::CotKind;

use crate::cost::Cost;

/// How tabulated functions are evaluated on shares. See [`Options::evaluation`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Evaluation {
    /// By transfers of table rows ([`crate::ops::lookup`]): no preparation, and the fewest rounds in total.
    #[default]
    Lookup,
    /// By FSS keys for an activation with so many entries that keys take less time on the link
    /// ([`Options::wire_time`]). There they take half the bytes and some twenty flows more than look-up. All other
    /// functions are evaluated by look-up.
    Activations,
    /// By FSS keys on masked inputs ([`crate::ops::fss`]): a long preparation, then one masked word a value.
    Masked,
}

/// How correlations of private matrices are made: by `waggle_he`'s [`SeededPlan`](waggle_he::SeededPlan) or
/// [`MatmulPlan`](waggle_he::MatmulPlan).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Masks {
    /// Public seeds make half of both messages. The client's masks and the server's shares follow from these seeds
    /// and from secrets.
    #[default]
    Seeded,
    /// Both parties draw masks and send them encrypted. This takes over twice the bytes on slow links, but less
    /// computation.
    Sent,
}

/// The part of the correlations that a helper deals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HelperDeals {
    /// Nothing: there is no helper.
    #[default]
    Nothing,
    /// All correlations but products with weights.
    Words,
    /// All correlations, including products with weights ([`crate::halves`]).
    Weights,
    /// All correlations, for each pass right before it uses them. A session of three parties then prepares nothing
    /// ahead.
    Passes,
}

impl HelperDeals {
    /// Whether there is a helper.
    pub fn any(self) -> bool {
        self != HelperDeals::Nothing
    }

    /// Whether a helper deals products with weights.
    pub fn weights(self) -> bool {
        matches!(self, HelperDeals::Weights | HelperDeals::Passes)
    }
}

/// Numbers of cores of the two parties, each at least 1. The text form is `40` for 40 cores of each party, or `2+64`
/// for 2 cores of the client and 64 of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores {
    /// Cores of the client.
    pub client: u32,
    /// Cores of the server.
    pub server: u32,
}

/// The most cores that a party may state.
pub const MAX_CORES: u32 = 65_536;

impl Cores {
    /// Each party has `cores` cores.
    pub const fn each(cores: u32) -> Self {
        Cores { client: cores, server: cores }
    }

    /// Each party has as many cores as this process has threads, as for two parties on one machine.
    pub fn here() -> Self {
        Cores::each(u32::try_from(rayon::current_num_threads()).unwrap_or(MAX_CORES).clamp(1, MAX_CORES))
    }

    /// The cores of the party that encrypts and of the party that evaluates. A product `with_weights` of the server
    /// is encrypted by the client. Other products go both ways at once, at the pace of the party that has fewer
    /// cores.
    pub(crate) fn for_product(self, with_weights: bool) -> [u32; 2] {
        if with_weights { [self.client, self.server] } else { [self.client.min(self.server); 2] }
    }
}

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Cores { client, server } = self;
        if client == server { write!(f, "{client}") } else { write!(f, "{client}+{server}") }
    }
}

/// The error for a text that does not state numbers of cores.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{text}` is no number of cores: give 1 to {MAX_CORES}, or the client's and the server's such as `2+64`")]
pub struct ParseCoresError {
    /// The text that was refused.
    pub text: String,
}

impl FromStr for Cores {
    type Err = ParseCoresError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |text: &str| text.parse().ok().filter(|cores| (1..=MAX_CORES).contains(cores));
        let (client, server) = text.split_once('+').unwrap_or((text, text));
        let cores = number(client).zip(number(server)).map(|(client, server)| Cores { client, server });
        cores.ok_or_else(|| ParseCoresError { text: text.into() })
    }
}

/// Nanoseconds that a leaf of a key takes online, its product with a table included. This number only decides between
/// forms of a protocol, so it need not be exact. Both parties must have the same.
const LEAF_NANOSECONDS: u64 = 5;

/// Public choices of a session. Both parties must state the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Source of correlated OTs.
    pub ot: CotKind,
    /// Whether the session has two phases. Online operations then send masked words only, and consume correlations.
    /// Correlations do not depend on the data, so they are made before it is known, or could be. See
    /// [`crate::stock`].
    pub preprocess: bool,
    /// Rate and delay of the link, by which operations weigh messages and flows against computation.
    pub link: LinkShape,
    /// Whether matrix products pack their responses.
    pub packing: Packing,
    /// Cores that plans of encrypted products assume for the parties. A plan for fewer cores sends more and computes
    /// less.
    pub cores: Cores,
    /// How products with private matrices are prepared, if the session has two phases.
    pub masks: Masks,
    /// The part of the preparation that a helper deals. See [`crate::deal`].
    pub helper: HelperDeals,
}

/// The link that is assumed where none is stated: 1 Gbit/s, half a millisecond there and back.
pub const DEFAULT_LINK: LinkShape =
    LinkShape { bytes_per_second: 125_000_000, round_trip: Duration::from_micros(500) };

impl Default for Options {
    fn default() -> Self {
        Options::DEFAULT
    }
}

/// Options for tests of everything but the OTs: one phase, over the ideal dealer of OTs, which sends nothing.
#[cfg(any(test, feature = "audit"))]
pub const DEALER: Options = Options { ot: CotKind::Dealer, ..Options::DEFAULT };

/// Like [`DEALER`], but in two phases, over a link so slow that everything that can be prepared is prepared.
#[cfg(any(test, feature = "audit"))]
pub const TWO_PHASES: Options = Options {
    preprocess: true,
    link: LinkShape { bytes_per_second: 50_000_000, round_trip: Duration::from_millis(4) },
    ..DEALER
};

impl Options {
    /// One phase, over the link that is assumed where none is stated.
    pub const DEFAULT: Options = Options {
        ot: CotKind::Silent,
        preprocess: false,
        link: DEFAULT_LINK,
        packing: Packing::Auto,
        cores: Cores::each(waggle_he::DEFAULT_CORES),
        masks: Masks::Seeded,
        helper: HelperDeals::Nothing,
    };

    /// How functions are evaluated: in two phases by FSS keys, and in one phase by look-up or by keys.
    pub fn evaluation(&self) -> Evaluation {
        if self.preprocess { Evaluation::Masked } else { Evaluation::Activations }
    }

    /// The time that `cost` takes on the link. It counts the bytes of `cost`, the bytes by which its OTs are made,
    /// and its flows.
    pub fn wire_time(&self, cost: &Cost) -> Duration {
        let ots = cost.cots_used(Role::Client) + cost.cots_used(Role::Server);
        let making = ots * self.ot.bits_per_ot() as u64 / 8;
        self.link.predict([cost.total_bytes(), making], cost.flows())
    }

    /// Whether the session has two phases and `flows` flows take it more time than expanding `leaves` leaves of keys.
    pub fn flows_cost_more(&self, flows: u32, leaves: u64) -> bool {
        let flows_take = u128::from(flows) * (self.link.round_trip / 2).as_nanos();
        self.preprocess && u128::from(LEAF_NANOSECONDS.saturating_mul(leaves)) < flows_take
    }

    /// Whether the link is slower than 1 Gbit/s. Flows and online bytes then outweigh other costs.
    pub fn slow_link(&self) -> bool {
        self.link.bytes_per_second < DEFAULT_LINK.bytes_per_second
    }
}
