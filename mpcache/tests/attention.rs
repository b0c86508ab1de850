//! Attention against its textbook form, with keys and values repeated for every query head: over all tokens, through
//! windows, under a cap, with sinks, and beside a layer that a policy prunes.

use ndarray::{ArrayD, IxDyn};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use waggle_engine::{Float, Shape, Tensor};
use waggle_mpcache::{Expected, HeadShape, KvCache, Layers, PolicySpec};
use waggle_planner::Plan;

const HEADS: HeadShape = HeadShape { heads: 4, kv_heads: 2, head_dim: 3 };
const TOKENS: usize = 60;

fn random(shape: &[usize], rng: &mut StdRng) -> ArrayD<f32> {
    ArrayD::from_shape_simple_fn(IxDyn(shape), || rng.random_range(-2.0..2.0))
}

/// Queries, keys and values of one layer.
struct Script {
    heads: HeadShape,
    q: ArrayD<f32>,
    k: ArrayD<f32>,
    v: ArrayD<f32>,
    /// (1, heads).
    sinks: Option<ArrayD<f32>>,
}

impl Script {
    fn new(heads: HeadShape, sinks: bool, rng: &mut StdRng) -> Self {
        let kv = [TOKENS, heads.kv_heads * heads.head_dim];
        let q = random(&[heads.heads, TOKENS, heads.head_dim], rng);
        let (k, v) = (random(&kv, rng), random(&kv, rng));
        // The sinks are as large as the largest scores, so that they take much of the attention.
        let sinks = sinks.then(|| random(&[1, heads.heads], rng) + 3.0);
        Script { heads, q, k, v, sinks }
    }

    /// The output of head `h` at `position`, which sees the tokens `seen`, with scores under a cap.
    fn naive(&self, h: usize, position: usize, seen: &[usize], cap: Option<f64>) -> Vec<f64> {
        let d = self.heads.head_dim;
        let column = |i: usize| h / self.heads.group() * d + i;
        let score = |t: usize| -> f64 {
            let dot: f64 = (0..d).map(|i| f64::from(self.q[[h, position, i]] * self.k[[t, column(i)]])).sum();
            cap.map_or(dot, |cap| cap * (dot / cap).tanh())
        };
        let sink = self.sinks.as_ref().map_or(0.0, |sinks| f64::from(sinks[[0, h]]).exp());
        let total = seen.iter().map(|&t| score(t).exp()).sum::<f64>() + sink;
        let mix = |i: usize| seen.iter().map(|&t| score(t).exp() / total * f64::from(self.v[[t, column(i)]])).sum();
        (0..d).map(mix).collect()
    }
}

/// [`compare_with`] without sinks, and then with sinks.
fn compare(layers: &Layers, policy: &str, pieces: &[usize], cuts: bool) {
    for sinks in [false, true] {
        compare_with(layers, sinks, policy, pieces, cuts);
    }
}

/// Feeds pieces of the given lengths, and compares the last rows of each with [`Script::naive`].
fn compare_with(layers: &Layers, sinks: bool, policy: &str, pieces: &[usize], cuts: bool) {
    let mut rng = StdRng::seed_from_u64(23);
    let scripts = layers.windows.iter().zip(&layers.heads).map(|(_, heads)| Script::new(*heads, sinks, &mut rng));
    let scripts: Vec<_> = scripts.collect();
    let mut engine = Float::default();
    let mut cache = KvCache::<Float>::new(layers, &policy.parse::<PolicySpec>().unwrap());
    if cuts {
        cache.expect(Expected { rolls_back: true, ..Expected::default() });
    }
    let mut start = 0;
    for &new in pieces {
        let end = start + new;
        for (layer, script) in scripts.iter().enumerate() {
            let part = |x: &ArrayD<f32>| Tensor::slice(x, 0, start..end);
            // As many rows as the policy wants to see, and at least the last three.
            let rows = cache.observation_window(layer, new).max(new.min(3));
            let queries = Tensor::slice(&script.q, 1, end - rows..end);
            if let Some(sinks) = &script.sinks {
                cache.sinks(layer, sinks);
            }
            let out = cache.attend(&mut engine, layer, &queries, &part(&script.k), &part(&script.v)).unwrap();
            let attended = cache.attended(layer).unwrap().to_vec();
            for row in 0..rows {
                let position = end - rows + row;
                for h in 0..layers.heads[layer].heads {
                    let mut seen: Vec<usize> = match layers.windows[layer] {
                        Some(window) => (position.saturating_sub(window - 1)..=position).collect(),
                        // The policy knows the tokens that the last query attended to. Earlier queries attended to
                        // the same tokens up to their own.
                        None => attended[h].iter().copied().filter(|t| *t <= position).collect(),
                    };
                    if row + 1 == rows {
                        let mut said = attended[h].clone();
                        said.sort_unstable();
                        seen.sort_unstable();
                        assert_eq!(said, seen, "layer {layer}, position {position}");
                    }
                    let want = script.naive(h, position, &seen, layers.soft_cap.map(f64::from));
                    for (i, want) in want.into_iter().enumerate() {
                        let got = f64::from(out[[row, h * layers.heads[layer].head_dim + i]]);
                        assert!((got - want).abs() < 1e-4, "layer {layer}, position {position}: {got} for {want}");
                    }
                }
            }
            if let (Some(window), false) = (layers.windows[layer], cuts) {
                let most = (window - 1).max(1) + (window / 4).max(1);
                assert!(cache.held(layer) < most, "layer {layer} holds {}", cache.held(layer));
            }
        }
        start = end;
    }
    assert_eq!(cache.tokens(), start);
    if cuts {
        assert!(layers.windows.iter().enumerate().all(|(layer, _)| cache.held(layer) == start));
    }
}

