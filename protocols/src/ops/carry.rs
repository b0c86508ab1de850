//! Comparison of words of any width by products of bits that a helper deals.
//!
//! **Functionality.** Shares of x modulo 2^w -> XOR shares of the bits [x >= c] for signed x and public thresholds c.
//!
//! **Source.** The sign of x - c follows from a carry `[a < b]` of two numbers of l = w - 1 bits, as in
//! [`compare`](super::compare). The server has a and the client b. Both cut their numbers into digits of three bits.
//! The bits `[a_i < b_i]` and `[a_i = b_i]` of a digit are inner products of seven bits of one party with seven bits
//! of the other:
//!
//! ```text
//! u_v = [b_i = v],  [a_i < b_i] = sum_v [a_i < v] u_v,  [a_i = b_i] = [a_i = 0] + sum_v ([a_i = v] + [a_i = 0]) u_v,
//!                                                                                    v = 1..7, modulo 2
//! dealt:   masks of the bits of each party, and XOR shares of the inner products of the masks
//! run:     each sends its bits under their masks; then (less, equal) of neighbours is joined until one is left:
//!          less = less_high + equal_high less_low,  equal = equal_high equal_low
//!          by Beaver's triples of bits (GMW, STOC 1987), in one exchange a level
//! ```
//!
//! The least digit, and every group of digits that contains it, needs no "equal". A word holds one bit of each of 64
//! comparisons.
//!
//! **Exchanges.** 1 + ceil(log2(ceil(l / 3))). **Bytes.** A comparison of 64 bits takes 68 between the parties and 10
//! from the helper. Two parties without a helper compare directly ([`compare`](super::compare)), because making these
//! words takes more OTs.
//!
//! **Range.** Any x with x - c a signed w-bit value; 2 <= w <= 64. **Error.** None.
//!
//! **What each party sees.** While preparing: as with a [helper](crate::deal), or as in [`cross`]. Online: bits under
//! masks that are uniform and serve once. **Revealed.** Nothing.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use waggle_ot::{Bits, CotShape};

use super::fss::open_bits;
use crate::deal::dealing::{Dealing, woven};
use crate::operation::prelude::*;
use crate::ops::batch_items;
use crate::ops::fss::key_words;
use crate::wire::beaver::random;
use crate::wire::{cross, opening};

/// Number of comparisons of which a word holds one bit each.
const LANES: usize = 64;
/// Bits of a digit.
const DIGIT: usize = 3;
/// Values of a digit other than 0.
const VALUES: usize = (1 << DIGIT) - 1;
const DIGITS: &str = "compare/digits";
/// The part of the operation in which digits are opened, for an audit.
const PART: &str = "/digits";

/// Masks, and shares of their products, for carries `[a < b]` of numbers of `bits` bits. Unit: 64 comparisons. The
/// words of a unit are this party's masks of digits, its masks of pairs, level by level, and its shares of the
/// products. Products of digits come before products of pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Carry {
    /// Bits of the numbers a and b, 1..=63.
    pub bits: u32,
}

impl Carry {
    /// Number of units that `comparisons` comparisons take.
    pub(crate) fn units(comparisons: usize) -> usize {
        comparisons.div_ceil(LANES)
    }

    /// Whether a helper deals this kind. It does not if a field is out of range, which can happen for a kind that a
    /// peer sent.
    pub(crate) fn is_served(&self) -> bool {
        (1..=63).contains(&self.bits)
    }

    fn digits(self) -> usize {
        (self.bits as usize).div_ceil(DIGIT)
    }

    /// How many bits of the digits are shared: "less" of the least digit, and "less" and "equal" of each other digit.
    fn functions(self) -> usize {
        2 * self.digits() - 1
    }

    /// The number of pairs that each level joins.
    fn levels(self) -> impl Iterator<Item = usize> {
        let mut items = self.digits();
        std::iter::from_fn(move || {
            let pairs = items / 2;
            items -= pairs;
            (pairs > 0).then_some(pairs)
        })
    }

    fn digit_masks(self, role: Role) -> usize {
        VALUES * if role == Role::Client { self.digits() } else { self.functions() }
    }

    fn pair_masks(self) -> usize {
        self.levels().map(pair_masks).sum()
    }

    fn products(self) -> usize {
        self.functions() + self.levels().map(pair_products).sum::<usize>()
    }

    /// The pairs of masks that are multiplied to join pairs of digits, as two indices for each product.
    fn joins(self) -> impl Iterator<Item = (usize, usize)> {
        let mut start = 0;
        self.levels().flat_map(move |pairs| {
            let first = start;
            start += pair_masks(pairs);
            factors(pairs).map(move |(i, j)| (first + i, first + j))
        })
    }

