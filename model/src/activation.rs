//! Entrywise non-linearities, of this crate and of other crates.
//!
//! A function of another crate is written once over [`Engine`], as a composition of its operations. A generic
//! function cannot be stored behind a pointer, so registering it ([`Functions`]) fixes one instance for every engine.
//! A model looks up the instance of its own engine.

use std::any::Any;
use std::fmt;
use std::sync::{PoisonError, RwLock};

use ndarray::ArrayD;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use waggle_engine::{Engine, Float};

/// Entrywise non-linearity of the MLP. Its text is a name that parties send each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "&'static str", try_from = "String")]
pub enum Activation {
    /// Published as `gelu_new` or `gelu_pytorch_tanh`.
    GeluTanh,
    /// Published as `gelu`.
    GeluErf,
    /// Published as `silu` or `swish`.
    Silu,
    /// Published as `relu`.
    Relu,
    /// A function of another crate, see [`Functions`].
    Registered(RegisteredActivation),
}

/// The built-in activations. Each has the name that parties send each other, and the names that `config.json` uses.
const BUILT_IN: &[(Activation, &str, &[&str])] = &[
    (Activation::GeluTanh, "gelu_tanh", &["gelu_new", "gelu_pytorch_tanh"]),
    (Activation::GeluErf, "gelu_erf", &["gelu"]),
    (Activation::Silu, "silu", &["silu", "swish"]),
    (Activation::Relu, "relu", &["relu"]),
];

impl Activation {
    /// The function that a `config.json` calls `name`.
    pub fn published(name: &str) -> Option<Self> {
        let built_in = BUILT_IN.iter().find(|(_, _, names)| names.contains(&name)).map(|(function, ..)| *function);
        built_in.or_else(|| RegisteredActivation::named(name).map(Activation::Registered))
    }

    /// The names that a `config.json` may use for activations.
    pub fn known() -> Vec<&'static str> {
        let built_in = BUILT_IN.iter().flat_map(|(.., names)| names.iter().copied());
        built_in.chain(registered().into_iter().map(|function| function.name())).collect()
    }
}

/// A name that stands for no activation in this process.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown activation `{name}`; known are: {}", .known.join(", "))]
pub struct UnknownActivation {
    /// The name.
    pub name: String,
    /// The names of the activations that exist.
    pub known: Vec<&'static str>,
}

/// A name that cannot be given to an activation, because it is empty or taken.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is an activation `{name}` already, or the name is empty")]
pub struct TakenActivation {
    /// The name.
    pub name: &'static str,
}

impl From<Activation> for &'static str {
    fn from(function: Activation) -> Self {
        match function {
            Activation::Registered(function) => function.name(),
            _ => BUILT_IN.iter().find(|(built_in, ..)| *built_in == function).map_or("", |(_, sent, _)| sent),
        }
    }
}

impl TryFrom<String> for Activation {
    type Error = UnknownActivation;

    fn try_from(name: String) -> Result<Self, UnknownActivation> {
        let built_in = BUILT_IN.iter().find(|(_, sent, _)| *sent == name).map(|(function, ..)| *function);
        let found = built_in.or_else(|| RegisteredActivation::named(&name).map(Activation::Registered));
        found.ok_or_else(|| {
            let built_in = BUILT_IN.iter().map(|(_, sent, _)| *sent);
            let known = built_in.chain(registered().into_iter().map(|function| function.name())).collect();
            UnknownActivation { name, known }
        })
    }
}

/// An entrywise function of another crate.
pub trait ActivationFunction: 'static {
    /// The name that `config.json` uses for it, as in `"hidden_act": "quick_gelu"`.
    const NAME: &'static str;

    /// The function in the clear, which [`Float`] computes.
    fn exact(x: f32) -> f32;

    /// The function over an engine. `x` may have any shape, and the result has the same.
    ///
    /// The function is a composition of the engine's operations and reveals what these reveal, which is nothing
    /// unless one of them is a selection. Entries of `x` are below 2^10 in magnitude. The inputs of every operation
    /// in the composition must be, too. The errors of the operations add up. The tests of `engine` and `protocols`
    /// name the error of each operation.
    fn apply<E: Engine>(engine: &mut E, x: &E::Tensor) -> Result<E::Tensor, waggle_engine::Error>;
}

