//! `waggle heads`: the pattern that it finds, what it prints, what it refuses.

use crate::support::{fail, fails, json, play, read_json, succeed, waggle};

/// Set bits of the pattern of a policy text.
fn heads(policy: &str) -> u32 {
    let (_, rest) = policy.trim().split_once("heads=").unwrap();
    let layers = rest.split(',').next().unwrap().split('.');
    layers.map(|layer| u32::from_str_radix(layer, 16).unwrap().count_ones()).sum()
}

#[test]
fn a_pattern_is_a_policy_for_every_command() {
    let dir = tempfile::tempdir().unwrap();
    let (text, report) = (play(dir.path(), 6), dir.path().join("heads.json"));
    let find = |rest: &str| {
        let line = format!("heads --model shakespeare-gpt2 --text {text} --context 96 --sequences 2 {rest}");
        succeed(waggle(&line).arg("--json").arg(&report)).trim().to_owned()
    };
    let read = || read_json(&report);
    // Four layers of four heads.
    let half = find("");
    assert_eq!((heads(&half), find("") == half), (8, true), "{half}");
    assert!(half.starts_with("duo:") && half.contains("budget=24"), "{half}");
    let found = read();
    assert_eq!((&found["policy"], &found["by"], &found["share"]), (&half[..].into(), &"output".into(), &0.5.into()));
    let scores: Vec<f64> = (0..16).map(|i| found["scores"][i / 4][i % 4].as_f64().unwrap()).collect();
    assert!(scores.iter().all(|score| (0.0..10.0).contains(score)), "{scores:?}");
    // A quarter of the heads are those of half of them with the largest scores.
    let quarter = find("--share 0.25 --budget 16 --sinks 2");
    assert_eq!(heads(&quarter), 4);
    assert!(quarter.contains("budget=16") && quarter.contains("sinks=2"), "{quarter}");
    assert_ne!(read()["scores"], found["scores"], "heads that see less lose more");
    find("--by mass");
    let mass = read()["scores"].clone();
    assert!((0..16).all(|i| (0.0..1.0).contains(&mass[i / 4][i % 4].as_f64().unwrap())), "{mass}");
    let echo = waggle("heads --model shakespeare-gpt2 --by echo --policy razor --context 64 --sequences 1 --share 1");
    let razor = succeed(&mut { echo });
    assert_eq!(heads(&razor), 16, "{razor}");
    for policy in [&half[..], razor.trim()] {
        let plan = json(&mut waggle(&format!(
            "plan --model shakespeare-gpt2 --prompt-len 30 --tokens 3 --preprocess --policy {policy}"
        )));
        assert!(plan["phases"]["decode"]["bytes_client_to_server"].as_u64().unwrap() > 0);
        succeed(&mut waggle(&format!(
            "eval --model shakespeare-gpt2 --text {text} --context 64 --sequences 1 --policies {policy}"
        )));
    }
}

#[test]
fn what_fits_no_model_is_refused_before_any_work() {
    let dir = tempfile::tempdir().unwrap();
    let text = play(dir.path(), 6);
    let layers = "cache policy `duo`: heads=1.2: expected a number for each of the model's 5 layers, or one for all";
    for line in [
        "plan --policy duo:heads=1.2",
        "demo --prompt-ids 1,2 --tokens 2 --policy duo:heads=1.2",
        "float --prompt-ids 1,2 --tokens 2 --policy duo:heads=1.2",
        &format!("eval --text {text} --context 20 --sequences 1 --policies duo:heads=1.2,budget=0.5"),
    ] {
        fails(&mut waggle(line), 1, [layers]);
    }
    let error = fail(&mut waggle("plan --model shakespeare-gpt2 --policy razor:heads=10"), 1);
    assert!(error.contains("heads=10: expected heads below 4"), "{error}");
    let missing = fail(&mut waggle("plan --policy duo"), 2);
    assert!(missing.contains("needs heads=") && missing.contains("waggle heads"), "{missing}");
    for (rest, words) in [
        ("--model recall", "--text is missing"),
        ("--model recall --by mass", "--text is missing"),
        (&format!("--by echo --text {text}"), "takes no --text"),
        (&format!("--text {text} --share 1.5"), "a share of 1.5 of the heads"),
        (&format!("--text {text} --context 20 --budget 24"), "too short to judge heads by: give 25 or more"),
        ("--by echo --context 5", "too short"),
        ("--by loudness", "one of output, mass, echo"),
    ] {
        let code = if rest.contains("loudness") { 2 } else { 1 };
        fails(&mut waggle(&format!("heads --sequences 1 {rest}")), code, [words]);
    }
}

/// A model that recalls what stands far back does so in some of its heads. All others may stream.
#[test]
fn the_heads_that_recall_are_found() {
    let found = succeed(&mut waggle(
        "heads --model recall --by echo --policy duo --share 0.5 --budget 52 --context 256 --sequences 4",
    ));
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/model/assets/recall/queries.jsonl");
    let line = format!("eval --model recall --task recall --data {data} --sequences 4");
    let policies = format!("streaming:budget=52;{}", found.trim());
    let study = json(waggle(&line).args(["--policies", &policies]));
    let right = |name: &str| {
        let rows = study["rows"].as_array().unwrap();
        let of = rows.iter().find(|row| row["policy"].as_str().unwrap().starts_with(name)).unwrap();
        of["accuracy"].as_f64().unwrap()
    };
    assert!(right("full") > 0.98 && right("streaming") < 0.1, "{study}");
    assert_eq!((&study["options"]["prompt"], &study["options"]["context"]), (&409.into(), &512.into()));
    assert!(right("duo") > 0.9, "{found}: {study}");
}
