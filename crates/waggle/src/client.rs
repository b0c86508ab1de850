//! The party with the prompt.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use waggle_files::at;
use waggle_model::Lengths;
use waggle_net::tcp::{self, ConnectOptions};
use waggle_net::{Channel, Link, NetError, PublicKey, Role, await_admission, tls};
use waggle_protocols::Part;
use waggle_session::party::{ClientOptions, ClientSession, Event, Filled, Peer, Terms as Agreed, Watch, nobody};
use waggle_session::pool::{Found, PoolId, PoolSet, State, UnfinishedPool, find, part_path};
use waggle_session::{Base, Expectation};
use waggle_tokenizer::Tokenizer;

use crate::error::{OptionsError, TrustError};
use crate::generated::Generated;
use crate::heard::Heard;
use crate::keys::{Proof, ServerTrust};
use crate::models::open_model;
use crate::options::options;
use crate::public::named;
use crate::reader::Reader;
use crate::ready::Ready;
use crate::request::Request;
use crate::summary::report;
use crate::{Chat, ChatOptions, Error, Network, Public, Report, Terms};

options! {
    /// A client's settings for one server: `Client::new("example.org").terms(terms)`. A client trusts a server of the
    /// same user, and every other server by its key.
    Client {
        /// Address of the server. The port is 7411 unless the address names one.
        address: String as impl Into<String> = "127.0.0.1".into(),
        /// Terms that both parties must state alike.
        terms: Terms = Terms::default(),
        /// Slow this party's messages down to those of a network; the server must do the same.
        network: Network = Network::Loopback,
        /// Insist on this model: a `config.json`, a directory, a bundled model, or a fingerprint. If a known server
        /// has changed its model, the client accepts the new one only if this option names it.
        expect: Option<String> as impl Into<Option<String>> = None,
        /// The client's own copy of the model, a directory or a bundled name. It is needed where the server says that
        /// parts of the model are public.
        base: Option<String> as impl Into<Option<String>> = None,
        /// Trust a server that proves this key. The client remembers the key under the server's address.
        server_key: Option<PublicKey> as impl Into<Option<PublicKey>> = None,
        /// Whether texts stand behind the public tokens that the server offers, if it offers some and a request names
        /// none.
        offers: bool = true,
        /// Give up on a server that is silent for this time.
        timeout: Duration = Duration::from_secs(120),
        /// Give up on a server that cannot be reached within this time.
        connect_timeout: Duration = Duration::from_secs(30),
        /// The key pair by which the client proves who it is.
        proof: Proof = Proof::User,
    }
}

/// The port of a server whose address names none.
const PORT: u16 = 7411;

/// `address`, with the port 7411 if it names none. An IPv6 address without a port may come without brackets.
pub fn with_port(address: &str) -> Result<String, OptionsError> {
    self::address(address, PORT)
}

/// `address`, with `port` if it names none. A URL is refused here, before anybody resolves its name.
pub fn address(address: &str, port: u16) -> Result<String, OptionsError> {
    if address.contains('/') {
        return Err(OptionsError::NoAddress(address.into()));
    }
    let has_port = address.parse::<SocketAddr>().is_ok()
        || address.parse::<IpAddr>().is_err()
            && address.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
    Ok(match address.parse::<IpAddr>() {
        _ if has_port => address.to_owned(),
        Ok(ip) => SocketAddr::new(ip, port).to_string(),
        Err(_) => format!("{address}:{port}"),
    })
}

options! {
    /// A request for a pool: correlations that are made before a prompt is known. They serve one generation, up to
    /// these lengths.
    Fill {
        /// The pool's file, which must not exist yet.
        pool: PathBuf as impl Into<PathBuf> = PathBuf::new(),
        /// Most tokens of the prompt.
        prompt: usize = 0,
        /// Texts that the model reads side by side.
        texts: usize = 1,
        /// Most tokens to generate.
        tokens: usize = 32,
        /// Public tokens before the texts, as of [`Request::public`].
        public: Option<Public> as impl Into<Option<Public>> = None,
        /// The part of the pool to make.
        part: Part = Part::WHOLE,
        /// Before the pool is made, give up all pools that this identity has with the server, except those in these
        /// directories and files. If the list is empty, no pool is given up.
        forget_all_but: Vec<PathBuf> = Vec::new(),
    }
}

