//! All policies with their options, as a list for users and programs.

use serde::Serialize;

use crate::{Facts, PolicyHelp, PolicySpec, Setting};

/// A policy as an entry of the list of policies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Listed {
    /// The name of the policy.
    pub name: &'static str,
    /// One line of description.
    pub about: &'static str,
    /// The options of the policy.
    pub options: Vec<ListedOption>,
    /// The facts that both parties learn with the default options, besides the lengths of prompt and text.
    pub shows: String,
    /// Whether only engines that see their values can run the policy.
    pub clear_only: bool,
    /// Whether generated tokens can be taken back, as drafts need.
    #[serde(rename = "can_cut")]
    pub can_roll_back: bool,
}

/// An option of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedOption {
    /// The key of the option.
    pub key: &'static str,
    /// The default value. `None` if the option must be given or depends on another option.
    pub default: Option<String>,
    /// Whether the option must be given.
    pub required: bool,
}

/// Every policy that has a name in this process.
pub fn catalogue() -> Vec<Listed> {
    let listed = |spec: PolicySpec| {
        let PolicyHelp { name, keys, about } = spec.policy();
        let (settings, Facts { shows, clear_only, can_roll_back, .. }) = (spec.settings(), spec.facts());
        let option = |key: &&'static str| {
            // The policies in `examples` state exactly the options that must be given.
            let required = spec.option(key).is_some();
            let default = settings.iter().find(|setting| setting.key == *key).filter(|_| !required);
            ListedOption { key, default: default.map(|Setting { value, .. }| value.clone()), required }
        };
        Listed { name, about, options: keys.iter().map(option).collect(), shows, clear_only, can_roll_back }
    };
    PolicySpec::examples().map(listed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_is_listed_once_with_all_of_its_options() {
        let listed = catalogue();
        assert_eq!(
            listed.iter().map(|policy| policy.name).collect::<Vec<_>>(),
            PolicySpec::known().collect::<Vec<_>>()
        );
        for (policy, help) in listed.iter().zip(PolicySpec::help()) {
            assert_eq!(
                policy.options.iter().map(|option| option.key).collect::<Vec<_>>(),
                help.keys,
                "{}",
                help.name
            );
            // A policy's name alone is a valid text unless an option must be given.
            let required = policy.options.iter().any(|option| option.required);
            assert_eq!(policy.name.parse::<PolicySpec>().is_err(), required, "{}", policy.name);
            assert!(!policy.shows.is_empty() && !policy.about.is_empty(), "{}", policy.name);
            assert_eq!(policy.clear_only, policy.shows == crate::Facts::in_the_clear().shows, "{}", policy.name);
        }
        let default = |name: &str, key: &str| {
            let policy = listed.iter().find(|policy| policy.name == name).unwrap();
            policy.options.iter().find(|option| option.key == key).unwrap().default.clone()
        };
        assert_eq!(default("h2o", "budget").as_deref(), Some("0.25"));
        assert_eq!(default("streaming", "sinks").as_deref(), Some("4"));
        assert_eq!(default("duo", "heads"), None);
    }
}
