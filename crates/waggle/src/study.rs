//! Studies of cache policies.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde_json::Value;
use waggle_engine::{Engine, Float, FloatLoader};
use waggle_model::{Model, ModelFiles};
use waggle_mpcache::PolicySpec;
use waggle_protocols::{Fixed, FixedLoader};
use waggle_report::ModelInfo;
use waggle_session::names::name;
use waggle_session::party::ModelServer;
use waggle_study::eval::{Candidate, InClear, Runner, Sequence, StudyReport, TwoParties, evaluate};
use waggle_study::glue::{GlueError, GlueReport, TASK, answers, read};

use crate::Error;
use crate::error::PromptError;
use crate::models::{Prompt, open_model, read_text, tokenizer};
use crate::options::options;
use crate::summary::provenance;

/// The engine of a study.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StudyEngine {
    /// f32.
    Float,
    /// Fixed point as the parties compute it, in the clear.
    Fixed,
    /// Two parties.
    Secure,
}

impl StudyEngine {
    /// All of them by name.
    pub const NAMES: [(&'static str, StudyEngine); 3] =
        [("float", StudyEngine::Float), ("fixed", StudyEngine::Fixed), ("secure", StudyEngine::Secure)];
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

options! {
    /// A study of what cache policies cost in accuracy on a text, beside the full cache.
    Study {
        /// Model directory or bundled name.
        model: String as impl Into<String> = crate::DEFAULT_MODEL.into(),
        /// The text, which is cut into sequences.
        text: Prompt as impl Into<Prompt> = Prompt::Text(String::new()),
        /// The policies. One with a `budget` of its own runs at that one alone.
        policies: Vec<PolicySpec> = Vec::new(),
        /// Shares of the cache, or tokens from 2 on.
        budgets: Vec<f64> = vec![0.05, 0.1, 0.25, 0.5, 1.0],
        /// Tokens of a sequence.
        context: usize = 256,
        /// Tokens of a sequence that go through the model at once; what follows is scored.
        prompt: usize = 128,
        /// Sequences.
        sequences: usize = 4,
        /// The engine.
        engine: StudyEngine = StudyEngine::Float,
    }
}

impl Study {
    /// Runs it. `tick` is called after each pass through the model, from any thread, with how many there are in all.
    ///
    /// # Errors
    /// If there is no such model, the text is too short, or a policy does not fit model or engine.
    pub fn run(&self, tick: &(dyn Fn(usize) + Sync)) -> Result<StudyReport, Error> {
        let files = open_model(&self.model)?;
        let ids = self.text.clone().read()?.ids(tokenizer(&files)?.as_ref())?;
        let sequences = Sequence::cut(&ids, self.context, self.prompt, self.sequences)?;
        let candidates = candidates(&self.policies, &self.budgets)?;
        let policies: Vec<String> = self.policies.iter().map(PolicySpec::to_string).collect();
        let options = [
            ("task", "text".into()),
            ("engine", self.engine.to_string().into()),
            ("policies", policies.into()),
            ("budgets", self.budgets.clone().into()),
            ("context", self.context.into()),
            ("prompt", self.prompt.into()),
        ];
        let options = options.map(|(name, value)| (name.to_owned(), value)).into();
        let all = passes(&sequences, &candidates);
        evaluation(&self.model, files, self.engine, options, &sequences, &candidates, &|| tick(all))
    }
}

options! {
    /// A study of an encoder on a file in the form of one of GLUE's tasks: right classes or scores, and what differs
    /// from f32.
    GlueStudy {
        /// Model directory or bundled name.
        model: String as impl Into<String> = crate::DEFAULT_MODEL.into(),
        /// The file, which has a text or two and a label or a score in a line; some are bundled.
        data: PathBuf as impl Into<PathBuf> = PathBuf::new(),
        /// Lines of it, from the first on; unless told otherwise all.
        sequences: Option<usize> as impl Into<Option<usize>> = None,
        /// The engine.
        engine: StudyEngine = StudyEngine::Float,
    }
}

impl GlueStudy {
    /// Runs it. `tick` is called for each answer of either engine, from any thread, with how many there are in all.
    ///
    /// # Errors
    /// If there is no such model, it gives neither class nor score, or a line of the file has no example for it.
    pub fn run(&self, tick: &(dyn Fn(usize) + Sync)) -> Result<GlueReport, Error> {
        let files = open_model(&self.model)?;
        let labels = files.spec.labels().ok_or_else(|| GlueError::NoEncoder(files.name.clone()))?;
        if files.spec.is_multi_label() {
            return Err(GlueError::MultiLabel(files.name.clone()).into());
        }
        let mut examples = read(&read_text(&self.data)?, &labels)?;
        examples.truncate(self.sequences.unwrap_or(usize::MAX));
        if examples.is_empty() {
            return Err(GlueError::Empty.into());
        }
        let tokenizer = tokenizer(&files)?.ok_or(PromptError::NoTokenizer)?;
        let engines = if self.engine == StudyEngine::Float { 1 } else { 2 };
        let tick = || tick(engines * examples.len());
        let ask = |engine| {
            on(engine, &self.model, open_model(&self.model)?, &PolicySpec::default(), |runner| {
                Ok(answers(runner, &tokenizer, &examples, &tick)?)
            })
        };
        let float = ask(StudyEngine::Float)?;
        let answers = if engines == 1 { float.clone() } else { ask(self.engine)? };
        let data = self.data.file_name().map(|name| name.to_string_lossy());
        let options = [("task", TASK.into()), ("engine", self.engine.to_string().into()), ("data", data.into())];
        let options = options.map(|(name, value)| (name.to_owned(), value)).into();
        let mut report = GlueReport::new(ModelInfo::new(&files.name, &files.spec), labels, options, answers, &float);
        report.provenance = provenance();
        Ok(report)
    }
}

/// Each of `policies` at each of `budgets`, or at its own budget alone. The full cache is no candidate: it always
/// runs.
pub fn candidates<'a>(
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

/// Passes over a sequence that a study of `candidates` makes, for its progress.
pub fn passes(sequences: &[Sequence], candidates: &[Candidate]) -> usize {
    (1 + candidates.len()) * sequences.iter().map(Sequence::passes).sum::<usize>()
}

/// Runs a study of the model called `name`, whose files are `files`, with the full cache and the candidates;
/// `options` are what its report names. `tick` is called after each pass, from any thread.
pub fn evaluation(
    name: &str,
    files: ModelFiles,
    engine: StudyEngine,
    options: BTreeMap<String, Value>,
    sequences: &[Sequence],
    candidates: &[Candidate],
    tick: &(dyn Fn() + Sync),
) -> Result<StudyReport, Error> {
    let info = ModelInfo::new(&files.name, &files.spec);
    // One model serves all: columns that a policy has no use for change nothing in the clear.
    let widest = candidates.iter().map(|candidate| &candidate.policy).find(|policy| policy.needs_scoring_head());
    let widest = widest.cloned().unwrap_or_default();
    let scores = on(engine, name, files, &widest, |runner| Ok(evaluate(runner, sequences, candidates, tick)?))?;
    let mut study = StudyReport::new(info, options, sequences, candidates, scores);
    study.provenance = provenance();
    Ok(study)
}

/// What `run` makes of a model on an engine, with the columns that `policy` needs.
fn on<T>(
    engine: StudyEngine,
    name: &str,
    files: ModelFiles,
    policy: &PolicySpec,
    run: impl FnOnce(&dyn Runner) -> Result<T, Error>,
) -> Result<T, Error> {
    match engine {
        StudyEngine::Float => {
            let model = Model::load_for(policy, &mut FloatLoader, &files.spec, Some(&files.checkpoint))?;
            run(&in_clear(&model, Float::default))
        }
        StudyEngine::Fixed => {
            let model = Model::load_for(policy, &mut FixedLoader::default(), &files.spec, Some(&files.checkpoint))?;
            run(&in_clear(&model, Fixed::new))
        }
        StudyEngine::Secure => {
            let learned = match policy.needs_scoring_head() {
                true => Some(ModelServer::builder().policy(policy).load(open_model(name)?)?),
                false => None,
            };
            let server = ModelServer::builder().load(files)?;
            let protocol = waggle_protocols::Options::default();
            run(&TwoParties { server: &server, learned: learned.as_ref(), protocol })
        }
    }
}

/// A runner on engines that see their values.
fn in_clear<E: Engine>(model: &Model<E::Weight>, engine: fn() -> E) -> InClear<'_, E> {
    InClear { model, engine }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_study_takes_a_policy_with_its_own_budget_once() {
        let text = "First Citizen:\nBefore we proceed any further, hear me speak.\n".repeat(2);
        let policies = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        let study = Study::default()
            .model("shakespeare-gpt2")
            .text(text)
            .policies(policies(&["streaming:budget=0.5", "h2o"]))
            .budgets(vec![0.25, 0.5])
            .context(48)
            .prompt(40)
            .sequences(1);
        let ticks = std::sync::atomic::AtomicUsize::new(0);
        let report = study
            .run(&|all| {
                assert_eq!(all, 4 * 8);
                ticks.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            })
            .unwrap();
        assert_eq!(ticks.into_inner(), 4 * 8);
        let labels: Vec<&str> = report.rows.iter().map(|row| row.label.as_str()).collect();
        assert_eq!(labels, ["full", "streaming:budget=0.5", "h2o", "h2o"]);
        let secure = study.engine(StudyEngine::Secure).policies(policies(&["oracle"]));
        assert!(secure.run(&|_| ()).unwrap_err().to_string().contains("oracle"));
    }
}
