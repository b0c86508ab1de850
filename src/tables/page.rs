//! A page: prose, and blocks that a command makes.
//!
//! ```text
//! <!-- waggle: sweep --models gpt2 --format markdown -->
//! what the command writes
//! <!-- end: 1 s -->
//! ```
//!
//! `waggle:` begins a block of planned numbers, which are the same on every machine. `waggle measured:` begins a
//! block of measured numbers. The last line has the seconds that the command took. A larger table is kept in a file
//! of data beside the page, and its block is a single line:
//!
//! ```text
//! <!-- waggle data/policies.csv: sweep --models gpt2 --format csv -->
//! ```

use std::path::{Component, Path, PathBuf};

use waggle_files::{at, write};

use super::TablesError;
use crate::Error;
use crate::error::make_dir;

const OPEN: &str = "<!-- waggle";
const MEASURED: &str = " measured";
const CLOSE: &str = " -->";
const END: &str = "<!-- end";

/// The beginning of a file of data, which states the command and, for measured numbers, the machine and the date.
const MADE_DATA: &str = "# Made by ";

/// The beginning of the last line of a block's text. That line states the block's origin, so it changes with every
/// revision.
const MADE: &str = "*Made by ";

/// The kind of numbers of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Planned numbers, which are the same on every machine.
    Planned,
    /// Numbers that were measured in a run.
    Measured,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Block {
    /// The line in which the block begins, from 1.
    pub(super) line: usize,
    pub(super) kind: Kind,
    /// The file of data beside the page, if the numbers are there.
    pub(super) file: Option<String>,
    /// The command as the page has it, without `waggle`.
    pub(super) command: String,
    pub(super) arguments: Vec<String>,
    /// The lines between the marks.
    pub(super) text: Vec<String>,
    /// Seconds that the command took when the block was made.
    pub(super) seconds: Option<f64>,
}

#[derive(Clone, Debug, PartialEq)]
enum Part {
    Prose(String),
    Block(Block),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Page {
    pub(super) path: PathBuf,
    parts: Vec<Part>,
}

impl Page {
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let mut page = Page::parse(path, &std::fs::read_to_string(path).map_err(at(path))?)?;
        for block in page.blocks_mut() {
            let Some(file) = block.file.as_ref().map(|file| path.with_file_name(file)) else { continue };
            match std::fs::read_to_string(&file) {
                Ok(text) => block.text = text.lines().map(str::to_owned).collect(),
                // A missing file is made when the block is made.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(at(&file)(error).into()),
            }
        }
        Ok(page)
    }

    fn parse(path: &Path, text: &str) -> Result<Self, TablesError> {
        let wrong = |line, what: &str| TablesError::Block { path: path.to_owned(), line, what: what.to_owned() };
        let mut parts = Vec::new();
        let mut lines = text.lines().enumerate().map(|(at, line)| (at + 1, line));
        while let Some((at, line)) = lines.next() {
            let Some((kind, file, command)) = opening(line) else {
                parts.push(Part::Prose(line.to_owned()));
                continue;
            };
            let arguments = shlex::split(command).ok_or_else(|| wrong(at, "a quote in the command has no end"))?;
            if !allowed(kind, &arguments) {
                let kind = if kind == Kind::Planned { "planned" } else { "measured" };
                return Err(wrong(at, &format!("a page does not run `waggle {command}` for {kind} numbers")));
            }
            if file.is_some_and(|file| !beside_the_page(file)) {
                return Err(wrong(at, "data stand in a file NAME.csv or FOLDER/NAME.csv beside the page"));
            }
            let file = file.map(str::to_owned);
            let command = command.to_owned();
            let mut block = Block { line: at, kind, file, command, arguments, text: Vec::new(), seconds: None };
            while block.file.is_none() {
                match lines.next() {
                    None => return Err(wrong(at, "the block has no `<!-- end -->`")),
                    Some((_, line)) if line.starts_with(END) => {
                        block.seconds = seconds(line);
                        break;
                    }
                    Some((_, line)) => block.text.push(line.to_owned()),
                }
            }
            parts.push(Part::Block(block));
        }
        Ok(Page { path: path.to_owned(), parts })
    }

    pub(super) fn blocks(&self) -> impl Iterator<Item = &Block> {
        self.parts.iter().filter_map(|part| match part {
            Part::Block(block) => Some(block),
            Part::Prose(_) => None,
        })
    }

