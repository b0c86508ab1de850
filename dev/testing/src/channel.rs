//! The law at the channel: the messages of a party have the same distribution whatever the party holds.
//!
//! The parties run a function many times with one secret, and as often with another secret that changes what one
//! party holds: its shares of the operands, and what it alone knows. The other party holds the same in all runs, so a
//! share that is sent bare differs as the secrets do. Two tests look at all bits of each message:
//!
//! - *Every bit by itself.* The test counts the runs with each secret in which the bit is set. With n runs each, the
//!   counts of two equal distributions differ by d or more with a probability of 2 e^(-d^2/n) at most (Serfling,
//!   1974).
//! - *All bits together.* The first half of the runs gives each bit a weight: how much more often it is set with one
//!   secret. The sum of the weights of the set bits ranks the messages of the second half, which the rank-sum test
//!   compares (Mann and Whitney, 1947). It assumes nothing of how bits depend on each other.
//!
//! A right protocol fails the first test with a probability below [`CHANCE`] for each message, and the second test
//! with a probability below 10^-9, at [`MOST_RANKED`] standard deviations. Sessions draw from fixed seeds, except
//! those with a helper.
//!
//! A message that looks random by itself may still tell something to a party that knows its mask. Words that are
//! opened under masks have [laws](crate::laws) of their own.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use waggle_net::{Channel, Link, Role, memory_pair};
use waggle_protocols::audit::{Audit, Broken};
use waggle_protocols::local::Pair;
use waggle_protocols::operation::shaped;
use waggle_protocols::{Error, HelperDeals, Needs, Options, Session, TwoParty};

use crate::laws::{Laws, OPERAND_BATCH, Shares};

/// Runs with each secret. The number is even, because a test divides the runs into halves.
pub const RUNS: usize = 64;

/// The largest probability with which equal distributions of a message fail the test of single bits.
pub const CHANCE: f64 = 1e-9;

/// Most standard deviations that the rank-sum test allows.
pub const MOST_RANKED: f64 = 6.0;

/// The longest wait for a message.
const PATIENCE: Duration = Duration::from_secs(600);

/// The tag of a message, and its payload.
type Message = (u32, Vec<u8>);

/// What both parties sent in one run.
type Sent = [Vec<Message>; 2];

/// A link that keeps what its party sends.
struct Tap<L> {
    link: L,
    sent: Arc<Mutex<Vec<u8>>>,
}

impl<L: Link> Link for Tap<L> {
    waggle_net::forward_link!(self => self.link; recv timeout take_sender close read_ahead exporter wire_bytes);

    fn send(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).extend(&bytes);
        self.link.send(bytes)
    }
}

/// The messages whose frames are `bytes`.
fn messages(mut bytes: &[u8]) -> Vec<Message> {
    let mut all = Vec::new();
    while let Some((header, rest)) = bytes.split_first_chunk::<8>() {
        let [len, tag] = [0, 4].map(|at| u32::from_le_bytes([0, 1, 2, 3].map(|i| header[at + i])));
        let (payload, rest) = rest.split_at(len as usize);
        all.push((tag, payload.to_vec()));
        bytes = rest;
    }
    all
}

/// How correlations come to the parties.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Made {
    /// The parties make them in every run.
    Together,
    /// A helper deals the correlations of all runs.
    Dealt,
}

