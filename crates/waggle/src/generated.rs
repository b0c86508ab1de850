//! A generated text and the costs of generating it.

use std::path::Path;

use serde_json::Value;
use waggle_model::{FloatModel, Generation, Reveal, check};
use waggle_mpcache::PolicySpec;
use waggle_session::PublicPrefix;
use waggle_session::party::{self, Outcome};

use crate::models::open_adapted;
use crate::reader::harmless;
use crate::{Error, Report};

/// Refuses a comparison with the plaintext model if tokens are sampled and no logits are revealed.
pub fn check_comparable(terms: &party::Terms, sampled: bool) -> Result<(), Error> {
    match terms.reveal {
        Reveal::Token if sampled => {
            Err(waggle_model::Error::NeedsLogits { what: "a comparison of sampled text" }.into())
        }
        _ => Ok(()),
    }
}

/// A generated text and the costs of generating it.
#[derive(Debug)]
pub struct Generated {
    /// The report.
    pub report: Report,
    pub(crate) outcome: Outcome,
    /// The prompt of all texts.
    prompt: party::Prompt,
    /// The name of the class or the word for the mask that each token stands for, if each token is an encoder's
    /// answer.
    classes: Vec<Option<String>>,
    /// Names of the classes, if the model decides on each class separately.
    each: Vec<String>,
}

/// An encoder's answer for one text.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The name of the class that the model finds, or the word in the place of the mask, without control characters.
    pub class: Option<String>,
    /// The logits of all classes, or the score of a model with one; empty if the client learned the class alone.
    pub logits: Vec<f32>,
    /// Names and probabilities of the classes, the likeliest first, if the model decides on each class separately and
    /// the logits are known; otherwise empty.
    pub each: Vec<(String, f32)>,
}

impl Answer {
    /// The answer of a model with these logits. `each` has the names of the classes, if the model decides on each
    /// class separately.
    fn new(class: Option<String>, logits: Vec<f32>, each: &[String]) -> Self {
        let sigmoid = |logit: &f32| 1.0 / (1.0 + (-logit).exp());
        let mut each: Vec<_> = each.iter().map(|name| harmless(name)).zip(logits.iter().map(sigmoid)).collect();
        each.sort_by(|a, b| b.1.total_cmp(&a.1));
        Answer { class, logits, each }
    }

    /// The probability of the class that was found, if the model has several classes and their logits are known.
    pub fn probability(&self) -> Option<f32> {
        if let Some((_, most)) = self.each.first() {
            return Some(*most);
        }
        let most = self.logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f32 = self.logits.iter().map(|logit| (logit - most).exp()).sum();
        (self.logits.len() > 1).then(|| 1.0 / sum)
    }

    /// The score, if the model gives a single score and no class.
    pub fn score(&self) -> Option<f32> {
        if let ([score], true) = (&self.logits[..], self.each.is_empty()) { Some(*score) } else { None }
    }
}

impl Generated {
    pub(crate) fn new(
        report: Report,
        outcome: Outcome,
        prompt: party::Prompt,
        classes: Vec<Option<String>>,
        each: Vec<String>,
    ) -> Self {
        Generated { report, outcome, prompt, classes, each }
    }

    /// The text; empty if there is no tokenizer.
    pub fn text(&self) -> &str {
        self.report.text.as_deref().unwrap_or_default()
    }

    /// The text after each prompt, if the model reads several side by side; empty without a tokenizer.
    pub fn texts(&self) -> &[String] {
        match (&self.report.texts, &self.report.text) {
            (Some(texts), _) => texts,
            (None, Some(text)) => std::slice::from_ref(text),
            (None, None) => &[],
        }
    }

    /// The token ids of each text.
    pub fn ids(&self) -> impl Iterator<Item = &[u32]> {
        self.outcome.generation.texts()
    }

    /// Number of tokens of all texts. Tokens that are generated unseen after the end of a text count too.
    pub fn count(&self) -> usize {
        let Generation { count, lengths, .. } = &self.outcome.generation;
        count * lengths.len()
    }

    /// The logits that the client learned, or `None` if it learned tokens alone. There is a row for each token that
    /// was picked, or for an encoder a row for each text.
    pub fn logits(&self) -> Option<Vec<Vec<f32>>> {
        self.outcome
            .generation
            .logits
            .as_ref()
            .map(|logits| logits.rows().into_iter().map(|row| row.to_vec()).collect())
    }

