//! Tables that compare a paper's figures with this program's numbers for the same work.

use waggle_model::shape;
use waggle_mpcache::PolicySpec;
use waggle_net::LinkShape;
use waggle_report::table::{Cell, Document, Shown, Table};
use waggle_report::{CONDITIONS, Cost, Report, Seconds, conditions};

use crate::cost::{self, Phases, Work};
use crate::published::{Extent, Figure};

/// Number of decoded tokens over which a token's mean cost is taken.
pub const TOKENS: usize = 16;

/// Bytes, flows and seconds of a piece of work, or of a part of it.
#[derive(Clone, Copy, Default)]
pub struct Amounts {
    /// Bytes in both directions.
    pub bytes: f64,
    /// Flows: one-way messages that wait for each other.
    pub flows: f64,
    /// For each kind of seconds in [`KINDS`], the seconds, if they are known.
    pub seconds: [Option<f64>; KINDS.len()],
}

/// The kinds of seconds that tables show. A table that shows several kinds names each.
pub const KINDS: [Seconds; 3] = [Seconds::Measured, Seconds::Network, Seconds::Predicted];

impl Amounts {
    /// (`long` - `short`) / `n`: the mean cost of the `n` tokens by which the run of `long` exceeds that of `short`.
    pub fn mean(long: &Cost, short: &Cost, n: usize) -> Self {
        let mean = |long: f64, short: f64| (long - short) / n as f64;
        Amounts {
            bytes: mean(long.bytes() as f64, short.bytes() as f64),
            flows: mean(long.flows as f64, short.flows as f64),
            seconds: [Some(mean(long.seconds, short.seconds)), None, None],
        }
    }

    /// The sum of these amounts and `other`.
    pub fn plus(self, other: Amounts) -> Self {
        let [a, b] = [self, other];
        let sum = |i: usize| a.seconds[i].zip(b.seconds[i]).map(|(a, b)| a + b);
        Amounts { bytes: a.bytes + b.bytes, flows: a.flows + b.flows, seconds: [0, 1, 2].map(sum) }
    }

    fn of(&self, kind: Seconds) -> Option<f64> {
        KINDS.iter().position(|known| *known == kind).and_then(|i| self.seconds[i])
    }

    /// The seconds of the most reliable kind that is known, after that kind. Measured seconds come first, then
    /// predicted ones.
    fn clock(&self) -> Option<(Seconds, f64)> {
        let [measured, network, predicted] = [0, 1, 2].map(|i| self.seconds[i].map(|seconds| (KINDS[i], seconds)));
        measured.or(predicted).or(network)
    }
}

impl From<cost::Cost> for Amounts {
    fn from(cost: cost::Cost) -> Self {
        let seconds = [None, Some(cost.network_seconds), cost.predicted_seconds];
        Amounts { bytes: cost.bytes(), flows: cost.flows, seconds }
    }
}

/// The cost of one session of this program, without its set-up.
pub struct Ours {
    /// When correlations are made.
    pub phases: Phases,
    /// Tokens of the input.
    pub tokens: usize,
    /// The link between the parties.
    pub link: LinkShape,
    /// Cores of the parties.
    pub cores: Option<String>,
    /// The cost of the part that does not depend on the input.
    pub prepared: Amounts,
    /// The cost of the part that depends on the input.
    pub online: Amounts,
    /// Bytes of keys and base OTs, which are sent once in a session.
    pub set_up: f64,
}

/// The tables of a comparison.
pub struct Comparison {
    figures: Table,
    ablations: Table,
    sources: Table,
}

impl Default for Comparison {
    fn default() -> Self {
        Comparison {
            figures: Table::new(4, COLUMNS).showing(Shown::Setting, &SETTINGS).showing(Shown::Asked, &ASKED),
            ablations: Table::new(4, ABLATIONS.map(|title| (title, ""))),
            sources: Table::new(2, SOURCES.map(|title| (title, ""))),
        }
    }
}

