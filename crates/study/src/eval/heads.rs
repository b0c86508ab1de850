//! Finds the heads that need distant tokens, for the pattern of the policies `duo` and `razor`.
//!
//! Heads are judged on the plaintext engine, without training. A text goes through the model. The attention of every
//! query head is compared with its attention if the head *streamed*, that is, if it saw only the first and the latest
//! tokens. Queries that would see all tokens do not count. A key/value head is judged by all query heads that read
//! it, as they share its tokens.
//!
//! | measure | of a query head | of a key/value head |
//! |---|---|---|
//! | [`Output`](HeadMeasure::Output) | mean of \|\|o_S - o\|\| / \|\|o\|\| | the mean |
//! | [`Mass`](HeadMeasure::Mass) | mean of the attention that tokens out of sight receive | the mean |
//! | [`Echo`](HeadMeasure::Echo) | on random tokens that repeat themselves: mean attention to earlier copies of the query's own token (*echo*), and to the tokens behind these (*induction*) | the largest |
//!
//! Here o is the head's output, and o_S its output if it attended only to the tokens in sight.
//!
//! The first two measures stand for the gates that DuoAttention trains. The last measure is RazorAttention's. It
//! takes one in fifteen heads, rounded, by echo and the others by induction, as its authors do (1 % and 14 %).

use std::fmt;
use std::str::FromStr;

use ndarray::{ArrayView1, ArrayView2, s};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;
use waggle_engine::{Float, FloatWeight};
use waggle_model::{Input, Model, Rows};
use waggle_mpcache::{Expected, HeadPattern, HeadShape, KvCache, UnknownValue};

use super::EvalError;
use super::attention::Mean;
use super::run::parallel;
use crate::watch::{Seen, watch};

/// Tokens that go through the model at once. This bounds the memory of attention.
const PIECE: usize = 256;

/// Number of copies of the random text in a sequence for [`HeadMeasure::Echo`].
const COPIES: usize = 4;

/// One in this many of the heads that [`HeadMeasure::Echo`] chooses is chosen by its echo, the others by induction.
const HEADS_PER_ECHO: usize = 15;

/// The measure by which heads are judged. The module `heads` defines each measure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeadMeasure {
    /// The change of attention's output if the head streams.
    #[default]
    Output,
    /// The attention that is lost if the head streams.
    Mass,
    /// The attention to earlier copies of repeated tokens.
    Echo,
}

impl HeadMeasure {
    /// All values.
    pub const ALL: [Self; 3] = [Self::Output, Self::Mass, Self::Echo];
}

impl fmt::Display for HeadMeasure {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            HeadMeasure::Output => "output",
            HeadMeasure::Mass => "mass",
            HeadMeasure::Echo => "echo",
        })
    }
}

impl FromStr for HeadMeasure {
    type Err = UnknownValue;

    fn from_str(name: &str) -> Result<Self, UnknownValue> {
        let named = |measure: &Self| measure.to_string() == name;
        Self::ALL.into_iter().find(named).ok_or_else(|| UnknownValue::new("one of output, mass, echo"))
    }
}

/// The tokens that a streaming head sees, out of all tokens up to the query's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InSight {
    /// Tokens at the start of the text.
    pub sinks: usize,
    /// The latest tokens, the query's own among them.
    pub recent: usize,
}

/// The scores of all key/value heads. The larger a score, the more the head needs distant tokens.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HeadScores {
    /// The score of each key/value head, by layer and head. With [`HeadMeasure::Echo`] these are the scores of
    /// induction.
    pub scores: Vec<Vec<f64>>,
    /// The scores of echo, by layer and head; only with [`HeadMeasure::Echo`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub echoes: Option<Vec<Vec<f64>>>,
}

