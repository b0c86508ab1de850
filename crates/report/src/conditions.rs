//! What the numbers of a row assume of the parties and their link.

use waggle_net::LinkShape;

use crate::table::Cell;

/// The columns that say it, with their units.
pub const CONDITIONS: [(&str, &str); 3] = [("rate", "Mbit/s"), ("round trip", "ms"), ("cores", "")];

/// The cells of [`CONDITIONS`] for a link by its name; dashes for one without a shape, or where nobody knows the
/// cores of the parties.
pub fn conditions(link: Option<&str>, cores: Option<&str>) -> [Cell; 3] {
    let units = link.and_then(|link| link.parse::<LinkShape>().ok()).map(|link| link.units());
    let number = |unit: usize| Cell::maybe(units, |units| Cell::number(units[unit], units[unit].to_string()));
    [number(0), number(1), Cell::maybe(cores, Cell::text)]
}
