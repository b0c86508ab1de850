//! Lines of points over two axes, with the legend outside.

use super::axis::{Axis, Scale, range, short, short_bytes, widened};
use super::scene::{Anchor, Ink, Point, Scene, Stroke};
use super::style::{FULL, PLAIN, Style, styles};
use super::text::{lines, width};

const PLOT: Point = (520.0, 330.0);
const TITLE: f64 = 15.0;
const LABEL: f64 = 12.5;
const TICK: f64 = 11.5;
const LEGEND: f64 = 11.5;
/// Numbers beside points.
const SMALL: f64 = 10.0;
/// The widest text of the legend before it is broken.
const LEGEND_WIDTH: f64 = 230.0;
const LEGEND_LINE: f64 = 15.0;

/// What an axis shows.
#[derive(Clone, Debug)]
pub(super) struct Quantity {
    pub(super) label: String,
    pub(super) scale: Scale,
    pub(super) unit: Unit,
}

/// How numbers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Number,
    Bytes,
    /// A share of 1: the axis ends there.
    Share,
}

impl Unit {
    pub(super) fn write(self, value: f64) -> String {
        match self {
            Unit::Number | Unit::Share => short(value),
            Unit::Bytes => short_bytes(value),
        }
    }
}

/// A value, and its confidence interval if there is one.
#[derive(Clone, Copy, Debug)]
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

/// A chart before it is drawn.
#[derive(Clone, Debug)]
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
}

/// The rectangle of the data, and its axes.
struct Frame {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    x: Axis,
    y: Axis,
}

impl Chart {
    /// The drawing; `None` without points.
    pub(super) fn draw(&self) -> Option<Scene> {
        let labels: Vec<&str> = self.series.iter().map(|series| series.label.as_str()).collect();
        let looks = if self.plain { vec![PLAIN; labels.len()] } else { styles(&labels) };
        let (x_range, y_range) = (self.x_range()?, self.y_range()?);

        let y_guess = Axis { scale: self.y.scale, low: y_range.0, high: y_range.1, from: PLOT.1, to: 0.0 };
        let y_ticks = self.y_ticks(&y_guess);
        let widest = y_ticks.iter().map(|tick| width(&self.y_tick(*tick), TICK)).fold(0.0, f64::max);
        let entries: Vec<Vec<String>> = labels.iter().map(|label| lines(label, LEGEND, LEGEND_WIDTH)).collect();
        let legend_lines = entries.iter().map(Vec::len).sum::<usize>() + usize::from(self.full.is_some());
        let legend_width =
            entries.iter().flatten().map(|line| width(line, LEGEND)).fold(width("full", LEGEND), f64::max);

        let left = 14.0 + LABEL + 10.0 + widest + 8.0;
        let top = if self.note.is_empty() { 40.0 } else { 56.0 };
        let plot_height = PLOT.1.max(legend_lines as f64 * LEGEND_LINE);
        let (right, bottom) = (left + PLOT.0, top + plot_height);
        let x = Axis { scale: self.x.scale, low: x_range.0, high: x_range.1, from: left, to: right };
        let y = Axis { scale: self.y.scale, low: y_range.0, high: y_range.1, from: bottom, to: top };
        let frame = Frame { left, right, top, bottom, x, y };
        let title_width = width(&self.title, TITLE).max(width(&self.note, TICK));
        let beside = if self.plain { 12.0 } else { 16.0 + 34.0 + legend_width + 12.0 };
        let whole = (frame.right + beside).max(left + title_width + 12.0);
        let mut scene = Scene::new(whole.ceil(), (frame.bottom + 52.0).ceil(), &self.title);
        scene.text(&self.title, (frame.left, 24.0), TITLE, Ink::Text, Anchor::Start);
        scene.text(&self.note, (frame.left, 42.0), TICK, Ink::Muted, Anchor::Start);

        self.axes(&mut scene, &frame, &y_ticks);
        self.full_cache(&mut scene, &frame);
        let mut clipped = Vec::new();
        for (i, (series, style)) in self.series.iter().zip(&looks).enumerate() {
            clipped.extend(self.line(&mut scene, &frame, series, style, self.dodge(i)));
        }
        let mut taken = Vec::new();
        arrows(&mut scene, &frame, clipped, self.y.unit, &mut taken);
        self.labels(&mut scene, &frame, &mut taken);
        if !self.plain {
            self.legend(&mut scene, &frame, &entries, &looks);
        }
        Some(scene)
    }