impl Comparison {
    /// Adds `figure` and, below it, this program's numbers `ours`. The figure is in row `row` of its paper's table.
    /// If it is the figure of a policy, `full` are this program's numbers with the full cache.
    pub fn add(&mut self, row: usize, figure: &Figure, ours: &[Ours], full: &[Ours]) {
        match &figure.policy {
            None => compare(&mut self.figures, row, figure, ours),
            Some(policy) => self.ablation(row, figure, policy, ours, full),
        }
        self.sources.add(source(row, figure));
    }

    fn ablation(&mut self, row: usize, figure: &Figure, policy: &PolicySpec, ours: &[Ours], full: &[Ours]) {
        self.ablations.add(factors(row, &figure.system, &figure.what(), None, figure.faster, figure.fewer));
        for (full, pruned) in full.iter().zip(ours) {
            let [full, kept] = [full, pruned].map(|ours| ours.prepared.plus(ours.online));
            let faster = full.clock().zip(kept.clock()).map(|((_, full), (kind, kept))| (kind, full / kept));
            let what = format!("{policy}, {} after {}", figure.work.name(), pruned.tokens);
            let fewer = Some(full.bytes / kept.bytes);
            let (kind, faster) = faster.unzip();
            let mut cells = factors(row, "Waggle", &what, kind, faster, fewer);
            cells[3] = Cell::text(pruned.phases.name());
            self.ablations.add(cells);
        }
    }

    /// Adds the tables that have rows to `document`.
    pub fn show(self, document: &mut Document) {
        let Comparison { figures, ablations, sources } = self;
        for (title, table) in [("figures", figures), ("ablations", ablations), ("sources", sources)] {
            if !table.is_empty() {
                document.table(title, table);
            }
        }
    }
}

/// The columns of the table of figures, with their units. Columns of settings, which all rows may share, follow the
/// results. The last column is shown only on request.
const COLUMNS: [(&str, &str); 23] = [
    ("row", ""),
    ("system", ""),
    ("what", ""),
    ("phases", ""),
    ("prepared", "bytes"),
    ("online", "bytes"),
    ("online flows", ""),
    ("online, measured", "seconds"),
    ("online, network", "seconds"),
    ("online, predicted", "seconds"),
    ("total", "bytes"),
    ("total, measured", "seconds"),
    ("total, network", "seconds"),
    ("total, predicted", "seconds"),
    ("fewer bytes", ""),
    ("faster, measured", ""),
    ("length", "tokens"),
    ("mean of", "tokens"),
    ("link", ""),
    CONDITIONS[0],
    CONDITIONS[1],
    CONDITIONS[2],
    ("prepared, network", "seconds"),
];

/// Keys of the columns that state the assumptions of this program's numbers.
const SETTINGS: [&str; 6] = ["length_tokens", "mean_of_tokens", "link", "rate_mbit_s", "round_trip_ms", "cores"];

/// Keys of the columns that are shown only on request.
const ASKED: [&str; 1] = ["prepared_network_seconds"];

const ABLATIONS: [&str; 7] = ["row", "system", "what", "phases", "seconds are", "faster", "fewer bytes"];

const SOURCES: [&str; 9] = ["row", "system", "trust", "link", "hardware", "known", "cite", "source", "remark"];

