//! Documents that commands wrote with `--json`, read again.

use std::path::Path;

use report::Report;
use serde::de::DeserializeOwned;
use serde_json::Value;
use study::eval::Evaluation;

use super::Error;
use super::files::read;
use super::progress::harmless;
use super::sweep::Sweep;

/// What a file holds.
pub(super) enum Record {
    /// The report of a session, or of the plan of one.
    Session(Box<Report>),
    /// A study of cache policies.
    Study(Box<Evaluation>),
    /// Planned cells.
    Sweep(Box<Sweep>),
}

/// The document in `path`, and the same as bare JSON, both without control characters: it may be anybody's, and it is
/// shown.
///
/// # Errors
/// [`Error::NotReport`] for a file that holds none.
pub(super) fn open(path: &Path) -> Result<(Record, Value), Error> {
    read_as(path, &read(path)?)
}

/// The same of the `bytes` of `path`.
pub(super) fn read_as(path: &Path, bytes: &[u8]) -> Result<(Record, Value), Error> {
    let unread = |what: serde_json::Error| Error::NotReport { path: path.into(), what: what.to_string() };
    let json = clean(serde_json::from_slice(bytes).map_err(unread)?);
    // Studies have rows, sweeps cells. What has neither gives the error of a report.
    let record = if json.get("rows").is_some() {
        Record::Study(parsed(&json).map_err(unread)?)
    } else if json.get("cells").is_some() {
        Record::Sweep(parsed(&json).map_err(unread)?)
    } else {
        Record::Session(parsed(&json).map_err(unread)?)
    };
    Ok((record, json))
}

fn parsed<T: DeserializeOwned>(json: &Value) -> Result<T, serde_json::Error> {
    T::deserialize(json)
}

/// `value` with harmless names and texts alone.
fn clean(value: Value) -> Value {
    match value {
        Value::String(text) => harmless(&text).into(),
        Value::Array(all) => all.into_iter().map(clean).collect(),
        Value::Object(all) => all.into_iter().map(|(name, value)| (harmless(&name), clean(value))).collect(),
        other => other,
    }
}

/// The name of `path` without folder and ending, for titles and labels.
pub(super) fn name(path: &Path) -> String {
    path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
