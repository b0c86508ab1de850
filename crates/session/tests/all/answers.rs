//! Padded answers, which go on behind their end: the text is the same, and the server learns a bucket instead of the
//! length.

use rand::SeedableRng;
use rand::rngs::StdRng;
use waggle_engine::{Float, FloatLoader};
use waggle_model::{
    GenerateOptions, Generation, Input, Lengths, Model, ModelFiles, Next, NoHooks, Sampler, bucket, generate,
    generate_with,
};
use waggle_protocols::{Fixed, FixedLoader};
use waggle_session::party::chat::Turn;
use waggle_session::party::{Limits, ModelServer, Request, SessionPlan, nobody};

use crate::outcome::{terms, untimed};
use crate::parties::session;

const PROMPT: [u32; 5] = [3, 1, 4, 1, 5];

const LLAMA: &str = r#""model_type": "llama", "num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 12,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 10, "max_position_embeddings": 128"#;
const GPT2: &str =
    r#""model_type": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 2, "vocab_size": 10, "n_positions": 128"#;

/// A model whose texts end with `eos`, which has one digit, so that the shape always takes the same bytes.
fn files(config: &str, eos: u32) -> ModelFiles {
    let dir = tempfile::tempdir().unwrap();
    crate::support::tiny::write_model(dir.path(), &format!(r#"{{{config}, "eos_token_id": {eos}}}"#));
    ModelFiles::open(dir.path()).unwrap()
}

/// With this seed no draw falls so near to a boundary that the parties' roundings decide it.
fn sampler() -> Sampler {
    Sampler::random(1.5, 0.9, StdRng::seed_from_u64(9)).unwrap()
}

/// The text of the fixed-point engine without padding.
fn alone(files: &ModelFiles, tokens: usize) -> Vec<u32> {
    let model = Model::load(&mut FixedLoader::default(), &files.spec, Some(&files.checkpoint)).unwrap();
    let options = GenerateOptions { tokens, stop_at_eos: true, ..crate::support::fine() };
    let input = Input::known(&PROMPT);
    let next = Next::Pick(&mut sampler());
    generate(&mut Fixed::new(), &model, input, &options, next, &mut NoHooks).unwrap().tokens
}

#[test]
fn texts_of_one_bucket_look_alike_to_the_server_and_cost_what_was_planned() {
    let mut met = Vec::new();
    for (config, policy) in [(GPT2, "full"), (LLAMA, "full"), (LLAMA, "streaming:budget=16,block=4")] {
        // 20 tokens are a bucket and a rest that fills none, and 10 are less than a bucket.
        for (preprocess, most) in [(false, 20), (true, 10)] {
            let terms = terms(policy, preprocess);
            let mut ledgers = [const { Vec::new() }; 2];
            for eos in 0..10 {
                let files = files(config, eos);
                let text = if policy == "full" { alone(&files, most) } else { Vec::new() };
                let hosted = ModelServer::builder().load(files).unwrap();
                let (client, server) = session(&hosted, &terms, &Limits::default(), |session| {
                    let next = Next::Pick(&mut sampler());
                    session.stopping_at_eos().padding_answers().generate(&PROMPT, most, next, &mut nobody)
                });
                let (client, server) = (client.unwrap(), server.unwrap());
                let Generation { tokens, count, logits, .. } = &client.generation;
                assert!(policy != "full" || *tokens == text, "{config}, {eos}");
                // Nothing behind the end is reported, and the server learns only the bucket.
                let end = tokens.iter().position(|token| *token == eos);
                assert!(end.is_none_or(|end| end + 1 == tokens.len()), "{tokens:?}, {eos}");
                assert_eq!(logits.as_ref().unwrap().nrows(), tokens.len());
                let whole = if end.is_some() { bucket(tokens.len()).min(most) } else { most };
                assert_eq!((*count, server.generation.count), (whole, whole), "{tokens:?}, {eos}");
                assert_eq!(client.per_token.len(), whole - 1);
                assert_eq!(untimed(&client), untimed(&server));
                met.push((tokens.len(), whole));
                ledgers[usize::from(whole == most)].push(untimed(&client));
                let lengths = Lengths { prompt: PROMPT.len(), tokens: most };
                let request = Request { stop_at_eos: true, pad_answer: true, ..lengths.into() };
                let planned = SessionPlan::new(hosted.public(), &terms).request(request);
                let planned = planned.run(&mut nobody).unwrap().outcome;
                assert!(whole < most || untimed(&planned) == untimed(&client), "{config}, {eos}: plan");
            }
            for of_bucket in ledgers {
                assert!(of_bucket.windows(2).all(|pair| pair[0] == pair[1]), "{config}, {policy}");
            }
        }
    }
    // The sample has the cases that matter.
    met.sort_unstable();
    met.dedup();
    assert!(met.iter().filter(|(_, whole)| *whole == 16).count() > 2, "{met:?}");
    assert!(met.iter().any(|(tokens, whole)| *whole == 10 && *tokens < 10), "{met:?}");
}

/// New words of the turns of a conversation.
fn words(turn: u32) -> Vec<u32> {
    (0..4 + turn).map(|i| (i * i + 5 * i + 3 * turn) % 10).collect()
}

#[test]
fn turns_after_a_padded_answer_are_those_of_the_clear_engine() {
    for (config, eos, preprocess) in [(LLAMA, 2, false), (LLAMA, 7, true), (GPT2, 4, false), (GPT2, 1, true)] {
        let files = files(config, eos);
        let fixed = Model::load(&mut FixedLoader::default(), &files.spec, Some(&files.checkpoint)).unwrap();
        let hosted = ModelServer::builder().load(files).unwrap();
        let bound = Lengths { prompt: 12, tokens: 18 };
        let (turns, server) = session(&hosted, &terms("full", preprocess), &Limits::default(), |session| {
            let mut chat = session.stopping_at_eos().padding_answers().chat(bound, &mut nobody)?;
            let mut sampler = sampler();
            let turns: Vec<Turn> = (0..3)
                .map(|i| chat.turn(&words(i), bound.tokens, Next::Pick(&mut sampler), &mut nobody))
                .collect::<Result<_, _>>()?;
            chat.finish()?;
            Ok(turns)
        });
        let (turns, server) = (turns.unwrap(), server.unwrap());
        let mut cache = fixed.cache(&"full".parse().unwrap());
        let (mut last, mut sampler) = (None, sampler());
        for (i, turn) in (0..).zip(&turns) {
            let ids: Vec<u32> = last.into_iter().chain(words(i)).collect();
            let options =
                GenerateOptions { tokens: 18, stop_at_eos: true, pad_answer: true, ..crate::support::fine() };
            let input = Input::known(&ids);
            let next = Next::Pick(&mut sampler);
            let mut engine = Fixed::new();
            let truth = generate_with(&mut engine, &fixed, &mut cache, input, &options, next, &mut NoHooks).unwrap();
            assert_eq!(turn.generation.tokens, truth.tokens, "{config}, turn {i}");
            assert_eq!(turn.generation.count, truth.count);
            assert_eq!(turn.prompt_tokens, ids.len(), "a turn has as many tokens as without padding");
            last = truth.tokens.last().copied();
        }
        assert!(turns.iter().any(|turn| turn.generation.tokens.len() < turn.generation.count), "{config}");
        assert_eq!(server.generation.count, turns.iter().map(|turn| turn.generation.count).sum::<usize>());
    }
}

/// Whatever tokens stand behind an end, later words are read alike.
#[test]
fn what_stands_behind_an_end_changes_no_later_turn() {
    for config in [LLAMA, GPT2] {
        let files = files(config, 9);
        let float = Model::load(&mut FloatLoader, &files.spec, Some(&files.checkpoint)).unwrap();
        let second = |dummies: &[u32], pad_answer| {
            let mut cache = float.cache(&"full".parse().unwrap());
            let options = GenerateOptions { tokens: 16, stop_at_eos: true, pad_answer, ..crate::support::fine() };
            let answer = [&[1, 2, 3, 9], dummies].concat();
            let input = Input::known(&PROMPT);
            let engine = &mut Float::default();
            let next = Next::Forced(&answer);
            let options = if pad_answer { options } else { GenerateOptions { stop_at_eos: false, ..options } };
            let first = generate_with(engine, &float, &mut cache, input, &options, next, &mut NoHooks).unwrap();
            assert_eq!(first.count, 16);
            assert!(!pad_answer || first.tokens == [1, 2, 3, 9]);
            let input = Input::known(&[9, 4, 4]);
            let next = Next::Pick(&mut Sampler::greedy());
            generate_with(engine, &float, &mut cache, input, &options, next, &mut NoHooks).unwrap().logits.unwrap()
        };
        let [a, b] = [[0; 12], [6; 12]];
        let difference = |pad| {
            let [a, b] = [&a, &b].map(|dummies| second(dummies, pad));
            a.row(0).iter().zip(b.row(0)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
        };
        assert!(difference(true) < 1e-3, "{config}: {}", difference(true));
        assert!(difference(false) > 1e-2, "{config}: ordinary tokens are attended to: {}", difference(false));
    }
}