#[test]
fn full_equals_textbook_attention_for_grouped_heads_and_any_chunking() {
    for (heads, kv_heads, head_dim) in [(1, 1, 1), (3, 3, 5), (6, 2, 4), (5, 1, 3)] {
        let layers = Layers::global(1, HeadShape { heads, kv_heads, head_dim });
        compare(&layers, "full", &[3, 4, 1, 1, 20, 31], false);
    }
}

#[test]
fn windows_equal_textbook_attention_in_pieces_of_any_length() {
    for soft_cap in [None, Some(1.5)] {
        for windows in [vec![Some(1)], vec![Some(8), None, Some(3)], vec![None, Some(100)], vec![Some(59), Some(60)]]
        {
            let global = Layers::global(windows.len(), HEADS);
            let layers = Layers { windows, soft_cap, ..global };
            for pieces in [&[TOKENS][..], &[20; 3], &[1; TOKENS], &[7, 30, 1, 1, 1, 4, 1, 15]] {
                for cuts in [false, true] {
                    compare(&layers, "full", pieces, cuts);
                }
            }
        }
    }
}

#[test]
fn a_policy_prunes_the_other_layers_alone() {
    let windows = vec![Some(8), None, Some(3), None];
    let alike = Layers { windows, soft_cap: Some(2.0), ..Layers::global(4, HEADS) };
    assert_eq!(alike.pruned(), 2);
    let pieces = [&[24][..], &[1; 36]].concat();
    let other = HeadShape { heads: 6, kv_heads: 3, head_dim: 2 };
    let layers = Layers { heads: vec![other, HEADS, other, HEADS], ..alike.clone() };
    assert_eq!(layers.pruned_heads(), HEADS);
    for policy in [
        "full",
        "streaming:budget=10,sinks=2",
        "h2o:budget=0.5",
        "mpcache:clusters=4/2",
        "mpcache-2pc:budget=0.25",
        "quest",
        "random:budget=0.5",
        "mpcache:gather=scores,static=1",
        "keyformer:budget=10",
    ] {
        compare(&alike, policy, &pieces, false);
        compare(&layers, policy, &pieces, false);
    }
    let windowed = Layers { windows: vec![Some(8); 4], ..layers };
    assert!(windowed.take(&PolicySpec::default()) && !windowed.take(&"h2o".parse().unwrap()));
}

#[test]
fn layers_of_one_window_cost_the_same() {
    let windows = vec![Some(8), None, Some(8), Some(3), None];
    let global = Layers::global(windows.len(), HEADS);
    let layers = Layers { windows, ..global };
    let cache = KvCache::<Float>::new(&layers, &PolicySpec::default());
    let classes: Vec<usize> = (0..5).map(|layer| cache.layer_class(layer)).collect();
    assert_eq!((classes[0], classes[1]), (classes[2], classes[4]));
    assert!(classes[0] != classes[3] && classes[0] != classes[1] && classes[3] != classes[1]);
}

#[test]
fn replaced_rows_keep_the_count_of_seen_tokens() {
    let shape = HeadShape { heads: 2, kv_heads: 1, head_dim: 3 };
    let mut store = waggle_mpcache::Store::<Plan>::new(0, shape);
    store.append(&Shape(vec![5, 3]), &Shape(vec![5, 3]));
    store.replace(Shape(vec![2, 3]), Shape(vec![2, 3]));
    store.append(&Shape(vec![1, 3]), &Shape(vec![1, 3]));
    assert_eq!((store.len(), store.seen()), (3, 6));
    assert_eq!(store.values_by_head(), Shape(vec![1, 3, 3]));
}
