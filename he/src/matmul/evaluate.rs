//! The weight holder's side: products in the transformed domain, masks, responses.

use super::plan::Tile;
use super::{MatmulPlan, MatmulShape, Weights, check_entries, split_upload, write_switched};
use crate::bits::BitWriter;
use crate::error::HeError;
use crate::galois::{Ciphertext, GaloisKeys};
use crate::keys::{EvaluationKeys, PublicKey};
use crate::params::{Params, round_torus};
use crate::sampling::{Expander, Label, Seed, fresh_seed};
use rand::CryptoRng;
use rayon::prelude::*;
use std::ops::Range;
use zeroize::{Zeroize, Zeroizing};

/// Weight polynomials that one column tile holds at a time.
const TERMS: usize = 4;
/// Columns that are read together where a tile has fewer: those of a cache line of weights.
const STRIP: usize = 16;

/// What the evaluation of one product works on.
pub(super) struct Evaluation<'a> {
    pub(super) plan: &'a MatmulPlan,
    pub(super) params: &'static Params,
    public: &'a PublicKey,
    /// There if the plan packs.
    galois: Option<&'a GaloisKeys>,
    /// In the form of `Params::dot`.
    pub(super) uploads: Vec<Ciphertext>,
    pub(super) weights: Weights<'a>,
    seed: Seed,
}

