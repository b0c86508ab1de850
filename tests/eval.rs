//! `waggle eval`: what it writes, what it finds, what it refuses.

use std::path::Path;
use std::process::Command;

use crate::support::{fail, fails, json, play, read_json, succeed, text, waggle};
use serde_json::Value;
use waggle_mpcache::PolicySpec;

fn eval(line: &str) -> Command {
    waggle(&format!("eval {line}"))
}

/// The row of `label` at `budget`.
fn row<'a>(report: &'a Value, label: &str, budget: Option<f64>) -> &'a Value {
    let rows = report["rows"].as_array().unwrap();
    let found = rows.iter().find(|row| row["label"] == label && row["budget"].as_f64() == budget);
    found.unwrap_or_else(|| panic!("{label} at {budget:?} in {report}"))
}

#[test]
fn a_study_leaves_a_table_a_report_and_plots() {
    let dir = tempfile::tempdir().unwrap();
    let (text, out) = (play(dir.path(), 4), dir.path().join("out"));
    let line = format!("--model shakespeare-llama --text {text} --context 64 --sequences 2 --budgets 0.25,1");
    let mut command = eval(&format!("{line} --policies streaming,quest;mpcache:topk=sort --policies full --out"));
    let shown = succeed(command.arg(&out));
    let table = std::fs::read_to_string(out.join("table.md")).unwrap();
    for name in ["full", "streaming", "quest", "mpcache:topk=sort"] {
        assert!(shown.contains(name) && table.contains(name), "{name}: {shown}{table}");
    }
    assert_eq!(table.lines().count(), 2 + 7, "{table}");
    let report = read_json(&out.join("report.json"));
    assert_eq!((&report["version"], &report["sequences"], &report["scored"]), (&2.into(), &2.into(), &62.into()));
    assert_eq!((&report["options"]["prompt"], &report["options"]["text"]), (&32.into(), &"text.txt".into()));
    assert_eq!(report["rows"].as_array().unwrap().len(), 7);
    for name in ["streaming", "quest", "mpcache:topk=sort"] {
        let whole = row(&report, name, Some(1.0));
        assert!((whole["perplexity_ratio"].as_f64().unwrap() - 1.0).abs() < 1e-6, "{whole}");
        assert_eq!((whole["attention_mass"].as_f64(), whole["top_k_recall"].as_f64()), (Some(1.0), Some(1.0)));
        let part = row(&report, name, Some(0.25));
        assert!(part["attention_mass"].as_f64().unwrap() < 1.0 && part["kl"].as_f64().unwrap() > 0.0, "{part}");
    }
    assert_eq!(row(&report, "mpcache:topk=sort", Some(0.25))["policy"], "mpcache:budget=0.25,topk=sort");
    let (mut plots, mut texts) = (0, 0);
    for entry in std::fs::read_dir(&out).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        match path.extension().and_then(|end| end.to_str()) {
            Some("tex") => {
                texts += 1;
                let tex = String::from_utf8(bytes).unwrap();
                assert!(tex.starts_with("\\begin{tikzpicture}") && tex.ends_with("\\end{tikzpicture}\n"), "{tex}");
                assert!(tex.contains("{streaming},{quest},{mpcache:topk=sort}}"), "{tex}");
            }
            Some("svg") => {
                plots += 1;
                let svg = String::from_utf8(bytes).unwrap().replace('\n', "");
                assert_well_formed(&svg);
                for name in ["full", "streaming", "quest", "mpcache:topk=sort"] {
                    assert!(svg.contains(&format!(">{name}</text>")), "{} has no {name}", path.display());
                }
                let key = path.file_stem().unwrap().to_str().unwrap();
                match key.split_once('-') {
                    Some((metric, spent)) => assert!(spent == "tokens" && report["rows"][0][metric].is_number()),
                    None => {
                        assert!(report["rows"][0][key].is_number(), "{key} is a metric");
                        // The axis is the share that was looked at; budgets stand at the points.
                        let label =
                            if key.starts_with("attended") { ">budget: share" } else { ">share of the tokens" };
                        assert!(svg.contains(label) && svg.contains(">0.25</text>"), "{key}");
                    }
                }
            }
            _ => {}
        }
    }
    assert_eq!((plots, texts), (13, 13));
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert_eq!(page.matches("<svg").count(), 13);
    assert!(page.contains("mpcache:topk=sort") && page.contains("text.txt"));
    // Both sequences stand in the report, and intervals come from them.
    let part = row(&report, "streaming", Some(0.25));
    assert_eq!(part["by_sequence"].as_array().unwrap().len(), 2);
    let interval = &part["intervals"]["perplexity_ratio"];
    let (low, high) = (interval["low"].as_f64().unwrap(), interval["high"].as_f64().unwrap());
    let ratio = part["perplexity_ratio"].as_f64().unwrap();
    assert!(low < ratio && ratio < high, "{interval} around {ratio}");
    assert!(table.contains('±'), "{table}");
}

