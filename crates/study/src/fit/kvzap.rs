//! The columns of `kvzap`: a linear function of the hidden state that predicts the attention that a token will
//! receive.
//!
//! **Target.** The natural logarithm of the largest attention that a key receives from later queries of the same
//! text, at least [`FLOOR`]. The maximum is over these queries and over the query heads of the key's key/value head.
//! KVzip, whose score KVzap learns, lets the model repeat its context and takes the maximum over the repetition.
//! KVzap's own target also weighs by the norms of values. Reading a text once is simpler, works for models that
//! follow no instruction, and shows the tokens to which such texts attend. Only queries from a certain distance on
//! count, as a policy keeps the latest tokens anyway. Tokens of the last quarter of a sequence are left out, as few
//! queries follow them.
//!
//! **Fit.** Ridge regression for each layer and head, from the output of the norm before attention. One in five
//! sequences is held out, and the correlation of the columns with the target is measured on these.
//!
//! **Scale.** Scores are compared only within a head, so each layer may have its own unit. It is chosen such that no
//! hidden state has a score beyond half of the policy's range, and no column has a larger entry than the matrix to
//! which it is appended. The matrix then keeps its fractional bits.

use std::path::Path;

use ndarray::{Array2, s};
use waggle_engine::{FloatWeight, WeightData, WeightLoader, WeightSpec, largest};
use waggle_model::{Checkpoint, Error, Model, ModelSpec, largest_score as most};
use waggle_mpcache::HEAD_MAGNITUDE;

use super::ridge::Samples;
use super::{FitError, Shown, show};

/// The least attention that the target distinguishes. Smaller numbers are raised to it.
const FLOOR: f32 = 1e-6;

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

/// Sums of two quantities and of their products, from which their correlation follows.
#[derive(Clone, Copy, Default)]
struct Moments {
    count: f64,
    x: f64,
    y: f64,
    xx: f64,
    yy: f64,
    xy: f64,
}

impl Moments {
    fn add(&mut self, x: f32, y: f32) {
        let (x, y) = (f64::from(x), f64::from(y));
        self.count += 1.0;
        self.x += x;
        self.y += y;
        self.xx += x * x;
        self.yy += y * y;
        self.xy += x * y;
    }

    /// The correlation; 0 if one of the quantities does not vary.
    fn correlation(self) -> f64 {
        let Moments { count, x, y, xx, yy, xy } = self;
        let spread = ((xx - x * x / count) * (yy - y * y / count)).sqrt();
        if spread > 0.0 { (xy - x * y / count) / spread } else { 0.0 }
    }
}

