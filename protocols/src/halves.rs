//! Halves of the server's weights: what the client and a helper multiply by.
//!
//! **Functionality.** The server's W = A + B modulo 2^w. The client has A, and the helper has B. Neither learns W.
//!
//! The server draws a secret ([`HalvesOwner`]). A seed follows from it, from which the client expands A. The server
//! sends B = W - A to the helper, once for all sessions with that seed. Then the parties get shares of r W for a
//! random row r of the client without encryption ([`MaskedRow`]). The client keeps r and r A + t. The helper, who
//! draws the same r and t, gives r B - t to the server.
//!
//! **What each sees.** The helper sees B, which is uniform without the seed, and the [`name`](HalvesSeed::name) of
//! the halves. The client sees A, which says nothing of W. **Together they know W.** A client that could pass for the
//! server on a second link to the helper would know it, too, because r B - t, r and t give B. So the server proves
//! itself. Clients know the name, which is the hash of a proof that the server alone knows. A helper takes halves
//! from a link, and uses them for it, only if the link shows the proof.
//!
//! A is a stream of AES in counter mode for each matrix, ring and shape, under a key that follows from the seed.

use std::collections::BTreeMap;
use std::sync::Arc;

use aes::Aes128Enc;
use ctr::Ctr64LE;
use ctr::cipher::{KeyIvInit, StreamCipher, StreamCipherSeek};
use rand::Rng;
use rayon::prelude::*;
use waggle_engine::Order;
use waggle_net::{Channel, HEADER_BYTES, Ledger, Phase};
use zerocopy::IntoBytes;
use zeroize::Zeroizing;

use crate::Error;
use crate::masked_row::MaskedRow;
use crate::matrix::FixedMatrix;
use crate::times::times_words;
use crate::words::mask;

/// Words of A that are expanded at once.
const BAND: usize = 1 << 22;
/// Words that one thread expands.
const RUN: usize = 1 << 14;
/// The most words of B in one message. A longer row still goes in one message.
const PIECE: usize = 1 << 18;
/// Step and scope of B on its way to the helper.
const HALF: &str = "helper/half of a weight";
const SCOPE: &str = "weights";

/// A server's secret. It tells a helper whose halves are asked for, and the clients' seeds follow from it.
#[derive(Clone)]
pub struct HalvesOwner(Zeroizing<[u8; 32]>);

impl HalvesOwner {
    /// A fresh secret.
    pub fn new(rng: &mut impl Rng) -> Self {
        let mut secret = Zeroizing::new([0; 32]);
        rng.fill_bytes(&mut *secret);
        HalvesOwner(secret)
    }

    /// The secret for the halves of one client. `key` is the digest of this client's key.
    pub fn of_client(&self, key: &[u8; 32]) -> Self {
        HalvesOwner(self.derive("waggle 2026 owner of a client's halves of weights", key))
    }

    /// The proof, which is shown to the helper and to nobody else.
    pub fn proof(&self) -> Zeroizing<[u8; 32]> {
        self.derive("waggle 2026 proof of halves of weights", &[])
    }

    /// The seed that the clients get.
    pub fn seed(&self) -> HalvesSeed {
        let seed = self.derive("waggle 2026 seed of halves of weights", &[]);
        HalvesSeed { seed, name: name(&self.proof()) }
    }

    fn derive(&self, purpose: &str, of: &[u8]) -> Zeroizing<[u8; 32]> {
        let mut hasher = blake3::Hasher::new_derive_key(purpose);
        hasher.update(&*self.0).update(of);
        Zeroizing::new(*hasher.finalize().as_bytes())
    }
}

/// The name of the halves that belong to this [`proof`](HalvesOwner::proof).
pub fn name(proof: &[u8; 32]) -> [u8; 32] {
    blake3::derive_key("waggle 2026 name of halves of weights", proof)
}

/// The seed from which a client expands its halves of all weights of a server, and their name. The server has it,
/// too.
#[derive(Clone)]
pub struct HalvesSeed {
    seed: Zeroizing<[u8; 32]>,
    name: [u8; 32],
}

impl HalvesSeed {
    /// Length of the seed and the name on the wire.
    pub const BYTES: usize = 64;

