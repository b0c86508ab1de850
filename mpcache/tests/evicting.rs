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
    /// The number of tokens that are spared at each end of the prompt.
    guard: usize,
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

/// Evicts until `keep` tokens are left. The `latest` latest tokens are protected. Votes have `frac` fractional bits.
fn evict(kept: &mut Vec<usize>, votes: &BTreeMap<usize, f64>, frac: u32, keep: usize, latest: usize) {
    if kept.len() > keep + 1 {
        let latest = kept.split_off(kept.len() - latest);
        // What is left stands in the order of its votes.
        kept.sort_by(|a, b| nearest(votes[b], frac).total_cmp(&nearest(votes[a], frac)));
        kept.truncate(keep - latest.len());
        kept.extend(latest);
    } else if kept.len() > keep {
        let old = kept.len() - latest.min(kept.len() - 1);
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
    /// What tokens received from each query that counts in windows.
    queries: Vec<(usize, BTreeMap<usize, f64>)>,
    /// Whether the end of the prompt has been spared.
    spared: bool,
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

    /// Leaves `keep` tokens: the first `sinks` and the latest.
    fn stream(&mut self, keep: usize, sinks: usize) {
        if self.kept.len() > keep {
            self.kept.drain(sinks..sinks + self.kept.len() - keep);
        }
    }

    /// Calls `evict` with the tokens that are not spared alone, with how many of these stay, and with how many of
    /// these stay because they are the latest: of `latest` tokens, those that are spared from now on do not count.
    fn but_spared(&mut self, seen: &Seen, keep: usize, latest: usize, evict: impl FnOnce(&mut Head, usize, usize)) {
        let ended = seen.tokens >= seen.prompt;
        let end = if ended { seen.prompt - seen.guard..seen.prompt } else { 0..0 };
        let stays = |token: &usize| *token < seen.guard || end.contains(token);
        let (spared, others): (Vec<usize>, Vec<usize>) = self.kept.iter().partition(|token| stays(token));
        let joined = (seen.tokens - latest..seen.tokens).filter(|token| end.contains(token) && !self.spared).count();
        let left = keep - spared.len();
        let latest = (latest - joined).min(left.div_ceil(2));
        self.spared |= ended;
        self.kept = others;
        evict(self, left, if ended { latest } else { latest.max(seen.guard) });
        self.kept.splice(0..0, spared);
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
    if let Some(keep) = keep.filter(|keep| head.kept.len() > *keep) {
        let frac = seen.grid(seen.tokens);
        head.but_spared(seen, keep, (keep / 2).max(1), |head, keep, latest| {
            evict(&mut head.kept, &head.received, frac, keep, latest);
        });
    }
}

/// `h2o` that forgets: of the queries in windows of `window` count those of the latest window and of the one before.
fn forgetful(seen: &Seen, kv: usize, head: &mut Head, keep: Option<usize>, window: usize) {
    // Windows begin with the last queries of the prompt.
    let first = seen.prompt.saturating_sub(window);
    let begun = first + (seen.tokens - 1 - first) / window * window;
    let counts = |query: &usize| *query >= begun.saturating_sub(window).max(first);
    for query in seen.fresh().filter(|query| *query >= first) {
        let received = seen.received(group(kv), query..query + 1, &head.kept);
        head.queries.push((query, received));
    }
    let Some(keep) = keep.filter(|keep| head.kept.len() > *keep) else { return };
    let mut sums: BTreeMap<usize, f64> = head.kept.iter().map(|token| (*token, 0.0)).collect();
    let mut queries = 0;
    for (_, received) in head.queries.iter().filter(|(query, _)| counts(query)) {
        queries += 1;
        received.iter().for_each(|(token, p)| *sums.entry(*token).or_default() += p);
    }
    // The bound of sums is that of whole windows.
    let whole = if begun > first { window + seen.tokens - begun } else { queries };
    head.but_spared(seen, keep, (keep / 2).max(1), |head, keep, latest| {
        evict(&mut head.kept, &sums, seen.grid(whole), keep, latest);
    });
}

fn tova(seen: &Seen, head: &mut Head, keep: Option<usize>) {
    let votes = seen.received(0..HEADS.heads, seen.tokens - 1..seen.tokens, &head.kept);
    if let Some(keep) = keep.filter(|keep| head.kept.len() > *keep) {
        head.but_spared(seen, keep, 1, |head, keep, latest| {
            evict(&mut head.kept, &votes, grid(HEADS.heads), keep, latest);
        });
    }
}

/// `snapkv`: the queries since the last eviction vote, at most the latest `window` of them.
fn vote(seen: &Seen, kv: usize, head: &mut Head, keep: Option<usize>, window: usize, kernel: usize) {
    let Some(keep) = keep else { return };
    let window = window.min(keep.div_ceil(2));
    let voters = head.cut.max(seen.tokens - window)..seen.tokens;
    let frac = seen.grid(voters.len() * kernel);
    let received = seen.received(group(kv), voters, &head.kept);
    head.but_spared(seen, keep, window, |head, keep, latest| {
        let old = head.kept[..head.kept.len() - latest].to_vec();
        let around = |t: usize| {
            let i = old.iter().position(|k| *k == t).expect("an old token");
            let near = i.max(kernel / 2) - kernel / 2..(i + kernel / 2 + 1).min(old.len());
            near.map(|near| received[&old[near]]).sum()
        };
        head.keep(keep, (0, latest), frac, around);
    });
    head.cut = seen.tokens;
}

/// Fractional bits to which squares of norms and learned scores are rounded.
const FRAC: u32 = 6;

fn knorm(seen: &Seen, kv: usize, head: &mut Head, left: Left) {
    let Some(keep) = left(seen, head.kept.len()) else { return };
    head.but_spared(seen, keep, 3.min(keep.div_ceil(2)), |head, keep, latest| {
        head.keep(keep, (0, latest), FRAC, |token| {
            let key = seen.script.key(seen.layer, token, kv);
            -dot(&key, &key)
        });
    });
}

fn kvzap(seen: &Seen, kv: usize, head: &mut Head, left: Left) {
    if let Some(keep) = left(seen, head.kept.len()) {
        head.but_spared(seen, keep, 3.min(keep.div_ceil(2)), |head, keep, latest| {
            head.keep(keep, (0, latest), FRAC, |token| seen.script.scores[[seen.layer, token, kv]]);
        });
    }
}

fn sirllm(seen: &Seen, _: usize, head: &mut Head, left: Left) {
    if let Some(keep) = left(seen, head.kept.len()) {
        head.keep(keep, (1, 3), 18, |token| f64::from(seen.script.surprisals[token]));
    }
}

/// For every step, layer and query head (the step is outermost), the sorted positions attended to. `guard` tokens are
/// spared at each end of the prompt.
fn naive(script: &Script, chunk: Option<usize>, guard: usize, rule: Rule) -> Vec<Vec<Vec<usize>>> {
    let prompt = script.prompt();
    let mut heads = vec![vec![Head::default(); HEADS.kv_heads]; LAYERS];
    let mut out = Vec::new();
    let mut tokens = 0;
    for Pass { step, tokens: new } in script.passes(chunk) {
        tokens += new.len();
        for (layer, heads) in heads.iter_mut().enumerate() {
            let seen = Seen { script, layer, tokens, new: new.len(), prompt, guard };
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
        head.stream(((BUDGET * (seen.tokens + 1) as f64).round() as usize).max(1) - 1, 3);
    };
    let streaming_blocks = |seen: &Seen, _, head: &mut Head| {
        if head.kept.len() > TOKENS {
            head.stream(if seen.tokens < seen.prompt { TOKENS } else { TOKENS + 1 - BLOCK }, 3);
        }
        if seen.tokens >= seen.prompt && head.kept.len() == TOKENS {
            head.stream(TOKENS - BLOCK, 3);
        }
    };
    // The first spared token is a sink.
    let streaming_spared = |seen: &Seen, _, head: &mut Head| {
        let stream = |head: &mut Head, keep: usize| {
            head.but_spared(seen, keep, 1, |head, keep, _| head.stream(keep, 3 - seen.guard));
        };
        if head.kept.len() > TOKENS {
            stream(head, if seen.tokens < seen.prompt { TOKENS } else { TOKENS + 1 - BLOCK });
        }
        if seen.tokens >= seen.prompt && head.kept.len() == TOKENS {
            stream(head, TOKENS - BLOCK);
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
    let forgetful = |window: usize, blocks: bool| {
        move |seen: &Seen, kv, head: &mut Head| {
            let keep = if blocks { seen.block(head.kept.len()) } else { Some(seen.keep()) };
            forgetful(seen, kv, head, keep.filter(|_| seen.tokens >= seen.prompt), window);
        }
    };
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
        ("scissorhands:budget=0.25,window=5", &[61, 30, 9], &forgetful(5, false)),
        ("scissorhands:budget=12,block=4,window=7", BLOCKS, &forgetful(7, true)),
        ("alisa:budget=12,block=4", BLOCKS, &forgetful(6, true)),
        // A quarter of what is left is spared at each end.
        ("streaming:budget=12,block=4,sinks=3,guard=0.25", BLOCKS, &streaming_spared),
        ("streaming:budget=12,block=4,sinks=3,prefill=5,guard=0.25", BLOCKS, &streaming_spared),
        ("h2o:budget=0.25,guard=0.25", &[61, 30, 9], &h2o),
        ("h2o:budget=12,block=4,guard=0.25", BLOCKS, &h2o_blocks),
        ("alisa:budget=12,block=4,guard=0.25", BLOCKS, &forgetful(6, true)),
        ("tova:budget=0.25,guard=0.25", &[61, 30, 9], &tova),
        ("tova:budget=12,block=4,guard=0.25", BLOCKS, &tova_blocks),
        ("snapkv:budget=0.25,window=4,kernel=3,guard=0.25", &[61, 30, 9], &voting(4, 3, share)),
        ("snapkv:budget=12,block=4,window=6,kernel=3,guard=0.25", BLOCKS, &voting(6, 3, block)),
        ("snapkv:budget=12,block=4,window=3,kernel=3,prefill=8,guard=0.25", BLOCKS, &voting(3, 3, block)),
        ("knorm:budget=12,block=4,recent=3,guard=0.25", BLOCKS, &scored(knorm, block)),
        ("knorm:budget=12,block=4,recent=3,prefill=5,guard=0.25", BLOCKS, &scored(knorm, block)),
        ("qfilters:budget=0.25,recent=3,guard=0.25", &[61, 30, 24], &scored(kvzap, share)),
        ("keydiff:budget=12,block=4,recent=3,prefill=5,guard=0.25", BLOCKS, &scored(kvzap, block)),
    ] {
        let spec: PolicySpec = text.parse().expect("a policy");
        for &prompt in prompts {
            // As many tokens as any eviction leaves.
            let least = if prompts == BLOCKS { TOKENS - BLOCK } else { (BUDGET * prompt as f64).round() as usize };
            let share = spec.option("guard").map_or(0.0, |share| share.parse::<f64>().expect("a share"));
            let guard = ((share * least as f64).ceil() as usize).min(least.saturating_sub(1) / 2).min(prompt / 2);
            // A full store is cut again and again.
            let steps = if prompts == BLOCKS { 30 } else { 12 };
            let script = Script::new(prompt, steps, 29);
            let (_, looked) = script.play(&mut Float::default(), &spec, |x| x.mapv(|x| x as f32));
            let want = naive(&script, spec.prefill(), guard, rule);
            assert_eq!(looked.len(), want.len());
            for (i, (looked, want)) in looked.iter().zip(&want).enumerate() {
                assert_eq!(looked, want, "{text}, {prompt} tokens, output {i}");
            }
        }
    }
}

/// However a policy chooses, both ends of the prompt are left.
#[test]
fn a_guard_spares_both_ends_of_the_prompt() {
    for spec in PolicySpec::examples().filter(|spec| spec.takes("guard")) {
        let heads = if spec.takes("heads") { "heads=0," } else { "" };
        // Policies that choose for every query look at all that is left in the first step alone.
        let (budgets, steps): (&[&str], _) = match (spec.takes("static"), spec.takes("block")) {
            (true, _) => (&["budget=0.5,static=0.5"], 0..1),
            (_, true) => (&["budget=0.3", "budget=16,block=4"], 1..30),
            (_, false) => (&["budget=0.3,recovery=0.3"], 1..30),
        };
        for budget in budgets {
            let spec: PolicySpec = format!("{}:{heads}{budget},guard=0.2", spec.name()).parse().expect("a policy");
            let prompt = 60;
            let (_, looked) = Script::new(prompt, 30, 5).play(&mut Float::default(), &spec, |x| x.mapv(|x| x as f32));
            for tokens in looked[steps.start * LAYERS..steps.end * LAYERS].iter().flatten() {
                // A layer with a small part of the budget spares a token at each end, and the others spare more.
                assert!([0, prompt - 1].iter().all(|token| tokens.contains(token)), "{spec}: {tokens:?}");
            }
            let first = &looked[steps.start * LAYERS];
            assert!(first.iter().any(|tokens| tokens.len() <= prompt / 2 + 2), "{spec} evicts: {first:?}");
        }
    }
    for text in ["h2o:guard=0.5", "h2o:guard=-0.1", "h2o:guard=NaN", "mpcache:guard=0.1,static=1", "full:guard=0.1"] {
        assert!(text.parse::<PolicySpec>().is_err(), "{text}");
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
