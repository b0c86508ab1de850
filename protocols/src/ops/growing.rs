//! Products with a shared matrix that only grows: the keys and the values of a layer, digests of its clusters, or the
//! clusters themselves, from which hidden choices are gathered.
//!
//! **Functionality.** Shares of X and of a matrix M of T tokens, T growing from product to product -> shares of X M
//! modulo 2^w, for a batch of heads. M is (d x T), [`Axis::Columns`], or (T x d), [`Axis::Rows`].
//!
//! **Source.** Beaver's triples (CRYPTO 1991) with a fixed operand: the mask A of M is the same in all products, so a token's
//! row is opened once, when it is new; every X has a fresh mask B, and the parties share B A. Offline, the B of all products of
//! a run are stacked, so that one encrypted product of matrices per layer and operand, or a few, makes all of them.
//!
//! **Range.** Any, modulo 2^w. **Error.** That of [`matmul::shared`]. The naive twin is the product itself.
//!
//! **Revealed.** Nothing. A row of M is opened under a mask that masks this row and nothing else: an [`Operand`] cannot be
//! copied, and a matrix whose rows change (eviction) takes a new one with a new mask.
//!
//! **Which masks are whose.** Preparation and use name an operand by its [`OperandId`], never by order of use: a run may
//! make other products than the one that was prepared for, as a shorter prompt does. Masks found under the id must have the
//! [`Form`] of the operand, which says the ring, or nothing is sent and the product fails. Masks whose next product has
//! other sizes are discarded, and this and all later products of the operand make theirs on the spot. The first product
//! moves the masks out of the stock into the operand, so that no second operand can find them there.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;

pub use engine::{Axis, OperandId, OperandKind};
use he::MatmulShape;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::Error;
use crate::cost::Cost;
use crate::ops::beaver::{open_product, random};
use crate::ops::{matmul, opening, reveal};
use crate::session::{Plans, Session};
use crate::stock::{Queue, Spill, StockError};

/// Words of masks of products that one encrypted product makes, at most, unless a single one of them has more: a bound on
/// memory. Few in tests, so that they make several.
const BATCH_WORDS: u64 = if cfg!(test) { 1 << 7 } else { 1 << 22 };

/// What stays the same in all products with an operand, and what its masks depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Form {
    /// Independent products.
    pub batch: usize,
    /// The dimension of M that does not grow.
    pub d: usize,
    /// The dimension that grows.
    pub axis: Axis,
    /// Bits of the ring.
    pub width: u32,
}

impl Form {
    fn shape(&self, m: usize, tokens: usize) -> MatmulShape {
        let (k, n) = match self.axis {
            Axis::Columns => (self.d, tokens),
            Axis::Rows => (tokens, self.d),
        };
        MatmulShape { batch: self.batch, m, k, n }
    }

    /// Words of one token.
    fn row(&self) -> usize {
        self.batch * self.d
    }

    /// Words of one party's B and share of B A for `event`.
    fn product_words(&self, event: &Event) -> u64 {
        let MatmulShape { batch, m, k, n } = self.shape(event.m, event.tokens);
        (batch * m * (k + n)) as u64
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Form { batch, d, axis, width } = self;
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
pub(crate) fn single(shape: MatmulShape, axis: Axis, width: u32) -> (Form, Event) {
    let MatmulShape { batch, m, k, n } = shape;
    let (d, tokens) = match axis {
        Axis::Columns => (k, n),
        Axis::Rows => (n, k),
    };
    (Form { batch, d, axis, width }, Event { m, tokens })
}

/// The products with one operand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Events {
    /// What they have in common.
    pub form: Form,
    /// In order; tokens never become fewer.
    pub list: Vec<Event>,
}

impl Events {
    fn tokens(&self) -> usize {
        self.list.iter().map(|event| event.tokens).max().unwrap_or(0)
    }

    /// All products stacked into one.
    fn stacked(&self) -> MatmulShape {
        let m = self.list.iter().map(|event| event.m).sum();
        self.form.shape(m, self.tokens())
    }

    /// Words of one party's masks for all products.
    pub(crate) fn words(&self) -> u64 {
        let products = self.list.iter().map(|event| self.form.product_words(event));
        (self.tokens() * self.form.row()) as u64 + products.sum::<u64>()
    }

