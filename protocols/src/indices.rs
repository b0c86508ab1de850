//! Positions of entries, made only where there are entries to move.

use std::cell::LazyCell;
use std::fmt;

/// Positions in a vector. They are made when a box with values first asks for them. A plan asks only for their
/// number.
pub struct Indices<'a> {
    len: usize,
    list: LazyCell<Vec<usize>, Box<dyn FnOnce() -> Vec<usize> + 'a>>,
}

impl<'a> Indices<'a> {
    /// The `len` positions that `make` returns.
    pub fn new(len: usize, make: impl FnOnce() -> Vec<usize> + 'a) -> Self {
        Indices { len, list: LazyCell::new(Box::new(make)) }
    }

    /// The number of positions.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no positions.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The positions. Panics if their number is not the one that was stated.
    pub fn list(&self) -> &[usize] {
        let list: &[usize] = &self.list;
        assert_eq!(list.len(), self.len, "positions made and stated");
        list
    }
}

impl From<Vec<usize>> for Indices<'_> {
    fn from(list: Vec<usize>) -> Self {
        Indices::new(list.len(), || list)
    }
}

impl fmt::Debug for Indices<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Indices({})", self.len)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use ndarray::{ArrayD, arr1};

    use super::*;
    use crate::words::Words;
    use crate::{Shape, Tensor};

    #[test]
    fn positions_are_made_once_and_never_for_a_plan() {
        let made = Cell::new(0);
        let at = Indices::new(3, || {
            made.set(made.get() + 1);
            vec![4, 0, 2]
        });
        assert_eq!(Shape(vec![5]).pick(&at), Shape(vec![3]));
        assert_eq!(Shape(vec![3]).place(&at, 6), Shape(vec![6]));
        assert_eq!(made.get(), 0);
        let x: ArrayD<u64> = arr1(&[10, 11, 12, 13, 14]).into_dyn();
        let picked = x.pick(&at);
        assert_eq!(picked, x.pick(&Indices::from(vec![4, 0, 2])));
        assert_eq!(picked, arr1(&[14, 10, 12]).into_dyn());
        assert_eq!(picked.place(&at, 6), arr1(&[10, 0, 12, 0, 14, 0]).into_dyn());
        assert_eq!((made.get(), Tensor::len(&picked)), (1, at.len()));
    }

    #[test]
    #[should_panic(expected = "positions made and stated")]
    fn a_wrong_number_of_positions_is_noticed() {
        Indices::new(3, || vec![0, 1]).list();
    }
}
