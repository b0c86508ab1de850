//! Protocols between two threads, held against naive twins and against their costs.

mod fuzz;
mod masked;
mod missing;
mod operands;
mod selection;
mod stock;
mod view;
mod work;

use std::time::Duration;

use ndarray::{ArrayD, IxDyn};
use net::{Channel, Entry, Phase, Role};
use ot::CotKind;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::abb::Abb;
use crate::audit::{Audit, Broken};
use crate::local::Pair;
use crate::{
    Axis, CachedMatmul, CachedProduct, DEFAULT_LINK, Error, Masks, Operand, Options, Packing, Planner, Session,
    TwoParty,
};

/// Options over the ideal dealer.
pub(crate) const DEALER: Options = Options {
    ot: CotKind::Dealer,
    preprocess: false,
    link: DEFAULT_LINK,
    packing: Packing::Auto,
    cores: crate::DEFAULT_CORES,
    masks: Masks::Seeded,
};

/// A link slower than the default.
const WAN: net::Shape = net::Shape { bytes_per_second: 50_000_000, round_trip: Duration::from_millis(4) };

/// The same in two phases, over a link slow enough that everything is prepared that can be.
pub(crate) const TWO_PHASES: Options = Options { preprocess: true, link: WAN, ..DEALER };

/// One phase and two phases.
pub(crate) const BOTH: [Options; 2] = [DEALER, TWO_PHASES];

/// What one party returned, with its ledger.
pub(crate) type Outcome<T> = (T, Vec<Entry>);

/// Runs both parties of `protocol` in two threads, over the ideal dealer or over real OTs.
pub(crate) fn run<T: Send>(
    options: Options,
    protocol: impl Fn(&mut TwoParty) -> Result<T, Error> + Sync,
) -> [Outcome<T>; 2] {
    let mut pair = Pair::connect(|channel| open(channel, options)).expect("set-up");
    let [client, server] = pair.run(protocol).expect("protocol");
    let mut untimed = |role| pair.party(role).session().channel().ledger().untimed();
    [(client, untimed(Role::Client)), (server, untimed(Role::Server))]
}

/// One party's session, over the ideal dealer or over real OTs.
pub(crate) fn open(channel: Channel, options: Options) -> Result<Session, Error> {
    let mut session = match options.ot {
        CotKind::Dealer => {
            let (sender, receiver) = ot::dealer::setup(channel.role(), 7);
            Session::with_pools(channel, options, sender, receiver, rand::make_rng())
        }
        _ => Session::new(channel, options)?,
    };
    session.plans().operand_batch = OPERAND_BATCH;
    Ok(session)
}

/// Words of masks of cached operands that are made at once: few, so that several batches are needed.
pub(crate) const OPERAND_BATCH: u64 = 1 << 7;

/// A planner of sessions from [`open`].
pub(crate) fn planner(options: Options) -> Planner {
    let mut planner = Planner::new(options);
    planner.plans().operand_batch = OPERAND_BATCH;
    planner
}

/// Offline bytes of a plan that were not made ahead.
pub(crate) fn late(planner: &mut Planner) -> u64 {
    let ledger = planner.ledger();
    let ahead: u64 = ledger.divided().iter().map(|kind| kind.traffic.bytes()).sum();
    ledger.phase_total(Phase::Offline).bytes() - ahead
}

/// Lets `s` go on where masks are missing, which an audit takes for one mask that comes again.
pub(crate) fn without_masks(s: &mut Session) {
    s.audit = Audit::breaking(Some(Broken::Units));
}

/// Random shares of `values`.
pub(crate) fn share(values: &[u64], seed: u64) -> [Vec<u64>; 2] {
    let mut rng = StdRng::seed_from_u64(seed);
    let client: Vec<u64> = values.iter().map(|_| rng.next_u64()).collect();
    let server = values.iter().zip(&client).map(|(v, c)| v.wrapping_sub(*c)).collect();
    [client, server]
}

/// This party's words of `shares`.
pub(crate) fn own(abb: &mut TwoParty, shares: &[Vec<u64>; 2], shape: &[usize]) -> ArrayD<u64> {
    ArrayD::from_shape_vec(IxDyn(shape), shares[abb.session().role() as usize].clone()).expect("shape")
}

/// Runs a function of hidden words between two parties, and as a plan, whose ledger must be equal. Returns the sum of
/// the parties' words.
pub(crate) fn secure(options: Options, inputs: &[(&[u64], &[usize])], function: impl Function) -> Vec<u64> {
    let shares: Vec<[Vec<u64>; 2]> = (0..).zip(inputs).map(|(seed, (values, _))| share(values, seed)).collect();
    let [(client, client_ledger), (server, server_ledger)] = run(options, |abb| {
        let words: Vec<_> = shares.iter().zip(inputs).map(|(s, (_, shape))| own(abb, s, shape)).collect();
        function.call(abb, &words)
    });
    assert_eq!(client_ledger, server_ledger, "both ledgers");
    let mut planner = planner(options);
    let shapes: Vec<_> = inputs.iter().map(|(_, shape)| crate::Shape(shape.to_vec())).collect();
    let planned = function.call(&mut planner, &shapes).expect("plan");
    assert_eq!(planned.0, client.shape(), "planned shape");
    assert_eq!(planner.ledger().untimed(), client_ledger, "planned ledger");
    client.iter().zip(&server).map(|(c, s)| c.wrapping_add(*s)).collect()
}

/// A product with a cached operand.
pub(crate) fn cached<B: Abb>(
    b: &mut B,
    factors: [&B::Words; 2],
    width: u32,
    axis: Axis,
    operand: &mut Operand,
) -> Result<B::Words, Error> {
    let [a, m] = factors;
    Ok(b.apply(CachedMatmul { width }, vec![CachedProduct { a, b: m, axis, operand }])?.remove(0))
}

/// A function that runs on every box.
pub(crate) trait Function: Sync {
    fn call<B: Abb>(&self, abb: &mut B, inputs: &[B::Words]) -> Result<B::Words, Error>;
}

/// Makes a [`Function`] of an expression over a box and its inputs.
#[macro_export]
macro_rules! function {
    ([$($name:ident : $ty:ty),*] |$abb:ident, $inputs:ident| $body:expr) => {{
        struct F { $($name: $ty),* }
        impl $crate::tests::Function for F {
            fn call<B: $crate::Abb>(&self, $abb: &mut B, $inputs: &[B::Words]) -> Result<B::Words, $crate::Error> {
                let F { $($name),* } = self;
                $(let _ = $name;)*
                $body
            }
        }
        F { $($name),* }
    }};
}
