//! The book holds: its commands run and print what it says, its excerpts are code that is compiled, its links lead
//! somewhere, and the messages that it explains are those of the program.
//!
//! A chapter's blocks are read as follows; any other kind of block fails the test.
//!
//! | block | what is done with it |
//! |---|---|
//! | `sh` | runs, in one shell and one temporary directory with the chapter's other blocks; must succeed |
//! | `sh,fails` | runs, and its last command must fail |
//! | `sh,ignore` | does not run; a comment `<!-- not run: REASON -->` stands before it |
//! | `text,check` | must be in the output of the block before it, see [`run::holds`] |
//! | `text`, `toml` | nothing |
//! | `rust` | may hold nothing but `{{#include FILE:ANCHOR}}` of a file of the workspace, which is compiled anyway |
#![cfg(unix)]

mod chapter;
mod links;
mod messages;
mod run;

use std::path::{Path, PathBuf};
use std::time::Duration;

use self::chapter::Chapter;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A file of the book's sources.
fn source(file: &str) -> PathBuf {
    root().join("docs/book/src").join(file)
}

/// The most that the commands of a chapter may take. On two free cores none takes a quarter of a minute.
const LIMIT: Duration = Duration::from_secs(240);

fn holds(file: &str) {
    let path = source(file);
    let text = std::fs::read_to_string(&path).unwrap();
    let checked = Chapter::read(&text).and_then(|chapter| {
        chapter.excerpts_exist(path.parent().unwrap(), root())?;
        run::chapter(&chapter, LIMIT)
    });
    if let Err(error) = checked {
        panic!("{}:{error}", path.display());
    }
}

/// A test for each chapter, and the list of all.
macro_rules! chapters {
    ($($name:ident: $file:literal,)*) => {
        const CHAPTERS: &[&str] = &[$($file),*];
        $(
            #[test]
            fn $name() {
                holds($file);
            }
        )*
    };
}

chapters! {
    introduction: "introduction.md",
    ten_minutes: "ten-minutes.md",
    two_hosts: "two-hosts.md",
    conversation: "conversation.md",
    other_programs: "other-programs.md",
    preparing: "preparing.md",
    three_parties: "three-parties.md",
    drafts: "drafts.md",
    pruning: "pruning.md",
    tables: "tables.md",
    what_each_party_sees: "what-each-party-sees.md",
    security_sessions: "security-sessions.md",
    security_machines: "security-machines.md",
    security_protocols: "security-protocols.md",
    serving: "serving.md",
    your_own: "your-own.md",
    reading_a_report: "reading-a-report.md",
    predicting: "predicting.md",
    commands: "commands.md",
    troubleshooting: "troubleshooting.md",
}

