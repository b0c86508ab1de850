//! Products with a matrix that only the server knows: linear layers and embeddings.
//!
//! **Functionality.** Shares of X (m x k) and the server's W (k x n) -> shares of X W modulo 2^w.
//!
//! **Source.** *Direct.* The client encrypts its share; the server adds its own and multiplies. Coefficient packing
//! is that of Cheetah (eprint 2022/207, section 3). Responses are masked over Z_q ([`waggle_he::MatmulPlan`]) and
//! packed by automorphisms (BumbleBee, NDSS 2025) where the plan says so.
//!
//! *Prepared.* Delphi (Mishra et al., USENIX Security 2020, eprint 2020/050, section 4.1).
//!
//! ```text
//! offline:  the client gets a uniform R; the parties share R W, many rows in one batch
//! online:   the client sends X_c - R
//!           the server multiplies X_s + X_c - R = X - R by W in the clear
//! ```
//!
//! Blocks on the diagonal of a matrix are products of their own, side by side.
//!
//! R W is shared by he's product of a random operand ([`waggle_he::SeededPlan`]; its module argues that R is uniform
//! for the server), or with [`Masks::Sent`] by the direct protocol for an R that the client draws.
//!
//! **Range.** Any, modulo 2^w; entries of W below 2^[`bits`](FixedWeight::bits) in magnitude. **Error.**
//! [`waggle_he::ProductPlan::lsb_error`] in the last place. The naive reference is the product itself.
//!
//! **Revealed.** Nothing: X_c - R is uniform for the server, and every R is used once. For the direct form see the
//! module documentation of he's products.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use waggle_he::{CachedWeights, MatmulShape, MatmulSpec, ProductPlan, Split, Weights};

use crate::correlation::CorrelationKind;
use crate::deal::dealing::{Dealing, counted, in_range, woven};
pub use crate::masked_row::MaskedRow;
use crate::matrix::Blocks;
use crate::operation::prelude::*;
use crate::options::Masks;
use crate::spread::Prepared;
use crate::times::swapped;
use crate::weight::FixedWeight;
use crate::wire::opening;

const UPLOAD: &str = "matmul/upload";
const DOWNLOAD: &str = "matmul/download";
const REQUEST: &str = "linear/request";
const RESPONSE: &str = "linear/response";
const MASKED: &str = "linear/masked";

/// While the server answers a request of at least this many bytes, it receives the next one.
const AHEAD_BYTES: usize = 1 << 20;

impl MaskedRow {
    pub(super) fn of(weight: &FixedWeight, width: u32) -> Self {
        let spec = &weight.spec;
        MaskedRow {
            weight: spec.name.clone(),
            inputs: spec.inputs,
            outputs: spec.outputs,
            width,
            bits: weight.bits(),
            blocks: spec.blocks,
        }
    }

    /// Each block is a product of its own, so that what is zero beside the blocks costs nothing.
    fn spec(&self, rows: usize) -> MatmulSpec {
        let (k, n) = (self.inputs / self.blocks, self.outputs / self.blocks);
        let shape = MatmulShape { batch: self.blocks, m: rows, k, n };
        MatmulSpec { shape, width: self.width, weight_bits: self.bits }
    }

    /// Rows of X as the product takes them, block by block.
    fn by_block(&self, x: &[u64]) -> Vec<u64> {
        swapped(x, [x.len() / self.inputs, self.blocks, self.inputs / self.blocks])
    }

    /// The inverse of [`by_block`](Self::by_block), for rows of `width` words.
    fn by_row(&self, y: Vec<u64>, width: usize) -> Vec<u64> {
        if self.blocks == 1 { y } else { swapped(&y, [self.blocks, y.len() / width, width / self.blocks]) }
    }
}

impl Correlation for MaskedRow {
    fn dealt_words(&self) -> Option<u64> {
        let row = (self.inputs as u64).checked_add(self.outputs as u64)?;
        counted(&[self.inputs, self.outputs, 8])?;
        in_range(self.width, row)
    }

    fn deal(&self, d: &mut Dealing<'_>, units: usize) -> Result<[Vec<u64>; 2], Error> {
        let r = d.draw(Role::Client, units * self.inputs, self.width);
        let t = d.draw(Role::Client, units * self.outputs, self.width);
        let mut product = d.times(self, &r)?;
        let minus = || product.iter().zip(&t).map(|(y, t)| y.wrapping_sub(*t) & mask(self.width)).collect();
        let server = d.give(Role::Server, units * self.outputs, &[self.width], minus)?;
        product.iter_mut().zip(&t).for_each(|(y, t)| *y = y.wrapping_add(*t) & mask(self.width));
        Ok([woven(units, &[(&r, self.inputs), (&product, self.outputs)]), server])
    }

