//! Piecewise quadratic functions for evaluation by FSS keys.
//!
//! A window's parabola is evaluated at z = low + rho, where low is public and rho = rho_server + rho_client is
//! shared. There it is
//!
//! (c_0 + c_1 low + c_2 low^2) 1 + (c_1 + 2 c_2 low) rho + c_2 rho^2.
//!
//! So the parties share 1, rho and rho^2 at the window, and zeros at the others. Words of 32 bits have no room for
//! rho^2 in full. They hold it in units of 2^shift ([`Square`]), and c_2 counts accordingly.

use waggle_bits::cpu::Family;
use waggle_net::Role;

use crate::kernel::{at_level, family};
use crate::words::mask;

/// Bits that the square of a window's width takes in units of 2^shift. More bits would make c_2 coarser, fewer bits
/// would make squares coarser. For the activations both cost 1e-5 to 2e-5 with this number, a tenth of what is
/// allowed.
const SQUARE_BITS: u32 = 10;

/// Leading bits of the client's rho that the cross product looks at.
const CHOSEN_BITS: u32 = 8;

/// The sharing of rho^2. Each party squares its part of rho, and the leading bits of the client's part choose
/// multiples of the server's part. Each term is rounded to units of 2^shift first, so the ring need not hold the bits
/// below.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Square {
    low_bits: u32,
}

impl Square {
    /// The sharing for parts below 2^`low_bits`.
    pub(crate) fn new(low_bits: u32) -> Self {
        Square { low_bits }
    }

    /// log2 of the unit in which rho^2 is held.
    pub(crate) fn shift(self) -> u32 {
        (2 * self.low_bits).saturating_sub(SQUARE_BITS)
    }

    /// Number of leading bits of the client's part that choose multiples of the server's part.
    pub(crate) fn choices(self) -> u32 {
        self.low_bits.min(CHOSEN_BITS)
    }

    fn dropped(self) -> u32 {
        self.low_bits - self.choices()
    }

    /// The term that a party computes alone: the square of its part. The server adds what the client's dropped bits
    /// would contribute on average.
    pub(crate) fn own(self, role: Role, rho: u64) -> u64 {
        let dropped = match role {
            Role::Server => rho * mask(self.dropped()),
            Role::Client => 0,
        };
        rounded(rho * rho + dropped, self.shift())
    }

    /// The client's choices, the lowest bit first.
    pub(crate) fn chosen(self, rho: u64) -> u64 {
        rho >> self.dropped()
    }

    /// The server's term for the client's choice number `bit`: twice the weight of this bit times the server's part.
    pub(crate) fn product(self, rho: u64, bit: u32) -> u64 {
        rounded(rho << (self.dropped() + bit + 1), self.shift())
    }

    /// The word that the parties share, from the server's and the client's part. It is rho^2 to within a few units.
    pub(crate) fn value(self, [server, client]: [u64; 2]) -> u64 {
        let own = self.own(Role::Server, server) + self.own(Role::Client, client);
        let chosen = (0..self.choices()).filter(|bit| self.chosen(client) >> bit & 1 == 1);
        own + chosen.map(|bit| self.product(server, bit)).sum::<u64>()
    }
}

/// x 2^-shift to the nearest integer.
fn rounded(x: u64, shift: u32) -> u64 {
    (x + (1 << shift >> 1)) >> shift
}

/// Coefficients for every window, with the list of windows repeated once. Each has four lanes: for 1, for rho, for
/// rho^2 and an unused one. The coefficient of a lane is base + slope low + square (low^2 2^-shift) + 2 twist low
/// 2^-shift.
#[derive(Clone, Debug)]
pub(super) struct Parabolas {
    shift: u32,
    base: Vec<u32>,
    slope: Vec<u32>,
    square: Vec<u32>,
    twist: Vec<i32>,
}

/// The public numbers on which coefficients depend.
#[derive(Clone, Copy)]
struct Low {
    low: u32,
    square: u32,
    twice: i32,
    half: i32,
    shift: u32,
}

impl Parabolas {
    /// Fits `f`, which takes a window and a position z in it and returns a value in units of the result. Each window
    /// gets the parabola through three Chebyshev nodes of an interval three windows wide. Lower coefficients are
    /// fitted after the higher ones were rounded.
    pub(super) fn fit(
        index_bits: u32,
        low_bits: u32,
        f: impl Fn(i64, f64) -> f64,
        window: impl Fn(u64) -> i64,
    ) -> Self {
        let shift = Square::new(low_bits).shift();
        let unit = (1u64 << shift) as f64;
        let middle = 1.5 * (1u64 << low_bits) as f64;
        let reach = middle * 0.75f64.sqrt();
        let nodes = [middle - reach, middle, middle + reach];
        let mut out = Parabolas { shift, base: vec![], slope: vec![], square: vec![], twist: vec![] };
        for n in 0..2u64 << index_bits {
            let values = nodes.map(|z| f(window(n), z));
            let curvature = (values[0] - 2.0 * values[1] + values[2]) / (2.0 * reach * reach);
            let c2 = (curvature * unit).round();
            let straight = std::array::from_fn::<f64, 3, _>(|i| values[i] - c2 / unit * nodes[i] * nodes[i]);
            let c1 = ((straight[2] - straight[0]) / (2.0 * reach)).round();
            let level = std::array::from_fn::<f64, 3, _>(|i| straight[i] - c1 * nodes[i]);
            let ends = level.iter().fold([f64::MAX, f64::MIN], |[low, high], &x| [low.min(x), high.max(x)]);
            let c0 = ((ends[0] + ends[1]) / 2.0).round();
            assert!(
                c2.abs() * f64::from(2u32 << low_bits) < f64::from(1u32 << 30),
                "curvature {c2} for {low_bits} bits"
            );
            let [c0, c1, c2] = [c0, c1, c2].map(|c| c as i64 as u32);
            out.base.extend([c0, c1, c2, 0]);
            out.slope.extend([c1, 0, 0, 0]);
            out.square.extend([c2, 0, 0, 0]);
            out.twist.extend([0, c2 as i32, 0, 0]);
        }
        out
    }

