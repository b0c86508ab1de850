//! Both parties in one process.

use std::thread;
use std::time::Duration;

use waggle_net::{Channel, NetError, Role, memory_pair};

use super::{ClientOptions, ClientSession, Limits, ModelServer, Outcome, Peer, Terms, nobody};
use crate::Error;

/// Runs a session between two threads over memory, with the whole protocol, as over a network. `client` receives the
/// open session of the client, in the thread of the caller. Each party waits at most `patience` for the other.
/// Returns the outcomes of client and server.
///
/// # Errors
/// Errors of [`ClientSession::open`], of `client` and of [`ModelServer::serve`]. If one error follows from the other,
/// the cause.
///
/// # Panics
/// If the server panics, which is a bug.
pub fn in_one_process(
    server: &ModelServer,
    terms: &Terms,
    limits: &Limits,
    wanted: &ClientOptions,
    patience: Duration,
    client: impl FnOnce(ClientSession) -> Result<Outcome, Error>,
) -> Result<[Outcome; 2], Error> {
    let (here, there) = memory_pair(patience);
    let (client, server) = thread::scope(|scope| {
        let server = scope
            .spawn(|| server.serve(Channel::new(Role::Server, there), &Peer::default(), terms, limits, &mut nobody));
        let channel = Channel::new(Role::Client, here);
        let open = ClientSession::open(channel, &Peer::default(), terms, wanted);
        let client = open.and_then(client);
        (client, server.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    match (client, server) {
        // A party whose peer hung up is not the cause.
        (Err(hung_up), Err(error)) if matches!(hung_up.net(), Some(NetError::Closed { .. })) => Err(error),
        (client, server) => Ok([client?, server?]),
    }
}
