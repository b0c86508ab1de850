//! Checkpoints as they should be, in every supported form, and checkpoints that lie.

use std::fs;
use std::path::Path;

use half::{bf16, f16};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use waggle_engine::FloatLoader;
use waggle_model::{Checkpoint, CheckpointError, Error, Model, ModelFiles, ModelSpec};

use crate::support::naive::{Published, Weights};
use crate::support::{load, logits, patterned, spec, write_checkpoint, write_dir};

fn gpt2() -> (ModelSpec, Value) {
    let config =
        json!({"model_type": "gpt2", "vocab_size": 7, "n_positions": 8, "n_embd": 6, "n_layer": 2, "n_head": 2});
    (spec(&config), config)
}

/// Writes `weights` by the format's own library, each in the type that `dtype` gives for its name.
pub(crate) fn write_as(path: &Path, weights: &Weights, dtype: impl Fn(&str) -> Dtype) {
    let encode = |name: &str, v: f32| match dtype(name) {
        Dtype::F16 => f16::from_f32(v).to_le_bytes().to_vec(),
        Dtype::BF16 => bf16::from_f32(v).to_le_bytes().to_vec(),
        Dtype::F64 => f64::from(v).to_le_bytes().to_vec(),
        Dtype::U8 | Dtype::BOOL => vec![v as u8],
        _ => v.to_le_bytes().to_vec(),
    };
    let bytes: Vec<(&String, Vec<u8>)> =
        weights.iter().map(|(name, t)| (name, t.data.iter().flat_map(|v| encode(name, *v)).collect())).collect();
    let views = bytes.iter().map(|(name, data)| {
        (name.as_str(), TensorView::new(dtype(name), weights[*name].shape.clone(), data).unwrap())
    });
    safetensors::serialize_to_file(views, None, path).unwrap();
}

fn rows(dir: &Path) -> Vec<f32> {
    let model = load(ModelFiles::open(dir).unwrap());
    logits(&model, &[1, 5, 2, 6]).into_iter().collect()
}

#[test]
fn types_prefixes_and_shards_give_the_same_model() {
    let (spec, config) = gpt2();
    let weights = patterned(&spec);
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    write_dir(dir, &config, &weights);
    let file = dir.join("model.safetensors");
    let want = rows(dir);
    for dtype in [Dtype::F16, Dtype::BF16] {
        write_as(&file, &weights, |_| dtype);
        assert_eq!(rows(dir), want, "{dtype:?}");
    }
    // The names of the base model, and buffers that are no weights.
    let mut bare: Weights =
        weights.iter().map(|(n, t)| (n.strip_prefix("transformer.").unwrap().to_owned(), t.clone())).collect();
    bare.insert("h.0.attn.masked_bias".into(), Published { shape: vec![], data: vec![-1e4] });
    write_checkpoint(&file, &bare);
    assert_eq!(rows(dir), want);
    // Two shards and an index.
    fs::remove_file(&file).unwrap();
    let (mut first, mut second, mut map) = (Weights::new(), Weights::new(), serde_json::Map::new());
    for (i, (name, tensor)) in weights.iter().enumerate() {
        let (part, number) = if i % 2 == 0 { (&mut first, 1) } else { (&mut second, 2) };
        part.insert(name.clone(), tensor.clone());
        map.insert(name.clone(), json!(format!("model-0000{number}-of-00002.safetensors")));
    }
    write_checkpoint(&dir.join("model-00001-of-00002.safetensors"), &first);
    write_checkpoint(&dir.join("model-00002-of-00002.safetensors"), &second);
    fs::write(dir.join("model.safetensors.index.json"), json!({"metadata": {}, "weight_map": map}).to_string())
        .unwrap();
    assert_eq!(rows(dir), want);
    // An index that names a missing tensor, or reaches outside the directory.
    map.insert("transformer.h.9.ln_1.bias".into(), json!("model-00001-of-00002.safetensors"));
    fs::write(dir.join("model.safetensors.index.json"), json!({"weight_map": map}).to_string()).unwrap();
    let error = Checkpoint::open(dir).err().unwrap();
    assert!(
        matches!(&error, CheckpointError::Missing { tensor, .. } if tensor == "transformer.h.9.ln_1.bias"),
        "{error}"
    );
    map.insert("transformer.h.9.ln_1.bias".into(), json!("../../etc/passwd"));
    fs::write(dir.join("model.safetensors.index.json"), json!({"weight_map": map}).to_string()).unwrap();
    assert!(matches!(Checkpoint::open(dir), Err(CheckpointError::Malformed { .. })));
}

