//! A chapter as the blocks of code in it.

use std::fmt;
use std::path::Path;

use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag, TagEnd};

/// A mistake, and its line.
#[derive(Debug)]
pub(crate) struct Wrong {
    pub(crate) line: usize,
    pub(crate) what: String,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.line, self.what)
    }
}

/// The purpose of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Runs and succeeds.
    Runs,
    /// Runs, and the last command fails.
    Fails,
    /// Is in the output of the block before.
    Printed,
    /// Includes files.
    Excerpt,
    /// Is there to be read.
    Shown,
}

#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) kind: Kind,
    /// The line of its fence, from 1.
    pub(crate) line: usize,
    pub(crate) text: String,
}

/// All blocks of a chapter, in order.
#[derive(Debug)]
pub(crate) struct Chapter {
    pub(crate) blocks: Vec<Block>,
}

/// The line of a position.
pub(crate) fn line_of(text: &str, position: usize) -> usize {
    text[..position].matches('\n').count() + 1
}

impl Chapter {
    /// Reads a chapter. Every block must be of a kind that is known.
    pub(crate) fn read(text: &str) -> Result<Self, Wrong> {
        let mut blocks: Vec<Block> = Vec::new();
        let mut open: Option<Block> = None;
        // The comment right before the block, if there is one.
        let mut comment = String::new();
        for (event, range) in Parser::new(text).into_offset_iter() {
            let line = line_of(text, range.start);
            match event {
                Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(info))) => {
                    let kind = kind(&info, &comment, blocks.last()).map_err(|what| Wrong { line, what })?;
                    open = Some(Block { kind, line, text: String::new() });
                }
                Event::Start(Tag::CodeBlock(CodeBlockKind::Indented)) => {
                    return Err(Wrong { line, what: "an indented block says nothing of its kind".into() });
                }
                Event::End(TagEnd::CodeBlock) => {
                    let block = open.take().expect("a block was opened");
                    block.check().map_err(|what| Wrong { line: block.line, what })?;
                    blocks.push(block);
                    comment.clear();
                }
                Event::Text(part) if open.is_some() => open.as_mut().expect("it is").text.push_str(&part),
                Event::Html(part) => comment.push_str(&part),
                Event::Start(Tag::HtmlBlock) | Event::End(TagEnd::HtmlBlock) => (),
                _ => comment.clear(),
            }
        }
        Ok(Chapter { blocks })
    }

    /// Checks that what the blocks include is there: an anchor in a Rust file of the workspace. `here` is the
    /// chapter's folder, `root` the repository.
    pub(crate) fn excerpts_exist(&self, here: &Path, root: &Path) -> Result<(), Wrong> {
        for block in self.blocks.iter().filter(|block| block.kind == Kind::Excerpt) {
            for line in block.text.lines() {
                let include = included(line).expect("checked when it was read");
                excerpt(include, here, root).map_err(|what| Wrong { line: block.line, what })?;
            }
        }
        Ok(())
    }
}

fn kind(info: &str, comment: &str, before: Option<&Block>) -> Result<Kind, String> {
    Ok(match info {
        "sh" => Kind::Runs,
        "sh,fails" => Kind::Fails,
        "sh,ignore" if comment.trim_end().ends_with("-->") && comment.contains("<!-- not run: ") => Kind::Shown,
        "sh,ignore" => return Err("the comment `<!-- not run: REASON -->` is missing before it".into()),
        "text,check" if before.is_some_and(|block| matches!(block.kind, Kind::Runs | Kind::Fails)) => Kind::Printed,
        "text,check" => return Err("there is no block that runs before this output".into()),
        "rust" => Kind::Excerpt,
        "text" | "toml" => Kind::Shown,
        "" => return Err("a block of no kind".into()),
        other => return Err(format!("a block of the unknown kind `{other}`")),
    })
}

impl Block {
    fn check(&self) -> Result<(), String> {
        match self.kind {
            Kind::Excerpt if self.text.lines().any(|line| included(line).is_none()) => {
                Err("Rust stands in the book by `{{#include FILE:ANCHOR}}` alone".into())
            }
            _ => Ok(()),
        }
    }
}

/// FILE:ANCHOR of a line that includes.
fn included(line: &str) -> Option<&str> {
    line.trim().strip_prefix("{{#include ")?.strip_suffix("}}")
}

fn excerpt(include: &str, here: &Path, root: &Path) -> Result<(), String> {
    let (file, anchor) =
        include.split_once(':').ok_or_else(|| format!("{include}: name an anchor, not a whole file"))?;
    let joined = here.join(file);
    let path = joined.canonicalize().map_err(|error| format!("{file}: {error}"));
    // The file need not exist to lie elsewhere.
    let outside = file.matches("../").count() > 3;
    if outside || path.as_ref().is_ok_and(|path| !path.starts_with(root.canonicalize().expect("the repository"))) {
        return Err(format!("{file} is no file of the workspace"));
    }
    let text = std::fs::read_to_string(path?).map_err(|error| format!("{file}: {error}"))?;
    for mark in ["ANCHOR", "ANCHOR_END"] {
        let mark = format!("{mark}: {anchor}");
        if !text.lines().any(|line| line.trim_end().ends_with(&mark)) {
            return Err(format!("{file} has no line with `{mark}`"));
        }
    }
    Ok(())
}
