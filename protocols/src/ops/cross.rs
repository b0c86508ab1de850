//! Products of one party's bits with the other party's words: the exchange of correlated OTs under most operations.
//!
//! **Functionality.** For every OT i with choice bit b_i of one party and words c_i (a vector of slots) of the other:
//! additive shares of b_i c_i modulo 2^{w_i}. In [`one_way`] the client chooses; in [`two_way`] both parties choose,
//! each with its own bits, and both supply words, in three flows.
//!
//! **Source.** Correlated OT as in Asharov et al., eprint 2013/552, section 5, over Z_{2^w}; the merged third flow is
//! the usual "answer and ask in one message".
//!
//! **Range.** Any bits and words; 1 <= w_i <= 64. **Error.** None. The naive twin is the product itself, in the tests of
//! every operation built on this.
//!
//! **Revealed.** Nothing: choices are masked by random choice bits, words by pads.

use net::Role;
use ot::{Bits, Correlation};

use crate::Error;
use crate::cost::Cost;
use crate::session::Session;

const CHOICES: &str = "cross/choices";
const ANSWER: &str = "cross/answer";
const ANSWER_AND_CHOICES: &str = "cross/answer and choices";

/// What a party brings to [`one_way`].
pub enum Side<'a> {
    /// The client's bits, one per OT.
    Choose(&'a Bits),
    /// The server's words, OT by OT.
    Supply(&'a [u64]),
}

/// Shares of b_i c_i with the client's bits b and the server's words c; `side` belongs to this party's role.
pub fn one_way(s: &mut Session, shape: &Correlation, side: Side<'_>) -> Result<Vec<u64>, Error> {
    let n = shape.ots();
    s.reserve(Role::Server, n)?;
    match side {
        Side::Choose(bits) => {
            let (message, keys) = s.receiver().choose(bits)?;
            s.deliver(CHOICES, message)?;
            let answer = s.channel().recv(ANSWER, shape.message_bytes())?;
            Ok(keys.decorrelate(shape, &answer)?)
        }
        Side::Supply(words) => {
            let message = s.channel().recv(CHOICES, n.div_ceil(8))?;
            let keys = s.sender().accept(n, &message)?;
            let (answer, shares) = keys.correlate(shape, words)?;
            s.deliver(ANSWER, answer)?;
            Ok(shares)
        }
    }
}

/// Cost of [`one_way`].
pub fn one_way_cost(shape: &Correlation) -> Cost {
    Cost::free()
        .cots(Role::Server, shape.ots())
        .message(Role::Client, shape.ots().div_ceil(8))
        .message(Role::Server, shape.message_bytes())
}

/// Shares of b_i c'_i + b'_i c_i for this party's bits b and words c and the peer's bits b' and words c'.
pub fn two_way(s: &mut Session, shape: &Correlation, bits: &Bits, words: &[u64]) -> Result<Vec<u64>, Error> {
    let n = shape.ots();
    let choices = n.div_ceil(8);
    s.reserve(Role::Server, n)?;
    s.reserve(Role::Client, n)?;
    let (mut shares, other) = match s.role() {
        Role::Client => {
            let (message, keys) = s.receiver().choose(bits)?;
            s.deliver(CHOICES, message)?;
            let reply = s.channel().recv(ANSWER_AND_CHOICES, shape.message_bytes() + choices)?;
            let (answer, theirs) = reply.split_at(shape.message_bytes());
            let accepted = s.sender().accept(n, theirs)?;
            let (message, supplied) = accepted.correlate(shape, words)?;
            s.deliver(ANSWER, message)?;
            (keys.decorrelate(shape, answer)?, supplied)
        }
        Role::Server => {
            let theirs = s.channel().recv(CHOICES, choices)?;
            let (mut message, supplied) = s.sender().accept(n, &theirs)?.correlate(shape, words)?;
            let (mine, keys) = s.receiver().choose(bits)?;
            message.extend_from_slice(&mine);
            s.deliver(ANSWER_AND_CHOICES, message)?;
            let answer = s.channel().recv(ANSWER, shape.message_bytes())?;
            (keys.decorrelate(shape, &answer)?, supplied)
        }
    };
    shares.iter_mut().zip(other).for_each(|(a, b)| *a = a.wrapping_add(b));
    Ok(shares)
}

/// Cost of [`two_way`].
pub fn two_way_cost(shape: &Correlation) -> Cost {
    let (n, choices) = (shape.ots(), shape.ots().div_ceil(8));
    Cost::free()
        .cots(Role::Server, n)
        .cots(Role::Client, n)
        .message(Role::Client, choices)
        .message(Role::Server, shape.message_bytes() + choices)
        .message(Role::Client, shape.message_bytes())
}
