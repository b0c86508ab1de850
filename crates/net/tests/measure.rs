//! A measurement finds the shape of the link. A busy machine may make the link seem slower, never faster.

use waggle_net::{Channel, HEADER_BYTES, LinkShape, Measured, NetError, Traffic, measure};

use crate::common::*;

/// What both parties find on a link, and the traffic of the measurement, which both count alike.
fn found(pair: Pair, known: Option<Measured>) -> (Measured, Traffic) {
    let one = |mut channel: Channel, known| {
        let found = measure(&mut channel, known).unwrap();
        (found, channel.ledger().total().untimed())
    };
    let (client, server) = run(pair, move |channel| one(channel, None), |channel| one(channel, known));
    assert_eq!(client, server);
    client
}

#[test]
fn a_shaped_link_is_found() {
    for (name, grid) in [("lan", "3000mbit,0.4ms"), ("wan", "400mbit,5ms")] {
        let grid: LinkShape = grid.parse().unwrap();
        // Somebody else may have the processor for the whole of a measurement, but not for ever.
        let measured = (0..1000).map(|_| found(shaped(tcp(PATIENCE), name.parse().unwrap()), None));
        let (measured, traffic) = measured.into_iter().find(|(measured, _)| measured.shape == grid).expect(name);
        assert!(measured.bursts > 2, "{name}: {measured:?}");
        // A rehearsal has the traffic of the measurement.
        assert_eq!(found(memory(PATIENCE), Some(measured)), (measured, traffic));
    }
    let (measured, traffic) = found(memory(PATIENCE), None);
    assert_eq!(measured, Measured { shape: LinkShape::MEMORY, bursts: 0 });
    assert_eq!((traffic.bytes(), traffic.flows), (2 + HEADER_BYTES as u64, 1));
}

#[test]
fn parties_that_lie_are_refused() {
    const BURSTS: [usize; 6] = [16 << 10, 64 << 10, 256 << 10, 1 << 20, 1 << 20, 1 << 20];
    type Lie = (&'static str, usize, &'static [usize], &'static [u8]);
    // A lie: the kind of error, the number of pings and the bursts before the lie, and what the server then sends.
    let lies: [Lie; 7] = [
        ("malformed", 0, &[], &[11, 0]),
        ("malformed", 0, &[], &[0, 8]),
        ("malformed", 0, &[], &[]),
        ("length", 0, &[], &[0; 3]),
        ("malformed", 1, &[], &[0, 0]),
        ("malformed", 4, &[], &[0; 300]),
        ("length", 4, &BURSTS, &[]),
    ];
    for (error, pings, bursts, last) in lies {
        let lie = |mut server: Channel| -> Result<(), NetError> {
            for size in [1; 4][..pings].iter().chain(bursts) {
                server.send("link", &vec![1; *size])?;
                server.recv("link", *size)?;
            }
            server.send("link", last)?;
            server.flush("link")
        };
        let (client, _) = run(memory(PATIENCE), |mut channel| kind(measure(&mut channel, None)), lie);
        assert_eq!(client, error, "{pings} pings, {bursts:?}, {last:?}");
    }
    let less = |mut client: Channel| client.recv("link", 1).and_then(|_| client.send("link", &[]));
    let (_, server) = run(tcp(PATIENCE), less, |mut channel| kind(measure(&mut channel, None)));
    assert_eq!(server, "length");
}
