//! The laws that hold the engines together, on the bundled models, and f32 beside them.

use engine::FloatLoader;
use model::{GenerateOptions, Model, Reveal, bundled, check};

use crate::parties::agree;

/// Largest difference of a logit between two parties and fixed point, in units of 2^-18: truncations err by one unit
/// each, at random, and a dozen layers of them add up.
pub(crate) const MAX_SECURE_ULPS: f32 = 2048.0;

/// Largest difference of a logit between fixed point and f32 on the bundled models.
const MAX_FIXED_ERROR: f32 = 0.02;

/// Length of the prompts below.
const PROMPT: u32 = 9;

#[test]
fn one_text_in_all_engines_and_one_cost() {
    for (name, reveal) in [
        ("shakespeare-gpt2", Reveal::Logits),
        ("shakespeare-llama", Reveal::Logits),
        ("shakespeare-gpt2", Reveal::Token),
    ] {
        let files = bundled(name).expect("bundled");
        let ids: Vec<u32> = (0..PROMPT).map(|i| (7 * i + 3) % files.spec.vocabulary() as u32).collect();
        let options = GenerateOptions { tokens: 3, reveal, ..GenerateOptions::default() };
        let fixed = agree(name, &files, &ids, &options, MAX_SECURE_ULPS).fixed;
        let float = Model::load(&mut FloatLoader, &files.spec, Some(&files.checkpoint)).expect("float");
        let compared = check(&float, &ids, &options, &fixed).expect("check");
        println!("{name}: fixed against float {compared:?}");
        assert!(compared.max_abs_logit_error.is_some_and(|e| e < MAX_FIXED_ERROR), "{name}: {compared:?}");
    }
}
