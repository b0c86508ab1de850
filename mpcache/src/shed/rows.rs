//! The choice of the rows that go on.

use ndarray::Array2;
use waggle_engine::{Engine, Error, Ranking, Right, Select, Tensor, TopK};

use super::RESIDUAL_MAGNITUDE;
use crate::attention::Received;
use crate::{Granularity, HeadShape};

/// The most rows of a piece of the prompt that vote, and that stay therefore: the window of SnapKV's authors.
const VOTERS: usize = 32;

/// How many rows of a piece of the prompt go on. Public.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// The number of rows of the piece.
    pub(crate) rows: usize,
    /// The number of rows that go on.
    pub(crate) keep: usize,
    /// The number of the first rows that always go on. All rows vote if there are such rows.
    first: usize,
    /// The number of the last rows that vote and always go on.
    last: usize,
}

impl Cut {
    /// `keep` of `rows` rows, in a decoder or in an encoder.
    pub(crate) fn new(rows: usize, keep: usize, causal: bool) -> Self {
        let (first, last) = if causal { (0, VOTERS.min(keep.div_ceil(2))) } else { (1.min(keep), 0) };
        Cut { rows, keep, first, last }
    }

    /// Whether all rows see one another, as in an encoder.
    pub(crate) fn whole(&self) -> bool {
        self.first > 0
    }

    /// The number of the last rows that vote.
    pub(crate) fn voters(&self) -> usize {
        if self.whole() { self.rows } else { self.last }
    }

    /// The rows among which the others are chosen.
    fn ranked(&self) -> std::ops::Range<usize> {
        self.first..self.rows - self.last
    }
}

/// The rows that went on, (texts * keep, width), and for each text which ones they are where the engine
/// [sees its values](Engine::CLEAR).
pub(crate) struct Gone<T> {
    pub(crate) rows: T,
    pub(crate) which: Option<Vec<Vec<usize>>>,
}

/// Which rows (texts, rows) stand for words, where others may stand for nothing. Only the client knows.
pub(crate) type Real = Option<Array2<bool>>;

/// [`go_on`] for an engine that chooses.
pub(crate) type GoOn<E> = fn(
    &mut E,
    &Cut,
    &<E as Engine>::Tensor,
    HeadShape,
    Option<&Real>,
    &<E as Engine>::Tensor,
) -> Result<Gone<<E as Engine>::Tensor>, Error>;

/// Chooses the rows of `x` (texts * rows, width) that go on, by the attention `p` (kv_heads, group * voters, rows)
/// that they received from the voters. `shape` are the heads of one text. `real` is stated if some rows may stand for
/// nothing: those rank last.
pub(crate) fn go_on<E: Select>(
    engine: &mut E,
    cut: &Cut,
    p: &E::Tensor,
    shape: HeadShape,
    real: Option<&Real>,
    x: &E::Tensor,
) -> Result<Gone<E::Tensor>, Error> {
    let Cut { rows, keep, first, last } = *cut;
    let (texts, width) = (x.shape()[0] / rows, x.shape()[1]);
    if keep == rows {
        let which = E::CLEAR.then(|| vec![(0..rows).collect(); texts]);
        return Ok(Gone { rows: x.clone(), which });
    }
    let x = x.reshape(&[texts, rows, width]);
    let ranked = cut.ranked();
    let choose = keep - first - last;
    let mut parts = vec![x.slice(1, 0..first)];
    let mut which = None;
    if choose > 0 {
        let terms = p.len() / (texts * rows);
        let votes = p.reshape(&[texts, terms, rows]).permute(&[0, 2, 1]);
        let mut votes = engine.sum_last(&votes)?;
        let Received { mut magnitude, frac, mut ceiling } =
            Received::new(engine, cut.voters(), Granularity::PerLayer, shape)?;
        if let Some(real) = real {
            // More than any sum of probabilities, so that padding ranks last.
            let lead = (1u32 << magnitude) as f32;
            let leads = real.as_ref().map(|real| real.mapv(|real| if real { lead } else { 0.0 }).into_dyn());
            let leads = engine.input(&[texts, rows], leads.as_ref().map(|leads| leads.view()))?;
            votes = engine.add(&votes, &leads)?;
            // The lead is at most four times the number of terms, each of which may be 1.
            (magnitude, ceiling) = (magnitude + 1, ceiling.times(5));
        }
        let how = Ranking { k: choose, method: TopK::Rank, magnitude, ceiling, frac, rounded: true };
        let best = engine.top_k(&votes.slice(1, ranked.clone()), &how)?;
        let best = engine.in_order(&best)?;
        parts.push(engine.gather(&best, Right::Fresh(&x.slice(1, ranked.clone())), RESIDUAL_MAGNITUDE)?);
        which = engine.chosen(&best).map(|best| {
            let all = |row: Vec<usize>| {
                let chosen = row.into_iter().map(|i| first + i);
                (0..first).chain(chosen).chain(rows - last..rows).collect()
            };
            best.into_iter().map(all).collect()
        });
    } else if E::CLEAR {
        which = Some(vec![(0..first).chain(rows - last..rows).collect(); texts]);
    }
    parts.push(x.slice(1, rows - last..rows));
    let parts: Vec<&E::Tensor> = parts.iter().filter(|part| part.shape()[1] > 0).collect();
    Ok(Gone { rows: E::Tensor::concat(1, &parts).reshape(&[texts * keep, width]), which })
}
