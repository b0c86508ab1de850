//! A shaped link is never faster than its shape. Times are only bounded from below: a busy machine may be late.

use std::time::{Duration, Instant};

use crate::common::*;
use waggle_net::papers::PAPERS;
use waggle_net::{Channel, LinkShape, NetError, Role, Shaped};

#[test]
fn names() {
    for (name, shape) in LinkShape::PRESETS {
        assert_eq!(name.parse::<LinkShape>(), Ok(shape));
        assert_eq!(shape.to_string(), name);
    }
    let mut names: Vec<&str> = LinkShape::PRESETS.iter().map(|(name, _)| *name).collect();
    for paper in PAPERS {
        assert_eq!(paper.name.parse::<LinkShape>(), Ok(paper.shape));
        assert_eq!(paper.shape.to_string().parse::<LinkShape>(), Ok(paper.shape), "{}", paper.name);
        assert!(!names.contains(&paper.name) && !paper.source.is_empty(), "{}", paper.name);
        names.push(paper.name);
    }
    assert_eq!("mpcache-lan".parse::<LinkShape>().unwrap().to_string(), "lan");
    let lan = LinkShape { bytes_per_second: 377_000_000, round_trip: Duration::from_micros(300) };
    assert_eq!("lan".parse(), Ok(lan));
    assert_eq!("400mbit,4ms".parse::<LinkShape>().unwrap().to_string(), "wan");
    let odd = LinkShape { bytes_per_second: 1_234_567, round_trip: Duration::from_nanos(1_500_001) };
    assert_eq!(odd.to_string().parse(), Ok(odd), "{odd}");
    assert_eq!("1000 mbit, 0 ms".parse::<LinkShape>().unwrap().round_trip, Duration::ZERO);
    let wrong = ["", "LAN", "wan ", "100mbit", "100,80", "0mbit,1ms", "-1mbit,1ms", "NaNmbit,1ms", "infmbit,1ms"];
    for text in wrong.into_iter().chain(["1mbit,-1ms", "1mbit,NaNms", "1mbit,1e9ms", "1e99mbit,1ms"]) {
        assert!(text.parse::<LinkShape>().is_err(), "{text}");
    }
}

#[test]
fn predictions() {
    let [_, _, (_, wan), (_, far)] = LinkShape::PRESETS;
    assert_eq!(wan.predict([0, 0], 0), Duration::ZERO);
    assert_eq!(wan.predict([50_000_000, 0], 1), Duration::from_millis(1002));
    assert_eq!(wan.predict([25_000_000, 25_000_000], 10), Duration::from_millis(1020));
    assert_eq!(far.predict([0, 125_000], 3), Duration::from_millis(130));
    let slow = LinkShape { bytes_per_second: 0, round_trip: Duration::MAX };
    assert_eq!(slow.predict([3, 4], 0), Duration::from_secs(7));
    assert!(slow.predict([u64::MAX, u64::MAX], u64::MAX) > Duration::MAX / 2);
}

#[test]
fn never_faster_than_predicted() {
    let shape = LinkShape { bytes_per_second: 20_000_000, round_trip: Duration::from_millis(10) };
    // Each burst of the client has one message below the size of a piece, and one of several pieces and an odd rest.
    let ping_pong = move |mut channel: Channel| -> Result<(Duration, Duration), NetError> {
        let start = Instant::now();
        for round in 0..4 {
            for len in [10, 300_001] {
                match channel.role() {
                    Role::Client => channel.send("burst", &noise(len, round))?,
                    Role::Server => assert!(channel.recv("burst", len)? == noise(len, round)),
                }
            }
            match channel.role() {
                Role::Client => assert_eq!(channel.recv("reply", 1000)?, [7; 1000]),
                Role::Server => channel.send("reply", &[7; 1000])?,
            }
        }
        let total = channel.ledger().total();
        let bytes = [total.bytes_client_to_server, total.bytes_server_to_client];
        assert_eq!(total.flows, 8);
        Ok((start.elapsed(), shape.predict(bytes, total.flows)))
    };
    for pair in [memory(PATIENCE), tcp(PATIENCE), tls(PATIENCE)] {
        let (client, _) = run(shaped(pair, shape), ping_pong, ping_pong);
        let (took, predicted) = client.unwrap();
        assert!(predicted >= Duration::from_millis(100), "{predicted:?}");
        assert!(took >= predicted, "{took:?} < {predicted:?}");
    }
}

#[test]
fn the_wire_is_shared_by_consecutive_sends() {
    // 40 flushed messages of 10 kB at 2 MB/s: 200 ms, however they are cut.
    let shape = LinkShape { bytes_per_second: 2_000_000, round_trip: Duration::from_millis(2) };
    let start = Instant::now();
    let (client, server) = run(
        shaped(memory(PATIENCE), shape),
        |mut c| {
            for _ in 0..40 {
                c.send("part", &[0; 9_992])?;
                c.flush("part")?;
            }
            Ok::<_, NetError>(())
        },
        |mut s| (0..40).try_for_each(|_| s.recv("part", 9_992).map(|_| ())),
    );
    assert_eq!((kind(client), kind(server)), ("ok", "ok"));
    assert!(start.elapsed() >= Duration::from_millis(201), "{:?}", start.elapsed());
}

#[test]
fn both_directions_are_shaped_at_once() {
    let shape = LinkShape { bytes_per_second: 5_000_000, round_trip: Duration::from_millis(20) };
    let party = |mut channel: Channel| {
        let start = Instant::now();
        channel.exchange("cross", &vec![0; 500_000], 500_000).map(|_| start.elapsed())
    };
    let begin = Instant::now();
    let (client, server) = run(shaped(tcp(PATIENCE), shape), party, party);
    assert!(client.is_ok() && server.is_ok());
    assert!(begin.elapsed() >= Duration::from_millis(110));
}

#[test]
fn a_dead_peer_is_noticed() {
    let slow = LinkShape { bytes_per_second: 1_000_000, round_trip: Duration::from_millis(1) };
    for (a, b) in [memory(PATIENCE), tcp(PATIENCE), tls(PATIENCE)] {
        let mut channel = Channel::new(Role::Client, Shaped::new(a, slow).unwrap());
        drop(b);
        channel.send("lost", &[0; 1000]).unwrap();
        assert_eq!(kind(channel.recv("answer", 1)), "closed");
        let start = Instant::now();
        while channel.send("lost", &[0; 1000]).and_then(|()| channel.flush("lost")).is_ok() {
            assert!(start.elapsed() < PATIENCE, "no send fails");
        }
    }
}
