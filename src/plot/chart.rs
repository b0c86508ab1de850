//! Charts of lines of points over two axes, with the legend outside.

use std::ops::Range;

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::axis::{Axis, Scale, Unit, range, short, widened};
use super::canvas::{
    DrawError, EDGE, GRID, LINE, MUTED, Picture, Point, SIZE, Sheet, TEXT, TOP, font, line, lines, picture, widest,
    width, words,
};
use super::style::{FULL, PLAIN, Style, styles};

const PLOT: Point = (520, 330);
/// Font size of numbers beside points.
const SMALL: i32 = 10;
/// Height below the plot for the numbers of the axis.
const BELOW: i32 = 34;

/// The quantity along an axis.
#[derive(Clone, Debug, Default)]
pub(super) struct Quantity {
    pub(super) label: String,
    pub(super) scale: Scale,
    pub(super) unit: Unit,
}

impl Quantity {
    /// The label, with the scale if it is not linear.
    pub(super) fn name(&self) -> String {
        format!("{}{}", self.label, if self.scale == Scale::Log { " (log scale)" } else { "" })
    }
}

/// A value, and its confidence interval if there is one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mark {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) interval: Option<(f64, f64)>,
    /// A number to write beside the point, if there is room.
    pub(super) label: Option<f64>,
}

/// The points of one policy, joined by lines in the order of x.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub(super) label: String,
    pub(super) marks: Vec<Mark>,
}

impl Series {
    /// Gathers marks, each with the label of its series, into series. These are in the order in which the labels
    /// first occur.
    pub(super) fn gather(marks: impl IntoIterator<Item = (String, Mark)>) -> Vec<Series> {
        let mut all: Vec<Series> = Vec::new();
        for (label, mark) in marks {
            match all.iter_mut().find(|series| series.label == label) {
                Some(series) => series.marks.push(mark),
                None => all.push(Series { label, marks: vec![mark] }),
            }
        }
        all.iter_mut().for_each(|series| series.marks.sort_by(|a, b| a.x.total_cmp(&b.x)));
        all
    }
}

/// A chart before it is drawn.
#[derive(Clone, Debug, Default)]
pub(super) struct Chart {
    pub(super) title: String,
    /// A line below the title.
    pub(super) note: String,
    pub(super) x: Quantity,
    pub(super) y: Quantity,
    /// Values of x that get ticks. If the list is empty, round values are chosen.
    pub(super) x_ticks: Vec<f64>,
    pub(super) series: Vec<Series>,
    /// The full cache: its place on the x axis, if it has one, and its level.
    pub(super) full: Option<(Option<f64>, Mark)>,
    /// Level at which smaller values are drawn. It is needed for logarithms of values that may be zero.
    pub(super) floor: Option<f64>,
    /// Whether the chart has a single line that is no policy, and so needs no legend.
    pub(super) plain: bool,
}

impl Chart {
    /// The styles of the chart's lines.
    pub(super) fn looks(&self) -> Vec<Style> {
        let labels: Vec<&str> = self.series.iter().map(|series| series.label.as_str()).collect();
        if self.plain { vec![PLAIN; labels.len()] } else { styles(&labels) }
    }
}

