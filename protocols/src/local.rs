//! Both parties in one process: two threads over an in-memory link. This is for examples, tests and benchmarks.
//! Parties on two machines each open a [`Session`] over [`waggle_net::tcp`] and run the same code.
//!
//! ```
//! use ndarray::arr1;
//! use waggle_net::Role;
//! use waggle_protocols::local::Pair;
//! use waggle_protocols::ops::mul::Mul;
//! use waggle_protocols::ops::reveal::Reveal;
//! use waggle_protocols::{Abb, Options};
//!
//! # fn main() -> Result<(), waggle_protocols::Error> {
//! let [opened, nothing] = Pair::new(Options::default())?.run(|abb| {
//!     let x = abb.input(Role::Client, &[1], Some(&arr1(&[6]).into_dyn()))?;
//!     let y = abb.input(Role::Server, &[1], Some(&arr1(&[7]).into_dyn()))?;
//!     let xy = abb.apply(Mul { width: 64, error_bits: 0 }, (&x, &y))?;
//!     abb.apply(Reveal { width: 64, to: Role::Client }, &xy)
//! })?;
//! assert_eq!(opened, Some(arr1(&[42]).into_dyn()));
//! assert_eq!(nothing, None);
//! # Ok(())
//! # }
//! ```

use std::panic::resume_unwind;
use std::time::Duration;

use waggle_net::{Channel, Ledger, Link, LinkShape, NetError, Phase, Role, Shaped, memory_pair};

use crate::deal::{self, Helper, HelperLink};
use crate::halves::{self, Halves, HalvesOwner};
use crate::{Error, FixedMatrix, Needs, Options, Session, TwoParty, preparation};

/// The time for which a party waits for a message. Only a deadlock takes this long, because a party that fails hangs
/// up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);

/// Two connected parties with a session each. Keys and pools are kept from one [`Pair::run`] to the next.
pub struct Pair {
    /// The parties: the client, then the server.
    parties: [TwoParty; 2],
    /// The network that is imitated between each two machines. If there is none, they only share memory.
    network: Option<LinkShape>,
}

impl Pair {
    /// Connects two parties, who set up their sessions with `options`.
    pub fn new(options: Options) -> Result<Self, Error> {
        Pair::connect(|channel| Session::new(channel, options))
    }

    /// Connects two parties, each of whom gets its session from `open`, in a thread of its own.
    pub fn connect(open: impl Fn(Channel) -> Result<Session, Error> + Sync) -> Result<Self, Error> {
        Pair::over(None, open)
    }

    /// [`Pair::connect`] over an imitated network. Links to a helper imitate it, too.
    pub fn over(
        network: Option<LinkShape>,
        open: impl Fn(Channel) -> Result<Session, Error> + Sync,
    ) -> Result<Self, Error> {
        let parties = both(linked(network)?, |channel| open(channel).map(TwoParty::new))?;
        Ok(Pair { parties, network })
    }

    /// Runs `protocol` as both parties at once ([`Session::role`] tells which) and returns the client's result, then
    /// the server's. A party that fails hangs up, so that the other fails too. The error returned is that of the
    /// party that failed first, and later runs fail with [`NetError::Closed`]. A panic of either party is passed on.
    pub fn run<T: Send>(
        &mut self,
        protocol: impl Fn(&mut TwoParty) -> Result<T, Error> + Sync,
    ) -> Result<[T; 2], Error> {
        let [client, server] = &mut self.parties;
        both([client, server], |party| {
            let mut hang_up = HangUp { party, armed: true };
            let result = protocol(hang_up.party);
            hang_up.armed = result.is_err();
            result
        })
    }

