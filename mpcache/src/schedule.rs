//! When a store evicts tokens, and how many. Both are functions of public lengths.
//!
//! Tokens are evicted in blocks. Every eviction rewrites the rows that are left, and a session in two phases then
//! needs fresh masks for them. A hidden choice costs many exchanges on top. A full store therefore evicts a whole
//! block at once, and then nothing until it is full again.

use crate::{Budget, Piece, PolicyError, PolicyOptions};

/// The share of tokens that a policy keeps unless told otherwise.
pub const DEFAULT_BUDGET: Budget = Budget::Share(0.25);

/// The default block is the budget in tokens divided by this.
const BLOCKS: usize = 4;

/// When a store evicts tokens, and how many.
///
/// With a budget in tokens a store never exceeds the budget once the prompt is read: a full store evicts a block
/// before the next token comes. While a prompt is read, the tokens of its current piece come on top.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// The tokens that are kept.
    pub budget: Budget,
    /// The number of tokens that are evicted at once while text is generated, at most half of the budget.
    pub block: usize,
    /// The number of tokens in a chunk of the prompt. The store is cut to the budget after each chunk. `None` cuts it
    /// only at the end of the prompt.
    pub prefill: Option<usize>,
    /// The tokens that are spared at each end of the prompt, as a share of those that an eviction leaves: from 0 and
    /// below 1/2 ([`Rows`]).
    ///
    /// [`Rows`]: crate::eviction::Rows
    pub guard: f64,
}

/// A point of the text at which tokens are evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// The number of tokens seen when the eviction comes.
    pub at: usize,
    /// The number of tokens that the eviction leaves.
    pub keep: usize,
}

/// The kinds of budget under which a policy goes on to evict tokens after the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Later {
    /// Budgets of both kinds: a share, and a number of tokens.
    Always,
    /// Only a budget that is a number of tokens. A share is then a share of the prompt.
    Tokens,
}

/// Reads `guard`: the share, of the tokens that an eviction leaves, that is spared at each end of the prompt.
pub(crate) fn guard(options: &mut PolicyOptions) -> Result<f64, PolicyError> {
    let parse = |text: &str| text.parse().ok().filter(|share| (0.0..0.5).contains(share));
    options.read_or("guard", "a share from 0, below 0.5", 0.0, parse)
}

/// The number of tokens that the share `guard` spares at each end of the prompt, rounded up, where `keep` tokens are
/// left.
pub(crate) fn guarded(guard: f64, keep: usize) -> usize {
    ((guard * keep as f64).ceil() as usize).min(keep.saturating_sub(1) / 2)
}

impl Schedule {
    /// Reads `budget`, `block` and `guard`, and `prefill` if the policy lists that option.
    pub fn read(options: &mut PolicyOptions, later: Later) -> Result<Self, PolicyError> {
        Self::read_or(options, DEFAULT_BUDGET, later)
    }

    /// [`read`](Self::read) for a policy whose budget is `budget` unless told otherwise.
    pub fn read_or(options: &mut PolicyOptions, budget: Budget, later: Later) -> Result<Self, PolicyError> {
        let budget = options.value("budget", budget)?;
        if later == Later::Tokens && budget.tokens().is_none() && options.given("block") {
            return Err(options.no_effect("block", "a budget that is a share of the prompt"));
        }
        let default = budget.tokens().map_or(1, |tokens| (tokens / BLOCKS).max(1));
        // A share of the prompt has no blocks.
        let has_blocks = later == Later::Always || budget.tokens().is_some();
        let block = if has_blocks { options.number("block", 1, default)? } else { default };
        if let Some(most) = budget.tokens().map(|tokens| tokens / 2).filter(|most| block > *most) {
            return Err(options.refused("block", &block.to_string(), &format!("at most half of the budget, {most}")));
        }
        let chunk = |text: &str| match text {
            "off" => Some(text.to_owned()),
            number => number.parse().ok().filter(|n| (1..1 << 20).contains(n)).map(|n: usize| n.to_string()),
        };
        let prefill = match options.lists("prefill") {
            true => options.read_or("prefill", "a number of tokens, or off", "off".into(), chunk)?.parse().ok(),
            false => None,
        };
        Ok(Schedule { budget, block, prefill, guard: guard(options)? })
    }

    /// The number of tokens that are spared at each end of the prompt, under a budget of `budget` tokens: fewer than
    /// half of those that any eviction leaves.
    pub fn guarded(&self, budget: usize) -> usize {
        let most = self.stay(budget);
        guarded(self.guard, self.left(most, most + 1).unwrap_or(most))
    }

