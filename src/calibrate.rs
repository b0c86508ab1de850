//! `waggle calibrate`: how fast this machine is, for `waggle plan`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use waggle::program::{ASSUMED_CORES, make_home, mapped_bytes};
use waggle::{Machines, Network};
use waggle_files::{at, check_writable, load, write_json};
use waggle_model::{DType, Lengths, ModelFiles, synthesize};
use waggle_net::{Phase, process_cpu_time};
use waggle_planner::{Deployment, Footprint, Kernel, Observation, PROFILE_VERSION, Profile, Rates, Units, fit};
use waggle_protocols::preparation;
use waggle_report::{PeakMemory, Report};
use waggle_session::party::{ModelServer, Planned, PublicModel, Request, SessionPlan, Terms, nobody};

use super::machine::{PROGRAM, default_file, kernels, processor};
use super::progress::Progress;
use super::together::{self, Folder, clean_up_on_signals};
use super::{Error, out};
use crate::child;

/// Measures this machine, in less than a minute: runs small sessions with both parties on it, and fits the time of
/// each kernel to theirs. `waggle plan` then predicts seconds and memory of other sessions. Nothing else should run
/// meanwhile: a machine whose cores are taken by others is refused.
#[derive(Args, Debug)]
pub(super) struct CalibrateArgs {
    /// The file to write [default: `calibration.json` in $WAGGLE_HOME, $XDG_CONFIG_HOME/waggle or
    /// $HOME/.config/waggle].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Use so many cores [default: all].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    threads: Option<u32>,
    /// Measure a busy machine, too. It looks slower than it is.
    #[arg(long)]
    anyway: bool,
    /// Write every account that was measured here, with its units of each kernel and what the fit says of it.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

struct Shape {
    name: &'static str,
    config: &'static str,
}

/// Shapes of models. Together they give every kernel small and large operands.
const SHAPES: [Shape; 3] = [
    Shape {
        name: "gpt2-320",
        config: r#"{"model_type": "gpt2", "vocab_size": 3000, "n_positions": 128, "n_embd": 320, "n_layer": 1,
            "n_head": 5, "activation_function": "gelu_new"}"#,
    },
    Shape {
        name: "llama-512",
        config: r#"{"model_type": "llama", "vocab_size": 2000, "hidden_size": 512, "intermediate_size": 1408,
            "num_hidden_layers": 1, "num_attention_heads": 8, "num_key_value_heads": 4}"#,
    },
    Shape {
        name: "llama-1280",
        config: r#"{"model_type": "llama", "vocab_size": 1000, "hidden_size": 1280, "intermediate_size": 3456,
            "num_hidden_layers": 1, "num_attention_heads": 10, "num_key_value_heads": 10}"#,
    },
];

struct Trial {
    shape: usize,
    link: &'static str,
    preprocess: bool,
    prompt: usize,
    tokens: usize,
}

impl Trial {
    const fn new(shape: usize, link: &'static str, preprocess: bool, prompt: usize, tokens: usize) -> Self {
        Trial { shape, link, preprocess, prompt, tokens }
    }

    fn name(&self) -> String {
        let phases = if self.preprocess { "two phases" } else { "one phase" };
        format!("{}, {phases}, {}, {}+{} tokens", SHAPES[self.shape].name, self.link, self.prompt, self.tokens)
    }
}

/// The sessions that are measured, of one and of two phases, over links that lead to all kinds of plans. Below 1
/// Gbit/s, a session of one phase looks functions up, and a session of two phases uses keys for short comparisons.
const TRIALS: [Trial; 8] = [
    Trial::new(0, "loopback", false, 24, 4),
    Trial::new(0, "lan", true, 16, 12),
    Trial::new(1, "400mbit,1ms", false, 12, 3),
    Trial::new(1, "400mbit,1ms", true, 12, 6),
    Trial::new(1, "lan", false, 16, 3),
    Trial::new(1, "loopback", true, 40, 16),
    Trial::new(2, "lan", true, 8, 12),
    Trial::new(2, "loopback", false, 32, 2),
];