impl Client {
    /// A client of the server at `address`.
    pub fn new(address: impl Into<String>) -> Self {
        Client::default().address(address)
    }

    /// Generates text in a session of its own. The server learns the length of the prompt and nothing else of it.
    ///
    /// # Errors
    /// If options contradict each other, before the server is asked. If the server is not trusted, refuses the
    /// request, vanishes or sends nonsense.
    pub fn generate(&self, request: impl Into<Request>) -> Result<Generated, Error> {
        self.generate_with(&request.into(), &mut nobody)
    }

    /// [`Client::generate`], watched.
    ///
    /// # Errors
    /// As [`Client::generate`].
    pub fn generate_with(&self, request: &Request, watch: &mut Watch) -> Result<Generated, Error> {
        let terms = if request.pool.is_some() { self.terms.two_phases()? } else { self.terms.clone() };
        // A bad file is reported before a server is bothered.
        let pool = request.pool.as_deref().map(|path| PoolSet::open(path, Role::Client)).transpose()?;
        let terms = terms.planned_like(pool.as_ref().and_then(PoolSet::link)).over(self.network)?;
        let request = request.read(&terms)?;
        let own = request.reader()?;
        let without_offer = request.public.is_some();
        let wanted = ClientOptions { tokenizer: own.is_none(), without_offer, ..ClientOptions::default() };
        let session = self.open(&terms, wanted, watch)?;
        let (model, terms) = (session.model().clone(), session.terms().clone());
        let reader = match own {
            Some(own) => own,
            None => Reader::foreign(&model)?,
        };
        if let Some(why) = reader.tokenizer().and_then(Tokenizer::no_sandbox) {
            watch(Event::NoSandbox(why));
        }
        let prefix = Public::before(request.public.as_ref(), &model, reader.tokenizer(), watch)?;
        let mut ready = Ready::new(request, prefix, &terms, &model.spec, &reader)?;
        let mut heard =
            Heard::new(model.spec.labels(), reader.tokenizer(), ready.ids(), watch).of_texts(ready.texts());
        let ids = pool.as_ref().map(|pool| match &pool.ids()[..] {
            [id] => id.to_string().into(),
            ids => ids.iter().map(ToString::to_string).collect::<Value>(),
        });
        let outcome = ready.run(session, pool, &mut heard);
        let outcome = heard.finish(outcome)?;
        let chosen = [("link", self.network.to_string().into()), ("pool", ids.into())];
        ready.report(&model, reader.tokenizer(), outcome, chosen)
    }

    /// Opens a conversation, in one session.
    ///
    /// # Errors
    /// As [`Client::generate`].
    pub fn chat(&self, options: ChatOptions) -> Result<Chat, Error> {
        self.chat_with(options, &mut nobody)
    }

    /// [`Client::chat`], watched.
    ///
    /// # Errors
    /// As [`Client::generate`].
    pub fn chat_with(&self, options: ChatOptions, watch: &mut Watch) -> Result<Chat, Error> {
        Chat::open(self, options, watch)
    }

    /// Makes the correlations of generations before their prompts are known. The client's half goes into its file,
    /// the server's half into a file of the server's. [`Request::pool`] uses both files up, once. The client's file
    /// is as secret as the prompt.
    ///
    /// # Errors
    /// As [`Client::generate`], and if the file exists already.
    pub fn preprocess(&self, fill: &Fill) -> Result<Prepared, Error> {
        self.preprocess_with(fill, &mut nobody)
    }