    /// OTs by which two parties make a unit: first the number for products of digits, then the number for products of
    /// pairs.
    fn ots(self) -> [usize; 2] {
        [self.functions() * VALUES, self.products() - self.functions()].map(|products| LANES * products)
    }
}

/// Number of masks for `pairs` pairs. A pair has three masks: of "equal" of its higher digit, and of "less" and
/// "equal" of its lower digit. The least pair lacks the last.
fn pair_masks(pairs: usize) -> usize {
    3 * pairs - 1
}

/// Number of products for `pairs` pairs. A pair has two, the "equal" of its higher digit times the "less" and times
/// the "equal" of its lower digit. The least pair lacks the second.
fn pair_products(pairs: usize) -> usize {
    2 * pairs - 1
}

/// The pairs of masks that a level multiplies, as two indices for each product.
fn factors(pairs: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..pairs).flat_map(|pair| {
        let first = (3 * pair).saturating_sub(1);
        [Some((first, first + 1)), (pair > 0).then_some((first, first + 2))].into_iter().flatten()
    })
}

/// The words in `client` of the digit on which the shared bit number `f` depends.
fn of_digit(client: &[u64], f: usize) -> &[u64] {
    &client[VALUES * f.div_ceil(2)..][..VALUES]
}

/// For each bit position, the inner product modulo 2 of the first seven words of `a` with the first seven words of
/// `b`.
fn inner(a: &[u64], b: &[u64]) -> u64 {
    a.iter().zip(b).take(VALUES).fold(0, |sum, (a, b)| sum ^ a & b)
}

impl Correlation for Carry {
    fn dealt_words(&self) -> Option<u64> {
        key_words(self, self.is_served())
    }

    fn deal(&self, d: &mut Dealing<'_>, units: usize) -> Result<[Vec<u64>; 2], Error> {
        let [ours, theirs] = [Role::Client, Role::Server].map(|role| self.digit_masks(role));
        let (pairs, products) = (self.pair_masks(), self.products());
        let [client, server] =
            [(Role::Client, ours), (Role::Server, theirs)].map(|(role, masks)| d.draw(role, units * masks, 64));
        let [client_pairs, server_pairs] = d.draw_both(units * pairs, 64);
        let shares = d.draw(Role::Client, units * products, 64);
        let rest = d.give(Role::Server, units * products, &[64], || {
            let mut rest = shares.clone();
            let units = client.chunks_exact(ours).zip(server.chunks_exact(theirs)).enumerate();
            for ((unit, (client, server)), rest) in units.zip(rest.chunks_exact_mut(products)) {
                let masks = unit * pairs..(unit + 1) * pairs;
                let (a, b) = (&client_pairs[masks.clone()], &server_pairs[masks]);
                let sums: Vec<u64> = a.iter().zip(b).map(|(a, b)| a ^ b).collect();
                let of_pairs = self.joins().map(|(i, j)| sums[i] & sums[j]);
                let of_digits = (0..self.functions()).map(|f| inner(&server[VALUES * f..], of_digit(client, f)));
                rest.iter_mut().zip(of_digits.chain(of_pairs)).for_each(|(rest, product)| *rest ^= product);
            }
            rest
        })?;
        let unit = |digits: &[u64], count, of_pairs: &[u64], shares: &[u64]| {
            woven(units, &[(digits, count), (of_pairs, pairs), (shares, products)])
        };
        Ok([unit(&client, ours, &client_pairs, &shares), unit(&server, theirs, &server_pairs, &rest)])
    }

