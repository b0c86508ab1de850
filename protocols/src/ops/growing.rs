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

use std::collections::VecDeque;

use he::MatmulShape;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::Error;
use crate::cost::Cost;
use crate::ops::beaver::{open_product, random};
use crate::ops::{matmul, reveal};
use crate::session::{Plans, Session};
use crate::stock::{Queue, Spill, StockError};

/// Words of masks of products that one encrypted product makes, at most, unless a single one of them has more: a bound on
/// memory. Few in tests, so that they make several.
const BATCH_WORDS: u64 = if cfg!(test) { 1 << 7 } else { 1 << 22 };

/// Where the tokens of a growing matrix stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Axis {
    /// (d, T): the product has a column for every token.
    Columns,
    /// (T, d): the product sums over tokens.
    Rows,
}

/// What a session remembers of a growing matrix between products. Start with the default; start again when rows change.
#[derive(Debug, Default)]
pub struct Operand {
    /// Its number in the session, given with the first product.
    pub(crate) number: Option<usize>,
    /// Tokens opened so far.
    known: usize,
    /// Their rows less their masks: (tokens, batch, d). Empty in a plan.
    opened: Vec<u64>,
}

impl Operand {
    /// Takes note of the tokens of `events`; returns how many were known before.
    pub(crate) fn learn(&mut self, events: &Events) -> usize {
        let tokens = events.tokens();
        assert!(self.known <= tokens, "a growing matrix of {} tokens now has {tokens}", self.known);
        std::mem::replace(&mut self.known, tokens)
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

/// The products with one operand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Events {
    /// Independent products.
    pub batch: usize,
    /// The dimension of M that does not grow.
    pub d: usize,
    /// The dimension that grows.
    pub axis: Axis,
    /// Ring.
    pub width: u32,
    /// In order; tokens never become fewer.
    pub list: Vec<Event>,
}

impl Events {
    /// The product (batch, m, k) x (batch, k, n) as one of a list.
    pub(crate) fn single(shape: MatmulShape, axis: Axis, width: u32) -> Self {
        let MatmulShape { batch, m, k, n } = shape;
        let (d, tokens) = match axis {
            Axis::Columns => (k, n),
            Axis::Rows => (n, k),
        };
        Events { batch, d, axis, width, list: vec![Event { m, tokens }] }
    }

    fn tokens(&self) -> usize {
        self.list.iter().map(|event| event.tokens).max().unwrap_or(0)
    }

    /// All products stacked into one.
    fn stacked(&self) -> MatmulShape {
        let m = self.list.iter().map(|event| event.m).sum();
        self.shape(m, self.tokens())
    }

    /// Words of one party's masks for all products.
    pub(crate) fn words(&self) -> u64 {
        let products = self.list.iter().map(|event| self.product_words(event));
        (self.tokens() * self.batch * self.d) as u64 + products.sum::<u64>()
    }

    /// Words of one party's B and share of B A for `event`.
    fn product_words(&self, event: &Event) -> u64 {
        let MatmulShape { batch, m, k, n } = self.shape(event.m, event.tokens);
        (batch * m * (k + n)) as u64
    }

    /// The products in runs that are prepared at once.
    pub(crate) fn batches(&self) -> Vec<Events> {
        let mut batches: Vec<Events> = Vec::new();
        let mut words = 0;
        for event in &self.list {
            words += self.product_words(event);
            if batches.is_empty() || words > BATCH_WORDS {
                batches.push(Events { list: Vec::new(), ..*self });
                words = self.product_words(event);
            }
            batches.last_mut().expect("the first event starts a batch").list.push(*event);
        }
        batches
    }

    fn shape(&self, m: usize, tokens: usize) -> MatmulShape {
        let (k, n) = match self.axis {
            Axis::Columns => (self.d, tokens),
            Axis::Rows => (tokens, self.d),
        };
        MatmulShape { batch: self.batch, m, k, n }
    }
}

/// One party's masks of one operand.
#[derive(Default)]
pub(crate) struct Masks {
    /// Share of A: (tokens, batch, d).
    a: Zeroizing<Vec<u64>>,
    /// The products to come.
    events: VecDeque<Event>,
    /// For each of them shares of B, (batch, m, k), and of B A, (batch, m, n).
    products: Queue,
}

impl std::fmt::Debug for Masks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Masks({} words)", self.words())
    }
}

impl Masks {
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
        let mut a = Zeroizing::new(vec![0; events.tokens() * events.batch * events.d]);
        source(&mut a)?;
        let products = Queue::fill(events.words() as usize - a.len(), spill, source)?;
        Ok(Masks { a, events: events.list.iter().copied().collect(), products })
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
    let mut masks = Masks::default();
    for batch in events.batches() {
        extend(s, &mut masks, &batch)?;
    }
    Ok(masks)
}

