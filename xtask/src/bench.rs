//! `cargo xtask bench BASE`: the benchmarks of an older commit and of the working tree, side by side.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use serde_json::Value;

use crate::Error;
use crate::files::{output, read, root, succeed};

/// Measures a base commit and the working tree in turn, and prints how their times compare.
///
/// The base is built in a git worktree under target/. Each round runs every benchmark of the base and then of the
/// working tree, so that a machine that becomes slower slows both. Printed are medians over the rounds.
#[derive(Args)]
pub(crate) struct BenchArgs {
    /// Commit to compare with.
    base: String,
    /// Benchmark program.
    #[arg(long = "bench", value_name = "NAME", default_values = ["he", "ot", "protocols"])]
    programs: Vec<String>,
    /// Only benchmarks whose ids contain this.
    #[arg(long, value_name = "ID")]
    filter: Option<String>,
    /// How often both are measured.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

/// Ratios outside of these are marked.
const SAME: std::ops::RangeInclusive<f64> = 0.95..=1.05;

/// Nanoseconds by benchmark, one number a round.
type Times = BTreeMap<String, Vec<f64>>;

pub(crate) fn run(args: &BenchArgs) -> Result<(), Error> {
    let mut git = Command::new("git");
    git.current_dir(root()).args(["rev-parse", "--verify", "--short", &format!("{}^{{commit}}", args.base)]);
    let commit = output(&mut git)?.trim().to_owned();
    let folder = root().join("target/xtask-bench").join(&commit);
    if !folder.is_dir() {
        let mut git = Command::new("git");
        git.current_dir(root()).args(["worktree", "add", "--detach"]).arg(&folder).arg(&commit);
        succeed(&mut git)?;
    }
    for place in [&folder, &root()] {
        succeed(bench(place, args).arg("--no-run"))?;
    }
    let mut times = [Times::new(), Times::new()];
    for _ in 0..args.rounds {
        for (place, times) in [&folder, &root()].into_iter().zip(&mut times) {
            let results = root().join("target/xtask-bench/results");
            if results.is_dir() {
                fs::remove_dir_all(&results).map_err(|source| Error::File { path: results.clone(), source })?;
            }
            let mut command = bench(place, args);
            command.env("CRITERION_HOME", &results).arg("--").arg("--noplot").args(&args.filter);
            succeed(&mut command)?;
            collect(&results, times)?;
        }
    }
    let [old, new] = times;
    print!("{}", table(&commit, &old, &new));
    Ok(())
}

/// `cargo bench` of the programs asked for, in `place`.
fn bench(place: &Path, args: &BenchArgs) -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(place).env("CARGO_TARGET_DIR", place.join("target"));
    command.args(["bench", "--package", "waggle-bench"]);
    args.programs.iter().for_each(|name| {
        command.args(["--bench", name]);
    });
    command
}

/// Adds the medians that criterion left under `folder`.
fn collect(folder: &Path, times: &mut Times) -> Result<(), Error> {
    let entries = fs::read_dir(folder).map_err(|source| Error::File { path: folder.into(), source })?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    paths.sort();
    for path in paths {
        if !path.ends_with("new") {
            collect(&path, times)?;
            continue;
        }
        let id = parse(&path.join("benchmark.json"))?["full_id"].as_str().unwrap_or_default().to_owned();
        if let Some(median) = parse(&path.join("estimates.json"))?["median"]["point_estimate"].as_f64() {
            times.entry(id).or_default().push(median);
        }
    }
    Ok(())
}

fn parse(path: &Path) -> Result<Value, Error> {
    serde_json::from_str(&read(path)?).map_err(|source| Error::Report { path: path.into(), source })
}

/// The middle one of some numbers, or the mean of the two in the middle.
fn median(numbers: &[f64]) -> Option<f64> {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (sorted.len().checked_sub(1)? / 2, sorted.len() / 2);
    Some((sorted[low] + sorted[high]) / 2.0)
}

/// What both have, with the ratio of new to old; what only one has, as such.
fn table(commit: &str, old: &Times, new: &Times) -> String {
    let mut out = format!("{:>12} {:>12} {:>7}  benchmark\n", commit, "now", "ratio");
    let ids: std::collections::BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    for id in ids {
        let [old, new] = [old, new].map(|times| times.get(id).and_then(|times| median(times)));
        let time = |time: Option<f64>| time.map_or("-".into(), |ns| format!("{:.3} ms", ns / 1e6));
        let ratio = old.zip(new).map(|(old, new)| new / old);
        let mark = if ratio.is_some_and(|ratio| !SAME.contains(&ratio)) { " *" } else { "" };
        let ratio = ratio.map_or("-".into(), |ratio| format!("{ratio:.3}"));
        out += &format!("{:>12} {:>12} {ratio:>7}  {id}{mark}\n", time(old), time(new));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_stand_between() {
        assert_eq!([median(&[]), median(&[3.0]), median(&[4.0, 1.0])], [None, Some(3.0), Some(2.5)]);
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
    }

    #[test]
    fn a_table_marks_what_has_changed() {
        let times = |of: &[(&str, f64)]| of.iter().map(|(id, ns)| ((*id).to_owned(), vec![*ns])).collect::<Times>();
        let (old, new) = (times(&[("a", 1e6), ("b", 2e6), ("gone", 1e6)]), times(&[("a", 1.02e6), ("b", 1e6)]));
        let table = table("abc", &old, &new);
        let lines: Vec<&str> = table.lines().map(str::trim).collect();
        assert_eq!(lines[1], "1.000 ms     1.020 ms   1.020  a");
        assert_eq!(lines[2], "2.000 ms     1.000 ms   0.500  b *");
        assert_eq!(lines[3], "1.000 ms            -       -  gone");
    }
}
