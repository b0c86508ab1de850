//! The metrics of LongBench, as its authors publish them.

use std::collections::{BTreeMap, BTreeSet};

/// The measure by which an answer is scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    /// F1 of the generated and the right words, without articles and punctuation.
    F1,
    /// ROUGE-L: F1 of the words that lie in longest common subsequences of sentences.
    RougeL,
    /// ROUGE-2: F1 of the different pairs of words that follow one another.
    Rouge2,
    /// 1 divided by the number of classes that the answer names; 0 unless the right class is among them.
    Class,
    /// The share of the numbers in the answer that are the number of the right paragraph.
    Retrieval,
    /// The share of the numbers in the answer that are the right count.
    Count,
    /// Similarity of the answer's first line of code to the right code.
    Code,
}

impl Measure {
    /// The measure's name in reports.
    pub(super) fn name(self) -> &'static str {
        match self {
            Measure::F1 => "f1",
            Measure::RougeL => "rouge-l",
            Measure::Rouge2 => "rouge-2",
            Measure::Class => "classification",
            Measure::Retrieval => "retrieval",
            Measure::Count => "count",
            Measure::Code => "code similarity",
        }
    }
}

/// How an answer is scored.
#[derive(Clone, Debug)]
pub(super) struct Score {
    pub(super) measure: Measure,
    /// The right answers. A generated answer gets the best of its scores against each.
    pub(super) answers: Vec<String>,
    /// All classes, for [`Measure::Class`].
    pub(super) classes: Vec<String>,
    /// Whether only the first line of the generated text counts.
    pub(super) one_line: bool,
}

impl Score {
    /// The score of `generated`, from 0 to 1.
    pub(super) fn of(&self, generated: &str) -> f64 {
        let generated = if self.one_line {
            generated.trim_start_matches('\n').split('\n').next().unwrap_or_default()
        } else {
            generated
        };
        let one = |right: &String| match self.measure {
            Measure::F1 => f1(generated, right),
            Measure::RougeL => rouge_l(generated, right),
            Measure::Rouge2 => rouge_2(generated, right),
            Measure::Class => class(generated, right, &self.classes),
            Measure::Retrieval => paragraph(right).map_or(0.0, |paragraph| share_of_numbers(generated, &paragraph)),
            Measure::Count => share_of_numbers(generated, right),
            Measure::Code => code(generated, right),
        };
        self.answers.iter().map(one).fold(0.0, f64::max)
    }
}

/// The words of `text` in lower case, without ASCII punctuation and without articles.
fn normal(text: &str) -> Vec<String> {
    let lower = text.to_lowercase();
    let plain: String = lower.chars().filter(|c| !c.is_ascii_punctuation()).collect();
    let words = plain.split_whitespace().filter(|word| !matches!(*word, "a" | "an" | "the"));
    words.map(str::to_owned).collect()
}

fn f1(generated: &str, right: &str) -> f64 {
    let (generated, right) = (normal(generated), normal(right));
    let mut left: BTreeMap<&str, usize> = BTreeMap::new();
    right.iter().for_each(|word| *left.entry(word).or_default() += 1);
    let mut common = 0usize;
    for word in &generated {
        if let Some(count) = left.get_mut(word.as_str()).filter(|count| **count > 0) {
            *count -= 1;
            common += 1;
        }
    }
    harmonic(common, generated.len(), right.len())
}

/// F1 of a list of `generated` words and a list of `right` words, which have `common` words in common.
fn harmonic(common: usize, generated: usize, right: usize) -> f64 {
    if common == 0 {
        return 0.0;
    }
    let (precision, recall) = (common as f64 / generated as f64, common as f64 / right as f64);
    2.0 * precision * recall / (precision + recall)
}

/// The ROUGE-2 score of a summary: F1 of the pairs of neighbouring words, across the ends of sentences and without
/// their full stops. Each different pair counts once.
fn rouge_2(generated: &str, right: &str) -> f64 {
    let [generated, right] = [generated, right].map(|text| text.replace('.', " "));
    let pairs = |text: &str| -> BTreeSet<[String; 2]> {
        let words: Vec<&str> = text.split_whitespace().collect();
        words.windows(2).map(|pair| [pair[0].to_owned(), pair[1].to_owned()]).collect()
    };
    let (generated, right) = (pairs(&generated), pairs(&right));
    harmonic(generated.intersection(&right).count(), generated.len(), right.len())
}

