//! A policy's description of itself: names, option keys, help, settings and construction.

use std::any::Any;
use std::collections::BTreeMap;

use waggle_engine::{Select, TopK};

use crate::options::PolicyText;
use crate::{HeadShape, Policy, PolicyError, PolicyOptions};

/// The settings of a policy, or of several policies that differ in their settings alone.
///
/// A policy is one file: the settings with this trait, and a [`Policy`] that [`build`](PolicyFamily::build) makes of
/// them. Policies of this crate are listed in [`policies`](crate::policies) and so are known by name to
/// [`PolicySpec`](crate::PolicySpec). Policies of another crate are known by name once they are registered
/// ([`Registration`](crate::Registration), `waggle_session::register_policy`).
pub trait PolicyFamily: Sized + 'static {
    /// The policies of the family, each with its name, option keys, help line and reader.
    const POLICIES: &'static [NamedPolicy<Self>];

    /// The options that have no default, with values that fit every model, for
    /// [examples](crate::PolicySpec::examples).
    const REQUIRED: &'static str = "";

    /// Further facts that follow from the settings, such as what the policy reveals.
    fn facts(&self) -> Facts;

    /// Refuses settings that do not fit a model with `layers` layers of heads `shape`.
    ///
    /// # Errors
    /// [`PolicyError`] that names the option.
    fn check(&self, layers: usize, shape: HeadShape) -> Result<(), PolicyError> {
        let _ = (layers, shape);
        Ok(())
    }

    /// A fresh policy for one generation of a model with `layers` layers of heads `shape`.
    fn build<E: Select>(&self, layers: usize, shape: HeadShape) -> Box<dyn Policy<E>>;

    /// The settings that `text`, `NAME:key=value,key=value`, stands for.
    ///
    /// # Errors
    /// [`PolicyError`] if the family has no such policy or the policy refuses the options.
    fn parse(text: &str) -> Result<Self, PolicyError> {
        let PolicyText { name, options } = PolicyText::split(text)?;
        let policy = find::<Self>(name).ok_or_else(|| PolicyError::Name {
            name: name.into(),
            known: Self::POLICIES.iter().map(|p| p.name).collect(),
        })?;
        Ok(policy.parse(options)?.settings)
    }
}

/// What a program needs to know of a policy with given settings, besides the settings themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The facts that both parties learn, besides the lengths of prompt and text: a line for users.
    pub shows: String,
    /// Whether the policy's traffic is random, so that a plan can only state its mean. True of policies that select
    /// by [`TopK::ShuffleReveal`](waggle_engine::TopK::ShuffleReveal).
    pub random_traffic: bool,
    /// Whether only engines that see their values ([`Engine::CLEAR`](waggle_engine::Engine::CLEAR)) can run the
    /// policy.
    pub clear_only: bool,
    /// Whether generated tokens can be taken back ([`KvCache::roll_back`](crate::KvCache::roll_back)). Then the
    /// policy keeps no state of generated tokens, and evicts nothing because of them.
    pub can_roll_back: bool,
    /// Whether the policy, when several texts are read side by side, decides for each text as it would for that text
    /// alone. Each text has heads of its own.
    pub side_by_side: bool,
    /// The number of tokens in a chunk of the prompt, if the policy evicts after each chunk: see
    /// [`Policy::prefill_chunk`].
    pub prefill: Option<usize>,
    /// Whether layers take over the choices of other layers, so that all of them must hold as many tokens.
    pub joins_layers: bool,
    /// The name of the scoring head with which the model must be loaded, if it must have one: see
    /// [`ScoreSource`](crate::ScoreSource::ScoringHead).
    pub scoring_head: Option<&'static str>,
}

impl Facts {
    /// The facts of a policy that shows `what`.
    pub fn shows(what: impl Into<String>) -> Self {
        Facts { shows: what.into(), ..Facts::default() }
    }