impl Picture for Chart {
    fn svg(&self, sheet: &Sheet) -> Result<Option<String>, DrawError> {
        let (Some(x), Some(y)) = (self.x_axis(), self.y_axis()) else { return Ok(None) };
        let looks = self.looks();
        let mut legend: Vec<(Vec<String>, &Style)> = Vec::new();
        if !self.plain {
            legend.extend(self.full.iter().map(|_| (vec![sheet.label("full")], &FULL)));
            let names = self.series.iter().map(|series| lines(&sheet.label(&series.label), 34));
            legend.extend(names.zip(&looks));
        }
        let rows = legend.iter().map(|(lines, _)| lines.len()).sum::<usize>() as i32;
        let numbers: Vec<String> = y.ticks.iter().map(|tick| self.y_tick(*tick)).collect();
        let left = EDGE + LINE + 18 + widest(&numbers);
        let beside = if self.plain { EDGE } else { 64 + widest(legend.iter().flat_map(|(lines, _)| lines)) };
        let (across, bottom) = (PLOT.0, TOP + PLOT.1.max(rows * LINE));
        let x_name = lines(&self.x.name(), (across / 7) as usize);
        let size = (left + across + beside, bottom + BELOW + x_name.len() as i32 * LINE);
        let svg = picture(size, (&self.title, &self.note), |area| {
            let mut chart = ChartBuilder::on(area)
                .margin_top(TOP)
                .margin_right(size.0.max(area.dim_in_pixel().0 as i32) - left - across)
                .margin_bottom(size.1 - bottom - BELOW)
                .margin_left(EDGE / 2)
                .x_label_area_size(BELOW)
                .y_label_area_size(left - EDGE / 2)
                .build_cartesian_2d(x.clone(), y.clone())?;
            chart
                .configure_mesh()
                .light_line_style(TRANSPARENT)
                .bold_line_style(GRID)
                .axis_style(MUTED)
                .label_style(font(SIZE, TEXT))
                .axis_desc_style(font(SIZE + 1, TEXT))
                .x_label_formatter(&|tick| self.x.unit.write(*tick))
                .y_label_formatter(&|tick| self.y_tick(*tick))
                .y_desc(self.y.name())
                .draw()?;
            for (i, text) in (0i32..).zip(&x_name) {
                let at = (left + across / 2, bottom + BELOW + i * LINE);
                words(area, text.trim_end(), at, SIZE, TEXT, HPos::Center)?;
            }
            let mut taken = Vec::new();
            let place = |x: f64, y: f64| chart.backend_coord(&(x, self.raised(y)));
            if let Some((at, mark)) = &self.full {
                let level = place(x.low, mark.y).1;
                FULL.line(area, vec![(left, level), (left + across, level)])?;
                if let Some(at) = at.filter(|at| (x.low..=x.high).contains(at)) {
                    FULL.mark(area, place(at, mark.y))?;
                }
            }
            for (series, style) in self.series.iter().zip(&looks) {
                let points: Vec<Point> = series.marks.iter().map(|mark| place(mark.x, mark.y)).collect();
                style.line(area, points.clone())?;
                for (mark, at) in series.marks.iter().zip(points) {
                    if let Some((low, high)) = mark.interval.filter(|(low, high)| high > low) {
                        let [low, high] = [low, high].map(|end| place(mark.x, end).1);
                        line(area, &[(at.0, low), (at.0, high)], style.ink)?;
                        line(area, &[(at.0 - 3, low), (at.0 + 3, low)], style.ink)?;
                        line(area, &[(at.0 - 3, high), (at.0 + 3, high)], style.ink)?;
                    }
                    style.mark(area, at)?;
                }
            }
            let labelled = self.series.iter().flat_map(|series| &series.marks);
            for (mark, label) in labelled.filter_map(|mark| Some((mark, short(mark.label?)))) {
                let (at, up) = (place(mark.x, mark.y), SMALL + 2);
                let mut places = [(at.0, at.1 - up), (at.0, at.1 + up)].into_iter();
                if let Some(at) = places.find(|at| takes(&mut taken, &label, *at, TOP..bottom)) {
                    words(area, &label, at, SMALL, MUTED, HPos::Center)?;
                }
            }
            let (x, mut y) = (left + across + 16, TOP + LINE / 2);
            for (lines, style) in &legend {
                style.line(area, vec![(x, y), (x + 26, y)])?;
                style.mark(area, (x + 13, y))?;
                for text in lines {
                    words(area, text, (x + 34, y), SIZE, TEXT, HPos::Left)?;
                    y += LINE;
                }
            }
            Ok(())
        })?;
        Ok(Some(svg))
    }
}

impl Chart {
    pub(super) fn x_axis(&self) -> Option<Axis> {
        let full = self.full.as_ref().and_then(|(x, _)| *x);
        let all = self.series.iter().flat_map(|s| &s.marks).map(|mark| mark.x).chain(full);
        let ends = widened(range(all, self.x.scale)?, self.x.scale);
        let mut axis = Axis::new(self.x.scale, ends, 7);
        if !self.x_ticks.is_empty() {
            axis.ticks = self.x_ticks.iter().copied().filter(|tick| (axis.low..=axis.high).contains(tick)).collect();
        }
        axis.thin(PLOT.0, self.x.unit);
        Some(axis)
    }

    /// `y`, raised to the floor if there is one.
    pub(super) fn raised(&self, y: f64) -> f64 {
        self.floor.map_or(y, |floor| y.max(floor))
    }

