//! A padded prompt gives the text of the prompt alone, and looks like any other prompt of the padded length.

use serde_json::json;
use waggle_engine::{Float, FloatLoader, Select};
use waggle_model::{
    Error, GenerateOptions, Generation, Input, Model, ModelFiles, Next, NoHooks, Padding, Sampler, bundled, generate,
};
use waggle_protocols::Fixed;

use crate::parties::{agree, load_fixed};
use crate::ranges::altered;
use crate::secure::MAX_SECURE_ULPS;

/// Tokens of the padded prompts.
const LENGTH: usize = 12;

/// Largest difference of a logit that the padding makes in f32. Sums are rounded differently, and for LLaMA so are
/// the angles of equal distances.
const MAX_FLOAT_ERROR: f32 = 1e-3;

/// Largest difference of a logit that the padding makes in fixed point: roundings depend on the positions of rotary
/// embeddings.
const MAX_FIXED_ERROR: f32 = 0.02;

/// `ids` behind padding up to [`LENGTH`] tokens, and the options that declare it.
fn padded(ids: &[u32], tokens: usize) -> (Vec<u32>, GenerateOptions) {
    let padding = LENGTH - ids.len();
    let options = GenerateOptions { tokens, padding: Some(Padding::of(padding)), ..crate::support::fine() };
    ([vec![0; padding], ids.to_vec()].concat(), options)
}

fn run<E: Select>(
    engine: &mut E,
    model: &Model<E::Weight>,
    ids: &[u32],
    options: &GenerateOptions,
) -> Result<Generation, Error> {
    let input = Input::known(ids);
    generate(engine, model, input, options, Next::Pick(&mut Sampler::greedy()), &mut NoHooks)
}

