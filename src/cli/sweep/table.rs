//! A sweep as a table.

use report::table::{Cell, Document, Table};
use report::{Price, Seconds};

use super::record::{Choice, Planned, Sweep};
use crate::cli::mean_token::{Cost, Operation};

impl Sweep {
    /// The table, with what its numbers are.
    pub(in crate::cli) fn document(&self, price: &Price) -> Document {
        let mut document = Document::default();
        document.caption(self.caption());
        document.table(if self.by_operation() { "operations" } else { "planned" }, self.table(price));
        document
    }

    /// What its numbers are.
    pub(in crate::cli) fn caption(&self) -> String {
        let any = |of: fn(&Planned) -> bool| self.cells.iter().any(of);
        let mut tokens: Vec<u16> = self.cells.iter().map(|cell| cell.choice.tokens).collect();
        tokens.dedup();
        let mut caption = match tokens[..] {
            [1] => "The first token after a prompt, alone".to_owned(),
            [tokens] => format!("A decoded token, mean of {tokens} tokens after a prompt"),
            _ => "A decoded token".to_owned(),
        };
        caption += ". Network s: of the link alone, without computation.";
        if self.seconds() == Seconds::Predicted {
            caption += " Predicted s: with computation, estimated by a calibration.";
        }
        if any(|cell| cell.mean.prepared_prompt.is_some()) {
            caption += " Total: a token and its preparation; that of the prompt is paid once.";
        }
        if any(|cell| cell.random) {
            caption += " Random: bytes and flows are means.";
        }
        if self.by_operation() {
            caption += " Share: of the bytes of a token and its preparation.";
        }
        caption
    }

    fn by_operation(&self) -> bool {
        self.cells.iter().any(|cell| !cell.operations.is_empty())
    }

    /// A row for each cell, or for each operation of each cell.
    pub(in crate::cli) fn table(&self, price: &Price) -> Table {
        let predicted = self.seconds() == Seconds::Predicted;
        if self.by_operation() {
            operations(&self.cells, price, predicted)
        } else {
            whole(&self.cells, price, predicted)
        }
    }
}

/// The first cell with the setting of `cell`, which it is compared with.
fn first<'a>(cells: &'a [Planned], cell: &'a Planned) -> &'a Planned {
    cells.iter().find(|other| other.choice.setting() == cell.choice.setting()).unwrap_or(cell)
}

