//! `waggle serve`: the party with the model, for many clients at once.
//!
//! | part | what it does |
//! |---|---|
//! | [`door`] | bounds connections that have proved no key yet |
//! | [`visit`] | one connection in a thread of its own: TLS, admission, the session |
//! | [`desk`] | who is served and who waits |
//! | [`watch`] | time limits: closes a connection under its session |
//! | [`accounts`] | what each key has had, kept across restarts |
//! | [`metrics`] | counters and their page |
//! | [`log`] | events to standard error, which may fail |
//! | [`signals`] | the end |
//! | [`ranks`] | products spread over the ranks of mpirun |
//!
//! The main thread waits for the end: a signal, or with `--once` the first session.

mod accounts;
mod desk;
mod door;
mod log;
mod metrics;
mod ranks;
mod signals;
mod visit;
mod watch;

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use accounts::Book;
use clap::Args;
use desk::{Desk, Places};
use door::{Door, Idle};
use metrics::{Metrics, Now};
use model::Lengths;
use net::{Entry, NetError, PublicKey};
use ranks::Job;
use report::Cost;
use serde::{Deserialize, Serialize};
use session::Calibration;
use session::party::{Limits, ModelServer, Outcome, Terms};
use session::pool::{Pools, count, find, writable_by_others};
use tokenizer::ChatTemplate;
use tracing::{info, warn};
use watch::Watch;

use super::draft::DraftLimitArgs;
use super::files::{check_writable, open_model};
use super::options::{LINKS, LinkArg, TermsArgs, link_between_processes, seconds};
use super::trust::{Host, HostArgs, file};
use super::{Error, out};

/// Serves a model: clients generate text with it and do not learn its weights. Many clients are served at once; the
/// others wait in a queue and hear their place. SIGTERM or SIGINT lets running sessions finish; a second signal ends
/// the server at once. One line on standard output says when clients may come.
///
/// `mpirun -n RANKS waggle serve ...`, where waggle was built with `--features mpi`, spreads the products of the
/// online phase over ranks, which may be on several hosts. Rank 0 serves; every rank opens the same --model and
/// touches its own columns of each matrix. Correlations are made on rank 0, which reads all of the model for them.
/// MPI encrypts nothing: masked inputs and products with the weights travel openly between the ranks, and together
/// they give the weights away, so their network must be the server's own.
#[derive(Args, Debug)]
pub(super) struct ServeArgs {
    /// Hugging Face directory, or the name of a bundled model.
    #[arg(long, value_name = "DIR")]
    model: String,
    /// Address to listen on; port 0 takes a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7411")]
    listen: String,
    /// End after one session, with its exit code.
    #[arg(long)]
    once: bool,
    /// Slow this party's messages down to those of a network; the client must do the same.
    #[arg(long, value_name = LINKS, value_parser = link_between_processes, default_value = "loopback")]
    link: LinkArg,
    /// Most tokens of a prompt.
    #[arg(long, value_name = "N", default_value_t = Limits::default().lengths.prompt)]
    max_prompt: usize,
    /// Most tokens to generate for a client.
    #[arg(long, value_name = "N", default_value_t = Limits::default().lengths.tokens)]
    max_tokens: usize,
    /// Most positions of a conversation (`waggle chat`): the tokens of all its turns and answers, which stay in
    /// memory until the client begins another one [default: --max-prompt and --max-tokens together].
    #[arg(long, value_name = "N")]
    max_positions: Option<usize>,
    /// Allow no conversations.
    #[arg(long, conflicts_with = "max_positions")]
    no_chat: bool,
    /// Keep up to so many bytes of transformed weights in memory. Products under encryption make them, and later ones
    /// need not make them again. A weight takes 16 to 96 bytes.
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
    /// Most positions whose logits a key may learn, in all, because logits tell about the weights. Counted across
    /// restarts, in `accounts.json` beside the default identity; clients without keys share an account. `unlimited`
    /// lifts the bound.
    #[arg(long, value_name = "N", value_parser = positions, default_value = "1000000")]
    max_reveals: u64,
    #[command(flatten)]
    draft: DraftLimitArgs,
    /// Most sessions at once. They share the processor's cores [default: one for every two cores].
    #[arg(long, value_name = "N")]
    sessions: Option<usize>,
    /// Most clients that wait for a session; those beyond are refused.
    #[arg(long, value_name = "N", default_value_t = 64)]
    queue: usize,
    /// Most sessions of one key at once, those that wait included [default: no limit].
    #[arg(long, value_name = "N")]
    max_sessions_per_key: Option<usize>,
    /// Do not run the model on a text in the clear first. That run finds models that leave the ranges of operations.
    #[arg(long)]
    no_calibration: bool,
    /// Give up on a client that is silent for this many seconds. The client of a conversation is told, and shows in
    /// time that it is there.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "120")]
    timeout: Duration,
    /// End a session after this many seconds. The client of a conversation is told.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "3600")]
    session_limit: Duration,
    /// Give up on a client that has not proved its key after this many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "10")]
    handshake_timeout: Duration,
    /// Most connections at once that have not proved a key; those beyond are dropped before anything can be said to
    /// them, so their clients read that the connection was closed.
    #[arg(long, value_name = "N", default_value_t = 256)]
    max_idle: usize,
    /// The same from one address (IPv6: one network).
    #[arg(long, value_name = "N", default_value_t = 32)]
    max_idle_per_address: usize,
    /// Write the report of the last session here.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Log events of this importance and above, on standard error.
    #[arg(long, value_enum, value_name = "LEVEL", default_value = "info")]
    log: log::Level,
    /// Log lines of text, or JSON objects.
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text")]
    log_format: log::Format,
    /// Show counters in Prometheus' text format at http://ADDR/metrics. Anybody who reaches the address may read
    /// them.
    #[arg(long, value_name = "ADDR")]
    metrics: Option<String>,
    #[command(flatten)]
    host: HostArgs,
    #[command(flatten)]
    terms: TermsArgs,
    /// Talk JSON on standard output, let in one client alone, and wait for it no longer than the time-out. For
    /// `demo`.
    #[arg(long, hide = true, requires = "once", value_name = "KEY")]
    machine: Option<PublicKey>,
}

