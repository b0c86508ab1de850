//! LoRA adapters against PEFT, on the checkpoints of `references/make.py` and the adapters of
//! `references/adapters.py`; and refusals.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use waggle_engine::{Float, FloatLoader};
use waggle_model::{AdapterError, CheckpointError, Disclosed, Error, Known, Model, ModelFiles, Parts, PartsError};
use waggle_mpcache::PolicySpec;
use waggle_protocols::{Fixed, FixedLoader};

use crate::families::{MAX_FIXED_ERROR, MAX_LOGIT_ERROR, families, forced, references};

fn data(part: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(part)
}

/// The base of the adapter `name`, with the adapter in `dir`.
fn adapted(name: &str, dir: &Path) -> Result<ModelFiles, Error> {
    let base = name.split('-').next().unwrap_or(name);
    let files = ModelFiles::open(&data("families").join(base))?;
    let checkpoint = files.checkpoint.with_adapter(dir, &files.spec)?;
    Ok(ModelFiles { checkpoint, ..files })
}

/// Adapters of one matrix or several, with norms of every kind and with layers without an adapter. Fixed point gives
/// the same results whether the base is public or not. Prints a table of bench/results/preparation.md.
#[test]
fn adapters_compute_what_peft_computes() {
    println!("| adapter | f32 | fixed point | base public |\n|---|---|---|---|");
    let mut seen = 0;
    for entry in fs::read_dir(data("adapters")).unwrap() {
        let dir = entry.unwrap().path();
        let name = dir.file_name().unwrap().to_string_lossy().into_owned();
        let files = adapted(&name, &dir).unwrap();
        let checkpoint = Some(&files.checkpoint);
        let float = Model::load(&mut FloatLoader, &files.spec, checkpoint).unwrap();
        let fixed = Model::load(&mut FixedLoader::default(), &files.spec, checkpoint).unwrap();
        let disclosed = Disclosed { parts: Parts::all(), ranks: files.checkpoint.ranks() };
        let known = Known::All(&files.checkpoint);
        let (policy, mut loader) = (PolicySpec::default(), FixedLoader::default());
        let public = Model::load_disclosed(&disclosed, &policy, &mut loader, &files.spec, known).unwrap();
        let specs = files.spec.weight_specs_of(&disclosed).unwrap();
        assert_eq!(specs, public.weights().into_iter().map(|weight| weight.spec.clone()).collect::<Vec<_>>());
        assert!(specs.iter().all(|spec| spec.public != spec.name.contains("lora_")), "{name}");
        // The script also merged the adapter into the base, and computed the same logits.
        let value: Value = serde_json::from_slice(&fs::read(dir.join("reference.json")).unwrap()).unwrap();
        assert!(value["merged"].as_f64().unwrap() < 1e-3, "{name}");
        let mut worst = [0.0f32; 3];
        for reference in references(&dir) {
            let ids = &reference.ids;
            let got = [
                forced(&mut Float::default(), &float, ids, 9, None),
                forced(&mut Fixed::new(), &fixed, ids, 9, None),
                forced(&mut Fixed::new(), &public, ids, 9, None),
            ];
            for ((worst, got), within) in
                worst.iter_mut().zip(&got).zip([MAX_LOGIT_ERROR, MAX_FIXED_ERROR, MAX_FIXED_ERROR])
            {
                *worst = worst.max(reference.compare(got, within, &name));
            }
            // Only the rounding of embedded rows differs: rows of a public table are not rounded.
            assert!((&got[1] - &got[2]).iter().all(|x| x.abs() < 0.02), "{name}");
        }
        println!("| {name} | {:.1e} | {:.1e} | {:.1e} |", worst[0], worst[1], worst[2]);
        seen += 1;
    }
    assert!(seen >= 7);
}

/// The error of opening the adapter to LLaMA with `change` made to its settings.
fn refused(change: impl FnOnce(&mut Value)) -> Error {
    let (from, to) = (data("adapters/llama3"), tempfile::tempdir().unwrap());
    fs::copy(from.join("adapter_model.safetensors"), to.path().join("adapter_model.safetensors")).unwrap();
    let mut settings = serde_json::from_slice(&fs::read(from.join("adapter_config.json")).unwrap()).unwrap();
    change(&mut settings);
    fs::write(to.path().join("adapter_config.json"), settings.to_string()).unwrap();
    adapted("llama3", to.path()).err().expect("refused")
}

