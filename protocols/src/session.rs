//! One party's end of a two-party computation: the channel, the pools of OTs, the HE keys.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rand::rngs::StdRng;
use waggle_he::{EvaluationKeys, GaloisKeys, ParamSet, PublicKey, SecretKey};
use waggle_net::{Channel, Phase, Role};
use waggle_ot::dpf::Room;
use waggle_ot::{OtReceiver, OtSender};

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
    own_keys: HashMap<ParamSet, Arc<SecretKey>>,
    /// Parameter sets for which the peer has this party's Galois keys.
    own_galois: HashSet<ParamSet>,
    peer_keys: HashMap<ParamSet, PeerKeys>,
    plans: Plans,
    rng: StdRng,
    options: Options,
    /// Memory of the trees of finished point functions, kept for the next trees.
    pub(crate) room: Room,
    #[cfg(any(test, feature = "audit"))]
    pub(crate) audit: crate::audit::Audit,
}

/// Keys of the peer, under which this party computes.
#[derive(Clone)]
pub struct PeerKeys {
    public: Arc<PublicKey>,
    galois: Option<Arc<GaloisKeys>>,
    /// The Galois keys in the bytes in which they were received, for other processes of this party.
    message: Option<Arc<[u8]>>,
}

impl PeerKeys {
    /// The public key, for operations that do not pack.
    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    /// The keys as bytes for another process of this party, with the Galois keys if `packed`.
    pub fn to_bytes(&self, packed: bool) -> Vec<u8> {
        let galois = self.message.as_deref().filter(|_| packed);
        [&self.public.to_bytes()[..], galois.unwrap_or_default()].concat()
    }

    /// Reads [`PeerKeys::to_bytes`].
    ///
    /// # Errors
    /// [`Error::He`] for bytes that are not keys of `set`.
    pub fn from_bytes(set: ParamSet, packed: bool, bytes: &[u8]) -> Result<Self, Error> {
        let (public, galois) = bytes.split_at(PublicKey::bytes(set).min(bytes.len()));
        let public = Arc::new(PublicKey::from_bytes(set, public)?);
        let mut keys = PeerKeys { public, galois: None, message: None };
        if packed {
            keys.with_galois(set, galois.into())?;
        }
        Ok(keys)
    }

    fn with_galois(&mut self, set: ParamSet, message: Arc<[u8]>) -> Result<(), Error> {
        self.galois = Some(Arc::new(GaloisKeys::from_bytes(set, &message)?));
        self.message = Some(message);
        Ok(())
    }

    /// The keys for products of matrices.
    pub fn evaluation(&self) -> EvaluationKeys<'_> {
        EvaluationKeys { public: &self.public, galois: self.galois.as_deref() }
    }
}

impl Session {
    /// A session over `channel`, with base OTs set up with the peer. The peer calls this with equal `options`. The
    /// base OTs are booked as `setup`.
    pub fn new(mut channel: Channel, options: Options) -> Result<Self, Error> {
        let mut rng: StdRng = rand::make_rng();
        #[cfg(any(test, feature = "audit"))]
        if options.ot == waggle_ot::CotKind::Dealer {
            // Both parties use this seed: the correlations of a run are the same each time, its masks are not.
            let (sender, receiver) = waggle_ot::dealer::setup(channel.role(), 7);
            return Ok(Session::with_pools(channel, options, sender, receiver, rng));
        }
        channel.ledger_mut().enter("base OT");
        let pools = waggle_ot::setup(&mut channel, options.ot, &mut rng);
        channel.ledger_mut().leave();
        let (sender, receiver) = pools?;
        Ok(Session::with_pools(channel, options, sender, receiver, rng))
    }

    /// A session on given pools of OTs, whose other ends the peer holds. Nothing is sent for them.
    pub fn with_pools(
        channel: Channel,
        options: Options,
        sender: OtSender,
        receiver: OtReceiver,
        rng: StdRng,
    ) -> Self {
        Session {
            options,
            room: Room::default(),
            #[cfg(any(test, feature = "audit"))]
            audit: crate::audit::Audit::of(channel.role()),
            channel,
            sender,
            receiver,
            own_keys: HashMap::new(),
            own_galois: HashSet::new(),
            peer_keys: HashMap::new(),
            plans: Plans::new(options),
            rng,
        }
    }

