//! A helper's end of its sessions: it brings two parties together, sees to it that they are who they name, keeps the
//! servers' halves of weights, and deals. [`super::helper`] has the parties' end, and the messages.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use net::{Channel, Entry, Phase, Role};
use protocols::HelperDeals;
use protocols::deal::{self, Dealer, Demand};
use protocols::halves::{self, Halves, half_bytes};
use protocols::ops::private::MaskedRow;
use rand::rngs::StdRng;
use tokenizer::printable;

use super::helper::{ASK, Ask, KEY, MAX_ASK_BYTES, MISSING, PASS, SCOPE, VERDICT, digest};
use super::opening::{MAX_REASON_BYTES, PROTOCOL};
use super::{Caller, wire};
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

/// Halves of weights in memory: those that sessions use, and of the others those of the servers that came last.
struct Kept {
    /// The most bytes.
    most: u64,
    /// Bytes on their way.
    arriving: u64,
    /// That used last stands last.
    owned: Vec<Owned>,
}

/// The halves of one server.
struct Owned {
    name: [u8; 32],
    /// Digest of the key that deposited them, and that alone may use them.
    key: [u8; 32],
    /// Sessions that use them.
    users: usize,
    halves: Halves,
}

impl Kept {
    fn bytes(&self) -> u64 {
        self.owned.iter().map(|owned| owned.halves.bytes()).sum::<u64>().saturating_add(self.arriving)
    }

    /// The place of the halves `name`, which is made if there is none.
    ///
    /// # Errors
    /// Why the server with `key` may not use them.
    fn place(&mut self, name: [u8; 32], key: [u8; 32]) -> Result<usize, String> {
        match self.owned.iter().position(|owned| owned.name == name) {
            Some(place) if self.owned[place].key != key => {
                Err("these halves of weights were deposited by another key".into())
            }
            Some(place) => {
                let found = self.owned.remove(place);
                self.owned.push(found);
                Ok(self.owned.len() - 1)
            }
            None => {
                self.owned.push(Owned { name, key, users: 0, halves: Halves::default() });
                Ok(self.owned.len() - 1)
            }
        }
    }

    /// Makes room for `bytes` more by forgetting halves that no session uses; says whether there is any.
    fn make_room(&mut self, bytes: u64) -> bool {
        while self.bytes().saturating_add(bytes) > self.most {
            let Some(idle) = self.owned.iter().position(|owned| owned.users == 0) else { return false };
            drop(self.owned.remove(idle));
        }
        true
    }
}

/// A session's use of the halves of one server, until it is dropped.
struct Lease {
    kept: Arc<Mutex<Kept>>,
    name: [u8; 32],
    /// The numbers of those that are missing, and their bytes.
    missing: Vec<u32>,
    arriving: u64,
}

impl Lease {
    /// Room for the halves of `rows` that belong to the server with this proof and key.
    ///
    /// # Errors
    /// Why there is none.
    fn new(kept: &Arc<Mutex<Kept>>, proof: &[u8; 32], key: [u8; 32], rows: &[&MaskedRow]) -> Result<Self, String> {
        let name = halves::name(proof);
        let mut open = lock(kept);
        let place = open.place(name, key)?;
        let found = &mut open.owned[place];
        let numbered = rows.iter().zip(0u32..).filter(|(row, _)| !found.halves.has(row));
        let missing: Vec<u32> = numbered.map(|(_, number)| number).collect();
        let arriving = missing.iter().fold(0u64, |all, row| all.saturating_add(half_bytes(rows[*row as usize])));
        found.users += 1;
        let room = open.make_room(arriving);
        let (all, most) = (rows.iter().fold(0u64, |all, row| all.saturating_add(half_bytes(row))), open.most);
        let taken = if room { arriving } else { 0 };
        open.arriving += taken;
        drop(open);
        // Dropped, it takes back what it took.
        let lease = Lease { kept: kept.clone(), name, missing, arriving: taken };
        if room {
            return Ok(lease);
        }
        let less = if all > most { "" } else { ", of which other sessions use a part" };
        Err(format!(
            "its halves of the weights take {all} bytes, and --max-weights of the helper leaves them {most}{less}"
        ))
    }

    /// The halves of `rows`, those that are missing from the server at the other end of `channel`.
    fn halves(&mut self, channel: &mut Channel, rows: &[&MaskedRow]) -> Result<Halves, Error> {
        wire::send(channel, MISSING, &self.missing, 0)?;
        channel.flush(MISSING)?;
        let mut deposited = Halves::default();
        for row in self.missing.drain(..) {
            deposited.receive(channel, rows[row as usize])?;
        }
        let mut kept = lock(&self.kept);
        kept.arriving -= std::mem::take(&mut self.arriving);
        let owned = kept.owned.iter_mut().find(|owned| owned.name == self.name).expect("a place in use stays");
        owned.halves.add(deposited);
        Ok(owned.halves.clone())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut kept = lock(&self.kept);
        kept.arriving -= self.arriving;
        if let Some(owned) = kept.owned.iter_mut().find(|owned| owned.name == self.name) {
            owned.users -= 1;
        }
        kept.owned.retain(|owned| owned.users > 0 || owned.halves.bytes() > 0);
    }
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
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
    /// For a helper with the key `own`, if it proves one. Parties wait for their peers for `patience` at most. Halves
    /// of weights take `most` bytes of memory at most.
    pub fn new(own: Option<&str>, patience: Duration, most: u64) -> Self {
        let kept = Arc::new(Mutex::new(Kept { most, arriving: 0, owned: Vec::new() }));
        let own = own.map(|key| digest(Some(key)));
        Pairing { waiting: Mutex::default(), changed: Condvar::new(), patience, own, kept }
    }

