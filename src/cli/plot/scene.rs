//! A drawing as a list of shapes, which the backends write as SVG and PDF.

use super::text;

/// A point or a length: units of 1/96 inch from the upper left corner.
pub(super) type Point = (f64, f64);

/// A colour by its part in the drawing: pages of HTML have their own colours for all but the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ink {
    /// Words and axes.
    Text,
    /// Words and lines of less weight.
    Muted,
    /// The lines behind the data.
    Grid,
    /// What the drawing lies on.
    Paper,
    /// Data.
    Rgb(u8, u8, u8),
}

/// Where a text lies beside its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// How a line is drawn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stroke {
    pub(super) ink: Ink,
    pub(super) width: f64,
    /// Lengths of dashes and gaps; empty for a whole line.
    pub(super) dash: &'static [f64],
}

/// A word or a line of words.
#[derive(Clone, Debug)]
pub(super) struct Words {
    pub(super) text: String,
    /// On the baseline.
    pub(super) at: Point,
    pub(super) size: f64,
    pub(super) ink: Ink,
    pub(super) anchor: Anchor,
    /// Written from below to above.
    pub(super) upright: bool,
}

/// A part of a drawing.
#[derive(Clone, Debug)]
pub(super) enum Shape {
    Line { points: Vec<Point>, stroke: Stroke },
    Polygon { points: Vec<Point>, fill: Ink, edge: Option<Stroke> },
    Circle { centre: Point, radius: f64, fill: Ink, edge: Option<Stroke> },
    Text(Words),
}

/// A drawing; later shapes lie on top.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    pub(super) width: f64,
    pub(super) height: f64,
    /// What it shows, for readers who do not see it.
    pub(super) title: String,
    pub(super) shapes: Vec<Shape>,
}

impl Scene {
    pub(super) fn new(width: f64, height: f64, title: &str) -> Self {
        Scene { width, height, title: title.to_owned(), shapes: Vec::new() }
    }

    pub(super) fn line(&mut self, points: impl IntoIterator<Item = Point>, stroke: Stroke) {
        self.shapes.push(Shape::Line { points: points.into_iter().collect(), stroke });
    }

    pub(super) fn polygon(&mut self, points: impl IntoIterator<Item = Point>, fill: Ink, edge: Option<Stroke>) {
        self.shapes.push(Shape::Polygon { points: points.into_iter().collect(), fill, edge });
    }

    /// A rectangle from its upper left corner.
    pub(super) fn rectangle(&mut self, (x, y): Point, (w, h): Point, fill: Ink, edge: Option<Stroke>) {
        self.polygon([(x, y), (x + w, y), (x + w, y + h), (x, y + h)], fill, edge);
    }

    pub(super) fn circle(&mut self, centre: Point, radius: f64, fill: Ink, edge: Option<Stroke>) {
        self.shapes.push(Shape::Circle { centre, radius, fill, edge });
    }

    pub(super) fn text(&mut self, text: impl Into<String>, at: Point, size: f64, ink: Ink, anchor: Anchor) {
        self.shapes.push(Shape::Text(Words { text: text.into(), at, size, ink, anchor, upright: false }));
    }

    /// A text from below to above, its middle at `at`.
    pub(super) fn upright(&mut self, text: impl Into<String>, at: Point, size: f64, ink: Ink) {
        let anchor = Anchor::Middle;
        self.shapes.push(Shape::Text(Words { text: text.into(), at, size, ink, anchor, upright: true }));
    }

    /// No two texts cover each other, and all lie inside.
    #[cfg(test)]
    pub(super) fn assert_legible(&self) {
        let boxes: Vec<_> = self.boxes().into_iter().filter(|(text, _)| !text.is_empty()).collect();
        for (i, (text, a)) in boxes.iter().enumerate() {
            assert!(a[0] >= 0.0 && a[1] >= 0.0 && a[2] <= self.width && a[3] <= self.height, "{text} at {a:?}");
            for (other, b) in &boxes[..i] {
                let apart = a[2] <= b[0] || b[2] <= a[0] || a[3] <= b[1] || b[3] <= a[1];
                assert!(apart, "`{text}` at {a:?} covers `{other}` at {b:?}");
            }
        }
    }

    /// The texts and the rectangles that they cover: left, top, right, bottom.
    #[cfg(test)]
    pub(super) fn boxes(&self) -> Vec<(String, [f64; 4])> {
        let texts = self.shapes.iter().filter_map(|shape| match shape {
            Shape::Text(words) => Some(words),
            _ => None,
        });
        texts.map(|words| (words.text.clone(), words.covers())).collect()
    }
}

impl Words {
    /// How far the anchor moves the text to the left.
    pub(super) fn shift(&self) -> f64 {
        let width = text::width(&self.text, self.size);
        match self.anchor {
            Anchor::Start => 0.0,
            Anchor::Middle => width / 2.0,
            Anchor::End => width,
        }
    }

    #[cfg(test)]
    fn covers(&self) -> [f64; 4] {
        let (width, (x, y)) = (text::width(&self.text, self.size), self.at);
        let (up, down, shift) = (self.size * 0.76, self.size * 0.2, self.shift());
        if self.upright {
            [x - up, y - width + shift, x + down, y + shift]
        } else {
            [x - shift, y - up, x - shift + width, y + down]
        }
    }
}
