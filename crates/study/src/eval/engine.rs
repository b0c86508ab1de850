//! The engines of a study.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde_json::Value;
use waggle_engine::{Float, FloatLoader, Select, WeightLoader};
use waggle_model::{FloatModel, Input, Model, ModelFiles};
use waggle_mpcache::{PolicySpec, Prefix};
use waggle_protocols::{Fixed, FixedLoader};
use waggle_report::ModelInfo;
use waggle_session::PublicPrefix;
use waggle_session::names::name;
use waggle_session::party::ModelServer;

use super::run::compare;
use super::{Candidate, EvalError, InClear, Runner, Sequence, StudyReport, TwoParties};

/// The engine on which a study runs the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StudyEngine {
    /// Floating point, in f32.
    Float,
    /// Fixed point as the parties compute it, in the clear.
    Fixed,
    /// Two parties with the whole protocol.
    Secure,
}

impl StudyEngine {
    /// All engines by name.
    pub const NAMES: [(&'static str, StudyEngine); 3] =
        [("float", StudyEngine::Float), ("fixed", StudyEngine::Fixed), ("secure", StudyEngine::Secure)];

    /// Whether a study on this engine opens the model's files twice. Two parties do so if `policy` needs scoring
    /// columns in the model's matrices: they run one model with these columns and one without.
    pub fn opens_twice(self, policy: &PolicySpec) -> bool {
        self == StudyEngine::Secure && policy.scoring_head().is_some()
    }
}

/// The model of a study.
pub struct Subject {
    /// Its files.
    pub files: ModelFiles,
    /// The same files opened a second time, if the engine [opens them twice](StudyEngine::opens_twice).
    pub again: Option<ModelFiles>,
    /// The engine.
    pub engine: StudyEngine,
    /// Public tokens before every sequence.
    pub prefix: Option<PublicPrefix>,
}

/// What is done with a model behind all public tokens, and behind what is left of these.
pub type Studied<'a> = dyn FnMut([&dyn Runner; 2]) -> Result<(), EvalError> + 'a;

impl Subject {
    /// Opens the model on its engine, with the scoring columns that `policy` needs, and calls `run` with it twice:
    /// behind all public tokens, and behind what is left of these where their policy has pruned them.
    ///
    /// # Errors
    /// Errors of the model and of `run`.
    pub fn run(self, policy: &PolicySpec, run: &mut Studied<'_>) -> Result<(), EvalError> {
        let Subject { files, again, engine, prefix } = self;
        let prefix = prefix.as_ref();
        match engine {
            StudyEngine::Float => {
                let model = FloatModel::open(policy, &files)?;
                in_clear(&model, Float::default, &mut FloatLoader, prefix, run)
            }
            StudyEngine::Fixed => {
                let (spec, checkpoint) = (&files.spec, Some(&files.checkpoint));
                let mut loader = FixedLoader::default();
                let model = Model::load_for(policy, &mut loader, spec, checkpoint)?;
                in_clear(&model, Fixed::new, &mut loader, prefix, run)
            }
            StudyEngine::Secure => {
                let learned = again.map(|files| ModelServer::builder().policy(policy).load(files)).transpose()?;
                let (server, learned) = (&ModelServer::builder().load(files)?, learned.as_ref());
                let protocol = waggle_protocols::Options::default();
                let behind = |prefix| TwoParties { server, learned, protocol, prefix };
                run([&behind(prefix.map(PublicPrefix::whole)), &behind(prefix.cloned())])
            }
        }
    }
}

/// [`Subject::run`] for a `model` in the clear.
fn in_clear<E: Select>(
    model: &Model<E::Weight>,
    engine: fn() -> E,
    loader: &mut dyn WeightLoader<Weight = E::Weight>,
    prefix: Option<&PublicPrefix>,
    run: &mut Studied<'_>,
) -> Result<(), EvalError> {
    let mut behind = |prefix: Option<PublicPrefix>| {
        let Some(prefix) = prefix else { return Ok(model.clone()) };
        let (ids, policy) = (prefix.ids(), prefix.policy());
        let layers = model.read_prefix(&mut engine(), Input::known(ids), ids.len(), policy)?;
        let loaded = Prefix::load(&prefix.digest(), ids.len(), &layers, loader).map_err(waggle_model::Error::from)?;
        Ok::<_, EvalError>(model.after(loaded.into()))
    };
    let [whole, pruned] = [behind(prefix.map(PublicPrefix::whole))?, behind(prefix.cloned())?];
    run([&InClear { model: &whole, engine }, &InClear { model: &pruned, engine }])
}

impl fmt::Display for StudyEngine {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(name(&StudyEngine::NAMES, self))
    }
}

impl FromStr for StudyEngine {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = StudyEngine::NAMES.iter().find(|(name, _)| *name == text);
        known.map(|(_, engine)| *engine).ok_or_else(|| format!("engine '{text}': one of float, fixed, secure"))
    }
}

/// The candidates of a study: each of `policies` at each of `budgets`. A policy that states its own budget, or takes
/// none, is a candidate once. The full cache is left out, because every study runs it anyway.
///
/// # Errors
/// If a policy does not accept its own budget or one of `budgets`.
pub fn candidates<'a>(
    policies: impl IntoIterator<Item = &'a PolicySpec>,
    budgets: &[f64],
) -> Result<Vec<Candidate>, EvalError> {
    let mut candidates = Vec::new();
    for policy in policies.into_iter().filter(|policy| **policy != PolicySpec::default()) {
        match Candidate::with_own_budget(policy)? {
            Some(candidate) => candidates.push(candidate),
            None => {
                for &budget in budgets {
                    candidates.push(Candidate::new(policy, budget)?);
                }
            }
        }
    }
    Ok(candidates)
}

/// Number of passes through the model in a study of the full cache and `candidates`, for a progress bar.
pub fn passes(sequences: &[Sequence], candidates: &[Candidate]) -> usize {
    (1 + candidates.len()) * sequences.iter().map(Sequence::passes).sum::<usize>()
}

/// The policy among `candidates` that needs the most scoring columns in a model, or the full cache if none needs any.
/// A model with these columns serves all candidates, because unused columns change nothing in the clear.
pub fn widest(candidates: &[Candidate]) -> PolicySpec {
    let policies = candidates.iter().map(|candidate| &candidate.policy);
    policies.into_iter().find(|policy| policy.scoring_head().is_some()).cloned().unwrap_or_default()
}

/// Runs a study of `subject` with the full cache and `candidates`, of which the [`widest`] policy decides whether
/// files are opened twice. `options` are the options that the report names. `tick` is called after each pass, from
/// any thread. The full cache stands behind all public tokens, and the candidates behind what their policy keeps.
///
/// # Errors
/// Errors of the model, and of a candidate that the engine cannot run.
pub fn evaluation(
    subject: Subject,
    options: BTreeMap<String, Value>,
    sequences: &[Sequence],
    candidates: &[Candidate],
    tick: &(dyn Fn() + Sync),
) -> Result<StudyReport, EvalError> {
    let info = ModelInfo::new(&subject.files.name, &subject.files.spec);
    let (mut scores, prefix) = (None, subject.prefix.clone());
    subject.run(&widest(candidates), &mut |runners| {
        scores = Some(compare(runners, prefix.as_ref(), sequences, candidates, tick)?);
        Ok(())
    })?;
    Ok(StudyReport::new(info, options, sequences, candidates, scores.expect("a model that is there was run")))
}