/// Fits columns to `sequences` of equal length, for a `model` that [`Model::load_to_fit`] loaded. The attention to a
/// token counts only if it comes from a query at least `after` tokens later. `tick` is called after each sequence.
///
/// # Errors
/// [`FitError::TooShort`] for fewer than five sequences, [`FitError::Nothing`] if `after` leaves no tokens,
/// [`FitError::Singular`], [`Error::NotLearned`] for a model without a scoring head, and errors of the model.
pub fn fit_columns(
    model: &Model<FloatWeight>,
    checkpoint: &Checkpoint,
    sequences: &[&[u32]],
    after: usize,
    tick: &mut dyn FnMut(),
) -> Result<FittedColumns, FitError> {
    if !model.learned() {
        return Err(Error::NotLearned.into());
    }
    let spec = model.spec();
    let length = sequences.first().map_or(0, |ids| ids.len());
    if sequences.len() < HELD_OUT {
        return Err(FitError::TooShort { needed: HELD_OUT, length, got: sequences.len() });
    }
    // Every token of the fit is followed by at least a quarter of a sequence's queries.
    let tokens = (length - length / 4).saturating_sub(after);
    if tokens == 0 {
        return Err(FitError::Nothing { length, after });
    }
    let (heads, width) = (spec.heads(), spec.hidden());
    let mut samples: Vec<Samples> = heads.iter().map(|heads| Samples::new(width, heads.kv_heads)).collect();
    let (held_out, learned): (Vec<_>, Vec<_>) =
        sequences.iter().enumerate().partition(|(i, _)| i % HELD_OUT == HELD_OUT - 1);
    for (_, ids) in learned {
        let shown = show(model, ids, after)?;
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
    let mut moments: Vec<_> = heads.iter().map(|heads| vec![Moments::default(); heads.kv_heads]).collect();
    for (_, ids) in held_out {
        let shown = show(model, ids, after)?;
        for (layer, moments) in moments.iter_mut().enumerate() {
            let (states, target) = pairs(&shown, layer, tokens);
            let scores = states.dot(&columns[layer]);
            for (head, moments) in moments.iter_mut().enumerate() {
                scores.column(head).iter().zip(target.column(head)).for_each(|(x, y)| moments.add(*x, *y));
            }
        }
        tick();
    }
    let mean = |heads: Vec<Moments>| {
        let count = heads.len() as f64;
        heads.into_iter().map(Moments::correlation).sum::<f64>() / count
    };
    Ok(FittedColumns { columns, correlations: moments.into_iter().map(mean).collect() })
}

/// Hidden states (tokens, width) and targets (tokens, kv_heads) of the first `tokens` tokens on `layer`.
fn pairs(shown: &Shown, layer: usize, tokens: usize) -> (Array2<f32>, Array2<f32>) {
    let of_a_layer = (shown.norms.len() - 1) / shown.received.len();
    let states = shown.norms[of_a_layer * layer].slice(s![..tokens, ..]).to_owned();
    let received = shown.received[layer].slice(s![.., ..tokens]);
    (states, received.reversed_axes().mapv(|p| p.max(FLOOR).ln()))
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
    Model::load_to_fit(&mut looking, spec, checkpoint)?;
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
    use waggle_engine::FloatLoader;
    use waggle_model::bundled;

    use super::*;

    #[test]
    fn columns_foretell_what_tokens_receive_on_text_that_they_have_not_seen() {
        let files = bundled("shakespeare-llama").unwrap();
        let model = Model::load_to_fit(&mut FloatLoader, &files.spec, &files.checkpoint).unwrap();
        let text = String::from_utf8_lossy(waggle_model::bundled_text("tinystories.json").unwrap());
        let tokenizer = waggle_tokenizer::Tokenizer::from_bytes(files.tokenizer.as_deref().unwrap()).unwrap();
        let ids: Vec<u32> = tokenizer.encode(&text.replace(|c: char| !c.is_ascii_alphabetic(), " ")).unwrap();
        let sequences: Vec<&[u32]> = ids.chunks_exact(64).take(25).collect();
        let fitted = fit_columns(&model, &files.checkpoint, &sequences, 4, &mut || ()).unwrap();
        let mean = fitted.correlations.iter().sum::<f64>() / fitted.correlations.len() as f64;
        assert!(mean > 0.3, "{:?}", fitted.correlations);
        // Scores stay within the range, and entries are no larger than the matrix's.
        let beside = largest_entries(&files.spec, &files.checkpoint).unwrap();
        for (columns, beside) in fitted.columns.iter().zip(beside) {
            assert!(most(columns.view()) <= 128.01, "{}", most(columns.view()));
            assert!(columns.iter().all(|w| w.abs() <= beside * 1.001));
        }
        let shown = show(&model, sequences[0], 4).unwrap();
        let scores = shown.norms[0].dot(&fitted.columns[0]);
        assert_eq!(scores.ncols(), files.spec.heads()[0].kv_heads);
    }

    #[test]
    fn too_little_text_is_refused() {
        let files = bundled("shakespeare-gpt2").unwrap();
        let model = Model::load_to_fit(&mut FloatLoader, &files.spec, &files.checkpoint).unwrap();
        let ids = [1u32; 16];
        let fit =
            |count: usize, after| fit_columns(&model, &files.checkpoint, &vec![&ids[..]; count], after, &mut || ());
        assert!(matches!(fit(4, 1), Err(FitError::TooShort { needed: 5, length: 16, got: 4 })));
        assert!(matches!(fit(5, 12), Err(FitError::Nothing { length: 16, after: 12 })));
    }
}
