//! Lines of points over two axes, with the legend outside.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::axis::{Axis, Scale, Unit, range, short, widened};
use super::canvas::{
    Area, DrawError, Drawing, EDGE, GRID, LINE, Limits, MUTED, Picture, Point, SIZE, Sheet, TEXT, font, line, lines,
    picture, widest, width, words,
};
use super::style::{FULL, PLAIN, Style, styles};

const PLOT: Point = (520, 330);
/// Numbers beside points.
const SMALL: i32 = 10;
/// The room below the plot for numbers.
const BELOW: i32 = 34;

/// The quantity along an axis.
#[derive(Clone, Debug, Default)]
pub(super) struct Quantity {
    pub(super) label: String,
    pub(super) scale: Scale,
    pub(super) unit: Unit,
}

impl Quantity {
    /// The label, with the scale where it is not linear.
    fn name(&self) -> String {
        format!("{}{}", self.label, if self.scale == Scale::Log { " (log scale)" } else { "" })
    }
}

/// A value, and its confidence interval if there is one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mark {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) interval: Option<(f64, f64)>,
    /// A number to write beside it, where there is room.
    pub(super) label: Option<f64>,
}

/// The points of one policy, joined by lines in the order of x.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub(super) label: String,
    pub(super) marks: Vec<Mark>,
}

impl Series {
    /// Marks with the labels of their series, as series in the order in which the labels come.
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
    /// Values of x that get ticks; round ones if there are none.
    pub(super) x_ticks: Vec<f64>,
    pub(super) series: Vec<Series>,
    /// The full cache: a level, and its place on the other axis where it has one.
    pub(super) full: Option<(Option<f64>, Mark)>,
    /// Smaller values are drawn here: for logarithms of what may be zero.
    pub(super) floor: Option<f64>,
    /// One line that is no policy: it needs no legend.
    pub(super) plain: bool,
    /// Given ends of both axes.
    pub(super) limits: [Option<Limits>; 2],
}

impl Picture for Chart {
    fn draw(&self, sheet: &Sheet) -> Result<Option<Drawing>, DrawError> {
        let mut chart = self.clone();
        chart.limits = sheet.limits;
        if let [Some(x), _] = sheet.limits {
            let inside = |mark: &Mark| (x.low..=x.high).contains(&mark.x);
            chart.series.iter_mut().for_each(|series| series.marks.retain(inside));
            chart.series.retain(|series| !series.marks.is_empty());
        }
        let mut drawing = chart.drawn(sheet)?;
        drawing.iter_mut().for_each(|drawing| drawing.axes = true);
        Ok(drawing)
    }
}

impl Chart {
    fn drawn(&self, sheet: &Sheet) -> Result<Option<Drawing>, DrawError> {
        let Some(y) = self.y_axis() else { return Ok(None) };
        let labels: Vec<&str> = self.series.iter().map(|series| series.label.as_str()).collect();
        let looks = if self.plain { vec![PLAIN; labels.len()] } else { styles(&labels) };
        let mut legend: Vec<(Vec<String>, &Style)> = Vec::new();
        if !self.plain {
            legend.extend(self.full.iter().map(|_| (vec![sheet.label("full")], &FULL)));
            legend.extend(labels.iter().zip(&looks).map(|(label, style)| (lines(&sheet.label(label), 34), style)));
        }
        let rows = legend.iter().map(|(lines, _)| lines.len()).sum::<usize>() as i32;
        let numbers: Vec<String> = y.ticks.iter().map(|tick| self.y_tick(*tick)).collect();
        let left = EDGE + LINE + 18 + widest(&numbers);
        let beside = if self.plain || sheet.width.is_some() {
            EDGE
        } else {
            64 + widest(legend.iter().flat_map(|(lines, _)| lines))
        };
        let top = sheet.top();
        let across = sheet.wide().map_or(PLOT.0, |wide| (wide - left - beside).max(80));
        let Some(x) = self.x_axis(across) else { return Ok(None) };
        let x_name = lines(&self.x.name(), (across / 7) as usize);
        let below = BELOW + x_name.len() as i32 * LINE;
        // The legend of a figure of given width stands below.
        let (bottom, legend_at, high) = if sheet.width.is_some() {
            // The name of the axis has room beside it.
            let bottom = top + (across * 3 / 4).min(PLOT.1).max(width(&self.y.name(), SIZE + 1) + LINE);
            (bottom, (left, bottom + below + LINE / 2), bottom + below + rows * LINE + EDGE / 2)
        } else {
            let bottom = top + PLOT.1.max(rows * LINE);
            (bottom, (left + across + 16, top + LINE / 2), bottom + below)
        };
        let size = (left + across + beside, high);

        picture(sheet, size, (&self.title, &self.note), |area| {
            let mut chart = ChartBuilder::on(area)
                .margin_top(top)
                .margin_right(size.0.max(area.dim_in_pixel().0 as i32) - left - across)
                .margin_bottom(high - bottom - BELOW)
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
            let frame = Frame { left, top, right: left + across, bottom };
            let place = |x: f64, y: f64| chart.backend_coord(&(x, self.raised(y)));
            if let Some((at, mark)) = &self.full {
                let level = place(x.low, mark.y).1;
                FULL.line(area, vec![(frame.left, level), (frame.right, level)])?;
                if let Some(at) = at.filter(|at| (x.low..=x.high).contains(at)) {
                    FULL.mark(area, place(at, mark.y))?;
                }
            }
            let mut outside = Vec::new();
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
                    match self.raised(mark.y) {
                        value if !(y.low..=y.high).contains(&value) => outside.push((at, mark.y, style.ink)),
                        _ => style.mark(area, at)?,
                    }
                }
            }
            let mut taken = Vec::new();
            self.arrows(area, &frame, outside, &mut taken)?;
            let labelled = self.series.iter().flat_map(|series| &series.marks);
            for (mark, label) in labelled.filter_map(|mark| Some((mark, short(mark.label?)))) {
                let (at, up) = (place(mark.x, mark.y), SMALL + 2);
                let mut places = [(at.0, at.1 - up), (at.0, at.1 + up)].into_iter();
                if let Some(at) = places.find(|at| frame.takes(&mut taken, &label, *at)) {
                    words(area, &label, at, SMALL, MUTED, HPos::Center)?;
                }
            }
            let (x, mut y) = legend_at;
            for (lines, style) in &legend {
                style.line(area, vec![(x, y), (x + 26, y)])?;
                style.mark(area, (x + 13, y))?;
                for text in lines {
                    words(area, text, (x + 34, y), SIZE, TEXT, HPos::Left)?;
                    y += LINE;
                }
            }
            Ok(())
        })
    }
}

