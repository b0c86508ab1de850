//! The public choices of a session, from which both parties derive the same protocols.

use std::time::Duration;

use he::Packing;
use net::Shape;
use ot::CotKind;

/// How tabulated functions are evaluated on shares, see [`Options::evaluation`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Evaluation {
    /// By transfers of table rows ([`crate::ops::lookup`]): nothing is prepared, fewest rounds in all.
    #[default]
    Lookup,
    /// Activations on masked inputs, the rest by look-up: fewest bytes in all.
    Activations,
    /// On masked inputs ([`crate::ops::fss`]): long preparation, then one masked word a value.
    Masked,
}

/// Public choices of a session; both parties state the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Source of correlated OTs.
    pub ot: CotKind,
    /// Two phases: operations consume correlations that were, or could have been, made before the data is known, and
    /// send masked words only. See [`crate::stock`].
    pub preprocess: bool,
    /// Rate and delay of the link, by which operations weigh messages and flows against computation.
    pub link: Shape,
    /// Whether matrix products pack their responses.
    pub packing: Packing,
}

/// A link of which nothing is known: 1 Gbit/s, half a millisecond there and back.
pub const DEFAULT_LINK: Shape = Shape { bytes_per_second: 125_000_000, round_trip: Duration::from_micros(500) };

impl Default for Options {
    fn default() -> Self {
        Options { ot: CotKind::default(), preprocess: false, link: DEFAULT_LINK, packing: Packing::Auto }
    }
}

impl Options {
    /// How functions are evaluated: on masked inputs in two phases. In one phase activations alone are, and only over
    /// fast links: that takes half the bytes of a look-up and as much processor time, but twenty more flows.
    pub fn evaluation(&self) -> Evaluation {
        if self.preprocess {
            Evaluation::Masked
        } else if self.slow_link() {
            Evaluation::Lookup
        } else {
            Evaluation::Activations
        }
    }

    /// Whether the link is slower than 1 Gbit/s: flows, and bytes online, then outweigh other costs.
    pub fn slow_link(&self) -> bool {
        self.link.bytes_per_second < DEFAULT_LINK.bytes_per_second
    }
}
