//! Heads of a layer that hold different tokens: `duo` and `razor` against an independent implementation in loops over
//! f64, and the cost of a divided layer.

mod support;

use std::collections::BTreeMap;

use support::{HEADS, LAYERS, Pass, Script, dot};
use waggle_engine::{Float, Shape};
use waggle_mpcache::{HeadPattern, PolicySpec};
use waggle_net::Phase;
use waggle_planner::Planner;
use waggle_protocols::Options;

/// Settings of both policies, as plain numbers.
struct Rule {
    razor: bool,
    pattern: HeadPattern,
    budget: usize,
    block: usize,
    sinks: usize,
    chunk: Option<usize>,
}

impl Rule {
    fn text(&self) -> String {
        let Rule { razor, pattern, budget, block, sinks, chunk } = self;
        let name = if *razor { "razor" } else { "duo" };
        let chunk = chunk.map_or_else(|| "off".into(), |n| n.to_string());
        format!("{name}:heads={pattern},budget={budget},block={block},sinks={sinks},prefill={chunk}")
    }
}

/// The tokens that a key/value head holds, and those that it has evicted.
#[derive(Clone, Default)]
struct Head {
    kept: Vec<usize>,
    gone: Vec<usize>,
}

impl Head {
    /// Leaves `keep` rows if there are more than `most`. The compensation token takes one of these rows.
    fn cut(&mut self, rule: &Rule, keep: usize) {
        let merged = usize::from(rule.razor && !self.gone.is_empty());
        if self.kept.len() + merged > rule.budget {
            let latest = keep - rule.sinks - usize::from(rule.razor);
            let end = self.kept.len() - latest;
            self.gone.extend(self.kept.drain(rule.sinks..end));
        }
    }
}

/// By step and then by layer, the positions that each query head attends to, and the outputs, (heads * head_dim).
fn naive(script: &Script, rule: &Rule) -> Vec<(Vec<Vec<usize>>, Vec<f64>)> {
    let (d, group, prompt) = (HEADS.head_dim, HEADS.group(), script.prompt());
    let mut heads = vec![vec![Head::default(); HEADS.kv_heads]; LAYERS];
    let (mut out, mut seen) = (Vec::new(), 0);
    for Pass { step, tokens } in script.passes(rule.chunk) {
        let new = seen..seen + tokens.len();
        seen = new.end;
        for (layer, heads) in heads.iter_mut().enumerate() {
            let (mut looked, mut output) = (Vec::new(), Vec::new());
            for (kv, head) in heads.iter_mut().enumerate() {
                head.kept.extend(new.clone());
                let streams = !rule.pattern.keeps(layer, kv);
                if streams && step > 0 {
                    head.cut(rule, rule.budget + 1 - rule.block);
                }
                for h in kv * group..(kv + 1) * group {
                    // Each row is a key, a value, and how often the softmax counts it.
                    let row = |t: usize| (script.key(layer, t, kv), script.value(layer, t, kv), 1.0);
                    let mut rows: Vec<(Vec<f64>, Vec<f64>, f64)> = head.kept.iter().map(|t| row(*t)).collect();
                    if rule.razor && !head.gone.is_empty() {
                        let n = head.gone.len() as f64;
                        let mean = |of: &dyn Fn(usize) -> Vec<f64>| -> Vec<f64> {
                            (0..d).map(|c| head.gone.iter().map(|t| of(*t)[c]).sum::<f64>() / n).collect()
                        };
                        rows.push((mean(&|t| script.key(layer, t, kv)), mean(&|t| script.value(layer, t, kv)), n));
                    }
                    let q = script.query(layer, seen - 1, h);
                    let weights: Vec<f64> = rows.iter().map(|(k, _, n)| n * dot(&q, k).exp()).collect();
                    let total: f64 = weights.iter().sum();
                    output.extend(
                        (0..d).map(|c| weights.iter().zip(&rows).map(|(w, (_, v, _))| w / total * v[c]).sum::<f64>()),
                    );
                    looked.push(head.kept.clone());
                }
                if streams && step == 0 {
                    head.cut(rule, if seen < prompt { rule.budget } else { rule.budget + 1 - rule.block });
                }
            }
            if step > 0 {
                out.push((looked, output));
            }
        }
    }
    out
}

