//! Tells the program which revision of its source it is, where git knows.

use std::process::Command;

/// The packages that the program is made of.
const SOURCES: [&str; 15] = [
    "bits",
    "engine",
    "net",
    "he",
    "ot",
    "protocols",
    "planner",
    "mpcache",
    "files",
    "model",
    "tokenizer",
    "report",
    "session",
    "study",
    "spread",
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let git = |arguments: &[&str]| -> Option<String> {
        let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
        let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        (!text.is_empty()).then_some(text)
    };
    // A file that is not there would be looked for every time.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"]);
    if let Some(log) = log.filter(|path| std::path::Path::new(path).exists()) {
        println!("cargo::rerun-if-changed={log}");
    }
    // Records say whether the sources were those of the commit. Whoever changes one of them builds this package
    // again.
    let sources: Vec<String> = SOURCES.iter().map(|folder| format!("{folder}/src")).collect();
    for path in sources.iter().map(String::as_str).chain(["src", "build.rs", "model/assets", "Cargo.lock"]) {
        println!("cargo::rerun-if-changed={path}");
    }
    let version = env!("CARGO_PKG_VERSION");
    let revision = git(&["rev-parse", "--short=12", "HEAD"]);
    let changed =
        git(&["status", "--porcelain", "--untracked-files=no", "--", "*.rs", "*.toml", "Cargo.lock", "model/assets"]);
    let mark = if changed.is_some() { "-dirty" } else { "" };
    let record = revision.as_ref().map_or_else(String::new, |revision| format!("{revision}{mark}"));
    println!("cargo::rustc-env=WAGGLE_REVISION={record}");
    let program = revision.map_or_else(|| version.to_owned(), |revision| format!("{version} ({revision})"));
    println!("cargo::rustc-env=WAGGLE_PROGRAM={program}");
}