/// The full cache's attention: tables, maps of heads, and ranks of pages.
#[test]
fn what_attention_looks_at_is_told_and_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let (text, out) = (play(dir.path(), 4), dir.path().join("out"));
    let line = format!("--model shakespeare-llama --text {text} --context 64 --sequences 2 --observe");
    let mut command = eval(&format!("{line} --pages 8,16 --heads 0.1,3.2 --format json --plots"));
    let told: Value = serde_json::from_str(&succeed(command.arg(&out))).unwrap();
    for row in told["pages"].as_array().unwrap() {
        let (held, all) = (row["hold_99"].as_f64().unwrap(), row["pages"].as_f64().unwrap());
        assert!(1.0 <= held && held <= all && all == if row["page"] == 8 { 6.5 } else { 3.5 }, "{row}");
    }
    let sizes = ["pages", "recall", "classes"].map(|name| told[name].as_array().unwrap().len());
    assert_eq!(sizes, [2 * 4, 2 * 8, 4], "{told}");
    for name in ["maps", "ranks-0.1", "ranks-3.2"] {
        let read = |end: &str| std::fs::read_to_string(out.join(format!("{name}.{end}"))).unwrap().replace('\n', "");
        assert_well_formed(&read("svg"));
        assert!(read("svg").contains("layer 3, head 2") || name == "ranks-0.1", "{name}");
        assert!(read("tex").contains("\\begin{tikzpicture}"), "{name}");
    }
    // Of 32 steps half see three pages of 16 and half four, in two heads.
    let ranks = std::fs::read_to_string(out.join("ranks.csv")).unwrap();
    assert_eq!((ranks.lines().next(), ranks.lines().count()), (Some("layer,head,position,page,rank"), 1 + 2 * 112));
    fails(&mut eval(&format!("{line} --heads 9.0")), 1, ["layer 9 has no head 0"]);
    fails(&mut eval(&format!("{line} --policies h2o")), 2, ["cannot be used with"]);
    fails(&mut eval("--task glue --data x --observe"), 1, ["--observe is no option of --task glue"]);
}

/// Behind public text the full cache is that of the joined text, and pruning the public part alone shows.
#[test]
fn a_study_behind_public_text() {
    let dir = tempfile::tempdir().unwrap();
    let [joined, before, after] = ["joined", "before", "after"].map(|name| dir.path().join(format!("{name}.txt")));
    let words = "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n";
    let (public, private) = words.split_at(60);
    for (file, text) in [(&joined, words), (&before, public), (&after, private)] {
        std::fs::write(file, text).unwrap();
    }
    let study = |file: &Path, prompt: usize, rest: &str| {
        let context = std::fs::read_to_string(file).unwrap().len();
        let line =
            format!("--model shakespeare-gpt2 --sequences 1 --context {context} --prompt {prompt} {rest} --text");
        json(eval(&line).arg(file))
    };
    let of = |report: &Value, label: &str, key: &str| row(report, label, None)[key].as_f64().unwrap();
    let whole = study(&joined, 64, "");
    let policy = "snapkv:budget=0.25,window=4";
    let pruned = format!("--public-prefix {} --prefix-policy {policy}", before.display());
    let report = study(&after, 4, &format!("{pruned} --policies streaming:budget=0.5 --costs lan"));
    let joined = of(&whole, "full", "perplexity");
    assert!((of(&report, "full", "perplexity") / joined - 1.0).abs() < 1e-5, "{report}");
    let behind = format!("full, public {}", policy.parse::<PolicySpec>().unwrap());
    assert!((of(&report, &behind, "perplexity_ratio") - 1.0).abs() > 1e-4, "{report}");
    assert!(report["rows"][0]["attention_mass"].is_null(), "{report}");
    assert_eq!(report["options"]["public_tokens"], 60);
    // The cost of a token falls with the public tokens that stay.
    let cost = |at: usize| report["rows"][at]["cost"]["online_bytes"].as_f64().unwrap();
    assert!(cost(1) < cost(0), "{report}");
    // Two parties find what f32 finds.
    let secure = study(&after, 4, &format!("{pruned} --engine secure"));
    for (label, key) in [("full", "perplexity"), (&*behind, "perplexity")] {
        assert!((of(&secure, label, key) / of(&report, label, key) - 1.0).abs() < 0.02, "{secure}");
    }
    let glue = format!("--task glue --data whose-line.tsv --public-prefix {}", before.display());
    fails(&mut eval(&glue), 1, ["public-prefix"]);
}

