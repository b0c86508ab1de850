//! Two parties with a helper compute what two parties alone compute, all three ledgers equal the plan, and failures
//! are named.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use waggle_model::{Disclosed, Drafts, GenerateOptions, Lengths, ModelSpec, Next, Reveal, Sampler, bundled, shape};
use waggle_mpcache::PolicySpec;
use waggle_net::{Channel, Entry, Link, NetError, Phase, Role, memory_pair};
use waggle_protocols::audit::unwatched;
use waggle_protocols::{HelperDeals, Part};
use waggle_session::Error;
use waggle_session::party::{
    ClientOptions, ClientSession, DealtSession, Limits, ModelServer, Outcome, Pairing, Peer, PublicModel, Request,
    SessionPlan, Terms, ToHelper, nobody,
};
use waggle_session::pool::{PoolError, PoolSet, Pools, part_path};

use crate::hostile;
use crate::outcome::{late, untimed};
use crate::pools::{both, states};
use crate::support::{greedy, load, sampled};

const PROMPT: [u32; 4] = [30, 27, 25, 17];
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Room for the halves of a model's weights.
pub(crate) const ROOM: u64 = 1 << 30;
pub(crate) const KEYS: [&str; 2] = ["the client's key", "the server's key"];
const HELPER: &str = "the helper's key";

/// Terms of a session whose helper deals what `helper` says.
pub(crate) fn dealing(helper: HelperDeals) -> Terms {
    let mut terms = Terms { helper: Some(HELPER.into()), ..Terms::default() };
    terms.protocol.preprocess = true;
    terms.protocol.helper = helper;
    terms
}

fn terms() -> Terms {
    dealing(HelperDeals::Words)
}

fn peer(key: &str) -> Peer {
    Peer { key: Some(key.into()) }
}

pub(crate) type Dealt = Result<Option<DealtSession>, Error>;

/// The way of a party that proves `key` to the helper. `ended` hears how the helper's call for the party ended.
fn way(pairing: &Arc<Pairing>, key: &'static str, ended: &mpsc::Sender<Dealt>, harm: Harm) -> ToHelper {
    let (pairing, ended) = (pairing.clone(), Mutex::new(ended.clone()));
    ToHelper::new(Some(key.into()), move || {
        let (here, there) = memory_pair(PATIENCE);
        let (pairing, ended) = (pairing.clone(), ended.lock().unwrap().clone());
        thread::spawn(move || {
            let channel = Channel::new(Role::Server, Harmed { link: there, harm });
            ended.send(pairing.attend(channel, &peer(key)))
        });
        Ok(Channel::new(Role::Client, here))
    })
}

/// The harm that is done to a link to a helper.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Harm {
    None,
    /// The helper dies after this many writes.
    Dies(usize),
    /// A bit of the first long write changes on its way.
    Flips,
}

struct Harmed<L> {
    link: L,
    harm: Harm,
}

impl<L: Link> Link for Harmed<L> {
    fn send(&mut self, mut bytes: Vec<u8>) -> std::io::Result<()> {
        match &mut self.harm {
            Harm::Dies(0) => return Err(std::io::ErrorKind::BrokenPipe.into()),
            Harm::Dies(left) => *left -= 1,
            Harm::Flips if bytes.len() > 1000 => {
                *bytes.last_mut().unwrap() ^= 1;
                self.harm = Harm::None;
            }
            Harm::None | Harm::Flips => {}
        }
        self.link.send(bytes)
    }

    fn recv(&mut self, buf: &mut [u8]) -> std::io::Result<()> {
        if self.harm == Harm::Dies(0) { Err(std::io::ErrorKind::UnexpectedEof.into()) } else { self.link.recv(buf) }
    }

    fn timeout(&self) -> Duration {
        self.link.timeout()
    }
}

