//! Products of two shared matrices.
//!
//! **Functionality.** Shares of batches of matrices A and B -> shares of A B modulo 2^w.
//!
//! **Source.** A B = A_c B_c + A_s B_s + A_c B_s + A_s B_c. Each party encrypts its share of one operand and
//! multiplies what it receives by its share of the other; both directions run at once. The operand to encrypt is the
//! one whose plan takes less time. Coefficient packing is that of Cheetah (eprint 2022/207, section 3). Responses are
//! masked over Z_q ([`waggle_he::MatmulPlan`]) and packed by automorphisms (BumbleBee, NDSS 2025) where the plan says
//! so.
//!
//! *Prepared.* Offline, the same protocol makes random A, B and A B. Online, the parties open X - A and Y - B
//! (Beaver, CRYPTO 1991).
//!
//! **Range.** Any, modulo 2^w. **Error.** Twice [`waggle_he::ProductPlan::lsb_error`] in the last place.
//!
//! **Revealed.** Nothing: X - A and Y - B are uniform, because every A and B is used once. For the direct form see
//! the module documentation of he's products.

use std::sync::Arc;

use ndarray::Ix3;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use waggle_he::{MatmulPlan, MatmulShape, MatmulSpec, Split, Weights};

use crate::deal::dealing::{Dealing, counted, in_range};
use crate::operation::prelude::*;
use crate::ops::private::reduced;
use crate::reference::integers;
use crate::wire::beaver::{minus, open_products, random};
use crate::wire::opening;

/// (batch, m, k) x (batch, k, n) -> (batch, m, n) modulo 2^`width`. Error: a few units in the last place.
#[derive(Clone, Copy, Debug)]
pub struct Matmul {
    /// Bits of the ring.
    pub width: u32,
}

/// The shape of a batched product.
///
/// # Panics
/// If the operands do not fit each other.
pub fn product_shape(a: &[usize], b: &[usize]) -> MatmulShape {
    match (a, b) {
        (&[batch, m, k], &[batch_b, k_b, n]) if batch == batch_b && k == k_b => MatmulShape { batch, m, k, n },
        _ => panic!("matrix product of {a:?} and {b:?}"),
    }
}

impl Operation for Matmul {
    type Input<'a, F: Form> = (&'a F::Words, &'a F::Words);
    type Output<F: Form> = F::Words;
    type Size = MatmulShape;

    fn size<F: Form>(&self, (a, b): &(&F::Words, &F::Words)) -> MatmulShape {
        product_shape(&a.shape(), &b.shape())
    }

    fn correlations(&self, &MatmulShape { batch, m, k, n }: &MatmulShape, options: &Options) -> Option<Need> {
        options.preprocess.then(|| Need::new(Triple { batch, m, k, n, width: self.width }, 1))
    }

    fn cost(&self, &shape: &MatmulShape, prepared: bool, plans: &mut Plans) -> Result<Cost, Error> {
        if !prepared {
            return shared_cost(plans, shape, self.width);
        }
        let MatmulShape { batch, m, k, n } = shape;
        let opened = opening::open_cost(batch * (m * k + k * n), &[self.width]);
        Ok(opened.work_at_both(Kernel::WordTerm, 2 * batch * m * k * n))
    }

    fn run(
        &self,
        s: &mut Session,
        (a, b): (&ArrayD<u64>, &ArrayD<u64>),
        correlations: Option<&[u64]>,
    ) -> Result<ArrayD<u64>, Error> {
        let shape = product_shape(a.shape(), b.shape());
        let (a, b) = (flat(a), flat(b));
        let product = match correlations {
            Some(correlations) => prepared(s, shape, &a, &b, self.width, correlations)?,
            None => shared(s, shape, &a, &b, self.width)?,
        };
        Ok(shaped(&[shape.batch, shape.m, shape.n], product))
    }

    fn reference(
        &self,
        reference: &mut Reference,
        (a, b): (&ArrayD<u64>, &ArrayD<u64>),
    ) -> Result<ArrayD<u64>, Error> {
        let matrices = |x| integers(x, self.width).into_dimensionality::<Ix3>().expect("(batch, rows, columns)");
        reference.products("matmul", &matrices(a), &matrices(b), self.width)
    }

