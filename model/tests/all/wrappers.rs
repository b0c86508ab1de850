//! Text models within models of texts and pictures.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use waggle_model::{Checkpoint, CheckpointError, DType, Error, LeftOut, ModelFiles, TensorSpec, write_safetensors};

use crate::support::{load, logits};

/// Writes the model of the family `family` as the text model within a model of type `kind`. `named` gives the names
/// of its tensors, and `extra` are further tensors.
fn wrap(family: &str, to: &Path, (kind, class): (&str, &str), named: impl Fn(&str) -> String, extra: &[&str]) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/families").join(family);
    let mut text: Value = serde_json::from_slice(&fs::read(from.join("config.json")).unwrap()).unwrap();
    text.as_object_mut().unwrap().remove("architectures");
    let eos = text["eos_token_id"].take();
    let config = json!({"model_type": kind, "architectures": [class], "text_config": text, "eos_token_id": eos,
        "vision_config": {"hidden_size": 4}});
    fs::write(to.join("config.json"), config.to_string()).unwrap();
    let (spec, checkpoint) = (waggle_model::ModelSpec::open(&from).unwrap(), Checkpoint::open(&from).unwrap());
    let mut tensors: Vec<TensorSpec> = spec.tensors();
    tensors.iter_mut().for_each(|tensor| tensor.name = named(&tensor.name));
    tensors.extend(extra.iter().map(|name| TensorSpec::new(*name, [2])));
    let plain: Vec<(String, String)> = spec.tensors().into_iter().map(|t| (named(&t.name), t.name)).collect();
    write_safetensors(&to.join("model.safetensors"), &tensors, DType::F32, |tensor, values| {
        match plain.iter().find(|(named, _)| *named == tensor.name) {
            Some((_, name)) if tensor.shape.len() == 1 => values.extend(checkpoint.vector(name).unwrap()),
            Some((_, name)) => values.extend(checkpoint.matrix(name).unwrap()),
            None => values.resize(2, 0.5),
        }
        Ok(())
    })
    .unwrap();
}

/// The published name of a tensor before transformers 4.52.
fn before(name: &str) -> String {
    format!("language_model.{name}")
}

/// The published name of a tensor since transformers 4.52.
fn since(name: &str) -> String {
    match name.strip_prefix("model.") {
        Some(text) => format!("model.language_model.{text}"),
        None => name.to_owned(),
    }
}

const GEMMA: (&str, &str) = ("gemma3", "Gemma3ForConditionalGeneration");
const MISTRAL: (&str, &str) = ("mistral3", "Mistral3ForConditionalGeneration");
const LLAVA: (&str, &str) = ("llava", "LlavaForConditionalGeneration");

const GEMMA4: (&str, &str) = ("gemma4", "Gemma4ForConditionalGeneration");

#[test]
fn sounds_are_left_out_as_well() {
    for family in ["gemma4", "gemma4-shared"] {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/families").join(family);
        let want = logits(&load(ModelFiles::open(&from).unwrap()), &[1, 5, 2]);
        let dir = tempfile::tempdir().unwrap();
        let outside =
            ["audio_tower.", "embed_audio.", "embed_vision.", "vision_tower."].map(|name| format!("model.{name}"));
        let extra = outside.clone().map(|prefix| format!("{prefix}a"));
        wrap(family, dir.path(), GEMMA4, since, &extra.each_ref().map(|name| &**name));
        let files = ModelFiles::open(dir.path()).unwrap();
        assert_eq!(files.checkpoint.left_out(), outside.map(|prefix| LeftOut { prefix, tensors: 1 }));
        assert_eq!(logits(&load(files), &[1, 5, 2]), want, "{family}");
    }
}

#[test]
fn the_text_model_is_read_and_the_rest_is_named() {
    let left = |prefix: &str, tensors| LeftOut { prefix: prefix.into(), tensors };
    for (family, kind) in [("gemma3", GEMMA), ("mistral", MISTRAL), ("qwen2", LLAVA)] {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/families").join(family);
        let plain = ModelFiles::open(&from).unwrap();
        assert!(plain.checkpoint.left_out().is_empty());
        let want = logits(&load(plain), &[1, 5, 2]);
        let dir = tempfile::tempdir().unwrap();
        let extra = ["vision_tower.a", "vision_tower.b.c", "multi_modal_projector.d"];
        wrap(family, dir.path(), kind, before, &extra);
        let files = ModelFiles::open(dir.path()).unwrap();
        let all = [left("multi_modal_projector.", 1), left("vision_tower.", 2)];
        assert_eq!(files.checkpoint.left_out(), all, "{family}");
        assert_eq!(files.spec.eos(), ModelFiles::open(&from).unwrap().spec.eos());
        assert_eq!(logits(&load(files), &[1, 5, 2]), want, "{family}");
        wrap(family, dir.path(), kind, since, &["model.vision_tower.a"]);
        let files = ModelFiles::open(dir.path()).unwrap();
        assert_eq!(files.checkpoint.left_out(), [left("model.vision_tower.", 1)], "{family}");
        assert_eq!(logits(&load(files), &[1, 5, 2]), want, "{family}");
    }
}

#[test]
fn what_is_not_known_to_be_outside_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    wrap("gemma3", dir.path(), GEMMA, before, &["audio_tower.a", "vision_tower.a"]);
    let files = ModelFiles::open(dir.path()).unwrap();
    match files.checkpoint.check_all(&files.spec) {
        Err(CheckpointError::Unread { tensors }) => assert_eq!(tensors, ["audio_tower.a"]),
        other => panic!("{other:?}"),
    }
    wrap("gemma3", dir.path(), GEMMA, before, &["model.language_model.norm.weight"]);
    match ModelFiles::open(dir.path()) {
        Err(Error::Checkpoint(CheckpointError::Twice { tensor })) => assert_eq!(tensor, "model.norm.weight"),
        other => panic!("{:?}", other.err()),
    }
}
