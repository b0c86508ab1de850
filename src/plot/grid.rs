//! Charts of needle tasks: a grid of lengths and depths for each policy.

use std::collections::BTreeMap;

use plotters::style::RGBColor;
use plotters::style::text_anchor::HPos;
use waggle_study::eval::{Row, StudyReport};

use super::axis::short;
use super::canvas::{
    DrawError, EDGE, LIGHT, LINE, MUTED, Picture, SIZE, Sheet, TEXT, TOP, block, lines, picture, widest, words,
};

const CELL: (i32, i32) = (46, 24);
const COLUMNS: usize = 3;
const TITLE: &str = "Probability of the right answer, by length (across, in tokens) and depth of the needle (down)";

/// The probability of the right answer by length and depth under every policy. Nothing is drawn unless all sequences
/// have lengths and depths.
pub(super) struct Grid<'a>(pub(super) &'a StudyReport);

/// Numbers by the index of a length and the index of a depth.
type Cells = BTreeMap<(usize, usize), f64>;

/// The numbers of the grids of all policies.
pub(super) struct Panels {
    pub(super) lengths: Vec<f64>,
    pub(super) depths: Vec<f64>,
    pub(super) of: Vec<(String, Cells)>,
}

impl Panels {
    pub(super) fn of(study: &StudyReport) -> Option<Self> {
        let places = study.of_sequences.iter().map(|sequence| {
            let number = |name: &str| sequence.tags.get(name)?.as_f64();
            Some((number("length")?, number("depth")?))
        });
        let places: Vec<(f64, f64)> = places.collect::<Option<_>>()?;
        let (lengths, depths) = (distinct(places.iter().map(|p| p.0)), distinct(places.iter().map(|p| p.1)));
        let place = |values: &[f64], value: f64| values.iter().position(|v| *v == value).unwrap_or(0);
        let cells = |row: &Row| {
            let mut sums: BTreeMap<(usize, usize), (f64, f64)> = BTreeMap::new();
            for ((length, depth), metrics) in places.iter().zip(&row.by_sequence) {
                let cell = sums.entry((place(&lengths, *length), place(&depths, *depth))).or_default();
                // The inverse of a perplexity is the geometric mean of the probabilities.
                *cell = (cell.0 + 1.0 / metrics.perplexity, cell.1 + 1.0);
            }
            sums.into_iter().map(|(at, (sum, count))| (at, (sum / count).clamp(0.0, 1.0))).collect()
        };
        let rows = study.rows.iter().filter(|row| row.by_sequence.len() == places.len());
        let of: Vec<_> = rows.map(|row| (row.policy.to_string(), cells(row))).collect();
        (!places.is_empty() && !of.is_empty()).then_some(Panels { lengths, depths, of })
    }
}

impl Picture for Grid<'_> {
    fn svg(&self, _: &Sheet) -> Result<Option<String>, DrawError> {
        let Some(panels) = Panels::of(self.0) else { return Ok(None) };
        let Panels { lengths, depths, of } = &panels;
        let margin = widest(&depths.iter().map(|depth| short(*depth)).collect::<Vec<_>>()) + 10;
        let wide = margin + (CELL.0 * lengths.len() as i32).max(150) + 22;
        let names: Vec<Vec<String>> = of.iter().map(|(name, _)| lines(name, (wide - 20) as usize / 8)).collect();
        let above = names.iter().map(Vec::len).max().unwrap_or(1) as i32 * LINE + 8;
        let high = above + CELL.1 * depths.len() as i32 + 34;
        let columns = COLUMNS.min(of.len());
        let size = (EDGE + wide * columns as i32, TOP + high * of.len().div_ceil(columns) as i32);
        let note =
            format!("{} · mean over samples of the geometric mean over the answer's tokens", self.0.model.name);
        let svg = picture(size, (TITLE, &note), |area| {
            for (i, ((_, cells), name)) in of.iter().zip(&names).enumerate() {
                let (x, y) = (EDGE + wide * (i % columns) as i32, TOP + high * (i / columns) as i32);
                for (line, text) in name.iter().enumerate() {
                    words(area, text, (x, y + LINE / 2 + LINE * line as i32), SIZE, TEXT, HPos::Left)?;
                }
                let (left, top) = (x + margin, y + above);
                for ((column, line), value) in cells {
                    let at = (left + CELL.0 * *column as i32, top + CELL.1 * *line as i32);
                    // Darker cells have likelier answers.
                    let mix = |light: f64, dark: f64| (light + (dark - light) * value) as u8;
                    block(area, at, CELL, RGBColor(mix(240.0, 10.0), mix(244.0, 80.0), mix(248.0, 130.0)))?;
                    let middle = (at.0 + CELL.0 / 2, at.1 + CELL.1 / 2);
                    let ink = if *value > 0.5 { LIGHT } else { RGBColor(0x11, 0x11, 0x11) };
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
        })?;
        Ok(Some(svg))
    }
}

/// Values in order, each once.
pub(super) fn distinct(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    values
}
