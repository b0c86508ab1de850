//! Three processes write what two write, and survive what harms one of them or of their three links.
//!
//! `cargo test --release --test all parties::` harms 9 sessions; with `WAGGLE_KILLS=100` and `-- --nocapture` it
//! harms 100 over TLS and as many in plaintext, in which the helper deals no weights, and says how they ended.
//! `WAGGLE_SEED` repeats the choices of a run.
#![cfg(unix)]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::Value;
use tempfile::TempDir;

use crate::fuzz_processes::{HANG, PROMPT, TIMEOUT, damage, home, start};
use crate::hostile::{self, Proxy, Wire};
use crate::support::{Ended, Keys, Server, fail, fails, json, key, number, of, read_json, waggle};

/// Time-out of a party whose session nobody harms.
const CALM: f64 = 60.0;
/// The links, as `Trio::gates` has them.
const LINKS: [&str; 3] = ["client and server", "client and helper", "server and helper"];
const VICTIMS: [&str; 3] = ["the client", "the server", "the helper"];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Harm {
    /// Damage to bytes of a link.
    Spoil,
    /// SIGKILL.
    Kill,
    /// SIGSTOP for longer than the others wait, then SIGCONT.
    Stop,
}

/// A helper, a server that names it, and the gates through which all go.
struct Trio {
    home: TempDir,
    keys: Keys,
    wire: Wire,
    helper: Server,
    server: Server,
    gates: [Proxy; 3],
    timeout: f64,
}

impl Trio {
    fn start(wire: Wire, timeout: f64) -> Self {
        let home = home();
        let keys = Keys::new(home.path(), home.path());
        let helper = help(&home, &keys, wire, timeout);
        let gates = [(); 3].map(|()| Proxy::lasting(helper.socket()));
        let server = serve(&home, &keys, wire, gates[2].address, timeout);
        gates[0].aim(server.socket(), None);
        Trio { home, keys, wire, helper, server, gates, timeout }
    }

    /// The terms of the party whose link to the helper goes through this gate.
    fn terms(&self, gate: usize) -> String {
        terms(&self.keys, self.wire, self.gates[gate].address)
    }

    /// The option by which a client knows the server.
    fn trust(&self) -> String {
        match self.wire {
            Wire::Tls => format!("--server-key {}", self.keys.of_server),
            Wire::Plaintext => String::new(),
        }
    }

    /// The other end of a gate.
    fn target(&self, gate: usize) -> SocketAddr {
        if gate == 0 { self.server.socket() } else { self.helper.socket() }
    }

    /// A client of the server, beside what `generate` wants.
    fn client(&self, arguments: &str) -> Command {
        let trust = self.trust();
        let line = format!("generate --connect {} {PROMPT} {trust} {arguments}", self.server.address);
        of(waggle(&line), self.home.path())
    }

    /// The end of a session that nobody harms.
    fn calm(&self, arguments: &str) -> Ended {
        let terms = format!("{} {} {arguments}", self.terms(1), self.trust());
        start(self.home.path(), self.gates[0].address, &terms, self.wire, CALM).end_or_kill(HANG)
    }

    /// Aims the gates at those who listen now, and damages what passes one of them.
    fn aim(&self, spoiled: Option<(usize, hostile::Spoil)>) {
        for (gate, proxy) in self.gates.iter().enumerate() {
            proxy.aim(self.target(gate), spoiled.filter(|(at, _)| *at == gate).map(|(_, spoil)| spoil));
        }
    }

