//! A session on shapes.

use std::time::Duration;

use model::{Drafts, Generation, Hooks, Input, Lengths, Model, ModelSpec, Next, Sampler, Schedule, Step, generate};
use mpcache::HeadShape;
use net::{Channel, Ledger, Role, memory_pair};
use planner::{Footprint, Plan, Planner, Setting, Tallies};
use protocols::{FixedLoader, Made, Needs, Part};

use super::opening::SessionKind;
use super::recorder::{Booked, Recorder, finish};
use super::{ClientOptions, Limits, Observer, Outcome, PublicModel, Request, Silent, Terms, correlations, opening};
use crate::Error;
use crate::needs::{listing, needs};
use crate::pool::{PoolId, Purpose, check_bound};

/// How long the rehearsal of the opening may take.
const REHEARSAL: Duration = Duration::from_secs(60);

/// Predicts the session of a client that asks a server of `model` for `request` under `terms`. The accounts carry
/// exactly the bytes, messages and flows of a real ledger, and no times. With `stop_at_eos` the plan is that of the
/// longest possible session. With a draft it is that of a session whose passes keep as many tokens as expected.
///
/// The plan depends on `frac_bits` of the model. Without weights they are [`protocols::DEFAULT_WEIGHT_FRAC`].
pub fn plan(
    model: &PublicModel,
    terms: &Terms,
    options: &ClientOptions,
    request: &Request,
    observer: &mut dyn Observer,
) -> Result<Outcome, Error> {
    let schedule = Schedule::expected(request.draft);
    Ok(plan_by(|plan| plan, model, terms, options, request, schedule, observer)?.0)
}

/// [`plan`] of a session with a draft whose passes after the first one keep `kept` tokens each: what
/// [`Generation::passes`] says of one.
pub fn plan_kept(
    model: &PublicModel,
    terms: &Terms,
    options: &ClientOptions,
    request: &Request,
    kept: &[usize],
    observer: &mut dyn Observer,
) -> Result<Outcome, Error> {
    let schedule = Schedule::of(kept.to_vec());
    Ok(plan_by(|plan| plan, model, terms, options, request, schedule, observer)?.0)
}

/// [`plan`] with times in `setting`, which are estimates, and with the memory of both processes.
pub fn plan_timed(
    model: &PublicModel,
    terms: &Terms,
    options: &ClientOptions,
    request: &Request,
    setting: &Setting,
    observer: &mut dyn Observer,
) -> Result<(Outcome, Footprint), Error> {
    let timed = |planner: Planner| planner.timed(setting.clone());
    let schedule = Schedule::expected(request.draft);
    let (outcome, mut engine, needs) = plan_by(timed, model, terms, options, request, schedule, observer)?;
    Ok((outcome, footprint(&model.spec, request, &needs, &mut engine)))
}

/// The memory of a session that `engine` planned and that prepares `needs`.
fn footprint(spec: &ModelSpec, request: &Request, needs: &Needs, engine: &mut Plan) -> Footprint {
    let HeadShape { kv_heads, head_dim, .. } = spec.heads();
    let positions = (request.lengths.prompt + request.lengths.tokens) as u64;
    let cached = 2 * (spec.layers() * kv_heads * head_dim) as u64 * positions;
    Footprint::of(cached, needs, engine.abb().room())
}

/// The work of the same session: units of every kernel by account. `imitated` says whether its network is.
pub fn plan_work(
    model: &PublicModel,
    terms: &Terms,
    options: &ClientOptions,
    request: &Request,
    imitated: bool,
) -> Result<Tallies, Error> {
    let (tallied, schedule) = (|planner: Planner| planner.tallied(imitated), Schedule::expected(request.draft));
    let (_, mut engine, _) = plan_by(tallied, model, terms, options, request, schedule, &mut Silent)?;
    Ok(engine.abb().tallies().cloned().unwrap_or_default())
}

