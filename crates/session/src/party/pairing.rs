//! A helper's end of its sessions. It brings two parties together, checks that each proves the key that the other
//! named, and deals. [`super::helper`] has the parties' end, and the messages.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use waggle_net::{Channel, Entry, Phase, Role};
use waggle_protocols::HelperDeals;
use waggle_protocols::deal::{self, Demand, Helper};
use waggle_protocols::halves::{self, Halves};
use waggle_tokenizer::printable;

use super::helper::{ASK, Ask, KEY, MAX_ASK_BYTES, PASS, SCOPE, VERDICT, digest};
use super::kept::{Kept, Lease};
use super::opening::{MAX_REASON_BYTES, PROTOCOL};
use super::{Peer, wire};
use crate::Error;

/// Most parties that wait for their peers at once.
const MOST_WAITING: usize = 1024;

/// Brings the two parties of each session together, for a helper.
pub struct Pairing {
    waiting: Mutex<HashMap<[u8; 32], Waiting>>,
    changed: Condvar,
    patience: Duration,
    /// Digest of the helper's key, if it proves one.
    own: Option<[u8; 32]>,
    kept: Arc<Mutex<Kept>>,
}

/// A party whose peer has not come yet.
struct Waiting {
    ask: Ask,
    /// Digest of the key that the party proved.
    key: [u8; 32],
    channel: Channel,
}

/// What a helper dealt to the two parties of a session.
#[derive(Debug)]
pub struct DealtSession {
    /// The accounts of the links to the client and to the server, in this order.
    pub entries: [Vec<Entry>; 2],
}

impl Pairing {
    /// The pairing of a helper with the key `own`, if it proves one. Parties wait for their peers at most `patience`.
    /// Halves of weights take at most `most` bytes of memory.
    pub fn new(own: Option<&str>, patience: Duration, most: u64) -> Self {
        let own = own.map(|key| digest(Some(key)));
        Pairing { waiting: Mutex::default(), changed: Condvar::new(), patience, own, kept: Kept::new(most) }
    }

    /// Tells the party at the other end of `channel` that its key is unknown.
    pub fn turn_away(channel: &mut Channel) {
        channel.reject(KEY);
    }

    /// Tells the party at the other end of `channel` why it is not served.
    pub fn refuse(channel: Channel, reason: &str) {
        drop(refuse([channel], reason.into()));
    }

    /// Serves the party `peer` at the other end of `channel`: waits for the other party, or deals to both if the
    /// other already waits. The call that deals returns what was dealt; the other returns `None`.
    ///
    /// # Errors
    /// [`Error::HelperRefused`] where the parties do not ask for the same, or the other party does not come; each
    /// party is told. Errors of the links.
    pub fn attend(&self, mut channel: Channel, peer: &Peer) -> Result<Option<DealtSession>, Error> {
        channel.ledger_mut().enter(SCOPE);
        let ask: Ask = wire::receive(&mut channel, ASK, 0..=MAX_ASK_BYTES)?;
        if let Some(reason) = self.check(&ask, peer) {
            return Err(refuse([channel], reason));
        }
        let here = Waiting { key: digest(peer.key.as_deref()), ask, channel };
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
        let [client, server] = if here.ask.server { [there, here] } else { [here, there] };
        // The halves stay while the session uses them.
        let mut lease = match self.agree(&client, &server) {
            Ok(lease) => lease,
            Err(reason) => return Err(refuse([client.channel, server.channel], reason)),
        };
        let Ask { passes, demands, .. } = client.ask;
        let deals = if passes { HelperDeals::Passes } else { HelperDeals::Words };
        let mut channels = [client.channel, server.channel];
        for channel in &mut channels {
            channel.send(VERDICT, &[])?;
        }
        let halves = match &mut lease {
            Some(lease) => lease.halves(&mut channels[Role::Server as usize], &deal::rows(&demands))?,
            None => Halves::default(),
        };
        for channel in &mut channels {
            channel.ledger_mut().leave();
        }
        let mut rng: StdRng = rand::make_rng();
        let mut helper = Helper::open(&mut channels, deals, &mut rng)?;
        if passes {
            let mut phase = Phase::Prefill;
            while let Some(demands) = next_pass(&mut channels, phase)? {
                helper.serve(&mut channels, phase, &demands, &halves)?;
                phase = Phase::Decode;
            }
        } else {
            helper.serve(&mut channels, Phase::Offline, &demands, &halves)?;
        }
        for channel in &mut channels {
            channel.confirm_transcript()?;
        }
        let entries = channels.each_ref().map(|channel| channel.ledger().entries());
        for channel in channels {
            channel.close(VERDICT)?;
        }
        Ok(DealtSession { entries })
    }
}