#[test]
fn costs_and_foreign_forms_come_with_a_study() {
    let dir = tempfile::tempdir().unwrap();
    let (text, out) = (play(dir.path(), 4), dir.path().join("out"));
    let line = format!("--model shakespeare-gpt2 --text {text} --context 40 --sequences 2 --budgets 0.5 --costs wan");
    let foreign = dir.path().join("lm.json");
    let mut command = eval(&format!("{line} --policies streaming,oracle --lm-eval"));
    let shown = succeed(command.arg(&foreign).arg("--out").arg(&out));
    assert!(shown.contains("prepared") && shown.contains("flows"), "{shown}");
    let report: Value = read_json(&out.join("report.json"));
    let cost = |label, budget| row(&report, label, budget)["cost"].clone();
    // It is the session that is scored: 20 tokens, and 19 more that are read one by one. A sweep of these lengths and
    // the plan of the session say the same.
    let sweep = json(&mut waggle(
        "sweep --models shakespeare-gpt2 --contexts 20 --tokens 19 --links wan --policies full;streaming:budget=0.5",
    ));
    let plan = json(&mut waggle("plan --model shakespeare-gpt2 --prompt-len 20 --tokens 20 --preprocess --link wan"));
    let both = |cost: &Value| {
        cost["bytes_client_to_server"].as_f64().unwrap() + cost["bytes_server_to_client"].as_f64().unwrap()
    };
    for (cell, (label, budget)) in [("full", None), ("streaming", Some(0.5))].into_iter().enumerate() {
        let (cost, cell) = (cost(label, budget), &sweep["cells"][cell]);
        assert_eq!((&cost["prompt"], &cost["tokens"]), (&20.into(), &19.into()));
        assert_eq!(cost["online_bytes"], both(&cell["online"]), "{label}");
        assert_eq!(cost["prepared_bytes"], both(&cell["prepared"]), "{label}");
        assert_eq!(cost["prepared_prompt_bytes"], both(&cell["prepared_prompt"]), "{label}");
        assert_eq!(cost["flows"], cell["online"]["flows"], "{label}");
    }
    let mean = both(&plan["phases"]["decode"]) / 19.0;
    assert!((cost("full", None)["online_bytes"].as_f64().unwrap() - mean).abs() < 1e-6);
    assert_ne!(cost("streaming", Some(0.5))["online_bytes"], cost("full", None)["online_bytes"]);
    assert!(cost("oracle", Some(0.5)).is_null(), "two parties cannot run it");
    assert!(out.join("accuracy-online-bytes.svg").exists() && out.join("perplexity_ratio-bytes.tex").exists());

    let foreign = read_json(&foreign);
    let results = &foreign["results"]["text@streaming:budget=0.5"];
    let streaming = row(&report, "streaming", Some(0.5));
    assert_eq!(results["perplexity,none"], streaming["perplexity"]);
    assert_eq!(results["accuracy_stderr,none"], streaming["intervals"]["accuracy"]["standard_error"]);
    assert_eq!(foreign["versions"]["text"], 1);
    assert_eq!(foreign["n-samples"]["text"]["effective"], 2);
    assert_eq!(foreign["higher_is_better"]["text"], serde_json::json!({ "perplexity": false, "accuracy": true }));
}

#[test]
fn needles_are_asked_for_at_every_length_and_depth() {
    let dir = tempfile::tempdir().unwrap();
    let line = |rest: &str| {
        eval(&format!("--model shakespeare-llama --task needle --lengths 100,200 --depths 0,1 --budgets 0.2 {rest}"))
    };
    let report = json(line("--policies streaming --plots").arg(dir.path()));
    assert_eq!(report["sequences"], 4);
    assert_eq!(report["of_sequences"][3]["tags"], serde_json::json!({ "length": 200, "depth": 1.0 }));
    let pruned = row(&report, "streaming", Some(0.2));
    assert!(pruned["exact_match"].is_number());
    let drawn = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap().replace('\n', "");
    let grid = drawn("grid.svg");
    let cells = pruned["by_sequence"].as_array().unwrap().iter();
    let cells = cells.map(|of| format!(">{:.2}<", 1.0 / of["perplexity"].as_f64().unwrap()));
    for word in cells.chain([">100<", ">200<", ">streaming:budget=0.2<"].map(String::from)) {
        assert!(grid.contains(&word), "{word} in {grid}");
    }
    succeed(line("--policies mpcache:alpha=0.2;mpcache:alpha=0.6 --x alpha --plots").arg(dir.path()));
    let along = drawn("kl.svg");
    for word in [">alpha<", ">0.2<", ">0.6<", ">mpcache:budget=0.2<", ">full<"] {
        assert!(along.contains(word), "{word} in {along}");
    }
}

