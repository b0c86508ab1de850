//! Needles: a grid of lengths and depths for each policy.

use std::collections::BTreeMap;

use plotters::style::RGBColor;
use plotters::style::text_anchor::HPos;
use waggle_study::eval::{Row, StudyReport};

use super::axis::short;
use super::canvas::{
    DrawError, Drawing, EDGE, LIGHT, LINE, MUTED, Picture, SIZE, Sheet, TEXT, block, lines, picture, widest, words,
};

const CELL: (i32, i32) = (46, 24);
const COLUMNS: usize = 3;
const AXES: &str = "probability of the right answer, by length in tokens (across) and depth of the needle (down)";
const TITLE: &str = "Probability of the right answer, by length (across, in tokens) and depth of the needle (down)";

/// The probability of the right answer by length and depth under every policy; nothing unless all sequences have
/// lengths and depths.
pub(super) struct Grid<'a>(pub(super) &'a StudyReport);

impl Picture for Grid<'_> {
    fn draw(&self, sheet: &Sheet) -> Result<Option<Drawing>, DrawError> {
        let study = self.0;
        let places = study.of_sequences.iter().map(|sequence| {
            let number = |name: &str| sequence.tags.get(name)?.as_f64();
            Some((number("length")?, number("depth")?))
        });
        let places: Vec<(f64, f64)> = places.collect::<Option<_>>().unwrap_or_default();
        let rows: Vec<&Row> = study.rows.iter().filter(|row| row.by_sequence.len() == places.len()).collect();
        if places.is_empty() || rows.is_empty() {
            return Ok(None);
        }
        let (lengths, depths) = (distinct(places.iter().map(|p| p.0)), distinct(places.iter().map(|p| p.1)));
        let margin = widest(&depths.iter().map(|depth| short(*depth)).collect::<Vec<_>>()) + 10;
        let wide = margin + (CELL.0 * lengths.len() as i32).max(150) + 22;
        let names: Vec<Vec<String>> =
            rows.iter().map(|row| lines(&row.policy.to_string(), (wide - 20) as usize / 8)).collect();
        let above = names.iter().map(Vec::len).max().unwrap_or(1) as i32 * LINE + 8;
        let high = above + CELL.1 * depths.len() as i32 + 34;
        let top = sheet.top();
        let most = sheet.wide().map_or(COLUMNS, |room| ((room - EDGE) / wide).max(1) as usize);
        let columns = most.min(rows.len());
        let bottom = top + high * rows.len().div_ceil(columns) as i32;
        // Without the title nobody would know what the numbers at the edges are.
        let axes =
            lines(if sheet.titled() { "" } else { AXES }, sheet.wide().map_or(usize::MAX, |room| room as usize / 8));
        let size = (
            sheet.wide().unwrap_or(0).max(EDGE + wide * columns as i32),
            bottom + if sheet.titled() { 0 } else { axes.len() as i32 * LINE + EDGE },
        );
        let note = format!("{} · mean over samples of the geometric mean over the answer's tokens", study.model.name);
        picture(sheet, size, (TITLE, &note), |area| {
            for (i, text) in axes.iter().enumerate() {
                words(area, text.trim_end(), (EDGE, bottom + LINE / 2 + LINE * i as i32), SIZE, MUTED, HPos::Left)?;
            }
            for (i, (row, name)) in rows.iter().zip(&names).enumerate() {
                let (x, y) = (EDGE + wide * (i % columns) as i32, top + high * (i / columns) as i32);
                for (line, text) in name.iter().enumerate() {
                    words(area, text, (x, y + LINE / 2 + LINE * line as i32), SIZE, TEXT, HPos::Left)?;
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
                    let at = (left + CELL.0 * column as i32, top + CELL.1 * line as i32);
                    // The darker, the likelier the answer.
                    let value = (sum / count).clamp(0.0, 1.0);
                    let mix = |light: f64, dark: f64| (light + (dark - light) * value) as u8;
                    block(area, at, CELL, RGBColor(mix(240.0, 10.0), mix(244.0, 80.0), mix(248.0, 130.0)))?;
                    let (middle, ink) = ((at.0 + CELL.0 / 2, at.1 + CELL.1 / 2), RGBColor(0x11, 0x11, 0x11));
                    let ink = if value > 0.5 { LIGHT } else { ink };
                    words(area, &format!("{value:.2}"), middle, SIZE, ink, HPos::Center)?;
                }
                for (line, depth) in depths.iter().enumerate() {
                    let at = (left - 6, top + CELL.1 * line as i32 + CELL.1 / 2);
                    words(area, &short(*depth), at, SIZE, MUTED, HPos::Right)?;
                }
                for (column, length) in lengths.iter().enumerate() {
                    let at = (left + CELL.0 * column as i32 + CELL.0 / 2, top + CELL.1 * depths.len() as i32 + 11);
                    words(area, &short(*length), at, SIZE, MUTED, HPos::Center)?;
                }
            }
            Ok(())
        })
    }
}

/// Values in order, each once.
pub(super) fn distinct(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    values
}
