//! Records: what made them is in them, what is nobody's business is not, and `bench/SCHEMA.md` names every field.

use std::collections::BTreeSet;
use std::path::Path;

use crate::support::{fail, json, succeed, waggle};
use serde_json::Value;

/// A session small enough for a test.
const DEMO: &str = "demo --prompt-ids 30,27,25 --tokens 3 --link";

/// The names of all fields in `value`, except those under `config`, which are a model's.
fn fields(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                found.insert(name.clone());
                if name != "config" {
                    fields(value, found);
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| fields(value, found)),
        _ => {}
    }
}

/// Records of every kind.
fn records() -> Vec<Value> {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("text.txt");
    std::fs::write(&text, "ROMEO:\nWhat say you to the king? My lord, I come to speak of love.\n".repeat(4)).unwrap();
    let text = text.display();
    let me = env!("CARGO_BIN_EXE_waggle");
    let lines = dir.path().join("lines.jsonl");
    succeed(waggle("tables ablation --cache 64 --plan-only --plan-steps 1 --only absent --records").arg(&lines));
    let lines = std::fs::read_to_string(&lines).unwrap();
    let mut all = vec![
        json(&mut waggle(&format!("{DEMO} loopback --check --policy snapkv:budget=0.5"))),
        json(&mut waggle(&format!("{DEMO} memory --preprocess --draft lookup:2"))),
        json(&mut waggle("plan --cached 20 --preprocess --policy mpcache")),
        json(&mut waggle(&format!(
            "eval --text {text} --context 32 --sequences 2 --policies h2o --budgets 0.5 --costs lan"
        ))),
        json(&mut waggle("sweep --models gpt2 --contexts 16 --tokens 2 --policies full,mpcache-2pc")),
    ];
    let file = compared(dir.path());
    let mut compare = waggle(&format!("compare --binaries {me} {me} --repeat 2 --warm-up 0 --json"));
    succeed(compare.arg(&file).args(["--", "demo", "--prompt-ids", "1", "--tokens", "1", "--link", "memory"]));
    all.push(serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap());
    all.extend(lines.lines().map(|line| serde_json::from_str(line).unwrap()));
    all
}

#[test]
fn the_schema_names_every_field() {
    let schema = include_str!("../bench/SCHEMA.md");
    let mut found = BTreeSet::new();
    records().iter().for_each(|record| fields(record, &mut found));
    let missing: Vec<&String> = found.iter().filter(|name| !schema.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "bench/SCHEMA.md does not name {missing:?}");
    // The test would see nothing if records were empty.
    for name in
        ["peer_cpu_seconds", "tokens_per_pass", "against_full_cache", "perplexity", "samples", "metric", "online"]
    {
        assert!(found.contains(name), "no record has {name}");
    }
}

#[test]
fn records_say_what_made_them_and_no_more() {
    let user = ["USER", "LOGNAME"].map(|name| std::env::var(name).ok());
    let host = std::fs::read_to_string("/etc/hostname").ok();
    let names: Vec<String> = user.into_iter().chain([host]).flatten().map(|name| name.trim().to_owned()).collect();
    let folders = [std::env::temp_dir(), Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()];
    for record in records() {
        let made = record.get("provenance").or_else(|| record.get("run")).unwrap_or_else(|| panic!("{record}"));
        assert!(made["command"].as_str().unwrap().starts_with("waggle "), "{made}");
        assert_eq!(made["version"], env!("CARGO_PKG_VERSION"));
        assert!(made["cores"].as_u64().unwrap() > 0 && made["date"].as_str().unwrap().ends_with('Z'), "{made}");
        assert!(made["processor"].as_str().is_some_and(|name| !name.is_empty()) && made["features"].is_array());
        let text = made.to_string();
        for folder in &folders {
            assert!(!text.contains(&folder.display().to_string()), "{text}");
        }
        // Short names are parts of words.
        for name in names.iter().filter(|name| name.len() > 4) {
            assert!(!text.contains(name.as_str()), "{name} in {text}");
        }
        assert!(!text.contains("30,27,25"), "the prompt: {text}");
    }
}

