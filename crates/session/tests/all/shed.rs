//! Prompts whose rows end before the last layer: two parties write what fixed point writes, and the plan says what
//! they send. That fixed point is right, tests of `waggle-model` say.

use std::path::{Path, PathBuf};

use waggle_model::{
    Error, GenerateOptions, Input, Model, ModelFiles, Next, NoHooks, Padding, Reveal, Sampler, bundled, generate,
};
use waggle_mpcache::PolicySpec;
use waggle_protocols::Fixed;

use crate::parties::{agree, agree_on, load_fixed};
use crate::secure::MAX_SECURE_ULPS;

fn open(kind: &str, name: &str) -> ModelFiles {
    let dir: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../model/tests/data").join(kind).join(name);
    ModelFiles::open(&dir).unwrap()
}

fn words(files: &ModelFiles, count: u32) -> Vec<u32> {
    (0..count).map(|i| (i * i + 3) % files.spec.vocabulary() as u32).collect()
}

fn options(policy: &str, tokens: usize) -> GenerateOptions {
    GenerateOptions { tokens, policy: policy.parse().unwrap(), ..crate::support::fine() }
}

/// Families with learned and rotary positions, windows, sinks, caps, groups of queries and embeddings by layer.
#[test]
fn families_shed_rows() {
    for name in ["gpt_neox", "opt", "qwen2-window", "gemma2", "gemma3", "gemma4", "granite-sinks", "phi3", "olmo2"] {
        let files = open("families", name);
        let ids = words(&files, 24);
        for shed in ["1:0.5", "1:0.3/own"] {
            let options = options(&format!("full:shed={shed}"), 3);
            agree(&format!("{name}, {shed}"), &files, &ids, &options, MAX_SECURE_ULPS);
        }
    }
}

/// What a policy keeps of a layer with fewer rows, in a prompt that is read at once and in chunks.
#[test]
fn policies_prune_what_is_left() {
    let files = bundled("shakespeare-gpt2").unwrap();
    let ids = words(&files, 26);
    for policy in PolicySpec::examples().filter(|policy| !policy.clear_only() && policy.scoring_head().is_none()) {
        // Layers that take over choices of others hold as many tokens, so these are to choose each for itself.
        let policy = if policy.facts().joins_layers { policy.with("share", "off").unwrap() } else { policy };
        let options = options(&policy.with("shed", "1:0.5").unwrap().to_string(), 3);
        // Two parties may keep one of two tokens whose votes are about equal, and fixed point the other.
        agree(&policy.to_string(), &files, &ids, &options, 65536.0);
    }
    let files = bundled("stories260k").unwrap();
    let ids = words(&files, 26);
    for (policy, chunk) in [("full", 7), ("full", 2), ("full", 1), ("snapkv:budget=8,prefill=8,window=4", 5)] {
        let shed = options(&format!("{policy}{}shed=2:0.5+4:0.2", if policy == "full" { ':' } else { ',' }), 3);
        let options = GenerateOptions { prefill_chunk: std::num::NonZeroUsize::new(chunk), ..shed };
        agree(&format!("{policy}, chunks of {chunk}"), &files, &ids, &options, 65536.0);
    }
}

/// Texts side by side shed rows each by itself, and padding goes on only where nothing else is left.
#[test]
fn padding_ranks_last() {
    for name in ["opt", "qwen2", "granite-sinks"] {
        let files = open("families", name);
        let ids = words(&files, 4 * 8);
        for reveal in [Reveal::Logits, Reveal::Token] {
            let padding = Some(Padding { tokens: Some(vec![0, 2, 7, 4]) });
            let options = GenerateOptions { reveal, padding, ..options("full:shed=1:0.5", 3) };
            agree_on(name, &files, Input::known(&ids).of_texts(4), &options, MAX_SECURE_ULPS);
        }
        // Words that all go on give the text that they give alone, if the positions of the family are distances.
        let (model, _) = load_fixed(&files.spec, Some(&files.checkpoint), &[]);
        let run = |ids: &[u32], padding: usize, shed: &str| {
            let padding = (padding > 0).then(|| Padding::of(padding));
            let options = GenerateOptions { padding, ..options(&format!("full{shed}"), 3) };
            let next = Next::Pick(Box::leak(Box::new(Sampler::greedy())));
            generate(&mut Fixed::new(), &model, Input::known(ids), &options, next, &mut NoHooks).unwrap()
        };
        let padded: Vec<u32> = [&[0; 7], &ids[..5]].concat();
        for keep in ["0.42", "0.5", "0.75"] {
            let (alone, among) = (run(&ids[..5], 0, ""), run(&padded, 7, &format!(":shed=1:{keep}")));
            assert_eq!(alone.tokens, among.tokens, "{name}, {keep}");
            let (alone, among) = (alone.logits.unwrap(), among.logits.unwrap());
            let worst = alone.iter().zip(&among).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < 0.02, "{name}, {keep}: {worst}");
        }
    }
}

/// Encoders keep their first row, and texts side by side may have padding.
#[test]
fn encoders_shed_rows() {
    for name in ["bert", "roberta", "distilbert"] {
        let files = open("encoders", name);
        let ids: Vec<u32> = (0..4 * 12).map(|i| 3 + (i * i) % (files.spec.vocabulary() as u32 - 3)).collect();
        for shed in ["1:0.5", "1:0.1"] {
            let options = options(&format!("full:shed={shed}"), 1);
            agree(&format!("{name}, {shed}"), &files, &ids[..12], &options, MAX_SECURE_ULPS);
            let padding = Some(Padding { tokens: Some(vec![0, 3, 11, 6]) });
            let options = GenerateOptions { padding, ..options };
            let four = Input::known(&ids).of_texts(4);
            agree_on(&format!("four texts of {name}, {shed}"), &files, four, &options, MAX_SECURE_ULPS);
        }
    }
}

#[test]
fn what_needs_all_rows_sheds_none() {
    let refused = |model: &ModelFiles, policy: &str| model.spec.check_policy(&policy.parse().unwrap()).unwrap_err();
    assert!(matches!(refused(&open("encoders", "bert-masked"), "full:shed=1:0.5"), Error::Shed { .. }));
    assert!(matches!(refused(&open("families", "gemma4-shared"), "full:shed=1:0.5"), Error::SharedPolicy(_)));
    assert!(matches!(refused(&open("families", "opt"), "full:shed=99:0.5"), Error::Policy(_)));
    let files = open("families", "opt");
    let (model, _) = load_fixed(&files.spec, Some(&files.checkpoint), &[]);
    let options = GenerateOptions { all_positions: true, ..options("full:shed=1:0.5", 1) };
    let next = Next::Pick(Box::leak(Box::new(Sampler::greedy())));
    let ids = words(&files, 8);
    let run = |model: &Model<_>| generate(&mut Fixed::new(), model, Input::known(&ids), &options, next, &mut NoHooks);
    assert!(matches!(run(&model), Err(Error::Shed { .. })));
}
