//! Multi-query associative recall, from a file of sequences.

use super::{Task, TaskInput};
use crate::eval::{EvalError, Sequence};

pub(super) const TASK: Task = Task {
    name: "recall",
    about: "the answers to the queries of a file, many in a sequence",
    version: 1,
    metrics: &["exact_match", "perplexity"],
    takes: &["data", "prompt", "sequences"],
    sequences,
};

fn sequences(input: &TaskInput) -> Result<Vec<Sequence>, EvalError> {
    let data = input.data.ok_or(EvalError::TaskNeeds { task: TASK.name, what: "data" })?;
    Sequence::of_queries(data, input.prompt, input.sequences)
}
