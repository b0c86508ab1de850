//! Learned scores of tokens: files that do not fit are refused by name. With files that fit, two parties write what
//! fixed point writes in the clear, at the cost that a plan says.

use std::path::Path;

use waggle_engine::{Float, FloatLoader};
use waggle_model::{
    CheckpointError, DType, GenerateOptions, Input, Model, ModelFiles, Next, NoHooks, TensorSpec, generate,
    write_safetensors,
};
use waggle_mpcache::PolicySpec;
use waggle_net::{Channel, Role, memory_pair};
use waggle_protocols::Fixed;
use waggle_session::Error;
use waggle_session::party::{ModelServer, Peer, Terms, nobody};

use crate::parties::{agree, load_fixed_for};

const LLAMA: &str = r#"{"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 12, "intermediate_size": 20,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "vocab_size": 41, "max_position_embeddings": 64}"#;

const GPT2: &str =
    r#"{"model_type": "gpt2", "n_layer": 2, "n_embd": 12, "n_head": 3, "vocab_size": 41, "n_positions": 64}"#;

/// A family without a norm before attention.
const OLMO2: &str = r#"{"model_type": "olmo2", "num_hidden_layers": 2, "hidden_size": 12, "intermediate_size": 20,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "vocab_size": 41, "max_position_embeddings": 64}"#;

/// A family whose first matrix serves both attention and the MLP.
const PHI: &str = r#"{"model_type": "phi", "num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 20,
    "num_attention_heads": 4, "head_dim": 4, "vocab_size": 41, "max_position_embeddings": 64}"#;

/// Largest difference of a logit between two parties and fixed point, in units of 2^-18: 0.02.
const MAX_SECURE_ULPS: f32 = 5243.0;

fn kvzap(options: &str) -> PolicySpec {
    format!("kvzap:{options}").parse().unwrap()
}

/// Ids without repetition: equal tokens have equal scores in the first layer of a LLaMA, and rounding would choose
/// between them.
fn ids(count: u32) -> Vec<u32> {
    (0..count).map(|i| i * 7 % 41).collect()
}

/// A model of this configuration with fitted columns.
fn fitted(dir: &Path, config: &str) -> ModelFiles {
    crate::support::tiny::write_model(dir, config);
    let files = ModelFiles::open(dir).unwrap();
    assert!(!files.checkpoint.has_learned("kvzap"));
    crate::support::tiny::write_columns(dir);
    let files = ModelFiles::open(dir).unwrap();
    assert!(files.checkpoint.has_learned("kvzap"));
    files
}

#[test]
fn the_matrix_is_wider_for_the_policy_alone_and_all_else_is_as_it_was() {
    for config in [LLAMA, GPT2] {
        let dir = tempfile::tempdir().unwrap();
        let files = fitted(dir.path(), config);
        let load = |policy: &PolicySpec| load_fixed_for(policy, &files.spec, Some(&files.checkpoint), &[]);
        let (plain, bits) = load(&PolicySpec::default());
        let (wide, wide_bits) = load(&kvzap("budget=0.5"));
        assert!(plain.scoring_head().is_none() && wide.scoring_head() == Some("kvzap"));
        assert_eq!(bits, wide_bits, "the fit keeps the fractional bits");
        let widths = |model: &Model<waggle_protocols::FixedWeight>| -> Vec<usize> {
            model.weights().iter().map(|weight| weight.spec.outputs).collect()
        };
        let (kv_heads, mut more) = (files.spec.heads()[0].kv_heads, 0);
        for (i, (plain, wide)) in widths(&plain).iter().zip(widths(&wide)).enumerate() {
            // The weights are one or two tables, then four matrices for each layer, of which the first gives query,
            // key and value.
            let tables = if config == LLAMA { 1 } else { 2 };
            let qkv = i >= tables && (i - tables) % 4 == 0 && i + 1 < bits.len();
            assert_eq!(wide - plain, if qkv { kv_heads } else { 0 }, "weight {i}");
            more += usize::from(qkv);
        }
        assert_eq!(more, files.spec.layers());
        // The text under another policy does not change.
        let ids = ids(20);
        let options = GenerateOptions { tokens: 5, ..crate::support::fine() };
        let text = |model: &Model<waggle_protocols::FixedWeight>| {
            let input = Input::known(&ids);
            generate(&mut Fixed::new(), model, input, &options, Next::Forced(&[]), &mut NoHooks).unwrap()
        };
        assert_eq!(text(&plain), text(&wide));
    }
}

