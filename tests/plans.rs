//! Plans of sessions over models, policies, links and phases (`tests/data/plans.txt`), compared with golden files.
//!
//! A plan equals the ledger of its session (`tests/plan.rs`), so a change of the program that moves one byte or one
//! flow of a session shows here, by phase and operation. If that is what the change is for, write the files anew and
//! look at the difference:
//!
//! ```sh
//! WAGGLE_BLESS=1 cargo test --release --test all plans:: && git diff --stat tests/data/plans
//! ```

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::support::{json, waggle};
use serde_json::Value;

/// Name and arguments of each plan. A model in braces is a configuration in `tests/data/models`.
fn plans() -> Vec<(String, String)> {
    let list = fs::read_to_string(data("plans.txt")).unwrap();
    let plans = list.lines().filter(|line| !line.starts_with('#')).map(|line| line.split_once(": ").unwrap());
    plans.map(|(name, arguments)| (name.to_owned(), arguments.to_owned())).collect()
}

fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(path)
}

fn plan(arguments: &str) -> Value {
    let mut command = waggle("plan");
    for word in arguments.split_whitespace() {
        match word.strip_prefix('{').and_then(|word| word.strip_suffix('}')) {
            Some(name) => command.arg(data(&format!("models/{name}.json"))),
            None => command.arg(word),
        };
    }
    json(&mut command)
}

/// A report as lines: first what is neither a list of costs nor of this machine, then a line for every phase, token,
/// operation and kind of correlation with its bytes to the server, bytes to the client, flows and seconds.
fn lines(mut report: Value) -> String {
    let [operations, kinds] = ["operations", "preparation_kinds"].map(|key| report[key].take());
    let mut phases = report["phases"].take();
    let tokens = phases["decode"]["per_token"].take();
    let head = report.as_object_mut().unwrap();
    head.remove("provenance").expect("a report says where it was made");
    head.retain(|_, value| !value.is_null());
    let mut out = format!("{report}\n");
    let mut row = |name: &str, cost: &Value| {
        let numbers = ["bytes_client_to_server", "bytes_server_to_client", "flows", "seconds"].map(|key| &cost[key]);
        assert_eq!(cost["cpu_seconds"], 0.0, "{name}: a plan computes nothing");
        let [to_server, to_client, flows, seconds] = numbers;
        writeln!(out, "{name}: {to_server} {to_client} {flows} {seconds}").unwrap();
    };
    for phase in ["setup", "offline", "prefill", "decode"] {
        row(phase, &phases[phase]);
    }
    for (index, token) in tokens.as_array().unwrap().iter().enumerate() {
        row(&format!("token {index}"), token);
    }
    for operation in operations.as_array().unwrap() {
        let [phase, path] = ["phase", "path"].map(|key| operation[key].as_str().unwrap());
        row(&format!("{phase} /{path}"), operation);
    }
    for kind in kinds.as_array().into_iter().flatten() {
        row(&format!("kind {}", kind["path"].as_str().unwrap()), kind);
    }
    out
}

/// The first lines that differ.
fn difference(old: &str, new: &str) -> String {
    let (old, new): (Vec<_>, Vec<_>) = (old.lines().collect(), new.lines().collect());
    let (kept, came): (BTreeSet<_>, BTreeSet<_>) = (old.iter().collect(), new.iter().collect());
    let gone = old.iter().filter(|line| !came.contains(line)).map(|line| format!("- {line}"));
    let added = new.iter().filter(|line| !kept.contains(line)).map(|line| format!("+ {line}"));
    gone.take(5).chain(added.take(5)).collect::<Vec<_>>().join("\n")
}

#[test]
fn no_byte_has_moved() {
    let bless = std::env::var_os("WAGGLE_BLESS").is_some();
    let (left, failures) = (Mutex::new(plans().into_iter()), Mutex::new(Vec::new()));
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some((name, arguments)) = { left.lock().unwrap().next() } {
                    let (file, new) = (data(&format!("plans/{name}.txt")), lines(plan(&arguments)));
                    if bless {
                        fs::write(&file, &new).unwrap();
                        continue;
                    }
                    let old = fs::read_to_string(&file).unwrap();
                    if old != new {
                        let difference = difference(&old, &new);
                        failures.lock().unwrap().push(format!("{name} ({arguments})\n{difference}"));
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "plans differ from tests/data/plans:\n{}", failures.join("\n"));
}

#[test]
fn every_plan_has_its_file_and_no_other_file_is_there() {
    if std::env::var_os("WAGGLE_BLESS").is_some() {
        return; // They are being written.
    }
    let files: BTreeSet<String> =
        fs::read_dir(data("plans")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let plans: BTreeSet<String> = plans().iter().map(|(name, _)| format!("{name}.txt")).collect();
    assert_eq!(files, plans);
}
