//! `cargo xtask comments`: comments are no wider than code.

use std::path::PathBuf;

use clap::Args;

use crate::Error;
use crate::files::{read, say, short, sources, write};

/// Columns of a line: `max_width` of `rustfmt.toml`.
const WIDTH: usize = 118;

/// Finds comment lines wider than 118 columns.
///
/// Comments are lines that begin with `//`, `///` or `//!`. Exits with code 1 if one is too wide and could be broken;
/// rows of tables cannot.
#[derive(Args)]
pub(crate) struct CommentsArgs {
    /// Wrap paragraphs with such a line anew. Code, lists, tables, headings and indented text are left as they are.
    #[arg(long)]
    fix: bool,
    /// With --fix: wrap every paragraph anew, also where lines are short.
    #[arg(long, requires = "fix")]
    fill: bool,
    /// Only files under these folders of the repository.
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
}

pub(crate) fn run(args: &CommentsArgs) -> Result<(), Error> {
    let mut count = 0;
    for path in sources(&args.paths)? {
        let mut text = read(&path)?;
        if args.fix {
            let wrapped = rewrap(&text, args.fill);
            if wrapped != text {
                write(&path, &wrapped)?;
                say(format_args!("wrapped {}", short(&path)));
                text = wrapped;
            }
        }
        for line in wide(&text) {
            say(format_args!("{}:{line}", short(&path)));
            count += 1;
        }
    }
    if count == 0 { Ok(()) } else { Err(Error::Found(format!("{count} comment lines wider than {WIDTH} columns"))) }
}

/// A comment that has a line for itself: what stands before its words, and they.
#[derive(Clone, Copy)]
struct Comment<'a> {
    indent: &'a str,
    marker: &'a str,
    words: &'a str,
}

impl<'a> Comment<'a> {
    fn of(line: &'a str) -> Option<Self> {
        let start = line.trim_start();
        let indent = &line[..line.len() - start.len()];
        let marker = ["///", "//!", "//"].into_iter().find(|marker| start.starts_with(marker))?;
        Some(Comment { indent, marker, words: &start[marker.len()..] })
    }

    /// Whether lines of both can be one paragraph.
    fn continues(&self, before: &Comment) -> bool {
        (self.indent, self.marker) == (before.indent, before.marker)
    }

    /// Whether the line is one of running text.
    fn is_prose(&self) -> bool {
        let Some(words) = self.words.strip_prefix(' ') else { return false };
        !words.is_empty() && !words.starts_with(' ') && !structure(words) && !words.contains("  ")
    }
}

/// Whether a line that begins with `words` is a list, a table, a heading, a quotation or the target of a link.
fn structure(words: &str) -> bool {
    let first = words.split(' ').next().unwrap_or(words);
    let numbered =
        first.strip_suffix(['.', ')']).is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    let fence = ["```", "~~~", "|", "==", "---"].iter().any(|start| words.starts_with(start));
    let html = words.starts_with('<') && !words.starts_with("<http");
    let link = words.starts_with('[') && words.contains("]: ");
    numbered || fence || html || link || matches!(first, "-" | "*" | "+" | ">" | "#" | "##" | "###" | "####")
}

/// Which lines of a source file begin with a comment, and not within a string or a longer comment.
fn comments(text: &str) -> Vec<Option<Comment<'_>>> {
    let mut state = State::Code;
    text.split('\n')
        .map(|line| {
            let comment = if state == State::Code { Comment::of(line) } else { None };
            if comment.is_none() {
                state = state.after(line);
            }
            comment
        })
        .collect()
}

/// What the end of a line lies in.
#[derive(Clone, Copy, PartialEq)]
enum State {
    Code,
    /// A string.
    Text,
    /// A raw string with so many `#`.
    Raw(usize),
    /// So many comments in each other.
    Block(usize),
}

