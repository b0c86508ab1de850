//! The columns of `kvzap`, `qfilters` and `keydiff`: linear functions of the hidden state that predict a score of a
//! token.
//!
//! **`kvzap`.** The target is the natural logarithm of the largest attention that a key receives from later queries
//! of the same text, raised to [`FLOOR`]. The maximum is over these queries and over the query heads of the key's
//! key/value head. KVzip, whose score KVzap learns, lets the model repeat its context and takes the maximum over the
//! repetition. KVzap's own target also weighs by the norms of values. Reading a text once is simpler, works for
//! models that follow no instruction, and shows the tokens to which such texts attend. Only queries from a certain
//! distance on count, as a policy keeps the latest tokens anyway. Tokens of the last quarter of a sequence are left
//! out, as few queries follow them.
//!
//! **`qfilters`.** The projection of a token's key on the main direction of the queries that read its head: the
//! first right singular vector of these queries, over all sequences but those held out, on the side of their mean.
//! **`keydiff`.** The negative cosine between a token's key and the mean of all keys of the sequence, each of length
//! 1. Queries and keys have their rotary positions in both.
//!
//! **Fit.** Ridge regression for each layer and head, from the output of the norm before attention. One in five
//! sequences is held out, and the correlation of the columns with the target is measured on these.
//!
//! **Scale.** Scores are compared only within a head, so each layer may have its own unit. It is chosen such that no
//! hidden state has a score beyond half of the policy's range, and no column has a larger entry than the matrix to
//! which it is appended. The matrix then keeps its fractional bits.

use std::path::Path;

use ndarray::{Array1, Array2, ArrayView2, Axis, concatenate, s};
use waggle_engine::{FloatWeight, WeightData, WeightLoader, WeightSpec, largest};
use waggle_model::{Checkpoint, Error, Model, ModelSpec, largest_score as most};
use waggle_mpcache::HEAD_MAGNITUDE;

use super::ridge::Samples;
use super::{FitError, Shown, most_received, show};
use crate::glue::metrics::pearson;
use crate::watch::Seen;

/// What columns foretell of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// `kvzap`: the most attention from a query at least this many tokens later.
    Attention {
        /// The least distance.
        after: usize,
    },
    /// `qfilters`: how far the key lies in the direction of queries.
    Queries,
    /// `keydiff`: how little the key is like the mean key.
    Keys,
}

impl Target {
    /// The name of the scoring head, which is that of its policy.
    pub fn head(self) -> &'static str {
        match self {
            Target::Attention { .. } => "kvzap",
            Target::Queries => "qfilters",
            Target::Keys => "keydiff",
        }
    }

    /// The number of tokens of a sequence of `length` tokens to learn from.
    fn tokens(self, length: usize) -> usize {
        match self {
            // Every token of the fit is followed by at least a quarter of a sequence's queries.
            Target::Attention { after } => (length - length / 4).saturating_sub(after),
            Target::Queries | Target::Keys => length,
        }
    }
}

/// The least attention that the target distinguishes. Smaller numbers are raised to it.
const FLOOR: f32 = 1e-6;

/// Steps of the power iteration that finds a direction.
const POWERS: usize = 200;

/// One in this many sequences is held out.
const HELD_OUT: usize = 5;

/// Columns that were fitted, with their quality.
#[derive(Clone, Debug)]
pub struct FittedColumns {
    /// For each layer, a matrix (width, kv_heads).
    columns: Vec<Array2<f32>>,
    /// For each layer, the correlation of the columns with the target on held-out sequences, as the mean over its
    /// heads.
    pub correlations: Vec<f64>,
}

