//! All engines write the same text at the same cost on the bundled models, and f32 comes close.

use waggle_engine::FloatLoader;
use waggle_model::{GenerateOptions, Input, Model, ModelFiles, Reveal, bundled, check, quantize};

use crate::parties::agree;

/// Largest difference of a logit between two parties and fixed point, in units of 2^-18: each truncation errs by one
/// unit at random, and the errors of a dozen layers add up.
pub(crate) const MAX_SECURE_ULPS: f32 = 2048.0;

/// Largest difference of a logit between fixed point and f32 on the bundled models.
const MAX_FIXED_ERROR: f32 = 0.02;

/// The same bound for matrices of 8 bits, which leave few fractional bits.
const MAX_NARROW_ERROR: f32 = 0.2;

/// Length of the prompts below.
const PROMPT: u32 = 9;

#[test]
fn one_text_in_all_engines_and_one_cost() {
    let dir = tempfile::tempdir().expect("a directory");
    for (name, reveal, quantized) in [
        ("shakespeare-gpt2", Reveal::Logits, false),
        ("shakespeare-llama", Reveal::Logits, false),
        ("shakespeare-gpt2", Reveal::Token, false),
        ("shakespeare-gpt2", Reveal::Logits, true),
        ("shakespeare-llama", Reveal::Logits, true),
    ] {
        let mut files = bundled(name).expect("bundled");
        if quantized {
            let dir = dir.path().join(name);
            quantize(&files, &dir, None).expect("quantized");
            files = ModelFiles::open(&dir).expect("a model");
        }
        let ids: Vec<u32> = (0..PROMPT).map(|i| (7 * i + 3) % files.spec.vocabulary() as u32).collect();
        let options = GenerateOptions { tokens: 3, reveal, ..GenerateOptions::default() };
        let fixed = agree(name, &files, &ids, &options, MAX_SECURE_ULPS).fixed;
        let float = Model::load(&mut FloatLoader, &files.spec, Some(&files.checkpoint)).expect("float");
        let compared = check(&float, Input::known(&ids), &options, &fixed).expect("check");
        println!("{name}: fixed against float {compared:?}");
        let most = if quantized { MAX_NARROW_ERROR } else { MAX_FIXED_ERROR };
        assert!(compared.max_abs_logit_error.is_some_and(|e| e < most), "{name}: {compared:?}");
    }
}
