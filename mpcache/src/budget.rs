//! The part of a cache that a policy keeps.

use std::fmt;
use std::str::FromStr;

use crate::UnknownValue;

/// The number of tokens that a policy keeps or looks at: a share of the tokens seen so far, or a constant number.
///
/// As a text a fraction above 0 and up to 1 is a share, and a whole number from 2 on is a number of tokens. `1` is
/// the share of all tokens, not a single token, which would be of no use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// A share of all tokens seen, above 0 and up to 1.
    Share(f64),
    /// Tokens, at least 2.
    Tokens(usize),
}

impl Budget {
    /// The budget after `tokens` tokens, as a number of tokens: rounded, at least 1 and at most `tokens`.
    pub fn of(self, tokens: usize) -> usize {
        match self {
            Budget::Share(share) => budget(share, tokens),
            Budget::Tokens(number) => number.min(tokens.max(1)),
        }
    }

    /// The number of tokens, if the budget is a number and not a share.
    pub fn tokens(self) -> Option<usize> {
        match self {
            Budget::Share(_) => None,
            Budget::Tokens(number) => Some(number),
        }
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Budget::Share(share) => share.fmt(f),
            Budget::Tokens(number) => number.fmt(f),
        }
    }
}

impl FromStr for Budget {
    type Err = UnknownValue;

    fn from_str(text: &str) -> Result<Self, UnknownValue> {
        let tokens = || text.parse().ok().filter(|number| (2..1 << 20).contains(number)).map(Budget::Tokens);
        let share = || text.parse().ok().filter(|share| *share > 0.0 && *share <= 1.0).map(Budget::Share);
        tokens().or_else(share).ok_or_else(|| UnknownValue::new("a share above 0, up to 1, or tokens from 2"))
    }
}

/// The number of tokens that the share `share` of `tokens` tokens stands for: rounded, at least 1.
pub fn budget(share: f64, tokens: usize) -> usize {
    ((share * tokens as f64).round() as usize).clamp(1, tokens.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_from_2_are_tokens_and_1_is_the_whole_share() {
        let parsed = |text: &str| text.parse::<Budget>();
        assert_eq!(parsed("128"), Ok(Budget::Tokens(128)));
        assert_eq!(parsed("2"), Ok(Budget::Tokens(2)));
        assert_eq!(parsed("0.25"), Ok(Budget::Share(0.25)));
        assert_eq!([parsed("1"), parsed("1.0")], [Ok(Budget::Share(1.0)), Ok(Budget::Share(1.0))]);
        for refused in ["0", "-1", "1.5", "128.0", "1048576", "NaN", "inf", "many"] {
            assert!(parsed(refused).is_err(), "{refused}");
        }
        for text in ["128", "0.25", "1"] {
            assert_eq!(parsed(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_budget_is_never_more_than_there_is() {
        for tokens in 0..50 {
            for budget in [Budget::Tokens(8), Budget::Share(0.3), Budget::Share(1.0)] {
                let of = budget.of(tokens);
                assert!((1..=tokens.max(1)).contains(&of), "{budget} of {tokens}: {of}");
            }
        }
        assert_eq!((Budget::Tokens(8).of(50), Budget::Share(0.3).of(50)), (8, 15));
    }
}
