//! The masks of cached operands as they lie in a stock or in a file, before products take them.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;

use waggle_engine::OperandId;
use zeroize::Zeroizing;

use super::form::{Event, Events, OperandForm};
use crate::spill::{Queue, Spill, StockError};

/// One party's masks of one cached operand. A plan has only their sizes.
pub(crate) struct OperandMasks {
    pub(crate) form: OperandForm,
    /// Share of A: (tokens, batch, d).
    pub(crate) a: Zeroizing<Vec<u64>>,
    /// The products that the masks were made for and that have not taken them yet.
    pub(crate) events: VecDeque<Event>,
    /// For each of these products, shares of B (batch, m, k) and of B A (batch, m, n).
    pub(crate) products: Queue,
}

impl fmt::Debug for OperandMasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OperandMasks({} words)", self.words())
    }
}

impl OperandMasks {
    pub(crate) fn none(form: OperandForm) -> Self {
        OperandMasks { form, a: Zeroizing::default(), events: VecDeque::new(), products: Queue::default() }
    }

    /// What a plan knows of the masks for `events`: their sizes.
    fn planned(events: &Events) -> Self {
        OperandMasks { events: events.list.iter().copied().collect(), ..OperandMasks::none(events.form) }
    }

    /// Appends `rows` to A, in a new vector: growing would leave copies behind.
    pub(crate) fn add_rows(&mut self, rows: &[u64]) {
        let mut a = Zeroizing::new(Vec::with_capacity(self.a.len() + rows.len()));
        a.extend_from_slice(&self.a);
        a.extend_from_slice(rows);
        self.a = a;
    }

    /// Appends the rows of `more`, and replaces the products that are left by the products of `more`.
    pub(crate) fn go_on(&mut self, more: OperandMasks) {
        self.add_rows(&more.a);
        (self.form, self.events, self.products) = (more.form, more.events, more.products);
    }

    /// Forgets the products that have not taken their masks.
    pub(crate) fn discard(&mut self) {
        self.events.clear();
        self.products = Queue::default();
    }

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

    /// The masks for `events`. `source` fills in their words in the order of [`OperandMasks::drain`].
    pub(crate) fn fill<E: From<StockError>>(
        events: &Events,
        spill: &mut Spill,
        mut source: impl FnMut(&mut [u64]) -> Result<(), E>,
    ) -> Result<Self, E> {
        let mut a = Zeroizing::new(vec![0; events.tokens() * events.form.row()]);
        source(&mut a)?;
        let mut products = Queue::default();
        products.fill(events.words() as usize - a.len(), spill, source)?;
        Ok(OperandMasks { a, products, ..OperandMasks::planned(events) })
    }
}

/// The masks that no product has asked for yet, and the operands that have had a first product.
#[derive(Debug, Default)]
pub struct PreparedMasks {
    masks: HashMap<OperandId, OperandMasks>,
    pub(crate) begun: HashSet<OperandId>,
    /// Whether masks may also be added to an operand that has had a product, as by a helper that deals pass by pass.
    /// In other sessions, masks are made only for operands without a product so far.
    pub(crate) by_pass: bool,
    /// Whether new tokens take the slots of tokens that were cut off. This is a fault, made for an audit.
    #[cfg(any(test, feature = "audit"))]
    pub(crate) slots_serve_again: bool,
}

impl PreparedMasks {
    /// What a plan knows of all masks for `operands`: their sizes.
    pub(crate) fn planned<'a>(operands: impl IntoIterator<Item = (&'a OperandId, &'a Events)>) -> Self {
        let masks = operands.into_iter().map(|(id, events)| (*id, OperandMasks::planned(events)));
        PreparedMasks { masks: masks.collect(), ..PreparedMasks::default() }
    }

    /// Inserts masks, and returns the masks that were there under the same name.
    pub(crate) fn insert(&mut self, id: OperandId, masks: OperandMasks) -> Option<OperandMasks> {
        self.masks.insert(id, masks)
    }

    pub(crate) fn remove(&mut self, id: OperandId) -> Option<OperandMasks> {
        self.masks.remove(&id)
    }
}
