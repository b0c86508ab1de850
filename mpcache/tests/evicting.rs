//! `streaming`, `h2o`, `tova` and `snapkv` in the clear against an independent reading in plain loops over f64.

mod support;

use std::collections::BTreeMap;

use engine::Float;
use mpcache::PolicySpec;
use support::{HEADS, LAYERS, Script};

/// Budget of all policies here.
const BUDGET: f64 = 0.25;

/// Query heads that read the key/value head `kv`.
fn group(kv: usize) -> std::ops::Range<usize> {
    let heads = HEADS.heads / HEADS.kv_heads;
    kv * heads..(kv + 1) * heads
}

/// What a policy knows of one layer.
struct Seen<'a> {
    script: &'a Script,
    layer: usize,
    /// Tokens so far.
    tokens: usize,
    prompt: usize,
}

impl Seen<'_> {
    /// The step in which the token `t` came, and its place there.
    fn place(&self, t: usize) -> (usize, usize) {
        if t < self.prompt { (0, t) } else { (1 + t - self.prompt, 0) }
    }

    /// The probabilities with which query `t` of query head `head` attends to the tokens `kept` up to its own.
    fn attention(&self, head: usize, t: usize, kept: &[usize]) -> BTreeMap<usize, f64> {
        let (kv, d) = (head / (HEADS.heads / HEADS.kv_heads), HEADS.head_dim);
        let (step, row) = self.place(t);
        let q = &self.script.steps[step][self.layer][0];
        let score = |token: usize| {
            let (step, place) = self.place(token);
            let k = &self.script.steps[step][self.layer][1];
            (0..d).map(|c| q[[head, row, c]] * k[[place, kv * d + c]]).sum::<f64>().exp()
        };
        let scores: Vec<(usize, f64)> = kept.iter().filter(|k| **k <= t).map(|&k| (k, score(k))).collect();
        let total: f64 = scores.iter().map(|(_, e)| e).sum();
        scores.into_iter().map(|(k, e)| (k, e / total)).collect()
    }

    /// What the tokens `kept` receive from the queries `queries` of the query heads `heads`.
    fn received(
        &self,
        heads: std::ops::Range<usize>,
        queries: std::ops::Range<usize>,
        kept: &[usize],
    ) -> BTreeMap<usize, f64> {
        let mut sum: BTreeMap<usize, f64> = kept.iter().map(|k| (*k, 0.0)).collect();
        for head in heads {
            for t in queries.clone() {
                for (k, p) in self.attention(head, t, kept) {
                    *sum.get_mut(&k).expect("kept") += p;
                }
            }
        }
        sum
    }

    fn keep(&self) -> usize {
        ((BUDGET * self.tokens as f64).round() as usize).max(1)
    }

    /// The queries of the newest tokens.
    fn fresh(&self) -> std::ops::Range<usize> {
        if self.tokens == self.prompt { 0..self.prompt } else { self.tokens - 1..self.tokens }
    }
}

/// The `k` of `tokens` with the largest `votes`, in the order of `tokens`.
fn best(tokens: &[usize], votes: &BTreeMap<usize, f64>, k: usize) -> Vec<usize> {
    let mut order = tokens.to_vec();
    order.sort_by(|a, b| votes[b].total_cmp(&votes[a]));
    order.truncate(k);
    tokens.iter().copied().filter(|t| order.contains(t)).collect()
}

/// Evicts until `keep` tokens are left. The latest ones are protected; `protected` says how many of a number of
/// tokens.
fn evict(kept: &mut Vec<usize>, votes: &BTreeMap<usize, f64>, keep: usize, protected: fn(usize) -> usize) {
    if kept.len() > keep + 1 {
        let latest = kept.split_off(kept.len() - protected(keep));
        *kept = best(kept, votes, keep - latest.len());
        kept.extend(latest);
    }
    while kept.len() > keep {
        let old = kept.len() - protected(kept.len() - 1).min(kept.len() - 1);
        let least = (0..old).min_by(|&a, &b| votes[&kept[a]].total_cmp(&votes[&kept[b]])).expect("an old token");
        // The oldest protected token takes the slot.
        kept[least] = kept[old];
        kept.remove(old);
    }
}

