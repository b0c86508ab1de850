//! The party with the model, for many clients at once.
//!
//! | part | what it does |
//! |---|---|
//! | [`helper`] | the third machine, another program |
//! | [`host`] | who the server is, and whom it lets in |
//! | [`door`] | bounds connections that have proved no key yet |
//! | [`visit`] | one connection in a thread of its own: TLS, admission, the session |
//! | [`desk`] | who is served and who waits |
//! | [`watch`] | time limits: closes a connection under its session |
//! | [`accounts`] | what each key has had, kept across restarts |
//! | [`metrics`] | counters and their page |
//! | [`signals`] | the end |
//! | [`ranks`] | products spread over the ranks of mpirun |
//!
//! The thread that calls [`Server::run`] waits for the end. Events go to [`tracing`].

mod accounts;
mod desk;
mod door;
mod helper;
mod host;
mod metrics;
mod ranks;
mod signals;
mod visit;
mod watch;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use tracing::{info, warn};
use waggle_model::{Lengths, Parts, QUOTA_SHARE, Reveal};
use waggle_mpcache::PolicySpec;
use waggle_net::{NetError, PublicKey};
use waggle_session::RangeCheck;
use waggle_session::party::{self, Caller, Limits, ModelServer, Open, Outcome, PublicModel};
use waggle_session::pool::{Pools, count, find, writable_by_others};
use waggle_tokenizer::ChatTemplate;

pub use self::door::network_of;
pub use self::helper::{HelperConfig, HelperServer};
pub use self::host::Allow;
pub use self::ranks::Job;
pub use self::signals::on_signal;
use crate::error::{OptionsError, ServeError};
use crate::keys::{Proof, file};
use crate::models::open_adapted;
use crate::options::options;
use crate::{Error, Network, Terms};

use accounts::Book;
use desk::{Desk, Places};
use door::{Door, Idle, Pause, concerns_one};
use host::Host;
use metrics::{Metrics, Now};
use watch::Watch;

options! {
    /// Settings of a server: `Server::of("shakespeare-gpt2").listen("127.0.0.1:7411").bind()?.run()`.
    ServerConfig {
        /// Hugging Face directory, or the name of a bundled model.
        model: String as impl Into<String> = crate::DEFAULT_MODEL.into(),
        /// Parts of the model that clients have themselves: `"embedding,layers=0-3".parse()?`. No other is public.
        public: Parts = Parts::default(),
        /// A LoRA in PEFT's form that is added to the model's matrices, a directory.
        adapter: Option<PathBuf> as impl Into<Option<PathBuf>> = None,
        /// Address to listen on; port 0 takes a free one.
        listen: String as impl Into<String> = "127.0.0.1:7411".into(),
        /// Terms that both parties must state alike. A server that is given a number of phases refuses the other one.
        terms: Terms = Terms::default(),
        /// Policies that clients may choose besides that of the terms. All of them need the same columns of the
        /// model.
        policies: Vec<PolicySpec> = Vec::new(),
        /// Slow this party's messages down to those of a network; the client must do the same.
        network: Network = Network::Loopback,
        /// Most tokens of a prompt.
        max_prompt: usize = Limits::default().lengths.prompt,
        /// Most tokens to generate for a client.
        max_tokens: usize = Limits::default().lengths.tokens,
        /// Whether there are conversations.
        conversations: bool = true,
        /// Most positions of a conversation; those of prompt and text together unless told otherwise.
        max_positions: Option<usize> as impl Into<Option<usize>> = None,
        /// Most guesses in a pass of a client that drafts; 0 refuses drafts.
        max_draft: usize = Limits::default().drafted,
        /// Bytes of transformed weights that stay in memory.
        weight_cache: usize = 0,
        /// Keep this party's part of the pools that clients fill and spend in this directory. They are as secret as
        /// the weights: never copy or restore them.
        pools: Option<PathBuf> as impl Into<Option<PathBuf>> = None,
        /// Most pools of one key in the directory.
        max_pools: usize = 64,
        /// Most pools of all keys together.
        max_pools_total: usize = 1024,
        /// Most positions that a key may have, in all and across restarts, because each tells about the weights.
        max_reveals: Reveals as impl Into<Reveals> = Reveals::OfModel,
        /// Whether the halves that a helper keeps of the weights are each client's own: one client and the helper
        /// cannot use what another has, and the helper keeps 8 bytes a weight for each.
        halves_by_client: bool = false,
        /// Most sessions at once; one for every two cores unless told otherwise.
        sessions: Option<usize> as impl Into<Option<usize>> = None,
        /// Most clients that wait for a session.
        queue: usize = 64,
        /// Most sessions of one key at once, those that wait included.
        max_sessions_per_key: Option<usize> as impl Into<Option<usize>> = None,
        /// Run the model on a text in the clear first, which finds models that leave the ranges of operations.
        range_check: bool = true,
        /// Give up on a client that is silent for so long.
        timeout: Duration = Duration::from_secs(120),
        /// End a session after so long.
        session_limit: Duration = Duration::from_secs(3600),
        /// Give up on a client that has not proved its key after so long.
        handshake_timeout: Duration = Duration::from_secs(10),
        /// Most connections at once that have not proved a key.
        max_idle: usize = 256,
        /// Most such connections from one address (IPv6: one network).
        max_idle_per_address: usize = 32,
        /// Write the report of the last session here.
        report: Option<PathBuf> as impl Into<Option<PathBuf>> = None,
        /// Show counters in Prometheus' text format at http://ADDR/metrics, to everybody who reaches the address.
        metrics: Option<String> as impl Into<Option<String>> = None,
        /// Whom it lets in, beside itself.
        allow: Allow = Allow::Known,
        /// Who this party is.
        proof: Proof = Proof::User,
    }
}