impl Weights<'_> {
    fn len(&self) -> usize {
        match self {
            Self::I16(w) => w.len(),
            Self::I32(w) => w.len(),
            Self::U64(w) => w.len(),
        }
    }

    /// Writes `block` transposed: entry c of row j, as a signed integer modulo `2^width`, goes to `out[at(c) + j]`.
    /// Entries below `2^bits` in absolute value, for `bits` below `width`, are such integers already.
    fn transpose(&self, width: u32, bits: u32, block: Rows, out: &mut [i64], at: impl Fn(usize) -> usize) {
        match self {
            Self::I16(w) if bits < width => transpose(w, i64::from, block, out, at),
            Self::I32(w) if bits < width => transpose(w, i64::from, block, out, at),
            Self::I16(w) => transpose(w, |w| centred(i64::from(w) as u64, width), block, out, at),
            Self::I32(w) => transpose(w, |w| centred(i64::from(w) as u64, width), block, out, at),
            Self::U64(w) => transpose(w, |w| centred(w, width), block, out, at),
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

/// Where a block of weights lies: `rows` rows of `count` entries, the first at `start`, `pitch` entries apart.
#[derive(Clone, Copy)]
struct Rows {
    start: usize,
    pitch: usize,
    rows: usize,
    count: usize,
}

/// Rows that are transposed at a time: a cache line of signed integers.
const LINE: usize = 8;

#[inline(always)]
fn transpose<T: Copy>(w: &[T], signed: impl Fn(T) -> i64, block: Rows, out: &mut [i64], at: impl Fn(usize) -> usize) {
    let Rows { start, pitch, rows, count } = block;
    let row = |j: usize| &w[start + j * pitch..][..count];
    for first in (0..rows / LINE * LINE).step_by(LINE) {
        let lines: [&[T]; LINE] = std::array::from_fn(|j| row(first + j));
        for c in 0..count {
            let out = &mut out[at(c) + first..][..LINE];
            out.iter_mut().zip(&lines).for_each(|(out, line)| *out = signed(line[c]));
        }
    }
    for j in rows / LINE * LINE..rows {
        row(j).iter().enumerate().for_each(|(c, &w)| out[at(c) + j] = signed(w));
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
    /// (`batch * m * n`). `keys` must hold Galois keys if the plan is [`Self::packed`]. Every response carries a fresh mask and a fresh encryption of zero.
    pub fn evaluate<'a>(
        &self,
        keys: impl Into<EvaluationKeys<'a>>,
        upload: &[u8],
        x_own: Option<&[u64]>,
        weights: Weights<'_>,
        rng: &mut (impl CryptoRng + ?Sized),
    ) -> Result<(Vec<u8>, Vec<u64>), HeError> {
        let EvaluationKeys { public, galois } = keys.into();
        let params = public.check(self.set())?;
        let galois = galois.filter(|_| self.packed());
        if self.packed() {
            galois.ok_or(HeError::NoGaloisKeys { set: self.set() })?.check(self.set())?;
        }
        let MatmulShape { batch, k, n, .. } = self.spec.shape;
        check_entries("weights", weights.len(), batch * k * n)?;
        weights.check_range(self.spec.width, self.spec.weight_bits)?;
        if let Some(x) = x_own {
            self.check_x("own share of the encrypted operand", x)?;
        }
        let uploads = self.parse(params, upload, x_own)?;
        let mut evaluation =
            Evaluation { plan: self, params, public, galois, uploads, weights, seed: fresh_seed(rng) };
        let parts: Vec<(Vec<u8>, Vec<u64>)> = if self.layout.tile.run > 1 {
            evaluation.panels()
        } else {
            (0..self.layout.column_packs()).into_par_iter().flat_map(|pack| evaluation.column_pack(pack)).collect()
        };
        let (messages, shares): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        let download = messages.concat();
        debug_assert_eq!(download.len(), self.download_bytes());
        Ok((download, self.scatter(&shares)))
    }

    /// Reads the upload and adds the own share under encryption.
    fn parse(&self, params: &Params, upload: &[u8], x_own: Option<&[u64]>) -> Result<Vec<Ciphertext>, HeError> {
        const MESSAGE: &str = "matmul upload";
        let (seed, bodies) = split_upload(upload, self.upload_bytes(), MESSAGE)?;
        let lift = params.lift(self.spec.width);
        // What the levels of merges multiply back.
        let (columns, rows) = self.layout.pack_levels();
        let doublings = (columns + rows) as i32;
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
                let mut c1 = params.uniform(&seed, Label::Upload, index as u64);
                for c in [&mut c0, &mut c1] {
                    if doublings > 0 {
                        params.shift(c, -doublings);
                    }
                    params.factor(c);
                }
                Ok(Ciphertext { c0, c1 })
            })
            .collect()
    }

    /// The polynomials of the weights in those columns of the column tiles that `group` owns, a span each; `out` has zeros
    /// before.
    pub(super) fn encode_w(
        &self,
        weights: Weights<'_>,
        tiles: Range<usize>,
        group: usize,
        inner_tile: usize,
        out: &mut [i64],
    ) {
        let (spec, shape, span) = (self.spec, self.spec.shape, self.layout.weight_span());
        let Tile { inner, cols, .. } = self.layout.tile;
        let per_group = self.layout.tile.group * shape.n;
        let first = self.layout.column_range(tiles.start).0;
        let last = self.layout.column_range(tiles.end - 1).1;
        let (j0, j1) = self.layout.inner_range(inner_tile);
        let (mut column, end) = (first.max(group * per_group), last.min((group + 1) * per_group));
        while column < end {
            // A run of columns of one item.
            let (item, c) = (column / shape.n, column % shape.n);
            let run = (shape.n - c).min(end - column);
            let rows = Rows { start: (item * shape.k + j0) * shape.n + c, pitch: shape.n, rows: j1 - j0, count: run };
            let place = |c: usize| (column - first + c) / cols * span + (column - first + c) % cols * inner;
            weights.transpose(spec.width, spec.weight_bits, rows, out, place);
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

impl Evaluation<'_> {
    /// All responses of one pack of column tiles: per pack of row tiles the message and the own shares.
    fn column_pack(&self, pack: usize) -> Vec<(Vec<u8>, Vec<u64>)> {
        let layout = &self.plan.layout;
        let (column_step, row_step) = layout.pack_steps();
        let mut products = self.columns(layout.column_pack(pack), column_step).into_iter();
        let packs: Vec<Vec<Ciphertext>> = (0..layout.row_tiles().div_ceil(layout.pack.rows))
            .map(|_| products.by_ref().take(layout.pack.rows).collect())
            .collect();
        let first = pack * packs.len();
        let respond = |(i, rows)| self.respond(first + i, self.rows(rows, row_step));
        packs.into_par_iter().enumerate().map(respond).collect()
    }

    /// Products of all row tiles with `columns`, packed into one ciphertext per row tile. The tree is that of the module
    /// `plan`, its leaves are made when they are needed, a few at a time.
    fn columns(&self, columns: Range<usize>, step: usize) -> Vec<Ciphertext> {
        let layout = &self.plan.layout;
        let alike = layout.meetings(columns.start) == layout.meetings(columns.end - 1);
        if columns.len() == 1 || alike && columns.len() * layout.tile.cols <= STRIP {
            return self.join(self.column_tiles(columns), step);
        }
        let middle = columns.start + columns.len().div_ceil(2);
        let (even, odd) = rayon::join(
            || self.columns(columns.start..middle, 2 * step),
            || self.columns(middle..columns.end, 2 * step),
        );
        even.into_par_iter().zip(odd).map(|(even, odd)| self.merge(step, even, odd)).collect()
    }

    /// The same from the products of some tiles.
    fn join(&self, mut tiles: Vec<Vec<Ciphertext>>, step: usize) -> Vec<Ciphertext> {
        if tiles.len() == 1 {
            let mut products = tiles.swap_remove(0);
            self.double(&mut products, step, self.plan.layout.tile.inner);
            return products;
        }
        let odd = tiles.split_off(tiles.len().div_ceil(2));
        let (even, odd) = (self.join(tiles, 2 * step), self.join(odd, 2 * step));
        even.into_iter().zip(odd).map(|(even, odd)| self.merge(step, even, odd)).collect()
    }

    /// The row tiles of one response, packed into one ciphertext.
    fn rows(&self, mut rows: Vec<Ciphertext>, step: usize) -> Ciphertext {
        if rows.len() == 1 {
            self.double(&mut rows, step, self.plan.layout.pack_steps().0);
            return rows.swap_remove(0);
        }
        let odd = rows.split_off(rows.len().div_ceil(2));
        let (even, odd) = rayon::join(|| self.rows(rows, 2 * step), || self.rows(odd, 2 * step));
        self.merge(step, even, odd)
    }

    /// Makes up for the merges of a leaf that ends at `step` instead of at `full`.
    fn double(&self, leaves: &mut [Ciphertext], step: usize, full: usize) {
        if step < full && self.galois.is_some() {
            let doublings = (full / step).trailing_zeros() as i32;
            for c in leaves {
                self.params.shift(&mut c.c0, doublings);
                self.params.shift(&mut c.c1, doublings);
            }
        }
    }

    fn merge(&self, step: usize, even: Ciphertext, odd: Ciphertext) -> Ciphertext {
        self.galois.expect("a plan that packs was given Galois keys").merge(step, even, odd)
    }

    /// The products of all row tiles with neighbouring column tiles that meet the same groups, tile by tile. Each weight polynomial is made
    /// once and dropped.
    fn column_tiles(&self, tiles: Range<usize>) -> Vec<Vec<Ciphertext>> {
        let (plan, layout, params) = (self.plan, &self.plan.layout, self.params);
        let (words, span) = (params.words(), layout.weight_span());
        let zero = || Ciphertext { c0: vec![0; words], c1: vec![0; words] };
        let mut sums: Vec<Vec<Ciphertext>> =
            tiles.clone().map(|_| (0..layout.row_tiles()).map(|_| zero()).collect()).collect();
        let meetings: Vec<(usize, usize)> = layout
            .meetings(tiles.start)
            .flat_map(|group| (0..layout.inner_tiles()).map(move |inner_tile| (group, inner_tile)))
            .collect();
        let mut signed = Zeroizing::new(vec![0i64; TERMS * tiles.len() * span]);
        let mut polys = Zeroizing::new(vec![0; TERMS * words]);
        for meetings in meetings.chunks(TERMS) {
            signed.fill(0);
            for (&(group, inner_tile), signed) in meetings.iter().zip(signed.chunks_exact_mut(tiles.len() * span)) {
                plan.encode_w(self.weights, tiles.clone(), group, inner_tile, signed);
            }
            for (tile, sums) in sums.iter_mut().enumerate() {
                let of_tile = signed.chunks_exact(span).skip(tile).step_by(tiles.len());
                let polys = of_tile.zip(polys.chunks_exact_mut(words)).take(meetings.len());
                let factors: Vec<&[u64]> = polys
                    .map(|(signed, poly)| {
                        params.factor_signed(signed, plan.spec.weight_bits, poly);
                        &*poly
                    })
                    .collect();
                for (row_tile, sum) in sums.iter_mut().enumerate() {
                    let upload =
                        |&(group, inner_tile)| &self.uploads[layout.upload_index(group, row_tile, inner_tile)];
                    let halves: (Vec<&[u64]>, Vec<&[u64]>) =
                        meetings.iter().map(|m| (upload(m).c0.as_slice(), upload(m).c1.as_slice())).unzip();
                    params.dot(&mut sum.c0, &halves.0, &factors);
                    params.dot(&mut sum.c1, &halves.1, &factors);
                }
            }
        }
        sums
    }

    /// The message of one response and the own shares.
    pub(super) fn respond(&self, response: usize, product: Ciphertext) -> (Vec<u8>, Vec<u64>) {
        let (layout, params) = (&self.plan.layout, self.params);
        let Ciphertext { mut c0, mut c1 } = product;
        let mut stream = Expander::new(&self.seed, Label::Response, response as u64);
        self.public.rerandomize(&mut c0, &mut c1, &mut stream);
        let mut message = Vec::with_capacity(layout.response_bytes(response));
        write_switched(params, &c1, layout.c1_bits, &mut message);
        let shares = self.plan.mask(params, &c0, response, &mut stream, &mut message);
        (message, shares)
    }
}
