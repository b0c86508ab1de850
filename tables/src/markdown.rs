//! Tables and numbers as Markdown shows them.

use comfy_table::{CellAlignment, Table, presets};

/// An empty table with these columns.
pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(header);
    table
}

/// Its columns of numbers, all but the first, end at the right.
pub(crate) fn right_align(mut table: Table) -> Table {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
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
