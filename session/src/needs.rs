//! The needs of a session in two phases, from shapes alone.

use model::{Hooks, Model, ModelSpec, Next, Passes, Sampler, generate};
use planner::{Plan, Planner};
use protocols::{FixedLoader, Needs};

use crate::Error;
use crate::terms::{Observer, Request, Terms};

/// Ends planning when the observer says that nobody wants it any more; passes keep what the schedule says.
pub(crate) struct Planning<'a> {
    pub(crate) observer: &'a dyn Observer,
    pub(crate) schedule: Passes,
}

impl Hooks<Plan> for Planning<'_> {
    fn go_on(&mut self) -> Result<(), model::Error> {
        self.observer.go_on()
    }

    fn agree_to_keep(&mut self, _: &mut Plan, most: usize, _: Option<usize>) -> Result<usize, engine::Error> {
        Ok(self.schedule.next(most))
    }
}

/// The correlations that a two-phase session takes from its stock, and therefore prepares: from shapes alone, the
/// same for both parties. With a draft they are those of a session whose passes keep as many tokens as expected
/// ([`Drafts::rate`](model::Drafts::rate)). The observer may end it: it takes a while, and no message comes
/// meanwhile.
pub(crate) fn needs(
    spec: &ModelSpec,
    frac_bits: &[u32],
    terms: &Terms,
    request: &Request,
    observer: &dyn Observer,
) -> Result<Needs, Error> {
    Ok(listing(spec, frac_bits, terms, request, Passes::expected(request.draft), observer)?.needs())
}

/// The plan that lists them, whose passes keep what `schedule` says.
pub(crate) fn listing(
    spec: &ModelSpec,
    frac_bits: &[u32],
    terms: &Terms,
    request: &Request,
    schedule: Passes,
    observer: &dyn Observer,
) -> Result<Planner, Error> {
    let mut engine = Planner::listing(terms.protocol).engine();
    let weights = Model::load_for(&terms.policy, &mut FixedLoader::announced(frac_bits)?, spec, None)?;
    let input = request.input();
    let mut unused = Sampler::greedy();
    let mut hooks = Planning { observer, schedule };
    let next = Next::Pick(&mut unused);
    generate(&mut engine, &weights, input, &request.options(terms), next, &mut hooks)?;
    Ok(engine.into_abb())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use model::Lengths;

    use super::*;
    use crate::terms::tests::{llama, two_phases};

    /// Gives up when it is asked for the third time.
    #[derive(Default)]
    struct Impatient(Cell<usize>);

    impl Observer for Impatient {
        fn abandoned(&self) -> bool {
            self.0.set(self.0.get() + 1);
            self.0.get() >= 3
        }
    }

    #[test]
    fn planning_ends_when_nobody_wants_it() {
        let spec = llama(1);
        let frac_bits = vec![protocols::DEFAULT_WEIGHT_FRAC; spec.weight_specs().len()];
        let request = Request::from(Lengths { prompt: 2, tokens: 1000 });
        let observer = Impatient::default();
        let planned = needs(&spec, &frac_bits, &two_phases(), &request, &observer);
        assert!(matches!(planned, Err(Error::Model(model::Error::Abandoned))));
        assert_eq!(observer.0.get(), 3);
    }
}
