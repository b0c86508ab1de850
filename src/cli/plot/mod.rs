//! Plots: charts of studies and of sessions, each as SVG and as PDF.
//!
//! `axis` scales and counts, `style` gives a policy its look, `chart`, `bars` and `grid` lay out, and `canvas` and
//! `pdf` are what they draw on. `study` and `session` choose what is drawn.

mod axis;
mod bars;
mod canvas;
mod chart;
mod command;
mod grid;
mod pdf;
mod session;
mod study;
mod style;

use std::path::{Path, PathBuf};

use ::study::eval::Evaluation;
use report::Report;

pub(super) use canvas::{DrawError, Drawing};
pub(super) use command::{PlotArgs, run};

use super::Error;
use crate::disk::write;
use canvas::Picture;

/// Drawings by name.
pub(super) type Plots = Vec<(String, Drawing)>;

/// Pictures to be drawn, by name.
type Pictures<'a> = Vec<(String, Box<dyn Picture + 'a>)>;

/// The plots of a study.
pub(super) fn of_study(study: &Evaluation) -> Result<Plots, Error> {
    let mut all: Pictures = vec![("grid".into(), Box::new(grid::Grid(study)))];
    all.extend(study::charts(study).map(|(name, chart)| (name, Box::new(chart) as _)));
    drawn(all)
}

/// The plots of a session.
pub(super) fn of_session(report: &Report) -> Result<Plots, Error> {
    drawn(session::pictures(report))
}

/// The plots of several sessions beside each other; each session has a name.
pub(super) fn of_sessions(reports: &[(String, Report)]) -> Result<Plots, Error> {
    drawn(session::compared(reports))
}

fn drawn(all: Pictures) -> Result<Plots, Error> {
    let drawn = all.into_iter().map(|(name, picture)| Ok(picture.draw()?.map(|drawing| (name, drawing))));
    drawn.filter_map(Result::transpose).collect()
}

/// Writes `NAME.svg` and `NAME.pdf` into `dir` for each of `plots`, and returns the files.
pub(super) fn save(plots: &Plots, dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut files = Vec::new();
    for (name, drawing) in plots {
        for (end, bytes) in [("svg", drawing.svg.as_bytes()), ("pdf", &drawing.pdf)] {
            let path = dir.join(format!("{name}.{end}"));
            write(&path, bytes)?;
            files.push(path);
        }
    }
    Ok(files)
}
