//! Every family against the program of its authors, on tiny checkpoints of `references/make.py`: logits of the whole
//! text at once, token by token and in pieces. Then come the laws by which the engines agree.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use ndarray::Array2;
use serde_json::Value;
use waggle_engine::{Float, Select};
use waggle_model::{
    Checkpoint, CheckpointError, DType, Drafts, GenerateOptions, Input, Model, ModelFiles, Next, NoHooks, Padding,
    PromptLookup, Sampler, TensorSpec, check, generate, write_safetensors,
};
use waggle_mpcache::PolicySpec;
use waggle_protocols::{Evaluation, Fixed, FixedLoader};

use crate::support::{load, logits, sampled};

/// The largest allowed difference to a reference logit, as a share of the largest logit.
pub(crate) const MAX_LOGIT_ERROR: f32 = 1e-4;

/// The largest allowed difference between fixed point and f32, as a share of the largest logit.
pub(crate) const MAX_FIXED_ERROR: f32 = 5e-3;

/// A text, and the logits of its authors' program at every position.
pub(crate) struct Reference {
    pub(crate) ids: Vec<u32>,
    logits: Array2<f32>,
}

impl Reference {
    /// The logits of all positions.
    pub(crate) fn logits(&self) -> &Array2<f32> {
        &self.logits
    }

    fn scale(&self) -> f32 {
        self.logits.iter().fold(0.0, |most: f32, x| most.max(x.abs()))
    }

    /// The largest error of `got`, which is at most `within`, both as shares of the largest logit.
    pub(crate) fn compare(&self, got: &Array2<f32>, within: f32, what: &str) -> f32 {
        assert_eq!(got.dim(), self.logits.dim(), "{what}");
        let scale = self.scale();
        let mut worst = 0.0f32;
        for ((at, got), want) in got.indexed_iter().zip(&self.logits) {
            let error = (got - want).abs() / scale;
            assert!(error <= within, "{what}, {at:?}: {got} against {want}, of {scale}");
            worst = worst.max(error);
        }
        worst
    }
}

/// The directories of `references/make.py`.
pub(crate) fn families() -> Vec<(String, PathBuf)> {
    let all = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/families"));
    let mut found: Vec<_> = std::fs::read_dir(all)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), entry.path()))
        .collect();
    found.sort();
    assert!(found.len() >= 14, "{found:?}");
    found
}

pub(crate) fn references(dir: &std::path::Path) -> Vec<Reference> {
    let value: Value = serde_json::from_slice(&std::fs::read(dir.join("reference.json")).unwrap()).unwrap();
    let rows = |value: &Value| -> Array2<f32> {
        let rows: Vec<Vec<f32>> = serde_json::from_value(value.clone()).unwrap();
        Array2::from_shape_vec((rows.len(), rows[0].len()), rows.concat()).unwrap()
    };
    let all = value["sequences"].as_array().unwrap();
    let found: Vec<_> = all
        .iter()
        .map(|sequence| Reference {
            ids: serde_json::from_value(sequence["ids"].clone()).unwrap(),
            logits: rows(&sequence["logits"]),
        })
        .collect();
    assert_eq!(found.iter().map(|reference| reference.ids.len()).collect::<Vec<_>>(), [44, 11]);
    found
}

/// The logits of every position of `ids`. The first `prompt` ids are the prompt and are read in chunks of `chunk`
/// tokens.
pub(crate) fn forced<E: Select>(
    engine: &mut E,
    model: &Model<E::Weight>,
    ids: &[u32],
    prompt: usize,
    chunk: Option<usize>,
) -> Array2<f32> {
    let options = GenerateOptions {
        tokens: ids.len() - prompt + 1,
        all_positions: true,
        prefill_chunk: chunk.and_then(NonZeroUsize::new),
        ..crate::support::fine()
    };
    let input = Input::known(&ids[..prompt]);
    let next = Next::Forced(&ids[prompt..]);
    generate(engine, model, input, &options, next, &mut NoHooks).unwrap().logits.unwrap()
}

/// In long texts windows evict tokens, rotary embeddings go on, and frequencies may be others from the first token
/// on. Prints the errors that bench/results/a-token.md sums up.
#[test]
fn every_family_equals_the_program_of_its_authors() {
    println!("| checkpoint | f32, at once | token by token | in chunks | fixed point, one phase | two phases |");
    println!("|---|---|---|---|---|---|");
    for (name, dir) in families() {
        let files = ModelFiles::open(&dir).unwrap();
        let fixed = Model::load(&mut FixedLoader::default(), &files.spec, Some(&files.checkpoint)).unwrap();
        let model = load(files);
        let mut worst = [0.0f32; 5];
        for reference in references(&dir) {
            let (ids, all) = (&reference.ids, reference.ids.len());
            let float = |prompt, chunk| {
                let got = forced(&mut Float::default(), &model, ids, prompt, chunk);
                reference.compare(&got, MAX_LOGIT_ERROR, &format!("{name}, prompt {prompt}, chunk {chunk:?}"))
            };
            let fixed = |evaluation| {
                let got = forced(&mut Fixed::evaluating(evaluation), &fixed, ids, 30.min(all), None);
                reference.compare(&got, MAX_FIXED_ERROR, &format!("{name}, {evaluation:?}"))
            };
            let errors = [
                reference.compare(&logits(&model, ids), MAX_LOGIT_ERROR, &name),
                float(1, None).max(float(5, None)),
                float(all, Some(7)).max(float(11, Some(4))),
                fixed(Evaluation::Lookup),
                fixed(Evaluation::Masked),
            ];
            worst.iter_mut().zip(errors).for_each(|(worst, error)| *worst = worst.max(error));
        }
        println!("| {name} | {} |", worst.map(|error| format!("{error:.1e}")).join(" | "));
    }
}

