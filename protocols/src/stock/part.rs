//! A numbered part of a whole. The parts are made separately, by any sessions that are free.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Most parts of one whole. Every part costs base OTs, so with many more parts these would cost more than the
/// division saves.
pub const MAX_PARTS: u32 = 256;

/// Part `number` of `of` parts, counted from 1. The text form is `2/4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "(u32, u32)", into = "(u32, u32)")]
pub struct Part {
    of: u32,
    number: u32,
}

/// The error for a text or numbers that name no part.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("`{text}` is no part: expected I/N, with I from 1 to N and N at most {MAX_PARTS}")]
pub struct PartError {
    /// The text.
    pub text: String,
}

impl Part {
    /// The whole, as its only part.
    pub const WHOLE: Part = Part { of: 1, number: 1 };

    /// Part `number` of `of` parts.
    ///
    /// # Errors
    /// [`PartError`] unless 1 <= `number` <= `of` <= [`MAX_PARTS`].
    pub fn new(number: u32, of: u32) -> Result<Self, PartError> {
        let part = Part { of, number };
        if (1..=of).contains(&number) && of <= MAX_PARTS {
            Ok(part)
        } else {
            Err(PartError { text: part.to_string() })
        }
    }

    /// The number of this part, counted from 1.
    pub fn number(self) -> u32 {
        self.number
    }

    /// The number of parts.
    pub fn of(self) -> u32 {
        self.of
    }

    /// The number of this part, counted from 0.
    pub fn index(self) -> usize {
        self.number as usize - 1
    }

    /// Whether there is no other part.
    pub fn is_whole(self) -> bool {
        self.of == 1
    }

    /// All parts of the same whole in order, this one among them.
    pub fn all(self) -> impl Iterator<Item = Part> {
        (1..=self.of).map(move |number| Part { number, ..self })
    }
}

impl From<Part> for (u32, u32) {
    fn from(part: Part) -> Self {
        (part.number, part.of)
    }
}

impl TryFrom<(u32, u32)> for Part {
    type Error = PartError;

    fn try_from((number, of): (u32, u32)) -> Result<Self, PartError> {
        Part::new(number, of)
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

impl FromStr for Part {
    type Err = PartError;

    /// Reads what [`Display`](fmt::Display) writes, and nothing else.
    fn from_str(text: &str) -> Result<Self, PartError> {
        let error = || PartError { text: text.chars().take(40).collect() };
        let (number, of) = text.split_once('/').ok_or_else(error)?;
        let read = |digits: &str| digits.parse().map_err(|_| error());
        let part = Part::new(read(number)?, read(of)?)?;
        if part.to_string() == text { Ok(part) } else { Err(error()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_has_one_text() {
        for of in [1, 2, 7, MAX_PARTS] {
            for part in Part::new(1, of).unwrap().all() {
                assert_eq!(part.to_string().parse(), Ok(part));
            }
        }
        let long = "9".repeat(99);
        for text in
            ["", "1", "/", "0/1", "2/1", "1/257", "0/0", "01/2", "+1/2", " 1/2", "1/2 ", "1/2/3", "-1/2", &long]
        {
            let error = text.parse::<Part>().unwrap_err();
            assert!(error.text.len() <= 40 && error.to_string().contains("I/N"), "{text}: {error}");
        }
    }
}