/// Most positions that a key may have in all: those that it has read or generated, padding and guesses included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reveals {
    /// One in [`QUOTA_SHARE`](waggle_model::QUOTA_SHARE) of those that give the model's secret weights away
    /// ([`telling_positions`](waggle_model::ModelSpec::telling_positions)), for every key but the server's own.
    #[default]
    OfModel,
    /// So many, for every key.
    Most(u64),
    /// Any number.
    Unlimited,
}

impl From<u64> for Reveals {
    fn from(positions: u64) -> Self {
        Reveals::Most(positions)
    }
}

impl FromStr for Reveals {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "unlimited" => Ok(Reveals::Unlimited),
            _ => text.parse().map(Reveals::Most).map_err(|_| "give a number, or `unlimited`".to_owned()),
        }
    }
}

impl Reveals {
    /// The limit for `model`; says what it stands for.
    fn limit(self, model: &PublicModel) -> Result<Option<u64>, Error> {
        let telling = match self {
            Reveals::Unlimited => return Ok(None),
            Reveals::Most(limit) => return Ok(Some(limit)),
            Reveals::OfModel => model.spec.telling_positions(&model.disclosure.disclosed)?,
        };
        let limit = telling.map(|telling| telling.div_ceil(QUOTA_SHARE));
        if let (Some(telling), Some(limit)) = (telling, limit) {
            info!(
                "each key but this server's own may have {limit} positions, read or generated: 1 in {QUOTA_SHARE} of \
                 the {telling} whose logits give the secret weights away"
            );
        }
        Ok(limit)
    }
}

impl ServerConfig {
    /// Reads the model and listens. Clients may come from here on, and are served by [`Server::run`].
    ///
    /// # Errors
    /// If the model cannot be served, a file not be read or the address not be taken.
    pub fn bind(self) -> Result<Server, Error> {
        self.bind_as(&Job::alone())
    }