impl Chart {
    fn x_axis(&self, across: i32) -> Option<Axis> {
        let full = self.full.as_ref().and_then(|(x, _)| *x);
        let all: Vec<f64> = self.series.iter().flat_map(|s| &s.marks).map(|mark| mark.x).chain(full).collect();
        // All points are shown along x: ranges are cut by values alone.
        let ends = widened(range(&[], &all, self.x.scale)?, self.x.scale);
        let ends = limited(ends, self.limits[0], self.x.scale);
        let mut axis = Axis::new(self.x.scale, ends, 7);
        if !self.x_ticks.is_empty() {
            axis.ticks = self.x_ticks.iter().copied().filter(|tick| (axis.low..=axis.high).contains(tick)).collect();
        }
        axis.thin(across, self.x.unit);
        Some(axis)
    }

    /// The value as it is drawn.
    fn raised(&self, y: f64) -> f64 {
        self.floor.map_or(y, |floor| y.max(floor))
    }

    fn y_axis(&self) -> Option<Axis> {
        let lines = self.series.iter().map(|series| series.marks.iter().map(|mark| self.raised(mark.y)).collect());
        let mut always: Vec<f64> = self.full.iter().map(|(_, mark)| self.raised(mark.y)).collect();
        // Without a reference of its own a chart compares with its first line.
        if let (None, Some(first)) = (&self.full, self.series.first()) {
            always.extend(first.marks.iter().map(|mark| self.raised(mark.y)));
        }
        // Sums of costs are seen from zero.
        always.extend((self.y.scale == Scale::Linear && self.y.unit != Unit::Share).then_some(0.0));
        let ends = range(&lines.collect::<Vec<_>>(), &always, self.y.scale)?;
        let (low, high) = widened(ends, self.y.scale);
        let ends = match self.y.unit {
            // From zero, unless all of it would lie at the upper end.
            Unit::Share => {
                let low = if ends.0 > 0.6 { ends.0 - (1.0 - ends.0) * 0.15 - 0.005 } else { -0.02 };
                (low, 1.0 + (1.0 - low) * 0.02)
            }
            _ => (if ends.0 == 0.0 { 0.0 } else { low }, high),
        };
        let mut axis = Axis::new(self.y.scale, limited(ends, self.limits[1], self.y.scale), 6);
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

    /// An arrow at the edge for each point beyond it, and its number where no other number stands.
    fn arrows(
        &self,
        area: &Area,
        frame: &Frame,
        mut outside: Vec<(Point, f64, RGBColor)>,
        taken: &mut Vec<[i32; 4]>,
    ) -> Result<(), DrawError> {
        outside.sort_by_key(|((x, _), ..)| *x);
        for ((x, y), value, ink) in outside {
            // Downwards from the upper edge, upwards from the lower one.
            let inwards = if y > (frame.top + frame.bottom) / 2 { -1 } else { 1 };
            area.draw(&Polygon::new([(x, y), (x - 4, y + 7 * inwards), (x + 4, y + 7 * inwards)], ink.filled()))?;
            let text = self.y.unit.write(value);
            let half = width(&text, SMALL) / 2;
            // Beside the arrow on the inner side of the frame, or below what stands there.
            let middle = if x + 8 + 2 * half > frame.right { x - 8 - half } else { x + 8 + half };
            let mut places = (0..12).map(|row| (middle, y + (9 + 12 * row) * inwards));
            if let Some(at) = places.find(|at| frame.takes(taken, &text, *at)) {
                words(area, &text, at, SMALL, ink, HPos::Center)?;
            }
        }
        Ok(())
    }
}

/// `ends`, unless `limits` say others. A lower end of zero or less, which a logarithmic scale does not have, stays.
fn limited((low, high): (f64, f64), limits: Option<Limits>, scale: Scale) -> (f64, f64) {
    match limits {
        Some(limits) if scale == Scale::Linear || limits.low > 0.0 => (limits.low, limits.high),
        Some(limits) if limits.high > low => (low, limits.high),
        _ => (low, high),
    }
}

struct Frame {
    left: i32,
    top: i32,
    right: i32,
    bottom: i32,
}

impl Frame {
    /// Takes the place of `text` around `(x, y)`, unless it is not inside or another one touches it.
    fn takes(&self, taken: &mut Vec<[i32; 4]>, text: &str, (x, y): Point) -> bool {
        let (half, up) = (width(text, SMALL) / 2 + 1, SMALL / 2 + 2);
        let [left, top, right, bottom] = [x - half, y - up, x + half, y + up];
        let inside = top >= self.top && bottom <= self.bottom;
        let free = inside && taken.iter().all(|t| right < t[0] || left > t[2] || bottom < t[1] || top > t[3]);
        if free {
            taken.push([left, top, right, bottom]);
        }
        free
    }
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
    fn the_first_line_is_shown_whole_where_nothing_else_is_the_reference() {
        let all = [("full", [3.6, 4.6, 6.5, 8.0, 9.0]), ("flat", [3.9; 5]), ("flatter", [3.7; 5])];
        let all = all.map(|(label, ys)| series(label, &ys));
        let axis = Chart { full: None, ..chart(all.into()) }.y_axis().unwrap();
        assert!(axis.high > 9.0, "{axis:?}");
    }

