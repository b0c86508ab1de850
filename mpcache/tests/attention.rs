//! The policy `full` against attention as textbooks write it, with keys and values repeated for every query head.

use engine::{Float, Shape, Tensor};
use mpcache::{HeadShape, KvCache, PolicySpec};
use ndarray::{ArrayD, IxDyn};
use planner::Plan;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

fn random(shape: &[usize], rng: &mut StdRng) -> ArrayD<f32> {
    ArrayD::from_shape_simple_fn(IxDyn(shape), || rng.random_range(-2.0..2.0))
}

/// Output (heads * d) of the query at `position`, over all keys and values up to it.
fn naive(q: &ArrayD<f32>, row: usize, position: usize, k: &ArrayD<f32>, v: &ArrayD<f32>, s: HeadShape) -> Vec<f64> {
    let mut out = Vec::new();
    for h in 0..s.heads {
        let kv = h / (s.heads / s.kv_heads);
        let score = |t: usize| -> f64 {
            (0..s.head_dim).map(|i| f64::from(q[[h, row, i]]) * f64::from(k[[t, kv * s.head_dim + i]])).sum()
        };
        let weights: Vec<f64> = (0..=position).map(|t| score(t).exp()).collect();
        let total: f64 = weights.iter().sum();
        for i in 0..s.head_dim {
            let mixed: f64 =
                weights.iter().enumerate().map(|(t, w)| w / total * f64::from(v[[t, kv * s.head_dim + i]])).sum();
            out.push(mixed);
        }
    }
    out
}

#[test]
fn full_equals_textbook_attention_for_grouped_heads_and_any_chunking() {
    let mut rng = StdRng::seed_from_u64(7);
    for (heads, kv_heads, head_dim) in [(1, 1, 1), (3, 3, 5), (6, 2, 4), (5, 1, 3)] {
        let shape = HeadShape { heads, kv_heads, head_dim };
        let (k, v) = (random(&[9, kv_heads * head_dim], &mut rng), random(&[9, kv_heads * head_dim], &mut rng));
        let q = random(&[heads, 9, head_dim], &mut rng);
        let mut cache = KvCache::<Float>::new(1, shape, &PolicySpec::default());
        let mut engine = Float::default();
        let mut start = 0;
        // All queries of a prompt, the last two of a second one, then single tokens.
        for (new, rows) in [(3, 3), (4, 2), (1, 1), (1, 1)] {
            let end = start + new;
            let part = |x: &ArrayD<f32>| Tensor::slice(x, 0, start..end);
            let queries = Tensor::slice(&q, 1, end - rows..end);
            assert_eq!(cache.tokens(), start);
            let out = cache.attend(&mut engine, 0, &queries, &part(&k), &part(&v)).unwrap();
            assert_eq!(out.shape(), [rows, heads * head_dim]);
            for row in 0..rows {
                let position = end - rows + row;
                for (i, want) in naive(&q, position, position, &k, &v, shape).iter().enumerate() {
                    let got = f64::from(out[[row, i]]);
                    assert!((got - want).abs() < 1e-5, "{shape:?} position {position}: {got} against {want}");
                }
            }
            start = end;
        }
    }
}

#[test]
fn replaced_rows_keep_the_count_of_seen_tokens() {
    let shape = HeadShape { heads: 2, kv_heads: 1, head_dim: 3 };
    let mut store = mpcache::Store::<Plan>::new(0, shape);
    store.append(&Shape(vec![5, 3]), &Shape(vec![5, 3]));
    store.replace(Shape(vec![2, 3]), Shape(vec![2, 3]));
    store.append(&Shape(vec![1, 3]), &Shape(vec![1, 3]));
    assert_eq!((store.len(), store.seen()), (3, 6));
    assert_eq!(store.keys_by_head(), Shape(vec![1, 3, 3]));
}
