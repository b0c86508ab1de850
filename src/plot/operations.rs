//! Divides bars into parts by operation.

use std::collections::{BTreeMap, BTreeSet};

use super::axis::Unit;
use super::bars::Bars;
use super::style::Part;

/// Most operations with a part of their own. All other operations together are one part.
const PARTS: usize = 8;

/// A number for each operation.
pub(super) type Sums = BTreeMap<String, f64>;

/// The operations that have a part of their own in every chart of a page, the largest first. The size of an operation
/// is its largest share of any bar.
pub(super) fn named(bars: &[Sums]) -> Vec<String> {
    let mut shares: BTreeMap<&str, f64> = BTreeMap::new();
    for sums in bars {
        let total: f64 = sums.values().sum();
        for (name, value) in sums.iter().filter(|(_, value)| **value > 0.0) {
            let share = shares.entry(name).or_default();
            *share = share.max(value / total);
        }
    }
    let mut order: Vec<(&str, f64)> = shares.into_iter().collect();
    order.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(b.0)));
    order.into_iter().take(PARTS).map(|(name, _)| name.to_owned()).collect()
}

/// Bars with a part for each operation of `named`, and one part for all others.
pub(super) fn stacked(
    rows: Vec<(String, Sums)>,
    named: &[String],
    unit: Unit,
    title: String,
    note: String,
    axis: Option<String>,
) -> Bars {
    let rows: Vec<_> = rows.into_iter().filter(|(_, sums)| sums.values().sum::<f64>() > 0.0).collect();
    let others: BTreeSet<&String> = rows
        .iter()
        .flat_map(|(_, sums)| sums)
        .filter(|(_, sum)| **sum > 0.0)
        .map(|(name, _)| name)
        .filter(|name| !named.contains(name))
        .collect();
    let others = others.len();
    let mut parts = named.to_vec();
    parts.extend((others > 0).then(|| format!("{others} other operations")));
    let parts = (0..).zip(parts).map(|(i, name)| Part::operation(i, name)).collect();
    let values = |sums: &Sums| {
        let mut values: Vec<f64> = named.iter().map(|name| sums.get(name).copied().unwrap_or(0.0)).collect();
        if others > 0 {
            values.push((sums.values().sum::<f64>() - values.iter().sum::<f64>()).max(0.0));
        }
        values
    };
    let rows = rows.iter().map(|(name, sums)| (name.clone(), values(sums))).collect();
    Bars { title, note, axis, unit, parts, rows }
}
