//! Tables come from records alone: every file of records in `tests/data` gives the table beside it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn waggle_tables(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_waggle-tables")).args(arguments).output().expect("the program starts")
}

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
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
    assert!(refused("{}\n").starts_with("render: line 1 is no record: missing field `table`"));
    let whole = std::fs::read_to_string(data().join("ablation.jsonl")).expect("records");
    let cut: Vec<&str> = whole.lines().skip(1).collect();
    assert!(refused(&cut.join("\n")).contains("the rest of the step: no record of step/online/bytes to server"));
    let mixed = whole.replacen("\"link\":\"lan\"", "\"link\":\"wan\"", 1);
    assert!(refused(&mixed).contains("the records differ in what was chosen for the whole table"));
}
