//! Every family between two parties, on the tiny checkpoints of the tests of `model`.

use std::path::{Path, PathBuf};

use model::{DType, GenerateOptions, Input, ModelFiles, Next, NoHooks, Sampler, generate, synthesize};
use net::Phase;
use planner::Planner;
use protocols::{Fixed, Options};
use waggle_session::check_ranges;

use crate::parties::{Phases, load_fixed, two_parties};

/// Largest difference of a logit between two parties and fixed point, in units of 2^-18, as on the bundled models.
const MAX_SECURE_ULPS: f32 = 2048.0;

/// Their directories, with their names.
fn families() -> Vec<(String, PathBuf)> {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data/families");
    let entries = std::fs::read_dir(all).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name().into_string().unwrap(), entry.path())).collect()
}

/// Two parties, the plan of their session, and the same in fixed point: for every family, over a text that leaves the
/// windows.
#[test]
fn two_parties_and_the_plan_agree() {
    for (name, dir) in families() {
        let files = ModelFiles::open(&dir).unwrap();
        let ids: Vec<u32> = (0..12).map(|i| (i * i + 3) % files.spec.vocabulary() as u32).collect();
        let ids = &ids[..];
        let options = GenerateOptions { tokens: 3, ..crate::support::fine() };
        let (weights, frac_bits) = load_fixed(&files.spec, Some(&files.checkpoint), &[]);
        let input = Input { ids: Some(ids), count: ids.len() };
        let mut sampler = Sampler::greedy();
        let next = Next::Pick(&mut sampler);
        let fixed = generate(&mut Fixed::new(), &weights, input, &options, next, &mut NoHooks).unwrap();

        let [(client, client_ledger), (server, server_ledger)] =
            two_parties(&files.spec, &weights, &frac_bits, ids, &options);
        assert_eq!(client.tokens, fixed.tokens, "{name}");
        assert!(server.tokens.is_empty() && server.logits.is_none(), "{name}: the server learns nothing");
        let (secure, fixed) = (client.logits.unwrap(), fixed.logits.unwrap());
        let worst = secure.iter().zip(&fixed).map(|(s, f)| (s - f).abs()).fold(0.0, f32::max);
        let ulps = worst * (1u32 << protocols::FRAC) as f32;
        println!("{name}: two parties against fixed {ulps} ulps");
        assert!(ulps <= MAX_SECURE_ULPS, "{name}: {ulps} ulps");
        assert_eq!(client_ledger, server_ledger, "{name}");

        let (shapes, _) = load_fixed(&files.spec, None, &frac_bits);
        let mut plan = Planner::new(Options::default()).engine();
        let input = Input { ids: None, count: ids.len() };
        let mut sampler = Sampler::greedy();
        generate(&mut plan, &shapes, input, &options, Next::Pick(&mut sampler), &mut Phases).unwrap();
        assert_eq!(plan.abb().ledger().untimed(), client_ledger, "{name}: planned ledger");
        println!("{name}: a token takes {:?}", plan.abb().ledger().phase_total(Phase::Decode));
    }
}

/// Random weights of every family's shape, with fewer layers, stay in the ranges of the protocols.
#[test]
fn synthesised_models_are_in_range() {
    for (name, dir) in families() {
        let config = std::fs::read(dir.join("config.json")).unwrap();
        let out = tempfile::tempdir().unwrap();
        let spec = synthesize(&config, out.path(), Some(2), DType::F16, None, 7).unwrap();
        assert_eq!(spec.layers(), 2, "{name}");
        let files = ModelFiles::open(out.path()).unwrap();
        let (model, _) = load_fixed(&files.spec, Some(&files.checkpoint), &[]);
        let done = check_ranges(&model, None).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(done.tokens >= 16, "{name}: {done:?}");
    }
}