/// A registered function, which its name identifies.
#[derive(Clone, Copy)]
pub struct RegisteredActivation(&'static Entry);

struct Entry {
    name: &'static str,
    /// An [`Apply`] for each engine on which the function runs.
    functions: Vec<Box<dyn Any + Send + Sync>>,
}

type Apply<E> = fn(&mut E, &<E as Engine>::Tensor) -> Result<<E as Engine>::Tensor, waggle_engine::Error>;

/// All registered functions. A function stays registered until the process ends.
static ENTRIES: RwLock<Vec<RegisteredActivation>> = RwLock::new(Vec::new());

fn registered() -> Vec<RegisteredActivation> {
    ENTRIES.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Functions are equal if their names are equal.
impl PartialEq for RegisteredActivation {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for RegisteredActivation {}

impl fmt::Debug for RegisteredActivation {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl RegisteredActivation {
    /// The name that `config.json` uses for the function.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    fn named(name: &str) -> Option<Self> {
        registered().into_iter().find(|function| function.name() == name)
    }

    /// Applies the function to `x`.
    pub(crate) fn apply<E: Engine>(self, engine: &mut E, x: &E::Tensor) -> Result<E::Tensor, waggle_engine::Error> {
        match self.0.functions.iter().find_map(|function| function.downcast_ref::<Apply<E>>()) {
            Some(apply) => engine.scope(self.name(), |engine| apply(engine, x)),
            None => Err(waggle_engine::Error::NotRegistered {
                function: self.name().to_owned(),
                engine: std::any::type_name::<E>(),
            }),
        }
    }
}

/// A function and the engines on which it runs, before it is registered.
pub struct Functions(Vec<Box<dyn Any + Send + Sync>>);

impl Functions {
    /// The function `A` on [`Float`], where it is exact.
    pub fn exact<A: ActivationFunction>() -> Self {
        let exact: Apply<Float> = |_: &mut Float, x: &ArrayD<f32>| Ok(x.mapv(A::exact));
        Functions(vec![Box::new(exact)])
    }

    /// Adds the function on the engine `E`.
    pub fn on<A: ActivationFunction, E: Engine>(mut self) -> Self {
        let apply: Apply<E> = A::apply::<E>;
        self.0.push(Box::new(apply));
        self
    }

    /// Registers `A` under its name. Fails if the name is empty or already taken.
    pub fn register<A: ActivationFunction>(self) -> Result<(), TakenActivation> {
        let name = A::NAME;
        let built_in = BUILT_IN.iter().any(|(_, sent, names)| *sent == name || names.contains(&name));
        // A writer only pushes whole entries, so a poisoned lock is harmless.
        let mut entries = ENTRIES.write().unwrap_or_else(PoisonError::into_inner);
        if built_in || name.is_empty() || entries.iter().any(|entry| entry.name() == name) {
            return Err(TakenActivation { name });
        }
        entries.push(RegisteredActivation(Box::leak(Box::new(Entry { name, functions: self.0 }))));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_on_the_wire_and_in_configurations_are_told_apart_and_stay() {
        for (function, sent, names) in BUILT_IN {
            assert_eq!(serde_json::to_string(function).unwrap(), format!("\"{sent}\""));
            assert_eq!(serde_json::from_str::<Activation>(&format!("\"{sent}\"")).unwrap(), *function);
            assert!(names.iter().all(|name| Activation::published(name) == Some(*function)));
        }
        let unknown = serde_json::from_str::<Activation>("\"gelu_new\"").unwrap_err().to_string();
        assert!(unknown.starts_with("unknown activation `gelu_new`; known are: gelu_tanh, gelu_erf, silu, relu"));
    }
}
