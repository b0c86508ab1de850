//! Base OT: 128 random OTs from Diffie-Hellman on Ristretto.
//!
//! The "simplest OT" of Chou and Orlandi (<https://eprint.iacr.org/2015/267>) with the repairs proposed since: the
//! hash binds session, index and every point of the instance, points are decoded canonically and the identity is
//! refused. Ristretto has prime order, so no cofactor can leak bits of a scalar.
//!
//! Sender: `A = a G`. Receiver with choice c: `B = b G + c A`, key `H(b A)`. Sender: `k0 = H(a B)`,
//! `k1 = H(a B - a A)`.

use curve25519_dalek::constants::RISTRETTO_BASEPOINT_TABLE;
use curve25519_dalek::ristretto::{CompressedRistretto, RistrettoBasepointTable, RistrettoPoint};
use curve25519_dalek::scalar::Scalar;
use curve25519_dalek::traits::{Identity, IsIdentity};
use rand::CryptoRng;
use subtle::{Choice, ConditionallySelectable};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::{Block, OtError};

/// Base OTs per direction: one for each bit of the extension's `Delta`.
pub(crate) const COUNT: usize = 128;

/// Bytes of an encoded point.
pub(crate) const POINT_BYTES: usize = 32;

/// The base sender, which has not seen the receiver's points yet.
#[derive(ZeroizeOnDrop)]
pub(crate) struct BaseSender {
    a: Scalar,
    #[zeroize(skip)]
    point: CompressedRistretto,
}

impl BaseSender {
    /// Draws the secret scalar.
    pub(crate) fn new(rng: &mut impl CryptoRng) -> Self {
        BaseSender::with(random_scalar(rng))
    }

    fn with(a: Scalar) -> Self {
        BaseSender { a, point: RistrettoPoint::mul_base(&a).compress() }
    }

    /// The sender whose scalar is `bytes` modulo the group order.
    #[cfg(feature = "probe")]
    pub(crate) fn from_bytes(bytes: &[u8; 64]) -> Self {
        BaseSender::with(Scalar::from_bytes_mod_order_wide(bytes))
    }

    /// The first message, `A`.
    pub(crate) fn message(&self) -> [u8; POINT_BYTES] {
        self.point.to_bytes()
    }

    /// Both keys of every OT, from the receiver's `message` of [`COUNT`] encoded points.
    pub(crate) fn keys(
        self,
        domain: &Domain,
        step: &'static str,
        message: &[u8],
    ) -> Result<Vec<[Block; 2]>, OtError> {
        let points = decode_points(step, message, COUNT)?;
        let half = half(&self.a);
        // a A = a^2 G: one fixed-base multiplication serves all instances.
        let a_a = RistrettoPoint::mul_base(&(self.a * *half));
        let mut shared = Zeroizing::new(Vec::with_capacity(2 * COUNT));
        for (_, b) in &points {
            let a_b = b * *half;
            shared.extend([a_b, a_b - a_a]);
        }
        let encoded = Zeroizing::new(RistrettoPoint::double_and_compress_batch(&*shared));
        let keys = points.iter().zip(encoded.as_chunks::<2>().0).enumerate();
        Ok(keys.map(|(i, ((b, _), pair))| pair.map(|shared| domain.key(i, &self.point, b, &shared))).collect())
    }
}

/// Answers the sender's point `message` with one point per choice. Returns the points and the chosen keys.
pub(crate) fn receive(
    domain: &Domain,
    step: &'static str,
    message: &[u8],
    choices: &[Choice; COUNT],
    rng: &mut impl CryptoRng,
) -> Result<(Vec<u8>, Vec<Block>), OtError> {
    let (encoded_a, a) = decode_points(step, message, 1)?[0];
    let (table, half_a) = (RistrettoBasepointTable::create(&a), a * *half(&Scalar::ONE));
    let mut points = Zeroizing::new(Vec::with_capacity(2 * COUNT));
    for &choice in choices {
        let b = half(&random_scalar(rng));
        let shift = RistrettoPoint::conditional_select(&RistrettoPoint::identity(), &half_a, choice);
        points.extend([RISTRETTO_BASEPOINT_TABLE * &*b + shift, &table * &*b]);
    }
    let encoded = Zeroizing::new(RistrettoPoint::double_and_compress_batch(&*points));
    let mut reply = Vec::with_capacity(COUNT * POINT_BYTES);
    let mut keys = Vec::with_capacity(COUNT);
    for (i, [b, shared]) in encoded.as_chunks::<2>().0.iter().enumerate() {
        keys.push(domain.key(i, &encoded_a, b, shared));
        reply.extend_from_slice(b.as_bytes());
    }
    Ok((reply, keys))
}

