//! `waggle sweep`: what a decoded token costs, planned over models, contexts, policies, links and phases.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use model::party::{ClientOptions, Outcome, PublicModel, Request, Silent, Terms, plan, plan_step};
use model::provenance::Provenance;
use model::table::{Cell, Document, Table};
use model::{Lengths, ModelSpec, shape};
use mpcache::PolicySpec;
use net::{Phase, Shape, Traffic};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::eval::{Policies, policies};
use super::files::{check_writable, public_model, read, unweighted, write_json};
use super::machine::provenance;
use super::options::FormatArgs;
use super::progress::passes;
use super::published::{self, Figure, Published};
use super::{Error, out};

/// Version of the record's schema; raised when a field changes its meaning or goes.
pub(super) const SWEEP_VERSION: u32 = 1;

/// Plans what a decoded token costs, for every model, context, policy, link and number of phases, and shows beside it
/// what other systems publish.
///
/// Bytes and flows are exact; seconds are those of the link alone, without computation, which `waggle calibrate` and
/// `waggle plan` add. Each policy is compared with the first one. The traffic of some policies is random (marked with
/// a star): their bytes and flows are means.
#[derive(Args, Debug)]
pub(super) struct SweepArgs {
    /// Models: directories, `config.json` files, bundled models, or published shapes (gpt2, llama-2-7b, llama-3-8b).
    #[arg(long, value_name = "M,M", value_delimiter = ',', default_value = "gpt2")]
    models: Vec<String>,
    /// Tokens in the cache.
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "128,512")]
    contexts: Vec<usize>,
    /// Policies, with `;` between those that have options: 'full,h2o;mpcache:topk=rank'. May be repeated.
    #[arg(long, value_name = "POLICIES", value_parser = policies, default_value = "full")]
    policies: Vec<Policies>,
    /// Networks: lan, lan-1g, wan, wan-far, or RATEmbit,DELAYms.
    #[arg(long, value_name = "LINK,LINK", value_parser = links, default_value = "lan")]
    links: Links,
    /// One phase makes correlations on the spot, two make them before the prompt is known.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "two")]
    phases: Vec<Phases>,
    /// Take the mean of so many tokens, in the middle of which the cache has the stated length, instead of one step.
    /// It then has its share of what happens every few tokens, and preparation is that of a long text.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    tokens: Option<u16>,
    /// Give shapes and configurations so many positions, for contexts beyond those of the published model.
    #[arg(long, value_name = "N")]
    positions: Option<usize>,
    /// Plan products under encryption for parties with so many cores each.
    #[arg(long, value_name = "N", default_value_t = protocols::DEFAULT_CORES, value_parser = clap::value_parser!(u32).range(1..=65536))]
    cores: u32,
    /// Add a digest of the exact bytes and flows: it shows changes that rounding hides.
    #[arg(long)]
    digest: bool,
    /// Show no figures of other systems.
    #[arg(long)]
    no_published: bool,
    #[command(flatten)]
    format: FormatArgs,
    /// Write the record here.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Keep each cell in this folder as soon as it is planned. A later run of the same revision takes it from there.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Phases of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Phases {
    One,
    Two,
}

/// The value of `--links`.
#[derive(Clone, Debug)]
struct Links(Vec<Shape>);

/// A list of links, for clap. The comma after a rate belongs to it.
fn links(text: &str) -> Result<Links, String> {
    let mut names: Vec<String> = Vec::new();
    for part in text.split(',') {
        match names.last_mut() {
            Some(rate) if rate.ends_with("bit") => *rate = format!("{rate},{part}"),
            _ => names.push(part.to_owned()),
        }
    }
    names.iter().map(|name| name.parse::<Shape>().map_err(|e| e.to_string())).collect::<Result<_, _>>().map(Links)
}

/// What one cell is of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Choice {
    model: String,
    /// Of the model's shape and the scales of its weights.
    model_digest: String,
    context: usize,
    policy: PolicySpec,
    link: String,
    phases: Phases,
    cores: u32,
    /// Tokens of the mean; one step alone without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tokens: Option<u16>,
}