/// Fits columns that foretell `target` to `sequences` of equal length, for a `model` that [`Model::load_to_fit`]
/// loaded. `tick` is called after each sequence.
///
/// # Errors
/// [`FitError::TooShort`] for fewer than five sequences, [`FitError::Nothing`] if the target leaves no tokens,
/// [`FitError::Singular`], [`Error::NotLearned`] for a model without a scoring head, and errors of the model.
pub fn fit_columns(
    model: &Model<FloatWeight>,
    checkpoint: &Checkpoint,
    sequences: &[&[u32]],
    target: Target,
    tick: &mut dyn FnMut(),
) -> Result<FittedColumns, FitError> {
    if model.scoring_head() != Some(target.head()) {
        return Err(Error::NotLearned { wanted: target.head(), loaded: model.scoring_head() }.into());
    }
    let spec = model.spec();
    let length = sequences.first().map_or(0, |ids| ids.len());
    if sequences.len() < HELD_OUT {
        return Err(FitError::TooShort { needed: HELD_OUT, length, got: sequences.len() });
    }
    let tokens = target.tokens(length);
    if let (0, Target::Attention { after }) = (tokens, target) {
        return Err(FitError::Nothing { length, after });
    }
    let (heads, width) = (spec.heads(), spec.hidden());
    let mut samples: Vec<Samples> = heads.iter().map(|heads| Samples::new(width, heads.kv_heads)).collect();
    let (held_out, learned): (Vec<_>, Vec<_>) =
        sequences.iter().enumerate().partition(|(i, _)| i % HELD_OUT == HELD_OUT - 1);
    let directions = match target {
        Target::Queries => directions(model, learned.iter().map(|(_, ids)| **ids))?,
        Target::Attention { .. } | Target::Keys => Vec::new(),
    };
    let look = move |seen: &Seen| match target {
        Target::Attention { after } => most_received(seen, after).mapv(|p| p.max(FLOOR).ln()),
        Target::Queries => projections(seen, &directions[seen.layer]),
        Target::Keys => unlikeness(seen),
    };
    for (_, ids) in learned {
        let shown = show(model, ids, look.clone())?;
        for (layer, samples) in samples.iter_mut().enumerate() {
            let (states, target) = pairs(&shown, layer, tokens);
            samples.add(states.view(), target.view());
        }
        tick();
    }
    let mut columns = Vec::with_capacity(spec.layers());
    for ((layer, samples), beside) in samples.iter().enumerate().zip(largest_entries(&spec, checkpoint)?) {
        let fitted = samples.solve().ok_or(FitError::Singular { layer })?.mapv(|w| w as f32);
        columns.push(scaled(fitted, beside));
    }
    let mut foretold: Vec<_> = heads.iter().map(|heads| vec![Vec::new(); heads.kv_heads]).collect();
    for (_, ids) in held_out {
        let shown = show(model, ids, look.clone())?;
        for (layer, foretold) in foretold.iter_mut().enumerate() {
            let (states, target) = pairs(&shown, layer, tokens);
            let scores = states.dot(&columns[layer]);
            for (head, foretold) in foretold.iter_mut().enumerate() {
                let both = scores.column(head).into_iter().zip(target.column(head));
                foretold.extend(both.map(|(got, want)| (f64::from(*got), f64::from(*want))));
            }
        }
        tick();
    }
    let mean = |heads: &Vec<Vec<_>>| heads.iter().map(|pairs| pearson(pairs)).sum::<f64>() / heads.len() as f64;
    Ok(FittedColumns { correlations: foretold.iter().map(mean).collect(), columns })
}

/// Hidden states (tokens, width) and targets (tokens, kv_heads) of the first `tokens` tokens on `layer`.
fn pairs(shown: &Shown, layer: usize, tokens: usize) -> (Array2<f32>, Array2<f32>) {
    let of_a_layer = (shown.norms.len() - 1) / shown.found.len();
    let states = shown.norms[of_a_layer * layer].slice(s![..tokens, ..]).to_owned();
    (states, shown.found[layer].slice(s![.., ..tokens]).reversed_axes().to_owned())
}

/// For each layer, the direction of each key/value head (kv_heads, head_dim) in which the queries of `sequences` lie
/// that read it: a unit vector.
fn directions<'a>(
    model: &Model<FloatWeight>,
    sequences: impl Iterator<Item = &'a [u32]>,
) -> Result<Vec<Array2<f32>>, FitError> {
    let mut sums: Vec<Array2<f64>> = Vec::new();
    for ids in sequences {
        let found = show(model, ids, query_moments)?.found.into_iter().map(|found| found.mapv(f64::from));
        match &mut sums[..] {
            [] => sums = found.collect(),
            sums => sums.iter_mut().zip(found).for_each(|(sum, found)| *sum += &found),
        }
    }
    let of_layer = |moments: &Array2<f64>| {
        let d = moments.ncols() - 1;
        let mut all = Array2::zeros((moments.nrows() / d, d));
        for (mut row, moments) in all.rows_mut().into_iter().zip(moments.axis_chunks_iter(Axis(0), d)) {
            row.assign(&principal(moments).mapv(|x| x as f32));
        }
        all
    };
    Ok(sums.iter().map(of_layer).collect())
}