    /// Reads what the server sent to the client.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let mut both = HalvesSeed { seed: Zeroizing::default(), name: [0; 32] };
        both.seed.copy_from_slice(&bytes[..32]);
        both.name.copy_from_slice(&bytes[32..]);
        both
    }

    /// The bytes that the server sends to the client.
    pub fn to_bytes(&self) -> Zeroizing<[u8; Self::BYTES]> {
        let mut bytes = Zeroizing::new([0; Self::BYTES]);
        bytes[..32].copy_from_slice(&*self.seed);
        bytes[32..].copy_from_slice(&self.name);
        bytes
    }

    /// The name of the halves at a helper, who learns nothing of the seed from it.
    pub fn name(&self) -> [u8; 32] {
        self.name
    }

    /// The AES key from which the words of A for `kind` are expanded, row by row, 8 bytes each.
    fn key(&self, kind: &MaskedRow) -> Zeroizing<[u8; 16]> {
        let MaskedRow { weight, inputs, outputs, width, bits, .. } = kind;
        let mut hasher = blake3::Hasher::new_derive_key("waggle 2026 half of a weight");
        hasher.update(&*self.seed);
        for field in [*inputs as u64, *outputs as u64, (*width).into(), (*bits).into()] {
            hasher.update(&field.to_le_bytes());
        }
        hasher.update(weight.as_bytes());
        let mut key = Zeroizing::new([0; 16]);
        hasher.finalize_xof().fill(&mut *key);
        key
    }

    /// Writes the rows of A from `first` on, as many as fit into `out`.
    fn expand(&self, kind: &MaskedRow, first: usize, out: &mut [u64]) {
        let key = self.key(kind);
        let start = first * kind.outputs;
        out.par_chunks_mut(RUN).enumerate().for_each(|(i, out)| {
            let mut stream = Ctr64LE::<Aes128Enc>::new((&*key).into(), &[0; 16].into());
            out.fill(0);
            stream.seek(8 * (start + i * RUN) as u64);
            stream.apply_keystream(out.as_mut_bytes());
            out.iter_mut().for_each(|word| *word = u64::from_le(*word) & mask(kind.width));
        });
    }

    /// X A modulo 2^64, of which only the low `width` bits count.
    fn times(&self, kind: &MaskedRow, x: &[u64]) -> Vec<u64> {
        let (inputs, outputs) = (kind.inputs, kind.outputs);
        let rows = x.len() / inputs.max(1);
        let band = (BAND / outputs.max(1)).clamp(1, inputs.max(1));
        let mut words = vec![0; band * outputs];
        let mut sum = vec![0u64; rows * outputs];
        for first in (0..inputs).step_by(band) {
            let depth = band.min(inputs - first);
            let words = &mut words[..depth * outputs];
            self.expand(kind, first, words);
            let part: Vec<u64> = x.chunks_exact(inputs).flat_map(|x| &x[first..first + depth]).copied().collect();
            let product = times_words(&part, words, depth, outputs);
            sum.iter_mut().zip(product).for_each(|(sum, y)| *sum = sum.wrapping_add(y));
        }
        sum
    }
}

/// The halves of a server's weights that a helper has.
#[derive(Clone, Debug, Default)]
pub struct Halves(BTreeMap<MaskedRow, Arc<Vec<u64>>>);

impl Halves {
    /// Whether the half of `kind` is there.
    pub fn has(&self, kind: &MaskedRow) -> bool {
        self.0.contains_key(kind)
    }

    /// Takes in the halves of `others` that are missing here.
    pub fn add(&mut self, others: Halves) {
        for (kind, half) in others.0 {
            self.0.entry(kind).or_insert(half);
        }
    }

    /// Bytes of memory of all halves.
    pub fn bytes(&self) -> u64 {
        self.0.keys().map(half_bytes).sum()
    }

    /// Receives the half of `kind`, whose size the caller accepted before. On `channel`, the helper has the role of
    /// the server.
    ///
    /// # Errors
    /// Errors of the channel; malformed words.
    pub fn receive(&mut self, channel: &mut Channel, kind: &MaskedRow) -> Result<(), Error> {
        let mut half = Vec::with_capacity(kind.inputs * kind.outputs);
        booked(channel.ledger_mut());
        for rows in pieces(kind) {
            let count = rows * kind.outputs;
            let message = channel.recv(HALF, piece_bytes(kind, rows))?;
            half.extend(waggle_bits::unpack(HALF, &message, count, &[kind.width])?);
        }
        channel.ledger_mut().leave();
        self.0.insert(kind.clone(), Arc::new(half));
        Ok(())
    }
}