impl Choice {
    /// The cell in words.
    fn name(&self) -> String {
        let Choice { model, context, policy, link, phases, cores, .. } = self;
        format!("{model}, {context} tokens, {policy}, {link}, {} phase(s), {cores} cores", *phases as u8 + 1)
    }

    /// Everything that its comparison shares, all but the policy.
    fn setting(&self) -> (&str, usize, &str, Phases) {
        (&self.model, self.context, &self.link, self.phases)
    }
}

/// What a token costs in a phase; fractions come from means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Cost {
    bytes_client_to_server: f64,
    bytes_server_to_client: f64,
    flows: f64,
    /// Of the link alone.
    seconds: f64,
}

impl Cost {
    fn new(traffic: &Traffic, tokens: f64, link: Shape) -> Self {
        let Traffic { bytes_client_to_server: up, bytes_server_to_client: down, flows, .. } = *traffic;
        let time: Duration = link.predict([up, down], flows);
        Cost {
            bytes_client_to_server: up as f64 / tokens,
            bytes_server_to_client: down as f64 / tokens,
            flows: flows as f64 / tokens,
            seconds: time.as_secs_f64() / tokens,
        }
    }

    fn bytes(&self) -> f64 {
        self.bytes_client_to_server + self.bytes_server_to_client
    }
}

/// A planned cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Planned {
    #[serde(flatten)]
    choice: Choice,
    /// Whether bytes and flows are means of random traffic.
    random: bool,
    online: Cost,
    /// Preparation; in one phase what is made on the spot.
    prepared: Cost,
}

impl Planned {
    fn bytes(&self) -> f64 {
        self.online.bytes() + self.prepared.bytes()
    }

    fn seconds(&self) -> f64 {
        self.online.seconds + self.prepared.seconds
    }
}

/// A cell as it is kept between runs.
#[derive(Serialize, Deserialize)]
struct Kept {
    version: u32,
    provenance: Provenance,
    cell: Planned,
}

/// The record of a sweep.
#[derive(Serialize)]
struct Sweep<'a> {
    version: u32,
    provenance: Option<Provenance>,
    cells: &'a [Planned],
    published: &'a [Figure],
}

/// A cell to be planned.
struct Task {
    choice: Choice,
    model: PublicModel,
    link: Shape,
}

pub(super) fn run(args: SweepArgs) -> Result<(), Error> {
    check_writable(args.json.as_deref())?;
    if let Some(dir) = &args.out {
        fs::create_dir_all(dir).map_err(|source| Error::File { path: dir.clone(), source })?;
    }
    let tasks = args.tasks()?;
    let bar = passes(tasks.len());
    let planned: Result<Vec<Planned>, Error> = tasks
        .par_iter()
        .map(|task| {
            let cell =
                args.cell(task).map_err(|source| Error::Cell { cell: task.choice.name(), source: source.into() });
            bar.inc(1);
            cell
        })
        .collect();
    bar.finish_and_clear();
    let cells = planned?;
    let published = if args.no_published { None } else { Some(Published::open()?) };
    let about = published.as_ref().map(|published| published.about.clone());
    let figures = published.map(|published| published.of(&args.models)).unwrap_or_default();
    if let Some(path) = &args.json {
        write_json(
            path,
            &Sweep { version: SWEEP_VERSION, provenance: provenance(), cells: &cells, published: &figures },
        )?;
    }
    let mut document = Document::default();
    if cells.iter().any(|cell| cell.random) {
        document.note("(*) The traffic of the policy is random: bytes and flows are means.");
    }
    if args.digest {
        document.note(format!(
            "Exact bytes and flows have the digest {}.",
            digest(&cells.iter().map(exact).collect::<Vec<_>>())
        ));
    }
    document.table("planned, a decoded token", table(&cells));
    if let (false, Some(about)) = (figures.is_empty(), about) {
        document.note(about);
        document.table("published", published::table(&figures));
    }
    out::line(document.render(args.format.format, out::width()))
}