/// The sums of q q^T over the queries q that read a key/value head, and beside them the sum of q: (kv_heads *
/// head_dim, head_dim + 1).
fn query_moments(seen: &Seen) -> Array2<f32> {
    let (d, rows) = (seen.shape.head_dim, seen.q.len() / seen.shape.kv_heads / seen.shape.head_dim);
    let of_head = |head: ArrayView2<f32>| {
        let products = head.t().dot(&head);
        concatenate![Axis(1), products, head.sum_axis(Axis(0)).insert_axis(Axis(1))]
    };
    let folded = seen.q.to_shape((seen.shape.kv_heads * rows, d)).expect("queries by head");
    let heads: Vec<_> = folded.axis_chunks_iter(Axis(0), rows).map(of_head).collect();
    concatenate(Axis(0), &heads.iter().map(|head| head.view()).collect::<Vec<_>>()).expect("heads of one shape")
}

/// The eigenvector of the largest eigenvalue of a head's `moments`, on the side of the mean: a unit vector.
fn principal(moments: ArrayView2<f64>) -> Array1<f64> {
    let d = moments.ncols() - 1;
    let (products, mean) = (moments.slice(s![.., ..d]), moments.column(d));
    let unit = |v: Array1<f64>| {
        let length = v.dot(&v).sqrt();
        if length > 0.0 { v / length } else { Array1::from_elem(d, (d as f64).sqrt().recip()) }
    };
    let mut v = unit(mean.to_owned());
    for _ in 0..POWERS {
        v = unit(products.dot(&v));
    }
    if v.dot(&mean) < 0.0 { -v } else { v }
}

/// The projections of keys on the direction of their head, (kv_heads, head_dim): (kv_heads, tokens).
fn projections(seen: &Seen, directions: &Array2<f32>) -> Array2<f32> {
    by_head(seen, |head, keys| keys.dot(&directions.row(head)))
}

/// The negative cosines between keys and the mean of the unit vectors of all keys of a head: (kv_heads, tokens).
fn unlikeness(seen: &Seen) -> Array2<f32> {
    by_head(seen, |_, keys| {
        let lengths = keys.map_axis(Axis(1), |key| key.dot(&key).sqrt().max(f32::MIN_POSITIVE));
        let units = &keys / &lengths.insert_axis(Axis(1));
        let mean = units.mean_axis(Axis(0)).expect("tokens");
        units.dot(&mean) / -mean.dot(&mean).sqrt().max(f32::MIN_POSITIVE)
    })
}

/// What `score` makes of the keys (tokens, head_dim) of each head.
fn by_head(seen: &Seen, score: impl Fn(usize, ArrayView2<f32>) -> Array1<f32>) -> Array2<f32> {
    let mut all = Array2::zeros((seen.shape.kv_heads, seen.keys.nrows()));
    for (head, mut row) in all.rows_mut().into_iter().enumerate() {
        row.assign(&score(head, seen.of_head(seen.keys, head)));
    }
    all
}

/// `columns` in a unit that is chosen for their layer: no entry exceeds `largest`, the largest entry of the layer's
/// matrix, and no score exceeds half of the policy's range.
fn scaled(columns: Array2<f32>, largest: f32) -> Array2<f32> {
    let limit = f64::from(1u32 << HEAD_MAGNITUDE) / 2.0;
    let entry = f64::from(columns.iter().fold(0f32, |most, w| most.max(w.abs())));
    let factor = (limit / most(columns.view())).min(f64::from(largest) / entry);
    if factor.is_finite() { columns.mapv(|w| (f64::from(w) * factor) as f32) } else { columns }
}

