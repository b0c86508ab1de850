//! `waggle completions` and `waggle man`: descriptions of the commands for a shell and for `man`.

use std::path::PathBuf;

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use waggle_files::at;

use super::error::make_dir;
use super::{Cli, Error, out};

/// Prints completions of commands and options for a shell.
///
/// For example: `waggle completions bash > ~/.local/share/bash-completion/completions/waggle`.
#[derive(Args, Debug)]
pub(super) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

pub(super) fn completions(args: CompletionsArgs) -> Result<(), Error> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "waggle", &mut script);
    out::print(String::from_utf8_lossy(&script))
}

/// Writes a man page of every command into a directory.
///
/// For example: `waggle man ~/.local/share/man/man1`, and then `man waggle-generate`.
#[derive(Args, Debug)]
pub(super) struct ManArgs {
    /// Where the pages go; made if it is not there.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

pub(super) fn man(args: ManArgs) -> Result<(), Error> {
    make_dir(&args.dir)?;
    Ok(clap_mangen::generate_to(Cli::command(), &args.dir).map_err(at(&args.dir))?)
}
