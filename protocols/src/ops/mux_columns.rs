//! Selection by prepared bits: shared bits times shared words, in one exchange.
//!
//! **Functionality.** Items of b bits, shared by exclusive-or, and of w words for each bit, those of bit i modulo
//! `2^widths[i]` -> shares of bit i times its words.
//!
//! **Source.** Beaver's masks (CRYPTO 1991), of which one is a bit:
//!
//! ```text
//! prepare:  random bits B = B_s ^ B_c; random words rho = rho_s + rho_c; shares of B and of B rho
//! run:      open d = b ^ B and e = x - rho
//!           b x = (d ^ B) (e + rho) is B e + B rho if d = 0, and x - (B e + B rho) if d = 1
//! ```
//!
//! B (1, rho_s) is B_s (1, rho_s) + B_c (1 - 2 B_s) (1, rho_s): one random OT with the client's choice B_c. B rho_c
//! takes one with the server's choice.
//!
//! **Range.** Any. **Error.** None. **Revealed.** Nothing: every bit and word is opened under a mask that is uniform
//! and masks nothing else.

use net::Role;
use rand::Rng;

use crate::Shape;
use crate::operation::prelude::*;
use crate::ops::batch_items;
use crate::ops::mux::if_bit;
use crate::wire::opening;
use crate::words::{mask, signed};

const STEP: &str = "mux/selections";

/// Selection of (items, bits) by bits of the same shape times words (items, bits * `words`): a bit's words stand
/// together.
#[derive(Clone, Copy, Debug)]
pub struct MuxColumns<'w> {
    /// Bits of the ring of every bit's words, each 1..=64. There are at most 64.
    pub widths: &'w [u32],
    /// Words that a bit selects, at least 1.
    pub words: usize,
}

/// Random bits and words, and shares of their products. Unit: an item.
///
/// A party's words of an item: its shares of the bits in one word, shares of the bits as numbers, and for every word
/// its share of rho and a share of the bit times rho.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Selection {
    /// Bits of the ring of every bit's words.
    pub widths: Vec<u32>,
    /// Words that a bit selects.
    pub words: usize,
}

impl Selection {
    /// The products of one party's choices with so many words for each.
    fn products(&self, n: usize, words: usize) -> ot::Correlation {
        ot::Correlation::new(n * self.widths.len(), words, &self.widths).expect("widths of 1..=64")
    }

    /// Those in which `role` chooses. The server also supplies the bits themselves.
    fn chosen_by(&self, role: Role, n: usize) -> ot::Correlation {
        self.products(n, self.words + usize::from(role == Role::Client))
    }

    fn item_words(&self) -> usize {
        1 + self.widths.len() * (1 + 2 * self.words)
    }

    /// Width of what is opened of an item.
    fn opened_widths(&self) -> Vec<u32> {
        let words = self.widths.iter().flat_map(|&width| std::iter::repeat_n(width, self.words));
        std::iter::repeat_n(1, self.widths.len()).chain(words).collect()
    }
}

impl Correlation for Selection {
    fn scope(&self) -> &'static str {
        "selections"
    }

    fn words(&self, _: Role) -> usize {
        self.item_words()
    }

    fn batch(&self) -> usize {
        batch_items(self.widths.len() * (self.words + 1))
    }

    fn cost(&self, _: &mut Plans, n: usize) -> Result<Cost, Error> {
        let both = [Role::Client, Role::Server];
        let cost = both.into_iter().fold(Cost::free(), |cost, role| {
            let products = self.chosen_by(role, n);
            cost.cots(role.peer(), products.ots()).supplies(role.peer(), &products)
        });
        let bytes = |role| self.chosen_by(role, n).message_bytes();
        let sent = cost.exchange(bytes(Role::Server), bytes(Role::Client));
        Ok(both.into_iter().fold(sent, |cost, role| cost.chooses(role, &self.chosen_by(role, n))).offline())
    }

    fn make(&self, s: &mut Session, n: usize, _: Option<&FixedMatrix>) -> Result<Vec<u64>, Error> {
        let (count, bits) = (n * self.widths.len(), self.widths.len());
        let (own, others) = (self.chosen_by(s.role(), n), self.chosen_by(s.role().peer(), n));
        s.offline(|s| {
            s.reserve(Role::Server, count)?;
            s.reserve(Role::Client, count)?;
            let sender = s.sender().random(count)?;
            let (choices, receiver) = s.receiver().random(count)?;
            // This party's words, of which the server's first is 1.
            let first = usize::from(s.is_server());
            let mut words = Vec::with_capacity(others.values());
            for i in 0..count {
                words.extend(std::iter::repeat_n(1, first));
                words.extend((0..self.words).map(|_| s.rng().next_u64() & mask(self.widths[i % bits])));
            }
            let by_bit = words.chunks_exact(first + self.words).enumerate();
            let signed = |(i, words): (usize, &[u64])| {
                let bit = choices.get(i) as u8;
                words.iter().map(move |word| if_bit(bit, word.wrapping_neg(), *word)).collect::<Vec<u64>>()
            };
            let supplied: Vec<u64> = by_bit.clone().flat_map(signed).collect();
            let (message, given) = sender.correlate(&others, &supplied)?;
            let theirs = s.channel().exchange(STEP, &message, own.message_bytes())?;
            let taken = receiver.decorrelate(&own, &theirs)?;
            let mut out = vec![0; n * self.item_words()];
            let own_words = own.values() / count.max(1);
            for (i, words) in by_bit {
                let (item, at) = (i / bits, i % bits);
                let entry = &mut out[item * self.item_words()..][..self.item_words()];
                entry[0] |= choices.get(i) << at;
                let (numbers, rest) = entry[1..].split_at_mut(bits);
                let rest = &mut rest[2 * at * self.words..][..2 * self.words];
                // B_own times this party's words, and both OTs.
                let kept: Vec<u64> = words
                    .iter()
                    .zip(&given[i * (first + self.words)..])
                    .map(|(word, given)| if_bit(choices.get(i) as u8, *word, 0).wrapping_add(*given))
                    .collect();
                let taken = &taken[i * own_words..][..own_words];
                let reduce = mask(self.widths[at]);
                numbers[at] = if first == 1 { kept[0] } else { taken[0] } & reduce;
                for (j, rest) in rest.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                    let product = kept[first + j].wrapping_add(taken[1 - first + j]);
                    *rest = [words[first + j], product & reduce];
                }
            }
            Ok(out)
        })
    }
}