/// Every element of `xml` is closed in order, attributes are quoted.
fn assert_well_formed(xml: &str) {
    let mut open = Vec::new();
    for tag in xml.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').expect("a tag ends");
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        let name = tag.trim_start_matches('/').split_whitespace().next().unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
    assert!(xml.starts_with("<svg"));
}

#[test]
fn two_parties_are_asked_for_predictions_alone() {
    let dir = tempfile::tempdir().unwrap();
    let line =
        format!("--text {} --context 10 --sequences 1 --policies streaming --budgets 0.5", play(dir.path(), 4));
    let shown = succeed(&mut eval(&format!("{line} --engine secure")));
    let cells: Vec<&str> = shown.lines().find(|l| l.contains("streaming")).unwrap().split_whitespace().collect();
    assert!(!shown.contains("attended") && !shown.contains("recall"), "what no engine saw has no column: {shown}");
    assert!(cells[3].parse::<f64>().unwrap() > 1.0, "{shown}");
}

/// Sequences that two parties read side by side have the scores that each has alone.
#[test]
fn sequences_keep_their_scores_side_by_side() {
    let text = "--text tinyshakespeare.txt --model shakespeare-llama --context 12 --sequences 3";
    let study =
        |engine: &str| json(&mut eval(&format!("{text} --policies streaming --budgets 0.5 --engine {engine}")));
    let [fixed, secure] = ["fixed", "secure"].map(study);
    for (fixed, secure) in fixed["rows"].as_array().unwrap().iter().zip(secure["rows"].as_array().unwrap()) {
        let perplexities = |row: &Value| -> Vec<f64> {
            let of = row["by_sequence"].as_array().unwrap().iter();
            of.map(|metrics| metrics["perplexity"].as_f64().unwrap()).collect()
        };
        let (fixed, secure) = (perplexities(fixed), perplexities(secure));
        assert_eq!((fixed.len(), secure.len()), (3, 3));
        for (fixed, secure) in fixed.iter().zip(&secure) {
            assert!((fixed / secure - 1.0).abs() < 0.01, "{fixed} and {secure}");
        }
    }
}

/// Two clusters in all leave no choice between small budgets.
#[test]
fn budgets_between_which_nothing_changes_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = play(dir.path(), 4);
    let line = "--context 64 --sequences 1 --policies mpcache:clusters=16,static=0.25 --budgets";
    let said = |budgets: &str| {
        let output = eval(&format!("--text {file} {line} {budgets}")).output().unwrap();
        (output.status.success(), text(&output.stderr))
    };
    let (done, told) = said("0.05,0.1,1");
    assert!(done && told.contains("the same at the budgets 0.05, 0.1:"), "{told}");
    let (done, told) = said("0.1,1");
    assert!(done && !told.contains("the same"), "{told}");
}