    #[test]
    fn many_policies_and_a_bad_one_stay_legible() {
        let names = ["streaming", "h2o", "tova", "snapkv", "quest", "knorm", "duo", "razor", "oracle", "random"];
        let mut all: Vec<Series> = names.iter().map(|name| series(name, &[6.0, 5.5, 4.6, 4.2, 4.0])).collect();
        all.push(series("mpcache:similarity=cuboid-mean,topk=shuffle-reveal", &[5.9, 5.1, 4.4, 4.1, 4.0]));
        all.push(series("sirllm", &[900.0, 700.0, 90.0, 30.0, 4.0]));
        let drawing = chart(all).draw(&Sheet::default()).unwrap().unwrap();
        let texts = drawing.assert_legible();
        for wanted in ["0.05", "0.1", "0.25", "0.5", "1", "4", "5", "6", "900", "700", "90", "30", "full"] {
            assert!(texts.contains(&wanted), "{wanted} in {texts:?}");
        }
    }

    #[test]
    fn limits_cut_points_or_send_them_to_the_edge() {
        let limits = |low, high| Some(Limits { low, high });
        let drawn = |limits| {
            let sheet = Sheet { limits, ..Sheet::default() };
            chart(vec![series("h2o", &[6.0, 5.5, 4.6, 4.2, 2.0])]).draw(&sheet).unwrap().unwrap()
        };
        assert!(drawn([None; 2]).axes);
        // The first point is above, the last one below.
        let texts = drawn([None, limits(3.0, 5.8)]);
        let texts = texts.assert_legible();
        assert!(texts.contains(&"6") && texts.contains(&"2") && texts.contains(&"5"), "{texts:?}");
        let cut = drawn([limits(0.2, 2.0), None]);
        let texts = cut.assert_legible();
        assert!(!texts.contains(&"0.1") && texts.contains(&"0.25"), "{texts:?}");
        // A logarithmic scale has no zero.
        drawn([limits(0.0, 2.0), limits(-1.0, 7.0)]);
        let sheet = Sheet { limits: [limits(3.0, 4.0), None], ..Sheet::default() };
        assert!(chart(vec![series("h2o", &[6.0])]).draw(&sheet).unwrap().is_none(), "no point is inside");
    }

    #[test]
    fn nothing_is_drawn_of_nothing() {
        assert!(Chart { full: None, ..chart(Vec::new()) }.draw(&Sheet::default()).unwrap().is_none());
    }
}