    /// [`ServerConfig::bind`] on rank 0 of `job`.
    ///
    /// # Errors
    /// Those of [`ServerConfig::bind`], and if the ranks have different models.
    pub fn bind_as(self, job: &Job) -> Result<Server, Error> {
        self.network.between_processes()?;
        let learned = self.terms.policy.needs_scoring_head();
        for policy in &self.policies {
            if policy.clear_only() {
                return Err(OptionsError::ClearOnly(policy.to_string()).into());
            }
            if policy.needs_scoring_head() != learned {
                return Err(waggle_session::Error::OtherColumns { learned, policy: policy.to_string() }.into());
            }
        }
        waggle_files::check_writable(self.report.as_deref())?;
        let pools = match &self.pools {
            Some(dir) => {
                self.terms.two_phases()?;
                Some(Pools::open(dir, self.max_pools_total)?.with_max_per_peer(self.max_pools))
            }
            None => None,
        };
        if let Some(dir) = self.pools.as_deref().filter(|dir| writable_by_others(dir)) {
            warn!("others can write to {}, and could bring a used pool back", dir.display());
        }
        let host = Host::open(&self.proof, self.allow.clone())?;
        match (&self.proof, &self.allow) {
            (Proof::Plaintext, _) => warn!("nothing is encrypted, and everybody is let in"),
            (_, Allow::Any) => warn!("every client that proves any key is let in"),
            _ => {}
        }
        let listener = listen(&self.listen)?;
        let address = listener.local_addr().map_err(system("listen"))?;
        let page = self.metrics.as_deref().map(listen).transpose()?;

        let files = job.meet(open_adapted(&self.model, self.adapter.as_deref()))?;
        let hosted = ModelServer::builder()
            .policy(&self.terms.policy)
            .public(&self.public)
            .weight_cache(self.weight_cache)
            .spread(job.spread())
            .load(files)?;
        job.ready()?;
        if self.range_check {
            let start = Instant::now();
            let RangeCheck { tokens } = hosted.check_ranges()?;
            let seconds = start.elapsed().as_secs_f64();
            info!(tokens, seconds, "range check: a text stays in the ranges of all operations");
        } else {
            warn!(
                "no range check: if values of this model leave the ranges of operations, texts are spoilt and nobody notices"
            );
        }
        let accounts = self.max_reveals.limit(hosted.public())?;
        let accounts = accounts.map(|limit| Book::open(file("accounts.json")?, limit)).transpose()?;
        let hosted = match &self.terms.helper {
            Some(helper) => hosted
                .with_helper(helper.way(&self.proof, self.network, self.timeout)?)
                .with_halves(self.halves_by_client),
            None => hosted,
        };
        let hosted = match pools {
            Some(pools) => hosted.with_pools(pools),
            None => hosted,
        };
        let hosted = hosted.with_template(template(&self.model).as_ref())?;
        let sessions = self.sessions.map_or_else(
            || thread::available_parallelism().map_or(1, usize::from).div_ceil(2),
            |sessions| sessions.max(1),
        );
        let (events, happened) = channel();
        let desk = Desk::new(Places { sessions, queue: self.queue, per_key: self.max_sessions_per_key });
        let door = Door::new(Idle { all: self.max_idle.max(1), per_address: self.max_idle_per_address.max(1) });
        let service = Arc::new(Service {
            hosted,
            terms: party::Terms { others: self.policies.clone(), ..self.terms.over(self.network)? },
            limits: self.limits(),
            host,
            accounts,
            desk,
            door,
            watch: Watch::start().map_err(system("start a thread"))?,
            metrics: Arc::new(Metrics::new()),
            config: self,
            over: AtomicBool::new(false),
            events,
        });
        if let Some(page) = page {
            let at = page.local_addr().map_err(system("listen"))?;
            let (metrics, looked_at) = (service.metrics.clone(), service.clone());
            metrics::publish(metrics, page, move || looked_at.now()).map_err(system("start a thread"))?;
            info!("metrics at http://{at}/metrics");
        }
        if !service.config.public.is_empty() {
            info!(parts = %service.config.public, "clients have these parts of the model themselves");
        }
        let key = service.host.key();
        let proves = key.map_or("without encryption".into(), |key| format!("with the key {key}"));
        info!(sessions, "serving {} on {address} {proves}", service.hosted.public().name);
        Ok(Server { service, listener, address, happened })
    }