    /// The page's blocks in order, mutable.
    pub(super) fn blocks_mut(&mut self) -> impl Iterator<Item = &mut Block> {
        self.parts.iter_mut().filter_map(|part| match part {
            Part::Block(block) => Some(block),
            Part::Prose(_) => None,
        })
    }

    pub(super) fn name(&self) -> String {
        self.path.file_name().unwrap_or(self.path.as_os_str()).to_string_lossy().into_owned()
    }

    /// Writes the page and its data.
    pub(super) fn write(&self) -> Result<(), Error> {
        // Data that were never made get no empty file.
        for block in self.blocks().filter(|block| !block.text.is_empty()) {
            if let Some(file) = block.file.as_ref().map(|file| self.path.with_file_name(file)) {
                make_dir(file.parent().unwrap_or(&file))?;
                write(&file, block.lines().as_bytes())?;
            }
        }
        Ok(write(&self.path, self.render().as_bytes())?)
    }

    fn render(&self) -> String {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Prose(line) => text += line,
                Part::Block(block) => text += &block.render(),
            }
            text.push('\n');
        }
        text
    }
}

impl Block {
    /// The block's lines, without the line about its origin.
    pub(super) fn numbers(&self) -> &[String] {
        let made = |line: &String| line.is_empty() || line.starts_with(MADE) || line.starts_with(MADE_DATA);
        let end = self.text.iter().rposition(|line| !made(line)).map_or(0, |end| end + 1);
        let begin = usize::from(self.file.is_some() && self.text.first().is_some_and(made)).min(end);
        &self.text[begin..end]
    }

    /// Sets the block's lines to the `output` of its command, with a line about its origin `made`.
    pub(super) fn set(&mut self, output: &str, made: &str, seconds: f64) {
        if self.file.is_some() {
            // A plan is the same in every revision that passes the check, so its origin is left out.
            let made = if self.kind == Kind::Measured { format!(", {made}") } else { String::new() };
            let made = format!("{MADE_DATA}`waggle {}`{made}", self.command);
            self.text = std::iter::once(made).chain(output.trim_end().lines().map(str::to_owned)).collect();
            return;
        }
        self.text = std::iter::once(String::new()).chain(output.trim_end().lines().map(str::to_owned)).collect();
        if self.arguments.iter().any(|word| word == "latex") {
            self.text.insert(1, "```latex".to_owned());
            self.text.push("```".to_owned());
        }
        self.text.extend([String::new(), format!("{MADE}`waggle {}`, {made}.*", self.command)]);
        self.seconds = Some(seconds);
    }

    fn render(&self) -> String {
        let kind = if self.kind == Kind::Measured { MEASURED } else { "" };
        let file = self.file.as_ref().map_or_else(String::new, |file| format!(" {file}"));
        let open = format!("{OPEN}{kind}{file}: {}{CLOSE}", self.command);
        if self.file.is_some() {
            return open;
        }
        let seconds = self.seconds.map_or_else(String::new, |seconds| format!(": {seconds:.0} s"));
        format!("{open}\n{}{END}{seconds}{CLOSE}", self.lines())
    }

    fn lines(&self) -> String {
        self.text.iter().map(|line| format!("{line}\n")).collect()
    }
}

/// The kind, the file of data and the command in a line that begins a block.
fn opening(line: &str) -> Option<(Kind, Option<&str>, &str)> {
    let (head, command) = line.strip_prefix(OPEN)?.strip_suffix(CLOSE)?.split_once(": ")?;
    let (kind, file) = match head.strip_prefix(MEASURED) {
        Some(file) => (Kind::Measured, file),
        None => (Kind::Planned, head),
    };
    Some((kind, Some(file.trim()).filter(|file| !file.is_empty()), command))
}

fn seconds(line: &str) -> Option<f64> {
    line.strip_prefix(END)?.strip_prefix(": ")?.strip_suffix(CLOSE)?.strip_suffix(" s")?.parse().ok()
}

/// Whether `file` is a table that lies in the folder of the pages or in one of its folders.
fn beside_the_page(file: &str) -> bool {
    let normal = |part: Component| matches!(part, Component::Normal(_));
    file.ends_with(".csv") && Path::new(file).components().all(normal) && Path::new(file).components().count() <= 2
}

