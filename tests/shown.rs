//! `waggle report` and `waggle plot`: what they make of documents that other commands wrote.

use std::path::{Path, PathBuf};

use crate::support::{fail, succeed, waggle};
use serde_json::Value;

/// The plan of a step after `cached` tokens under `policy`, in a file.
fn plan(dir: &Path, policy: &str, cached: usize) -> PathBuf {
    let file = dir.join(format!("{}-{cached}.json", policy.split(':').next().unwrap()));
    let line = format!("plan --model shakespeare-gpt2 --cached {cached} --preprocess --policy {policy} --json");
    succeed(waggle(&line).arg(&file));
    file
}

fn page(file: &Path) -> String {
    let out = file.with_extension("html");
    succeed(waggle("report").arg(file).arg("--html").arg(&out));
    std::fs::read_to_string(out).unwrap()
}

#[test]
fn a_session_becomes_a_page_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.json");
    let line = "demo --model shakespeare-gpt2 --prompt O --tokens 3 --link memory --check --json";
    succeed(waggle(line).arg(&file));
    let shown = succeed(waggle("report").arg(&file));
    assert!(shown.contains("per decoded token") && shown.contains("tokens agree"), "{shown}");
    let html = page(&file);
    let text = html.replace("http://www.w3.org/2000/svg", "");
    // Nothing is loaded and nothing runs.
    for foreign in ["http:", "https:", "<script", "src=", "@import", "url(", "<link"] {
        assert!(!text.contains(foreign), "{foreign}");
    }
    for part in ["Timeline", "Phases", "Operations", "Tokens", "Against the plaintext model", "What ran", "prefill"] {
        assert!(html.contains(part), "{part}");
    }
    // A timeline, three bars of operations, and three lines of tokens.
    assert_eq!(html.matches("<svg").count(), 7);
}

#[test]
fn words_of_a_file_are_never_markup() {
    let dir = tempfile::tempdir().unwrap();
    let file = plan(dir.path(), "full", 16);
    let mut report: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let bad = "<script>alert(1)</script>";
    report["model"]["name"] = bad.into();
    report["text"] = bad.into();
    report["options"]["policy"] = bad.into();
    report["options"][bad] = serde_json::json!({ bad: [bad] });
    report["operations"][0]["path"] = bad.into();
    report["provenance"] = serde_json::json!({ "revision": bad });
    std::fs::write(&file, report.to_string()).unwrap();
    let html = page(&file);
    assert!(!html.contains("<script") && html.matches("&lt;script&gt;").count() >= 6, "{html}");
}

#[test]
fn plans_of_several_lengths_become_lines_and_bars() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = waggle("plot");
    for policy in ["full", "streaming:budget=0.25"] {
        for cached in [32, 64, 128] {
            command.arg(plan(dir.path(), policy, cached));
        }
    }
    let out = dir.path().join("plots");
    let listed = succeed(command.arg("--out").arg(&out));
    for name in ["bytes-context", "flows-context", "seconds-context", "bytes-context-prepared", "operations-bytes"] {
        assert!(
            listed.contains(&format!("{name}.svg")) && out.join(format!("{name}.pdf")).exists(),
            "{name}: {listed}"
        );
    }
    let svg = std::fs::read_to_string(out.join("bytes-context.svg")).unwrap().replace('\n', "");
    for word in [">full<", ">streaming:budget=0.25<", ">32<", ">64<", ">128<", ">cached tokens<"] {
        assert!(svg.contains(word), "{word}");
    }
    // One report alone has other plots.
    let one = dir.path().join("one");
    let listed = succeed(waggle("plot").arg(plan(dir.path(), "full", 64)).arg("--out").arg(&one));
    assert!(listed.contains("timeline.svg") && listed.contains("operations-flows.pdf"), "{listed}");
}

#[test]
fn other_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("other.json");
    for content in ["", "[]", "{\"rows\": 3}", "{\"version\": 1}"] {
        std::fs::write(&file, content).unwrap();
        let error = fail(waggle("report").arg(&file), 1);
        assert!(error.contains("other.json"), "{error}");
        fail(waggle("plot").arg(&file).arg("--out").arg(dir.path()), 1);
    }
    fail(&mut waggle("report missing.json"), 1);
}

/// A document of extreme numbers, finite as all of JSON, becomes a page and plots.
#[test]
fn extreme_numbers_are_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let (run, study) = (plan(dir.path(), "full", 16), dir.path().join("study.json"));
    let line = "eval --text tinyshakespeare.txt --context 16 --sequences 2 --policies h2o --budgets 0.25,0.5 --costs lan --json";
    succeed(waggle(line).arg(&study));
    for extreme in [1e300, 1e-320, 1.7e308] {
        for file in [&run, &study] {
            let mut document: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
            let changed = match document.get_mut("rows") {
                Some(rows) => &mut rows[2],
                None => &mut document["phases"],
            };
            let mut count = 0;
            replace(changed, extreme, &mut count);
            assert!(count >= 10, "{changed}");
            let hostile = dir.path().join("hostile.json");
            std::fs::write(&hostile, document.to_string()).unwrap();
            assert!(page(&hostile).contains("<svg"));
            succeed(waggle("plot").arg(&hostile).arg("--out").arg(dir.path().join("plots")));
        }
    }
}

/// Puts `extreme` in the place of every number that is no count.
fn replace(value: &mut Value, extreme: f64, count: &mut usize) {
    match value {
        Value::Number(number) if number.is_f64() => {
            *value = extreme.into();
            *count += 1;
        }
        Value::Array(all) => all.iter_mut().for_each(|value| replace(value, extreme, count)),
        Value::Object(all) => all.values_mut().for_each(|value| replace(value, extreme, count)),
        _ => {}
    }
}

#[test]
fn a_page_goes_to_standard_output_too() {
    let dir = tempfile::tempdir().unwrap();
    let file = plan(dir.path(), "full", 16);
    let html = succeed(waggle("report").arg(&file).args(["--html", "-"]).current_dir(dir.path()));
    assert!(html.contains("<svg") && html.trim_end().ends_with("</html>"), "{html}");
    assert!(!dir.path().join("-").exists());
}

#[test]
fn a_sweep_is_shown_as_its_table_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("sweep.json");
    let table = succeed(waggle("sweep --models shakespeare-gpt2 --contexts 16 --json").arg(&file));
    assert_eq!(succeed(waggle("report").arg(&file)), table);
    for line in ["plot --out plots", "report --html page.html", "compare good.json"] {
        std::fs::copy(plan(dir.path(), "full", 16), dir.path().join("good.json")).unwrap();
        let told = fail(waggle(line).arg(&file).current_dir(dir.path()), 1);
        assert!(told.contains("sweep.json: a sweep is a table, which `waggle report` shows"), "{told}");
    }
}
