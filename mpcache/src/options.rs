//! The options of a policy while they are read.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use waggle_engine::TopK;

use crate::{PolicyError, PolicyHelp, Setting, UnknownValue};

/// A policy text `NAME:key=value,key=value` split into its parts. Neither the name nor the keys are checked yet.
#[derive(Debug)]
pub(crate) struct PolicyText<'a> {
    pub(crate) name: &'a str,
    pub(crate) options: BTreeMap<String, String>,
}

impl<'a> PolicyText<'a> {
    pub(crate) fn split(text: &'a str) -> Result<Self, PolicyError> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let mut options = BTreeMap::new();
        for option in rest.split(',').filter(|o| !o.is_empty()) {
            let malformed = || PolicyError::Option(option.into());
            let (key, value) = option.split_once('=').ok_or_else(malformed)?;
            if value.is_empty() || options.insert(key.to_owned(), value.to_owned()).is_some() {
                return Err(malformed());
            }
        }
        Ok(PolicyText { name, options })
    }
}

/// The options given to one policy, read key by key by [`NamedPolicy::read`](crate::NamedPolicy::read).
///
/// A key and its reading cannot drift apart: reading a key that the policy does not list panics, and an option that
/// was given but never read is an error.
#[derive(Debug)]
pub struct PolicyOptions {
    policy: PolicyHelp,
    given: BTreeMap<&'static str, String>,
    read: BTreeSet<&'static str>,
    /// The values in force, given or default, as policy texts would give them.
    stated: BTreeMap<&'static str, String>,
}

impl PolicyOptions {
    /// Checks the keys of `given`.
    pub(crate) fn new(policy: PolicyHelp, given: BTreeMap<String, String>) -> Result<Self, PolicyError> {
        let check = |(key, value): (String, String)| match policy.keys.iter().find(|known| **known == key) {
            Some(known) => Ok((*known, value)),
            None => Err(PolicyError::Key { policy: policy.name, key, known: policy.keys }),
        };
        let given = given.into_iter().map(check).collect::<Result<_, _>>()?;
        Ok(PolicyOptions { policy, given, read: BTreeSet::new(), stated: BTreeMap::new() })
    }

    /// The given options, and all options with the values in force. Fails unless every given option has been read.
    pub(crate) fn finish(mut self) -> Result<(BTreeMap<&'static str, String>, Vec<Setting>), PolicyError> {
        if let Some(key) = self.given.keys().find(|key| !self.read.contains(*key)) {
            return Err(self.no_effect(key, "its other options"));
        }
        let stated =
            self.policy.keys.iter().filter_map(|&key| Some(Setting { key, value: self.stated.remove(key)? }));
        let stated = stated.collect();
        Ok((self.given, stated))
    }

    /// Whether the policy has the option `key`.
    pub fn lists(&self, key: &str) -> bool {
        self.policy.keys.contains(&key)
    }

    /// Whether the option `key` was given.
    pub fn given(&self, key: &str) -> bool {
        self.given.contains_key(key)
    }

