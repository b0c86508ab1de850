//! The account of every byte that crosses the channel.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::usage::process_cpu_time;

/// The two parties.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The party that connects; in Waggle it has the prompt.
    Client,
    /// The party that listens; in Waggle it has the model.
    Server,
}

impl Role {
    /// The other party.
    pub fn peer(self) -> Role {
        match self {
            Role::Client => Role::Server,
            Role::Server => Role::Client,
        }
    }

    /// The direction of what this party sends.
    pub fn sends(self) -> Direction {
        match self {
            Role::Client => Direction::ClientToServer,
            Role::Server => Direction::ServerToClient,
        }
    }
}

/// Which way a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Direction {
    /// From the client to the server.
    ClientToServer,
    /// From the server to the client.
    ServerToClient,
}

/// The purpose of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Handshake, keys, base OTs.
    Setup,
    /// Correlations, which do not depend on the data.
    Offline,
    /// Reading the prompt.
    Prefill,
    /// Generating one token after another.
    Decode,
}

/// Bytes each way, messages, flows, wall-clock and CPU time of one account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Traffic {
    /// Bytes from client to server, framing included.
    pub bytes_client_to_server: u64,
    /// Bytes from server to client, framing included.
    pub bytes_server_to_client: u64,
    /// Messages in both directions.
    pub messages: u64,
    /// Flows: changes of direction. The first message of a session counts as one.
    pub flows: u64,
    /// Wall-clock time spent in the account's own scope, nested scopes excluded.
    pub time: Duration,
    /// CPU time of all threads of this party's process while the account's own scope was open, nested scopes
    /// excluded. With both parties in one process each ledger shows the sum of both. Zero where the system does not
    /// tell.
    #[serde(default)]
    pub cpu: Duration,
    /// CPU time of the other party's process. Only a plan knows it; it is zero in the ledger of a session.
    #[serde(default)]
    pub peer_cpu: Duration,
}

impl Traffic {
    /// Bytes both ways.
    pub fn bytes(&self) -> u64 {
        self.bytes_client_to_server + self.bytes_server_to_client
    }

    /// Adds `other` to this account.
    pub fn add(&mut self, other: &Traffic) {
        let (now, other) = (self.quantities(), other.quantities());
        *self = Traffic::of(std::array::from_fn(|quantity| now[quantity] + other[quantity]));
    }

    /// What was added to this account since its earlier state `before`.
    pub fn since(&self, before: &Traffic) -> Traffic {
        let (now, before) = (self.quantities(), before.quantities());
        Traffic::of(std::array::from_fn(|quantity| now[quantity].saturating_sub(before[quantity])))
    }

    /// The quantities of an account, times in nanoseconds.
    fn quantities(&self) -> [u64; 7] {
        let Traffic { bytes_client_to_server, bytes_server_to_client, messages, flows, time, cpu, peer_cpu } = *self;
        let [time, cpu, peer_cpu] = [time, cpu, peer_cpu].map(|time| time.as_nanos() as u64);
        [bytes_client_to_server, bytes_server_to_client, messages, flows, time, cpu, peer_cpu]
    }

    /// The account with these [quantities](Traffic::quantities).
    fn of([bytes_client_to_server, bytes_server_to_client, messages, flows, times @ ..]: [u64; 7]) -> Self {
        let [time, cpu, peer_cpu] = times.map(Duration::from_nanos);
        Traffic { bytes_client_to_server, bytes_server_to_client, messages, flows, time, cpu, peer_cpu }
    }

    /// This account with all times zero. The two ledgers of a session and its plan agree on these amounts.
    pub fn untimed(&self) -> Traffic {
        Traffic { time: Duration::ZERO, cpu: Duration::ZERO, peer_cpu: Duration::ZERO, ..*self }
    }
}