    /// The role of this party.
    pub fn role(&self) -> Role {
        self.channel.role()
    }

    /// Whether this party is the server.
    pub fn is_server(&self) -> bool {
        self.role() == Role::Server
    }

    /// The audit of the words that this session opens under masks.
    #[cfg(any(test, feature = "audit"))]
    pub fn audit(&self) -> &crate::audit::Audit {
        &self.audit
    }

    /// From now on, `audit` watches this session.
    #[cfg(any(test, feature = "audit"))]
    pub fn set_audit(&mut self, audit: crate::audit::Audit) {
        self.audit = audit;
    }

    /// The public choices of the session.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The channel, to book phases and scopes and to send what lies outside the protocols.
    pub fn channel(&mut self) -> &mut Channel {
        &mut self.channel
    }

    /// Sends `message`, the last one of this party's turn. The peer waits for it.
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

    /// Refills the pool with OT sender `sender` to at least `count` OTs, booked as `offline`.
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
        self.booked(Phase::Offline, steps)
    }

    /// This party's secret key of `set`. `None` if the peer lacks its public key or, if `packed`, its Galois keys.
    pub(crate) fn known_key(&self, set: ParamSet, packed: bool) -> Option<Arc<SecretKey>> {
        self.own_keys.get(&set).filter(|_| !packed || self.own_galois.contains(&set)).cloned()
    }

    pub(crate) fn booked<T>(
        &mut self,
        phase: Phase,
        steps: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let phase = self.channel.ledger_mut().set_phase(phase);
        let done = steps(self);
        self.channel.ledger_mut().set_phase(phase);
        done
    }

    /// This party's secret key of `set`. After this call the peer has the public key and, if `packed`, the Galois
    /// keys. Each is sent by the first call that needs it, booked as `setup`. Meanwhile the peer calls
    /// [`Session::peer_keys`].
    pub fn own_key(&mut self, set: ParamSet, packed: bool) -> Result<Arc<SecretKey>, Error> {
        let secret = match self.own_keys.get(&set) {
            Some(secret) => secret.clone(),
            None => self.booked(Phase::Setup, |s| {
                let (secret, public) = SecretKey::generate(set, &mut s.rng);
                s.channel.send(PUBLIC_KEY, &public.to_bytes())?;
                let secret = Arc::new(secret);
                s.own_keys.insert(set, secret.clone());
                Ok(secret)
            })?,
        };
        if packed && !self.own_galois.contains(&set) {
            self.booked(Phase::Setup, |s| {
                let message = GaloisKeys::message(&secret, &mut s.rng);
                s.channel.send_owned(GALOIS_KEYS, message)?;
                s.own_galois.insert(set);
                Ok(())
            })?;
        }
        Ok(secret)
    }

    /// The peer's keys of `set`, with its Galois keys if `packed`.
    pub fn peer_keys(&mut self, set: ParamSet, packed: bool) -> Result<PeerKeys, Error> {
        let mut keys = match self.peer_keys.get(&set) {
            Some(keys) => keys.clone(),
            None => self.booked(Phase::Setup, |s| {
                let bytes = s.channel.recv(PUBLIC_KEY, PublicKey::bytes(set))?;
                Ok(PeerKeys { public: Arc::new(PublicKey::from_bytes(set, &bytes)?), galois: None, message: None })
            })?,
        };
        if packed && keys.galois.is_none() {
            let bytes = self.booked(Phase::Setup, |s| Ok(s.channel.recv(GALOIS_KEYS, GaloisKeys::bytes(set))?))?;
            keys.with_galois(set, bytes.into())?;
        }
        self.peer_keys.insert(set, keys.clone());
        Ok(keys)
    }

    /// This party's secret key and the peer's keys. If both parties have to send keys, the client goes first.
    pub fn both_keys(&mut self, set: ParamSet, packed: bool) -> Result<(Arc<SecretKey>, PeerKeys), Error> {
        if self.is_server() {
            let peer = self.peer_keys(set, packed)?;
            return Ok((self.own_key(set, packed)?, peer));
        }
        Ok((self.own_key(set, packed)?, self.peer_keys(set, packed)?))
    }
}
