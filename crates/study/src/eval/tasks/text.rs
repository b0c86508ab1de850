//! The task of predicting each next token of a text.

use super::{Task, TaskInput, encode};
use crate::eval::{EvalError, Sequence};

pub(super) const TASK: Task = Task {
    name: "text",
    about: "the next token of a text",
    version: 1,
    metrics: &["perplexity", "accuracy"],
    takes: &["text", "context", "prompt", "sequences"],
    sequences,
};

/// Default number of tokens of a sequence.
const CONTEXT: usize = 256;

/// Default number of sequences.
const SEQUENCES: usize = 4;

fn sequences(input: &TaskInput) -> Result<Vec<Sequence>, EvalError> {
    let tokenizer = input.tokenizer(TASK.name)?;
    let texts = input.texts.ok_or(EvalError::TaskNeeds { task: TASK.name, what: "text" })?;
    let context = input.context.unwrap_or(CONTEXT);
    let prompt = input.prompt.unwrap_or(context / 2);
    let count = input.sequences.unwrap_or(SEQUENCES);
    let mut ids = Vec::new();
    for text in texts {
        if ids.len() >= context.saturating_mul(count) {
            break;
        }
        ids.extend(encode(tokenizer, text)?);
    }
    Sequence::cut(&ids, context, prompt, count)
}
