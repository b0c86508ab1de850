//! Products of shares with published weights, as a token takes them. `cargo bench -p waggle-bench --bench online`
//!
//! The matrices are those of one layer of LLaMA-7B, of 16 bits an entry, in a mapped file. Beside each stands the
//! time of a pass that only sums as many bytes with the same cores: `read`. Every product's first, middle and last
//! columns are compared with the definition.

use std::hint::black_box;

use criterion::{Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rayon::prelude::*;
use waggle_model::{Checkpoint, DType, Model, synthesize};
use waggle_protocols::{FixedLoader, FixedMatrix};

/// Of LLaMA-7B, with fewer tokens.
const CONFIG: &str = r#"{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008,
    "num_hidden_layers": 1, "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 64,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": false}"#;

fn check(x: &[u64], matrix: &FixedMatrix, product: &[u64]) {
    let (inputs, outputs) = matrix.shape();
    for (x, product) in x.chunks(inputs).zip(product.chunks(outputs)) {
        for column in [0, outputs / 2, outputs - 1] {
            let sum = x.iter().enumerate().fold(0u64, |sum, (row, x)| {
                sum.wrapping_add(x.wrapping_mul(i64::from(matrix.entry(row, column)) as u64))
            });
            assert_eq!(product[column], sum, "column {column}");
        }
    }
}

fn products(c: &mut Criterion) {
    let dir = tempfile::tempdir().expect("a directory");
    let spec = synthesize(CONFIG.as_bytes(), dir.path(), None, DType::F16, None, 1).expect("a model");
    let checkpoint = Checkpoint::open(dir.path()).expect("the file that was written");
    let model = Model::load(&mut FixedLoader::default(), &spec, Some(&checkpoint)).expect("its weights");
    let mut group = c.benchmark_group("online");
    group.sample_size(10).sampling_mode(SamplingMode::Flat);
    let weights = model.weights();
    let matrices = weights.iter().filter_map(|weight| weight.values.as_ref()).map(|values| &values.matrix);
    for matrix in matrices.filter(|matrix| matrix.shape().0.min(matrix.shape().1) >= 4096) {
        let (inputs, outputs) = matrix.shape();
        group.throughput(Throughput::Bytes(2 * (inputs * outputs) as u64));
        let bytes = vec![1u64; inputs * outputs / 4];
        group.bench_function(format!("read/{inputs}x{outputs}"), |bench| {
            let sum = |part: &[u64]| part.iter().fold(0, |sum: u64, word| sum.wrapping_add(*word));
            bench.iter(|| black_box(&bytes).par_chunks(1 << 16).map(sum).reduce(|| 0, u64::wrapping_add));
        });
        for rows in [1, 2, 4, 16] {
            let mut rng = StdRng::seed_from_u64(1);
            let x: Vec<u64> = (0..rows * inputs).map(|_| rng.next_u64() >> 20).collect();
            check(&x, matrix, &matrix.times_here(&x));
            group.bench_function(format!("{rows}x{inputs}x{outputs}"), |bench| bench.iter(|| matrix.times_here(&x)));
        }
    }
    group.finish();
}

criterion_group!(benches, products);
criterion_main!(benches);
