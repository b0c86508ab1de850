//! Matrices of 8 bits: how they are written, how every engine reads them, and what is refused.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use waggle_model::{
    Checkpoint, CheckpointError, DType, Error, Model, ModelFiles, ModelSpec, bundled, quantize, synthesize,
    write_safetensors,
};
use waggle_protocols::{FixedLoader, NARROW_BITS};

use crate::support::tiny::write_tiny;
use crate::support::{load, logits};

fn checkpoints() -> Vec<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let families = fs::read_dir(here.join("tests/data/families")).unwrap().map(|entry| entry.unwrap().path());
    families.chain(["shakespeare-gpt2", "stories260k"].map(|name| here.join("assets").join(name))).collect()
}

/// Writes the numbers of the model `from` in f32, without a sign that they ever had 8 bits.
fn dequantize(from: &Path, to: &Path) -> ModelFiles {
    let mut config: Value = serde_json::from_slice(&fs::read(from.join("config.json")).unwrap()).unwrap();
    config.as_object_mut().unwrap().remove("quantization_config");
    fs::create_dir_all(to).unwrap();
    fs::write(to.join("config.json"), config.to_string()).unwrap();
    let (spec, checkpoint) = (ModelSpec::open(to).unwrap(), Checkpoint::open(from).unwrap());
    write_safetensors(&to.join("model.safetensors"), &spec.tensors(), DType::F32, |tensor, values| {
        match tensor.shape.len() {
            1 => values.extend(checkpoint.vector(&tensor.name).unwrap()),
            _ => values.extend(checkpoint.matrix(&tensor.name).unwrap()),
        }
        Ok(())
    })
    .unwrap();
    ModelFiles::open(to).unwrap()
}

#[test]
fn every_family_is_quantized_and_read() {
    for from in checkpoints() {
        let (name, dir) = (from.display(), tempfile::tempdir().unwrap());
        let (small, wide) = (dir.path().join("small"), dir.path().join("wide"));
        let before = ModelFiles::open(&from).unwrap();
        let spec =
            quantize(&before, &small, if name.to_string().ends_with('2') { Some(3000) } else { None }).unwrap();
        let after = ModelFiles::open(&small).unwrap();
        assert!(after.spec == spec && spec != before.spec && after.tokenizer == before.tokenizer, "{name}");
        for tensor in spec.tensors() {
            if tensor.shape.len() == 1 {
                let read = |files: &ModelFiles| files.checkpoint.vector(&tensor.name).unwrap();
                assert_eq!(read(&after), read(&before), "{name}: {}", tensor.name);
                continue;
            }
            let read = |files: &ModelFiles| files.checkpoint.matrix(&tensor.name).unwrap();
            for (got, want) in read(&after).rows().into_iter().zip(read(&before).rows()) {
                let most = want.iter().fold(0f32, |most, w| most.max(w.abs()));
                let close = got.iter().zip(want).all(|(got, want)| (got - want).abs() <= most / 253.9);
                assert!(close, "{name}: {}", tensor.name);
            }
        }
        let (same, ids) = (dequantize(&small, &wide), [1, 3, 2, 5]);
        let (loaded, float) = (load(ModelFiles::open(&small).unwrap()), load(dequantize(&small, &wide)));
        assert_eq!(logits(&loaded, &ids), logits(&float, &ids), "{name}: the plaintext engine");
        let [mut own, mut other] = [FixedLoader::default(), FixedLoader::default()];
        let fixed = Model::load(&mut own, &after.spec, Some(&after.checkpoint)).unwrap();
        let wide = Model::load(&mut other, &same.spec, Some(&same.checkpoint)).unwrap();
        for (narrow, wide) in fixed.weights().into_iter().zip(wide.weights()) {
            // The numbers may have been rounded to half precision before.
            let steps = 1 << (wide.frac - narrow.frac);
            let [integers, wanted] = [narrow, wide].map(|w| w.values.as_ref().unwrap().matrix.to_integers());
            let close = integers.iter().zip(&wanted).all(|(n, w)| (n * steps - w).abs() <= steps / 2 + 1);
            assert!(close, "{name}: {}", narrow.spec.name);
            let most = integers.iter().map(|n| n.unsigned_abs()).max().unwrap_or_default();
            assert!(most < 1 << narrow.bits(), "{name}: {most}");
            assert_eq!((narrow.spec.narrow, wide.spec.narrow), (narrow.bits() == NARROW_BITS, false));
            assert_eq!(narrow.width(), if narrow.spec.narrow { 36 + narrow.frac } else { 56 });
            assert_eq!(wide.width(), 56);
        }
    }
}

#[test]
fn learned_columns_are_bound_to_the_new_weights() {
    let from = bundled("shakespeare-llama").unwrap();
    let dir = tempfile::tempdir().unwrap();
    quantize(&from, dir.path(), None).unwrap();
    let policy = "kvzap:budget=16".parse().unwrap();
    let files = ModelFiles::open(dir.path()).unwrap();
    Model::load_for(&policy, &mut FixedLoader::default(), &files.spec, Some(&files.checkpoint)).unwrap();
    // The learned columns were fitted to other weights.
    let files = ModelFiles { checkpoint: from.checkpoint, ..files };
    let error = Model::load_for(&policy, &mut FixedLoader::default(), &files.spec, Some(&files.checkpoint)).err();
    assert!(matches!(error, Some(Error::Checkpoint(CheckpointError::Type { .. }))), "{error:?}");
}