/// Adds the row of `figure` and, below it, a row for each session of this program.
fn compare(table: &mut Table, row: usize, figure: &Figure, ours: &[Ours]) {
    let part = |part: Extent| (figure.phase == part).then_some(figure);
    let seconds = |of| Cell::maybe(part(of).and_then(|figure| figure.measured_seconds), published_seconds);
    let bytes = |of| Cell::maybe(part(of).and_then(|figure| figure.bytes), Cell::bytes);
    let mut theirs = vec![Cell::absent(); COLUMNS.len()];
    theirs[0] = Cell::count(row as u64);
    theirs[1] = Cell::text(figure.system.clone());
    theirs[2] = Cell::text(figure.what());
    theirs[4] = Cell::maybe(figure.prepared_bytes, Cell::bytes);
    theirs[5] = bytes(Extent::Online);
    theirs[6] = Cell::maybe(figure.flows, Cell::count);
    theirs[7] = seconds(Extent::Online);
    theirs[10] = bytes(Extent::All);
    theirs[11] = seconds(Extent::All);
    table.add(theirs);
    for own in ours {
        // In one phase, correlations are made on the spot, so their bytes and seconds are not known apart.
        let split = own.phases.prepares();
        let all = own.prepared.plus(own.online);
        // A figure of a part is compared with the same part.
        let timed = if figure.phase == Extent::All { Some(all) } else { split.then_some(own.online) };
        let sent = if figure.prepared_bytes.is_some() { Some(all) } else { timed };
        let theirs = figure.bytes.map(|bytes| (bytes + figure.prepared_bytes.unwrap_or(0)) as f64);
        let fewer = theirs.zip(sent).map(|(theirs, ours)| theirs / ours.bytes);
        let measured = figure.measured_seconds.zip(timed.and_then(|ours| ours.seconds[0]));
        let [prepared, online] = [own.prepared, own.online].map(|cost| split.then_some(cost));
        let seconds =
            |cost: Option<Amounts>| KINDS.map(|kind| Cell::maybe(cost.and_then(|cost| cost.of(kind)), Cell::seconds));
        let bytes = |cost: Option<Amounts>| Cell::maybe(cost, |cost| Cell::bytes(cost.bytes.round() as u64));
        let [_, network, _] = seconds(prepared);
        let mean = (figure.ours() == Work::Token).then_some(TOKENS as u64);
        let named = [
            Cell::count(row as u64),
            Cell::text("Waggle"),
            Cell::text(figure.what()),
            Cell::text(own.phases.name()),
            bytes(prepared),
            bytes(online),
            Cell::maybe(online, |cost| Cell::number(cost.flows, format!("{:.0}", cost.flows))),
        ];
        let compared = [
            Cell::maybe(fewer, Cell::times),
            Cell::maybe(measured.map(|(theirs, ours)| theirs / ours), Cell::times),
            Cell::count(own.tokens as u64),
            Cell::maybe(mean, Cell::count),
            Cell::text(own.link.to_string()),
        ];
        let conditions = conditions(Some(&own.link.to_string()), own.cores.as_deref());
        let cells = named.into_iter().chain(seconds(online)).chain([bytes(Some(all))]).chain(seconds(Some(all)));
        table.add(cells.chain(compared).chain(conditions).chain([network]));
    }
}

fn published_seconds(seconds: f64) -> Cell {
    Cell::number(seconds, seconds.to_string())
}

/// A row of the table of ablations.
fn factors(
    row: usize,
    system: &str,
    what: &str,
    kind: Option<Seconds>,
    faster: Option<f64>,
    fewer: Option<f64>,
) -> [Cell; 7] {
    [
        Cell::count(row as u64),
        Cell::text(system),
        Cell::text(what),
        Cell::absent(),
        Cell::text(kind.unwrap_or(Seconds::Measured).name()),
        Cell::maybe(faster, Cell::times),
        Cell::maybe(fewer, Cell::times),
    ]
}

fn source(row: usize, figure: &Figure) -> [Cell; 9] {
    let unknown = (figure.detail.is_none() && shape(&figure.model).is_none())
        .then(|| format!("Waggle has no shape {}", figure.model));
    let reason = figure.reason.as_ref().map(|page| format!("why ours differs: {page}"));
    let remarks = [figure.remarks()].into_iter().chain(unknown).chain(reason).filter(|remark| !remark.is_empty());
    [
        Cell::count(row as u64),
        Cell::text(figure.system.clone()),
        Cell::text(figure.trusted()),
        Cell::text(figure.link_name()),
        Cell::text(figure.hardware.clone()),
        Cell::text(figure.known.name()),
        Cell::cite(figure.cite.clone()),
        Cell::text(figure.source.clone()),
        Cell::text(remarks.collect::<Vec<_>>().join("; ")),
    ]
}

/// Bytes on the links of both parties to the helper, without those of set-up.
pub fn helper_bytes(report: &Report) -> u64 {
    let links = report.helper.unwrap_or_default();
    let links = [links.client, links.server].into_iter().flatten();
    links.map(|link| link.bytes_to_helper + link.bytes_from_helper - link.bytes_setup).sum()
}