impl HeadScores {
    /// The pattern in which the heads with the largest scores keep every token. These heads are the fraction `share`
    /// of all heads.
    ///
    /// # Errors
    /// [`EvalError::Share`] unless `share` is between 0 and 1, and [`EvalError::Heads`] for a model with more heads
    /// than a pattern can name.
    pub fn pattern(&self, share: f64) -> Result<HeadPattern, EvalError> {
        if !(0.0..=1.0).contains(&share) {
            return Err(EvalError::Share(share));
        }
        let mut keeps: Vec<Vec<bool>> = self.scores.iter().map(|heads| vec![false; heads.len()]).collect();
        let all: usize = keeps.iter().map(Vec::len).sum();
        let mut left = (share * all as f64).round() as usize;
        let mut choose = |scores: &[Vec<f64>], count: usize| {
            let places =
                scores.iter().enumerate().flat_map(|(layer, heads)| (0..heads.len()).map(move |h| (layer, h)));
            let mut order: Vec<(usize, usize)> = places.filter(|&(layer, head)| !keeps[layer][head]).collect();
            // Of heads with equal scores, the earlier one comes first.
            order.sort_by(|a, b| scores[b.0][b.1].total_cmp(&scores[a.0][a.1]));
            order.iter().take(count).for_each(|&(layer, head)| keeps[layer][head] = true);
        };
        if let Some(echoes) = &self.echoes {
            let by_echo = (left + HEADS_PER_ECHO / 2) / HEADS_PER_ECHO;
            choose(echoes, by_echo);
            left -= by_echo;
        }
        choose(&self.scores, left);
        HeadPattern::new(&keeps).map_err(|_| EvalError::Heads)
    }
}

/// `count` texts for [`HeadMeasure::Echo`], of `context` tokens, rounded down to a multiple of four. Each text
/// consists of four copies of a random text over the first `words` ids.
///
/// # Errors
/// [`EvalError::Short`] if `context` has no room for the copies.
pub fn repetitions(words: usize, context: usize, count: usize) -> Result<Vec<Vec<u32>>, EvalError> {
    let least = 2 * COPIES;
    if context < least {
        return Err(EvalError::Short { context, least });
    }
    // These coins are public: nothing secret depends on them.
    let mut coins = StdRng::seed_from_u64(0);
    let mut text = || -> Vec<u32> {
        let once: Vec<u32> = (0..context / COPIES).map(|_| coins.random_range(0..words) as u32).collect();
        once.repeat(COPIES)
    };
    Ok((0..count).map(|_| text()).collect())
}

/// The scores of the heads of `model` on `texts`, each read by itself. Streaming heads see `sight`.
/// [`HeadMeasure::Echo`] needs texts of [`repetitions`] and ignores `sight`. `tick` is called after each text.
///
/// # Errors
/// [`EvalError::Short`] if all texts are so short that no token is ever out of sight. Errors of the model.
pub fn judge_heads(
    model: &Model<FloatWeight>,
    texts: &[Vec<u32>],
    measure: HeadMeasure,
    sight: InSight,
    tick: &(dyn Fn() + Sync),
) -> Result<HeadScores, EvalError> {
    model.spec().check_shared("duo")?;
    let shapes = model.spec().heads();
    if measure == HeadMeasure::Echo {
        let means = means_of(model, texts, |text| Watched::Copies { period: text.len() / COPIES }, tick)?;
        let [echoes, scores] = [0, 1].map(|index| {
            let largest = |heads: &[[f64; 2]]| heads.iter().map(|pair| pair[index]).fold(f64::NEG_INFINITY, f64::max);
            by_kv(&means, &shapes, largest)
        });
        return Ok(HeadScores { scores, echoes: Some(echoes) });
    }
    let (context, least) = (texts.iter().map(Vec::len).max().unwrap_or(0), sight.sinks + sight.recent + 1);
    if context < least {
        return Err(EvalError::Short { context, least });
    }
    let means = means_of(model, texts, |_| Watched::Distant(sight), tick)?;
    let index = usize::from(measure == HeadMeasure::Mass);
    let mean = |heads: &[[f64; 2]]| heads.iter().map(|pair| pair[index]).sum::<f64>() / heads.len() as f64;
    Ok(HeadScores { scores: by_kv(&means, &shapes, mean), echoes: None })
}

