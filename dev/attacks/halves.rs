//! A client that tries to get its server's weights from an honest helper that keeps halves of them:
//! `cargo run --release --example attack_halves -- target/release/waggle`.
//!
//! The client has what every client of the server has: the seed of its own halves, their name, and the demands of a
//! session. It opens two links to the helper and plays both parties on them. If the helper deals products of the
//! server's halves with rows that the client knows, linear algebra gives these halves, and the seed gives the others.
//! The program prints a line for every attempt, and fails if one of them gets anything.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use waggle_model::{Next, Reveal, Sampler};
use waggle_net::tcp::{self, ConnectOptions};
use waggle_net::{Channel, Identity, Link, PublicKey, Role, await_admission, forward_link, memory_pair, tls};
use waggle_protocols::deal::{Dealt, Demand, SEED_BYTES, rows};
use waggle_protocols::halves::{self, HalvesSeed};
use waggle_protocols::ops::private::MaskedRow;
use waggle_protocols::{FixedMatrix, HelperDeals};
use waggle_session::party::{ClientOptions, ClientSession, Peer, Terms, ToHelper, nobody};

const PATIENCE: Duration = Duration::from_secs(120);
const OPTIONS: ConnectOptions = ConnectOptions { connect_timeout: PATIENCE, read_timeout: PATIENCE };
const PROMPT: [u32; 4] = [30, 27, 25, 17];

type Fallible<T> = Result<T, Box<dyn Error>>;

/// The first message on a link to a helper, a copy of `Ask` in the crate `session`.
#[derive(Clone, Serialize, Deserialize)]
struct Ask {
    #[serde(with = "postcard::fixint::le")]
    protocol: u32,
    session: [u8; 32],
    server: bool,
    peer: [u8; 32],
    halves: Option<[u8; 32]>,
    passes: bool,
    demands: Vec<Demand>,
}

/// A process of `waggle`, and the first line of its output.
struct Process {
    child: Child,
    said: String,
}