/// A row: titles, units and cells.
#[derive(Default)]
struct Row(Vec<(String, &'static str, Cell)>);

impl Row {
    fn add(&mut self, title: impl Into<String>, unit: &'static str, cell: Cell) {
        self.0.push((title.into(), unit, cell));
    }

    fn of(choice: &Choice) -> Self {
        let mut row = Row::default();
        row.add("model", "", Cell::text(choice.model.clone()));
        row.add("prompt", "tokens", Cell::count(choice.context as u64));
        row.add("policy", "", Cell::text(choice.policy.to_string()));
        row.add("link", "", Cell::text(choice.link.clone()));
        row.add("phases", "", Cell::text(choice.phases.name()));
        row
    }

    /// Bytes, which may be a mean.
    fn bytes(&mut self, title: &str, cost: Option<Cost>) {
        self.add(title, "bytes", Cell::maybe(cost, |cost| Cell::bytes(cost.bytes().round() as u64)));
    }

    fn flows(&mut self, cost: Cost) {
        self.add("online flows", "", Cell::number(cost.flows, format!("{:.0}", cost.flows)));
    }

    /// Both kinds of seconds, with the unit by which tables know them.
    fn seconds(&mut self, title: &str, cost: Option<Cost>, predicted: bool) {
        let network = Cell::maybe(cost, |cost| Cell::seconds(cost.network_seconds));
        self.add(format!("{title}, network"), "seconds", network);
        if predicted {
            let cell = Cell::maybe(cost.and_then(|cost| cost.predicted_seconds), Cell::seconds);
            self.add(format!("{title}, predicted"), "seconds", cell);
        }
    }

    /// Cents and joules, where they are wanted.
    fn priced(&mut self, title: &str, cost: Cost, price: &Price) {
        if price.is_given() {
            self.add(title, "cents", Cell::maybe(price.cents(cost.bytes(), cost.core_seconds), Cell::cents));
        }
        if price.watts.is_some() {
            self.add(title, "joules", Cell::maybe(price.joules(cost.core_seconds), Cell::joules));
        }
    }

    /// Adds the factor from `mine` to `other`; a dash where one of them is nothing.
    fn fewer(&mut self, mine: Cost, other: Option<Cost>) {
        let times = other.map(|other| other.bytes() / mine.bytes()).filter(|times| *times > 0.0 && times.is_finite());
        self.add("fewer bytes", "", Cell::maybe(times, Cell::times));
    }
}

/// The table of `rows`, of whose columns the first `names` say what a row is of.
fn tabulated(names: usize, rows: Vec<Row>) -> Table {
    let titles = rows.first().map_or(&[][..], |Row(row)| row);
    let mut table = Table::new(names, titles.iter().map(|(title, unit, _)| (title.clone(), *unit)));
    rows.into_iter().for_each(|Row(row)| table.add(row.into_iter().map(|(_, _, cell)| cell)));
    table
}

/// The operations of all cells, each compared with the same of the first policy of its setting.
fn operations(cells: &[Planned], price: &Price, predicted: bool) -> Table {
    let of = |cell| {
        let compared = &first(cells, cell).operations;
        let Planned { choice, mean: whole, operations, .. } = cell;
        operations.iter().map(move |Operation { operation, mean }| {
            let other = compared.iter().find(|other| other.operation == *operation);
            let share = mean.total().bytes() / whole.total().bytes();
            let mut row = Row::of(choice);
            row.add("operation", "", Cell::text(operation.clone()));
            row.bytes("online", Some(mean.online));
            row.flows(mean.online);
            row.seconds("online", Some(mean.online), predicted);
            row.priced("online", mean.online, price);
            row.bytes("prepared, token", Some(mean.prepared_token));
            row.priced("prepared, token", mean.prepared_token, price);
            row.bytes("total", Some(mean.total()));
            row.add("share", "", Cell::number(share, format!("{share:.3}")));
            row.fewer(mean.total(), other.map(|other| other.mean.total()));
            row.bytes("prompt, online", mean.prompt);
            row.bytes("prepared, prompt", mean.prepared_prompt);
            row
        })
    };
    tabulated(6, cells.iter().flat_map(of).collect())
}

/// All cells, each compared with the first policy of its setting.
fn whole(cells: &[Planned], price: &Price, predicted: bool) -> Table {
    let clock = |cost: Cost| cost.predicted_seconds.unwrap_or(cost.network_seconds);
    let of = |cell: &Planned| {
        let Planned { choice, random, mean, .. } = cell;
        let (mine, other) = (mean.total(), first(cells, cell).mean.total());
        let mut row = Row::of(choice);
        row.add("mean of", "tokens", Cell::count(choice.tokens.into()));
        row.add("random", "", Cell::flag(*random));
        row.bytes("online", Some(mean.online));
        row.flows(mean.online);
        row.seconds("online", Some(mean.online), predicted);
        row.priced("online", mean.online, price);
        for (title, cost) in [("prepared, token", mean.prepared_token), ("total", mine)] {
            row.bytes(title, Some(cost));
            row.seconds(title, Some(cost), predicted);
            row.priced(title, cost, price);
        }
        row.fewer(mine, Some(other));
        let faster = if predicted { "faster, predicted" } else { "faster, network" };
        row.add(faster, "", Cell::times(clock(other) / clock(mine)));
        row.bytes("prepared, prompt", mean.prepared_prompt);
        row.seconds("prepared, prompt", mean.prepared_prompt, predicted);
        row
    };
    tabulated(5, cells.iter().map(of).collect())
}
