//! The parameter sets, and the table that bounds them.

/// Largest `log2 q` at 128-bit classical security for ternary secrets (Homomorphic Encryption Standard, table 1).
pub const SECURITY_TABLE: [(usize, u32); 4] = [(2048, 54), (4096, 109), (8192, 218), (16384, 438)];

/// Primes `= 1 mod 2^15`, which therefore suit every degree of [`SECURITY_TABLE`].
const PRIMES_40: [u64; 4] = [0xffffe80001, 0xffffca8001, 0xffffc40001, 0xffffb20001];
const PRIMES_44: [u64; 4] = [0xfffffdf8001, 0xfffffd78001, 0xfffffd68001, 0xfffffcf0001];
pub(crate) const PRIMES_46: [u64; 4] = [0x3ffffff70001, 0x3ffffff58001, 0x3ffffff28001, 0x3fffffe50001];
pub(crate) const PRIMES_50: [u64; 3] = [0x3ffffffdf0001, 0x3ffffffd48001, 0x3ffffffd20001];

/// The parameter sets that plans choose from. Keys belong to one set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ParamSet {
    /// N = 2048, one 50-bit prime: products in narrow rings.
    Narrow,
    /// N = 4096, two 46-bit primes: products of 64-bit shares by small weights, with an error of a few LSB for the
    /// widest weights.
    Small,
    /// N = 4096, two 50-bit primes: as `Small`, with 8 more bits of room. Also products of two shares of up to 44
    /// bits.
    SmallExact,
    /// N = 8192, three 46-bit primes: products of two 64-bit shares with an error of a few LSB.
    Full,
    /// N = 8192, three 50-bit primes: products of two 64-bit shares with an error of 1 LSB.
    FullExact,
    /// N = 8192, four 40-bit primes: elementwise products modulo up to `2^42`, or of very long vectors.
    Wide,
    /// N = 8192, four 44-bit primes: elementwise products modulo up to `2^64` under masks that hide their noise.
    Widest,
}

impl ParamSet {
    /// Every set, smallest ciphertexts first.
    pub const ALL: [Self; 7] =
        [Self::Narrow, Self::Small, Self::SmallExact, Self::Full, Self::FullExact, Self::Wide, Self::Widest];

    /// Ring degree N.
    pub const fn degree(self) -> usize {
        match self {
            Self::Narrow => 2048,
            Self::Small | Self::SmallExact => 4096,
            Self::Full | Self::FullExact | Self::Wide | Self::Widest => 8192,
        }
    }

    /// The primes whose product is q.
    pub fn primes(self) -> &'static [u64] {
        match self {
            Self::Narrow => &PRIMES_50[..1],
            Self::Small => &PRIMES_46[..2],
            Self::SmallExact => &PRIMES_50[..2],
            Self::Full => &PRIMES_46[..3],
            Self::FullExact => &PRIMES_50[..3],
            Self::Wide => &PRIMES_40,
            Self::Widest => &PRIMES_44,
        }
    }

    /// `floor(q / 2^bits)`, which must have at most 128 bits.
    pub(crate) fn quotient(self, bits: u32) -> u128 {
        // q as words, least significant first, moved down bit by word.
        let mut words = [1, 0, 0, 0, 0, 0u64];
        for &p in self.primes() {
            let mut carry = 0u128;
            for word in &mut words {
                let sum = u128::from(*word) * u128::from(p) + carry;
                (*word, carry) = (sum as u64, sum >> 64);
            }
        }
        let (skip, shift) = ((bits / 64) as usize, bits % 64);
        let word = |i: usize| words.get(skip + i).copied().unwrap_or(0);
        let moved = |i: usize| ((u128::from(word(i + 1)) << 64 | u128::from(word(i))) >> shift) as u64;
        debug_assert!(moved(2) == 0);
        u128::from(moved(1)) << 64 | u128::from(moved(0))
    }

    /// Bits of q: the sum of the sizes of its primes.
    pub fn log_q(self) -> u32 {
        self.primes().iter().map(|p| 64 - p.leading_zeros()).sum()
    }
}
