//! Naive readings of the models, as their papers describe them: in f64, one position at a time, nothing folded,
//! nothing fused, keys and values repeated for every query head, and every position computed from scratch.

use std::collections::HashMap;

use serde_json::Value;

/// A published tensor.
#[derive(Clone)]
pub(crate) struct Published {
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Vec<f32>,
}

/// Published tensors by name.
pub(crate) type Weights = HashMap<String, Published>;

type Row = Vec<f64>;

/// A configuration as these readings take it, with their own look-ups.
struct Shape<'a>(&'a Value);

impl Shape<'_> {
    fn int(&self, key: &str, default: usize) -> usize {
        self.0.get(key).and_then(Value::as_u64).map_or(default, |v| v as usize)
    }

    fn flag(&self, key: &str, default: bool) -> bool {
        self.0.get(key).and_then(Value::as_bool).unwrap_or(default)
    }

    fn float(&self, key: &str, default: f64) -> f64 {
        self.0.get(key).and_then(Value::as_f64).unwrap_or(default)
    }
}

fn row(w: &Weights, name: &str, i: usize) -> Row {
    let t = &w[name];
    let n = t.shape[1];
    t.data[i * n..(i + 1) * n].iter().map(|&v| f64::from(v)).collect()
}

fn vector(w: &Weights, name: &str) -> Row {
    w[name].data.iter().map(|&v| f64::from(v)).collect()
}

fn plus(a: &Row, b: &Row) -> Row {
    a.iter().zip(b).map(|(x, y)| x + y).collect()
}

/// y = W x (+ b) for a published matrix (outputs, inputs).
fn linear(w: &Weights, name: &str, x: &Row) -> Row {
    let t = &w[&format!("{name}.weight")];
    let bias = w.get(&format!("{name}.bias"));
    (0..t.shape[0])
        .map(|o| {
            let sum: f64 = (0..t.shape[1]).map(|i| f64::from(t.data[o * t.shape[1] + i]) * x[i]).sum();
            sum + bias.map_or(0.0, |b| f64::from(b.data[o]))
        })
        .collect()
}

/// y = x W + b for a published matrix (inputs, outputs).
fn conv1d(w: &Weights, name: &str, x: &Row) -> Row {
    let t = &w[&format!("{name}.weight")];
    let mut y = vector(w, &format!("{name}.bias"));
    for (i, x) in x.iter().enumerate() {
        for (o, y) in y.iter_mut().enumerate() {
            *y += f64::from(t.data[i * t.shape[1] + o]) * x;
        }
    }
    y
}

fn layer_norm(w: &Weights, name: &str, x: &Row, eps: f64) -> Row {
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n;
    let var = x.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n;
    let (g, b) = (vector(w, &format!("{name}.weight")), vector(w, &format!("{name}.bias")));
    (0..x.len()).map(|i| (x[i] - mean) / (var + eps).sqrt() * g[i] + b[i]).collect()
}

fn rms_norm(w: &Weights, name: &str, x: &Row, eps: f64) -> Row {
    let square = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    let g = vector(w, &format!("{name}.weight"));
    (0..x.len()).map(|i| x[i] / (square + eps).sqrt() * g[i]).collect()
}

/// The distribution function of the standard normal by Simpson's rule, independent of a library's erf.
fn phi(x: f64) -> f64 {
    let density = |t: f64| (-t * t / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let (steps, x) = (400, x.clamp(-9.0, 9.0));
    let h = x / f64::from(steps);
    let inner: f64 = (1..steps).map(|i| density(h * f64::from(i)) * if i % 2 == 1 { 4.0 } else { 2.0 }).sum();
    0.5 + h / 3.0 * (density(0.0) + inner + density(x))
}

fn activation(name: &str, x: f64) -> f64 {
    match name {
        "gelu_new" | "gelu_pytorch_tanh" => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }
        "gelu" => x * phi(x),
        "silu" => x / (1.0 + (-x).exp()),
        other => panic!("a naive reading does not know {other}"),
    }
}

