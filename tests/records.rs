//! Records: what made them is in them, what is nobody's business is not, and `bench/SCHEMA.md` names every field.
//! Then what `waggle compare`, `report` and `plot` make of them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::support::{copy_model, fail, fails, json, play, read_json as read, succeed, waggle};
use serde_json::Value;

/// A session small enough for a test.
const DEMO: &str = "demo --prompt-ids 30,27,25 --tokens 3 --link";

/// The plan of a step after `cached` tokens under `policy`, in a file.
fn plan(dir: &Path, policy: &str, cached: usize) -> PathBuf {
    let file = dir.join(format!("{}-{cached}.json", policy.split(':').next().unwrap()));
    let line = format!("plan --model shakespeare-gpt2 --cached {cached} --preprocess --policy {policy} --json");
    succeed(waggle(&line).arg(&file));
    file
}

/// The page of the document in `file`.
fn page(file: &Path) -> String {
    let out = file.with_extension("html");
    succeed(waggle("report").arg(file).arg("--html").arg(&out));
    std::fs::read_to_string(out).unwrap()
}

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
    let text = play(dir.path(), 4);
    let me = env!("CARGO_BIN_EXE_waggle");
    let compared = dir.path().join("compared.json");
    let mut compare = waggle(&format!("compare --binaries {me} {me} --repeat 2 --warm-up 0 --json"));
    succeed(compare.arg(&compared).args(["--", "demo", "--prompt-ids", "1", "--tokens", "1", "--link", "memory"]));
    vec![
        json(&mut waggle(&format!("{DEMO} loopback --check --policy snapkv:budget=0.5"))),
        json(&mut waggle(&format!("{DEMO} memory --preprocess --draft lookup:2"))),
        json(&mut waggle("plan --cached 20 --preprocess --policy mpcache")),
        json(&mut waggle(&format!(
            "eval --text {text} --context 32 --sequences 2 --policies h2o --budgets 0.5 --costs lan"
        ))),
        json(&mut waggle("sweep --models gpt2 --contexts 16 --tokens 2 --policies full,mpcache-2pc --by operation")),
        read(&compared),
    ]
}

