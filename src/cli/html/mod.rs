//! Reports as pages of HTML, each in one file.

mod page;
mod session;
mod study;

use ::study::eval::Evaluation;
use report::Report;
use serde_json::Value;

use super::Error;

/// The page of a session; `json` is the document that `report` was read from.
pub(super) fn of_session(name: &str, report: &Report, json: &Value) -> Result<String, Error> {
    Ok(session::page(name, report, json).html()?)
}

/// The page of a study; `json` is its document.
pub(super) fn of_study(name: &str, study: &Evaluation, json: &Value) -> Result<String, Error> {
    Ok(study::page(name, study, json).html()?)
}

/// The entries of an object as names and texts, objects within it flattened.
fn entries(value: Option<&Value>) -> Vec<(String, String)> {
    let mut entries = Vec::new();
    if let Some(Value::Object(map)) = value {
        for (key, value) in map {
            flatten(&key.replace('_', " "), value, &mut entries);
        }
    }
    entries
}

fn flatten(name: &str, value: &Value, entries: &mut Vec<(String, String)>) {
    match value {
        Value::Null => {}
        Value::String(text) if text.is_empty() => {}
        Value::String(text) => entries.push((name.into(), text.clone())),
        Value::Object(map) => {
            for (key, value) in map {
                flatten(&format!("{name}: {}", key.replace('_', " ")), value, entries);
            }
        }
        Value::Array(all) if all.is_empty() => {}
        Value::Array(all) => {
            let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            entries.push((name.into(), all.iter().map(text).collect::<Vec<_>>().join(", ")));
        }
        other => entries.push((name.into(), other.to_string())),
    }
}
