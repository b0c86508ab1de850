//! Canvases of plots: plotters' SVG, and the same as PDF.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io;
use std::str::FromStr;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters_backend::{BackendCoord, BackendStyle, BackendTextStyle, DrawingErrorKind};

use super::pdf::{self, Page};

pub(super) type Area<'a> = DrawingArea<Canvas<'a>, Shift>;
pub(crate) type DrawError = DrawingAreaErrorKind<io::Error>;
pub(super) type Point = (i32, i32);

// The style sheet of pages of HTML gives these other colours.
pub(super) const TEXT: RGBColor = RGBColor(0, 0, 0);
pub(super) const MUTED: RGBColor = RGBColor(0x55, 0x55, 0x55);
pub(super) const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);
pub(super) const PAPER: RGBColor = RGBColor(0xff, 0xff, 0xff);
/// Words on a dark ground.
pub(super) const LIGHT: RGBColor = RGBColor(0xfe, 0xfe, 0xfe);

const FONT: &str = "DejaVu Sans, Verdana, Helvetica, Arial, sans-serif";
/// Sizes in an SVG of plotters are smaller by this factor.
const SHRINK: f64 = 1.24;
pub(super) const SIZE: i32 = 11;
const TITLE: i32 = 15;
pub(super) const LINE: i32 = 15;
/// Where the picture begins below the title and the note.
const TOP: i32 = 56;
/// The least air at the sides.
pub(super) const EDGE: i32 = 14;

/// The width of a figure in a paper of two columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::cli) enum Width {
    /// 240 pt.
    Column,
    /// 504 pt.
    Page,
}

/// The ends that an axis is given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::cli) struct Limits {
    pub(super) low: f64,
    pub(super) high: f64,
}

/// A quantity that a horizontal axis can have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) enum X {
    /// Tokens of the prompt or of the pass.
    Length,
    /// Cores of the party that has fewer.
    Cores,
    /// The rate of the link.
    Links,
    /// An option of the policies, such as `alpha` or `budget`.
    Option(String),
}

impl FromStr for X {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            "length" => X::Length,
            "cores" => X::Cores,
            "links" => X::Links,
            option => X::Option(option.to_owned()),
        })
    }
}

impl X {
    pub(super) fn label(&self) -> &str {
        match self {
            X::Length => "cached tokens",
            X::Cores => "cores of a party",
            X::Links => "rate of the link in Mbit/s",
            X::Option(key) => key,
        }
    }
}

/// The form of pictures.
#[derive(Clone, Debug, Default)]
pub(in crate::cli) struct Sheet {
    /// Names and the texts that stand for them.
    pub(super) labels: BTreeMap<String, String>,
    /// All names that were drawn.
    pub(super) seen: RefCell<BTreeSet<String>>,
    /// Of the horizontal and of the vertical axis of charts.
    pub(super) limits: [Option<Limits>; 2],
    pub(super) width: Option<Width>,
    pub(super) no_title: bool,
    /// What lies along the horizontal axis of charts, in place of what usually does.
    pub(super) x: Option<X>,
}

impl Sheet {
    /// The usual form, with `x` along the horizontal axes.
    pub(in crate::cli) fn against(x: Option<X>) -> Self {
        Sheet { x, ..Sheet::default() }
    }

    /// The text for `name`.
    pub(super) fn label(&self, name: &str) -> String {
        self.seen.borrow_mut().insert(name.to_owned());
        self.labels.get(name).map_or(name, String::as_str).to_owned()
    }

    /// The width in pixels, of which four are three points.
    pub(super) fn wide(&self) -> Option<i32> {
        self.width.map(|width| if width == Width::Column { 320 } else { 672 })
    }

    /// A figure of a paper has its title in its caption.
    pub(super) fn titled(&self) -> bool {
        !self.no_title && self.width.is_none()
    }

    /// Where the picture begins.
    pub(super) fn top(&self) -> i32 {
        if self.titled() { TOP } else { EDGE }
    }
}

/// A picture that can be drawn; nothing, if there is nothing to see.
pub(super) trait Picture {
    fn draw(&self, sheet: &Sheet) -> Result<Option<Drawing>, DrawError>;
}

impl<P: Picture> Picture for Option<P> {
    fn draw(&self, sheet: &Sheet) -> Result<Option<Drawing>, DrawError> {
        self.as_ref().map_or(Ok(None), |picture| picture.draw(sheet))
    }
}

