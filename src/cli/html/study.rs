//! The page of a study.

use serde_json::Value;
use study::eval::{Evaluation, METRICS};

use super::entries;
use super::page::{Block, Page, Rows, Section};
use crate::cli::plot;

/// The plot of lengths and depths.
const GRID: &str = "grid";

pub(super) fn page(name: &str, study: &Evaluation, json: &Value) -> Page {
    let scenes = plot::of_study(study);
    let drawings = |pairs: bool| {
        let wanted = move |name: &str| name.contains('-') == pairs && name != GRID;
        scenes.iter().filter(move |(name, _)| wanted(name)).map(|(_, scene)| Block::drawing(scene))
    };
    let grid = scenes.iter().find(|(name, _)| name == GRID);
    let intervals = study.rows.iter().any(|row| !row.intervals.is_empty());
    let spread = if intervals {
        " Behind ± stands the larger half of the 95 % confidence interval over the sequences (jackknife, Student's t)."
    } else {
        ""
    };
    let columns = METRICS.iter().map(|metric| format!("{}: {}", metric.short, metric.title)).collect::<Vec<_>>();
    let text = format!("Every policy at every budget, beside the full cache.{spread}");
    let sections = [
        Section::new(
            "Accuracy",
            [Block::Text(text), Block::Table(Rows::from(&study.table()))].into_iter().chain([Block::Folded {
                name: "What the columns are".into(),
                table: Rows {
                    head: vec!["column".into(), "metric".into()],
                    rows: columns
                        .iter()
                        .filter_map(|line| line.split_once(": "))
                        .map(|(short, title)| vec![short.to_owned(), title.to_owned()])
                        .collect(),
                },
            }]),
        ),
        Section::new("Lengths and depths", grid.map(|(_, scene)| Block::drawing(scene))),
        Section::new("Against what is spent", drawings(true)),
        Section::new("Against the share attended to", drawings(false)),
        Section::new("Sequences", sequences(study)),
        Section::new("Generated answers", generated(study)),
        Section::new("What ran", [Block::Pairs(ran(study, json))]),
    ];
    let task = study.options.get("task").and_then(Value::as_str).unwrap_or("text");
    let best = study.rows.first().map(|full| format!("{:.3}", full.metrics.perplexity)).unwrap_or_default();
    let right = study.rows.first().map(|full| format!("{:.1} %", full.metrics.accuracy * 100.0)).unwrap_or_default();
    Page {
        kind: "Waggle: accuracy of cache policies",
        title: format!("{} · {task}", study.model.name),
        lead: name.to_owned(),
        cards: vec![
            ("policies and budgets".into(), (study.rows.len().saturating_sub(1)).to_string()),
            ("sequences".into(), study.sequences.to_string()),
            ("scored positions".into(), study.scored.to_string()),
            ("perplexity, full cache".into(), best),
            ("right tokens, full cache".into(), right),
        ],
        sections: sections.into_iter().flatten().collect(),
        footer: format!("Schema {} of studies.", study.version),
    }
}

/// Perplexity ratio and right tokens of every sequence under every policy.
fn sequences(study: &Evaluation) -> Option<Block> {
    if study.of_sequences.is_empty() {
        return None;
    }
    let head = ["policy", "budget", "sequence", "tokens", "scored", "ppl", "ratio", "right", "KL"];
    let rows = study.rows.iter().flat_map(|row| {
        row.by_sequence.iter().zip(&study.of_sequences).enumerate().map(|(i, (metrics, sequence))| {
            let tags: Vec<String> = sequence.tags.iter().map(|(name, value)| format!("{name} {value}")).collect();
            let name = if tags.is_empty() { (i + 1).to_string() } else { format!("{} ({})", i + 1, tags.join(", ")) };
            vec![
                row.label.clone(),
                row.budget.map_or_else(|| "–".into(), |budget| budget.to_string()),
                name,
                sequence.tokens.to_string(),
                sequence.scored.to_string(),
                format!("{:.3}", metrics.perplexity),
                format!("{:.3}", metrics.perplexity_ratio),
                format!("{:.3}", metrics.accuracy),
                format!("{:.4}", metrics.kl),
            ]
        })
    });
    let table = Rows { head: head.map(String::from).to_vec(), rows: rows.collect() };
    Some(Block::Folded { name: "The numbers of every sequence".into(), table })
}

/// What each policy answered.
fn generated(study: &Evaluation) -> Option<Block> {
    let rows: Vec<Vec<String>> = study
        .rows
        .iter()
        .flat_map(|row| {
            let budget = row.budget.map_or_else(|| "–".into(), |budget| budget.to_string());
            row.generated
                .iter()
                .enumerate()
                .map(move |(i, text)| vec![row.label.clone(), budget.clone(), (i + 1).to_string(), text.clone()])
        })
        .collect();
    let head = ["policy", "budget", "sequence", "answer"].map(String::from).to_vec();
    (!rows.is_empty()).then(|| Block::Folded { name: "Every answer".into(), table: Rows { head, rows } })
}

fn ran(study: &Evaluation, json: &Value) -> Vec<(String, String)> {
    let mut pairs = vec![
        ("model".to_owned(), study.model.name.clone()),
        ("parameters".to_owned(), study.model.parameters.to_string()),
    ];
    pairs.extend(entries(json.get("options")));
    pairs.extend(entries(json.get("provenance")));
    pairs
}