/// By head, the weights that a query gives to keys.
fn weights(q: &Row, keys: &[Row], heads: usize, group: usize, d: usize, scale: f64) -> Vec<Row> {
    let of_head = |h: usize| {
        let (a, b) = (h * d, h / group * d);
        let scores: Vec<f64> =
            keys.iter().map(|k| (0..d).map(|i| q[a + i] * k[b + i]).sum::<f64>() * scale).collect();
        let max = scores.iter().cloned().fold(f64::MIN, f64::max);
        let exps: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
        let total: f64 = exps.iter().sum();
        exps.into_iter().map(|e| e / total).collect()
    };
    (0..heads).map(of_head).collect()
}

/// Attention of a query over keys and values; one entry per position, heads side by side.
fn attention(q: &Row, keys: &[Row], values: &[Row], heads: usize, group: usize, d: usize, scale: f64) -> Row {
    let mut out = Vec::new();
    for (h, p) in weights(q, keys, heads, group, d, scale).iter().enumerate() {
        let b = h / group * d;
        out.extend((0..d).map(|i| values.iter().zip(p).map(|(v, p)| p * v[b + i]).sum::<f64>()));
    }
    out
}

/// Logits of every position of `ids` by the model that `config` (a config.json) and `w` describe.
pub(crate) fn logits(config: &Value, w: &Weights, ids: &[u32]) -> Vec<Row> {
    match config["model_type"].as_str() {
        Some("gpt2") => gpt2(&Shape(config), w, ids),
        Some("llama") => llama(&Shape(config), w, ids),
        other => panic!("{other:?}"),
    }
}

fn gpt2(c: &Shape, w: &Weights, ids: &[u32]) -> Vec<Row> {
    let (e, heads, layers) = (c.int("n_embd", 768), c.int("n_head", 12), c.int("n_layer", 12));
    let eps = c.float("layer_norm_epsilon", 1e-5);
    let act = c.0.get("activation_function").and_then(Value::as_str).unwrap_or("gelu_new");
    let embed = |(p, &id): (usize, &u32)| {
        plus(&row(w, "transformer.wte.weight", id as usize), &row(w, "transformer.wpe.weight", p))
    };
    let mut xs: Vec<Row> = ids.iter().enumerate().map(embed).collect();
    for l in 0..layers {
        let p = format!("transformer.h.{l}");
        let mut scale = if c.flag("scale_attn_weights", true) { ((e / heads) as f64).sqrt().recip() } else { 1.0 };
        if c.flag("scale_attn_by_inverse_layer_idx", false) {
            scale /= (l + 1) as f64;
        }
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for x in &mut xs {
            let qkv = conv1d(w, &format!("{p}.attn.c_attn"), &layer_norm(w, &format!("{p}.ln_1"), x, eps));
            keys.push(qkv[e..2 * e].to_vec());
            values.push(qkv[2 * e..].to_vec());
            let a = attention(&qkv[..e].to_vec(), &keys, &values, heads, 1, e / heads, scale);
            *x = plus(x, &conv1d(w, &format!("{p}.attn.c_proj"), &a));
            let h = conv1d(w, &format!("{p}.mlp.c_fc"), &layer_norm(w, &format!("{p}.ln_2"), x, eps));
            let h = h.into_iter().map(|v| activation(act, v)).collect();
            *x = plus(x, &conv1d(w, &format!("{p}.mlp.c_proj"), &h));
        }
    }
    let head = if c.flag("tie_word_embeddings", true) { "transformer.wte" } else { "lm_head" };
    xs.iter().map(|x| linear(w, head, &layer_norm(w, "transformer.ln_f", x, eps))).collect()
}

