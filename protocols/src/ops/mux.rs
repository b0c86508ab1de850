//! Selection: a shared bit times a shared word.
//!
//! **Functionality.** XOR shares of b and shares of x modulo 2^w -> shares of b x modulo 2^w.
//!
//! **Source.** b x = (b_0 + b_1 - 2 b_0 b_1)(x_0 + x_1). Party i keeps b_i x_i, and the parties share b_{1-i} (1 - 2
//! b_i) x_i by correlated OT, one in each direction (CrypTFlow2, eprint 2020/1002, section 3.1, by correlated OT).
//!
//! The choices depend on the bits alone. Where the bits are known before the words, [`Choose`] sends the choices
//! early, for several selections at once.
//!
//! **Range.** Any. **Error.** None. **Revealed.** Nothing.

use ndarray::Zip;
use waggle_ot::{Bits, CotShape};

use crate::operation::prelude::*;
use crate::wire::cross::{self, Chosen};

/// b ? x : 0 modulo 2^`width`, entrywise; shapes equal.
#[derive(Clone, Copy, Debug)]
pub struct Mux {
    /// Bits of the ring of words and result, 1..=64.
    pub width: u32,
}

impl Operation for Mux {
    entrywise!(Bits, Words -> Words);

    fn cost(&self, shape: &Vec<usize>, _: bool, _: &mut Plans) -> Result<Cost, Error> {
        Ok(rows_cost(shape.iter().product(), 1, self.width))
    }

    fn run(
        &self,
        s: &mut Session,
        (bits, x): (&ArrayD<u8>, &ArrayD<u64>),
        _: Option<&[u64]>,
    ) -> Result<ArrayD<u64>, Error> {
        Ok(shaped(x.shape(), mux(s, &flat(bits), &flat(x), self.width)?))
    }

    fn reference(&self, _: &mut Reference, (bits, x): (&ArrayD<u8>, &ArrayD<u64>)) -> Result<ArrayD<u64>, Error> {
        let select = |&b: &u8, &v: &u64| if b == 1 { signed(v, self.width) as u64 } else { 0 };
        Ok(Zip::from(bits).and(x).map_collect(select))
    }
}

/// Sends the choices of `N` selections by the same bits now, before the words are known, so that each later
/// [`Select`] needs one exchange. A [`Mux`] is one choice followed by one [`Select`]. Choosing early therefore costs
/// nothing, and saves flows where other steps lie between the bits and the words.
#[derive(Clone, Copy, Debug)]
pub struct Choose<const N: usize>;

/// Hidden bits that can select words once.
pub struct Selector<F: Form> {
    bits: F::Bits,
    /// Between two parties, the OTs whose choices were sent.
    chosen: Option<Chosen>,
}

impl<const N: usize> Operation for Choose<N> {
    type Input<'a, F: Form> = &'a F::Bits;
    type Output<F: Form> = [Selector<F>; N];
    type Size = Vec<usize>;

    fn size<F: Form>(&self, bits: &&F::Bits) -> Vec<usize> {
        bits.shape()
    }

    fn cost(&self, shape: &Vec<usize>, _: bool, _: &mut Plans) -> Result<Cost, Error> {
        Ok(cross::choose_cost(N * shape.iter().product::<usize>()))
    }

    fn run(&self, s: &mut Session, bits: &ArrayD<u8>, _: Option<&[u64]>) -> Result<[Selector<Values>; N], Error> {
        let own = flat(bits);
        let n = own.len();
        let mut chosen = cross::choose(s, &Bits::from_fn(N * n, |i| own[i % n] == 1))?;
        Ok(std::array::from_fn(|_| {
            let rest = chosen.split_off(n);
            Selector { bits: bits.clone(), chosen: Some(std::mem::replace(&mut chosen, rest)) }
        }))
    }

    fn reference(&self, _: &mut Reference, bits: &ArrayD<u8>) -> Result<[Selector<Values>; N], Error> {
        Ok(std::array::from_fn(|_| Selector { bits: bits.clone(), chosen: None }))
    }