/// Bytes of a helper's memory for its half of a weight.
pub fn half_bytes(kind: &MaskedRow) -> u64 {
    8 * (kind.inputs as u64).saturating_mul(kind.outputs as u64)
}

/// Sends the helper its half of `kind`. `matrix` is the whole matrix; a rehearsal needs none. On `channel`, the
/// server has the role of the client.
///
/// # Errors
/// [`Error::NoHalf`] without a matrix, and errors of the channel.
pub fn send(
    channel: &mut Channel,
    seed: &HalvesSeed,
    kind: &MaskedRow,
    matrix: Option<&FixedMatrix>,
) -> Result<(), Error> {
    let outputs = kind.outputs;
    booked(channel.ledger_mut());
    let mut first = 0;
    for rows in pieces(kind) {
        channel.send_made(HALF, piece_bytes(kind, rows), || {
            let matrix = matrix.ok_or_else(|| Error::NoHalf { weight: kind.weight.clone() })?;
            let mut half = vec![0; rows * outputs];
            seed.expand(kind, first, &mut half);
            subtract(matrix, first, outputs, kind.width, &mut half);
            Ok::<_, Error>(waggle_bits::pack(&half, &[kind.width]))
        })?;
        first += rows;
    }
    channel.flush(HALF)?;
    channel.ledger_mut().leave();
    Ok(())
}

/// Subtracts in place: `a` holds the rows of A from `first` on, and then the same rows of W - A.
fn subtract(matrix: &FixedMatrix, first: usize, outputs: usize, width: u32, a: &mut [u64]) {
    let rows = a.len() / outputs.max(1);
    let minus = |a: &mut u64, w: i32| *a = (i64::from(w) as u64).wrapping_sub(*a) & mask(width);
    match matrix.order() {
        Order::Rows => {
            let mut line = vec![0; outputs];
            for (i, a) in a.chunks_exact_mut(outputs).enumerate() {
                matrix.read(first + i, 0, &mut line);
                a.iter_mut().zip(&line).for_each(|(a, w)| minus(a, *w));
            }
        }
        Order::Columns => {
            let mut line = vec![0; rows];
            for column in 0..outputs {
                matrix.read(column, first, &mut line);
                a[column..].iter_mut().step_by(outputs).zip(&line).for_each(|(a, w)| minus(a, *w));
            }
        }
    }
}

/// Bytes of a message that carries `rows` rows.
fn piece_bytes(kind: &MaskedRow, rows: usize) -> usize {
    waggle_bits::packed_bytes(rows * kind.outputs, &[kind.width])
}

/// Bytes that [`send`] sends.
pub fn sent_bytes(kind: &MaskedRow) -> u64 {
    pieces(kind).map(|rows| (piece_bytes(kind, rows) + HEADER_BYTES) as u64).sum()
}

/// Books what follows as `setup`, because halves serve many sessions.
fn booked(ledger: &mut Ledger) {
    ledger.set_phase(Phase::Setup);
    ledger.enter(SCOPE);
}

/// The number of rows in each message.
fn pieces(kind: &MaskedRow) -> impl Iterator<Item = usize> + use<> {
    let (inputs, most) = (kind.inputs, (PIECE / kind.outputs.max(1)).max(1));
    (0..inputs).step_by(most).map(move |first| most.min(inputs - first))
}