impl Pairing {
    /// Checks that a client and a server may have a session with each other. Returns the lease of the halves of
    /// weights that they use.
    ///
    /// # Errors
    /// The reason why they may not.
    fn agree(&self, client: &Waiting, server: &Waiting) -> Result<Option<Lease>, String> {
        let reason = match (&client.ask, &server.ask) {
            (a, b) if a.server == b.server => "both parties have one role",
            (a, b) if a.peer != server.key || b.peer != client.key => {
                "a party is not the one whose key the other named"
            }
            // Without encryption nobody has a key.
            _ if self.own.is_some() && client.key == server.key => "both parties prove one key",
            (a, b) if a.demands != b.demands => "the parties ask for different correlations",
            (a, b) if a.passes != b.passes => "one party alone wants words pass by pass",
            (a, b) if a.halves != b.halves.as_ref().map(halves::name) => {
                "the server does not prove that the halves of weights that the client names are its own"
            }
            (a, b) => {
                let lease = |proof| Lease::new(&self.kept, proof, server.key, &deal::rows(&a.demands));
                return b.halves.as_ref().map(lease).transpose();
            }
        };
        Err(reason.into())
    }

    /// The reason why the helper does not deal what `ask` asks for, if there is one.
    fn check(&self, ask: &Ask, peer: &Peer) -> Option<String> {
        if ask.protocol != PROTOCOL {
            return Some(format!("the helper speaks protocol {PROTOCOL} of Waggle, and this party {}", ask.protocol));
        }
        if self.own.is_some_and(|own| own == digest(peer.key.as_deref())) {
            return Some("this party has the helper's key, and must have one of its own".into());
        }
        match (ask.halves, &peer.key) {
            (Some(_), None) => return Some("halves of weights travel over links with keys alone".into()),
            (None, _) if !deal::rows(&ask.demands).is_empty() => {
                return Some("it names no halves of the weights that it asks for products with".into());
            }
            _ => {}
        }
        ask.demands.iter().find_map(|demand| demand.check().err()).map(|error| error.to_string())
    }
}

/// Receives the demands of the pass that begins, which both parties must state alike; `None` at the end of the
/// session.
fn next_pass(channels: &mut [Channel; 2], phase: Phase) -> Result<Option<Vec<Demand>>, Error> {
    let mut lists: [Vec<Demand>; 2] = Default::default();
    for (channel, list) in channels.iter_mut().zip(&mut lists) {
        channel.ledger_mut().set_phase(phase);
        channel.ledger_mut().enter(SCOPE);
        *list = wire::receive(channel, PASS, 0..=MAX_ASK_BYTES)?;
        channel.ledger_mut().leave();
    }
    let [demands, others] = lists;
    let checked = demands.iter().try_for_each(Demand::check).map_err(|error| error.to_string());
    let agreed = if demands == others { checked } else { Err("the parties ask for different passes".into()) };
    if let Err(reason) = agreed {
        channels.iter_mut().for_each(|channel| channel.reject(PASS));
        return Err(Error::HelperRefused { reason });
    }
    Ok(Some(demands).filter(|demands| !demands.is_empty()))
}

/// Tells the parties at the other ends of `channels` why they are refused. Returns the error that says so, too.
fn refuse(channels: impl IntoIterator<Item = Channel>, reason: String) -> Error {
    for mut channel in channels {
        // A party that has left needs no reason.
        let told = channel.send(VERDICT, printable(&reason, MAX_REASON_BYTES).as_bytes());
        drop(told.and_then(|()| channel.close(VERDICT)));
    }
    Error::HelperRefused { reason }
}
