//! Two processes generate what the plaintext model writes.

use std::path::Path;

use crate::support::{LIMIT, Process, Server, fail, fails, ids, join, json, read_json, succeed, text, waggle};
use serde_json::{Value, json as value};
use waggle_testing::asset;

/// If the plaintext's best token leads by more than this, the parties must choose it too.
const SAFE_MARGIN: f64 = 0.05;

/// Runs a demo with `--check` and asserts what holds for every model.
fn checked(arguments: &str) -> Value {
    let report = json(&mut waggle(&format!("demo --check {arguments}")));
    let missed = report["largest_margin_missed"].as_f64();
    assert!(missed.is_none_or(|margin| margin <= SAFE_MARGIN), "{arguments}: missed a margin of {missed:?}");
    let error = report["max_abs_logit_error"].as_f64().unwrap();
    assert!(error <= 0.02, "{arguments}: logit error {error}");
    report
}

#[test]
fn bundled_models_write_shakespeare() {
    for (model, prompt) in [("shakespeare-gpt2", "30,27,25,17,27,10,0"), ("shakespeare-llama", "40,37,35,27,37,19,0")]
    {
        let report = checked(&format!("--model {model} --prompt-ids {prompt} --tokens 12"));
        let prepared = checked(&format!("--model {model} --prompt-ids {prompt} --tokens 12 --preprocess"));
        assert_eq!(prepared["tokens"], report["tokens"]);
        let online = |report: &Value| report["phases"]["decode"]["bytes_client_to_server"].as_u64();
        assert!(online(&prepared) < online(&report), "nothing was taken from the online phase");
        assert_eq!(report["token_agreement"], 1.0, "{model}");
        let float = json(&mut waggle(&format!("float --model {model} --prompt-ids {prompt} --tokens 12")));
        assert_eq!(report["tokens"], float["tokens"]);
        assert_eq!(report["text"], float["text"]);
        assert_eq!(float["logits"].as_array().unwrap().len(), 7 + 11, "one row per position");
    }
}

#[test]
fn the_first_command_of_the_readme_tells_a_story() {
    let out = succeed(&mut waggle("demo --tokens 12"));
    assert_eq!(out, ", there was a little girl named Lily. She\n", "standard output holds the text alone");
    let report = checked("--tokens 64");
    assert_eq!(ids(&report["tokens"]).len(), 64);
    assert!(report["text"].as_str().unwrap().starts_with(out.trim_end()), "{}", report["text"]);
    for options in ["", "--preprocess"] {
        let told = text(&waggle(&format!("demo --tokens 2 {options}")).output().unwrap().stderr);
        assert!(told.contains("server saw: 5 tokens in, 2 out") && told.contains("next: waggle demo"), "{told}");
        assert!(told.lines().all(|line| line.chars().count() <= 80), "{told}");
    }
}

#[test]
fn the_sorter_sorts_and_the_adder_adds() {
    let [sorter, adder] = ["models/gpt-nano-sort", "models/gpt-nano-adder"].map(asset);
    let writes = |model: &Path, prompt: &[u32], answer: &[u32]| {
        let (ids_of, tokens) = (join(prompt), answer.len());
        let report = checked(&format!("--model {} --prompt-ids {ids_of} --tokens {tokens}", model.display()));
        assert_eq!(ids(&report["tokens"]), answer, "{prompt:?}");
    };
    // 37 and 729 have no common factor, so the inputs are spread over all of them.
    for n in (0..8u32).map(|i| 37 * i * 11 % 729) {
        let input: Vec<u32> = (0..6).map(|i| n / 3u32.pow(i) % 3).collect();
        let mut sorted = input.clone();
        sorted.sort();
        writes(&sorter, &input, &sorted);
    }
    for n in (0..8u32).map(|i| (i * 521 + 99) % 10_000) {
        let (ab, cd) = (n / 100, n % 100);
        let sum = ab + cd;
        writes(&adder, &[ab / 10, ab % 10, cd / 10, cd % 10], &[sum % 10, sum / 10 % 10, sum / 100]);
    }
}

#[test]
fn sampled_texts_repeat_with_their_seed() {
    let sample = |seed: u32| {
        let line = "demo --link memory --model shakespeare-gpt2 --prompt-ids 30,27 --tokens 8 --temperature 1.5 --top-p 0.95 --seed";
        json(&mut waggle(&format!("{line} {seed}")))["tokens"].clone()
    };
    assert_eq!(sample(1), sample(1));
    assert_ne!(sample(1), sample(2));
}

/// The bundled model knows the characters of Shakespeare alone.
#[test]
fn characters_without_a_token_are_named() {
    let told = |prompt: &str| {
        let mut command = waggle("float --model shakespeare-gpt2 --tokens 1");
        let output = command.args(["--prompt", prompt]).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stderr)
    };
    assert!(told("ROMEO, caf\u{e9} \u{e9} \u{2192}:\n").contains("has no token for `\u{e9}`, `\u{2192}` and"));
    assert!(!told("ROMEO:\tSo?\n").contains("no token"), "white space is no loss");
    assert!(!told("ROMEO:\nSpeak, speak!\n").contains("no token"));
}

