//! Texts after public tokens: the same logits as those of the joined text.

use std::sync::Arc;

use ndarray::{Array2, s};
use waggle_engine::{Float, FloatLoader, Select, WeightLoader};
use waggle_model::{Error, GenerateOptions, Input, Model, ModelFiles, Next, NoHooks, Padding, Sampler, generate};
use waggle_mpcache::{PolicySpec, Prefix};
use waggle_protocols::{Evaluation, Fixed, FixedLoader};

use crate::families::{MAX_FIXED_ERROR, MAX_LOGIT_ERROR, Reference, families, references};
use crate::support::{fine, load};

/// The matrices of the public tokens `ids`, before a text that ends at the position `positions`.
fn prefix<E: Select>(
    engine: &mut E,
    model: &Model<E::Weight>,
    ids: &[u32],
    positions: usize,
    policy: &PolicySpec,
    loader: &mut dyn WeightLoader<Weight = E::Weight>,
) -> Result<Arc<Prefix<E::Weight>>, Error> {
    let layers = model.read_prefix(engine, Input::known(ids), positions, policy)?;
    Ok(Prefix::load("of a test", ids.len(), &layers, loader)?.into())
}

/// The logits of all positions of `ids` behind the first `public`, which are public. Of the others, `prompt` are
/// read together, and then one after another.
fn after<E: Select>(
    engine: &mut E,
    model: &Model<E::Weight>,
    ids: &[u32],
    [public, prompt]: [usize; 2],
    loader: &mut dyn WeightLoader<Weight = E::Weight>,
) -> Array2<f32> {
    let (before, ids_after) = ids.split_at(public);
    let full = PolicySpec::default();
    let prefix = prefix(engine, model, before, ids.len(), &full, loader).unwrap();
    let model = &model.after(prefix);
    let (read, forced) = ids_after.split_at(prompt);
    let options = GenerateOptions { tokens: forced.len() + 1, all_positions: true, ..fine() };
    let (input, next) = (Input::known(read), Next::Forced(forced));
    generate(engine, model, input, &options, next, &mut NoHooks).unwrap().logits.unwrap()
}

/// Compares the logits `got` of the positions from `public` on.
fn compare(reference: &Reference, public: usize, got: Array2<f32>, within: f32, what: &str) {
    let mut all = reference.logits().clone();
    all.slice_mut(s![public.., ..]).assign(&got);
    reference.compare(&all, within, what);
}

/// Windows end within the prefix, at its end and behind it; positions go on, sinks and caps count.
#[test]
fn every_family_goes_on_behind_public_tokens() {
    for (name, dir) in families() {
        let files = ModelFiles::open(&dir).unwrap();
        let fixed = Model::load(&mut FixedLoader::default(), &files.spec, Some(&files.checkpoint)).unwrap();
        let model = load(files);
        for reference in references(&dir) {
            let ids = &reference.ids;
            for lengths in [[1, 1], [4, 5], [ids.len() - 4, 2], [ids.len() - 1, 1]] {
                let what = format!("{name}, {lengths:?} of {}", ids.len());
                let got = after(&mut Float::default(), &model, ids, lengths, &mut FloatLoader);
                compare(&reference, lengths[0], got, MAX_LOGIT_ERROR, &what);
                for evaluation in [Evaluation::Lookup, Evaluation::Masked] {
                    let engine = &mut Fixed::evaluating(evaluation);
                    let got = after(engine, &fixed, ids, lengths, &mut FixedLoader::default());
                    compare(&reference, lengths[0], got, MAX_FIXED_ERROR, &what);
                }
            }
        }
    }
}

/// Every policy attends to the whole prefix, whatever it keeps of the text: behind a prefix that is the whole prompt
/// but for a token, a policy that keeps all but one token changes little.
#[test]
fn policies_go_on_behind_public_tokens() {
    let files = waggle_model::bundled("shakespeare-llama").unwrap();
    let model = load(files);
    let ids: Vec<u32> = (0..40).map(|i| i * 7 % 60).collect();
    let full = PolicySpec::default();
    let run = |public: usize, policy: &PolicySpec| {
        let (engine, before) = (&mut Float::default(), &ids[..public]);
        let prefix = |engine: &mut _| prefix(engine, &model, before, 60, &full, &mut FloatLoader).unwrap();
        let after = (public > 0).then(|| model.after(prefix(engine)));
        let options = GenerateOptions { tokens: 12, policy: policy.clone(), ..fine() };
        let (input, mut greedy) = (Input::known(&ids[public..]), Sampler::greedy());
        let next = Next::Pick(&mut greedy);
        generate(engine, after.as_ref().unwrap_or(&model), input, &options, next, &mut NoHooks).unwrap()
    };
    let joined = run(0, &full);
    assert_eq!(run(24, &full).tokens, joined.tokens);
    let scale = joined.logits.as_ref().unwrap().iter().fold(0.0f32, |most, x| most.max(x.abs()));
    for policy in [
        "streaming:budget=14,sinks=1",
        "h2o:budget=14",
        "snapkv:budget=0.9,window=4",
        "tova:budget=14",
        "mpcache:budget=0.9,clusters=4/2",
        "quest:budget=0.9,clusters=4,sinks=4",
        "mpcache-scores:budget=0.9",
        "keyformer:budget=0.9,recent=4",
        "duo:heads=1,block=4,budget=0.9",
        "fastgen:budget=0.9",
        "random:budget=0.9",
    ] {
        let policy: PolicySpec = policy.parse().unwrap_or_else(|error| panic!("{policy}: {error}"));
        let got = run(24, &policy).logits.unwrap();
        let want = joined.logits.as_ref().unwrap();
        let worst = got.row(0).iter().zip(want.row(0)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 0.1 * scale, "{policy}: off by {worst} of {scale}");
    }
}

