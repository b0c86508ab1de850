//! The findings as Markdown tables.

use std::collections::BTreeMap;
use std::fmt::Write;

use net::Shape;
use report::provenance::Provenance;

use super::cost::{Cost, Split};
use super::findings::{Findings, Paper, Rest, Row, Setting};
use crate::markdown::{Table, megabytes, ratio, right_align, table};

/// Steps listed for each configuration.
const LISTED: usize = 5;

/// The whole report.
pub(crate) fn markdown(findings: &Findings) -> String {
    let mut out = String::from("# Ablation of MPCache on the shapes of GPT-2 small\n\n");
    for Provenance { command, .. } in &findings.runs {
        let _ = writeln!(out, "    {command}");
    }
    out.push('\n');
    let Setting { budget, keep, link, preprocess } = &findings.setting;
    let Rest { planned: rest, measured: measured_rest } = &findings.rest;
    let mut lengths: Vec<usize> = findings.rows.iter().map(|row| row.attention.cache).collect();
    lengths.dedup();
    let _ = writeln!(
        out,
        "Per decoded token, 12 layers; a step looks at {budget} of all tokens, look-once eviction keeps {keep} of the \
         prompt. MB both ways, correlations (offline) included and also told apart. \"less\" and \"faster\" are against \
         `full`. Network seconds are of bytes and flows alone, without computation, on the slow side."
    );
    if measured_rest.is_some() {
        let _ = writeln!(
            out,
            "Seconds are measured over `{link}`, both parties on one machine with {} cores, correlations made on the \
             spot; the pair of layers that is run counts six times. Bytes are the plan's, which equals both ledgers of the \
             measured steps to the byte, but where quickselect makes traffic random (*): there they are the mean.",
            findings.runs.first().map_or(1, |run| run.cores)
        );
    } else {
        let _ = writeln!(out, "Planned on shapes for `{link}`: nothing was run. (*) The mean of random traffic.");
    }
    let _ = writeln!(
        out,
        "\n{}",
        if *preprocess {
            "Two phases: online is what is left when all correlations are there; offline is what a step adds to their \
             preparation. Network seconds and the shares of operations are of the online phase."
        } else {
            "The last column is what figure 11 of the paper reports for its own implementation against its own full cache."
        }
    );
    for &cache in &lengths {
        let rows: Vec<&Row> = findings.rows.iter().filter(|row| row.attention.cache == cache).collect();
        let (steps, once) = if *preprocess {
            (two_phase_steps(&rows), two_phase_once(&rows))
        } else {
            (steps(findings, &rows), once(&rows))
        };
        let _ = writeln!(out, "\n## {cache} tokens in the cache\n\n{steps}");
        let _ = writeln!(out, "\nOnce a prompt{}:\n\n{once}", if *preprocess { ", online" } else { "" });
        let _ = writeln!(out, "\nWhere the bytes of attention go:\n\n{}", largest(&rows, *preprocess));
    }
    let _ = writeln!(out, "\n## Configurations\n\n{}", named(findings, lengths.first().copied().unwrap_or(0)));
    if *preprocess {
        return out;
    }
    let rest = rest.total();
    let _ = write!(
        out,
        "\nThe rest of the step (embedding, norms, matrices, GELU, head, logits opened) takes {} MB, {:.0} flows",
        megabytes(rest.bytes()),
        rest.flows
    );
    if let Some(rest) = measured_rest {
        let (seconds, error) = (rest.step.total().seconds, rest.logit_error);
        let _ = write!(out, ", {seconds:.2} s; its logits are within {error:.4} of f32");
    }
    out.push_str(".\n");
    out
}

/// Attention and whole steps.
fn steps(findings: &Findings, rows: &[&Row]) -> Table {
    let measured = rows.iter().any(|row| row.measured.is_some());
    let mut header =
        vec!["configuration", "attention MB", "offline", "flows", "less", "network s, lan", "network s, wan"];
    if measured {
        header.extend(["measured s", "faster"]);
    }
    header.extend(["step MB", "less"]);
    if measured {
        header.extend(["measured s", "faster"]);
    }
    header.push("paper: faster / less");
    let mut table = table(&header);
    let Some(full) = rows.iter().find(|row| row.attention.name == "full") else { return table };
    let with_rest = |split: Split| split.total() + findings.rest.planned.total();
    let seconds = |row: &Row| row.measured.as_ref().map(|m| m.step.total().seconds);
    let rest_seconds = findings.rest.measured.map(|rest| rest.step.total().seconds);
    for row in rows {
        let cost = row.planned.total();
        let mut cells = vec![
            named_row(row),
            megabytes(cost.bytes()),
            megabytes(row.planned.offline.bytes()),
            format!("{:.0}", cost.flows),
            ratio(full.planned.total().bytes(), cost.bytes()),
            network(cost, "lan"),
            network(cost, "wan"),
        ];
        let timed = |mine: Option<f64>, of_full: Option<f64>| match (mine, of_full) {
            (Some(mine), Some(of_full)) => [format!("{mine:.2}"), ratio(of_full, mine)],
            _ => [String::new(), String::new()],
        };
        if measured {
            cells.extend(timed(seconds(row), seconds(full)));
        }
        cells.push(megabytes(with_rest(row.planned).bytes()));
        cells.push(ratio(with_rest(full.planned).bytes(), with_rest(row.planned).bytes()));
        if measured {
            let whole = |row| Some(seconds(row)? + rest_seconds?);
            cells.extend(timed(whole(row), whole(full)));
        }
        cells.push(row.paper.map_or_else(String::new, |Paper { faster, less }| format!("{faster}x / {less}x")));
        table.add_row(cells);
    }
    right_align(table)
}

