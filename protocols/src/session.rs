//! What two parties share while they compute together: the channel, the pools of correlations, the HE keys.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use he::{
    EvaluationKeys, GaloisKeys, MatmulPlan, MatmulSpec, OleKind, OlePlan, Packing, ParamSet, PlanOptions, PublicKey,
    SecretKey,
};
use net::{Channel, HEADER_BYTES, Phase, Role, Shape};
use ot::{CotKind, OtReceiver, OtSender, PoolPlan};
use rand::rngs::StdRng;

use crate::Error;
use crate::cost::{Cost, Step};
use crate::stock::Stock;

/// How tabulated functions are evaluated on shares, see [`Options::evaluate`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Evaluate {
    /// By transfers of table rows ([`crate::ops::evaluate`]): nothing is prepared, fewest rounds in all.
    #[default]
    Lookup,
    /// Activations on masked inputs, the rest by look-up: fewest bytes in all.
    Activations,
    /// On masked inputs ([`crate::ops::masked`]): long preparation, then one masked word a value.
    Masked,
}

/// Public choices of a session; both parties state the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Source of correlated OTs.
    pub ot: CotKind,
    /// Two phases: operations consume correlations that were, or could have been, made before the data is known, and
    /// send masked words only. See [`crate::stock`].
    pub preprocess: bool,
    /// Rate and delay of the link, by which operations weigh messages and flows against computation.
    pub link: Shape,
    /// Whether matrix products pack their responses.
    pub packing: Packing,
}

/// A link of which nothing is known: 1 Gbit/s, half a millisecond there and back.
pub const DEFAULT_LINK: Shape = Shape { bytes_per_second: 125_000_000, round_trip: Duration::from_micros(500) };

impl Default for Options {
    fn default() -> Self {
        Options { ot: CotKind::default(), preprocess: false, link: DEFAULT_LINK, packing: Packing::Auto }
    }
}

impl Options {
    /// How functions are evaluated: on masked inputs in two phases. In one phase activations alone are, and only over fast
    /// links: that takes half the bytes of a look-up and as much processor time, but twenty more flows.
    pub fn evaluate(&self) -> Evaluate {
        if self.preprocess {
            Evaluate::Masked
        } else if self.slow_link() {
            Evaluate::Lookup
        } else {
            Evaluate::Activations
        }
    }

    /// Whether the link is slower than 1 Gbit/s: flows, and bytes online, then outweigh other costs.
    pub(crate) fn slow_link(&self) -> bool {
        self.link.bytes_per_second < DEFAULT_LINK.bytes_per_second
    }
}

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
    pub(crate) stock: Stock,
    #[cfg(any(test, feature = "audit"))]
    pub(crate) audit: crate::audit::Audit,
}

impl Session {
    /// Sets up base OTs with the peer, which calls this with equal `options`. Booked as `setup`.
    pub fn new(mut channel: Channel, options: Options) -> Result<Self, Error> {
        let mut rng: StdRng = rand::make_rng();
        channel.ledger_mut().enter("base OT");
        let pools = ot::setup(&mut channel, options.ot, &mut rng);
        channel.ledger_mut().leave();
        let (sender, receiver) = pools?;
        Ok(Session::with_pools(channel, options, sender, receiver, rng))
    }

