//! Prompts whose length is hidden.

use serde::{Deserialize, Serialize};

/// Tokens before the first word of a prompt that stand for nothing, so that prompts of many lengths look alike. An
/// encoder's come behind its text, because its first token is read. No token attends to them. It is public that there
/// may be some; only the client knows how many.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Padding {
    /// Their number in each of the texts that are read side by side, on the client; `None` on the server and in a
    /// plan.
    pub tokens: Option<Vec<usize>>,
}

impl Padding {
    /// Padding of `tokens` tokens, of the only text.
    pub fn of(tokens: usize) -> Self {
        Padding { tokens: Some(vec![tokens]) }
    }

    /// The positions in each text of its tokens `start..start + count`. Padding gets 0, which does not matter.
    pub fn positions(&self, start: usize, count: usize) -> Option<Vec<u32>> {
        // Positions lie far below 2^32: a model has a table of them, or as many tokens as fit into memory.
        let of = |padding: &usize| (start..start + count).map(|i| i.saturating_sub(*padding) as u32).collect();
        self.tokens.as_ref().map(|tokens| tokens.iter().flat_map::<Vec<u32>, _>(of).collect())
    }
}
