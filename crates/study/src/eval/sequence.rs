//! Token sequences, and their scored positions.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::EvalError;

/// Tokens that are fed to a model, with the positions at which the model's prediction is scored.
#[derive(Clone, Debug)]
pub struct Sequence {
    ids: Vec<u32>,
    prompt: usize,
    scored: Vec<usize>,
    /// For each answer, its range of indices into `scored`.
    answers: Vec<Range<usize>>,
    wanted: Option<Wanted>,
    tags: BTreeMap<String, Value>,
}

/// Asks for an answer that the model generates greedily after the prompt, until a token that ends a text.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Most tokens of the answer.
    pub tokens: usize,
    /// The grader of the answer.
    pub grader: Arc<dyn Grader>,
}

/// Judges a generated answer.
pub trait Grader: Debug + Send + Sync {
    /// The score of the tokens `ids`, from 0 to 1.
    ///
    /// # Errors
    /// Errors of the tokenizer that turns ids into text.
    fn grade(&self, ids: &[u32]) -> Result<f64, EvalError>;

    /// The text of the tokens `ids`, which the report shows.
    ///
    /// # Errors
    /// As [`grade`](Self::grade).
    fn text(&self, ids: &[u32]) -> Result<String, EvalError>;
}

/// A line of a file of queries.
#[derive(Deserialize)]
struct Queries {
    ids: Vec<u32>,
    queries: Vec<usize>,
}

impl Sequence {
    /// The sequence of `ids`, of which the first `prompt` go through the model at once. Every position after the
    /// prompt, except the last one, is scored on its prediction of the next id.
    pub fn of_text(ids: &[u32], prompt: usize) -> Result<Self, EvalError> {
        let context = ids.len();
        if prompt == 0 || prompt + 1 >= context {
            return Err(EvalError::Prompt { prompt, context });
        }
        Ok(Sequence::new(ids.to_vec(), prompt, (prompt..context - 1).collect()))
    }

    /// The sequence of `ids`, of which the first `prompt` go through the model at once. The last `answer` ids are one
    /// answer; the positions that predict these ids are scored.
    ///
    /// # Errors
    /// [`EvalError::Prompt`] unless there is a prompt before the answer.
    pub fn of_answer(ids: Vec<u32>, prompt: usize, answer: usize) -> Result<Self, EvalError> {
        let context = ids.len();
        let last = context.saturating_sub(1);
        // The position before the answer predicts the answer's first token. It may be the prompt's last position.
        let first = last.saturating_sub(answer);
        if prompt == 0 || answer == 0 || answer >= context || first + 1 < prompt {
            return Err(EvalError::Prompt { prompt, context });
        }
        let mut sequence = Sequence::new(ids, prompt, (first..last).collect());
        sequence.answers = std::iter::once(0..answer).collect();
        Ok(sequence)
    }

    fn new(ids: Vec<u32>, prompt: usize, scored: Vec<usize>) -> Self {
        Sequence { ids, prompt, scored, answers: Vec::new(), wanted: None, tags: BTreeMap::new() }
    }

    /// This sequence, with an answer to generate after the prompt.
    #[must_use]
    pub fn with_wanted(self, wanted: Wanted) -> Self {
        Sequence { wanted: Some(wanted), ..self }
    }

    /// This sequence, with a property called `name` that the report shows, for example the length.
    #[must_use]
    pub fn with_tag(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.tags.insert(name.to_owned(), value.into());
        self
    }

    /// Cuts the beginning of `ids` into `count` consecutive sequences of `context` tokens, each as in
    /// [`of_text`](Self::of_text).
    pub fn cut(ids: &[u32], context: usize, prompt: usize, count: usize) -> Result<Vec<Self>, EvalError> {
        if prompt == 0 || prompt.saturating_add(1) >= context {
            return Err(EvalError::Prompt { prompt, context });
        }
        let sequences = ids.chunks_exact(context).take(count).map(|ids| Self::of_text(ids, prompt));
        let sequences = sequences.collect::<Result<Vec<_>, _>>()?;
        if sequences.len() < count || count == 0 {
            return Err(EvalError::TooShort { tokens: ids.len(), sequences: count.max(1), context });
        }
        Ok(sequences)
    }

    /// Reads sequences of associative recall from JSON lines `{"ids": [...], "queries": [...]}`. The numbers in
    /// `queries` are positions whose right prediction is the next id. The first `prompt` ids, by default four fifths
    /// of a line's ids, go through the model at once. The queries after the prompt are scored. Reads the first
    /// `count` lines, or all.
    pub fn of_queries(lines: &str, prompt: Option<usize>, count: Option<usize>) -> Result<Vec<Self>, EvalError> {
        let sequences = waggle_files::json_lines(lines).take(count.unwrap_or(usize::MAX)).map(|(line, read)| {
            let wrong = |what: String| EvalError::Query { line, what };
            let Queries { ids, queries } = read.map_err(wrong)?;
            let context = ids.len();
            let prompt = prompt.unwrap_or(context * 4 / 5);
            if prompt == 0 || prompt + 1 >= context {
                return Err(EvalError::Prompt { prompt, context });
            }
            if let Some(last) = queries.iter().find(|q| **q + 1 >= context) {
                return Err(wrong(format!("the query at {last} has no answer in {context} tokens")));
            }
            let mut scored: Vec<usize> = queries.into_iter().filter(|q| *q >= prompt).collect();
            scored.sort_unstable();
            scored.dedup();
            if scored.is_empty() {
                return Err(wrong(format!("no query follows a prompt of {prompt} tokens")));
            }
            let answers = (0..scored.len()).map(|i| i..i + 1).collect();
            Ok(Sequence { answers, ..Sequence::new(ids, prompt, scored) })
        });
        let sequences = sequences.collect::<Result<Vec<_>, _>>()?;
        let wanted = count.unwrap_or(1).max(1);
        if sequences.len() < wanted {
            return Err(EvalError::TooFew { got: sequences.len(), wanted });
        }
        Ok(sequences)
    }