/// Half of a scalar modulo the group order. A batch of points is cheap to encode only if the encoding also doubles
/// them.
fn half(scalar: &Scalar) -> Zeroizing<Scalar> {
    Zeroizing::new(scalar.div_by_2())
}

/// The domain of the key hash: it separates one batch of base OTs from all others.
pub(crate) struct Domain {
    key: [u8; 32],
}

impl Domain {
    /// The base OTs of the direction `label` in the session `session`.
    pub(crate) fn new(session: &[u8; 32], label: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("waggle-ot 2026 base OT");
        hasher.update(session).update(label);
        Domain { key: *hasher.finalize().as_bytes() }
    }

    fn key(&self, i: usize, a: &CompressedRistretto, b: &CompressedRistretto, shared: &CompressedRistretto) -> Block {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&(i as u64).to_le_bytes()).update(a.as_bytes()).update(b.as_bytes());
        hasher.update(shared.as_bytes());
        let mut key = [0; 16];
        hasher.finalize_xof().fill(&mut key);
        Block::from_bytes(key)
    }
}

/// A uniform scalar: 512 random bits reduced modulo the group order.
fn random_scalar(rng: &mut impl CryptoRng) -> Scalar {
    let mut wide = [0; 64];
    rng.fill_bytes(&mut wide);
    let scalar = Scalar::from_bytes_mod_order_wide(&wide);
    wide.zeroize();
    scalar
}

fn decode_points(
    step: &'static str,
    bytes: &[u8],
    count: usize,
) -> Result<Vec<(CompressedRistretto, RistrettoPoint)>, OtError> {
    OtError::expect(step, "bytes", count * POINT_BYTES, bytes.len())?;
    let decode = |(i, chunk): (usize, &[u8])| {
        let encoded = CompressedRistretto::from_slice(chunk)
            .map_err(|_| OtError::malformed(step, format!("point {i} is cut short")))?;
        let point = encoded
            .decompress()
            .ok_or_else(|| OtError::malformed(step, format!("point {i} is not a group element")))?;
        if point.is_identity() {
            return Err(OtError::malformed(step, format!("point {i} is the identity")));
        }
        Ok((encoded, point))
    };
    bytes.chunks(POINT_BYTES).enumerate().map(decode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    fn choices(rng: &mut StdRng) -> [Choice; COUNT] {
        std::array::from_fn(|_| Choice::from((rng.next_u32() & 1) as u8))
    }

    #[test]
    fn the_receiver_gets_the_chosen_key_and_no_other() {
        let mut rng = StdRng::seed_from_u64(2);
        let domain = Domain::new(&[3; 32], b"test");
        let choices = choices(&mut rng);
        let sender = BaseSender::new(&mut rng);
        let (reply, chosen) = receive(&domain, "base", &sender.message(), &choices, &mut rng).unwrap();
        let keys = sender.keys(&domain, "base", &reply).unwrap();
        for ((pair, key), c) in keys.iter().zip(&chosen).zip(choices) {
            let c = usize::from(c.unwrap_u8());
            assert!(pair[c] == *key && pair[1 - c] != *key);
        }
    }

    #[test]
    fn another_session_gives_other_keys() {
        let mut rng = StdRng::seed_from_u64(3);
        let choices = choices(&mut rng);
        let sender = BaseSender::new(&mut rng);
        let (reply, chosen) =
            receive(&Domain::new(&[0; 32], b"x"), "base", &sender.message(), &choices, &mut rng).unwrap();
        let keys = sender.keys(&Domain::new(&[1; 32], b"x"), "base", &reply).unwrap();
        assert!(keys.iter().zip(&chosen).all(|(pair, key)| !pair.contains(key)));
    }

    #[test]
    fn bad_points_are_refused() {
        let mut rng = StdRng::seed_from_u64(4);
        let domain = Domain::new(&[0; 32], b"x");
        let all = choices(&mut rng);
        let identity = [0; POINT_BYTES];
        let off_group = [0xff; POINT_BYTES];
        for (bad, what) in [(identity, "identity"), (off_group, "not a group element")] {
            let error = receive(&domain, "base", &bad, &all, &mut rng).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
            let sender = BaseSender::new(&mut rng);
            let (mut reply, _) = receive(&domain, "base", &sender.message(), &all, &mut rng).unwrap();
            reply[5 * POINT_BYTES..6 * POINT_BYTES].copy_from_slice(&bad);
            let error = sender.keys(&domain, "base", &reply).unwrap_err().to_string();
            assert!(error.contains(what) && error.contains("point 5"), "{error}");
        }
        assert!(matches!(
            receive(&domain, "base", &[1; 31], &all, &mut rng).unwrap_err(),
            OtError::Length { expected: 32, got: 31, .. }
        ));
    }
}
