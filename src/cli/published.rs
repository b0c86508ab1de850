//! Figures that other systems publish, read from `published.json` beside this file, which says where each figure
//! stands.

use report::table::{Cell, Table};
use serde::{Deserialize, Serialize};

use super::Error;

/// The file, which is a part of the program.
const FILE: &str = include_str!("published.json");

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Published {
    /// A remark on what the figures are, and on what they are not.
    pub(super) about: String,
    pub(super) figures: Vec<Figure>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Figure {
    system: String,
    /// The shape that it is of, by the name that `--models` knows it by.
    model: String,
    what: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    measured_seconds: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    /// The factor by which it is faster than the same system without what it proposes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    faster: Option<f64>,
    /// The factor by which it sends fewer bytes than that system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fewer: Option<f64>,
    hardware: String,
    source: String,
}

impl Published {
    pub(super) fn of(models: &[String]) -> Result<Self, Error> {
        let mut all: Published = serde_json::from_str(FILE).map_err(Error::Published)?;
        all.figures.retain(|figure| models.contains(&figure.model));
        Ok(all)
    }
}

pub(super) fn table(figures: &[Figure]) -> Table {
    let columns = [
        ("system", ""),
        ("what", ""),
        ("measured", "seconds"),
        ("sent", "bytes"),
        ("faster", ""),
        ("fewer bytes", ""),
        ("hardware", ""),
        ("source", ""),
    ];
    let mut table = Table::new(2, columns);
    for figure in figures {
        let seconds = |seconds: f64| Cell::number(seconds, seconds.to_string());
        table.add([
            Cell::text(figure.system.clone()),
            Cell::text(figure.what.clone()),
            Cell::maybe(figure.measured_seconds, seconds),
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
        let all: Published = serde_json::from_str(FILE).unwrap();
        assert!(all.about.contains("Abstracts are quoted"));
        for figure in &all.figures {
            let Figure { measured_seconds, bytes, faster, fewer, .. } = figure;
            let said = measured_seconds.is_some() || bytes.is_some() || faster.is_some() || fewer.is_some();
            assert!(said && figure.source.len() > 10 && figure.hardware.len() > 3, "{figure:?}");
        }
        let gpt2 = Published::of(&["gpt2".into()]).unwrap().figures;
        assert!(!gpt2.is_empty() && gpt2.len() < all.figures.len());
    }
}
