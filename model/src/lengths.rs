//! How long a generation is.

use serde::{Deserialize, Serialize};

use crate::Error;

/// The lengths of a generation, or bounds on them: public.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lengths {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens to generate.
    pub tokens: usize,
}

/// One of two lengths, beyond its bound.
pub(crate) struct Excess {
    /// Which.
    pub(crate) what: &'static str,
    /// How much it is.
    pub(crate) got: usize,
    /// The bound.
    pub(crate) limit: usize,
}

impl Lengths {
    /// Bounds that nothing exceeds.
    pub const MAX: Lengths = Lengths { prompt: usize::MAX, tokens: usize::MAX };

    /// Positions that go through the model: the last token is generated and not read.
    pub fn positions(self) -> usize {
        self.prompt.saturating_add(self.tokens.saturating_sub(1))
    }

    /// What is beyond `bound`, if something is.
    pub(crate) fn beyond(self, bound: Lengths) -> Option<Excess> {
        [("tokens of a prompt", self.prompt, bound.prompt), ("tokens to generate", self.tokens, bound.tokens)]
            .into_iter()
            .find(|(_, got, limit)| got > limit)
            .map(|(what, got, limit)| Excess { what, got, limit })
    }

    /// Refuses a generation of nothing ([`Error::Nothing`]), beyond `bound` ([`Error::Limit`]) or over more than
    /// `limit` positions ([`Error::TooLong`]).
    pub(crate) fn check(self, bound: Lengths, limit: usize) -> Result<(), Error> {
        if self.prompt == 0 || self.tokens == 0 {
            return Err(Error::Nothing);
        }
        if let Some(Excess { what, got, limit }) = self.beyond(bound) {
            return Err(Error::Limit { what, got, limit });
        }
        let positions = self.positions();
        if positions > limit { Err(Error::TooLong { positions, limit }) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_length_has_its_own_bound_and_both_share_the_positions() {
        let check = |prompt, tokens| Lengths { prompt, tokens }.check(Lengths { prompt: 8, tokens: 4 }, 10);
        assert_eq!(Lengths { prompt: 8, tokens: 3 }.positions(), 10);
        check(8, 3).unwrap();
        check(7, 4).unwrap();
        assert!(matches!(check(0, 4), Err(Error::Nothing)));
        assert!(matches!(check(8, 0), Err(Error::Nothing)));
        assert!(matches!(check(9, 5), Err(Error::Limit { what: "tokens of a prompt", got: 9, limit: 8 })));
        assert!(matches!(check(8, 5), Err(Error::Limit { what: "tokens to generate", got: 5, limit: 4 })));
        assert!(matches!(check(8, 4), Err(Error::TooLong { positions: 11, limit: 10 })));
        assert_eq!(Lengths::MAX.positions(), usize::MAX);
    }
}
