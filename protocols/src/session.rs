//! One party's end of a two-party computation: the channel, the pools of OTs, the HE keys.

use std::collections::{HashMap, HashSet};

use he::{EvaluationKeys, GaloisKeys, ParamSet, PublicKey, SecretKey};
use net::{Channel, Phase, Role};
use ot::{OtReceiver, OtSender};
use rand::rngs::StdRng;

use crate::plans::Plans;
use crate::{Error, Options};

const PUBLIC_KEY: &str = "he/public key";
const GALOIS_KEYS: &str = "he/Galois keys";

/// One party's end of a two-party computation.
///
/// All randomness comes from a generator seeded by the operating system.
pub struct Session {
    channel: Channel,
    sender: OtSender,
    receiver: OtReceiver,
    /// This party's key pairs, made when a parameter set is first needed.
    own_keys: HashMap<ParamSet, SecretKey>,
    peer_keys: HashMap<ParamSet, PublicKey>,
    /// Sets of this party's keys for which the peer has Galois keys.
    own_galois: HashSet<ParamSet>,
    peer_galois: HashMap<ParamSet, GaloisKeys>,
    plans: Plans,
    rng: StdRng,
    options: Options,
    #[cfg(any(test, feature = "audit"))]
    pub(crate) audit: crate::audit::Audit,
}

impl Session {
    /// Sets up base OTs with the peer, which calls this with equal `options`. They are booked as `setup`.
    pub fn new(mut channel: Channel, options: Options) -> Result<Self, Error> {
        let mut rng: StdRng = rand::make_rng();
        channel.ledger_mut().enter("base OT");
        let pools = ot::setup(&mut channel, options.ot, &mut rng);
        channel.ledger_mut().leave();
        let (sender, receiver) = pools?;
        Ok(Session::with_pools(channel, options, sender, receiver, rng))
    }

    /// A session on pools of OTs that exist already, which nothing is sent for: in tests those of the ideal dealer.
    /// The peer holds the other ends of both.
    pub fn with_pools(
        channel: Channel,
        options: Options,
        sender: OtSender,
        receiver: OtReceiver,
        rng: StdRng,
    ) -> Self {
        Session {
            options,
            #[cfg(any(test, feature = "audit"))]
            audit: crate::audit::Audit::of(channel.role()),
            channel,
            sender,
            receiver,
            own_keys: HashMap::new(),
            peer_keys: HashMap::new(),
            own_galois: HashSet::new(),
            peer_galois: HashMap::new(),
            plans: Plans::new(options),
            rng,
        }
    }

    /// This party.
    pub fn role(&self) -> Role {
        self.channel.role()
    }

    /// Whether this party is the server.
    pub fn is_server(&self) -> bool {
        self.role() == Role::Server
    }

    /// What was opened under masks so far.
    #[cfg(any(test, feature = "audit"))]
    pub fn audit(&self) -> &crate::audit::Audit {
        &self.audit
    }

    /// From now on `audit` watches.
    #[cfg(any(test, feature = "audit"))]
    pub fn set_audit(&mut self, audit: crate::audit::Audit) {
        self.audit = audit;
    }

    /// Whether operations take their correlations from the stock.
    pub fn preprocesses(&self) -> bool {
        self.options.preprocess
    }

    /// Its public choices.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The channel, to book phases and scopes and to send what lies outside the protocols.
    pub fn channel(&mut self) -> &mut Channel {
        &mut self.channel
    }

    /// Sends the last message of this party's turn: the peer waits for it.
    pub fn deliver(&mut self, step: &'static str, message: Vec<u8>) -> Result<(), Error> {
        self.channel.send_owned(step, message)?;
        Ok(self.channel.flush(step)?)
    }

    /// The pool of OTs in which this party is the sender.
    pub fn sender(&mut self) -> &mut OtSender {
        &mut self.sender
    }

    /// The pool of OTs in which this party is the receiver.
    pub fn receiver(&mut self) -> &mut OtReceiver {
        &mut self.receiver
    }

    /// The cryptographic generator of this party.
    pub fn rng(&mut self) -> &mut StdRng {
        &mut self.rng
    }

    /// Plans of HE operations, kept by shape.
    pub fn plans(&mut self) -> &mut Plans {
        &mut self.plans
    }

