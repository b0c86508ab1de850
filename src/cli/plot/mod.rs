//! Plots: charts of studies and of sessions, each as SVG and as PDF.
//!
//! `axis` scales and counts, `style` gives a policy its look, `chart`, `bars` and `grid` lay out, and `scene` is what
//! they draw on; `svg` and `pdf` write it. `study` and `session` choose what is drawn.

mod axis;
mod bars;
mod chart;
mod command;
mod grid;
mod pdf;
mod scene;
mod session;
mod study;
mod style;
mod svg;
mod text;

use std::path::{Path, PathBuf};

use ::study::eval::Evaluation;
use report::Report;

pub(super) use command::{PlotArgs, run};
pub(super) use scene::Scene;
pub(super) use svg::{Theme, svg};

use super::Error;
use super::files::write;

/// The plots of a study, by name.
pub(super) fn of_study(study: &Evaluation) -> Vec<(String, Scene)> {
    let grid = grid::scene(study).map(|scene| ("grid".to_owned(), scene));
    grid.into_iter().chain(study::scenes(study)).collect()
}

/// The plots of a session, by name.
pub(super) fn of_session(report: &Report) -> Vec<(String, Scene)> {
    session::scenes(report)
}

/// The plots of several sessions beside each other, by name; each session has a name.
pub(super) fn of_sessions(reports: &[(String, Report)]) -> Vec<(String, Scene)> {
    session::compared(reports)
}

/// Writes `NAME.svg` and `NAME.pdf` into `dir` for each of `scenes`, and returns the files.
pub(super) fn save(scenes: &[(String, Scene)], dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut files = Vec::new();
    for (name, scene) in scenes {
        for (end, bytes) in [("svg", svg(scene, Theme::File).into_bytes()), ("pdf", pdf::pdf(scene))] {
            let path = dir.join(format!("{name}.{end}"));
            write(&path, &bytes)?;
            files.push(path);
        }
    }
    Ok(files)
}
