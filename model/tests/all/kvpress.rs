//! Policies against kvpress: the tokens that are left of a prompt, and the logits after it.
//!
//! `bench/peers/kvpress/make.py` made `data/kvpress.json`; `bench/peers/README.md` says where the programs differ.

use std::path::{Path, PathBuf};

use ndarray::Array2;
use serde::Deserialize;
use waggle_engine::{Float, FloatLoader};
use waggle_model::{GenerateOptions, Input, Model, ModelFiles, Next, NoHooks, generate_with};
use waggle_mpcache::PolicySpec;

use crate::support::fine;

/// The largest allowed difference of a logit, as a share of the largest logit.
const MAX_LOGIT_ERROR: f32 = 1e-5;

/// Tokens by layer and then by key/value head, in the order of the text.
type Tokens = Vec<Vec<Vec<usize>>>;

#[derive(Deserialize)]
struct Reference {
    prompt: Vec<u32>,
    continuation: Vec<u32>,
    /// The columns of the scoring head that `kvzap` reads, by layer and then by head.
    columns: Vec<Vec<Vec<f32>>>,
    runs: Vec<Run>,
}

#[derive(Deserialize)]
struct Run {
    policy: PolicySpec,
    /// The tokens that are left when the last token of the continuation comes, by the rules of kvpress if these
    /// differ from ours.
    plain: Option<Tokens>,
    /// The tokens that are left by the rules that both programs have.
    kept: Tokens,
    /// The logits after every token of the continuation.
    logits: Vec<Vec<f32>>,
}

/// The checkpoint that kvpress read, with the `columns` of a scoring head, in the directory `dir`.
fn checkpoint(dir: &Path, columns: &[Vec<Vec<f32>>]) -> ModelFiles {
    let from = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/families/llama3"));
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(from.join(file), dir.join(file)).unwrap();
    }
    let ModelFiles { spec, checkpoint, .. } = ModelFiles::open(dir).unwrap();
    let of_layer =
        |heads: &Vec<Vec<f32>>| Array2::from_shape_fn((spec.hidden(), heads.len()), |(i, head)| heads[head][i]);
    let columns: Vec<_> = columns.iter().map(of_layer).collect();
    checkpoint.write_learned(&spec, &columns, &dir.join("kvzap.safetensors")).unwrap();
    ModelFiles::open(dir).unwrap()
}

/// The number of tokens that are in both `a` and `b`.
fn common(a: &Tokens, b: &Tokens) -> usize {
    let heads = a.iter().flatten().zip(b.iter().flatten());
    heads.map(|(a, b)| a.iter().filter(|token| b.contains(token)).count()).sum()
}

/// Prints the numbers of the table in bench/peers/README.md.
#[test]
fn kvpress_keeps_the_same_tokens_and_gives_the_same_logits() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/kvpress.json");
    let Reference { prompt, continuation, columns, runs } =
        serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let ModelFiles { spec, checkpoint, .. } = checkpoint(dir.path(), &columns);
    let (group, last) = (spec.heads()[0].group(), prompt.len() + continuation.len() - 1);
    assert_eq!(runs.len(), 13);
    for Run { policy, plain, kept, logits: want } in runs {
        let model = Model::load_for(&policy, &mut FloatLoader, &spec, Some(&checkpoint)).unwrap();
        let mut cache = model.cache(&policy);
        let options = GenerateOptions { tokens: continuation.len() + 1, ..fine() };
        let (engine, input, next) = (&mut Float::default(), Input::known(&prompt), Next::Forced(&continuation));
        let got = generate_with(engine, &model, &mut cache, input, &options, next, &mut NoHooks).unwrap();

        let of_layer = |layer| {
            let heads = cache.attended(layer).unwrap();
            let sorted = |heads: &[Vec<usize>]| {
                assert!(heads.iter().all(|head| *head == heads[0]), "{policy}: heads that share a key");
                let mut tokens = heads[0].clone();
                tokens.sort_unstable();
                assert_eq!(tokens.pop(), Some(last), "{policy}: the last token finds itself");
                tokens
            };
            heads.chunks(group).map(sorted).collect()
        };
        let ours: Tokens = (0..spec.layers()).map(of_layer).collect();
        assert_eq!(ours, kept, "{policy}");

        // The first row belongs to the prompt, whose tokens see it whole.
        let (logits, want) = (got.logits.unwrap(), want.concat());
        let logits = logits.iter().skip(spec.vocabulary());
        assert_eq!(logits.len(), want.len(), "{policy}");
        let largest = want.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
        let worst = logits.zip(&want).map(|(got, want)| (got - want).abs()).fold(0.0, f32::max) / largest;
        assert!(worst <= MAX_LOGIT_ERROR, "{policy}: a logit is off by {worst} of the largest");

        let [plain, all] = [plain.as_ref().unwrap_or(&kept), &kept].map(|theirs| common(&ours, theirs));
        println!("| `{policy}` | {plain} of {all} | {all} of {all} | {worst:.0e} |");
    }
}
