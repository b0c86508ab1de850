//! One operation of about 10^5 words between two parties and a helper.
//! `cargo run --release -p waggle-bench --example three_parties -- gelu lan`
//!
//! The three are threads of this process, and each pair has the named network of its own, or memory. The helper deals
//! right before the operation. A run is a line of JSON: seconds, bytes of all three pairs, and flows between the two
//! parties, each with what is dealt. The first run has what a process does once. Every result is opened and compared
//! with the exact one.

use std::time::Instant;

use clap::{Parser, ValueEnum};
use ndarray::{ArrayD, Axis};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use waggle_net::{Ledger, LinkShape, Phase};
use waggle_planner::Planner;
use waggle_protocols::functions::{gelu, softmax};
use waggle_protocols::local::Pair;
use waggle_protocols::ops::AtLeast;
use waggle_protocols::{Abb, Error, Gelu, HelperDeals, Options, Session, Shape};
use waggle_testing::{largest_difference, open, own, share, to_fixed, to_real};

#[derive(Parser)]
struct Args {
    operation: Operation,
    /// The network of each pair.
    network: Option<LinkShape>,
    #[arg(long, default_value_t = 781)]
    rows: usize,
    #[arg(long, default_value_t = 128)]
    columns: usize,
    #[arg(long, default_value_t = 5)]
    runs: usize,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Operation {
    Gelu,
    /// Over rows.
    Softmax,
    /// Whether words of 64 bits are below zero.
    Compare,
}

/// Words of a result, or bits.
type Output<B> = (Option<<B as Abb>::Words>, Option<<B as Abb>::Bits>);

impl Operation {
    fn call<B: Abb>(self, b: &mut B, x: &B::Words, columns: usize) -> Result<Output<B>, Error> {
        Ok(match self {
            Operation::Gelu => (Some(gelu(b, x, Gelu::Tanh)?), None),
            Operation::Softmax => (Some(softmax(b, x, &[columns])?), None),
            Operation::Compare => (None, Some(b.apply(AtLeast { thresholds: &[0], width: 64 }, x)?)),
        })
    }

    fn exact(self, x: &ArrayD<f64>) -> ArrayD<f64> {
        match self {
            Operation::Gelu => x.mapv(|x| {
                x / (1.0 + (-2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).exp())
            }),
            Operation::Softmax => {
                let powers = x.mapv(f64::exp);
                let sums = powers.sum_axis(Axis(2)).insert_axis(Axis(2));
                powers / sums
            }
            Operation::Compare => x.mapv(|x| f64::from(u8::from(x >= 0.0))),
        }
    }
}

/// Bytes and flows so far.
fn spent(ledger: &Ledger) -> [u64; 2] {
    let entries = ledger.entries();
    entries.iter().fold([0; 2], |[bytes, flows], entry| [bytes + entry.traffic.bytes(), flows + entry.traffic.flows])
}

fn main() -> Result<(), Error> {
    let Args { operation, network, rows, columns, runs } = Args::parse();
    let link = network.unwrap_or(LinkShape::MEMORY);
    let options = Options { preprocess: true, helper: HelperDeals::Words, link, ..Options::default() };
    let mut rng = StdRng::seed_from_u64(7);
    let x = ArrayD::from_shape_simple_fn(vec![rows, 1, columns], || rng.random_range(-8.0..8.0));
    let words = to_fixed(&x);
    let (exact, shares) = (operation.exact(&to_real(&words)), share(&words));
    let mut planner = Planner::new(options);
    operation.call(&mut planner, &Shape(words.shape().to_vec()), columns)?;
    let needs = planner.needs();

    let mut pair = Pair::over(network, |channel| Session::new(channel, options))?;
    for _ in 0..runs {
        let (before, start) = (spent(pair.ledger()), Instant::now());
        let (results, helper) = pair.run_with_helper(
            &needs,
            |_| None,
            |abb| {
                abb.prepare(&needs, |_| None, &mut |_| ())?;
                abb.session().channel().ledger_mut().set_phase(Phase::Decode);
                let x = own(abb, &shares);
                operation.call(abb, x, columns)
            },
        )?;
        let seconds = start.elapsed().as_secs_f64();
        let after = spent(pair.ledger());
        let [bytes, flows] = [0, 1].map(|i| after[i] - before[i]);
        let bytes = bytes + helper.iter().map(|link| spent(link)[0]).sum::<u64>();
        let got = match results {
            [(Some(client), _), (Some(server), _)] => to_real(&open(&[client, server])),
            [(_, Some(client)), (_, Some(server))] => {
                (client ^ server).mapv(f64::from).into_shape_with_order(words.shape()).expect("as many")
            }
            _ => unreachable!("both parties have results of one kind"),
        };
        let error = largest_difference(&got, &exact);
        assert!(error < 0.01, "off by {error}");
        println!("{{\"seconds\": {seconds}, \"bytes\": {bytes}, \"flows\": {flows}, \"error\": {error}}}");
    }
    Ok(())
}
