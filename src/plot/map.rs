//! Maps of attention with the classes of tokens (MPCache, figure 15), and charts of the ranks of pages (ArkVale).

use std::fmt::Write;

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use waggle_study::eval::pages::EVEN;
use waggle_study::eval::{AttentionMap, AttentionStudy, Class};

use super::canvas::{
    DrawError, EDGE, LINE, PAPER, Picture, Point, SIZE, Sheet, TEXT, TOP, block, line, picture, width, words,
};
use super::chart::{Chart, Mark, Quantity, Series};
use super::pgf::{Tex, colour};
use super::style::CLASSES;

/// The most cells of a map along each side.
const CELLS: usize = 48;
const CELL: i32 = 6;
/// The most decode steps in a chart of ranks.
const STEPS: usize = 24;
/// How much of a cell's ink is seen where attention is below an even share, from it on, and from four times it on.
const LEVELS: [(f32, f64); 3] = [(0.0, 0.18), (EVEN, 0.55), (4.0 * EVEN, 1.0)];

/// The maps of all heads that are drawn, with the name of the model.
pub(super) struct Maps<'a>(pub(super) &'a AttentionStudy, pub(super) &'a str);

/// Cells of one ink below each other: the first one's column and row, and their number.
type Run = ((usize, usize), usize, RGBColor);

/// Tokens along the side of a cell.
fn tokens(map: &AttentionMap) -> usize {
    map.rows.len().div_ceil(CELLS).max(1)
}

/// The runs of a map. A cell has the class of its most important token, and the mean attention of its queries to one
/// of its tokens, in even shares.
fn runs(map: &AttentionMap) -> Vec<Run> {
    let size = tokens(map);
    let cells = map.rows.len().div_ceil(size);
    let mut runs: Vec<Run> = Vec::new();
    for column in 0..cells {
        let class = map.classes.iter().skip(column * size).take(size).max();
        let RGBColor(r, g, b) = match class {
            Some(Class::All) => CLASSES[0],
            Some(Class::Certain) => CLASSES[1],
            Some(Class::Unimportant) => CLASSES[2],
            None => CLASSES[3],
        };
        for row in column..cells {
            let queries = map.rows.iter().skip(row * size).take(size);
            let seen =
                queries.flat_map(|p| p.iter().skip(column * size).take(size).map(|p_of| p_of * p.len() as f32));
            let (sum, count) = seen.fold((0.0, 0.0), |(sum, count), share| (sum + share, count + 1.0));
            let (_, level) = LEVELS.iter().rfind(|(least, _)| sum / count >= *least).unwrap_or(&LEVELS[0]);
            let mix = |ink: u8, paper: u8| (f64::from(paper) + (f64::from(ink) - f64::from(paper)) * level) as u8;
            let ink = RGBColor(mix(r, PAPER.0), mix(g, PAPER.1), mix(b, PAPER.2));
            match runs.last_mut() {
                Some(((of, _), rows, same)) if *same == ink && *of == column => *rows += 1,
                _ => runs.push(((column, row), 1, ink)),
            }
        }
    }
    runs
}

fn title(map: &AttentionMap) -> String {
    format!("layer {}, head {}", map.layer, map.head)
}

