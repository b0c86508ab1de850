//! Integers that are computed when weights are read equal those of a whole matrix that is folded and rounded in
//! memory.

use std::fs;

use ndarray::{Array1, Array2, Axis, concatenate, s};
use serde_json::json;
use waggle_model::{Checkpoint, DType, Model, ModelConfig, ModelSpec, bundled, write_shards};
use waggle_protocols::{FRAC, FixedLoader, FixedWeight};

use crate::support::pattern;

fn fixed(spec: &ModelSpec, checkpoint: &Checkpoint) -> Model<FixedWeight> {
    Model::load(&mut FixedLoader::default(), spec, Some(checkpoint)).expect("a model")
}

/// Compares the weight `name` with a matrix and a bias in memory.
fn compare(model: &Model<FixedWeight>, name: &str, matrix: &Array2<f32>, bias: Option<&Array1<f32>>) {
    let weights = model.weights();
    let weight = weights.iter().find(|weight| weight.spec.name == name).expect("a weight of that name");
    let values = weight.values.as_ref().expect("known values");
    let round = |x: f32, frac: u32| (f64::from(x) * (1u64 << frac) as f64).round() as i64;
    let want: Vec<i32> = matrix.iter().map(|x| round(*x, weight.frac) as i32).collect();
    assert!(want.iter().any(|w| *w != 0));
    assert_eq!(values.matrix.to_integers(), want, "{name}");
    // A single row has a kernel of its own.
    let x: Vec<u64> = (1..=matrix.nrows() as u64).map(|i| i.wrapping_mul(u64::MAX / 7)).collect();
    let mut product = vec![0u64; matrix.ncols()];
    for (i, w) in want.iter().enumerate() {
        let (row, column) = (i / matrix.ncols(), i % matrix.ncols());
        product[column] = product[column].wrapping_add(x[row].wrapping_mul(*w as u64));
    }
    assert_eq!(values.matrix.times_here(&x), product, "{name}");
    assert_eq!(values.matrix.columns(1..matrix.ncols()).times_here(&x), product[1..], "{name}");
    let want: Vec<i64> = match bias {
        Some(bias) => bias.iter().map(|x| round(*x, FRAC + weight.frac)).collect(),
        None => vec![0; matrix.ncols()],
    };
    assert_eq!(values.bias, want, "bias of {name}");
}

#[test]
fn llama_is_folded_as_in_memory() {
    let files = bundled("shakespeare-llama").expect("bundled");
    let (c, ModelConfig::Llama(config)) = (&files.checkpoint, files.spec.config()) else { panic!("a LLaMA") };
    let model = fixed(&files.spec, c);
    let matrix = |name: &str| c.matrix(name).expect("a matrix").reversed_axes();
    let side_by_side = |names: &[&str], norm: &str| {
        let parts: Vec<Array2<f32>> =
            names.iter().map(|name| matrix(&format!("model.layers.0.{name}.weight"))).collect();
        let views: Vec<_> = parts.iter().map(|part| part.view()).collect();
        let gain = c.vector(norm).expect("a gain").insert_axis(Axis(1));
        concatenate(Axis(1), &views).expect("equal inputs") * &gain
    };
    let qkv = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"];
    let mut qkv = side_by_side(&qkv, "model.layers.0.input_layernorm.weight");
    let queries = config.num_attention_heads * config.head_dim;
    let factor = (config.head_dim as f32).sqrt().recip();
    qkv.slice_mut(s![.., ..queries]).mapv_inplace(|w| w * factor);
    compare(&model, "model.layers.0.self_attn.{q,k,v}_proj.weight", &qkv, None);
    let gate_up = side_by_side(&["mlp.gate_proj", "mlp.up_proj"], "model.layers.0.post_attention_layernorm.weight");
    compare(&model, "model.layers.0.mlp.{gate,up}_proj.weight", &gate_up, None);
    compare(&model, "model.layers.0.mlp.down_proj.weight", &matrix("model.layers.0.mlp.down_proj.weight"), None);
    let table = c.matrix("model.embed_tokens.weight").expect("a table");
    compare(&model, "model.embed_tokens.weight", &table, None);
}

