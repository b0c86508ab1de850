//! State and steps that both parties of a chat have in common.

use serde::{Deserialize, Serialize};
use waggle_model::{Generation, Input, Lengths, ModelSpec, Next, check_padding, generate_with};
use waggle_mpcache::{KvCache, PolicySpec};
use waggle_net::{Channel, Phase, Traffic};
use waggle_protocols::functions::softmax::MAX_SOFTMAX_COLUMNS;
use waggle_protocols::{Needs, Secure, check_space};
use waggle_report::{Cost, DecodeCost, Phases, TokenMeter};

use super::super::recorder::{Booked, Recorder, finish};
use super::super::{Event, Outcome, Request, Watch, nobody, opening};
use super::rehearsal::Rehearsal;
use super::{SCOPE, Setting, Turn, slices};
use crate::Error;
use crate::request::check_bounded;

/// All phases, in the order of their numbers.
const PHASES: [Phase; 4] = [Phase::Setup, Phase::Offline, Phase::Prefill, Phase::Decode];

/// The cost of a turn.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TurnCost {
    /// The cost between the turn before and this one: `offline` is what was prepared while nobody waited for an
    /// answer, and `setup` is the time in which nothing happened, with the commands.
    pub before: Phases,
    /// The cost from the command to the end of the answer. `offline` is what was still prepared once the lengths of
    /// the turn were known.
    pub phases: Phases,
}

/// The positions of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Positions {
    /// Positions that are taken.
    pub used: usize,
    /// Positions of the model or, if fewer, those that the server allows.
    pub limit: usize,
}

/// A conversation: the private cache, and the lengths of the turns in it.
pub(super) struct Conversation {
    pub(super) engine: Secure,
    cache: KvCache<Secure>,
    /// Most positions of a conversation, as the server says.
    pub(super) limit: usize,
    /// The turns that the cache holds, for planning; `None` in a session of one phase.
    rehearsal: Option<Rehearsal>,
    /// The needs of the longest next turn, once they are planned.
    ahead: Option<Needs>,
    /// The needs of the longest turn of an empty conversation, once they are planned.
    first: Option<Needs>,
    /// Costs of tokens so far.
    meter: TokenMeter,
    /// The traffic of each phase at the end of the turn before.
    settled: [Traffic; PHASES.len()],
    /// Tokens read in all conversations of the session; `generation` has the generated ones.
    pub(super) read: usize,
    pub(super) generation: Generation,
}

/// Refuses a policy that would not do in a conversation what it does in a generation. A policy whose budget is a
/// share of the prompt would cut the first turn alone. Where answers are padded, most policies would choose among the
/// padding of earlier answers.
pub(in super::super) fn check_talk(policy: &PolicySpec, bound: &Request) -> Result<(), Error> {
    check_padding(bound.pad_answer, policy)?;
    let settings = policy.settings();
    let has = |key: &str| settings.iter().any(|setting| setting.key == key);
    // A policy that takes blocks states none where its budget is a share of the prompt.
    let of_prompt = has("budget") && policy.takes("block") && !has("block");
    if of_prompt { Err(Error::TalkPolicy { policy: policy.to_string() }) } else { Ok(()) }
}

impl Conversation {
    /// Sets up OTs with the peer.
    pub(super) fn begin(channel: Channel, setting: &Setting, limit: usize) -> Result<Self, Error> {
        let mut engine = Secure::new(channel, setting.terms.protocol)?;
        engine.ledger().set_phase(Phase::Setup);
        engine.ledger().enter(SCOPE);
        Ok(Conversation {
            engine,
            cache: setting.model.cache(&setting.terms.policy),
            limit,
            rehearsal: setting.terms.protocol.preprocess.then(|| Rehearsal::new(setting)).transpose()?,
            ahead: None,
            first: None,
            meter: TokenMeter::default(),
            settled: Default::default(),
            read: 0,
            generation: Generation::default(),
        })
    }

    /// Drops the cache: another conversation begins.
    pub(super) fn reset(&mut self, setting: &Setting) {
        self.cache = setting.model.cache(&setting.terms.policy);
        self.engine.abb().stock().forget_operands();
        self.rehearsal.iter_mut().for_each(Rehearsal::reset);
        self.ahead.clone_from(&self.first);
    }

    pub(super) fn positions(&self, spec: &ModelSpec) -> Positions {
        let used = self.cache.position();
        let all = spec.max_positions_of(self.cache.text().filter(|_| used > 0));
        Positions { used, limit: all.min(MAX_SOFTMAX_COLUMNS).min(self.limit) }
    }

    /// Refuses a turn that is longer than was agreed, does not fit the positions that are left, or takes too long to
    /// plan.
    pub(super) fn check(&self, setting: &Setting, turn: Lengths) -> Result<(), Error> {
        check_bounded(turn, setting.bound.lengths, usize::MAX)?;
        let Positions { used, limit } = self.positions(&setting.public.spec);
        if turn.positions() > limit - used.min(limit) {
            return Err(Error::Full { used, wanted: turn.positions(), limit });
        }
        self.rehearsal.iter().try_for_each(|rehearsal| rehearsal.check(setting, turn))
    }

