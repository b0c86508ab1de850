//! Predicted seconds follow what was measured; where nothing was measured there are none.

use std::path::Path;
use std::process::Command;

use crate::support::{fail, fails, json, of, read_json, succeed, text, waggle};
use serde_json::Value;
use waggle_planner::{PROFILE_VERSION, Profile};
use waggle_protocols::Rates;

/// Version and revision of the program under test.
fn program() -> String {
    let line = succeed(&mut waggle("--version"));
    line.trim().strip_prefix("waggle ").expect("the name comes first").to_owned()
}

/// Measurements of a machine that does not exist.
fn profile() -> Profile {
    Profile {
        version: PROFILE_VERSION,
        program: program(),
        processor: "an imagined processor".into(),
        kernels: "none".into(),
        cores: 2,
        speedup: 1.0,
        wake_nanoseconds: 30_000.0,
        base_bytes: [20_000_000; 2],
        nanoseconds: Profile::named(&Rates::reference()),
    }
}

fn write(path: &Path, profile: &Profile) {
    std::fs::write(path, serde_json::to_vec(profile).unwrap()).unwrap();
}

/// A plan, in a home where nobody has measured anything.
fn plan(home: &Path, arguments: &str) -> Command {
    of(waggle(&format!("plan --model shakespeare-gpt2 --prompt-len 8 --tokens 4 {arguments}")), home)
}

#[test]
fn without_measurements_there_is_no_column_of_zeros() {
    let home = tempfile::tempdir().unwrap();
    let said = succeed(&mut plan(home.path(), ""));
    assert!(said.contains("waggle calibrate") && said.contains("the network alone"), "{said}");
    assert!(!said.contains("cpu seconds") && !said.contains("memory at the most"), "{said}");
    let report = json(&mut plan(home.path(), ""));
    assert_eq!(report["peak_memory_bytes"]["client"], Value::Null);
    fails(&mut plan(home.path(), "--against report.json"), 1, ["waggle calibrate"]);
}

/// The command measures sessions of its own, and says what it found of every operation.
#[test]
fn a_machine_that_was_measured_predicts() {
    let home = tempfile::tempdir().unwrap();
    let [file, accounts] = ["profile.json", "accounts.json"].map(|name| home.path().join(name));
    let mut command = of(waggle("calibrate --anyway --threads 2"), home.path());
    let said = succeed(command.arg("--out").arg(&file).arg("--json").arg(&accounts));
    assert!(said.contains("2 cores of ") && said.contains(" s of processor time in "), "{said}");
    let profile: Profile = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let accounts = read_json(&accounts);
    for account in accounts.as_array().unwrap() {
        let units = account["units"].as_object().unwrap().iter();
        let seconds: f64 = units.map(|(kernel, n)| n.as_f64().unwrap() * profile.nanoseconds[kernel] / 1e9).sum();
        let fitted = account["fitted_seconds"].as_f64().unwrap();
        assert!((fitted - seconds).abs() <= 1e-6 * seconds, "{seconds} in {account}");
    }
    for party in ["client", "server"] {
        let mut of = accounts.as_array().unwrap().iter().filter(|account| account["party"] == party);
        assert!(of.any(|account| account["cpu_seconds"].as_f64().unwrap() > 0.0), "{party}");
    }
    let planned = json(&mut plan(home.path(), &format!("--cores 2 --calibration {}", file.display())));
    assert_eq!(planned["seconds_are"], "predicted");
}

