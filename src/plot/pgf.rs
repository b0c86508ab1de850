//! Pictures as text for LaTeX: `\usepackage{pgfplots}\pgfplotsset{compat=1.18}`, and `\input` of a file.
//!
//! The pictures are as wide as a line of the paper and in its font. They have no title, as a caption has one.
//! Everything in these texts can be changed by hand.

use std::fmt::Write;

use plotters::style::RGBColor;
use waggle_report::table::latex;

use super::axis::{Scale, short};
use super::bars::Bars;
use super::canvas::{PAPER, Sheet};
use super::chart::{Chart, Mark, Quantity};
use super::grid::{Grid, Panels};
use super::style::{FULL, Marker, SOLID, Style};

/// A picture for LaTeX.
pub(super) trait Tex {
    fn tex(&self, sheet: &Sheet) -> String;
}

impl Tex for Chart {
    fn tex(&self, sheet: &Sheet) -> String {
        chart(self, sheet, &self.looks())
    }
}

impl Tex for Bars {
    fn tex(&self, sheet: &Sheet) -> String {
        bars(self, sheet)
    }
}

impl Tex for Grid<'_> {
    fn tex(&self, _: &Sheet) -> String {
        Panels::of(self.0).as_ref().map(grid).unwrap_or_default()
    }
}

pub(super) fn colour(RGBColor(red, green, blue): RGBColor) -> String {
    format!("{{rgb,255:red,{red};green,{green};blue,{blue}}}")
}

/// The pgfplots options of a line.
fn look(style: &Style) -> String {
    let Style { ink, marker, hollow, dash: (dash, gap) } = *style;
    let (mark, turned) = match marker {
        Marker::Circle => ("*", 0),
        Marker::Square => ("square*", 0),
        Marker::Up => ("triangle*", 0),
        Marker::Down => ("triangle*", 180),
        Marker::Left => ("triangle*", 90),
        Marker::Right => ("triangle*", 270),
        Marker::Diamond => ("diamond*", 0),
        Marker::Plus => ("+", 0),
        Marker::Cross => ("x", 0),
        Marker::Star => ("star", 0),
    };
    let ink = colour(ink);
    let fill = if hollow { colour(PAPER) } else { ink.clone() };
    let dashes = if (dash, gap) == SOLID { String::new() } else { format!(",dash pattern=on {dash}pt off {gap}pt") };
    format!("color={ink},mark={mark},mark options={{solid,fill={fill},rotate={turned}}}{dashes}")
}

/// Writes the beginning of a chart.
fn begin(out: &mut String, options: &[String]) {
    let _ = writeln!(
        out,
        "\\begin{{tikzpicture}}\n\\begin{{axis}}[width=\\linewidth,grid=major,grid style={{gray!20}},\
         label style={{font=\\small,align=center,text width=0.8\\linewidth}},tick label style={{font=\\footnotesize}},legend cell align=left,\
         legend style={{font=\\footnotesize,draw=none,at={{(0.5,-0.24)}},anchor=north}},\n{}]",
        options.join(",\n")
    );
}

fn list(values: impl IntoIterator<Item = f64>) -> String {
    values.into_iter().map(|value| value.to_string()).collect::<Vec<_>>().join(",")
}

/// The options for the label and the scale of the axis `name`, which is `x` or `y`, with numbers in `unit`.
fn axis(name: &str, quantity: &Quantity, unit: &str) -> Vec<String> {
    let unit = if unit.is_empty() { String::new() } else { format!(" ({unit})") };
    let label = format!("{name}label={{{}{unit}}}", latex(&quantity.label));
    let log = format!("{name}mode=log,log ticks with fixed point");
    [Some(label), (quantity.scale == Scale::Log).then_some(log)].into_iter().flatten().collect()
}

