//! Stacked bars, with the legend outside, and the timeline of a session.

use super::axis::{Axis, Scale};
use super::chart::Unit;
use super::scene::{Anchor, Ink, Scene, Stroke};
use super::style::INKS;
use super::text::{lines, width};

const BAR: f64 = 24.0;
const GAP: f64 = 16.0;
const LENGTH: f64 = 470.0;
const TITLE: f64 = 15.0;
const TEXT: f64 = 11.5;
const NAMES: f64 = 240.0;

/// Bars before they are drawn.
#[derive(Clone, Debug)]
pub(super) struct Bars {
    pub(super) title: String,
    pub(super) note: String,
    /// What the length of a bar is, if bars are not all of the same length.
    pub(super) axis: Option<String>,
    pub(super) unit: Unit,
    /// The parts of every bar, in order.
    pub(super) parts: Vec<String>,
    /// Name and a value for each part. Without an axis every bar is its own whole, told at its end.
    pub(super) rows: Vec<(String, Vec<f64>)>,
}

impl Bars {
    /// The drawing; `None` where nothing has a length.
    pub(super) fn draw(&self) -> Option<Scene> {
        let totals: Vec<f64> = self.rows.iter().map(|(_, values)| values.iter().sum()).collect();
        let longest = totals.iter().copied().fold(0.0, f64::max);
        if longest <= 0.0 {
            return None;
        }
        let names: Vec<Vec<String>> = self.rows.iter().map(|(name, _)| lines(name, TEXT, 190.0)).collect();
        let left = 24.0 + names.iter().flatten().map(|line| width(line, TEXT)).fold(0.0, f64::max);
        let totals_width = totals.iter().map(|total| width(&self.unit.write(*total), TEXT)).fold(0.0, f64::max);
        let legend: Vec<Vec<String>> = self.parts.iter().map(|part| lines(part, TEXT, NAMES)).collect();
        let legend_width = legend.iter().flatten().map(|line| width(line, TEXT)).fold(0.0, f64::max);
        let (top, legend_left) = (64.0, left + LENGTH + totals_width + 32.0);
        let legend_height = legend.iter().map(|lines| lines.len() as f64 * 15.0 + 3.0).sum::<f64>();
        let heights: Vec<f64> = names.iter().map(|lines| BAR.max(lines.len() as f64 * 14.0) + GAP).collect();
        let bottom = top + heights.iter().sum::<f64>();
        let whole = (legend_left + 26.0 + legend_width + 12.0).max(24.0 + width(&self.title, TITLE));
        let whole = whole.max(24.0 + width(&self.note, TEXT));
        let below = if self.axis.is_some() { 46.0 } else { 6.0 };
        let mut scene = Scene::new(whole.ceil(), (bottom + below).max(top + legend_height + 8.0).ceil(), &self.title);
        scene.text(&self.title, (12.0, 24.0), TITLE, Ink::Text, Anchor::Start);
        scene.text(&self.note, (12.0, 42.0), TEXT, Ink::Muted, Anchor::Start);

        let axis = Axis { scale: Scale::Linear, low: 0.0, high: longest, from: left, to: left + LENGTH };
        if let Some(label) = &self.axis {
            ticks(&mut scene, &axis, self.unit, top - 6.0, bottom);
            let middle = left + LENGTH / 2.0;
            scene.text(label, (middle, bottom + 36.0), TEXT, Ink::Text, Anchor::Middle);
        }
        let mut y = top;
        for (((_, values), total), (name, height)) in self.rows.iter().zip(&totals).zip(names.iter().zip(&heights)) {
            let middle = y + BAR / 2.0;
            let mut base = middle + TEXT * 0.36 - (name.len() as f64 - 1.0) * 7.0;
            for line in name {
                scene.text(line, (left - 10.0, base), TEXT, Ink::Text, Anchor::End);
                base += 14.0;
            }
            let scale = if self.axis.is_some() { LENGTH / longest } else { LENGTH / total.max(f64::MIN_POSITIVE) };
            let mut x = left;
            for (i, value) in values.iter().enumerate() {
                let long = value * scale;
                part(&mut scene, i, (x, y), long);
                x += long;
            }
            scene.text(self.unit.write(*total), (x + 8.0, middle + TEXT * 0.36), TEXT, Ink::Text, Anchor::Start);
            y += height;
        }
        let mut y = top;
        for (i, lines) in legend.iter().enumerate() {
            part(&mut scene, i, (legend_left, y - 1.0), 19.0);
            for line in lines {
                scene.text(line, (legend_left + 26.0, y + 12.0), TEXT, Ink::Text, Anchor::Start);
                y += 15.0;
            }
            y += 3.0;
        }
        Some(scene)
    }
}

/// Part `i` of a bar: its colour, and its number where there is room, so that it is found in grey as well.
fn part(scene: &mut Scene, i: usize, (x, y): (f64, f64), long: f64) {
    if long <= 0.0 {
        return;
    }
    let edge = Stroke { ink: Ink::Paper, width: 1.0, dash: &[] };
    let high = if long == 19.0 { 15.0 } else { BAR };
    scene.rectangle((x, y), (long, high), INKS[i % INKS.len()], Some(edge));
    let number = (i + 1).to_string();
    if long >= width(&number, TEXT) + 5.0 {
        let at = (x + long / 2.0, y + high / 2.0 + TEXT * 0.36);
        scene.text(number, at, TEXT, Ink::Rgb(0xff, 0xff, 0xff), Anchor::Middle);
    }
}