#[test]
fn estimates_are_marked_and_bytes_stay_what_they_are() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("other.json");
    write(&file, &profile());
    for phases in ["--cores 2", "--cores 2 --preprocess"] {
        let arguments = format!("{phases} --calibration {}", file.display());
        let said = succeed(&mut plan(home.path(), &arguments));
        assert!(said.contains("an imagined processor") && said.contains("estimated"), "{said}");
        assert!(said.contains("peer cpu seconds") && said.contains("memory at the most"), "{said}");
        // At these prices a second of a core costs a cent, and it takes two joules.
        let priced = succeed(&mut plan(home.path(), &format!("{arguments} --price core-hour=36 --watts 2")));
        let setup = priced.lines().find(|line| line.contains(" setup ")).unwrap();
        let numbers: Vec<f64> = setup.split_whitespace().filter_map(|cell| cell.parse().ok()).collect();
        assert!(matches!(numbers[..], [.., cents, joules] if (joules / cents - 2.0).abs() < 0.01), "{priced}");
        let [bare, timed] = [phases, &arguments].map(|arguments| json(&mut plan(home.path(), arguments)));
        let estimated: Vec<_> = timed["estimated"].as_array().unwrap().iter().map(|v| v.as_str().unwrap()).collect();
        assert_eq!(estimated, ["seconds", "cpu_seconds", "peer_cpu_seconds", "peak_memory_bytes"]);
        for phase in ["setup", "offline", "prefill", "decode"] {
            let [bare, timed] = [&bare, &timed].map(|report| &report["phases"][phase]);
            for key in ["bytes_client_to_server", "bytes_server_to_client", "flows"] {
                assert_eq!(bare[key], timed[key], "{phase} {key}");
            }
            for key in ["seconds", "cpu_seconds", "peer_cpu_seconds"] {
                assert!(timed[key].as_f64().unwrap() > 0.0, "{phase} {key}");
            }
        }
        let memory = &timed["peak_memory_bytes"];
        let [client, server, mapped] = ["client", "server", "mapped"].map(|key| memory[key].as_u64().unwrap());
        assert!(client > 20_000_000 && server > 20_000_000 + mapped && mapped > 0, "{memory}");
    }
}

#[test]
fn a_sweep_predicts_as_a_plan_does() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("other.json");
    write(&file, &profile());
    let sweep = |rest: &str| {
        of(waggle(&format!("sweep --models shakespeare-gpt2 --contexts 8 --tokens 3 --cores 2 {rest}")), home.path())
    };
    let calibrated = format!("--calibration {}", file.display());
    let cells = home.path().join("cells");
    let kept = |rest: &str| json(sweep(rest).arg("--out").arg(&cells))["cells"][0].clone();
    // A cell kept without a calibration is not taken for one with a calibration.
    let (bare, timed) = (kept(""), kept(&calibrated));
    let report = json(&mut plan(home.path(), &format!("--preprocess --cores 2 {calibrated}")));
    assert_eq!(report["seconds_are"], "predicted");
    let seconds = |value: &Value| value.as_f64().unwrap();
    let decode = seconds(&report["phases"]["decode"]["seconds"]);
    assert!((3.0 * seconds(&timed["online"]["predicted_seconds"]) - decode).abs() < 1e-9, "{timed} {decode}");
    assert!(seconds(&timed["prepared"]["predicted_seconds"]) > 0.0 && decode > 0.0);
    assert_eq!(timed["online"]["network_seconds"], bare["online"]["network_seconds"]);
    assert_eq!(bare["online"]["predicted_seconds"], Value::Null);
    let shown = succeed(&mut sweep(&calibrated));
    for head in ["online, network s", "online, predicted s", "total, predicted s", "estimated by a calibration"] {
        assert!(shown.contains(head), "{head}: {shown}");
    }
    assert!(!succeed(&mut sweep("")).contains("redicted"));
    // A plan for other cores packs products for another machine than was measured.
    let line = format!("sweep --models shakespeare-gpt2 --contexts 8 --tokens 3 --cores 16 {calibrated}");
    let other = of(waggle(&line), home.path()).output().unwrap();
    assert!(text(&other.stderr).contains("of 2 cores: no seconds are predicted for 16"), "{}", text(&other.stderr));
    assert!(!text(&other.stdout).contains("redicted"));
    let said = succeed(&mut plan(home.path(), &format!("--cores 16 {calibrated}")));
    assert!(said.contains("not used for other cores") && !said.contains("cpu seconds"), "{said}");

    // Prices are of what is known: cores and bytes with a calibration, bytes alone without.
    let priced = |rest: &str| -> Value {
        let form = "--price core-hour=36,gb=1000 --watts 2 --format json";
        serde_json::from_str(&succeed(&mut sweep(&format!("{form} {rest}")))).unwrap()
    };
    let (row, online) = (&priced(&calibrated)["planned"][0], &timed["online"]);
    let (cores, bytes) = (seconds(&online["core_seconds"]), seconds(&row["online_bytes"]));
    assert!((seconds(&row["online_cents"]) / (cores + bytes / 1e4) - 1.0).abs() < 1e-3, "{row} {online}");
    assert!((seconds(&row["online_joules"]) / (2.0 * cores) - 1.0).abs() < 1e-9, "{row} {online}");
    let row = &priced("")["planned"][0];
    assert!(row["total_cents"].is_null() && row["total_joules"].is_null(), "{row}");
    let sent = succeed(&mut sweep("--price gb=1000 --format json"));
    assert!(seconds(&serde_json::from_str::<Value>(&sent).unwrap()["planned"][0]["total_cents"]) > 0.0, "{sent}");
    assert!(fail(&mut sweep("--price gb=-1"), 2).contains("prices are core-hour=X, gb=Y or both"));

    // The user's own calibration serves both, and no page of results.
    let own = Profile {
        processor: waggle_report::provenance::processor(),
        kernels: waggle_bits::cpu::Cpu::get().to_string(),
        ..profile()
    };
    write(&home.path().join("calibration.json"), &own);
    assert!(succeed(&mut sweep("")).contains("online, predicted s"));
    let page = home.path().join("page.md");
    std::fs::write(&page, "<!-- waggle: sweep --models shakespeare-gpt2 --contexts 8 --tokens 3 -->\n<!-- end -->\n")
        .unwrap();
    let pages = home.path().display();
    succeed(&mut of(waggle(&format!("tables run page --pages {pages} --keep {pages}/keep")), home.path()));
    let made = std::fs::read_to_string(page).unwrap();
    assert!(made.contains("online, network s") && !made.contains("predicted"), "{made}");
}

