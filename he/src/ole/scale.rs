//! Scaling between plaintext residues modulo one prime t and `Z_q`.

use crate::modulus::{Modulus, Shoup};
use crate::params::Params;
use crate::poly::Poly;
use crate::sampling::Expander;

/// The tables for scaling between `Z_t` and `Z_q`.
pub(super) struct PrimeScale<'a> {
    pub(super) params: &'a Params,
    pub(super) t: Modulus,
    q_mod_t: u64,
    /// For each limb, `t^-1 mod p` for its prime p.
    inverses: Vec<Shoup>,
}

impl<'a> PrimeScale<'a> {
    pub(super) fn new(params: &'a Params, t: &Modulus) -> Self {
        let q_mod_t = params.limbs().iter().fold(1, |acc, l| t.mul(acc, l.modulus().value()));
        let inverse = |p: &Modulus| p.shoup(p.inverse(p.reduce(t.value())));
        let inverses = params.limbs().iter().map(|l| inverse(l.modulus())).collect();
        Self { params, t: *t, q_mod_t, inverses }
    }

    /// Residues of `round(q m / t)` for the coefficients `m < t` of `message`. They are put at the multiples of
    /// `stride`.
    pub(super) fn up(&self, message: &[u64], stride: usize) -> Poly {
        let half = self.t.value() / 2;
        let mut poly = vec![0; self.params.words()];
        for (i, &m) in message.iter().enumerate() {
            // (q m + h - d) / t with d = (q m + h) mod t is the rounding; modulo p, a factor of q, it is (h - d) / t.
            let d = self.t.add(self.t.mul(self.q_mod_t, m), half);
            for (l, (limb, &inverse)) in self.params.limbs().iter().zip(&self.inverses).enumerate() {
                let p = limb.modulus();
                poly[l * self.params.degree() + i * stride] =
                    p.mul_shoup(p.reduce_signed(half as i64 - d as i64), inverse);
            }
        }
        poly
    }

    /// `t x` for a fraction x of the torus: the nearest integer modulo t, then the distance from it plus 1/4, as a
    /// fraction of `2^64`.
    #[inline(always)]
    pub(super) fn down(&self, x: u128) -> (u64, u64) {
        let t = u128::from(self.t.value());
        let product = (x >> 64) * t + (((x & u128::from(u64::MAX)) * t) >> 64);
        let rounded = ((product + (1 << 63)) >> 64) as u64;
        (self.t.correct(rounded), (product as u64).wrapping_add(1 << 62))
    }

    /// Draws a mask that is uniform over the elements r of `Z_q` with `t r / q` within 1/4 of an integer, and returns
    /// that integer modulo t. Half of all draws are kept. The loop branches only on draws that are thrown away.
    pub(super) fn mask(&self, stream: &mut Expander, mask: &mut [u64]) -> u64 {
        loop {
            self.params.limbs().iter().zip(mask.iter_mut()).for_each(|(l, r)| *r = stream.residue(l.modulus()));
            let (integer, distance) = self.down(self.params.torus(mask.iter().copied()));
            if distance < 1 << 63 {
                return integer;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::Label;
    use crate::set::ParamSet;

    /// Plaintext primes of several sizes; none divides q.
    const PLAINTEXT: [u64; 3] = [65537, 0x3ffffff70001, 0x3fffffa8001];

    #[test]
    fn down_inverts_up() {
        for (set, t) in [ParamSet::FullExact, ParamSet::Wide].into_iter().flat_map(|s| PLAINTEXT.map(|t| (s, t))) {
            let params = set.params();
            let scale = PrimeScale::new(params, &Modulus::new(t));
            let mut message: Vec<u64> = (0..1024u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % t).collect();
            message[..5].copy_from_slice(&[0, 1, t - 1, t / 2, t / 2 + 1]);
            let poly = scale.up(&message, 8);
            for (i, coefficient) in (0..params.degree()).map(|i| (i, poly.iter().skip(i).step_by(params.degree()))) {
                let (integer, distance) = scale.down(params.torus(coefficient.copied()));
                assert_eq!(integer, if i % 8 == 0 { message[i / 8] } else { 0 });
                // Lifted plaintexts lie at integers, so the distance is within t / q of 1/4.
                assert!(distance.abs_diff(1 << 62) < 1 << 10);
            }
        }
    }

    #[test]
    fn masks_are_spread_over_integers_and_over_the_half_unit_around_them() {
        let params = ParamSet::FullExact.params();
        for t in PLAINTEXT {
            let scale = PrimeScale::new(params, &Modulus::new(t));
            let mut stream = Expander::new(&[1; 32], Label::Response, t);
            let mut mask = vec![0; 3];
            let (mut integers, mut distances) = ([0u32; 16], [0u32; 16]);
            const DRAWS: u32 = 1 << 16;
            for _ in 0..DRAWS {
                let integer = scale.mask(&mut stream, &mut mask);
                let (again, distance) = scale.down(params.torus(mask.iter().copied()));
                assert_eq!(integer, again);
                assert!(distance < 1 << 63);
                integers[(u128::from(integer) * 16 / u128::from(t)) as usize] += 1;
                distances[(distance >> 59) as usize] += 1;
            }
            // Expected 4096 with deviation 62.
            let even = |counts: &[u32]| counts.iter().all(|&c| c.abs_diff(DRAWS / 16) < 6 * 62);
            assert!(even(&integers) && even(&distances), "{integers:?} {distances:?}");
        }
    }
}
