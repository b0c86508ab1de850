//! Thousands of positions: the engines agree, and a plan equals the ledger.

use std::path::Path;

use waggle_engine::{Engine, FloatLoader, Right};
use waggle_model::{GenerateOptions, Input, Model, ModelFiles, Next, NoHooks, Sampler, check, generate};
use waggle_planner::Planner;
use waggle_protocols::functions::softmax::MAX_SOFTMAX_COLUMNS;
use waggle_protocols::{Fixed, Options, Shape};

use crate::parties::{agree, load_fixed};
use crate::support::tiny::write_model;

/// One layer, so that only the last query of a prompt is computed.
const CONFIG: &str = r#"{"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 8,
    "num_attention_heads": 2, "vocab_size": 11, "max_position_embeddings": 32800, "rope_theta": 500000.0}"#;

/// Largest difference of a logit between fixed point and f32. Probabilities are a few units in the product with the
/// values, and their roundings add up: as the root of the number of positions where roundings differ, and as the
/// number itself in flat parts of a row, which are rounded alike (`protocols/README.md`, "The length of a row of
/// attention").
fn max_fixed_error(positions: usize) -> f32 {
    0.05f32.max(positions as f32 / (1 << 18) as f32)
}

/// Largest difference of a logit between two parties and fixed point, in units of 2^-18: 0.05.
const MAX_SECURE_ULPS: f32 = 13_107.0;

/// The model with weights so large that attention has peaks.
fn model(dir: &Path) -> ModelFiles {
    write_model(dir, CONFIG);
    ModelFiles::open(dir).unwrap()
}

/// Random numbers of 32 bits.
fn numbers(seed: u64) -> impl Iterator<Item = u64> {
    let step = |state: &u64| Some(state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f));
    std::iter::successors(Some(seed), step).skip(1).map(|state| state >> 32)
}

fn prompt(length: usize) -> Vec<u32> {
    numbers(9).take(length).map(|n| (n % 11) as u32).collect()
}

#[test]
fn fixed_point_agrees_with_f32() {
    let dir = tempfile::tempdir().unwrap();
    let files = model(dir.path());
    let (fixed, _) = load_fixed(&files.spec, Some(&files.checkpoint), &[]);
    let float = Model::load(&mut FloatLoader, &files.spec, Some(&files.checkpoint)).unwrap();
    let options = GenerateOptions { tokens: 3, ..GenerateOptions::default() };
    // With the generated tokens the first row grows beyond the 4096 columns that a narrow ring takes.
    for length in [4095, 6000, 32_768] {
        let ids = prompt(length);
        let input = Input::of(Some(&ids), length);
        let next = &mut Sampler::greedy();
        let got = generate(&mut Fixed::new(), &fixed, input, &options, Next::Pick(next), &mut NoHooks).unwrap();
        let compared = check(&float, Input::known(&ids), &options, &got).unwrap();
        println!("{length} positions: {compared:?}");
        assert!(compared.max_abs_logit_error.is_some_and(|e| e < max_fixed_error(length)), "{length}: {compared:?}");
    }
}

#[test]
fn two_parties_agree_with_fixed_point_and_with_the_plan() {
    let dir = tempfile::tempdir().unwrap();
    let files = model(dir.path());
    let ids = prompt(5000);
    let options = GenerateOptions { tokens: 2, ..GenerateOptions::default() };
    agree("5000 positions", &files, &ids, &options, MAX_SECURE_ULPS);
}

/// Attention of one token over as many positions as softmax takes, on shapes.
#[test]
fn the_longest_row_can_be_planned() {
    let n = MAX_SOFTMAX_COLUMNS;
    for preprocess in [false, true] {
        let mut plan = Planner::new(Options { preprocess, ..Options::default() }).engine();
        let [q, k, v] = [[8, 1, 64], [8, 64, n], [8, n, 64]].map(|shape| Shape(shape.to_vec()));
        let scores = plan.matmul(&q, Right::Fresh(&k)).unwrap();
        let p = plan.softmax(&scores, std::slice::from_ref(&(0..n))).unwrap();
        let mixed = plan.matmul(&p, Right::Fresh(&v)).unwrap();
        assert_eq!(mixed.0, [8, 1, 64]);
        let scores = Shape(vec![1, 1, n + 1]);
        assert!(
            plan.softmax(&scores, std::slice::from_ref(&(0..n + 1)))
                .unwrap_err()
                .to_string()
                .contains("at most 131072")
        );
    }
}
