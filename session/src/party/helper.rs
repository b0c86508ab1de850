//! Sessions with a helper: a third machine that deals what is prepared and contains no weight ([`protocols::deal`]).
//!
//! Both parties state the helper's key in their handshake. When they have their base OTs, each opens a link of its own
//! to the helper and says what it needs, under the name of the session: the binding of the link between the two
//! ([`net::Channel::binding`]), which nobody else knows. It also names the key that the other party has proved. The
//! helper deals when both have asked for the same and each has proved the key that the other named, so that a
//! stranger gets no half.
//!
//! | message on a link to the helper | from | bytes |
//! |---|---|---|
//! | demands: protocol, session, role, digest of the other party's key, kinds and numbers | party | up to 4 MiB |
//! | verdict: empty, or why the helper refuses | helper | up to [`MAX_REASON_BYTES`](super::MAX_REASON_BYTES) |
//! | seeds, then words ([`protocols::deal::serve`]) | helper | as planned |

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use net::{Channel, Entry, HEADER_BYTES, Ledger, NetError, Role};
use protocols::deal::{self, Demand, Helper};
use protocols::{Needs, Plans, Secure, preparation};
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};
use tokenizer::printable;

use super::opening::{MAX_REASON_BYTES, PROTOCOL};
use super::{Caller, Terms, wire};
use crate::Error;

/// Longest list of demands.
const MAX_ASK_BYTES: usize = 4 << 20;
/// Most parties that wait for their peers at once.
const MOST_WAITING: usize = 1024;
const SCOPE: &str = "helper";
const ASK: &str = "helper/demands";
const VERDICT: &str = "helper/verdict";

/// Opens a link to the helper of a session, on which this party is the client, whichever it is of the two.
pub type ToHelper = Arc<dyn Fn() -> Result<Channel, NetError> + Send + Sync>;

/// What a party asks of a helper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Ask {
    #[serde(with = "postcard::fixint::le")]
    protocol: u32,
    session: [u8; 32],
    server: bool,
    peer: [u8; 32],
    demands: Vec<Demand>,
}

/// A party's key, in as many bytes where nothing is encrypted.
fn digest(key: Option<&str>) -> [u8; 32] {
    key.map_or([0; 32], |key| *blake3::hash(key.as_bytes()).as_bytes())
}

/// Asks the helper of a session of `terms`, if it has one, for what it deals of `needs`.
pub(super) fn meet(
    engine: &mut Secure,
    needs: &Needs,
    terms: &Terms,
    peer: &Caller,
    to_helper: Option<&ToHelper>,
) -> Result<(), Error> {
    if !terms.protocol.helper {
        return Ok(());
    }
    let to_helper = to_helper.ok_or(protocols::Error::NoHelper)?;
    let (role, session) = (engine.channel().role(), engine.channel().binding());
    let demands = preparation::demands(needs, engine.abb().session().plans());
    let ask =
        Ask { protocol: PROTOCOL, session, server: role == Role::Server, peer: digest(peer.key.as_deref()), demands };
    let named = |error: NetError| protocols::Error::Helper(Box::new(error.into()));
    let mut channel = to_helper().map_err(named)?;
    channel.ledger_mut().enter(SCOPE);
    wire::send(&mut channel, ASK, &ask, 0).map_err(named)?;
    let reason = channel.recv_up_to(VERDICT, MAX_REASON_BYTES).map_err(named)?;
    channel.ledger_mut().leave();
    if !reason.is_empty() {
        return Err(Error::HelperRefused { reason: printable(&String::from_utf8_lossy(&reason), MAX_REASON_BYTES) });
    }
    *engine.abb().helper() = Some(Helper::new(role, channel)?);
    Ok(())
}

/// Ends the link to the helper, which has dealt everything, and returns its account; nothing without a helper.
pub(super) fn leave(engine: &mut Secure) -> Option<Vec<Entry>> {
    engine.abb().helper().take().map(|mut helper| {
        let ledger = helper.channel().ledger_mut();
        ledger.checkpoint();
        ledger.entries()
    })
}

/// The accounts of both parties' links to the helper of a session that prepares `needs`.
pub(super) fn plan(needs: &Needs, plans: &Plans) -> Result<[Option<Vec<Entry>>; 2], Error> {
    if !plans.options().helper {
        return Ok([None, None]);
    }
    let demands = preparation::demands(needs, plans);
    let account = |role: Role| {
        let (session, peer) = ([0; 32], [0; 32]);
        let ask = Ask { protocol: PROTOCOL, session, server: role == Role::Server, peer, demands: demands.clone() };
        let mut ledger = Ledger::default();
        ledger.enter(SCOPE);
        ledger.book(Role::Client.sends(), (wire::encode(ASK, &ask, 0)?.len() + HEADER_BYTES) as u64);
        ledger.book(Role::Server.sends(), HEADER_BYTES as u64);
        ledger.leave();
        deal::plan(&mut ledger, role, &demands)?;
        Ok::<_, Error>(ledger.forget_times().entries())
    };
    Ok([Some(account(Role::Client)?), Some(account(Role::Server)?)])
}

