//! Question answering, summaries and more over long texts, from files in the form of LongBench.
//!
//! Each line of `--data` is an object with `input`, `context`, `answers`, `all_classes`, `dataset` and `length`;
//! other keys are ignored. The prompt follows the data set's entry in `--prompts`, a file like the authors'
//! `dataset2prompt.json`. By default it is the context, an empty line and the input. A prompt that is too long for
//! the model loses its middle, as published. The answer is generated greedily, with at most the published number of
//! tokens, and scored by the data set's published metric. In addition, the first reference answer is scored token by
//! token, for `perplexity` and all metrics relative to the full cache. Data sets in Chinese are refused, as their
//! metrics need a segmenter of Chinese words.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use waggle_tokenizer::Tokenizer;

use super::longbench_scores::{Measure, Score};
use super::{Task, TaskInput, after, encode};
use crate::eval::{EvalError, Grader, Sequence, Wanted};

pub(super) const TASK: Task = Task {
    name: "longbench",
    about: "answers to the lines of a file, in the form of LongBench",
    version: 1,
    metrics: &["score", "perplexity"],
    takes: &["data", "prompts", "context", "sequences"],
    sequences,
};

/// For each data set: its name, the measure of answers, and the largest number of tokens in an answer.
const DATASETS: [(&str, Measure, usize); 17] = [
    ("narrativeqa", Measure::F1, 128),
    ("qasper", Measure::F1, 128),
    ("multifieldqa_en", Measure::F1, 64),
    ("hotpotqa", Measure::F1, 32),
    ("2wikimqa", Measure::F1, 32),
    ("musique", Measure::F1, 32),
    ("gov_report", Measure::RougeL, 512),
    ("qmsum", Measure::RougeL, 512),
    ("multi_news", Measure::RougeL, 512),
    ("trec", Measure::Class, 64),
    ("triviaqa", Measure::F1, 32),
    ("samsum", Measure::RougeL, 128),
    ("passage_retrieval_en", Measure::Retrieval, 32),
    ("passage_count", Measure::Count, 32),
    ("lcc", Measure::Code, 64),
    ("repobench-p", Measure::Code, 64),
    // Not of LongBench: summaries of one sentence (Narayan et al., EMNLP 2018), which MPCache scores.
    ("xsum", Measure::Rouge2, 64),
];

/// Data sets in which only the first line of an answer counts.
const ONE_LINE: [&str; 3] = ["trec", "triviaqa", "samsum"];

/// A line of the data.
#[derive(Deserialize)]
struct Line {
    input: String,
    context: String,
    answers: Vec<String>,
    dataset: String,
    #[serde(default)]
    all_classes: Option<Vec<String>>,
    #[serde(default)]
    length: Option<u64>,
}

fn sequences(input: &TaskInput) -> Result<Vec<Sequence>, EvalError> {
    let tokenizer = input.tokenizer(TASK.name)?;
    let data = input.data.ok_or(EvalError::TaskNeeds { task: TASK.name, what: "data" })?;
    let prompts: BTreeMap<String, String> = input
        .prompts
        .map(|text| serde_json::from_str(text).map_err(|e| EvalError::Prompts(e.to_string())))
        .transpose()?
        .unwrap_or_default();
    let sequences: Vec<Sequence> = waggle_files::json_lines(data)
        .take(input.sequences.unwrap_or(usize::MAX))
        .map(|(line, read)| {
            let wrong = |what: String| EvalError::Query { line, what };
            let line: Line = read.map_err(wrong)?;
            let known = DATASETS.iter().find(|(name, ..)| *name == line.dataset.trim_end_matches("_e"));
            let Some((name, measure, tokens)) = known else {
                let names = DATASETS.map(|(name, ..)| name).join(", ");
                return Err(wrong(format!("no metric for the data set `{}`; known are {names}", line.dataset)));
            };
            if line.answers.is_empty() {
                return Err(wrong("no answers".into()));
            }
            let template = prompts.get(&line.dataset).or_else(|| prompts.get(*name));
            sequence(input, tokenizer, &line, template, *measure, *tokens, ONE_LINE.contains(name))
        })
        .collect::<Result<_, _>>()?;
    let wanted = input.sequences.unwrap_or(1).max(1);
    if sequences.len() < wanted {
        return Err(EvalError::TooFew { got: sequences.len(), wanted });
    }
    Ok(sequences)
}

fn sequence(
    input: &TaskInput,
    tokenizer: &Arc<Tokenizer>,
    line: &Line,
    template: Option<&String>,
    measure: Measure,
    tokens: usize,
    one_line: bool,
) -> Result<Sequence, EvalError> {
    let template = template.map_or("{context}\n\n{input}\n", String::as_str);
    let text = filled(template, &line.context, &line.input);
    let before: String = text.chars().skip(text.chars().count().saturating_sub(200)).collect();
    let mut answer = after(tokenizer, &before, &format!(" {}", line.answers[0].trim()))?;
    answer.truncate(tokens);
    if answer.is_empty() {
        answer = after(tokenizer, &before, "\n")?;
    }
    let most = input.context.unwrap_or_else(|| input.spec.max_positions()).min(input.spec.max_positions());
    let room = most.saturating_sub(tokens.max(answer.len()));
    if room < 2 {
        return Err(EvalError::TaskLength { task: TASK.name, length: most, least: tokens.max(answer.len()) + 2 });
    }
    let ids = encode(tokenizer, &text)?;
    let mut ids = if ids.len() > room {
        // The middle is left out, as the instruction is at the beginning and the question at the end.
        [&ids[..room / 2], &ids[ids.len() - (room - room / 2)..]].concat()
    } else {
        ids
    };
    let prompt = ids.len();
    let answered = answer.len();
    ids.extend(answer);
    let score = Score {
        measure,
        answers: line.answers.clone(),
        classes: line.all_classes.clone().unwrap_or_default(),
        one_line,
    };
    let grader = Arc::new(Graded { tokenizer: tokenizer.clone(), score });
    let sequence = Sequence::of_answer(ids, prompt, answered)?.with_wanted(Wanted { tokens, grader });
    let sequence = sequence.with_tag("dataset", line.dataset.clone()).with_tag("metric", measure.name());
    Ok(match line.length {
        Some(length) => sequence.with_tag("length", length),
        None => sequence,
    })
}

/// `template` with `context` and `input` in place of its placeholders. A placeholder that occurs inside `context` or
/// `input` is not replaced.
fn filled(template: &str, context: &str, input: &str) -> String {
    let parts = template.split("{context}").map(|part| part.replace("{input}", input));
    parts.collect::<Vec<_>>().join(context)
}

/// The grader of a generated answer's text.
pub(super) struct Graded {
    pub(super) tokenizer: Arc<Tokenizer>,
    pub(super) score: Score,
}

impl fmt::Debug for Graded {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.score.fmt(f)
    }
}

impl Grader for Graded {
    fn grade(&self, ids: &[u32]) -> Result<f64, EvalError> {
        Ok(self.score.of(&self.text(ids)?))
    }

    fn text(&self, ids: &[u32]) -> Result<String, EvalError> {
        self.tokenizer.decode(ids).map_err(|error| EvalError::Tokenizer(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_take_their_parts_literally() {
        assert_eq!(filled("Q {input} A {context}{input}", "{input}!", "x"), "Q x A {input}!x");
        assert_eq!(filled("none", "c", "i"), "none");
    }
}