#[test]
fn records_say_what_made_them_and_no_more_and_the_schema_names_every_field() {
    let (records, mut found) = (records(), BTreeSet::new());
    records.iter().for_each(|record| fields(record, &mut found));
    let schema = include_str!("../bench/SCHEMA.md");
    let missing: Vec<&String> = found.iter().filter(|name| !schema.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "bench/SCHEMA.md does not name {missing:?}");
    // The test would see nothing if records were empty.
    for name in
        ["peer_cpu_seconds", "tokens_per_pass", "against_full_cache", "perplexity", "samples", "operation", "online"]
    {
        assert!(found.contains(name), "no record has {name}");
    }
    let user = ["USER", "LOGNAME"].map(|name| std::env::var(name).ok());
    let host = std::fs::read_to_string("/etc/hostname").ok();
    let names: Vec<String> = user.into_iter().chain([host]).flatten().map(|name| name.trim().to_owned()).collect();
    let folders = [std::env::temp_dir(), Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()];
    for record in records {
        let made = record.get("provenance").unwrap_or_else(|| panic!("{record}"));
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
    let mut record = read(&new);
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
    assert!(fail(waggle("compare").args([&few, &run]), 1).contains("documents of two kinds"));
    assert!(fail(waggle("compare").args([&run, Path::new("absent.json")]), 1).contains("absent.json"));
}

#[test]
fn two_programs_run_in_turn() {
    let dir = tempfile::tempdir().unwrap();
    let record = dir.path().join("compared.json");
    let me = env!("CARGO_BIN_EXE_waggle");
    let run = |program: &str, rest: &str| {
        let mut command = waggle(&format!("compare --binaries {me} {program} --repeat 3 --warm-up 1 --json"));
        command.arg(&record).arg("--").args(rest.split_whitespace());
        command
    };
    let shown = succeed(&mut run(me, "demo --prompt-ids 1 --tokens 2 --link memory"));
    assert!(shown.contains("both are waggle") && shown.contains("new / old, median"), "{shown}");
    assert!(shown.contains("bytes") && shown.contains("1.00"), "{shown}");
    for side in read(&record)["sides"].as_array().unwrap() {
        assert_eq!(side["samples"].as_array().unwrap().len(), 3, "the warm-up does not count");
        assert!(side["samples"][0]["decode"]["seconds"].as_f64().unwrap() > 0.0);
    }
    assert!(fail(&mut run("/bin/false", "demo"), 1).contains("/bin/false"));
    assert!(fail(&mut run(me, "demo --tokens x"), 1).contains("exit"));
    assert!(fail(&mut waggle("compare one.json"), 2).contains("REPORT"));
}

/// Characters that move a cursor or name a window, and the words of a page's script.
const BAD: &str = "a\u{1b}]0;title\u{7}b\u{9b}2Jc<script>alert(1)</script>";

#[test]
fn words_of_a_file_are_neither_commands_nor_markup() {
    let dir = tempfile::tempdir().unwrap();
    let (good, bad) = (plan(dir.path(), "full", 16), dir.path().join("bad.json"));
    let mut record = read(&good);
    record["options"][BAD] = serde_json::json!({ BAD: [BAD] });
    record["options"]["policy"] = BAD.into();
    record["text"] = BAD.into();
    record["model"]["name"] = BAD.into();
    record["operations"][0]["path"] = BAD.into();
    record["provenance"] = serde_json::json!({ "revision": BAD });
    std::fs::write(&bad, record.to_string()).unwrap();
    let html = page(&bad);
    assert!(!html.contains("<script") && html.matches("&lt;script&gt;").count() >= 6, "{html}");
    let shown = [
        succeed(waggle("compare").args([&bad, &good])),
        succeed(waggle("compare --format markdown").args([&good, &bad])),
        succeed(waggle("report").arg(&bad)),
        html,
    ];
    for text in shown {
        assert!(text.contains("a]0;titleb2Jc"), "{text:?}");
        assert!(!text.contains(|c: char| c.is_control() && !matches!(c, '\n' | '\t')), "{text:?}");
    }
}

#[test]
fn tokens_send_nothing_to_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path();
    copy_model("shakespeare-gpt2", model);
    // A space is more than a space.
    let tokenizer = std::fs::read_to_string(model.join("tokenizer.json")).unwrap();
    let hostile = tokenizer.replacen("\" \": 1", "\" \\u001b[2J\": 1", 1).replacen(
        "\"unk_token\": \" \"",
        "\"unk_token\": \"e\"",
        1,
    );
    assert_ne!(hostile, tokenizer);
    std::fs::write(model.join("tokenizer.json"), hostile).unwrap();
    let said = succeed(waggle("float --prompt-ids 30,27,25 --tokens 40 --model").arg(model));
    assert!(said.contains("[2J") && !said.contains('\u{1b}'), "{said:?}");
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
    // Standard output takes the same page.
    let written = succeed(waggle("report").arg(&file).args(["--html", "-"]).current_dir(dir.path()));
    assert!(written.contains("<svg") && written.trim_end().ends_with("</html>"), "{written}");
    assert!(!dir.path().join("-").exists());
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
            listed.contains(&format!("{name}.svg")) && out.join(format!("{name}.tex")).exists(),
            "{name}: {listed}"
        );
    }
    let svg = std::fs::read_to_string(out.join("bytes-context.svg")).unwrap().replace('\n', "");
    for word in [">full<", ">streaming:budget=0.25<", ">32<", ">64<", ">128<", ">cached tokens (log scale)<"] {
        assert!(svg.contains(word), "{word}");
    }
    // A paper takes the text; a plot that is not there is refused by name.
    let column = dir.path().join("column");
    let figure = |name: &str| {
        let mut command = waggle("plot --metric");
        let plans = [32, 64].map(|cached| plan(dir.path(), "full", cached));
        command.arg(name).args(plans).arg("--out").arg(&column);
        command
    };
    let listed = succeed(&mut figure("operations-bytes"));
    assert_eq!(listed.lines().count(), 2, "{listed}");
    let tex = std::fs::read_to_string(column.join("operations-bytes.tex")).unwrap();
    assert!(tex.contains("xbar stacked") && tex.contains("width=\\linewidth") && tex.contains(" (kB)}"), "{tex}");
    fails(&mut figure("bites"), 1, ["no plot bites", "operations-bytes"]);
    fails(figure("operations-bytes").args(["--policies", "quest"]), 1, ["no policy quest", "full"]);
    fails(figure("operations-bytes").args(["--labels", "nobody=x"]), 1, ["no name nobody", "full"]);
    succeed(figure("bytes-context").args(["--policies", "full", "--labels", "full=every token"]));
    let svg = std::fs::read_to_string(column.join("bytes-context.svg")).unwrap();
    assert!(svg.contains("every token"), "{svg}");
    // One report alone has other plots.
    let one = dir.path().join("one");
    let listed = succeed(waggle("plot").arg(plan(dir.path(), "full", 64)).arg("--out").arg(&one));
    assert!(listed.contains("timeline.svg") && listed.contains("operations-flows.tex"), "{listed}");
}

