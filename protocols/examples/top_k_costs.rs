//! Messages of the three methods of top-k, for 12 rows, k = n/4 and scores of 15 bits. The choice comes as unit
//! vectors (a row of ranks below k, words of 64 bits) or as opened positions. `cargo run --release -p
//! waggle-protocols --example top_k_costs`

use waggle_net::{Phase, Role};
use waggle_planner::Planner;
use waggle_protocols::functions::top_k::{self, Scores};
use waggle_protocols::ops::Shuffle;
use waggle_protocols::{Abb, Error, Options, Shape};

/// |x| < 2^5, compared at 10 fractional bits.
const SCORES: Scores = Scores::below(5, 10);

const ROWS: usize = 12;

fn main() -> Result<(), Error> {
    println!("{:>4} {:<28} {:>12} {:>12} {:>7} {:>9}", "n", "method", "online B", "offline B", "flows", "OTs");
    for n in [32, 64, 256] {
        let k = n / 4;
        let x = Shape(vec![ROWS, n]);
        measure(n, "rank", |b| top_k::rank(b, &x, k, SCORES, 64).map(|_| ()))?;
        measure(n, "sort", |b| top_k::sort(b, &x, k, SCORES, 64).map(|_| ()))?;
        measure(n, "shuffle_reveal (mean)", |b| top_k::shuffle_reveal(b, &x, k, SCORES).map(|_| ()))?;
        measure(n, "  + unit vectors", |b| {
            let chosen = top_k::shuffle_reveal(b, &x, k, SCORES)?;
            top_k::one_hot_of_shuffled(b, &chosen, 64).map(|_| ())
        })?;
        measure(n, "  + scores there and back", |b| {
            let chosen = top_k::shuffle_reveal(b, &x, k, SCORES)?;
            let items = Shape(vec![ROWS, n, 1]);
            let moved = b.apply(Shuffle { widths: &[64], inverse: false }, (&chosen.permutations, &items))?;
            b.apply(Shuffle { widths: &[64], inverse: true }, (&chosen.permutations, &moved)).map(|_| ())
        })?;
    }
    Ok(())
}

/// Prints the traffic of `steps`; offline bytes include whole refills of the pools of OTs.
fn measure(n: usize, name: &str, steps: impl FnOnce(&mut Planner) -> Result<(), Error>) -> Result<(), Error> {
    let mut planner = Planner::new(Options::default());
    planner.ledger().set_phase(Phase::Decode);
    steps(&mut planner)?;
    let (online, offline) =
        (planner.ledger().phase_total(Phase::Decode), planner.ledger().phase_total(Phase::Offline));
    let ots = planner.cots_used(Role::Client) + planner.cots_used(Role::Server);
    println!("{n:>4} {name:<28} {:>12} {:>12} {:>7} {ots:>9}", online.bytes(), offline.bytes(), online.flows);
    Ok(())
}
