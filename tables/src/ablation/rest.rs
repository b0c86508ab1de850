//! What a decoding step of GPT-2 small does besides attention: embedding, norms, matrices, GELU, head.
//!
//! It does not depend on the cache. A model with [`LAYERS`] layers of the published shape generates a few tokens; its
//! layers count [`MODEL_LAYERS`] / [`LAYERS`] times.

use std::thread;
use std::time::Duration;

use engine::FloatLoader;
use model::{
    Checkpoint, DType, GenerateOptions, Generation, Hooks, Input, Model, ModelSpec, Next, Sampler, Step, check,
    generate, synthesize,
};
use net::{Channel, Phase, Role, memory_pair};
use planner::Planner;
use protocols::{FixedLoader, FixedWeight, Options, Secure};

use super::cost::{Accounts, Split};
use super::error::AblationError;
use super::findings::MeasuredRest;
use super::run::{Booked, accounts, shaped};
use super::shapes::{LAYERS, MODEL_LAYERS};

/// The published configuration; keys that it leaves out have GPT-2 small's values by default.
const CONFIG: &[u8] = br#"{"model_type": "gpt2"}"#;

/// Tokens of the prompt, and steps that are measured after it.
const PROMPT: usize = 2;
const STEPS: usize = 3;

/// Largest error of a logit against f32 that passes: fixed point over two layers, and truncations between two
/// parties.
const MAX_LOGIT_ERROR: f32 = 0.02;

const PATIENCE: Duration = Duration::from_secs(600);

/// Remembers the accounts at the first decoding step.
#[derive(Default)]
struct AfterPrompt(Option<Accounts>);

impl<E: Booked> Hooks<E> for AfterPrompt {
    fn begin(&mut self, engine: &mut E, step: Step) {
        let Some(ledger) = engine.book() else { return };
        ledger.set_phase(if step == Step::Prefill { Phase::Prefill } else { Phase::Decode });
        if step == (Step::Decode { index: 1, drafted: 0 }) {
            self.0 = Some(accounts(ledger));
        }
    }
}

fn options() -> GenerateOptions {
    GenerateOptions { tokens: 1 + STEPS, ..GenerateOptions::default() }
}

/// Generates and splits the cost of one decoding step.
fn steps<E: Booked>(
    engine: &mut E,
    model: &Model<E::Weight>,
    ids: Option<&[u32]>,
) -> Result<(Split, Generation), AblationError> {
    let mut hooks = AfterPrompt::default();
    let mut sampler = Sampler::greedy();
    let input = Input { ids, count: PROMPT };
    let generation = generate(engine, model, input, &options(), Next::Pick(&mut sampler), &mut hooks)?;
    let before = hooks.0.unwrap_or_default();
    let spent = engine
        .book()
        .map_or_else(Accounts::new, accounts)
        .into_iter()
        .map(|(key, traffic)| {
            let spent = before.get(&key).map_or(traffic, |before| traffic.since(before));
            (key, spent)
        })
        .collect();
    Ok((Split::of(&spent, weight), generation))
}

/// How often an account counts in a step of the whole model, without the part of attention that reads the cache.
fn weight(path: &str) -> Option<f64> {
    let mut parts = path.split('/');
    let layer = parts.next().is_some_and(|part| part.starts_with("layer "));
    let cached = parts.next() == Some("attention") && matches!(parts.next(), Some("scores" | "softmax" | "values"));
    let times = if layer { MODEL_LAYERS as f64 / LAYERS as f64 } else { 1.0 };
    (!cached).then_some(times / STEPS as f64)
}

fn spec() -> Result<ModelSpec, AblationError> {
    let mut spec = ModelSpec::from_config_json(CONFIG).map_err(model::Error::from)?;
    if let ModelSpec::Gpt2(config) = &mut spec {
        config.n_layer = LAYERS;
    }
    Ok(spec)
}

/// By shapes alone.
pub(crate) fn plan(options: Options) -> Result<Split, AblationError> {
    let mut engine = Planner::new(options).engine();
    let model = Model::load(&mut FixedLoader::default(), &spec()?, None)?;
    Ok(steps(&mut engine, &model, None)?.0)
}

/// Between two parties over links of `shape`, with random weights.
pub(crate) fn secure(shape: net::Shape, protocol: Options) -> Result<MeasuredRest, AblationError> {
    let dir = tempfile::tempdir().map_err(AblationError::Link)?;
    let spec = synthesize(CONFIG, dir.path(), Some(LAYERS), DType::F16, None, 1)?;
    let open = || Checkpoint::open(dir.path()).map_err(model::Error::from);
    let ids: Vec<u32> = (0..PROMPT as u32).map(|i| 37 * i).collect();
    let (client, server) = memory_pair(PATIENCE);
    let client = Channel::new(Role::Client, shaped(client, shape)?);
    let server = Channel::new(Role::Server, shaped(server, shape)?);

    let mut loader = FixedLoader::default();
    let weights: Model<FixedWeight> = Model::load(&mut loader, &spec, Some(&open()?))?;
    let blank: Model<FixedWeight> = Model::load(&mut FixedLoader::announced(loader.frac_bits())?, &spec, None)?;
    let party = |channel: Channel, model: &Model<FixedWeight>, ids: Option<&[u32]>| {
        let mut engine = Secure::new(channel, protocol)?;
        steps(&mut engine, model, ids)
    };
    let (client, server) = thread::scope(|scope| {
        let server = scope.spawn(|| party(server, &weights, None));
        let client = party(client, &blank, Some(&ids));
        (client, server.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    server?;
    let (step, generation) = client?;
    drop(weights);
    let float = Model::load(&mut FloatLoader, &spec, Some(&open()?))?;
    let error = check(&float, &ids, &options(), &generation)?.max_abs_logit_error.unwrap_or(f32::INFINITY);
    if error > MAX_LOGIT_ERROR {
        return Err(AblationError::Wrong { policy: "the model's other parts".into(), error: error.into() });
    }
    Ok(MeasuredRest { step, logit_error: error.into() })
}
