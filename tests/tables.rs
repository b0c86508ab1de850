//! Tables: what `waggle sweep` plans, the forms of tables, and the pages that `waggle tables` makes of them.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::{fail, json, succeed, waggle};

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
        assert_eq!(number(&cell["setup"][key]), setup, "{key}");
        assert_eq!(4.0 * number(&cell["online"][key]), decode, "{key}");
        let [prompt, token] = ["prepared_prompt", "prepared"].map(|part| number(&cell[part][key]));
        assert!((prompt + 4.0 * token - offline).abs() < 1e-3, "{key}: {cell}");
        assert!(token > 0.0 && prompt > 64.0 / 8.0 * token, "{key}: {cell}");
    }
    let seconds = number(&plan["phases"]["decode"]["seconds"]);
    assert!((4.0 * number(&cell["online"]["network_seconds"]) - seconds).abs() < 1e-6);
    assert_eq!((&plan["seconds_are"], &cell["online"]["predicted_seconds"]), (&"network".into(), &Value::Null));
    // Operations are parts of the whole, and take its place in the table.
    let line = "sweep --contexts 64 --links wan --tokens 4 --policies full;mpcache:budget=0.25 --by operation";
    let parts = json(&mut waggle(line));
    let [full, pruned] = [0, 1].map(|i| &parts["cells"][i]);
    let of = |cell: &Value| cell["operations"].as_array().unwrap().clone();
    for part in ["online", "prepared", "prompt"] {
        for key in ["bytes_client_to_server", "bytes_server_to_client", "flows"] {
            let sum: f64 = of(full).iter().map(|operation| number(&operation[part][key])).sum();
            assert!((sum - number(&cell[part][key])).abs() < 1e-3, "{part} {key}: {sum}");
        }
    }
    let names =
        |cell: &Value| of(cell).iter().map(|o| o["operation"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    assert!(
        names(full).contains(&"attention/softmax".to_owned()) && !names(full).contains(&"attention/top-k".into())
    );
    let shown = succeed(&mut waggle(&format!("{line} --format csv")));
    let (heads, rows) = columns(&shown);
    assert_eq!((heads[5], rows.len()), ("operation", names(full).len() + names(pruned).len()));
    // The first step alone has no prompt.
    let first = json(&mut waggle("sweep --first-step --contexts 64 --links wan"));
    let cell = &first["cells"][0];
    assert_eq!((&cell["tokens"], &cell["prepared_prompt"]), (&1.into(), &Value::Null));
    assert_eq!(fs::read_dir(&cells).unwrap().count(), planned.len());
    // A kept cell is planned anew when it is spoilt, or of a program with changes.
    let first = fs::read_dir(&cells).unwrap().next().unwrap().unwrap().path();
    fs::write(&first, "{").unwrap();
    assert_eq!(sweep("")["cells"], record["cells"]);
    assert!(fs::read(&first).unwrap().len() > 10);

    assert!(fail(&mut waggle("sweep --first-step --tokens 8"), 2).contains("--tokens"));
    assert!(fail(&mut waggle("sweep --tokens 1"), 2).contains("--tokens"));
    assert!(fail(&mut waggle("sweep --policies oracle"), 1).contains("only in the clear"));
    assert!(
        fail(&mut waggle("sweep --contexts 2000"), 1)
            .contains("gpt2, a token after 2000 tokens, full, lan, phases: two")
    );
    assert!(fail(&mut waggle("sweep --models recall --positions 4096"), 1).contains("--positions raises"));
    assert!(fail(&mut waggle("demo --model gpt2"), 1).contains("is a shape without weights"));
}

/// Steps of several texts, and as many texts as a party's memory holds.
#[test]
fn texts_side_by_side_fill_a_memory() {
    let line = "sweep --models shakespeare-gpt2 --contexts 64 --tokens 3 --policies full;snapkv:budget=0.25";
    let cells = |rest: &str| json(&mut waggle(&format!("{line} {rest}")))["cells"].as_array().unwrap().clone();
    let number = |value: &Value| value.as_f64().unwrap();
    let two = cells("--texts 1,2");
    assert_eq!([0, 2].map(|i| two[i]["texts"].as_u64()), [None, Some(2)]);
    // A key and a value for each token of each layer; with a mask and an opened word, three words of 8 bytes.
    let bytes = |i: usize| two[i]["cache_bytes"].as_u64().unwrap();
    let plan = json(&mut waggle("plan --model shakespeare-gpt2 --prompt-len 64 --tokens 4 --texts 2 --preprocess"));
    let config = &plan["model"]["config"];
    let [layers, width] = ["n_layer", "n_embd"].map(|key| config[key].as_u64().unwrap());
    assert_eq!(bytes(0), (64 + 3) * layers * 2 * width * 3 * 8);
    assert_eq!([bytes(2), bytes(3)], [2 * bytes(0), 2 * bytes(1)]);
    assert!(bytes(1) < bytes(0) / 3);
    let decode = &plan["phases"]["decode"]["bytes_client_to_server"];
    assert_eq!(3.0 * number(&two[2]["online"]["bytes_client_to_server"]), number(decode));
    let memory = 2 * bytes(0) + 1;
    let full = cells(&format!("--memory {memory}"));
    assert_eq!(full[0], two[2]);
    assert_eq!(full[1]["texts"].as_u64(), Some(memory / bytes(1)));
    let csv = succeed(&mut waggle(&format!("{line} --memory {memory} --format csv --where policy=full")));
    let (heads, rows) = columns(&csv);
    let of = |name: &str| rows[0][heads.iter().position(|head| *head == name).unwrap()].parse::<f64>().unwrap();
    assert_eq!((rows.len(), of("texts"), of("cache_bytes")), (1, 2.0, bytes(2) as f64));
    assert!((of("tokens_a_second_total") * of("total_network_seconds") - 2.0).abs() < 1e-6, "{csv}");
    let refused = fail(&mut waggle(&format!("{line} --memory 1000")), 1);
    assert!(refused.contains("more than --memory 1000"), "{refused}");
    assert!(fail(&mut waggle(&format!("{line} --where policy=none")), 1).contains("there are full, snapkv"));
    assert!(!succeed(&mut waggle(&format!("{line} --format csv"))).contains("cache_bytes"));
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
    let words = ["model", "policy", "link", "phases", "work", "cores"];
    for row in &rows {
        assert_eq!(row.len(), heads.len(), "{csv}");
        for (head, cell) in heads.iter().zip(row) {
            // Without a calibration and prices there is nothing in their columns.
            let unknown = cell.is_empty() && ["predicted", "cents", "joules"].iter().any(|no| head.contains(no));
            let number = cell.parse::<f64>().is_ok() || unknown;
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
    assert_eq!(
        (of("cores"), of("rate_mbit_s"), of("round_trip_ms")),
        (vec!["40"; 2], vec!["3016.0"; 2], vec!["0.3"; 2])
    );

    for format in ["terminal", "markdown"] {
        let shown = succeed(&mut waggle(&format!("{line} --format {format}")));
        assert!(shown.contains("online, network s") && !shown.contains("predicted"), "{shown}");
        for said in ["model gpt2, prompt 16 tokens, link lan, phases two", "mean of 64 tokens", "cores 40"] {
            assert!(shown.contains(said), "{said}: {shown}");
        }
        assert!(shown.contains("lan has 3016 Mbit/s and 0.3 ms a round trip"), "{shown}");
    }
    let latex = succeed(&mut waggle(&format!("{line} --format latex")));
    assert!(latex.contains("\\begin{tabular}{lrrrrrrrrrr}") && latex.contains("\\bottomrule"), "{latex}");
    assert!(latex.contains(r"\shortstack[r]{online,\\MB} & "), "{latex}");
    let rows: Vec<_> = latex.lines().filter(|line| line.starts_with("full") || line.starts_with("mpcache")).collect();
    assert!(rows.len() == 2 && rows.iter().all(|row| !row.contains("MB")), "units stand in the head alone: {latex}");

    // A plan has two tables, and is one for programs.
    let csv = succeed(&mut waggle("plan --model gpt2 --cached 16 --preprocess --format csv"));
    let (heads, rows) = columns(&csv);
    assert!(rows.iter().all(|row| row.len() == heads.len()), "{csv}");
    assert_eq!((heads[0], rows[0][0], rows[rows.len() - 1][0]), ("table", "phases", "operations"));
    assert!(heads.contains(&"network_seconds"), "{csv}");
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

/// A page in a folder of its own, with one planned block.
fn page(dir: &Path, command: &str) -> PathBuf {
    let path = dir.join("small.md");
    fs::write(&path, format!("# Small\n\nProse.\n\n<!-- waggle: {command} -->\n<!-- end -->\n\nMore.\n"))
        .expect("a page");
    path
}

/// Public tokens are an axis of a sweep, and stand with the private ones along that of a plot.
#[test]
fn a_sweep_goes_over_public_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let line = "--model shakespeare-gpt2 --tokens 4 --prefix-policy streaming:budget=8 --link wan";
    let sweep = |name: &str, axes: &str| {
        let line = line.replace("--model ", "--models ").replace("--link ", "--links ");
        let file = dir.path().join(name);
        (succeed(waggle(&format!("sweep {line} {axes} --format csv --json")).arg(&file)), file)
    };
    let (private, first) = sweep("private.json", "--contexts 8,40");
    let (public, second) = sweep("public.json", "--contexts 8 --public-lens 0,16,32");
    assert!(!private.contains("public"), "{private}");
    let (heads, rows) = columns(&public);
    let at = |name: &str| heads.iter().position(|head| *head == name).unwrap();
    let of = |name: &str| rows.iter().map(|row| row[at(name)]).collect::<Vec<_>>();
    assert_eq!(of("public_tokens"), ["0", "16", "32"]);
    assert!(of("public_policy")[0].is_empty() && of("public_policy")[1] == "streaming:budget=8", "{public}");
    let plan = line.replace("--tokens 4", "--tokens 5 --prompt-len 8 --public-len 32 --preprocess");
    let plan = json(&mut waggle(&format!("plan {plan}")));
    let record: Value = serde_json::from_slice(&fs::read(&second).unwrap()).unwrap();
    let [cell, whole] = [&record["cells"][2], &plan["phases"]];
    for key in ["bytes_client_to_server", "bytes_server_to_client", "flows"] {
        let number = |value: &Value| value[key].as_f64().unwrap();
        assert_eq!(4.0 * number(&cell["online"]), number(&whole["decode"]), "{key}");
        assert_eq!(number(&cell["prompt"]), number(&whole["prefill"]), "{key}");
    }
    succeed(waggle("plot --metric bytes-context-prompt").args([&first, &second]).arg("--out").arg(dir.path()));
    let drawn = fs::read_to_string(dir.path().join("bytes-context-prompt.svg")).unwrap().replace('\n', "");
    for word in [">full<", ">full: 8 behind public text<", ">40<", "Bytes both ways of the prompt"] {
        assert!(drawn.contains(word), "{word} in {drawn}");
    }
    assert!(
        fail(&mut waggle("sweep --contexts 8 --public-lens 1020"), 1).contains("8 tokens behind 1020 public ones")
    );
}

const SWEEP: &str = "sweep --models shakespeare-gpt2 --contexts 16 --policies 'full;h2o:budget=8' --tokens 2 --format markdown --digest";

#[test]
fn a_page_is_made_again_and_a_stale_number_is_found() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = page(dir.path(), SWEEP);
    let pages = || {
        let mut command = waggle("tables");
        command.current_dir(dir.path());
        command
    };
    let folder = dir.path().to_str().expect("UTF-8");
    // Nothing is made yet: the block is out of date.
    assert!(fail(pages().args(["check", "--pages", folder]), 1).contains("1 of 1 planned blocks are out of date"));
    succeed(pages().args(["run", "small", "--pages", folder]));
    let made = fs::read_to_string(&path).expect("the page");
    assert!(
        made.starts_with("# Small\n\nProse.\n\n<!-- waggle: sweep") && made.ends_with("-->\n\nMore.\n"),
        "{made}"
    );
    assert!(made.contains("| h2o:budget=8 | ") && made.contains("*Made by `waggle sweep"), "{made}");
    let checked = succeed(pages().args(["check", "--pages", folder]));
    assert!(checked.starts_with("1 planned blocks of 1 pages"), "{checked}");
    assert!(succeed(pages().args(["list", "--pages", folder])).contains("small.md"));

    // Somebody changes a number, or the program plans another one.
    let (at, row) = made.lines().enumerate().find(|(_, line)| line.contains("| full ")).expect("a row");
    let stale = row.replacen(" MB", "1 MB", 1);
    assert_ne!(stale, row);
    fs::write(&path, made.replacen(row, &stale, 1)).expect("the page");
    let told = fail(pages().args(["check", "--pages", folder]), 1);
    assert!(told.contains(&format!("small.md:{}:", at + 1)), "{told}");
    assert!(told.contains(&format!("old {stale}")) && told.contains(&format!("new {row}")), "{told}");
    // Prose is nobody's business but its author's.
    fs::write(&path, made.replace("Prose.", "Other prose.")).expect("the page");
    succeed(pages().args(["check", "small.md", "--pages", folder]));
}

#[test]
fn pages_run_no_other_commands() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = dir.path().to_str().expect("UTF-8");
    page(dir.path(), "serve --listen 127.0.0.1:0");
    assert!(fail(waggle("tables check --pages").arg(folder), 1).contains("small.md:5: a page does not run"));
    assert!(fail(&mut waggle("tables check --pages no-such-folder"), 1).contains("run this in a checkout"));
    assert!(fail(waggle("tables run absent --pages").arg(folder), 1).contains("there is no page absent"));
    assert!(fail(waggle("tables run --pages").arg(folder), 1).contains("--all"));
    page(dir.path(), "sweep --models absent");
    assert!(
        fail(waggle("tables run --all --pages").arg(folder), 1).contains("small.md:5: waggle sweep --models absent")
    );
}

/// A page of the repository, as it is committed.
#[test]
fn a_committed_page_is_what_this_program_plans() {
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("bench/results");
    let checked = succeed(waggle("tables check large-models --pages").arg(pages));
    assert!(checked.contains("of 1 pages are what this program plans"), "{checked}");
}

#[test]
fn a_papers_rows_stand_beside_ours() {
    let tables = |line: &str| -> Value {
        serde_json::from_str(&succeed(&mut waggle(&format!("reproduce {line} --format json")))).unwrap()
    };
    let rows = |tables: &Value| tables["figures"].as_array().unwrap().clone();
    let all = tables("");
    let figures = rows(&all);
    let of = |system: &str| figures.iter().filter(|row| row["system"] == system).count();
    assert!(of("Waggle") > 40 && of("BumbleBee") >= 2, "{figures:?}");
    let sources = all["sources"].as_array().unwrap();
    let remark = |system: &str| sources.iter().find(|row| row["system"] == system).unwrap()["remark"].to_string();
    assert!(remark("PermLLM").contains("BROKEN: ") && remark("PermLLM").contains("no shape chatglm-6b"));
    // Ours are the plans of `plan`, and a ratio stands where both are of the same part of the work.
    let plan = json(&mut waggle("plan --model bert-base --prompt-len 128 --tokens 1 --preprocess"));
    let bumblebee = rows(&tables("bumblebee 2"));
    let [theirs, one, two] = &bumblebee[..] else { panic!("{bumblebee:?}") };
    let bytes = |phase: &str| {
        let cost = &plan["phases"][phase];
        cost["bytes_client_to_server"].as_u64().unwrap() + cost["bytes_server_to_client"].as_u64().unwrap()
    };
    assert_eq!(two["prepared_bytes"].as_u64(), Some(bytes("offline")));
    assert_eq!(two["online_bytes"].as_u64(), Some(bytes("prefill")));
    assert_eq!((&one["prepared_bytes"], &one["total_measured_seconds"]), (&Value::Null, &Value::Null));
    let number = |row: &Value, name: &str| row[name].as_f64().unwrap();
    let factor = number(theirs, "total_bytes") / number(two, "total_bytes");
    assert!((number(two, "fewer_bytes") - factor).abs() < 1e-9 && two["faster_measured"].is_null(), "{two}");
    let ablations = tables("mpcache")["ablations"].as_array().unwrap().clone();
    // Each of the two figures, and ours in one phase, in two, and of three parties.
    assert_eq!(ablations.len(), 2 * (1 + 3), "{ablations:?}");
    assert!(ablations[1]["what"].as_str().unwrap().ends_with(", a token after 128"), "{ablations:?}");
    // A token without a cache is a pass over what was before it.
    let uncached = rows(&tables("mpcache 4"));
    assert!(number(&uncached[3], "fewer_bytes") < 8.0 && uncached[3]["mean_of_tokens"].is_null(), "{uncached:?}");
    // Systems that stand in the paper of another one.
    assert_eq!(rows(&tables("puma 7")), rows(&tables("mpcache 7")));

    // A run is of both parties, with weights of its own or with a model.
    let run = rows(&tables("mpcache 1 --run --model stories260k"));
    assert!(run.iter().all(|row| number(row, "total_measured_seconds") > 0.0), "{run:?}");
    assert!(number(&run[2], "faster_measured") > 0.0 && run[2]["total_network_seconds"].is_null(), "{run:?}");
    assert!(fail(&mut waggle("reproduce mpcache 1 --run --model nothing"), 1).contains("waggle demo: "));
    assert!(fail(&mut waggle("reproduce mpcache 99"), 1).contains("mpcache has no row 99, only 1 to 12"));
    assert!(fail(&mut waggle("reproduce gazelle"), 2).contains("bumblebee"));
}

#[test]
fn the_works_behind_the_rows_are_written_as_bibtex() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("works.bib");
    let latex = succeed(waggle("reproduce mpcache --format latex --bib").arg(&path));
    assert!(latex.contains(r"\cite{zeng2025mpcache}") && latex.contains(r"\cite{dong2023puma}"), "{latex}");
    let entries =
        |text: &str| -> Vec<String> { text.lines().filter(|line| line.starts_with('@')).map(String::from).collect() };
    let bib = fs::read_to_string(&path).unwrap();
    assert_eq!(entries(&bib), ["@misc{dong2023puma,", "@inproceedings{zeng2025mpcache,"]);
    // One row, one entry; elsewhere the table has the key.
    let csv = succeed(waggle("reproduce mpcache 7 --columns row,cite --format csv --bib").arg(&path));
    assert_eq!(csv, "row,cite\n7,dong2023puma\n");
    assert_eq!(entries(&fs::read_to_string(&path).unwrap()), ["@misc{dong2023puma,"]);
    let absent = dir.path().join("absent").join("works.bib");
    assert!(fail(waggle("reproduce mpcache 7 --bib").arg(&absent), 1).contains("absent"));
}
