//! Drawings as SVG.

use std::fmt::Write;

use super::scene::{Anchor, Ink, Point, Scene, Shape, Stroke, Words};

/// Who chooses the colours of words and lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Theme {
    /// The drawing: black on white, for a file of its own.
    File,
    /// The page around it, by the variables `--muted`, `--grid` and `--paper`.
    Page,
}

/// `scene` as an SVG element.
pub(crate) fn svg(scene: &Scene, theme: Theme) -> String {
    let Scene { width, height, title, shapes } = scene;
    let mut out = String::new();
    let (w, h) = (number(*width), number(*height));
    let size = match theme {
        Theme::File => format!("width=\"{w}\" height=\"{h}\" "),
        // Smaller on a narrow page, while words can be read.
        Theme::Page => format!("style=\"width:100%;max-width:{w}px;min-width:{}px\" ", number(width * 0.75)),
    };
    // Writing to a string does not fail.
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" {size}viewBox=\"0 0 {w} {h}\" role=\"img\" \
         font-family=\"DejaVu Sans, Verdana, Helvetica, Arial, sans-serif\">\n<title>{}</title>\n",
        escape(title)
    );
    if theme == Theme::File {
        let _ = writeln!(out, "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>");
    }
    for shape in shapes {
        match shape {
            Shape::Line { points, stroke } => {
                let _ = writeln!(out, "<path d=\"{}\" fill=\"none\"{}/>", path(points), edge(stroke, theme));
            }
            Shape::Polygon { points, fill, edge: line } => {
                let line = line.map_or_else(String::new, |line| edge(&line, theme));
                let _ = writeln!(out, "<path d=\"{}Z\"{}{line}/>", path(points), paint("fill", *fill, theme));
            }
            Shape::Circle { centre: (x, y), radius, fill, edge: line } => {
                let line = line.map_or_else(String::new, |line| edge(&line, theme));
                let (x, y, r) = (number(*x), number(*y), number(*radius));
                let fill = paint("fill", *fill, theme);
                let _ = writeln!(out, "<circle cx=\"{x}\" cy=\"{y}\" r=\"{r}\"{fill}{line}/>");
            }
            Shape::Text(words) => text(&mut out, words, theme),
        }
    }
    out.push_str("</svg>\n");
    out
}

fn text(out: &mut String, words: &Words, theme: Theme) {
    let Words { text, at: (x, y), size, ink, anchor, upright } = words;
    let (x, y) = (number(*x), number(*y));
    let anchor = match anchor {
        Anchor::Start => "",
        Anchor::Middle => " text-anchor=\"middle\"",
        Anchor::End => " text-anchor=\"end\"",
    };
    let turn = if *upright { format!(" transform=\"rotate(-90 {x} {y})\"") } else { String::new() };
    let (size, fill) = (number(*size), paint("fill", *ink, theme));
    let text = escape(text);
    let _ = writeln!(out, "<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\"{anchor}{turn}{fill}>{text}</text>");
}

fn path(points: &[Point]) -> String {
    let mut path = String::new();
    for (i, (x, y)) in points.iter().enumerate() {
        let _ = write!(path, "{}{} {}", if i == 0 { "M" } else { "L" }, number(*x), number(*y));
    }
    path
}

fn edge(Stroke { ink, width, dash }: &Stroke, theme: Theme) -> String {
    let mut out =
        format!("{} stroke-width=\"{}\" stroke-linejoin=\"round\"", paint("stroke", *ink, theme), number(*width));
    if !dash.is_empty() {
        let dashes: Vec<String> = dash.iter().map(|length| number(*length)).collect();
        let _ = write!(out, " stroke-dasharray=\"{}\"", dashes.join(" "));
    }
    out
}

/// The attribute `what` with the colour `ink`.
fn paint(what: &str, ink: Ink, theme: Theme) -> String {
    let colour = match (ink, theme) {
        (Ink::Rgb(r, g, b), _) => format!("#{r:02x}{g:02x}{b:02x}"),
        (Ink::Text, Theme::File) => "#000000".into(),
        (Ink::Muted, Theme::File) => "#555555".into(),
        (Ink::Grid, Theme::File) => "#dddddd".into(),
        (Ink::Paper, Theme::File) => "#ffffff".into(),
        (Ink::Text, Theme::Page) => "currentColor".into(),
        (Ink::Muted, Theme::Page) => return format!(" style=\"{what}:var(--muted)\""),
        (Ink::Grid, Theme::Page) => return format!(" style=\"{what}:var(--grid)\""),
        (Ink::Paper, Theme::Page) => return format!(" style=\"{what}:var(--paper)\""),
    };
    format!(" {what}=\"{colour}\"")
}

/// Two digits behind the point, without zeros at the end.
fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// `text` between tags: signs of XML by name, and control characters, which XML does not have, left out.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => {}
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_stay_text() {
        let mut scene = Scene::new(10.0, 10.0, "<script>");
        scene.text("a<b & \"c\"\u{7}", (1.0, 2.25), 12.0, Ink::Text, Anchor::Middle);
        let svg = svg(&scene, Theme::File);
        assert!(svg.contains(">a&lt;b &amp; &quot;c&quot;</text>") && !svg.contains("<script"), "{svg}");
        assert!(svg.contains("y=\"2.25\"") && svg.contains("text-anchor=\"middle\""), "{svg}");
    }
}
