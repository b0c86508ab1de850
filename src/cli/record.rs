//! Documents that commands wrote with `--json`, read again.

use std::path::Path;

use model::eval::Evaluation;
use model::report::Report;
use serde_json::Value;

use super::Error;
use super::files::read;

/// What a file holds.
pub(super) enum Record {
    /// The report of a session, or of the plan of one.
    Session(Box<Report>),
    /// A study of cache policies.
    Study(Box<Evaluation>),
}

/// The document in `path`, and the same as bare JSON.
///
/// # Errors
/// [`Error::NotReport`] for a file that holds neither.
pub(super) fn open(path: &Path) -> Result<(Record, Value), Error> {
    read_as(path, &read(path)?)
}

/// The same of the `bytes` of `path`.
pub(super) fn read_as(path: &Path, bytes: &[u8]) -> Result<(Record, Value), Error> {
    let unread = |what: String| Error::NotReport { path: path.into(), what };
    let json: Value = serde_json::from_slice(bytes).map_err(|e| unread(e.to_string()))?;
    let record = if json.get("rows").is_some() {
        let study: Evaluation = serde_json::from_value(json.clone()).map_err(|e| unread(e.to_string()))?;
        Record::Study(Box::new(study))
    } else {
        let report: Report = serde_json::from_value(json.clone()).map_err(|e| unread(e.to_string()))?;
        Record::Session(Box::new(report))
    };
    Ok((record, json))
}

/// The name of `path` without folder and ending, for titles and labels.
pub(super) fn name(path: &Path) -> String {
    path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
