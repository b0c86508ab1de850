//! Every policy and strategy on every engine: f32, fixed point and two parties attend to the same tokens, and a plan
//! equals both parties' ledgers to the byte.

mod support;

use support::{HEADS, LAYERS, Script, Shared, certain, dot};
use waggle_engine::{Float, Shape};
use waggle_mpcache::{KvCache, Layers, PolicySpec};
use waggle_net::{Entry, Phase};
use waggle_planner::{Plan, Planner};
use waggle_protocols::{Fixed, Needs, Options, Secure};
use waggle_testing::{largest_difference, to_fixed, to_real};

/// The largest allowed difference of an output between fixed point and f32.
const FIXED: f64 = 2e-2;

/// Plays a script on all engines and compares. Prompts of odd length run in two phases, where operations prepare what
/// they need on the way.
fn agree(text: &str, prompt: usize, steps: usize) {
    agree_after(text, prompt, steps, Options { preprocess: prompt % 2 == 1, ..Options::default() }, |_| {
        Needs::default()
    });
}

/// Plays a script on all engines and compares. The parties first prepare the part of the script's needs that `needs`
/// chooses. Returns the offline bytes of what was not prepared ahead.
fn agree_after(text: &str, prompt: usize, steps: usize, options: Options, needs: impl Fn(&Needs) -> Needs) -> u64 {
    agree_on(&Script::new(prompt, steps, 17), text, options, needs)
}

/// [`agree_after`] for a script.
fn agree_on(script: &Script, text: &str, options: Options, needs: impl Fn(&Needs) -> Needs) -> u64 {
    let spec: PolicySpec = text.parse().expect("a policy");
    let (float, looked) = script.play(&mut Float::default(), &spec, |x| x.mapv(|x| x as f32));
    let mut plan = Planner::new(options).engine();
    script.play(&mut plan, &spec, |x| Shape(x.shape().to_vec()));
    let needs = needs(&plan.abb().needs());
    let (fixed, looked_fixed) = script.play(&mut Fixed::evaluating(options.evaluation()), &spec, to_fixed);
    let context = format!("{text}, {} tokens", script.prompt());
    assert_eq!(looked, looked_fixed, "{context}: tokens that fixed point attends to");
    let prepare = |engine: &mut Secure, _| engine.prepare(&needs, &[], &mut |_| ()).expect("preparation");
    let Shared { ledger, .. } =
        Shared::play(&context, options, &fixed, prepare, |engine, share| script.play(engine, &spec, share).0);
    for (i, (float, fixed)) in float.iter().zip(&fixed).enumerate() {
        let difference = largest_difference(&to_real(fixed), &float.mapv(f64::from));
        assert!(difference < FIXED, "{context}, output {i}: fixed point errs by {difference}");
    }
    let mut plan = Planner::new(options).engine();
    plan.abb().prepare(&needs).expect("plan");
    script.play(&mut plan, &spec, |x| Shape(x.shape().to_vec()));
    let ahead: u64 = plan.abb().ledger().divided().iter().map(|kind| kind.traffic.bytes()).sum();
    let late = plan.abb().ledger().phase_total(Phase::Offline).bytes() - ahead;
    if !spec.random_traffic() {
        assert_eq!(plan.abb().ledger().untimed(), ledger, "{context}: planned ledger");
        return late;
    }
    let planned = plan.abb().ledger().untimed();
    assert_eq!(certain(&planned), certain(&ledger), "{context}: planned ledger");
    let bytes = |entries: &[Entry]| entries.iter().map(|e| e.traffic.bytes()).sum::<u64>() as f64;
    let ratio = bytes(&planned) / bytes(&ledger);
    assert!((0.8..1.25).contains(&ratio), "{context}: the plan's bytes are {ratio} of the run's");
    late
}