/// A policy prunes the layers that see all tokens. A model without such layers refuses it.
#[test]
fn policies_act_on_layers_without_windows() {
    for (name, dir) in families() {
        let files = ModelFiles::open(&dir).unwrap();
        let windows = files.spec.attention();
        let policy: PolicySpec = "streaming:budget=12,sinks=1".parse().unwrap();
        let model = load(files);
        let ids = &references(&dir)[0].ids;
        let options = GenerateOptions { tokens: 8, policy, ..crate::support::fine() };
        match sampled(&model, ids, &options, &mut Sampler::greedy()) {
            Ok(pruned) => {
                assert!(windows.pruned() > 0, "{name}");
                let compared = check(
                    &model,
                    Input::known(ids),
                    &GenerateOptions { policy: PolicySpec::default(), ..options },
                    &pruned,
                );
                assert!(compared.unwrap().max_abs_logit_error.unwrap() > 0.0, "{name}: something is pruned");
            }
            Err(error) if !windows.shared.is_empty() => {
                assert!(matches!(error, waggle_model::Error::SharedPolicy { .. }), "{name}: {error}");
            }
            Err(error) => {
                assert!(windows.pruned() == 0, "{name}: {error}");
                assert!(matches!(error, waggle_model::Error::WindowedPolicy { .. }), "{name}: {error}");
            }
        }
    }
}

/// Guesses that are taken back, and padding before a prompt, do not change the text, even where a window ends.
#[test]
fn drafts_and_padding_change_no_text() {
    for (name, dir) in families() {
        let model = load(ModelFiles::open(&dir).unwrap());
        let reference = &references(&dir)[0];
        let run = |ids: &[u32], options: &GenerateOptions| {
            let (mut sampler, mut guess) = (Sampler::greedy(), PromptLookup);
            let next = match options.draft {
                Some(_) => Next::Drafted { sampler: &mut sampler, guess: &mut guess },
                None => Next::Pick(&mut sampler),
            };
            let input = Input::known(ids);
            generate(&mut Float::default(), &model, input, options, next, &mut NoHooks).unwrap()
        };
        let ids = &reference.ids[..6];
        let plain = GenerateOptions { tokens: 20, ..crate::support::fine() };
        let alone = run(ids, &plain);
        let drafted = run(ids, &GenerateOptions { draft: Some(Drafts::new(3, 1.0).unwrap()), ..plain.clone() });
        assert_eq!(drafted.tokens, alone.tokens, "{name}");
        assert!(drafted.passes.iter().any(|kept| *kept < 4), "{name}: some guesses are wrong");

        let padding = Some(Padding::of(8));
        let padded = run(&[&[0; 8], ids].concat(), &GenerateOptions { padding, ..plain });
        assert_eq!(padded.tokens, alone.tokens, "{name}");
        let (got, want) = (padded.logits.unwrap(), alone.logits.unwrap());
        let worst = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 10.0 * MAX_LOGIT_ERROR * reference.scale(), "{name}: a logit is off by {worst}");
    }
}

/// Published files may hold keys and values for layers that read those of other layers. These tensors are not read.
#[test]
fn keys_that_no_layer_reads_are_left_out() {
    let dir = families().into_iter().find(|(name, _)| name == "gemma4-shared").unwrap().1;
    let spec = ModelFiles::open(&dir).unwrap().spec;
    let check = |extra: &str| {
        let mut tensors = spec.tensors();
        tensors.push(TensorSpec::new(extra, [2]));
        let dir = tempfile::tempdir().unwrap();
        write_safetensors(&dir.path().join("model.safetensors"), &tensors, DType::F16, |tensor, values| {
            values.resize(tensor.shape.iter().product(), 0.5);
            Ok(())
        })
        .unwrap();
        Checkpoint::open(dir.path()).unwrap().check_all(&spec)
    };
    for name in ["k_proj", "v_proj", "k_norm"] {
        check(&format!("model.layers.4.self_attn.{name}.weight")).unwrap();
    }
    for name in ["model.layers.4.self_attn.v_norm.weight", "model.layers.8.self_attn.k_proj.weight"] {
        assert!(matches!(check(name), Err(CheckpointError::Unread { .. })), "{name}");
    }
}

/// Tensors that a family's program does not read are refused by name: a norm, a bias, an expert.
#[test]
fn unread_tensors_are_refused_by_name() {
    for (name, dir) in families() {
        let files = ModelFiles::open(&dir).unwrap();
        let mut tensors = files.spec.tensors();
        for extra in
            ["model.layers.0.self_attn.sinks", "model.layers.0.mlp.experts.0.up_proj.weight", "lm_head.scales"]
        {
            if tensors.iter().any(|tensor| tensor.name == extra) {
                continue;
            }
            let dir = tempfile::tempdir().unwrap();
            tensors.push(TensorSpec::new(extra, [2]));
            write_safetensors(&dir.path().join("model.safetensors"), &tensors, DType::F16, |tensor, values| {
                values.resize(tensor.shape.iter().product(), 0.5);
                Ok(())
            })
            .unwrap();
            tensors.pop();
            let checkpoint = Checkpoint::open(dir.path()).unwrap();
            match checkpoint.check_all(&files.spec) {
                Err(CheckpointError::Unread { tensors }) => assert_eq!(tensors, [extra], "{name}"),
                other => panic!("{name}: {other:?}"),
            }
        }
    }
}
