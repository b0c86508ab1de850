//! How the masks of cached operands are made by both parties, dealt by a helper, and taken for products.

use waggle_engine::Axis;
use waggle_he::MatmulShape;
use waggle_net::Role;
use zeroize::Zeroizing;

use super::form::{Events, OperandForm};
use super::masks::OperandMasks;
use super::operand::ReadyOperand;
use crate::Error;
use crate::cost::Cost;
use crate::deal::dealing::Dealing;
use crate::ops::matmul;
use crate::plans::Plans;
use crate::session::Session;
use crate::spill::Spill;
use crate::wire::beaver::{minus, random};
use crate::work::Kernel;

/// Takes the masks B and B A of the products for which operands were `met`, in order. `None` if there are no
/// products. Missing masks are made on the spot.
pub(crate) fn take(
    s: &mut Session,
    spill: &mut Spill,
    met: Vec<ReadyOperand<'_>>,
) -> Result<Option<Zeroizing<Vec<u64>>>, Error> {
    let words = met.iter().map(|met| met.form.product_words(&met.event)).sum::<u64>();
    let mut out = (!met.is_empty()).then(|| Zeroizing::new(Vec::with_capacity(words as usize)));
    for ReadyOperand { form, event, ready, masks, .. } in met {
        if !ready {
            s.offline(|s| extend(s, spill, masks, &Events { form, list: vec![event] }))?;
            masks.events.pop_front();
        }
        let words = masks.products.take(form.product_words(&event) as usize, spill)?;
        out.iter_mut().for_each(|out| out.extend_from_slice(&words));
    }
    Ok(out)
}

/// Adds masks for the products `events` to the masks of the same operand.
pub(crate) fn extend(
    s: &mut Session,
    spill: &mut Spill,
    masks: &mut OperandMasks,
    events: &Events,
) -> Result<(), Error> {
    for batch in events.batches(s.plans().operand_batch) {
        add_batch(s, spill, masks, &batch)?;
    }
    Ok(())
}

/// Adds masks for the products `events`, made by one product of stacked matrices.
fn add_batch(s: &mut Session, spill: &mut Spill, masks: &mut OperandMasks, events: &Events) -> Result<(), Error> {
    let form = events.form;
    let OperandForm { batch, axis, width, .. } = form;
    let (all, tokens) = (events.stacked(), events.tokens());
    let missing = (tokens * form.row()).saturating_sub(masks.a.len());
    if missing > 0 {
        masks.add_rows(&Zeroizing::new(random(s, missing, width)));
    }
    let a = Zeroizing::new(form.oriented(&masks.a[..tokens * form.row()]));
    let mut b = Zeroizing::new(random(s, batch * all.m * all.k, width));
    if axis == Axis::Rows {
        // A product's mask has zeros for tokens that the product does not have.
        for stacked in b.chunks_exact_mut(all.m * tokens) {
            let mut rows = stacked.chunks_exact_mut(tokens);
            for event in &events.list {
                (&mut rows).take(event.m).for_each(|row| row[event.tokens..].fill(0));
            }
        }
    }
    let ba = Zeroizing::new(matmul::shared(s, all, &b, &a, width)?);
    let mut first = 0;
    for &event in &events.list {
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

/// Deals the masks for the products `events` of an operand. `rows` holds the masks of its first `before` tokens. The
/// result has the masks of new tokens, then B and B A of each product. Both parties draw A and B; the client also
/// draws its shares of B A.
pub(crate) fn deal(
    d: &mut Dealing<'_>,
    events: &Events,
    before: usize,
    rows: &mut [Vec<u64>; 2],
) -> Result<[Vec<u64>; 2], Error> {
    let OperandForm { batch, width, .. } = events.form;
    let new = events.tokens().saturating_sub(before) * events.form.row();
    let mut out = d.draw_both(new, width);
    rows.iter_mut().zip(&out).for_each(|(rows, new)| rows.extend(new));
    for event in &events.list {
        let shape = events.form.shape(event.m, event.tokens);
        let b = d.draw_both(batch * shape.m * shape.k, width);
        let client = d.draw(Role::Client, batch * shape.m * shape.n, width);
        let server = d.give(Role::Server, batch * shape.m * shape.n, &[width], || {
            let a = rows.each_ref().map(|rows| events.form.oriented(&rows[..event.tokens * events.form.row()]));
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

impl OperandMasks {
    /// Adds what a helper dealt for `events`. The masks of the first `earlier` tokens of the operand are elsewhere.
    pub(crate) fn add_dealt(
        &mut self,
        spill: &mut Spill,
        earlier: usize,
        events: &Events,
        words: &[u64],
    ) -> Result<(), Error> {
        let rows = events.tokens().saturating_sub(earlier) * events.form.row();
        let (rows, mut rest) = words.split_at(rows.saturating_sub(self.a.len()));
        self.add_rows(rows);
        for event in &events.list {
            let MatmulShape { batch, m, k, n } = events.form.shape(event.m, event.tokens);
            for words in [batch * m * k, batch * m * n] {
                let (part, others) = rest.split_at(words);
                self.products.push(part, spill)?;
                rest = others;
            }
            self.events.push_back(*event);
        }
        Ok(())
    }
}
