//! Products of one party's bits with the other party's words: the exchange of correlated OTs under most operations.
//!
//! **Functionality.** In OT i, one party has a choice bit b_i, and the other has a vector c_i of words modulo
//! 2^{w_i}. The result is additive shares of b_i c_i modulo 2^{w_i}. In [`one_way`] the client chooses. In
//! [`two_way`] both parties choose, each with its own bits, and both supply words; this takes two exchanges.
//!
//! **Source.** Correlated OT as in Asharov et al., eprint 2013/552, section 5, over Z_{2^w}.
//!
//! **Range.** Any bits and words; 1 <= w_i <= 64. **Error.** None. The naive reference is the product.
//!
//! **Revealed.** Nothing: choices are masked by random choice bits, words by pads.

use waggle_net::Role;
use waggle_ot::{Bits, ChosenKeys, CotShape, SenderKeys};

use crate::Error;
use crate::cost::Cost;
use crate::session::Session;

const CHOICES: &str = "cross/choices";
const ANSWER: &str = "cross/answer";

/// Shares of b_i c_i for the client's `bits` b, one per OT, and the server's `words` c. Each party passes its own.
pub fn one_way(
    s: &mut Session,
    shape: &CotShape,
    bits: impl FnOnce() -> Bits,
    words: impl FnOnce() -> Vec<u64>,
) -> Result<Vec<u64>, Error> {
    let n = shape.ots();
    s.reserve(Role::Server, n)?;
    match s.role() {
        Role::Client => {
            let (message, keys) = s.receiver().choose(&bits())?;
            s.deliver(CHOICES, message)?;
            let answer = s.channel().recv(ANSWER, shape.message_bytes())?;
            Ok(keys.decorrelate(shape, &answer)?)
        }
        Role::Server => {
            let message = s.channel().recv(CHOICES, n.div_ceil(8))?;
            let keys = s.sender().accept(n, &message)?;
            let (answer, shares) = keys.correlate(shape, &words())?;
            s.deliver(ANSWER, answer)?;
            Ok(shares)
        }
    }
}

/// Cost of [`one_way`].
pub fn one_way_cost(shape: &CotShape) -> Cost {
    Cost::free()
        .cots(Role::Server, shape.ots())
        .message(Role::Client, shape.ots().div_ceil(8))
        .supplies(Role::Server, shape)
        .message(Role::Server, shape.message_bytes())
        .chooses(Role::Client, shape)
}

/// Correlated OTs in both directions, after the choices have been sent and before the answers. Choices that are known
/// early can thus be sent early, and the answers take one more exchange.
pub(crate) struct Chosen {
    mine: ChosenKeys,
    theirs: SenderKeys,
}

/// Sends this party's `bits` and receives as many choices from the peer.
pub(crate) fn choose(s: &mut Session, bits: &Bits) -> Result<Chosen, Error> {
    let n = bits.len();
    s.reserve(Role::Server, n)?;
    s.reserve(Role::Client, n)?;
    let (message, mine) = s.receiver().choose(bits)?;
    let choices = s.channel().exchange(CHOICES, &message, n.div_ceil(8))?;
    Ok(Chosen { mine, theirs: s.sender().accept(n, &choices)? })
}

pub(crate) fn choose_cost(n: usize) -> Cost {
    Cost::free().cots(Role::Server, n).cots(Role::Client, n).exchange(n.div_ceil(8), n.div_ceil(8))
}

impl Chosen {
    /// Keeps the first `at` OTs and returns the others.
    pub(crate) fn split_off(&mut self, at: usize) -> Chosen {
        Chosen { mine: self.mine.split_off(at), theirs: self.theirs.split_off(at) }
    }

    /// Shares of b_i c'_i + b'_i c_i for this party's bits b and words c and the peer's bits b' and words c'.
    pub(crate) fn answer(self, s: &mut Session, shape: &CotShape, words: &[u64]) -> Result<Vec<u64>, Error> {
        let (message, mut shares) = self.theirs.correlate(shape, words)?;
        let answer = s.channel().exchange(ANSWER, &message, shape.message_bytes())?;
        let others = self.mine.decorrelate(shape, &answer)?;
        shares.iter_mut().zip(others).for_each(|(a, b)| *a = a.wrapping_add(b));
        Ok(shares)
    }
}

pub(crate) fn answer_cost(shape: &CotShape) -> Cost {
    let both = [Role::Client, Role::Server];
    let supplied = both.into_iter().fold(Cost::free(), |cost, role| cost.supplies(role, shape));
    let sent = supplied.exchange(shape.message_bytes(), shape.message_bytes());
    both.into_iter().fold(sent, |cost, role| cost.chooses(role, shape))
}

/// Sends choices and answers one after the other: `choose`, then `Chosen::answer`.
pub fn two_way(s: &mut Session, shape: &CotShape, bits: &Bits, words: &[u64]) -> Result<Vec<u64>, Error> {
    choose(s, bits)?.answer(s, shape, words)
}

/// Cost of [`two_way`].
pub fn two_way_cost(shape: &CotShape) -> Cost {
    choose_cost(shape.ots()).then(answer_cost(shape))
}
