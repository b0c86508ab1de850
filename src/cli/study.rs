//! Studies of cache policies: what `waggle eval` and programs in other languages have in common.

use clap::ValueEnum;
use engine::{Engine, Float, FloatLoader};
use model::{Model, ModelFiles};
use mpcache::PolicySpec;
use protocols::{Fixed, FixedLoader};
use session::party::ModelServer;
use study::eval::{Candidate, InClear, Runner, Scores, Sequence, TwoParties, evaluate};

use super::Error;
use super::files::open_model;

/// What computes a study.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StudyEngine {
    /// f32.
    Float,
    /// Fixed point as the parties compute it, in the clear.
    Fixed,
    /// Two parties.
    Secure,
}

impl StudyEngine {
    /// Its name, as the option has it.
    pub(super) fn name(self) -> &'static str {
        match self {
            StudyEngine::Float => "float",
            StudyEngine::Fixed => "fixed",
            StudyEngine::Secure => "secure",
        }
    }
}

/// Each of `policies` at each of `budgets`, or at its own budget alone. The full cache is no candidate: it always
/// runs.
pub(super) fn candidates<'a>(
    policies: impl IntoIterator<Item = &'a PolicySpec>,
    budgets: &[f64],
) -> Result<Vec<Candidate>, Error> {
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

/// Passes through the model that a study takes.
pub(super) fn passes(sequences: &[Sequence], candidates: &[Candidate]) -> usize {
    (1 + candidates.len()) * sequences.iter().map(Sequence::passes).sum::<usize>()
}

/// Runs a study of the model called `name`, whose files are `files`: the scores of the full cache and of the
/// candidates. `tick` is called after each pass, from any thread.
pub(super) fn scores(
    name: &str,
    files: ModelFiles,
    engine: StudyEngine,
    sequences: &[Sequence],
    candidates: &[Candidate],
    tick: &(dyn Fn() + Sync),
) -> Result<(Scores, Vec<Scores>), Error> {
    // One model serves all: columns that a policy has no use for change nothing in the clear.
    let widest = candidates.iter().map(|candidate| &candidate.policy).find(|policy| policy.needs_scoring_head());
    let widest = widest.cloned().unwrap_or_default();
    let run = |runner: &dyn Runner| evaluate(runner, sequences, candidates, tick);
    let scores = match engine {
        StudyEngine::Float => {
            let model = Model::load_for(&widest, &mut FloatLoader, &files.spec, Some(&files.checkpoint))?;
            run(&in_clear(&model, Float::default))
        }
        StudyEngine::Fixed => {
            let model = Model::load_for(&widest, &mut FixedLoader::default(), &files.spec, Some(&files.checkpoint))?;
            run(&in_clear(&model, Fixed::new))
        }
        StudyEngine::Secure => {
            let learned = match widest.needs_scoring_head() {
                true => Some(ModelServer::load_for(&widest, open_model(name)?)?),
                false => None,
            };
            let server = ModelServer::load(files)?;
            let protocol = protocols::Options::default();
            run(&TwoParties { server: &server, learned: learned.as_ref(), protocol })
        }
    };
    Ok(scores?)
}

/// A runner on engines that see their values.
fn in_clear<E: Engine>(model: &Model<E::Weight>, engine: fn() -> E) -> InClear<'_, E> {
    InClear { model, engine }
}
