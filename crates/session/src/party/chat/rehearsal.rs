//! The needs of a turn, from shapes alone, by a plan that goes on from the turns before it.

use waggle_model::{Input, Known, Lengths, Model, Next, Passes, Sampler, generate_with};
use waggle_mpcache::KvCache;
use waggle_planner::{Plan, Planner};
use waggle_protocols::{FixedWeight, Needs};

use super::super::{MAX_PLANNING_STEPS, Request, Watch};
use super::Setting;
use crate::Error;
use crate::needs::Planning;

/// Most steps of planning for all turns of a session together.
pub(super) const MAX_SESSION_STEPS: usize = 16 * MAX_PLANNING_STEPS;

/// The turns of a conversation, planned on shapes to find out their needs.
pub(super) struct Rehearsal {
    model: Model<FixedWeight>,
    /// Lengths of the turns so far.
    turns: Vec<Lengths>,
    /// The cache after the first `played` turns; `None` while `played` is 0.
    cache: Option<KvCache<Plan>>,
    played: usize,
    /// The turn that was planned last, with the cache after it, in case exactly this turn is taken.
    tried: Option<(Lengths, KvCache<Plan>)>,
    /// The last plan, because it holds the plans of single operations that were found so far.
    plan: Option<Plan>,
    /// Steps that were planned in the session.
    steps: usize,
}

impl Rehearsal {
    pub(super) fn new(setting: &Setting) -> Result<Self, Error> {
        let Setting { public, terms, .. } = setting;
        let model = public.shapes(terms, Known::Nothing)?;
        Ok(Rehearsal { model, turns: Vec::new(), cache: None, played: 0, tried: None, plan: None, steps: 0 })
    }

    /// Begins another conversation.
    pub(super) fn reset(&mut self) {
        self.turns.clear();
        (self.cache, self.played, self.tried) = (None, 0, None);
    }

    /// Whether no turn of this conversation was taken.
    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Notes that `turn` was taken.
    pub(super) fn took(&mut self, turn: Lengths) {
        self.turns.push(turn);
        if let Some((_, cache)) = self.tried.take().filter(|(tried, _)| *tried == turn) {
            (self.cache, self.played) = (Some(cache), self.turns.len());
        }
    }

    /// The steps that it takes to plan `turn`. They include turns before it that must be planned again, because they
    /// ended earlier than planned. Under a policy without a [fork](waggle_mpcache::Policy::fork) all turns before it
    /// are planned again.
    fn steps(&self, setting: &Setting, turn: Lengths) -> usize {
        let Setting { public, terms, .. } = setting;
        let (mut steps, mut before) = (0usize, 0usize);
        for (i, &lengths) in self.turns.iter().chain([&turn]).enumerate() {
            if i >= self.played {
                steps = steps.saturating_add(Request::from(lengths).steps_after(before, &public.spec, terms));
            }
            before = before.saturating_add(lengths.positions());
        }
        steps
    }

    /// Refuses a turn that takes too long to plan, alone or with all that was planned in this session.
    pub(super) fn check(&self, setting: &Setting, turn: Lengths) -> Result<(), Error> {
        if !setting.terms.protocol.preprocess {
            return Ok(());
        }
        let (steps, layers) = (self.steps(setting, turn), setting.public.spec.layers());
        if steps > MAX_PLANNING_STEPS {
            return Err(Error::Planning { tokens: turn.tokens, layers, steps, limit: MAX_PLANNING_STEPS });
        }
        if steps > MAX_SESSION_STEPS.saturating_sub(self.steps) {
            return Err(Error::SessionPlanning { spent: self.steps, steps, limit: MAX_SESSION_STEPS });
        }
        Ok(())
    }

    /// The needs of `turn` after the turns so far.
    pub(super) fn needs(&mut self, setting: &Setting, turn: Lengths, watch: &mut Watch) -> Result<Needs, Error> {
        self.steps = self.steps.saturating_add(self.steps(setting, turn));
        let options = setting.terms.protocol;
        let listing = |plan: Option<Plan>| match plan {
            Some(plan) => Planner::listing(options).with_plans_of(plan.into_abb()).engine(),
            None => Planner::listing(options).engine(),
        };
        let mut plan = listing(self.plan.take());
        let mut cache = self.cache.take().unwrap_or_else(|| self.model.cache(&setting.terms.policy));
        for lengths in &self.turns[self.played..] {
            self.play(&mut plan, &mut cache, setting, *lengths, watch)?;
        }
        (self.cache, self.played) = match cache.fork() {
            Some(fork) => (Some(fork), self.turns.len()),
            None => (None, 0),
        };
        let mut plan = listing(Some(plan));
        self.play(&mut plan, &mut cache, setting, turn, watch)?;
        let needs = plan.abb().needs();
        (self.tried, self.plan) = (Some((turn, cache)), Some(plan));
        Ok(needs)
    }

