//! The policies of this crate. Each is a file with its names, options, settings and construction ([`PolicyFamily`]),
//! and the `registry` makes them known by name.

mod clustered;
mod divided;
mod fastgen;
mod full;
mod keyformer;
mod knorm;
mod kvzap;
mod random;
mod rolling;
mod sirllm;
mod snapkv;
mod streaming;

pub use clustered::{Gather, Similarity, Sizes};
pub use kvzap::MAGNITUDE as LEARNED_MAGNITUDE;
pub use rolling::EvictionScore;

use std::collections::BTreeMap;

use engine::Select;

use crate::family::{Facts, Parsed, find};
use crate::{HeadShape, NamedPolicy, Policy, PolicyError, PolicyFamily, PolicyHelp};

/// Makes one type of all families. A line here is all that a policy's file needs to be known by name; the compiler
/// reports a family without a line as dead code.
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

            /// What the settings say of themselves.
            pub(crate) fn facts(&self) -> &dyn Facts {
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
    streaming::Streaming,
    divided::Divided,
    fastgen::FastGen,
    rolling::Rolling,
    snapkv::SnapKv,
    knorm::KNorm,
    kvzap::KvZap,
    keyformer::Keyformer,
    sirllm::SirLlm,
    random::Random,
}

/// The share of tokens that a policy looks at unless told otherwise.
const DEFAULT_BUDGET: f64 = 0.25;

/// Tokens at the start of the text that are always attended to, where no clusters say otherwise: StreamingLLM's
/// number.
const DEFAULT_SINKS: usize = 4;

/// The settings of the policy `text`, as a text, or the message with which it is refused: for the tests of each
/// policy.
#[cfg(test)]
fn shown(text: &str) -> String {
    match text.parse::<crate::PolicySpec>() {
        Ok(spec) => spec.settings().iter().map(|s| format!("{}={}", s.key, s.value)).collect::<Vec<_>>().join(" "),
        Err(error) => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of README, without line breaks.
    fn readme() -> String {
        include_str!("../../README.md").split_whitespace().collect::<Vec<_>>().join(" ")
    }

    fn code(words: &[&str]) -> String {
        words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_readme_lists_every_policy_with_its_keys() {
        let readme = readme();
        let clusters = Clusters::POLICIES[0].keys;
        assert!(readme.contains(&format!("*clusters* stands for {}.", code(clusters))), "{}", code(clusters));
        for PolicyHelp { name, keys, .. } in BuiltIn::help() {
            let keys = match keys {
                [] => "none".to_owned(),
                keys if keys == clusters => "*clusters*".to_owned(),
                keys => code(keys),
            };
            assert!(readme.contains(&format!("| `{name}` | {keys} |")), "{name}: {keys}");
        }
    }
}
