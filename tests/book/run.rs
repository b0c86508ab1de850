//! Runs the commands of a chapter as a reader would: one after another in one shell.

use std::fs::File;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::{program, wait};

use super::chapter::{Block, Chapter, Kind, Wrong};

/// The addresses in the book, of a server and of a proxy; each run takes free ports in their places.
const ADDRESSES: [&str; 2] = ["127.0.0.1:7411", "127.0.0.1:8080"];

/// Runs all blocks of a chapter within `limit`, and compares what they print with what the chapter says.
pub(crate) fn chapter(chapter: &Chapter, limit: Duration) -> Result<(), Wrong> {
    let runs: Vec<&Block> = chapter.blocks.iter().filter(|b| matches!(b.kind, Kind::Runs | Kind::Fails)).collect();
    if runs.is_empty() {
        return Ok(());
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let work = dir.path().join("work");
    std::fs::create_dir(&work).expect("a directory for the commands");
    let free = free_addresses();
    let placed =
        |text: &str| ADDRESSES.iter().zip(&free).fold(text.to_owned(), |text, (old, new)| text.replace(old, new));
    let script = placed(&script(&runs, dir.path()));
    let mut shell = Group::start(&script, &work, dir.path());

    // Nothing if it still runs.
    let ended = wait(&mut shell.0, limit).map(|status| status.success());
    drop(shell);
    let output =
        |i: usize| std::fs::read(log(dir.path(), i)).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    // The last block that was begun is the one that failed.
    let last = (0..runs.len()).rev().find(|&i| output(i).is_some()).unwrap_or(0);
    let failed = |what: String| Wrong {
        line: runs[last].line,
        what: what + "; it wrote:\n" + &output(last).unwrap_or_default(),
    };
    match ended {
        None => return Err(failed(format!("still running after {} s", limit.as_secs()))),
        Some(false) if runs[last].kind == Kind::Fails => return Err(failed("it succeeds, and should fail".into())),
        Some(false) => return Err(failed("it fails".into())),
        Some(true) => (),
    }

    let mut ran = 0;
    for block in &chapter.blocks {
        match block.kind {
            Kind::Runs | Kind::Fails => ran += 1,
            Kind::Printed => {
                let printed = output(ran - 1).unwrap_or_default();
                holds(&placed(&block.text), &printed).map_err(|line| Wrong {
                    line: block.line,
                    what: format!("`{line}` is not in the output where it should be:\n{printed}"),
                })?;
            }
            Kind::Excerpt | Kind::Shown => (),
        }
    }
    Ok(())
}

/// Whether `shown` is in `printed`: its lines stand there in this order and next to each other, where a line `...`
/// stands for any lines and `...` within a line for any text. Frames of tables and the width of their columns do not
/// count. If not, returns the first line that is missing.
pub(crate) fn holds(shown: &str, printed: &str) -> Result<(), String> {
    let shown: Vec<String> = shown.lines().filter_map(unframed).collect();
    let printed: Vec<String> = printed.lines().filter_map(unframed).collect();
    let mut from = 0;
    for run in shown.split(|line| *line == "...") {
        let at = (from..printed.len().saturating_sub(run.len()) + 1)
            .find(|&at| run.iter().zip(&printed[at..]).all(|(shown, printed)| fits(shown, printed)));
        match at {
            Some(at) => from = at + run.len(),
            // A line of the run that is nowhere tells more than its first line.
            None => {
                let missing = run.iter().find(|shown| !printed.iter().any(|printed| fits(shown, printed)));
                return Err(missing.or(run.first()).cloned().unwrap_or_default());
            }
        }
    }
    Ok(())
}

/// A line without the frame of a table and with single spaces. Nothing for a line that was only a frame.
fn unframed(line: &str) -> Option<String> {
    let frame = |c: char| ('\u{2500}'..='\u{257f}').contains(&c);
    let words: Vec<&str> =
        line.split(|c: char| c.is_whitespace() || frame(c)).filter(|word| !word.is_empty()).collect();
    (!words.is_empty() || !line.contains(frame)).then(|| words.join(" "))
}

/// Whether a line is the one shown, in which `...` stands for any text.
fn fits(shown: &str, printed: &str) -> bool {
    let Some((start, rest)) = shown.split_once("...") else { return shown == printed };
    let Some(mut left) = printed.strip_prefix(start) else { return false };
    let mut parts = rest.split("...").peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return left.ends_with(part);
        }
        let Some(at) = left.find(part) else { return false };
        left = &left[at + part.len()..];
    }
    true
}

/// One script of all blocks, each of which writes to a file of its own.
fn script(runs: &[&Block], dir: &Path) -> String {
    let mut script = String::from("set -eu\n");
    for (i, block) in runs.iter().enumerate() {
        script += &format!("exec >'{}' 2>&1\n", log(dir, i).display());
        script += &match block.kind {
            Kind::Fails => format!("set +e\n(set -e\n{})\ncode=$?\nset -e\ntest $code -ne 0\n", block.text),
            _ => block.text.clone(),
        };
    }
    script
}

fn log(dir: &Path, i: usize) -> std::path::PathBuf {
    dir.join(format!("{i}.log"))
}

/// Addresses of this machine on which nobody listens.
fn free_addresses() -> [String; 2] {
    // Both are held before one is given, so that they differ.
    let held = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    held.map(|listener| listener.local_addr().expect("a free port").to_string())
}

/// A shell with everything that it starts; all of it is killed when dropped.
struct Group(Child);

impl Group {
    /// Starts a script in the directory `work`; `waggle` is the program under test, with keys of its own.
    fn start(script: &str, work: &Path, dir: &Path) -> Self {
        let file = dir.join("script");
        File::create(&file).and_then(|mut file| file.write_all(script.as_bytes())).expect("the script is written");
        let folder = Path::new(env!("CARGO_BIN_EXE_waggle")).parent().expect("the folder of the program");
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths([folder.to_owned()].into_iter().chain(std::env::split_paths(&path)));
        let mut command = program("sh");
        command.env("PATH", path.expect("no folder has a colon")).env("WAGGLE_HOME", dir.join("home"));
        command.arg(file).current_dir(work).process_group(0);
        Group(command.spawn().expect("sh"))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let group = format!("-{}", self.0.id());
        // Nobody may be left in the group, which is no failure.
        let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
        let _ = self.0.wait();
    }
}

#[test]
fn shown_lines_are_looked_for_in_order() {
    let printed = "a\nb 12 c 7\n\nd  \n┌────┐\n│ e   1 │\n╞════╡\n│ f   2 │";
    for shown in ["a", "b 12 c 7", "a\nb ... c ...\n\nd", "a\n...\ne 1", "...", "b ...7", "...\nd\n  e  1\nf  2\n..."]
    {
        assert_eq!(holds(shown, printed), Ok(()), "{shown}");
    }
    for (shown, missing) in [
        ("x", "x"),
        ("a\nd", "a"),
        ("e 1\n...\na", "a"),
        ("b ... 8", "b ... 8"),
        ("b", "b"),
        ("a\nx", "x"),
        ("e 1\n\nf 2", "e 1"),
        ("e 12", "e 12"),
    ] {
        assert_eq!(holds(shown, printed), Err(missing.to_owned()), "{shown}");
    }
}
