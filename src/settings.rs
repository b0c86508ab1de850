//! Options from the environment. The variable `WAGGLE_NAME` sets an option `--name` that is not on the command line.

use std::collections::BTreeSet;
use std::process;

use clap::{Arg, ArgAction, Command};

/// `command` and all its subcommands, with options from the variables that are set. An empty variable counts as not
/// set.
pub(super) fn with_variables(command: Command) -> Command {
    let command = command.mut_args(|arg| match option(&arg) {
        Some(name) if std::env::var_os(&name).is_some_and(|value| !value.is_empty()) => arg.env(name).hide_env(true),
        _ => arg,
    });
    command.mut_subcommands(with_variables)
}

/// Removes variables with options from a child's environment, as its command line has all options.
pub(super) fn forget_variables(child: &mut process::Command, root: &Command) {
    for name in variables(root) {
        child.env_remove(name);
    }
}

/// The variables among `names` that look like options, but that no command has.
pub(super) fn unknown_variables(root: &Command, names: impl Iterator<Item = String>) -> Vec<String> {
    let mut known = variables(root);
    known.extend(OTHERS.map(str::to_owned));
    names.filter(|name| name.starts_with("WAGGLE_") && !known.contains(name)).collect()
}

/// Variables that are not options: the folder of keys, the family of kernels, the parent process, and variables of
/// cargo for a program that it builds and runs.
const OTHERS: [&str; 5] = ["WAGGLE_HOME", "WAGGLE_CPU", crate::child::PARENT, "WAGGLE_PROGRAM", "WAGGLE_REVISION"];

fn variables(command: &Command) -> BTreeSet<String> {
    let own = command.get_arguments().filter_map(option);
    own.chain(command.get_subcommands().flat_map(variables)).collect()
}

/// `WAGGLE_PROMPT_LEN` for the option `--prompt-len`.
fn option(arg: &Arg) -> Option<String> {
    use ArgAction::{Help, HelpLong, HelpShort, Version};
    let name = arg.get_long().filter(|_| !matches!(arg.get_action(), Help | HelpLong | HelpShort | Version))?;
    Some(format!("WAGGLE_{}", name.replace('-', "_").to_uppercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_no_command_has_is_told() {
        let write = Command::new("write").arg(Arg::new("tokens").long("tokens"));
        let root = Command::new("waggle").subcommand(write);
        let names = ["WAGGLE_TOKENS", "WAGGLE_HOME", "WAGGLE_TOKNS", "PATH", "WAGGLE_HELP"].map(String::from);
        assert_eq!(unknown_variables(&root, names.into_iter()), ["WAGGLE_TOKNS", "WAGGLE_HELP"]);
    }
}
