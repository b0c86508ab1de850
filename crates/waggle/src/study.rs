//! Studies of cache policies.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use waggle_model::ModelFiles;
use waggle_mpcache::PolicySpec;
use waggle_report::ModelInfo;
use waggle_session::party::{Event, Flow, nobody};
use waggle_study::eval::{Sequence, StudyEngine, StudyReport, Subject, candidates, evaluation, learned, passes};
use waggle_study::glue::{GlueError, GlueReport, TASK, answers, read};

use crate::Error;
use crate::error::PromptError;
use crate::models::open_model;
use crate::options::options;
use crate::prompt::{Prompt, read_text};
use crate::reader::tokenizer;
use crate::summary::provenance;

options! {
    /// A study of the accuracy that cache policies cost on a text, compared with the full cache.
    Study {
        /// Model directory or bundled name.
        model: String as impl Into<String> = crate::DEFAULT_MODEL.into(),
        /// The text, which is cut into sequences.
        text: Prompt as impl Into<Prompt> = Prompt::Text(String::new()),
        /// The policies. A policy with a `budget` of its own runs at that budget alone.
        policies: Vec<PolicySpec> = Vec::new(),
        /// Budgets of the policies: a share of the cache, or from 2 on a number of tokens.
        budgets: Vec<f64> = vec![0.05, 0.1, 0.25, 0.5, 1.0],
        /// Tokens of a sequence.
        context: usize = 256,
        /// Tokens of a sequence that the model reads at once as the prompt. The tokens after them are scored.
        prompt: usize = 128,
        /// Number of sequences.
        sequences: usize = 4,
        /// The engine.
        engine: StudyEngine = StudyEngine::Float,
    }
}

impl Study {
    /// Runs the study.
    ///
    /// # Errors
    /// If there is no such model, the text is too short, or a policy does not fit model or engine.
    pub fn run(&self) -> Result<StudyReport, Error> {
        self.run_with(&mut nobody)
    }

    /// Runs the study, watched: [`Event::Studied`] comes after each pass through the model.
    ///
    /// # Errors
    /// As `run`.
    pub fn run_with(&self, watch: &mut (impl FnMut(Event<'_>) -> Flow + Send)) -> Result<StudyReport, Error> {
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
        let again = again(self.engine, &self.model, &learned(&candidates))?;
        let tick = told(watch, all);
        let subject = Subject { files, again, engine: self.engine, prefix: None };
        let mut study = evaluation(subject, options, &sequences, &candidates, &tick)?;
        study.provenance = provenance();
        Ok(study)
    }
}

options! {
    /// A study of an encoder on a file in the form of one of GLUE's tasks: how many classes or scores are right, and
    /// how far they agree with f32.
    GlueStudy {
        /// Model directory or bundled name.
        model: String as impl Into<String> = crate::DEFAULT_MODEL.into(),
        /// The file. Each line has one or two texts and a label or a score. Some files are bundled.
        data: PathBuf as impl Into<PathBuf> = PathBuf::new(),
        /// Number of examples, from the first line on; all by default.
        sequences: Option<usize> as impl Into<Option<usize>> = None,
        /// The engine.
        engine: StudyEngine = StudyEngine::Float,
        /// The policy, under which rows may end before the last layer. It is compared with all rows in f32.
        policy: PolicySpec = PolicySpec::default(),
    }
}

impl GlueStudy {
    /// Runs the study.
    ///
    /// # Errors
    /// If there is no such model, if it gives neither class nor score, or if a line of the file is no example for it.
    pub fn run(&self) -> Result<GlueReport, Error> {
        self.run_with(&mut nobody)
    }

    /// Runs the study, watched: [`Event::Studied`] comes for each answer of either engine.
    ///
    /// # Errors
    /// As `run`.
    pub fn run_with(&self, watch: &mut (impl FnMut(Event<'_>) -> Flow + Send)) -> Result<GlueReport, Error> {
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
        let whole = PolicySpec::default();
        let engines = if self.engine == StudyEngine::Float && self.policy == whole { 1 } else { 2 };
        let tick = told(watch, engines * examples.len());
        let ask = |engine: StudyEngine, policy: &PolicySpec| {
            let mut found = None;
            let subject = Subject { files: open_model(&self.model)?, again: Vec::new(), engine, prefix: None };
            subject.run(&[], &mut |[runner, _]| {
                found = Some(answers(runner, &tokenizer, &examples, policy, &tick));
                Ok(())
            })?;
            Ok::<_, Error>(found.transpose()?.unwrap_or_default())
        };
        let float = ask(StudyEngine::Float, &whole)?;
        let answers = if engines == 1 { float.clone() } else { ask(self.engine, &self.policy)? };
        let data = self.data.file_name().map(|name| name.to_string_lossy());
        let policy = (self.policy != whole).then(|| ("policy", self.policy.to_string().into()));
        let options = [("task", TASK.into()), ("engine", self.engine.to_string().into()), ("data", data.into())];
        let options = options.into_iter().chain(policy);
        let options = options.map(|(name, value)| (name.to_owned(), value)).collect();
        let mut report = GlueReport::new(ModelInfo::new(&files.name, &files.spec), labels, options, answers, &float);
        report.provenance = provenance();
        Ok(report)
    }
}

/// Returns a function that tells `watch` that a pass is done. Any thread may call it, once for each of `of` passes.
fn told(watch: &mut (impl FnMut(Event<'_>) -> Flow + Send), of: usize) -> impl Fn() + Sync {
    let watch = Mutex::new(watch);
    move || {
        // A watcher that panicked ends the study with its panic.
        let mut watch = watch.lock().unwrap_or_else(PoisonError::into_inner);
        watch(Event::Studied { of });
    }
}

/// Opens the model `name` as often again as a study with the `learned` policies needs.
pub fn again(engine: StudyEngine, name: &str, learned: &[PolicySpec]) -> Result<Vec<ModelFiles>, Error> {
    (0..engine.opens_again(learned)).map(|_| open_model(name)).collect()
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
        let mut passes = 0;
        let mut count = |event: Event<'_>| {
            if let Event::Studied { of } = event {
                assert_eq!(of, 4 * 8);
                passes += 1;
            }
            Flow::GoOn
        };
        let report = study.run_with(&mut count).unwrap();
        assert_eq!(passes, 4 * 8);
        let labels: Vec<&str> = report.rows.iter().map(|row| row.label.as_str()).collect();
        assert_eq!(labels, ["full", "streaming:budget=0.5", "h2o", "h2o"]);
        let secure = study.engine(StudyEngine::Secure).policies(policies(&["oracle"]));
        assert!(secure.run().unwrap_err().to_string().contains("oracle"));
    }
}
