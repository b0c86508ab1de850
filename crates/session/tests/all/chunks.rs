//! Prompts in chunks: the same text under every policy, and a plan that knows what both parties send.

use std::num::NonZeroUsize;
use std::thread;
use std::time::Duration;

use waggle_engine::{Float, FloatLoader, Select};
use waggle_model::{
    GenerateOptions, Generation, Input, Lengths, Model, ModelFiles, Next, NoHooks, Padding, Sampler, generate,
    generate_with,
};
use waggle_mpcache::PolicySpec;
use waggle_net::{Channel, Role, memory_pair};
use waggle_protocols::Fixed;
use waggle_session::party::{
    ClientOptions, ClientSession, Limits, ModelServer, Peer, Request, SessionPlan, Terms, nobody,
};

use crate::outcome::untimed;
use crate::parties::{load_fixed, session};

const LLAMA: &str = r#"{"model_type": "llama", "num_hidden_layers": 3, "hidden_size": 16, "intermediate_size": 24,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 23, "max_position_embeddings": 128}"#;

const GPT2: &str =
    r#"{"model_type": "gpt2", "n_layer": 3, "n_embd": 16, "n_head": 4, "vocab_size": 23, "n_positions": 128}"#;

/// Policies of every family, with settings under which a short prompt is pruned.
const POLICIES: [&str; 20] = [
    "full",
    "mpcache:clusters=8/4,budget=0.3",
    "mpcache:clusters=4,share=off,dense=1,static=0.6,window=0.4",
    "mpcache-scores:static=0.5,budget=0.4",
    "quest:budget=0.4",
    "h2o:budget=0.4",
    "tova:budget=0.4",
    "snapkv:budget=0.5,window=12",
    "streaming:budget=0.4",
    "streaming:budget=12,block=3,prefill=7",
    // Without smoothing, because the neighbours of a token that receives nearly all attention would have equal votes
    // except for rounding.
    "snapkv:budget=12,block=3,window=4,prefill=10,kernel=1",
    "pyramid:budget=12,block=3,window=4,kernel=1",
    "squeeze:budget=12,block=3,window=4,kernel=1,layers=0+2",
    "keyformer:budget=0.5,recent=4",
    "keyformer:budget=12,block=3,recent=4,prefill=10",
    "knorm:budget=12,block=3,recent=4",
    "knorm:budget=0.4,recent=4,prefill=9",
    "keyformer:budget=12,block=3,recent=4,prefill=10,guard=0.2",
    "scissorhands:budget=0.4,window=5",
    "mpcache:clusters=4,share=off,dense=1,static=0.6,window=0.4,guard=0.2",
];

/// Policies whose text is certain. `knorm` finds equal norms in the first layer of a LLaMA wherever a token is
/// repeated, because rotations keep norms, so that rounding decides which of them stays.
fn policies(config: &str) -> impl Iterator<Item = &'static str> {
    let llama = config == LLAMA;
    POLICIES.into_iter().filter(move |policy| !(llama && policy.starts_with("knorm")))
}

/// Largest difference of a logit between one chunk and several, in f32.
const MAX_FLOAT_ERROR: f32 = 1e-3;

/// Largest difference of a logit between one chunk and several, in fixed point. With chunks the tournament for the
/// maximum of a row has other rounds, and may find another of the values that coarse words do not tell apart.
const MAX_FIXED_ERROR: f32 = 6e-3;

fn files(config: &str) -> (tempfile::TempDir, ModelFiles) {
    let dir = tempfile::tempdir().unwrap();
    crate::support::tiny::write_model(dir.path(), config);
    let files = ModelFiles::open(dir.path()).unwrap();
    (dir, files)
}

fn prompt(count: u32) -> Vec<u32> {
    (0..count).map(|i| (i * i + 5 * i) % 23).collect()
}

