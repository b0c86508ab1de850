//! The measurement of links. A busy machine may make a link seem slower, never faster.

use waggle_net::{Channel, HEADER_BYTES, LinkShape, Measured, NetError, Traffic, measure};

use crate::common::*;

/// What both parties find on a link, and what it took, which they count alike.
fn found(pair: Pair, known: Option<Measured>) -> (Measured, Traffic) {
    let here = move |mut channel: Channel| {
        let found = measure(&mut channel, None).unwrap();
        (found, channel.ledger().total().untimed())
    };
    let there = |mut channel: Channel| {
        let found = measure(&mut channel, known).unwrap();
        (found, channel.ledger().total().untimed())
    };
    let (client, server) = run(pair, here, there);
    assert_eq!(client, server);
    client
}

#[test]
fn a_shaped_link_is_found() {
    for name in ["lan", "wan"] {
        let shape: LinkShape = name.parse().unwrap();
        let grid = shape.rounded();
        // Somebody else may have the processor for the whole of a measurement, but not for ever.
        let measured = (0..1000).map(|_| found(shaped(memory(PATIENCE), shape), None).0).find(|measured| {
            assert!(measured.shape.bytes_per_second <= grid.bytes_per_second, "{name}: {measured:?}");
            assert!(measured.shape.round_trip >= grid.round_trip, "{name}: {measured:?}");
            measured.shape == grid
        });
        assert!(measured.is_some_and(|measured| measured.bursts > 2), "{name}: {measured:?}");
    }
}

#[test]
fn the_grid_is_coarse() {
    for (name, shape) in LinkShape::PRESETS {
        let grid = shape.rounded();
        assert_eq!(grid.rounded(), grid, "{name}");
        for rate in [0.75, 1.3] {
            let bytes_per_second = (shape.bytes_per_second as f64 * rate) as u64;
            let near = LinkShape { bytes_per_second, round_trip: shape.round_trip.mul_f64(1.5) };
            assert_eq!(near.rounded(), grid, "{name}");
        }
    }
    assert_eq!(LinkShape::MEMORY.rounded(), LinkShape::MEMORY);
    let none = LinkShape { bytes_per_second: 0, round_trip: Default::default() }.rounded();
    assert!(none.bytes_per_second > 0 && !none.round_trip.is_zero());
}

#[test]
fn what_is_known_is_not_measured() {
    let (measured, traffic) = found(memory(PATIENCE), None);
    assert_eq!(measured, Measured { shape: LinkShape::MEMORY, bursts: 0 });
    assert_eq!((traffic.bytes(), traffic.flows), (2 + HEADER_BYTES as u64, 1));
    // A rehearsal takes what the session took.
    let fast = LinkShape { bytes_per_second: 1_000_000_000, round_trip: Default::default() };
    let (measured, traffic) = found(shaped(memory(PATIENCE), fast), None);
    assert_eq!(found(memory(PATIENCE), Some(measured)), (measured, traffic));
}

#[test]
fn a_server_that_lies_is_refused() {
    let ping = |server: &mut Channel, size: usize| -> Result<(), NetError> {
        server.send("link", &vec![1; size])?;
        server.recv("link", size).map(drop)
    };
    let pings = move |server: &mut Channel| (0..4).try_for_each(|_| ping(server, 1));
    type Lie = Box<dyn Fn(&mut Channel) -> Result<(), NetError>>;
    let lies: [(&str, Lie); 7] = [
        ("malformed", Box::new(|server| server.send("link", &[11, 0]))),
        ("malformed", Box::new(|server| server.send("link", &[0, 8]))),
        ("malformed", Box::new(|server| server.send("link", &[]))),
        ("length", Box::new(|server| server.send("link", &[0; 3]))),
        ("malformed", Box::new(move |server| ping(server, 1).and_then(|()| server.send("link", &[0, 0])))),
        ("malformed", Box::new(move |server| pings(server).and_then(|()| server.send("link", &[0; 300])))),
        (
            "length",
            Box::new(move |server| {
                pings(server)?;
                // A burst too many.
                [16 << 10, 64 << 10, 256 << 10, 1 << 20, 1 << 20, 1 << 20].iter().try_for_each(|n| ping(server, *n))
            }),
        ),
    ];
    for (at, (error, lie)) in lies.into_iter().enumerate() {
        let (client, _) = run(
            memory(PATIENCE),
            |mut channel| kind(measure(&mut channel, None)),
            |mut server| lie(&mut server).and_then(|()| server.flush("link")),
        );
        assert_eq!(client, error, "lie {at}");
    }
}

#[test]
fn a_client_that_echoes_less_is_refused() {
    let shape = LinkShape { bytes_per_second: 1_000_000_000, round_trip: Default::default() };
    let less = |mut client: Channel| client.recv("link", 1).and_then(|_| client.send("link", &[]));
    let (_, server) = run(shaped(memory(PATIENCE), shape), less, |mut channel| kind(measure(&mut channel, None)));
    assert_eq!(server, "length");
}