impl Laws<'_> {
    /// Holds the function to the law at the [`channel`](crate::channel): no message of a party shows whether the
    /// party holds the secret of `self` or that of `other`, which has operands of the same shapes. With `afresh`
    /// every run has a session of its own.
    ///
    /// The test is checked, too: where all runs use the same units of correlations, it must notice that messages tell
    /// something.
    ///
    /// # Panics
    /// If a message tells something, or if the test does not notice a message that must tell something.
    pub fn hides(&self, other: &Self, afresh: bool) {
        for &options in &self.usages {
            self.holds(other, options, afresh, Made::Together);
            let needs = self.needs(options, 1);
            if !options.preprocess || needs.units.is_empty() && needs.operands.is_empty() {
                continue;
            }
            let weights = needs.units.keys().any(|kind| kind.weight().is_some());
            let helper = if weights { HelperDeals::Weights } else { HelperDeals::Words };
            self.holds(other, Options { helper, ..options }, afresh, Made::Dealt);
            if !afresh {
                let found = self.told(other, options, afresh, Made::Together, Some(Broken::Units));
                assert!(found.is_some(), "channel: {} under one mask tells nothing", self.name());
            }
        }
    }

    fn holds(&self, other: &Self, options: Options, afresh: bool, made: Made) {
        if let Some(told) = self.told(other, options, afresh, made, None) {
            panic!("channel: {told}, of {} under {options:?}", self.name());
        }
    }

    /// The message that tells something, and how it does; `None` if no message tells anything.
    fn told(
        &self,
        other: &Self,
        options: Options,
        afresh: bool,
        made: Made,
        broken: Option<Broken>,
    ) -> Option<String> {
        let [same, client, server] = [None, Some(Role::Client), Some(Role::Server)]
            .map(|changed| self.sent(other, options, afresh, made, (changed, broken)));
        for (role, changed) in [(Role::Client, client), (Role::Server, server)] {
            let of = |runs: &[Sent]| runs.iter().map(|sent| sent[role as usize].clone()).collect::<Vec<_>>();
            let runs = [of(&same), of(&changed)];
            let shape =
                |sent: &[Message]| sent.iter().map(|(tag, payload)| (*tag, payload.len())).collect::<Vec<_>>();
            let expected = shape(&runs[0][0]);
            if runs.iter().flatten().any(|sent| shape(sent) != expected) {
                return Some(format!("the lengths of the messages of the {role:?} differ from run to run"));
            }
            for (i, (tag, len)) in expected.into_iter().enumerate() {
                let payloads = runs.each_ref().map(|runs| runs.iter().map(|sent| &sent[i].1[..]).collect::<Vec<_>>());
                if let Some(why) = differ(&payloads) {
                    let which = format!("message {i} of the {role:?}, {len} bytes tagged {tag:#x}");
                    return Some(format!("{which}, tells what it holds: {why}"));
                }
            }
        }
        None
    }

    /// What the parties send in [`RUNS`] runs. The party `changed`, if any, holds the secret of `other`.
    fn sent(
        &self,
        other: &Self,
        options: Options,
        afresh: bool,
        made: Made,
        (changed, broken): (Option<Role>, Option<Broken>),
    ) -> Vec<Sent> {
        let held = |role: Role| if changed == Some(role) { other } else { self };
        let mut masks = StdRng::seed_from_u64(5);
        // The client's shares are random. The party whose secret does not change has the same shares in all runs.
        let mut shared = |a: Vec<u64>, b: Vec<u64>, minus: fn(u64, u64) -> u64| {
            let client: Vec<u64> = a.iter().map(|_| masks.next_u64()).collect();
            let server: Vec<u64> = a.iter().zip(&client).map(|(x, client)| minus(*x, *client)).collect();
            let instead = |kept: &[u64]| b.iter().zip(kept).map(|(x, kept)| minus(*x, *kept)).collect();
            match changed {
                None => [client, server],
                Some(Role::Client) => [instead(&server), server],
                Some(Role::Server) => [client.clone(), instead(&client)],
            }
        };
        let words = self.words.iter().zip(&other.words).map(|(a, b)| {
            let [x, y] = [a, b].map(|words| words.iter().copied().collect());
            shared(x, y, u64::wrapping_sub).map(|share| shaped(a.shape(), share))
        });
        let words = words.collect();
        let bits = self.bits.iter().zip(&other.bits).map(|(a, b)| {
            let [x, y] = [a, b].map(|bits| bits.iter().map(|bit| u64::from(*bit)).collect());
            shared(x, y, |x, mask| x ^ mask).map(|share| shaped(a.shape(), share).mapv(|bit| (bit & 1) as u8))
        });
        let shares = Shares { words, bits: bits.collect() };
        let once = |abb: &mut TwoParty, needs: &Needs, taps: &[Arc<Mutex<Vec<u8>>>; 2]| {
            let role = abb.session().role();
            if made == Made::Together {
                let matrix =
                    |name: &str| held(Role::Server).weights.get(name).copied().filter(|_| role == Role::Server);
                abb.prepare(needs, matrix, &mut |_| ())?;
            }
            held(role).once(abb, &shares)?;
            abb.session().channel().flush("law")?;
            let sent = std::mem::take(&mut *taps[role as usize].lock().unwrap_or_else(PoisonError::into_inner));
            Ok(messages(&sent))
        };
        let sessions = if afresh { RUNS } else { 1 };
        let seed = changed.map_or(0, |role| 1 + role as u64);
        let mut all: Vec<Sent> = Vec::new();
        for session in 0..sessions {
            let (mut pair, taps) = tapped(options, seed << 32 | session as u64);
            for role in [Role::Client, Role::Server] {
                pair.party(role).session().set_audit(Audit::breaking(broken));
                pair.party(role).session().plans().operand_batch = OPERAND_BATCH;
            }
            let runs = RUNS / sessions;
            let needs = options
                .preprocess
                .then(|| self.needs(options, if made == Made::Dealt && !afresh { runs + 1 } else { 1 }));
            let needs = needs.unwrap_or_default();
            let matrix = |name: &str| held(Role::Server).weights.get(name).copied();
            let protocol = |abb: &mut TwoParty| -> Result<Vec<Vec<Message>>, Error> {
                if made == Made::Dealt {
                    let server = abb.session().is_server();
                    abb.prepare(&needs, |name| matrix(name).filter(|_| server), &mut |_| ())?;
                }
                // The first run of a session also sends keys, so it is left out.
                if !afresh {
                    once(abb, &needs, &taps)?;
                }
                (0..runs).map(|_| once(abb, &needs, &taps)).collect()
            };
            let sent = match made {
                Made::Dealt => pair.run_with_helper(&needs, matrix, protocol).map(|(sent, _)| sent),
                Made::Together => pair.run(protocol),
            };
            let [client, server] = sent.unwrap_or_else(|error| panic!("{} under {options:?}: {error}", self.name()));
            all.extend(client.into_iter().zip(server).map(|(client, server)| [client, server]));
        }
        all
    }
}

