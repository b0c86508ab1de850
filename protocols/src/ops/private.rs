//! Products with a matrix that only the server knows: linear layers and embeddings.
//!
//! **Functionality.** Shares of X (m x k) and the server's W (k x n) -> shares of X W modulo 2^w.
//!
//! **Source.** *Direct.* The client encrypts its share; the server adds its own and multiplies. Coefficient packing
//! is that of Cheetah (eprint 2022/207, section 3). Responses are masked over Z_q ([`he::MatmulPlan`]) and packed by
//! automorphisms (BumbleBee, NDSS 2025) where the plan says so.
//!
//! *Prepared.* Delphi (Mishra et al., USENIX Security 2020, eprint 2020/050, section 4.1).
//!
//! ```text
//! offline:  the client gets a uniform R; the parties share R W, many rows in one batch
//! online:   the client sends X_c - R
//!           the server multiplies X_s + X_c - R = X - R by W in the clear
//! ```
//!
//! R W is shared by he's product of a random operand ([`he::SeededPlan`]; its module argues that R is uniform for the
//! server), or with [`Masks::Sent`] by the direct protocol for an R that the client draws.
//!
//! **Range.** Any, modulo 2^w; entries of W below 2^[`WEIGHT_BITS`] in magnitude. **Error.**
//! [`he::ProductPlan::lsb_error`] in the last place. The naive twin is the product itself.
//!
//! **Revealed.** Nothing: X_c - R is uniform for the server, and every R is used once. For the direct form see the
//! module documentation of he's products.

use he::{MatmulShape, MatmulSpec, Split, Weights};
use rand::Rng;

use crate::correlation::CorrelationKind;
use crate::matrix::WEIGHT_BITS;
use crate::operation::prelude::*;
use crate::options::Masks;
use crate::spread::Prepared;
use crate::weight::FixedWeight;
use crate::wire::opening;

const UPLOAD: &str = "matmul/upload";
const DOWNLOAD: &str = "matmul/download";
const REQUEST: &str = "linear/request";
const RESPONSE: &str = "linear/response";
const MASKED: &str = "linear/masked";

/// Shares of r W for the client's random row r. Unit: a row. The client keeps r beside its share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MaskedRow {
    /// Published name of the matrix.
    pub weight: String,
    /// Rows of the matrix.
    pub inputs: usize,
    /// Columns of the matrix.
    pub outputs: usize,
    /// Bits of the ring.
    pub width: u32,
}

impl MaskedRow {
    pub(super) fn of(weight: &FixedWeight, width: u32) -> Self {
        let spec = &weight.spec;
        MaskedRow { weight: spec.name.clone(), inputs: spec.inputs, outputs: spec.outputs, width }
    }

    fn spec(&self, rows: usize) -> MatmulSpec {
        spec(rows, self.inputs, self.outputs, self.width)
    }
}

fn spec(rows: usize, inputs: usize, outputs: usize, width: u32) -> MatmulSpec {
    let shape = MatmulShape { batch: 1, m: rows, k: inputs, n: outputs };
    MatmulSpec { shape, width, weight_bits: WEIGHT_BITS }
}

impl Correlation for MaskedRow {
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
        let spec = self.spec(units);
        let cost = match plans.options().masks {
            Masks::Seeded => seeded_cost(plans, spec),
            Masks::Sent => direct_cost(plans, spec),
        };
        Ok(cost?.offline())
    }

    fn begin(&self, s: &mut Session, units: usize) -> Result<(), Error> {
        match (s.role(), s.options().masks) {
            (Role::Client, Masks::Seeded) => s.begin_request(self.spec(units)),
            _ => Ok(()),
        }
    }

    fn make(&self, s: &mut Session, units: usize, matrix: Option<&FixedMatrix>) -> Result<Vec<u64>, Error> {
        let (spec, masks) = (self.spec(units), s.plans().options().masks);
        if s.is_server() {
            let matrix = matrix.ok_or_else(|| engine::Error::NoValues { tensor: self.weight.clone() })?;
            return match masks {
                Masks::Seeded => seeded_share(s, spec, matrix),
                Masks::Sent => direct(s, spec, Side::Server(None, matrix)),
            };
        }
        let MaskedRow { inputs, outputs, width, .. } = *self;
        let (r, shares) = match masks {
            Masks::Seeded => seeded_masks(s, spec)?,
            Masks::Sent => {
                let r: Vec<u64> = (0..units * inputs).map(|_| s.rng().next_u64() & mask(width)).collect();
                let shares = direct(s, spec, Side::Client(&r))?;
                (r, shares)
            }
        };
        let rows = r.chunks_exact(inputs).zip(shares.chunks_exact(outputs));
        Ok(rows.flat_map(|(r, share)| r.iter().chain(share)).copied().collect())
    }
}

enum Side<'a> {
    /// The client's share of X.
    Client(&'a [u64]),
    /// The server's share of X, if X is shared, and W.
    Server(Option<&'a [u64]>, &'a FixedMatrix),
}

/// Shares of X W for `rows` rows modulo 2^`width`; with `masks`, in the prepared form. `x` is this party's share of
/// X, or `None` on a server that has none of it.
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
        (None, Role::Server) => return Err(engine::Error::NoValues { tensor: weight.spec.name.clone() }.into()),
    };
    let (inputs, outputs) = (weight.spec.inputs, weight.spec.outputs);
    match masks {
        Some(masks) => prepared(s, inputs, outputs, width, masks, side),
        None => direct(s, spec(rows, inputs, outputs, width), side),
    }
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
        return Ok(Cost::free()
            .work(Role::Client, Kernel::OpenWord, rows * inputs)
            .message(Role::Client, bits::packed_bytes(rows * inputs, &[width]))
            .work(Role::Server, Kernel::OpenWord, rows * (inputs + outputs))
            .work(Role::Server, Kernel::ReadWeight, inputs * outputs)
            .work(Role::Server, Kernel::WeightTerm, rows * inputs * outputs));
    }
    direct_cost(plans, spec(rows, inputs, outputs, width))
}