impl Picture for Maps<'_> {
    fn svg(&self, _: &Sheet) -> Result<Option<String>, DrawError> {
        let (maps, side) = (&self.0.maps, CELLS as i32 * CELL);
        let Some(map) = maps.first().filter(|map| !map.rows.is_empty()) else { return Ok(None) };
        let (wide, count) = (side + 24, map.rows.len());
        let size: Point = (EDGE * 2 + wide * maps.len() as i32, TOP + 2 * LINE + side + EDGE);
        let note =
            format!("{} · {count} tokens, {} along a cell · a query a row, a key a column", self.1, tokens(map));
        let svg = picture(size, ("Attention, by how the observation window sees tokens", &note), |area| {
            let mut x = EDGE;
            let names = ["IA: important to all", "IC: to certain", "UIA: unimportant to all", "not judged"];
            for (name, ink) in names.into_iter().zip(CLASSES) {
                block(area, (x, TOP - 6), (12, 12), ink)?;
                words(area, name, (x + 17, TOP), SIZE, TEXT, HPos::Left)?;
                x += 40 + width(name, SIZE);
            }
            for (i, map) in maps.iter().enumerate() {
                let (left, top) = (EDGE + wide * i as i32, TOP + 2 * LINE);
                words(area, &title(map), (left, top - LINE / 2), SIZE, TEXT, HPos::Left)?;
                for ((column, row), rows, ink) in runs(map) {
                    let corner = (left + column as i32 * CELL, top + row as i32 * CELL);
                    let corners = [corner, (corner.0 + CELL, corner.1 + rows as i32 * CELL)];
                    area.draw(&Rectangle::new(corners, ink.filled()))?;
                }
                // The window's queries stand between two lines, and decode steps below.
                for (position, below) in [(map.classes.len(), "window"), (map.prompt, "decode")] {
                    let y = top + (position * CELL as usize / tokens(map)) as i32;
                    line(area, &[(left, y), (left + side, y)], TEXT)?;
                    words(area, below, (left + side, y + LINE / 2), SIZE, TEXT, HPos::Right)?;
                }
            }
            Ok(())
        })?;
        Ok(Some(svg))
    }
}

impl Tex for Maps<'_> {
    fn tex(&self, _: &Sheet) -> String {
        let mut out = String::new();
        for map in &self.0.maps {
            let _ = writeln!(out, "% {}\n\\begin{{tikzpicture}}[x=1mm,y=-1mm]", title(map));
            for ((x, y), rows, ink) in runs(map) {
                let _ = writeln!(out, "\\fill[color={}] ({x},{y}) rectangle ({},{});", colour(ink), x + 1, y + rows);
            }
            out += "\\end{tikzpicture}\n";
        }
        out
    }
}

/// For each head that is drawn, a chart of the ranks of its pages with most attention over decode steps.
pub(super) fn ranks<'a>(study: &'a AttentionStudy, model: &'a str) -> impl Iterator<Item = (String, Chart)> {
    let size = study.sizes.last().copied().unwrap_or(1);
    study.maps.iter().map(move |map| {
        let every = map.rows.len().saturating_sub(map.prompt).div_ceil(STEPS).max(1);
        let shown =
            map.ranks(size).into_iter().filter(|[position, ..]| (position - map.prompt).is_multiple_of(every));
        let marks = shown.map(|[position, page, rank]| {
            let mark = Mark { x: position as f64, y: rank as f64, ..Mark::default() };
            (format!("tokens {}-{}", page * size, (page + 1) * size - 1), mark)
        });
        let quantity = |label: &str| Quantity { label: label.into(), ..Quantity::default() };
        let chart = Chart {
            title: format!("Ranks of pages by attention, {}", title(map)),
            note: format!("{model} · the pages of {size} tokens with most attention · one step in {every}"),
            x: quantity("position of the query"),
            y: quantity("rank, 1: most attention"),
            series: Series::gather(marks),
            ..Chart::default()
        };
        (format!("ranks-{}.{}", map.layer, map.head), chart)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_of_a_column_are_joined_where_they_look_alike() {
        let rows = vec![vec![1.0], vec![0.3, 0.7], vec![0.1, 0.1, 0.8]];
        let runs = runs(&AttentionMap { classes: vec![Class::All], rows, ..AttentionMap::default() });
        let places: Vec<_> = runs.iter().map(|(at, rows, _)| (*at, *rows)).collect();
        // Even shares by column: 1, 0.6, 0.3; 1.4, 0.3; 2.4. The first column alone has a class.
        assert_eq!(places, [((0, 0), 1), ((0, 1), 2), ((1, 1), 1), ((1, 2), 1), ((2, 2), 1)]);
        assert!(runs[0].2 != runs[2].2 && runs[2].2 == runs[4].2, "{runs:?}");
    }
}
