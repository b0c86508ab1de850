//! Two parties in two threads.

use std::thread;
use std::time::Duration;

use waggle_net::{Channel, Ledger, Role, memory_pair};
use waggle_ot::{CotKind, OtReceiver, OtSender, SoftSpoken};

/// A pair of channels in memory.
pub(crate) fn channels() -> (Channel, Channel) {
    let (a, b) = memory_pair(Duration::from_secs(60));
    (Channel::new(Role::Client, a), Channel::new(Role::Server, b))
}

/// Runs both parties; returns their results and the client's ledger after checking that both ledgers agree.
pub(crate) fn run<A: Send, B: Send>(
    client: impl FnOnce(&mut Channel) -> A + Send,
    server: impl FnOnce(&mut Channel) -> B + Send,
) -> (A, B, Ledger) {
    let (mut c, mut s) = channels();
    let (a, b) = thread::scope(|scope| {
        let a = scope.spawn(|| client(&mut c));
        let b = server(&mut s);
        (a.join().expect("client"), b)
    });
    let (tc, ts) = (c.ledger().total(), s.ledger().total());
    assert_eq!(
        (tc.bytes_client_to_server, tc.bytes_server_to_client, tc.messages, tc.flows),
        (ts.bytes_client_to_server, ts.bytes_server_to_client, ts.messages, ts.flows)
    );
    (a, b, c.ledger().clone())
}

/// Sets up both directions with pools of at least `n` OTs for the client as sender.
pub(crate) fn pools(kind: SoftSpoken, n: usize) -> (OtSender, OtReceiver, Ledger) {
    let kind = CotKind::SoftSpoken(kind);
    run(
        |ch| {
            let (mut sender, _) = waggle_ot::setup(ch, kind, &mut rand::rng()).unwrap();
            sender.ensure(ch, n).unwrap();
            sender
        },
        |ch| {
            let (_, mut receiver) = waggle_ot::setup(ch, kind, &mut rand::rng()).unwrap();
            receiver.ensure(ch, n).unwrap();
            receiver
        },
    )
}
