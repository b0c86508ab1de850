//! `waggle tables`: tables come from records alone, and pages say what the program plans.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::support::{fail, succeed, text, waggle};

fn waggle_tables(arguments: &[&str]) -> Output {
    waggle("tables").args(arguments).output().expect("the program starts")
}

/// Records, each with the table that they make.
fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tables")
}

fn render(records: &Path) -> Output {
    waggle_tables(&["render", records.to_str().expect("UTF-8")])
}

#[test]
fn records_give_their_table_again() {
    let mut count = 0;
    for entry in std::fs::read_dir(data()).expect("the folder") {
        let records = entry.expect("an entry").path();
        if records.extension().is_some_and(|extension| extension == "jsonl") {
            let table = std::fs::read_to_string(records.with_extension("md")).expect("its table");
            let output = render(&records);
            assert!(output.status.success(), "{}", text(&output.stderr));
            assert_eq!(text(&output.stdout), table + "\n", "{}", records.display());
            count += 1;
        }
    }
    assert!(count >= 2, "{count} files of records");
}

/// What is measured, planned and written comes back as the same table.
#[test]
fn a_run_keeps_records_beside_its_table() {
    let dir = tempfile::tempdir().expect("a folder");
    let table = dir.path().join("small.md");
    let path = table.to_str().expect("UTF-8");
    let output = waggle_tables(&[
        "ablation",
        "--cache=64",
        "--plan-only",
        "--plan-steps=1",
        "--only=static only",
        "--markdown",
        path,
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), std::fs::read_to_string(&table).expect("the table") + "\n");
    let again = render(&dir.path().join("small.jsonl"));
    assert_eq!(text(&again.stdout), text(&output.stdout));
}

#[test]
fn files_that_make_no_table_are_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("records.jsonl");
    let refused = |content: &str| {
        std::fs::write(&path, content).expect("a file");
        let output = render(&path);
        assert!(!output.status.success());
        text(&output.stderr)
    };
    assert!(refused("").ends_with("has no records\n"));
    assert!(refused("{}\n").starts_with("error: render: line 1 is no record: missing field `table`"));
    let whole = std::fs::read_to_string(data().join("ablation.jsonl")).expect("records");
    let cut: Vec<&str> = whole.lines().skip(1).collect();
    assert!(refused(&cut.join("\n")).contains("the rest of the step: no record of step/online/bytes to server"));
    let mixed = whole.replacen("\"link\":\"lan\"", "\"link\":\"wan\"", 1);
    assert!(refused(&mixed).contains("the records differ in what was chosen for the whole table"));
}

/// A page in a folder of its own, with one planned block.
fn page(dir: &Path, command: &str) -> PathBuf {
    let path = dir.join("small.md");
    fs::write(&path, format!("# Small\n\nProse.\n\n<!-- waggle: {command} -->\n<!-- end -->\n\nMore.\n"))
        .expect("a page");
    path
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
    assert!(made.contains("| shakespeare-gpt2 | ") && made.contains("*Made by `waggle sweep"), "{made}");
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
    let checked = succeed(waggle("tables check online --pages").arg(pages));
    assert!(checked.contains("of 1 pages are what this program plans"), "{checked}");
}
