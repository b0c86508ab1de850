//! The engines of a study.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde_json::Value;
use waggle_engine::Float;
use waggle_model::{FloatModel, Model, ModelFiles};
use waggle_mpcache::PolicySpec;
use waggle_protocols::{Fixed, FixedLoader};
use waggle_report::ModelInfo;
use waggle_session::names::name;
use waggle_session::party::ModelServer;

use super::{Candidate, EvalError, InClear, Runner, Sequence, StudyReport, TwoParties, evaluate};

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
        self == StudyEngine::Secure && policy.needs_scoring_head()
    }

    /// Opens the model of `files` on this engine, with the scoring columns that `policy` needs, and calls `run` with
    /// it. `again` are the same files opened a second time; they are given if the engine [opens them
    /// twice](StudyEngine::opens_twice).
    ///
    /// # Errors
    /// Errors of the model and of `run`.
    pub fn run(
        self,
        files: ModelFiles,
        again: Option<ModelFiles>,
        policy: &PolicySpec,
        run: &mut dyn FnMut(&dyn Runner) -> Result<(), EvalError>,
    ) -> Result<(), EvalError> {
        match self {
            StudyEngine::Float => {
                let model = FloatModel::open(policy, &files)?;
                run(&InClear { model: &model, engine: Float::default })
            }
            StudyEngine::Fixed => {
                let (spec, checkpoint) = (&files.spec, Some(&files.checkpoint));
                let model = Model::load_for(policy, &mut FixedLoader::default(), spec, checkpoint)?;
                run(&InClear { model: &model, engine: Fixed::new })
            }
            StudyEngine::Secure => {
                let learned = again.map(|files| ModelServer::builder().policy(policy).load(files)).transpose()?;
                let server = ModelServer::builder().load(files)?;
                let protocol = waggle_protocols::Options::default();
                run(&TwoParties { server: &server, learned: learned.as_ref(), protocol })
            }
        }
    }
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
    policies.into_iter().find(|policy| policy.needs_scoring_head()).cloned().unwrap_or_default()
}

/// Runs a study of the model of `files` with the full cache and `candidates`. `again` are the same files opened a
/// second time; they are given if the engine [opens them twice](StudyEngine::opens_twice) for the [`widest`] policy.
/// `options` are the options that the report names. `tick` is called after each pass, from any thread.
///
/// # Errors
/// Errors of the model, and of a candidate that the engine cannot run.
pub fn evaluation(
    files: ModelFiles,
    again: Option<ModelFiles>,
    engine: StudyEngine,
    options: BTreeMap<String, Value>,
    sequences: &[Sequence],
    candidates: &[Candidate],
    tick: &(dyn Fn() + Sync),
) -> Result<StudyReport, EvalError> {
    let info = ModelInfo::new(&files.name, &files.spec);
    let mut scores = None;
    engine.run(files, again, &widest(candidates), &mut |runner| {
        scores = Some(evaluate(runner, sequences, candidates, tick)?);
        Ok(())
    })?;
    Ok(StudyReport::new(info, options, sequences, candidates, scores.expect("a model that is there was run")))
}
