//! Ablation of MPCache on the shapes of GPT-2 small: what every part of the policy saves of a decoding step.
//!
//!     cargo run --release -p waggle-bench --example ablation -- --help
//!
//! For each configuration a pair of layers decodes over a cache that a prompt filled, as the policy fills it.
//! Look-once eviction is run and not assumed, with the queries of its voting window alone (the other costs of a
//! prompt belong to the model). The steps lie around the stated length. Their mean is taken, which includes summaries
//! of clusters that close among them; the pair counts six times. A table of its own has what a prompt costs once:
//! eviction, and the summaries of what is left. The rest of the model's step is measured apart, since no policy
//! touches it.
//!
//! Bytes and flows come from [`protocols::Plan`], on shapes. At the lengths given by `--secure` two parties in this
//! process run the same steps, and the time is taken. Both ledgers must then equal the plan's to the byte, except
//! where quickselect makes traffic random and the plan states its mean. The opened outputs must be those of the same
//! policy in fixed point.
//!
//! With `--preprocess` there are two phases, and a plan of the run prepares all that it takes. The offline cost of a
//! step is a difference, divided by the number of steps: the preparation of the whole run, less that of the prompt
//! and the first step. A run of more steps makes larger batches.

mod check;
mod cost;
mod data;
mod rest;
mod run;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use mpcache::{HeadShape, PolicyError, PolicySpec};
use net::Shape;
use protocols::{Fixed, Options};
use serde::Serialize;
use thiserror::Error;

use check::Check;
use cost::{Accounts, Split};
use run::Scenario;

/// Heads of a layer of GPT-2 small.
const HEADS: HeadShape = HeadShape { heads: 12, kv_heads: 12, head_dim: 64 };

/// Layers that are run: an even one and the odd one that may follow its choice.
const LAYERS: usize = 2;

/// Layers of the model.
const MODEL_LAYERS: usize = 12;