    /// An encoder's answer for each text.
    pub fn answers(&self) -> Vec<Answer> {
        let Generation { logits, .. } = &self.outcome.generation;
        let answer = |(at, class): (usize, &Option<String>)| {
            let logits = logits.as_ref().map_or_else(Vec::new, |logits| logits.row(at).to_vec());
            Answer::new(class.as_deref().map(harmless), logits, &self.each)
        };
        self.classes.iter().enumerate().map(answer).collect()
    }

    /// Compares the tokens with those of `model`, a directory or a bundled name, in the clear. A comparison under the
    /// session's policy shows what the protocol changed; one with the full cache shows what pruning changed.
    ///
    /// # Errors
    /// If the model cannot be read or has another shape, or if tokens were sampled and there are no logits to
    /// compare.
    pub fn compare(&mut self, model: &str) -> Result<(), Error> {
        self.compare_adapted(model, None)
    }

    /// [`compare`](Generated::compare) with a model to which `adapter` is added, if it is given.
    ///
    /// # Errors
    /// As [`compare`](Generated::compare), and if the adapter cannot be added.
    pub fn compare_adapted(&mut self, model: &str, adapter: Option<&Path>) -> Result<(), Error> {
        let sampled = self.report.options.get("temperature").and_then(Value::as_f64).is_some_and(|t| t > 0.0);
        check_comparable(&self.outcome.terms, sampled)?;
        let files = open_adapted(model, adapter)?;
        let Generated { report, outcome, prompt, .. } = self;
        let input = prompt.input();
        let terms = &outcome.terms;
        let clear = FloatModel::open(&terms.policy, &files)?;
        let behind = |prefix: Option<PublicPrefix>| match prefix {
            Some(prefix) => clear.behind(prefix.ids(), prefix.policy()),
            None => Ok(clear.clone()),
        };
        let tokens =
            report.options.get("tokens").and_then(Value::as_u64).map_or(outcome.generation.count, |n| n as usize);
        let under = |prefix: Option<PublicPrefix>, policy: PolicySpec| {
            let options = waggle_model::GenerateOptions {
                tokens,
                reveal: terms.reveal,
                policy,
                padding: prompt.known_padding(),
                prefill_chunk: terms.prefill_chunk,
                ..waggle_model::GenerateOptions::default()
            };
            check(&behind(prefix)?, input, &options, &outcome.generation)
        };
        report.check = Some(under(terms.prefix.clone(), terms.policy.clone())?);
        let full = PolicySpec::default();
        if terms.policy != full || terms.prefix.as_ref().is_some_and(|prefix| *prefix.policy() != full) {
            report.against_full_cache = Some(under(terms.prefix.as_ref().map(PublicPrefix::whole), full)?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Answer;

    /// Probabilities as `transformers`' pipeline has them: a sigmoid for each class, or one softmax over all.
    #[test]
    fn classes_that_are_found_by_themselves_have_sigmoids() {
        let logits = vec![1.0672, 0.4969, 0.8747, 1.5071];
        let names = ["toxic", "insult", "threat", "obscene"].map(str::to_owned);
        let each = Answer::new(Some("obscene".into()), logits.clone(), &names);
        let order: Vec<&str> = each.each.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(order, ["obscene", "toxic", "threat", "insult"]);
        for ((_, got), want) in each.each.iter().zip([0.8186, 0.7441, 0.7057, 0.6217]) {
            assert!((got - want).abs() < 1e-3, "{got} {want}");
        }
        assert_eq!((each.probability(), each.score()), (Some(each.each[0].1), None));
        let one = Answer::new(Some("obscene".into()), logits, &[]);
        assert!(one.each.is_empty() && (one.probability().unwrap() - 0.3859).abs() < 0.01, "{one:?}");
        // A single class that is found by itself is not a score.
        let single = Answer::new(None, vec![0.0], &names[..1]);
        assert_eq!((single.probability(), single.score()), (Some(0.5), None));
        assert_eq!(Answer::new(None, vec![2.5], &[]).score(), Some(2.5));
    }
}
