//! `waggle pools`: lists the files of pools on this disk, and removes them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use waggle::program::pools_at;
use waggle_files::{check_writable, write_json};
use waggle_net::Role;
use waggle_protocols::Part;
use waggle_report::bytes;
use waggle_session::pool::{Found, PoolId, writable_by_others};

use super::{Error, out};

/// Lists and removes pools of both roles.
#[derive(Args, Debug)]
pub(super) struct PoolsArgs {
    #[command(subcommand)]
    command: PoolsCommand,
}

#[derive(Subcommand, Debug)]
enum PoolsCommand {
    /// Lists files: id, owner, state, the longest generation (tokens of the prompt + tokens), which part of how many
    /// the file is, size, age, the peer's key.
    ///
    /// States: a `pool` can be spent. A `pending` file is a server's; it waits for its client's word, and can be
    /// spent. A `draft` is being written and a `claimed` file is being read, or a crash ended that (`stale`); they
    /// are of no use.
    List(ListArgs),
    /// Removes files by id, or what crashes left.
    Rm(RemoveArgs),
}

#[derive(Args, Debug)]
struct ListArgs {
    /// Directories and files.
    #[arg(value_name = "PATH", default_value = ".")]
    paths: Vec<PathBuf>,
    /// Write the list here.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct RemoveArgs {
    /// Directories and files.
    #[arg(value_name = "PATH", default_value = ".")]
    paths: Vec<PathBuf>,
    /// Remove the files of this pool; may be repeated. The peer's part is then worth nothing.
    #[arg(long, value_name = "ID", value_parser = |id: &str| PoolId::try_from(id.to_owned()))]
    id: Vec<PoolId>,
    /// Remove drafts and claimed files that no process works on, and files that have waited for a week.
    #[arg(long, required_unless_present = "id")]
    stale: bool,
}

pub(super) fn run(args: PoolsArgs) -> Result<(), Error> {
    match args.command {
        PoolsCommand::List(args) => list(&args),
        PoolsCommand::Rm(args) => remove(&args),
    }
}

fn all(paths: &[PathBuf]) -> Result<Vec<Found>, Error> {
    let mut all = Vec::new();
    for path in paths {
        all.extend(pools_at(path)?);
    }
    Ok(all)
}

fn list(args: &ListArgs) -> Result<(), Error> {
    check_writable(args.json.as_deref())?;
    let found = all(&args.paths)?;
    if let Some(path) = &args.json {
        write_json(path, &found.iter().map(entry).collect::<Vec<Value>>())?;
    }
    for path in &args.paths {
        warn_of_others(path);
    }
    let rows: Vec<[String; 9]> = found.iter().map(row).collect();
    let titles = ["id", "role", "state", "bound", "part", "size", "age", "peer", "file"].map(String::from);
    let width = |column: usize| rows.iter().chain([&titles]).map(|row| row[column].chars().count()).max();
    let widths: [usize; 9] = std::array::from_fn(|column| width(column).unwrap_or_default());
    for row in [&titles].into_iter().chain(&rows) {
        let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        out::line(cells.join("  ").trim_end())?;
    }
    Ok(())
}

fn row(found: &Found) -> [String; 9] {
    let dash = || "-".to_owned();
    let note = match (found.problem(), found.is_stale(), found.in_use()) {
        (_, true, _) => " (stale)".into(),
        (_, _, true) => " (in use)".into(),
        (Some(problem), ..) => format!(" ({problem})"),
        _ => String::new(),
    };
    [
        found.id().map_or_else(dash, |id| id.to_string()),
        found.role().map_or_else(dash, |role| name(role).into()),
        state(found),
        found.bound().map_or_else(dash, |bound| format!("{}+{}", bound.prompt, bound.tokens)),
        found.part().map_or_else(dash, |part| part.to_string()),
        bytes(found.bytes()),
        age(found.age()),
        found.peer().map_or_else(dash, str::to_owned),
        format!("{}{note}", found.path().display()),
    ]
}

fn entry(found: &Found) -> Value {
    json!({
        "path": found.path().display().to_string(),
        "id": found.id(),
        "role": found.role().map(name),
        "state": found.state(),
        "in_use": found.in_use(),
        "stale": found.is_stale(),
        "prompt": found.bound().map(|bound| bound.prompt),
        "tokens": found.bound().map(|bound| bound.tokens),
        "part": found.part().map(Part::number),
        "parts": found.part().map(Part::of),
        "peer": found.peer(),
        "age_seconds": found.age().as_secs(),
        "bytes": found.bytes(),
        "problem": found.problem().map(ToString::to_string),
    })
}

fn state(found: &Found) -> String {
    serde_json::to_value(found.state()).ok().and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default()
}

fn name(role: Role) -> &'static str {
    match role {
        Role::Client => "client",
        Role::Server => "server",
    }
}

fn age(age: Duration) -> String {
    match age.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

fn remove(args: &RemoveArgs) -> Result<(), Error> {
    let found = all(&args.paths)?;
    if let Some(&id) = args.id.iter().find(|id| found.iter().all(|file| file.id() != Some(**id))) {
        return Err(Error::NoSuchPool { id, paths: args.paths.clone() });
    }
    let wanted = |file: &&Found| args.stale && file.is_stale() || file.id().is_some_and(|id| args.id.contains(&id));
    for file in found.iter().filter(wanted) {
        file.remove().map_err(|e| e.at(file.path()))?;
        out::line(format_args!("removed {}", file.path().display()))?;
    }
    Ok(())
}

/// Warns if users other than the owner could put an old pool back at `path`.
pub(super) fn warn_of_others(path: &Path) {
    if writable_by_others(path) {
        out::note(format_args!(
            "warning: others can write where {} is, and could bring a used pool back",
            path.display()
        ));
    }
}