/// A trial: its session's request, and the report of its cost.
struct Measured<'a> {
    trial: &'a Trial,
    model: PublicModel,
    terms: Terms,
    link: Network,
    request: Request,
    report: Report,
    mapped: u64,
}

/// The cost of one operation of a trial to one party, for `--json`.
#[derive(Serialize)]
struct Account {
    trial: String,
    party: &'static str,
    phase: Phase,
    path: String,
    /// Processor time as measured. `fitted_seconds` is the time that the fitted rates predict.
    cpu_seconds: f64,
    fitted_seconds: f64,
    /// Units of work of each kernel in the operation.
    units: BTreeMap<&'static str, f64>,
}

pub(super) fn run(args: CalibrateArgs) -> Result<(), Error> {
    let path = args.out.clone().map_or_else(default_file, Ok)?;
    if args.out.is_none() {
        make_home(&path)?;
    }
    check_writable(Some(&path))?;
    check_writable(args.json.as_deref())?;
    let cores = args.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get() as u32));
    clean_up_on_signals()?;
    let dir = Folder::new().map_err(at(&std::env::temp_dir()))?;
    let progress = Progress::bars(TRIALS.len());
    let idle = || if args.anyway { Ok(()) } else { check_idle(share_of(cores)) };
    progress.spin("looking for other programs");
    idle()?;
    progress.spin("making models");
    for shape in &SHAPES {
        synthesize(shape.config.as_bytes(), &dir.path().join(shape.name), None, DType::Bf16, None, 0)?;
    }
    let mut measured = Vec::new();
    for trial in &TRIALS {
        progress.spin("running small sessions");
        measured.push(Measured::take(trial, dir.path(), cores)?);
        idle()?;
    }
    progress.spin("fitting");
    let mut accounts = Vec::new();
    for trial in &measured {
        accounts.extend(trial.accounts()?);
    }
    let observations: Vec<Observation> = accounts.iter().map(|(_, observation)| observation.clone()).collect();
    let rates = fit(&observations);
    let profile = finish(&measured, &rates, cores)?;
    drop(progress);
    write_json(&path, &profile)?;
    if let Some(json) = &args.json {
        let accounts = accounts
            .into_iter()
            .map(|(account, observation)| Account { fitted_seconds: observation.predicted(&rates), ..account });
        write_json(json, &accounts.collect::<Vec<_>>())?;
    }
    let Profile { processor, cores, .. } = &profile;
    out::line(format_args!("{}: {cores} cores of {processor}, {}", path.display(), quality(&observations, &rates)))
}

/// The share of `cores` that computing threads of this process get: their processor time divided by their wall time.
/// `None` if the system does not tell processor times.
fn share_of(cores: u32) -> Option<f64> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(cores as usize);
    let (begun, used) = (Instant::now(), process_cpu_time()?);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while begun.elapsed() < PROBE {
                    std::hint::spin_loop();
                }
            });
        }
    });
    let used = process_cpu_time()?.saturating_sub(used);
    Some(used.as_secs_f64() / (begun.elapsed().as_secs_f64() * threads as f64))
}

/// Refuses a machine on which computing threads get too small a share of the cores.
fn check_idle(share: Option<f64>) -> Result<(), Error> {
    match share {
        Some(share) if share < IDLE => Err(Error::Busy { percent: 100.0 * share }),
        _ => Ok(()),
    }
}

/// Time for which the cores are tested before and after each trial, and the least share of the cores that threads get
/// on an idle machine.
const PROBE: Duration = Duration::from_millis(250);
const IDLE: f64 = 0.9;

/// The quality of the fitted rates, in words.
fn quality(observations: &[Observation], rates: &Rates) -> String {
    let all: f64 = observations.iter().map(|o| o.seconds).sum();
    let off: f64 = observations.iter().map(|o| (o.predicted(rates) - o.seconds).abs()).sum();
    format!("{all:.1} s of processor time in {} accounts, fitted to {:.0} %", observations.len(), 100.0 * off / all)
}

