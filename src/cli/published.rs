//! What other systems publish, read from `bench/published.json`, which says where each figure stands.

use model::table::{Cell, Table};
use serde::{Deserialize, Serialize};

use super::Error;

/// The file, which is a part of the program.
const FILE: &str = include_str!("../../bench/published.json");

/// The whole file.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Published {
    /// What the figures are, and what they are not.
    pub(super) about: String,
    figures: Vec<Figure>,
}

/// One published figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Figure {
    system: String,
    /// The shape that it is of, by the name that `--models` knows it by.
    model: String,
    /// What was computed.
    what: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    /// How many times faster than the same system without what it proposes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    faster: Option<f64>,
    /// The same for bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fewer: Option<f64>,
    hardware: String,
    source: String,
}

impl Published {
    /// The figures of the file.
    pub(super) fn open() -> Result<Self, Error> {
        serde_json::from_str(FILE).map_err(|source| Error::Published { source })
    }

    /// Those of `models`.
    pub(super) fn of(self, models: &[String]) -> Vec<Figure> {
        self.figures.into_iter().filter(|figure| models.contains(&figure.model)).collect()
    }
}

/// The figures side by side.
pub(super) fn table(figures: &[Figure]) -> Table {
    let columns = [
        ("system", ""),
        ("what", ""),
        ("time", "seconds"),
        ("sent", "bytes"),
        ("faster", ""),
        ("fewer bytes", ""),
        ("hardware", ""),
        ("source", ""),
    ];
    let mut table = Table::new(2, columns);
    for figure in figures {
        let seconds = |seconds: f64| Cell::number(seconds, format!("{seconds} s"));
        table.add([
            Cell::text(figure.system.clone()),
            Cell::text(figure.what.clone()),
            Cell::maybe(figure.seconds, seconds),
            Cell::maybe(figure.bytes, Cell::bytes),
            Cell::maybe(figure.faster, Cell::times),
            Cell::maybe(figure.fewer, Cell::times),
            Cell::text(figure.hardware.clone()),
            Cell::text(figure.source.clone()),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_says_something_and_where_it_stands() {
        let Published { figures, about } = Published::open().unwrap();
        assert!(about.contains("Abstracts are quoted"));
        for figure in &figures {
            let Figure { seconds, bytes, faster, fewer, .. } = figure;
            let said = seconds.is_some() || bytes.is_some() || faster.is_some() || fewer.is_some();
            assert!(said && figure.source.len() > 10 && figure.hardware.len() > 3, "{figure:?}");
        }
        let published = Published::open().unwrap();
        let gpt2 = published.of(&["gpt2".into()]);
        assert!(!gpt2.is_empty() && gpt2.len() < figures.len());
    }
}
