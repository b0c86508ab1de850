//! The policy `full`: every token looks at every token before it.

use engine::{Engine, Error};

use crate::positions::Positions;
use crate::{HeadShape, Policy, Store, attention};

/// Exact attention over the whole cache. Nothing is revealed.
#[derive(Clone, Debug)]
pub struct Full {
    layers: Vec<Positions>,
}

impl Full {
    /// For `layers` layers.
    pub fn new<E: Engine>(layers: usize, shape: HeadShape) -> Self {
        Full { layers: vec![Positions::new(E::CLEAR, shape); layers] }
    }
}

impl<E: Engine> Policy<E> for Full {
    fn attend(
        &mut self,
        engine: &mut E,
        layer: usize,
        q: &E::Tensor,
        store: &mut Store<E>,
    ) -> Result<E::Tensor, Error> {
        let positions = &mut self.layers[layer];
        positions.extend(store.seen() - store.fresh(), store.seen());
        positions.attend_all(store.heads());
        Ok(attention::causal(engine, q, store)?.0)
    }

    fn attended(&self, layer: usize) -> Option<&[Vec<usize>]> {
        self.layers[layer].attended()
    }
}
