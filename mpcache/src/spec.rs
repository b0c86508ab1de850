//! Policies by name: `NAME` or `NAME:key=value,key=value`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use waggle_engine::Select;

use crate::family::{Facts, Parsed, Settings};
use crate::options::PolicyText;
use crate::policies::{BuiltIn, Full};
use crate::registry::{self, Registered};
use crate::{HeadShape, Policy, PolicyError, PolicyFamily, PolicyHelp, Setting, Shed, UnknownValue};

/// The key of the option that every policy takes.
const SHED: &str = "shed";

/// What is expected of a policy whose layers take over choices of others.
const JOINED: &str = "share=off beside it: layers that take over the choices of others hold as many tokens";

/// A policy by name, with its options: one of this crate or a [registered](crate::Registration) one of another crate.
/// Public, because two parties agree on it. A value of this type is always a valid policy.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicySpec {
    policy: PolicyHelp,
    options: BTreeMap<&'static str, String>,
    stated: Vec<Setting>,
    settings: Family,
    shed: Option<Shed>,
}

/// The settings of a policy that has a name.
#[derive(Clone, Debug, PartialEq)]
enum Family {
    /// A policy of this crate.
    BuiltIn(BuiltIn),
    /// A policy of another crate.
    Registered(Registered),
}

impl Family {
    fn settings(&self) -> &dyn Settings {
        match self {
            Family::BuiltIn(settings) => settings.settings(),
            Family::Registered(settings) => settings.settings(),
        }
    }
}

/// Numbers in settings are never NaN.
impl Eq for PolicySpec {}

impl Default for PolicySpec {
    /// The policy `full`.
    fn default() -> Self {
        const FULL: PolicyHelp = Full::POLICIES[0].help();
        let settings = Family::BuiltIn(BuiltIn::Full(Full));
        PolicySpec { policy: FULL, options: BTreeMap::new(), stated: Vec::new(), settings, shed: None }
    }
}