/// A drawing in both of its forms.
pub(crate) struct Drawing {
    pub(crate) svg: String,
    pub(super) pdf: Vec<u8>,
    /// Whether it has two axes of numbers, which can have limits.
    pub(super) axes: bool,
    #[cfg(test)]
    size: (u32, u32),
    #[cfg(test)]
    texts: Vec<(String, [f32; 4])>,
}

/// A drawing of at least `size` with a title and a note below it, if `sheet` has them, and what `draw` adds.
pub(super) fn picture(
    sheet: &Sheet,
    (wide, high): Point,
    (title, note): (&str, &str),
    draw: impl FnOnce(&Area) -> Result<(), DrawError>,
) -> Result<Option<Drawing>, DrawError> {
    let (heading, note) = if sheet.titled() { (title, note) } else { ("", "") };
    let wide = wide.max(EDGE * 2 + width(heading, TITLE).max(width(note, SIZE)));
    let size = (wide as u32, high as u32);
    let (mut svg, mut page) = (String::new(), Page::new(size));
    let area = Canvas { svg: SVGBackend::with_string(&mut svg, size), page: &mut page }.into_drawing_area();
    area.fill(&PAPER)?;
    words(&area, heading, (EDGE, 19), TITLE, TEXT, HPos::Left)?;
    words(&area, note, (EDGE, 38), SIZE, MUTED, HPos::Left)?;
    draw(&area)?;
    area.present()?;
    drop(area);
    Ok(Some(Drawing {
        svg,
        #[cfg(test)]
        size,
        #[cfg(test)]
        texts: std::mem::take(&mut page.texts),
        pdf: page.finish(title),
        axes: false,
    }))
}

pub(super) fn font(size: i32, ink: RGBColor) -> TextStyle<'static> {
    (FONT, f64::from(size) * SHRINK).into_font().color(&ink)
}

/// Writes `text`; `at` is in the middle of its height.
pub(super) fn words(
    area: &Area,
    text: &str,
    at: Point,
    size: i32,
    ink: RGBColor,
    anchor: HPos,
) -> Result<(), DrawError> {
    area.draw_text(text, &font(size, ink).pos(Pos::new(anchor, VPos::Center)), at)
}

pub(super) fn line(area: &Area, points: &[Point], ink: RGBColor) -> Result<(), DrawError> {
    area.draw(&PathElement::new(points.to_vec(), ink))
}

/// A filled rectangle with a thin edge of paper.
pub(super) fn block(area: &Area, (x, y): Point, (wide, high): Point, ink: RGBColor) -> Result<(), DrawError> {
    let corners = [(x, y), (x + wide, y + high)];
    area.draw(&Rectangle::new(corners, ink.filled()))?;
    area.draw(&Rectangle::new(corners, PAPER))
}

pub(super) fn width(text: &str, size: i32) -> i32 {
    pdf::width(text, size.into()).ceil() as i32
}

pub(super) fn widest<'a>(texts: impl IntoIterator<Item = &'a String>) -> i32 {
    texts.into_iter().map(|text| width(text, SIZE)).max().unwrap_or(0)
}

/// `text` in lines of at most `most` characters, broken behind a sign or a space where there is one.
pub(super) fn lines(text: &str, most: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let count = |text: &str| text.chars().count();
    for part in text.split_inclusive([' ', ',', ':', ';', '/', '=']) {
        for (i, piece) in part.chars().collect::<Vec<_>>().chunks(most).enumerate() {
            let piece: String = piece.iter().collect();
            match lines.last_mut() {
                Some(line) if i == 0 && count(line) + count(piece.trim_end()) <= most => line.push_str(&piece),
                _ => lines.push(piece),
            }
        }
    }
    lines
}

/// An SVG and a page of PDF that are drawn at once.
pub(super) struct Canvas<'a> {
    svg: SVGBackend<'a>,
    page: &'a mut Page,
}

type Drawn = Result<(), DrawingErrorKind<io::Error>>;

/// Whether anything of a style is seen; plotters asks for invisible lines.
fn seen(style: &impl BackendStyle) -> bool {
    style.color().alpha > 0.0
}

