//! With public parts of the model, two parties write what fixed point writes, and their ledgers equal the plan.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use waggle_fuzz::link::pair;
use waggle_model::{
    GenerateOptions, Input, Known, Lengths, Model, ModelFiles, ModelPart, Next, NoHooks, Sampler, generate,
};
use waggle_mpcache::PolicySpec;
use waggle_net::{Channel, Link, Phase, Role, memory_pair};
use waggle_protocols::audit::unwatched;
use waggle_protocols::{FRAC, Fixed, FixedLoader, Part};
use waggle_session::party::{
    ClientOptions, ClientSession, Limits, ModelServer, Outcome, Peer, Request, SessionPlan, Terms, nobody,
};
use waggle_session::pool::{PoolError, PoolSet, Pools};
use waggle_session::{Base, BaseError, Error};

use crate::outcome::untimed;
use crate::secure::MAX_SECURE_ULPS;

const PROMPT: [u32; 9] = [3, 1, 4, 1, 5, 9, 2, 6, 5];
const LENGTHS: Lengths = Lengths { prompt: PROMPT.len(), tokens: 4 };

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../model/tests/data").join(name)
}

pub(crate) fn base(name: &str) -> Base {
    Base::new(ModelFiles::open(&data("families").join(name)).unwrap()).unwrap()
}

/// The files of the base `name`, with the adapter of the same name if `adapted`.
fn files(name: &str, adapted: bool) -> ModelFiles {
    let files = ModelFiles::open(&data("families").join(name)).unwrap();
    if !adapted {
        return files;
    }
    let checkpoint = files.checkpoint.with_adapter(&data("adapters").join(name), &files.spec).unwrap();
    ModelFiles { checkpoint, ..files }
}

pub(crate) fn served(name: &str, parts: &str, adapted: bool) -> ModelServer {
    ModelServer::builder().public(&parts.parse().unwrap()).load(files(name, adapted)).unwrap()
}

fn terms(preprocess: bool) -> Terms {
    let mut terms = Terms::default();
    terms.protocol.preprocess = preprocess;
    terms
}

/// The results of both parties of a session whose client has `base`.
fn session(
    hosted: &ModelServer,
    terms: &Terms,
    base: Option<&Base>,
    client: impl FnOnce(ClientSession) -> Result<Outcome, Error>,
) -> [Result<Outcome, Error>; 2] {
    over(hosted, terms, base, memory_pair(Duration::from_secs(60)), client)
}

/// [`session`] over a given link.
fn over(
    hosted: &ModelServer,
    terms: &Terms,
    base: Option<&Base>,
    (here, there): (impl Link + 'static, impl Link + 'static),
    client: impl FnOnce(ClientSession) -> Result<Outcome, Error>,
) -> [Result<Outcome, Error>; 2] {
    unwatched(|| {
        std::thread::scope(|scope| {
            let channel = Channel::new(Role::Server, there);
            let server =
                scope.spawn(|| hosted.serve(channel, &Peer::default(), terms, &Limits::default(), &mut nobody));
            let (channel, options) = (Channel::new(Role::Client, here), ClientOptions { base, ..Default::default() });
            let done = ClientSession::open(channel, &Peer::default(), terms, &options).and_then(client);
            [done, server.join().unwrap()]
        })
    })
}

fn generated(hosted: &ModelServer, terms: &Terms, base: Option<&Base>) -> [Result<Outcome, Error>; 2] {
    session(hosted, terms, base, |open| {
        open.generate(&PROMPT[..], LENGTHS.tokens, Next::Pick(&mut Sampler::greedy()), &mut nobody)
    })
}

/// Bytes of the accounts for which `holds` is true.
fn bytes(outcome: &Outcome, holds: impl Fn(Phase, &str) -> bool) -> u64 {
    outcome.entries.iter().filter(|e| holds(e.phase, &e.path)).map(|e| e.traffic.bytes()).sum()
}

/// In one phase and in two: the parties write what fixed point writes, their ledgers are the plan's, and rows of a
/// public table cost no bytes.
#[test]
fn two_parties_are_fixed_point_and_the_plan_is_their_ledger() {
    for (name, parts, adapted) in [
        ("llama3", "all", true),
        ("llama3", "embedding,head", true),
        ("gpt_neox", "all", true),
        ("opt", "embedding,head,layers=1", false),
        ("mistral", "head,layers=0-1", false),
        // The first two layers differ only in that one is public.
        ("mistral", "layers=0", false),
    ] {
        let (hosted, base) = (served(name, parts, adapted), base(name));
        let (files, public) = (files(name, adapted), hosted.public());
        let mut loader = FixedLoader::default();
        let disclosed = &public.disclosure.disclosed;
        let known = Known::All(&files.checkpoint);
        let model =
            Model::load_disclosed(disclosed, &PolicySpec::default(), &mut loader, &files.spec, known).unwrap();
        let options = GenerateOptions { tokens: LENGTHS.tokens, ..GenerateOptions::default() };
        let next = Next::Pick(&mut Sampler::greedy());
        let fixed = generate(&mut Fixed::new(), &model, Input::known(&PROMPT), &options, next, &mut NoHooks).unwrap();
        for two_phases in [false, true] {
            let context = format!("{name}, {parts}, two phases {two_phases}");
            let terms = terms(two_phases);
            let [client, server] = generated(&hosted, &terms, Some(&base)).map(Result::unwrap);
            assert_eq!(client.generation.tokens, fixed.tokens, "{context}");
            let pairs = client.generation.logits.iter().flatten().zip(fixed.logits.iter().flatten());
            let worst = pairs.map(|(secure, fixed)| (secure - fixed).abs()).fold(0.0, f32::max);
            assert!(worst * (1u32 << FRAC) as f32 <= 4.0 * MAX_SECURE_ULPS, "{context}: {worst}");
            let plan = SessionPlan::new(public, &terms).request(LENGTHS);
            let planned = plan.run(&mut nobody).unwrap().outcome;
            assert_eq!(untimed(&client), untimed(&server), "{context}");
            assert_eq!(untimed(&client), untimed(&planned), "{context}");
            if parts == "all" {
                let looked_up = bytes(&client, |_, path| path == "embedding");
                assert_eq!(looked_up, 0, "{context}: the client reads its own rows");
            }
        }
    }
}