#[test]
fn records_that_are_older_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    let [old, new] = ["old.json", "new.json"].map(|name| dir.path().join(name));
    succeed(waggle(&format!("{DEMO} memory --json")).arg(&new));
    let mut record: Value = serde_json::from_slice(&std::fs::read(&new).unwrap()).unwrap();
    record.as_object_mut().unwrap().remove("provenance").expect("a report of today has it");
    record["phases"]["decode"]["bytes_client_to_server"] = 0.into();
    std::fs::write(&old, record.to_string()).unwrap();
    let shown = succeed(waggle("compare").args([&old, &new]));
    assert!(shown.contains("old.json") && shown.contains("program") && shown.contains("decode"), "{shown}");
    let same = succeed(waggle("compare --format json").args([&new, &new]));
    let same: Value = serde_json::from_str(&same).unwrap();
    assert_eq!(same["phases"][3]["ratio_of_bytes"], 1.0, "{same}");
    assert!(same.get("differences").is_none());
}

#[test]
fn studies_are_compared_row_by_row_and_not_with_reports() {
    let dir = tempfile::tempdir().unwrap();
    let [few, more, run] = ["few.json", "more.json", "run.json"].map(|name| dir.path().join(name));
    let line = "eval --text tinyshakespeare.txt --context 32 --sequences 1 --policies h2o --budgets";
    succeed(waggle(&format!("{line} 0.5 --json")).arg(&few));
    succeed(waggle(&format!("{line} 0.5,0.25 --json")).arg(&more));
    let shown = succeed(waggle("compare --format csv").args([&few, &more]));
    assert!(shown.contains("h2o,0.5,perplexity,"), "{shown}");
    let noted = succeed(waggle("compare").args([&few, &more]));
    assert!(noted.contains("only one of them has h2o at 0.25"), "{noted}");
    succeed(waggle("plan --cached 8 --json").arg(&run));
    assert!(fail(waggle("compare").args([&few, &run]), 1).contains("one is the report of a run, the other a study"));
    assert!(fail(waggle("compare").args([&run, Path::new("absent.json")]), 1).contains("absent.json"));
}

#[test]
fn two_programs_run_in_turn() {
    let dir = tempfile::tempdir().unwrap();
    let record = compared(dir.path());
    let me = env!("CARGO_BIN_EXE_waggle");
    let run = |program: &str, rest: &str| {
        let mut command = waggle(&format!("compare --binaries {me} {program} --repeat 3 --warm-up 1 --json"));
        command.arg(&record).arg("--").args(rest.split_whitespace());
        command
    };
    let shown = succeed(&mut run(me, "demo --prompt-ids 1 --tokens 2 --link memory"));
    assert!(shown.contains("the same program, bytes and flows") && shown.contains("new / old, median"), "{shown}");
    let value: Value = serde_json::from_slice(&std::fs::read(&record).unwrap()).unwrap();
    for side in value["sides"].as_array().unwrap() {
        assert_eq!(side["samples"].as_array().unwrap().len(), 3, "the warm-up does not count");
        assert!(side["samples"][0]["decode"]["seconds"].as_f64().unwrap() > 0.0);
    }
    assert!(fail(&mut run("/bin/false", "demo"), 1).contains("/bin/false"));
    assert!(fail(&mut run(me, "demo --tokens x"), 1).contains("exit"));
    assert!(fail(&mut waggle("compare one.json"), 2).contains("REPORT"));
}

/// The file of a comparison.
fn compared(dir: &Path) -> std::path::PathBuf {
    dir.join("compared.json")
}

