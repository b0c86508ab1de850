//! `waggle serve`: the party with the model, for many clients at once.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use waggle::{Allow, Job, Network, OptionsError, Proof, Reveals, Server, ServerConfig};
use waggle_model::Parts;
use waggle_net::{Identity, PublicKey};
use waggle_session::party::{Limits, Outcome};

use super::child::{Line, Used};
use super::connect::{BusyArgs, DoorArgs};
use super::helper::HelpedArgs;
use super::options::{LINKS, TermsArgs, link_between_processes, named, seconds, set};
use super::policies::{self, Policies};
use super::prompt::PublicArgs;
use super::{Error, log, out};

/// Serves a model: clients generate text with it and do not learn its weights. Many clients are served at once; the
/// others wait in a queue. SIGTERM or SIGINT lets running sessions finish; a second signal ends
/// the server at once. One line on standard output says when clients may come.
///
/// `mpirun -n RANKS waggle serve ...`, where waggle was built with `--features mpi`, spreads products with weights,
/// online and in preparation, over ranks, which may be on several hosts. Rank 0 serves; every rank opens the same
/// --model and touches its own columns of each matrix. Products in one phase are made on rank 0 alone.
/// MPI encrypts nothing: masked inputs and products with the weights travel openly between the ranks, and together
/// they give the weights away, so their network must be the server's own.
#[derive(Args, Debug)]
pub(super) struct ServeArgs {
    /// Hugging Face directory, or the name of a bundled model.
    #[arg(long, value_name = "DIR", required_unless_present = "base")]
    model: Option<String>,
    /// Serve this model in the place of --model, all of which is public: clients have it themselves (`--base`), and
    /// only what --adapter adds is a secret.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["model", "public"], requires = "adapter")]
    base: Option<String>,
    /// A LoRA in PEFT's form that is added to the matrices of the model: a directory with `adapter_config.json` and
    /// `adapter_model.safetensors`. Clients learn which matrices it adapts and the largest rank of each kind.
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,
    /// Parts of the model that are public, and that clients have themselves (`--base`): `embedding`, `head`,
    /// `layers=FIRST-LAST`, with commas between them, or `all`. Products with them send nothing. Name only what is
    /// published: whoever has the same files finds out that they are these. No part is public unless it is named.
    #[arg(long, value_name = "PARTS", default_value = "")]
    public: Parts,
    /// Address to listen on; port 0 takes a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7411")]
    listen: String,
    /// End after one session, with its exit code.
    #[arg(long)]
    once: bool,
    /// Slow this party's messages down to those of a network; the client must do the same.
    #[arg(long, value_name = LINKS, value_parser = link_between_processes, default_value = "loopback")]
    link: Network,
    /// Most tokens of a prompt, or of all prompts that are read side by side.
    #[arg(long, value_name = "N", default_value_t = Limits::default().lengths.prompt)]
    max_prompt: usize,
    /// Most public tokens that a client may have the server read before its texts (`generate --public-prefix`), those
    /// that the server offers included.
    #[arg(long, value_name = "N", default_value_t = 1024)]
    max_public: usize,
    #[command(flatten)]
    offer: PublicArgs,
    /// Most tokens to generate for a client, of all its texts together.
    #[arg(long, value_name = "N", default_value_t = Limits::default().lengths.tokens)]
    max_tokens: usize,
    /// Most positions of a conversation (`waggle chat`): the tokens of all its turns and answers, which stay in
    /// memory until the client begins another one [default: --max-prompt and --max-tokens together].
    #[arg(long, value_name = "N")]
    max_positions: Option<usize>,
    /// Policies among which clients choose, with `;` between those that have options: 'full,h2o;snapkv:budget=64'.
    /// The only one is otherwise that of --policy.
    #[arg(long, value_name = "POLICIES", value_parser = policies::list, conflicts_with_all = ["policy", "select", "shed"])]
    policies: Option<Policies>,
    /// Allow no conversations.
    #[arg(long, conflicts_with = "max_positions")]
    no_chat: bool,
    /// Let the server keep up to so many bytes of transformed weights in memory. Products under encryption make them,
    /// and later ones need not make them again. A weight takes 16 to 96 bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    weight_cache: usize,
    /// Keep this party's part of the pools that clients fill (`waggle preprocess`) and spend (`waggle generate
    /// --pool`) in this directory. They are as secret as the weights: never copy or restore them. Servers of one
    /// identity and model may share the directory, on different hosts if the file system has locks for all of them.
    #[arg(long, value_name = "DIR")]
    pools: Option<PathBuf>,
    /// Most pools of one key in the directory; a client that wants to fill another is refused. All parts of a pool
    /// count as one, from the first on.
    #[arg(long, value_name = "N", default_value_t = 64, requires = "pools")]
    max_pools: usize,
    /// Most pools of all keys together.
    #[arg(long, value_name = "N", default_value_t = 1024, requires = "pools")]
    max_pools_total: usize,
    /// Most positions that a key may have in all, since the outputs of a model tell about its weights. Each token of
    /// a prompt counts as one position, and so does each token that is generated or guessed. The count survives
    /// restarts, in `accounts.json` beside the default identity; clients without keys share an account. `unlimited`
    /// lifts the bound [default: 5 % of the number of positions whose logits give the model's secret weights away,
    /// but no bound for the server's own key; the log names the number at the start].
    #[arg(long, value_name = "N")]
    max_reveals: Option<Reveals>,
    /// Give each client's key halves of the weights of its own (--helper-weights, --parties 3), so that what one
    /// client and the helper have together is of no use with another's. The helper then keeps 8 bytes a weight for
    /// every client and not once, and gets 4 to 8 bytes a weight of this server at each client's first session.
    #[arg(long)]
    halves_by_client: bool,
    /// Most guesses in a pass of a client that drafts (`generate --draft`); 0 refuses drafts. They count for
    /// --max-reveals, wrong or right. Three parties take none.
    #[arg(long, value_name = "K", default_value_t = Limits::default().drafted)]
    max_draft: usize,
    /// Most sessions at once. They share the processor's cores [default: one for every two cores].
    #[arg(long, value_name = "N")]
    sessions: Option<usize>,
    /// Most clients that wait for a session; those beyond are refused.
    #[arg(long, value_name = "N", default_value_t = 64)]
    queue: usize,
    /// Most sessions of one key at once, those that wait included [default: no limit].
    #[arg(long, value_name = "N")]
    max_sessions_per_key: Option<usize>,
    /// Do not run the model on a text in the clear first. That run finds models that leave the ranges of operations,
    /// whose texts are spoilt. The server does it.
    #[arg(long)]
    skip_range_check: bool,
    /// Give up on a client that is silent for this many seconds. The client of a conversation is told, and shows in
    /// time that it is there.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "120")]
    timeout: Duration,
    #[command(flatten)]
    busy: BusyArgs,
    /// Write the report of the last session here.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Log events of this importance and above, on standard error.
    #[arg(long, value_parser = named(&log::LEVELS), value_name = "LEVEL", default_value = "info")]
    log: log::LevelFilter,
    /// Log lines of text, or JSON objects.
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text")]
    log_format: log::Format,
    /// Show counters in Prometheus' text format at http://ADDR/metrics. Anybody who reaches the address may read
    /// them.
    #[arg(long, value_name = "ADDR")]
    metrics: Option<String>,
    #[command(flatten)]
    door: DoorArgs,
    #[command(flatten)]
    helped: HelpedArgs,
    #[command(flatten)]
    terms: TermsArgs,
    /// Talk JSON on standard output, let in one client alone, and wait for it no longer than the time-out. For
    /// `demo`.
    #[arg(long, hide = true, requires = "once", value_name = "KEY")]
    machine: Option<PublicKey>,
}

