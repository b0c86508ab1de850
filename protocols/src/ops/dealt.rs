//! The kinds of correlations that a helper deals, one a line, the oldest first. Their order fixes their numbers on
//! the wire.

use serde::{Deserialize, Serialize};

use crate::correlation::{Correlation, CorrelationKind};

macro_rules! dealt {
    ($($name:ident($kind:ty),)*) => {
        /// A kind of correlation that a helper deals, as demands name it.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub enum Dealt {
            $(
                /// The kind of this name.
                $name($kind),
            )*
        }

        impl Dealt {
            /// The name of `kind` in demands, or `None` if no helper deals it.
            pub(crate) fn of(kind: &CorrelationKind) -> Option<Self> {
                $(if let Some(kind) = kind.downcast::<$kind>() {
                    return Some(Dealt::$name(kind.clone()));
                })*
                None
            }

            /// The kind of correlation that this names.
            pub(crate) fn correlation(&self) -> &dyn Correlation {
                match self {
                    $(Dealt::$name(kind) => kind,)*
                }
            }
        }
    };
}

dealt! {
    Row(super::private::MaskedRow),
    Triple(super::matmul::Triple),
    RowProduct(super::mul::RowProduct),
    Squares(super::sum_squares::Squares),
    Wrap(super::truncate::Wrap),
    Selection(super::mux_columns::Selection),
    Function(super::fss::table::FssShape),
    Ladder(super::fss::ladder::LadderShape),
    Comparison(super::fss::threshold::Comparison),
    Carry(super::carry::Carry),
    ScaledSquares(super::scaled_squares::ScaledSquares),
}
