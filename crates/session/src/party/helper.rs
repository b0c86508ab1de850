//! Sessions with a helper: a third machine that deals what is prepared ([`waggle_protocols::deal`]). If the helper
//! deals products with weights, too, the server first tells the client the seed of the client's halves, in 32 bytes,
//! and sends the helper the halves that the helper lacks ([`waggle_protocols::halves`]).
//!
//! Both parties state the helper's key in their handshake. When they have their base OTs, each opens a link of its
//! own to the helper and says what it needs, under the name of the session: the binding of the link between the two
//! ([`waggle_net::Channel::binding`]), which nobody else knows. Each party also names the key that the other party
//! has proved. The helper deals when both have asked for the same and each has proved the key that the other named
//! ([`Pairing`](super::Pairing)). The helper and both parties check that the three have three different keys.
//!
//! A client asks for halves of weights by their name, and a server by the proof whose hash is the name
//! ([`HalvesOwner`]), only on links with keys. So no link but the server's can deposit halves or have them used.
//!
//! | message on a link to the helper | from | bytes |
//! |---|---|---|
//! | demands: protocol, session, role, digest of the other party's key, name or proof of the halves of weights, kinds and numbers | party | up to 4 MiB |
//! | verdict: empty, or why the helper refuses | helper | up to [`MAX_REASON_BYTES`](super::MAX_REASON_BYTES) |
//! | to the server: numbers of the weights of whose halves it has none, counted from 0 | helper | up to 256 KiB |
//! | these halves | server | as planned |
//! | seeds ([`Helper::open`](deal::Helper::open)) | helper | 64 |
//! | words ([`Helper::serve`](deal::Helper::serve)) | helper | as planned |
//!
//! In a session of three parties ([`HelperDeals::Passes`](waggle_protocols::HelperDeals::Passes)) the demands above
//! say which halves are needed, and the words come pass by pass:
//!
//! | message on a link to the helper | from | bytes |
//! |---|---|---|
//! | demands of the pass that begins, the same from both; none at the end | party | up to 4 MiB |
//! | words | helper | as planned |
//!
//! At the end both ends of each link compare what they saw of it ([`waggle_net::Channel::confirm_transcript`]).

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use waggle_net::{Channel, Entry, NetError, Phase, Role};
use waggle_protocols::deal::{self, Demand, HelperLink};
use waggle_protocols::halves::{self, HalvesOwner, HalvesSeed};
use waggle_protocols::ops::private::MaskedRow;
use waggle_protocols::{FixedWeight, HelperDeals, Needs, Plans, Secure, preparation};
use waggle_tokenizer::printable;
use zeroize::Zeroizing;

use super::opening::{MAX_REASON_BYTES, PROTOCOL};
use super::source::Source;
use super::{Event, Peer, Terms, Watch, nobody, opening, wire};
use crate::Error;
use crate::needs::together;

/// Most bytes of a list of demands.
pub(super) const MAX_ASK_BYTES: usize = 4 << 20;
pub(super) const SCOPE: &str = "helper";
pub(super) const ASK: &str = "helper/demands";
pub(super) const VERDICT: &str = "helper/verdict";
pub(super) const PASS: &str = "helper/demands of a pass";
const SEED: &str = "helper/seed of halves";
/// The step at which the helper rejects a party whose key it does not know.
pub(super) const KEY: &str = "helper/key";
pub(super) const MISSING: &str = "helper/missing halves";
/// Most bytes of a list of missing halves.
const MAX_MISSING_BYTES: usize = 256 << 10;

/// How a party reaches the helper of its sessions.
#[derive(Clone)]
pub struct ToHelper {
    own: Option<String>,
    open: Arc<dyn Fn() -> Result<Channel, NetError> + Send + Sync>,
}

impl ToHelper {
    /// The way to the helper for a party with the key `own`, or without one where links prove no keys. `open` opens
    /// the link to the helper. On this link both the client and the server of the session have the role of client.
    pub fn new(own: Option<String>, open: impl Fn() -> Result<Channel, NetError> + Send + Sync + 'static) -> Self {
        ToHelper { own, open: Arc::new(open) }
    }

    /// Checks that this party, its `peer` and the `helper` have three different keys. Without encryption none has a
    /// key, which suffices unless the helper deals products with `weights`.
    fn check(&self, peer: &Peer, helper: Option<&str>, weights: bool) -> Result<(), Error> {
        let Some(own) = &self.own else {
            return if weights { Err(Error::PlainHalves) } else { Ok(()) };
        };
        let keys = [("this party", Some(&**own)), ("the other party", peer.key.as_deref()), ("the helper", helper)];
        for (one, other) in [(0, 1), (0, 2), (1, 2)] {
            if keys[one].1 == keys[other].1 {
                return Err(Error::KeysAlike { parties: [keys[one].0, keys[other].0] });
            }
        }
        Ok(())
    }
}

