//! Options that several commands share.

use std::num::NonZeroUsize;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use waggle::{Draft, Network, Sampling, Terms};
use waggle_engine::LogitBits;
use waggle_model::{DEFAULT_RATE, Reveal};
use waggle_mpcache::{Granularity, PolicySpec, Shed};
use waggle_net::LinkShape;
use waggle_net::shaped::ParseShapeError;
use waggle_ot::CotKind;
use waggle_protocols::{Cores, Masks, Packing};
use waggle_report::Price;
use waggle_report::table::{Document, Format, Layout, Table};
use waggle_session::names::{MASKS, OT_SOURCES, PACKINGS, REVEALS};

use super::advice::policy;
use super::{Error, out};

/// Sets options of the library to a command's options of the same names.
macro_rules! set {
    ($options:expr, $args:expr => $($name:ident),+) => {{
        #[allow(clippy::clone_on_copy, reason = "some are copied, and some are not")]
        let options = $options$(.$name($args.$name.clone()))+;
        options
    }};
}

pub(super) use set;

/// Terms that both parties must state alike.
#[derive(Args, Clone, Debug)]
pub(super) struct TermsArgs {
    /// Output that the client learns of each position: all logits, or one token, the most probable or one that is
    /// sampled. A server says the most that it permits [default: logits to its own key, tokens to others], a client
    /// what it wants [default: what the server permits]. Without encryption all count as its own; `plan` and `demo`
    /// take logits.
    #[arg(long, value_parser = named(&REVEALS))]
    reveal: Option<Reveal>,
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
    /// Plan products under encryption for parties with so many cores each, or for a client and a server with these
    /// [default: those that each party has; in `plan` 40]. With fewer the plan computes less and sends more. One
    /// party's word is enough; two must be equal.
    #[arg(long, value_name = "N|CLIENT+SERVER")]
    cores: Option<Cores>,
    /// Plan for this network, whatever `--link` imitates. Without either, the parties of a session measure the link.
    /// One party's word is enough; two must be equal.
    #[arg(long, value_name = PLANNED_LINKS)]
    plan_for: Option<LinkShape>,
    /// Preparation of products with weights, in two phases: with masks that public seeds make (`seeded`), or with
    /// masks that the parties draw and send (`sent`), which takes about twice the bytes.
    #[arg(long, value_parser = named(&MASKS), default_value = "seeded")]
    masks: Masks,
    /// Read the prompt in chunks of so many tokens. The text is the same, unless rows end (`--shed`), which vote by
    /// chunk; shorter chunks take less memory and more round trips. Without it long prompts are read in chunks that
    /// bound memory.
    #[arg(long, value_name = "N")]
    prefill_chunk: Option<NonZeroUsize>,
}

/// Which part of the key/value cache a token looks at.
#[derive(Args, Clone, Debug)]
pub(super) struct PolicyArgs {
    /// Which part of the key/value cache a token looks at: NAME or NAME:key=value,key=value. `waggle policies` lists
    /// them.
    #[arg(long, value_name = "POLICY", default_value = "full", value_parser = policy)]
    policy: PolicySpec,
    /// Who shares a choice of clusters: every query head has its own (per-head), the heads of one key/value head
    /// share one (per-kv), or the whole layer shares one (per-layer). The same as the policy's option `select`.
    #[arg(long, value_name = "per-head|per-kv|per-layer")]
    select: Option<Granularity>,
    /// Let rows of the prompt end at layers: `4:0.5,8:0.25` leaves half of them from layer 4 on, counted from 0, and
    /// a quarter from layer 8 on; or `pyramidinfer`, `lazyllm`, `spatten`, `bolt`, `cipherprune`. Those that received
    /// the most attention stay. Rotary positions are numbered anew, unless `/own` follows. The same as the policy's
    /// option `shed`.
    #[arg(long, value_name = "SCHEDULE")]
    shed: Option<Shed>,
}

impl PolicyArgs {
    /// The chosen policy.
    pub(super) fn spec(&self) -> Result<PolicySpec, Error> {
        let mut policy = self.policy.clone();
        if let Some(select) = self.select {
            policy = policy.with("select", &select.to_string())?;
        }
        if let Some(shed) = &self.shed {
            policy = policy.with("shed", &shed.to_string())?;
        }
        Ok(policy)
    }
}

