//! The rest of a text, generated greedily after its beginning, against the text's own by ROUGE.
//!
//! It stands for a summary where a model is too small for one: MPCache scores summaries by ROUGE (figure 18). Each
//! sequence lies within one text.

use std::sync::Arc;

use super::longbench::Graded;
use super::longbench_scores::{Measure, Score};
use super::{Task, TaskInput, encode};
use crate::eval::{EvalError, Sequence, Wanted};

pub(super) const ROUGE_2: Task = Task {
    name: "rouge-2",
    about: "the rest of a text, generated, by the pairs of words that it has in common with the text's own",
    sequences: |input| sequences(input, Measure::Rouge2),
    ..ROUGE_L
};

pub(super) const ROUGE_L: Task = Task {
    name: "rouge-l",
    about: "the same by longest common subsequences of words",
    version: 1,
    metrics: &["score", "perplexity"],
    takes: &["text", "context", "prompt", "sequences"],
    sequences: |input| sequences(input, Measure::RougeL),
};

/// Default number of tokens of a sequence, half of which are the beginning.
const CONTEXT: usize = 256;

/// Default number of sequences.
const SEQUENCES: usize = 16;

fn sequences(input: &TaskInput, measure: Measure) -> Result<Vec<Sequence>, EvalError> {
    let task = measure.name();
    let tokenizer = input.tokenizer(task)?;
    let texts = input.texts.ok_or(EvalError::TaskNeeds { task, what: "text" })?;
    let context = input.context.unwrap_or(CONTEXT).max(1);
    let prompt = input.prompt.unwrap_or(context / 2);
    let wanted = input.sequences.unwrap_or(SEQUENCES);
    let mut sequences = Vec::new();
    for text in texts {
        for ids in encode(tokenizer, text)?.chunks_exact(context).take(wanted - sequences.len()) {
            let sequence = Sequence::of_text(ids, prompt)?.with_tag("metric", measure.name());
            let rest = tokenizer.decode(&ids[prompt..]).map_err(|error| EvalError::Tokenizer(error.to_string()))?;
            let score = Score { measure, answers: vec![rest], classes: Vec::new(), one_line: false };
            let grader = Arc::new(Graded { tokenizer: tokenizer.clone(), score });
            sequences.push(sequence.with_wanted(Wanted { tokens: context - prompt, grader }));
        }
    }
    let got = sequences.len();
    if got < wanted { Err(EvalError::TooFew { got, wanted }) } else { Ok(sequences) }
}