    /// Tells the party at the other end of `channel` that its key is unknown.
    pub fn turn_away(channel: &mut Channel) {
        channel.reject(KEY);
    }

    /// Tells the party at the other end of `channel` why it is not served.
    pub fn refuse(channel: Channel, reason: &str) {
        drop(refuse([channel], reason.into()));
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
        if let Some(reason) = self.check(&ask, caller) {
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
        let mut dealer = Dealer::open(&mut channels, deals, &mut rng)?;
        if passes {
            let mut phase = Phase::Prefill;
            while let Some(demands) = next_pass(&mut channels, phase)? {
                dealer.serve(&mut channels, phase, &demands, &halves)?;
                phase = Phase::Decode;
            }
        } else {
            dealer.serve(&mut channels, Phase::Offline, &demands, &halves)?;
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
    /// Whether a client and a server may have a session with each other, and the halves of weights that they use.
    ///
    /// # Errors
    /// Why they may not.
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

    /// Why nobody deals this.
    fn check(&self, ask: &Ask, caller: &Caller) -> Option<String> {
        if ask.protocol != PROTOCOL {
            return Some(format!("the helper speaks protocol {PROTOCOL} of Waggle, and this party {}", ask.protocol));
        }
        if self.own.is_some_and(|own| own == digest(caller.key.as_deref())) {
            return Some("this party has the helper's key, and must have one of its own".into());
        }
        match (ask.halves, &caller.key) {
            (Some(_), None) => return Some("halves of weights travel over links with keys alone".into()),
            (None, _) if !deal::rows(&ask.demands).is_empty() => {
                return Some("it names no halves of the weights that it asks for products with".into());
            }
            _ => {}
        }
        ask.demands.iter().find_map(|demand| demand.check().err()).map(|error| error.to_string())
    }
}

/// The demands of the pass that begins, which both parties must state alike; `None` at the end.
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

/// Tells parties why they are refused.
fn refuse(channels: impl IntoIterator<Item = Channel>, reason: String) -> Error {
    for mut channel in channels {
        // A party that has left needs no reason.
        let told = channel.send(VERDICT, printable(&reason, MAX_REASON_BYTES).as_bytes());
        drop(told.and_then(|()| channel.close(VERDICT)));
    }
    Error::HelperRefused { reason }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use net::memory_pair;
    use protocols::FixedMatrix;
    use protocols::halves::HalvesOwner;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn kind(weight: &str) -> MaskedRow {
        MaskedRow { weight: weight.into(), inputs: 4, outputs: 4, width: 47, bits: 20 }
    }

    /// A helper with room for so many halves of [`kind`].
    fn kept(halves: u64) -> Arc<Mutex<Kept>> {
        Arc::new(Mutex::new(Kept { most: halves * half_bytes(&kind("")), arriving: 0, owned: Vec::new() }))
    }

    /// The server `owner` deposits what is missing; returns how many halves that are.
    fn deposit(lease: &mut Lease, owner: &HalvesOwner, row: &MaskedRow) -> usize {
        let (here, there) = memory_pair(PATIENCE);
        let (mut server, mut helper) = (Channel::new(Role::Client, here), Channel::new(Role::Server, there));
        thread::scope(|scope| {
            let server = scope.spawn(move || {
                let missing: Vec<u32> = wire::receive(&mut server, MISSING, 0..=100).unwrap();
                let matrix = FixedMatrix::integers(4, 4, vec![3; 16]);
                missing.iter().for_each(|_| halves::send(&mut server, &owner.seed(), row, &matrix).unwrap());
                missing.len()
            });
            assert!(lease.halves(&mut helper, &[row]).unwrap().has(row));
            server.join().unwrap()
        })
    }

    #[test]
    fn halves_are_one_keys_and_stay_while_somebody_uses_them() {
        let owners = [(); 3].map(|()| HalvesOwner::new(&mut rand::rng()));
        let (kept, row) = (kept(2), kind("w"));
        let lease = |who: usize, key: u8| Lease::new(&kept, &owners[who].proof(), [key; 32], &[&row]);
        let mut first = lease(0, 0).unwrap();
        assert_eq!(deposit(&mut first, &owners[0], &row), 1);
        // Once is enough, and nobody else's key has them.
        assert_eq!(deposit(&mut lease(0, 0).unwrap(), &owners[0], &row), 0);
        assert!(lease(0, 1).err().unwrap().contains("another key"));
        // What is on its way takes room, and what is in use keeps it.
        let second = lease(1, 1).unwrap();
        assert!(lease(2, 2).err().unwrap().contains("--max-weights"));
        drop(second);
        let third = lease(2, 2).unwrap();
        assert!(lease(1, 1).is_err());
        drop((first, third));
        // They stay until somebody needs the room.
        assert_eq!(deposit(&mut lease(0, 0).unwrap(), &owners[0], &row), 0);
        let mut others = [1, 2].map(|who| lease(who, 3).unwrap());
        assert_eq!(deposit(&mut others[0], &owners[1], &row), 1);
        assert!(lease(0, 0).is_err());
        drop(others);
        assert_eq!(deposit(&mut lease(0, 0).unwrap(), &owners[0], &row), 1);
        let wide = MaskedRow { inputs: 9, ..kind("wide") };
        assert!(Lease::new(&kept, &owners[0].proof(), [0; 32], &[&wide]).is_err());
        assert_eq!(lock(&kept).arriving, 0);
    }
}
