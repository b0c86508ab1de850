//! Columns that state a row's assumptions on the parties and their link.

use waggle_net::LinkShape;

use crate::table::Cell;

/// The titles of these columns, with their units.
pub const CONDITIONS: [(&str, &str); 3] = [("rate", "Mbit/s"), ("round trip", "ms"), ("cores", "")];

/// The cells of [`CONDITIONS`] for the link called `link`. They are dashes if the link has no shape, or if the cores
/// are not known.
pub fn conditions(link: Option<&str>, cores: Option<&str>) -> [Cell; 3] {
    let units = link.and_then(|link| link.parse::<LinkShape>().ok()).map(|link| link.units());
    let number = |unit: usize| Cell::maybe(units, |units| Cell::number(units[unit], units[unit].to_string()));
    [number(0), number(1), Cell::maybe(cores, Cell::text)]
}
