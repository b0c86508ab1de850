//! A sweep as a table.

use std::collections::BTreeMap;

use waggle_mpcache::PolicySpec;
use waggle_report::table::{Cell, Document, Shown, Table};
use waggle_report::{CONDITIONS, Price, Seconds, conditions};

use super::{Planned, Sweep};
use crate::cost::{Cost, OperationCost, Work, WorkCost};

impl Sweep {
    /// The table, with a caption that defines its numbers.
    pub fn document(&self, price: &Price) -> Document {
        let mut document = Document::default();
        document.caption(self.caption());
        document.table(if self.by_operation() { "operations" } else { "planned" }, self.table(price));
        document
    }

    /// A caption that defines the table's numbers.
    fn caption(&self) -> String {
        let any = |of: fn(&Planned) -> bool| self.cells.iter().any(of);
        let (tokens, passes) =
            (any(|cell| cell.choice.work == Work::Token), any(|cell| cell.choice.work == Work::Pass));
        let first = self.cells.iter().all(|cell| cell.choice.tokens == 1);
        let token = if first {
            "the first token after a prompt, alone"
        } else {
            "a decoded token, the mean of some after a prompt"
        };
        let mut caption = match (tokens, passes) {
            (true, true) => format!("Planned: {token}, or a pass over the prompt"),
            (false, true) => "Planned: a pass over the prompt".to_owned(),
            _ => format!("Planned: {token}"),
        };
        caption += ". Network s: of the link alone, without computation.";
        let links: BTreeMap<&str, _> =
            self.cells.iter().filter_map(|cell| Some((&*cell.choice.link, cell.choice.shape()?))).collect();
        let links = links.into_iter().filter(|(name, _)| !name.contains(','));
        let links: Vec<_> = links.map(|(name, shape)| format!("{name} has {}", shape.numbers())).collect();
        if !links.is_empty() {
            caption += &format!(" Of the links, {}.", links.join(", "));
        }
        if self.seconds() == Seconds::Predicted {
            caption += " Predicted s: with computation, estimated by a calibration.";
        }
        caption += " Total: the work and its preparation";
        caption += if any(|cell| cell.cost.prompt.is_some()) { "; the prompt is paid once." } else { "." };
        if any(|cell| cell.choice.texts > 1) {
            caption += " Several texts are read side by side: a step gives a token to each. Cache: what either party \
                        holds of keys and values after the last token, with their masks.";
        }
        if any(|cell| cell.random) {
            caption += " Random: bytes and flows are means.";
        }
        if self.by_operation() {
            caption += " Share: of the bytes of the total.";
        }
        caption
    }

    fn by_operation(&self) -> bool {
        self.cells.iter().any(|cell| !cell.operations.is_empty())
    }

    /// A row for each cell, or for each operation of each cell.
    pub fn table(&self, price: &Price) -> Table {
        let of = |cell: &Planned| match cell.operations.is_empty() {
            true => vec![whole(&self.cells, cell, price)],
            false => operations(&self.cells, cell, price),
        };
        let rows: Vec<Row> = self.cells.iter().flat_map(of).collect();
        let titles = rows.first().map_or(&[][..], |Row(row)| row);
        let names = titles.iter().take_while(|(title, ..)| title != "work").count();
        let mut table = Table::new(names, titles.iter().map(|(title, unit, _)| (title.clone(), *unit)));
        rows.into_iter().for_each(|Row(row)| table.add(row.into_iter().map(|(_, _, cell)| cell)));
        // Total flows are shown only if no cell prepares correlations. Otherwise readers see flows online.
        let some = self.cells.iter().any(|cell| cell.choice.phases.prepares());
        let table = table.showing(Shown::Asked, if some { &["total_flows"] } else { &[] });
        let asked: Vec<&str> = ASKED.split(' ').collect();
        table.showing(Shown::Setting, &SETTINGS).showing(Shown::Asked, &asked)
    }
}

const SETTINGS: [&str; 12] = [
    "model",
    "prompt_tokens",
    "texts",
    "public_tokens",
    "public_policy",
    "policy",
    "link",
    "phases",
    "work",
    "mean_of_tokens",
    "cores",
    "random",
];

