//! Selection by prepared bits: shared bits times shared words, in one exchange.
//!
//! **Functionality.** Items of b bits, shared by exclusive-or, with w words for each bit, where the words of bit i
//! are modulo `2^widths[i]` -> shares of bit i times its words.
//!
//! **Source.** Beaver's products of masks (CRYPTO 1991), where one factor is a bit:
//!
//! ```text
//! prepare:  random bits B = B_s ^ B_c; random words rho = rho_s + rho_c; shares of B and of B rho
//! run:      open d = b ^ B and e = x - rho
//!           b x = (d ^ B) (e + rho) is B e + B rho if d = 0, and x - (B e + B rho) if d = 1
//! ```
//!
//! B (1, rho_s) is B_s (1, rho_s) + B_c (1 - 2 B_s) (1, rho_s): one random OT with the client's choice B_c. B rho_c
//! takes one random OT with the server's choice B_s.
//!
//! **Range.** Any. **Error.** None. **Revealed.** Nothing: every mask is uniform and masks nothing else.

use rand::Rng;
use serde::{Deserialize, Serialize};

use crate::deal::dealing::{Dealing, counted};
use crate::operation::prelude::*;
use crate::ops::batch_items;
use crate::ops::mux::if_bit;
use crate::wire::opening;

const STEP: &str = "mux/selections";

/// Shared bits (items, bits) times shared words (items, bits * `words`). The words of a bit stand together.
#[derive(Clone, Copy, Debug)]
pub struct MuxColumns<'w> {
    /// Bits of the ring of every bit's words, each 1..=64. There are at most 64 bits.
    pub widths: &'w [u32],
    /// Words that a bit selects, at least 1.
    pub words: usize,
}

/// Random bits and words, and shares of their products. Unit: an item.
///
/// A party's words of an item: its shares of the bits in one word, then its shares of the bits as numbers, and for
/// every word its share of rho and a share of the bit times rho.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Selection {
    /// Bits of the ring of every bit's words.
    pub widths: Vec<u32>,
    /// Words that a bit selects.
    pub words: usize,
}

impl Selection {
    /// The OTs for `n` items in which one party chooses by its bits. Each OT selects `words` words.
    fn products(&self, n: usize, words: usize) -> waggle_ot::CotShape {
        waggle_ot::CotShape::new(n * self.widths.len(), words, &self.widths).expect("widths of 1..=64")
    }

    /// The OTs in which `role` chooses. In those where the client chooses, the server supplies its bits as one more
    /// word.
    fn chosen_by(&self, role: Role, n: usize) -> waggle_ot::CotShape {
        self.products(n, self.words + usize::from(role == Role::Client))
    }

    fn item_words(&self) -> usize {
        1 + self.widths.len() * (1 + 2 * self.words)
    }

    fn unit<'u>(&self, words: &'u [u64]) -> Unit<'u> {
        let (numbers, products) = words[1..].split_at(self.widths.len());
        Unit { bits: words[0], numbers, products: products.as_chunks().0 }
    }

    /// Widths of the words that are opened for an item.
    fn opened_widths(&self) -> Vec<u32> {
        let words = self.widths.iter().flat_map(|&width| std::iter::repeat_n(width, self.words));
        std::iter::repeat_n(1, self.widths.len()).chain(words).collect()
    }
}

#[derive(Clone, Copy)]
struct Unit<'u> {
    bits: u64,
    numbers: &'u [u64],
    /// For every word, this party's share of rho and its share of the bit times rho.
    products: &'u [[u64; 2]],
}

impl<'u> Unit<'u> {
    /// This party's parts of the masks of all bits, then of all words.
    fn masks(self) -> impl Iterator<Item = u64> + use<'u> {
        let bits = (0..self.numbers.len()).map(move |i| self.bits >> i & 1);
        bits.chain(self.products.iter().map(|[rho, _]| *rho))
    }
}