/// Attention in two phases.
fn two_phase_steps(rows: &[&Row]) -> Table {
    let mut table = table(&[
        "configuration",
        "online MB",
        "less",
        "flows",
        "network s, lan",
        "network s, wan",
        "offline MB",
        "less",
        "both MB",
        "less",
    ]);
    let Some(full) = rows.iter().find(|row| row.attention.name == "full") else { return table };
    for row in rows {
        let Split { online, offline } = row.planned;
        let mut cells = vec![named_row(row)];
        cells.extend([megabytes(online.bytes()), ratio(full.planned.online.bytes(), online.bytes())]);
        cells.extend([format!("{:.0}", online.flows), network(online, "lan"), network(online, "wan")]);
        cells.extend([megabytes(offline.bytes()), ratio(full.planned.offline.bytes(), offline.bytes())]);
        let both = row.planned.total().bytes();
        cells.extend([megabytes(both), ratio(full.planned.total().bytes(), both)]);
        table.add_row(cells);
    }
    right_align(table)
}

/// Eviction and digests in two phases: online, since correlations of the prompt are not told apart by operation.
fn two_phase_once(rows: &[&Row]) -> Table {
    let mut table = table(&["configuration", "eviction MB", "flows", "first digests MB", "flows"]);
    for row in rows {
        let (eviction, digests) = (row.eviction.online, row.digests.online);
        if eviction.bytes() + digests.bytes() == 0.0 {
            continue;
        }
        let cost = |cost: Cost| [megabytes(cost.bytes()), format!("{:.0}", cost.flows)];
        table.add_row([vec![row.attention.name.clone()], cost(eviction).to_vec(), cost(digests).to_vec()].concat());
    }
    right_align(table)
}

/// Its name, with a mark where the traffic is random.
fn named_row(row: &Row) -> String {
    format!("{}{}", row.attention.name, if row.random() { " *" } else { "" })
}

/// Seconds on the network called `name`.
fn network(cost: Cost, name: &str) -> String {
    let shape = Shape::PRESETS.iter().find(|(n, _)| *n == name).map(|(_, shape)| *shape);
    shape.map_or_else(String::new, |shape| format!("{:.2}", cost.network_seconds(shape)))
}

/// Eviction and digests, and after how many tokens they have paid.
fn once(rows: &[&Row]) -> Table {
    let mut table = table(&[
        "configuration",
        "eviction MB",
        "flows",
        "first digests MB",
        "flows",
        "bytes paid back after tokens",
    ]);
    let Some(full) = rows.iter().find(|row| row.attention.name == "full") else { return table };
    for row in rows {
        let (eviction, digests) = (row.eviction.total(), row.digests.total());
        if eviction.bytes() + digests.bytes() == 0.0 {
            continue;
        }
        let saved = full.planned.total().bytes() - row.planned.total().bytes();
        let tokens = (eviction.bytes() + digests.bytes()) / saved;
        table.add_row(vec![
            row.attention.name.clone(),
            megabytes(eviction.bytes()),
            format!("{:.0}", eviction.flows),
            megabytes(digests.bytes()),
            format!("{:.0}", digests.flows),
            if saved > 0.0 { format!("{:.0}", tokens.ceil()) } else { "never".into() },
        ]);
    }
    right_align(table)
}

/// Where the bytes of attention go: the policy's own steps.
fn largest(rows: &[&Row], two_phases: bool) -> Table {
    let mut table = table(&["configuration", "largest steps: MB (share), flows"]);
    for row in rows {
        let mut steps: BTreeMap<&str, Split> = BTreeMap::new();
        for operation in &row.operations {
            let step = operation.path.split('/').next().unwrap_or_default();
            let sum = steps.entry(step).or_default();
            *sum = *sum + operation.step;
        }
        // In two phases correlations are prepared apart from the operations.
        let counted = |split: Split| if two_phases { split.online } else { split.total() };
        let mut steps: Vec<_> = steps.into_iter().map(|(step, split)| (step, counted(split))).collect();
        steps.sort_by(|a, b| b.1.bytes().total_cmp(&a.1.bytes()));
        let share = |bytes: f64| 100.0 * bytes / counted(row.planned).bytes();
        let listed: Vec<String> = steps
            .into_iter()
            .take(LISTED)
            .map(|(step, c)| format!("{step} {} ({:.0} %), {:.0}", megabytes(c.bytes()), share(c.bytes()), c.flows))
            .collect();
        table.add_row(vec![row.attention.name.clone(), listed.join("; ")]);
    }
    table
}

/// What the names stand for, and how the answers compared.
fn named(findings: &Findings, cache: usize) -> Table {
    let mut table = table(&["configuration", "policy", "answers: error / other choice"]);
    for row in findings.rows.iter().filter(|row| row.attention.cache == cache) {
        // The first length that was run tells.
        let run = findings
            .rows
            .iter()
            .filter(|other| other.attention.name == row.attention.name)
            .find_map(|row| row.measured.as_ref());
        let check = run.map_or_else(
            || "not run".into(),
            |m| format!("{:.4} / {:.1} % of heads", m.check.same, 100.0 * m.check.tied),
        );
        table.add_row(vec![row.attention.name.clone(), format!("`{}`", row.attention.policy), check]);
    }
    table
}
