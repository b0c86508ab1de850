//! The party with the model, for many clients at once.
//!
//! | part | what it does |
//! |---|---|
//! | [`config`] | settings |
//! | [`bind`] | from settings to a server, in three steps |
//! | [`service`] | what all sessions share |
//! | [`helper`] | the third machine, another program |
//! | [`host`] | who the server is, and whom it lets in |
//! | [`door`] | bounds connections that have proved no key yet |
//! | [`visit`] | one connection in a thread of its own: TLS, admission, the session |
//! | [`desk`] | who is served and who waits |
//! | [`watch`] | time limits: closes a connection under its session |
//! | [`accounts`] | the positions that each key has used, kept across restarts |
//! | [`metrics`] | counters and their page |
//! | [`signals`] | the end |
//! | [`ranks`] | products spread over the ranks of mpirun |
//!
//! The thread that calls [`Server::run`] waits until the server ends. Events are logged with [`tracing`].

mod accounts;
mod bind;
mod config;
mod desk;
mod door;
mod helper;
mod host;
mod metrics;
mod ranks;
mod service;
mod signals;
mod visit;
mod watch;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use tracing::info;
use waggle_net::{NetError, PublicKey};
use waggle_session::party::Outcome;

pub use self::config::{Reveals, ServerConfig};
pub use self::door::network_of;
pub use self::helper::{HelperConfig, HelperServer};
pub use self::host::Allow;
pub use self::ranks::Job;
pub use self::signals::on_signal;
use crate::Error;
use crate::error::ServeError;

use service::{Happened, Service};

fn listen(address: &str) -> Result<TcpListener, Error> {
    TcpListener::bind(address).map_err(|source| ServeError::Listen { address: address.into(), source }.into())
}

fn system(what: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::System { what, source }
}

/// A server that listens.
pub struct Server {
    service: Arc<Service>,
    listener: TcpListener,
    address: SocketAddr,
    happened: Receiver<Happened>,
}

/// A handle that ends a server.
#[derive(Clone)]
pub struct Stop(Sender<Happened>);

impl Stop {
    /// Ends [`Server::run`]. Running sessions finish, conversations in which nothing runs end at once, and no client
    /// is let in any more.
    pub fn stop(&self) {
        self.because("stop");
    }

    fn because(&self, why: &'static str) {
        // The server may have ended already.
        let _ = self.0.send(Happened::Stop(why));
    }
}

impl Server {
    /// Settings of a server of `model`, a directory or a bundled name.
    pub fn of(model: impl Into<String>) -> ServerConfig {
        ServerConfig::default().model(model)
    }

    /// The address at which clients find the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The key that the server proves; `None` without encryption.
    pub fn key(&self) -> Option<PublicKey> {
        self.service.host.key()
    }

    /// The name of the server's model.
    pub fn model(&self) -> &str {
        &self.service.hosted.public().name
    }

    /// A handle that ends the server.
    pub fn stop(&self) -> Stop {
        Stop(self.service.events.clone())
    }

    /// Lets SIGTERM and SIGINT end the server. The first signal ends it in good order, the second at once.
    ///
    /// # Errors
    /// If the system does not allow it.
    pub fn until_signalled(self) -> Result<Self, Error> {
        let stop = self.stop();
        signals::on_signal(move |signal| stop.because(signal)).map_err(system("wait for signals"))?;
        Ok(self)
    }

    /// Serves until a [`Stop`] or a signal ends it.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn run(self) -> Result<(), Error> {
        self.serve(false, None).map(drop)
    }

    /// Serves one client and returns the outcome of its session, or `None` if the server was stopped before. With
    /// `patience`, the client must come within this time.
    ///
    /// # Errors
    /// Errors of the session, and [`NetError::TimedOut`] if no client comes within `patience`.
    pub fn run_once(self, patience: Option<Duration>) -> Result<Option<Outcome>, Error> {
        self.serve(true, patience)
    }

    fn serve(self, once: bool, mut patience: Option<Duration>) -> Result<Option<Outcome>, Error> {
        let Server { service, listener, address, happened } = self;
        let (server, visited) = (service.clone(), service.clone());
        let accept = move || {
            let over = || server.over.load(Ordering::Acquire);
            let visit = move |stream, peer, place| visit::visit(&visited, stream, peer, place);
            if let Err(error) = server.door.accept(&listener, once, over, || server.metrics.dropped(), visit) {
                server.tell(Happened::Ended(Box::new(Err(system("accept a connection")(error)))));
            }
        };
        let thread = thread::Builder::new().name("waggle-accept".into());
        let accepting = thread.spawn(accept).map_err(system("start a thread"))?;
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
                // This does not happen, as the service holds a sender.
                Err(RecvTimeoutError::Disconnected) => break Ok(None),
            }
        };
        service.over.store(true, Ordering::Release);
        // Wakes the thread that accepts connections. If that fails, the thread ends with the process.
        if TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok() {
            let _ = accepting.join();
        }
        ended
    }
}
