//! Texts behind public tokens, between two parties: the text of fixed point, and the bytes of the plan.

use std::path::PathBuf;

use waggle_model::{
    GenerateOptions, Input, Lengths, Model, ModelFiles, Next, NoHooks, Sampler, bundled, generate, generate_with,
};
use waggle_mpcache::{PolicySpec, Prefix};
use waggle_net::Role;
use waggle_protocols::{Fixed, FixedLoader, FixedWeight};
use waggle_session::party::{Limits, ModelServer, Outcome, Request, SessionPlan, Terms, nobody};
use waggle_session::pool::{PoolError, PoolSet, Pools};
use waggle_session::{Error, PublicPrefix};

use crate::outcome::{late, terms, untimed};
use crate::parties::{load_fixed, session};
use crate::secure::MAX_SECURE_ULPS;

fn policy(text: &str) -> PolicySpec {
    text.parse().unwrap()
}

fn words(files: &ModelFiles, from: u32, count: usize) -> Vec<u32> {
    (from..).take(count).map(|i| (7 * i * i + 3 * i + 1) % files.spec.vocabulary() as u32).collect()
}

/// A bundled model, or the tiny model of a family.
fn open(name: &str) -> ModelFiles {
    let families = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../model/tests/data/families"));
    bundled(name).or_else(|_| ModelFiles::open(&families.join(name))).unwrap()
}

/// The model behind `prefix` as the server has it.
fn behind(files: &ModelFiles, prefix: &PublicPrefix) -> Model<FixedWeight> {
    let (model, _) = load_fixed(&files.spec, Some(&files.checkpoint), &[]);
    let ids = prefix.ids();
    let layers = model.read_prefix(&mut Fixed::new(), Input::known(ids), ids.len(), prefix.policy()).unwrap();
    let loaded = Prefix::load("of the test", ids.len(), &layers, &mut FixedLoader::default()).unwrap();
    model.after(loaded.into())
}

/// Runs a session of the model `name` behind `prefix`, and holds it against fixed point and the plan.
fn agree(name: &str, terms: &Terms, prefix: &PublicPrefix, prompt: &[u32]) {
    let (tokens, what) = (4, format!("{name}, {}, {}", terms.policy, terms.protocol.preprocess));
    let hosted = ModelServer::builder().policy(&terms.policy).load(open(name)).unwrap();
    let next = || Next::Pick(Box::leak(Box::new(Sampler::greedy())));
    let (client, server) = session(&hosted, terms, &Limits::default(), |session| {
        session.behind(prefix.clone()).generate(prompt, tokens, next(), &mut nobody)
    });
    let (client, server) = (client.unwrap(), server.unwrap());

    let model = behind(&open(name), prefix);
    let options = GenerateOptions { tokens, policy: terms.policy.clone(), ..crate::support::fine() };
    let fixed = generate(&mut Fixed::new(), &model, Input::known(prompt), &options, next(), &mut NoHooks).unwrap();
    assert_eq!(client.generation.tokens, fixed.tokens, "{what}");
    let logits = client.generation.logits.as_ref().unwrap().iter().zip(fixed.logits.as_ref().unwrap());
    let worst = logits.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) * (1u32 << waggle_protocols::FRAC) as f32;
    assert!(worst <= MAX_SECURE_ULPS, "{what}: {worst} ulps");

    assert_eq!(untimed(&client), untimed(&server), "{what}");
    assert!(server.generation.tokens.is_empty() && server.generation.logits.is_none());
    let lengths = Lengths { prompt: prompt.len(), tokens };
    let planned = SessionPlan::new(hosted.public(), &client.terms).request(lengths).run(&mut nobody).unwrap();
    let random = terms.policy.random_traffic();
    assert!(random || untimed(&planned.outcome) == untimed(&client), "{what}: the plan");
    let clusters = terms.policy.to_string().starts_with("mpcache");
    assert!(!terms.protocol.preprocess || clusters || late(&client) == 0, "{what}: made on the spot");
}

