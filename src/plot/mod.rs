//! Plots: charts of studies and of sessions, each as SVG and as text for LaTeX.
//!
//! `axis` has scales and ticks, and `style` the look of each policy. `chart`, `bars` and `grid` draw on `canvas`, and
//! `pgf` writes for LaTeX. `map` draws attention. `study`, `session` and `decoded` choose what is drawn.

mod axis;
mod bars;
mod canvas;
mod chart;
mod command;
mod decoded;
mod grid;
mod map;
mod operations;
mod pgf;
mod session;
mod study;
mod style;

use std::path::{Path, PathBuf};

use waggle_mpcache::PolicySpec;
use waggle_study::eval::{AttentionStudy, StudyReport};

pub(super) use canvas::{DrawError, Drawing};
pub(super) use command::{PlotArgs, run};
pub(super) use session::of_session;

use super::Error;
use canvas::Picture;
pub(super) use canvas::{Sheet, X};
use pgf::Tex;
use waggle_files::write;
use waggle_study::sweep::Sweep;

pub(super) type Plots = Vec<(String, Drawing)>;

pub(super) fn of_study(study: &StudyReport, sheet: &Sheet) -> Result<Plots, Error> {
    let mut plots = Plots::new();
    if let Some(x) = &sheet.x {
        for (name, chart) in study::against(study, x) {
            add(&mut plots, sheet, name, &chart)?;
        }
        return Ok(plots);
    }
    add(&mut plots, sheet, "grid", &grid::Grid(study))?;
    for (name, chart) in study::charts(study) {
        add(&mut plots, sheet, name, &chart)?;
    }
    Ok(plots)
}

/// The maps of all heads that are drawn, and the ranks of pages of each.
pub(super) fn of_attention(study: &AttentionStudy, model: &str) -> Result<Plots, Error> {
    let (mut plots, sheet) = (Plots::new(), Sheet::default());
    add(&mut plots, &sheet, "maps", &map::Maps(study, model))?;
    for (name, chart) in map::ranks(study, model) {
        add(&mut plots, &sheet, name, &chart)?;
    }
    Ok(plots)
}

pub(super) fn of_sweep(sweep: &Sweep, sheet: &Sheet) -> Result<Plots, Error> {
    decoded::of_decoded(&decoded::Decoded::of_sweep(sweep), sheet)
}

/// The policy `label` without its option `key`, and the option's value as a number.
fn along(label: &str, key: &str) -> Option<(String, f64)> {
    let policy: PolicySpec = label.parse().ok()?;
    let setting = policy.settings().iter().find(|setting| setting.key == key)?;
    // Of two sizes of clusters, the coarser one comes first and is taken.
    let value = setting.value.split('/').next()?.parse().ok()?;
    Some((without(label, key), value))
}

/// The policy `label` without its option `key`.
fn without(label: &str, key: &str) -> String {
    let Some((name, options)) = label.split_once(':') else { return label.into() };
    let is_other = |option: &&str| option.split_once('=').is_none_or(|(name, _)| name != key);
    let rest: Vec<&str> = options.split(',').filter(is_other).collect();
    if rest.is_empty() { name.into() } else { format!("{name}:{}", rest.join(",")) }
}

/// Draws `picture` and adds it to the plots, if it is not empty.
fn add<P: Picture + Tex>(
    plots: &mut Plots,
    sheet: &Sheet,
    name: impl Into<String>,
    picture: &P,
) -> Result<(), Error> {
    if let Some(svg) = picture.svg(sheet).map_err(Error::Drawing)? {
        plots.push((name.into(), Drawing { svg, tex: picture.tex(sheet) }));
    }
    Ok(())
}

/// Writes `NAME.svg` and `NAME.tex` into `dir` for each of `plots`, and returns the files.
pub(super) fn save(plots: &Plots, dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut files = Vec::new();
    for (name, drawing) in plots {
        for (end, bytes) in [("svg", &drawing.svg), ("tex", &drawing.tex)] {
            let path = dir.join(format!("{name}.{end}"));
            write(&path, bytes.as_bytes())?;
            files.push(path);
        }
    }
    Ok(files)
}
