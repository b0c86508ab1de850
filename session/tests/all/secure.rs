//! The laws that hold the engines together, on whole generations: the same text in f32, in fixed point and between
//! two parties; a plan that equals both parties' ledgers to the byte.

use engine::FloatLoader;
use model::{GenerateOptions, Input, Model, Next, NoHooks, Reveal, Sampler, bundled, check, generate};
use net::Phase;
use planner::Planner;
use protocols::{Fixed, Options};

use crate::parties::{Phases, load_fixed, two_parties};

/// Largest difference of a logit between two parties and fixed point, in units of 2^-18: truncations err by one unit
/// each, at random, and a dozen layers of them add up.
const MAX_SECURE_ULPS: f32 = 2048.0;

/// Largest difference of a logit between fixed point and f32 on the bundled models.
const MAX_FIXED_ERROR: f32 = 0.02;

/// Length of the prompts below.
const PROMPT: usize = 9;

#[test]
fn one_text_in_all_engines_and_one_cost() {
    for (name, reveal) in [
        ("shakespeare-gpt2", Reveal::Logits),
        ("shakespeare-llama", Reveal::Logits),
        ("shakespeare-gpt2", Reveal::Token),
    ] {
        let files = bundled(name).expect("bundled");
        let ids: Vec<u32> = (0..PROMPT as u32).map(|i| (7 * i + 3) % files.spec.vocabulary() as u32).collect();
        let options = GenerateOptions { tokens: 3, reveal, ..GenerateOptions::default() };
        let (weights, frac_bits) = load_fixed(&files.spec, Some(&files.checkpoint), &[]);
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
        let float = Model::load(&mut FloatLoader, &files.spec, Some(&files.checkpoint)).expect("float");
        let compared = check(&float, &ids, &options, &fixed).expect("check");
        println!("{name}: fixed against float {compared:?}");
        assert!(compared.max_abs_logit_error.is_some_and(|e| e < MAX_FIXED_ERROR), "{name}: {compared:?}");

        let [(client, client_ledger), (server, server_ledger)] =
            two_parties(&files.spec, &weights, &frac_bits, &ids, &options);
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

        let (shapes, _) = load_fixed(&files.spec, None, &frac_bits);
        let mut plan = Planner::new(Options::default()).engine();
        let input = Input { ids: None, count: ids.len() };
        let mut sampler = Sampler::greedy();
        generate(&mut plan, &shapes, input, &options, Next::Pick(&mut sampler), &mut Phases).expect("plan");
        assert_eq!(plan.abb().ledger().untimed(), client_ledger, "{name}: planned ledger");
        for phase in [Phase::Setup, Phase::Offline, Phase::Prefill, Phase::Decode] {
            println!("{name} {phase:?}: {:?}", plan.abb().ledger().phase_total(phase));
        }
    }
}
