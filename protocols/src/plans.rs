//! Plans of operations, which cost estimates and protocols share.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::sync::Arc;

use waggle_he::{MatmulPlan, MatmulShape, MatmulSpec, OleKind, OlePlan, PlanOptions, SeededPlan};

use crate::lengths::Counts;
use crate::{Error, Options};

/// Plans of HE operations and of tournaments, kept by shape, because a search for every token would be slow.
#[derive(Debug)]
pub struct Plans {
    options: Options,
    plan_options: PlanOptions,
    /// The most words of masks of a cached operand that are made at once. This limits the memory.
    pub operand_batch: u64,
    /// Bits on the wire that one random correlated OT is assumed to cost when strategies are compared.
    pub(crate) cot_bits: usize,
    matmul: HashMap<MatmulSpec, Arc<MatmulPlan>>,
    seeded: HashMap<MatmulSpec, Arc<SeededPlan>>,
    ole: HashMap<(usize, u32, u32, OleKind), Arc<OlePlan>>,
    /// Prices of a tournament's rounds, by the width of the words.
    prices: HashMap<u32, RoundPrices>,
    rounds: HashMap<(Counts, u32), Arc<[usize]>>,
}

/// Prices of a round of a tournament, in picoseconds.
#[derive(Clone, Debug)]
pub(crate) struct RoundPrices {
    /// Price of one comparison.
    pub(crate) pair: u128,
    /// Prices of one selection by 1, 2, ... bits.
    pub(crate) item: Vec<u128>,
    /// Price of the flows of a round.
    pub(crate) delay: u128,
}

impl Plans {
    /// An empty collection. Plans will be made under `options`.
    pub fn new(options: Options) -> Self {
        let plan_options = PlanOptions {
            bytes_per_second: options.link.bytes_per_second,
            packing: options.packing,
            ..PlanOptions::default()
        };
        let cot_bits = options.ot.bits_per_ot();
        Plans {
            options,
            plan_options,
            operand_batch: 1 << 22,
            cot_bits,
            matmul: HashMap::new(),
            seeded: HashMap::new(),
            ole: HashMap::new(),
            prices: HashMap::new(),
            rounds: HashMap::new(),
        }
    }

    /// The public choices that the plans follow.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The plan of a matrix product.
    pub fn matmul(&mut self, spec: MatmulSpec) -> Result<Arc<MatmulPlan>, Error> {
        if let Some(plan) = self.matmul.get(&spec) {
            return Ok(plan.clone());
        }
        let near = rounded(spec);
        let adapted = if near == spec { None } else { self.matmul(near).ok().and_then(|plan| plan.adapted(spec)) };
        let plan = match adapted {
            Some(plan) => plan,
            None => MatmulPlan::with_options(spec, self.options_of(&spec))?,
        };
        let plan = Arc::new(plan);
        self.matmul.insert(spec, plan.clone());
        Ok(plan)
    }

    /// The plan of a matrix product whose operand is random.
    pub fn seeded(&mut self, spec: MatmulSpec) -> Result<Arc<SeededPlan>, Error> {
        let options = self.options_of(&spec);
        known(&mut self.seeded, spec, || Ok(SeededPlan::with_options(spec, options)?))
    }

    fn options_of(&self, spec: &MatmulSpec) -> PlanOptions {
        PlanOptions { cores: self.options.cores.for_product(with_weights(spec)), ..self.plan_options }
    }

    /// The rounds of a tournament on `rows` of words of `width` bits, as the sizes of their groups. The first time,
    /// `search` finds them by the `prices` of rounds.
    pub(crate) fn rounds(
        &mut self,
        rows: &Counts,
        width: u32,
        prices: impl FnOnce(&Options) -> RoundPrices,
        search: impl FnOnce(&RoundPrices) -> Vec<usize>,
    ) -> Arc<[usize]> {
        let prices = self.prices.entry(width).or_insert_with(|| prices(&self.options));
        self.rounds.entry((rows.clone(), width)).or_insert_with(|| search(prices).into()).clone()
    }

    /// The plan of elementwise products that may be off by 2^`error_bits`.
    pub fn ole(&mut self, len: usize, width: u32, error_bits: u32, kind: OleKind) -> Result<Arc<OlePlan>, Error> {
        let key = (len, width, error_bits, kind);
        known(&mut self.ole, key, || Ok(OlePlan::within(len, width, error_bits, kind)?))
    }
}

/// The plan of `key`, which `make` makes the first time.
fn known<K: Eq + Hash, P>(
    plans: &mut HashMap<K, Arc<P>>,
    key: K,
    make: impl FnOnce() -> Result<P, Error>,
) -> Result<Arc<P>, Error> {
    Ok(match plans.entry(key) {
        Entry::Occupied(plan) => plan.get().clone(),
        Entry::Vacant(place) => place.insert(Arc::new(make()?)).clone(),
    })
}

/// A dimension from here on is rounded up for the plan of a product of shared matrices, so that many dimensions share
/// a plan: a cache grows by a token at a time, and a search for each length would be slow.
const LONG: usize = 512;

/// `spec` with long dimensions rounded up to four significant bits.
fn rounded(spec: MatmulSpec) -> MatmulSpec {
    if with_weights(&spec) {
        return spec;
    }
    let up = |n: usize| if n < LONG { n } else { n.next_multiple_of(1 << (n.ilog2() - 3)) };
    let MatmulShape { batch, m, k, n } = spec.shape;
    MatmulSpec { shape: MatmulShape { batch, m: up(m), k: up(k), n: up(n) }, ..spec }
}

/// Whether the plaintext operand is the matrix of a model.
fn with_weights(spec: &MatmulSpec) -> bool {
    spec.weight_bits < spec.width
}
