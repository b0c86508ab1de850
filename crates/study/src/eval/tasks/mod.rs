//! Named tasks, which make the sequences of a study and choose the metrics that count.
//!
//! A task is one file with a [`Task`] and a line in [`TASKS`]. It makes [`Sequence`]s from its inputs. Metrics,
//! policies, engines, tables and plots know nothing of tasks.

mod continuation;
mod key_value;
mod longbench;
mod longbench_scores;
mod needle;
mod recall;
mod text;
mod words;

use std::sync::Arc;

use waggle_model::ModelSpec;
use waggle_tokenizer::Tokenizer;

use super::{EvalError, Sequence};

/// A named task.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    /// The task's name.
    pub name: &'static str,
    /// The question that the task asks, for help texts.
    pub about: &'static str,
    /// Version of the task. It is raised when the meaning of its sequences or scores changes.
    pub version: u32,
    /// Keys of the metrics that count in the task.
    pub metrics: &'static [&'static str],
    /// The names of the fields of [`TaskInput`] that the task reads, apart from the model and its tokenizer.
    pub takes: &'static [&'static str],
    /// Makes the task's sequences.
    pub sequences: fn(&TaskInput) -> Result<Vec<Sequence>, EvalError>,
}

/// All tasks.
pub const TASKS: [Task; 7] = [
    text::TASK,
    recall::TASK,
    needle::TASK,
    key_value::TASK,
    longbench::TASK,
    continuation::ROUGE_2,
    continuation::ROUGE_L,
];

impl Task {
    /// The task called `name`.
    pub fn named(name: &str) -> Option<&'static Task> {
        TASKS.iter().find(|task| task.name == name)
    }
}

/// The inputs of a task. A task has defaults for inputs that are missing.
#[derive(Clone)]
pub struct TaskInput<'a> {
    /// The model.
    pub spec: &'a ModelSpec,
    /// The model's tokenizer, if it has one.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// Texts to read.
    pub texts: Option<&'a [String]>,
    /// Data in JSON lines.
    pub data: Option<&'a str>,
    /// For each data set, the template of its prompts: a JSON object of texts that contain `{context}` and `{input}`.
    pub prompts: Option<&'a str>,
    /// Tokens of a sequence.
    pub context: Option<usize>,
    /// Tokens that go through the model at once.
    pub prompt: Option<usize>,
    /// Number of sequences to make from a text or from data. For needles, the number for each length and depth.
    pub sequences: Option<usize>,
    /// Lengths of haystacks in tokens.
    pub lengths: Option<&'a [usize]>,
    /// Depths of needles, from 0 (at the beginning) to 1.
    pub depths: Option<&'a [f64]>,
    /// The seed of all that is drawn at random.
    pub seed: u64,
}

impl TaskInput<'_> {
    fn tokenizer(&self, task: &'static str) -> Result<&Arc<Tokenizer>, EvalError> {
        self.tokenizer.as_ref().ok_or(EvalError::TaskNeeds { task, what: "a model with a tokenizer" })
    }
}

/// The tokens of `text` if it follows the text `before`. Both are encoded together, because a tokenizer may join
/// their tokens, and puts special tokens only before a whole text.
fn after(tokenizer: &Tokenizer, before: &str, text: &str) -> Result<Vec<u32>, EvalError> {
    let (before, whole) = (encode(tokenizer, before)?, encode(tokenizer, &format!("{before}{text}"))?);
    Ok(whole[common(&before, &whole)..].to_vec())
}

/// Number of tokens at the beginning that `a` and `b` have in common.
fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

fn encode(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>, EvalError> {
    tokenizer.encode(text).map_err(|error| EvalError::Tokenizer(error.to_string()))
}
