//! Options that several commands share.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use engine::LogitBits;
use model::{Reveal, Sampler};
use mpcache::{Granularity, PolicyHelp, PolicySpec, Setting};
use net::shaped::ParseShapeError;
use net::{Link, Shape, Shaped};
use ot::CotKind;
use protocols::{Masks, Packing};
use rand::SeedableRng;
use rand::rngs::StdRng;
use report::table::Format;
use serde_json::{Map, Value};
use session::names::{MASKS, OT_SOURCES, PACKINGS, REVEALS, name};
use session::party::Terms;

use super::Error;

/// What both parties must state alike.
#[derive(Args, Clone, Debug)]
pub(super) struct TermsArgs {
    /// What the client learns of each position: all logits, or only the most probable token.
    #[arg(long, value_parser = named(&REVEALS), default_value = "logits")]
    reveal: Reveal,
    /// Fractional bits of the logits that the client learns, 0 to 14, rounded at random. With fewer, more positions
    /// are needed to learn about the weights from what they leave out (SECURITY), and messages are smaller.
    #[arg(long, value_name = "N", default_value_t)]
    logit_bits: LogitBits,
    #[command(flatten)]
    policy: PolicyArgs,
    /// Source of correlated oblivious transfers. `silent` sends least; of the others a larger number sends less and
    /// computes more.
    #[arg(long, value_parser = named(&OT_SOURCES), default_value = "silent")]
    ot: CotKind,
    /// First make all correlations that do not depend on the prompt's words, in large batches, booked as `offline`.
    /// What is left to do online is several times less. The client chooses; a server that is given a value refuses
    /// the other one.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    preprocess: Option<bool>,
    /// Pack several results of a matrix product into one ciphertext, which makes messages smaller and takes some more
    /// computation. `auto` weighs both by the rate of `--link`, or by that of one machine (4 GB/s) if the link is not
    /// slowed. `always` plans as if the link were eight times slower.
    #[arg(long, value_parser = named(&PACKINGS), default_value = "auto")]
    packing: Packing,
    /// Plan products under encryption for parties with so many cores each. With fewer the plan computes less
    /// and sends more.
    #[arg(long, value_name = "N", default_value_t = protocols::DEFAULT_CORES, value_parser = clap::value_parser!(u32).range(1..=65536))]
    cores: u32,
    /// Plan for this network, whatever `--link` imitates. Give it to both parties of a session over a real network,
    /// whose rate and delay the program cannot know.
    #[arg(long, value_name = PLANNED_LINKS)]
    plan_for: Option<Shape>,
    /// How products with weights are prepared, in two phases: with masks that public seeds make (`seeded`), or with
    /// masks that the parties draw and send (`sent`), which takes about twice the bytes.
    #[arg(long, value_parser = named(&MASKS), default_value = "seeded")]
    masks: Masks,
    /// Read the prompt in chunks of so many tokens. The text is the same; shorter chunks take less memory and more
    /// round trips. Without it long prompts are read in chunks that bound memory.
    #[arg(long, value_name = "N")]
    prefill_chunk: Option<NonZeroUsize>,
}

/// Which part of the key/value cache a token looks at.
#[derive(Args, Clone, Debug)]
pub(super) struct PolicyArgs {
    /// Which part of the key/value cache a token looks at: NAME or NAME:key=value,key=value.
    #[arg(long, value_name = "POLICY", default_value = "full", long_help = policies())]
    policy: PolicySpec,
    /// Who shares a choice of clusters: every query head has its own (per-head), the heads of one key/value head
    /// share one (per-kv), or the whole layer shares one (per-layer). The same as the policy's option `select`.
    #[arg(long, value_name = "per-head|per-kv|per-layer")]
    select: Option<Granularity>,
}

impl TermsArgs {
    /// The cache policy chosen.
    pub(super) fn policy(&self) -> Result<PolicySpec, Error> {
        self.policy.spec()
    }
}

impl PolicyArgs {
    /// The policy chosen.
    pub(super) fn spec(&self) -> Result<PolicySpec, Error> {
        match self.select {
            None => Ok(self.policy.clone()),
            Some(select) => Ok(self.policy.with("select", &select.to_string())?),
        }
    }
}

/// The help text of `--policy`.
fn policies() -> String {
    let mut text = String::from(
        "Which part of the key/value cache a token looks at: NAME or NAME:key=value,key=value. Policies and their keys:\n",
    );
    for PolicyHelp { name, keys, about } in PolicySpec::help() {
        let keys = if keys.is_empty() { String::new() } else { format!(" [{}]", keys.join(" ")) };
        text.push_str(&format!("\n  {name}: {about}{keys}"));
    }
    text.push_str(
        "\n\nbudget: share of all tokens seen that a step looks at or, for policies with `block`, the most tokens that a layer \
         holds, from 2 on. block: tokens that go at once when a store is full. prefill: tokens of the prompt after each of \
         which it is cut to the budget, or off. heads: for every layer, with dots between them, a hexadecimal number whose \
         bits say which key/value heads keep every token, as `waggle heads` finds them. clusters: TOKENS or COARSE/FINE, for example 8/4. \
         similarity: linear (with alpha), box, cuboid-mean, centroid, representatives (with count), token. topk: rank, \
         shuffle-reveal, sort. gather: one-hot, scores. static: share of the prompt that is kept. window: share of the \
         prompt that votes on it. share: on lets every other layer take over its neighbour's choice. dense: first layers \
         that look at everything. layers: those with smaller budgets, as 3-5+7, or half for the later half. part: what of \
         the mean budget these get. rise: tokens over which the temperature rises to 2.\n",
    );
    text
}

