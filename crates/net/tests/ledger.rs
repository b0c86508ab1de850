//! The ledger counts every byte, flow and second once, in the right account.

use std::time::{Duration, Instant};

use waggle_net::{Channel, Direction, Entry, Ledger, NetError, Phase, Role, Traffic, memory_pair, process_cpu_time};

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
fn a_division_keeps_the_sum_and_says_what_it_divided() {
    let mut ledger = Ledger::default();
    ledger.set_phase(Phase::Offline);
    ledger.enter("preprocess");
    for (kind, bytes) in [("linear", 100), ("functions", 1001)] {
        ledger.enter(kind);
        ledger.book(Direction::ClientToServer, bytes);
        ledger.book(Direction::ServerToClient, 2);
        let phase = ledger.set_phase(Phase::Setup);
        ledger.book(Direction::ClientToServer, 7);
        ledger.set_phase(phase);
        let before = ledger.phase_total(Phase::Offline).untimed();
        // The shares are 2 : 4 : 1. What rounding leaves goes to the largest remainder.
        let shares = [("layer 0/gelu", 2), ("layer 1/gelu", 4), ("head", 1)];
        ledger.divide(Phase::Offline, if kind == "linear" { &[] } else { &shares });
        assert_eq!(ledger.phase_total(Phase::Offline).untimed(), before);
        ledger.leave();
    }
    let entries = ledger.untimed();
    let found = |path: &str| {
        let entry = entries.iter().find(|e| e.phase == Phase::Offline && e.path == path);
        entry
            .map(|Entry { traffic: t, .. }| [t.bytes_client_to_server, t.bytes_server_to_client, t.messages, t.flows])
    };
    assert_eq!(found("layer 0/gelu"), Some([286, 1, 1, 0]));
    assert_eq!(found("layer 1/gelu"), Some([572, 1, 1, 1]));
    assert_eq!(found("head"), Some([143, 0, 0, 0]));
    assert_eq!(found("preprocess/functions"), None);
    assert_eq!(found("preprocess/linear"), Some([100, 2, 2, 2]), "nobody takes it");
    let keys = entries.iter().filter(|e| e.phase == Phase::Setup);
    assert_eq!(keys.map(|e| (&e.path[..], e.traffic.bytes())).next_back(), Some(("preprocess/linear", 7)));
    let [kind] = &ledger.divided()[..] else { panic!("{:?}", ledger.divided()) };
    assert_eq!((kind.phase, &kind.path[..], kind.traffic.bytes()), (Phase::Offline, "functions", 1003));
}

