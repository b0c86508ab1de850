//! On tiny checkpoints every family gives the text of the clear engine between two parties, at the cost that its plan
//! says.

use std::path::{Path, PathBuf};

use ndarray::{Array2, Array3};
use waggle_model::{
    CHANNELS, DType, GenerateOptions, Input, Lengths, ModelFiles, Next, Padding, Reveal, Sampler, synthesize,
};
use waggle_session::party::{ClientSession, Limits, ModelServer, Prompt, Request, Terms, nobody};
use waggle_session::{Error, check_ranges};

use crate::parties::{Agreed, agree, agree_on, load_fixed, session};
use crate::secure::MAX_SECURE_ULPS;

/// The name and the directory of every family's checkpoint.
fn families() -> Vec<(String, PathBuf)> {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../model/tests/data/families");
    let entries = std::fs::read_dir(all).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name().into_string().unwrap(), entry.path())).collect()
}

/// Every family, over a text that is longer than its windows.
#[test]
fn two_parties_and_the_plan_agree() {
    for (name, dir) in families() {
        let files = ModelFiles::open(&dir).unwrap();
        let ids: Vec<u32> = (0..12).map(|i| (i * i + 3) % files.spec.vocabulary() as u32).collect();
        let options = GenerateOptions { tokens: 3, ..crate::support::fine() };
        agree(&name, &files, &ids, &options, MAX_SECURE_ULPS);
    }
}

/// A policy acts on layers whose heads differ from those of layers with a window.
#[test]
fn a_policy_acts_on_layers_with_heads_of_their_own() {
    for name in ["gemma4", "gemma4-values"] {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../model/tests/data/families").join(name);
        let files = ModelFiles::open(&dir).unwrap();
        let ids: Vec<u32> = (0..24).map(|i| (i * i + 3) % files.spec.vocabulary() as u32).collect();
        for policy in ["mpcache:clusters=4/2", "streaming:budget=12,sinks=1"] {
            let policy = policy.parse().unwrap();
            let options = GenerateOptions { tokens: 3, policy, ..crate::support::fine() };
            agree(name, &files, &ids, &options, MAX_SECURE_ULPS);
        }
    }
}