/// Lines of points.
fn chart(chart: &Chart, sheet: &Sheet, looks: &[Style]) -> String {
    let mut out = String::new();
    let (Some(x), Some(y)) = (chart.x_axis(), chart.y_axis()) else { return out };
    let [(by_x, x_unit), (by_y, y_unit)] = [chart.x.unit.scaled(x.high), chart.y.unit.scaled(y.high)];
    let mut options = axis("x", &chart.x, x_unit);
    options.extend(axis("y", &chart.y, y_unit));
    if !chart.x_ticks.is_empty() {
        options.push(format!("xtick={{{}}}", list(x.ticks.iter().map(|tick| tick / by_x))));
    }
    if chart.y.scale == Scale::Log {
        options.push(format!("ytick={{{}}}", list(y.ticks.iter().map(|tick| tick / by_y))));
    }
    begin(&mut out, &options);
    let point = |mark: &Mark| {
        let y = chart.raised(mark.y);
        let ends = mark.interval.map_or(String::new(), |(low, high)| {
            format!(" += (0,{}) -= (0,{})", (high - y).max(0.0) / by_y, (y - chart.raised(low)).max(0.0) / by_y)
        });
        let label = mark.label.map_or(String::new(), |label| format!(" [{}]", short(label)));
        format!("({},{}){ends}{label}", mark.x / by_x, y / by_y)
    };
    let mut legend = Vec::new();
    if let Some((at, mark)) = &chart.full {
        let y = chart.raised(mark.y) / by_y;
        let _ = writeln!(
            out,
            "\\addplot[{},mark=none] coordinates {{({},{y}) ({},{y})}};",
            look(&FULL),
            x.low / by_x,
            x.high / by_x
        );
        legend.push(sheet.label("full"));
        if let Some(at) = at {
            let _ = writeln!(out, "\\addplot[{},forget plot] coordinates {{({},{y})}};", look(&FULL), at / by_x);
        }
    }
    for (series, style) in chart.series.iter().zip(looks) {
        let labelled = series.marks.iter().any(|mark| mark.label.is_some());
        let near = ",nodes near coords,point meta=explicit symbolic,every node near coord/.style={font=\\tiny}";
        let bars = ",error bars/.cd,y dir=both,y explicit";
        let _ = writeln!(
            out,
            "\\addplot[{}{}{}] coordinates {{{}}};",
            look(style),
            if labelled { near } else { "" },
            if series.marks.iter().any(|mark| mark.interval.is_some()) { bars } else { "" },
            series.marks.iter().map(point).collect::<Vec<_>>().join(" ")
        );
        legend.push(sheet.label(&series.label));
    }
    if !chart.plain {
        let names: Vec<String> = legend.iter().map(|name| format!("{{{}}}", latex(name))).collect();
        let _ = writeln!(out, "\\legend{{{}}}", names.join(","));
    }
    out + "\\end{axis}\n\\end{tikzpicture}\n"
}

/// Stacked bars, the first one at the top.
fn bars(bars: &Bars, sheet: &Sheet) -> String {
    let totals: Vec<f64> = bars.rows.iter().map(|(_, values)| values.iter().sum()).collect();
    let (by, unit) = bars.unit.scaled(totals.iter().copied().fold(0.0, f64::max));
    let name = |(i, (name, _)): (usize, &(String, Vec<f64>))| match bars.axis {
        Some(_) => format!("{{{}}}", latex(&sheet.label(name))),
        // If all bars have the same length, each bar's total is written after its name.
        None => format!("{{{}, {}}}", latex(&sheet.label(name)), latex(&bars.unit.write(totals[i]))),
    };
    let names: Vec<String> = bars.rows.iter().enumerate().map(name).collect();
    let label = match &bars.axis {
        Some(label) if !unit.is_empty() => format!("{} ({unit})", latex(label)),
        Some(label) => latex(label),
        None => "share".into(),
    };
    let mut out = String::new();
    begin(
        &mut out,
        &[
            format!(
                "width=0.8\\linewidth,xbar stacked,xmin=0,enlarge x limits=false,bar width=9pt,height={}pt,y dir=reverse",
                70 + 22 * bars.rows.len()
            ),
            format!("xlabel={{{label}}}"),
            format!("ytick={{{}}}", list((0..names.len()).map(|row| row as f64))),
            format!("yticklabels={{{}}}", names.join(",")),
        ],
    );
    for (i, part) in bars.parts.iter().enumerate() {
        let at = |(row, (_, values)): (usize, &(String, Vec<f64>))| {
            let whole = if bars.axis.is_some() { by } else { totals[row].max(f64::MIN_POSITIVE) };
            format!("({},{row})", values[i] / whole)
        };
        let points: Vec<String> = bars.rows.iter().enumerate().map(at).collect();
        let ink = colour(part.ink);
        let _ = writeln!(out, "\\addplot[fill={ink},draw=white] coordinates {{{}}};", points.join(" "));
    }
    let names: Vec<String> =
        bars.parts.iter().map(|part| format!("{{{}}}", latex(&sheet.label(&part.name)))).collect();
    let _ = writeln!(out, "\\legend{{{}}}", names.join(","));
    out + "\\end{axis}\n\\end{tikzpicture}\n"
}

