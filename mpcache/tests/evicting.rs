//! The policies that evict, in the clear, against an independent reading in plain loops over f64.

mod support;

use std::collections::BTreeMap;

use engine::Float;
use mpcache::PolicySpec;
use support::{HEADS, LAYERS, Pass, Script, grid, nearest};

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
    /// Those of them that came together, the last ones.
    new: usize,
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

    /// Fractional bits of sums over `queries` queries of one group.
    fn grid(&self, queries: usize) -> u32 {
        grid(queries * group(0).len())
    }

    fn keep(&self) -> usize {
        ((BUDGET * self.tokens as f64).round() as usize).max(1)
    }

    /// The queries of the newest tokens.
    fn fresh(&self) -> std::ops::Range<usize> {
        self.tokens - self.new..self.tokens
    }
}

/// Fractional bits to which squares of norms and learned scores are rounded.
const FRAC: u32 = 6;

/// The `k` of `tokens` with the largest `votes`, rounded to `frac` fractional bits, in the order of `tokens`; of
/// equals the first ones.
fn best(tokens: &[usize], votes: &BTreeMap<usize, f64>, k: usize, frac: u32) -> Vec<usize> {
    let mut order = tokens.to_vec();
    order.sort_by(|a, b| nearest(votes[b], frac).total_cmp(&nearest(votes[a], frac)));
    order.truncate(k);
    tokens.iter().copied().filter(|t| order.contains(t)).collect()
}

/// Evicts until `keep` tokens are left. The latest ones are protected; `protected` says how many of a number of
/// tokens. Votes have `frac` fractional bits.
fn evict(kept: &mut Vec<usize>, votes: &BTreeMap<usize, f64>, frac: u32, keep: usize, protected: fn(usize) -> usize) {
    if kept.len() > keep + 1 {
        let latest = kept.split_off(kept.len() - protected(keep));
        *kept = best(kept, votes, keep - latest.len(), frac);
        kept.extend(latest);
    }
    while kept.len() > keep {
        let old = kept.len() - protected(kept.len() - 1).min(kept.len() - 1);
        let vote = |slot: usize| nearest(votes[&kept[slot]], frac);
        let least = (0..old).min_by(|&a, &b| vote(a).total_cmp(&vote(b))).expect("an old token");
        // The oldest protected token takes the slot.
        kept[least] = kept[old];
        kept.remove(old);
    }
}

/// What one key/value head keeps after it attended, what its tokens received so far, and the tokens seen when it last
/// evicted.
#[derive(Clone, Default)]
struct Head {
    kept: Vec<usize>,
    received: BTreeMap<usize, f64>,
    cut: usize,
}

/// Called when the newest tokens have attended to what is kept: evicts.
type Rule<'a> = &'a dyn Fn(&Seen, usize, &mut Head);

fn h2o(seen: &Seen, kv: usize, head: &mut Head) {
    for (k, p) in seen.received(group(kv), seen.fresh(), &head.kept) {
        *head.received.entry(k).or_default() += p;
    }
    evict(&mut head.kept, &head.received, seen.grid(seen.tokens), seen.keep(), |keep| (keep / 2).max(1));
}

fn tova(seen: &Seen, _kv: usize, head: &mut Head) {
    let votes = seen.received(0..HEADS.heads, seen.tokens - 1..seen.tokens, &head.kept);
    evict(&mut head.kept, &votes, grid(HEADS.heads), seen.keep(), |_| 1);
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
    head.kept = best(&head.kept, &votes, keep - window.len(), seen.grid(window.len() * 3));
    head.kept.extend(window);
}