/// What a party asks of a helper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ask {
    #[serde(with = "postcard::fixint::le")]
    pub(super) protocol: u32,
    pub(super) session: [u8; 32],
    pub(super) server: bool,
    pub(super) peer: [u8; 32],
    /// The name (from a client) or the proof (from a server) of the halves of weights, if there are any.
    pub(super) halves: Option<[u8; 32]>,
    /// Whether the helper deals pass by pass.
    pub(super) passes: bool,
    pub(super) demands: Vec<Demand>,
}

/// The digest of a party's key; zeros where nothing is encrypted.
pub(super) fn digest(key: Option<&str>) -> [u8; 32] {
    key.map_or([0; 32], |key| *blake3::hash(key.as_bytes()).as_bytes())
}

/// Opens the link to the helper that `terms` name, if any, and asks for the part of `needs` that this helper deals.
pub(super) fn meet(
    engine: &mut Secure,
    needs: &Needs,
    weights: &[&FixedWeight],
    terms: &Terms,
    source: &Source<'_>,
    watch: &mut Watch,
) -> Result<(), Error> {
    if !terms.protocol.helper.any() {
        return Ok(());
    }
    let Source { peer, to_helper, halves: owner, .. } = source;
    let to_helper = to_helper.ok_or(waggle_protocols::Error::NoHelper)?;
    to_helper.check(peer, terms.helper.as_deref(), terms.protocol.helper.weights())?;
    let owner = owner.as_ref();
    let seed = terms.protocol.helper.weights().then(|| share_seed(engine.channel(), owner)).transpose()?;
    let (role, session) = (engine.channel().role(), engine.channel().binding());
    let demands = preparation::demands(needs, engine.abb().session().plans());
    let (server, peer) = (role == Role::Server, digest(peer.key.as_deref()));
    let halves = seed.as_ref().map(|seed| owner.map_or_else(|| seed.name(), |owner| *owner.proof()));
    let deals = terms.protocol.helper;
    let passes = deals == HelperDeals::Passes;
    let ask = Ask { protocol: PROTOCOL, session, server, peer, halves, passes, demands };
    let mut channel = (to_helper.open)().map_err(of_helper)?;
    introduce(&mut channel, &ask, seed.as_ref(), weights, watch)?;
    *engine.abb().helper() = Some(HelperLink::new(role, channel, deals, seed)?);
    Ok(())
}

/// Turns an error of the link to the helper into the error that says what it means.
fn of_helper(error: NetError) -> Error {
    match error {
        NetError::PeerRejected { theirs, .. } if theirs == KEY => Error::HelperStranger,
        NetError::Unexpected { step: VERDICT, .. } => Error::NoHelper,
        error => waggle_protocols::Error::Helper(Box::new(error.into())).into(),
    }
}

/// Sends the helper what precedes all dealing: the demands, and a server's halves of `weights` that the helper lacks.
fn introduce(
    channel: &mut Channel,
    ask: &Ask,
    seed: Option<&HalvesSeed>,
    weights: &[&FixedWeight],
    watch: &mut Watch,
) -> Result<(), Error> {
    channel.ledger_mut().enter(SCOPE);
    wire::send(channel, ASK, ask, 0).map_err(of_helper)?;
    let reason = channel.recv_up_to(VERDICT, MAX_REASON_BYTES).map_err(of_helper)?;
    if !reason.is_empty() {
        return Err(Error::HelperRefused { reason: printable(&String::from_utf8_lossy(&reason), MAX_REASON_BYTES) });
    }
    if let (Some(seed), true) = (seed, ask.server) {
        give_halves(channel, seed, &deal::rows(&ask.demands), weights, watch)?;
    }
    channel.ledger_mut().leave();
    Ok(())
}

/// Has the server tell the client the seed of the client's halves of the weights. Both parties return the seed.
pub(super) fn share_seed(channel: &mut Channel, own: Option<&HalvesOwner>) -> Result<HalvesSeed, Error> {
    opening::scoped(channel, SCOPE, |channel| match own {
        Some(owner) => {
            let seed = owner.seed();
            channel.send(SEED, &*seed.to_bytes())?;
            channel.flush(SEED)?;
            Ok(seed)
        }
        None => {
            let message = Zeroizing::new(channel.recv(SEED, HalvesSeed::BYTES)?);
            let mut seed = Zeroizing::new([0; HalvesSeed::BYTES]);
            seed.copy_from_slice(&message);
            Ok(HalvesSeed::from_bytes(&seed))
        }
    })
}