/// A copy of the model `name` with one bit of `tensor` changed.
fn changed(name: &str, tensor: &str) -> Base {
    let (from, dir) = (data("families").join(name), tempfile::tempdir().unwrap());
    fs::copy(from.join("config.json"), dir.path().join("config.json")).unwrap();
    let mut bytes = fs::read(from.join("model.safetensors")).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let first = header[tensor]["data_offsets"][0].as_u64().unwrap() as usize;
    bytes[8 + length + first] ^= 1;
    fs::write(dir.path().join("model.safetensors"), bytes).unwrap();
    Base::new(ModelFiles::open(dir.path()).unwrap()).unwrap()
}

/// Both parties say which part differs, right after the handshake.
#[test]
fn a_client_with_another_base_is_refused_before_anything_is_sent() {
    let hosted = served("mistral", "embedding,layers=1-2", false);
    let layer = changed("mistral", "model.layers.1.mlp.up_proj.weight");
    let norm = changed("mistral", "model.layers.2.input_layernorm.weight");
    let private = changed("mistral", "model.layers.0.mlp.up_proj.weight");
    for (base, part) in [(&layer, ModelPart::Layer(1)), (&norm, ModelPart::Layer(2))] {
        let (here, there, watch) = pair(None);
        let refused = over(&hosted, &Terms::default(), Some(base), (here, there), |_| unreachable!("refused"));
        for refused in refused {
            let Err(Error::Base(BaseError::Differs { part: of, client, server })) = refused else {
                panic!("{refused:?}")
            };
            assert!(of == part && client != server && client.len() == 64);
        }
        let sent = [Role::Client, Role::Server].map(|role| watch.messages(role));
        assert_eq!(sent, [1, 1], "the handshake alone");
    }
    // Private tensors may differ, and so may a part that is not public.
    let [client, _] = generated(&hosted, &Terms::default(), Some(&private));
    let truth = generated(&hosted, &Terms::default(), Some(&base("mistral"))).map(Result::unwrap);
    assert_eq!(client.unwrap().generation.tokens, truth[0].generation.tokens);
    for refused in generated(&hosted, &Terms::default(), None) {
        assert!(matches!(refused, Err(Error::Base(BaseError::Missing { .. }))), "{refused:?}");
    }
    for refused in generated(&served("mistral", "", false), &Terms::default(), Some(&private)) {
        assert!(matches!(refused, Err(Error::Base(BaseError::Unused))), "{refused:?}");
    }
    let [client, _] = generated(&hosted, &Terms::default(), Some(&base("llama3")));
    assert!(matches!(client, Err(Error::Net(waggle_net::NetError::Disagreement { .. }))), "{client:?}");
}

/// Parts that a model does not have are refused by name when it is loaded.
#[test]
fn a_server_names_parts_that_there_are() {
    let load =
        |name: &str, parts: &str| ModelServer::builder().public(&parts.parse().unwrap()).load(files(name, false));
    let refused =
        |name: &str, parts: &str| load(name, parts).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(refused("mistral", "layers=2-3").contains("there is no layer 3: the model has 3"));
    assert!(refused("llama3", "head").contains("its embedding"));
    assert!(load("llama3", "head,embedding").is_ok());
}

/// A pool belongs to one base, and holds no correlations for the base's matrices.
#[test]
fn pools_know_the_base() {
    let dir = tempfile::tempdir().unwrap();
    let (path, kept) = (dir.path().join("client.pool"), dir.path().join("server"));
    let (terms, own) = (terms(true), base("llama3"));
    let with_pools = |parts: &str| served("llama3", parts, true).with_pools(Pools::open(&kept, 4).unwrap());
    let hosted = with_pools("all");
    let fill = |hosted: &ModelServer, base: Option<&Base>| {
        let [client, server] =
            session(hosted, &terms, base, |open| open.fill(LENGTHS, &path, &mut nobody)).map(Result::unwrap);
        let request = Request::from(LENGTHS);
        let plan = SessionPlan::new(hosted.public(), &terms).request(request).filling(Part::WHOLE);
        let planned = plan.run(&mut nobody).unwrap().outcome;
        assert_eq!(untimed(&client), untimed(&planned));
        assert_eq!(untimed(&client), untimed(&server));
        fs::metadata(&path).unwrap().len()
    };
    let spend = |hosted: &ModelServer, base: Option<&Base>| {
        session(hosted, &terms, base, |open| {
            let (pool, next) = (PoolSet::open(&path, Role::Client)?, Next::Pick(&mut Sampler::greedy()));
            open.spend(pool, &PROMPT[..], LENGTHS.tokens, next, &mut nobody)
        })
    };
    let small = fill(&hosted, Some(&own));
    let private = with_pools("");
    let [client, _] = spend(&private, None);
    assert!(matches!(client, Err(Error::PoolFile { source: PoolError::Mismatch { .. }, .. })), "{client:?}");
    let [client, _] = spend(&hosted, Some(&own)).map(Result::unwrap);
    assert_eq!(
        client.generation.tokens,
        generated(&hosted, &terms, Some(&own)).map(Result::unwrap)[0].generation.tokens
    );
    let whole = fill(&private, None);
    assert!(small < whole, "{small} of {whole} bytes");
}