impl Correlation for Selection {
    fn dealt_words(&self) -> Option<u64> {
        let Selection { widths, words } = self;
        let fits = widths.iter().all(|width| (1..=64).contains(width)) && widths.len() <= 64;
        let all = counted(&[widths.len(), 2, *words])?.checked_add(1 + widths.len() as u64)?;
        fits.then_some(all)
    }

    fn deal(&self, d: &mut Dealing<'_>, n: usize) -> Result<[Vec<u64>; 2], Error> {
        let columns = self.widths.len();
        let bits = d.draw_both(n, columns as u32);
        // For every column the bit as a number, then its products.
        let widths: Vec<u32> =
            self.widths.iter().flat_map(|width| std::iter::repeat_n(*width, 1 + self.words)).collect();
        let rho = d.draw_both(n * columns * self.words, 64);
        let client = d.draw(Role::Client, n * widths.len(), 64);
        let server = d.give(Role::Server, n * widths.len(), &widths, || {
            let mut out = Vec::with_capacity(client.len());
            for column in 0..n * columns {
                let at = |bits: &[u64]| bits[column / columns] >> (column % columns) & 1;
                let bit = at(&bits[0]) ^ at(&bits[1]);
                let words = column * self.words..(column + 1) * self.words;
                let rho = words.map(|i| rho[0][i].wrapping_add(rho[1][i]));
                out.extend(std::iter::once(1).chain(rho).map(|x| x.wrapping_mul(bit)));
            }
            out.iter().zip(&client).map(|(whole, client)| whole.wrapping_sub(*client)).collect()
        })?;
        let units = |bits: &[u64], rho: &[u64], products: &[u64]| {
            let mut out = Vec::with_capacity(bits.len() * self.item_words());
            let items = rho.chunks_exact(columns * self.words).zip(products.chunks_exact(widths.len()));
            for (bits, (rho, products)) in bits.iter().zip(items) {
                let columns = products.chunks_exact(1 + self.words).zip(&self.widths);
                out.push(*bits);
                out.extend(columns.clone().map(|(column, width)| column[0] & mask(*width)));
                let pairs = columns.zip(rho.chunks_exact(self.words));
                out.extend(pairs.flat_map(|((column, width), rho)| {
                    let words = rho.iter().zip(&column[1..]);
                    words.flat_map(|(rho, product)| [rho & mask(*width), product & mask(*width)])
                }));
            }
            out
        };
        Ok([units(&bits[0], &rho[0], &client), units(&bits[1], &rho[1], &server)])
    }