/// Lines and numbers of an axis below.
fn ticks(scene: &mut Scene, axis: &Axis, unit: Unit, top: f64, bottom: f64) {
    let grid = Stroke { ink: Ink::Grid, width: 1.0, dash: &[] };
    for tick in axis.ticks(5) {
        let at = axis.at(tick);
        scene.line([(at, top), (at, bottom)], grid);
        scene.text(unit.write(tick), (at, bottom + 16.0), TEXT, Ink::Muted, Anchor::Middle);
    }
}

/// A part of a timeline.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) name: String,
    pub(super) seconds: f64,
    /// Spans of one kind have one colour.
    pub(super) kind: usize,
}

/// Spans one after another, and below them how long each kind took.
pub(super) fn timeline(title: &str, spans: &[Span]) -> Option<Scene> {
    let total: f64 = spans.iter().map(|span| span.seconds).sum();
    if total <= 0.0 {
        return None;
    }
    let mut kinds: Vec<(usize, &str, f64)> = Vec::new();
    for span in spans {
        match kinds.iter_mut().find(|(kind, ..)| *kind == span.kind) {
            Some((_, _, seconds)) => *seconds += span.seconds,
            None => kinds.push((span.kind, &span.name, span.seconds)),
        }
    }
    let (left, long, top) = (16.0, 860.0, 42.0);
    let mut scene = Scene::new(left + long + 34.0, top + 92.0, title);
    scene.text(title, (left, 24.0), TITLE, Ink::Text, Anchor::Start);
    let axis = Axis { scale: Scale::Linear, low: 0.0, high: total, from: left, to: left + long };
    let grid = Stroke { ink: Ink::Grid, width: 1.0, dash: &[] };
    for tick in axis.ticks(8) {
        let at = axis.at(tick);
        scene.line([(at, top + 30.0), (at, top + 36.0)], grid);
        let text = format!("{} s", Unit::Number.write(tick));
        scene.text(
            text,
            (at, top + 48.0),
            TEXT,
            Ink::Muted,
            if tick == 0.0 { Anchor::Start } else { Anchor::Middle },
        );
    }
    let edge = Stroke { ink: Ink::Paper, width: 0.6, dash: &[] };
    let mut x = left;
    for span in spans {
        let wide = span.seconds / total * long;
        let ink = INKS[span.kind % INKS.len()];
        scene.rectangle((x, top), (wide, 30.0), ink, (wide > 2.0).then_some(edge));
        x += wide;
    }
    let mut x = left;
    for (kind, name, seconds) in kinds {
        scene.rectangle((x, top + 67.0), (11.0, 11.0), INKS[kind % INKS.len()], None);
        let text = format!("{name} {seconds:.2} s");
        scene.text(&text, (x + 16.0, top + 77.0), TEXT, Ink::Text, Anchor::Start);
        x += 16.0 + width(&text, TEXT) + 22.0;
    }
    Some(scene)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bars(axis: Option<&str>) -> Bars {
        let rows = [("setup", [5.0, 0.0, 1.0]), ("decode", [0.01, 2.0, 7.5])];
        Bars {
            title: "Bytes".into(),
            note: "a model".into(),
            axis: axis.map(String::from),
            unit: Unit::Bytes,
            parts: ["softmax", "a very long name of an operation/which has several parts/and one more", "other"]
                .map(String::from)
                .to_vec(),
            rows: rows.map(|(name, values)| (name.to_owned(), values.to_vec())).to_vec(),
        }
    }

    #[test]
    fn bars_tell_their_parts_and_totals() {
        for axis in [None, Some("bytes")] {
            let scene = bars(axis).draw().unwrap();
            scene.assert_legible();
            let texts: Vec<String> = scene.boxes().into_iter().map(|(text, _)| text).collect();
            for wanted in ["setup", "decode", "6 B", "9.51 B", "1", "2", "3"] {
                assert!(texts.iter().any(|text| text == wanted), "{wanted} in {texts:?}");
            }
        }
        let empty = Bars { rows: vec![("setup".into(), vec![0.0; 3])], ..bars(None) };
        assert!(empty.draw().is_none());
    }

    #[test]
    fn a_timeline_tells_every_kind_however_short() {
        let span = |name: &str, seconds, kind| Span { name: name.into(), seconds, kind };
        let spans =
            [span("setup", 0.001, 8), span("preparation", 20.0, 0), span("tokens", 0.1, 2), span("tokens", 0.2, 2)];
        let scene = timeline("Timeline", &spans).unwrap();
        scene.assert_legible();
        let texts: Vec<String> = scene.boxes().into_iter().map(|(text, _)| text).collect();
        for wanted in ["setup 0.00 s", "preparation 20.00 s", "tokens 0.30 s", "0 s", "20 s"] {
            assert!(texts.iter().any(|text| text == wanted), "{wanted} in {texts:?}");
        }
        assert!(timeline("Timeline", &[span("setup", 0.0, 0)]).is_none());
    }
}