    /// The value of `key` as `parse` understands it, or `None` if the option was not given. A value for which `parse`
    /// returns `None` is refused, with a message that says what was `expected`. Reports state the value.
    ///
    /// # Panics
    /// If the policy does not list `key`.
    pub fn read<T: ToString>(
        &mut self,
        key: &'static str,
        expected: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, PolicyError> {
        assert!(self.lists(key), "cache policy `{}` reads `{key}`, which it does not list", self.policy.name);
        self.read.insert(key);
        let Some(text) = self.given.get(key) else { return Ok(None) };
        let value = parse(text).ok_or_else(|| self.refused(key, text, expected))?;
        self.state(key, &value);
        Ok(Some(value))
    }

    /// [`read`](Self::read) for an option whose value is `default` unless it is given.
    pub fn read_or<T: ToString>(
        &mut self,
        key: &'static str,
        expected: &str,
        default: T,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, PolicyError> {
        let value = self.read(key, expected, parse)?.unwrap_or(default);
        self.state(key, &value);
        Ok(value)
    }

    /// Makes reports state `value` for `key`. Needed where the value in force depends on more than the option `key`.
    pub fn state(&mut self, key: &'static str, value: &impl ToString) {
        self.stated.insert(key, value.to_string());
    }

    /// The value of `key`, or `default`. `T` parses and displays the texts of its values.
    pub fn value<T: FromStr<Err = UnknownValue> + ToString>(
        &mut self,
        key: &'static str,
        default: T,
    ) -> Result<T, PolicyError> {
        let value = self.given_value(key)?.unwrap_or(default);
        self.state(key, &value);
        Ok(value)
    }

    /// The value of `key`, if it was given. `T` parses and displays the texts of its values.
    pub fn given_value<T: FromStr<Err = UnknownValue> + ToString>(
        &mut self,
        key: &'static str,
    ) -> Result<Option<T>, PolicyError> {
        let Some(text) = self.read(key, "", |text| Some(text.to_owned()))? else { return Ok(None) };
        let value: T = text.parse().map_err(|UnknownValue { expected }| self.refused(key, &text, &expected))?;
        self.state(key, &value);
        Ok(Some(value))
    }

    /// The value of `key`, a fraction above 0 and up to 1, or `default` if it was not given.
    pub fn fraction(&mut self, key: &'static str, default: f64) -> Result<f64, PolicyError> {
        let parse = |text: &str| text.parse().ok().filter(|share| *share > 0.0 && *share <= 1.0);
        self.read_or(key, "a share above 0, up to 1", default, parse)
    }

    /// The value of `key`, a whole number from `least` on and below 2^20, or `default` if it was not given.
    pub fn number(&mut self, key: &'static str, least: usize, default: usize) -> Result<usize, PolicyError> {
        let parse = |text: &str| text.parse().ok().filter(|n| (least..1 << 20).contains(n));
        self.read_or(key, &format!("a number from {least}"), default, parse)
    }

    /// Whether the option `key` is `on` and not `off`, or `default` if it was not given.
    pub fn switch(&mut self, key: &'static str, default: bool) -> Result<bool, PolicyError> {
        let parse = |text: &str| ["on", "off"].into_iter().find(|known| *known == text);
        Ok(self.read_or(key, "on or off", if default { "on" } else { "off" }, parse)? == "on")
    }

    /// The method of top-k selection under the key `topk`, or `default` if it was not given.
    pub fn top_k(&mut self, default: TopK) -> Result<TopK, PolicyError> {
        let names = TopK::ALL.map(|method| method.to_string()).join(", ");
        self.read_or("topk", &format!("one of {names}"), default, |text| text.parse().ok())
    }

    /// The error for `value` of the option `key`.
    pub fn refused(&self, key: &'static str, value: &str, expected: &str) -> PolicyError {
        PolicyError::Value { policy: self.policy.name, key, value: value.into(), expected: expected.into() }
    }

    /// The error for an option `key` that the policy needs and that was not given.
    pub fn missing(&self, key: &'static str, expected: &'static str) -> PolicyError {
        PolicyError::Missing { policy: self.policy.name, key, expected }
    }

    /// The error for an option `key` that has no effect beside the option `with`.
    pub fn no_effect(&self, key: &'static str, with: impl Into<String>) -> PolicyError {
        PolicyError::NoEffect { policy: self.policy.name, key, with: with.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTED: PolicyHelp = PolicyHelp { name: "listed", keys: &["first", "second"], about: "" };

    fn options(text: &str) -> PolicyOptions {
        PolicyOptions::new(LISTED, PolicyText::split(text).unwrap().options).unwrap()
    }

    #[test]
    fn an_option_that_no_one_reads_is_an_error() {
        let mut options = options("listed:first=2,second=3");
        assert_eq!(options.number("first", 0, 7), Ok(2));
        let message = options.finish().unwrap_err().to_string();
        assert_eq!(message, "cache policy `listed`: second has no effect with its other options");
    }

    #[test]
    #[should_panic(expected = "cache policy `listed` reads `third`, which it does not list")]
    fn a_key_that_is_not_listed_cannot_be_read() {
        let _ = options("listed:first=2").switch("third", true);
    }
}
