//! Operations and functions between two parties, held against the box in the clear and against their plans.

/// Makes a [`Function`] of an expression over a box and its inputs.
macro_rules! function {
    ([$($name:ident : $ty:ty),*] |$abb:ident, $inputs:ident| $body:expr) => {{
        struct F { $($name: $ty),* }
        impl $crate::boxes::Function for F {
            fn call<B: waggle_protocols::Abb>(&self, $abb: &mut B, $inputs: &[B::Words]) -> Result<B::Words, waggle_protocols::Error> {
                let F { $($name),* } = self;
                $(let _ = $name;)*
                $body
            }
        }
        F { $($name),* }
    }};
}

mod cuts;
mod functions;
mod operands;
mod selection;
mod stock;
mod work;

use ndarray::{ArrayD, IxDyn};
use net::Phase;
use planner::Planner;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use testing::{DEALER, Outcome, TWO_PHASES};
use waggle_protocols::{Abb, Axis, CachedMatmul, CachedProduct, Error, FRAC, Operand, Options, Shape, TwoParty};

/// One phase and two phases.
const BOTH: [Options; 2] = [DEALER, TWO_PHASES];

/// Words of masks of cached operands that are made at once: few, so that several batches are needed.
const OPERAND_BATCH: u64 = 1 << 7;

/// Runs both parties of `protocol` in two threads, over the ideal dealer or over real OTs.
fn run<T: Send>(options: Options, protocol: impl Fn(&mut TwoParty) -> Result<T, Error> + Sync) -> [Outcome<T>; 2] {
    testing::run(options, |abb| {
        abb.session().plans().operand_batch = OPERAND_BATCH;
        protocol(abb)
    })
}

fn share(values: &[u64], seed: u64) -> [Vec<u64>; 2] {
    let mut rng = StdRng::seed_from_u64(seed);
    let client: Vec<u64> = values.iter().map(|_| rng.next_u64()).collect();
    let server = values.iter().zip(&client).map(|(v, c)| v.wrapping_sub(*c)).collect();
    [client, server]
}

fn own(abb: &mut TwoParty, shares: &[Vec<u64>; 2], shape: &[usize]) -> ArrayD<u64> {
    ArrayD::from_shape_vec(IxDyn(shape), testing::own(abb, shares).clone()).expect("shape")
}

/// A planner of sessions of [`run`].
fn planner(options: Options) -> Planner {
    let mut planner = Planner::new(options);
    planner.plans().operand_batch = OPERAND_BATCH;
    planner
}

/// Offline bytes of a plan that were not made ahead.
fn late(planner: &mut Planner) -> u64 {
    let ledger = planner.ledger();
    let ahead: u64 = ledger.divided().iter().map(|kind| kind.traffic.bytes()).sum();
    ledger.phase_total(Phase::Offline).bytes() - ahead
}

/// The sum of the words of a function between two parties, whose ledger must be that of its plan.
fn secure(options: Options, inputs: &[(&[u64], &[usize])], function: impl Function) -> Vec<u64> {
    let shares: Vec<[Vec<u64>; 2]> = (0..).zip(inputs).map(|(seed, (values, _))| share(values, seed)).collect();
    let [(client, client_ledger), (server, server_ledger)] = run(options, |abb| {
        let words: Vec<_> = shares.iter().zip(inputs).map(|(s, (_, shape))| own(abb, s, shape)).collect();
        function.call(abb, &words)
    });
    assert_eq!(client_ledger, server_ledger, "both ledgers");
    let mut planner = planner(options);
    let shapes: Vec<_> = inputs.iter().map(|(_, shape)| Shape(shape.to_vec())).collect();
    let planned = function.call(&mut planner, &shapes).expect("plan");
    assert_eq!(planned.0, client.shape(), "planned shape");
    assert_eq!(planner.ledger().untimed(), client_ledger, "planned ledger");
    client.iter().zip(&server).map(|(c, s)| c.wrapping_add(*s)).collect()
}

/// A function that runs on every box.
trait Function: Sync {
    fn call<B: Abb>(&self, abb: &mut B, inputs: &[B::Words]) -> Result<B::Words, Error>;
}

/// Numbers as a vector of words.
fn fixed(x: &[f64]) -> ArrayD<u64> {
    testing::to_fixed(&ndarray::arr1(x).into_dyn())
}

/// The number that a word stands for.
fn real(word: u64) -> f64 {
    word as i64 as f64 / f64::from(1u32 << FRAC)
}

/// A product with a cached operand.
fn cached<B: Abb>(
    b: &mut B,
    factors: [&B::Words; 2],
    width: u32,
    axis: Axis,
    operand: &mut Operand,
) -> Result<B::Words, Error> {
    let [a, m] = factors;
    Ok(b.apply(CachedMatmul { width }, vec![CachedProduct { a, b: m, axis, operand }])?.remove(0))
}
