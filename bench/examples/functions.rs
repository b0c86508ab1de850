//! Cost of a tabulated function by look-up and on masked inputs: bytes and flows from the plan, CPU time of both
//! methods in turn, two parties in threads over real OTs. `cargo run --release -p waggle-bench --example functions`
//!
//! CPU time is the process's, halved: per party. The minimum of several repetitions is shown.

use std::time::Duration;

use ndarray::ArrayD;
use net::{Ledger, Phase, process_cpu_time};
use planner::Planner;
use protocols::correlation::Need;
use protocols::functions::exp::exp_negative;
use protocols::functions::grid::{Grid, Pieces, Scale};
use protocols::functions::spline::Spline;
use protocols::functions::{gelu, silu, softmax};
use protocols::local::Pair;
use protocols::ops::compare::AtLeast;
use protocols::ops::evaluate::{Evaluate, Function};
use protocols::ops::fss::table::{CurveSpec, FssTable};
use protocols::ops::fss::threshold;
use protocols::{Error, FRAC, Gelu, Operation, Options, Session, Shape};

/// Inputs of a measurement.
const COUNT: usize = 3 << 13;
const REPETITIONS: usize = 5;
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

/// CPU microseconds per word and party of the online and the offline step of an operation that takes `need`.
fn timed(
    need: Option<Need>,
    online: impl Fn(&mut Session, &ArrayD<u64>, Option<&[u64]>) -> Result<(), Error> + Sync,
) -> Result<[f64; 2], Error> {
    let mut pair = Pair::new(Options::default())?;
    let mut best = [Duration::MAX; 2];
    let clock = || process_cpu_time().unwrap_or_default();
    let x = [77, 5 << 12].map(|share| ArrayD::from_elem(vec![COUNT], share));
    for _ in 0..REPETITIONS {
        let start = clock();
        let make = |s: &mut Session| need.as_ref().map(|need| need.kind.make(s, need.units, None)).transpose();
        let made = pair.run(|abb| make(abb.session()))?;
        let middle = clock();
        pair.run(|abb| {
            let own = abb.session().role() as usize;
            online(abb.session(), &x[own], made[own].as_deref())
        })?;
        best[0] = best[0].min(clock() - middle);
        best[1] = best[1].min(middle - start);
    }
    Ok(best.map(|time| time.as_secs_f64() * 1e6 / (2 * COUNT) as f64))
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
        row("exp", method, planned(COUNT, options, |b, x| exp_negative(b, x, 64)));
        let scores = planned(12 * 128, options, |b, _| softmax(b, &Shape(vec![12, 1, 128]), &[128]));
        row("softmax 12 x 128", method, scores);
    }

    println!("\n| evaluation alone | method | CPU online, us | CPU offline, us |\n|---|---|---|---|");
    let evaluated = |function: Function| {
        let operation = Evaluate { function: &function };
        let need = operation.correlations(&vec![COUNT], &two_phases);
        timed(need, |s, x, made| operation.run(s, x, made).map(drop))
    };
    let f = |x: f64| x / (1.0 + (-x).exp());
    let power_bits = [11, 10, 9, 0];
    let grid = Grid { index_bits: 4, low_bits: 14, pieces: Pieces::Powers { degree: 4, power_bits } };
    let scale = Scale { base: -4.0, step: 1.0 / f64::from(1 << 15), out_frac: 29, out_width: 34 };
    let spline = Spline::fit(grid, scale, 4, power_bits, f);
    let [online, _] = evaluated(Function::lookup(spline, 29))?;
    println!("| 16 windows | look-up | {online:.2} | in online |");
    let spec = |index_bits, low_bits, out_frac, out_width| {
        let step = 1.0 / f64::from(1 << 15);
        CurveSpec { index_bits, low_bits, base: -4.0, step, out_frac, out_width }
    };
    for (name, table) in [
        ("128 quadratic windows, 32 bits (GELU)", FssTable::parabolas(spec(7, 11, 27, 32), f)),
        ("256 quadratic windows, 32 bits (SiLU)", FssTable::parabolas(spec(8, 11, 26, 32), f)),
        ("1024 linear windows, 50 bits (reciprocal)", FssTable::lines(spec(10, 11, 40, 50), f)),
        ("32 windows of powers (exp)", FssTable::power(5, FRAC, 0.5, [21, 25], 49)),
    ] {
        let [online, offline] = evaluated(Function::masked(table, 26))?;
        println!("| {name} | masked | {online:.2} | {offline:.2} |");
    }
    let width = threshold::MAX_WIDTH;
    let compare = AtLeast { thresholds: &[-33, 33], width };
    // Keys serve comparisons over slow links.
    let need = compare.correlations(&vec![COUNT], &Options { preprocess: true, ..one_phase });
    let [online, offline] = timed(need, |s, x, made| compare.run(s, x, made).map(drop))?;
    println!("| two thresholds, {width} bits | masked | {online:.2} | {offline:.2} |");
    Ok(())
}