    fn limits(&self) -> Limits {
        let both = self.max_prompt.saturating_add(self.max_tokens);
        Limits {
            lengths: Lengths { prompt: self.max_prompt, tokens: self.max_tokens },
            conversation: self.conversations.then(|| self.max_positions.unwrap_or(both)),
            session: Some(self.session_limit),
            preprocess: self.terms.preprocess,
            drafted: self.max_draft,
        }
    }
}

fn listen(address: &str) -> Result<TcpListener, Error> {
    TcpListener::bind(address).map_err(|source| ServeError::Listen { address: address.into(), source }.into())
}

fn system(what: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::System { what, source }
}

/// The chat template of the model directory `name`, if it has one that can be sent. Sessions without a chat need
/// none.
fn template(name: &str) -> Option<ChatTemplate> {
    ChatTemplate::open(Path::new(name)).unwrap_or_else(|error| {
        warn!(%error, "no chat template is served: conversations are raw text");
        None
    })
}

/// An event that a server waits for.
enum Happened {
    Begun,
    Ended(Box<Result<Outcome, Error>>),
    Stop(&'static str),
}

/// The state that all sessions share.
struct Service {
    config: ServerConfig,
    hosted: ModelServer,
    terms: waggle_session::party::Terms,
    limits: Limits,
    host: Host,
    accounts: Option<Book>,
    desk: Arc<Desk>,
    door: Arc<Door>,
    watch: Arc<Watch>,
    metrics: Arc<Metrics>,
    /// Nobody is accepted any more.
    over: AtomicBool,
    events: Sender<Happened>,
}

/// A server that listens.
pub struct Server {
    service: Arc<Service>,
    listener: TcpListener,
    address: SocketAddr,
    happened: Receiver<Happened>,
}

/// Ends a server.
#[derive(Clone)]
pub struct Stop(Sender<Happened>);

impl Stop {
    /// Lets running sessions finish, ends conversations in which nothing runs, lets nobody else in, and ends
    /// [`Server::run`].
    pub fn stop(&self) {
        self.because("stop");
    }

    fn because(&self, why: &'static str) {
        // It may have ended already.
        let _ = self.0.send(Happened::Stop(why));
    }
}

impl Server {
    /// A server of `model`, a directory or a bundled name.
    pub fn of(model: impl Into<String>) -> ServerConfig {
        ServerConfig::default().model(model)
    }

    /// Where clients find it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The key that it proves; `None` without encryption.
    pub fn key(&self) -> Option<PublicKey> {
        self.service.host.key()
    }

    /// The name of its model.
    pub fn model(&self) -> &str {
        &self.service.hosted.public().name
    }

    /// A handle that ends it.
    pub fn stop(&self) -> Stop {
        Stop(self.service.events.clone())
    }

    /// Lets SIGTERM and SIGINT end it: the first in good order, the second at once.
    ///
    /// # Errors
    /// If the system does not allow it.
    pub fn until_signalled(self) -> Result<Self, Error> {
        let stop = self.stop();
        signals::on_signal(move |signal| stop.because(signal)).map_err(system("wait for signals"))?;
        Ok(self)
    }

    /// Serves until somebody stops it.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn run(self) -> Result<(), Error> {
        self.serve(false, None).map(drop)
    }

    /// Serves one client and returns what its session took; `None` if somebody stopped it before. With `patience` the
    /// client must come within it.
    ///
    /// # Errors
    /// Those of the session, and [`NetError::TimedOut`].
    pub fn run_once(self, patience: Option<Duration>) -> Result<Option<Outcome>, Error> {
        self.serve(true, patience)
    }