/// A number of positions, or all that there can be.
fn positions(text: &str) -> Result<u64, String> {
    if text == "unlimited" { Ok(u64::MAX) } else { text.parse().map_err(|_| "give a number, or `unlimited`".into()) }
}

/// What `--machine` prints: a line when clients may come, and a line at the end.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    /// Clients may come, to a server with this key.
    Listening {
        /// Where to.
        address: SocketAddr,
        /// The server's key.
        key: Option<PublicKey>,
    },
    /// The session is over.
    Ended(Used),
}

/// What a session took of this process.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Used {
    /// Its largest memory.
    pub(super) peak_memory_bytes: Option<u64>,
    /// All accounts, for their CPU times.
    pub(super) entries: Vec<Entry>,
    /// What was made ahead, by kind.
    pub(super) kinds: Vec<Entry>,
    /// Cost of each token after the first.
    pub(super) per_token: Vec<Cost>,
}

impl Line {
    fn print(&self) -> Result<(), Error> {
        out::line(serde_json::to_string(self).map_err(|e| Error::Child { what: e.to_string() })?)
    }
}

pub(super) fn run(args: ServeArgs) -> Result<(), Error> {
    let _flush = log::start(if args.machine.is_some() { log::Level::Error } else { args.log }, args.log_format);
    // The server of a demo belongs to the process that started it, not to a job.
    let job = if args.machine.is_some() { Job::alone() } else { Job::join()? };
    if job.is_helper() {
        return job.help(&args.terms.policy()?, || open_model(&args.model));
    }
    check_writable(args.json.as_deref())?;
    if args.pools.is_some() {
        args.terms.allow_two_phases()?;
    }
    let pools = match &args.pools {
        Some(dir) => Some(Pools::open(dir, args.max_pools_total)?.with_max_per_peer(args.max_pools)),
        None => None,
    };
    if let Some(dir) = args.pools.as_deref().filter(|dir| writable_by_others(dir)) {
        warn!("others can write to {}, and could bring a used pool back", dir.display());
    }
    let host = match args.machine {
        Some(client) if !args.host.is_plaintext() => Host::for_one(client)?,
        _ => args.host.open()?,
    };
    if let Some(warning) = args.host.warning() {
        warn!("{warning}");
    }
    let accounts = match args.machine {
        Some(_) => None,
        None => Some(Book::open(file("accounts.json")?, args.max_reveals)?),
    };
    let io = |what| move |source| Error::Serve { what, source };
    let listener =
        TcpListener::bind(&args.listen).map_err(|source| Error::Listen { address: args.listen.clone(), source })?;
    let address = listener.local_addr().map_err(io("listen"))?;
    let page = args.metrics.as_ref().map(|address| {
        TcpListener::bind(address).map_err(|source| Error::Listen { address: address.clone(), source })
    });
    let page = page.transpose()?;

    let files = job.meet(open_model(&args.model))?;
    let hosted = ModelServer::load_spread(&args.terms.policy()?, files, args.weight_cache, job.spread())?;
    job.ready()?;
    if args.no_calibration {
        warn!(
            "not calibrated: if values of this model leave the ranges of operations, texts are spoilt and nobody notices"
        );
    } else {
        let start = Instant::now();
        let Calibration { tokens } = hosted.calibrate()?;
        info!(
            tokens,
            seconds = start.elapsed().as_secs_f64(),
            "calibrated: a text stays in the ranges of all operations"
        );
    }
    let hosted = match pools {
        Some(pools) => hosted.with_pools(pools),
        None => hosted,
    };
    let hosted = hosted.with_template(template(&args.model).as_ref())?;
    let sessions = match args.sessions {
        _ if args.once => 1,
        Some(sessions) => sessions.max(1),
        None => thread::available_parallelism().map_or(1, usize::from).div_ceil(2),
    };
    let (events, happened) = channel();
    let server = Arc::new(Server {
        hosted,
        terms: args.terms.terms(args.link)?,
        limits: Limits {
            lengths: Lengths { prompt: args.max_prompt, tokens: args.max_tokens },
            conversation: (!args.no_chat)
                .then(|| args.max_positions.unwrap_or(args.max_prompt.saturating_add(args.max_tokens))),
            session: Some(args.session_limit),
            preprocess: args.terms.fixed_preprocess(),
            drafted: args.draft.max_draft,
        },
        link: args.link,
        json: args.json.clone(),
        pools: args.pools.clone(),
        host,
        accounts,
        desk: Desk::new(Places { sessions, queue: args.queue, per_key: args.max_sessions_per_key }),
        door: Door::new(Idle { all: args.max_idle.max(1), per_address: args.max_idle_per_address.max(1) }),
        watch: Watch::start().map_err(io("start a thread"))?,
        metrics: Arc::new(Metrics::new()),
        times: Times { silence: args.timeout, session: args.session_limit, handshake: args.handshake_timeout },
        events: events.clone(),
    });
    signals::on_signal(move |signal| {
        // The main thread has ended already, and takes the process along.
        let _ = events.send(Event::Signal(signal));
    })
    .map_err(io("wait for signals"))?;
    if let Some(page) = page {
        let at = page.local_addr().map_err(io("listen"))?;
        let server = server.clone();
        let metrics = server.metrics.clone();
        metrics::publish(metrics, page, move || server.now()).map_err(io("start a thread"))?;
        info!("metrics at http://{at}/metrics");
    }
    let accepting = server.clone();
    thread::Builder::new()
        .name("waggle-accept".into())
        .spawn(move || accepting.accept(&listener))
        .map_err(io("start a thread"))?;
    let name = &server.hosted.public().name;
    let key = server.host.key();
    if args.machine.is_some() {
        Line::Listening { address, key }.print()?;
    } else {
        let proves = key.map_or("without encryption".into(), |key| format!("with the key {key}"));
        info!(sessions, "serving {name} on {address} {proves}");
        // If nobody takes the line, the server goes on.
        let _ = out::line(format_args!("serving {name} on {address}"));
    }
    server.until_the_end(&args, &happened)
}