#[test]
fn a_text_ends_at_an_eos_token() {
    // The newline ends a text of this model.
    let line = "--model shakespeare-gpt2 --prompt-ids 30,27,25,17,27,10,0 --tokens 60";
    let whole = ids(&json(&mut waggle(&format!("float {line}")))["tokens"]);
    let end = whole.iter().position(|token| *token == 0).unwrap();
    let report = json(&mut waggle(&format!("demo --stop-at-eos {line}")));
    assert_eq!(ids(&report["tokens"]), whole[..=end]);
    assert_eq!(report["phases"]["decode"]["per_token"].as_array().unwrap().len(), end);
}

#[test]
fn what_the_protocol_changed_is_told_apart_from_what_pruning_changed() {
    let prompt = "30,27,25,17,27,10,0,40,37,35,27,37,19,0,13,14,15,16,17,18";
    let report = checked(&format!(
        "--model shakespeare-gpt2 --policy streaming:budget=0.25,sinks=1 --prompt-ids {prompt} --tokens 4"
    ));
    let pruned = &report["against_full_cache"];
    let error = pruned["max_abs_logit_error"].as_f64().unwrap();
    assert!(error > 0.1, "a quarter of the cache changes the logits by {error} only");
    assert!(pruned["token_agreement"].is_number());
    let full = checked(&format!("--model shakespeare-gpt2 --prompt-ids {prompt} --tokens 4"));
    assert!(full.get("against_full_cache").is_none());
}

#[test]
fn the_report_says_everything() {
    let report = json(&mut waggle("demo --model shakespeare-gpt2 --check --prompt-ids 30,27,25 --tokens 3"));
    for key in ["prompt_tokens", "tokens", "text", "model", "options", "max_abs_logit_error", "token_agreement"] {
        assert!(!report[key].is_null(), "{key}");
    }
    let five = ["bytes_client_to_server", "bytes_server_to_client", "flows", "seconds", "cpu_seconds"];
    for phase in ["setup", "offline", "prefill", "decode"] {
        for key in five {
            assert!(report["phases"][phase][key].as_f64().unwrap() > 0.0, "{phase}.{key}");
        }
    }
    let tokens = report["phases"]["decode"]["per_token"].as_array().unwrap();
    assert_eq!(tokens.len(), 2);
    for key in &five[..3] {
        let sum: u64 = tokens.iter().map(|token| token[key].as_u64().unwrap()).sum();
        assert_eq!(Some(sum), report["phases"]["decode"][key].as_u64(), "{key}");
    }
    let operations = report["operations"].as_array().unwrap();
    for phase in ["setup", "offline", "prefill", "decode"] {
        let of_phase = operations.iter().filter(|op| op["phase"] == phase);
        let sum: u64 = of_phase.map(|op| op["bytes_client_to_server"].as_u64().unwrap()).sum();
        assert_eq!(Some(sum), report["phases"][phase]["bytes_client_to_server"].as_u64(), "{phase}");
        for key in ["cpu_seconds", "peer_cpu_seconds"] {
            let of_phase = operations.iter().filter(|op| op["phase"] == phase);
            let sum: f64 = of_phase.map(|op| op[key].as_f64().unwrap()).sum();
            let total = report["phases"][phase][key].as_f64().unwrap();
            assert!(total > 0.0 && (sum - total).abs() < 1e-6, "{phase}.{key}: {sum} of {total}");
        }
    }
    // Time is booked where it is spent: in the matrix product, not in the scope around it.
    let of = |path: &str| operations.iter().find(|op| op["phase"] == "decode" && op["path"] == path).unwrap();
    for key in ["cpu_seconds", "peer_cpu_seconds"] {
        let [inner, outer] = ["layer 0/mlp/up", "layer 0/mlp"].map(|path| of(path)[key].as_f64().unwrap());
        assert!(outer < inner, "{key}: {inner} in the product, {outer} around it");
    }
    for party in ["client", "server"] {
        assert!(report["peak_memory_bytes"][party].as_u64().unwrap() > 1 << 20, "{party}");
    }
    assert_eq!((&report["predicted"], &report["options"]["processes"]), (&Value::from(false), &Value::from(2)));
}

