//! Words: their widths, their outlines, and where they are broken.
//!
//! The font is a part of DejaVu Sans (`font/LICENSE`): Latin, Greek and some signs. Drawings look the same on
//! machines without fonts, and space is measured, not guessed.

use std::sync::LazyLock;

use ttf_parser::{Face, GlyphId, OutlineBuilder};

static FONT: &[u8] = include_bytes!("font/DejaVuSans.ttf");

/// The font as an embedded file can be read: a test opens it.
static FACE: LazyLock<Face<'static>> = LazyLock::new(|| Face::parse(FONT, 0).expect("the font in this program"));

/// The glyph of a character; a box stands for what the font lacks.
fn glyph(c: char) -> GlyphId {
    FACE.glyph_index(c).unwrap_or(GlyphId(0))
}

/// The width of `text` at `size` units.
pub(super) fn width(text: &str, size: f64) -> f64 {
    let advance: u64 = text.chars().map(|c| u64::from(FACE.glyph_hor_advance(glyph(c)).unwrap_or(0))).sum();
    advance as f64 * size / f64::from(FACE.units_per_em())
}

/// Draws the outlines of `text` from the origin to the right, y upwards.
pub(super) fn outline(text: &str, size: f64, pen: &mut dyn Pen) {
    let scale = size / f64::from(FACE.units_per_em());
    let mut x = 0.0;
    for c in text.chars() {
        let id = glyph(c);
        FACE.outline_glyph(id, &mut Placed { pen, x, scale, last: (0.0, 0.0) });
        x += f64::from(FACE.glyph_hor_advance(id).unwrap_or(0)) * scale;
    }
}

/// What outlines are drawn with.
pub(super) trait Pen {
    fn move_to(&mut self, x: f64, y: f64);
    fn line_to(&mut self, x: f64, y: f64);
    fn cubic_to(&mut self, x1: f64, y1: f64, x2: f64, y2: f64, x: f64, y: f64);
    fn close(&mut self);
}

/// A glyph of a line of text.
struct Placed<'a> {
    pen: &'a mut dyn Pen,
    x: f64,
    scale: f64,
    /// In units of the font.
    last: (f32, f32),
}

impl Placed<'_> {
    fn at(&self, (x, y): (f32, f32)) -> (f64, f64) {
        (self.x + f64::from(x) * self.scale, f64::from(y) * self.scale)
    }
}

impl OutlineBuilder for Placed<'_> {
    fn move_to(&mut self, x: f32, y: f32) {
        self.last = (x, y);
        let (x, y) = self.at(self.last);
        self.pen.move_to(x, y);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        self.last = (x, y);
        let (x, y) = self.at(self.last);
        self.pen.line_to(x, y);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        // A quadratic curve as a cubic one: its control points lie two thirds of the way to the only one.
        let towards = |(a, b): (f32, f32)| (a + (x1 - a) * 2.0 / 3.0, b + (y1 - b) * 2.0 / 3.0);
        let (first, second) = (towards(self.last), towards((x, y)));
        self.curve_to(first.0, first.1, second.0, second.1, x, y);
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        self.last = (x, y);
        let ((x1, y1), (x2, y2), (x, y)) = (self.at((x1, y1)), self.at((x2, y2)), self.at(self.last));
        self.pen.cubic_to(x1, y1, x2, y2, x, y);
    }

    fn close(&mut self) {
        self.pen.close();
    }
}

/// `text` in lines of at most `most` units. Breaks stand behind a sign or a space, or anywhere in longer words.
pub(super) fn lines(text: &str, size: f64, most: f64) -> Vec<String> {
    let mut lines = vec![String::new()];
    for part in text.split_inclusive([' ', ',', ':', ';', '/', '=']) {
        let line = lines.last_mut().expect("there is a line");
        if width(&format!("{line}{}", part.trim_end()), size) <= most {
            line.push_str(part);
            continue;
        }
        if !line.is_empty() {
            lines.push(String::new());
        }
        for c in part.chars() {
            let line = lines.last_mut().expect("there is a line");
            if !line.is_empty() && width(&format!("{line}{c}"), size) > most {
                lines.push(c.into());
            } else {
                line.push(c);
            }
        }
    }
    lines.iter_mut().for_each(|line| line.truncate(line.trim_end().len()));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_font_has_what_plots_write() {
        for c in "AZaz09.,:;±×≤≥→·…−–µαπ()|%/".chars() {
            assert!(FACE.glyph_index(c).is_some(), "{c}");
        }
        // As published: a digit of DejaVu Sans is 1303 of 2048 units wide.
        assert!((width("00", 2048.0) - 2606.0).abs() < 1e-9);
        assert!(width("漢", 10.0) > 0.0, "a box for what it lacks");
    }

    #[test]
    fn lines_are_no_wider_than_asked_for_and_lose_nothing() {
        let label = "mpcache:similarity=cuboid-mean,topk=shuffle-reveal,gather=scores";
        let broken = lines(label, 12.0, 150.0);
        assert!(broken.len() > 2 && broken.iter().all(|line| width(line, 12.0) <= 150.0), "{broken:?}");
        assert_eq!(broken.concat(), label);
        assert_eq!(lines("full", 12.0, 150.0), ["full"]);
        assert!(lines(&"x".repeat(200), 12.0, 50.0).len() > 10);
    }
}
