//! `waggle reproduce`: what a paper publishes, and the same by this program.

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, CommandFactory};
use serde_json::Value;
use waggle_model::shape;
use waggle_mpcache::PolicySpec;
use waggle_net::LinkShape;
use waggle_protocols::Cores;
use waggle_report::table::{Cell, Document, Shown, Table};
use waggle_report::{CONDITIONS, Cost as Counted, Report, Seconds, bytes, conditions};

use super::Error;
use super::machine::{self, Calibrated, CalibrationArgs};
use super::options::FormatArgs;
use super::progress::passes;
use super::published::{self, Figure, Part, Published, published};
use super::settings::forget_variables;
use super::together::{self, Folder, clean_up_on_signals};
use super::work::{self, Phases, Sessions, Work};
use crate::child;
use waggle::Network;
use waggle::program::{Stated, public_model};
use waggle_files::{check_writable, load, write};

/// Sets what a paper publishes beside the same by this program, in one phase and in two, planned or really run.
/// Beside a system with a dealer, a plan of two phases with a helper (`waggle helper`) stands too.
///
/// Preparation stands in the table with everything else. Planned bytes and flows are exact. Planned seconds are those
/// of the network alone, and with a calibration (`waggle calibrate`) also predicted ones; neither is compared with
/// what a paper measured. With --run seconds are measured on this machine, which is not the paper's. A token is the
/// mean of sixteen after the prompt, as in `sweep --tokens 16`.
#[derive(Args, Debug)]
pub(super) struct ReproduceArgs {
    /// The paper, by its system; without one, all of them. A system that another paper reports stands there.
    #[arg(value_name = "PAPER", value_parser = paper())]
    paper: Option<String>,
    /// One row of it alone, by its number.
    #[arg(value_name = "ROW")]
    row: Option<usize>,
    /// Run both parties on this machine over the imitated link, with random weights of the model's shape in a
    /// temporary folder.
    #[arg(long)]
    run: bool,
    /// Run this model instead of random weights.
    #[arg(long, value_name = "DIR", requires_all = ["run", "row"])]
    model: Option<PathBuf>,
    /// Tokens of the input where the source names none.
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..))]
    tokens: u16,
    /// The network of ours where the source names none.
    #[arg(long, value_name = "LINK", default_value = "lan")]
    link: LinkShape,
    /// Plan products under encryption for parties with so many cores each, or for a client and a server with these
    /// [default: those of the calibration, or 40]. With fewer the plan computes less and sends more. One party's word
    /// is enough; two must be equal.
    #[arg(long, value_name = "N|CLIENT+SERVER", conflicts_with = "run")]
    cores: Option<Cores>,
    #[command(flatten)]
    calibration: CalibrationArgs,
    /// Write the works that the rows were read in as BibTeX, with the keys that the sources cite.
    #[arg(long, value_name = "FILE")]
    bib: Option<PathBuf>,
    #[command(flatten)]
    format: FormatArgs,
}

/// Papers, and with them the systems that they report.
fn paper() -> impl TypedValueParser<Value = String> {
    let values = published::papers().into_iter().map(|(paper, systems)| PossibleValue::new(paper).aliases(systems));
    PossibleValuesParser::new(values).map(|named| {
        let of = |(paper, systems): &(&str, Vec<String>)| *paper == named || systems.contains(&named);
        published::papers().into_iter().find(of).map_or(named.clone(), |(paper, _)| paper.to_owned())
    })
}

/// Tokens that a mean is taken over.
const TOKENS: usize = 16;

/// A paper's row as a session of ours.
struct Session<'a> {
    model: String,
    work: Work,
    tokens: usize,
    link: LinkShape,
    policy: &'a PolicySpec,
    phases: Phases,
}

/// Bytes, flows and seconds of work or of a part of it.
#[derive(Clone, Copy, Default)]
struct Cost {
    bytes: f64,
    flows: f64,
    /// Of each of [`KINDS`].
    seconds: [Option<f64>; KINDS.len()],
}