/// Turns the means of query heads into scores of key/value heads, layer by layer. `of` computes a score from the
/// means of all query heads that read the key/value head.
fn by_kv(means: &[Vec<[f64; 2]>], shapes: &[HeadShape], of: impl Fn(&[[f64; 2]]) -> f64) -> Vec<Vec<f64>> {
    means.iter().zip(shapes).map(|(heads, shape)| heads.chunks(shape.group()).map(&of).collect()).collect()
}

/// The two numbers that are measured at each query.
#[derive(Clone, Copy)]
enum Watched {
    /// The error of the output, and the attention lost, if the head saw only these tokens.
    Distant(InSight),
    /// Attention to earlier copies of the query's token, and to the tokens after these copies, in a text that repeats
    /// every `period` tokens.
    Copies { period: usize },
}

/// The means of the two measured numbers, by layer and query head.
type Means = Vec<Vec<[Mean; 2]>>;

/// Runs `texts` through the model, and returns the means of the two measured numbers for each layer and query head.
fn means_of(
    model: &Model<FloatWeight>,
    texts: &[Vec<u32>],
    watched: impl Fn(&[u32]) -> Watched + Sync,
    tick: &(dyn Fn() + Sync),
) -> Result<Vec<Vec<[f64; 2]>>, EvalError> {
    let spec = model.spec();
    let layers = spec.attention().without_windows();
    let none: Vec<_> = layers.heads.iter().map(|shape| vec![[Mean::default(); 2]; shape.heads]).collect();
    for text in texts {
        if text.len() > spec.max_positions() {
            return Err(EvalError::Context { context: text.len(), limit: spec.max_positions() });
        }
        spec.check_ids(text)?;
    }
    let all = parallel(texts.len(), usize::MAX, |i| {
        let watched = watched(&texts[i]);
        let look = move |means: &mut Means, seen: &Seen| watched.measure(means, seen);
        let means = watch(&layers, none.clone(), look, |cache| read(model, cache, &texts[i]))?;
        tick();
        Ok(means)
    })?;
    let mut sum = none;
    for means in all {
        for (sum, mean) in sum.iter_mut().flatten().flatten().zip(means.into_iter().flatten().flatten()) {
            sum.merge(mean);
        }
    }
    let numbers = |pair: &[Mean; 2]| pair.map(|mean| mean.get().unwrap_or(0.0));
    Ok(sum.iter().map(|heads| heads.iter().map(numbers).collect()).collect())
}

/// Puts `text` through the model, as a prompt.
pub(super) fn read(model: &Model<FloatWeight>, cache: &mut KvCache<Float>, text: &[u32]) -> Result<(), EvalError> {
    cache.expect(Expected { prompt: Some(text.len()), ..Expected::default() });
    for piece in text.chunks(PIECE) {
        model.forward(&mut Float::default(), Input::known(piece), cache, Rows::None, &mut |_| ())?;
    }
    Ok(())
}

impl Watched {
    /// Adds what is measured at each query.
    fn measure(self, means: &mut Means, seen: &Seen) {
        let (shape, (rows, tokens)) = (seen.shape, (seen.q.shape()[1], seen.keys.nrows()));
        for (head, means) in means[seen.layer].iter_mut().enumerate() {
            let (kv, member) = (head / shape.group(), head % shape.group());
            let values = seen.of_head(seen.values, kv);
            for row in 0..rows {
                let at = tokens - rows + row;
                let p = seen.p.slice(s![kv, member * rows + row, ..=at]);
                let measured = match self {
                    Watched::Distant(sight) => {
                        distant(sight, p, seen.sink, values, seen.output.slice(s![head, row, ..]))
                    }
                    Watched::Copies { period } => copies(period, p),
                };
                if let Some(pair) = measured {
                    means.iter_mut().zip(pair).for_each(|(mean, number)| mean.add(number));
                }
            }
        }
    }
}

