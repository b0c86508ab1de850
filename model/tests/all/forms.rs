//! Matrices that other programs stored in few bits: they give the numbers of these programs, and hostile files are
//! refused.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use waggle_model::{Checkpoint, Error, ModelFiles, TensorSpec, quantize};

use crate::support::{load, logits};

/// The directories of `references/forms.py`.
fn forms() -> Vec<(String, PathBuf)> {
    let all = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/forms"));
    let mut found: Vec<_> = fs::read_dir(all)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), entry.path()))
        .collect();
    found.sort();
    assert!(found.len() >= 16, "{found:?}");
    found
}

/// The numbers that the form's own program computes.
fn reference(dir: &Path) -> Checkpoint {
    Checkpoint::from_bytes("reference", fs::read(dir.join("reference.safetensors")).unwrap().leak()).unwrap()
}

fn values(checkpoint: &Checkpoint, tensor: &TensorSpec) -> Vec<f32> {
    match tensor.shape.len() {
        1 => checkpoint.vector(&tensor.name).unwrap().to_vec(),
        _ => checkpoint.matrix(&tensor.name).unwrap().into_iter().collect(),
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn every_form_gives_the_numbers_of_its_own_program() {
    for (name, dir) in forms() {
        let (files, reference) = (ModelFiles::open(&dir).unwrap(), reference(&dir));
        files.checkpoint.check_all(&files.spec).unwrap_or_else(|error| panic!("{name}: {error}"));
        reference.check_all(&files.spec).unwrap();
        for tensor in files.spec.tensors() {
            let (got, want) = (values(&files.checkpoint, &tensor), values(&reference, &tensor));
            assert!(want.iter().any(|x| *x != want[0]), "{name}: {}", tensor.name);
            assert_eq!(bits(&got), bits(&want), "{name}: {}", tensor.name);
        }
    }
}

/// A model in few bits works like one in plain floating point: it gives the same logits, and `waggle quantize` gives
/// the same 8 bits.
#[test]
fn a_form_is_read_as_any_model_is() {
    for (name, dir) in forms() {
        let place = tempfile::tempdir().unwrap();
        let (plain, ours) = (place.path().join("plain"), place.path().join("ours"));
        fs::create_dir(&plain).unwrap();
        fs::copy(dir.join("reference.safetensors"), plain.join("model.safetensors")).unwrap();
        let mut config: Value = serde_json::from_slice(&fs::read(dir.join("config.json")).unwrap()).unwrap();
        config.as_object_mut().unwrap().remove("quantization_config");
        fs::write(plain.join("config.json"), config.to_string()).unwrap();
        let [own, same] = [&dir, &plain].map(|dir| ModelFiles::open(dir).unwrap());
        let digests = [&own, &same].map(|files| files.sampled_digest().unwrap());
        assert!(digests[0] != digests[1] && own.spec == same.spec, "{name}");
        let spec = quantize(&own, &ours, None).unwrap();
        assert_eq!(ModelFiles::open(&ours).unwrap().spec, spec, "{name}");
        let ids = [1, 5, 2, 7, 3];
        assert_eq!(logits(&load(own), &ids), logits(&load(same), &ids), "{name}");
    }
}

/// The header of a safetensors file, and its data.
fn parts(dir: &Path) -> (Map<String, Value>, Vec<u8>) {
    let mut bytes = fs::read(dir.join("model.safetensors")).unwrap();
    let data = bytes.split_off(8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize);
    let mut header: Map<String, Value> = serde_json::from_slice(&bytes[8..]).unwrap();
    header.remove("__metadata__");
    (header, data)
}

/// Opens the model `dir` with another file of weights, and reads every tensor that the model's shape requires.
fn opened(dir: &Path, header: &Map<String, Value>, data: &[u8]) -> Result<(), Error> {
    let place = tempfile::tempdir().unwrap();
    fs::copy(dir.join("config.json"), place.path().join("config.json")).unwrap();
    let header = serde_json::to_string(header).unwrap();
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat();
    fs::write(place.path().join("model.safetensors"), bytes).unwrap();
    let files = ModelFiles::open(place.path())?;
    files.checkpoint.check_all(&files.spec)?;
    for tensor in files.spec.tensors() {
        match tensor.shape.len() {
            1 => drop(files.checkpoint.vector(&tensor.name)?),
            _ => drop(files.checkpoint.matrix(&tensor.name)?),
        }
    }
    Ok(())
}

/// Tensors without which a matrix can still be read, as another matrix or the same one.
const OPTIONAL: [&str; 7] =
    [".bias", ".g_idx", ".input_scale", ".weight_format", ".weight_zero_point", "__nf4", "__fp4"];

#[test]
fn a_tensor_that_does_not_fit_is_refused_by_name() {
    for (name, dir) in forms() {
        let (header, data) = parts(&dir);
        opened(&dir, &header, &data).unwrap();
        for tensor in header.keys().filter(|tensor| tensor.contains("layers.0") && !tensor.contains("norm")) {
            let optional = OPTIONAL.iter().any(|end| tensor.ends_with(end));
            let matrix = tensor.split("_proj").next().unwrap();
            let refused = |header: &Map<String, Value>, what: &str| match opened(&dir, header, &data) {
                Ok(()) => assert!(optional, "{name}: {tensor} {what}"),
                Err(error) => assert!(error.to_string().contains(matrix), "{name}: {tensor} {what}: {error}"),
            };
            let mut missing = header.clone();
            let moved = missing.remove(tensor).unwrap();
            missing.insert(format!("{tensor}.moved"), moved);
            refused(&missing, "is missing");
            let mut longer = header.clone();
            longer[tensor]["shape"].as_array_mut().unwrap().insert(0, json!(1));
            // A scale of one number has any number of axes.
            if header[tensor]["shape"] != json!([1]) {
                refused(&longer, "has an axis more");
            }
            let mut other = header.clone();
            let dtype = header[tensor]["dtype"].as_str().unwrap();
            // The same number of bytes, with a type that is not read anywhere.
            other[tensor]["dtype"] = json!(match dtype {
                "I32" | "F32" => "U32",
                "F16" | "BF16" => "U16",
                "I64" => "U64",
                _ => "F8_E5M2",
            });
            refused(&other, "has another type");
            let mut empty = missing;
            let end = data.len();
            empty.insert(
                tensor.clone(),
                json!({"dtype": dtype, "shape": [0, 1u64 << 62], "data_offsets": [end, end]}),
            );
            refused(&empty, "is empty");
        }
    }
}

/// Hostile values: groups out of range, scales that are no numbers, and invalid JSON.
#[test]
fn any_bytes_are_read_or_refused() {
    let mut seed = 1u64;
    let mut byte = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 56) as u8
    };
    for (_, dir) in forms() {
        let (header, data) = parts(&dir);
        for fill in [0x00, 0x01, 0x7f, 0xff] {
            let _ = opened(&dir, &header, &vec![fill; data.len()]);
        }
        for tensor in header.values() {
            let range = [0, 1].map(|end| tensor["data_offsets"][end].as_u64().unwrap() as usize);
            for _ in 0..4 {
                let mut changed = data.clone();
                changed[range[0]..range[1]].fill_with(&mut byte);
                let _ = opened(&dir, &header, &changed);
            }
        }
    }
    // A group that does not exist.
    let (_, dir) = forms().into_iter().find(|(name, _)| name == "gptq").unwrap();
    let (header, mut data) = parts(&dir);
    let name = "model.layers.0.mlp.down_proj.g_idx";
    let start = header[name]["data_offsets"][0].as_u64().unwrap() as usize;
    data[start..start + 4].copy_from_slice(&3i32.to_le_bytes());
    let error = opened(&dir, &header, &data).unwrap_err().to_string();
    assert!(error.contains(name) && error.contains("group"), "{error}");
    data[start..start + 4].copy_from_slice(&(-1i32).to_le_bytes());
    assert!(opened(&dir, &header, &data).unwrap_err().to_string().contains(name));
}