/// One account of the [`Ledger`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Phase of the account.
    pub phase: Phase,
    /// Operation path, for example `layer 3/attention/softmax`.
    pub path: String,
    /// The amounts booked.
    pub traffic: Traffic,
}

/// Books messages by phase, operation path and direction.
///
/// The path is a stack of scopes. A *flow* is a one-way message, a maximal run of messages in one direction; each
/// flow costs half a round trip. When both parties send at once ([`Channel::exchange`](crate::Channel::exchange)),
/// both ledgers first book the message of the party that also sent the last message before. This message continues
/// that party's flow, and the peer's message answers it. The two ledgers of a session are therefore equal except for
/// time.
#[derive(Clone, Debug)]
pub struct Ledger {
    /// Every scope that was ever opened; the first has the empty path. A plan changes scope millions of times, so a
    /// scope finds its inner scopes by name, not by path.
    scopes: Vec<Scope>,
    /// Indices of the scopes around the current scope, the outermost first.
    outer: Vec<usize>,
    current: usize,
    phase: Phase,
    last: Option<Direction>,
    clock: Option<Clock>,
    /// Amounts that [`Ledger::divide`] divided, by phase and by the last name in the path of the scope that had them.
    divided: BTreeMap<(Phase, String), Traffic>,
}

/// A scope and its accounts.
#[derive(Clone, Debug, Default)]
struct Scope {
    path: String,
    /// Indices of the inner scopes, by name.
    inner: BTreeMap<String, usize>,
    /// The account of each phase.
    accounts: [Option<Traffic>; PHASES.len()],
}

/// All phases, in their order.
const PHASES: [Phase; 4] = [Phase::Setup, Phase::Offline, Phase::Prefill, Phase::Decode];

/// The clocks at the last booking of times.
#[derive(Clone, Copy, Debug)]
struct Clock {
    wall: Instant,
    cpu: Duration,
}

impl Clock {
    fn now() -> Self {
        Clock { wall: Instant::now(), cpu: process_cpu_time().unwrap_or_default() }
    }
}

impl Default for Ledger {
    fn default() -> Self {
        Ledger { clock: Some(Clock::now()), ..Ledger::untimed_until(Phase::Setup, None) }
    }
}

impl Ledger {
    /// An empty ledger in `phase`, after a message in the direction `last`, that books no times: for plans.
    pub fn untimed_until(phase: Phase, last: Option<Direction>) -> Self {
        let (scopes, divided) = (vec![Scope::default()], BTreeMap::new());
        Ledger { scopes, outer: Vec::new(), current: 0, phase, last, clock: None, divided }
    }

    /// This ledger, which books no times from now on: for plans.
    pub fn without_clocks(self) -> Self {
        Ledger { clock: None, ..self }
    }

    /// This ledger with all times zero, which books no times from now on: for plans.
    pub fn forget_times(mut self) -> Self {
        for account in self.scopes.iter_mut().flat_map(|scope| scope.accounts.iter_mut().flatten()) {
            *account = account.untimed();
        }
        self.without_clocks()
    }

    /// Books a message of `bytes` bytes (framing included).
    pub fn book(&mut self, direction: Direction, bytes: u64) {
        self.book_run(direction, bytes, 1);
    }

    /// Books `messages` messages in one direction, `bytes` bytes together (framing included).
    pub fn book_run(&mut self, direction: Direction, bytes: u64, messages: u64) {
        let turned = self.last != Some(direction);
        self.last = Some(direction);
        let account = self.account();
        match direction {
            Direction::ClientToServer => account.bytes_client_to_server += bytes,
            Direction::ServerToClient => account.bytes_server_to_client += bytes,
        }
        account.messages += messages;
        account.flows += u64::from(turned);
    }

