//! Sessions that make few masks of cached operands at once, as [`waggle_testing::laws`] has them.

use ndarray::{ArrayD, IxDyn};
use waggle_net::Phase;
use waggle_planner::Planner;
use waggle_protocols::{Abb, Axis, CachedMatmul, CachedProduct, Error, Operand, Options, TwoParty};
use waggle_testing::Outcome;
use waggle_testing::laws::OPERAND_BATCH;

/// Runs both parties of `protocol`.
pub(crate) fn run<T: Send>(
    options: Options,
    protocol: impl Fn(&mut TwoParty) -> Result<T, Error> + Sync,
) -> [Outcome<T>; 2] {
    waggle_testing::run(options, |abb| {
        abb.session().plans().operand_batch = OPERAND_BATCH;
        protocol(abb)
    })
}

/// `values` as fresh random shares.
pub(crate) fn share(values: &[u64], shape: &[usize]) -> [ArrayD<u64>; 2] {
    waggle_testing::share(&ArrayD::from_shape_vec(IxDyn(shape), values.to_vec()).expect("as many values"))
}

/// Offline bytes of a plan that were not made ahead.
pub(crate) fn late(planner: &mut Planner) -> u64 {
    let ledger = planner.ledger();
    let ahead: u64 = ledger.divided().iter().map(|kind| kind.traffic.bytes()).sum();
    ledger.phase_total(Phase::Offline).bytes() - ahead
}

/// A product with a cached operand.
pub(crate) fn cached<B: Abb>(
    b: &mut B,
    [a, m]: [&B::Words; 2],
    width: u32,
    axis: Axis,
    operand: &mut Operand,
) -> Result<B::Words, Error> {
    Ok(b.apply(CachedMatmul { width }, vec![CachedProduct { a, b: m, axis, operand }])?.remove(0))
}
