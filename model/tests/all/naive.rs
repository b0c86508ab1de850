//! Models of many shapes against naive readings of them, through files as `transformers` writes them.

use std::path::Path;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use waggle_model::{GenerateOptions, ModelFiles, ModelSpec, Sampler};

use crate::support::naive::{self, Published, Sheds, Weights};
use crate::support::{FloatModel, greedy, load, logits, sampled, spec, write_dir};

/// The largest allowed difference between f32 and f64, on random weights whose logits are a few units large.
const MAX_LOGIT_ERROR: f64 = 2e-4;

/// Random weights of the size of trained ones: scaled by the fan-in, with gains around 1 and biases that matter.
fn random_weights(spec: &ModelSpec, rng: &mut StdRng) -> Weights {
    let tensor = |t: waggle_model::TensorSpec| {
        let (centre, spread) = match t.shape[..] {
            [_] if t.name.ends_with("weight") => (1.0, 0.5),
            [_] => (0.0, 0.3),
            _ if t.name.contains("embed") || t.name.contains("wte") || t.name.contains("wpe") => (0.0, 1.0),
            _ => (0.0, 1.7 / (t.shape[0].min(t.shape[1]) as f32).sqrt()),
        };
        let len = t.shape.iter().product();
        let data = (0..len).map(|_| centre + rng.random_range(-1.0f32..1.0) * spread).collect();
        (t.name, Published { shape: t.shape, data })
    };
    spec.tensors().into_iter().map(tensor).collect()
}

fn open(dir: &Path, config: &Value, weights: &Weights) -> FloatModel {
    write_dir(dir, config, weights);
    load(ModelFiles::open(dir).unwrap())
}

fn compare(model: &FloatModel, config: &Value, weights: &Weights, ids: &[u32], within: f64) {
    let got = logits(model, ids);
    for (position, want) in naive::logits(config, weights, ids).iter().enumerate() {
        for (token, (g, w)) in got.row(position).iter().zip(want).enumerate() {
            let error = (f64::from(*g) - w).abs();
            assert!(error <= within, "{config}, position {position}, token {token}: {g} against {w}");
        }
    }
}

