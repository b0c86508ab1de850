//! What both ways of multiplying (`columns` and `panel`) share: polynomials of weights, and responses.

use super::cache::CachedWeights;
use super::plan::MatmulPlan;
use super::tiling::Tile;
use super::weights::{Grid, Rows, Staged, Weights};
use crate::ciphertext::{Ciphertext, Split, write_switched};
use crate::error::HeError;
use crate::galois::GaloisKeys;
use crate::keys::PublicKey;
use crate::ntt::TILES;
use crate::params::{Params, round_torus};
use crate::sampling::{Expander, Label, SEED_BYTES, Seed, fresh_seed, split_seed};
use rand::CryptoRng;
use std::ops::Range;
use waggle_bits::Writer;
use zeroize::{Zeroize, Zeroizing};

/// The seeds of the responses to one message. Each response derives streams of its own from the seeds and its index.
/// So several processes of one evaluator may each make some of the responses. Seeds must never serve two messages.
pub struct ResponseSeeds {
    /// The seed of encryptions of zero and of masks.
    pub(super) secret: Seed,
    /// The public seed that stands for c0 if the plan is seeded. It is drawn apart from the secret seed.
    pub(super) body: Option<[u8; SEED_BYTES]>,
}

impl ResponseSeeds {
    /// Number of bytes of [`Self::to_bytes`].
    pub const BYTES: usize = 2 * SEED_BYTES;

    /// Fresh seeds.
    pub(super) fn fresh(seeded: bool, rng: &mut (impl CryptoRng + ?Sized)) -> Self {
        Self { secret: fresh_seed(rng), body: seeded.then(|| *fresh_seed(rng)) }
    }

    /// The seeds of a [`SeededPlan`](super::SeededPlan)'s responses as bytes. They are secret: only for another
    /// process of the evaluator.
    pub fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new([&self.secret[..], self.body.as_ref().map_or(&[], |body| &body[..])].concat())
    }

    /// Reads [`Self::to_bytes`]. Errors: a wrong length.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, HeError> {
        const SEEDS: &str = "seeds of responses";
        HeError::check_length(SEEDS, Self::BYTES, bytes.len())?;
        let (secret, rest) = split_seed(bytes, SEEDS)?;
        Ok(Self { secret: Zeroizing::new(secret), body: Some(split_seed(rest, SEEDS)?.0) })
    }
}

/// The evaluation of one product: its plan, the key holder's keys and the evaluator's operand.
pub(super) struct Evaluation<'a> {
    pub(super) plan: &'a MatmulPlan,
    pub(super) params: &'static Params,
    pub(super) public: &'a PublicKey,
    /// `Some` if the plan packs responses.
    pub(super) galois: Option<&'a GaloisKeys>,
    pub(super) weights: Weights<'a>,
    pub(super) cached: Option<CachedWeights<'a>>,
    pub(super) seeds: &'a ResponseSeeds,
}