    /// [`Client::preprocess`], watched.
    ///
    /// # Errors
    /// As [`Client::preprocess`].
    pub fn preprocess_with(&self, fill: &Fill, watch: &mut Watch) -> Result<Prepared, Error> {
        let path = part_path(&fill.pool, fill.part);
        // Tests that the file can be made, and removes it at once. The real file is made when the server has agreed.
        UnfinishedPool::create(&path).map_err(|e| e.at(&path))?;
        let mut terms = self.terms.two_phases()?.over(self.network)?;
        // All parts must be planned for one link. The parties do not measure it, as the measurements of two parts may
        // differ.
        terms.open.link &= fill.part.is_whole();
        // An offer has its tokens, while the client's own text needs a tokenizer.
        let own = fill.public.is_some();
        let wanted = ClientOptions { tokenizer: own, without_offer: own, ..ClientOptions::default() };
        let session = self.open(&terms, wanted, watch)?;
        let model = session.model().clone();
        let reader = if own { Reader::foreign(&model)? } else { Reader::Texts(None) };
        let prefix = Public::before(fill.public.as_ref(), &model, reader.tokenizer(), watch)?;
        let session = session.behind(prefix.clone());
        let session = match &fill.forget_all_but[..] {
            [] => session,
            // Looks for the pools only now: the server keeps every pool that is made after the session's beginning.
            paths => session.having_only(own_pools(paths)?),
        };
        let bound = Lengths { prompt: fill.prompt, tokens: fill.tokens };
        let outcome = session.for_texts(fill.texts).fill_part(bound, fill.part, &path, watch)?;
        let part = Some(fill.part.to_string()).filter(|_| !fill.part.is_whole());
        let chosen =
            [("link", self.network.to_string().into()), ("tokens", fill.tokens.into()), ("part", part.into())];
        let chosen = chosen.into_iter().chain((fill.texts != 1).then_some(("texts", fill.texts.into())));
        let chosen = chosen.chain(prefix.iter().flat_map(named));
        let mut report = report(&model, None, fill.prompt, &outcome, chosen)?;
        report.peak_memory_bytes.client = waggle_net::peak_memory_bytes();
        Ok(Prepared { report, filled: outcome.filled })
    }

    /// Opens a session under `terms` with the options `wanted`. The client's own `expect`, `base` and `offers` take
    /// precedence.
    pub fn open(&self, terms: &Agreed, wanted: ClientOptions, watch: &mut Watch) -> Result<ClientSession, Error> {
        self.network.between_processes()?;
        let address = with_port(&self.address)?;
        let expected = self.expect.as_deref().map(Expectation::named).transpose()?;
        // All files are read before the client connects, so that the server does not wait for them.
        let base = self.base.as_deref().map(|name| Ok::<_, Error>(Base::new(open_model(name)?)?)).transpose()?;
        let helper = self.terms.helper.as_ref();
        let helper = helper.map(|helper| helper.way(&self.proof, self.network, self.timeout)).transpose()?;
        let (link, server) = self.link(&address, watch)?;
        let channel = Channel::new(Role::Client, self.network.wrap(link)?);
        let spec = expected.as_ref().and_then(|expected| expected.spec.as_ref());
        let peer = Peer { key: server.as_ref().map(|server| server.key.to_string()) };
        let session = ClientSession::open(
            channel,
            &peer,
            terms,
            &ClientOptions {
                expected: spec.or(wanted.expected),
                base: base.as_ref(),
                without_offer: wanted.without_offer || !self.offers,
                ..wanted
            },
        )?;
        let session = match helper {
            Some(helper) => session.with_helper(helper),
            None => session,
        };
        let met = session.model().fingerprint()?;
        if let Some(expected) = &expected {
            expected.fingerprint.expect(&met)?;
        }
        if let Some(Proved { key, trust: Some(mut trust) }) = server {
            let named = expected.is_some_and(|expected| expected.fingerprint.names(&met));
            let news = trust.met(key, &met, named)?;
            if let Some(template) = session.model().chat_template()?.filter(|_| news) {
                watch(Event::Template(&address, &template));
            }
        }
        Ok(session)
    }

