//! Products with a *cached operand*: a shared matrix that grows from product to product. Such are the keys and the
//! values of a layer, the summaries of its clusters, and the clusters themselves, from which hidden choices are
//! gathered. Its last tokens may be cut off again
//! ([`CachedOperand::roll_back`](waggle_engine::CachedOperand::roll_back)), as those of a wrong draft are.
//!
//! **Functionality.** Shares of X and of a matrix M of T tokens -> shares of X M modulo 2^w, for a batch of heads. T
//! grows between cuts. M is (d x T), [`Axis::Columns`], or (T x d), [`Axis::Rows`].
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
//! Products that do not wait for each other, as those of heads with different tokens, open in one exchange.
//!
//! Offline, the B of all products of a run are stacked, so that one encrypted product of matrices per layer and
//! operand, or a few, makes all of them.
//!
//! **Range.** Any, modulo 2^w. **Error.** That of `matmul::shared`. The naive twin is the product itself.
//!
//! **Revealed.** Nothing. A row of M is opened under a mask that masks this row and nothing else. An [`Operand`]
//! with masks cannot be copied, and a matrix whose rows change (eviction) takes a new one with a new mask.
//!
//! **Cuts.** A row of A is a *slot*. A new token takes the next slot that none had, because two tokens opened under
//! one mask would show how they differ. Which slots are dead is public, as the cut is. Where masks were prepared, the
//! shares of B A have a term for every slot up to the product's last one, because nobody knew which would be dead. So
//! X has public zeros at dead slots (which opens their part of B, and that masks nothing else), and columns of dead
//! slots are dropped. Where masks are made on the spot, dead slots are forgotten first, and a product costs what it
//! would if their tokens had never been. Masks are prepared by slots: a run whose passes have the sizes of the plan
//! finds its masks however many tokens each pass keeps.
//!
//! **Which masks are whose.** Preparation and use name an operand by its [`OperandId`], never by order of use,
//! because a run may make other products than it was prepared for. Masks of another [`OperandForm`], the ring
//! included, fail the product before a word is sent. If the next product of the masks has other sizes, they are
//! discarded, and this and all later products of the operand make theirs on the spot. The first product moves the
//! masks out of the stock, so no second operand can find them there.

pub use waggle_engine::{Axis, OperandId, OperandKind};
use waggle_he::MatmulShape;
use zeroize::Zeroizing;

use crate::dealing::Dealing;
use crate::operand::Begun;
pub use crate::operand::{Met, Operand, OperandUse};
use crate::operands::{Event, Events, OperandForm, single};
use crate::operation::prelude::*;
use crate::ops::Matmul;
use crate::ops::matmul::{self, product_shape};
use crate::spill::{Queue, Spill};
use crate::stock::Stock;
use crate::stock::masks::OperandMasks;
use crate::wire::beaver::{minus, open_products, random};
use crate::wire::opening;

/// Products modulo 2^`width` by cached operands: matrices that only grow. Along its axis each has the tokens of the
/// previous product with its operand, less those cut off since, followed by new ones. In a two-phase session each
/// token is opened once, under its mask; otherwise these are products like any other.
///
/// # Errors
/// Before a word is sent: an operand that does not fit what was prepared under its name ([`Error::OperandForm`]),
/// begins a second time ([`Error::OperandTwice`]) or loses tokens without a cut ([`Error::OperandShrinks`]).
#[derive(Clone, Copy, Debug)]
pub struct CachedMatmul {
    /// Bits of the ring.
    pub width: u32,
}

/// A product with a cached operand, of hidden matrices (batch, m, k) and (batch, k, n).
#[derive(Debug)]
pub struct CachedProduct<'a, W> {
    /// The left factor.
    pub a: &'a W,
    /// The matrix of the operand.
    pub b: &'a W,
    /// Where its tokens stand.
    pub axis: Axis,
    /// The session's memory of it.
    pub operand: &'a mut Operand,
}

impl OperandUse<'_> {
    /// Masks B and B A of the product that it [met](OperandUse::meet), made now unless they are there.
    fn masks(&mut self, s: &mut Session, spill: &mut Spill, met: &Met, out: &mut Vec<u64>) -> Result<(), Error> {
        let masks = &mut self.operand.begun.as_mut().expect("it was met").masks;
        if !met.ready {
            s.offline(|s| extend(s, spill, masks, &[met.event]))?;
            masks.events.pop_front();
        }
        out.extend_from_slice(&masks.products.take(met.form.product_words(&met.event) as usize, spill)?);
        Ok(())
    }
}