    /// The number of tokens that an eviction leaves of `held` tokens, if at most `most` may stay; `None` if nothing
    /// is evicted. The eviction leaves a block less than `most`, plus one token, because a token that came in or will
    /// come takes a place of its own.
    pub fn left(&self, most: usize, held: usize) -> Option<usize> {
        (held > most).then(|| most + 1 - self.block.min(most.div_ceil(2)))
    }

    /// Whether `piece` ends a chunk of the prompt, but not the prompt.
    pub fn ends_chunk(&self, piece: Piece) -> bool {
        let ends = |chunk| piece.end / chunk > (piece.end - piece.new) / chunk;
        piece.in_prompt() && !piece.ends_prompt() && self.prefill.is_some_and(ends)
    }

    /// The largest number of tokens that stay under a budget of `budget` tokens. If the budget is a share, that is
    /// all of them, because a share grows with the text. If it is a number of tokens, it is one less, so that there
    /// is room for the next token.
    pub fn stay(&self, budget: usize) -> usize {
        match self.budget {
            Budget::Share(_) => budget,
            Budget::Tokens(_) => budget.max(2) - 1,
        }
    }

    /// The budget, in tokens, of a text of `tokens` tokens. A budget that is a number stays the same however short
    /// the text is.
    pub fn budget_of(&self, tokens: usize) -> usize {
        self.budget.tokens().unwrap_or_else(|| self.budget.of(tokens))
    }

    /// The next eviction of a layer, as it is foreseen after `piece`; `None` if the layer's store will not be cut.
    /// `budget` is the layer's budget: [`budget_of`](Schedule::budget_of) or a part of it. With [`Later::Tokens`]
    /// generated tokens are evicted only under a budget in tokens.
    pub fn next(&self, budget: usize, piece: Piece) -> Option<Eviction> {
        let Piece { end, prompt, held, .. } = piece;
        let most = self.stay(budget);
        if piece.in_prompt() {
            let chunk = self.prefill.unwrap_or(prompt);
            let mut at = if self.ends_chunk(piece) { end } else { end.next_multiple_of(chunk) };
            while at < prompt {
                if held + at - end > most {
                    return Some(Eviction { at, keep: most });
                }
                at = (at / chunk + 1) * chunk;
            }
            if let Some(keep) = self.left(most, held + prompt - end) {
                return Some(Eviction { at: prompt, keep });
            }
        }
        self.budget.tokens()?;
        let at = end + (most + 1).saturating_sub(held);
        let keep = self.left(most, held.max(most + 1))?;
        Some(Eviction { at, keep })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text goes through a schedule in pieces of any size that end where chunks end. Each piece must foresee the
    /// next eviction, or that none comes: which queries vote on an eviction is decided long before it.
    #[test]
    fn every_piece_foresees_the_cut_that_comes() {
        for budget in [Budget::Tokens(12), Budget::Tokens(2), Budget::Share(0.3), Budget::Share(1.0)] {
            for (block, prefill) in [(1, None), (4, None), (1, Some(5)), (4, Some(8)), (6, Some(1))] {
                let block = if budget.tokens().is_some() { block } else { 1 };
                let schedule = Schedule { budget, block, prefill, guard: 0.0 };
                for (prompt, step) in [(1, 1), (11, 3), (12, 12), (13, 4), (40, 40), (40, 7)] {
                    let number = schedule.budget_of(prompt);
                    let (mut end, mut held, mut foreseen) = (0, 0, None);
                    while end < prompt + 30 {
                        let chunk_ends = prefill.map_or(prompt, |chunk| ((end / chunk + 1) * chunk).min(prompt));
                        let new = if end < prompt { step.min(chunk_ends - end) } else { 1 };
                        (end, held) = (end + new, held + new);
                        let piece = Piece { new, end, prompt, held };
                        let cut = schedule.next(number, piece);
                        assert_eq!(foreseen.unwrap_or(cut), cut, "{schedule:?} {piece:?}");
                        foreseen = Some(cut);
                        if let Some(Eviction { keep, .. }) = cut.filter(|cut| cut.at == end) {
                            assert!((1..held).contains(&keep), "{schedule:?} {piece:?}");
                            (held, foreseen) = (keep, None);
                        }
                        assert!(cut.is_none_or(|cut| cut.at >= end), "{schedule:?} {piece:?}");
                        if end >= prompt && budget.tokens().is_some() {
                            assert!(held < number, "{schedule:?} {piece:?}: no room for the next token");
                        }
                    }
                }
            }
        }
    }
}