impl SweepArgs {
    /// The product of all lists, with the policies of a comparison next to each other.
    fn tasks(&self) -> Result<Vec<Task>, Error> {
        let policies: Vec<&PolicySpec> = self.policies.iter().flat_map(|list| &list.0).collect();
        if let Some(policy) = policies.iter().find(|policy| policy.clear_only()) {
            return Err(Error::ClearOnly { policy: policy.to_string() });
        }
        let mut tasks = Vec::new();
        for name in &self.models {
            let models = policies.iter().map(|policy| self.model(name, policy)).collect::<Result<Vec<_>, _>>()?;
            for &context in &self.contexts {
                for &link in &self.links.0 {
                    for &phases in &self.phases {
                        for (policy, model) in policies.iter().zip(&models) {
                            let choice = Choice {
                                model: model.name.clone(),
                                // What a plan depends on, for the cells of one revision.
                                model_digest: digest(&(&model.spec, &model.frac_bits)),
                                context,
                                policy: (*policy).clone(),
                                link: link.to_string(),
                                phases,
                                cores: self.cores,
                                tokens: self.tokens,
                            };
                            tasks.push(Task { choice, model: model.clone(), link });
                        }
                    }
                }
            }
        }
        Ok(tasks)
    }

    /// What is public about the model `name`.
    fn model(&self, name: &str, policy: &PolicySpec) -> Result<PublicModel, Error> {
        let Some(positions) = self.positions else { return public_model(name, policy) };
        let path = Path::new(name);
        let config = match shape(name) {
            Some(config) if !path.exists() => config.to_vec(),
            _ if path.is_file() => read(path)?,
            _ => return Err(Error::PositionsOfWeights { name: name.into() }),
        };
        let spec = with_positions(&config, positions)?;
        let name = path.file_stem().map_or_else(|| name.into(), |stem| stem.to_string_lossy().into_owned());
        Ok(unweighted(name, spec))
    }

    /// The cell of `task`: from the folder of an earlier run, or planned.
    fn cell(&self, task: &Task) -> Result<Planned, Error> {
        let file = self.out.as_ref().map(|dir| dir.join(file_name(&task.choice)));
        let now = provenance().unwrap_or_default();
        if let Some(kept) = file.as_ref().and_then(|file| fs::read(file).ok())
            && let Ok(Kept { version: SWEEP_VERSION, provenance, cell }) = serde_json::from_slice(&kept)
            && (provenance.is_clean() && provenance.program() == now.program() && cell.choice == task.choice)
        {
            return Ok(cell);
        }
        let cell = planned(task)?;
        if let Some(file) = &file {
            write_json(file, &Kept { version: SWEEP_VERSION, provenance: now, cell: cell.clone() })?;
        }
        Ok(cell)
    }
}

/// The shape of a configuration with `positions` positions.
fn with_positions(config: &[u8], positions: usize) -> Result<ModelSpec, Error> {
    let spec = ModelSpec::from_config_json(config).map_err(model::Error::from)?;
    let Ok(Value::Object(mut object)) = serde_json::from_slice(config) else { return Ok(spec) };
    for key in ["n_positions", "max_position_embeddings"] {
        if let Some(value) = object.get_mut(key) {
            *value = positions.into();
        }
    }
    Ok(ModelSpec::from_config_json(Value::Object(object).to_string().as_bytes()).map_err(model::Error::from)?)
}

/// A digest of values, by how they are written for debugging.
fn digest(values: &impl std::fmt::Debug) -> String {
    blake3::hash(format!("{values:?}").as_bytes()).to_hex()[..16].to_owned()
}

/// Bytes and flows of a cell.
fn exact(cell: &Planned) -> [[f64; 3]; 2] {
    [cell.online, cell.prepared].map(|cost| [cost.bytes_client_to_server, cost.bytes_server_to_client, cost.flows])
}

/// The file of a cell in its folder.
fn file_name(choice: &Choice) -> String {
    let name = format!("{} {}", choice.name(), choice.tokens.map_or_else(|| "step".into(), |n| n.to_string()));
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
    name.chars().map(plain).collect::<String>() + ".json"
}

