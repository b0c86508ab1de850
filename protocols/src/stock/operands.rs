//! Masks of cached operands: matrices that only grow from product to product, see [`cached`](crate::ops::cached).

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;

use he::MatmulShape;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::{Queue, Spill, StockError};
use crate::{Axis, OperandId};

/// What stays the same in all products with an operand, and what its masks depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperandForm {
    /// Independent products.
    pub batch: usize,
    /// The dimension of M that does not grow.
    pub d: usize,
    /// The dimension that grows.
    pub axis: Axis,
    /// Bits of the ring.
    pub width: u32,
}

impl OperandForm {
    pub(crate) fn shape(&self, m: usize, tokens: usize) -> MatmulShape {
        let (k, n) = match self.axis {
            Axis::Columns => (self.d, tokens),
            Axis::Rows => (tokens, self.d),
        };
        MatmulShape { batch: self.batch, m, k, n }
    }

    /// Words of one token.
    pub(crate) fn row(&self) -> usize {
        self.batch * self.d
    }

    /// Words of one party's B and share of B A for `event`.
    fn product_words(&self, event: &Event) -> u64 {
        let MatmulShape { batch, m, k, n } = self.shape(event.m, event.tokens);
        (batch * m * (k + n)) as u64
    }
}

impl fmt::Display for OperandForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OperandForm { batch, d, axis, width } = self;
        let axis = if *axis == Axis::Columns { "columns" } else { "rows" };
        write!(f, "{batch} matrices of {axis} of {d} words modulo 2^{width}")
    }
}

/// One product: rows of X and tokens of M.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Rows of X.
    pub m: usize,
    /// Tokens of M.
    pub tokens: usize,
}

/// The form and the sizes of the product (batch, m, k) x (batch, k, n).
pub(crate) fn single(shape: MatmulShape, axis: Axis, width: u32) -> (OperandForm, Event) {
    let MatmulShape { batch, m, k, n } = shape;
    let (d, tokens) = match axis {
        Axis::Columns => (k, n),
        Axis::Rows => (n, k),
    };
    (OperandForm { batch, d, axis, width }, Event { m, tokens })
}

/// The products with one operand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Events {
    /// What they have in common.
    pub form: OperandForm,
    /// In order; tokens never become fewer.
    pub list: Vec<Event>,
}

impl Events {
    pub(crate) fn tokens(&self) -> usize {
        self.list.iter().map(|event| event.tokens).max().unwrap_or(0)
    }

    /// All products stacked into one.
    pub(crate) fn stacked(&self) -> MatmulShape {
        let m = self.list.iter().map(|event| event.m).sum();
        self.form.shape(m, self.tokens())
    }

    /// Words of one party's masks for all products.
    pub(crate) fn words(&self) -> u64 {
        let products = self.list.iter().map(|event| self.form.product_words(event));
        (self.tokens() * self.form.row()) as u64 + products.sum::<u64>()
    }

    /// The products in runs that are prepared at once: of up to `most` words, or of a single product that has more.
    pub(crate) fn batches(&self, most: u64) -> Vec<Events> {
        let mut batches: Vec<Events> = Vec::new();
        let mut words = 0;
        for event in &self.list {
            words += self.form.product_words(event);
            if batches.is_empty() || words > most {
                batches.push(Events { list: Vec::new(), ..*self });
                words = self.form.product_words(event);
            }
            batches.last_mut().expect("the first event starts a batch").list.push(*event);
        }
        batches
    }
}

/// One party's masks of one operand; in a plan their sizes alone.
pub(crate) struct Masks {
    pub(crate) form: OperandForm,
    /// Share of A: (tokens, batch, d).
    pub(crate) a: Zeroizing<Vec<u64>>,
    /// The products to come.
    pub(crate) events: VecDeque<Event>,
    /// For each of them shares of B, (batch, m, k), and of B A, (batch, m, n).
    pub(crate) products: Queue,
}

impl fmt::Debug for Masks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Masks({} words)", self.words())
    }
}

impl Masks {
    /// Masks for nothing.
    pub(crate) fn none(form: OperandForm) -> Self {
        Masks { form, a: Zeroizing::default(), events: VecDeque::new(), products: Queue::default() }
    }

    /// What a plan knows of the masks for `events`.
    fn planned(events: &Events) -> Self {
        Masks { events: events.list.iter().copied().collect(), ..Masks::none(events.form) }
    }

    /// Words left.
    pub(crate) fn words(&self) -> u64 {
        (self.a.len() + self.products.len()) as u64
    }

    /// Hands all words in order to `sink`: A, then B and B A of each product.
    pub(crate) fn drain<E: From<StockError>>(
        self,
        spill: &mut Spill,
        mut sink: impl FnMut(&[u64]) -> Result<(), E>,
    ) -> Result<(), E> {
        sink(&self.a)?;
        self.products.drain(spill, sink)
    }

    /// What [`cached::prepare`](crate::ops::cached) makes for `events`, with words from `source` in the order of [`Masks::drain`].
    pub(crate) fn fill<E: From<StockError>>(
        events: &Events,
        spill: &mut Spill,
        mut source: impl FnMut(&mut [u64]) -> Result<(), E>,
    ) -> Result<Self, E> {
        let mut a = Zeroizing::new(vec![0; events.tokens() * events.form.row()]);
        source(&mut a)?;
        let products = Queue::fill(events.words() as usize - a.len(), spill, source)?;
        Ok(Masks { a, products, ..Masks::planned(events) })
    }
}

/// The masks of operands that no product has asked for yet, and the operands that have begun.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    masks: HashMap<OperandId, Masks>,
    pub(crate) begun: HashSet<OperandId>,
}

impl Prepared {
    /// What a plan knows of all masks for `operands`.
    pub(crate) fn planned<'a>(operands: impl IntoIterator<Item = (&'a OperandId, &'a Events)>) -> Self {
        let masks = operands.into_iter().map(|(id, events)| (*id, Masks::planned(events)));
        Prepared { masks: masks.collect(), begun: HashSet::new() }
    }

    pub(crate) fn insert(&mut self, id: OperandId, masks: Masks) {
        self.masks.insert(id, masks);
    }

    pub(crate) fn remove(&mut self, id: OperandId) -> Option<Masks> {
        self.masks.remove(&id)
    }
}
