//! A client that other programs use over OpenAI's interface, and that talks privately to a server for them.
//!
//! | part | what it does |
//! |---|---|
//! | `admission` | who may come: names of this machine, origins, keys |
//! | `http` | connections: bounds, paths, streams, the page of the chat |
//! | `api` | the interface's JSON: requests, answers, refusals |
//! | `work` | the thread that answers: the queue, requests that can share a pass, what is tried after a failure |
//! | `sessions` | sessions with the server: the one that stays open, and those that end with their texts |
//! | `kept` | the session that stays open: single texts, turns of conversations, correlations between them |
//! | `pass` | the texts of a session: who hears which token, and who has ended |
//! | `text` | one text while it grows, and where it stops |
//! | `refusal` | failures of requests: what may be tried instead, and what a program is told |
//! | `logprobs` | log-probabilities of the tokens of a text |
//! | `spent` | what an answer took, and what the server saw |
//! | `metrics` | counters |
//!
//! Prompts and answers are in the clear in this process, and between it and the programs that use it. So it belongs
//! to the client, and accepts connections only from its own machine unless it has a key.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod admission;
mod api;
mod error;
mod http;
mod kept;
mod logprobs;
mod metrics;
mod pass;
mod refusal;
mod sessions;
mod spent;
mod text;
mod work;

use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::sync::Notify;
use waggle::program::{Words, foreign, on_signal};
use waggle::{
    Chat, ChatError, ChatOptions, Client, Error, Event, Flow, LOOKS, Pads, Public, ServeError, Template, describe,
    nobody, offer_note, template_note,
};
use waggle_files::{Forbidden, at, others_may};
use waggle_model::{Lengths, ModelSpec, Reveal};
use waggle_mpcache::PolicySpec;
use waggle_net::KeyError;
use waggle_session::PublicPrefix;
use waggle_session::party::{ClientOptions, Open, PublicModel, Terms};

use kept::Kept;
use metrics::Metrics;
use sessions::Sessions;
use spent::Spent;
use work::{Job, Worker};

pub use error::ProxyError;

/// Bytes of the shortest and the longest key of a program, and most bytes of a file of keys.
const MIN_KEY: usize = 16;
const MAX_KEY: usize = 4096;
const MAX_KEYS: u64 = 1 << 20;
/// Default number of tokens of a turn and of an answer, if the model has room for them.
const LENGTH: usize = 128;

/// Settings of a proxy: `ProxyConfig { client, ..ProxyConfig::default() }.bind()?.run()`.
#[derive(Clone, Debug)]
pub struct ProxyConfig {
    /// The server, and the terms of its sessions.
    pub client: Client,
    /// Address to listen on. Port 0 stands for any free port. An address that other machines can reach needs a key.
    pub listen: String,
    /// The file with the keys of programs, one on each line. The first key is the owner's.
    pub api_key: Option<PathBuf>,
    /// Other origins whose pages may send requests, such as `https://example.org`.
    pub origins: Vec<String>,
    /// Most requests that wait. Further ones are told to come again.
    pub queue: usize,
    /// Most texts of waiting requests that go through the model side by side.
    pub texts: usize,
    /// Default number of tokens of an answer in a conversation. In two phases, correlations for this number are
    /// prepared. `None` stands for 128, or fewer if the model has no room.
    pub tokens: Option<usize>,
    /// Most tokens of a turn before a longer session is opened for it. In two phases, correlations for this number
    /// are prepared. `None` stands for 128, or fewer if the model has no room.
    pub turn_tokens: Option<usize>,
    /// The chat template that writes a conversation in the model's form.
    pub template: Template,
    /// Pad prompts of completions to these lengths, so that the server learns only the padded length. Each prompt
    /// then has its own session.
    pub pad_prompt: Option<Pads>,
    /// Whether an answer that has ended goes on, unseen, until its number of tokens is a power of two. By default
    /// only conversations under the policy `full` do so.
    pub pad_answer: Option<bool>,
    /// Public tokens before all texts and conversations; without them those that the server offers, unless the
    /// client's `offers` is off.
    pub public: Option<Public>,
    /// Whether the beginning of conversations is public: the system message `system`, and what the chat template
    /// writes before the first words. Conversations that begin otherwise are private from the start.
    pub public_system: bool,
    /// The system message of conversations whose beginning is public. Without it they have none.
    pub system: Option<String>,
    /// The policy by which the server prunes a beginning that `public_system` alone makes public.
    pub prefix_policy: PolicySpec,
    /// Time without a request after which the open session ends.
    pub idle: Duration,
}

