//! `waggle sweep`: what a decoded token or a pass costs, planned over models, contexts, policies, links, phases and
//! cores.

use std::path::{Path, PathBuf};

use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use waggle::program::{Stated, public_model};
use waggle::{Network, OptionsError, Terms};
use waggle_files::{check_writable, load, write_json};
use waggle_model::{ModelSpec, Parts, shape};
use waggle_mpcache::PolicySpec;
use waggle_net::LinkShape;
use waggle_planner::Deployment;
use waggle_protocols::Cores;
use waggle_report::provenance::Provenance;
use waggle_session::PublicPrefix;
use waggle_session::party::{self, PublicModel};
use waggle_study::cost::{Phases, Piece, Sessions, Work, WorkCost};
use waggle_study::sweep::{Choice, Planned, SWEEP_VERSION, Sweep};

use super::Error;
use super::advice::policy;
use super::error::make_dir;
use super::machine::{self, CalibrationArgs, provenance};
use super::options::{FormatArgs, PriceArgs, named};
use super::policies::{self, Policies};
use super::progress::passes;

/// Plans what a decoded token costs, for every model, context, policy, link, number of phases and of cores: the mean
/// of some tokens after a prompt. Of an encoder, or with --pass, it is a pass over the context.
///
/// Bytes and flows are exact. `network s` are seconds of the link alone, without computation; with a calibration
/// (`waggle calibrate`) there are also `predicted s`, which are estimated. Each policy is compared with the first
/// one. The traffic of some policies is random, as a column says: their bytes and flows are means.
#[derive(Args, Debug)]
pub(super) struct SweepArgs {
    /// Models: directories, `config.json` files, bundled models, or published shapes (gpt2, llama-2-7b...).
    #[arg(long, value_name = "M,M", value_delimiter = ',', default_value = "gpt2")]
    models: Vec<String>,
    /// Tokens of the prompt, or of the pass.
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "128,512")]
    contexts: Vec<usize>,
    /// Texts of that length that the model reads side by side, as of `plan --texts`. The table then also has what
    /// either party's cache holds, and tokens a second: each step gives one to each.
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    texts: Vec<usize>,
    /// Read as many texts side by side as a party can hold in so many bytes: keys and values with their masks, after
    /// the last token.
    #[arg(long, value_name = "BYTES", conflicts_with_all = ["texts", "pass"])]
    memory: Option<u64>,
    /// Public tokens before the prompt, as of `generate --public-prefix`.
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "0")]
    public_lens: Vec<usize>,
    /// The policy by which the server prunes what its model keeps of public text. The client learns how much stays,
    /// not what.
    #[arg(long, value_name = "POLICY", default_value = "full", value_parser = policy)]
    prefix_policy: PolicySpec,
    /// Policies, with `;` between those that have options: 'full,h2o;mpcache:topk=rank'. May be repeated.
    #[arg(long, value_name = "POLICIES", value_parser = policies::list, default_value = "full")]
    policies: Vec<Policies>,
    /// Parts of the models that both parties have, as with `serve --public`.
    #[arg(long, value_name = "PARTS", default_value = "")]
    public: Parts,
    /// The server adds a LoRA of this rank to every matrix of the layers. All weights are then assumed to be below
    /// 16.
    #[arg(long, value_name = "R", default_value_t = 0)]
    rank: usize,
    /// Networks: lan, lan-1g, wan, wan-far, those of papers (`waggle links`), or RATEmbit,DELAYms.
    #[arg(long, value_name = "LINK,LINK", value_parser = links, default_value = "lan")]
    links: Links,
    /// One phase makes correlations on the spot, two make them before the prompt is known. A helper deals those that
    /// contain no weight (`dealt`) or all (`dealt-weights`); its bytes count as prepared. Of three parties the third
    /// deals them right before each pass, which counts as online.
    #[arg(long, value_parser = named(&Phases::NAMES), value_delimiter = ',', default_value = "two")]
    phases: Vec<Phases>,
    /// Rows of the table: the whole work, or each of its operations, in all layers together. What only a prompt
    /// takes, such as an eviction, has its rows too. Each operation is compared with that of the first policy.
    #[arg(long, value_enum, default_value = "work")]
    by: By,
    /// Take the mean of so many decoded tokens after the prompt. It has its share of what happens once or every few
    /// tokens, as evictions do. What the prompt prepares stands apart.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(2..))]
    tokens: u16,
    /// Plan the first token after the prompt alone instead, with the preparation of a single token. It pays at once
    /// for what some policies do at the end of a prompt, and no other token is like it.
    #[arg(long, conflicts_with = "tokens")]
    first_step: bool,
    /// Plan a pass over the context instead of decoded tokens. Encoders have no other work.
    #[arg(long, conflicts_with_all = ["tokens", "first_step"])]
    pass: bool,
    /// Give shapes and configurations so many positions, for contexts beyond those of the published model.
    #[arg(long, value_name = "N")]
    positions: Option<usize>,
    /// Plan products under encryption for parties with so many cores each, or for a client and a server with these
    /// [default: those of the calibration, or 40]. With fewer the plan computes less and sends more. One party's word
    /// is enough; two must be equal.
    #[arg(long, value_name = "N|CLIENT+SERVER,...", value_delimiter = ',')]
    cores: Vec<Cores>,
    /// Add a digest of the exact bytes and flows: it shows changes that rounding hides.
    #[arg(long)]
    digest: bool,
    #[command(flatten)]
    price: PriceArgs,
    #[command(flatten)]
    calibration: CalibrationArgs,
    #[command(flatten)]
    format: FormatArgs,
    /// Write the record here.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Keep each cell in this folder as soon as it is planned. A later run of the same revision takes it from there.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// The subject of a row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum By {
    #[value(alias = "token")]
    Work,
    Operation,
}

