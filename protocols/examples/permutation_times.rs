//! Times how long it takes to draw and route a secret permutation, and to shuffle a row of words by it. `cargo run
//! --release -p waggle-protocols --example permutation_times`

use std::time::Instant;

use ndarray::{ArrayD, IxDyn};
use waggle_protocols::local::Pair;
use waggle_protocols::ops::{Permute, Shuffle};
use waggle_protocols::{Abb, Error, Options};

const ROWS: usize = 4;

fn main() -> Result<(), Error> {
    let mut pair = Pair::new(Options::default())?;
    println!("{:>6} {:>16} {:>16}", "items", "draw, ms a row", "shuffle, ms a row");
    for n in [64, 256, 1024, 4096] {
        let [client, _] = pair.run(|abb| {
            let start = Instant::now();
            let permutations = abb.apply(Permute { rows: ROWS, items: n }, ())?;
            let drawn = start.elapsed();
            let words = ArrayD::zeros(IxDyn(&[ROWS, n, 1]));
            let start = Instant::now();
            abb.apply(Shuffle { widths: &[40], inverse: false }, (&permutations, &words))?;
            Ok([drawn, start.elapsed()])
        })?;
        let [drawn, shuffled] = client.map(|time| time.as_secs_f64() * 1e3 / ROWS as f64);
        println!("{n:>6} {drawn:>16.2} {shuffled:>16.2}");
    }
    Ok(())
}
