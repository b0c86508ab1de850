//! Plots as PDF: vectors, with the outlines of the words, so that no reader needs a font.

use std::sync::LazyLock;

use pdf_writer::{Content, Finish, Name, Pdf, Rect, Ref, TextStr};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters_backend::BackendCoord;
use ttf_parser::{Face, GlyphId, OutlineBuilder};

/// A part of DejaVu Sans (`font/LICENSE`): Latin, Greek and some signs.
static FONT: &[u8] = include_bytes!("font/DejaVuSans.ttf");

/// The font as an embedded file can be read: a test opens it.
static FACE: LazyLock<Face<'static>> = LazyLock::new(|| Face::parse(FONT, 0).expect("the font in this program"));

/// Points of PDF in a pixel of a drawing.
const POINTS: f32 = 72.0 / 96.0;

/// The part of the radius that the ends of a quarter of a circle reach towards their corner.
const QUARTER: f32 = 0.552_284_8;

type Rgb = (u8, u8, u8);

/// The glyph of a character, or a box, and its width in units of the font.
fn glyph(c: char) -> (GlyphId, f32) {
    let id = FACE.glyph_index(c).unwrap_or(GlyphId(0));
    (id, f32::from(FACE.glyph_hor_advance(id).unwrap_or(0)))
}

pub(super) fn width(text: &str, size: f64) -> f64 {
    let advance: f32 = text.chars().map(|c| glyph(c).1).sum();
    f64::from(advance) * size / f64::from(FACE.units_per_em())
}

/// A page that is drawn on.
pub(super) struct Page {
    out: Content,
    size: (f32, f32),
    /// Texts and the rectangles that they cover: left, top, right, bottom.
    #[cfg(test)]
    pub(super) texts: Vec<(String, [f32; 4])>,
}

impl Page {
    pub(super) fn new((wide, high): (u32, u32)) -> Self {
        let (mut out, size) = (Content::new(), (wide as f32 * POINTS, high as f32 * POINTS));
        out.set_fill_color_space(Name(b"DeviceRGB"));
        // Drawings count downwards.
        out.transform([POINTS, 0.0, 0.0, -POINTS, 0.0, size.1]);
        Page {
            out,
            size,
            #[cfg(test)]
            texts: Vec::new(),
        }
    }

    /// A line of the width `stroke`, or what it goes around, filled.
    pub(super) fn path(&mut self, points: impl IntoIterator<Item = BackendCoord>, ink: Rgb, stroke: Option<u32>) {
        for (i, (x, y)) in points.into_iter().enumerate() {
            let (x, y) = (x as f32, y as f32);
            if i == 0 {
                self.out.move_to(x, y)
            } else {
                self.out.line_to(x, y)
            };
        }
        self.paint(ink, stroke);
    }

    pub(super) fn circle(&mut self, (x, y): BackendCoord, radius: u32, ink: Rgb, stroke: Option<u32>) {
        let (x, y, r) = (x as f32, y as f32, radius as f32);
        self.out.move_to(x + r, y);
        for [(ax, ay), (bx, by)] in [
            [(1.0, 0.0), (0.0, 1.0)],
            [(0.0, 1.0), (-1.0, 0.0)],
            [(-1.0, 0.0), (0.0, -1.0)],
            [(0.0, -1.0), (1.0, 0.0)],
        ] {
            let (a, b) = ((ax + QUARTER * bx, ay + QUARTER * by), (bx + QUARTER * ax, by + QUARTER * ay));
            self.out.cubic_to(x + a.0 * r, y + a.1 * r, x + b.0 * r, y + b.1 * r, x + bx * r, y + by * r);
        }
        self.paint(ink, stroke);
    }

    /// Strokes the path with a line of this width, or fills it.
    fn paint(&mut self, ink: Rgb, stroke: Option<u32>) {
        let [r, g, b] = [ink.0, ink.1, ink.2].map(|part| f32::from(part) / 255.0);
        match stroke {
            Some(wide) => self.out.set_stroke_rgb(r, g, b).set_line_width(wide as f32).stroke(),
            None => self.out.set_fill_rgb(r, g, b).fill_nonzero(),
        };
    }

    /// Words beside `(x, y)`, from below to above where they are `upright`.
    pub(super) fn text(&mut self, text: &str, (x, y): BackendCoord, size: f64, ink: Rgb, at: Pos, upright: bool) {
        let before = match at.h_pos {
            HPos::Left => 0.0,
            HPos::Center => 0.5,
            HPos::Right => 1.0,
        };
        // As the SVG has it.
        let below = match at.v_pos {
            VPos::Top => 0.76,
            VPos::Center => 0.27,
            VPos::Bottom => -0.27,
        };
        let (x, y, shift, drop) = (x as f32, y as f32, width(text, size) as f32 * before, size as f32 * below);
        #[cfg(test)]
        if !text.is_empty() {
            let (up, down, wide) = (drop - size as f32 * 0.76, drop + size as f32 * 0.2, width(text, size) as f32);
            let (left, right) = (x - shift, x - shift + wide);
            let flat = [left, y + up, right, y + down];
            let turned = [x + up, y + shift - wide, x + down, y + shift];
            self.texts.push((text.to_owned(), if upright { turned } else { flat }));
        }
        let scale = size as f32 / f32::from(FACE.units_per_em());
        self.out.save_state();
        // Outlines count upwards.
        self.out.transform(if upright {
            [0.0, -scale, -scale, 0.0, x + drop, y + shift]
        } else {
            [scale, 0.0, 0.0, -scale, x - shift, y + drop]
        });
        let mut pen = Outlines { out: &mut self.out, x: 0.0, last: (0.0, 0.0) };
        for (id, wide) in text.chars().map(glyph) {
            FACE.outline_glyph(id, &mut pen);
            pen.x += wide;
        }
        self.paint(ink, None);
        self.out.restore_state();
    }

    /// The page as a file.
    pub(super) fn finish(self, title: &str) -> Vec<u8> {
        let [catalog, pages, page, content, info] = [1, 2, 3, 4, 5].map(Ref::new);
        let mut pdf = Pdf::new();
        pdf.catalog(catalog).pages(pages);
        pdf.document_info(info).title(TextStr(title));
        pdf.pages(pages).kids([page]).count(1);
        let mut one = pdf.page(page);
        one.media_box(Rect::new(0.0, 0.0, self.size.0, self.size.1)).parent(pages).contents(content);
        one.resources();
        one.finish();
        pdf.stream(content, &self.out.finish());
        pdf.finish()
    }
}

/// A line of words, each glyph `x` to the right.
struct Outlines<'a> {
    out: &'a mut Content,
    x: f32,
    last: (f32, f32),
}

impl OutlineBuilder for Outlines<'_> {
    fn move_to(&mut self, x: f32, y: f32) {
        self.last = (x, y);
        self.out.move_to(self.x + x, y);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        self.last = (x, y);
        self.out.line_to(self.x + x, y);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        // A quadratic curve as a cubic one: its control points lie two thirds of the way to the only one.
        let towards = |(a, b): (f32, f32)| (a + (x1 - a) * 2.0 / 3.0, b + (y1 - b) * 2.0 / 3.0);
        let (first, second) = (towards(self.last), towards((x, y)));
        self.curve_to(first.0, first.1, second.0, second.1, x, y);
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        self.last = (x, y);
        self.out.cubic_to(self.x + x1, y1, self.x + x2, y2, self.x + x, y);
    }

    fn close(&mut self) {
        self.out.close_path();
    }
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
}
