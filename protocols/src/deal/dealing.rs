//! The deal of a batch, in which each of three machines takes its part: see [`deal`](crate::deal).

use blake3::OutputReader;
use waggle_net::Role;
use zeroize::{ZeroizeOnDrop, Zeroizing};

use crate::Error;
use crate::halves::{Halves, HalvesSeed, Known};
use crate::masked_row::MaskedRow;
use crate::words::mask;

/// A stream of words that a seed determines: the same on every machine that has the seed.
#[derive(ZeroizeOnDrop)]
pub(crate) struct Stream(OutputReader);

impl Stream {
    pub(crate) fn new(seed: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("waggle 2026 words of a dealt correlation");
        hasher.update(seed);
        Stream(hasher.finalize_xof())
    }

    pub(crate) fn words(&mut self, count: usize, width: u32) -> Vec<u64> {
        let mut bytes = Zeroizing::new(vec![0; 8 * count]);
        self.0.fill(&mut bytes);
        bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word) & mask(width)).collect()
    }
}

pub(crate) enum Seat<'m> {
    /// No machine. Only the bytes that the helper would send are counted.
    Counter,
    Helper {
        /// The streams of words that the client and the server draw.
        own: &'m mut [Stream; 2],
        public: &'m mut Stream,
        messages: [Vec<u8>; 2],
        halves: &'m Halves,
    },
    Party {
        role: Role,
        own: &'m mut Stream,
        public: &'m mut Stream,
        message: &'m [u8],
        halves: Option<&'m HalvesSeed>,
    },
}

/// The deal of a batch at one of the three machines.
pub struct Dealing<'m> {
    pub(crate) seat: Seat<'m>,
    pub(crate) bytes: [usize; 2],
}

impl Dealing<'_> {
    /// Words modulo 2^`width` that `role` draws. The helper draws the same words.
    pub(crate) fn draw(&mut self, role: Role, count: usize, width: u32) -> Vec<u64> {
        match &mut self.seat {
            Seat::Helper { own, .. } => own[role as usize].words(count, width),
            Seat::Party { role: here, own, .. } if *here == role => own.words(count, width),
            Seat::Party { .. } | Seat::Counter => Vec::new(),
        }
    }

    /// Words that each party draws: first the client's, then the server's.
    pub(crate) fn draw_both(&mut self, count: usize, width: u32) -> [Vec<u64>; 2] {
        [Role::Client, Role::Server].map(|role| self.draw(role, count, width))
    }

    /// The product of the client's rows `x` with the half of `kind`'s matrix that this machine has. Empty at the
    /// server, which has no half, and where only bytes are counted.
    pub(crate) fn times(&self, kind: &MaskedRow, x: &[u64]) -> Result<Vec<u64>, Error> {
        let known = match &self.seat {
            Seat::Counter | Seat::Party { role: Role::Server, .. } => return Ok(Vec::new()),
            Seat::Helper { halves, .. } => Known::Helper(halves),
            Seat::Party { halves, .. } => halves.map_or(Known::Nothing, Known::Client),
        };
        known.times(kind, x)
    }

    /// Random words that all three machines know.
    pub(crate) fn public(&mut self, count: usize) -> Vec<u64> {
        match &mut self.seat {
            Seat::Helper { public, .. } | Seat::Party { public, .. } => public.words(count, 64),
            Seat::Counter => Vec::new(),
        }
    }

    /// `count` words that the helper computes by `words` and sends to `role`. Word i is modulo 2^w, where the widths
    /// w repeat `widths`.
    pub(crate) fn give(
        &mut self,
        role: Role,
        count: usize,
        widths: &[u32],
        words: impl FnOnce() -> Vec<u64>,
    ) -> Result<Vec<u64>, Error> {
        self.give_to(&[role], count, widths, words)
    }

    /// Like [`Dealing::give`], but both parties get the words.
    pub(crate) fn give_both(
        &mut self,
        count: usize,
        widths: &[u32],
        words: impl FnOnce() -> Vec<u64>,
    ) -> Result<Vec<u64>, Error> {
        self.give_to(&[Role::Client, Role::Server], count, widths, words)
    }

    fn give_to(
        &mut self,
        roles: &[Role],
        count: usize,
        widths: &[u32],
        words: impl FnOnce() -> Vec<u64>,
    ) -> Result<Vec<u64>, Error> {
        let size = waggle_bits::packed_bytes(count, widths);
        roles.iter().for_each(|role| self.bytes[*role as usize] += size);
        match &mut self.seat {
            Seat::Counter => Ok(Vec::new()),
            Seat::Helper { messages, .. } => {
                let words = words();
                debug_assert_eq!(words.len(), count, "as many words as announced");
                let packed = waggle_bits::pack(&words, widths);
                roles.iter().for_each(|role| messages[*role as usize].extend(&packed));
                Ok(words)
            }
            Seat::Party { role, message, .. } if roles.contains(role) => {
                let (part, rest) = message.split_at_checked(size).unwrap_or((message, &[]));
                *message = rest;
                Ok(waggle_bits::unpack(GIVEN, part, count, widths)?)
            }
            Seat::Party { .. } => Ok(Vec::new()),
        }
    }
}

/// Step of the words that a helper gives.
pub(crate) const GIVEN: &str = "helper/words";

/// Puts `units` units together from parts. Each part is its words for all units and the number of these in one unit.
/// Within a unit, the parts follow one another. A part without words adds nothing.
pub(crate) fn woven(units: usize, parts: &[(&[u64], usize)]) -> Vec<u64> {
    let mut out = Vec::with_capacity(units * parts.iter().map(|(_, words)| words).sum::<usize>());
    for unit in 0..units {
        out.extend(parts.iter().flat_map(|(part, words)| part.get(unit * words..(unit + 1) * words)).flatten());
    }
    out
}

/// The product of `factors`, or `None` if a factor is 0 or the product overflows.
pub(crate) fn counted(factors: &[usize]) -> Option<u64> {
    let positive = |all: u64, n: &usize| all.checked_mul(*n as u64).filter(|product| *product > 0);
    factors.iter().try_fold(1u64, positive)
}

/// `words`, or `None` if no ring has `width` bits.
pub(crate) fn in_range(width: u32, words: u64) -> Option<u64> {
    (1..=64).contains(&width).then_some(words)
}
