//! The structure of tensors: shapes and the order of entries, whatever the entries mean.

use std::ops::Range;

use ndarray::{ArrayD, Axis, IxDyn, Slice};

/// Row-major tensors that a model can cut, join and reorder. Nothing here touches values, so every operation is
/// free: no byte is sent and no rounding happens.
///
/// Shapes are public and come from the model's configuration; a shape mismatch is a bug of the caller and panics.
pub trait Tensor: Clone + Send + Sync + Sized {
    /// Lengths of the axes.
    fn shape(&self) -> Vec<usize>;

    /// The same entries in the same order, under another shape with as many entries.
    fn reshape(&self, shape: &[usize]) -> Self;

    /// The tensor with its axes reordered: axis `i` of the result is axis `axes[i]` of `self`.
    fn permute(&self, axes: &[usize]) -> Self;

    /// The entries whose index along `axis` lies in `range`.
    fn slice(&self, axis: usize, range: Range<usize>) -> Self;

    /// Joins `parts` one after another along `axis`. `parts` must not be empty.
    fn concat(axis: usize, parts: &[&Self]) -> Self;

    /// Appends `rows` along axis 0, in place and in amortised time proportional to `rows`.
    fn append(&mut self, rows: &Self);

    /// Number of entries.
    fn len(&self) -> usize {
        self.shape().iter().product()
    }

    /// Whether there are no entries.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<A: Clone + Send + Sync> Tensor for ArrayD<A> {
    fn shape(&self) -> Vec<usize> {
        ndarray::ArrayBase::shape(self).to_vec()
    }

    fn reshape(&self, shape: &[usize]) -> Self {
        self.to_shape(IxDyn(shape)).expect("the number of entries stays the same").into_owned()
    }

    fn permute(&self, axes: &[usize]) -> Self {
        self.view().permuted_axes(IxDyn(axes)).as_standard_layout().into_owned()
    }

    fn slice(&self, axis: usize, range: Range<usize>) -> Self {
        self.slice_axis(Axis(axis), Slice::from(range)).as_standard_layout().into_owned()
    }

    fn concat(axis: usize, parts: &[&Self]) -> Self {
        let views: Vec<_> = parts.iter().map(|p| p.view()).collect();
        let joined = ndarray::concatenate(Axis(axis), &views).expect("the other axes agree");
        joined.as_standard_layout().into_owned()
    }

    fn append(&mut self, rows: &Self) {
        ArrayD::append(self, Axis(0), rows.view()).expect("the other axes agree");
    }

    fn len(&self) -> usize {
        ndarray::ArrayBase::len(self)
    }
}

/// A tensor of which only the shape is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape(pub Vec<usize>);

impl Tensor for Shape {
    fn shape(&self) -> Vec<usize> {
        self.0.clone()
    }

    fn reshape(&self, shape: &[usize]) -> Self {
        assert_eq!(self.len(), shape.iter().product::<usize>(), "the number of entries stays the same");
        Shape(shape.to_vec())
    }

    fn permute(&self, axes: &[usize]) -> Self {
        Shape(axes.iter().map(|&a| self.0[a]).collect())
    }

    fn slice(&self, axis: usize, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.0[axis], "slice {range:?} of {:?}", self.0);
        let mut shape = self.0.clone();
        shape[axis] = range.len();
        Shape(shape)
    }

    fn concat(axis: usize, parts: &[&Self]) -> Self {
        let mut shape = parts[0].0.clone();
        shape[axis] = parts.iter().map(|p| p.0[axis]).sum();
        Shape(shape)
    }

    fn append(&mut self, rows: &Self) {
        self.0[0] += rows.0[0];
    }
}
