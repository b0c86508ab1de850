//! What both parties of a chat have and do alike.

use mpcache::{KvCache, PolicySpec};
use net::{Channel, Phase, Traffic};
use protocols::functions::softmax::MAX_SOFTMAX_COLUMNS;
use protocols::{FixedLoader, FixedWeight, Needs, Plan, Secure, check_space};
use serde::{Deserialize, Serialize};

use super::super::opening;
use super::super::recorder::{Booked, Recorder, finish};
use super::super::{Observer, Outcome, PublicModel, Request, Silent, Terms};
use super::{SCOPE, Turn, slices};
use crate::generate::{check_lengths, check_padding, generate_with};
use crate::report::{Cost, DecodeCost, Phases, TokenMeter};
use crate::{Error, Generation, Hooks, Input, Lengths, Model, ModelSpec, Next, Sampler};

/// All phases, in the order of their numbers.
const PHASES: [Phase; 4] = [Phase::Setup, Phase::Offline, Phase::Prefill, Phase::Decode];

/// What a turn took.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TurnCost {
    /// Since the turn before: `offline` is what was prepared while nobody waited, and `setup` the waiting itself.
    pub before: Phases,
    /// From the command to the end of the answer. `offline` is what was prepared when the lengths were known.
    pub phases: Phases,
}

/// What a chat is about, the same at both parties.
pub(in super::super) struct Setting<'a> {
    /// What is public about the model.
    pub(in super::super) public: &'a PublicModel,
    /// Its weights, on the server; its shapes on the client.
    pub(in super::super) model: &'a Model<FixedWeight>,
    /// What the parties agree on.
    pub(in super::super) terms: &'a Terms,
    /// The longest turn, and whether an answer ends at the end of a text.
    pub(in super::super) bound: &'a Request,
}

/// A conversation: the private cache, and the lengths of the turns in it.
pub(super) struct Conversation {
    pub(super) engine: Secure,
    cache: KvCache<Secure>,
    /// Lengths of the turns that the cache holds.
    turns: Vec<Lengths>,
    /// What a turn of the greatest lengths would need next, once that is known.
    ahead: Option<Needs>,
    /// Costs of tokens so far.
    meter: TokenMeter,
    /// Accounts of the phases at the end of the turn before.
    settled: [Traffic; PHASES.len()],
    /// Tokens read and generated in all conversations of the session.
    pub(super) read: usize,
    pub(super) generation: Generation,
}

/// Refuses a policy that would not do in a conversation what it does in a generation: one whose budget is a share of
/// the prompt would cut the first turn alone, and most would choose among the padding of earlier answers.
pub(in super::super) fn check_talk(policy: &PolicySpec, bound: &Request) -> Result<(), Error> {
    check_padding(bound.pad_answer, policy)?;
    let settings = policy.settings();
    let has = |key: &str| settings.iter().any(|setting| setting.key == key);
    // A policy with blocks has none where its budget is a share of the prompt.
    let of_prompt = has("budget") && policy.takes("block") && !has("block");
    if of_prompt { Err(Error::TalkPolicy { policy: policy.to_string() }) } else { Ok(()) }
}

impl Conversation {
    /// Sets up OTs with the peer.
    pub(super) fn begin(channel: Channel, setting: &Setting) -> Result<Self, Error> {
        let mut engine = Secure::new(channel, setting.terms.protocol)?;
        engine.ledger().set_phase(Phase::Setup);
        engine.ledger().enter(SCOPE);
        Ok(Conversation {
            engine,
            cache: setting.model.cache(&setting.terms.policy),
            turns: Vec::new(),
            ahead: None,
            meter: TokenMeter::default(),
            settled: Default::default(),
            read: 0,
            generation: Generation::default(),
        })
    }

    /// Drops the cache: another conversation begins.
    pub(super) fn reset(&mut self, setting: &Setting) {
        self.cache = setting.model.cache(&setting.terms.policy);
        self.engine.forget_operands();
        self.turns.clear();
        self.ahead = None;
    }