    /// [`Pair::run`] with a helper in a thread of its own, who deals what `needs` list to a session of
    /// [`Options::helper`]. If the helper deals products with weights, it gets its halves of the matrices that
    /// `matrix` returns by name. Returns the helper's ledger of its link to each party, too.
    pub fn run_with_helper<'m, T: Send>(
        &mut self,
        needs: &Needs,
        matrix: impl Fn(&str) -> Option<&'m FixedMatrix>,
        protocol: impl Fn(&mut TwoParty) -> Result<T, Error> + Sync,
    ) -> Result<([T; 2], [Ledger; 2]), Error> {
        let deals = self.parties[0].session().options().helper;
        let demands = preparation::demands(needs, self.parties[0].session().plans());
        let ([client, to_client], [server, to_server]) = (linked(self.network)?, linked(self.network)?);
        std::thread::scope(|scope| {
            let mut channels = [to_client, to_server];
            let (demands, seed) = (&demands, HalvesOwner::new(&mut rand::rng()).seed());
            let helper = scope.spawn(move || {
                let mut halves = Halves::default();
                for row in deal::rows(demands) {
                    halves.receive(&mut channels[Role::Server as usize], row)?;
                }
                let mut helper = Helper::open(&mut channels, deals, &mut rand::rng())?;
                helper.serve(&mut channels, Phase::Offline, demands, &halves)
            });
            let mut ends = [client, server];
            // The helper sends seeds when it has all halves.
            for row in deal::rows(demands) {
                halves::send(&mut ends[Role::Server as usize], &seed, row, matrix(&row.weight))?;
            }
            for (party, channel) in self.parties.iter_mut().zip(ends) {
                let role = party.session().role();
                let seed = Some(seed.clone()).filter(|_| role == Role::Client);
                *party.helper() = Some(HelperLink::new(role, channel, deals, seed)?);
            }
            let results = self.run(protocol);
            let mut hang_up = |role: Role| {
                let helper = self.parties[role as usize].helper().take();
                helper.map(|mut helper| std::mem::take(helper.channel().ledger_mut())).unwrap_or_default()
            };
            let ledgers = [hang_up(Role::Client), hang_up(Role::Server)];
            let dealt = helper.join().unwrap_or_else(|panic| resume_unwind(panic));
            let results = results?;
            dealt.map(|()| (results, ledgers))
        })
    }

    /// The client's ledger. The server's is the same except for times.
    pub fn ledger(&mut self) -> &mut Ledger {
        self.parties[Role::Client as usize].session().channel().ledger_mut()
    }

    /// One party.
    pub fn party(&mut self, role: Role) -> &mut TwoParty {
        &mut self.parties[role as usize]
    }
}

/// Disconnects a party that fails or panics, so that the other does not wait for it.
struct HangUp<'a> {
    party: &'a mut TwoParty,
    armed: bool,
}

impl Drop for HangUp<'_> {
    fn drop(&mut self) {
        if self.armed {
            let role = self.party.session().role();
            // The other end of a fresh link is dropped at once: everything sent or awaited from now on fails.
            *self.party.session().channel() = Channel::new(role, memory_pair(PATIENCE).0);
        }
    }
}

/// The ends of a link: the client's, then the server's.
fn linked(network: Option<LinkShape>) -> Result<[Channel; 2], Error> {
    let (client, server) = memory_pair(PATIENCE);
    Ok([end(network, Role::Client, client)?, end(network, Role::Server, server)?])
}

fn end(network: Option<LinkShape>, role: Role, link: impl Link + 'static) -> Result<Channel, Error> {
    let Some(shape) = network else { return Ok(Channel::new(role, link)) };
    let shaped = Shaped::new(link, shape).map_err(|source| NetError::Io { step: "shape the link", source })?;
    Ok(Channel::new(role, shaped))
}

/// Runs `task` on both values in two threads.
fn both<V: Send, T: Send>(
    [client, server]: [V; 2],
    task: impl Fn(V) -> Result<T, Error> + Sync,
) -> Result<[T; 2], Error> {
    let results = std::thread::scope(|scope| {
        let other = scope.spawn(|| task(client));
        let server = task(server);
        [other.join().unwrap_or_else(|panic| resume_unwind(panic)), server]
    });
    match results {
        [Ok(client), Ok(server)] => Ok([client, server]),
        // The party whose peer hung up is not to blame.
        [Err(Error::Net(NetError::Closed { .. })), Err(error)] | [Err(error), _] | [_, Err(error)] => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Abb;
    use crate::ops::AtLeast;
    use crate::options::DEALER;

    #[test]
    fn a_party_that_fails_does_not_leave_the_other_waiting() {
        for culprit in [Role::Client, Role::Server] {
            let mut pair = Pair::new(DEALER).expect("set-up");
            let failed = pair.run(|abb| {
                if abb.session().role() == culprit {
                    return Err(waggle_engine::Error::Token { id: 5, vocabulary: 3 }.into());
                }
                let x = abb.constant(&[4], 1);
                abb.apply(AtLeast { thresholds: &[0], width: 20 }, &x)
            });
            let refused = matches!(failed, Err(Error::Engine(waggle_engine::Error::Token { id: 5, vocabulary: 3 })));
            assert!(refused, "{culprit:?}: {:?}", failed.err());
            let again = pair.run(|abb| {
                let x = abb.constant(&[4], 1);
                abb.apply(AtLeast { thresholds: &[0], width: 20 }, &x)
            });
            assert!(matches!(again, Err(Error::Net(_))), "{culprit:?}");
        }
    }

    #[test]
    #[should_panic(expected = "out of cheese")]
    fn a_panic_is_passed_on_at_once() {
        let mut pair = Pair::new(DEALER).expect("set-up");
        let _ = pair.run(|abb| {
            assert_ne!(abb.session().role(), Role::Client, "out of cheese");
            let x = abb.constant(&[4], 1);
            abb.apply(AtLeast { thresholds: &[0], width: 20 }, &x).map(|_| ())
        });
    }
}
