//! Token sequences, and which of their positions are scored.

use serde::Deserialize;

use super::EvalError;

/// Tokens that are fed to a model, and the positions whose prediction counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    ids: Vec<u32>,
    prompt: usize,
    scored: Vec<usize>,
}

/// A line of a file of queries.
#[derive(Deserialize)]
struct Queries {
    ids: Vec<u32>,
    queries: Vec<usize>,
}

impl Sequence {
    /// `ids`, the first `prompt` of them at once. Every later position is scored on its prediction of the next id.
    pub fn of_text(ids: &[u32], prompt: usize) -> Result<Self, EvalError> {
        let context = ids.len();
        if prompt == 0 || prompt + 1 >= context {
            return Err(EvalError::Prompt { prompt, context });
        }
        Ok(Sequence { ids: ids.to_vec(), prompt, scored: (prompt..context - 1).collect() })
    }

    /// The first `count` runs of `context` tokens of `ids`, one after another, as [`of_text`](Self::of_text).
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

    /// Associative recall: JSON lines `{"ids": [...], "queries": [...]}`, where the right token after each position
    /// in `queries` is the next of `ids`. Queries at `prompt` or later are scored; without a `prompt`, those in the
    /// last fifth. Takes the first `count` lines, or all.
    pub fn of_queries(lines: &str, prompt: Option<usize>, count: Option<usize>) -> Result<Vec<Self>, EvalError> {
        let filled = lines.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let sequences = filled.take(count.unwrap_or(usize::MAX)).map(|(i, line)| {
            let wrong = |what: String| EvalError::Query { line: i + 1, what };
            let Queries { ids, queries } = serde_json::from_str(line).map_err(|e| wrong(e.to_string()))?;
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
            Ok(Sequence { ids, prompt, scored })
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

    /// Positions whose prediction is scored: ascending, each at least [`prompt`](Self::prompt) and with a token
    /// after.
    pub fn scored(&self) -> &[usize] {
        &self.scored
    }

    /// Passes through the model: one over the prompt and one for each token up to the last scored one.
    pub fn passes(&self) -> usize {
        self.scored.last().map_or(0, |last| last + 2 - self.prompt)
    }

    /// The tokens that stand after the scored positions.
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
