//! A session on shapes.

use std::time::Duration;

use net::{Channel, Ledger, Role, memory_pair};
use protocols::{FixedLoader, Needs, Plan, Setting, Tallies};

use super::opening::SessionKind;
use super::recorder::{Booked, Recorder, finish};
use super::{ClientOptions, Limits, Observer, Outcome, PublicModel, Request, Silent, Terms, correlations, opening};
use crate::estimate::{Footprint, footprint};
use crate::needs::needs;
use crate::pool::{PoolId, Purpose, check_bound};
use crate::{Error, Generation, Input, Lengths, Model, Next, Sampler, generate};

/// How long the rehearsal of the opening may take.
const REHEARSAL: Duration = Duration::from_secs(60);

/// Predicts the session of a client that asks a server of `model` for `request` under `terms`. The accounts carry
/// exactly the bytes, messages and flows of a real ledger, and no times. With `stop_at_eos` the plan is that of the
/// longest possible session.
///
/// The plan depends on `frac_bits` of the model. Without weights they are [`protocols::DEFAULT_WEIGHT_FRAC`].
pub fn plan(
    model: &PublicModel,
    terms: &Terms,
    options: &ClientOptions,
    request: &Request,
    observer: &mut dyn Observer,
) -> Result<Outcome, Error> {
    Ok(plan_by(|plan| plan, model, terms, options, request, observer)?.0)
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
    let timed = |plan: Plan| plan.timed(setting.clone());
    let (outcome, engine, needs) = plan_by(timed, model, terms, options, request, observer)?;
    Ok((outcome, footprint(&model.spec, request, &needs, engine.room())))
}

/// The work of the same session: units of every kernel by account. `imitated` says whether its network is.
pub fn plan_work(
    model: &PublicModel,
    terms: &Terms,
    options: &ClientOptions,
    request: &Request,
    imitated: bool,
) -> Result<Tallies, Error> {
    let (_, engine, _) = plan_by(|plan| plan.tallied(imitated), model, terms, options, request, &mut Silent)?;
    Ok(engine.tallies().cloned().unwrap_or_default())
}

/// The session of a plan that `change` made count more than messages; also the plan, and what the session prepares.
fn plan_by(
    change: impl FnOnce(Plan) -> Plan,
    model: &PublicModel,
    terms: &Terms,
    options: &ClientOptions,
    request: &Request,
    observer: &mut dyn Observer,
) -> Result<(Outcome, Plan, Needs), Error> {
    let opening = rehearse(model, terms, options, request, SessionKind::Generate)?;
    let mut engine = change(Plan::after(opening, terms.protocol));
    let mut prepared = Needs::default();
    if terms.protocol.preprocess {
        prepared = needs(&model.spec, &model.frac_bits, terms, request)?;
        engine.prepare(&prepared)?;
        observer.prepare(1, 1);
    }
    let outcome = run(&mut engine, model, terms, request, observer)?;
    Ok((outcome, engine, prepared))
}

/// [`plan`] of the session that fills a pool for generations up to `bound`.
pub fn plan_filling(
    model: &PublicModel,
    terms: &Terms,
    options: &ClientOptions,
    bound: Lengths,
) -> Result<Outcome, Error> {
    let purpose = Purpose::new(model, terms, bound, None, None)?;
    let opening = rehearse(model, terms, options, &bound.into(), SessionKind::Fill)?;
    let mut engine = Plan::after(opening, terms.protocol);
    engine.prepare(purpose.needs())?;
    engine.confirm_transcript()?;
    correlations::plan_keeping(engine.ledger());
    let mut silent = Silent;
    let recorder = Recorder::new(&mut silent);
    Ok(finish(&mut engine, terms, &bound.into(), Generation::default(), recorder))
}

/// [`plan`] of a generation from a pool made for `bound`.
pub fn plan_spending(
    model: &PublicModel,
    terms: &Terms,
    options: &ClientOptions,
    bound: Lengths,
    request: &Request,
    observer: &mut dyn Observer,
) -> Result<Outcome, Error> {
    check_bound(bound, request)?;
    let purpose = Purpose::new(model, terms, bound, None, None)?;
    let mut opening = rehearse(model, terms, options, request, SessionKind::Spend(PoolId::default()))?;
    correlations::plan_claiming(&mut opening);
    let mut engine = Plan::after(opening, terms.protocol);
    engine.prepare(&needs(&model.spec, &model.frac_bits, terms, request)?.ots())?;
    engine.set_stock(purpose.needs());
    run(&mut engine, model, terms, request, observer)
}

/// The generation, after what comes before it.
fn run(
    engine: &mut Plan,
    model: &PublicModel,
    terms: &Terms,
    request: &Request,
    observer: &mut dyn Observer,
) -> Result<Outcome, Error> {
    let weights = Model::load(&mut FixedLoader::announced(&model.frac_bits)?, &model.spec, None)?;
    let input = Input { ids: None, count: request.lengths.prompt };
    let mut unused = Sampler::greedy();
    let mut recorder = Recorder::new(observer);
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
    kind: SessionKind,
) -> Result<Ledger, Error> {
    let (client, server) = memory_pair(REHEARSAL);
    let mut client = Channel::new(Role::Client, client);
    let mut server = Channel::new(Role::Server, server);
    std::thread::scope(|scope| {
        let receiving = scope.spawn(move || {
            opening::receive_client(&mut server, model, terms, &Limits::NONE, |_, _, _| Ok(()))?;
            if kind == SessionKind::Fill { opening::name_pool(&mut server, PoolId::default()) } else { Ok(()) }
        });
        let asked = opening::meet_server(&mut client, terms, options)
            .and_then(|public| opening::ask(&mut client, &public.spec, request, kind))
            .and_then(
                |()| if kind == SessionKind::Fill { opening::learn_pool(&mut client).map(drop) } else { Ok(()) },
            );
        let ledger = std::mem::take(client.ledger_mut());
        // A client that fails leaves; the server must not wait for it.
        drop(client);
        let received = receiving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        asked.and(received).map(|()| ledger.forget_times())
    })
}