/// The kinds of seconds, none of which stands beside another without its name.
const KINDS: [Seconds; 3] = [Seconds::Measured, Seconds::Network, Seconds::Predicted];

impl Cost {
    /// `long` without `short`, over `n`, of runs.
    fn mean(long: &Counted, short: &Counted, n: usize) -> Self {
        let mean = |long: f64, short: f64| (long - short) / n as f64;
        Cost {
            bytes: mean(long.bytes() as f64, short.bytes() as f64),
            flows: mean(long.flows as f64, short.flows as f64),
            seconds: [Some(mean(long.seconds, short.seconds)), None, None],
        }
    }

    fn plus(self, other: Cost) -> Self {
        let [a, b] = [self, other];
        let sum = |i: usize| a.seconds[i].zip(b.seconds[i]).map(|(a, b)| a + b);
        Cost { bytes: a.bytes + b.bytes, flows: a.flows + b.flows, seconds: [0, 1, 2].map(sum) }
    }

    fn of(&self, kind: Seconds) -> Option<f64> {
        KINDS.iter().position(|known| *known == kind).and_then(|i| self.seconds[i])
    }

    /// The best seconds that are known, and their kind.
    fn clock(&self) -> Option<(Seconds, f64)> {
        let [measured, network, predicted] = [0, 1, 2].map(|i| self.seconds[i].map(|seconds| (KINDS[i], seconds)));
        measured.or(predicted).or(network)
    }
}

impl From<work::Cost> for Cost {
    fn from(cost: work::Cost) -> Self {
        let seconds = [None, Some(cost.network_seconds), cost.predicted_seconds];
        Cost { bytes: cost.bytes(), flows: cost.flows, seconds }
    }
}

/// What one session of ours costs, without its set-up.
struct Ours {
    phases: Phases,
    tokens: usize,
    link: LinkShape,
    cores: Option<String>,
    prepared: Cost,
    online: Cost,
    /// Bytes of keys and base OTs, once a session.
    set_up: f64,
}