/// For each layer, the largest magnitude of an entry in the matrix that makes queries, keys and values.
fn largest_entries(spec: &ModelSpec, checkpoint: &Checkpoint) -> Result<Vec<f32>, Error> {
    /// Instead of loading weights, notes the largest entry of each matrix to which a scoring head adds columns. The
    /// added columns are 0.
    struct Looking {
        without: std::vec::IntoIter<WeightSpec>,
        largest: Vec<f32>,
    }
    impl WeightLoader for Looking {
        type Weight = ();
        fn load(&mut self, spec: &WeightSpec, data: Option<WeightData>) -> Result<(), waggle_engine::Error> {
            if self.without.next().is_some_and(|without| without.outputs < spec.outputs) {
                let data = data.ok_or_else(|| waggle_engine::Error::NoValues { tensor: spec.name.clone() })?;
                self.largest.push(largest(&*data.matrix));
            }
            Ok(())
        }
    }
    let mut looking = Looking { without: spec.weight_specs().into_iter(), largest: Vec::new() };
    Model::load_to_fit(&mut looking, spec, checkpoint, Target::Keys.head())?;
    Ok(looking.largest)
}

impl FittedColumns {
    /// Writes the columns to the file `path`, for the `checkpoint` to which they were fitted.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn write(&self, spec: &ModelSpec, checkpoint: &Checkpoint, path: &Path) -> Result<(), Error> {
        checkpoint.write_learned(spec, &self.columns, path)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ndarray::array;
    use waggle_engine::FloatLoader;
    use waggle_model::bundled;
    use waggle_mpcache::HeadShape;

    use super::*;

    #[test]
    fn columns_foretell_what_tokens_receive_on_text_that_they_have_not_seen() {
        let files = bundled("shakespeare-llama").unwrap();
        let model = Model::load_to_fit(&mut FloatLoader, &files.spec, &files.checkpoint, "kvzap").unwrap();
        let text = String::from_utf8_lossy(waggle_model::bundled_text("tinystories.json").unwrap());
        let tokenizer = waggle_tokenizer::Tokenizer::from_bytes(files.tokenizer.as_deref().unwrap()).unwrap();
        let ids: Vec<u32> = tokenizer.encode(&text.replace(|c: char| !c.is_ascii_alphabetic(), " ")).unwrap();
        let sequences: Vec<&[u32]> = ids.chunks_exact(64).take(25).collect();
        let target = Target::Attention { after: 4 };
        let fitted = fit_columns(&model, &files.checkpoint, &sequences, target, &mut || ()).unwrap();
        let mean = fitted.correlations.iter().sum::<f64>() / fitted.correlations.len() as f64;
        assert!(mean > 0.3, "{:?}", fitted.correlations);
        // Scores stay within the range, and entries are no larger than the matrix's.
        let beside = largest_entries(&files.spec, &files.checkpoint).unwrap();
        for (columns, beside) in fitted.columns.iter().zip(beside) {
            assert!(most(columns.view()) <= 128.01, "{}", most(columns.view()));
            assert!(columns.iter().all(|w| w.abs() <= beside * 1.001));
        }
        let shown = show(&model, sequences[0], unlikeness).unwrap();
        let scores = shown.norms[0].dot(&fitted.columns[0]);
        assert_eq!(scores.ncols(), files.spec.heads()[0].kv_heads);
    }

