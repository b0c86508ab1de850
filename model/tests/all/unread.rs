//! Checkpoints that hold tensors which the program does not read.

use std::fs;
use std::path::Path;

use safetensors::tensor::Dtype;
use serde_json::{Value, json};
use waggle_engine::FloatLoader;
use waggle_model::{CheckpointError, Error, Model, ModelFiles};

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

/// Loads a model that has the tensors of `config` and also those of `extra`.
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
    // The bias of a masked score may also be infinite, because half precision has no number as small as -1e9.
    let masked = "transformer.h.1.attn.masked_bias";
    load(&gpt2(), &[(masked, tensor(&[], vec![f32::NEG_INFINITY]))]).unwrap();
    for score in [f32::NAN, f32::INFINITY] {
        wrong(load(&gpt2(), &[(masked, tensor(&[], vec![score]))]), masked);
    }
}

/// The numbers count, not the type in which they are stored.
#[test]
fn a_tied_head_may_have_another_type() {
    let mut config = llama();
    config["tie_word_embeddings"] = json!(true);
    let mut weights = patterned(&spec(&config));
    weights.insert("lm_head.weight".into(), weights["model.embed_tokens.weight"].clone());
    let dir = tempfile::tempdir().unwrap();
    let write = |weights: &Weights| {
        write_dir(dir.path(), &config, weights);
        let float = |name: &str| if name == "lm_head.weight" { Dtype::F32 } else { Dtype::BF16 };
        write_as(&dir.path().join("model.safetensors"), weights, float);
        open(dir.path())
    };
    write(&weights).unwrap();
    weights.get_mut("lm_head.weight").unwrap().data[3] += 0.125;
    assert!(matches!(write(&weights), Err(CheckpointError::Buffer { tensor, .. }) if tensor == "lm_head.weight"));
}

/// Tensors that encoders were published with and do not read: heads of another training, poolers, counts.
#[test]
fn leftovers_are_those_of_the_family() {
    let one = || tensor(&[1], vec![f32::NAN]);
    let encoder = |kind: &str, class: &str| match kind {
        "distilbert" => {
            json!({"model_type": kind, "architectures": [class], "vocab_size": 7, "dim": 8, "hidden_dim": 6,
            "n_layers": 1, "n_heads": 2, "max_position_embeddings": 8})
        }
        "vit" => json!({"model_type": kind, "hidden_size": 8, "intermediate_size": 6, "num_hidden_layers": 1,
            "num_attention_heads": 2, "image_size": 4, "patch_size": 2}),
        _ => json!({"model_type": kind, "architectures": [class], "vocab_size": 7, "hidden_size": 8,
            "intermediate_size": 6, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 8}),
    };
    let (bert, roberta) =
        (["BertForSequenceClassification", "BertForMaskedLM"], ["RobertaForSequenceClassification"]);
    for (kind, class, names) in [
        (
            "bert",
            bert[0],
            &[
                "cls.predictions.transform.dense.weight",
                "bert.embeddings.token_type_ids",
                "cls.seq_relationship.bias",
            ][..],
        ),
        ("bert", bert[1], &["bert.pooler.dense.weight", "classifier.weight", "embeddings.position_ids"]),
        ("roberta", roberta[0], &["roberta.pooler.dense.bias", "lm_head.dense.weight", "lm_head.decoder.bias"]),
        ("roberta", "RobertaForMaskedLM", &["classifier.out_proj.weight", "roberta.embeddings.token_type_ids"]),
        ("distilbert", "DistilBertForSequenceClassification", &["vocab_projector.bias", "vocab_transform.weight"]),
        ("distilbert", "DistilBertForMaskedLM", &["pre_classifier.weight", "classifier.bias"]),
        ("vit", "", &["vit.pooler.dense.weight", "vit.embeddings.mask_token"]),
    ] {
        let config = encoder(kind, class);
        names.iter().for_each(|name| load(&config, &[(name, one())]).expect(name));
        for name in ["qa_outputs.bias", "encoder.layer.0.adapter.weight", "cls2.weight", "lm_head2.weight"] {
            let error = load(&config, &[(name, one())]).expect_err(name);
            assert!(matches!(&error, CheckpointError::Unread { tensors } if *tensors == [name]), "{error}");
        }
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

/// A tensor that is in two shards is accepted if it is the same in both.
#[test]
fn a_tensor_in_two_files_is_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let all = patterned(&spec(&gpt2()));
    let mut twice: Weights = all.iter().take(1).map(|(name, tensor)| (name.clone(), tensor.clone())).collect();
    let (first, second) = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors");
    write_dir(dir.path(), &gpt2(), &all);
    fs::rename(dir.path().join("model.safetensors"), dir.path().join(first)).unwrap();
    write_checkpoint(&dir.path().join(second), &twice);
    let name = twice.keys().next().unwrap().clone();
    let mut map: serde_json::Map<String, Value> = all.keys().map(|key| (key.clone(), json!(first))).collect();
    map.insert(name.clone(), json!(second));
    fs::write(dir.path().join("model.safetensors.index.json"), json!({"weight_map": map}).to_string()).unwrap();
    open(dir.path()).unwrap();
    twice.get_mut(&name).unwrap().data[1] += 1.0;
    write_checkpoint(&dir.path().join(second), &twice);
    let error = waggle_model::Checkpoint::open(dir.path()).err().unwrap();
    assert!(matches!(&error, CheckpointError::Twice { tensor } if *tensor == name), "{error}");
}

#[test]
fn what_is_missing_is_explained() {
    let error = |names: &dyn Fn(&str) -> String| {
        let weights = patterned(&spec(&llama()));
        let dir = tempfile::tempdir().unwrap();
        write_dir(dir.path(), &llama(), &weights);
        let weights: Weights = weights.into_iter().map(|(name, tensor)| (names(&name), tensor)).collect();
        write_checkpoint(&dir.path().join("model.safetensors"), &weights);
        open(dir.path()).unwrap_err().to_string()
    };
    for prefix in ["_orig_mod.", "module.", "base_model.model."] {
        let message = error(&|name| format!("{prefix}{name}"));
        assert!(message.contains(&format!("begin with `{prefix}`")), "{message}");
    }
    let message = error(&|name| name.replace("q_proj.weight", "q_proj.qweight"));
    assert!(message.contains("q_proj.qweight` is there") && message.contains("quantize_config.json"), "{message}");
}
