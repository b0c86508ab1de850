//! Protocols between two threads, held against naive twins and against their costs.

mod fuzz;
mod masked;
mod view;

use std::time::Duration;

use ndarray::{ArrayD, IxDyn};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use waggle_net::{Channel, Entry, Role};
use waggle_ot::CotKind;

use crate::local::Pair;
use crate::{Error, Options, Session, TwoParty};

pub(crate) const DEALER: Options = Options { ot: CotKind::Dealer, ..Options::DEFAULT };

const WAN: waggle_net::LinkShape =
    waggle_net::LinkShape { bytes_per_second: 50_000_000, round_trip: Duration::from_millis(4) };

/// [`DEALER`] in two phases, over a link slow enough that everything is prepared that can be.
pub(crate) const TWO_PHASES: Options = Options { preprocess: true, link: WAN, ..DEALER };

pub(crate) type Outcome<T> = (T, Vec<Entry>);

/// Runs both parties of `protocol` in two threads, over the ideal dealer.
pub(crate) fn run<T: Send>(
    options: Options,
    protocol: impl Fn(&mut TwoParty) -> Result<T, Error> + Sync,
) -> [Outcome<T>; 2] {
    let mut pair = Pair::connect(|channel| open(channel, options)).expect("set-up");
    let [client, server] = pair.run(protocol).expect("protocol");
    let mut untimed = |role| pair.party(role).session().channel().ledger().untimed();
    [(client, untimed(Role::Client)), (server, untimed(Role::Server))]
}

/// One party's session over the ideal dealer.
pub(crate) fn open(channel: Channel, options: Options) -> Result<Session, Error> {
    let (sender, receiver) = waggle_ot::dealer::setup(channel.role(), 7);
    Ok(Session::with_pools(channel, options, sender, receiver, rand::make_rng()))
}

pub(crate) fn share(values: &[u64], seed: u64) -> [Vec<u64>; 2] {
    let mut rng = StdRng::seed_from_u64(seed);
    let client: Vec<u64> = values.iter().map(|_| rng.next_u64()).collect();
    let server = values.iter().zip(&client).map(|(v, c)| v.wrapping_sub(*c)).collect();
    [client, server]
}

pub(crate) fn own(abb: &mut TwoParty, shares: &[Vec<u64>; 2], shape: &[usize]) -> ArrayD<u64> {
    ArrayD::from_shape_vec(IxDyn(shape), shares[abb.session().role() as usize].clone()).expect("shape")
}