impl Default for ProxyConfig {
    fn default() -> Self {
        ProxyConfig {
            client: Client::default(),
            listen: "127.0.0.1:8080".into(),
            api_key: None,
            origins: Vec::new(),
            queue: 64,
            texts: 8,
            tokens: None,
            turn_tokens: None,
            template: Template::Server,
            pad_prompt: None,
            pad_answer: None,
            public: None,
            public_system: false,
            system: None,
            prefix_policy: PolicySpec::default(),
            idle: Duration::from_secs(600),
        }
    }
}

/// State that the threads of a proxy share.
struct Shared {
    metrics: Metrics,
    waiting: AtomicUsize,
    /// The error of the last session, if it failed.
    health: Mutex<Option<String>>,
}

impl Shared {
    fn left_queue(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.metrics.waiting.dec();
    }

    /// Takes a place in the queue of `most` requests. Returns whether there was one.
    fn enters_queue(&self, most: usize) -> bool {
        let enters = self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < most).then_some(n + 1));
        if enters.is_ok() {
            self.metrics.waiting.inc();
        }
        enters.is_ok()
    }

    fn health(&self) -> Option<String> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_health(&self, error: Option<String>) {
        *self.health.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }

    fn failed(&self, error: &Error) {
        tracing::warn!("{}", describe(error));
        self.set_health(Some(describe(error)));
    }

    /// Counts the cost of a finished pass or turn with this number of texts, and notes that the last request was
    /// served.
    fn paid(&self, spent: Spent, texts: usize) -> Arc<Spent> {
        self.metrics.spent(&spent, texts);
        self.set_health(None);
        Arc::new(spent)
    }
}

/// A proxy that listens.
pub struct Proxy {
    listener: TcpListener,
    address: SocketAddr,
    worker: Worker,
    door: http::Door,
    stop: Arc<Notify>,
}

