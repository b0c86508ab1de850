//! The laws notice an operation that breaks one of them.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use waggle_protocols::Words;
use waggle_protocols::operation::prelude::*;
use waggle_protocols::wire::opening;
use waggle_testing::{Laws, lawful, signed_values};

/// Width in bits of the ring of the opened words.
const WIDTH: u32 = 32;

/// Words in the operand: enough for the test of uniform openings in one run.
const COUNT: usize = 600;

/// The law that [`Again`] breaks, if any.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    Reference,
    Cost,
    Range,
    Uniform,
    Reuse,
    Bare,
}

/// Shares its operand x anew: opens x under masks of both parties, and then each party takes off its own mask. Range:
/// signed 30-bit values.
#[derive(Clone, Copy, Debug)]
struct Again(Fault);

lawful!(Again, |words, _| &words[0], Words);

impl Operation for Again {
    type Input<'a, F: Form> = &'a F::Words;
    type Output<F: Form> = F::Words;
    type Size = Vec<usize>;

    fn size<F: Form>(&self, x: &&F::Words) -> Vec<usize> {
        x.shape()
    }

    fn cost(&self, shape: &Vec<usize>, _: bool, _: &mut Plans) -> Result<Cost, Error> {
        let n = shape.iter().product::<usize>();
        let cost = opening::open_cost(n + usize::from(self.0 == Fault::Cost), &[WIDTH]);
        Ok(if self.0 == Fault::Bare { cost.message(Role::Server, 8 * n) } else { cost })
    }

    fn run(&self, s: &mut Session, x: &ArrayD<u64>, _: Option<&[u64]>) -> Result<ArrayD<u64>, Error> {
        let mut same = StdRng::seed_from_u64(1);
        let mask = x.mapv(|_| match self.0 {
            Fault::Uniform => u64::from(s.rng().next_u32() >> 8),
            Fault::Reuse => same.next_u64(),
            _ => s.rng().next_u64(),
        });
        let opened = shaped(x.shape(), opening::masked(s, &flat(&x.plus(&mask)), mask.iter().copied(), &[WIDTH])?);
        if self.0 == Fault::Bare {
            let bare = || x.iter().flat_map(|share| share.to_le_bytes()).collect();
            match s.role() {
                Role::Server => s.deliver("bare", bare())?,
                Role::Client => drop(s.channel().recv("bare", 8 * x.len())?),
            }
        }
        let wrong = u64::from(self.0 == Fault::Reference);
        let unmasked = if s.is_server() { opened.minus(&mask) } else { mask.times(u64::MAX) };
        Ok(unmasked.mapv(|word| word.wrapping_add(wrong)))
    }

    fn reference(&self, reference: &mut Reference, x: &ArrayD<u64>) -> Result<ArrayD<u64>, Error> {
        let width = if self.0 == Fault::Range { 64 } else { 30 };
        reference.fitted("again", x.mapv(|x| i128::from(x as i64)), width)
    }

    fn planned(&self, shape: Vec<usize>) -> waggle_protocols::Shape {
        waggle_protocols::Shape(shape)
    }
}

fn again(fault: Fault, seed: u64) -> Laws<'static> {
    Laws::of(Again(fault)).words(&[COUNT], signed_values(10, COUNT, seed)).ring(WIDTH)
}

fn hold(fault: Fault) {
    again(fault, 1).refuses(&[vec![1 << 29; COUNT]]).hold();
}

#[test]
fn a_right_operation_passes() {
    hold(Fault::None);
    again(Fault::None, 1).hides(&again(Fault::None, 2), false);
}

#[test]
#[should_panic(expected = "reference: ")]
fn a_wrong_result_is_noticed() {
    hold(Fault::Reference);
}

#[test]
#[should_panic(expected = "cost: plan")]
fn a_wrong_cost_is_noticed() {
    hold(Fault::Cost);
}

#[test]
#[should_panic(expected = "range: ")]
fn a_reference_without_a_range_is_noticed() {
    hold(Fault::Range);
}

#[test]
#[should_panic(expected = "uniform: ")]
fn an_opening_under_small_masks_is_noticed() {
    hold(Fault::Uniform);
}

/// The laws of results, costs and openings do not notice a share that is sent bare.
#[test]
#[should_panic(expected = "tells what it holds")]
fn a_share_that_is_sent_bare_is_noticed() {
    hold(Fault::Bare);
    again(Fault::Bare, 1).hides(&again(Fault::Bare, 2), false);
}

#[test]
#[should_panic(expected = "MaskTwice")]
fn masks_that_come_back_are_noticed() {
    hold(Fault::Reuse);
}
