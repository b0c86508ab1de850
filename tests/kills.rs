//! Parties that are killed or stopped at any moment: no correlation is used twice, no pool is left without its
//! partner, and the next client is served.
//!
//! `cargo test --release --test all kills::` disturbs 10 sessions; with `WAGGLE_KILLS=200` and `-- --nocapture` it
//! disturbs 200 and says how they ended. `WAGGLE_SEED` repeats the choices of a run, not its moments.
#![cfg(unix)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::support::{
    Ended, LIMIT, Process, Server, json, number, program, succeed, synthesise, text, until, waggle,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::Value;

/// Read time-out of both parties, in seconds.
const TIMEOUT: f64 = 1.0;
/// The terms of both parties, which make sessions short.
const TERMS: &str = "--ot softspoken8";
const CONFIG: &str =
    r#"{"model_type": "gpt2", "vocab_size": 48, "n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2}"#;
const WHAT: &str = "--prompt-ids 1,2 --tokens 3";
const BOUND: &str = "--prompt-len 2 --tokens 3";

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    /// A generation in one phase.
    Plain,
    /// A generation in two.
    Prepared,
    /// The first phase alone.
    Filling,
    /// The second phase alone.
    Spending,
    /// The second phase with a pool in parts.
    Gathering,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Harm {
    /// SIGKILL.
    Kill,
    /// SIGSTOP for longer than the peer waits, then SIGCONT.
    Stop,
    /// SIGSTOP for a moment, then SIGCONT.
    Pause,
}

const MODES: [Mode; 5] = [Mode::Plain, Mode::Prepared, Mode::Filling, Mode::Spending, Mode::Gathering];

/// Parts of a pool in parts.
const PARTS: usize = 3;

impl Mode {
    /// The files of the pool at `pool`, and what `preprocess` is told for each.
    fn files(self, pool: &Path) -> Vec<(PathBuf, String)> {
        let part = |number| {
            let file = format!("{}.{number}-of-{PARTS}", pool.display());
            (file.into(), format!("--part {number}/{PARTS}"))
        };
        if self == Mode::Gathering { (1..=PARTS).map(part).collect() } else { vec![(pool.into(), String::new())] }
    }
}

/// Servers and directories.
struct Stage {
    model: String,
    mine: PathBuf,
    kept: PathBuf,
    /// Of sessions in one phase, and of those in two.
    servers: [Server; 2],
    pools: usize,
}

impl Stage {
    fn new(dir: &Path) -> Self {
        let model = synthesise(dir, "model", CONFIG);
        let (mine, kept) = (dir.join("mine"), dir.join("kept"));
        fs::create_dir(&mine).unwrap();
        let servers = [false, true].map(|pools| serve(&model, &kept, pools));
        Stage { model, mine, kept, servers, pools: 0 }
    }

    fn server(&mut self, mode: Mode) -> &mut Server {
        &mut self.servers[usize::from(mode != Mode::Plain)]
    }

    fn restart(&mut self, mode: Mode) {
        let new = serve(&self.model, &self.kept, mode != Mode::Plain);
        *self.server(mode) = new;
    }

    fn generate(&mut self, mode: Mode, rest: &str) -> Command {
        let preprocess = mode != Mode::Plain;
        self.server(mode).client(&format!("{TERMS} --timeout {TIMEOUT} --preprocess {preprocess} {WHAT} {rest}"))
    }

    fn spend(&mut self, pool: &Path) -> Output {
        self.generate(Mode::Spending, &format!("--pool {}", pool.display())).output().unwrap()
    }

    /// A new place for a pool.
    fn place(&mut self) -> PathBuf {
        self.pools += 1;
        self.mine.join(format!("{}.pool", self.pools))
    }

    fn fill(&mut self, pool: &Path, part: &str) -> Command {
        let address = self.server(Mode::Filling).address.clone();
        let connect = format!("preprocess --connect {address} {TERMS} --timeout {TIMEOUT}");
        waggle(&format!("{connect} {BOUND} --pool {} {part}", pool.display()))
    }

    /// Makes a pool that `mode` spends.
    fn make(&mut self, mode: Mode, pool: &Path) {
        for (_, part) in mode.files(pool) {
            succeed(&mut self.fill(pool, &part));
        }
    }

    /// Ids of the files in `dir` whose state is one of `states`.
    fn ids(dir: &Path, states: &[&str]) -> BTreeSet<String> {
        let list = json(&mut waggle(&format!("pools list {}", dir.display())));
        let wanted = |file: &&Value| states.contains(&file["state"].as_str().unwrap());
        list.as_array().unwrap().iter().filter(wanted).map(|file| file["id"].as_str().unwrap_or("-").into()).collect()
    }

    /// Waits until every pool has its partner: a session that was cut may be about to end.
    fn assert_no_orphans(&self) {
        let orphans = || {
            let (here, there) = (Self::ids(&self.mine, &["pool"]), Self::ids(&self.kept, &["pool"]));
            let partners = Self::ids(&self.kept, &["pool", "pending"]);
            here.difference(&partners).chain(there.difference(&here)).cloned().collect::<Vec<_>>()
        };
        let start = Instant::now();
        while !orphans().is_empty() {
            assert!(start.elapsed() < LIMIT, "without a partner: {:?}", orphans());
            sleep(Duration::from_millis(50));
        }
    }
}