#[test]
fn parties_that_share_cores_are_slower() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("one.json");
    write(&file, &Profile { cores: 1, ..profile() });
    let seconds = |arguments: &str| {
        let report = json(&mut plan(home.path(), &format!("--calibration {} {arguments}", file.display())));
        report["phases"]["prefill"]["seconds"].as_f64().unwrap()
    };
    let (apart, together) = (seconds(""), seconds("--one-machine"));
    assert!(apart < together, "{apart} apart, {together} together");
    let slow = home.path().join("slow.json");
    let nanoseconds = profile().nanoseconds.into_iter().map(|(kernel, time)| (kernel, 10.0 * time)).collect();
    write(&slow, &Profile { nanoseconds, ..profile() });
    assert!(seconds(&format!("--peer-calibration {}", slow.display())) > apart);
}

#[test]
fn other_and_damaged_measurements_are_named_and_not_used() {
    let home = tempfile::tempdir().unwrap();
    let default = home.path().join("calibration.json");
    let stale = Profile { program: "0.0.1 (000000000000)".into(), ..profile() };
    for (damage, reason) in [
        (serde_json::to_vec(&stale).unwrap(), "0.0.1"),
        (serde_json::to_vec(&profile()).unwrap(), "an imagined processor"),
        (b"{".to_vec(), "no calibration"),
    ] {
        std::fs::write(&default, &damage).unwrap();
        let said = succeed(&mut plan(home.path(), ""));
        assert!(said.contains("is not used") && said.contains(reason), "{said}");
        assert!(!said.contains("cpu seconds"), "{said}");
    }
    for (text, reason) in [(serde_json::to_vec(&stale).unwrap(), "0.0.1"), (b"[]".to_vec(), "no calibration")] {
        let file = home.path().join("named.json");
        std::fs::write(&file, text).unwrap();
        let failed = fail(&mut plan(home.path(), &format!("--calibration {}", file.display())), 1);
        assert!(failed.contains(reason) && failed.lines().count() == 1, "{failed}");
    }
}

#[test]
fn a_run_is_held_against_its_prediction() {
    let home = tempfile::tempdir().unwrap();
    let (file, run) = (home.path().join("one.json"), home.path().join("run.json"));
    write(&file, &profile());
    let against = format!("--one-machine --calibration {} --against {}", file.display(), run.display());
    for phases in ["--preprocess", "--parties 3"] {
        let demo = "demo --model shakespeare-gpt2 --prompt-ids 1,2,3 --tokens 3 --link lan";
        succeed(waggle(&format!("{demo} {phases}")).arg("--json").arg(&run));
        let output = plan(home.path(), &against).output().unwrap();
        let table = text(&output.stdout);
        assert!(output.status.success(), "{}", text(&output.stderr));
        for row in ["| run | all, wall |", "| run | all, client CPU |", "| run | server memory |"] {
            assert!(table.contains(row), "{table}");
        }
        // Nothing is prepared ahead with three parties, and a plan of two would be.
        assert_eq!(table.contains("| run | offline, wall |"), phases == "--preprocess", "{table}");
    }
    std::fs::write(&run, b"{}").unwrap();
    fails(&mut plan(home.path(), &against), 1, ["no report of a run"]);
}