    /// Positions that are taken, and those of the model.
    pub(super) fn positions(&self, spec: &ModelSpec) -> (usize, usize) {
        let used = self.cache.tokens();
        let all = spec.max_positions_of(self.cache.text().filter(|_| used > 0));
        (used, all.min(MAX_SOFTMAX_COLUMNS))
    }

    /// Refuses a turn that is longer than was agreed, does not fit what is left of the model, or takes too long to
    /// plan.
    pub(super) fn check(&self, setting: &Setting, turn: Lengths) -> Result<(), Error> {
        check_lengths(turn, setting.bound.lengths, usize::MAX)?;
        let (used, limit) = self.positions(&setting.public.spec);
        if turn.positions() > limit - used.min(limit) {
            return Err(Error::Full { used, wanted: turn.positions(), limit });
        }
        self.check_planning(setting, turn)
    }

    fn check_planning(&self, setting: &Setting, turn: Lengths) -> Result<(), Error> {
        let all = self.turns.iter().chain([&turn]).fold(Lengths { prompt: 0, tokens: 0 }, |all, turn| Lengths {
            prompt: all.prompt.saturating_add(turn.prompt),
            tokens: all.tokens.saturating_add(turn.tokens),
        });
        Request::from(all).check_planning(&setting.public.spec, setting.terms)
    }

    /// Makes the first `count` slices of what a turn of the greatest lengths needs, as far as they are not there.
    pub(super) fn prepare(
        &mut self,
        setting: &Setting,
        count: usize,
        observer: &mut dyn Observer,
    ) -> Result<(), Error> {
        let needs = self.ahead(setting, observer)?.share(count, slices(setting.bound.lengths));
        self.make(setting, &needs, observer)
    }

    /// Refuses slices that there are not.
    pub(super) fn check_slices(&self, setting: &Setting, count: usize) -> Result<(), Error> {
        let limit = slices(setting.bound.lengths);
        if !setting.terms.protocol.preprocess {
            return Err(Error::Phases { expected: false, got: true });
        }
        if count > limit {
            return Err(Error::Limit { what: "slices of a turn", got: count, limit });
        }
        self.check_planning(setting, self.longest(setting))
    }

    /// The longest turn that fits.
    fn longest(&self, setting: &Setting) -> Lengths {
        let Lengths { prompt, tokens } = setting.bound.lengths;
        let (used, limit) = self.positions(&setting.public.spec);
        // The last token is not read.
        let left = (limit + 1).saturating_sub(used);
        let prompt = prompt.min(left.saturating_sub(1)).max(1);
        Lengths { prompt, tokens: tokens.min(left.saturating_sub(prompt)).max(1) }
    }

    /// What the longest turn would need, without the masks of keys and values.
    fn ahead(&mut self, setting: &Setting, observer: &dyn Observer) -> Result<&Needs, Error> {
        let needs = match self.ahead.take() {
            Some(needs) => needs,
            None => self.needs(setting, self.longest(setting), observer)?.without_operands(),
        };
        Ok(self.ahead.insert(needs))
    }

    /// What `turn` needs after the turns so far.
    fn needs(&self, setting: &Setting, turn: Lengths, observer: &dyn Observer) -> Result<Needs, Error> {
        let Setting { public, terms, .. } = setting;
        let weights =
            Model::load_for(&terms.policy, &mut FixedLoader::announced(&public.frac_bits)?, &public.spec, None)?;
        let mut plan = Plan::listing(terms.protocol);
        let mut cache = weights.cache(&terms.policy);
        let mut before = Needs::default();
        for (i, lengths) in self.turns.iter().chain([&turn]).enumerate() {
            if i == self.turns.len() {
                before = plan.needs();
            }
            let input = Input { ids: None, count: lengths.prompt };
            let options = Request::from(*lengths).options(terms);
            let mut unused = Sampler::greedy();
            let hooks = &mut Planning { observer };
            generate_with(&mut plan, &weights, &mut cache, input, &options, Next::Pick(&mut unused), hooks)?;
        }
        Ok(plan.needs().since(&before))
    }

