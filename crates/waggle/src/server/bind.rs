//! Turns settings into a server, in three steps: checks the settings, loads the model, and begins to serve.

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Instant;

use tracing::{info, warn};
use waggle_session::RangeCheck;
use waggle_session::party::{self, ModelServer};
use waggle_session::pool::{Pools, writable_by_others};
use waggle_tokenizer::ChatTemplate;

use super::accounts::Book;
use super::config::ServerConfig;
use super::desk::{Desk, Places};
use super::door::{Door, Idle};
use super::host::{Allow, Host};
use super::metrics::{self, Metrics};
use super::ranks::Job;
use super::service::Service;
use super::watch::Watch;
use super::{Server, listen, system};
use crate::Error;
use crate::error::OptionsError;
use crate::keys::{Proof, file};
use crate::models::open_adapted;
use crate::reader::tokenizer;

impl ServerConfig {
    /// Reads the model and listens. Clients may connect from then on; [`Server::run`] serves them.
    ///
    /// # Errors
    /// If the model cannot be served, a file cannot be read, or the address cannot be taken.
    pub fn bind(self) -> Result<Server, Error> {
        self.bind_as(&Job::alone())
    }

    /// [`ServerConfig::bind`] on rank 0 of `job`.
    ///
    /// # Errors
    /// As [`ServerConfig::bind`], and if the ranks have different models.
    pub fn bind_as(self, job: &Job) -> Result<Server, Error> {
        self.check()?.load(job)?.serve()
    }

    /// The first step: checks everything that does not need the model.
    fn check(self) -> Result<Checked, Error> {
        self.network.between_processes()?;
        let learned = self.terms.policy.scoring_head();
        for policy in &self.policies {
            if policy.clear_only() {
                return Err(OptionsError::ClearOnly(policy.to_string()).into());
            }
            if policy.scoring_head() != learned {
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
        let page = self.metrics.as_deref().map(listen).transpose()?;
        Ok(Checked { config: self, pools, host, listener, page })
    }
}

/// Checked settings, of which only the model can still be wrong, and the addresses that the server has taken.
struct Checked {
    config: ServerConfig,
    pools: Option<Pools>,
    host: Host,
    listener: TcpListener,
    /// The listener of the page of counters.
    page: Option<TcpListener>,
}

impl Checked {
    /// The second step: reads the model, and refuses one that cannot be served.
    fn load(mut self, job: &Job) -> Result<Loaded, Error> {
        let config = &self.config;
        let files = job.meet(open_adapted(&config.model, config.adapter.as_deref()))?;
        let offer = config.offer.as_ref().map(|offer| offer.encoded(tokenizer(&files)?.as_ref())).transpose()?;
        if let (Some(got), limit) = (offer.as_ref().map(|offer| offer.ids().len()), config.max_public)
            && got > limit
        {
            return Err(waggle_session::Error::Limit { what: "public tokens", got, limit }.into());
        }
        let mut hosted = ModelServer::builder()
            .policy(&config.terms.policy)
            .public(&config.public)
            .weight_cache(config.weight_cache)
            .spread(job.spread())
            .load(files)?;
        job.ready()?;
        if config.range_check {
            let start = Instant::now();
            let RangeCheck { tokens } = hosted.check_ranges()?;
            let seconds = start.elapsed().as_secs_f64();
            info!(tokens, seconds, "range check: a text stays in the ranges of all operations");
        } else {
            warn!(
                "no range check: if values of this model leave the ranges of operations, texts are spoilt and nobody notices"
            );
        }
        hosted = hosted.with_offer(offer)?;
        if let Some(offer) = &hosted.public().offer {
            info!("public text is offered: {offer}");
        }
        let accounts = config.max_reveals.limit(hosted.public())?;
        let accounts = accounts.map(|limit| Book::open(file("accounts.json")?, limit)).transpose()?;
        if let Some(helper) = &config.terms.helper {
            let way = helper.way(&config.proof, config.network, config.timeout)?;
            hosted = hosted.with_helper(way).with_halves(config.halves_by_client);
        }
        if let Some(pools) = self.pools.take() {
            hosted = hosted.with_pools(pools);
        }
        let hosted = hosted.with_template(template(&config.model).as_ref())?;
        Ok(Loaded { checked: self, hosted, accounts })
    }
}

/// A model that can be served.
struct Loaded {
    checked: Checked,
    hosted: ModelServer,
    accounts: Option<Book>,
}

impl Loaded {
    /// The last step: sets up the state that sessions share, and the page of counters.
    fn serve(self) -> Result<Server, Error> {
        let Loaded { checked: Checked { config, host, listener, page, .. }, hosted, accounts } = self;
        let address = listener.local_addr().map_err(system("listen"))?;
        let sessions = config.sessions.map_or_else(
            || thread::available_parallelism().map_or(1, usize::from).div_ceil(2),
            |sessions| sessions.max(1),
        );
        let (events, happened) = channel();
        let desk = Desk::new(Places { sessions, queue: config.queue, per_key: config.max_sessions_per_key });
        let door = Door::new(Idle { all: config.max_idle.max(1), per_address: config.max_idle_per_address.max(1) });
        let service = Arc::new(Service {
            hosted,
            terms: party::Terms { others: config.policies.clone(), ..config.terms.over(config.network)? },
            limits: config.limits(),
            host,
            accounts,
            desk,
            door,
            watch: Watch::start().map_err(system("start a thread"))?,
            metrics: Arc::new(Metrics::new()),
            config,
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
}

/// The chat template of the model directory `name`, if it has one that can be sent. A bad template is no error, as
/// only chats need it.
fn template(name: &str) -> Option<ChatTemplate> {
    ChatTemplate::open(Path::new(name)).unwrap_or_else(|error| {
        warn!(%error, "no chat template is served: conversations are raw text");
        None
    })
}
