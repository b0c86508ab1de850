//! The policies that evict, in the clear, against an independent implementation in plain loops over f64.

mod support;

use std::collections::BTreeMap;

use support::{HEADS, LAYERS, Pass, Script, dot, grid, nearest};
use waggle_engine::Float;
use waggle_mpcache::PolicySpec;

/// The budget of the policies here whose budget is a share.
const BUDGET: f64 = 0.25;

/// A budget in tokens, and the block that is evicted when the store is full.
const TOKENS: usize = 12;
const BLOCK: usize = 4;

/// Query heads that read the key/value head `kv`.
fn group(kv: usize) -> std::ops::Range<usize> {
    let heads = HEADS.heads / HEADS.kv_heads;
    kv * heads..(kv + 1) * heads
}

/// A policy's view of one layer.
struct Seen<'a> {
    script: &'a Script,
    layer: usize,
    /// The number of tokens so far.
    tokens: usize,
    /// The number of these tokens that came together last.
    new: usize,
    prompt: usize,
}

impl Seen<'_> {
    /// The probabilities with which query `t` of query head `head` attends to the tokens `kept` up to its own.
    fn attention(&self, head: usize, t: usize, kept: &[usize]) -> BTreeMap<usize, f64> {
        let q = self.script.query(self.layer, t, head);
        let score = |token: usize| dot(&q, &self.script.key(self.layer, token, head / HEADS.group())).exp();
        let scores: Vec<(usize, f64)> = kept.iter().filter(|k| **k <= t).map(|&k| (k, score(k))).collect();
        let total: f64 = scores.iter().map(|(_, e)| e).sum();
        scores.into_iter().map(|(k, e)| (k, e / total)).collect()
    }

    /// The attention that the tokens `kept` receive from the queries `queries` of the query heads `heads`.
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

    /// The number of tokens left of a prompt that ends here, under a share.
    fn share(&self) -> Option<usize> {
        (self.tokens == self.prompt).then(|| self.keep())
    }

    /// The number of tokens left of `held` tokens after a pass, if some are evicted: [`TOKENS`] less a block, so that
    /// there is room for the next tokens, or [`TOKENS`] less one after a chunk of the prompt.
    fn block(&self, held: usize) -> Option<usize> {
        self.block_of(TOKENS, BLOCK, held)
    }

    fn block_of(&self, tokens: usize, block: usize, held: usize) -> Option<usize> {
        let after = if self.tokens < self.prompt { tokens - 1 } else { tokens - block };
        (held >= tokens).then_some(after)
    }

    fn keep(&self) -> usize {
        ((BUDGET * self.tokens as f64).round() as usize).max(1)
    }

    /// The queries of the newest tokens.
    fn fresh(&self) -> std::ops::Range<usize> {
        self.tokens - self.new..self.tokens
    }
}

/// The `k` of `tokens` with the largest `votes`, rounded to `frac` fractional bits, in the order of `tokens`. Of
/// equal votes the first tokens win.
fn best(tokens: &[usize], votes: &BTreeMap<usize, f64>, k: usize, frac: u32) -> Vec<usize> {
    let mut order = tokens.to_vec();
    order.sort_by(|a, b| nearest(votes[b], frac).total_cmp(&nearest(votes[a], frac)));
    order.truncate(k);
    tokens.iter().copied().filter(|t| order.contains(t)).collect()
}

/// Evicts until `keep` tokens are left. The latest tokens are protected: `protected` gives their number for a number
/// of kept tokens. Votes have `frac` fractional bits.
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

/// The tokens that one key/value head keeps after it attended, the attention that these received so far, and the
/// number of tokens seen when the head last evicted.
#[derive(Clone, Default)]
struct Head {
    kept: Vec<usize>,
    received: BTreeMap<usize, f64>,
    cut: usize,
}

