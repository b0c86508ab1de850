//! `waggle policies`: every cache policy that has a name; and lists of them in options of other commands.

use std::path::PathBuf;

use clap::Args;
use comfy_table::{ContentArrangement, Table, presets};
use waggle_files::{check_writable, write_json};
use waggle_mpcache::{Listed, ListedOption, PolicySpec, catalogue};

use super::advice::told_of_policy;
use super::{Error, out};

/// Lists all cache policies: their options with defaults, and what both parties learn besides the lengths of prompt
/// and text.
#[derive(Args, Debug)]
pub(super) struct PoliciesArgs {
    /// Write the list here, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Clone, Debug)]
pub(super) struct Policies(pub(super) Vec<PolicySpec>);

/// Parses a list of policies, for clap.
pub(super) fn list(text: &str) -> Result<Policies, String> {
    let mut all = Vec::new();
    for entry in text.split(';') {
        if let Some((names, _)) = entry.split_once(':')
            && let Some((name, rest)) = names.rsplit_once(',')
        {
            return Err(format!("`{entry}`: put a `;` between `{name}` and `{rest}`, which has options"));
        }
        let one = entry.contains(':');
        for policy in entry.split(',').take(if one { 1 } else { usize::MAX }) {
            let policy: PolicySpec = if one { entry } else { policy }.parse().map_err(|e| told_of_policy(&e))?;
            if all.contains(&policy) {
                return Err(format!("`{policy}` stands there twice"));
            }
            all.push(policy);
        }
    }
    Ok(Policies(all))
}

pub(super) fn run(args: PoliciesArgs) -> Result<(), Error> {
    check_writable(args.json.as_deref())?;
    let listed = catalogue();
    // The file is written first, as the reader of the table may leave early.
    if let Some(path) = &args.json {
        write_json(path, &listed)?;
    }
    out::line(table(&listed))?;
    out::line(OPTIONS)
}

/// A text about the values of options that several policies share.
const OPTIONS: &str = "\
budget: share of all tokens seen that a step looks at or, for policies with `block`, the most tokens that a
layer holds, from 2 on. block: tokens that go at once when a store is full. prefill: tokens of the prompt after
each of which it is cut to the budget, or off. heads: for every layer, with dots between them, a hexadecimal
number whose bits say which key/value heads keep every token, as `waggle heads` finds them. clusters: TOKENS or
COARSE/FINE, for example 8/4. similarity: linear (with alpha), box, cuboid-mean, centroid, representatives (with
count), token. topk: rank, shuffle-reveal, sort. gather: one-hot, scores. static: share of the prompt that is
kept. window: share of the prompt that votes on it. share: on lets every other layer take over its neighbour's
choice. dense: first layers that look at everything. layers: those with smaller budgets, as 3-5+7, or half for
the later half. part: what of the mean budget these get. rise: tokens over which the temperature rises to 2.
Every policy also takes shed: layers from which on a share of the prompt's rows is left, as 4:0.5+8:0.25, or
pyramidinfer, lazyllm, spatten, bolt, cipherprune; with /own at its end rows keep their rotary positions.";

/// The table, as wide as the terminal, or 100 characters wide if standard output is not a terminal.
fn table(listed: &[Listed]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(out::width().map_or(PAGE, |width| width.min(9999) as u16));
    table.set_header(["policy", "what it does", "options", "both parties learn"]);
    for Listed { name, about, options, shows, .. } in listed {
        let options: Vec<String> = options.iter().map(option).collect();
        table.add_row([name, about, options.join(" ").as_str(), shows]);
    }
    table
}

/// Width of a page in characters.
const PAGE: u16 = 100;

/// An option as it is written in a policy's text.
fn option(ListedOption { key, default, required }: &ListedOption) -> String {
    match default {
        // A default that is a description is not a value that can be typed.
        Some(value) if !value.contains(' ') => format!("{key}={value}"),
        _ if *required => format!("{key}=(required)"),
        _ => format!("{key}="),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_policies_says_where_each_ends() {
        let one = list("full").unwrap();
        assert_eq!(one.0, [PolicySpec::default()]);
        assert!(list("full,full").unwrap_err().contains("twice"));
        assert!(list("full,fll").unwrap_err().contains("unknown cache policy `fll`"));
        assert!(list("full;").unwrap_err().contains("unknown cache policy ``"));
        assert!(list("full,full:a=1").unwrap_err().contains("put a `;` between `full` and `full`"));
    }
}