    fn scope(&self) -> &'static str {
        "linear"
    }

    fn weight(&self) -> Option<&str> {
        Some(&self.weight)
    }

    fn for_weight(&self, name: &str) -> Option<CorrelationKind> {
        Some(CorrelationKind::new(MaskedRow { weight: name.to_owned(), ..self.clone() }))
    }

    fn words(&self, role: Role) -> usize {
        self.outputs + if role == Role::Client { self.inputs } else { 0 }
    }

    /// Many rows share the work on the matrix. Their number bounds the memory.
    fn batch(&self, _: &Options) -> usize {
        ((1 << 21) / self.inputs.max(1)).clamp(1, 128)
    }

    fn cost(&self, plans: &mut Plans, units: usize) -> Result<Cost, Error> {
        Ok(masks_cost(plans, self.spec(units))?.offline())
    }

    fn begin(&self, s: &mut Session, units: usize, pipeline: &mut Pipeline<'_>) -> Result<(), Error> {
        match (s.role(), s.options().masks) {
            (Role::Client, Masks::Seeded) => ask_ahead(s, self.spec(units), pipeline),
            _ => Ok(()),
        }
    }

    fn make(&self, s: &mut Session, units: usize, pipeline: &mut Pipeline<'_>) -> Result<Vec<u64>, Error> {
        let spec = self.spec(units);
        if s.is_server() {
            let matrix = pipeline.matrix.ok_or(waggle_engine::Error::NoValues { tensor: self.weight.clone() })?;
            let blocks = Blocks::new(matrix, self.blocks);
            let own = share(s, spec, Factor::of(matrix, &blocks, self.blocks), pipeline.next.is_some())?;
            return Ok(self.by_row(own, self.outputs));
        }
        let [r, shares] = masks(s, spec, pipeline)?;
        let (r, shares) = (self.by_row(r, self.inputs), self.by_row(shares, self.outputs));
        let rows = r.chunks_exact(self.inputs).zip(shares.chunks_exact(self.outputs));
        Ok(rows.flat_map(|(r, share)| r.iter().chain(share)).copied().collect())
    }
}

/// The client's random X for a product of the shape `spec`, and the client's share of X W.
pub(super) fn masks(s: &mut Session, spec: MatmulSpec, pipeline: &mut Pipeline<'_>) -> Result<[Vec<u64>; 2], Error> {
    match s.options().masks {
        Masks::Seeded => seeded_masks(s, spec, pipeline),
        Masks::Sent => {
            let MatmulShape { batch, m, k, .. } = spec.shape;
            let r: Vec<u64> = (0..batch * m * k).map(|_| s.rng().next_u64() & mask(spec.width)).collect();
            let shares = ask(s, spec, &r)?;
            Ok([r, shares])
        }
    }
}

/// The server's share of X W for the client's random X. If `more` products follow, their requests are received
/// meanwhile.
pub(super) fn share(s: &mut Session, spec: MatmulSpec, factor: Factor<'_>, more: bool) -> Result<Vec<u64>, Error> {
    match s.options().masks {
        Masks::Seeded => seeded_share(s, spec, factor, more),
        Masks::Sent => answer(s, spec, None, factor),
    }
}

/// Cost of [`masks`] and [`share`].
pub(super) fn masks_cost(plans: &mut Plans, spec: MatmulSpec) -> Result<Cost, Error> {
    match plans.options().masks {
        Masks::Seeded => Ok(product_cost(&*plans.seeded(spec)?, Kernel::Request)),
        Masks::Sent => direct_cost(plans, spec),
    }
}

