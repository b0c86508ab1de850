//! Plans of thirty-eight sessions over models, policies, links and phases, compared with golden files.
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
const PLANS: [(&str, &str); 43] = [
    // Every link, exact attention, one phase and two.
    ("gpt2-loopback", "--model shakespeare-gpt2 --link loopback --prompt-len 16 --tokens 3"),
    ("gpt2-lan-two-phases", "--model shakespeare-gpt2 --link lan --prompt-len 16 --tokens 3 --preprocess"),
    ("gpt2-lan-1g", "--model shakespeare-gpt2 --link lan-1g --prompt-len 17 --tokens 3 --reveal token --stop-at-eos"),
    ("gpt2-wan-padded", "--model shakespeare-gpt2 --link wan --prompt-len 32 --tokens 3 --pad-prompt --preprocess"),
    ("gpt2-wan-far", "--model shakespeare-gpt2 --link wan-far --prompt-len 1 --tokens 3 --ot softspoken4"),
    ("llama-loopback-two-phases", "--model shakespeare-llama --link loopback --prompt-len 9 --tokens 3 --preprocess"),
    (
        "llama-lan",
        "--model shakespeare-llama --link lan --prompt-len 16 --tokens 3 --ot softspoken8 --packing always",
    ),
    (
        "llama-lan-1g-two-phases",
        "--model shakespeare-llama --link lan-1g --prompt-len 31 --tokens 2 --preprocess --packing never",
    ),
    ("llama-wan", "--model shakespeare-llama --link wan --prompt-len 40 --tokens 2 --ot softspoken2"),
    (
        "llama-wan-far-padded",
        "--model shakespeare-llama --link wan-far --prompt-len 16 --tokens 3 --pad-prompt --preprocess --reveal token",
    ),
    // Real shapes, and shapes that no power of two divides.
    ("gpt2-small", "--model {gpt2-small} --link lan --prompt-len 64 --tokens 2"),
    ("gpt2-small-two-phases", "--model {gpt2-two-layers} --link lan --prompt-len 128 --tokens 3 --preprocess"),
    ("gpt2-small-wan", "--model {gpt2-two-layers} --link wan --prompt-len 64 --tokens 2"),
    ("grouped", "--model {llama-grouped} --link lan-1g --prompt-len 32 --tokens 2"),
    ("grouped-two-phases", "--model {llama-grouped} --link wan --prompt-len 32 --tokens 3 --preprocess"),
    ("gpt2-odd", "--model {gpt2-odd} --link lan --prompt-len 5 --tokens 3 --preprocess"),
    ("llama-odd", "--model {llama-odd} --link lan-1g --prompt-len 5 --tokens 3 --reveal token"),
    // Every policy.
    ("mpcache", "--model {gpt2-two-layers} --link lan --prompt-len 64 --tokens 6 --preprocess --policy mpcache"),
    (
        "mpcache-boxes",
        "--model {llama-grouped} --link lan --prompt-len 64 --tokens 6 --select per-kv \
         --policy mpcache:clusters=32/16,similarity=box,gather=scores,topk=sort,static=1,dense=1",
    ),
    (
        "mpcache-scores",
        "--model {gpt2-two-layers} --link wan --prompt-len 96 --tokens 4 --preprocess --policy mpcache-scores:budget=0.2",
    ),
    (
        "mpcache-scores-one-phase",
        "--model {llama-grouped} --link lan --prompt-len 64 --tokens 3 --policy mpcache-scores",
    ),
    ("streaming", "--model shakespeare-llama --link lan --prompt-len 40 --tokens 4 --preprocess --policy streaming"),
    ("h2o", "--model shakespeare-gpt2 --link lan --prompt-len 40 --tokens 4 --preprocess --policy h2o"),
    ("tova", "--model shakespeare-llama --link wan --prompt-len 40 --tokens 4 --policy tova:topk=shuffle-reveal"),
    ("snapkv", "--model {llama-odd} --link lan --prompt-len 48 --tokens 4 --preprocess --policy snapkv:window=8"),
    ("infllm", "--model {gpt2-odd} --link lan-1g --prompt-len 64 --tokens 5 --policy infllm:clusters=4,sinks=4"),
    ("longcache", "--model {llama-odd} --link wan-far --prompt-len 48 --tokens 4 --preprocess --policy longcache"),
    (
        "quest",
        "--model {gpt2-odd} --link lan --prompt-len 64 --tokens 5 --preprocess --policy quest:clusters=8,sinks=8",
    ),
    ("arkvale", "--model {llama-odd} --link lan --prompt-len 64 --tokens 4 --policy arkvale:clusters=8,topk=sort"),
    // Budgets in tokens: stores that are full while text is generated, prompts that are cut while they are read.
    (
        "streaming-tokens",
        "--model shakespeare-llama --link lan --prompt-len 40 --tokens 8 --preprocess \
         --policy streaming:budget=24,block=4,prefill=16",
    ),
    (
        "h2o-blocks",
        "--model shakespeare-gpt2 --link wan --prompt-len 30 --tokens 8 --preprocess --policy h2o:budget=32,block=4",
    ),
    (
        "snapkv-tokens",
        "--model {gpt2-odd} --link lan --prompt-len 40 --tokens 8 --preprocess \
         --policy snapkv:budget=32,block=4,window=8,prefill=16,topk=sort",
    ),
    (
        "pyramid",
        "--model {llama-grouped} --link lan --prompt-len 40 --tokens 4 --preprocess --policy pyramid:budget=24,block=3",
    ),
    (
        "knorm",
        "--model {llama-odd} --link lan --prompt-len 48 --tokens 8 --preprocess --policy knorm:budget=32,block=4",
    ),
    (
        "squeeze",
        "--model {llama-grouped} --link lan --prompt-len 40 --tokens 4 --preprocess \
         --policy squeeze:budget=24,block=3,layers=0",
    ),
    (
        "mpcache-2pc",
        "--model {llama-grouped} --link lan --prompt-len 48 --tokens 6 --preprocess --policy mpcache-2pc:budget=0.3",
    ),
    (
        "kvzap",
        "--model {llama-odd} --link lan --prompt-len 48 --tokens 8 --preprocess --policy kvzap:budget=32,block=4",
    ),
    (
        "kvzap-shuffled",
        "--model {gpt2-two-layers} --link wan --prompt-len 48 --tokens 8 \
         --policy kvzap:budget=32,block=4,prefill=16,topk=shuffle-reveal",
    ),
    (
        "keyformer",
        "--model {gpt2-odd} --link lan --prompt-len 40 --tokens 6 --preprocess --policy keyformer:budget=32,block=4",
    ),
    // Heads that hold different tokens, in two phases and in one.
    (
        "duo",
        "--model {gpt2-two-layers} --link lan --prompt-len 64 --tokens 6 --preprocess --policy duo:heads=3f.a05,budget=24",
    ),
    (
        "duo-one-phase",
        "--model {llama-odd} --link wan --prompt-len 40 --tokens 4 --policy duo:heads=1,budget=16,prefill=16",
    ),
    (
        "razor",
        "--model {llama-odd} --link wan --prompt-len 40 --tokens 6 --preprocess --policy razor:heads=2,budget=16,block=3",
    ),
    ("random", "--model shakespeare-gpt2 --link 10mbit,20ms --prompt-len 24 --tokens 3 --policy random:seed=7"),
];

fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(path)
}

/// Runs one of [`PLANS`].
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
    let (left, failures) = (Mutex::new(PLANS.iter()), Mutex::new(Vec::new()));
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some((name, arguments)) = { left.lock().unwrap().next() } {
                    let (file, new) = (data(&format!("plans/{name}.txt")), lines(plan(arguments)));
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
    let plans: BTreeSet<String> = PLANS.iter().map(|(name, _)| format!("{name}.txt")).collect();
    assert_eq!(files, plans);
}