/// A parser of the names in `table`, for clap.
pub(super) fn named<T: Copy + Send + Sync + 'static>(
    table: &'static [(&'static str, T)],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(table.iter().map(|(name, _)| *name)).try_map(|given: String| {
        let known = table.iter().find(|(name, _)| **name == *given);
        known.map(|(_, value)| *value).ok_or("no such value")
    })
}

impl TermsArgs {
    /// The chosen terms.
    pub(super) fn terms(&self) -> Result<Terms, Error> {
        let terms = Terms::default().policy(self.policy.spec()?);
        Ok(set!(terms, self => reveal, logit_bits, ot, preprocess, packing, cores, plan_for, masks, prefill_chunk))
    }
}

/// The client's choice of tokens.
#[derive(Args, Clone, Debug)]
pub(super) struct SamplingArgs {
    /// Sample from softmax(logits / T); 0 takes the most probable token.
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temperature: f32,
    /// Sample among the most probable tokens that together reach this probability. Needs logits (--reveal).
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    top_p: f32,
    /// Repeat a sampled text. The seed decides the choice of tokens alone; cryptographic randomness always comes from
    /// the operating system.
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// End after an end-of-text token; the server then learns how many tokens there are.
    #[arg(long)]
    pub(super) stop_at_eos: bool,
}

impl SamplingArgs {
    pub(super) fn sampling(&self) -> Sampling {
        Sampling::default().temperature(self.temperature).top_p(self.top_p).seed(self.seed)
    }
}

/// The client's guesses at the next tokens.
#[derive(Args, Clone, Debug)]
pub(super) struct DraftArgs {
    /// Guess the next K tokens (4 unless given) and check all of them in one pass, which takes about as many flows as
    /// a pass over one token, and K + 1 times the bytes of most operations. The text is the same. `lookup[:K]` looks
    /// up how the text went on after the same words before; `model:DIR[:K]` runs a small public model with the same
    /// vocabulary, on this machine and in the clear. The server learns how many tokens each pass keeps, and no word
    /// of the guesses. The client learns what the model says after wrong guesses too, so the server must agree
    /// (`serve --max-draft`). Needs the policy `full`, or `snapkv`, `pyramid`, `squeeze` or `mpcache-2pc` with a
    /// share, and no pool.
    #[arg(long, value_name = "lookup[:K]|model:DIR[:K]")]
    draft: Option<Draft>,
    /// Tokens that a pass is expected to keep on average, between 1 and K + 1. With --preprocess correlations are
    /// made for as many passes as that takes. Further passes make their own on the spot, with several times the
    /// flows; if fewer passes run, the rest is wasted. When unsure, set it low.
    #[arg(long, value_name = "R", requires = "draft", default_value_t = DEFAULT_RATE)]
    draft_rate: f64,
    /// Let the server learn less: a pass keeps the number of tokens that --draft-rate says for it, if so many are
    /// right, and one otherwise. That is a bit for each pass that may keep several, and no word of the others. The
    /// rate is then also how fast the text can be at most: K + 1 means all or one.
    #[arg(long, requires = "draft")]
    draft_steady: bool,
}

impl DraftArgs {
    pub(super) fn draft(&self) -> Option<Draft> {
        self.draft.clone().map(|draft| draft.rate(self.draft_rate).steady(self.draft_steady))
    }
}

/// What a session's work costs.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct PriceArgs {
    /// Add what everything costs in cents: an hour of a core of either party and a gigabyte that is sent, or one of
    /// the two. In a plan core hours need a calibration; nothing has a price unless it is given.
    #[arg(long, value_name = "core-hour=X,gb=Y")]
    price: Option<Price>,
    /// Add the energy of the parties' cores in joules, each of which draws so many watts while it works.
    #[arg(long, value_name = "W", value_parser = watts)]
    watts: Option<f64>,
}

impl PriceArgs {
    pub(super) fn price(&self) -> Price {
        Price { watts: self.watts, ..self.price.unwrap_or_default() }
    }
}

