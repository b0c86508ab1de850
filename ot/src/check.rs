//! The checks against a party that deviates: random linear combinations over GF(2^128) of what an extension made.
//!
//! **What is checked, and by whom.** Either party has both roles, one in each direction.
//!
//! | message | sent by | checked by | how |
//! |---|---|---|---|
//! | corrections of the trees of the set-up | receiver | sender | [`crate::ggm::full`]: a digest of a tag of every leaf |
//! | `d_j` of SoftSpoken OT, also of the first reserve of silent OT | receiver | sender | [`crate::softspoken`]: a combination of every bit plane |
//! | trees of silent OT | sender | receiver | [`crate::silent`]: a combination of all leaves |
//!
//! Nothing else is sent: base OTs are bound by the trees of the set-up, codes are computed alone.
//!
//! **Order.** The coefficients of a combination come from a hash of the session's key and of all frames that the
//! checked party sent, up to the message that they combine (Fiat and Shamir). So they are known only once the message
//! is fixed, and no flow is added for them; the hash of the frames is the channel's own. The checking party verifies
//! before [`CotSource::extend`](crate::CotSource::extend) returns, hence before it sends anything that depends on the
//! new OTs: trees of silent OT, which are masked by them, go out after the check of the reserve.
//!
//! **Soundness.** A combination is an almost universal hash: a vector that was fixed before the coefficients and is
//! not zero is mapped to a given value with probability below `2^-127`. A party that draws new messages until the
//! coefficients suit it succeeds with this probability at each try. Each file says which vectors are compared.
//!
//! **What a deviating party gets.** A guess of c bits, of the sender's Delta or of the places of the receiver's
//! noise, passes with probability `2^-c` and confirms the guess: selective failure, as in the functionalities of Roy
//! (<https://eprint.iacr.org/2022/192>) and of Ferret (<https://eprint.iacr.org/2020/924>). A wrong guess ends the
//! session, whose Delta is not used again: [`crate::OtError::Deviates`].
//!
//! **Masks.** A check opens one combination of choice bits. [`MASKS`] OTs that serve nothing else make it uniform.

use crate::Block;
use crate::kernels::{Permutation, Simd};

/// Number of OTs that a check spends: one for every bit that it opens.
pub(crate) const MASKS: usize = 128;

/// The powers of X below `X^128`, which are the coefficients of the masks.
pub(crate) static POWERS: [Block; MASKS] = {
    let mut powers = [Block::ZERO; MASKS];
    let mut i = 0;
    while i < MASKS {
        powers[i].0[i / 64] = 1 << (i % 64);
        i += 1;
    }
    powers
};

/// The checks of one session and direction.
#[derive(Clone)]
pub(crate) struct Check {
    key: [u8; 32],
    pub(crate) simd: Option<Simd>,
}

impl Check {
    /// The checks under a key that binds session and direction and has no other use.
    pub(crate) fn new(key: [u8; 32], simd: Option<Simd>) -> Self {
        Check { key, simd }
    }

    /// The challenge after frames whose digest is `frames`.
    pub(crate) fn challenge(&self, frames: &[u8; 32]) -> Challenge {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(b"challenge").update(frames);
        let key = crate::hash::first_half(hasher.finalize());
        Challenge(Permutation::new(self.simd, Block::from_bytes(key)))
    }

    /// A digest of secret combinations. It compares in constant time.
    pub(crate) fn digest(&self, blocks: &[Block]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(b"answer");
        for block in blocks {
            hasher.update(&block.to_bytes());
        }
        hasher.finalize()
    }
}

/// The public coefficients of a check. A coefficient is the sum of a counter and of its encryption by AES under a key
/// from the challenge.
pub(crate) struct Challenge(Permutation);

impl Challenge {
    /// The coefficients from number `first` on.
    pub(crate) fn coefficients(&self, first: u64, out: &mut [Block]) {
        (first..).zip(out.iter_mut()).for_each(|(number, out)| *out = Block([number, 0]));
        self.0.davies_meyer(out);
    }
}
