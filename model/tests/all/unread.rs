//! Checkpoints that hold more than the program reads.

use std::fs;
use std::path::Path;

use engine::FloatLoader;
use model::{CheckpointError, Error, Model, ModelFiles};
use safetensors::tensor::Dtype;
use serde_json::{Value, json};

use crate::checkpoint::write_as;
use crate::support::naive::{Published, Weights};
use crate::support::{patterned, spec, write_checkpoint, write_dir};

fn gpt2() -> Value {
    json!({"model_type": "gpt2", "vocab_size": 7, "n_positions": 4, "n_embd": 6, "n_layer": 2, "n_head": 2})
}

fn llama() -> Value {
    json!({"model_type": "llama", "vocab_size": 7, "hidden_size": 8, "intermediate_size": 6, "num_hidden_layers": 2,
           "num_attention_heads": 2, "num_key_value_heads": 1})
}

fn tensor(shape: &[usize], data: Vec<f32>) -> Published {
    Published { shape: shape.to_vec(), data }
}

/// Loads the tensors of `config` and `extra`.
fn load(config: &Value, extra: &[(&str, Published)]) -> Result<(), CheckpointError> {
    let mut weights = patterned(&spec(config));
    weights.extend(extra.iter().map(|(name, tensor)| (name.to_string(), tensor.clone())));
    let dir = tempfile::tempdir().unwrap();
    write_dir(dir.path(), config, &weights);
    open(dir.path())
}