impl Head {
    /// Keeps `keep` tokens in all: the first `sinks`, the latest `recent`, and of the others those with the best
    /// `score`.
    fn keep(&mut self, keep: usize, (sinks, recent): (usize, usize), frac: u32, score: impl Fn(usize) -> f64) {
        let latest = self.kept.split_off(self.kept.len() - recent);
        let rest = self.kept.split_off(sinks);
        let scores = rest.iter().map(|t| (*t, score(*t))).collect();
        self.kept.extend(best(&rest, &scores, keep - sinks - recent, frac));
        self.kept.extend(latest);
    }

    /// Leaves `keep` tokens: the first 3 and the latest.
    fn stream(&mut self, keep: usize) {
        if self.kept.len() > keep {
            self.kept.drain(3..3 + self.kept.len() - keep);
        }
    }
}

/// Evicts. It is called when the newest tokens have attended to the kept tokens.
type Rule<'a> = &'a dyn Fn(&Seen, usize, &mut Head);

/// The number of tokens left of a number of held tokens, if some are evicted.
type Left = fn(&Seen, usize) -> Option<usize>;

fn h2o(seen: &Seen, kv: usize, head: &mut Head, keep: Option<usize>) {
    for (k, p) in seen.received(group(kv), seen.fresh(), &head.kept) {
        *head.received.entry(k).or_default() += p;
    }
    if let Some(keep) = keep {
        evict(&mut head.kept, &head.received, seen.grid(seen.tokens), keep, |keep| (keep / 2).max(1));
    }
}

fn tova(seen: &Seen, head: &mut Head, keep: Option<usize>) {
    let votes = seen.received(0..HEADS.heads, seen.tokens - 1..seen.tokens, &head.kept);
    if let Some(keep) = keep {
        evict(&mut head.kept, &votes, grid(HEADS.heads), keep, |_| 1);
    }
}

/// `snapkv`: the queries since the last eviction vote, at most the latest `window` of them.
fn vote(seen: &Seen, kv: usize, head: &mut Head, keep: Option<usize>, window: usize, kernel: usize) {
    let Some(keep) = keep else { return };
    let window = window.min(keep.div_ceil(2));
    let voters = head.cut.max(seen.tokens - window)..seen.tokens;
    let frac = seen.grid(voters.len() * kernel);
    let received = seen.received(group(kv), voters, &head.kept);
    let old = head.kept[..head.kept.len() - window].to_vec();
    let around = |t: usize| {
        let i = old.iter().position(|k| *k == t).expect("an old token");
        (i.max(kernel / 2) - kernel / 2..(i + kernel / 2 + 1).min(old.len())).map(|near| received[&old[near]]).sum()
    };
    head.keep(keep, (0, window), frac, around);
    head.cut = seen.tokens;
}

/// Fractional bits to which squares of norms and learned scores are rounded.
const FRAC: u32 = 6;

fn knorm(seen: &Seen, kv: usize, head: &mut Head, left: Left) {
    let Some(keep) = left(seen, head.kept.len()) else { return };
    head.keep(keep, (0, 3), FRAC, |token| {
        let key = seen.script.key(seen.layer, token, kv);
        -dot(&key, &key)
    });
}

fn kvzap(seen: &Seen, kv: usize, head: &mut Head, left: Left) {
    if let Some(keep) = left(seen, head.kept.len()) {
        head.keep(keep, (0, 3), FRAC, |token| seen.script.scores[[seen.layer, token, kv]]);
    }
}

fn sirllm(seen: &Seen, _: usize, head: &mut Head, left: Left) {
    if let Some(keep) = left(seen, head.kept.len()) {
        head.keep(keep, (1, 3), 18, |token| f64::from(seen.script.surprisals[token]));
    }
}

