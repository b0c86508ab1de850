//! `mpcache` in the clear against an independent reading of algorithm 3 in plain loops over f64.

mod support;

use support::{HEADS, LAYERS, Script, dot, grid, nearest};
use waggle_engine::Float;
use waggle_mpcache::PolicySpec;

/// Settings of the naive program.
#[derive(Clone, Copy)]
struct Case {
    spec: &'static str,
    coarse: usize,
    fine: usize,
    budget: f64,
    static_share: f64,
    window: f64,
    sharing: bool,
    score: fn(&[f64], &[Vec<f64>]) -> f64,
}

/// The largest and the smallest entry in channel c of the keys of a cluster.
fn ends(keys: &[Vec<f64>], c: usize) -> (f64, f64) {
    keys.iter().map(|k| k[c]).fold((f64::MIN, f64::MAX), |(high, low), x| (high.max(x), low.min(x)))
}

/// MPCache, eq. 6.
fn linear(q: &[f64], keys: &[Vec<f64>]) -> f64 {
    (0..q.len()).map(|c| q[c] * (0.6 * ends(keys, c).0 + 0.4 * ends(keys, c).1)).sum()
}

/// The bound of the box as Quest states it.
fn quest(q: &[f64], keys: &[Vec<f64>]) -> f64 {
    (0..q.len()).map(|c| (q[c] * ends(keys, c).0).max(q[c] * ends(keys, c).1)).sum()
}

/// The score of ArkVale's cuboid-mean, from the centre and the mean deviation.
fn cuboid_mean(q: &[f64], keys: &[Vec<f64>]) -> f64 {
    let channel = |c: usize| {
        let centre = (ends(keys, c).0 + ends(keys, c).1) / 2.0;
        let deviation = keys.iter().map(|k| (k[c] - centre).abs()).sum::<f64>() / keys.len() as f64;
        q[c] * centre + q[c].abs() * deviation
    };
    (0..q.len()).map(channel).sum()
}

fn centroid(q: &[f64], keys: &[Vec<f64>]) -> f64 {
    keys.iter().map(|k| dot(q, k)).sum::<f64>() / keys.len() as f64
}

/// Indices of the k largest.
fn top(scores: &[f64], k: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    order.truncate(k);
    order
}

fn rounded(share: f64, n: usize) -> usize {
    ((share * n as f64).round() as usize).max(1)
}

