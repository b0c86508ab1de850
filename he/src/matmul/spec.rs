//! The specification of a product: its shape, its widths, and the planner's options.

use crate::error::HeError;

/// `m * k`, `k * n` and `m * n`, each counted over all batch items, stay below this.
const MAX_ENTRIES: usize = 1 << 32;

/// The dimensions of a product: in each batch item, X (m x k, encrypted side) times W (k x n, plaintext side) gives Y
/// (m x n).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MatmulShape {
    /// Number of independent products.
    pub batch: usize,
    /// Rows of X.
    pub m: usize,
    /// Columns of X and rows of W.
    pub k: usize,
    /// Columns of W.
    pub n: usize,
}

/// A product to plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MatmulSpec {
    /// Dimensions of the product.
    pub shape: MatmulShape,
    /// Ring width l of X and Y, `1..=64`.
    pub width: u32,
    /// Bits of the entries of W, `1..=width`: signed integers with `|w| < 2^weight_bits`. With `weight_bits = width`
    /// an entry may be any ring element, which is read as a number of `[-2^(width-1), 2^(width-1))`.
    pub weight_bits: u32,
}

/// Whether many products of ciphertexts may share a response, which takes Galois keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Packing {
    /// Where it saves time.
    #[default]
    Auto,
    /// Never.
    Never,
    /// Wherever there is more than one product to send. Bytes then count for more than time, as if the link had an
    /// eighth of its rate.
    Always,
}

/// The planner's trade-offs. All of them are public: both parties must plan alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PlanOptions {
    /// Largest tolerated [`ProductPlan::lsb_error`](super::ProductPlan::lsb_error); at least 1.
    pub max_lsb_error: u64,
    /// Rate of the link in bytes per second, at least 1. It weighs bytes against computation. The default is 1
    /// Gbit/s.
    pub bytes_per_second: u64,
    /// When several products share a response.
    pub packing: Packing,
    /// Cores that the encrypting and the evaluating party are assumed to keep busy.
    pub cores: [u32; 2],
}

/// The default of both [`PlanOptions::cores`]. Most machines have fewer cores. The number is high so that of two
/// plans that take about as long, the one that sends less is chosen. With 12, 16, 24, 32 and 40 cores on `lan` (3
/// Gbit/s), a decode step of GPT-2 small takes 71.8, 62.1, 60.6, 56.9 and 55.1 MB in one phase; preparing one,
/// without seeds, takes 39.0, 37.7, 34.2, 30.0 and 29.6 MB.
pub const DEFAULT_CORES: u32 = 40;

impl Default for PlanOptions {
    fn default() -> Self {
        Self { max_lsb_error: 8, bytes_per_second: 125_000_000, packing: Packing::Auto, cores: [DEFAULT_CORES; 2] }
    }
}

impl MatmulSpec {
    /// Fails for a width out of range, an empty dimension or an operand of `2^32` entries.
    pub(crate) fn check(&self) -> Result<(), HeError> {
        HeError::check_width("ring width", 64, self.width)?;
        HeError::check_width("weight bits", self.width, self.weight_bits)?;
        let s = self.shape;
        let small = |a: usize, b: usize| {
            let entries = s.batch.checked_mul(a).and_then(|x| x.checked_mul(b));
            entries.is_some_and(|x| (1..MAX_ENTRIES).contains(&x))
        };
        if small(s.m, s.k) && small(s.k, s.n) && small(s.m, s.n) {
            return Ok(());
        }
        Err(HeError::Shape { step: "matmul" })
    }
}