#[test]
fn what_cannot_be_studied_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = play(dir.path(), 4);
    let refuse = |code, rest: &str, words: &str| {
        fails(&mut eval(&format!("--text {file} --context 40 {rest}")), code, [words]);
    };
    refuse(2, "--policies fll", "unknown cache policy `fll`; known are: full, ");
    refuse(2, "--policies streaming,mpcache:topk=rank", "put a `;` between `streaming` and `mpcache`");
    refuse(2, "--policies mpcache:topk=rank,tova", "`tova` is not one `key=value`");
    refuse(1, "--policies tova:budget=0.5 --budgets 0.25", "one without a budget of its own");
    for (budgets, wrong) in [("0", "0"), ("0.5,1.5", "1.5")] {
        let words = format!("a budget of {wrong} is neither a share in (0, 1] nor a whole number of tokens");
        refuse(1, &format!("--policies tova --budgets {budgets}"), &words);
    }
    refuse(1, "--budgets 0.5", "need a policy beside `full`");
    refuse(1, "--prompt 39", "a prompt of 39 tokens in sequences of 40: give 1 to 38");
    refuse(1, "--prompt 0", "give 1 to 38");
    refuse(2, "--sequences 0", "0 is not in 1..");
    let error = fail(&mut eval(&format!("--text {file} --context 0")), 1);
    assert!(error.contains("a prompt of 0 tokens in sequences of 0: a sequence needs 3 or more"), "{error}");
    refuse(1, "--sequences 1000", "1000 sequences of 40 need 40000");
    refuse(1, "--policies oracle --engine secure", "needs an engine that sees its values");
    refuse(2, "--task recall --data x", "cannot be used with");
    let taken = "--text is no option of --task key-value, which takes --context, --sequences, --seed";
    refuse(1, "--task key-value", taken);
    refuse(1, "--depths 0.5", "--depths is no option of --task text");
    let error = fail(&mut eval(&format!("--model shakespeare-gpt2 --text {file} --context 300 --sequences 1")), 1);
    assert!(error.contains("sequences of 300 tokens for a model of 256 positions"), "{error}");
    fails(&mut eval("--model recall --policies full"), 1, ["needs a model with a tokenizer"]);
    fails(&mut eval("--task recall"), 2, ["--data"]);
    let list = dir.path().join("list.json");
    std::fs::write(&list, "{\"a\": 1}").unwrap();
    fails(&mut eval(&format!("--text {}", list.display())), 1, ["not a list of texts"]);
}

/// The encoder of the bundle on its own unseen lines: between two parties as in f32.
#[test]
fn an_encoder_is_scored_on_a_task_of_glue() {
    let dir = tempfile::tempdir().unwrap();
    let foreign = dir.path().join("results.json");
    let line = "--task glue --model whose-line --data whose-line.tsv";
    let study = |rest: &str| json(&mut eval(&format!("{line} {rest}")));
    let float = study(&format!("--lm-eval {}", foreign.display()));
    let value = |study: &Value, metric: &str| study["metrics"][metric]["value"].as_f64().unwrap();
    let answers = float["answers"].as_array().unwrap().len();
    assert!(answers > 200 && value(&float, "accuracy") > 0.75 && value(&float, "matthews") > 0.5, "{float}");
    let interval = &float["metrics"]["accuracy"]["interval"];
    let [low, high] = ["low", "high"].map(|end| interval[end].as_f64().unwrap());
    assert!(low < value(&float, "accuracy") && value(&float, "accuracy") < high && high - low < 0.12, "{interval}");
    let results = read_json(&foreign);
    assert_eq!(results["results"]["glue"]["accuracy,none"].as_f64(), Some(value(&float, "accuracy")));
    assert_eq!(results["n-samples"]["glue"]["effective"], answers);
    let fixed = study("--engine fixed");
    assert!(
        fixed["agreement"].as_f64().unwrap() > 0.99 && fixed["largest_error"].as_f64().unwrap() < 0.01,
        "{fixed}"
    );
    let secure = study("--engine secure --sequences 6");
    assert_eq!((secure["agreement"].as_f64(), secure["answers"].as_array().unwrap().len()), (Some(1.0), 6));
    assert!(secure["largest_error"].as_f64().unwrap() < 0.01, "{secure}");
    // Pairs go to the model as pairs.
    let pairs = dir.path().join("pairs.jsonl");
    std::fs::write(&pairs, "{\"sentence1\": \"a cat\", \"sentence2\": \"a dog\", \"label\": \"tinystories\"}\n")
        .unwrap();
    let of_pairs = succeed(&mut eval(&format!("--task glue --model whose-line --data {}", pairs.display())));
    assert!(of_pairs.contains("accuracy"), "{of_pairs}");

    let lacking = dir.path().join("lacking.tsv");
    std::fs::write(&lacking, "sentence\tlabel\na cat\t1\na dog\n").unwrap();
    let lacking = fail(&mut eval(&format!("--task glue --model whose-line --data {}", lacking.display())), 1);
    assert_eq!(lacking, "error: line 3: no label and no score\n");
    std::fs::write(&pairs, format!("sentence\tlabel\n{}\t1\n", "long ".repeat(90))).unwrap();
    let long = fail(&mut eval(&format!("--task glue --model whose-line --data {}", pairs.display())), 1);
    assert!(long.contains("example 1: sequences of"), "{long}");
    let decoder = fail(&mut eval("--task glue --data whose-line.tsv --model stories260k"), 1);
    assert!(decoder.contains("stories260k is none"), "{decoder}");
    let pruned = fail(&mut eval(&format!("{line} --policies h2o")), 1);
    assert!(pruned.contains("--policies is no option of --task glue"), "{pruned}");
}
