//! Finds the layers for `squeeze`: those in which attention changes the hidden state least.
//!
//! SqueezeAttention measures, for each layer, the cosine similarity of a token's hidden state before and after
//! attention. It divides the layers into three groups by their similarity. The group with the largest similarity gets
//! a smaller budget. Here the similarity is the mean over a text, and not over each prompt, as a prompt's similarity
//! would tell about the prompt.

use ndarray::{Array2, Zip};
use waggle_engine::FloatWeight;
use waggle_model::Model;
use waggle_mpcache::LayerSet;

use super::{FitError, show};

/// Number of groups of layers. A model with fewer layers has one group for each.
const GROUPS: usize = 3;

/// How much attention changes the hidden state in each layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerChange {
    /// For each layer, the cosine similarity of the hidden state before and after attention, as the mean over all
    /// tokens.
    pub similarity: Vec<f64>,
    /// The layers of the group with the largest similarity; `None` for a model with a single layer.
    pub light: Option<LayerSet>,
}

/// Measures the layers of `model` on `sequences`. `tick` is called after each sequence.
///
/// # Errors
/// [`FitError::TooShort`] without sequences, and errors of the model.
pub fn fit_layers(
    model: &Model<FloatWeight>,
    sequences: &[&[u32]],
    tick: &mut dyn FnMut(),
) -> Result<LayerChange, FitError> {
    let layers = model.spec().layers();
    let (mut sums, mut tokens) = (vec![0.0; layers], 0);
    for ids in sequences {
        let shown = show(model, ids, |_| Array2::zeros((0, 0)))?;
        for (layer, sum) in sums.iter_mut().enumerate() {
            *sum += cosines(&shown.residual[2 * layer], &shown.residual[2 * layer + 1]);
        }
        tokens += ids.len();
        tick();
    }
    if tokens == 0 {
        return Err(FitError::TooShort { needed: 1, length: 0, got: 0 });
    }
    let similarity: Vec<f64> = sums.into_iter().map(|sum| sum / tokens as f64).collect();
    Ok(LayerChange { light: LayerSet::new(most_alike(&similarity)), similarity })
}

/// The sum, over all rows, of the cosine of the angle between a row of `a` and the same row of `b`.
fn cosines(a: &Array2<f32>, b: &Array2<f32>) -> f64 {
    let mut sum = 0.0;
    Zip::from(a.rows()).and(b.rows()).for_each(|a, b| {
        let dot = |x: &ndarray::ArrayView1<f32>, y: &ndarray::ArrayView1<f32>| -> f64 {
            x.iter().zip(y).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
        };
        sum += dot(&a, &b) / (dot(&a, &a) * dot(&b, &b)).sqrt().max(f64::MIN_POSITIVE);
    });
    sum
}

/// The layers of the group with the largest similarities. There are three groups, or one for each layer if there are
/// fewer than three layers. The groups minimise the sum of the squared distances of similarities from their group's
/// mean. The best groups of numbers are ranges, so all divisions into ranges are tried.
fn most_alike(similarity: &[f64]) -> Vec<usize> {
    let n = similarity.len();
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|a, b| similarity[*a].total_cmp(&similarity[*b]));
    let spread = |range: &[usize]| {
        let mean = range.iter().map(|i| similarity[*i]).sum::<f64>() / range.len() as f64;
        range.iter().map(|i| (similarity[*i] - mean).powi(2)).sum::<f64>()
    };
    let best = match n.min(GROUPS) {
        0 | 1 => return Vec::new(),
        2 => 1,
        _ => {
            let cuts = (1..n - 1).flat_map(|first| (first + 1..n).map(move |second| (first, second)));
            let cost = |(first, second): (usize, usize)| {
                spread(&order[..first]) + spread(&order[first..second]) + spread(&order[second..])
            };
            cuts.min_by(|a, b| cost(*a).total_cmp(&cost(*b))).map_or(n - 1, |(_, second)| second)
        }
    };
    order.split_off(best)
}

#[cfg(test)]
mod tests {
    use waggle_engine::FloatLoader;
    use waggle_model::bundled;

    use super::*;

    #[test]
    fn the_group_of_the_most_alike() {
        let of = |similarity: &[f64]| {
            let mut layers = most_alike(similarity);
            layers.sort_unstable();
            layers
        };
        assert_eq!(of(&[0.1, 0.9, 0.5, 0.95, 0.55, 0.12]), [1, 3]);
        assert_eq!(of(&[0.7, 0.2]), [0]);
        assert_eq!(of(&[0.3, 0.2, 0.1]), [0]);
        assert_eq!(of(&[0.3]), [0usize; 0]);
    }

    #[test]
    fn cosines_of_rows() {
        let a = Array2::from_shape_vec((2, 2), vec![1.0, 0.0, 3.0, 4.0]).unwrap();
        let b = Array2::from_shape_vec((2, 2), vec![2.0, 2.0, 4.0, 3.0]).unwrap();
        assert!((cosines(&a, &b) - (0.5f64.sqrt() + 24.0 / 25.0)).abs() < 1e-9);
    }

    #[test]
    fn attention_changes_every_layer_of_a_real_model_by_some_amount() {
        let files = bundled("shakespeare-gpt2").unwrap();
        let model = Model::load(&mut FloatLoader, &files.spec, Some(&files.checkpoint)).unwrap();
        let ids: Vec<u32> = (0..48).map(|i| (i * i + 3 * i) % 60).collect();
        let change = fit_layers(&model, &[&ids], &mut || ()).unwrap();
        assert_eq!(change.similarity.len(), files.spec.layers());
        assert!(change.similarity.iter().all(|cosine| (-1.0..0.9999).contains(cosine)), "{change:?}");
        let light = change.light.unwrap().to_string();
        let most = change.similarity.iter().copied().fold(f64::MIN, f64::max);
        let best = change.similarity.iter().position(|cosine| *cosine == most).unwrap();
        assert!(light.contains(&best.to_string()), "{light} of {change:?}");
    }
}
