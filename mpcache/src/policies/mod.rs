//! The policies of this crate. Each is a file with its names, options, settings and construction ([`PolicyFamily`]),
//! and the `registry` makes them known by name.

mod clustered;
mod divided;
mod fastgen;
mod full;
mod random;
mod rolling;
mod scored;
mod voting;

pub use clustered::{Gather, Similarity, Sizes};
pub use rolling::EvictionScore;
pub use scored::{HEAD_MAGNITUDE, Noise, Source};

use std::collections::BTreeMap;

use waggle_engine::Select;

use crate::family::{Parsed, Settings, find};
use crate::{HeadShape, NamedPolicy, Policy, PolicyError, PolicyFamily, PolicyHelp};

/// Makes one type of all families in its list, and their policies known by name. If a family is missing from the
/// list, the compiler reports it as dead code.
macro_rules! registry {
    ($($module:ident::$family:ident,)+) => {
        $(pub use $module::$family;)+

        /// The settings of a policy of any family.
        #[derive(Clone, Debug, PartialEq)]
        pub(crate) enum BuiltIn {
            $($family($family),)+
        }

        impl BuiltIn {
            /// All policies.
            pub(crate) fn help() -> impl Iterator<Item = PolicyHelp> {
                std::iter::empty()$(.chain($family::POLICIES.iter().map(NamedPolicy::help)))+
            }

            /// All policies as texts, with the options that have no default.
            pub(crate) fn examples() -> impl Iterator<Item = String> {
                std::iter::empty()$(
                    .chain($family::POLICIES.iter().map(|policy| policy.help().example($family::REQUIRED)))
                )+
            }

            /// The settings of the policy `name` with these options; `None` if this crate has none of that name.
            pub(crate) fn parse(
                name: &str,
                options: &BTreeMap<String, String>,
            ) -> Option<Result<Parsed<Self>, PolicyError>> {
                $(if let Some(policy) = find::<$family>(name) {
                    return Some(policy.parse(options.clone()).map(|parsed| parsed.map(Self::$family)));
                })+
                None
            }

            /// The settings behind a pointer, whatever the family.
            pub(crate) fn settings(&self) -> &dyn Settings {
                match self {
                    $(Self::$family(family) => family,)+
                }
            }

            pub(crate) fn build<E: Select>(&self, layers: usize, shape: HeadShape) -> Box<dyn Policy<E>> {
                match self {
                    $(Self::$family(family) => family.build(layers, shape),)+
                }
            }
        }
    };
}

registry! {
    full::Full,
    clustered::Clusters,
    divided::Divided,
    fastgen::FastGen,
    rolling::Rolling,
    voting::Voting,
    scored::Scored,
    random::Random,
}

/// The share of tokens that a policy looks at unless told otherwise.
const DEFAULT_BUDGET: f64 = 0.25;

/// Tokens at the start of the text that are always attended to, unless the sizes of clusters decide their number.
/// This is StreamingLLM's number.
const DEFAULT_SINKS: usize = 4;

#[cfg(test)]
mod tests;
