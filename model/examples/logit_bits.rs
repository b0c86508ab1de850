//! The effect on sampling of the fractional bits of revealed logits: `cargo run --release -p waggle-model --example
//! logit_bits`. Logits of a text are rounded at random, as two parties open them, and compared with those of 14 bits:
//! how often the most probable token is another one, and how far the distributions of the next token are apart at
//! temperature 1 (total variation).

use std::error::Error;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use waggle_engine::{Float, FloatLoader};
use waggle_model::{GenerateOptions, Input, Model, Next, NoHooks, Sampler, bundled, bundled_text, generate};
use waggle_tokenizer::Tokenizer;

const CONTEXT: usize = 128;
const SEQUENCES: usize = 64;

/// Each of `logits` on a grid of its own, up or down at random.
fn rounded(logits: &[f32], bits: u32, rng: &mut StdRng) -> Vec<f64> {
    let unit = (-f64::from(bits)).exp2();
    let mut round = |logit: f32| {
        let grid: f64 = rng.random_range(0.0..1.0);
        ((f64::from(logit) / unit - grid + rng.random_range(0.0..1.0)).floor() + grid) * unit
    };
    logits.iter().map(|logit| round(*logit)).collect()
}

fn best(logits: &[f64]) -> Option<usize> {
    (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]))
}

fn probabilities(logits: &[f64]) -> Vec<f64> {
    let most = logits.iter().copied().fold(f64::MIN, f64::max);
    let weights: Vec<f64> = logits.iter().map(|logit| (logit - most).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / sum).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let text = String::from_utf8(bundled_text("tinyshakespeare.txt").ok_or("no text")?.to_vec())?;
    let mut rng = StdRng::seed_from_u64(1);
    println!("model, bits, positions, other token, total variation");
    for name in ["shakespeare-gpt2", "shakespeare-llama", "stories260k"] {
        let files = bundled(name)?;
        let tokenizer = Tokenizer::from_bytes(files.tokenizer.as_deref().ok_or("no tokenizer")?)?;
        let model = Model::load(&mut FloatLoader, &files.spec, Some(&files.checkpoint))?;
        let ids = tokenizer.encode(&text)?;
        let options = GenerateOptions { tokens: 1, all_positions: true, ..GenerateOptions::default() };
        let mut rows: Vec<Vec<f32>> = Vec::new();
        for ids in ids.chunks_exact(CONTEXT).take(SEQUENCES) {
            let (input, mut sampler) = (Input::known(ids), Sampler::greedy());
            let next = Next::Pick(&mut sampler);
            let made = generate(&mut Float::default(), &model, input, &options, next, &mut NoHooks)?;
            rows.extend(made.logits.ok_or("no logits")?.outer_iter().map(|row| row.to_vec()));
        }
        for bits in [14, 12, 10, 8, 6, 4] {
            let (mut other, mut variation) = (0, 0.0);
            for row in &rows {
                let [fine, coarse] = [14, bits].map(|bits| rounded(row, bits, &mut rng));
                other += usize::from(best(&fine) != best(&coarse));
                let (p, q) = (probabilities(&fine), probabilities(&coarse));
                variation += p.iter().zip(&q).map(|(p, q)| (p - q).abs()).sum::<f64>() / 2.0;
            }
            let count = rows.len() as f64;
            println!("{name}, {bits}, {count}, {:.3} %, {:.5}", 100.0 * other as f64 / count, variation / count);
        }
    }
    Ok(())
}