    /// The facts of a policy that shows `what` and selects by `top_k`.
    pub fn selecting(what: &str, top_k: TopK) -> Self {
        match top_k {
            TopK::Rank | TopK::Sort => Facts::shows(what),
            TopK::ShuffleReveal => {
                Facts { random_traffic: true, ..Facts::shows(format!("{what}; how shuffled scores compare")) }
            }
        }
    }

    /// The facts of a policy that runs only in the clear.
    pub fn in_the_clear() -> Self {
        Facts { clear_only: true, ..Facts::shows("runs in the clear only") }
    }
}

/// The part of [`PolicyFamily`] that can be used behind a pointer, whatever the type of the family.
pub(crate) trait Settings: Any {
    fn as_any(&self) -> &dyn Any;
    fn facts(&self) -> Facts;
    fn check(&self, layers: usize, shape: HeadShape) -> Result<(), PolicyError>;
}

impl<F: PolicyFamily> Settings for F {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn facts(&self) -> Facts {
        PolicyFamily::facts(self)
    }

    fn check(&self, layers: usize, shape: HeadShape) -> Result<(), PolicyError> {
        PolicyFamily::check(self, layers, shape)
    }
}

/// The policy called `name` of the family `F`.
pub(crate) fn find<F: PolicyFamily>(name: &str) -> Option<&'static NamedPolicy<F>> {
    F::POLICIES.iter().find(|policy| policy.name == name)
}

/// One policy of a family: its name, its options, and how these become settings.
#[derive(Debug)]
pub struct NamedPolicy<F: 'static> {
    /// The name.
    pub name: &'static str,
    /// The keys of the policy's options.
    pub keys: &'static [&'static str],
    /// One line of description.
    pub about: &'static str,
    /// Reads the options. The function must read every key: an option that was given but not read is refused.
    pub read: fn(&mut PolicyOptions) -> Result<F, PolicyError>,
}

/// The help text of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyHelp {
    /// The name.
    pub name: &'static str,
    /// The keys of the policy's options.
    pub keys: &'static [&'static str],
    /// One line of description.
    pub about: &'static str,
}

impl PolicyHelp {
    /// The policy as a text, with the options among `required` that it takes. `required` lists options without a
    /// default, with values.
    pub(crate) fn example(&self, required: &str) -> String {
        let takes = |option: &&str| option.split_once('=').is_none_or(|(key, _)| self.keys.contains(&key));
        let required: Vec<&str> = required.split(',').filter(takes).collect();
        format!("{}:{}", self.name, required.join(","))
    }
}

/// The policy and settings that [`NamedPolicy::parse`] reads from options.
pub(crate) struct Parsed<F> {
    pub(crate) policy: PolicyHelp,
    /// The options as they were given.
    pub(crate) options: BTreeMap<&'static str, String>,
    /// The options with the values in force.
    pub(crate) stated: Vec<Setting>,
    pub(crate) settings: F,
}

impl<F> NamedPolicy<F> {
    /// The policy's help text.
    pub const fn help(&self) -> PolicyHelp {
        PolicyHelp { name: self.name, keys: self.keys, about: self.about }
    }

    pub(crate) fn parse(&self, given: BTreeMap<String, String>) -> Result<Parsed<F>, PolicyError> {
        let mut options = PolicyOptions::new(self.help(), given)?;
        let settings = (self.read)(&mut options)?;
        let (options, stated) = options.finish()?;
        Ok(Parsed { policy: self.help(), options, stated, settings })
    }
}

impl<F> Parsed<F> {
    pub(crate) fn map<G>(self, settings: impl FnOnce(F) -> G) -> Parsed<G> {
        let Parsed { policy, options, stated, settings: family } = self;
        Parsed { policy, options, stated, settings: settings(family) }
    }
}

/// An option, and the value that it has, given or default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The key of the option.
    pub key: &'static str,
    /// The value of the option, written as in a policy text.
    pub value: String,
}