/// The session of a planner that `change` made count more than messages; also the plan, and what the session prepares.
fn plan_by(
    change: impl FnOnce(Planner) -> Planner,
    model: &PublicModel,
    terms: &Terms,
    options: &ClientOptions,
    request: &Request,
    schedule: Schedule,
    observer: &mut dyn Observer,
) -> Result<(Outcome, Plan, Needs), Error> {
    request.check_policy(&model.spec, terms)?;
    request.check_draft(terms)?;
    let opening = rehearse(model, terms, options, request, &SessionKind::Generate)?;
    let mut planner = change(Planner::after(opening, terms.protocol));
    let mut prepared = Needs::default();
    if terms.protocol.preprocess {
        let listed =
            listing(&model.spec, &model.frac_bits, terms, request, Schedule::expected(request.draft), &Silent)?;
        prepared = listed.needs();
        planner = planner.with_plans_of(listed);
        planner.prepare(&prepared)?;
        observer.prepare(Made { work: 1.0, ..Made::default() });
    }
    let mut engine = planner.engine();
    let outcome = run(&mut engine, model, terms, request, schedule, observer)?;
    Ok((outcome, engine, prepared))
}

/// [`plan`] of one decoding step after `cached` tokens, in `setting` if there is one: what it sends, and what
/// prepares it. The pools of OTs begin empty, so that everything that the step costs is its own. With a `draft` the
/// step reads all guesses; how many it keeps costs nothing, and the plan is that of one that keeps all.
pub fn plan_step(
    model: &PublicModel,
    terms: &Terms,
    options: &ClientOptions,
    cached: usize,
    draft: Option<Drafts>,
    setting: Option<&Setting>,
    observer: &mut dyn Observer,
) -> Result<(Outcome, Footprint), Error> {
    let draft = draft.map(Drafts::free);
    let of = |tokens| Request { draft, ..Lengths { prompt: cached, tokens }.into() };
    // As many tokens as a step gives at most: no other step follows.
    let most = 1 + draft.map_or(0, Drafts::tokens);
    let (before, after) = (of(1), of(1 + most));
    let opening = rehearse(model, terms, options, &after, &SessionKind::Generate)?;
    let mut planner = Planner::after(opening, terms.protocol);
    if let Some(setting) = setting {
        planner = planner.timed(setting.clone());
    }
    let mut prepared = Needs::default();
    if terms.protocol.preprocess {
        let needs = |request, schedule| {
            let listed = listing(&model.spec, &model.frac_bits, terms, request, schedule, &Silent);
            Ok::<_, Error>(listed?.needs())
        };
        let whole = needs(&after, Schedule::of(vec![most]))?;
        prepared = whole.since(&needs(&before, Schedule::of(Vec::new()))?);
        planner.prepare(&prepared)?;
        planner.set_stock(&whole);
        observer.prepare(Made { work: 1.0, ..Made::default() });
    }
    let mut engine = planner.engine();
    let weights = Model::load_for(&terms.policy, &mut FixedLoader::announced(&model.frac_bits)?, &model.spec, None)?;
    let input = Input { ids: None, count: cached };
    let mut unused = Sampler::greedy();
    let mut hooks = StepAlone(Recorder::planning(observer, Schedule::of(vec![most])));
    let generation =
        generate(&mut engine, &weights, input, &after.options(terms), Next::Pick(&mut unused), &mut hooks)?;
    engine.confirm_transcript()?;
    let footprint = footprint(&model.spec, &after, &prepared, &mut engine);
    Ok((finish(&mut engine, terms, &after, generation, hooks.0), footprint))
}

/// Books nothing while the prompt is read.
struct StepAlone<'a>(Recorder<'a>);

impl Hooks<Plan> for StepAlone<'_> {
    fn begin(&mut self, engine: &mut Plan, step: Step) {
        engine.abb().set_booking(step != Step::Prefill);
        self.0.begin(engine, step);
    }

    fn go_on(&mut self) -> Result<(), model::Error> {
        Hooks::<Plan>::go_on(&mut self.0)
    }

    fn agree_to_keep(&mut self, engine: &mut Plan, most: usize, kept: Option<usize>) -> Result<usize, engine::Error> {
        self.0.agree_to_keep(engine, most, kept)
    }

    fn token(&mut self, engine: &mut Plan, step: Step, token: Option<u32>) {
        self.0.token(engine, step, token);
    }
}

