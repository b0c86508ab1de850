//! The operation [`CachedMatmul`] opens new rows under masks, and multiplies. [`super`] states the protocol: range,
//! error and what is revealed.

use waggle_engine::Axis;
use waggle_he::MatmulShape;
use zeroize::Zeroizing;

use super::form::single;
use super::masks::PreparedMasks;
use super::operand::{Begun, Operand, ReadyOperand};
use crate::operation::prelude::*;
use crate::ops::Matmul;
use crate::ops::matmul::product_shape;
use crate::wire::beaver::{minus, open_products};
use crate::wire::opening;

/// Products modulo 2^`width` with cached operands. Along its axis, each matrix has the tokens of the previous product
/// with the same operand, without those that were cut off since, and then new tokens. In a two-phase session each
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
    /// The axis along which the tokens of `b` lie.
    pub axis: Axis,
    /// The session's memory of the operand.
    pub operand: &'a mut Operand,
}

impl Operation for CachedMatmul {
    type Input<'a, F: Form> = Vec<CachedProduct<'a, F::Words>>;
    type Output<F: Form> = Vec<F::Words>;
    type Size = Vec<CachedSize>;

    fn operands<'i, F: Form>(
        &self,
        products: &'i mut Self::Input<'_, F>,
        prepared: &mut PreparedMasks,
        options: &Options,
    ) -> Result<Vec<ReadyOperand<'i>>, Error> {
        let met = products.iter_mut().filter(|_| options.preprocess).map(|CachedProduct { a, b, axis, operand }| {
            let (form, wanted) = single(product_shape(&a.shape(), &b.shape()), *axis, self.width);
            operand.meet(prepared, form, wanted)
        });
        met.collect()
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
        let width = &[self.width];
        let (mut masked, mut difference) = (Vec::new(), Vec::new());
        for CachedProduct { a, b, operand, .. } in products {
            let begun = operand.begun.as_mut().expect("a box meets operands first");
            let form = begun.masks.form;
            let shape = form.shape(a.shape()[1], begun.slots);
            let mut next = |words| masks.split_off(..words).expect("masks of the sizes of the product");
            let (b_mask, ba) = (next(shape.batch * shape.m * shape.k), next(shape.batch * shape.m * shape.n));
            let x = if form.axis == Axis::Rows { begun.by_slots(flat(a)) } else { flat(a) };
            let new_masks = begun.masks_from(begun.slots - begun.new);
            opening::spend(s, "/factors", b_mask.iter().copied(), width)?;
            opening::spend(s, "/rows", new_masks.iter().copied(), width)?;
            difference.extend(minus(&x, b_mask.iter().copied()));
            difference.extend(minus(&form.token_rows(&flat(b), begun.known()), new_masks.iter().copied()));
            masked.push(Masked { begun, shape, b: b_mask, ba });
        }
        let mut opened = &opening::open(s, &difference, width)?[..];
        Ok(masked.into_iter().map(|product| product.finish(s, &mut opened)).collect())
    }

    fn reference(
        &self,
        reference: &mut Reference,
        products: Self::Input<'_, Values>,
    ) -> Result<Vec<ArrayD<u64>>, Error> {
        products
            .into_iter()
            .map(|CachedProduct { a, b, .. }| Matmul { width: self.width }.reference(reference, (a, b)))
            .collect()
    }

    fn planned(&self, products: Vec<CachedSize>) -> Vec<Shape> {
        products.into_iter().map(|size| Matmul { width: self.width }.planned(size.shape)).collect()
    }
}

/// The sizes of a product with a cached operand.
#[derive(Clone, Copy, Debug)]
pub struct CachedSize {
    /// The sizes of the product, with its tokens counted.
    shape: MatmulShape,
    /// The sizes of the product with slots in the place of tokens. They are known once the operand is ready.
    by_slots: MatmulShape,
    /// Number of words in the rows of new tokens.
    rows: usize,
}

/// A product whose differences to masks are about to be opened.
struct Masked<'a> {
    begun: &'a mut Begun,
    /// The sizes of the product, with slots in the place of tokens.
    shape: MatmulShape,
    b: &'a [u64],
    ba: &'a [u64],
}

impl Masked<'_> {
    /// Shares of the product. Removes its opened differences from the front of `opened`.
    fn finish(self, s: &mut Session, opened: &mut &[u64]) -> ArrayD<u64> {
        let Masked { begun, shape, b, ba } = self;
        let form = begun.masks.form;
        let mut next = |words| opened.split_off(..words).expect("as many words as were masked");
        let (left, rows) = (next(b.len()), next(begun.new * form.row()));
        opening::note(s, "/factors", 0, left, &[form.width]);
        opening::note(s, "/rows", begun.known() * form.row(), rows, &[form.width]);
        begun.opened.extend_from_slice(rows);
        let right = form.oriented(&begun.opened);
        let a = Zeroizing::new(form.oriented(begun.masks_from(0)));
        let out = open_products(shape, s.is_server(), [left, b], [&right, &a], ba);
        let out = if form.axis == Axis::Columns { begun.by_tokens(out) } else { out };
        let MatmulShape { batch, m, n, .. } = form.shape(shape.m, begun.live.len());
        shaped(&[batch, m, n], out)
    }
}
