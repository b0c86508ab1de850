//! The numbers of a session are the same whoever tells them: `plan`, `sweep`, `reproduce`, `eval --costs` and the
//! report of a run.

use serde_json::Value;

use crate::support::{json, read_json, succeed, waggle};

/// The rows of the first table of a command in JSON, as programs read them.
fn rows(line: &str) -> Vec<Value> {
    let shown = succeed(&mut waggle(&format!("{line} --format json")));
    let tables: Value = serde_json::from_str(&shown).expect("JSON");
    let first = ["figures", "planned", "phases"].iter().find_map(|name| tables.get(name)).unwrap_or(&tables);
    first.as_array().expect("rows").clone()
}

fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or_else(|| panic!("{key} of {row}"))
}

/// Bytes both ways of the rows of a plan whose names begin with one of these.
fn sum(plan: &[Value], names: &[&str], key: &str) -> f64 {
    let named = |row: &&Value| names.iter().any(|name| row["phase"].as_str().expect("a name").starts_with(name));
    let of = |row: &Value| match key {
        "bytes" => number(row, "client_to_server_bytes") + number(row, "server_to_client_bytes"),
        key => number(row, key),
    };
    plan.iter().filter(named).map(of).sum()
}

/// One token or one pass by `plan` and by `sweep`: to the byte, to the flow, and to the digit that is printed.
#[test]
fn a_plan_and_a_sweep_of_one_session_agree() {
    let digits = |seconds: f64| format!("{seconds:.3}");
    for (model, work, phases) in [
        ("gpt2", "token", "one"),
        ("gpt2", "token", "two"),
        ("gpt2", "pass", "dealt"),
        ("gpt2", "pass", "three-parties"),
        ("bert-base", "pass", "one"),
        ("bert-base", "pass", "two"),
    ] {
        let (session, swept) = match work {
            "token" => ("--cached 24", "--first-step"),
            _ => ("--prompt-len 24 --tokens 1", "--pass"),
        };
        let prepared = match phases {
            "one" => "",
            "two" => "--preprocess",
            "dealt" => "--preparation helper",
            _ => "--parties 3",
        };
        let plan = rows(&format!("plan --model {model} {session} {prepared} --link wan --cores 8"));
        let line = format!("sweep --models {model} --contexts 24 {swept} --phases {phases} --links wan --cores 8");
        let [row] = &rows(&line)[..] else { panic!("{line} has one row") };
        let context = format!("{model}, {work}, {phases}: {row} {plan:?}");
        let online: &[&str] = if work == "token" { &["decode"] } else { &["prefill", "decode"] };
        let made = [&["offline"], online].concat();
        // What a helper deals is a part of the work, and what comes before it is no preparation of a prompt.
        let helper: f64 = sum(&plan, &["client to helper", "server to helper"], "bytes");
        let all = sum(&plan, &["setup"], "bytes") + sum(&plan, &made, "bytes") + helper;
        assert_eq!(number(row, "total_bytes") + number(row, "set_up_bytes"), all, "{context}");
        let flows = sum(&plan, &made, "flows");
        assert_eq!(number(row, "total_flows"), flows, "{context}");
        if helper == 0.0 {
            let seconds = sum(&plan, &made, "network_seconds");
            assert_eq!(digits(number(row, "total_network_seconds")), digits(seconds), "{context}");
        } else {
            // Bytes of a helper take their time wherever they count.
            let parties = sum(&plan, &made, "network_seconds");
            assert!(number(row, "total_network_seconds") > parties, "{context}");
        }
        if phases != "one" {
            assert_eq!(number(row, "online_flows"), sum(&plan, online, "flows"), "{context}");
        }
        for (key, value) in [("link", "wan"), ("cores", "8")] {
            assert!(row[key] == value && plan.iter().all(|row| row[key] == value), "{key}: {context}");
        }
        for (key, value) in [("rate_mbit_s", 400.0), ("round_trip_ms", 4.0)] {
            assert!(row[key] == value && plan.iter().all(|row| row[key] == value), "{key}: {context}");
        }
    }
}

/// The same work in a paper's row and in a sweep.
#[test]
fn a_sweep_and_a_papers_row_agree() {
    for (row, sweep) in [
        ("bumblebee 2", "--models bert-base --contexts 128 --phases one,two"),
        ("sigma 4", "--models gpt2 --contexts 128 --pass --phases one,two,dealt"),
        ("mpcache 1", "--contexts 6 --tokens 16 --links mpcache-lan --phases one,two,three-parties"),
        ("mpcache 4", "--contexts 16 --pass --links mpcache-lan --phases one,two,three-parties"),
    ] {
        let ours = rows(&format!("reproduce {row} --cores 8"));
        let ours: Vec<&Value> = ours.iter().filter(|row| row["system"] == "Waggle").collect();
        let swept = rows(&format!("sweep {sweep} --cores 8"));
        assert_eq!(ours.len(), swept.len(), "{row}");
        for (ours, swept) in ours.into_iter().zip(&swept) {
            let keys = "phases online_bytes online_flows online_network_seconds prepared_bytes \
                prepared_network_seconds total_bytes total_network_seconds mean_of_tokens rate_mbit_s \
                round_trip_ms cores";
            for key in keys.split(' ') {
                assert_eq!(ours[key], swept[key], "{row}, {key}: {ours} {swept}");
            }
        }
    }
}

/// What a run took, what its plan says, and what a sweep, a study and a report tell of it.
#[test]
fn a_run_and_what_is_told_of_it_agree() {
    let dir = tempfile::tempdir().expect("a folder");
    let run = dir.path().join("run.json");
    let ids = (0..20).map(|id| id.to_string()).collect::<Vec<_>>().join(",");
    let demo =
        format!("demo --model shakespeare-gpt2 --prompt-ids {ids} --tokens 20 --preprocess --link lan --cores 8");
    succeed(waggle(&format!("{demo} --reveal logits --json")).arg(&run));
    let report = rows(&format!("report {}", run.display()));
    let plan = rows("plan --model shakespeare-gpt2 --prompt-len 20 --tokens 20 --preprocess --link lan --cores 8");
    for (told, planned) in report.iter().zip(&plan) {
        for key in ["phase", "client_to_server_bytes", "server_to_client_bytes", "flows", "phases", "link", "cores"] {
            assert_eq!(told[key], planned[key], "{key}: {told} {planned}");
        }
    }
    let sweep = "sweep --models shakespeare-gpt2 --contexts 20 --tokens 19 --cores 8";
    let cell = &json(&mut waggle(sweep))["cells"][0];
    let decode = &read_json(&run)["phases"]["decode"];
    for key in ["bytes_client_to_server", "bytes_server_to_client", "flows"] {
        assert!((19.0 * number(&cell["online"], key) - number(decode, key)).abs() < 1e-6, "{key}: {cell}");
    }
    let study = "eval --model shakespeare-gpt2 --context 40 --prompt 20 --sequences 1 --costs lan --cores 8";
    let (study, swept) = (rows(study), rows(sweep));
    let keys = "online_bytes online_flows online_network_seconds prepared_bytes total_network_seconds \
        prompt_prepared_bytes mean_of_tokens phases link rate_mbit_s cores";
    for key in keys.split(' ') {
        assert_eq!(study[0][key], swept[0][key], "{key}: {study:?} {swept:?}");
    }
}
