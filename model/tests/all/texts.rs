//! Texts that a decoder goes on with side by side: each is the text that it is alone.

use std::collections::VecDeque;
use std::num::NonZeroUsize;

use engine::Float;
use model::{
    Drafts, Error, GenerateOptions, Generation, Input, ModelFiles, Newcomer, Next, NoHooks, Padding, Sampler,
    Waiting, check, generate, passes_of_queue,
};
use mpcache::PolicySpec;
use proptest::prelude::*;

use crate::families::families;
use crate::support::{FloatModel, load};

/// Largest difference of a logit to that of the text alone, as a share of the largest one.
const MAX_ERROR: f32 = 1e-5;

fn several(model: &FloatModel, ids: &[u32], texts: usize, options: &GenerateOptions) -> Result<Generation, Error> {
    let next = Next::Pick(&mut Sampler::greedy());
    generate(&mut Float::default(), model, Input::known(ids).of_texts(texts), options, next, &mut NoHooks)
}

/// `got` has the tokens and the logits of `alone`, one generation for each text.
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
    let model = load(model::bundled("stories260k").unwrap());
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
    // A word that one of them says first, and another later or never, ends each where it stands.
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

/// Texts that wait, and the place that each takes.
struct Line {
    texts: VecDeque<Newcomer>,
    taken: Vec<usize>,
}

impl Waiting for Line {
    fn next(&mut self, place: usize, passes: usize) -> Option<Newcomer> {
        let fits = self.texts.front().is_some_and(|text| text.passes() <= passes);
        fits.then(|| self.taken.push(place)).and_then(|()| self.texts.pop_front())
    }
}

/// Two at a time, with `tokens` each.
fn queued(
    model: &FloatModel,
    prompts: &[&[u32]],
    tokens: usize,
    stop_at_eos: bool,
) -> Result<(Generation, Vec<usize>), Error> {
    let (first, rest) = prompts.split_at(2);
    let longest = first.iter().map(|ids| ids.len()).max().unwrap_or(0);
    let padding: Vec<usize> = first.iter().map(|ids| longest - ids.len()).collect();
    let ids: Vec<u32> = first.iter().flat_map(|ids| [vec![0; longest - ids.len()], ids.to_vec()].concat()).collect();
    let newcomer = |ids: &&[u32]| Newcomer { ids: ids.to_vec(), tokens, sampler: Sampler::greedy() };
    let mut line = Line { texts: rest.iter().map(newcomer).collect(), taken: Vec::new() };
    let lengths: Vec<usize> = prompts.iter().map(|ids| ids.len()).collect();
    let options = GenerateOptions {
        tokens: passes_of_queue(&lengths, 2, tokens),
        stop_at_eos,
        padding: Some(Padding { tokens: Some(padding) }),
        ..GenerateOptions::default()
    };
    let mut samplers = [Sampler::greedy(), Sampler::greedy()];
    let first = samplers.iter_mut().map(|sampler| (Next::Pick(sampler), tokens)).collect();
    let next = Next::Queue { first, waiting: &mut line };
    let input = Input::known(&ids).of_texts(2);
    let got = generate(&mut Float::default(), model, input, &options, next, &mut NoHooks)?;
    Ok((got, line.taken))
}

#[test]
fn a_text_that_waits_takes_the_place_of_one_that_ends() {
    for (name, dir) in families() {
        let model = load(ModelFiles::open(&dir).unwrap());
        let words = model.spec().vocabulary() as u32;
        let ids: Vec<u32> = (0..30).map(|i| (i * i + 5 * i + 1) % words).collect();
        let prompts = [&ids[..3], &ids[3..8], &ids[8..12], &ids[12..13], &ids[13..20]];
        let options = GenerateOptions { tokens: 4, ..GenerateOptions::default() };
        let alone: Vec<_> = prompts.iter().map(|ids| several(&model, ids, 1, &options).unwrap()).collect();
        if name == "phi3-longrope" {
            let refused = queued(&model, &prompts, 4, false).unwrap_err();
            assert!(matches!(refused, Error::Queue { .. }), "the session is longer than any of its texts");
            continue;
        }
        let (together, taken) = queued(&model, &prompts, 4, false).unwrap();
        assert_same(&together, &alone, &name);
        assert_eq!(taken, [0, 1, 1], "{name}");
        assert_eq!(together.count, 4 + 4 + 10, "{name}");
    }
}

