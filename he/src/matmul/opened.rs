//! How public seeds are used in seeded messages: the evaluator expands them to its ciphertexts, the key holder to its
//! shares. The module `seeded` says why.

use super::cells::Cells;
use super::layout::Layout;
use crate::ciphertext::Ciphertext;
use crate::error::HeError;
use crate::params::{Params, round_torus};
use crate::sampling::{Expander, Label, SEED_BYTES, split_seed};
use rayon::prelude::*;
use waggle_bits::Reader;

/// Name of the message in errors.
const REQUEST: &str = "seeded matmul request";

/// What a coefficient of an upload holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// The entry of R with this index.
    Entry(usize),
    /// The negative of the entry of R with this index.
    Negated(usize),
    /// No entry: the value there is sent, so that the coefficient of the ciphertext becomes zero.
    Open,
}

/// What the coefficients of an upload hold, one after the other.
pub(super) struct Places(pub(super) Vec<Place>);

impl Places {
    pub(super) fn new(layout: &Layout, index: usize) -> Self {
        let n = layout.set.degree();
        let mut places = vec![Place::Open; n];
        for (position, entry) in layout.x_entries(index) {
            places[position & (n - 1)] = if position < n { Place::Entry(entry) } else { Place::Negated(entry) };
        }
        Self(places)
    }
}

/// Reads the ciphertexts of a request. Errors: a wrong length, a correction out of range, padding that is not zero.
pub(super) fn read(
    layout: &Layout,
    params: &Params,
    cells: &Cells,
    request: &[u8],
) -> Result<Vec<Ciphertext>, HeError> {
    HeError::check_length(REQUEST, layout.upload_bytes(), request.len())?;
    let (n, width) = (params.degree(), layout.spec.width);
    let uploads = layout.tiling.uploads();
    let (parts, open) = request.split_at(uploads * layout.correction_bytes(cells));
    let mut reader = Reader::new(open);
    let places: Vec<Places> = (0..uploads).map(|index| Places::new(layout, index)).collect();
    let take = |place: &Place| if *place == Place::Open { reader.take(width) } else { 0 };
    let opened: Vec<u64> = places.iter().flat_map(|places| &places.0).map(take).collect();
    reader.finish(REQUEST)?;
    let lift = params.lift(width);
    let ciphertext = |(part, opened): (&[u8], &[u64])| {
        let (seed, corrections) = split_seed(part, REQUEST)?;
        let mut reader = Reader::new(corrections);
        let mut c0 = vec![0; params.words()];
        for (i, &opened) in opened.iter().enumerate() {
            let cell = reader.take_wide(cells.bits());
            if cell >= cells.count {
                return Err(HeError::Correction { message: REQUEST, limit: cells.count, got: cell });
            }
            let offset = (cell << cells.dropped) + cells.half();
            let remainder = lift.remainder(u128::from(opened));
            for (l, limb) in params.limbs().iter().enumerate() {
                let p = limb.modulus();
                // -(lift + offset)
                let value = p.add(lift.residue(l, p, remainder), p.reduce_wide(offset));
                c0[l * n + i] = p.sub(0, value);
            }
        }
        reader.finish(REQUEST)?;
        params.fwd(&mut c0);
        Ok(Ciphertext { c0, c1: params.uniform(&seed, Label::Request, 0) })
    };
    parts.par_chunks_exact(layout.correction_bytes(cells)).zip(opened.par_chunks_exact(n)).map(ciphertext).collect()
}

/// The holder's shares of the outputs of a response, from `c1 s` (as coefficients) and from the seed that is expanded
/// in place of c0.
pub(super) fn shares(
    layout: &Layout,
    params: &Params,
    phase: &[u64],
    response: usize,
    seed: &[u8; SEED_BYTES],
) -> Vec<u64> {
    let n = params.degree();
    let mut body = Expander::new(seed, Label::ResponseBody, response as u64);
    let share = |(position, _)| {
        let limbs = params.limbs().iter().enumerate();
        let value = limbs.map(|(i, l)| l.modulus().add(body.residue(l.modulus()), phase[i * n + position]));
        round_torus(params.torus(value), layout.spec.width) as u64
    };
    layout.outputs(response).map(share).collect()
}
