//! Studies agree with a naive recomputation, are exact at full budget, and are alike between two parties.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use waggle_engine::{Float, FloatLoader};
use waggle_model::{Error, Input, Model, ModelFiles, bundled};
use waggle_mpcache::PolicySpec;
use waggle_protocols::{Fixed, FixedLoader, FixedWeight};
use waggle_report::table::Format;
use waggle_session::party::ModelServer;
use waggle_study::eval::{
    Candidate, Class, EvalError, InClear, Metrics, Runner, Scores, Sequence, StudyEngine, Subject, TwoParties,
    evaluate, evaluation, learned, study_attention,
};

use crate::support::naive::{self, Published, Query, Weights};
use crate::support::write_dir;

fn candidate(policy: &str, budget: f64) -> Candidate {
    Candidate::new(&policy.parse().unwrap(), budget).unwrap()
}

fn on_float(
    model: &crate::support::FloatModel,
    sequences: &[Sequence],
    candidates: &[Candidate],
) -> Result<(Metrics, Vec<Metrics>), EvalError> {
    evaluate(&InClear { model, engine: Float::default }, sequences, candidates, &|| ()).map(metrics)
}

/// The metrics of the full cache and of each policy.
fn metrics((full, scores): (Scores, Vec<Scores>)) -> (Metrics, Vec<Metrics>) {
    (full.metrics, scores.into_iter().map(|scores| scores.metrics).collect())
}

/// The metrics of the full cache and of each policy, in a study that opens the bundled model `name` itself.
fn study(name: &str, engine: StudyEngine, sequences: &[Sequence], candidates: &[Candidate]) -> Vec<Metrics> {
    let again = (0..engine.opens_again(&learned(candidates))).map(|_| bundled(name).unwrap()).collect();
    let subject = Subject { files: bundled(name).unwrap(), again, engine, prefix: None };
    let report = evaluation(subject, Default::default(), sequences, candidates, &|| ()).unwrap();
    report.rows.into_iter().map(|row| row.metrics).collect()
}

fn random_ids(vocabulary: usize, count: usize, seed: u64) -> Vec<u32> {
    let mut rng = StdRng::seed_from_u64(seed);
    (0..count).map(|_| rng.random_range(0..vocabulary as u32)).collect()
}