#[test]
fn a_sweep_is_the_plan_of_every_cell_and_goes_on_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let cells = dir.path().join("cells");
    let line = "sweep --models gpt2,shakespeare-llama --contexts 16,64 --policies full,mpcache-2pc --links lan,wan --phases one,two --tokens 4";
    let sweep = |rest: &str| json(waggle(&format!("{line} {rest} --out")).arg(&cells));
    let record = sweep("");
    let planned = record["cells"].as_array().unwrap();
    assert_eq!(planned.len(), 2 * 2 * 2 * 2 * 2);
    let find = |cells: &[Value]| {
        let wanted = |cell: &&Value| {
            let chosen = ["model", "link", "policy", "phases"].map(|key| cell[key].as_str().unwrap());
            chosen == ["gpt2", "wan", "full", "two"] && cell["context"] == 64
        };
        cells.iter().find(wanted).unwrap().clone()
    };
    // A cell is what `plan` says of the same session: four tokens after the one that the prompt gives.
    let cell = find(planned);
    let plan = json(&mut waggle("plan --model gpt2 --prompt-len 64 --tokens 5 --preprocess --link wan"));
    let number = |value: &Value| value.as_f64().unwrap();
    for key in ["bytes_client_to_server", "bytes_server_to_client", "flows"] {
        let [setup, offline, decode] =
            ["setup", "offline", "decode"].map(|phase| number(&plan["phases"][phase][key]));
        assert_eq!(4.0 * number(&cell["online"][key]), decode, "{key}");
        let [prompt, token] = ["prepared_prompt", "prepared_token"].map(|part| number(&cell[part][key]));
        assert!((prompt + 4.0 * token - setup - offline).abs() < 1e-3, "{key}: {cell}");
        assert!(token > 0.0 && prompt > 64.0 / 8.0 * token, "{key}: {cell}");
    }
    let seconds = number(&plan["phases"]["decode"]["seconds"]);
    assert!((4.0 * number(&cell["online"]["network_seconds"]) - seconds).abs() < 1e-6);
    assert_eq!((&plan["seconds_are"], &cell["online"]["predicted_seconds"]), (&"network".into(), &Value::Null));
    // The first step alone has no prompt.
    let first = json(&mut waggle("sweep --first-step --contexts 64 --links wan"));
    let (cell, step) = (
        find(first["cells"].as_array().unwrap()),
        json(&mut waggle("plan --model gpt2 --cached 64 --preprocess --link wan")),
    );
    for (part, phase) in [("online", "decode"), ("prepared_token", "offline")] {
        for key in ["bytes_client_to_server", "bytes_server_to_client", "flows"] {
            assert_eq!(cell[part][key].as_f64(), step["phases"][phase][key].as_f64(), "{part} {key}");
        }
    }
    assert_eq!((&cell["tokens"], &cell["prepared_prompt"]), (&1.into(), &Value::Null));
    let published = record["published"].as_array().unwrap();
    assert!(published.iter().all(|figure| figure["model"] == "gpt2") && !published.is_empty());
    assert_eq!(std::fs::read_dir(&cells).unwrap().count(), planned.len());
    // What is kept is planned anew when it is spoilt, or of a program with changes.
    let first = std::fs::read_dir(&cells).unwrap().next().unwrap().unwrap().path();
    std::fs::write(&first, "{").unwrap();
    assert_eq!(sweep("")["cells"], record["cells"]);
    assert!(std::fs::read(&first).unwrap().len() > 10);

    assert!(fail(&mut waggle("sweep --first-step --tokens 8"), 2).contains("--tokens"));
    assert!(fail(&mut waggle("sweep --tokens 1"), 2).contains("--tokens"));
    assert!(fail(&mut waggle("sweep --policies oracle"), 1).contains("only in the clear"));
    assert!(fail(&mut waggle("sweep --contexts 2000"), 1).contains("gpt2, 2000 tokens, full, lan, 2 phase(s)"));
    assert!(fail(&mut waggle("sweep --models recall --positions 4096"), 1).contains("--positions raises"));
    assert!(fail(&mut waggle("demo --model gpt2"), 1).contains("is a shape without weights"));
}

/// Columns and rows of a CSV whose cells have no quotes.
fn columns(csv: &str) -> (Vec<&str>, Vec<Vec<&str>>) {
    let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    (lines.next().unwrap(), lines.collect())
}

#[test]
fn a_table_is_one_table_and_says_what_its_seconds_are() {
    let line = "sweep --contexts 16 --policies full,mpcache-2pc";
    let csv = succeed(&mut waggle(&format!("{line} --format csv")));
    let (heads, rows) = columns(&csv);
    let words = ["model", "policy", "link", "phases"];
    for row in &rows {
        assert_eq!(row.len(), heads.len(), "{csv}");
        for (head, cell) in heads.iter().zip(row) {
            let number = cell.parse::<f64>().is_ok();
            assert!(
                number || words.contains(head) || *head == "random" && ["true", "false"].contains(cell),
                "{head}: {cell}"
            );
        }
    }
    let of = |name: &str| -> Vec<&str> {
        let at = heads.iter().position(|head| *head == name).unwrap();
        rows.iter().map(|row| row[at]).collect()
    };
    assert_eq!(of("policy"), ["full", "mpcache-2pc"]);
    assert_eq!(of("random"), ["false", "true"]);
    // The mean of 64 tokens is the default.
    assert_eq!((of("mean_of_tokens"), of("prompt_tokens")), (vec!["64"; 2], vec!["16"; 2]));
    assert!(heads.contains(&"online_network_seconds") && !heads.iter().any(|head| head.contains("predicted")));

    for format in ["terminal", "markdown", "latex"] {
        let shown = succeed(&mut waggle(&format!("{line} --format {format}")));
        assert!(shown.contains("online, network s") && shown.contains("mean of 64 tokens after a prompt"), "{shown}");
    }
    let latex = succeed(&mut waggle(&format!("{line} --format latex")));
    assert!(latex.contains("\\begin{tabular}{lllllrrrrrrrrrrrrr}") && latex.contains("\\bottomrule"), "{latex}");
    assert!(latex.contains("online, MB & "), "{latex}");
    let rows = latex.lines().filter(|line| line.starts_with("gpt2"));
    assert!(rows.into_iter().all(|row| !row.contains("MB")), "units stand in the head alone: {latex}");
    // What others measured has a table of its own.
    let published = succeed(&mut waggle("sweep --published --format csv"));
    assert!(published.starts_with("system,what,measured_seconds,sent_bytes,"), "{published}");
    assert!(!published.contains("network"), "{published}");

    // A plan has two tables, and is one for programs.
    let csv = succeed(&mut waggle("plan --model gpt2 --cached 16 --preprocess --format csv"));
    let (heads, rows) = columns(&csv);
    assert!(rows.iter().all(|row| row.len() == heads.len()), "{csv}");
    assert_eq!((heads[0], rows[0][0], rows[rows.len() - 1][0]), ("table", "phases", "operations"));
    assert!(heads.contains(&"network_seconds"), "{csv}");
}