    fn scope(&self) -> &'static str {
        "comparisons"
    }

    fn words(&self, role: Role) -> usize {
        self.digit_masks(role) + self.pair_masks() + self.products()
    }

    fn batch(&self, _: &Options) -> usize {
        batch_items(self.ots().iter().sum())
    }

    fn cost(&self, _: &mut Plans, units: usize) -> Result<Cost, Error> {
        if units == 0 {
            return Ok(Cost::free());
        }
        let [digits, pairs] = self.ots().map(|ots| bit_products(units * ots));
        let joins = if pairs.ots() > 0 { cross::two_way_cost(&pairs) } else { Cost::free() };
        Ok(cross::one_way_cost(&digits).then(joins).offline())
    }

    fn make(&self, s: &mut Session, units: usize, _: &mut Pipeline<'_>) -> Result<Vec<u64>, Error> {
        let (role, count, of_pairs) = (s.role(), self.digit_masks(s.role()), self.pair_masks());
        let (digits, pairs) = (random(s, units * count, 64), random(s, units * of_pairs, 64));
        let [digit_ots, pair_ots] = self.ots().map(|ots| bit_products(units * ots));
        let inputs: Vec<u64> = match role {
            Role::Server => digits.clone(),
            Role::Client => {
                let functions = |unit| (0..self.functions()).flat_map(move |f| of_digit(unit, f));
                digits.chunks_exact(count).flat_map(functions).copied().collect()
            }
        };
        let chosen = || Bits::from_fn(digit_ots.ots(), |i| inputs[i / LANES] >> (i % LANES) & 1 == 1);
        let shares = packed(&cross::one_way(s, &digit_ots, chosen, || unpacked(&inputs))?);
        let mut products: Vec<Vec<u64>> = shares
            .chunks_exact(VALUES * self.functions())
            .map(|unit| unit.chunks_exact(VALUES).map(|terms| terms.iter().fold(0, |sum, term| sum ^ term)).collect())
            .collect();
        if pair_ots.ots() > 0 {
            let factors = pairs.chunks_exact(of_pairs).flat_map(|unit| self.joins().map(|(i, j)| (unit[i], unit[j])));
            let (a, b): (Vec<u64>, Vec<u64>) = factors.unzip();
            let chosen = Bits::from_fn(pair_ots.ots(), |i| a[i / LANES] >> (i % LANES) & 1 == 1);
            let crossed = packed(&cross::two_way(s, &pair_ots, &chosen, &unpacked(&b))?);
            let shares: Vec<u64> =
                crossed.iter().zip(a.iter().zip(&b)).map(|(share, (a, b))| share ^ a & b).collect();
            let ends = self.products() - self.functions();
            products.iter_mut().zip(shares.chunks_exact(ends)).for_each(|(unit, shares)| unit.extend(shares));
        }
        Ok(woven(units, &[(&digits, count), (&pairs, of_pairs), (&products.concat(), self.products())]))
    }
}

fn bit_products(ots: usize) -> CotShape {
    CotShape::new(ots, 1, &[1]).expect("a width of 1")
}

/// The bits of `words`, one a word.
fn unpacked(words: &[u64]) -> Vec<u64> {
    words.iter().flat_map(|word| (0..LANES).map(move |lane| word >> lane & 1)).collect()
}

/// Words made of the lowest bits of `bits`.
fn packed(bits: &[u64]) -> Vec<u64> {
    bits.chunks_exact(LANES)
        .map(|bits| (0..).zip(bits).fold(0, |word, (lane, bit)| word | (bit & 1) << lane))
        .collect()
}

/// XOR shares of the carries `[a < b]` of `kind`. `own` holds this party's numbers: a at the server, b at the client.
pub(crate) fn run(s: &mut Session, kind: Carry, correlations: &[u64], own: &[u64]) -> Result<Vec<u8>, Error> {
    if own.is_empty() {
        return Ok(Vec::new());
    }
    let (role, size, lanes) = (s.role(), kind.words(s.role()), lanes(own.len()));
    let units = || correlations.chunks_exact(size);
    let [mine, others] = [role, role.peer()].map(|role| kind.digit_masks(role));
    opening::spend(s, PART, units().flat_map(|unit| &unit[..mine]).copied(), &[64])?;
    let bits: Vec<u64> = own.par_chunks(LANES).flat_map_iter(|own| kind.inputs(role, own)).collect();
    let masks = units().flat_map(|unit| &unit[..mine]);
    let masked: Vec<u64> = bits.iter().zip(masks).map(|(bits, mask)| bits ^ mask).collect();
    let count = units().len() * others;
    let message = s.channel().exchange(
        DIGITS,
        &waggle_bits::pack(&masked, &[lanes]),
        waggle_bits::packed_bytes(count, &[lanes]),
    )?;
    let theirs = waggle_bits::unpack(DIGITS, &message, count, &[lanes])?;
    let [client, server] = if role == Role::Client { [&masked, &theirs] } else { [&theirs, &masked] };
    opening::note(s, PART, 0, client, &[lanes]);
    opening::note(s, PART, client.len(), server, &[lanes]);

    let start = mine + kind.pair_masks();
    let digits = |((unit, bits), theirs): ((&[u64], &[u64]), &[u64])| {
        let share = |f: usize| {
            let opened = match role {
                Role::Client => inner(&theirs[VALUES * f..], of_digit(unit, f)),
                Role::Server => inner(&bits[VALUES * f..], of_digit(theirs, f)),
            };
            // [a = 0] is [a < 1], the first bit of the "less" before it.
            let zero = if role == Role::Server && f > 0 && f.is_multiple_of(2) { bits[VALUES * (f - 1)] } else { 0 };
            unit[start + f] ^ opened ^ zero
        };
        let share = &share;
        let equal = move |digit: usize| if digit > 0 { share(2 * digit) } else { 0 };
        (0..kind.digits()).map(move |digit| [share((2 * digit).saturating_sub(1)), equal(digit)]).collect::<Vec<_>>()
    };
    let mut items: Vec<Vec<[u64; 2]>> =
        units().zip(bits.chunks_exact(mine)).zip(theirs.chunks_exact(others)).map(digits).collect();
    let (mut masks, mut products) = (mine, start + kind.functions());
    for pairs in kind.levels() {
        let (all, ends) = (pair_masks(pairs), pair_products(pairs));
        let pads: Vec<u64> = units().flat_map(|unit| &unit[masks..masks + all]).copied().collect();
        let bits: Vec<u64> = items.iter().flat_map(|items| to_join(items)).collect();
        let opened = open_bits(s, &bits, &pads, lanes)?;
        let blocks = items.iter_mut().zip(units()).zip(opened.chunks_exact(all).zip(pads.chunks_exact(all)));
        for ((items, unit), (opened, pads)) in blocks {
            let both = |i: usize, j: usize| if role == Role::Server { opened[i] & opened[j] } else { 0 };
            let crossed = |(i, j)| both(i, j) ^ opened[i] & pads[j] ^ opened[j] & pads[i];
            let shares: Vec<u64> =
                factors(pairs).map(crossed).zip(&unit[products..]).map(|(crossed, share)| crossed ^ share).collect();
            *items = joined(items, &shares);
        }
        (masks, products) = (masks + all, products + ends);
    }
    let carry = |at: usize| (items[at / LANES][0][0] >> (at % LANES) & 1) as u8;
    Ok((0..own.len()).map(carry).collect())
}