pub(super) fn run(args: ReproduceArgs) -> Result<(), Error> {
    check_writable(args.bib.as_deref())?;
    if args.run {
        clean_up_on_signals()?;
    }
    let published @ Published { about, figures, .. } = published();
    let figures: Vec<&Figure> =
        figures.iter().filter(|figure| args.paper.as_ref().is_none_or(|paper| figure.paper == *paper)).collect();
    let rows = figures.len();
    if let (Some(row), Some(paper)) = (args.row.filter(|row| !(1..=rows).contains(row)), &args.paper) {
        return Err(Error::NoRow { paper: paper.clone(), row, rows });
    }
    let numbered = (1..).zip(figures).filter(|(row, _)| args.row.is_none_or(|wanted| wanted == *row));
    let numbered: Vec<(usize, &Figure)> = numbered.collect();
    let calibrated = args.calibration.open()?.ok();
    let bar = passes(numbered.len());
    let mut compared = Table::new(4, COLUMNS).showing(Shown::Setting, &SETTINGS).showing(Shown::Asked, &ASKED);
    let mut ablations = Table::new(4, ABLATIONS);
    let mut sources = Table::new(2, SOURCES);
    let mut set_up = 0.0f64;
    for &(row, figure) in &numbered {
        let policy = figure.policy.as_ref();
        let ours = args.sessions(figure, policy.unwrap_or(&PolicySpec::default()), calibrated.as_ref())?;
        set_up = ours.iter().map(|ours| ours.set_up).fold(set_up, f64::max);
        match &figure.policy {
            None => compare(&mut compared, row, figure, &ours),
            Some(policy) => {
                ablations.add(factors(row, &figure.system, &figure.what(), None, figure.faster, figure.fewer));
                let full = args.sessions(figure, &PolicySpec::default(), calibrated.as_ref())?;
                for (full, pruned) in full.iter().zip(&ours) {
                    let [full, kept] = [full, pruned].map(|ours| ours.prepared.plus(ours.online));
                    let faster = full.clock().zip(kept.clock()).map(|((_, full), (kind, kept))| (kind, full / kept));
                    let what = format!("{policy}, {} after {}", figure.work.name(), pruned.tokens);
                    let fewer = Some(full.bytes / kept.bytes);
                    let (kind, faster) = faster.unzip();
                    let mut cells = factors(row, "Waggle", &what, kind, faster, fewer);
                    cells[3] = Cell::text(pruned.phases.name());
                    ablations.add(cells);
                }
            }
        }
        sources.add(source(row, figure));
        bar.inc(1);
    }
    bar.finish_and_clear();
    if let Some(path) = &args.bib {
        write(path, published.bibliography(numbered.iter().map(|(_, figure)| *figure)).as_bytes())?;
    }
    let mut document = Document::default();
    let whose = args.paper.as_deref().unwrap_or("each paper");
    document.caption(format!("What {whose} publishes, and the same by Waggle. {about}"));
    for (title, table) in [("figures", compared), ("ablations", ablations), ("sources", sources)] {
        if !table.is_empty() {
            document.table(title, table);
        }
    }
    if !args.run && numbered.iter().any(|(_, figure)| figure.has_dealer()) {
        document.note(
            "*two, dealt*: a helper deals what contains no weight. The bytes of its two links count as prepared.",
        );
    }
    if numbered.iter().any(|(_, figure)| figure.has_three_parties()) {
        document.note(
            "*three parties*: the third one deals everything right before each pass. Its bytes count as online.",
        );
    }
    if args.run {
        document.note("A run is planned for the cores of this machine; with fewer it computes less and sends more.");
    }
    if let Some(Calibrated { line, .. }) = &calibrated {
        document.note(line);
    }
    if set_up > 0.0 {
        let keys = bytes(set_up.round() as u64);
        document.note(format!(
            "A session begins with keys and base OTs, and before a server's first with three parties go halves of its \
             weights: up to {keys}, which stand in no row."
        ));
    }
    args.format.show(document)
}

/// Those of figures. What readers learn only if they ask stands at the end, but for what all rows share.
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

/// Columns that say what ours assumes.
const SETTINGS: [&str; 6] = ["length_tokens", "mean_of_tokens", "link", "rate_mbit_s", "round_trip_ms", "cores"];

/// Columns that readers find in the sources.
const ASKED: [&str; 1] = ["prepared_network_seconds"];

const ABLATIONS: [(&str, &str); 7] = [
    ("row", ""),
    ("system", ""),
    ("what", ""),
    ("phases", ""),
    ("seconds are", ""),
    ("faster", ""),
    ("fewer bytes", ""),
];

const SOURCES: [(&str, &str); 9] = [
    ("row", ""),
    ("system", ""),
    ("trust", ""),
    ("link", ""),
    ("hardware", ""),
    ("known", ""),
    ("cite", ""),
    ("source", ""),
    ("remark", ""),
];

impl ReproduceArgs {
    /// Our sessions for `figure`, none where this program has no such shape.
    fn sessions(
        &self,
        figure: &Figure,
        policy: &PolicySpec,
        calibrated: Option<&Calibrated>,
    ) -> Result<Vec<Ours>, Error> {
        if shape(&figure.model).is_none() {
            return Ok(Vec::new());
        }
        let weights = self.run.then(|| self.weights(&figure.model)).transpose()?;
        let model = weights.as_ref().map_or(figure.model.clone(), |(_, dir)| dir.clone());
        let cores = self.cores.unwrap_or_else(|| machine::cores(calibrated));
        machine::note_others(calibrated, &[cores]);
        let of = |phases| {
            let tokens = figure.tokens.unwrap_or(self.tokens.into());
            let link = figure.link().unwrap_or(self.link);
            let session = Session { model: model.clone(), work: figure.ours(), tokens, link, policy, phases };
            if self.run { session.measured() } else { session.planned(cores, calibrated) }
        };
        let dealt = (!self.run && figure.has_dealer()).then_some(Phases::Dealt);
        let three = figure.has_three_parties().then_some(Phases::Three);
        [Phases::One, Phases::Two].into_iter().chain(dealt).chain(three).map(of).collect()
    }

