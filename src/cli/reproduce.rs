//! `waggle reproduce`: what a paper publishes, and the same by this program.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, CommandFactory};
use model::shape;
use mpcache::PolicySpec;
use net::LinkShape;
use report::table::{Cell, Document, Table};
use report::{Cost as Counted, Report, Seconds, bytes};
use session::party::Silent;

use super::Error;
use super::options::FormatArgs;
use super::progress::passes;
use super::published::{self, Figure, Part, Published, Work, published};
use super::settings::forget_variables;
use super::together::{self, Folder, clean_up_on_signals};
use crate::disk::{check_writable, read, write};
use crate::terms::ASSUMED_CORES;
use crate::{Helper, HelperDeals, Network, Plan, Terms, worker};

/// Sets what a paper publishes beside the same by this program, in one phase and in two, planned or really run. Beside
/// a system with a dealer, a plan of two phases with a helper (`waggle helper`) stands too.
///
/// Preparation stands in the table with everything else. Planned bytes and flows are exact, and planned seconds are
/// those of the network alone, so that only bytes are compared. With --run seconds are measured on this machine,
/// which is not the paper's. A token is the mean of sixteen after the prompt: the difference of two sessions.
#[derive(Args, Debug)]
pub(super) struct ReproduceArgs {
    /// The paper, by its system; without one, all of them.
    #[arg(value_name = "PAPER", value_parser = PossibleValuesParser::new(published::papers()))]
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
    /// Write the works that the rows were read in as BibTeX, with the keys that the sources cite.
    #[arg(long, value_name = "FILE")]
    bib: Option<PathBuf>,
    #[command(flatten)]
    format: FormatArgs,
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
    form: Form,
}

/// How a session of ours prepares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// On the spot.
    OnePhase,
    /// First, between the two parties.
    TwoPhases,
    /// First, with a helper who deals what contains no weight.
    Dealt,
    /// Not at all: of three parties the third deals everything right before each pass.
    ThreeParties,
}

impl Form {
    fn name(self) -> &'static str {
        match self {
            Form::OnePhase => "one",
            Form::TwoPhases => "two",
            Form::Dealt => "two, dealt",
            Form::ThreeParties => "three parties",
        }
    }
}

/// Bytes, flows and seconds of work or of a part of it.
#[derive(Clone, Copy, Default)]
struct Cost {
    bytes: f64,
    flows: f64,
    seconds: f64,
}

impl Cost {
    /// `long` without `short`, over `n`.
    fn mean(long: &Counted, short: &Counted, n: usize) -> Self {
        let mean = |long: f64, short: f64| (long - short) / n as f64;
        Cost {
            bytes: mean(long.bytes() as f64, short.bytes() as f64),
            flows: mean(long.flows as f64, short.flows as f64),
            seconds: mean(long.seconds, short.seconds),
        }
    }

    fn plus(self, other: Cost) -> Self {
        Cost {
            bytes: self.bytes + other.bytes,
            flows: self.flows + other.flows,
            seconds: self.seconds + other.seconds,
        }
    }
}

