//! Additions of other crates: policies and activations, on all engines that there are.
//!
//! This crate is the lowest one that knows every engine, in the clear, in fixed point, between two parties and as a
//! plan. A registered item has its name wherever names are read in this process: on a command line, in a
//! `config.json`, in the terms of a session, in a report. Both parties of a session register it.

use thiserror::Error;
use waggle_engine::Float;
use waggle_model::{ActivationFunction, Functions, TakenActivation};
use waggle_mpcache::{PolicyFamily, Registration};
use waggle_planner::Plan;
use waggle_protocols::{Fixed, Secure};

/// Why an addition cannot be registered.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The policy cannot be registered.
    #[error(transparent)]
    Policy(#[from] waggle_mpcache::RegisterError),
    /// The activation cannot be registered.
    #[error(transparent)]
    Activation(#[from] TakenActivation),
}

/// Makes the policies of the family `F` known by name. A family that is known already stays as it is.
///
/// # Errors
/// [`RegisterError::Policy`] for a name that is taken or malformed.
pub fn register_policy<F: PolicyFamily + Send + Sync>() -> Result<(), RegisterError> {
    Ok(Registration::<F>::new().on::<Float>().on::<Fixed>().on::<Secure>().on::<Plan>().register()?)
}

/// Makes the activation `A` known by name.
///
/// # Errors
/// [`RegisterError::Activation`] for a name that is taken.
pub fn register_activation<A: ActivationFunction>() -> Result<(), RegisterError> {
    Ok(Functions::exact::<A>().on::<A, Fixed>().on::<A, Secure>().on::<A, Plan>().register::<A>()?)
}

#[cfg(test)]
mod tests {
    use waggle_engine::Engine;
    use waggle_model::Activation;

    use super::*;

    struct Squared;

    impl ActivationFunction for Squared {
        const NAME: &'static str = "squared_relu_of_the_tests";

        fn exact(x: f32) -> f32 {
            x.max(0.0).powi(2)
        }

        fn apply<E: Engine>(engine: &mut E, x: &E::Tensor) -> Result<E::Tensor, waggle_engine::Error> {
            let positive = engine.relu(x)?;
            engine.mul(&positive, &positive)
        }
    }

    /// A function under a name that is taken.
    struct Silu;

    impl ActivationFunction for Silu {
        const NAME: &'static str = "swish";

        fn exact(x: f32) -> f32 {
            x
        }

        fn apply<E: Engine>(_: &mut E, x: &E::Tensor) -> Result<E::Tensor, waggle_engine::Error> {
            Ok(x.clone())
        }
    }

    #[test]
    fn a_registered_function_has_a_name_once() {
        assert_eq!(Activation::published(Squared::NAME), None);
        register_activation::<Squared>().unwrap();
        let function = Activation::published(Squared::NAME).unwrap();
        let sent = serde_json::to_string(&function).unwrap();
        assert_eq!(serde_json::from_str::<Activation>(&sent).unwrap(), function);
        assert!(Activation::known().contains(&Squared::NAME));
        for again in [register_activation::<Squared>(), register_activation::<Silu>()] {
            assert!(matches!(again, Err(RegisterError::Activation(_))), "{again:?}");
        }
    }
}
