//! The laws that hold the engines together, on whole generations: the same text in f32, in fixed point and between two
//! parties; a plan that equals both parties' ledgers to the byte.

use std::time::Duration;

use model::{
    Checkpoint, GenerateOptions, Generation, Hooks, Input, Model, ModelSpec, Next, NoHooks, Reveal, Sampler, Step,
    bundled, check, generate,
};
use net::{Channel, Entry, Phase, Role, memory_pair};
use protocols::{Engine, Fixed, FixedWeight, Float, Options, Plan, Secure};

/// Largest difference of a logit between two parties and fixed point, in units of 2^-18: truncations err by one unit
/// each, at random, and a dozen layers of them add up.
const MAX_SECURE_ULPS: f32 = 2048.0;

/// Largest difference of a logit between fixed point and f32 on the bundled models.
const MAX_FIXED_ERROR: f32 = 0.02;

struct Phases;

trait Booked: Engine {
    fn phase(&mut self, phase: Phase);
}

impl Booked for Secure {
    fn phase(&mut self, phase: Phase) {
        self.channel().ledger_mut().set_phase(phase);
    }
}

impl Booked for Plan {
    fn phase(&mut self, phase: Phase) {
        self.ledger().set_phase(phase);
    }
}

impl<E: Booked> Hooks<E> for Phases {
    fn begin(&mut self, engine: &mut E, step: Step) {
        engine.phase(if step == Step::Prefill { Phase::Prefill } else { Phase::Decode });
    }
}

fn load(spec: &ModelSpec, checkpoint: Option<&mut Checkpoint>, scales: Vec<u32>) -> (Model<FixedWeight>, Vec<u32>) {
    let mut engine = Fixed::new();
    engine.expect_scales(scales).expect("scales");
    let model = Model::load(&mut engine, spec, checkpoint).expect("model");
    (model, engine.scales().to_vec())
}

/// Both parties' outcomes of one generation.
fn two_parties(
    spec: &ModelSpec,
    server_model: &Model<FixedWeight>,
    scales: &[u32],
    ids: &[u32],
    options: &GenerateOptions,
) -> [(Generation, Vec<Entry>); 2] {
    let (client, server) = memory_pair(Duration::from_secs(300));
    let party = |channel: Channel, model: &Model<FixedWeight>, ids: Option<&[u32]>| {
        let mut engine = Secure::new(channel, Options::default()).expect("set-up");
        let mut sampler = Sampler::greedy();
        let input = Input { ids, count: options_count(ids, spec) };
        let out = generate(&mut engine, model, input, options, Next::Pick(&mut sampler), &mut Phases).expect("run");
        (out, engine.channel().ledger().untimed())
    };
    fn options_count(ids: Option<&[u32]>, _: &ModelSpec) -> usize {
        ids.map_or(PROMPT, <[u32]>::len)
    }
    assert_eq!(ids.len(), PROMPT);
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let (model, _) = load(spec, None, scales.to_vec());
            party(Channel::new(Role::Client, client), &model, Some(ids))
        });
        let server = party(Channel::new(Role::Server, server), server_model, None);
        [client.join().expect("client"), server]
    })
}

/// Length of the prompts below.
const PROMPT: usize = 9;

#[test]
fn one_text_in_all_engines_and_one_cost() {
    for (name, reveal) in [
        ("shakespeare-gpt2", Reveal::Logits),
        ("shakespeare-llama", Reveal::Logits),
        ("shakespeare-gpt2", Reveal::Token),
    ] {
        let mut files = bundled(name).expect("bundled");
        let ids: Vec<u32> = (0..PROMPT as u32).map(|i| (7 * i + 3) % files.spec.vocabulary() as u32).collect();
        let options = GenerateOptions { tokens: 3, reveal, ..GenerateOptions::default() };
        let (weights, scales) = load(&files.spec, Some(&mut files.checkpoint), Vec::new());
        let input = Input { ids: Some(&ids), count: ids.len() };
        let mut sampler = Sampler::greedy();
        let fixed = generate(
            &mut Fixed::new(),
            &weights,
            input,
            &GenerateOptions { reveal: Reveal::Logits, ..options.clone() },
            Next::Pick(&mut sampler),
            &mut NoHooks,
        )
        .expect("fixed");
        let float = Model::load(&mut Float::default(), &files.spec, Some(&mut files.checkpoint)).expect("float");
        let compared = check(&float, &ids, &options, &fixed).expect("check");
        println!("{name}: fixed against float {compared:?}");
        assert!(compared.max_abs_logit_error.is_some_and(|e| e < MAX_FIXED_ERROR), "{name}: {compared:?}");

        let [(client, client_ledger), (server, server_ledger)] =
            two_parties(&files.spec, &weights, &scales, &ids, &options);
        assert_eq!(client.tokens, fixed.tokens, "{name}");
        assert!(server.tokens.is_empty() && server.logits.is_none(), "{name}: the server learns nothing");
        match (&client.logits, &fixed.logits) {
            (Some(secure), Some(fixed)) => {
                let worst = secure.iter().zip(fixed).map(|(s, f)| (s - f).abs()).fold(0.0, f32::max);
                let ulps = worst * (1u32 << protocols::FRAC) as f32;
                println!("{name}: two parties against fixed {ulps} ulps");
                assert!(ulps <= MAX_SECURE_ULPS, "{name}: {ulps} ulps");
            }
            (secure, _) => assert!(secure.is_none() && reveal == Reveal::Token, "{name}"),
        }
        assert_eq!(client_ledger, server_ledger, "{name}");

        let (shapes, _) = load(&files.spec, None, scales);
        let mut plan = Plan::new(Options::default());
        let input = Input { ids: None, count: ids.len() };
        let mut sampler = Sampler::greedy();
        generate(&mut plan, &shapes, input, &options, Next::Pick(&mut sampler), &mut Phases).expect("plan");
        assert_eq!(plan.ledger().untimed(), client_ledger, "{name}: planned ledger");
        for phase in [Phase::Setup, Phase::Offline, Phase::Prefill, Phase::Decode] {
            println!("{name} {phase:?}: {:?}", plan.ledger().phase_total(phase));
        }
    }
}
