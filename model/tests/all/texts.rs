//! Texts that a decoder continues side by side: each is the same as when it is generated alone.

use std::num::NonZeroUsize;

use waggle_engine::Float;
use waggle_model::{
    Drafts, Error, GenerateOptions, Generation, Input, ModelFiles, Next, NoHooks, Padding, Sampler, check, generate,
};
use waggle_mpcache::PolicySpec;

use crate::families::families;
use crate::support::{FloatModel, load};

/// The largest allowed difference of a logit to that of the text alone, as a share of the largest logit.
const MAX_ERROR: f32 = 1e-5;

fn several(model: &FloatModel, ids: &[u32], texts: usize, options: &GenerateOptions) -> Result<Generation, Error> {
    let next = Next::Pick(&mut Sampler::greedy());
    generate(&mut Float::default(), model, Input::known(ids).of_texts(texts), options, next, &mut NoHooks)
}

/// Asserts that `got` has the tokens and the logits of `alone`, which has one generation for each text.
fn assert_same(got: &Generation, alone: &[Generation], what: &str) {
    let tokens: Vec<&[u32]> = alone.iter().map(|text| &text.tokens[..]).collect();
    assert_eq!(got.texts().collect::<Vec<_>>(), tokens, "{what}");
    let want: Vec<f32> = alone.iter().flat_map(|text| text.logits.as_ref().unwrap()).copied().collect();
    let got = got.logits.as_ref().unwrap();
    assert_eq!(got.len(), want.len(), "{what}");
    let scale = want.iter().fold(0f32, |most, x| most.max(x.abs()));
    for (got, want) in got.iter().zip(&want) {
        assert!((got - want).abs() <= MAX_ERROR * scale, "{what}: {got} and {want}");
    }
}

#[test]
fn decoders_go_on_with_several_texts_as_with_each() {
    for (name, dir) in families() {
        let model = load(ModelFiles::open(&dir).unwrap());
        let words = model.spec().vocabulary() as u32;
        let ids: Vec<u32> = (0..3 * 7).map(|i| (i * i + 5 * i + 1) % words).collect();
        let options = GenerateOptions { tokens: 4, all_positions: true, ..GenerateOptions::default() };
        let alone: Vec<_> = ids.chunks(7).map(|ids| several(&model, ids, 1, &options).unwrap()).collect();
        assert_same(&several(&model, &ids, 3, &options).unwrap(), &alone, &name);
        let pieces = GenerateOptions { prefill_chunk: NonZeroUsize::new(3), ..options };
        assert_same(&several(&model, &ids, 3, &pieces).unwrap(), &alone, &format!("{name} in pieces"));
    }
}

#[test]
fn shorter_prompts_are_padded_and_a_text_that_has_ended_gets_no_more_words() {
    let model = load(waggle_model::bundled("stories260k").unwrap());
    let prompts: [&[u32]; 3] = [&[1, 403, 407], &[1, 403, 407, 261, 378, 440, 11], &[1, 410, 261, 378]];
    let longest = 7;
    let padding: Vec<usize> = prompts.iter().map(|ids| longest - ids.len()).collect();
    let ids: Vec<u32> =
        prompts.iter().flat_map(|ids| [vec![0; longest - ids.len()], ids.to_vec()].concat()).collect();
    let plain = GenerateOptions { tokens: 12, ..GenerateOptions::default() };
    let alone: Vec<_> = prompts.iter().map(|ids| several(&model, ids, 1, &plain).unwrap()).collect();
    let padded = GenerateOptions { padding: Some(Padding { tokens: Some(padding) }), ..plain.clone() };
    let together = several(&model, &ids, 3, &padded).unwrap();
    assert_eq!(together.texts().collect::<Vec<_>>(), alone.iter().map(|text| &text.tokens[..]).collect::<Vec<_>>());
    assert_eq!((together.count, &together.lengths[..]), (12, &[12; 3][..]));
    let checked = check(&model, Input::known(&ids).of_texts(3), &padded, &together).unwrap();
    assert_eq!(checked.token_agreement, 1.0);
    // The end token is a word that one text has first and another later or never. Each text ends where it has it.
    let end = alone[0].tokens[3];
    let stopping = with_end("stories260k", end);
    let options = GenerateOptions { stop_at_eos: true, ..padded };
    let ended = several(&stopping, &ids, 3, &options).unwrap();
    for (got, text) in ended.texts().zip(&alone) {
        let length = text.tokens.iter().position(|token| *token == end).map_or(12, |at| at + 1);
        assert_eq!(got, &text.tokens[..length]);
    }
    assert_eq!(ended.count, *ended.lengths.iter().max().unwrap(), "they stop when the last of them has ended");
    assert_eq!(ended.logits.as_ref().unwrap().nrows(), ended.tokens.len());
    assert!(ended.lengths[0] < 12, "{:?}", ended.lengths);
    let checked = check(&stopping, Input::known(&ids).of_texts(3), &options, &ended).unwrap();
    assert_eq!((checked.token_agreement, checked.max_abs_logit_error), (1.0, Some(0.0)));
}