fn watts(text: &str) -> Result<f64, String> {
    let watts = text.parse().ok().filter(|watts: &f64| watts.is_finite() && *watts >= 0.0);
    watts.ok_or_else(|| "a number of watts is expected".to_owned())
}

/// The form of what a command writes to standard output.
#[derive(Args, Clone, Debug)]
pub(super) struct FormatArgs {
    /// Form of the tables. CSV and JSON have raw values, bytes and seconds; LaTeX needs the package booktabs.
    #[arg(long, value_parser = named(&Format::NAMES), default_value = "terminal")]
    format: Format,
    /// Write these columns alone, in this order, by the names that --format csv gives them.
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',')]
    columns: Vec<String>,
    /// Write these rows alone: those with this value in this column, both as --format csv has them. Several values of
    /// one column may be given.
    #[arg(long = "where", id = "where", value_name = "NAME=VALUE", value_parser = of_column)]
    rows: Vec<(String, String)>,
    /// Caption of the table in LaTeX.
    #[arg(long, value_name = "TEXT")]
    caption: Option<String>,
    /// Label of the table in LaTeX.
    #[arg(long, value_name = "NAME")]
    label: Option<String>,
    /// Set the table of LaTeX across the page, not in one of its columns.
    #[arg(long)]
    wide: bool,
}

fn of_column(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("NAME=VALUE is expected")?;
    Ok((name.to_owned(), value.to_owned()))
}

impl FormatArgs {
    /// Whether the format is for programs.
    pub(super) fn is_for_programs(&self) -> bool {
        matches!(self.format, Format::Csv | Format::Json)
    }

    /// Writes `tables` to standard output.
    pub(super) fn show(&self, tables: impl Into<Document>) -> Result<(), Error> {
        out::line(self.laid_out(tables)?.render(self.format, out::width()))
    }

    /// Refuses columns that `table`, which is still empty, does not have.
    pub(super) fn check(&self, table: &Table) -> Result<(), Error> {
        self.laid_out(table.clone()).map(drop)
    }

    fn laid_out(&self, tables: impl Into<Document>) -> Result<Document, Error> {
        let FormatArgs { columns, rows, caption, label, wide, .. } = self.clone();
        tables.into().laid_out(&Layout { columns, rows, caption, label, wide }).map_err(Error::Column)
    }
}

/// The length of the table of operations.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct OperationsArgs {
    /// Rows of the table of operations: the largest ones, or all, which `--operations` alone asks for. With all of
    /// them, a run or a plan also shows what was prepared by kind of correlation.
    #[arg(long = "operations", value_name = "N|all", num_args = 0..=1, default_value = "12", default_missing_value = "all", value_parser = row_count)]
    pub(super) rows: usize,
}

impl OperationsArgs {
    /// Whether the user stated the number of rows.
    pub(super) fn given(&self) -> bool {
        self.rows != 12
    }

    /// Whether all rows are shown.
    pub(super) fn all(&self) -> bool {
        self.rows == usize::MAX
    }
}

fn row_count(text: &str) -> Result<usize, String> {
    let number = || text.parse().map_err(|_| "a number of rows, or `all`, is expected".to_owned());
    if text == "all" { Ok(usize::MAX) } else { number() }
}

/// Names of links, for help texts.
pub(super) const LINKS: &str = "loopback|lan|lan-1g|wan|wan-far|PAPER|RATEmbit,DELAYms";

/// Names of networks for which a session can be planned.
const PLANNED_LINKS: &str = "lan|lan-1g|wan|wan-far|PAPER|RATEmbit,DELAYms";

/// Parses a link between two processes, for clap.
pub(super) fn link_between_processes(text: &str) -> Result<Network, String> {
    let network: Network = text.parse().map_err(|e: ParseShapeError| e.to_string())?;
    network.between_processes().map_err(|e| e.to_string())
}

/// Parses a duration in seconds, for clap.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    // No step of a protocol takes a day.
    if !(0.001..=86_400.0).contains(&seconds) {
        return Err("give 0.001 to 86400 seconds".into());
    }
    Ok(Duration::from_secs_f64(seconds))
}
