//! Sessions with a helper: a third machine that deals what is prepared ([`protocols::deal`]). If it deals products with
//! weights, too, the server has told the client the seed of its halves before, in 32 bytes, and sends the helper the
//! halves that this lacks ([`protocols::halves`]).
//!
//! Both parties state the helper's key in their handshake. When they have their base OTs, each opens a link of its own
//! to the helper and says what it needs, under the name of the session: the binding of the link between the two
//! ([`net::Channel::binding`]), which nobody else knows. It also names the key that the other party has proved. The
//! helper deals when both have asked for the same and each has proved the key that the other named, so that a
//! stranger gets no half.
//!
//! | message on a link to the helper | from | bytes |
//! |---|---|---|
//! | demands: protocol, session, role, digest of the other party's key, name of the halves of weights, kinds and numbers | party | up to 4 MiB |
//! | verdict: empty, or why the helper refuses | helper | up to [`MAX_REASON_BYTES`](super::MAX_REASON_BYTES) |
//! | to the server: numbers of the weights of whose halves it has none, counted from 0 | helper | up to 256 KiB |
//! | these halves | server | as planned |
//! | seeds ([`Dealer::open`]) | helper | 64 |
//! | words ([`Dealer::serve`]) | helper | as planned |
//!
//! In a session of three parties ([`HelperDeals::Passes`](protocols::HelperDeals::Passes)) these demands say what
//! halves are needed, and the words come pass by pass:
//!
//! | message on a link to the helper | from | bytes |
//! |---|---|---|
//! | demands of the pass that begins, the same from both; none at the end | party | up to 4 MiB |
//! | words | helper | as planned |
//!
//! At the end both ends of each link compare what they saw of it ([`net::Channel::confirm_transcript`]).

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use net::{Channel, Entry, HEADER_BYTES, Ledger, NetError, Phase, Role};
use protocols::deal::{self, Dealer, Demand, Helper};
use protocols::halves::{self, Halves, HalvesSeed, half_bytes};
use protocols::ops::private::MaskedRow;
use protocols::{FixedWeight, HelperDeals, Needs, Plans, Secure, preparation};
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};
use tokenizer::printable;
use zeroize::Zeroizing;

use super::correlations::Source;
use super::opening::{MAX_REASON_BYTES, PROTOCOL};
use super::recorder::plan_transcript;
use super::{Caller, Observer, Terms, opening, wire};
use crate::Error;
use crate::needs::together;

/// Longest list of demands.
const MAX_ASK_BYTES: usize = 4 << 20;
/// Most parties that wait for their peers at once.
const MOST_WAITING: usize = 1024;
const SCOPE: &str = "helper";
const ASK: &str = "helper/demands";
const VERDICT: &str = "helper/verdict";
const PASS: &str = "helper/demands of a pass";
const SEED: &str = "helper/seed of halves";
/// Named to a party whose key the helper does not know.
const KEY: &str = "helper/key";
const MISSING: &str = "helper/missing halves";
/// Longest list of missing halves.
const MAX_MISSING_BYTES: usize = 256 << 10;

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
    /// Of the halves of weights, if there are any.
    halves: Option<[u8; 32]>,
    /// Whether words are dealt pass by pass.
    passes: bool,
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
    weights: &[&FixedWeight],
    terms: &Terms,
    source: &Source<'_>,
    observer: &mut dyn Observer,
) -> Result<(), Error> {
    if !terms.protocol.helper.any() {
        return Ok(());
    }
    let seed = terms.protocol.helper.weights().then(|| share_seed(engine.channel(), source.halves)).transpose()?;
    let Source { peer, to_helper, .. } = source;
    let to_helper = to_helper.ok_or(protocols::Error::NoHelper)?;
    let (role, session) = (engine.channel().role(), engine.channel().binding());
    let demands = preparation::demands(needs, engine.abb().session().plans());
    let (server, peer) = (role == Role::Server, digest(peer.key.as_deref()));
    let halves = seed.as_ref().map(HalvesSeed::id);
    let deals = terms.protocol.helper;
    let passes = deals == HelperDeals::Passes;
    let ask = Ask { protocol: PROTOCOL, session, server, peer, halves, passes, demands };
    let named = |error: NetError| match error {
        NetError::PeerRejected { theirs, .. } if theirs == KEY => {
            let reason =
                "it does not know this party's key; its owner adds the line that `waggle keygen` prints here";
            Error::HelperRefused { reason: reason.into() }
        }
        error => protocols::Error::Helper(Box::new(error.into())).into(),
    };
    let mut channel = to_helper().map_err(named)?;
    channel.ledger_mut().enter(SCOPE);
    wire::send(&mut channel, ASK, &ask, 0).map_err(named)?;
    let reason = channel.recv_up_to(VERDICT, MAX_REASON_BYTES).map_err(named)?;
    if !reason.is_empty() {
        return Err(Error::HelperRefused { reason: printable(&String::from_utf8_lossy(&reason), MAX_REASON_BYTES) });
    }
    if let (Some(seed), true) = (&seed, server) {
        give_halves(&mut channel, seed, &deal::rows(&ask.demands), weights, observer)?;
    }
    channel.ledger_mut().leave();
    *engine.abb().helper() = Some(Helper::new(role, channel, deals, seed)?);
    Ok(())
}