impl MuxColumns<'_> {
    fn selection(&self) -> Selection {
        assert!(self.widths.len() <= 64 && self.words > 0, "{self:?}");
        Selection { widths: self.widths.to_vec(), words: self.words }
    }

    /// Bits of the ring of every word of an item.
    fn word_widths(&self) -> impl Iterator<Item = u32> + Clone {
        self.widths.iter().flat_map(|&width| std::iter::repeat_n(width, self.words))
    }
}

impl Operation for MuxColumns<'_> {
    type Input<'a, F: Form> = (&'a F::Bits, &'a F::Words);
    type Output<F: Form> = F::Words;
    type Size = usize;

    fn size<F: Form>(&self, (bits, x): &(&F::Bits, &F::Words)) -> usize {
        let n = bits.shape().first().copied().unwrap_or(0);
        assert_eq!(bits.shape(), [n, self.widths.len()], "bits of a selection");
        assert_eq!(x.shape(), [n, self.widths.len() * self.words], "words of a selection");
        n
    }

    fn correlations(&self, n: &usize, _: &Options) -> Option<Need> {
        Some(Need::new(self.selection(), *n))
    }

    fn cost(&self, n: &usize, _: bool, _: &mut Plans) -> Result<Cost, Error> {
        let widths = self.selection().opened_widths();
        Ok(opening::open_each_cost(n * widths.len(), &widths))
    }

    fn run(
        &self,
        s: &mut Session,
        (bits, x): (&ArrayD<u8>, &ArrayD<u64>),
        correlations: Option<&[u64]>,
    ) -> Result<ArrayD<u64>, Error> {
        let (selection, columns) = (self.selection(), self.widths.len());
        let (own, words) = (flat(bits), flat(x));
        let size = selection.item_words();
        let entries = correlations.unwrap_or_default();
        assert_eq!(entries.len() * columns, own.len() * size, "a correlation for every item");
        let items = || own.chunks_exact(columns).zip(words.chunks_exact(columns * self.words));
        let masked: Vec<u64> = items()
            .zip(entries.chunks_exact(size))
            .flat_map(|((bits, words), entry)| {
                let bits = bits.iter().enumerate().map(|(i, bit)| u64::from(*bit) ^ entry[0] >> i & 1);
                let rho = entry[1 + columns..].iter().step_by(2);
                bits.chain(words.iter().zip(rho).map(|(x, rho)| x.wrapping_sub(*rho)))
            })
            .collect();
        let widths = selection.opened_widths();
        let masks = entries.chunks_exact(size).flat_map(|entry| {
            (0..columns).map(|i| entry[0] >> i).chain(entry[1 + columns..].iter().step_by(2).copied())
        });
        let opened = opening::masked_each(s, &masked, masks, &widths)?;
        let mut out = Vec::with_capacity(words.len());
        for (((_, words), entry), opened) in
            items().zip(entries.chunks_exact(size)).zip(opened.chunks_exact(widths.len()))
        {
            let (d, e) = opened.split_at(columns);
            let (numbers, rest) = entry[1..].split_at(columns);
            for (i, width) in self.word_widths().enumerate() {
                let column = i / self.words;
                let masked = numbers[column].wrapping_mul(e[i]).wrapping_add(rest[2 * i + 1]);
                out.push(if_bit(d[column] as u8, words[i].wrapping_sub(masked), masked) & mask(width));
            }
        }
        Ok(shaped(x.shape(), out))
    }

    fn twin(&self, _: &mut Twin, (bits, x): (&ArrayD<u8>, &ArrayD<u64>)) -> Result<ArrayD<u64>, Error> {
        let bits = bits.iter().flat_map(|&bit| std::iter::repeat_n(bit, self.words));
        let words = x.iter().zip(bits).zip(self.word_widths().cycle());
        let select = |((&x, bit), width)| if bit == 1 { signed(x, width) as u64 } else { 0 };
        Ok(shaped(x.shape(), words.map(select).collect()))
    }

    fn planned(&self, n: usize) -> Shape {
        Shape(vec![n, self.widths.len() * self.words])
    }
}