    /// Harms one session at a random place; says how it ended.
    fn harm(
        &mut self,
        index: usize,
        rng: &mut StdRng,
        sizes: [[usize; 2]; 3],
        honest: &str,
    ) -> Result<String, String> {
        // The first nine rounds have each of three harms at each of three places.
        let (harm, place) = ([Harm::Spoil, Harm::Kill, Harm::Stop][index % 3], index / 3 % 3);
        let link = if harm == Harm::Spoil { place } else { rng.random_range(0..3) };
        let spoil = damage(rng, sizes[link]);
        self.aim((harm == Harm::Spoil).then_some((link, spoil)));
        let terms = format!("{} {}", self.terms(1), self.trust());
        let mut client = start(self.home.path(), self.gates[0].address, &terms, self.wire, self.timeout);
        let mut harmed = false;
        let direction = usize::from(!spoil.upwards);
        while harm != Harm::Spoil && !harmed && client.runs() {
            let victim = [&client, &*self.server, &*self.helper][place];
            // Nothing passes in the meantime.
            harmed = self.gates[link].passed(|passed| {
                let there = passed.streams[direction].len() > spoil.offset;
                if there {
                    victim.signal(if harm == Harm::Kill { "KILL" } else { "STOP" });
                }
                there
            });
            sleep(Duration::from_micros(50));
        }
        if harm == Harm::Stop && harmed {
            sleep(Duration::from_secs_f64(1.5 * self.timeout));
            [&client, &*self.server, &*self.helper][place].signal("CONT");
        }
        let ended = client.end_or_kill(HANG);
        let harmed = harmed || self.gates[link].passed(|passed| passed.spoiled);
        let what = match harm {
            Harm::Spoil => format!("{spoil:?} between {}", LINKS[link]),
            _ => {
                let (place, whose) = (VICTIMS[place], if spoil.upwards { "first" } else { "second" });
                format!("{harm:?} {place} at byte {} of the {whose} of {}", spoil.offset, LINKS[link])
            }
        };
        println!("{index}: {what}: {:?} {}", ended.code, ended.errors.trim().lines().last().unwrap_or_default());
        let killed = harm == Harm::Kill && harmed;
        let verdict = match ended.code {
            None if killed && place == 0 && !ended.errors.contains("panicked") => Ok("killed"),
            _ => ended.judge(honest, harmed),
        };
        let (server, helper) = (self.server.log(), self.helper.log());
        match verdict {
            _ if server.contains("panicked") => Err(format!("{index}: {what}: the server panics: {server}")),
            _ if helper.contains("panicked") => Err(format!("{index}: {what}: the helper panics: {helper}")),
            Err(why) => Err(format!("{index}: {what}: {why}")),
            Ok(ending) => {
                match place {
                    1 if killed => {
                        let gate = self.gates[2].address;
                        self.server = serve(&self.home, &self.keys, self.wire, gate, self.timeout);
                    }
                    2 if killed => self.helper = help(&self.home, &self.keys, self.wire, self.timeout),
                    _ => {}
                }
                self.aim(None);
                let next = self.calm("");
                let served = next.code == Some(0) && next.text == honest;
                let why = || format!("{index}: {what}: the next one: {:?} {}", next.code, next.errors);
                served.then(|| format!("{harm:?}: {ending}")).ok_or_else(why)
            }
        }
    }
}

fn help(home: &TempDir, keys: &Keys, wire: Wire, timeout: f64) -> Server {
    let trust = if wire == Wire::Tls { format!("{} {}", keys.helper, keys.allowed) } else { String::new() };
    let line = format!("helper --listen 127.0.0.1:0 --timeout {timeout} {trust}");
    Server::run(&mut hostile::waggle(home.path(), &line, wire))
}

/// The terms of sessions of three parties, or of two with a helper where nothing is encrypted.
fn terms(keys: &Keys, wire: Wire, helper: SocketAddr) -> String {
    match wire {
        Wire::Tls => format!("--parties 3 --helper {helper} --helper-key {}", keys.of_helper),
        Wire::Plaintext => format!("--helper {helper}"),
    }
}

/// A server that reaches its helper through `gate`.
fn serve(home: &TempDir, keys: &Keys, wire: Wire, gate: SocketAddr, timeout: f64) -> Server {
    let trust = if wire == Wire::Tls { format!("{} {}", keys.server, keys.allowed) } else { String::new() };
    hostile::serve(home.path(), &serving(&format!("{} {trust}", terms(keys, wire, gate)), timeout), wire)
}

