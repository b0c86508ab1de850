//! The third machine of a session. It deals correlations to both parties and sees no value.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use tracing::{info, warn};
use waggle_net::{Channel, Entry, PublicKey, Role};
use waggle_session::party::{DealtSession, Pairing, Peer};

use super::desk::{Desk, Places};
use super::door::{Door, Idle, Place};
use super::host::{Accepted, Allow, Host};
use super::watch::Watch;
use super::{listen, system};
use crate::error::{Full, ServeError, describe};
use crate::keys::Proof;
use crate::options::options;
use crate::{Error, Network};

/// Interval of messages to a party that waits in a queue. A helper has no queue, so none is sent.
const TICK: Duration = Duration::from_secs(1);

options! {
    /// Settings of a helper: `HelperConfig::default().listen("127.0.0.1:7412").bind()?.run()`.
    HelperConfig {
        /// Address to listen on. Port 0 stands for any free port.
        listen: String as impl Into<String> = "127.0.0.1:7412".into(),
        /// Slow this machine's messages down to those of a network.
        network: Network = Network::Loopback,
        /// Give up on a party that is silent for this time, or whose peer does not connect within this time.
        timeout: Duration = Duration::from_secs(120),
        /// Most bytes of memory for the halves of weights that the helper keeps.
        max_weights: u64 = 8 << 30,
        /// Most sessions at once, including those that wait for their second party.
        sessions: usize = 64,
        /// Most sessions of one key at once.
        max_sessions_per_key: usize = 16,
        /// End a session after this time.
        session_limit: Duration = Duration::from_secs(3600),
        /// Give up on a party that has not proved its key after this time.
        handshake_timeout: Duration = Duration::from_secs(10),
        /// Most connections at once that have not proved a key.
        max_idle: usize = 256,
        /// Most connections from one address that have not proved a key. In IPv6, a network of 64 bits counts as one
        /// address.
        max_idle_per_address: usize = 32,
        /// Whether the helper ends after one session.
        once: bool = false,
        /// Parties that the helper serves, beside those with its own key.
        allow: Allow = Allow::Known,
        /// The key pair by which the helper proves who it is.
        proof: Proof = Proof::User,
    }
}

/// A helper that listens.
pub struct HelperServer {
    shared: Arc<Shared>,
    listener: TcpListener,
    address: SocketAddr,
}

struct Shared {
    config: HelperConfig,
    host: Host,
    pairing: Pairing,
    /// The desk that admits sessions. Each of the two parties of a session takes a seat.
    desk: Arc<Desk>,
    watch: Arc<Watch>,
}

impl HelperConfig {
    /// Listens. Parties may connect from then on; [`HelperServer::run`] serves them.
    ///
    /// # Errors
    /// If a file cannot be read or the address cannot be taken.
    pub fn bind(self) -> Result<HelperServer, Error> {
        self.network.between_processes()?;
        let host = Host::open(&self.proof, self.allow.clone())?;
        let listener = listen(&self.listen)?;
        let address = listener.local_addr().map_err(system("listen"))?;
        let own = host.key().map(|key| key.to_string());
        let pairing = Pairing::new(own.as_deref(), self.timeout, self.max_weights);
        let per_key = Some(self.max_sessions_per_key);
        let desk = Desk::new(Places { sessions: self.sessions.saturating_mul(2), queue: 0, per_key });
        let watch = Watch::start().map_err(system("start a thread"))?;
        let shared = Arc::new(Shared { config: self, host, pairing, desk, watch });
        Ok(HelperServer { shared, listener, address })
    }
}

impl HelperServer {
    /// The address at which parties find the helper.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The key that the helper proves; `None` without encryption.
    pub fn key(&self) -> Option<PublicKey> {
        self.shared.host.key()
    }

    /// Deals until the process ends or, with [`once`](HelperConfig::once), to one session.
    ///
    /// # Errors
    /// If the system does not let it listen, or the one session fails.
    pub fn run(self) -> Result<(), Error> {
        let HelperServer { shared, listener, .. } = self;
        let once = shared.config.once;
        let (ended, end) = channel();
        let accept = move || {
            let HelperConfig { max_idle, max_idle_per_address, .. } = shared.config;
            let door = Door::new(Idle { all: max_idle.max(1), per_address: max_idle_per_address.max(1) });
            let told = ended.clone();
            let visit = move |stream, peer, place| visit(&shared, stream, peer, place, &told);
            if let Err(error) = door.accept(&listener, once, || false, || (), visit) {
                // Sending fails if the helper has ended.
                drop(ended.send(Err(system("accept a connection")(error))));
            }
        };
        thread::Builder::new().name("waggle-accept".into()).spawn(accept).map_err(system("start a thread"))?;
        for outcome in end {
            if once {
                return outcome;
            }
        }
        Ok(())
    }
}

/// Serves one party, and sends the result of its session to `ended`.
fn visit(shared: &Shared, stream: TcpStream, peer: SocketAddr, place: Place, ended: &Sender<Result<(), Error>>) {
    let span = tracing::info_span!("party", %peer);
    let _entered = span.enter();
    let outcome = attend(shared, stream, place);
    match outcome {
        // The thread of the other party deals.
        Ok(None) => {}
        Ok(Some(DealtSession { entries })) => {
            let bytes = |entries: &[Entry]| entries.iter().map(|entry| entry.traffic.bytes()).sum::<u64>();
            let [client, server] = entries.each_ref().map(|entries| bytes(entries));
            info!(client, server, "dealt: {client} bytes with the client, {server} with the server");
            // Sending fails if the helper has ended.
            drop(ended.send(Ok(())));
        }
        Err(error) => {
            warn!("{}", describe(&error));
            if !matches!(error, Error::Serve(ServeError::Stranger { .. } | ServeError::Full(_))) {
                drop(ended.send(Err(error)));
            }
        }
    }
}

fn attend(shared: &Shared, stream: TcpStream, place: Place) -> Result<Option<DealtSession>, Error> {
    let HelperConfig { handshake_timeout, timeout, session_limit, .. } = shared.config;
    let limit = shared.watch.limit(&stream, session_limit).map_err(system("accept"))?;
    let Accepted { link, key } = shared.host.accept(stream, handshake_timeout, timeout)?;
    // The connection is no longer idle; other limits apply from here on.
    drop(place);
    let mut channel = Channel::new(Role::Server, shared.config.network.wrap(link)?);
    if let Some(key) = key.filter(|key| !matches!(shared.host.admits(Some(*key)), Ok(true))) {
        Pairing::turn_away(&mut channel);
        let advice = shared.host.advice(key);
        return Err(ServeError::Stranger { advice, key }.into());
    }
    let peer = Peer { key: key.map(|key| key.to_string()) };
    let seat = shared.desk.enter(peer.key.as_deref()).and_then(|mut seat| {
        seat.wait(TICK, |_| Ok::<_, Full>(()))?;
        Ok(seat)
    });
    let _seat = match seat {
        Ok(seat) => seat,
        Err(full) => {
            Pairing::refuse(channel, &full.to_string());
            return Err(full.into());
        }
    };
    match shared.pairing.attend(channel, &peer) {
        Err(_) if limit.expired() => Err(ServeError::TooLong(session_limit.as_secs_f64()).into()),
        attended => Ok(attended?),
    }
}