    /// Books the messages of client and server that were sent at once (framing included). The message of the party
    /// that sent last before comes first; in a new session the client's does. An exchange thus adds one flow, which
    /// is its delay.
    pub fn book_exchange(&mut self, [client, server]: [u64; 2]) {
        let exchanged = [(Direction::ClientToServer, client), (Direction::ServerToClient, server)];
        let server_first = self.last == Some(Direction::ServerToClient);
        for i in [usize::from(server_first), usize::from(!server_first)] {
            self.book(exchanged[i].0, exchanged[i].1);
        }
    }

    /// Opens the scope `name` inside the current path.
    pub fn enter(&mut self, name: &str) {
        self.checkpoint();
        let inner = self.scope(self.current, name);
        self.outer.push(std::mem::replace(&mut self.current, inner));
    }

    /// The index of the scope `name` inside the scope `outside`.
    fn scope(&mut self, outside: usize, name: &str) -> usize {
        let index = self.scopes.len();
        let outside = &mut self.scopes[outside];
        if let Some(known) = outside.inner.get(name) {
            return *known;
        }
        let path = if outside.path.is_empty() { name.to_owned() } else { format!("{}/{name}", outside.path) };
        outside.inner.insert(name.to_owned(), index);
        self.scopes.push(Scope { path, ..Scope::default() });
        index
    }

    /// Closes the innermost scope.
    pub fn leave(&mut self) {
        self.checkpoint();
        if let Some(outer) = self.outer.pop() {
            self.current = outer;
        }
    }

    /// Number of open scopes; hand it to [`Ledger::leave_to`] to unwind after an error.
    pub fn depth(&self) -> usize {
        self.outer.len()
    }

    /// Closes scopes until `depth` are open.
    pub fn leave_to(&mut self, depth: usize) {
        while self.outer.len() > depth {
            self.leave();
        }
    }

    /// Books what follows under `phase`. Returns the phase before.
    pub fn set_phase(&mut self, phase: Phase) -> Phase {
        self.checkpoint();
        std::mem::replace(&mut self.phase, phase)
    }

    /// The current phase.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The current operation path.
    pub fn path(&self) -> &str {
        &self.scopes[self.current].path
    }

    /// The direction of the last message.
    pub fn last(&self) -> Option<Direction> {
        self.last
    }

    /// Books `traffic` under `phase`, whatever the current phase, with the flows that `traffic` states. The direction
    /// of the last message becomes `last`.
    pub fn book_traffic(&mut self, phase: Phase, traffic: &Traffic, last: Option<Direction>) {
        self.scopes[self.current].accounts[phase as usize].get_or_insert_default().add(traffic);
        self.last = last;
    }

    /// Divides what the current scope's account of `phase` holds among the accounts of `shares`, which are paths from
    /// the outermost scope on, in proportion to their weights. Each quantity is divided on its own, in whole units.
    /// All parts are rounded down, and the remaining units go, one each, to the parts that lost most, among equals to
    /// the first. So the parts add up to the whole. A message, or a flow, that serves several accounts is therefore
    /// booked in one of them. Without shares everything stays.
    ///
    /// The order of messages does not change, and neither does the sum of a phase. [`Ledger::divided`] lists the
    /// divided amounts by the name of this scope.
    pub fn divide(&mut self, phase: Phase, shares: &[(&str, u64)]) {
        self.checkpoint();
        let scope = &mut self.scopes[self.current];
        let Some(whole) = scope.accounts[phase as usize].take_if(|_| !shares.is_empty()) else { return };
        let name = scope.path.rsplit('/').next().unwrap_or_default().to_owned();
        self.divided.entry((phase, name)).or_default().add(&whole);
        let weights: Vec<u64> = shares.iter().map(|(_, weight)| *weight).collect();
        let quantities = whole.quantities().map(|quantity| parts(quantity, &weights));
        for (i, (path, _)) in shares.iter().enumerate() {
            let scope = path.split('/').filter(|name| !name.is_empty()).fold(0, |at, name| self.scope(at, name));
            let account = self.scopes[scope].accounts[phase as usize].get_or_insert_default();
            account.add(&Traffic::of(std::array::from_fn(|quantity| quantities[quantity][i])));
        }
    }

