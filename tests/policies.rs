//! `waggle policies`: every policy once.

use std::collections::BTreeSet;

use crate::support::{Server, fail, fails, json, succeed, waggle};
use waggle_mpcache::PolicySpec;

#[test]
fn every_policy_is_listed_once() {
    let list = json(&mut waggle("policies"));
    let names: Vec<&str> = list.as_array().unwrap().iter().map(|policy| policy["name"].as_str().unwrap()).collect();
    assert_eq!(names, PolicySpec::known().collect::<Vec<_>>());
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    let table = succeed(&mut waggle("policies"));
    // Where there is no terminal the table fits a page.
    assert!(table.lines().all(|line| line.chars().count() <= 112), "{table}");
    for name in names {
        assert!(table.lines().any(|line| line.split_whitespace().next() == Some(name)), "{name}\n{table}");
    }
    // The description of `streaming`.
    let streaming = list.as_array().unwrap().iter().find(|policy| policy["name"] == "streaming").unwrap();
    assert_eq!(streaming["options"][0]["key"], "budget");
    assert_eq!(streaming["options"][0]["default"], "0.25");
    assert_eq!(streaming["shows"], "the whole pattern, which follows from lengths");
}

/// Sessions in which votes are equal, or nearly: three tokens under a kernel that covers them all, tokens beside the
/// only one that was looked at, tokens that nobody looked at. Their text and logits hung on rounding noise.
#[test]
fn nearly_equal_votes_do_not_hang_on_rounding() {
    const IDS: &str = "--model recall --prompt-ids 27,48,29,57,13,36,7,32,27 --policy";
    let lines = [
        (format!("{IDS} snapkv:budget=0.2 --tokens 2"), "", 4),
        (format!("{IDS} snapkv:budget=0.2 --tokens 2 --preprocess --draft lookup:1 --masks sent"), "", 4),
        ("--model shakespeare-gpt2 --policy snapkv:budget=0.5 --tokens 2".into(), " pala", 2),
        ("--model stories260k --policy squeeze:budget=0.5,layers=1 --tokens 8".into(), " a se", 1),
    ];
    for (line, prompt, runs) in lines {
        for _ in 0..runs {
            let mut demo = waggle(&format!("demo --check --link memory {line}"));
            if !prompt.is_empty() {
                demo.args(["--prompt", prompt]);
            }
            let check = json(&mut demo);
            let [agreement, error] =
                ["token_agreement", "max_abs_logit_error"].map(|name| check[name].as_f64().unwrap());
            assert!(agreement == 1.0 && error < 0.05, "{line}: {agreement} of the tokens agree, error {error}");
        }
    }
}

/// The plaintext model reads what the parties read where that changes the text: pieces of a prompt that sheds rows,
/// its padding, and public text apart from private text.
#[test]
fn a_check_reads_a_prompt_as_the_parties_do() {
    let dir = tempfile::tempdir().unwrap();
    let public = dir.path().join("public.txt");
    std::fs::write(&public, "Once upon a time there was a big dog. ").unwrap();
    let behind = format!("--public-prefix {}", public.display());
    for options in [
        "--shed 2:0.5 --prefill-chunk 4",
        "--shed 1:0.5 --pad-prompt 32",
        "--shed 1:0.5 --draft lookup:2",
        &format!("{behind} --shed 1:0.5,3:0.3"),
        &format!("{behind} --shed 2:0.5/own --prefix-policy full:shed=2:0.5"),
        &format!("{behind} --policy snapkv:budget=0.5"),
    ] {
        let mut demo = waggle(&format!("demo --check --link memory --tokens 4 {options}"));
        demo.args(["--prompt", "One day the dog saw a red ball in the park and wanted to"]);
        let check = json(&mut demo);
        let error = check["max_abs_logit_error"].as_f64().unwrap();
        assert!(check["token_agreement"] == 1.0 && error < 0.05, "{options}: error {error}");
        let full = check["against_full_cache"]["max_abs_logit_error"].as_f64().unwrap();
        assert!(full > 0.1, "{options}: pruning moves a logit by {full}");
    }
}

#[test]
fn clients_choose_among_the_policies_of_a_server() {
    let server = Server::start("--model shakespeare-gpt2 --skip-range-check --policies full;streaming:budget=8");
    let asked = "--prompt-ids 5,6,7,8,9,1,2,3,4,5 --tokens 2 --policy";
    for policy in ["full", "streaming:budget=8"] {
        let report = json(&mut server.client(&format!("{asked} {policy}")));
        assert_eq!(report["options"]["policy"], policy);
    }
    let words = ["policy: client says h2o, server says full;streaming:budget=8"];
    fails(&mut server.client(&format!("{asked} h2o")), 1, words);
    for (policies, word) in [("full;oracle", "only in the clear"), ("full;kvzap", "scoring")] {
        let line =
            format!("serve --listen 127.0.0.1:0 --model shakespeare-gpt2 --skip-range-check --policies {policies}");
        let refused = fail(&mut waggle(&line), 1);
        assert!(refused.contains("kvzap") || refused.contains(word), "{refused}");
    }
}

#[test]
fn a_file_that_cannot_be_written_is_an_error() {
    let error = fail(&mut waggle("policies --json /no/such/directory/list.json"), 1);
    assert!(error.starts_with("error: /no/such/directory/list.json"), "{error}");
}
