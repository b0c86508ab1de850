//! Options from the environment and from a file.
//!
//! Options of the command line come first, then the variable `WAGGLE_NAME` for an option `--name`, then the file of
//! `waggle --config FILE COMMAND`, then the default. An option that contradicts one of a higher place is left out, so
//! that `--prompt-ids` on the command line replaces a `prompt` of the file.
//!
//! The file is TOML. A key at the top serves every command that has the option, and a key of a table such as
//! `[generate]` or `[pools.rm]` serves that command. A key that no command has is an error.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, Command, Id};
use thiserror::Error;
use toml::{Table, Value};

use crate::disk::at;
use crate::models::harmless;

/// The option that names the file. It stands before the command, because `synth` has a `--config` of its own.
const FILE_OPTION: &str = "--config";

const MAX_FILE_BYTES: u64 = 1 << 20;

/// A setting of a file or a variable that cannot be an option.
#[derive(Debug, Error)]
pub(super) enum SettingsError {
    #[error("{}: {source}", path.display())]
    Syntax { path: PathBuf, source: Box<toml::de::Error> },
    /// `command` says whose table it is: "`generate` has no", or "no command has an".
    #[error("{}: {command} option `{key}`", path.display())]
    Unknown { path: PathBuf, command: String, key: String },
    #[error("{name} wants {SWITCH}, and the variable says {value:?}")]
    Switch { name: String, value: OsString },
    /// What a terminal would obey, where an error quotes it.
    #[error("{}: `{key}` has a control character", path.display())]
    Control { path: PathBuf, key: String },
    #[error("{}: `{key}` wants {expected}, and the file says {got}", path.display())]
    Kind { path: PathBuf, key: String, expected: &'static str, got: &'static str },
}

/// A command line with the options that the environment and a file add.
pub(super) struct Completed {
    pub(super) arguments: Vec<OsString>,
    /// The options that were added, each with its origin, for messages.
    pub(super) added: Vec<String>,
}

/// An option, the words that it becomes, and who says so.
type Found<'a> = (&'a Arg, Vec<OsString>, String);