    /// Amounts that were divided ([`Ledger::divide`]), by phase and by the name of the scope that had them: a second
    /// view of amounts that the accounts hold as well.
    pub fn divided(&self) -> Vec<Entry> {
        let entries = self.divided.iter();
        entries
            .map(|((phase, name), traffic)| Entry { phase: *phase, path: name.clone(), traffic: *traffic })
            .collect()
    }

    /// All accounts, ordered by phase and path.
    pub fn entries(&self) -> Vec<Entry> {
        let mut sums: BTreeMap<(Phase, &str), Traffic> = BTreeMap::new();
        for (phase, path, traffic) in self.accounts() {
            sums.entry((phase, path)).or_default().add(traffic);
        }
        sums.into_iter().map(|((phase, path), traffic)| Entry { phase, path: path.into(), traffic }).collect()
    }

    /// All accounts, scope by scope.
    fn accounts(&self) -> impl Iterator<Item = (Phase, &str, &Traffic)> {
        self.scopes.iter().flat_map(|scope| {
            let accounts = PHASES.into_iter().zip(&scope.accounts);
            accounts.filter_map(|(phase, account)| Some((phase, &scope.path[..], account.as_ref()?)))
        })
    }

    /// The accounts that carried something, without their times. Both ledgers of a session give the same list.
    pub fn untimed(&self) -> Vec<Entry> {
        let mut entries = self.entries();
        entries.iter_mut().for_each(|entry| entry.traffic = entry.traffic.untimed());
        entries.retain(|entry| entry.traffic != Traffic::default());
        entries
    }

    /// Sum over all accounts of `phase`.
    pub fn phase_total(&self, phase: Phase) -> Traffic {
        self.sum(|p| p == phase)
    }

    /// Sum over all accounts.
    pub fn total(&self) -> Traffic {
        self.sum(|_| true)
    }

    /// Books the wall-clock and the CPU time since the last change of account. Call it before reading the times of a
    /// running session.
    pub fn checkpoint(&mut self) {
        // Reading the CPU clock is a system call, 0.3 us on a Xeon of 2.5 GHz; a decoded token of the GPT-2-small
        // shape changes account 2,300 times in two phases and 3,500 times in one: about a millisecond in a second.
        let Some(clock) = &mut self.clock else { return };
        let before = std::mem::replace(clock, Clock::now());
        let (time, cpu) = (clock.wall - before.wall, clock.cpu.saturating_sub(before.cpu));
        let account = self.account();
        account.time += time;
        account.cpu += cpu;
    }

    fn sum(&self, keep: impl Fn(Phase) -> bool) -> Traffic {
        let mut total = Traffic::default();
        self.accounts().filter(|(phase, ..)| keep(*phase)).for_each(|(_, _, traffic)| total.add(traffic));
        total
    }

    fn account(&mut self) -> &mut Traffic {
        self.scopes[self.current].accounts[self.phase as usize].get_or_insert_default()
    }
}

/// Divides `whole` in proportion to `weights`, by the largest remainder: see [`Ledger::divide`]. If all weights are
/// zero, they count as equal.
fn parts(whole: u64, weights: &[u64]) -> Vec<u64> {
    let all: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
    let weight = |weight: &u64| if all == 0 { 1 } else { u128::from(*weight) };
    let all = if all == 0 { weights.len() as u128 } else { all };
    let exact: Vec<u128> = weights.iter().map(|of| u128::from(whole) * weight(of)).collect();
    let mut parts: Vec<u64> = exact.iter().map(|part| (part / all) as u64).collect();
    let left = whole - parts.iter().sum::<u64>();
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by_key(|part| std::cmp::Reverse(exact[*part] % all));
    order.iter().take(left as usize).for_each(|part| parts[*part] += 1);
    parts
}
