//! Plots of a study: one SVG for each metric, the metric against the budget, one line for each policy.

use std::error::Error as StdError;
use std::ops::Range;
use std::path::Path;

use model::eval::{Evaluation, METRICS, Metric, Row};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

use super::Error;
use super::files::write;

const SIZE: (u32, u32) = (900, 520);

/// Width of the legend, which is a part of it.
const LEGEND: u32 = 220;

/// Logarithmic axes begin here; smaller values are drawn on the floor.
const FLOOR: f64 = 1e-4;

type Points<'a> = (&'a str, Vec<(f64, f64)>);

/// Writes `METRIC.svg` into `dir` for every metric that was measured.
pub(super) fn plots(study: &Evaluation, dir: &Path) -> Result<(), Error> {
    for metric in &METRICS {
        let mut lines: Vec<Points> = Vec::new();
        for row in &study.rows {
            let (Some(budget), Some(value)) = (row.budget, (metric.of)(&row.metrics)) else { continue };
            match lines.iter_mut().find(|(label, _)| *label == row.label) {
                Some((_, points)) => points.push((budget, value)),
                None => lines.push((&row.label, vec![(budget, value)])),
            }
        }
        if lines.is_empty() {
            continue;
        }
        lines.iter_mut().for_each(|(_, points)| points.sort_by(|a, b| a.0.total_cmp(&b.0)));
        let path = dir.join(format!("{}.svg", metric.key));
        let full = study.rows.iter().find(|row| row.budget.is_none());
        let svg = draw(metric, &lines, full)
            .map_err(|e| Error::File { path: path.clone(), source: std::io::Error::other(e.to_string()) })?;
        write(&path, svg.as_bytes())?;
    }
    Ok(())
}

fn draw(metric: &Metric, lines: &[Points], full: Option<&Row>) -> Result<String, Box<dyn StdError>> {
    let full = full.and_then(|row| (metric.of)(&row.metrics));
    let points = || lines.iter().flat_map(|(_, points)| points);
    let budgets = span(points().map(|p| p.0));
    if metric.share {
        return chart(metric, lines, full, budgets, 0.0..1.02);
    }
    let values = span(points().map(|p| p.1.max(FLOOR)).chain(full.map(|v| v.max(FLOOR))));
    chart(metric, lines, full, budgets, values.log_scale())
}

/// A little more than from the smallest to the largest, on a logarithmic axis.
fn span(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (low, high) = values.fold((f64::INFINITY, 0.0), |(low, high), v| (f64::min(low, v), f64::max(high, v)));
    low / 1.05..high * 1.05
}

fn chart<Y>(
    metric: &Metric,
    lines: &[Points],
    full: Option<f64>,
    budgets: Range<f64>,
    values: Y,
) -> Result<String, Box<dyn StdError>>
where
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let (left, right) = area.split_horizontally(SIZE.0 - LEGEND);
    let mut chart = ChartBuilder::on(&left)
        .caption(metric.title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(64)
        .build_cartesian_2d(budgets.clone().log_scale(), values)?;
    let values_drawn = lines.iter().flat_map(|(_, points)| points.iter().map(|p| p.1)).chain(full);
    let lowest = if metric.share { f64::INFINITY } else { values_drawn.fold(f64::INFINITY, f64::min) };
    let short = |v: &f64| format!("{}", (v * 1e6).round() / 1e6);
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("budget: share of the cache, or tokens")
        .y_desc(if lowest < FLOOR { format!("drawn no lower than {FLOOR}") } else { String::new() })
        .x_label_formatter(&short)
        .y_label_formatter(&short)
        .draw()?;
    let height = |y: f64| if metric.share { y } else { y.max(FLOOR) };
    if let Some(full) = full {
        let ends = [budgets.start, budgets.end].map(|x| (x, height(full)));
        chart.draw_series(DashedLineSeries::new(ends, 6, 4, BLACK.stroke_width(1)))?;
        legend(&right, 0, "full", BLACK.stroke_width(1))?;
    }
    for (i, (label, points)) in lines.iter().enumerate() {
        let colour = Palette99::pick(i).to_rgba();
        let points: Vec<_> = points.iter().map(|(x, y)| (*x, height(*y))).collect();
        chart.draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?;
        chart.draw_series(points.iter().map(|p| Circle::new(*p, 3, colour.filled())))?;
        legend(&right, i + 1, label, colour.stroke_width(2))?;
    }
    area.present()?;
    drop(chart);
    drop((left, right, area));
    Ok(svg)
}

/// Line `i` of the legend, beside the plot, where it hides nothing.
fn legend(
    area: &DrawingArea<SVGBackend, Shift>,
    i: usize,
    label: &str,
    style: ShapeStyle,
) -> Result<(), Box<dyn StdError>> {
    let y = 48 + 18 * i as i32;
    area.draw(&PathElement::new([(4, y), (24, y)], style))?;
    area.draw(&Text::new(label.to_owned(), (30, y - 6), ("sans-serif", 13)))?;
    Ok(())
}
