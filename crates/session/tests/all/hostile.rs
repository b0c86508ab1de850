//! Tools for tests: tiny sessions between both parties, with or without a message that is spoiled on its way.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use waggle_fuzz::link::{Spoil, Watch, pair};
use waggle_model::{Lengths, ModelFiles, Next, Sampler};
use waggle_mpcache::PolicySpec;
use waggle_net::{Channel, Role};
use waggle_protocols::Part;
use waggle_session::Error;
use waggle_session::party::{
    ClientOptions, ClientSession, Limits, ModelServer, Outcome, Peer, PublicModel, Terms, nobody,
};
use waggle_session::pool::{PoolSet, Pools, part_path};

/// A session of the tiny model takes less than this, even on a busy machine. One that takes longer hangs.
const HANG: Duration = Duration::from_secs(120);

/// The text that the client continues.
pub(crate) const PROMPT: [u32; 7] = [3, 1, 4, 1, 5, 9, 2];
/// The number of tokens that the client asks for.
pub(crate) const TOKENS: usize = 2;
pub(crate) const BOUND: Lengths = Lengths { prompt: PROMPT.len(), tokens: TOKENS };

/// The tiny model, ready to serve.
pub(crate) fn tiny() -> ModelServer {
    tiny_for(&PolicySpec::default())
}

/// The tiny model, ready to serve sessions under `policy`.
fn tiny_for(policy: &PolicySpec) -> ModelServer {
    let dir = tempfile::tempdir().unwrap();
    crate::support::tiny::write_tiny(dir.path());
    if policy.scoring_head().is_some() {
        crate::support::tiny::write_columns(dir.path());
    }
    ModelServer::builder().policy(policy).load(ModelFiles::open(dir.path()).unwrap()).unwrap()
}

/// The purpose of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// A generation in one phase.
    Plain,
    /// A generation in two phases of one session.
    Prepared,
    /// The filling of a pool.
    Fill,
    /// A generation from a pool.
    Spend,
    /// The filling of one of the [`PARTS`] of a pool.
    FillPart(u32),
    /// A generation from a pool of [`PARTS`] parts.
    SpendParts,
}

/// Parts of a pool that is made in parts.
pub(crate) const PARTS: u32 = 2;

impl Mode {
    /// The sessions that must run before a session of this mode: they fill the pool that it takes.
    pub(crate) fn before(self) -> Vec<Mode> {
        match self {
            Mode::Spend => vec![Mode::Fill],
            Mode::SpendParts => (1..=PARTS).map(Mode::FillPart).collect(),
            Mode::Plain | Mode::Prepared | Mode::Fill | Mode::FillPart(_) => Vec::new(),
        }
    }
}

/// All policies, with options that make them choose among the few tokens of the tiny sessions.
pub(crate) fn policies() -> Vec<PolicySpec> {
    let known = PolicySpec::examples().map(|policy| {
        let options = [("clusters", "4/2"), ("clusters", "4"), ("window", "3"), ("sinks", "1")];
        // Adds the options that the policy takes and that have an effect.
        options.into_iter().fold(policy, |policy, (key, value)| match policy.option(key) {
            None => policy.with(key, value).unwrap_or(policy),
            Some(_) => policy,
        })
    });
    // Under this policy opened values, and with them the number of messages, differ from run to run.
    let reveals = "mpcache-scores:sinks=1,topk=shuffle-reveal".parse().expect("a policy");
    known.filter(|policy| !policy.clear_only()).chain([reveals]).collect()
}

/// The outcomes of both parties of a session.
pub(crate) struct Session {
    pub(crate) client: Result<Outcome, Error>,
    pub(crate) server: Result<Outcome, Error>,
    pub(crate) watch: Watch,
}

fn terms(mode: Mode, policy: &PolicySpec) -> Terms {
    let mut terms = Terms { policy: policy.clone(), ..Terms::default() };
    terms.protocol.preprocess = mode != Mode::Plain;
    terms
}

/// Runs a session of both parties, each in a thread of its own. `dir` holds the server's pools and the client's.
///
/// # Panics
/// If a party panics, or goes on for longer than any session takes.
pub(crate) fn run(mode: Mode, policy: &PolicySpec, spoil: Option<Spoil>, dir: &Path) -> Session {
    let terms = Arc::new(terms(mode, policy));
    let (client, server, watch) = pair(spoil);
    let context = format!("{mode:?}, {policy}, {spoil:?}");
    let pools = (!matches!(mode, Mode::Plain | Mode::Prepared)).then(|| dir.join("server"));
    let server = {
        let terms = terms.clone();
        party(move || {
            let channel = Channel::new(Role::Server, server);
            let serve = |hosted: &ModelServer| {
                hosted.serve(channel, &Peer::default(), &terms, &Limits::default(), &mut nobody)
            };
            match pools {
                // A server with pools is made anew, because the directory belongs to this session.
                Some(pools) => serve(&tiny_for(&terms.policy).with_pools(Pools::open(&pools, 99)?)),
                None if terms.policy.scoring_head().is_some() => serve(&tiny_for(&terms.policy)),
                None => serve(shared()),
            }
        })
    };
    let path = dir.join("client.pool");
    let client = party(move || {
        let opened = ClientSession::open(
            Channel::new(Role::Client, client),
            &Peer::default(),
            &terms,
            &ClientOptions::default(),
        )?;
        let mut sampler = Sampler::greedy();
        let next = Next::Pick(&mut sampler);
        match mode {
            Mode::Plain | Mode::Prepared => opened.generate(&PROMPT, TOKENS, next, &mut nobody),
            Mode::Fill => opened.fill(BOUND, &path, &mut nobody),
            Mode::FillPart(number) => {
                let part = Part::new(number, PARTS).expect("a part");
                opened.fill_part(BOUND, part, &part_path(&path, part), &mut nobody)
            }
            Mode::Spend | Mode::SpendParts => {
                let pool = PoolSet::open(&path, Role::Client)?;
                opened.spend(pool, &PROMPT, TOKENS, next, &mut nobody)
            }
        }
    });
    let wait = |outcome: mpsc::Receiver<std::thread::Result<Result<Outcome, Error>>>, who: &str| {
        let ended = outcome.recv_timeout(HANG).unwrap_or_else(|_| panic!("{context}: the {who} hangs"));
        ended.unwrap_or_else(|_| panic!("{context}: the {who} panicked"))
    };
    Session { client: wait(client, "client"), server: wait(server, "server"), watch }
}

fn party(
    steps: impl FnOnce() -> Result<Outcome, Error> + Send + 'static,
) -> mpsc::Receiver<std::thread::Result<Result<Outcome, Error>>> {
    let (tell, outcome) = mpsc::channel();
    // A party that hangs must not keep the test from failing, so nobody joins it. If the test has already failed,
    // nobody receives the outcome.
    std::thread::spawn(move || drop(tell.send(catch_unwind(AssertUnwindSafe(steps)))));
    outcome
}

/// The tiny model for all sessions without pools.
pub(crate) fn shared() -> &'static ModelServer {
    static HOSTED: OnceLock<ModelServer> = OnceLock::new();
    HOSTED.get_or_init(tiny)
}

/// The public facts of the [`shared`] model.
pub(crate) fn public() -> &'static PublicModel {
    shared().public()
}
