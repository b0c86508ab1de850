//! The needs of a session in two phases, from shapes alone.

use waggle_model::{Hooks, Known, Next, Passes, Sampler, Step, generate};
use waggle_planner::{Plan, Planner};
use waggle_protocols::{FixedLoader, Needs};

use crate::Error;
use crate::terms::{Observer, PublicModel, Request, Terms};

/// Ends planning when the observer says that nobody wants it any more; passes keep what the schedule says.
pub(crate) struct Planning<'a> {
    observer: &'a dyn Observer,
    schedule: Passes,
    by_pass: Option<&'a mut ByPass>,
}

impl<'a> Planning<'a> {
    pub(crate) fn new(observer: &'a dyn Observer, schedule: Passes) -> Self {
        Planning { observer, schedule, by_pass: None }
    }
}

/// The needs of each pass.
#[derive(Default)]
struct ByPass {
    /// Those so far, of all passes.
    before: Needs,
    each: Vec<Needs>,
}

impl ByPass {
    /// A pass is over, and all passes so far need `needs`.
    fn end(&mut self, needs: Needs) {
        self.each.push(needs.since(&self.before));
        self.before = needs;
    }
}

impl Hooks<Plan> for Planning<'_> {
    fn begin(&mut self, engine: &mut Plan, step: Step) -> Result<(), waggle_engine::Error> {
        if let (Some(by_pass), Step::Decode { .. }) = (&mut self.by_pass, step) {
            by_pass.end(engine.abb().needs());
        }
        Ok(())
    }

    fn go_on(&mut self) -> Result<(), waggle_model::Error> {
        self.observer.go_on()
    }

    fn agree_to_keep(&mut self, _: &mut Plan, most: usize, _: Option<usize>) -> Result<usize, waggle_engine::Error> {
        Ok(self.schedule.next(most))
    }
}

/// The correlations that a two-phase session takes from its stock, and therefore prepares: from shapes alone, the
/// same for both parties. With a draft they are those of a session whose passes keep as many tokens as expected
/// ([`Drafts::rate`](waggle_model::Drafts::rate)). The observer may end it: it takes a while, and no message comes
/// meanwhile.
pub(crate) fn needs(
    model: &PublicModel,
    terms: &Terms,
    request: &Request,
    observer: &dyn Observer,
) -> Result<Needs, Error> {
    Ok(listing(model, terms, request, Passes::expected(request.draft), observer)?.needs())
}

/// The needs of each pass of a session without a draft.
pub(crate) fn needs_by_pass(
    model: &PublicModel,
    terms: &Terms,
    request: &Request,
    observer: &dyn Observer,
) -> Result<Vec<Needs>, Error> {
    let mut by_pass = ByPass::default();
    let listed = run(model, terms, request, Passes::expected(None), Some(&mut by_pass), observer)?;
    by_pass.end(listed.needs());
    Ok(by_pass.each)
}

/// All that `passes` need.
pub(crate) fn together(passes: &[Needs]) -> Needs {
    passes.iter().cloned().fold(Needs::default(), |mut all, pass| {
        all.add(pass);
        all
    })
}

/// The plan that lists them, whose passes keep what `schedule` says.
pub(crate) fn listing(
    model: &PublicModel,
    terms: &Terms,
    request: &Request,
    schedule: Passes,
    observer: &dyn Observer,
) -> Result<Planner, Error> {
    run(model, terms, request, schedule, None, observer)
}

fn run(
    model: &PublicModel,
    terms: &Terms,
    request: &Request,
    schedule: Passes,
    by_pass: Option<&mut ByPass>,
    observer: &dyn Observer,
) -> Result<Planner, Error> {
    let mut engine = Planner::listing(terms.protocol).engine();
    let weights = model.load(&terms.policy, &mut FixedLoader::announced(&model.frac_bits)?, Known::Nothing)?;
    let input = request.input();
    let mut unused = Sampler::greedy();
    let mut hooks = Planning { by_pass, ..Planning::new(observer, schedule) };
    let next = Next::Pick(&mut unused);
    generate(&mut engine, &weights, input, &request.options(terms), next, &mut hooks)?;
    Ok(engine.into_abb())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use waggle_model::{Disclosed, Lengths};

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
        let model = PublicModel::of_shape(String::new(), llama(1), Disclosed::default()).unwrap();
        let request = Request::from(Lengths { prompt: 2, tokens: 1000 });
        let observer = Impatient::default();
        let planned = needs(&model, &two_phases(), &request, &observer);
        assert!(matches!(planned, Err(Error::Model(waggle_model::Error::Abandoned))));
        assert_eq!(observer.0.get(), 3);
    }
}
