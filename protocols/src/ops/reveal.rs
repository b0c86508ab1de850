//! Opening a shared value to one party or to both, because the caller's protocol says so.
//!
//! **Functionality.** Three operations open shares of x modulo 2^w:
//! - [`Reveal`] opens x to the party `to` and nothing to the other.
//! - [`Open`] opens x to both parties.
//! - [`RevealRounded`] opens x to the party `to`, rounded at random to a multiple of 2^d on a random grid.
//!
//! **Range.** Any; for [`RevealRounded`] |x| < 2^(w - 2), d < w - 1. **Error.** None; for [`RevealRounded`] below
//! 2^d, with mean 0.
//!
//! **Revealed.** x modulo 2^w to `to`, or to both. Only the low w bits of a share are sent: higher bits may depend on
//! more than x, and they never leave.
//!
//! # Rounding what is revealed
//!
//! A product with a weight carries bits below the unit of the result. Truncating it first would not hide them: the
//! receiver knows its own share, so the carry between the low halves of the two shares tells it how x compares with a
//! number that it knows. [`RevealRounded`] leaves the carry to chance instead. Let c be the receiver's share, which
//! is uniform, and s the sender's:
//!
//! ```text
//! sender:    draws u uniformly in [0, 2^d), sends floor((s + u) / 2^d)
//! receiver:  adds that multiple of 2^d to c
//! ```
//!
//! With t = (x - c) mod 2^d the result is
//!
//! x - t with probability 1 - t / 2^d, and x - t + 2^d with probability t / 2^d.
//!
//! This is x rounded at random to the grid c + 2^d Z, with expectation x. The receiver's view is a function of c and
//! of this result alone, so it can be simulated from the functionality. One result tells x to about d bits less than
//! a plain opening. The average of many results for the same x tells more, as with any rounding of mean 0.

use rand::Rng;

use crate::operation::prelude::*;
use crate::wire::opening::{self, STEP};

/// Opens words, reduced modulo 2^`width`, to the party `to`, which gets `Some`. A plan returns `None`.
#[derive(Clone, Copy, Debug)]
pub struct Reveal {
    /// Bits of the ring.
    pub width: u32,
    /// Who learns the words.
    pub to: Role,
}

impl Reveal {
    fn unrounded(self) -> RevealRounded {
        RevealRounded { width: self.width, drop: 0, to: self.to }
    }
}

impl Operation for Reveal {
    entrywise!(Words -> opened);

    fn cost(&self, shape: &Vec<usize>, prepared: bool, plans: &mut Plans) -> Result<Cost, Error> {
        self.unrounded().cost(shape, prepared, plans)
    }

    fn run(&self, s: &mut Session, x: &ArrayD<u64>, _: Option<&[u64]>) -> Result<Option<ArrayD<u64>>, Error> {
        self.unrounded().run(s, x, None)
    }

    fn reference(&self, _: &mut Reference, x: &ArrayD<u64>) -> Result<Option<ArrayD<u64>>, Error> {
        Ok(Some(x.mapv(|v| v & mask(self.width))))
    }
}

/// Opens words modulo 2^`width` to `to`, rounded to multiples of 2^`drop`. Between two parties the rounding is
/// random, on a grid of the receiver's share. Range: |x| < 2^(width - 2). Error: below 2^drop.
#[derive(Clone, Copy, Debug)]
pub struct RevealRounded {
    /// Bits of the ring.
    pub width: u32,
    /// Bits dropped, less than `width - 1`.
    pub drop: u32,
    /// Who learns the words.
    pub to: Role,
}

impl Operation for RevealRounded {
    entrywise!(Words -> opened);

    fn cost(&self, shape: &Vec<usize>, _: bool, _: &mut Plans) -> Result<Cost, Error> {
        let (n, sender) = (shape.iter().product(), self.to.peer());
        let message = waggle_bits::packed_bytes(n, &[self.width - self.drop]);
        let sent = Cost::free().work(sender, Kernel::OpenWord, n).message(sender, message);
        Ok(sent.work(self.to, Kernel::OpenWord, n))
    }

    fn run(&self, s: &mut Session, x: &ArrayD<u64>, _: Option<&[u64]>) -> Result<Option<ArrayD<u64>>, Error> {
        let RevealRounded { width, drop, to } = *self;
        let kept = width - drop;
        if s.role() != to {
            let noise = |s: &mut Session| if drop == 0 { 0 } else { s.rng().next_u64() & mask(drop) };
            let high = x.iter().map(|x| x.wrapping_add(noise(s)) >> drop).collect::<Vec<_>>();
            s.deliver(STEP, waggle_bits::pack(&high, &[kept]))?;
            return Ok(None);
        }
        let message = s.channel().recv(STEP, waggle_bits::packed_bytes(x.len(), &[kept]))?;
        let high = waggle_bits::unpack(STEP, &message, x.len(), &[kept])?;
        let values = x.iter().zip(high).map(|(x, high)| x.wrapping_add(high << drop) & mask(width));
        Ok(Some(shaped(x.shape(), values.collect())))
    }

    fn reference(&self, reference: &mut Reference, x: &ArrayD<u64>) -> Result<Option<ArrayD<u64>>, Error> {
        let RevealRounded { width, drop, .. } = *self;
        let rounded = reference.rounded("reveal", x, width, drop)?;
        Ok(Some(rounded.mapv(|v| (v << drop) as u64 & mask(width))))
    }
}

/// Opens words modulo 2^`width` to both parties, reduced modulo 2^`width`. A plan returns `None`.
#[derive(Clone, Copy, Debug)]
pub struct Open {
    /// Bits of the ring.
    pub width: u32,
}

impl Operation for Open {
    entrywise!(Words -> opened);

    fn cost(&self, shape: &Vec<usize>, _: bool, _: &mut Plans) -> Result<Cost, Error> {
        Ok(opening::open_cost(shape.iter().product(), &[self.width]))
    }

    fn run(&self, s: &mut Session, x: &ArrayD<u64>, _: Option<&[u64]>) -> Result<Option<ArrayD<u64>>, Error> {
        Ok(Some(shaped(x.shape(), opening::open(s, &flat(x), &[self.width])?)))
    }

    fn reference(&self, _: &mut Reference, x: &ArrayD<u64>) -> Result<Option<ArrayD<u64>>, Error> {
        Ok(Some(x.mapv(|v| v & mask(self.width))))
    }
}