#[test]
fn the_same_outputs_as_an_independent_reading() {
    for razor in [false, true] {
        // The patterns have divided layers, and layers whose heads all stream or all keep every token.
        for pattern in ["1.2", "2", "0.3", "3.1"] {
            for (sinks, chunk) in [(3, None), (0, None), (2, Some(5))] {
                let pattern = pattern.parse().expect("a pattern");
                let rule = Rule { razor, pattern, budget: 12, block: 4, sinks, chunk };
                let spec: PolicySpec = rule.text().parse().expect("a policy");
                for prompt in [31, 13, 12, 6, 1] {
                    let script = Script::new(prompt, 30, 3);
                    let (outputs, looked) = script.play(&mut Float::default(), &spec, |x| x.mapv(|x| x as f32));
                    let want = naive(&script, &rule);
                    assert_eq!((outputs.len(), looked.len()), (want.len(), want.len()));
                    for (i, ((output, looked), (tokens, exact))) in outputs.iter().zip(&looked).zip(&want).enumerate()
                    {
                        let context = format!("{spec}, {prompt} tokens, output {i}");
                        assert_eq!(looked, tokens, "{context}");
                        assert_eq!(output.len(), exact.len(), "{context}");
                        for (got, exact) in output.iter().zip(exact) {
                            assert!((f64::from(*got) - exact).abs() < 1e-4, "{context}: {got}, not {exact}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn heads_that_all_stay_are_full() {
    let run = |text: &str| {
        let spec: PolicySpec = text.parse().expect("a policy");
        let mut plan = Planner::new(Options { preprocess: true, ..Options::default() }).engine();
        let script = Script::new(20, 10, 3);
        script.play(&mut plan, &spec, |x| Shape(x.shape().to_vec()));
        let float = script.play(&mut Float::default(), &spec, |x| x.mapv(|x| x as f32));
        (plan.abb().ledger().untimed(), plan.abb().needs(), float)
    };
    assert!(run("duo:heads=3,budget=16") == run("full"));
}

/// The number of online messages by the first part of their path, and the online bytes in all.
fn traffic(text: &str, options: Options) -> (BTreeMap<String, u64>, u64) {
    let spec: PolicySpec = text.parse().expect("a policy");
    let mut plan = Planner::new(options).engine();
    // Encryption keys are sent when they are first needed, but are booked as set-up.
    plan.abb().ledger().set_phase(Phase::Decode);
    Script::new(64, 4, 3).play(&mut plan, &spec, |x| Shape(x.shape().to_vec()));
    let (mut messages, mut bytes) = (BTreeMap::new(), 0);
    for entry in plan.abb().ledger().untimed().iter().filter(|entry| entry.phase == Phase::Decode) {
        let name = entry.path.split('/').next().expect("a path").to_owned();
        *messages.entry(name).or_default() += entry.traffic.messages;
        bytes += entry.traffic.bytes();
    }
    (messages, bytes)
}

#[test]
fn parts_go_through_the_exchanges_together() {
    let full = traffic("full", Options { preprocess: true, ..Options::default() });
    // Streaming heads hold at most 32 tokens. The other heads hold 64 and more, like the full cache.
    let divided = traffic("duo:heads=1,budget=32", Options { preprocess: true, ..Options::default() });
    assert_eq!(divided.0, full.0);
    assert!(divided.1 < full.1, "{} bytes against {}", divided.1, full.1);
    // In one phase every product is a protocol of its own.
    let full = traffic("full", Options::default());
    let divided = traffic("duo:heads=1,budget=32", Options::default());
    assert_eq!(divided.0["scores"], 2 * full.0["scores"]);
    assert_eq!(divided.0["softmax"], full.0["softmax"]);
    assert!(divided.0["values"] > full.0["values"]);
}

#[test]
#[should_panic(expected = "heads of a divided store hold different tokens")]
fn a_divided_store_has_no_keys_of_all_heads() {
    struct Halves;
    impl waggle_mpcache::Policy<Float> for Halves {
        fn parts(&self, _: usize, _: waggle_mpcache::HeadShape) -> Vec<Vec<usize>> {
            vec![vec![1], vec![0]]
        }

        fn attend(
            &mut self,
            _: &mut Float,
            _: usize,
            _: &ndarray::ArrayD<f32>,
            store: &mut waggle_mpcache::Store<Float>,
        ) -> Result<ndarray::ArrayD<f32>, waggle_engine::Error> {
            // Fresh rows have the heads in their order in the layer.
            let [keys, values] = store.fresh_rows();
            assert_eq!((keys.iter().sum::<f32>(), values), (120.0, &keys + 1.0));
            assert_eq!(keys.iter().copied().collect::<Vec<_>>(), (0..16).map(|i| i as f32).collect::<Vec<_>>());
            Ok(store.keys().clone())
        }
    }
    let mut cache =
        waggle_mpcache::KvCache::<Float>::with_policy(&waggle_mpcache::Layers::global(1, HEADS), Box::new(Halves));
    let row = ndarray::ArrayD::from_shape_fn(vec![1, 16], |at| at[1] as f32);
    let q = ndarray::ArrayD::zeros(vec![HEADS.heads, 1, HEADS.head_dim]);
    let _ = cache.attend(&mut Float::default(), 0, &q, &row, &(&row + 1.0));
}
