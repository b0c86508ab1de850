//! The weight holder's side: products in the transformed domain, masks, responses.

use super::{MatmulPlan, MatmulShape, Weights, check_entries, split_upload, write_switched};
use crate::bits::BitWriter;
use crate::error::HeError;
use crate::keys::{Poly, PublicKey};
use crate::params::{Params, round_torus};
use crate::sampling::{Expander, Label, Seed, fresh_seed};
use rand::CryptoRng;
use rayon::prelude::*;
use zeroize::Zeroize;

/// A transformed ciphertext.
struct Ciphertext {
    c0: Poly,
    c1: Poly,
}

impl Weights<'_> {
    fn len(&self) -> usize {
        match self {
            Self::I16(w) => w.len(),
            Self::I32(w) => w.len(),
            Self::U64(w) => w.len(),
        }
    }

    /// Writes entries `start..start + count` as signed integers to `out[0], out[stride], ...`.
    /// Values are read modulo `2^width`.
    #[inline]
    fn copy(&self, width: u32, start: usize, count: usize, out: &mut [i64], stride: usize) {
        let end = start + count;
        let slots = out.iter_mut().step_by(stride);
        match self {
            Self::I16(w) => slots.zip(&w[start..end]).for_each(|(o, &w)| *o = centred(i64::from(w) as u64, width)),
            Self::I32(w) => slots.zip(&w[start..end]).for_each(|(o, &w)| *o = centred(i64::from(w) as u64, width)),
            Self::U64(w) => slots.zip(&w[start..end]).for_each(|(o, &w)| *o = centred(w, width)),
        }
    }

    /// Fails if an entry reaches `2^bits` in absolute value. Looks at all of them, whatever they are.
    fn check_range(&self, width: u32, bits: u32) -> Result<(), HeError> {
        if bits == width {
            // Ring elements of full width are in range by being read as centred.
            return Ok(());
        }
        let high = |acc: u64, w: i64| acc | w.unsigned_abs() >> bits;
        let excess = match self {
            Self::I16(w) => w.iter().fold(0, |acc, &w| high(acc, i64::from(w))),
            Self::I32(w) => w.iter().fold(0, |acc, &w| high(acc, i64::from(w))),
            Self::U64(w) => w.iter().fold(0, |acc, &w| high(acc, centred(w, width))),
        };
        if excess == 0 { Ok(()) } else { Err(HeError::WeightRange { weight_bits: bits }) }
    }
}

/// `w mod 2^width` as a number of `[-2^(width-1), 2^(width-1))`.
#[inline(always)]
pub(crate) fn centred(w: u64, width: u32) -> i64 {
    ((w << (64 - width)) as i64) >> (64 - width)
}

impl MatmulPlan {
    /// Multiplies the encrypted share by the weights and splits the product.
    ///
    /// `x_own` is this party's share of X (`batch * m * k`); given, it is added under encryption, so that the product is
    /// that of the sum of both shares. Returns the message for the key holder and this party's share of the product
    /// (`batch * m * n`). Every response carries a fresh mask and a fresh encryption of zero.
    pub fn evaluate(
        &self,
        pk: &PublicKey,
        upload: &[u8],
        x_own: Option<&[u64]>,
        weights: Weights<'_>,
        rng: &mut (impl CryptoRng + ?Sized),
    ) -> Result<(Vec<u8>, Vec<u64>), HeError> {
        let params = pk.check(self.set())?;
        let MatmulShape { batch, k, n, .. } = self.spec.shape;
        check_entries("weights", weights.len(), batch * k * n)?;
        weights.check_range(self.spec.width, self.spec.weight_bits)?;
        if let Some(x) = x_own {
            self.check_x("own share of the encrypted operand", x)?;
        }
        let uploads = self.parse(params, upload, x_own)?;
        let seed = fresh_seed(rng);
        let parts: Vec<Vec<(Vec<u8>, Vec<u64>)>> = (0..self.layout.column_tiles())
            .into_par_iter()
            .map(|tile| self.column_tile(params, pk, &uploads, weights, tile, &seed))
            .collect();
        let (messages, shares): (Vec<_>, Vec<_>) = parts.into_iter().flatten().unzip();
        let download = messages.concat();
        debug_assert_eq!(download.len(), self.download_bytes());
        Ok((download, self.scatter(&shares)))
    }