    /// Fills the pool with OT sender `sender` to at least `count`, booked as `offline`.
    pub fn reserve(&mut self, sender: Role, count: usize) -> Result<(), Error> {
        self.offline(|s| {
            if sender == s.channel.role() {
                s.sender.ensure(&mut s.channel, count)?;
            } else {
                s.receiver.ensure(&mut s.channel, count)?;
            }
            Ok(())
        })
    }

    /// Runs `steps`, which do not depend on the data, with their messages booked as `offline`.
    pub fn offline<T>(&mut self, steps: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        let phase = self.channel.ledger_mut().set_phase(Phase::Offline);
        let done = steps(self);
        self.channel.ledger_mut().set_phase(phase);
        done
    }

    /// Makes sure that `holder` has a key pair of `set` and that the other party has its public key. The message is
    /// booked as `setup`.
    pub fn ensure_key(&mut self, holder: Role, set: ParamSet) -> Result<(), Error> {
        let mine = holder == self.channel.role();
        if if mine { self.own_keys.contains_key(&set) } else { self.peer_keys.contains_key(&set) } {
            return Ok(());
        }
        self.setup(|s| if mine { s.publish_key(set) } else { s.learn_key(set) })
    }

    /// [`Session::ensure_key`] for all keys of `holder` that a plan over `set` needs: Galois keys too if it packs.
    pub fn ensure_keys(&mut self, holder: Role, set: ParamSet, packed: bool) -> Result<(), Error> {
        self.ensure_key(holder, set)?;
        let mine = holder == self.channel.role();
        let sent = if mine { self.own_galois.contains(&set) } else { self.peer_galois.contains_key(&set) };
        if sent || !packed {
            return Ok(());
        }
        self.setup(|s| if mine { s.publish_galois(set) } else { s.learn_galois(set) })
    }

    /// Runs `steps` with their messages booked as `setup`.
    fn setup(&mut self, steps: impl FnOnce(&mut Self) -> Result<(), Error>) -> Result<(), Error> {
        let phase = self.channel.ledger_mut().set_phase(Phase::Setup);
        let done = steps(self);
        self.channel.ledger_mut().set_phase(phase);
        done
    }

    fn publish_key(&mut self, set: ParamSet) -> Result<(), Error> {
        let (secret, public) = SecretKey::generate(set, &mut self.rng);
        self.channel.send(PUBLIC_KEY, &public.to_bytes())?;
        self.own_keys.insert(set, secret);
        Ok(())
    }

    fn learn_key(&mut self, set: ParamSet) -> Result<(), Error> {
        let bytes = self.channel.recv(PUBLIC_KEY, PublicKey::bytes(set))?;
        self.peer_keys.insert(set, PublicKey::from_bytes(set, &bytes)?);
        Ok(())
    }

    fn publish_galois(&mut self, set: ParamSet) -> Result<(), Error> {
        let (secret, rng) = self.secret_key(set);
        let message = GaloisKeys::message(secret, rng);
        self.channel.send_owned(GALOIS_KEYS, message)?;
        self.own_galois.insert(set);
        Ok(())
    }

    fn learn_galois(&mut self, set: ParamSet) -> Result<(), Error> {
        let bytes = self.channel.recv(GALOIS_KEYS, GaloisKeys::bytes(set))?;
        self.peer_galois.insert(set, GaloisKeys::from_bytes(set, &bytes)?);
        Ok(())
    }

    /// This party's secret key. [`Session::ensure_key`] must have come before.
    pub fn secret_key(&mut self, set: ParamSet) -> (&SecretKey, &mut StdRng) {
        (self.own_keys.get(&set).expect("ensure_key came before"), &mut self.rng)
    }

    /// The peer's public key. [`Session::ensure_key`] must have come before.
    pub fn peer_key(&mut self, set: ParamSet) -> (&PublicKey, &mut StdRng) {
        (self.peer_keys.get(&set).expect("ensure_key came before"), &mut self.rng)
    }

    /// All keys of the peer that this party has. [`Session::ensure_keys`] must have come before.
    pub fn evaluation_keys(&mut self, set: ParamSet) -> (EvaluationKeys<'_>, &mut StdRng) {
        let public = self.peer_keys.get(&set).expect("ensure_keys came before");
        (EvaluationKeys { public, galois: self.peer_galois.get(&set) }, &mut self.rng)
    }
}
