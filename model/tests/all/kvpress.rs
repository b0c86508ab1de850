//! Policies against kvpress: what is left of a prompt, and the logits after it.
//!
//! `data/kvpress.json` was made by `bench/peers/kvpress/make.py`, whose README says how both are given the same
//! parameters, and where the two programs differ by design.

use std::path::{Path, PathBuf};

use engine::{Float, FloatLoader};
use model::{GenerateOptions, Input, LEARNED_FILE, Model, ModelFiles, Next, NoHooks, generate_with};
use mpcache::PolicySpec;
use ndarray::Array2;
use serde::Deserialize;

use crate::support::fine;

/// Largest difference of a logit, as a share of the largest one.
const MAX_LOGIT_ERROR: f32 = 1e-5;

#[derive(Deserialize)]
struct Reference {
    prompt: Vec<u32>,
    continuation: Vec<u32>,
    /// Of the scoring head that KVzap wants, by layer and head.
    columns: Vec<Vec<Vec<f32>>>,
    runs: Vec<Run>,
}

#[derive(Deserialize)]
struct Run {
    policy: PolicySpec,
    /// By layer and key/value head the tokens that the last one of the continuation finds.
    kept: Vec<Vec<Vec<usize>>>,
    /// After every token of the continuation.
    logits: Vec<Vec<f32>>,
}

fn reference() -> Reference {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/kvpress.json");
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

/// The checkpoint that kvpress read, with the `columns` of a scoring head, in the directory `dir`.
fn checkpoint(dir: &Path, columns: &[Vec<Vec<f32>>]) -> ModelFiles {
    let from = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/families/llama3"));
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(from.join(file), dir.join(file)).unwrap();
    }
    let ModelFiles { spec, checkpoint, .. } = ModelFiles::open(dir).unwrap();
    let layer = |heads: &Vec<Vec<f32>>| Array2::from_shape_fn((spec.hidden(), heads.len()), |(i, head)| heads[head][i]);
    let columns: Vec<_> = columns.iter().map(layer).collect();
    checkpoint.write_learned(&spec, &columns, &dir.join(LEARNED_FILE)).unwrap();
    ModelFiles::open(dir).unwrap()
}

/// Prints the numbers of the table in bench/peers/README.md.
#[test]
fn kvpress_keeps_the_same_tokens_and_gives_the_same_logits() {
    let Reference { prompt, continuation, columns, runs } = reference();
    let dir = tempfile::tempdir().unwrap();
    let ModelFiles { spec, checkpoint, .. } = checkpoint(dir.path(), &columns);
    assert!(runs.len() >= 12, "{}", runs.len());
    for Run { policy, kept, logits: want } in runs {
        let model = Model::load_for(&policy, &mut FloatLoader, &spec, Some(&checkpoint)).unwrap();
        let mut cache = model.cache(&policy);
        let options = GenerateOptions { tokens: continuation.len() + 1, policy: policy.clone(), ..fine() };
        let (engine, input, next) = (&mut Float::default(), Input::known(&prompt), Next::Forced(&continuation));
        let got = generate_with(engine, &model, &mut cache, input, &options, next, &mut NoHooks).unwrap();

        let (mut same, mut all) = (0, 0);
        for (layer, heads) in kept.iter().enumerate() {
            let attended = cache.attended(layer).unwrap();
            for (head, attended) in attended.iter().enumerate() {
                let kept = &heads[head / spec.heads().group()];
                // The last token finds itself, too.
                let mut attended = attended.clone();
                attended.sort_unstable();
                assert_eq!(attended.pop(), Some(prompt.len() + continuation.len() - 1), "{policy}");
                same += attended.iter().filter(|token| kept.contains(token)).count();
                all += kept.len();
                if attended != *kept { println!("{policy} layer {layer} head {head}: {attended:?} against {kept:?}"); }
            }
        }
        // The first row is that of the prompt, which sees itself whole.
        let logits = got.logits.unwrap();
        let largest = want.iter().flatten().fold(0.0, |most: f32, x| most.max(x.abs()));
        let errors = logits.iter().skip(spec.vocabulary()).zip(want.iter().flatten()).map(|(got, want)| (got - want).abs());
        let worst = errors.fold(0.0, f32::max) / largest;
        println!("| `{policy}` | {same} of {all} | {worst:.1e} |");
    }
}