impl State {
    /// The state after `line`, which began in this one.
    fn after(self, line: &str) -> Self {
        let mut state = self;
        let mut rest = line;
        while let Some(first) = rest.chars().next() {
            let mut step = first.len_utf8();
            match state {
                State::Code => {
                    if rest.starts_with("//") {
                        break;
                    } else if rest.starts_with("/*") {
                        (state, step) = (State::Block(1), 2);
                    } else if let Some(hashes) = raw_string(rest) {
                        // `r`, the marks and the quote.
                        (state, step) = (State::Raw(hashes), hashes + 2);
                    } else if first == '"' {
                        state = State::Text;
                    } else if first == '\'' {
                        step = character(rest);
                    }
                }
                State::Text => match first {
                    '"' => state = State::Code,
                    '\\' => step = rest.chars().take(2).map(char::len_utf8).sum(),
                    _ => {}
                },
                State::Raw(hashes) => {
                    if first == '"' && rest[1..].bytes().take(hashes).filter(|b| *b == b'#').count() == hashes {
                        (state, step) = (State::Code, 1 + hashes);
                    }
                }
                State::Block(depth) => {
                    if rest.starts_with("*/") {
                        (state, step) = (if depth == 1 { State::Code } else { State::Block(depth - 1) }, 2);
                    } else if rest.starts_with("/*") {
                        (state, step) = (State::Block(depth + 1), 2);
                    }
                }
            }
            rest = &rest[step..];
        }
        state
    }
}

/// Number of `#` of a raw string that begins here.
fn raw_string(rest: &str) -> Option<usize> {
    let marks = rest.strip_prefix('r')?;
    let quote = marks.trim_start_matches('#');
    quote.starts_with('"').then(|| marks.len() - quote.len())
}

/// Length of the character literal that begins here, or 1 if it is a lifetime.
fn character(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match chars.next() {
        Some((_, '\\')) => rest[2..].char_indices().skip(1).find(|(_, c)| *c == '\'').map_or(1, |(at, _)| at + 3),
        Some(_) => match chars.next() {
            Some((at, '\'')) => at + 1,
            _ => 1,
        },
        None => 1,
    }
}

fn width(line: &str) -> usize {
    line.chars().count()
}

/// Numbers of the comment lines that are too wide. A line of one word and a row of a table cannot be broken.
fn wide(text: &str) -> Vec<usize> {
    let lines = text.split('\n').zip(comments(text)).enumerate();
    let wide = lines.filter(|(_, (line, comment))| {
        let breaks = |words: &str| words.split_whitespace().count() > 1 && !words.trim_start().starts_with('|');
        width(line) > WIDTH && comment.is_some_and(|comment| breaks(comment.words))
    });
    wide.map(|(index, _)| index + 1).collect()
}

/// The text with its too wide paragraphs of comments wrapped, or all if `fill`.
fn rewrap(text: &str, fill: bool) -> String {
    let lines: Vec<&str> = text.split('\n').collect();
    let comments = comments(text);
    let mut out: Vec<String> = Vec::with_capacity(lines.len());
    let mut fenced = false;
    // A paragraph belongs to a list until an empty line ends it.
    let mut listed = false;
    let mut index = 0;
    while index < lines.len() {
        let Some(first) = comments[index] else {
            (fenced, listed) = (false, false);
            out.push(lines[index].into());
            index += 1;
            continue;
        };
        let words = first.words.trim_start();
        if words.starts_with("```") || words.starts_with("~~~") {
            fenced = !fenced;
        }
        if words.is_empty() {
            listed = false;
        } else if structure(words) {
            // A heading ends with its line.
            listed = !words.starts_with('#');
        }
        if fenced || listed || !first.is_prose() {
            out.push(lines[index].into());
            index += 1;
            continue;
        }
        let more = comments[index..].iter().map_while(|c| c.filter(|c| c.is_prose() && c.continues(&first)));
        let count = more.count();
        let paragraph = &lines[index..index + count];
        // Two blanks at the end or a backslash break a line on purpose.
        let broken = paragraph.iter().any(|line| line.ends_with("  ") || line.ends_with('\\'));
        let wide = paragraph.iter().any(|line| width(line) > WIDTH);
        if !broken && (wide || fill) {
            out.extend(wrap(&first, &comments[index..index + count]));
        } else {
            out.extend(paragraph.iter().map(|line| (*line).to_owned()));
        }
        index += count;
    }
    out.join("\n")
}

/// The words of a paragraph on lines that are as long as they may be.
fn wrap(first: &Comment, paragraph: &[Option<Comment>]) -> Vec<String> {
    let start = format!("{}{}", first.indent, first.marker);
    let mut lines: Vec<String> = Vec::new();
    let mut line = start.clone();
    // A word that would make a list or a heading of its line takes the word before along.
    for group in groups(paragraph) {
        if width(&line) + 1 + width(&group) > WIDTH && line != start {
            lines.push(std::mem::replace(&mut line, start.clone()));
        }
        line.push(' ');
        line.push_str(&group);
    }
    lines.push(line);
    lines
}