    fn x_range(&self) -> Option<(f64, f64)> {
        let full = self.full.as_ref().and_then(|(x, _)| *x);
        let all = self.series.iter().flat_map(|series| series.marks.iter().map(|mark| mark.x)).chain(full);
        // All points are shown along x: ranges are cut by values alone.
        Some(widened(range(&[], &all.collect::<Vec<_>>(), self.x.scale)?, self.x.scale))
    }

    /// The value as it is drawn.
    fn raised(&self, y: f64) -> f64 {
        self.floor.map_or(y, |floor| y.max(floor))
    }

    fn y_range(&self) -> Option<(f64, f64)> {
        let lines = self.series.iter().map(|series| series.marks.iter().map(|mark| self.raised(mark.y)).collect());
        let mut always: Vec<f64> = self.full.iter().map(|(_, mark)| self.raised(mark.y)).collect();
        // Sums of costs are seen from zero.
        always.extend((self.y.scale == Scale::Linear && self.y.unit != Unit::Share).then_some(0.0));
        let range = range(&lines.collect::<Vec<_>>(), &always, self.y.scale)?;
        if self.y.unit != Unit::Share {
            let (low, high) = widened(range, self.y.scale);
            return Some((if range.0 == 0.0 { 0.0 } else { low }, high));
        }
        // A share: from zero, unless all of it would lie at the upper end.
        let low = if range.0 > 0.6 { range.0 - (1.0 - range.0) * 0.15 - 0.005 } else { -0.02 };
        Some((low, 1.0 + (1.0 - low) * 0.02))
    }

