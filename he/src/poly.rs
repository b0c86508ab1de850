//! Polynomials of `Z_q[X] / (X^N + 1)`: arithmetic limb by limb, and their form on the wire.
//!
//! A polynomial has one of three forms: coefficients; *transformed*, which are its values at the roots of `X^N + 1`
//! ([`Params::fwd`]); or a *factor*, a transformed polynomial in the form that the backend multiplies fastest
//! ([`Params::factor`]). Each method says which form it takes.

use crate::error::HeError;
use crate::params::{Limb, Params};
use crate::sampling::{Expander, Label, SEED_BYTES};
use waggle_bits::{Reader, Writer, packed_bytes};
use zeroize::Zeroizing;

/// A polynomial of `Z_q[X] / (X^N + 1)`: N residues per limb, limb after limb.
pub(crate) type Poly = Vec<u64>;

/// Bits of secrets and errors, both of which are at most 21 in absolute value.
pub(crate) const SMALL_BITS: u32 = 5;

impl Limb {
    /// Passes coefficients of at most `bits` bits and a sign to `see`. If they may be no smaller than the prime, they
    /// are first reduced modulo it.
    pub(crate) fn reduced(&self, signed: &[i64], bits: u32, see: impl FnOnce(&[i64])) {
        let p = self.modulus();
        if bits < p.bits() {
            see(signed);
        } else {
            let residues: Zeroizing<Vec<i64>> =
                Zeroizing::new(signed.iter().map(|&s| p.reduce_signed(s) as i64).collect());
            see(&residues);
        }
    }
}

impl Params {
    /// Words of one polynomial.
    pub(crate) fn words(&self) -> usize {
        self.degree() * self.limbs().len()
    }

    /// Passes every limb of x to `see`.
    fn each(&self, x: &mut [u64], mut see: impl FnMut(&Limb, &mut [u64])) {
        self.limbs().iter().zip(x.chunks_exact_mut(self.degree())).for_each(|(l, x)| see(l, x));
    }

    /// Passes every limb of x, with the same limb of y, to `see`.
    fn each_with(&self, x: &mut [u64], y: &[u64], mut see: impl FnMut(&Limb, &mut [u64], &[u64])) {
        let n = self.degree();
        let limbs = self.limbs().iter().zip(x.chunks_exact_mut(n)).zip(y.chunks_exact(n));
        limbs.for_each(|((l, x), y)| see(l, x, y));
    }

    /// Forward transform of every limb.
    pub(crate) fn fwd(&self, poly: &mut [u64]) {
        self.each(poly, |l, x| l.ntt().fwd(x));
    }

    /// Inverse transform of every limb.
    pub(crate) fn inv(&self, poly: &mut [u64]) {
        self.each(poly, |l, x| l.ntt().inv(x));
    }

    /// `poly += signed`, where the coefficients of `signed` are below every prime in absolute value.
    pub(crate) fn add_small(&self, poly: &mut [u64], signed: &[i64]) {
        self.each(poly, |l, x| l.ntt().add_signed(x, signed));
    }

    /// `x = x y` in the transformed domain.
    pub(crate) fn pointwise(&self, x: &mut [u64], y: &[u64]) {
        self.each_with(x, y, |l, x, y| l.ntt().pointwise(x, y));
    }

    /// `x = x 2^exponent`; a negative exponent divides.
    pub(crate) fn shift(&self, x: &mut [u64], exponent: i32) {
        self.each(x, |l, x| {
            let p = l.modulus();
            let power = p.pow(2, u64::from(exponent.unsigned_abs()));
            l.ntt().scale(x, if exponent < 0 { p.inverse(power) } else { power });
        });
    }

    /// `x += y`.
    pub(crate) fn add(&self, x: &mut [u64], y: &[u64]) {
        self.each_with(x, y, |l, x, y| {
            let p = *l.modulus();
            x.iter_mut().zip(y).for_each(|(x, &y)| *x = p.add(*x, y));
        });
    }

    /// `x = y - x`.
    pub(crate) fn sub_from(&self, x: &mut [u64], y: &[u64]) {
        self.each_with(x, y, |l, x, y| {
            let p = *l.modulus();
            x.iter_mut().zip(y).for_each(|(x, &y)| *x = p.sub(y, *x));
        });
    }

