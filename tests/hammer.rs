//! Combinations of options of `waggle demo --check`, drawn at random: `.ci/run long` runs 500 of them.
//!
//! Each run is a session of both parties in one process. Its text and its logits are compared with the plaintext
//! engine's under the same policy. A run *differs* if a logit is off by more than [`LOGIT_ERROR`], or if another
//! token came out where the plaintext engine's was ahead by more than that. A difference is explained where `--check`
//! found a choice of the policy within rounding noise of another one; every other difference is a failure.
//! `WAGGLE_RUNS` says how many combinations, and `WAGGLE_SEED` draws others.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use crate::support::{number, read_json, text, waggle};

/// The largest logit error of a session with a bundled model that README states.
const LOGIT_ERROR: f64 = 0.05;

/// The text that prompts are cut from.
const TEXT: &str =
    "Once upon a time there was a king, a king of all the land, who said: speak! Speak, my lord, speak.";

/// Ids of the model `recall`.
const IDS: u32 = 60;

enum Ended {
    /// As the plaintext engine.
    Alike,
    /// Otherwise, beside a choice that hangs on rounding.
    Close(String),
    /// Before it began, for this reason.
    Refused(String),
    /// Otherwise.
    Failed(String),
}

#[test]
#[ignore = "hours; `.ci/run long` runs it"]
fn sessions_with_options_drawn_at_random_are_those_of_the_plaintext_engine() {
    let (runs, seed) = (number("WAGGLE_RUNS").unwrap_or(500), number("WAGGLE_SEED").unwrap_or(1));
    let (mut alike, mut refused, mut failed) = (0, BTreeMap::<String, usize>::new(), 0);
    for index in 0..runs {
        let words = draw(&mut StdRng::seed_from_u64(seed << 32 | index));
        let shown = || format!("run {index}: waggle demo {}", shell(&words));
        match ended(&words) {
            Ended::Alike => alike += 1,
            Ended::Refused(reason) => *refused.entry(reason).or_default() += 1,
            Ended::Close(why) => println!("{}\n  close: {why}", shown()),
            Ended::Failed(why) => {
                failed += 1;
                println!("{}\n  FAILED: {why}", shown());
            }
        }
    }
    println!("seed {seed}, {runs} runs: {alike} alike, {failed} failed; refused: {refused:#?}");
    assert_eq!(failed, 0, "runs differ");
}

