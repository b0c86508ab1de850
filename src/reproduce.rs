//! `waggle reproduce`: what a paper publishes, and the same by this program.

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, CommandFactory};
use serde_json::Value;
use waggle::program::{Stated, public_model};
use waggle::{Network, Terms};
use waggle_files::{check_writable, load, write};
use waggle_model::shape;
use waggle_mpcache::PolicySpec;
use waggle_net::LinkShape;
use waggle_protocols::Cores;
use waggle_report::table::Document;
use waggle_report::{Cost, Report, bytes};
use waggle_study::cost::{Phases, Piece, Sessions, Work};
use waggle_study::published::{Figure, Published, papers, published};
use waggle_study::reproduce::{Amounts, Comparison, Ours, TOKENS, helper_bytes};

use super::Error;
use super::machine::{self, Calibrated, CalibrationArgs};
use super::options::FormatArgs;
use super::progress::passes;
use super::settings::forget_variables;
use super::together::{self, Folder, clean_up_on_signals};
use crate::child;

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

/// A parser of the names of papers. It also takes the name of a system whose figures a paper reports, and returns the
/// paper's name.
fn paper() -> impl TypedValueParser<Value = String> {
    let values = papers().into_iter().map(|(paper, systems)| PossibleValue::new(paper).aliases(systems));
    PossibleValuesParser::new(values).map(|named| {
        let of = |(paper, systems): &(&str, Vec<String>)| *paper == named || systems.contains(&named);
        papers().into_iter().find(of).map_or(named.clone(), |(paper, _)| paper.to_owned())
    })
}

/// A paper's row, as a session of this program.
struct Session<'a> {
    model: String,
    work: Work,
    tokens: usize,
    link: LinkShape,
    policy: &'a PolicySpec,
    phases: Phases,
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
    let mut compared = Comparison::default();
    let mut set_up = 0.0f64;
    for &(row, figure) in &numbered {
        let policy = figure.policy.as_ref();
        let ours = args.sessions(figure, policy.unwrap_or(&PolicySpec::default()), calibrated.as_ref())?;
        set_up = ours.iter().map(|ours| ours.set_up).fold(set_up, f64::max);
        let full = match &figure.policy {
            Some(_) => args.sessions(figure, &PolicySpec::default(), calibrated.as_ref())?,
            None => Vec::new(),
        };
        compared.add(row, figure, &ours, &full);
        bar.inc(1);
    }
    bar.finish_and_clear();
    if let Some(path) = &args.bib {
        write(path, published.bibliography(numbered.iter().map(|(_, figure)| *figure)).as_bytes())?;
    }
    let mut document = Document::default();
    let whose = args.paper.as_deref().unwrap_or("each paper");
    document.caption(format!("What {whose} publishes, and the same by Waggle. {about}"));
    compared.show(&mut document);
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

impl ReproduceArgs {
    /// This program's sessions for `figure`; none if the program has no such shape, or plans no such part.
    fn sessions(
        &self,
        figure: &Figure,
        policy: &PolicySpec,
        calibrated: Option<&Calibrated>,
    ) -> Result<Vec<Ours>, Error> {
        if figure.detail.is_some() || shape(&figure.model).is_none() {
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

    /// A path with weights of the shape `model`, and the temporary folder that holds them, if there is one.
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
        let terms = Terms::in_phases(phases).policy(policy.clone()).cores(cores).over(Network::Imitated(link))?;
        let setting = calibrated.and_then(|calibrated| calibrated.machines.setting(cores, Some(link)));
        let piece = Piece { work, texts: 1, length: tokens, tokens: TOKENS };
        let cost = Sessions::plan(&model, &terms, Some(link), setting.as_ref(), piece)?.whole();
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
        let nothing = Cost::default();
        let mean = |of: fn(&Report) -> &Cost| Amounts::mean(of(&long), before.map_or(&nothing, of), n);
        let online = match work {
            Work::Token => mean(|report| &report.phases.decode.total),
            Work::Pass => mean(|report| &report.phases.prefill),
        };
        let dealt = helper_bytes(&long) - before.map_or(0, helper_bytes);
        let dealt =
            Amounts { bytes: dealt as f64 / n as f64, seconds: [Some(0.0), None, None], ..Amounts::default() };
        let cores = long.options.get("cores").and_then(Value::as_str).map(str::to_owned);
        let set_up = long.phases.setup.bytes() as f64;
        let (prepared, online) = (mean(|report| &report.phases.offline), online.plus(dealt));
        Ok(Ours { phases, tokens, link, cores, prepared, online, set_up })
    }

    /// Runs a session that generates `tokens` tokens, and returns its report.
    fn run(&self, tokens: usize) -> Result<Report, Error> {
        let folder = Folder::new().map_err(|source| failed("demo", source))?;
        let record = folder.path().join("report.json");
        let path = record.display().to_string();
        // The costs do not depend on the words of a text, so any ids will do.
        let ids = (0..self.tokens).map(|i| (1 + i % 1000).to_string()).collect::<Vec<_>>().join(",");
        let (tokens, policy, link) = (tokens.to_string(), self.policy.to_string(), self.link.to_string());
        let mut words = vec!["demo", "--model", &self.model, "--link", &link, "--prompt-ids", &ids];
        // With random weights, values out of range do no harm.
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

/// Runs this program with `words`. If it fails, the error has the last line that it wrote to standard error.
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