/// For every step, layer and query head (the step is outermost), the sorted positions attended to.
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
    let streaming = |seen: &Seen, _, head: &mut Head| {
        // The next token takes a place before it attends.
        head.stream(((BUDGET * (seen.tokens + 1) as f64).round() as usize).max(1) - 1);
    };
    let streaming_blocks = |seen: &Seen, _, head: &mut Head| {
        if head.kept.len() > TOKENS {
            head.stream(if seen.tokens < seen.prompt { TOKENS } else { TOKENS + 1 - BLOCK });
        }
        if seen.tokens >= seen.prompt && head.kept.len() == TOKENS {
            head.stream(TOKENS - BLOCK);
        }
    };
    let voting = |window: usize, kernel: usize, left: Left| {
        move |seen: &Seen, kv, head: &mut Head| vote(seen, kv, head, left(seen, head.kept.len()), window, kernel)
    };
    // Layer 1 has half of the mean, and layer 0 has what layer 1 leaves.
    let squeezed = |seen: &Seen, kv, head: &mut Head| {
        let keep = seen.share().map(|mean| {
            let light = (0.5 * mean as f64).round() as usize;
            if seen.layer == 1 { light } else { 2 * mean - light }
        });
        vote(seen, kv, head, keep, 4, 1);
    };
    // Two layers of a pyramid with a mean of 12 tokens, of which the window takes 2. Above the window, layer 0 has 15
    // tokens, or what the prompt has, and layer 1 has the rest of 20.
    let pyramid = |seen: &Seen, kv, head: &mut Head| {
        let first = seen.prompt.saturating_sub(2).clamp(10, 15);
        let tokens = 2 + if seen.layer == 0 { first } else { 20 - first };
        let block = BLOCK.min((tokens - 1).div_ceil(2));
        vote(seen, kv, head, seen.block_of(tokens, block, head.kept.len()), 2, 3);
    };
    let rolling = |left: Left| {
        (
            move |seen: &Seen, kv, head: &mut Head| h2o(seen, kv, head, left(seen, head.kept.len())),
            move |seen: &Seen, _, head: &mut Head| tova(seen, head, left(seen, head.kept.len())),
        )
    };
    let scored = |rule: fn(&Seen, usize, &mut Head, Left), left: Left| {
        move |seen: &Seen, kv, head: &mut Head| rule(seen, kv, head, left)
    };
    let share: Left = |seen, _| seen.share();
    let block: Left = |seen, held| seen.block(held);
    let (h2o, tova) = rolling(|seen, _| Some(seen.keep()));
    let (h2o_blocks, tova_blocks) = rolling(block);
    for (text, prompts, rule) in [
        ("streaming:budget=0.25,sinks=3", &[61, 40][..], &streaming as Rule),
        ("h2o:budget=0.25", &[61, 30, 9], &h2o),
        ("tova:budget=0.25", &[61, 30, 9], &tova),
        ("snapkv:budget=0.25,window=4,kernel=3", &[61, 30, 9], &voting(4, 3, share)),
        ("squeeze:budget=0.25,window=4,kernel=1,layers=1,part=0.5", &[61, 30, 24], &squeezed),
        ("kvzap:budget=0.25,recent=3", &[61, 30, 24], &scored(kvzap, share)),
        ("sirllm:budget=0.25,sinks=1,recent=3", &[61, 30, 24], &scored(sirllm, share)),
        ("streaming:budget=12,block=4,sinks=3", BLOCKS, &streaming_blocks),
        ("streaming:budget=12,block=4,sinks=3,prefill=5", BLOCKS, &streaming_blocks),
        ("h2o:budget=12,block=4", BLOCKS, &h2o_blocks),
        ("tova:budget=12,block=4", BLOCKS, &tova_blocks),
        ("snapkv:budget=12,block=4,window=3,kernel=3", BLOCKS, &voting(3, 3, block)),
        // The window is longer than a block.
        ("snapkv:budget=12,block=4,window=6,kernel=3", BLOCKS, &voting(6, 3, block)),
        ("snapkv:budget=12,block=4,window=3,kernel=3,prefill=8", BLOCKS, &voting(3, 3, block)),
        ("pyramid:budget=12,block=4,window=2,kernel=3,beta=2", BLOCKS, &pyramid),
        ("pyramid:budget=12,block=4,window=2,kernel=3,beta=2,prefill=7", BLOCKS, &pyramid),
        ("knorm:budget=12,block=4,recent=3", BLOCKS, &scored(knorm, block)),
        ("knorm:budget=12,block=4,recent=3,prefill=5", BLOCKS, &scored(knorm, block)),
        ("kvzap:budget=12,block=4,recent=3", BLOCKS, &scored(kvzap, block)),
        ("kvzap:budget=12,block=4,recent=3,prefill=5", BLOCKS, &scored(kvzap, block)),
        ("sirllm:budget=12,block=4,sinks=1,recent=3", BLOCKS, &scored(sirllm, block)),
    ] {
        let spec: PolicySpec = text.parse().expect("a policy");
        for &prompt in prompts {
            // A full store is cut again and again.
            let steps = if prompts == BLOCKS { 30 } else { 12 };
            let script = Script::new(prompt, steps, 29);
            let (_, looked) = script.play(&mut Float::default(), &spec, |x| x.mapv(|x| x as f32));
            let want = naive(&script, spec.prefill(), rule);
            assert_eq!(looked.len(), want.len());
            for (i, (looked, want)) in looked.iter().zip(&want).enumerate() {
                assert_eq!(looked, want, "{text}, {prompt} tokens, output {i}");
            }
        }
    }
}