    fn planned(&self, shape: Vec<usize>) -> [Selector<Shapes>; N] {
        std::array::from_fn(|_| Selector { bits: Shape(shape.clone()), chosen: None })
    }
}

/// A [`Mux`] by bits whose choices [`Choose`] has sent.
#[derive(Clone, Copy, Debug)]
pub struct Select {
    /// Bits of the ring of words and result, 1..=64.
    pub width: u32,
}

impl Operation for Select {
    type Input<'a, F: Form> = (Selector<F>, &'a F::Words);
    type Output<F: Form> = F::Words;
    type Size = Vec<usize>;

    fn size<F: Form>(&self, (selector, x): &(Selector<F>, &F::Words)) -> Vec<usize> {
        assert_eq!(selector.bits.shape(), x.shape(), "shapes of a selection");
        x.shape()
    }

    fn cost(&self, shape: &Vec<usize>, _: bool, _: &mut Plans) -> Result<Cost, Error> {
        let n = shape.iter().product();
        Ok(if n == 0 { Cost::free() } else { cross::answer_cost(&self::shape(n, 1, self.width)) })
    }

    fn run(
        &self,
        s: &mut Session,
        (Selector { bits, chosen }, x): (Selector<Values>, &ArrayD<u64>),
        _: Option<&[u64]>,
    ) -> Result<ArrayD<u64>, Error> {
        let chosen = chosen.expect("a selector made between two parties");
        Ok(shaped(x.shape(), select(s, &flat(&bits), chosen, &flat(x), self.width)?))
    }

    fn reference(
        &self,
        reference: &mut Reference,
        (selector, x): (Selector<Values>, &ArrayD<u64>),
    ) -> Result<ArrayD<u64>, Error> {
        Mux { width: self.width }.reference(reference, (&selector.bits, x))
    }

    fn planned(&self, shape: Vec<usize>) -> Shape {
        Shape(shape)
    }
}

/// Shares of b x modulo 2^`width`. The choices of the bits b were sent, and each b has equally many x.
fn select(s: &mut Session, bits: &[u8], chosen: Chosen, x: &[u64], width: u32) -> Result<Vec<u64>, Error> {
    if x.is_empty() {
        return Ok(Vec::new());
    }
    let slots = x.len() / bits.len();
    assert_eq!(bits.len() * slots, x.len(), "whole rows of words");
    let rows = || bits.iter().zip(x.chunks_exact(slots));
    let words: Vec<u64> = rows().flat_map(|(&b, x)| x.iter().map(move |&x| if_bit(b, x.wrapping_neg(), x))).collect();
    let mut out = chosen.answer(s, &shape(bits.len(), slots, width), &words)?;
    for (out, (&b, x)) in out.chunks_exact_mut(slots).zip(rows()) {
        out.iter_mut().zip(x).for_each(|(out, &x)| *out = out.wrapping_add(if_bit(b, x, 0)));
    }
    Ok(out)
}

/// Shares of b x modulo 2^`width`, from this party's shares of the bits b and of the words x. All bits select equally
/// many words.
pub(crate) fn mux(s: &mut Session, bits: &[u8], x: &[u64], width: u32) -> Result<Vec<u64>, Error> {
    if x.is_empty() {
        return Ok(Vec::new());
    }
    let chosen = cross::choose(s, &Bits::from_fn(bits.len(), |i| bits[i] == 1))?;
    select(s, bits, chosen, x, width)
}

/// Cost of [`mux`] of `n` bits with `slots` words each.
pub(crate) fn rows_cost(n: usize, slots: usize, width: u32) -> Cost {
    if n * slots == 0 { Cost::free() } else { cross::two_way_cost(&shape(n, slots, width)) }
}

fn shape(n: usize, slots: usize, width: u32) -> CotShape {
    CotShape::new(n, slots, &[width]).expect("a width of 1..=64")
}

/// `one` if the bit is 1, else `zero`, without a branch.
pub(crate) fn if_bit(bit: u8, one: u64, zero: u64) -> u64 {
    let select = u64::from(bit).wrapping_neg();
    (one & select) | (zero & !select)
}