impl ProxyConfig {
    /// Opens a session with the server, and listens. Programs may connect from then on; [`Proxy::run`] answers them.
    ///
    /// # Errors
    /// If the server cannot be reached, is not trusted, or has a model that writes no texts. If the address cannot be
    /// taken, or if other machines can reach it and there is no key.
    pub fn bind(self) -> Result<Proxy, ProxyError> {
        let keys = self.api_key.as_deref().map_or_else(|| Ok(Vec::new()), api_keys)?;
        let bad = |source| ServeError::Listen { address: self.listen.clone(), source };
        let listener = TcpListener::bind(&*self.listen).map_err(bad)?;
        let address = listener.local_addr().map_err(bad)?;
        if keys.is_empty() && !address.ip().is_loopback() {
            return Err(ProxyError::Open { address });
        }
        listener.set_nonblocking(true).map_err(bad)?;
        let terms = self.client.terms.over(self.client.network)?;
        if self.pad_prompt.is_some() && !terms.policy.keeps_all() {
            return Err(waggle_model::Error::PaddedPolicy(terms.policy.to_string()).into());
        }
        let (model, terms, open) = self.meet(&terms)?;
        if model.spec.is_encoder() {
            return Err(ChatError::Encoder.into());
        }
        let tokenizer = model.tokenizer.as_deref().ok_or(ChatError::NoTokenizer)?;
        let tokenizer = foreign(tokenizer)?.within(model.spec.max_positions());
        // A conversation has shown the offer already.
        let shown: fn(Event<'_>) -> Flow = if open.is_some() { nobody } else { log };
        let prefix = Public::before(self.public.as_ref(), &model, Some(&tokenizer), &mut { shown })?;
        if self.pad_prompt.is_some() && prefix.is_some() {
            return Err(waggle_model::Error::PaddedPrefix.into());
        }
        let public = Before { head: open.as_ref().map_or(0, |kept| kept.chat.public_tokens()), prefix };
        let limit = public.room(&model.spec, self.public_system);
        let usual = self.usual(limit);
        if usual.prompt.saturating_add(usual.tokens) > limit {
            let Lengths { prompt: turn, tokens } = usual;
            return Err(ProxyError::LongTurns { turn, tokens, limit });
        }
        if let Some(why) = tokenizer.no_sandbox() {
            tracing::warn!(why, "the server's tokenizer runs under limits alone: there is no sandbox");
        }
        let (jobs, received): (Sender<Job>, Receiver<Job>) = channel();
        let shared = Shared { metrics: Metrics::new(), waiting: AtomicUsize::new(0), health: Mutex::new(None) };
        let shared = Arc::new(shared);
        let door =
            http::Door::new(&self, &model.name, terms.reveal == Reveal::Token, keys, jobs, Arc::clone(&shared));
        let sessions = Sessions::new(self, (terms, model, public), tokenizer, open, Arc::clone(&shared))?;
        let worker = Worker::new(sessions, received, shared);
        Ok(Proxy { listener, address, worker, door, stop: Arc::default() })
    }

    /// Opens a first session with the server. Returns the public part of its model, the agreed terms, and the session
    /// that stays open. There is no such session if the server holds no conversations, or if prompts are padded.
    fn meet(&self, terms: &Terms) -> Result<(PublicModel, Terms, Option<Kept>), Error> {
        let under = |agreed: &Terms| {
            let open = Open { reveal: false, ..terms.open };
            Terms { reveal: agreed.reveal, open, ..terms.clone() }
        };
        let talk = |lengths: Lengths| match self.pad_prompt {
            Some(_) => Ok(None),
            None => {
                let chat = granted(self.talk(lengths, self.public_system))?;
                Ok::<_, Error>(chat.map(|chat| Kept::new(chat, lengths, self.public_system, false)))
            }
        };
        let usual = self.usual(usize::MAX);
        if let Some(kept) = talk(usual)? {
            return Ok((kept.chat.model().clone(), under(kept.chat.terms()), Some(kept)));
        }
        let template = self.template == Template::Server;
        let without_offer = self.public.is_some();
        let wanted = ClientOptions { tokenizer: true, template, without_offer, ..ClientOptions::default() };
        let session = self.client.open(terms, wanted, &mut log)?;
        let (model, terms) = (session.model().clone(), under(session.terms()));
        drop(session);
        // The model may have room only for shorter turns and answers, and for half of these beside public text, whose
        // length nobody knows yet.
        let positions = model.spec.max_positions();
        let public = without_offer || self.public_system || model.offer.is_some();
        let halved = if public { positions / 2 } else { positions };
        let mut tried = usual;
        for shorter in [positions, halved].map(|positions| self.usual(positions)) {
            if shorter == tried {
                continue;
            }
            if let Some(kept) = talk(shorter)? {
                return Ok((model, terms, Some(kept)));
            }
            tried = shorter;
        }
        Ok((model, terms, None))
    }

    /// The longest turn and answer of a session with a model of `positions` positions, unless a request needs longer
    /// ones.
    fn usual(&self, positions: usize) -> Lengths {
        let room = |taken: Option<usize>| positions.saturating_sub(taken.unwrap_or(positions / 2)).clamp(1, LENGTH);
        let prompt = self.turn_tokens.unwrap_or_else(|| room(self.tokens));
        Lengths { prompt, tokens: self.tokens.unwrap_or_else(|| room(Some(prompt))) }
    }

    /// Opens a session for turns and answers up to these lengths. `head` says whether the beginning of its
    /// conversations is public.
    fn talk(&self, Lengths { prompt, tokens }: Lengths, head: bool) -> Result<Chat, Error> {
        let options = ChatOptions::default().turn_tokens(prompt).tokens(tokens).public(self.public.clone());
        let options = options.public_system(head).system(self.system.clone().filter(|_| head));
        let options = options.prefix_policy(self.prefix_policy.clone());
        Chat::open(&self.client, options.template(self.template.clone()).pad_answer(self.pad_answer), &mut log)
    }

    /// The number of the first messages of a conversation that are public; `None` if it begins otherwise than those
    /// that are public.
    fn public_messages(&self, messages: &[Words]) -> Option<usize> {
        let roles = messages.iter().map(|(role, _)| *role).take(2).collect::<Vec<_>>();
        match (&self.system, &roles[..]) {
            _ if !self.public_system => None,
            (Some(text), ["system", "user"]) => (messages[0].1.trim() == text.trim()).then_some(1),
            (None, ["user", ..]) => Some(0),
            _ => None,
        }
    }
}

/// What stands in the clear before texts and conversations.
struct Before {
    /// Public tokens before all of them.
    prefix: Option<PublicPrefix>,
    /// The number of public tokens before conversations that begin in public, once it is known.
    head: usize,
}

impl Before {
    /// The positions of a model that are left for a text, or with `head` for a conversation that begins in public.
    fn room(&self, spec: &ModelSpec, head: bool) -> usize {
        let public = if head { self.head } else { self.prefix.as_ref().map_or(0, |prefix| prefix.ids().len()) };
        spec.max_positions().saturating_sub(public)
    }
}

/// The digests of the keys in the file `path`.
fn api_keys(path: &Path) -> Result<Vec<blake3::Hash>, ProxyError> {
    let file = waggle_files::open(path).map_err(at(path))?;
    if others_may(&file.metadata().map_err(at(path))?, Forbidden::ReadingAndWriting) {
        return Err(KeyError::Readable { path: path.into() }.into());
    }
    let mut text = String::new();
    file.take(MAX_KEYS + 1).read_to_string(&mut text).map_err(at(path))?;
    if text.len() as u64 > MAX_KEYS {
        return Err(ProxyError::LongKeys { path: path.into(), most: MAX_KEYS });
    }
    let lines = text.lines().zip(1..).map(|(line, number)| (line.trim(), number));
    let keys: Vec<(&str, usize)> = lines.filter(|(line, _)| !line.is_empty()).collect();
    if keys.is_empty() {
        return Err(ProxyError::NoKey(path.into()));
    }
    let digest = |(key, line): (&str, usize)| {
        let given = key.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
        match key.len() {
            got if got < MIN_KEY => Err(ProxyError::ShortKey { path: path.into(), got, least: MIN_KEY }),
            got if got > MAX_KEY || !given => Err(ProxyError::ForeignKey { path: path.into(), line, most: MAX_KEY }),
            _ => Ok(blake3::hash(key.as_bytes())),
        }
    };
    keys.into_iter().map(digest).collect()
}

/// Logs an event that the user should notice, in one line.
fn log(event: Event<'_>) -> Flow {
    match event {
        Event::Template(address, template) => {
            tracing::warn!("{}", template_note(address, template).replace('\n', "\\n"));
        }
        Event::Offer(offer, text) => tracing::warn!("{}", offer_note(offer, text)),
        Event::Looks => tracing::warn!("{LOOKS}"),
        _ => (),
    }
    Flow::GoOn
}

/// The session, or `None` if this party or the server refused to begin it. Another kind of session may then work.
fn granted(session: Result<Chat, Error>) -> Result<Option<Chat>, Error> {
    match session {
        Err(Error::Session(error)) if error.net().is_none() => Ok(None),
        session => session.map(Some),
    }
}

impl Proxy {
    /// The address on which the proxy listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The name of the server's model.
    pub fn model(&self) -> &str {
        self.door.model()
    }