impl Process {
    fn start(waggle: &str, home: &Path, arguments: &[&str]) -> Fallible<Self> {
        let mut command = Command::new(waggle);
        command.args(arguments).env("WAGGLE_HOME", home).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn()?;
        let mut said = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out).read_line(&mut said)?;
        }
        Ok(Process { child, said: said.trim().to_owned() })
    }

    /// The word of the output behind the text `before`.
    fn word(&self, before: &str) -> Fallible<&str> {
        let rest = self.said.split_once(before).ok_or_else(|| format!("it said: {}", self.said))?.1;
        Ok(rest.split_whitespace().next().unwrap_or_default())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A link that keeps the last received message that is as long as a seed.
struct Listening<L> {
    link: L,
    heard: Arc<Mutex<Vec<u8>>>,
}

impl<L: Link> Link for Listening<L> {
    forward_link!(self => self.link; send timeout close read_ahead exporter);

    fn recv(&mut self, buf: &mut [u8]) -> std::io::Result<()> {
        self.link.recv(buf)?;
        if buf.len() == HalvesSeed::BYTES {
            *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = buf.to_vec();
        }
        Ok(())
    }
}

/// The machines, and the keys of a client that misbehaves.
struct Scene {
    helper: (String, PublicKey),
    plain: String,
    server: (String, PublicKey),
    own: [Arc<Identity>; 2],
    /// The identity of the helper, in case it was stolen.
    lost: Identity,
}

impl Scene {
    /// Runs a session of the client with the server, in which `open` opens the link to the helper. Returns the tokens
    /// and the seed.
    fn session(&self, open: ToHelper) -> (Fallible<Vec<u32>>, Vec<u8>) {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let tokens = self.run(open, &heard);
        (tokens, std::mem::take(&mut *heard.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    fn run(&self, open: ToHelper, heard: &Arc<Mutex<Vec<u8>>>) -> Fallible<Vec<u32>> {
        let (address, key) = self.server.clone();
        let mut link = tls::connect(&*address, &self.own[0], move |proved| *proved == key, OPTIONS)?;
        await_admission(&mut link, &mut || ())?;
        let channel = Channel::new(Role::Client, Listening { link, heard: heard.clone() });
        let helper = Some(self.helper.1.to_string());
        let mut terms = Terms { helper, reveal: Reveal::Token, ..Terms::default() };
        (terms.protocol.preprocess, terms.protocol.helper) = (true, HelperDeals::Weights);
        let peer = Peer { key: Some(key.to_string()) };
        let session = ClientSession::open(channel, &peer, &terms, &ClientOptions::default())?.with_helper(open);
        let mut sampler = Sampler::greedy();
        Ok(session.generate(&PROMPT, 2, Next::Pick(&mut sampler), &mut nobody)?.generation.tokens)
    }

    /// What every client of the server can know: the seed of its halves, and the demands of a session.
    fn look(&self) -> Fallible<(HalvesSeed, Ask)> {
        let (here, there) = memory_pair(PATIENCE);
        let (here, mut channel) = (Mutex::new(Some(here)), Channel::new(Role::Server, there));
        // This link leads nowhere: the helper learns nothing of the session.
        let open = ToHelper::new(Some(self.own[0].public().to_string()), move || {
            let here = here.lock().unwrap_or_else(PoisonError::into_inner).take();
            Ok(Channel::new(Role::Client, here.ok_or(waggle_net::NetError::Closed { step: "the second link" })?))
        });
        let (session, ask) = std::thread::scope(|scope| {
            let session = scope.spawn(|| {
                let (text, seed) = self.session(open);
                (text.err().map(|error| error.to_string()), seed)
            });
            let ask = channel.recv_up_to("helper/demands", 4 << 20);
            drop(channel);
            (session.join(), ask)
        });
        let (why, seed) = session.map_err(|_| "the session panicked")?;
        let ask = ask.map_err(|error| why.unwrap_or_else(|| error.to_string()))?;
        let seed: &[u8; HalvesSeed::BYTES] = seed[..].try_into()?;
        Ok((HalvesSeed::from_bytes(seed), postcard::from_bytes(&ask)?))
    }

    /// Runs a session as it should be. Returns its tokens.
    fn honest(&self) -> Fallible<Vec<u32>> {
        let (own, (address, key)) = (self.own[0].clone(), self.helper.clone());
        let open = ToHelper::new(Some(own.public().to_string()), move || {
            let link = tls::connect(&*address, &own, move |proved| *proved == key, OPTIONS)?;
            Ok(Channel::new(Role::Client, link))
        });
        self.session(open).0
    }

    /// A link to the helper for the holder of this key, or without a key to the helper in plaintext.
    fn link(&self, key: Option<&Identity>) -> Fallible<Channel> {
        let (address, helper) = self.helper.clone();
        let link: Box<dyn Link> = match key {
            Some(key) => Box::new(tls::connect(&*address, key, move |proved| *proved == helper, OPTIONS)?),
            None => Box::new(tcp::connect(&*self.plain, OPTIONS)?),
        };
        Ok(Channel::new(Role::Client, link))
    }
}

/// A key, and what is asked on a link to the helper.
type Party<'a> = (Option<&'a Identity>, Ask);

/// The result of an attempt.
enum End {
    Refused(String),
    /// The helper has no halves for these two parties, and asks for all of them.
    Empty,
    Taken(usize),
}

/// Plays a client and a server towards the helper, each with a key and a message.
fn attempt(scene: &Scene, parties: [Party<'_>; 2], seed: &HalvesSeed) -> Fallible<End> {
    let mut links = Vec::new();
    for (key, ask) in &parties {
        let mut link = scene.link(*key)?;
        link.send("helper/demands", &postcard::to_extend(ask, Vec::new())?)?;
        link.flush("helper/demands")?;
        links.push(link);
    }
    let [client, server] = &mut links[..] else { return Err("two links".into()) };
    // The helper first answers the server's link, or refuses both.
    let reason = match server.recv_up_to("helper/verdict", 1024) {
        Ok(reason) => String::from_utf8_lossy(&reason).into_owned(),
        Err(error) => error.to_string(),
    };
    if !reason.is_empty() {
        return Ok(End::Refused(reason));
    }
    let missing: Vec<u32> = postcard::from_bytes(&server.recv_up_to("helper/missing halves", 256 << 10)?)?;
    let ask = &parties[0].1;
    if !missing.is_empty() {
        let all = missing.len() == rows(&ask.demands).len();
        return if all { Ok(End::Empty) } else { Err("the helper has some of the halves".into()) };
    }
    client.recv_up_to("helper/verdict", 1024)?;
    let own = client.recv("helper/seeds", SEED_BYTES)?;
    server.recv("helper/seeds", SEED_BYTES)?;
    let [Demand::Units { kind: Dealt::Row(kind), units, .. }] = &ask.demands[..] else {
        return Err("one demand of rows".into());
    };
    let given = server.recv("helper/words", waggle_bits::packed_bytes(units * kind.outputs, &[kind.width]))?;
    let given = waggle_bits::unpack("helper/words", &given, units * kind.outputs, &[kind.width])?;
    Ok(End::Taken(solve(kind, *units, &own, &given, seed)?))
}

/// How many of the weights of `kind` follow from the words `given` by the helper: r B = given + t, and W = A + B.
fn solve(kind: &MaskedRow, units: usize, own: &[u8], given: &[u64], seed: &HalvesSeed) -> Fallible<usize> {
    let (inputs, outputs, low) = (kind.inputs, kind.outputs, u64::MAX >> (64 - kind.width));
    let mut stream = blake3::Hasher::new_derive_key("waggle 2026 words of a dealt correlation");
    stream.update(&own[..SEED_BYTES / 2]);
    let mut stream = stream.finalize_xof();
    let mut draw = |count: usize| -> Vec<u64> {
        let mut bytes = vec![0; 8 * count];
        stream.fill(&mut bytes);
        bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word) & low).collect()
    };
    let (r, t) = (draw(units * inputs), draw(units * outputs));
    let mut lines: Vec<Vec<u64>> = (0..units)
        .map(|u| {
            let right = (0..outputs).map(|j| given[u * outputs + j].wrapping_add(t[u * outputs + j]));
            r[u * inputs..][..inputs].iter().copied().chain(right).collect()
        })
        .collect();
    for column in 0..inputs {
        let Some(pivot) = (column..units).find(|&u| lines[u][column] & 1 == 1) else { return Ok(0) };
        lines.swap(column, pivot);
        let odd = lines[column][column];
        let inverse = (0..6).fold(odd, |x, _| x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x))));
        lines[column].iter_mut().for_each(|x| *x = x.wrapping_mul(inverse));
        let own = lines[column].clone();
        for line in lines.iter_mut().enumerate().filter(|(u, _)| *u != column).map(|(_, line)| line) {
            let factor = line[column];
            line.iter_mut().zip(&own).for_each(|(x, y)| *x = x.wrapping_sub(factor.wrapping_mul(*y)));
        }
    }
    // A is the negated half that the seed makes of a matrix of zeros.
    let (here, there) = memory_pair(PATIENCE);
    let (mut here, mut there) = (Channel::new(Role::Client, here), Channel::new(Role::Server, there));
    let matrix = FixedMatrix::integers(inputs, outputs, vec![0; inputs * outputs]);
    halves::send(&mut here, seed, kind, Some(&matrix))?;
    let minus = there.recv("helper/half of a weight", waggle_bits::packed_bytes(inputs * outputs, &[kind.width]))?;
    let minus = waggle_bits::unpack("helper/half of a weight", &minus, inputs * outputs, &[kind.width])?;
    // Weights are below 2^20 in magnitude, so a larger value is a wrong guess.
    let weight = |at: usize| {
        let w = lines[at / outputs][inputs + at % outputs].wrapping_sub(minus[at]) & low;
        ((w << (64 - kind.width)) as i64) >> (64 - kind.width)
    };
    Ok((0..inputs * outputs).filter(|at| weight(*at).unsigned_abs() < 1 << 20).count())
}