/// Adds masks for `events` to those of the same operand.
fn extend(s: &mut Session, masks: &mut Masks, events: &Events) -> Result<(), Error> {
    let Events { batch, d, axis, width, ref list } = *events;
    let (all, tokens) = (events.stacked(), events.tokens());
    let missing = (tokens * batch * d).saturating_sub(masks.a.len());
    let fresh = random(s, missing, width);
    masks.a.extend(fresh);
    let a = oriented(&masks.a[..tokens * batch * d], batch, d, axis);
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
    let ba = matmul::shared(s, all, &b, &a, width)?;
    let mut first = 0;
    for &event in list {
        let shape = events.shape(event.m, event.tokens);
        let part = |from: &[u64], columns: usize, keep: usize| {
            let rows = (0..batch).flat_map(|item| (0..event.m).map(move |r| item * all.m + first + r));
            rows.flat_map(|row| &from[row * columns..row * columns + keep]).copied().collect::<Vec<_>>()
        };
        for words in [part(&b, all.k, shape.k), part(&ba, all.n, shape.n)] {
            masks.products.push(&Zeroizing::new(words), &mut s.stock.spill)?;
        }
        masks.events.push_back(event);
        first += event.m;
    }
    Ok(())
}

/// Cost of [`prepare`], `offline`.
pub(crate) fn prepare_cost(plans: &mut Plans, events: &Events) -> Result<Cost, Error> {
    events.batches().iter().try_fold(Cost::free(), |cost, batch| {
        Ok(cost.then(matmul::shared_cost(plans, batch.stacked(), batch.width)?.offline()))
    })
}

/// Shares of X M for `event`, a list of one product, from shares of X (batch, m, k) and M (batch, k, n). Tokens already in
/// `operand` must be those of the product before.
pub fn product(
    s: &mut Session,
    operand: &mut Operand,
    events: &Events,
    x: &[u64],
    m: &[u64],
) -> Result<Vec<u64>, Error> {
    let Events { batch, d, axis, width, .. } = *events;
    let event = events.list[0];
    let number = *operand.number.get_or_insert_with(|| {
        s.stock.next_operand += 1;
        s.stock.next_operand - 1
    });
    let mut masks = s.stock.operands.remove(&number).unwrap_or_default();
    if masks.events.front().is_some_and(|next| *next != event) {
        // Another run than the one prepared for: what is left fits nothing. Both parties see the same shapes.
        masks.events.clear();
        masks.products = Queue::default();
    }
    if masks.events.is_empty() {
        s.offline(|s| extend(s, &mut masks, events))?;
    }
    masks.events.pop_front();
    let shape = events.shape(event.m, event.tokens);
    let masks_of_rows = &masks.a[..event.tokens * batch * d];
    let known = operand.learn(events);
    let MatmulShape { m: rows, k, n, .. } = shape;
    let mut words = |count| masks.products.take(count, &mut s.stock.spill).map(Zeroizing::new);
    let (b, ba) = (words(batch * rows * k)?, words(batch * rows * n)?);
    // x - B, and the new rows of M - A.
    let mut difference: Vec<u64> = x.iter().zip(b.iter()).map(|(x, b)| x.wrapping_sub(*b)).collect();
    let fresh = token_rows(m, batch, d, axis, known);
    let fresh_masks = &masks_of_rows[known * batch * d..];
    difference.extend(fresh.iter().zip(fresh_masks).map(|(m, a)| m.wrapping_sub(*a)));
    let opened = reveal::open(s, &difference, width)?;
    let (left, rows) = opened.split_at(x.len());
    operand.opened.extend_from_slice(rows);
    let right = oriented(&operand.opened, batch, d, axis);
    let a = Zeroizing::new(oriented(masks_of_rows, batch, d, axis));
    let server = s.is_server();
    let MatmulShape { m, k, n, .. } = shape;
    let mut out = Vec::with_capacity(ba.len());
    for item in 0..batch {
        let (l, r, y) =
            (item * m * k..(item + 1) * m * k, item * k * n..(item + 1) * k * n, item * m * n..(item + 1) * m * n);
        out.extend(open_product([m, k, n], server, [&left[l.clone()], &b[l]], [&right[r.clone()], &a[r]], &ba[y]));
    }
    s.stock.operands.insert(number, masks);
    Ok(out)
}

/// Cost of [`product`] with `known` tokens opened before.
pub fn cost(events: &Events, known: usize) -> Cost {
    let Events { batch, d, width, .. } = *events;
    let event = events.list[0];
    let MatmulShape { m, k, .. } = events.shape(event.m, event.tokens);
    reveal::open_cost(batch * (m * k + (event.tokens - known) * d), width)
}