/// For every step, layer and query head (the step is outermost), the sorted positions attended to.
fn naive(script: &Script, case: Case) -> Vec<Vec<Vec<usize>>> {
    let (group, prompt) = (HEADS.group(), script.prompt());
    let mut kept = vec![vec![Vec::<usize>::new(); HEADS.kv_heads]; LAYERS];
    let mut out = Vec::new();
    for t in 0..script.steps.len() {
        let mut chosen_below: Vec<Vec<usize>> = vec![];
        for layer in 0..LAYERS {
            let seen = if t == 0 { 0..prompt } else { prompt + t - 1..prompt + t };
            kept[layer].iter_mut().for_each(|kept| kept.extend(seen.clone()));
            let query = |h: usize, position: usize| script.query(layer, position, h);
            let follows = case.sharing && layer % 2 == 1;
            if t == 0 {
                let keep = rounded(case.static_share.max(case.budget), prompt);
                if keep < prompt && follows {
                    kept[layer] = kept[layer - 1].clone();
                } else if keep < prompt {
                    for (h, kept) in kept[layer].iter_mut().enumerate() {
                        let mut votes = vec![0.0; prompt];
                        for i in prompt - rounded(case.window, prompt)..prompt {
                            for head in h * group..(h + 1) * group {
                                let e: Vec<f64> =
                                    (0..=i).map(|j| dot(&query(head, i), &script.key(layer, j, h)).exp()).collect();
                                let sum: f64 = e.iter().sum();
                                e.iter().enumerate().for_each(|(j, e)| votes[j] += e / sum);
                            }
                        }
                        let frac = grid(rounded(case.window, prompt) * group);
                        let votes: Vec<f64> = votes.iter().map(|vote| nearest(*vote, frac)).collect();
                        *kept = top(&votes, keep);
                        kept.sort_unstable();
                    }
                }
                continue;
            }
            let n = kept[layer][0].len();
            let sinks = case.fine.min(n - 1);
            let clusters = (n - sinks - 1) / case.coarse;
            let tail = sinks + clusters * case.coarse;
            let fan = case.coarse / case.fine;
            let room = rounded(case.budget, prompt + t).saturating_sub(sinks + n - tail) / case.fine;
            let wanted = room.max(1).min(clusters * fan);
            let mut chosen = vec![];
            for head in 0..HEADS.heads {
                let (q, h) = (query(head, seen.start), head / group);
                let members = |size: usize, c: usize| -> Vec<Vec<f64>> {
                    let own = &kept[layer][h][sinks + c * size..sinks + (c + 1) * size];
                    own.iter().map(|&i| script.key(layer, i, h)).collect()
                };
                let score = |size: usize, c: usize| (case.score)(&q, &members(size, c));
                let mut candidates: Vec<usize> = (0..clusters * fan).collect();
                if fan > 1 && 2 * wanted < clusters * fan && clusters.div_ceil(2) < clusters {
                    let scores: Vec<f64> = (0..clusters).map(|c| score(case.coarse, c)).collect();
                    let parents = top(&scores, clusters.div_ceil(2));
                    candidates.retain(|c| parents.contains(&(c / fan)));
                }
                let scores: Vec<f64> = candidates.iter().map(|&c| score(case.fine, c)).collect();
                let best: Vec<usize> = top(&scores, wanted).into_iter().map(|i| candidates[i]).collect();
                chosen.push(best);
            }
            if follows {
                chosen.clone_from(&chosen_below);
            }
            let looked = chosen.iter().enumerate().map(|(head, clusters)| {
                let members = clusters.iter().flat_map(|&c| sinks + c * case.fine..sinks + (c + 1) * case.fine);
                let index = members.chain(0..sinks).chain(tail..n);
                let mut positions: Vec<usize> = index.map(|i| kept[layer][head / group][i]).collect();
                positions.sort_unstable();
                positions
            });
            out.push(looked.collect());
            chosen_below = chosen;
        }
    }
    out
}

#[test]
fn the_same_tokens_as_an_independent_reading() {
    let base = Case {
        spec: "mpcache:budget=0.25",
        coarse: 8,
        fine: 4,
        budget: 0.25,
        static_share: 0.5,
        window: 0.2,
        sharing: true,
        score: linear,
    };
    for case in [
        base,
        Case { spec: "mpcache:budget=0.1,static=0.7", budget: 0.1, static_share: 0.7, ..base },
        Case { spec: "mpcache:budget=0.2,share=off,window=0.4", budget: 0.2, sharing: false, window: 0.4, ..base },
        Case { spec: "mpcache:budget=0.25,similarity=box,static=1", static_share: 1.0, score: quest, ..base },
        Case { spec: "mpcache:budget=0.25,similarity=cuboid-mean", score: cuboid_mean, ..base },
        Case { spec: "mpcache:budget=0.25,similarity=centroid", score: centroid, ..base },
        Case {
            spec: "mpcache:budget=0.4,clusters=6/2,static=0.9",
            coarse: 6,
            fine: 2,
            budget: 0.4,
            static_share: 0.9,
            ..base
        },
        Case { spec: "mpcache:budget=0.3,clusters=5", coarse: 5, fine: 5, budget: 0.3, ..base },
    ] {
        let spec: PolicySpec = case.spec.parse().expect("a policy");
        for prompt in [61, 64, 30] {
            let script = Script::new(prompt, 10, 29);
            let (_, looked) = script.play(&mut Float::default(), &spec, |x| x.mapv(|x| x as f32));
            let want = naive(&script, case);
            assert_eq!(looked.len(), want.len());
            for (i, (looked, want)) in looked.iter().zip(&want).enumerate() {
                assert_eq!(looked, want, "{}, {prompt} tokens, output {i}", case.spec);
            }
        }
    }
}