/// The halves that one machine knows.
#[derive(Clone, Copy)]
pub(crate) enum Known<'h> {
    /// No halves.
    Nothing,
    /// The client's halves.
    Client(&'h HalvesSeed),
    /// The helper's halves.
    Helper(&'h Halves),
}

impl Known<'_> {
    /// X times the half of `kind` that this machine knows, modulo 2^w.
    ///
    /// # Errors
    /// [`Error::NoHalf`] if it knows no half of `kind`.
    pub(crate) fn times(self, kind: &MaskedRow, x: &[u64]) -> Result<Vec<u64>, Error> {
        let missing = || Error::NoHalf { weight: kind.weight.clone() };
        let mut product = match self {
            Known::Nothing => return Err(missing()),
            Known::Client(seed) => seed.times(kind, x),
            Known::Helper(halves) => {
                times_words(x, halves.0.get(kind).ok_or_else(missing)?, kind.inputs, kind.outputs)
            }
        };
        product.iter_mut().for_each(|y| *y &= mask(kind.width));
        Ok(product)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ndarray::Array2;

    use super::*;
    use crate::local::PATIENCE;
    use waggle_net::{Role, memory_pair};

    /// The helper's half of `kind`, as it arrives at the helper.
    fn sent(seed: &HalvesSeed, kind: &MaskedRow, matrix: &FixedMatrix) -> Halves {
        let (here, there) = memory_pair(PATIENCE);
        let (mut server, mut helper) = (Channel::new(Role::Client, here), Channel::new(Role::Server, there));
        std::thread::scope(|scope| {
            scope.spawn(|| send(&mut server, seed, kind, Some(matrix)).unwrap());
            let mut halves = Halves::default();
            halves.receive(&mut helper, kind).unwrap();
            halves
        })
    }

    #[test]
    fn halves_make_the_product_in_either_order_and_any_pieces() {
        let mut rng = rand::rng();
        for (inputs, outputs, width) in [(3, 5, 56), (70_000, 7, 32), (1, 300_001, 40), (2, 2_100_000, 64)] {
            let numbers = Array2::from_shape_fn((inputs, outputs), |(i, j)| ((i * 31 + j * 7) % 255) as f32 - 127.0);
            for turned in [false, true] {
                let source: Arc<dyn waggle_engine::MatrixSource> = match turned {
                    false => Arc::new(numbers.clone()),
                    true => Arc::new(numbers.t().to_owned().reversed_axes()),
                };
                let matrix = FixedMatrix::rounded(source, 4);
                let kind = MaskedRow { weight: "w".into(), inputs, outputs, width, bits: 20, blocks: 1 };
                let seed = HalvesOwner::new(&mut rng).seed();
                let halves = sent(&seed, &kind, &matrix);
                let x: Vec<u64> = (0..2 * inputs).map(|_| rng.next_u64() & mask(width)).collect();
                let a = Known::Client(&seed).times(&kind, &x).unwrap();
                let b = Known::Helper(&halves).times(&kind, &x).unwrap();
                let want: Vec<u64> = matrix.times_here(&x).iter().map(|y| y & mask(width)).collect();
                let got: Vec<u64> = a.iter().zip(&b).map(|(a, b)| a.wrapping_add(*b) & mask(width)).collect();
                assert_eq!(got, want, "{inputs} x {outputs}, {width} bits, turned: {turned}");
                assert_ne!(b, want);
                assert_eq!(halves.bytes(), half_bytes(&kind));
            }
        }
    }

    #[test]
    fn every_kind_and_seed_has_a_half_of_its_own() {
        let kind = MaskedRow { weight: "w".into(), inputs: 2, outputs: 2, width: 64, bits: 20, blocks: 1 };
        let owner = HalvesOwner::new(&mut rand::rng());
        let owners =
            [HalvesOwner::new(&mut rand::rng()), owner.of_client(&[1; 32]), owner.of_client(&[2; 32]), owner];
        let seeds = owners.each_ref().map(HalvesOwner::seed);
        let kinds = [
            kind.clone(),
            MaskedRow { weight: "v".into(), ..kind.clone() },
            MaskedRow { width: 63, ..kind.clone() },
            MaskedRow { inputs: 1, outputs: 4, ..kind.clone() },
        ];
        let mut all: Vec<u64> = Vec::new();
        for (seed, kind) in seeds.iter().flat_map(|seed| kinds.iter().map(move |kind| (seed, kind))) {
            let mut words = vec![0; 4];
            seed.expand(kind, 0, &mut words);
            all.extend(words);
        }
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
        let names: BTreeSet<_> = seeds.iter().map(HalvesSeed::name).collect();
        assert_eq!(names.len(), seeds.len());
        for (owner, seed) in owners.iter().zip(&seeds) {
            assert_eq!(name(&owner.proof()), seed.name());
            assert_eq!(HalvesSeed::from_bytes(&seed.to_bytes()).to_bytes(), seed.to_bytes());
        }
        assert!(matches!(Known::Nothing.times(&kind, &[0, 0]), Err(Error::NoHalf { .. })));
        assert!(matches!(Known::Helper(&Halves::default()).times(&kind, &[0, 0]), Err(Error::NoHalf { .. })));
    }
}