/// The number of bits of a word that are in use, if there are `comparisons` comparisons in all.
fn lanes(comparisons: usize) -> u32 {
    comparisons.min(LANES) as u32
}

impl Carry {
    /// This party's bits for the digits of up to 64 numbers, in the order of its masks.
    fn inputs(self, role: Role, own: &[u64]) -> Vec<u64> {
        let plane = |bit: usize| (own.iter().zip(0..)).fold(0, |plane, (own, lane)| plane | (own >> bit & 1) << lane);
        let mut out = Vec::with_capacity(self.digit_masks(role));
        for digit in 0..self.digits() {
            let planes = [0, 1, 2].map(|bit| plane(DIGIT * digit + bit));
            let is = |value: usize| {
                (planes.iter().enumerate())
                    .fold(u64::MAX, |is, (bit, plane)| is & if value >> bit & 1 == 1 { *plane } else { !plane })
            };
            match role {
                Role::Client => out.extend((1..=VALUES).map(is)),
                Role::Server => {
                    let mut less = 0;
                    out.extend((0..VALUES).map(|value| {
                        less |= is(value);
                        less
                    }));
                    if digit > 0 {
                        out.extend((1..=VALUES).map(|value| is(value) ^ is(0)));
                    }
                }
            }
        }
        out
    }
}

/// The factors by which neighbours among `items` are joined in pairs, in the order of their masks. An item is (less,
/// equal).
fn to_join(items: &[[u64; 2]]) -> Vec<u64> {
    let pairs = items.as_chunks::<2>().0.iter().enumerate();
    pairs
        .flat_map(|(pair, [low, high])| [Some(high[1]), Some(low[0]), (pair > 0).then_some(low[1])])
        .flatten()
        .collect()
}

/// The items of the next level: the pairs of `items` joined by `products`, and the last item if it has no partner.
fn joined(items: &[[u64; 2]], products: &[u64]) -> Vec<[u64; 2]> {
    let (pairs, rest) = items.as_chunks::<2>();
    let pair = |(pair, [_, high]): (usize, &[[u64; 2]; 2])| {
        let first = (2 * pair).saturating_sub(1);
        [high[0] ^ products[first], if pair > 0 { products[first + 1] } else { 0 }]
    };
    pairs.iter().enumerate().map(pair).chain(rest.iter().copied()).collect()
}

/// The cost of [`run`] of `comparisons` comparisons.
pub(crate) fn run_cost(kind: Carry, comparisons: usize) -> Cost {
    if comparisons == 0 {
        return Cost::free();
    }
    let (units, lanes) = (Carry::units(comparisons), lanes(comparisons));
    let bytes = |words: usize| waggle_bits::packed_bytes(units * words, &[lanes]);
    let [client, server] = [Role::Client, Role::Server].map(|role| kind.digit_masks(role));
    let digits = Cost::free()
        .work_at_both(Kernel::Digit, comparisons * kind.digits())
        .work_at_both(Kernel::OpenWord, units * (client + server))
        .exchange(bytes(client), bytes(server));
    kind.levels().map(pair_masks).fold(digits, |cost, words| {
        cost.work_at_both(Kernel::OpenWord, units * words).exchange(bytes(words), bytes(words))
    })
}
