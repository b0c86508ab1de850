//! Colours, markers and dashes: a policy has the same ones in every plot, and so have a phase and, on a page, an
//! operation.
//!
//! The colours differ for colour-blind readers. In grey, markers and dashes differ too.

use plotters::prelude::*;
use waggle_net::Phase;
use waggle_report::phase_name;

use super::canvas::{Area, DrawError, PAPER, Point, TEXT};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Style {
    pub(super) ink: RGBColor,
    pub(super) marker: Marker,
    /// Whether only the edges of markers are drawn.
    pub(super) hollow: bool,
    pub(super) dash: Dash,
}

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

/// Lengths of dashes and gaps. A solid line has the gap 0.
type Dash = (i32, i32);

pub(super) const SOLID: Dash = (1, 0);
const DASHED: Dash = (7, 3);
const DOTTED: Dash = (2, 3);
const LONG: Dash = (14, 4);
const DASHES: [Dash; 4] = [LONG, DOTTED, SOLID, DASHED];

const BLUE: RGBColor = RGBColor(0x00, 0x72, 0xb2);
const ORANGE: RGBColor = RGBColor(0xe0, 0x8e, 0x00);
const GREEN: RGBColor = RGBColor(0x00, 0x9e, 0x73);
const RED: RGBColor = RGBColor(0xd5, 0x4e, 0x1a);
const PURPLE: RGBColor = RGBColor(0x9a, 0x5f, 0xc0);
const SKY: RGBColor = RGBColor(0x3f, 0xa4, 0xdd);
const PINK: RGBColor = RGBColor(0xcc, 0x6b, 0xa0);
const OLIVE: RGBColor = RGBColor(0x8f, 0x84, 0x1e);
const GREY: RGBColor = RGBColor(0x80, 0x80, 0x80);

/// Inks of parts that belong to no policy, in the order in which they are used.
const INKS: [RGBColor; 9] = [BLUE, ORANGE, GREEN, RED, PURPLE, SKY, PINK, OLIVE, GREY];

/// Inks of phases, from dark to light in the order of time. No operation has one of them.
const PHASES: [(Phase, char, RGBColor); 4] = [
    (Phase::Setup, 'a', RGBColor(0x16, 0x26, 0x3f)),
    (Phase::Offline, 'b', RGBColor(0x3f, 0x5f, 0x8c)),
    (Phase::Prefill, 'c', RGBColor(0x7d, 0x9c, 0xc4)),
    (Phase::Decode, 'd', RGBColor(0xc3, 0xd3, 0xe8)),
];

/// A part of bars: its name, its ink, and a sign that tells it from other parts in grey.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) name: String,
    pub(super) ink: RGBColor,
    pub(super) sign: String,
}

impl Part {
    /// The part for the operation with the index `i` among those of a page.
    pub(super) fn operation(i: usize, name: impl Into<String>) -> Self {
        Part { name: name.into(), ink: INKS[i % INKS.len()], sign: (i + 1).to_string() }
    }

    /// The part for a phase, with `more` appended to the phase's name.
    pub(super) fn phase(phase: Phase, more: &str) -> Self {
        let (_, sign, ink) = PHASES[phase as usize];
        Part { name: format!("{}{more}", phase_name(phase)), ink, sign: sign.to_string() }
    }
}