fn options(policy: &str, chunk: usize, tokens: usize) -> GenerateOptions {
    let policy: PolicySpec = policy.parse().unwrap();
    GenerateOptions { tokens, policy, prefill_chunk: NonZeroUsize::new(chunk), ..crate::support::fine() }
}

fn run<E: Select>(engine: &mut E, model: &Model<E::Weight>, ids: &[u32], options: &GenerateOptions) -> Generation {
    let input = Input::known(ids);
    let sampler = &mut Sampler::greedy();
    generate(engine, model, input, options, Next::Pick(sampler), &mut NoHooks).unwrap()
}

fn worst(a: &Generation, b: &Generation) -> f32 {
    let (a, b) = (a.logits.as_ref().unwrap(), b.logits.as_ref().unwrap());
    assert_eq!(a.dim(), b.dim());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn the_text_does_not_depend_on_the_chunks() {
    for config in [LLAMA, GPT2] {
        let (_dir, files) = files(config);
        let float = Model::load(&mut FloatLoader, &files.spec, Some(&files.checkpoint)).unwrap();
        let (fixed, _) = load_fixed(&files.spec, Some(&files.checkpoint), &[]);
        for policy in policies(config) {
            for all_positions in [false, true] {
                let ids = prompt(37);
                let of = |chunk| GenerateOptions { all_positions, ..options(policy, chunk, 8) };
                let whole = run(&mut Float::default(), &float, &ids, &of(37));
                let whole_fixed = run(&mut Fixed::new(), &fixed, &ids, &of(37));
                for chunk in [1, 5, 16, 36] {
                    let context = format!("{policy}, chunks of {chunk}");
                    let pieces = run(&mut Float::default(), &float, &ids, &of(chunk));
                    assert_eq!(pieces.tokens, whole.tokens, "{context}");
                    assert!(worst(&pieces, &whole) < MAX_FLOAT_ERROR, "{context}");
                    let pieces = run(&mut Fixed::new(), &fixed, &ids, &of(chunk));
                    assert_eq!(pieces.tokens, whole_fixed.tokens, "{context}, fixed");
                    let error = worst(&pieces, &whole_fixed);
                    assert!(error < MAX_FIXED_ERROR, "{context}, fixed: {error}");
                }
            }
        }
    }
}

#[test]
fn padding_may_end_within_a_chunk() {
    for config in [LLAMA, GPT2] {
        let (_dir, files) = files(config);
        let float = Model::load(&mut FloatLoader, &files.spec, Some(&files.checkpoint)).unwrap();
        let text = prompt(9);
        let padded: Vec<u32> = [0; 7].iter().chain(&text).copied().collect();
        let plain = run(&mut Float::default(), &float, &text, &options("full", 9, 5));
        for chunk in [3, 7, 8] {
            let padding = Some(Padding::of(7));
            let options = GenerateOptions { padding, ..options("full", chunk, 5) };
            let got = run(&mut Float::default(), &float, &padded, &options);
            assert_eq!(got.tokens, plain.tokens, "chunks of {chunk}");
            assert!(worst(&got, &plain) < MAX_FLOAT_ERROR, "chunks of {chunk}");
        }
    }
}

#[test]
fn a_cache_takes_more_prompt_later() {
    let (_dir, files) = files(LLAMA);
    let (model, _) = load_fixed(&files.spec, Some(&files.checkpoint), &[]);
    let options = options("full", 4, 3);
    let mut engine = Fixed::new();
    let mut cache = model.cache(&options.policy);
    let mut text: Vec<u32> = Vec::new();
    let mut last = None;
    for more in [prompt(9), prompt(6)] {
        // The last token of a generation was not read.
        let ids: Vec<u32> = last.into_iter().chain(more).collect();
        let input = Input::known(&ids);
        let next = Next::Pick(&mut Sampler::greedy());
        let got = generate_with(&mut engine, &model, &mut cache, input, &options, next, &mut NoHooks).unwrap();
        text.extend(&ids);
        let whole =
            run(&mut Fixed::new(), &model, &text, &GenerateOptions { prefill_chunk: None, ..options.clone() });
        assert_eq!(got.tokens, whole.tokens);
        assert!(worst(&got, &whole) < MAX_FIXED_ERROR);
        text.extend(&got.tokens[..2]);
        last = got.tokens.last().copied();
    }
    assert_eq!(cache.tokens(), text.len());
    let ids = prompt(120);
    let input = Input::known(&ids);
    let next = Next::Pick(&mut Sampler::greedy());
    let refused = generate_with(&mut engine, &model, &mut cache, input, &options, next, &mut NoHooks);
    assert!(matches!(refused, Err(waggle_model::Error::TooLong { .. })), "{refused:?}");
}

#[test]
fn two_parties_read_chunks_as_planned() {
    for config in [LLAMA, GPT2] {
        let (dir, opened) = files(config);
        let (fixed, _) = load_fixed(&opened.spec, Some(&opened.checkpoint), &[]);
        let hosted = ModelServer::builder().load(ModelFiles::open(dir.path()).unwrap()).unwrap();
        let ids = prompt(14);
        for (i, policy) in policies(config).enumerate() {
            let options = options(policy, 5, 3);
            let truth = run(&mut Fixed::new(), &fixed, &ids, &options);
            // Every policy runs once in one phase and once in two.
            let preprocess = (i % 2 == 0) == (config == LLAMA);
            let mut terms = Terms {
                policy: options.policy.clone(),
                prefill_chunk: options.prefill_chunk,
                ..crate::outcome::fine_terms()
            };
            terms.protocol.preprocess = preprocess;
            let (client, server) = session(&hosted, &terms, &Limits::default(), |session| {
                session.generate(&*ids, 3, Next::Pick(&mut Sampler::greedy()), &mut nobody)
            });
            let (client, server) = (client.unwrap(), server.unwrap());
            let context = format!("{policy}, two phases: {preprocess}");
            assert_eq!(client.generation.tokens, truth.tokens, "{context}");
            let request = Request::from(Lengths { prompt: ids.len(), tokens: 3 });
            let planned = SessionPlan::new(hosted.public(), &terms).request(request);
            let planned = planned.run(&mut nobody).unwrap();
            // A plan knows what is left of the cache. Prepared operands keep two more words for each.
            let cached = [&client, &server, &planned.outcome].map(|outcome| outcome.generation.cached);
            assert_eq!(cached, [truth.cached; 3], "{context}");
            let words = truth.cached * if preprocess { 3 } else { 1 };
            assert_eq!(planned.cache_bytes, 8 * words as u64, "{context}");
            assert_eq!(untimed(&client), untimed(&server), "{context}");
            if !options.policy.random_traffic() {
                assert_eq!(untimed(&client), untimed(&planned.outcome), "{context}");
            }
        }
    }
}

#[test]
fn parties_that_want_other_chunks_hear_of_it() {
    let hosted = ModelServer::builder().load(files(LLAMA).1).unwrap();
    let server_terms = crate::outcome::fine_terms();
    let client_terms = Terms { prefill_chunk: NonZeroUsize::new(5), ..crate::outcome::fine_terms() };
    let (client, server) = memory_pair(Duration::from_secs(60));
    thread::scope(|scope| {
        let server = Channel::new(Role::Server, server);
        let server =
            scope.spawn(|| hosted.serve(server, &Peer::default(), &server_terms, &Limits::default(), &mut nobody));
        let client = Channel::new(Role::Client, client);
        let refused = ClientSession::open(client, &Peer::default(), &client_terms, &ClientOptions::default());
        let refused = refused.err().expect("the terms differ").to_string();
        assert!(refused.contains("prefill-chunk") && refused.contains('5'), "{refused}");
        server.join().unwrap().unwrap_err();
    });
}