    fn scope(&self) -> &'static str {
        "selections"
    }

    fn words(&self, _: Role) -> usize {
        self.item_words()
    }

    fn batch(&self, _: &Options) -> usize {
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

    fn make(&self, s: &mut Session, n: usize, _: &mut Pipeline<'_>) -> Result<Vec<u64>, Error> {
        let (count, bits) = (n * self.widths.len(), self.widths.len());
        let (own, others) = (self.chosen_by(s.role(), n), self.chosen_by(s.role().peer(), n));
        s.offline(|s| {
            s.reserve(Role::Server, count)?;
            s.reserve(Role::Client, count)?;
            let sender = s.sender().random(count)?;
            let (choices, receiver) = s.receiver().random(count)?;
            // This party's words of a bit. The server's first word is 1, for the bit itself.
            let ones = usize::from(s.is_server());
            let mut words = Vec::with_capacity(others.values());
            for &width in self.widths.iter().cycle().take(count) {
                words.extend(std::iter::repeat_n(1, ones));
                words.extend((0..self.words).map(|_| s.rng().next_u64() & mask(width)));
            }
            let size = ones + self.words;
            let chosen = || words.chunks_exact(size).zip((0..count).map(|bit| choices.get(bit) as u8));
            let supplied: Vec<u64> = chosen()
                .flat_map(|(words, bit)| words.iter().map(move |x| if_bit(bit, x.wrapping_neg(), *x)))
                .collect();
            let (message, given) = sender.correlate(&others, &supplied)?;
            let theirs = s.channel().exchange(STEP, &message, own.message_bytes())?;
            let taken = receiver.decorrelate(&own, &theirs)?;
            let mut all = chosen().zip(given.chunks_exact(size)).zip(taken.chunks_exact(1 - ones + self.words));
            let mut out = Vec::with_capacity(n * self.item_words());
            for item in 0..n {
                out.push((0..bits).rev().fold(0, |all, bit| all << 1 | choices.get(item * bits + bit)));
                let mut products = Vec::with_capacity(2 * bits * self.words);
                for (&width, (((words, bit), given), taken)) in self.widths.iter().zip(all.by_ref()) {
                    // B_own times this party's words, with its shares from the OTs in which it supplied these words.
                    let kept: Vec<u64> =
                        words.iter().zip(given).map(|(x, given)| if_bit(bit, *x, 0).wrapping_add(*given)).collect();
                    // The product of the server's 1 is in what the server kept, and in what the client took.
                    let ((one, kept), (other, taken)) = (kept.split_at(ones), taken.split_at(1 - ones));
                    out.extend(one.iter().chain(other).map(|one| one & mask(width)));
                    let pairs = words[ones..].iter().zip(kept.iter().zip(taken));
                    products.extend(pairs.flat_map(|(rho, (a, b))| [*rho, a.wrapping_add(*b) & mask(width)]));
                }
                out.extend(products);
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
        Ok(opening::open_cost(n * widths.len(), &widths))
    }

    fn run(
        &self,
        s: &mut Session,
        (bits, x): (&ArrayD<u8>, &ArrayD<u64>),
        correlations: Option<&[u64]>,
    ) -> Result<ArrayD<u64>, Error> {
        let (selection, columns) = (self.selection(), self.widths.len());
        let (own, words) = (flat(bits), flat(x));
        let entries = correlations.unwrap_or_default();
        assert_eq!(entries.len() * columns, own.len() * selection.item_words(), "a correlation for every item");
        let units = || entries.chunks_exact(selection.item_words()).map(|words| selection.unit(words));
        let items = || own.chunks_exact(columns).zip(words.chunks_exact(columns * self.words)).zip(units());
        // Modulo 2 a difference is an exclusive or.
        let masked: Vec<u64> = items()
            .flat_map(|((bits, words), unit)| {
                let plain = bits.iter().map(|bit| u64::from(*bit)).chain(words.iter().copied());
                plain.zip(unit.masks()).map(|(x, mask)| x.wrapping_sub(mask))
            })
            .collect();
        let (widths, masks) = (selection.opened_widths(), units().flat_map(Unit::masks));
        let opened = opening::masked(s, &masked, masks, &widths)?;
        let mut out = Vec::with_capacity(words.len());
        for (((_, words), unit), opened) in items().zip(opened.chunks_exact(widths.len())) {
            let (d, e) = opened.split_at(columns);
            for (i, (width, [_, product])) in self.word_widths().zip(unit.products).enumerate() {
                let column = i / self.words;
                let masked = unit.numbers[column].wrapping_mul(e[i]).wrapping_add(*product);
                out.push(if_bit(d[column] as u8, words[i].wrapping_sub(masked), masked) & mask(width));
            }
        }
        Ok(shaped(x.shape(), out))
    }

    fn reference(&self, _: &mut Reference, (bits, x): (&ArrayD<u8>, &ArrayD<u64>)) -> Result<ArrayD<u64>, Error> {
        let bits = bits.iter().flat_map(|&bit| std::iter::repeat_n(bit, self.words));
        let words = x.iter().zip(bits).zip(self.word_widths().cycle());
        let select = |((&x, bit), width)| if bit == 1 { signed(x, width) as u64 } else { 0 };
        Ok(shaped(x.shape(), words.map(select).collect()))
    }

    fn planned(&self, n: usize) -> Shape {
        Shape(vec![n, self.widths.len() * self.words])
    }
}