    /// Connects to the server, and waits until it lets this client in. A server that proves no trusted key is an
    /// error. Returns the link and what the server has proved; that is `None` without encryption.
    fn link(&self, address: &str, watch: &mut Watch) -> Result<(Box<dyn Link>, Option<Proved>), Error> {
        let Some(identity) = self.proof.identity()? else {
            let mut link = self.patiently(address, watch, |options| tcp::connect(address, options))?;
            wait_for_turn(&mut link, watch)?;
            return Ok((Box::new(link), None));
        };
        let mut trust = match &self.proof {
            Proof::Own(_) => None,
            _ => Some(ServerTrust::of(address, self.server_key, identity.public())?),
        };
        let keys = trust.as_ref().map_or_else(|| self.server_key.into_iter().collect(), ServerTrust::keys);
        let connected = self.patiently(address, watch, |options| {
            let keys = keys.clone();
            tls::connect(address, &identity, move |key| keys.contains(key), options)
        });
        let mut link = connected.map_err(|error| match (error, &trust) {
            (NetError::Untrusted { key }, Some(trust)) => trust.refusal(key).into(),
            (source @ NetError::Closed { .. }, Some(_)) => TrustError::NoAnswer(source).into(),
            (error, _) => Error::from(error),
        })?;
        trust.as_mut().map_or(Ok(()), ServerTrust::proved)?;
        wait_for_turn(&mut link, watch)?;
        let key = link.peer_key();
        Ok((Box::new(link), Some(Proved { key, trust })))
    }

    /// Calls `connect`. If the server cannot be reached within [`SOON`], tells `watch` so and calls `connect` again
    /// for the rest of the time.
    fn patiently<L>(
        &self,
        address: &str,
        watch: &mut Watch,
        connect: impl Fn(ConnectOptions) -> Result<L, NetError>,
    ) -> Result<L, NetError> {
        let options = ConnectOptions { connect_timeout: self.connect_timeout, read_timeout: self.timeout };
        let rest = self.connect_timeout.saturating_sub(SOON);
        if rest.is_zero() {
            return connect(options);
        }
        match connect(ConnectOptions { connect_timeout: SOON, ..options }) {
            Err(NetError::Unreachable { .. }) => drop(watch(Event::Unreachable(address))),
            connected => return connected,
        }
        connect(ConnectOptions { connect_timeout: rest, ..options }).map_err(|error| match error {
            NetError::Unreachable { addr, seconds, source } => {
                NetError::Unreachable { addr, seconds: seconds + SOON.as_secs_f64(), source }
            }
            error => error,
        })
    }
}

/// Time without an answer after which a client says that it still tries to connect.
const SOON: Duration = Duration::from_secs(2);

/// A server that has proved a key, and the client's knowledge of it.
struct Proved {
    key: PublicKey,
    trust: Option<ServerTrust>,
}

/// Waits until the server has a place for this client.
fn wait_for_turn(link: &mut dyn Link, watch: &mut Watch) -> Result<(), Error> {
    let mut waits = false;
    let mut on_busy = || {
        // The server repeats itself as a sign of life.
        if !std::mem::replace(&mut waits, true) {
            watch(Event::Waits);
        }
    };
    Ok(await_admission(link, &mut on_busy)?)
}

/// A pool that was filled.
#[derive(Debug)]
pub struct Prepared {
    /// The cost of filling the pool.
    pub report: Report,
    /// The pool's id, and which part of the pool was made.
    pub filled: Option<Filled>,
}

/// Ids of the client's pools at `paths` that can be spent or that a process works on.
fn own_pools(paths: &[PathBuf]) -> Result<Vec<PoolId>, Error> {
    let usable = |file: &Found| file.state() == State::Pool || file.in_use();
    let mut ids = Vec::new();
    for path in paths {
        let found = pools_at(path)?;
        ids.extend(
            found.iter().filter(|file| file.role() == Some(Role::Client) && usable(file)).filter_map(Found::id),
        );
    }
    Ok(ids)
}

/// The pools at `path`, a directory or a file.
pub fn pools_at(path: &Path) -> Result<Vec<Found>, Error> {
    Ok(find(path).map_err(at(path))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_a_port_has_the_usual_one() {
        for (given, meant) in [
            ("localhost", "localhost:7411"),
            ("localhost:80", "localhost:80"),
            ("10.0.0.1", "10.0.0.1:7411"),
            ("10.0.0.1:80", "10.0.0.1:80"),
            ("::1", "[::1]:7411"),
            ("[::1]", "[::1]:7411"),
            ("[::1]:80", "[::1]:80"),
        ] {
            assert_eq!(with_port(given).unwrap(), meant, "{given}");
        }
        for given in ["http://localhost", "https://10.0.0.1:80/", "localhost/v1", "tcp://[::1]"] {
            assert!(matches!(with_port(given), Err(OptionsError::NoAddress(_))), "{given}");
        }
    }
}