/// The styles of the policies. They never change, because plots of different papers are compared.
const POLICIES: [(&str, RGBColor, Marker, bool, Dash); 26] = [
    ("mpcache", BLUE, Circle, false, SOLID),
    ("mpcache-2pc", RED, Diamond, false, SOLID),
    ("mpcache-scores", SKY, Square, false, DASHED),
    ("quest", GREEN, Up, false, SOLID),
    ("arkvale", GREEN, Down, true, DASHED),
    ("infllm", OLIVE, Left, false, DASHED),
    ("longcache", OLIVE, Right, true, DOTTED),
    ("h2o", ORANGE, Square, false, SOLID),
    ("scissorhands", ORANGE, Diamond, false, DOTTED),
    ("alisa", ORANGE, Down, true, LONG),
    ("tova", ORANGE, Up, true, DASHED),
    ("snapkv", PURPLE, Down, false, SOLID),
    ("pyramid", PURPLE, Up, false, DASHED),
    ("squeeze", PURPLE, Square, true, DOTTED),
    ("knorm", PINK, Diamond, true, DASHED),
    ("kvzap", PINK, Circle, false, LONG),
    ("qfilters", PINK, Up, false, DOTTED),
    ("keydiff", PINK, Square, true, SOLID),
    ("keyformer", RED, Left, true, DOTTED),
    ("sirllm", SKY, Star, false, DOTTED),
    ("duo", BLUE, Star, false, DASHED),
    ("razor", BLUE, Right, true, LONG),
    ("streaming", GREY, Cross, false, DASHED),
    ("random", GREY, Plus, false, DOTTED),
    ("fastgen", GREEN, Diamond, false, LONG),
    ("oracle", GREY, Star, true, SOLID),
];

/// The style of the full cache, which has a level and no points.
pub(super) const FULL: Style = Style { ink: TEXT, marker: Circle, hollow: true, dash: (5, 4) };

/// Inks of maps of attention: tokens that are important to all, to certain and to no queries, and other tokens.
pub(super) const CLASSES: [RGBColor; 4] = [RGBColor(0xb4, 0x1f, 0x24), ORANGE, BLUE, GREY];

/// The style of a line that is no policy.
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

    /// One of the styles that no policy of the table has. They are for variants and for policies of other crates.
    fn other(index: usize) -> Self {
        const MARKERS: [Marker; 10] = [Circle, Square, Up, Down, Diamond, Left, Right, Plus, Cross, Star];
        // Consecutive styles differ in ink, marker and dash, as the numbers of these have few common divisors.
        let (ink, marker) = (INKS[index % 8], MARKERS[index * 3 % MARKERS.len()]);
        Style { ink, marker, hollow: (index / 2).is_multiple_of(2), dash: DASHES[index / 3 % DASHES.len()] }
    }
}

/// A style for each label, `POLICY` or `POLICY: FACTS`. The ink and the marker are the policy's. Dashes and fillings
/// tell facts apart.
pub(super) fn styles(labels: &[&str]) -> Vec<Style> {
    fn distinct<'a>(all: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
        all.fold(Vec::new(), |mut seen, one| {
            seen.extend((!seen.contains(&one)).then_some(one));
            seen
        })
    }
    let parts: Vec<(&str, &str)> = labels.iter().map(|label| label.split_once(": ").unwrap_or((label, ""))).collect();
    let policies = distinct(parts.iter().map(|(policy, _)| *policy));
    let facts = distinct(parts.iter().map(|(_, facts)| *facts));
    let styles = of_policies(&policies);
    let place = |list: &[&str], one: &str| list.iter().position(|known| *known == one).unwrap_or_default();
    let of = |(policy, fact): (&str, &str)| {
        let (style, fact) = (&styles[place(&policies, policy)], place(&facts, fact));
        let dash = DASHES.iter().position(|dash| *dash == style.dash).unwrap_or_default();
        let hollow = style.hollow ^ !(fact + fact / DASHES.len()).is_multiple_of(2);
        Style { dash: DASHES[(dash + fact) % DASHES.len()], hollow, ..*style }
    };
    parts.into_iter().map(of).collect()
}

