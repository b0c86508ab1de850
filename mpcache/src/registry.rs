//! Policies of other crates, which become known by name like the policies of this crate.
//!
//! [`PolicyFamily::build`] is generic over the engine, and a trait with a generic method cannot be used behind a
//! pointer. A family is therefore registered together with the engines on which it runs. Each of them fixes one
//! instance of `build`, and [`PolicySpec::build`](crate::PolicySpec::build) looks up the instance of its own engine.
//! This crate does not know the engines of the protocols; `waggle_session::register_policy` names all engines.

use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, PoisonError, RwLock};

use thiserror::Error;
use waggle_engine::Select;

use crate::family::{Parsed, Settings};
use crate::policies::BuiltIn;
use crate::{HeadShape, NamedPolicy, Policy, PolicyError, PolicyFamily, PolicyHelp};

/// Why a family cannot be registered.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// Another policy already has the name.
    #[error("there is a cache policy `{name}` already")]
    Taken {
        /// The name.
        name: &'static str,
    },
    /// The name could not be read back from a policy text.
    #[error("cache policy `{name}`: a name has letters, digits and `-` alone")]
    Name {
        /// The name.
        name: &'static str,
    },
}

/// A family of policies of another crate, with the engines on which it runs, before it is registered.
///
/// `waggle_session::register_policy` does all of this for the engines of this workspace. Whoever writes another
/// engine also registers the family for that engine.
pub struct Registration<F> {
    builds: Vec<Box<dyn Any + Send + Sync>>,
    family: PhantomData<F>,
}

/// [`PolicyFamily::build`] of one family for the engine `E`. Only the function knows the type of the family.
type Build<E> = fn(&dyn Any, usize, HeadShape) -> Box<dyn Policy<E>>;

fn build<F: PolicyFamily, E: Select>(family: &dyn Any, layers: usize, shape: HeadShape) -> Box<dyn Policy<E>> {
    family.downcast_ref::<F>().expect("a family is registered with its own functions").build(layers, shape)
}

impl<F: PolicyFamily + Send + Sync> Default for Registration<F> {
    fn default() -> Self {
        Self::new()
    }
}

impl<F: PolicyFamily + Send + Sync> Registration<F> {
    /// The registration of the family `F`, without any engine so far.
    pub fn new() -> Self {
        Registration { builds: Vec::new(), family: PhantomData }
    }

    /// Adds the engine `E` to those on which the family runs.
    pub fn on<E: Select>(mut self) -> Self {
        let build: Build<E> = build::<F, E>;
        self.builds.push(Box::new(build));
        self
    }

    /// Makes all policies of the family known by name in this process. Registering a family once more changes
    /// nothing.
    ///
    /// # Errors
    /// [`RegisterError`] if a name is taken or is not valid. Then no policy of the family is registered.
    pub fn register(self) -> Result<(), RegisterError> {
        // A writer only pushes whole entries, so a poisoned lock is harmless.
        let mut entries = ENTRIES.write().unwrap_or_else(PoisonError::into_inner);
        if entries.iter().any(|entry| entry.family == TypeId::of::<F>()) {
            return Ok(());
        }
        for NamedPolicy { name, .. } in F::POLICIES {
            if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
                return Err(RegisterError::Name { name });
            }
            let known = BuiltIn::help().chain(entries.iter().map(|entry| entry.help));
            if known.into_iter().any(|help| help.name == *name) {
                return Err(RegisterError::Taken { name });
            }
        }
        let builds: Arc<[_]> = self.builds.into();
        entries.extend(F::POLICIES.iter().map(|policy| Entry {
            family: TypeId::of::<F>(),
            help: policy.help(),
            required: F::REQUIRED,
            parse: |options, name, builds| {
                let policy = F::POLICIES.iter().find(|policy| policy.name == name).expect("an entry's own name");
                Ok(policy.parse(options)?.map(|family| Registered { settings: Arc::new(family), builds }))
            },
            builds: builds.clone(),
        }));
        Ok(())
    }
}

type Builds = Arc<[Box<dyn Any + Send + Sync>]>;

/// A function that reads the options of the policy of a given name.
type Parse = fn(BTreeMap<String, String>, &str, Builds) -> Result<Parsed<Registered>, PolicyError>;

/// A policy of another crate.
struct Entry {
    family: TypeId,
    help: PolicyHelp,
    required: &'static str,
    parse: Parse,
    builds: Builds,
}

/// All policies of other crates, in the order in which they were registered.
static ENTRIES: RwLock<Vec<Entry>> = RwLock::new(Vec::new());

fn each<T>(of: impl FnMut(&Entry) -> T) -> Vec<T> {
    ENTRIES.read().unwrap_or_else(PoisonError::into_inner).iter().map(of).collect()
}

/// The help texts of all policies of other crates.
pub(crate) fn help() -> Vec<PolicyHelp> {
    each(|entry| entry.help)
}

/// All policies of other crates as texts, with the options that have no default.
pub(crate) fn examples() -> Vec<String> {
    each(|entry| entry.help.example(entry.required))
}

/// The settings of the policy `name` with these options; `None` if no other crate has registered a policy of this
/// name.
pub(crate) fn parse(
    name: &str,
    options: &BTreeMap<String, String>,
) -> Option<Result<Parsed<Registered>, PolicyError>> {
    let found = {
        let entries = ENTRIES.read().unwrap_or_else(PoisonError::into_inner);
        entries.iter().find(|entry| entry.help.name == name).map(|entry| (entry.parse, entry.builds.clone()))
    };
    // The lock is released before parsing, because a policy may parse other policies.
    found.map(|(parse, builds)| parse(options.clone(), name, builds))
}

/// The settings of a policy of another crate.
#[derive(Clone)]
pub(crate) struct Registered {
    settings: Arc<dyn Settings + Send + Sync>,
    builds: Builds,
}

impl Registered {
    pub(crate) fn settings(&self) -> &dyn Settings {
        &*self.settings
    }

    /// The policy on the engine `E`, if it is registered for this engine.
    pub(crate) fn build<E: Select>(&self, layers: usize, shape: HeadShape) -> Option<Box<dyn Policy<E>>> {
        let build = self.builds.iter().find_map(|build| build.downcast_ref::<Build<E>>())?;
        Some(build(self.settings.as_any(), layers, shape))
    }
}

/// Compares the families alone: a [`PolicySpec`](crate::PolicySpec) compares the values of its options itself.
impl PartialEq for Registered {
    fn eq(&self, other: &Self) -> bool {
        self.settings.as_any().type_id() == other.settings.as_any().type_id()
    }
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("Registered")
    }
}