/// The values of `table` by their names, for clap.
fn named<T: Copy + Send + Sync + 'static>(table: &'static [(&'static str, T)]) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(table.iter().map(|(name, _)| *name)).try_map(|given: String| {
        let known = table.iter().find(|(name, _)| **name == *given);
        known.map(|(_, value)| *value).ok_or("no such value")
    })
}

/// The link that two processes of one machine are assumed to have.
pub(super) const LOOPBACK: Shape = Shape { bytes_per_second: 4_000_000_000, round_trip: Duration::from_micros(50) };

impl TermsArgs {
    /// The terms that a report names: `option` gives the text of each of [`by_name`], or none for the default.
    pub(super) fn reported(option: impl Fn(&str) -> String) -> Result<Self, Error> {
        #[derive(clap::Parser)]
        struct Alone {
            #[command(flatten)]
            terms: TermsArgs,
        }
        let names = ["reveal", "logit-bits", "policy", "ot", "preprocess", "packing", "cores", "masks", "plan-for"];
        let given = names.into_iter().map(|name| (name, option(name))).filter(|(_, value)| !value.is_empty());
        let arguments =
            std::iter::once("waggle".to_owned()).chain(given.map(|(name, value)| format!("--{name}={value}")));
        let parsed = <Alone as clap::Parser>::try_parse_from(arguments);
        Ok(parsed.map_err(|e| Error::Unplannable { what: e.kind().to_string() })?.terms)
    }

    /// The number of phases that the command line asks for. A server that is told nothing leaves it to its clients.
    pub(super) fn fixed_preprocess(&self) -> Option<bool> {
        self.preprocess
    }

    /// Refuses one phase for a command that needs two.
    pub(super) fn allow_two_phases(&self) -> Result<(), Error> {
        if self.preprocess == Some(false) { Err(Error::PoolNeedsPreprocess) } else { Ok(()) }
    }

    /// The same for a command that needs two phases.
    pub(super) fn two_phases(&self) -> Result<Self, Error> {
        self.allow_two_phases()?;
        Ok(TermsArgs { preprocess: Some(true), ..self.clone() })
    }

    /// The terms of a session over `link`, planned for that network unless `--plan-for` names another.
    pub(super) fn terms(&self, link: LinkArg) -> Result<Terms, Error> {
        let link = self.plan_for.or(link.shape()).unwrap_or(LOOPBACK);
        let preprocess = self.preprocess.unwrap_or(false);
        let TermsArgs { packing, cores, masks, .. } = *self;
        let protocol = protocols::Options { ot: self.ot, preprocess, link, packing, cores, masks };
        let policy = self.policy.spec()?;
        if policy.clear_only() {
            return Err(Error::ClearOnly { policy: policy.to_string() });
        }
        Ok(Terms {
            protocol,
            reveal: self.reveal,
            logit_bits: self.logit_bits,
            policy,
            prefill_chunk: self.prefill_chunk,
        })
    }
}

/// What a report says of terms: by name, and every setting of the policy, given or default.
pub(super) fn reported(terms: &Terms) -> impl Iterator<Item = (String, Value)> {
    let pair = |Setting { key, value }: Setting| (key.to_owned(), value.into());
    let settings: Map<String, Value> = terms.policy.settings().into_iter().map(pair).collect();
    let by_name = by_name(terms).into_iter().map(|(name, value)| (name.to_owned(), value.into()));
    by_name.chain([("policy_settings".to_owned(), settings.into())])
}

/// Terms by name, for the command line of the other party.
pub(super) fn by_name(terms: &Terms) -> Vec<(&'static str, String)> {
    let Terms { protocol, reveal, logit_bits, policy, prefill_chunk } = terms;
    let chunk = prefill_chunk.map(|chunk| ("prefill-chunk", chunk.to_string()));
    [
        ("reveal", name(&REVEALS, reveal).to_owned()),
        ("logit-bits", logit_bits.to_string()),
        ("policy", policy.to_string()),
        ("ot", name(&OT_SOURCES, &protocol.ot).to_owned()),
        ("preprocess", protocol.preprocess.to_string()),
        ("packing", name(&PACKINGS, &protocol.packing).to_owned()),
        ("cores", protocol.cores.to_string()),
        ("masks", name(&MASKS, &protocol.masks).to_owned()),
        ("plan-for", protocol.link.to_string()),
    ]
    .into_iter()
    .chain(chunk)
    .collect()
}