/// Encoders answer once: two parties, the plan and fixed point agree, in one phase and in two.
#[test]
fn encoders_answer_between_two_parties() {
    for name in ["bert", "roberta", "distilbert"] {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../model/tests/data/encoders").join(name);
        let files = ModelFiles::open(&dir).unwrap();
        let ids: Vec<u32> = (0..12).map(|i| 3 + (i * i) % (files.spec.vocabulary() as u32 - 3)).collect();
        let options = GenerateOptions { tokens: 1, ..crate::support::fine() };
        agree(name, &files, &ids, &options, MAX_SECURE_ULPS);
        let (model, _) = load_fixed(&files.spec, Some(&files.checkpoint), &[]);
        check_ranges(&model, None).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// Eight texts go through a model with at most a fifth more messages than one text.
#[test]
fn texts_side_by_side_take_the_flows_of_one() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../model/tests/data/encoders/bert");
    let files = ModelFiles::open(&dir).unwrap();
    let ids: Vec<u32> = (0..8 * 6).map(|i| 3 + (i * i) % (files.spec.vocabulary() as u32 - 3)).collect();
    let seconds: Vec<Option<usize>> = (0..8).map(|text| Some(text).filter(|at| (1..6).contains(at))).collect();
    for reveal in [Reveal::Logits, Reveal::Token] {
        let padding = Some(Padding { tokens: Some(vec![0, 3, 0, 0, 1, 0, 2, 0]) });
        let options = GenerateOptions { tokens: 1, reveal, padding, ..crate::support::fine() };
        let eight = Input { seconds: &seconds, ..Input::known(&ids).of_texts(8) };
        let eight = agree_on("eight texts", &files, eight, &options, MAX_SECURE_ULPS);
        let options = GenerateOptions { padding: Some(Padding::of(1)), ..options };
        let one = agree_on("one text", &files, Input::known(&ids[..6]), &options, MAX_SECURE_ULPS);
        assert_eq!(eight.fixed.tokens.len(), 8);
        let flows = |agreed: &Agreed| agreed.ledger.iter().map(|entry| entry.traffic.flows).sum::<u64>() as f64;
        let (eight, one) = (flows(&eight), flows(&one));
        println!("{eight} flows for eight texts, {one} for one");
        assert!(eight <= 1.2 * one, "{eight} flows for eight texts, {one} for one");
    }
}

/// Decoders generate several texts between two parties in the flows of one text, for no more bytes per text.
#[test]
fn several_texts_go_on_in_the_flows_of_one() {
    for (name, dir) in families() {
        // Rotary and learned positions, windows, and sinks.
        if !["qwen2", "opt", "gemma3", "gemma4", "gemma4-shared", "granite-sinks"].contains(&&*name) {
            continue;
        }
        let files = ModelFiles::open(&dir).unwrap();
        let ids: Vec<u32> = (0..4 * 6).map(|i| (i * i + 3) % files.spec.vocabulary() as u32).collect();
        for reveal in [Reveal::Logits, Reveal::Token] {
            let padding = Some(Padding { tokens: Some(vec![0, 2, 0, 1]) });
            let options = GenerateOptions { tokens: 3, reveal, padding, ..crate::support::fine() };
            let four = Input::known(&ids).of_texts(4);
            let four = agree_on(&format!("four texts of {name}"), &files, four, &options, MAX_SECURE_ULPS);
            let options = GenerateOptions { padding: Some(Padding::of(1)), ..options };
            let one =
                agree_on(&format!("one text of {name}"), &files, Input::known(&ids[..6]), &options, MAX_SECURE_ULPS);
            assert_eq!(four.fixed.lengths, [3; 4]);
            let sum = |agreed: &Agreed, of: fn(&waggle_net::Traffic) -> u64| {
                agreed.ledger.iter().map(|entry| of(&entry.traffic)).sum::<u64>() as f64
            };
            let flows = [&four, &one].map(|agreed| sum(agreed, |traffic| traffic.flows));
            let bytes = [&four, &one].map(|agreed| sum(agreed, waggle_net::Traffic::bytes));
            println!("{name}, {reveal:?}: flows {flows:?}, bytes {bytes:?}");
            assert!(flows[0] <= 1.2 * flows[1], "{name}: {flows:?}");
            assert!(bytes[0] <= 4.0 * bytes[1], "{name}: {bytes:?}");
        }
    }
}

/// The place of a mask is the client's alone: neither plans nor the server know it, and all places take the same
/// bytes. Revealing only the word works as well.
#[test]
fn a_mask_is_filled_between_two_parties() {
    for name in ["bert-masked", "roberta-masked", "distilbert-masked"] {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../model/tests/data/encoders").join(name);
        let files = ModelFiles::open(&dir).unwrap();
        let ids: Vec<u32> = (0..9).map(|i| 5 + (i * i) % 60).collect();
        let agreed = [(0, Reveal::Logits), (7, Reveal::Logits), (7, Reveal::Token)].map(|(mask, reveal)| {
            let options = GenerateOptions { tokens: 1, reveal, ..crate::support::fine() };
            let input = Input { masks: &[mask], ..Input::known(&ids) };
            agree_on(name, &files, input, &options, MAX_SECURE_ULPS)
        });
        assert_eq!(agreed[0].ledger, agreed[1].ledger, "{name}");
        assert_ne!(agreed[0].fixed.logits, agreed[1].fixed.logits, "{name}");
        let (model, _) = load_fixed(&files.spec, Some(&files.checkpoint), &[]);
        check_ranges(&model, None).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// Only the client knows the pixels of an image.
#[test]
fn an_image_is_classified_between_two_parties() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../model/tests/data/encoders/vit");
    let files = ModelFiles::open(&dir).unwrap();
    let image = files.spec.image().unwrap();
    let pixels =
        Array3::from_shape_fn((CHANNELS, image.side, image.side), |(c, y, x)| ((c + 2 * y * x) as f32 / 50.0).sin());
    let patches = image.patches(pixels.view()).unwrap();
    for reveal in [Reveal::Logits, Reveal::Token] {
        let options = GenerateOptions { tokens: 1, reveal, ..crate::support::fine() };
        agree_on("vit", &files, Input::image(&patches), &options, MAX_SECURE_ULPS);
    }
    let (model, _) = load_fixed(&files.spec, Some(&files.checkpoint), &[]);
    assert_eq!(check_ranges(&model, None).unwrap().tokens, image.rows());
}

/// A server of images tells by the number of tokens that a request is not for an image. A client knows the model.
#[test]
fn a_server_of_images_refuses_a_text_and_a_client_an_image_for_texts() {
    let open = |name: &str| {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../model/tests/data/encoders").join(name);
        ModelServer::builder().load(ModelFiles::open(&dir).unwrap()).unwrap()
    };
    let ask = |server: &ModelServer, prompt: Prompt| {
        let next = &mut Sampler::greedy();
        let ask = |open: ClientSession| open.generate(prompt, 1, Next::Pick(next), &mut nobody);
        session(server, &Terms::default(), &Limits::NONE, ask).0.map(|_| ()).unwrap_err()
    };
    let (vit, bert) = (open("vit"), open("bert"));
    let text = Prompt::from(&[5, 6, 7]);
    let image = Prompt::image(Array2::zeros((16, 192)));
    assert!(matches!(ask(&vit, text), Error::Model(waggle_model::Error::NoTexts)));
    assert!(matches!(ask(&bert, image), Error::Model(waggle_model::Error::NoImages)));
    let lengths = Lengths { prompt: 3, tokens: 1 };
    let refused = Request::from(lengths).validate(&vit.public().spec, &Terms::default(), &Limits::NONE).unwrap_err();
    assert_eq!(refused.to_string(), "an image is 17 tokens of the model, not 3");
}

/// Random weights of every family's shape, with fewer layers, stay in the ranges of the protocols.
#[test]
fn synthesised_models_are_in_range() {
    for (name, dir) in families() {
        let config = std::fs::read(dir.join("config.json")).unwrap();
        let out = tempfile::tempdir().unwrap();
        let spec = synthesize(&config, out.path(), Some(2), DType::F16, None, 7).unwrap();
        assert_eq!(spec.layers(), 2, "{name}");
        let files = ModelFiles::open(out.path()).unwrap();
        let (model, _) = load_fixed(&files.spec, Some(&files.checkpoint), &[]);
        let done = check_ranges(&model, None).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(done.tokens >= 16, "{name}: {done:?}");
    }
}
