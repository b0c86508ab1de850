//! Products with a *cached operand*: a shared matrix that only grows from product to product. Such are the keys and
//! the values of a layer, the summaries of its clusters, and the clusters themselves, from which hidden choices are
//! gathered.
//!
//! **Functionality.** Shares of X and of a matrix M of T tokens -> shares of X M modulo 2^w, for a batch of heads. T
//! grows from product to product. M is (d x T), [`Axis::Columns`], or (T x d), [`Axis::Rows`].
//!
//! **Source.** Beaver's triples (CRYPTO 1991) with a fixed operand. The mask A of M is the same in all products, so
//! the row of a token is opened once, when it is new. Every X has a fresh mask B.
//!
//! ```text
//! offline:  share A, and for every product B and B A
//! online:   open X - B, and M - A for the rows of new tokens
//!           X M = (X - B)(M - A) + (X - B) A + B (M - A) + B A
//! ```
//!
//! Offline, the B of all products of a run are stacked, so that one encrypted product of matrices per layer and
//! operand, or a few, makes all of them.
//!
//! **Range.** Any, modulo 2^w. **Error.** That of [`matmul::shared`]. The naive twin is the product itself.
//!
//! **Revealed.** Nothing. A row of M is opened under a mask that masks this row and nothing else. An [`Operand`]
//! cannot be copied, and a matrix whose rows change (eviction) takes a new one with a new mask.
//!
//! **Which masks are whose.** Preparation and use name an operand by its [`OperandId`], never by order of use,
//! because a run may make other products than the one that was prepared for: its prompt may be shorter. Masks found
//! under the id must have the [`OperandForm`] of the operand, the ring included; otherwise nothing is sent and the
//! product fails. If the next product of the masks has other sizes, the masks are discarded, and this and all later
//! products of the operand make theirs on the spot. The first product moves the masks out of the stock into the
//! operand, so no second operand can find them there.

pub use engine::{Axis, OperandId, OperandKind};
use he::MatmulShape;
use zeroize::Zeroizing;

use crate::Error;
use crate::cost::Cost;
use crate::operands::{Event, Events, OperandForm, single};
use crate::ops::matmul;
use crate::plans::Plans;
use crate::session::Session;
use crate::spill::{Queue, Spill};
use crate::stock::Stock;
use crate::stock::masks::{Masks, Prepared};
use crate::wire::beaver::{open_product, random};
use crate::wire::opening;
use crate::work::Kernel;

/// A cached operand: what a session remembers of it between its products. When rows change, take another, of the next
/// generation.
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
    /// Their rows minus their masks: (tokens, batch, d). Empty in a plan.
    opened: Vec<u64>,
}

impl Operand {
    /// An operand without products so far.
    pub fn new(id: OperandId) -> Self {
        Operand { id, begun: None }
    }

    /// Its name.
    pub fn id(&self) -> OperandId {
        self.id
    }

