//! New tokens, and their place in the prompt.

/// Tokens that enter the cache together: all of the prompt, a piece of it, or tokens after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The number of tokens in the piece.
    pub new: usize,
    /// Tokens seen, the piece included: the position after its last token.
    pub end: usize,
    /// Tokens of the whole prompt.
    pub prompt: usize,
    /// Tokens that the store holds, the piece included.
    pub held: usize,
}

impl Piece {
    /// Whether the piece belongs to the prompt.
    pub fn in_prompt(self) -> bool {
        self.end <= self.prompt
    }

    /// Whether the piece ends the prompt.
    pub fn ends_prompt(self) -> bool {
        self.end == self.prompt
    }

    /// The number of new tokens among the last `window` tokens of the prompt. These are the last tokens of the piece.
    pub fn among_last(self, window: usize) -> usize {
        if self.in_prompt() { self.among_last_before(self.prompt, window) } else { 0 }
    }

    /// The number of new tokens among the last `window` tokens before the position `at`, which lies at or after the
    /// end of the piece. These are the last tokens of the piece.
    pub fn among_last_before(self, at: usize, window: usize) -> usize {
        let first = at.saturating_sub(window);
        self.end.saturating_sub(first).min(self.new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_at_the_end_of_the_prompt_may_span_pieces() {
        let prompt = 10;
        for window in 0..12 {
            for pieces in [&[10][..], &[4, 4, 2], &[9, 1], &[1, 9], &[3, 3, 3, 1]] {
                let mut end = 0;
                for &new in pieces {
                    let naive = (end..end + new).filter(|position| position + window >= prompt).count();
                    end += new;
                    let piece = Piece { new, end, prompt, held: end };
                    assert_eq!(piece.among_last(window), naive, "{window} of {piece:?}");
                    assert!(piece.in_prompt());
                    assert_eq!(piece.ends_prompt(), end == prompt);
                }
            }
        }
        let after = Piece { new: 1, end: 11, prompt, held: 11 };
        assert_eq!((after.in_prompt(), after.ends_prompt(), after.among_last(5)), (false, false, 0));
        assert_eq!([14, 15, 16].map(|at| after.among_last_before(at, 4)), [1, 0, 0]);
    }
}
