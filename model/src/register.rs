//! What other crates add: policies and activations, on all engines that there are.
//!
//! This crate is the lowest one that knows every engine, in the clear, in fixed point, between two parties and as a
//! plan. What is registered here has its name wherever names are read in this process: on a command line, in a
//! `config.json`, in the terms of a session, in a report. Both parties of a session register it.

use engine::Float;
use mpcache::{PolicyFamily, Registration};
use protocols::{Fixed, Plan, Secure};
use thiserror::Error;

use crate::activation::{ActivationFunction, Functions};

/// What cannot be registered.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RegisterError {
    /// A policy.
    #[error(transparent)]
    Policy(#[from] mpcache::RegisterError),
    /// An activation whose name is empty, or that of another.
    #[error("there is an activation `{name}` already, or the name is empty")]
    Activation {
        /// The name.
        name: &'static str,
    },
}

/// Makes the policies of the family `F` known by name. A family that is known already stays as it is.
///
/// # Errors
/// [`RegisterError::Policy`] for a name that is taken or is none.
pub fn register_policy<F: PolicyFamily + Send + Sync>() -> Result<(), RegisterError> {
    Ok(Registration::<F>::new().on::<Float>().on::<Fixed>().on::<Secure>().on::<Plan>().register()?)
}

/// Makes the activation `A` known by name.
///
/// # Errors
/// [`RegisterError::Activation`] for a name that is taken.
pub fn register_activation<A: ActivationFunction>() -> Result<(), RegisterError> {
    Functions::exact::<A>().on::<A, Fixed>().on::<A, Secure>().on::<A, Plan>().register::<A>()
}
