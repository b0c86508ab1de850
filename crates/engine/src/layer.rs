//! Layers that cost the same.

/// What decides the cost of a layer of a model. In every pass, layers of the same class whose weights have the same
/// shapes and formats make the same calls on tensors of the same shapes.
#[derive(Clone, Copy, Debug)]
pub struct Layer<'a, W> {
    /// The layer's index in the model. Every pass goes through all layers in order.
    pub index: usize,
    /// The layer's class, a number that the model chooses.
    pub class: usize,
    /// The layer's weights.
    pub weights: &'a [&'a W],
}