fn open(dir: &Path) -> Result<(), CheckpointError> {
    let files = ModelFiles::open(dir).unwrap();
    match Model::load(&mut FloatLoader, &files.spec, Some(&files.checkpoint)) {
        Ok(_) => Ok(()),
        Err(Error::Checkpoint(error)) => Err(error),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_tensor_that_nobody_reads_is_refused_by_name() {
    // A Qwen2 that calls itself a LLaMA: its biases would be dropped.
    let biases: Vec<(String, Published)> = (0..2)
        .flat_map(|i| {
            [("q", 8), ("k", 4), ("v", 4)]
                .map(|(part, n)| (format!("model.layers.{i}.self_attn.{part}_proj.bias"), n))
        })
        .map(|(name, n)| (name, tensor(&[n], vec![1.0; n])))
        .collect();
    let biases: Vec<(&str, Published)> =
        biases.iter().map(|(name, tensor)| (name.as_str(), tensor.clone())).collect();
    let error = load(&llama(), &biases).unwrap_err();
    assert!(matches!(&error, CheckpointError::Unread { tensors } if tensors.len() == 6), "{error}");
    let message = error.to_string();
    assert!(message.contains("`model.layers.0.self_attn.k_proj.bias`") && message.contains("2 more"), "{message}");
    load(&llama(), &[]).unwrap();

    for (config, name) in [
        (gpt2(), "score.weight"),
        (gpt2(), "transformer.h.2.attn.bias"),
        (gpt2(), "transformer.h.0.attn.rotary_emb.inv_freq"),
        // `wte.weight` is the same tensor under its other name.
        (gpt2(), "wte.weight"),
        (llama(), "model.layers.0.self_attn.q_norm.weight"),
        (llama(), "model.layers.2.self_attn.rotary_emb.inv_freq"),
        (llama(), "norm.weight"),
    ] {
        let error = load(&config, &[(name, tensor(&[1], vec![0.0]))]).expect_err(name);
        assert!(matches!(&error, CheckpointError::Unread { tensors } if *tensors == [name]), "{error}");
    }
}

#[test]
fn known_buffers_are_checked_for_what_they_are() {
    let mask = |n: usize| (0..n * n).map(|i| if i % n <= i / n { 1.0 } else { 0.0 }).collect::<Vec<_>>();
    let wrong = |result: Result<(), CheckpointError>, name: &str| {
        let error = result.expect_err(name);
        assert!(matches!(&error, CheckpointError::Buffer { tensor, .. } if tensor == name), "{error}");
    };
    for prefix in ["", "transformer."] {
        let (bias, masked) = (format!("{prefix}h.1.attn.bias"), format!("{prefix}h.1.attn.masked_bias"));
        load(&gpt2(), &[(&bias, tensor(&[1, 1, 4, 4], mask(4))), (&masked, tensor(&[], vec![-1e4]))]).unwrap();
        let mut open = mask(4);
        open[1] = 1.0;
        wrong(load(&gpt2(), &[(&bias, tensor(&[1, 1, 4, 4], open))]), &bias);
        wrong(load(&gpt2(), &[(&bias, tensor(&[16], mask(4)))]), &bias);
        wrong(load(&gpt2(), &[(&bias, tensor(&[2, 8], mask(4)))]), &bias);
        wrong(load(&gpt2(), &[(&masked, tensor(&[], vec![-1.0]))]), &masked);
    }
    let name = "model.layers.1.self_attn.rotary_emb.inv_freq";
    load(&llama(), &[(name, tensor(&[2], vec![1.0, 0.01]))]).unwrap();
    wrong(load(&llama(), &[(name, tensor(&[2], vec![1.0, 0.02]))]), name);
    wrong(load(&llama(), &[(name, tensor(&[1], vec![1.0]))]), name);
    let scaled = |factor: f64| {
        let mut config = llama();
        config["rope_scaling"] = json!({"type": "linear", "factor": factor});
        config
    };
    load(&scaled(2.0), &[(name, tensor(&[2], vec![0.5, 0.005]))]).unwrap();
    load(&scaled(2.0), &[(name, tensor(&[2], vec![1.0, 0.01]))]).unwrap();
    wrong(load(&scaled(4.0), &[(name, tensor(&[2], vec![0.5, 0.005]))]), name);

    let tied = "lm_head.weight";
    let embedding = |config: &Value, name: &str| patterned(&spec(config))[name].clone();
    let mut tied_llama = llama();
    tied_llama["tie_word_embeddings"] = json!(true);
    for (config, name) in [(gpt2(), "transformer.wte.weight"), (tied_llama, "model.embed_tokens.weight")] {
        let mut head = embedding(&config, name);
        load(&config, &[(tied, head.clone())]).unwrap();
        head.data[3] += 1.0;
        wrong(load(&config, &[(tied, head)]), tied);
    }
}

#[test]
fn a_mask_may_have_bytes_and_a_weight_may_not() {
    let config = gpt2();
    let mut weights = patterned(&spec(&config));
    let mask = (0..16).map(|i| if i % 4 <= i / 4 { 1.0 } else { 0.0 }).collect();
    weights.insert("h.0.attn.bias".into(), tensor(&[1, 1, 4, 4], mask));
    let dir = tempfile::tempdir().unwrap();
    write_dir(dir.path(), &config, &weights);
    let load = |as_bytes: &str| {
        write_as(&dir.path().join("model.safetensors"), &weights, |name| match name {
            "h.0.attn.bias" => Dtype::BOOL,
            name if name == as_bytes => Dtype::U8,
            _ => Dtype::F32,
        });
        open(dir.path())
    };
    load("").unwrap();
    let error = load("transformer.ln_f.bias").unwrap_err();
    assert!(matches!(&error, CheckpointError::Type { tensor, .. } if tensor == "transformer.ln_f.bias"), "{error}");
}

#[test]
fn a_tensor_in_two_files_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let all = patterned(&spec(&gpt2()));
    let twice: Weights = all.iter().take(1).map(|(name, tensor)| (name.clone(), tensor.clone())).collect();
    let (first, second) = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors");
    write_checkpoint(&dir.path().join(first), &all);
    write_checkpoint(&dir.path().join(second), &twice);
    let name = twice.keys().next().unwrap();
    let map: serde_json::Map<String, Value> = all.keys().map(|key| (key.clone(), json!(first))).collect();
    let mut index = json!({"weight_map": map});
    index["weight_map"]["extra"] = json!(second);
    fs::write(dir.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
    let error = model::Checkpoint::open(dir.path()).err().unwrap().to_string();
    assert!(error.contains(name) && error.contains("another file"), "{error}");
}