/// What the server keeps of a prefix is fewer tokens; texts side by side have one prefix.
#[test]
fn a_prefix_is_pruned_and_shared_by_texts() {
    let model = load(waggle_model::bundled("shakespeare-llama").unwrap());
    let (ids, full) = ((0..30).map(|i| i * 7 % 60).collect::<Vec<u32>>(), PolicySpec::default());
    let engine = &mut Float::default();
    let policy: PolicySpec = "snapkv:budget=0.25,window=4".parse().unwrap();
    let layers = model.read_prefix(engine, Input::known(&ids), 60, &policy).unwrap();
    assert!(layers.iter().all(|layer| (4..15).contains(&layer.held)), "{:?}", layers[0].held);
    let whole = prefix(engine, &model, &ids, 60, &full, &mut FloatLoader).unwrap();
    let kept = Arc::new(Prefix::load("kept", ids.len(), &layers, &mut FloatLoader).unwrap());
    let texts = [[1u32, 5, 9], [3, 3, 8]];
    let mut run = |prefix: &Arc<Prefix<_>>, texts: &[[u32; 3]]| {
        let (all, model) = (texts.concat(), model.after(prefix.clone()));
        let options = GenerateOptions { tokens: 4, ..fine() };
        let each = &mut [Sampler::greedy(), Sampler::greedy()];
        let mut each: Vec<Next> = each.iter_mut().take(texts.len()).map(Next::Pick).collect();
        let next = if let [_] = &each[..] { each.remove(0) } else { Next::Each(each) };
        let input = Input::known(&all).of_texts(texts.len());
        generate(engine, &model, input, &options, next, &mut NoHooks).unwrap()
    };
    let both = run(&whole, &texts);
    let alone: Vec<u32> = texts.iter().flat_map(|text| run(&whole, &[*text]).tokens).collect();
    assert_eq!(both.tokens, alone);
    assert!(run(&kept, &texts[..1]).logits != run(&whole, &texts[..1]).logits);
}

#[test]
fn what_no_prefix_can_be_is_refused() {
    let model = load(waggle_model::bundled("shakespeare-llama").unwrap());
    let (full, engine) = (PolicySpec::default(), &mut Float::default());
    let limit = model.spec().max_positions();
    let long = vec![1; limit];
    let refused = model.read_prefix(engine, Input::known(&long), limit, &full);
    assert!(matches!(refused, Err(Error::TooLong { .. })));
    assert!(matches!(model.read_prefix(engine, Input::known(&[]), limit, &full), Err(Error::Nothing)));
    let beyond = model.read_prefix(engine, Input::known(&[1, 1 << 20]), limit, &full);
    assert!(matches!(beyond, Err(Error::Engine(waggle_engine::Error::Token { .. }))), "{beyond:?}");
    let divided: PolicySpec = "duo:heads=1,block=4,budget=0.5".parse().unwrap();
    let divided = model.read_prefix(engine, Input::known(&[1; 30]), limit, &divided);
    assert!(matches!(divided, Err(Error::PrefixPolicy(_))), "{divided:?}");
    let prefix = prefix(engine, &model, &[1, 2, 3], limit, &full, &mut FloatLoader).unwrap();
    let (model, mut greedy) = (model.after(prefix), Sampler::greedy());
    let mut run = |ids: &[u32], padding: Option<Padding>| {
        let options = GenerateOptions { tokens: 1, padding, ..fine() };
        let next = Next::Pick(&mut greedy);
        generate(engine, &model, Input::known(ids), &options, next, &mut NoHooks)
    };
    assert!(matches!(run(&[0, 4], Some(Padding::of(1))), Err(Error::PaddedPrefix)));
    assert!(run(&long[3..], None).is_ok());
    assert!(matches!(run(&long[2..], None), Err(Error::TooLong { .. })));
}