/// Completes the profile, given the rates: fits how much each further core adds and the time to wake a thread, and
/// adds the memory of parties without a model.
fn finish(measured: &[Measured], rates: &Rates, cores: u32) -> Result<Profile, Error> {
    let profile = Profile {
        version: PROFILE_VERSION,
        program: PROGRAM.into(),
        processor: processor(),
        kernels: kernels(),
        cores,
        speedup: 1.0,
        wake_nanoseconds: 0.0,
        base_bytes: [0; 2],
        nanoseconds: Profile::named(rates),
    };
    let mut best = (f64::INFINITY, profile.clone());
    for speedup in SPEEDUPS {
        let profile = Profile { speedup, ..profile.clone() };
        let mut bases = [Vec::new(), Vec::new()];
        let mut phases = Vec::new();
        for trial in measured {
            let (predicted, footprint) = trial.predict(&profile)?;
            let PeakMemory { client, server, .. } = trial.report.peak_memory_bytes;
            let rest = |peak: Option<u64>, held: u64| peak.unwrap_or(0).saturating_sub(held);
            bases[0].push(rest(client, footprint.client));
            bases[1].push(rest(server, footprint.server + trial.mapped));
            for (phase, seconds) in predicted {
                let cost = trial.report.phases.of(phase);
                phases.push((cost.seconds, seconds, cost.flows as f64));
            }
        }
        phases.retain(|(measured, _, _)| *measured > 0.0);
        for wake in WAKES {
            let off =
                |(measured, seconds, flows): &(f64, f64, f64)| (seconds + wake * flows - measured).abs() / measured;
            let error: f64 = phases.iter().map(off).sum();
            if error < best.0 {
                let base_bytes = bases.clone().map(median);
                best = (error, Profile { wake_nanoseconds: 1e9 * wake, base_bytes, ..profile.clone() });
            }
        }
    }
    Ok(best.1)
}

/// Candidates for the share that each core after the first adds, and for the seconds to wake a thread. The pair that
/// best explains the wall clocks of the trials is taken.
const SPEEDUPS: [f64; 5] = [1.0, 0.85, 0.7, 0.5, 0.3];
const WAKES: [f64; 9] = [0.0, 1e-5, 2e-5, 3e-5, 5e-5, 7e-5, 1e-4, 1.5e-4, 2e-4];

fn median(mut bytes: Vec<u64>) -> u64 {
    bytes.sort_unstable();
    bytes.get(bytes.len() / 2).copied().unwrap_or(0)
}

impl<'a> Measured<'a> {
    /// Runs a trial in two processes of this program, each with `cores` threads.
    fn take(trial: &'a Trial, dir: &Path, cores: u32) -> Result<Self, Error> {
        let model = dir.join(SHAPES[trial.shape].name);
        let json = dir.join("report.json");
        let mut command = child::command()?;
        let ids = vec!["1"; trial.prompt].join(",");
        command.arg("demo").arg("--model").arg(&model).args(["--prompt-ids", &ids]);
        command.args(["--tokens", &trial.tokens.to_string(), "--link", trial.link]);
        command.arg(format!("--preprocess={}", trial.preprocess)).arg("--json").arg(&json);
        // The number is fixed, so that a calibration uses the same kernels on every machine.
        command.arg(format!("--cores={ASSUMED_CORES}"));
        // The range check is skipped, so that only the session's memory is measured.
        command.arg("--skip-range-check");
        command.env("RAYON_NUM_THREADS", cores.to_string());
        let output = together::output(&mut command).map_err(Error::Spawn)?;
        if !output.status.success() {
            let what = String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned();
            return Err(Error::Child(what));
        }
        let report: Report = serde_json::from_slice(&load(&json)?).map_err(Error::child)?;
        let link = trial.link.parse::<Network>().map_err(Error::child)?;
        let terms = waggle::Terms::of_report(&report)?.over(link)?;
        let mapped = mapped_bytes(&model.to_string_lossy()).unwrap_or(0);
        let public = ModelServer::builder().load(ModelFiles::open(&model)?)?.public().clone();
        let lengths = Lengths { prompt: trial.prompt, tokens: trial.tokens };
        Ok(Measured { trial, model: public, terms, link, request: Request::from(lengths), report, mapped })
    }

