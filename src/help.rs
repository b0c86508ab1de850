//! The help: the commands in groups, and for each command the most used options. `--help all` shows all commands and
//! options.

use std::ffi::{OsStr, OsString};
use std::fmt::Write;

use clap::{Arg, Command};

/// The commands, grouped by purpose. Commands that are in no group are shown by `--help all`.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Run", &["demo", "serve", "generate", "chat", "proxy", "classify", "keygen"]),
    ("Prepare", &["preprocess", "pools", "helper"]),
    ("Predict", &["plan", "calibrate", "sweep", "links"]),
    ("Study", &["eval", "policies", "heads", "fit", "float"]),
    ("Write", &["reproduce", "compare", "report", "plot"]),
];

/// The options that the help of a command shows, by name. For a command that is not listed, the help shows all.
const USED: [(&str, &str); 14] = [
    ("demo", "model prompt tokens policy preprocess link parties check table json"),
    ("serve", "model listen allow allow-any public-prefix policy reveal pools sessions log metrics"),
    (
        "generate",
        "connect server-key prompt prompt-file public-prefix tokens temperature stop-at-eos policy preprocess json",
    ),
    ("chat", "connect server-key system public-system tokens temperature policy preprocess transcript json"),
    ("proxy", "connect server-key listen api-key-file texts tokens policy preprocess"),
    ("classify", "connect server-key text pair image file preprocess format json"),
    ("preprocess", "connect server-key pool prompt-len tokens policy forget-all-but"),
    ("helper", "listen allow identity sessions max-weights log"),
    ("float", "model prompt tokens policy json"),
    ("plan", "model prompt-len tokens cached preprocess parties link cores policy format json"),
    ("sweep", "models contexts policies links phases cores pass by format columns json"),
    ("eval", "model task text policies budgets context costs format plots out"),
    ("reproduce", "run link cores format columns bib"),
    ("plot", "out metric policies x labels"),
];

/// Whether `words` ask for the full help. The word `all` is then not an argument.
pub(super) fn asks_for_all(words: &[OsString]) -> bool {
    let asks = |word: &OsStr| ["--help", "-h"].iter().any(|help| word == *help);
    words.windows(2).any(|pair| asks(&pair[0]) && pair[1] == "all")
}

/// `root` as its help shows it: with all options and commands if `all` is set, otherwise with the most used ones.
pub(super) fn shown(mut root: Command, all: bool) -> Command {
    let text = commands(&root, all);
    let about = root.get_about().map(ToString::to_string).unwrap_or_default();
    let about = sentence(&about);
    root = root.override_help(format!("{about}\n\nUsage: waggle COMMAND\n{text}\n{}\n", footer(all)));
    if all {
        return root;
    }
    for (command, used) in USED {
        if root.find_subcommand(command).is_some() {
            root = root.mut_subcommand(command, |command| shortened(command, used));
        }
    }
    root
}

fn footer(all: bool) -> &'static str {
    match all {
        true => super::SETTINGS,
        false => "`waggle COMMAND --help` shows what people use, `--help all` everything.",
    }
}

/// The text of the commands in groups, each with the first sentence of its description.
fn commands(root: &Command, all: bool) -> String {
    let mut text = String::new();
    let mut group = |title: &str, names: &mut dyn Iterator<Item = &str>| {
        let _ = writeln!(text, "\n{title}:");
        for name in names {
            let Some(command) = root.find_subcommand(name) else { continue };
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(text, "  {name:11} {}", sentence(&about));
        }
    };
    for (title, names) in GROUPS {
        group(title, &mut names.iter().copied());
    }
    let grouped = |name: &str| GROUPS.iter().any(|(_, names)| names.contains(&name));
    if all {
        group("More", &mut root.get_subcommands().map(Command::get_name).filter(|name| !grouped(name)));
    }
    text
}

/// The first sentence of `about`, cut to a line.
fn sentence(about: &str) -> &str {
    let end = [". ", ": ", ", "].iter().filter_map(|end| about.find(end)).min();
    about[..end.unwrap_or(about.len())].trim_end_matches('.')
}

/// `command`, whose help shows only the options `used`.
fn shortened(command: Command, used: &str) -> Command {
    let used: Vec<&str> = used.split(' ').collect();
    let is_used = |arg: &Arg| arg.get_long().is_none_or(|long| used.contains(&long) || long == "help");
    let more = command.get_arguments().filter(|arg| !is_used(arg)).count();
    let command = command.mut_args(|arg| if is_used(&arg) { arg } else { arg.hide(true) });
    command.after_help(format!("--help all shows {more} more options."))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    #[test]
    fn every_name_is_that_of_an_option() {
        let root = Cli::command();
        for (name, used) in USED {
            let command = root.find_subcommand(name).unwrap_or_else(|| panic!("no command {name}"));
            for option in used.split(' ') {
                let known = command.get_arguments().any(|arg| arg.get_long() == Some(option));
                assert!(known, "{name} has no --{option}");
            }
        }
        for name in GROUPS.iter().flat_map(|(_, names)| *names) {
            assert!(root.find_subcommand(name).is_some(), "{name}");
        }
    }

    /// Options that do not mean the same in all commands.
    const OTHERWISE: &str = "base by check context insecure-plaintext json link links listen logits machine model no-template \
        out pad-answer pad-prompt phases policies policy pool prompt prompt-len prompts public queue \
        seed sessions stop-at-eos system template text texts timeout tokens turn-tokens x";

    /// An option that means the same in several commands has the same help text in all, apart from its default.
    #[test]
    fn options_that_mean_the_same_have_one_text() {
        let default = |text: &str| match (text.find(" [default: "), text.find(']')) {
            (Some(from), Some(to)) if from < to => format!("{}{}", &text[..from], &text[to + 1..]),
            _ => text.to_owned(),
        };
        let mut texts = std::collections::BTreeMap::<String, std::collections::BTreeSet<String>>::new();
        for command in Cli::command().get_subcommands() {
            for arg in command.get_arguments() {
                if let (Some(long), Some(help)) = (arg.get_long(), arg.get_long_help().or(arg.get_help())) {
                    texts.entry(long.to_owned()).or_default().insert(default(&help.to_string()));
                }
            }
        }
        let several = texts.iter().filter(|(_, texts)| texts.len() > 1).map(|(name, _)| name.as_str());
        assert_eq!(several.collect::<Vec<_>>().join(" "), OTHERWISE);
    }

    #[test]
    fn help_is_short_unless_all_is_asked_for() {
        let help = |words: &str, all: bool| {
            let words = words.split(' ');
            shown(Cli::command(), all).try_get_matches_from(words).unwrap_err().to_string()
        };
        let (short, long) = (help("waggle generate --help", false), help("waggle generate --help", true));
        assert!(short.contains("--prompt <TEXT>") && !short.contains("--packing"), "{short}");
        assert!(short.contains("--help all shows") && long.contains("--packing"), "{short}");
        assert!(short.lines().count() * 2 < long.lines().count());
        assert!(short.lines().all(|line| line.chars().count() <= 100), "{short}");
        let root = help("waggle --help", false);
        assert!(root.contains("Predict:\n  plan ") && !root.contains("completions"), "{root}");
        assert!(root.lines().all(|line| line.chars().count() <= 80), "{root}");
        assert!(help("waggle --help", true).contains("completions"));
    }
}