    /// The products in runs that are prepared at once.
    pub(crate) fn batches(&self) -> Vec<Events> {
        let mut batches: Vec<Events> = Vec::new();
        let mut words = 0;
        for event in &self.list {
            words += self.form.product_words(event);
            if batches.is_empty() || words > BATCH_WORDS {
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
    form: Form,
    /// Share of A: (tokens, batch, d).
    a: Zeroizing<Vec<u64>>,
    /// The products to come.
    events: VecDeque<Event>,
    /// For each of them shares of B, (batch, m, k), and of B A, (batch, m, n).
    products: Queue,
}

impl fmt::Debug for Masks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Masks({} words)", self.words())
    }
}

impl Masks {
    /// Masks for nothing.
    fn none(form: Form) -> Self {
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

    /// What [`prepare`] makes for `events`, with words from `source` in the order of [`Masks::drain`].
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
    begun: HashSet<OperandId>,
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

/// What a session remembers of a growing matrix between products. Take another, of the next generation, when rows change.
#[derive(Debug)]
pub struct Operand {
    id: OperandId,
    begun: Option<Begun>,
}

/// An operand after its first product.
#[derive(Debug)]
struct Begun {
    masks: Masks,
    /// Tokens opened so far.
    known: usize,
    /// Their rows less their masks: (tokens, batch, d). Empty in a plan.
    opened: Vec<u64>,
}

impl Operand {
    /// A matrix without products so far.
    pub fn new(id: OperandId) -> Self {
        Operand { id, begun: None }
    }

    /// Its name.
    pub fn id(&self) -> OperandId {
        self.id
    }

    /// Gets ready for the product `event` and returns whether its masks are there. At the first product the masks move here
    /// from `prepared`; masks for another product than this are discarded, with all after them. Both parties, and a plan,
    /// see the same sizes and decide alike.
    ///
    /// # Errors
    /// Masks of another form, an operand that begins twice, and fewer tokens than before.
    fn ready(&mut self, form: Form, event: Event, prepared: &mut Prepared) -> Result<bool, Error> {
        let id = self.id;
        let begun = match &mut self.begun {
            Some(begun) => begun,
            none => {
                if !prepared.begun.insert(id) {
                    return Err(Error::OperandTwice { operand: id });
                }
                let masks = prepared.remove(id).unwrap_or_else(|| Masks::none(form));
                none.insert(Begun { masks, known: 0, opened: Vec::new() })
            }
        };
        if begun.masks.form != form {
            return Err(Error::OperandForm { operand: id, expected: begun.masks.form, got: form });
        }
        if event.tokens < begun.known {
            return Err(Error::OperandShrinks { operand: id, expected: begun.known, got: event.tokens });
        }
        let masks = &mut begun.masks;
        if masks.events.front().is_some_and(|next| *next != event) {
            masks.events.clear();
            masks.products = Queue::default();
        }
        Ok(!masks.events.is_empty())
    }

    /// The product `event` in a plan: whether its masks are there, and how many tokens were known before.
    pub(crate) fn plan(&mut self, form: Form, event: Event, prepared: &mut Prepared) -> Result<(bool, usize), Error> {
        let ready = self.ready(form, event, prepared)?;
        let begun = self.begun.as_mut().expect("ready began it");
        begun.masks.events.pop_front();
        Ok((ready, std::mem::replace(&mut begun.known, event.tokens)))
    }
}

/// (tokens, batch, d) -> this axis's (batch, k, n).
fn oriented(rows: &[u64], batch: usize, d: usize, axis: Axis) -> Vec<u64> {
    let tokens = rows.len() / (batch * d);
    let at = |t: usize, item: usize, i: usize| rows[(t * batch + item) * d + i];
    let mut out = Vec::with_capacity(rows.len());
    for item in 0..batch {
        match axis {
            Axis::Columns => (0..d).for_each(|i| out.extend((0..tokens).map(|t| at(t, item, i)))),
            Axis::Rows => (0..tokens).for_each(|t| out.extend((0..d).map(|i| at(t, item, i)))),
        }
    }
    out
}

/// (batch, k, n) of this axis -> the rows of the tokens from `first`, (tokens, batch, d).
fn token_rows(m: &[u64], batch: usize, d: usize, axis: Axis, first: usize) -> Vec<u64> {
    let tokens = m.len() / (batch * d);
    let mut out = Vec::with_capacity((tokens - first) * batch * d);
    for t in first..tokens {
        for item in 0..batch {
            let at = |i: usize| match axis {
                Axis::Columns => (item * d + i) * tokens + t,
                Axis::Rows => (item * tokens + t) * d + i,
            };
            out.extend((0..d).map(|i| m[at(i)]));
        }
    }
    out
}

/// Masks for all of `events`.
pub(crate) fn prepare(s: &mut Session, events: &Events) -> Result<Masks, Error> {
    let mut masks = Masks::none(events.form);
    for batch in events.batches() {
        extend(s, &mut masks, &batch.list)?;
    }
    Ok(masks)
}

/// Adds masks for the products of `list` to those of the same operand.
fn extend(s: &mut Session, masks: &mut Masks, list: &[Event]) -> Result<(), Error> {
    let form = masks.form;
    let events = Events { form, list: list.to_vec() };
    let Form { batch, d, axis, width } = form;
    let (all, tokens) = (events.stacked(), events.tokens());
    let missing = (tokens * form.row()).saturating_sub(masks.a.len());
    if missing > 0 {
        // Into a new vector: growing would leave copies behind.
        let mut a = Zeroizing::new(Vec::with_capacity(masks.a.len() + missing));
        a.extend_from_slice(&masks.a);
        a.extend_from_slice(&Zeroizing::new(random(s, missing, width)));
        masks.a = a;
    }
    let a = Zeroizing::new(oriented(&masks.a[..tokens * form.row()], batch, d, axis));
    let mut b = Zeroizing::new(random(s, batch * all.m * all.k, width));
    if axis == Axis::Rows {
        // Tokens that a product does not have are no part of its mask.
        for stacked in b.chunks_exact_mut(all.m * tokens) {
            let mut rows = stacked.chunks_exact_mut(tokens);
            for event in list {
                (&mut rows).take(event.m).for_each(|row| row[event.tokens..].fill(0));
            }
        }
    }
    let ba = Zeroizing::new(matmul::shared(s, all, &b, &a, width)?);
    let mut first = 0;
    for &event in list {
        let shape = form.shape(event.m, event.tokens);
        let part = |from: &[u64], columns: usize, keep: usize| {
            let rows = (0..batch).flat_map(|item| (0..event.m).map(move |r| item * all.m + first + r));
            let mut part = Zeroizing::new(Vec::with_capacity(batch * event.m * keep));
            rows.for_each(|row| part.extend_from_slice(&from[row * columns..row * columns + keep]));
            part
        };
        for words in [part(&b, all.k, shape.k), part(&ba, all.n, shape.n)] {
            masks.products.push(&words, &mut s.stock.spill)?;
        }
        masks.events.push_back(event);
        first += event.m;
    }
    Ok(())
}

/// Cost of [`prepare`], `offline`.
pub(crate) fn prepare_cost(plans: &mut Plans, events: &Events) -> Result<Cost, Error> {
    events.batches().iter().try_fold(Cost::free(), |cost, batch| {
        Ok(cost.then(matmul::shared_cost(plans, batch.stacked(), batch.form.width)?.offline()))
    })
}

/// Shares of X M for `event`, from shares of X (batch, m, k) and M (batch, k, n). Tokens already in `operand` must be those
/// of the product before.
///
/// # Errors
/// An operand that does not fit what was prepared under its name ([`Error::OperandForm`]), begins a second time
/// ([`Error::OperandTwice`]) or loses tokens ([`Error::OperandShrinks`]), before a word is sent; those of the link.
pub fn product(
    s: &mut Session,
    operand: &mut Operand,
    form: Form,
    event: Event,
    x: &[u64],
    m: &[u64],
) -> Result<Vec<u64>, Error> {
    let Form { batch, d, axis, width } = form;
    let ready = operand.ready(form, event, &mut s.stock.operands)?;
    let Begun { masks, known, opened: before } = operand.begun.as_mut().expect("ready began it");
    if !ready {
        s.offline(|s| extend(s, masks, &[event]))?;
    }
    masks.events.pop_front();
    let known = std::mem::replace(known, event.tokens);
    let masks_of_rows = &masks.a[..event.tokens * form.row()];
    let MatmulShape { m: rows, k, n, .. } = form.shape(event.m, event.tokens);
    let mut words = |count| masks.products.take(count, &mut s.stock.spill);
    let (b, ba) = (words(batch * rows * k)?, words(batch * rows * n)?);
    // x - B, and the new rows of M - A.
    let mut difference: Vec<u64> = x.iter().zip(b.iter()).map(|(x, b)| x.wrapping_sub(*b)).collect();
    let fresh = token_rows(m, batch, d, axis, known);
    let fresh_masks = &masks_of_rows[known * form.row()..];
    difference.extend(fresh.iter().zip(fresh_masks).map(|(m, a)| m.wrapping_sub(*a)));
    let opened = reveal::open(s, &difference, width)?;
    let (left, new) = opened.split_at(x.len());
    opening::note(s, "/factors", left, &[width]);
    opening::note(s, "/rows", new, &[width]);
    before.extend_from_slice(new);
    let right = oriented(before, batch, d, axis);
    let a = Zeroizing::new(oriented(masks_of_rows, batch, d, axis));
    let server = s.is_server();
    let mut out = Vec::with_capacity(ba.len());
    for item in 0..batch {
        let (l, r, y) = (
            item * rows * k..(item + 1) * rows * k,
            item * k * n..(item + 1) * k * n,
            item * rows * n..(item + 1) * rows * n,
        );
        out.extend(open_product([rows, k, n], server, [&left[l.clone()], &b[l]], [&right[r.clone()], &a[r]], &ba[y]));
    }
    Ok(out)
}

/// Cost of [`product`] with `known` tokens opened before.
pub fn cost(form: Form, event: Event, known: usize) -> Cost {
    let MatmulShape { batch, m, k, .. } = form.shape(event.m, event.tokens);
    reveal::open_cost(batch * m * k + (event.tokens - known) * form.row(), form.width)
}