    fn plan(&self, setting: Option<Deployment>) -> SessionPlan<'_> {
        SessionPlan::new(&self.model, &self.terms).request(self.request).timed(setting)
    }

    /// The seconds of the phases that `profile` predicts, and the memory that the plan states.
    fn predict(&self, profile: &Profile) -> Result<([(Phase, f64); TIMED.len()], Footprint), Error> {
        let machines = Machines { client: profile.clone(), server: profile.clone(), together: true };
        let setting = machines.setting(machines.cores(), self.link.shape());
        let Planned { outcome, footprint, .. } = self.plan(setting).run(&mut nobody)?;
        let seconds = |phase: Phase| {
            let entries = outcome.entries.iter().filter(|entry| entry.phase == phase);
            (phase, entries.map(|entry| entry.traffic.time.as_secs_f64()).sum())
        };
        Ok((TIMED.map(seconds), footprint))
    }

    /// Processor time and units of work of all operations, for each party. Set-up counts as one operation, because
    /// its first messages are not planned but rehearsed.
    fn accounts(&self) -> Result<Vec<(Account, Observation)>, Error> {
        let setting = Deployment { imitated: self.link.shape().is_some(), ..Deployment::idle() };
        let work = self.plan(Some(setting)).tallied().run(&mut nobody)?.work;
        let mut sums: BTreeMap<(Phase, String), ([f64; 2], [Units; 2])> = BTreeMap::new();
        let none = || ([0.0; 2], [(); 2].map(|()| vec![0.0; Kernel::ALL.len()]));
        let place =
            |phase: Phase, path: &str| (phase, if phase == Phase::Setup { String::new() } else { path.into() });
        // Preparation is taken by kind of correlation, as an operation's preparation mixes several kinds of kernels.
        let kinds = &self.report.preparation_kinds;
        let divided = |phase: Phase, path: &str| {
            phase == Phase::Offline && !kinds.is_empty() && !path.starts_with(preparation::SCOPE)
        };
        for ((phase, path), units) in work.iter().filter(|((phase, path), _)| !divided(*phase, path)) {
            let (_, sum) = sums.entry(place(*phase, path)).or_insert_with(none);
            sum.iter_mut().zip(units).for_each(|(sum, units)| sum.iter_mut().zip(units).for_each(|(s, u)| *s += u));
        }
        let operations = self.report.operations.iter().filter(|op| !divided(op.phase, &op.path));
        let operations = operations.map(|op| (op, op.path.clone()));
        let kinds = kinds.iter().map(|op| (op, format!("{}/{}", preparation::SCOPE, op.path)));
        for (operation, path) in operations.chain(kinds) {
            let (seconds, _) = sums.entry(place(operation.phase, &path)).or_insert_with(none);
            seconds[0] += operation.cost.cpu_seconds;
            seconds[1] += operation.cost.peer_cpu_seconds.unwrap_or(0.0);
        }
        let mut accounts = Vec::new();
        for ((phase, path), (seconds, units)) in sums {
            for ((party, seconds), units) in ["client", "server"].into_iter().zip(seconds).zip(units) {
                let named = Kernel::ALL.iter().zip(&units).filter(|(_, units)| **units > 0.0);
                let named = named.map(|(kernel, &units)| (kernel.name(), units)).collect();
                let (trial, path) = (self.trial.name(), path.clone());
                let account =
                    Account { trial, party, phase, path, cpu_seconds: seconds, fitted_seconds: 0.0, units: named };
                accounts.push((account, Observation { seconds, units }));
            }
        }
        Ok(accounts)
    }
}

/// The phases whose wall clock is compared.
const TIMED: [Phase; 3] = [Phase::Offline, Phase::Prefill, Phase::Decode];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_machine_is_refused() {
        for (share, is_idle) in [(None, true), (Some(1.0), true), (Some(0.93), true), (Some(0.6), false)] {
            match check_idle(share) {
                Ok(()) => assert!(is_idle, "{share:?}"),
                Err(Error::Busy { percent }) => assert!(!is_idle && (percent - 60.0).abs() < 1e-9, "{share:?}"),
                Err(error) => panic!("{error}"),
            }
        }
        // The share may be small, as other tests compute in this process too.
        assert!(share_of(1).expect("Linux has the clock") > 0.0);
    }
}
