//! The third machine of a session: deals correlations to two parties, and sees no value.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use net::{Channel, Entry, PublicKey, Role};
use session::party::{Caller, DealtSession, Pairing};
use tracing::{info, warn};

use super::door::{Door, Idle, Place};
use super::host::{Accepted, Allow, Host};
use super::{listen, system};
use crate::error::{ServeError, describe};
use crate::keys::Proof;
use crate::options::options;
use crate::{Error, Network};

/// Most connections at once, in all and of one address.
const CONNECTIONS: Idle = Idle { all: 256, per_address: 64 };
/// Seconds that a party has to prove its key.
const HANDSHAKE: Duration = Duration::from_secs(10);

options! {
    /// Settings of a helper: `HelperConfig::default().listen("127.0.0.1:7412").bind()?.run()`.
    HelperConfig {
        /// Address to listen on; port 0 takes a free one.
        listen: String as impl Into<String> = "127.0.0.1:7412".into(),
        /// Slow this machine's messages down to those of a network.
        network: Network = Network::Loopback,
        /// Give up on a party that is silent, or whose peer does not come, for so long.
        timeout: Duration = Duration::from_secs(120),
        /// Keep halves of weights in at most so many bytes of memory.
        max_weights: u64 = 8 << 30,
        /// End after one session.
        once: bool = false,
        /// Whom it deals to, beside parties with its own key.
        allow: Allow = Allow::Known,
        /// Who it is.
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
}

impl HelperConfig {
    /// Listens. Parties may come from here on, and are served by [`HelperServer::run`].
    ///
    /// # Errors
    /// If a file cannot be read or the address not be taken.
    pub fn bind(self) -> Result<HelperServer, Error> {
        self.network.between_processes()?;
        let host = Host::open(&self.proof, self.allow.clone())?;
        let listener = listen(&self.listen)?;
        let address = listener.local_addr().map_err(system("listen"))?;
        let pairing = Pairing::new(self.timeout, self.max_weights);
        Ok(HelperServer { shared: Arc::new(Shared { config: self, host, pairing }), listener, address })
    }
}

impl HelperServer {
    /// Where parties find it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The key that it proves; `None` without encryption.
    pub fn key(&self) -> Option<PublicKey> {
        self.shared.host.key()
    }

    /// Deals until the process ends, or to one session.
    ///
    /// # Errors
    /// If the system does not let it listen, or the one session fails.
    pub fn run(self) -> Result<(), Error> {
        let HelperServer { shared, listener, .. } = self;
        let once = shared.config.once;
        let (ended, end) = channel();
        let accept = move || {
            let door = Door::new(CONNECTIONS);
            for stream in listener.incoming() {
                let stream = match stream {
                    Ok(stream) => stream,
                    Err(error) => {
                        warn!(%error, "a connection is lost before it is accepted");
                        // A listener that cannot accept fails again at once.
                        thread::sleep(Duration::from_millis(10));
                        continue;
                    }
                };
                let Ok(peer) = stream.peer_addr() else { continue };
                let Some(place) = door.enter(peer.ip()) else { continue };
                let (shared, ended) = (shared.clone(), ended.clone());
                let visit = move || visit(&shared, stream, peer, place, &ended);
                if let Err(error) = thread::Builder::new().name("waggle-helper".into()).spawn(visit) {
                    warn!(%error, "no thread for a party");
                }
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

/// Serves one party, and says how a session ended.
fn visit(shared: &Shared, stream: TcpStream, peer: SocketAddr, place: Place, ended: &Sender<Result<(), Error>>) {
    let span = tracing::info_span!("party", %peer);
    let _entered = span.enter();
    let outcome = attend(shared, stream);
    drop(place);
    match outcome {
        // The thread of the other party deals.
        Ok(None) => {}
        Ok(Some(DealtSession { entries })) => {
            let bytes = |entries: &[Entry]| entries.iter().map(|entry| entry.traffic.bytes()).sum::<u64>();
            let [client, server] = entries.each_ref().map(|entries| bytes(entries));
            info!(client, server, "dealt: {client} bytes with the client, {server} with the server");
            // Nobody listens where the helper goes on.
            drop(ended.send(Ok(())));
        }
        Err(error) => {
            warn!("{}", describe(&error));
            if !matches!(error, Error::Serve(ServeError::Stranger { .. })) {
                drop(ended.send(Err(error)));
            }
        }
    }
}

fn attend(shared: &Shared, stream: TcpStream) -> Result<Option<DealtSession>, Error> {
    let Accepted { link, key } = shared.host.accept(stream, HANDSHAKE, shared.config.timeout)?;
    let mut channel = Channel::new(Role::Server, shared.config.network.wrap(link)?);
    if let Some(key) = key.filter(|key| !matches!(shared.host.admits(Some(*key)), Ok(true))) {
        Pairing::turn_away(&mut channel);
        let advice = shared.host.advice(key);
        return Err(ServeError::Stranger { advice, key }.into());
    }
    let caller = Caller { key: key.map(|key| key.to_string()) };
    Ok(shared.pairing.attend(channel, &caller)?)
}
