//! Plots as PDF: vectors and words, with the font of the words, so that no reader needs one.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use pdf_writer::types::{CidFontType, FontFlags, SystemInfo, UnicodeCmap};
use pdf_writer::{Content, Finish, Name, Pdf, Rect, Ref, Str, TextStr};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters_backend::BackendCoord;
use ttf_parser::{Face, GlyphId};

/// A part of DejaVu Sans (`font/LICENSE`): Latin, Greek and some signs.
static FONT: &[u8] = include_bytes!("font/DejaVuSans.ttf");

/// The font as an embedded file can be read: a test opens it.
static FACE: LazyLock<Face<'static>> = LazyLock::new(|| Face::parse(FONT, 0).expect("the font in this program"));

/// Points of PDF in a pixel of a drawing.
const POINTS: f32 = 72.0 / 96.0;

/// The part of the radius that the ends of a quarter of a circle reach towards their corner.
const QUARTER: f32 = 0.552_284_8;

type Rgb = (u8, u8, u8);

/// The font in the resources of a page.
const LETTERS: Name = Name(b"F");

fn parts(ink: Rgb) -> [f32; 3] {
    [ink.0, ink.1, ink.2].map(|part| f32::from(part) / 255.0)
}

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
    /// The glyphs that are written, and their characters.
    letters: BTreeMap<u16, char>,
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
            letters: BTreeMap::new(),
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
        let [r, g, b] = parts(ink);
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
        let [r, g, b] = parts(ink);
        let glyphs: Vec<u8> = text.chars().flat_map(|c| glyph(c).0.0.to_be_bytes()).collect();
        self.letters.extend(text.chars().map(|c| (glyph(c).0.0, c)));
        self.out.begin_text().set_fill_rgb(r, g, b).set_font(LETTERS, size as f32);
        // Glyphs count upwards.
        self.out.set_text_matrix(if upright {
            [0.0, -1.0, -1.0, 0.0, x + drop, y + shift]
        } else {
            [1.0, 0.0, 0.0, -1.0, x - shift, y + drop]
        });
        self.out.show(Str(&glyphs)).end_text();
    }

    /// The page as a file.
    pub(super) fn finish(self, title: &str) -> Vec<u8> {
        let [catalog, pages, page, content, info] = [1, 2, 3, 4, 5].map(Ref::new);
        let font = [6, 7, 8, 9, 10].map(Ref::new);
        let mut pdf = Pdf::new();
        pdf.catalog(catalog).pages(pages);
        pdf.document_info(info).title(TextStr(title));
        pdf.pages(pages).kids([page]).count(1);
        let mut one = pdf.page(page);
        one.media_box(Rect::new(0.0, 0.0, self.size.0, self.size.1)).parent(pages).contents(content);
        one.resources().fonts().pair(LETTERS, font[0]);
        one.finish();
        embed(&mut pdf, font, &self.letters);
        pdf.stream(content, &self.out.finish());
        pdf.finish()
    }
}

/// Embeds the font, with the characters of `letters` for readers that search or copy.
fn embed(pdf: &mut Pdf, [font, cid, descriptor, file, unicode]: [Ref; 5], letters: &BTreeMap<u16, char>) {
    let name = Name(b"DejaVuSans");
    let system = SystemInfo { registry: Str(b"Adobe"), ordering: Str(b"Identity"), supplement: 0 };
    let em = |units: i16| f32::from(units) * 1000.0 / f32::from(FACE.units_per_em());
    let mut whole = pdf.type0_font(font);
    whole.base_font(name).encoding_predefined(Name(b"Identity-H")).descendant_font(cid).to_unicode(unicode);
    whole.finish();
    let mut part = pdf.cid_font(cid);
    part.subtype(CidFontType::Type2).base_font(name).system_info(system).font_descriptor(descriptor);
    part.cid_to_gid_map_predefined(Name(b"Identity"));
    let advance = |id: u16| f32::from(FACE.glyph_hor_advance(GlyphId(id)).unwrap_or(0));
    let mut widths = part.widths();
    for &id in letters.keys() {
        widths.consecutive(id, [advance(id) * 1000.0 / f32::from(FACE.units_per_em())]);
    }
    widths.finish();
    part.finish();
    let bounds = FACE.global_bounding_box();
    let bounds = [bounds.x_min, bounds.y_min, bounds.x_max, bounds.y_max].map(em);
    let mut about = pdf.font_descriptor(descriptor);
    about.name(name).flags(FontFlags::SYMBOLIC).italic_angle(0.0).stem_v(80.0).font_file2(file);
    about.bbox(Rect::new(bounds[0], bounds[1], bounds[2], bounds[3]));
    about.ascent(em(FACE.ascender())).descent(em(FACE.descender())).cap_height(729.0);
    about.finish();
    pdf.stream(file, FONT).pair(Name(b"Length1"), FONT.len() as i32);
    let mut cmap = UnicodeCmap::new(Name(b"Letters"), system);
    letters.iter().for_each(|(&id, &c)| cmap.pair(id, c));
    pdf.cmap(unicode, &cmap.finish());
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