/// Whether a cell has several texts.
fn side_by_side(cells: &[Planned]) -> bool {
    cells.iter().any(|cell| cell.choice.texts > 1)
}

/// Keys of the columns that are shown only on request. The caption states the link's numbers.
const ASKED: &str = "rate_mbit_s round_trip_ms prepared_flows prepared_network_seconds prepared_predicted_seconds \
    prompt_online_bytes prompt_prepared_bytes prompt_total_flows prompt_total_network_seconds \
    prompt_total_predicted_seconds set_up_bytes";

/// The first cell that has the same setting as `cell`. Cells with this setting are compared with it.
fn first<'a>(cells: &'a [Planned], cell: &'a Planned) -> &'a Planned {
    cells.iter().find(|other| other.choice.setting() == cell.choice.setting()).unwrap_or(cell)
}

/// A row: for each cell of the table its column's title, its column's unit, and the cell.
#[derive(Default)]
struct Row(Vec<(String, &'static str, Cell)>);

impl Row {
    fn add(&mut self, title: impl Into<String>, unit: &'static str, cell: Cell) {
        self.0.push((title.into(), unit, cell));
    }

    /// Begins the row of one of `cells` with the columns of choices and assumptions. Without public tokens or several
    /// texts in any cell no column speaks of them.
    fn of(cells: &[Planned], Planned { choice, random, .. }: &Planned, operation: Option<&str>) -> Self {
        let mut row = Row::default();
        row.add("model", "", Cell::text(choice.model.clone()));
        row.add("prompt", "tokens", Cell::count(choice.context as u64));
        if side_by_side(cells) {
            row.add("texts", "", Cell::count(choice.texts as u64));
        }
        if cells.iter().any(|cell| cell.choice.public_tokens > 0) {
            row.add("public", "tokens", Cell::count(choice.public_tokens as u64));
            let policy = choice.public_policy.as_ref().map(PolicySpec::to_string);
            row.add("public policy", "", Cell::maybe(policy, Cell::text));
        }
        row.add("policy", "", Cell::text(choice.policy.to_string()));
        row.add("link", "", Cell::text(choice.link.clone()));
        row.add("phases", "", Cell::text(choice.phases.name()));
        if let Some(operation) = operation {
            row.add("operation", "", Cell::text(operation));
        }
        row.add("work", "", Cell::text(choice.work.name()));
        let mean = Some(choice.tokens).filter(|_| choice.work == Work::Token);
        row.add("mean of", "tokens", Cell::maybe(mean, |tokens| Cell::count(tokens.into())));
        for ((title, unit), cell) in CONDITIONS.into_iter().zip(conditions(Some(&choice.link), Some(&choice.cores))) {
            row.add(title, unit, cell);
        }
        row.add("random", "", Cell::flag(*random));
        row
    }

    /// Adds a cell of the cost's bytes, rounded because they may be a mean.
    fn bytes(&mut self, title: &str, cost: Option<Cost>) {
        self.add(title, "bytes", Cell::maybe(cost, |cost| Cell::bytes(cost.bytes().round() as u64)));
    }

    fn flows(&mut self, title: &str, cost: Option<Cost>) {
        let cell = |cost: Cost| Cell::number(cost.flows, format!("{:.0}", cost.flows));
        self.add(format!("{title} flows"), "", Cell::maybe(cost, cell));
    }

    /// Adds cells of network seconds and of predicted seconds, whose titles begin with `title`.
    fn seconds(&mut self, title: &str, cost: Option<Cost>) {
        let network = Cell::maybe(cost, |cost| Cell::seconds(cost.network_seconds));
        self.add(format!("{title}, network"), "seconds", network);
        let predicted = Cell::maybe(cost.and_then(|cost| cost.predicted_seconds), Cell::seconds);
        self.add(format!("{title}, predicted"), "seconds", predicted);
    }

    /// Adds cells of one part of the work: bytes, flows, seconds, price and energy.
    fn part(&mut self, title: &str, cost: Option<Cost>, price: &Price) {
        self.bytes(title, cost);
        self.flows(title, cost);
        self.seconds(title, cost);
        let cents = cost.and_then(|cost| price.cents(cost.bytes(), cost.core_seconds)).filter(|_| price.is_given());
        self.add(title, "cents", Cell::maybe(cents, Cell::cents));
        let joules = cost.and_then(|cost| price.joules(cost.core_seconds)).filter(|_| price.watts.is_some());
        self.add(title, "joules", Cell::maybe(joules, Cell::joules));
    }

    /// Adds cells of the work online, of its preparation and of the total. In one phase, correlations are made on the
    /// spot, so only the total has values.
    fn work(&mut self, cell: &Planned, cost: &WorkCost, price: &Price) {
        let split = |part| Some(part).filter(|_| cell.choice.phases.prepares());
        self.part("online", split(cost.online), price);
        self.part("prepared", split(cost.prepared), price);
        self.part("total", Some(cost.total()), price);
    }

    /// Adds cells of the cost of the prompt before a token.
    fn prompt(&mut self, cell: &Planned, cost: &WorkCost) {
        let split = |part: Option<Cost>| part.filter(|_| cell.choice.phases.prepares());
        self.bytes("prompt, online", split(cost.prompt));
        self.bytes("prompt, prepared", split(cost.prepared_prompt));
        self.bytes("prompt, total", cost.whole_prompt());
        self.flows("prompt, total", cost.whole_prompt());
        self.seconds("prompt, total", cost.whole_prompt());
    }

    /// Adds a cell of the factor by which `mine` has fewer bytes than `other`. It is a dash if either has no bytes or
    /// `other` is absent.
    fn fewer(&mut self, mine: Cost, other: Option<Cost>) {
        let times = other.map(|other| other.bytes() / mine.bytes()).filter(|times| *times > 0.0 && times.is_finite());
        self.add("fewer bytes", "", Cell::maybe(times, Cell::times));
    }
}

/// A row for each operation of `cell`. Each operation is compared with the same operation in the first cell with the
/// same setting.
fn operations(cells: &[Planned], cell: &Planned, price: &Price) -> Vec<Row> {
    let compared = &first(cells, cell).operations;
    let all = cell.cost.total().bytes();
    let of = |OperationCost { operation, cost }: &OperationCost| {
        let other = compared.iter().find(|other| other.operation == *operation);
        let share = cost.total().bytes() / all;
        let mut row = Row::of(cells, cell, Some(operation));
        row.work(cell, cost, price);
        row.add("share", "", Cell::number(share, format!("{share:.3}")));
        row.fewer(cost.total(), other.map(|other| other.cost.total()));
        row.prompt(cell, cost);
        row
    };
    cell.operations.iter().map(of).collect()
}

/// The row of `cell` as a whole, compared with the first cell with the same setting.
fn whole(cells: &[Planned], cell: &Planned, price: &Price) -> Row {
    let clock = |cost: Cost| cost.predicted_seconds.unwrap_or(cost.network_seconds);
    let mine = cell.cost.total();
    // With a single policy there is nothing to compare.
    let several = cells.iter().any(|other| other.choice.policy != cell.choice.policy);
    let other = several.then(|| first(cells, cell).cost.total());
    let mut row = Row::of(cells, cell, None);
    row.work(cell, &cell.cost, price);
    row.fewer(mine, other);
    let faster = if mine.predicted_seconds.is_some() { "faster, predicted" } else { "faster, network" };
    row.add(faster, "", Cell::maybe(other, |other| Cell::times(clock(other) / clock(mine))));
    if side_by_side(cells) {
        row.add("cache", "bytes", Cell::bytes(cell.cache_bytes));
        let online = Some(cell.cost.online).filter(|_| cell.choice.phases.prepares());
        let rate = |cost: Cost| Cell::times(cell.choice.texts as f64 / clock(cost));
        row.add("tokens a second, online", "", Cell::maybe(online, rate));
        row.add("tokens a second, total", "", rate(mine));
    }
    row.prompt(cell, &cell.cost);
    row.bytes("set-up", Some(cell.cost.setup));
    row
}