    fn low(&self, low: u64) -> Low {
        let half = (1i32 << self.shift) >> 1;
        let square = rounded(low * low, self.shift) as u32;
        Low { low: low as u32, square, twice: 2 * low as i32, half, shift: self.shift }
    }

    /// The coefficients of 1, rho and rho^2 at a window.
    pub(super) fn coefficients(&self, n: usize, low: u64) -> [u32; 3] {
        let low = self.low(low);
        std::array::from_fn(|lane| {
            let at = 4 * n + lane;
            low.coefficient(self.base[at], self.slope[at], self.square[at], self.twist[at])
        })
    }

    /// The value at window `n`, from the public low part, and from the server's and the client's rho, each of
    /// `low_bits` bits.
    pub(super) fn value(&self, n: usize, low: u64, rho: [u64; 2], low_bits: u32) -> u64 {
        let words = [1, rho[0] + rho[1], Square::new(low_bits).value(rho)];
        let terms = self.coefficients(n, low).into_iter().zip(words);
        terms.fold(0, |sum: u64, (c, word)| sum.wrapping_add(u64::from(c).wrapping_mul(word)))
    }

    /// This party's share of the result, from its shares of the payload at every window n - `high`, where `high` is
    /// the opened window.
    pub(super) fn apply(&self, high: usize, low: u64, values: &[u32]) -> u64 {
        self.apply_on(family(), high, self.low(low), values).into()
    }

    fn apply_on(&self, family: Family, high: usize, low: Low, values: &[u32]) -> u32 {
        let lanes = 4 * high..4 * high + values.len();
        let (base, slope) = (&self.base[lanes.clone()], &self.slope[lanes.clone()]);
        let (square, twist) = (&self.square[lanes.clone()], &self.twist[lanes]);
        at_level!(family, |base: &[u32],
                           slope: &[u32],
                           square: &[u32],
                           twist: &[i32],
                           low: Low,
                           values: &[u32]|
         -> u32 {
            let coefficients = base.iter().zip(slope).zip(square.iter().zip(twist));
            coefficients.zip(values).fold(0u32, |sum, (((&base, &slope), (&square, &twist)), &value)| {
                sum.wrapping_add(low.coefficient(base, slope, square, twist).wrapping_mul(value))
            })
        })
    }
}

impl Low {
    #[inline(always)]
    fn coefficient(&self, base: u32, slope: u32, square: u32, twist: i32) -> u32 {
        let level = base.wrapping_add(slope.wrapping_mul(self.low)).wrapping_add(square.wrapping_mul(self.square));
        level.wrapping_add(((twist * self.twice + self.half) >> self.shift) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::families;

    #[test]
    fn squares_are_off_by_a_few_units() {
        for low_bits in [1, 5, 8, 11, 16] {
            let square = Square::new(low_bits);
            let unit = (square.shift() as f64).exp2();
            let end = mask(low_bits);
            for server in [0, 1, end / 3, end / 2, end] {
                for client in (0..=end).step_by(1 + end as usize / 99).chain([end]) {
                    let exact = ((server + client) * (server + client)) as f64 / unit;
                    let error = square.value([server, client]) as f64 - exact;
                    // Half a unit for every rounding, and half the dropped bits times twice the server's part.
                    let dropped = (mask(square.dropped()) * server) as f64 / unit;
                    assert!(error.abs() <= 0.5 * f64::from(square.choices() + 2) + dropped, "{server} {client}");
                    assert!(error.abs() < 10.0, "{low_bits} bits: {server} {client} is off by {error}");
                }
            }
        }
    }

    /// All kernels agree with the coefficients' products one by one.
    #[test]
    fn every_kernel_gives_the_sum_of_products() {
        let f = |n: i64, z: f64| 1e8 * ((n as f64 + z / 256.0) / 5.0).sin();
        let parabolas = Parabolas::fit(5, 8, f, |n| (n & 31) as i64 - 2);
        let values: Vec<u32> = (0..4 * 32u32).map(|i| (i + 1).wrapping_mul(0x9E37_79B9).rotate_left(9)).collect();
        for (high, low) in [(0, 0), (31, 255), (7, 100)] {
            let want = (0..32).fold(0u32, |sum, n| {
                let coefficients = parabolas.coefficients(high + n, low);
                let terms = coefficients.iter().zip(&values[4 * n..]);
                terms.fold(sum, |sum, (c, v)| sum.wrapping_add(c.wrapping_mul(*v)))
            });
            assert_eq!(parabolas.apply(high, low, &values), u64::from(want));
            for family in families() {
                assert_eq!(parabolas.apply_on(family, high, parabolas.low(low), &values), want, "{family:?}");
            }
        }
    }
}
