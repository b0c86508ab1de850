//! A stock that was made for a longer prompt serves every shorter one, under every policy. The outputs are right, the
//! plan equals the ledger, and every opened value looks uniform, above all in its highest bits.

mod support;

use rand::SeedableRng;
use rand::rngs::StdRng;
use support::{Script, Shared, both, certain};
use waggle_engine::Shape;
use waggle_mpcache::PolicySpec;
use waggle_net::{Entry, Role};
use waggle_planner::Planner;
use waggle_protocols::audit::LIMIT;
use waggle_protocols::{Error, Fixed, Needs, Options, Secure, Stock};
use waggle_testing::{share_of, to_fixed};

/// Tokens of the prompt that the stock is made for, and steps after it.
const PROMPT: usize = 50;
const STEPS: usize = 2;

/// Lengths of the prompts that spend the stock.
const SHORTER: [usize; 4] = [2, 15, 37, PROMPT];

/// Two phases, so that operands grow under masks.
fn options() -> Options {
    Options { preprocess: true, ..Options::default() }
}

/// The ledger and the needs of a plan of `script`, which spends `stock` if there is one.
fn plan(script: &Script, spec: &PolicySpec, stock: Option<&Needs>) -> (Vec<Entry>, Needs) {
    let mut plan = Planner::new(options()).engine();
    if let Some(needs) = stock {
        plan.abb().set_stock(needs);
    }
    script.play(&mut plan, spec, |x| Shape(x.shape().to_vec()));
    (plan.abb().ledger().untimed(), plan.abb().needs())
}

/// A stock for the longest prompt, as the words of each party.
fn filled(needs: &Needs) -> [Vec<u64>; 2] {
    both(options(), |engine, role| {
        engine.prepare(needs, &[], &mut |_| ()).expect("preparation");
        let mut words = Vec::new();
        let sink = |piece: &[u64]| {
            words.extend_from_slice(piece);
            Ok::<_, Error>(())
        };
        std::mem::take(engine.abb().stock()).drain(needs, role, sink).expect("no file fails");
        words
    })
}

/// Fills the stock of `engine` with `words`.
fn refill(engine: &mut Secure, role: Role, needs: &Needs, words: &[Vec<u64>; 2]) {
    let mut rest = &words[role as usize][..];
    let source = |piece: &mut [u64]| {
        let (now, later) = rest.split_at(piece.len());
        piece.copy_from_slice(now);
        rest = later;
        Ok::<_, Error>(())
    };
    *engine.abb().stock() = Stock::refill(needs, role, source).expect("no file fails");
}

/// Spends the same stock of the policy `text` on every prompt, which only a test may do. Returns descriptions of
/// opened values that are not uniform.
fn serves_every_prompt(text: &str) -> Vec<String> {
    let mut leaks = Vec::new();
    let spec: PolicySpec = text.parse().expect("a policy");
    let needs = plan(&Script::new(PROMPT, STEPS, 3), &spec, None).1.stored();
    let words = filled(&needs);
    for prompt in SHORTER {
        let context = format!("{text}, {prompt} of {PROMPT} tokens");
        let script = Script::new(prompt, STEPS, 3);
        let (fixed, _) = script.play(&mut Fixed::evaluating(options().evaluation()), &spec, to_fixed);
        let refill = |engine: &mut Secure, role| refill(engine, role, &needs, &words);
        let Shared { ledger, audit, .. } =
            Shared::play(&context, options(), &fixed, refill, |engine, share| script.play(engine, &spec, share).0);
        let planned = plan(&script, &spec, Some(&needs)).0;
        if spec.random_traffic() {
            assert_eq!(certain(&planned), certain(&ledger), "{context}: planned ledger");
        } else {
            assert_eq!(planned, ledger, "{context}: planned ledger");
        }
        let (path, worst) = audit.worst();
        assert!(audit.words() > 100, "{context}: {} words", audit.words());
        if worst > LIMIT {
            leaks.push(format!("{context}: {path} deviates by {worst:.1}"));
        }
    }
    leaks
}

#[test]
fn every_policy_serves_shorter_prompts() {
    let between_two = PolicySpec::examples().filter(|spec| !spec.clear_only());
    let leaks: Vec<String> = between_two.flat_map(|spec| serves_every_prompt(&spec.to_string())).collect();
    assert!(leaks.is_empty(), "{leaks:#?}");
}

/// Weights may drive scores out of the range in which they are right. The opened comparisons still make a ranking, so
/// every selection has as many winners as it should.
#[test]
fn scores_out_of_range_never_compare_in_a_circle() {
    for text in [
        "mpcache-scores",
        "mpcache-scores:select=per-head",
        "mpcache:topk=shuffle-reveal",
        "h2o:topk=shuffle-reveal",
        "h2o:budget=16,block=2,topk=shuffle-reveal",
        "snapkv:budget=16,block=2,topk=shuffle-reveal",
        "knorm:budget=16,block=2,topk=shuffle-reveal",
        "kvzap:budget=16,block=2,topk=shuffle-reveal",
        "keyformer:budget=16,block=2,topk=shuffle-reveal",
    ] {
        let spec: PolicySpec = text.parse().expect("a policy");
        let mut script = Script::new(PROMPT, STEPS, 3);
        // Queries are so long that scores reach some thousands. Keys for `knorm` are so long that their squares
        // exceed the ring.
        let keys = if spec.name() == "knorm" { 1000.0 } else { 1.0 };
        script.steps.iter_mut().flatten().for_each(|[q, k, _]| {
            q.mapv_inplace(|x| 200.0 * x);
            k.mapv_inplace(|x| keys * x);
        });
        both(options(), |engine, role| {
            let mut masks = StdRng::seed_from_u64(5);
            script.play(engine, &spec, |x| share_of(&to_fixed(x), role, &mut masks));
        });
    }
}

#[test]
fn budgets_in_tokens_serve_shorter_prompts() {
    // Some of the prompts are shorter than the budget.
    let leaks: Vec<String> = [
        "streaming:budget=16,block=2,prefill=16",
        "h2o:budget=16,block=2",
        "snapkv:budget=16,block=2,window=4,prefill=16",
        "pyramid:budget=16,block=2,window=4,topk=shuffle-reveal",
        "knorm:budget=16,block=2,recent=4,prefill=16",
        "kvzap:budget=16,block=2,recent=4,prefill=16",
        "squeeze:budget=16,block=2,window=4,layers=0",
        "keyformer:budget=16,block=2,recent=4,prefill=16",
        "duo:heads=1.2,budget=16,block=2,prefill=16",
        "razor:heads=1.0,budget=16,block=2",
        "razor:heads=1.0,budget=16,block=2,guard=0.2",
        "alisa:budget=16,block=2,guard=0.2",
    ]
    .into_iter()
    .flat_map(serves_every_prompt)
    .collect();
    assert!(leaks.is_empty(), "{leaks:#?}");
}

#[test]
fn every_strategy_serves_shorter_prompts() {
    let mut leaks = Vec::new();
    for options in [
        "gather=scores",
        "topk=shuffle-reveal",
        "select=per-layer,static=1,share=off",
        "clusters=4/2,select=per-kv,similarity=box,dense=1",
    ] {
        leaks.extend(serves_every_prompt(&format!("mpcache:{options}")));
    }
    assert!(leaks.is_empty(), "{leaks:#?}");
}