    fn play(
        &self,
        plan: &mut Plan,
        cache: &mut KvCache<Plan>,
        setting: &Setting,
        turn: Lengths,
        watch: &mut Watch,
    ) -> Result<(), Error> {
        let input = Input::unknown(turn.prompt);
        let options = Request::from(turn).options(setting.terms);
        let mut unused = Sampler::greedy();
        let hooks = &mut Planning::new(watch, Passes::expected(None));
        generate_with(plan, &self.model, cache, input, &options, Next::Pick(&mut unused), hooks)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::party::{PublicModel, Terms, nobody};
    use crate::request::tests::{llama, two_phases};
    use waggle_model::Disclosed;

    const TURNS: [(Lengths, usize); 4] = [
        (Lengths { prompt: 9, tokens: 4 }, 4),
        (Lengths { prompt: 3, tokens: 6 }, 2),
        (Lengths { prompt: 11, tokens: 5 }, 5),
        (Lengths { prompt: 1, tokens: 6 }, 1),
    ];

    /// A plan that goes on from earlier turns lists the same needs as a plan from the first turn on.
    #[test]
    fn a_turn_needs_what_a_plan_of_all_turns_says() {
        let public = PublicModel::of_shape(String::new(), llama(2), Disclosed::default()).unwrap();
        let policies = [
            "full",
            "streaming:budget=8,block=4",
            "snapkv:budget=8,block=4,window=4",
            "h2o:budget=8,block=4",
            "tova:budget=8,block=4",
            "keyformer:budget=8,block=4,recent=2",
            "knorm:budget=8",
            "mpcache:clusters=8/4,budget=0.3",
            "quest:budget=0.4",
        ];
        for policy in policies {
            let terms = Terms { policy: policy.parse().unwrap(), ..two_phases() };
            let model = public.shapes(&terms, Known::Nothing);
            let bound = Request::from(Lengths { prompt: 12, tokens: 6 });
            let setting = Setting { public: &public, model: &model.unwrap(), terms: &terms, bound: &bound };
            let mut goes_on = Rehearsal::new(&setting).unwrap();
            for (turn, count) in TURNS {
                let mut anew = Rehearsal::new(&setting).unwrap();
                anew.turns.clone_from(&goes_on.turns);
                let whole = anew.needs(&setting, turn, &mut nobody).unwrap();
                // A plan for another turn in between changes nothing.
                goes_on.needs(&setting, bound.lengths, &mut nobody).unwrap();
                assert_eq!(goes_on.needs(&setting, turn, &mut nobody).unwrap(), whole, "{policy}, {turn:?}");
                assert_eq!(goes_on.played, goes_on.turns.len());
                goes_on.took(Lengths { tokens: count, ..turn });
            }
        }
    }

    #[test]
    fn a_session_plans_a_bounded_number_of_steps() {
        let public = PublicModel::of_shape(String::new(), llama(8), Disclosed::default()).unwrap();
        let (terms, bound) = (two_phases(), Request::from(Lengths { prompt: 12, tokens: 6 }));
        let model = public.shapes(&terms, Known::Nothing).unwrap();
        let setting = Setting { public: &public, model: &model, terms: &terms, bound: &bound };
        let mut rehearsal = Rehearsal::new(&setting).unwrap();
        rehearsal.needs(&setting, bound.lengths, &mut nobody).unwrap();
        let once = rehearsal.steps;
        assert_eq!(once, 8 * (6 + 1 + 8));
        rehearsal.steps = MAX_SESSION_STEPS - once;
        rehearsal.check(&setting, bound.lengths).unwrap();
        rehearsal.needs(&setting, bound.lengths, &mut nobody).unwrap();
        let refused = rehearsal.check(&setting, Lengths { prompt: 1, tokens: 1 }).unwrap_err();
        assert!(matches!(refused, Error::SessionPlanning { spent: MAX_SESSION_STEPS, .. }), "{refused}");
        // Another conversation of the session does not begin with new steps.
        rehearsal.reset();
        rehearsal.check(&setting, bound.lengths).unwrap_err();
        let long = Lengths { prompt: 1, tokens: MAX_PLANNING_STEPS };
        assert!(matches!(rehearsal.check(&setting, long), Err(Error::Planning { .. })));
    }
}
