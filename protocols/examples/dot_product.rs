//! Tells the client whether the product of its vector with the server's reaches a threshold. The client learns that
//! one bit, the server nothing. `cargo run --release -p waggle-protocols --example dot_product`
//!
//! The parties are two threads. On two machines each calls `Session::new` on a channel over TCP,
//! `Channel::new(Role::Server, waggle_net::tcp::listen(addr, timeout)?.accept(None)?)` or
//! `Channel::new(Role::Client, waggle_net::tcp::connect(addr, ConnectOptions::default())?)`, and runs the same
//! `protocol`.

use ndarray::{ArrayD, arr1};
use waggle_net::{Phase, Role};
use waggle_protocols::local::Pair;
use waggle_protocols::ops::{AtLeast, Mul, Mux, Reveal};
use waggle_protocols::{Abb, Error, Options, Tensor, TwoParty, Words};

/// Ring of the product: |x . y| and |x . y - threshold| stay below 2^39.
const WIDTH: u32 = 40;

/// One party's part. `own` is its vector, of length `n`. The client gets the bit [x . y >= threshold].
fn protocol(abb: &mut TwoParty, own: &ArrayD<u64>, n: usize, threshold: i64) -> Result<Option<bool>, Error> {
    let mine = |owner, role| (owner == role).then_some(own);
    let role = abb.session().role();
    let x = abb.input(Role::Client, &[n], mine(Role::Client, role))?;
    let y = abb.input(Role::Server, &[n], mine(Role::Server, role))?;
    let product = abb.apply(Mul { width: WIDTH, error_bits: 0 }, (&x, &y))?.sum_last();
    let bit = abb.apply(AtLeast { thresholds: &[threshold], width: WIDTH }, &product)?;
    // Bits become words to be opened: b ? 1 : 0.
    let one = abb.constant(&Tensor::shape(&bit), 1);
    let word = abb.apply(Mux { width: 1 }, (&bit, &one))?;
    Ok(abb.apply(Reveal { width: 1, to: Role::Client }, &word)?.map(|opened| opened.iter().all(|&bit| bit == 1)))
}

fn main() -> Result<(), Error> {
    let vectors = [[3i64, -1, 4, 1, -5, 9, 2, -6], [2, 7, -1, 8, 2, 8, -1, 8]].map(|v| arr1(&v).mapv(|x| x as u64));
    for threshold in [15, 16] {
        let mut pair = Pair::new(Options::default())?;
        let setup = pair.ledger().total();
        let [client, server] = pair.run(|abb| {
            let own = vectors[abb.session().role() as usize].clone().into_dyn();
            protocol(abb, &own, own.len(), threshold)
        })?;
        assert_eq!((client, server), (Some(15 >= threshold), None));
        println!("x . y >= {threshold}: the client learns {client:?}, the server {server:?}");
        let (all, offline) = (pair.ledger().total().since(&setup), pair.ledger().phase_total(Phase::Offline));
        println!("  set-up {} bytes; then {} bytes in {} flows, ", setup.bytes(), all.bytes(), all.flows);
        println!("  of which {} bytes make OTs that do not depend on the vectors", offline.bytes());
    }
    Ok(())
}
