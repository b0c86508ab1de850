//! Small models with random weights, to run many sessions.

use std::path::Path;

use ndarray::Array2;
use waggle_model::{DType, ModelFiles, ModelSpec, TensorSpec, learned_file, write_safetensors};
use waggle_mpcache::{HeadShape, PolicySpec};

const CONFIG: &str =
    r#"{"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 11, "n_positions": 32}"#;

/// Writes a model of one layer to the directory `dir`.
pub(crate) fn write_tiny(dir: &Path) {
    write_model(dir, CONFIG);
}

/// Writes learned columns of every scoring head for the model in the directory `dir` into this directory.
pub(crate) fn write_columns(dir: &Path) {
    let ModelFiles { spec, checkpoint, .. } = ModelFiles::open(dir).unwrap();
    let mut next = numbers();
    let layer = |heads: HeadShape| Array2::from_shape_simple_fn((spec.hidden(), heads.kv_heads), || next() / 2.0);
    let columns: Vec<_> = spec.heads().into_iter().map(layer).collect();
    for head in PolicySpec::examples().filter_map(|policy| policy.scoring_head()) {
        checkpoint.write_learned(&spec, &columns, &dir.join(learned_file(head))).unwrap();
    }
}

/// Numbers between -1 and 1.
fn numbers() -> impl FnMut() -> f32 {
    let mut state = 5u64;
    move || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// Writes a model of this configuration to the directory `dir`. Its weights are so large that rounding does not
/// decide about any token.
pub(crate) fn write_model(dir: &Path, config: &str) {
    std::fs::write(dir.join("config.json"), config).unwrap();
    let spec = ModelSpec::from_config_json(config.as_bytes()).unwrap();
    let mut next = numbers();
    write_safetensors(&dir.join("model.safetensors"), &spec.tensors(), DType::F32, |tensor, values| {
        let TensorSpec { name, shape } = tensor;
        let gain = shape.len() == 1 && name.ends_with("weight");
        values.extend((0..shape.iter().product::<usize>()).map(|_| if gain { 1.0 } else { next() }));
        Ok(())
    })
    .unwrap();
}