    /// A session on pools that exist already, for tests over the ideal dealer.
    pub(crate) fn with_pools(
        channel: Channel,
        options: Options,
        sender: OtSender,
        receiver: OtReceiver,
        rng: StdRng,
    ) -> Self {
        Session {
            options,
            stock: Stock::default(),
            #[cfg(any(test, feature = "audit"))]
            audit: crate::audit::Audit::default(),
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
    pub(crate) fn is_server(&self) -> bool {
        self.role() == Role::Server
    }

    /// What was opened under masks so far.
    #[cfg(any(test, feature = "audit"))]
    pub fn audit(&self) -> &crate::audit::Audit {
        &self.audit
    }

    /// Whether operations take their correlations from the stock.
    pub fn preprocesses(&self) -> bool {
        self.options.preprocess
    }

    /// Its public choices.
    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// The channel, to book phases and scopes and to send what lies outside the protocols.
    pub fn channel(&mut self) -> &mut Channel {
        &mut self.channel
    }

    /// Sends the last message of this party's turn: the peer waits for it.
    pub(crate) fn deliver(&mut self, step: &'static str, message: Vec<u8>) -> Result<(), Error> {
        self.channel.send_owned(step, message)?;
        Ok(self.channel.flush(step)?)
    }

    /// The pool of OTs in which this party is the sender.
    pub(crate) fn sender(&mut self) -> &mut OtSender {
        &mut self.sender
    }

    /// The pool of OTs in which this party is the receiver.
    pub(crate) fn receiver(&mut self) -> &mut OtReceiver {
        &mut self.receiver
    }

    /// The cryptographic generator of this party.
    pub(crate) fn rng(&mut self) -> &mut StdRng {
        &mut self.rng
    }

    /// Plans of HE operations, kept by shape.
    pub(crate) fn plans(&mut self) -> &mut Plans {
        &mut self.plans
    }

    /// Fills the pool with OT sender `sender` to at least `count`, booked as `offline`.
    pub(crate) fn reserve(&mut self, sender: Role, count: usize) -> Result<(), Error> {
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
    pub(crate) fn offline<T>(&mut self, steps: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        let phase = self.channel.ledger_mut().set_phase(Phase::Offline);
        let done = steps(self);
        self.channel.ledger_mut().set_phase(phase);
        done
    }

    /// Makes sure that `holder` has a key pair of `set` and that the other party has its public key, booked as `setup`.
    pub(crate) fn ensure_key(&mut self, holder: Role, set: ParamSet) -> Result<(), Error> {
        let mine = holder == self.channel.role();
        if if mine { self.own_keys.contains_key(&set) } else { self.peer_keys.contains_key(&set) } {
            return Ok(());
        }
        self.setup(|s| if mine { s.publish_key(set) } else { s.learn_key(set) })
    }

    /// [`Session::ensure_key`] for what `plan` needs of `holder`: Galois keys too if it packs.
    pub(crate) fn ensure_keys(&mut self, holder: Role, plan: &MatmulPlan) -> Result<(), Error> {
        let set = plan.set();
        self.ensure_key(holder, set)?;
        let mine = holder == self.channel.role();
        let sent = if mine { self.own_galois.contains(&set) } else { self.peer_galois.contains_key(&set) };
        if sent || !plan.packed() {
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

    /// This party's secret key; [`Session::ensure_key`] came before.
    pub(crate) fn secret_key(&mut self, set: ParamSet) -> (&SecretKey, &mut StdRng) {
        (self.own_keys.get(&set).expect("ensure_key came before"), &mut self.rng)
    }

    /// The peer's public key; [`Session::ensure_key`] came before.
    pub(crate) fn peer_key(&mut self, set: ParamSet) -> (&PublicKey, &mut StdRng) {
        (self.peer_keys.get(&set).expect("ensure_key came before"), &mut self.rng)
    }

    /// All that this party has of the peer's keys; [`Session::ensure_keys`] came before.
    pub(crate) fn evaluation_keys(&mut self, set: ParamSet) -> (EvaluationKeys<'_>, &mut StdRng) {
        let public = self.peer_keys.get(&set).expect("ensure_keys came before");
        (EvaluationKeys { public, galois: self.peer_galois.get(&set) }, &mut self.rng)
    }
}

/// Plans of HE operations, kept by shape: their search is slow for a loop of many tokens.
#[derive(Debug)]
pub struct Plans {
    options: PlanOptions,
    /// Wire bits that one random correlated OT is taken to cost when strategies are compared.
    pub(crate) cot_bits: usize,
    matmul: HashMap<MatmulSpec, Arc<MatmulPlan>>,
    ole: HashMap<(usize, u32, OleKind), Arc<OlePlan>>,
}

impl Plans {
    /// No plans yet, to be made under `options`.
    pub fn new(options: Options) -> Self {
        let plan_options = PlanOptions {
            bytes_per_second: options.link.bytes_per_second,
            packing: options.packing,
            ..PlanOptions::default()
        };
        let cot_bits = options.ot.bits_per_ot();
        Plans { options: plan_options, cot_bits, matmul: HashMap::new(), ole: HashMap::new() }
    }

    /// The plan of a matrix product.
    pub fn matmul(&mut self, spec: MatmulSpec) -> Result<Arc<MatmulPlan>, Error> {
        if let Some(plan) = self.matmul.get(&spec) {
            return Ok(plan.clone());
        }
        let plan = Arc::new(MatmulPlan::with_options(spec, self.options)?);
        self.matmul.insert(spec, plan.clone());
        Ok(plan)
    }

    /// The plan of elementwise products.
    pub fn ole(&mut self, len: usize, width: u32, kind: OleKind) -> Result<Arc<OlePlan>, Error> {
        if let Some(plan) = self.ole.get(&(len, width, kind)) {
            return Ok(plan.clone());
        }
        let plan = Arc::new(OlePlan::new(len, width, kind)?);
        self.ole.insert((len, width, kind), plan.clone());
        Ok(plan)
    }
}

/// What a session's traffic depends on apart from the operations: pool levels and keys already sent. Plays costs into a
/// ledger exactly as [`Session`] would book them.
#[derive(Debug)]
pub(crate) struct Forecast {
    pool: PoolPlan,
    levels: [Level; 2],
    keys: Vec<(Role, ParamSet)>,
    galois: Vec<(Role, ParamSet)>,
}

/// The pool of one direction.
#[derive(Clone, Copy, Debug, Default)]
struct Level {
    made: u64,
    held: usize,
}

impl Forecast {
    /// The state after [`Session::new`], whose own traffic is booked in `ledger`.
    pub(crate) fn new(options: Options, ledger: &mut net::Ledger) -> Self {
        ledger.enter("base OT");
        // Exchanges: the split of the bytes among them does not show in any account.
        let mut bytes = options.ot.setup_bytes();
        for _ in 0..options.ot.setup_messages() {
            ledger.book_exchange([bytes; 2]);
            bytes = 0;
        }
        ledger.leave();
        let pool = PoolPlan { kind: options.ot, min_batch: options.ot.default_batch() };
        Forecast { pool, levels: [Level::default(); 2], keys: Vec::new(), galois: Vec::new() }
    }

    /// Books `cost`.
    pub(crate) fn play(&mut self, cost: &Cost, ledger: &mut net::Ledger) {
        for step in cost.steps() {
            match *step {
                Step::Message { direction, bytes, offline } => {
                    booked(ledger, offline, |ledger| ledger.book(direction, bytes));
                }
                Step::Exchange { bytes, offline } => booked(ledger, offline, |ledger| ledger.book_exchange(bytes)),
                Step::Cots { sender, count } => {
                    self.refill(sender, count, ledger);
                    self.levels[sender as usize].held -= count as usize;
                }
                Step::Pooled { sender, count } => self.refill(sender, count, ledger),
                Step::Key { holder, set } => {
                    send_once(&mut self.keys, (holder, set), PublicKey::bytes(set), ledger);
                }
                Step::GaloisKeys { holder, set } => {
                    send_once(&mut self.galois, (holder, set), GaloisKeys::bytes(set), ledger);
                }
            }
        }
    }

    /// Books what fills the pool with OT sender `sender` to at least `count`.
    fn refill(&mut self, sender: Role, count: u64, ledger: &mut net::Ledger) {
        let Level { made, held } = &mut self.levels[sender as usize];
        let amount = self.pool.refill_amount(*made, *held, count as usize);
        let wire = self.pool.refill_wire(*made, amount);
        let phase = ledger.set_phase(Phase::Offline);
        for (direction, run) in [(sender.peer().sends(), wire.to_sender), (sender.sends(), wire.to_receiver)] {
            if run.messages > 0 {
                ledger.book_run(direction, run.bytes, run.messages);
            }
        }
        ledger.set_phase(phase);
        *made += amount as u64;
        *held += amount;
    }
}

/// Books something, as `offline` if it is.
fn booked(ledger: &mut net::Ledger, offline: bool, book: impl FnOnce(&mut net::Ledger)) {
    let phase = ledger.phase();
    if offline {
        ledger.set_phase(Phase::Offline);
    }
    book(ledger);
    if offline {
        ledger.set_phase(phase);
    }
}

/// Books the message of a key as `setup` unless it was sent before.
fn send_once(sent: &mut Vec<(Role, ParamSet)>, key: (Role, ParamSet), bytes: usize, ledger: &mut net::Ledger) {
    if !sent.contains(&key) {
        sent.push(key);
        let phase = ledger.set_phase(Phase::Setup);
        ledger.book(key.0.sends(), (bytes + HEADER_BYTES) as u64);
        ledger.set_phase(phase);
    }
}
