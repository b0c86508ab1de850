//! Tests of protocols for which the internals of this crate are needed. Both parties run in one process, in two
//! threads.

mod fuzz;
mod masked;
mod view;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::local::Pair;
use crate::{Error, Options, TwoParty};

/// The client's and the server's result of `protocol`.
fn both<T: Send>(options: Options, protocol: impl Fn(&mut TwoParty) -> Result<T, Error> + Sync) -> [T; 2] {
    Pair::new(options).expect("set-up").run(protocol).expect("protocol")
}

fn share(values: &[u64], seed: u64) -> [Vec<u64>; 2] {
    let mut rng = StdRng::seed_from_u64(seed);
    let client: Vec<u64> = values.iter().map(|_| rng.next_u64()).collect();
    let server = values.iter().zip(&client).map(|(v, c)| v.wrapping_sub(*c)).collect();
    [client, server]
}