    pub(super) fn y_axis(&self) -> Option<Axis> {
        let marks =
            self.series.iter().flat_map(|series| &series.marks).chain(self.full.as_ref().map(|(_, mark)| mark));
        // Linear axes begin at zero, except those of shares.
        let zero = (self.y.scale == Scale::Linear && self.y.unit != Unit::Share).then_some(0.0);
        let ends = range(marks.map(|mark| self.raised(mark.y)).chain(zero), self.y.scale)?;
        let (low, high) = widened(ends, self.y.scale);
        let ends = match self.y.unit {
            // The axis begins at zero, unless all values would be near its upper end.
            Unit::Share => {
                let low = if ends.0 > 0.6 { ends.0 - (1.0 - ends.0) * 0.15 - 0.005 } else { -0.02 };
                (low, 1.0 + (1.0 - low) * 0.02)
            }
            _ => (if ends.0 == 0.0 { 0.0 } else { low }, high),
        };
        let mut axis = Axis::new(self.y.scale, ends, 6);
        if let Some(floor) = self.floor.filter(|floor| self.reaches(*floor)) {
            axis.ticks.retain(|tick| *tick > floor * 1.5);
            axis.ticks.insert(0, floor);
        }
        Some(axis)
    }

    /// Whether a value is drawn at the floor.
    fn reaches(&self, floor: f64) -> bool {
        let marks = self.series.iter().flat_map(|series| &series.marks);
        marks.chain(self.full.as_ref().map(|(_, mark)| mark)).any(|mark| mark.y < floor)
    }

    fn y_tick(&self, tick: f64) -> String {
        let at_floor = self.floor.is_some_and(|floor| floor == tick && self.reaches(floor));
        format!("{}{}", if at_floor { "≤ " } else { "" }, self.y.unit.write(tick))
    }
}

/// Takes the place of `text` around `(x, y)`, unless the place is not within `rows` or touches one that is taken
/// already. Returns whether it was taken.
fn takes(taken: &mut Vec<[i32; 4]>, text: &str, (x, y): Point, rows: Range<i32>) -> bool {
    let (half, up) = (width(text, SMALL) / 2 + 1, SMALL / 2 + 2);
    let [left, top, right, bottom] = [x - half, y - up, x + half, y + up];
    let inside = top >= rows.start && bottom <= rows.end;
    let free = inside && taken.iter().all(|t| right < t[0] || left > t[2] || bottom < t[1] || top > t[3]);
    if free {
        taken.push([left, top, right, bottom]);
    }
    free
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(series: Vec<Series>) -> Chart {
        let quantity = |label: &str, scale, unit| Quantity { label: label.into(), scale, unit };
        Chart {
            title: "Perplexity".into(),
            x: quantity("budget", Scale::Log, Unit::Number),
            y: quantity("perplexity", Scale::Log, Unit::Number),
            x_ticks: vec![0.05, 0.1, 0.25, 0.5, 1.0],
            series,
            full: Some((None, Mark { y: 4.0, ..Mark::default() })),
            ..Chart::default()
        }
    }

    fn series(label: &str, ys: &[f64]) -> Series {
        let xs = [0.05, 0.1, 0.25, 0.5, 1.0];
        let mark =
            |(x, y): (&f64, &f64)| Mark { x: *x, y: *y, interval: Some((y * 0.97, y * 1.02)), label: Some(*x) };
        Series { label: label.into(), marks: xs.iter().zip(ys).map(mark).collect() }
    }

    #[test]
    fn a_chart_has_all_points_and_labels_that_do_not_cover_each_other() {
        let all =
            vec![series("h2o", &[6.0, 5.5, 4.6, 4.2, 4.0]), series("sirllm_b", &[900.0, 700.0, 90.0, 30.0, 4.0])];
        let chart = chart(all);
        let svg = chart.svg(&Sheet::default()).unwrap().unwrap();
        for wanted in ["0.05", "0.25", "1", "100", "full", "h2o", "sirllm_b"] {
            assert!(svg.contains(&format!("\n{wanted}\n")), "{wanted} in {svg}");
        }
        assert!(chart.y_axis().unwrap().high > 900.0);
        let mut taken = Vec::new();
        assert!(takes(&mut taken, "0.1", (50, 50), 0..100) && !takes(&mut taken, "0.25", (55, 52), 0..100));
        assert!(!takes(&mut taken, "0.5", (90, 2), 0..100) && takes(&mut taken, "0.5", (90, 50), 0..100));
    }

    #[test]
    fn nothing_is_drawn_of_nothing() {
        assert!(Chart { full: None, ..chart(Vec::new()) }.svg(&Sheet::default()).unwrap().is_none());
    }
}
