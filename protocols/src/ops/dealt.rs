//! The kinds that a helper deals, and their places on the wire: a line for each, the oldest first.

use serde::{Deserialize, Serialize};

use super::carry::Carry;
use super::fss::ladder::LadderShape;
use super::fss::table::FssShape;
use super::fss::threshold::Comparison;
use super::matmul::Triple;
use super::mul::RowProduct;
use super::mux_columns::Selection;
use super::private::MaskedRow;
use super::sum_squares::Squares;
use super::truncate::Wrap;
use crate::correlation::{Correlation, CorrelationKind};

macro_rules! dealt {
    ($($(#[$doc:meta])* $name:ident($kind:ty),)*) => {
        /// A kind of correlation that a helper deals, as demands name it.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub enum Dealt {
            $($(#[$doc])* $name($kind),)*
        }

        impl Dealt {
            /// `kind` as demands name it, if a helper deals it.
            pub(crate) fn of(kind: &CorrelationKind) -> Option<Self> {
                $(if let Some(kind) = kind.downcast::<$kind>() {
                    return Some(Dealt::$name(kind.clone()));
                })*
                None
            }

            /// The kind.
            pub(crate) fn correlation(&self) -> &dyn Correlation {
                match self {
                    $(Dealt::$name(kind) => kind,)*
                }
            }
        }
    };
}

dealt! {
    /// Products with a weight.
    Row(MaskedRow),
    /// Products of matrices.
    Triple(Triple),
    /// Products of rows and words.
    RowProduct(RowProduct),
    /// Sums of squares.
    Squares(Squares),
    /// Truncations.
    Wrap(Wrap),
    /// Selections.
    Selection(Selection),
    /// Functions by a table.
    Function(FssShape),
    /// Functions by tables of several octaves.
    Ladder(LadderShape),
    /// Comparisons with thresholds.
    Comparison(Comparison),
    /// Comparisons bit by bit.
    Carry(Carry),
}
