//! Drawings as PDF: vectors, with the outlines of the words, so that no reader needs a font.

use pdf_writer::types::LineJoinStyle;
use pdf_writer::{Content, Finish, Name, Pdf, Rect, Ref, TextStr};

use super::scene::{Ink, Point, Scene, Shape, Stroke, Words};
use super::text::{Pen, outline};

/// Points of PDF in a unit of a drawing.
const POINTS: f32 = 72.0 / 96.0;

/// How far the ends of a quarter of a circle reach towards their corner.
const QUARTER: f64 = 0.552_284_749_8;

/// `scene` as a file of one page.
pub(crate) fn pdf(scene: &Scene) -> Vec<u8> {
    let [catalog, pages, page, content, info] = [1, 2, 3, 4, 5].map(Ref::new);
    let mut pdf = Pdf::new();
    pdf.catalog(catalog).pages(pages);
    pdf.document_info(info).title(TextStr(&scene.title));
    pdf.pages(pages).kids([page]).count(1);
    let mut one = pdf.page(page);
    let (width, height) = (scene.width as f32 * POINTS, scene.height as f32 * POINTS);
    one.media_box(Rect::new(0.0, 0.0, width, height)).parent(pages).contents(content);
    one.resources();
    one.finish();
    let mut out = Content::new();
    out.set_fill_color_space(Name(b"DeviceRGB"));
    // Drawings count downwards.
    out.transform([POINTS, 0.0, 0.0, -POINTS, 0.0, height]);
    out.set_line_join(LineJoinStyle::RoundJoin);
    for shape in &scene.shapes {
        draw(&mut out, shape);
    }
    pdf.stream(content, &out.finish());
    pdf.finish()
}

fn draw(out: &mut Content, shape: &Shape) {
    match shape {
        Shape::Line { points, stroke } => {
            path(out, points);
            pen(out, stroke);
            out.stroke();
        }
        Shape::Polygon { points, fill, edge } => {
            path(out, points);
            out.close_path();
            paint(out, *fill, edge.as_ref());
        }
        Shape::Circle { centre: (x, y), radius: r, fill, edge } => {
            let at = |(dx, dy): Point| ((x + dx * r) as f32, (y + dy * r) as f32);
            let (start_x, start_y) = at((1.0, 0.0));
            out.move_to(start_x, start_y);
            let corners = [(1.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (0.0, -1.0), (1.0, 0.0)];
            for ends in corners.windows(2) {
                let (a, b) = (ends[0], ends[1]);
                let (x1, y1) = at((a.0 + QUARTER * b.0, a.1 + QUARTER * b.1));
                let (x2, y2) = at((b.0 + QUARTER * a.0, b.1 + QUARTER * a.1));
                let (x3, y3) = at(b);
                out.cubic_to(x1, y1, x2, y2, x3, y3);
            }
            out.close_path();
            paint(out, *fill, edge.as_ref());
        }
        Shape::Text(words) => text(out, words),
    }
}

fn text(out: &mut Content, words: &Words) {
    let (x, y) = (words.at.0 as f32, words.at.1 as f32);
    out.save_state();
    // Outlines count upwards.
    out.transform(if words.upright { [0.0, -1.0, -1.0, 0.0, x, y] } else { [1.0, 0.0, 0.0, -1.0, x, y] });
    let [r, g, b] = rgb(words.ink);
    out.set_fill_rgb(r, g, b);
    outline(&words.text, words.size, &mut Outlines { out, shift: words.shift() });
    out.fill_nonzero();
    out.restore_state();
}

struct Outlines<'a> {
    out: &'a mut Content,
    shift: f64,
}

impl Pen for Outlines<'_> {
    fn move_to(&mut self, x: f64, y: f64) {
        self.out.move_to((x - self.shift) as f32, y as f32);
    }

    fn line_to(&mut self, x: f64, y: f64) {
        self.out.line_to((x - self.shift) as f32, y as f32);
    }

    fn cubic_to(&mut self, x1: f64, y1: f64, x2: f64, y2: f64, x: f64, y: f64) {
        let [x1, x2, x] = [x1, x2, x].map(|x| (x - self.shift) as f32);
        self.out.cubic_to(x1, y1 as f32, x2, y2 as f32, x, y as f32);
    }

    fn close(&mut self) {
        self.out.close_path();
    }
}

fn path(out: &mut Content, points: &[Point]) {
    for (i, (x, y)) in points.iter().enumerate() {
        let (x, y) = (*x as f32, *y as f32);
        if i == 0 {
            out.move_to(x, y)
        } else {
            out.line_to(x, y)
        };
    }
}

fn paint(out: &mut Content, fill: Ink, edge: Option<&Stroke>) {
    let [r, g, b] = rgb(fill);
    out.set_fill_rgb(r, g, b);
    match edge {
        Some(edge) => {
            pen(out, edge);
            out.fill_nonzero_and_stroke();
        }
        None => {
            out.fill_nonzero();
        }
    }
}

fn pen(out: &mut Content, Stroke { ink, width, dash }: &Stroke) {
    let [r, g, b] = rgb(*ink);
    out.set_stroke_rgb(r, g, b).set_line_width(*width as f32);
    out.set_dash_pattern(dash.iter().map(|length| *length as f32), 0.0);
}

fn rgb(ink: Ink) -> [f32; 3] {
    let (r, g, b) = match ink {
        Ink::Text => (0, 0, 0),
        Ink::Muted => (0x55, 0x55, 0x55),
        Ink::Grid => (0xdd, 0xdd, 0xdd),
        Ink::Paper => (0xff, 0xff, 0xff),
        Ink::Rgb(r, g, b) => (r, g, b),
    };
    [r, g, b].map(|part: u8| f32::from(part) / 255.0)
}
