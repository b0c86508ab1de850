//! Small models with random weights, to run many sessions.
#![allow(dead_code, reason = "every test program uses a part")]

use std::path::Path;

use engine::FloatLoader;
use model::fit::fit_columns;
use model::{DType, LEARNED_FILE, Model, ModelFiles, ModelSpec, TensorSpec, write_safetensors};

const CONFIG: &str =
    r#"{"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 11, "n_positions": 32}"#;

/// Writes a model of one layer to the directory `dir`.
pub(crate) fn write_tiny(dir: &Path) {
    write_model(dir, CONFIG);
}

/// Fits learned columns to the model in the directory `dir`, and writes them there.
pub(crate) fn write_columns(dir: &Path) {
    let files = ModelFiles::open(dir).unwrap();
    let model = Model::load(&mut FloatLoader, &files.spec, Some(&files.checkpoint)).unwrap();
    let vocabulary = files.spec.vocabulary() as u32;
    let text = |i: u32| -> Vec<u32> { (0..32).map(|t| (t * t * (i + 2) + 3 * t + i) % vocabulary).collect() };
    let texts: Vec<Vec<u32>> = (0..10).map(text).collect();
    let texts: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
    let columns = fit_columns(&model, &files.checkpoint, &texts, 2, &mut || ()).unwrap();
    columns.write(&files.spec, &files.checkpoint, &dir.join(LEARNED_FILE)).unwrap();
}

/// Writes a model of this configuration to the directory `dir`. Its weights are so large that no rounding decides
/// about a token.
pub(crate) fn write_model(dir: &Path, config: &str) {
    std::fs::write(dir.join("config.json"), config).unwrap();
    let spec = ModelSpec::from_config_json(config.as_bytes()).unwrap();
    let mut state = 5u64;
    write_safetensors(&dir.join("model.safetensors"), &spec.tensors(), DType::F32, |tensor, values| {
        let TensorSpec { name, shape } = tensor;
        let mut next = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        let gain = shape.len() == 1 && name.ends_with("weight");
        values.extend((0..shape.iter().product::<usize>()).map(|_| if gain { 1.0 } else { next() }));
        Ok(())
    })
    .unwrap();
}
