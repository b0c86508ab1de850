//! Links of Markdown pages to files and headings.

use std::path::Path;

use pulldown_cmark::{Event, Parser, Tag, TagEnd};

use super::chapter::line_of;

/// The targets of all links and pictures of a text, each with its line.
pub(crate) fn targets(text: &str) -> Vec<(usize, String)> {
    Parser::new(text)
        .into_offset_iter()
        .filter_map(|(event, range)| match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                Some((line_of(text, range.start), dest_url.into_string()))
            }
            _ => None,
        })
        .collect()
}

/// The links of a text in the folder `here` that lead nowhere. Those to the network are taken on trust.
pub(crate) fn broken(text: &str, here: &Path) -> Vec<String> {
    let leads_nowhere = |(line, target): (usize, String)| {
        if target.starts_with("https://") {
            return None;
        }
        let (file, anchor) = match target.split_once('#') {
            Some((file, anchor)) => (file, Some(anchor)),
            None => (target.as_str(), None),
        };
        let there = if file.is_empty() { Ok(text.to_owned()) } else { read(&here.join(file)) };
        let what = match (there, anchor) {
            (Err(error), _) => error.to_string(),
            (Ok(there), Some(anchor)) if !headings(&there).iter().any(|heading| heading == anchor) => {
                format!("no heading `{anchor}`")
            }
            _ => return None,
        };
        Some(format!("{line}: {target}: {what}"))
    };
    targets(text).into_iter().filter_map(leads_nowhere).collect()
}

/// A file's text; nothing for a folder.
fn read(path: &Path) -> std::io::Result<String> {
    if path.is_dir() { Ok(String::new()) } else { Ok(String::from_utf8_lossy(&std::fs::read(path)?).into_owned()) }
}

/// The names by which links find the headings of a text.
fn headings(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut open: Option<String> = None;
    for event in Parser::new(text) {
        match event {
            Event::Start(Tag::Heading { .. }) => open = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => found.extend(open.take().map(|heading| name(&heading))),
            Event::Text(part) | Event::Code(part) => {
                if let Some(heading) = &mut open {
                    heading.push_str(&part);
                }
            }
            _ => (),
        }
    }
    found
}

/// Letters, digits, `-` and `_` in lower case; spaces become `-`.
fn name(heading: &str) -> String {
    let kept = heading.chars().filter_map(|c| match c {
        c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
        c if c.is_whitespace() => Some('-'),
        _ => None,
    });
    kept.flat_map(char::to_lowercase).collect()
}