/// The server tells the client the seed of its halves of the weights.
fn share_seed(channel: &mut Channel, own: Option<&HalvesSeed>) -> Result<HalvesSeed, Error> {
    opening::scoped(channel, SCOPE, |channel| match own {
        Some(seed) => {
            channel.send(SEED, seed.as_bytes())?;
            channel.flush(SEED)?;
            Ok(seed.clone())
        }
        None => {
            let message = Zeroizing::new(channel.recv(SEED, HalvesSeed::BYTES)?);
            let mut seed = Zeroizing::new([0; HalvesSeed::BYTES]);
            seed.copy_from_slice(&message);
            Ok(HalvesSeed::from_bytes(&seed))
        }
    })
}

/// The account of [`share_seed`].
pub(super) fn plan_seed(ledger: &mut Ledger) {
    ledger.enter(SCOPE);
    ledger.book(Role::Server.sends(), (HalvesSeed::BYTES + HEADER_BYTES) as u64);
    ledger.leave();
}

/// Sends the helper the halves of those of `rows` that it lacks.
fn give_halves(
    channel: &mut Channel,
    seed: &HalvesSeed,
    rows: &[&MaskedRow],
    weights: &[&FixedWeight],
    observer: &mut dyn Observer,
) -> Result<(), Error> {
    let missing: Vec<u32> = wire::receive(channel, MISSING, 0..=MAX_MISSING_BYTES)?;
    if !missing.is_sorted_by(|a, b| a < b) || missing.iter().any(|&row| row as usize >= rows.len()) {
        return Err(wire::malformed(MISSING, format!("numbers of other weights than {}", rows.len())).into());
    }
    let missing: Vec<&MaskedRow> = missing.into_iter().map(|row| rows[row as usize]).collect();
    if !missing.is_empty() {
        observer.halves(missing.iter().map(|row| halves::sent_bytes(row)).sum());
    }
    for row in missing {
        let weight = weights.iter().find(|weight| weight.spec.name == row.weight);
        let values = weight.and_then(|weight| weight.values.as_ref());
        let values = values.ok_or_else(|| protocols::Error::NoHalf { weight: row.weight.clone() })?;
        halves::send(channel, seed, row, &values.matrix)?;
    }
    Ok(())
}

/// Has the helper deal what the pass that begins `needs`.
pub(super) fn deal_pass(engine: &mut Secure, needs: &Needs) -> Result<(), protocols::Error> {
    let demands = preparation::demands(needs, engine.abb().session().plans());
    let phase = engine.channel().ledger().phase();
    let helper = engine.abb().helper().as_mut().ok_or(protocols::Error::NoHelper)?;
    ask_for_pass(helper.channel(), phase, &demands)
        .map_err(|error| protocols::Error::Helper(Box::new(error.into())))?;
    engine.prepare(needs, &[], &mut |_| ())
}