/// Adds to `arguments`, whose first is the program, what `variable` and the file say to its command. This is not left
/// to clap's own variables: there, one that contradicts the command line is an error.
pub(super) fn complete(
    root: &Command,
    arguments: Vec<OsString>,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<Completed, super::Error> {
    let mut root = root.clone();
    root.build();
    let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
    let (file, mut at) = leading(&arguments);
    let file = file.or_else(|| variable("WAGGLE_CONFIG").map(PathBuf::from));
    let file = file.map(|path| File::open(&path, &root)).transpose()?;
    // The command that is called, and the tables of the file that serve it, the closest last.
    let mut command = &root;
    let mut closest = file.as_ref().map(|file| &file.table);
    let mut tables: Vec<&Table> = closest.into_iter().collect();
    while let Some(next) = arguments.get(at).and_then(|word| command.find_subcommand(word.to_str()?)) {
        closest = closest.and_then(|table| table.get(next.get_name())?.as_table());
        tables.extend(closest);
        (command, at) = (next, at + 1);
    }
    let mut completed = Completed { arguments, added: Vec::new() };
    if std::ptr::eq(command, &root) || command.has_subcommands() {
        return Ok(completed);
    }
    let mut given = on_command_line(command, &completed.arguments[at..]);
    let (mut environment, mut of_file): (Vec<Found>, Vec<Found>) = Default::default();
    for option in command.get_arguments().filter(|option| !built_in(option)) {
        let Some(key) = option.get_long() else { continue };
        let name = variable_name(key);
        if let Some(value) = variable(&name).filter(|_| name != "WAGGLE_CONFIG") {
            // One that turns a switch off adds no word, and the file does not turn it on again.
            environment.push((option, of_text(option, &name, value)?, name));
        } else if let (Some(file), Some(value)) = (&file, tables.iter().rev().find_map(|table| plain(table, key))) {
            of_file.push((option, file.of_value(option, value)?, file.path.display().to_string()));
        }
    }
    let mut more = Vec::new();
    // A whole place before the next one, so that what contradicts a higher place is seen.
    for found in [environment, of_file] {
        add(command, found, &mut given, &mut more, &mut completed.added);
    }
    completed.arguments.splice(at..at, more);
    Ok(completed)
}

/// Takes the variables that stand for options out of a child's environment: its command line says everything.
pub(super) fn forget_variables(child: &mut std::process::Command, root: &Command) {
    let mut commands = vec![root];
    while let Some(command) = commands.pop() {
        for option in command.get_arguments().filter_map(Arg::get_long) {
            child.env_remove(variable_name(option));
        }
        commands.extend(command.get_subcommands());
    }
}

/// The variables among `names` that look like options and are none of any command's.
pub(super) fn unknown_variables(root: &Command, names: impl Iterator<Item = String>) -> Vec<String> {
    let mut known: BTreeSet<String> = OTHERS.map(str::to_owned).into();
    let mut commands = vec![root];
    while let Some(command) = commands.pop() {
        known.extend(command.get_arguments().filter_map(Arg::get_long).map(variable_name));
        commands.extend(command.get_subcommands());
    }
    names.filter(|name| name.starts_with("WAGGLE_") && !known.contains(name)).collect()
}

/// Variables that are no options: the place of keys, families of kernels, the process above, and what cargo tells a
/// program that it built and runs.
const OTHERS: [&str; 5] = ["WAGGLE_HOME", "WAGGLE_CPU", crate::worker::PARENT, "WAGGLE_PROGRAM", "WAGGLE_REVISION"];

/// `WAGGLE_PROMPT_LEN` for `prompt-len`.
fn variable_name(option: &str) -> String {
    format!("WAGGLE_{}", option.replace('-', "_").to_uppercase())
}

fn built_in(option: &Arg) -> bool {
    matches!(option.get_action(), ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version)
}

/// The file that stands before the command, and where the command stands.
fn leading(arguments: &[OsString]) -> (Option<PathBuf>, usize) {
    let (mut file, mut at) = (None, 1);
    while let Some(argument) = arguments.get(at).and_then(|argument| argument.to_str()) {
        if argument == FILE_OPTION {
            file = arguments.get(at + 1).map(PathBuf::from);
            at += 2;
        } else if let Some(path) = argument.strip_prefix(FILE_OPTION).and_then(|rest| rest.strip_prefix('=')) {
            file = Some(path.into());
            at += 1;
        } else {
            break;
        }
    }
    (file, at.min(arguments.len()))
}

/// The options of `command` that stand in `arguments`.
fn on_command_line(command: &Command, arguments: &[OsString]) -> BTreeSet<Id> {
    let words = arguments.iter().map(|argument| argument.as_encoded_bytes()).take_while(|word| *word != b"--");
    let names: BTreeSet<&[u8]> = words
        .filter_map(|word| word.strip_prefix(b"--"))
        .map(|word| word.split(|byte| *byte == b'=').next().unwrap_or_default())
        .collect();
    let given = |option: &&Arg| option.get_long().is_some_and(|name| names.contains(name.as_bytes()));
    command.get_arguments().filter(given).map(|option| option.get_id().clone()).collect()
}

/// Adds the options that nothing given says or contradicts.
fn add<'a>(
    command: &'a Command,
    options: Vec<Found<'a>>,
    given: &mut BTreeSet<Id>,
    more: &mut Vec<OsString>,
    added: &mut Vec<String>,
) {
    let above = given.clone();
    for (option, words, origin) in options {
        if words.is_empty() || above.contains(option.get_id()) || contradicted(command, option, &above) {
            continue;
        }
        given.insert(option.get_id().clone());
        added.push(format!("{} ({origin})", words.iter().map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ")));
        more.extend(words);
    }
}

/// Whether `option` cannot stand beside one that is `given`.
fn contradicted(command: &Command, option: &Arg, given: &BTreeSet<Id>) -> bool {
    let conflict = |a: &Arg, b: &Arg| command.get_arg_conflicts_with(a).iter().any(|c| c.get_id() == b.get_id());
    let one_of = |other: &Arg| {
        command.get_groups().filter(|group| !(*group).clone().is_multiple()).any(|group| {
            let members: Vec<&Id> = group.get_args().collect();
            [option, other].iter().all(|arg| members.contains(&arg.get_id()))
        })
    };
    let mut others = command.get_arguments().filter(|other| given.contains(other.get_id()));
    others.any(|other| conflict(option, other) || conflict(other, option) || one_of(other))
}

fn switch(option: &Arg) -> bool {
    matches!(option.get_action(), ArgAction::SetTrue)
}

/// The values that turn a switch on or off.
const SWITCH: &str = "true or false, 1 or 0";

/// The words of a switch that a variable or a file tells `text`; `None` for any other word.
fn switched(option: &Arg, text: &str) -> Option<Vec<OsString>> {
    match &*text.to_ascii_lowercase() {
        "true" | "1" => Some(vec![long(option, None)]),
        "false" | "0" => Some(Vec::new()),
        _ => None,
    }
}

/// The words of an option with the value of the variable `name`.
fn of_text(option: &Arg, name: &str, value: OsString) -> Result<Vec<OsString>, SettingsError> {
    if !switch(option) {
        return Ok(vec![long(option, Some(&value))]);
    }
    let words = value.to_str().and_then(|text| switched(option, text));
    words.ok_or_else(|| SettingsError::Switch { name: name.to_owned(), value })
}

/// `--name` or `--name=value`.
fn long(option: &Arg, value: Option<&OsStr>) -> OsString {
    let mut word = OsString::from("--");
    word.push(option.get_long().unwrap_or_default());
    if let Some(value) = value {
        word.push("=");
        word.push(value);
    }
    word
}

/// The values of an option of a file that is no switch.
const ONE_VALUE: &str = "a text, a number or true or false";

/// A file of options whose every key is one of some command.
struct File {
    path: PathBuf,
    table: Table,
}

impl File {
    fn open(path: &Path, root: &Command) -> Result<Self, super::Error> {
        let text = waggle_files::read_text(path, MAX_FILE_BYTES).map_err(at(path))?;
        let syntax = |source| SettingsError::Syntax { path: path.into(), source: Box::new(source) };
        let file = File { path: path.into(), table: text.parse().map_err(syntax)? };
        file.check(root, &file.table, true)?;
        Ok(file)
    }

    /// Every key of `table` is an option of `command`, at the top of the file one of any command, or a table of a
    /// command.
    fn check(&self, command: &Command, table: &Table, top: bool) -> Result<(), SettingsError> {
        for (key, value) in table {
            let unknown = || SettingsError::Unknown {
                path: self.path.clone(),
                command: if top { "no command has an".into() } else { format!("`{}` has no", command.get_name()) },
                key: key.clone(),
            };
            match (value, command.find_subcommand(key)) {
                (Value::Table(inner), Some(command)) => self.check(command, inner, false)?,
                _ if !has(command, key, top) => return Err(unknown()),
                (Value::Table(_), None) => return Err(self.kind(key, ONE_VALUE, value)),
                _ => (),
            }
        }
        Ok(())
    }

    fn kind(&self, key: &str, expected: &'static str, got: &Value) -> SettingsError {
        SettingsError::Kind { path: self.path.clone(), key: key.to_owned(), expected, got: got.type_str() }
    }

    /// The words of an option with a value of the file.
    fn of_value(&self, option: &Arg, value: &Value) -> Result<Vec<OsString>, SettingsError> {
        let key = option.get_long().unwrap_or_default();
        let wrong = |expected, got: &Value| self.kind(key, expected, got);
        let text = |value: &Value| match value {
            Value::String(text) if *text != harmless(text) => {
                Err(SettingsError::Control { path: self.path.clone(), key: key.to_owned() })
            }
            Value::String(text) => Ok(text.clone()),
            Value::Integer(_) | Value::Float(_) | Value::Boolean(_) => Ok(value.to_string()),
            other => Err(wrong(ONE_VALUE, other)),
        };
        if switch(option) {
            let words = text(value).ok().and_then(|text| switched(option, &text));
            return words.ok_or_else(|| wrong(SWITCH, value));
        }
        let Value::Array(values) = value else { return Ok(vec![long(option, Some(text(value)?.as_ref()))]) };
        let texts = values.iter().map(text).collect::<Result<Vec<_>, _>>()?;
        match (option.get_value_delimiter(), option.get_action()) {
            (Some(mark), _) => Ok(vec![long(option, Some(texts.join(&mark.to_string()).as_ref()))]),
            (None, ArgAction::Append) => Ok(texts.iter().map(|text| long(option, Some(text.as_ref()))).collect()),
            _ => Err(wrong("one value", value)),
        }
    }
}

/// The value in `table` of the option `key`; tables are for commands.
fn plain<'a>(table: &'a Table, key: &str) -> Option<&'a Value> {
    table.get(key).filter(|value| !value.is_table())
}