/// The value of `--links`.
#[derive(Clone, Debug)]
struct Links(Vec<LinkShape>);

/// Parses a list of links, for clap. The comma after a rate belongs to the link.
fn links(text: &str) -> Result<Links, String> {
    let mut names: Vec<String> = Vec::new();
    for part in text.split(',') {
        match names.last_mut() {
            Some(rate) if rate.ends_with("bit") => *rate = format!("{rate},{part}"),
            _ => names.push(part.to_owned()),
        }
    }
    names.iter().map(|name| name.parse::<LinkShape>().map_err(|e| e.to_string())).collect::<Result<_, _>>().map(Links)
}

/// A cell in the form in which it is kept between runs.
#[derive(Serialize, Deserialize)]
struct Kept {
    version: u32,
    provenance: Provenance,
    cell: Planned,
}

struct Task {
    choice: Choice,
    model: PublicModel,
    link: LinkShape,
    terms: party::Terms,
    setting: Option<Deployment>,
}

/// All pairs of the two lists, in the order of the first list.
fn product<'a, A, B>(first: &'a [A], second: &'a [B]) -> impl Iterator<Item = (&'a A, &'a B)> {
    first.iter().flat_map(move |a| second.iter().map(move |b| (a, b)))
}

pub(super) fn run(args: SweepArgs) -> Result<(), Error> {
    check_writable(args.json.as_deref())?;
    if let Some(dir) = &args.out {
        make_dir(dir)?;
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
    let sweep = Sweep { version: SWEEP_VERSION, provenance: provenance(), cells: planned? };
    if let Some(path) = &args.json {
        write_json(path, &sweep)?;
    }
    let mut document = sweep.document(&args.price.price());
    if args.digest {
        let exact: Vec<_> = sweep.cells.iter().map(exact).collect();
        document.note(format!("Exact bytes and flows have the digest {}.", digest(&exact)));
    }
    args.format.show(document)
}

impl SweepArgs {
    /// A task for each combination of the listed choices. Cells that differ only in the policy are next to each
    /// other.
    fn tasks(&self) -> Result<Vec<Task>, Error> {
        let policies: Vec<&PolicySpec> = self.policies.iter().flat_map(|list| &list.0).collect();
        if let Some(policy) = policies.iter().find(|policy| policy.clear_only()) {
            return Err(OptionsError::ClearOnly(policy.to_string()).into());
        }
        let calibrated = self.calibration.open()?.ok();
        let cores = match &self.cores[..] {
            [] => &[machine::cores(calibrated.as_ref())][..],
            given => given,
        };
        machine::note_others(calibrated.as_ref(), cores);
        let mut tasks = Vec::new();
        for name in &self.models {
            let models = policies.iter().map(|policy| self.model(name, policy)).collect::<Result<Vec<_>, _>>()?;
            let contexts: Vec<_> = product(&self.contexts, &self.public_lens).collect();
            let texts: Vec<_> = product(&contexts, &self.texts).collect();
            for ((&(&(&context, &public), &texts), &link), (&phases, &cores)) in product(&texts, &self.links.0)
                .flat_map(|outer| product(&self.phases, cores).map(move |inner| (outer, inner)))
            {
                let prefix = PublicPrefix::planned(public, &self.prefix_policy);
                let setting =
                    calibrated.as_ref().and_then(|calibrated| calibrated.machines.setting(cores, Some(link)));
                for (policy, model) in policies.iter().zip(&models) {
                    let work = if self.pass || model.spec.is_encoder() { Work::Pass } else { Work::Token };
                    let choice = Choice {
                        model: model.name.clone(),
                        // The digest covers everything of a model on which a plan depends, within one revision of the
                        // program.
                        model_digest: match model.disclosure.disclosed.is_nothing() {
                            true => digest(&(&model.spec, &model.frac_bits)),
                            false => digest(&(&model.spec, &model.frac_bits, &model.disclosure)),
                        },
                        work,
                        context,
                        texts,
                        public_tokens: public,
                        public_policy: prefix.as_ref().map(|prefix| prefix.policy().clone()),
                        policy: (*policy).clone(),
                        link: link.to_string(),
                        phases,
                        cores: cores.to_string(),
                        tokens: if self.first_step || work == Work::Pass { 1 } else { self.tokens },
                        calibration: setting.as_ref().map(digest),
                    };
                    let terms = Terms::in_phases(phases).policy((*policy).clone()).cores(cores);
                    let terms = party::Terms { prefix: prefix.clone(), ..terms.over(Network::Imitated(link))? };
                    let mut task = Task { choice, model: model.clone(), link, terms, setting: setting.clone() };
                    if let Some(memory) = self.memory {
                        task.choice.texts = fitting(&task, memory)?;
                    }
                    tasks.push(task);
                }
            }
        }
        Ok(tasks)
    }

    /// The name of a model in a table, with its public parts and its rank.
    fn named(&self, name: &str) -> String {
        let public = if self.public.is_empty() { String::new() } else { format!(", public {}", self.public) };
        let rank = if self.rank == 0 { String::new() } else { format!(", rank {}", self.rank) };
        format!("{name}{public}{rank}")
    }

    fn model(&self, name: &str, policy: &PolicySpec) -> Result<PublicModel, Error> {
        let stated = Stated { parts: self.public.clone(), rank: self.rank, adapter: None };
        let Some(positions) = self.positions else {
            let model = public_model(name, policy, &stated)?;
            return Ok(PublicModel { name: self.named(&model.name), ..model });
        };
        let path = Path::new(name);
        let config = match shape(name) {
            Some(config) if !path.exists() => config.to_vec(),
            _ if path.is_file() => load(path)?,
            _ => return Err(Error::PositionsOfWeights(name.into())),
        };
        let spec = with_positions(&config, positions)?;
        let name = path.file_stem().map_or_else(|| name.into(), |stem| stem.to_string_lossy().into_owned());
        Ok(stated.of_shape(self.named(&name), spec)?)
    }

    /// The cell of `task`, taken from the folder of an earlier run or planned.
    fn cell(&self, task: &Task) -> Result<Planned, Error> {
        let file = self.out.as_ref().map(|dir| dir.join(file_name(&task.choice)));
        let now = provenance().unwrap_or_default();
        if let Some(kept) = file.as_ref().and_then(|file| load(file).ok())
            && let Ok(Kept { version: SWEEP_VERSION, provenance, cell }) = serde_json::from_slice(&kept)
            && (provenance.is_clean() && provenance.program() == now.program() && cell.choice == task.choice)
            && (self.by == By::Work || !cell.operations.is_empty())
        {
            let operations = if self.by == By::Work { Vec::new() } else { cell.operations };
            return Ok(Planned { operations, ..cell });
        }
        let cell = planned(task, self.by)?;
        if let Some(file) = &file {
            write_json(file, &Kept { version: SWEEP_VERSION, provenance: now, cell: cell.clone() })?;
        }
        Ok(cell)
    }
}

fn with_positions(config: &[u8], positions: usize) -> Result<ModelSpec, Error> {
    let spec = ModelSpec::from_config_json(config).map_err(waggle_model::Error::from)?;
    let Ok(Value::Object(mut object)) = serde_json::from_slice(config) else { return Ok(spec) };
    for key in ["n_positions", "max_position_embeddings"] {
        if let Some(value) = object.get_mut(key) {
            *value = positions.into();
        }
    }
    Ok(ModelSpec::from_config_json(Value::Object(object).to_string().as_bytes())
        .map_err(waggle_model::Error::from)?)
}

/// A digest of the debug form of `values`.
fn digest(values: &impl std::fmt::Debug) -> String {
    machine::digest(format!("{values:?}").as_bytes())
}

/// The bytes in each direction and the flows of each cost of a cell. `None` if the cell has no such cost.
fn exact(cell: &Planned) -> [Option<[f64; 3]>; 5] {
    let WorkCost { online, prepared, prompt, prepared_prompt, setup } = cell.cost;
    [Some(online), Some(prepared), prompt, prepared_prompt, Some(setup)]
        .map(|cost| cost.map(|cost| [cost.bytes_client_to_server, cost.bytes_server_to_client, cost.flows]))
}

fn file_name(choice: &Choice) -> String {
    let name = format!("{} {}", choice.name(), choice.tokens);
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
    name.chars().map(plain).collect::<String>() + ".json"
}

fn sessions(task: &Task) -> Result<Sessions, Error> {
    let Task { choice, model, link, terms, setting } = task;
    let Choice { work, texts, context, tokens, .. } = *choice;
    let piece = Piece { work, texts, length: context, tokens: tokens.into() };
    Ok(Sessions::plan(model, terms, Some(*link), setting.as_ref(), piece)?)
}

/// The number of texts whose keys and values fit in `memory` bytes. Those of one text, which `task` is about, tell.
fn fitting(task: &Task, memory: u64) -> Result<usize, Error> {
    let one = sessions(task)?.cache_bytes();
    let fit = (memory / one.max(1)) as usize;
    if fit == 0 {
        let source = Error::CacheTooLarge { cache: one, memory };
        return Err(Error::Cell { cell: task.choice.name(), source: source.into() });
    }
    Ok(fit)
}

fn planned(task: &Task, by: By) -> Result<Planned, Error> {
    let sessions = sessions(task)?;
    let operations = if by == By::Operation { sessions.operations() } else { Vec::new() };
    let (choice, random) = (task.choice.clone(), task.terms.policy.random_traffic());
    Ok(Planned { choice, random, cost: sessions.whole(), cache_bytes: sessions.cache_bytes(), operations })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_keeps_its_comma() {
        let Links(found) = links("lan,400mbit,4ms,wan-far").unwrap();
        let names: Vec<String> = found.iter().map(LinkShape::to_string).collect();
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