fn ask_for_pass(channel: &mut Channel, phase: Phase, demands: &[Demand]) -> Result<(), NetError> {
    channel.ledger_mut().set_phase(phase);
    channel.ledger_mut().enter(SCOPE);
    wire::send(channel, PASS, &demands, 0)?;
    channel.flush(PASS)?;
    channel.ledger_mut().leave();
    Ok(())
}

/// Ends the link to the helper, which has dealt everything, and returns its account; nothing without a helper. Only
/// then is what it dealt known to be what both parties took.
pub(super) fn leave(engine: &mut Secure) -> Result<Option<Vec<Entry>>, Error> {
    let deals = engine.abb().session().options().helper;
    let Some(mut helper) = engine.abb().helper().take() else { return Ok(None) };
    let channel = helper.channel();
    let last = if deals == HelperDeals::Passes { ask_for_pass(channel, Phase::Decode, &[]) } else { Ok(()) };
    last.and_then(|()| channel.confirm_transcript())
        .map_err(|error| protocols::Error::Helper(Box::new(error.into())))?;
    channel.ledger_mut().checkpoint();
    Ok(Some(channel.ledger().entries()))
}

/// The accounts of both parties' links to the helper of a session that prepares `needs`, or of one that deals in
/// `passes`, the first of which reads the prompt if it is `whole`. The helper has no halves of weights yet.
pub(super) fn plan(
    needs: &Needs,
    passes: &[Needs],
    whole: bool,
    plans: &Plans,
) -> Result<[Option<Vec<Entry>>; 2], Error> {
    let deals = plans.options().helper;
    if !deals.any() {
        return Ok([None, None]);
    }
    let demands = match deals {
        HelperDeals::Passes => preparation::demands(&together(passes), plans),
        _ => preparation::demands(needs, plans),
    };
    let phase = |pass: usize| if whole && pass == 0 { Phase::Prefill } else { Phase::Decode };
    let lists = passes.iter().enumerate().map(|(pass, needs)| (phase(pass), preparation::demands(needs, plans)));
    // An empty list ends the session.
    let end = (deals == HelperDeals::Passes).then(|| (Phase::Decode, Vec::new()));
    let lists: Vec<(Phase, Vec<Demand>)> = lists.chain(end).collect();
    let mut all = lists.iter().flat_map(|(_, demands)| demands).chain(&demands);
    all.try_for_each(Demand::check).map_err(protocols::Error::from)?;
    let account = |role: Role| {
        let (session, peer, server) = ([0; 32], [0; 32], role == Role::Server);
        let halves = deals.weights().then_some([0; 32]);
        let by_pass = deals == HelperDeals::Passes;
        let demands = demands.clone();
        let ask = Ask { protocol: PROTOCOL, session, server, peer, halves, passes: by_pass, demands };
        let demands = &ask.demands;
        let mut ledger = Ledger::default();
        ledger.enter(SCOPE);
        ledger.book(Role::Client.sends(), (wire::encode(ASK, &ask, 0)?.len() + HEADER_BYTES) as u64);
        ledger.book(Role::Server.sends(), HEADER_BYTES as u64);
        if halves.is_some() && server {
            let rows = deal::rows(demands);
            let missing: Vec<u32> = (0..rows.len() as u32).collect();
            let bytes = wire::encode(MISSING, &missing, 0)?.len() + HEADER_BYTES;
            ledger.book(Role::Server.sends(), bytes as u64);
            rows.into_iter().for_each(|row| halves::plan(&mut ledger, row));
        }
        ledger.leave();
        deal::plan_seeds(&mut ledger);
        if !by_pass {
            deal::plan(&mut ledger, role, Phase::Offline, demands)?;
        }
        for (phase, demands) in &lists {
            ledger.set_phase(*phase);
            ledger.enter(SCOPE);
            ledger.book(Role::Client.sends(), (wire::encode(PASS, demands, 0)?.len() + HEADER_BYTES) as u64);
            ledger.leave();
            deal::plan(&mut ledger, role, *phase, demands)?;
        }
        plan_transcript(&mut ledger);
        Ok::<_, Error>(ledger.forget_times().entries())
    };
    Ok([Some(account(Role::Client)?), Some(account(Role::Server)?)])
}

