//! Prompts whose length is hidden.

use serde::{Deserialize, Serialize};

/// Tokens before the first word of a prompt that stand for nothing, so that prompts of many lengths look alike. In an
/// encoder padding stands behind the text, because the first token of the text is read. No token attends to padding.
/// It is public that there may be padding, but only the client knows how much.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Padding {
    /// The number of padding tokens in each of the texts that are read side by side. Only the client has the numbers:
    /// `None` on the server and in a plan.
    pub tokens: Option<Vec<usize>>,
}

impl Padding {
    /// Padding of `tokens` tokens, for a single text.
    pub fn of(tokens: usize) -> Self {
        Padding { tokens: Some(vec![tokens]) }
    }

    /// The positions of the tokens `start..start + count` of each text, or `None` where the padding is not known.
    /// Padding gets the position 0, which does not matter.
    pub fn positions(&self, start: usize, count: usize) -> Option<Vec<u32>> {
        // Positions lie far below 2^32: a model has a table of them, or as many tokens as fit into memory.
        let of = |padding: &usize| (start..start + count).map(|i| i.saturating_sub(*padding) as u32).collect();
        self.tokens.as_ref().map(|tokens| tokens.iter().flat_map::<Vec<u32>, _>(of).collect())
    }
}