/// A session whose parties prove `keys` to the helper. The helper waits for a party at most `patience`.
fn session(
    keys: [&'static str; 2],
    patience: Duration,
    harm: Harm,
    lost: Option<Role>,
) -> ([Result<Outcome, Error>; 2], Vec<Dealt>, ModelServer) {
    let pairing = Arc::new(Pairing::new(Some(HELPER), patience, ROOM));
    let hosted = ModelServer::builder().load(bundled("shakespeare-llama").unwrap()).unwrap();
    session_of(&pairing, hosted, &terms(), 2, keys, harm, lost)
}

/// A session under `terms` with the model of `hosted`, and what became of it.
fn session_of(
    pairing: &Arc<Pairing>,
    hosted: ModelServer,
    terms: &Terms,
    tokens: usize,
    keys: [&'static str; 2],
    harm: Harm,
    lost: Option<Role>,
) -> ([Result<Outcome, Error>; 2], Vec<Dealt>, ModelServer) {
    let mut sampler = Sampler::greedy();
    let generate = |session: ClientSession| session.generate(&PROMPT, tokens, Next::Pick(&mut sampler), &mut nobody);
    helped(pairing, hosted, terms, keys, harm, lost, generate)
}

/// [`session_of`], in which the client calls `run`.
pub(crate) fn helped(
    pairing: &Arc<Pairing>,
    hosted: ModelServer,
    terms: &Terms,
    keys: [&'static str; 2],
    harm: Harm,
    lost: Option<Role>,
    run: impl FnOnce(ClientSession) -> Result<Outcome, Error>,
) -> ([Result<Outcome, Error>; 2], Vec<Dealt>, ModelServer) {
    let (ended, ends) = mpsc::channel();
    let ways = keys.map(|key| way(pairing, key, &ended, harm));
    let [ours, theirs] = [Role::Client, Role::Server]
        .map(|role| if lost == Some(role) { nowhere() } else { ways[role as usize].clone() });
    drop((ways, ended));
    let hosted = hosted.with_helper(theirs);
    let outcomes = parties(&hosted, [terms, terms], |session| run(session.with_helper(ours)));
    let calls = if lost.is_some() { 1 } else { 2 };
    let ends = (0..calls).map(|_| ends.recv_timeout(PATIENCE).unwrap()).collect();
    (outcomes, ends, hosted)
}

/// The way to a helper that cannot be reached.
fn nowhere() -> ToHelper {
    ToHelper::new(None, || Err(NetError::Closed { step: "on the way to the helper" }))
}

/// A session of a client and `hosted` with these terms, in which the client calls `run`.
fn parties(
    hosted: &ModelServer,
    [ours, theirs]: [&Terms; 2],
    run: impl FnOnce(ClientSession) -> Result<Outcome, Error>,
) -> [Result<Outcome, Error>; 2] {
    let (here, there) = memory_pair(PATIENCE);
    unwatched(|| {
        thread::scope(|scope| {
            let server = scope.spawn(|| {
                let channel = Channel::new(Role::Server, there);
                hosted.serve(channel, &peer(KEYS[0]), theirs, &Limits::default(), &mut nobody)
            });
            let channel = Channel::new(Role::Client, here);
            let open = ClientSession::open(channel, &peer(KEYS[1]), ours, &ClientOptions::default());
            [open.and_then(run), server.join().unwrap()]
        })
    })
}

/// The accounts of the links of client and server to the helper, each as the party saw it, as it was planned, and as
/// the helper saw it.
fn links(client: &Outcome, server: &Outcome, planned: &Outcome, ends: Vec<Dealt>) -> [[Vec<Entry>; 3]; 2] {
    let dealt = ends.into_iter().find_map(|end| end.unwrap()).unwrap();
    let own = [&client.helper[0], &server.helper[1]];
    [0, 1].map(|role| {
        let [own, planned] = [own[role], &planned.helper[role]].map(|link| bare(link.as_ref().unwrap()));
        [own, planned, bare(&dealt.entries[role])]
    })
}

fn bare(entries: &[Entry]) -> Vec<Entry> {
    let bare = |entry: &Entry| Entry { traffic: entry.traffic.untimed(), ..entry.clone() };
    entries.iter().map(bare).filter(|entry| entry.traffic != Default::default()).collect()
}

/// Paths, bytes and messages of the accounts of phase `offline`.
fn offline(entries: &[Entry]) -> Vec<(String, u64, u64)> {
    let offline = entries.iter().filter(|entry| entry.phase == Phase::Offline);
    offline.map(|entry| (entry.path.to_string(), entry.traffic.bytes(), entry.traffic.messages)).collect()
}

#[test]
fn a_session_with_a_helper_gives_the_plaintext_and_all_ledgers_are_the_plan() {
    let (outcomes, ends, hosted) = session(KEYS, PATIENCE, Harm::None, None);
    let [client, server] = outcomes.map(|outcome| outcome.unwrap());
    let truth = greedy(&load(bundled("shakespeare-llama").unwrap()), &PROMPT, 2);
    assert_eq!(client.generation.tokens, truth.tokens);
    let request = Request::from(Lengths { prompt: 4, tokens: 2 });
    let planned = SessionPlan::new(hosted.public(), &terms()).request(request).run(&mut nobody).unwrap().outcome;
    assert_eq!(untimed(&client), untimed(&server));
    assert_eq!(untimed(&client), untimed(&planned));
    for (role, [own, planned, at_helper]) in links(&client, &server, &planned, ends).into_iter().enumerate() {
        assert_eq!(own, planned, "party {role}");
        assert_eq!(own, at_helper, "party {role}, at the helper");
    }
    // Only products with weights and OTs are made between the two parties.
    assert!(client.kinds.iter().all(|entry| ["linear", "OTs"].contains(&&*entry.path) || entry.traffic.bytes() == 0));
}

#[test]
fn a_helper_that_deals_products_with_weights_gets_its_halves_once() {
    let terms = dealing(HelperDeals::Weights);
    let pairing = Arc::new(Pairing::new(Some(HELPER), PATIENCE, ROOM));
    let mut hosted = ModelServer::builder().load(bundled("shakespeare-llama").unwrap()).unwrap();
    let truth = greedy(&load(bundled("shakespeare-llama").unwrap()), &PROMPT, 2);
    let request = Request::from(Lengths { prompt: 4, tokens: 2 });
    let planned = SessionPlan::new(hosted.public(), &terms).request(request).run(&mut nobody).unwrap().outcome;
    for first in [true, false] {
        let (outcomes, ends, back) = session_of(&pairing, hosted, &terms, 2, KEYS, Harm::None, None);
        hosted = back;
        let [client, server] = outcomes.map(|outcome| outcome.unwrap());
        assert_eq!(client.generation.tokens, truth.tokens);
        assert_eq!(untimed(&client), untimed(&server));
        assert_eq!(untimed(&client), untimed(&planned));
        // No product with a weight is made between the two parties.
        assert!(client.kinds.iter().all(|entry| entry.path == "OTs" || entry.traffic.bytes() == 0));
        let dealt = ends.into_iter().find_map(|end| end.unwrap()).unwrap();
        let [own_client, own_server] = [&client.helper[0], &server.helper[1]].map(|link| link.as_ref().unwrap());
        for (role, own) in [own_client, own_server].into_iter().enumerate() {
            let plan = planned.helper[role].as_ref().unwrap();
            assert_eq!(bare(own), bare(&dealt.entries[role]), "party {role}, at the helper");
            match first {
                true => assert_eq!(bare(own), bare(plan), "party {role}"),
                // Only the halves and the list of missing halves are left out.
                false => assert_eq!(offline(own), offline(plan), "party {role}"),
            }
        }
        let halves = |entries: &[Entry]| entries.iter().any(|entry| entry.path.ends_with("weights"));
        assert_eq!((halves(own_server), halves(own_client)), (first, false));
    }
}

/// A session of three parties with `policy` gives the text of the plaintext, and everything in it was planned.
fn three_parties(policy: &PolicySpec) {
    let terms = Terms { policy: policy.clone(), ..dealing(HelperDeals::Passes) };
    let hosted = ModelServer::builder().policy(policy).load(bundled("shakespeare-llama").unwrap()).unwrap();
    let request = Request::from(Lengths { prompt: 4, tokens: 3 });
    let planned = SessionPlan::new(hosted.public(), &terms).request(request).run(&mut nobody).unwrap().outcome;
    let pairing = Arc::new(Pairing::new(Some(HELPER), PATIENCE, ROOM));
    let (outcomes, ends, _) = session_of(&pairing, hosted, &terms, 3, KEYS, Harm::None, None);
    let [client, server] = outcomes.map(|outcome| outcome.unwrap());
    assert!(untimed(&client) == untimed(&server), "{policy}: both ledgers");
    assert!(policy.random_traffic() || untimed(&client) == untimed(&planned), "{policy}: the plan");
    assert!(client.kinds.iter().all(|entry| entry.phase != Phase::Offline || entry.path == "OTs"), "{policy}");
    for (role, [own, planned, at_helper]) in links(&client, &server, &planned, ends).into_iter().enumerate() {
        assert_eq!(own, planned, "{policy}: party {role}");
        assert_eq!(own, at_helper, "{policy}: party {role}, at the helper");
        let phases = |phase| own.iter().any(|entry| entry.phase == phase && entry.traffic.bytes() > 0);
        assert!(phases(Phase::Prefill) && phases(Phase::Decode) && !phases(Phase::Offline));
    }
    let options = GenerateOptions { tokens: 3, policy: policy.clone(), ..GenerateOptions::default() };
    let model = load(bundled("shakespeare-llama").unwrap());
    let truth = sampled(&model, &PROMPT, &options, &mut Sampler::greedy()).unwrap();
    assert_eq!(client.generation.tokens, truth.tokens, "{policy}");
}

#[test]
fn three_parties_need_no_preparation_and_give_the_plaintext() {
    three_parties(&PolicySpec::default());
}

#[test]
fn three_parties_have_all_policies_of_two() {
    for policy in hostile::policies().into_iter().filter(|policy| policy.scoring_head().is_none()) {
        three_parties(&policy);
    }
}

/// No model of a known size takes more than a helper deals.
#[test]
fn a_helper_deals_long_prompts() {
    let spec = ModelSpec::from_config_json(shape("gpt2").unwrap()).unwrap();
    let public = PublicModel::of_shape("gpt2".into(), spec, Disclosed::default()).unwrap();
    for deals in [HelperDeals::Words, HelperDeals::Passes] {
        let request = Request::from(Lengths { prompt: 700, tokens: 2 });
        SessionPlan::new(&public, &dealing(deals)).request(request).run(&mut nobody).unwrap();
    }
}

#[test]
fn three_parties_take_no_guesses() {
    let hosted = ModelServer::builder().load(bundled("shakespeare-llama").unwrap()).unwrap();
    let request = Request { draft: Some(Drafts::new(2, 1.5).unwrap()), ..Lengths { prompt: 4, tokens: 3 }.into() };
    let planned = SessionPlan::new(hosted.public(), &dealing(HelperDeals::Passes)).request(request).run(&mut nobody);
    assert!(matches!(planned, Err(Error::PassesDraft)));
}

#[test]
fn a_helper_without_room_for_halves_says_so() {
    let pairing = Arc::new(Pairing::new(Some(HELPER), PATIENCE, 1 << 20));
    let hosted = ModelServer::builder().load(bundled("shakespeare-llama").unwrap()).unwrap();
    let (outcomes, ..) = session_of(&pairing, hosted, &dealing(HelperDeals::Weights), 2, KEYS, Harm::None, None);
    for party in outcomes {
        let error = party.map(|_| ()).unwrap_err();
        assert!(matches!(&error, Error::HelperRefused { reason } if reason.contains("has room for")), "{error}");
    }
}

#[test]
fn a_stranger_gets_no_half() {
    let ([client, server], ends, _) = session([KEYS[0], "a stranger's key"], PATIENCE, Harm::None, None);
    for party in [client, server] {
        let error = party.map(|_| ()).unwrap_err();
        assert!(matches!(&error, Error::HelperRefused { reason } if reason.contains("key")), "{error}");
    }
    assert!(ends.iter().any(|end| matches!(end, Err(Error::HelperRefused { .. }))));
}

#[test]
fn a_helper_that_fails_ends_the_session_by_its_name() {
    let ([client, server], ..) = session(KEYS, PATIENCE, Harm::Dies(2), None);
    for party in [client, server] {
        let error = party.map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("the helper: "), "{error}");
    }
}

#[test]
fn a_changed_bit_of_what_a_helper_deals_ends_the_session() {
    for deals in [HelperDeals::Words, HelperDeals::Weights, HelperDeals::Passes] {
        let pairing = Arc::new(Pairing::new(Some(HELPER), PATIENCE, ROOM));
        let hosted = ModelServer::builder().load(bundled("shakespeare-llama").unwrap()).unwrap();
        let (outcomes, ..) = session_of(&pairing, hosted, &dealing(deals), 2, KEYS, Harm::Flips, None);
        let errors = outcomes.map(|outcome| outcome.map(|_| ()).unwrap_err().to_string());
        assert!(
            errors.iter().any(|error| error.contains("the helper: ") && error.contains("same messages")),
            "{deals:?}: {errors:?}"
        );
    }
}

#[test]
fn a_party_without_a_way_to_the_helper_ends_the_session() {
    for lost in [Role::Client, Role::Server] {
        let (outcomes, ends, _) = session(KEYS, Duration::from_millis(200), Harm::None, Some(lost));
        let errors = outcomes.map(|outcome| outcome.map(|_| ()).unwrap_err());
        let (without, other) = (&errors[lost as usize], &errors[lost.peer() as usize]);
        assert!(without.to_string().starts_with("the helper: "), "{without}");
        assert!(matches!(other, Error::HelperRefused { reason } if reason.contains("did not come")), "{other}");
        assert!(matches!(ends[..], [Err(Error::HelperRefused { .. })]));
    }
}

/// The longest generation of the pools of these tests.
const BOUND: Lengths = Lengths { prompt: 4, tokens: 3 };

/// A server that keeps its files of pools in `dir`, and the path of the client's file beside them.
fn keeping(dir: &Path) -> (ModelServer, PathBuf) {
    let hosted = ModelServer::builder().load(bundled("shakespeare-llama").unwrap()).unwrap();
    (hosted.with_pools(Pools::open(&dir.join("server"), 4).unwrap()), dir.join("client.pool"))
}

/// Spends the client's pool at `path`, although no party reaches the helper that its terms name.
fn spend(
    hosted: &ModelServer,
    path: &Path,
    terms: [&Terms; 2],
    prompt: &[u32],
    tokens: usize,
) -> [Result<Outcome, Error>; 2] {
    parties(hosted, terms, |session| {
        let pool = PoolSet::open(path, Role::Client)?;
        let mut sampler = Sampler::greedy();
        session.with_helper(nowhere()).spend(pool, prompt, tokens, Next::Pick(&mut sampler), &mut nobody)
    })
}

/// A pool in `of` parts that a helper dealt gives the text of the plaintext when the helper is gone, and everything
/// was planned.
fn a_dealt_pool(deals: HelperDeals, of: u32, reveal: Reveal, prompt: &[u32], tokens: usize) {
    let dir = tempfile::tempdir().unwrap();
    let (mut hosted, path) = keeping(dir.path());
    let terms = Terms { reveal, ..dealing(deals) };
    let alone = if deals.weights() { &["OTs"][..] } else { &["linear", "OTs"] };
    let first = Part::new(1, of).unwrap();
    for part in first.all() {
        let at = part_path(&path, part);
        // A helper that has halves of weights already takes fewer bytes than its plan.
        let pairing = Arc::new(Pairing::new(Some(HELPER), PATIENCE, ROOM));
        let fill = |session: ClientSession| session.fill_part(BOUND, part, &at, &mut nobody);
        let (outcomes, ends, back) = helped(&pairing, hosted, &terms, KEYS, Harm::None, None, fill);
        hosted = back;
        let [client, server] = both(outcomes);
        let plan = SessionPlan::new(hosted.public(), &terms).request(BOUND).filling(part);
        let planned = plan.run(&mut nobody).unwrap().outcome;
        assert_eq!(untimed(&client), untimed(&server), "{deals:?}, part {part}");
        assert_eq!(untimed(&client), untimed(&planned), "{deals:?}, part {part}");
        assert!(client.kinds.iter().all(|entry| alone.contains(&&*entry.path) || entry.traffic.bytes() == 0));
        for (role, [own, planned, at_helper]) in links(&client, &server, &planned, ends).into_iter().enumerate() {
            assert_eq!(own, planned, "{deals:?}, part {part}: party {role}");
            assert_eq!(own, at_helper, "{deals:?}, part {part}: party {role}, at the helper");
        }
    }
    hosted = hosted.with_helper(nowhere());
    let [client, server] = both(spend(&hosted, &path, [&terms, &terms], prompt, tokens));
    let truth = greedy(&load(bundled("shakespeare-llama").unwrap()), prompt, tokens);
    assert_eq!(client.generation.tokens, truth.tokens, "{deals:?}");
    let lengths = Lengths { prompt: prompt.len(), tokens };
    let plan = SessionPlan::new(hosted.public(), &terms).request(lengths).spending(BOUND, first);
    let planned = plan.run(&mut nobody).unwrap().outcome;
    assert_eq!(untimed(&client), untimed(&server), "{deals:?}");
    assert_eq!(untimed(&client), untimed(&planned), "{deals:?}");
    assert!(client.kinds.iter().all(|entry| entry.path == "OTs"), "{:#?}", client.kinds);
    // Masks that fit only another length of the prompt are made on the spot, by the two parties.
    assert_eq!(late(&client) > 0, prompt.len() < BOUND.prompt, "{deals:?}");
    for outcome in [client, server, planned] {
        assert_eq!(outcome.helper, [None, None], "{deals:?}");
    }
}

#[test]
fn a_pool_that_a_helper_dealt_serves_when_it_is_gone() {
    for deals in [HelperDeals::Words, HelperDeals::Weights] {
        a_dealt_pool(deals, 1, Reveal::Token, &PROMPT, 3);
        a_dealt_pool(deals, 3, Reveal::Logits, &PROMPT[..3], 2);
    }
}

#[test]
fn a_pool_whose_helper_fails_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let (mut hosted, path) = keeping(dir.path());
    let pairing = Arc::new(Pairing::new(Some(HELPER), PATIENCE, ROOM));
    for (keys, harm, words) in [
        ([KEYS[0], "a stranger's key"], Harm::None, "key"),
        (KEYS, Harm::Dies(2), "the helper: "),
        (KEYS, Harm::Flips, "same messages"),
    ] {
        let fill = |session: ClientSession| session.fill(BOUND, &path, &mut nobody);
        let (outcomes, _, back) = helped(&pairing, hosted, &terms(), keys, harm, None, fill);
        hosted = back;
        let errors = outcomes.map(|outcome| outcome.map(|_| ()).unwrap_err().to_string());
        assert!(errors.iter().any(|error| error.contains(words)), "{errors:?}");
        assert!(states(dir.path()).is_empty() && states(&dir.path().join("server")).is_empty(), "{words}");
    }
}

/// The helper that dealt a pool knows its words, so both parties name this helper again when they spend the pool.
#[test]
fn a_pool_is_spent_with_the_helper_that_dealt_it() {
    let dir = tempfile::tempdir().unwrap();
    let (hosted, path) = keeping(dir.path());
    let pairing = Arc::new(Pairing::new(Some(HELPER), PATIENCE, ROOM));
    let without = Terms { helper: None, ..dealing(HelperDeals::Nothing) };
    let other = Terms { helper: Some("another helper's key".into()), ..terms() };
    let refused = |hosted: &ModelServer, terms: &Terms, names: &[&str]| {
        let [client, server] = spend(hosted, &path, [terms, terms], &PROMPT, 2);
        let Err(Error::PoolFile { source: PoolError::Mismatch { differences }, .. }) = client else {
            panic!("{client:?}")
        };
        // Some operations take other words with a helper, so that the layout may differ, too.
        let mut found: Vec<&str> = differences.iter().map(|difference| &*difference.name).collect();
        found.sort_unstable();
        assert!(found.starts_with(names) && found[names.len()..].iter().all(|name| *name == "layout"), "{found:?}");
        assert!(server.is_err());
    };
    let fill = |session: ClientSession| session.fill(BOUND, &path, &mut nobody);
    let (outcomes, _, hosted) = helped(&pairing, hosted, &terms(), KEYS, Harm::None, None, fill);
    both(outcomes);
    refused(&hosted, &without, &["helper", "helper-deals"]);
    refused(&hosted, &other, &["helper"]);
    refused(&hosted, &dealing(HelperDeals::Weights), &["helper-deals"]);
    // The handshake fails before the pool is looked at.
    let [client, server] = spend(&hosted, &path, [&without, &terms()], &PROMPT, 2);
    assert!([client, server].iter().all(|end| matches!(end, Err(Error::Net(NetError::Disagreement { .. })))));
    both(spend(&hosted, &path, [&terms(), &terms()], &PROMPT, 2));

    both(parties(&hosted, [&without, &without], fill));
    refused(&hosted, &terms(), &["helper", "helper-deals"]);
}

#[test]
fn conversations_take_no_helper_and_three_parties_no_pool() {
    let dir = tempfile::tempdir().unwrap();
    let (hosted, path) = keeping(dir.path());
    let passes = dealing(HelperDeals::Passes);
    let filling = SessionPlan::new(hosted.public(), &passes).request(BOUND).filling(Part::WHOLE);
    assert!(matches!(filling.run(&mut nobody), Err(Error::PassesPool)));
    let [client, _] = parties(&hosted, [&passes, &passes], |session| session.fill(BOUND, &path, &mut nobody));
    assert!(matches!(client, Err(Error::PassesPool)), "{client:?}");
    let [client, _] = parties(&hosted, [&terms(), &terms()], |session| {
        session.chat(BOUND, &mut nobody).map(|_| Outcome::default())
    });
    assert!(matches!(client, Err(Error::HelperChat)), "{client:?}");
}