/// For every step, layer and query head the sorted positions attended to.
fn naive(script: &Script, chunk: Option<usize>, rule: Rule) -> Vec<Vec<Vec<usize>>> {
    let prompt = script.prompt();
    let mut heads = vec![vec![Head::default(); HEADS.kv_heads]; LAYERS];
    let mut out = Vec::new();
    let mut tokens = 0;
    for Pass { step, tokens: new } in script.passes(chunk) {
        tokens += new.len();
        for (layer, heads) in heads.iter_mut().enumerate() {
            let seen = Seen { script, layer, tokens, new: new.len(), prompt };
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
        ("h2o:budget=0.25", &h2o as Rule),
        ("tova:budget=0.25", &tova),
        ("snapkv:budget=0.25,window=4,kernel=3", &snapkv),
    ] {
        let spec: PolicySpec = text.parse().expect("a policy");
        for prompt in [61, 30, 9] {
            let script = Script::new(prompt, 12, 29);
            let (_, looked) = script.play(&mut Float::default(), &spec, |x| x.mapv(|x| x as f32));
            let want = naive(&script, None, rule);
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

/// A budget in tokens of the tests below, and the block that goes when it is full.
const TOKENS: usize = 12;
const BLOCK: usize = 4;

/// What is left of `held` tokens after a pass, if some go: `tokens` less a block, so that there is room for the next
/// ones, or all but one of `tokens` after a chunk of the prompt.
fn left(seen: &Seen, tokens: usize, block: usize, held: usize) -> Option<usize> {
    let after = if seen.tokens < seen.prompt { tokens - 1 } else { tokens - block };
    (held >= tokens).then_some(after)
}

fn h2o_in_blocks(seen: &Seen, kv: usize, head: &mut Head) {
    for (k, p) in seen.received(group(kv), seen.fresh(), &head.kept) {
        *head.received.entry(k).or_default() += p;
    }
    if let Some(keep) = left(seen, TOKENS, BLOCK, head.kept.len()) {
        evict(&mut head.kept, &head.received, seen.grid(seen.tokens), keep, |keep| (keep / 2).max(1));
    }
}

fn tova_in_blocks(seen: &Seen, _kv: usize, head: &mut Head) {
    let votes = seen.received(0..HEADS.heads, seen.tokens - 1..seen.tokens, &head.kept);
    if let Some(keep) = left(seen, TOKENS, BLOCK, head.kept.len()) {
        evict(&mut head.kept, &votes, grid(HEADS.heads), keep, |_| 1);
    }
}

/// `snapkv` with a kernel of 3 in a cache of `tokens`: the latest queries since the last cut vote, `window` at most.
fn vote(seen: &Seen, kv: usize, head: &mut Head, tokens: usize, block: usize, window: usize) {
    let Some(keep) = left(seen, tokens, block, head.kept.len()) else { return };
    let window = window.min(keep.div_ceil(2));
    let voters = head.cut.max(seen.tokens - window)..seen.tokens;
    let frac = seen.grid(voters.len() * 3);
    let received = seen.received(group(kv), voters, &head.kept);
    let latest = head.kept.split_off(head.kept.len() - window);
    let around = |i: usize| (i.max(1) - 1..(i + 2).min(head.kept.len())).map(|near| received[&head.kept[near]]).sum();
    let votes = head.kept.iter().enumerate().map(|(i, t)| (*t, around(i))).collect();
    head.kept = best(&head.kept, &votes, keep - window, frac);
    head.kept.extend(latest);
    head.cut = seen.tokens;
}

/// With 3 latest tokens protected.
fn knorm(seen: &Seen, kv: usize, head: &mut Head) {
    let Some(keep) = left(seen, TOKENS, BLOCK, head.kept.len()) else { return };
    let latest = head.kept.split_off(head.kept.len() - 3);
    let d = HEADS.head_dim;
    let score = |token: usize| {
        let (step, place) = seen.place(token);
        let k = &seen.script.steps[step][seen.layer][1];
        -(0..d).map(|c| k[[place, kv * d + c]].powi(2)).sum::<f64>()
    };
    let scores = head.kept.iter().map(|t| (*t, score(*t))).collect();
    head.kept = best(&head.kept, &scores, keep - 3, FRAC);
    head.kept.extend(latest);
}

/// With 3 latest tokens protected.
fn kvzap(seen: &Seen, kv: usize, head: &mut Head, keep: Option<usize>) {
    let Some(keep) = keep else { return };
    let latest = head.kept.split_off(head.kept.len() - 3);
    let scores = head.kept.iter().map(|t| (*t, seen.script.scores[[seen.layer, *t, kv]])).collect();
    head.kept = best(&head.kept, &scores, keep - 3, FRAC);
    head.kept.extend(latest);
}

/// With 1 sink and 3 latest tokens protected.
fn sirllm(seen: &Seen, _kv: usize, head: &mut Head, keep: Option<usize>) {
    let Some(keep) = keep else { return };
    let latest = head.kept.split_off(head.kept.len() - 3);
    let rest = head.kept.split_off(1);
    let surprise = rest.iter().map(|t| (*t, f64::from(seen.script.surprisals[*t]))).collect();
    head.kept.extend(best(&rest, &surprise, keep - 4, 40));
    head.kept.extend(latest);
}

#[test]
fn shares_of_the_prompt() {
    let of_prompt = |seen: &Seen| (seen.tokens == seen.prompt).then(|| seen.keep());
    let learned = |seen: &Seen, kv, head: &mut Head| kvzap(seen, kv, head, of_prompt(seen));
    let surprised = |seen: &Seen, kv, head: &mut Head| sirllm(seen, kv, head, of_prompt(seen));
    // Half of the mean in layer 1, and what it leaves in layer 0.
    let squeezed = |seen: &Seen, kv, head: &mut Head| {
        let (mean, of) = (seen.keep(), if seen.layer == 1 { 0.5 } else { 1.5 });
        if seen.tokens == seen.prompt {
            let light = (0.5 * mean as f64).round() as usize;
            let keep = if of < 1.0 { light } else { 2 * mean - light };
            let window = 4.min(keep.div_ceil(2));
            let received = seen.received(group(kv), seen.prompt - window..seen.prompt, &head.kept);
            let latest = head.kept.split_off(head.kept.len() - window);
            head.kept = best(&head.kept, &received, keep - window, seen.grid(window));
            head.kept.extend(latest);
        }
    };
    for (text, rule) in [
        ("kvzap:budget=0.25,recent=3", &learned as Rule),
        ("sirllm:budget=0.25,sinks=1,recent=3", &surprised),
        ("squeeze:budget=0.25,window=4,kernel=1,layers=1,part=0.5", &squeezed),
    ] {
        let spec: PolicySpec = text.parse().expect("a policy");
        for prompt in [61, 30, 24] {
            let script = Script::new(prompt, 12, 29);
            let (_, looked) = script.play(&mut Float::default(), &spec, |x| x.mapv(|x| x as f32));
            assert_eq!(looked, naive(&script, None, rule), "{text}, {prompt} tokens");
        }
    }
}

#[test]
fn blocks_within_a_budget_in_tokens() {
    let window = |window: usize| move |seen: &Seen, kv, head: &mut Head| vote(seen, kv, head, TOKENS, BLOCK, window);
    // Two layers of a pyramid with a mean of 12, of which the window has 2: 10 + 5 above it and 10 - 5.
    let layers = |seen: &Seen, kv, head: &mut Head| {
        vote(seen, kv, head, if seen.layer == 0 { 17 } else { 7 }, if seen.layer == 0 { BLOCK } else { 3 }, 2);
    };
    let fixed = |seen: &Seen, head: &Head| left(seen, TOKENS, BLOCK, head.kept.len());
    let learned = |seen: &Seen, kv, head: &mut Head| kvzap(seen, kv, head, fixed(seen, head));
    let surprised = |seen: &Seen, kv, head: &mut Head| sirllm(seen, kv, head, fixed(seen, head));
    for (text, chunk, rule) in [
        ("h2o:budget=12,block=4", None, &h2o_in_blocks as Rule),
        ("tova:budget=12,block=4", None, &tova_in_blocks),
        ("snapkv:budget=12,block=4,window=3,kernel=3", None, &window(3)),
        // More voters than a block has.
        ("snapkv:budget=12,block=4,window=6,kernel=3", None, &window(6)),
        ("snapkv:budget=12,block=4,window=3,kernel=3,prefill=8", Some(8), &window(3)),
        ("pyramid:budget=12,block=4,window=2,kernel=3,beta=2", None, &layers),
        ("pyramid:budget=12,block=4,window=2,kernel=3,beta=2,prefill=7", Some(7), &layers),
        ("knorm:budget=12,block=4,recent=3", None, &knorm),
        ("knorm:budget=12,block=4,recent=3,prefill=5", Some(5), &knorm),
        ("kvzap:budget=12,block=4,recent=3", None, &learned),
        ("kvzap:budget=12,block=4,recent=3,prefill=5", Some(5), &learned),
        ("sirllm:budget=12,block=4,sinks=1,recent=3", None, &surprised),
    ] {
        let spec: PolicySpec = text.parse().expect("a policy");
        assert_eq!(spec.prefill(), chunk, "{text}");
        for prompt in [31, 12, 11, 6, 1] {
            let script = Script::new(prompt, 30, 29);
            let (_, looked) = script.play(&mut Float::default(), &spec, |x| x.mapv(|x| x as f32));
            let want = naive(&script, chunk, rule);
            assert_eq!(looked.len(), want.len());
            for (i, (looked, want)) in looked.iter().zip(&want).enumerate() {
                assert_eq!(looked, want, "{text}, {prompt} tokens, output {i}");
            }
        }
    }
}

#[test]
fn streaming_in_blocks() {
    for (text, chunk) in
        [("streaming:budget=12,block=4,sinks=3", None), ("streaming:budget=12,block=4,sinks=3,prefill=5", Some(5))]
    {
        let spec: PolicySpec = text.parse().expect("a policy");
        for prompt in [31, 13, 12, 6, 1] {
            let script = Script::new(prompt, 30, 3);
            let (_, looked) = script.play(&mut Float::default(), &spec, |x| x.mapv(|x| x as f32));
            let mut kept: Vec<usize> = Vec::new();
            let cut = |kept: &mut Vec<usize>, keep: usize| {
                if kept.len() > 12 {
                    kept.drain(3..3 + kept.len() - keep);
                }
            };
            let mut outputs = looked.iter();
            let mut seen = 0;
            for Pass { step, tokens } in script.passes(chunk) {
                kept.extend(seen..seen + tokens.len());
                seen += tokens.len();
                // The prompt is cut after it is read, and a later token before it attends.
                cut(&mut kept, if seen < prompt { 12 } else { 9 });
                for layer in 0..if step == 0 { 0 } else { LAYERS } {
                    let heads = outputs.next().expect("an output");
                    assert!(
                        heads.iter().all(|head| *head == kept),
                        "{text}: {seen} tokens, layer {layer}: {heads:?}"
                    );
                }
            }
            assert!(outputs.next().is_none());
        }
    }
}

#[test]
fn a_store_never_holds_more_than_its_budget_in_tokens() {
    let plain = [
        "streaming",
        "h2o",
        "tova",
        "snapkv",
        "pyramid",
        "squeeze",
        "mpcache-2pc",
        "knorm",
        "kvzap",
        "keyformer",
        "sirllm",
    ];
    let plain = plain.map(|name| format!("{name}:"));
    for name in plain.iter().map(String::as_str).chain(["duo:heads=0,"]) {
        for (budget, block) in [(2, 1), (3, 1), (5, 2), (16, 1), (16, 8), (16, 4)] {
            let spec: PolicySpec = format!("{name}budget={budget},block={block}").parse().expect("a policy");
            for prompt in [1, 16, 20] {
                let mut layers = vec![0; LAYERS];
                let script = Script::new(prompt, 40, 7);
                let (_, looked) = script.play_watched(
                    &mut Float::default(),
                    &spec,
                    |x| x.mapv(|x| x as f32),
                    |layer, step, held| {
                        // What surprised it is known when a prompt has been read, and then it is cut.
                        if step > 0 || name != "sirllm:" {
                            layers[layer] = layers[layer].max(held);
                        }
                    },
                );
                // While a token attends it is among those that are held.
                let attended: usize = (0..LAYERS)
                    .map(|layer| {
                        looked.iter().skip(layer).step_by(LAYERS).flatten().map(Vec::len).max().expect("steps")
                    })
                    .sum();
                let held: usize = layers.iter().sum();
                let context = format!("{name} {budget} in blocks of {block} after {prompt}: {layers:?}");
                assert!(held <= LAYERS * budget && attended <= LAYERS * budget, "{context}, {attended}");
                // And the budget is used.
                assert!(attended + LAYERS >= LAYERS * budget, "{context}, {attended}");
            }
        }
    }
}