impl Operand {
    /// Makes masks for the products `events` that come next, in the place of those that were made for others. Nothing
    /// happens before the first product.
    ///
    /// # Errors
    /// Masks of another form, and fewer tokens than there are.
    pub(crate) fn prepare(&mut self, s: &mut Session, spill: &mut Spill, events: &Events) -> Result<(), Error> {
        let id = self.id;
        let Some(begun) = &mut self.begun else { return Ok(()) };
        if begun.masks.form != events.form {
            return Err(Error::OperandForm { operand: id, expected: begun.masks.form, got: events.form });
        }
        begun.masks.events.clear();
        begun.masks.products = Queue::default();
        begun.forget();
        let (expected, got) = (begun.slots, events.list.first().map_or(begun.slots, |event| event.tokens));
        if got < expected {
            return Err(Error::OperandShrinks { operand: id, expected, got });
        }
        for batch in events.batches(s.plans().operand_batch) {
            extend(s, spill, &mut begun.masks, &batch.list)?;
        }
        Ok(())
    }
}

impl Stock {
    /// The masks of the products with `operands`, in order, if there are any. What is missing is made on the spot.
    pub(crate) fn take_masks(
        &mut self,
        s: &mut Session,
        mut operands: Vec<OperandUse<'_>>,
    ) -> Result<Option<Zeroizing<Vec<u64>>>, Error> {
        let mut met = Vec::new();
        for product in &mut operands {
            #[cfg(any(test, feature = "audit"))]
            if s.audit.breaks(crate::audit::Broken::Slots) {
                product.operand.take_slots_back();
            }
            met.push(product.meet(&mut self.operands)?);
        }
        let words: u64 = met.iter().map(|met| met.form.product_words(&met.event)).sum();
        let mut out = Zeroizing::new(Vec::with_capacity(words as usize));
        for (product, met) in operands.iter_mut().zip(&met) {
            product.masks(s, &mut self.spill, met, &mut out)?;
        }
        Ok((!met.is_empty()).then_some(out))
    }
}

/// Columns by tokens -> columns by slots, of which there are `slots`, with zeros at dead ones.
fn spread(x: &[u64], live: &[usize], slots: usize) -> Vec<u64> {
    let mut out = vec![0; x.len() / live.len() * slots];
    for (row, x) in out.chunks_exact_mut(slots).zip(x.chunks_exact(live.len())) {
        live.iter().zip(x).for_each(|(slot, x)| row[*slot] = *x);
    }
    out
}

