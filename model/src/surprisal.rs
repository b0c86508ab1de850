//! The surprisal of the tokens of a text, for policies that keep unexpected tokens.

use ndarray::{Array1, Array2, ArrayView1};
use waggle_engine::Error;
use waggle_mpcache::{KvCache, ScoreSource};

/// The operation that an error names if an engine does not open logits to the party that has the tokens.
const OPERATION: &str = "a policy that wants to know how unexpected tokens are";

/// Tells a cache, after each pass, how unexpected each token was.
#[derive(Debug, Default)]
pub(crate) struct Surprisal {
    /// The logits after the last token.
    last: Option<Array1<f32>>,
}

impl Surprisal {
    /// Tells `cache` the surprisals of the tokens `ids` that went through the model in this pass, if its policy wants
    /// them. `logits` has the logits after each of these tokens. The very first token was not predicted and counts as
    /// expected.
    pub(crate) fn tell<E: waggle_engine::Engine>(
        &mut self,
        engine: &mut E,
        cache: &mut KvCache<E>,
        ids: Option<&[u32]>,
        logits: Option<&Array2<f32>>,
    ) -> Result<(), Error> {
        if cache.wants_scores() != Some(ScoreSource::Surprisal) {
            return Ok(());
        }
        let (Some(ids), Some(logits)) = (ids, logits.filter(|_| E::CLEAR)) else {
            return Err(Error::NotInTheClear { operation: OPERATION });
        };
        assert_eq!(logits.nrows(), ids.len(), "logits after every token");
        let first = self.last.as_ref().zip(ids.first()).map_or(0.0, |(row, id)| surprisal(row.view(), *id));
        let rest = logits.rows().into_iter().zip(&ids[1..]).map(|(row, id)| surprisal(row, *id));
        let surprisals: Vec<f32> = std::iter::once(first).chain(rest).collect();
        self.last = logits.rows().into_iter().next_back().map(|row| row.to_owned());
        cache.surprisals(engine, &surprisals)
    }
}

/// -log of the probability that `logits` give to `id`.
fn surprisal(logits: ArrayView1<f32>, id: u32) -> f32 {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|x| f64::from(x - most).exp()).sum();
    (sum.ln() - f64::from(logits[id as usize] - most)) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_surprisal_of_a_token_is_minus_the_logarithm_of_its_probability() {
        let logits = Array1::from_vec(vec![0.0, 3f32.ln(), 2f32.ln() + 2f32.ln()]);
        for (id, p) in [(0, 0.125f32), (1, 0.375), (2, 0.5)] {
            assert!((surprisal(logits.view(), id) + p.ln()).abs() < 1e-6);
        }
        assert!(surprisal(Array1::from_vec(vec![1000.0, 0.0]).view(), 1) > 999.0);
    }
}