/// The test holds however the budget in tokens is divided among layers.
#[test]
fn a_budget_beyond_the_text_keeps_all_of_it() {
    let policies = PolicySpec::examples().filter(|spec| spec.takes("block") && !spec.takes("heads"));
    let mut names: Vec<&str> = policies.map(|spec| spec.name()).collect();
    names.extend(["pyramid:beta=2", "squeeze:part=0.1", "squeeze:layers=0"]);
    for name in names {
        let mark = if name.contains(':') { ',' } else { ':' };
        let spec: PolicySpec = format!("{name}{mark}budget=33").parse().expect("a policy");
        for prompt in [2, 20] {
            let script = Script::new(prompt, 32 - prompt, 3);
            let (_, looked) = script.play(&mut Float::default(), &spec, |x| x.mapv(|x| x as f32));
            for heads in &looked[looked.len() - LAYERS..] {
                assert!(heads.iter().all(|tokens| tokens.len() == 32), "{spec}, {prompt} tokens: {heads:?}");
            }
        }
    }
}

/// Prompts of the policies that evict in blocks.
const BLOCKS: &[usize] = &[31, 13, 12, 11, 6, 1];

#[test]
fn a_store_never_holds_more_than_its_budget_in_tokens() {
    // All policies that evict in blocks. If heads are divided, all of them stream here. `razor` is left out, because
    // its merged token takes a row.
    let blocks = PolicySpec::examples().filter(|spec| spec.takes("block") && spec.name() != "razor");
    for spec in blocks {
        let name = if spec.takes("heads") { "duo:heads=0,".into() } else { format!("{}:", spec.name()) };
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
                        // The surprisals of a prompt are known after it has been read. Only then is it cut.
                        if step > 0 || name != "sirllm:" {
                            layers[layer] = layers[layer].max(held);
                        }
                    },
                );
                // While a token attends, it is among the held tokens.
                let attended: usize = (0..LAYERS)
                    .map(|layer| {
                        looked.iter().skip(layer).step_by(LAYERS).flatten().map(Vec::len).max().expect("steps")
                    })
                    .sum();
                let held: usize = layers.iter().sum();
                let context = format!("{name} {budget} in blocks of {block} after {prompt}: {layers:?}");
                assert!(held <= LAYERS * budget && attended <= LAYERS * budget, "{context}, {attended}");
                // The budget is used up, too.
                assert!(attended + LAYERS >= LAYERS * budget, "{context}, {attended}");
            }
        }
    }
}
