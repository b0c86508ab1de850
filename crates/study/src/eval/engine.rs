//! The engines of a study.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde_json::Value;
use waggle_engine::{Float, FloatLoader, Select, WeightLoader};
use waggle_model::{FloatModel, Input, Model, ModelFiles, ModelSpec};
use waggle_mpcache::{PolicySpec, Prefix};
use waggle_protocols::{Fixed, FixedLoader};
use waggle_report::ModelInfo;
use waggle_session::PublicPrefix;
use waggle_session::names::name;
use waggle_session::party::ModelServer;

use super::run::compare;
use super::{Candidate, EvalError, InClear, Runner, Sequence, StudyReport, Trace, TwoParties};

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

    /// How many more times a study on this engine opens the model's files: two parties run a model without scoring
    /// columns and, for each of the `learned` policies, one with those of the policy.
    pub fn opens_again(self, learned: &[PolicySpec]) -> usize {
        if self == StudyEngine::Secure { learned.len() } else { 0 }
    }
}

/// The model of a study.
pub struct Subject {
    /// Its files.
    pub files: ModelFiles,
    /// The same files, opened as often again as the engine [needs](StudyEngine::opens_again).
    pub again: Vec<ModelFiles>,
    /// The engine.
    pub engine: StudyEngine,
    /// Public tokens before every sequence.
    pub prefix: Option<PublicPrefix>,
}

/// What is done with a model behind all public tokens, and behind what is left of these.
pub type Studied<'a> = dyn FnMut([&dyn Runner; 2]) -> Result<(), EvalError> + 'a;

impl Subject {
    /// Opens the model on its engine, with the scoring columns of each of the [`learned`] policies, and calls `run`
    /// with it twice: behind all public tokens, and behind what is left of these where their policy has pruned them.
    ///
    /// # Errors
    /// Errors of the model and of `run`.
    pub fn run(self, learned: &[PolicySpec], run: &mut Studied<'_>) -> Result<(), EvalError> {
        let Subject { files, again, engine, prefix } = self;
        let prefix = prefix.as_ref();
        // In the clear a policy without a head runs on any model: the columns change nothing.
        let plain = [PolicySpec::default()];
        let each = if learned.is_empty() { &plain } else { learned };
        match engine {
            StudyEngine::Float => {
                let models = each.iter().map(|policy| FloatModel::open(policy, &files));
                in_clear(&models.collect::<Result<Vec<_>, _>>()?, Float::default, &mut FloatLoader, prefix, run)
            }
            StudyEngine::Fixed => {
                let (spec, checkpoint) = (&files.spec, Some(&files.checkpoint));
                let mut loader = FixedLoader::default();
                let models = each.iter().map(|policy| Model::load_for(policy, &mut loader, spec, checkpoint));
                in_clear(&models.collect::<Result<Vec<_>, _>>()?, Fixed::new, &mut loader, prefix, run)
            }
            StudyEngine::Secure => {
                let mut servers = vec![(None, ModelServer::builder().load(files)?)];
                for (policy, files) in learned.iter().zip(again) {
                    servers.push((policy.scoring_head(), ModelServer::builder().policy(policy).load(files)?));
                }
                let protocol = waggle_protocols::Options::default();
                let behind = |prefix: Option<PublicPrefix>| {
                    let of = |(head, server)| (head, TwoParties { server, protocol, prefix: prefix.clone() });
                    ByHead(servers.iter().map(|(head, server)| of((*head, server))).collect())
                };
                run([&behind(prefix.map(PublicPrefix::whole)), &behind(prefix.cloned())])
            }
        }
    }
}

/// [`Subject::run`] for `models` in the clear, which differ in their scoring heads.
fn in_clear<E: Select>(
    models: &[Model<E::Weight>],
    engine: fn() -> E,
    loader: &mut dyn WeightLoader<Weight = E::Weight>,
    prefix: Option<&PublicPrefix>,
    run: &mut Studied<'_>,
) -> Result<(), EvalError> {
    let mut behind = |prefix: Option<PublicPrefix>| {
        let Some(prefix) = prefix else { return Ok(models.to_vec()) };
        let (ids, policy) = (prefix.ids(), prefix.policy());
        let mut behind = Vec::with_capacity(models.len());
        for model in models {
            let layers = model.read_prefix(&mut engine(), Input::known(ids), ids.len(), policy)?;
            let read =
                Prefix::load(&prefix.digest(), ids.len(), &layers, loader).map_err(waggle_model::Error::from)?;
            behind.push(model.after(read.into()));
        }
        Ok::<_, EvalError>(behind)
    };
    let [whole, pruned] = [behind(prefix.map(PublicPrefix::whole))?, behind(prefix.cloned())?];
    let [whole, pruned] = [&whole, &pruned]
        .map(|models| ByHead(models.iter().map(|model| (model.scoring_head(), InClear { model, engine })).collect()));
    run([&whole, &pruned])
}

/// Runners of one model with each of the scoring heads that a study needs. Policies without a head take the first.
struct ByHead<R>(Vec<(Option<&'static str>, R)>);

impl<R: Runner> ByHead<R> {
    fn of(&self, policy: &PolicySpec) -> &R {
        let head = policy.scoring_head();
        let (_, runner) = self.0.iter().find(|(of, _)| *of == head).unwrap_or(&self.0[0]);
        runner
    }
}

impl<R: Runner> Runner for ByHead<R> {
    fn spec(&self) -> ModelSpec {
        self.0[0].1.spec()
    }

    fn sees(&self) -> bool {
        self.0[0].1.sees()
    }

    fn most_at_once(&self) -> usize {
        self.0[0].1.most_at_once()
    }

    fn run(&self, sequence: &Sequence, policy: &PolicySpec, tick: &(dyn Fn() + Sync)) -> Result<Trace, EvalError> {
        self.of(policy).run(sequence, policy, tick)
    }

    fn run_together(
        &self,
        sequences: &[Sequence],
        policy: &PolicySpec,
        tick: &(dyn Fn() + Sync),
    ) -> Result<Vec<Trace>, EvalError> {
        self.of(policy).run_together(sequences, policy, tick)
    }

    fn most_side_by_side(&self) -> usize {
        self.0[0].1.most_side_by_side()
    }

    fn classify(&self, texts: &[(Vec<u32>, Option<usize>)], policy: &PolicySpec) -> Result<Vec<Vec<f32>>, EvalError> {
        self.of(policy).classify(texts, policy)
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

/// The policies among `candidates` that need scoring columns in a model: the first for each scoring head.
pub fn learned(candidates: &[Candidate]) -> Vec<PolicySpec> {
    let mut learned: Vec<PolicySpec> = Vec::new();
    for Candidate { policy, .. } in candidates {
        let known = |other: &PolicySpec| other.scoring_head() == policy.scoring_head();
        if policy.scoring_head().is_some() && !learned.iter().any(known) {
            learned.push(policy.clone());
        }
    }
    learned
}

/// Runs a study of `subject` with the full cache and `candidates`, of which the [`learned`] ones decide how often
/// files are opened. `options` are the options that the report names. `tick` is called after each pass, from
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
    subject.run(&learned(candidates), &mut |runners| {
        scores = Some(compare(runners, prefix.as_ref(), sequences, candidates, tick)?);
        Ok(())
    })?;
    Ok(StudyReport::new(info, options, sequences, candidates, scores.expect("a model that is there was run")))
}
