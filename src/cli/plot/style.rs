//! Colours, markers and dashes: a policy has the same ones in every plot.
//!
//! Colours are told apart with colour-blind eyes, and in grey the marker and the dash are different, too.

use super::scene::{Ink, Point, Scene, Stroke};

/// The look of a line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Style {
    pub(super) ink: Ink,
    pub(super) marker: Marker,
    /// Whether markers are drawn with their edge alone.
    pub(super) hollow: bool,
    pub(super) dash: &'static [f64],
}

/// The sign of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Marker {
    Circle,
    Square,
    Up,
    Down,
    Diamond,
    Left,
    Right,
    Plus,
    Cross,
    Star,
}

use Marker::{Circle, Cross, Diamond, Down, Left, Plus, Right, Square, Star, Up};

const SOLID: &[f64] = &[];
const DASHED: &[f64] = &[7.0, 3.0];
const DOTTED: &[f64] = &[2.0, 2.5];
const MIXED: &[f64] = &[8.0, 2.5, 2.0, 2.5];

const BLUE: Ink = Ink::Rgb(0x00, 0x72, 0xb2);
const ORANGE: Ink = Ink::Rgb(0xe0, 0x8e, 0x00);
const GREEN: Ink = Ink::Rgb(0x00, 0x9e, 0x73);
const RED: Ink = Ink::Rgb(0xd5, 0x4e, 0x1a);
const PURPLE: Ink = Ink::Rgb(0x9a, 0x5f, 0xc0);
const SKY: Ink = Ink::Rgb(0x3f, 0xa4, 0xdd);
const PINK: Ink = Ink::Rgb(0xcc, 0x6b, 0xa0);
const OLIVE: Ink = Ink::Rgb(0x8f, 0x84, 0x1e);
const GREY: Ink = Ink::Rgb(0x80, 0x80, 0x80);

/// Inks of parts that have no policy, in turn.
pub(super) const INKS: [Ink; 9] = [BLUE, ORANGE, GREEN, RED, PURPLE, SKY, PINK, OLIVE, GREY];

/// The policies. A line never changes, because plots of different papers are laid side by side.
const POLICIES: [(&str, Ink, Marker, bool, &[f64]); 22] = [
    ("mpcache", BLUE, Circle, false, SOLID),
    ("mpcache-2pc", RED, Diamond, false, SOLID),
    ("mpcache-scores", SKY, Square, false, DASHED),
    ("quest", GREEN, Up, false, SOLID),
    ("arkvale", GREEN, Down, true, DASHED),
    ("infllm", OLIVE, Left, false, DASHED),
    ("longcache", OLIVE, Right, true, DOTTED),
    ("h2o", ORANGE, Square, false, SOLID),
    ("tova", ORANGE, Up, true, DASHED),
    ("snapkv", PURPLE, Down, false, SOLID),
    ("pyramid", PURPLE, Up, false, DASHED),
    ("squeeze", PURPLE, Square, true, DOTTED),
    ("knorm", PINK, Diamond, true, DASHED),
    ("kvzap", PINK, Circle, false, MIXED),
    ("keyformer", RED, Left, true, DOTTED),
    ("sirllm", SKY, Star, false, DOTTED),
    ("duo", BLUE, Star, false, DASHED),
    ("razor", BLUE, Right, true, MIXED),
    ("streaming", GREY, Cross, false, DASHED),
    ("random", GREY, Plus, false, DOTTED),
    ("fastgen", GREEN, Diamond, false, MIXED),
    ("oracle", GREY, Star, true, SOLID),
];

/// The full cache, which has a level and no points.
pub(super) const FULL: Style = Style { ink: Ink::Text, marker: Circle, hollow: true, dash: &[5.0, 4.0] };

/// A line that is no policy.
pub(super) const PLAIN: Style = Style { ink: BLUE, marker: Circle, hollow: false, dash: SOLID };

impl Style {
    /// The style of the policy `name` without options.
    fn of(name: &str) -> Option<Self> {
        if name == "full" {
            return Some(FULL);
        }
        let (_, ink, marker, hollow, dash) = *POLICIES.iter().find(|(known, ..)| *known == name)?;
        Some(Style { ink, marker, hollow, dash })
    }

    /// One of the styles that no policy of the table has, for variants and for policies from elsewhere.
    fn other(index: usize) -> Self {
        const MARKERS: [Marker; 10] = [Circle, Square, Up, Down, Diamond, Left, Right, Plus, Cross, Star];
        const DASHES: [&[f64]; 4] = [MIXED, DOTTED, SOLID, DASHED];
        // Neighbours differ in everything: the numbers of inks, markers and dashes have little in common.
        let (ink, marker) = (INKS[index % 8], MARKERS[index * 3 % MARKERS.len()]);
        Style { ink, marker, hollow: (index / 2).is_multiple_of(2), dash: DASHES[index / 3 % DASHES.len()] }
    }
}