/// Two parties over the ideal dealer, and the bytes that each sends. All their random numbers follow from `seed`.
fn tapped(options: Options, seed: u64) -> (Pair, [Arc<Mutex<Vec<u8>>>; 2]) {
    assert_eq!(options.ot, waggle_ot::CotKind::Dealer, "sessions that draw from seeds");
    let taps: [Arc<Mutex<Vec<u8>>>; 2] = Default::default();
    let (client, server) = memory_pair(PATIENCE);
    let ends: [Mutex<Option<Box<dyn Link>>>; 2] = [
        Mutex::new(Some(Box::new(Tap { link: client, sent: taps[0].clone() }))),
        Mutex::new(Some(Box::new(Tap { link: server, sent: taps[1].clone() }))),
    ];
    let open = |channel: Channel| {
        let role = channel.role();
        let link = ends[role as usize].lock().unwrap_or_else(PoisonError::into_inner).take();
        let (sender, receiver) = waggle_ot::dealer::setup(role, seed);
        let rng = StdRng::seed_from_u64(seed ^ (1 + role as u64) << 60);
        let channel = Channel::new(role, link.expect("one session each"));
        Ok(Session::with_pools(channel, options, sender, receiver, rng))
    };
    (Pair::connect(open).expect("set-up over the dealer"), taps)
}

