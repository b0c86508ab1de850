//! Hands the program the revision of its sources, if git or the package knows it.

use std::path::Path;
use std::process::Command;

/// The file that `cargo package` writes into a package.
const PACKAGED: &str = ".cargo_vcs_info.json";

/// The repository, seen from this package.
const ROOT: &str = "../..";

/// Folders in the repository of the packages of which the program is made.
const SOURCES: [&str; 17] = [
    "src",
    "he/src",
    "ot/src",
    "protocols/src",
    "mpcache/src",
    "model/src",
    "crates/bits/src",
    "crates/engine/src",
    "crates/net/src",
    "crates/planner/src",
    "crates/files/src",
    "crates/tokenizer/src",
    "crates/report/src",
    "crates/session/src",
    "crates/study/src",
    "crates/spread/src",
    "crates/proxy/src",
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let version = env!("CARGO_PKG_VERSION");
    let revision = if Path::new(PACKAGED).exists() { packaged() } else { checked_out() };
    println!("cargo::rustc-env=WAGGLE_REVISION={}", revision.as_ref().map_or("", |(_, record)| record));
    let program = revision.map_or_else(|| version.to_owned(), |(revision, _)| format!("{version} ({revision})"));
    println!("cargo::rustc-env=WAGGLE_PROGRAM={program}");
}

/// The revision of a published package: first as the program shows it, then as records have it. Git is not asked, as
/// the package may lie in a foreign repository.
fn packaged() -> Option<(String, String)> {
    let text = std::fs::read_to_string(PACKAGED).ok()?;
    let (_, rest) = text.split_once("\"sha1\": \"")?;
    let revision = rest.get(..12).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
    let mark = if text.contains("\"dirty\": true") { "-dirty" } else { "" };
    Some((revision.to_owned(), format!("{revision}{mark}")))
}

/// The revision of a repository, in the two forms of [`packaged`]. Records say whether the sources were the commit's,
/// without changes.
fn checked_out() -> Option<(String, String)> {
    let git = |arguments: &[&str]| -> Option<String> {
        let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
        let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        (!text.is_empty()).then_some(text)
    };
    // Only files that exist are named: cargo would build again every time for a missing one.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"]);
    if let Some(log) = log.filter(|path| Path::new(path).exists()) {
        println!("cargo::rerun-if-changed={log}");
    }
    // A change of any source builds this package again.
    for path in ["src", "build.rs"] {
        println!("cargo::rerun-if-changed={path}");
    }
    for path in SOURCES.into_iter().chain(["model/assets", "Cargo.lock"]) {
        let path = Path::new(ROOT).join(path);
        if path.exists() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    let revision = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = git(&[
        "status",
        "--porcelain",
        "--untracked-files=no",
        "--",
        ":/*.rs",
        ":/*.toml",
        ":/Cargo.lock",
        ":/model/assets",
    ]);
    let mark = if changed.is_some() { "-dirty" } else { "" };
    let record = format!("{revision}{mark}");
    Some((revision, record))
}