/// The matrix by which the server multiplies.
#[derive(Clone, Copy)]
pub(super) enum Factor<'a> {
    /// A matrix of its model.
    Matrix(&'a FixedMatrix),
    /// The blocks of such a matrix.
    Blocks(&'a Blocks<'a>),
    /// Entries modulo 2^width that serve once.
    Words(&'a [u64]),
}

impl<'a> Factor<'a> {
    fn of(matrix: &'a FixedMatrix, blocks: &'a Blocks<'a>, count: usize) -> Self {
        if count == 1 { Factor::Matrix(matrix) } else { Factor::Blocks(blocks) }
    }

    fn weights(self) -> (Weights<'a>, Option<CachedWeights<'a>>) {
        match self {
            Factor::Matrix(matrix) => (Weights::Entries(matrix), matrix.kept()),
            Factor::Blocks(blocks) => (Weights::Entries(blocks), None),
            Factor::Words(words) => (Weights::U64(words), None),
        }
    }
}

enum Side<'a> {
    /// The client's share of X.
    Client(&'a [u64]),
    /// The server's share of X, if X is shared, and W.
    Server(Option<&'a [u64]>, &'a FixedMatrix),
}

/// Shares of X W for `rows` rows modulo 2^`width`. If there are `masks`, the prepared form is taken. `x` is this
/// party's share of X, or `None` on a server that has no share of X.
pub(super) fn product(
    s: &mut Session,
    weight: &FixedWeight,
    rows: usize,
    width: u32,
    x: Option<&[u64]>,
    masks: Option<&[u64]>,
) -> Result<Vec<u64>, Error> {
    let side = match (&weight.values, s.role()) {
        (_, Role::Client) => Side::Client(x.unwrap_or_default()),
        (Some(values), Role::Server) => Side::Server(x, &values.matrix),
        (None, Role::Server) => {
            return Err(waggle_engine::Error::NoValues { tensor: weight.spec.name.clone() }.into());
        }
    };
    let outputs = weight.spec.outputs;
    let row = MaskedRow::of(weight, width);
    let spec = row.spec(rows);
    let own = match (masks, side) {
        (Some(masks), side) => return prepared(s, &row, masks, side),
        (None, Side::Client(x)) => ask(s, spec, &row.by_block(x))?,
        (None, Side::Server(x, w)) => {
            let (x, blocks) = (x.map(|x| row.by_block(x)), Blocks::new(w, row.blocks));
            answer(s, spec, x.as_deref(), Factor::of(w, &blocks, row.blocks))?
        }
    };
    Ok(row.by_row(own, outputs))
}

pub(super) fn cost(
    plans: &mut Plans,
    weight: &FixedWeight,
    rows: usize,
    width: u32,
    prepared: bool,
) -> Result<Cost, Error> {
    let (inputs, outputs) = (weight.spec.inputs, weight.spec.outputs);
    if prepared {
        let opened = Cost::free()
            .work(Role::Client, Kernel::OpenWord, rows * inputs)
            .message(Role::Client, waggle_bits::packed_bytes(rows * inputs, &[width]))
            .work(Role::Server, Kernel::OpenWord, rows * (inputs + outputs));
        return Ok(own_cost(opened, &[Role::Server], weight, rows));
    }
    direct_cost(plans, MaskedRow::of(weight, width).spec(rows))
}

/// `cost`, plus the work of each party of `roles`, which multiplies `rows` rows of its own by the integers of
/// `weight`.
pub(super) fn own_cost(cost: Cost, roles: &[Role], weight: &FixedWeight, rows: usize) -> Cost {
    let entries = weight.spec.inputs * weight.spec.outputs / weight.spec.blocks;
    roles.iter().fold(cost, |cost, &role| {
        cost.work(role, Kernel::ReadWeight, entries).work(role, Kernel::WeightTerm, rows * entries)
    })
}

/// The client's share of X W. `x` is its share of X.
pub(super) fn ask(s: &mut Session, spec: MatmulSpec, x: &[u64]) -> Result<Vec<u64>, Error> {
    let plan = s.plans().matmul(spec)?;
    let key = s.own_key(plan.set(), plan.packed())?;
    let upload = plan.encrypt(&key, &reduced(x, spec.width), s.rng())?;
    s.deliver(UPLOAD, upload)?;
    let download = s.channel().recv(DOWNLOAD, plan.download_bytes())?;
    Ok(plan.decrypt(&key, &download)?)
}

/// The server's share of X W. `x` is its share of X, if X is shared.
pub(super) fn answer(
    s: &mut Session,
    spec: MatmulSpec,
    x: Option<&[u64]>,
    factor: Factor<'_>,
) -> Result<Vec<u64>, Error> {
    let plan = s.plans().matmul(spec)?;
    let keys = s.peer_keys(plan.set(), plan.packed())?;
    let x = x.map(|x| reduced(x, spec.width));
    let upload = s.channel().recv(UPLOAD, plan.upload_bytes())?;
    let (weights, kept) = factor.weights();
    let Split { message, share } = plan.evaluate(keys.evaluation(), &upload, x.as_deref(), weights, kept, s.rng())?;
    s.deliver(DOWNLOAD, message)?;
    Ok(share)
}

/// The words `x` modulo 2^`width`.
pub(super) fn reduced(x: &[u64], width: u32) -> Vec<u64> {
    x.iter().map(|x| x & mask(width)).collect()
}

/// The client's random operand, and its share of the operand's product with the server's matrix.
fn seeded_masks(s: &mut Session, spec: MatmulSpec, pipeline: &mut Pipeline<'_>) -> Result<[Vec<u64>; 2], Error> {
    let plan = s.plans().seeded(spec)?;
    let key = s.own_key(plan.set(), plan.packed())?;
    let r = match pipeline.asked.take() {
        Some((asked, r)) => {
            assert_eq!(asked, spec, "what was announced comes next");
            s.channel().take_turn();
            r
        }
        None => {
            let Split { message, share } = plan.request(&key, s.rng())?;
            s.deliver(REQUEST, message)?;
            share
        }
    };
    // The next request is made, and crosses the link, while the server multiplies by this matrix.
    pipeline.look_ahead(s)?;
    let response = s.channel().recv(RESPONSE, plan.download_bytes())?;
    Ok([r, plan.finish(&key, &response)?])
}

/// Sends the request of the next product ahead. Does nothing if the peer does not have this party's key yet, because
/// the key must go before the first request.
fn ask_ahead(s: &mut Session, spec: MatmulSpec, pipeline: &mut Pipeline<'_>) -> Result<(), Error> {
    let plan = s.plans().seeded(spec)?;
    let Some(key) = s.known_key(plan.set(), plan.packed()) else { return Ok(()) };
    let Split { message, share } = plan.request(&key, s.rng())?;
    s.channel().send_ahead(REQUEST, message)?;
    pipeline.asked = Some((spec, share));
    Ok(())
}

/// The server's share of the product of which the client gets its share by [`seeded_masks`].
fn seeded_share(s: &mut Session, spec: MatmulSpec, factor: Factor<'_>, more: bool) -> Result<Vec<u64>, Error> {
    let plan = s.plans().seeded(spec)?;
    let keys = s.peer_keys(plan.set(), plan.packed())?;
    let request = s.channel().recv(REQUEST, plan.upload_bytes())?;
    let Split { message, share } = match factor {
        Factor::Matrix(matrix) if let Some((spread, number)) = matrix.spread() => {
            let seeds = plan.draw(s.rng());
            spread.respond(number, Prepared { plan, keys, matrix: matrix.clone(), seeds, request })?
        }
        _ => {
            let (weights, kept) = factor.weights();
            let mut rng = StdRng::from_rng(s.rng());
            let mut respond = || plan.respond(keys.evaluation(), &request, weights, kept, &mut rng);
            match more && request.len() >= AHEAD_BYTES {
                true => s.channel().read_under(respond)?,
                false => respond()?,
            }
        }
    };
    s.deliver(RESPONSE, message)?;
    Ok(share)
}

pub(super) fn direct_cost(plans: &mut Plans, spec: MatmulSpec) -> Result<Cost, Error> {
    Ok(product_cost(&*plans.matmul(spec)?, Kernel::Encrypt))
}

/// Cost of a product of which the client makes the upload by the kernel `upload`.
fn product_cost(plan: &ProductPlan, upload: Kernel) -> Cost {
    let work = plan.work();
    Cost::free()
        .keys(Role::Client, plan.set(), plan.packed())
        .work(Role::Client, upload, work.encrypted as usize)
        .message(Role::Client, plan.upload_bytes())
        .evaluates(Role::Server, &work)
        .message(Role::Server, plan.download_bytes())
        .work(Role::Client, Kernel::Decrypt, work.opened as usize)
}

/// Shares of X W in the prepared form. Uses up one unit of [`MaskedRow`] for each row of X.
fn prepared(
    s: &mut Session,
    &MaskedRow { inputs, outputs, width, blocks, .. }: &MaskedRow,
    masks: &[u64],
    side: Side<'_>,
) -> Result<Vec<u64>, Error> {
    match side {
        Side::Client(x) => {
            let rows = x.chunks_exact(inputs).zip(masks.chunks_exact(inputs + outputs));
            let masked: Vec<u64> =
                rows.clone().flat_map(|(x, unit)| x.iter().zip(unit).map(|(x, r)| x.wrapping_sub(*r))).collect();
            opening::spend(s, "", rows.clone().flat_map(|(_, unit)| &unit[..inputs]).copied(), &[width])?;
            s.deliver(MASKED, waggle_bits::pack(&masked, &[width]))?;
            Ok(rows.flat_map(|(_, unit)| &unit[inputs..]).copied().collect())
        }
        Side::Server(x, matrix) => {
            let count = masks.len() / outputs * inputs;
            let message = s.channel().recv(MASKED, waggle_bits::packed_bytes(count, &[width]))?;
            let mut masked = waggle_bits::unpack(MASKED, &message, count, &[width])?;
            if let Some(x) = x {
                masked.iter_mut().zip(x).for_each(|(m, x)| *m = m.wrapping_add(*x));
            }
            opening::note(s, "", 0, &masked, &[width]);
            let mut y = matrix.times_blocks(&masked, blocks)?;
            y.iter_mut().zip(masks).for_each(|(y, share)| *y = y.wrapping_add(*share));
            Ok(y)
        }
    }
}
