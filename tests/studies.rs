//! Effects of every policy on the predictions of the bundled models, compared with a golden file.
//!
//! The engine is fixed point in the clear: integers, so each number stands for every rounding and every choice of a
//! generation. Metrics are sums of floating-point numbers and may differ by [`TOLERANCE`] from machine to machine. If
//! a change of the program is meant to change them, write the file anew and look at the difference:
//!
//! ```sh
//! WAGGLE_BLESS=1 cargo test --release --test all studies:: && git diff tests/data/studies.jsonl
//! ```

use std::fs;
use std::path::Path;

use crate::support::waggle;
use serde_json::{Value, json};

/// Largest difference of a metric, relative where it is above 1: above the rounding of sums, far below one changed
/// token.
const TOLERANCE: f64 = 1e-6;

const TEXT: &str = "ROMEO:\nWhat say you to the king? My lord, I come to speak of it.\n";

const POLICIES: &str = "mpcache;mpcache:similarity=box,topk=sort;mpcache:similarity=cuboid-mean,select=per-kv;mpcache-scores;\
                        streaming;h2o;tova;snapkv:window=8;infllm:clusters=4,sinks=4;longcache;\
                        quest:clusters=4,sinks=4;arkvale:clusters=4,sinks=4;random;\
                        snapkv:window=8,prefill=12;pyramid;knorm:recent=4;knorm:recent=4,prefill=12;\
                        squeeze:window=8;kvzap:recent=4;kvzap:recent=4,prefill=12;keyformer:recent=4;sirllm:recent=4;\
                        duo:heads=1,block=4;razor:heads=2,block=4;fastgen;snapkv:window=8,guard=0.2;h2o:guard=0.2;scissorhands:window=8;alisa";

/// The rows of a study of `model`.
fn study(model: &str) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("text.txt");
    fs::write(&text, TEXT).unwrap();
    let line = format!("eval --engine fixed --model {model} --context 56 --sequences 1 --budgets 0.3 --text");
    let report = crate::support::json(waggle(&line).arg(text).args(["--policies", POLICIES]));
    let mut rows = report["rows"].clone();
    for row in rows.as_array_mut().unwrap() {
        // `by_sequence` holds the same numbers once more: there is one sequence.
        row.as_object_mut().unwrap().remove("by_sequence").unwrap();
    }
    rows
}

/// Whether two values agree, numbers within [`TOLERANCE`].
fn agree(old: &Value, new: &Value) -> bool {
    match (old, new) {
        (Value::Number(old), Value::Number(new)) => {
            let (old, new) = (old.as_f64().unwrap(), new.as_f64().unwrap());
            (old - new).abs() <= TOLERANCE * old.abs().max(1.0)
        }
        (Value::Object(old), Value::Object(new)) => {
            old.len() == new.len() && old.iter().all(|(key, old)| new.get(key).is_some_and(|new| agree(old, new)))
        }
        _ => old == new,
    }
}

#[test]
fn no_prediction_has_moved() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/studies.jsonl");
    let models = ["shakespeare-gpt2", "shakespeare-llama"];
    let rows = models.map(study).into_iter().zip(models).flat_map(|(rows, model)| {
        let rows = rows.as_array().unwrap().clone();
        rows.into_iter().map(move |row| json!({ "model": model, "row": row }))
    });
    let new: Vec<Value> = rows.collect();
    if std::env::var_os("WAGGLE_BLESS").is_some() {
        let lines: String = new.iter().map(|row| format!("{row}\n")).collect();
        return fs::write(&file, lines).unwrap();
    }
    let old = fs::read_to_string(&file).unwrap();
    let old: Vec<Value> = old.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(old.len(), new.len(), "other rows than in {}", file.display());
    let moved: Vec<String> = old
        .iter()
        .zip(&new)
        .filter(|(old, new)| !agree(old, new))
        .map(|(old, new)| format!("- {old}\n+ {new}"))
        .collect();
    assert!(moved.is_empty(), "the study differs from {}:\n{}", file.display(), moved.join("\n"));
}