fn direct(s: &mut Session, spec: MatmulSpec, side: Side<'_>) -> Result<Vec<u64>, Error> {
    let plan = s.plans().matmul(spec)?;
    let reduced = |x: &[u64]| x.iter().map(|x| x & mask(spec.width)).collect::<Vec<_>>();
    match side {
        Side::Client(x) => {
            let key = s.own_key(plan.set(), plan.packed())?;
            let upload = plan.encrypt(&key, &reduced(x), s.rng())?;
            s.deliver(UPLOAD, upload)?;
            let download = s.channel().recv(DOWNLOAD, plan.download_bytes())?;
            Ok(plan.decrypt(&key, &download)?)
        }
        Side::Server(x, w) => {
            let keys = s.peer_keys(plan.set(), plan.packed())?;
            let x = x.map(reduced);
            let upload = s.channel().recv(UPLOAD, plan.upload_bytes())?;
            let (keys, entries) = (keys.evaluation(), Weights::Entries(w));
            let Split { message, share } = plan.evaluate(keys, &upload, x.as_deref(), entries, w.kept(), s.rng())?;
            s.deliver(DOWNLOAD, message)?;
            Ok(share)
        }
    }
}

/// The client's random operand and its share of the product with the server's matrix.
fn seeded_masks(s: &mut Session, spec: MatmulSpec) -> Result<(Vec<u64>, Vec<u64>), Error> {
    let plan = s.plans().seeded(spec)?;
    let key = s.own_key(plan.set(), plan.packed())?;
    let Split { message, share: r } = s.request(spec, &key)?;
    s.deliver(REQUEST, message)?;
    // The next one is encrypted while the server multiplies by this matrix.
    s.look_ahead()?;
    let response = s.channel().recv(RESPONSE, plan.download_bytes())?;
    Ok((r, plan.finish(&key, &response)?))
}

/// The server's share of the same.
fn seeded_share(s: &mut Session, spec: MatmulSpec, matrix: &FixedMatrix) -> Result<Vec<u64>, Error> {
    let plan = s.plans().seeded(spec)?;
    let keys = s.peer_keys(plan.set(), plan.packed())?;
    let request = s.channel().recv(REQUEST, plan.upload_bytes())?;
    let seeds = plan.draw(s.rng());
    let product = Prepared { plan, keys, matrix: matrix.clone(), seeds, request };
    let Split { message, share } = match matrix.spread() {
        Some((spread, number)) => spread.respond(number, product)?,
        None => product.join(&[product.respond(0..product.plan.packs())?])?,
    };
    s.deliver(RESPONSE, message)?;
    Ok(share)
}

fn seeded_cost(plans: &mut Plans, spec: MatmulSpec) -> Result<Cost, Error> {
    let plan = plans.seeded(spec)?;
    let work = plan.work();
    Ok(Cost::free()
        .keys(Role::Client, plan.set(), plan.packed())
        .work(Role::Client, Kernel::Request, work.encrypted as usize)
        .message(Role::Client, plan.upload_bytes())
        .evaluates(Role::Server, &work)
        .message(Role::Server, plan.download_bytes())
        .work(Role::Client, Kernel::Decrypt, work.opened as usize))
}

fn direct_cost(plans: &mut Plans, spec: MatmulSpec) -> Result<Cost, Error> {
    let plan = plans.matmul(spec)?;
    let work = plan.work();
    Ok(Cost::free()
        .keys(Role::Client, plan.set(), plan.packed())
        .work(Role::Client, Kernel::Encrypt, work.encrypted as usize)
        .message(Role::Client, plan.upload_bytes())
        .evaluates(Role::Server, &work)
        .message(Role::Server, plan.download_bytes())
        .work(Role::Client, Kernel::Decrypt, work.opened as usize))
}

/// Shares of X W with as many units of [`MaskedRow`] as X has rows.
fn prepared(
    s: &mut Session,
    inputs: usize,
    outputs: usize,
    width: u32,
    masks: &[u64],
    side: Side<'_>,
) -> Result<Vec<u64>, Error> {
    match side {
        Side::Client(x) => {
            let rows = x.chunks_exact(inputs).zip(masks.chunks_exact(inputs + outputs));
            let masked: Vec<u64> =
                rows.clone().flat_map(|(x, mask)| x.iter().zip(mask).map(|(x, r)| x.wrapping_sub(*r))).collect();
            opening::spend(s, "", rows.clone().flat_map(|(_, mask)| &mask[..inputs]).copied(), &[width])?;
            s.deliver(MASKED, bits::pack(&masked, &[width]))?;
            Ok(rows.flat_map(|(_, mask)| &mask[inputs..]).copied().collect())
        }
        Side::Server(x, matrix) => {
            let count = masks.len() / outputs * inputs;
            let message = s.channel().recv(MASKED, bits::packed_bytes(count, &[width]))?;
            let mut masked = bits::unpack(MASKED, &message, count, &[width])?;
            if let Some(x) = x {
                masked.iter_mut().zip(x).for_each(|(m, x)| *m = m.wrapping_add(*x));
            }
            opening::note(s, "", 0, &masked, &[width]);
            let mut y = matrix.times(&masked)?;
            y.iter_mut().zip(masks).for_each(|(y, share)| *y = y.wrapping_add(*share));
            Ok(y)
        }
    }
}