    /// A folder with weights of the shape `model`, and what removes it afterwards.
    fn weights(&self, model: &str) -> Result<(Option<Folder>, String), Error> {
        if let Some(dir) = &self.model {
            return Ok((None, dir.display().to_string()));
        }
        let folder = Folder::new().map_err(|source| failed("synth", source))?;
        let dir = folder.path().join(model).display().to_string();
        child(&["synth", "--config", model, "--out", &dir])?;
        Ok((Some(folder), dir))
    }
}

impl Session<'_> {
    fn planned(&self, cores: Cores, calibrated: Option<&Calibrated>) -> Result<Ours, Error> {
        let Session { work, tokens, link, policy, phases, .. } = *self;
        let model = public_model(&self.model, policy, &Stated::default())?;
        let terms = phases.terms(policy, cores, Network::Imitated(link))?;
        let setting = calibrated.and_then(|calibrated| calibrated.machines.setting(cores, Some(link)));
        let cost = Sessions::plan(&model, &terms, Some(link), setting.as_ref(), work, tokens, TOKENS)?.whole();
        let (prepared, online, set_up) = (cost.prepared.into(), cost.online.into(), cost.setup.bytes());
        Ok(Ours { phases, tokens, link, cores: Some(cores.to_string()), prepared, online, set_up })
    }

    fn measured(&self) -> Result<Ours, Error> {
        let Session { work, tokens, link, phases, .. } = *self;
        let short = self.run(1)?;
        let (long, before, n) = match work {
            Work::Token => (self.run(1 + TOKENS)?, Some(&short), TOKENS),
            Work::Pass => (short.clone(), None, 1),
        };
        let nothing = Counted::default();
        let mean = |of: fn(&Report) -> &Counted| Cost::mean(of(&long), before.map_or(&nothing, of), n);
        let online = match work {
            Work::Token => mean(|report| &report.phases.decode.total),
            Work::Pass => mean(|report| &report.phases.prefill),
        };
        let dealt = helper_bytes(&long) - before.map_or(0, helper_bytes);
        let dealt = Cost { bytes: dealt as f64 / n as f64, seconds: [Some(0.0), None, None], ..Cost::default() };
        let cores = long.options.get("cores").and_then(Value::as_str).map(str::to_owned);
        let set_up = long.phases.setup.bytes() as f64;
        let (prepared, online) = (mean(|report| &report.phases.offline), online.plus(dealt));
        Ok(Ours { phases, tokens, link, cores, prepared, online, set_up })
    }

    /// The report of a run that generates so many tokens.
    fn run(&self, tokens: usize) -> Result<Report, Error> {
        let folder = Folder::new().map_err(|source| failed("demo", source))?;
        let record = folder.path().join("report.json");
        let path = record.display().to_string();
        // The words of a text decide nothing of what it costs.
        let ids = (0..self.tokens).map(|i| (1 + i % 1000).to_string()).collect::<Vec<_>>().join(",");
        let (tokens, policy, link) = (tokens.to_string(), self.policy.to_string(), self.link.to_string());
        let mut words = vec!["demo", "--model", &self.model, "--link", &link, "--prompt-ids", &ids];
        // Random weights spoil nothing.
        words.push("--skip-range-check");
        words.extend(["--tokens", &tokens, "--policy", &policy, "--timeout", "3600", "--json", &path]);
        words.extend(match self.phases {
            Phases::One => &[][..],
            Phases::Two | Phases::Dealt | Phases::DealtWeights => &["--preprocess"],
            Phases::Three => &["--parties", "3"],
        });
        child(&words)?;
        serde_json::from_slice(&load(&record)?).map_err(|source| failed("demo", source))
    }
}