/// Inverse frequencies as `transformers` computes them (`_compute_llama3_parameters` and its siblings).
fn inverse_frequencies(c: &Shape, d: usize) -> Vec<f64> {
    let scaling = c.0.get("rope_parameters").or(c.0.get("rope_scaling")).filter(|s| !s.is_null());
    let part = Shape(scaling.unwrap_or(&Value::Null));
    let theta = part.float("rope_theta", c.float("rope_theta", 10000.0));
    let text = |key| part.0.get(key).and_then(Value::as_str);
    let kind = text("rope_type").or(text("type")).unwrap_or("default");
    let one = |i: usize| {
        let inv_freq = 1.0 / theta.powf((2 * i) as f64 / d as f64);
        let factor = part.float("factor", 1.0);
        match kind {
            "default" => inv_freq,
            "linear" => inv_freq / factor,
            "llama3" => {
                let (low, high) = (part.float("low_freq_factor", 0.0), part.float("high_freq_factor", 0.0));
                let old = part.float("original_max_position_embeddings", 0.0);
                let wavelen = 2.0 * std::f64::consts::PI / inv_freq;
                if wavelen < old / high {
                    inv_freq
                } else if wavelen > old / low {
                    inv_freq / factor
                } else {
                    let smooth = (old / wavelen - low) / (high - low);
                    (1.0 - smooth) * inv_freq / factor + smooth * inv_freq
                }
            }
            other => panic!("a naive reading does not know {other}"),
        }
    };
    (0..d / 2).map(one).collect()
}

fn rotate(x: &mut [f64], position: usize, inv_freq: &[f64]) {
    let d = 2 * inv_freq.len();
    for head in x.chunks_mut(d) {
        for (i, w) in inv_freq.iter().enumerate() {
            let (sin, cos) = (position as f64 * w).sin_cos();
            let (a, b) = (head[i], head[i + d / 2]);
            head[i] = a * cos - b * sin;
            head[i + d / 2] = b * cos + a * sin;
        }
    }
}

fn llama(c: &Shape, w: &Weights, ids: &[u32]) -> Vec<Row> {
    pruned_llama(c.0, w, ids, &|_, _| true, &mut |_, _, _| ())
}

/// A query, all keys and values up to its own position, and the output of its attention.
pub(crate) struct Query<'a> {
    pub(crate) q: &'a Row,
    pub(crate) keys: &'a [Row],
    pub(crate) values: &'a [Row],
    pub(crate) output: &'a Row,
}

/// Logits of a LLaMA in which the query at position p sees the tokens t <= p with `visible(p, t)`. `watch` is called
/// with layer and position of every query. Queries are scaled.
pub(crate) fn pruned_llama(
    config: &Value,
    w: &Weights,
    ids: &[u32],
    visible: &dyn Fn(usize, usize) -> bool,
    watch: &mut dyn FnMut(usize, usize, Query),
) -> Vec<Row> {
    shedding_llama(config, w, ids, visible, watch, &Sheds { steps: &[], prompt: ids.len(), own: false })
}

/// Rows of the prompt that end.
pub(crate) struct Sheds<'a> {
    /// Layers, and how many rows of the prompt they compute.
    pub(crate) steps: &'a [(usize, usize)],
    /// Tokens of the prompt.
    pub(crate) prompt: usize,
    /// Whether rows keep their own positions.
    pub(crate) own: bool,
}