/// The change of a query's attention if it saw only the tokens in `sight`: the error of its output, relative to the
/// output's norm, and the attention lost. `p` are the query's attention probabilities over all tokens. `None` if
/// `sight` contains all of them.
fn distant(
    sight: InSight,
    p: ArrayView1<f32>,
    sink: bool,
    values: ArrayView2<f32>,
    output: ArrayView1<f32>,
) -> Option<[f64; 2]> {
    let InSight { sinks, recent } = sight;
    let hidden = sinks..p.len().checked_sub(recent)?;
    if hidden.is_empty() {
        return None;
    }
    let seen = (0..hidden.start).chain(hidden.end..p.len());
    let mut mixed = vec![0.0; output.len()];
    // A sink keeps its attention.
    let (all, mut mass): (f64, f64) = (p.iter().map(|p| f64::from(*p)).sum(), 0.0);
    let sink = if sink { 1.0 - all } else { 0.0 };
    for token in seen {
        let weight = f64::from(p[token]);
        mass += weight;
        mixed.iter_mut().zip(values.row(token)).for_each(|(sum, v)| *sum += weight * f64::from(*v));
    }
    let (mut error, mut norm) = (0.0, 0.0);
    for (mixed, exact) in mixed.iter().zip(output) {
        let exact = f64::from(*exact);
        // A query that sees none of the tokens to which it attended has the output 0.
        error += (if mass > 0.0 { mixed / (mass + sink) } else { 0.0 } - exact).powi(2);
        norm += exact * exact;
    }
    Some([(error / norm.max(f64::MIN_POSITIVE)).sqrt(), 1.0 - sink - mass])
}

/// The attention that a query gives to earlier copies of its own token, and to the tokens after these copies. `p` are
/// the query's attention probabilities. `None` if the query is in the first copy of the text.
fn copies(period: usize, p: ArrayView1<f32>) -> Option<[f64; 2]> {
    let at = p.len() - 1;
    if at < period {
        return None;
    }
    let sum = |first: usize| (first..at).step_by(period).map(|token| f64::from(p[token])).sum();
    Some([sum(at % period), sum(at % period + 1)])
}

#[cfg(test)]
mod tests {
    use ndarray::ArrayD;
    use waggle_mpcache::Layers;

    use super::*;

    /// Runs attention with `heads` heads on `tokens` tokens. In each head, every query attends to the one position
    /// that `to` returns for the head and the query's position.
    fn looks(
        tokens: usize,
        heads: usize,
        watched: Watched,
        to: impl Fn(usize, usize) -> Vec<usize>,
    ) -> Vec<[f64; 2]> {
        let shape = HeadShape { heads, kv_heads: heads, head_dim: tokens };
        let q = ArrayD::from_shape_fn(vec![heads, tokens, tokens], |at| {
            if to(at[0], at[1]).contains(&at[2]) { 40.0 } else { 0.0 }
        });
        // Keys and values are unit vectors of their positions.
        let rows =
            ArrayD::from_shape_fn(vec![tokens, heads * tokens], |at| if at[1] % tokens == at[0] { 1.0 } else { 0.0 });
        let none = vec![vec![[Mean::default(); 2]; heads]];
        let look = move |means: &mut Means, seen: &Seen| watched.measure(means, seen);
        let run = |cache: &mut KvCache<Float>| cache.attend(&mut Float::default(), 0, &q, &rows, &rows).map(drop);
        let means = watch(&Layers::global(1, shape), none, look, run).unwrap();
        means[0].iter().map(|pair| pair.map(|mean| mean.get().unwrap())).collect()
    }