    fn planned(&self, MatmulShape { batch, m, n, .. }: MatmulShape) -> Shape {
        Shape(vec![batch, m, n])
    }
}

/// Random matrices A (batch, m, k) and B (batch, k, n), and A B. Unit: a batch of products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Triple {
    /// Independent products.
    pub batch: usize,
    /// Rows of A.
    pub m: usize,
    /// Columns of A.
    pub k: usize,
    /// Columns of B.
    pub n: usize,
    /// Bits of the ring.
    pub width: u32,
}

impl Triple {
    fn shape(&self) -> MatmulShape {
        let Triple { batch, m, k, n, .. } = *self;
        MatmulShape { batch, m, k, n }
    }
}

impl Correlation for Triple {
    fn dealt_words(&self) -> Option<u64> {
        let Triple { batch, m, k, n, width } = *self;
        let parts = [[batch, m, k], [batch, k, n], [batch, m, n]];
        in_range(width, parts.iter().try_fold(0u64, |all, part| all.checked_add(counted(part)?))?)
    }

    fn deal(&self, d: &mut Dealing<'_>, _: usize) -> Result<[Vec<u64>; 2], Error> {
        let Triple { batch, m, k, n, width } = *self;
        let (left, right, out) = (batch * m * k, batch * k * n, batch * m * n);
        let (a, b) = (d.draw_both(left, width), d.draw_both(right, width));
        let client = d.draw(Role::Client, out, width);
        let server = d.give(Role::Server, out, &[width], || {
            let whole = of_shares(self.shape(), [&a[0], &a[1]], [&b[0], &b[1]]);
            minus(&whole, client.iter().copied()).collect()
        })?;
        let [client_a, server_a] = a;
        let [client_b, server_b] = b;
        Ok([[client_a, client_b, client].concat(), [server_a, server_b, server].concat()])
    }

    fn scope(&self) -> &'static str {
        "matrix products"
    }

    fn words(&self, _: Role) -> usize {
        let Triple { batch, m, k, n, .. } = *self;
        batch * (m * k + k * n + m * n)
    }

    fn batch(&self, _: &Options) -> usize {
        1
    }

    /// Cost of one unit.
    fn cost(&self, plans: &mut Plans, _: usize) -> Result<Cost, Error> {
        Ok(shared_cost(plans, self.shape(), self.width)?.offline())
    }

    /// Makes one unit.
    fn make(&self, s: &mut Session, _: usize, _: &mut Pipeline<'_>) -> Result<Vec<u64>, Error> {
        let Triple { batch, m, k, n, width } = *self;
        let mut out = random(s, batch * (m * k + k * n), width);
        let (a, b) = out.split_at(batch * m * k);
        let product = shared(s, self.shape(), a, b, width)?;
        out.extend(product);
        Ok(out)
    }
}

const UPLOAD: &str = "matmul/upload";
const DOWNLOAD: &str = "matmul/download";

/// Shares of A B modulo 2^`width` from this party's shares, row-major: A (batch, m, k), B (batch, k, n).
pub(crate) fn shared(
    s: &mut Session,
    shape: MatmulShape,
    a: &[u64],
    b: &[u64],
    width: u32,
) -> Result<Vec<u64>, Error> {
    let (plan, transposed) = cheaper(s.plans(), shape, width)?;
    let (key, peer) = s.both_keys(plan.set(), plan.packed())?;
    let MatmulShape { batch, m, k, n } = shape;
    let (a, b) = (reduced(a, width), reduced(b, width));
    let (mine, other) =
        if transposed { (transpose(&b, batch, k, n), transpose(&a, batch, m, k)) } else { (a.clone(), b.clone()) };
    let upload = plan.encrypt(&key, &mine, s.rng())?;
    let theirs = s.channel().exchange(UPLOAD, &upload, plan.upload_bytes())?;
    let Split { message: download, share: mut cross } =
        plan.evaluate(peer.evaluation(), &theirs, None, Weights::U64(&other), None, s.rng())?;
    let response = s.channel().exchange(DOWNLOAD, &download, plan.download_bytes())?;
    let opened = plan.decrypt(&key, &response)?;
    cross.iter_mut().zip(opened).for_each(|(c, o)| *c = c.wrapping_add(o));
    if transposed {
        cross = transpose(&cross, batch, n, m);
    }
    let local = multiply(shape, &a, &b);
    cross.iter_mut().zip(local).for_each(|(c, l)| *c = c.wrapping_add(l));
    Ok(cross)
}

