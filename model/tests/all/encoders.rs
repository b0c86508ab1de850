//! Encoders against the programs of their authors, on tiny checkpoints of `references/make.py`.

use std::path::{Path, PathBuf};

use engine::Float;
use model::{Error, GenerateOptions, Input, Model, ModelFiles, Next, NoHooks, Reveal, Sampler, generate};
use ndarray::Array2;
use protocols::{Evaluation, Fixed, FixedLoader};
use serde_json::Value;
use tokenizer::Tokenizer;

use crate::support::{fine, load};

/// Largest difference to a reference logit in f32.
const MAX_LOGIT_ERROR: f32 = 1e-4;

/// Largest difference in fixed point.
const MAX_FIXED_ERROR: f32 = 0.01;

const ENCODERS: [&str; 3] = ["bert", "roberta", "distilbert"];

fn dir(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/encoders").join(name)
}

/// Texts, where their second parts begin, and the logits of their classes.
fn references(name: &str) -> Vec<(Vec<u32>, Option<usize>, Vec<f32>)> {
    let value: Value = serde_json::from_slice(&std::fs::read(dir(name).join("reference.json")).unwrap()).unwrap();
    let sequence = |sequence: &Value| {
        let logits: Vec<Vec<f32>> = serde_json::from_value(sequence["logits"].clone()).unwrap();
        let second = sequence.get("second").map(|at| at.as_u64().unwrap() as usize);
        (serde_json::from_value(sequence["ids"].clone()).unwrap(), second, logits.concat())
    };
    value["sequences"].as_array().unwrap().iter().map(sequence).collect()
}

fn answer() -> GenerateOptions {
    GenerateOptions { tokens: 1, ..fine() }
}

fn error(got: &Array2<f32>, want: &[f32]) -> f32 {
    assert_eq!(got.dim(), (1, want.len()));
    got.iter().zip(want).fold(0.0, |most, (got, want)| most.max((got - want).abs()))
}

#[test]
fn encoders_equal_the_programs_of_their_authors() {
    for name in ENCODERS {
        let files = ModelFiles::open(&dir(name)).unwrap();
        let fixed = Model::load(&mut FixedLoader::default(), &files.spec, Some(&files.checkpoint)).unwrap();
        let float = load(files);
        for (ids, second, want) in references(name) {
            assert_eq!(second.is_some(), name == "bert" && ids.len() == 11, "a pair");
            let input = Input { second, ..Input::known(&ids) };
            let next = &mut Sampler::greedy();
            let got =
                generate(&mut Float::default(), &float, input, &answer(), Next::Pick(next), &mut NoHooks).unwrap();
            let best = (0..want.len()).max_by(|a, b| want[*a].total_cmp(&want[*b])).unwrap();
            assert_eq!(got.tokens, [best as u32], "{name}");
            let off = error(&got.logits.unwrap(), &want);
            assert!(off < MAX_LOGIT_ERROR, "{name}: {off}");
            for evaluation in [Evaluation::Lookup, Evaluation::Masked] {
                let engine = &mut Fixed::evaluating(evaluation);
                let got = generate(engine, &fixed, input, &answer(), Next::Pick(next), &mut NoHooks).unwrap();
                assert_eq!(got.tokens, [best as u32], "{name}");
                let off = error(&got.logits.unwrap(), &want);
                println!("{name}, {} tokens, {evaluation:?}: {off:.1e}", ids.len());
                assert!(off < MAX_FIXED_ERROR, "{name}, {evaluation:?}: {off}");
            }
        }
    }
}

/// Words of a BERT: pieces, accents, characters of Chinese, and the tokens that begin and end a text.
#[test]
fn texts_have_the_ids_of_their_authors_library() {
    let value: Value = serde_json::from_slice(&std::fs::read(dir("bert").join("reference.json")).unwrap()).unwrap();
    let files = ModelFiles::open(&dir("bert")).unwrap();
    let tokenizer = Tokenizer::from_bytes(files.tokenizer.as_deref().unwrap()).unwrap();
    for text in value["texts"].as_array().unwrap() {
        let want: Vec<u32> = serde_json::from_value(text["ids"].clone()).unwrap();
        match text["pair"].as_array() {
            None => assert_eq!(tokenizer.encode(text["text"].as_str().unwrap()).unwrap(), want, "{text}"),
            Some(pair) => {
                let [first, second] = [0, 1].map(|i| pair[i].as_str().unwrap());
                let begins = text["second"].as_u64().map(|at| at as usize);
                assert_eq!(tokenizer.encode_pair(first, second).unwrap(), (want, begins));
            }
        }
    }
}

/// An encoder sees the whole text: a change of its last token changes the first token's state.
#[test]
fn the_first_token_sees_the_last() {
    let model = load(ModelFiles::open(&dir("bert")).unwrap());
    let logits = |ids: &[u32]| {
        let input = Input::known(ids);
        let next = Next::Pick(&mut Sampler::greedy());
        generate(&mut Float::default(), &model, input, &answer(), next, &mut NoHooks).unwrap().logits.unwrap()
    };
    assert!(logits(&[5, 6, 7, 8]) != logits(&[5, 6, 7, 9]));
}

#[test]
fn what_an_encoder_cannot_do_is_refused() {
    let model = load(ModelFiles::open(&dir("distilbert")).unwrap());
    let base = answer();
    let cases = [
        (GenerateOptions { tokens: 2, ..base.clone() }, "more than one token"),
        (GenerateOptions { stop_at_eos: true, ..base.clone() }, "an end that the text finds"),
        (GenerateOptions { policy: "streaming".parse().unwrap(), ..base.clone() }, "a cache policy"),
        (GenerateOptions { prefill_chunk: std::num::NonZeroUsize::new(2), ..base.clone() }, "a prompt in chunks"),
    ];
    for (options, why) in cases {
        let input = Input::known(&[5, 6, 7]);
        let next = Next::Pick(&mut Sampler::greedy());
        match model::generate(&mut Float::default(), &model, input, &options, next, &mut NoHooks) {
            Err(Error::Encoder { what }) => assert_eq!(what, why),
            other => panic!("{why}: {other:?}"),
        }
    }
    let token = GenerateOptions { reveal: Reveal::Token, ..base };
    let input = Input::known(&[5, 6, 7]);
    let next = Next::Pick(&mut Sampler::greedy());
    assert_eq!(generate(&mut Float::default(), &model, input, &token, next, &mut NoHooks).unwrap().tokens.len(), 1);
}