/// Bytes of both parties' links to the helper, without those that set them up.
fn helper_bytes(report: &Report) -> u64 {
    let links = report.helper.unwrap_or_default();
    let links = [links.client, links.server].into_iter().flatten();
    links.map(|link| link.bytes_to_helper + link.bytes_from_helper - link.bytes_setup).sum()
}

/// Runs this program with `words`, and says what it said last if it fails.
fn child(words: &[&str]) -> Result<(), Error> {
    let mut command = child::command()?;
    command.args(words);
    forget_variables(&mut command, &super::Cli::command());
    let output = together::output(&mut command).map_err(Error::Spawn)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(failed(words.first().unwrap_or(&""), said.lines().last().unwrap_or_default()))
}

fn failed(command: &str, what: impl ToString) -> Error {
    Error::Compared { program: format!("waggle {command}"), what: what.to_string() }
}

/// Adds the row of a figure, and below it ours.
fn compare(table: &mut Table, row: usize, figure: &Figure, ours: &[Ours]) {
    let part = |part: Part| (figure.phase == part).then_some(figure);
    let seconds = |of| Cell::maybe(part(of).and_then(|figure| figure.measured_seconds), published_seconds);
    let bytes = |of| Cell::maybe(part(of).and_then(|figure| figure.bytes), Cell::bytes);
    let mut theirs = vec![Cell::absent(); COLUMNS.len()];
    theirs[0] = Cell::count(row as u64);
    theirs[1] = Cell::text(figure.system.clone());
    theirs[2] = Cell::text(figure.what());
    theirs[4] = Cell::maybe(figure.prepared_bytes, Cell::bytes);
    theirs[5] = bytes(Part::Online);
    theirs[6] = Cell::maybe(figure.flows, Cell::count);
    theirs[7] = seconds(Part::Online);
    theirs[10] = bytes(Part::All);
    theirs[11] = seconds(Part::All);
    table.add(theirs);
    for own in ours {
        // What one phase makes on the spot has no bytes and seconds of its own.
        let split = own.phases.prepares();
        let all = own.prepared.plus(own.online);
        // Each part is compared with the same part.
        let timed = if figure.phase == Part::All { Some(all) } else { split.then_some(own.online) };
        let sent = if figure.prepared_bytes.is_some() { Some(all) } else { timed };
        let theirs = figure.bytes.map(|bytes| (bytes + figure.prepared_bytes.unwrap_or(0)) as f64);
        let fewer = theirs.zip(sent).map(|(theirs, ours)| theirs / ours.bytes);
        let measured = figure.measured_seconds.zip(timed.and_then(|ours| ours.seconds[0]));
        let [prepared, online] = [own.prepared, own.online].map(|cost| split.then_some(cost));
        let seconds =
            |cost: Option<Cost>| KINDS.map(|kind| Cell::maybe(cost.and_then(|cost| cost.of(kind)), Cell::seconds));
        let bytes = |cost: Option<Cost>| Cell::maybe(cost, |cost| Cell::bytes(cost.bytes.round() as u64));
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
    let unknown = shape(&figure.model).is_none().then(|| format!("Waggle has no shape {}", figure.model));
    let reason = figure.reason.as_ref().map(|page| format!("why ours differs: {page}"));
    let remarks = [figure.remarks()].into_iter().chain(unknown).chain(reason).filter(|remark| !remark.is_empty());
    [
        Cell::count(row as u64),
        Cell::text(figure.system.clone()),
        Cell::text(figure.trust.clone()),
        Cell::text(figure.link_name()),
        Cell::text(figure.hardware.clone()),
        Cell::text(figure.known.name()),
        Cell::cite(figure.cite.clone()),
        Cell::text(figure.source.clone()),
        Cell::text(remarks.collect::<Vec<_>>().join("; ")),
    ]
}