fn serve(model: &str, kept: &Path, pools: bool) -> Server {
    let pools = if pools {
        format!("--pools {} --max-pools 1000 --max-pools-total 1000", kept.display())
    } else {
        String::new()
    };
    Server::start(&format!("--model {model} {TERMS} --timeout {TIMEOUT} --sessions 4 {pools}"))
}

fn assert_ended_well(Ended { code, errors, .. }: &Ended, harm: Harm, victim: &str) {
    assert!(!errors.contains("panicked"), "{errors}");
    let killed = harm == Harm::Kill && victim == "client";
    assert!(killed || matches!(code, Some(0 | 1)), "{code:?}: {errors}");
    // Who was not harmed for long notices nothing.
    assert!(harm != Harm::Pause || *code == Some(0), "{errors}");
}

/// One disturbed session and what must hold after it; returns how long the next client took.
fn disturb(stage: &mut Stage, mode: Mode, victim: &str, harm: Harm, moment: Duration) -> Duration {
    let pool = stage.place();
    let files: Vec<PathBuf> = mode.files(&pool).into_iter().map(|(file, _)| file).collect();
    let backups: Vec<PathBuf> = (0..files.len()).map(|i| stage.mine.with_extension(format!("backup{i}"))).collect();
    // Puts back every file that is gone.
    let restore = || {
        for (file, backup) in files.iter().zip(&backups).filter(|(file, _)| !file.is_file()) {
            fs::copy(backup, file).unwrap();
        }
    };
    let mut command = match mode {
        Mode::Plain | Mode::Prepared => stage.generate(mode, ""),
        Mode::Filling => stage.fill(&pool, ""),
        Mode::Spending | Mode::Gathering => {
            stage.make(mode, &pool);
            for (file, backup) in files.iter().zip(&backups) {
                fs::copy(file, backup).unwrap();
            }
            stage.generate(mode, &format!("--pool {}", pool.display()))
        }
    };
    let client = Process::start(&mut command);
    sleep(moment);
    let target = |stage: &mut Stage, name: &str| match victim {
        "client" => client.signal(name),
        _ => stage.server(mode).signal(name),
    };
    let name = if harm == Harm::Kill { "KILL" } else { "STOP" };
    target(stage, name);
    match (harm, victim) {
        (Harm::Kill, "server") => stage.restart(mode),
        (Harm::Kill, _) => {}
        (Harm::Pause, _) => sleep(Duration::from_millis(100)),
        // The next client comes while the stopped one still holds its connection; a stopped server serves nobody.
        (Harm::Stop, "client") => {}
        (Harm::Stop, _) => sleep(Duration::from_secs_f64(1.5 * TIMEOUT)),
    }
    let goes_on_late = harm == Harm::Stop && victim == "client";
    if harm != Harm::Kill && !goes_on_late {
        target(stage, "CONT");
    }
    let start = Instant::now();
    succeed(&mut stage.generate(if mode == Mode::Plain { mode } else { Mode::Prepared }, ""));
    let took = start.elapsed();
    if goes_on_late {
        sleep(Duration::from_secs_f64(TIMEOUT));
        target(stage, "CONT");
    }
    let output = client.end(LIMIT);
    assert_ended_well(&output, harm, victim);
    stage.assert_no_orphans();
    match mode {
        Mode::Plain | Mode::Prepared => {}
        Mode::Filling => {
            if output.code == Some(0) {
                assert!(pool.is_file(), "a filling that succeeds leaves a pool");
            }
            if pool.is_file() {
                let spent = stage.spend(&pool);
                assert!(spent.status.success(), "a pool is good for a generation: {}", text(&spent.stderr));
            }
        }
        Mode::Spending | Mode::Gathering => {
            // Written output depends on correlations.
            let used = !output.text.is_empty();
            assert!(!used || files.iter().all(|file| !file.is_file()), "used, and still there");
            restore();
            let again = stage.spend(&pool);
            assert!(!used || !again.status.success(), "used twice");
            if again.status.success() {
                restore();
                let third = stage.spend(&pool);
                assert!(!third.status.success() && text(&third.stderr).contains("the server refuses"), "used twice");
            }
            for file in &files {
                let _ = fs::remove_file(file);
            }
        }
    }
    took
}

fn serve_llama(pools: &str) -> Server {
    Server::start(&format!("--model shakespeare-llama {pools}"))
}