    /// Reads the upload and adds the own share under encryption.
    fn parse(&self, params: &Params, upload: &[u8], x_own: Option<&[u64]>) -> Result<Vec<Ciphertext>, HeError> {
        const MESSAGE: &str = "matmul upload";
        let (seed, bodies) = split_upload(upload, self.upload_bytes(), MESSAGE)?;
        let lift = params.lift(self.spec.width);
        bodies
            .par_chunks_exact(params.poly_bytes())
            .enumerate()
            .map(|(index, body)| {
                let mut c0 = params.unpack(body, MESSAGE)?;
                if let Some(x) = x_own {
                    let mut own = self.encode_x(params, &lift, x, index);
                    params.fwd(&mut own);
                    params.add(&mut c0, &own);
                    own.zeroize();
                }
                Ok(Ciphertext { c0, c1: params.uniform(&seed, Label::Upload, index as u64) })
            })
            .collect()
    }

    /// All responses (one per row tile) of one column tile. Each weight polynomial is made once and dropped.
    fn column_tile(
        &self,
        params: &Params,
        pk: &PublicKey,
        uploads: &[Ciphertext],
        weights: Weights<'_>,
        column_tile: usize,
        seed: &Seed,
    ) -> Vec<(Vec<u8>, Vec<u64>)> {
        let (layout, words) = (&self.layout, params.acc_words());
        let (start, end) = layout.column_range(column_tile);
        let per_group = layout.tile.group * self.spec.shape.n;
        let mut sums = vec![0; layout.row_tiles() * 2 * words];
        let mut signed = vec![0i64; params.degree()];
        for group in start / per_group..=(end - 1) / per_group {
            let columns = (start.max(group * per_group), end.min((group + 1) * per_group));
            for inner_tile in 0..layout.inner_tiles() {
                signed.fill(0);
                self.encode_w(weights, start, columns, inner_tile, &mut signed);
                let w = params.transform_signed(&signed, self.spec.weight_bits);
                for (row_tile, sum) in sums.chunks_exact_mut(2 * words).enumerate() {
                    let x = &uploads[layout.upload_index(group, row_tile, inner_tile)];
                    let (sum0, sum1) = sum.split_at_mut(words);
                    params.mul_acc(sum0, &x.c0, &w);
                    params.mul_acc(sum1, &x.c1, &w);
                }
            }
        }
        signed.zeroize();
        let respond = |(row_tile, sum): (usize, &[u64])| {
            let response = column_tile * layout.row_tiles() + row_tile;
            let (mut c0, mut c1) = (params.reduce_acc(&sum[..words]), params.reduce_acc(&sum[words..]));
            let mut stream = Expander::new(seed, Label::Response, response as u64);
            pk.rerandomize(&mut c0, &mut c1, &mut stream);
            let mut message = Vec::with_capacity(layout.response_bytes(response));
            write_switched(params, &c1, layout.c1_bits, &mut message);
            let shares = self.mask(params, &c0, response, &mut stream, &mut message);
            (message, shares)
        };
        let responses = sums.par_chunks_exact(2 * words).enumerate().map(respond).collect();
        sums.zeroize();
        responses
    }

    /// The polynomial of the weights in global columns `columns` of the tile that begins at column `start`.
    fn encode_w(
        &self,
        weights: Weights<'_>,
        start: usize,
        columns: (usize, usize),
        inner_tile: usize,
        out: &mut [i64],
    ) {
        let (shape, inner) = (self.spec.shape, self.layout.tile.inner);
        let (j0, j1) = self.layout.inner_range(inner_tile);
        let mut column = columns.0;
        while column < columns.1 {
            // A run of columns of one item.
            let (item, c) = (column / shape.n, column % shape.n);
            let run = (shape.n - c).min(columns.1 - column);
            for j in j0..j1 {
                let first = (item * shape.k + j) * shape.n + c;
                let out = &mut out[(column - start) * inner + (j - j0)..];
                weights.copy(self.spec.width, first, run, out, inner);
            }
            column += run;
        }
    }

    /// Adds a mask uniform over `Z_q` to every output coefficient of c0, appends them and returns the own shares.
    fn mask(
        &self,
        params: &Params,
        c0: &[u64],
        response: usize,
        stream: &mut Expander,
        message: &mut Vec<u8>,
    ) -> Vec<u64> {
        let (layout, n, width) = (&self.layout, params.degree(), self.spec.width);
        let ring = u64::MAX >> (64 - width);
        let mut writer = BitWriter::new(message);
        let mut mask = vec![0; params.limbs().len()];
        let shares = layout
            .outputs(response)
            .map(|(position, _)| {
                params.limbs().iter().zip(&mut mask).for_each(|(l, r)| *r = stream.residue(l.modulus()));
                let masked =
                    params.limbs().iter().enumerate().map(|(i, l)| l.modulus().add(c0[i * n + position], mask[i]));
                writer.push_wide(round_torus(params.torus(masked), layout.c0_bits), layout.c0_bits);
                let own = round_torus(params.torus(mask.iter().copied()), width) as u64;
                own.wrapping_neg() & ring
            })
            .collect();
        writer.finish();
        mask.zeroize();
        shares
    }
}