/// What one session of ours costs, without its set-up.
struct Ours {
    form: Form,
    kind: Seconds,
    prepared: Cost,
    online: Cost,
    /// Bytes of keys and base OTs, once a session.
    set_up: u64,
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
    let bar = passes(numbered.len());
    let mut compared = Table::new(2, COLUMNS);
    let mut ablations = Table::new(2, ABLATIONS);
    let mut sources = Table::new(2, SOURCES);
    let mut set_up = None;
    for &(row, figure) in &numbered {
        let ours = args.ours(figure)?;
        set_up = set_up.max(ours.iter().map(|ours| ours.set_up).max());
        match &figure.policy {
            None => compare(&mut compared, row, figure, &ours),
            Some(policy) => {
                ablations.add(factors(row, &figure.system, &figure.what(), None, figure.faster, figure.fewer));
                for (full, pruned) in args.sessions(figure, &PolicySpec::default())?.iter().zip(&ours) {
                    let [full, kept] = [full, pruned].map(|ours| ours.prepared.plus(ours.online));
                    let (faster, fewer) = (full.seconds / kept.seconds, full.bytes / kept.bytes);
                    let what = match pruned.form {
                        Form::OnePhase => format!("{policy}, in one phase"),
                        Form::ThreeParties => format!("{policy}, three parties"),
                        form => format!("{policy}, in {} phases", form.name()),
                    };
                    ablations.add(factors(row, "Waggle", &what, Some(pruned.kind), Some(faster), Some(fewer)));
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
    if numbered.iter().any(|(_, figure)| figure.tokens.is_none()) {
        document.note(format!("Where the source names no length, Waggle has {} tokens.", args.tokens));
    }
    if numbered.iter().any(|(_, figure)| figure.link().is_none()) {
        document.note(format!("Where the source names no network, Waggle has {}.", args.link));
    }
    if !args.run && numbered.iter().any(|(_, figure)| figure.has_dealer()) {
        document.note(
            "*two, dealt*: a helper deals what contains no weight. The bytes of its two links count as prepared; seconds \
             are those between the parties.",
        );
    }
    if numbered.iter().any(|(_, figure)| figure.has_three_parties()) {
        let planned = if args.run { "" } else { "; planned seconds leave them out" };
        document.note(format!(
            "*three parties*: the third one deals everything right before each pass. Its bytes count as online{planned}."
        ));
    }
    if args.run {
        document.note("A run is planned for the cores of this machine; with fewer it computes less and sends more.");
    } else {
        document.note(format!("Plans are for {ASSUMED_CORES} cores of each party."));
    }
    if let Some(keys) = set_up {
        let keys = bytes(keys);
        document.note(format!("A session begins with keys and base OTs of up to {keys}, which stand in no row."));
    }
    args.format.show(document)
}

const COLUMNS: [(&str, &str); 14] = [
    ("row", ""),
    ("system", ""),
    ("what", ""),
    ("phases", ""),
    ("seconds are", ""),
    ("prepared", "seconds"),
    ("prepared", "bytes"),
    ("online", "seconds"),
    ("online", "bytes"),
    ("online flows", ""),
    ("all", "seconds"),
    ("all", "bytes"),
    ("fewer bytes", ""),
    ("faster", ""),
];

const ABLATIONS: [(&str, &str); 6] =
    [("row", ""), ("system", ""), ("what", ""), ("seconds are", ""), ("faster", ""), ("fewer bytes", "")];

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
    fn ours(&self, figure: &Figure) -> Result<Vec<Ours>, Error> {
        self.sessions(figure, figure.policy.as_ref().unwrap_or(&PolicySpec::default()))
    }

    fn sessions(&self, figure: &Figure, policy: &PolicySpec) -> Result<Vec<Ours>, Error> {
        if shape(&figure.model).is_none() {
            return Ok(Vec::new());
        }
        let weights = self.run.then(|| self.weights(&figure.model)).transpose()?;
        let model = weights.as_ref().map_or(figure.model.clone(), |(_, dir)| dir.clone());
        let of = |form| {
            let tokens = figure.tokens.unwrap_or(self.tokens.into());
            let link = figure.link().unwrap_or(self.link);
            let session = Session { model: model.clone(), work: figure.work, tokens, link, policy, form };
            session.cost(if self.run { Session::measured } else { Session::planned })
        };
        let dealt = (!self.run && figure.has_dealer()).then_some(Form::Dealt);
        let three = figure.has_three_parties().then_some(Form::ThreeParties);
        [Form::OnePhase, Form::TwoPhases].into_iter().chain(dealt).chain(three).map(of).collect()
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
    fn cost(&self, report: impl Fn(&Self, usize) -> Result<Report, Error>) -> Result<Ours, Error> {
        let short = report(self, 1)?;
        let (long, before, n) = match self.work {
            Work::Token => (report(self, 1 + TOKENS)?, Some(&short), TOKENS),
            Work::Pass => (short.clone(), None, 1),
        };
        let nothing = Counted::default();
        let mean = |of: fn(&Report) -> &Counted| Cost::mean(of(&long), before.map_or(&nothing, of), n);
        let prompt = mean(|report| &report.phases.prefill);
        let tokens = mean(|report| &report.phases.decode.total);
        let online = if self.work == Work::Token { tokens } else { prompt };
        let dealt = helper_bytes(&long) - before.map_or(0, helper_bytes);
        let dealt = Cost { bytes: dealt as f64 / n as f64, ..Cost::default() };
        let offline = mean(|report| &report.phases.offline);
        let (prepared, online) = match self.form {
            Form::ThreeParties => (offline, online.plus(dealt)),
            _ => (offline.plus(dealt), online),
        };
        Ok(Ours { form: self.form, kind: long.seconds(), prepared, online, set_up: long.phases.setup.bytes() })
    }

    fn planned(&self, tokens: usize) -> Result<Report, Error> {
        let terms = Terms::default().policy(self.policy.clone()).preprocess(self.form != Form::OnePhase);
        let deals = match self.form {
            Form::OnePhase | Form::TwoPhases => None,
            Form::Dealt => Some(HelperDeals::Words),
            Form::ThreeParties => Some(HelperDeals::Passes),
        };
        let terms = terms.helper(deals.map(Helper::assumed));
        let plan = Plan::of(&*self.model).prompt(self.tokens).tokens(tokens).terms(terms);
        Ok(plan.network(Network::Imitated(self.link)).run(&mut Silent)?)
    }

    fn measured(&self, tokens: usize) -> Result<Report, Error> {
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
        words.extend(match self.form {
            Form::OnePhase => &[][..],
            Form::TwoPhases | Form::Dealt => &["--preprocess"],
            Form::ThreeParties => &["--parties", "3"],
        });
        child(&words)?;
        serde_json::from_slice(&read(&record)?).map_err(|source| failed("demo", source))
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
    let mut command = worker::command()?;
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
    table.add([
        Cell::count(row as u64),
        Cell::text(figure.system.clone()),
        Cell::text(figure.what()),
        Cell::absent(),
        Cell::text(Seconds::Measured.name()),
        Cell::absent(),
        Cell::maybe(figure.prepared_bytes, Cell::bytes),
        seconds(Part::Online),
        bytes(Part::Online),
        Cell::maybe(figure.flows, Cell::count),
        seconds(Part::All),
        bytes(Part::All),
        Cell::absent(),
        Cell::absent(),
    ]);
    for own in ours {
        // What one phase makes on the spot has no seconds of its own.
        let split = own.form != Form::OnePhase;
        let all = own.prepared.plus(own.online);
        // Each part is compared with the same part.
        let timed = if figure.phase == Part::All { Some(all) } else { split.then_some(own.online) };
        let sent = if figure.prepared_bytes.is_some() { Some(all) } else { timed };
        let theirs = figure.bytes.map(|bytes| (bytes + figure.prepared_bytes.unwrap_or(0)) as f64);
        let fewer = theirs.zip(sent).map(|(theirs, ours)| theirs / ours.bytes);
        let measured = figure.measured_seconds.filter(|_| own.kind == Seconds::Measured).zip(timed);
        let [prepared, online] = [own.prepared, own.online].map(|cost| split.then_some(cost));
        let seconds = |cost: Cost| Cell::seconds(cost.seconds);
        let bytes = |cost: Cost| Cell::bytes(cost.bytes.round() as u64);
        table.add([
            Cell::count(row as u64),
            Cell::text("Waggle"),
            Cell::text(figure.what()),
            Cell::text(own.form.name()),
            Cell::text(own.kind.name()),
            Cell::maybe(prepared, seconds),
            Cell::maybe(prepared, bytes),
            Cell::maybe(online, seconds),
            Cell::maybe(online, bytes),
            Cell::maybe(online, |cost| Cell::number(cost.flows, format!("{:.0}", cost.flows))),
            seconds(all),
            bytes(all),
            Cell::maybe(fewer, Cell::times),
            Cell::maybe(measured.map(|(theirs, ours)| theirs / ours.seconds), Cell::times),
        ]);
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
) -> [Cell; 6] {
    [
        Cell::count(row as u64),
        Cell::text(system),
        Cell::text(what),
        Cell::text(kind.unwrap_or(Seconds::Measured).name()),
        Cell::maybe(faster, Cell::times),
        Cell::maybe(fewer, Cell::times),
    ]
}

fn source(row: usize, figure: &Figure) -> [Cell; 9] {
    let unknown = shape(&figure.model).is_none().then(|| format!("Waggle has no shape {}", figure.model));
    let remarks = [figure.remarks()].into_iter().chain(unknown).filter(|remark| !remark.is_empty());
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