/// Two servers of `shakespeare-llama` over one directory fill a pool in parts. The first, which `start` starts over
/// these pools, is in the midst of a part when `kill` kills it. That part alone is lost, its successor makes it
/// again, and the text of the pool is the model's.
pub(crate) fn costs_one_part(start: impl Fn(&str) -> Server, kill: impl FnOnce(&Server)) {
    const OF: usize = 4;
    let dir = tempfile::tempdir().unwrap();
    let (kept, pool) = (dir.path().join("kept"), dir.path().join("a.pool"));
    let pools = format!("--pools {}", kept.display());
    let (first, second) = (start(&pools), serve_llama(&pools));
    // As the recipes of schedulers make a part.
    let part = |server: &Server, number: usize| {
        let mut command = program(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/recipes/part"));
        command.env("WAGGLE", env!("CARGO_BIN_EXE_waggle")).env("WAGGLE_SERVERS", &server.address);
        command.arg(&pool).arg(format!("{number}/{OF}")).args(["--prompt-len", "7", "--tokens", "16"]);
        command
    };
    let wait_for_files = |files| until(|| (fs::read_dir(&kept).unwrap().count() >= files).then_some(()));
    let parts = || Stage::ids(dir.path(), &["pool"]);
    succeed(&mut part(&first, 1));
    succeed(&mut part(&second, 2));
    let going_on = Process::start(&mut part(&second, 4));
    wait_for_files(3);
    let lost = Process::start(&mut part(&first, 3));
    wait_for_files(4);
    kill(&first);
    let Ended { code, errors, .. } = lost.end(LIMIT);
    assert_eq!(code, Some(1), "{errors}");
    first.end(LIMIT);
    // It sweeps the directory while the other one may still write there.
    let first = start(&pools);
    let Ended { code, errors, .. } = going_on.end(5 * LIMIT);
    assert_eq!(code, Some(0), "{errors}");

    let before = parts();
    assert_eq!(before.len(), OF - 1, "one part is lost");
    for number in 1..=OF {
        succeed(&mut part(&first, number));
    }
    let after = parts();
    assert!(after.len() == OF && after.is_superset(&before), "{before:?} were kept, now {after:?}");
    let prompt = "--prompt-ids 30,27,25,17,27,10,0 --tokens 16";
    let spent = json(&mut second.client(&format!("{prompt} --pool {}", pool.display())));
    let truth = json(&mut waggle(&format!("float --model shakespeare-llama {prompt}")));
    assert_eq!(spent["tokens"], truth["tokens"]);
    assert_eq!(fs::read_dir(&kept).unwrap().count(), 0, "nothing is left");
}

#[test]
fn a_server_that_dies_costs_the_part_that_it_fills() {
    costs_one_part(serve_llama, |server| server.signal("KILL"));
}

#[test]
fn parties_may_die_at_any_moment() {
    let rounds = number("WAGGLE_KILLS").unwrap_or(10);
    let seed = number("WAGGLE_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    println!("WAGGLE_KILLS={rounds} WAGGLE_SEED={seed}");
    let mut coins = StdRng::seed_from_u64(seed);
    let dir = tempfile::tempdir().unwrap();
    let mut stage = Stage::new(dir.path());
    // Durations of a session in each mode if nobody disturbs it.
    let lengths = MODES.map(|mode| {
        let pool = stage.place();
        if matches!(mode, Mode::Spending | Mode::Gathering) {
            stage.make(mode, &pool);
        }
        let start = Instant::now();
        match mode {
            Mode::Plain | Mode::Prepared => drop(succeed(&mut stage.generate(mode, ""))),
            Mode::Filling => drop(succeed(&mut stage.fill(&pool, ""))),
            Mode::Spending | Mode::Gathering => assert!(stage.spend(&pool).status.success()),
        }
        let took = start.elapsed();
        if mode == Mode::Filling {
            assert!(stage.spend(&pool).status.success());
        }
        took
    });
    let mut extra = Vec::new();
    for round in 0..rounds {
        let at = round as usize % MODES.len();
        let mode = MODES[at];
        let victim = ["client", "server"][round as usize / MODES.len() % 2];
        // The first rounds kill; later ones choose.
        let harm = if round < 10 {
            Harm::Kill
        } else {
            [Harm::Kill, Harm::Kill, Harm::Stop, Harm::Pause][coins.random_range(0..4)]
        };
        let moment = lengths[at].mul_f64(coins.random_range(0.0..1.1));
        let took = disturb(&mut stage, mode, victim, harm, moment);
        let usual = lengths[usize::from(mode != Mode::Plain)];
        extra.push(took.saturating_sub(usual));
        println!(
            "{round}: {mode:?}, {harm:?} the {victim} after {moment:.3?}; the next client took {took:.3?} ({usual:.3?})"
        );
    }
    extra.sort();
    println!(
        "the next client took longer than usual by {:.3?} (median), {:.3?} (most)",
        extra[extra.len() / 2],
        extra.last()
    );
    // Files that are left can be told from pools, and removed.
    until(|| {
        let rm = format!("pools rm --stale {} {}", stage.mine.display(), stage.kept.display());
        succeed(&mut waggle(&rm));
        [&stage.mine, &stage.kept].iter().all(|dir| Stage::ids(dir, &["draft", "claimed"]).is_empty()).then_some(())
    });
    stage.assert_no_orphans();
}
