//! The lengths of a generation.

use serde::{Deserialize, Serialize};

/// The lengths of a generation, or bounds on them: public.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lengths {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens to generate.
    pub tokens: usize,
}

/// The shortest bucket, in tokens.
const SHORTEST: usize = 16;

/// The length that stands for `tokens` tokens where lengths are hidden: the next power of two, at least 16.
pub fn bucket(tokens: usize) -> usize {
    tokens.next_power_of_two().max(SHORTEST)
}

/// A length that exceeds its bound.
pub struct Excess {
    /// The name of the length, in words.
    pub what: &'static str,
    /// The value of the length.
    pub got: usize,
    /// The bound.
    pub limit: usize,
}

impl Lengths {
    /// Bounds that nothing exceeds.
    pub const MAX: Lengths = Lengths { prompt: usize::MAX, tokens: usize::MAX };

    /// Positions that go through the model. The last token is generated but not read.
    pub fn positions(self) -> usize {
        self.prompt.saturating_add(self.tokens.saturating_sub(1))
    }

    /// The first of the two lengths that exceeds its bound in `bound`, if one does.
    pub fn beyond(self, bound: Lengths) -> Option<Excess> {
        [("tokens of a prompt", self.prompt, bound.prompt), ("tokens to generate", self.tokens, bound.tokens)]
            .into_iter()
            .find(|(_, got, limit)| got > limit)
            .map(|(what, got, limit)| Excess { what, got, limit })
    }
}
