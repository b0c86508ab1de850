//! A model that leaves the range of an operation is found before it is served.

use std::path::Path;

use serde_json::{Value, json};
use waggle_model::{Model, ModelFiles, ModelSpec, synthesize};
use waggle_protocols::FixedLoader;
use waggle_session::{Error, RangeCheck, check_ranges};

use crate::support::naive::{Published, Weights};
use crate::support::write_checkpoint;

#[test]
fn a_model_that_leaves_a_range_is_found_before_it_is_served() {
    // 32 entries of 1600 are a vector of length 9051; a norm takes 8192. So it is with a published Mixtral.
    let llama = json!({"model_type": "llama", "vocab_size": 40, "hidden_size": 32, "intermediate_size": 48,
                       "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "mlp_bias": true});
    let (before, after, [value, high]) = around(llama, "model.layers.1.mlp.down_proj.bias", 1600.0);
    assert!((16..=waggle_session::RANGE_CHECK_TOKENS).contains(&before.unwrap().tokens));
    assert!(after.contains("layer 2") && after.contains("norm"), "{after}");
    // The numbers are values of the model, here squares.
    assert!((9000.0..9100.0).contains(&value.sqrt()) && (high.sqrt() - 8192.0).abs() < 0.1, "{value} {high}");

    // By keys GELU takes inputs below 512, and by look-up inputs up to twice as large.
    let gpt2 = json!({"model_type": "gpt2", "vocab_size": 40, "n_embd": 32, "n_inner": 48, "n_layer": 2, "n_head": 4,
                      "n_positions": 64});
    let (before, after, [value, high]) = around(gpt2.clone(), "transformer.h.0.mlp.c_fc.bias", 600.0);
    before.unwrap();
    assert!(after.contains("layer 0") && after.contains("gelu"), "{after}");
    assert!((value.abs() - 600.0).abs() < 10.0 && (high - 512.0).abs() < 0.1, "{value} {high}");

    // All scores are 8 * 13.23^2 / sqrt(8) = 495. Only beside padding must they be below 480.
    let (before, after, [value, high]) = around(gpt2.clone(), "transformer.h.0.attn.c_attn.bias", 13.23);
    before.unwrap();
    assert!(after.contains("layer 0") && after.contains("hide"), "{after}");
    assert!((value - 495.0).abs() < 5.0 && (high - 480.0).abs() < 0.1, "{value} {high}");

    // Scores of 1131 leave the range of the product before their own range is checked.
    let (_, after, [value, high]) = around(gpt2, "transformer.h.0.attn.c_attn.bias", 20.0);
    assert!(after.contains("layer 0/attention/scores/matmul"), "{after}");
    assert!((value - 1131.0).abs() < 20.0 && (high - 1024.0).abs() < 0.1, "{value} {high}");
}

/// Writes a random model of `config` into `dir`, with weights that `change` changes.
pub(crate) fn altered(dir: &Path, config: &Value, change: impl FnOnce(&mut Weights)) {
    synthesize(config.to_string().as_bytes(), dir, None, waggle_model::DType::F32, None, 3).unwrap();
    let spec = ModelSpec::open(dir).unwrap();
    let checkpoint = waggle_model::Checkpoint::open(dir).unwrap();
    let mut weights = Weights::new();
    for t in spec.tensors() {
        let data: Vec<f32> = match t.shape.len() {
            1 => checkpoint.vector(&t.name).unwrap().to_vec(),
            _ => checkpoint.matrix(&t.name).unwrap().into_iter().collect(),
        };
        weights.insert(t.name, Published { shape: t.shape, data });
    }
    drop(checkpoint);
    change(&mut weights);
    write_checkpoint(&dir.join("model.safetensors"), &weights);
}

/// The range check of a random model. Then the operation's path that the check names if the entries of `bias` are
/// `value` and -`value` in turn, and the value with the largest one that the operation takes.
fn around(config: Value, bias: &str, value: f32) -> (Result<RangeCheck, Error>, String, [f64; 2]) {
    let check = |change: &dyn Fn(&mut Weights)| {
        let dir = tempfile::tempdir().unwrap();
        altered(dir.path(), &config, change);
        let files = ModelFiles::open(dir.path()).unwrap();
        check_ranges(&Model::load(&mut FixedLoader::default(), &files.spec, Some(&files.checkpoint)).unwrap(), None)
    };
    let before = check(&|_| ());
    let after = check(&|weights| {
        for (i, v) in weights.get_mut(bias).unwrap().data.iter_mut().enumerate() {
            *v = if i % 2 == 0 { value } else { -value };
        }
    });
    match after {
        Err(Error::Ranges { source: waggle_engine::Error::Range { path, value, high, .. }, .. }) => {
            (before, path, [value, high])
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn bundled_models_pass_the_range_check() {
    for name in waggle_model::bundled_names() {
        let files = waggle_model::bundled(name).unwrap();
        let model = Model::load(&mut FixedLoader::default(), &files.spec, Some(&files.checkpoint)).unwrap();
        let start = std::time::Instant::now();
        check_ranges(&model, files.tokenizer.as_deref()).unwrap();
        println!("{name}: {:?}", start.elapsed());
    }
}
