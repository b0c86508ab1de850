//! The account itself.

use std::time::{Duration, Instant};

use net::{Direction, Ledger, Phase, Traffic, process_cpu_time};

fn example() -> Ledger {
    let mut ledger = Ledger::default();
    ledger.book(Direction::ClientToServer, 1);
    ledger.set_phase(Phase::Prefill);
    for (layer, bytes) in [("layer 0", 10), ("layer 1", 100)] {
        ledger.enter(layer);
        ledger.enter("attention");
        ledger.enter("softmax");
        ledger.book(Direction::ServerToClient, bytes);
        ledger.leave();
        ledger.book(Direction::ClientToServer, 1000 + bytes);
        ledger.leave_to(0);
    }
    ledger.checkpoint();
    ledger
}

#[test]
fn prefixes_sum_what_lies_below() {
    let ledger = example();
    let view = |depth| -> Vec<(Phase, String, u64, u64)> {
        let entries = ledger.by_prefix(depth).into_iter().filter(|e| e.traffic.messages > 0);
        entries.map(|e| (e.phase, e.path, e.traffic.bytes(), e.traffic.messages)).collect()
    };
    use Phase::{Prefill, Setup};
    assert_eq!(view(0), [(Setup, "".into(), 1, 1), (Prefill, "".into(), 2220, 4)]);
    let layers =
        [(Setup, "".into(), 1, 1), (Prefill, "layer 0".into(), 1020, 2), (Prefill, "layer 1".into(), 1200, 2)];
    assert_eq!(view(1), layers);
    assert_eq!(view(2)[1], (Prefill, "layer 0/attention".into(), 1020, 2));
    assert_eq!(view(3)[2], (Prefill, "layer 0/attention/softmax".into(), 10, 1));
    assert_eq!(ledger.by_prefix(3), ledger.entries());
    assert_eq!(ledger.by_prefix(usize::MAX), ledger.entries());
    for depth in 0..5 {
        let mut sum = Traffic::default();
        ledger.by_prefix(depth).iter().for_each(|entry| sum.add(&entry.traffic));
        assert_eq!(sum, ledger.total(), "depth {depth}");
    }
}

#[test]
fn flows_are_changes_of_direction() {
    let ledger = example();
    // Client; server, client; server, client.
    assert_eq!(ledger.total().flows, 5);
    assert_eq!(ledger.phase_total(Phase::Prefill).flows, 4);
}

#[test]
fn untimed_accounts_carry_messages_and_no_times() {
    let ledger = example();
    let untimed = ledger.untimed();
    assert_eq!(untimed.len(), 5);
    let mut sum = Traffic::default();
    untimed.iter().for_each(|entry| sum.add(&entry.traffic));
    assert_eq!(sum, ledger.total().untimed());
    assert_eq!((sum.time, sum.cpu), (Duration::ZERO, Duration::ZERO));
}

#[test]
fn cpu_time_goes_to_the_phase_that_used_it() {
    let Some(begin) = process_cpu_time() else { return };
    let mut ledger = Ledger::default();
    ledger.set_phase(Phase::Offline);
    ledger.enter("busy");
    let (cpu, wall) = (process_cpu_time().unwrap(), Instant::now());
    while process_cpu_time().unwrap() < cpu + Duration::from_millis(20) {
        std::hint::spin_loop();
    }
    let wall = wall.elapsed();
    ledger.leave();
    ledger.set_phase(Phase::Decode);
    ledger.checkpoint();
    let offline = ledger.phase_total(Phase::Offline);
    assert!(offline.cpu >= Duration::from_millis(20), "{offline:?}");
    assert!(offline.time >= wall);
    let root = ledger.entries().into_iter().find(|e| e.phase == Phase::Offline && e.path.is_empty());
    assert_eq!(root.unwrap().traffic.cpu, offline.cpu, "booked on the phase's root account");
    let spent = process_cpu_time().unwrap() - begin;
    assert!(ledger.total().cpu <= spent, "nothing is booked twice");
    let before = ledger.total();
    ledger.checkpoint();
    assert_eq!(ledger.total().since(&before).untimed(), Traffic::default());
}

#[test]
fn an_exchange_adds_one_flow() {
    let mut ledger = Ledger::default();
    ledger.book_exchange([3, 4]);
    assert_eq!(ledger.total().flows, 2, "the first message of a session counts");
    // Whoever sent last, its message of the exchange follows at once.
    for (flows, direction) in [(3, Direction::ServerToClient), (4, Direction::ClientToServer)] {
        ledger.book(direction, 1);
        ledger.book_exchange([3, 4]);
        assert_eq!(ledger.total().flows, flows);
    }
    let Traffic { bytes_client_to_server, bytes_server_to_client, messages, .. } = ledger.total();
    assert_eq!((bytes_client_to_server, bytes_server_to_client, messages), (10, 13, 8));
}