    /// Makes those of the first `count` slices that are not there yet. All slices together are what the longest turn
    /// needs.
    pub(super) fn prepare(&mut self, setting: &Setting, count: usize, watch: &mut Watch) -> Result<(), Error> {
        let needs = self.ahead(setting, watch)?.share(count, slices(setting.bound.lengths));
        self.make(setting, &needs, watch)
    }

    /// Refuses a preparation in a session of one phase, a number of slices beyond those that the longest turn needs,
    /// and a longest turn that takes too long to plan.
    pub(super) fn check_slices(&self, setting: &Setting, count: usize) -> Result<(), Error> {
        let limit = slices(setting.bound.lengths);
        let Some(rehearsal) = &self.rehearsal else { return Err(Error::Phases { expected: false, got: true }) };
        if count > limit {
            return Err(Error::Limit { what: "slices of a turn", got: count, limit });
        }
        // The longest turn is planned once for all slices.
        match self.longest(setting) {
            Some(longest) if self.ahead.is_none() => rehearsal.check(setting, longest),
            _ => Ok(()),
        }
    }

    /// The lengths of the longest turn that still fits; `None` if no position is left.
    fn longest(&self, setting: &Setting) -> Option<Lengths> {
        let Lengths { prompt, tokens } = setting.bound.lengths;
        let Positions { used, limit } = self.positions(&setting.public.spec);
        // The last token is not read.
        let left = (limit + 1).checked_sub(used).filter(|left| *left > 1)?;
        let prompt = prompt.min(left - 1);
        Some(Lengths { prompt, tokens: tokens.min(left - prompt) })
    }

    /// The needs of the longest turn that still fits, without the masks of keys and values.
    fn ahead(&mut self, setting: &Setting, watch: &mut Watch) -> Result<Needs, Error> {
        if let (None, Some(longest)) = (&self.ahead, self.longest(setting)) {
            self.ahead = self.needs(setting, longest, watch)?.map(|needs| needs.without_operands());
            if self.rehearsal.as_ref().is_some_and(Rehearsal::is_empty) {
                self.first.clone_from(&self.ahead);
            }
        }
        Ok(self.ahead.clone().unwrap_or_default())
    }

    /// The needs of `turn` after the turns so far; `None` in a session of one phase.
    fn needs(&mut self, setting: &Setting, turn: Lengths, watch: &mut Watch) -> Result<Option<Needs>, Error> {
        self.rehearsal.as_mut().map(|rehearsal| rehearsal.needs(setting, turn, watch)).transpose()
    }

    /// Makes the part of `needs` that the stock lacks.
    fn make(&mut self, setting: &Setting, needs: &Needs, watch: &mut Watch) -> Result<(), Error> {
        let bytes = needs.bytes(self.engine.channel().role());
        check_space(bytes).map_err(waggle_protocols::Error::from)?;
        let weights = setting.model.weights();
        let progress = &mut |made| drop(watch(Event::Prepared(made)));
        Ok(self.engine.prepare_more(needs, self.cache.operands(), &weights, progress)?)
    }

    /// Runs a turn that [`Conversation::check`] allows; the client passes the `ids` of its prompt.
    pub(super) fn turn(
        &mut self,
        setting: &Setting,
        turn: Lengths,
        ids: Option<&[u32]>,
        next: Next,
        watch: &mut Watch,
    ) -> Result<Turn, Error> {
        if let Some(needs) = self.needs(setting, turn, watch)? {
            self.make(setting, &needs, watch)?;
        }
        let input = Input::of(ids, turn.prompt);
        let request = Request { lengths: turn, ..*setting.bound };
        let options = request.options(setting.terms);
        let Conversation { engine, cache, meter, .. } = self;
        engine.ledger().leave();
        let mut recorder = Recorder::resuming(watch, std::mem::take(meter)).showing(&request);
        let generation = generate_with(engine, setting.model, cache, input, &options, next, &mut recorder);
        *meter = recorder.into_meter();
        let generation = opening::complaining(engine.channel(), generation.map_err(Error::from))?;
        engine.channel().confirm_transcript()?;
        engine.ledger().set_phase(Phase::Setup);
        engine.ledger().enter(SCOPE);
        let took = Lengths { prompt: turn.prompt, tokens: generation.count };
        self.rehearsal.iter_mut().for_each(|rehearsal| rehearsal.took(took));
        self.ahead = None;
        self.read += turn.prompt;
        self.generation.count += generation.count;
        self.generation.tokens.extend(&generation.tokens);
        Ok(Turn { prompt_tokens: turn.prompt, generation, cost: TurnCost::default() })
    }

    /// The cost by phase since the last call of this function, with the costs of the last `tokens` tokens one by one.
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

    /// The session's outcome.
    pub(super) fn finish(mut self, setting: &Setting) -> Outcome {
        let lengths = Lengths { prompt: self.read, tokens: self.generation.count };
        let mut silent = nobody;
        let recorder = Recorder::resuming(&mut silent, self.meter);
        let request = Request { lengths, ..*setting.bound };
        finish(&mut self.engine, setting.terms, &request, self.generation, recorder)
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