/// Columns by slots, of which there are `slots`, -> columns by tokens.
fn gather(y: &[u64], live: &[usize], slots: usize) -> Vec<u64> {
    y.chunks_exact(slots).flat_map(|row| live.iter().map(|slot| row[*slot])).collect()
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
pub(crate) fn prepare(s: &mut Session, spill: &mut Spill, events: &Events) -> Result<OperandMasks, Error> {
    let mut masks = OperandMasks::none(events.form);
    for batch in events.batches(s.plans().operand_batch) {
        extend(s, spill, &mut masks, &batch.list)?;
    }
    Ok(masks)
}

/// Deals the masks for `events`, of an operand of which `before` tokens have masks, in `rows`: those of new tokens,
/// then B and B A of each product. Both draw A and B, and the client its shares of B A.
pub(crate) fn deal(
    d: &mut Dealing<'_>,
    events: &Events,
    before: usize,
    rows: &mut [Vec<u64>; 2],
) -> Result<[Vec<u64>; 2], Error> {
    let OperandForm { batch, d: dim, axis, width } = events.form;
    let row = events.form.row();
    let new = events.tokens().saturating_sub(before) * row;
    let mut out = d.draw_both(new, width);
    rows.iter_mut().zip(&out).for_each(|(rows, new)| rows.extend(new));
    for event in &events.list {
        let shape = events.form.shape(event.m, event.tokens);
        let b = d.draw_both(batch * shape.m * shape.k, width);
        let client = d.draw(Role::Client, batch * shape.m * shape.n, width);
        let server = d.give(Role::Server, batch * shape.m * shape.n, &[width], || {
            let a = [0, 1].map(|role: usize| oriented(&rows[role][..event.tokens * row], batch, dim, axis));
            let whole = matmul::of_shares(shape, [&b[0], &b[1]], [&a[0], &a[1]]);
            minus(&whole, client.iter().copied()).collect()
        })?;
        for ((out, b), product) in out.iter_mut().zip(b).zip([client, server]) {
            out.extend(b);
            out.extend(product);
        }
    }
    Ok(out)
}

/// Adds what a helper dealt for `events` to the masks of the same operand, of which `earlier` tokens have theirs
/// elsewhere.
pub(crate) fn add_dealt(
    spill: &mut Spill,
    masks: &mut OperandMasks,
    earlier: usize,
    events: &Events,
    words: &[u64],
) -> Result<(), Error> {
    let before = masks.a.len();
    let missing = (events.tokens().saturating_sub(earlier) * events.form.row()).saturating_sub(before);
    let (rows, mut rest) = words.split_at(missing);
    let mut a = Zeroizing::new(Vec::with_capacity(before + missing));
    a.extend_from_slice(&masks.a);
    a.extend_from_slice(rows);
    masks.a = a;
    for event in &events.list {
        let MatmulShape { batch, m, k, n } = events.form.shape(event.m, event.tokens);
        for words in [batch * m * k, batch * m * n] {
            let (part, others) = rest.split_at(words);
            masks.products.push(part, spill)?;
            rest = others;
        }
        masks.events.push_back(*event);
    }
    Ok(())
}

/// Adds masks for the products of `list` to those of the same operand.
fn extend(s: &mut Session, spill: &mut Spill, masks: &mut OperandMasks, list: &[Event]) -> Result<(), Error> {
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

/// Cost of the masks for `events`, `offline`.
///
/// # Errors
/// If there is no plan for such products.
pub fn prepare_cost(plans: &mut Plans, events: &Events) -> Result<Cost, Error> {
    events.batches(plans.operand_batch).iter().try_fold(Cost::free(), |cost, batch| {
        let made = Cost::free().work_at_both(Kernel::StockWord, batch.words() as usize);
        Ok(cost.then(matmul::shared_cost(plans, batch.stacked(), batch.form.width)?.then(made).offline()))
    })
}

impl Operation for CachedMatmul {
    type Input<'a, F: Form> = Vec<CachedProduct<'a, F::Words>>;
    type Output<F: Form> = Vec<F::Words>;
    type Size = Vec<CachedSize>;

    fn operands<'i, F: Form>(&self, products: &'i mut Self::Input<'_, F>, options: &Options) -> Vec<OperandUse<'i>> {
        let products = products.iter_mut().filter(|_| options.preprocess);
        let used = products.map(|CachedProduct { a, b, axis, operand }| {
            let (form, wanted) = single(product_shape(&a.shape(), &b.shape()), *axis, self.width);
            OperandUse { operand, form, wanted }
        });
        used.collect()
    }

    fn size<F: Form>(&self, products: &Self::Input<'_, F>) -> Vec<CachedSize> {
        let size = |CachedProduct { a, b, axis, operand }: &CachedProduct<'_, F::Words>| {
            let shape = product_shape(&a.shape(), &b.shape());
            let (form, event) = single(shape, *axis, self.width);
            let (slots, new) = operand.begun.as_ref().map_or((event.tokens, 0), |begun| (begun.slots, begun.new));
            CachedSize { shape, by_slots: form.shape(event.m, slots), rows: new * form.row() }
        };
        products.iter().map(size).collect()
    }

    fn cost(&self, products: &Vec<CachedSize>, prepared: bool, plans: &mut Plans) -> Result<Cost, Error> {
        if !prepared {
            let whole = Matmul { width: self.width };
            let each = |cost: Cost, size: &CachedSize| Ok(cost.then(whole.cost(&size.shape, false, plans)?));
            return products.iter().try_fold(Cost::free(), each);
        }
        let opened = |size: &CachedSize| size.by_slots.batch * size.by_slots.m * size.by_slots.k + size.rows;
        let cost = opening::open_cost(products.iter().map(opened).sum(), &[self.width]);
        Ok(products.iter().fold(cost, |cost, size| {
            let MatmulShape { batch, m, k, n } = size.by_slots;
            cost.work_at_both(Kernel::CachedWord, batch * k * n)
                .work_at_both(Kernel::StockWord, batch * m * (k + n))
                .work_at_both(Kernel::WordTerm, 2 * batch * m * k * n)
        }))
    }

    fn run(
        &self,
        s: &mut Session,
        products: Self::Input<'_, Values>,
        masks: Option<&[u64]>,
    ) -> Result<Vec<ArrayD<u64>>, Error> {
        let Some(mut masks) = masks else {
            let whole =
                |product: CachedProduct<'_, _>| Matmul { width: self.width }.run(s, (product.a, product.b), None);
            return products.into_iter().map(whole).collect();
        };
        let (mut masked, mut difference) = (Vec::new(), Vec::new());
        for CachedProduct { a, b, operand, .. } in products {
            let shape = product_shape(a.shape(), b.shape());
            let begun = operand.begun.as_mut().expect("a box meets operands first");
            let product = Masked::of(begun, shape.m, (&flat(a), &flat(b)), &mut masks, &mut difference);
            masked.push(([shape.batch, shape.m, shape.n], product));
        }
        for (_, product) in &masked {
            opening::spend(s, "/factors", product.b.iter().copied(), &[self.width])?;
            opening::spend(s, "/rows", product.fresh_masks().iter().copied(), &[self.width])?;
        }
        let mut opened = &opening::open(s, &difference, &[self.width])?[..];
        let mut out = Vec::new();
        for (shape, product) in masked {
            let (mine, rest) = opened.split_at(product.words());
            opened = rest;
            out.push(shaped(&shape, product.finish(s, mine)));
        }
        Ok(out)
    }

    fn twin(&self, twin: &mut Twin, products: Self::Input<'_, Values>) -> Result<Vec<ArrayD<u64>>, Error> {
        products
            .into_iter()
            .map(|CachedProduct { a, b, .. }| Matmul { width: self.width }.twin(twin, (a, b)))
            .collect()
    }

    fn planned(&self, products: Vec<CachedSize>) -> Vec<Shape> {
        products.into_iter().map(|size| Matmul { width: self.width }.planned(size.shape)).collect()
    }
}

/// The sizes of a product with a cached operand.
#[derive(Clone, Copy, Debug)]
pub struct CachedSize {
    /// By tokens.
    shape: MatmulShape,
    /// By slots, once the operand is ready.
    by_slots: MatmulShape,
    /// Words of the rows of new tokens.
    rows: usize,
}

/// A product whose differences to masks are about to be opened.
struct Masked<'a> {
    begun: &'a mut Begun,
    /// Its sizes, by slots.
    shape: MatmulShape,
    /// Words of the differences of rows of M.
    rows: usize,
    b: &'a [u64],
    ba: &'a [u64],
}