    /// Transform of a polynomial with coefficients of at most `bits` bits and a sign.
    pub(crate) fn transform_signed(&self, signed: &[i64], bits: u32) -> Poly {
        let mut poly = vec![0; self.words()];
        self.each(&mut poly, |l, x| {
            if bits < l.modulus().bits() {
                l.ntt().fwd_signed(x, signed);
            } else {
                x.iter_mut().zip(signed).for_each(|(x, &s)| *x = l.modulus().reduce_signed(s));
                l.ntt().fwd(x);
            }
        });
        poly
    }

    /// As [`Self::transform_signed`], but writes the result to `out` as a factor. Coefficients that are not given are
    /// zero. The number of given ones must be a multiple of 64.
    pub(crate) fn factor_signed(&self, signed: &[i64], bits: u32, out: &mut [u64]) {
        self.each(out, |l, x| l.reduced(signed, bits, |signed| l.ntt().fwd_factor(x, signed)));
    }

    /// Turns a transformed polynomial into a factor; see [`crate::NttBackend::factor`].
    pub(crate) fn factor(&self, poly: &mut [u64]) {
        self.each(poly, |l, x| l.ntt().factor(x));
    }

    /// `sum += a_0 b_0 + a_1 b_1 + ...`, where `sum` is transformed and the operands are factors.
    pub(crate) fn dot(&self, sum: &mut [u64], a: &[&[u64]], b: &[&[u64]]) {
        let n = self.degree();
        for (i, (l, sum)) in self.limbs().iter().zip(sum.chunks_exact_mut(n)).enumerate() {
            let a: Vec<&[u64]> = a.iter().map(|x| &x[i * n..(i + 1) * n]).collect();
            let b: Vec<&[u64]> = b.iter().map(|x| &x[i * n..(i + 1) * n]).collect();
            l.ntt().dot(sum, &a, &b);
        }
    }

    /// The public uniform polynomial of a seed. It counts as transformed.
    pub(crate) fn uniform(&self, seed: &[u8; SEED_BYTES], label: Label, index: u64) -> Poly {
        let mut stream = Expander::new(seed, label, index);
        let mut poly = vec![0; self.words()];
        self.each(&mut poly, |l, x| stream.uniform(l.modulus(), x));
        poly
    }

    /// `(x, y) = (x + m y, x - m y)`, where x and y are transformed and m is a factor.
    pub(crate) fn butterfly(&self, x: &mut [u64], y: &mut [u64], m: &[u64]) {
        let n = self.degree();
        let limbs = x.chunks_exact_mut(n).zip(y.chunks_exact_mut(n)).zip(m.chunks_exact(n));
        for (l, ((x, y), m)) in self.limbs().iter().zip(limbs) {
            l.ntt().butterfly(x, y, m);
        }
    }

    /// `x[i] += y[permutation[i]]` in every limb.
    pub(crate) fn add_permuted(&self, x: &mut [u64], y: &[u64], permutation: &[u32]) {
        self.each_with(x, y, |l, x, y| {
            let p = *l.modulus();
            x.iter_mut().zip(permutation).for_each(|(x, &i)| *x = p.add(*x, y[i as usize]));
        });
    }

    /// Appends the coefficients at multiples of `stride`. Each residue takes as many bits as its prime, so these are
    /// [`Self::poly_bytes`] divided by `stride` bytes.
    pub(crate) fn pack(&self, poly: &[u64], stride: usize, out: &mut Vec<u8>) {
        for (l, x) in self.limbs().iter().zip(poly.chunks_exact(self.degree())) {
            let mut writer = Writer::new(&mut *out);
            x.iter().step_by(stride).for_each(|&x| writer.push(x, l.modulus().bits()));
            writer.finish();
        }
    }

    /// Reads what [`Self::pack`] wrote. All other coefficients are zero. Errors: a wrong length, or a residue that is
    /// not below its prime.
    pub(crate) fn unpack(&self, bytes: &[u8], stride: usize, message: &'static str) -> Result<Poly, HeError> {
        HeError::check_length(message, self.poly_bytes() / stride, bytes.len())?;
        let mut poly = vec![0; self.words()];
        let mut rest = bytes;
        for (l, out) in self.limbs().iter().zip(poly.chunks_exact_mut(self.degree())) {
            let p = l.modulus();
            let (limb, tail) = rest.split_at(packed_bytes(self.degree() / stride, &[p.bits()]));
            rest = tail;
            let mut reader = Reader::new(limb);
            for x in out.iter_mut().step_by(stride) {
                *x = reader.take(p.bits());
                if *x >= p.value() {
                    return Err(HeError::Residue { message, modulus: p.value(), got: *x });
                }
            }
            reader.finish(message)?;
        }
        Ok(poly)
    }
}
