//! Bytes and flows of tabulated functions by look-up and on masked inputs, from the plan.
//! `cargo run --release -p waggle-bench --example functions`

use waggle_net::{Ledger, Phase};
use waggle_planner::Planner;
use waggle_protocols::functions::{gelu, silu, softmax};
use waggle_protocols::{Error, Gelu, Options, Shape};

/// Inputs of a plan.
const COUNT: usize = 3 << 13;
/// Runs of a plan.
const RUNS: usize = 64;

/// Bytes online and offline and flows online of `function` on `n` words.
fn planned(n: usize, options: Options, function: impl Fn(&mut Planner, &Shape) -> Result<Shape, Error>) -> [f64; 3] {
    let mut planner = Planner::new(options);
    let spent = |planner: &mut Planner| {
        planner.ledger().set_phase(Phase::Decode);
        function(planner, &Shape(vec![n])).expect("a plan");
        let total = |ledger: &mut Ledger, phase| ledger.phase_total(phase);
        [total(planner.ledger(), Phase::Decode), total(planner.ledger(), Phase::Offline)]
    };
    // Pools are filled in large steps: the mean of many runs, of which the first, with its set-up, does not count.
    let [online, offline] = spent(&mut planner);
    let [mut online2, mut offline2] = [online, offline];
    for _ in 0..RUNS {
        [online2, offline2] = spent(&mut planner);
    }
    let each = |late: u64, early: u64| (late - early) as f64 / (RUNS * n) as f64;
    [
        each(online2.bytes(), online.bytes()),
        each(offline2.bytes(), offline.bytes()),
        (online2.flows - online.flows) as f64 / RUNS as f64,
    ]
}

fn row(name: &str, method: &str, [online, offline, flows]: [f64; 3]) {
    println!("| {name} | {method} | {online:.1} | {offline:.1} | {flows:.0} |");
}

fn main() -> Result<(), Error> {
    println!("| function | method | bytes online | bytes offline | flows online |\n|---|---|---|---|---|");
    // In one phase activations are looked up over slow links alone.
    let one_phase = Options { link: "wan".parse().expect("a preset"), ..Options::default() };
    let two_phases = Options { preprocess: true, ..Options::default() };
    for (method, options) in [("look-up", one_phase), ("masked", two_phases)] {
        row("GELU", method, planned(COUNT, options, |b, x| gelu(b, x, Gelu::Tanh)));
        row("SiLU", method, planned(COUNT, options, silu));
        for n in [128, 1000] {
            let scores = planned(12 * n, options, |b, _| softmax(b, &Shape(vec![12, 1, n]), &[n]));
            row(&format!("softmax 12 x {n}"), method, scores);
        }
    }
    Ok(())
}