#[test]
fn flows_are_changes_of_direction() {
    let ledger = example();
    // The flows go client; server, client; server, client.
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

/// Keeps this thread busy until the process has spent `time` more. Returns the wall-clock time that this took.
fn burn(time: Duration) -> Duration {
    let (cpu, wall) = (process_cpu_time().unwrap(), Instant::now());
    while process_cpu_time().unwrap() < cpu + time {
        std::hint::spin_loop();
    }
    wall.elapsed()
}

#[test]
fn cpu_time_goes_to_the_scope_that_used_it() {
    const BUSY: Duration = Duration::from_millis(20);
    let begin = process_cpu_time().expect("systems that tests run on tell it");
    let mut ledger = Ledger::default();
    ledger.set_phase(Phase::Offline);
    ledger.enter("layer");
    ledger.enter("busy");
    let wall = burn(BUSY);
    ledger.leave();
    ledger.enter("busier");
    burn(3 * BUSY);
    // The phase changes within the scope, as where correlations are made on the spot.
    let before = ledger.set_phase(Phase::Decode);
    burn(2 * BUSY);
    ledger.set_phase(before);
    ledger.leave_to(0);
    ledger.set_phase(Phase::Decode);
    ledger.checkpoint();

    let account = |phase, path: &str| {
        let found = ledger.entries().into_iter().find(|e| e.phase == phase && e.path == path);
        found.map(|e| e.traffic).unwrap_or_else(|| panic!("{phase:?} {path}"))
    };
    assert!(account(Phase::Offline, "layer/busy").cpu >= BUSY);
    assert!(account(Phase::Offline, "layer/busy").time >= wall);
    assert!(account(Phase::Offline, "layer/busier").cpu >= 3 * BUSY);
    assert!(account(Phase::Decode, "layer/busier").cpu >= 2 * BUSY);
    // Other tests of this process may run meanwhile, so outer accounts may have some time. An outer account that was
    // charged for nested ones would have all of theirs.
    let nested = account(Phase::Offline, "layer/busy").cpu + account(Phase::Offline, "layer/busier").cpu;
    assert!(account(Phase::Offline, "layer").cpu < nested / 2);
    assert!(account(Phase::Offline, "").cpu < nested / 2);

    for phase in [Phase::Offline, Phase::Decode] {
        let of_phase = ledger.entries().into_iter().filter(|e| e.phase == phase);
        let sum: Duration = of_phase.map(|e| e.traffic.cpu).sum();
        assert_eq!(sum, ledger.phase_total(phase).cpu, "{phase:?}");
    }
    assert!(ledger.total().cpu <= process_cpu_time().unwrap() - begin, "nothing is booked twice");
    let before = ledger.total();
    ledger.checkpoint();
    assert_eq!(ledger.total().since(&before).untimed(), Traffic::default());
}

#[test]
fn an_exchange_adds_one_flow() {
    let mut ledger = Ledger::default();
    ledger.book_exchange([3, 4]);
    assert_eq!(ledger.total().flows, 2, "the first message of a session counts");
    // The message of the party that sent last continues its flow.
    for (flows, direction) in [(3, Direction::ServerToClient), (4, Direction::ClientToServer)] {
        ledger.book(direction, 1);
        ledger.book_exchange([3, 4]);
        assert_eq!(ledger.total().flows, flows);
    }
    let Traffic { bytes_client_to_server, bytes_server_to_client, messages, .. } = ledger.total();
    assert_eq!((bytes_client_to_server, bytes_server_to_client, messages), (10, 13, 8));
}

/// The messages of a party, as either end of a link or a rehearsal runs them.
fn messages(channel: &mut Channel) -> Result<(), NetError> {
    if channel.role() == Role::Client {
        channel.send("first", &[1; 5])?;
        channel.send_made("made", 7, || Ok::<_, NetError>(vec![2; 7]))?;
        channel.recv("answer", 9)?;
        assert_eq!(channel.recv_up_to("verdict", 20)?.len(), 3);
    } else {
        channel.recv("first", 5)?;
        channel.recv("made", 7)?;
        channel.send("answer", &[3; 9])?;
        channel.send("verdict", b"yes")?;
    }
    channel.exchange("both", &[4; 6], 6)?;
    channel.confirm_transcript()
}

#[test]
fn a_rehearsal_books_what_a_session_books() {
    let (client, server) = memory_pair(Duration::from_secs(60));
    let (mut client, mut server) = (Channel::new(Role::Client, client), Channel::new(Role::Server, server));
    std::thread::scope(|scope| {
        let served = scope.spawn(|| messages(&mut server));
        messages(&mut client).unwrap();
        served.join().unwrap().unwrap();
    });
    let mut rehearsal = Channel::rehearsal(Role::Client, vec![("verdict", b"yes".to_vec())]);
    messages(&mut rehearsal).unwrap();
    assert!(rehearsal.rehearses() && !client.rehearses());
    for other in [server.ledger(), rehearsal.ledger()] {
        assert_eq!(client.ledger().untimed(), other.untimed());
    }
    let wrong = client.send_made("made", 7, || Ok::<_, NetError>(vec![2; 6]));
    assert!(matches!(wrong, Err(NetError::Length { step: "made", expected: 7, got: 6 })));
}