    #[test]
    fn a_head_that_looks_far_back_is_found() {
        let sight = InSight { sinks: 2, recent: 4 };
        // One head attends to the query's own token, one to a token that is out of sight later, one to a sink, and
        // one to two tokens.
        let to = |head: usize, at: usize| match head {
            0 => vec![at],
            1 => vec![5.min(at)],
            2 => vec![1.min(at)],
            _ => vec![1.min(at), 5.min(at)],
        };
        let means = looks(20, 4, Watched::Distant(sight), to);
        // Some token is out of sight of the queries 6 to 19. Token 5 is out of sight of the queries from 9 on.
        let late = 11.0 / 14.0;
        let close = |got: [f64; 2], want: [f64; 2]| {
            assert!(got.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-4), "{got:?} for {want:?}");
        };
        close(means[0], [0.0, 0.0]);
        close(means[2], [0.0, 0.0]);
        assert!((means[1][1] - late).abs() < 1e-4 && means[1][0] > 0.7 * late, "{means:?}");
        // Half of the attention is lost, and the output is e_1 in place of (e_1 + e_5) / 2.
        close(means[3], [late, late / 2.0]);
        for index in [0, 1] {
            let scores = vec![means.iter().map(|pair| pair[index]).collect()];
            let scores = HeadScores { scores, echoes: None };
            let pattern = |share| scores.pattern(share).unwrap().to_string();
            // Heads 0 and 2 lose nothing.
            assert_eq!([0.0, 0.25, 0.5, 1.0].map(pattern), ["0", "2", "a", "f"], "{means:?}");
        }
    }

    #[test]
    fn heads_that_look_at_copies_are_found() {
        let period = 6;
        let copies = |of: usize, at: usize| (0..at + 1).filter(|token| token % period == of % period).collect();
        // The first head attends to all copies of the query's token, the second to the tokens after these copies, the
        // third to the tokens before them.
        let to = |head: usize, at: usize| copies([at, at + 1, at + 5][head], at);
        let means = looks(24, 3, Watched::Copies { period }, to);
        // The query's own position is a copy that does not count: 1 of 2, 2 of 3, 3 of 4.
        let of_copies = 1.0 / 2.0 + 2.0 / 3.0 + 3.0 / 4.0;
        assert!((means[0][0] - of_copies / 3.0).abs() < 1e-4, "{means:?}");
        assert!(means[0][1] < 1e-4 && means[1][0] < 1e-4 && means[2].iter().all(|mean| *mean < 1e-4), "{means:?}");
        // The first token of the text does not follow a copy of the last one.
        assert!((means[1][1] - (5.0 + of_copies / 3.0) / 6.0).abs() < 1e-4, "{means:?}");
    }

    #[test]
    fn one_of_fifteen_heads_is_chosen_by_its_echoes() {
        let layer = |first: usize| (0..8).map(|head| 1.0 / (1 + first + head) as f64).collect::<Vec<f64>>();
        // The earlier a head, the larger its induction. The last head echoes.
        let mut echoes = vec![vec![0.0; 8]; 2];
        echoes[1][7] = 0.5;
        let scores = HeadScores { scores: vec![layer(0), layer(8)], echoes: Some(echoes) };
        let pattern = |share: f64| scores.pattern(share).unwrap().to_string();
        assert_eq!([0.0, 0.25, 0.5, 1.0].map(pattern), ["0.0", "f.0", "7f.80", "ff.ff"]);
        assert!(matches!(scores.pattern(1.5), Err(EvalError::Share(_))));
        assert!(matches!(scores.pattern(f64::NAN), Err(EvalError::Share(_))));
    }

    #[test]
    fn random_texts_repeat_themselves_and_are_always_the_same() {
        let texts = repetitions(50, 43, 2).unwrap();
        assert!(texts.iter().all(|text| text.len() == 40 && text[..10] == text[30..]) && texts[0] != texts[1]);
        assert_eq!(texts, repetitions(50, 43, 2).unwrap());
        assert!(matches!(repetitions(50, 7, 1), Err(EvalError::Short { context: 7, least: 8 })));
    }
}
