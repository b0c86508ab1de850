//! Needles: a grid of lengths and depths for each policy.

use std::collections::BTreeMap;

use study::eval::{Evaluation, Row};

use super::axis::short;
use super::scene::{Anchor, Ink, Scene, Stroke};
use super::text::{lines, width};

const CELL: (f64, f64) = (46.0, 24.0);
const COLUMNS: usize = 3;
const TEXT: f64 = 11.0;
const TITLE: f64 = 15.0;

/// The probability of the right answer by length and depth under every policy; `None` unless the sequences of `study`
/// have lengths and depths.
pub(super) fn scene(study: &Evaluation) -> Option<Scene> {
    let places = study.of_sequences.iter().map(|sequence| {
        let number = |name: &str| sequence.tags.get(name)?.as_f64();
        Some((number("length")?, number("depth")?))
    });
    let places: Vec<(f64, f64)> = places.collect::<Option<_>>()?;
    let ends = |of: fn(&(f64, f64)) -> f64| {
        let mut values: Vec<f64> = places.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        values
    };
    let (lengths, depths) = (ends(|place| place.0), ends(|place| place.1));
    let rows: Vec<&Row> = study.rows.iter().filter(|row| row.by_sequence.len() == places.len()).collect();
    if places.is_empty() || rows.is_empty() {
        return None;
    }
    let margin = depths.iter().map(|depth| width(&short(*depth), TEXT)).fold(0.0, f64::max) + 10.0;
    let inner = CELL.0 * lengths.len() as f64;
    let wide = margin + inner.max(150.0) + 22.0;
    let names: Vec<Vec<String>> = rows.iter().map(|row| lines(&row.policy.to_string(), TEXT, wide - 20.0)).collect();
    let above = names.iter().map(Vec::len).max().unwrap_or(1) as f64 * 14.0 + 8.0;
    let high = above + CELL.1 * depths.len() as f64 + 34.0;
    let columns = COLUMNS.min(rows.len());
    let title = "Probability of the right answer, by length (across, in tokens) and depth of the needle (down)";
    let note = format!("{} · mean over samples of the geometric mean over the answer's tokens", study.model.name);
    let least = width(title, TITLE).max(width(&note, TEXT)) + 28.0;
    let height = 58.0 + high * rows.len().div_ceil(columns) as f64 + 4.0;
    let mut scene = Scene::new((14.0 + wide * columns as f64).max(least).ceil(), height.ceil(), title);
    scene.text(title, (14.0, 24.0), TITLE, Ink::Text, Anchor::Start);
    scene.text(note, (14.0, 42.0), TEXT, Ink::Muted, Anchor::Start);
    for (i, (row, name)) in rows.iter().zip(&names).enumerate() {
        let (x, y) = (14.0 + wide * (i % columns) as f64, 58.0 + high * (i / columns) as f64);
        for (line, text) in name.iter().enumerate() {
            scene.text(text, (x, y + 12.0 + 14.0 * line as f64), TEXT, Ink::Text, Anchor::Start);
        }
        let mut cells: BTreeMap<(usize, usize), (f64, f64)> = BTreeMap::new();
        for ((length, depth), metrics) in places.iter().zip(&row.by_sequence) {
            let place = |values: &[f64], value: f64| values.iter().position(|v| *v == value).unwrap_or(0);
            let cell = cells.entry((place(&lengths, *length), place(&depths, *depth))).or_default();
            // Perplexity is one over the geometric mean of the probabilities.
            *cell = (cell.0 + 1.0 / metrics.perplexity, cell.1 + 1.0);
        }
        let (left, top) = (x + margin, y + above);
        for ((column, line), (sum, count)) in cells {
            let at = (left + CELL.0 * column as f64, top + CELL.1 * line as f64);
            cell(&mut scene, at, sum / count);
        }
        for (line, depth) in depths.iter().enumerate() {
            let base = top + CELL.1 * (line as f64 + 0.5) + TEXT * 0.36;
            scene.text(short(*depth), (left - 6.0, base), TEXT, Ink::Muted, Anchor::End);
        }
        for (column, length) in lengths.iter().enumerate() {
            let at = (left + CELL.0 * (column as f64 + 0.5), top + CELL.1 * depths.len() as f64 + 15.0);
            scene.text(short(*length), at, TEXT, Ink::Muted, Anchor::Middle);
        }
    }
    Some(scene)
}

/// A cell: the darker, the likelier the answer, with its number.
fn cell(scene: &mut Scene, at: (f64, f64), value: f64) {
    let value = value.clamp(0.0, 1.0);
    let mix = |light: f64, dark: f64| (light + (dark - light) * value) as u8;
    let ink = Ink::Rgb(mix(240.0, 10.0), mix(244.0, 80.0), mix(248.0, 130.0));
    scene.rectangle(at, CELL, ink, Some(Stroke { ink: Ink::Paper, width: 1.0, dash: &[] }));
    let words = if value > 0.5 { Ink::Rgb(0xff, 0xff, 0xff) } else { Ink::Rgb(0x11, 0x11, 0x11) };
    let middle = (at.0 + CELL.0 / 2.0, at.1 + CELL.1 / 2.0 + TEXT * 0.36);
    scene.text(format!("{value:.2}"), middle, TEXT, words, Anchor::Middle);
}
