//! Products with a matrix whose columns are divided among several processes.
//!
//! Products of integers ([`FixedMatrix::times`](crate::FixedMatrix::times)) are spread. The online phase takes no
//! other products, and neither does the run in the clear before a model is served. Columns are independent and exact
//! modulo 2^64, so the results are the same as with one process. Answers to a [`Prepared`] request are spread, too.
//! They are also the same as with one process, since each depends on its own columns alone. Products under encryption
//! in one phase take place in one process.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use waggle_engine::{ColumnRange, MatrixSource, largest};
use waggle_he::{HeError, MatmulShape, MatmulSpec, Packing, PlanOptions, ResponseSeeds, SeededPlan, Split, Weights};

use crate::{Error, FixedMatrix, PeerKeys};

/// How many numbers [`Prepared::to_bytes`] begins with.
const NUMBERS: usize = 11;
/// Bytes of these numbers and of the seeds that come after them.
const HEAD: usize = 8 * NUMBERS + ResponseSeeds::BYTES;

/// A function from row-major X' to X' W' modulo 2^64, where W' are the columns of a matrix that this process has.
pub type OwnProduct = Arc<dyn Fn(&[u64]) -> Vec<u64> + Send + Sync>;

/// A client's request for products of a random operand with a matrix of the server. Nothing of it is answered yet.
pub struct Prepared {
    /// The plan of the products.
    pub plan: Arc<SeededPlan>,
    /// The client's keys.
    pub keys: PeerKeys,
    /// The whole matrix.
    pub matrix: FixedMatrix,
    /// Seeds from which all responses are drawn. Secret, and fresh for each request.
    pub seeds: ResponseSeeds,
    /// The client's message.
    pub request: Vec<u8>,
}

impl Prepared {
    /// The responses, and the server's shares, for the packs of columns numbered `packs`. No other column is read.
    ///
    /// # Errors
    /// [`Error::He`] for a malformed request, the same for all packs.
    pub fn respond(&self, packs: Range<usize>) -> Result<Split, Error> {
        let (keys, weights) = (self.keys.evaluation(), Weights::Entries(&self.matrix));
        let kept = self.matrix.kept();
        Ok(self.plan.respond_part(keys, &self.request, weights, kept, &self.seeds, packs)?)
    }

    /// The whole answer, from the parts of all packs in order.
    ///
    /// # Errors
    /// [`Error::He`] if parts are missing.
    pub fn join(&self, parts: &[Split]) -> Result<Split, Error> {
        Ok(self.plan.join(&self.seeds, parts)?)
    }

    /// Everything but the matrix, as bytes for another process of the server.
    pub fn to_bytes(&self) -> Vec<u8> {
        let MatmulSpec { shape: MatmulShape { batch, m, k, n }, width, weight_bits } = *self.plan.spec();
        let PlanOptions { max_lsb_error, bytes_per_second, packing, cores } = *self.plan.options();
        let sizes = [batch, m, k, n].map(|size| size as u64);
        let small = [width, weight_bits, packing as u32, cores[0], cores[1]].map(u64::from);
        let numbers = [&sizes[..], &small, &[max_lsb_error, bytes_per_second]].concat();
        let numbers: Vec<u8> = numbers.into_iter().flat_map(u64::to_le_bytes).collect();
        [&numbers[..], &self.seeds.to_bytes(), &self.request, &self.keys.to_bytes(self.plan.packed())].concat()
    }

    /// Reads [`Prepared::to_bytes`]. Every process makes the same plan from the same numbers.
    ///
    /// # Errors
    /// [`Error::He`] if there is no such plan, and for malformed keys.
    pub fn from_bytes(bytes: &[u8], matrix: FixedMatrix) -> Result<Self, Error> {
        let short = || HeError::Length { message: "prepared product", expected: HEAD, got: bytes.len() };
        let (head, rest) = bytes.split_at_checked(HEAD).ok_or_else(short)?;
        let mut numbers = head.as_chunks().0.iter().map(|number| u64::from_le_bytes(*number));
        // A number out of range fits no plan.
        let mut next = || numbers.next().unwrap_or(u64::MAX);
        let mut size = || usize::try_from(next()).unwrap_or(usize::MAX);
        let shape = MatmulShape { batch: size(), m: size(), k: size(), n: size() };
        let mut small = || u32::try_from(next()).unwrap_or(u32::MAX);
        let spec = MatmulSpec { shape, width: small(), weight_bits: small() };
        let packing = match small() {
            0 => Packing::Auto,
            1 => Packing::Never,
            _ => Packing::Always,
        };
        let cores = [small(), small()];
        let options = PlanOptions { max_lsb_error: next(), bytes_per_second: next(), packing, cores };
        let plan = Arc::new(SeededPlan::with_options(spec, options)?);
        let seeds = ResponseSeeds::from_bytes(&head[8 * NUMBERS..])?;
        let (request, keys) = rest.split_at(plan.upload_bytes().min(rest.len()));
        let keys = PeerKeys::from_bytes(plan.set(), plan.packed(), keys)?;
        Ok(Prepared { plan, keys, matrix, seeds, request: request.to_vec() })
    }
}

/// Processes that multiply by the same matrices together. Each has a range of the columns of every matrix.
///
/// A matrix is known by its number: the weights are numbered in the order in which they are loaded, which is the same
/// in all processes.
pub trait Spread: Debug + Send + Sync {
    /// The columns of this process, for a matrix with `outputs` of them.
    fn columns(&self, outputs: usize) -> Range<usize>;

    /// The largest of the numbers `own` of all processes. Each process passes the number for its columns of the next
    /// matrix, and calls this once for each matrix.
    ///
    /// # Errors
    /// [`Error::Spread`] if a process cannot answer.
    fn largest(&self, own: f32) -> Result<f32, Error>;

    /// X W modulo 2^64 for row-major X, with the matrix W of number `number` and of shape `shape` (inputs, outputs).
    /// `own` multiplies rows, any number of them, by the columns of W that this process has.
    ///
    /// # Errors
    /// [`Error::Spread`] if a process cannot answer.
    fn times(&self, number: usize, shape: (usize, usize), own: OwnProduct, x: &[u64]) -> Result<Vec<u64>, Error>;

    /// The answer to the request `product` for the matrix of number `number`, and the server's share. Both are the
    /// same as if one process computed them with the same seeds.
    ///
    /// # Errors
    /// Errors of [`Prepared::respond`], and [`Error::Spread`] if a process cannot answer.
    fn respond(&self, number: usize, product: Prepared) -> Result<Split, Error>;
}

/// The largest magnitude of `matrix`. Every process looks at its own columns. If the columns of this process hold a
/// number that is not finite, this number is returned at once, without asking the other processes.
pub(crate) fn largest_of_all(spread: &dyn Spread, matrix: &Arc<dyn MatrixSource>) -> Result<f32, Error> {
    let own = ColumnRange::new(matrix.clone(), spread.columns(matrix.shape().1));
    let own = largest(&own);
    if own.is_finite() { spread.largest(own) } else { Ok(own) }
}