#[test]
fn what_was_prepared_is_all_that_is_needed() {
    let options = Options { preprocess: true, ..Options::default() };
    for text in [
        "full",
        "mpcache:budget=0.25,clusters=8/4",
        "mpcache:budget=0.25,clusters=8/4,similarity=box,select=per-kv,static=1",
        "mpcache:budget=0.3,clusters=4,similarity=centroid,select=per-layer,share=off",
        "mpcache:budget=0.25,clusters=8/4,gather=scores",
        "h2o:budget=0.25",
        "streaming:budget=16,block=4,prefill=16",
        "h2o:budget=16,block=3",
        "snapkv:budget=16,block=3,window=4,prefill=16",
        "pyramid:budget=16,block=3,window=4",
        "knorm:budget=16,block=3,recent=4",
        "kvzap:budget=16,block=3,recent=4",
        "squeeze:budget=16,block=3,window=4,layers=1",
        "keyformer:budget=16,block=3,recent=4,rise=3",
        "duo:heads=1.2,budget=16,block=3",
        "razor:heads=2.1,budget=16,block=3,prefill=16",
        "scissorhands:budget=16,block=3,window=6",
        "h2o:budget=0.25,guard=0.2",
        "alisa:budget=16,block=3,guard=0.2",
        "razor:heads=2.1,budget=16,block=3,prefill=16,guard=0.2",
        "pyramid:budget=16,block=3,window=4,prefill=16,guard=0.2",
        "knorm:budget=16,block=3,recent=4,prefill=16,guard=0.2",
        "mpcache:budget=0.25,clusters=8/4,guard=0.2",
    ] {
        // A cluster closes among the steps.
        assert_eq!(agree_after(text, 38, 6, options, Needs::clone), 0, "{text}");
    }
}

#[test]
fn algorithm_3_with_every_strategy() {
    for options in [
        "budget=0.25",
        "budget=0.25,gather=scores",
        "budget=0.25,similarity=cuboid-mean,share=off",
        "budget=0.25,similarity=centroid,gather=scores,select=per-kv",
        "budget=0.25,similarity=representatives,count=2",
        "budget=0.25,select=per-kv",
        "budget=0.25,select=per-layer",
        "budget=0.25,select=per-layer,gather=scores",
        "budget=0.3,clusters=4,static=1",
        "budget=0.25,dense=1,window=0.5",
        "budget=0.2,clusters=1,share=off",
        "budget=0.25,topk=sort",
        "budget=0.25,topk=sort,gather=scores,select=per-kv",
        "budget=0.25,topk=shuffle-reveal",
        "budget=0.25,topk=shuffle-reveal,gather=scores",
        "budget=0.25,topk=shuffle-reveal,gather=scores,select=per-layer",
        "budget=0.25,topk=shuffle-reveal,gather=scores,select=per-kv,similarity=box,static=1",
        "budget=0.25,topk=shuffle-reveal,similarity=representatives",
    ] {
        agree(&format!("mpcache:{options}"), if options.len() % 2 == 0 { 44 } else { 45 }, 3);
    }
    // At 44 tokens, the scores of two clusters differ by no more than the error of a product.
    agree("mpcache:budget=0.25,similarity=box", 48, 3);
}

#[test]
fn edges_of_algorithm_3() {
    // Only one of several clusters is wanted, and the prompt's length is no multiple of the cluster size.
    agree("mpcache:budget=0.01", 43, 2);
    agree("mpcache:budget=0.01,gather=scores", 38, 2);
    // The first cache is shorter than a cluster. The second closes its first and its second cluster while tokens come
    // in.
    agree("mpcache:budget=0.5,clusters=8/4,static=1", 3, 12);
    agree("mpcache:budget=0.3,clusters=4/2,static=1,gather=scores", 9, 12);
    // All clusters are wanted, so the whole cache is attended to.
    agree("mpcache:budget=1", 21, 2);
}

#[test]
fn baselines() {
    for policy in [
        "full",
        "streaming:budget=0.25",
        "random:budget=0.25",
        "h2o:budget=0.25",
        "h2o:budget=0.25,topk=shuffle-reveal",
        "snapkv:budget=0.25,window=4,topk=shuffle-reveal",
        "tova:budget=0.25",
        "snapkv:budget=0.25,window=4",
        "infllm:budget=0.4,clusters=4",
        "longcache:budget=0.25",
        "quest:budget=0.4,clusters=4",
        "arkvale:budget=0.4,clusters=4",
        "pyramid:budget=0.25,window=4",
        "knorm:budget=0.25,recent=4",
        "duo:heads=2,budget=0.25",
        "razor:heads=1,budget=0.25",
    ] {
        agree(policy, 34, 3);
    }
}