    fn y_ticks(&self, axis: &Axis) -> Vec<f64> {
        let mut ticks = axis.ticks(6);
        if let Some(floor) = self.floor.filter(|floor| self.reaches(*floor)) {
            ticks.retain(|tick| *tick > floor * 1.5);
            ticks.insert(0, floor);
        }
        ticks
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

    fn axes(&self, scene: &mut Scene, frame: &Frame, y_ticks: &[f64]) {
        let Frame { x, y, .. } = frame;
        let grid = Stroke { ink: Ink::Grid, width: 1.0, dash: &[] };
        let line = Stroke { ink: Ink::Muted, width: 1.0, dash: &[] };
        for tick in y_ticks {
            let at = y.at(*tick);
            scene.line([(frame.left, at), (frame.right, at)], grid);
            scene.line([(frame.left - 4.0, at), (frame.left, at)], line);
            let text = self.y_tick(*tick);
            scene.text(text, (frame.left - 8.0, at + TICK * 0.36), TICK, Ink::Text, Anchor::End);
        }
        let own = !self.x_ticks.is_empty();
        let ticks = if own { self.x_ticks.clone() } else { x.ticks(7) };
        // A number that would touch the one before it is left out; its tick stays.
        let mut end = f64::NEG_INFINITY;
        for tick in ticks {
            let at = x.at(tick);
            if !(frame.left - 1.0..=frame.right + 1.0).contains(&at) {
                continue;
            }
            scene.line([(at, frame.top), (at, frame.bottom)], grid);
            scene.line([(at, frame.bottom), (at, frame.bottom + 4.0)], line);
            let text = self.x.unit.write(tick);
            let half = width(&text, TICK) / 2.0;
            if at - half > end + 6.0 {
                end = at + half;
                scene.text(text, (at, frame.bottom + 17.0), TICK, Ink::Text, Anchor::Middle);
            }
        }
        scene.line([(frame.left, frame.top), (frame.left, frame.bottom), (frame.right, frame.bottom)], line);
        let middle = (frame.left + frame.right) / 2.0;
        scene.text(&self.x.label, (middle, frame.bottom + 38.0), LABEL, Ink::Text, Anchor::Middle);
        scene.upright(&self.y.label, (8.0 + LABEL, (frame.top + frame.bottom) / 2.0), LABEL, Ink::Text);
    }

    /// The level of the full cache, and its point where it has a place.
    fn full_cache(&self, scene: &mut Scene, frame: &Frame) {
        let Some((place, mark)) = &self.full else { return };
        let at = frame.y.at(self.raised(mark.y));
        if (frame.top - 0.5..=frame.bottom + 0.5).contains(&at) {
            let stroke = Stroke { width: 1.2, ..FULL.stroke() };
            scene.line([(frame.left, at), (frame.right, at)], stroke);
            if let Some(place) = place {
                FULL.mark(scene, (frame.x.at(*place), at));
            }
        }
    }

    /// How far line `i` steps aside, so that intervals at the same x do not cover each other.
    fn dodge(&self, i: usize) -> f64 {
        let reach = |mark: &Mark| mark.interval.is_some_and(|(low, high)| high > low);
        if !self.series.iter().any(|series| series.marks.iter().any(reach)) || self.x_ticks.is_empty() {
            return 0.0;
        }
        let n = self.series.len();
        let step = (20.0 / n as f64).min(4.0);
        (i as f64 - (n as f64 - 1.0) / 2.0) * step
    }

    /// Draws a line with its intervals and markers; returns the points that lie outside.
    fn line(&self, scene: &mut Scene, frame: &Frame, series: &Series, style: &Style, dodge: f64) -> Vec<Clipped> {
        let Frame { x, y, .. } = frame;
        let place = |mark: &Mark| (x.at(mark.x) + dodge, y.at(self.raised(mark.y)));
        let points: Vec<Point> = series.marks.iter().map(place).collect();
        for ends in points.windows(2) {
            if let Some(visible) = clip(ends[0], ends[1], frame.top, frame.bottom) {
                scene.line(visible, style.stroke());
            }
        }
        let bar = Stroke { ink: style.ink, width: 1.0, dash: &[] };
        for (mark, at) in series.marks.iter().zip(&points) {
            let Some((low, high)) = mark.interval.filter(|(low, high)| high > low) else { continue };
            let [low, high] = [low, high].map(|v| y.at(self.raised(v).max(f64::MIN_POSITIVE)));
            let (low, high) = (low.min(frame.bottom), high.max(frame.top));
            if low - high > 1.0 {
                scene.line([(at.0, low), (at.0, high)], bar);
                for end in [low, high].into_iter().filter(|end| (frame.top + 0.1..frame.bottom - 0.1).contains(end)) {
                    scene.line([(at.0 - 3.0, end), (at.0 + 3.0, end)], bar);
                }
            }
        }
        let mut clipped = Vec::new();
        for (mark, at) in series.marks.iter().zip(points) {
            if (frame.top - 0.5..=frame.bottom + 0.5).contains(&at.1) {
                style.mark(scene, at);
            } else if at.1.is_finite() {
                clipped.push(Clipped { x: at.0, above: at.1 < frame.top, value: mark.y, ink: style.ink });
            }
        }
        clipped
    }

    /// The numbers of the points: above or below them, where no other number stands.
    fn labels(&self, scene: &mut Scene, frame: &Frame, taken: &mut Vec<[f64; 4]>) {
        for mark in self.series.iter().flat_map(|series| &series.marks) {
            let (Some(label), (x, y)) = (mark.label, (frame.x.at(mark.x), frame.y.at(self.raised(mark.y)))) else {
                continue;
            };
            let text = short(label);
            let half = width(&text, SMALL) / 2.0;
            let place = [y - 7.0, y + 7.0 + SMALL].into_iter().find(|base| {
                let inside = *base - SMALL > frame.top && *base < frame.bottom - 2.0;
                inside && free(taken, [x - half - 1.0, base - SMALL, x + half + 1.0, base + 2.0])
            });
            if let Some(base) = place {
                scene.text(text, (x, base), SMALL, Ink::Muted, Anchor::Middle);
            }
        }
    }

    fn legend(&self, scene: &mut Scene, frame: &Frame, entries: &[Vec<String>], looks: &[Style]) {
        let x = frame.right + 16.0;
        let mut y = frame.top + LEGEND;
        if let Some((place, _)) = &self.full {
            let middle = y - LEGEND * 0.35;
            scene.line([(x, middle), (x + 26.0, middle)], Stroke { width: 1.2, ..FULL.stroke() });
            if place.is_some() {
                FULL.mark(scene, (x + 13.0, middle));
            }
            scene.text("full", (x + 34.0, y), LEGEND, Ink::Text, Anchor::Start);
            y += LEGEND_LINE;
        }
        for (lines, style) in entries.iter().zip(looks) {
            let middle = y - LEGEND * 0.35;
            scene.line([(x, middle), (x + 26.0, middle)], style.stroke());
            style.mark(scene, (x + 13.0, middle));
            for line in lines {
                scene.text(line, (x + 34.0, y), LEGEND, Ink::Text, Anchor::Start);
                y += LEGEND_LINE;
            }
        }
    }
}

/// A point outside of the range.
struct Clipped {
    x: f64,
    above: bool,
    value: f64,
    ink: Ink,
}

/// An arrow at the edge for each point outside, and its number where no other number stands.
fn arrows(scene: &mut Scene, frame: &Frame, mut clipped: Vec<Clipped>, unit: Unit, taken: &mut Vec<[f64; 4]>) {
    clipped.sort_by(|a, b| a.x.total_cmp(&b.x));
    for Clipped { x, above, value, ink } in clipped {
        let (edge, down) = if above { (frame.top, 1.0) } else { (frame.bottom, -1.0) };
        scene.polygon([(x, edge), (x - 4.0, edge + 7.0 * down), (x + 4.0, edge + 7.0 * down)], ink, None);
        let text = unit.write(value);
        let wide = width(&text, SMALL);
        // Beside the arrow on the inner side of the frame, or below what stands there.
        let left = if x + 7.0 + wide > frame.right { x - 7.0 - wide } else { x + 7.0 };
        for row in 0..12 {
            let base = edge + down * (4.0 + 12.0 * f64::from(row)) + if above { 5.0 } else { 0.0 };
            if free(taken, [left - 2.0, base - SMALL, left + wide + 2.0, base + 2.0]) {
                scene.text(text, (left, base), SMALL, ink, Anchor::Start);
                break;
            }
        }
    }
}

/// Takes the rectangle `cover`, unless another one touches it.
fn free(taken: &mut Vec<[f64; 4]>, cover: [f64; 4]) -> bool {
    let free = taken.iter().all(|t| cover[2] < t[0] || cover[0] > t[2] || cover[3] < t[1] || cover[1] > t[3]);
    if free {
        taken.push(cover);
    }
    free
}

/// The part of a line between two heights.
fn clip(a: Point, b: Point, top: f64, bottom: f64) -> Option<[Point; 2]> {
    if !a.1.is_finite() || !b.1.is_finite() || a.1.max(b.1) < top || a.1.min(b.1) > bottom {
        return None;
    }
    let at = |y: f64| {
        let share = (y - a.1) / (b.1 - a.1);
        (a.0 + share * (b.0 - a.0), y)
    };
    let inside = |p: Point| {
        if p.1 < top {
            at(top)
        } else if p.1 > bottom {
            at(bottom)
        } else {
            p
        }
    };
    Some([inside(a), inside(b)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(series: Vec<Series>) -> Chart {
        let quantity = |label: &str, scale, unit| Quantity { label: label.into(), scale, unit };
        Chart {
            title: "Perplexity".into(),
            note: String::new(),
            x: quantity("budget", Scale::Log, Unit::Number),
            y: quantity("perplexity", Scale::Log, Unit::Number),
            x_ticks: vec![0.05, 0.1, 0.25, 0.5, 1.0],
            series,
            full: Some((None, Mark { x: 0.0, y: 4.0, interval: None, label: None })),
            floor: None,
            plain: false,
        }
    }

    fn series(label: &str, ys: &[f64]) -> Series {
        let xs = [0.05, 0.1, 0.25, 0.5, 1.0];
        let mark =
            |(x, y): (&f64, &f64)| Mark { x: *x, y: *y, interval: Some((y * 0.97, y * 1.02)), label: Some(*x) };
        Series { label: label.into(), marks: xs.iter().zip(ys).map(mark).collect() }
    }

    #[test]
    fn many_policies_and_a_bad_one_stay_legible() {
        let names = ["streaming", "h2o", "tova", "snapkv", "quest", "knorm", "duo", "razor", "oracle", "random"];
        let mut all: Vec<Series> = names.iter().map(|name| series(name, &[6.0, 5.5, 4.6, 4.2, 4.0])).collect();
        all.push(series("mpcache:similarity=cuboid-mean,topk=shuffle-reveal", &[5.9, 5.1, 4.4, 4.1, 4.0]));
        all.push(series("sirllm", &[900.0, 700.0, 90.0, 30.0, 4.0]));
        let scene = chart(all).draw().unwrap();
        scene.assert_legible();
        let texts: Vec<String> = scene.boxes().into_iter().map(|(text, _)| text).collect();
        for wanted in ["0.05", "0.1", "0.25", "0.5", "1", "4", "5", "6", "900", "700", "90", "30", "full"] {
            assert!(texts.iter().any(|text| text == wanted), "{wanted} in {texts:?}");
        }
    }

    #[test]
    fn nothing_is_drawn_of_nothing() {
        assert!(Chart { full: None, ..chart(Vec::new()) }.draw().is_none());
    }
}
