//! The plan of a session, from shapes alone.

use std::time::Duration;

use waggle_model::{Drafts, Generation, Hooks, Known, Lengths, Next, Passes, Sampler, Step, generate};
use waggle_net::{Channel, Ledger, Role, memory_pair};
use waggle_planner::{Deployment, Footprint, Plan, Planner, Tallies};
use waggle_protocols::{HelperDeals, Made, Needs, Part, Stock};

use super::opening::SessionKind;
use super::recorder::{Booked, Recorder, finish};
use super::{
    ClientOptions, Event, Limits, Open, Outcome, PublicModel, Request, Terms, Watch, correlations, helper, nobody,
    opening,
};
use crate::needs::{listing, needs, needs_by_pass};
use crate::pool::{PoolId, Purpose, check_bound};
use crate::{Base, Error};

/// The longest time that the rehearsal of the opening may take.
const REHEARSAL: Duration = Duration::from_secs(60);

/// Predicts a session of a client and a server from shapes alone:
/// `SessionPlan::new(&model, &terms).request(request).run(&mut nobody)`. The accounts carry exactly the bytes,
/// messages and flows of a real ledger; times are estimates, and there are none without [`SessionPlan::timed`]. With
/// `stop_at_eos` the plan is that of the longest possible session.
///
/// The plan depends on the fractional bits of the model's weights (`frac_bits`). A model that is known by its shape
/// alone has [`waggle_protocols::DEFAULT_WEIGHT_FRAC`] of them.
#[derive(Clone)]
pub struct SessionPlan<'a> {
    model: &'a PublicModel,
    terms: &'a Terms,
    options: ClientOptions<'a>,
    request: Request,
    extent: Extent,
    kept: Option<Vec<usize>>,
    setting: Option<Deployment>,
    tallied: bool,
}

/// Which session is planned, or which part of it.
#[derive(Clone, Copy, Debug)]
enum Extent {
    /// A generation that prepares its own correlations.
    Generation,
    /// One decoding step of a generation that prepares its own correlations.
    Step,
    /// A session that fills this part of a pool.
    Filling(Part),
    /// A generation from a pool made for `bound`. The pool has as many parts as the division that `part` belongs to.
    Spending { bound: Lengths, part: Part },
}

/// The plan of a session.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The outcome of either party, with times if the plan estimates them.
    pub outcome: Outcome,
    /// The memory of both processes, estimated. Only a plan with times knows the memory of operations.
    pub footprint: Footprint,
    /// Bytes that either party holds of the keys and values that are left at the end, with their masks. Summaries of
    /// clusters do not count.
    pub cache_bytes: u64,
    /// Units of work of every kernel by account; empty without [`SessionPlan::tallied`].
    pub work: Tallies,
}

impl<'a> SessionPlan<'a> {
    /// A plan of one generated token after a prompt of one, unless [`SessionPlan::request`] says otherwise.
    pub fn new(model: &'a PublicModel, terms: &'a Terms) -> Self {
        SessionPlan {
            model,
            terms,
            options: ClientOptions::default(),
            request: Lengths { prompt: 1, tokens: 1 }.into(),
            extent: Extent::Generation,
            kept: None,
            setting: None,
            tallied: false,
        }
    }

    /// The client wants `options` of the server.
    pub fn options(self, options: ClientOptions<'a>) -> Self {
        SessionPlan { options, ..self }
    }

    /// The client asks for `request`. Passes with guesses keep as many tokens as its draft expects.
    pub fn request(self, request: impl Into<Request>) -> Self {
        SessionPlan { request: request.into(), ..self }
    }

    /// The passes after the first one keep the numbers of tokens in `kept`, which has the form of
    /// [`Generation::passes`]. The session still prepares what its draft expects.
    pub fn kept(self, kept: &[usize]) -> Self {
        SessionPlan { kept: Some(kept.to_vec()), ..self }
    }

    /// Estimates times in `setting`, if there is one, and the memory of operations.
    pub fn timed(self, setting: impl Into<Option<Deployment>>) -> Self {
        SessionPlan { setting: setting.into(), ..self }
    }

    /// Counts units of kernels in a plan with times.
    pub fn tallied(self) -> Self {
        SessionPlan { tallied: true, ..self }
    }

    /// Plans one decoding step after the request's prompt: its messages and its preparation. The pools of OTs begin
    /// empty, so that the step bears all of its cost. With a draft the step reads all guesses, and the message with
    /// the number of tokens that it keeps costs nothing; the plan assumes that it keeps all. Only the request's
    /// prompt and draft count.
    pub fn step(self) -> Self {
        SessionPlan { extent: Extent::Step, ..self }
    }

    /// Plans the session that fills `part` of a pool for generations up to the lengths of the request.
    pub fn filling(self, part: Part) -> Self {
        SessionPlan { extent: Extent::Filling(part), ..self }
    }