/// [`plan`] of the session that fills a pool for generations up to `bound`, or `part` of one.
pub fn plan_filling(
    model: &PublicModel,
    terms: &Terms,
    options: &ClientOptions,
    bound: Lengths,
    part: Part,
) -> Result<Outcome, Error> {
    let purpose = Purpose::new(model, terms, bound, None, None)?.part(part)?;
    let opening = rehearse(model, terms, options, &bound.into(), &SessionKind::Fill { part, kept: None })?;
    let mut planner = Planner::after(opening, terms.protocol);
    planner.prepare(purpose.needs())?;
    let mut engine = planner.engine();
    engine.confirm_transcript()?;
    correlations::plan_keeping(engine.abb().ledger());
    let mut silent = Silent;
    let recorder = Recorder::new(&mut silent);
    Ok(finish(&mut engine, terms, &bound.into(), Generation::default(), recorder))
}

/// [`plan`] of a generation from a pool made for `bound`, in as many parts as `part` is one of. The more parts, the
/// longer the request that names them; nothing else depends on their number.
pub fn plan_spending(
    model: &PublicModel,
    terms: &Terms,
    options: &ClientOptions,
    bound: Lengths,
    part: Part,
    request: &Request,
    observer: &mut dyn Observer,
) -> Result<Outcome, Error> {
    check_bound(bound, request)?;
    let purpose = Purpose::new(model, terms, bound, None, None)?;
    let parts = SessionKind::Spend(vec![PoolId::default(); part.of() as usize]);
    let mut opening = rehearse(model, terms, options, request, &parts)?;
    correlations::plan_claiming(&mut opening);
    let mut planner = Planner::after(opening, terms.protocol);
    planner.prepare(&needs(&model.spec, &model.frac_bits, terms, request)?.ots())?;
    planner.set_stock(purpose.needs());
    run(&mut planner.engine(), model, terms, request, Schedule::expected(None), observer)
}

/// The generation, after what comes before it.
fn run(
    engine: &mut Plan,
    model: &PublicModel,
    terms: &Terms,
    request: &Request,
    schedule: Schedule,
    observer: &mut dyn Observer,
) -> Result<Outcome, Error> {
    let weights = Model::load_for(&terms.policy, &mut FixedLoader::announced(&model.frac_bits)?, &model.spec, None)?;
    let input = Input { ids: None, count: request.lengths.prompt };
    let mut unused = Sampler::greedy();
    let mut recorder = Recorder::planning(observer, schedule);
    let options = request.options(terms);
    let generation = generate(engine, &weights, input, &options, Next::Pick(&mut unused), &mut recorder)?;
    engine.confirm_transcript()?;
    Ok(finish(engine, terms, request, generation, recorder))
}

/// The account of an opening that two threads hold, so that its messages are made in one place. A plan does not take
/// the time of the rehearsal.
fn rehearse(
    model: &PublicModel,
    terms: &Terms,
    options: &ClientOptions,
    request: &Request,
    kind: &SessionKind,
) -> Result<Ledger, Error> {
    let (client, server) = memory_pair(REHEARSAL);
    let mut client = Channel::new(Role::Client, client);
    let mut server = Channel::new(Role::Server, server);
    let fills = matches!(kind, SessionKind::Fill { .. });
    std::thread::scope(|scope| {
        let receiving = scope.spawn(move || {
            opening::receive_client(&mut server, model, terms, &Limits::NONE, |_, _, _| Ok(()))?;
            if fills { opening::name_pool(&mut server, PoolId::default()) } else { Ok(()) }
        });
        let asked = opening::meet_server(&mut client, terms, options)
            .and_then(|public| opening::ask(&mut client, &public.spec, request, kind))
            .and_then(|()| if fills { opening::learn_pool(&mut client).map(drop) } else { Ok(()) });
        let ledger = std::mem::take(client.ledger_mut());
        // A client that fails leaves; the server must not wait for it.
        drop(client);
        let received = receiving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        asked.and(received).map(|()| ledger.forget_times())
    })
}