fn serving(terms: &str, timeout: f64) -> String {
    format!("{terms} --timeout {timeout} --sessions 4 --max-reveals unlimited")
}

/// Harms `rounds` sessions and prints how they ended; panics if one ended as none may.
fn harm(wire: Wire, rounds: usize) {
    let seed = number("WAGGLE_SEED").unwrap_or(1);
    println!("WAGGLE_SEED={seed} over {wire:?}");
    let mut trio = Trio::start(wire, TIMEOUT);
    let honest = trio.calm("");
    assert_eq!(honest.code, Some(0), "{}", honest.errors);
    let sizes = trio.gates.each_ref().map(|gate| gate.passed(|passed| passed.streams.each_ref().map(Vec::len)));
    let (begin, mut rng) = (Instant::now(), StdRng::seed_from_u64(seed));
    let results: Vec<_> = (0..rounds).map(|index| trio.harm(index, &mut rng, sizes, &honest.text)).collect();
    let mut endings: BTreeMap<&str, usize> = BTreeMap::new();
    results.iter().flatten().for_each(|ending| *endings.entry(ending).or_default() += 1);
    println!("{rounds} harmed sessions over {wire:?} in {:.0} s: {endings:#?}", begin.elapsed().as_secs_f64());
    let wrong: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    // It finishes what runs, so no session is stuck.
    trio.server.signal("TERM");
    let Ended { code, errors: log, .. } = trio.server.end(HANG);
    assert_eq!(code, Some(0), "{log}");
}

#[test]
fn three_parties_may_be_harmed_at_any_moment() {
    match number("WAGGLE_KILLS") {
        None => harm(Wire::Tls, 9),
        Some(rounds) => [Wire::Tls, Wire::Plaintext].into_iter().for_each(|wire| harm(wire, rounds as usize)),
    }
}

/// A report's account of a link to the helper has bytes for the prompt and for the other tokens.
fn assert_dealt(link: &Value) {
    for bytes in ["bytes_to_helper", "bytes_from_helper", "bytes_setup", "bytes_decoding"] {
        assert!(link[bytes].as_u64().unwrap() > 0, "{bytes}: {link}");
    }
}

#[test]
fn three_machines_write_what_two_write() {
    let trio = Trio::start(Wire::Tls, CALM);
    let path = trio.home.path();
    let two = hostile::serve(path, "", Wire::Tls);
    let honest = start(path, two.socket(), "", Wire::Tls, CALM).end_or_kill(HANG);
    assert_eq!(honest.code, Some(0), "{}", honest.errors);
    let file = path.join("report.json");
    let three = trio.calm(&format!("--json {}", file.display()));
    assert_eq!((three.code, &three.text), (Some(0), &honest.text), "{}", three.errors);
    let report = read_json(&file);
    assert_dealt(&report["helper"]["client"]);
    // Nobody but the server knows its link.
    assert!(report["helper"]["server"].is_null(), "{}", report["helper"]);
    trio.helper.wait_for("dealt: ");

    let model = path.join("model");
    let demo = format!("demo --parties 3 --model {} {PROMPT}", model.display());
    let report = json(&mut of(waggle(&demo), path));
    ["client", "server"].iter().for_each(|role| assert_dealt(&report["helper"][role]));

    let weights = trio.terms(1).replace("--parties 3", "--helper-weights");
    let Keys { server, allowed, .. } = &trio.keys;
    for by_client in ["", "--halves-by-client"] {
        let server =
            hostile::serve(path, &format!("{} {server} {allowed} {by_client}", serving(&weights, CALM)), Wire::Tls);
        for _ in 0..2 {
            let terms = format!("{weights} {}", trio.trust());
            let third = start(path, server.socket(), &terms, Wire::Tls, CALM).end_or_kill(HANG);
            assert_eq!((third.code, &third.text), (Some(0), &honest.text), "{}", third.errors);
        }
        // The halves are deposited once.
        let sent = server.stop().lines().filter(|line| line.contains("its halves of the weights")).count();
        assert_eq!(sent, 1);
    }
}