/// Tables of numbers by length (across) and depth (down), one for each policy.
fn grid(panels: &Panels) -> String {
    let mut out = String::new();
    for (name, cells) in &panels.of {
        let head: Vec<String> = panels.lengths.iter().map(|length| short(*length)).collect();
        let _ = writeln!(out, "\\begin{{tabular}}{{r{}}}", "c".repeat(head.len()));
        let _ = writeln!(out, "\\multicolumn{{{}}}{{l}}{{{}}} \\\\", head.len() + 1, latex(name));
        for (line, depth) in panels.depths.iter().enumerate() {
            let cell = |column: usize| cells.get(&(column, line)).map_or("-".into(), |value| format!("{value:.2}"));
            let row: Vec<String> = (0..head.len()).map(cell).collect();
            let _ = writeln!(out, "{} & {} \\\\", short(*depth), row.join(" & "));
        }
        let _ = writeln!(out, " & {} \\\\\n\\end{{tabular}}\n", head.join(" & "));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::axis::Unit;
    use crate::plot::chart::Series;
    use crate::plot::style::Part;

    #[test]
    fn lines_have_their_points_intervals_and_labels() {
        let mark = |x, y| Mark { x, y, interval: Some((y - 0.5, y + 0.25)), label: Some(x) };
        let quantity = |label: &str| Quantity { label: label.into(), scale: Scale::Log, unit: Unit::Number };
        let lines = Chart {
            x: quantity("budget"),
            y: quantity("per_plexity"),
            series: vec![Series { label: "sirllm_b".into(), marks: vec![mark(0.05, 900.0), mark(0.5, 4.0)] }],
            full: Some((None, Mark { y: 4.0, ..Mark::default() })),
            ..Chart::default()
        };
        let tex = lines.tex(&Sheet::default());
        for wanted in [
            "xmode=log",
            "ylabel={per\\_plexity}",
            "(0.05,900)",
            "{full},{sirllm\\_b}",
            "(0.5,4) += (0,0.25) -= (0,0.5) [0.5]",
        ] {
            assert!(tex.contains(wanted), "{wanted} in {tex}");
        }
    }

    #[test]
    fn bars_are_lengths_or_shares() {
        let parts = ["softmax", "other"].into_iter().enumerate().map(|(i, name)| Part::operation(i, name)).collect();
        let rows = [("setup", [5e6, 1e6]), ("decode", [1e4, 1e6])];
        let rows = rows.map(|(name, values)| (name.to_owned(), values.to_vec())).to_vec();
        let (title, note) = (String::new(), String::new());
        let mut bars = Bars { title, note, axis: Some("bytes".into()), unit: Unit::Bytes, parts, rows };
        let lengths = bars.tex(&Sheet::default());
        for wanted in
            ["xlabel={bytes (MB)}", "{(5,0) (0.01,1)}", "yticklabels={{setup},{decode}}", "{softmax},{other}"]
        {
            assert!(lengths.contains(wanted), "{wanted} in {lengths}");
        }
        bars.axis = None;
        let shares = bars.tex(&Sheet::default());
        assert!(shares.contains("{setup, 6 MB}") && shares.contains("(0.16666666666666666,0)"), "{shares}");
    }
}
