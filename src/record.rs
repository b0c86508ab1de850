//! Reads documents that commands wrote with `--json`.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::Value;
use waggle::program::harmless;
use waggle_files::load;
use waggle_report::Report;
use waggle_study::eval::StudyReport;
use waggle_study::sweep::Sweep;

use super::Error;

/// Why a document cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum RecordError {
    #[error("{}: no report of a run: {what}", path.display())]
    NotReport { path: PathBuf, what: String },
    #[error("{}: the record of a study of an encoder (`eval --task glue`), which has no page and no plot", .0.display())]
    Glue(PathBuf),
    #[error("{}: a study is plotted alone, a sweep beside sweeps only", .0.display())]
    BesideOthers(PathBuf),
    #[error("no {what} {name}; there are {known}")]
    NotDrawn { what: &'static str, name: String, known: String },
    #[error("there is nothing to plot: a study needs a policy beside `full`, and reports and sweeps costs")]
    NothingToPlot,
    #[error("{} and {}: they are documents of two kinds, of a run, of a study or of a sweep", .0[0].display(), .0[1].display())]
    Incomparable([PathBuf; 2]),
}

pub(super) enum Record {
    /// The report of a session, or of a session's plan.
    Session(Box<Report>),
    Study(Box<StudyReport>),
    Sweep(Box<Sweep>),
}

/// The document in `path`, and the same document as plain JSON. Both are without control characters, as the document
/// is shown and may come from anybody.
pub(super) fn open(path: &Path) -> Result<(Record, Value), Error> {
    read_as(path, &load(path)?)
}

/// The document in `bytes`, which are those of the file `path`, as in [`open`].
pub(super) fn read_as(path: &Path, bytes: &[u8]) -> Result<(Record, Value), Error> {
    let unread = |what: serde_json::Error| RecordError::NotReport { path: path.into(), what: what.to_string() };
    let json = clean(serde_json::from_slice(bytes).map_err(unread)?);
    // Studies have rows, and sweeps have cells. Any other document is read as a report, and has a report's errors.
    let record = if json.get("rows").is_some() {
        Record::Study(parsed(&json).map_err(unread)?)
    } else if json.get("cells").is_some() {
        Record::Sweep(parsed(&json).map_err(unread)?)
    } else if json.get("answers").is_some() {
        return Err(RecordError::Glue(path.into()).into());
    } else {
        Record::Session(parsed(&json).map_err(unread)?)
    };
    Ok((record, json))
}

fn parsed<T: DeserializeOwned>(json: &Value) -> Result<T, serde_json::Error> {
    T::deserialize(json)
}

/// `value` without control characters in keys and texts.
fn clean(value: Value) -> Value {
    match value {
        Value::String(text) => harmless(&text).into(),
        Value::Array(all) => all.into_iter().map(clean).collect(),
        Value::Object(all) => all.into_iter().map(|(name, value)| (harmless(&name), clean(value))).collect(),
        other => other,
    }
}

/// The file name of `path` without its ending, for titles and labels.
pub(super) fn name(path: &Path) -> String {
    path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_of_another_kind_is_named() {
        let refused = |json: &str| match read_as(Path::new("x.json"), json.as_bytes()) {
            Err(Error::Record(error)) => error,
            _ => panic!("{json}"),
        };
        assert!(matches!(refused(r#"{"version": 1, "labels": ["a"], "answers": []}"#), RecordError::Glue(_)));
        assert!(matches!(refused("{}"), RecordError::NotReport { .. }));
    }
}
