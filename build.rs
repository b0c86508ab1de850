//! Tells the program which revision of its source it is, where git knows.

use std::process::Command;

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
    let version = env!("CARGO_PKG_VERSION");
    let revision = git(&["rev-parse", "--short=12", "HEAD"]);
    let program = revision.map_or_else(|| version.to_owned(), |revision| format!("{version} ({revision})"));
    println!("cargo::rustc-env=WAGGLE_PROGRAM={program}");
}
