//! `waggle policies`: every policy once.

mod support;

use std::collections::BTreeSet;

use mpcache::PolicySpec;
use support::{fail, json, succeed, waggle};

#[test]
fn every_policy_is_listed_once() {
    let list = json(&mut waggle("policies"));
    let names: Vec<&str> = list.as_array().unwrap().iter().map(|policy| policy["name"].as_str().unwrap()).collect();
    assert_eq!(names, PolicySpec::known().collect::<Vec<_>>());
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    let table = succeed(&mut waggle("policies"));
    for policy in list.as_array().unwrap() {
        let [name, about] = ["name", "about"].map(|key| policy[key].as_str().unwrap());
        // What stands in a cell may be broken into lines where a terminal is narrow; here there is none.
        assert!(table.lines().any(|line| line.contains(name) && line.contains(about)), "{name}\n{table}");
    }
    // What `streaming` says of itself.
    let streaming = list.as_array().unwrap().iter().find(|policy| policy["name"] == "streaming").unwrap();
    assert_eq!(streaming["options"][0]["key"], "budget");
    assert_eq!(streaming["options"][0]["default"], "0.25");
    assert_eq!(streaming["shows"], "the whole pattern, which follows from lengths");
}

#[test]
fn a_file_that_cannot_be_written_is_an_error() {
    let error = fail(&mut waggle("policies --json /no/such/directory/list.json"), 1);
    assert!(error.starts_with("error: /no/such/directory/list.json"), "{error}");
}