/// The words of a paragraph; what must not begin a line is in one with the word before it.
fn groups(paragraph: &[Option<Comment>]) -> Vec<String> {
    let mut groups: Vec<String> = Vec::new();
    for word in paragraph.iter().flatten().flat_map(|comment| comment.words.split_whitespace()) {
        match groups.last_mut() {
            Some(before) if structure(&format!("{word} x")) => before.extend([" ", word]),
            _ => groups.push(word.into()),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line of `count` words of four letters behind `start`.
    fn words(start: &str, count: usize) -> String {
        format!("{start}{}", " word".repeat(count))
    }

    #[test]
    fn a_wide_paragraph_is_wrapped_and_a_narrow_one_left() {
        let text = format!("{}\n{}\n//\n// short\n// lines\nfn f() {{}}\n", words("//", 30), words("//", 2));
        let wrapped = rewrap(&text, false);
        assert_eq!(
            wrapped,
            format!("{}\n{}\n//\n// short\n// lines\nfn f() {{}}\n", words("//", 23), words("//", 9))
        );
        assert!(wide(&wrapped).is_empty());
        assert_eq!(wide(&text), [1]);
        assert!(rewrap(&text, true).contains("// short lines\n"));
    }

    #[test]
    fn the_marker_and_the_indent_count_and_stay() {
        let text = words("        ///", 25);
        let wrapped = rewrap(&text, false);
        assert!(wrapped.lines().all(|line| line.starts_with("        /// ") && width(line) <= WIDTH), "{wrapped}");
        assert_eq!(wrapped.split_whitespace().filter(|word| *word == "word").count(), 25);
    }

    #[test]
    fn markers_do_not_mix() {
        let text = format!("{}\n/// end", words("//", 25));
        assert!(rewrap(&text, false).ends_with("// word word\n/// end"));
    }

    #[test]
    fn code_lists_tables_and_indented_text_are_left() {
        let long = words("", 30);
        for start in ["-", "*", "1.", "|", "#", "   ", "[a]:", ">"] {
            let text = format!("/// {start}{long}\n///   and more of it");
            assert_eq!(rewrap(&text, true), text);
        }
        let text = format!("//! Text.\n//!\n//! ```text\n//!{long}\n//! ```\n//!\n//!{long}");
        let wrapped = rewrap(&text, false);
        assert!(wrapped.starts_with(&format!("//! Text.\n//!\n//! ```text\n//!{long}\n//! ```\n//!\n")));
        assert_eq!(wide(&wrapped), [4], "the last paragraph is wrapped");
    }

    #[test]
    fn a_text_after_a_list_is_wrapped_again() {
        let text = format!("/// - one\n///   two\n///\n{}", words("///", 30));
        assert_eq!(rewrap(&text, false).lines().count(), 5);
    }

    #[test]
    fn a_text_right_after_a_heading_is_wrapped() {
        let text = format!("/// # Errors\n{}", words("///", 30));
        assert_eq!(rewrap(&text, false).lines().count(), 3);
    }

    #[test]
    fn strings_and_long_comments_hold_no_comments() {
        let long = words("//", 30);
        for (open, close) in [("let a = \"x", "\";"), ("let a = r#\"x\" ", "\"#;"), ("/* x", "*/")] {
            let text = format!("{open}\n{long}\n{close}\n// end");
            assert_eq!((rewrap(&text, true), wide(&text)), (text.clone(), vec![]), "{open}");
        }
        // Quotes in characters and behind lifetimes open nothing.
        for code in ["let q = '\"';", "let q = '\\'';", "fn f<'a>(x: &'a str) {}", "let q = \"\\\"\";"] {
            assert_eq!(wide(&format!("{code}\n{long}")), [2], "{code}");
        }
    }

    #[test]
    fn a_line_does_not_begin_with_what_would_be_a_list() {
        let text = format!("{} - and", words("///", 23));
        let wrapped = rewrap(&words(&text, 4), true);
        assert_eq!(wrapped.lines().nth(1), Some("/// word - and word word word word"));
        assert!(wide(&wrapped).is_empty());
    }

    #[test]
    fn one_long_word_and_a_row_of_a_table_are_not_too_wide() {
        assert!(wide(&format!("// {}\n{}", "x".repeat(200), words("/// |", 30))).is_empty());
    }
}