/// A style for each policy, `NAME` or `NAME:OPTIONS`. A label without options has the policy's own style. If no label
/// is without options, the first label of the policy has that style. All other labels take a free style, chosen by
/// their text.
fn of_policies(labels: &[&str]) -> Vec<Style> {
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

pub(super) fn name_of(label: &str) -> &str {
    label.split_once(':').map_or(label, |(name, _)| name)
}

impl Style {
    pub(super) fn line(&self, area: &Area, points: Vec<Point>) -> Result<(), DrawError> {
        let (style, (dash, gap)) = (self.ink.stroke_width(2), self.dash);
        match gap {
            0 => area.draw(&PathElement::new(points, style)),
            _ => area.draw(&plotters::element::DashedPathElement::new(points, dash, gap, style)),
        }
    }

    pub(super) fn mark(&self, area: &Area, (x, y): Point) -> Result<(), DrawError> {
        let edge = self.ink.stroke_width(if matches!(self.marker, Plus | Cross) { 2 } else { 1 });
        let fill = if self.hollow { PAPER } else { self.ink };
        let star = |i: i32| {
            let angle = std::f64::consts::PI * (f64::from(i) / 5.0 - 0.5);
            let radius = if i % 2 == 0 { 6.0 } else { 2.5 };
            ((radius * angle.cos()).round() as i32, (radius * angle.sin()).round() as i32)
        };
        let mut corners = match self.marker {
            Circle => {
                area.draw(&plotters::element::Circle::new((x, y), 4, fill.filled()))?;
                return area.draw(&plotters::element::Circle::new((x, y), 4, edge));
            }
            Square => vec![(-3, -3), (4, -3), (4, 4), (-3, 4)],
            Up => vec![(0, -5), (5, 3), (-5, 3)],
            Down => vec![(0, 5), (-5, -3), (5, -3)],
            Left => vec![(-5, 0), (3, -5), (3, 5)],
            Right => vec![(5, 0), (-3, -5), (-3, 5)],
            Diamond => vec![(0, -5), (5, 0), (0, 5), (-5, 0)],
            Star => (0..10).map(star).collect(),
            Plus => vec![(0, 5), (0, -5), (0, 0), (5, 0), (-5, 0), (0, 0)],
            Cross => vec![(4, 4), (-4, -4), (0, 0), (4, -4), (-4, 4), (0, 0)],
        };
        corners.iter_mut().for_each(|corner| *corner = (x + corner.0, y + corner.1));
        if !matches!(self.marker, Plus | Cross) {
            area.draw(&Polygon::new(corners.clone(), fill.filled()))?;
        }
        corners.push(corners[0]);
        area.draw(&PathElement::new(corners, edge))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use waggle_mpcache::PolicySpec;

    /// The parts of a style that are visible in grey.
    fn in_grey(style: &Style) -> (Marker, bool, Dash) {
        (style.marker, style.hollow, style.dash)
    }

    /// A policy that the table lacks takes a free style.
    #[test]
    fn policies_have_styles_that_show_in_grey() {
        let known: Vec<&str> = PolicySpec::known().collect();
        for (i, (name, ..)) in POLICIES.iter().enumerate() {
            assert!(known.contains(name), "{name}");
            for (other, ..) in &POLICIES[..i] {
                let both = [name, other].map(|name| Style::of(name).expect("it is in the table"));
                assert_ne!(in_grey(&both[0]), in_grey(&both[1]), "{name} and {other}");
            }
        }
    }

    #[test]
    fn phases_and_operations_have_looks_of_their_own() {
        let phases = PHASES.map(|(phase, ..)| Part::phase(phase, ""));
        for (part, (phase, sign, _)) in phases.iter().zip(PHASES) {
            assert_eq!((&part.name[..], part.sign.clone()), (phase_name(phase), sign.to_string()));
            assert!((0..INKS.len()).all(|i| Part::operation(i, "").ink != part.ink), "{part:?}");
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
        // With facts, a policy keeps its ink and its marker.
        let links = styles(&["quest: lan", "full: lan", "quest: wan", "full: wan"]);
        assert_eq!((&links[0], links[2].ink, links[2].marker), (&alone, alone.ink, alone.marker));
        assert!(links[2] != links[0] && in_grey(&links[2]) != in_grey(&links[0]));
    }
}