fn largest_difference(a: &Generation, b: &Generation) -> f32 {
    let (a, b) = (a.logits.as_ref().expect("logits"), b.logits.as_ref().expect("logits"));
    assert_eq!(a.dim(), b.dim());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn prompt(files: &ModelFiles, length: usize) -> Vec<u32> {
    (0..length as u32).map(|i| (7 * i + 3) % files.spec.vocabulary() as u32).collect()
}

#[test]
fn padding_changes_no_text_in_the_clear() {
    for name in ["shakespeare-gpt2", "shakespeare-llama"] {
        let files = bundled(name).expect("bundled");
        let ids = prompt(&files, 5);
        let plain = GenerateOptions { tokens: 6, ..crate::support::fine() };
        let (with_padding, options) = padded(&ids, 6);

        let float = Model::load(&mut FloatLoader, &files.spec, Some(&files.checkpoint)).expect("float");
        let alone = run(&mut Float::default(), &float, &ids, &plain).expect("plain");
        let hidden = run(&mut Float::default(), &float, &with_padding, &options).expect("padded");
        assert_eq!(hidden.tokens, alone.tokens, "{name}");
        let error = largest_difference(&hidden, &alone);
        assert!(error < MAX_FLOAT_ERROR, "{name}: {error}");
        // With undeclared padding the same tokens are another text.
        let seen = run(&mut Float::default(), &float, &with_padding, &plain).expect("attended");
        assert!(largest_difference(&seen, &alone) > 10.0 * MAX_FLOAT_ERROR, "{name}: padding is attended to");

        let (fixed, _) = load_fixed(&files.spec, Some(&files.checkpoint), &[]);
        let alone = run(&mut Fixed::new(), &fixed, &ids, &plain).expect("plain");
        let hidden = run(&mut Fixed::new(), &fixed, &with_padding, &options).expect("padded");
        assert_eq!(hidden.tokens, alone.tokens, "{name}");
        let error = largest_difference(&hidden, &alone);
        assert!(error < MAX_FIXED_ERROR, "{name}: {error}");
    }
}

/// The scores of the padding lie some 300 above those of the text, where softmax looks at differences of a few.
#[test]
fn padding_has_no_weight_whatever_its_scores() {
    const WIDTH: usize = 32;
    let config = json!({"model_type": "gpt2", "vocab_size": 40, "n_embd": WIDTH, "n_inner": 48, "n_layer": 1,
                        "n_head": 4, "n_positions": 64});
    let dir = tempfile::tempdir().expect("a directory");
    altered(dir.path(), &config, |weights| {
        let mut of = |name: &str| std::mem::take(&mut weights.get_mut(name).expect(name).data);
        let (mut words, mut places) = (of("transformer.wte.weight"), of("transformer.wpe.weight"));
        let (mut matrix, mut bias) =
            (of("transformer.h.0.attn.c_attn.weight"), of("transformer.h.0.attn.c_attn.bias"));
        // The embedding of the padding's id has only the first coordinate, which the norm makes 5.6. No other id has
        // this coordinate.
        [&mut words, &mut places].into_iter().for_each(|all| all.iter_mut().step_by(WIDTH).for_each(|x| *x = 0.0));
        words[..WIDTH].fill(0.0);
        words[0] = 100.0;
        // In each head one coordinate of the key is eight times 5.6, and the query has 19 there: the score is 19 * 45
        // / sqrt(8).
        for head in (0..WIDTH).step_by(8) {
            matrix.iter_mut().skip(WIDTH + head).step_by(3 * WIDTH).for_each(|x| *x = 0.0);
            matrix[WIDTH + head] = 8.0;
            bias[head] = 19.0;
        }
        for (name, data) in [
            ("transformer.wte.weight", words),
            ("transformer.wpe.weight", places),
            ("transformer.h.0.attn.c_attn.weight", matrix),
            ("transformer.h.0.attn.c_attn.bias", bias),
        ] {
            weights.get_mut(name).expect(name).data = data;
        }
    });
    let files = ModelFiles::open(dir.path()).expect("a model");
    let ids = prompt(&files, 5);
    let plain = GenerateOptions { tokens: 3, ..crate::support::fine() };
    let (with_padding, options) = padded(&ids, 3);
    let float = Model::load(&mut FloatLoader, &files.spec, Some(&files.checkpoint)).expect("float");
    let alone = run(&mut Float::default(), &float, &ids, &plain).expect("plain");
    let hidden = run(&mut Float::default(), &float, &with_padding, &options).expect("padded");
    assert!(largest_difference(&hidden, &alone) < MAX_FLOAT_ERROR);
    let seen = run(&mut Float::default(), &float, &with_padding, &plain).expect("attended");
    assert!(largest_difference(&seen, &alone) > 100.0, "undeclared padding takes all weight");
    let (fixed, _) = load_fixed(&files.spec, Some(&files.checkpoint), &[]);
    let alone = run(&mut Fixed::new(), &fixed, &ids, &plain).expect("plain");
    let hidden = run(&mut Fixed::new(), &fixed, &with_padding, &options).expect("padded");
    assert!(largest_difference(&hidden, &alone) < MAX_FIXED_ERROR);
    // One unit of a key's rounding makes 3600 units of a logit here, even without padding. Weight on padding would be
    // millions.
    let ulps = 32.0 * MAX_SECURE_ULPS;
    agree("the text alone", &files, &ids, &plain, ulps);
    agree("padding with high scores", &files, &with_padding, &options, ulps);
}

#[test]
fn prompts_of_one_padded_length_look_alike_to_the_server() {
    for name in ["shakespeare-gpt2", "shakespeare-llama"] {
        let files = bundled(name).expect("bundled");
        let ledgers = [3, 10].map(|length| {
            let (with_padding, options) = padded(&prompt(&files, length), 2);
            agree(&format!("{name}, {length} tokens"), &files, &with_padding, &options, MAX_SECURE_ULPS).ledger
        });
        assert_eq!(ledgers[0], ledgers[1], "{name}");
    }
}

#[test]
fn what_cannot_be_padded_is_refused() {
    let files = bundled("shakespeare-gpt2").expect("bundled");
    let model = Model::load(&mut FloatLoader, &files.spec, Some(&files.checkpoint)).expect("float");
    let (ids, options) = padded(&[1, 2, 3], 1);
    let policy: waggle_mpcache::PolicySpec = "h2o".parse().expect("a policy");
    let pruned = GenerateOptions { policy, ..options.clone() };
    let error = run(&mut Float::default(), &model, &ids, &pruned).expect_err("a policy would see the padding");
    assert!(matches!(error, Error::PaddedPolicy { .. }), "{error}");
    let all = GenerateOptions { padding: Some(Padding::of(LENGTH)), ..options };
    let error = run(&mut Float::default(), &model, &ids, &all).expect_err("no word is left");
    assert!(matches!(error, Error::AllPadding { tokens: LENGTH, prompt: LENGTH }), "{error}");
}