/// The error of loading after `change` has modified the header and the data of a file.
fn refused(change: impl FnOnce(&mut Value, &mut [u8])) -> String {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir(&from).unwrap();
    write_tiny(&from);
    quantize(&ModelFiles::open(&from).unwrap(), &to, None).unwrap();
    let path = to.join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let mut data = bytes.split_off(8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize);
    let mut header = serde_json::from_slice(&bytes[8..]).unwrap();
    change(&mut header, &mut data);
    let header = header.to_string();
    fs::write(&path, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()).unwrap();
    let files = ModelFiles::open(&to)
        .and_then(|files| Model::load(&mut FixedLoader::default(), &files.spec, Some(&files.checkpoint)).map(|_| ()));
    files.expect_err("a changed file").to_string()
}

#[test]
fn tensors_that_do_not_fit_are_refused_by_name() {
    const MATRIX: &str = "transformer.h.0.mlp.c_fc.weight";
    const SCALES: &str = "transformer.h.0.mlp.c_fc.weight_scale";
    let missing = refused(|header, _| {
        let scales = header.as_object_mut().unwrap().remove(SCALES).unwrap();
        header["other"] = scales;
    });
    assert_eq!(missing, format!("tensor `{SCALES}` is missing"));
    let shape = refused(|header, _| header[SCALES]["shape"] = json!([2, 4]));
    assert!(shape.contains(SCALES) && shape.contains("[2, 4]"), "{shape}");
    let long = refused(|header, _| {
        let other = SCALES.replace("c_fc", "c_proj");
        let scales = header[&other].take();
        header[&other] = std::mem::replace(&mut header[SCALES], scales);
    });
    assert_eq!(long, format!("tensor `{SCALES}` has shape [32], the configuration says [8]"));
    for (scale, words) in [(0.0f32, "positive"), (-1.0, "positive"), (f32::NAN, "NaN"), (f32::INFINITY, "inf")] {
        let wrong = refused(|header, data| {
            let start = header[SCALES]["data_offsets"][0].as_u64().unwrap() as usize;
            data[start + 4..start + 8].copy_from_slice(&scale.to_le_bytes());
        });
        assert!(wrong.contains(SCALES) && wrong.contains(words), "{wrong}");
    }
    let unsigned = refused(|header, _| header[MATRIX]["dtype"] = json!("U8"));
    assert_eq!(unsigned, format!("tensor `{MATRIX}` has type U8; config.json says I8"));
    let signed = refused(|header, _| {
        header[SCALES]["dtype"] = json!("I8");
        header[SCALES]["shape"] = json!([32]);
    });
    assert_eq!(signed, format!("tensor `{SCALES}` has type I8; scales are F32"));
    let idle = refused(|header, data| {
        let end = data.len();
        header["transformer.ln_f.weight_scale"] = json!({"dtype": "F32", "shape": [0], "data_offsets": [end, end]});
    });
    assert!(idle.contains("transformer.ln_f.weight_scale"), "{idle}");
}

#[test]
fn the_configuration_must_say_what_the_file_holds() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir(&from).unwrap();
    write_tiny(&from);
    let before = ModelSpec::open(&from).unwrap();
    let same = quantize(&ModelFiles::open(&from).unwrap(), &from, None).unwrap_err();
    assert!(matches!(&same, Error::File { path, .. } if *path == from), "{same}");
    quantize(&ModelFiles::open(&from).unwrap(), &to, None).unwrap();
    let again = quantize(&ModelFiles::open(&to).unwrap(), &dir.path().join("again"), None).unwrap_err().to_string();
    assert!(again.contains("8 bits already"), "{again}");
    let opened = |dir: &Path| {
        let ModelFiles { spec, checkpoint, .. } = ModelFiles::open(dir)?;
        checkpoint.check_all(&spec).map_err(Error::from)
    };
    opened(&from).unwrap();
    opened(&to).unwrap();
    // Integers without the scheme in the configuration, and the scheme without integers.
    let configs = [&from, &to].map(|dir| fs::read(dir.join("config.json")).unwrap());
    fs::write(to.join("config.json"), &configs[0]).unwrap();
    fs::write(from.join("config.json"), &configs[1]).unwrap();
    let first = "transformer.wte.weight";
    let [floats, integers] = [&from, &to].map(|dir| opened(dir).unwrap_err().to_string());
    assert_eq!(integers, format!("tensor `{first}` has type I8; F32, F16 and BF16 are supported"));
    assert_eq!(floats, format!("tensor `{first}` has type F32; config.json says I8"));
    for other in [json!({"quant_method": "gptq", "bits": 8}), json!({"bits": 8}), json!("waggle-int8")] {
        let mut config: Value = serde_json::from_slice(&configs[0]).unwrap();
        config["quantization_config"] = other;
        let refused = ModelSpec::from_config_json(config.to_string().as_bytes()).unwrap_err().to_string();
        assert!(refused.contains("quantization_config"), "{refused}");
    }
    // Random weights are no integers.
    let random = dir.path().join("random");
    opened(&random).unwrap_err();
    assert_eq!(synthesize(&configs[1], &random, None, DType::F16, None, 1).unwrap(), before);
    opened(&random).unwrap();
    // Both parties read the scheme in the shape that the server states.
    let spec = ModelSpec::from_config_json(&configs[1]).unwrap();
    let text = serde_json::to_string(&spec).unwrap();
    assert!(text.contains(r#""quantization_config":{"quant_method":"waggle-int8"}"#), "{text}");
    assert_eq!(serde_json::from_str::<ModelSpec>(&text).unwrap(), spec);
    assert!(serde_json::from_str::<ModelSpec>(&text.replace("waggle-int8", "waggle-int4")).is_err());
}