    /// Lets SIGTERM and SIGINT end the proxy. Running requests are broken off. A second signal ends the process.
    ///
    /// # Errors
    /// If signals cannot be handled.
    pub fn until_signalled(self) -> Result<Self, Error> {
        let stop = Arc::clone(&self.stop);
        let waits = on_signal(move |_| stop.notify_one());
        waits.map_err(|source| Error::System { what: "wait for signals", source })?;
        Ok(self)
    }

    /// Answers programs until a signal ends the proxy.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn run(self) -> Result<(), Error> {
        let Proxy { listener, worker, door, stop, .. } = self;
        let system = |what| move |source| Error::System { what, source };
        let thread = thread::Builder::new().name("waggle-proxy".into());
        let thread = thread.spawn(move || worker.run()).map_err(system("start a thread"))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(system("wait for connections"))?;
        let served = runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            tokio::spawn(http::accept(listener, Arc::new(door)));
            stop.notified().await;
            Ok(())
        });
        // This closes all connections. The worker then notices that nobody waits for its answers.
        drop(runtime);
        served.map_err(system("wait for connections"))?;
        thread.join().map_err(|_| Error::Panicked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_and_answers_fit_the_model_unless_they_are_given() {
        let usual = |config: ProxyConfig, positions| {
            let Lengths { prompt, tokens } = config.usual(positions);
            (prompt, tokens)
        };
        let config = ProxyConfig::default;
        assert_eq!((usual(config(), usize::MAX), usual(config(), 256)), ((LENGTH, LENGTH), (LENGTH, LENGTH)));
        assert_eq!((usual(config(), 64), usual(config(), 7)), ((32, 32), (4, 3)));
        assert_eq!(usual(ProxyConfig { tokens: Some(500), ..config() }, 512), (12, 500));
        assert_eq!(usual(ProxyConfig { turn_tokens: Some(500), ..config() }, 512), (500, 12));
        assert_eq!(usual(ProxyConfig { turn_tokens: Some(100), ..config() }, 64), (100, 1));
    }
}