/// A bundled model whose texts end with `id`.
fn with_end(name: &str, id: u32) -> FloatModel {
    let files = waggle_model::bundled(name).unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(&files.config).unwrap();
    config["eos_token_id"] = id.into();
    let spec = waggle_model::ModelSpec::from_config_json(config.to_string().as_bytes()).unwrap();
    load(ModelFiles { spec, ..files })
}

/// Every policy decides for each text as for the text alone, or says that it cannot.
#[test]
fn policies_decide_for_each_text() {
    let sinks = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/families/granite-sinks");
    decide(&|| waggle_model::bundled("shakespeare-llama").unwrap());
    decide(&|| ModelFiles::open(sinks.as_ref()).unwrap());
}

/// Checks that every policy that allows several texts decides for two texts as for each alone.
fn decide(files: &dyn Fn() -> ModelFiles) {
    let words = files().spec.vocabulary() as u32;
    let ids: Vec<u32> = (0..2 * 40).map(|i| (i * i * 7 + 3 * i + 1) % words).collect();
    let mut checked = 0;
    for name in PolicySpec::known() {
        let with = |options: &str| format!("{name}:{options}").parse::<PolicySpec>();
        let Ok(policy) = with("budget=0.5").or_else(|_| name.parse()) else { continue };
        if files().spec.check_policy(&policy).is_err() || policy.scoring_head().is_some() {
            continue;
        }
        let model = load(files());
        let options = GenerateOptions { tokens: 6, policy: policy.clone(), ..GenerateOptions::default() };
        let together = several(&model, &ids, 2, &options);
        if !policy.side_by_side() {
            assert!(matches!(together, Err(Error::Texts { texts: 2, .. })), "{policy}");
            continue;
        }
        let alone: Vec<_> = ids.chunks(40).map(|ids| several(&model, ids, 1, &options).unwrap()).collect();
        assert_same(&together.unwrap(), &alone, &policy.to_string());
        checked += 1;
    }
    assert!(checked >= 10, "{checked} policies");
}

#[test]
fn what_is_made_for_one_text_is_refused_for_several() {
    let model = load(waggle_model::bundled("stories260k").unwrap());
    let ids = [1, 2, 3, 4];
    let drafting = GenerateOptions { tokens: 4, draft: Drafts::new(2, 1.5).ok(), ..GenerateOptions::default() };
    assert!(matches!(several(&model, &ids, 2, &drafting), Err(Error::Texts { texts: 2, .. })));
    let options = GenerateOptions { tokens: 2, ..GenerateOptions::default() };
    let none = Input { texts: 0, ..Input::known(&ids) };
    let next = Next::Pick(&mut Sampler::greedy());
    assert!(matches!(
        generate(&mut Float::default(), &model, none, &options, next, &mut NoHooks),
        Err(Error::Nothing)
    ));
    let each = Next::Each(vec![Next::Forced(&[1])]);
    let two = Input::known(&ids).of_texts(2);
    let refused = generate(&mut Float::default(), &model, two, &options, each, &mut NoHooks);
    assert!(matches!(refused, Err(Error::Sources { expected: 2, got: 1 })));
}
