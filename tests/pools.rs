//! Preprocessing as a command of its own: two processes, two sessions, two files.

mod support;

use std::path::Path;

use serde_json::Value;
use support::{Server, fail, json, succeed, waggle};

const PROMPT: &str = "--prompt-ids 30,27,25,17,27,10,0 --tokens 4";

fn bytes(report: &Value, phase: &str) -> u64 {
    ["bytes_client_to_server", "bytes_server_to_client"]
        .iter()
        .map(|way| report["phases"][phase][way].as_u64().unwrap())
        .sum()
}

fn files(dir: &Path) -> usize {
    std::fs::read_dir(dir).unwrap().count()
}

#[test]
fn a_pool_serves_one_generation() {
    let dir = tempfile::tempdir().unwrap();
    let (kept, pool, copy) = (dir.path().join("kept"), dir.path().join("a.pool"), dir.path().join("b.pool"));
    let server = Server::start(&format!("--model shakespeare-gpt2 --pools {}", kept.display()));
    let preprocess = |pool: &Path, bound: &str| {
        waggle(&format!("preprocess --connect {} --pool {} {bound}", server.address, pool.display()))
    };
    let generate = |pool: &Path, what: &str| server.client(&format!("--pool {} {what}", pool.display()));

    let made = json(&mut preprocess(&pool, "--prompt-len 7 --tokens 4"));
    assert_eq!((files(&kept), pool.is_file()), (1, true));
    let error = fail(&mut preprocess(&pool, "--prompt-len 7 --tokens 4"), 1);
    assert!(error.contains("no pool is overwritten"), "{error}");
    std::fs::copy(&pool, &copy).unwrap();

    let report = json(&mut generate(&pool, PROMPT));
    let truth = json(&mut waggle(&format!("float --model shakespeare-gpt2 {PROMPT}")));
    assert_eq!(report["tokens"], truth["tokens"]);
    // The OTs alone are left, which no file holds.
    let (before, left) = (bytes(&made, "offline"), bytes(&report, "offline"));
    assert!(2 * left < before, "{left} bytes are left of {before}");
    let late =
        report["operations"].as_array().unwrap().iter().find(|op| {
            op["phase"] == "offline" && op["path"] != "preprocess/OTs" && op["flows"].as_u64().unwrap() > 0
        });
    assert_eq!(late, None);
    assert_eq!(files(&kept) + usize::from(pool.exists()), 0, "both files are gone");

    let error = fail(&mut generate(&pool, PROMPT), 1);
    assert!(error.contains("a.pool: there is no pool here: it was used already"), "{error}");
    let error = fail(&mut generate(&copy, PROMPT), 1);
    assert!(error.contains("the server refuses: there is no pool ") && !error.contains("kept"), "{error}");

    // A copy of the server's file is not the client's.
    succeed(&mut preprocess(&pool, "--prompt-len 2 --tokens 1"));
    let theirs = std::fs::read_dir(&kept).unwrap().next().unwrap().unwrap().path();
    let error = fail(&mut generate(&theirs, "--prompt-ids 1 --tokens 1"), 1);
    assert!(error.contains("a pool of the server, expected one of the client"), "{error}");
    let error = fail(&mut generate(&pool, "--prompt-ids 1,2,3 --tokens 1"), 1);
    assert!(error.contains("3 tokens of a prompt are more than the 2"), "{error}");
    let error = fail(&mut generate(&pool, "--preprocess false --prompt-ids 1 --tokens 1"), 1);
    assert!(error.contains("--preprocess"), "{error}");
    let bytes = std::fs::read(&pool).unwrap();
    std::fs::write(&pool, &bytes[..bytes.len() - 1]).unwrap();
    let error = fail(&mut generate(&pool, "--prompt-ids 1 --tokens 1"), 1);
    assert!(error.contains(&format!("has {} bytes, expected {}", bytes.len() - 1, bytes.len())), "{error}");
}