#[test]
fn other_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("other.json");
    for content in ["", "[]", "{\"rows\": 3}", "{\"version\": 1}"] {
        std::fs::write(&file, content).unwrap();
        fails(waggle("report").arg(&file), 1, ["other.json"]);
        fail(waggle("plot").arg(&file).arg("--out").arg(dir.path()), 1);
    }
    fail(&mut waggle("report missing.json"), 1);
}

#[test]
fn a_sweep_is_shown_drawn_and_compared() {
    let dir = tempfile::tempdir().unwrap();
    let sweep = |name: &str, more: &str| {
        let file = dir.path().join(name);
        let line = "sweep --models shakespeare-gpt2 --contexts 16,32 --policies full;h2o:budget=0.5";
        let shown = succeed(waggle(&format!("{line} {more} --json")).arg(&file));
        (file, shown)
    };
    let (lan, table) = sweep("lan.json", "--tokens 3 --links lan,wan");
    assert_eq!(succeed(waggle("report").arg(&lan)), table);
    // The costs of each policy against the cache, over both links, and a bar for each cell.
    let out = dir.path().join("plots");
    let listed = succeed(waggle("plot").arg(&lan).arg("--out").arg(&out));
    for name in ["bytes-context", "flows-context-prepared", "seconds-context", "phases-bytes"] {
        assert!(listed.contains(&format!("{name}.svg")), "{name}: {listed}");
    }
    let words = |name: &str| std::fs::read_to_string(out.join(name)).unwrap().replace('\n', "");
    let lines = words("bytes-context.svg");
    for word in [">full: link lan<", ">h2o:budget=0.5: link wan<", ">16<", ">32<"] {
        assert!(lines.contains(word), "{word} in {lines}");
    }
    let bars = words("phases-bytes.svg");
    assert!(bars.contains(">offline<") && bars.contains(">decode<"), "{bars}");
    let drawn = succeed(waggle("plot --policies h2o --metric bytes-context").arg(&lan).arg("--out").arg(&out));
    assert_eq!(drawn.lines().count(), 2, "{drawn}");
    assert!(!words("bytes-context.svg").contains("full"));
    let drawn = succeed(waggle("plot --x links --metric bytes-links").arg(&lan).arg("--out").arg(&out));
    assert!(drawn.contains("bytes-links.svg") && words("bytes-links.svg").contains("h2o:budget=0.5"), "{drawn}");
    let page = page(&lan);
    assert!(page.contains("<svg") && page.contains("h2o:budget=0.5") && page.contains("mean of 3 tokens"));
    // One by operation beside another with other numbers.
    let (first, _) = sweep("first.json", "--tokens 3 --by operation");
    let (second, _) = sweep("second.json", "--tokens 5 --by operation");
    let listed = succeed(waggle("plot").arg(&first).arg("--out").arg(&out));
    assert!(listed.contains("operations-bytes.svg") && !listed.contains("phases"), "{listed}");
    let compared = succeed(waggle("compare --format json").args([&first, &second]));
    let compared: Value = serde_json::from_str(&compared).unwrap();
    let cells = compared["work"].as_array().unwrap();
    assert_eq!(cells.len(), 8, "two contexts, two policies, online and prepared: {compared}");
    assert!(cells[0]["ratio_of_bytes"].as_f64().unwrap() > 1.0, "later tokens see a longer cache: {compared}");
    assert!(!compared["operations"].as_array().unwrap().is_empty(), "{compared}");
    // Documents of two kinds have nothing to compare, and a sweep is plotted alone.
    let plan = plan(dir.path(), "full", 16);
    fails(waggle("compare").args([&plan, &lan]), 1, ["two kinds"]);
    fails(waggle("plot").args([&plan, &lan]).arg("--out").arg(&out), 1, ["lan.json", "plotted alone"]);
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
            let mut document = read(file);
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