    fn serve(self, once: bool, mut patience: Option<Duration>) -> Result<Option<Outcome>, Error> {
        let Server { service, listener, address, happened } = self;
        let accepting = service.clone();
        let thread = thread::Builder::new().name("waggle-accept".into());
        let accepting = thread.spawn(move || accepting.accept(&listener, once)).map_err(system("start a thread"))?;
        let ended = loop {
            let event = match patience {
                Some(limit) => happened.recv_timeout(limit),
                None => happened.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match event {
                Ok(Happened::Begun) => patience = None,
                Ok(Happened::Ended(outcome)) if once => {
                    service.desk.end();
                    service.desk.drained();
                    break outcome.map(Some);
                }
                Ok(Happened::Ended(_)) => {}
                Ok(Happened::Stop(why)) => {
                    let (running, waiting) = service.desk.counts();
                    info!(
                        running,
                        waiting,
                        "{why}: what runs is finished, idle conversations end, nobody else comes in; a second signal \
                         ends it at once"
                    );
                    service.desk.end();
                    service.watch.end();
                    service.desk.drained();
                    info!("the end");
                    break Ok(None);
                }
                Err(RecvTimeoutError::Timeout) => {
                    let seconds = patience.unwrap_or_default().as_secs_f64();
                    break Err(NetError::TimedOut { step: "accept", seconds }.into());
                }
                // The service itself holds a sender.
                Err(RecvTimeoutError::Disconnected) => break Ok(None),
            }
        };
        service.over.store(true, Ordering::Release);
        // Wakes the thread that accepts. Where this fails it ends with the process.
        if TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok() {
            let _ = accepting.join();
        }
        ended
    }
}

impl Service {
    /// Gives every connection a thread, until the end. A server of one session does not wait for better times.
    fn accept(self: &Arc<Self>, listener: &TcpListener, once: bool) {
        let mut pause = Pause::default();
        loop {
            let accepted = listener.accept();
            if self.over.load(Ordering::Acquire) {
                return;
            }
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(source) if once && !concerns_one(&source) => {
                    self.tell(Happened::Ended(Box::new(Err(system("accept a connection")(source)))));
                    return;
                }
                Err(error) => {
                    pause.failed(&error);
                    continue;
                }
            };
            pause.accepted();
            let Some(place) = self.door.enter(peer.ip()) else {
                self.metrics.dropped();
                tracing::debug!(%peer, "dropped: too many connections that have proved no key");
                continue;
            };
            let service = self.clone();
            let session = thread::Builder::new().name("waggle-session".into());
            if let Err(error) = session.spawn(move || visit::visit(&service, stream, peer, place)) {
                self.metrics.dropped();
                warn!(%peer, %error, "dropped: no thread for the connection");
            }
        }
    }

    /// Whether a client is this server's own: it proves the same key, or neither party proves any.
    fn owns(&self, caller: &Caller) -> bool {
        self.host.key().map(|key| key.to_string()) == caller.key
    }

    /// The terms for a client: another's learns tokens alone, unless the server says otherwise.
    fn terms_for(&self, caller: &Caller) -> waggle_session::party::Terms {
        let of_key = if self.owns(caller) { Reveal::Logits } else { Reveal::Token };
        let reveal = self.config.terms.reveal.unwrap_or(of_key);
        let open = Open { reveal: false, ..self.terms.open };
        waggle_session::party::Terms { reveal, open, ..self.terms.clone() }
    }

    /// The accounts in which a client's positions are counted.
    fn accounts_of(&self, caller: &Caller) -> Option<&Book> {
        let counted = self.config.max_reveals != Reveals::OfModel || !self.owns(caller);
        self.accounts.as_ref().filter(|_| counted)
    }

    fn tell(&self, event: Happened) {
        // Nobody waits for it if the server has ended.
        let _ = self.events.send(event);
    }

    /// The present numbers of the page of the metrics; a directory that cannot be read shows no pools.
    fn now(&self) -> Now {
        let (running, waiting) = self.desk.counts();
        let pools = self.config.pools.as_deref().and_then(|dir| find(dir).ok()).map_or(0, |files| count(&files));
        Now { running, waiting, pools }
    }
}
