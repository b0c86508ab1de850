//! The run before a model is served.

use model::{Model, ModelFiles, ModelSpec, synthesize};
use protocols::FixedLoader;
use serde_json::json;
use waggle_session::{Error, check_ranges};

use crate::support::naive::{Published, Weights};
use crate::support::write_checkpoint;

#[test]
fn a_model_that_leaves_a_range_is_found_before_it_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let config = json!({"model_type": "llama", "vocab_size": 40, "hidden_size": 32, "intermediate_size": 48,
                        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "mlp_bias": true});
    synthesize(config.to_string().as_bytes(), dir.path(), None, model::DType::F32, None, 3).unwrap();
    let load = || {
        let files = ModelFiles::open(dir.path()).unwrap();
        Model::load(&mut FixedLoader::default(), &files.spec, Some(&files.checkpoint)).unwrap()
    };
    let done = check_ranges(&load(), None).unwrap();
    assert!((16..=waggle_session::RANGE_CHECK_TOKENS).contains(&done.tokens), "{done:?}");

    // The second layer writes a residual that the third one's norm cannot take, as in a published Mixtral.
    let spec = ModelSpec::open(dir.path()).unwrap();
    let checkpoint = model::Checkpoint::open(dir.path()).unwrap();
    let mut weights = Weights::new();
    for t in spec.tensors() {
        let data: Vec<f32> = match t.shape.len() {
            1 => checkpoint.vector(&t.name).unwrap().to_vec(),
            _ => checkpoint.matrix(&t.name).unwrap().into_iter().collect(),
        };
        weights.insert(t.name, Published { shape: t.shape, data });
    }
    drop(checkpoint);
    // 32 entries of 1600 are a vector of length 9051; a norm takes 8192.
    for (i, v) in weights.get_mut("model.layers.1.mlp.down_proj.bias").unwrap().data.iter_mut().enumerate() {
        *v = if i % 2 == 0 { 1600.0 } else { -1600.0 };
    }
    write_checkpoint(&dir.path().join("model.safetensors"), &weights);
    match check_ranges(&load(), None) {
        Err(Error::Ranges { source: engine::Error::Range { path, .. }, .. }) => {
            assert!(path.contains("layer 2") && path.contains("norm"), "{path}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn bundled_models_pass_the_range_check() {
    for name in model::bundled_names() {
        let files = model::bundled(name).unwrap();
        let model = Model::load(&mut FixedLoader::default(), &files.spec, Some(&files.checkpoint)).unwrap();
        let start = std::time::Instant::now();
        check_ranges(&model, files.tokenizer.as_deref()).unwrap();
        println!("{name}: {:?}", start.elapsed());
    }
}
