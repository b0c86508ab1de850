//! The correlations that a session in two phases needs, from shapes alone.

use waggle_model::{Hooks, Known, Next, Passes, Sampler, Step, generate};
use waggle_planner::{Plan, Planner};
use waggle_protocols::Needs;

use crate::Error;
use crate::event::{self, Watch};
use crate::public_model::PublicModel;
use crate::request::Request;
use crate::terms::Terms;

/// Hooks of a plan that lists needs. They end the planning when the watch says that nobody wants it any more, and let
/// passes keep as many tokens as the schedule says.
pub(crate) struct Planning<'a> {
    watch: &'a mut Watch<'a>,
    schedule: Passes,
    by_pass: Option<&'a mut ByPass>,
}

impl<'a> Planning<'a> {
    pub(crate) fn new(watch: &'a mut Watch<'a>, schedule: Passes) -> Self {
        Planning { watch, schedule, by_pass: None }
    }
}

/// The needs of each pass.
#[derive(Default)]
struct ByPass {
    /// The needs of all passes so far together.
    before: Needs,
    each: Vec<Needs>,
}

impl ByPass {
    /// Notes the end of a pass. All passes so far need `needs` together.
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
        event::go_on(self.watch)
    }

    fn agree_to_keep(&mut self, _: &mut Plan, most: usize, _: Option<usize>) -> Result<usize, waggle_engine::Error> {
        Ok(self.schedule.next(most))
    }
}

/// The correlations that a two-phase session takes from its stock, and therefore prepares. They follow from shapes
/// alone, and are the same for both parties. With a draft these are the needs of a session whose passes keep as many
/// tokens as expected ([`Drafts::rate`](waggle_model::Drafts::rate)). The watch may end the planning, which takes a
/// while without any message.
pub(crate) fn needs(
    model: &PublicModel,
    terms: &Terms,
    request: &Request,
    watch: &mut Watch,
) -> Result<Needs, Error> {
    Ok(listing(model, terms, request, Passes::expected(request.draft), watch)?.needs())
}

/// The needs of each pass of a session without a draft.
pub(crate) fn needs_by_pass(
    model: &PublicModel,
    terms: &Terms,
    request: &Request,
    watch: &mut Watch,
) -> Result<Vec<Needs>, Error> {
    let mut by_pass = ByPass::default();
    let listed = run(model, terms, request, Passes::expected(None), Some(&mut by_pass), watch)?;
    by_pass.end(listed.needs());
    Ok(by_pass.each)
}

/// The needs of all `passes` together.
pub(crate) fn together(passes: &[Needs]) -> Needs {
    passes.iter().cloned().fold(Needs::default(), |mut all, pass| {
        all.add(pass);
        all
    })
}

/// A plan of the generation, as the planner that lists its needs. Passes keep as many tokens as `schedule` says.
pub(crate) fn listing(
    model: &PublicModel,
    terms: &Terms,
    request: &Request,
    schedule: Passes,
    watch: &mut Watch,
) -> Result<Planner, Error> {
    run(model, terms, request, schedule, None, watch)
}

fn run(
    model: &PublicModel,
    terms: &Terms,
    request: &Request,
    schedule: Passes,
    by_pass: Option<&mut ByPass>,
    watch: &mut Watch,
) -> Result<Planner, Error> {
    let mut engine = Planner::listing(terms.protocol).engine();
    let weights = model.shapes(terms, Known::Nothing)?;
    let input = request.input();
    let mut unused = Sampler::greedy();
    let mut hooks = Planning { by_pass, ..Planning::new(watch, schedule) };
    let next = Next::Pick(&mut unused);
    generate(&mut engine, &weights, input, &request.options(terms), next, &mut hooks)?;
    Ok(engine.into_abb())
}

#[cfg(test)]
mod tests {
    use waggle_model::{Disclosed, Lengths};

    use super::*;
    use crate::event::Flow;
    use crate::request::tests::{llama, two_phases};

    #[test]
    fn planning_ends_when_nobody_wants_it() {
        let model = PublicModel::of_shape(String::new(), llama(1), Disclosed::default()).unwrap();
        let request = Request::from(Lengths { prompt: 2, tokens: 1000 });
        let mut asked = 0;
        let planned = needs(&model, &two_phases(), &request, &mut |_| {
            asked += 1;
            if asked < 3 { Flow::GoOn } else { Flow::Abandon }
        });
        assert!(matches!(planned, Err(Error::Model(waggle_model::Error::Abandoned))));
        assert_eq!(asked, 3);
    }
}
