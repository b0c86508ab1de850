//! Layers that cost the same.

/// A layer of a model, as far as its cost goes. Layers of one class whose weights have the same forms make the same
/// calls on tensors of the same shapes, in every pass.
#[derive(Clone, Copy, Debug)]
pub struct Layer<'a, W> {
    /// Its index in the model. Every pass goes through all layers, in order.
    pub index: usize,
    /// Its class.
    pub class: usize,
    /// Its weights.
    pub weights: &'a [&'a W],
}