/// A study of one sequence by plain loops over f64, with the rule of the policy `streaming` written out.
#[derive(Default)]
struct Naive {
    mass: Vec<f64>,
    error: Vec<f64>,
    recall: Vec<f64>,
    attended: Vec<f64>,
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn softmax(scores: &[f64]) -> Vec<f64> {
    let total: f64 = scores.iter().map(|s| s.exp()).sum();
    scores.iter().map(|s| s.exp() / total).collect()
}

impl Naive {
    fn watch(&mut self, query: Query, heads: usize, group: usize, d: usize, visible: &[bool]) {
        let n = query.keys.len();
        assert_eq!(visible.len(), n);
        for h in 0..heads {
            let score =
                |t: usize| -> f64 { (0..d).map(|i| query.q[h * d + i] * query.keys[t][h / group * d + i]).sum() };
            let scores: Vec<f64> = (0..n).map(score).collect();
            let p = softmax(&scores);
            let seen: Vec<usize> = (0..n).filter(|t| visible[*t]).collect();
            self.mass.push(seen.iter().map(|t| p[*t]).sum());
            let (mut error, mut norm) = (0.0, 0.0);
            for i in 0..d {
                let exact: f64 = (0..n).map(|t| p[t] * query.values[t][h / group * d + i]).sum();
                error += (query.output[h * d + i] - exact).powi(2);
                norm += exact.powi(2);
            }
            self.error.push((error / norm).sqrt());
            let mut order: Vec<usize> = (0..n).collect();
            order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
            let found = order[..seen.len()].iter().filter(|t| visible[**t]).count();
            self.recall.push(found as f64 / seen.len() as f64);
            self.attended.push(seen.len() as f64 / n as f64);
        }
    }
}

#[test]
fn streaming_equals_a_naive_recomputation() {
    let config = json!({
        "model_type": "llama", "vocab_size": 23, "hidden_size": 24, "intermediate_size": 40,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    });
    let (layers, heads, group, d) = (3, 4, 2, 6);
    let spec = crate::support::spec(&config);
    let mut rng = StdRng::seed_from_u64(3);
    let tensor = |t: waggle_model::TensorSpec| {
        let spread = if t.shape.len() == 1 { 0.5 } else { 1.7 / (t.shape[1] as f32).sqrt() };
        let centre = if t.shape.len() == 1 { 1.0 } else { 0.0 };
        let data = (0..t.shape.iter().product()).map(|_| centre + rng.random_range(-1.0f32..1.0) * spread).collect();
        (t.name, Published { shape: t.shape, data })
    };
    let weights: Weights = spec.tensors().into_iter().map(tensor).collect();
    let dir = tempfile::tempdir().unwrap();
    write_dir(dir.path(), &config, &weights);
    let model = crate::support::load(ModelFiles::open(dir.path()).unwrap());

    let (n, prompt, budget, sinks) = (24, 9, 0.4, 2);
    let ids = random_ids(23, n, 4);
    let sequences = [Sequence::of_text(&ids, prompt).unwrap()];
    let (full, got) = on_float(&model, &sequences, &[candidate("streaming:sinks=2", budget)]).unwrap();
    let got = got[0];

    // Queries of the prompt see all earlier tokens. Later queries see the first and the latest tokens, together 40 %.
    let visible = |p: usize, t: usize| {
        let keep = (budget * (p + 1) as f64).round() as usize;
        p < prompt || t < sinks || t > p - (keep - sinks)
    };
    let mut naive = Naive::default();
    let pruned = naive::pruned_llama(&config, &weights, &ids, &visible, &mut |_, p, query| {
        if (prompt..n - 1).contains(&p) {
            let seen: Vec<bool> = (0..=p).map(|t| visible(p, t)).collect();
            naive.watch(query, heads, group, d, &seen);
        }
    });
    assert_eq!(naive.mass.len(), (n - 1 - prompt) * heads * layers);
    // The full cache: the last query of the prompt is the window, and judges eight tokens.
    let (window, size) = (8, 3);
    let (mut held, mut found, mut important) = (vec![vec![]; layers], vec![], vec![vec![]; layers * heads]);
    let mut to_important = vec![vec![]; layers];
    let whole = naive::pruned_llama(&config, &weights, &ids, &|_, _| true, &mut |layer, p, query| {
        for h in 0..heads {
            let score = |t: usize| (0..d).map(|i| query.q[h * d + i] * query.keys[t][h / group * d + i]).sum();
            let scores: Vec<f64> = (0..=p).map(score).collect();
            let attention = softmax(&scores);
            let important: &mut Vec<usize> = &mut important[layer * heads + h];
            if p == window {
                important.extend((0..window).filter(|t| attention[*t] * (p + 1) as f64 >= 1.0));
            }
            if p < prompt {
                continue;
            }
            to_important[layer].push(important.iter().map(|t| attention[*t]).sum());
            let mut masses: Vec<f64> = attention.chunks(size).map(|page| page.iter().sum()).collect();
            masses.sort_by(|a, b| b.total_cmp(a));
            held[layer].push((1..).find(|k| masses[..*k].iter().sum::<f64>() >= 0.99).unwrap() as f64);
            let best = |value: &dyn Fn(&[f64]) -> f64| {
                let mut pages: Vec<(usize, &[f64])> = scores.chunks_exact(size).enumerate().collect();
                pages.sort_by(|a, b| value(b.1).total_cmp(&value(a.1)));
                pages.into_iter().map(|(page, _)| page).collect::<Vec<_>>()
            };
            let exact = best(&|page| page.iter().copied().fold(f64::NEG_INFINITY, f64::max));
            let by_centroid = best(&|page| page.iter().sum());
            if exact.len() >= 4 {
                found.push(by_centroid[..2].iter().filter(|page| exact[..2].contains(page)).count() as f64 / 2.0);
            }
        }
    });
    let (mut nll, mut nll_full, mut kl, mut agreement, mut right) = (vec![], vec![], vec![], vec![], vec![]);
    let best = |row: &Vec<f64>| (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
    for p in prompt..n - 1 {
        let (a, b, next) = (softmax(&pruned[p]), softmax(&whole[p]), ids[p + 1] as usize);
        nll.push(-a[next].ln());
        nll_full.push(-b[next].ln());
        kl.push((0..a.len()).map(|i| b[i] * (b[i] / a[i]).ln()).sum());
        agreement.push(f64::from(best(&pruned[p]) == best(&whole[p])));
        right.push(f64::from(best(&pruned[p]) == next));
    }
    let close = |name: &str, got: f64, want: f64| {
        assert!((got - want).abs() <= 1e-4 * want.abs().max(1.0), "{name}: {got} against {want}");
    };
    close("perplexity of full", full.perplexity, mean(&nll_full).exp());
    close("perplexity", got.perplexity, mean(&nll).exp());
    close("ratio", got.perplexity_ratio, (mean(&nll) - mean(&nll_full)).exp());
    close("kl", got.kl, mean(&kl));
    close("agreement", got.agreement, mean(&agreement));
    close("accuracy", got.accuracy, mean(&right));
    close("mass", got.attention_mass.unwrap(), mean(&naive.mass));
    close("error", got.output_error.unwrap(), mean(&naive.error));
    close("recall", got.top_k_recall.unwrap(), mean(&naive.recall));
    close("attended", got.attended.unwrap(), mean(&naive.attended));
    assert_eq!(got.layer_overlap, Some(1.0), "the rule is the same on all layers");
    let study = study_attention(&model, &sequences, &[size], &[(1, 3)], &|| ()).unwrap();
    let looked: Value = serde_json::from_str(&study.document().render(Format::Json, None)).unwrap();
    close("recall of pages", looked["recall"][0]["k_2"].as_f64().unwrap(), mean(&found));
    for layer in 0..layers {
        close("pages", looked["pages"][layer]["hold_99"].as_f64().unwrap(), mean(&held[layer]));
        close("IA", looked["classes"][layer]["ia_attention"].as_f64().unwrap(), mean(&to_important[layer]));
    }
    let drawn = study.maps[0].classes.iter().enumerate().filter(|(_, class)| **class == Class::All).map(|(t, _)| t);
    assert_eq!((drawn.collect::<Vec<_>>(), study.maps[0].rows.len()), (important[heads + 3].clone(), n));
    // The policy really prunes, so its numbers differ from the full cache's.
    assert!(got.kl > 0.01 && got.attention_mass.unwrap() < 0.9 && got.top_k_recall.unwrap() < 0.9, "{got:?}");
}

#[test]
fn every_policy_at_full_budget_is_the_full_cache() {
    let sequences = Sequence::cut(&random_ids(75, 96, 5), 48, 30, 2).unwrap();
    let policies: Vec<PolicySpec> = PolicySpec::examples().filter(|policy| policy.name() != "full").collect();
    assert!(policies.len() >= 12, "{policies:?}");
    let candidates: Vec<Candidate> =
        policies.iter().map(|policy| Candidate::new(policy, 1.0).expect("a budget")).collect();
    let names: Vec<&str> = policies.iter().map(PolicySpec::name).collect();
    let metrics = study("shakespeare-llama", StudyEngine::Float, &sequences, &candidates);
    for (name, m) in ["full"].iter().chain(&names).zip(metrics) {
        assert!((m.perplexity_ratio - 1.0).abs() < 1e-6, "{name}: {m:?}");
        assert!(m.kl < 1e-9 && m.agreement == 1.0 && m.output_error.unwrap() < 1e-5, "{name}: {m:?}");
        assert_eq!(m.attention_mass, Some(1.0), "{name}");
        assert_eq!(m.top_k_recall, Some(1.0), "{name}");
        assert_eq!(m.layer_overlap, Some(1.0), "{name}");
        assert_eq!(m.attended, Some(1.0), "{name}");
    }
}

#[test]
fn the_oracle_finds_what_it_looks_for_and_more_budget_keeps_more() {
    let model = crate::support::load(bundled("shakespeare-llama").unwrap());
    let sequences = Sequence::cut(&random_ids(75, 64, 6), 64, 40, 1).unwrap();
    let candidates =
        [("oracle", 0.1), ("oracle", 0.25), ("oracle", 0.5), ("random", 0.25)].map(|(p, b)| candidate(p, b));
    let (_, metrics) = on_float(&model, &sequences, &candidates).unwrap();
    let mass: Vec<f64> = metrics.iter().map(|m| m.attention_mass.unwrap()).collect();
    assert!(mass[0] < mass[1] && mass[1] < mass[2] && mass[3] < mass[1], "{mass:?}");
    // The policy always takes the newest token, which need not be among the best.
    assert!(metrics[1].top_k_recall.unwrap() > 0.9 && metrics[3].top_k_recall.unwrap() < 0.6, "{metrics:?}");
    assert!((metrics[1].attended.unwrap() - 0.25).abs() < 0.02, "{metrics:?}");
}

#[test]
fn engines_agree_and_what_is_hidden_is_not_measured() {
    let name = "shakespeare-gpt2";
    let sequences = Sequence::cut(&random_ids(65, 14, 7), 14, 8, 1).unwrap();
    let candidates = [candidate("streaming", 0.5)];
    let (_, float) = on_float(&crate::support::load(bundled(name).unwrap()), &sequences, &candidates).unwrap();
    let files = bundled(name).unwrap();
    let model: Model<FixedWeight> =
        Model::load(&mut FixedLoader::default(), &files.spec, Some(&files.checkpoint)).unwrap();
    let fixed = InClear { model: &model, engine: Fixed::new };
    let (_, fixed) = metrics(evaluate(&fixed, &sequences, &candidates, &|| ()).unwrap());
    let server = ModelServer::builder().load(bundled(name).unwrap()).unwrap();
    let protocol = waggle_protocols::Options::default();
    let secure = TwoParties { server: &server, protocol, prefix: None };
    let passes = std::sync::atomic::AtomicUsize::new(0);
    let tick = || {
        passes.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    };
    let (_, secret) = metrics(evaluate(&secure, &sequences, &candidates, &tick).unwrap());
    assert_eq!(passes.into_inner(), 2 * sequences[0].passes());
    for other in [fixed[0], secret[0]] {
        assert!((other.perplexity / float[0].perplexity - 1.0).abs() < 0.02, "{other:?} against {float:?}");
        assert!((other.kl - float[0].kl).abs() < 0.02, "{other:?} against {float:?}");
    }
    assert!((fixed[0].attention_mass.unwrap() - float[0].attention_mass.unwrap()).abs() < 1e-3);
    assert_eq!((secret[0].attention_mass, secret[0].attended), (None, None));

    let oracle = evaluate(&secure, &sequences, &[candidate("oracle", 0.5)], &|| ());
    assert!(matches!(oracle, Err(EvalError::Blind("oracle"))), "{oracle:?}");
}

/// A model has one scoring head. So a study opens it once for each head that its policies need.
#[test]
fn each_learned_policy_of_a_study_reads_its_own_columns() {
    let name = "shakespeare-llama";
    let text = |context| Sequence::cut(&random_ids(60, context, 11), context, context - 4, 1).unwrap();
    let study = |candidates: &[Candidate], engine, context| study(name, engine, &text(context), candidates);
    let heads = ["kvzap", "qfilters", "keydiff"].map(|policy| candidate(policy, 0.25));
    let together = study(&heads, StudyEngine::Float, 64);
    for (head, metrics) in heads.iter().zip(&together[1..]) {
        assert_eq!(study(std::slice::from_ref(head), StudyEngine::Float, 64)[1], *metrics, "{}", head.label);
    }
    assert!(together[1] != together[2] && together[2] != together[3] && together[1] != together[3], "{together:?}");
    // The parties' rows are those of the same policies in the clear.
    let [fixed, secret] = [StudyEngine::Fixed, StudyEngine::Secure].map(|engine| study(&heads[..2], engine, 24));
    for (fixed, secret) in fixed.iter().zip(&secret) {
        assert!((fixed.perplexity / secret.perplexity - 1.0).abs() < 0.01, "{fixed:?} against {secret:?}");
    }
    // Columns of another policy are refused.
    let files = bundled(name).unwrap();
    let model = Model::load_for(&heads[0].policy, &mut FloatLoader, &files.spec, Some(&files.checkpoint)).unwrap();
    let refused = on_float(&model, &text(24), &heads[1..2]);
    let Err(EvalError::Model(Error::NotLearned { wanted: "qfilters", loaded: Some("kvzap") })) = refused else {
        panic!("{refused:?}");
    };
    let prefix = model.read_prefix(&mut Float::default(), Input::known(&[1; 20]), 64, &heads[1].policy);
    assert!(matches!(prefix, Err(Error::NotLearned { .. })));
}

#[test]
fn what_does_not_fit_the_model_is_refused_before_work() {
    let model = crate::support::load(bundled("shakespeare-gpt2").unwrap());
    let runner = InClear { model: &model, engine: Float::default };
    let run = |ids: &[u32]| {
        let sequences = [Sequence::of_text(ids, 2).unwrap()];
        evaluate(&runner as &dyn Runner, &sequences, &[], &|| panic!("work was done"))
    };
    let long = run(&[1; 300]);
    assert!(matches!(long, Err(EvalError::Context { context: 300, limit: 256 })), "{long:?}");
    let foreign = run(&[1, 2, 3, 65]);
    let Err(EvalError::Model(waggle_model::Error::Engine(waggle_engine::Error::Token { id: 65, .. }))) = foreign
    else {
        panic!("{foreign:?}");
    };
}