    /// Makes what of `needs` is not there.
    fn make(&mut self, setting: &Setting, needs: &Needs, observer: &mut dyn Observer) -> Result<(), Error> {
        let bytes = needs.bytes(self.engine.channel().role());
        check_space(bytes).map_err(protocols::Error::from)?;
        let weights = setting.model.weights();
        let progress = &mut |made| observer.prepare(made);
        Ok(self.engine.prepare_more(needs, self.cache.operands(), &weights, progress)?)
    }

    /// Runs a turn that [`Conversation::check`] allows; the client passes the `ids` of its prompt.
    pub(super) fn turn(
        &mut self,
        setting: &Setting,
        turn: Lengths,
        ids: Option<&[u32]>,
        next: Next,
        observer: &mut dyn Observer,
    ) -> Result<Turn, Error> {
        if setting.terms.protocol.preprocess {
            let needs = self.needs(setting, turn, &*observer)?;
            self.make(setting, &needs, observer)?;
        }
        let input = Input { ids, count: turn.prompt };
        let options = Request { lengths: turn, ..*setting.bound }.options(setting.terms);
        let Conversation { engine, cache, meter, .. } = self;
        engine.ledger().leave();
        let mut recorder = Recorder::resuming(observer, std::mem::take(meter));
        let generation = generate_with(engine, setting.model, cache, input, &options, next, &mut recorder);
        *meter = recorder.into_meter();
        let generation = opening::complaining(engine.channel(), generation)?;
        engine.confirm_transcript()?;
        engine.ledger().set_phase(Phase::Setup);
        engine.ledger().enter(SCOPE);
        self.turns.push(Lengths { prompt: turn.prompt, tokens: generation.count });
        self.ahead = None;
        self.read += turn.prompt;
        self.generation.count += generation.count;
        self.generation.tokens.extend(&generation.tokens);
        Ok(Turn { prompt_tokens: turn.prompt, generation, cost: TurnCost::default() })
    }

    /// Cost by phase since this was last called, with that of the last `tokens` tokens.
    pub(super) fn settle(&mut self, tokens: usize) -> Phases {
        let ledger = self.engine.ledger();
        ledger.checkpoint();
        let now = PHASES.map(|phase| ledger.phase_total(phase));
        let before = std::mem::replace(&mut self.settled, now);
        let cost = |phase: Phase| Cost::from(now[phase as usize].since(&before[phase as usize]));
        let costs = self.meter.costs();
        Phases {
            setup: cost(Phase::Setup),
            offline: cost(Phase::Offline),
            prefill: cost(Phase::Prefill),
            decode: DecodeCost {
                total: cost(Phase::Decode),
                per_token: costs[costs.len() - tokens.min(costs.len())..].to_vec(),
            },
        }
    }

    /// What the session leaves.
    pub(super) fn finish(mut self, setting: &Setting) -> Outcome {
        let lengths = Lengths { prompt: self.read, tokens: self.generation.count };
        let mut silent = Silent;
        let recorder = Recorder::resuming(&mut silent, self.meter);
        let request = Request { lengths, ..*setting.bound };
        finish(&mut self.engine, setting.terms, &request, self.generation, recorder)
    }
}

/// Ends planning when the observer says that nobody wants it any more.
struct Planning<'a> {
    observer: &'a dyn Observer,
}

impl Hooks<Plan> for Planning<'_> {
    fn go_on(&mut self) -> Result<(), Error> {
        if self.observer.abandoned() { Err(Error::Abandoned) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_first_turn_is_no_budget_of_a_conversation() {
        let bound = Request::from(Lengths { prompt: 1, tokens: 1 });
        let check = |text: &str| check_talk(&text.parse().unwrap(), &bound);
        for policy in
            ["full", "streaming:budget=0.25", "snapkv:budget=64", "h2o", "mpcache", "knorm:budget=32", "quest"]
        {
            check(policy).unwrap();
        }
        for policy in ["snapkv", "pyramid:budget=0.5", "squeeze:layers=1", "mpcache-2pc", "knorm", "keyformer"] {
            let refused = check(policy).unwrap_err();
            assert!(matches!(refused, Error::TalkPolicy { .. }), "{policy}");
            assert!(refused.to_string().contains(policy), "{refused}");
        }
    }
}