/// Families with windows, with sinks and caps and with groups of queries, and the bundled shapes.
#[test]
fn a_text_behind_public_tokens_is_that_of_fixed_point() {
    let models = ["gemma2", "granite-sinks", "qwen2-window", "shakespeare-gpt2", "stories260k"];
    for name in models {
        let files = open(name);
        let prefix = PublicPrefix::new(words(&files, 3, 21), PolicySpec::default());
        for preprocess in [true, false] {
            agree(name, &terms("full", preprocess), &prefix, &words(&files, 50, 5));
        }
    }
}

/// Policies of the text, and one that prunes the prefix.
#[test]
fn policies_act_behind_public_tokens() {
    let files = bundled("shakespeare-llama").unwrap();
    let prompt = words(&files, 9, 14);
    for (at, name) in [
        "streaming:budget=8,sinks=1",
        "duo:heads=1,block=2,budget=0.5",
        "snapkv:budget=0.5,window=3,guard=0.2",
        "keyformer:budget=0.5,recent=3",
        "mpcache:clusters=4/2,budget=0.5",
        "mpcache-scores:budget=0.5",
    ]
    .into_iter()
    .enumerate()
    {
        let of_prefix = policy(if at % 2 == 0 { "full" } else { "snapkv:budget=0.5,window=3" });
        let prefix = PublicPrefix::new(words(&files, 30, 16), of_prefix);
        agree("shakespeare-llama", &terms(name, at % 3 > 0), &prefix, &prompt);
    }
}

#[test]
fn turns_of_a_chat_go_on_behind_public_tokens() {
    let files = bundled("shakespeare-llama").unwrap();
    let prefix = PublicPrefix::new(words(&files, 3, 20), PolicySpec::default());
    let (model, turns) = (behind(&files, &prefix), [words(&files, 40, 6), words(&files, 60, 3)]);
    let mut cache = model.cache(&PolicySpec::default());
    let mut last = None;
    let truth = turns.each_ref().map(|words| {
        let ids: Vec<u32> = last.into_iter().chain(words.iter().copied()).collect();
        let options = GenerateOptions { tokens: 3, ..crate::support::fine() };
        let (engine, input) = (&mut Fixed::new(), Input::known(&ids));
        let next = Next::Pick(&mut Sampler::greedy());
        let got = generate_with(engine, &model, &mut cache, input, &options, next, &mut NoHooks).unwrap().tokens;
        last = got.last().copied();
        got
    });
    let hosted = ModelServer::builder().load(files).unwrap();
    for preprocess in [false, true] {
        let (talked, server) = session(&hosted, &terms("full", preprocess), &Limits::default(), |session| {
            let mut chat = session.behind(prefix.clone()).chat(Lengths { prompt: 8, tokens: 4 }, &mut nobody)?;
            for (words, truth) in turns.iter().zip(&truth) {
                let turn = chat.turn(words, 3, Next::Pick(&mut Sampler::greedy()), &mut nobody)?;
                assert_eq!(turn.generation.tokens, *truth);
            }
            chat.finish()
        });
        talked.unwrap();
        server.unwrap();
    }
}

/// A server's offer is known by its digest, and a session that takes it sends none of its tokens up.
#[test]
fn a_server_offers_public_tokens() {
    let files = bundled("shakespeare-gpt2").unwrap();
    let offer = PublicPrefix::new(words(&files, 3, 24), policy("snapkv:budget=0.5,window=3"));
    let prompt = words(&files, 40, 4);
    let hosted = ModelServer::builder().load(files).unwrap().with_offer(Some(offer.clone())).unwrap();
    let run = |own: Option<PublicPrefix>| -> Outcome {
        let (client, server) = session(&hosted, &terms("full", false), &Limits::default(), |session| {
            assert_eq!(session.model().offer.as_ref().unwrap().digest(), offer.digest());
            let taken = own.clone().or(session.model().offer.clone());
            session.behind(taken).generate(&prompt, 2, Next::Pick(&mut Sampler::greedy()), &mut nobody)
        });
        server.unwrap();
        client.unwrap()
    };
    let up = |outcome: &Outcome| -> u64 {
        let request = outcome.entries.iter().filter(|entry| entry.path.ends_with("handshake"));
        request.map(|entry| entry.traffic.bytes_client_to_server).sum()
    };
    let taken = run(None);
    let own = run(Some(PublicPrefix::new(offer.ids(), PolicySpec::default())));
    assert!(up(&taken) + 4 * 24 < up(&own), "{} and {}", up(&taken), up(&own));
    assert!(taken.generation.logits != own.generation.logits, "the offer is pruned");
}