/// Whether `command`, or with `below` any command under it, has the option `key`.
fn has(command: &Command, key: &str, below: bool) -> bool {
    let own = || command.get_arguments().any(|option| option.get_long() == Some(key) && !built_in(option));
    if below { command.get_subcommands().any(|inner| has(inner, key, false) || has(inner, key, true)) } else { own() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Error;

    fn root() -> Command {
        let flag = |name: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue);
        let write = Command::new("write")
            .args([Arg::new("text").long("text"), Arg::new("ids").long("ids").value_delimiter(',')])
            .group(clap::ArgGroup::new("prompt").args(["text", "ids"]))
            .args([flag("fast"), Arg::new("cached").long("cached"), Arg::new("tokens").long("tokens")])
            .mut_arg("cached", |arg| arg.conflicts_with("tokens"));
        let rm = Command::new("rm").arg(Arg::new("id").long("id").action(ArgAction::Append)).arg(Arg::new("path"));
        Command::new("waggle")
            .arg(Arg::new("config").long("config"))
            .subcommand(write)
            .subcommand(Command::new("pools").subcommand(rm))
    }

    /// The completed line of `line` with variables and the text of a file.
    fn completed(line: &str, variables: &[(&str, &str)], file: Option<&str>) -> Result<String, Error> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("waggle.toml");
        let mut words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        if let Some(text) = file {
            std::fs::write(&path, text).unwrap();
            words.splice(1..1, [OsString::from("--config"), path.clone().into()]);
        }
        let variable = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into());
        let done = complete(&root(), words, variable)?.arguments;
        let skip = if file.is_some() { 3 } else { 1 };
        Ok(done[skip..].iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn the_command_line_comes_before_the_environment_and_that_before_the_file() {
        let file = Some("tokens = 1\ntext = 'a b'\nfast = true");
        assert_eq!(completed("waggle write", &[], file).unwrap(), "write --text=a b --fast --tokens=1");
        let variables = [("WAGGLE_TOKENS", "2"), ("WAGGLE_FAST", "0")];
        assert_eq!(completed("waggle write", &variables, file).unwrap(), "write --tokens=2 --text=a b");
        assert_eq!(completed("waggle write --tokens 3", &variables, None).unwrap(), "write --tokens 3");
        assert_eq!(
            completed("waggle write --tokens=3", &[("WAGGLE_FAST", "1")], None).unwrap(),
            "write --fast --tokens=3"
        );
    }

    #[test]
    fn a_switch_is_turned_on_or_off_and_nothing_else() {
        for (text, on) in [("true", true), ("1", true), ("True", true), ("FALSE", false), ("0", false)] {
            let words = if on { "write --fast" } else { "write" };
            assert_eq!(completed("waggle write", &[("WAGGLE_FAST", text)], None).unwrap(), words);
            assert_eq!(completed("waggle write", &[], Some(&format!("fast = '{text}'"))).unwrap(), words);
        }
        for text in ["off", "no", "yes", "2", " 1", "disabled"] {
            let refused = completed("waggle write", &[("WAGGLE_FAST", text)], None).unwrap_err().to_string();
            assert_eq!(refused, format!("WAGGLE_FAST wants true or false, 1 or 0, and the variable says {text:?}"));
            assert!(completed("waggle write", &[], Some(&format!("fast = '{text}'"))).is_err(), "{text}");
        }
    }

    #[test]
    fn a_variable_that_no_command_has_is_told() {
        let names = ["WAGGLE_TOKENS", "WAGGLE_HOME", "WAGGLE_TOKNS", "PATH", "WAGGLE_ID"].map(String::from);
        assert_eq!(unknown_variables(&root(), names.into_iter()), ["WAGGLE_TOKNS"]);
    }

    #[test]
    fn what_the_command_line_contradicts_is_left_out() {
        let file = Some("tokens = 1\ntext = 'a'");
        assert_eq!(completed("waggle write --ids 1", &[], file).unwrap(), "write --tokens=1 --ids 1");
        assert_eq!(completed("waggle write --cached 5", &[], file).unwrap(), "write --text=a --cached 5");
        assert_eq!(completed("waggle write", &[("WAGGLE_IDS", "7")], file).unwrap(), "write --ids=7 --tokens=1");
    }

    #[test]
    fn a_table_serves_its_command_alone_and_wins_over_the_top() {
        let file = Some("tokens = 1\n[write]\ntokens = 2\nids = [1, 2]\n[pools.rm]\nid = ['a', 'b']");
        assert_eq!(completed("waggle write", &[], file).unwrap(), "write --ids=1,2 --tokens=2");
        assert_eq!(completed("waggle pools rm x", &[], file).unwrap(), "pools rm --id=a --id=b x");
        // Without a command there is nothing to add, and no panic.
        assert_eq!(completed("waggle pools", &[], file).unwrap(), "pools");
    }

    #[test]
    fn a_file_that_says_what_no_option_takes_is_refused() {
        let refused = |text: &str| match completed("waggle write", &[], Some(text)) {
            Err(Error::Settings(error)) => error,
            other => panic!("{text}: {other:?}"),
        };
        assert!(matches!(refused("tokns = 1"), SettingsError::Unknown { key, .. } if key == "tokns"));
        assert!(matches!(refused("[write]\nid = 'a'"), SettingsError::Unknown { key, .. } if key == "id"));
        assert!(matches!(refused("[wrte]\n"), SettingsError::Unknown { key, .. } if key == "wrte"));
        assert!(matches!(refused("fast = 2"), SettingsError::Kind { expected: SWITCH, got: "integer", .. }));
        assert!(matches!(refused("tokens = [1, 2]"), SettingsError::Kind { expected: "one value", .. }));
        assert!(matches!(refused("tokens ="), SettingsError::Syntax { .. }));
        for text in ["text = \"\\u001b[2J\"", "[write]\nids = [\"1\", \"\\u0007\"]", "fast = \"\\u009b\""] {
            assert!(matches!(refused(text), SettingsError::Control { .. } | SettingsError::Kind { .. }), "{text}");
        }
        assert_eq!(completed("waggle write", &[], Some("text = \"a\\n\\tb\"")).unwrap(), "write --text=a\n\tb");
        let missing =
            complete(&root(), ["waggle", "--config=/nowhere", "write"].map(OsString::from).into(), |_| None);
        assert!(matches!(missing, Err(Error::Library(crate::Error::File { .. }))));
    }
}
