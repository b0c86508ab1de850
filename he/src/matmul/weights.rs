//! The plaintext operand, and how a block of it is read.

use super::spec::MatmulShape;
use crate::error::HeError;
use std::fmt::Debug;
use std::ops::Range;
use waggle_bits::signed;
use zeroize::Zeroizing;

/// A plaintext operand whose entries are made when they are read, so that it need not be in memory.
///
/// Its *lines* are its rows or its columns, whichever are cheaper to read. Equal calls give equal entries.
pub trait Entries: Debug + Sync {
    /// The number of rows of all batch items together, and the number of columns.
    fn shape(&self) -> (usize, usize);

    /// Whether a line is a column.
    fn by_columns(&self) -> bool;

    /// Bits of an entry: every entry is below `2^bits` in absolute value.
    fn bits(&self) -> u32;

    /// Reads the entries `from .. from + out.len()` of the line `line` into `out`.
    fn read(&self, line: usize, from: usize, out: &mut [i32]);
}

/// The plaintext operand, `batch * k * n` entries, row-major.
#[derive(Debug, Clone, Copy)]
pub enum Weights<'a> {
    /// Signed 16-bit integers.
    I16(&'a [i16]),
    /// Signed 32-bit integers.
    I32(&'a [i32]),
    /// Ring elements modulo `2^width`, read as signed.
    U64(&'a [u64]),
    /// Signed integers that are made when they are read.
    Entries(&'a dyn Entries),
}

impl Weights<'_> {
    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::I16(w) => w.len(),
            Self::I32(w) => w.len(),
            Self::U64(w) => w.len(),
            Self::Entries(w) => {
                let (rows, columns) = w.shape();
                rows * columns
            }
        }
    }

    /// Writes `block` to the columns of `grid` from `first` on, as signed integers modulo `2^width`. Entries that are
    /// below `2^bits` in absolute value, for `bits` below `width`, need no reduction.
    pub(super) fn transpose(
        &self,
        width: u32,
        bits: u32,
        block: Rows,
        (grid, first): (&Grid, usize),
        out: &mut [i64],
    ) {
        let at = (grid.places(first), grid.row);
        match self {
            Self::I16(w) if bits < width => transpose(w, i64::from, block, at, out),
            Self::I32(w) if bits < width => transpose(w, i64::from, block, at, out),
            Self::I16(w) => transpose(w, |w| signed(i64::from(w) as u64, width), block, at, out),
            Self::I32(w) => transpose(w, |w| signed(i64::from(w) as u64, width), block, at, out),
            Self::U64(w) => transpose(w, |w| signed(w, width), block, at, out),
            Self::Entries(_) => unreachable!("entries that are made are staged"),
        }
    }

    /// Fails if an entry reaches `2^bits` in absolute value. All entries are looked at, whatever their values. Only
    /// entries that are made when they are read are trusted.
    pub(super) fn check_range(&self, width: u32, bits: u32) -> Result<(), HeError> {
        if bits == width {
            // Ring elements of full width are read as centred numbers, so they are always in range.
            return Ok(());
        }
        let high = |acc: u64, w: i64| acc | w.unsigned_abs() >> bits;
        let excess = match self {
            Self::I16(w) => w.iter().fold(0, |acc, &w| high(acc, i64::from(w))),
            Self::I32(w) => w.iter().fold(0, |acc, &w| high(acc, i64::from(w))),
            Self::U64(w) => w.iter().fold(0, |acc, &w| high(acc, signed(w, width))),
            // `Entries::bits` promises the bound. To read all entries would be the most expensive part of a product.
            Self::Entries(w) => u64::from(w.bits() > bits),
        };
        if excess == 0 { Ok(()) } else { Err(HeError::WeightRange { weight_bits: bits }) }
    }
}

/// Where a block of weights lies: `rows` rows of `count` entries, the first at `start`, `pitch` entries apart.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub(super) start: usize,
    pub(super) pitch: usize,
    pub(super) rows: usize,
    pub(super) count: usize,
}

/// Where the coefficients of weights lie: `cols` columns per tile, and the distances in words from one tile to the
/// next (`tile`), from one column of a tile to the next (`column`), and from one row to the next (`row`).
#[derive(Clone, Copy)]
pub(super) struct Grid {
    pub(super) cols: usize,
    pub(super) tile: usize,
    pub(super) column: usize,
    pub(super) row: usize,
}