impl ServeArgs {
    fn config(&self) -> Result<ServerConfig, Error> {
        let allow = self.machine.map_or_else(|| self.door.allow(), Allow::One);
        let proof = match self.machine {
            Some(_) if !self.door.is_plaintext() => Proof::Own(Arc::new(Identity::generate()?)),
            _ => self.door.proof(),
        };
        let (model, public) = match (&self.base, &self.model) {
            (Some(base), _) => (base.clone(), Parts::all()),
            (None, model) => (model.clone().unwrap_or_default(), self.public.clone()),
        };
        let terms = self.terms.terms()?.helper(self.helped.helper()?);
        let config = ServerConfig::default()
            .model(model)
            .public(public)
            .network(self.link)
            .conversations(!self.no_chat)
            .offer(self.offer.read()?)
            .max_reveals(match self.machine {
                Some(_) => Reveals::Unlimited,
                None => self.max_reveals.unwrap_or_default(),
            })
            .sessions(if self.once { Some(1) } else { self.sessions })
            .range_check(!self.skip_range_check)
            .report(self.json.clone())
            .allow(allow)
            .proof(proof);
        let config = match self.policies.as_ref().map(|policies| policies.0.split_first()) {
            Some(Some((first, others))) => config.terms(terms.policy(first.clone())).policies(others.to_vec()),
            _ => config.terms(terms),
        };
        let config = set!(config, self => adapter, listen, max_prompt, max_public, max_tokens, max_positions, max_draft, weight_cache);
        let config = set!(config, self => pools, max_pools, max_pools_total, queue, max_sessions_per_key, metrics);
        let config = set!(config, self.busy => session_limit, handshake_timeout, max_idle, max_idle_per_address);
        Ok(set!(config, self => timeout, halves_by_client))
    }
}

/// Serves until a signal, outside mpirun.
pub(super) fn run_as(config: ServerConfig, level: &str) -> Result<(), Error> {
    let known = log::LEVELS.iter().find(|(name, _)| name.eq_ignore_ascii_case(level));
    let (_, level) = known.ok_or_else(|| OptionsError::Level(level.into()))?;
    let _flush = log::start(*level, log::Format::Text);
    Ok(announced(config, &Job::alone())?.run()?)
}

/// Starts a server, and writes a line when clients may connect.
fn announced(config: ServerConfig, job: &Job) -> Result<Server, Error> {
    let server = config.bind_as(job)?.until_signalled()?;
    // If the line cannot be written, the server goes on.
    let _ = out::line(format_args!("serving {} on {}", server.model(), server.address()));
    Ok(server)
}

pub(super) fn run(args: ServeArgs) -> Result<(), Error> {
    let _flush = log::start(if args.machine.is_some() { log::LevelFilter::ERROR } else { args.log }, args.log_format);
    // The server of a demo belongs to the process that started it, not to a job of mpirun.
    let job = if args.machine.is_some() { Job::alone() } else { Job::join()? };
    let config = args.config()?;
    if job.follows() {
        return Ok(job.follow(&config)?);
    }
    if args.machine.is_none() {
        let server = announced(config, &job)?;
        return Ok(if args.once { server.run_once(None).map(drop) } else { server.run() }?);
    }
    let server = config.bind()?.until_signalled()?;
    Line::Listening { address: server.address(), key: server.key() }.print()?;
    if let Some(Outcome { entries, kinds, per_token, helper: [_, helper], .. }) =
        server.run_once(Some(args.timeout))?
    {
        let peak_memory_bytes = waggle_net::peak_memory_bytes();
        Line::Ended(Used { peak_memory_bytes, entries, kinds, per_token, helper }).print()?;
    }
    Ok(())
}