#[test]
fn the_summary_names_the_chapters_that_are_tested() {
    let summary = std::fs::read_to_string(source("SUMMARY.md")).unwrap();
    let named: Vec<String> = links::targets(&summary).into_iter().map(|(_, target)| target).collect();
    assert_eq!(named, CHAPTERS);
    let mut files: Vec<String> = std::fs::read_dir(source(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "SUMMARY.md" && name.ends_with(".md"))
        .collect();
    files.sort_unstable();
    let mut named = named;
    named.sort_unstable();
    assert_eq!(named, files);
}

/// The Markdown files below `folder`, without what was built and what git keeps.
fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy();
        if path.is_dir() && !["target", ".git", ".venv"].contains(&&*name) {
            pages(&path, found);
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
}

#[test]
fn links_of_all_pages_lead_somewhere() {
    let mut found = Vec::new();
    pages(root(), &mut found);
    assert!(found.len() > 30, "only {} pages were found", found.len());
    let broken: Vec<String> = found
        .iter()
        .flat_map(|path| {
            let text = std::fs::read_to_string(path).unwrap();
            links::broken(&text, path.parent().unwrap()).into_iter().map(|what| format!("{}:{what}", path.display()))
        })
        .collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Behind every claim of SECURITY stands a test, `FILE::NAME`, or a folder of tests.
#[test]
fn tests_that_security_names_are_there() {
    let text = std::fs::read_to_string(root().join("SECURITY.md")).unwrap();
    let quoted = text.split('`').skip(1).step_by(2);
    let named: Vec<_> = quoted.filter_map(|quoted| quoted.split_once("::")).collect();
    assert!(named.len() > 20, "only {} tests are named", named.len());
    let missing = named.iter().filter(|(file, name)| {
        let source = std::fs::read_to_string(root().join(file)).unwrap_or_default();
        !source.contains(&format!("#[test]\nfn {name}()")) && !source.contains(&format!("#[test]\n    fn {name}()"))
    });
    assert_eq!(missing.collect::<Vec<_>>(), Vec::<&(&str, &str)>::new());
}

#[test]
fn explained_messages_are_those_of_the_program() {
    let text = std::fs::read_to_string(source("troubleshooting.md")).unwrap();
    let explained = messages::explained(&text);
    assert!(explained.len() > 30, "only {} messages were found", explained.len());
    let known = messages::known(root());
    let unknown: Vec<_> = explained.iter().filter(|(_, message)| !known.contains(message)).collect();
    assert!(unknown.is_empty(), "no part of the program says: {unknown:#?}");
}

/// Answers to planted mistakes.
mod planted {
    use super::*;

    fn refused(text: &str) -> String {
        Chapter::read(text).and_then(|chapter| run::chapter(&chapter, LIMIT)).unwrap_err().to_string()
    }

    #[test]
    fn a_chapter_that_is_right_passes() {
        let text =
            "# A\n\n```sh\nword=x\necho \"$word y\"\n```\n\n```text,check\nx y\n```\n\n```sh\ntest $word = x\n```\n";
        run::chapter(&Chapter::read(text).unwrap(), LIMIT).unwrap();
    }

    #[test]
    fn a_wrong_command_is_told_with_its_line_and_its_output() {
        let told = refused("# A\n\n```sh\ntrue\n```\n\nB\n\n```sh\nwaggle plan --no-such-option\n```\n");
        assert!(told.starts_with("9: ") && told.contains("unexpected argument '--no-such-option'"), "{told}");
        // A failure in the middle of a block counts, and so does a variable without a value.
        assert!(refused("```sh\nfalse\ntrue\n```\n").starts_with("1: "));
        assert!(refused("```sh\necho $nothing\n```\n").starts_with("1: "));
    }

    #[test]
    fn another_output_than_the_one_shown_is_told() {
        let told = refused("```sh\necho two\n```\n\n```text,check\nthree\n```\n");
        assert!(told.starts_with("5: ") && told.contains("three") && told.contains("two"), "{told}");
        // The output of one block is not looked for in another.
        let two = "```sh\necho one\n```\n\n```sh\necho two\n```\n\n```text,check\none\n```\n";
        assert!(refused(two).starts_with("9: "));
    }

    #[test]
    fn a_command_that_should_fail_must() {
        run::chapter(&Chapter::read("```sh,fails\nfalse\n```\n").unwrap(), LIMIT).unwrap();
        assert!(refused("```sh,fails\ntrue\n```\n").starts_with("1: "));
    }

    #[test]
    fn what_hangs_is_ended_with_all_that_it_started() {
        let text = "```sh\nsleep 1000 &\necho $!\nsleep 1000\n```\n";
        let told = run::chapter(&Chapter::read(text).unwrap(), Duration::from_secs(1)).unwrap_err().to_string();
        assert!(told.starts_with("1: ") && told.contains("after 1 s"), "{told}");
        let child = told.lines().last().unwrap().trim();
        assert!(child.parse::<u32>().is_ok(), "{told}");
        // The system takes its time, and what was killed may stay as a zombie until its new parent has noticed.
        let state = || std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        let gone = || state().is_empty() || state().contains(") Z ");
        let patience = std::time::Instant::now() + LIMIT;
        while !gone() {
            assert!(std::time::Instant::now() < patience, "{}", state());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn blocks_that_nobody_would_check_are_refused() {
        for (text, why) in [
            ("```sh,ignore\nx\n```\n", "not run:"),
            ("```python\nx\n```\n", "python"),
            ("```\nx\n```\n", "kind"),
            ("```text,check\nx\n```\n", "no block that runs"),
            ("```rust\nfn f() {}\n```\n", "include"),
        ] {
            assert!(refused(text).contains(why), "{text}");
        }
        Chapter::read("<!-- not run: it takes two hosts -->\n\n```sh,ignore\nx\n```\n").unwrap();
    }

    #[test]
    fn an_excerpt_that_is_not_there_is_told() {
        for (include, why) in [
            ("../../../no/such.rs:x", "no/such.rs"),
            ("../../../model/src/families/mod.rs:no-such-anchor", "no-such-anchor"),
            ("../../../model/src/families/mod.rs", "anchor"),
            ("../../../../elsewhere.rs:x", "workspace"),
        ] {
            let chapter = Chapter::read(&format!("```rust\n{{{{#include {include}}}}}\n```\n")).unwrap();
            let told = chapter.excerpts_exist(&source(""), root()).unwrap_err().to_string();
            assert!(told.starts_with("1: ") && told.contains(why), "{told}");
        }
    }

    #[test]
    fn broken_links_are_found() {
        let here = source("");
        for (text, broken) in [
            (
                "[a](../../../README.md) [b](../../../SECURITY.md#what-holds) [c](https://eprint.iacr.org/2023/1678)",
                0,
            ),
            ("[a](no-such-file.md)", 1),
            ("[a](../../../SECURITY.md#no-such-heading)", 1),
            ("[a](#here)\n\n# Here\n", 0),
            ("[a](#there)\n\n# Here\n", 1),
            ("`[a](no-such-file.md)`", 0),
        ] {
            assert_eq!(links::broken(text, &here).len(), broken, "{text}");
        }
    }

    #[test]
    fn a_message_of_another_program_is_unknown() {
        let known = messages::known(root());
        let explained = messages::explained("- `the model has … words`. No.\n- `the prompt has no tokens`. Yes.\n");
        assert_eq!(explained.len(), 2);
        assert_eq!(explained.iter().map(|(_, m)| known.contains(m)).collect::<Vec<_>>(), [false, true]);
    }
}