/// The digest by which a helper is told a party's key.
fn digest(key: &PublicKey) -> [u8; 32] {
    *blake3::hash(key.to_string().as_bytes()).as_bytes()
}

/// Makes all attempts, with names of sessions from `first_name` on. Returns how many of them got something.
fn attempts(scene: &Scene, seed: &HalvesSeed, seen: &Ask, first_name: u8) -> Fallible<usize> {
    let all = rows(&seen.demands);
    let kind = all.iter().min_by_key(|kind| kind.inputs * kind.outputs).ok_or("no products with weights")?;
    let units = kind.inputs + 40;
    let demand = |units| vec![Demand::Units { kind: Dealt::Row((*kind).clone()), units, batch: units }];
    let [first, second] = scene.own.each_ref().map(|own| own.as_ref());
    let (name, server) = (Some(seed.name()), scene.server.1);
    let mine = |proof: [u8; 32]| (Some(halves::name(&proof)), Some(proof));
    let ask = |is_server: bool, peer: PublicKey, halves: Option<[u8; 32]>| Ask {
        server: is_server,
        peer: digest(&peer),
        halves,
        demands: demand(units),
        ..seen.clone()
    };
    let (a, b) = (first.public(), second.public());
    let pair = |client, server| [(Some(first), client), (Some(second), server)];
    let (own_name, own_proof) = mine([7; 32]);
    let list: Vec<(&str, [Party<'_>; 2])> = vec![
        ("one key in both roles", [(Some(first), ask(false, a, name)), (Some(first), ask(true, a, name))]),
        ("two keys, and the name for the proof", pair(ask(false, b, name), ask(true, a, name))),
        ("two keys, and a proof of one's own", pair(ask(false, b, name), ask(true, a, own_proof))),
        ("two keys, and halves of one's own", pair(ask(false, b, own_name), ask(true, a, own_proof))),
        ("two keys, and no halves", pair(ask(false, b, None), ask(true, a, None))),
        ("halves that the client alone names", pair(ask(false, b, name), ask(true, a, None))),
        ("the server's key is named, another comes", pair(ask(false, server, name), ask(true, a, name))),
        ("two servers", pair(ask(true, b, name), ask(true, a, name))),
        ("two clients", pair(ask(false, b, name), ask(false, a, name))),
        ("more rows than the other asks for", {
            let more = Ask { demands: demand(units + 1), ..ask(false, b, name) };
            pair(more, ask(true, a, name))
        }),
        ("pass by pass", {
            let passes = |ask| Ask { passes: true, ..ask };
            pair(passes(ask(false, b, name)), passes(ask(true, a, name)))
        }),
        ("the helper's own key", {
            let server = (Some(&scene.lost), ask(true, a, name));
            [(Some(first), ask(false, scene.helper.1, name)), server]
        }),
        ("links without keys", {
            let nobody = |server| Ask { server, peer: [0; 32], halves: name, demands: demand(units), ..seen.clone() };
            [(None, nobody(false)), (None, nobody(true))]
        }),
    ];
    let mut taken = 0;
    for (number, (what, mut parties)) in (first_name..).zip(list) {
        parties.iter_mut().for_each(|(_, ask)| ask.session = [number; 32]);
        let end = attempt(scene, parties, seed)?;
        taken += usize::from(matches!(end, End::Taken(_)));
        match end {
            End::Refused(reason) => println!("refused: {what}: {reason}"),
            End::Empty => println!("nothing: {what}: the helper has none of the halves and wants all"),
            End::Taken(weights) => {
                println!("TAKEN: {what}: {weights} of {} weights of {}", kind.inputs * kind.outputs, kind.weight)
            }
        }
        std::io::stdout().flush()?;
    }
    Ok(taken)
}

fn main() -> Fallible<()> {
    let waggle = std::env::args().nth(1).ok_or("give the path of waggle")?;
    let home = tempfile::tempdir()?;
    let file = |name: &str| home.path().join(name).display().to_string();
    let keygen = |name: &str| -> Fallible<PublicKey> {
        Ok(Process::start(&waggle, home.path(), &["keygen", "--identity", &file(name)])?.said.parse()?)
    };
    let key = keygen("server")?;
    let own = [Arc::new(Identity::generate()?), Arc::new(Identity::generate()?)];
    std::fs::write(file("allowed"), format!("{key}\n{}\n{}\n", own[0].public(), own[1].public()))?;
    let (allowed, identity) = (file("allowed"), file("helper"));
    let listen = "--listen=127.0.0.1:0";
    let open = ["--identity", &identity, "--allow", &allowed];
    let helper = Process::start(&waggle, home.path(), &[&["helper", listen], &open[..]].concat())?;
    let plain = Process::start(&waggle, home.path(), &["helper", listen, "--insecure-plaintext"])?;
    let at = (helper.word("helping on ")?.to_owned(), helper.word("with the key ")?.parse()?);
    let lost = Identity::read(&identity)?;
    let (identity, address, helper_key) = (file("server"), at.0.clone(), format!("{}", at.1));
    let serve = ["serve", listen, "--model=shakespeare-llama", "--skip-range-check", "--sessions=4", "--log=error"];
    let open = ["--identity", &identity, "--allow", &allowed];
    let named = ["--helper", &address, "--helper-key", &helper_key, "--helper-weights", "--timeout=120"];
    let server = Process::start(&waggle, home.path(), &[&serve[..], &open, &named].concat())?;
    let scene = Scene {
        helper: at,
        plain: plain.word("helping on ")?.to_owned(),
        server: (server.word(" on ")?.to_owned(), key),
        own,
        lost,
    };
    let (seed, seen) = scene.look()?;
    println!("before the server's halves are there");
    let early = attempts(&scene, &seed, &seen, 1)?;
    let text = scene.honest()?;
    println!("after it");
    let late = attempts(&scene, &seed, &seen, 101)?;
    if scene.honest()? != text {
        return Err("the attempts changed the text".into());
    }
    match early + late {
        0 => {
            println!("nothing was taken");
            Ok(())
        }
        taken => Err(format!("{taken} attempts got weights").into()),
    }
}