#[test]
fn places_of_texts_that_end_early_are_free_early() {
    let plain = load(model::bundled("stories260k").unwrap());
    let prompts: [&[u32]; 5] = [&[1, 403, 407], &[1, 410, 261, 378], &[1, 403], &[1, 278, 440, 11], &[1, 391]];
    let options = GenerateOptions { tokens: 12, ..GenerateOptions::default() };
    let alone: Vec<_> = prompts.iter().map(|ids| several(&plain, ids, 1, &options).unwrap()).collect();
    let end = alone[0].tokens[3];
    let (ended, _) = queued(&with_end("stories260k", end), &prompts, 12, true).unwrap();
    let mut early = 0;
    for (got, text) in ended.texts().zip(&alone) {
        let length = text.tokens.iter().position(|token| *token == end).map_or(12, |at| at + 1);
        assert_eq!(got, &text.tokens[..length]);
        early += 12 - length;
    }
    let lengths: Vec<usize> = prompts.iter().map(|ids| ids.len()).collect();
    let most = passes_of_queue(&lengths, 2, 12);
    assert!(early > 0 && ended.count < most, "{} of {most} passes", ended.count);
}

#[test]
fn what_does_not_go_with_a_queue_is_refused() {
    let model = load(model::bundled("stories260k").unwrap());
    let refused = |options: &GenerateOptions| {
        let mut line = Line { texts: VecDeque::new(), taken: Vec::new() };
        let mut sampler = Sampler::greedy();
        let next = Next::Queue { first: vec![(Next::Pick(&mut sampler), 2)], waiting: &mut line };
        generate(&mut Float::default(), &model, Input::known(&[1, 2, 3]), options, next, &mut NoHooks).unwrap_err()
    };
    let plain = GenerateOptions { tokens: 4, ..GenerateOptions::default() };
    let padded = GenerateOptions { padding: Some(Padding::of(0)), ..plain.clone() };
    for options in [
        plain,
        GenerateOptions { draft: Drafts::new(2, 1.5).ok(), ..padded.clone() },
        GenerateOptions { all_positions: true, ..padded },
    ] {
        assert!(matches!(refused(&options), Error::Queue { .. }), "{options:?}");
    }
}

proptest! {
    /// Texts that end early free places no later than passes are counted.
    #[test]
    fn no_text_is_left_when_the_passes_are_over(
        texts in prop::collection::vec((1..9usize, 1..=6usize), 1..12),
        places in 1..5usize,
    ) {
        let words: Vec<usize> = texts.iter().map(|(words, _)| *words).collect();
        let passes = passes_of_queue(&words, places, 6);
        let (first, waiting) = texts.split_at(places.min(texts.len()));
        let mut free: Vec<usize> = first.iter().map(|(_, tokens)| *tokens).collect();
        for (words, tokens) in waiting {
            let next = free.iter_mut().min().unwrap();
            prop_assert!(*next + words + 6 - 1 <= passes, "the worst that its owner expects fits");
            *next += words + tokens - 1;
        }
        prop_assert!(free.iter().all(|passes_used| *passes_used <= passes));
    }
}

/// A bundled model whose texts end with `id`.
fn with_end(name: &str, id: u32) -> FloatModel {
    let files = model::bundled(name).unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(&files.config).unwrap();
    config["eos_token_id"] = id.into();
    let spec = model::ModelSpec::from_config_json(config.to_string().as_bytes()).unwrap();
    load(ModelFiles { spec, ..files })
}

/// Every policy decides for each text what it decides for it alone, or says that it cannot.
#[test]
fn policies_decide_for_each_text() {
    let sinks = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/families/granite-sinks");
    decide(&|| model::bundled("shakespeare-llama").unwrap());
    decide(&|| ModelFiles::open(sinks.as_ref()).unwrap());
}

/// Every policy that may decides for two texts as it does for each.
fn decide(files: &dyn Fn() -> ModelFiles) {
    let words = files().spec.vocabulary() as u32;
    let ids: Vec<u32> = (0..2 * 40).map(|i| (i * i * 7 + 3 * i + 1) % words).collect();
    let mut checked = 0;
    for name in PolicySpec::known() {
        let with = |options: &str| format!("{name}:{options}").parse::<PolicySpec>();
        let Ok(policy) = with("budget=0.5").or_else(|_| name.parse()) else { continue };
        if files().spec.check_policy(&policy).is_err() || policy.needs_scoring_head() {
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
    let model = load(model::bundled("stories260k").unwrap());
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