#[test]
fn a_pool_belongs_to_its_public_tokens() {
    let files = bundled("shakespeare-gpt2").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("client.pool");
    let [one, other] = [3, 4].map(|from| PublicPrefix::new(words(&files, from, 12), PolicySpec::default()));
    let (model, prompt, bound) = (behind(&files, &one), words(&files, 40, 4), Lengths { prompt: 4, tokens: 3 });
    let hosted = ModelServer::builder().load(files).unwrap();
    let hosted = hosted.with_pools(Pools::open(&dir.path().join("server"), 2).unwrap());
    let terms = &terms("full", true);
    let limits = &Limits::default();
    let (filled, server) =
        session(&hosted, terms, limits, |session| session.behind(one.clone()).fill(bound, &path, &mut nobody));
    filled.unwrap();
    server.unwrap();
    let spend = |prefix: Option<&PublicPrefix>| {
        let pool = PoolSet::open(&path, Role::Client).unwrap();
        let next = Next::Pick(Box::leak(Box::new(Sampler::greedy())));
        let spent = session(&hosted, terms, limits, |session| {
            session.behind(prefix.cloned()).spend(pool, &prompt, 3, next, &mut nobody)
        });
        spent.0
    };
    for wrong in [None, Some(&other)] {
        match spend(wrong) {
            Err(Error::PoolFile { source: PoolError::Mismatch { differences }, .. }) => {
                assert!(differences.iter().any(|one| one.to_string().contains("prefix")), "{differences:?}");
            }
            spent => panic!("{spent:?}"),
        }
    }
    let options = GenerateOptions { tokens: 3, ..crate::support::fine() };
    let next = Next::Pick(&mut Sampler::greedy());
    let truth = generate(&mut Fixed::new(), &model, Input::known(&prompt), &options, next, &mut NoHooks).unwrap();
    assert_eq!(spend(Some(&one)).unwrap().generation.tokens, truth.tokens);
}

/// The client, the plan and a server that is asked all the same refuse in the same words.
#[test]
fn what_no_prefix_can_be_is_refused_by_name() {
    let files = bundled("shakespeare-gpt2").unwrap();
    let (limit, full) = (files.spec.max_positions(), PolicySpec::default);
    let hosted = ModelServer::builder().load(files).unwrap();
    let run = |ids: Vec<u32>, policy: PolicySpec, limits: &Limits| {
        let (terms, prefix) = (terms("full", false), PublicPrefix::new(ids, policy));
        let planned = Terms { prefix: Some(prefix.clone()), ..terms.clone() };
        let request = Request::from(Lengths { prompt: 2, tokens: 2 });
        let planned = SessionPlan::new(hosted.public(), &planned).request(request).run(&mut nobody);
        let (client, server) = session(&hosted, &terms, limits, |session| {
            session.behind(prefix).generate(&[1, 2], 2, Next::Pick(&mut Sampler::greedy()), &mut nobody)
        });
        (planned.map(drop), client.map(drop), server.map(drop))
    };
    for (ids, words) in [
        (vec![], "at least one prompt token"),
        (vec![1; limit], "positions would go through a model"),
        (vec![1; limit - 2], "positions would go through a model"),
        (vec![1, 1 << 20], "1048576"),
    ] {
        let (planned, client, server) = run(ids, full(), &Limits::default());
        let [planned, client, _] = [planned, client, server].map(Result::unwrap_err);
        assert!(planned.to_string().contains(words), "{words}: {planned}");
        assert_eq!(client.to_string(), planned.to_string());
    }
    let (_, client, _) = run(vec![1; 8], policy("duo:heads=1,block=2,budget=0.5"), &Limits::default());
    assert!(client.unwrap_err().to_string().contains("does not prune public tokens"));
    // A server has limits of its own.
    let few = Limits { public: 4, ..Limits::default() };
    let (planned, client, server) = run(vec![1; 8], full(), &few);
    planned.unwrap();
    assert!(matches!(client, Err(Error::Refused { reason }) if reason.contains("public tokens")));
    assert!(matches!(server, Err(Error::Limit { what: "public tokens", got: 8, limit: 4 })));
}