/// What one key/value head keeps after it attended, and what its tokens received so far.
#[derive(Clone, Default)]
struct Head {
    kept: Vec<usize>,
    received: BTreeMap<usize, f64>,
}

/// Called when the newest tokens have attended to what is kept: evicts.
type Rule = fn(&Seen, kv: usize, &mut Head);

fn h2o(seen: &Seen, kv: usize, head: &mut Head) {
    for (k, p) in seen.received(group(kv), seen.fresh(), &head.kept) {
        *head.received.entry(k).or_default() += p;
    }
    evict(&mut head.kept, &head.received, seen.keep(), |keep| (keep / 2).max(1));
}

fn tova(seen: &Seen, _kv: usize, head: &mut Head) {
    let votes = seen.received(0..HEADS.heads, seen.tokens - 1..seen.tokens, &head.kept);
    evict(&mut head.kept, &votes, seen.keep(), |_| 1);
}

/// With a window of 4 and a kernel of 3.
fn snapkv(seen: &Seen, kv: usize, head: &mut Head) {
    if seen.tokens > seen.prompt {
        return;
    }
    let keep = seen.keep();
    let old = seen.prompt - 4.min(keep.div_ceil(2));
    let received = seen.received(group(kv), old..seen.prompt, &head.kept);
    let around = |t: usize| (t.max(1) - 1..(t + 2).min(old)).map(|near| received[&near]).sum();
    let votes = (0..old).map(|t| (t, around(t))).collect();
    let window = head.kept.split_off(old);
    head.kept = best(&head.kept, &votes, keep - window.len());
    head.kept.extend(window);
}

/// For every step, layer and query head the sorted positions attended to.
fn naive(script: &Script, rule: Rule) -> Vec<Vec<Vec<usize>>> {
    let prompt = script.steps[0][0][1].shape()[0];
    let mut heads = vec![vec![Head::default(); HEADS.kv_heads]; LAYERS];
    let mut out = Vec::new();
    for step in 0..script.steps.len() {
        let tokens = prompt + step;
        for (layer, heads) in heads.iter_mut().enumerate() {
            let seen = Seen { script, layer, tokens, prompt };
            heads.iter_mut().for_each(|head| head.kept.extend(seen.fresh()));
            if step > 0 {
                let sorted = |head: usize| {
                    let mut kept = heads[head / (HEADS.heads / HEADS.kv_heads)].kept.clone();
                    kept.sort_unstable();
                    kept
                };
                out.push((0..HEADS.heads).map(sorted).collect());
            }
            heads.iter_mut().enumerate().for_each(|(kv, head)| rule(&seen, kv, head));
        }
    }
    out
}

#[test]
fn the_same_tokens_as_an_independent_reading() {
    for (text, rule) in [
        ("h2o:budget=0.25", h2o as Rule),
        ("tova:budget=0.25", tova),
        ("snapkv:budget=0.25,window=4,kernel=3", snapkv),
    ] {
        let spec: PolicySpec = text.parse().expect("a policy");
        for prompt in [61, 30, 9] {
            let script = Script::new(prompt, 12, 29);
            let (_, looked) = script.play(&mut Float::default(), &spec, |x| x.mapv(|x| x as f32));
            let want = naive(&script, rule);
            assert_eq!(looked.len(), want.len());
            for (i, (looked, want)) in looked.iter().zip(&want).enumerate() {
                assert_eq!(looked, want, "{text}, {prompt} tokens, output {i}");
            }
        }
    }
}

#[test]
fn streaming_keeps_the_first_tokens_and_the_latest() {
    let spec: PolicySpec = "streaming:budget=0.25,sinks=3".parse().expect("a policy");
    let (_, looked) = Script::new(40, 12, 3).play(&mut Float::default(), &spec, |x| x.mapv(|x| x as f32));
    for (i, heads) in looked.iter().enumerate() {
        let tokens = 41 + i / LAYERS;
        let keep = (BUDGET * tokens as f64).round() as usize;
        // A budget that grows by a token brings no evicted token back.
        let latest = tokens - (keep - 3).min(7 + 1 + i / LAYERS);
        let want: Vec<usize> = (0..3).chain(latest..tokens).collect();
        assert!(heads.iter().all(|head| *head == want), "{tokens} tokens: {heads:?}, not {want:?}");
    }
}
