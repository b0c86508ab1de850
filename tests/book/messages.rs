//! The messages that a chapter explains, and those of the program.

use std::path::Path;

use pulldown_cmark::{Event, Parser, Tag};

use super::chapter::line_of;

/// The messages of a text: each item of a list begins with one, as code, with `…` in the place of what varies.
pub(crate) fn explained(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut first = false;
    for (event, range) in Parser::new(text).into_offset_iter() {
        match event {
            Event::Start(Tag::Item) => first = true,
            Event::Start(Tag::Paragraph) => (),
            Event::Code(message) if first => {
                found.push((line_of(text, range.start), message.into_string()));
                first = false;
            }
            Event::Text(other) if first => panic!("line {}: `{other}` is no message", line_of(text, range.start)),
            _ => (),
        }
    }
    found
}

/// Reads the sources of the program. In their strings, what stands in braces becomes `…`.
pub(crate) fn known(root: &Path) -> String {
    let inner = std::fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let outer = ["", "he", "ot", "protocols", "mpcache", "model"].map(|name| root.join(name));
    let mut all = String::new();
    inner.chain(outer).for_each(|folder| add(&folder.join("src"), &mut all));
    all
}

fn add(folder: &Path, all: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            add(&path, all);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all.push_str(&strings(&std::fs::read_to_string(path).unwrap()));
        }
    }
}

/// A source file with its strings as they are printed: lines joined where a string goes on, quotes without their
/// backslash, and `…` for `{name}`.
fn strings(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find(['\\', '{']) {
        text.push_str(&rest[..at]);
        let (what, after) = rest[at..].split_at(1);
        // A name with a format; what else stands in braces is code.
        let end = after.find(|c: char| !(c.is_alphanumeric() || "_.:?#".contains(c)));
        let placeholder = end.filter(|&end| after[end..].starts_with('}'));
        rest = match (what, placeholder) {
            ("{", Some(end)) => {
                if !text.ends_with('…') {
                    text.push('…');
                }
                &after[end + 1..]
            }
            ("{", None) => after,
            _ if after.starts_with('\n') => after.trim_start(),
            _ => after,
        };
    }
    text.push_str(rest);
    text
}

#[test]
fn placeholders_and_line_ends_are_read_as_in_a_string() {
    let source = "#[error(\"`{text}` has \\\"{n:02x}\\\" \\\n    words, {}{n}\", x)]\nfn f() {\n Tls { what: 1 } }\n";
    assert_eq!(strings(source), "#[error(\"`…` has \"…\" words, …\", x)]\nfn f() \n Tls  what: 1 } }\n");
}