/// Ablation of MPCache on the shapes of GPT-2 small.
#[derive(Parser, Debug)]
struct Args {
    /// Lengths of the cache in tokens.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "512,1024,2048")]
    cache: Vec<usize>,
    /// Lengths that two parties run as well.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "512")]
    secure: Vec<usize>,
    /// Shapes only: nothing is measured.
    #[arg(long, conflicts_with = "secure")]
    plan_only: bool,
    /// In two phases.
    #[arg(long, requires = "plan_only")]
    preprocess: bool,
    /// Steps over which a plan takes the mean; if clusters have more tokens than that, as many as they have.
    #[arg(long, value_name = "N", default_value_t = 8)]
    plan_steps: usize,
    /// Steps that two parties take.
    #[arg(long, value_name = "N", default_value_t = 8)]
    steps: usize,
    /// Share of all tokens that a step looks at.
    #[arg(long, value_name = "SHARE", default_value_t = 0.25)]
    budget: f64,
    /// Share of the prompt that look-once eviction keeps.
    #[arg(long, value_name = "SHARE", default_value_t = 0.5)]
    keep: f64,
    /// Only the configurations whose names contain one of these, besides `full`.
    #[arg(long, value_name = "TEXT,..", value_delimiter = ',')]
    only: Vec<String>,
    /// Network between the two parties; its rate decides what matrix products pack.
    #[arg(long, value_name = "lan|lan-1g|wan|wan-far|RATEmbit,DELAYms", default_value = "lan")]
    link: Shape,
    /// Write the tables here.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Write everything here.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What ends the benchmark.
#[derive(Debug, Error)]
enum Failure {
    /// A configuration that is none.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// An engine failed.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// A protocol failed.
    #[error(transparent)]
    Protocol(#[from] protocols::Error),
    /// The model failed.
    #[error(transparent)]
    Model(#[from] model::Error),
    /// The link between the parties, or a temporary directory, could not be made.
    #[error("cannot set up the run: {0}")]
    Link(std::io::Error),
    /// A file could not be written.
    #[error("cannot write {path}: {source}", path = .path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The parties' ledgers differ.
    #[error("{policy}: the ledgers of the two parties differ")]
    Ledgers {
        /// Which run.
        policy: String,
    },
    /// The plan is not what was sent.
    #[error("{policy}: the plan differs from the ledger at {at}")]
    Plan {
        /// Which run.
        policy: String,
        /// Phase, path and both accounts.
        at: String,
    },
    /// A wrong answer.
    #[error("{policy}: wrong by {error}")]
    Wrong {
        /// Which run.
        policy: String,
        /// By how much.
        error: f64,
    },
    /// A cache too short for the steps around it.
    #[error("a cache of {cache} tokens is too short for {steps} steps")]
    Short {
        /// Its length.
        cache: usize,
        /// Steps around it.
        steps: usize,
    },
}

impl Args {
    /// What both parties state.
    fn options(&self) -> Options {
        Options { preprocess: self.preprocess, link: self.link, ..Options::default() }
    }
}

/// A configuration of the ablation.
#[derive(Clone, Debug)]
struct Configuration {
    name: &'static str,
    policy: PolicySpec,
    /// What the paper reports for it: latency, communication against the full cache (figure 11).
    paper: Option<&'static str>,
}

/// Every configuration, `full` first: what the others are compared with.
fn configurations(args: &Args) -> Result<Vec<Configuration>, PolicyError> {
    let (budget, keep) = (args.budget, args.keep);
    let mut all = Vec::new();
    let mut add = |name, policy: String, paper| -> Result<(), PolicyError> {
        all.push(Configuration { name, policy: policy.parse()?, paper });
        Ok(())
    };
    add("full", "full".into(), None)?;
    // One cluster is longer than any cache, so there is nothing to choose, and all kept tokens are attended to.
    add("static only", format!("mpcache:static={keep},budget={keep},clusters=65535"), Some("1.42x / 2.76x"))?;
    add("static only, to the budget", format!("mpcache:static={budget},budget={budget},clusters=65535"), None)?;
    add("dynamic, single tokens", format!("mpcache:static=1,share=off,budget={budget},clusters=1"), None)?;
    add("dynamic, clusters 8/4", format!("mpcache:static=1,share=off,budget={budget}"), None)?;
    add("dynamic, clusters 32/16", format!("mpcache:static=1,share=off,budget={budget},clusters=32/16"), None)?;
    add("clusters 8/4, layers share", format!("mpcache:static=1,budget={budget}"), None)?;
    let everything = format!("mpcache:static={keep},budget={budget}");
    add("all", everything.clone(), Some("1.9x / 5.9x"))?;
    for (name, option) in [
        ("all, clusters 32/16", "clusters=32/16"),
        ("all, gather=scores", "gather=scores"),
        ("all, topk=shuffle-reveal", "topk=shuffle-reveal"),
        ("all, topk=sort", "topk=sort"),
        ("all, select=per-layer", "select=per-layer"),
        ("all, scores + shuffle-reveal", "gather=scores,topk=shuffle-reveal"),
        ("all, scores + per-layer", "gather=scores,select=per-layer"),
        ("all, scores + 32/16", "gather=scores,clusters=32/16"),
        ("all, scores + shuffle-reveal + 32/16", "gather=scores,topk=shuffle-reveal,clusters=32/16"),
        ("all, scores + shuffle-reveal + per-layer", "gather=scores,topk=shuffle-reveal,select=per-layer"),
    ] {
        add(name, format!("{everything},{option}"), None)?;
    }
    add("mpcache-2pc", format!("mpcache-2pc:budget={budget}"), None)?;
    let evicted = format!("mpcache-2pc:static={keep},budget={budget}");
    add("mpcache-2pc + static", evicted.clone(), None)?;
    for (name, option) in [
        ("mpcache-2pc + static + share", "share=on"),
        ("mpcache-2pc + static, per-head", "select=per-head"),
        ("mpcache-2pc + static, clusters=4", "clusters=4,similarity=centroid"),
    ] {
        add(name, format!("{evicted},{option}"), None)?;
    }
    if !args.only.is_empty() {
        all.retain(|c| c.name == "full" || args.only.iter().any(|text| c.name.contains(text)));
    }
    Ok(all)
}

/// What one configuration costs at one length of the cache, all layers together.
#[derive(Clone, Debug, Serialize)]
struct Row {
    name: &'static str,
    policy: String,
    settings: Vec<(&'static str, String)>,
    cache: usize,
    /// Whether the traffic is random, and the plan states its mean.
    random: bool,
    paper: Option<&'static str>,
    /// Attention of a step, by the plan.
    planned: Split,
    /// The same by operation, largest first.
    operations: Vec<(String, Split)>,
    /// Look-once eviction, once a prompt.
    eviction: Split,
    /// Digests of what the prompt left, once.
    digests: Split,
    /// Attention of a step between two parties.
    measured: Option<Measured>,
}

/// A run between two parties.
#[derive(Clone, Debug, Serialize)]
struct Measured {
    /// Mean step.
    step: Split,
    /// Steps taken.
    steps: usize,
    /// Its answers.
    check: Check,
}

/// Everything that a run of the benchmark found.
#[derive(Serialize)]
struct Findings {
    /// The command line.
    arguments: Vec<String>,
    /// Cores that both parties share.
    cores: usize,
    budget: f64,
    keep: f64,
    link: String,
    preprocess: bool,
    /// The rest of the model's step, by the plan and between two parties.
    rest_planned: Split,
    rest_measured: Option<Split>,
    rest_logit_error: Option<f32>,
    rows: Vec<Row>,
}

/// Pairs of layers in the model.
const PAIRS: f64 = MODEL_LAYERS as f64 / LAYERS as f64;

/// Steps around a cache of `cache` tokens: their mean has seen so many.
fn around(cache: usize, steps: usize) -> Result<Scenario, Failure> {
    let before = 1 + steps.div_ceil(2);
    if steps == 0 || cache <= before {
        return Err(Failure::Short { cache, steps });
    }
    Ok(Scenario { prompt: cache - before, steps })
}

/// The accounts whose path begins with `scope`, or all.
fn within<'a>(scope: &'a str, factor: f64) -> impl Fn(&str) -> Option<f64> + 'a {
    move |path| path.starts_with(scope).then_some(factor)
}

/// The mean step by operation.
fn operations(steady: &Accounts, steps: usize) -> Vec<(String, Split)> {
    let mut paths: Vec<&String> = steady.keys().map(|(_, path)| path).collect();
    paths.sort();
    paths.dedup();
    let cost = |path: &String| Split::of(steady, |other| (other == path).then_some(PAIRS / steps as f64));
    let mut all: Vec<_> = paths.into_iter().map(|path| (path.clone(), cost(path))).collect();
    all.retain(|(_, split)| split.total().bytes() > 0.0);
    all.sort_by(|a, b| b.1.total().bytes().total_cmp(&a.1.total().bytes()));
    all
}

/// One configuration at one length.
fn row(configuration: &Configuration, cache: usize, args: &Args) -> Result<Row, Failure> {
    let Configuration { name, policy, paper } = configuration;
    // Clusters longer than the cache never close, so there is no period over which to take a mean.
    let period = policy.clusters().map_or(1, |c| c.sizes.coarse());
    let steps = if period < cache / 2 { args.plan_steps.max(period) } else { args.plan_steps };
    let scenario = around(cache, steps)?;
    let plan = run::plan(policy, scenario, args.options())?;
    let mut planned = Split::of(&plan.steady, within("", PAIRS / steps as f64));
    if args.preprocess {
        let prompt = run::plan(policy, Scenario { steps: 0, ..scenario }, args.options())?.offline();
        planned.offline = (plan.offline() - prompt) * (PAIRS / steps as f64);
    }
    let mut row = Row {
        name,
        policy: policy.to_string(),
        settings: policy.settings().into_iter().map(|setting| (setting.key, setting.value)).collect(),
        cache,
        random: policy.random_traffic(),
        paper: *paper,
        planned,
        operations: operations(&plan.steady, steps),
        eviction: Split::of(&plan.prompt, within("eviction", PAIRS)),
        digests: Split::of(&plan.prompt, within("digest", PAIRS)),
        measured: None,
    };
    if args.secure.contains(&cache) && !args.plan_only {
        row.measured = Some(measure(policy, cache, args)?);
    }
    Ok(row)
}

/// Between two parties.
fn measure(policy: &PolicySpec, cache: usize, args: &Args) -> Result<Measured, Failure> {
    let scenario = around(cache, args.steps)?;
    let words = data::words(&data::inputs(scenario.tokens(), cache as u64));
    let options = args.options();
    let fixed = run::run(&mut Fixed::evaluating(options.evaluation()), policy, &words, scenario)?;
    let secure = run::secure(policy, &words, scenario, args.link, options)?;
    let check = check::compare(policy, &secure.outputs, &fixed.outputs)?;
    check::plan_holds(policy, &secure, &run::plan(policy, scenario, options)?)?;
    let step = Split::of(&secure.steady, within("", PAIRS / args.steps as f64));
    Ok(Measured { step, steps: args.steps, check })
}

fn benchmark(args: &Args) -> Result<(), Failure> {
    let configurations = configurations(args)?;
    let secure = !args.plan_only && args.cache.iter().any(|cache| args.secure.contains(cache));
    eprintln!("the rest of the step");
    // In two phases the correlations of the rest cannot be told from those of attention, so the tables are of
    // attention alone.
    let rest_planned = rest::plan(Options { preprocess: false, ..args.options() })?;
    let (rest_measured, rest_logit_error) = if secure {
        let (cost, error) = rest::secure(args.link, args.options())?;
        (Some(cost), Some(error))
    } else {
        (None, None)
    };
    let mut rows = Vec::new();
    for &cache in &args.cache {
        for configuration in &configurations {
            eprintln!("{cache} tokens: {}", configuration.name);
            rows.push(row(configuration, cache, args)?);
        }
    }
    let findings = Findings {
        arguments: std::env::args().skip(1).collect(),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        budget: args.budget,
        keep: args.keep,
        link: args.link.to_string(),
        preprocess: args.preprocess,
        rest_planned,
        rest_measured,
        rest_logit_error,
        rows,
    };
    let text = table::markdown(&findings);
    println!("{text}");
    let write = |path: &Option<PathBuf>, text: String| match path {
        None => Ok(()),
        Some(path) => std::fs::write(path, text).map_err(|source| Failure::Write { path: path.clone(), source }),
    };
    write(&args.markdown, text)?;
    let json = serde_json::to_string_pretty(&findings).expect("numbers and texts");
    write(&args.json, json)
}

fn main() -> ExitCode {
    match benchmark(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("ablation: {failure}");
            ExitCode::FAILURE
        }
    }
}
