//! Tokens that are taken back leave nothing behind: later tokens attend as if the others had never come. The same
//! holds between two parties, where the plan equals the ledger and every opened value looks uniform.

mod support;

use ndarray::{ArrayD, Axis, concatenate};
use support::{HEADS, LAYERS, Script, Shared};
use waggle_engine::{Float, Select, Shape, Tensor};
use waggle_mpcache::{KvCache, Layers, PolicySpec};
use waggle_planner::Planner;
use waggle_protocols::audit::LIMIT;
use waggle_protocols::{Fixed, Needs, Options, Secure};
use waggle_testing::to_fixed;

const PROMPT: usize = 12;

/// The number of tokens of a pass, and how many of them are kept.
type Pass = (usize, usize);

const PASSES: [Pass; 6] = [(4, 1), (4, 4), (4, 2), (4, 3), (1, 1), (3, 2)];
/// Passes of the same sizes as the actual ones, but with other numbers of kept tokens.
const EXPECTED: [Pass; 6] = [(4, 2), (4, 2), (4, 3), (4, 2), (1, 1), (3, 3)];

/// Policies that can take tokens back.
fn policies() -> Vec<PolicySpec> {
    let can: Vec<PolicySpec> = PolicySpec::examples().filter(PolicySpec::can_roll_back).collect();
    // Of random traffic, a plan states only the mean.
    let certain =
        |spec: PolicySpec| if spec.random_traffic() { spec.with("topk", "rank").expect("a method") } else { spec };
    let can: Vec<PolicySpec> = can.into_iter().map(certain).collect();
    for name in ["full", "snapkv", "pyramid", "squeeze", "mpcache-2pc"] {
        assert!(can.iter().any(|spec| spec.name() == name), "{name}");
    }
    can
}

/// The tokens of a script, and other tokens that are taken back.
struct Drafted {
    truth: Script,
    wrong: Script,
}

impl Drafted {
    fn new() -> Self {
        let kept = PASSES.iter().map(|(_, kept)| kept).sum();
        let read = PASSES.iter().map(|(read, _)| read).sum();
        Drafted { truth: Script::new(PROMPT, kept, 3), wrong: Script::new(1, read, 4) }
    }

    /// The outputs of every kept token on every layer, as [`Script::play`] returns them for `truth`, and the
    /// positions that the last query of each pass attended to on the first layer.
    fn play<E: Select>(
        &self,
        engine: &mut E,
        spec: &PolicySpec,
        passes: &[Pass],
        mut tensor: impl FnMut(&ArrayD<f64>) -> E::Tensor,
    ) -> (Vec<E::Tensor>, Vec<usize>) {
        let mut cache = KvCache::<E>::new(&Layers::global(LAYERS, HEADS), spec);
        for (layer, [q, k, v]) in self.truth.steps[0].iter().enumerate() {
            let window = cache.observation_window(layer, PROMPT).max(1);
            let q = q.slice_axis(Axis(1), (PROMPT - window..PROMPT).into()).to_owned();
            let (q, k, v) = (tensor(&q), tensor(k), tensor(v));
            cache.attend(engine, layer, &q, &k, &v).expect("attention");
        }
        assert!(!cache.can_lose(1), "a prompt is not cut");
        let (mut out, mut attended) = (Vec::new(), Vec::new());
        let (mut right, mut wrong) = (1, 1);
        for &(read, kept) in passes {
            let steps: Vec<_> = (0..read)
                .map(|i| if i < kept { &self.truth.steps[right + i] } else { &self.wrong.steps[wrong + i - kept] })
                .collect();
            let mut rows = Vec::new();
            for layer in 0..LAYERS {
                let [q, k, v] = [(0, 1), (1, 0), (2, 0)].map(|(part, axis)| {
                    let parts: Vec<_> = steps.iter().map(|step| step[layer][part].view()).collect();
                    tensor(&concatenate(Axis(axis), &parts).expect("rows of one shape"))
                });
                rows.push(cache.attend(engine, layer, &q, &k, &v).expect("attention"));
                attended.extend(cache.attended(layer).filter(|_| layer == 0).map(|heads| heads[0].len()));
            }
            assert!(cache.can_lose(read - kept));
            cache.roll_back(read - kept);
            out.extend((0..kept).flat_map(|i| rows.iter().map(move |rows| rows.slice(0, i..i + 1))));
            right += kept;
            wrong += read - kept;
            assert_eq!(cache.tokens(), PROMPT + right - 1);
        }
        (out, attended)
    }
}

#[test]
fn later_tokens_attend_as_if_what_was_cut_had_never_come() {
    let drafted = Drafted::new();
    for spec in policies() {
        let (want, seen) = drafted.truth.play(&mut Float::default(), &spec, |x| x.mapv(|x| x as f32));
        let (got, attended) = drafted.play(&mut Float::default(), &spec, &PASSES, |x| x.mapv(|x| x as f32));
        assert_eq!(got.len(), want.len());
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            let off = (got - want).iter().fold(0.0f32, |worst, x| worst.max(x.abs()));
            assert!(off < 1e-5, "{spec}, output {i}: off by {off}");
        }
        // The last query of a pass sees the tokens that were kept before, and those of its own pass.
        let before = seen[0][0].len() - 1;
        let mut kept = before;
        let counts = PASSES.iter().map(|(read, keep)| {
            let sees = kept + read;
            kept += keep;
            sees
        });
        assert_eq!(attended, counts.collect::<Vec<_>>(), "{spec}");
    }
}

#[test]
#[should_panic(expected = "more than came after the prompt")]
fn a_prompt_is_never_cut() {
    let mut cache = KvCache::<Float>::new(&Layers::global(1, HEADS), &PolicySpec::default());
    let rows = ArrayD::zeros(vec![3, HEADS.kv_heads * HEADS.head_dim]);
    cache.append(&mut Float::default(), 0, &rows, &rows).expect("rows of the heads");
    cache.roll_back(1);
}

fn options() -> Options {
    Options { preprocess: true, ..Options::default() }
}

#[test]
fn two_parties_cut_as_fixed_point_does_and_open_nothing_but_masked_words() {
    let drafted = Drafted::new();
    let shape = |x: &ArrayD<f64>| Shape(x.shape().to_vec());
    for spec in policies() {
        let (fixed, _) =
            drafted
                .play(&mut Fixed::evaluating(options().evaluation()), &spec, &PASSES, |x: &ArrayD<f64>| to_fixed(x));
        for prepared in [true, false] {
            let mut needs = Needs::default();
            if prepared {
                let mut listing = Planner::listing(options()).engine();
                drafted.play(&mut listing, &spec, &EXPECTED, shape);
                needs = listing.abb().needs();
            }
            let context = spec.to_string();
            let prepare = |engine: &mut Secure, _| engine.prepare(&needs, &[], &mut |_| ()).expect("preparation");
            let Shared { ledger, audit, .. } = Shared::play(&context, options(), &fixed, prepare, |engine, share| {
                drafted.play(engine, &spec, &PASSES, share).0
            });
            let mut plan = Planner::new(options()).engine();
            plan.abb().prepare(&needs).expect("plan");
            drafted.play(&mut plan, &spec, &PASSES, shape);
            assert_eq!(plan.abb().ledger().untimed(), ledger, "{spec}: planned ledger");
            let (path, worst) = audit.worst();
            assert!(audit.words() > 1000 && worst < LIMIT, "{spec}: {path} deviates by {worst:.1}");
        }
    }
}