fn configs() -> Vec<Value> {
    let gpt2 = |extra: Value| {
        let base = json!({
            "model_type": "gpt2", "vocab_size": 19, "n_positions": 24, "n_embd": 30, "n_layer": 2, "n_head": 3,
        });
        merge(base, extra)
    };
    let llama = |extra: Value| {
        let base = json!({
            "model_type": "llama", "vocab_size": 23, "hidden_size": 24, "intermediate_size": 40,
            "num_hidden_layers": 2, "num_attention_heads": 4,
        });
        merge(base, extra)
    };
    let llama3 = |factor: f64, low: f64, high: f64, old: u32| {
        json!({
            "rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
            "original_max_position_embeddings": old,
        })
    };
    let theta = |base: f64| json!({"rope_theta": base});
    vec![
        gpt2(json!({})),
        gpt2(json!({"n_head": 1, "activation_function": "gelu", "tie_word_embeddings": false})),
        gpt2(json!({"n_head": 5, "n_inner": 7, "activation_function": "gelu_pytorch_tanh"})),
        gpt2(json!({"n_head": 10, "layer_norm_epsilon": 0.1})),
        gpt2(json!({"n_layer": 3, "scale_attn_by_inverse_layer_idx": true, "activation_function": "silu"})),
        gpt2(json!({"scale_attn_weights": false})),
        gpt2(json!({"n_layer": 1, "n_embd": 3, "vocab_size": 1})),
        llama(json!({})),
        llama(json!({"num_key_value_heads": 2, "tie_word_embeddings": true})),
        llama(json!({"num_key_value_heads": 1, "attention_bias": true, "rms_norm_eps": 0.01})),
        llama(json!({"num_attention_heads": 3, "head_dim": 10, "mlp_bias": true, "hidden_act": "gelu"})),
        llama(json!({"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 2, "mlp_bias": true})),
        llama(json!({"attention_bias": true, "mlp_bias": true, "hidden_act": "gelu_pytorch_tanh"})),
        llama(json!({"rope_theta": 500000.0, "rope_scaling": {"type": "linear", "factor": 8.0}})),
        llama(json!({"head_dim": 16, "rope_scaling": llama3(8.0, 1.0, 4.0, 64)})),
        llama(json!({"head_dim": 32, "rope_parameters": merge(llama3(32.0, 1.0, 4.0, 256), theta(100.0))})),
    ]
}

fn merge(mut base: Value, extra: Value) -> Value {
    for (key, value) in extra.as_object().unwrap() {
        base[key] = value.clone();
    }
    base
}

#[test]
fn every_shape_equals_its_naive_reference() {
    let mut rng = StdRng::seed_from_u64(11);
    for config in configs() {
        let spec = spec(&config);
        let weights = random_weights(&spec, &mut rng);
        let ids: Vec<u32> = (0..20).map(|_| rng.random_range(0..spec.vocabulary() as u32)).collect();
        let dir = tempfile::tempdir().unwrap();
        let model = open(dir.path(), &config, &weights);
        assert_eq!(model.spec(), spec);
        compare(&model, &config, &weights, &ids, MAX_LOGIT_ERROR);
    }
}

#[test]
fn decoding_on_the_cache_equals_one_pass_over_the_whole_text() {
    let mut rng = StdRng::seed_from_u64(12);
    for config in configs() {
        let spec = spec(&config);
        let dir = tempfile::tempdir().unwrap();
        let model = open(dir.path(), &config, &random_weights(&spec, &mut rng));
        let prompt: Vec<u32> = (0..5).map(|_| rng.random_range(0..spec.vocabulary() as u32)).collect();
        let stepwise = greedy(&model, &prompt, 12);
        let text: Vec<u32> = prompt.iter().chain(&stepwise.tokens[..11]).copied().collect();
        let whole = logits(&model, &text);
        let stepwise_logits = stepwise.logits.unwrap();
        assert_eq!(stepwise_logits.dim(), whole.dim());
        for (a, b) in stepwise_logits.iter().zip(&whole) {
            assert!((a - b).abs() < 1e-4, "{config}: {a} against {b}");
        }
        // With only the last position's logits revealed, tokens and logits are the same.
        let options = GenerateOptions { tokens: 12, ..Default::default() };
        let short = sampled(&model, &prompt, &options, &mut Sampler::greedy()).unwrap();
        assert_eq!(short.tokens, stepwise.tokens);
        let short = short.logits.unwrap();
        assert_eq!(short.nrows(), 12);
        for (a, b) in short.row(0).iter().zip(whole.row(4)) {
            assert!((a - b).abs() < 1e-4, "{config}: {a} against {b}");
        }
    }
}

/// Rows of the prompt end at two layers, under their own positions and numbered anew, in shapes with one position of
/// each row and with groups of queries.
#[test]
fn prompts_that_shed_rows_equal_their_naive_reference() {
    let mut rng = StdRng::seed_from_u64(13);
    for config in configs().into_iter().filter(|config| config["model_type"] == "llama") {
        let config = merge(config, json!({"num_hidden_layers": 4}));
        let spec = spec(&config);
        let weights = random_weights(&spec, &mut rng);
        let dir = tempfile::tempdir().unwrap();
        let model = open(dir.path(), &config, &weights);
        let prompt: Vec<u32> = (0..20).map(|_| rng.random_range(0..spec.vocabulary() as u32)).collect();
        for (shed, steps) in [
            ("1:0.5+3:0.2", &[(1, 10), (3, 4)][..]),
            ("2:0.55", &[(2, 11)]),
            ("1:0.05", &[(1, 1)]),
            ("1:0.95", &[(1, 19)]),
        ] {
            for own in [false, true] {
                let policy = format!("full:shed={shed}{}", if own { "/own" } else { "" }).parse().unwrap();
                let options = GenerateOptions { tokens: 5, policy, ..Default::default() };
                let got = sampled(&model, &prompt, &options, &mut Sampler::greedy()).unwrap();
                let text: Vec<u32> = prompt.iter().chain(&got.tokens[..4]).copied().collect();
                let sheds = Sheds { steps, prompt: prompt.len(), own };
                let want = naive::shedding_llama(&config, &weights, &text, &|_, _| true, &mut |_, _, _| (), &sheds);
                let got = got.logits.unwrap();
                assert_eq!((got.nrows(), want.len()), (5, steps.last().unwrap().1 + 4));
                for (row, want) in got.rows().into_iter().zip(&want[want.len() - 5..]) {
                    for (g, w) in row.iter().zip(want) {
                        assert!(
                            (f64::from(*g) - w).abs() <= MAX_LOGIT_ERROR,
                            "{config}, {options:?}: {g} against {w}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn far_positions_of_the_recall_model_equal_the_reference() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/recall");
    let config: Value = serde_json::from_slice(&std::fs::read(dir.join("config.json")).unwrap()).unwrap();
    let files = ModelFiles::open(&dir).unwrap();
    let weights: Weights = files
        .spec
        .tensors()
        .into_iter()
        .map(|t| {
            let data = match t.shape[..] {
                [_] => files.checkpoint.vector(&t.name).unwrap().to_vec(),
                _ => files.checkpoint.matrix(&t.name).unwrap().iter().copied().collect(),
            };
            (t.name, Published { shape: t.shape, data })
        })
        .collect();
    let line = std::fs::read_to_string(dir.join("queries.jsonl")).unwrap();
    let entry: Value = serde_json::from_str(line.lines().next().unwrap()).unwrap();
    let ids: Vec<u32> = entry["ids"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect();
    let model = load(files);
    compare(&model, &config, &weights, &ids, 1e-3);
}
