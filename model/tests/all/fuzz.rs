//! Hostile files.

use std::path::Path;

use waggle_fuzz::{Corpus, memory};
use waggle_model::{Checkpoint, CheckpointError, ModelSpec};

fn dir(name: &str) -> String {
    format!("{}/tests/corpus/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Memory that a step may take whatever the file, also for texts of errors.
const SLACK: usize = 1 << 20;

#[test]
fn fuzz_config() {
    waggle_fuzz::target!(Corpus::open(dir("config")), |bytes: &[u8]| {
        let (outcome, memory) = memory::peak(|| ModelSpec::from_config_json(bytes));
        assert!(memory < 100 * bytes.len() + SLACK, "{memory} bytes");
        match outcome {
            Ok(spec) => {
                let text = serde_json::to_string(&spec).expect("a specification is JSON");
                assert_eq!(serde_json::from_str::<ModelSpec>(&text).expect("and comes back"), spec);
                // The sizes are safe to multiply.
                assert!(spec.layers() > 0 && spec.hidden() > 0 && (spec.vocabulary() > 0 || spec.image().is_some()));
                assert!(spec.heads().iter().all(|h| h.heads.is_multiple_of(h.kv_heads) && h.head_dim > 0));
                assert!(spec.weight_specs().len() < 16 * spec.layers() + 16);
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    });
}

#[test]
fn fuzz_checkpoint() {
    let place = tempfile::tempdir().unwrap();
    waggle_fuzz::target!(Corpus::open(dir("safetensors")), |bytes: &[u8]| {
        std::fs::write(place.path().join("model.safetensors"), bytes).unwrap();
        read_all(place.path(), bytes.len());
    });
}

#[test]
fn fuzz_checkpoint_index() {
    let place = tempfile::tempdir().unwrap();
    for shard in ["a.safetensors", "b.safetensors"] {
        std::fs::copy(format!("{}/{shard}", dir("shards")), place.path().join(shard)).unwrap();
    }
    waggle_fuzz::target!(Corpus::open(dir("index")), |bytes: &[u8]| {
        std::fs::write(place.path().join("model.safetensors.index.json"), bytes).unwrap();
        read_all(place.path(), bytes.len() + 4096);
    });
}

/// Opens the checkpoint in `dir`, whose files have `len` bytes, and reads every tensor of it.
fn read_all(dir: &Path, len: usize) {
    let (outcome, memory) = memory::peak(|| -> Result<(), CheckpointError> {
        let checkpoint = Checkpoint::open(dir)?;
        let tensors: Vec<_> = checkpoint.tensors().map(|(name, shape)| (name.to_owned(), shape.to_vec())).collect();
        for (name, shape) in tensors {
            let values = match shape.len() {
                1 => checkpoint.vector(&name).map(|vector| vector.len()),
                _ => checkpoint.matrix(&name).map(|matrix| matrix.len()),
            };
            match values {
                Ok(len) => assert_eq!(len, shape.iter().product::<usize>()),
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }
        Ok(())
    });
    // Half floats double in size, headers are parsed as JSON, and files are read in pieces of a mebibyte.
    assert!(memory < 200 * len + 3 * SLACK, "{memory} bytes for {len}");
    if let Err(error) = outcome {
        assert!(!error.to_string().is_empty());
    }
}

/// Writes the corpora of this file: `cargo test -p waggle-model --test all -- --ignored write`.
#[test]
#[ignore = "writes files of the repository"]
fn write_corpora() {
    let write = |name: &str, entries: Vec<(&str, Vec<u8>)>| {
        Corpus::write(dir(name), entries.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)));
    };
    let text = |text: &str| text.as_bytes().to_vec();
    let bundled =
        |name: &str| std::fs::read(format!("{}/assets/{name}/config.json", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let llama3 = r#"{"model_type":"llama","hidden_size":8,"num_attention_heads":2,"num_key_value_heads":1,"vocab_size":9,
        "num_hidden_layers":1,"intermediate_size":6,"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,
        "high_freq_factor":4.0,"original_max_position_embeddings":8192},"eos_token_id":[1,2]}"#;
    write(
        "config",
        vec![
            ("gpt2", bundled("shakespeare-gpt2")),
            ("llama", bundled("shakespeare-llama")),
            ("llama3", text(llama3)),
            ("empty", text("{}")),
            ("not-an-object", text("[]")),
            ("nested", text(&"[".repeat(300))),
            ("heads-do-not-divide", text(r#"{"model_type":"gpt2","n_embd":8,"n_head":3}"#)),
            ("huge", text(r#"{"model_type":"gpt2","n_layer":18446744073709551615,"n_embd":1e308}"#)),
        ],
    );
    let header = |json: &str, data: &[u8]| [&(json.len() as u64).to_le_bytes()[..], json.as_bytes(), data].concat();
    let three = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},
        "b":{"dtype":"F16","shape":[4],"data_offsets":[24,32]},"c":{"dtype":"BF16","shape":[1,2],"data_offsets":[32,36]}}"#;
    let overlap = r#"{"a":{"dtype":"F32","shape":[9223372036854775807,4],"data_offsets":[0,4]}}"#;
    let backwards = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}"#;
    let zero = r#"{"a":{"dtype":"I64","shape":[0,9999999999],"data_offsets":[0,0]}}"#;
    write(
        "safetensors",
        vec![
            ("three", header(three, &[0x3c; 36])),
            ("not-a-number", header(three, &[0xff; 36])),
            ("shape-overflows", header(overlap, &[0; 4])),
            ("backwards", header(backwards, &[0; 4])),
            ("zero", header(zero, &[])),
            ("header-longer-than-the-file", u64::MAX.to_le_bytes().to_vec()),
            ("empty", Vec::new()),
        ],
    );
    let one =
        |name: &str| header(&format!(r#"{{"{name}":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}}}"#), &[0; 4]);
    write("shards", vec![("a.safetensors", one("x")), ("b.safetensors", one("y"))]);
    write(
        "index",
        vec![
            ("two", text(r#"{"metadata":{},"weight_map":{"x":"a.safetensors","y":"b.safetensors"}}"#)),
            ("outside", text(r#"{"weight_map":{"x":"../a.safetensors"}}"#)),
            ("missing", text(r#"{"weight_map":{"x":"b.safetensors"}}"#)),
            ("none", text(r#"{"weight_map":{}}"#)),
            ("dot", text(r#"{"weight_map":{"x":"."}}"#)),
        ],
    );
}
