//! Sets up both directions from nothing: base OTs and checked punctured PRFs, in three exchanges.

use rand::CryptoRng;
use subtle::Choice;
use waggle_net::{Channel, HEADER_BYTES, Role};
use zeroize::{Zeroize, Zeroizing};

use crate::base::{self, BaseSender, COUNT, Domain, POINT_BYTES};
use crate::check::Check;
use crate::ggm::full;
use crate::hash::CrHash;
use crate::kernels::{Kernels, Simd};
use crate::kind::CotKind;
use crate::pool::{OtReceiver, OtSender, PoolPlan};
use crate::silent::{Public, SilentReceiver, SilentSender};
use crate::softspoken::{SoftSpokenReceiver, SoftSpokenSender};
use crate::source::CotSource;
use crate::{Block, OtError};

const HELLO: &str = "ot/hello";
const POINTS: &str = "ot/points";
const TREES: &str = "ot/trees";

const NONCE_BYTES: usize = 32;
const HELLO_BYTES: usize = NONCE_BYTES + POINT_BYTES;
const POINTS_BYTES: usize = COUNT * POINT_BYTES;

impl CotKind {
    /// Bytes that each party sends in [`setup`], framing included.
    pub fn setup_bytes(self) -> u64 {
        let bytes = HELLO_BYTES + POINTS_BYTES + full::CORRECTION_BYTES + 3 * HEADER_BYTES;
        if self.softspoken().is_ok() { bytes as u64 } else { 0 }
    }

    /// Messages that each party sends in [`setup`]. Both parties send at the same time.
    pub fn setup_messages(self) -> u64 {
        if self.softspoken().is_ok() { 3 } else { 0 }
    }
}

/// Sets up both directions with the peer, which must call this with the same `kind`. Returns this party's sender
/// (its messages go to the peer) and receiver. Both pools are empty.
///
/// The session is bound to the link's keys and to all that the parties sent before ([`Channel::binding`]). If a party
/// did not receive what the other one sent, the trees do not fit their check.
pub fn setup(ch: &mut Channel, kind: CotKind, rng: &mut impl CryptoRng) -> Result<(OtSender, OtReceiver), OtError> {
    setup_with(ch, kind, Kernels::default(), rng)
}

/// As [`setup`], on the given `kernels`. The peer may run others. Errors: the channel fails, the peer's points are
/// not in the group, or its trees fail their check ([`OtError::Deviates`]).
pub fn setup_with(
    ch: &mut Channel,
    kind: CotKind,
    kernels: Kernels,
    rng: &mut impl CryptoRng,
) -> Result<(OtSender, OtReceiver), OtError> {
    let simd = kernels.simd();
    let softspoken = kind.softspoken()?;
    let k = softspoken.k();

    // Each party sends a point and a nonce for the session's name.
    let base_sender = BaseSender::new(rng);
    let mut hello = [0; HELLO_BYTES];
    rng.fill_bytes(&mut hello[..NONCE_BYTES]);
    hello[NONCE_BYTES..].copy_from_slice(&base_sender.message());
    let theirs = ch.exchange(HELLO, &hello, HELLO_BYTES)?;
    let (client, server) = match ch.role() {
        Role::Client => (&hello[..], &theirs[..]),
        Role::Server => (&theirs[..], &hello[..]),
    };
    // The binding ties all that follows to the link's keys and to what the parties agreed on before. If the parties'
    // versions differ, because somebody in between changed them, no OT correlates.
    let mut hasher = blake3::Hasher::new_derive_key("waggle-ot 2026 session");
    hasher.update(&ch.binding()).update(client).update(server);
    hasher.update(&[k as u8, u8::from(kind == CotKind::Silent)]);
    let session = *hasher.finalize().as_bytes();
    let (mine, peers) = (Direction::new(&session, ch.role(), simd), Direction::new(&session, ch.role().peer(), simd));

    // In the direction where this party sends OTs, it receives base OTs, with the negated bits of its Delta.
    let delta = Zeroizing::new(random_delta(rng));
    let bits: [Choice; COUNT] = std::array::from_fn(|i| Choice::from((delta.0[i / 64] >> (i % 64) & 1) as u8));
    let (points, mut chosen) = base::receive(&mine.base, HELLO, &theirs[NONCE_BYTES..], &bits.map(|bit| !bit), rng)?;
    let their_points = ch.exchange(POINTS, &points, POINTS_BYTES)?;
    let mut pairs = base_sender.keys(&peers.base, POINTS, &their_points)?;

    let (mut all, corrections) = full::build(&peers.tree_key, k, &pairs);
    let their_corrections = ch.exchange(TREES, &corrections, full::CORRECTION_BYTES)?;
    let from = (TREES, ch.role().peer());
    let opened = full::open(from, &mine.tree_key, k, &chosen, &bits, &their_corrections);
    let mut opened = opened.inspect_err(|_| ch.reject(TREES))?;

    let plan = PoolPlan { kind, min_batch: kind.default_batch() };
    let sender = SoftSpokenSender::new(softspoken, &opened, *delta, mine.check.clone());
    let receiver = SoftSpokenReceiver::new(softspoken, &all, peers.check.clone());
    let (sender, receiver): (Box<dyn CotSource>, Box<dyn CotSource>) = match kind {
        CotKind::Silent => {
            let mut seed = Zeroizing::new([0; 16]);
            rng.fill_bytes(&mut *seed);
            let public = |direction: &Direction| Public::new(&direction.silent_key, simd);
            (
                Box::new(SilentSender::new(sender, public(&mine), mine.check, *delta, seed)),
                Box::new(SilentReceiver::new(receiver, public(&peers), peers.check)),
            )
        }
        _ => (Box::new(sender), Box::new(receiver)),
    };
    let sender = OtSender::new(sender, plan, mine.hash, *delta);
    let receiver = OtReceiver::new(receiver, plan, peers.hash);
    chosen.zeroize();
    pairs.zeroize();
    all.zeroize();
    opened.zeroize();
    Ok((sender, receiver))
}

/// A uniform block whose least significant bit is 1.
pub(crate) fn random_delta(rng: &mut impl CryptoRng) -> Block {
    Block([rng.next_u64() | 1, rng.next_u64()])
}

/// The keyed functions of one direction, in which one party sends OTs and the other receives them.
pub(crate) struct Direction {
    base: Domain,
    tree_key: [u8; 32],
    silent_key: [u8; 32],
    check: Check,
    pub(crate) hash: CrHash,
}

impl Direction {
    pub(crate) fn new(session: &[u8; 32], sender: Role, simd: Option<Simd>) -> Self {
        let label: &[u8] = match sender {
            Role::Client => b"client to server",
            Role::Server => b"server to client",
        };
        let key = |purpose: &str| {
            let mut hasher = blake3::Hasher::new_derive_key(purpose);
            hasher.update(session).update(label);
            *hasher.finalize().as_bytes()
        };
        Direction {
            base: Domain::new(session, label),
            tree_key: key("waggle-ot 2026 GGM tree"),
            silent_key: key("waggle-ot 2026 silent OT"),
            check: Check::new(key("waggle-ot 2026 check"), simd),
            hash: CrHash::new(session, label, simd),
        }
    }
}