/// Whether a page may run these arguments. A plan must be the same on every machine, and no command may write a file.
fn allowed(kind: Kind, arguments: &[String]) -> bool {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let writes = ["--json", "--out", "--plots", "--bib"];
    let given = |option: &str, word: &&str| *word == option || word.starts_with(&format!("{option}="));
    if writes.iter().any(|option| words.iter().any(|word| given(option, word))) {
        return false;
    }
    let known: &[&str] = match kind {
        Kind::Planned if words.contains(&"--run") => return false,
        Kind::Planned => &["sweep", "reproduce"],
        Kind::Measured => &["eval", "demo", "compare", "heads", "float", "reproduce"],
    };
    words.first().is_some_and(|command| known.contains(command))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# Title\n\nprose\n\n<!-- waggle: sweep --policies 'full;h2o' -->\n\n| 1 |\n\n*Made by x.*\n<!-- end: 2 s -->\n\
                        more\n<!-- waggle measured: eval --text tinystories.json -->\n<!-- end -->\n";

    fn parsed(text: &str) -> Result<Page, TablesError> {
        Page::parse(Path::new("page.md"), text)
    }

    #[test]
    fn prose_stays_and_blocks_are_found() {
        let page = parsed(TEXT).unwrap();
        assert_eq!(page.render(), TEXT);
        let blocks: Vec<&Block> = page.blocks().collect();
        assert_eq!((blocks[0].line, blocks[0].kind, blocks[0].seconds), (5, Kind::Planned, Some(2.0)));
        assert_eq!(blocks[0].arguments, ["sweep", "--policies", "full;h2o"]);
        assert_eq!(blocks[0].numbers(), ["", "| 1 |"]);
        assert_eq!((blocks[1].kind, blocks[1].numbers().len()), (Kind::Measured, 0));
    }

    #[test]
    fn a_block_takes_over_what_its_command_wrote() {
        let mut page = parsed(TEXT).unwrap();
        for block in page.blocks_mut() {
            block.set("| 2 |\n| 3 |\n", "0.1.0 (abc)", 3.4);
        }
        let again = parsed(&page.render()).unwrap();
        assert_eq!(again.render(), page.render());
        let block = again.blocks().next().unwrap();
        assert_eq!((block.numbers(), block.seconds), (&["".into(), "| 2 |".into(), "| 3 |".into()][..], Some(3.0)));
        assert!(page.render().contains("*Made by `waggle sweep --policies 'full;h2o'`, 0.1.0 (abc).*"));
        assert!(page.render().starts_with("# Title\n\nprose\n") && page.render().contains("\nmore\n"));
    }

    #[test]
    fn what_a_page_must_not_do_is_refused() {
        let refused = |command: &str| parsed(&format!("<!-- {command} -->\n<!-- end -->\n")).unwrap_err().to_string();
        assert!(parsed("\n<!-- waggle: sweep -->\n").unwrap_err().to_string().contains("page.md:2"));
        assert!(refused("waggle: sweep 'x").contains("no end"));
        // The plan of `plan` depends on the machine's calibration, and only runs may take long.
        for command in ["waggle: plan", "waggle: demo", "waggle: tables check", "waggle measured: serve"] {
            assert!(refused(command).contains("does not run"), "{command}");
        }
        assert!(refused("waggle: sweep --json=x").contains("does not run"));
        assert!(refused("waggle: reproduce --bib x").contains("does not run"));
        assert!(refused("waggle measured: demo --out=x").contains("does not run"));
        assert!(refused("waggle: sweep --out=x").contains("does not run"));
        for file in ["../x.csv", "/x.csv", "x.json", "a/b/x.csv"] {
            assert!(refused(&format!("waggle {file}: sweep")).contains("data stand in a file"), "{file}");
        }
    }

    #[test]
    fn data_stand_beside_their_page() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page.md");
        let text =
            "before\n<!-- waggle data/x.csv: sweep --format csv -->\n<!-- waggle measured y.csv: eval -->\nafter\n";
        std::fs::write(&path, text).unwrap();
        let mut page = Page::open(&path).unwrap();
        for block in page.blocks_mut() {
            block.set("a,b\n1,2\n", "0.1.0, a machine", 1.0);
        }
        page.write().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        let read = |file: &str| std::fs::read_to_string(dir.path().join(file)).unwrap();
        assert_eq!(read("data/x.csv"), "# Made by `waggle sweep --format csv`\na,b\n1,2\n");
        assert_eq!(read("y.csv"), "# Made by `waggle eval`, 0.1.0, a machine\na,b\n1,2\n");
        let again = Page::open(&path).unwrap();
        assert!(again.blocks().all(|block| block.numbers() == ["a,b", "1,2"]));
    }
}
