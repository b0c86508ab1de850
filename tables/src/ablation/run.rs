//! One policy over one pair of layers on any engine: the prompt, a first step, steady steps.

use std::thread;
use std::time::Duration;

use engine::{Error, Select, Shape};
use mpcache::{KvCache, PolicySpec};
use ndarray::ArrayD;
use net::{Channel, Entry, Ledger, Link, Phase, Role, Shaped, Traffic, memory_pair};
use planner::{Plan, Planner};
use protocols::{Fixed, Options, Secure};

use super::cost::{Account, Accounts, Cost};
use super::data::{self, Inputs};
use super::error::AblationError;
use super::shapes::{HEADS, LAYERS};

/// How long a party waits for the other; eviction of a long prompt takes long.
const PATIENCE: Duration = Duration::from_secs(600);

/// An engine whose traffic is booked; one in the clear has none.
pub(crate) trait Booked: Select {
    /// Its ledger, if it has one.
    fn book(&mut self) -> Option<&mut Ledger>;
}

impl Booked for Fixed {
    fn book(&mut self) -> Option<&mut Ledger> {
        None
    }
}

impl Booked for Plan {
    fn book(&mut self) -> Option<&mut Ledger> {
        Some(self.abb().ledger())
    }
}

impl Booked for Secure {
    fn book(&mut self) -> Option<&mut Ledger> {
        Some(self.channel().ledger_mut())
    }
}

/// Everything that is booked by now.
pub(crate) fn accounts(ledger: &mut Ledger) -> Accounts {
    ledger.checkpoint();
    ledger.entries().into_iter().map(|e| (Account { phase: e.phase, path: e.path }, e.traffic)).collect()
}

/// How long the parts of a run are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario {
    /// Tokens of the prompt.
    pub(crate) prompt: usize,
    /// Steady steps, after one that is set apart: in it keys are sent and products are planned.
    pub(crate) steps: usize,
}

impl Scenario {
    /// Tokens of the whole run.
    pub(crate) fn tokens(self) -> usize {
        self.prompt + 1 + self.steps
    }
}

/// A run: what each of its parts booked on the pair of layers, and the outputs.
pub(crate) struct Trace<T> {
    /// The prompt.
    pub(crate) prompt: Accounts,
    /// The steady steps together.
    pub(crate) steady: Accounts,
    /// Every account of the run, set-up included, without times.
    pub(crate) ledger: Vec<Entry>,
    /// (1, width) for every decoded token and layer.
    pub(crate) outputs: Vec<T>,
}

/// Runs the policy `spec` on `inputs`.
pub(crate) fn run<E: Booked>(
    engine: &mut E,
    spec: &PolicySpec,
    inputs: &Inputs<E::Tensor>,
    scenario: Scenario,
) -> Result<Trace<E::Tensor>, Error> {
    let mut cache = KvCache::<E>::new(LAYERS, HEADS, spec);
    let mut outputs = Vec::new();
    let mut before = Accounts::new();
    let mut part = |engine: &mut E| {
        let Some(ledger) = engine.book() else { return Accounts::new() };
        let now = accounts(ledger);
        let spent = |(key, traffic): (&Account, &Traffic)| {
            (key.clone(), before.get(key).map_or(*traffic, |before| traffic.since(before)))
        };
        let spent = now.iter().map(spent).collect();
        before = now;
        spent
    };
    part(engine);
    if let Some(ledger) = engine.book() {
        ledger.set_phase(Phase::Prefill);
    }
    for (i, layer) in inputs.iter().enumerate() {
        let layer = data::prompt(layer, scenario.prompt, cache.query_window(i, scenario.prompt).max(1));
        cache.attend(engine, i, &layer.q, &layer.k, &layer.v)?;
    }
    let prompt = part(engine);
    if let Some(ledger) = engine.book() {
        ledger.set_phase(Phase::Decode);
    }
    for token in scenario.prompt..scenario.tokens() {
        for (i, layer) in inputs.iter().enumerate() {
            let layer = data::token(layer, token);
            outputs.push(cache.attend(engine, i, &layer.q, &layer.k, &layer.v)?);
        }
        if token == scenario.prompt {
            part(engine);
        }
    }
    let steady = part(engine);
    let ledger = engine.book().map_or_else(Vec::new, |ledger| ledger.untimed());
    Ok(Trace { prompt, steady, ledger, outputs })
}

/// `link`, slowed to a network of `shape`.
pub(crate) fn shaped(link: impl Link + 'static, shape: net::Shape) -> Result<Shaped, AblationError> {
    Shaped::new(link, shape).map_err(AblationError::Link)
}

/// The run on shapes; in two phases after the preparation of all that it takes.
pub(crate) fn plan(spec: &PolicySpec, scenario: Scenario, options: Options) -> Result<Trace<Shape>, Error> {
    let inputs = data::shapes(scenario.tokens());
    let mut engine = Planner::new(options).engine();
    if options.preprocess {
        let mut first = Planner::new(options).engine();
        run(&mut first, spec, &inputs, scenario)?;
        engine.abb().prepare(&first.abb().needs())?;
    }
    run(&mut engine, spec, &inputs, scenario)
}

impl<T> Trace<T> {
    /// All correlations of the run, whenever they were made.
    pub(crate) fn offline(&self) -> Cost {
        let offline = self.ledger.iter().filter(|e| e.phase == Phase::Offline);
        offline.fold(Cost::default(), |sum, e| sum + Cost::from(e.traffic))
    }
}

/// The run between two parties over a link of `shape` each way: the client's trace with the outputs opened.
pub(crate) fn secure(
    spec: &PolicySpec,
    words: &Inputs<ArrayD<u64>>,
    scenario: Scenario,
    shape: net::Shape,
    options: Options,
) -> Result<Trace<ArrayD<u64>>, AblationError> {
    let [mine, other] = data::shares(words);
    let (client, server) = memory_pair(PATIENCE);
    let client = Channel::new(Role::Client, shaped(client, shape)?);
    let server = Channel::new(Role::Server, shaped(server, shape)?);
    let party = |channel: Channel, inputs: &Inputs<ArrayD<u64>>| {
        let mut engine = Secure::new(channel, options)?;
        run(&mut engine, spec, inputs, scenario)
    };
    let (client, server) = thread::scope(|scope| {
        let client = scope.spawn(|| party(client, &mine));
        let server = party(server, &other);
        (client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), server)
    });
    let (mut client, server) = (client?, server?);
    if client.ledger != server.ledger {
        return Err(AblationError::Ledgers { policy: spec.to_string() });
    }
    for (mine, other) in client.outputs.iter_mut().zip(&server.outputs) {
        mine.zip_mut_with(other, |a, b| *a = a.wrapping_add(*b));
    }
    Ok(client)
}
