//! `full`: every token attends to every token before it.

use waggle_engine::{Error, Select};

use crate::attention;
use crate::{Facts, HeadShape, NamedPolicy, Policy, PolicyFamily, Store};

/// Exact attention over the whole cache. Nothing is revealed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Full;

impl PolicyFamily for Full {
    const POLICIES: &'static [NamedPolicy<Self>] = &[NamedPolicy {
        name: "full",
        keys: &[],
        about: "every token looks at every token before it",
        read: |_| Ok(Full),
    }];

    fn facts(&self) -> Facts {
        Facts { can_roll_back: true, side_by_side: true, ..Facts::shows("nothing") }
    }

    fn build<E: Select>(&self, _layers: usize, _shape: HeadShape) -> Box<dyn Policy<E>> {
        Box::new(*self)
    }
}

impl<E: Select> Policy<E> for Full {
    fn fork(&self) -> Option<Box<dyn Policy<E>>> {
        Some(Box::new(*self))
    }

    fn layer_class(&self, _layer: usize) -> usize {
        0
    }

    fn attend(
        &mut self,
        engine: &mut E,
        _layer: usize,
        q: &E::Tensor,
        store: &mut Store<E>,
    ) -> Result<E::Tensor, Error> {
        attention::attend(engine, q, store)
    }
}
