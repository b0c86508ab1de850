//! Charts of stacked bars, with the legend outside.

use plotters::coord::ranged1d::Ranged;
use plotters::style::RGBColor;
use plotters::style::text_anchor::HPos;

use super::axis::{Axis, Scale, Unit, length};
use super::canvas::{
    Area, DrawError, EDGE, GRID, LIGHT, LINE, MUTED, Picture, Point, SIZE, Sheet, TEXT, TOP, block, line, lines,
    picture, widest, width, words,
};
use super::style::Part;

const BAR: i32 = 24;
const GAP: i32 = 16;
const LENGTH: i32 = 470;

#[derive(Clone, Debug)]
pub(super) struct Bars {
    pub(super) title: String,
    pub(super) note: String,
    /// The quantity that the length of a bar shows; `None` if all bars have the same length.
    pub(super) axis: Option<String>,
    pub(super) unit: Unit,
    pub(super) parts: Vec<Part>,
    /// The bars: a name, and a value for each part. Without an axis all bars have the same length, and each bar's
    /// total is written at its end.
    pub(super) rows: Vec<(String, Vec<f64>)>,
}

impl Picture for Bars {
    fn svg(&self, sheet: &Sheet) -> Result<Option<String>, DrawError> {
        let totals: Vec<f64> = self.rows.iter().map(|(_, values)| values.iter().sum()).collect();
        let longest = length(totals.iter().copied().fold(0.0, f64::max));
        if longest <= 0.0 {
            return Ok(None);
        }
        let names: Vec<Vec<String>> = self.rows.iter().map(|(name, _)| lines(&sheet.label(name), 28)).collect();
        let legend: Vec<Vec<String>> = self.parts.iter().map(|part| lines(&sheet.label(&part.name), 34)).collect();
        let ends: Vec<String> = totals.iter().map(|total| self.unit.write(*total)).collect();
        let left = EDGE + 10 + widest(names.iter().flatten());
        let room = left + widest(&ends) + 8;
        let heights: Vec<i32> = names.iter().map(|lines| BAR.max(lines.len() as i32 * LINE) + GAP).collect();
        let bottom = TOP + 6 + heights.iter().sum::<i32>();
        let legend_height = legend.iter().map(|lines| lines.len() as i32 * LINE + 3).sum::<i32>();
        let below = if self.axis.is_some() { 46 } else { 6 };
        let beside = room + LENGTH + 24;
        let wide = beside + 26 + widest(legend.iter().flatten()) + EDGE;
        let size = (wide, (bottom + below).max(TOP + legend_height + 14));

        let svg = picture(size, (&self.title, &self.note), |area| {
            let mut axis = Axis::new(Scale::Linear, (0.0, longest), 5);
            axis.thin(LENGTH, self.unit);
            if let Some(label) = &self.axis {
                for tick in &axis.ticks {
                    let at = axis.map(tick, (left, left + LENGTH));
                    line(area, &[(at, TOP), (at, bottom)], GRID)?;
                    words(area, &self.unit.write(*tick), (at, bottom + 12), SIZE, MUTED, HPos::Center)?;
                }
                words(area, label, (left + LENGTH / 2, bottom + 32), SIZE, TEXT, HPos::Center)?;
            }
            let mut y = TOP + 6;
            for ((((_, values), total), end), (name, height)) in
                self.rows.iter().zip(&totals).zip(&ends).zip(names.iter().zip(&heights))
            {
                let middle = y + BAR / 2;
                for (i, text) in name.iter().enumerate() {
                    let up = (2 * i as i32 + 1 - name.len() as i32) * LINE / 2;
                    words(area, text, (left - 10, middle + up), SIZE, TEXT, HPos::Right)?;
                }
                let whole = if self.axis.is_some() { longest } else { length(*total) };
                // A sum of several of the largest numbers is drawn to the bar's end. A bar without values has no
                // length.
                let at = |sum: f64| left + (length(sum) / whole * f64::from(LENGTH)).round() as i32;
                let mut sum = 0.0;
                for (part, value) in self.parts.iter().zip(values) {
                    part.draw(area, (at(sum), y), (at(sum + value) - at(sum), BAR))?;
                    sum += value;
                }
                words(area, end, (at(sum) + 8, middle), SIZE, TEXT, HPos::Left)?;
                y += height;
            }
            let mut y = TOP + 6;
            for (part, lines) in self.parts.iter().zip(&legend) {
                part.draw(area, (beside, y), (19, LINE))?;
                for text in lines {
                    words(area, text, (beside + 26, y + LINE / 2), SIZE, TEXT, HPos::Left)?;
                    y += LINE;
                }
                y += 3;
            }
            Ok(())
        })?;
        Ok(Some(svg))
    }
}

impl Part {
    /// Draws the part in its colour, with its sign if there is room.
    fn draw(&self, area: &Area, (x, y): Point, (wide, high): Point) -> Result<(), DrawError> {
        if wide <= 0 {
            return Ok(());
        }
        block(area, (x, y), (wide, high), self.ink)?;
        if wide < width(&self.sign, SIZE) + 5 {
            return Ok(());
        }
        // On inks that are dark in grey, the sign is light.
        let RGBColor(red, green, blue) = self.ink;
        let dark = u32::from(red) * 3 + u32::from(green) * 6 + u32::from(blue) < 1500;
        words(area, &self.sign, (x + wide / 2, y + high / 2), SIZE, if dark { LIGHT } else { TEXT }, HPos::Center)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_tell_their_parts_and_totals() {
        let rows = [("setup", [5.0, 0.0, 1.0]), ("decode", [0.01, 2.0, 7.5])];
        let mut bars = Bars {
            title: "Bytes".into(),
            note: "a model".into(),
            axis: None,
            unit: Unit::Bytes,
            parts: (0..3)
                .zip(["softmax", "a very long name of an operation/which has several parts/and one more", "other"])
                .map(|(i, name)| Part::operation(i, name))
                .collect(),
            rows: rows.map(|(name, values)| (name.to_owned(), values.to_vec())).to_vec(),
        };
        for axis in [None, Some("bytes".to_owned())] {
            bars.axis = axis;
            let svg = bars.svg(&Sheet::default()).unwrap().unwrap();
            for wanted in ["setup", "decode", "6 B", "9.51 B", "1", "2", "3"] {
                assert!(svg.contains(&format!("\n{wanted}\n")), "{wanted} in {svg}");
            }
        }
        for extreme in [1e-320, 1e300, f64::MAX] {
            bars.rows[0].1 = vec![extreme; 3];
            assert!(bars.svg(&Sheet::default()).unwrap().is_some());
        }
        bars.rows = vec![("setup".into(), vec![0.0; 3])];
        assert!(bars.svg(&Sheet::default()).unwrap().is_none());
    }
}