/// The chat template of the model directory `name`, if it has one that can be sent. Sessions without a chat need
/// none.
fn template(name: &str) -> Option<ChatTemplate> {
    ChatTemplate::open(Path::new(name)).unwrap_or_else(|error| {
        warn!(%error, "no chat template is served: conversations are raw text");
        None
    })
}

/// What the main thread waits for.
enum Event {
    /// A session began.
    Begun,
    /// A session ended.
    Ended(Box<Result<Outcome, Error>>),
    /// The server must end.
    Signal(&'static str),
}

/// How long things may take.
struct Times {
    /// Silence in a session.
    silence: Duration,
    /// A whole session.
    session: Duration,
    /// Until a client has proved its key.
    handshake: Duration,
}

/// What all sessions share.
struct Server {
    hosted: ModelServer,
    terms: Terms,
    limits: Limits,
    link: LinkArg,
    json: Option<PathBuf>,
    pools: Option<PathBuf>,
    host: Host,
    accounts: Option<Book>,
    desk: Arc<Desk>,
    door: Arc<Door>,
    watch: Arc<Watch>,
    metrics: Arc<Metrics>,
    times: Times,
    events: Sender<Event>,
}

impl Server {
    /// Gives every connection a thread, as long as the process lives.
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        loop {
            let (stream, peer) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) => {
                    warn!(%error, "cannot accept a connection");
                    // A listener that cannot accept fails again at once.
                    thread::sleep(Duration::from_millis(10));
                    continue;
                }
            };
            let Some(place) = self.door.enter(peer.ip()) else {
                self.metrics.dropped();
                tracing::debug!(%peer, "dropped: too many connections that have proved no key");
                continue;
            };
            let server = self.clone();
            let session = thread::Builder::new().name("waggle-session".into());
            if let Err(error) = session.spawn(move || visit::visit(&server, stream, peer, place)) {
                self.metrics.dropped();
                warn!(%peer, %error, "dropped: no thread for the connection");
            }
        }
    }

    /// Waits until the server may end, and lets what runs come to its end.
    fn until_the_end(&self, args: &ServeArgs, happened: &Receiver<Event>) -> Result<(), Error> {
        let mut patience = args.machine.map(|_| args.timeout);
        loop {
            let event = match patience {
                Some(limit) => happened.recv_timeout(limit),
                None => happened.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match event {
                Ok(Event::Begun) => patience = None,
                Ok(Event::Ended(outcome)) if args.once => {
                    self.desk.end();
                    self.desk.drained();
                    return self.report_once(args, *outcome);
                }
                Ok(Event::Ended(_)) => {}
                Ok(Event::Signal(signal)) => {
                    let (running, waiting) = self.desk.counts();
                    info!(running, waiting, "{signal}: what runs is finished, nobody else comes in");
                    self.desk.end();
                    self.desk.drained();
                    info!("the end");
                    return Ok(());
                }
                Err(RecvTimeoutError::Timeout) => {
                    let seconds = args.timeout.as_secs_f64();
                    return Err(NetError::TimedOut { step: "accept", seconds }.into());
                }
                // The server itself holds a sender.
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }

    fn report_once(&self, args: &ServeArgs, outcome: Result<Outcome, Error>) -> Result<(), Error> {
        let Outcome { entries, kinds, per_token, .. } = outcome?;
        if args.machine.is_some() {
            let peak_memory_bytes = net::peak_memory_bytes();
            Line::Ended(Used { peak_memory_bytes, entries, kinds, per_token }).print()?;
        }
        Ok(())
    }

    /// A session begins.
    fn begun(&self) {
        self.tell(Event::Begun);
    }

    /// A session is over.
    fn served(&self, outcome: Result<Outcome, Error>) {
        self.tell(Event::Ended(Box::new(outcome)));
    }

    fn tell(&self, event: Event) {
        // The main thread has ended already, and takes the process along.
        let _ = self.events.send(event);
    }

    /// Pools in the directory; a directory that cannot be read shows none.
    fn pools_kept(&self) -> usize {
        self.pools.as_deref().and_then(|dir| find(dir).ok()).map_or(0, |files| count(&files))
    }

    /// What the page of the metrics says is so now.
    fn now(&self) -> Now {
        let (running, waiting) = self.desk.counts();
        Now { running, waiting, pools: self.pools_kept() }
    }
}