/// Several texts side by side are the texts that each prompt has alone, and samples those that each seed has alone.
#[test]
fn several_texts_are_those_that_each_has_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("prompts.jsonl");
    let prompts = ["Once upon a time", "The cat", "Tom and Lily went to the park."];
    let lines: Vec<String> = prompts.iter().map(|text| value!({ "text": text }).to_string()).collect();
    std::fs::write(&file, lines.join("\n")).unwrap();
    let report = dir.path().join("report.json");
    let told = succeed(waggle("demo --tokens 6 --check --json").arg(&report).arg("--prompts").arg(&file));
    let told: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for ((prompt, line), place) in prompts.iter().zip(&told).zip(1..) {
        let alone = succeed(waggle("demo --tokens 6 --link memory --prompt").arg(prompt));
        assert_eq!((&line["prompt"], line["text"].as_str()), (&value!(place), alone.strip_suffix('\n')), "{line}");
    }
    let report = read_json(&report);
    assert_eq!((&report["options"]["texts"], &report["token_agreement"]), (&value!(3), &value!(1.0)));
    assert_eq!(report["texts"][1], told[1]["text"]);
    let sampled = "demo --tokens 6 --link memory --prompt Once --temperature 0.9 --seed";
    let both = succeed(&mut waggle(&format!("{sampled} 4 --samples 2")));
    for (line, seed) in both.lines().zip([4, 5]) {
        let line: Value = serde_json::from_str(line).unwrap();
        let alone = succeed(&mut waggle(&format!("{sampled} {seed}")));
        assert_eq!(line["text"].as_str(), alone.strip_suffix('\n'), "seed {seed}");
    }
    fails(waggle("demo --draft lookup --prompts").arg(&file), 1, ["3 texts side by side cannot have a draft"]);
    fails(&mut waggle("demo --policy tova --samples 2"), 1, ["2 texts side by side cannot have the policy `tova`"]);
    fails(waggle("demo --policy h2o --prompts").arg(&file), 1, ["padding"]);
}

/// Both parties have the base, and the server alone what is added to it: the text is that of both together. Products
/// with the base prepare nothing.
#[test]
fn a_public_base_costs_little() {
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/model/tests/data");
    let (model, adapter) = (format!("{data}/families/llama3"), format!("{data}/adapters/llama3"));
    let line = format!("--model {model} --adapter {adapter} --prompt-ids 3,1,4,1,5,9 --tokens 8");
    let float = json(&mut waggle(&format!("float {line}")));
    let run = |rest: &str| json(&mut waggle(&format!("demo {line} --preprocess --check {rest}")));
    let [private, public, memory] = ["", "--public all", "--public all --link memory"].map(run);
    for report in [&private, &public, &memory] {
        assert_eq!((&report["tokens"], &report["token_agreement"]), (&float["tokens"], &value!(1.0)));
    }
    let ranks = json(&mut waggle(&format!("float --model {model} --prompt-ids 3,1,4,1,5,9 --tokens 8")));
    assert_ne!(ranks["tokens"], float["tokens"], "the adapter is there");
    assert_eq!(public["options"]["public"]["parts"], "all");
    assert_eq!(public["options"]["public"]["ranks"]["mlp.down_proj"], 4);
    assert_eq!(private["options"]["public"]["parts"], "");
    // What a plan says of the same files, and no more than of the shape where entries are below 16.
    let plan = |rest: &str| json(&mut waggle(&format!("plan --prompt-len 6 --tokens 8 --preprocess {rest}")));
    let planned = plan(&format!("--model {model} --adapter {adapter} --public all"));
    let of_shape = plan(&format!("--model {model} --rank 4 --public all"));
    assert_eq!(planned["phases"]["offline"]["flows"], of_shape["phases"]["offline"]["flows"]);
    assert_eq!(
        planned["phases"]["prefill"]["bytes_client_to_server"],
        of_shape["phases"]["prefill"]["bytes_client_to_server"]
    );
    fails(&mut waggle(&format!("serve --model {model} --public lm_head")), 2, ["`lm_head` is no part of a model"]);
    fails(&mut waggle(&format!("serve --model {model} --public layers=0-7")), 1, ["there is no layer 7"]);
    fails(&mut waggle(&format!("serve --base {model}")), 2, ["--adapter"]);
}

#[test]
fn a_prompt_comes_from_a_file_or_from_standard_input() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("prompt.txt");
    std::fs::write(&file, "JULIET:\n").unwrap();
    let float = |more: &[&str]| {
        let mut command = waggle("float --model shakespeare-gpt2 --tokens 4");
        command.args(more);
        command
    };
    let wanted = succeed(&mut float(&["--prompt", "JULIET:\n"]));
    assert_eq!(succeed(&mut float(&["--prompt-file", file.to_str().unwrap()])), wanted);
    let output = Process::fed(&mut float(&["--prompt-file", "-"]), b"JULIET:\n").end(LIMIT);
    assert_eq!(output.code, Some(0), "{}", output.errors);
    assert_eq!(output.text, wanted);
    let missing = tempfile::tempdir().unwrap().path().join("missing").display().to_string();
    let errors = fail(&mut float(&["--prompt-file", &missing]), 1);
    assert!(errors.contains(&missing) && errors.lines().count() == 1, "{errors}");
    fails(&mut float(&["--prompt-file", "-"]), 1, ["the prompt has no tokens"]);
    fail(&mut float(&["--prompt-file", "-", "--prompt", "x"]), 2);
    let server = Server::start("--model shakespeare-gpt2 --insecure-plaintext");
    let answer =
        succeed(&mut server.client(&format!("--insecure-plaintext --tokens 1 --prompt-file {}", file.display())));
    assert!(!answer.is_empty());
}