    /// Gets ready for the product `event` and returns whether its masks are there. At the first product the masks
    /// move here from `prepared`. Masks for another product than this are discarded, with all after them. Both
    /// parties, and a plan, see the same sizes and so decide alike.
    ///
    /// # Errors
    /// Masks of another form, an operand that begins twice, and fewer tokens than before.
    fn ready(&mut self, form: OperandForm, event: Event, prepared: &mut Prepared) -> Result<bool, Error> {
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
}

/// A product of a plan.
pub(crate) struct Planned {
    pub(crate) form: OperandForm,
    pub(crate) event: Event,
    /// Whether its masks are there.
    pub(crate) ready: bool,
    /// Tokens opened before.
    known: usize,
}

impl Planned {
    /// Cost of [`product`], apart from masks that are made on the spot.
    pub(crate) fn cost(&self) -> Cost {
        let Planned { form, event, known, .. } = *self;
        let MatmulShape { batch, m, k, n } = form.shape(event.m, event.tokens);
        opening::open_cost(batch * m * k + (event.tokens - known) * form.row(), form.width)
            .work_at_both(Kernel::CachedWord, batch * k * n)
            .work_at_both(Kernel::StockWord, batch * m * (k + n))
            .work_at_both(Kernel::WordTerm, 2 * batch * m * k * n)
    }
}

/// The product of `shape` in a plan, which takes its masks from `prepared`.
pub(crate) fn plan(
    prepared: &mut Prepared,
    operand: &mut Operand,
    shape: MatmulShape,
    axis: Axis,
    width: u32,
) -> Result<Planned, Error> {
    let (form, event) = single(shape, axis, width);
    let ready = operand.ready(form, event, prepared)?;
    let begun = operand.begun.as_mut().expect("ready began it");
    begun.masks.events.pop_front();
    Ok(Planned { form, event, ready, known: std::mem::replace(&mut begun.known, event.tokens) })
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
pub(crate) fn prepare(s: &mut Session, spill: &mut Spill, events: &Events) -> Result<Masks, Error> {
    let mut masks = Masks::none(events.form);
    for batch in events.batches(s.plans().operand_batch) {
        extend(s, spill, &mut masks, &batch.list)?;
    }
    Ok(masks)
}

/// Adds masks for the products of `list` to those of the same operand.
fn extend(s: &mut Session, spill: &mut Spill, masks: &mut Masks, list: &[Event]) -> Result<(), Error> {
    let form = masks.form;
    let events = Events { form, list: list.to_vec() };
    let OperandForm { batch, d, axis, width } = form;
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
        // A product's mask has zeros for tokens that the product does not have.
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
            masks.products.push(&words, spill)?;
        }
        masks.events.push_back(event);
        first += event.m;
    }
    Ok(())
}

/// Cost of [`prepare`], `offline`.
pub(crate) fn prepare_cost(plans: &mut Plans, events: &Events) -> Result<Cost, Error> {
    events.batches(plans.operand_batch).iter().try_fold(Cost::free(), |cost, batch| {
        let made = Cost::free().work_at_both(Kernel::StockWord, batch.words() as usize);
        Ok(cost.then(matmul::shared_cost(plans, batch.stacked(), batch.form.width)?.then(made).offline()))
    })
}

/// Shares of X M modulo 2^`width` from shares of X (batch, m, k) and M (batch, k, n), whose tokens lie along `axis`.
/// The tokens already in `operand` must be those of the previous product.
///
/// # Errors
/// Before a word is sent: an operand that does not fit what was prepared under its name ([`Error::OperandForm`]),
/// begins a second time ([`Error::OperandTwice`]) or loses tokens ([`Error::OperandShrinks`]). Later those of the
/// link.
#[allow(clippy::too_many_arguments, reason = "an operand with its state and its place")]
pub(crate) fn product(
    s: &mut Session,
    stock: &mut Stock,
    operand: &mut Operand,
    shape: MatmulShape,
    axis: Axis,
    width: u32,
    x: &[u64],
    m: &[u64],
) -> Result<Vec<u64>, Error> {
    let (form, event) = single(shape, axis, width);
    let OperandForm { batch, d, .. } = form;
    let ready = operand.ready(form, event, &mut stock.operands)?;
    let Begun { masks, known, opened: before } = operand.begun.as_mut().expect("ready began it");
    if !ready {
        s.offline(|s| extend(s, &mut stock.spill, masks, &[event]))?;
    }
    masks.events.pop_front();
    let known = std::mem::replace(known, event.tokens);
    let masks_of_rows = &masks.a[..event.tokens * form.row()];
    let MatmulShape { m: rows, k, n, .. } = form.shape(event.m, event.tokens);
    let mut words = |count| masks.products.take(count, &mut stock.spill);
    let (b, ba) = (words(batch * rows * k)?, words(batch * rows * n)?);
    // x - B, and the new rows of M - A.
    let mut difference: Vec<u64> = x.iter().zip(b.iter()).map(|(x, b)| x.wrapping_sub(*b)).collect();
    let fresh = token_rows(m, batch, d, axis, known);
    let fresh_masks = &masks_of_rows[known * form.row()..];
    difference.extend(fresh.iter().zip(fresh_masks).map(|(m, a)| m.wrapping_sub(*a)));
    let opened = opening::open(s, &difference, width)?;
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