/// Brings the two parties of each session together, for a helper.
pub struct Pairing {
    waiting: Mutex<HashMap<[u8; 32], Waiting>>,
    changed: Condvar,
    patience: Duration,
}

/// A party whose peer has not come yet.
struct Waiting {
    ask: Ask,
    /// Digest of the key that it proved.
    key: [u8; 32],
    channel: Channel,
}

/// What a helper dealt to the two parties of a session.
#[derive(Debug)]
pub struct DealtSession {
    /// The account of the link to the client, and that to the server.
    pub entries: [Vec<Entry>; 2],
}

impl Pairing {
    /// Parties wait for their peers for `patience` at most.
    pub fn new(patience: Duration) -> Self {
        Pairing { waiting: Mutex::default(), changed: Condvar::new(), patience }
    }

    /// Serves the party `caller` at the other end of `channel`: waits for its peer, or deals to both if that waits
    /// already. Returns what was dealt to the call that did it.
    ///
    /// # Errors
    /// [`Error::HelperRefused`] where the parties do not ask for the same, or nobody else comes, which they are told;
    /// those of the links.
    pub fn attend(&self, mut channel: Channel, caller: &Caller) -> Result<Option<DealtSession>, Error> {
        channel.ledger_mut().enter(SCOPE);
        let ask: Ask = wire::receive(&mut channel, ASK, 0..=MAX_ASK_BYTES)?;
        if let Some(reason) = check(&ask) {
            return Err(refuse([channel], reason));
        }
        let here = Waiting { key: digest(caller.key.as_deref()), ask, channel };
        let session = here.ask.session;
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(there) = waiting.remove(&session) else {
            if waiting.len() >= MOST_WAITING {
                drop(waiting);
                return Err(refuse([here.channel], "too many sessions wait for their parties".into()));
            }
            waiting.insert(session, here);
            let absent = |waiting: &mut HashMap<_, _>| waiting.contains_key(&session);
            let waited = self.changed.wait_timeout_while(waiting, self.patience, absent);
            let (mut waiting, _) = waited.unwrap_or_else(PoisonError::into_inner);
            let alone = waiting.remove(&session);
            drop(waiting);
            return match alone {
                Some(alone) => Err(refuse([alone.channel], "the other party did not come".into())),
                None => Ok(None),
            };
        };
        drop(waiting);
        self.changed.notify_all();
        self.deal(here, there).map(Some)
    }

    fn deal(&self, here: Waiting, there: Waiting) -> Result<DealtSession, Error> {
        let reason = match (&here.ask, &there.ask) {
            (a, b) if a.server == b.server => Some("both parties have one role"),
            (a, b) if a.demands != b.demands => Some("the parties ask for different correlations"),
            (a, b) if a.peer != there.key || b.peer != here.key => {
                Some("a party is not the one whose key the other named")
            }
            _ => None,
        };
        if let Some(reason) = reason {
            return Err(refuse([here.channel, there.channel], reason.into()));
        }
        let demands = here.ask.demands;
        let [client, server] =
            if here.ask.server { [there.channel, here.channel] } else { [here.channel, there.channel] };
        let mut channels = [client, server];
        for channel in &mut channels {
            channel.send(VERDICT, &[])?;
            channel.ledger_mut().leave();
        }
        let mut rng: StdRng = rand::make_rng();
        deal::serve(&mut channels, &demands, &mut rng)?;
        let entries = channels.each_ref().map(|channel| channel.ledger().entries());
        for channel in channels {
            channel.close(VERDICT)?;
        }
        Ok(DealtSession { entries })
    }
}

/// Why nobody deals this.
fn check(ask: &Ask) -> Option<String> {
    if ask.protocol != PROTOCOL {
        return Some(format!("the helper speaks protocol {PROTOCOL} of Waggle, and this party {}", ask.protocol));
    }
    ask.demands.iter().find_map(|demand| demand.check().err()).map(|error| error.to_string())
}

/// Tells parties why they are refused.
fn refuse(channels: impl IntoIterator<Item = Channel>, reason: String) -> Error {
    for mut channel in channels {
        // A party that has left needs no reason.
        let told = channel.send(VERDICT, printable(&reason, MAX_REASON_BYTES).as_bytes());
        drop(told.and_then(|()| channel.close(VERDICT)));
    }
    Error::HelperRefused { reason }
}
