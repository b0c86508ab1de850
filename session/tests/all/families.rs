//! Every family between two parties, on the tiny checkpoints of the tests of `model`.

use std::path::{Path, PathBuf};

use model::{DType, GenerateOptions, ModelFiles, synthesize};
use waggle_session::check_ranges;

use crate::parties::{agree, load_fixed};
use crate::secure::MAX_SECURE_ULPS;

/// Their directories, with their names.
fn families() -> Vec<(String, PathBuf)> {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data/families");
    let entries = std::fs::read_dir(all).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name().into_string().unwrap(), entry.path())).collect()
}

/// For every family, over a text that leaves the windows.
#[test]
fn two_parties_and_the_plan_agree() {
    for (name, dir) in families() {
        let files = ModelFiles::open(&dir).unwrap();
        let ids: Vec<u32> = (0..12).map(|i| (i * i + 3) % files.spec.vocabulary() as u32).collect();
        let options = GenerateOptions { tokens: 3, ..crate::support::fine() };
        agree(&name, &files, &ids, &options, MAX_SECURE_ULPS);
    }
}

/// Encoders answer once: two parties, the plan and fixed point agree, in one phase and in two.
#[test]
fn encoders_answer_between_two_parties() {
    for name in ["bert", "roberta", "distilbert"] {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data/encoders").join(name);
        let files = ModelFiles::open(&dir).unwrap();
        let ids: Vec<u32> = (0..12).map(|i| 3 + (i * i) % (files.spec.vocabulary() as u32 - 3)).collect();
        let options = GenerateOptions { tokens: 1, ..crate::support::fine() };
        agree(name, &files, &ids, &options, MAX_SECURE_ULPS);
        let (model, _) = load_fixed(&files.spec, Some(&files.checkpoint), &[]);
        check_ranges(&model, None).unwrap_or_else(|error| panic!("{name}: {error}"));
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