/// Why the payloads of two sets of [`RUNS`] have different distributions; `None` if they pass the tests. All payloads
/// have one length.
pub fn differ(runs: &[Vec<&[u8]>; 2]) -> Option<String> {
    let bits = 8 * runs[0][0].len();
    let counts = |runs: &[&[u8]]| {
        let mut counts = vec![0i32; bits];
        for payload in runs {
            for (counts, byte) in counts.as_chunks_mut::<8>().0.iter_mut().zip(*payload) {
                counts.iter_mut().enumerate().for_each(|(i, count)| *count += i32::from(byte >> i & 1));
            }
        }
        counts
    };
    let (half, runs_each) = (RUNS / 2, RUNS as f64);
    let halves = runs.each_ref().map(|runs| [counts(&runs[..half]), counts(&runs[half..])]);
    let difference = |half: usize, bit: usize| halves[0][half][bit] - halves[1][half][bit];
    let most = (runs_each * (2.0 * bits as f64 / CHANCE).ln()).sqrt();
    let of_bit = |bit: &usize| f64::from((difference(0, *bit) + difference(1, *bit)).abs());
    if let Some(bit) = (0..bits).find(|bit| of_bit(bit) > most) {
        return Some(format!("bit {bit} is set {} times more often in {RUNS} runs", of_bit(&bit)));
    }
    let weights: Vec<i32> = (0..bits).map(|bit| difference(0, bit)).collect();
    let score = |payload: &&[u8]| -> i64 {
        let bytes = weights.as_chunks::<8>().0.iter().zip(*payload);
        let of_byte = |(weights, byte): (&[i32; 8], &u8)| {
            weights.iter().enumerate().map(|(i, weight)| weight * i32::from(byte >> i & 1)).sum::<i32>()
        };
        bytes.map(|at| i64::from(of_byte(at))).sum()
    };
    let [first, second] = runs.each_ref().map(|runs| runs[half..].iter().map(score).collect::<Vec<i64>>());
    // The number of pairs in which the first score is larger, plus half the number of equal pairs.
    let wins: f64 = first.iter().flat_map(|a| second.iter().map(move |b| f64::from(a.cmp(b) as i32 + 1) / 2.0)).sum();
    let n = half as f64;
    let deviation = (wins - n * n / 2.0) / (n * n * (2.0 * n + 1.0) / 12.0).sqrt();
    (deviation > MOST_RANKED).then(|| format!("all bits together rank {deviation:.1} deviations apart"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random payloads of 40 bytes, one for each run. `spoil` gets the number of a run, and may change its payload.
    fn runs(seed: u64, spoil: impl Fn(usize, &mut [u8])) -> Vec<Vec<u8>> {
        let mut rng = StdRng::seed_from_u64(seed);
        let payload = |run: usize| {
            let mut bytes = vec![0; 40];
            rng.fill_bytes(&mut bytes);
            spoil(run, &mut bytes);
            bytes
        };
        (0..RUNS).map(payload).collect()
    }

    fn compared(a: &[Vec<u8>], b: &[Vec<u8>]) -> Option<String> {
        differ(&[a, b].map(|runs| runs.iter().map(|payload| &payload[..]).collect()))
    }

    #[test]
    fn a_bit_that_follows_the_secret_and_many_that_lean_to_it_are_noticed() {
        let plain = runs(1, |_, _| ());
        assert_eq!(compared(&plain, &runs(2, |_, _| ())), None);
        let one = runs(3, |_, bytes| bytes[17] |= 4);
        assert_eq!(compared(&one, &runs(4, |_, bytes| bytes[17] |= 4)), None, "a constant tells nothing");
        let why = compared(&one, &runs(5, |_, bytes| bytes[17] &= !4)).expect("a bit");
        assert!(why.starts_with("bit 138"), "{why}");
        // Three of four bytes have their highest bit, which is far from enough for any one of them.
        let leans = runs(6, |run, bytes| {
            bytes.iter_mut().enumerate().filter(|(i, _)| (run + i) % 4 > 0).for_each(|(_, byte)| *byte |= 128);
        });
        let why = compared(&leans, &plain).expect("all bits");
        assert!(why.starts_with("all bits"), "{why}");
    }
}
