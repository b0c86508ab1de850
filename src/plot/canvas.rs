//! The canvas of pictures: SVG drawn by plotters, with a text for LaTeX beside it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io;
use std::str::FromStr;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(crate) type DrawError = DrawingAreaErrorKind<io::Error>;
pub(super) type Point = (i32, i32);

// The style sheet of HTML pages replaces these colours.
pub(super) const TEXT: RGBColor = RGBColor(0, 0, 0);
pub(super) const MUTED: RGBColor = RGBColor(0x55, 0x55, 0x55);
pub(super) const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);
pub(super) const PAPER: RGBColor = RGBColor(0xff, 0xff, 0xff);
/// Colour of words on a dark ground.
pub(super) const LIGHT: RGBColor = RGBColor(0xfe, 0xfe, 0xfe);

const FONT: &str = "DejaVu Sans, Verdana, Helvetica, Arial, sans-serif";
/// Factor by which plotters makes font sizes smaller in an SVG.
const SHRINK: f64 = 1.24;
pub(super) const SIZE: i32 = 11;
const TITLE: i32 = 15;
pub(super) const LINE: i32 = 15;
/// Height of the title and the note. The picture begins below them.
pub(super) const TOP: i32 = 56;
/// The least margin at the sides.
pub(super) const EDGE: i32 = 14;

/// A quantity that a horizontal axis can have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum X {
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

/// Settings that all pictures of a command share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sheet {
    /// Texts that are written in the place of names.
    pub(super) labels: BTreeMap<String, String>,
    /// All names that were drawn.
    pub(super) seen: RefCell<BTreeSet<String>>,
    /// The quantity along the horizontal axis of charts, instead of the usual one.
    pub(super) x: Option<X>,
}

impl Sheet {
    /// The default settings, with `x` along the horizontal axes.
    pub(crate) fn against(x: Option<X>) -> Self {
        Sheet { x, ..Sheet::default() }
    }

    /// The text that is written for `name`. The name is added to the names that were drawn.
    pub(super) fn label(&self, name: &str) -> String {
        self.seen.borrow_mut().insert(name.to_owned());
        self.labels.get(name).map_or(name, String::as_str).to_owned()
    }
}

/// A picture that can be drawn.
pub(super) trait Picture {
    /// The SVG of the picture; `None` if there is nothing to draw.
    fn svg(&self, sheet: &Sheet) -> Result<Option<String>, DrawError>;
}

/// A drawing in both of its forms.
pub(crate) struct Drawing {
    pub(crate) svg: String,
    /// The text for LaTeX with pgfplots, which draws it in the font and the width of the paper.
    pub(super) tex: String,
}

/// The SVG of a picture, with a title, a note below the title, and what `draw` draws. The picture has at least the
/// given width and height.
pub(super) fn picture(
    (wide, high): Point,
    (title, note): (&str, &str),
    draw: impl FnOnce(&Area) -> Result<(), DrawError>,
) -> Result<String, DrawError> {
    let wide = wide.max(EDGE * 2 + width(title, TITLE).max(width(note, SIZE)));
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, (wide as u32, high as u32)).into_drawing_area();
    area.fill(&PAPER)?;
    words(&area, title, (EDGE, 19), TITLE, TEXT, HPos::Left)?;
    words(&area, note, (EDGE, 38), SIZE, MUTED, HPos::Left)?;
    draw(&area)?;
    area.present()?;
    drop(area);
    Ok(svg)
}

pub(super) fn font(size: i32, ink: RGBColor) -> TextStyle<'static> {
    (FONT, f64::from(size) * SHRINK).into_font().color(&ink)
}

/// Writes `text` without control characters, which XML does not allow. `at` is in the middle of the text's height.
pub(super) fn words(
    area: &Area,
    text: &str,
    at: Point,
    size: i32,
    ink: RGBColor,
    anchor: HPos,
) -> Result<(), DrawError> {
    let text: String = text.chars().filter(|c| !c.is_control()).collect();
    area.draw_text(&text, &font(size, ink).pos(Pos::new(anchor, VPos::Center)), at)
}

pub(super) fn line(area: &Area, points: &[Point], ink: RGBColor) -> Result<(), DrawError> {
    area.draw(&PathElement::new(points.to_vec(), ink))
}

/// Draws a filled rectangle with a thin edge in the colour of the paper.
pub(super) fn block(area: &Area, (x, y): Point, (wide, high): Point, ink: RGBColor) -> Result<(), DrawError> {
    let corners = [(x, y), (x + wide, y + high)];
    area.draw(&Rectangle::new(corners, ink.filled()))?;
    area.draw(&Rectangle::new(corners, PAPER))
}

/// The approximate width of `text`. The font is not known, as the reader's program chooses it.
pub(super) fn width(text: &str, size: i32) -> i32 {
    let em = |c: char| match c {
        'i' | 'j' | 'l' | 't' | 'f' | 'r' | ' ' | '.' | ',' | ':' | ';' | '(' | ')' | '|' | '-' | '\'' => 0.38,
        'm' | 'w' | 'M' | 'W' | '%' | '=' | '+' | '·' => 0.88,
        c if c.is_uppercase() => 0.72,
        _ => 0.63,
    };
    (text.chars().map(em).sum::<f64>() * f64::from(size)).ceil() as i32
}

pub(super) fn widest<'a>(texts: impl IntoIterator<Item = &'a String>) -> i32 {
    texts.into_iter().map(|text| width(text, SIZE)).max().unwrap_or(0)
}

/// `text` in lines of at most `most` characters, broken after a sign or a space if possible.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_stay_text() {
        let svg = picture((10, 10), ("<script>", "a<b & \"c\"\u{7}"), |_| Ok(())).unwrap();
        assert!(svg.contains("a&lt;b &amp; &quot;c&quot;\n") && !svg.contains("<script"), "{svg}");
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