impl DrawingBackend for Canvas<'_> {
    type ErrorType = io::Error;

    fn get_size(&self) -> (u32, u32) {
        self.svg.get_size()
    }

    fn ensure_prepared(&mut self) -> Drawn {
        self.svg.ensure_prepared()
    }

    fn present(&mut self) -> Drawn {
        self.svg.present()
    }

    fn draw_pixel(&mut self, (x, y): BackendCoord, colour: plotters_backend::BackendColor) -> Drawn {
        self.draw_rect((x, y), (x + 1, y + 1), &colour, true)
    }

    fn draw_line<S: BackendStyle>(&mut self, from: BackendCoord, to: BackendCoord, style: &S) -> Drawn {
        self.draw_path([from, to], style)
    }

    fn draw_rect<S: BackendStyle>(&mut self, a: BackendCoord, b: BackendCoord, style: &S, fill: bool) -> Drawn {
        let round = [a, (b.0, a.1), b, (a.0, b.1), a];
        self.page.path(round, style.color().rgb, (!fill).then(|| style.stroke_width()));
        self.svg.draw_rect(a, b, style, fill)
    }

    fn draw_path<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(&mut self, path: I, style: &S) -> Drawn {
        if !seen(style) {
            return Ok(());
        }
        let path: Vec<_> = path.into_iter().collect();
        self.page.path(path.iter().copied(), style.color().rgb, Some(style.stroke_width()));
        self.svg.draw_path(path, style)
    }

    fn draw_circle<S: BackendStyle>(&mut self, centre: BackendCoord, radius: u32, style: &S, fill: bool) -> Drawn {
        self.page.circle(centre, radius, style.color().rgb, (!fill).then(|| style.stroke_width()));
        self.svg.draw_circle(centre, radius, style, fill)
    }

    fn fill_polygon<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(&mut self, path: I, style: &S) -> Drawn {
        let path: Vec<_> = path.into_iter().collect();
        self.page.path(path.iter().copied(), style.color().rgb, None);
        self.svg.fill_polygon(path, style)
    }

    /// Control characters, which XML does not have, are left out.
    fn draw_text<S: BackendTextStyle>(&mut self, text: &str, style: &S, at: BackendCoord) -> Drawn {
        let text: String = text.chars().filter(|c| !c.is_control()).collect();
        let upright = matches!(style.transform(), FontTransform::Rotate270);
        self.page.text(&text, at, style.size() / SHRINK, style.color().rgb, style.anchor(), upright);
        self.svg.draw_text(&text, style, at)
    }

    fn estimate_text_size<S: BackendTextStyle>(
        &self,
        text: &str,
        style: &S,
    ) -> Result<(u32, u32), DrawingErrorKind<io::Error>> {
        let size = style.size() / SHRINK;
        Ok((pdf::width(text, size).ceil() as u32, size as u32))
    }
}

#[cfg(test)]
impl Drawing {
    /// No two texts cover each other, and all lie inside; returns them.
    pub(super) fn assert_legible(&self) -> Vec<&str> {
        for (i, (text, a)) in self.texts.iter().enumerate() {
            let (wide, high) = (self.size.0 as f32, self.size.1 as f32);
            assert!(a[0] >= 0.0 && a[1] >= 0.0 && a[2] <= wide && a[3] <= high, "{text} at {a:?}");
            for (other, b) in &self.texts[..i] {
                let apart = a[2] <= b[0] || b[2] <= a[0] || a[3] <= b[1] || b[3] <= a[1];
                assert!(apart, "`{text}` at {a:?} covers `{other}` at {b:?}");
            }
        }
        self.texts.iter().map(|(text, _)| text.as_str()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_stay_text() {
        let drawn =
            picture(&Sheet::default(), (10, 10), ("<script>", "a<b & \"c\"\u{7}"), |_| Ok(())).unwrap().unwrap();
        assert!(
            drawn.svg.contains("a&lt;b &amp; &quot;c&quot;\n") && !drawn.svg.contains("<script"),
            "{}",
            drawn.svg
        );
    }

    #[test]
    fn lines_are_no_longer_than_asked_for_and_lose_nothing() {
        let label = "mpcache:similarity=cuboid-mean,topk=shuffle-reveal,gather=scores";
        let broken = lines(label, 25);
        assert!(broken.len() > 2 && broken.iter().all(|line| line.len() <= 25), "{broken:?}");
        assert_eq!(broken.concat(), label);
        assert_eq!(lines("full", 25), ["full"]);
        assert_eq!(lines(&"x".repeat(200), 50).len(), 4);
    }
}