/// The ROUGE-L score of a summary: F1 of the words that count as found. A word of a sentence in `right` counts as
/// found if it lies on a longest common subsequence of this sentence and any generated sentence. Each different word
/// counts once.
fn rouge_l(generated: &str, right: &str) -> f64 {
    let sentences = |text: &str| -> Vec<Vec<String>> {
        let sentences = text.split('.').filter(|sentence| !sentence.is_empty());
        sentences.map(|sentence| sentence.split_whitespace().map(str::to_owned).collect()).collect()
    };
    let (generated, right) = (sentences(generated), sentences(right));
    let words = |sentences: &[Vec<String>]| sentences.iter().flatten().cloned().collect::<BTreeSet<String>>();
    let mut found: BTreeSet<&str> = BTreeSet::new();
    for reference in &right {
        for sentence in &generated {
            found.extend(common_subsequence(reference, sentence).into_iter().map(|i| reference[i].as_str()));
        }
    }
    harmonic(found.len(), words(&generated).len(), words(&right).len())
}

/// The positions in `a` of a longest common subsequence of `a` and `b`. If there are several, it is the one that a
/// search from the end finds if it skips entries of `b` where it has the choice.
fn common_subsequence<T: PartialEq>(a: &[T], b: &[T]) -> Vec<usize> {
    let width = b.len() + 1;
    let mut longest = vec![0u32; (a.len() + 1) * width];
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            longest[i * width + j] = if a[i - 1] == b[j - 1] {
                longest[(i - 1) * width + j - 1] + 1
            } else {
                longest[(i - 1) * width + j].max(longest[i * width + j - 1])
            };
        }
    }
    let (mut i, mut j, mut places) = (a.len(), b.len(), Vec::new());
    while i > 0 && j > 0 {
        if a[i - 1] == b[j - 1] {
            (i, j) = (i - 1, j - 1);
            places.push(i);
        } else if longest[(i - 1) * width + j] > longest[i * width + j - 1] {
            i -= 1;
        } else {
            j -= 1;
        }
    }
    places
}

/// 1 divided by the number of `classes` that `generated` names, or 0 if the class `right` is not among them. A class
/// whose name is a part of the right class's name does not count.
fn class(generated: &str, right: &str, classes: &[String]) -> f64 {
    let named = classes.iter().filter(|class| generated.contains(class.as_str()));
    let named: Vec<&String> = named.filter(|class| *class == right || !right.contains(class.as_str())).collect();
    if named.iter().any(|class| *class == right) { 1.0 / named.len() as f64 } else { 0.0 }
}

/// The number in a text like `Paragraph 12`.
fn paragraph(right: &str) -> Option<String> {
    let (_, rest) = right.split_once("Paragraph ")?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    (!digits.is_empty()).then_some(digits)
}

/// The share of the numbers in `generated` that equal `right`.
fn share_of_numbers(generated: &str, right: &str) -> f64 {
    let numbers: Vec<&str> = generated.split(|c: char| !c.is_ascii_digit()).filter(|n| !n.is_empty()).collect();
    let found = numbers.iter().filter(|number| **number == right.trim()).count();
    if numbers.is_empty() { 0.0 } else { found as f64 / numbers.len() as f64 }
}