#[test]
fn three_parties_are_refused_by_name() {
    let trio = Trio::start(Wire::Tls, CALM);
    let path = trio.home.path();
    let without = "--parties 3 needs the third one: --helper";
    let serve = format!("serve --parties 3 --listen 127.0.0.1:0 --model {}", path.join("model").display());
    fails(&mut of(waggle(&serve), path), 1, [without]);
    fails(&mut trio.client("--parties 3"), 1, [without]);

    let line = |command: &mut Command, words: &str| {
        let errors = fail(command, 1);
        assert!(errors.starts_with("error: ") && errors.contains(words) && errors.lines().count() == 1, "{errors}");
    };
    let differ = "the server runs sessions of 3 parties, and the client asks for another number";
    line(&mut trio.client(""), &format!("{differ}: --parties 3"));
    trio.server.wait_for(differ);
    line(&mut trio.client(&format!("{} --draft lookup", trio.terms(1))), "three parties take no guesses");

    // The server takes anybody, the helper those of this user.
    let serving = format!("{} {} --allow-any", serving(&trio.terms(2), CALM), trio.keys.server);
    let server = hostile::serve(path, &serving, Wire::Tls);
    let stranger = tempfile::tempdir().unwrap();
    let known = format!("{PROMPT} {} {}", trio.terms(1), trio.trust());
    let other = key(stranger.path());
    let refused = "the helper does not know this party's key: its owner adds the line";
    line(&mut of(server.client(&known), stranger.path()), refused);
    trio.helper.wait_for(&format!("add the line {other}"));
}

/// Whoever has two of the three keys has what two of the three must not have together.
#[test]
fn two_of_three_keys_are_never_one() {
    let trio = Trio::start(Wire::Tls, CALM);
    let (path, keys) = (trio.home.path(), &trio.keys);
    let alike = |server: &str, helper: &Server, of_helper: &str, client: &str, words: &str| {
        for terms in ["--parties 3", "--helper-weights", ""] {
            let terms = format!("{terms} --helper {} --helper-key {of_helper}", helper.address);
            let server = hostile::serve(path, &format!("{} {server}", serving(&terms, CALM)), Wire::Tls);
            let line = format!("generate --connect {} {PROMPT} {client} {terms}", server.address);
            let errors = fail(&mut of(waggle(&line), path), 1);
            assert!(errors.starts_with("error: ") && errors.contains(words), "{errors}");
        }
    };
    // The user's key is that of client and server, of client and helper, of server and helper.
    let own = key(path);
    let user = Server::run(&mut of(waggle("helper --listen 127.0.0.1:0 --allow-any"), path));
    let named = format!("--server-key {}", keys.of_server);
    let others = format!("--identity {} --server-key {own}", path.join("client.key").display());
    alike("", &trio.helper, &keys.of_helper, "", "this party and the other party have one key");
    alike(
        &format!("{} {}", keys.server, keys.allowed),
        &user,
        &own,
        &named,
        "this party and the helper have one key",
    );
    alike("--allow-any", &user, &own, &others, "the other party and the helper have one key");
}

/// Whoever reads a link without keys has what both its ends have.
#[test]
fn no_weights_travel_in_plaintext() {
    let trio = Trio::start(Wire::Plaintext, CALM);
    let path = trio.home.path();
    for terms in ["--parties 3", "--helper-weights"] {
        let line = format!("{terms} {} --insecure-plaintext", trio.terms(1));
        let model = path.join("model");
        let serve = format!("serve --listen 127.0.0.1:0 --model {} {line}", model.display());
        for line in [serve, format!("generate --connect {} {PROMPT} {line}", trio.server.address)] {
            let errors = fail(&mut of(waggle(&line), path), 1);
            assert!(errors.contains("halves of weights travel over encrypted links alone"), "{errors}");
        }
    }
}
