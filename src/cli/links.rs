//! `waggle links`: every network that has a name.

use clap::Args;
use net::LinkShape;
use net::papers::{Delay, PAPERS, PaperLink};
use report::table::{Cell, Table};

use super::Error;
use super::options::FormatArgs;

/// Lists the networks that have a name: rate, delay, and the paper that measures on it.
///
/// The delay is one to the peer and back. `not stated` says that the paper names a delay and no more, which is then
/// taken for that; `remembered` that the numbers were not found again and are to be checked before they are cited.
#[derive(Args, Debug)]
pub(super) struct LinksArgs {
    #[command(flatten)]
    format: FormatArgs,
}

pub(super) fn run(args: LinksArgs) -> Result<(), Error> {
    args.format.show(table())
}

fn table() -> Table {
    let columns = ["link", "Mbit/s", "round trip, ms", "delay", "known", "source"].map(|title| (title, ""));
    let mut table = Table::new(1, columns);
    let mut add = |name: &str, shape: LinkShape, delay: &str, known: &str, source: &str| {
        let megabits = shape.bytes_per_second as f64 / 125_000.0;
        let milliseconds = shape.round_trip.as_secs_f64() * 1e3;
        let numbers = [megabits, milliseconds].map(|x| Cell::number(x, x.to_string()));
        let words = [delay, known, source].map(Cell::text);
        table.add([Cell::text(name)].into_iter().chain(numbers).chain(words));
    };
    for (name, shape) in LinkShape::PRESETS {
        add(name, shape, "round trip", "", "");
    }
    for PaperLink { name, shape, delay, known, source } in PAPERS {
        let delay = match delay {
            Delay::RoundTrip => "round trip",
            Delay::NotStated => "not stated",
        };
        add(name, shape, delay, known.name(), source);
    }
    table
}