/// Similarity of `right` and the first line of `generated` that is code: twice the length of their longest common
/// subsequence of characters, divided by the sum of their lengths, in whole percent.
fn code(generated: &str, right: &str) -> f64 {
    let is_code = |line: &&str| !line.contains(['`', '#']) && !line.contains("//");
    let line = generated.trim_start_matches('\n').split('\n').find(is_code).unwrap_or_default();
    let (a, b): (Vec<char>, Vec<char>) = (line.chars().collect(), right.chars().collect());
    if a.is_empty() || b.is_empty() {
        return 0.0;
    }
    let ratio = 2.0 * common_subsequence(&a, &b).len() as f64 / (a.len() + b.len()) as f64;
    (ratio * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    fn close(got: f64, want: f64) {
        assert!((got - want).abs() < 1e-7, "{got} for {want}");
    }

    #[test]
    fn f1_counts_words_without_articles_and_punctuation() {
        close(f1("The cat, sat!", "a cat sat"), 1.0);
        // Common: cat. Precision 1/3, recall 1/2.
        close(f1("cat dog cow", "cat mouse"), 0.4);
        // A word counts as often as both texts have it: precision 1/2, recall 1.
        close(f1("yes yes", "yes"), 2.0 / 3.0);
        close(f1("", "yes"), 0.0);
        close(f1("the", "a"), 0.0);
    }

    /// A generated text, the right text, and the score that the package `rouge` gives.
    const ROUGE: [(&str, &str, f64); 5] = [
        ("the cat sat on the mat", "the cat is on the mat", 0.799999995),
        (
            "Rain fell. The river rose over its banks.",
            "The river rose. Rain fell for days. People left.",
            0.588235289,
        ),
        ("w1 w2 w6 w7 w8. w1 w3 w8 w9 w5", "w1 w2 w3 w4 w5", 0.615384611),
        ("completely different words", "nothing shared here at all", 0.000000000),
        ("a b c d e f g", "g f e d c b a", 0.142857138),
    ];

    /// Expected values are those of the package `rouge` 1.0.1, here and below for `rouge-2`:
    ///
    /// ```python
    /// from rouge import Rouge
    /// Rouge().get_scores([generated], [right], avg=True)["rouge-l"]["f"]
    /// ```
    #[test]
    fn rouge_l_is_that_of_the_package() {
        ROUGE.iter().for_each(|(generated, right, want)| close(rouge_l(generated, right), *want));
    }

    #[test]
    fn rouge_2_is_that_of_the_package_and_of_a_count_by_hand() {
        // Pairs: `the cat`, `cat sat`, `sat down` and `the cat`, `cat ran`, `ran on`, `on down`: 1 of 3 and 1 of 4.
        close(rouge_2("the cat sat. down", "the cat ran on down."), 2.0 / 7.0);
        let want = [0.599999995, 0.399999995, 0.153846150, 0.0, 0.0];
        ROUGE.iter().zip(want).for_each(|((generated, right, _), want)| close(rouge_2(generated, right), want));
        close(rouge_2("one", "one"), 0.0);
    }

    /// Counting the pairs of one text one by one in the other gives the same.
    #[test]
    fn rouge_2_agrees_with_its_naive_twin() {
        let mut rng = StdRng::seed_from_u64(3);
        let mut found = 0;
        for _ in 0..200 {
            let [a, b] = [(); 2].map(|()| (0..rng.random_range(0..12)).map(|_| rng.random_range(0..4)).collect());
            let text = |words: &Vec<u8>| words.iter().map(|word| format!("w{word}")).collect::<Vec<_>>().join(" ");
            let different = |words: &Vec<u8>| {
                let pairs = words.windows(2).enumerate();
                pairs.filter(|(i, pair)| !words.windows(2).take(*i).any(|seen| seen == *pair)).count()
            };
            let common = |a: &Vec<u8>, b: &Vec<u8>| {
                let pairs = a.windows(2).enumerate().filter(|(_, pair)| b.windows(2).any(|other| other == *pair));
                pairs.filter(|(i, pair)| !a.windows(2).take(*i).any(|seen| seen == *pair)).count()
            };
            let (in_both, all): (usize, usize) = (common(&a, &b), different(&a) + different(&b));
            let naive = if in_both == 0 { 0.0 } else { 2.0 * in_both as f64 / all as f64 };
            close(rouge_2(&text(&a), &text(&b)), naive);
            found += in_both;
        }
        assert!(found > 100, "{found} pairs in common");
    }

    #[test]
    fn classes_numbers_and_code() {
        let classes = ["Food", "Sport", "Team sport"].map(String::from);
        close(class("It is Food.", "Food", &classes), 1.0);
        close(class("Food or Sport", "Food", &classes), 0.5);
        close(class("Sport", "Food", &classes), 0.0);
        // `Sport` is a part of `Team sport` and not counted, although the generated text also names it by itself.
        close(class("Team sport, a Sport", "Team sport", &classes), 0.5);
        close(class("Food", "Foods", &["Food", "Foods"].map(String::from)), 0.0);
        close(share_of_numbers("12 or 3 and 12", "12"), 2.0 / 3.0);
        close(share_of_numbers("none", "12"), 0.0);
        assert_eq!(paragraph("Paragraph 12"), Some("12".into()));
        // `return x` and `return y`: 7 of 8 characters.
        close(code("\n# comment\nreturn x\nmore", "return y"), 0.88);
    }

    #[test]
    fn the_best_answer_counts_and_some_answers_are_one_line() {
        let answers = ["blue", "red car"].map(String::from).to_vec();
        let score = Score { measure: Measure::F1, answers, classes: Vec::new(), one_line: true };
        close(score.of("\nred car\nQuestion: blue"), 1.0);
        close(Score { one_line: false, ..score.clone() }.of("red car x y"), 2.0 / 3.0);
        let retrieval = Score { measure: Measure::Retrieval, answers: vec!["Paragraph 4".into()], ..score };
        close(retrieval.of("Paragraph 4"), 1.0);
    }
}