/// [`pruned_llama`] in which rows of the prompt end before layers: the result has the rows that are left.
pub(crate) fn shedding_llama(
    config: &Value,
    w: &Weights,
    ids: &[u32],
    visible: &dyn Fn(usize, usize) -> bool,
    watch: &mut dyn FnMut(usize, usize, Query),
    sheds: &Sheds,
) -> Vec<Row> {
    let c = Shape(config);
    let (hidden, heads) = (c.int("hidden_size", 4096), c.int("num_attention_heads", 32));
    let (kv, layers) = (c.int("num_key_value_heads", heads), c.int("num_hidden_layers", 32));
    let (d, eps) = (c.int("head_dim", hidden / heads), c.float("rms_norm_eps", 1e-6));
    let act = c.0.get("hidden_act").and_then(Value::as_str).unwrap_or("silu");
    let inv_freq = inverse_frequencies(&c, d);
    let mut xs: Vec<Row> = ids.iter().map(|&id| row(w, "model.embed_tokens.weight", id as usize)).collect();
    let mut places: Vec<usize> = (0..ids.len()).collect();
    let (mut left, mut queries, mut last_keys): (usize, Vec<Row>, Vec<Row>) = (sheds.prompt, Vec::new(), Vec::new());
    for l in 0..layers {
        if let Some(&(_, keep)) = sheds.steps.iter().find(|(layer, _)| *layer == l) {
            // The last rows vote and stay; of the others those with the most votes, rounded, and the first of equals.
            let voters = 32.min(keep.div_ceil(2));
            let mut votes = vec![0.0; left];
            for row in left - voters..left {
                for p in weights(&queries[row], &last_keys[..=row], heads, heads / kv, d, 1.0) {
                    votes.iter_mut().zip(p).for_each(|(vote, p)| *vote += p);
                }
            }
            let frac = 10 - (((voters * heads).ilog2()).div_ceil(2)) as i32;
            let rounded: Vec<i64> = votes.iter().map(|vote| (vote * 2f64.powi(frac)).round() as i64).collect();
            let mut best: Vec<usize> = (0..left - voters).collect();
            best.sort_by_key(|row| (-rounded[*row], *row));
            best.truncate(keep - voters);
            best.sort_unstable();
            let stay: Vec<usize> = best.into_iter().chain(left - voters..xs.len()).collect();
            xs = stay.iter().map(|row| xs[*row].clone()).collect();
            places = stay.iter().map(|row| places[*row]).collect();
            left = keep;
            if !sheds.own {
                places = (ids.len() - xs.len()..ids.len()).collect();
            }
        }
        (queries, last_keys) = (Vec::new(), Vec::new());
        let p = format!("model.layers.{l}");
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for (position, x) in xs.iter_mut().enumerate() {
            let h = rms_norm(w, &format!("{p}.input_layernorm"), x, eps);
            let mut q = linear(w, &format!("{p}.self_attn.q_proj"), &h);
            let mut k = linear(w, &format!("{p}.self_attn.k_proj"), &h);
            rotate(&mut q, places[position], &inv_freq);
            rotate(&mut k, places[position], &inv_freq);
            keys.push(k);
            values.push(linear(w, &format!("{p}.self_attn.v_proj"), &h));
            q.iter_mut().for_each(|q| *q /= (d as f64).sqrt());
            let seen = |rows: &[Row]| -> Vec<Row> {
                (0..=position).filter(|&t| visible(position, t)).map(|t| rows[t].clone()).collect()
            };
            let a = attention(&q, &seen(&keys), &seen(&values), heads, heads / kv, d, 1.0);
            watch(l, position, Query { q: &q, keys: &keys, values: &values, output: &a });
            queries.push(q);
            last_keys.clone_from(&keys);
            *x = plus(x, &linear(w, &format!("{p}.self_attn.o_proj"), &a));
            let h = rms_norm(w, &format!("{p}.post_attention_layernorm"), x, eps);
            let gate = linear(w, &format!("{p}.mlp.gate_proj"), &h);
            let up = linear(w, &format!("{p}.mlp.up_proj"), &h);
            let h = gate.iter().zip(&up).map(|(&g, u)| activation(act, g) * u).collect();
            *x = plus(x, &linear(w, &format!("{p}.mlp.down_proj"), &h));
        }
    }
    let head = if c.flag("tie_word_embeddings", false) { "model.embed_tokens" } else { "lm_head" };
    xs.iter().map(|x| linear(w, head, &rms_norm(w, "model.norm", x, eps))).collect()
}