#[test]
fn settings_that_compute_something_else_are_refused_by_name() {
    for (key, value) in [
        ("peft_type", json!("IA3")),
        ("bias", json!("all")),
        ("use_dora", json!(true)),
        ("modules_to_save", json!(["lm_head"])),
        ("fan_in_fan_out", json!(true)),
        ("init_lora_weights", json!("pissa")),
        ("layer_replication", json!([[0, 2]])),
        ("alpha_pattern", json!({"q_proj|v_proj": 2})),
        ("lora_alpha", Value::Null),
        ("something_new", json!("on")),
    ] {
        let error = refused(|settings| settings[key] = value.clone());
        assert!(matches!(&error, Error::Adapter(AdapterError::Unsupported { key: of, .. }) if of == key), "{error}");
    }
    let pickled = tempfile::tempdir().unwrap();
    fs::copy(data("adapters/llama3/adapter_config.json"), pickled.path().join("adapter_config.json")).unwrap();
    fs::write(pickled.path().join("adapter_model.bin"), b"").unwrap();
    let error = adapted("llama3", pickled.path()).err().unwrap().to_string();
    assert!(error.contains("save_pretrained") && error.contains("adapter_model.safetensors"), "{error}");
    let dir = data("adapters/gpt_neox");
    let other = adapted("llama3", &dir).err();
    assert!(matches!(other, Some(Error::Adapter(AdapterError::Unread { .. }))), "{other:?}");
    // An adapter with the same names but other shapes.
    let other = adapted("gemma2", &data("adapters/llama3")).err();
    assert!(matches!(other, Some(Error::Checkpoint(CheckpointError::Shape { .. }))), "{other:?}");
}

#[test]
fn parts_are_named_or_refused() {
    let parts = |text: &str| text.parse::<Parts>();
    for (text, meant) in [
        ("", ""),
        ("head, embedding", "embedding,head"),
        ("layers=4,layers=0-2,layers=3", "layers=0-4"),
        ("layers=5-7,layers=0-3", "layers=0-3,layers=5-7"),
        ("layers=0,all", "all"),
    ] {
        assert_eq!(parts(text).unwrap().to_string(), meant, "{text}");
    }
    for text in ["lm_head", "layers", "layers=", "layers=3-1", "layers=-1", "layers=0-1-2", "embedding;head"] {
        assert!(matches!(parts(text), Err(PartsError::Unknown(name)) if name == text), "{text}");
    }
    let open = |name: &str| families().into_iter().find(|(of, _)| of == name).map(|(_, dir)| ModelFiles::open(&dir));
    let spec = open("llama3").unwrap().unwrap().spec;
    let check = |text: &str| Disclosed { parts: parts(text).unwrap(), ..Disclosed::default() }.check(&spec);
    assert_eq!(check("layers=1-3"), Err(PartsError::NoLayer { layer: 3, layers: 3 }));
    assert_eq!(check("head"), Err(PartsError::Tied));
    assert_eq!(check("head,embedding,layers=2"), Ok(()));
    let rank = |rank| Disclosed { ranks: [("self_attn.q_proj".into(), rank)].into(), ..Disclosed::default() };
    assert_eq!(rank(32).check(&spec), Ok(()));
    assert!(matches!(rank(33).check(&spec), Err(PartsError::Rank { rank: 33, .. })));
}

/// A digest covers all bytes of its part, and of no other part.
#[test]
fn parts_have_digests() {
    let dir = data("families/mistral");
    let files = ModelFiles::open(&dir).unwrap();
    let digests = files.checkpoint.digests(&files.spec).unwrap();
    let copy = tempfile::tempdir().unwrap();
    fs::copy(dir.join("config.json"), copy.path().join("config.json")).unwrap();
    let mut bytes = fs::read(dir.join("model.safetensors")).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(copy.path().join("model.safetensors"), bytes).unwrap();
    let other = ModelFiles::open(copy.path()).unwrap();
    let other = other.checkpoint.digests(&other.spec).unwrap();
    let differ = digests.parts().zip(other.parts()).filter(|(a, b)| a != b).count();
    assert_eq!(differ, 1, "{digests:?} {other:?}");
    let told = digests.clone().of(&"head,layers=1".parse().unwrap());
    assert_eq!(told.parts().filter(|(_, digest)| !digest.is_empty()).count(), 2);
}