#[test]
fn blocks_and_chunks() {
    // Evictions at the end of the prompt and while text is generated, in one phase and in two.
    for (i, policy) in [
        "streaming:budget=12,block=4",
        "streaming:budget=12,block=4,prefill=8",
        "h2o:budget=12,block=4",
        "h2o:budget=0.5,block=3,topk=shuffle-reveal",
        "tova:budget=12,block=4",
        "tova:budget=12,block=4,topk=shuffle-reveal",
        "snapkv:budget=12,block=4,window=3",
        "snapkv:budget=12,block=4,window=6,topk=shuffle-reveal",
        "snapkv:budget=0.5,window=4,prefill=8",
        "snapkv:budget=12,block=4,window=3,prefill=8,topk=sort",
        "pyramid:budget=12,block=4,window=2,beta=2",
        "pyramid:budget=12,block=4,window=2,beta=2,prefill=7,topk=shuffle-reveal",
        "knorm:budget=12,block=4,recent=3",
        "knorm:budget=12,block=4,recent=3,topk=shuffle-reveal",
        "knorm:budget=0.3,recent=3,prefill=8",
        // One layer is divided. In the other layer all heads stream, or none.
        "duo:heads=1.0,budget=12,block=4",
        "duo:heads=3.2,budget=12,block=4,prefill=8",
        "razor:heads=2.0,budget=12,block=4",
        "razor:heads=1,budget=12,block=4,prefill=8,sinks=0",
    ]
    .iter()
    .enumerate()
    {
        agree(policy, 20 + i % 2, 9);
        agree(policy, 21 - i % 2, 9);
    }
}

/// Tokens have equal keys, and queries see them alike. Rounding errors make their scores differ, which must not
/// change the choice.
#[test]
fn equal_tokens_are_kept_by_their_position_on_every_engine() {
    for (i, policy) in [
        "h2o:budget=0.25",
        "h2o:budget=12,block=4,topk=shuffle-reveal",
        "tova:budget=0.25",
        "tova:budget=12,block=4,topk=sort",
        "snapkv:budget=0.25,window=4",
        "snapkv:budget=12,block=4,window=3,kernel=1,topk=shuffle-reveal",
        "pyramid:budget=0.25,window=4,topk=sort",
        "squeeze:budget=0.5,window=4",
        "mpcache-2pc:budget=0.3,window=4",
        "knorm:budget=0.25,recent=4",
        "knorm:budget=12,block=4,recent=3,topk=shuffle-reveal",
        "kvzap:budget=0.25,recent=4",
        "kvzap:budget=12,block=4,recent=3",
        "snapkv:budget=12,block=4,window=3,kernel=1,topk=shuffle-reveal,guard=0.2",
        "keydiff:budget=12,block=4,recent=3,guard=0.2",
        "scissorhands:budget=12,block=4,window=5,topk=sort",
    ]
    .iter()
    .enumerate()
    {
        let mut script = Script::new(33 + i % 2, 6, 17);
        script.scores.fill(-1.37);
        script.steps.iter_mut().flatten().for_each(|[q, k, _]| {
            q.fill(0.0);
            k.fill(0.37);
        });
        let options = Options { preprocess: i % 2 == 1, ..Options::default() };
        agree_on(&script, policy, options, |_| Needs::default());
    }
}

#[test]
fn the_oracle_looks_at_the_largest_scores() {
    let spec: PolicySpec = "oracle:budget=0.2".parse().expect("a policy");
    let script = Script::new(30, 4, 3);
    let (_, looked) = script.play(&mut Float::default(), &spec, |x| x.mapv(|x| x as f32));
    for (i, rows) in looked.iter().enumerate() {
        let (step, layer) = (1 + i / LAYERS, i % LAYERS);
        let newest = script.prompt() + step - 1;
        for (head, row) in rows.iter().enumerate() {
            let q = script.query(layer, newest, head);
            let scores: Vec<f64> =
                (0..newest).map(|t| dot(&q, &script.key(layer, t, head / HEADS.group()))).collect();
            let mut best: Vec<usize> = (0..newest).collect();
            best.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
            best.truncate(row.len() - 1);
            best.push(newest);
            best.sort_unstable();
            assert_eq!(row, &best, "step {step}, layer {layer}, head {head}");
        }
    }
    let mut cache = KvCache::<Plan>::new(&Layers::global(LAYERS, HEADS), &spec);
    let (q, row) = (Shape(vec![HEADS.heads, 1, HEADS.head_dim]), Shape(vec![1, HEADS.kv_heads * HEADS.head_dim]));
    let refused = cache.attend(&mut Planner::new(Options::default()).engine(), 0, &q, &row, &row);
    assert!(matches!(refused, Err(waggle_engine::Error::NotInTheClear { .. })));
}