/// A style for each label, `NAME` or `NAME:OPTIONS`. A name alone has its own, and so has the first variant of a name
/// where the name alone is not there. Other variants take what their text points at and nobody else has.
pub(super) fn styles(labels: &[&str]) -> Vec<Style> {
    let own = labels.iter().enumerate().map(|(i, label)| {
        let name = name_of(label);
        let first = !labels.contains(&name) && !labels[..i].iter().any(|other| name_of(other) == name);
        if *label == name || first { Style::of(name) } else { None }
    });
    let mut styles: Vec<Option<Style>> = own.collect();
    for (i, label) in labels.iter().enumerate() {
        if styles[i].is_none() {
            let start = label.bytes().fold(0usize, |hash, byte| (hash * 31 + usize::from(byte)) % 9973);
            let mut others = (start..=start + labels.len()).map(Style::other);
            styles[i] = others.find(|style| !styles.contains(&Some(*style))).or(Some(Style::other(start)));
        }
    }
    styles.into_iter().flatten().collect()
}

/// The policy's name in a label.
pub(super) fn name_of(label: &str) -> &str {
    label.split_once(':').map_or(label, |(name, _)| name)
}

impl Style {
    pub(super) fn stroke(&self) -> Stroke {
        Stroke { ink: self.ink, width: 1.6, dash: self.dash }
    }

    /// Draws the marker at `(x, y)`.
    pub(super) fn mark(&self, scene: &mut Scene, (x, y): Point) {
        let edge = Stroke { ink: self.ink, width: 1.3, dash: &[] };
        let fill = if self.hollow { Ink::Paper } else { self.ink };
        let at = |points: &[Point]| points.iter().map(|(dx, dy)| (x + dx, y + dy)).collect::<Vec<_>>();
        let mut polygon = |points: &[Point]| scene.polygon(at(points), fill, Some(edge));
        match self.marker {
            Circle => scene.circle((x, y), 3.4, fill, Some(edge)),
            Square => polygon(&[(-3.1, -3.1), (3.1, -3.1), (3.1, 3.1), (-3.1, 3.1)]),
            Up => polygon(&[(0.0, -4.3), (4.1, 3.0), (-4.1, 3.0)]),
            Down => polygon(&[(0.0, 4.3), (-4.1, -3.0), (4.1, -3.0)]),
            Left => polygon(&[(-4.3, 0.0), (3.0, -4.1), (3.0, 4.1)]),
            Right => polygon(&[(4.3, 0.0), (-3.0, -4.1), (-3.0, 4.1)]),
            Diamond => polygon(&[(0.0, -4.6), (4.6, 0.0), (0.0, 4.6), (-4.6, 0.0)]),
            Star => {
                let point = |i: usize| {
                    let radius = if i.is_multiple_of(2) { 5.0 } else { 2.1 };
                    let angle = std::f64::consts::PI * (i as f64 / 5.0 - 0.5);
                    (radius * angle.cos(), radius * angle.sin())
                };
                polygon(&(0..10).map(point).collect::<Vec<_>>());
            }
            Plus | Cross => {
                let wide = Stroke { width: 2.0, ..edge };
                let arms = if self.marker == Plus { [(0.0, 4.6), (4.6, 0.0)] } else { [(3.4, 3.4), (3.4, -3.4)] };
                for (dx, dy) in arms {
                    scene.line([(x - dx, y - dy), (x + dx, y + dy)], wide);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpcache::PolicySpec;

    /// What is left of a style in grey.
    fn in_grey(style: &Style) -> (Marker, bool, &'static [f64]) {
        (style.marker, style.hollow, style.dash)
    }

    #[test]
    fn every_policy_has_a_style_of_its_own_that_shows_in_grey() {
        let names: Vec<&str> = PolicySpec::known().filter(|name| *name != "full").collect();
        let styles: Vec<Style> =
            names.iter().map(|name| Style::of(name).unwrap_or_else(|| panic!("{name}"))).collect();
        for (i, style) in styles.iter().enumerate() {
            for (j, other) in styles.iter().enumerate().take(i) {
                assert_ne!(in_grey(style), in_grey(other), "{} and {}", names[i], names[j]);
            }
        }
    }

    #[test]
    fn a_policy_looks_the_same_beside_others_and_variants_differ() {
        let alone = styles(&["quest"])[0];
        let together = styles(&["h2o", "mpcache:topk=sort", "mpcache", "quest", "mpcache:topk=rank", "foreign"]);
        assert_eq!(together[3], alone);
        assert_eq!(together[2], Style::of("mpcache").unwrap());
        assert_eq!(styles(&["mpcache:topk=sort"])[0], together[2]);
        for (i, style) in together.iter().enumerate() {
            assert!(!together[..i].contains(style), "{i}: {together:?}");
        }
    }
}