impl PolicySpec {
    /// The names of all policies, for help texts.
    pub fn known() -> impl Iterator<Item = &'static str> {
        Self::help().map(|policy| policy.name)
    }

    /// Name, option keys and description of every policy, for help texts.
    pub fn help() -> impl Iterator<Item = PolicyHelp> {
        BuiltIn::help().chain(registry::help())
    }

    /// One policy for each name. Options without a default have values that fit every model.
    pub fn examples() -> impl Iterator<Item = Self> {
        // A registered family may lack a value for an option without a default.
        BuiltIn::examples().chain(registry::examples()).filter_map(|text| text.parse().ok())
    }

    /// Name of the policy.
    pub fn name(&self) -> &'static str {
        self.policy.name
    }

    /// The policy's help text.
    pub fn policy(&self) -> PolicyHelp {
        self.policy
    }

    /// Value of an option, if it was given.
    pub fn option(&self, key: &str) -> Option<&str> {
        self.options.get(key).map(String::as_str)
    }

    /// This policy with the option `key` set to `value`, in place of its old value.
    pub fn with(&self, key: &str, value: &str) -> Result<Self, PolicyError> {
        let mut options: BTreeMap<String, String> =
            self.options.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect();
        options.extend(self.shed.iter().map(|shed| (SHED.to_owned(), shed.to_string())));
        options.insert(key.to_owned(), value.to_owned());
        Self::new(PolicyText { name: self.name(), options })
    }

    /// Whether the policy takes the option `key`.
    pub fn takes(&self, key: &str) -> bool {
        self.policy.keys.contains(&key)
    }

    /// The rows that a prompt sheds from layer to layer, if it sheds some: the option `shed`, which every policy
    /// takes.
    pub fn shed(&self) -> Option<&Shed> {
        self.shed.as_ref()
    }

    /// Whether a layer keeps every token that it has seen: the policy is `full`. With [`shed`](PolicySpec::shed),
    /// later layers see fewer.
    pub fn keeps_all(&self) -> bool {
        self.settings == Family::BuiltIn(BuiltIn::Full(Full))
    }

    /// The facts that follow from the settings.
    pub fn facts(&self) -> Facts {
        let mut facts = self.settings.settings().facts();
        if self.shed.is_some() {
            facts.shows.push_str("; how many rows of the prompt each layer computes");
        }
        facts
    }

    /// Whether only engines that see their values can run the policy.
    pub fn clear_only(&self) -> bool {
        self.facts().clear_only
    }

    /// Whether the policy's traffic is random. A plan then states the mean.
    pub fn random_traffic(&self) -> bool {
        self.facts().random_traffic
    }

    /// Whether generated tokens can be taken back, see [`KvCache::roll_back`](crate::KvCache::roll_back).
    pub fn can_roll_back(&self) -> bool {
        self.facts().can_roll_back
    }

    /// Whether the policy, when several texts are read side by side, decides for each text as it would for that text
    /// alone.
    pub fn side_by_side(&self) -> bool {
        self.facts().side_by_side
    }

    /// The scoring head with which the model must be loaded for the policy, if it must have one.
    pub fn scoring_head(&self) -> Option<&'static str> {
        self.facts().scoring_head
    }

    /// Refuses a policy whose settings do not fit a model with `layers` layers of heads `shape`.
    ///
    /// # Errors
    /// [`PolicyError`] that names the option.
    pub fn check(&self, layers: usize, shape: HeadShape) -> Result<(), PolicyError> {
        self.settings.settings().check(layers, shape)
    }

    /// Refuses rows that end at a layer that a model of `layers` layers does not have.
    ///
    /// # Errors
    /// [`PolicyError::Layer`].
    pub fn check_shed(&self, layers: usize) -> Result<(), PolicyError> {
        let last = self.shed.as_ref().and_then(|shed| shed.steps(layers).last().map(|step| step.layer));
        match last.filter(|layer| *layer >= layers) {
            Some(layer) => Err(PolicyError::Layer { policy: self.name(), key: SHED, layer, layers }),
            None => Ok(()),
        }
    }

    /// A number of tokens: the policy evicts after each chunk of this length of the prompt, see
    /// [`Policy::prefill_chunk`].
    pub fn prefill(&self) -> Option<usize> {
        self.facts().prefill
    }

    /// Every option with the value in force, given or default: the policy as a report states it.
    pub fn settings(&self) -> &[Setting] {
        &self.stated
    }

    /// A fresh policy for one generation of a model with `layers` layers of heads `shape`. The model must pass
    /// [`check`](PolicySpec::check).
    ///
    /// # Panics
    /// If another crate registered the policy, but not for the engine `E`. `waggle_session::register_policy`
    /// registers for every engine of this workspace.
    pub fn build<E: Select>(&self, layers: usize, shape: HeadShape) -> Box<dyn Policy<E>> {
        match &self.settings {
            Family::BuiltIn(settings) => settings.build(layers, shape),
            Family::Registered(settings) => settings.build(layers, shape).unwrap_or_else(|| {
                panic!("cache policy `{self}` is not registered for {}", std::any::type_name::<E>())
            }),
        }
    }

    fn new(PolicyText { name, mut options }: PolicyText) -> Result<Self, PolicyError> {
        let shed = options.remove(SHED);
        let built_in = BuiltIn::parse(name, &options).map(|parsed| parsed.map(|parsed| parsed.map(Family::BuiltIn)));
        let registered = || Some(registry::parse(name, &options)?.map(|parsed| parsed.map(Family::Registered)));
        let unknown = || Err(PolicyError::Name { name: name.into(), known: Self::known().collect() });
        let Parsed { policy, options, mut stated, settings } =
            built_in.or_else(registered).unwrap_or_else(unknown)?;
        let read = |text: String| {
            let refused = |value, UnknownValue { expected }| PolicyError::Value {
                policy: policy.name,
                key: SHED,
                value,
                expected,
            };
            match text.parse::<Shed>() {
                Ok(_) if settings.settings().facts().joins_layers => Err(refused(text, UnknownValue::new(JOINED))),
                Ok(shed) => Ok(shed),
                Err(error) => Err(refused(text, error)),
            }
        };
        let shed = shed.map(read).transpose()?;
        stated.extend(shed.iter().map(|shed| Setting { key: SHED, value: shed.to_string() }));
        Ok(PolicySpec { policy, options, stated, settings, shed })
    }
}

impl FromStr for PolicySpec {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        Self::new(PolicyText::split(text)?)
    }
}

