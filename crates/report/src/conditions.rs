//! Columns that state what a row's numbers assume about the parties and their link.

use waggle_net::LinkShape;

use crate::table::Cell;

/// The titles of the columns, with their units.
pub const CONDITIONS: [(&str, &str); 3] = [("rate", "Mbit/s"), ("round trip", "ms"), ("cores", "")];

/// The cells of [`CONDITIONS`] for the link called `link` and for `cores`. The link's cells are dashes if it has no
/// shape, and the last cell is a dash if the cores are not known.
pub fn conditions(link: Option<&str>, cores: Option<&str>) -> [Cell; 3] {
    let units = link.and_then(|link| link.parse::<LinkShape>().ok()).map(|link| link.units());
    let number = |unit: usize| Cell::maybe(units, |units| Cell::number(units[unit], units[unit].to_string()));
    [number(0), number(1), Cell::maybe(cores, Cell::text)]
}