impl Evaluation<'_> {
    /// Reads the rows `rows` of all columns of the column tiles `tiles` ahead of their use. `None` unless weights are
    /// made when they are read.
    pub(super) fn stage(&self, tiles: &Range<usize>, rows: Range<usize>) -> Option<Staged> {
        let tiling = &self.plan.layout.tiling;
        let columns = tiling.column_range(tiles.start).0..tiling.column_range(tiles.end - 1).1;
        self.weights.stage(self.plan.spec.width, self.plan.spec.shape, columns, rows)
    }

    /// Writes the coefficients of the weights in those columns of the column tiles that `group` owns. The words of a
    /// tile follow each other; with `by_tiles`, the words of [`TILES`] tiles lie side by side. All other words stay
    /// as they are. `staged` is what [`Self::stage`] returned for these tiles.
    pub(super) fn encode_weights(
        &self,
        tiles: Range<usize>,
        group: usize,
        inner_tile: usize,
        staged: Option<&Staged>,
        by_tiles: bool,
        out: &mut [i64],
    ) {
        let (spec, tiling) = (self.plan.spec, &self.plan.layout.tiling);
        let (shape, span) = (spec.shape, tiling.weight_span());
        let Tile { group: items, inner, cols, .. } = tiling.tile;
        let per_group = items * shape.n;
        let first = tiling.column_range(tiles.start).0;
        let last = tiling.column_range(tiles.end - 1).1;
        let (j0, j1) = tiling.inner_range(inner_tile);
        let (mut column, end) = (first.max(group * per_group), last.min((group + 1) * per_group));
        let (tile, row) = if by_tiles { (1, TILES) } else { (span, 1) };
        let grid = Grid { cols, tile, column: inner * row, row };
        if let Some(staged) = staged {
            return staged.read(column..end, j0..j1, &grid, out);
        }
        while column < end {
            // A run of columns of one item.
            let (item, c) = (column / shape.n, column % shape.n);
            let run = (shape.n - c).min(end - column);
            let rows = Rows { start: (item * shape.k + j0) * shape.n + c, pitch: shape.n, rows: j1 - j0, count: run };
            self.weights.transpose(spec.width, spec.weight_bits, rows, (&grid, column - first), out);
            column += run;
        }
    }

    /// The response that holds `product`: c1, then the output coefficients of c0. The evaluator's shares in wire
    /// order are returned with it. No index `response` may be used twice.
    pub(super) fn respond(&self, response: usize, mut product: Ciphertext) -> Split {
        let (layout, params) = (&self.plan.layout, self.params);
        let mut stream = Expander::new(&self.seeds.secret, Label::Response, response as u64);
        self.public.rerandomize(&mut product, &mut stream);
        let mut message = Vec::with_capacity(layout.response_bytes(response));
        write_switched(params, &product.c1, layout.c1_bits, &mut message);
        let share = match &self.seeds.body {
            Some(body) => {
                let mut body = Expander::new(body, Label::ResponseBody, response as u64);
                self.complete(&product.c0, response, &mut body)
            }
            None => self.mask(&product.c0, response, &mut stream, &mut message),
        };
        Split { message, share }
    }

    /// Adds a mask uniform over `Z_q` to every output coefficient of c0, appends the sums to `message` and returns
    /// the evaluator's shares.
    fn mask(&self, c0: &[u64], response: usize, stream: &mut Expander, message: &mut Vec<u8>) -> Vec<u64> {
        let (layout, params) = (&self.plan.layout, self.params);
        let (n, width) = (params.degree(), self.plan.spec.width);
        let mut writer = Writer::new(message);
        let mut mask = vec![0; params.limbs().len()];
        let shares = layout
            .outputs(response)
            .map(|(position, _)| {
                params.limbs().iter().zip(&mut mask).for_each(|(l, r)| *r = stream.residue(l.modulus()));
                let masked =
                    params.limbs().iter().enumerate().map(|(i, l)| l.modulus().add(c0[i * n + position], mask[i]));
                writer.push_wide(round_torus(params.torus(masked), layout.c0_bits), layout.c0_bits);
                let own = round_torus(params.torus(mask.iter().copied()), width) as u64;
                own.wrapping_neg() & waggle_bits::mask(width)
            })
            .collect();
        writer.finish();
        mask.zeroize();
        shares
    }

    /// The evaluator's shares of the outputs of a response. Its masks turn every output coefficient of c0 into the
    /// next value of `body`.
    fn complete(&self, c0: &[u64], response: usize, body: &mut Expander) -> Vec<u64> {
        let (params, width) = (self.params, self.plan.spec.width);
        let n = params.degree();
        let outputs = self.plan.layout.outputs(response);
        outputs
            .map(|(position, _)| {
                let limbs = params.limbs().iter().enumerate();
                let mask = limbs.map(|(i, l)| l.modulus().sub(body.residue(l.modulus()), c0[i * n + position]));
                (round_torus(params.torus(mask), width) as u64).wrapping_neg() & waggle_bits::mask(width)
            })
            .collect()
    }
}