    /// Two heads of two queries each, whose keys are plain to see.
    #[test]
    fn the_direction_of_queries_and_the_mean_key() {
        let shape = HeadShape { heads: 2, kv_heads: 2, head_dim: 2 };
        let q = array![[[3.0, 4.0], [-0.6, -0.8]], [[0.0, -2.0], [0.1, -2.0]]];
        let keys = array![[1.0, 0.0, 1.0, 1.0], [0.0, 2.0, -1.0, 1.0]];
        let (q, keys) = (q.view(), keys.view());
        let seen = Seen { layer: 0, shape, q, keys, values: keys, p: q, sink: false, output: q };
        let moments = query_moments(&seen).mapv(f64::from);
        let sums = moments.row(0).into_iter().zip([9.36, 12.48, 2.4]);
        assert!(sums.into_iter().all(|(got, want)| (got - want).abs() < 1e-5), "sums of q q and of q: {moments}");
        // The first head's queries lie on one line. Its longer one says on which side.
        let near = |found: &[f64], want: [f64; 2]| found.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-3);
        assert!(near(principal(moments.slice(s![..2, ..])).as_slice().unwrap(), [0.6, 0.8]));
        let second = principal(moments.slice(s![2.., ..]));
        assert!(near(second.as_slice().unwrap(), [0.025, -0.9997]), "{second}");
        let directions = array![[0.6, 0.8], [0.0, -1.0]];
        assert_eq!(projections(&seen, &directions), array![[0.6, 1.6], [-1.0, -1.0]]);
        // The mean of the first head's unit keys is (1/2, 1/2), that of the second's (0, 1 / root of 2).
        let root = 0.5f32.sqrt();
        assert!((unlikeness(&seen) + root).iter().all(|x| x.abs() < 1e-6));
    }

    /// `bench/peers/kvpress/make.py` made the file. Its filters come from the same prompt.
    #[test]
    fn targets_rank_tokens_as_kvpress_does() {
        #[derive(serde::Deserialize)]
        struct Reference {
            prompt: Vec<u32>,
            scored: BTreeMap<String, Vec<Vec<Vec<usize>>>>,
        }
        const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../model/tests/data");
        let reference = std::fs::read(format!("{DATA}/kvpress.json")).unwrap();
        let Reference { prompt, scored } = serde_json::from_slice(&reference).unwrap();
        let files = waggle_model::ModelFiles::open(Path::new(&format!("{DATA}/families/llama3"))).unwrap();
        let model = Model::load(&mut FloatLoader, &files.spec, Some(&files.checkpoint)).unwrap();
        let filters = directions(&model, [&prompt[..]].into_iter()).unwrap();
        let found = [
            show(&model, &prompt, move |seen: &Seen| projections(seen, &filters[seen.layer])),
            show(&model, &prompt, unlikeness),
        ];
        for (found, name) in found.into_iter().zip(["qfilters", "keydiff"]) {
            for (layer, (scores, kept)) in found.unwrap().found.iter().zip(&scored[name]).enumerate() {
                for (scores, kept) in scores.rows().into_iter().zip(kept) {
                    // The token of the step that asked is no token of the prompt.
                    let kept: Vec<usize> = kept.iter().copied().filter(|token| *token < prompt.len()).collect();
                    let mut best: Vec<usize> = (0..prompt.len()).collect();
                    best.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
                    best.truncate(kept.len());
                    best.sort_unstable();
                    assert_eq!(best, kept, "{name}, layer {layer}");
                }
            }
        }
    }

    #[test]
    fn columns_of_keys_foretell_their_scores() {
        let files = bundled("shakespeare-gpt2").unwrap();
        let ids: Vec<u32> = (0..1600u32).map(|i| (i * i * 7 + i / 3) % 61).collect();
        let sequences: Vec<&[u32]> = ids.chunks_exact(64).collect();
        for target in [Target::Queries, Target::Keys] {
            let head = target.head();
            let model = Model::load_to_fit(&mut FloatLoader, &files.spec, &files.checkpoint, head).unwrap();
            let fitted = fit_columns(&model, &files.checkpoint, &sequences, target, &mut || ()).unwrap();
            // Without rotary positions a projection is a linear function of the state.
            let least = if target == Target::Queries { 0.99 } else { 0.4 };
            assert!(fitted.correlations.iter().all(|r| *r > least), "{target:?}: {:?}", fitted.correlations);
        }
    }

    #[test]
    fn too_little_text_is_refused() {
        let files = bundled("shakespeare-gpt2").unwrap();
        let model = Model::load_to_fit(&mut FloatLoader, &files.spec, &files.checkpoint, "kvzap").unwrap();
        let ids = [1u32; 16];
        let fit = |count: usize, after| {
            let target = Target::Attention { after };
            fit_columns(&model, &files.checkpoint, &vec![&ids[..]; count], target, &mut || ())
        };
        assert!(matches!(fit(4, 1), Err(FitError::TooShort { needed: 5, length: 16, got: 4 })));
        assert!(matches!(fit(5, 12), Err(FitError::Nothing { length: 16, after: 12 })));
    }
}