#[test]
fn gpt2_is_folded_as_in_memory() {
    let files = bundled("shakespeare-gpt2").expect("bundled");
    let (c, ModelConfig::Gpt2(config)) = (&files.checkpoint, files.spec.config()) else { panic!("a GPT-2") };
    let model = fixed(&files.spec, c);
    let vector = |name: &str| c.vector(name).expect("a vector");
    // x' W + b = x (diag(g) W) + (beta W + b) for x' = g x + beta; the sums are in f64, as they are long.
    let folded = |matrix: Array2<f32>, bias: Option<Array1<f32>>, norm: &str| {
        let (gain, shift) = (vector(&format!("{norm}.weight")), vector(&format!("{norm}.bias")));
        let sums = matrix
            .axis_iter(Axis(1))
            .map(|column| column.iter().zip(&shift).map(|(w, s)| f64::from(*w) * f64::from(*s)).sum::<f64>() as f32);
        let sums: Array1<f32> = sums.collect();
        let bias = match bias {
            Some(bias) => bias + sums,
            None => sums,
        };
        (matrix * &gain.insert_axis(Axis(1)), bias)
    };
    let part = |name: &str| {
        let name = format!("transformer.h.1.{name}");
        (c.matrix(&format!("{name}.weight")).expect("a matrix"), vector(&format!("{name}.bias")))
    };
    let (attention, bias) = part("attn.c_attn");
    let (mut attention, mut bias) = folded(attention, Some(bias), "transformer.h.1.ln_1");
    let factor = 1.0 / ((config.n_embd / config.n_head) as f32).sqrt();
    attention.slice_mut(s![.., ..config.n_embd]).mapv_inplace(|w| w * factor);
    bias.slice_mut(s![..config.n_embd]).mapv_inplace(|b| b * factor);
    compare(&model, "transformer.h.1.attn.c_attn.weight", &attention, Some(&bias));
    let (down, bias) = part("mlp.c_proj");
    // Additions to the residual stream have the mean 0: the mean of a row's entries is subtracted, in f64.
    let mean = |entries: &mut dyn Iterator<Item = &f32>, n: usize| {
        (entries.map(|&w| f64::from(w)).sum::<f64>() / n as f64) as f32
    };
    let centred = |mut matrix: Array2<f32>| {
        for mut row in matrix.rows_mut() {
            let mean = mean(&mut row.iter(), row.len());
            row.mapv_inplace(|w| w - mean);
        }
        matrix
    };
    let bias_mean = mean(&mut bias.iter(), bias.len());
    compare(&model, "transformer.h.1.mlp.c_proj.weight", &centred(down), Some(&bias.mapv(|b| b - bias_mean)));
    let (output, bias) = part("attn.c_proj");
    let bias_mean = mean(&mut bias.iter(), bias.len());
    compare(&model, "transformer.h.1.attn.c_proj.weight", &centred(output), Some(&bias.mapv(|b| b - bias_mean)));
    for name in ["transformer.wte.weight", "transformer.wpe.weight"] {
        compare(&model, name, &centred(c.matrix(name).expect("a table")), None);
    }
    let head = c.matrix("transformer.wte.weight").expect("a table").reversed_axes();
    let (head, bias) = folded(head, None, "transformer.ln_f");
    compare(&model, "lm_head.weight", &head, Some(&bias));
}

#[test]
fn shards_of_every_type_are_read_as_they_were_written() {
    let config =
        json!({"model_type": "gpt2", "vocab_size": 7, "n_positions": 8, "n_embd": 6, "n_layer": 2, "n_head": 2});
    let spec = crate::support::spec(&config);
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        for shard_bytes in [None, Some(400), Some(1)] {
            let dir = tempfile::tempdir().expect("a directory");
            let dir = dir.path();
            let write = |shard_bytes| {
                write_shards(dir, &spec.tensors(), dtype, shard_bytes, |tensor, values| {
                    values.extend((0..tensor.shape.iter().product()).map(|i| pattern(&tensor.name, i)));
                    Ok(())
                })
            };
            write(shard_bytes).expect("written");
            let files = fs::read_dir(dir).expect("a directory").count();
            assert_eq!(files > 2, shard_bytes.is_some(), "{files} files");
            let checkpoint = Checkpoint::open(dir).expect("a checkpoint");
            checkpoint.check(&spec.tensors()).expect("all tensors");
            for tensor in spec.tensors().into_iter().filter(|tensor| tensor.shape.len() == 2) {
                let read = checkpoint.matrix(&tensor.name).expect("a matrix");
                assert!(read.iter().enumerate().all(|(i, x)| *x == pattern(&tensor.name, i)), "{}", tensor.name);
            }
            // A model in the other form would hide this model, or be hidden by it.
            let other = if shard_bytes.is_some() { None } else { Some(1) };
            assert!(write(other).is_err());
        }
    }
}
