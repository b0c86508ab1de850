//! Policies by name: `NAME` or `NAME:key=value,key=value`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use protocols::Engine;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use thiserror::Error;

use crate::{Full, HeadShape, Policy};

/// A text that names no policy.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PolicyError {
    /// No policy has this name.
    #[error("unknown cache policy `{name}`; known are: {}", .known.join(", "))]
    Name {
        /// The name given.
        name: String,
        /// The names that exist.
        known: Vec<&'static str>,
    },
    /// The policy has no such option.
    #[error("cache policy `{policy}` has no option `{key}`; {}", list(.known))]
    Key {
        /// The policy.
        policy: &'static str,
        /// The key given.
        key: String,
        /// The keys that exist.
        known: &'static [&'static str],
    },
    /// An option that is not `key=value`, or given twice.
    #[error("cache policy option `{option}` is not one `key=value`")]
    Option {
        /// The text.
        option: String,
    },
}

fn list(keys: &[&str]) -> String {
    if keys.is_empty() { "it takes none".into() } else { format!("it takes: {}", keys.join(", ")) }
}

/// One line per policy: name and option keys. Parsing, errors and help are made from this table.
const KNOWN: &[(&str, &[&str])] = &[("full", &[])];

/// A cache policy and its options, by name: public, part of what two parties agree on. Only valid ones exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicySpec {
    name: &'static str,
    options: BTreeMap<&'static str, String>,
}

impl Default for PolicySpec {
    fn default() -> Self {
        PolicySpec { name: "full", options: BTreeMap::new() }
    }
}

impl PolicySpec {
    /// Names that exist, for help texts.
    pub fn known() -> impl Iterator<Item = &'static str> {
        KNOWN.iter().map(|(name, _)| *name)
    }

    /// Name of the policy.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Value of an option.
    pub fn option(&self, key: &str) -> Option<&str> {
        self.options.get(key).map(String::as_str)
    }

    /// The same policy with the option `key` set to `value`.
    pub fn with(&self, key: &str, value: &str) -> Result<Self, PolicyError> {
        let known = KNOWN.iter().find(|(n, _)| *n == self.name).map_or(&[][..], |(_, keys)| keys);
        let Some(key) = known.iter().find(|k| **k == key) else {
            return Err(PolicyError::Key { policy: self.name, key: key.into(), known });
        };
        let mut spec = self.clone();
        spec.options.insert(key, value.to_owned());
        Ok(spec)
    }

    /// A fresh policy for one generation of a model with `layers` layers of heads `shape`.
    pub fn build<E: Engine>(&self, layers: usize, shape: HeadShape) -> Box<dyn Policy<E>> {
        let _ = (layers, shape);
        // Parsing admits the names of `KNOWN` only, of which `full` is so far the one.
        Box::new(Full)
    }
}

impl FromStr for PolicySpec {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let Some(&(name, keys)) = KNOWN.iter().find(|(n, _)| *n == name) else {
            return Err(PolicyError::Name { name: name.into(), known: Self::known().collect() });
        };
        let mut options = BTreeMap::new();
        for option in rest.split(',').filter(|o| !o.is_empty()) {
            let malformed = || PolicyError::Option { option: option.into() };
            let (key, value) = option.split_once('=').ok_or_else(malformed)?;
            let Some(key) = keys.iter().find(|k| **k == key) else {
                return Err(PolicyError::Key { policy: name, key: key.into(), known: keys });
            };
            if value.is_empty() || options.insert(*key, value.to_owned()).is_some() {
                return Err(malformed());
            }
        }
        Ok(PolicySpec { name, options })
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

impl fmt::Display for PolicySpec {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name)?;
        for (i, (key, value)) in self.options.iter().enumerate() {
            write!(f, "{}{key}={value}", if i == 0 { ':' } else { ',' })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_keys_are_checked_with_the_valid_ones_listed() {
        assert_eq!("full".parse(), Ok(PolicySpec::default()));
        assert_eq!("full:".parse(), Ok(PolicySpec::default()));
        assert_eq!(PolicySpec::default().to_string(), "full");
        let unknown = "fll:a=1".parse::<PolicySpec>().unwrap_err();
        assert_eq!(unknown.to_string(), "unknown cache policy `fll`; known are: full");
        let key = "full:budget=3".parse::<PolicySpec>().unwrap_err();
        assert_eq!(key.to_string(), "cache policy `full` has no option `budget`; it takes none");
        assert!(matches!("full:budget".parse::<PolicySpec>(), Err(PolicyError::Option { .. })));
    }
}