/// If the architecture has no bias, a bias that is not zero is refused, as ignoring it would change the model.
#[test]
fn only_a_bias_of_zeros_changes_nothing() {
    let (_, dir) = forms().into_iter().find(|(name, _)| name == "gptq").unwrap();
    let (header, mut data) = parts(&dir);
    let name = "model.layers.0.mlp.down_proj.bias";
    let start = header[name]["data_offsets"][0].as_u64().unwrap() as usize;
    data[start + 1] = 0x3c;
    assert!(opened(&dir, &header, &data).unwrap_err().to_string().contains(name));
}

#[test]
fn what_is_not_read_is_refused_by_key() {
    let int = |bits: u32| json!({"config_groups": {"a": {"weights": {"num_bits": bits, "type": "int"}}}});
    let with = |mut value: Value, more: Value| {
        value.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        value
    };
    for (method, keys, words) in [
        ("gptq", json!({"bits": 3}), ["quantization_config.bits", "4 and 8"]),
        ("gptq", json!({}), ["quantization_config.bits", "missing"]),
        ("gptq", json!({"bits": 4, "checkpoint_format": "marlin"}), ["checkpoint_format", "marlin"]),
        ("gptq", json!({"bits": 4, "group_size": 0}), ["group_size", "0"]),
        ("awq", json!({"bits": 4, "version": "gemv"}), ["version", "gemv"]),
        ("fp8", json!({"weight_block_size": [128, 0]}), ["weight_block_size", "0"]),
        ("fp8", json!({"fmt": "e5m2"}), ["fmt", "e5m2"]),
        ("compressed-tensors", json!({"format": "pack-quantized"}), ["config_groups", "missing"]),
        ("compressed-tensors", with(int(2), json!({"format": "pack-quantized"})), ["num_bits", "2"]),
        ("compressed-tensors", with(int(4), json!({"format": "nvfp4-pack-quantized"})), ["format", "nvfp4"]),
        (
            "compressed-tensors",
            with(int(4), json!({"format": "pack-quantized", "transform_config": {"config_groups": {}}})),
            ["transform_config", "only {}"],
        ),
        (
            "gptq",
            json!({"bits": 4, "dynamic": {"-:.*gate": {}, "+:.*up": {"bits": 4}, ".*down": {"bits": 8}}}),
            ["dynamic..*down", "same bits"],
        ),
        ("bitsandbytes", json!({"bnb_4bit_quant_storage": "bfloat16"}), ["quant_storage", "bfloat16"]),
        ("hqq", json!({}), ["hqq", "gptq, awq, fp8, compressed-tensors, bitsandbytes"]),
    ] {
        let config =
            json!({"model_type": "llama", "quantization_config": with(keys, json!({"quant_method": method}))});
        let error = waggle_model::ModelSpec::from_config_json(config.to_string().as_bytes()).unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
    let gpt2 = json!({"model_type": "gpt2", "quantization_config": {"quant_method": "gptq", "bits": 4}});
    let error = waggle_model::ModelSpec::from_config_json(gpt2.to_string().as_bytes()).unwrap_err().to_string();
    assert!(error.contains("(outputs, inputs)"), "{error}");
}

/// Scales for scores and for cached keys and values are left out, as these are not rounded here.
#[test]
fn scales_of_caches_are_left_out() {
    for (name, dir) in forms() {
        let (mut header, mut data) = parts(&dir);
        let mut add = |scale: &str| {
            let offsets = [data.len(), data.len() + 1];
            data.push(1);
            let one = json!({"dtype": "U8", "shape": [1], "data_offsets": offsets});
            header.insert(format!("model.layers.0.{scale}"), one);
            opened(&dir, &header, &data).map_err(|error| error.to_string())
        };
        for scale in ["k_scale", "v_scale", "kv_scale", "k_proj.k_scale", "v_proj.v_zero_point", "attn.q_scale"] {
            add(&format!("self_attn.{scale}")).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        assert!(add("mlp.k_scale").is_err_and(|error| error.contains("mlp.k_scale")), "{name}");
    }
}

/// Each group of compressed-tensors may have its own format, so the matrices of one model may have two formats.
#[test]
fn formats_are_those_of_groups() {
    let of = |groups: Value, format: Value| {
        let settings = json!({"quant_method": "compressed-tensors", "format": format, "config_groups": groups,
            "kv_cache_scheme": {"num_bits": 8}});
        let config = json!({"model_type": "llama", "quantization_config": settings});
        waggle_model::ModelSpec::from_config_json(config.to_string().as_bytes()).map_err(|error| error.to_string())
    };
    let group = |bits: u32, kind: &str, format: &str| json!({"format": format, "weights": {"num_bits": bits, "type": kind, "group_size": 8}});
    let (packed, bytes) = (group(4, "int", "pack-quantized"), group(8, "float", "float-quantized"));
    for format in [json!("mixed-precision"), Value::Null, json!("float-quantized")] {
        of(json!({"a": packed}), format.clone()).unwrap();
        of(json!({"a": packed, "b": bytes, "c": packed}), format).unwrap();
    }
    // A configuration that rounds only the cache.
    of(json!({}), json!("dense")).unwrap();
    let error = of(json!({"a": packed, "b": group(8, "int", "pack-quantized")}), Value::Null).unwrap_err();
    assert!(error.contains("config_groups.b") && error.contains("one scheme"), "{error}");
    let error = of(json!({"a": group(4, "int", "nvfp4-pack-quantized")}), Value::Null).unwrap_err();
    assert!(error.contains("nvfp4"), "{error}");
}

/// Two tensors of the same name.
#[test]
fn a_matrix_is_there_once() {
    let (_, dir) = forms().into_iter().find(|(name, _)| name == "awq").unwrap();
    let (mut header, data) = parts(&dir);
    let name = "model.layers.0.mlp.down_proj.weight";
    header.insert(name.into(), json!({"dtype": "F16", "shape": [0], "data_offsets": [0, 0]}));
    let error = opened(&dir, &header, &data).unwrap_err().to_string();
    assert!(error.contains(name) && error.contains("twice"), "{error}");
}