    /// Takes the correlations from a pool made for `bound`. The pool has as many parts as the division that `part`
    /// belongs to. The more parts there are, the longer is the request that names them. Nothing else depends on their
    /// number.
    pub fn spending(self, bound: Lengths, part: Part) -> Self {
        SessionPlan { extent: Extent::Spending { bound, part }, ..self }
    }

    /// Plans the session. `watch` hears of its events.
    ///
    /// # Errors
    /// Errors of [`Request::validate`] for a server without limits, except [`Error::Planning`]. [`Error::DraftPool`]
    /// and [`Error::Pool`] for a pool that is impossible or too small.
    pub fn run(&self, watch: &mut Watch) -> Result<Planned, Error> {
        let SessionPlan { model, terms, .. } = *self;
        let (kind, request) = self.asked()?;
        match kind.validate(&request, &model.spec, terms, &Limits::NONE) {
            // The limit of planning protects peers: whoever plans alone may wait.
            Err(Error::Planning { .. }) => {}
            checked => checked?,
        }
        let mut planner = Planner::after(self.rehearse(&request, &kind)?, terms.protocol);
        if let Some(setting) = self.setting.clone() {
            planner = if self.tallied { planner.tallied(setting) } else { planner.timed(setting) };
        }
        let (mut prepared, mut passes) = (Needs::default(), Vec::new());
        // A session that spends a pool does not ask the helper that dealt it.
        let asked = !matches!(self.extent, Extent::Spending { .. });
        if terms.protocol.preprocess {
            if asked && terms.protocol.helper.weights() {
                planner.ledger().rehearse(Role::Client, |channel| helper::share_seed(channel, None))?;
            }
            match terms.protocol.helper {
                HelperDeals::Passes => passes = needs_by_pass(model, terms, &request, &mut nobody)?,
                _ => (planner, prepared) = self.prepare(planner, &request)?,
            }
            watch(Event::Prepared(Made { work: 1.0, ..Made::default() }));
        }
        let mut engine = planner.engine();
        let schedule = match (self.extent, &self.kept) {
            (Extent::Step, _) => Passes::of(vec![self.most_of_step()]),
            (_, Some(kept)) => Passes::of(kept.clone()),
            (_, None) => Passes::expected(request.draft),
        };
        let mut recorder = Recorder::planning(watch, schedule).dealing(passes.clone());
        let generation = match self.extent {
            Extent::Filling(_) => Generation::default(),
            Extent::Step => self.generate(&mut engine, &request, &mut StepAlone(&mut recorder))?,
            Extent::Generation | Extent::Spending { .. } => self.generate(&mut engine, &request, &mut recorder)?,
        };
        engine.on_channel(Channel::confirm_transcript)?;
        if let Extent::Filling(_) = self.extent {
            engine.on_channel(|channel| correlations::keep(channel, Ok(|| Ok(()))))?;
        }
        let width: usize = model.spec.attention().heads.iter().map(|heads| heads.kv_heads * heads.head_dim).sum();
        let positions = (request.lengths.prompt + request.lengths.tokens) as u64;
        let cached = 2 * (request.texts * width) as u64 * positions;
        // A step is planned without the pass before it.
        let skipped = if let Extent::Step = self.extent { passes.len().min(1) } else { 0 };
        let dealt: Vec<Needs> = passes.into_iter().skip(skipped).collect();
        let held = dealt.iter().max_by_key(|pass| pass.words(Role::Server)).unwrap_or(&prepared);
        let footprint = Footprint::of(cached, held, engine.abb().room());
        let cache_bytes = Footprint::cache(generation.cached as u64, held);
        let work = engine.abb().tallies().cloned().unwrap_or_default();
        let helper = match asked {
            true => helper::rehearse(&prepared, &dealt, skipped == 0, engine.abb().plans())?,
            false => [None, None],
        };
        let outcome = Outcome { helper, ..finish(&mut engine, terms, &request, generation, recorder) };
        Ok(Planned { outcome, footprint, cache_bytes, work })
    }

    /// The kind of the session, and the client's request.
    fn asked(&self) -> Result<(SessionKind, Request), Error> {
        Ok(match self.extent {
            Extent::Generation => (SessionKind::Generate, self.request),
            Extent::Step => (SessionKind::Generate, self.decoding(1 + self.most_of_step())),
            Extent::Filling(part) => (SessionKind::Fill { part, kept: None }, self.request),
            Extent::Spending { bound, part } => {
                check_bound(bound, &self.request)?;
                (SessionKind::Spend(vec![PoolId::default(); part.of() as usize]), self.request)
            }
        })
    }

    /// The most tokens that one step gives. If this many are generated after the first token, one step may give them
    /// all.
    fn most_of_step(&self) -> usize {
        1 + self.request.draft.map_or(0, Drafts::tokens)
    }

    /// The request of a generation of `tokens` tokens, for the plan of one of its steps.
    fn decoding(&self, tokens: usize) -> Request {
        let Request { lengths, texts, draft, .. } = self.request;
        Request { texts, draft, ..Lengths { tokens, ..lengths }.into() }
    }