#[test]
fn lies_are_refused_by_tensor_name() {
    let (spec, config) = gpt2();
    let honest = patterned(&spec);
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let opened = || {
        let files = ModelFiles::open(dir).unwrap();
        Model::load(&mut FloatLoader, &files.spec, Some(&files.checkpoint)).err().unwrap()
    };
    let refuse = |weights: &Weights| -> Error {
        write_dir(dir, &config, weights);
        opened()
    };
    for name in spec.tensors().into_iter().map(|t| t.name) {
        let mut missing = honest.clone();
        missing.remove(&name);
        let error = refuse(&missing);
        assert!(
            matches!(&error, Error::Checkpoint(CheckpointError::Missing { tensor, .. }) if *tensor == name),
            "{error}"
        );

        let mut misshaped = honest.clone();
        let tensor = misshaped.get_mut(&name).unwrap();
        tensor.shape.reverse();
        if tensor.shape.len() == 1 || tensor.shape[0] == tensor.shape[1] {
            tensor.shape.push(1);
        }
        let error = refuse(&misshaped);
        assert!(
            matches!(&error, Error::Checkpoint(CheckpointError::Shape { tensor, .. }) if *tensor == name),
            "{error}"
        );

        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut poisoned = honest.clone();
            *poisoned.get_mut(&name).unwrap().data.last_mut().unwrap() = value;
            let error = refuse(&poisoned);
            let Error::Checkpoint(CheckpointError::NotFinite { tensor, position, .. }) = &error else {
                panic!("{error}")
            };
            assert_eq!((tensor, *position), (&name, honest[&name].data.len() - 1));
        }
    }
    write_as(&dir.join("model.safetensors"), &honest, |_| Dtype::F64);
    let error = opened();
    assert!(error.to_string().contains("type F64"), "{error}");
}

/// Writes a file that announces a header of `announced` bytes, has the header `header`, and then `data` zero bytes.
fn file_with(path: &Path, announced: u64, header: &str, data: usize) {
    let mut bytes = announced.to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    fs::write(path, bytes).unwrap();
}

#[test]
fn broken_files_are_refused_without_a_panic_or_an_allocation() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    assert!(matches!(Checkpoint::open(dir), Err(CheckpointError::NoWeights { .. })));
    let path = dir.join("model.safetensors");
    let tensor = |dtype: &str, shape: Value, offsets: Value| {
        json!({"t": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}).to_string()
    };
    let good = tensor("F32", json!([2, 2]), json!([0, 16]));
    file_with(&path, good.len() as u64, &good, 16);
    assert_eq!(Checkpoint::open(dir).unwrap().tensors().collect::<Vec<_>>(), [("t", &[2, 2][..])]);
    // Announced lengths of the header: beyond the file, beyond any memory, too short.
    for announced in [good.len() as u64 + 17, 1 << 40, u64::MAX, u64::MAX - 7, 3, 0] {
        file_with(&path, announced, &good, 16);
        assert!(matches!(Checkpoint::open(dir), Err(CheckpointError::Malformed { .. })), "{announced}");
    }
    for bytes in [&b""[..], b"1234567", &[0xff; 64]] {
        fs::write(&path, bytes).unwrap();
        assert!(matches!(Checkpoint::open(dir), Err(CheckpointError::Malformed { .. })));
    }
    // Only the length of the file shows that this tensor does not fit.
    file_with(&path, good.len() as u64, &good, 15);
    let error = Checkpoint::open(dir).err().unwrap();
    assert!(matches!(&error, CheckpointError::Bytes { tensor, .. } if tensor == "t"), "{error}");
    for header in [
        tensor("F32", json!([2, 2]), json!([0, 12])),
        tensor("F32", json!([2, 2]), json!([8, 4])),
        tensor("F16", json!([2, 2]), json!([0, 16])),
        tensor("F32", json!([1u64 << 62, 1u64 << 62]), json!([0, 16])),
        tensor("F32", json!([1u64 << 62, 4]), json!([0, 0])),
        tensor("I64", json!([2]), json!([0, u64::MAX])),
        tensor("F32", json!([-1]), json!([0, 4])),
        tensor("F32", json!([1]), json!([0])),
        "[]".into(),
        "{\"t\": 3}".into(),
    ] {
        file_with(&path, header.len() as u64, &header, 16);
        assert!(matches!(Checkpoint::open(dir), Err(CheckpointError::Malformed { .. })), "{header}");
    }
    // A good file that is cut at any place is refused.
    let (spec, config) = gpt2();
    write_dir(dir, &config, &patterned(&spec));
    let whole = fs::read(&path).unwrap();
    for cut in (0..whole.len()).step_by(97) {
        fs::write(&path, &whole[..cut]).unwrap();
        assert!(ModelFiles::open(dir).is_err(), "cut at {cut} of {}", whole.len());
    }
}

#[test]
fn weight_specs_are_what_loading_asks_for() {
    let (spec, _) = gpt2();
    let names: Vec<_> = spec.weight_specs().into_iter().map(|s| (s.name, s.inputs, s.outputs)).collect();
    let block = |i: usize| {
        [("attn.c_attn", 6, 18), ("attn.c_proj", 6, 6), ("mlp.c_fc", 6, 24), ("mlp.c_proj", 24, 6)]
            .map(|(name, inputs, outputs)| (format!("transformer.h.{i}.{name}.weight"), inputs, outputs))
    };
    let mut want = vec![("transformer.wte.weight".to_owned(), 7, 6), ("transformer.wpe.weight".to_owned(), 8, 6)];
    want.extend(block(0));
    want.extend(block(1));
    want.push(("lm_head.weight".to_owned(), 6, 7));
    assert_eq!(names, want);
    // A model without weights is not runnable in the clear, and says so instead of computing with zeros.
    assert!(Model::load(&mut FloatLoader, &spec, None).is_err());
}