#[test]
fn two_parties_evict_as_fixed_point_does_and_a_plan_knows_the_cost() {
    for (config, policy) in [
        (GPT2, "budget=0.4,recent=3"),
        (GPT2, "budget=12,block=3,recent=3,prefill=7"),
        (LLAMA, "budget=12,block=3,recent=3,topk=sort"),
        (GPT2, "budget=12,block=3,recent=3,topk=shuffle-reveal"),
        (OLMO2, "budget=12,block=3,recent=3"),
        (PHI, "budget=12,block=3,recent=3"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let files = fitted(dir.path(), config);
        let policy = kvzap(policy);
        let ids = ids(22);
        let options = GenerateOptions { tokens: 7, policy, ..crate::support::fine() };
        let context = options.policy.to_string();
        let pruned = agree(&context, &files, &ids, &options, MAX_SECURE_ULPS).fixed;
        let (weights, _) = load_fixed_for(&options.policy, &files.spec, Some(&files.checkpoint), &[]);
        let input = Input::known(&ids);
        let full = GenerateOptions { policy: PolicySpec::default(), ..options };
        let whole = generate(&mut Fixed::new(), &weights, input, &full, Next::Forced(&[]), &mut NoHooks).unwrap();
        assert_ne!(pruned.logits, whole.logits, "{context}: nothing was evicted");
    }
}

/// Writes a file of columns whose tensors have these shapes, filled with `value`.
fn write(path: &Path, tensors: &[(&str, &[usize])], value: f32) {
    let layout: Vec<TensorSpec> = tensors.iter().map(|(name, shape)| TensorSpec::new(*name, *shape)).collect();
    write_safetensors(path, &layout, DType::F32, |tensor, values| {
        values.resize(tensor.shape.iter().product(), value);
        Ok(())
    })
    .unwrap();
}

#[test]
fn files_that_do_not_fit_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    crate::support::tiny::write_model(dir.path(), LLAMA);
    let file = dir.path().join("kvzap.safetensors");
    let load = || {
        let files = ModelFiles::open(dir.path()).unwrap();
        let loaded = Model::load_for(&kvzap("budget=0.5"), &mut FloatLoader, &files.spec, Some(&files.checkpoint));
        // Other policies need no file.
        Model::load(&mut FloatLoader, &files.spec, Some(&files.checkpoint)).unwrap();
        match loaded.err().unwrap() {
            waggle_model::Error::Checkpoint(error) => error,
            other => panic!("{other}"),
        }
    };
    let error = load();
    assert!(matches!(error, CheckpointError::NoLearned { .. }), "{error}");
    assert!(error.to_string().contains("kvzap.safetensors"));
    std::fs::write(&file, b"nonsense").unwrap();
    assert!(matches!(load(), CheckpointError::Malformed { .. }));

    let (first, second, hash): (_, _, (&str, &[usize])) =
        (("layers.0.weight", &[2usize, 12][..]), ("layers.1.weight", &[2usize, 12][..]), ("checkpoint", &[32]));
    write(&file, &[first, hash], 0.5);
    assert!(matches!(load(), CheckpointError::Missing { tensor, .. } if tensor == "layers.1.weight"));
    write(&file, &[first, ("layers.1.weight", &[3, 12]), hash], 0.5);
    assert!(matches!(load(), CheckpointError::Shape { tensor, .. } if tensor == "layers.1.weight"));
    write(&file, &[first, second, ("layers.2.weight", &[2, 12]), hash], 0.5);
    assert!(matches!(load(), CheckpointError::Unread { tensors } if tensors == ["layers.2.weight"]));
    write(&file, &[first, second, hash], 0.5);
    assert!(matches!(load(), CheckpointError::OtherLearned { .. }));

    // The right file of another checkpoint of the same shape.
    let other = tempfile::tempdir().unwrap();
    fitted(other.path(), LLAMA);
    std::fs::copy(other.path().join("kvzap.safetensors"), &file).unwrap();
    let files = ModelFiles::open(dir.path()).unwrap();
    Model::load_for(&kvzap("budget=0.5"), &mut FloatLoader, &files.spec, Some(&files.checkpoint)).unwrap();
    let mut weights = std::fs::read(dir.path().join("model.safetensors")).unwrap();
    *weights.last_mut().unwrap() ^= 1;
    std::fs::write(dir.path().join("model.safetensors"), weights).unwrap();
    assert!(matches!(load(), CheckpointError::OtherLearned { .. }));

    // Columns whose scores could leave their range.
    std::fs::remove_file(&file).unwrap();
    let files = fitted(dir.path(), LLAMA);
    let mut bytes = std::fs::read(&file).unwrap();
    drop(files);
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[8 + header..8 + header + 4].copy_from_slice(&300f32.to_le_bytes());
    std::fs::write(&file, bytes).unwrap();
    assert!(matches!(load(), CheckpointError::LargeLearned { tensor, .. } if tensor == "layers.0.weight"));
}

#[test]
fn models_and_servers_of_other_policies_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let files = fitted(dir.path(), GPT2);
    let plain = Model::load(&mut FloatLoader, &files.spec, Some(&files.checkpoint)).unwrap();
    let policy = kvzap("budget=0.5");
    let options = GenerateOptions { tokens: 2, policy: policy.clone(), ..crate::support::fine() };
    let ids = ids(9);
    let input = Input::of(Some(&ids), 9);
    let refused = generate(&mut Float::default(), &plain, input, &options, Next::Forced(&[]), &mut NoHooks);
    assert!(matches!(refused, Err(waggle_model::Error::NotLearned { .. })), "{refused:?}");
    // Columns of another policy are no columns of this one.
    let keydiff = "keydiff:budget=0.5".parse().unwrap();
    let other = Model::load_for(&keydiff, &mut FloatLoader, &files.spec, Some(&files.checkpoint)).unwrap();
    let refused = generate(&mut Float::default(), &other, input, &options, Next::Forced(&[]), &mut NoHooks);
    assert!(matches!(refused, Err(waggle_model::Error::NotLearned { .. })), "{refused:?}");

    let serve = |loaded: &PolicySpec, asked: &PolicySpec| {
        let server = ModelServer::builder().policy(loaded).load(ModelFiles::open(dir.path()).unwrap()).unwrap();
        let (_client, link) = memory_pair(std::time::Duration::from_secs(1));
        let terms = Terms { policy: asked.clone(), ..crate::outcome::fine_terms() };
        let channel = Channel::new(Role::Server, link);
        let limits = waggle_session::party::Limits::NONE;
        server.serve(channel, &Peer::default(), &terms, &limits, &mut nobody).map(|_| ()).unwrap_err()
    };
    let full = PolicySpec::default();
    let other: PolicySpec = "keydiff:budget=0.5".parse().unwrap();
    for (loaded, asked) in [(&full, &policy), (&policy, &full), (&policy, &other)] {
        let error = serve(loaded, asked);
        assert!(matches!(&error, Error::OtherColumns { policy, .. } if *policy == asked.to_string()), "{error}");
    }
}