    /// In two phases, plans the making of the correlations that the session takes from its stock. Returns the
    /// planner, and the needs of the session.
    fn prepare(&self, mut planner: Planner, request: &Request) -> Result<(Planner, Needs), Error> {
        let SessionPlan { model, terms, .. } = *self;
        let listed = |request: &Request, schedule| listing(model, terms, request, schedule, &mut nobody);
        let purpose = |bound| Purpose::new(model, terms, bound, request.texts, None, None, &mut nobody);
        let (prepared, stock) = match self.extent {
            Extent::Generation => {
                let listed = listed(request, Passes::expected(request.draft))?;
                let needs = listed.needs();
                planner = planner.with_plans_of(listed);
                (needs, None)
            }
            Extent::Step => {
                let before = listed(&self.decoding(1), Passes::of(Vec::new()))?.needs();
                let whole = listed(request, Passes::of(vec![self.most_of_step()]))?.needs();
                (whole.since(&before), Some(whole))
            }
            Extent::Filling(part) => (purpose(request.lengths)?.part(part)?.needs().clone(), None),
            Extent::Spending { bound, .. } => {
                let ots = needs(model, terms, request, &mut nobody)?.ots();
                (ots, Some(purpose(bound)?.needs().clone()))
            }
        };
        planner.prepare(&prepared)?;
        if let Some(stock) = stock {
            planner.set_stock(&stock);
        }
        Ok((planner, prepared))
    }

    /// Plans the generation itself on `engine`, which has planned what comes before it.
    fn generate(
        &self,
        engine: &mut Plan,
        request: &Request,
        hooks: &mut dyn Hooks<Plan>,
    ) -> Result<Generation, Error> {
        let SessionPlan { model, terms, .. } = *self;
        let weights = model.shapes(terms, Known::Nothing)?;
        let input = request.input();
        let mut unused = Sampler::greedy();
        Ok(generate(engine, &weights, input, &request.options(terms), Next::Pick(&mut unused), hooks)?)
    }

    /// The ledger of the session's opening, without times. Two threads run the opening itself over memory, so that
    /// its messages need not be described a second time for plans.
    fn rehearse(&self, request: &Request, kind: &SessionKind) -> Result<Ledger, Error> {
        let SessionPlan { model, terms, options, .. } = *self;
        let base = Base::rehearsed(&model.spec, &model.disclosure);
        let options = &ClientOptions { base: base.as_ref(), ..options };
        // The rehearsal measures the link if the planned session did.
        let link = terms.found.as_ref().is_some_and(|met| met.bursts.is_some());
        let terms = &Terms { open: Open { link, ..Open::default() }, ..terms.clone() };
        let (client, server) = memory_pair(REHEARSAL);
        let mut client = Channel::new(Role::Client, client);
        let mut server = Channel::new(Role::Server, server);
        // The plan knows what the server makes of public tokens.
        let accept = |_: &Request, _: SessionKind, agreed: &mut Terms| {
            agreed.prefix.clone_from(&terms.prefix);
            Ok(())
        };
        let mut ledger = std::thread::scope(|scope| {
            let receiving = scope.spawn(move || opening::receive_client(&mut server, model, terms, accept));
            let asked = opening::meet_server(&mut client, terms, options)
                .and_then(|(met, mut agreed)| opening::ask(&mut client, &met, &mut agreed, request, kind));
            let ledger = std::mem::take(client.ledger_mut());
            // The server must not wait for a client that has failed.
            drop(client);
            let received = receiving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            asked.and(received).map(|_| ledger.forget_times())
        })?;
        if let SessionKind::Fill { .. } = kind {
            ledger.rehearse(Role::Client, opening::learn_pool)?;
        }
        if let SessionKind::Spend(_) = kind {
            ledger.rehearse(Role::Client, |channel| correlations::spend(channel, Ok(Stock::default())))?;
        }
        Ok(ledger)
    }
}

/// Hooks for the plan of one step: nothing is booked while the prompt is read.
struct StepAlone<'a, 'b>(&'a mut Recorder<'b>);

impl Hooks<Plan> for StepAlone<'_, '_> {
    fn begin(&mut self, engine: &mut Plan, step: Step) -> Result<(), waggle_engine::Error> {
        engine.abb().set_booking(step != Step::Prefill);
        self.0.begin(engine, step)
    }

    fn go_on(&mut self) -> Result<(), waggle_model::Error> {
        Hooks::<Plan>::go_on(self.0)
    }

    fn agree_to_keep(
        &mut self,
        engine: &mut Plan,
        most: usize,
        kept: Option<usize>,
    ) -> Result<usize, waggle_engine::Error> {
        self.0.agree_to_keep(engine, most, kept)
    }

    fn token(&mut self, engine: &mut Plan, step: Step, token: Option<u32>) {
        self.0.token(engine, step, token);
    }
}
