//! Results of a run, to be scored.

use ndarray::Array2;

use super::attention::AttentionMeans;

/// The results of a run over one sequence, to be scored.
#[derive(Clone, Debug)]
pub struct Trace {
    /// Logits (scored positions, vocabulary).
    pub logits: Array2<f32>,
    /// Means of attention, where values are seen.
    pub attention: Option<AttentionMeans>,
    /// The tokens that were generated after the prompt, for a sequence that asks for some.
    pub generated: Option<Vec<u32>>,
}
