//! Packages of encrypted computation beside Waggle's own code, in one Markdown table. Every answer that is timed is
//! compared with the plain one.
//!
//! `cargo run --release --manifest-path bench/peers/Cargo.toml --features peer-tfhe,peer-concrete-ntt`
//!
//! A median is of an odd number of runs after one that warms up. Waggle's two parties run in two threads of this
//! process over memory and make all their correlations within the time; the bytes are those that they would send.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod transforms;
mod words;

use std::time::{Duration, Instant};

/// Timed runs of each side.
const RUNS: usize = 7;

/// A line of the table.
pub(crate) struct Row {
    /// The computation.
    pub(crate) what: String,
    /// By which code.
    pub(crate) side: &'static str,
    /// Time of one element in seconds: median, least and most.
    pub(crate) seconds: [f64; 3],
    /// Bytes that cross the network for one element.
    pub(crate) bytes: Option<f64>,
}

/// Median, least and most of the times that `run` reports, over `elements`.
pub(crate) fn median(elements: usize, mut run: impl FnMut() -> Duration) -> [f64; 3] {
    run();
    let mut times: Vec<f64> = (0..RUNS).map(|_| run().as_secs_f64() / elements as f64).collect();
    times.sort_by(f64::total_cmp);
    [times[RUNS / 2], times[0], times[RUNS - 1]]
}

/// Runs `work` and measures the time that it takes.
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let out = work();
    (out, start.elapsed())
}

/// A time with three digits and its unit.
fn time(seconds: f64) -> String {
    let (scaled, unit) = match seconds {
        s if s >= 1.0 => (s, "s"),
        s if s >= 1e-3 => (s * 1e3, "ms"),
        s => (s * 1e6, "us"),
    };
    let digits = (2.0 - scaled.log10().floor()).clamp(0.0, 3.0) as usize;
    format!("{scaled:.digits$} {unit}")
}

fn main() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!("{cores} cores, medians of {RUNS} runs\n");
    println!("| what | by | time of one | least to most | bytes of one |");
    println!("|---|---|---|---|---|");
    for Row { what, side, seconds: [median, least, most], bytes } in
        transforms::rows().into_iter().chain(words::rows())
    {
        let bytes = bytes.map_or(String::new(), |bytes| format!("{bytes:.1}"));
        println!("| {what} | {side} | {} | {} to {} | {bytes} |", time(median), time(least), time(most));
    }
    for (feature, asked) in
        [("peer-tfhe", cfg!(feature = "peer-tfhe")), ("peer-concrete-ntt", cfg!(feature = "peer-concrete-ntt"))]
    {
        if !asked {
            eprintln!("without the feature `{feature}` its rows are missing");
        }
    }
}