impl Grid {
    /// The places of the first row's entries in the columns from `first` on.
    fn places(&self, first: usize) -> impl Iterator<Item = usize> + Clone + use<> {
        // Step by step, because a division for each column would take longer than all the rest.
        let Grid { cols, tile, column, .. } = *self;
        let (mut slot, mut place) = (first % cols, first / cols * tile + first % cols * column);
        std::iter::repeat_with(move || {
            let here = place;
            (slot, place) = (slot + 1, place + column);
            if slot == cols {
                (slot, place) = (0, place + tile - cols * column);
            }
            here
        })
    }
}

/// Rows that are transposed at a time: a cache line of signed integers.
const LINE: usize = 8;

/// Copies entry c of row j of `block` to the c-th of the places, moved on by j times the given step in words.
#[inline(always)]
fn transpose<T: Copy>(
    w: &[T],
    read: impl Fn(T) -> i64,
    block: Rows,
    (places, step): (impl Iterator<Item = usize> + Clone, usize),
    out: &mut [i64],
) {
    let Rows { start, pitch, rows, count } = block;
    let row = |j: usize| &w[start + j * pitch..][..count];
    for first in (0..rows / LINE * LINE).step_by(LINE) {
        let lines: [&[T]; LINE] = std::array::from_fn(|j| row(first + j));
        for (c, at) in (0..count).zip(places.clone()) {
            let out = &mut out[at + first * step..][..(LINE - 1) * step + 1];
            lines.iter().enumerate().for_each(|(j, line)| out[j * step] = read(line[c]));
        }
    }
    for j in rows / LINE * LINE..rows {
        row(j).iter().zip(places.clone()).for_each(|(&w, at)| out[at + j * step] = read(w));
    }
}

/// Columns of an operand whose entries are made when they are read. Tiles take a few rows of many columns at a time.
/// So the operand is first read here in long pieces, from which tiles take their rows.
pub(super) struct Staged {
    /// The entries column by column: for each column the rows `rows` of its batch item.
    entries: Zeroizing<Vec<i32>>,
    first: usize,
    rows: Range<usize>,
    /// The width l if entries must be reduced modulo `2^l`, or `None` if they are small enough.
    reduced: Option<u32>,
}

impl Staged {
    /// Writes rows of some columns to `grid`, whose first column is the first one that was read.
    pub(super) fn read(&self, columns: Range<usize>, rows: Range<usize>, grid: &Grid, out: &mut [i64]) {
        let first = columns.start - self.first;
        let rows = rows.start - self.rows.start..rows.end - self.rows.start;
        let columns = self.entries.chunks_exact(self.rows.len()).skip(first).take(columns.len());
        for (column, at) in columns.zip(grid.places(first)) {
            let entries = out[at..].iter_mut().step_by(grid.row).zip(&column[rows.clone()]);
            match self.reduced {
                None => entries.for_each(|(out, &w)| *out = i64::from(w)),
                Some(width) => entries.for_each(|(out, &w)| *out = signed(i64::from(w) as u64, width)),
            }
        }
    }
}

impl Weights<'_> {
    /// Reads the rows of `columns` as signed integers modulo `2^width`. The columns of all items are counted side by
    /// side. `None` unless entries are made when they are read.
    pub(super) fn stage(
        &self,
        width: u32,
        shape: MatmulShape,
        columns: Range<usize>,
        rows: Range<usize>,
    ) -> Option<Staged> {
        let Self::Entries(w) = *self else { return None };
        let (k, first) = (rows.len(), columns.start);
        let mut entries = Zeroizing::new(vec![0; columns.len() * k]);
        let mut column = first;
        while column < columns.end {
            // A run of columns of one item.
            let (item, c) = (column / shape.n, column % shape.n);
            let run = (shape.n - c).min(columns.end - column);
            let out = &mut entries[(column - first) * k..][..run * k];
            if w.by_columns() {
                out.chunks_exact_mut(k)
                    .enumerate()
                    .for_each(|(i, out)| w.read(c + i, item * shape.k + rows.start, out));
            } else {
                let mut lines = Zeroizing::new(vec![0; LINE * run]);
                for j in (0..k).step_by(LINE) {
                    let some = LINE.min(k - j);
                    let made = lines.chunks_exact_mut(run).take(some).enumerate();
                    made.for_each(|(i, line)| w.read(item * shape.k + rows.start + j + i, c, line));
                    for (i, out) in out.chunks_exact_mut(k).enumerate() {
                        let line = |l: usize| lines[l * run + i];
                        out[j..j + some].iter_mut().enumerate().for_each(|(l, out)| *out = line(l));
                    }
                }
            }
            column += run;
        }
        Some(Staged { entries, first, rows, reduced: (w.bits() >= width).then_some(width) })
    }
}