/// Learns which halves of `rows` the helper lacks, and sends those.
fn give_halves(
    channel: &mut Channel,
    seed: &HalvesSeed,
    rows: &[&MaskedRow],
    weights: &[&FixedWeight],
    watch: &mut Watch,
) -> Result<(), Error> {
    let missing: Vec<u32> = wire::receive(channel, MISSING, 0..=MAX_MISSING_BYTES)?;
    if !missing.is_sorted_by(|a, b| a < b) || missing.iter().any(|&row| row as usize >= rows.len()) {
        return Err(wire::malformed(MISSING, format!("numbers of other weights than {}", rows.len())).into());
    }
    let missing: Vec<&MaskedRow> = missing.into_iter().map(|row| rows[row as usize]).collect();
    if !missing.is_empty() {
        watch(Event::Halves(missing.iter().map(|row| halves::sent_bytes(row)).sum()));
    }
    for row in missing {
        let weight = weights.iter().find(|weight| weight.spec.name == row.weight);
        let matrix = weight.and_then(|weight| weight.values.as_ref()).map(|values| &values.matrix);
        halves::send(channel, seed, row, matrix)?;
    }
    Ok(())
}

/// Has the helper deal the `needs` of the pass that begins.
pub(super) fn deal_pass(engine: &mut Secure, needs: &Needs) -> Result<(), waggle_protocols::Error> {
    let demands = preparation::demands(needs, engine.abb().session().plans());
    let phase = engine.channel().ledger().phase();
    let helper = engine.abb().helper().as_mut().ok_or(waggle_protocols::Error::NoHelper)?;
    ask_for_pass(helper.channel(), phase, &demands)
        .map_err(|error| waggle_protocols::Error::Helper(Box::new(error.into())))?;
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

/// Ends the link to the helper, once the helper has dealt everything. Both ends compare what they saw of the link:
/// only this confirms that the parties took what the helper dealt. Returns the account of the link; `None` without a
/// helper.
pub(super) fn leave(engine: &mut Secure) -> Result<Option<Vec<Entry>>, Error> {
    let deals = engine.abb().session().options().helper;
    engine.abb().helper().take().map(|helper| close(helper, deals)).transpose()
}

/// Ends the link of `helper`, which deals as `deals` says; returns the link's account.
fn close(mut helper: HelperLink, deals: HelperDeals) -> Result<Vec<Entry>, Error> {
    let channel = helper.channel();
    // An empty list of demands ends a session that asks pass by pass.
    let last = if deals == HelperDeals::Passes { ask_for_pass(channel, Phase::Decode, &[]) } else { Ok(()) };
    last.and_then(|()| channel.confirm_transcript())
        .map_err(|error| waggle_protocols::Error::Helper(Box::new(error.into())))?;
    channel.ledger_mut().checkpoint();
    Ok(channel.ledger().entries())
}

/// The accounts of the client's and of the server's link to the helper, in this order. The session prepares `needs`,
/// or its helper deals in `passes`, of which the first reads the prompt if the session is `whole`. The helper has no
/// halves of weights yet.
pub(super) fn rehearse(
    needs: &Needs,
    passes: &[Needs],
    whole: bool,
    plans: &Plans,
) -> Result<[Option<Vec<Entry>>; 2], Error> {
    let deals = plans.options().helper;
    if !deals.any() {
        return Ok([None, None]);
    }
    let by_pass = deals == HelperDeals::Passes;
    let demands =
        if by_pass { preparation::demands(&together(passes), plans) } else { preparation::demands(needs, plans) };
    let phase = |pass: usize| if whole && pass == 0 { Phase::Prefill } else { Phase::Decode };
    let lists = passes.iter().enumerate().map(|(pass, needs)| (phase(pass), preparation::demands(needs, plans)));
    let lists: Vec<(Phase, Vec<Demand>)> = lists.collect();
    let mut all = lists.iter().flat_map(|(_, demands)| demands).chain(&demands);
    all.try_for_each(Demand::check).map_err(waggle_protocols::Error::from)?;
    let account = |role: Role| {
        let (session, peer, server) = ([0; 32], [0; 32], role == Role::Server);
        let seed = deals.weights().then(|| HalvesSeed::from_bytes(&[0; HalvesSeed::BYTES]));
        let halves = seed.as_ref().map(HalvesSeed::name);
        let ask =
            Ask { protocol: PROTOCOL, session, server, peer, halves, passes: by_pass, demands: demands.clone() };
        let missing: Vec<u32> = (0..deal::rows(&ask.demands).len() as u32).collect();
        let mut channel = Channel::rehearsal(Role::Client, vec![(MISSING, wire::encode(MISSING, &missing, 0)?)]);
        introduce(&mut channel, &ask, seed.as_ref(), &[], &mut nobody)?;
        let mut helper = HelperLink::new(role, channel, deals, seed)?;
        if !by_pass {
            helper.rehearse(&ask.demands, Phase::Offline)?;
        }
        for (phase, demands) in &lists {
            ask_for_pass(helper.channel(), *phase, demands)?;
            helper.rehearse(demands, *phase)?;
        }
        Ok::<_, Error>(Some(close(helper, deals)?))
    };
    Ok([account(Role::Client)?, account(Role::Server)?])
}