/// The words of a command line, quoted where a shell wants it.
fn shell(words: &[String]) -> String {
    let quoted = |word: &String| if word.contains([' ', '!', ':']) { format!("'{word}'") } else { word.clone() };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

fn ended(words: &[String]) -> Ended {
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report.json");
    let output = waggle("demo").args(words).arg("--json").arg(&report).output().unwrap();
    if !output.status.success() {
        let error = text(&output.stderr);
        let reason = error.lines().find_map(|line| line.strip_prefix("error: ")).map(str::to_owned);
        return match reason {
            // A refusal is one line, before a word is printed.
            Some(reason) if output.stdout.is_empty() && !error.contains("panicked") => Ended::Refused(reason),
            _ => Ended::Failed(error),
        };
    }
    let report = read_json(&report);
    let numbers = ["max_abs_logit_error", "largest_margin_missed", "token_agreement", "close_choices"];
    let [error, margin, agreement, close] = numbers.map(|name| report[name].as_f64());
    let Some(agreement) = agreement else { return Ended::Failed("no comparison".into()) };
    let differs = [error, margin].into_iter().flatten().any(|off| off > LOGIT_ERROR);
    let close = close.unwrap_or(0.0);
    let found = || {
        let [error, margin] =
            [error, margin].map(|number| number.map_or("-".into(), |number| format!("{number:.4}")));
        format!("logit error {error}, {agreement} of the tokens agree, margin missed {margin}, close choices {close}")
    };
    match differs {
        false => Ended::Alike,
        true if close > 0.0 => Ended::Close(found()),
        true => Ended::Failed(found()),
    }
}

fn draw(rng: &mut StdRng) -> Vec<String> {
    let mut words: Vec<String> = ["--check", "--link", "memory"].map(String::from).to_vec();
    let mut say = |option: &str, value: String| words.extend([format!("--{option}"), value]);
    let model = pick(rng, &["recall", "shakespeare-gpt2", "shakespeare-llama", "stories260k"]);
    say("model", model.into());
    if model == "recall" {
        let ids: Vec<String> = (0..rng.random_range(1..=40)).map(|_| rng.random_range(0..IDS).to_string()).collect();
        say("prompt-ids", ids.join(","));
    } else {
        let (from, length) = (rng.random_range(0..TEXT.len() - 60), rng.random_range(1..=60));
        say("prompt", TEXT[from..from + length].into());
    }
    say("tokens", rng.random_range(1..=8).to_string());
    say("policy", policy(rng));
    say("reveal", pick(rng, &["logits", "logits", "token"]).into());
    say("ot", pick(rng, &["silent", "softspoken2", "softspoken4", "softspoken8"]).into());
    say("packing", pick(rng, &["auto", "always", "never"]).into());
    if rng.random_bool(0.5) {
        say("preprocess", "true".into());
        say("masks", pick(rng, &["seeded", "sent"]).into());
    }
    if rng.random_bool(0.3) {
        say("draft", format!("lookup:{}", rng.random_range(1..=4)));
    }
    if rng.random_bool(0.2) {
        say("prefill-chunk", rng.random_range(1..=16).to_string());
    }
    if rng.random_bool(0.1) {
        say("pad-prompt", "auto".into());
    }
    words
}

/// A policy with a budget and options.
fn policy(rng: &mut StdRng) -> String {
    const VOTE: &[&str] =
        &["window=4", "kernel=1", "kernel=3", "prefill=6", "guard=0.2", "topk=shuffle-reveal", "topk=sort"];
    const ROLL: &[&str] = &["block=2", "guard=0.2", "topk=shuffle-reveal", "topk=sort"];
    const KEEP: &[&str] = &["recent=2", "prefill=6", "guard=0.2", "topk=shuffle-reveal", "topk=sort"];
    const CLUSTER: &[&str] = &[
        "topk=rank",
        "topk=sort",
        "gather=one-hot",
        "gather=scores",
        "clusters=4",
        "clusters=4/2",
        "sinks=2",
        "static=0.5",
        "similarity=box",
        "select=per-kv",
        "dense=1",
    ];
    let policies: [(&str, &[&str]); 18] = [
        ("full", &[]),
        ("streaming", &["sinks=1"]),
        ("random", &[]),
        ("snapkv", VOTE),
        ("pyramid", VOTE),
        ("squeeze", VOTE),
        ("mpcache-2pc", VOTE),
        ("h2o", ROLL),
        ("scissorhands", ROLL),
        ("alisa", ROLL),
        ("tova", ROLL),
        ("knorm", KEEP),
        ("kvzap", KEEP),
        ("keydiff", KEEP),
        ("keyformer", KEEP),
        ("mpcache", CLUSTER),
        ("mpcache-scores", CLUSTER),
        ("quest", CLUSTER),
    ];
    let (name, options) = policies[rng.random_range(0..policies.len())];
    if name == "full" {
        return name.into();
    }
    let share = options.contains(&"sinks=2") || rng.random_bool(0.6);
    let budget = if share { rng.random_range(2..=8) as f64 / 10.0 } else { f64::from(rng.random_range(4..=24)) };
    let mut text = format!("{name}:budget={budget}");
    let mut keys = Vec::new();
    for option in options.sample(rng, options.len().min(2)) {
        let key = option.split('=').next().unwrap_or_default();
        if !keys.contains(&key) {
            keys.push(key);
            text += &format!(",{option}");
        }
    }
    text
}

fn pick<'a>(rng: &mut StdRng, of: &[&'a str]) -> &'a str {
    of[rng.random_range(0..of.len())]
}

#[test]
fn a_seed_draws_the_same_line_again() {
    let line = |seed| shell(&draw(&mut StdRng::seed_from_u64(seed)));
    assert_eq!(line(7), line(7));
    assert!((0..20).any(|seed| line(seed).contains("--draft")) && line(7) != line(8));
}