/// Traffic of a phase.
fn of_phase(outcome: &Outcome, phases: &[Phase]) -> Traffic {
    let mut sum = Traffic::default();
    outcome.entries.iter().filter(|e| phases.contains(&e.phase)).for_each(|e| sum.add(&e.traffic));
    sum
}

fn planned(task: &Task) -> Result<Planned, Error> {
    let Task { choice, model, link } = task;
    let preprocess = choice.phases == Phases::Two;
    let protocol =
        protocols::Options { preprocess, link: *link, cores: choice.cores, ..protocols::Options::default() };
    let terms = Terms { protocol, policy: choice.policy.clone(), ..Terms::default() };
    let options = ClientOptions::default();
    let made = |traffic: [Traffic; 2], tokens: f64| {
        let [online, prepared] = traffic.map(|traffic| Cost::new(&traffic, tokens, *link));
        Planned { choice: choice.clone(), random: terms.policy.random_traffic(), online, prepared }
    };
    let Some(tokens) = choice.tokens.map(usize::from) else {
        let (outcome, _) = plan_step(model, &terms, &options, choice.context, None, None, &mut Silent)?;
        return Ok(made([Phase::Decode, Phase::Offline].map(|phase| of_phase(&outcome, &[phase])), 1.0));
    };
    let prompt = choice.context.saturating_sub(tokens / 2).max(1);
    let session = |tokens: usize| {
        let lengths = Lengths { prompt, tokens };
        let request = Request { lengths, stop_at_eos: false, padded: false, draft: None };
        plan(model, &terms, &options, &request, &mut Silent)
    };
    let (long, short) = (session(tokens + 1)?, session(1)?);
    // Set-up is paid once, but what it sends may depend on how much follows.
    let before = [Phase::Setup, Phase::Offline];
    let prepared = of_phase(&long, &before).since(&of_phase(&short, &before));
    Ok(made([of_phase(&long, &[Phase::Decode]), prepared], tokens as f64))
}

/// All cells, each compared with the first policy of its setting.
fn table(cells: &[Planned]) -> Table {
    let columns = [
        ("model", ""),
        ("cached", "tokens"),
        ("policy", ""),
        ("link", ""),
        ("phases", ""),
        ("online", "bytes"),
        ("online flows", ""),
        ("online time", "seconds"),
        ("prepared", "bytes"),
        ("prepared time", "seconds"),
        ("total", "bytes"),
        ("total time", "seconds"),
        ("fewer bytes", ""),
        ("faster", ""),
    ];
    let mut table = Table::new(5, columns);
    for cell in cells {
        let Planned { choice, online, prepared, .. } = cell;
        let first = cells.iter().find(|other| other.choice.setting() == choice.setting()).unwrap_or(cell);
        let bytes = |bytes: f64| Cell::bytes(bytes.round() as u64);
        let mark = if cell.random { " *" } else { "" };
        table.add([
            Cell::text(choice.model.clone()),
            Cell::count(choice.context as u64),
            Cell::text(format!("{}{mark}", choice.policy)),
            Cell::text(choice.link.clone()),
            Cell::text(if choice.phases == Phases::One { "one" } else { "two" }),
            bytes(online.bytes()),
            Cell::number(online.flows, format!("{:.0}", online.flows)),
            Cell::seconds(online.seconds),
            bytes(prepared.bytes()),
            Cell::seconds(prepared.seconds),
            bytes(cell.bytes()),
            Cell::seconds(cell.seconds()),
            Cell::times(first.bytes() / cell.bytes()),
            Cell::times(first.seconds() / cell.seconds()),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_keeps_its_comma() {
        let Links(found) = links("lan,400mbit,4ms,wan-far").unwrap();
        let names: Vec<String> = found.iter().map(Shape::to_string).collect();
        assert_eq!(names, ["lan", "wan", "wan-far"], "400 Mbit/s and 4 ms are those of `wan`");
        assert!(links("nowhere").is_err());
    }

    #[test]
    fn positions_are_raised_by_either_name() {
        for name in ["gpt2", "llama-2-7b"] {
            assert_eq!(with_positions(shape(name).unwrap(), 40_960).unwrap().max_positions(), 40_960);
        }
    }
}
