//! An operation added from outside the crate: written once over the black box, it runs in the clear, between two
//! parties, and as a plan that predicts the bytes. `cargo run --release -p waggle-protocols --example new_operation`

use ndarray::{ArrayD, arr1};
use net::Role;
use protocols::Words;
use protocols::local::Pair;
use protocols::ops::compare::AtLeast;
use protocols::ops::mux::Mux;
use protocols::ops::reveal::Reveal;
use protocols::ops::truncate::Truncation;
use protocols::{Abb, Clear, Error, FRAC, Options, Planner, Tensor};

/// Words are signed values of this many bits.
const WIDTH: u32 = 30;

/// Leaky ReLU with slope 2^-`shift` below zero: x for x >= 0, else x / 2^shift rounded up or down.
///
/// Range: |x| < 2^(WIDTH - 2). Result modulo 2^WIDTH. With y = x / 2^shift the result is y + (x >= 0 ? x - y : 0): one
/// truncation, one comparison, one selection.
fn leaky_relu<B: Abb>(b: &mut B, x: &B::Words, shift: u32) -> Result<B::Words, Error> {
    b.scope("leaky relu", |b| {
        let y = b.apply(Truncation { width: WIDTH, shift, out: WIDTH }, x)?;
        let positive = b.apply(AtLeast { thresholds: &[0], width: WIDTH }, x)?.reshape(&x.shape());
        let kept = b.apply(Mux { width: WIDTH }, (&positive, &x.minus(&y)))?;
        Ok(kept.plus(&y))
    })
}

/// The client's words through [`leaky_relu`], opened to the client.
fn layer<B: Abb>(b: &mut B, shape: &[usize], own: Option<&ArrayD<u64>>) -> Result<Option<ArrayD<u64>>, Error> {
    let x = b.input(Role::Client, shape, own)?;
    let y = leaky_relu(b, &x, 3)?;
    b.apply(Reveal { width: WIDTH, to: Role::Client }, &y)
}

fn main() -> Result<(), Error> {
    let real = [-300.0, -2.5, -1.0, 0.0, 0.125, 7.0, 450.0];
    let one = f64::from(1 << FRAC);
    let words = arr1(&real).mapv(|x: f64| (x * one).round() as i64 as u64).into_dyn();

    // In the clear: the twin to test against, which also reports values out of range.
    let clear = layer(&mut Clear::new(), words.shape(), Some(&words))?;

    // Between two parties; the server has nothing to pass in.
    let mut pair = Pair::new(Options::default())?;
    let [secure, _] = pair.run(|abb| {
        let client = abb.session().role() == Role::Client;
        layer(abb, words.shape(), client.then_some(&words))
    })?;
    for opened in [&clear, &secure] {
        assert_eq!(opened.as_ref().map(ArrayD::len), Some(real.len()));
    }
    for ((x, clear), secure) in real.iter().zip(clear.iter().flatten()).zip(secure.iter().flatten()) {
        let [clear, secure] = [clear, secure].map(|y| ((y << (64 - WIDTH)) as i64 >> (64 - WIDTH)) as f64 / one);
        println!("leaky relu({x}) = {clear} in the clear, {secure} between two parties");
        assert!([clear, secure].iter().all(|y| (y - x.max(x / 8.0)).abs() <= 1.0 / one));
    }

    // As a plan: the same code on bare shapes books the same messages.
    let mut planner = Planner::new(Options::default());
    layer(&mut planner, &[real.len()], None)?;
    assert_eq!(planner.ledger().untimed(), pair.ledger().untimed());
    println!("{} bytes in all, as planned", planner.ledger().total().bytes());
    Ok(())
}