impl<'a> Masked<'a> {
    /// Takes the next of `masks` for `lines` rows of X, and appends X - B and the new rows of M - A to `difference`.
    fn of(
        begun: &'a mut Begun,
        lines: usize,
        (x, m): (&[u64], &[u64]),
        masks: &mut &'a [u64],
        difference: &mut Vec<u64>,
    ) -> Self {
        let OperandForm { batch, d, axis, .. } = begun.masks.form;
        let (slots, known, row) = (begun.slots, begun.live.len() - begun.new, begun.masks.form.row());
        let all_live = begun.live.len() == slots;
        let x = match axis {
            Axis::Rows if !all_live => &spread(x, &begun.live, slots)[..],
            Axis::Rows | Axis::Columns => x,
        };
        let shape = begun.masks.form.shape(lines, slots);
        let mut next = |words| masks.split_off(..words).expect("masks of the sizes of the product");
        let (b, ba) = (next(batch * lines * shape.k), next(batch * lines * shape.n));
        difference.extend(x.iter().zip(b).map(|(x, b)| x.wrapping_sub(*b)));
        let fresh = token_rows(m, batch, d, axis, known);
        let fresh_masks = &begun.masks.a[(slots - begun.new) * row..slots * row];
        difference.extend(fresh.iter().zip(fresh_masks).map(|(m, a)| m.wrapping_sub(*a)));
        Masked { begun, shape, rows: fresh.len(), b, ba }
    }

    /// The masks of its new rows.
    fn fresh_masks(&self) -> &[u64] {
        let end = self.begun.slots * self.begun.masks.form.row();
        &self.begun.masks.a[end - self.rows..end]
    }

    /// Words of its differences.
    fn words(&self) -> usize {
        self.b.len() + self.rows
    }

    /// Shares of the product, from its differences as they were `opened`.
    fn finish(self, s: &mut Session, opened: &[u64]) -> Vec<u64> {
        let Masked { begun, shape, b, ba, .. } = self;
        let OperandForm { batch, d, axis, width } = begun.masks.form;
        let slots = begun.slots;
        let (left, opened_rows) = opened.split_at(b.len());
        opening::note(s, "/factors", 0, left, &[width]);
        let known = begun.live.len() - begun.new;
        opening::note(s, "/rows", known * batch * d, opened_rows, &[width]);
        begun.opened.extend_from_slice(opened_rows);
        let right = oriented(&begun.opened, batch, d, axis);
        let a = Zeroizing::new(oriented(&begun.masks.a[..slots * batch * d], batch, d, axis));
        let out = open_products(shape, s.is_server(), [left, b], [&right, &a], ba);
        let all_live = begun.live.len() == slots;
        if axis == Axis::Columns && !all_live { gather(&out, &begun.live, slots) } else { out }
    }
}