/// How the client picks tokens where it learns logits.
#[derive(Args, Clone, Debug)]
pub(super) struct SamplingArgs {
    /// Sample from softmax(logits / T); 0 takes the most probable token.
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    pub(super) temperature: f32,
    /// Sample among the most probable tokens that together reach this probability.
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    pub(super) top_p: f32,
    /// Repeat a sampled text. The seed decides the choice of tokens alone; cryptographic randomness always comes from
    /// the operating system.
    #[arg(long, value_name = "S")]
    pub(super) seed: Option<u64>,
    /// End after an end-of-text token; the server then learns how many tokens there are.
    #[arg(long)]
    pub(super) stop_at_eos: bool,
}

impl SamplingArgs {
    /// What a report says of it.
    pub(super) fn reported(&self) -> [(&'static str, Value); 4] {
        [
            ("temperature", self.temperature.into()),
            ("top_p", self.top_p.into()),
            ("seed", self.seed.into()),
            ("stop_at_eos", self.stop_at_eos.into()),
        ]
    }

    /// The sampler under `terms`.
    pub(super) fn sampler(&self, terms: &Terms) -> Result<Sampler, Error> {
        if terms.reveal == Reveal::Token && self.temperature != 0.0 {
            return Err(Error::SamplingNeedsLogits);
        }
        if self.temperature == 0.0 && (self.top_p != 1.0 || self.seed.is_some()) {
            return Err(Error::NothingToSample);
        }
        let rng = self.seed.map_or_else(rand::make_rng, StdRng::seed_from_u64);
        Ok(Sampler::random(self.temperature, self.top_p, rng)?)
    }
}

/// The connection between the parties.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum LinkArg {
    /// Both parties in one process.
    Memory,
    /// TCP as it is.
    Loopback,
    /// TCP slowed to a network.
    Shaped(Shape),
}

/// The form of what a command writes to standard output.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct FormatArgs {
    /// Form of the tables. CSV and JSON have raw values, bytes and seconds; LaTeX needs the package booktabs.
    #[arg(long, value_parser = named(&Format::NAMES), default_value = "terminal")]
    pub(super) format: Format,
}

/// How much of the table of operations is shown.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct OperationsArgs {
    /// Rows of the table of operations: the largest ones, or all, which `--operations` alone asks for. With all of
    /// them, a run or a plan also shows what was prepared by kind of correlation.
    #[arg(long = "operations", value_name = "N|all", num_args = 0..=1, default_value = "12", default_missing_value = "all", value_parser = row_count)]
    pub(super) rows: usize,
}

impl OperationsArgs {
    /// Whether all are shown.
    pub(super) fn all(&self) -> bool {
        self.rows == usize::MAX
    }
}

/// A number of rows, or `all`.
fn row_count(text: &str) -> Result<usize, String> {
    let number = || text.parse().map_err(|_| "a number of rows, or `all`, is expected".to_owned());
    if text == "all" { Ok(usize::MAX) } else { number() }
}

/// Names of links, for help texts.
pub(super) const LINKS: &str = "loopback|lan|lan-1g|wan|wan-far|RATEmbit,DELAYms";

/// Names of networks that a program can be planned for.
const PLANNED_LINKS: &str = "lan|lan-1g|wan|wan-far|RATEmbit,DELAYms";

/// A link between two processes, for clap.
pub(super) fn link_between_processes(text: &str) -> Result<LinkArg, String> {
    match text.parse().map_err(|e: ParseShapeError| e.to_string())? {
        LinkArg::Memory => Err("two processes have no memory in common; only `demo` offers it".into()),
        link => Ok(link),
    }
}

impl FromStr for LinkArg {
    type Err = ParseShapeError;

    fn from_str(text: &str) -> Result<Self, ParseShapeError> {
        match text {
            "memory" => Ok(LinkArg::Memory),
            "loopback" => Ok(LinkArg::Loopback),
            _ => text.parse().map(LinkArg::Shaped),
        }
    }
}

impl fmt::Display for LinkArg {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            LinkArg::Memory => f.write_str("memory"),
            LinkArg::Loopback => f.write_str("loopback"),
            LinkArg::Shaped(shape) => shape.fmt(f),
        }
    }
}

impl LinkArg {
    /// The shape to imitate, if there is one.
    pub(super) fn shape(self) -> Option<Shape> {
        match self {
            LinkArg::Shaped(shape) => Some(shape),
            LinkArg::Memory | LinkArg::Loopback => None,
        }
    }

    /// Slows what this party sends on `link`.
    pub(super) fn wrap(self, link: impl Link + 'static) -> Result<Box<dyn Link>, Error> {
        let Some(shape) = self.shape() else { return Ok(Box::new(link)) };
        let shaped =
            Shaped::new(link, shape).map_err(|source| net::NetError::Io { step: "shape the link", source })?;
        Ok(Box::new(shaped))
    }
}

/// A duration in seconds, for clap.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    // A day is beyond every step of a protocol.
    if !(0.001..=86_400.0).contains(&seconds) {
        return Err("give 0.001 to 86400 seconds".into());
    }
    Ok(Duration::from_secs_f64(seconds))
}
