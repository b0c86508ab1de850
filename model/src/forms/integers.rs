//! Integers of 4 or 8 bits in words of 32 bits, with a scale and a zero for every group of inputs.

use super::Packed;
use super::parts::{Floats, Part};
use crate::CheckpointError;
use crate::mapping::{Number, Piece};

/// A table of integers, in which neighbours share a word.
#[derive(Debug)]
pub(super) struct Integers {
    words: Piece,
    bits: u32,
    /// The number of words in a row.
    width: usize,
    axis: Axis,
    /// A number that is added to every word.
    plus: u32,
}

/// Which neighbours share a word.
#[derive(Clone, Copy, Debug)]
pub(super) enum Axis {
    /// Neighbours in a column, the first in the lowest bits.
    Column,
    /// Neighbours in a row, the first in the lowest bits.
    Row,
    /// Neighbours in a row, at these places, counted from the lowest bits.
    Placed(&'static [u8; 8]),
}

impl Integers {
    /// A table of `rows` rows and `columns` columns. `part` holds its words.
    pub(super) fn new(
        part: Part,
        bits: u32,
        [rows, columns]: [usize; 2],
        axis: Axis,
    ) -> Result<Self, CheckpointError> {
        let per = Integers::per(bits);
        let shape = match axis {
            Axis::Column => [rows.div_ceil(per), columns],
            Axis::Row | Axis::Placed(_) => [rows, columns.div_ceil(per)],
        };
        let words = part.shaped(&shape)?.words()?;
        Ok(Integers { words, bits, width: shape[1], axis, plus: 0 })
    }

    /// The table with `plus` added to every word. A carry goes on to the next integer in the word.
    pub(super) fn plus(self, plus: u32) -> Self {
        Integers { plus, ..self }
    }

    /// The number of integers in a word.
    pub(super) fn per(bits: u32) -> usize {
        (32 / bits) as usize
    }

    /// The integer in a row and a column. Panics if there is none.
    #[inline(always)]
    fn at(&self, words: &[[u8; 4]], row: usize, column: usize) -> i32 {
        // The number of integers in a word is a power of two.
        let per = Integers::per(self.bits);
        let (log, last) = (per.trailing_zeros(), per - 1);
        let (word, place) = match self.axis {
            Axis::Column => ((row >> log) * self.width + column, row & last),
            Axis::Row => (row * self.width + (column >> log), column & last),
            Axis::Placed(places) => (row * self.width + (column >> log), usize::from(places[column & last & 7])),
        };
        let word = u32::from_le_bytes(words[word]).wrapping_add(self.plus);
        (word >> (self.bits * place as u32) & ((1 << self.bits) - 1)) as i32
    }

    fn words(&self) -> &[[u8; 4]] {
        self.words.get().as_chunks().0
    }
}

/// The integer that stands for 0.
#[derive(Debug)]
pub(super) enum Zeros {
    /// The same integer everywhere.
    Same(i32),
    /// Each group has an integer of its own.
    Each(Integers),
}

/// How inputs are divided into groups.
#[derive(Debug)]
pub(super) enum Groups {
    /// Each group consists of this many neighbours.
    Of(usize),
    /// Groups of inputs in any order: the group of every input, and the bytes that list them.
    Listed(Vec<u32>, Piece),
}

impl Groups {
    /// Groups of `size` neighbours, or the groups that `part` lists. The numbers of listed groups must be below
    /// `groups`.
    pub(super) fn new(
        part: Option<Part>,
        inputs: usize,
        groups: usize,
        size: Option<usize>,
    ) -> Result<Self, CheckpointError> {
        let size = size.unwrap_or(inputs).max(1);
        let Some(part) = part else { return Ok(Groups::Of(size)) };
        let wrong = part.wrong("the group of every input");
        let part = part.shaped(&[inputs])?;
        let piece = part.piece();
        let Some(list) = part.indices()? else {
            return if inputs.div_ceil(size) <= groups { Ok(Groups::Of(size)) } else { Err(wrong) };
        };
        if list.iter().any(|group| *group as usize >= groups) {
            return Err(wrong);
        }
        let neighbours = list.iter().enumerate().all(|(input, group)| input / size == *group as usize);
        Ok(if neighbours { Groups::Of(size) } else { Groups::Listed(list, piece) })
    }

    /// The group of `input`, and a number n: the n inputs from this one on are all in this group.
    fn of(&self, input: usize) -> (usize, usize) {
        match self {
            Groups::Of(size) => (input / size, size - input % size),
            Groups::Listed(list, _) => (list[input] as usize, 1),
        }
    }
}

/// A matrix with the entries (integer - zero) * scale, in the type of the scale.
#[derive(Debug)]
pub(super) struct Grouped {
    /// The numbers of outputs and inputs.
    pub(super) shape: [usize; 2],
    pub(super) codes: Integers,
    pub(super) zeros: Zeros,
    pub(super) scales: Floats,
    pub(super) groups: Groups,
    /// Whether the rows of all tables stand for inputs or for groups of inputs. Otherwise they stand for outputs.
    pub(super) inputs_first: bool,
    /// The number of columns of the scales.
    pub(super) width: usize,
}

impl Packed for Grouped {
    fn shape(&self) -> [usize; 2] {
        self.shape
    }

    fn number(&self) -> Number {
        self.scales.number
    }

    fn read(&self, line: usize, from: usize, out: &mut [f32]) {
        let at = |of_input: usize| if self.inputs_first { (of_input, line) } else { (line, of_input) };
        let words = self.codes.words();
        let (mut input, mut rest) = (from, &mut *out);
        while !rest.is_empty() {
            let (group, count) = self.groups.of(input);
            let (piece, after) = rest.split_at_mut(count.min(rest.len()));
            let (row, column) = at(group);
            let scale = self.scales.at(row * self.width + column);
            let zero = match &self.zeros {
                Zeros::Same(zero) => *zero,
                Zeros::Each(zeros) => zeros.at(zeros.words(), row, column),
            };
            for (input, out) in (input..).zip(piece.iter_mut()) {
                let (row, column) = at(input);
                *out = (self.codes.at(words, row, column) - zero) as f32 * scale;
            }
            (input, rest) = (input + piece.len(), after);
        }
        self.number().round(out);
    }

    fn stored(&self) -> Vec<&[u8]> {
        let mut all = vec![self.codes.words.get(), self.scales.stored()];
        if let Zeros::Each(zeros) = &self.zeros {
            all.push(zeros.words.get());
        }
        if let Groups::Listed(_, piece) = &self.groups {
            all.push(piece.get());
        }
        all
    }
}
