//! Answers of a server before the session, and how a client reads them.

use std::thread;
use std::time::Duration;

use crate::common::*;
use waggle_net::tcp::{ConnectOptions, listen};
use waggle_net::{Admission, Identity, Link, NetError, await_admission, await_client, send_admission, tls};

#[test]
fn busy_then_granted() {
    for (name, (mut client, mut server)) in every_kind(PATIENCE) {
        let waiting = thread::spawn(move || {
            let mut signs = 0;
            await_admission(&mut *client, &mut || signs += 1).map(|()| (client, signs))
        });
        await_client(&mut *server).unwrap();
        for _ in 0..4 {
            send_admission(&mut *server, &Admission::Busy).unwrap();
        }
        send_admission(&mut *server, &Admission::Granted).unwrap();
        let (mut client, signs) = waiting.join().unwrap().unwrap();
        assert_eq!(signs, 4, "{name}");
        // Nothing is left over on either side.
        client.send(vec![5]).unwrap();
        server.send(vec![6]).unwrap();
        let mut byte = [0];
        server.recv(&mut byte).unwrap();
        assert_eq!(byte, [5]);
        client.recv(&mut byte).unwrap();
        assert_eq!(byte, [6]);
    }
}

/// The error of a client that receives `bytes`.
fn hear(bytes: &[u8]) -> NetError {
    let (mut client, mut server) = memory(BRIEF);
    server.send(bytes.to_vec()).unwrap();
    await_admission(&mut *client, &mut || ()).unwrap_err()
}

#[test]
fn refusals_and_nonsense() {
    let (mut client, mut server) = memory(PATIENCE);
    send_admission(&mut *server, &Admission::Refused { reason: "\u{e9}".repeat(2000) }).unwrap();
    let error = await_admission(&mut *client, &mut || ()).unwrap_err();
    let NetError::Refused { reason } = error else { panic!("{error:?}") };
    assert_eq!(reason, "\u{e9}".repeat(512));

    assert!(matches!(hear(b"HTTP/1.1 400 Bad Request\r\n"), NetError::NotWaggle { first } if first == "HTTP/1."));
    let message =
        |kind: u8, value: u32, text: &[u8]| [b"WGL-ADM1".as_slice(), &[kind], &value.to_le_bytes(), text].concat();
    assert!(matches!(hear(&message(0, 1, b"")), NetError::Malformed { .. }));
    assert!(matches!(hear(&message(1, 1, b"")), NetError::Malformed { .. }));
    assert!(matches!(hear(&message(3, 0, b"")), NetError::Malformed { .. }));
    assert!(matches!(hear(&message(2, 2, b"a\n")), NetError::Malformed { .. }));
    assert!(matches!(hear(&message(2, 1, b"\xff")), NetError::Malformed { .. }));
    assert!(matches!(hear(&message(2, u32::MAX, b"")), NetError::Length { got: 0xffff_ffff, .. }));
    assert!(matches!(hear(&message(2, 9, b"short")), NetError::TimedOut { .. }));
    assert!(matches!(hear(b""), NetError::TimedOut { step: "admission", .. }));
}

#[test]
fn one_encrypts_and_the_other_does_not() {
    let listener = listen("127.0.0.1:0", PATIENCE).unwrap();
    let addr = listener.local_addr().unwrap();
    let options = ConnectOptions { connect_timeout: PATIENCE, read_timeout: PATIENCE };
    let plain = thread::spawn(move || {
        let mut link = waggle_net::tcp::connect(addr, options).unwrap();
        await_admission(&mut link, &mut || ()).unwrap_err()
    });
    let host = Identity::generate().unwrap();
    let start = std::time::Instant::now();
    let error = tls::accept(listener.accept_stream(Some(PATIENCE)).unwrap(), &host, PATIENCE, PATIENCE).unwrap_err();
    assert!(error.to_string().contains("does not speak TLS, it begins with `WGL-CLT1`"), "{error}");
    let error = plain.join().unwrap();
    assert!(error.to_string().contains("the peer encrypts"), "{error}");

    let encrypting = thread::spawn(move || {
        let me = Identity::generate().unwrap();
        tls::connect(addr, &me, |_| true, options).unwrap_err()
    });
    let mut link = listener.accept(Some(PATIENCE)).unwrap();
    let error = await_client(&mut link).unwrap_err();
    assert!(error.to_string().contains("the peer encrypts"), "{error}");
    drop(link);
    assert_eq!(kind(Err::<(), _>(encrypting.join().unwrap())), "closed");
    assert!(start.elapsed() < PATIENCE);
}

#[test]
fn a_client_that_leaves_the_queue_is_noticed() {
    for (name, (client, mut server)) in [("tcp", tcp(PATIENCE)), ("tls", tls(PATIENCE))] {
        server.read_ahead(Duration::from_millis(1)).unwrap();
        drop(client);
        let gone = (0..1000).any(|_| {
            let ahead = server.read_ahead(Duration::from_millis(10));
            ahead.is_err_and(|e| e.kind() == std::io::ErrorKind::UnexpectedEof)
        });
        assert!(gone, "{name}");
    }
}
