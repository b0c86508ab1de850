//! Plans of operations, which cost estimates and protocols share.

use std::collections::HashMap;
use std::sync::Arc;

use he::{MatmulPlan, MatmulSpec, OleKind, OlePlan, PlanOptions, SeededPlan};

use crate::lengths::Counts;
use crate::{Error, Options};

/// Plans of HE operations and of tournaments, kept by shape: searching for them again in a loop over many tokens
/// would be slow.
#[derive(Debug)]
pub struct Plans {
    options: Options,
    plan_options: PlanOptions,
    /// Words of the masks of a cached operand that are made at once, a bound on memory.
    pub(crate) operand_batch: u64,
    /// Bits on the wire that one random correlated OT is assumed to cost when strategies are compared.
    pub(crate) cot_bits: usize,
    matmul: HashMap<MatmulSpec, Arc<MatmulPlan>>,
    seeded: HashMap<MatmulSpec, Arc<SeededPlan>>,
    ole: HashMap<(usize, u32, OleKind), Arc<OlePlan>>,
    rounds: HashMap<(Counts, u32), Arc<[usize]>>,
}

impl Plans {
    /// No plans yet, to be made under `options`.
    pub fn new(options: Options) -> Self {
        let plan_options = PlanOptions {
            bytes_per_second: options.link.bytes_per_second,
            packing: options.packing,
            cores: options.cores,
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
        let plan = Arc::new(MatmulPlan::with_options(spec, self.plan_options)?);
        self.matmul.insert(spec, plan.clone());
        Ok(plan)
    }

    /// The plan of a matrix product whose operand is random.
    pub fn seeded(&mut self, spec: MatmulSpec) -> Result<Arc<SeededPlan>, Error> {
        if let Some(plan) = self.seeded.get(&spec) {
            return Ok(plan.clone());
        }
        let plan = Arc::new(SeededPlan::with_options(spec, self.plan_options)?);
        self.seeded.insert(spec, plan.clone());
        Ok(plan)
    }

    /// The rounds of a tournament on rows of words of `width` bits, which `search` finds the first time.
    pub(crate) fn rounds(
        &mut self,
        rows: &Counts,
        width: u32,
        search: impl FnOnce(&Options) -> Vec<usize>,
    ) -> Arc<[usize]> {
        let options = &self.options;
        self.rounds.entry((rows.clone(), width)).or_insert_with(|| search(options).into()).clone()
    }

    /// The plan of elementwise products.
    pub fn ole(&mut self, len: usize, width: u32, kind: OleKind) -> Result<Arc<OlePlan>, Error> {
        if let Some(plan) = self.ole.get(&(len, width, kind)) {
            return Ok(plan.clone());
        }
        let plan = Arc::new(OlePlan::new(len, width, kind)?);
        self.ole.insert((len, width, kind), plan.clone());
        Ok(plan)
    }
}