/// Brings the two parties of each session together, for a helper.
pub struct Pairing {
    waiting: Mutex<HashMap<[u8; 32], Waiting>>,
    changed: Condvar,
    patience: Duration,
    kept: Mutex<Kept>,
}

/// Halves of weights, by their names: those of the servers that came last, in at most so many bytes.
struct Kept {
    most: u64,
    /// That used last stands last.
    halves: Vec<([u8; 32], Halves)>,
}

impl Kept {
    /// Those of `id`.
    fn get(&mut self, id: [u8; 32]) -> Halves {
        let Some(place) = self.halves.iter().position(|(known, _)| *known == id) else { return Halves::default() };
        let found = self.halves.remove(place);
        let halves = found.1.clone();
        self.halves.push(found);
        halves
    }

    /// Keeps `halves` as those of `id`, and forgets others for which there is no room.
    fn put(&mut self, id: [u8; 32], halves: Halves) {
        self.halves.retain(|(known, _)| *known != id);
        self.halves.push((id, halves));
        let bytes = |kept: &[([u8; 32], Halves)]| kept.iter().map(|(_, halves)| halves.bytes()).sum::<u64>();
        while bytes(&self.halves) > self.most && self.halves.len() > 1 {
            drop(self.halves.remove(0));
        }
    }
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
    /// Parties wait for their peers for `patience` at most. Halves of weights take `most` bytes of memory at most, but
    /// for those that sessions use at the time.
    pub fn new(patience: Duration, most: u64) -> Self {
        let kept = Mutex::new(Kept { most, halves: Vec::new() });
        Pairing { waiting: Mutex::default(), changed: Condvar::new(), patience, kept }
    }

    /// Tells the party at the other end of `channel` that its key is unknown.
    pub fn turn_away(channel: &mut Channel) {
        channel.reject(KEY);
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
            (a, b) if a.passes != b.passes => Some("one party alone wants words pass by pass"),
            (a, b) if a.halves != b.halves => Some("the parties name different halves of weights"),
            _ => None,
        };
        let reason = reason.map(str::to_owned).or_else(|| self.check_room(&here.ask));
        if let Some(reason) = reason {
            return Err(refuse([here.channel, there.channel], reason));
        }
        let Ask { halves, passes, demands, server, .. } = here.ask;
        let deals = if passes { HelperDeals::Passes } else { HelperDeals::Words };
        let [client, server] = if server { [there.channel, here.channel] } else { [here.channel, there.channel] };
        let mut channels = [client, server];
        for channel in &mut channels {
            channel.send(VERDICT, &[])?;
        }
        let halves = match halves {
            Some(id) => self.halves(&mut channels[Role::Server as usize], id, &deal::rows(&demands))?,
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
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why there is no room for the halves that these demands take.
    fn check_room(&self, ask: &Ask) -> Option<String> {
        let most = self.kept().most;
        let bytes = deal::rows(&ask.demands).into_iter().fold(0u64, |all, row| all.saturating_add(half_bytes(row)));
        let what = || {
            format!(
                "its halves of the weights take {bytes} bytes, and --max-weights of the helper leaves them {most}"
            )
        };
        (bytes > most).then(what)
    }

    /// The halves of `rows`, those that are not there from the server at the other end of `channel`.
    fn halves(&self, channel: &mut Channel, id: [u8; 32], rows: &[&MaskedRow]) -> Result<Halves, Error> {
        let mut halves = self.kept().get(id);
        let numbered = rows.iter().zip(0u32..);
        let missing: Vec<u32> = numbered.filter(|(row, _)| !halves.has(row)).map(|(_, number)| number).collect();
        wire::send(channel, MISSING, &missing, 0)?;
        channel.flush(MISSING)?;
        for row in missing.into_iter().map(|row| rows[row as usize]) {
            halves.receive(channel, row)?;
        }
        self.kept().put(id, halves.clone());
        Ok(halves)
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
