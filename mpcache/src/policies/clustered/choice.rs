//! A choice of clusters on one level or two.

use waggle_engine::{Error, Right, Select, Tensor};

/// A choice of `wanted` fine clusters in each row, (rows, wanted, fine clusters).
///
/// A choice on one level is one selection among all fine clusters. On two levels it is a selection of coarse
/// clusters, and then one of fine clusters among their parts.
#[derive(Clone)]
pub(super) struct Choice<S> {
    /// The selection of coarse clusters, if there is one.
    pub(super) first: Option<S>,
    /// The selection of fine clusters.
    pub(super) last: S,
    /// The number of fine clusters in a coarse one.
    pub(super) fan: usize,
}

impl<S> Choice<S> {
    /// The chosen entries of `x` (rows, fine clusters, w): (rows, wanted, w).
    pub(super) fn gather<E: Select<Selection = S>>(
        &self,
        engine: &mut E,
        x: &E::Tensor,
        magnitude: u32,
    ) -> Result<E::Tensor, Error> {
        let Some(first) = &self.first else { return engine.gather(&self.last, Right::Fresh(x), magnitude) };
        let [rows, fine, w] = x.shape()[..] else { panic!("payload of shape {:?}", x.shape()) };
        let whole = x.reshape(&[rows, fine / self.fan, self.fan * w]);
        let parents = engine.gather(first, Right::Fresh(&whole), magnitude)?;
        let (rows, k) = (parents.shape()[0], parents.shape()[1]);
        let parts = parents.reshape(&[rows, k * self.fan, w]);
        engine.gather(&self.last, Right::Fresh(&parts), magnitude)
    }

    /// Scatters the entries `x` (rows, wanted, w) back to the places where they were chosen: (rows, fine clusters,
    /// w), zeros elsewhere.
    pub(super) fn scatter<E: Select<Selection = S>>(
        &self,
        engine: &mut E,
        x: &E::Tensor,
        magnitude: u32,
    ) -> Result<E::Tensor, Error> {
        let back = engine.scatter(&self.last, x, magnitude)?;
        let Some(first) = &self.first else { return Ok(back) };
        let [rows, parts, w] = back.shape()[..] else { panic!("payload of shape {:?}", back.shape()) };
        let parents = engine.scatter(first, &back.reshape(&[rows, parts / self.fan, self.fan * w]), magnitude)?;
        let clusters = parents.shape()[1];
        Ok(parents.reshape(&[rows, clusters * self.fan, w]))
    }

    /// This choice as a single selection, by one-hot rows over all fine clusters.
    pub(super) fn one_hot<E: Select<Selection = S>>(&self, engine: &mut E) -> Result<Self, Error> {
        let last = engine.one_hot(&self.last)?;
        let last = match &self.first {
            None => last,
            Some(first) => {
                let first = engine.one_hot(first)?;
                engine.compose(&first, self.fan, &last)?
            }
        };
        Ok(Choice { first: None, last, fan: self.fan })
    }

    /// The fine clusters that each row chose, if the engine sees its values.
    pub(super) fn chosen<E: Select<Selection = S>>(&self, engine: &E) -> Option<Vec<Vec<usize>>> {
        let last = engine.chosen(&self.last)?;
        let Some(first) = &self.first else { return Some(last) };
        let first = engine.chosen(first)?;
        let part = |parents: &[usize], i: usize| parents[i / self.fan] * self.fan + i % self.fan;
        Some(first.iter().zip(last).map(|(parents, row)| row.iter().map(|&i| part(parents, i)).collect()).collect())
    }
}
