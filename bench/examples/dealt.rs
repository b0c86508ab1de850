//! What two parties and a helper who deals do for the work of `protocols/examples/replicated.rs`.
//! `cargo run --release -p waggle-bench --example dealt -- lan`, or another network of each pair.
//!
//! The three are threads of this process. The helper deals all correlations before a run, products with weights
//! included, and gets its halves of the weights before that. Every result is opened and compared with the exact one.

use std::array::from_fn;
use std::time::Instant;

use ndarray::ArrayD;
use rand::RngExt;
use waggle_net::{LinkShape, Phase};
use waggle_planner::Planner;
use waggle_protocols::functions::selection::{SELECTION_WIDTH, gather_cached};
use waggle_protocols::functions::top_k::Selection;
use waggle_protocols::ops::{B2a, Linear, Mul, OneHot, Truncation};
use waggle_protocols::{Abb, Error, FRAC, FixedMatrix, FixedValues, FixedWeight, HelperDeals, LINEAR_WIDTH, Options};
use waggle_protocols::{Clear, Operand, OperandId, OperandKind, Session, Shape, Tensor, WeightSpec, local::Pair};
use waggle_testing::{distance, open, own, share};

/// Words and words (n), a row (1, inputs) and a weight (inputs, outputs), or an index (m) and the cache (1, n, w)
/// from which it gathers, the same in all pairs.
type Factors<W> = [W; 2];

/// Fractional bits of weights, which products lose again.
const WEIGHT_FRAC: u32 = 16;
/// Runs, of which the fastest counts.
const RUNS: usize = 9;

/// The work in any box. `weights` are what this party knows of weights.
fn run<B: Abb>(b: &mut B, work: &[Factors<B::Words>], weights: &[FixedWeight]) -> Result<Vec<B::Words>, Error> {
    // The cache is opened under its mask once.
    let mut cache = Operand::new(OperandId { layer: 0, kind: OperandKind::Keys, generation: 0, part: 0 });
    let product = |(i, [x, y]): (usize, &Factors<B::Words>)| match y.shape()[..] {
        [_, _] => {
            let product = b.apply(Linear { weight: &weights[i] }, x)?;
            b.apply(Truncation { width: LINEAR_WIDTH, shift: WEIGHT_FRAC, out: 64 }, &product)
        }
        [_, n, _] => {
            let bits = b.apply(OneHot { bits: n.ilog2(), count: n }, x)?;
            let rows = b.apply(B2a { width: SELECTION_WIDTH }, &bits)?.reshape(&[1, x.len(), n]);
            gather_cached(b, &Selection::OneHot(rows), y, 4, &mut cache)
        }
        _ => b.apply(Mul { width: 64, error_bits: 0 }, (x, y)),
    };
    work.iter().enumerate().map(product).collect()
}

fn measure(name: &str, work: &[Factors<ArrayD<u64>>], network: LinkShape) -> Result<(), Error> {
    let options = Options { preprocess: true, helper: HelperDeals::Weights, link: network, ..Options::default() };
    let weight = |(i, [_, y]): (usize, &Factors<ArrayD<u64>>)| {
        let &[inputs, outputs] = y.shape() else { return None };
        let matrix = FixedMatrix::integers(inputs, outputs, y.iter().map(|w| *w as i32).collect());
        let values = Some(FixedValues { matrix, bias: vec![0; outputs] });
        Some(FixedWeight { spec: WeightSpec::new(i.to_string(), inputs, outputs), frac: WEIGHT_FRAC, values })
    };
    let known: Vec<FixedWeight> = work.iter().enumerate().filter_map(weight).collect();
    let announced: Vec<_> = known.iter().map(|weight| FixedWeight::with_frac(&weight.spec, WEIGHT_FRAC)).collect();
    let matrix = |name: &str| {
        let weight = known.iter().find(|weight| weight.spec.name == name);
        weight.and_then(|weight| weight.values.as_ref()).map(|values| &values.matrix)
    };
    let mut planner = Planner::new(options);
    let shapes: Vec<_> = work.iter().map(|pair| pair.each_ref().map(|x| Shape(x.shape().to_vec()))).collect();
    run(&mut planner, &shapes, &announced)?;
    let (needs, exact) = (planner.needs(), run(&mut Clear::new(), work, &known)?);
    let shares: Vec<_> = work.iter().map(|pair| pair.each_ref().map(share)).collect();
    let ([mut made, mut bytes, mut flows], mut best) = ([0; 3], [f64::MAX; 2]);
    for _ in 0..RUNS {
        let mut pair = Pair::over(Some(network), |channel| Session::new(channel, options))?;
        let ([(client, y), (server, z)], helper) = pair.run_with_helper(&needs, matrix, |abb| {
            let (server, start) = (abb.session().is_server(), Instant::now());
            abb.prepare(&needs, |name| matrix(name).filter(|_| server), &mut |_| ())?;
            let dealing = start.elapsed().as_secs_f64();
            abb.session().channel().ledger_mut().set_phase(Phase::Decode);
            let x: Vec<_> = shares.iter().map(|pair| pair.each_ref().map(|x| own(abb, x).clone())).collect();
            let start = Instant::now();
            let y = run(abb, &x, if server { &known } else { &announced })?;
            Ok(([dealing, start.elapsed().as_secs_f64()], y))
        })?;
        for ((y, z), exact) in y.into_iter().zip(z).zip(&exact) {
            let got = open(&[y, z]);
            assert!(got.iter().zip(exact).all(|(got, exact)| distance(*got, *exact, 64) <= 3), "{name} differs");
        }
        let links = [pair.ledger(), &helper[0], &helper[1]];
        made = links.iter().map(|link| link.phase_total(Phase::Offline).bytes()).sum();
        let online = links[0].phase_total(Phase::Decode);
        (bytes, flows) = (online.bytes(), online.flows);
        best = from_fn(|i| best[i].min(client[i].max(server[i])));
    }
    let ([made, bytes], [dealing, seconds]) = ([made, bytes].map(|bytes| bytes as f64 / 1e3), best.map(|s| 1e3 * s));
    println!("| {name} | {made:.1} | {dealing:.2} | {bytes:.1} | {flows} | {seconds:.2} |");
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let network: LinkShape = std::env::args().nth(1).as_deref().unwrap_or("lan").parse()?;
    let words = |shape: &[usize], bits| {
        ArrayD::from_shape_simple_fn(shape, || rand::rng().random_range(-1i64 << bits..1i64 << bits) as u64)
    };
    let layer = [(768, 2304), (768, 768), (768, 3072), (3072, 768)];
    let layer = layer.map(|(inputs, outputs)| [words(&[1, inputs], FRAC + 2), words(&[inputs, outputs], 13)]);
    let gathers = |n: usize, w, m| {
        let cache = words(&[1, n, w], FRAC + 2);
        [0; 4].map(|_| [words(&[m], 40).mapv(|x| x % n as u64), cache.clone()])
    };
    println!("| {network} | dealt, kB | dealing, ms | online, kB | flows | online, ms |\n|---|---|---|---|---|---|");
    measure("65536 products of words", &[[words(&[1 << 16], 30), words(&[1 << 16], 30)]], network)?;
    measure("a row times the weights of a layer", &layer, network)?;
    measure("256 of 1024 rows of 64 words, 4 times", &gathers(1024, 64, 256), network)?;
    measure("16 of 64 rows of 1024 words, 4 times", &gathers(64, 1024, 16), network)?;
    Ok(())
}
