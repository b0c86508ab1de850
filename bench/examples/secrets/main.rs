//! Do secrets show in time or in addresses? Runs every computation on secrets of the crates `ot` and `he`
//!
//! 1. thousands of times on one fixed and on changing secrets, and compares the times (`welch.rs`, after dudect:
//!    Reparaz, Balasch and Verbauwhede, <https://eprint.iacr.org/2016/1123>), with all kernels of this processor;
//! 2. once under Valgrind's memcheck with the secret marked as undefined (`memcheck.rs`, after Langley's ctgrind):
//!    each branch and each address that depends on it is an error. Valgrind knows no AVX-512, so this is the portable
//!    code.
//!
//! Both methods begin with code that does leak, which they must find. They end with an error if anything else shows.

mod memcheck;
mod probes;
mod welch;

use std::process::ExitCode;

use clap::Parser;
use comfy_table::{Cell, Table, presets};

use crate::memcheck::Verdict;
use crate::welch::Comparison;

#[derive(Parser)]
#[command(about = "Looks for traces of secrets in time and addresses")]
struct Args {
    /// Only computations whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Times that a computation is measured; those of more than a millisecond fewer, see --seconds.
    #[arg(long, default_value_t = 20_000)]
    measurements: usize,
    /// Most seconds for measuring one computation.
    #[arg(long, default_value_t = 20.0)]
    seconds: f64,
    /// Minutes, on a busy machine too: 2000 measurements and half a second for each, and means must differ by 25 %.
    #[arg(long)]
    quick: bool,
    /// Leave out the times.
    #[arg(long)]
    no_times: bool,
    /// Leave out memcheck.
    #[arg(long)]
    no_memcheck: bool,
    /// This process runs under memcheck, started by another one.
    #[arg(long, hide = true)]
    under_memcheck: bool,
}

/// |t| from which two distributions of times count as different; dudect's threshold for "definitely".
const THRESHOLD: f64 = 10.0;

/// The part of a mean by which classes must differ besides, to count in a quick run. A branch or an early end takes
/// far more; what `bench/results/preparation.md` cannot explain stays below a third of this.
const QUICK_DIFFERENCE: f64 = 0.25;

fn main() -> ExitCode {
    let mut args = Args::parse();
    if args.quick {
        (args.measurements, args.seconds) = (args.measurements.min(2000), args.seconds.min(0.5));
    }
    // Parallel loops stay on one thread, whose time is measured.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a thread");
    if args.under_memcheck {
        pool.install(|| memcheck::run_probes(&args.only));
        return ExitCode::SUCCESS;
    }
    println!("{}, {}", processor(), env!("CARGO_PKG_VERSION"));
    let times = args.no_times || pool.install(|| times(&args));
    let addresses = args.no_memcheck || addresses(&args);
    if times && addresses { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The system's name of the processor.
fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = info.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    match (field("model name"), field("cpu family"), field("model")) {
        (Some(name), Some(family), Some(model)) => format!("{name}, family {family}, model {model}"),
        _ => "unknown processor".into(),
    }
}

/// The remark on a computation whose secret shows, or not, as is expected or not.
fn word(shows: bool, expected: bool) -> &'static str {
    match (shows, expected) {
        (false, false) => "",
        (true, true) => "shows, as it must",
        (true, false) => "SHOWS",
        (false, true) => "NOT FOUND",
    }
}

/// Compares times; whether nothing but what must show shows.
fn times(args: &Args) -> bool {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["computation", "measured", "median us", "difference of means, %", "largest |t|", ""]);
    let mut sound = true;
    for (expected, probe) in probes::with_controls() {
        if !probe.name.contains(&args.only) && !expected {
            continue;
        }
        let comparison = welch::compare(&probe, args.measurements, args.seconds);
        let much = !args.quick || comparison.difference.abs() >= QUICK_DIFFERENCE;
        let shows = comparison.t.abs() >= THRESHOLD && much;
        sound &= shows == expected;
        let Comparison { count, median, difference, t } = comparison;
        eprintln!("{}: t = {t:.1} of {count}", probe.name);
        table.add_row([
            Cell::new(&probe.name),
            Cell::new(count),
            Cell::new(format!("{median:.2}")),
            Cell::new(format!("{:+.3}", 100.0 * difference)),
            Cell::new(format!("{:.1}", t.abs())),
            Cell::new(word(shows, expected)),
        ]);
    }
    println!("\nTimes on fixed and changing secrets; from |t| = {THRESHOLD} on they differ.\n\n{table}");
    sound
}

/// Runs memcheck; whether nothing but what must show shows, or there is no Valgrind.
fn addresses(args: &Args) -> bool {
    let report = match memcheck::run(&args.only) {
        Ok(Some(report)) => report,
        Ok(None) => {
            println!(
                "\nSKIPPED: memcheck. There is no `valgrind` on this machine, or no requests for it on this processor."
            );
            return true;
        }
        Err(error) => {
            println!("\nmemcheck failed: {error}");
            return false;
        }
    };
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["computation", "branches and addresses by the secret", ""]);
    let mut sound = true;
    for Verdict { name, errors, expected } in &report.verdicts {
        let shows = *errors > 0;
        sound &= shows == *expected;
        table.add_row([Cell::new(name), Cell::new(errors), Cell::new(word(shows, *expected))]);
    }
    println!("\nUnder {}, secrets undefined, {}.\n\n{table}", report.version, report.kernels);
    if !sound {
        println!("\n{}", report.log);
    }
    sound
}