/// Shares of X Y, computed with one unit of `masks`.
fn prepared(
    s: &mut Session,
    shape: MatmulShape,
    x: &[u64],
    y: &[u64],
    width: u32,
    masks: &[u64],
) -> Result<Vec<u64>, Error> {
    let MatmulShape { batch, m, k, n } = shape;
    let (a, rest) = masks.split_at(batch * m * k);
    let (b, ab) = rest.split_at(batch * k * n);
    let mut difference: Vec<u64> = minus(x, a.iter().copied()).collect();
    difference.extend(minus(y, b.iter().copied()));
    let opened = opening::masked(s, &difference, a.iter().chain(b).copied(), &[width])?;
    let (d, e) = opened.split_at(x.len());
    Ok(open_products(shape, s.is_server(), [d, a], [e, b], ab))
}

pub(crate) fn shared_cost(plans: &mut Plans, shape: MatmulShape, width: u32) -> Result<Cost, Error> {
    let (plan, _) = cheaper(plans, shape, width)?;
    let (up, down) = (plan.upload_bytes(), plan.download_bytes());
    let (set, packed) = (plan.set(), plan.packed());
    let work = plan.work();
    let MatmulShape { batch, m, k, n } = shape;
    let cost = Cost::free()
        .keys(Role::Client, set, packed)
        .keys(Role::Server, set, packed)
        .work_at_both(Kernel::OpenWord, batch * (m * k + k * n))
        .work_at_both(Kernel::Encrypt, work.encrypted as usize)
        .exchange(up, up);
    let evaluated = [Role::Client, Role::Server].into_iter().fold(cost, |cost, role| cost.evaluates(role, &work));
    Ok(evaluated
        .exchange(down, down)
        .work_at_both(Kernel::Decrypt, work.opened as usize)
        .work_at_both(Kernel::WordTerm, batch * m * k * n))
}

/// The plan that takes less time of two: one encrypts A, the other encrypts B and multiplies transposed matrices. The
/// bool says whether it is the second one.
fn cheaper(plans: &mut Plans, shape: MatmulShape, width: u32) -> Result<(Arc<MatmulPlan>, bool), Error> {
    let MatmulShape { batch, m, k, n } = shape;
    let straight = plans.matmul(MatmulSpec { shape, width, weight_bits: width })?;
    let turned = MatmulShape { batch, m: n, k, n: m };
    let transposed = plans.matmul(MatmulSpec { shape: turned, width, weight_bits: width })?;
    Ok(if transposed.seconds() < straight.seconds() { (transposed, true) } else { (straight, false) })
}

/// (batch, rows, columns) -> (batch, columns, rows).
fn transpose(x: &[u64], batch: usize, rows: usize, columns: usize) -> Vec<u64> {
    let mut out = Vec::with_capacity(x.len());
    for item in 0..batch {
        for c in 0..columns {
            out.extend((0..rows).map(|r| x[(item * rows + r) * columns + c]));
        }
    }
    out
}

/// The product of A and B in the clear, modulo 2^64. The protocols compute their local terms with it, and it is their
/// naive reference.
pub fn multiply(shape: MatmulShape, a: &[u64], b: &[u64]) -> Vec<u64> {
    let MatmulShape { m, k, n, .. } = shape;
    let mut out = vec![0u64; shape.batch * m * n];
    out.par_chunks_mut(n).enumerate().for_each(|(row, out)| {
        let b = &b[row / m * k * n..];
        for (j, &a) in a[row * k..(row + 1) * k].iter().enumerate() {
            out.iter_mut().zip(&b[j * n..(j + 1) * n]).for_each(|(o, b)| *o = o.wrapping_add(a.wrapping_mul(*b)));
        }
    });
    out
}
/// X Y from both parties' shares of X and of Y.
pub(crate) fn of_shares(shape: MatmulShape, x: [&[u64]; 2], y: [&[u64]; 2]) -> Vec<u64> {
    let sum = |[a, b]: [&[u64]; 2]| -> Vec<u64> { a.iter().zip(b).map(|(a, b)| a.wrapping_add(*b)).collect() };
    multiply(shape, &sum(x), &sum(y))
}
