//! Tables and numbers as Markdown shows them.

use std::fmt;

use report::table::{Cell, Format};
use serde_json::Value;

/// A table of words and of numbers that are words already.
pub(crate) struct Table(report::table::Table);

/// An empty table with these columns, which begin at the left.
pub(crate) fn table(header: &[&str]) -> Table {
    Table(report::table::Table::new(header.len(), header.iter().map(|title| (*title, ""))))
}

/// Its columns of numbers, all but the first, end at the right.
pub(crate) fn right_align(Table(table): Table) -> Table {
    Table(table.with_names(1))
}

impl Table {
    /// Adds a row.
    pub(crate) fn add_row(&mut self, cells: impl IntoIterator<Item = String>) {
        // No column is one of words in itself: `right_align` decides.
        self.0.add(cells.into_iter().map(|text| Cell::number(Value::Null, text)));
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0.render(Format::Markdown, None))
    }
}

/// Millions of bytes, with at least three digits.
pub(crate) fn megabytes(bytes: f64) -> String {
    let megabytes = bytes / 1e6;
    if megabytes >= 100.0 { format!("{megabytes:.0}") } else { format!("{megabytes:.2}") }
}

/// How many times as much.
pub(crate) fn ratio(of: f64, to: f64) -> String {
    format!("{:.2}x", of / to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        assert_eq!([0.0, 1.234e6, 99.99e6, 100e6, 1234.5e6].map(megabytes), ["0.00", "1.23", "99.99", "100", "1234"]);
        assert_eq!(ratio(1.0, 3.0), "0.33x");
    }
}
