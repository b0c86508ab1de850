//! `waggle policies`: every cache policy that has a name.

use std::path::PathBuf;

use clap::Args;
use comfy_table::{ContentArrangement, Table, presets};
use mpcache::{Listed, ListedOption, catalogue};

use super::files::{check_writable, write_json};
use super::{Error, out};

/// Lists all cache policies: their options with defaults, and what both parties learn besides the lengths of prompt
/// and text.
#[derive(Args, Debug)]
pub(super) struct PoliciesArgs {
    /// Write the list here, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(super) fn run(args: PoliciesArgs) -> Result<(), Error> {
    check_writable(args.json.as_deref())?;
    let listed = catalogue();
    // The file first: who reads the table may leave early.
    if let Some(path) = &args.json {
        write_json(path, &listed)?;
    }
    out::line(table(&listed))
}

/// The table fits the terminal, and breaks no line where there is none.
fn table(listed: &[Listed]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(["policy", "what it does", "options", "both parties learn"]);
    for Listed { name, about, options, shows, .. } in listed {
        let options: Vec<String> = options.iter().map(option).collect();
        table.add_row([name, about, options.join(" ").as_str(), shows]);
    }
    table
}

/// An option as a policy text would give it.
fn option(ListedOption { key, default, required }: &ListedOption) -> String {
    match default {
        // A default in words is none that could be given.
        Some(value) if !value.contains(' ') => format!("{key}={value}"),
        _ if *required => format!("{key}=(required)"),
        _ => format!("{key}="),
    }
}
