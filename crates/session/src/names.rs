//! Names of the parties' choices, which command lines, reports and the handshake share.

use waggle_model::Reveal;
use waggle_ot::{CotKind, SoftSpoken};
use waggle_protocols::{HelperDeals, Masks, Packing};

/// Outputs that the client may learn of each position.
pub const REVEALS: [(&str, Reveal); 2] = [("logits", Reveal::Logits), ("token", Reveal::Token)];

/// Sources of correlated OTs.
pub const OT_SOURCES: [(&str, CotKind); 4] = [
    ("silent", CotKind::Silent),
    ("softspoken2", CotKind::SoftSpoken(SoftSpoken::K2)),
    ("softspoken4", CotKind::SoftSpoken(SoftSpoken::K4)),
    ("softspoken8", CotKind::SoftSpoken(SoftSpoken::K8)),
];

/// The choices of when responses are packed.
pub const PACKINGS: [(&str, Packing); 3] =
    [("auto", Packing::Auto), ("never", Packing::Never), ("always", Packing::Always)];

/// Methods of preparing products with private matrices.
pub const MASKS: [(&str, Masks); 2] = [("seeded", Masks::Seeded), ("sent", Masks::Sent)];

/// The choices of what a helper deals.
pub const HELPERS: [(&str, HelperDeals); 3] =
    [("words", HelperDeals::Words), ("weights", HelperDeals::Weights), ("passes", HelperDeals::Passes)];

/// The name of `value` in its `table`. A value that the table lacks is called `ideal`; only tests of lower layers
/// have one.
pub fn name<T: PartialEq>(table: &[(&'static str, T)], value: &T) -> &'static str {
    table.iter().find(|(_, known)| known == value).map_or("ideal", |(name, _)| name)
}