    /// All tokens.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Tokens that go through the model at once.
    pub fn prompt(&self) -> usize {
        self.prompt
    }

    /// The positions at which the prediction of the next token is scored, ascending. None comes before the last
    /// position of the [`prompt`](Self::prompt), and a token follows each.
    pub fn scored(&self) -> &[usize] {
        &self.scored
    }

    /// Number of passes through the model: one over the prompt, and one for each token up to the last scored
    /// position.
    pub fn passes(&self) -> usize {
        self.scored.last().map_or(0, |last| last + 2 - self.prompt)
    }

    /// For each answer, its range of indices into the [`scored`](Self::scored) positions. A plain text has no
    /// answers.
    pub fn answers(&self) -> impl Iterator<Item = Range<usize>> {
        self.answers.iter().cloned()
    }

    /// The answer to generate, if there is one.
    pub fn wanted(&self) -> Option<&Wanted> {
        self.wanted.as_ref()
    }

    /// The properties of the sequence that the report shows, by name.
    pub fn tags(&self) -> &BTreeMap<String, Value> {
        &self.tags
    }

    /// The token after each scored position.
    pub(super) fn targets(&self) -> impl Iterator<Item = u32> {
        self.scored.iter().map(|position| self.ids[position + 1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_and_scored_behind_the_prompt() {
        let ids: Vec<u32> = (0..13).collect();
        let cut = Sequence::cut(&ids, 6, 3, 2).unwrap();
        assert_eq!(cut.len(), 2);
        assert_eq!(cut[1].ids(), [6, 7, 8, 9, 10, 11]);
        assert_eq!(cut[1].scored(), [3, 4]);
        assert_eq!(cut[1].targets().collect::<Vec<_>>(), [10, 11]);
        assert_eq!(cut[1].passes(), 3);
        assert!(matches!(Sequence::cut(&ids, 6, 5, 1), Err(EvalError::Prompt { prompt: 5, context: 6 })));
        assert!(matches!(Sequence::cut(&ids, 6, 0, 1), Err(EvalError::Prompt { .. })));
        assert!(matches!(Sequence::cut(&ids, 6, 3, 3), Err(EvalError::TooShort { tokens: 13, .. })));
        assert!(matches!(Sequence::cut(&ids, 0, usize::MAX, 1), Err(EvalError::Prompt { .. })));
    }

    #[test]
    fn an_answer_is_predicted_from_the_position_before_it() {
        let sequence = Sequence::of_answer(vec![5, 6, 7, 8, 9], 3, 2).unwrap().with_tag("depth", 0.5);
        assert_eq!((sequence.scored(), sequence.passes()), (&[2, 3][..], 2));
        assert_eq!(sequence.targets().collect::<Vec<_>>(), [8, 9]);
        assert_eq!(sequence.answers().collect::<Vec<_>>(), std::iter::once(0..2).collect::<Vec<_>>());
        assert_eq!(sequence.tags()["depth"], 0.5);
        for (prompt, answer) in [(0, 2), (3, 0), (4, 2), (3, 5)] {
            let refused = Sequence::of_answer(vec![5, 6, 7, 8, 9], prompt, answer);
            assert!(matches!(refused, Err(EvalError::Prompt { .. })), "{prompt} {answer}");
        }
    }

    #[test]
    fn queries_behind_the_prompt_count() {
        let lines = "{\"ids\": [1,2,3,4,5,6,7,8,9,10], \"queries\": [8, 2, 5]}\n\n";
        let of = |prompt, count| Sequence::of_queries(lines, prompt, count);
        assert_eq!(of(None, None).unwrap()[0].scored(), [8]);
        let early = &of(Some(3), Some(1)).unwrap()[0];
        assert_eq!((early.scored(), early.passes()), (&[5, 8][..], 7));
        assert!(matches!(of(None, Some(2)), Err(EvalError::TooFew { got: 1, wanted: 2 })));
        assert!(matches!(of(Some(9), None), Err(EvalError::Prompt { .. })));
        let unanswered = Sequence::of_queries("{\"ids\": [1,2,3,4,5,6,7,8,9,10], \"queries\": [9]}", None, None);
        assert!(matches!(unanswered, Err(EvalError::Query { line: 1, .. })));
        assert!(matches!(Sequence::of_queries("\n{}", None, None), Err(EvalError::Query { line: 2, .. })));
        assert!(matches!(Sequence::of_queries("", None, None), Err(EvalError::TooFew { got: 0, .. })));
    }
}
