//! Prompts whose length is hidden.

use serde::{Deserialize, Serialize};

/// Tokens before the first word of a prompt that stand for nothing, so that prompts of many lengths look alike. An
/// encoder's come behind its text, because its first token is read. No token attends to them. It is public that there
/// may be some; only the client knows how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Padding {
    /// Their number, on the client; `None` on the server and in a plan.
    pub tokens: Option<usize>,
}

impl Padding {
    /// The positions in the text of the tokens `start..start + count`. Padding gets 0, which does not matter.
    pub fn positions(self, start: usize, count: usize) -> Option<Vec<u32>> {
        let padding = self.tokens?;
        // Positions lie far below 2^32: a model has a table of them, or as many tokens as fit into memory.
        Some((start..start + count).map(|i| i.saturating_sub(padding) as u32).collect())
    }
}
