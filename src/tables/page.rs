//! A page: prose, and blocks that a command makes.
//!
//! ```text
//! <!-- waggle: sweep --models gpt2 --format markdown -->
//! what the command writes
//! <!-- end: 1 s -->
//! ```
//!
//! `waggle:` begins a block of planned numbers, which are the same wherever they are made; `waggle measured:` one of
//! measured numbers. The seconds in the last line say how long the command took. A command `eval ... --out NAME`
//! fills a folder beside the page as well.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use super::TablesError;
use crate::Error;
use waggle_files::{at, write};

const PLANNED: &str = "<!-- waggle: ";
const MEASURED: &str = "<!-- waggle measured: ";
const CLOSE: &str = " -->";
const END: &str = "<!-- end";

/// The last line of a block's text says what made it, which changes with every revision.
const MADE: &str = "*Made by ";

/// Where the numbers of a block come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A plan: the same on every machine.
    Planned,
    /// A run on a machine.
    Measured,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Block {
    /// The line in which it begins, from one.
    pub(super) line: usize,
    pub(super) kind: Kind,
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
        Ok(Page::parse(path, &std::fs::read_to_string(path).map_err(at(path))?)?)
    }

    fn parse(path: &Path, text: &str) -> Result<Self, TablesError> {
        let wrong = |line, what: &str| TablesError::Block { path: path.to_owned(), line, what: what.to_owned() };
        let mut parts = Vec::new();
        let mut lines = text.lines().enumerate().map(|(at, line)| (at + 1, line));
        while let Some((at, line)) = lines.next() {
            let Some((kind, command)) = opening(line) else {
                parts.push(Part::Prose(line.to_owned()));
                continue;
            };
            let arguments = shlex::split(command).ok_or_else(|| wrong(at, "a quote in the command has no end"))?;
            if !allowed(kind, &arguments) {
                let kind = if kind == Kind::Planned { "planned" } else { "measured" };
                return Err(wrong(at, &format!("a page does not run `waggle {command}` for {kind} numbers")));
            }
            let mut block =
                Block { line: at, kind, command: command.into(), arguments, text: Vec::new(), seconds: None };
            loop {
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

    /// Its blocks in order, to be changed.
    pub(super) fn blocks_mut(&mut self) -> impl Iterator<Item = &mut Block> {
        self.parts.iter_mut().filter_map(|part| match part {
            Part::Block(block) => Some(block),
            Part::Prose(_) => None,
        })
    }

    pub(super) fn name(&self) -> String {
        self.path.file_name().unwrap_or(self.path.as_os_str()).to_string_lossy().into_owned()
    }

    pub(super) fn write(&self) -> Result<(), Error> {
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
    /// The folder beside the page that the command fills, if it fills one.
    pub(super) fn folder(&self) -> Option<&str> {
        self.arguments[folder_at(&self.arguments)?].strip_prefix(OUT)
    }

    /// The arguments for a command that fills `folder` instead.
    pub(super) fn arguments_with(&self, folder: &Path) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = self.arguments.iter().map(Into::into).collect();
        if let Some(at) = folder_at(&self.arguments) {
            arguments[at] = OUT.into();
            arguments[at].push(folder);
        }
        arguments
    }

    /// The block's lines, without the one that says what made it.
    pub(super) fn numbers(&self) -> &[String] {
        let end = self.text.iter().rposition(|line| !line.is_empty() && !line.starts_with(MADE));
        &self.text[..end.map_or(0, |end| end + 1)]
    }

    /// Takes over what the command wrote, and says by what it was `made`.
    pub(super) fn set(&mut self, output: &str, made: &str, seconds: f64) {
        self.text = std::iter::once(String::new()).chain(output.trim_end().lines().map(str::to_owned)).collect();
        if self.arguments.iter().any(|word| word == "latex") {
            self.text.insert(1, "```latex".to_owned());
            self.text.push("```".to_owned());
        }
        self.text.extend([String::new(), format!("{MADE}`waggle {}`, {made}.*", self.command)]);
        self.seconds = Some(seconds);
    }

    fn render(&self) -> String {
        let open = match self.kind {
            Kind::Planned => PLANNED,
            Kind::Measured => MEASURED,
        };
        let text: String = self.text.iter().map(|line| format!("{line}\n")).collect();
        let seconds = self.seconds.map_or_else(String::new, |seconds| format!(": {seconds:.0} s"));
        format!("{open}{}{CLOSE}\n{text}{END}{seconds}{CLOSE}", self.command)
    }
}

/// The kind and the command of a line that begins a block.
fn opening(line: &str) -> Option<(Kind, &str)> {
    let kinds = [(Kind::Planned, PLANNED), (Kind::Measured, MEASURED)];
    kinds.into_iter().find_map(|(kind, open)| Some((kind, line.strip_prefix(open)?.strip_suffix(CLOSE)?)))
}

fn seconds(line: &str) -> Option<f64> {
    line.strip_prefix(END)?.strip_prefix(": ")?.strip_suffix(CLOSE)?.strip_suffix(" s")?.parse().ok()
}

/// The option for a folder. Its value is joined to it, so that one word says all.
const OUT: &str = "--out=";

fn folder_at(arguments: &[String]) -> Option<usize> {
    arguments.iter().position(|word| word.starts_with(OUT))
}

/// Whether `word` names a folder that lies in the folder of the pages.
fn beside_the_page(word: &str) -> bool {
    let mut parts = word.strip_prefix(OUT).map(|name| Path::new(name).components()).into_iter().flatten();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None))
}

/// Whether a page may run these arguments. A plan must be the same on every machine. No block writes a file, but a
/// study fills a folder of its page.
fn allowed(kind: Kind, arguments: &[String]) -> bool {
    let mut words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if kind == Kind::Measured && words.first() == Some(&"eval") {
        words.retain(|word| !beside_the_page(word));
    }
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
        for out in ["--out x", "--out=../x", "--out=/x", "--out=x/y", "--out=."] {
            assert!(refused(&format!("waggle measured: eval {out}")).contains("does not run"), "{out}");
        }
        assert!(refused("waggle measured: demo --out=x").contains("does not run"));
        assert!(refused("waggle: sweep --out=x").contains("does not run"));
    }

    #[test]
    fn a_study_fills_a_folder_of_its_page() {
        let page = parsed("<!-- waggle measured: eval --out=study --budgets 0.1 -->\n<!-- end -->\n").unwrap();
        let block = page.blocks().next().unwrap();
        assert_eq!(block.folder(), Some("study"));
        assert_eq!(block.arguments_with(Path::new("/kept/study")), ["eval", "--out=/kept/study", "--budgets", "0.1"]);
    }
}