/// The control characters that move a cursor or name a window.
const BAD: &str = "a\u{1b}]0;title\u{7}b\u{9b}2Jc";

#[test]
fn documents_and_tokenizers_send_nothing_to_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let [good, bad] = ["good.json", "bad.json"].map(|name| dir.path().join(name));
    succeed(waggle(&format!("{DEMO} memory --json")).arg(&good));
    let mut record: Value = serde_json::from_slice(&std::fs::read(&good).unwrap()).unwrap();
    record["options"][BAD] = BAD.into();
    record["text"] = BAD.into();
    record["model"]["name"] = BAD.into();
    record["operations"][0]["path"] = BAD.into();
    std::fs::write(&bad, record.to_string()).unwrap();
    let page = dir.path().join("page.html");
    succeed(waggle("report").arg(&bad).arg("--html").arg(&page));
    let shown = [
        succeed(waggle("compare").args([&bad, &good])),
        succeed(waggle("compare --format markdown").args([&good, &bad])),
        succeed(waggle("report").arg(&bad)),
        std::fs::read_to_string(page).unwrap(),
    ];
    for text in shown {
        assert!(text.contains("a]0;titleb2Jc"), "{text:?}");
        assert!(!text.contains(|c: char| c.is_control() && !matches!(c, '\n' | '\t')), "{text:?}");
    }

    let model = dir.path().join("model");
    std::fs::create_dir(&model).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("model/assets/shakespeare-gpt2").join(file);
        std::fs::copy(from, model.join(file)).unwrap();
    }
    // A space is more than a space.
    let tokenizer = std::fs::read_to_string(model.join("tokenizer.json")).unwrap();
    let hostile = tokenizer.replacen("\" \": 1", "\" \\u001b[2J\": 1", 1).replacen(
        "\"unk_token\": \" \"",
        "\"unk_token\": \"e\"",
        1,
    );
    assert_ne!(hostile, tokenizer);
    std::fs::write(model.join("tokenizer.json"), hostile).unwrap();
    let said = succeed(waggle("float --prompt-ids 30,27,25 --tokens 40 --model").arg(&model));
    assert!(said.contains("[2J") && !said.contains('\u{1b}'), "{said:?}");
}

#[test]
fn tables_of_plans_and_studies_have_every_form() {
    let plan =
        |format: &str| succeed(&mut waggle(&format!("plan --model gpt2 --cached 16 --preprocess --format {format}")));
    let value: Value = serde_json::from_str(&plan("json")).unwrap();
    assert_eq!(value["phases"][3]["phase"], "decode");
    assert!(value["phases"][3]["client_to_server_bytes"].as_u64().unwrap() > 0, "{value}");
    assert!(plan("markdown").contains("**phases**") && plan("latex").contains("\\toprule"));
    let line =
        "eval --text tinystories.json --model stories260k --context 24 --sequences 1 --policies h2o --budgets 0.5";
    let study = succeed(&mut waggle(&format!("{line} --format csv")));
    assert!(study.lines().nth(2).unwrap().starts_with("h2o,0.5,"), "{study}");
    // Bundled queries and their model.
    let recall = "eval --task recall --model recall --data queries.jsonl --sequences 1 --format json";
    let value: Value = serde_json::from_str(&succeed(&mut waggle(recall))).unwrap();
    assert!(value[0]["right"].as_f64().unwrap() > 0.9, "{value}");
}