impl fmt::Display for PolicySpec {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())?;
        let shed = self.shed.iter().map(|shed| (SHED, shed.to_string()));
        let options = self.options.iter().map(|(key, value)| (*key, value.clone()));
        for (i, (key, value)) in options.chain(shed).enumerate() {
            write!(f, "{}{key}={value}", if i == 0 { ':' } else { ',' })?;
        }
        Ok(())
    }
}

impl Serialize for PolicySpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PolicySpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_unknown_ones_are_refused_with_those_that_exist() {
        let names: Vec<&str> = PolicySpec::known().collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
        let error = "fll:a=1".parse::<PolicySpec>().unwrap_err().to_string();
        assert_eq!(error, format!("unknown cache policy `fll`; known are: {}", names.join(", ")));
    }

    #[test]
    fn the_text_of_a_policy_parses_to_the_same_policy() {
        assert_eq!("full".parse(), Ok(PolicySpec::default()));
        assert_eq!("full:".parse(), Ok(PolicySpec::default()));
        assert_eq!(PolicySpec::default().to_string(), "full");
        for (spec, name) in PolicySpec::examples().zip(PolicySpec::known()) {
            let text = spec.to_string();
            assert_eq!(text.parse().as_ref(), Ok(&spec));
            // Most policies need no options, so that their name is the whole text.
            assert_eq!((spec.name(), text.split(':').next()), (name, Some(name)));
            assert!(text.len() > name.len() || text.parse() == name.parse::<PolicySpec>());
        }
        let text = "mpcache:budget=0.1,clusters=32/16,gather=scores";
        assert_eq!(text.parse::<PolicySpec>().unwrap().to_string(), text);
    }

    #[test]
    fn settings_written_out_give_the_same_policy() {
        for (PolicyHelp { name, keys, .. }, spec) in PolicySpec::help().zip(PolicySpec::examples()) {
            for Setting { key, value } in spec.settings() {
                assert!(keys.contains(key), "{name}: {key}");
                // The default window depends on the prompt and has no value of its own.
                if !value.contains("long prompts") {
                    assert_eq!(spec.with(key, value).unwrap().settings, spec.settings, "{name}: {key}={value}");
                }
            }
        }
    }

    #[test]
    fn malformed_options_and_unknown_keys_are_refused() {
        for (text, message) in [
            ("full:budget=3", "cache policy `full` has no option `budget`; it takes none"),
            (
                "streaming:topk=rank",
                "cache policy `streaming` has no option `topk`; it takes: budget, block, prefill, guard, sinks",
            ),
            ("full:budget", "cache policy option `budget` is not one `key=value`"),
            ("full:budget=", "cache policy option `budget=` is not one `key=value`"),
            ("h2o:budget=0.1,budget=0.2", "cache policy option `budget=0.2` is not one `key=value`"),
        ] {
            assert_eq!(text.parse::<PolicySpec>().unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn every_policy_sheds() {
        for spec in PolicySpec::examples() {
            if spec.facts().joins_layers {
                let refused = spec.with(SHED, "bolt");
                assert!(matches!(refused, Err(PolicyError::Value { key: SHED, .. })), "{refused:?}");
                continue;
            }
            let sheds = spec.with(SHED, "4:0.5,8:0.25").unwrap();
            assert_eq!(sheds.to_string().parse(), Ok(sheds.clone()));
            assert!(sheds.to_string().ends_with("shed=4:0.5+8:0.25"), "{sheds}");
            assert_eq!((sheds.keeps_all(), sheds == spec), (spec.name() == "full", false));
            assert_eq!(sheds.with(SHED, "bolt").unwrap().shed(), Some(&"bolt".parse().unwrap()));
            assert!(sheds.check_shed(9).is_ok());
            assert!(matches!(sheds.check_shed(8), Err(PolicyError::Layer { key: SHED, layer: 8, .. })));
        }
        assert!(matches!("full:shed=8:0.5+4:0.25".parse::<PolicySpec>(), Err(PolicyError::Value { key: SHED, .. })));
    }

    #[test]
    fn options_replace_each_other() {
        let spec: PolicySpec = "mpcache:budget=0.5".parse().unwrap();
        assert_eq!(spec.with("budget", "0.1").unwrap().to_string(), "mpcache:budget=0.1");
        assert!(matches!(spec.with("seed", "1"), Err(PolicyError::Key { .. })));
    }
}
