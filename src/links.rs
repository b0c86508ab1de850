//! `waggle links`: every network that has a name.

use clap::Args;
use waggle_net::LinkShape;
use waggle_net::papers::{Delay, PAPERS, PaperLink};
use waggle_report::table::{Cell, Table};
use waggle_report::{CONDITIONS, conditions};

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
    let [rate, round_trip, _] = CONDITIONS;
    let mut table = Table::new(1, [("link", ""), rate, round_trip, ("delay", ""), ("known", ""), ("source", "")]);
    let mut add = |name: &str, shape: LinkShape, delay: &str, known: &str, source: &str| {
        let [rate, round_trip, _] = conditions(Some(&shape.to_string()), None);
        let words = [delay, known, source].map(Cell::text);
        table.add([Cell::text(name), rate, round_trip].into_iter().chain(words));
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
